//! `elsa tune`: finds the fastest kernels and key splits on this GPU, or the fastest blocks, tiles and workers on this
//! CPU, and saves them to a file.

mod measure;

use crate::args::HostArgs;
use crate::args::values::{dtype, positive, seconds};
use crate::bench::{Case, cases};
use crate::error::{Error, one_line};
use crate::progress;
use crate::report::{self, count, object};
use crate::shape::{self, Named, Workload};
use clap::Args;
use elsa_core::attention::plan::ShapeClass;
use elsa_core::dtype::DType;
use elsa_files::{Reads, Target};
use elsa_runtime::{Backend, Engine, Fallback, PlanOptions, Tuned, TunedShape};
use measure::{Candidate, Decision, check, measure, winner};
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// Returns the text below the flags.
fn help() -> String {
    format!(
        "\
Without --shape and --workload, the shapes are those of elsa bench. For each shape, all kernels with suitable blocks of
rows and all sensible numbers of splits of the keys alternate on the GPU. Times are those of the device, measured by
events around a CUDA graph if the driver supports graphs. On a CPU, which --backend selects on a machine with a GPU, the
candidates are blocks of 64, 128 and 256 keys, numbers of query tiles that share a block, and numbers of workers. A
candidate wins if its median is at least 2 % below that of the default choice. Its answer is compared with the f64
oracle. Shapes that differ only in the batch have one winner, because the bits of a sequence never depend on the batch.
Other programs on a CPU disturb the times, so tune a quiet machine.

{}
The winners are written to --out, else to the file that ELSA_TUNED names, else to elsa/tuned.toml in XDG_CONFIG_HOME or
~/.config. Shapes of an earlier file are not kept, not even those of the other device. On a CPU, the file has only the
shapes whose winner is not the default. The file is used only with --tuned or ELSA_TUNED. A tuned shape keeps every
promise except one: its bits are those of the tuned division, not of the default one. Of a CPU's decisions, only the
block changes bits; runs within --host-budget and tasks do not use the file.",
        shape::HELP
    )
}

/// `elsa tune`.
#[derive(Args, Debug)]
#[command(after_help = help())]
pub struct TuneArgs {
    /// Heads of the default shapes; a shape has its own
    #[arg(long, value_name = "H", default_value = "1", allow_negative_numbers = true, value_parser = positive,
        conflicts_with_all = ["shape", "workload"])]
    pub heads: usize,
    /// Element type [default: both f32 and f16 for the default shapes, f32 for --shape and --workload]
    #[arg(long, value_parser = dtype())]
    pub dtype: Option<DType>,
    /// Shape to tune instead of the default ones; may be repeated
    #[arg(long, value_name = shape::VALUE, allow_negative_numbers = true)]
    pub shape: Vec<Named>,
    /// Model whose shapes are tuned; may be repeated
    #[arg(long, value_name = "NAME")]
    pub workload: Vec<Workload>,
    /// Time for each shape
    #[arg(long, value_name = "X", default_value = "0.5", allow_negative_numbers = true, value_parser = seconds)]
    pub seconds: f64,
    /// On a GPU, tune the kernels of --half-scores, which sum short chains of products of f16 inputs in f16
    #[arg(long)]
    pub half_scores: bool,
    /// File for the winners
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Engine.
    #[command(flatten)]
    pub host: HostArgs,
}

