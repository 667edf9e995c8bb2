//! Compiles each header alone, in every standard of C and C++ that programs use, with common strict warnings.

use crate::files;
use crate::ran::Ran;
use crate::shell::{Run, Tree};
use std::path::Path;

/// Warnings that a header must not cause in other projects: more than the programs of `tests/capi` enable.
const WARNINGS: &str = "-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror";
const OF_C: [&str; 3] = ["c99", "c11", "c17"];
const OF_CPP: [&str; 4] = ["c++14", "c++17", "c++20", "c++23"];

/// A C compiler and a C++ compiler.
type Pair = (&'static str, &'static str);
/// The GNU compilers.
pub const GNU: [Pair; 1] = [("gcc", "g++")];
/// The LLVM compilers, and the oldest GNU compilers in the boards' systems. This machine may lack some of these
/// compilers.
pub const OTHER: [Pair; 6] = [
    ("clang-19", "clang++-19"),
    ("gcc-7", "g++-7"),
    ("gcc-8", "g++-8"),
    ("gcc-9", "g++-9"),
    ("gcc-10", "g++-10"),
    ("gcc-11", "g++-11"),
];

/// For every header, compiles a source that includes the header twice, with each of `compilers` that this machine has.
pub fn check(tree: &Tree, ran: &mut Ran, compilers: &[Pair], dist: &Path, home: &Path) -> Result<(), String> {
    let include = dist.join("include");
    let write = |header: &str| {
        let of = if header.ends_with(".hpp") { "cpp" } else { "c" };
        let path = home.join(format!("{}.{of}", header.replace('/', "-")));
        let text = format!("#include \"{header}\"\n#include \"{header}\"\nint only_here(int);\n");
        files::write(&path, text).map(|()| path)
    };
    let parts = std::fs::read_dir(include.join("elsa")).map_err(files::at(&include))?;
    let parts = parts.flatten().map(|part| format!("elsa/{}", part.file_name().to_string_lossy()));
    let headers = ["elsa.h", "elsa.hpp"].map(str::to_owned).into_iter().chain(parts);
    let files = headers.map(|header| write(&header)).collect::<Result<Vec<_>, _>>()?;
    let is_there = |program: &&Pair| Run::new(tree, program.1).args("--version").quiet().run().ok;
    let compilers = compilers.iter().filter(is_there).copied();
    let all = compilers.flat_map(|(of_c, of_cpp)| {
        let of_c = OF_C.map(|standard| (of_c, standard, "c", "-Wstrict-prototypes"));
        of_c.into_iter().chain(OF_CPP.map(|standard| (of_cpp, standard, "cpp", "")))
    });
    ran.each(all.collect(), |ran, (compiler, standard, language, more)| {
        // The oldest compilers know the newest standard only by the name of its draft, or not at all.
        if knows(tree, compiler, standard) {
            let run =
                Run::new(tree, compiler).args(&format!("-std={standard} -fsyntax-only {WARNINGS} {more} -I"));
            let files = files.iter().filter(|file| file.extension().is_some_and(|of| of == language));
            let out = files.fold(run.arg(&include), |run, file| run.arg(file)).quiet().run();
            let found = if out.ok { Ok("no warning".to_owned()) } else { Err(out.stderr) };
            ran.note(&format!("the headers, {compiler} {standard}"), found);
        }
    });
    Ok(())
}

fn knows(tree: &Tree, compiler: &str, standard: &str) -> bool {
    let language = if standard.starts_with("c++") { "c++" } else { "c" };
    let run =
        Run::new(tree, compiler).args(&format!("-std={standard} -fsyntax-only -x {language} /dev/null"));
    run.quiet().run().ok
}
