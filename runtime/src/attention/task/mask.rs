//! Copies a tile of a mask to dense memory.

use super::states::room;
use crate::error::PlanError;
use elsa_core::attention::{MaskElements, MaskKind, MaskView};
use elsa_core::dtype::{DType, Elements};
use half::{bf16, f16};
use std::ops::Range;

/// Memory for a tile of a mask, in the element type of the mask.
#[derive(Debug)]
pub(super) enum MaskTile {
    Bool(Vec<u8>),
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl MaskTile {
    /// Reserves room for `elements` elements.
    ///
    /// # Errors
    /// Returns an error if the system refuses the memory.
    pub fn with_capacity(kind: MaskKind, elements: usize) -> Result<MaskTile, PlanError> {
        Ok(match kind {
            MaskKind::Bool => MaskTile::Bool(room(elements)?),
            MaskKind::Additive(DType::F32) => MaskTile::F32(room(elements)?),
            MaskKind::Additive(DType::F16) => MaskTile::F16(room(elements)?),
            MaskKind::Additive(DType::Bf16) => MaskTile::Bf16(room(elements)?),
        })
    }

    /// Copies the part of the mask in the ranges `rows` and `columns`. A broadcast axis keeps its single element. In
    /// the copy, columns beyond the end of the mask are masked.
    pub fn cut(
        &mut self,
        view: &MaskView,
        mask: MaskElements<'_>,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> MaskElements<'_> {
        match (&mut *self, mask) {
            (MaskTile::Bool(tile), MaskElements::Bool(x)) => cut(tile, view, x, 0, rows, columns),
            (MaskTile::F32(tile), MaskElements::Additive(Elements::F32(x))) => {
                cut(tile, view, x, f32::NEG_INFINITY, rows, columns);
            }
            (MaskTile::F16(tile), MaskElements::Additive(Elements::F16(x))) => {
                cut(tile, view, x, f16::NEG_INFINITY, rows, columns);
            }
            (MaskTile::Bf16(tile), MaskElements::Additive(Elements::Bf16(x))) => {
                cut(tile, view, x, bf16::NEG_INFINITY, rows, columns);
            }
            // Elements of another type have been rejected before. An empty tile is too short, so it is also rejected.
            (MaskTile::Bool(tile), _) => tile.clear(),
            (MaskTile::F32(tile), _) => tile.clear(),
            (MaskTile::F16(tile), _) => tile.clear(),
            (MaskTile::Bf16(tile), _) => tile.clear(),
        }
        match self {
            MaskTile::Bool(x) => MaskElements::Bool(x),
            MaskTile::F32(x) => MaskElements::Additive(Elements::F32(x)),
            MaskTile::F16(x) => MaskElements::Additive(Elements::F16(x)),
            MaskTile::Bf16(x) => MaskElements::Additive(Elements::Bf16(x)),
        }
    }
}

fn cut<T: Copy>(
    tile: &mut Vec<T>,
    view: &MaskView,
    mask: &[T],
    masked: T,
    rows: Range<usize>,
    columns: Range<usize>,
) {
    let [batch, heads, queries, keys] = view.shape();
    let rows = if queries == 1 { 0..1 } else { rows };
    let columns = if keys == 1 { 0..1 } else { columns };
    let covered = columns.start.min(keys)..columns.end.min(keys);
    tile.clear();
    for b in 0..batch {
        for h in 0..heads {
            for q in rows.clone() {
                let start = view.row(b, h, q).start;
                let line = mask.get(start + covered.start..start + covered.end).unwrap_or_default();
                tile.extend_from_slice(line);
                tile.extend(std::iter::repeat_n(masked, columns.len() - line.len()));
            }
        }
    }
}
