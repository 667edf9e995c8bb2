//! Computes the number that bias, mask and shifted windows add to the score of each pair of a query and a key.

use super::bias::BiasView;
use super::data::Inputs;
use super::mask::{MASK_LIMIT, MaskElements, MaskKind, MaskView, limited};
use super::operands::Operand;
use super::problem::Problem;
use super::windows::Windows;
use crate::dtype::{DType, Elements};
use core::f32::consts::LOG2_E;

/// Computes the numbers that bias, mask and shifted windows add to the scores of a call, one pair of a query and a key
/// at a time.
///
/// A key is excluded if its mask is `−∞` or false, if its bias is `−∞`, or if the boundaries within a shifted window
/// separate the key from the query. Other numbers that are added to the score of an excluded key do not matter, even if
/// they are NaN.
#[derive(Clone, Copy, Debug)]
pub struct Addends<'a> {
    mask: Option<(MaskView, MaskElements<'a>)>,
    bias: Option<(BiasView, Elements<'a>)>,
    index: Option<&'a [i64]>,
    windows: Option<Windows>,
    keys: usize,
}

impl<'a> Addends<'a> {
    /// Collects everything that `inputs` adds to the scores of `problem`. The inputs must have passed [`Inputs::check`].
    #[must_use]
    pub fn new(problem: &Problem, inputs: &Inputs<'a>) -> Addends<'a> {
        let spec = problem.spec();
        Addends {
            mask: spec.mask.zip(inputs.mask),
            bias: spec.bias.zip(inputs.bias),
            index: inputs.bias_index,
            windows: spec.windows,
            keys: problem.keys(),
        }
    }

    /// Returns the value added to the score of query `i` and key `j` of a sequence, in base-2 units; `−∞` if the query does
    /// not attend the key. Requires that the mask and the bias cover key `j`.
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

/// Returns the sum of mask and bias, in base-2 units. The sum of finite elements stays finite.
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

impl Problem {
    /// Returns the element type of `operand` if it is a bias or an additive mask; `None` for any other operand, and for an
    /// operand that the problem lacks.
    #[must_use]
    pub fn added_type(&self, operand: Operand) -> Option<DType> {
        match operand {
            Operand::Mask => match self.spec().mask?.kind() {
                MaskKind::Bool => None,
                MaskKind::Additive(dtype) => Some(dtype),
            },
            Operand::Bias => self.spec().bias.map(|bias| bias.dtype()),
            _ => None,
        }
    }

    /// Returns `true` if a mask or a bias adds numbers to scores.
    #[must_use]
    pub fn adds_numbers(&self) -> bool {
        [Operand::Mask, Operand::Bias].into_iter().any(|operand| self.added_type(operand).is_some())
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
