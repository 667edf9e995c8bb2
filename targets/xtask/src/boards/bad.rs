//! Tests `super::check` with artefacts compiled for a board. Every check is tested with one artefact that it must
//! refuse, and with one that it must accept. The two artefacts differ only in the tested property.

use super::build;
use super::check::group::{self, Header};
use super::check::{self, Exceptions, Found};
use super::library::Abi;
use super::target::Target;
use crate::files::{self, bytes};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use elsa_targets::{Required, Version};
use lzma_rust2::{LzmaOptions, LzmaWriter};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The C compiler for boards, with a folder for its output.
struct Compiler<'a> {
    tree: &'a Tree,
    zig: PathBuf,
    dir: PathBuf,
}

impl<'a> Compiler<'a> {
    /// Installs the compiler and empties the output folder.
    fn new(tree: &'a Tree) -> Result<Compiler<'a>, String> {
        let (zig, dir) = (setup::zig(tree)?.join("python"), tree.target.join("bad"));
        files::empty(&dir)?;
        Ok(Compiler { tree, zig, dir })
    }

    /// Compiles the C code `source` for `target` to a file called `name`, and returns its path.
    fn make(&self, name: &str, target: &str, source: &str, flags: &str) -> Result<PathBuf, String> {
        let (from, to) = (self.dir.join(format!("{name}.c")), self.dir.join(name));
        files::write(&from, source)?;
        let run = Run::new(self.tree, "").arg(&self.zig).args("-m ziglang cc -O1 -target").arg(target);
        let run = run.args(flags).arg("-o").arg(&to).arg(&from).dir(&self.dir).quiet();
        run.run().text(&format!("{}: does not compile", from.display())).map(|_| to)
    }

    /// Compiles the C code `source` for `target` into an archive, and returns its path.
    fn archive(&self, name: &str, target: &str, source: &str) -> Result<PathBuf, String> {
        let object = self.make(&format!("{name}.o"), target, source, "-c")?;
        let archive = self.dir.join(format!("{name}.a"));
        let run = Run::new(self.tree, "").arg(&self.zig).args("-m ziglang ar rc").arg(&archive).arg(&object);
        run.quiet().run().text(&archive.display().to_string()).map(|_| archive)
    }
}

/// Collects the results of the tested checks.
struct Trials<'a>(&'a mut Ran);

impl Trials<'_> {
    /// Requires that a check accepts a valid artefact.
    fn good(&mut self, what: &str, found: Found) {
        self.0.note(what, found.map_err(|fault| format!("refused: {fault}")));
    }

    /// Requires that a check rejects an invalid artefact with a message that contains `word`.
    fn bad(&mut self, what: &str, word: &str, found: Found) {
        let refused = match found {
            Err(fault) if fault.contains(word) => Ok("refused".to_owned()),
            Err(fault) => Err(format!("refused without the word {word}: {fault}")),
            Ok(found) => Err(format!("passed: {found}")),
        };
        self.0.note(what, refused);
    }
}

/// Returns a program whose function `function` has one instruction beyond ARMv8.0-A: `ldadd x0, x1, [x2]` of ARMv8.1-A.
fn atomic(function: &str) -> String {
    format!(
        "void {function}(void);\n__asm__(\".text\\n.global {function}\\n.type {function}, %function\\n{function}:\\n\
         .inst 0xf8200041\\nret\\n.size {function}, . - {function}\\n\");\nint main(void) {{ {function}(); return 0; }}\n"
    )
}

/// Returns a program that contains a compressed PTX module with this version, target and entry point.
fn module(version: &str, target: &str, entry: &str) -> Result<String, String> {
    // The body is long enough to be worth compressing.
    let body = "ret;\n".repeat(100);
    let text = format!(
        ".version {version}\n.target {target}\n.address_size 64\n.visible .entry {entry}()\n{{\n{body}}}\n\0"
    );
    let group = compressed(text.as_bytes(), &[]).map_err(|error| format!("a module: {error}"))?;
    let numbers: Vec<String> = group.iter().map(u8::to_string).collect();
    Ok(format!(
        "const unsigned char module[] = {{{}}};\nint main(int n, char **a) {{ (void)a; return module[n]; }}\n",
        numbers.join(",")
    ))
}

/// Returns a group of compressed PTX. `dictionary` is the text of its dictionary.
pub fn compressed(text: &[u8], dictionary: &[u8]) -> io::Result<Vec<u8>> {
    let mut options = LzmaOptions::with_preset(0);
    [options.lc, options.lp, options.pb] = group::PARAMETERS;
    options.dict_size = group::window(dictionary.len(), text.len());
    options.preset_dict = Some(dictionary.to_vec());
    let mut writer = LzmaWriter::new_no_header(Vec::new(), &options, false)?;
    writer.write_all(text)?;
    let stream = writer.finish()?;
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(io::Error::other);
    let header = Header { stream: length(&stream)?, text: length(text)?, checksum: group::checksum(text) };
    Ok([&header.bytes()[..], &stream].concat())
}

