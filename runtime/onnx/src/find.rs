//! Attention in a graph: from each Softmax back to the product of queries and keys, and on to the product with values.
//!
//! ```text
//! Softmax <- Add | Sub | Mul | Div | Where | Cast | Reshape | Tanh | Max | Identity <- MatMul(queries, keys)
//! Softmax -> Cast | Dropout | Identity | Reshape | IsNaN and Where -> MatMul(weights, values) -> layout
//! ```
//!
//! The walk continues from both products through nodes that only move elements or multiply by a constant. It records
//! and proves nothing; `prove` does the proof.

use super::infer::World;
use super::model::Graph;
use super::node::Node;
use super::size::Size;
use super::symbols::Symbols;

/// The longest walk through a chain of nodes.
const LONGEST: usize = 40;

/// Largest fill value that masks a score as well as `−∞` does.
const LOWEST: f64 = -1e4;

/// A tensor on the path back from an operand of a product; layout changes and the factor turn it into the operand.
#[derive(Clone, Debug)]
pub struct Link {
    /// Name of the tensor.
    pub name: String,
    /// Factor between its elements and the operand's.
    pub factor: f64,
    /// The node that reads it on the path; `None` for the operand itself.
    pub reader: Option<usize>,
}

/// A tensor that is added to the scores, or replaces some of them.
#[derive(Clone, Debug)]
pub struct Term {
    /// The tensor: a mask to add, or a condition.
    pub name: String,
    /// Action on the scores.
    pub action: Action,
    /// Name of the scores that the term applies to; their shape determines the broadcast. `None` if they have no name;
    /// their axes are then those of the attention.
    pub scores: Option<String>,
}

/// Action of a mask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Adds the mask to the scores.
    Add,
    /// Subtracts the mask from the scores.
    Subtract,
    /// Scores are kept where the condition equals `keeps`; the others become `fill`.
    Choose {
        /// `true` if scores are kept where the condition is true.
        keeps: bool,
        /// Value of the other scores.
        fill: f64,
    },
}

/// Attention as written in a graph.
#[derive(Clone, Debug)]
pub struct Found {
    /// Paths back from queries, keys and values.
    pub operands: [Vec<Link>; 3],
    /// `true` if the keys are transposed, as in a product.
    pub turned: bool,
    /// Factor of the scores, excluding the operands' factors.
    pub scale: f64,
    /// One-element tensors that scale the scores before all masks, with a flag for division: numbers that depend on
    /// free axes or on data.
    pub factors: Vec<(String, bool)>,
    /// The soft cap.
    pub softcap: Option<f64>,
    /// `true` if the node has the attribute for causal attention.
    pub causal: bool,
    /// Masks, from the softmax inwards.
    pub terms: Vec<Term>,
    /// Tensors from the product of queries and keys through the softmax to the product with values, whose second to
    /// last axis is that of the queries.
    pub walk: Vec<String>,
    /// The output of the product with values and its later layouts, each with the node that produces it.
    pub outputs: Vec<(String, usize)>,
}

/// Reason why a node is left unchanged.
pub type Reason = String;

/// A graph with its worlds.
pub struct Site<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// Version of ONNX's operators.
    pub opset: i64,
    /// Facts that hold for all sizes of its free axes.
    pub symbols: &'a Symbols,
    /// Facts for concrete sizes of the free axes.
    pub worlds: &'a [World<'a>],
}

