//! Cases to measure: shapes, each with an element type.

use crate::error::Error;
use crate::shape::{MaskForm, Named, Shape, Workload};
use elsa_core::dtype::DType;

/// Numbers of tokens of the default grid: the sequence lengths of ELSA table 6.
pub const GRID: [usize; 12] = [64, 100, 144, 196, 256, 324, 400, 484, 576, 676, 784, 900];

/// Head size of the default grid.
pub const DIM: usize = 64;

/// The columns of the default grid: plain, padded and biased.
pub const COLUMNS: [Option<MaskForm>; 3] = [None, Some(MaskForm::Padding), Some(MaskForm::Bias)];

/// A shape to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Name of the workload that the shape belongs to; `None` if it belongs to none.
    pub workload: Option<&'static str>,
    /// The shape.
    pub shape: Shape,
    /// Element type of its tensors.
    pub dtype: DType,
}

/// Returns the shape of a cell of the default grid.
#[must_use]
pub const fn cell(heads: usize, tokens: usize, mask: Option<MaskForm>) -> Shape {
    Shape { mask, ..Shape::plain(1, heads, tokens, tokens, DIM) }
}

/// Returns the cases of `shapes` and `workloads`, with element type `dtype` (f32 if `None`). If both lists are empty,
/// returns the default grid with `heads` heads, in `dtype` (f32 and f16 if `None`).
///
/// # Errors
/// Never fails in practice: a test parses every shape of every workload.
pub fn cases(
    shapes: &[Named],
    workloads: &[Workload],
    dtype: Option<DType>,
    heads: usize,
) -> Result<Vec<Case>, Error> {
    let failed = |found| Error::Argument { argument: "workload", found, allowed: "a shape".into() };
    let mut named = shapes.to_vec();
    for workload in workloads {
        named.push(Named { workload: Some(workload.name), shapes: workload.shapes().map_err(failed)? });
    }
    let mut cases = Vec::new();
    if named.is_empty() {
        for dtype in dtype.map_or(vec![DType::F32, DType::F16], |dtype| vec![dtype]) {
            for tokens in GRID {
                let of = |mask| Case { workload: None, shape: cell(heads, tokens, mask), dtype };
                cases.extend(COLUMNS.map(of));
            }
        }
    }
    let dtype = dtype.unwrap_or(DType::F32);
    for Named { workload, shapes } in named {
        cases.extend(shapes.into_iter().map(|shape| Case { workload, shape, dtype }));
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_default_grid_is_that_of_the_paper_with_masks() {
        let lengths = [64, 100, 144, 196, 256, 324, 400, 484, 576, 676, 784, 900];
        let mut wanted = Vec::new();
        for dtype in [DType::F32, DType::F16] {
            for n in lengths {
                for form in ["", ",mask=padding", ",mask=bias"] {
                    wanted.push((dtype, format!("1,1,{n},{n},64{form}")));
                }
            }
        }
        let found: Vec<_> = cases(&[], &[], None, 1)
            .unwrap()
            .iter()
            .map(|case| (case.dtype, case.shape.to_string()))
            .collect();
        assert_eq!(found, wanted);
        let one = cases(&[], &[], Some(DType::Bf16), 8).unwrap();
        assert!(one.len() == 36 && one.iter().all(|case| case.dtype == DType::Bf16 && case.shape.heads == 8));
    }

    #[test]
    fn shapes_and_workloads_take_the_place_of_the_grid() {
        let shapes = ["1,2,3,4,5", "swin-t"].map(|name| name.parse().unwrap());
        let found = cases(&shapes, &["dpt".parse().unwrap()], None, 1).unwrap();
        let names: Vec<_> = found.iter().map(|case| (case.workload, case.shape.heads)).collect();
        assert_eq!((names.len(), names[0], names[9]), (10, (None, 2), (Some("dpt"), 16)));
        assert!(names[1..9].iter().all(|(name, _)| *name == Some("swin-t")));
        assert!(found.iter().all(|case| case.dtype == DType::F32));
    }
}
