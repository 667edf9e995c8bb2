//! Nodes that keep a state from one call to the next: `LinearAttention` and `CausalConvWithState` of ONNX opset 27, and the
//! operators of ONNX Runtime with these names.

use super::node::{MICROSOFT, Node};
use super::size::Size;
use super::value::{OutputTypes, Value};

/// Description of a linear attention, for the user.
pub const LINEAR_WHAT: &str = "linear attention";
/// Description of a convolution with a state, for the user.
pub const CONV_WHAT: &str = "convolution";

/// A node that keeps a state.
pub enum StatefulNode<'a> {
    /// Linear attention. Its inputs are queries, keys, values, past states, gates and rates.
    Linear(&'a Node),
    /// A causal convolution. Its inputs are the signal, the filter, the bias and past inputs.
    Conv(&'a Node),
}

/// Returns a number of heads; `None` if the node does not state it.
#[must_use]
pub fn heads(node: &Node, name: &str) -> Option<i64> {
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
}
