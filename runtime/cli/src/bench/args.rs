//! The flags of `elsa bench`.

use super::grid::{DIM, GRID};
use super::method::{Algorithm, ELSA, MATH, ROWS};
use super::realtime::RealTimeArgs;
use super::watch::Gate;
use crate::args::values::{dtype, duration, milliseconds, one_of, positive, rate, seconds};
use crate::args::{EngineArgs, TraversalArgs};
use crate::shape::{self, Named, WORKLOADS, Workload};
use clap::Args;
use elsa_board::serial;
use elsa_core::dtype::DType;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Returns the text below the flags.
fn help() -> String {
    let grid = GRID.map(|tokens| tokens.to_string()).join(" ");
    let workloads = WORKLOADS.map(|workload| workload.name).join(" ");
    format!(
        "\
Without --shape and --workload: {grid} tokens at head size {DIM}, in f32 and in f16, each plain, with a
padded boolean mask and with a bias: the grid of Table 6 of the ELSA paper, and more masks.

{}

Workloads, which --shape also takes by name: {workloads}.

Inputs and additive masks are standard normal. math is the same call with the score matrix materialised; packed
sequences have no math. On a GPU the tensors stay in its memory. The cold call copies the tensors and loads the kernels.
rows is a baseline on the CPU, memory-efficient attention without tiles and without a scan: each query row passes once
over its keys, in code for the instructions that every processor of this architecture has. A tool that was built for
size, as in a package, has scalar code there; cargo build --release vectorises it. --method all measures all three, and
a line below each shape compares rows with elsa. For packed sequences on a CPU, another line has the time of one thread
for packing padded tensors and unpacking the output, which no call includes.

Then the methods alternate with a duplicate of the first one, first until the latency shows no trend (30 s at most; then
the cell is marked), then for --seconds. The ratio is the median of math over elsa for each turn, with its quartiles;
the ratio of the two copies is the noise. A ratio is called a difference only if both of its quartiles exceed the noise.
percentile(99%) and the other columns have the names of trtexec. GFLOP/s counts 4 * B * H * NQ * NK * D operations for a
call, including masked pairs, and for packed sequences those of each sequence. rel L2 is the distance from the f64
oracle over all rows, or over an even sample of the rows of large shapes. certified: rel L2 does not exceed the bound
published with ELSA, plus the rounding of the output for f16 and bf16.

A cell is clean if no other load, change of clocks, throttling or heat disturbed it; otherwise its row is marked with *,
and the lines below the table give the reasons. --wait waits until the machine is quiet; a cell for which it waits in
vain is refused, unless --force is given. A row with an error beyond the bound of certified is marked with !.

The table has a row for each shape; its peak memory is the workspace of elsa. --wide prints a row for each method with
all numbers and reasons.

--json prints one object per line; the field what is start, bench, exec, trace or end. In bench objects, n is NK and
shape is the complete shape; what the shape does not define or the board does not report is null. --serial never delays
the benchmark: a port that is too slow or disappears loses records, which both ends count.

--exec CMD ARGS runs any program, such as trtexec or a Python script, and must be the last flag. The program runs even
on a busy machine; --wait first waits. The rows contain its phases, then the whole run; energy is also given without the
energy that the idle machine uses in the same time. The load of others excludes the program's descendants, except
daemons. With --json the program's output goes to standard error, and with --marks - its input is empty. A phase ends
when the next line arrives on the pipe. SIGINT, SIGTERM and SIGHUP go to the program, and the rows are still written. If
the program fails, its exit status is that of the tool, or 128 plus the number of the signal that ended it.

--budget limits each method alone; it excludes the tensors and the oracle. --method both fails if the budget has no room
for one of the two; without --method, math is then left out.

Exit status 4: an answer is wrong, that is, further from the oracle than rounding explains, or --compare or --spot found
something slower. Exit status 5: not every cell is clean.",
        shape::HELP
    )
}

/// Values of `--method`, each with the methods that it selects. Without the flag, each method in [`BOTH`] is measured
/// if it can run.
const METHODS: [(&str, &[Algorithm]); 5] = [
    (ELSA, &[Algorithm::Elsa]),
    (MATH, &[Algorithm::Math]),
    (ROWS, &[Algorithm::Rows]),
    ("both", BOTH),
    ("all", &[Algorithm::Elsa, Algorithm::Math, Algorithm::Rows]),
];

/// The methods of a plan. The first is never skipped.
pub const BOTH: &[Algorithm] = &[Algorithm::Elsa, Algorithm::Math];

