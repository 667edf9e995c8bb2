//! `elsa-lab predict`: predicts latencies on a board that is not available, and compares them with the paper's
//! measurements.
//!
//! | module | content |
//! |---|---|
//! | `latency` | the time of a plan, from counts of instructions |
//! | `costs` | these counts for each kernel, generated from the kernels' machine code |
//! | `forecast` | the plan of a call, and its time |
//! | `linear` | the same for linear attention |

mod costs;
mod forecast;
mod latency;
mod linear;

use clap::Args;
use elsa_cli::args::values::{dtype, one_of, positive};
use elsa_cli::bench::{Case, DIM, GRID, cases};
use elsa_cli::error::Error;
use elsa_cli::shape::{self, Named, Shape, WORKLOADS, Workload};
use elsa_core::dtype::DType;
use elsa_targets::{Board, NAMES};
use forecast::{Forecast, ForecastError, forecast};
use latency::GpuMachine;
use serde_json::json;
use std::fmt::Display;
use std::io::Write;

/// Returns the help text below the flags.
fn help() -> String {
    let grid = GRID.map(|tokens| tokens.to_string()).join(" ");
    let workloads = WORKLOADS.map(|workload| workload.name).join(" ");
    format!(
        "\
Without --shape and --workload: tokens {grid}
at head size {DIM}, in f32 and in f16: the grid of Table 6 of the ELSA paper.
{}
Workloads, which --shape takes by name, too:
  {workloads}
No GPU is needed: a prediction takes the plan that the board's chooser would make, and counts the instructions that its
multiprocessors would issue. f32 / it is the prediction for f32 over that of the row, --half-scores included; FMA of slots are the multiply-adds
among the issue slots of a warp for a tile of keys. A prediction is no measurement, and every line says so. Masks, biases,
windows and packed sequences are not predicted.
With --linear: one sequence in f32, for tokens {} and head sizes {}. \"In order\" is the
choice among the forms that pass over the tokens in order, and \"chosen\" the plan's choice.",
        shape::HELP,
        linear::TOKENS.map(|tokens| tokens.to_string()).join(" "),
        linear::DIMS.map(|dim| dim.to_string()).join(" ")
    )
}

/// `elsa-lab predict`.
#[derive(Args, Debug)]
#[command(after_help = help())]
pub struct PredictArgs {
    /// Board whose predicted latencies are compared with the paper's measurements
    #[arg(long, value_name = "BOARD", value_parser = one_of(NAMES.map(|name| (name, name))))]
    board: &'static str,
    /// Heads of the default grid; a shape has its own
    #[arg(long, value_name = "H", default_value = "1", allow_negative_numbers = true, value_parser = positive,
        conflicts_with_all = ["shape", "workload"])]
    heads: usize,
    /// Element type [default: both f32 and f16 for the default grid, f32 for --shape and --workload]
    #[arg(long, value_parser = dtype())]
    dtype: Option<DType>,
    /// A shape instead of the default grid; may be repeated
    #[arg(long, value_name = shape::VALUE, allow_negative_numbers = true)]
    shape: Vec<Named>,
    /// The shapes of a model; may be repeated
    #[arg(long, value_name = "NAME")]
    workload: Vec<Workload>,
    /// Linear attention of one sequence with this rule, instead of softmax attention; may be repeated
    #[arg(long, value_name = "RULE", value_parser = one_of(linear::RULES.map(|rule| (rule, rule))),
        conflicts_with_all = ["shape", "workload", "dtype", "half_scores"])]
    linear: Vec<&'static str>,
    /// Let the GPU sum short chains of products of f16 inputs in f16
    #[arg(long)]
    half_scores: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Table 6 of ELSA: milliseconds on a Jetson TX2 for each length of the default grid, in the order ELSA in f16,
