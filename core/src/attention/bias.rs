//! Biases, and all that is added to a score: bias, mask and the sides of shifted windows.

use super::data::Inputs;
use super::mask::{MASK_LIMIT, MaskElements, MaskKind, MaskView, limited};
use super::problem::{Problem, Spec};
use super::windows::Windows;
use crate::argument::ArgumentError;
use crate::dtype::{DType, Elements};
use core::f32::consts::LOG2_E;

/// An additive input besides the mask: what it adds is in natural-log units, `−∞` means not attended, and finite elements
/// count as at most [`MASK_LIMIT`] in magnitude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BiasView {
    /// A tensor that broadcasts as a mask does. Its kind is additive.
    Dense(MaskView),
    /// A table of relative positions.
    Table(TableView),
}

/// A table of relative positions, dense `[entries, heads]`: which entry belongs to a query and a key is given by an index
/// or follows from [`Spec::windows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableView {
    /// Type of its elements.
    pub dtype: DType,
    /// Number of entries: with windows of `h × w` and no index `(2 h − 1) (2 w − 1)`, in the order of [`Windows`].
    pub entries: usize,
    /// Number of heads: that of the queries.
    pub heads: usize,
    /// Whether the data hold an index, `[queries, keys]`, that names the entry of each pair.
    pub indexed: bool,
}

impl BiasView {
    /// Type of the elements.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        match self {
            BiasView::Table(table) => table.dtype,
            BiasView::Dense(view) => match view.kind() {
                MaskKind::Additive(dtype) => dtype,
                // Refused by `Spec::check`.
                MaskKind::Bool => DType::F32,
            },
        }
    }

    /// Number of elements that a buffer must have.
    #[must_use]
    pub fn extent(&self) -> usize {
        match self {
            BiasView::Dense(view) => view.extent(),
            BiasView::Table(table) => table.entries.saturating_mul(table.heads),
        }
    }

    /// The number of keys, out of `keys`, that the bias covers.
    #[must_use]
    pub const fn reach(&self, keys: usize) -> usize {
        match self {
            BiasView::Dense(view) => view.reach(keys),
            BiasView::Table(_) => keys,
        }
    }

    /// Checks the bias against `spec`, whose other fields were checked, with `keys` keys.
    pub(super) fn check(&self, spec: &Spec, keys: usize) -> Result<(), ArgumentError> {
        use ArgumentError as E;
        let argument = "bias";
        let (heads, queries) = (spec.query.heads(), spec.query.tokens());
        let reach = match self {
            BiasView::Dense(view) => {
                if view.kind() == MaskKind::Bool {
                    return Err(E::Type { argument, found: "bool", allowed: "f32, f16 or bf16" });
                }
                view.check(argument, [spec.query.batch(), heads, queries, keys])?;
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
                match &spec.windows {
                    _ if table.indexed => {}
                    Some(windows) => {
                        same("entries of the table", table.entries, windows.entries(), "windows.size")?;
                    }
                    None => return Err(E::Needs { argument, other: "bias_index or windows" }),
                }
                keys
            }
        };
        let masked = spec.mask.map_or(1, |mask| mask.shape()[3]);
        if masked != 1 && reach != 1 && masked != reach {
            return Err(E::Mismatch { argument, axis: "keys", found: reach, allowed: masked, of: "mask" });
        }
        Ok(())
    }
}

/// All that is added to the scores of a call, read pair by pair: bias, mask and the sides of shifted windows.
///
/// What is `−∞`, false or on another side takes a key out, whatever else is added: a NaN behind it is not seen.
#[derive(Clone, Copy, Debug)]
pub struct Added<'a> {
    mask: Option<(MaskView, MaskElements<'a>)>,
    bias: Option<(BiasView, Elements<'a>)>,
    index: Option<&'a [i64]>,
    windows: Option<Windows>,
    keys: usize,
}

impl<'a> Added<'a> {
    /// What `inputs`, which passed [`Inputs::check`], add to the scores of `problem`.
    #[must_use]
    pub fn new(problem: &Problem, inputs: &Inputs<'a>) -> Added<'a> {
        let spec = problem.spec();
        Added {
            mask: spec.mask.zip(inputs.mask),
            bias: spec.bias.zip(inputs.bias),
            index: inputs.bias_index,
            windows: spec.windows,
            keys: problem.keys(),
        }
    }

    /// What is added to the score of query `i` and key `j` of a sequence, in base-2 units: `−∞` if the row does not
    /// attend the key. Keys beyond the reach of mask and bias must not be asked for.
    #[inline]
    #[must_use]
    pub fn at(&self, batch: usize, head: usize, i: usize, j: usize) -> f32 {
        if let Some(windows) = &self.windows
            && !windows.attends(batch, i, j)
        {
            return f32::NEG_INFINITY;
        }
        let mask = match &self.mask {
            Some((view, elements)) => elements.bias(view.row(batch, head, i).index(j)) * LOG2_E,
            None => 0.0,
        };
        let bias = match &self.bias {
            Some((BiasView::Dense(view), elements)) => {
                limited(elements.get(view.row(batch, head, i).index(j))) * LOG2_E
            }
            Some((BiasView::Table(table), elements)) => {
                let entry = match (self.index, &self.windows) {
                    (Some(index), _) => index[i * self.keys + j] as usize,
                    (None, Some(windows)) => windows.entry(i, j),
                    (None, None) => 0,
                };
                limited(elements.get(entry * table.heads + head)) * LOG2_E
            }
            None => return mask,
        };
        summed(mask, bias)
    }
}

/// What mask and bias add together, in base-2 units. The sum of finite elements stays finite.
#[inline]
fn summed(mask: f32, bias: f32) -> f32 {
    if mask == f32::NEG_INFINITY || bias == f32::NEG_INFINITY {
        return f32::NEG_INFINITY;
    }
    let sum = mask + bias;
    if mask.is_finite() && bias.is_finite() {
        sum.clamp(-MASK_LIMIT * LOG2_E, MASK_LIMIT * LOG2_E)
    } else {
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_a_key_out_hides_everything_else() {
        let out = f32::NEG_INFINITY;
        for other in [f32::NAN, f32::INFINITY, out, 1.0] {
            assert_eq!([summed(out, other), summed(other, out)], [out; 2]);
        }
        assert!(summed(f32::NAN, 1.0).is_nan() && summed(1.0, f32::NAN).is_nan());
        let most = MASK_LIMIT * LOG2_E;
        assert_eq!([summed(-most, -most), summed(most, most), summed(most, -most)], [-most, most, 0.0]);
        assert_eq!(summed(f32::INFINITY, -most), f32::INFINITY);
        assert_eq!(summed(0.5, -0.25), 0.25);
    }
}
