//! Schedules of a run, as plain data.

use crate::argument::ArgumentError;
use crate::state::HEADROOM;

/// Order in which the blocks of a tile are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// From the first key to the last.
    Sequential,
    /// The first block of the sequence (the sink), then the blocks on the tile's diagonal (its own blocks), then the
    /// remaining blocks in order.
    SinkOwnRest,
}

/// Summary of the keys of a block, computed in each dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySide {
    /// The element with the largest magnitude, with its sign; `sabsmax` in the VFA article.
    SignedAbsMax,
    /// The largest element.
    Max,
    /// The mean of the elements.
    Mean,
    /// The largest magnitude of an element.
    AbsMax,
}

/// Summary that represents the queries of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuerySide {
    /// Every row represents itself.
    Row,
    /// In each dim, the largest magnitude over the tile's rows. All rows share one reference.
    AbsMax,
    /// In each dim, the element with the largest magnitude over the tile's rows, with its sign.
    SignedAbsMax,
    /// In each dim, the mean over the tile's rows.
    Mean,
}

/// Source of a row's reference before its first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// No reference: the first block in which the row attends a key sets it.
    None,
    /// The integer nearest to the largest score of the representative of the queries and any representative of a block of
    /// keys. Acts like [`First::None`] if that score is not finite, or if no block has keys that all rows of the tile
    /// attend.
    Proxy {
        /// Representative of the keys of a block.
        keys: KeySide,
        /// Representative of the queries of a tile.
        queries: QuerySide,
        /// Number of keys per representative; `None` for the block size of the run.
        block: Option<usize>,
    },
}

/// Blocks whose scores may move a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movers {
    /// Every block.
    All,
    /// The first block of the sequence (the sink) and the blocks on the tile's diagonal (its own blocks), regardless of
    /// [`Schedule::order`]. Other blocks do not move a reference, but any block may set the first reference of a row.
    SinkAndOwn,
}

/// Condition under which a tile skips a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Skip {
    /// Skips no block.
    Never,
    /// Skips a block after its weights are computed, if in every row of the tile the skipped weights stay within the
    /// share `E` of all weights: `D + b ≤ E (S + D + b)`, where `b` is the sum of the row's weights in the block.
    /// Scores and weights are computed, but not the products with values. If the numbers added to scores already show
    /// that a block is light enough ([`foresees`](super::foresees)), an upper bound replaces `b`, and nothing of the
    /// block is computed.
    Budget(f32),
    /// Skips a block before its weights are computed if `2^(largest − m) < λ` in every row of the tile (BLASST). `largest`
    /// is the row's largest score in the block, and `m` is the row's reference.
    Blocks(f32),
    /// Skips a block separately in each row of the tile, under the condition of [`Skip::Blocks`] for that row.
    Rows(f32),
}

/// The schedule of a run. [`super::scalar`] implements every setting except [`Schedule::EXACT`], and checks each row with
/// the guard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The order of blocks.
    pub order: Order,
    /// Source of the first reference.
    pub first: First,
    /// Blocks that may move references.
    pub movers: Movers,
    /// Excess of a score over the reference, in base-2 units, above which the reference moves: 0 to [`HEADROOM`].
    pub threshold: f32,
    /// Condition under which a block is skipped.
    pub skip: Skip,
    /// `true` if the norm gate is on: tiles in which every score stays near zero use zero as the reference of all rows,
    /// regardless of the other settings. See
    /// [`Arithmetic::stays_near_zero`](crate::attention::bound::Arithmetic::stays_near_zero).
    pub gate: bool,
}

/// Takes the first reference of each row from the `sabsmax` representatives of the run's blocks.
const SABSMAX: First = proxy(KeySide::SignedAbsMax, QuerySide::Row);

const fn proxy(keys: KeySide, queries: QuerySide) -> First {
    First::Proxy { keys, queries, block: None }
}

