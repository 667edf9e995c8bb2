//! Reads the modules of a crate from the tokens of its source: their definitions, imports and mentioned names.
//!
//! Code under `#[cfg(test)]` and modules called `tests` are left out. Every other `cfg` counts as true, so that one
//! machine checks the code of all targets.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A `use` of one name, or of all names of a module.
pub struct Import {
    /// Path, with `crate`, `self` and `super` as written in the source.
    pub path: Vec<String>,
    /// The name that the import brings into scope; `None` for a glob.
    pub name: Option<String>,
    /// `true` if other modules may import the name from here.
    pub reexport: bool,
    /// `true` if the `use` is in the body of a macro.
    pub expanded: bool,
    /// Line number in the source.
    pub line: usize,
}

/// A path in code.
pub struct Mention {
    /// Index of the enclosing scope in the module's scopes.
    pub scope: usize,
    /// The path.
    pub path: Vec<String>,
    /// `true` if the path calls a macro.
    pub call: bool,
    /// `true` if the path may be a variable: a single name that begins with a lowercase letter and is not called.
    pub variable: bool,
    /// Line number in the source.
    pub line: usize,
}

/// Names that are visible in a module or in one of its items.
#[derive(Default)]
pub struct Scope {
    /// Variables and items inside an item.
    pub locals: BTreeSet<String>,
    /// Imports of the scope.
    pub imports: Vec<Import>,
}

/// A module.
#[derive(Default)]
pub struct Module {
    /// Path, such as `crate::plan::choose`.
    pub path: String,
    /// The source file of the module.
    pub file: PathBuf,
    /// Index of the module that declares this module.
    pub parent: Option<usize>,
    /// Names and indices of the modules that this module declares.
    pub children: Vec<(String, usize)>,
    /// Names of the items that the module defines.
    pub items: BTreeSet<String>,
    /// Names of the macros among the items.
    pub macros: BTreeSet<String>,
    /// The scope of the module, followed by the scopes of its items.
    pub scopes: Vec<Scope>,
    /// The paths in the module's code.
    pub mentions: Vec<Mention>,
}

/// Function that returns the text of a source file, or `None` if the file does not exist.
pub type Source<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// Returns the modules of the crate with this root file, the root first.
///
/// # Errors
/// Returns an error for a file that is missing or cannot be split into Rust tokens.
pub fn read(source: Source, root: &Path) -> Result<Vec<Module>, String> {
    let mut modules = Vec::new();
    let dir = root.parent().unwrap_or(Path::new(""));
    Reader { source, modules: &mut modules }.file(root, dir, "crate".to_owned(), None)?;
    Ok(modules)
}

fn tokens(stream: TokenStream) -> Vec<TokenTree> {
    stream.into_iter().collect()
}

fn is(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

fn is_word(token: Option<&TokenTree>, words: &[&str]) -> bool {
    matches!(token, Some(TokenTree::Ident(ident)) if words.iter().any(|word| ident == word))
}

/// Returns whether an attribute limits the next item to tests.
fn is_test(attribute: &Group) -> bool {
    fn implies(condition: &[TokenTree]) -> bool {
        match condition {
            [TokenTree::Ident(word)] => word == "test",
            [TokenTree::Ident(word), TokenTree::Group(all)] if word == "all" => {
                tokens(all.stream()).split(|token| is(Some(token), ',')).any(implies)
            }
            _ => false,
        }
    }
    match &tokens(attribute.stream())[..] {
        [TokenTree::Ident(word), TokenTree::Group(of)] if word == "cfg" => implies(&tokens(of.stream())),
        _ => false,
    }
}

/// The beginning of an item.
#[derive(Default)]
struct Front {
    test: bool,
    /// The file that `#[path = "…"]` names.
    path: Option<String>,
    public: bool,
    /// Keyword, such as `fn`; empty for a block of foreign items.
    kind: String,
    /// Position of the keyword.
    at: usize,
}

impl Front {
    fn of(item: &[TokenTree]) -> Front {
        let mut front = Front::default();
        let mut at = 0;
        while let Some(token) = item.get(at) {
            match token {
                TokenTree::Punct(punct) if ['#', '!'].contains(&punct.as_char()) => {}
                TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                    front.test |= is_test(group);
                    let file = tokens(group.stream());
                    if is_word(file.first(), &["path"]) {
                        front.path = file.get(2).map(|file| file.to_string().trim_matches('"').to_owned());
                    }
                }
                TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis => {}
                TokenTree::Ident(word) if word == "pub" => front.public = true,
                TokenTree::Ident(word) if ["unsafe", "async", "extern"].iter().any(|x| word == x) => {}
                TokenTree::Ident(word)
                    if word == "const" && is_word(item.get(at + 1), &["fn", "unsafe", "extern", "async"]) => {
                }
                TokenTree::Literal(_) => {}
                TokenTree::Ident(word) => {
                    front.kind = word.to_string();
                    break;
                }
                _ => break,
            }
            at += 1;
        }
        Front { at, ..front }
    }
}