/// `elsa bench`.
#[derive(Args, Debug)]
#[command(after_help = help())]
pub struct BenchArgs {
    /// Heads of the default grid; a shape has its own
    #[arg(long, value_name = "H", default_value = "1", allow_negative_numbers = true, value_parser = positive,
        conflicts_with_all = ["shape", "workload"])]
    pub heads: usize,
    /// Element type [default: both f32 and f16 for the default grid, f32 for --shape and --workload]
    #[arg(long, value_parser = dtype())]
    pub dtype: Option<DType>,
    /// Shape to measure instead of the default grid; may be repeated
    #[arg(long, value_name = shape::VALUE, allow_negative_numbers = true)]
    pub shape: Vec<Named>,
    /// Model whose shapes are measured; may be repeated
    #[arg(long, value_name = "NAME")]
    pub workload: Vec<Workload>,
    /// Methods to measure; both is elsa and math [default: both, if the device and the budget allow it]
    #[arg(long, value_parser = one_of(METHODS))]
    pub method: Option<&'static [Algorithm]>,
    /// Time for each shape, excluding the warm-up; --spot takes half of it
    #[arg(long, value_name = "X", default_value = "1", allow_negative_numbers = true, value_parser = seconds)]
    pub seconds: f64,
    /// Minimum warm-up in milliseconds, as in trtexec [default: until the latency shows no trend]
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = milliseconds)]
    pub warmup: Option<Duration>,
    /// Minimum number of measured calls of each method, as in trtexec
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = positive)]
    pub iterations: Option<usize>,
    /// Gate against busy machines.
    #[command(flatten)]
    pub gate: Gate,
    /// Print a row for each method, with all numbers; more than 200 columns
    #[arg(long, conflicts_with = "json")]
    pub wide: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Write a table of all cells
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a page with curves, power, temperature and machine description
    #[arg(long, value_name = "FILE.html")]
    pub html: Option<PathBuf>,
    /// Write the time of every call as JSON, with the names of trtexec --exportTimes
    #[arg(long, value_name = "FILE")]
    pub export: Option<PathBuf>,
    /// Save the table and the machine description, named by date and host, unless no cell is clean [default folder:
    /// targets/BOARD/bench of a checkout]
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    pub save: Option<Option<PathBuf>>,
    /// Send every record through a serial port during the benchmark, for elsa listen
    #[arg(long, value_name = serial::VALUE)]
    pub serial: Option<String>,
    /// Measure nothing; report changes from the first table to the second that exceed the noise of both
    #[arg(long, value_names = ["A.csv", "B.csv"], num_args = 2,
        conflicts_with_all = ["shape", "workload", "csv", "html", "export", "save", "serial", "soak", "spot", "wide"])]
    pub compare: Option<Vec<PathBuf>>,
    /// Run the first shape at a fixed rate for this time, such as 90s, 10m or 2h, and report how its latency drifts
    #[arg(long, value_name = "TIME", value_parser = duration,
        conflicts_with_all = ["export", "spot"])]
    pub soak: Option<Duration>,
    /// Calls per second of --soak
    #[arg(long, value_name = "HZ", default_value = "30", allow_negative_numbers = true, value_parser = rate,
        requires = "soak")]
    pub rate: f64,
    /// Real time.
    #[command(flatten)]
    pub real_time: RealTimeArgs,
    /// Check 16 points, 2 of correctness and 14 of speed, against the last table that --save stored for this board in
    /// DIR [default folder: targets/BOARD/bench]
    #[arg(long, value_name = "DIR", num_args = 0..=1,
        conflicts_with_all = ["shape", "workload", "dtype", "method", "heads", "csv", "html", "export", "save"])]
    pub spot: Option<Option<PathBuf>>,
    /// Measure a program instead: power, energy, temperature, clocks, throttling and load while it runs. The rest of
    /// the line is the program and its arguments
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true,
        conflicts_with_all = ["shape", "workload", "dtype", "method", "heads", "seconds", "warmup", "iterations",
            "export", "save", "compare", "soak", "spot", "backend", "device", "threads", "budget", "block", "tuned",
            "error_budget", "schedule"])]
    pub exec: Option<Vec<OsString>>,
    /// Named pipe from which --exec reads the names of phases, one on each line; - is standard input. The pipe is made
    /// if it does not exist
    #[arg(long, value_name = "PIPE", requires = "exec")]
    pub marks: Option<PathBuf>,
    /// Engine.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Traversal of the keys.
    #[command(flatten)]
    pub traversal: TraversalArgs,
}
