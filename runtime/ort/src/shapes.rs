//! The shapes of a call's inputs. This module has no unsafe code.

use crate::api::TensorShape;
use crate::error::OperatorError;
use elsa_core::argument::ArgumentError;
use elsa_core::dtype::DType;

/// Largest number of inputs of an operator.
pub(crate) const INPUTS: usize = 10;
/// Largest number of outputs of an operator.
pub(crate) const OUTPUTS: usize = 8;

/// Key of a plan in the cache: the shapes of the inputs and, for each output, whether the node has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shapes {
    pub inputs: [Option<TensorShape>; INPUTS],
    pub outputs: [bool; OUTPUTS],
}

/// An input of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given<'a> {
    pub argument: &'static str,
    pub shape: &'a TensorShape,
}

/// Numbers that ONNX assigns to element types.
pub(crate) const FLOAT: i32 = 1;
pub(crate) const UINT8: i32 = 2;
pub(crate) const INT64: i32 = 7;
pub(crate) const BOOL: i32 = 9;
pub(crate) const FLOAT16: i32 = 10;

/// Returns the name of an element type.
pub(crate) fn type_name(element: i32) -> &'static str {
    match element {
        FLOAT => "f32",
        UINT8 => "u8",
        3 => "i8",
        4 => "u16",
        5 => "i16",
        6 => "i32",
        INT64 => "i64",
        8 => "string",
        BOOL => "bool",
        FLOAT16 => "f16",
        11 => "f64",
        12 => "u32",
        13 => "u64",
        16 => "bf16",
        _ => "of another kind",
    }
}

/// Returns the element type of a tensor that the operators compute with; `None` for other types.
pub(crate) fn float(element: i32) -> Option<DType> {
    match element {
        FLOAT => Some(DType::F32),
        FLOAT16 => Some(DType::F16),
        _ => None,
    }
}

/// Returns the number of elements of a tensor whose axes have been checked.
pub(crate) fn count(shape: &TensorShape) -> usize {
    let sizes = shape.dims().iter().map(|dim| usize::try_from(*dim).unwrap_or(0));
    sizes.fold(1, usize::saturating_mul)
}

/// Converts sizes to a shape of the runtime; `None` if a size exceeds the runtime's integer type.
pub(crate) fn shape_of(element: i32, sizes: &[usize]) -> Option<TensorShape> {
    let mut shape = TensorShape { element, rank: sizes.len(), ..TensorShape::default() };
    for (dim, &size) in shape.dims.iter_mut().zip(sizes) {
        *dim = i64::try_from(size).ok()?;
    }
    Some(shape)
}

/// Returns the shape of output `argument`.
///
/// # Errors
/// Returns an error if a size exceeds the runtime's integer type.
pub(crate) fn output(
    argument: &'static str,
    element: i32,
    sizes: &[usize],
) -> Result<TensorShape, OperatorError> {
    let shape = std::array::from_fn(|axis| sizes.get(axis).copied().unwrap_or(1));
    Ok(shape_of(element, sizes).ok_or(ArgumentError::TooLarge { argument, shape })?)
}

/// Returns the shapes of the outputs of an operator that has only the outputs `first`.
pub(crate) fn outputs<const N: usize>(first: [TensorShape; N]) -> [TensorShape; OUTPUTS] {
    std::array::from_fn(|i| first.get(i).copied().unwrap_or_default())
}

/// Returns an error if a size differs from the size that another argument determines.
pub(crate) fn same(
    argument: &'static str,
    axis: &'static str,
    found: usize,
    allowed: usize,
    of: &'static str,
) -> Result<(), OperatorError> {
    if found == allowed {
        Ok(())
    } else {
        Err(ArgumentError::Mismatch { argument, axis, found, allowed, of }.into())
    }
}

impl Shapes {
    /// Returns the shape of input `i`; `None` if the call does not have the input.
    pub fn input(&self, i: impl Into<usize>) -> Option<&TensorShape> {
        self.inputs.get(i.into())?.as_ref()
    }

