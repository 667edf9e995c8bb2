//! Reads the attributes of a node.

use crate::error::OperatorError;
use std::ffi::CStr;

/// A source of attributes. A method that returns an `Option` returns `None` if the node has no attribute of the
/// requested name and type.
pub(crate) trait Node {
    fn integer(&self, name: &CStr) -> Option<i64>;
    fn number(&self, name: &CStr) -> Option<f32>;
    /// Returns an attribute that is a list of two integers. If the list has another length, returns that length.
    fn pair(&self, name: &CStr) -> Option<Result<[i64; 2], usize>>;
    /// Returns `true` if the node has an attribute of this name that is text or a list of real numbers.
    fn has_other(&self, name: &CStr) -> bool;
}

/// Creates the error for an invalid value of an attribute.
pub(crate) fn value(name: &'static CStr, found: impl ToString, allowed: &'static str) -> OperatorError {
    OperatorError::Value { argument: name.to_str().unwrap_or("attribute"), found: found.to_string(), allowed }
}

/// Returns `None` if the attribute `name` does not exist. Returns an error if it exists, because its type is then not
/// the requested type.
fn absent<T>(
    node: &impl Node,
    name: &'static CStr,
    allowed: &'static str,
) -> Result<Option<T>, OperatorError> {
    let there = node.integer(name).is_some()
        || node.number(name).is_some()
        || node.pair(name).is_some()
        || node.has_other(name);
    if there { Err(value(name, "an attribute of another type", allowed)) } else { Ok(None) }
}

/// Returns an integer attribute; `None` if the node does not have it.
pub(crate) fn integer(
    node: &impl Node,
    name: &'static CStr,
    allowed: &'static str,
) -> Result<Option<i64>, OperatorError> {
    match node.integer(name) {
        Some(found) => Ok(Some(found)),
        None => absent(node, name, allowed),
    }
}

/// Returns a number of heads; `None` if the node does not have the attribute.
pub(crate) fn heads(node: &impl Node, name: &'static CStr) -> Result<Option<usize>, OperatorError> {
    let allowed = "a whole number from 1 on";
    match integer(node, name, allowed)? {
        Some(found) if found < 1 => Err(value(name, found, allowed)),
        found => Ok(found.and_then(|found| usize::try_from(found).ok())),
    }
}

/// Returns a flag, which is 0 or 1; `false` if the node does not have the attribute.
pub(crate) fn flag(node: &impl Node, name: &'static CStr) -> Result<bool, OperatorError> {
    match integer(node, name, "0 or 1")? {
        None | Some(0) => Ok(false),
        Some(1) => Ok(true),
        Some(found) => Err(value(name, found, "0 or 1")),
    }
}

/// Returns a finite number; `None` if the node does not have the attribute.
pub(crate) fn number(
    node: &impl Node,
    name: &'static CStr,
    allowed: &'static str,
) -> Result<Option<f32>, OperatorError> {
    match node.number(name) {
        Some(found) if found.is_finite() => Ok(Some(found)),
        Some(found) => Err(value(name, found, allowed)),
        None => absent(node, name, allowed),
    }
}

/// Returns two integers, each at least `least`; `None` if the node does not have the attribute.
pub(crate) fn pair(
    node: &impl Node,
    name: &'static CStr,
    least: i64,
    allowed: &'static str,
) -> Result<Option<[i64; 2]>, OperatorError> {
    match node.pair(name) {
        Some(Ok(found)) if found.iter().all(|x| *x >= least) => Ok(Some(found)),
        Some(Ok(found)) => Err(value(name, format_args!("{found:?}"), allowed)),
        Some(Err(length)) => Err(value(name, format_args!("{length} values"), allowed)),
        None => absent(node, name, allowed),
    }
}

/// Returns two sizes, each at least `least`; `None` if the node does not have the attribute.
pub(crate) fn sizes(
    node: &impl Node,
    name: &'static CStr,
    least: i64,
    allowed: &'static str,
) -> Result<Option<[usize; 2]>, OperatorError> {
    let found = pair(node, name, least, allowed)?;
    Ok(found.map(|sides| sides.map(|side| usize::try_from(side).unwrap_or(usize::MAX))))
}

/// Attributes for tests.
#[cfg(test)]
pub(crate) mod fake {
    use super::Node;
    use std::ffi::CStr;

    pub(crate) enum Value {
        Integer(i64),
        Number(f32),
        List(&'static [i64]),
        Text,
    }
    pub(crate) use Value::{Integer, List, Number, Text};

    pub(crate) struct Fake(pub &'static [(&'static CStr, Value)]);

    impl Fake {
        fn get(&self, name: &CStr) -> Option<&Value> {
            self.0.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
        }
    }

    impl Node for Fake {
        fn integer(&self, name: &CStr) -> Option<i64> {
            if let Some(Integer(x)) = self.get(name) { Some(*x) } else { None }
        }
        fn number(&self, name: &CStr) -> Option<f32> {
            if let Some(Number(x)) = self.get(name) { Some(*x) } else { None }
        }
        fn pair(&self, name: &CStr) -> Option<Result<[i64; 2], usize>> {
            let Some(List(x)) = self.get(name) else { return None };
            Some(<[i64; 2]>::try_from(*x).map_err(|_| x.len()))
        }
        fn has_other(&self, name: &CStr) -> bool {
            matches!(self.get(name), Some(Text))
        }
    }
}
