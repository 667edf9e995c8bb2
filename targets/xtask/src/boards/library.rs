//! Builds the shipped C libraries from the archive that cargo produces.
//!
//! Cargo's archive contains this project, its dependencies and Rust's standard library as members whose symbols are
//! global. A plugin that links the archive would export all these symbols, and a second Rust library in the same
//! program would define some of them again. So:
//!
//! 1. The members that the functions of `elsa.h` need are merged into one relocatable object. Its sections stay
//!    separate, so that a program linked with `--gc-sections` still drops the functions that it does not call.
//! 2. All other symbols become local. Before that, groups of sections are dissolved, because the linker would otherwise
//!    merge them with groups of the same name in other libraries.
//! 3. Bitcode for optimisation across crates is removed.
//! 4. `libelsa.so` is linked from that archive, with its name and the versions of its symbols. (Rust's compiler cannot
//!    do this: it passes its own version script to the linker, and that script cannot be combined with one that names
//!    versions.)
//!
//! `runtime/capi/elsa.map` determines the functions, their versions and the number in the library's name. A slice
//! (`super::slice`) has some of these functions.

use super::target::Target;
use crate::files::{self, at};
use crate::setup;
use crate::shell::{Run, Tree};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Path of the library's version script.
const MAP: &str = "runtime/capi/elsa.map";
/// Names of two sections: the first contains bitcode, the second the options with which the bitcode was compiled.
const BITCODE: [&str; 2] = [".llvmbc", ".llvmcmd"];
/// Linker flags for the system libraries that Rust's standard library needs.
const SYSTEM: &str = "-lutil -lrt -lpthread -lm -ldl";

/// The binary interface of the library: its version and its functions.
#[derive(Debug, PartialEq, Eq)]
pub struct Abi {
    /// Major version, which increases when programs must be rebuilt.
    pub major: u32,
    /// Minor version, which increases when functions are added.
    pub minor: u32,
    /// Names of the exported functions.
    pub functions: BTreeSet<String>,
}

impl Abi {
    /// Reads the version script.
    pub fn read(tree: &Tree) -> Result<Abi, String> {
        Abi::parse(&files::text(&tree.root.join(MAP))?).map_err(|fault| format!("{MAP}: {fault}"))
    }

    /// Parses a version script with one node: `ELSA_MAJOR.MINOR { global: NAME; ... local: *; };`.
    fn parse(text: &str) -> Result<Abi, String> {
        let lines = text.lines().map(|line| line.split_once('#').map_or(line, |(line, _)| line));
        let text = lines.collect::<Vec<_>>().join(" ");
        let form = "allowed: ELSA_MAJOR.MINOR { global: NAME; ... local: *; };";
        let parts = || {
            let (node, rest) = text.trim().strip_prefix("ELSA_")?.split_once('{')?;
            let (major, minor) = node.trim().split_once('.')?;
            let (global, local) = rest.trim().strip_prefix("global:")?.split_once("local:")?;
            (local.split_whitespace().collect::<String>() == "*;};").then_some(())?;
            Some((major.parse().ok()?, minor.parse().ok()?, global))
        };
        let (major, minor, global) = parts().ok_or_else(|| format!("{}; {form}", text.trim()))?;
        let mut functions = BTreeSet::new();
        for name in global.split(';').map(str::trim).filter(|name| !name.is_empty()) {
            if !name.starts_with("elsa_") || name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                return Err(format!("{name}; allowed: names of functions, elsa_..."));
            }
            if !functions.insert(name.to_owned()) {
                return Err(format!("{name} again; allowed: once"));
            }
        }
        if functions.is_empty() {
            Err("names no function".to_owned())
        } else {
            Ok(Abi { major, minor, functions })
        }
    }

    /// Returns a version script with this node and these functions.
    fn script(&self) -> String {
        let functions: String = self.functions.iter().map(|name| format!(" {name};")).collect();
        format!("{} {{ global:{functions} local: *; }};\n", self.node())
    }

    /// Returns the symbol version of all functions, such as `ELSA_1.0`.
    pub fn node(&self) -> String {
        format!("ELSA_{}.{}", self.major, self.minor)
    }

    /// Returns the name under which programs load the library, such as `libelsa.so.1`.
    pub fn soname(&self) -> String {
        format!("libelsa.so.{}", self.major)
    }

    /// Returns the file name of the library, such as `libelsa.so.1.0`.
    pub fn file(&self) -> String {
        format!("libelsa.so.{}.{}", self.major, self.minor)
    }

    /// Returns two symbolic links to the library: one for the loader and one for the linker. Each link is a name and a
    /// target.
    pub fn links(&self) -> [(String, String); 2] {
        [(self.soname(), self.file()), ("libelsa.so".to_owned(), self.soname())]
    }
}

/// Paths of the static and the shared library, both with symbols.
pub struct Library {
    /// The static library.
    pub archive: PathBuf,
    /// The shared library.
    pub shared: PathBuf,
}

