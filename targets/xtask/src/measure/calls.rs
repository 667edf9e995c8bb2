//! Counts the instructions of calls through the C interface of the shipped library, as a part of `cargo xtask count`.

use super::count::counted;
use crate::boards::build;
use crate::boards::target::Target;
use crate::setup;
use crate::shell::{Run, Tree};
use std::path::Path;

/// The shape of the counted calls, for `runtime/examples/count.rs`: one head, one query, one key, head size 64. The program
/// in C has the same shape.
const SHAPE: &str = "1,1,64";
/// The ways in which the program in C makes the call, in its order.
const WAYS: [&str; 3] = ["elsa_bound_run", "elsa_bound_set and elsa_bound_run", "elsa_run"];

/// Returns the instructions of each of `ways` calls from those of all counted calls: each call has been counted twice.
fn each(counted: &[u64], ways: usize) -> Result<Vec<u64>, String> {
    let pairs = counted.chunks(2).map(|pair| match pair {
        [a, b] if a == b => Ok(*a),
        _ => Err(format!("two calls differ: {pair:?}")),
    });
    let found = pairs.collect::<Result<Vec<u64>, String>>()?;
    if found.len() == ways {
        Ok(found)
    } else {
        Err(format!("{} calls counted; allowed: {ways}", found.len()))
    }
}

/// Builds the shipped library of the reference board, and counts its calls. `rust` is the program that makes the same
/// call in Rust.
pub fn run(tree: &Tree, plugin: &Path, rust: &Path) -> Result<(), String> {
    let board = setup::reference()?;
    let library = build::libraries(tree, &Target::named(tree, &board.name)?)?;
    let program = tree.target.join("count-calls");
    let python = setup::zig(tree)?.join("python");
    let compile = Run::new(tree, "").arg(python).args("-m ziglang cc -O2 -Wall -Wextra -Werror -target");
    let compile =
        compile.arg(board.build.zig_platform()).arg("-I").arg(tree.root.join("runtime/capi/include"));
    let compile = compile.arg("-o").arg(&program).arg(tree.root.join("targets/xtask/qemu/call.c"));
    let compile = compile.arg("-L").arg(&library).args("-lelsa -lm -Wl,-z,now");
    compile.run().text("the program in C does not build")?;
    let instructions = |with: &dyn Fn(Run) -> Run, ways| {
        let (calls, _) = counted(tree, plugin, with)?;
        each(&calls.iter().map(|call| call.instructions).collect::<Vec<u64>>(), ways)
    };
    let in_rust = instructions(&|run| run.arg(rust).arg(SHAPE), 1)?;
    let path = format!("LD_LIBRARY_PATH={}", library.display());
    let in_c = instructions(&|run| run.arg("-E").arg(&path).arg(&program), WAYS.len())?;
    println!(
        "\nInstructions of a call with one head, one query, one key and d = 64; through C in the shipped library:"
    );
    println!("{:<36} {:>7}", "Rust, a bound plan", in_rust[0]);
    for (way, instructions) in WAYS.iter().zip(in_c) {
        println!("{:<36} {instructions:>7}", format!("C, {way}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_twice_and_must_agree() {
        assert_eq!(each(&[7, 7, 9, 9], 2), Ok(vec![7, 9]));
        assert!(each(&[7, 8], 1).is_err_and(|fault| fault.contains("differ")));
        assert!(each(&[7, 7, 7], 2).is_err());
        assert!(each(&[7, 7], 2).is_err_and(|fault| fault.contains("1 calls")));
    }
}
