//! Checks whether the total power includes the rails that are supposed to be a part of it.
//!
//! A rail such as `VDD_IN` counts as the total because it feeds the other rails. This is not verified for every board,
//! but measurements under load show it: if the total includes a rail, the total rises at least as much as the rail.

use super::sources::PARTS;
use super::tally::Readings;
use std::fmt;

/// Comparison of the total power's rise under load with the rise of a rail that the total should include.
#[derive(Clone, Debug, PartialEq)]
pub struct Inclusion {
    /// Text in the name of the rail: `GPU` or `CPU`.
    pub part: &'static str,
    /// Rise of the total under load, in mW.
    pub total_mw: f64,
    /// Rise of the rail under load, in mW.
    pub part_mw: f64,
}

/// Smallest rise of a rail, in mW, that allows a conclusion.
const RISE: f64 = 500.0;
/// Tolerance of the comparison, as a fraction of the rail's rise: the total's rise may be smaller by this much, because
/// both are means of quantised readings.
const SLACK: f64 = 0.1;

impl Inclusion {
    /// Returns `true` if the total rose about as much as the rail or more, and so includes it.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.total_mw >= self.part_mw * (1.0 - SLACK)
    }
}

impl fmt::Display for Inclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inclusion { part, total_mw, part_mw } = self;
        let verdict =
            if self.holds() { "holds it" } else { "does not hold it: power and energy are too low" };
        write!(
            f,
            "under load the rail of the {part} rose by {part_mw:.0} mW and the total by {total_mw:.0} mW: the total {verdict}"
        )
    }
}

/// Compares the rise of the total power, from the idle to the loaded machine, with the rise of each rail that the total
/// should include. Rails whose power hardly rose are left out.
#[must_use]
pub fn inclusions(idle: &Readings, load: &Readings) -> Vec<Inclusion> {
    let Some(total_mw) = load.power_mw.zip(idle.power_mw).map(|(load, idle)| load - idle) else {
        return Vec::new();
    };
    let rise = |place: usize| Some(load.parts_mw[place]? - idle.parts_mw[place]?);
    let parts = PARTS.into_iter().enumerate();
    parts
        .filter_map(|(place, part)| {
            let part_mw = rise(place).filter(|rise| *rise >= RISE)?;
            Some(Inclusion { part, total_mw, part_mw })
        })
        .collect()
}