/// Cases of one shape class, and the measured candidates of each case.
struct Group {
    class: ShapeClass,
    cases: Vec<(Case, Vec<Candidate>)>,
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the engine refuses the flags, a shape is invalid, the file cannot be written, an output is
/// wrong, or the device fails.
pub fn tune(args: &TuneArgs) -> Result<(), Error> {
    let cases = cases(&args.shape, &args.workload, args.dtype, args.heads)?;
    // A GPU that the flags name is tuned, or the command fails.
    let named = args.host.backend.0 == Some(Backend::Cuda);
    let fallback = if named { Fallback::Fail } else { args.host.fallback };
    let engine = HostArgs { fallback, ..args.host.clone() }.untuned_engine()?;
    let half_scores = args.half_scores && engine.backend() == Backend::Cuda;
    if args.half_scores && !half_scores {
        log::warn!("--half-scores has no effect: the back end is {}, not a GPU", engine.backend());
    }
    let options = PlanOptions::default().budget(args.host.budget).half_scores(half_scores);
    let mut groups = grouped(&cases, half_scores)?;
    if groups.is_empty() {
        return Err(Error::Argument {
            argument: "shape",
            found: "packed sequences alone, which are not tuned".into(),
            allowed: "a shape without packed".into(),
        });
    }
    let (path, target) = target(args)?;
    let mut out = crate::foreign::stdout();
    if !args.json {
        header(&mut out, &engine)?;
    }
    let bar = progress::bar(cases.len() as u64, args.seconds * cases.len() as f64);
    let mut shapes = Vec::new();
    for group in &mut groups {
        for (case, candidates) in &mut group.cases {
            bar.set_message(format!("{} {}", case.shape, case.dtype));
            *candidates = measure(&engine, case, &options, args.seconds)?;
            for candidate in &*candidates {
                log::debug!("{}: {}: {:.4} ms", case.shape, candidate.words(), candidate.median());
            }
            bar.inc(1);
        }
        let measured: Vec<&[Candidate]> = group.cases.iter().map(|(_, measured)| &**measured).collect();
        let Some(decision) = winner(&measured) else { continue };
        for (case, candidates) in &group.cases {
            let find = |wanted| candidates.iter().find(|candidate| candidate.decision == wanted);
            let (Some(own), Some(best)) = (candidates.first(), find(decision)) else { continue };
            check(&engine, case, &decision.options(&options))?;
            bar.suspend(|| print(&mut out, args.json, case, candidates.len(), [own, best]))?;
            if shapes.last().is_none_or(|last: &TunedShape| last.class != group.class) {
                let (class, kernel) = (group.class, best.kernel.to_owned());
                shapes.extend(match decision {
                    Decision::Gpu(division) => {
                        Some(TunedShape { class, kernel, splits: division.splits, cpu: None })
                    }
                    Decision::Cpu(Some(cpu)) => Some(TunedShape { class, kernel, splits: 1, cpu: Some(cpu) }),
                    Decision::Cpu(None) => None,
                });
            }
        }
    }
    bar.finish_and_clear();
    let tuned = match engine.device() {
        Some(device) => Tuned::new(device, shapes),
        None => Tuned::on_cpu(engine.cpu(), engine.profile(), shapes),
    };
    let tuned = tuned.map_err(|e| Error::Verification(format!("a winner: {e}")))?;
    target.write(tuned.text().as_bytes())?;
    let (file, shapes) = (path.display().to_string(), tuned.shapes().len());
    if args.json {
        let written = object! { what: "tuned", device: device_name(&engine), file: file, shapes: shapes };
        return Ok(report::json(&mut out, &written)?);
    }
    let shapes = count(shapes as u64, "shape");
    writeln!(out, "{shapes} in {}; --tuned or ELSA_TUNED uses it", one_line(&file))?;
    Ok(())
}

/// Groups the cases by shape class, in their original order. Drops repeated shapes and shapes of packed sequences.
fn grouped(cases: &[Case], half_scores: bool) -> Result<Vec<Group>, Error> {
    let mut groups: Vec<Group> = Vec::new();
    for case in cases {
        let problem = case.shape.problem(case.dtype)?;
        let Some(class) = ShapeClass::of(&problem, half_scores) else {
            log::warn!("{}: left out: packed sequences are not tuned", case.shape);
            continue;
        };
        let group = match groups.iter_mut().find(|group| group.class == class) {
            Some(group) => group,
            None => {
                groups.push(Group { class, cases: Vec::new() });
                groups.last_mut().ok_or(std::io::ErrorKind::OutOfMemory).map_err(std::io::Error::from)?
            }
        };
        if group.cases.iter().all(|(other, _)| other.shape != case.shape) {
            group.cases.push((*case, Vec::new()));
        }
    }
    Ok(groups)
}

/// Prepares the file for the winners, before anything is measured.
fn target(args: &TuneArgs) -> Result<(PathBuf, Target), Error> {
    let refuse = |found: String| Error::Argument { argument: "out", found, allowed: "a file".into() };
    let path = match &args.out {
        Some(path) => path.clone(),
        None => {
            let path = Tuned::named_path().or_else(Tuned::standard_path).ok_or_else(|| {
                refuse("missing, and neither ELSA_TUNED, XDG_CONFIG_HOME nor HOME is set".into())
            })?;
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).map_err(|e| refuse(format!("{}: {e}", folder.display())))?;
            }
            path
        }
    };
    let target = Target::new("out", &path, &Reads::default())?;
    Ok((path, target))
}

