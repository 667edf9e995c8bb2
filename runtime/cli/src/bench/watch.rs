//! The machine beside the measurement: what it is, whether it is quiet, and what it did during a cell.

use crate::machine;
use elsa_core::telemetry::record::{Cell, Start, Throttling, Trace, text};
use elsa_runtime::Engine;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// What happens to a cell where the machine is not quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It is refused.
    Refuse,
    /// It waits.
    Wait,
    /// It is measured and marked.
    Force,
}

/// A time during which the machine is observed.
pub struct Span;

/// What the machine did in that time.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    temp_c: Option<f64>,
    cpu_mhz: Option<f64>,
}

/// The machine.
pub struct Watch {
    gate: Gate,
}

impl Watch {
    /// Begins to observe this machine.
    #[must_use]
    pub fn start(gate: Gate) -> Watch {
        Watch { gate }
    }

    /// Whether the machine reports power.
    #[must_use]
    pub fn has_power(&self) -> bool {
        false
    }

    /// What forbids the next cell.
    #[must_use]
    pub fn refusal(&self) -> Vec<String> {
        Vec::new()
    }

    /// Begins a cell.
    #[must_use]
    pub fn open(&self) -> Span {
        Span
    }

    /// Ends a cell of `calls` calls.
    #[must_use]
    pub fn close(&self, _span: Span, _calls: u64) -> Readings {
        Readings { temp_c: machine::temperature(), cpu_mhz: machine::cpu_mhz() }
    }

    /// What disturbed a cell, each with its cure.
    #[must_use]
    pub fn judge(&self, _readings: &Readings, stable: bool) -> Vec<String> {
        let unstable = "the latency had not settled after 30 s; fix the clocks: sudo jetson_clocks";
        if stable { Vec::new() } else { vec![unstable.to_owned()] }
    }

    /// Notes in `cell` what the machine did: `together` while the methods took turns, `alone` while this one ran by
    /// itself.
    pub fn fill(&self, cell: &mut Cell, together: &Readings, _alone: Option<&Readings>, marks: &[String]) {
        cell.temp_c = together.temp_c;
        cell.cpu_mhz = together.cpu_mhz;
        cell.throttled = Throttling::Unknown;
        cell.clean = marks.is_empty();
        cell.marks = marks.iter().take(cell.marks.capacity()).map(|mark| text(mark)).collect();
    }

    /// The states of the machine since the last call of this.
    pub fn traces(&mut self) -> Vec<Trace> {
        Vec::new()
    }
}

/// The machine and the run, which `engine` computes.
#[must_use]
pub fn describe(engine: &Engine) -> Start {
    let now = OffsetDateTime::now_utc();
    let date = now.replace_nanosecond(0).unwrap_or(now).format(&Rfc3339).unwrap_or_default();
    let device = engine.device();
    Start {
        version: text(env!("CARGO_PKG_VERSION")),
        board: machine::board().as_deref().map(text),
        l4t: machine::l4t().as_deref().map(text),
        os: text(std::env::consts::OS),
        arch: text(std::env::consts::ARCH),
        cpu: machine::cpu_model().as_deref().map(text),
        cores: u32::try_from(machine::cores()).unwrap_or(u32::MAX),
        driver: device.map(|device| text(&format!("CUDA {}.{}", device.driver.0, device.driver.1))),
        gpu: device.map(|device| text(&device.name)),
        date: text(&date),
        ..Start::default()
    }
}
