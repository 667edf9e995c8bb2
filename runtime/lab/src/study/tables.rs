//! Builds the tables of a study.

use super::measure::{Outcome, Study};
use super::operations::{ISAS, Operations, PARTS};
use super::places::TILE;
use super::settings::{LAGGING, Table};
use elsa_core::attention::traversal::{Schedule, Skip, TABLE_3};

/// A table of the page.
#[derive(Debug)]
pub struct Shown {
    /// Identifier in the page's markup.
    pub id: &'static str,
    /// Heading.
    pub title: &'static str,
    /// Explanation of the table.
    pub words: String,
    /// Names of the columns; the first column contains words.
    pub head: Vec<String>,
    /// Cells of each row.
    pub rows: Vec<Vec<String>>,
}

/// Formats the share `part / whole` in percent.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "–".to_owned() } else { rate(part as f64 / whole as f64) }
}

/// Formats a rate in percent, in scientific notation if it is small.
pub fn rate(x: f64) -> String {
    match x * 100.0 {
        x if x != 0.0 && x < 0.05 => format!("{x:.1e} %"),
        x => format!("{x:.1} %"),
    }
}

/// Formats a number in scientific notation.
fn number(x: f64) -> String {
    if x == 0.0 { "0".to_owned() } else { format!("{x:.2e}") }
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Study {
    /// Returns the results of a schedule, if it was studied.
    fn outcome(&self, schedule: &Schedule) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| outcome.setting.schedule == *schedule)
    }

    /// Iterates over the results that a table shows.
    fn of(&self, table: Table) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(move |outcome| outcome.setting.table == table)
    }

    /// Returns the number of rows that attend at least one key.
    fn rows_seen(&self) -> u64 {
        self.maxima.rows()
    }
}

