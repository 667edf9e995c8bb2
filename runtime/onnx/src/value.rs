//! Facts about a tensor: its type, its axes as sizes, and its elements if they can be derived from constants and
//! shapes.

use super::array::{Array, Kind};
use super::size::Size;
use std::rc::Rc;

/// The elements of a tensor, if they can be derived from constants and shapes.
#[derive(Clone, Debug)]
pub enum Data {
    /// Elements that are not known.
    None,
    /// Elements that are numbers.
    Numbers(Rc<Vec<f64>>),
    /// Integers that depend on free axes.
    Sizes(Rc<Vec<Size>>),
}

/// Type and shape of each output of a node.
pub type OutputTypes = Vec<(Kind, Vec<Size>)>;

/// Facts about a tensor.
#[derive(Clone, Debug)]
pub struct Value {
    /// Type of the elements.
    pub kind: Kind,
    /// Sizes of the axes.
    pub shape: Vec<Size>,
    /// Elements of the tensor.
    pub data: Data,
}

impl Value {
    /// Returns the elements as sizes, if they are known.
    #[must_use]
    pub fn sizes(&self) -> Option<Vec<Size>> {
        match &self.data {
            Data::None => None,
            Data::Numbers(all) => Some(all.iter().map(|&x| Size::from(x as i64)).collect()),
            Data::Sizes(all) => Some(all.to_vec()),
        }
    }

    /// Returns the elements as integers, if they are known and depend on no free axis.
    #[must_use]
    pub fn integers(&self) -> Option<Vec<i64>> {
        self.sizes()?.iter().map(Size::known).collect()
    }

    /// Returns the sizes of the axes as numbers, if no axis is free.
    #[must_use]
    pub fn counts(&self) -> Option<Vec<usize>> {
        counts(&self.shape)
    }
}

/// Converts sizes to numbers; `None` if a size depends on a free axis.
#[must_use]
pub fn counts(shape: &[Size]) -> Option<Vec<usize>> {
    shape.iter().map(|size| usize::try_from(size.known()?).ok()).collect()
}

/// Converts numbers to sizes; `None` if a number exceeds 63 bits.
#[must_use]
pub fn sized(shape: &[usize]) -> Option<Vec<Size>> {
    shape.iter().map(|&n| Size::count(n)).collect()
}

impl From<Array> for Value {
    fn from(array: Array) -> Value {
        // A size that exceeds 63 bits belongs to a tensor without elements.
        let shape = array.shape.iter().map(|&n| Size::count(n).unwrap_or_default()).collect();
        Value { kind: array.kind, shape, data: Data::Numbers(array.data) }
    }
}

/// Returns the shape to which all of `shapes` broadcast.
#[must_use]
pub fn broadcast(shapes: &[&[Size]]) -> Option<Vec<Size>> {
    let rank = shapes.iter().map(|shape| shape.len()).max()?;
    let mut all = vec![Size::from(1); rank];
    for shape in shapes {
        for (axis, n) in shape.iter().enumerate() {
            let into = &mut all[rank - shape.len() + axis];
            *into = into.joint(n)?;
        }
    }
    Some(all)
}

/// Converts an axis of a tensor of rank `rank` to an index from the front. A negative axis counts from the back.
#[must_use]
pub fn place(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let at = if axis < 0 { axis.checked_add(rank)? } else { axis };
    usize::try_from(at).ok().filter(|_| at < rank)
}
