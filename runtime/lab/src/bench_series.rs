//! `elsa-lab bench-series`: compares ways of computing an operator that processes each channel separately.
//!
//! 1. A plan is created for each of several ways, and all plans are bound to the same tensors. The ways of a recurrence
//!    differ in the number of parts, and so do the ways of a selective scan on a GPU. The ways of a convolution differ
//!    in the method. Ways that the engine refuses are skipped.
//! 2. The output of each way is checked: the error of its first channel, compared with the operator in f64, must be
//!    within the error bound.
//! 3. Runs of all ways alternate until the time is over. The table contains medians; the JSON records also contain
//!    quartiles.

use clap::Args;
use elsa_cli::args::HostArgs;
use elsa_cli::args::values::{one_of, positive, seconds};
use elsa_cli::error::Error;
use elsa_cli::linear::{Contender, farther, parts_of, quartiles, take_turns};
use elsa_cli::progress;
use elsa_cli::random::Random;
use elsa_cli::report;
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::series::convolution::{self, Method};
use elsa_core::series::recurrence::{self, Gate};
use elsa_core::series::selective::{self, Coefficient};
use elsa_core::series::{Series, bound::Judged};
use elsa_files::{leaves_enough, zeros};
use elsa_runtime::operators::{Operator, Plan, Workspace};
use elsa_runtime::{
    Backend, Convolution, ConvolutionOptions, Engine, PlanError, Recurrence, RecurrenceOptions, Selective,
    SelectiveOptions,
};
use serde::Serialize;
use std::io::Write;

/// Help text below the flags.
const HELP: &str = "\
Examples:
  elsa-lab bench-series --seconds 0.2
  elsa-lab bench-series --operator selective --channels 1536 --states 16 --lengths 196,900 --threads 2
  elsa-lab bench-series --backend cuda --fallback fail --parts 1,4,16,64 --json
The ways to compute an operator take turns every few milliseconds. The table has the median time of a call, and that per token
and channel in nanoseconds; an asterisk marks what a plan chooses by itself. On a GPU the time is the device's, with the tensors
in its memory. The bound is that of the first channel against the operator in f64, of the largest error.
Exit status 4: an answer is farther off than its bound allows.";

/// Operators whose ways are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Recurrence,
    Selective,
    Convolution,
}

/// Values of `--operator`.
const OPERATORS: [(&str, Which); 3] =
    [("recurrence", Which::Recurrence), ("selective", Which::Selective), ("conv", Which::Convolution)];

/// `elsa-lab bench-series`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub struct BenchSeriesArgs {
    /// The operator [default: all of them]
    #[arg(long, value_parser = one_of(OPERATORS))]
    operator: Option<Which>,
    /// Tokens
    #[arg(long, value_name = "T[,T...]", default_value = "1,256,1024,4096,16384", value_delimiter = ',',
        allow_hyphen_values = true, value_parser = positive)]
    lengths: Vec<usize>,
    /// Channels
    #[arg(long, value_name = "C[,C...]", default_value = "64,1024", value_delimiter = ',', allow_hyphen_values = true,
        value_parser = positive)]
    channels: Vec<usize>,
    /// Sequences
    #[arg(long, value_name = "B", default_value = "1", allow_negative_numbers = true, value_parser = positive)]
    batch: usize,
    /// Numbers of a channel's state of a selective scan
    #[arg(long, value_name = "N", default_value = "16", allow_negative_numbers = true, value_parser = positive)]
    states: usize,
    /// Weights of a filter of a convolution
    #[arg(long, value_name = "K", default_value = "4", allow_negative_numbers = true, value_parser = positive)]
    taps: usize,
    /// Numbers of parts in addition to the plan's choice: of a recurrence, and on a GPU of a selective scan
    #[arg(long, value_name = "N[,N...]", default_value = "1,4,16,64", value_delimiter = ',', allow_hyphen_values = true,
        value_parser = positive)]
    parts: Vec<usize>,
    /// Time for each cell of the table
    #[arg(long, value_name = "X", default_value = "0.5", allow_negative_numbers = true, value_parser = seconds)]
    seconds: f64,
    /// Print one JSON object per line, one for each way of each cell
    #[arg(long)]
    json: bool,
    /// Engine.
    #[command(flatten)]
    host: HostArgs,
}

/// Measurement of one way, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    operator: &'static str,
    backend: String,
    kernel: &'static str,
    threads: usize,
    batch: usize,
    tokens: usize,
    channels: usize,
    /// For a selective scan, the number of state elements per channel. For a convolution, the number of weights per
    /// filter. Otherwise 1.
    numbers: usize,
    /// Number of parts of the operator, or the method of a convolution.
    form: String,
    chosen: bool,
    samples: usize,
    p25_ms: f64,
    p50_ms: f64,
    p75_ms: f64,
    /// Median time in nanoseconds per element, where the number of elements is batch × tokens × channels.
    ns_per_element: f64,
    workspace_bytes: usize,
    /// Largest error of the first channel relative to its bound.
    worst: f64,
}

