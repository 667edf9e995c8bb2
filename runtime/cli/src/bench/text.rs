//! Rows of the results as text tables. The short table has a row for each shape, and its rows fit 80 columns. The wide
//! table has a row for each method, and its rows have all numbers.

use super::grid::{COLUMNS, DIM, GRID};
use super::method::{ELSA, MATH, ROWS};
use super::watch::counted;
use crate::error::one_line;
use crate::report::{count, size};
use crate::shape::MaskForm;
use elsa_core::telemetry::record::{Cell, End, Start};

/// Formats the first line: the version, the date, and the processors and the board of the run.
#[must_use]
pub fn headline(start: &Start) -> String {
    let cpu = start.cpu.as_deref().unwrap_or("unknown CPU");
    let mut line = format!("elsa {}, {}, {} cores of {cpu}", start.version, start.date, start.cores);
    let facts = [
        ("", &start.board.as_deref()),
        ("GPU ", &start.gpu.as_deref()),
        ("L4T ", &start.l4t.as_deref()),
        ("JetPack ", &start.jetpack.as_deref()),
        ("driver ", &start.driver.as_deref()),
        ("mode ", &start.nvpmodel.as_deref()),
        ("governor ", &start.governor.as_deref()),
    ];
    for (name, fact) in facts {
        if let Some(fact) = fact {
            line += &format!(", {name}{fact}");
        }
    }
    if let Some(fixed) = start.jetson_clocks {
        line += if fixed { ", clocks fixed" } else { ", clocks not fixed" };
    }
    if start.emulated {
        line += ", emulated";
    }
    // The names of boards and drivers come from the machine, so they are escaped.
    one_line(&line)
}

/// Formats the column `form` of a row: the workload, and the parts of the shape that follow its sizes.
fn form(cell: &Cell) -> String {
    let parts = cell.shape.splitn(6, ',').nth(5);
    let words: Vec<&str> = cell.workload.as_deref().into_iter().chain(parts).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(" ") }
}

/// Returns the width that the column `form` needs for `shapes`. Each item contains a workload, if there is one, and a
/// shape.
#[must_use]
pub fn width<'a>(shapes: impl Iterator<Item = (Option<&'a str>, String)>) -> usize {
    let of = |(workload, shape): (Option<&str>, String)| {
        let cell = Cell {
            workload: workload.map(elsa_core::telemetry::record::text),
            shape: elsa_core::telemetry::record::text(&shape),
            ..Cell::default()
        };
        form(&cell).len()
    };
    shapes.map(of).max().unwrap_or(0).max("form".len())
}

/// Width of the column of shapes in the short table. A longer shape has a line of its own.
const SHAPE: usize = 35;

/// Formats the lines above the rows of the short table.
#[must_use]
pub fn short_header() -> String {
    format!(
        "medians in ms; ratio is math / elsa, ~ within the noise\n{:<SHAPE$} {MATH:>9} {ELSA:>9} {:>7} {:>11} mark",
        "shape", "ratio", "peak memory"
    )
}

/// A row of the short table. Its parts are printed one after another.
#[derive(Debug)]
pub struct ShortRow {
    /// The shape and the medians.
    pub before: String,
    /// The ratio of the medians.
    pub ratio: String,
    /// The peak memory and the marks. Lines below have the median of `rows`, if it was measured, and the time for
    /// packing.
    pub after: String,
    /// `true` if every cell of the row is clean.
    pub clean: bool,
    /// `true` if `elsa` is faster than `math` beyond the noise, `false` if it is slower; `None` if neither is known.
    pub faster: Option<bool>,
}

