//! `Einsum`: the shape of its output, and matrix products that it expresses.
//!
//! A matrix product such as `bihd,bjhd->bhij` is replaced by equivalent nodes:
//!
//! ```text
//! left  -> Transpose [batch, rows, inner]    \
//!                                             MatMul [batch, rows, columns] -> Transpose
//! right -> Transpose [batch, inner, columns] /
//! ```
//!
//! If the right operand lacks an axis of the batch, such as the heads in `bhid,bjd->bhij`, an Unsqueeze adds this axis
//! with size 1.

use super::node::{Attribute, Node};
use super::size::Size;
use super::value::Value;
use std::collections::{HashMap, HashSet};

/// Label of an operand's axis. The label of an axis that the ellipsis covers is its position among the covered axes,
/// counted from the last one. The label of any other axis is a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Label {
    Letter(char),
    Other(usize),
}

/// Letters of an operand before and after its ellipsis. Without an ellipsis, all letters are in `before`.
#[derive(Debug, PartialEq)]
struct Letters {
    before: Vec<char>,
    after: Option<Vec<char>>,
}

impl Letters {
    fn read(text: &str) -> Option<Letters> {
        let letters = |text: &str| {
            let all: Vec<char> = text.chars().collect();
            all.iter().all(char::is_ascii_alphabetic).then_some(all)
        };
        Some(match text.split_once("...") {
            Some((before, after)) => Letters { before: letters(before)?, after: Some(letters(after)?) },
            None => Letters { before: letters(text)?, after: None },
        })
    }

    /// Returns the labels of an operand with `rank` axes.
    fn labels(&self, rank: usize) -> Option<Vec<Label>> {
        let after = self.after.as_deref().unwrap_or_default();
        let others = rank.checked_sub(self.before.len() + after.len())?;
        (others == 0 || self.after.is_some()).then_some(())?;
        let letters = |all: &[char]| all.iter().map(|&c| Label::Letter(c)).collect::<Vec<_>>();
        let others = (0..others).rev().map(Label::Other);
        Some(letters(&self.before).into_iter().chain(others).chain(letters(after)).collect())
    }
}

/// Equation of an `Einsum`: its operands, and its output if the equation states one.
struct Equation {
    operands: Vec<Letters>,
    answer: Option<Letters>,
}

impl Equation {
    fn read(node: &Node) -> Option<Equation> {
        let text: String = node.text("equation")?.split_whitespace().collect();
        let (operands, answer) = match text.split_once("->") {
            Some((operands, answer)) => (operands, Some(Letters::read(answer)?)),
            None => (text.as_str(), None),
        };
        let operands = operands.split(',').map(Letters::read).collect::<Option<Vec<_>>>()?;
        (operands.len() == node.inputs.len()).then_some(Equation { operands, answer })
    }
}

/// Returns the shape of the output.
#[must_use]
pub fn shape(node: &Node, inputs: &[Option<&Value>]) -> Option<Vec<Size>> {
    let equation = Equation::read(node)?;
    let mut sizes: HashMap<Label, Size> = HashMap::new();
    let mut met: Vec<Label> = Vec::new();
    for (letters, input) in equation.operands.iter().zip(inputs) {
        let shape = &(*input)?.shape;
        for (label, size) in letters.labels(shape.len())?.into_iter().zip(shape) {
            met.push(label);
            let joint = match sizes.get(&label) {
                Some(other) => other.joint(size)?,
                None => size.clone(),
            };
            sizes.insert(label, joint);
        }
    }
    let others = sizes.keys().filter(|label| matches!(label, Label::Other(_))).count();
    let answer = match &equation.answer {
        Some(letters) => {
            let named = letters.before.len() + letters.after.as_ref().map_or(0, Vec::len);
            letters.labels(named + letters.after.as_ref().map_or(0, |_| others))?
        }
        // The equation has no output, so the output has the axes of the ellipsis, then the letters that occur once, sorted.
        None => {
            let once = |label: &Label| met.iter().filter(|other| *other == label).count() == 1;
            let letters =
                met.iter().copied().filter(|label| matches!(label, Label::Letter(_)) && once(label));
            let mut letters: Vec<Label> = letters.collect();
            letters.sort_unstable();
            (0..others).rev().map(Label::Other).chain(letters).collect()
        }
    };
    let distinct: HashSet<&Label> = answer.iter().collect();
    (distinct.len() == answer.len()).then_some(())?;
    answer.iter().map(|label| sizes.get(label).cloned()).collect()
}

