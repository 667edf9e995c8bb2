//! `elsa linear bench`: compares the speed of the forms.
//!
//! 1. Every form of the rule is planned and bound for the same tensors; forms that the engine refuses are skipped.
//! 2. The output of the first call of each form is checked: its first head is compared with the recurrence in f64.
//! 3. All forms run alternately until the time is over (`turns`). The table shows medians; JSON records also have
//!    quartiles. The gate of `elsa bench` watches the machine, and marks or refuses cells.

use super::args::{DirectionArgs, FormArgs, forms};
use super::data::{self, LinearShape, Sample, Semantics};
use super::picture;
use super::run::refusal;
use super::table::{Family, Row, print};
use super::truth::Truth;
use super::turns::{Contender, quartiles, take_turns};
use crate::args::HostArgs;
use crate::args::values::{AUTO, Choice, dtype, one_of, positive, seconds};
use crate::bench::watch::{Gate, Watch, require_clean};
use crate::error::{Error, say};
use crate::progress;
use crate::report;
use clap::Args;
use elsa_core::dtype::DType;
use elsa_core::linear::{Form, Outputs, Rule};
use elsa_files::{Buffer, Reads, Target, leaves_enough};
use elsa_runtime::{Backend, Engine, LinearPlan, LinearWorkspace};
use std::path::PathBuf;

/// Numbers of tokens in the default grid.
const LENGTHS: &str = "1,16,64,256,1024,4096";
/// Head sizes of the default grid.
const DIMS: &str = "64,128";
/// Limit of the relative distance from f64. An output beyond the limit is wrong, and not merely rounded. The limit is a
/// hundred times the error of the least accurate form, and also a hundred times the rounding error of the output.
const WRONG: f64 = 1e-4;

/// The text below the flags.
const HELP: &str = "\
Examples:
  elsa linear bench --rule gated --seconds 0.2
  elsa linear bench --rule gated-delta --lengths 64,256,1024,4096 --dims 128 \\
      --svg crossovers.svg
  elsa linear bench --rule gated --per-dim --lengths 1 --dims 64 --json
  elsa linear bench --rule gated --shape 1,16,1,128,v=32 --reverse
Keys and queries are random unit vectors. Forms alternate every few milliseconds. The table has the median time of a
call in nanoseconds per token and state. An asterisk marks the form that a plan chooses by itself. A dash marks a form
that does not support the problem or does not fit into memory. A crossover is the number of tokens from which another
form is the fastest, interpolated between the measured numbers. On a GPU, times are those of the device, with the
tensors in its memory. rel L2 is the distance of the first head from the recurrence in f64, for the least accurate form.

A cell is clean if no other load, change of clocks, throttling or heat disturbed it. Other rows end with disturbed or
refused, and the lines below the table give the reasons. --wait waits until the machine is quiet; a cell for which it
waits in vain has no times, unless --force is given.

Exit status 4: an answer is wrong. Exit status 5: not every cell is clean.";

/// `elsa linear bench`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub struct LinearBenchArgs {
    /// The rule [default: all of them]
    #[arg(long, value_parser = one_of(Rule::ALL.map(|rule| (rule.name(), rule))))]
    pub rule: Option<Rule>,
    /// Use one gate for each dim of the key
    #[arg(long)]
    pub per_dim: bool,
    /// Sizes to measure instead of those of the flags below; may be repeated
    #[arg(long, value_name = data::VALUE, allow_hyphen_values = true,
        conflicts_with_all = ["lengths", "dims", "batch", "heads"])]
    pub shape: Vec<LinearShape>,
    /// Tokens
    #[arg(long, value_name = "T[,T...]", default_value = LENGTHS, value_delimiter = ',', allow_hyphen_values = true,
        value_parser = positive)]
    pub lengths: Vec<usize>,
    /// Head sizes, of keys and values
    #[arg(long, value_name = "D[,D...]", default_value = DIMS, value_delimiter = ',', allow_hyphen_values = true,
        value_parser = positive)]
    pub dims: Vec<usize>,
    /// Sequences
    #[arg(long, value_name = "B", default_value = "1", allow_negative_numbers = true, value_parser = positive)]
    pub batch: usize,
    /// Heads, of queries, keys and values
    #[arg(long, value_name = "H", default_value = "8", allow_negative_numbers = true, value_parser = positive)]
    pub heads: usize,
    /// Element type
    #[arg(long, default_value = "f32", value_parser = dtype())]
    pub dtype: DType,
    /// Form to measure alone [default: all of them]
    #[arg(long, default_value = AUTO, value_parser = forms())]
    pub form: Choice<Form>,
    /// Time for each cell of the table
    #[arg(long, value_name = "X", default_value = "0.5", allow_negative_numbers = true, value_parser = seconds)]
    pub seconds: f64,
    /// Print one JSON object per line, one for each form of each cell
    #[arg(long)]
    pub json: bool,
    /// Gate against busy machines.
    #[command(flatten)]
    pub gate: Gate,
    /// Write curves of time against tokens, with the crossovers
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// Order of the tokens.
    #[command(flatten)]
    pub order: DirectionArgs,
    /// Engine.
    #[command(flatten)]
    pub host: HostArgs,
}

