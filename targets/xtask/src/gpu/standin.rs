//! Builds the stand-in driver of `tests/standin`: a `libcuda.so.1` with the device sources compiled for this machine or a
//! board.

use super::ptx::{EXAMPLE, SOURCES as KERNELS};
use crate::files;
use crate::setup;
use crate::shell::{Run, Tree, side_by_side};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Ways to build the stand-in driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Variant {
    /// No sanitizer. Each GPU thread of a block has a stack, and one thread of the process switches between the stacks.
    Plain,
    /// Instrumented with AddressSanitizer.
    Address,
    /// Instrumented with ThreadSanitizer.
    Thread,
    /// Built without a sanitizer for the processor of the boards.
    Board,
}

impl Variant {
    /// Returns the name of the build folder, which is also the compiler's name of a sanitizer.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Plain => "plain",
            Variant::Address => "address",
            Variant::Thread => "thread",
            Variant::Board => "board",
        }
    }

    fn flags(self) -> &'static str {
        match self {
            Variant::Plain => "-O2 -march=native",
            Variant::Board => "-O2 --target=aarch64-linux-gnu",
            // With the default of this check, frames on the heap would be mapped for each lane of each block.
            Variant::Address => {
                "-O1 -g1 -march=native -DSTANDIN_ADDRESS -fsanitize=address \
                 -fsanitize-address-use-after-return=never"
            }
            Variant::Thread => "-O1 -g1 -march=native -DSTANDIN_THREAD -fsanitize=thread",
        }
    }
}

const SOURCES: &str = "tests/standin";

/// Names of the programs that are built into the library's folder, each from one source file. `true` marks programs
/// that run thread blocks.
const PROGRAMS: [(&str, bool); 2] = [("states", false), ("diverging", true)];

/// Returns the time of the latest write to any of `paths`; `None` if one of them is missing.
fn youngest(paths: &[PathBuf]) -> Option<SystemTime> {
    let times: Option<Vec<SystemTime>> =
        paths.iter().map(|path| path.metadata().and_then(|data| data.modified()).ok()).collect();
    times.and_then(|times| times.into_iter().max())
}

