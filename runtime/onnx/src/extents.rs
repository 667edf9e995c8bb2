//! Sizes of the outputs of slices, concatenations, sliding windows and resized pictures, and types of quantized
//! outputs.

use super::array::Kind;
use super::node::{Attribute, Node};
use super::size::Size;
use super::value::{Data, Value, broadcast, place};

/// Returns integers that a node receives as attribute `name` in older opsets, or as input `i` in newer opsets.
#[must_use]
pub fn numbers(node: &Node, inputs: &[Option<&Value>], name: &str, i: usize) -> Option<Vec<i64>> {
    match node.ints(name) {
        Some(all) => Some(all.to_vec()),
        None => inputs.get(i).copied().flatten()?.integers(),
    }
}

/// Returns sizes that a node receives as attribute `name` in older opsets, or as input `i` in newer opsets.
#[must_use]
pub fn sizes(node: &Node, inputs: &[Option<&Value>], name: &str, i: usize) -> Option<Vec<Size>> {
    match node.ints(name) {
        Some(all) => Some(all.iter().map(|&n| Size::from(n)).collect()),
        None => inputs.get(i).copied().flatten()?.sizes(),
    }
}

/// Clamps `at` to `low..=high`; a negative `at` counts from the end of an axis of size `n`.
fn within(at: &Size, n: &Size, low: &Size, high: &Size) -> Option<Size> {
    // A number beyond every axis means the end of the axis. Other symbolic positions count from the front.
    let from = match at.known() {
        Some(x) if x >= i64::from(i32::MAX) => return Some(high.clone()),
        Some(x) if x <= -i64::from(i32::MAX) => return Some(low.clone()),
        Some(x) if x < 0 => at.plus(n)?,
        None if at.times(&Size::from(-1))?.is_count() => at.plus(n)?,
        _ => at.clone(),
    };
    Some(from.most(low).least(high))
}

/// Returns each axis that `Slice` cuts, with its start, its step and the number of elements that remain.
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
            let (start, end) = (within(&starts[i], n, &zero, n)?, within(&ends[i], n, &zero, n)?);
            let length = end.minus(&start)?.most(&zero);
            (start, length.over_up(&Size::from(step))?)
        } else {
            // Negative steps are supported only along axes that are not free.
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

/// Returns the axis of `Split` and the sizes of its parts.
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
    (all.len() == parts && sum == *n && all.iter().all(|n| n.known().is_none_or(|n| n >= 0)))
        .then_some((axis, all))
}

/// Returns two facts about a reduction: for each axis, whether the axis is reduced; and whether reduced axes are kept
/// with size 1.
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

/// Returns the elements of `value` as lengths of axes; `None` if one is known to be negative.
#[must_use]
pub fn lengths(value: &Value) -> Option<Vec<Size>> {
    let all = value.sizes()?;
    all.iter().all(|n| n.known().is_none_or(|n| n >= 0)).then_some(all)
}

/// Returns the shape of a matrix product.
#[must_use]
pub fn matmul(a: &[Size], b: &[Size]) -> Option<Vec<Size>> {
    let ([batch_a @ .., m, k], [batch_b @ .., l, n]) = (a, b) else { return None };
    let mut shape = broadcast(&[batch_a, batch_b])?;
    shape.extend([m.clone(), n.clone()]);
    // A joint size equals each of the sizes that it joins, except sizes of 1.
    (k == l || k.joined().contains(l) || l.joined().contains(k)).then_some(shape)
}

/// Returns the attribute `name`, a list of `n` integers. If the attribute is absent, each integer is `default`.
fn listed(node: &Node, name: &str, n: usize, default: i64) -> Option<Vec<Size>> {
    match node.ints(name) {
        Some(all) if all.len() == n => Some(all.iter().map(|&x| Size::from(x)).collect()),
        Some(_) => None,
        None => Some(vec![Size::from(default); n]),
    }
}

/// Returns `true` if the node pads its input so that the output's sizes depend only on the strides.
fn pads_to_same(node: &Node) -> bool {
    matches!(node.attributes.get("auto_pad"), Some(Attribute::Text(text)) if text.starts_with(b"SAME"))
}