/// A planned form with its memory.
struct Subject {
    form: Form,
    plan: LinearPlan,
    workspace: LinearWorkspace,
    output: Buffer,
    chosen: bool,
}

/// Plans every requested form that the engine accepts.
fn subjects(engine: &Engine, args: &LinearBenchArgs, sample: &Sample) -> Result<Vec<Subject>, Error> {
    let problem = &sample.problem;
    let asked =
        |form| FormArgs { form: Choice(form), chunk: None, parts: None }.plan_options(args.host.budget);
    let auto = engine.linear_plan(problem, &asked(None))?;
    let chosen = auto.division_of(auto.backend());
    let forms = match args.form {
        Choice(None) => Form::ALL.to_vec(),
        Choice(Some(form)) => vec![form],
    };
    let mut subjects = Vec::new();
    for form in forms {
        let planned = engine.linear_plan(problem, &asked(Some(form)));
        let (plan, workspace) = match planned.and_then(|plan| Ok((plan.workspace()?, plan))) {
            Ok((workspace, plan)) => (plan, workspace),
            Err(e) => match refusal(&e).filter(|_| args.form.0.is_none()) {
                Some(why) => {
                    log::info!("form {}: {why}", form.name());
                    continue;
                }
                None => return Err(e.into()),
            },
        };
        leaves_enough("budget", plan.workspace_bytes())?;
        let output = Buffer::zeros("out", args.dtype, problem.spec().output.extent())?;
        let chosen = chosen.form == form;
        subjects.push(Subject { form, plan, workspace, output, chosen });
    }
    Ok(subjects)
}