/// The operator and sizes of a cell of the table.
#[derive(Clone, Copy)]
struct Cell<'a> {
    args: &'a BenchSeriesArgs,
    engine: &'a Engine,
    name: &'static str,
    tokens: usize,
    channels: usize,
    numbers: usize,
}

/// A planned way, with its workspace and output.
struct Way<O: Operator> {
    plan: Plan<O>,
    workspace: Workspace<O>,
    out: Vec<f32>,
    form: String,
    chosen: bool,
}

/// Ways of computing a cell. The first way is the plan's own choice. A way whose form equals the form of an earlier way
/// is left out.
struct Ways<O: Operator>(Vec<Way<O>>);

impl<O: Operator> Ways<O> {
    /// Adds a plan whose output has `elements` elements. A plan that the engine refused is skipped. If this is the
    /// first plan, its error is returned instead.
    fn add(
        &mut self,
        planned: Result<Plan<O>, PlanError>,
        elements: usize,
        form: impl Fn(&Plan<O>) -> String,
    ) -> Result<(), Error> {
        let chosen = self.0.is_empty();
        let plan = match planned {
            Ok(plan) => plan,
            Err(why @ (PlanError::Refused(_) | PlanError::NotOnGpu { .. })) if !chosen => {
                log::info!("left out: {why}");
                return Ok(());
            }
            Err(e) => return Err(e.into()),
        };
        let form = form(&plan);
        if self.0.iter().all(|way| way.form != form) {
            leaves_enough("budget", plan.workspace_bytes())?;
            let (workspace, out) = (plan.workspace()?, zeros("out", elements)?);
            self.0.push(Way { plan, workspace, out, form, chosen });
        }
        Ok(())
    }

    /// Builds one row of the table for each way from the samples in `found`. `judge` returns the largest error of the
    /// first channel, relative to its bound.
    fn rows(
        self,
        cell: &Cell<'_>,
        found: Vec<(Backend, Vec<f64>)>,
        judge: impl Fn(&Plan<O>, Backend, &[f32]) -> f64,
    ) -> Vec<Row> {
        let Cell { args, engine, name, tokens, channels, numbers } = *cell;
        let row = |(way, (backend, mut samples)): (Way<O>, (Backend, Vec<f64>))| {
            let [p25_ms, p50_ms, p75_ms] = quartiles(&mut samples);
            Row {
                what: "bench-series",
                operator: name,
                backend: backend.to_string(),
                kernel: way.plan.kernel_of(backend),
                threads: engine.threads(),
                batch: args.batch,
                tokens,
                channels,
                numbers,
                chosen: way.chosen,
                samples: samples.len(),
                p25_ms,
                p50_ms,
                p75_ms,
                ns_per_element: p50_ms * 1e6 / (args.batch * tokens * channels) as f64,
                workspace_bytes: way.plan.workspace_bytes(),
                worst: judge(&way.plan, backend, &way.out),
                form: way.form,
            }
        };
        self.0.into_iter().zip(found).map(row).collect()
    }
}

/// Measures the ways alternately; returns the back end of each way and its samples in milliseconds. Afterwards, the
/// output buffer of each way contains the output of a run.
fn measure<'a, O: Operator>(
    seconds: f64,
    ways: &'a mut Ways<O>,
    inputs: O::Inputs<'a>,
    outputs: impl Fn(ElementsMut<'a>) -> O::Outputs<'a>,
) -> Result<Vec<(Backend, Vec<f64>)>, Error>
where
    O::Inputs<'a>: Copy,
{
    let (mut contenders, mut backends) = (Vec::new(), Vec::new());
    for Way { plan, workspace, out, .. } in &mut ways.0 {
        let on_device = plan.backend() == Backend::Cuda;
        let mut bound = plan.bind(inputs, outputs(ElementsMut::F32(out)), workspace)?;
        backends.push(bound.run()?.backend);
        contenders.push(Contender { bound, on_device });
    }
    let samples = take_turns(&mut contenders, seconds)?;
    Ok(backends.into_iter().zip(samples).collect())
}

/// Allocates a tensor of `count` normally distributed random numbers, each transformed by `of`.
fn tensor(
    random: &mut Random,
    argument: &'static str,
    count: usize,
    of: impl Fn(f64) -> f64,
) -> Result<Vec<f32>, Error> {
    let mut all = zeros(argument, count)?;
    all.iter_mut().for_each(|x| *x = of(random.normal()) as f32);
    Ok(all)
}

