//! Divides a call into units. A unit is a box of sequences, heads and query tiles whose states stay in memory while
//! their keys are streamed.

use crate::attention::cpu::resident::Unit;
use elsa_core::attention::plan::StreamChoice;
use elsa_core::attention::{Lengths, Problem, Sequence};
use std::ops::Range;

/// Returns the range of keys that the rows of a unit attend, except for masks. The start of the range is moved down to
/// the start of a segment.
pub fn keys_of(unit: &Unit, problem: &Problem, lengths: &Lengths<'_>, segment: usize) -> Range<usize> {
    let mut all: Option<Range<usize>> = None;
    for index in unit.sequences.clone() {
        let (any, _) = problem.sequence(lengths, index).ranges(unit.rows.clone());
        if any.start >= any.end {
            continue;
        }
        all = Some(match all {
            Some(all) => all.start.min(any.start)..all.end.max(any.end),
            None => any,
        });
    }
    all.map_or(0..0, |all| all.start / segment * segment..all.end)
}

/// Iterator over the units of a call. Units are ordered by sequences, then by heads, then by tiles, so tiles vary
/// fastest.
#[derive(Clone, Debug)]
pub struct Units<'a> {
    problem: &'a Problem,
    choice: &'a StreamChoice,
    lengths: Lengths<'a>,
    number: usize,
    sequence: usize,
    head: usize,
    tile: usize,
}

impl<'a> Units<'a> {
    pub fn new(problem: &'a Problem, choice: &'a StreamChoice, lengths: Lengths<'a>) -> Units<'a> {
        Units { problem, choice, lengths, number: 0, sequence: 0, head: 0, tile: 0 }
    }

    /// Returns the number of units without enumerating the units. The result saturates at `usize::MAX`.
    pub fn number(problem: &Problem, choice: &StreamChoice, lengths: &Lengths<'_>) -> usize {
        let group = problem.group();
        let boxes = match choice.heads < group {
            true => group.div_ceil(choice.heads).saturating_mul(problem.kv_heads()),
            false => problem.heads().div_ceil(choice.heads),
        };
        let of = |index: usize| {
            let tiles = choice.cpu.tiling(problem.sequence(lengths, index).queries).count();
            boxes.saturating_mul(tiles.div_ceil(choice.tiles))
        };
        let sequences = problem.sequences();
        match problem.spec().packed {
            Some(_) => (0..sequences).step_by(choice.sequences).map(of).fold(0, usize::saturating_add),
            // Sequences of a batch have the same number of queries.
            None if sequences == 0 => 0,
            None => of(0).saturating_mul(sequences.div_ceil(choice.sequences)),
        }
    }

    fn of(&self, index: usize) -> Sequence {
        self.problem.sequence(&self.lengths, index)
    }
}

impl Iterator for Units<'_> {
    type Item = Unit;

    fn next(&mut self) -> Option<Unit> {
        let (choice, heads) = (self.choice, self.problem.heads());
        let group = self.problem.group();
        loop {
            if self.sequence >= self.problem.sequences() || heads == 0 {
                return None;
            }
            let tiling = choice.cpu.tiling(self.of(self.sequence).queries);
            if self.tile < tiling.count() {
                let last = (self.sequence + choice.sequences).min(self.problem.sequences());
                // If units have a part of a head group, no unit extends into the next group.
                let end = match choice.heads < group {
                    true => (self.head / group + 1) * group,
                    false => heads,
                };
                let tiles = self.tile..tiling.count().min(self.tile + choice.tiles);
                let unit = Unit {
                    number: self.number,
                    sequences: self.sequence..last,
                    heads: self.head..end.min(self.head + choice.heads),
                    rows: tiling.tile(tiles.start).rows.start..tiling.tile(tiles.end - 1).rows.end,
                    tiles,
                };
                self.tile = unit.tiles.end;
                self.number += 1;
                return Some(unit);
            }
            self.tile = 0;
            let end = match choice.heads < group {
                true => (self.head / group + 1) * group,
                false => heads,
            };
            self.head = end.min(self.head + choice.heads);
            if self.head >= heads || tiling.count() == 0 {
                self.head = 0;
                self.sequence = (self.sequence + choice.sequences).min(self.problem.sequences());
            }
        }
    }
}
