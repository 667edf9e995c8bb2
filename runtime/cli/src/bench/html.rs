//! The results as one self-contained page: no external script, font or picture.
//!
//! The template escapes every text, because the names of boards, kernels and processes come from the machine. Curves
//! are SVG in the style sheet's colours, so they follow the reader's choice of light or dark.

use super::chart::{of_cells, of_traces};
use super::phases::WHOLE;
use crate::chart::{Chart, SIZE};
use crate::error::Error;
use askama::Template;
use elsa_core::telemetry::record::{Cell, End, Phase, Record, Start, Trace};

/// A group of charts below one heading.
struct Group {
    title: &'static str,
    charts: Vec<Chart>,
    /// Text to show if there are no charts.
    absent: &'static str,
}

/// A row of the table.
struct Row {
    /// Text of each column, and `true` if the text is a word rather than a number.
    fields: Vec<(String, bool)>,
    clean: bool,
    reasons: String,
}

/// Variables of the template.
#[derive(Template)]
#[template(path = "bench.html")]
struct Page<'a> {
    name: &'a str,
    start: &'a Start,
    end: Option<&'a End>,
    seconds: String,
    facts: Vec<(&'static str, String)>,
    groups: Vec<Group>,
    rows: Vec<Row>,
    phases: Vec<Row>,
    width: f64,
    height: f64,
}

/// The records of a run.
#[derive(Default)]
pub struct Records {
    /// Description of the machine and the run.
    pub start: Start,
    /// The rows of the results.
    pub cells: Vec<Cell>,
    /// The rows of a program.
    pub phases: Vec<Phase>,
    /// States of the machine during the run.
    pub traces: Vec<Trace>,
    /// Summary at the end of the run; `None` if the records break off before the end.
    pub end: Option<End>,
}

impl Records {
    /// Adds a record.
    pub fn keep(&mut self, record: &Record) {
        match record {
            Record::Start(start) => self.start = start.clone(),
            Record::Cell(cell) => self.cells.push(cell.clone()),
            Record::Phase(phase) => self.phases.push(phase.clone()),
            Record::Trace(trace) => self.traces.push(trace.clone()),
            Record::End(end) => self.end = Some(*end),
        }
    }
}

/// Renders the page of a run.
///
/// # Errors
/// Returns an error if the template fails. The page is rendered in memory, so no I/O can fail.
pub fn page(records: &Records) -> Result<String, Error> {
    let Records { start, cells, phases, traces, end } = records;
    let end = end.as_ref();
    let cpu = start.cpu.as_deref();
    let latency = Group {
        title: "Latency and ratio",
        charts: of_cells(cells),
        absent: "No two cells differ in the number of keys alone, so there is no curve.",
    };
    let board = Group {
        title: "The board meanwhile",
        charts: of_traces(traces),
        absent: "The machine reports neither power nor temperature nor clocks, or the run was too short.",
    };
    let page = Page {
        name: start.board.as_deref().or(start.gpu.as_deref()).or(cpu).unwrap_or("unknown machine"),
        start,
        end,
        seconds: end.map_or_else(String::new, |end| format!("{:.1}", end.seconds)),
        facts: facts(start),
        groups: if phases.is_empty() { vec![latency, board] } else { vec![board] },
        rows: cells.iter().map(row).collect(),
        phases: phases.iter().map(phase).collect(),
        width: SIZE.0,
        height: SIZE.1,
    };
    page.render().map_err(|e| Error::Print(std::io::Error::other(e)))
}

/// Lists the facts about the machine.
fn facts(start: &Start) -> Vec<(&'static str, String)> {
    let of = |text: Option<&str>| text.map_or_else(|| "not reported".to_owned(), str::to_owned);
    let fixed = start.jetson_clocks.map(|fixed| if fixed { "fixed at their highest" } else { "not fixed" });
    let mut facts = vec![
        ("Board", of(start.board.as_deref())),
        ("Processor", of(start.cpu.as_deref())),
        ("Cores", start.cores.to_string()),
        ("System", format!("{} {}", start.os, start.arch)),
        ("Governor", of(start.governor.as_deref())),
    ];
    // Facts that only some machines have are left out where they are missing.
    let more = [
        ("GPU", start.gpu.as_deref()),
        ("Driver", start.driver.as_deref()),
        ("L4T", start.l4t.as_deref()),
        ("JetPack", start.jetpack.as_deref()),
        ("Power mode", start.nvpmodel.as_deref()),
        ("Clocks", fixed),
    ];
    facts.extend(more.into_iter().filter_map(|(name, fact)| Some((name, fact?.to_owned()))));
    facts
}