/// Returns the number of multiply-adds of an `Einsum` whose operands have the given shapes.
#[must_use]
pub fn multiply_adds(node: &Node, shapes: &[&[usize]]) -> Option<f64> {
    let equation = Equation::read(node)?;
    let mut sizes: HashMap<Label, usize> = HashMap::new();
    for (letters, shape) in equation.operands.iter().zip(shapes) {
        for (label, &n) in letters.labels(shape.len())?.into_iter().zip(*shape) {
            let size = sizes.entry(label).or_insert(1);
            *size = n.max(*size);
        }
    }
    Some(sizes.values().map(|&n| n as f64).product())
}

/// Returns the permutation of the axes `from` that yields the axes `to`; `None` if `from` lacks one of them.
fn order(from: &[char], to: &[char]) -> Option<Vec<i64>> {
    let at = |c: &char| i64::try_from(from.iter().position(|other| other == c)?).ok();
    to.iter().map(at).collect()
}

/// Returns nodes that are equivalent to an `Einsum` of two matrices; `None` for other nodes. The names of new nodes
/// begin with the name of the output and `mark`; `opset` is the version of the operator set.
#[must_use]
pub fn product(node: &Node, mark: &str, opset: i64) -> Option<Vec<Node>> {
    if !node.is("Einsum") {
        return None;
    }
    let equation = Equation::read(node)?;
    let plain = |letters: &Letters| {
        let all = letters.before.clone();
        let distinct: HashSet<char> = all.iter().copied().collect();
        (letters.after.is_none() && distinct.len() == all.len()).then_some(all)
    };
    let [a, b] = &equation.operands[..] else { return None };
    let (a, b, out) = (plain(a)?, plain(b)?, plain(equation.answer.as_ref()?)?);
    let [x, y] = &node.inputs[..] else { return None };
    // The left factor is the one whose own axis comes first in the output.
    let own = |of: &[char], other: &[char]| {
        let mut own = out.iter().position(|c| of.contains(c) && !other.contains(c));
        own.take()
    };
    let (left, right, a, b) = if own(&a, &b)? < own(&b, &a)? { (x, y, a, b) } else { (y, x, b, a) };
    let only = |of: &[char], keep: &dyn Fn(&char) -> bool| match of
        .iter()
        .filter(|c| keep(c))
        .collect::<Vec<_>>()[..]
    {
        [c] => Some(*c),
        _ => None,
    };
    // Only the left operand may have several axes of its own. The last of them in the output is the axis of the rows.
    let row = *out.iter().rfind(|&c| a.contains(c) && !b.contains(c))?;
    let column = only(&b, &|c| !a.contains(c))?;
    let inner = only(&a, &|c| b.contains(c) && !out.contains(c))?;
    let is_batch = |c: &char| ![row, column, inner].contains(c);
    if !out.contains(&row) || !out.contains(&column) || out.len() != a.len() {
        return None;
    }
    // Batch axes keep the left factor's order if it then needs no Transpose; otherwise they have the output's order.
    let batch = |of: &[char]| of.iter().copied().filter(is_batch).collect::<Vec<_>>();
    let with = |mut batch: Vec<char>, last: [char; 2]| {
        batch.extend(last);
        batch
    };
    let batch = if with(batch(&a), [row, inner]) == a { batch(&a) } else { batch(&out) };
    let answer = node.outputs.first().filter(|name| !name.is_empty())?;
    let mut nodes = Vec::new();
    let mut turned = |from: &[char], to: &[char], input: &str, output: Option<&str>| {
        let order = order(from, to)?;
        if order.is_sorted() && output.is_none() {
            return Some(input.to_owned());
        }
        let made = output.map_or_else(|| format!("{answer}{mark}{}", nodes.len()), str::to_owned);
        nodes.push(Node {
            name: made.clone(),
            op: "Transpose".into(),
            inputs: vec![input.to_owned()],
            outputs: vec![made.clone()],
            attributes: [("perm".to_owned(), Attribute::Ints(order))].into(),
            ..Node::default()
        });
        Some(made)
    };
    let left = turned(&a, &with(batch.clone(), [row, inner]), left, None)?;
    let shared: Vec<char> = batch.iter().copied().filter(|c| b.contains(c)).collect();
    if shared.is_empty() && !batch.is_empty() {
        return None;
    }
    let mut right = turned(&b, &with(shared, [inner, column]), right, None)?;
    let made = with(batch.clone(), [row, column]);
    let is_last = made == out;
    let product = if is_last { answer.clone() } else { format!("{answer}{mark}") };
    if !is_last {
        turned(&made, &out, &product, Some(answer))?;
    }
    let at = nodes.len() - usize::from(!is_last);
    let missing: Vec<i64> = (0..).zip(&batch).filter(|(_, c)| !b.contains(c)).map(|(axis, _)| axis).collect();
    let mut new = Vec::new();
    if !missing.is_empty() {
        let wide = format!("{answer}{mark}_wide");
        new = unsqueezed(&right, &wide, missing, opset);
        right = wide;
    }
    new.push(Node {
        name: product.clone(),
        op: "MatMul".into(),
        inputs: vec![left, right],
        outputs: vec![product],
        ..Node::default()
    });
    for (i, node) in new.into_iter().enumerate() {
        nodes.insert(at + i, node);
    }
    Some(nodes)
}

