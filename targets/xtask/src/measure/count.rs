//! `cargo xtask count`: counts the instructions that the NEON kernel executes for an attention call on an emulated
//! Cortex-A57, and estimates the speed of this call on a real Cortex-A57.

use crate::setup;
use crate::shell::{Run, Tree};
use std::path::{Path, PathBuf};

/// Counts that the emulator reports for one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub instructions: u64,
    /// Number of vector FMAs with two or four lanes.
    fmas: u64,
    /// Number of loads and stores of any kind.
    memory: u64,
    /// Number of loads and stores of vector registers relative to the stack pointer.
    stack: u64,
    /// Work of the vector operations: an operation on 8 bytes, half a vector, counts as one. The next two fields count
    /// loaded and stored registers.
    vector_halves: u64,
    loads: u64,
    stores: u64,
    /// Number of cache lines that were loaded because they were not in the L1 cache. The next field counts only those
    /// lines that came from memory.
    lines: u64,
    far_lines: u64,
}

/// Highest clock of the TX2's Cortex-A57, in GHz.
const CLOCK: f64 = 2.0;
/// Number of micro-operations that a Cortex-A57 dispatches in a cycle.
const DISPATCHED: f64 = 3.0;
/// Assumed stall in cycles for a cache line from L2, and for a cache line from memory, if no other work hides the
/// stall.
const STALLS: [f64; 2] = [20.0, 200.0];

/// Returns two estimates of the number of cycles of a call: the cycles of the busiest pipe, and the sum of these cycles
/// and the stalls for all cache lines.
fn estimate(call: &Counted) -> [f64; 2] {
    // A load or store of two registers is two micro-operations. All other frequent instructions here are one.
    let moved = call.loads + call.stores;
    let operations = call.instructions + moved.saturating_sub(call.memory);
    let pipes = [
        call.vector_halves as f64 / 2.0,
        call.loads as f64,
        call.stores as f64,
        operations as f64 / DISPATCHED,
    ];
    let busiest = pipes.into_iter().fold(0.0, f64::max);
    let stalls =
        (call.lines - call.far_lines.min(call.lines)) as f64 * STALLS[0] + call.far_lines as f64 * STALLS[1];
    [busiest, busiest + stalls]
}

impl Counted {
    /// Parses the counts of all calls from the log of the emulator's plugin.
    fn all(log: &str) -> Vec<Counted> {
        let call = |line: &str| {
            let numbers: Option<Vec<u64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
            let [instructions, fmas, memory, stack, vector_halves, loads, stores, lines, far_lines] =
                numbers?.try_into().ok()?;
            Some(Counted {
                instructions,
                fmas,
                memory,
                stack,
                vector_halves,
                loads,
                stores,
                lines,
                far_lines,
            })
        };
        log.lines().filter_map(|line| call(line.trim().strip_prefix("counted:")?)).collect()
    }
}

/// Counts the four-lane FMAs that the two products of a shape `heads,tokens,d` need: 4 h n m d operations for n queries
/// and m keys, 8 per FMA. `heads/kv_heads` and `queries:keys` are the forms of the counting program for shapes with
/// shared heads and with few queries. `shape` may end with `,` and the name of a problem or a plan; of a `causal`
/// problem, only the pairs of a query and a key that it attends count, the last query attending all keys.
pub(super) fn useful(shape: &str) -> Result<u64, String> {
    let words: Vec<&str> = shape.split(',').take(3).collect();
    let product = match words.as_slice() {
        &[heads, tokens, d] => {
            let (heads, kv_heads) = heads.split_once('/').unwrap_or((heads, "1"));
            let (queries, keys) = tokens.split_once(':').unwrap_or((tokens, tokens));
            let numbers: Result<Vec<u64>, _> =
                [heads, queries, keys, d].into_iter().map(str::parse).collect();
            match (numbers, kv_heads.parse::<u64>()) {
                (Ok(numbers), Ok(1..)) => {
                    let masked = match numbers.as_slice() {
                        [_, n, m, _] if shape.ends_with(",causal") && n <= m => n * (n - 1) / 2,
                        _ => 0,
                    };
                    let (heads, pairs, d) = (numbers[0], numbers[1].checked_mul(numbers[2]), numbers[3]);
                    let attended = pairs.and_then(|pairs| pairs.checked_sub(masked));
                    attended.and_then(|pairs| pairs.checked_mul(heads)?.checked_mul(d))
                }
                _ => None,
            }
        }
        _ => None,
    };
    product.map(|product| product / 2).filter(|fmas| *fmas > 0).ok_or_else(|| {
        format!(
            "{shape}: allowed: heads[/kv_heads],[queries:]keys,d, each at least 1, with at least one useful FMA"
        )
    })
}

/// Builds `runtime/examples/count.rs` for the boards and returns the path of the program.
fn program(tree: &Tree) -> Result<PathBuf, String> {
    let run = setup::zigbuild(tree, "build --release -p elsa-runtime --example count")?;
    run.arg("--target-dir").arg(&tree.target).run().text("the counting program does not build")?;
    Ok(tree.target.join(setup::reference()?.build.triple).join("release/examples/count"))
}

