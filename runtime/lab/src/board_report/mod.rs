//! `elsa-lab board-report`: judges the results of a board day, compares them with predictions and with the paper, and
//! proposes changes of the board's files.
//!
//! | module | content |
//! |---|---|
//! | `archive` | the records and outputs of a day, and their damage |
//! | `section` | a part of the report, printed as text and drawn on the page |
//! | `speed` | latencies, measured and predicted, of masks and in other states, and the assumptions that fit best |
//! | `streams` | runs whose tensors stay in files |
//! | `robot` | rates, deadlines and the soak |
//! | `energy` | energy of a call by rail, by two methods |
//! | `proposals` | rows for `board.md`, a patch of `profile.toml`, and what remains unknown |

mod archive;
mod energy;
mod proposals;
mod robot;
mod section;
mod speed;
mod streams;

use archive::Archive;
use clap::Args;
use elsa_cli::error::Error;
use elsa_files::{Reads, Target};
use elsa_targets::{Board, Required};
use section::{Section, page};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;

/// Help text below the flags.
const HELP: &str = "\
DIR is the folder day of an archive that board-day.sh has made; cargo xtask board-report unpacks archives. With a
second DIR, bits and latencies are compared: the bits of NEON with those of an emulated day, the bits of a GPU with
those of another GPU.

Exit status 4: the results are damaged, a step failed, or a kernel that must run on the board did not.";

/// `elsa-lab board-report`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub struct BoardReportArgs {
    /// Folder of the results, and possibly of other results
    #[arg(value_name = "DIR", required = true, num_args = 1..=2)]
    folders: Vec<PathBuf>,
    /// Write a page with tables and curves
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// Returns an error if a folder contains no results, if an output cannot be written, or if the results show a failure.
pub fn board_report(args: &BoardReportArgs) -> Result<(), Error> {
    let page_file =
        args.html.as_deref().map(|path| Target::new("html", path, &Reads::default())).transpose()?;
    let days = args.folders.iter().map(|folder| Archive::read(folder)).collect::<Result<Vec<_>, _>>()?;
    let Some(day) = days.first() else { return Ok(()) };
    let board = Board::named(&day.target).ok();
    let cells = speed::cells(day);
    let missing = board.as_ref().map(|board| missing(board, day, &cells)).unwrap_or_default();
    let fit = board.as_ref().and_then(|board| speed::fit(board, &cells));
    let mut sections = vec![whole(day, &missing), steps(day), loads(day)];
    sections.extend(speed::sections(board.as_ref(), &cells, fit));
    sections.push(streams::section(day, &cells));
    sections.push(peers(day));
    sections.extend(robot::sections(day));
    sections.push(energy::section(day));
    sections.extend(board.iter().flat_map(|board| proposals::sections(board, day, &cells, fit)));
    sections.extend(days.get(1).map(|other| compared(day, other, &cells)));
    sections.retain(|section| !section.is_empty());
    let title =
        format!("Board day: {}", if day.target.is_empty() { "unknown board" } else { day.target.as_str() });
    let mut out = elsa_cli::foreign::stdout();
    writeln!(out, "{title}")?;
    sections.iter().try_for_each(|section| section.print(&mut out))?;
    if let Some(file) = page_file {
        file.write(elsa_cli::foreign::page(&page(&title, day.emulated, &sections)?).as_bytes())?;
    }
    let failed = day.steps.iter().filter(|step| step.failed()).count();
    if day.damage.is_empty() && failed == 0 && missing.is_empty() {
        return Ok(());
    }
    let (damaged, missing) = (day.damage.len(), missing.len());
    Err(Error::Verification(format!(
        "{failed} steps failed, {damaged} faults in the results, {missing} required kernels did not run"
    )))
}

