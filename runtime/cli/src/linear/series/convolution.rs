//! `elsa linear conv`: computes a causal convolution of each channel over tensors in files.
// Doc comments of flags are their help texts, in which brackets enclose shapes and are not links.
#![allow(rustdoc::broken_intra_doc_links)]

use super::call::{CallArgs, FlagTensor, Outputs, numbers, worst};
use crate::args::FILE;
use crate::args::values::{AUTO, Choice, auto_or, one_of};
use crate::error::Error;
use crate::progress;
use clap::Args;
use elsa_core::series::convolution::{self, Inputs, Method, Spec, Taps};
use elsa_files::{TensorPath, leaves_enough};
use elsa_runtime::ConvolutionOptions;

/// The text below the flags.
const HELP: &str = "\
Examples:
  elsa linear conv --u u.npy --filter alpha.npy --out o.npy
  elsa linear conv --layout bct --u x.npy --filter weight.npy --order newest-last \\
      --bias bias.npy --silu --past-state s0.npy --present-state s1.npy --out y.npy

o(t) = sum over k of alpha(k) u(t - k), channel by channel: relative decay, and with --order newest-last CausalConvWithState of
ONNX and the convolution before Mamba's scan. States are the last inputs, oldest first. By FFT in f64, errors are relative
to the norms of filter and input, not to each output. The bits do not depend on threads and batch.

Exit status: 0 done; 2 the request was wrong, and nothing was written; 3 the device or the system failed; 4 --verify found an
error beyond the bound.";

/// Values of `--order`. The first is the default.
const ORDERS: [(&str, Taps); 2] = [("newest-first", Taps::NewestFirst), ("newest-last", Taps::NewestLast)];

/// Values of `--method`.
const METHODS: [(&str, Method); 2] = [("direct", Method::Direct), ("fft", Method::Fft)];

/// `elsa linear conv`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub struct ConvolutionArgs {
    /// Inputs, rank 3
    #[arg(long, value_name = FILE)]
    u: TensorPath,
    /// Filters, f32: [taps] for all channels, [channels, taps], or [channels, 1, taps]
    #[arg(long, value_name = FILE)]
    filter: TensorPath,
    /// Position of the token's own weight: first or last
    #[arg(long, default_value = ORDERS[0].0, value_parser = one_of(ORDERS))]
    order: Taps,
    /// Bias of the sums, f32 [channels]
    #[arg(long, value_name = FILE)]
    bias: Option<TensorPath>,
    /// Apply silu to the sums
    #[arg(long)]
    silu: bool,
    /// Method; auto: the one with less work by count
    #[arg(long, default_value = AUTO, value_parser = auto_or(METHODS))]
    method: Choice<Method>,
    /// Flags of every operator.
    #[command(flatten)]
    call: CallArgs,
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the output is not computed and written completely. A regular target is then unchanged, unless
/// the error is a failed rename.
pub fn convolution(args: &ConvolutionArgs) -> Result<(), Error> {
    let call = &args.call;
    let (u, filter) = (FlagTensor::load("u", &args.u)?, FlagTensor::load("filter", &args.filter)?);
    let bias = FlagTensor::load_if("bias", args.bias.as_ref())?;
    let past = FlagTensor::load_if("past-state", call.past_state.as_ref())?;
    let series = u.series(call.layout)?;
    let channels = series.channels();
    let (taps, shared, shape) = match *filter.shape() {
        [taps] => (taps, true, vec![taps]),
        [_, taps] => (taps, false, vec![channels, taps]),
        [_, _, taps] => (taps, false, vec![channels, 1, taps]),
        _ => return Err(filter.rank("1, 2 or 3")),
    };
    let mut spec = Spec::new(series, taps, series);
    (spec.shared, spec.order, spec.silu, spec.reverse) = (shared, args.order, args.silu, call.reverse);
    let problem = spec.check()?;
    let state = [problem.batch(), channels, problem.history()];
    let inputs = Inputs {
        u: u.elements()?,
        filter: filter.numbers(&shape)?,
        bias: numbers(bias.as_ref(), &[channels])?,
        past_state: numbers(past.as_ref(), &state)?,
    };
    let engine = call.host.engine()?;
    let options = ConvolutionOptions::default().budget(call.host.budget).method(args.method.0);
    let plan = engine.convolution_plan(&problem, &options)?;
    let some = [&bias, &past].into_iter().filter_map(Option::as_ref);
    let files: Vec<&FlagTensor> = [&u, &filter].into_iter().chain(some).collect();
    let mut outputs = Outputs::new(call, &files, &u, &state)?;
    let mut workspace = plan.workspace()?;
    leaves_enough("budget", plan.workspace_bytes())?;
    let to = outputs.tensors();
    let run = || -> Result<_, Error> { Ok(plan.run(inputs, to, &mut workspace)?) };
    let (report, ms) = progress::timed(0.0, run)?;
    let division = plan.division_of(report.backend);
    let worst = call.verify.then(|| {
        let (history, method, precision) = (problem.history(), division.method, &division.precision);
        worst(&outputs, &series, |at, dtype, see| {
            let first = (at[0] * channels + at[1]) * history;
            let before = inputs.past_state.map_or(&[][..], |past| &past[first..first + history]);
            convolution::reference::outputs(&problem, &inputs, before, method, precision, dtype, at, see);
        })
    });
    outputs.finish(
        call,
        &engine,
        &files,
        (&plan, &report),
        ("convolution", division.method.name(), &series),
        (worst, ms),
    )
}
