//! Parses the headers that `elsa.h` includes, and collects their declarations. The text of the headers has a regular
//! form, because cbindgen generates it.

use crate::files;
use crate::shell::Tree;

const HEADERS: &str = "runtime/capi/include/elsa";

/// The declarations in all headers. Declarations of the same kind are in the order in which the headers contain them.
#[derive(Debug, Default, PartialEq)]
pub struct Header {
    /// Names of constants.
    pub constants: Vec<String>,
    /// Names of number types such as `elsa_dtype`, with their C types.
    pub numbers: Vec<(String, String)>,
    /// C types of the callbacks, without the names of their arguments.
    pub callbacks: Vec<String>,
    /// Structs.
    pub structs: Vec<Struct>,
    /// Names of functions. Each is stored with its C declaration, without the names of the arguments.
    pub functions: Vec<(String, String)>,
}

/// A struct.
#[derive(Debug, PartialEq)]
pub struct Struct {
    /// Name.
    pub name: String,
    /// Fields.
    pub fields: Vec<Field>,
}

/// A field of a struct.
#[derive(Debug, PartialEq)]
pub struct Field {
    /// Name.
    pub name: String,
    /// Declaration without a comment.
    pub declaration: String,
}

impl Struct {
    /// Returns whether the first field contains the size of the struct, so that later versions can add fields.
    pub fn grows(&self) -> bool {
        self.fields.first().is_some_and(|field| field.declaration == "size_t size")
    }
}

impl Header {
    /// Reads the headers of a tree, in alphabetical order.
    ///
    /// # Errors
    /// Returns an error for an unknown kind of declaration.
    pub fn read(tree: &Tree) -> Result<Header, String> {
        let mut header = Header::default();
        for path in files::below(&tree.root.join(HEADERS), &["h"])? {
            header.parse(&files::text(&path)?)?;
        }
        if header.structs.is_empty() || header.functions.is_empty() || header.constants.is_empty() {
            return Err(format!("{HEADERS}: no constants, structs or functions found"));
        }
        Ok(header)
    }

    /// Adds the declarations in the text of a header.
    fn parse(&mut self, text: &str) -> Result<(), String> {
        let code = without_comments(text);
        let mut rest = String::new();
        for line in code.lines() {
            if let Some(line) = line.trim().strip_prefix('#') {
                let constant = line.strip_prefix("define ").and_then(|line| line.split_once(' '));
                self.constants.extend(constant.map(|(name, _)| name.to_owned()));
            } else {
                rest.push_str(line);
                rest.push('\n');
            }
        }
        // The text from the first inline function on is compiled into the programs.
        let rest = rest.split_once("static inline").map_or(rest.as_str(), |(before, _)| before);
        let mut rest = rest.trim();
        while !rest.is_empty() {
            rest = self.declaration(rest)?.trim_start();
        }
        Ok(())
    }

    /// Adds the first declaration of `text`, and returns the text after it.
    fn declaration<'a>(&mut self, text: &'a str) -> Result<&'a str, String> {
        let wrong = || format!("elsa.h: {:?}: not a declaration that is known", first_line(text));
        if let Some(rest) = text.strip_prefix("extern \"C\" {").or_else(|| text.strip_prefix('}')) {
            return Ok(rest);
        }
        if text.starts_with("typedef struct") {
            let (_, body) = text.split_once('{').ok_or_else(wrong)?;
            let (body, rest) = body.split_once('}').ok_or_else(wrong)?;
            let (name, rest) = rest.split_once(';').ok_or_else(wrong)?;
            let fields = body.split(';').map(words).filter(|field| !field.is_empty());
            let fields = fields.map(|declaration| Field {
                name: last_word(declaration.split('[').next().unwrap_or_default()).to_owned(),
                declaration,
            });
            self.structs.push(Struct { name: words(name), fields: fields.collect() });
            return Ok(rest);
        }
        let (declaration, rest) = text.split_once(';').ok_or_else(wrong)?;
        let declaration = words(declaration);
        match declaration.strip_prefix("typedef ") {
            Some(callback) if callback.contains('(') => {
                self.callbacks.push(prototype(callback).ok_or_else(wrong)?)
            }
            Some(number) => {
                let (of, name) = number.rsplit_once(' ').ok_or_else(wrong)?;
                self.numbers.push((name.to_owned(), of.to_owned()));
            }
            None => {
                let name = last_word(declaration.split('(').next().unwrap_or_default());
                let function = prototype(&declaration).filter(|_| name.starts_with("elsa_"));
                self.functions.push((name.to_owned(), function.ok_or_else(wrong)?));
            }
        }
        Ok(rest)
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn without_comments(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("/*") {
        code.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    code.push_str(rest);
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns the words of `text`, separated by single spaces.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the identifier at the end of `text`.
fn last_word(text: &str) -> &str {
    let text = text.trim_end();
    let start = text.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_').len();
    &text[start..]
}

/// Returns a function's declaration without the names of its arguments.
fn prototype(declaration: &str) -> Option<String> {
    let (before, arguments) = declaration.strip_suffix(')')?.rsplit_once('(')?;
    let unnamed = |argument: &str| {
        let argument = argument.trim();
        let without = argument.strip_suffix(last_word(argument)).unwrap_or(argument).trim_end();
        if without.is_empty() { argument.to_owned() } else { without.to_owned() }
    };
    let arguments: Vec<String> = arguments.split(',').map(unnamed).collect();
    Some(format!("{before}({})", arguments.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "/* A header. */\n#ifndef ELSA_H\n#define ELSA_H\n#define ELSA_BYTES 256\n\
        /*\n One. */\ntypedef int32_t elsa_status;\n\
        typedef void (*elsa_call)(void *user, const char *message);\n\
        typedef struct {\n  /*\n   size.\n   */\n  size_t size;\n  char name[ELSA_BYTES];\n  const char *kernel;\n} elsa_info;\n\
        #ifdef __cplusplus\nextern \"C\" {\n#endif // __cplusplus\n\
        const char *elsa_version(void);\nelsa_status elsa_ask(uint32_t which,\n                     elsa_info *info);\n\
        #ifdef __cplusplus\n}  // extern \"C\"\n#endif\nstatic inline void elsa_init(elsa_info *info) { info->size = 0; }\n";

    #[test]
    fn every_kind_of_declaration_is_read() {
        let mut header = Header::default();
        header.parse(TEXT).unwrap();
        assert_eq!(header.constants, ["ELSA_BYTES"]);
        assert_eq!(header.numbers, [("elsa_status".to_owned(), "int32_t".to_owned())]);
        assert_eq!(header.callbacks, ["void (*elsa_call)(void *, const char *)"]);
        assert!(header.structs[0].grows() && header.structs[0].name == "elsa_info");
        let fields: Vec<&str> = header.structs[0].fields.iter().map(|field| field.name.as_str()).collect();
        assert_eq!(fields, ["size", "name", "kernel"]);
        let functions: Vec<&str> = header.functions.iter().map(|(_, function)| function.as_str()).collect();
        assert_eq!(
            functions,
            ["const char *elsa_version(void)", "elsa_status elsa_ask(uint32_t, elsa_info *)"]
        );
        assert_eq!(header.functions[0].0, "elsa_version");
    }

    #[test]
    fn what_is_no_declaration_is_refused() {
        assert!(Header::default().parse(&TEXT.replace("typedef int32_t elsa_status;", "union")).is_err());
    }
}