/// Tests the checks of the names of libraries and of the functions that libraries export.
fn exported(cc: &Compiler, own: &str, glibc: Version, trials: &mut Trials) -> Result<(), String> {
    let abi = Abi { major: 1, minor: 0, functions: ["elsa_start".to_owned()].into() };
    let script = |name: &str, text: &str| files::write(&cc.dir.join(name), text);
    script("own.map", "ELSA_1.0 { global: elsa_*; start*; local: *; };\n")?;
    script("later.map", "ELSA_1.1 { global: elsa_*; local: *; };\n")?;
    let start = "int elsa_start(void) { return 0; }\n";
    let both = "int elsa_start(void) { return 0; }\nint start(void) { return 1; }\n";
    let other = "int elsa_stop(void) { return 0; }\n";
    let versioned = "-shared -fPIC -Wl,-soname,libelsa.so.1 -Wl,--version-script=own.map";
    let library = |name: &str, source: &str, flags: &str| bytes(&cc.make(name, own, source, flags)?);

    let well = library("good.so", start, versioned)?;
    trials.good("a library of its functions alone", check::exports(&well, &abi));
    trials.good("a library with its name", check::soname(&well, &abi.soname()));
    trials.good("a library of one function", check::entry(&well, "elsa_start"));
    trials.bad("a library without its function", "elsa_start", check::entry(&well, "elsa_stop"));
    let more = library("more.so", both, versioned)?;
    trials.bad("a library of two functions", "start", check::entry(&more, "elsa_start"));
    trials.bad("a library that exports another name", "start@ELSA_1.0", check::exports(&more, &abi));
    let less = library("less.so", other, versioned)?;
    trials.bad("a library without a function", "no elsa_start", check::exports(&less, &abi));
    let plain = library("unversioned.so", start, "-shared -fPIC")?;
    trials.bad("a function without a version", "elsa_start", check::exports(&plain, &abi));
    trials.bad("a library without a name", "none", check::soname(&plain, &abi.soname()));
    let flags = "-shared -fPIC -Wl,-soname,libelsa.so.2 -Wl,--version-script=later.map";
    let later = library("later.so", start, flags)?;
    trials.bad("a function of another version", "elsa_start@ELSA_1.1", check::exports(&later, &abi));
    trials.bad("a library of another name", "libelsa.so.2", check::soname(&later, &abi.soname()));

    let program = "int elsa_start(void);\nint main(void) { return elsa_start(); }\n";
    let linked = |name: &str, library: &str| {
        let flags = format!("{} -Wl,-rpath,$ORIGIN", cc.dir.join(library).display());
        bytes(&cc.make(name, own, program, &flags)?)
    };
    let needs = |bytes: &[u8]| check::needs(bytes, &abi.soname());
    let program_that_needs = linked("by-name", "good.so")?;
    trials.good("a program that needs the library", needs(&program_that_needs));
    let versions = check::symbol_versions(&program_that_needs, glibc);
    trials.good("its symbol versions", versions);
    let by_path = linked("by-path", "unversioned.so")?;
    trials.bad("a program that needs a path", "unversioned.so", needs(&by_path));
    let flags = format!("{} -Wl,-rpath,/elsewhere", cc.dir.join("good.so").display());
    let elsewhere = bytes(&cc.make("elsewhere", own, program, &flags)?)?;
    trials.bad("a program that looks elsewhere", "/elsewhere", needs(&elsewhere));

    let archive = |name: &str, source: &str| bytes(&cc.archive(name, own, source)?);
    trials.good("an archive of its functions alone", check::globals(&archive("well", start)?, &abi));
    let more = check::globals(&archive("more", both)?, &abi);
    trials.bad("an archive that gives another name", "start", more);
    let weak = "int elsa_start(void) { return 0; }\nint start __attribute__((weak)) = 1;\n";
    trials.bad("an archive that gives a weak name", "start", check::globals(&archive("weak", weak)?, &abi));
    let less = check::globals(&archive("less", other)?, &abi);
    trials.bad("an archive without a function", "no elsa_start", less);
    Ok(())
}

