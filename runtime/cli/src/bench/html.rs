//! The results as one self-contained page: no external script, font or picture.
//!
//! The template escapes every text, because the names of boards, kernels and processes come from the machine. Curves
//! are SVG in the style sheet's colours, so they follow the reader's choice of light or dark.

use super::chart::{of_cells, of_traces};
use super::phases::WHOLE;
use crate::error::Error;
use crate::picture::Picture;
use askama::Template;
use elsa_core::telemetry::record::{Cell, End, Phase, Record, Start, Throttling, Trace};

/// A group of charts below one heading.
struct Group {
    title: &'static str,
    charts: Vec<Picture>,
    /// Text to show if there are no charts.
    absent: &'static str,
}

/// A column of the table: its name, and `true` if its texts are words rather than numbers.
type Column = (&'static str, bool);

/// The columns of cells. A column without a value is left out.
const CELL: [Column; 37] = [
    ("workload", true),
    ("shape", true),
    ("type", true),
    ("method", true),
    ("back end", true),
    ("threads", false),
    ("median", false),
    ("percentile(90%)", false),
    ("percentile(99%)", false),
    ("max", false),
    ("samples", false),
    ("cold", false),
    ("enqueue", false),
    ("wait", false),
    ("device", false),
    ("ratio", false),
    ("difference", true),
    ("noise %", false),
    ("rows ratio", false),
    ("GFLOP/s", false),
    ("tokens/s", false),
    ("packing", false),
    ("rel L2", false),
    ("certified", true),
    ("workspace", false),
    ("allocated", false),
    ("power mW", false),
    ("idle mW", false),
    ("energy mJ", false),
    ("without idle mJ", false),
    ("°C", false),
    ("zone", true),
    ("CPU MHz", false),
    ("GPU MHz", false),
    ("EMC MHz", false),
    ("throttled", true),
    ("kernel", true),
];

/// The columns of a program's phases. A column without a value is left out.
const PHASE: [Column; 23] = [
    ("phase", true),
    ("from s", false),
    ("s", false),
    ("end", true),
    ("CPU s", false),
    ("user s", false),
    ("system s", false),
    ("peak MB", false),
    ("power mW", false),
    ("idle mW", false),
    ("energy J", false),
    ("without idle J", false),
    ("rails", true),
    ("first °C", false),
    ("last °C", false),
    ("max °C", false),
    ("zone", true),
    ("CPU MHz", false),
    ("GPU MHz", false),
    ("EMC MHz", false),
    ("GPU load %", false),
    ("others, cores", false),
    ("throttled", true),
];

/// A row of the table.
struct Row {
    /// Text of each column, and `true` if the text is a word rather than a number.
    fields: Vec<(String, bool)>,
    clean: bool,
    /// Reasons why the row is not clean. Each has a row of its own.
    reasons: Vec<String>,
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
    columns: Vec<Column>,
    rows: Vec<Row>,
    /// `true` if the rows are the phases of a program.
    program: bool,
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
    let program = !phases.is_empty();
    let (columns, rows) = if program {
        table(&PHASE, phases.iter().map(phase).collect())
    } else {
        table(&CELL, cells.iter().map(cell).collect())
    };
    let page = Page {
        name: start.board.as_deref().or(start.gpu.as_deref()).or(cpu).unwrap_or("unknown machine"),
        start,
        end,
        seconds: end.map_or_else(String::new, |end| format!("{:.1}", end.seconds)),
        facts: facts(start),
        groups: if program { vec![board] } else { vec![latency, board] },
        program,
        columns,
        rows,
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

/// Text of a field without a value.
const NONE: &str = "–";

/// Formats a number with `digits` digits after the point.
fn number(x: Option<f64>, digits: usize) -> String {
    x.filter(|x| x.is_finite()).map_or_else(|| NONE.to_owned(), |x| format!("{x:.digits$}"))
}

/// Returns the columns of `all` in which some row has a value, and the rows with those columns alone.
fn table(all: &[Column], rows: Vec<Row>) -> (Vec<Column>, Vec<Row>) {
    let shown: Vec<usize> =
        (0..all.len()).filter(|&at| rows.iter().any(|row| row.fields[at].0 != NONE)).collect();
    let kept = |row: Row| Row { fields: shown.iter().map(|&at| row.fields[at].clone()).collect(), ..row };
    let rows = rows.into_iter().map(kept).collect();
    (shown.iter().map(|&at| all[at]).collect(), rows)
}

/// Pairs the texts of a row with what [`Column`] says about them.
fn fields<const N: usize>(texts: [String; N], columns: &[Column; N]) -> Vec<(String, bool)> {
    texts.into_iter().zip(columns).map(|(text, column)| (text, column.1)).collect()
}

/// Builds the row of a phase of a program.
fn phase(phase: &Phase) -> Row {
    let ended = match (phase.exit_status, phase.signal) {
        (Some(status), _) => format!("status {status}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => NONE.to_owned(),
    };
    let joules = |mj: Option<f64>| number(mj.map(|mj| mj / 1e3), 3);
    let rails: Vec<String> = phase
        .rails
        .iter()
        .map(|rail| {
            let net = joules(rail.energy_net_mj);
            format!("{} {:.3} J, {net} J without idle", rail.name, rail.energy_mj / 1e3)
        })
        .collect();
    let texts = [
        phase.phase.as_deref().unwrap_or(WHOLE).to_owned(),
        number(Some(phase.begin_s), 2),
        number(Some(phase.seconds), 2),
        ended,
        number(phase.cpu_s, 2),
        number(phase.user_s, 2),
        number(phase.system_s, 2),
        number(phase.peak_bytes.map(|bytes| bytes as f64 / 1e6), 1),
        number(phase.power_mw, 0),
        number(phase.idle_power_mw, 0),
        joules(phase.energy_mj),
        joules(phase.energy_net_mj),
        if rails.is_empty() { NONE.to_owned() } else { rails.join("; ") },
        number(phase.temp_first_c, 1),
        number(phase.temp_last_c, 1),
        number(phase.temp_c, 1),
        phase.temp_zone.as_deref().unwrap_or(NONE).to_owned(),
        number(phase.cpu_mhz, 0),
        number(phase.gpu_mhz, 0),
        number(phase.emc_mhz, 0),
        number(phase.gpu_load.map(|load| load * 100.0), 0),
        number(phase.load, 2),
        throttled(phase.throttled),
    ];
    let reasons = phase.marks.iter().map(ToString::to_string).collect();
    Row { fields: fields(texts, &PHASE), clean: phase.clean, reasons }
}

/// Returns the name of a state of the clocks.
fn throttled(throttled: Throttling) -> String {
    if throttled == Throttling::Unknown { NONE } else { throttled.name() }.to_owned()
}

/// Builds the row of a cell.
fn cell(cell: &Cell) -> Row {
    let ms = |x: f64| number(Some(x), 4);
    let whole = |n: u64| n.to_string();
    let word = str::to_owned;
    let ratio = match (cell.speedup_vs_math, cell.ratio_low, cell.ratio_high) {
        (Some(ratio), Some(low), Some(high)) => format!("{ratio:.2} ({low:.2}–{high:.2})"),
        _ => NONE.to_owned(),
    };
    let differs = match cell.differs {
        Some(true) => "yes",
        Some(false) => "within the noise",
        None => NONE,
    };
    let measured = cell.samples > 0;
    let texts = [
        word(cell.workload.as_deref().unwrap_or(NONE)),
        word(&cell.shape),
        word(&cell.dtype),
        word(&cell.method),
        word(&cell.backend),
        if cell.threads == 0 { NONE.to_owned() } else { whole(cell.threads.into()) },
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
        number(cell.speedup_vs_rows, 2),
        number(Some(cell.gflops), 2),
        number(Some(cell.tokens_per_s), 0),
        number(cell.packing_ms, 4),
        if cell.rel_l2.is_finite() { format!("{:.2e}", cell.rel_l2) } else { NONE.to_owned() },
        word(if !measured {
            NONE
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
        word(cell.temp_zone.as_deref().unwrap_or(NONE)),
        number(cell.cpu_mhz, 0),
        number(cell.gpu_mhz, 0),
        number(cell.emc_mhz, 0),
        throttled(cell.throttled),
        word(if cell.kernel.is_empty() { NONE } else { cell.kernel.as_str() }),
    ];
    Row { fields: fields(texts, &CELL), clean: cell.clean, reasons: reasons(cell) }
}

/// Lists the reasons why a cell is not clean.
fn reasons(cell: &Cell) -> Vec<String> {
    let word = if cell.samples > 0 { "" } else { "refused: " };
    cell.marks.iter().map(|mark| format!("{word}{mark}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::csv::tests::full;
    use crate::picture::faults;
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
        assert_eq!(faults(&page), [""; 0]);
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
        assert!(!page.contains("GPU load %"), "{page}");
    }

    #[test]
    fn a_run_that_breaks_off_and_one_without_curves_say_so() {
        let cell = Cell { samples: 0, p50_ms: f64::NAN, ..full() };
        let page = page(&Records { cells: vec![cell], ..Records::default() }).unwrap();
        assert!(page.contains("has not ended") && page.contains("there is no curve"), "{page}");
        for reason in ["refused: first; mark</div>", "refused: second</div>"] {
            assert!(page.contains(reason) && !page.contains("NaN"), "{page}");
        }
        // The row has as many fields as the table has columns, and each reason is a row below it.
        let body = page.split("<tbody>").nth(1).unwrap_or_default();
        let rows: Vec<&str> = body.split("</tr>").collect();
        let columns = page.matches("<th>").count() + page.matches("<th class").count();
        assert_eq!((rows[0].matches("<td").count(), rows.len()), (columns, 4));
        assert!(rows[1].contains(&format!("colspan=\"{columns}\"")), "{}", rows[1]);
    }

    #[test]
    fn columns_without_a_value_are_left_out() {
        let cell = Cell { throttled: Throttling::Unknown, noise: None, ..full() };
        let table = |cells: Vec<Cell>| page(&Records { cells, ..Records::default() }).unwrap();
        let heads =
            |page: &str| ["noise %", "throttled", "power mW"].map(|name| page.contains(&format!(">{name}<")));
        assert_eq!(heads(&table(vec![cell.clone()])), [false; 3]);
        let other = Cell { power_mw: Some(3000.0), ..full() };
        let all = table(vec![cell, other]);
        assert_eq!(heads(&all), [true; 3]);
        assert!(all.contains("<td>–</td>"), "{all}");
    }
}
