//! Activations in older operators: `Gelu`, `Swish`, `HardSwish` and `Mish`.

use super::facts::{Facts, input, output};
use super::older::{OlderNodes, working};
use crate::find::Reason;
use crate::node::{Attribute, Node};
use std::f64::consts::{FRAC_2_PI, SQRT_2};

/// Lowers an activation:
///
/// ```text
/// Gelu        x / 2 · (1 + erf(x / √2)),  or  x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))
/// Swish       x · sigmoid(alpha · x)
/// HardSwish   x · max(0, min(1, x / 6 + 1/2))
/// Mish        x · tanh(ln(1 + eˣ))
/// ```
///
/// # Errors
/// Returns the reason why the node is not lowered.
pub fn activation(node: &Node, facts: &Facts<'_>, o: &mut OlderNodes<'_>) -> Result<(), Reason> {
    let kind = facts.float(input(node, 0)?)?;
    let work = working(kind);
    let x = o.wide(facts, node, 0)?;
    let y = match node.op.as_str() {
        "Gelu" => {
            let [one, half] = [1.0, 0.5].map(|n| o.number(work, n));
            let part = match node.text("approximate").unwrap_or("none") {
                "none" => {
                    let root = o.number(work, SQRT_2);
                    let part = o.node("Div", &[&x, &root]);
                    o.node("Erf", &[&part])
                }
                "tanh" => {
                    let [root, factor] = [FRAC_2_PI.sqrt(), 0.044_715].map(|n| o.number(work, n));
                    let square = o.node("Mul", &[&x, &x]);
                    let cube = o.node("Mul", &[&square, &x]);
                    let term = o.node("Mul", &[&cube, &factor]);
                    let sum = o.node("Add", &[&x, &term]);
                    let part = o.node("Mul", &[&sum, &root]);
                    o.node("Tanh", &[&part])
                }
                other => return Err(format!("its approximation is '{other}'")),
            };
            let sum = o.node("Add", &[&part, &one]);
            let product = o.node("Mul", &[&x, &sum]);
            o.node("Mul", &[&product, &half])
        }
        "Swish" => {
            let alpha = node.float("alpha").unwrap_or(1.0);
            let part = if alpha == 1.0 {
                x.clone()
            } else {
                let alpha = o.number(work, f64::from(alpha));
                o.node("Mul", &[&x, &alpha])
            };
            let part = o.node("Sigmoid", &[&part]);
            o.node("Mul", &[&x, &part])
        }
        "HardSwish" => {
            let part = o.node("HardSigmoid", &[&x]);
            o.builder.set("alpha", Attribute::Float(1.0 / 6.0));
            o.builder.set("beta", Attribute::Float(0.5));
            o.node("Mul", &[&x, &part])
        }
        "Mish" => {
            let part = o.node("Softplus", &[&x]);
            let part = o.node("Tanh", &[&part]);
            o.node("Mul", &[&x, &part])
        }
        other => return Err(format!("{other} is not an activation")),
    };
    o.finish(&y, kind, output(node)?);
    Ok(())
}
