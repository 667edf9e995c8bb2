//! Runs programs of `tests/capi` on an emulated Cortex-A57, as a part of the stage `boards`. The programs are linked
//! statically and dynamically with the libraries in a board's folder. This folder is renamed before the programs run.

use super::programs::{Compilers, checks};
use crate::files::{at, empty};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Programs whose behaviour depends on the processor or the C library, and one program that calls the library from C++.
const PROGRAMS: [&str; 14] = [
    "plain.c",
    "floats.c",
    "fixed_cache.c",
    "growing_cache.c",
    "concurrency.c",
    "gradients.c",
    "left_out.c",
    "linear.c",
    "misuse.c",
    "options.c",
    "series.c",
    "stack.c",
    "sizes.c",
    "whole.cpp",
];
/// Linker flags for the libraries that programs need if zig links them with the static libelsa.
const BESIDE: &str = "-lpthread -lm -ldl -lunwind";

/// Compiles the programs against a copy of the folder `dist`, renames the copy, and runs the programs.
pub fn emulated(tree: &Tree, ran: &mut Ran, dist: &Path) -> Result<(), String> {
    let home = tree.target.join("capi/board");
    let (built, moved) = (home.join("built"), home.join("moved"));
    empty(&home)?;
    Run::new(tree, "cp -a").arg(dist).arg(&built).quiet().run().text("copying the folder")?;
    let compilers = Compilers::boards(tree)?;
    let lib = built.join("lib");
    let links = [
        ("static", format!("{} {BESIDE}", lib.join("libelsa.a").display())),
        ("shared", format!("-L {} -lelsa -lpthread -lm", lib.display())),
    ];
    // One program is enough to show the differences of shared linking.
    let of = |(name, link): &(&'static str, String)| {
        let count = if *name == "static" { PROGRAMS.len() } else { 1 };
        let programs = PROGRAMS.iter().take(count).map(|source| (*name, link.clone(), *source));
        programs.collect::<Vec<_>>()
    };
    let all: Vec<_> = links.iter().flat_map(of).collect();
    let program = |name: &str, source: &str| home.join(format!("{source}-{name}"));
    let compiled = Mutex::new(BTreeSet::new());
    ran.each(all.iter().collect(), |ran, (name, link, source)| {
        let (program, include) = (program(name, source), built.join("include"));
        let flags = format!("-O1 {link}");
        if compilers.compile(tree, Path::new(source), &include, &flags, &program).count(ran) {
            compiled.lock().unwrap_or_else(PoisonError::into_inner).insert(program);
        }
    });
    let compiled = compiled.into_inner().unwrap_or_else(PoisonError::into_inner);
    fs::rename(&built, &moved).map_err(at(&built))?;
    let run = |program: &Path| {
        let emulator = Run::new(tree, &setup::emulator());
        emulator.arg("-E").arg(format!("LD_LIBRARY_PATH={}", moved.join("lib").display())).arg(program)
    };
    let made = all.iter().filter(|(name, _, source)| compiled.contains(&program(name, source)));
    ran.each(made.collect(), |ran, (name, _, source)| {
        checks(ran, &format!("{source}, {name}, emulated"), run(&program(name, source)));
    });
    Ok(())
}