/// Formats the row of a shape in the short table. `cells` are the measurements of its methods. The peak memory is the
/// workspace of `elsa`, or of the only method. A measurement of `rows` has a line below.
#[must_use]
pub fn short_row(cells: &[&Cell]) -> ShortRow {
    let of = |method: &str| cells.iter().copied().find(|cell| cell.method == method && cell.samples > 0);
    let ms = |cell: Option<&Cell>| match cell.map(|cell| cell.p50_ms) {
        Some(ms) if ms < 1e4 => format!("{ms:.4}"),
        Some(ms) => format!("{ms:.1}"),
        None => "-".to_owned(),
    };
    let (elsa, math, rows) = (of(ELSA), of(MATH), of(ROWS));
    let name = cells.first().map_or_else(String::new, |cell| {
        let words = [cell.workload.as_deref(), Some(cell.shape.as_str()), Some(cell.dtype.as_str())];
        words.into_iter().flatten().collect::<Vec<_>>().join(" ")
    });
    let name = if name.len() > SHAPE { format!("{name}\n{:SHAPE$}", "") } else { format!("{name:<SHAPE$}") };
    let ratio = elsa.and_then(|cell| cell.speedup_vs_math);
    let differs = elsa.and_then(|cell| cell.differs);
    let noisy = if differs == Some(false) { "~" } else { " " };
    let memory = elsa
        .or(math)
        .or(rows)
        .map_or("-".to_owned(), |cell| size(usize::try_from(cell.workspace_bytes).unwrap_or(usize::MAX)));
    let clean = cells.iter().all(|cell| cell.clean);
    let exact = cells.iter().all(|cell| cell.samples == 0 || cell.certified);
    let mark = [(clean, DISTURBED), (exact, UNCERTIFIED)];
    let mark: String = mark.into_iter().filter(|(good, _)| !good).map(|(_, mark)| mark).collect();
    let times = elsa.and_then(|cell| cell.speedup_vs_rows);
    let times = times.map_or_else(String::new, |times| format!(", {times:.2} times {ELSA}"));
    let mut below = rows.map_or_else(String::new, |_| format!("\n  {ROWS}: {}{times}", ms(rows)));
    if let Some(packing) = elsa.and_then(|cell| cell.packing_ms) {
        below += &format!("\n  packing q, k and v and unpacking the output: {packing:.4}, not included");
    }
    ShortRow {
        before: format!("{name} {:>9} {:>9} ", ms(math), ms(elsa)),
        ratio: format!("{:>6}{noisy}", ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))),
        after: format!(" {memory:>11} {mark}").trim_end().to_owned() + &below,
        clean,
        faster: ratio.filter(|_| differs == Some(true)).map(|ratio| ratio > 1.0),
    }
}

/// Mark of a row with a cell that was disturbed or refused.
const DISTURBED: &str = "*";
/// Mark of a row with an error beyond the published bound.
const UNCERTIFIED: &str = "!";

/// Explains the marks of the short table, and names the back ends that computed. Each reason why cells are not clean
/// has one line with the number of its cells. Reasons that differ only in numbers count as one, with the numbers of the
/// first cell.
#[must_use]
pub fn legend(cells: &[Cell]) -> Vec<String> {
    let marks = cells.iter().flat_map(|cell| &cell.marks).map(|mark| mark.as_str());
    let reason = |(mark, number): (&str, u64)| format!("{DISTURBED} {}: {mark}", count(number, "cell"));
    let mut lines: Vec<String> = counted(marks).into_iter().map(reason).collect();
    let beyond = || cells.iter().filter(|cell| cell.samples > 0 && !cell.certified);
    if let Some(worst) = beyond().map(|cell| cell.rel_l2).max_by(f64::total_cmp) {
        let number = count(beyond().count() as u64, "cell");
        lines.push(format!("{UNCERTIFIED} {number}: not certified, rel L2 up to {worst:.3e}"));
    }
    let mut computed: Vec<String> = Vec::new();
    for cell in cells.iter().filter(|cell| cell.samples > 0) {
        let by = match cell.threads {
            0 => cell.backend.to_string(),
            threads => format!("{} with {}", cell.backend, count(threads.into(), "thread")),
        };
        if !computed.contains(&by) {
            computed.push(by);
        }
    }
    if !computed.is_empty() {
        lines.push(format!("computed by {}", computed.join(", ")));
    }
    lines.iter().map(|line| one_line(line)).collect()
}

/// Formats the line of column names of the wide table. `width` is the width of the column `form`.
#[must_use]
pub fn header(width: usize) -> String {
    format!(
        "times in ms; ratio is math / elsa, turn by turn, with its quartiles, ~ within the noise\n\
         {:>5} {:>5} {:>7} {:>6} {:>4} {:<width$} {:<4} {:<6} {:<8} {:>7} {:>10} {:>15} {:>15} {:>10} {:>8} {:>10} \
         {:>19} {:>9} {:>11} {:>9} {:>10} {:>7} {:>6}  kernel",
        "batch",
        "heads",
        "queries",
        "keys",
        "d",
        "form",
        "type",
        "method",
        "back end",
        "threads",
        "median",
        "percentile(90%)",
        "percentile(99%)",
        "max",
        "samples",
        "cold",
        "ratio",
        "GFLOP/s",
        "tokens/s",
        "rel L2",
        "workspace",
        "alloc",
        "noise"
    )
}

