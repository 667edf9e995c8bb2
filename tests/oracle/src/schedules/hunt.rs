//! Core's scalar run computes hard problems under a schedule, and its outputs are compared with their error bounds.
//!
//! The problem, the schedule and the tile depend on the seed alone. The problems break schedules that trust their
//! references or their budgets: a maximum in the last block, blocks with a mass just below the budget, representatives
//! hundreds of bits too high or too low, tiny and huge scores, keys that share an offset, values that cancel.

use super::{ScheduleRun, judged, scored, try_run};
use crate::bounds::Findings;
use crate::cases::{Case, Params};
use crate::random::seeded;
use elsa_core::attention::Alignment;
use elsa_core::attention::traversal::scalar::executed;
use elsa_core::attention::traversal::{Schedule, Skip, TABLE_3, TABLE_4, TileSize, TraversalReport};
use elsa_core::random::Random;

/// Rules that decide which blocks are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// No block is skipped; references are frozen.
    Frozen,
    /// Blocks that fit an error budget are skipped.
    Budget,
    /// Blocks, or single rows of a block, whose largest weight is below λ are skipped, as in BLASST or VSA.
    Lambda,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 3] = [Rule::Frozen, Rule::Budget, Rule::Lambda];

    /// Returns the name of the rule in the table of a hunt.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Rule::Frozen => "core, frozen",
            Rule::Budget => "core, budget",
            Rule::Lambda => "core, lambda",
        }
    }
}

/// Statistics over all runs of a hunt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Number of rows that the exact schedule recomputed.
    pub recomputed: u64,
    /// Number of pairs of a row and a block of keys, and how many of them were skipped.
    pub row_blocks: [u64; 2],
}

/// A random problem, with the schedule and the tile of its run.
struct Drawn {
    case: Case,
    schedule: Schedule,
    tile: TileSize,
}

/// Number of kinds of hard problems.
const KINDS: usize = 10;

impl Drawn {
    fn new(rule: Rule, seed: u64) -> Drawn {
        let mut random = seeded(seed);
        let tile = TileSize { rows: 1 + random.below(20), keys: 1 + random.below(40) };
        let share = ((random.unit() * -20.0).exp2() as f32).clamp(f32::MIN_POSITIVE, 0.999);
        let mut schedule = match rule {
            Rule::Frozen => TABLE_3[random.below(TABLE_3.len())].1,
            Rule::Budget => match random.below(2) {
                0 => Schedule::within(share),
                _ => Schedule { skip: Skip::Budget(share), ..TABLE_3[random.below(TABLE_3.len())].1 },
            },
            Rule::Lambda => match random.below(3) {
                // The first entry of the table skips nothing, so it is not used.
                0 => TABLE_4[1 + random.below(TABLE_4.len() - 1)].1,
                1 => Schedule { skip: Skip::Blocks(share), ..TABLE_3[random.below(TABLE_3.len())].1 },
                _ => Schedule { skip: Skip::Rows(share), ..TABLE_3[random.below(TABLE_3.len())].1 },
            },
        };
        schedule.gate = rule != Rule::Lambda && random.below(4) == 0;
        let mut case = hard(random.below(KINDS), &mut random, tile, share);
        case.spec.causal = [None, Some(Alignment::TopLeft), Some(Alignment::BottomRight)][random.below(3)];
        Drawn { case, schedule, tile }
    }
}