/// Runs a program in the emulator. `with` adds the program and its arguments. Returns the counts of the calls in the
/// program, and the lines that the program has printed.
pub(super) fn counted(
    tree: &Tree,
    plugin: &Path,
    with: impl FnOnce(Run) -> Run,
) -> Result<(Vec<Counted>, Vec<String>), String> {
    let run = Run::new(tree, &setup::emulator()).arg("-plugin").arg(plugin).args("-d plugin");
    let out = with(run).env("ELSA_BACKEND", "neon").machine().run();
    if !out.ok {
        return Err(format!("the counting program: {} (QEMU must take plugins of interface 1)", out.how));
    }
    Ok((Counted::all(&out.stderr), out.stdout.lines().map(str::to_owned).collect()))
}

/// Runs `cargo xtask count`. Returns the paths of the emulator's plugin and of the counted program.
pub fn run(tree: &Tree, shapes: &[String]) -> Result<(PathBuf, PathBuf), String> {
    let useful = shapes.iter().map(|shape| useful(shape)).collect::<Result<Vec<u64>, String>>()?;
    setup::program(tree, "cc", "gcc")?;
    let program = program(tree)?;
    let plugin = tree.target.join("libcount.so");
    let source = tree.root.join("targets/xtask/qemu/count.c");
    let build = Run::new(tree, "cc -shared -fPIC -O2 -Wall -Wextra -Werror -o").arg(&plugin).arg(source);
    build.run().text("the plugin does not build")?;
    let (calls, kernels) =
        counted(tree, &plugin, |run| shapes.iter().fold(run.arg(&program), |run, shape| run.arg(shape)))?;
    if calls.len() != 2 * shapes.len() || kernels.len() != shapes.len() {
        return Err(format!(
            "{} calls counted of {} shapes; allowed: two of each",
            calls.len(),
            shapes.len()
        ));
    }
    println!(
        "\nh,n,d, kernel, share of blocks left out; instructions of one call; per useful four-lane FMA (4 h n m d / 8 for n queries and m keys); executed FMAs per"
    );
    println!("useful; share of FMAs, of loads and stores; vector loads and stores through the stack pointer");
    for (i, pair) in calls.chunks(2).enumerate() {
        let call = pair[0];
        // Contents of the caches may differ between calls, executed instructions may not.
        let executed = |call: &Counted| Counted { lines: 0, far_lines: 0, ..*call };
        if pair.iter().any(|other| executed(other) != executed(&call)) {
            return Err(format!("{}: two calls differ: {pair:?}", shapes[i]));
        }
        if call.fmas == 0 {
            return Err(format!("{}: no vector FMA was executed", shapes[i]));
        }
        let share = |part: u64, whole: u64| part as f64 / whole as f64;
        println!(
            "{:<50} {:>12} {:>7.3} {:>7.3} {:>5.1}% {:>5.1}% {:>8}",
            kernels[i],
            call.instructions,
            share(call.instructions, useful[i]),
            share(call.fmas, useful[i]),
            100.0 * share(call.fmas, call.instructions),
            100.0 * share(call.memory, call.instructions),
            call.stack
        );
    }
    println!(
        "\nEstimates for one core at {CLOCK} GHz, not measured: cycles of the busiest of the vector pipes, the load pipe,"
    );
    println!(
        "the store pipe and dispatch; cache lines of 64 bytes from L2 and from memory (32 KB in two ways, 2 MB in sixteen,"
    );
    println!(
        "nothing fetched ahead); GFLOP/s (4 h n m d / time) when all of that is hidden, and when each line stalls for {} or {}",
        STALLS[0], STALLS[1]
    );
    println!("cycles.");
    for (i, pair) in calls.chunks(2).enumerate() {
        let [best, worst] = estimate(&pair[1]);
        let rate = |cycles: f64| 8.0 * useful[i] as f64 / cycles * CLOCK;
        println!(
            "{:<12} {best:>12.0} {:>9} {:>7} {:>6.1} {:>6.1}",
            shapes[i],
            pair[1].lines,
            pair[1].far_lines,
            rate(best),
            rate(worst)
        );
    }
    Ok((plugin, program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_and_related_to_the_products() {
        let log = "noise\ncounted: 40 20 10 1 50 12 4 3 1\ncounted: 1 2 3\n";
        let call = Counted {
            instructions: 40,
            fmas: 20,
            memory: 10,
            stack: 1,
            vector_halves: 50,
            loads: 12,
            stores: 4,
            lines: 3,
            far_lines: 1,
        };
        assert_eq!(Counted::all(log), [call]);
        assert_eq!(estimate(&call), [25.0, 25.0 + 2.0 * STALLS[0] + STALLS[1]]);
        // Six loads or stores of register pairs make the dispatch the bottleneck.
        assert_eq!(estimate(&Counted { vector_halves: 2, instructions: 69, ..call })[0], 25.0);
        assert_eq!(useful("2,64,32"), Ok(2 * 64 * 64 * 32 / 2));
        assert_eq!(useful("32/8,1:4096,128,exact"), Ok(32 * 4096 * 128 / 2));
        assert_eq!(useful("3,4:6,32,causal"), Ok(3 * (3 + 4 + 5 + 6) * 32 / 2));
        let bad = [
            "",
            "1,2",
            "1,2,x,4",
            "1,0,64",
            "a,1,1",
            "9999999999,9999999999,9999999999",
            "8/,1,64",
            "8/0,1,64",
        ];
        for bad in [&bad[..], &["8/x,1,64", "8,1:,64", "8,:1,64", "8,1:2:3,64"]].concat() {
            assert!(useful(bad).is_err(), "{bad}");
        }
    }
}
