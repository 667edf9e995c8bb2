//! The stage `capi`: C and C++ programs against the folder that `cargo xtask build --target host` makes.
//!
//! `tests/capi/*.c` are C99 and `tests/capi/*.cpp` C++14, without warnings, by gcc and by clang; linked with the
//! static and the shared library, through CMake (the oldest and the system's) and pkg-config and by hand; run as they
//! are, under valgrind, and with AddressSanitizer and UndefinedBehaviorSanitizer against a library that panics on
//! request; those that use a GPU, and what happens to one, through the stand-in driver. Each program ends with the number
//! of its checks. `super::hpp` adds what `elsa.hpp` promises to compilers. The README's quick start of C++ is followed, too.

use super::cargo::with_standin;
use super::{hpp, readme};
use crate::boards::build;
use crate::boards::target::{HOST, Target};
use crate::c_programs::{BESIDE, SOURCES, WARNINGS};
use crate::gpu::standin::{self, Variant};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use std::path::Path;

/// A program of `tests/capi` and the flags that make variants of it.
const PROGRAMS: [(&str, &str); 13] = [
    ("plain.c", ""),
    ("buffers.c", ""),
    ("cache.c", ""),
    ("caches.c", ""),
    ("concurrency.c", ""),
    ("floats.c", ""),
    ("fork.c", ""),
    ("logs.c", ""),
    ("stack.c", ""),
    ("typed.cpp", ""),
    ("typed.cpp", "-DELSA_THROW"),
    ("whole.cpp", ""),
    ("whole.cpp", "-DELSA_THROW"),
];
/// Programs that run through the stand-in driver, the faults of the driver, and its device.
const ON_A_GPU: [(&str, &str, &str); 16] = [
    ("device.c", "", ""),
    ("device.c", "", "discrete"),
    ("buffers.c", "", ""),
    ("buffers.c", "", "discrete"),
    ("buffers.c", "cuLaunchKernel:1:700", ""),
    ("buffers.c", "cuLaunchKernel:1:700", "discrete"),
    ("buffers.c", "cuMemHostAlloc:1+:2", ""),
    ("copies.c", "", ""),
    ("caches.c", "", ""),
    ("caches.c", "cuLaunchKernel:1:700", ""),
    ("plain.c", "", ""),
    ("plain.c", "cuLaunchKernel:1:700", ""),
    ("fork.c", "", ""),
    ("fork.c", "cuLaunchKernel:1:700", ""),
    ("logs.c", "", ""),
    ("logs.c", "cuLaunchKernel:1:700", ""),
];

/// The stage `capi`.
pub fn capi(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| go(tree, ran))
}

fn go(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    for name in ["cmake", "make", "g++", "valgrind", "pkg-config", "clang++-19"] {
        let package = if name == "clang++-19" { "clang-19" } else { name };
        setup::program(tree, name, package)?;
    }
    let target = Target::named(tree, HOST)?;
    ran.join(build::build(tree, &target, false)?);
    let dist = target.dist(tree);
    let home = tree.target.join("capi");
    std::fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    let archive = dist.join("lib/libelsa.a").display().to_string();

    for (source, flags) in PROGRAMS {
        for clang in [false, true] {
            let program = home.join(format!("{source}{flags}-{}", if clang { "clang" } else { "gcc" }));
            let link = format!("-O1 {flags} {archive} {BESIDE}");
            if compile(tree, ran, source, clang, &dist, &link, &program) {
                checks(ran, source, Run::new(tree, "").arg(&program));
                if clang && flags.is_empty() {
                    // A child of fork has lost what belonged to its parent's threads.
                    let leaks = if source == "fork.c" { "no" } else { "full" };
                    let valgrind = format!(
                        "valgrind --quiet --error-exitcode=9 --leak-check={leaks} --errors-for-leak-kinds=definite"
                    );
                    checks(ran, &format!("{source} under valgrind"), Run::new(tree, &valgrind).arg(&program));
                }
            }
        }
    }
    let driver = standin::build(tree, Variant::Plain)?;
    for (source, fault, device) in ON_A_GPU {
        let program = home.join(format!("{source}-standin"));
        if compile(tree, ran, source, false, &dist, &format!("-O1 {archive} {BESIDE}"), &program) {
            let run = with_standin(Run::new(tree, "").arg(&program), &driver).env("ELSA_STANDIN_FAIL", fault);
            let run = run.env("ELSA_STANDIN_DEVICE", device);
            checks(ran, &format!("{source} through the stand-in driver"), run);
        }
    }
    for cmake in setup::oldest_cmake(tree)?.into_iter().map(Some).chain([None]) {
        with_cmake(tree, ran, &dist, &home, cmake.as_deref())?;
        readme::cpp(tree, ran, cmake.as_deref())?;
    }
    with_pkg_config(tree, ran, &dist, &home)?;
    for source in ["typed.cpp", "whole.cpp"] {
        for (what, run) in hpp::later(tree, ran, source, &dist, &home) {
            checks(ran, &what, run);
        }
    }
    hpp::refused(tree, ran, &dist)?;

    // A library with debugging information, which panics on request.
    let inject =
        Run::new(tree, "cargo build -p elsa-capi --features inject --target-dir").arg(home.join("inject"));
    if !inject.run().ok {
        return Err("elsa-capi with the feature inject: does not build".to_owned());
    }
    let archive = home.join("inject/debug/libelsa.a").display().to_string();
    for (source, flags) in PROGRAMS {
        let program = home.join(format!("{source}{flags}-sanitized"));
        let sanitize = "-g -fsanitize=address,undefined -fno-sanitize-recover=all -DINJECT";
        let link = format!("{sanitize} {flags} {archive} {BESIDE}");
        if compile(tree, ran, source, false, &dist, &link, &program) {
            let run = Run::new(tree, "").arg(&program).env("ASAN_OPTIONS", "detect_leaks=1");
            checks(ran, &format!("{source} {flags} with sanitizers"), run);
        }
    }
    Ok(())
}

