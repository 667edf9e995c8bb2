//! Biases: inputs that are added to scores in addition to the mask, as a tensor or as a table of relative positions.

use super::mask::{MaskKind, MaskView};
use super::operands::Operand;
use crate::argument::ArgumentError;
use crate::dtype::DType;

/// A bias, which is added to scores in addition to the mask. Its elements are in natural-log units. `−∞` means that the
/// query does not attend the key, and finite elements are clamped to [`MASK_LIMIT`](super::MASK_LIMIT) in magnitude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BiasView {
    /// A tensor that broadcasts like a mask. Its [`MaskKind`] is additive.
    Dense(MaskView),
    /// A table of relative positions.
    Table(TableView),
}

/// A table with a bias for each relative position and head, dense `[entries, heads]`. An index tensor gives the entry
/// for each query and key. Without an index tensor, the entry follows from [`Spec::windows`](super::Spec::windows).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableView {
    /// Type of the table's elements.
    pub dtype: DType,
    /// Number of entries. Without an index, windows of `h × w` have `(2 h − 1) (2 w − 1)` entries, in the order
    /// described in [`Windows`](super::Windows).
    pub entries: usize,
    /// Number of heads, equal to the number of query heads.
    pub heads: usize,
    /// `true` if a call supplies an index, `[queries, keys]`, with the table entry of each query and key.
    pub indexed: bool,
}

impl TableView {
    /// Checks `part`, a part of an index tensor: i64 elements as bytes in native byte order. Every element must be the
    /// index of an entry of the table. `place` converts an element's position in the part to its position in the index
    /// tensor.
    ///
    /// # Errors
    /// Returns an error for the first element that is out of range.
    pub fn check_entries(&self, part: &[u8], place: impl Fn(usize) -> usize) -> Result<(), ArgumentError> {
        let (min, max) = (0, self.entries as i64 - 1);
        for (i, element) in part.as_chunks().0.iter().enumerate() {
            let found = i64::from_ne_bytes(*element);
            if !(min..=max).contains(&found) {
                let argument = Operand::BiasIndex.argument();
                return Err(ArgumentError::Length { argument, index: place(i), found, min, max });
            }
        }
        Ok(())
    }
}

impl BiasView {
    /// Returns the type of the elements.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        match self {
            BiasView::Table(table) => table.dtype,
            BiasView::Dense(view) => match view.kind() {
                MaskKind::Additive(dtype) => dtype,
                // `Spec::check` rejects boolean biases.
                MaskKind::Bool => DType::F32,
            },
        }
    }

    /// Returns the number of elements that the bias buffer must have.
    #[must_use]
    pub fn extent(&self) -> usize {
        match self {
            BiasView::Dense(view) => view.extent(),
            BiasView::Table(table) => table.entries.saturating_mul(table.heads),
        }
    }

    /// Returns how many of `keys` keys the bias covers.
    #[must_use]
    pub const fn reach(&self, keys: usize) -> usize {
        match self {
            BiasView::Dense(view) => view.reach(keys),
            BiasView::Table(_) => keys,
        }
    }

    /// Checks the bias against the shape of the scores, `[batch, heads, queries, keys]`. `masked` is the number of keys
    /// of the mask, `short` allows mask and bias to have fewer keys than the scores, and `windowed` is the number of
    /// table entries that the windows imply.
    pub(super) fn check(
        &self,
        scores: [usize; 4],
        masked: Option<usize>,
        short: bool,
        windowed: Option<usize>,
    ) -> Result<(), ArgumentError> {
        use ArgumentError as E;
        let argument = "bias";
        let [_, heads, _, keys] = scores;
        let reach = match self {
            BiasView::Dense(view) => {
                if view.kind() == MaskKind::Bool {
                    return Err(E::Type { argument, found: "bool", allowed: "f32, f16 or bf16" });
                }
                view.check(argument, scores, short)?;
                view.shape()[3]
            }
            BiasView::Table(table) => {
                let same = |axis, found, allowed, of| {
                    if found == allowed {
                        Ok(())
                    } else {
                        Err(E::Mismatch { argument, axis, found, allowed, of })
                    }
                };
                same("heads of the table", table.heads, heads, "q")?;
                if table.entries == 0 {
                    return Err(E::Zero { argument, axis: "entries of the table" });
                }
                if table.entries.saturating_mul(heads) > isize::MAX as usize / 4 {
                    return Err(E::TooLarge { argument, shape: [1, 1, table.entries, heads] });
                }
                match windowed {
                    _ if table.indexed => {}
                    Some(entries) => same("entries of the table", table.entries, entries, "windows.size")?,
                    None => return Err(E::Needs { argument, other: "bias_index or windows" }),
                }
                keys
            }
        };
        let masked = masked.unwrap_or(1);
        if masked != 1 && reach != 1 && masked != reach {
            return Err(E::Mismatch { argument, axis: "keys", found: reach, allowed: masked, of: "mask" });
        }
        Ok(())
    }
}
