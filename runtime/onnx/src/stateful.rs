//! Nodes that keep a state from one call to the next: `LinearAttention` and `CausalConvWithState` of ONNX opset 27, and the
//! operators of ONNX Runtime with these names. Each is replaced by one operator and casts to f32, because the operators
//! compute with states and filters of f32.

use super::array::Kind;
use super::change::{Builder, Change, DOMAIN, Role};
use super::find::{Reason, Site};
use super::node::{Attribute, MICROSOFT, Node};
use super::size::Size;
use super::unrolled;
use super::value::{OutputTypes, Value};

/// Name of the operator that replaces linear attention.
pub const LINEAR: &str = "ElsaLinearAttention";
/// Name of the operator that replaces a convolution with a state.
pub const CONV: &str = "ElsaConv";

/// Description of a linear attention, for the user.
pub const LINEAR_WHAT: &str = "linear attention";
/// Description of a convolution with a state, for the user.
pub const CONV_WHAT: &str = "convolution";

/// Rules of linear attention: the name, whether it has gates, and whether it is a delta rule.
const RULES: [(&str, bool, bool); 4] =
    [("linear", false, false), ("gated", true, false), ("delta", false, true), ("gated_delta", true, true)];

/// A node that keeps a state.
pub enum StatefulNode<'a> {
    /// Linear attention. Its inputs are queries, keys, values, past states, gates and rates.
    Linear(&'a Node),
    /// A causal convolution. Its inputs are the signal, the filter, the bias and past inputs.
    Conv(&'a Node),
}

/// Returns a text attribute; `default` if the node does not have it.
fn text<'a>(node: &'a Node, name: &str, default: &'a str) -> Result<&'a str, Reason> {
    match node.attributes.get(name) {
        None => Ok(default),
        Some(Attribute::Text(bytes)) => {
            std::str::from_utf8(bytes).map_err(|_| format!("its {name} is no text"))
        }
        Some(_) => Err(format!("its {name} is no text")),
    }
}

/// Returns a number of heads.
fn heads(node: &Node, name: &str) -> Option<i64> {
    node.int(name).filter(|&n| n > 0)
}

impl<'a> StatefulNode<'a> {
    /// Reads a node; `None` for a node of another operator.
    #[must_use]
    pub fn of(node: &'a Node) -> Option<StatefulNode<'a>> {
        let known = node.domain.is_empty() || node.domain == MICROSOFT;
        match node.op.as_str() {
            "LinearAttention" if known => Some(StatefulNode::Linear(node)),
            "CausalConvWithState" if known => Some(StatefulNode::Conv(node)),
            _ => None,
        }
    }

    /// Describes the node's kind, for the user.
    #[must_use]
    pub fn what(&self) -> &'static str {
        match self {
            StatefulNode::Linear(_) => LINEAR_WHAT,
            StatefulNode::Conv(_) => CONV_WHAT,
        }
    }

    /// Returns the node.
    #[must_use]
    pub fn node(&self) -> &'a Node {
        match self {
            StatefulNode::Linear(node) | StatefulNode::Conv(node) => node,
        }
    }

    /// Derives the types and shapes of the outputs: the answer, and the last state.
    #[must_use]
    pub fn outputs(&self, inputs: &[Option<&Value>]) -> Option<OutputTypes> {
        let get = |i: usize| inputs.get(i).copied().flatten();
        let (node, first) = (self.node(), get(0)?);
        let past = if node.input(3).is_some() { get(3)?.kind } else { first.kind };
        let (shape, state) = match self {
            StatefulNode::Linear(_) => {
                // A node with this attribute keeps the states of several tokens.
                node.int("state_window").is_none_or(|n| n == 0).then_some(())?;
                let [q, v] = [0, 2].map(|i| get(i).map(|value| value.shape.as_slice()));
                let ([batch, tokens, width], [_, _, value_width]) = (q?, v?) else { return None };
                let [own, states] = ["q_num_heads", "kv_num_heads"].map(|name| heads(node, name));
                let (own, states) = (own?, states?);
                let (dim, value_dim) =
                    (width.over(&Size::from(own))?, value_width.over(&Size::from(states))?);
                let made = value_dim.times(&Size::from(own.max(states)))?;
                let state = vec![batch.clone(), Size::from(states), dim, value_dim];
                (vec![batch.clone(), tokens.clone(), made], state)
            }
            StatefulNode::Conv(_) => {
                let ([batch, channels, _], [_, _, taps]) = (&first.shape[..], &get(1)?.shape[..]) else {
                    return None;
                };
                let history = taps.minus(&Size::from(1))?;
                (first.shape.clone(), vec![batch.clone(), channels.clone(), history])
            }
        };
        Some(vec![(first.kind, shape), (past, state)])
    }

    /// Checks that the node uses no unsupported feature.
    fn check(&self, site: &Site<'_>) -> Result<(), Reason> {
        let node = self.node();
        if node.outputs.first().is_none_or(String::is_empty) {
            return Err("it has no output".into());
        }
        let (known, inputs): (&[&str], usize) = match self {
            StatefulNode::Linear(_) => {
                (&["q_num_heads", "kv_num_heads", "update_rule", "scale", "chunk_size"], 6)
            }
            StatefulNode::Conv(_) => (&["activation", "ndim"], 4),
        };
        if let Some(name) = node.attributes.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(format!("its attribute {name} is not taken over"));
        }
        if (inputs..node.inputs.len()).any(|i| node.input(i).is_some()) || node.outputs.len() > 2 {
            return Err("it has more inputs or outputs than ONNX defines".into());
        }
        let needed = if matches!(self, StatefulNode::Linear(_)) { 3 } else { 2 };
        if (0..needed).any(|i| node.input(i).is_none()) {
            return Err("it lacks an input that ONNX requires".into());
        }
        for i in 0..inputs {
            let rank = |name: &str| site.symbols.shape(name).map(<[Size]>::len);
            let whole = match (self, i) {
                (StatefulNode::Linear(_), 3) => 4,
                (StatefulNode::Conv(_), 2) => 1,
                _ => 3,
            };
            if let Some(found) = node.input(i).and_then(rank)
                && found != whole
            {
                return Err(format!("its input {i} has {found} axes; allowed: {whole}"));
            }
        }
        let kinds = |at: &[usize]| -> Vec<Option<Kind>> {
            at.iter().filter_map(|&i| node.input(i)).map(|name| site.symbols.kind(name)).collect()
        };
        let [main, state] = match self {
            StatefulNode::Linear(_) => [kinds(&[0, 1, 2, 4, 5]), kinds(&[3])],
            StatefulNode::Conv(_) => [kinds(&[0, 1, 2, 3]), vec![]],
        };
        let allowed = |kind: &Option<Kind>| [Some(Kind::F32), Some(Kind::F16)].contains(kind);
        if !main.iter().all(|kind| *kind == main[0]) || !main.iter().chain(&state).all(allowed) {
            let names: Vec<&str> =
                main.iter().chain(&state).map(|kind| kind.map_or("unknown", Kind::name)).collect();
            let names = names.join(", ");
            return Err(format!("its operands are {names}; those of one type, f32 or f16, are replaced"));
        }
        Ok(())
    }
}

