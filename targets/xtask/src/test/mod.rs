//! `cargo xtask test`: the stages, run one after the other and counted.

mod absent;
pub mod bounds;
mod capi;
mod cargo;
mod cross;
mod deploy;
mod examples;
mod fuzz;
mod house;
mod links;
mod ort;
mod printed;
mod python;
mod readme;
mod release;
mod sanitizers;
mod seeds;
mod stages;
mod tensorrt;
mod vision;
mod workspace;

pub use stages::STAGES;

use crate::shell::{Run, Tree, processor_seconds};
use stages::Stage;
use std::process::ExitCode;
use std::time::Instant;

/// Runs the stages of these names, or all, or the fast ones; prints a line for each.
pub fn run(tree: &Tree, fast: bool, only: &[String]) -> ExitCode {
    let wanted = |stage: &Stage| {
        if only.is_empty() { !fast || stage.fast } else { only.iter().any(|x| x == stage.name) }
    };
    let mut lines = Vec::new();
    let (mut good, mut host) = (Vec::new(), false);
    let (mut passed, mut failed) = (0, 0);
    for stage in STAGES.iter().filter(|stage| wanted(stage)) {
        println!("\n[{}] {}", stage.name, stage.about);
        let (start, worked) = (Instant::now(), processor_seconds());
        let ran = (stage.run)(tree).close();
        for fault in &ran.faults {
            println!("[{}] failed: {fault}", stage.name);
        }
        let ok = ran.faults.is_empty();
        passed += ran.passed;
        // A stage that failed before any of its tests could counts as one.
        failed += ran.failed.max(u64::from(!ok));
        good.extend(ok.then_some(stage.name));
        host |= stage.name == "host";
        let result = if ok { "ok" } else { "FAILED" };
        let seconds = start.elapsed().as_secs_f64();
        let worked = processor_seconds() - worked;
        let line = format!("{:<12}{result:<8}{:<44}{seconds:>8.1} s", stage.name, ran.summary());
        lines.push(format!("{line}{worked:>8.0} s of processors"));
    }
    println!();
    for line in lines {
        println!("{line}");
    }
    // The stage host has built the tool.
    if host {
        let info = Run::new(tree, "").arg(tree.target.join("debug/elsa")).args("info --json").machine().run();
        match info.text("elsa info --json").and_then(|text| absent::not_run(&text, &good)) {
            Ok(absent) => absent.iter().for_each(|line| println!("{line}")),
            Err(fault) => println!("not known what was not run: {fault}"),
        }
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
