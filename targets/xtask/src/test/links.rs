//! Links programs with the folder that `cargo xtask build` creates, in every supported way: through CMake and
//! pkg-config, with the static and the shared library, as a program without shared libraries, with link-time
//! optimisation, without exceptions, as a plugin, and together with a second Rust library. The programs are installed;
//! before they run, the folder and the build folder are moved away.

use crate::boards::library::Abi;
use crate::boards::{build, check};
use crate::c_programs::WARNINGS;
use crate::files::{self, at, bytes, empty};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use elsa_targets::{Board, NAMES};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Folder of the programs.
pub const CONSUMER: &str = "targets/xtask/consumer";

/// Copies the folder `dist` to `to` and preserves its symbolic links.
fn moved(tree: &Tree, dist: &Path, to: &Path) -> Result<(), String> {
    empty(to)?;
    let run = Run::new(tree, "cp -a").arg(dist.join(".")).arg(to);
    run.quiet().run().text("moving the folder").map(|_| ())
}

/// Runs a program that must print at least one line. Every line must be `ok`.
pub fn says_ok(ran: &mut Ran, what: &str, run: Run) {
    let said = run.limit(Duration::from_secs(60)).run().text(what);
    let good = |said: &str| !said.is_empty() && said.lines().all(|line| line == "ok");
    let found = said.and_then(|said| if good(&said) { Ok("ok".to_owned()) } else { Err(said) });
    ran.note(what, found);
}

/// Checks that a plugin exports its own function, and otherwise only functions of the interface.
fn of_plugin(bytes: &[u8], abi: &Abi) -> check::Found {
    let names = check::defined(bytes)?;
    let alien = |name: &&String| *name != "plugin" && !abi.functions.contains(*name);
    let bad: Vec<&str> = names.iter().filter(alien).map(String::as_str).collect();
    match (bad.is_empty(), names.contains("plugin")) {
        (true, true) => Ok(format!("{} names", names.len())),
        (true, false) => Err("no plugin; allowed: its function and those of elsa.map".to_owned()),
        (false, _) => Err(format!("{}; allowed: its function and those of elsa.map", bad.join(", "))),
    }
}

/// Settings for building and running the program with CMake, on this machine or for a board.
struct Way<'a> {
    what: String,
    cmake: PathBuf,
    defines: Vec<String>,
    emulator: &'a str,
}

/// Programs that [`with_cmake`] has built.
struct Made {
    /// The program with the static library, and a program without the library.
    fixed: [PathBuf; 2],
    /// The program with the shared library.
    shared: PathBuf,
}

/// Builds, installs and runs the C program through the CMake package of `dist`, with the static and the shared library. The
/// build folder and the library's folder are moved before it runs. Returns the paths of the programs.
fn with_cmake(
    tree: &Tree,
    ran: &mut Ran,
    abi: &Abi,
    way: &Way,
    dist: &Path,
    home: &Path,
) -> Result<Made, String> {
    let mut folders = Vec::new();
    for (shared, name) in [("OFF", "static"), ("ON", "shared")] {
        let home = home.join(name);
        let (library, gone) = (home.join("elsa"), home.join("gone"));
        let installed = home.join("installed");
        empty(&home)?;
        moved(tree, dist, &library)?;
        let (dir, prefix) = (home.join("build"), home.join("prefix"));
        files::folder(&dir)?;
        let mut make = Run::new(tree, "").arg(&way.cmake).arg(tree.root.join(CONSUMER));
        make = make.args("-DCMAKE_BUILD_TYPE=Release").arg(format!("-DELSA_SHARED={shared}"));
        make = make.arg(format!("-Delsa_DIR={}", library.join("lib/cmake/elsa").display()));
        make = make.arg(format!("-DCMAKE_INSTALL_PREFIX={}", prefix.display())).dir(&dir);
        for define in &way.defines {
            make = make.arg(define);
        }
        let what = format!("{}, {name}", way.what);
        make.machine().run().text(&format!("{what}: configuring"))?;
        let install = Run::new(tree, "").arg(&way.cmake).arg("--build").arg(&dir).args("--target install");
        install.machine().run().text(&format!("{what}: building"))?;
        if shared == "ON" && !way.emulator.is_empty() {
            let found = check::needs(&bytes(&dir.join("with"))?, &abi.soname());
            ran.note(&format!("{what}: the library it needs before it is installed"), found);
        }

        for folder in [&library, &dir] {
            let to = gone.join(folder.file_name().unwrap_or_default());
            fs::create_dir_all(&gone).and_then(|()| fs::rename(folder, &to)).map_err(at(folder))?;
        }
        fs::rename(&prefix, &installed).map_err(at(&prefix))?;
        let program = installed.join("bin/with");
        let bytes = bytes(&program)?;
        if shared == "ON" {
            ran.note(&format!("{what}: the library it needs"), check::needs(&bytes, &abi.soname()));
        }
        says_ok(ran, &format!("{what}: run where it was moved"), Run::new(tree, way.emulator).arg(&program));
        folders.push(home);
    }
    let [fixed, shared] = [0, 1].map(|at: usize| folders[at].join("installed/bin/with"));
    Ok(Made { fixed: [fixed, folders[0].join("gone/build/without")], shared })
}

