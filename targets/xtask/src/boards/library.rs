//! The C library as it is shipped, made of the archive that cargo makes.
//!
//! Cargo's archive holds this project, its dependencies and Rust's standard library as members whose symbols are
//! global: a plugin that links it would export them all, and a second Rust library in the same program would define
//! some of them twice. So:
//!
//! 1. The members that the functions of `elsa.h` need become one relocatable object. Its sections stay apart, so that a
//!    program that is linked with `--gc-sections` still drops what it does not call.
//! 2. Every symbol becomes local but those functions. Groups of sections are dissolved before: their signatures would
//!    be merged with those of other libraries by name.
//! 3. Bitcode for optimisation between crates is left out.
//! 4. `libelsa.so` is linked from that archive, with its name and the versions of its symbols. (Rust's compiler passes
//!    a version script of its own to the linker, which cannot be combined with one that names versions.)
//!
//! The functions, their versions and the number in the name come from `runtime/capi/elsa.map`.

use super::target::Target;
use crate::setup;
use crate::shell::{Run, Tree};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The version script of the library.
const MAP: &str = "runtime/capi/elsa.map";
/// Sections with bitcode and the options that it was made with.
const BITCODE: [&str; 2] = [".llvmbc", ".llvmcmd"];
/// Libraries of the system that the standard library of Rust names.
const SYSTEM: &str = "-lutil -lrt -lpthread -lm -ldl";

/// The binary interface: its number, and each function with the version in which it appeared.
#[derive(Debug, PartialEq, Eq)]
pub struct Abi {
    /// Grows when a program must be built again.
    pub major: u32,
    /// Grows when functions are added.
    pub minor: u32,
    /// Functions with the names of their nodes, such as `ELSA_1.0`.
    pub functions: BTreeMap<String, String>,
}

impl Abi {
    /// Reads the version script.
    pub fn read(tree: &Tree) -> Result<Abi, String> {
        let path = tree.root.join(MAP);
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Abi::parse(&text).map_err(|fault| format!("{MAP}: {fault}"))
    }

    /// Reads the text of a version script: nodes `ELSA_MAJOR.MINOR { global: NAME; ... };` in the order of their
    /// versions, each but the first behind the name of the node before it, the first with `local: *;`.
    fn parse(text: &str) -> Result<Abi, String> {
        let lines = text.lines().map(|line| line.split_once('#').map_or(line, |(line, _)| line));
        let text = lines.collect::<Vec<_>>().join(" ");
        let mut abi = Abi { major: 0, minor: 0, functions: BTreeMap::new() };
        let mut before: Option<(String, (u32, u32))> = None;
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (node, after) = rest.split_once('{').ok_or_else(|| format!("{rest}; allowed: NODE {{"))?;
            let (body, after) = after.split_once('}').ok_or_else(|| format!("{node}: no closing brace"))?;
            let (inherits, after) =
                after.split_once(';').ok_or_else(|| format!("{node}: no semicolon behind it"))?;
            let (node, inherits) = (node.trim(), inherits.trim());
            let number = node.strip_prefix("ELSA_").and_then(|number| {
                let (major, minor) = number.split_once('.')?;
                Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
            });
            let number = number.ok_or_else(|| format!("{node}; allowed: ELSA_MAJOR.MINOR"))?;
            let fits = match &before {
                None => inherits.is_empty(),
                Some((name, last)) => inherits == name && number.0 == last.0 && number.1 > last.1,
            };
            if !fits {
                return Err(format!(
                    "{node}: inherits '{inherits}'; allowed: the node of the version before it"
                ));
            }
            let (global, local) = body.split_once("local:").unwrap_or((body, ""));
            let local: String = local.split_whitespace().collect();
            let wanted = if before.is_none() { "*;" } else { "" };
            if local != wanted {
                return Err(format!("{node}: local '{local}'; allowed: '{wanted}'"));
            }
            let global =
                global.trim().strip_prefix("global:").ok_or_else(|| format!("{node}: no global:"))?;
            for name in global.split(';').map(str::trim).filter(|name| !name.is_empty()) {
                if !name.starts_with("elsa_")
                    || name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                {
                    return Err(format!("{node}: {name}; allowed: names of functions, elsa_..."));
                }
                if abi.functions.insert(name.to_owned(), node.to_owned()).is_some() {
                    return Err(format!("{node}: {name} again; allowed: once"));
                }
            }
            (abi.major, abi.minor) = number;
            before = Some((node.to_owned(), number));
            rest = after.trim();
        }
        if abi.functions.is_empty() { Err("names no function".to_owned()) } else { Ok(abi) }
    }

    /// The name that a program asks the loader for.
    pub fn soname(&self) -> String {
        format!("libelsa.so.{}", self.major)
    }

    /// The name of the file.
    pub fn file(&self) -> String {
        format!("libelsa.so.{}.{}", self.major, self.minor)
    }

    /// The links beside the file, each with the name that it points to: for the loader and for the linker.
    pub fn links(&self) -> [(String, String); 2] {
        [(self.soname(), self.file()), ("libelsa.so".to_owned(), self.soname())]
    }
}

/// The two libraries, with symbols.
pub struct Library {
    /// The archive.
    pub archive: PathBuf,
    /// The shared library.
    pub shared: PathBuf,
}

/// Makes both libraries for `target` in the folder `dir` from the archive `cargos`.
pub fn make(tree: &Tree, target: &Target, abi: &Abi, cargos: &Path, dir: &Path) -> Result<Library, String> {
    let fault = |error: std::io::Error| format!("{}: {error}", dir.display());
    if dir.exists() {
        fs::remove_dir_all(dir).map_err(fault)?;
    }
    fs::create_dir_all(dir).map_err(fault)?;
    let archive = enclosed(tree, abi, cargos, dir)?;
    let shared = dir.join(abi.file());
    link(tree, target, abi, &archive, &shared)?;
    Ok(Library { archive, shared })
}

