//! The memory of a scalar run: its tiles, its row records, and its scratch.

use super::guard::Exponents;
use super::thinned::Thinned;
use crate::argument::ArgumentError;
use crate::attention::problem::Problem;
use crate::attention::scalar;
use crate::state::State;

/// A tile of a scalar run: its query rows decide together which blocks of keys to skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileSize {
    /// Number of query rows per tile.
    pub rows: usize,
    /// Number of keys per block.
    pub keys: usize,
}

impl TileSize {
    /// The tile for which sparsity is usually reported.
    pub const SQUARE: TileSize = TileSize { rows: 64, keys: 64 };

    /// Checks that the tile has rows and keys.
    ///
    /// # Errors
    /// Returns an error that names the number that is zero, `tile_rows` or `tile_keys`.
    pub fn check(&self) -> Result<(), ArgumentError> {
        let most = isize::MAX as usize / 4;
        for (argument, found) in [("tile_rows", self.rows), ("tile_keys", self.keys)] {
            if !(1..=most).contains(&found) {
                return Err(ArgumentError::Count { argument, found, min: 1, max: most });
            }
        }
        Ok(())
    }
}

/// Arrays for the skipped weights of rows. Each is `[batch, heads, queries]`, or absent.
#[derive(Debug, Default)]
pub struct LeftOut<'a> {
    /// The sum `D` of every row's state, in the units of [`StateOut::s`](crate::attention::StateOut::s). It merges like
    /// `s`.
    pub d: Option<&'a mut [f32]>,
    /// The upper bound of `D / (S + D)` of every row.
    pub share: Option<&'a mut [f32]>,
}

/// The record of one row of the current tile. A caller fills [`Room::rows`] with default values.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowRoom {
    pub(super) m: f32,
    pub(super) s: f32,
    pub(super) d: f32,
    pub(super) exponents: Exponents,
    /// Largest score in kept blocks; `lost` is the largest in blocks that were skipped before their weights were
    /// computed.
    pub(super) kept: f32,
    pub(super) lost: f32,
    /// Lower bound of the score of the key on the row's diagonal, used until the tile visits a block on its diagonal; `−∞`
    /// if the bound is unknown or not needed.
    pub(super) own: f32,
    /// Number of keys that the row attends in the current block. The next fields refer to the same block: `top` is the
    /// row's largest score, and `sum` the sum of its weights. `skips` is `true` if the row skips the block, and `moved`
    /// is `true` if the row's reference moved.
    pub(super) attended: u32,
    pub(super) top: f32,
    pub(super) sum: f32,
    pub(super) skips: bool,
    pub(super) moved: bool,
}

/// Memory of a scalar run.
#[derive(Debug)]
pub struct Room<'a> {
    /// Scratch memory, at least [`scratch_len`] numbers.
    pub floats: &'a mut [f32],
    /// Row records, at least one per row of a tile.
    pub rows: &'a mut [RowRoom],
}

/// Returns the number of f32 values of scratch that [`run`](super::scalar::run) needs, for any number of queries; `None` on
/// overflow.
#[must_use]
pub fn scratch_len(problem: &Problem, tile: TileSize) -> Option<usize> {
    tile_len(problem.head_dim(), problem.value_dim(), tile)?.checked_add(scalar::scratch_len(problem)?)
}

/// Returns the part of [`scratch_len`] that depends on the tile, for head sizes `d` and `d_v`.
pub(in crate::attention) fn tile_len(d: usize, dv: usize, tile: TileSize) -> Option<usize> {
    let row = d.checked_add(tile.keys)?.checked_add(dv)?;
    row.checked_mul(tile.rows)?.checked_add(d.checked_mul(2)?)?.checked_add(dv)
}

/// The scratch memory of one tile.
pub(super) struct Sheet<'a> {
    pub(super) rows: &'a mut [RowRoom],
    /// Scaled queries, `[rows][d]`, in base-2 units.
    pub(super) queries: &'a mut [f32],
    /// Scores of a block, which become weights, `[rows][keys]`.
    pub(super) scores: &'a mut [f32],
    /// Weighted sums `W` of the rows, `[rows][d_v]`.
    pub(super) weighted: &'a mut [f32],
    /// Representative of the keys of a block, `[d]`; `query` is the representative of the tile's queries.
    pub(super) key: &'a mut [f32],
    pub(super) query: &'a mut [f32],
    /// Weighted sum of the values of one block, `[d_v]`.
    pub(super) product: &'a mut [f32],
    /// Scratch memory of the exact schedule.
    pub(super) exact: &'a mut [f32],
}

impl<'a> Sheet<'a> {
    /// Creates the scratch memory of the next tile. The tile has `rows` rows, whose states are empty.
    pub(super) fn of(problem: &Problem, tile: TileSize, rows: usize, room: &'a mut Room<'_>) -> Sheet<'a> {
        let (d, dv) = (problem.head_dim(), problem.value_dim());
        let (queries, rest) = room.floats.split_at_mut(tile.rows * d);
        let (scores, rest) = rest.split_at_mut(tile.rows * tile.keys);
        let (weighted, rest) = rest.split_at_mut(tile.rows * dv);
        let (key, rest) = rest.split_at_mut(d);
        let (query, rest) = rest.split_at_mut(d);
        let (product, exact) = rest.split_at_mut(dv);
        weighted.fill(0.0);
        let none = f32::NEG_INFINITY;
        let rows = &mut room.rows[..rows];
        rows.fill(RowRoom { m: none, kept: none, lost: none, own: none, ..RowRoom::default() });
        Sheet { rows, queries, scores, weighted, key, query, product, exact }
    }
}

impl RowRoom {
    /// Returns the row with the fields of the current block reset.
    pub(super) fn before_block(self) -> RowRoom {
        RowRoom { attended: 0, top: f32::NEG_INFINITY, sum: 0.0, skips: false, moved: false, ..self }
    }

    /// Returns the reference. If the row has none, returns the integer nearest to `own`, the lower bound of the score
    /// of the key on the row's diagonal; `−∞` if that bound is unknown.
    pub(super) fn reference(&self) -> f32 {
        if self.m == f32::NEG_INFINITY { libm::rintf(self.own) } else { self.m }
    }

    /// Raises the reference to `m`, and rescales the row's sums and the weighted sums `w`.
    pub(super) fn raise(&mut self, m: f32, w: &mut [f32]) {
        if self.s > 0.0 || self.d > 0.0 {
            self.exponents.moved(self.m, m);
            self.moved = true;
        }
        let mut thinned = Thinned { state: State { m: self.m, s: self.s, w }, d: self.d };
        thinned.raise(m);
        (self.m, self.s, self.d) = (thinned.state.m, thinned.state.s, thinned.d);
    }
}
