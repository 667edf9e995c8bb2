//! `cargo xtask test`: runs stages in concurrent lanes, and records the counts and times of the stages. Each stage runs in a
//! separate process, whose output is written to `target/test-logs`.

mod absent;
mod arm;
mod ask;
mod boards;
pub mod bounds;
mod camera;
pub mod capi;
mod cargo;
mod check;
mod day;
mod deploy;
mod dist;
mod examples;
mod fuzz;
mod groups;
mod guards;
mod guide;
mod house;
mod install;
mod limit;
mod links;
mod log;
mod mpi;
mod musl;
mod ort;
mod plan;
mod printed;
mod prove;
mod python;
mod readme;
pub mod release;
mod results;
mod robot;
mod ros;
mod sanitizers;
mod seeds;
mod slices;
mod stages;
mod tensorrt;
mod vision;
mod workspace;

pub use stages::list;

use crate::shell::{Run, Tree, processor_seconds, side_by_side};
use ask::Ask;
use limit::Watch;
use plan::{Part, Progress};
use results::{Outcome, Results};
use stages::{STAGES, Stage};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Arguments of a run.
#[derive(clap::Args)]
pub struct Arguments {
    /// Run the inner loop: formatting, structure, lints, native tests.
    #[arg(long, conflicts_with_all = ["only", "all"])]
    fast: bool,
    /// Run every stage; stages that have passed for the current tree are skipped.
    #[arg(long, conflicts_with = "only")]
    all: bool,
    /// Run the i-th of n parts of `--all`, which take similar times.
    #[arg(long, value_name = "I/N", requires = "all")]
    part: Option<Part>,
    /// Total minutes for the stages `fuzz` and `hunt`.
    #[arg(long, default_value_t = 30, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// Run only these stages.
    #[arg(long, value_name = "STAGE", value_delimiter = ',', value_parser = STAGES.iter().map(|stage| stage.name).collect::<Vec<_>>())]
    only: Vec<String>,
    /// List the stages and run nothing.
    #[arg(long)]
    list: bool,
    /// Run this stage in this process, as the subprocess of a stage does.
    #[arg(long, hide = true, value_name = "STAGE")]
    within: Option<String>,
    #[command(flatten)]
    prove: prove::Asked,
}

/// Runs the requested stages; prints a line for each stage, and a summary table.
pub fn run(tree: &Tree, asked: &Arguments) -> ExitCode {
    let ask = Ask { fast: asked.fast, minutes: asked.minutes };
    if asked.list {
        print!("{}", list());
        return ExitCode::SUCCESS;
    }
    if asked.prove.is_some() {
        return prove::run(tree, &asked.prove);
    }
    match &asked.within {
        Some(name) => stages::named(name).map_or(ExitCode::FAILURE, |stage| within(tree, stage, ask)),
        None => run_all(tree, asked, ask),
    }
}

fn log_of(tree: &Tree, stage: &Stage) -> PathBuf {
    tree.target.join("test-logs").join(format!("{}.log", stage.name))
}

fn told_by(tree: &Tree, stage: &Stage) -> PathBuf {
    log_of(tree, stage).with_extension("json")
}