impl Schedule {
    /// The schedule of every exact kernel: blocks in order, references that lag behind the largest score by up to
    /// [`HEADROOM`], no skipping.
    pub const EXACT: Schedule = Schedule { threshold: HEADROOM, ..Schedule::FLASH };

    /// `FlashAttention`: like [`Schedule::EXACT`], but references follow every new maximum.
    pub const FLASH: Schedule = Schedule {
        order: Order::Sequential,
        first: First::None,
        movers: Movers::All,
        threshold: 0.0,
        skip: Skip::Never,
        gate: false,
    };

    /// VFA, algorithm 1 of the VFA article: a first reference from `sabsmax` representatives, sink and own blocks first,
    /// frozen references in other blocks.
    pub const VFA: Schedule =
        Schedule { order: Order::SinkOwnRest, first: SABSMAX, movers: Movers::SinkAndOwn, ..Schedule::FLASH };

    /// The λ of schedules that skip blocks, unless the caller chooses another: the smallest one in table 4 of the VFA
    /// article.
    pub const LAMBDA: f32 = 1e-3;

    /// Returns VSA, algorithm 2 of the VFA article: [`Schedule::VFA`] that also skips blocks with the threshold `lambda`.
    #[must_use]
    pub const fn vsa(lambda: f32) -> Schedule {
        Schedule { skip: Skip::Blocks(lambda), ..Schedule::VFA }
    }

    /// Returns the exact schedule with the error budget `budget`.
    #[must_use]
    pub const fn within(budget: f32) -> Schedule {
        Schedule { skip: Skip::Budget(budget), ..Schedule::EXACT }
    }

    /// Returns BLASST: visits blocks in order and skips blocks with the threshold `lambda`.
    #[must_use]
    pub const fn blasst(lambda: f32) -> Schedule {
        Schedule { skip: Skip::Blocks(lambda), ..Schedule::FLASH }
    }

    /// Returns [`Schedule::blasst`] with sink and own blocks first ("SWA" in table 4 of the VFA article).
    #[must_use]
    pub const fn blasst_reordered(lambda: f32) -> Schedule {
        Schedule { order: Order::SinkOwnRest, ..Schedule::blasst(lambda) }
    }

    /// Returns [`Schedule::blasst`] with references that lag behind the largest score by up to [`HEADROOM`] ("FA4" in table
    /// 4 of the VFA article).
    #[must_use]
    pub const fn blasst_lagging(lambda: f32) -> Schedule {
        Schedule { threshold: HEADROOM, ..Schedule::blasst(lambda) }
    }

    /// Returns [`Schedule::blasst`] with a separate decision for each row ("Rowskip" in table 4 of the VFA article).
    #[must_use]
    pub const fn blasst_rows(lambda: f32) -> Schedule {
        Schedule { skip: Skip::Rows(lambda), ..Schedule::FLASH }
    }

    /// Checks every number of the schedule.
    ///
    /// # Errors
    /// Returns an error if a budget or λ is not strictly between 0 and 1, if the threshold is outside 0 to [`HEADROOM`], if
    /// a number is NaN, if the number of keys per representative is zero, or if the norm gate is combined with a λ.
    pub fn check(&self) -> Result<(), ArgumentError> {
        use ArgumentError as E;
        let inside = |argument, found: f32| {
            let allowed = "a number between 0 and 1, both excluded";
            if found > 0.0 && found < 1.0 { Ok(()) } else { Err(E::Number { argument, found, allowed }) }
        };
        match self.skip {
            Skip::Never => {}
            Skip::Budget(found) => inside("error_budget", found)?,
            Skip::Blocks(found) | Skip::Rows(found) => inside("lambda", found)?,
        }
        if !(0.0..=HEADROOM).contains(&self.threshold) {
            let (argument, allowed) = ("rescale_threshold", "0 to 8, the headroom of a reference");
            return Err(E::Number { argument, found: self.threshold, allowed });
        }
        // With a reference of zero, the largest score of a block says nothing about the block's share of the weights.
        if self.gate && matches!(self.skip, Skip::Blocks(_) | Skip::Rows(_)) {
            return Err(E::Conflict { argument: "gate", other: "lambda" });
        }
        if let First::Proxy { block: Some(0), .. } = self.first {
            return Err(E::Count { argument: "proxy_block", found: 0, min: 1, max: usize::MAX });
        }
        Ok(())
    }