/// Formats the row of a cell in the wide table, and below it the reasons why it is not clean.
#[must_use]
pub fn row(width: usize, cell: &Cell) -> String {
    let mut row = format!(
        "{:>5} {:>5} {:>7} {:>6} {:>4} {:<width$} {:<4} {:<6} {:<8} {:>7}",
        cell.batch,
        cell.heads,
        cell.queries,
        cell.n,
        cell.d,
        form(cell),
        cell.dtype,
        cell.method,
        cell.backend,
        cell.threads
    );
    if cell.samples > 0 {
        let noise = cell.noise.map_or("-".to_owned(), |noise| format!("{:.1}%", noise * 100.0));
        row += &format!(
            " {:>10.4} {:>15.4} {:>15.4} {:>10.4} {:>8} {:>10.3} {:>19} {:>9.2} {:>11.0} {:>9.2e} {:>10} {:>7} {noise:>6}  {}",
            cell.p50_ms,
            cell.p90_ms,
            cell.p99_ms,
            cell.max_ms,
            cell.samples,
            cell.cold_ms,
            ratio(cell),
            cell.gflops,
            cell.tokens_per_s,
            cell.rel_l2,
            cell.workspace_bytes,
            cell.alloc_bytes,
            cell.kernel
        );
        if let (Some(enqueue), Some(wait)) = (cell.enqueue_p50_ms, cell.wait_p50_ms) {
            let device = cell.device_p50_ms.map_or("-".to_owned(), |ms| format!("{ms:.4}"));
            row += &format!("\n      median: enqueue {enqueue:.4}, wait {wait:.4}, device {device}");
        }
    }
    if let Some(ratio) = cell.speedup_vs_rows.filter(|_| cell.method != ROWS) {
        row += &format!("\n      {ROWS} takes {ratio:.2} times this latency");
    }
    if let Some(packing) = cell.packing_ms {
        row += &format!("\n      packing q, k and v and unpacking the output: {packing:.4}, not included");
    }
    if let Some(board) = board(cell) {
        row += &format!("\n      board: {board}");
    }
    if cell.samples > 0 && !cell.certified {
        row += &format!("\n      not certified: rel L2 {:.3e}", cell.rel_l2);
    }
    let word = if cell.samples > 0 { "marked" } else { "refused" };
    for mark in &cell.marks {
        row += &format!("\n      {word}: {mark}");
    }
    row
}

/// Describes the readings of the board during a cell; `None` if the board reports none.
fn board(cell: &Cell) -> Option<String> {
    let mut facts = Vec::new();
    let mut fact = |value: Option<f64>, digits: usize, unit: &str| {
        facts.extend(value.map(|value| format!("{value:.digits$} {unit}")));
    };
    fact(cell.power_mw, 0, "mW");
    fact(cell.idle_power_mw, 0, "mW idle");
    fact(cell.power_quantum_mw, 0, "mW a step");
    fact(cell.energy_mj, 3, "mJ a call");
    fact(cell.energy_net_mj, 3, "mJ without idle power");
    let zone = cell.temp_zone.as_deref().map(|zone| format!(" {zone}")).unwrap_or_default();
    fact(cell.temp_c, 1, &format!("°C{zone}"));
    fact(cell.cpu_mhz, 0, "MHz CPU");
    fact(cell.gpu_mhz, 0, "MHz GPU");
    fact(cell.emc_mhz, 0, "MHz memory");
    if facts.is_empty() {
        return None;
    }
    facts.push(format!("throttling {}", cell.throttled));
    Some(facts.join(", "))
}

/// Formats the latency of the method `math` divided by the latency of the method `elsa`, for a row of the method
/// `elsa`. Returns `-` for other rows.
fn ratio(cell: &Cell) -> String {
    match (cell.speedup_vs_math, cell.ratio_low, cell.ratio_high) {
        (Some(ratio), Some(low), Some(high)) if cell.method != MATH => {
            let same = if cell.differs == Some(false) { "~" } else { "" };
            format!("{ratio:.2} ({low:.2}-{high:.2}){same}")
        }
        _ => "-".to_owned(),
    }
}