/// Runs a stage in this process and writes the outcome of the stage for the process that started this process.
fn within(tree: &Tree, stage: &Stage, ask: Ask) -> ExitCode {
    let start = Instant::now();
    let ran = (stage.run)(tree, ask).close();
    // If a stage failed before any of its tests could fail, this counts as one failed check.
    let failed = ran.failed.max(u64::from(!ran.faults.is_empty()));
    let outcome = Outcome {
        passed: ran.passed,
        failed,
        summary: ran.summary(),
        faults: ran.faults,
        seconds: start.elapsed().as_secs_f64(),
        processor_seconds: processor_seconds(),
        minutes: ask.minutes,
    };
    match results::keep(&told_by(tree, stage), &outcome) {
        Ok(()) if outcome.good() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(fault) => {
            eprintln!("{fault}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a stage in a separate process and returns its outcome.
fn outcome(tree: &Tree, stage: &Stage, ask: Ask) -> Outcome {
    let (log, told) = (log_of(tree, stage), told_by(tree, stage));
    // An outcome that an earlier run left would be mistaken for the outcome of this run.
    let _ = std::fs::remove_file(&told);
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Outcome::untold(&error.to_string()),
    };
    let run = Run::new(tree, "").arg(program).args(&format!("test --within {}", stage.name));
    let run = run.args(&format!("--minutes {}", ask.minutes)).args(if ask.fast { "--fast" } else { "" });
    let how = run.into_file(&log);
    results::read(&told).unwrap_or_else(|| Outcome::untold(&how))
}

/// Outcomes of the stages that ran or had passed before, in the order of [`STAGES`].
type Done = Vec<(&'static Stage, Outcome)>;

fn run_all(tree: &Tree, asked: &Arguments, ask: Ask) -> ExitCode {
    let results = Results::of(tree);
    let before = guards::hashes(tree);
    let named = |stage: &&Stage| asked.only.iter().any(|name| name == stage.name);
    let mut faults = Vec::new();
    let mut chosen: Vec<&Stage> = if asked.all {
        asked.part.unwrap_or_default().of(STAGES, ask.minutes)
    } else if asked.fast {
        STAGES.iter().filter(|stage| matches!(stage.name, "check" | "host")).collect()
    } else if !asked.only.is_empty() {
        STAGES.iter().filter(named).collect()
    } else {
        STAGES.iter().filter(|stage| stage.short).collect()
    };
    let short = !asked.all && !asked.fast && asked.only.is_empty();
    if short {
        match guards::wanted(tree) {
            Ok(wanted) => chosen.extend(wanted),
            Err(fault) => faults.push(fault),
        }
    }
    let mut done: Done = Vec::new();
    if asked.all {
        let passed = |stage: &&'static Stage| Some((*stage, results.green(stage.name, ask.minutes)?));
        done.extend(chosen.iter().filter_map(passed));
        chosen.retain(|stage| done.iter().all(|(before, _)| before.name != stage.name));
    }
    let watch = short.then(Watch::start);
    let progress = Progress::new(&chosen, &results.seconds(), ask.minutes);
    println!("{}; logs: {}", progress.opening(), tree.target.join("test-logs").display());
    for (stage, _) in &done {
        println!("{:<10}has passed for the tree as it is", stage.name);
    }
    // Stages run one after another if the processor has only one core, or if the run has only one lane.
    let ran = side_by_side(progress.lanes(), |lane: Vec<&'static Stage>| {
        let run = |stage: &'static Stage| {
            progress.begin(stage);
            let outcome = outcome(tree, stage, ask);
            progress.end(stage, &outcome);
            log::show(&log_of(tree, stage), stage.name, &outcome);
            let (seconds, good) = (outcome.seconds, outcome.good());
            let kept = if good && !ask.fast {
                results
                    .add(tree, stage.name, &outcome)
                    .and_then(|()| results.took(stage.name, seconds))
                    .and_then(|()| {
                        guards::keep_passed(tree, stage.name, before.as_ref().unwrap_or(&Default::default()))
                    })
            } else {
                Ok(())
            };
            if let Err(fault) = kept {
                println!("not kept: {fault}");
            }
            (stage, outcome)
        };
        lane.into_iter().map(run).collect::<Done>()
    });
    done.extend(ran.into_iter().flatten());
    if let Some(watch) = watch {
        let beyond = chosen.iter().filter(|stage| !stage.short);
        let beyond: f64 = beyond.map(|stage| plan::seconds(stage, ask.minutes)).sum();
        let processor_seconds = done.iter().map(|(_, outcome)| outcome.processor_seconds).sum();
        let verdict = watch.verdict(processor_seconds, beyond);
        println!("{}", verdict.line);
        faults.extend(verdict.late.then(|| format!("{}; the table shows which stage grew", verdict.line)));
    }
    finish(tree, asked, &results, before, done, faults)
}

/// Prints the summary table and the stages that did not run. If every stage has passed, writes the hashes of guarded files.
fn finish(
    tree: &Tree,
    asked: &Arguments,
    results: &Results,
    hashes: Result<guards::Hashes, String>,
    mut done: Done,
    mut faults: Vec<String>,
) -> ExitCode {
    let mut open: Vec<&str> = Vec::new();
    if asked.all {
        // Earlier runs may have run the stages of other parts.
        let absent = |stage: &&Stage| done.iter().all(|(ran, _)| ran.name != stage.name);
        for stage in STAGES.iter().filter(absent).collect::<Vec<_>>() {
            match results.green(stage.name, asked.minutes) {
                Some(outcome) => done.push((stage, outcome)),
                None => open.push(stage.name),
            }
        }
    }
    let place = |name: &str| STAGES.iter().position(|stage| stage.name == name);
    done.sort_by_key(|(stage, _)| place(stage.name));
    let good: Vec<&str> = done.iter().filter(|(_, out)| out.good()).map(|(stage, _)| stage.name).collect();
    if asked.all && open.is_empty() && good.len() == STAGES.len() {
        let written = hashes.and_then(|hashes| guards::write(tree, &hashes));
        match written {
            Ok(true) => println!("{} has changed: commit it", results::FILE),
            Ok(false) => {}
            Err(fault) => faults.push(fault),
        }
    }

    println!("\n{}", results::heading());
    for (stage, outcome) in &done {
        println!("{}", outcome.line(stage.name));
    }
    for (stage, outcome) in &done {
        for fault in &outcome.faults {
            println!("[{}] failed: {fault}", stage.name);
        }
    }
    for fault in &faults {
        println!("failed: {fault}");
    }
    if !open.is_empty() {
        println!("not yet: {}", open.join(", "));
    }
    // The stage host has built the tool.
    if good.contains(&"host") {
        let info = Run::new(tree, "").arg(tree.target.join("debug/elsa")).args("info --json").quiet().run();
        match info.text("elsa info --json").and_then(|text| absent::not_run(&text, &good, asked.fast)) {
            Ok(absent) => absent.iter().for_each(|line| println!("{line}")),
            Err(fault) => println!("not known what was not run: {fault}"),
        }
    }
    let passed: u64 = done.iter().map(|(_, outcome)| outcome.passed).sum();
    let failed = done.iter().map(|(_, outcome)| outcome.failed).sum::<u64>() + faults.len() as u64;
    println!("{passed} passed, {failed} failed");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
