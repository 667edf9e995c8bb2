//! `elsa linear selective`: computes Mamba's selective scan over tensors in files.
// Doc comments of flags are their help texts, in which brackets enclose shapes and are not links.
#![allow(rustdoc::broken_intra_doc_links)]

use super::call::{CallArgs, FlagTensor, Order, Outputs, numbers, parts_of, worst};
use crate::args::FILE;
use crate::error::Error;
use crate::progress;
use clap::Args;
use elsa_core::series::Series;
use elsa_core::series::selective::{self, Coefficient, Inputs, Spec};
use elsa_files::{TensorPath, leaves_enough};
use elsa_runtime::{SelectiveOptions, SeriesDivision};

/// The text below the flags.
const HELP: &str = "\
Examples:
  elsa linear selective --layout bct --u u.npy --delta delta.npy --a A.npy --b B.npy --c C.npy \\
      --d D.npy --z z.npy --delta-bias bias.npy --softplus --out y.npy
  elsa linear selective --u u.npy --delta delta.npy --a A.npy --b B.npy --c C.npy \\
      --past-state x0.npy --present-state x1.npy --out y.npy --verify

With delta' = delta + bias, or its softplus, for each token and channel:
  x = exp(delta' A) x + delta' B u;  y = C x + D u;  times silu(z)
as selective_scan_ref of mamba_ssm, whose tensors have --layout bct. The bits do not depend on threads and batch.

Exit status: 0 done; 2 the request was wrong, and nothing was written; 3 the device or the system failed; 4 --verify found an
error beyond the bound.";

/// `elsa linear selective`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub struct SelectiveArgs {
    /// Inputs, rank 3
    #[arg(long, value_name = FILE)]
    u: TensorPath,
    /// Time steps, in the shape of u
    #[arg(long, value_name = FILE)]
    delta: TensorPath,
    /// Rates, f32 [channels, states]
    #[arg(long, value_name = FILE)]
    a: TensorPath,
    /// Input coefficients: [channels, states]; or of each token [batch, tokens, groups, states], with bct [batch, groups,
    /// states, tokens], or without the groups
    #[arg(long, value_name = FILE)]
    b: TensorPath,
    /// Output coefficients, in one of the shapes of b
    #[arg(long, value_name = FILE)]
    c: TensorPath,
    /// Skip coefficients: d times u is added to the output; f32 [channels]
    #[arg(long, value_name = FILE)]
    d: Option<TensorPath>,
    /// Gates of the output, in the shape of u
    #[arg(long, value_name = FILE)]
    z: Option<TensorPath>,
    /// Bias of the time steps, f32 [channels]
    #[arg(long, value_name = FILE)]
    delta_bias: Option<TensorPath>,
    /// Apply softplus to the time steps
    #[arg(long)]
    softplus: bool,
    /// Flags of every operator.
    #[command(flatten)]
    call: CallArgs,
}

/// Determines from the shape of a tensor whether its coefficients are per channel or per token.
fn coefficient(argument: &'static str, given: &FlagTensor, order: Order) -> Result<Coefficient, Error> {
    let (batch, tokens, channels) = match (order, given.shape()) {
        (_, [_, _]) => return Ok(Coefficient::Channel),
        (Order::TokensFirst, &[b, t, n]) | (Order::ChannelsFirst, &[b, n, t]) => (b, t, n),
        (Order::TokensFirst, &[b, t, g, n]) | (Order::ChannelsFirst, &[b, g, n, t]) => {
            (b, t, g.saturating_mul(n))
        }
        _ => return Err(given.rank("2, 3 or 4")),
    };
    Ok(Coefficient::Token(match order {
        Order::TokensFirst => Series::tokens_first(argument, [batch, tokens, channels])?,
        Order::ChannelsFirst => Series::channels_first(argument, [batch, channels, tokens])?,
    }))
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the output is not computed and written completely. A regular target is then unchanged, unless
/// the error is a failed rename.
pub fn selective(args: &SelectiveArgs) -> Result<(), Error> {
    let call = &args.call;
    let (u, delta) = (FlagTensor::load("u", &args.u)?, FlagTensor::load("delta", &args.delta)?);
    let (a, b, c) =
        (FlagTensor::load("a", &args.a)?, FlagTensor::load("b", &args.b)?, FlagTensor::load("c", &args.c)?);
    let d = FlagTensor::load_if("d", args.d.as_ref())?;
    let z = FlagTensor::load_if("z", args.z.as_ref())?;
    let bias = FlagTensor::load_if("delta-bias", args.delta_bias.as_ref())?;
    let past = FlagTensor::load_if("past-state", call.past_state.as_ref())?;
    let series = u.series(call.layout)?;
    let &[_, states] = a.shape() else { return Err(a.rank("2")) };
    let (of_b, of_c) = (coefficient("b", &b, call.layout)?, coefficient("c", &c, call.layout)?);
    let mut spec = Spec::new(series, delta.series(call.layout)?, states, of_b, of_c, series);
    spec.z = z.as_ref().map(|z| z.series(call.layout)).transpose()?;
    (spec.softplus, spec.reverse) = (args.softplus, call.reverse);
    let problem = spec.check()?;
    let channels = problem.channels();
    let parameters = [channels, states];
    for (given, of) in [(&b, of_b), (&c, of_c)] {
        if of == Coefficient::Channel {
            given.numbers(&parameters)?;
        }
    }
    let state = [problem.batch(), channels, states];
    let inputs = Inputs {
        u: u.elements()?,
        delta: delta.elements()?,
        a: a.numbers(&parameters)?,
        b: b.elements()?,
        c: c.elements()?,
        d: numbers(d.as_ref(), &[channels])?,
        z: z.as_ref().map(FlagTensor::elements).transpose()?,
        delta_bias: numbers(bias.as_ref(), &[channels])?,
        past_state: numbers(past.as_ref(), &state)?,
    };
    let engine = call.host.engine()?;
    let options = SelectiveOptions::default().budget(call.host.budget);
    let plan = engine.selective_plan(&problem, &options)?;
    let some = [&d, &z, &bias, &past].into_iter().filter_map(Option::as_ref);
    let files: Vec<&FlagTensor> = [&u, &delta, &a, &b, &c].into_iter().chain(some).collect();
    let mut outputs = Outputs::new(call, &files, &u, &state)?;
    let mut workspace = plan.workspace()?;
    leaves_enough("budget", plan.workspace_bytes())?;
    let to = outputs.tensors();
    let run = || -> Result<_, Error> { Ok(plan.run(inputs, to, &mut workspace)?) };
    let (report, ms) = progress::timed(0.0, run)?;
    let SeriesDivision { parts, precision, .. } = plan.division_of(report.backend);
    let worst = call.verify.then(|| {
        worst(&outputs, &series, |at, dtype, see| {
            let first = (at[0] * channels + at[1]) * states;
            let before = inputs.past_state.map_or(&[][..], |past| &past[first..first + states]);
            selective::reference::outputs(&problem, &inputs, before, &precision, dtype, at, &mut [], see);
        })
    });
    outputs.finish(
        call,
        &engine,
        &files,
        (&plan, &report),
        ("selective scan", &parts_of(parts), &series),
        (worst, ms),
    )
}