/// Compiles a program; returns whether that succeeded.
fn compile(
    tree: &Tree,
    ran: &mut Ran,
    source: &str,
    clang: bool,
    dist: &Path,
    link: &str,
    program: &Path,
) -> bool {
    let (compiler, standard) = match (source.ends_with(".c"), clang) {
        (true, false) => ("gcc", "c99"),
        (true, true) => ("clang-19", "c99"),
        (false, false) => ("g++", "c++14"),
        (false, true) => ("clang++-19", "c++14"),
    };
    let run = Run::new(tree, &format!("{compiler} -std={standard} {WARNINGS} -I"))
        .arg(dist.join("include"))
        .arg("-o")
        .arg(program)
        .arg(tree.root.join(SOURCES).join(source))
        .args(link);
    let line = run.line();
    let ok = run.run().ok;
    ran.add(&line, ok, u64::from(ok), u64::from(!ok));
    ok
}

/// Runs a program that ends with the number of its checks.
fn checks(ran: &mut Ran, what: &str, run: Run) {
    let line = run.line();
    let out = run.run();
    let count = out.stdout.lines().last().and_then(|last| last.strip_suffix(" checks")?.parse::<u64>().ok());
    let good = out.ok && count.is_some_and(|n| n > 0);
    ran.add(&format!("{what}: {line}"), good, if good { count.unwrap_or(0) } else { 0 }, u64::from(!good));
}

/// Runs a program that must print `ok`.
fn says_ok(ran: &mut Ran, run: Run) {
    let line = run.line();
    let out = run.run();
    let ok = out.ok && out.stdout.trim() == "ok";
    ran.add(&line, ok, u64::from(ok), u64::from(!ok));
}

/// A program through the CMake package, static and shared, by the `cmake` of that folder or the system's.
fn with_cmake(
    tree: &Tree,
    ran: &mut Ran,
    dist: &Path,
    home: &Path,
    cmake: Option<&Path>,
) -> Result<(), String> {
    let program = cmake.map_or_else(|| "cmake".into(), |folder| folder.join("cmake"));
    let name = if cmake.is_some() { "oldest-cmake" } else { "cmake" };
    for shared in ["OFF", "ON"] {
        let dir = home.join(format!("{name}-{shared}"));
        std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let make = Run::new(tree, "")
            .arg(&program)
            .arg(tree.root.join("targets/xtask/consumer"))
            .arg("-DCMAKE_BUILD_TYPE=Release")
            .arg(format!("-DELSA_SHARED={shared}"))
            .arg(format!("-DCMAKE_PREFIX_PATH={}", dist.display()))
            .dir(&dir);
        let build = Run::new(tree, "").arg(&program).args("--build").arg(&dir);
        if !make.machine().run().ok || !build.machine().run().ok {
            return Err(format!("{}: CMake does not find or link the package", dir.display()));
        }
        says_ok(ran, Run::new(tree, "").arg(dir.join("with")));
    }
    Ok(())
}

/// The same through pkg-config.
fn with_pkg_config(tree: &Tree, ran: &mut Ran, dist: &Path, home: &Path) -> Result<(), String> {
    let ask = |what: &str| {
        let run = Run::new(tree, &format!("pkg-config {what} elsa"));
        let out = run.env("PKG_CONFIG_PATH", dist.join("lib/pkgconfig")).quiet().run();
        if out.ok { Ok(out.stdout.trim().to_owned()) } else { Err(format!("pkg-config: {}", out.stderr)) }
    };
    let (flags, libraries, all) = (ask("--cflags")?, ask("--libs")?, ask("--static --libs")?);
    // A static link names the archive: with the shared library beside it, -lelsa would take that.
    let all = all.replace("-lelsa", "-l:libelsa.a");
    for (name, link) in [("shared", libraries), ("static", all)] {
        let program = home.join(format!("pkg-config-{name}"));
        let run =
            Run::new(tree, &format!("gcc -std=c99 {WARNINGS} {flags} targets/xtask/consumer/with.c -o"));
        if !run.arg(&program).args(&link).args("-lm").run().ok {
            return Err(format!("the {name} link with the flags of pkg-config does not work"));
        }
        says_ok(ran, Run::new(tree, "").arg(&program).env("LD_LIBRARY_PATH", dist.join("lib")));
    }
    Ok(())
}