/// Returns the name of the GPU, or of the instruction set of the CPU.
fn device_name(engine: &Engine) -> &str {
    engine.device().map_or_else(|| engine.cpu().name(), |device| device.name.as_str())
}

/// Writes the header of the table.
fn header(out: &mut impl Write, engine: &Engine) -> std::io::Result<()> {
    let name = one_line(device_name(engine));
    let with = match engine.device().map(|device| device.driver) {
        Some((major, minor)) => format!("driver of CUDA {major}.{minor}; times on the device in ms"),
        None => format!("{}; times in ms", count(engine.threads() as u64, "thread")),
    };
    writeln!(out, "{name}, {with}; ratio is chooser / winner")?;
    writeln!(
        out,
        "{:<32} {:<4} {:>10} {:>10} {:>10} {:>6}  chooser -> winner",
        "shape", "type", "candidates", "chooser", "winner", "ratio"
    )
}

/// Prints the row of a case: the chooser's own candidate and the winner.
fn print(
    out: &mut impl Write,
    json: bool,
    case: &Case,
    candidates: usize,
    [own, best]: [&Candidate; 2],
) -> std::io::Result<()> {
    let [chooser_ms, ms] = [own, best].map(Candidate::median);
    let [chooser_splits, splits] = [own, best].map(|of| match of.decision {
        Decision::Gpu(division) => Some(division.splits),
        Decision::Cpu(_) => None,
    });
    if json {
        let row = object! {
            what: "tune",
            workload: case.workload,
            shape: case.shape.to_string(),
            dtype: case.dtype.name(),
            candidates: candidates,
            chooser_kernel: own.kernel,
            // Null on a CPU, where the fields block, group and workers describe the decision.
            chooser_splits: chooser_splits,
            chooser_block: own.cpu.map(|cpu| cpu.block),
            chooser_group: own.cpu.map(|cpu| cpu.group),
            chooser_workers: own.cpu.map(|cpu| cpu.workers),
            chooser_ms: chooser_ms,
            kernel: best.kernel,
            splits: splits,
            block: best.cpu.map(|cpu| cpu.block),
            group: best.cpu.map(|cpu| cpu.group),
            workers: best.cpu.map(|cpu| cpu.workers),
            ms: ms,
            ratio: chooser_ms / ms,
        };
        return report::json(out, &row);
    }
    let change = match own.decision == best.decision {
        true => format!("{}, the chooser's", best.words()),
        false => format!("{} -> {}", own.words(), best.words()),
    };
    let (shape, dtype, ratio) = (case.shape.to_string(), case.dtype.name(), chooser_ms / ms);
    writeln!(
        out,
        "{shape:<32} {dtype:<4} {candidates:>10} {chooser_ms:>10.4} {ms:>10.4} {ratio:>6.2}  {change}"
    )
}
