//! `elsa-lab simulate`: cost of attention over any number of tokens, streamed or divided by quorums.
//!
//! | module | content |
//! |---|---|
//! | `costs`, `sets`, `file`, `measure` | fitted costs of a machine: built in, read from a file, or measured on this machine |
//! | `beside` | streaming and quorums, run on this machine |
//! | `study` | numbers that follow from costs: tables 1 and 2, figures 4 to 9 and appendix C of Stream-CQSA, and plain streaming |
//! | `boards` | several boards by `elsa-mpi`, compared with one |
//! | `schedule` | tasks under a memory limit, uniform and hybrid |
//! | `text`, `html` | the report as text and as a page |
//!
//! The fits themselves and the arithmetic of division are in [`crate::model`].

mod args;
mod beside;
mod boards;
mod costs;
mod file;
mod html;
mod measure;
mod schedule;
mod sets;
mod study;
mod text;

pub use args::SimulateArgs;

use crate::model::Seconds;
use beside::MethodCost;
use costs::{Costs, Pass};
use elsa_cli::error::Error;
use elsa_cli::report;
use elsa_core::quorum::InterestSet;
use elsa_files::Target;
use measure::{Check, Kernels, Measured};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use study::{Request, Simulation};
use text::Printed;

/// Fits of a pass, as `--json` prints them.
#[derive(Serialize)]
struct Fit {
    pass: &'static str,
    /// A, B and C of the seconds `A x² + B x + C`.
    seconds: [f64; 3],
    /// D and E of the bytes `D x + E`.
    bytes: [f64; 2],
    /// Two errors: the largest relative error of the fitted seconds, and that of the fitted bytes, each over the
    /// samples of its fit.
    worst: Option<[f64; 2]>,
    /// A, B and C as the publication prints them.
    printed_seconds: Option<[f64; 3]>,
    printed_bytes: Option<[f64; 2]>,
}

impl Fit {
    fn of((name, pass): (&'static str, &Pass)) -> Fit {
        let three = |time: Seconds| [time.square, time.linear, time.constant];
        Fit {
            pass: name,
            seconds: three(pass.time),
            bytes: [pass.memory.per_token, pass.memory.fixed],
            worst: pass.worst,
            printed_seconds: pass.printed.map(|(time, _)| three(time)),
            printed_bytes: pass.printed.map(|(_, memory)| [memory.per_token, memory.fixed]),
        }
    }
}

/// Object that `--json` prints.
#[derive(Serialize)]
struct Simulated<'a> {
    what: &'static str,
    board: &'a str,
    title: &'a str,
    origin: costs::Origin,
    source: &'a str,
    heads: usize,
    dim: usize,
    element_bytes: usize,
    tokens: f64,
    chunks: usize,
    members: usize,
    memory_bytes: f64,
    fits: Vec<Fit>,
    checks: &'a [Check],
    kernels: &'a [Kernels],
    beside: &'a [MethodCost],
    #[serde(skip_serializing_if = "Option::is_none")]
    together: Option<&'a boards::Together>,
    #[serde(flatten)]
    report: &'a Simulation,
}

/// Returns the bytes of memory that this machine can provide without swapping; `None` if it does not report them.
fn available() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

/// Runs the command.
///
/// # Errors
/// Returns an error if flags exclude each other, if the file contains no costs, if the page cannot be written, or if
/// the device fails.
pub fn simulate(args: &SimulateArgs) -> Result<(), Error> {
    let refuse = |allowed: String| Error::Argument { argument: "c", found: args.c.to_string(), allowed };
    if args.c < 3 {
        return Err(refuse("from 3 on; 1 divides nothing".into()));
    }
    let set = InterestSet::of(args.c).map_err(|e| {
        let text = e.to_string();
        refuse(text.split_once("allowed: ").map_or_else(|| text.clone(), |(_, words)| words.to_owned()))
    })?;
    let mut reads = args.force.reads();
    if let Some(path) = &args.fit {
        reads.add("fit", path, None);
    }
    let target = |argument, path: &Option<PathBuf>| {
        path.as_deref().map(|path| Target::new(argument, path, &reads)).transpose()
    };
    let (page, saved) = (target("html", &args.html)?, target("save-fit", &args.save_fit)?);
    let measured = match &args.measure {
        Some(sizes) => {
            let (heads, dim) = (args.heads.unwrap_or(1), args.dim.unwrap_or(64));
            let mut measured = measure::measure(&sizes.0, heads, dim, args.threads, args.backward)?;
            measured.costs.limit = available();
            Some(measured)
        }
        None => None,
    };
    let costs: Costs = match (&measured, &args.fit) {
        (Some(measured), _) => measured.costs.clone(),
        (None, Some(path)) => file::read(path)?,
        (None, None) => sets::named(args.board.unwrap_or(sets::DEFAULT))?,
    };
    let limit = args.memory.map(|bytes| bytes as f64).or(costs.limit).ok_or_else(|| Error::Argument {
        argument: "memory",
        found: "none, and these costs do not tell".into(),
        allowed: "bytes, or a number of KiB, MiB or GiB".into(),
    })?;
    let request = Request {
        tokens: args.tokens.0,
        division: (set.chunks(), set.members().len()),
        levels: args.levels.as_ref().map(|levels| &levels.0[..]),
        limit,
        link: args.link.map(|link| link.rate * 1e9),
        backward: args.backward,
    };
    let report = study::report(&costs, &request)?;
    let (checks, kernels) = match measured.as_ref() {
        Some(Measured { checks, kernels, .. }) => (checks.clone(), kernels.clone()),
        None => (Vec::new(), measure::kernels(&costs)?),
    };
    let ran = match &args.beside {
        Some(sizes) => {
            beside::beside(&sizes.0, (costs.heads, costs.dim), args.threads, &set, &costs.forward)?
        }
        None => Vec::new(),
    };
    let together = args.boards.zip(args.link).map(|(boards, link)| {
        let division = request.division;
        boards::Cluster { boards, link, division }.predict(&costs, request.tokens)
    });
    let printed = Printed {
        costs: &costs,
        request: &request,
        report: &report,
        checks: &checks,
        kernels: &kernels,
        ran: &ran,
    };
    if let Some(page) = page {
        page.write(elsa_cli::foreign::page(&html::page(&printed)?).as_bytes())?;
    }
    if let (Some(saved), Some(measured)) = (saved, &measured) {
        let text = file::text(&costs, &measured.samples, measured.backward.as_ref())?;
        saved.write(text.as_bytes())?;
    }
    let mut out = elsa_cli::foreign::stdout();
    if args.json {
        let simulated = Simulated {
            what: "simulate",
            board: &costs.name,
            title: &costs.title,
            origin: costs.origin,
            source: &costs.source,
            heads: costs.heads,
            dim: costs.dim,
            element_bytes: costs.element,
            tokens: request.tokens,
            chunks: request.division.0,
            members: request.division.1,
            memory_bytes: limit,
            fits: costs.passes(true).map(Fit::of).collect(),
            checks: &checks,
            kernels: &kernels,
            beside: &ran,
            together: together.as_ref(),
            report: &report,
        };
        return Ok(report::json(&mut out, &simulated)?);
    }
    text::print(&mut out, &printed)?;
    if let Some(together) = &together {
        boards::print(&mut out, request.tokens, together)?;
    }
    Ok(out.flush()?)
}