/// Makes both libraries for `target` in the folder `dir`, from the archive `cargos` that cargo has built.
pub fn make(tree: &Tree, target: &Target, abi: &Abi, cargos: &Path, dir: &Path) -> Result<Library, String> {
    files::empty(dir)?;
    let archive = enclosed(tree, abi, cargos, dir)?;
    let (shared, script) = (dir.join(abi.file()), dir.join("elsa.map"));
    files::write(&script, abi.script())?;
    link(tree, target, abi, &archive, &script, &shared)?;
    Ok(Library { archive, shared })
}

fn done(run: Run, what: &str) -> Result<(), String> {
    run.quiet().run().text(what).map(|_| ())
}

/// Makes an archive in `dir` whose only global symbols are the functions of the interface; returns its path.
pub fn enclosed(tree: &Tree, abi: &Abi, cargos: &Path, dir: &Path) -> Result<PathBuf, String> {
    let llvm = setup::llvm(tree)?;
    let (whole, enclosed, names) = (dir.join("whole.o"), dir.join("elsa.o"), dir.join("functions.txt"));
    let list: String = abi.functions.iter().map(|name| format!("{name}\n")).collect();
    files::write(&names, list)?;

    let mut run = Run::new(tree, "").arg(llvm.join("rust-lld"));
    run = run.args("-flavor gnu --relocatable --force-group-allocation");
    for name in &abi.functions {
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
    if archive.exists() {
        fs::remove_file(&archive).map_err(at(&archive))?;
    }
    let run = Run::new(tree, "").arg(llvm.join("llvm-ar")).args("rcsD");
    done(run.arg(&archive).arg(&enclosed), "making libelsa.a")?;
    for path in [whole, enclosed, names] {
        fs::remove_file(&path).map_err(at(&path))?;
    }
    Ok(archive)
}

/// Links the shared library `shared` from the complete contents of `archive`, with the version script `script`.
fn link(
    tree: &Tree,
    target: &Target,
    abi: &Abi,
    archive: &Path,
    script: &Path,
    shared: &Path,
) -> Result<(), String> {
    let run = setup::compiler(tree, target.build())?;
    let run = run
        .arg("-shared")
        .arg(format!("-Wl,-soname,{}", abi.soname()))
        .arg(format!("-Wl,--version-script={}", script.display()))
        .args("-Wl,--gc-sections -Wl,-z,defs -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack -Wl,--as-needed -o")
        .arg(shared)
        .arg("-Wl,--whole-archive")
        .arg(archive)
        .arg("-Wl,--no-whole-archive")
        .args(SYSTEM);
    // Zig's C driver must be told to link the unwinder; others link it automatically.
    let run = if target.build().is_some() { run.arg("-lunwind") } else { run };
    done(run, "linking libelsa.so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_names_functions_and_version() {
        let abi = Abi::parse("# why\nELSA_2.3 {\n  global: elsa_a;\n elsa_b; local: *; };\n").unwrap();
        assert_eq!((abi.major, abi.minor, abi.node()), (2, 3, "ELSA_2.3".to_owned()));
        assert_eq!(abi.functions.iter().collect::<Vec<_>>(), ["elsa_a", "elsa_b"]);
        assert_eq!((abi.soname(), abi.file()), ("libelsa.so.2".to_owned(), "libelsa.so.2.3".to_owned()));
        assert_eq!(Abi::parse(&abi.script()), Ok(abi));
    }

    #[test]
    fn scripts_that_would_export_more_or_less_are_refused() {
        for (text, word) in [
            ("ELSA_1.0 { global: local: *; };", "names no function"),
            ("ELSA_1.0 { global: elsa_*; local: *; };", "elsa_*"),
            ("ELSA_1.0 { global: start; local: *; };", "start"),
            ("ELSA_1.0 { global: elsa_a; elsa_a; local: *; };", "again"),
            ("", "ELSA_MAJOR.MINOR"),
            ("ELSA_1.0 { global: elsa_a; };", "ELSA_MAJOR.MINOR"),
            ("ELSA_1 { global: elsa_a; local: *; };", "ELSA_MAJOR.MINOR"),
            ("{ global: elsa_a; local: *; };", "ELSA_MAJOR.MINOR"),
            ("ELSA_1.0 { global: elsa_a; local: *; } ELSA_0.9;", "ELSA_MAJOR.MINOR"),
            ("ELSA_1.0 { global: elsa_a; local: *; }; ELSA_1.1 { global: elsa_b; };", "ELSA_MAJOR.MINOR"),
            ("ELSA_1.0 { global: elsa_a; local: *; }", "ELSA_MAJOR.MINOR"),
            ("ELSA_1.0 { global: elsa_a; local: *;", "ELSA_MAJOR.MINOR"),
        ] {
            let fault = Abi::parse(text).unwrap_err();
            assert!(fault.contains(word), "{text}: {fault}");
        }
    }
}
