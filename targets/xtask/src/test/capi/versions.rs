//! Programs of other versions of the ABI: the clients of the releases, kept as they were, and today's programs against
//! headers that are made older and newer.

use super::abi::{self, Release};
use super::header::Header;
use super::programs::{BESIDE, Compilers, checks};
use crate::ran::Ran;
use crate::shell::{Run, Tree};
use std::fs;
use std::path::{Path, PathBuf};

/// A field that no version has.
const ADDED: &str = "uint64_t added_to_every_struct";

/// The clients of the releases with the library of today, static and shared; and `versions.c` against other headers.
pub fn check(tree: &Tree, ran: &mut Ran, dist: &Path, home: &Path) -> Result<(), String> {
    let lib = dist.join("lib");
    let archive = format!("{} {BESIDE}", lib.join("libelsa.a").display());
    let shared = format!("-L {} -lelsa -lm", lib.display());
    for release in abi::releases(tree)? {
        for (name, link) in [("static", &archive), ("shared", &shared)] {
            let program = home.join(format!("old-{}.{}-{name}", release.major, release.minor));
            if client(tree, ran, &Compilers::gcc(), &release, link, &program) {
                let run = Run::new(tree, "").arg(&program).env("LD_LIBRARY_PATH", &lib);
                answers(ran, &format!("the client of {release}, {name}"), &release, run);
            }
        }
    }
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

/// Compiles the client of a release against the header of that release; returns whether that succeeded.
pub fn client(
    tree: &Tree,
    ran: &mut Ran,
    compilers: &Compilers,
    release: &Release,
    link: &str,
    program: &Path,
) -> bool {
    let source = release.folder.join("old.c");
    compilers.compile(tree, &source, &release.folder, &format!("-O1 {link}"), program).count(ran)
}

/// Runs the client of a release, which must say what it said then.
pub fn answers(ran: &mut Ran, what: &str, release: &Release, run: Run) {
    let said = run.whole().run().text(what);
    let found = said.and_then(|said| {
        let path = release.folder.join("old.txt");
        let then = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut lines = said.lines().zip(then.lines());
        match lines.find(|(now, then)| now != then) {
            Some((now, then)) => Err(format!("{now}; allowed: {then}, as in {}", path.display())),
            None if said.lines().count() != then.lines().count() => {
                Err(format!("{} lines; allowed: {}", said.lines().count(), then.lines().count()))
            }
            None => Ok(format!("{} lines as then", then.lines().count())),
        }
    });
    ran.note(what, found);
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