/// The replacement of a node under construction.
struct Built<'a> {
    site: &'a Site<'a>,
    node: &'a Node,
    b: Builder<'a>,
}

impl Built<'_> {
    /// Returns input `i`; its name is empty if the node does not have it.
    fn input(&mut self, i: usize) -> String {
        let name = self.node.input(i).unwrap_or_default();
        if !name.is_empty() {
            self.b.read(name, Role::Operand);
        }
        name.to_owned()
    }

    /// Returns input `i` in f32; its name is empty if the node does not have it.
    fn wide(&mut self, i: usize) -> String {
        let name = self.input(i);
        if name.is_empty() || self.site.symbols.kind(&name) == Some(Kind::F32) {
            return name;
        }
        let wide = self.b.node("wide", "Cast", &[&name]);
        self.b.set("to", Attribute::Int(Kind::F32.0));
        wide
    }

    /// Adds the operator `new`, and the cast of its state to the type of the node's state.
    fn finish(mut self, mut new: Node, n: usize, words: String) -> Result<Change, Reason> {
        let node = self.node;
        let output = node.outputs.first().ok_or("it has no output")?.clone();
        new.domain = DOMAIN.into();
        new.name = self.b.prefix().to_owned();
        while new.inputs.last().is_some_and(String::is_empty) {
            new.inputs.pop();
        }
        new.outputs = vec![output.clone()];
        let state = node.outputs.get(1).filter(|name| !name.is_empty());
        // The state of a node without a past has the type of the first input.
        let first = node.input(0).unwrap_or_default();
        let kind = self.site.symbols.kind(node.input(3).unwrap_or(first));
        match state {
            Some(name) if kind == Some(Kind::F16) => {
                let wide = self.b.name("state");
                new.outputs.push(wide.clone());
                self.b.nodes.push(new);
                self.b.node("narrow", "Cast", &[&wide]);
                self.b.set("to", Attribute::Int(Kind::F16.0));
                self.b.rename_last(name);
            }
            _ => {
                new.outputs.extend(state.cloned());
                self.b.nodes.push(new);
            }
        }
        Ok(Change {
            output: (output.clone(), n),
            more: state.cloned().into_iter().collect(),
            nodes: self.b.nodes,
            constants: self.b.constants,
            reads: self.b.reads,
            walk: [output.clone()].into(),
            attention_output: output,
            keys: Size::from(0),
            by_position: false,
            words,
        })
    }
}