/// Returns a visitor for an oracle. The visitor stores in `worst` the largest error of the first channel of `out`,
/// relative to its bound.
fn keep<'a>(worst: &'a mut f64, series: &'a Series, out: &'a [f32]) -> impl FnMut(usize, Judged) + 'a {
    move |token, exact| *worst = farther(*worst, exact, out[series.at(0, token, 0)], DType::F32)
}

/// Measures all ways of computing a recurrence.
fn of_recurrence(cell: &Cell<'_>, random: &mut Random) -> Result<Vec<Row>, Error> {
    let Cell { args, engine, tokens, channels, .. } = *cell;
    let series = Series::tokens_first("b", [args.batch, tokens, channels])?;
    let mut spec = recurrence::Spec::new(series, series, series);
    spec.gate = Gate::Log;
    let problem = spec.check()?;
    let count = series.extent();
    let a = tensor(random, "a", count, |x| -0.1 * x.abs())?;
    let b = tensor(random, "b", count, |x| x)?;
    let inputs = recurrence::Inputs { a: Elements::F32(&a), b: Elements::F32(&b), past_state: None };
    let mut ways = Ways::<Recurrence>(Vec::new());
    for parts in [None].into_iter().chain(args.parts.iter().copied().map(Some)) {
        let options = RecurrenceOptions::default().budget(args.host.budget).parts(parts);
        let planned = engine.recurrence_plan(&problem, &options);
        ways.add(planned, count, |plan| parts_of(plan.division_of(plan.backend()).parts))?;
    }
    let to = |out| recurrence::Outputs { out: Some(out), present_state: None };
    let found = measure(args.seconds, &mut ways, inputs, to)?;
    Ok(ways.rows(cell, found, |plan, backend, out| {
        let (mut worst, precision) = (0.0, plan.division_of(backend).precision);
        let see = keep(&mut worst, &series, out);
        recurrence::reference::states(&problem, &inputs, 0.0, &precision, DType::F32, [0, 0], see);
        worst
    }))
}

/// Measures all ways of computing a selective scan as Mamba uses it: with a softplus of the time steps and gates on the
/// output.
fn of_selective(cell: &Cell<'_>, random: &mut Random) -> Result<Vec<Row>, Error> {
    let Cell { args, engine, tokens, channels, numbers, .. } = *cell;
    let series = Series::tokens_first("u", [args.batch, tokens, channels])?;
    let of_token = Series::tokens_first("b", [args.batch, tokens, numbers])?;
    let (b, c) = (Coefficient::Token(of_token), Coefficient::Token(of_token));
    let mut spec = selective::Spec::new(series, series, numbers, b, c, series);
    (spec.z, spec.softplus) = (Some(series), true);
    let problem = spec.check()?;
    let count = series.extent();
    let u = tensor(random, "u", count, |x| x)?;
    let delta = tensor(random, "delta", count, |x| x - 2.0)?;
    let z = tensor(random, "z", count, |x| x)?;
    let a = tensor(random, "a", channels * numbers, |x| -x.abs() - 0.1)?;
    let [b, c] =
        [tensor(random, "b", of_token.extent(), |x| x)?, tensor(random, "c", of_token.extent(), |x| x)?];
    let d = tensor(random, "d", channels, |x| x)?;
    let inputs = selective::Inputs {
        u: Elements::F32(&u),
        delta: Elements::F32(&delta),
        a: &a,
        b: Elements::F32(&b),
        c: Elements::F32(&c),
        d: Some(&d),
        z: Some(Elements::F32(&z)),
        delta_bias: None,
        past_state: None,
    };
    let mut ways = Ways::<Selective>(Vec::new());
    for gpu_parts in [None].into_iter().chain(args.parts.iter().copied().map(Some)) {
        let options = SelectiveOptions::default().budget(args.host.budget).gpu_parts(gpu_parts);
        let planned = engine.selective_plan(&problem, &options);
        ways.add(planned, count, |plan| parts_of(plan.division_of(plan.backend()).parts))?;
    }
    let to = |out| selective::Outputs { out: Some(out), present_state: None };
    let found = measure(args.seconds, &mut ways, inputs, to)?;
    Ok(ways.rows(cell, found, |plan, backend, out| {
        let (mut worst, precision) = (0.0, plan.division_of(backend).precision);
        let see = keep(&mut worst, &series, out);
        let (none, last) = (&[][..], &mut []);
        selective::reference::outputs(&problem, &inputs, none, &precision, DType::F32, [0, 0], last, see);
        worst
    }))
}

