//! Replacement of nodes that keep a state. Each is replaced by one operator and casts to f32, because the operators compute
//! with states and filters of f32.

use super::array::Kind;
use super::change::{Builder, CONV_OPERATOR, Change, DOMAIN, LINEAR_OPERATOR, Role};
use super::find::{Reason, Site};
use super::node::{Attribute, Node};
use super::size::Size;
use super::stateful::{StatefulNode, heads};
use super::unrolled;

/// Rules of linear attention: the name, whether it has gates, and whether it is a delta rule.
const RULES: [(&str, bool, bool); 4] =
    [("linear", false, false), ("gated", true, false), ("delta", false, true), ("gated_delta", true, true)];

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

/// Checks that the node uses no unsupported feature.
fn check(site: &Site<'_>, found: &StatefulNode<'_>) -> Result<(), Reason> {
    let node = found.node();
    if node.outputs.first().is_none_or(String::is_empty) {
        return Err("it has no output".into());
    }
    let (known, inputs): (&[&str], usize) = match found {
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
    let needed = if matches!(found, StatefulNode::Linear(_)) { 3 } else { 2 };
    if (0..needed).any(|i| node.input(i).is_none()) {
        return Err("it lacks an input that ONNX requires".into());
    }
    for i in 0..inputs {
        let rank = |name: &str| site.symbols.shape(name).map(<[Size]>::len);
        let whole = match (found, i) {
            (StatefulNode::Linear(_), 3) => 4,
            (StatefulNode::Conv(_), 2) => 1,
            _ => 3,
        };
        if let Some(axes) = node.input(i).and_then(rank)
            && axes != whole
        {
            return Err(format!("its input {i} has {axes} axes; allowed: {whole}"));
        }
    }
    let kinds = |at: &[usize]| -> Vec<Option<Kind>> {
        at.iter().filter_map(|&i| node.input(i)).map(|name| site.symbols.kind(name)).collect()
    };
    let [main, state] = match found {
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
        let more = state.cloned().into_iter().collect();
        Ok(Change { more, ..self.b.change((output, n), words) })
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
    check(site, found)?;
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
    new.op = LINEAR_OPERATOR.into();
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
    new.op = CONV_OPERATOR.into();
    new.inputs = vec![built.input(0), built.wide(1), built.wide(2), built.wide(3)];
    if silu {
        new.attributes.insert("silu".to_owned(), Attribute::Int(1));
    }
    let shape = node.input(1).and_then(|name| built.site.symbols.shape(name));
    let taps = shape.and_then(<[Size]>::last).map_or_else(String::new, |taps| format!(" of {taps} weights"));
    Ok(format!("causal filter{taps}{}", if silu { ", silu" } else { "" }))
}