/// Returns the tokens of a module, item by item.
fn items(stream: TokenStream) -> Vec<Vec<TokenTree>> {
    let (mut items, mut item) = (Vec::new(), Vec::new());
    for token in stream {
        let ends = match &token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                !["use", "const", "static", "type"].contains(&Front::of(&item).kind.as_str())
            }
            token => is(Some(token), ';'),
        };
        item.push(token);
        if ends {
            items.push(std::mem::take(&mut item));
        }
    }
    items
}

/// Reads one module after the other.
struct Reader<'a> {
    source: Source<'a>,
    modules: &'a mut Vec<Module>,
}

impl Reader<'_> {
    /// Reads the module in `file`, whose child modules have files in `dir`.
    fn file(&mut self, file: &Path, dir: &Path, path: String, parent: Option<usize>) -> Result<(), String> {
        let text = (self.source)(file).ok_or_else(|| format!("{}: no such file", file.display()))?;
        let stream: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| {
            format!("{}:{}: {error}", file.display(), error.span().start().line)
        })?;
        let first = tokens(stream.clone());
        let whole = match &first[..] {
            [_, _, TokenTree::Group(attribute), ..] => is(first.get(1), '!') && is_test(attribute),
            _ => false,
        };
        if whole { Ok(()) } else { self.module(stream, file, dir, path, parent) }
    }

    fn module(
        &mut self,
        stream: TokenStream,
        file: &Path,
        dir: &Path,
        path: String,
        parent: Option<usize>,
    ) -> Result<(), String> {
        let m = self.modules.len();
        let (file, scopes) = (file.to_owned(), vec![Scope::default()]);
        self.modules.push(Module { path, file, parent, scopes, ..Module::default() });
        for item in items(stream) {
            let front = Front::of(&item);
            let (keyword, rest) = item.split_at(item.len().min(front.at + 1));
            let name = rest.iter().find_map(|token| match token {
                TokenTree::Ident(name) => Some(name.to_string()),
                _ => None,
            });
            let name = name.unwrap_or_default();
            match front.kind.as_str() {
                _ if front.test => {}
                "mod" if name == "tests" => {}
                "mod" => self.child(m, &item, &front, dir, name)?,
                "use" => {
                    let line = keyword.last().map_or(0, |token| token.span().start().line);
                    let mut found = Found::default();
                    let end = rest.len().saturating_sub(1);
                    import(&rest[..end], &[], (line, front.public, false), &mut found);
                    self.modules[m].scopes[0].imports.extend(found.imports);
                }
                kind => {
                    let module = &mut self.modules[m];
                    let found = scan(&item[front.at..], kind == "macro_rules");
                    match kind {
                        "" => module.items.extend(found.locals.iter().cloned()),
                        "macro_rules" => {
                            module.macros.insert(name.clone());
                            module.items.insert(name);
                        }
                        kind if DECLARING.contains(&kind) => drop(module.items.insert(name)),
                        _ => {}
                    }
                    let scope = module.scopes.len();
                    module
                        .mentions
                        .extend(found.mentions.into_iter().map(|found| Mention { scope, ..found }));
                    module.scopes.push(Scope { locals: found.locals, imports: found.imports });
                }
            }
        }
        Ok(())
    }

    /// Reads a module that another declares.
    fn child(
        &mut self,
        parent: usize,
        item: &[TokenTree],
        front: &Front,
        dir: &Path,
        name: String,
    ) -> Result<(), String> {
        let path = format!("{}::{name}", self.modules[parent].path);
        let declarer = self.modules[parent].file.clone();
        let (next, folder) = (self.modules.len(), dir.join(&name));
        match (item.last(), &front.path) {
            (Some(TokenTree::Group(inline)), _) => {
                self.module(inline.stream(), &declarer, &folder, path, Some(parent))?;
            }
            (_, Some(named)) => {
                let file = declarer.with_file_name(named);
                let dir = file.parent().unwrap_or(Path::new("")).to_owned();
                self.file(&file, &dir, path, Some(parent))?;
            }
            _ => {
                let flat = dir.join(format!("{name}.rs"));
                let file = if (self.source)(&flat).is_some() { flat } else { folder.join("mod.rs") };
                self.file(&file, &folder, path, Some(parent))?;
            }
        }
        // A file that contains only tests adds no module.
        if self.modules.len() > next {
            self.modules[parent].children.push((name, next));
        }
        Ok(())
    }
}

/// Names in the tokens of an item.
#[derive(Default)]
struct Found {
    /// Paths. If a path begins with `$crate`, it is stored with `crate` as its first name.
    mentions: Vec<Mention>,
    imports: Vec<Import>,
    /// Names that the tokens declare.
    locals: BTreeSet<String>,
}