/// Returns the required kernels of a board that did not run, although the step that runs all of them is done. A kernel
/// of the GPU counts if the driver has loaded it.
fn missing(board: &Board, day: &Archive, cells: &[speed::Cell]) -> Vec<String> {
    let info = day.first("info");
    let backends = info["backends"].as_array().cloned().unwrap_or_default();
    let mut ran: BTreeSet<String> = backends
        .iter()
        .filter(|x| x["present"] == true)
        .filter_map(|x| Some(x["kernel"].as_str()?.into()))
        .collect();
    ran.extend(cells.iter().map(|cell| cell.kernel.clone()));
    ran.extend(loaded(day, "load-cold").into_keys());
    let gone = board.required.iter().filter_map(|required| match required {
        // If a step did not run, its question remains unknown.
        Required::Cpu(name) => (day.done("single-cpu") && !ran.contains(name)).then(|| format!("cpu {name}")),
        Required::Gpu(name) => (day.done("load-cold") && !ran.contains(name)).then(|| format!("gpu {name}")),
    });
    gone.collect()
}

/// Describes the machine and the state of the results.
fn whole(day: &Archive, missing: &[String]) -> Section {
    let mut section = Section::new("The day");
    section.words.extend(day.damage.iter().map(|fault| format!("Damaged: {fault}.")));
    section.words.extend(missing.iter().map(|kernel| format!("Did not run: {kernel}.")));
    for (flag, words) in [
        (day.emulated, "The processor is emulated: no time here is that of a board."),
        (day.quick, "Measurements are few and short (--quick)."),
        (!day.root, "Without root: power modes and clocks were left as they were."),
    ] {
        section.words.extend(flag.then(|| words.to_owned()));
    }
    let skipped = day.steps.iter().filter(|step| step.result == "skipped").count();
    section.words.extend(
        (skipped > 0)
            .then(|| format!("No time was left for {skipped} steps: more --minutes continue the day.")),
    );
    section.head = vec!["fact", "value"];
    let facts = day.text("system.out");
    let pairs = facts.lines().filter_map(|line| line.split_once('='));
    section.rows.extend(pairs.map(|(key, value)| vec![key.to_owned(), value.trim().to_owned()]));
    section.rows.push(vec!["release of the folder".to_owned(), day.release.clone()]);
    section
}

/// Lists the steps.
fn steps(day: &Archive) -> Section {
    let mut section = Section::new("Steps");
    section.head = vec!["step", "result", "seconds", "tests", "last message"];
    for step in &day.steps {
        let tests = match day.tests(&step.id) {
            (0, 0) => String::new(),
            (passed, failed) => format!("{passed} passed, {failed} failed"),
        };
        let said = if step.result == "done" { String::new() } else { day.said(&step.id) };
        section.rows.push(vec![step.id.clone(), step.result.clone(), step.seconds.to_string(), tests, said]);
    }
    section
}

/// A kernel as the driver has loaded it.
struct Loaded {
    ms: f64,
    registers: u64,
    local_bytes: u64,
}

/// Returns the kernels that a step has loaded, by name.
fn loaded(day: &Archive, step: &str) -> BTreeMap<String, Loaded> {
    let lines = day.lines(step);
    let kernels = lines.iter().flat_map(|line| line["loaded"].as_array().into_iter().flatten());
    let pair = |kernel: &Value| {
        let ms = kernel["load_ms"].as_f64()?;
        let [registers, local_bytes] = [kernel["registers"].as_u64()?, kernel["local_bytes"].as_u64()?];
        Some((kernel["name"].as_str()?.to_owned(), Loaded { ms, registers, local_bytes }))
    };
    kernels.filter_map(pair).collect()
}