/// Formats a number with `digits` digits after the point. It is not a word.
fn number(x: Option<f64>, digits: usize) -> (String, bool) {
    let known = x.filter(|x| x.is_finite());
    (known.map_or_else(|| "–".to_owned(), |x| format!("{x:.digits$}")), false)
}

/// Builds the row of a phase of a program.
fn phase(phase: &Phase) -> Row {
    let word = |text: &str| (text.to_owned(), true);
    let ended = match (phase.exit_status, phase.signal) {
        (Some(status), _) => format!("status {status}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "–".to_owned(),
    };
    let joules = |mj: Option<f64>| number(mj.map(|mj| mj / 1e3), 3);
    let rails: Vec<String> = phase
        .rails
        .iter()
        .map(|rail| {
            let (net, _) = joules(rail.energy_net_mj);
            format!("{} {:.3} J, {net} J without idle", rail.name, rail.energy_mj / 1e3)
        })
        .collect();
    let rails = rails.join("; ");
    let fields = vec![
        word(phase.phase.as_deref().unwrap_or(WHOLE)),
        number(Some(phase.begin_s), 2),
        number(Some(phase.seconds), 2),
        word(&ended),
        number(phase.cpu_s, 2),
        number(phase.user_s, 2),
        number(phase.system_s, 2),
        number(phase.peak_bytes.map(|bytes| bytes as f64 / 1e6), 1),
        number(phase.power_mw, 0),
        number(phase.idle_power_mw, 0),
        joules(phase.energy_mj),
        joules(phase.energy_net_mj),
        word(if rails.is_empty() { "–" } else { rails.as_str() }),
        number(phase.temp_first_c, 1),
        number(phase.temp_last_c, 1),
        number(phase.temp_c, 1),
        word(phase.temp_zone.as_deref().unwrap_or("–")),
        number(phase.cpu_mhz, 0),
        number(phase.gpu_mhz, 0),
        number(phase.emc_mhz, 0),
        number(phase.gpu_load.map(|load| load * 100.0), 0),
        number(phase.load, 2),
        word(phase.throttled.name()),
    ];
    let reasons: Vec<&str> = phase.marks.iter().map(|mark| mark.as_str()).collect();
    Row { fields, clean: phase.clean, reasons: reasons.join("; ") }
}

/// Builds the row of a cell.
fn row(cell: &Cell) -> Row {
    let ms = |x: f64| number(Some(x), 4);
    let whole = |n: u64| (n.to_string(), false);
    let word = |text: &str| (text.to_owned(), true);
    let ratio = match (cell.speedup_vs_math, cell.ratio_low, cell.ratio_high) {
        (Some(ratio), Some(low), Some(high)) => (format!("{ratio:.2} ({low:.2}–{high:.2})"), false),
        _ => ("–".to_owned(), false),
    };
    let differs = match cell.differs {
        Some(true) => "yes",
        Some(false) => "within the noise",
        None => "–",
    };
    let measured = cell.samples > 0;
    let fields = vec![
        word(cell.workload.as_deref().unwrap_or("–")),
        whole(cell.batch),
        whole(cell.heads),
        whole(cell.queries),
        whole(cell.n),
        whole(cell.d),
        word(&cell.shape),
        word(&cell.dtype),
        word(&cell.method),
        word(&cell.backend),
        whole(u64::from(cell.threads)),
        ms(cell.p50_ms),
        ms(cell.p90_ms),
        ms(cell.p99_ms),
        ms(cell.max_ms),
        whole(cell.samples),
        number(Some(cell.cold_ms), 3),
        number(cell.enqueue_p50_ms, 4),
        number(cell.wait_p50_ms, 4),
        number(cell.device_p50_ms, 4),
        ratio,
        word(differs),
        number(cell.noise.map(|noise| noise * 100.0), 1),
        number(Some(cell.gflops), 2),
        (if cell.rel_l2.is_finite() { format!("{:.2e}", cell.rel_l2) } else { "–".to_owned() }, false),
        word(if !measured {
            "–"
        } else if cell.certified {
            "yes"
        } else {
            "no"
        }),
        whole(cell.workspace_bytes),
        whole(cell.alloc_bytes),
        number(cell.power_mw, 0),
        number(cell.idle_power_mw, 0),
        number(cell.energy_mj, 3),
        number(cell.energy_net_mj, 3),
        number(cell.temp_c, 1),
        word(cell.temp_zone.as_deref().unwrap_or("–")),
        number(cell.cpu_mhz, 0),
        number(cell.gpu_mhz, 0),
        number(cell.emc_mhz, 0),
        word(cell.throttled.name()),
        word(&cell.kernel),
    ];
    let reasons: Vec<&str> = cell.marks.iter().map(|mark| mark.as_str()).collect();
    let word = if measured { "" } else { "refused: " };
    Row { fields, clean: cell.clean, reasons: format!("{word}{}", reasons.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::csv::tests::full;
    use elsa_core::telemetry::record::{RailEnergy, text};

    #[test]
    fn every_text_of_the_machine_is_escaped() {
        let hostile = "<script>alert('x')</script>&\"";
        let start = Start { board: Some(text(hostile)), cpu: Some(text(hostile)), ..Start::default() };
        let mut cell = Cell { n: 9, kernel: text(hostile), shape: text(hostile), clean: false, ..full() };
        cell.marks.clear();
        let _ = cell.marks.push(text(hostile));
        let other = Cell { n: 99, ..cell.clone() };
        let end = End { cells: 2, clean_cells: 0, seconds: 1.0 };
        let records = Records { start, cells: vec![cell, other], end: Some(end), ..Records::default() };
        let page = page(&records).unwrap();
        assert!(!page.contains("<script") && !page.contains("alert('x')"), "{page}");
        assert!(page.contains("&#60;script&#62;") || page.contains("&lt;script&gt;"), "{page}");
        // The page fetches nothing from outside.
        for fetch in ["http:", "https:", "src=", "@import", "url(", "<link"] {
            assert!(!page.contains(fetch), "{fetch}");
        }
        assert!(page.contains("0 clean") && page.contains("<svg"), "{page}");
    }

    #[test]
    fn a_program_has_a_table_of_its_phases() {
        let hostile = "<b>warm</b>";
        let mut phase = Phase { phase: Some(text(hostile)), energy_mj: Some(62_300.0), ..Phase::default() };
        let rail = RailEnergy { name: text("VDD_GPU"), energy_mj: 1500.0, ..RailEnergy::default() };
        phase.rails.push(rail).unwrap();
        phase.marks.push(text("another load")).unwrap();
        let whole = Phase { phase: None, signal: Some(9), clean: true, ..phase.clone() };
        let end = Some(End { cells: 2, clean_cells: 1, seconds: 3.0 });
        let records = Records { phases: vec![phase, whole], end, ..Records::default() };
        let page = page(&records).unwrap();
        assert!(
            !page.contains("<b>") && page.contains("1 clean") && page.contains("2 rows in 3.0 s"),
            "{page}"
        );
        for part in [WHOLE, "62.300", "VDD_GPU 1.500 J, – J without idle", "signal 9", "another load"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("Latency and ratio") && !page.contains("rel L2"), "{page}");
        let row =
            page.split("<tbody>").nth(1).and_then(|body| body.split("</tr>").next()).unwrap_or_default();
        assert_eq!(
            row.matches("<td").count(),
            page.matches("<th>").count() + page.matches("<th class").count()
        );
    }

    #[test]
    fn a_run_that_breaks_off_and_one_without_curves_say_so() {
        let cell = Cell { samples: 0, p50_ms: f64::NAN, ..full() };
        let page = page(&Records { cells: vec![cell], ..Records::default() }).unwrap();
        assert!(page.contains("has not ended") && page.contains("there is no curve"), "{page}");
        assert!(page.contains("refused: first; mark; second") && !page.contains("NaN"), "{page}");
        // The row has as many fields as the table has columns.
        let row =
            page.split("<tbody>").nth(1).and_then(|body| body.split("</tr>").next()).unwrap_or_default();
        assert_eq!(
            row.matches("<td").count(),
            page.matches("<th>").count() + page.matches("<th class").count()
        );
    }
}
