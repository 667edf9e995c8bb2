//! `elsa-lab depth-curve`: growth of error bounds and errors with the number of keys, for three orders of the
//! additions.
//!
//! | schedule | order | additions on the path of a weight, for `n` keys |
//! |---|---|---|
//! | fold | one key after another, as a recurrence computes | `n − 1` |
//! | two-level | blocks, segments and the merge tree of an engine's plan | those of a segment, plus `log2` of the number of segments |
//! | tree | neighbours, then pairs of neighbours | `log2 n` |
//!
//! Fold and tree are [`Scan::Sequential`] and [`Scan::Tree`] over the states of single keys, in actual f32 arithmetic.
//! All three compute the same rows. The bound and the error of a row are taken in the maximum norm, relative to the
//! row's `Σ p_j |v_j|`. The largest values of all rows are reported.
//!
//! One part of a bound does not depend on the order: the rounding of scores, the error of the exponential, and the
//! division. This part is the bound of a run without additions. The published depth leaves out this constant. The other
//! part depends on the order of the schedule. It follows the partial sums of weights and of weighted values, and adds a
//! rounding of `2^-24` for each partial sum.
//!
//! Two sets of tensors show the effect of the additions. In the *random* set, roundings have random signs, and errors
//! grow at most with the square root of the number of additions. In the *repeated* set, every key has the same score
//! and the same value 4/3, and every addition of a fold rounds its last bits in the same direction. Errors therefore
//! grow with the number of additions, as the bound does. In the repeated set, the tree only adds equal numbers, and the
//! sum of two equal numbers is exact.

use askama::Template;
use clap::Args;
use elsa_cli::args::{EngineArgs, ForceArgs};
use elsa_cli::error::Error;
use elsa_cli::oracle::{Comparison, Oracle};
use elsa_cli::picture::{Axis, Picture, Point as Dot, Raw, chart};
use elsa_cli::progress;
use elsa_cli::random::Random;
use elsa_cli::report;
use elsa_cli::rows::{for_rows, output_row, rows};
use elsa_cli::shape::Shape;
use elsa_core::attention::certificate::{Executed, Order};
use elsa_core::attention::{Inputs, Outputs, Problem};
use elsa_core::drift::larger;
use elsa_core::dtype::{DType, Elements};
use elsa_core::scan::{Scan, ScanForm, elsa_depth};
use elsa_core::state::State;
use elsa_files::Target;
use elsa_files::{Buffer, MemoryError};
use elsa_runtime::{Engine, PlanOptions};
use serde::Serialize;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Head size of queries, keys and values.
const D: usize = 16;

/// Number of query rows.
const ROWS: usize = 4;

/// Numbers of keys, as exponents of two.
const LENGTHS: RangeInclusive<u32> = 8..=20;

/// Help text below the flags.
const HELP: &str = "\
Schedules: a fold adds one key after the other, two-level is the plan's, a tree adds neighbours and then pairs of them.
Exit status 4: an error is beyond its bound.
Examples:
  elsa-lab depth-curve --keys 65536
  elsa-lab depth-curve --html depth.html";

/// `elsa-lab depth-curve`.
#[derive(Args, Debug)]
#[command(after_help = HELP, mut_arg("half_scores", |flag| flag.hide(true)))]
pub struct DepthCurveArgs {
    /// Keys of the longest length, from 256 to 1048576
    #[arg(long, value_name = "KEYS", default_value = "1048576", allow_negative_numbers = true, value_parser = longest)]
    keys: usize,
    /// Write the curves as one self-contained page
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Permission for the page to replace an input.
    #[command(flatten)]
    force: ForceArgs,
    /// Print one JSON object for each schedule and length
    #[arg(long)]
    json: bool,
    /// Engine.
    #[command(flatten)]
    engine: EngineArgs,
}

/// Parses the largest number of keys of a curve.
fn longest(text: &str) -> Result<usize, String> {
    let (low, high) = (1 << LENGTHS.start(), 1 << LENGTHS.end());
    let keys = text.parse().ok().filter(|keys| (low..=high).contains(keys));
    keys.ok_or_else(|| format!("allowed: a whole number from {low} to {high}"))
}