/// Tests every check.
pub fn trials(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    let cc = Compiler::new(tree)?;
    let board = setup::reference()?;
    // Platforms in zig's format.
    let own = &board.build.zig_platform();
    let (glibc, gpu, newest) = (board.build.glibc, Some(board.gpu.capability), board.build.ptx);
    let target = Target::Board(Box::new(board));
    let exceptions = Exceptions::read(tree)?;
    let program = "#include <stdio.h>\nint main(void) { return puts(\"\") < 0; }\n";
    let mut trials = Trials(ran);

    let plain = cc.make("plain", own, program, "")?;
    let plain_bytes = bytes(&plain)?;
    trials.good("a plain program, its machine", check::machine(&plain_bytes, &target));
    let other = bytes(&cc.make("other", "x86_64-linux-gnu.2.27", program, "")?)?;
    trials.bad("a program for another processor", "X86_64", check::machine(&other, &target));

    trials.good("a plain program, its symbol versions", check::symbol_versions(&plain_bytes, glibc));
    let late = bytes(&cc.make("late", "aarch64-linux-gnu.2.34", program, "")?)?;
    trials.bad("a program for glibc 2.34", "GLIBC_2.34", check::symbol_versions(&late, glibc));

    files::write(&cc.dir.join("versions"), "GLIBCXX_3.4 { global: *; };\n")?;
    let flags = "-shared -Wl,-soname,libstdc++.so.6 -Wl,--version-script=versions";
    let runtime = cc.make("libstdc++.so.6", own, "int terminate(void) { return 0; }\n", flags)?;
    let source = "int terminate(void);\nint main(void) { return terminate(); }\n";
    let flags = runtime.to_string_lossy().into_owned();
    let uses = bytes(&cc.make("uses", own, source, &flags)?)?;
    trials.bad("a version of the C++ runtime", "GLIBCXX_3.4", check::symbol_versions(&uses, glibc));
    trials.good("a plain program, its libraries", check::libraries(&plain_bytes));
    trials.bad("a library that boards need not have", "libstdc++.so.6", check::libraries(&uses));

    trials.good("a plain program, its undefined names", check::driver_symbols(&plain_bytes));
    let source = "int cuInit(unsigned);\nint elsa_start(void) { return cuInit(0); }\n";
    let driver = bytes(&cc.make("driver.so", own, source, "-shared -fPIC -Wl,--allow-shlib-undefined")?)?;
    trials.bad("an undefined name of the driver", "cuInit", check::driver_symbols(&driver));
    let archive = bytes(&cc.archive("driver", own, source)?)?;
    trials.bad("the same in an archive", "cuInit", check::driver_symbols(&archive));

    exported(&cc, own, glibc, &mut trials)?;

    let source =
        |path: &str| format!("#include <stdio.h>\nint main(void) {{ return puts(\"{path}\") < 0; }}\n");
    let private = ["/home/user".to_owned()];
    let holds = |name: &str, path: &str| bytes(&cc.make(name, own, &source(path), "")?);
    trials.good("a path of another machine", check::paths(&holds("path", "/home/users/a.rs")?, &private));
    let found = check::paths(&holds("path2", "/home/user/a.rs")?, &private);
    trials.bad("a path of this machine", "/home/user/a.rs", found);

    trials.good("a plain program, its instructions", check::instructions(tree, &plain, &exceptions));
    let newer = cc.make("newer", own, &atomic("add"), "")?;
    trials.bad("an instruction of ARMv8.1-A", "in add", check::instructions(tree, &newer, &exceptions));
    let outlined = cc.make("outlined", own, &atomic("__aarch64_ldadd8_relax"), "")?;
    trials.good("the same behind a test", check::instructions(tree, &outlined, &exceptions));
    let stripped = cc.dir.join("stripped");
    build::strip(tree, &newer, &stripped, "--strip-all")?;
    trials.bad("the same without symbols", "symbols", check::instructions(tree, &stripped, &exceptions));

    let needs = [Required::Gpu("kernel".to_owned())];
    let ptx = |bytes: &[u8], newest: Option<Version>| check::ptx(bytes, newest, gpu, &needs);
    let module = |name: &str, version: &str, target: &str, entry: &str| {
        bytes(&cc.make(name, own, &module(version, target, entry)?, "")?)
    };
    trials.good("PTX 6.5 for sm_62", ptx(&module("ptx", "6.5", "sm_62", "kernel")?, newest));
    trials.bad("PTX 7.0", "7.0", ptx(&module("ptx70", "7.0", "sm_62", "kernel")?, newest));
    trials.bad("PTX for sm_70", "no PTX of kernel", ptx(&module("sm70", "6.5", "sm_70", "kernel")?, newest));
    trials.bad(
        "PTX of another kernel",
        "no PTX of kernel",
        ptx(&module("ptx2", "6.5", "sm_62", "other")?, newest),
    );

    let large = format!(
        "const char table[{}] = {{ 1 }};\nint main(int n, char **a) {{ (void)a; return table[n]; }}\n",
        check::BINARY
    );
    let length = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
    trials.good("a plain program, its size", check::size(length(&plain), check::BINARY));
    let large = cc.make("large", own, &large, "")?;
    trials.bad("more bytes than allowed", "4", check::size(length(&large), check::BINARY));
    Ok(())
}
