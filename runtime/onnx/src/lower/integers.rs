//! Integers that TensorRT 8.2 changes.
//!
//! Its parser stores INT64 constants as INT32, and clamps the numbers that do not fit. A model therefore needs no INT32
//! constants of its own: a number that fits is read exactly, and ONNX requires INT64 for most shapes. The greatest and
//! the least INT64 stand for "no limit", and so do the clamped numbers.

use super::facts::Facts;
use super::target::Target;
use crate::array::Kind;
use crate::node::Node;

/// Magnitude of the numbers that stand for "no limit". As f64, the greatest INT64 is this number.
const NO_LIMIT: f64 = 9_223_372_036_854_775_808.0;

/// Returns what the target changes in the integer constants of a node; `None` if it reads them exactly.
pub fn changed(node: &Node, facts: &Facts<'_>, target: Target) -> Option<String> {
    // The clamped bounds of a Slice are beyond every axis, too.
    if target != Target::TensorRt82 || node.is("Slice") {
        return None;
    }
    let clamped = |x: &f64| x.abs() < NO_LIMIT && !(f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(x);
    let constants = node.inputs.iter().filter(|name| facts.kind(name) == Some(Kind::I64));
    let found =
        constants.filter_map(|name| Some((name, facts.symbols.numbers(name)?.iter().find(|x| clamped(x))?)));
    found.map(|(name, x)| format!("{} clamps {x} in '{name}' to INT32", target.words())).next()
}
