//! `elsa bench`: latency on this machine, with every answer checked.
//!
//! | module | content |
//! |---|---|
//! | `args`, `grid` | the flags, and the shapes to measure |
//! | `method` | the methods that are compared: those of a plan, and a baseline |
//! | `measure`, `subject` | the measurement of a shape, and statistics of its times |
//! | `packing` | the cost of copies from padded to packed sequences |
//! | `watch` | the state of the machine during the measurement, and the gate that refuses cells |
//! | `output` | where records go: `text`, `csv`, `html` with its `chart`s, `export`, `save` |
//! | `compare`, `spot` | comparison of two runs, and comparison of a short run with a saved run |
//! | `soak`, `realtime` | one shape at a fixed rate for a long time, and its cores, priority and locked memory |
//! | `exec`, `phases` | the readings around any program, and their rows |

mod args;
mod chart;
mod compare;
mod csv;
mod exec;
mod export;
mod grid;
mod html;
mod measure;
mod method;
mod output;
mod packing;
pub mod phases;
mod progress;
mod realtime;
mod save;
mod soak;
mod spot;
mod subject;
mod text;
pub mod watch;

pub use args::BenchArgs;
pub use compare::changes;
pub use csv::{Row, rows, table};
pub use grid::{Case, DIM, GRID, cases};
pub use html::{Records, page};
pub use text::{footer, header, headline, row};

use crate::error::{Error, say};
use args::BOTH;
use elsa_board::Root;
use elsa_core::telemetry::record::{self, Cell, Record};
use elsa_runtime::{Engine, PlanOptions};
use measure::{Measured, Settings, described, measure};
use method::Algorithm;
use output::{Output, Table};
use progress::Progress;
use std::path::PathBuf;
use std::time::Instant;
use watch::{Reason, Watch, require_clean};

/// Runs the command.
///
/// # Errors
/// Returns an error for a wrong request, a failing device or a wrong output, for rows that are slower than the same
/// rows of the compared table, or for cells that are not clean.
pub fn bench(args: &BenchArgs) -> Result<(), Error> {
    if let Some([before, after]) = args.compare.as_deref() {
        return compare::compare(&mut crate::foreign::stdout(), before, after, args.json);
    }
    if let Some(words) = &args.exec {
        return exec::exec(args, words, &Root::machine());
    }
    let options = args.traversal.options(args.engine.plan_options())?;
    args.real_time.check()?;
    let engine = args.engine.engine_from(args.real_time.options())?;
    let methods = args.method.unwrap_or(BOTH);
    let cases = cases(&args.shape, &args.workload, args.dtype, args.heads)?;
    let cases = if args.spot.is_some() { spot::cases() } else { cases };
    // A shape that is not a valid problem is reported before anything is measured.
    cases.iter().try_for_each(|case| case.shape.problem(case.dtype).map(drop))?;
    run(args, options, &engine, methods, &cases)
}

