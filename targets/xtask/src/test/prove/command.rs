//! Commands that run a part of a stage, as written in the headers of faults:
//!
//! | command | effect |
//! |---|---|
//! | `test TARGETS -- NAMES` | runs tests of the workspace on this machine |
//! | `standin test …` | as `test`, with the stand-in GPU, including tests that need a GPU |
//! | `address test …`, `thread test …` | as `test`, under a sanitizer, for code that works with memory |
//! | `aarch64 test …` | as `test`, built for boards, on an emulated Cortex-A57 |
//! | `program FILE` | runs a program of `tests/capi`, compiled by gcc |
//! | `standin program FILE` | as `program`, with the stand-in GPU |
//! | `valgrind program FILE` | as `program`, under valgrind |
//! | `address program FILE` | as `program`, with library and program under AddressSanitizer |
//! | `xtask …` | runs a command of the project, such as a short stage |
//!
//! Each command has the profile, the packages and the flags of its stage, so that nothing is built twice in the copy of
//! the tree in which faults are planted. Building and running are separate steps, because a fault that does not compile
//! is not detected by a test.

use crate::boards::build::PRODUCTS;
use crate::c_programs::{BESIDE, SOURCES, WARNINGS};
use crate::gpu::standin::{self, Variant};
use crate::setup;
use crate::shell::{Run, Tree};
use crate::test::arm;
use crate::test::capi::programs::VALGRIND;
use crate::test::cargo::with_standin;
use crate::test::sanitizers::Sanitizer;
use std::time::Duration;

/// Time limit of a command. A command that takes longer counts as hung.
pub const LIMIT: Duration = Duration::from_secs(900);

/// Build and run steps of a command.
pub struct Command {
    /// Commands that must succeed, with and without the fault.
    pub build: Vec<Run>,
    /// Command that must succeed without the fault, and fail with it.
    pub run: Run,
}

