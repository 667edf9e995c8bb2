//! Derives the shapes and types of a node's outputs from its inputs.
//!
//! Sizes are polynomials over the free axes of a model's inputs. They are numbers if sizes have been assigned to these
//! axes. For an operator that is not listed here, the result is unknown, and nodes that depend on this result are not
//! replaced.

use super::array::Kind;
use super::einsum;
use super::extents::{
    convolved, deconvolved, lengths, matmul, numbers, parts, quantized, reduced, reshape, reshaped_axis,
    resized, sizes, slices, windowed,
};
use super::microsoft;
use super::node::{Attribute, MICROSOFT, Node};
use super::single;
use super::size::Size;
use super::stateful::StatefulNode;
use super::value::{Data, OutputTypes, Value, broadcast, place, sized};

/// Returns two sizes that must be equal for `node` to be valid, although their expressions differ; `None` if there is
/// no such pair.
#[must_use]
pub fn tied(node: &Node, inputs: &[Option<&Value>]) -> Option<(Size, Size)> {
    let get = |i: usize| inputs.get(i).copied().flatten().map(|value| value.shape.as_slice());
    if node.is("MatMul") {
        let ([.., k], [.., l, _]) = (get(0)?, get(1)?) else { return None };
        return (k != l).then(|| (k.clone(), l.clone()));
    }
    if node.is_fused() {
        return single::tied(node, &get);
    }
    if node.is("Reshape") {
        return reshaped_axis(node, get(0)?, &sizes(node, inputs, "shape", 1)?);
    }
    if node.is("Concat") {
        let first = get(0)?;
        let axis = place(node.int("axis")?, first.len())?;
        let others = (1..inputs.len()).filter_map(get).filter(|other| other.len() == first.len());
        let mut pairs = others.flat_map(|other| first.iter().zip(other).enumerate());
        return pairs.find(|(at, (a, b))| *at != axis && a != b).map(|(_, (a, b))| (a.clone(), b.clone()));
    }
    None
}

