//! Describes the values that a step adds to scores: boxes of the mask, the bias and the index, and the table of
//! relative positions.

use super::call::StreamBox;
use super::memory::Area;
use super::steps::Step;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::{BiasView, MaskView, Operand, Problem};

/// Operands for which each step may need a different box.
pub const BOXES: [Operand; 3] = [Operand::Mask, Operand::Bias, Operand::BiasIndex];

/// Returns the area of an operand in buffer `buffer`. A table has the same area for every buffer.
pub const fn area(problem: &Problem, operand: Operand, buffer: usize) -> Area {
    match (operand, &problem.spec().bias) {
        (Operand::Mask, _) => Area::Mask(buffer),
        (Operand::Bias, Some(BiasView::Table(_))) => Area::Positions,
        (Operand::Bias, _) => Area::Bias(buffer),
        _ => Area::Index(buffer),
    }
}

/// Returns the mask, and the bias if it has the layout of a mask.
pub const fn views(problem: &Problem) -> [Option<MaskView>; 2] {
    let spec = problem.spec();
    let bias = match spec.bias {
        Some(BiasView::Dense(view)) => Some(view),
        _ => None,
    };
    [spec.mask, bias]
}

/// Returns `true` if the bias is a table with an index.
pub const fn indexed(problem: &Problem) -> bool {
    matches!(problem.spec().bias, Some(BiasView::Table(table)) if table.indexed)
}

/// Returns the number of elements in the table of relative positions, and the size in bytes of an element; `None` if
/// the bias is not a table.
pub fn table(problem: &Problem) -> Option<[usize; 2]> {
    match &problem.spec().bias {
        Some(bias @ BiasView::Table(_)) => Some([bias.extent(), bias.dtype().size()]),
        _ => None,
    }
}

/// Returns the number of elements of a box along each axis, for `group` sequences, `rows` queries and `keys` keys. A
/// box for all sequences is as long along the batch axis as the mask itself. If this axis is shorter than the batch,
/// its entries repeat. A box for some sequences has one element per sequence along this axis, unless the axis is
/// broadcast.
pub fn counts(problem: &Problem, view: &MaskView, group: usize, rows: usize, keys: usize) -> [usize; 4] {
    let [b, h, q, k] = view.shape();
    let batch = if group == problem.spec().query.batch() { b } else { group };
    let of = |axis, n: usize| if axis == 1 { 1 } else { n };
    [of(b, batch), h, of(q, rows), of(k, keys.min(k))]
}

/// Returns the box of `operand` that a step needs, and the size in bytes of an element; `None` if the problem does not
/// have the operand, or if the operand is transferred once for all steps.
pub fn part(problem: &Problem, operand: Operand, step: &Step) -> Option<(StreamBox, usize)> {
    let [mask, bias] = views(problem);
    let view = match operand {
        Operand::Mask => mask?,
        Operand::Bias => bias?,
        _ if indexed(problem) => {
            let first = [0, 0, step.tokens.start, step.keys.start];
            let count = [1, 1, step.tokens.len(), step.keys.len()];
            return Some((StreamBox { operand, first, count }, 8));
        }
        _ => return None,
    };
    let [first, group] = step.group.batch;
    let count = counts(problem, &view, group, step.tokens.len(), step.keys.len());
    let [b, _, q, k] = view.shape();
    let at = |axis, n: usize| if axis == 1 { 0 } else { n };
    let first =
        [at(b, first.checked_rem(b).unwrap_or(0)), 0, at(q, step.tokens.start), at(k, step.keys.start)];
    Some((StreamBox { operand, first, count }, view.kind().size()))
}

/// Returns the view of the box that a step needs from the mask, or from a bias with the layout of a mask.
///
/// # Errors
/// Returns an error if the box cannot be indexed.
pub fn view(problem: &Problem, operand: Operand, step: &Step) -> Result<Option<MaskView>, ArgumentError> {
    let [mask, bias] = views(problem);
    let whole = if operand == Operand::Mask { mask } else { bias };
    let boxed = part(problem, operand, step).filter(|_| whole.is_some());
    whole.zip(boxed).map(|(whole, (boxed, _))| MaskView::dense(whole.kind(), &boxed.count)).transpose()
}