/// Measures `cases`. With `--soak`, runs only the first case, for a long time.
fn run(
    args: &BenchArgs,
    options: PlanOptions,
    engine: &Engine,
    methods: &[Algorithm],
    cases: &[Case],
) -> Result<(), Error> {
    let began = Instant::now();
    let mut watch = Watch::start(args.gate, engine);
    let start = watch.describe(Some(engine));
    let recorded = {
        let record = |given: &Option<PathBuf>| spot::record(given.as_deref(), watch.board(), &start);
        args.spot.as_ref().map(record).transpose()?
    };
    let shapes = cases.iter().map(|case| (case.workload, case.shape.to_string()));
    let table = if args.wide { Table::Wide(text::width(shapes)) } else { Table::Short };
    let mut output = Output::new(args, watch.board(), &start, table)?;
    let settings = Settings {
        methods,
        lenient: args.method.is_none(),
        options,
        seconds: args.seconds,
        warmup: args.warmup,
        iterations: args.iterations.unwrap_or(1) as u64,
        keep: output.keeps_times(),
    };
    // A spot check measures only its points, and each for half the time.
    let settings_of = |case: &Case| match recorded {
        Some(_) => Settings { methods: spot::methods(case), seconds: args.seconds / 2.0, ..settings },
        None => settings,
    };
    output.record(&Record::Start(start))?;
    if let (Some(time), Some(case)) = (args.soak, cases.first()) {
        let reasons = watch.refusal(say);
        let method = methods.first().copied().unwrap_or(Algorithm::Elsa);
        if reasons.is_empty() {
            return soak::soak(args, time, engine, case, method, &mut watch, output);
        }
        output.record(&Record::Cell(refused(engine, &settings, case, &reasons)))?;
        let end = output.end(began.elapsed().as_secs_f64())?;
        return require_clean(end.clean_cells as usize, end.cells as usize);
    }
    let mut all = Vec::new();
    let mut progress = Progress::new(cases.len(), args.seconds);
    for case in cases {
        progress.begin(&format!("{} {}", case.shape, case.dtype));
        let reasons = watch.refusal(|line| progress.suspend(|| say(line)));
        if reasons.is_empty() {
            let measured = measure(engine, &settings_of(case), case, &watch, &progress)?;
            progress.suspend(|| output.measured(&measured))?;
            watch.note(measured.iter().all(|measured| measured.cell.clean));
            measured.iter().try_for_each(verify)?;
            all.extend(measured.into_iter().filter(|_| recorded.is_some()));
        } else {
            progress.suspend(|| output.record(&Record::Cell(refused(engine, &settings, case, &reasons))))?;
        }
        for trace in watch.traces() {
            progress.suspend(|| output.record(&Record::Trace(trace)))?;
        }
        progress.end();
    }
    for _ in 0..if recorded.is_some() { spot::AGAIN } else { 0 } {
        for case in recorded.iter().flat_map(|(_, rows)| spot::slower(rows, &all)).collect::<Vec<_>>() {
            if watch.refusal(|line| progress.suspend(|| say(line))).is_empty() {
                let measured = measure(engine, &settings_of(&case), &case, &watch, &progress)?;
                progress.suspend(|| output.measured(&measured))?;
                measured.iter().try_for_each(verify)?;
                spot::keep_faster(&mut all, measured);
            }
        }
    }
    drop(progress);
    watch.notes().iter().try_for_each(|note| output.note(note))?;
    let end = output.end(began.elapsed().as_secs_f64())?;
    if let Some((path, rows)) = recorded {
        spot::judge(&mut crate::foreign::stdout(), args.json, &path, &rows, &all)?;
    }
    require_clean(end.clean_cells as usize, end.cells as usize)
}

/// Builds the row of a case that is not measured.
fn refused(engine: &Engine, settings: &Settings<'_>, case: &Case, reasons: &[Reason]) -> Cell {
    let mut cell = described(case, engine, engine.backend());
    cell.method = record::text(settings.methods.first().map_or("", |method| method.name()));
    for unknown in [&mut cell.p50_ms, &mut cell.p90_ms, &mut cell.p99_ms, &mut cell.max_ms, &mut cell.cold_ms]
    {
        *unknown = f64::NAN;
    }
    (cell.gflops, cell.tokens_per_s, cell.rel_l2) = (f64::NAN, f64::NAN, f64::NAN);
    watch::mark(&mut cell, reasons);
    cell
}

/// Returns an error if rounding cannot explain the difference between the output and the oracle.
fn verify(measured: &Measured) -> Result<(), Error> {
    let (cell, explained) = (&measured.cell, &measured.total.explained);
    if explained.holds() {
        return Ok(());
    }
    Err(Error::Verification(format!(
        "{} at {}: {} components are not finite, {} further from the oracle than rounding explains; rel L2 {:.3e}, \
         allowed {:.3e}",
        cell.method,
        cell.shape,
        explained.not_finite,
        explained.beyond,
        cell.rel_l2,
        explained.worst()
    )))
}
