//! The tiles of a problem.

use elsa_core::attention::traversal::Tile;
use elsa_core::attention::{Inputs, Problem};
use std::ops::Range;

/// The tile of every run.
pub const TILE: Tile = Tile::SQUARE;

/// A tile: some rows of a query head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The sequence.
    pub sequence: usize,
    /// The query head.
    pub head: usize,
    /// The rows, counted within the sequence.
    pub rows: Range<usize>,
}

/// Returns the tiles of a problem, sequences outermost, rows innermost.
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