/// Derives the types and shapes of the outputs of `node`; `None` if they cannot be derived.
#[must_use]
pub fn of(node: &Node, opset: i64, inputs: &[Option<&Value>]) -> Option<OutputTypes> {
    let get = |i: usize| inputs.get(i).copied().flatten();
    let first = get(0);
    if node.domain == MICROSOFT {
        return microsoft::of(node, inputs);
    }
    if !node.domain.is_empty() {
        return None;
    }
    let one = |kind: Kind, shape: Vec<Size>| Some(vec![(kind, shape)]);
    let given: Vec<&[Size]> = inputs.iter().flatten().map(|value| value.shape.as_slice()).collect();
    let all_known =
        || inputs.iter().zip(&node.inputs).all(|(value, name)| value.is_some() || name.is_empty());
    match node.op.as_str() {
        "Constant" => {
            let (name, value) = node.attributes.iter().next()?;
            match value {
                Attribute::Tensor(stored) => one(stored.kind, sized(&stored.shape)?),
                Attribute::Float(_) if name == "value_float" => one(Kind::F32, vec![]),
                Attribute::Int(_) if name == "value_int" => one(Kind::I64, vec![]),
                Attribute::Floats(all) => one(Kind::F32, vec![Size::count(all.len())?]),
                Attribute::Ints(all) => one(Kind::I64, vec![Size::count(all.len())?]),
                _ => None,
            }
        }
        "Add" | "Sub" | "Mul" | "Div" | "Pow" | "Mod" | "Max" | "Min" | "Sum" | "PRelu" if all_known() => {
            one(first?.kind, broadcast(&given)?)
        }
        "Equal" | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual" | "And" | "Or" | "Xor"
            if all_known() =>
        {
            one(Kind::BOOL, broadcast(&given)?)
        }
        "Where" if all_known() => one(get(1)?.kind, broadcast(&given)?),
        "Not" | "IsNaN" | "IsInf" => one(Kind::BOOL, first?.shape.clone()),
        "Cast" => one(Kind(node.int("to")?), first?.shape.clone()),
        "Neg"
        | "Abs"
        | "Sqrt"
        | "Exp"
        | "Log"
        | "Erf"
        | "Tanh"
        | "Sigmoid"
        | "Reciprocal"
        | "Floor"
        | "Ceil"
        | "Round"
        | "Sin"
        | "Cos"
        | "Relu"
        | "Gelu"
        | "HardSigmoid"
        | "HardSwish"
        | "LeakyRelu"
        | "Elu"
        | "Softplus"
        | "Sign"
        | "Identity"
        | "Softmax"
        | "LogSoftmax"
        | "Clip"
        | "CumSum"
        | "Trilu"
        | "ScatterND"
        | "ScatterElements"
        | "BatchNormalization"
        | "InstanceNormalization"
        | "GroupNormalization"
        | "Hardmax"
        | "Mish"
        | "Swish"
        | "RotaryEmbedding"
        | "CastLike"
        | "LpNormalization" => {
            let kind = if node.op == "CastLike" { get(1)?.kind } else { first?.kind };
            one(kind, first?.shape.clone())
        }
        "Dropout" | "LayerNormalization" | "SimplifiedLayerNormalization" | "RMSNormalization" => {
            let mut made = vec![(first?.kind, first?.shape.clone())];
            if node.op == "Dropout" && node.outputs.len() > 1 {
                made.push((Kind::BOOL, first?.shape.clone()));
            }
            Some(made)
        }
        "Shape" => {
            let rank = first?.shape.len();
            let at = |name: &str, default: i64| -> Option<usize> {
                let rank = i64::try_from(rank).ok()?;
                let x = node.int(name).unwrap_or(default);
                usize::try_from(if x < 0 { x.saturating_add(rank) } else { x }.clamp(0, rank)).ok()
            };
            let (start, end) = (at("start", 0)?, at("end", i64::MAX)?);
            one(Kind::I64, vec![Size::count(end.saturating_sub(start))?])
        }
        "Size" => one(Kind::I64, vec![]),
        "Reshape" => {
            let target = sizes(node, inputs, "shape", 1)?;
            one(first?.kind, reshape(node, &first?.shape, &target)?)
        }
        "Flatten" => {
            let shape = &first?.shape;
            let axis = node.int("axis").unwrap_or(1);
            let at = if axis == i64::try_from(shape.len()).ok()? {
                shape.len()
            } else {
                place(axis, shape.len())?
            };
            one(first?.kind, vec![Size::product(&shape[..at])?, Size::product(&shape[at..])?])
        }
        "Transpose" => {
            let shape = &first?.shape;
            one(
                first?.kind,
                permutation(node, shape.len())?.into_iter().map(|axis| shape[axis].clone()).collect(),
            )
        }
        "Squeeze" => {
            let shape = &first?.shape;
            let given = node.ints("axes").is_some() || node.input(1).is_some();
            let mut gone: Vec<bool> = shape.iter().map(|n| n.is(1) && !given).collect();
            // If no list of axes is given, the size of a free axis would decide whether the axis is removed.
            (given || shape.iter().all(|n| n.known().is_some())).then_some(())?;
            if given {
                for axis in numbers(node, inputs, "axes", 1)? {
                    let axis = place(axis, shape.len())?;
                    // A free axis in the list is 1 wherever the node is defined.
                    gone[axis] = shape[axis].known().is_none_or(|n| n == 1);
                    gone[axis].then_some(())?;
                }
            }
            one(
                first?.kind,
                (0..shape.len()).filter(|&axis| !gone[axis]).map(|axis| shape[axis].clone()).collect(),
            )
        }
        "Unsqueeze" => {
            let (shape, axes) = (&first?.shape, numbers(node, inputs, "axes", 1)?);
            let rank = shape.len().checked_add(axes.len())?;
            let mut new = vec![false; rank];
            for axis in axes {
                let axis = place(axis, rank)?;
                (!new[axis]).then_some(())?;
                new[axis] = true;
            }
            let mut old = shape.iter().cloned();
            one(
                first?.kind,
                new.into_iter()
                    .map(|new| if new { Some(Size::from(1)) } else { old.next() })
                    .collect::<Option<_>>()?,
            )
        }
        "Expand" => one(first?.kind, broadcast(&[&first?.shape, &lengths(get(1)?)?])?),
        "Tile" => {
            let (shape, times) = (&first?.shape, get(1)?.sizes()?);
            (times.len() == shape.len()).then_some(())?;
            let sizes = shape.iter().zip(&times).map(|(n, times)| n.times(times));
            one(first?.kind, sizes.collect::<Option<_>>()?)
        }
        "ConstantOfShape" => {
            let kind = match node.attributes.get("value") {
                Some(Attribute::Tensor(stored)) => stored.kind,
                _ => Kind::F32,
            };
            one(kind, lengths(first?)?)
        }
        "Range" => {
            let n = match [0, 1, 2].map(|i| get(i).map(|value| &value.data)) {
                [Some(Data::Numbers(a)), Some(Data::Numbers(b)), Some(Data::Numbers(c))] => {
                    let n = ((b.first()? - a.first()?) / c.first()?).ceil().max(0.0);
                    Size::from((n < 1e9).then_some(n as i64)?)
                }
                _ => {
                    let [start, limit, delta] = [0, 1, 2].map(|i| get(i)?.sizes()?.first().cloned());
                    let (start, limit, delta) = (start?, limit?, delta?);
                    delta.known().filter(|&n| n > 0)?;
                    limit.minus(&start)?.most(&Size::from(0)).over_up(&delta)?
                }
            };
            one(first?.kind, vec![n])
        }
        "Concat" if all_known() => {
            let mut shape = first?.shape.clone();
            let axis = place(node.int("axis")?, shape.len())?;
            shape[axis] = Size::from(0);
            for other in &given {
                (other.len() == shape.len()).then_some(())?;
                let fits = (0..shape.len()).all(|a| a == axis || shape[a] == other[a]);
                fits.then_some(())?;
                shape[axis] = shape[axis].plus(&other[axis])?;
            }
            one(first?.kind, shape)
        }
        "Slice" => {
            let mut shape = first?.shape.clone();
            for (axis, _, _, n) in slices(node, inputs)? {
                shape[axis] = n;
            }
            one(first?.kind, shape)
        }
        "Split" => {
            let (axis, sizes) = parts(node, inputs)?;
            let value = first?;
            let part = |n| {
                let mut shape = value.shape.clone();
                shape[axis] = n;
                (value.kind, shape)
            };
            Some(sizes.into_iter().map(part).collect())
        }
        "Gather" => {
            let (shape, indices) = (&first?.shape, &get(1)?.shape);
            let axis = place(node.int("axis").unwrap_or(0), shape.len())?;
            one(first?.kind, [&shape[..axis], indices.as_slice(), &shape[axis + 1..]].concat())
        }
        "GatherElements" => one(first?.kind, get(1)?.shape.clone()),
        "GatherND" if node.int("batch_dims").unwrap_or(0) == 0 => {
            let (shape, indices) = (&first?.shape, &get(1)?.shape);
            let (last, outer) = indices.split_last()?;
            let last = usize::try_from(last.known()?).ok()?;
            one(first?.kind, [outer, shape.get(last..)?].concat())
        }
        "MatMul" => one(first?.kind, matmul(&first?.shape, &get(1)?.shape)?),
        "Einsum" => one(first?.kind, einsum::shape(node, inputs)?),
        "Gemm" => {
            let (a, b) = (&first?.shape, &get(1)?.shape);
            let ([m, k], [l, n]) = (a.as_slice(), b.as_slice()) else { return None };
            let turned = |name: &str| node.int(name).unwrap_or(0) != 0;
            one(
                first?.kind,
                vec![
                    if turned("transA") { k.clone() } else { m.clone() },
                    if turned("transB") { l.clone() } else { n.clone() },
                ],
            )
        }
        "Conv" => one(first?.kind, convolved(node, &first?.shape, &get(1)?.shape)?),
        "ConvTranspose" => one(first?.kind, deconvolved(node, &first?.shape, &get(1)?.shape)?),
        "ConvInteger" => one(Kind::I32, convolved(node, &first?.shape, &get(1)?.shape)?),
        "QLinearConv" => one(get(7)?.kind, convolved(node, &first?.shape, &get(3)?.shape)?),
        "MatMulInteger" => one(Kind::I32, matmul(&first?.shape, &get(1)?.shape)?),
        "QLinearMatMul" => one(get(7)?.kind, matmul(&first?.shape, &get(3)?.shape)?),
        "QuantizeLinear" | "DequantizeLinear" => one(quantized(node, inputs)?, first?.shape.clone()),
        "DynamicQuantizeLinear" => {
            Some(vec![(Kind::U8, first?.shape.clone()), (Kind::F32, vec![]), (Kind::U8, vec![])])
        }
        "Resize" | "Upsample" => one(first?.kind, resized(node, inputs)?),
        "GridSample" => {
            let ([n, c, ..], [_, places @ .., _]) = (first?.shape.as_slice(), get(1)?.shape.as_slice())
            else {
                return None;
            };
            one(first?.kind, [&[n.clone(), c.clone()], places].concat())
        }
        "TopK" => {
            let mut shape = first?.shape.clone();
            let axis = place(node.int("axis").unwrap_or(-1), shape.len())?;
            shape[axis] = match node.int("k") {
                Some(k) => Size::from(k),
                None => get(1)?.sizes()?.first()?.clone(),
            };
            shape[axis].known().is_none_or(|k| k >= 0).then_some(())?;
            Some(vec![(first?.kind, shape.clone()), (Kind::I64, shape)])
        }
        "MaxPool" | "AveragePool" => {
            let [batch, channels, input @ ..] = first?.shape.as_slice() else { return None };
            let kernel: Vec<Size> = node.ints("kernel_shape")?.iter().map(|&n| Size::from(n)).collect();
            (input.len() == kernel.len()).then_some(())?;
            one(
                first?.kind,
                [&[batch.clone(), channels.clone()], windowed(node, input, &kernel)?.as_slice()].concat(),
            )
        }
        "GlobalAveragePool" | "GlobalMaxPool" => {
            let shape = &first?.shape;
            one(
                first?.kind,
                shape
                    .iter()
                    .enumerate()
                    .map(|(axis, n)| if axis < 2 { n.clone() } else { Size::from(1) })
                    .collect(),
            )
        }
        "ReduceMean" | "ReduceSum" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1" | "ReduceL2"
        | "ReduceSumSquare" | "ReduceLogSumExp" => {
            let (gone, keep) = reduced(node, inputs)?;
            let sizes = first?.shape.iter().zip(gone);
            one(
                first?.kind,
                sizes
                    .filter(|(_, gone)| keep || !gone)
                    .map(|(n, gone)| if gone { Size::from(1) } else { n.clone() })
                    .collect(),
            )
        }
        "ArgMax" | "ArgMin" => {
            let mut shape = first?.shape.clone();
            let axis = place(node.int("axis").unwrap_or(0), shape.len())?;
            if node.int("keepdims").unwrap_or(1) != 0 {
                shape[axis] = Size::from(1);
            } else {
                shape.remove(axis);
            }
            one(Kind::I64, shape)
        }
        "Pad" => {
            let (mut shape, pads) = (first?.shape.clone(), sizes(node, inputs, "pads", 1)?);
            let rank = shape.len();
            let axes = if node.input(3).is_some() { get(3)?.integers()? } else { (0..).take(rank).collect() };
            (pads.len() == axes.len() * 2).then_some(())?;
            for (i, &axis) in axes.iter().enumerate() {
                let axis = place(axis, rank)?;
                shape[axis] = shape[axis].plus(&pads[i])?.plus(&pads[i + axes.len()])?;
                shape[axis].known().is_none_or(|n| n >= 0).then_some(())?;
            }
            one(first?.kind, shape)
        }
        "DepthToSpace" | "SpaceToDepth" => {
            let [n, c, h, w] = first?.shape.as_slice() else { return None };
            let b = Size::from(node.int("blocksize").filter(|&b| b > 0)?);
            let square = b.times(&b)?;
            let shape = if node.op == "DepthToSpace" {
                vec![n.clone(), c.over(&square)?, h.times(&b)?, w.times(&b)?]
            } else {
                vec![n.clone(), c.times(&square)?, h.over(&b)?, w.over(&b)?]
            };
            one(first?.kind, shape)
        }
        "LinearAttention" | "CausalConvWithState" if opset >= 27 => StatefulNode::of(node)?.outputs(inputs),
        "Attention" if opset >= 23 => {
            let shape = |i: usize| get(i).map(|value| value.shape.as_slice());
            let (kind, sizes) = (first?.kind, single::FusedSizes::of(node, &shape).ok()?);
            Some(sizes.outputs()?.into_iter().map(|shape| (kind, shape)).collect())
        }
        _ => None,
    }
}

/// Returns the permutation that a `Transpose` node applies to the axes of a tensor of rank `rank`.
#[must_use]
pub fn permutation(node: &Node, rank: usize) -> Option<Vec<usize>> {
    let Some(perm) = node.ints("perm") else { return Some((0..rank).rev().collect()) };
    let perm = perm.iter().map(|&axis| place(axis, rank)).collect::<Option<Vec<_>>>()?;
    let mut sorted = perm.clone();
    sorted.sort_unstable();
    sorted.into_iter().eq(0..rank).then_some(perm)
}
