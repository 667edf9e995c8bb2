//! What is measured: shapes with an element type.

use super::args::BenchArgs;
use crate::shape::{MaskForm, Named, Shape};
use elsa_core::dtype::DType;

/// Tokens of the default grid: the sequence lengths of ELSA table 6.
pub const GRID: [usize; 12] = [64, 100, 144, 196, 256, 324, 400, 484, 576, 676, 784, 900];

/// Head size of the default grid.
pub const DIM: usize = 64;

/// The columns of the default grid: plain, padded and biased.
pub const COLUMNS: [Option<MaskForm>; 3] = [None, Some(MaskForm::Padding), Some(MaskForm::Bias)];

/// A shape to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The workload that it belongs to, if it is one of a workload.
    pub workload: Option<&'static str>,
    /// The shape.
    pub shape: Shape,
    /// Element type of its tensors.
    pub dtype: DType,
}

/// The shape of a cell of the default grid.
#[must_use]
pub const fn cell(heads: usize, tokens: usize, mask: Option<MaskForm>) -> Shape {
    Shape { mask, ..Shape::plain(1, heads, tokens, tokens, DIM) }
}

/// The requested cases.
///
/// # Errors
/// None: a test reads every shape of every workload.
pub fn cases(args: &BenchArgs) -> Result<Vec<Case>, String> {
    let mut named = args.shape.clone();
    for workload in &args.workload {
        named.push(Named { workload: Some(workload.name), shapes: workload.shapes()? });
    }
    if named.is_empty() {
        let types = args.dtype.map_or(vec![DType::F32, DType::F16], |dtype| vec![dtype]);
        let of = |dtype| {
            GRID.into_iter().flat_map(move |tokens| COLUMNS.map(|mask| (dtype, tokens, mask))).map(
                |(dtype, tokens, mask)| Case { workload: None, shape: cell(args.heads, tokens, mask), dtype },
            )
        };
        return Ok(types.into_iter().flat_map(of).collect());
    }
    let dtype = args.dtype.unwrap_or(DType::F32);
    let of = |named: Named| {
        let Named { workload, shapes } = named;
        shapes.into_iter().map(move |shape| Case { workload, shape, dtype })
    };
    Ok(named.into_iter().flat_map(of).collect())
}