/// Template variables of the page of curves.
#[derive(Template)]
#[template(path = "depth.html")]
struct Page<'a> {
    version: &'static str,
    charts: Vec<Picture>,
    grown: Vec<String>,
    explained: &'static str,
    steps: &'a [Step],
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the request is wrong, if the device fails, or if an error exceeds its bound.
pub fn depth_curve(args: &DepthCurveArgs) -> Result<(), Error> {
    if args.engine.half_scores {
        let (found, allowed) = ("given, and all tensors are f32".into(), "without it".into());
        return Err(Error::Argument { argument: "half-scores", found, allowed });
    }
    let mut reads = args.force.reads();
    args.engine.add_to(&mut reads);
    let page = args.html.as_deref().map(|path| Target::new("html", path, &reads)).transpose()?;
    let engine = args.engine.engine()?;
    let steps = measure(&engine, &args.engine.plan_options(), args.keys)?;
    let mut out = elsa_cli::foreign::stdout();
    if args.json {
        steps.iter().try_for_each(|step| report::json(&mut out, step))?;
    } else {
        print(&mut out, &steps)?;
    }
    if let Some(target) = page {
        let page = Page {
            version: env!("CARGO_PKG_VERSION"),
            charts: charts(&steps),
            grown: grown(&steps),
            explained: EXPLAINED,
            steps: &steps,
        };
        target.write(
            elsa_cli::foreign::page(&page.render().map_err(|e| Error::Print(std::io::Error::other(e)))?)
                .as_bytes(),
        )?;
    }
    let wrong = steps.iter().filter(|step| step.beyond > 0);
    let wrong: Vec<String> = wrong.map(|step| format!("{} at {} keys", step.schedule, step.keys)).collect();
    if wrong.is_empty() { Ok(()) } else { Err(Error::Verification(wrong.join(", "))) }
}

/// Softmax state of a set of keys.
type Keys = State<[f32; D]>;

/// Order of the additions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Schedule {
    Fold,
    TwoLevel,
    Tree,
}

impl Schedule {
    const ALL: [Schedule; 3] = [Schedule::Fold, Schedule::TwoLevel, Schedule::Tree];

    const fn name(self) -> &'static str {
        match self {
            Schedule::Fold => "fold",
            Schedule::TwoLevel => "two-level",
            Schedule::Tree => "tree",
        }
    }

    /// Returns the scan over single keys; `None` for the two-level order, which an engine's plan executes.
    const fn scan(self) -> Option<Scan> {
        match self {
            Schedule::Fold => Some(Scan::Sequential),
            Schedule::TwoLevel => None,
            Schedule::Tree => Some(Scan::Tree),
        }
    }
}

/// Results of a schedule for one number of keys, as `--json` prints them.
#[derive(Clone, Debug, Serialize)]
struct Step {
    /// Kind of the record: `depth`.
    pub what: &'static str,
    /// `fold`, `two-level` or `tree`.
    pub schedule: &'static str,
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Number of keys.
    pub keys: usize,
    /// Theoretical depth: ELSA's `L(n, B)` for a plan with blocks of `B` keys, `n − 1` for the fold, `log2 n` for the
    /// tree.
    pub theory: usize,
    /// Number of additions on the longest path of a weight, including the merges.
    pub additions: usize,
    /// Number of merges of states on the longest path of a weight.
    pub merges: usize,
    /// Worst-case bound on the relative error of the output.
    pub bound: f64,
    /// Part of the bound that does not depend on the order of additions.
    pub constant: f64,
    /// Measured relative error with random tensors.
    pub random: f64,
    /// Measured relative error with repeated tokens.
    pub repeated: f64,
    /// Number of output components whose errors exceed their bounds.
    pub beyond: usize,
}

/// The problem and its input tensors for one number of keys.
struct Tensors {
    problem: Problem,
    q: Buffer,
    k: Buffer,
    v: Buffer,
}

impl Tensors {
    fn new(keys: usize, repeated: bool) -> Result<Tensors, Error> {
        let problem = Shape::plain(1, 1, ROWS, keys, D).problem(DType::F32)?;
        let spec = problem.spec();
        let mut random = Random::new(15);
        let q = random.normals("q", DType::F32, spec.query.extent(), 1.0)?;
        let mut k = random.normals("k", DType::F32, spec.key.extent(), 1.0)?;
        let mut v = random.normals("v", DType::F32, spec.value.extent(), 1.0)?;
        if let (Buffer::F32(k), Buffer::F32(v)) = (&mut k, &mut v) {
            if repeated {
                k.fill(0.0);
                v.fill(4.0 / 3.0);
            } else {
                // Values are not centred on zero, so that sums grow.
                v.iter_mut().for_each(|v| *v += 1.0);
            }
        }
        Ok(Tensors { problem, q, k, v })
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs::new(self.q.elements(), self.k.elements(), self.v.elements())
    }
}