/// A parsed command.
#[derive(Debug, PartialEq)]
enum Kind<'a> {
    Tests(How, &'a str),
    Program(How, &'a str),
    Xtask(&'a str),
    /// Searches a file for a word and builds nothing; for tests of the modules that use this module.
    #[cfg(test)]
    Check(&'a str),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Plain,
    Standin,
    Address,
    Thread,
    Aarch64,
    Valgrind,
}

impl Kind<'_> {
    fn parse(line: &str) -> Result<Kind<'_>, String> {
        let hows = [
            ("standin ", How::Standin),
            ("address ", How::Address),
            ("thread ", How::Thread),
            ("aarch64 ", How::Aarch64),
            ("valgrind ", How::Valgrind),
        ];
        let front = hows.iter().find_map(|(word, how)| Some((*how, line.strip_prefix(word)?)));
        let (how, rest) = front.unwrap_or((How::Plain, line));
        let kind = match (how, rest.split_once(' ')) {
            (How::Valgrind, Some(("test", _))) => None,
            (_, Some(("test", rest))) => Some(Kind::Tests(how, rest)),
            (How::Plain | How::Standin | How::Address | How::Valgrind, Some(("program", file))) => {
                Some(Kind::Program(how, file))
            }
            (How::Plain, Some(("xtask", rest))) => Some(Kind::Xtask(rest)),
            #[cfg(test)]
            (How::Plain, Some(("check", file))) => Some(Kind::Check(file)),
            _ => None,
        };
        kind.ok_or_else(|| {
            format!("run: {line}; allowed: what targets/xtask/src/test/prove/command.rs lists")
        })
    }
}

impl Command {
    /// Checks that a line is a command.
    #[cfg(test)]
    pub fn check(line: &str) -> Result<(), String> {
        Kind::parse(line).map(|_| ())
    }

    /// Parses the command in `line`, which will run in `tree`, and installs the requirements of the command.
    ///
    /// # Errors
    /// Returns an error if the line is not a command, a tool is missing, or the stand-in driver does not compile.
    pub fn of(tree: &Tree, line: &str) -> Result<Command, String> {
        match Kind::parse(line)? {
            Kind::Tests(how, words) => tests(tree, how, words),
            Kind::Program(how, file) => program(tree, how, file),
            Kind::Xtask(words) => {
                let build = vec![Run::new(tree, "cargo build --package xtask")];
                Ok(Command { build, run: Run::new(tree, "cargo xtask").args(words) })
            }
            #[cfg(test)]
            Kind::Check(file) => {
                let run =
                    Run::new(tree, "sh -c").arg("grep -q good $0 || { echo not good: $(cat $0); false; }");
                Ok(Command { build: Vec::new(), run: run.arg(file) })
            }
        }
    }
}

/// Returns the commands that build tests and then run them.
fn tests(tree: &Tree, how: How, words: &str) -> Result<Command, String> {
    let (targets, which) = words.split_once(" -- ").unwrap_or((words, ""));
    let driver = match how {
        How::Standin => Some(standin::build(tree, Variant::Plain)?),
        _ => None,
    };
    let make = |build: bool, which: &str| -> Result<Run, String> {
        let targets = if build { format!("{targets} --no-run") } else { targets.to_owned() };
        let run = match how {
            How::Aarch64 => {
                let run = arm::cargo(tree, &format!("test --no-fail-fast {} {targets}", arm::PACKAGES))?;
                let run = run.env("ELSA_REQUIRE", "neon").env("ELSA_ONLY", "neon");
                run.env_default("PROPTEST_CASES", "12").arg("--").args(which)
            }
            How::Address => Sanitizer::address(tree)?.test(&targets, which),
            How::Thread => Sanitizer::thread(tree)?.test(&targets, which),
            _ => {
                let run = Run::new(tree, &format!("cargo test --workspace --no-fail-fast {targets}"));
                run.arg("--").args(which)
            }
        };
        Ok(match &driver {
            Some(folder) => with_standin(run, folder),
            None => run,
        })
    };
    // The stand-in requires that tests run one after another.
    let which = match how {
        How::Standin => format!("--include-ignored {which} --test-threads 1"),
        _ => which.to_owned(),
    };
    Ok(Command { build: vec![make(true, "")?], run: make(false, &which)? })
}

/// Returns the commands that build and run the C or C++ program `file`, linked with the library.
fn program(tree: &Tree, how: How, file: &str) -> Result<Command, String> {
    let home = tree.target.join("prove");
    crate::files::folder(&home)?;
    let path = home.join(format!("{file}-{how:?}"));
    let is_c = file.ends_with(".c");
    let (library, archive, compiler) = match how {
        How::Address => {
            setup::program(tree, "clang++-19", "clang-19")?;
            setup::file(tree, "/usr/lib/llvm-19/lib/clang/19/lib", "libclang-rt-19-dev")?;
            let (library, archive) = Sanitizer::address(tree)?.library();
            let flags = "-fsanitize=address,undefined -fno-sanitize-recover=all -DINJECT";
            (library, archive, format!("{} {flags}", if is_c { "clang-19" } else { "clang++-19" }))
        }
        _ => {
            setup::program(tree, "g++", "g++")?;
            let library = Run::new(tree, "cargo build --workspace").args(PRODUCTS);
            let archive = tree.target.join("debug/libelsa.a");
            (library, archive, if is_c { "gcc" } else { "g++" }.to_owned())
        }
    };
    let standard = if is_c { "c99" } else { "c++14" };
    let linked =
        Run::new(tree, &format!("{compiler} -std={standard} {WARNINGS} -g -O1 -I runtime/capi/include -o"));
    let linked = linked.arg(&path).arg(tree.root.join(SOURCES).join(file)).arg(archive).args(BESIDE);
    let run = match how {
        How::Valgrind => {
            setup::program(tree, "valgrind", "valgrind")?;
            Run::new(tree, VALGRIND).arg(path)
        }
        How::Address => Run::new(tree, "").arg(path).env(
            "ASAN_OPTIONS",
            "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:allocator_may_return_null=1",
        ),
        How::Standin => with_standin(Run::new(tree, "").arg(path), &standin::build(tree, Variant::Plain)?),
        _ => Run::new(tree, "").arg(path),
    };
    Ok(Command { build: vec![library, linked], run })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_refused() {
        let kind = |line| Kind::parse(line).unwrap();
        assert_eq!(kind("test --lib"), Kind::Tests(How::Plain, "--lib"));
        assert_eq!(kind("standin test a -- b"), Kind::Tests(How::Standin, "a -- b"));
        assert_eq!(kind("program a.c"), Kind::Program(How::Plain, "a.c"));
        assert_eq!(kind("standin program a.c"), Kind::Program(How::Standin, "a.c"));
        assert_eq!(kind("valgrind program a.c"), Kind::Program(How::Valgrind, "a.c"));
        assert_eq!(kind("xtask test --only abi"), Kind::Xtask("test --only abi"));
        for line in ["", "cargo build", "thread program a.c", "valgrind test a", "rm -r x", "standin xtask a"]
        {
            assert!(Kind::parse(line).unwrap_err().contains("allowed: "), "{line}");
        }
    }
}
