//! The schedules that are studied.

use elsa_core::attention::traversal::{Schedule, Skip, TABLE_3, TABLE_4};
use elsa_core::state::HEADROOM;

/// Table that shows a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// The article's table 3.
    Third,
    /// The article's table 4.
    Fourth,
    /// The table of error budgets and other settings that are not in the article.
    Budgets,
}

/// A schedule that is studied.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Table that shows the schedule.
    pub table: Table,
    /// Name in the table.
    pub name: &'static str,
    /// Result that the article prints for the schedule: a language model's score for a schedule of table 3, the
    /// sparsity for a schedule of table 4. Empty for all other schedules.
    pub published: &'static str,
    /// Schedule to run.
    pub schedule: Schedule,
}

/// Scores of table 3 on MMLU (abstract algebra).
const PUBLISHED_3: [&str; TABLE_3.len()] =
    ["0.75", "0.76", "0.23", "0.21", "0.22", "0.22", "0.24", "0.22", "0.22", "0.65"];

/// Sparsities of table 4 in percent, on MMLU (computer security): the share of skipped blocks. Rows of FA4 also contain
/// the share of skipped rescales. Rows of Rowskip contain the share of skipped rows instead of the share of skipped
/// blocks.
const PUBLISHED_4: [&str; TABLE_4.len()] = [
    "",
    "32.3",
    "44.0",
    "49.5",
    "56.1",
    "37.4",
    "48.9",
    "54.1",
    "60.5",
    "32.1 / 96.8",
    "43.4 / 97.0",
    "48.5 / 97.0",
    "54.1 / 97.1",
    "62.3",
    "68.1",
    "70.5",
    "73.5",
    "16.1",
    "31.1",
    "52.8",
    "84.6",
];

/// Schedule that is studied in place of the exact schedule, because the exact schedule does not run in tiles and has no
/// counters. References lag by up to 7 bits, which is one bit less than in the exact schedule.
pub const LAGGING: Schedule = Schedule { threshold: HEADROOM - 1.0, ..Schedule::EXACT };

/// Schedules that are not in the article on vector relieved attention.
const OURS: [(&str, Schedule); 6] = [
    ("references lag by 7 bits", LAGGING),
    ("norm gate", Schedule { gate: true, ..LAGGING }),
    ("budget", Schedule::within(1e-3)),
    ("budget", Schedule::within(1e-2)),
    ("budget", Schedule::within(1e-1)),
    ("VFA, budget", Schedule { skip: Skip::Budget(1e-2), ..Schedule::VFA }),
];

/// Returns every schedule that is studied.
#[must_use]
pub fn settings() -> Vec<Setting> {
    let of = |table, published: &'static str, (name, schedule)| Setting { table, name, published, schedule };
    let third = TABLE_3.into_iter().zip(PUBLISHED_3).map(|(row, told)| of(Table::Third, told, row));
    let fourth = TABLE_4.into_iter().zip(PUBLISHED_4).map(|(row, told)| of(Table::Fourth, told, row));
    third.chain(fourth).chain(OURS.map(|row| of(Table::Budgets, "", row))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_valid_and_counted() {
        let all = settings();
        let of = |table| all.iter().filter(|setting| setting.table == table).count();
        assert_eq!([of(Table::Third), of(Table::Fourth), of(Table::Budgets)], [10, 21, 6]);
        for setting in &all {
            assert!(setting.schedule.check().is_ok() && !setting.schedule.is_exact(), "{setting:?}");
            assert!(
                setting.table == Table::Budgets
                    || !setting.published.is_empty()
                    || setting.name.contains("FA2")
            );
        }
    }
}
