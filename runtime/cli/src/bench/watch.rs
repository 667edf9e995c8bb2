//! The state of the machine during the measurement, and the gate that decides whether a cell is measured.
//!
//! A disturbance during a cell, or at its end, marks the cell. With [`Gate::wait`], the machine is also checked before
//! the first cell and before each cell that follows a disturbed cell. Before any other cell, the readings of the
//! previous cell show that the machine is quiet.

use crate::error::{Error, one_line};
use crate::machine;
use clap::Args;
use elsa_board::{Description, Limits, Mark, Monitor, Readings, Root, Span, judge, quiet};
use elsa_core::telemetry::record::{Cell, Phase, Start, String as Text, Trace, text};
use elsa_runtime::{Backend, Engine};
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Maximum time for which `--wait` delays a cell until the machine is quiet.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time for which the idle power is measured at the start, if the machine reports power.
const IDLE: Duration = Duration::from_secs(1);
/// Minimum time in seconds between two recorded states of the machine.
const SPACING: f64 = 1.0;
/// Mean load of the GPU from which a program counts as one that computes on the GPU.
const USES_GPU: f64 = 0.05;

/// What to do with a cell if the machine is not quiet. By default, the cell is measured and marked.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Gate {
    /// Wait until the machine is quiet before each cell, at most 60 s
    #[arg(long)]
    pub wait: bool,
    /// Measure even if --wait waits in vain, as without --wait; the cells are marked
    #[arg(long)]
    pub force: bool,
}

/// A reason why a cell is not clean. The text is at most as long as records allow.
pub type Reason = Text<96>;

/// Observer of the machine during a benchmark.
pub struct Watch {
    gate: Gate,
    on_gpu: bool,
    machine: Description,
    monitor: Monitor,
    power: bool,
    /// `true` if the last cell was clean.
    calm: bool,
    /// Time of the last state that [`Watch::traces`] returned, in seconds since the start; `−∞` before the first state.
    told: f64,
}

impl Watch {
    /// Begins to observe this machine, on which `engine` computes.
    #[must_use]
    pub fn start(gate: Gate, engine: &Engine) -> Watch {
        let root = Root::machine();
        let monitor = Monitor::start(&root, std::process::id());
        Watch::of(gate, &root, monitor, engine.backend() == Backend::Cuda)
    }

    /// Begins to observe the machine with the files in `root`. This process and the programs that it starts are
    /// measured together.
    #[must_use]
    pub fn around_programs(gate: Gate, root: &Root) -> Watch {
        Watch::of(gate, root, Monitor::of_tree(root, std::process::id()), false)
    }

    /// Measures the idle power, if the machine reports power, and describes the machine.
    fn of(gate: Gate, root: &Root, monitor: Monitor, on_gpu: bool) -> Watch {
        let power = monitor.close(monitor.open(), 0).power_mw.is_some();
        if power {
            // The monitor stores the idle power for later readings.
            let _ = monitor.idle(IDLE);
        }
        let machine = elsa_board::describe(root);
        Watch { gate, on_gpu, machine, monitor, power, calm: false, told: f64::NEG_INFINITY }
    }

    /// Returns `true` if the machine reports power.
    #[must_use]
    pub fn has_power(&self) -> bool {
        self.power
    }

