//! The attributes of a node.

use crate::attributes::{Node, flag, heads, integer, number, pair, sizes, value};
use crate::error::OperatorError;
use elsa_core::attention::Window;
use elsa_core::attention::plan::TensorCores;

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
    /// Largest share of a row's weights that a call may leave out; `None` if every key counts.
    pub error_budget: Option<f32>,
    pub half_scores: bool,
    pub tensor_cores: TensorCores,
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
            error_budget: budget(node)?,
            half_scores: flag(node, c"half_scores")?,
            tensor_cores: tensor_cores(node)?,
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

/// Returns the use of Tensor Cores.
fn tensor_cores(node: &impl Node) -> Result<TensorCores, OperatorError> {
    let (name, allowed) = (c"tensor_cores", "0 (off), 1 (allow), 2 (always) or 3 (f16)");
    match integer(node, name, allowed)? {
        None | Some(0) => Ok(TensorCores::Off),
        Some(1) => Ok(TensorCores::Allow),
        Some(2) => Ok(TensorCores::Always),
        Some(3) => Ok(TensorCores::F16),
        Some(found) => Err(value(name, found, allowed)),
    }
}

/// Returns the error budget; `None` if it is absent or zero.
fn budget(node: &impl Node) -> Result<Option<f32>, OperatorError> {
    let (name, allowed) = (c"error_budget", "0 (off) or a number between 0 and 1");
    match number(node, name, allowed)? {
        Some(0.0) | None => Ok(None),
        Some(found) if found > 0.0 && found < 1.0 => Ok(Some(found)),
        Some(found) => Err(value(name, found, allowed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::fake::{Fake, Integer, List, Number, Text};

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
            (c"error_budget", Number(0.25)),
            (c"half_scores", Integer(1)),
            (c"tensor_cores", Integer(3)),
        ]);
        let want = Attributes {
            num_heads: Some(4),
            kv_num_heads: Some(2),
            scale: Some(0.5),
            causal: true,
            align_last: true,
            softcap: Some(30.0),
            window: Window { left: None, right: Some(3) },
            error_budget: Some(0.25),
            half_scores: true,
            tensor_cores: TensorCores::F16,
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
            (&[(c"error_budget", Number(1.0))], "error_budget: 1; allowed: 0 (off) or "),
            (&[(c"error_budget", Number(-0.5))], "error_budget: -0.5; allowed: 0 (off) or "),
            (&[(c"error_budget", Integer(0))], "error_budget: an attribute of another type; allowed: "),
            (&[(c"half_scores", Integer(2))], "half_scores: 2; allowed: 0 or 1"),
            (
                &[(c"tensor_cores", Integer(4))],
                "tensor_cores: 4; allowed: 0 (off), 1 (allow), 2 (always) or 3 (f16)",
            ),
            (&[(c"tensor_cores", Text)], "tensor_cores: an attribute of another type; allowed: 0 (off)"),
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
