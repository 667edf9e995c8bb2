//! `RotaryEmbedding` in older operators.
//!
//! The operator rotates pairs of elements of each head: `a` and `b` become `a cos − b sin` and `a sin + b cos`. The two
//! elements of a pair are neighbours if the operator is interleaved; otherwise they are in the two halves of the head.
//! Its attribute `rotary_embedding_dim` limits the rotation to the first elements of a head.

use super::facts::{Facts, input, output};
use super::older::{END, OlderNodes};
use crate::find::Reason;
use crate::node::{Attribute, Node};

/// Lowers `RotaryEmbedding` of ONNX.
///
/// # Errors
/// Returns the reason why the node is not lowered.
pub fn rotary(node: &Node, facts: &Facts<'_>, o: &mut OlderNodes<'_>) -> Result<(), Reason> {
    let name = input(node, 0)?;
    let (kind, rank) = (facts.float(name)?, facts.rank(name)?);
    let rotated = node.int("rotary_embedding_dim").unwrap_or(0);
    let heads = node.int("num_heads").unwrap_or(0);
    // Size of a head.
    let width = facts.size(name, -1).map(|n| if rank == 3 && heads > 0 { n / heads } else { n });
    let x = o.wide(facts, node, 0)?;
    // Position of the axis of heads after the batch.
    let (x, axis) = match rank {
        4 => (x, 1),
        3 if heads > 0 => (o.reshaped(&x, &[0, 0, heads, -1]), 2),
        3 => return Err("it does not give the number of its heads".to_owned()),
        _ => return Err(format!("its input has {rank} axes; 3 or 4 are lowered")),
    };
    let halves = match rotated {
        0 => facts.size(input(node, 1)?, -1),
        n => Some(n / 2),
    };
    let half = halves.ok_or("the number of rotated elements does not follow from the model")?;
    let mut tables = [String::new(), String::new()];
    for (i, table) in (1..).zip(&mut tables) {
        let mut name = o.wide(facts, node, i)?;
        if let Some(positions) = node.input(3) {
            name = o.node("Gather", &[&name, positions]);
            o.builder.set("axis", Attribute::Int(0));
        }
        if rotated != 0 && facts.size(input(node, i)?, -1) != Some(half) {
            name = o.strided(&name, 0, half, 1);
        }
        *table = o.unsqueezed(&name, axis);
    }
    let [cos, sin] = tables;
    let interleaved = node.int("interleaved").unwrap_or(0) != 0;
    let (a, b) = if interleaved {
        (o.strided(&x, 0, 2 * half, 2), o.strided(&x, 1, 2 * half, 2))
    } else {
        (o.strided(&x, 0, half, 1), o.strided(&x, half, 2 * half, 1))
    };
    let mut product = |a: &str, b: &str| o.node("Mul", &[a, b]);
    let [cos_a, sin_b] = [product(&a, &cos), product(&b, &sin)];
    let [sin_a, cos_b] = [product(&a, &sin), product(&b, &cos)];
    let mut first = o.node("Sub", &[&cos_a, &sin_b]);
    let mut second = o.node("Add", &[&sin_a, &cos_b]);
    if interleaved {
        (first, second) = (o.unsqueezed(&first, -1), o.unsqueezed(&second, -1));
    }
    let mut parts = vec![first, second];
    if interleaved {
        let pairs = o.node("Concat", &[&parts[0], &parts[1]]);
        o.builder.set("axis", Attribute::Int(-1));
        parts = vec![o.reshaped(&pairs, &[0, 0, 0, 2 * half])];
    }
    if rotated != 0 && width != Some(rotated) {
        parts.push(o.strided(&x, 2 * half, END, 1));
    }
    let mut y = parts[0].clone();
    if parts.len() > 1 {
        y = o.node("Concat", &parts.iter().map(String::as_str).collect::<Vec<_>>());
        o.builder.set("axis", Attribute::Int(-1));
    }
    if rank == 3 {
        y = o.reshaped(&y, &[0, 0, -1]);
    }
    o.finish(&y, kind, output(node)?);
    Ok(())
}