/// Draws a problem of kind `kind`. `share` is the limit of an error budget.
fn hard(kind: usize, random: &mut Random, tile: TileSize, share: f32) -> Case {
    let (queries, keys) = (1 + random.below(40), 1 + random.below(150));
    let (d, dv) = (1 + random.below(12), 1 + random.below(3));
    let gain = [0.1, 1.0, 3.0, 8.0, 30.0, 200.0][random.below(6)];
    let drawn = |random: &mut Random| {
        Params { seed: random.bits(), gain, ..Params::plain(queries, keys, d, dv) }.build("hunted")
    };
    let values =
        |random: &mut Random, keys: usize| -> Vec<f32> { (0..keys * dv).map(|_| random.normal()).collect() };
    match kind {
        // The same large number is added to one element of about half of the keys.
        0 => {
            let mut case = drawn(random);
            for j in (0..keys).filter(|_| random.below(2) == 0).collect::<Vec<_>>() {
                let x = case.k.get(j * d);
                case.k.set(j * d, x + 40.0);
            }
            case
        }
        // The elements of keys span many orders of magnitude.
        1 => {
            let mut case = drawn(random);
            for x in 0..keys * d {
                let factor = (10.0 * random.normal()).exp2().min(1e4);
                let k = case.k.get(x);
                case.k.set(x, k * factor);
            }
            case
        }
        // In kind 2, values are large and differ by little; in kind 3, values cancel.
        2 | 3 => {
            let mut case = drawn(random);
            for x in 0..keys * dv {
                let v = case.v.get(x);
                let far = if x / dv % 2 == 0 { 1.0 } else { -1.0 };
                case.v.set(x, if kind == 2 { 1000.0 + 1e-3 * v } else { far });
            }
            case
        }
        // All keys are nearly equal.
        4 => {
            let mut case = drawn(random);
            for x in 0..keys * d {
                let k = case.k.get(x % d) + 1e-3 * case.k.get(x);
                case.k.set(x, k);
            }
            case
        }
        // The last key has the largest score, by a little or by hundreds of bits.
        5 => {
            let above = [0.5f32, 7.0, 9.0, 23.0, 25.0, 120.0, 127.0, 129.0, 300.0][random.below(9)];
            let mut k: Vec<f32> = (0..keys).map(|_| random.normal()).collect();
            if let Some(last) = k.last_mut() {
                *last = above;
            }
            scored(&vec![1.0; queries], &k, &values(random, keys))
        }
        // Most blocks have a mass just below the budget. Occasionally a heavier block is kept, so that later blocks fit
        // again.
        6 => {
            let odds = f64::from(share) / (1.0 - f64::from(share));
            let (mut kept, mut out) = (0.0f64, 0.0f64);
            let mut k = Vec::with_capacity(keys);
            while k.len() < keys {
                let n = tile.keys.min(keys - k.len());
                let room = odds * kept - out;
                let close = 1.0 - 10f64.powi(-(1 + random.below(7) as i32));
                let mass = if room > 1e-6 * kept && random.below(4) > 0 { room * close } else { 1.0 + kept };
                if mass <= room {
                    out += mass
                } else {
                    kept += mass
                }
                k.extend((0..n).map(|_| (mass / n as f64).log2() as f32));
            }
            scored(&vec![1.0; queries], &k, &values(random, keys))
        }
        // Each key has one large element, so the representative of a block has a score many times as large as its keys.
        7 => {
            let mut case =
                Params { scale: Some(std::f32::consts::LN_2), ..Params::plain(queries, keys, d, dv) }
                    .build("one-hot");
            let large = [2.0f32, 14.0, 200.0 / d as f32, 200.0][random.below(4)];
            (0..queries * d).for_each(|x| case.q.set(x, 1.0));
            (0..keys * d).for_each(|x| case.k.set(x, if x % d == x / d % d { large } else { 0.0 }));
            case
        }
        // Keys cancel in the mean of a block, so the score of its representative is hundreds of bits below its scores.
        8 => {
            let size = [3.0f32, 30.0, 200.0][random.below(3)];
            let k: Vec<f32> = (0..keys)
                .map(|j| if j < tile.keys { 0.0 } else { size - 2.0 * size * (j % 2) as f32 })
                .collect();
            let q: Vec<f32> = (0..queries).map(|i| 1.0 - 0.01 * i as f32).collect();
            scored(&q, &k, &values(random, keys))
        }
        _ => drawn(random),
    }
}

/// Runs the problem of a seed with a schedule of `rule`, and judges every row.
pub fn hunt(rule: Rule, seed: u64, found: &mut Findings, tally: &mut Tally) {
    let Drawn { case, schedule, tile } = Drawn::new(rule, seed);
    let problem = case.problem();
    found.rows += problem.rows() as u64;
    found.components += (problem.rows() * problem.value_dim()) as u64;
    let run = try_run(&case, &schedule, tile).map_err(|e| e.to_string());
    let by = executed(&problem, &schedule, tile);
    let done = run.and_then(|ran| judged(&case, &schedule, by, &ran).map(|used| (ran, used)));
    match done {
        Ok((ScheduleRun { report, .. }, used)) if used <= 1.0 => {
            tally.add(&report);
            if used > found.worst {
                found.worst = used;
                found.closest[0] = format!("{}: seed {seed}", rule.name());
            }
        }
        other => {
            found.violations += 1;
            if found.which.len() < 20 {
                let why = other.map_or_else(|e| e, |(_, used)| format!("{used} of the bound"));
                found.which.push(format!("{}: seed {seed}: {why}", rule.name()));
            }
        }
    }
}

impl Tally {
    /// Adds the numbers of another hunt.
    pub fn merge(&mut self, other: &Tally) {
        self.recomputed += other.recomputed;
        self.row_blocks.iter_mut().zip(other.row_blocks).for_each(|(sum, more)| *sum += more);
    }

    fn add(&mut self, report: &TraversalReport) {
        self.recomputed += report.recomputed;
        self.row_blocks[0] += report.row_blocks;
        self.row_blocks[1] += report.skipped_row_blocks;
    }
}
