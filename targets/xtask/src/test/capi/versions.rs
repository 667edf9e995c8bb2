//! Programs of other versions of the ABI: `versions.c` against headers that are made older and newer.

use super::abi;
use super::header::Header;
use super::programs::{BESIDE, Compilers, checks};
use crate::ran::Ran;
use crate::shell::{Run, Tree};
use std::fs;
use std::path::{Path, PathBuf};

/// A field that no version has.
const ADDED: &str = "uint64_t added_to_every_struct";

/// `versions.c` against other headers.
pub fn check(tree: &Tree, ran: &mut Ran, dist: &Path, home: &Path) -> Result<(), String> {
    let lib = dist.join("lib");
    let archive = format!("{} {BESIDE}", lib.join("libelsa.a").display());
    for (name, include) in headers(tree, home)? {
        let program = home.join(format!("versions-{name}"));
        let flags = format!("-O1 -D{} {archive}", name.to_uppercase());
        let compiled = Compilers::gcc().compile(tree, Path::new("versions.c"), &include, &flags, &program);
        if compiled.count(ran) {
            checks(ran, &format!("a program with structs that are {name}"), Run::new(tree, "").arg(&program));
        }
    }
    Ok(())
}

/// Folders with headers in which every struct that grows is older, so that it ends where it may end, or newer, so that
/// it has a field more.
fn headers(tree: &Tree, home: &Path) -> Result<[(&'static str, PathBuf); 2], String> {
    let text = abi::read(&tree.root.join(abi::HEADER))?;
    let header = Header::parse(&text)?;
    let least = abi::least(&abi::read(&tree.root.join(abi::LEAST))?)?;
    let (mut older, mut newer) = (text.clone(), text);
    for of in header.structs.iter().filter(|of| of.grows()) {
        let name = &of.name;
        newer = newer.replace(&format!("\n}} {name};"), &format!("\n  {ADDED};\n}} {name};"));
        let from = least.iter().find(|(known, _)| known == name).map(|(_, bytes)| bytes.as_str());
        // The field from which on an older struct ends; none where it has always been as it is.
        let field = from.and_then(|from| from.strip_prefix(&format!("offsetof({name}, "))?.strip_suffix(')'));
        let Some(field) = of.fields.iter().find(|of| Some(of.name.as_str()) == field) else { continue };
        older = cut(&older, name, &field.declaration)
            .ok_or_else(|| format!("{name}: {} not found in elsa.h", field.declaration))?;
    }
    let mut made = [("older", home.join("older")), ("newer", home.join("newer"))];
    for ((_, folder), text) in made.iter_mut().zip([older, newer]) {
        let write = || {
            fs::create_dir_all(&*folder)?;
            fs::write(folder.join("elsa.h"), text)
        };
        write().map_err(|error: std::io::Error| format!("{}: {error}", folder.display()))?;
    }
    Ok(made)
}

/// A header without the fields of a struct from `declaration` on.
fn cut(header: &str, name: &str, declaration: &str) -> Option<String> {
    let end = header.find(&format!("\n}} {name};"))?;
    let start = header[..end].rfind("typedef struct")?;
    let field = start + header[start..end].find(&format!("\n  {declaration};"))?;
    Some(format!("{}{}", &header[..field], &header[end..]))
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn a_struct_is_cut_at_a_field() {
        let header = "typedef struct {\n  int a;\n  int b;\n} elsa_a;\ntypedef struct {\n  int b;\n  int c;\n} elsa_b;\n";
        let without = cut(header, "elsa_b", "int c").unwrap();
        assert_eq!(without, header.replace("\n  int c;", ""));
        assert_eq!(cut(header, "elsa_a", "int c"), None);
        assert_eq!(cut(header, "elsa_c", "int b"), None);
    }
}