    /// Returns input `i`, which has the name `argument`; `None` if the call does not have the input.
    pub fn given(&self, i: usize, argument: &'static str) -> Option<Given<'_>> {
        self.input(i).map(|shape| Given { argument, shape })
    }

    /// Returns input `i`, which has the name `argument`.
    ///
    /// # Errors
    /// Returns an error if the call does not have the input.
    pub fn required(&self, i: usize, argument: &'static str) -> Result<Given<'_>, OperatorError> {
        self.given(i, argument).ok_or(OperatorError::Missing { argument, other: "the operator" })
    }
}

impl Given<'_> {
    /// Creates the error for an element type that is not allowed.
    pub fn wrong_type(&self, allowed: &'static str) -> OperatorError {
        OperatorError::Type { argument: self.argument, found: type_name(self.shape.element), allowed }
    }

    /// Creates the error for a rank that is not allowed.
    pub fn wrong_rank(&self, allowed: &'static str) -> OperatorError {
        OperatorError::Rank { argument: self.argument, found: self.shape.rank, allowed }
    }

    /// Returns the element type of the input, which must be f32 or f16.
    pub fn float(&self) -> Result<DType, OperatorError> {
        float(self.shape.element).ok_or_else(|| self.wrong_type("f32 or f16"))
    }

    /// Returns the sizes of the input's axes; zero for axes beyond its rank.
    pub fn sizes(&self) -> Result<[usize; 4], OperatorError> {
        let mut sizes = [0; 4];
        for (size, &dim) in sizes.iter_mut().zip(self.shape.dims()) {
            *size = usize::try_from(dim).map_err(|_| OperatorError::Value {
                argument: self.argument,
                found: format!("an axis of {dim}"),
                allowed: "sizes from 0 on",
            })?;
        }
        Ok(sizes)
    }

    /// Returns the sizes of the axes of an input of rank `N`. `allowed` describes the axes in the error for another
    /// rank.
    pub fn axes<const N: usize>(&self, allowed: &'static str) -> Result<[usize; N], OperatorError> {
        let sizes = self.sizes()?;
        match <[usize; N]>::try_from(&sizes[..self.shape.rank.min(sizes.len())]) {
            Ok(axes) if self.shape.rank == N => Ok(axes),
            _ => Err(self.wrong_rank(allowed)),
        }
    }

    /// Returns the number of packed sequences, of which the input is the list of bounds.
    pub fn sequences(&self) -> Result<usize, OperatorError> {
        if self.shape.element != INT64 {
            return Err(self.wrong_type("i64"));
        }
        let [bounds] = self.axes("1: the bounds of the sequences")?;
        bounds.checked_sub(2).map(|more| more + 1).ok_or_else(|| OperatorError::Value {
            argument: self.argument,
            found: format!("{bounds} entries"),
            allowed: "at least 2, the bounds of 1 sequence",
        })
    }

    /// Checks that the input is f32 and has the shape `wanted`. Each size has the name of its axis and the argument that
    /// determines it. `allowed` describes the axes in the error for another rank.
    pub fn check_f32<const N: usize>(
        &self,
        allowed: &'static str,
        wanted: [(&'static str, usize, &'static str); N],
    ) -> Result<(), OperatorError> {
        if self.shape.element != FLOAT {
            return Err(self.wrong_type("f32"));
        }
        for (found, (axis, size, of)) in self.axes::<N>(allowed)?.into_iter().zip(wanted) {
            same(self.argument, axis, found, size, of)?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the shapes of a call with f32 tensors. An input without axes is absent.
    pub(crate) fn shaped(inputs: &[&[i64]]) -> Shapes {
        let mut shapes = Shapes::default();
        for (input, dims) in shapes.inputs.iter_mut().zip(inputs).filter(|(_, dims)| !dims.is_empty()) {
            let mut shape = TensorShape { element: FLOAT, rank: dims.len(), dims: [0; 4] };
            shape.dims[..dims.len()].copy_from_slice(dims);
            *input = Some(shape);
        }
        shapes
    }

    #[test]
    fn sizes_and_ranks_are_checked() {
        let shapes = shaped(&[&[2, 3], &[], &[2, -1]]);
        let given = shapes.required(0, "x").unwrap();
        assert_eq!(given.axes::<2>("2").unwrap(), [2, 3]);
        assert_eq!(given.axes::<3>("3: a, b, c").unwrap_err().to_string(), "x: rank 2; allowed: 3: a, b, c");
        assert!(given.check_f32("2", [("rows", 2, "y"), ("columns", 3, "y")]).is_ok());
        let wrong = given.check_f32("2", [("rows", 2, "y"), ("columns", 4, "y")]).unwrap_err();
        assert_eq!(wrong.to_string(), "x: columns 3; allowed: 4, as y has");
        let absent = shapes.required(1, "y").unwrap_err();
        assert_eq!(absent.to_string(), "y: absent; allowed: given, because the operator is");
        let negative = shapes.required(2, "z").unwrap().sizes().unwrap_err();
        assert_eq!(negative.to_string(), "z: an axis of -1; allowed: sizes from 0 on");
        // A tensor with more axes than any operator has.
        let many = TensorShape { element: FLOAT, rank: 7, dims: [0; 4] };
        let many = Given { argument: "m", shape: &many };
        assert!(many.axes::<4>("4").is_err() && many.axes::<1>("1").is_err());
        let half = TensorShape { element: FLOAT16, rank: 1, dims: [2, 0, 0, 0] };
        let half = Given { argument: "h", shape: &half };
        assert_eq!(
            half.check_f32("1", [("rows", 2, "y")]).unwrap_err().to_string(),
            "h: type f16; allowed: f32"
        );
        assert_eq!(half.float().ok(), Some(DType::F16));
    }
}
