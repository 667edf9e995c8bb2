//! Builds slices of the C library for the boards, links a C++ program with each of them, runs the program in the
//! emulator, and checks the size of the stripped program. The program refers to every function of its slice, and the
//! linker's line is that of the slice's package for pkg-config.

use super::links::{CONSUMER, printed, says_ok, stripped};
use crate::boards::slice::{self, Slice};
use crate::boards::target::Target;
use crate::boards::{check, library};
use crate::c_programs::WARNINGS;
use crate::files::{self, at, empty};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use elsa_targets::Board;
use std::fs;

/// Features of each slice, and the largest number of bytes of the stripped program. `links` measures the whole library.
///
/// A third of a program for the CPU is Rust's standard library, half of it the code that prints a backtrace; another
/// sixth are the tables for unwinding, without which a panic would leave the library.
const SLICES: [(&[&str], u64); 8] = [
    (&["attention"], 1_150_000),
    (&["attention", "cuda"], 1_800_000),
    (&["attention", "stream"], check::ADDED),
    (&["gradients"], check::ADDED),
    (&["gradients", "task"], check::ADDED),
    (&["linear"], check::ADDED),
    (&["series"], check::ADDED),
    (&["task"], check::ADDED),
];
/// Compiler of the program, without exceptions and without types at run time.
const COMPILER: &str = "aarch64-linux-gnu-g++ -std=c++14 -O2 -fno-exceptions -fno-rtti";

/// Builds all slices and checks their programs. Prints a table of the sizes.
pub fn slices(tree: &Tree, ran: &mut Ran, board: &Board) -> Result<(), String> {
    setup::program(tree, "aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")?;
    let target = Target::Board(Box::new(board.clone()));
    let mut table = String::from("| features | bytes of a program | allowed |\n|---|---|---|\n");
    for (features, most) in SLICES {
        let slice = Slice::named(tree, features)?;
        let bytes = program(tree, ran, &target, &slice)?;
        let name = slice.joined(", ");
        ran.note(&format!("{name}: a stripped C++ program"), check::size(bytes, most));
        table += &format!("| {name} | {bytes} | {most} |\n");
    }
    println!("{table}");
    Ok(())
}

/// Builds a slice and its program, runs the program, and returns its stripped size.
fn program(tree: &Tree, ran: &mut Ran, target: &Target, slice: &Slice) -> Result<u64, String> {
    let (dist, name) = (slice::build(tree, ran, target, slice)?, slice.joined("-"));
    let home = tree.target.join("links/slices").join(&name);
    empty(&home)?;
    let (main, object, program) = (home.join("main.cpp"), home.join("with.o"), home.join("program"));
    files::write(&main, source(&slice.abi(tree)?, slice.has("attention")))?;
    let run = Run::new(tree, &format!("{COMPILER} {WARNINGS} -x c++ -Dmain=attention -c -o")).arg(&object);
    let run = run.arg(tree.root.join(CONSUMER).join("with.c")).args(&printed(tree, &dist, "--cflags elsa")?);
    run.run().text(&format!("{name}: compiling"))?;
    let run = Run::new(tree, &format!("{COMPILER} {WARNINGS} -o")).arg(&program).arg(&main);
    let run = if slice.has("attention") { run.arg(&object) } else { run };
    let run = run.args(&printed(tree, &dist, "--cflags --libs elsa")?);
    run.run().text(&format!("{name}: linking"))?;
    says_ok(ran, &format!("{name}: run"), Run::new(tree, &setup::emulator()).arg(&program));
    let stripped = stripped(tree, &program)?;
    fs::metadata(&stripped).map(|file| file.len()).map_err(at(&stripped))
}

/// Returns the source of a program that refers to every function of the interface. With `attention`, the program also
/// calls a function of that name; otherwise it creates an engine.
fn source(abi: &library::Abi, attention: bool) -> String {
    let functions: String =
        abi.functions.iter().map(|name| format!("    reinterpret_cast<any>(&{name}),\n")).collect();
    let work = if attention {
        "int attention(void);\nstatic int work() { return attention(); }\n"
    } else {
        "static int work()\n{\n    elsa_engine engine;\n    \
         if (elsa_engine_create(nullptr, &engine) != ELSA_STATUS_OK) {\n        \
         std::fprintf(stderr, \"%s\\n\", elsa_last_error());\n        return 1;\n    }\n    \
         return elsa_engine_destroy(engine) != ELSA_STATUS_OK || std::puts(\"ok\") < 0;\n}\n"
    };
    format!(
        "#include <elsa.h>\n\n#include <cstdio>\n\nusing any = void (*)();\n\
         static any const volatile functions[] = {{\n{functions}}};\n\n{work}\n\
         int main()\n{{\n    for (any function : functions)\n        if (!function)\n            return 1;\n    \
         return work();\n}}\n"
    )
}