/// PyTorch's attention in f16, ELSA in f32, PyTorch's attention in f32.
const PAPER: [[f64; 4]; GRID.len()] = [
    [0.69, 1.06, 0.69, 1.06],
    [1.71, 2.64, 1.71, 2.64],
    [3.53, 5.47, 3.54, 5.49],
    [6.47, 10.10, 6.48, 10.12],
    [10.52, 16.74, 10.54, 16.77],
    [17.24, 27.22, 17.28, 27.29],
    [25.95, 41.23, 26.04, 41.34],
    [37.63, 60.01, 37.74, 60.16],
    [52.78, 84.54, 52.96, 84.76],
    [73.03, 116.85, 73.33, 117.18],
    [98.47, 157.45, 98.86, 157.89],
    [129.74, 207.55, 131.14, 208.91],
];
/// The board of table 6.
const MEASURED: &str = "jetson-tx2";

/// Returns the paper's milliseconds for a shape on a board: first the time of ELSA, then the time of PyTorch. Returns
/// `None` if table 6 has no row for the shape.
pub fn paper(board: &str, shape: &Shape, dtype: DType) -> Option<[f64; 2]> {
    let tokens = shape.keys;
    let same = *shape == Shape::plain(1, 1, tokens, tokens, DIM) && board == MEASURED;
    let row = PAPER.get(GRID.iter().position(|&n| n == tokens).filter(|_| same)?)?;
    match dtype {
        DType::F16 => Some([row[0], row[1]]),
        DType::F32 => Some([row[2], row[3]]),
        DType::Bf16 => None,
    }
}

/// Builds the error for a case that cannot be predicted on a board.
fn refused(board: &str, shape: &impl Display, error: &ForecastError) -> Error {
    let text = error.to_string();
    let (found, allowed) = text.split_once("; allowed: ").unwrap_or((&text, "another shape or board"));
    Error::Argument {
        argument: "board",
        found: format!("{board}, {shape}: {found}"),
        allowed: allowed.into(),
    }
}

/// Returns the properties of a board that a prediction needs. A property that is missing from the board's profile is
/// zero.
fn machine(board: &Board) -> GpuMachine {
    GpuMachine {
        profile: board.device_profile().gpu.unwrap_or_default(),
        bandwidth_gbs: board.memory.bandwidth_gbs.unwrap_or(0.0),
        launch_us: board.gpu.launch_us.unwrap_or(0.0),
        efficiency: board.gpu.efficiency.unwrap_or(0.0),
    }
}

/// The two assumptions of a prediction: the time in microseconds from one kernel to the next, and the fraction of issue
/// slots that a multiprocessor fills.
pub type Assumed = [f64; 2];

/// Returns the assumptions of a board's profile; zero for an absent one.
pub fn assumed(board: &Board) -> Assumed {
    let machine = machine(board);
    [machine.launch_us, machine.efficiency]
}

/// Returns the predicted milliseconds of a call on a board, with other assumptions than those of its profile. Returns
/// `None` if the call cannot be predicted.
pub fn milliseconds(
    board: &Board,
    [launch_us, efficiency]: Assumed,
    shape: &Shape,
    dtype: DType,
    half_scores: bool,
) -> Option<f64> {
    let machine = GpuMachine { launch_us, efficiency, ..machine(board) };
    let problem = shape.problem(dtype).ok()?;
    Some(forecast(&problem, &machine, half_scores).ok()?.prediction.us() / 1e3)
}

/// Writes the line above a table of predictions.
fn heading(out: &mut impl Write, board: &Board, machine: &GpuMachine) -> Result<(), Error> {
    let profile = machine.profile;
    writeln!(
        out,
        "prediction, not measured: {}, {} multiprocessors at {} MHz, {} GB/s; assumed: {} us a launch, {} of the issue slots",
        board.title, profile.sms, profile.mhz, machine.bandwidth_gbs, machine.launch_us, machine.efficiency
    )?;
    Ok(())
}

