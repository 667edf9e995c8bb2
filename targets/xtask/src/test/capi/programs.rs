//! Compiles the programs of `tests/capi` without warnings, links and runs them, and counts their checks.

use super::super::cargo::with_standin;
use crate::c_programs::FOREIGN;
pub use crate::c_programs::{BESIDE, SOURCES, WARNINGS};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Command of valgrind. Memory errors are failures. If no pointer to allocated memory exists when the program ends,
/// this is a failure too. Threads take turns, so that a spinning thread does not block the others.
pub const VALGRIND: &str = "valgrind --quiet --fair-sched=yes --error-exitcode=9 --errors-for-leak-kinds=definite \
     --leak-check=full --suppressions=tests/capi/valgrind.supp";

/// The program that the stage `host` runs under valgrind: it reads every byte of memory that the library allocates.
pub const READS_MEMORY: &str = "buffers.c";
/// Programs that do not run under valgrind, each with the reason.
const NOT_UNDER_VALGRIND: [(&str, &str); 3] = [
    ("fork.c", "the threads of a parent do not exist in its children, where their memory counts as lost"),
    ("realtime.c", "it replaces the allocator, as valgrind does"),
    ("stack.c", "it measures the stack, which valgrind uses too"),
];
/// Flag for programs that run under valgrind: long programs then do less.
const SHORTER: &str = "-DSLOW";

/// Programs of `tests/capi`, each with the compiler flags of a variant; a program without variants has no flags.
pub const PROGRAMS: [(&str, &str); 42] = [
    ("plain.c", ""),
    ("buffers.c", ""),
    ("fixed_cache.c", ""),
    ("growing_cache.c", ""),
    ("concurrency.c", ""),
    ("sizes.c", ""),
    ("floats.c", ""),
    ("bound.c", ""),
    ("fork.c", ""),
    ("gradients.c", ""),
    ("gradients_task.c", ""),
    ("gradients.cpp", ""),
    ("gradients.cpp", "-DELSA_THROW"),
    ("left_out.c", ""),
    ("linear.c", ""),
    ("linear.cpp", ""),
    ("linear.cpp", "-DELSA_THROW"),
    ("logs.c", ""),
    ("misuse.c", ""),
    ("options.c", ""),
    ("options.cpp", ""),
    ("options.cpp", "-DELSA_THROW"),
    ("realtime.c", ""),
    ("series.c", ""),
    ("series.cpp", ""),
    ("series.cpp", "-DELSA_THROW"),
    ("stack.c", ""),
    ("stream.c", ""),
    ("stream_ends.c", ""),
    ("stream_resume.c", ""),
    ("stream.cpp", ""),
    ("stream.cpp", "-DELSA_THROW"),
    ("task.c", ""),
    ("task_files.c", ""),
    ("task.cpp", ""),
    ("task.cpp", "-DELSA_THROW"),
    ("typed.cpp", ""),
    ("typed.cpp", "-DELSA_THROW"),
    ("whole.cpp", ""),
    ("whole.cpp", "-DELSA_THROW"),
    ("whole.cpp", "-fno-exceptions -fno-rtti"),
    ("windows.cpp", ""),
];
/// Programs that run on the stand-in driver. Each is listed with the faults that the driver provokes, and with the
/// device that the driver simulates.
const ON_A_GPU: [(&str, &str, &str); 33] = [
    ("adaptors.cpp", "", ""),
    ("adaptors_later.cpp", "", ""),
    ("device.c", "", ""),
    ("device.c", "", "discrete"),
    ("buffers.c", "", ""),
    ("buffers.c", "", "discrete"),
    ("buffers.c", "cuLaunchKernel:1:700", ""),
    ("buffers.c", "cuLaunchKernel:1:700", "discrete"),
    ("buffers.c", "cuMemHostAlloc:1+:2", ""),
    ("copies.c", "", ""),
    ("graph.c", "", ""),
    ("growing_cache.c", "", ""),
    ("growing_cache.c", "cuLaunchKernel:1:700", ""),
    ("plain.c", "", ""),
    ("plain.c", "cuLaunchKernel:1:700", ""),
    ("bound.c", "", ""),
    ("bound.c", "", "discrete"),
    ("fork.c", "", ""),
    ("fork.c", "cuLaunchKernel:1:700", ""),
    ("linear.c", "", ""),
    ("linear.c", "cuLaunchKernel:1:700", ""),
    ("linear_device.c", "", ""),
    ("linear_device.c", "", "discrete"),
    ("series_device.c", "", ""),
    ("stream.cpp", "", ""),
    ("stream_device.c", "", ""),
    ("stream_device.c", "", "discrete"),
    ("logs.c", "", ""),
    ("logs.c", "cuLaunchKernel:1:700", ""),
    ("options.c", "", "tensor"),
    ("options.cpp", "", "tensor"),
    ("windows.cpp", "", ""),
    ("windows.cpp", "cuLaunchKernel:1:700", "discrete"),
];

