//! The stage `capi`: C and C++ programs against the folder that `cargo xtask build --target host` makes.
//!
//! `tests/capi/*.c` are C99 and `tests/capi/*.cpp` C++14, without warnings, by gcc and by clang; run as they are and under
//! valgrind; those that use a GPU, and what happens to one, through the stand-in driver. Each program ends with the
//! number of its checks. The stages `capi-asan` and `capi-tsan` run them with sanitizers against a library that panics on
//! request. The headers alone compile in every standard, and clients of older releases and programs with older and newer
//! headers run. The README's quick start of C++ is followed, too, and `super::links` links programs in every way that the
//! folder is made for.

pub mod abi;
pub mod board;
mod dialects;
mod header;
mod hpp;
pub mod instrumented;
mod programs;
mod versions;

use super::{links, readme};
use crate::boards::build;
use crate::boards::target::{HOST, Target};
use crate::ran::Ran;
use crate::setup;
use crate::shell::Tree;

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
    ran.join(build::once(tree, &target)?);
    let dist = target.dist(tree);
    let home = tree.target.join("capi");
    std::fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;

    dialects::check(tree, ran, &dist, &home)?;
    programs::by_both_compilers(tree, ran, &dist, &home);
    hpp::later(tree, ran, &["whole.cpp", "typed.cpp"], &dist, &home);
    hpp::refused(tree, ran, &dist)?;
    versions::check(tree, ran, &dist, &home)?;
    programs::through_the_standin(tree, ran, &dist, &home)?;
    for cmake in setup::oldest_cmake(tree)?.into_iter().map(Some).chain([None]) {
        readme::cpp(tree, ran, cmake.as_deref())?;
    }
    links::host(tree, ran, &dist)
}
