//! Measurements of a job, and the rounds in which jobs are measured.

use crate::process::Slice;
use crate::request::Failure;
use elsa_core::drift::percentile;

/// Maximum number of rounds to try, as a multiple of the requested number.
const TRIES: usize = 3;

/// Returns the first quartile, the median and the third quartile.
pub fn quartiles(mut x: Vec<f64>) -> [f64; 3] {
    [25, 50, 75].map(|percent| percentile(&mut x, percent).unwrap_or(f64::NAN))
}

/// The measurements of one job.
#[derive(Default)]
pub struct Account {
    /// Rates, in units of work per nanosecond, one for each round.
    pub rates: Vec<f64>,
    pub calls: u64,
    /// Relative L2 error of the job's output, compared with f64.
    pub error: Option<f64>,
}

impl Account {
    pub fn add(&mut self, work: f64, slice: &Slice) {
        self.rates.push(work / slice.seconds / 1e9);
        self.calls += slice.calls;
    }

    /// Divides the rate of `self` in each round by the rate of `other` in the same round. Returns the quartiles of
    /// these ratios over all rounds.
    pub fn over(&self, other: &Account) -> [f64; 3] {
        quartiles(self.rates.iter().zip(&other.rates).map(|(a, b)| a / b).collect())
    }

    pub fn rate(&self) -> [f64; 3] {
        quartiles(self.rates.clone())
    }
}

/// Measures jobs until `wanted` rounds were calm, or until `TRIES` times `wanted` rounds have been tried. Returns the
/// number of rounds that were tried.
///
/// A turn is a group of jobs. A round measures one slice of every job of every turn. Each round begins one turn later
/// than the previous round. The order of jobs within a turn does not change. A round ends at its first slice that is not
/// calm. `keep` receives the slices of a round only if all of them were calm.
pub fn rounds(
    wanted: usize,
    turns: &[Vec<usize>],
    mut slice: impl FnMut(usize) -> Result<Slice, Failure>,
    mut keep: impl FnMut(usize, Slice),
) -> Result<usize, Failure> {
    let (mut tried, mut kept) = (0, 0);
    'rounds: while kept < wanted && tried < TRIES * wanted {
        tried += 1;
        let mut round = Vec::new();
        for turn in 0..turns.len() {
            for &job in &turns[(turn + tried) % turns.len()] {
                let slice = slice(job)?;
                if !slice.calm {
                    continue 'rounds;
                }
                round.push((job, slice));
            }
        }
        kept += 1;
        for (job, slice) in round {
            keep(job, slice);
        }
    }
    Ok(tried)
}
