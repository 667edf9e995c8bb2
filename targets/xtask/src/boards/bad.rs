//! Artefacts that `super::check` must refuse: one for every check, compiled for the board, each with a good one that
//! differs in nothing else and must pass.

use super::build;
use super::check::{self, Exceptions, Found};
use super::target::Target;
use crate::setup;
use crate::shell::{Run, Tree};
use elsa_targets::{Required, Version};
use std::fs;
use std::path::{Path, PathBuf};

/// A compiler for boards, and a folder for what it makes.
pub struct Compiler<'a> {
    tree: &'a Tree,
    zig: PathBuf,
    dir: PathBuf,
}

impl<'a> Compiler<'a> {
    /// Installs the compiler and empties the folder.
    pub fn new(tree: &'a Tree) -> Result<Compiler<'a>, String> {
        let (zig, dir) = (setup::zig(tree)?.join("python"), tree.target.join("bad"));
        let fault = |error| format!("{}: {error}", dir.display());
        if dir.exists() {
            fs::remove_dir_all(&dir).map_err(fault)?;
        }
        fs::create_dir_all(&dir).map_err(fault)?;
        Ok(Compiler { tree, zig, dir })
    }

    /// Compiles `source` for `target` into `name`.
    fn make(&self, name: &str, target: &str, source: &str, flags: &str) -> Result<PathBuf, String> {
        let (from, to) = (self.dir.join(format!("{name}.c")), self.dir.join(name));
        fs::write(&from, source).map_err(|error| format!("{}: {error}", from.display()))?;
        let run = Run::new(self.tree, "").arg(&self.zig).args("-m ziglang cc -O1 -target").arg(target);
        let out = run.args(flags).arg("-o").arg(&to).arg(&from).dir(&self.dir).quiet().run();
        if out.ok {
            Ok(to)
        } else {
            Err(format!("{}: does not compile: {}", from.display(), out.stderr.trim()))
        }
    }
}

fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// One trial of a check.
pub struct Trial {
    /// The artefact.
    pub what: &'static str,
    /// How the check failed to refuse or to pass it.
    pub fault: Option<String>,
}

/// A check passes what is good.
fn good(what: &'static str, found: Found) -> Trial {
    Trial { what, fault: found.err().map(|fault| format!("{what}: refused: {fault}")) }
}

/// A check refuses what is bad, with this word in its message.
fn bad(what: &'static str, word: &str, found: Found) -> Trial {
    let fault = match found {
        Err(fault) if fault.contains(word) => None,
        Err(fault) => Some(format!("{what}: refused without the word {word}: {fault}")),
        Ok(found) => Some(format!("{what}: passed: {found}")),
    };
    Trial { what, fault }
}

/// A function with one instruction beyond ARMv8.0-A: `ldadd x0, x1, [x2]` of ARMv8.1-A.
fn atomic(function: &str) -> String {
    format!(
        "void {function}(void);\n__asm__(\".text\\n.global {function}\\n.type {function}, %function\\n{function}:\\n\
         .inst 0xf8200041\\nret\\n.size {function}, . - {function}\\n\");\nint main(void) {{ {function}(); return 0; }}\n"
    )
}

/// A program with a PTX module inside.
fn module(version: &str, target: &str, entry: &str) -> String {
    format!(
        "const char module[] = \".version {version}\\n.target {target}\\n.address_size 64\\n.visible .entry {entry}()\\n{{\\nret;\\n}}\\n\";\n\
         int main(int n, char **a) {{ (void)a; return module[n]; }}\n"
    )
}

/// Tries every check.
pub fn trials(tree: &Tree) -> Result<Vec<Trial>, String> {
    let cc = Compiler::new(tree)?;
    let board = setup::reference()?;
    // Platforms as zig calls them.
    let own = &format!("{}-linux-gnu.{}", board.build.machine, board.build.glibc);
    let (glibc, gpu, newest) = (board.build.glibc, Some(board.gpu.capability), board.build.ptx);
    let target = Target::Board(Box::new(board));
    let exceptions = Exceptions::read(tree)?;
    let program = "#include <stdio.h>\nint main(void) { return puts(\"\") < 0; }\n";
    let mut trials = Vec::new();

    let plain = cc.make("plain", own, program, "")?;
    let plain_bytes = bytes(&plain)?;
    trials.push(good("a plain program, its machine", check::machine(&plain_bytes, &target)));
    let other = bytes(&cc.make("other", "x86_64-linux-gnu.2.27", program, "")?)?;
    trials.push(bad("a program for another processor", "X86_64", check::machine(&other, &target)));

    trials.push(good("a plain program, its symbol versions", check::symbol_versions(&plain_bytes, glibc)));
    let late = bytes(&cc.make("late", "aarch64-linux-gnu.2.34", program, "")?)?;
    trials.push(bad("a program for glibc 2.34", "GLIBC_2.34", check::symbol_versions(&late, glibc)));

    fs::write(cc.dir.join("versions"), "GLIBCXX_3.4 { global: *; };\n")
        .map_err(|error| format!("{}: {error}", cc.dir.display()))?;
    let flags = "-shared -Wl,-soname,libstdc++.so.6 -Wl,--version-script=versions";
    let runtime = cc.make("libstdc++.so.6", own, "int terminate(void) { return 0; }\n", flags)?;
    let source = "int terminate(void);\nint main(void) { return terminate(); }\n";
    let flags = runtime.to_string_lossy().into_owned();
    let uses = bytes(&cc.make("uses", own, source, &flags)?)?;
    trials.push(bad("a version of the C++ runtime", "GLIBCXX_3.4", check::symbol_versions(&uses, glibc)));
    trials.push(good("a plain program, its libraries", check::libraries(&plain_bytes)));
    trials.push(bad("a library that boards need not have", "libstdc++.so.6", check::libraries(&uses)));

    trials.push(good("a plain program, its undefined names", check::driver_symbols(&plain_bytes)));
    let source = "int cuInit(unsigned);\nint elsa_start(void) { return cuInit(0); }\n";
    let driver = bytes(&cc.make("driver.so", own, source, "-shared -fPIC -Wl,--allow-shlib-undefined")?)?;
    trials.push(bad("an undefined name of the driver", "cuInit", check::driver_symbols(&driver)));
    let object = cc.make("driver.o", own, source, "-c")?;
    let archive = cc.dir.join("driver.a");
    let out =
        Run::new(tree, "").arg(&cc.zig).args("-m ziglang ar rc").arg(&archive).arg(&object).quiet().run();
    if !out.ok {
        return Err(format!("{}: {}", archive.display(), out.stderr.trim()));
    }
    trials.push(bad("the same in an archive", "cuInit", check::driver_symbols(&bytes(&archive)?)));

    let source = "int elsa_start(void) { return 0; }\n";
    let library = bytes(&cc.make("good.so", own, source, "-shared -fPIC")?)?;
    trials.push(good("a library of elsa_… alone", check::exports(&library)));
    let source = "int elsa_start(void) { return 0; }\nint start(void) { return 1; }\n";
    let library = bytes(&cc.make("bad.so", own, source, "-shared -fPIC")?)?;
    trials.push(bad("a library that defines another name", "start", check::exports(&library)));

    trials.push(good("a plain program, its instructions", check::instructions(tree, &plain, &exceptions)));
    let newer = cc.make("newer", own, &atomic("add"), "")?;
    trials.push(bad("an instruction of ARMv8.1-A", "in add", check::instructions(tree, &newer, &exceptions)));
    let outlined = cc.make("outlined", own, &atomic("__aarch64_ldadd8_relax"), "")?;
    trials.push(good("the same behind a test", check::instructions(tree, &outlined, &exceptions)));
    let stripped = cc.dir.join("stripped");
    build::strip(tree, &newer, &stripped, "--strip-all")?;
    trials.push(bad(
        "the same without symbols",
        "symbols",
        check::instructions(tree, &stripped, &exceptions),
    ));

    let needs = [Required::Gpu("kernel".to_owned())];
    let ptx = |bytes: &[u8], newest: Option<Version>| check::ptx(bytes, newest, gpu, &needs);
    let module = |name: &str, version: &str, target: &str, entry: &str| {
        bytes(&cc.make(name, own, &module(version, target, entry), "")?)
    };
    trials.push(good("PTX 6.5 for sm_62", ptx(&module("ptx", "6.5", "sm_62", "kernel")?, newest)));
    trials.push(bad("PTX 7.0", "7.0", ptx(&module("ptx70", "7.0", "sm_62", "kernel")?, newest)));
    trials.push(bad(
        "PTX for sm_70",
        "no PTX of kernel",
        ptx(&module("sm70", "6.5", "sm_70", "kernel")?, newest),
    ));
    trials.push(bad(
        "PTX of another kernel",
        "no PTX of kernel",
        ptx(&module("ptx2", "6.5", "sm_62", "other")?, newest),
    ));

    let large =
        "const char table[5000000] = { 1 };\nint main(int n, char **a) { (void)a; return table[n]; }\n";
    let length = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
    trials.push(good("a plain program, its size", check::size(length(&plain), check::BINARY)));
    let large = cc.make("large", own, large, "")?;
    trials.push(bad("five million bytes", "5", check::size(length(&large), check::BINARY)));
    Ok(trials)
}
