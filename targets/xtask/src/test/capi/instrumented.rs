//! Builds programs of `tests/capi` and the library with a sanitizer, as a part of the stages `asan` and `tsan`, and runs them.
//! This detects memory errors and data races between program and library. The libraries of both stages panic on request. The
//! library of the stage `tsan` has local symbols and panics that unwind, like the shipped library.

use super::programs::{BESIDE, Compilers, PROGRAMS, checks};
use crate::boards::library::{self, Abi};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use std::path::Path;

/// Programs that cannot be instrumented, because they measure the stack that calls need, or replace the allocator.
const NOT_INSTRUMENTED: [&str; 2] = ["stack.c", "realtime.c"];
/// Programs with threads.
const WITH_THREADS: [&str; 5] = ["concurrency.c", "logs.c", "whole.cpp", "stream_ends.c", "stream.cpp"];
/// The program with a variant that throws exceptions. These exceptions unwind through callbacks of the library.
pub const UNWINDS: &str = "stream.cpp";

/// Runs the programs under AddressSanitizer, with the archive of the library.
pub fn asan(tree: &Tree, ran: &mut Ran, archive: &Path) -> Result<(), String> {
    let programs = PROGRAMS.iter().filter(|(source, flags)| {
        // The other variants differ in how the header reports an error, not in the memory that they use.
        !NOT_INSTRUMENTED.contains(source) && (flags.is_empty() || *source == UNWINDS)
    });
    // The system's heap and thread stacks must contain no leaked memory.
    let options = (
        "ASAN_OPTIONS",
        "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:allocator_may_return_null=1",
    );
    run(tree, ran, archive, "address", "-O0 -fsanitize=address,undefined -DINJECT", programs, options)
}

/// Runs the programs with threads under ThreadSanitizer.
pub fn tsan(tree: &Tree, ran: &mut Ran, archive: &Path) -> Result<(), String> {
    let programs =
        PROGRAMS.iter().filter(|(source, flags)| flags.is_empty() && WITH_THREADS.contains(source));
    // The symbols of this library are local, like those of the shipped library, in which panics unwind too. (The stage `asan`
    // cannot do this: AddressSanitizer registers the globals of each module, and would mistake an object that is merged from
    // many modules for duplicates.)
    let mut abi = Abi::read(tree)?;
    abi.functions.insert("elsa_test_panic_next".to_owned());
    let folder = super::programs::home(tree, "inject")?;
    let archive = library::enclosed(tree, &abi, archive, &folder)?;
    let options = ("TSAN_OPTIONS", "halt_on_error=1");
    run(tree, ran, &archive, "thread", "-O1 -fsanitize=thread -DINJECT -DSLOW", programs, options)
}

/// Builds the programs with clang, which links the sanitizer's runtime for program and library. Runs the programs.
fn run<'a>(
    tree: &Tree,
    ran: &mut Ran,
    archive: &Path,
    sanitizer: &str,
    of_clang: &str,
    programs: impl Iterator<Item = &'a (&'a str, &'a str)>,
    (variable, value): (&str, &str),
) -> Result<(), String> {
    setup::program(tree, "clang++-19", "clang-19")?;
    setup::file(tree, "/usr/lib/llvm-19/lib/clang/19/lib", "libclang-rt-19-dev")?;
    let home = super::programs::home(tree, sanitizer)?;
    let include = tree.root.join("runtime/capi/include");
    let compilers = Compilers::clang().linked_fast(tree);
    ran.each(programs.collect(), |ran, (source, flags)| {
        let program = home.join(format!("{source}{flags}"));
        let link = format!("-g {of_clang} -fno-sanitize-recover=all {flags} {} {BESIDE}", archive.display());
        if compilers.compile(tree, Path::new(source), &include, &link, &program).count(ran) {
            let run = Run::new(tree, "").arg(&program).env(variable, value);
            checks(ran, &format!("{source} {flags}, {sanitizer}"), run);
        }
    });
    // The programs take a gigabyte.
    if ran.failed == 0 { crate::files::empty(&home) } else { Ok(()) }
}