/// Builds and proves the replacement of node `n`, which keeps a state. The names of the new nodes begin with `prefix`.
///
/// # Errors
/// Returns the reason why the node is not replaced.
pub fn replacement(
    site: &Site<'_>,
    n: usize,
    found: &StatefulNode<'_>,
    prefix: &str,
) -> Result<Change, Reason> {
    found.check(site)?;
    let node = found.node();
    let mut built = Built { site, node, b: Builder::new(prefix) };
    let mut new = Node::default();
    let words = match found {
        StatefulNode::Linear(_) => linear(&mut built, &mut new)?,
        StatefulNode::Conv(_) => conv(&mut built, &mut new)?,
    };
    let words = if node.input(3).is_some() { words + ", past" } else { words };
    let key_heads = if let StatefulNode::Linear(_) = found { key_heads(site, node) } else { None };
    let change = built.finish(new, n, words)?;
    unrolled::prove(node, &change, key_heads)?;
    Ok(change)
}

/// Returns the number of key heads of a linear attention, if it follows from the model.
fn key_heads(site: &Site<'_>, node: &Node) -> Option<usize> {
    let [q, k] = [0, 1].map(|i| node.input(i).and_then(|name| site.symbols.shape(name)?.last()));
    let dim = q?.over(&Size::from(heads(node, "q_num_heads")?))?;
    k?.over(&dim)?.known().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0)
}

fn linear(built: &mut Built<'_>, new: &mut Node) -> Result<String, Reason> {
    let node = built.node;
    let [own, states] = ["q_num_heads", "kv_num_heads"].map(|name| heads(node, name));
    let (own, states) = own.zip(states).ok_or("it does not say its heads")?;
    if own % states != 0 && states % own != 0 {
        return Err(format!(
            "it has {own} heads of queries and {states} of values; one must divide the other"
        ));
    }
    let rule = text(node, "update_rule", "gated_delta")?;
    let &(rule, gated, delta) = RULES
        .iter()
        .find(|(name, ..)| *name == rule)
        .ok_or_else(|| format!("its update_rule is '{rule}'; allowed: linear, gated, delta, gated_delta"))?;
    for (i, used, name) in [(4, gated, "decay"), (5, delta, "beta")] {
        if node.input(i).is_some() != used {
            let has = if used { "no" } else { "an unused" };
            return Err(format!("its update_rule is {rule}, and it has {has} input {name}"));
        }
    }
    new.op = LINEAR.into();
    let [q, k, v, decay, beta] = [0, 1, 2, 4, 5].map(|i| built.input(i));
    new.inputs = vec![q, k, v, decay, beta, built.wide(3)];
    let mut set = |name: &str, value| new.attributes.insert(name.to_owned(), value);
    set("num_heads", Attribute::Int(own));
    if states != own {
        set("kv_num_heads", Attribute::Int(states));
    }
    let mut words = format!("rule {rule}, {own} heads");
    if states != own {
        words += &format!(", {states} states");
    }
    // A scale of 0 is the default of the node, as an absent scale is that of the operator.
    if let Some(scale) = node.float("scale").filter(|&scale| scale != 0.0) {
        if !scale.is_finite() {
            return Err(format!("its scale is {scale}"));
        }
        set("scale", Attribute::Float(scale));
        words += &format!(", scale {scale}");
    }
    Ok(words)
}

fn conv(built: &mut Built<'_>, new: &mut Node) -> Result<String, Reason> {
    let node = built.node;
    if node.int("ndim").is_some_and(|n| n != 1) {
        return Err("it convolves along several axes".into());
    }
    let silu = match text(node, "activation", "none")? {
        "none" | "" => false,
        "silu" | "swish" => true,
        other => return Err(format!("its activation is '{other}'; allowed: none, silu, swish")),
    };
    new.op = CONV.into();
    new.inputs = vec![built.input(0), built.wide(1), built.wide(2), built.wide(3)];
    if silu {
        new.attributes.insert("silu".to_owned(), Attribute::Int(1));
    }
    let shape = node.input(1).and_then(|name| built.site.symbols.shape(name));
    let taps = shape.and_then(<[Size]>::last).map_or_else(String::new, |taps| format!(" of {taps} weights"));
    Ok(format!("causal filter{taps}{}", if silu { ", silu" } else { "" }))
}