    /// Returns the name of the board, if the project knows it.
    #[must_use]
    pub fn board(&self) -> Option<&'static str> {
        self.machine.target
    }

    /// Returns the reasons why the next cell must not be measured; empty if it may be measured. With [`Gate::wait`],
    /// waits for a quiet machine. `tell` is called with a line at the start of the wait and with a line at its end.
    /// With [`Gate::force`], there are no reasons after the wait.
    #[must_use]
    pub fn refusal(&self, tell: impl Fn(&str)) -> Vec<Reason> {
        if !self.gate.wait || self.calm {
            return Vec::new();
        }
        let wait = |limit| match quiet(&self.monitor, &self.machine, &Limits::default(), limit) {
            Ok(()) => Vec::new(),
            Err(marks) => marks.iter().map(line).collect::<Vec<_>>(),
        };
        let reasons = wait(Duration::ZERO);
        if reasons.is_empty() {
            return reasons;
        }
        let most = PATIENCE.as_secs();
        tell(&format!(
            "--wait: waits up to {most} s for a quiet machine: {}",
            reasons.iter().map(|reason| reason.as_str()).collect::<Vec<_>>().join("; ")
        ));
        let begin = Instant::now();
        let reasons = wait(PATIENCE);
        match reasons.is_empty() {
            true => tell(&format!("--wait: quiet after {:.0} s", begin.elapsed().as_secs_f64())),
            false => tell(&format!("--wait: the machine is still busy after {most} s")),
        }
        if self.gate.force { Vec::new() } else { reasons }
    }

    /// Starts to collect readings.
    pub fn open(&self) -> Span {
        self.monitor.open()
    }

    /// Returns the readings since `span` was opened, during which `calls` calls were made.
    #[must_use]
    pub fn close(&self, span: Span, calls: u64) -> Readings {
        self.monitor.close(span, calls)
    }

    /// Returns a description of each disturbance during a cell, with the remedy. `stable` is `false` if the latency did
    /// not settle.
    #[must_use]
    pub fn judge(&self, readings: &Readings, stable: bool) -> Vec<Reason> {
        let marks = judge(&self.machine, readings, self.on_gpu, &Limits::default());
        let mut reasons: Vec<Reason> = marks.iter().map(line).collect();
        if !stable {
            reasons.push(text("the latency had not settled after 30 s; fix the clocks, let the board cool"));
        }
        reasons
    }

    /// Writes the readings into `cell`. `together` contains the readings of the time in which all methods alternated.
    /// `alone` contains the readings of the time in which only this method ran. If there are `reasons`, they mark the
    /// cell as not clean.
    pub fn fill(&self, cell: &mut Cell, together: &Readings, alone: Option<&Readings>, reasons: &[Reason]) {
        alone.unwrap_or(together).fill(cell);
        cell.throttled = together.throttled;
        cell.emulated = self.machine.emulated;
        mark(cell, reasons);
    }

    /// Writes the readings of a program into `phase`, and marks it if something disturbed the program.
    pub fn fill_phase(&self, phase: &mut Phase, readings: &Readings) {
        let on_gpu = readings.gpu_load.is_some_and(|load| load >= USES_GPU);
        let marks = judge(&self.machine, readings, on_gpu, &Limits::default());
        readings.fill_phase(phase, &self.monitor.rails());
        phase.emulated = self.machine.emulated;
        phase.clean = marks.is_empty();
        phase.marks = marks.iter().take(phase.marks.capacity()).map(line).collect();
    }

    /// Remembers whether the last cell was clean.
    pub fn note(&mut self, clean: bool) {
        self.calm = clean;
    }

    /// Returns the states of the machine since the previous call of this method. The states are at least one second
    /// apart.
    pub fn traces(&mut self) -> Vec<Trace> {
        let traces = self.monitor.trace(self.told, SPACING);
        self.told = traces.last().map_or(self.told, |trace| trace.t_s);
        traces
    }

    /// Describes the machine and the run. Without an `engine`, nothing is known of a GPU.
    #[must_use]
    pub fn describe(&self, engine: Option<&Engine>) -> Start {
        let now = OffsetDateTime::now_utc();
        let date = now.replace_nanosecond(0).unwrap_or(now).format(&Rfc3339).unwrap_or_default();
        let device = engine.and_then(Engine::device);
        let mut start = Start {
            version: text(env!("CARGO_PKG_VERSION")),
            os: text(std::env::consts::OS),
            arch: text(std::env::consts::ARCH),
            cpu: machine::cpu_model().as_deref().map(text),
            cores: u32::try_from(machine::cores()).unwrap_or(u32::MAX),
            gpu: device.map(|device| text(&device.name)),
            date: text(&date),
            ..Start::default()
        };
        self.machine.fill(&mut start);
        let cuda = |device: &elsa_runtime::DeviceInfo| {
            text(&format!("CUDA {}.{}", device.driver.0, device.driver.1))
        };
        start.driver = start.driver.or_else(|| device.map(cuda));
        start
    }

    /// Lists the values that the machine does not report, with the reasons. Also states whether the machine's total
    /// power includes the parts whose power rose under load.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let findings = self.monitor.findings();
        self.machine.notes.iter().cloned().chain(findings.iter().map(ToString::to_string)).collect()
    }
}

