//! The queries for which a proof computes an attention.

use super::array::{Array, count};
use super::change::{Change, Role};
use super::infer::World;
use super::node::Node;
use std::collections::HashSet;

/// If a world needs more than this number of multiplications, only a sample of the queries is computed.
const MUCH: usize = 1 << 24;

/// Number of queries in the sample.
pub const QUERIES: usize = 16;

/// The queries for which a world is computed: all of them, or a sample.
pub struct Sample {
    /// Total number of queries.
    pub whole: usize,
    /// Indices of the sampled queries; `None` if all are computed.
    pub taken: Option<Vec<usize>>,
    /// `true` if masks contain only the rows of the sampled queries. If the operator computes positions from row
    /// numbers, masks contain all rows.
    pub cut: bool,
    /// Masks that a Reshape turns into rows of queries, because queries and keys have several axes each, as the rows
    /// and the columns of a picture. Their elements are drawn with the axes `[n, sampled queries, keys]`.
    joined: Vec<String>,
    /// Number of keys.
    keys: usize,
}

impl Sample {
    /// Chooses the queries for which a world is computed. Returns the chosen queries, and the number of bytes of memory
    /// that their computation requires.
    #[must_use]
    pub fn of(world: &World<'_>, change: &Change) -> Option<(Sample, usize)> {
        let made = world.shape(&change.attention_output)?;
        let keys = world.count(&change.keys)?;
        let [.., whole, width] = *made else { return None };
        let work = count(made, usize::MAX)?.checked_mul(2)?.checked_mul(keys)?;
        let node = change.operator()?;
        let counts = ["is_causal", "align_last", "window", "grid", "packed"];
        let cut = !counts.iter().any(|name| node.attributes.contains_key(*name));
        let taken = (work > MUCH && whole > 2 * QUERIES).then(|| {
            let mut all: Vec<usize> = [0, 1, whole / 2, whole - 2, whole - 1].to_vec();
            all.extend((0..).map(|i| (i * 7919 + 31) % whole).take(4 * QUERIES));
            let mut seen = HashSet::new();
            all.retain(|&i| seen.insert(i));
            all.truncate(QUERIES);
            all
        });
        let cut = cut && taken.is_some();
        let joins = |name: &&str| cut && joins(world, change, name, [whole, keys]);
        let joined =
            change.reads.iter().map(|(name, _)| name.as_str()).filter(joins).map(str::to_owned).collect();
        let sample = Sample { whole, taken, cut, joined, keys };
        let rows = sample.taken.as_ref().map_or(whole, Vec::len);
        let heads = count(made, usize::MAX)? / (whole * width).max(1);
        // An element of a tensor takes 28 bytes, because it is stored as a number, as an element for the oracle, and in
        // moved form. A score takes 32 bytes.
        let mut bytes = heads.checked_mul(rows)?.checked_mul(keys)?.checked_mul(32)?;
        for (name, role) in &change.reads {
            let shape = sample.shape(name, world.shape(name)?, *role);
            bytes = bytes.checked_add(count(&shape, usize::MAX)?.checked_mul(28)?)?;
        }
        Some((sample, bytes))
    }

    /// Returns the shape of the random elements that are drawn for the tensor `name` of shape `shape`.
    #[must_use]
    pub fn shape(&self, name: &str, shape: &[usize], role: Role) -> Vec<usize> {
        if let Some(taken) = self.taken.as_ref().filter(|_| self.is_joined(name)) {
            let outer = shape.iter().product::<usize>() / (self.whole * self.keys).max(1);
            return vec![outer, taken.len(), self.keys];
        }
        let mut shape = shape.to_vec();
        let whole = matches!(role, Role::Operand | Role::Factor | Role::Length);
        if let Some(taken) = self.taken.as_ref().filter(|_| self.cut && !whole)
            && let [.., rows, _] = &mut shape[..]
            && *rows == self.whole
        {
            *rows = taken.len();
        }
        shape
    }

    /// Returns `true` if a Reshape joins axes of the mask `name` to those of queries and keys, and the elements of the
    /// mask are those of the sampled queries.
    #[must_use]
    pub fn is_joined(&self, name: &str) -> bool {
        self.joined.iter().any(|joined| joined == name)
    }

    /// Returns the array that the graph's Reshape of a joined mask makes of the mask's sampled rows. `shape` is the
    /// shape that it makes of the whole mask. Returns `None` if its last two axes are not those of queries and keys.
    #[must_use]
    pub fn reshaped(&self, mask: &Array, shape: &[usize]) -> Option<Array> {
        let mut shape = shape.to_vec();
        let [.., rows, keys] = &mut shape[..] else { return None };
        ([*rows, *keys] == [self.whole, self.keys]).then_some(())?;
        *rows = self.taken.as_ref()?.len();
        (count(&shape, usize::MAX)? == mask.data.len()).then_some(())?;
        Some(Array { kind: mask.kind, shape, data: mask.data.clone() })
    }

    /// Selects the sampled rows of `array`, if `array` contains the rows of all queries.
    #[must_use]
    pub fn rows(&self, array: Array) -> Array {
        self.along(array, 2)
    }

    /// Selects the sampled queries of `array`, if it contains all queries along axis `from_last`. The last axis is 1.
    #[must_use]
    pub fn along(&self, array: Array, from_last: usize) -> Array {
        let axis = array.shape.len().checked_sub(from_last);
        let (Some(taken), Some(axis)) = (&self.taken, axis.filter(|&axis| array.shape[axis] == self.whole))
        else {
            return array;
        };
        let (rows, width) = (self.whole, array.shape[axis + 1..].iter().product::<usize>());
        let mut data = Vec::with_capacity(array.data.len() / rows.max(1) * taken.len());
        for block in array.data.chunks_exact((rows * width).max(1)) {
            taken.iter().for_each(|row| data.extend(&block[row * width..][..width]));
        }
        let mut shape = array.shape.clone();
        shape[axis] = taken.len();
        Array::new(array.kind, shape, data)
    }
}

/// Returns `true` if a Reshape is the only new node that reads the mask `name`, the last two axes of its output, but
/// not those of the mask, are `scores`, the numbers of queries and keys, and the model does not determine the mask's
/// elements.
fn joins(world: &World<'_>, change: &Change, name: &str, scores: [usize; 2]) -> bool {
    let readers: Vec<&Node> =
        change.nodes.iter().filter(|node| node.inputs.iter().any(|input| input == name)).collect();
    let [node] = readers[..] else { return false };
    let target = node.input(1).filter(|_| node.op == "Reshape" && node.input(0) == Some(name));
    let target = target.and_then(|target| change.constants.iter().find(|(constant, _)| constant == target));
    let made = target.is_some_and(|(_, target)| target.data.ends_with(&scores.map(|n| n as f64)));
    let role = change.reads.iter().find(|(read, _)| read == name).map(|(_, role)| *role);
    let is_mask = matches!(role, Some(Role::Added | Role::Subtracted | Role::Condition(_)));
    let is_split = world.shape(name).is_some_and(|shape| !shape.ends_with(&scores));
    made && is_mask && is_split && world.array(name).is_none()
}
