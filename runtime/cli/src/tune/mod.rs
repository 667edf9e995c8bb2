//! `elsa tune`: finds the fastest kernels and key splits on this GPU, and saves them to a file.

mod measure;

use crate::args::values::{dtype, ordinal, positive, seconds};
use crate::bench::{Case, cases};
use crate::error::{Error, one_line};
use crate::progress;
use crate::report::{self, count, object};
use crate::shape::{self, Named, Workload};
use clap::Args;
use elsa_core::attention::plan::ShapeClass;
use elsa_core::dtype::DType;
use elsa_files::{Reads, Target};
use elsa_runtime::{
    Backend, CudaOptions, DeviceInfo, Engine, EngineOptions, Fallback, PlanOptions, Tuned, TunedShape, Tuning,
};
use measure::{Candidate, check, measure, winner};
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// Returns the text below the flags.
fn help() -> String {
    format!(
        "\
Without --shape and --workload, the shapes are those of elsa bench. For each shape, all kernels with suitable blocks of
rows and all sensible numbers of splits of the keys alternate on the GPU. Times are those of the device, measured by
events around a CUDA graph if the driver supports graphs. A candidate wins if its median is at least 2 % below that of
the default choice. Its answer is compared with the f64 oracle. Shapes that differ only in the batch have one winner,
because the bits of a sequence never depend on the batch.

{}
The winners are written to --out, else to the file that ELSA_TUNED names, else to elsa/tuned.toml in XDG_CONFIG_HOME or
~/.config. Shapes of an earlier file are not kept. The file is used only with --tuned or ELSA_TUNED. A tuned shape keeps
every promise except one: its bits are those of the tuned division, not of the default one.",
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
    /// Number of the GPU in its driver's order [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = ordinal::<usize>)]
    pub device: Option<usize>,
    /// Tune the kernels of --half-scores, which sum short chains of products of f16 inputs in f16
    #[arg(long)]
    pub half_scores: bool,
    /// File for the winners
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// Cases of one shape class, and the measured candidates of each case.
struct Group {
    class: ShapeClass,
    cases: Vec<(Case, Vec<Candidate>)>,
}

/// Runs the command.
///
/// # Errors
/// Returns an error if there is no GPU, a shape is invalid, the file cannot be written, an output is wrong, or the
/// device fails.
pub fn tune(args: &TuneArgs) -> Result<(), Error> {
    let engine = Engine::new(
        &EngineOptions::default()
            .backend(Backend::Cuda)
            .fallback(Fallback::Fail)
            .cuda(CudaOptions::default().device(args.device.unwrap_or_default()))
            .tuned(Tuning::Off),
    )?;
    let Some(device) = engine.device() else { return Ok(()) };
    let options = PlanOptions::default().half_scores(args.half_scores);
    let cases = cases(&args.shape, &args.workload, args.dtype, args.heads)?;
    let mut groups = grouped(&cases, args.half_scores)?;
    if groups.is_empty() {
        return Err(Error::Argument {
            argument: "shape",
            found: "packed sequences alone, whose keys are never divided".into(),
            allowed: "a shape without packed".into(),
        });
    }
    let (path, target) = target(args)?;
    let mut out = crate::foreign::stdout();
    if !args.json {
        header(&mut out, device)?;
    }
    let bar = progress::bar(cases.len() as u64, args.seconds * cases.len() as f64);
    let mut shapes = Vec::new();
    for group in &mut groups {
        for (case, candidates) in &mut group.cases {
            bar.set_message(format!("{} {}", case.shape, case.dtype));
            *candidates = measure(&engine, case, &options, args.seconds)?;
            for candidate in &*candidates {
                let (choice, ms) = (&candidate.choice, candidate.median());
                log::debug!("{}: {} in {}: {ms:.4} ms", case.shape, choice.kernel.name, choice.splits);
            }
            bar.inc(1);
        }
        let measured: Vec<&[Candidate]> = group.cases.iter().map(|(_, measured)| &**measured).collect();
        let Some(division) = winner(&measured) else { continue };
        for (case, candidates) in &group.cases {
            let find = |wanted| candidates.iter().find(|candidate| candidate.choice.division() == wanted);
            let (Some(own), Some(best)) = (candidates.first(), find(division)) else { continue };
            check(&engine, case, &options.division(division))?;
            bar.suspend(|| print(&mut out, args.json, case, candidates.len(), [own, best]))?;
            if shapes.last().is_none_or(|last: &TunedShape| last.class != group.class) {
                let (kernel, splits) = (best.choice.kernel.name.to_owned(), best.choice.splits);
                shapes.push(TunedShape { class: group.class, kernel, splits });
            }
        }
    }
    bar.finish_and_clear();
    let tuned = Tuned::new(device, shapes).map_err(|e| Error::Verification(format!("a winner: {e}")))?;
    target.write(tuned.text().as_bytes())?;
    let (file, shapes) = (path.display().to_string(), tuned.shapes().len());
    if args.json {
        let written = object! { what: "tuned", device: &device.name, file: file, shapes: shapes };
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
            log::warn!("{}: left out: the keys of packed sequences are never divided", case.shape);
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

/// Writes the header of the table.
fn header(out: &mut impl Write, device: &DeviceInfo) -> std::io::Result<()> {
    let (major, minor) = device.driver;
    writeln!(
        out,
        "{}, driver of CUDA {major}.{minor}; times on the device in ms; ratio is chooser / winner",
        one_line(&device.name)
    )?;
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
    let [chooser, winner] = [own, best].map(|of| (of.choice.kernel.name, of.choice.splits));
    if json {
        let row = object! {
            what: "tune",
            workload: case.workload,
            shape: case.shape.to_string(),
            dtype: case.dtype.name(),
            candidates: candidates,
            chooser_kernel: chooser.0,
            chooser_splits: chooser.1,
            chooser_ms: chooser_ms,
            kernel: winner.0,
            splits: winner.1,
            ms: ms,
            ratio: chooser_ms / ms,
        };
        return report::json(out, &row);
    }
    let named = |(kernel, splits): (&str, usize)| format!("{kernel} in {splits}");
    let change = match chooser == winner {
        true => format!("{}, the chooser's", named(winner)),
        false => format!("{} -> {}", named(chooser), named(winner)),
    };
    let (shape, dtype, ratio) = (case.shape.to_string(), case.dtype.name(), chooser_ms / ms);
    writeln!(
        out,
        "{shape:<32} {dtype:<4} {candidates:>10} {chooser_ms:>10.4} {ms:>10.4} {ratio:>6.2}  {change}"
    )
}