    /// Returns the error budget if the schedule equals [`Schedule::within`], with or without the gate; otherwise `None`.
    #[must_use]
    pub fn budget(&self) -> Option<f32> {
        match self.skip {
            Skip::Budget(budget) if self.ungated() == Schedule::within(budget) => Some(budget),
            _ => None,
        }
    }

    /// Returns the name of the published algorithm that the schedule implements, regardless of λ, threshold and gate:
    /// `exact`, `vfa`, `vsa` or `blasst`; `own` for any other schedule.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let leaves_out = matches!(self.skip, Skip::Blocks(_) | Skip::Rows(_));
        let alike = |other: Schedule| {
            (self.order, self.first, self.movers) == (other.order, other.first, other.movers)
        };
        match leaves_out {
            _ if alike(Schedule::VFA) => ["vfa", "vsa"][usize::from(leaves_out)],
            true if alike(Schedule::FLASH) || alike(Schedule::blasst_reordered(0.5)) => "blasst",
            false if alike(Schedule::EXACT) => "exact",
            _ => "own",
        }
    }

    /// Returns this schedule without the norm gate.
    #[must_use]
    pub(crate) const fn ungated(self) -> Schedule {
        Schedule { gate: false, ..self }
    }

    /// Returns `true` for [`Schedule::EXACT`].
    #[must_use]
    pub fn is_exact(&self) -> bool {
        *self == Schedule::EXACT
    }
}

/// The settings of table 3 in the VFA article, with the names in that table.
pub const TABLE_3: [(&str, Schedule); 10] = [
    ("Baseline (FA2)", Schedule::FLASH),
    ("VFA (full, sabsmax)", Schedule::VFA),
    ("VFA (repr = Kmax)", Schedule { first: proxy(KeySide::Max, QuerySide::Row), ..Schedule::VFA }),
    ("VFA (repr = Kmean)", Schedule { first: proxy(KeySide::Mean, QuerySide::Row), ..Schedule::VFA }),
    (
        "VFA (repr = |K|max, unsigned)",
        Schedule { first: proxy(KeySide::AbsMax, QuerySide::Row), ..Schedule::VFA },
    ),
    ("VFA (w/o m-init)", Schedule { first: First::None, ..Schedule::VFA }),
    ("VFA (w/o reorder)", Schedule { order: Order::Sequential, ..Schedule::VFA }),
    (
        "VFA (reprQ = absmax)",
        Schedule { first: proxy(KeySide::SignedAbsMax, QuerySide::AbsMax), ..Schedule::VFA },
    ),
    (
        "VFA (reprQ = sabsmax)",
        Schedule { first: proxy(KeySide::SignedAbsMax, QuerySide::SignedAbsMax), ..Schedule::VFA },
    ),
    (
        "VFA (reprQ = Qmean)",
        Schedule { first: proxy(KeySide::SignedAbsMax, QuerySide::Mean), ..Schedule::VFA },
    ),
];

