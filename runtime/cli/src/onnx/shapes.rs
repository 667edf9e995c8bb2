//! Shapes and types of what a node makes, from what is known of what it reads.
//!
//! Sizes are polynomials over the free axes of a model's inputs, or numbers where the axes have sizes. An operator that is
//! not listed here has an unknown result, and what depends on it is left alone.

use super::array::{Array, Kind};
use super::fused::MICROSOFT;
use super::model::{Attribute, Node};
use super::size::Size;
use std::rc::Rc;

/// The elements of a tensor, where they follow from constants and shapes alone.
#[derive(Clone, Debug)]
pub enum Data {
    /// Not known.
    None,
    /// Numbers.
    Numbers(Rc<Vec<f64>>),
    /// Whole numbers that depend on free axes.
    Sizes(Rc<Vec<Size>>),
}

/// What is known of a tensor.
#[derive(Clone, Debug)]
pub struct Value {
    /// Type of its elements.
    pub kind: Kind,
    /// Its axes.
    pub shape: Vec<Size>,
    /// Its elements.
    pub data: Data,
}

impl Value {
    /// The elements as sizes.
    #[must_use]
    pub fn sizes(&self) -> Option<Vec<Size>> {
        match &self.data {
            Data::None => None,
            Data::Numbers(all) => Some(all.iter().map(|&x| Size::from(x as i64)).collect()),
            Data::Sizes(all) => Some(all.to_vec()),
        }
    }

    /// The elements as whole numbers.
    fn integers(&self) -> Option<Vec<i64>> {
        self.sizes()?.iter().map(Size::known).collect()
    }

    /// The axes, if none of them is free.
    #[must_use]
    pub fn counts(&self) -> Option<Vec<usize>> {
        counts(&self.shape)
    }
}

/// Sizes that depend on no free axis, as numbers.
#[must_use]
pub fn counts(shape: &[Size]) -> Option<Vec<usize>> {
    shape.iter().map(|size| usize::try_from(size.known()?).ok()).collect()
}

/// Numbers of elements as sizes.
#[must_use]
pub fn sized(shape: &[usize]) -> Option<Vec<Size>> {
    shape.iter().map(|&n| Size::count(n)).collect()
}

impl From<Array> for Value {
    fn from(array: Array) -> Value {
        // An axis beyond 64 bits has no elements in memory.
        let shape = array.shape.iter().map(|&n| Size::count(n).unwrap_or_default()).collect();
        Value { kind: array.kind, shape, data: Data::Numbers(array.data) }
    }
}

/// Types and shapes of the outputs.
pub type Made = Vec<(Kind, Vec<Size>)>;

