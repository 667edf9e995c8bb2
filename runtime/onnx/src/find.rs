//! Attention in a graph: the search goes from each Softmax back to the product of queries and keys, and forward to the
//! product with values.
//!
//! ```text
//! Softmax <- Add | Sub | Mul | Div | Where | Cast | Reshape | Transpose | Tanh | Max | Clip <- MatMul(queries, keys)
//! Softmax -> Cast | Dropout | Identity | Reshape | IsNaN and Where -> MatMul(weights, values) -> layout
//! ```
//!
//! A softmax may also be written out as Exp, ReduceSum and a quotient, with or without the largest score subtracted.
//!
//! From the operands and the output of the two products, the search continues through nodes that only move elements or
//! multiply by a constant. The search only records these nodes; `prove` proves the replacement.

use super::infer::World;
use super::model::Graph;
use super::node::Node;
use super::size::Size;
use super::symbols::Symbols;
use super::turned::swaps_last;
use super::value::place;
use super::written::WrittenSoftmax;

/// Maximum number of nodes on one path.
pub const LONGEST: usize = 40;

/// Largest fill value that masks a score as completely as `−∞` does.
const LOWEST: f64 = -1e4;

/// A tensor on a path to an operand of a product. Changes of layout and a multiplication by `factor` turn this tensor
/// into the operand.
#[derive(Clone, Debug)]
pub struct Link {
    /// Name of the tensor.
    pub name: String,
    /// Factor by which the tensor's elements are multiplied on the way to the operand.
    pub factor: f64,
    /// Node on the path that reads the tensor; `None` for the operand itself.
    pub reader: Option<usize>,
}

/// A tensor that is added to the scores, or replaces some of them.
#[derive(Clone, Debug)]
pub struct Term {
    /// Name of the tensor, which is an additive mask or a condition.
    pub name: String,
    /// Tensor that a Reshape turns into the mask, if the shape of the scores is the target of this Reshape.
    pub reshaped: Option<String>,
    /// Effect on the scores.
    pub action: Action,
    /// Name of the scores to which the mask is applied. The shape of these scores determines how the mask is broadcast.
    /// In a fused node, the scores have no name, so this field is `None`, and the axes of the attention determine how
    /// the mask is broadcast.
    pub scores: Option<String>,
}

/// Effect of a mask on the scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Adds the mask to the scores.
    Add,
    /// Subtracts the mask from the scores.
    Subtract,
    /// Keeps scores where the condition equals `keeps`, and replaces the others by `fill`.
    Choose {
        /// `true` if scores are kept where the condition is true.
        keeps: bool,
        /// Value that replaces the other scores.
        fill: f64,
    },
}

/// Attention as written in a graph.
#[derive(Clone, Debug)]
pub struct AttentionPattern {
    /// Links of the paths to queries, keys and values. Each list is in reverse order and begins with the operand
    /// itself.
    pub operands: [Vec<Link>; 3],
    /// Whether the product reads transposed queries, and transposed keys. `MatMul` reads transposed keys, and if its
    /// scores are transposed, it reads transposed queries.
    pub turned: [bool; 2],
    /// Constant that multiplies the scores, without the constants that multiply the operands.
    pub scale: f64,
    /// Tensors that change the scores before any mask is applied: each has one element, or one for each head. A tensor
    /// whose flag is `true` divides the scores; any other tensor multiplies them. The value of a single element depends
    /// on free axes or on data.
    pub factors: Vec<(String, bool)>,
    /// The soft cap of the scores.
    pub softcap: Option<f64>,
    /// `true` if a fused node has the attribute for causal attention.
    pub causal: bool,
    /// Masks in order from the softmax back to the product of queries and keys.
    pub terms: Vec<Term>,
    /// Tensors from the product of queries and keys through the softmax to the product with values. The second to last
    /// axis of each tensor is the axis of the queries.
    pub walk: Vec<String>,
    /// Tensors from the product of queries and keys to the Transpose of the scores. The last axis of each tensor is the
    /// axis of the queries.
    pub turned_walk: Vec<String>,
    /// Scores with several readers, with the reason why the attention stays if one of the readers does.
    pub shared: Vec<(String, Reason)>,
    /// Output of the product with values, then the outputs of the nodes that change its layout. Each is listed with the
    /// node that produces it.
    pub outputs: Vec<(String, usize)>,
}