/// The settings of table 4 in the VFA article, with the names in that table. The names omit λ, which is in
/// [`Schedule::skip`].
pub const TABLE_4: [(&str, Schedule); 21] = [
    ("Baseline (FA2)", Schedule::FLASH),
    ("Blasst", Schedule::blasst(0.1)),
    ("Blasst", Schedule::blasst(0.3)),
    ("Blasst", Schedule::blasst(0.5)),
    ("Blasst", Schedule::blasst(0.9)),
    ("Blasst_SWA", Schedule::blasst_reordered(0.1)),
    ("Blasst_SWA", Schedule::blasst_reordered(0.3)),
    ("Blasst_SWA", Schedule::blasst_reordered(0.5)),
    ("Blasst_SWA", Schedule::blasst_reordered(0.9)),
    ("Blasst_FA4", Schedule::blasst_lagging(0.1)),
    ("Blasst_FA4", Schedule::blasst_lagging(0.3)),
    ("Blasst_FA4", Schedule::blasst_lagging(0.5)),
    ("Blasst_FA4", Schedule::blasst_lagging(0.9)),
    ("Blasst_Rowskip", Schedule::blasst_rows(0.1)),
    ("Blasst_Rowskip", Schedule::blasst_rows(0.3)),
    ("Blasst_Rowskip", Schedule::blasst_rows(0.5)),
    ("Blasst_Rowskip", Schedule::blasst_rows(0.9)),
    ("VSA", Schedule::vsa(1e-3)),
    ("VSA", Schedule::vsa(3e-3)),
    ("VSA", Schedule::vsa(1e-2)),
    ("VSA", Schedule::vsa(1e-1)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_settings_are_valid_and_differ() {
        for (name, schedule) in TABLE_3.into_iter().chain(TABLE_4) {
            assert_eq!(schedule.check(), Ok(()), "{name}");
            assert!(!schedule.is_exact(), "{name}");
        }
        for table in [&TABLE_3[..], &TABLE_4[..]] {
            for (i, (name, schedule)) in table.iter().enumerate() {
                assert!(table[..i].iter().all(|(_, other)| other != schedule), "{name}");
            }
        }
        assert!(Schedule::EXACT.is_exact() && Schedule::EXACT.check().is_ok());
    }

    #[test]
    fn refusals_name_the_argument() {
        let skips =
            |x| [("error_budget", Skip::Budget(x)), ("lambda", Skip::Blocks(x)), ("lambda", Skip::Rows(x))];
        for x in [0.0, -0.0, 1.0, -0.1, 1.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for (name, skip) in skips(x) {
                match (Schedule { skip, ..Schedule::EXACT }).check() {
                    Err(ArgumentError::Number { argument, found, .. }) => {
                        assert_eq!((argument, found.to_bits()), (name, x.to_bits()));
                    }
                    other => panic!("{name} {x}: {other:?}"),
                }
            }
        }
        for x in [f32::MIN_POSITIVE, 0.5, 1.0f32.next_down()] {
            for (_, skip) in skips(x) {
                assert_eq!(Schedule { skip, ..Schedule::EXACT }.check(), Ok(()));
            }
        }
        for threshold in [-1.0, HEADROOM.next_up(), f32::NAN, f32::INFINITY] {
            let found = Schedule { threshold, ..Schedule::EXACT }.check();
            let named = matches!(found, Err(ArgumentError::Number { argument: "rescale_threshold", .. }));
            assert!(named, "{threshold}: {found:?}");
        }
        for threshold in [0.0, 3.5, HEADROOM] {
            assert_eq!(Schedule { threshold, ..Schedule::EXACT }.check(), Ok(()));
        }
        let first = First::Proxy { keys: KeySide::Max, queries: QuerySide::Row, block: Some(0) };
        let found = Schedule { first, ..Schedule::VFA }.check();
        assert!(matches!(found, Err(ArgumentError::Count { argument: "proxy_block", found: 0, .. })));
        let gated = |schedule: Schedule| Schedule { gate: true, ..schedule }.check();
        let conflict = ArgumentError::Conflict { argument: "gate", other: "lambda" };
        assert_eq!([Schedule::vsa(0.1), Schedule::blasst_rows(0.1)].map(gated), [Err(conflict); 2]);
        assert_eq!([Schedule::EXACT, Schedule::within(0.1)].map(gated), [Ok(()); 2]);
    }
}