impl Site<'_> {
    fn producer(&self, name: &str) -> Option<(usize, &Node)> {
        let n = *self.graph.producer.get(name)?;
        Some((n, &self.graph.nodes[n]))
    }

    /// Returns the only element of a tensor that depends on constants alone.
    #[must_use]
    pub fn scalar(&self, name: &str) -> Option<f64> {
        self.worlds.first()?.scalar(name).filter(|_| self.symbols.is_fixed(name))
    }

    /// Returns `true` if a tensor's elements follow from constants and shapes.
    fn known(&self, name: &str) -> bool {
        self.worlds.iter().all(|world| world.array(name).is_some())
    }

    /// Returns `true` if a tensor has one element for all sizes of the free axes.
    fn is_single(&self, name: &str) -> bool {
        self.symbols.shape(name).is_some_and(|shape| shape.iter().all(|size| size.is(1)))
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
    fn moves(&self, node: &Node) -> bool {
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
        ];
        // The destination of elements follows from the node's shapes, or depends on constants alone.
        let shaped = ["Reshape", "Expand", "Slice"].contains(&node.op.as_str());
        let settled = |name: &String| {
            self.symbols.is_fixed(name) || shaped && self.symbols.sizes(name).is_some() && self.known(name)
        };
        node.domain.is_empty()
            && layout.contains(&node.op.as_str())
            && node.inputs.iter().skip(1).all(|name| name.is_empty() || settled(name))
            && node.outputs.iter().all(|name| self.symbols.shape(name).is_some())
            && node.input(0).is_some_and(|name| !self.known(name))
    }

    /// Traces the path back from an operand.
    #[must_use]
    pub fn trace(&self, name: &str) -> Vec<Link> {
        let mut links = vec![Link { name: name.to_owned(), factor: 1.0, reader: None }];
        while let Some(last) = links.last().filter(|_| links.len() < LONGEST) {
            let Some((n, node)) = self.producer(&last.name) else { break };
            let next =
                if self.moves(node) { node.input(0).map(|name| (name, 1.0)) } else { self.scaled(node) };
            let Some((name, factor)) = next else { break };
            let factor = last.factor * factor;
            links.push(Link { name: name.to_owned(), factor, reader: Some(n) });
        }
        links
    }

    /// Returns the tensor that `node` multiplies by a constant, and the constant.
    fn scaled<'n>(&self, node: &'n Node) -> Option<(&'n str, f64)> {
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

    /// Checks that `name` is read once and is not an output.
    fn alone(&self, name: &str, what: &str) -> Result<(), Reason> {
        if self.graph.is_output(name) {
            return Err(format!("{what} are an output of the model"));
        }
        match self.graph.readers.get(name).map_or(0, Vec::len) {
            1 => Ok(()),
            n => Err(format!("{what} are read by {n} nodes")),
        }
    }

    /// Finds the attention around a softmax.
    ///
    /// # Errors
    /// Returns the reason why the node is not attention, or why it is not replaced.
    pub fn around(&self, softmax: &Node) -> Result<Found, Reason> {
        let (Some(input), Some(output)) = (softmax.input(0), softmax.outputs.first()) else {
            return Err("a Softmax without input or output".into());
        };
        let Some(rank) = self.symbols.shape(input).map(<[Size]>::len) else {
            return Err(self.unknown_shape(input));
        };
        let axis = softmax.int("axis").unwrap_or(if self.opset < 13 { 1 } else { -1 });
        if axis != -1 && usize::try_from(axis).ok() != rank.checked_sub(1) {
            return Err(format!("its axis is {axis}, not the last of {rank}"));
        }
        let mut found = Found {
            operands: [vec![], vec![], vec![]],
            turned: true,
            scale: 1.0,
            factors: vec![],
            softcap: None,
            causal: false,
            terms: vec![],
            walk: vec![],
            outputs: vec![],
        };
        let product = self.scores(input, &mut found, 0)?;
        self.weights(output, &mut found)?;
        let (Some(q), Some(k)) = (product.input(0), product.input(1)) else {
            return Err("a product without its factors".into());
        };
        found.operands[0] = self.trace(q);
        found.operands[1] = self.trace(k);
        Ok(found)
    }

    /// Explains why the shape of `name` is unknown: names the first node on the path back without a derived shape.
    fn unknown_shape(&self, name: &str) -> Reason {
        let mut name = name;
        for _ in 0..LONGEST {
            let Some((_, node)) = self.producer(name) else { break };
            let unknown = |name: &&String| !name.is_empty() && self.symbols.shape(name).is_none();
            match node.inputs.iter().find(unknown) {
                Some(input) => name = input,
                None => {
                    let full =
                        if node.domain.is_empty() { String::new() } else { format!("{}.", node.domain) };
                    return format!(
                        "the shape of its scores does not follow from the model: that of '{name}', made by {full}{}, is not known",
                        node.op
                    );
                }
            }
        }
        format!("the shape of its scores does not follow from the model: that of '{name}' is not declared")
    }

    /// Returns `true` if `name` comes from a product of two non-constant tensors, element by element or by layout.
    #[must_use]
    pub fn is_product(&self, name: &str) -> bool {
        let mut work = vec![name];
        for _ in 0..LONGEST {
            let Some((_, node)) = work.pop().and_then(|name| self.producer(name)) else { continue };
            if ["MatMul", "Einsum"].iter().any(|op| node.is(op)) {
                if node.inputs.iter().all(|name| !self.known(name)) {
                    return true;
                }
                continue;
            }
            let through = [
                "Add",
                "Sub",
                "Mul",
                "Div",
                "Where",
                "Cast",
                "Reshape",
                "Transpose",
                "Max",
                "Min",
                "Clip",
                "Tanh",
                "Sigmoid",
                "Squeeze",
                "Unsqueeze",
                "Identity",
                "Concat",
                "Slice",
                "Pad",
                "Expand",
                "Neg",
                "Abs",
                "Exp",
                "Relu",
            ];
            if !through.iter().any(|op| node.is(op)) {
                continue;
            }
            work.extend(node.inputs.iter().map(String::as_str).filter(|name| !name.is_empty()));
        }
        false
    }

    /// Walks from scores inwards to the product of queries and keys.
    fn scores(&self, name: &str, found: &mut Found, depth: usize) -> Result<&Node, Reason> {
        self.alone(name, "its scores")?;
        found.walk.push(name.to_owned());
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
                let single = [a, b].map(|name| self.is_single(name));
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
                // cap · tanh(s): the operator divides its scores by the cap inside tanh.
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
                // The side with the product is the one to explain.
                if !self.is_product(a) && self.is_product(b) { second } else { first }
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
            (op, ..) if self.is_product(name) => Err(format!(
                "its scores go through {op} ('{}'), which the operator does not compute",
                node.name
            )),
            _ => Err(none()),
        }
    }

    /// Records the mask `name` and continues with the scores that it applies to.
    fn term(
        &self,
        scores: &str,
        name: &str,
        action: Action,
        inner: &str,
        found: &mut Found,
        depth: usize,
    ) -> Result<&Node, Reason> {
        if !matches!(action, Action::Choose { .. }) && found.scale != 1.0 || !found.factors.is_empty() {
            return Err("its mask is scaled after it is applied".into());
        }
        if found.softcap.is_some() {
            return Err("its mask is added within the soft cap".into());
        }
        found.terms.push(Term { name: name.to_owned(), action, scores: Some(scores.to_owned()) });
        self.scores(inner, found, depth + 1)
    }

    /// Walks from the weights to the product with values and on through layout nodes.
    fn weights(&self, name: &str, found: &mut Found) -> Result<(), Reason> {
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
                // Rows of NaN, which attend nothing, become constant.
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

    /// Walks from the product with values on through nodes that only move its elements.
    pub fn layouts(&self, found: &mut Found) {
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

/// Returns `true` if `node` is the quotient of a softmax that is written out.
#[must_use]
pub fn written_out(graph: &Graph, node: &Node) -> bool {
    let made = |name: &str| graph.producer.get(name).map(|&n| &graph.nodes[n]);
    let (Some(a), Some(b)) = (node.input(0), node.input(1)) else { return false };
    let exponentials = |name: &str| made(name).is_some_and(|node| node.is("Exp"));
    let sums = |name: &str, of: &str| {
        made(name).is_some_and(|node| node.is("ReduceSum") && node.input(0) == Some(of))
    };
    if node.is("Div") {
        return exponentials(a) && sums(b, a);
    }
    let inverse = |name: &str, of: &str| {
        made(name).is_some_and(|node| node.is("Reciprocal") && node.input(0).is_some_and(|sum| sums(sum, of)))
    };
    node.is("Mul") && (exponentials(a) && inverse(b, a) || exponentials(b) && inverse(a, b))
}