/// Formats the medians like Table 6 of the ELSA paper, with a row for each number of tokens and a column for each mask.
/// Returns an empty text if no measured cell has a mask.
#[must_use]
pub fn grid(cells: &[Cell]) -> String {
    let mut table = String::new();
    let mut kinds: Vec<(&str, u64)> = Vec::new();
    for cell in cells.iter().filter(|cell| cell.mask.is_some() && cell.samples > 0) {
        if !kinds.contains(&(&cell.dtype, cell.heads)) {
            kinds.push((&cell.dtype, cell.heads));
        }
    }
    for (dtype, heads) in kinds {
        let of_grid = |cell: &Cell, tokens: usize| {
            cell.shape.as_str() == super::grid::cell(heads as usize, tokens, None).to_string()
        };
        // Shapes with masks may lie outside the grid.
        if !cells.iter().any(|cell| cell.samples > 0 && GRID.iter().any(|&tokens| of_grid(cell, tokens))) {
            continue;
        }
        let find = |tokens: usize, mask: Option<MaskForm>, method: &str| {
            let shape = super::grid::cell(heads as usize, tokens, mask).to_string();
            cells.iter().find(|cell| {
                cell.dtype == dtype
                    && cell.method == method
                    && cell.shape.as_str() == shape
                    && cell.samples > 0
            })
        };
        let ms = |cell: Option<&Cell>| cell.map_or("-".to_owned(), |cell| format!("{:.4}", cell.p50_ms));
        let [_, padded, biased] = COLUMNS;
        table += &format!(
            "\n{dtype}, batch 1, {}, d = {DIM}: medians in ms\n{:>6} {:>10} {:>10} {:>19} {:>10} {:>10} {:>9}\n",
            count(heads, "head"),
            "tokens",
            MATH,
            ELSA,
            "ratio",
            "padded",
            "biased",
            "alloc MB"
        );
        for tokens in GRID {
            let elsa = find(tokens, None, ELSA);
            table += &format!(
                "{tokens:>6} {:>10} {:>10} {:>19} {:>10} {:>10} {:>9}\n",
                ms(find(tokens, None, MATH)),
                ms(elsa),
                elsa.map_or("-".to_owned(), ratio),
                ms(find(tokens, padded, ELSA)),
                ms(find(tokens, biased, ELSA)),
                elsa.map_or("-".to_owned(), |cell| format!("{:.3}", cell.workspace_bytes as f64 / 1e6))
            );
        }
    }
    table
}