/// Links and runs the programs of this machine.
pub fn host(tree: &Tree, ran: &mut Ran, dist: &Path) -> Result<(), String> {
    let (abi, home) = (Abi::read(tree)?, tree.target.join("links/host"));
    // A file of an earlier run may have the name of a folder that this run creates.
    empty(&home)?;
    for cmake in setup::oldest_cmake(tree)?.into_iter().map(Some).chain([None]) {
        let way = Way {
            what: if cmake.is_some() { "CMake 3.10".to_owned() } else { "CMake".to_owned() },
            cmake: cmake.map_or_else(|| "cmake".into(), |folder| folder.join("cmake")),
            defines: Vec::new(),
            emulator: "",
        };
        with_cmake(tree, ran, &abi, &way, dist, &home)?;
    }
    empty(&home)?;
    let (library, gone) = (home.join("elsa"), home.join("gone"));
    moved(tree, dist, &library)?;
    with_pkg_config(tree, ran, &abi, &library, &home)?;
    plugin(tree, ran, &abi, &library, &home)?;
    twins(tree, ran, &abi, &library, &home)?;
    // Programs that contain the library do not need its folder.
    fs::rename(&library, &gone).map_err(at(&library))?;
    for Driver { name, .. } in DRIVERS {
        says_ok(ran, &format!("pkg-config, {name}: run"), Run::new(tree, "").arg(home.join(name)));
    }
    let shared = Run::new(tree, "").arg(home.join("shared")).env("LD_LIBRARY_PATH", gone.join("lib"));
    says_ok(ran, "pkg-config, shared: run", shared);
    says_ok(ran, "two libraries in Rust: run", Run::new(tree, "").arg(home.join("twins")));
    Ok(())
}

/// A compiler whose programs are linked by pkg-config.
struct Driver {
    /// Name of the program.
    name: &'static str,
    /// Command that compiles and links.
    compiler: &'static str,
    /// Further flags of the linking command.
    linking: &'static str,
    /// Arguments of pkg-config.
    question: &'static str,
}

const fn driver(name: &'static str, compiler: &'static str, question: &'static str) -> Driver {
    Driver { name, compiler, linking: "", question }
}

const DRIVERS: [Driver; 10] = [
    driver("gcc", "gcc", "--libs elsa"),
    driver("g++", "g++", "--libs elsa"),
    driver("clang", "clang-19", "--static --libs elsa"),
    driver("clang++", "clang++-19", "--libs elsa"),
    Driver { linking: "-static", ..driver("gcc-static", "gcc", "--static --libs elsa") },
    Driver { linking: "-static", ..driver("g++-static", "g++", "--static --libs elsa") },
    driver("g++-bare", "g++ -O2 -fno-exceptions -fno-rtti", "--libs elsa"),
    driver("g++-lto", "g++ -O2 -flto", "--libs elsa"),
    driver("clang++-lto", "clang++-19 -O2 -flto", "--libs elsa"),
    driver("clang++-thin-lto", "clang++-19 -O2 -flto=thin -fno-exceptions -fno-rtti", "--libs elsa"),
];

/// Returns the unchanged output of pkg-config.
pub fn printed(tree: &Tree, library: &Path, question: &str) -> Result<String, String> {
    let run = Run::new(tree, "pkg-config").args(question);
    let run = run.env("PKG_CONFIG_PATH", library.join("lib/pkgconfig")).env("PKG_CONFIG_LIBDIR", "");
    let line = run.quiet().run().text(&format!("pkg-config {question}"))?;
    if line.trim().is_empty() { Err(format!("pkg-config {question}: printed nothing")) } else { Ok(line) }
}

