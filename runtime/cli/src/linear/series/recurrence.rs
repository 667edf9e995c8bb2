//! `elsa linear recurrence`: computes a first-order recurrence in each channel over tensors in files.
// Doc comments of flags are their help texts, in which brackets enclose shapes and are not links.
#![allow(rustdoc::broken_intra_doc_links)]

use super::call::{CallArgs, FlagTensor, Outputs, numbers, parts_of, worst};
use crate::args::FILE;
use crate::error::Error;
use crate::progress;
use clap::Args;
use elsa_core::series::recurrence::{self, Gate, Inputs, Spec};
use elsa_files::{TensorPath, leaves_enough};
use elsa_runtime::{RecurrenceOptions, SeriesDivision};

/// The text below the flags.
const HELP: &str = "\
Examples:
  elsa linear recurrence --a decay.npy --b x.npy --out h.npy
  elsa linear recurrence --a log-decay.npy --log --b x.npy --past-state h0.npy \\
      --present-state h1.npy --out h.npy --verify

h = a h + b for each token, channel by channel. A factor of zero, or a logarithm of -inf, clears any
state, even NaN. A NaN factor poisons the state. The bits do not depend on threads and batch, but --parts changes the
rounding.

Exit status: 0 done; 2 the request was wrong, and nothing was written; 3 the device or the system failed; 4 --verify found an
error beyond the bound.";

/// `elsa linear recurrence`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub struct RecurrenceArgs {
    /// Factors that multiply the state, in the shape of b
    #[arg(long, value_name = FILE)]
    a: TensorPath,
    /// a holds natural logarithms of factors
    #[arg(long)]
    log: bool,
    /// Addends, rank 3
    #[arg(long, value_name = FILE)]
    b: TensorPath,
    /// Number of parallel parts of the tokens, for few channels and many tokens: twice the work [default: 1; on a
    /// GPU by tokens and channels]
    #[arg(long, value_name = "N")]
    parts: Option<usize>,
    /// Flags of every operator.
    #[command(flatten)]
    call: CallArgs,
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the output is not computed and written completely. A regular target is then unchanged, unless
/// the error is a failed rename.
pub fn recurrence(args: &RecurrenceArgs) -> Result<(), Error> {
    let call = &args.call;
    let (a, b) = (FlagTensor::load("a", &args.a)?, FlagTensor::load("b", &args.b)?);
    let past = FlagTensor::load_if("past-state", call.past_state.as_ref())?;
    let series = b.series(call.layout)?;
    let mut spec = Spec::new(a.series(call.layout)?, series, series);
    spec.gate = if args.log { Gate::Log } else { Gate::Factor };
    spec.reverse = call.reverse;
    let problem = spec.check()?;
    let state = [problem.batch(), problem.channels()];
    let inputs = Inputs { a: a.elements()?, b: b.elements()?, past_state: numbers(past.as_ref(), &state)? };
    let engine = call.host.engine()?;
    let options = RecurrenceOptions::default().budget(call.host.budget).parts(args.parts);
    let plan = engine.recurrence_plan(&problem, &options)?;
    let files: Vec<&FlagTensor> = [Some(&a), Some(&b), past.as_ref()].into_iter().flatten().collect();
    let mut outputs = Outputs::new(call, &files, &b, &state)?;
    let mut workspace = plan.workspace()?;
    leaves_enough("budget", plan.workspace_bytes())?;
    let to = outputs.tensors();
    let run = || -> Result<_, Error> { Ok(plan.run(inputs, to, &mut workspace)?) };
    let (report, ms) = progress::timed(0.0, run)?;
    let SeriesDivision { parts, precision, .. } = plan.division_of(report.backend);
    let worst = call.verify.then(|| {
        worst(&outputs, &series, |at, dtype, see| {
            let before = inputs.past_state.map_or(0.0, |past| past[at[0] * state[1] + at[1]]);
            recurrence::reference::states(&problem, &inputs, before, &precision, dtype, at, see);
        })
    });
    outputs.finish(
        call,
        &engine,
        &files,
        (&plan, &report),
        ("recurrence", &parts_of(parts), &series),
        (worst, ms),
    )
}