/// Scans an item, or the body of a macro if `body` is `true`. In a macro's body, paths that begin with `self` or `super` refer
/// to the caller's module and are left out.
fn scan(item: &[TokenTree], body: bool) -> Found {
    let mut found = Found::default();
    walk(item, body, &mut found);
    let of_caller = |path: &[String]| body && path.first().is_some_and(|x| x == "self" || x == "super");
    found.mentions.retain(|mention| !of_caller(&mention.path));
    found.imports.retain(|import| !of_caller(&import.path));
    found
}

/// Keywords that declare the name after them.
const DECLARING: [&str; 11] =
    ["let", "mut", "fn", "mod", "struct", "enum", "trait", "type", "const", "static", "union"];

/// Returns the path that starts at `i`, and the position after it. If the path ends with a `::` that no name follows, the
/// position is after the `::`.
fn path(tokens: &[TokenTree], mut i: usize) -> (Vec<String>, usize) {
    let mut path = Vec::new();
    while let Some(TokenTree::Ident(ident)) = tokens.get(i) {
        path.push(ident.to_string());
        i += 1;
        if !(is(tokens.get(i), ':') && is(tokens.get(i + 1), ':')) {
            break;
        }
        i += 2;
    }
    (path, i)
}

fn walk(item: &[TokenTree], body: bool, found: &mut Found) {
    let before = |i: usize, n: usize| i.checked_sub(n).and_then(|i| item.get(i));
    let mut i = 0;
    while let Some(token) = item.get(i) {
        let ident = match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket && is(before(i, 1), '#') => {
                i += 1;
                if is_test(group) {
                    let ends = |token: &TokenTree| match token {
                        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                        token => is(Some(token), ';') || is(Some(token), ','),
                    };
                    i += item[i..].iter().position(ends).map_or(0, |end| end + 1);
                }
                continue;
            }
            TokenTree::Group(group) => {
                walk(&tokens(group.stream()), body, found);
                i += 1;
                continue;
            }
            TokenTree::Ident(ident) => ident,
            _ => {
                i += 1;
                continue;
            }
        };
        let line = ident.span().start().line;
        if ident == "use" {
            let end = (i..item.len()).find(|&i| is(item.get(i), ';')).unwrap_or(item.len());
            import(&item[i + 1..end], &[], (line, false, body), found);
            i = end;
            continue;
        }
        let (names, next) = path(item, i);
        // These names are not counted: a field or method, a lifetime, a macro parameter, and a path that starts with `::` or
        // follows generics.
        let member = is(before(i, 1), '.') && !is(before(i, 2), '.');
        let other = ident == "_" || is(before(i, 1), '\'') || (is(before(i, 1), '$') && ident != "crate");
        let outside = is(before(i, 1), ':') && is(before(i, 2), ':');
        // A name before a colon is a field with its value, or a variable with its type.
        let label = names.len() == 1 && is(item.get(next), ':');
        let of_call = |token: &TokenTree| matches!(token, TokenTree::Group(x) if x.delimiter() == Delimiter::Parenthesis);
        let call = is(item.get(next), '!');
        let variable = names.len() == 1
            && ident.to_string().starts_with(char::is_lowercase)
            && !(call || item.get(next).is_some_and(of_call));
        // `const` and `mut` after a pointer, a reference or a lifetime belong to a type.
        let of_type = is_word(before(i, 1), &["const", "mut"])
            && match before(i, 2) {
                Some(TokenTree::Ident(_)) => !is_word(before(i, 2), &["let", "ref", "pub"]),
                token => is(token, '*') || is(token, '&'),
            };
        if is_word(before(i, 1), &DECLARING) && !of_type {
            found.locals.insert(ident.to_string());
        } else if !(member || other || outside || label) {
            found.mentions.push(Mention { scope: 0, path: names, call, variable, line });
        }
        i = next;
    }
}

/// Reads the tokens between `use` and `;`, or an entry of a group. `of` contains the line number, whether the import is a
/// re-export, and whether it comes from a macro.
fn import(tokens: &[TokenTree], prefix: &[String], of: (usize, bool, bool), found: &mut Found) {
    let start = usize::from(is(tokens.first(), '$'));
    let (names, next) = path(tokens, start);
    let full = [prefix, &names].concat();
    let (line, reexport, expanded) = of;
    let mut add = |path: Vec<String>, name: Option<String>| {
        found.imports.push(Import { path, name, reexport, expanded, line });
    };
    match tokens.get(next) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            let inner = self::tokens(group.stream());
            inner.split(|token| is(Some(token), ',')).for_each(|part| import(part, &full, of, found));
        }
        Some(TokenTree::Punct(punct)) if punct.as_char() == '*' => add(full, None),
        // In `name as other`, the path ends before `as`.
        Some(TokenTree::Ident(word)) if word == "as" => {
            add(full, tokens.get(next + 1).map(ToString::to_string));
        }
        _ if names.is_empty() => {}
        _ if names.last().is_some_and(|last| last == "self") => {
            let module = &full[..full.len() - 1];
            add(module.to_vec(), module.last().cloned());
        }
        _ => add(full, names.last().cloned()),
    }
}