/// Returns the sizes of the output's spatial axes if a window of size `kernel` slides over `input`, as in convolutions
/// and poolings.
#[must_use]
pub fn windowed(node: &Node, input: &[Size], kernel: &[Size]) -> Option<Vec<Size>> {
    let rank = input.len();
    let of = |name: &str, n: usize, default: i64| listed(node, name, n, default);
    let (strides, dilations) = (of("strides", rank, 1)?, of("dilations", rank, 1)?);
    let pads = of("pads", rank * 2, 0)?;
    let one = Size::from(1);
    (0..rank)
        .map(|axis| {
            let stride = if strides[axis].is(0) { &one } else { &strides[axis] };
            if pads_to_same(node) {
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

/// Returns the shape of the convolution of `input` with `weight`.
#[must_use]
pub fn convolved(node: &Node, input: &[Size], weight: &[Size]) -> Option<Vec<Size>> {
    let ([batch, _, input @ ..], [made, _, kernel @ ..]) = (input, weight) else { return None };
    (input.len() == kernel.len()).then_some(())?;
    let mut shape = vec![batch.clone(), made.clone()];
    shape.extend(windowed(node, input, kernel)?);
    Some(shape)
}

/// Returns the shape of the transposed convolution of `input` with `weight`.
#[must_use]
pub fn deconvolved(node: &Node, input: &[Size], weight: &[Size]) -> Option<Vec<Size>> {
    let ([batch, _, input @ ..], [_, made, kernel @ ..]) = (input, weight) else { return None };
    let rank = input.len();
    (rank == kernel.len()).then_some(())?;
    let groups = node.int("group").unwrap_or(1);
    (groups > 0).then_some(())?;
    let mut shape = vec![batch.clone(), made.times(&Size::from(groups))?];
    let is_size = |n: &Size| n.known().is_none_or(|n| n >= 0);
    if let Some(given) = node.ints("output_shape") {
        // Older versions of the operator also list the batch and the channels.
        let start = given.len().checked_sub(rank)?;
        shape.extend(given[start..].iter().map(|&n| Size::from(n)));
        return shape.iter().all(is_size).then_some(shape);
    }
    let of = |name: &str, n: usize, default: i64| listed(node, name, n, default);
    let (strides, dilations) = (of("strides", rank, 1)?, of("dilations", rank, 1)?);
    let (pads, more) = (of("pads", rank * 2, 0)?, of("output_padding", rank, 0)?);
    let one = Size::from(1);
    for axis in 0..rank {
        if pads_to_same(node) {
            shape.push(input[axis].times(&strides[axis])?);
            continue;
        }
        let reach = kernel[axis].minus(&one)?.times(&dilations[axis])?.plus(&one)?;
        let moved = input[axis].minus(&one)?.times(&strides[axis])?.plus(&reach)?.plus(&more[axis])?;
        let n = moved.minus(&pads[axis])?.minus(&pads[axis + rank])?;
        shape.push(n);
    }
    shape.iter().all(is_size).then_some(shape)
}

/// Returns `n · scale`, rounded down as `Resize` rounds it. Returns `None` if the product is not known exactly: a free
/// axis with a scale that is neither an integer nor the inverse of one, or a product that f32 and f64 round
/// differently.
fn scaled(n: &Size, scale: f64) -> Option<Size> {
    let whole = |x: f64| (x.fract() == 0.0 && (1.0..1e6).contains(&x)).then_some(Size::from(x as i64));
    if let Some(times) = whole(scale) {
        return n.times(&times);
    }
    if let Some(parts) = whole(1.0 / scale) {
        return n.over(&parts);
    }
    let n = n.known()? as f64;
    let (exact, single) = ((n * scale).floor(), f64::from(n as f32 * scale as f32).floor());
    (exact == single && (0.0..1e9).contains(&exact)).then_some(Size::from(exact as i64))
}

/// Returns the shape of the output of `Resize` or `Upsample`.
#[must_use]
pub fn resized(node: &Node, inputs: &[Option<&Value>]) -> Option<Vec<Size>> {
    let get = |i: usize| inputs.get(i).copied().flatten();
    // The sizes of the axes depend on each other under any other policy.
    match node.attributes.get("keep_aspect_ratio_policy") {
        Some(Attribute::Text(policy)) if policy.as_slice() == b"stretch" => {}
        Some(_) => return None,
        None => {}
    }
    let mut shape = get(0)?.shape.clone();
    let axes: Vec<usize> = match node.ints("axes") {
        Some(axes) => axes.iter().map(|&axis| place(axis, shape.len())).collect::<Option<_>>()?,
        None => (0..shape.len()).collect(),
    };
    if node.input(3).is_some() {
        let sizes = lengths(get(3)?)?;
        (sizes.len() == axes.len()).then_some(())?;
        axes.into_iter().zip(sizes).for_each(|(axis, n)| shape[axis] = n);
        return Some(shape);
    }
    // A region of interest would scale the sizes, too.
    let mode = node.attributes.get("coordinate_transformation_mode");
    if matches!(mode, Some(Attribute::Text(mode)) if mode.starts_with(b"tf_crop")) {
        return None;
    }
    let scales: Vec<f64> = match node.attributes.get("scales") {
        Some(Attribute::Floats(all)) => all.iter().map(|&x| f64::from(x)).collect(),
        Some(_) => return None,
        // From opset 11 on, the second input is the region of interest.
        None => match &get(if node.inputs.len() == 2 { 1 } else { 2 })?.data {
            Data::Numbers(all) => all.to_vec(),
            _ => return None,
        },
    };
    (scales.len() == axes.len()).then_some(())?;
    for (axis, scale) in axes.into_iter().zip(scales) {
        shape[axis] = scaled(&shape[axis], scale)?;
    }
    Some(shape)
}

/// Returns the type of the output of `QuantizeLinear` or `DequantizeLinear`.
#[must_use]
pub fn quantized(node: &Node, inputs: &[Option<&Value>]) -> Option<Kind> {
    let kind = |i: usize| Some(inputs.get(i).copied().flatten()?.kind);
    match node.int("output_dtype").filter(|&kind| kind != 0) {
        Some(given) => Some(Kind(given)),
        None if node.op == "DequantizeLinear" => kind(1),
        // The output has the type of the zero point.
        None if node.input(2).is_some() => kind(2),
        None => Some(Kind::U8),
    }
}

/// Returns `input` and `shape` without the sizes that occur in both.
fn rests(input: &[Size], shape: &[Size]) -> [Vec<Size>; 2] {
    let (mut left, mut given) = (input.to_vec(), shape.to_vec());
    given.retain(|size| match left.iter().position(|other| other == size) {
        Some(at) => {
            left.remove(at);
            false
        }
        None => true,
    });
    [left, given]
}

/// Returns a free axis of `input` and the only size of it with which a `Reshape` keeps the number of elements, unless
/// the tensor is empty. Returns `None` if there are several such sizes.
#[must_use]
pub fn reshaped_axis(node: &Node, input: &[Size], target: &[Size]) -> Option<(Size, Size)> {
    let zero = node.int("allowzero").unwrap_or(0) != 0;
    let size =
        |(axis, n): (usize, &Size)| if n.is(0) && !zero { input.get(axis).cloned() } else { Some(n.clone()) };
    let shape = target.iter().enumerate().map(size).collect::<Option<Vec<_>>>()?;
    let [left, given] = rests(input, &shape);
    let (known, free): (Vec<Size>, Vec<Size>) = left.into_iter().partition(|size| size.known().is_some());
    let [axis] = &free[..] else { return None };
    axis.name()?;
    // Any size of the axis fits a -1.
    if shape.iter().any(|n| n.known().is_some_and(i64::is_negative)) {
        return None;
    }
    let (whole, part) = (Size::product(&given)?.known()?, Size::product(&known)?.known()?);
    (part > 0 && whole > 0 && whole % part == 0).then(|| (axis.clone(), Size::from(whole / part)))
}

/// Returns the shape of `Reshape` applied to `input`.
#[must_use]
pub fn reshape(node: &Node, input: &[Size], target: &[Size]) -> Option<Vec<Size>> {
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
    // Sizes that occur on both sides are removed, because dividing by them is unnecessary.
    let [left, given] = rests(input, &shape);
    let (total, known) = (Size::product(&left)?, Size::product(&given)?);
    match free {
        Some(free) => {
            shape[free] = total.over(&known)?;
            (total.known().is_none() || shape[free].times(&known)? == total).then_some(shape)
        }
        // Two known products must be equal. If one is unknown, the node is defined only where they are equal.
        None => (total == known || total.known().is_none() || known.known().is_none()).then_some(shape),
    }
}