/// The shape to which all of `shapes` broadcast.
#[must_use]
pub fn broadcast(shapes: &[&[Size]]) -> Option<Vec<Size>> {
    let rank = shapes.iter().map(|shape| shape.len()).max()?;
    let mut all = vec![Size::from(1); rank];
    for shape in shapes {
        for (axis, n) in shape.iter().enumerate() {
            let into = &mut all[rank - shape.len() + axis];
            *into = into.joint(n)?;
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

/// The numbers that an operator takes as attribute `name` in older opsets and as input `i` in newer ones, as sizes.
fn sizes(node: &Node, inputs: &[Option<&Value>], name: &str, i: usize) -> Option<Vec<Size>> {
    match node.ints(name) {
        Some(all) => Some(all.iter().map(|&n| Size::from(n)).collect()),
        None => inputs.get(i).copied().flatten()?.sizes(),
    }
}

/// `at` clamped to `low..=high`, counted from the end of an axis of `n` where it is negative.
fn within(at: &Size, n: &Size, low: &Size, high: &Size) -> Option<Size> {
    // A number beyond every axis is its end; what is no number is a place counted from the front.
    let from = match at.known() {
        Some(x) if x >= i64::from(i32::MAX) => return Some(high.clone()),
        Some(x) if x <= -i64::from(i32::MAX) => return Some(low.clone()),
        Some(x) if x < 0 => at.plus(n)?,
        None if at.times(&Size::from(-1))?.is_count() => at.plus(n)?,
        _ => at.clone(),
    };
    Some(from.most(low).least(high))
}

/// Axes of `Slice` with their starts, steps and numbers of elements.
#[must_use]
pub fn slices(node: &Node, inputs: &[Option<&Value>]) -> Option<Vec<(usize, Size, i64, Size)>> {
    let shape = &inputs.first().copied().flatten()?.shape;
    let (starts, ends) = (sizes(node, inputs, "starts", 1)?, sizes(node, inputs, "ends", 2)?);
    let given = node.ints("axes").is_some() || node.input(3).is_some();
    let axes = if given { numbers(node, inputs, "axes", 3)? } else { (0..).take(starts.len()).collect() };
    let steps =
        if node.input(4).is_some() { numbers(node, inputs, "steps", 4)? } else { vec![1; starts.len()] };
    if starts.len() != ends.len() || starts.len() != axes.len() || starts.len() != steps.len() {
        return None;
    }
    let zero = Size::from(0);
    let mut all = Vec::new();
    for i in 0..starts.len() {
        let (axis, step) = (place(axes[i], shape.len())?, steps[i]);
        let n = &shape[axis];
        let (start, count) = if step > 0 {
            let (start, end) =
                (within(&starts[i], n, &zero, n)?, within(&ends[i], n, &zero, n)?);
            let length = end.minus(&start)?.most(&zero);
            (start, length.over_up(&Size::from(step))?)
        } else {
            // Backwards only where nothing is free.
            let n = n.known()?;
            let from = |x: i64| if x < 0 { x.saturating_add(n) } else { x };
            let (start, end) = (starts[i].known()?, ends[i].known()?);
            let start = from(start).clamp(0, (n - 1).max(0));
            let end = if end < -n { -1 } else { from(end).clamp(-1, n - 1) };
            let step = step.checked_neg().filter(|&step| step > 0)?;
            let count = (start - end).max(0).checked_add(step - 1)? / step;
            (Size::from(start), Size::from(count))
        };
        all.push((axis, start, step, count));
    }
    Some(all)
}

/// Sizes of the parts of `Split`.
#[must_use]
pub fn parts(node: &Node, inputs: &[Option<&Value>]) -> Option<(usize, Vec<Size>)> {
    let shape = &inputs.first().copied().flatten()?.shape;
    let axis = place(node.int("axis").unwrap_or(0), shape.len())?;
    let (n, parts) = (&shape[axis], node.outputs.len());
    let all: Vec<Size> = if node.ints("split").is_some() || node.input(1).is_some() {
        sizes(node, inputs, "split", 1)?
    } else {
        let parts = i64::try_from(parts).ok()?;
        let each = n.over_up(&Size::from(parts))?;
        let last = n.minus(&each.times(&Size::from(parts - 1))?)?;
        let mut all = vec![each; usize::try_from(parts).ok()?];
        *all.last_mut()? = last;
        all
    };
    let sum = all.iter().try_fold(Size::from(0), |sum, n| sum.plus(n))?;
    (all.len() == parts && sum == *n && all.iter().all(|n| n.known().is_none_or(|n| n >= 0))).then_some((axis, all))
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

/// Elements that are lengths of axes.
fn lengths(value: &Value) -> Option<Vec<Size>> {
    let all = value.sizes()?;
    all.iter().all(|n| n.known().is_none_or(|n| n >= 0)).then_some(all)
}

fn matmul(a: &[Size], b: &[Size]) -> Option<Vec<Size>> {
    let ([batch_a @ .., m, k], [batch_b @ .., l, n]) = (a, b) else { return None };
    let mut shape = broadcast(&[batch_a, batch_b])?;
    shape.extend([m.clone(), n.clone()]);
    // A size that others broadcast to is each of those that are not 1.
    (k == l || k.joined().contains(l) || l.joined().contains(k)).then_some(shape)
}

/// Two sizes that are the same wherever `node` has an answer, though they are spelled differently.
#[must_use]
pub fn tied(node: &Node, inputs: &[Option<&Value>]) -> Option<(Size, Size)> {
    let get = |i: usize| inputs.get(i).copied().flatten().map(|value| value.shape.as_slice());
    if node.is("MatMul") {
        let ([.., k], [.., l, _]) = (get(0)?, get(1)?) else { return None };
        return (k != l).then(|| (k.clone(), l.clone()));
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

/// Spatial sizes behind a window of `kernel` that moves over `input`, as convolutions and poolings have it.
fn windowed(node: &Node, input: &[Size], kernel: &[Size]) -> Option<Vec<Size>> {
    let rank = input.len();
    let of = |name: &str, n: usize, default: i64| match node.ints(name) {
        Some(all) if all.len() == n => Some(all.iter().map(|&x| Size::from(x)).collect()),
        Some(_) => None,
        None => Some(vec![Size::from(default); n]),
    };
    let (strides, dilations) = (of("strides", rank, 1)?, of("dilations", rank, 1)?);
    let pads = of("pads", rank * 2, 0)?;
    let auto = match node.attributes.get("auto_pad") {
        Some(Attribute::Text(text)) => text.as_slice(),
        _ => b"NOTSET",
    };
    let one = Size::from(1);
    (0..rank)
        .map(|axis| {
            let stride = if strides[axis].is(0) { &one } else { &strides[axis] };
            if auto.starts_with(b"SAME") {
                return input[axis].over_up(stride);
            }
            let reach = kernel[axis].minus(&one)?.times(&dilations[axis])?.plus(&one)?;
            let padded = input[axis].plus(&pads[axis])?.plus(&pads[axis + rank])?;
            let moves = padded.minus(&reach)?;
            moves.known().is_none_or(|n| n >= 0).then_some(())?;
            let up = node.int("ceil_mode").unwrap_or(0) != 0;
            if up { moves.over_up(stride)? } else { moves.over(stride)? }.plus(&one)
        })
        .collect()
}

fn reshape(node: &Node, input: &[Size], target: &[Size]) -> Option<Vec<Size>> {
    let zero = node.int("allowzero").unwrap_or(0) != 0;
    let mut shape: Vec<Size> = Vec::new();
    let mut free = None;
    for (axis, n) in target.iter().enumerate() {
        match n.known() {
            Some(-1) if free.is_none() => {
                free = Some(axis);
                shape.push(Size::from(1));
            }
            Some(0) if !zero => shape.push(input.get(axis)?.clone()),
            Some(n) if n < 0 => return None,
            _ => shape.push(n.clone()),
        }
    }
    // Axes that stay need no division.
    let (mut left, mut given) = (input.to_vec(), shape.clone());
    given.retain(|size| match left.iter().position(|other| other == size) {
        Some(at) => {
            left.remove(at);
            false
        }
        None => true,
    });
    let (total, known) = (Size::product(&left)?, Size::product(&given)?);
    match free {
        Some(free) => {
            shape[free] = total.over(&known)?;
            (total.known().is_none() || shape[free].times(&known)? == total).then_some(shape)
        }
        // Where both are numbers, they are equal; elsewhere the node has an answer only where they are.
        None => (total == known || total.known().is_none() || known.known().is_none()).then_some(shape),
    }
}

/// Types and shapes of what `node` makes; none if they do not follow from what is known.
#[must_use]
pub fn of(node: &Node, opset: i64, inputs: &[Option<&Value>]) -> Option<Made> {
    let get = |i: usize| inputs.get(i).copied().flatten();
    let first = get(0);
    if node.op == "MultiHeadAttention" && node.domain == MICROSOFT && node.outputs.len() == 1 {
        let ([b, n, _], [_, _, width]) = (first?.shape.as_slice(), get(2)?.shape.as_slice()) else {
            return None;
        };
        return Some(vec![(first?.kind, vec![b.clone(), n.clone(), width.clone()])]);
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
            one(first?.kind, permutation(node, shape.len())?.into_iter().map(|axis| shape[axis].clone()).collect())
        }
        "Squeeze" => {
            let shape = &first?.shape;
            let given = node.ints("axes").is_some() || node.input(1).is_some();
            let mut gone: Vec<bool> = shape.iter().map(|n| n.is(1) && !given).collect();
            // Whether a free axis goes would depend on its size.
            (given || shape.iter().all(|n| n.known().is_some())).then_some(())?;
            if given {
                for axis in numbers(node, inputs, "axes", 1)? {
                    let axis = place(axis, shape.len())?;
                    // Named, it is 1 wherever the node has an answer.
                    gone[axis] = shape[axis].known().is_none_or(|n| n == 1);
                    gone[axis].then_some(())?;
                }
            }
            one(first?.kind, (0..shape.len()).filter(|&axis| !gone[axis]).map(|axis| shape[axis].clone()).collect())
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
                new.into_iter().map(|new| if new { Some(Size::from(1)) } else { old.next() }).collect::<Option<_>>()?,
            )
        }
        "Expand" => {
            one(first?.kind, broadcast(&[&first?.shape, &lengths(get(1)?)?])?)
        }
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
        "Conv" => {
            let ([batch, _, input @ ..], [made, _, kernel @ ..]) =
                (first?.shape.as_slice(), get(1)?.shape.as_slice())
            else {
                return None;
            };
            (input.len() == kernel.len()).then_some(())?;
            one(first?.kind, [&[batch.clone(), made.clone()], windowed(node, input, kernel)?.as_slice()].concat())
        }
        "MaxPool" | "AveragePool" => {
            let [batch, channels, input @ ..] = first?.shape.as_slice() else { return None };
            let kernel: Vec<Size> = node.ints("kernel_shape")?.iter().map(|&n| Size::from(n)).collect();
            (input.len() == kernel.len()).then_some(())?;
            one(first?.kind, [&[batch.clone(), channels.clone()], windowed(node, input, &kernel)?.as_slice()].concat())
        }
        "GlobalAveragePool" | "GlobalMaxPool" => {
            let shape = &first?.shape;
            one(
                first?.kind,
                shape.iter().enumerate().map(|(axis, n)| if axis < 2 { n.clone() } else { Size::from(1) }).collect(),
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
        "Attention" if opset >= 23 => {
            let (q, v) = (first?, get(2)?);
            match (q.shape.as_slice(), v.shape.as_slice()) {
                ([b, h, n, _], [_, _, _, d]) => {
                    one(q.kind, [b, h, n, d].into_iter().cloned().collect())
                }
                ([b, n, _], [_, _, width]) => {
                    let heads = Size::from(node.int("q_num_heads")?);
                    let dim = width.over(&Size::from(node.int("kv_num_heads")?))?;
                    one(q.kind, vec![b.clone(), n.clone(), heads.times(&dim)?])
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