fn with_pkg_config(tree: &Tree, ran: &mut Ran, abi: &Abi, library: &Path, home: &Path) -> Result<(), String> {
    let source = tree.root.join(CONSUMER).join("with.c");
    let compile = |name: &str, compiler: &str| -> Result<PathBuf, String> {
        let language = if compiler.contains("++") { "c++ -std=c++14" } else { "c -std=c99" };
        let object = home.join(format!("{name}.o"));
        let run = Run::new(tree, &format!("{compiler} {WARNINGS} -x {language} -c -o")).arg(&object);
        let run = run.arg(&source).args(&printed(tree, library, "--cflags elsa")?);
        run.run().text(&format!("pkg-config, {name}: compiling")).map(|_| object)
    };
    let link = |name: &str, compiler: &str, linking: &str, line: &str| {
        let object = compile(name, compiler)?;
        let run =
            Run::new(tree, compiler).args(linking).arg("-o").arg(home.join(name)).arg(object).args(line);
        run.run().text(&format!("pkg-config, {name}: linking"))
    };
    for Driver { name, compiler, linking, question } in DRIVERS {
        link(name, compiler, linking, &printed(tree, library, question)?)?;
        let needed = check::needed(&bytes(&home.join(name))?)?;
        let shared: Vec<String> = needed.into_iter().filter(|name| name.contains("elsa")).collect();
        let found = if shared.is_empty() { Ok("inside".to_owned()) } else { Err(shared.join(", ")) };
        ran.note(&format!("pkg-config, {name}: the library"), found);
    }
    let line = printed(tree, library, "--libs elsa-shared")?;
    link("shared", "gcc", "", &(line + " -lm"))?;
    let needs = check::needs(&bytes(&home.join("shared"))?, &abi.soname());
    ran.note("pkg-config, shared: the library", needs);
    let lengths = [library.join("lib").join(abi.file()), stripped(tree, &home.join("gcc"))?];
    let [all, used] = lengths.map(|path| fs::metadata(&path).map(|file| file.len()).map_err(at(&path)));
    // The program calls attention only.
    ran.note("pkg-config, gcc: without the functions that it does not use", check::size(used?, all? / 4 * 3));
    Ok(())
}

/// Makes a stripped copy of a program, and returns its path.
pub fn stripped(tree: &Tree, program: &Path) -> Result<PathBuf, String> {
    let to = program.with_extension("stripped");
    build::strip(tree, program, &to, "--strip-all").map(|()| to)
}

/// Links a plugin that contains the library, and checks its exports.
fn plugin(tree: &Tree, ran: &mut Ran, abi: &Abi, library: &Path, home: &Path) -> Result<(), String> {
    let path = home.join("plugin.so");
    let line = printed(tree, library, "--cflags --libs elsa")?;
    let run = Run::new(tree, "gcc -std=c99 -shared -fPIC -Dmain=plugin -o").arg(&path);
    run.arg(tree.root.join(CONSUMER).join("with.c")).args(&line).run().text("linking a plugin")?;
    ran.note("exports of a plugin", of_plugin(&bytes(&path)?, abi));
    Ok(())
}

/// Links a program with the library, and with a copy of the library in which the functions have other names. The copy
/// represents a second Rust library, because the library and the copy each contain the entire standard library. The
/// program calls each of the two once.
fn twins(tree: &Tree, ran: &mut Ran, abi: &Abi, library: &Path, home: &Path) -> Result<(), String> {
    let pairs = |between: &str, front: &str| -> String {
        abi.functions.iter().map(|name| format!("{front}{name}{between}twin_{name}\n")).collect()
    };
    let names = home.join("twin.txt");
    files::write(&names, pairs(" ", ""))?;
    let (archive, twin) = (library.join("lib/libelsa.a"), home.join("libtwin.a"));
    let run = Run::new(tree, "").arg(setup::llvm(tree)?.join("llvm-objcopy"));
    let run = run.arg(format!("--redefine-syms={}", names.display())).arg(&archive).arg(&twin);
    run.quiet().run().text("a copy of libelsa.a with other names")?;

    let main = home.join("twins.c");
    let source = "int first(void);\nint second(void);\nint main(void) { return first() || second(); }\n";
    files::write(&main, source)?;
    let compile = |name: &str, flags: &str| -> Result<PathBuf, String> {
        let object = home.join(format!("{name}.o"));
        let run = Run::new(tree, &format!("gcc -std=c99 -c -Dmain={name} {flags} -I"));
        let run = run.arg(library.join("include")).arg("-o").arg(&object);
        let run = run.arg(tree.root.join(CONSUMER).join("with.c"));
        run.quiet().run().text("compiling for two libraries").map(|_| object)
    };
    let (first, second) = (compile("first", "")?, compile("second", &pairs("=", "-D"))?);
    let program = home.join("twins");
    let run = Run::new(tree, "gcc -o").arg(&program).arg(&main).arg(first).arg(second);
    let run = run.arg(&archive).arg(&twin).args("-lutil -lrt -lpthread -lm -ldl");
    let linked = run.run().text("two libraries in Rust: linking");
    ran.note("two libraries in Rust: linked", linked.map(|_| "done".to_owned()));
    Ok(())
}

