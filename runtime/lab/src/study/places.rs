//! The tiles of a problem.

use elsa_core::attention::traversal::TileSize;
use elsa_core::attention::{Inputs, Problem};
use std::ops::Range;

/// Size of the tiles in all runs.
pub const TILE: TileSize = TileSize::SQUARE;

/// A tile: consecutive rows of a query head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the sequence.
    pub sequence: usize,
    /// Index of the query head.
    pub head: usize,
    /// Rows of the tile, counted from the start of the sequence.
    pub rows: Range<usize>,
}

/// Returns the tiles of a problem, ordered by sequence, then head, then rows.
pub fn places(problem: &Problem, inputs: &Inputs<'_>) -> Vec<Place> {
    let mut all = Vec::new();
    for sequence in 0..problem.sequences() {
        let queries = problem.sequence(&inputs.lengths, sequence).queries;
        for head in 0..problem.heads() {
            let starts = (0..queries).step_by(TILE.rows);
            let rows = |start: usize| start..queries.min(start + TILE.rows);
            all.extend(starts.map(|start| Place { sequence, head, rows: rows(start) }));
        }
    }
    all
}