/// Measures all ways of computing a convolution with one filter per channel.
fn of_convolution(cell: &Cell<'_>, random: &mut Random) -> Result<Vec<Row>, Error> {
    let Cell { args, engine, tokens, channels, numbers, .. } = *cell;
    let series = Series::tokens_first("u", [args.batch, tokens, channels])?;
    let mut spec = convolution::Spec::new(series, numbers, series);
    spec.silu = true;
    let problem = spec.check()?;
    let count = series.extent();
    let u = tensor(random, "u", count, |x| x)?;
    let filter = tensor(random, "filter", problem.weights(), |x| x)?;
    let inputs = convolution::Inputs { u: Elements::F32(&u), filter: &filter, bias: None, past_state: None };
    let mut ways = Ways::<Convolution>(Vec::new());
    for method in [None, Some(Method::Direct), Some(Method::Fft)] {
        let options = ConvolutionOptions::default().budget(args.host.budget).method(method);
        let planned = engine.convolution_plan(&problem, &options);
        ways.add(planned, count, |plan| plan.division_of(plan.backend()).method.name().into())?;
    }
    let to = |out| convolution::Outputs { out: Some(out), present_state: None };
    let found = measure(args.seconds, &mut ways, inputs, to)?;
    Ok(ways.rows(cell, found, |plan, backend, out| {
        let (mut worst, division) = (0.0, plan.division_of(backend));
        let (method, precision) = (division.method, &division.precision);
        let (see, none) = (keep(&mut worst, &series, out), &[][..]);
        convolution::reference::outputs(&problem, &inputs, none, method, precision, DType::F32, [0, 0], see);
        worst
    }))
}

/// Prints a table with a line for each way of computing a cell.
fn print(to: &mut impl Write, rows: &[Row]) -> Result<(), Error> {
    let Some(first) = rows.first() else { return Ok(()) };
    let Row { operator, batch, channels, numbers, backend, threads, .. } = first;
    writeln!(
        to,
        "{operator} of {numbers}, f32, batch {batch}, channels {channels}, {backend}, threads {threads}"
    )?;
    writeln!(to, "{:>9} {:>12} {:>12} {:>11} {:>9}", "tokens", "", "ms", "ns each", "bound")?;
    for Row { tokens, form, p50_ms, ns_per_element, worst, chosen, .. } in rows {
        let mark = if *chosen { '*' } else { ' ' };
        writeln!(to, "{tokens:>9} {form:>12} {p50_ms:>12.5} {ns_per_element:>10.3}{mark} {worst:>9.3}")?;
    }
    writeln!(to)?;
    Ok(())
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the request is wrong, if the device fails, or if an output exceeds its error bound.
pub fn bench(args: &BenchSeriesArgs) -> Result<(), Error> {
    let engine = args.host.engine()?;
    let mut lengths = args.lengths.clone();
    lengths.sort_unstable();
    lengths.dedup();
    let wanted = OPERATORS.into_iter().filter(|(_, which)| args.operator.is_none_or(|asked| asked == *which));
    let families: Vec<_> =
        wanted.flat_map(|of| args.channels.iter().map(move |channels| (of, *channels))).collect();
    let cells = families.len() * lengths.len();
    let bar = progress::bar(cells as u64, cells as f64 * args.seconds);
    let mut worst: Option<Row> = None;
    for ((name, which), channels) in families {
        let mut rows = Vec::new();
        for &tokens in &lengths {
            bar.set_message(format!("{name}, {channels} channels, {tokens} tokens"));
            let numbers = match which {
                Which::Recurrence => 1,
                Which::Selective => args.states,
                Which::Convolution => args.taps,
            };
            let cell = Cell { args, engine: &engine, name, tokens, channels, numbers };
            let random = &mut Random::new(tokens as u64);
            rows.extend(match which {
                Which::Recurrence => of_recurrence(&cell, random),
                Which::Selective => of_selective(&cell, random),
                Which::Convolution => of_convolution(&cell, random),
            }?);
            bar.inc(1);
        }
        let mut out = elsa_cli::foreign::stdout();
        if args.json {
            rows.iter().try_for_each(|row| report::json(&mut out, row))?;
        } else {
            bar.suspend(|| print(&mut out, &rows))?;
        }
        worst = worst.or_else(|| rows.into_iter().find(|row| row.worst.is_nan() || row.worst > 1.0));
    }
    bar.finish_and_clear();
    match worst {
        None => Ok(()),
        Some(Row { operator, form, channels, tokens, worst, .. }) => Err(Error::Verification(format!(
            "{operator}, {form}, {channels} channels, {tokens} tokens: {worst:.3} of the error bound; allowed: at most 1"
        ))),
    }
}
