//! Reads the attributes of a node.

use crate::error::OperatorError;
use elsa_core::attention::Window;
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

/// The attributes of a node. Each value has been checked against its allowed range.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Attributes {
    pub num_heads: Option<usize>,
    pub kv_num_heads: Option<usize>,
    pub scale: Option<f32>,
    pub causal: bool,
    pub align_last: bool,
    pub softcap: Option<f32>,
    pub window: Window,
    pub grid: Option<[usize; 2]>,
    pub picture: Option<[usize; 2]>,
    pub shift: Option<[usize; 2]>,
    pub packed: bool,
}

/// Creates the error for an invalid value of an attribute.
fn value(name: &'static CStr, found: impl ToString, allowed: &'static str) -> OperatorError {
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

fn integer(
    node: &impl Node,
    name: &'static CStr,
    allowed: &'static str,
) -> Result<Option<i64>, OperatorError> {
    match node.integer(name) {
        Some(found) => Ok(Some(found)),
        None => absent(node, name, allowed),
    }
}

fn heads(node: &impl Node, name: &'static CStr) -> Result<Option<usize>, OperatorError> {
    let allowed = "a whole number from 1 on";
    match integer(node, name, allowed)? {
        Some(found) if found < 1 => Err(value(name, found, allowed)),
        found => Ok(found.and_then(|found| usize::try_from(found).ok())),
    }
}

fn flag(node: &impl Node, name: &'static CStr) -> Result<bool, OperatorError> {
    match integer(node, name, "0 or 1")? {
        None | Some(0) => Ok(false),
        Some(1) => Ok(true),
        Some(found) => Err(value(name, found, "0 or 1")),
    }
}

fn number(
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

fn pair(
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

fn sizes(
    node: &impl Node,
    name: &'static CStr,
    least: i64,
    allowed: &'static str,
) -> Result<Option<[usize; 2]>, OperatorError> {
    let found = pair(node, name, least, allowed)?;
    Ok(found.map(|sides| sides.map(|side| usize::try_from(side).unwrap_or(usize::MAX))))
}

impl Attributes {
    /// Reads the attributes of a node.
    ///
    /// # Errors
    /// Returns an error if an attribute has the wrong type, is out of range, or requires another attribute that is
    /// missing.
    pub fn of(node: &impl Node) -> Result<Attributes, OperatorError> {
        let window = pair(node, c"window", -1, "two whole numbers, left and right; -1 is open")?;
        let side = |x: i64| usize::try_from(x).ok();
        let attributes = Attributes {
            num_heads: heads(node, c"num_heads")?,
            kv_num_heads: heads(node, c"kv_num_heads")?,
            scale: number(node, c"scale", "a finite number")?,
            causal: flag(node, c"is_causal")?,
            align_last: flag(node, c"align_last")?,
            softcap: number(node, c"softcap", "0 (off) or a positive finite number")?,
            window: window
                .map_or(Window::default(), |[left, right]| Window { left: side(left), right: side(right) }),
            grid: sizes(node, c"grid", 1, "rows and columns of a window, from 1 on")?,
            picture: sizes(
                node,
                c"picture",
                1,
                "rows and columns of the picture, multiples of those of grid",
            )?,
            shift: sizes(node, c"shift", 0, "rows and columns, less than those of grid")?,
            packed: flag(node, c"packed")?,
        };
        let missing = |argument, other| Err(OperatorError::Missing { argument, other });
        match &attributes {
            Attributes { causal: false, align_last: true, .. } => missing("is_causal", "align_last"),
            Attributes { grid: None, picture: Some(_), .. } => missing("grid", "picture"),
            Attributes { grid: None, shift: Some(_), .. } => missing("grid", "shift"),
            Attributes { picture: None, shift: Some(_), .. } => missing("picture", "shift"),
            Attributes { packed: true, num_heads: None, .. } => missing("num_heads", "packed"),
            Attributes { packed: true, num_heads, kv_num_heads: Some(found), .. }
                if Some(*found) != *num_heads =>
            {
                Err(value(c"kv_num_heads", found, "num_heads, where packed is 1"))
            }
            _ => Ok(attributes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    enum Value {
        Integer(i64),
        Number(f32),
        List(&'static [i64]),
        Text,
    }
    use Value::{Integer, List, Number, Text};

    struct Fake(&'static [(&'static CStr, Value)]);

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

    #[test]
    fn attributes_are_read() {
        assert_eq!(Attributes::of(&Fake(&[])), Ok(Attributes::default()));
        let node = Fake(&[
            (c"num_heads", Integer(4)),
            (c"kv_num_heads", Integer(2)),
            (c"scale", Number(0.5)),
            (c"is_causal", Integer(1)),
            (c"align_last", Integer(1)),
            (c"softcap", Number(30.0)),
            (c"window", List(&[-1, 3])),
        ]);
        let want = Attributes {
            num_heads: Some(4),
            kv_num_heads: Some(2),
            scale: Some(0.5),
            causal: true,
            align_last: true,
            softcap: Some(30.0),
            window: Window { left: None, right: Some(3) },
            ..Attributes::default()
        };
        assert_eq!(Attributes::of(&node), Ok(want));
        let node =
            Fake(&[(c"grid", List(&[7, 5])), (c"picture", List(&[14, 10])), (c"shift", List(&[3, 0]))]);
        let found = Attributes::of(&node).unwrap();
        assert_eq!((found.grid, found.picture, found.shift), (Some([7, 5]), Some([14, 10]), Some([3, 0])));
    }

    #[test]
    fn attributes_out_of_bounds_are_refused_by_name() {
        for (node, message) in [
            (&[(c"num_heads", Integer(0))][..], "num_heads: 0; allowed: a whole number from 1 on"),
            (&[(c"kv_num_heads", Integer(i64::MIN))], "kv_num_heads: -9223372036854775808; allowed: "),
            (&[(c"num_heads", Number(2.0))], "num_heads: an attribute of another type; allowed: "),
            (&[(c"scale", Integer(1))], "scale: an attribute of another type; allowed: a finite number"),
            (&[(c"scale", Text)], "scale: an attribute of another type; allowed: "),
            (&[(c"scale", Number(f32::NAN))], "scale: NaN; allowed: a finite number"),
            (&[(c"softcap", Number(f32::INFINITY))], "softcap: inf; allowed: 0 (off) or "),
            (&[(c"is_causal", Integer(2))], "is_causal: 2; allowed: 0 or 1"),
            (&[(c"align_last", Integer(2))], "align_last: 2; allowed: 0 or 1"),
            (&[(c"align_last", Integer(1))], "is_causal: absent; allowed: given, because align_last is"),
            (&[(c"packed", Integer(-1))], "packed: -1; allowed: 0 or 1"),
            (&[(c"window", List(&[1]))], "window: 1 values; allowed: two whole numbers"),
            (&[(c"window", List(&[-2, 0]))], "window: [-2, 0]; allowed: two whole numbers"),
            (&[(c"window", Integer(3))], "window: an attribute of another type"),
            (&[(c"grid", List(&[0, 7]))], "grid: [0, 7]; allowed: rows and columns"),
            (&[(c"picture", List(&[7, 7]))], "grid: absent; allowed: given, because picture is"),
            (&[(c"shift", List(&[1, 1]))], "grid: absent; allowed: given, because shift is"),
            (
                &[(c"grid", List(&[7, 7])), (c"shift", List(&[1, 1]))],
                "picture: absent; allowed: given, because shift is",
            ),
            (&[(c"packed", Integer(1))], "num_heads: absent; allowed: given, because packed is"),
            (
                &[(c"packed", Integer(1)), (c"num_heads", Integer(4)), (c"kv_num_heads", Integer(2))],
                "kv_num_heads: 2; allowed: num_heads, where packed is 1",
            ),
        ] {
            let found = Attributes::of(&Fake(node)).unwrap_err().to_string();
            assert!(found.starts_with(message), "{found}\n{message}");
        }
    }
}
