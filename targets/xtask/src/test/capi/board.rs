//! The stage `capi-board`: programs of `tests/capi` and the clients of the releases on an emulated Cortex-A57, linked
//! with a board's folder, static and shared, which has moved when they run.

use super::programs::{Compilers, checks};
use super::{abi, versions};
use crate::boards::build;
use crate::boards::target::Target;
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use std::fs;
use std::path::Path;

/// Programs whose outcome depends on the processor or the C library, or on how C++ calls them.
const PROGRAMS: [&str; 9] = [
    "plain.c",
    "floats.c",
    "fixed_cache.c",
    "growing_cache.c",
    "concurrency.c",
    "misuse.c",
    "stack.c",
    "versions.c",
    "whole.cpp",
];
/// Libraries that a link by zig needs besides this one.
const BESIDE: &str = "-lpthread -lm -ldl -lunwind";

/// The stage `capi-board`.
pub fn emulated(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| go(tree, ran))
}

/// Compiles against a copy of the folder, renames the copy and runs.
fn go(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    let target = Target::named(tree, &setup::reference()?.name)?;
    ran.join(build::build(tree, &target, false)?);
    let dist = target.dist(tree);
    let home = tree.target.join("capi/board");
    let (built, moved) = (home.join("built"), home.join("moved"));
    let at = |error: std::io::Error| format!("{}: {error}", home.display());
    if home.exists() {
        fs::remove_dir_all(&home).map_err(at)?;
    }
    fs::create_dir_all(&home).map_err(at)?;
    Run::new(tree, "cp -a").arg(&dist).arg(&built).quiet().run().text("copying the folder")?;
    let compilers = Compilers::boards(tree)?;
    let lib = built.join("lib");
    let links = [
        ("static", format!("{} {BESIDE}", lib.join("libelsa.a").display())),
        ("shared", format!("-L {} -lelsa -lpthread -lm", lib.display())),
    ];
    let (mut programs, mut clients) = (Vec::new(), Vec::new());
    for (name, link) in &links {
        // What differs between them is how they are linked: one program shows that.
        for source in PROGRAMS.iter().take(if *name == "static" { PROGRAMS.len() } else { 1 }) {
            let program = home.join(format!("{source}-{name}"));
            let include = built.join("include");
            let link = format!("-O1 {link}");
            if compilers.compile(tree, Path::new(source), &include, &link, &program).count(ran) {
                programs.push((format!("{source}, {name}, emulated"), program));
            }
        }
        for release in abi::releases(tree)? {
            let program = home.join(format!("old-{}.{}-{name}", release.major, release.minor));
            if versions::client(tree, ran, &compilers, &release, link, &program) {
                clients.push((format!("the client of {release}, {name}, emulated"), release, program));
            }
        }
    }
    fs::rename(&built, &moved).map_err(at)?;
    let run = |program: &Path| {
        let emulator = Run::new(tree, &setup::emulator());
        emulator.arg("-E").arg(format!("LD_LIBRARY_PATH={}", moved.join("lib").display())).arg(program)
    };
    for (what, program) in programs {
        checks(ran, &what, run(&program));
    }
    for (what, release, program) in clients {
        versions::answers(ran, &what, &release, run(&program));
    }
    Ok(())
}