fn done(run: Run, what: &str) -> Result<(), String> {
    run.quiet().run().text(what).map(|_| ())
}

/// Makes an archive in `dir` whose only global symbols are the functions of the interface; returns its path.
pub fn enclosed(tree: &Tree, abi: &Abi, cargos: &Path, dir: &Path) -> Result<PathBuf, String> {
    let llvm = setup::llvm(tree)?;
    let (whole, enclosed, names) = (dir.join("whole.o"), dir.join("elsa.o"), dir.join("functions.txt"));
    let list: String = abi.functions.keys().map(|name| format!("{name}\n")).collect();
    fs::write(&names, list).map_err(|error| format!("{}: {error}", names.display()))?;

    let mut run = Run::new(tree, "").arg(llvm.join("rust-lld"));
    run = run.args("-flavor gnu --relocatable --force-group-allocation");
    for name in abi.functions.keys() {
        run = run.arg("--undefined").arg(name);
    }
    done(run.arg("-o").arg(&whole).arg(cargos), "linking libelsa.a into one object")?;

    let mut run = Run::new(tree, "").arg(llvm.join("llvm-objcopy"));
    for section in BITCODE {
        run = run.arg("--remove-section").arg(section);
    }
    let run = run.arg(format!("--keep-global-symbols={}", names.display()));
    done(run.arg(&whole).arg(&enclosed), "making the symbols of libelsa.a local")?;

    let archive = dir.join("libelsa.a");
    let fault = |error: std::io::Error| format!("{}: {error}", dir.display());
    if archive.exists() {
        fs::remove_file(&archive).map_err(fault)?;
    }
    let run = Run::new(tree, "").arg(llvm.join("llvm-ar")).args("rcsD");
    done(run.arg(&archive).arg(&enclosed), "making libelsa.a")?;
    for path in [whole, enclosed, names] {
        fs::remove_file(&path).map_err(fault)?;
    }
    Ok(archive)
}

/// Links the shared library of the whole archive.
fn link(tree: &Tree, target: &Target, abi: &Abi, archive: &Path, shared: &Path) -> Result<(), String> {
    let run = match target {
        Target::Host(_) => Run::new(tree, "cc"),
        Target::Board(board) => {
            let zig = setup::zig(tree)?.join("python");
            Run::new(tree, "").arg(zig).args("-m ziglang cc -target").arg(board.build.zig_platform())
        }
    };
    let run = run
        .arg("-shared")
        .arg(format!("-Wl,-soname,{}", abi.soname()))
        .arg(format!("-Wl,--version-script={}", tree.root.join(MAP).display()))
        .args("-Wl,--gc-sections -Wl,-z,defs -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack -Wl,--as-needed -o")
        .arg(shared)
        .arg("-Wl,--whole-archive")
        .arg(archive)
        .arg("-Wl,--no-whole-archive")
        .args(SYSTEM);
    // Of zig's driver for C the unwinder is asked for; others link it by themselves.
    let run = if matches!(target, Target::Board(_)) { run.arg("-lunwind") } else { run };
    done(run, "linking libelsa.so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_name_functions_and_versions() {
        let abi = Abi::parse(
            "# why\nELSA_2.0 { global: elsa_a; elsa_b; local: *; };\nELSA_2.3 {\n  global: elsa_c;\n} ELSA_2.0;\n",
        )
        .unwrap();
        assert_eq!((abi.major, abi.minor), (2, 3));
        let functions: Vec<_> = abi.functions.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(functions, [("elsa_a", "ELSA_2.0"), ("elsa_b", "ELSA_2.0"), ("elsa_c", "ELSA_2.3")]);
        assert_eq!((abi.soname(), abi.file()), ("libelsa.so.2".to_owned(), "libelsa.so.2.3".to_owned()));
    }

    #[test]
    fn scripts_that_would_export_more_or_less_are_refused() {
        for (text, word) in [
            ("", "names no function"),
            ("ELSA_1.0 { global: elsa_*; local: *; };", "elsa_*"),
            ("ELSA_1.0 { global: start; local: *; };", "start"),
            ("ELSA_1.0 { global: elsa_a; };", "local"),
            ("ELSA_1.0 { global: elsa_a; elsa_a; local: *; };", "again"),
            ("ELSA_1 { global: elsa_a; local: *; };", "ELSA_1;"),
            ("{ global: elsa_a; local: *; };", "ELSA_MAJOR.MINOR"),
            ("ELSA_1.0 { global: elsa_a; local: *; } ELSA_0.9;", "inherits"),
            ("ELSA_1.0 { global: elsa_a; local: *; }; ELSA_1.1 { global: elsa_b; };", "inherits"),
            ("ELSA_1.0 { global: elsa_a; local: *; }; ELSA_1.0 { global: elsa_b; } ELSA_1.0;", "inherits"),
            (
                "ELSA_1.0 { global: elsa_a; local: *; }; ELSA_1.1 { global: elsa_b; local: *; } ELSA_1.0;",
                "local",
            ),
            ("ELSA_1.0 { global: elsa_a; local: *; }", "semicolon"),
            ("ELSA_1.0 { global: elsa_a; local: *;", "closing"),
        ] {
            let fault = Abi::parse(text).unwrap_err();
            assert!(fault.contains(word), "{text}: {fault}");
        }
    }
}