/// Returns the CMake argument that states the path of zig.
fn zig(tree: &Tree) -> Result<String, String> {
    Ok(format!("-DELSA_ZIG={};-m;ziglang", setup::zig(tree)?.join("python").display()))
}

/// Links programs with the libraries of a board's folder, statically and dynamically. Zig links them. Runs the programs in the
/// emulator, and checks that a board can load them. Returns the static program and the program without the library.
pub fn one_board(tree: &Tree, ran: &mut Ran, board: &Board, dist: &Path) -> Result<[PathBuf; 2], String> {
    setup::programs(tree, &["cmake", "make"])?;
    let (abi, home, emulator) = (Abi::read(tree)?, tree.target.join("links/zig"), setup::emulator());
    let toolchain = dist.join(format!("share/{}/toolchain.cmake", board.name));
    let defines = vec![format!("-DCMAKE_TOOLCHAIN_FILE={}", toolchain.display()), zig(tree)?];
    let way = Way { what: "CMake, zig".to_owned(), cmake: "cmake".into(), defines, emulator: &emulator };
    let made = with_cmake(tree, ran, &abi, &way, dist, &home)?;
    let exceptions = check::Exceptions::read(tree)?;
    for (name, program) in [("static", &made.fixed[0]), ("shared", &made.shared)] {
        let bytes = bytes(program)?;
        ran.note(&format!("{name}: symbol versions"), check::symbol_versions(&bytes, board.build.glibc));
        ran.note(&format!("{name}: instructions"), check::instructions(tree, program, &exceptions));
    }
    ran.note("static: libraries", check::libraries(&bytes(&made.fixed[0])?));
    Ok(made.fixed)
}

/// Links programs with a board's folder, using GCC, and checks them as [`one_board`] does. Also checks the size that the
/// library adds to a program, and the tuning in every board's toolchain file.
pub fn boards(tree: &Tree, ran: &mut Ran, board: &Board, dist: &Path) -> Result<(), String> {
    setup::program(tree, "aarch64-linux-gnu-gcc", "g++-aarch64-linux-gnu")?;
    let mut lengths = Vec::new();
    for program in one_board(tree, ran, board, dist)? {
        let stripped = stripped(tree, &program)?;
        lengths.push(fs::metadata(&stripped).map_err(at(&stripped))?.len());
    }
    let added = lengths[0].saturating_sub(lengths[1]);
    ran.note("what libelsa.a adds to a stripped C program", check::size(added, check::ADDED));

    let (abi, home, emulator) = (Abi::read(tree)?, tree.target.join("links/board"), setup::emulator());
    let zig = zig(tree)?;
    let file =
        |name: &str| tree.root.join("targets").join(name).join("toolchain.cmake").display().to_string();
    let defines = vec![format!("-DCMAKE_TOOLCHAIN_FILE={}", file(&board.name))];
    let way = Way { what: "CMake, GCC".to_owned(), cmake: "cmake".into(), defines, emulator: &emulator };
    with_cmake(tree, ran, &abi, &way, dist, &home)?;
    for name in NAMES {
        for (compiler, wanted) in [("zig", tuned_by_zig(name)), ("GCC", tuned_by_gcc(name))] {
            let mut defines = vec![format!("-DCMAKE_TOOLCHAIN_FILE={}", file(name))];
            defines.extend((compiler == "zig").then(|| zig.clone()));
            let found = flags(tree, dist, &home, &defines).and_then(|line| tuned(&line, wanted));
            ran.note(&format!("{name}: flags for {compiler}"), found);
        }
    }
    let unknown = [format!("-DCMAKE_TOOLCHAIN_FILE={}", file(&board.name)), "-DELSA_CPU=abacus".to_owned()];
    let found = match flags(tree, dist, &home, &unknown) {
        Err(fault) if fault.contains("ELSA_CPU: abacus; allowed: ") => Ok("refused".to_owned()),
        Err(fault) => Err(fault),
        Ok(line) => Err(format!("taken: {line}")),
    };
    ran.note("a core that the compiler does not know", found);
    Ok(())
}

