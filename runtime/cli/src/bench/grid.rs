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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Cli, Command};
    use clap::Parser;

    fn of(line: &str) -> Vec<Case> {
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Bench(args) = cli.command else { panic!("{line}") };
        cases(&args).unwrap()
    }

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
        let found: Vec<_> =
            of("elsa bench").iter().map(|case| (case.dtype, case.shape.to_string())).collect();
        assert_eq!(found, wanted);
        let one = of("elsa bench --dtype bf16 --heads 8");
        assert!(one.len() == 36 && one.iter().all(|case| case.dtype == DType::Bf16 && case.shape.heads == 8));
    }

    #[test]
    fn shapes_and_workloads_take_the_place_of_the_grid() {
        let found = of("elsa bench --workload dpt --shape 1,2,3,4,5 --shape swin-t");
        let names: Vec<_> = found.iter().map(|case| (case.workload, case.shape.heads)).collect();
        assert_eq!((names.len(), names[0], names[9]), (10, (None, 2), (Some("dpt"), 16)));
        assert!(names[1..9].iter().all(|(name, _)| *name == Some("swin-t")));
        assert!(found.iter().all(|case| case.dtype == DType::F32));
    }
}