/// Returns nodes that insert axes of size 1 into the tensor `input`.
fn unsqueezed(input: &str, output: &str, axes: Vec<i64>, opset: i64) -> Vec<Node> {
    let axes = Attribute::Ints(axes);
    let mut node = Node {
        name: output.to_owned(),
        op: "Unsqueeze".into(),
        inputs: vec![input.to_owned()],
        outputs: vec![output.to_owned()],
        ..Node::default()
    };
    if opset < 13 {
        node.attributes.insert("axes".into(), axes);
        return vec![node];
    }
    let name = format!("{output}_axes");
    node.inputs.push(name.clone());
    let constant = Node {
        name: name.clone(),
        op: "Constant".into(),
        outputs: vec![name],
        attributes: [("value_ints".to_owned(), axes)].into(),
        ..Node::default()
    };
    vec![constant, node]
}

#[cfg(test)]
mod tests {
    use super::super::array::Kind;
    use super::super::value::Data;
    use super::*;

    #[test]
    fn the_shape_follows_from_the_equation() {
        let shape = |equation: &str, inputs: &[&[&str]]| {
            let size = |axis: &&str| axis.parse().map_or_else(|_| Size::axis(axis), |n: i64| Size::from(n));
            let value = |axes: &&[&str]| {
                let shape = axes.iter().map(size).collect();
                Value { kind: Kind::F32, shape, data: Data::None }
            };
            let values: Vec<Value> = inputs.iter().map(value).collect();
            let node = Node {
                op: "Einsum".into(),
                inputs: vec!["x".into(); inputs.len()],
                attributes: [("equation".to_owned(), Attribute::Text(equation.into()))].into(),
                ..Node::default()
            };
            let made = self::shape(&node, &values.iter().map(Some).collect::<Vec<_>>());
            made.map(|made| made.iter().map(Size::to_string).collect::<Vec<_>>().join(" "))
        };
        let (q, k) = (&["b", "4", "n", "8"][..], &["b", "4", "m", "8"][..]);
        let found = |text: &str| Some(text.to_owned());
        assert_eq!(shape("bhid,bhjd->bhij", &[q, k]), found("b 4 n m"));
        assert_eq!(shape("...id, ...jd -> ...ij", &[q, k]), found("b 4 n m"));
        assert_eq!(shape("...d,d->...", &[q, &["8"]]), found("b 4 n"));
        assert_eq!(shape("b...,b...->...b", &[q, q]), found("4 n 8 b"));
        // If the equation has no output, the output has the ellipsis, then the letters that occur once.
        assert_eq!(shape("ij,jk", &[&["n", "8"], &["8", "m"]]), found("n m"));
        assert_eq!(shape("...ba", &[&["2", "n", "m"]]), found("2 m n"));
        // Diagonals, sums, and an operand without axes.
        assert_eq!(shape("ii->i", &[&["n", "n"]]), found("n"));
        assert_eq!(shape("ii", &[&["n", "n"]]), found(""));
        assert_eq!(shape("i,i->", &[&["n"], &["n"]]), found(""));
        assert_eq!(shape(",ij->ji", &[&[], &["n", "3"]]), found("3 n"));
        for (equation, inputs) in [
            ("ij->ik", &[&["2", "3"][..]][..]),
            ("ij->ii", &[&["2", "3"]]),
            ("ij", &[&["2", "3", "4"]]),
            ("ii->i", &[&["2", "3"]]),
            ("i1->i", &[&["2", "3"]]),
            ("ij,jk->ik", &[&["2", "3"]]),
        ] {
            assert_eq!(shape(equation, inputs), None, "{equation}");
        }
    }
}