/// Returns the options of zig's compiler that tune code for the processor of `board`.
fn tuned_by_zig(board: &str) -> &'static str {
    match board {
        "jetson-orin" => "-Xclang -tune-cpu -Xclang cortex-a78ae",
        "jetson-xavier" => "-Xclang -tune-cpu -Xclang carmel",
        _ => "-Xclang -tune-cpu -Xclang cortex-a57",
    }
}

/// Returns the options of GCC that tune code for `board`. No version of GCC knows the Xavier's cores.
fn tuned_by_gcc(board: &str) -> &'static str {
    match board {
        "jetson-orin" => "-march=armv8-a -mtune=cortex-a78ae",
        _ => "-march=armv8-a -mtune=cortex-a57",
    }
}

/// Checks that the command line `line` of a compiler contains the options `wanted`, and no other instruction set.
fn tuned(line: &str, wanted: &str) -> check::Found {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (line, wanted) = (words(line), words(wanted));
    let sets = line
        .iter()
        .filter(|word| ["-mcpu=", "-target-cpu", "-march="].iter().any(|set| word.starts_with(set)));
    let beyond: Vec<&str> = sets.filter(|word| *word != "-march=armv8-a").map(String::as_str).collect();
    if !beyond.is_empty() {
        return Err(format!("{}; allowed: ARMv8.0-A", beyond.join(" ")));
    }
    let tuned = line.windows(wanted.len()).any(|words| words == wanted);
    let wanted = wanted.join(" ");
    if tuned { Ok(wanted) } else { Err(format!("{}; allowed: {wanted} in it", line.join(" "))) }
}

/// Returns the command line with which CMake compiles a C file, given the definitions `defines`.
fn flags(tree: &Tree, dist: &Path, home: &Path, defines: &[String]) -> Result<String, String> {
    let dir = home.join("flags");
    empty(&dir)?;
    let mut run = Run::new(tree, "cmake").arg(tree.root.join(CONSUMER)).dir(&dir);
    run = run.args("-DCMAKE_EXPORT_COMPILE_COMMANDS=ON");
    run = run.arg(format!("-Delsa_DIR={}", dist.join("lib/cmake/elsa").display()));
    for define in defines {
        run = run.arg(define);
    }
    let out = run.quiet().run();
    if !out.ok {
        return Err(format!("configuring: {}: {}", out.how, out.stderr.trim()));
    }
    // The toolchain file tries whether the compiler knows the board's cores. This must leave no files.
    let stray = |folder: &Path| ["null.s", "null.o", "a.out"].iter().any(|name| folder.join(name).exists());
    if stray(&dir) || stray(&tree.root.join(CONSUMER)) {
        return Err(format!("{}: files that no target makes", dir.display()));
    }
    let path = dir.join("compile_commands.json");
    let commands: serde_json::Value =
        serde_json::from_slice(&bytes(&path)?).map_err(|error| format!("{}: {error}", path.display()))?;
    let line = commands[0]["command"].as_str().unwrap_or_default();
    if line.is_empty() { Err(format!("{}: no command", path.display())) } else { Ok(line.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_name_another_instruction_set_are_refused() {
        let wanted = "-march=armv8-a -mtune=cortex-a57";
        assert!(tuned("gcc -march=armv8-a -mtune=cortex-a57 -O3 -c a.c", wanted).is_ok());
        assert!(tuned("gcc -march=armv8-a -O3 -c a.c", wanted).is_err());
        assert!(tuned("gcc -march=armv8-a -mtune=cortex-a57 -mcpu=cortex-a57 -c a.c", wanted).is_err());
        assert!(tuned("gcc -mtune=cortex-a57 -march=armv8.2-a -c a.c", "-mtune=cortex-a57").is_err());
        assert!(tuned("zig cc -Xclang -target-cpu -Xclang carmel -c a.c", "-Xclang").is_err());
    }
}