/// Computes the output by `schedule`, and returns it with the structure of the executed arithmetic.
fn answer(
    tensors: &Tensors,
    schedule: Schedule,
    engine: &Engine,
    options: &PlanOptions,
) -> Result<(Buffer, Executed), Error> {
    let problem = &tensors.problem;
    let mut output = Buffer::zeros("out", DType::F32, problem.spec().output.extent())?;
    let Some(scan) = schedule.scan() else {
        let plan = engine.plan(problem, options)?;
        let mut workspace = plan.workspace()?;
        let outputs = Outputs::new(output.elements_mut());
        let report = plan.run(tensors.inputs(), outputs, &mut workspace)?;
        return Ok((output, plan.certificate_of(report.backend).executed));
    };
    let keys = problem.keys();
    let additions = scan.depth(ScanForm::Reduction, keys).unwrap_or(keys);
    // A fold is one chain; in a tree every key is a segment of its own.
    let (merge_depth, chain) = if scan == Scan::Tree { (additions, 1) } else { (0, keys) };
    let executed = Executed {
        kernel: scan.name(),
        block: 1,
        segment_blocks: 1,
        merge_depth,
        additions,
        into_s: additions,
        into_w: additions,
        chain: D,
        chain_depth: 0,
        fused: false,
        // exp2f of libm is off by less than a unit in the last place.
        exp2_relative: 2.0 * DType::F32.unit_roundoff(),
        half_chain: 0,
        split: false,
        one_product: false,
        order: Order {
            lanes: 1,
            values: chain,
            weights: chain,
            segment: chain,
            references: 1,
            normalizes: false,
        },
    };
    let (Buffer::F32(q), Buffer::F32(k), Buffer::F32(v)) = (&tensors.q, &tensors.k, &tensors.v) else {
        return Ok((output, executed));
    };
    let base_2 = problem.scale() * std::f32::consts::LOG2_E;
    for query in 0..ROWS {
        let q = &q[query * D..][..D];
        let mut states: Vec<Keys> = Vec::new();
        let bytes = keys.saturating_mul(size_of::<Keys>());
        states.try_reserve_exact(keys).map_err(|_| MemoryError { argument: "keys", bytes })?;
        let lines = k.as_chunks::<D>().0.iter().zip(v.as_chunks::<D>().0);
        states.extend(lines.map(|(k, v)| {
            let dot = q.iter().zip(k).fold(0.0, |sum, (a, b)| sum + a * b);
            Keys::of(dot * base_2, v)
        }));
        let mut whole =
            scan.reduce(&mut states, &mut []).map_err(|fault| Error::Print(std::io::Error::other(fault)))?;
        whole.finish();
        let mut elements = output.elements_mut();
        for (c, y) in whole.w.into_iter().enumerate() {
            elements.set(query * D + c, y);
        }
    }
    Ok((output, executed))
}

/// Returns `executed` without its additions. The bound of the result is the part of the bound that does not depend on
/// the order of additions.
fn still(executed: Executed) -> Executed {
    let order = Order { values: 0, weights: 0, segment: usize::MAX, ..executed.order };
    Executed { merge_depth: 0, additions: 0, into_s: 0, into_w: 0, order, ..executed }
}

/// Comparison of all rows of an output with the oracle. The absolute terms of a row are its `Σ p_j |v_j|`.
#[derive(Clone, Copy, Debug, Default)]
struct Compared {
    /// Largest error of a row, relative to the row's `Σ p_j |v_j|`.
    error: f64,
    /// Largest error bound of a row, relative to the row's `Σ p_j |v_j|`.
    bound: f64,
    /// Number of output components whose errors exceed their bounds.
    beyond: usize,
}