/// Runs the command.
///
/// # Errors
/// Returns an error if too little is known about the board's GPU, if a call cannot be predicted, or if standard output
/// fails.
pub fn predict(args: &PredictArgs) -> Result<(), Error> {
    let name = args.board;
    let known = |error: elsa_targets::Error| Error::Argument {
        argument: "board",
        found: error.to_string(),
        allowed: NAMES.join(", "),
    };
    let board = Board::named(name).map_err(known)?;
    let machine = machine(&board);
    let out = &mut elsa_cli::foreign::stdout();
    if !args.linear.is_empty() {
        let call = format!("linear attention of {} heads", args.heads);
        let all = linear::report::all(&args.linear, args.heads, &machine);
        let all = all.map_err(|error| refused(name, &call, &error))?;
        if args.json {
            return linear::report::json_lines(out, name, &all);
        }
        heading(out, &board, &machine)?;
        return linear::report::table(out, &all);
    }
    let cases = cases(&args.shape, &args.workload, args.dtype, args.heads)?;
    let named = !args.shape.is_empty() || !args.workload.is_empty();
    // The cost of masks is not predicted, so shapes of the default grid with masks are left out.
    let cases: Vec<Case> = cases.into_iter().filter(|case| named || case.shape.mask.is_none()).collect();
    let of = |case: &Case, dtype: DType| -> Result<Forecast, Error> {
        let problem = case.shape.problem(dtype)?;
        forecast(&problem, &machine, args.half_scores).map_err(|error| refused(name, &case.shape, &error))
    };
    // All predictions are made before the first line is printed.
    let both = |case| -> Result<_, Error> { Ok((case, of(case, case.dtype)?, of(case, DType::F32)?)) };
    let rows = cases.iter().map(both).collect::<Result<Vec<_>, Error>>()?;
    let width = rows.iter().map(|(case, ..)| case.shape.to_string().len()).max().unwrap_or(0).max(5);
    if !args.json {
        heading(out, &board, &machine)?;
        writeln!(
            out,
            "{:<width$}  dtype  predicted ms  paper: ELSA ms  PyTorch ms  f32 / it  FMA of slots  splits  blocks  waves  kernel",
            "shape"
        )?;
    }
    for (case, forecast, single) in &rows {
        let (prediction, paper) = (forecast.prediction, paper(name, &case.shape, case.dtype));
        let (attention, ms) = (prediction.attention, prediction.us() / 1e3);
        let ratio = single.prediction.us() / prediction.us();
        let tile = forecast.tile;
        let slots = tile.instructions - tile.pairs;
        if args.json {
            let line = json!({
                "what": "prediction",
                "measured": false,
                "board": name,
                "shape": case.shape.to_string(),
                "dtype": case.dtype.name(),
                "kernel": forecast.kernel,
                "splits": forecast.splits,
                "blocks": attention.blocks,
                "resident": attention.resident,
                "waves": attention.waves,
                "attention_ms": attention.us / 1e3,
                "merge_ms": prediction.merge.map(|merge| merge.us / 1e3),
                "predicted_ms": ms,
                "f32_ratio": ratio,
                "tile_slots": slots,
                "tile_fma": tile.fma,
                "tile_conflicts": tile.conflicts,
                "paper_elsa_ms": paper.map(|[elsa, _]| elsa),
                "paper_math_ms": paper.map(|[_, math]| math),
            });
            writeln!(out, "{line}")?;
        } else {
            let cell = |which: usize| paper.map_or("-".to_owned(), |paper| format!("{:.2}", paper[which]));
            writeln!(
                out,
                "{:<width$}  {:<5}  {ms:>12.3}  {:>14}  {:>10}  {ratio:>8.3}  {:>12}  {:>6}  {:>6}  {:>5}  {}",
                case.shape.to_string(),
                case.dtype.name(),
                cell(0),
                cell(1),
                format!("{} of {slots}", tile.fma),
                forecast.splits,
                attention.blocks,
                attention.waves,
                forecast.kernel
            )?;
        }
    }
    Ok(())
}