/// Builds all outdated files. Returns the folder that contains `libcuda.so.1` and [`PROGRAMS`].
///
/// # Errors
/// Returns an error if the compiler is missing, or if the sources do not compile.
pub fn build(tree: &Tree, variant: Variant) -> Result<PathBuf, String> {
    setup::program(tree, "clang++-19", "clang-19")?;
    match variant {
        Variant::Plain => setup::program(tree, "g++", "g++")?,
        Variant::Board => setup::program(tree, "aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")?,
        Variant::Address | Variant::Thread => {
            setup::program(tree, "g++", "g++")?;
            setup::file(tree, "/usr/lib/llvm-19/lib/clang/19/lib", "libclang-rt-19-dev")?;
        }
    }
    let out = tree.target.join("standin").join(variant.name());
    files::folder(&out)?;
    let (sources, cuda) = (tree.root.join(SOURCES), tree.root.join(KERNELS));
    let mut kernels = files::below(&cuda, &["cu"])?;
    if kernels.is_empty() {
        return Err(format!("{}: no kernels", cuda.display()));
    }
    kernels.extend(files::below(&tree.root.join(EXAMPLE), &["cu"])?);
    let mut headers = files::below(&cuda, &["cuh"])?;
    headers.extend(files::below(&tree.root.join(EXAMPLE), &["cuh"])?);
    headers.extend(files::below(&sources, &["h"])?);
    headers.push(std::env::current_exe().map_err(|error| error.to_string())?);

    // For a processor with AVX10, `-march=native` names two sizes of vectors, and clang 19 warns that it uses the larger.
    let common = format!(
        "-std=c++20 {} -ffp-contract=fast -fno-fast-math -Wall -Wextra -Werror \
         -Wno-invalid-feature-combination -fPIC -fvisibility=hidden -DELSA_HOST -I {KERNELS} -I {SOURCES} -I .",
        variant.flags()
    );
    // Compiles an outdated object. Returns whether it compiled anything.
    let compile = |source: &Path, object: &Path, kernel: Option<&Path>| -> Result<bool, String> {
        let mut inputs = headers.clone();
        inputs.push(source.to_owned());
        inputs.extend(kernel.map(Path::to_owned));
        let stale = youngest(&[object.to_owned()]) < youngest(&inputs) || !object.exists();
        if stale {
            let mut run = Run::new(tree, "clang++-19 -x c++ -c").args(&common);
            if let Some(kernel) = kernel {
                // The path is relative, so that messages contain paths of the project.
                let source = kernel.strip_prefix(&cuda).or_else(|_| kernel.strip_prefix(&tree.root));
                let source = source.unwrap_or(kernel).display();
                let name = kernel.file_stem().unwrap_or_default().to_string_lossy();
                run = run.arg(format!("-DSOURCE=\"{source}\"")).arg(format!("-DENTRY={name}"));
            }
            // The code that switches lanes is compiled without checks for races; it reports each switch to the
            // sanitizer.
            let own = if source.ends_with("block.cpp") && variant == Variant::Thread {
                "-fno-sanitize=thread"
            } else {
                ""
            };
            let run = run.args(own).arg(source).arg("-o").arg(object).quiet();
            let line = run.line();
            let done = run.run();
            if !done.ok {
                return Err(format!("$ {line}\n{}", done.stderr));
            }
        }
        Ok(stale)
    };
    let mut jobs: Vec<(PathBuf, PathBuf, Option<&Path>)> = Vec::new();
    for name in ["driver", "block"] {
        jobs.push((sources.join(format!("{name}.cpp")), out.join(format!("{name}.o")), None));
    }
    for kernel in &kernels {
        let name = kernel.file_stem().unwrap_or_default().to_string_lossy();
        jobs.push((sources.join("instance.cpp"), out.join(format!("kernel_{name}.o")), Some(kernel)));
    }
    let objects: Vec<PathBuf> = jobs.iter().map(|(_, object, _)| object.clone()).collect();
    let mut made = 0;
    for compiled in side_by_side(jobs, |(source, object, kernel)| compile(&source, &object, kernel)) {
        made += usize::from(compiled?);
    }
    let library = out.join("libcuda.so.1");
    if made > 0 || !library.exists() || youngest(std::slice::from_ref(&library)) < youngest(&objects) {
        let of_variant = match variant {
            Variant::Plain => String::new(),
            Variant::Board => "--target=aarch64-linux-gnu".to_owned(),
            Variant::Address | Variant::Thread => format!("-fsanitize={}", variant.name()),
        };
        let link = Run::new(tree, "clang++-19 -shared -static-libstdc++ -static-libgcc -pthread")
            .args("-Wl,-soname,libcuda.so.1 -Wl,--exclude-libs,ALL -Wl,-z,nodelete")
            .arg(format!("-Wl,--version-script={SOURCES}/exports.map"))
            .args(&of_variant)
            .arg("-o")
            .arg(&library);
        let link = objects.iter().fold(link, |link, object| link.arg(object)).quiet();
        let line = link.line();
        let done = link.run();
        if !done.ok {
            return Err(format!("$ {line}\n{}", done.stderr));
        }
    }
    for (name, blocks) in PROGRAMS.into_iter().filter(|_| variant != Variant::Board) {
        // The source path is relative, so that the messages of the program contain paths of the project.
        let (program, source) = (out.join(name), format!("{SOURCES}/{name}.cpp"));
        let mut inputs = vec![tree.root.join(&source)];
        inputs.extend(blocks.then(|| out.join("block.o")));
        let stale =
            youngest(std::slice::from_ref(&program)) < youngest(&[&headers[..], &inputs[..]].concat());
        if stale || !program.exists() {
            let run = Run::new(tree, "clang++-19 -pthread").args(&common).arg("-o").arg(&program);
            let run = inputs[1..].iter().fold(run.arg(&source), |run, object| run.arg(object));
            let done = run.quiet().run();
            if !done.ok {
                return Err(format!("{source}: {}\n{}", done.how, done.stderr));
            }
        }
    }
    println!("{}: {} kernels, {made} objects made", library.display(), kernels.len());
    Ok(out)
}
