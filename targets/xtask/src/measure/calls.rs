//! Counts the instructions of calls through the C interface of the shipped library, as a part of `cargo xtask count`.

use super::count::{Counted, counted, useful};
use crate::boards::build;
use crate::boards::target::Target;
use crate::setup;
use crate::shell::{Run, Tree};
use std::path::{Path, PathBuf};

/// The shape of the counted calls, for `runtime/examples/count.rs`: one head, one query, one key, head size 64. The program
/// in C has the same shape.
const SHAPE: &str = "1,1,64";
/// The ways in which the program in C makes the call, in its order.
const WAYS: [&str; 3] = ["elsa_bound_run", "elsa_bound_set and elsa_bound_run", "elsa_run"];

/// Returns the instructions of each of `ways` calls from those of all counted calls: each call has been counted twice. The
/// smaller count is returned if both differ by at most `differing` of it.
fn each(counted: &[u64], ways: usize, differing: f64) -> Result<Vec<u64>, String> {
    let pairs = counted.chunks(2).map(|pair| match pair {
        &[a, b] if a.abs_diff(b) as f64 <= differing * a.min(b) as f64 => Ok(a.min(b)),
        _ => Err(format!("two calls differ: {pair:?}")),
    });
    let found = pairs.collect::<Result<Vec<u64>, String>>()?;
    if found.len() == ways {
        Ok(found)
    } else {
        Err(format!("{} calls counted; allowed: {ways}", found.len()))
    }
}

/// Shapes that are counted through C, for `targets/xtask/qemu/shapes.c`. ONNX Runtime computes those of attention, too.
const SHAPES: [&str; 10] = [
    "1,64,64",
    "1,196,64",
    "12,197,64",
    "8,1024,64",
    "8,512,128",
    "192,49,32,windows",
    "12,197,64,causal",
    "32/8,1:4096,128",
    "8,1:4096,64",
    "linear,1,256,64",
];

/// Largest difference of two calls of ONNX Runtime, which allocates and tunes itself, relative to the smaller count.
const DIFFERING: f64 = 0.02;

/// The shipped library of the reference board, and what builds and runs programs in C that call it.
struct Shipped<'a> {
    tree: &'a Tree,
    plugin: &'a Path,
    library: PathBuf,
}

impl Shipped<'_> {
    /// Builds a program in C of `targets/xtask/qemu`, runs it with `arguments`, and returns the instructions of its
    /// calls.
    fn count(&self, name: &str, arguments: &[&str], calls: usize) -> Result<Vec<u64>, String> {
        let Shipped { tree, library, .. } = self;
        let program = tree.target.join(format!("count-{name}"));
        let compile =
            setup::compiler(tree, Some(&setup::reference()?.build))?.args("-O2 -Wall -Wextra -Werror");
        let compile = compile.arg("-I").arg(tree.root.join("runtime/capi/include")).arg("-o").arg(&program);
        let compile = compile.arg(tree.root.join("targets/xtask/qemu").join(format!("{name}.c")));
        let compile = compile.arg("-L").arg(library).args("-lelsa -lm -Wl,-z,now");
        compile.run().text("the program in C does not build")?;
        let path = format!("LD_LIBRARY_PATH={}", library.display());
        instructions(tree, self.plugin, calls, |run| {
            arguments.iter().fold(run.arg("-E").arg(&path).arg(&program), |run, argument| run.arg(argument))
        })
    }
}

/// Returns the instructions of every counted call.
fn numbers(counted: &[Counted]) -> Vec<u64> {
    counted.iter().map(|call| call.instructions).collect()
}

/// Returns the instructions of `calls` calls of the program that `with` adds to the emulator, as [`each`].
fn instructions(
    tree: &Tree,
    plugin: &Path,
    calls: usize,
    with: impl FnOnce(Run) -> Run,
) -> Result<Vec<u64>, String> {
    let (found, _) = counted(tree, plugin, with)?;
    each(&numbers(&found), calls, 0.0)
}

