//! Tests C and C++ programs against the folder for this machine.
//!
//! `tests/capi/*.c` are C99 and `tests/capi/*.cpp` C++14, without warnings; each prints the number of its checks at the
//! end. The stage `host` compiles them with gcc and runs them. Programs that use a GPU, or test its failures, run on
//! the stand-in driver, and one program runs under valgrind, which finds reads of uninitialised memory. The stages
//! `asan` and `tsan` run the programs with sanitizers and a library that panics on request. The stage `boards` runs
//! them on an emulated board. The stage `shipped` compiles them with clang, runs the C programs under valgrind too, and
//! links programs in every way that the shipped folder supports, and with a library for musl. Each header is also compiled
//! alone, in every standard.

pub mod abi;
pub mod board;
mod dialects;
mod header;
mod hpp;
pub mod instrumented;
pub mod programs;

use super::dist::dist;
use super::{links, musl, readme};
use crate::boards::target::HOST;
use crate::ran::Ran;
use crate::setup;
use crate::shell::Tree;
use instrumented::UNWINDS;
use programs::Compilers;
use std::path::Path;

/// The program that covers every layout, type, flag and refusal of attention, here in the variant that throws.
const THROWS: &str = "whole.cpp";

/// Runs the checks of the stage `host`: compiles with gcc against the folder `dist`, and runs programs that use a GPU on
/// the stand-in driver in the folder `driver`.
pub fn quick(tree: &Tree, ran: &mut Ran, dist: &Path, driver: &Path) -> Result<(), String> {
    setup::programs(tree, &["cmake", "make", "g++", "valgrind"])?;
    let home = programs::home(tree, "host")?;
    dialects::check(tree, ran, &dialects::GNU, dist, &home)?;
    // `stack.c` is left out: this library is not optimised like the shipped one, so its calls need more stack. The stage
    // `shipped` runs the other variants that throw.
    let compilers = Compilers::gcc().linked_fast(tree);
    programs::chosen(tree, ran, &compilers, dist, &home, |source, flags| {
        source != "stack.c" && (flags.is_empty() || [THROWS, UNWINDS].contains(&source))
    });
    programs::under_valgrind(tree, ran, &compilers, dist, &home, |source| source == programs::READS_MEMORY);
    programs::through_the_standin(tree, ran, dist, driver, &home);
    hpp::refused(tree, ran, &["g++"], dist)?;
    readme::adaptors(tree, ran, dist)?;
    readme::cpp(tree, ran, dist, None)
}

/// Runs the stage `shipped`.
pub fn shipped(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| {
        setup::programs(tree, &["cmake", "make", "g++", "valgrind", "pkg-config", "clang++-19"])?;
        let (dist, home) = (dist(tree, ran, HOST)?, programs::home(tree, "shipped")?);
        dialects::check(tree, ran, &dialects::OTHER, &dist, &home)?;
        programs::chosen(tree, ran, &Compilers::clang(), &dist, &home, |_, _| true);
        programs::under_valgrind(tree, ran, &Compilers::clang(), &dist, &home, |_| true);
        hpp::later(tree, ran, &["whole.cpp", "typed.cpp"], &dist, &home);
        hpp::refused(tree, ran, &["clang++-19"], &dist)?;
        for cmake in setup::oldest_cmake(tree)?.into_iter().map(Some).chain([None]) {
            readme::cpp(tree, ran, &dist, cmake.as_deref())?;
        }
        links::host(tree, ran, &dist)?;
        musl::musl(tree, ran)
    })
}