/// A C99 compiler and a C++14 compiler.
pub struct Compilers {
    /// Command of the C compiler.
    pub c: String,
    /// Command of the C++ compiler.
    pub cpp: String,
    /// Flags that choose the linker; empty for the system's.
    linker: String,
}

impl Compilers {
    /// Returns compilers by their commands, with the system's linker.
    pub fn of(c: &str, cpp: &str) -> Compilers {
        Compilers { c: c.to_owned(), cpp: cpp.to_owned(), linker: String::new() }
    }

    /// Returns the GNU compilers.
    pub fn gcc() -> Compilers {
        Compilers::of("gcc", "g++")
    }

    /// Returns the LLVM compilers.
    pub fn clang() -> Compilers {
        Compilers::of("clang-19", "clang++-19")
    }

    /// Returns the same compilers with the linker of the Rust toolchain, if it has one. It links a library of many
    /// megabytes, as those with debug information are, several times as fast as the system's.
    pub fn linked_fast(self, tree: &Tree) -> Compilers {
        Compilers { linker: setup::linker(tree), ..self }
    }

    /// Installs the tools that compile for the boards and that emulate them. Returns the commands of the compilers.
    pub fn boards(tree: &Tree) -> Result<Compilers, String> {
        setup::board(tree)?;
        let python = setup::zig(tree)?.join("python");
        let build = setup::reference()?.build;
        let zig = |language: &str| {
            format!(
                "{} -m ziglang {language} -target {}-linux-gnu.{}",
                python.display(),
                build.machine,
                build.glibc
            )
        };
        Ok(Compilers::of(&zig("cc"), &zig("c++")))
    }

    /// Compiles and links a source file with the headers in a folder. Returns whether this succeeded.
    pub fn compile(
        &self,
        tree: &Tree,
        source: &Path,
        include: &Path,
        link: &str,
        program: &Path,
    ) -> Compiled {
        let is_c = source.extension().is_some_and(|extension| extension == "c");
        let (compiler, standard) = if is_c { (&self.c, "c99") } else { (&self.cpp, "c++14") };
        let run = Run::new(tree, compiler)
            .args(&format!("-std={standard} {WARNINGS} -I{FOREIGN} -I"))
            .arg(include)
            .arg("-o")
            .arg(program)
            .arg(tree.root.join(SOURCES).join(source))
            .args(&self.linker)
            .args(link);
        let line = run.line();
        Compiled { ok: run.whole().run().ok, line }
    }
}

/// Result of a compilation.
pub struct Compiled {
    /// `true` if the compilation succeeded.
    pub ok: bool,
    line: String,
}

impl Compiled {
    /// Counts the compilation as a check, and returns whether it succeeded.
    pub fn count(self, ran: &mut Ran) -> bool {
        ran.add(&self.line, self.ok, u64::from(self.ok), u64::from(!self.ok));
        self.ok
    }
}

/// Runs a program that prints the number of its checks at the end, and counts these checks.
pub fn checks(ran: &mut Ran, what: &str, run: Run) {
    let line = run.line();
    // Under valgrind, on a busy machine, the longest program takes more than five minutes. A program that exceeds this limit
    // has hung.
    let out = run.limit(Duration::from_secs(900)).whole().run();
    let count = out.stdout.lines().last().and_then(|last| last.strip_suffix(" checks")?.parse::<u64>().ok());
    let good = out.ok && count.is_some_and(|n| n > 0);
    ran.add(&format!("{what}: {line}"), good, if good { count.unwrap_or(0) } else { 0 }, u64::from(!good));
}