/// Lists the kernels that the driver has loaded with an empty cache and with a filled one.
fn loads(day: &Archive) -> Section {
    let mut section = Section::new("Loading of kernels");
    let (cold, warm) = (loaded(day, "load-cold"), loaded(day, "load-warm"));
    let sum = |of: &BTreeMap<String, Loaded>| of.values().map(|kernel| kernel.ms).sum::<f64>() / 1e3;
    if !cold.is_empty() {
        section.words.push(format!(
            "{} kernels: {:.1} s with an empty cache of the driver, {:.1} s with a filled one.",
            cold.len(),
            sum(&cold),
            sum(&warm)
        ));
        let spills: Vec<&str> =
            cold.iter().filter(|(_, kernel)| kernel.local_bytes > 0).map(|(name, _)| name.as_str()).collect();
        section.words.push(match spills.len() {
            0 => "No kernel has local memory, so the driver's compiler spilled no register.".to_owned(),
            n => format!(
                "{n} kernels have local memory, possibly for spilled registers: {}.",
                spills.join(", ")
            ),
        });
    }
    section.head = vec!["kernel", "cold ms", "warm ms", "registers", "local bytes"];
    for (name, Loaded { ms, registers, local_bytes }) in &cold {
        let again = warm.get(name).map_or_else(String::new, |kernel| format!("{:.1}", kernel.ms));
        let (registers, local) = (registers.to_string(), local_bytes.to_string());
        section.rows.push(vec![name.clone(), format!("{ms:.1}"), again, registers, local]);
    }
    section
}

/// Lists our times next to those of other libraries that the board has.
fn peers(day: &Archive) -> Section {
    let mut section = Section::new("Other libraries");
    section.head = vec!["step", "peer", "on", "shape", "elsa ms", "peer ms", "peer / elsa"];
    let mut add = |step: &str, [peer, on, shape]: [String; 3], ms: [Option<f64>; 2]| {
        let [Some(ours), Some(theirs)] = ms else { return };
        let [here, there, ratio] = [ours, theirs, theirs / ours].map(|x| format!("{x:.3}"));
        section.rows.push(vec![step.to_owned(), peer, on, shape, here, there, ratio]);
    };
    for step in ["onnx-cpu-time", "onnx-gpu-time", "tensorrt"] {
        for line in day.lines(step).iter().filter(|line| line["what"] == "peer") {
            let words = ["peer", "on", "shape"].map(|key| archive::word(line, key));
            add(step, words, ["elsa_ms", "peer_ms"].map(|key| line[key].as_f64()));
        }
    }
    for line in day.lines("torch").iter().filter(|line| line["what"] == "gpu-bench") {
        let sizes = ["batch", "heads", "queries", "keys", "d"].map(|key| line[key].to_string()).join("x");
        let shape = format!("{sizes} {}", archive::word(line, "dtype"));
        for (name, peer) in line["peers"].as_object().into_iter().flatten() {
            let words = [format!("PyTorch {name}"), "GPU".to_owned(), shape.clone()];
            add("torch", words, [line["ms"][1].as_f64(), peer["ms"].as_f64()]);
        }
    }
    section
}

/// Compares two days: the bits of the answers, and the latencies.
fn compared(day: &Archive, other: &Archive, cells: &[speed::Cell]) -> Section {
    let mut section = Section::new("Compared with the other results");
    section.words.push(format!("The other results are of {}, release {}.", other.target, other.release));
    for step in ["bits-cpu", "bits-cuda"] {
        let hashes = |day: &Archive| -> BTreeSet<String> {
            let text = if day.done(step) { day.text(&format!("{step}.out")) } else { String::new() };
            text.lines().map(str::to_owned).collect()
        };
        let (here, there) = (hashes(day), hashes(other));
        let (equal, differ) = (here.intersection(&there).count(), here.difference(&there));
        if !here.is_empty() && !there.is_empty() {
            section.words.push(format!("{step}: {equal} of {} kernels gave the same bits.", here.len()));
            section.words.extend(differ.map(|line| format!("{step}: not among the other results: {line}.")));
        }
    }
    section.head = vec!["step", "shape", "type", "back end", "ms", "other ms", "other / this"];
    let others = speed::cells(other);
    for cell in cells {
        let same = |x: &&speed::Cell| x.key() == cell.key();
        let Some(ms) = others.iter().find(same).map(|x| x.ms) else { continue };
        let [step, shape, dtype, backend] =
            [&cell.step, &cell.shape, &cell.dtype, &cell.backend].map(Clone::clone);
        let (here, ratio) = (format!("{:.4}", cell.ms), format!("{:.3}", ms / cell.ms));
        section.rows.push(vec![step, shape, dtype, backend, here, format!("{ms:.4}"), ratio]);
    }
    section
}
