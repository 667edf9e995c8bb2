//! `elsa linear conv`.
// Doc comments of flags are their help texts, where brackets hold shapes.
#![allow(rustdoc::broken_intra_doc_links)]

use super::call::{CallArgs, Done, Given, Outputs, farther, numbers};
use crate::args::FILE;
use crate::args::values::one_of;
use crate::error::Error;
use clap::Args;
use elsa_core::series::convolution::{self, Inputs, Method, Spec, Taps};
use elsa_files::Source;
use elsa_runtime::ConvolutionOptions;

/// The text below the flags.
const HELP: &str = "\
Examples:
  elsa linear conv --u u.npy --filter alpha.npy --out o.npy
  elsa linear conv --layout bct --u x.npy --filter weight.npy --order newest-last \\
      --bias bias.npy --silu --past-state s0.npy --present-state s1.npy --out y.npy

o(t) = sum over k of alpha(k) u(t - k), channel by channel: relative decay, and with --order newest-last CausalConvWithState of
ONNX and the convolution before Mamba's scan. States are the last inputs, oldest first. By FFT in f64, errors are relative
to norms of filter and input, not to each output. The bits do not depend on threads and batch.

Exit status: 0 done; 2 the request was wrong, and nothing was written; 3 the device or the system failed; 4 --verify found an
error beyond the bound.";

/// Values of `--order`. The first is the default.
const ORDERS: [(&str, Taps); 2] = [("newest-first", Taps::NewestFirst), ("newest-last", Taps::NewestLast)];

/// Requested `--method`; auto leaves it to the plan.
#[derive(Clone, Copy, Debug)]
struct Asked(Option<Method>);

/// Values of `--method`. The first is the default.
const METHODS: [(&str, Asked); 3] =
    [("auto", Asked(None)), ("direct", Asked(Some(Method::Direct))), ("fft", Asked(Some(Method::Fft)))];

/// `elsa linear conv`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub struct ConvolutionArgs {
    /// Inputs, rank 3
    #[arg(long, value_name = FILE)]
    u: Source,
    /// Filters, f32: [taps] for all channels, [channels, taps], or [channels, 1, taps]
    #[arg(long, value_name = FILE)]
    filter: Source,
    /// Position of the token's own weight: first or last
    #[arg(long, default_value = ORDERS[0].0, value_parser = one_of(ORDERS))]
    order: Taps,
    /// Bias of the sums, f32 [channels]
    #[arg(long, value_name = FILE)]
    bias: Option<Source>,
    /// Apply silu to the sums
    #[arg(long)]
    silu: bool,
    /// Method; auto: the one with less work by count
    #[arg(long, default_value = METHODS[0].0, value_parser = one_of(METHODS))]
    method: Asked,
    /// Flags of every operator.
    #[command(flatten)]
    call: CallArgs,
}

/// Runs the command.
///
/// # Errors
/// Any failure that leaves the output incomplete. No file has changed then.
pub fn convolution(args: &ConvolutionArgs) -> Result<(), Error> {
    let call = &args.call;
    let (u, filter) = (Given::load("u", &args.u)?, Given::load("filter", &args.filter)?);
    let bias = Given::load_if("bias", args.bias.as_ref())?;
    let past = Given::load_if("past-state", call.past_state.as_ref())?;
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
    let engine = call.engine.engine()?;
    let options = ConvolutionOptions {
        budget: call.engine.budget,
        method: args.method.0,
        ..ConvolutionOptions::default()
    };
    let plan = engine.convolution_plan(&problem, &options)?;
    let some = [&bias, &past].into_iter().filter_map(Option::as_ref);
    let files: Vec<&Given> = [&u, &filter].into_iter().chain(some).collect();
    let mut outputs = Outputs::new(call, &files, &u, &state)?;
    let mut workspace = plan.workspace()?;
    outputs.begin(plan.workspace_bytes())?;
    let to = convolution::Outputs {
        out: Some(outputs.out.elements_mut()),
        present_state: outputs.present.as_deref_mut(),
    };
    let report = plan.bind(inputs, to, &mut workspace)?.run()?;
    let ms = outputs.ms();
    let division = plan.division_of(report.backend);
    let worst = call.verify.then(|| {
        let (mut worst, out, dtype) = (0.0, outputs.out.elements(), outputs.dtype());
        let history = problem.history();
        for batch in 0..problem.batch() {
            for channel in 0..channels {
                let first = (batch * channels + channel) * history;
                let before = inputs.past_state.map_or(&[][..], |past| &past[first..first + history]);
                let (method, precision, at) = (division.method, &division.precision, [batch, channel]);
                let see = |token: usize, exact| {
                    worst = farther(worst, exact, out.get(series.at(batch, token, channel)), dtype);
                };
                convolution::reference::outputs(&problem, &inputs, before, method, precision, dtype, at, see);
            }
        }
        worst
    });
    let done = Done {
        what: "convolution",
        kernel: plan.kernel_of(report.backend),
        report,
        workspace_bytes: plan.workspace_bytes(),
        form: division.method.name().into(),
        shape: [problem.batch(), problem.tokens(), channels],
    };
    outputs.finish(call, &engine, &files, &done, (worst, ms))
}
