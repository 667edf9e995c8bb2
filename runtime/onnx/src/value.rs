//! Facts about a tensor: its type, its axes as sizes, and its elements if they follow from constants and shapes.

use super::array::{Array, Kind};
use super::size::Size;
use std::rc::Rc;

/// A tensor's elements, if they follow from constants and shapes alone.
#[derive(Clone, Debug)]
pub enum Data {
    /// Unknown.
    None,
    /// Numbers.
    Numbers(Rc<Vec<f64>>),
    /// Whole numbers that depend on free axes.
    Sizes(Rc<Vec<Size>>),
}

/// Facts about a tensor.
#[derive(Clone, Debug)]
pub struct Value {
    /// Type of its elements.
    pub kind: Kind,
    /// Axes.
    pub shape: Vec<Size>,
    /// Elements.
    pub data: Data,
}

impl Value {
    /// Returns the elements as sizes.
    #[must_use]
    pub fn sizes(&self) -> Option<Vec<Size>> {
        match &self.data {
            Data::None => None,
            Data::Numbers(all) => Some(all.iter().map(|&x| Size::from(x as i64)).collect()),
            Data::Sizes(all) => Some(all.to_vec()),
        }
    }

    /// Returns the elements as whole numbers.
    #[must_use]
    pub fn integers(&self) -> Option<Vec<i64>> {
        self.sizes()?.iter().map(Size::known).collect()
    }

    /// Returns the axes, if none of them is free.
    #[must_use]
    pub fn counts(&self) -> Option<Vec<usize>> {
        counts(&self.shape)
    }
}

/// Returns sizes that depend on no free axis, as numbers.
#[must_use]
pub fn counts(shape: &[Size]) -> Option<Vec<usize>> {
    shape.iter().map(|size| usize::try_from(size.known()?).ok()).collect()
}

/// Converts numbers of elements to sizes.
#[must_use]
pub fn sized(shape: &[usize]) -> Option<Vec<Size>> {
    shape.iter().map(|&n| Size::count(n)).collect()
}

impl From<Array> for Value {
    fn from(array: Array) -> Value {
        // An axis beyond 64 bits has no elements in memory.
        let shape = array.shape.iter().map(|&n| Size::count(n).unwrap_or_default()).collect();
        Value { kind: array.kind, shape, data: Data::Numbers(array.data) }
    }
}

/// Returns the shape that all of `shapes` broadcast to.
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

/// Normalizes `axis` to count from the front, for rank `rank`.
#[must_use]
pub fn place(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let at = if axis < 0 { axis.checked_add(rank)? } else { axis };
    usize::try_from(at).ok().filter(|_| at < rank)
}
