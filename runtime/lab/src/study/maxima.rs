//! Positions of the largest scores of rows: the article's figures 2 and 5.

use super::places::Place;
use elsa_cli::picture::HeatMap;
use elsa_cli::rows::{RowId, sample};
use elsa_core::attention::traversal::own_blocks;
use elsa_core::attention::{Inputs, Problem, reference};
use std::collections::BTreeMap;

/// Position of the largest score of a row or a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// The first block of the sequence.
    Sink,
    /// A block on the diagonal of the tile, other than the first block of the sequence.
    Own,
    /// Any other block.
    Middle,
}

impl Site {
    /// Every site, in the order used by the VFA article.
    pub const ALL: [Site; 3] = [Site::Sink, Site::Own, Site::Middle];

    /// Returns the name of the site.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Site::Sink => "sink",
            Site::Own => "own",
            Site::Middle => "middle",
        }
    }
}

/// Largest score of each block of keys, over the rows of a tile.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// The tile that the scores belong to.
    pub place: Place,
    /// Largest score by block index, in natural-log units. Blocks without an attended key are missing.
    pub maxima: BTreeMap<usize, f64>,
}

/// Positions of the largest scores in a set of tiles.
#[derive(Clone, Debug, Default)]
pub struct Maxima {
    /// For each block of keys, the number of rows whose running maximum reaches its final value in that block. The
    /// running maximum visits the blocks in order.
    pub stable: BTreeMap<usize, u64>,
    /// For each site, the number of rows whose running maximum reaches its final value at that site.
    pub sites: [u64; 3],
    /// For each site, the first tile whose largest score is at that site.
    pub peaks: [Option<Peak>; 3],
}

impl Maxima {
    /// Adds a tile with blocks of `keys` keys. `scores` contains, for each row, the scores by key in natural-log units.
    /// The score of a key that is not attended is `−∞`.
    pub fn absorb(
        &mut self,
        problem: &Problem,
        inputs: &Inputs<'_>,
        keys: usize,
        place: &Place,
        scores: &[Vec<f64>],
    ) {
        let sequence = problem.sequence(&inputs.lengths, place.sequence);
        let own = own_blocks(&sequence, &place.rows, keys);
        let site = |block: usize| match block {
            0 => Site::Sink,
            block if own.contains(&block) => Site::Own,
            _ => Site::Middle,
        };
        let mut maxima = BTreeMap::new();
        for row in scores {
            let mut top: Option<(usize, f64)> = None;
            for (j, s) in row.iter().copied().enumerate().filter(|(_, s)| *s > f64::NEG_INFINITY) {
                let block = j / keys;
                // Only a larger score moves a running maximum.
                if top.is_none_or(|(_, most)| s > most) {
                    top = Some((block, s));
                }
                let most = maxima.entry(block).or_insert(f64::NEG_INFINITY);
                *most = f64::max(*most, s);
            }
            if let Some((block, _)) = top {
                *self.stable.entry(block).or_default() += 1;
                self.sites[site(block) as usize] += 1;
            }
        }
        let highest = maxima.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|(block, _)| *block);
        if let Some(block) = highest {
            let peak = &mut self.peaks[site(block) as usize];
            // A curve needs two points.
            if peak.is_none() && maxima.len() > 1 {
                *peak = Some(Peak { place: place.clone(), maxima });
            }
        }
    }

    /// Adds the positions of the largest scores in the tiles of `later`, which follow the tiles of `self`.
    pub fn merge(&mut self, later: Maxima) {
        for (block, rows) in later.stable {
            *self.stable.entry(block).or_default() += rows;
        }
        for (to, from) in self.sites.iter_mut().zip(later.sites) {
            *to += from;
        }
        for (to, from) in self.peaks.iter_mut().zip(later.peaks) {
            *to = to.take().or(from);
        }
    }

    /// Returns the number of rows that attend at least one key.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.sites.iter().sum()
    }
}

/// Maximum number of rows in a map of the probabilities P.
const MAPPED: usize = 192;

/// Returns the exact probabilities of the first head of the first sequence.
#[must_use]
pub fn probabilities(problem: &Problem, inputs: &Inputs<'_>) -> HeatMap {
    let first = problem.sequence(&inputs.lengths, 0);
    let mut map = HeatMap::new(first.queries, first.keys);
    let width = map.cells.first().map_or(0, Vec::len);
    let rows: Vec<RowId> = (0..first.queries).map(|query| RowId { sequence: 0, head: 0, query }).collect();
    for row in sample(&rows, MAPPED) {
        let mut cells = vec![0.0; width];
        reference::probabilities(problem, inputs, 0, 0, row.query, |j, p| {
            if let Some(cell) = cells.get_mut(j * width / first.keys.max(1)) {
                *cell = f64::max(*cell, p);
            }
        });
        map.absorb(row.query, &cells);
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_cli::shape::Shape;
    use elsa_core::dtype::{DType, Elements};

    #[test]
    fn maxima_are_found_where_they_first_are() {
        let shape = Shape::plain(1, 1, 4, 8, 2);
        let problem = shape.problem(DType::F32).unwrap();
        let zeros = [0.0f32; 16];
        let tensor = Elements::F32(&zeros);
        let inputs = Inputs::new(tensor, tensor, tensor);
        let place = Place { sequence: 0, head: 0, rows: 2..4 };
        let none = f64::NEG_INFINITY;
        let mut maxima = Maxima::default();
        // Rows 2 and 3 have their diagonal in block 1.
        let rows = [
            vec![1.0, 3.0, 3.0, 0.0, none, none, none, none],
            vec![none, 0.0, 4.0, f64::NAN, 5.0, 1.0, none, none],
            vec![none; 8],
        ];
        maxima.absorb(&problem, &inputs, 2, &place, &rows);
        assert_eq!(maxima.stable, BTreeMap::from([(0, 1), (2, 1)]));
        assert_eq!((maxima.sites, maxima.rows()), ([1, 0, 1], 2));
        let peak = maxima.peaks[Site::Middle as usize].as_ref().unwrap();
        assert_eq!(peak.maxima, BTreeMap::from([(0, 3.0), (1, 4.0), (2, 5.0)]));
        assert!(maxima.peaks[0].is_none() && maxima.peaks[1].is_none());
        let mut own = Maxima::default();
        own.absorb(&problem, &inputs, 2, &place, &[vec![0.0, 0.0, 2.0, 0.0]]);
        assert_eq!(own.sites, [0, 1, 0]);
        maxima.merge(own);
        assert_eq!((maxima.sites, maxima.stable[&1]), ([1, 1, 1], 1));
        assert!(maxima.peaks[Site::Own as usize].is_some());
    }
}