/// Compares the output `found` with the oracle's output, and the errors with the bounds that follow from `executed`.
fn compare(tensors: &Tensors, executed: Executed, found: Elements<'_>) -> Compared {
    let (problem, inputs) = (&tensors.problem, tensors.inputs());
    let all = rows(problem, &inputs);
    let judged = for_rows(
        &all,
        || Oracle::new(problem, inputs, &executed),
        |oracle, row| {
            oracle.row(row);
            let at = output_row(problem, &inputs, row);
            let Comparison { explained, sizes, .. } =
                Comparison::of(oracle, |c| f64::from(found.get(at + c)));
            Compared {
                error: sizes.relative(sizes.error),
                bound: sizes.relative(sizes.bound),
                beyond: explained.beyond + explained.not_finite,
            }
        },
        |_| {},
    );
    judged.into_iter().fold(Compared::default(), |all, row| Compared {
        error: larger(all.error, row.error),
        bound: larger(all.bound, row.bound),
        beyond: all.beyond + row.beyond,
    })
}

/// Measures every schedule at every power of two up to `longest` keys.
///
/// # Errors
/// Returns an error if the engine refuses the options, if the device fails, or if memory is not available.
fn measure(engine: &Engine, options: &PlanOptions, longest: usize) -> Result<Vec<Step>, Error> {
    let lengths: Vec<usize> = LENGTHS.map(|power| 1 << power).filter(|n| *n <= longest).collect();
    // The lengths add up to about twice the longest. A key takes about a tenth of a microsecond per row and oracle.
    let seconds = lengths.iter().sum::<usize>() as f64 * 2e-6;
    let bar = progress::bar((lengths.len() * Schedule::ALL.len()) as u64, seconds);
    let mut steps = Vec::new();
    for keys in lengths {
        let sets = [Tensors::new(keys, false)?, Tensors::new(keys, true)?];
        for schedule in Schedule::ALL {
            let (output, executed) = answer(&sets[0], schedule, engine, options)?;
            let random = compare(&sets[0], executed, output.elements());
            let still = still(executed);
            let constant = compare(&sets[0], still, output.elements()).bound;
            let (output, executed) = answer(&sets[1], schedule, engine, options)?;
            let repeated = compare(&sets[1], executed, output.elements());
            let depth = |scan: Scan| scan.depth(ScanForm::Reduction, keys);
            steps.push(Step {
                what: "depth",
                schedule: schedule.name(),
                kernel: executed.kernel,
                keys,
                theory: schedule.scan().and_then(depth).unwrap_or_else(|| elsa_depth(keys, executed.block)),
                additions: executed.additions,
                merges: schedule.scan().and_then(depth).unwrap_or(executed.merge_depth),
                bound: random.bound,
                constant,
                random: random.error,
                repeated: repeated.error,
                beyond: random.beyond + repeated.beyond,
            });
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    // Sorted by schedule, then by length.
    let place = |name| Schedule::ALL.into_iter().position(|schedule| schedule.name() == name);
    steps.sort_by_key(|step| (place(step.schedule), step.keys));
    Ok(steps)
}

/// Writes a table of the results, its explanation, and the growth of each schedule.
///
/// # Errors
/// Returns an error if the writer fails.
fn print(out: &mut impl Write, steps: &[Step]) -> std::io::Result<()> {
    writeln!(
        out,
        "{:<10}{:>9}{:>9}{:>11}{:>8}{:>11}{:>11}{:>11}{:>11}",
        "schedule", "keys", "theory", "additions", "merges", "bound", "constant", "random", "repeated"
    )?;
    for step in steps {
        let Step { schedule, keys, theory, additions, merges, bound, constant, random, repeated, .. } = step;
        writeln!(
            out,
            "{schedule:<10}{keys:>9}{theory:>9}{additions:>11}{merges:>8}{bound:>11.2e}{constant:>11.2e}\
             {random:>11.2e}{repeated:>11.2e}"
        )?;
    }
    writeln!(out, "{}", EXPLAINED.trim_end())?;
    for line in grown(steps) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Explanation of the columns of the table.
const EXPLAINED: &str = "\
theory: L(n, B) of ELSA for the plan's two-level schedule, n - 1 for the fold, log2 n for the tree. bound and errors are
relative to sum p |v|. constant: the part of the bound that no order of additions changes, from rounding of scores, the
exponential and the division; the rest are the roundings of the partial sums of both sums, at most 2^-24 of each. random:
measured on random tensors. repeated: measured on equal tokens, whose roundings all have the same sign in a fold and are exact in a tree.
";

/// Describes the growth of each schedule from its smallest number of keys to its largest.
fn grown(steps: &[Step]) -> Vec<String> {
    let of = |schedule: Schedule| {
        let mut its = steps.iter().filter(|step| step.schedule == schedule.name());
        let first = its.next()?;
        let last = its.next_back()?;
        Some(format!(
            "{}: {} to {} keys, additions {} to {}, bound {:.1e} to {:.1e}, error of repeated tokens {:.1e} to {:.1e}",
            schedule.name(),
            first.keys,
            last.keys,
            first.additions,
            last.additions,
            first.bound,
            last.bound,
            first.repeated,
            last.repeated
        ))
    };
    Schedule::ALL.into_iter().filter_map(of).collect()
}

/// Draws curves of bounds and errors against the number of keys.
fn charts(steps: &[Step]) -> Vec<Picture> {
    /// Function that returns the quantity that a curve shows for a step.
    type Of = fn(&Step) -> f64;
    let pictures: [(&str, &'static str, Of); 4] = [
        ("Worst-case bound", "of sum p |v|", |step| step.bound),
        ("Additions on the longest path", "additions", |step| step.additions as f64),
        ("Error where tokens repeat", "of sum p |v|", |step| step.repeated),
        ("Error where numbers are random", "of sum p |v|", |step| step.random),
    ];
    let curves = |of: Of| {
        let curve = |schedule: Schedule| {
            // An error of zero has no place on a logarithmic scale.
            let its = steps.iter().filter(|step| step.schedule == schedule.name() && of(step) > 0.0);
            let dot = |step: &Step| {
                Dot::new(step.keys as f64, of(step), format!("{} keys: {:.2e}", step.keys, of(step)))
            };
            Raw::new(schedule.name(), its.map(dot))
        };
        Schedule::ALL.map(curve).into()
    };
    let picture = |(title, unit, of): (&str, &'static str, Of)| {
        chart(title.to_owned(), [Axis::log("keys"), Axis::log(unit)], curves(of), true)
    };
    pictures.into_iter().filter_map(picture).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_runtime::EngineOptions;

    #[test]
    fn the_fold_grows_with_the_keys_and_the_tree_with_their_logarithm() {
        let engine = Engine::new(&EngineOptions::default()).unwrap();
        let steps = measure(&engine, &PlanOptions::default(), 1 << 12).unwrap();
        assert_eq!(steps.len(), 3 * 5);
        assert!(steps.iter().all(|step| step.beyond == 0 && step.random > 0.0), "{steps:?}");
        let of = |name: &str| -> Vec<&Step> { steps.iter().filter(|step| step.schedule == name).collect() };
        let (fold, tree, plan) = (of("fold"), of("tree"), of("two-level"));
        for (i, power) in (8..=12u32).enumerate() {
            let keys = 1usize << power;
            assert_eq!((fold[i].keys, fold[i].additions, fold[i].theory), (keys, keys - 1, keys - 1));
            assert_eq!((tree[i].additions, tree[i].merges), (power as usize, power as usize));
            assert!(plan[i].additions < fold[i].additions && plan[i].merges <= tree[i].merges);
            // The additions of a tree are exact if tokens repeat.
            assert!(tree[i].repeated < 2e-7, "{:?}", tree[i]);
        }
        // From 2^8 to 2^12 keys, the fold's bound becomes 16 times as large. The tree's bound grows by one rounding per
        // sum for each doubling of the number of keys.
        let growth = (fold[4].bound - fold[4].constant) / (fold[0].bound - fold[0].constant);
        assert!((13.0..19.0).contains(&growth), "{growth}");
        assert!(fold[4].constant < 2.0 * fold[0].constant && fold[0].constant < fold[0].bound / 4.0);
        let step = (tree[4].bound - tree[0].bound) / 4.0 / DType::F32.unit_roundoff();
        assert!((0.5..2.5).contains(&step), "{step}");
        let errors = fold[4].repeated / fold[0].repeated;
        assert!((12.0..20.0).contains(&errors), "{errors}");
        assert!(charts(&steps).len() >= 3 && grown(&steps).len() == 3);
    }
}