/// Checks that all `cells` of a run are clean.
///
/// # Errors
/// Returns an error if only `clean` of the cells are clean.
pub fn require_clean(clean: usize, cells: usize) -> Result<(), Error> {
    match cells - clean.min(cells) {
        0 => Ok(()),
        1 if cells == 1 => Err(Error::Unclean("the cell is not clean".into())),
        1 => Err(Error::Unclean(format!("1 of {cells} cells is not clean"))),
        count => Err(Error::Unclean(format!("{count} of {cells} cells are not clean"))),
    }
}

/// Counts the marks of cells. Marks that differ only in numbers count as one mark, with the numbers of the first.
#[must_use]
pub fn counted<'a>(marks: impl Iterator<Item = &'a str>) -> Vec<(&'a str, u64)> {
    let kind = |mark: &str| mark.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    let mut counted: Vec<(&str, u64)> = Vec::new();
    for mark in marks {
        match counted.iter_mut().find(|(known, _)| kind(known) == kind(mark)) {
            Some((_, number)) => *number += 1,
            None => counted.push((mark, 1)),
        }
    }
    counted
}

/// Marks `cell` as clean if there are no `reasons`. Otherwise, stores as many of the reasons in `cell` as fit.
pub fn mark(cell: &mut Cell, reasons: &[Reason]) {
    cell.clean = reasons.is_empty();
    cell.marks = reasons.iter().take(cell.marks.capacity()).cloned().collect();
}

/// Formats a mark as one line of the results. If the line is too long, the reason is shortened, but the remedy stays
/// complete.
fn line(mark: &Mark) -> Reason {
    let line = one_line(&mark.to_string());
    match &mark.cure {
        Some(cure) if line.len() > 96 => {
            let cure = format!("; {}", one_line(cure));
            let room = 96usize.saturating_sub(cure.len() + '…'.len_utf8());
            let end = (0..=room).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
            text(&format!("{}…{cure}", &line[..end]))
        }
        _ => text(&line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_one_line_of_96_bytes_with_its_cure() {
        let hostile = "a\nb\u{1b}[31m".to_owned();
        let mark = Mark { reason: "x".into(), process: Some((1, hostile)), cure: Some("y".into()) };
        assert_eq!(line(&mark), "x, most by a\\nb\\u001b[31m (1); y");
        let mark = Mark { reason: "zone \u{7}\n is hot".into(), process: None, cure: None };
        assert_eq!(line(&mark), "zone \\u0007\\n is hot");
        for length in 80..120 {
            let mark =
                Mark { reason: "ü".repeat(length), process: None, cure: Some("sudo jetson_clocks".into()) };
            let text = line(&mark);
            assert!(text.len() <= 96 && text.ends_with("…; sudo jetson_clocks"), "{text}");
        }
        let mark = Mark { reason: "r".into(), process: None, cure: Some("c".repeat(200)) };
        assert!(line(&mark).len() <= 96 && line(&mark).ends_with('…'));
        assert_eq!(line(&Mark { reason: "r".into(), process: None, cure: None }), "r");
    }

    #[test]
    fn cells_that_are_not_clean_give_status_5() {
        let said = |clean, cells| require_clean(clean, cells).map_err(|e| (e.status(), e.line()));
        assert_eq!(said(0, 0), Ok(()));
        assert_eq!(said(3, 3), Ok(()));
        for (clean, cells, words) in [
            (0, 1, "the cell is not clean; "),
            (2, 3, "1 of 3 cells is not clean; "),
            (1, 3, "2 of 3 cells are not clean; "),
        ] {
            let (status, line) = said(clean, cells).unwrap_err();
            assert!(status == 5 && line.starts_with(words) && line.contains("--wait"), "{status} {line}");
        }
        let marks = ["others take 1.29 cores", "let it cool", "others take 0.31 cores"];
        assert_eq!(counted(marks.into_iter()), [("others take 1.29 cores", 2), ("let it cool", 1)]);
    }
}