/// Builds and runs those programs in [`PROGRAMS`] for whose source and flags `choose` returns `true`. One of them calls the
/// tool of `dist`.
pub fn chosen(
    tree: &Tree,
    ran: &mut Ran,
    compilers: &Compilers,
    dist: &Path,
    home: &Path,
    choose: impl Fn(&str, &str) -> bool,
) {
    // Starts with the last programs: they are written in C++, which takes longest.
    let programs = PROGRAMS.iter().rev().filter(|(source, flags)| choose(source, flags));
    ran.each(programs.collect(), |ran, (source, flags)| {
        if let Some(program) = compiled(tree, ran, compilers, (source, flags), dist, home) {
            checks(ran, source, Run::new(tree, "").arg(program).env("ELSA_TOOL", dist.join("bin/elsa")));
        }
    });
}

/// Returns the output folder for compiled programs of a stage.
pub fn home(tree: &Tree, name: &str) -> Result<PathBuf, String> {
    let home = tree.target.join("capi").join(name);
    crate::files::folder(&home).map(|()| home)
}

/// Compiles a program of `tests/capi`, linked with the static library of `dist`, and returns its path; `None` on failure.
fn compiled(
    tree: &Tree,
    ran: &mut Ran,
    compilers: &Compilers,
    (source, flags): (&str, &str),
    dist: &Path,
    home: &Path,
) -> Option<PathBuf> {
    let program = home.join(format!("{source}{flags}"));
    let link = format!("-O1 {flags} {} {BESIDE}", dist.join("lib/libelsa.a").display());
    let compiled = compilers.compile(tree, Path::new(source), &dist.join("include"), &link, &program);
    compiled.count(ran).then_some(program)
}

/// Builds the C programs of [`PROGRAMS`] for whose source `choose` returns `true`, except [`NOT_UNDER_VALGRIND`], and runs
/// them under valgrind.
pub fn under_valgrind(
    tree: &Tree,
    ran: &mut Ran,
    compilers: &Compilers,
    dist: &Path,
    home: &Path,
    choose: impl Fn(&str) -> bool,
) {
    let excluded = |source: &str| NOT_UNDER_VALGRIND.iter().any(|(of, _)| *of == source);
    let sources = PROGRAMS.iter().map(|(source, _)| *source).filter(|source| source.ends_with(".c"));
    ran.each(sources.filter(|source| choose(source) && !excluded(source)).collect(), |ran, source| {
        if let Some(program) = compiled(tree, ran, compilers, (source, SHORTER), dist, home) {
            checks(ran, &format!("{source} under valgrind"), Run::new(tree, VALGRIND).arg(program));
        }
    });
}

/// Runs the programs of [`ON_A_GPU`] on the stand-in driver in the folder `driver`.
pub fn through_the_standin(tree: &Tree, ran: &mut Ran, dist: &Path, driver: &Path, home: &Path) {
    let compilers = Compilers::gcc().linked_fast(tree);
    let sources: BTreeSet<&str> = ON_A_GPU.iter().map(|(source, ..)| *source).collect();
    ran.each(sources.into_iter().collect(), |ran, source| {
        // A program of [`PROGRAMS`] has already been built.
        let made = PROGRAMS.contains(&(source, "")).then(|| home.join(source));
        let made = made.or_else(|| compiled(tree, ran, &compilers, (source, ""), dist, home));
        let Some(program) = made else { return };
        for (_, fault, device) in ON_A_GPU.iter().filter(|(of, ..)| *of == source) {
            let run = with_standin(Run::new(tree, "").arg(&program), driver);
            let run = run.env("ELSA_STANDIN_FAIL", fault).env("ELSA_STANDIN_DEVICE", device);
            checks(ran, &format!("{source} through the stand-in driver"), run);
        }
    });
}
