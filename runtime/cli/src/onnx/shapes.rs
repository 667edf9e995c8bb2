//! Shapes and types of what a node makes, from what is known of what it reads.
//!
//! Sizes are numbers: the rewriter gives the free axes of a model's inputs sizes of its own and follows them through the
//! graph. An operator that is not listed here has an unknown result, and what depends on it is left alone.

use super::array::{Array, Kind};
use super::model::{Attribute, Node};
use std::rc::Rc;

/// What is known of a tensor.
#[derive(Clone, Debug)]
pub struct Value {
    /// Type of its elements.
    pub kind: Kind,
    /// Its axes.
    pub shape: Vec<usize>,
    /// Its elements, where they follow from constants and shapes alone.
    pub data: Option<Rc<Vec<f64>>>,
}

impl Value {
    /// The tensor, if its elements are known.
    #[must_use]
    pub fn array(&self) -> Option<Array> {
        let data = Rc::clone(self.data.as_ref()?);
        Some(Array { kind: self.kind, shape: self.shape.clone(), data })
    }

    fn integers(&self) -> Option<Vec<i64>> {
        Some(self.data.as_ref()?.iter().map(|&x| x as i64).collect())
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Value {
        Value { kind: array.kind, shape: array.shape, data: Some(array.data) }
    }
}

/// Types and shapes of the outputs.
pub type Made = Vec<(Kind, Vec<usize>)>;

/// The shape to which all of `shapes` broadcast.
#[must_use]
pub fn broadcast(shapes: &[&[usize]]) -> Option<Vec<usize>> {
    let rank = shapes.iter().map(|shape| shape.len()).max()?;
    let mut all = vec![1; rank];
    for shape in shapes {
        for (axis, &n) in shape.iter().enumerate() {
            let into = &mut all[rank - shape.len() + axis];
            match (*into, n) {
                (found, n) if found == n || n == 1 => {}
                (1, n) => *into = n,
                _ => return None,
            }
        }
    }
    Some(all)
}

/// `axis` counted from the front, of `rank`.
#[must_use]
pub fn place(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let at = if axis < 0 { axis.checked_add(rank)? } else { axis };
    usize::try_from(at).ok().filter(|_| at < rank)
}

/// The integers that an operator takes as attribute `name` in older opsets and as input `i` in newer ones.
#[must_use]
pub fn numbers(node: &Node, inputs: &[Option<&Value>], name: &str, i: usize) -> Option<Vec<i64>> {
    match node.ints(name) {
        Some(all) => Some(all.to_vec()),
        None => inputs.get(i).copied().flatten()?.integers(),
    }
}

/// Axes of `Slice` with their starts, steps and numbers of elements.
#[must_use]
pub fn slices(node: &Node, inputs: &[Option<&Value>]) -> Option<Vec<(usize, i64, i64, usize)>> {
    let shape = &inputs.first().copied().flatten()?.shape;
    let (starts, ends) = (numbers(node, inputs, "starts", 1)?, numbers(node, inputs, "ends", 2)?);
    let given = node.ints("axes").is_some() || node.input(3).is_some();
    let axes = if given { numbers(node, inputs, "axes", 3)? } else { (0..).take(starts.len()).collect() };
    let steps =
        if node.input(4).is_some() { numbers(node, inputs, "steps", 4)? } else { vec![1; starts.len()] };
    if starts.len() != ends.len() || starts.len() != axes.len() || starts.len() != steps.len() {
        return None;
    }
    let mut all = Vec::new();
    for i in 0..starts.len() {
        let (axis, step) = (place(axes[i], shape.len())?, steps[i]);
        let n = i64::try_from(shape[axis]).ok()?;
        let from = |x: i64| if x < 0 { x.saturating_add(n) } else { x };
        let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
        let start = from(starts[i]).clamp(low.max(0), high.max(0));
        let end = if step < 0 && ends[i] < -n { -1 } else { from(ends[i]).clamp(low, high) };
        let count = match step {
            0 => return None,
            1.. => (end - start).max(0).checked_add(step - 1)? / step,
            _ => (start - end).max(0).checked_sub(step + 1)? / step.checked_neg()?,
        };
        all.push((axis, start, step, usize::try_from(count).ok()?));
    }
    Some(all)
}

/// Sizes of the parts of `Split`.
#[must_use]
pub fn parts(node: &Node, inputs: &[Option<&Value>]) -> Option<(usize, Vec<usize>)> {
    let shape = &inputs.first().copied().flatten()?.shape;
    let axis = place(node.int("axis").unwrap_or(0), shape.len())?;
    let (n, parts) = (shape[axis], node.outputs.len());
    let sizes: Vec<usize> = if node.ints("split").is_some() || node.input(1).is_some() {
        let sizes = numbers(node, inputs, "split", 1)?;
        sizes.into_iter().map(usize::try_from).collect::<Result<_, _>>().ok()?
    } else {
        let each = n.div_ceil(parts);
        (0..parts).map(|i| each.min(n.saturating_sub(i * each))).collect()
    };
    let sum = sizes.iter().try_fold(0usize, |sum, &n| sum.checked_add(n))?;
    (sizes.len() == parts && sum == n).then_some((axis, sizes))
}

/// Axes that a reduction takes away, and whether they stay with size 1.
#[must_use]
pub fn reduced(node: &Node, inputs: &[Option<&Value>]) -> Option<(Vec<bool>, bool)> {
    let rank = inputs.first().copied().flatten()?.shape.len();
    let keep = node.int("keepdims").unwrap_or(1) != 0;
    let given = node.ints("axes").is_some() || node.input(1).is_some();
    let axes = if given { numbers(node, inputs, "axes", 1)? } else { Vec::new() };
    if axes.is_empty() {
        let gone = node.int("noop_with_empty_axes").unwrap_or(0) == 0;
        return Some((vec![gone; rank], keep));
    }
    let mut gone = vec![false; rank];
    for axis in axes {
        gone[place(axis, rank)?] = true;
    }
    Some((gone, keep))
}

fn matmul(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let ([batch_a @ .., m, k], [batch_b @ .., l, n]) = (a, b) else { return None };
    let mut shape = broadcast(&[batch_a, batch_b])?;
    shape.extend([m, n]);
    (k == l).then_some(shape)
}

/// Spatial sizes behind a window of `kernel` that moves over `input`, as convolutions and poolings have it.
fn windowed(node: &Node, input: &[usize], kernel: &[usize]) -> Option<Vec<usize>> {
    let rank = input.len();
    let of = |name: &str, n: usize, default: usize| -> Option<Vec<usize>> {
        match node.ints(name) {
            Some(all) if all.len() == n => all.iter().map(|&x| usize::try_from(x).ok()).collect(),
            Some(_) => None,
            None => Some(vec![default; n]),
        }
    };
    let (strides, dilations) = (of("strides", rank, 1)?, of("dilations", rank, 1)?);
    let pads = of("pads", rank * 2, 0)?;
    let auto = match node.attributes.get("auto_pad") {
        Some(Attribute::Text(text)) => text.as_slice(),
        _ => b"NOTSET",
    };
    (0..rank)
        .map(|axis| {
            let stride = strides[axis].max(1);
            if auto.starts_with(b"SAME") {
                return Some(input[axis].div_ceil(stride));
            }
            let reach = kernel[axis].checked_sub(1)?.checked_mul(dilations[axis])?.checked_add(1)?;
            let padded = input[axis].checked_add(pads[axis])?.checked_add(pads[axis + rank])?;
            let moves = padded.checked_sub(reach)?;
            let up = node.int("ceil_mode").unwrap_or(0) != 0;
            Some((if up { moves.div_ceil(stride) } else { moves / stride }) + 1)
        })
        .collect()
}

fn reshape(node: &Node, input: &[usize], target: &[i64]) -> Option<Vec<usize>> {
    let total: usize = input.iter().try_fold(1usize, |n, &axis| n.checked_mul(axis))?;
    let zero = node.int("allowzero").unwrap_or(0) != 0;
    let mut shape = Vec::new();
    let mut free = None;
    for (axis, &n) in target.iter().enumerate() {
        match n {
            -1 if free.is_none() => {
                free = Some(axis);
                shape.push(1);
            }
            0 if !zero => shape.push(*input.get(axis)?),
            _ => shape.push(usize::try_from(n).ok()?),
        }
    }
    let known: usize = shape.iter().try_fold(1usize, |n, &axis| n.checked_mul(axis))?;
    if let Some(free) = free {
        shape[free] = total.checked_div(known)?;
        return (shape[free] * known == total).then_some(shape);
    }
    (known == total).then_some(shape)
}

/// Types and shapes of what `node` makes; none if they do not follow from what is known.
#[must_use]
pub fn of(node: &Node, opset: i64, inputs: &[Option<&Value>]) -> Option<Made> {
    if !node.domain.is_empty() {
        return None;
    }
    let get = |i: usize| inputs.get(i).copied().flatten();
    let first = get(0);
    let one = |kind: Kind, shape: Vec<usize>| Some(vec![(kind, shape)]);
    let given: Vec<&[usize]> = inputs.iter().flatten().map(|value| value.shape.as_slice()).collect();
    let all_known =
        || inputs.iter().zip(&node.inputs).all(|(value, name)| value.is_some() || name.is_empty());
    match node.op.as_str() {
        "Constant" => {
            let (name, value) = node.attributes.iter().next()?;
            match value {
                Attribute::Tensor(stored) => one(stored.kind, stored.shape.clone()),
                Attribute::Float(_) if name == "value_float" => one(Kind::F32, vec![]),
                Attribute::Int(_) if name == "value_int" => one(Kind::I64, vec![]),
                Attribute::Floats(all) => one(Kind::F32, vec![all.len()]),
                Attribute::Ints(all) => one(Kind::I64, vec![all.len()]),
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
            one(Kind::I64, vec![end.saturating_sub(start)])
        }
        "Size" => one(Kind::I64, vec![]),
        "Reshape" => {
            let target = numbers(node, inputs, "shape", 1)?;
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
            let product = |part: &[usize]| part.iter().try_fold(1usize, |n, &axis| n.checked_mul(axis));
            one(first?.kind, vec![product(&shape[..at])?, product(&shape[at..])?])
        }
        "Transpose" => {
            let shape = &first?.shape;
            one(first?.kind, permutation(node, shape.len())?.into_iter().map(|axis| shape[axis]).collect())
        }
        "Squeeze" => {
            let shape = &first?.shape;
            let given = node.ints("axes").is_some() || node.input(1).is_some();
            let mut gone: Vec<bool> = shape.iter().map(|&n| n == 1 && !given).collect();
            if given {
                for axis in numbers(node, inputs, "axes", 1)? {
                    let axis = place(axis, shape.len())?;
                    gone[axis] = shape[axis] == 1;
                    gone[axis].then_some(())?;
                }
            }
            one(first?.kind, (0..shape.len()).filter(|&axis| !gone[axis]).map(|axis| shape[axis]).collect())
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
            let mut old = shape.iter().copied();
            one(
                first?.kind,
                new.into_iter().map(|new| if new { Some(1) } else { old.next() }).collect::<Option<_>>()?,
            )
        }
        "Expand" => {
            let target = get(1)?
                .integers()?
                .into_iter()
                .map(|n| usize::try_from(n).ok())
                .collect::<Option<Vec<_>>>()?;
            one(first?.kind, broadcast(&[&first?.shape, &target])?)
        }
        "Tile" => {
            let (shape, times) = (&first?.shape, get(1)?.integers()?);
            (times.len() == shape.len()).then_some(())?;
            let sizes =
                shape.iter().zip(times).map(|(&n, times)| n.checked_mul(usize::try_from(times).ok()?));
            one(first?.kind, sizes.collect::<Option<_>>()?)
        }
        "ConstantOfShape" => {
            let kind = match node.attributes.get("value") {
                Some(Attribute::Tensor(stored)) => stored.kind,
                _ => Kind::F32,
            };
            one(kind, first?.integers()?.into_iter().map(|n| usize::try_from(n).ok()).collect::<Option<_>>()?)
        }
        "Range" => {
            let [start, limit, delta] = [0, 1, 2].map(|i| get(i)?.data.as_ref()?.first().copied());
            let n = ((limit? - start?) / delta?).ceil().max(0.0);
            one(first?.kind, vec![(n < 1e9).then_some(n as usize)?])
        }
        "Concat" if all_known() => {
            let mut shape = first?.shape.clone();
            let axis = place(node.int("axis")?, shape.len())?;
            shape[axis] = 0;
            for other in &given {
                (other.len() == shape.len()).then_some(())?;
                let fits = (0..shape.len()).all(|a| a == axis || shape[a] == other[a]);
                fits.then_some(())?;
                shape[axis] = shape[axis].checked_add(other[axis])?;
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
            one(first?.kind, [&shape[..axis], indices, &shape[axis + 1..]].concat())
        }
        "GatherElements" => one(first?.kind, get(1)?.shape.clone()),
        "GatherND" if node.int("batch_dims").unwrap_or(0) == 0 => {
            let (shape, indices) = (&first?.shape, &get(1)?.shape);
            let (&last, outer) = indices.split_last()?;
            one(first?.kind, [outer, shape.get(last..)?].concat())
        }
        "MatMul" => one(first?.kind, matmul(&first?.shape, &get(1)?.shape)?),
        "Gemm" => {
            let (a, b) = (&first?.shape, &get(1)?.shape);
            let ([m, k], [l, n]) = (a.as_slice(), b.as_slice()) else { return None };
            let turned = |name: &str| node.int(name).unwrap_or(0) != 0;
            one(
                first?.kind,
                vec![if turned("transA") { *k } else { *m }, if turned("transB") { *l } else { *n }],
            )
        }
        "Conv" => {
            let ([batch, _, input @ ..], [made, _, kernel @ ..]) =
                (first?.shape.as_slice(), get(1)?.shape.as_slice())
            else {
                return None;
            };
            (input.len() == kernel.len()).then_some(())?;
            one(first?.kind, [&[*batch, *made], windowed(node, input, kernel)?.as_slice()].concat())
        }
        "MaxPool" | "AveragePool" => {
            let [batch, channels, input @ ..] = first?.shape.as_slice() else { return None };
            let kernel: Vec<usize> =
                node.ints("kernel_shape")?.iter().map(|&n| usize::try_from(n).ok()).collect::<Option<_>>()?;
            (input.len() == kernel.len()).then_some(())?;
            one(first?.kind, [&[*batch, *channels], windowed(node, input, &kernel)?.as_slice()].concat())
        }
        "GlobalAveragePool" | "GlobalMaxPool" => {
            let shape = &first?.shape;
            one(
                first?.kind,
                shape.iter().enumerate().map(|(axis, &n)| if axis < 2 { n } else { 1 }).collect(),
            )
        }
        "ReduceMean" | "ReduceSum" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1" | "ReduceL2"
        | "ReduceSumSquare" | "ReduceLogSumExp" => {
            let (gone, keep) = reduced(node, inputs)?;
            let sizes = first?.shape.iter().zip(gone);
            one(
                first?.kind,
                sizes.filter(|(_, gone)| keep || !gone).map(|(&n, gone)| if gone { 1 } else { n }).collect(),
            )
        }
        "ArgMax" | "ArgMin" => {
            let mut shape = first?.shape.clone();
            let axis = place(node.int("axis").unwrap_or(0), shape.len())?;
            if node.int("keepdims").unwrap_or(1) != 0 {
                shape[axis] = 1;
            } else {
                shape.remove(axis);
            }
            one(Kind::I64, shape)
        }
        "Pad" => {
            let (mut shape, pads) = (first?.shape.clone(), numbers(node, inputs, "pads", 1)?);
            let rank = shape.len();
            let axes = if node.input(3).is_some() { get(3)?.integers()? } else { (0..).take(rank).collect() };
            (pads.len() == axes.len() * 2).then_some(())?;
            for (i, &axis) in axes.iter().enumerate() {
                let axis = place(axis, rank)?;
                let more = pads[i].checked_add(pads[i + axes.len()])?;
                shape[axis] = shape[axis].checked_add_signed(isize::try_from(more).ok()?)?;
            }
            one(first?.kind, shape)
        }
        "DepthToSpace" | "SpaceToDepth" => {
            let [n, c, h, w] = first?.shape.as_slice() else { return None };
            let b = usize::try_from(node.int("blocksize")?).ok().filter(|&b| b > 0)?;
            let shape = if node.op == "DepthToSpace" {
                vec![*n, c / b.checked_mul(b)?, h.checked_mul(b)?, w.checked_mul(b)?]
            } else {
                vec![*n, c.checked_mul(b.checked_mul(b)?)?, h / b, w / b]
            };
            one(first?.kind, shape)
        }
        "Attention" if opset >= 23 => {
            let (q, v) = (first?, get(2)?);
            match (q.shape.as_slice(), v.shape.as_slice()) {
                ([b, h, n, _], [_, _, _, d]) => one(q.kind, vec![*b, *h, *n, *d]),
                ([b, n, _], [_, _, width]) => {
                    let heads = usize::try_from(node.int("q_num_heads")?).ok()?;
                    let dim = width.checked_div(usize::try_from(node.int("kv_num_heads")?).ok()?)?;
                    one(q.kind, vec![*b, *n, heads.checked_mul(dim)?])
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// The permutation of `Transpose`.
#[must_use]
pub fn permutation(node: &Node, rank: usize) -> Option<Vec<usize>> {
    let Some(perm) = node.ints("perm") else { return Some((0..rank).rev().collect()) };
    let perm = perm.iter().map(|&axis| place(axis, rank)).collect::<Option<Vec<_>>>()?;
    let mut sorted = perm.clone();
    sorted.sort_unstable();
    sorted.into_iter().eq(0..rank).then_some(perm)
}
