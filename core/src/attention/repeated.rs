//! Repeats axes of size 1 in queries, keys and values, as ONNX broadcasts the operands of matrix products.

use super::mask::MaskView;
use crate::argument::ArgumentError;
use crate::view::View;

/// Returns views of queries, keys and values with axes of size 1 repeated. A batch of 1 or a single head is repeated to
/// match the other tensors and the mask. There is one exception: if no query head is repeated, and keys and values have
/// equal numbers of heads, the key and value heads are not repeated, and groups of query heads share them. A single query
/// row is repeated to match the rows of the mask. Other sizes are unchanged; [`Spec::check`](super::Spec::check) compares
/// them.
///
/// # Errors
/// Returns an error if a view becomes too large to index.
pub fn repeated(views: [View; 3], mask: Option<&MaskView>) -> Result<[View; 3], ArgumentError> {
    let shapes = views.map(|view| view.shape());
    let mask = mask.map_or([1; 4], MaskView::shape);
    let joint = |axis: usize| {
        let sizes = [shapes[0][axis], shapes[1][axis], shapes[2][axis], mask[axis]];
        sizes.into_iter().find(|&n| n != 1).unwrap_or(1)
    };
    let (batch, heads) = (joint(0), joint(1));
    let queries = if shapes[0][2] == 1 { mask[2] } else { shapes[0][2] };
    let [q, k, v] = views;
    let kv_heads = if k.heads() == v.heads() && heads == q.heads() { k.heads() } else { heads };
    let repeat = |argument: &'static str, view: View, sizes: [usize; 3]| {
        let (mut shape, mut strides) = (view.shape(), view.strides());
        for axis in 0..3 {
            if shape[axis] == 1 && sizes[axis] != 1 {
                (shape[axis], strides[axis]) = (sizes[axis], 0);
            }
        }
        View::new(argument, shape, strides)
    };
    Ok([
        repeat("q", q, [batch, heads, queries])?,
        repeat("k", k, [batch, kv_heads, k.tokens()])?,
        repeat("v", v, [batch, kv_heads, v.tokens()])?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::MaskKind;
    use crate::view::Layout;

    #[test]
    fn an_axis_of_one_is_repeated_and_others_stay() {
        let view = |shape: [usize; 4]| View::dense("x", Layout::Bhnd, &shape, None).unwrap();
        let shapes = |q, k, v, mask: Option<[usize; 4]>| {
            let mask = mask.map(|shape| MaskView::dense(MaskKind::Bool, &shape).unwrap());
            repeated([view(q), view(k), view(v)], mask.as_ref()).unwrap().map(|view| view.shape())
        };
        // The cases: keys of one sequence, a single query of one sequence, grouped heads, and a single value head.
        let found = shapes([3, 4, 5, 8], [1, 4, 7, 8], [1, 4, 7, 8], None);
        assert_eq!(found, [[3, 4, 5, 8], [3, 4, 7, 8], [3, 4, 7, 8]]);
        let found = shapes([1, 1, 1, 8], [2, 4, 7, 8], [2, 4, 7, 6], Some([1, 1, 5, 7]));
        assert_eq!(found, [[2, 4, 5, 8], [2, 4, 7, 8], [2, 4, 7, 6]]);
        let found = shapes([2, 4, 5, 8], [2, 2, 7, 8], [2, 2, 7, 8], None);
        assert_eq!(found, [[2, 4, 5, 8], [2, 2, 7, 8], [2, 2, 7, 8]]);
        let found = shapes([2, 4, 5, 8], [2, 4, 7, 8], [2, 1, 7, 8], Some([3, 1, 1, 7]));
        assert_eq!(found, [[2, 4, 5, 8], [2, 4, 7, 8], [2, 4, 7, 8]]);
        let [q, ..] = repeated([view([1, 2, 5, 8]), view([3, 2, 7, 8]), view([3, 2, 7, 8])], None).unwrap();
        assert_eq!(q.strides(), [0, 40, 8, 1]);
    }
}