/// Formats the last line: the number of cells, the number of clean cells, and the time.
#[must_use]
pub fn footer(end: &End) -> String {
    format!("{}, {} clean, in {:.1} s", count(end.cells.into(), "cell"), end.clean_cells, end.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::grid::cases;
    use crate::shape::{Named, Shape, WORKLOADS};
    use elsa_core::telemetry::record::text;

    #[test]
    fn a_headline_is_one_line_whatever_the_machine_says() {
        let start = Start { board: Some(text("Jetson\u{1b}[2J\n")), emulated: true, ..Start::default() };
        let line = headline(&start);
        assert!(!line.contains(char::is_control) && line.ends_with(", emulated"), "{line:?}");
    }

    #[test]
    fn rows_of_the_short_table_fit_80_columns() {
        let named = |name: &str| name.parse::<Named>().unwrap();
        let mut shapes: Vec<Shape> =
            cases(&[], &[], None, 12).unwrap().iter().map(|case| case.shape).collect();
        shapes.extend(WORKLOADS.iter().flat_map(|workload| named(workload.name).shapes));
        assert!(short_header().lines().all(|line| line.len() <= 80), "{}", short_header());
        for shape in shapes {
            let cell = |method| Cell {
                workload: Some(text("depth-anything-v2-large")),
                shape: text(&shape.to_string()),
                dtype: text("bf16"),
                method: text(method),
                samples: 9,
                p50_ms: 12_345_678.25,
                speedup_vs_math: Some(123.456),
                differs: Some(false),
                workspace_bytes: 999_949_999,
                ..Cell::default()
            };
            let ShortRow { before, ratio, after, .. } = short_row(&[&cell(ELSA), &cell(MATH)]);
            let row = format!("{before}{ratio}{after}");
            assert!(row.lines().all(|line| line.chars().count() <= 80), "{row}");
            assert!(row.contains(" 12345678.2 ") && row.ends_with(" 123.46~    999.9 MB *!"), "{row}");
        }
    }

    #[test]
    fn the_short_table_joins_methods_and_explains_its_marks() {
        let cell = |method: &str, ms: f64| Cell {
            shape: text("1,12,197,197,64"),
            dtype: text("f32"),
            backend: text("avx2"),
            threads: 1,
            method: text(method),
            samples: 9,
            p50_ms: ms,
            certified: true,
            clean: true,
            workspace_bytes: 167_680,
            ..Cell::default()
        };
        let (mut elsa, mut math) = (cell(ELSA, 2.646), cell(MATH, 12.5));
        (elsa.speedup_vs_math, elsa.differs) = (Some(4.72), Some(true));
        let joined = |cells: &[&Cell]| {
            let row = short_row(cells);
            (format!("{}{}{}", row.before, row.ratio, row.after), row.clean, row.faster)
        };
        let wanted = "1,12,197,197,64 f32                   12.5000    2.6460   4.72     167.7 kB";
        assert_eq!(joined(&[&elsa, &math]), (wanted.to_owned(), true, Some(true)));
        elsa.speedup_vs_math = Some(0.5);
        assert_eq!(joined(&[&elsa, &math]).2, Some(false));
        assert_eq!(
            joined(&[&math]).0,
            "1,12,197,197,64 f32                   12.5000         -      -     167.7 kB"
        );
        // A third method has a line below.
        elsa.speedup_vs_rows = Some(3.5);
        let third = joined(&[&elsa, &math, &cell(ROWS, 9.25)]).0;
        assert!(third.ends_with("     167.7 kB\n  rows: 9.2500, 3.50 times elsa"), "{third}");
        let packed = Cell { packing_ms: Some(0.5), ..cell(ELSA, 2.5) };
        let packed = joined(&[&packed]).0;
        assert!(
            packed.ends_with("\n  packing q, k and v and unpacking the output: 0.5000, not included"),
            "{packed}"
        );
        let alone = joined(&[&cell(ROWS, 9.25)]).0;
        assert!(alone.ends_with("  -         -      -     167.7 kB\n  rows: 9.2500"), "{alone}");
        // A refused cell has no numbers.
        let mut refused = Cell { samples: 0, clean: false, p50_ms: f64::NAN, ..cell(ELSA, 0.0) };
        let _ = refused.marks.push(text("hot"));
        let (row, clean, faster) = joined(&[&refused]);
        assert!(
            row.ends_with("      -         -      -            - *") && !clean && faster.is_none(),
            "{row}"
        );

        for (cell, load) in [(&mut elsa, "1.29"), (&mut math, "1.31")] {
            let _ =
                cell.marks.push(text(&format!("others take {load} cores, most by rustc (77); close rustc")));
        }
        (math.certified, math.rel_l2) = (false, 0.25);
        assert_eq!(
            legend(&[elsa, math, refused]),
            [
                "* 2 cells: others take 1.29 cores, most by rustc (77); close rustc",
                "* 1 cell: hot",
                "! 1 cell: not certified, rel L2 up to 2.500e-1",
                "computed by avx2 with 1 thread"
            ]
        );
        assert_eq!(legend(&[]), Vec::<String>::new());
    }

    #[test]
    fn a_row_says_which_shape_it_is_and_what_is_wrong_with_it() {
        let mut cell = Cell {
            workload: Some(text("bert-sst2")),
            shape: text("8,12,64,64,64,mask=padding"),
            batch: 8,
            heads: 12,
            method: text(ELSA),
            samples: 9,
            speedup_vs_math: Some(1.5),
            speedup_vs_rows: Some(2.5),
            tokens_per_s: 123_456.4,
            ratio_low: Some(1.25),
            ratio_high: Some(1.75),
            differs: Some(false),
            kernel: text("attention_f32"),
            certified: true,
            temp_c: Some(41.25),
            temp_zone: Some(text("GPU-therm")),
            energy_mj: Some(1.5),
            ..Cell::default()
        };
        let _ = cell.marks.push(text("another load"));
        let words = row(30, &cell);
        for part in [
            "    8    12 ",
            "bert-sst2 mask=padding",
            "1.50 (1.25-1.75)~",
            "     123456 ",
            "rows takes 2.50 times this latency",
            "attention_f32",
            "marked: another load",
            "board: 1.500 mJ a call, 41.2 °C GPU-therm, throttling cannot be told",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
        cell.samples = 0;
        let words = row(30, &cell);
        assert!(words.contains("refused: another load") && !words.contains("attention_f32"), "{words}");
        let header = header(30);
        let columns = header.lines().nth(1).unwrap();
        for name in ["batch", "heads", "queries", "keys", "type", "method", "back end", "kernel", "threads"] {
            assert!(columns.contains(name), "{name}");
        }
    }
}