impl AttentionPattern {
    /// Records a tensor between the product of queries and keys and the softmax.
    fn passes(&mut self, name: &str) {
        let walk = if self.turned[0] { &mut self.turned_walk } else { &mut self.walk };
        walk.push(name.to_owned());
    }
}

/// Reason why a node is not replaced, for the user.
pub type Reason = String;

/// A graph and the known facts about its tensors.
pub struct Site<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// Version of the ONNX operator set.
    pub opset: i64,
    /// Facts that hold for all sizes of the free axes.
    pub symbols: &'a Symbols,
    /// Facts for concrete sizes of the free axes.
    pub worlds: &'a [World<'a>],
}

impl Site<'_> {
    /// Returns the node that produces the tensor `name`, with its index.
    #[must_use]
    pub fn producer(&self, name: &str) -> Option<(usize, &Node)> {
        let n = *self.graph.producer.get(name)?;
        Some((n, &self.graph.nodes[n]))
    }

    /// Returns the element of a one-element tensor that depends only on constants.
    #[must_use]
    pub fn scalar(&self, name: &str) -> Option<f64> {
        self.worlds.first()?.scalar(name).filter(|_| self.symbols.is_fixed(name))
    }

    /// Returns `true` if the elements of tensor `name` follow from constants and shapes.
    #[must_use]
    pub fn known(&self, name: &str) -> bool {
        self.worlds.iter().all(|world| world.is_known(name))
    }

    /// Returns `true` if tensor `name` has one element for all sizes of the free axes.
    fn is_single(&self, name: &str) -> bool {
        self.symbols.shape(name).is_some_and(|shape| shape.iter().all(|size| size.is(1)))
    }

    /// Returns `true` if tensor `name` has one element for all queries and keys of a head: its last two axes have size 1.
    fn is_of_heads(&self, name: &str) -> bool {
        matches!(self.symbols.shape(name), Some([_, .., a, b]) if a.is(1) && b.is(1))
    }

    /// Returns `true` if the scores of different heads are multiplied by different factors.
    #[must_use]
    pub fn scales_heads(&self, found: &AttentionPattern) -> bool {
        found.factors.iter().any(|(name, _)| !self.is_single(name))
    }

    /// Returns the scores from which `node` subtracts their largest, that of all scores or of a part; `None` for other
    /// nodes.
    #[must_use]
    pub fn lessened<'n>(&self, node: &'n Node) -> Option<&'n str> {
        let (scores, largest) = (node.input(0)?, node.input(1).filter(|_| node.is("Sub"))?);
        let (_, most) = self.producer(largest).filter(|(_, most)| most.is("ReduceMax"))?;
        let kept = most.int("keepdims").unwrap_or(1) != 0 || self.is_single(largest);
        (kept && most.input(0) == Some(scores)).then_some(scores)
    }

    /// Returns `true` if tensor `name`, which is subtracted from the scores, has one element for all scores of a row of
    /// the softmax.
    fn is_of_rows(&self, name: &str, found: &AttentionPattern) -> bool {
        let keys = if found.turned[0] { 2 } else { 1 };
        let shape = self.symbols.shape(name);
        shape.is_some_and(|shape| shape.iter().rev().nth(keys - 1).is_none_or(|size| size.is(1)))
    }

    fn same_last(&self, a: &str, b: &str, axes: usize) -> bool {
        match (self.symbols.shape(a), self.symbols.shape(b)) {
            (Some(a), Some(b)) if a.len() >= axes && b.len() >= axes => {
                a[a.len() - axes..] == b[b.len() - axes..]
            }
            _ => false,
        }
    }

    /// Returns `true` if `node` only moves elements of its first input.
    #[must_use]
    pub fn moves(&self, node: &Node) -> bool {
        let layout = [
            "Reshape",
            "Transpose",
            "Squeeze",
            "Unsqueeze",
            "Flatten",
            "Identity",
            "Split",
            "Slice",
            "Gather",
            "Expand",
            "Tile",
        ];
        // The new place of each element depends only on the node's shapes or on constants.
        let shaped = ["Reshape", "Expand", "Slice", "Tile"].contains(&node.op.as_str());
        let settled = |name: &String| {
            self.symbols.is_fixed(name) || shaped && self.symbols.sizes(name).is_some() && self.known(name)
        };
        node.domain.is_empty()
            && layout.contains(&node.op.as_str())
            && node.inputs.iter().skip(1).all(|name| name.is_empty() || settled(name))
            && node.outputs.iter().all(|name| self.symbols.shape(name).is_some())
    }

    /// Returns the links of the path that ends at the operand `name`. The list begins with the operand and goes back
    /// through layout nodes and constant factors.
    #[must_use]
    pub fn trace(&self, name: &str) -> Vec<Link> {
        let mut links = vec![Link { name: name.to_owned(), factor: 1.0, reader: None }];
        while let Some(last) = links.last().filter(|_| links.len() < LONGEST) {
            let Some((n, node)) = self.producer(&last.name) else { break };
            let next =
                if self.moves(node) { node.input(0).map(|name| (name, 1.0)) } else { self.scaled(node) };
            // A proof takes the elements that follow from the model, and draws only those of the first known tensor.
            let Some((name, factor)) = next.filter(|(name, _)| !self.known(name)) else { break };
            let factor = last.factor * factor;
            links.push(Link { name: name.to_owned(), factor, reader: Some(n) });
        }
        links
    }

    /// Returns the input that `node` multiplies by a constant, and the constant; `None` for other nodes.
    #[must_use]
    pub fn scaled<'n>(&self, node: &'n Node) -> Option<(&'n str, f64)> {
        let (a, b) = (node.input(0)?, node.input(1)?);
        let ok = |x: f64| (x.is_finite() && x != 0.0).then_some(x);
        if node.is("Mul") {
            return match (self.scalar(a), self.scalar(b)) {
                (None, Some(x)) => Some((a, ok(x)?)),
                (Some(x), None) => Some((b, ok(x)?)),
                _ => None,
            };
        }
        (node.is("Div") && self.scalar(a).is_none()).then(|| Some((a, 1.0 / ok(self.scalar(b)?)?)))?
    }

    /// Checks that exactly one node reads the tensor `name`, and that the tensor is not an output of the model. Error
    /// messages call the tensor `what`.
    fn alone(&self, name: &str, what: &str) -> Result<(), Reason> {
        self.read_by(name, 1, what)
    }

    /// Checks that `count` nodes read the tensor `name`, and that the tensor is not an output of the model. Error
    /// messages call the tensor `what`.
    fn read_by(&self, name: &str, count: usize, what: &str) -> Result<(), Reason> {
        if self.graph.is_output(name) {
            return Err(format!("{what} are an output of the model"));
        }
        match self.graph.readers.get(name).map_or(0, Vec::len) {
            n if n == count => Ok(()),
            n => Err(format!("{what} are read by {n} nodes")),
        }
    }

    /// Finds the attention around a softmax. If the softmax is written out, `softmax` is its last node.
    ///
    /// # Errors
    /// Returns the reason why the node is not attention, or why it is not replaced.
    pub fn around(&self, softmax: &Node) -> Result<AttentionPattern, Reason> {
        let (Some(input), Some(output)) = (softmax.input(0), softmax.outputs.first()) else {
            return Err("a Softmax without input or output".into());
        };
        let Some(rank) = self.symbols.shape(input).map(<[Size]>::len) else {
            return Err(self.unknown_shape(input));
        };
        let mut found = AttentionPattern {
            operands: [vec![], vec![], vec![]],
            turned: [false, true],
            scale: 1.0,
            factors: vec![],
            softcap: None,
            causal: false,
            terms: vec![],
            walk: vec![],
            turned_walk: vec![],
            shared: vec![],
            outputs: vec![],
        };
        let product = match WrittenSoftmax::of(self.graph, softmax) {
            Some(parts) => self.exponents(&parts, &mut found)?,
            None => {
                let axis = softmax.int("axis").unwrap_or(if self.opset < 13 { 1 } else { -1 });
                if axis != -1 && usize::try_from(axis).ok() != rank.checked_sub(1) {
                    return Err(format!("its axis is {axis}, not the last of {rank}"));
                }
                self.scores(input, &mut found, 0)?
            }
        };
        self.weights(output, &mut found)?;
        let (Some(mut q), Some(mut k)) = (product.input(0), product.input(1)) else {
            return Err("a product without its factors".into());
        };
        if found.turned[0] {
            std::mem::swap(&mut q, &mut k);
        }
        found.operands[0] = self.trace(q);
        found.operands[1] = self.trace(k);
        Ok(found)
    }

    /// Follows the exponentials of a softmax that is written out back to the product of queries and keys.
    fn exponents(&self, parts: &WrittenSoftmax<'_>, found: &mut AttentionPattern) -> Result<&Node, Reason> {
        self.read_by(parts.exponentials, 2, "its exponentials")?;
        self.reduces_last(parts.sum)?;
        found.walk.push(parts.exponentials.to_owned());
        let sums = parts.sum.outputs.first().map_or("", String::as_str);
        for name in [Some(sums), parts.inverse].into_iter().flatten() {
            self.alone(name, "the sums of its exponentials")?;
            found.walk.push(name.to_owned());
        }
        let exponents = self.producer(parts.exponentials).and_then(|(_, node)| node.input(0));
        let exponents = exponents.ok_or("its exponentials have no exponents")?;
        self.scores(exponents, found, 0)
    }

    /// Checks that a reduction keeps all axes and reduces the last one alone.
    fn reduces_last(&self, node: &Node) -> Result<(), Reason> {
        let rank = node.input(0).and_then(|name| self.symbols.shape(name)).map_or(0, <[Size]>::len);
        let axes = match (node.ints("axes"), node.input(1)) {
            (Some(axes), _) => Some(axes.to_vec()),
            (None, Some(name)) => {
                self.symbols.sizes(name).and_then(|all| all.iter().map(Size::known).collect())
            }
            (None, None) => None,
        };
        let last = match axes.as_deref() {
            Some(&[axis]) => place(axis, rank).is_some_and(|at| at + 1 == rank),
            _ => false,
        };
        if last && node.int("keepdims").unwrap_or(1) != 0 {
            return Ok(());
        }
        Err(format!("its softmax has a {} over other axes than the last", node.op))
    }

    /// Follows the scores back to the product of queries and keys, and records masks and factors in `found`.
    fn scores(&self, name: &str, found: &mut AttentionPattern, depth: usize) -> Result<&Node, Reason> {
        if let Err(reason) = self.alone(name, "its scores") {
            if self.graph.is_output(name) {
                return Err(reason);
            }
            found.shared.push((name.to_owned(), reason + ", some of which stay"));
        }
        found.passes(name);
        let none = || "its scores come from no product of queries and keys".to_string();
        let Some((_, node)) = self.producer(name).filter(|_| depth < LONGEST) else { return Err(none()) };
        if !node.domain.is_empty() {
            return Err(format!("its scores come from {}.{}", node.domain, node.op));
        }
        let (a, b) = (node.input(0), node.input(1));
        match (node.op.as_str(), a, b) {
            ("MatMul", ..) => Ok(node),
            ("Cast", Some(a), _) => {
                let floats = |name: &str| self.symbols.kind(name).is_some_and(|kind| kind.is_float());
                if !floats(a) || !floats(name) {
                    return Err("its scores are cast from or to integers".into());
                }
                self.scores(a, found, depth + 1)
            }
            ("Identity", Some(a), _) => self.scores(a, found, depth + 1),
            ("Transpose", Some(a), _) if swaps_last(node).is_some() => {
                found.turned.swap(0, 1);
                self.scores(a, found, depth + 1)
            }
            ("Reshape", Some(a), _) if self.same_last(name, a, 2) => self.scores(a, found, depth + 1),
            ("Reshape", Some(a), _) if self.is_product(a) => {
                Err("its scores are reshaped to other axes than queries and keys".into())
            }
            ("Max", Some(a), Some(b))
                if node.inputs.len() == 2
                    && found.factors.is_empty()
                    && self.scalar(b).is_some_and(|x| x * found.scale <= -1e30) =>
            {
                self.scores(a, found, depth + 1)
            }
            ("Mul" | "Div", Some(a), Some(b)) => {
                if let Some((inner, factor)) = self.scaled(node) {
                    found.scale *= factor;
                    return self.scores(inner, found, depth + 1);
                }
                let mut single = [a, b].map(|name| self.is_single(name));
                if single == [false; 2] {
                    single = [a, b].map(|name| self.is_of_heads(name));
                }
                let (inner, factor) = match (single, node.op.as_str()) {
                    ([false, true], _) => (a, b),
                    ([true, false], "Mul") => (b, a),
                    _ if !self.is_product(name) => return Err(none()),
                    _ => {
                        let other = if self.known(a) { a } else { b };
                        return Err(format!(
                            "its scores are multiplied by '{other}', which is not one number"
                        ));
                    }
                };
                if let Some(x) = self.scalar(factor) {
                    return Err(format!("its scores are multiplied by {x}"));
                }
                found.factors.push((factor.to_owned(), node.op == "Div"));
                self.scores(inner, found, depth + 1)
            }
            ("Tanh", Some(a), _) if found.softcap.is_none() => {
                if !found.factors.is_empty() {
                    return Err("its soft cap is computed".into());
                }
                let cap = found.scale;
                found.softcap = Some(cap);
                found.scale = 1.0;
                let product = self.scores(a, found, depth + 1)?;
                // The scores are `cap · tanh(s)`. The operator divides by the cap inside tanh, so the scale contains it.
                found.scale *= cap;
                Ok(product)
            }
            ("Add", Some(a), Some(b)) => {
                let mut other = found.clone();
                let first = self.term(name, b, Action::Add, a, found, depth);
                if first.is_ok() {
                    return first;
                }
                let second = self.term(name, a, Action::Add, b, &mut other, depth);
                if second.is_ok() {
                    *found = other;
                    return second;
                }
                // The error is about the side that contains the product.
                if !self.is_product(a) && self.is_product(b) { second } else { first }
            }
            ("Sub", Some(a), Some(b)) if self.lessened(node) == Some(a) && self.is_of_rows(b, found) => {
                if found.softcap.is_some() {
                    return Err("its largest score is subtracted within the soft cap".into());
                }
                found.passes(b);
                self.scores(a, found, depth + 1)
            }
            ("Sub", Some(a), Some(b)) => self.term(name, b, Action::Subtract, a, found, depth),
            ("Where", Some(c), Some(a)) => {
                let b = node.input(2).unwrap_or_default();
                let (inner, other, keeps) = match (self.scalar(a), self.scalar(b)) {
                    (None, Some(x)) => (a, x, true),
                    (Some(x), None) => (b, x, false),
                    _ => return Err("a Where among its scores puts no constant in their place".into()),
                };
                let fill = other * found.scale;
                if fill > LOWEST || fill.is_nan() {
                    return Err(format!(
                        "a Where among its scores puts {fill} in their place; a mask puts {LOWEST} or less"
                    ));
                }
                self.term(name, c, Action::Choose { keeps, fill }, inner, found, depth)
            }
            ("Clip", ..) if self.is_product(name) => {
                let inner = self
                    .unclipped(node)
                    .map_err(|why| format!("its scores go through Clip ('{}'): {why}", node.name))?;
                self.scores(inner, found, depth + 1)
            }
            (op, ..) if self.is_product(name) => Err(format!(
                "its scores go through {op} ('{}'), which the operator does not compute",
                node.name
            )),
            _ => Err(none()),
        }
    }

    /// Records the mask `name` and continues the search at `inner`, the scores to which the mask is applied.
    fn term(
        &self,
        scores: &str,
        name: &str,
        action: Action,
        inner: &str,
        found: &mut AttentionPattern,
        depth: usize,
    ) -> Result<&Node, Reason> {
        if !matches!(action, Action::Choose { .. }) && found.scale != 1.0 || !found.factors.is_empty() {
            return Err("its mask is scaled after it is applied".into());
        }
        if found.softcap.is_some() {
            return Err("its mask is added within the soft cap".into());
        }
        if found.turned[0] {
            return Err("its mask is added before its scores are transposed".into());
        }
        let reshaped = self.shaped_as(name, inner).map(str::to_owned);
        found.terms.push(Term { name: name.to_owned(), reshaped, action, scores: Some(scores.to_owned()) });
        self.scores(inner, found, depth + 1)
    }

    /// Returns the tensor that a Reshape turns into `mask`, if only this Reshape reads the Shape of `scores`.
    fn shaped_as(&self, mask: &str, scores: &str) -> Option<&str> {
        let (_, node) = self.producer(mask).filter(|(_, node)| node.is("Reshape"))?;
        let target = node.input(1)?;
        let (_, shape) = self.producer(target).filter(|(_, node)| node.is("Shape"))?;
        let whole =
            shape.input(0) == Some(scores) && self.alone(mask, "").is_ok() && self.alone(target, "").is_ok();
        node.input(0).filter(|_| whole)
    }

    /// Follows the weights forward to the product with values, and then follows the output of this product through
    /// layout nodes.
    fn weights(&self, name: &str, found: &mut AttentionPattern) -> Result<(), Reason> {
        let mut name = name;
        for _ in 0..LONGEST {
            found.walk.push(name.to_owned());
            if self.graph.is_output(name) {
                return Err("its weights are an output of the model".into());
            }
            let readers = self.graph.readers.get(name).map_or(&[][..], Vec::as_slice);
            let nodes: Vec<&Node> = readers.iter().map(|&n| &self.graph.nodes[n]).collect();
            match nodes[..] {
                [node] if node.is("MatMul") && node.input(0) == Some(name) => {
                    let Some(values) = node.input(1) else { break };
                    found.operands[2] = self.trace(values);
                    let Some(out) = node.outputs.first() else { break };
                    found.walk.push(out.clone());
                    found.outputs.push((out.clone(), readers[0]));
                    self.layouts(found);
                    return Ok(());
                }
                [node] if node.is("MatMul") && node.input(1) == Some(name) => {
                    return Err("its weights are the right factor of their product with values; the operator has them on the left".into());
                }
                [node] if node.is("Transpose") => {
                    return Err("its weights are transposed before their product with values; the operator has them as they are".into());
                }
                [node] if ["Cast", "Identity", "Dropout", "Reshape"].iter().any(|op| node.is(op)) => {
                    let (Some(out), Some(a)) = (node.outputs.first(), node.input(0)) else { break };
                    if node.op == "Reshape" && !self.same_last(out, a, 2)
                        || node.outputs.len() > 1
                        || a != name
                    {
                        break;
                    }
                    name = out;
                }
                // Rows that attend no key are NaN, and a Where replaces them with zeros.
                [a, b] => {
                    let (guard, choice) = if a.is("IsNaN") { (a, b) } else { (b, a) };
                    let fits = guard.is("IsNaN")
                        && choice.is("Where")
                        && choice.input(0) == guard.outputs.first().map(String::as_str)
                        && choice.input(1).is_some_and(|x| self.scalar(x) == Some(0.0))
                        && choice.input(2) == Some(name);
                    let Some(out) = choice.outputs.first().filter(|_| fits) else { break };
                    let test = guard.outputs.first().map_or("", String::as_str);
                    self.alone(test, "the places of NaN among its weights")?;
                    found.walk.push(test.to_owned());
                    name = out;
                }
                _ => break,
            }
        }
        Err("its weights do not go into one product with values, and nowhere else".into())
    }

    /// Follows the output of the product with values forward through nodes that only move its elements.
    pub fn layouts(&self, found: &mut AttentionPattern) {
        while let Some((last, _)) = found.outputs.last().filter(|_| found.outputs.len() < LONGEST) {
            if self.alone(last, "").is_err() {
                return;
            }
            let Some(&[n]) = self.graph.readers.get(last).map(Vec::as_slice) else { return };
            let node = &self.graph.nodes[n];
            let whole = ["Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity"];
            let (Some(out), true) = (node.outputs.first(), node.input(0) == Some(last)) else { return };
            if !whole.contains(&node.op.as_str()) || !self.moves(node) {
                return;
            }
            let next = (out.clone(), n);
            found.outputs.push(next);
        }
    }
}