/// Measures the forms of a cell. `tell` is called with lines about a wait for a quiet machine.
fn cell(
    engine: &Engine,
    args: &LinearBenchArgs,
    watch: &mut Watch,
    (rule, shape): (Rule, LinearShape),
    tell: impl Fn(&str),
) -> Result<Vec<Row>, Error> {
    let LinearShape { batch, heads, states, tokens, dim, value_dim, .. } = shape;
    let direction = args.order.direction();
    let refused = watch.refusal(tell);
    let per_dim = args.per_dim && rule.is_gated();
    let semantics = Semantics { per_dim, direction, ..Semantics::of_rule(rule) };
    let sample = Sample::new(&shape, &semantics, args.dtype)?;
    let mut subjects = subjects(engine, args, &sample)?;
    let head = Truth::of(&sample.problem, &sample.inputs(), 0, 0)?;
    let view = &sample.problem.spec().output;
    let mut contenders = Vec::new();
    let mut errors = Vec::new();
    for Subject { plan, workspace, output, .. } in &mut subjects {
        let report = plan.run(sample.inputs(), Outputs::new(output.elements_mut()), workspace)?;
        errors.push((head.distance(view, output.elements()), report.backend));
    }
    for Subject { plan, workspace, output, .. } in &mut subjects {
        let on_device = plan.backend() == Backend::Cuda;
        let bound = plan.bind(sample.inputs(), Outputs::new(output.elements_mut()), workspace)?;
        contenders.push(Contender { bound, on_device });
    }
    let (samples, marks) = if refused.is_empty() {
        // The readings are only judged, so the number of calls is not counted.
        let span = watch.open();
        let samples = take_turns(&mut contenders, args.seconds)?;
        let marks = watch.judge(&watch.close(span, 0), true);
        watch.note(marks.is_empty());
        (samples, marks)
    } else {
        (vec![Vec::new(); contenders.len()], refused)
    };
    drop(contenders);
    let mut rows = Vec::new();
    for ((subject, mut samples), (rel_l2, backend)) in subjects.iter().zip(samples).zip(errors) {
        let [p25_ms, p50_ms, p75_ms] = quartiles(&mut samples);
        let choice = subject.plan.division_of(backend);
        rows.push(Row {
            what: "linear bench",
            rule: rule.name(),
            per_dim,
            direction: direction.name(),
            dtype: args.dtype.name(),
            backend: backend.to_string(),
            kernel: subject.plan.kernel_of(backend),
            threads: engine.threads(),
            batch,
            heads,
            states,
            tokens,
            dim,
            value_dim,
            form: subject.form,
            chunk: choice.chunk,
            parts: choice.parts,
            chosen: subject.chosen,
            samples: samples.len(),
            p25_ms,
            p50_ms,
            p75_ms,
            ns_per_token: p50_ms * 1e6 / (batch * states * tokens) as f64,
            tokens_per_s: (batch * tokens) as f64 * 1e3 / p50_ms,
            clean: marks.is_empty(),
            marks: marks.iter().map(ToString::to_string).collect(),
            workspace_bytes: subject.plan.workspace_bytes(),
            rel_l2,
        });
    }
    Ok(rows)
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the request is wrong, if the device fails, if an answer is wrong, or if a cell is not clean.
pub fn bench(args: &LinearBenchArgs) -> Result<(), Error> {
    if args.per_dim && args.rule.is_some_and(|rule| !rule.is_gated()) {
        let rule = args.rule.map_or("", Rule::name);
        let (found, allowed) =
            (format!("given with --rule {rule}"), "with the rules gated and gated-delta".into());
        return Err(Error::Argument { argument: "per-dim", found, allowed });
    }
    let reads = Reads::default();
    let target = args.svg.as_deref().map(|path| Target::new("svg", path, &reads)).transpose()?;
    let engine = args.host.engine()?;
    let mut watch = Watch::start(args.gate, &engine);
    let groups = groups(args);
    let rules = args.rule.map_or_else(|| Rule::ALL.to_vec(), |rule| vec![rule]);
    let cells = rules.len() * groups.iter().map(Vec::len).sum::<usize>();
    let bar = progress::bar(cells as u64, cells as f64 * args.seconds);
    let (mut families, mut clean) = (Vec::new(), 0);
    for rule in rules {
        for group in &groups {
            let mut rows = Vec::new();
            for &shape in group {
                bar.set_message(format!("{} {shape}", rule.name()));
                let tell = |line: &str| bar.suspend(|| say(line));
                let measured = cell(&engine, args, &mut watch, (rule, shape), tell)?;
                clean += usize::from(measured.iter().all(|row| row.clean));
                rows.extend(measured);
                bar.inc(1);
            }
            let family = Family { title: title(args, rule, group, rows.first()), rows };
            let mut out = crate::foreign::stdout();
            if args.json {
                family.rows.iter().try_for_each(|row| report::json(&mut out, row))?;
            } else {
                bar.suspend(|| print(&mut out, &family))?;
            }
            families.push(family);
        }
    }
    bar.finish_and_clear();
    if let Some(target) = target {
        report::written(target, crate::foreign::page(&picture::page(&families)?).as_bytes())?;
    }
    let most = WRONG.max(8.0 * args.dtype.unit_roundoff());
    let wrong = |row: &&Row| row.rel_l2 > most || row.rel_l2.is_nan();
    match families.iter().flat_map(|family| &family.rows).find(wrong) {
        None => require_clean(clean, cells),
        Some(Row { rule, form, dim, tokens, rel_l2, .. }) => Err(Error::Verification(format!(
            "{rule}, form {}, d {dim}, {tokens} tokens: the first head is {rel_l2:.1e} from f64",
            form.name()
        ))),
    }
}

/// Returns the sizes to measure. The sizes of a group differ only in the number of tokens, and have a common table.
fn groups(args: &LinearBenchArgs) -> Vec<Vec<LinearShape>> {
    if !args.shape.is_empty() {
        return args.shape.iter().map(|shape| vec![*shape]).collect();
    }
    let LinearBenchArgs { batch, heads, .. } = *args;
    let mut lengths = args.lengths.clone();
    lengths.sort_unstable();
    lengths.dedup();
    let of = |dim: usize| {
        let shape = |tokens| LinearShape {
            batch,
            heads,
            key_heads: heads,
            states: heads,
            tokens,
            dim,
            value_dim: dim,
        };
        lengths.iter().copied().map(shape).collect()
    };
    args.dims.iter().copied().map(of).collect()
}

/// Describes the properties that all cells of a table share.
fn title(args: &LinearBenchArgs, rule: Rule, group: &[LinearShape], row: Option<&Row>) -> String {
    let gates = match (rule.is_gated(), args.per_dim) {
        (false, _) => "",
        (true, false) => " per head",
        (true, true) => " per dim",
    };
    let on = row.map_or_else(String::new, |row| {
        format!(", {} with {}", row.backend, report::count(row.threads as u64, "thread"))
    });
    let sizes = group.first().map_or_else(String::new, |shape| {
        let LinearShape { batch, heads, states, dim, value_dim, .. } = *shape;
        let states = if states == heads { String::new() } else { format!(", heads of v {states}") };
        let value_dim = if value_dim == dim { String::new() } else { format!(", d of v {value_dim}") };
        format!(", batch {batch}, heads {heads}{states}, d {dim}{value_dim}")
    });
    let (direction, dtype) = (args.order.direction().name(), args.dtype);
    format!("{}{gates}, {direction}, {dtype}{sizes}{on}", rule.name())
}
