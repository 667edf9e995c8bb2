//! `elsa-lab study`: effect of schedules on given tensors.
//!
//! The tables and figures of the article on vector relieved attention (VFA, VSA) have counterparts here, except for
//! table 2. The article states the scores of a model on a benchmark. This study instead measures the scalar run of
//! [`elsa_core::attention::traversal`] on the given tensors. The outputs of this run are compared with exact attention
//! in f64, and the errors with their bounds.
//!
//! | in the article | here | module |
//! |---|---|---|
//! | table 1, figure 1 | operations per weight, and their shares by instruction set and head size | [`operations`] |
//! | table 2 | none: it needs language models; a note explains this | [`page`] |
//! | table 3 | rows that ten settings would lose with f16 and with f32 weights | [`tables`] |
//! | table 4 | sparsity, bound and error of 21 settings and of error budgets | [`tables`] |
//! | figures 2 and 5 | positions of maxima, a map of P, block maxima | [`maxima`] |
//! | figures 3 and 4 | similarity within blocks, norms of tokens | [`tokens`] |
//!
//! [`measure`] runs the schedules over all tiles or, if that takes too long, over a sample of them.

mod maxima;
mod measure;
mod operations;
mod page;
mod places;
mod settings;
mod tables;
mod tokens;

use clap::Args;
use elsa_cli::args::values::one_of;
use elsa_cli::args::{ForceArgs, ProblemArgs};
use elsa_cli::error::Error;
use elsa_cli::job::Job;
use elsa_cli::scenario::{self, Scenario};
use elsa_files::Target;
use std::path::PathBuf;

/// Help text below the flags.
const HELP: &str = "\
The page has sparsity, bounds, errors and pictures of schedules with frozen references and skipped blocks (VFA, BLASST, VSA,
budgets). The schedules run in scalar arithmetic, over all tiles of rows or a sample where all would take too long.
Examples:
  elsa-lab study --scenario sink --html study.html
  elsa-lab study --q q.npy --k k.npy --v v.npy --causal --html study.html";

/// `elsa-lab study`.
#[derive(Args, Debug)]
#[command(override_usage = "elsa-lab study --q <FILE> --k <FILE> --v <FILE> --html <FILE.html> [OPTIONS]\n       \
    elsa-lab study --scenario <SCENARIO> --html <FILE.html>", after_help = format!("{HELP}\n\n{}", scenario::HELP),
    mut_arg("q", scenario::required), mut_arg("k", scenario::required), mut_arg("v", scenario::required))]
pub struct StudyArgs {
    /// Built-in tensors instead of files
    #[arg(long, conflicts_with_all = ProblemArgs::names(), value_parser = one_of(Scenario::ALL))]
    scenario: Option<Scenario>,
    /// Write sparsity, bounds, errors and pictures as one self-contained page
    #[arg(long, value_name = "FILE.html")]
    html: PathBuf,
    /// Permission for the page to replace an input.
    #[command(flatten)]
    force: ForceArgs,
    /// The problem.
    #[command(flatten)]
    problem: ProblemArgs,
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the request is wrong, if the tensors would take too long, or if the page cannot be written.
pub fn study(args: &StudyArgs) -> Result<(), Error> {
    let mut reads = args.force.reads();
    args.problem.add_to(&mut reads);
    let page = Target::new("html", &args.html, &reads)?;
    let mut studies = Vec::new();
    if let Some(scenario) = args.scenario {
        for case in scenario.cases()? {
            studies.push(measure::study(case.name, &case.problem, case.inputs())?);
        }
    } else {
        let job = Job::load(&args.problem, [false, false])?;
        studies.push(measure::study("given", &job.problem, job.inputs()?)?);
        job.unchanged()?;
    }
    Ok(page.write(elsa_cli::foreign::page(&page::page(&studies)?).as_bytes())?)
}