/// Returns the instructions of the operator `Attention` of the newest ONNX Runtime for each of `shapes`. The instructions
/// of a session without attention are subtracted.
fn onnxruntime(tree: &Tree, plugin: &Path, shapes: &[&str]) -> Result<(String, Vec<u64>), String> {
    let newest = *setup::ort::ENDS.last().ok_or("no version of ONNX Runtime")?;
    let runtimes = setup::ort::runtimes(tree, &[newest])?;
    let runtime = runtimes.first().ok_or("no ONNX Runtime")?;
    let folder = tree.target.join("count-models");
    let models = Run::new(tree, "").arg(setup::ort::newest(tree)?).arg("-B");
    let models = models.arg(tree.root.join("targets/xtask/src/measure/count_models.py")).arg(&folder);
    shapes.iter().fold(models, |run, shape| run.arg(shape)).run().text("count_models.py")?;
    let build = setup::zigbuild(tree, "build --release -p elsa-onnxruntime --example count")?;
    build.arg("--target-dir").arg(&tree.target).run().text("the counting program does not build")?;
    let program = tree.target.join(setup::reference()?.build.triple).join("release/examples/count");
    let root = setup::ort::board_root(tree)?;
    let (calls, versions) = counted(tree, plugin, |run| {
        let run = run.arg("-L").arg(&root).arg(&program).arg(&runtime.board);
        (0..=shapes.len()).fold(run, |run, number| run.arg(folder.join(format!("{number}.onnx"))))
    })?;
    let found = each(&numbers(&calls), 1 + shapes.len(), DIFFERING)?;
    let (session, found) = found.split_first().ok_or("no session was counted")?;
    let version = versions.into_iter().next().unwrap_or_default();
    Ok((version, found.iter().map(|call| call.saturating_sub(*session)).collect()))
}

/// Builds the shipped library of the reference board, and counts its calls. `rust` is a program that makes the shortest
/// call in Rust. Also counts calls of [`SHAPES`], and those of ONNX Runtime.
pub fn run(tree: &Tree, plugin: &Path, rust: &Path) -> Result<(), String> {
    let library = build::libraries(tree, &Target::named(tree, &setup::reference()?.name)?)?;
    let shipped = Shipped { tree, plugin, library };
    let in_rust = instructions(tree, plugin, 1, |run| run.arg(rust).arg(SHAPE))?;
    let in_c = shipped.count("call", &[], WAYS.len())?;
    println!(
        "\nInstructions of a call with one head, one query, one key and d = 64; through C in the shipped library:"
    );
    println!("{:<36} {:>7}", "Rust, a bound plan", in_rust[0]);
    for (way, instructions) in WAYS.iter().zip(in_c) {
        println!("{:<36} {instructions:>7}", format!("C, {way}"));
    }

    let through_c = shipped.count("shapes", &SHAPES, SHAPES.len())?;
    let attention: Vec<&str> = SHAPES.into_iter().filter(|shape| !shape.starts_with("linear")).collect();
    let (version, theirs) = onnxruntime(tree, plugin, &attention)?;
    println!(
        "\nInstructions of a bound call through C in the shipped library, per useful four-lane FMA of attention and"
    );
    println!(
        "per token and head of linear attention, and those of the operator Attention of ONNX Runtime {version}:"
    );
    println!(
        "{:<20} {:>12} {:>8} {:>14} {:>8} {:>6}",
        "h,n,d", "elsa", "per FMA", "ONNX Runtime", "per FMA", "ratio"
    );
    let mut theirs = theirs.into_iter();
    for (shape, ours) in SHAPES.iter().zip(through_c) {
        let work = useful(shape.strip_prefix("linear,").unwrap_or(shape))? as f64;
        if let Some(problem) = shape.strip_prefix("linear,") {
            let sizes: Vec<f64> = problem.split(',').filter_map(|size| size.parse().ok()).collect();
            println!("{shape:<20} {ours:>12} {:>8.0}", ours as f64 / (sizes[0] * sizes[1]));
            continue;
        }
        let other = theirs.next().ok_or("ONNX Runtime: a shape is missing")?;
        println!(
            "{shape:<20} {ours:>12} {:>8.3} {other:>14} {:>8.3} {:>6.2}",
            ours as f64 / work,
            other as f64 / work,
            other as f64 / ours as f64
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_twice_and_must_agree() {
        assert_eq!(each(&[7, 7, 9, 9], 2, 0.0), Ok(vec![7, 9]));
        assert!(each(&[7, 8], 1, 0.0).is_err_and(|fault| fault.contains("differ")));
        assert_eq!(each(&[1010, 1000], 1, 0.01), Ok(vec![1000]));
        assert!(each(&[1011, 1000], 1, 0.01).is_err());
        assert!(each(&[7, 7, 7], 2, 0.0).is_err());
        assert!(each(&[7, 7], 2, 0.0).is_err_and(|fault| fault.contains("1 calls")));
    }
}
