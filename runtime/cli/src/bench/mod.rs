//! `elsa bench`: latency on this machine, with every answer checked.
//!
//! | module | what it has |
//! |---|---|
//! | `args`, `grid` | the flags; which shapes are measured |
//! | `measure`, `subject`, `stats` | how a shape is measured, and what is made of the times |
//! | `watch` | the machine beside the measurement, and the gate that refuses cells |
//! | `output` | where records go: `table`, `json`, `csv`, `html` with its `chart`s, `export`, `save` |
//! | `compare`, `spot` | two runs beside each other; a short run beside a saved one |
//! | `soak` | one shape at a fixed rate for a long time |

mod args;
mod chart;
mod compare;
mod csv;
mod export;
mod grid;
mod html;
mod json;
mod measure;
mod output;
mod progress;
mod save;
mod stats;
mod subject;
mod table;
mod target;
mod watch;

pub use args::BenchArgs;
pub use html::page;
pub use json::line;

use crate::error::Error;
use args::BOTH;
use elsa_core::telemetry::record::{Record, text};
use elsa_runtime::{Backend, Engine, Method};
use grid::{Case, cases};
use measure::{Measured, Settings, described, measure};
use output::Output;
use progress::Progress;
use std::time::Instant;
use watch::{Gate, Watch};

/// The table of `cells` as CSV.
///
/// # Errors
/// None: memory takes every table.
pub fn table(cells: &[elsa_core::telemetry::record::Cell]) -> std::io::Result<Vec<u8>> {
    csv::table(cells).map_err(std::io::Error::other)
}

/// Runs the command.
///
/// # Errors
/// Wrong requests, failing devices, answers that are wrong, rows that are slower than those they are compared with, and
/// cells that are not clean.
pub fn bench(args: &BenchArgs) -> Result<(), Error> {
    if let Some([before, after]) = args.compare.as_deref() {
        return compare::compare(&mut std::io::stdout().lock(), before, after, args.json);
    }
    let engine = args.engine.engine()?;
    let methods = args.method.unwrap_or(BOTH);
    if engine.backend() == Backend::Cuda && methods.contains(&Method::Math) {
        if args.method.is_some() {
            return Err(Error::Argument {
                argument: "method",
                found: "math with the back end cuda".into(),
                allowed: "elsa, or another back end".into(),
            });
        }
        log::info!("the back end cuda has no method math: only elsa is measured");
    }
    let cases = cases(args).map_err(|found| Error::Argument {
        argument: "workload",
        found,
        allowed: "a shape".into(),
    })?;
    // A shape that is no problem is known before anything is measured.
    cases.iter().try_for_each(|case| case.shape.problem(case.dtype).map(drop))?;
    run(args, &engine, methods, &cases)
}

/// Measures `cases`.
fn run(args: &BenchArgs, engine: &Engine, methods: &[Method], cases: &[Case]) -> Result<(), Error> {
    let began = Instant::now();
    let gate = match (args.wait, args.force) {
        (true, _) => Gate::Wait,
        (_, true) => Gate::Force,
        _ => Gate::Refuse,
    };
    let mut watch = Watch::start(gate, engine);
    watch.notes().iter().for_each(|note| log::info!("{note}"));
    let start = watch.describe(engine);
    let shapes = cases.iter().map(|case| (case.workload, case.shape.to_string()));
    let mut output = Output::new(args, &start, table::width(shapes))?;
    let settings = Settings {
        methods,
        lenient: args.method.is_none(),
        options: args.engine.plan_options(),
        seconds: args.seconds,
        warmup: args.warmup,
        iterations: args.iterations.unwrap_or(1) as u64,
        keep: output.keeps_times(),
    };
    let mut progress = Progress::new(cases.len(), args.seconds);
    progress.suspend(|| output.record(&Record::Start(start.clone())))?;
    for case in cases {
        progress.begin(&format!("{} {}", case.shape, case.dtype));
        let measured = cell(engine, &settings, case, &watch, &progress, &mut output)?;
        watch.note(!measured.is_empty() && measured.iter().all(|measured| measured.cell.clean));
        for trace in watch.traces() {
            progress.suspend(|| output.record(&Record::Trace(trace)))?;
        }
        progress.end();
        measured.iter().try_for_each(verify)?;
    }
    drop(progress);
    let end = output.end(began.elapsed().as_secs_f64())?;
    if end.clean_cells < end.cells {
        let found = format!("{} of {} cells are not clean", end.cells - end.clean_cells, end.cells);
        return Err(Error::Unclean(found));
    }
    Ok(())
}

/// Measures `case` and prints it, or prints why it is refused.
fn cell(
    engine: &Engine,
    settings: &Settings<'_>,
    case: &Case,
    watch: &Watch,
    progress: &Progress,
    output: &mut Output,
) -> Result<Vec<Measured>, Error> {
    let refusal = watch.refusal();
    if refusal.is_empty() {
        let measured = measure(engine, settings, case, watch, progress)?;
        progress.suspend(|| measured.iter().try_for_each(|measured| output.measured(measured)))?;
        return Ok(measured);
    }
    let mut cell = described(case, engine, engine.backend());
    cell.method = text(settings.methods.first().map_or("", |method| subject::name(*method)));
    for unknown in [&mut cell.p50_ms, &mut cell.p90_ms, &mut cell.p99_ms, &mut cell.max_ms, &mut cell.cold_ms] {
        *unknown = f64::NAN;
    }
    (cell.gflops, cell.rel_l2) = (f64::NAN, f64::NAN);
    watch::mark(&mut cell, &refusal);
    progress.suspend(|| output.record(&Record::Cell(cell)))?;
    Ok(Vec::new())
}

/// Refuses an answer that rounding does not explain.
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