/// Returns the schedules whose operations are shown, with their names.
fn counted() -> [(&'static str, Schedule); 6] {
    [
        ("FA", Schedule::FLASH),
        ("FA, lagging by 7 bits", LAGGING),
        ("norm gate", Schedule { gate: true, ..LAGGING }),
        ("VFA", Schedule::VFA),
        ("VSA λ=0.01", Schedule::vsa(1e-2)),
        ("budget 0.01", Schedule::within(1e-2)),
    ]
}

/// Builds the article's table 1, for the kernels of AVX-512.
pub fn operations(study: &Study) -> Shown {
    let dims = [study.shape[3], study.shape[4]];
    let columns: Vec<(&str, Operations)> = counted()
        .into_iter()
        .filter_map(|(name, schedule)| {
            let report = study.outcome(&schedule)?.report;
            Some((name, Operations::of(ISAS[0], dims, &schedule, [TILE.rows, TILE.keys], &report)))
        })
        .collect();
    let mut head = strings(&["vector operations of a weight"]);
    head.extend(columns.iter().map(|(name, _)| (*name).to_owned()));
    let of = |name: &str, number: &dyn Fn(&Operations) -> f64| {
        let numbers = columns.iter().map(|(_, operations)| format!("{:.3}", number(operations)));
        [name.to_owned()].into_iter().chain(numbers).collect::<Vec<String>>()
    };
    let mut rows: Vec<Vec<String>> =
        PARTS.into_iter().enumerate().map(|(i, part)| of(part, &|x| x.parts()[i])).collect();
    rows.push(of("all", &Operations::total));
    Shown {
        id: "1",
        title: "Table 1: operations",
        words: format!(
            "Vector operations per vector of weights in blocks of {} by {}, with the exponential of AVX-512, d {} and d_v {}. \
             They are counted from the source of the kernels; how often a maximum is sought, a sum rescaled or a block left \
             out is what the runs have counted. Loads and stores are left out. Where powers of two are made of integer bits \
             (AVX2, NEON), a frozen run still has to watch its largest exponent, which is the maximum again.",
            TILE.rows, TILE.keys, dims[0], dims[1],
        ),
        head,
        rows,
    }
}

/// Builds figure 1 as a table: the share of each purpose in all operations, by instruction set and head size. The table
/// also contains the speed-ups that would follow from the counts if some of the operations were saved.
pub fn shares(study: &Study) -> Shown {
    let budget = study.outcome(&Schedule::within(1e-2)).map_or(0.0, |x| x.report.row_sparsity());
    let mut rows = Vec::new();
    for isa in ISAS {
        for d in dims(study) {
            let exact = Operations::exact(isa, d, d);
            let all = exact.total();
            let faster = |fewer: f64| format!("{:.3}", all / (all - fewer));
            rows.push(vec![
                isa.name.to_owned(),
                d.to_string(),
                format!("{all:.0}"),
                rate(exact.maximum / all),
                rate((exact.maximum + exact.floor + exact.subtraction) / all),
                rate((exact.exponential + exact.sum) / all),
                rate((exact.keys + exact.values) / all),
                faster(exact.maximum),
                faster(exact.maximum + exact.floor + exact.subtraction),
                faster(exact.values / 2.0),
                faster(exact.values * budget),
            ]);
        }
    }
    let head = strings(&[
        "instruction set",
        "d = d_v",
        "operations",
        "maximum",
        "maximum, floor, subtraction",
        "exponential, sum",
        "products",
        "freezing: times as fast",
        "norm gate",
        "half of the blocks left out",
        "budget 0.01 here",
    ]);
    Shown {
        id: "figure-1",
        title: "Figure 1: what a maximum takes",
        words: "Shares of the vector operations of a weight in the exact kernel, and how many times as fast a kernel would be \
                if only operations counted. The article's tensor cores make products cheap and a maximum dear; vector \
                instructions multiply as fast as they compare."
            .to_owned(),
        head,
        rows,
    }
}

/// Returns the head sizes that figure 1 shows.
pub fn dims(study: &Study) -> Vec<usize> {
    let mut dims = vec![32, 64, 128];
    if !dims.contains(&study.shape[3]) {
        dims.push(study.shape[3]);
    }
    dims.sort_unstable();
    dims
}

/// Builds the article's table 3.
pub fn third(study: &Study) -> Shown {
    let all = study.rows_seen();
    let rows = study.of(Table::Third).map(|Outcome { setting, report, errors }| {
        vec![
            setting.name.to_owned(),
            setting.published.to_owned(),
            percent(report.half.overflowing, all),
            percent(report.half.vanishing, all),
            percent(report.single.overflowing, all),
            percent(report.single.vanishing, all),
            percent(report.recomputed, report.accepted + report.recomputed),
            number(errors.worst),
        ]
    });
    Shown {
        id: "3",
        title: "Table 3: first references",
        words: format!(
            "What {} settings of a frozen reference would do to the rows. A row overflows if some weight is beyond the type \
             when it is made, and vanishes if every weight is zero; an unguarded kernel would then answer infinity or NaN. \
             Here the guard finds such rows in single precision, the exact schedule computes them again, and the error is \
             that of rounding. The article's scores are those of a language model.",
            TABLE_3.len()
        ),
        head: strings(&[
            "setting",
            "score in the article",
            "overflow f16",
            "vanish f16",
            "overflow f32",
            "vanish f32",
            "computed again",
            "largest error",
        ]),
        rows: rows.collect(),
    }
}

/// Formats the skip parameter of a schedule: its λ or its budget.
fn parameter(schedule: &Schedule) -> String {
    match schedule.skip {
        Skip::Never => "–".to_owned(),
        Skip::Budget(x) | Skip::Blocks(x) | Skip::Rows(x) => x.to_string(),
    }
}

/// Builds the rows of `table`, which shows schedules that skip blocks. The columns of the rows depend on `table`.
fn left_out(study: &Study, table: Table) -> Vec<Vec<String>> {
    let row = |Outcome { setting, report, errors }: &Outcome| {
        let mut cells = vec![setting.name.to_owned(), parameter(&setting.schedule)];
        if table == Table::Fourth {
            cells.push(setting.published.to_owned());
        }
        cells.extend([
            rate(report.block_sparsity()),
            rate(report.row_sparsity()),
            rate(report.rescale_skip_rate()),
            report.recomputed.to_string(),
            report.lost_maximum.to_string(),
        ]);
        if table == Table::Budgets {
            cells.push(percent(report.gated, report.accepted + report.recomputed));
        }
        cells.extend([
            number(report.worst_share),
            number(report.mean_share()),
            number(report.worst_share * study.spread),
            number(errors.bound),
            number(errors.worst),
            number(errors.mean()),
            rate(errors.used),
        ]);
        cells
    };
    study.of(table).map(row).collect()
}

/// Last columns of tables of schedules that skip blocks.
const LEFT_OUT: [&str; 7] = [
    "D/(S+D) worst",
    "mean",
    "times the spread of V",
    "bound, sampled rows",
    "largest error, all rows",
    "mean error",
    "of the bound, sampled rows",
];
/// Note on why an error may exceed the bound in its row.
const OF_WHICH_ROWS: &str = "The bound is the largest of the sampled rows, the largest error that of all rows: an error above the \
    bound beside it is one of a row that was not sampled, whose bound is another. The last column sets every component of the \
    sampled rows against its own bound, where more than 100 % would be a violation.";
const SPARSITY: [&str; 5] =
    ["blocks left out", "rows of blocks", "rescale skipped", "rows computed again", "of these maximum lost"];

/// Builds the article's table 4.
pub fn fourth(study: &Study) -> Shown {
    let mut head = strings(&["setting", "λ", "sparsity % in the article"]);
    head.extend(SPARSITY.into_iter().chain(LEFT_OUT).map(str::to_owned));
    Shown {
        id: "4",
        title: "Table 4: blocks left out by λ",
        words: format!(
            "A block goes where its largest score lies below the reference by more than ln λ. λ promises nothing, but every \
             answer carries what it left out: D/(S+D) bounds the share of the weights, and times the spread of the values it \
             bounds the error, beside rounding. {OF_WHICH_ROWS}"
        ),
        head,
        rows: left_out(study, Table::Fourth),
    }
}

/// Builds the table of error budgets and other settings that are not in the article.
pub fn budgets(study: &Study) -> Shown {
    let mut head = strings(&["setting", "E"]);
    head.extend(SPARSITY.map(str::to_owned));
    head.push("rows of the gate".to_owned());
    head.extend(LEFT_OUT.map(str::to_owned));
    Shown {
        id: "budgets",
        title: "Error budgets",
        words: format!(
            "A block's products with values go where, with it, at most E of the weights of every row of the tile are left \
             out. D/(S+D) never exceeds E. The norm gate takes zero as the reference of rows whose scores stay within 48 bits. \
             {OF_WHICH_ROWS}"
        ),
        head,
        rows: left_out(study, Table::Budgets),
    }
}
