//! Evaluates in f64 the operators of the nodes around an attention.
//!
//! Inputs and constants have their stored values. Sums, products and exponentials are computed in f64. Casts between
//! floating-point types do not round, because the rewriter compares the meaning of a graph, not its rounding.

use super::array::{Array, Kind, count};
use super::extents;
use super::node::{Attribute, Node};
use super::shapes;
use super::value::{Value, counts, place};

/// Maximum number of elements of a computed tensor.
pub const LARGEST: usize = 1 << 25;

/// Limits of the computation for a model. Attention that exceeds them is not replaced.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of elements of a tensor; not above `LARGEST`.
    pub elements: usize,
    /// Maximum number of multiplications in one matrix product, or in one attention.
    pub work: usize,
}

impl Limits {
    /// Limits for models that are to be rewritten.
    pub const WHOLE: Limits = Limits { elements: LARGEST, work: 1 << 35 };
    /// Limits for untrusted models. Under these limits, a rewrite takes milliseconds.
    pub const SMALL: Limits = Limits { elements: 1 << 12, work: 1 << 18 };
}

/// Gathers the elements `x[offset + Σ coordinate · stride]` in the order of `shape`.
fn strided(x: &[f64], shape: &[usize], offset: isize, strides: &[isize]) -> Option<Vec<f64>> {
    let n = count(shape, LARGEST)?;
    let mut out = Vec::with_capacity(n);
    if n == 0 {
        return Some(out);
    }
    let Some((&last, outer)) = shape.split_last() else {
        return Some(vec![*x.get(usize::try_from(offset).ok()?)?]);
    };
    let step = strides[outer.len()];
    let mut at = vec![0usize; outer.len()];
    let mut start = offset;
    loop {
        for i in 0..last {
            out.push(*x.get(usize::try_from(start + i.cast_signed() * step).ok()?)?);
        }
        let mut axis = outer.len();
        loop {
            if axis == 0 {
                return Some(out);
            }
            axis -= 1;
            at[axis] += 1;
            start += strides[axis];
            if at[axis] < outer[axis] {
                break;
            }
            start -= strides[axis] * outer[axis].cast_signed();
            at[axis] = 0;
        }
    }
}

/// Returns the strides of a dense tensor, in elements.
fn steps(shape: &[usize]) -> Vec<isize> {
    let mut all = vec![1isize; shape.len()];
    for axis in (1..shape.len()).rev() {
        all[axis - 1] = all[axis].saturating_mul(shape[axis].cast_signed());
    }
    all
}

/// Repeats `array` along axes of size 1 until it has `shape`.
pub fn expanded(array: &Array, shape: &[usize]) -> Option<Vec<f64>> {
    if array.shape == shape {
        return Some(array.data.to_vec());
    }
    let own = steps(&array.shape);
    let lead = shape.len().checked_sub(array.shape.len())?;
    let strides: Vec<isize> = (0..shape.len())
        .map(|axis| if axis < lead || array.shape[axis - lead] == 1 { 0 } else { own[axis - lead] })
        .collect();
    strided(&array.data, shape, 0, &strides)
}

fn product(a: &Array, b: &Array, shape: &[usize], limits: Limits) -> Option<Vec<f64>> {
    let ([.., m, k], [.., n]) = (a.shape.as_slice(), b.shape.as_slice()) else { return None };
    let (m, k, n) = (*m, *k, *n);
    let outer = &shape[..shape.len() - 2];
    let batches = count(outer, LARGEST)?;
    count(&[batches, m, k, n], limits.work)?;
    // Both factors are expanded to the full batch.
    count(&[batches, m, k], limits.elements)?;
    count(&[batches, k, n], limits.elements)?;
    let whole = |rows: usize, columns: usize| [outer, &[rows, columns]].concat();
    let (a, b) = (expanded(a, &whole(m, k))?, expanded(b, &whole(k, n))?);
    let mut out = vec![0.0; count(shape, LARGEST)?];
    for i in 0..batches {
        for row in 0..m {
            let into = &mut out[(i * m + row) * n..][..n];
            for x in 0..k {
                let factor = a[(i * m + row) * k + x];
                for (into, &b) in into.iter_mut().zip(&b[(i * k + x) * n..][..n]) {
                    *into += factor * b;
                }
            }
        }
    }
    Some(out)
}

/// Returns `true` if a scatter replaces elements, and adds or multiplies none.
fn replaces(node: &Node) -> bool {
    node.text("reduction").is_none_or(|reduction| reduction == "none")
}

fn softmax(x: &mut [f64], n: usize) {
    for row in x.chunks_exact_mut(n.max(1)) {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // A row of `−∞` becomes NaN, as ONNX defines it.
        row.iter_mut().for_each(|x| *x = (*x - max).exp());
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|x| *x /= sum);
    }
}

/// Evaluates a unary operator, given by its name.
pub fn unary(op: &str, x: f64) -> Option<f64> {
    Some(match op {
        "Neg" => -x,
        "Abs" => x.abs(),
        "Sqrt" => x.sqrt(),
        "Exp" => x.exp(),
        "Log" => x.ln(),
        "Tanh" => x.tanh(),
        "Sigmoid" => 1.0 / (1.0 + (-x).exp()),
        "Reciprocal" => 1.0 / x,
        "Floor" => x.floor(),
        "Ceil" => x.ceil(),
        "Sin" => x.sin(),
        "Cos" => x.cos(),
        "Relu" => x.max(0.0),
        "Sign" => {
            if x > 0.0 {
                1.0
            } else if x < 0.0 {
                -1.0
            } else {
                x
            }
        }
        "Not" => f64::from(u8::from(x == 0.0)),
        "IsNaN" => f64::from(u8::from(x.is_nan())),
        "Identity" | "Dropout" => x,
        _ => return None,
    })
}

/// Evaluates a binary operator, given by its name.
pub fn binary(op: &str, integers: bool, a: f64, b: f64) -> Option<f64> {
    let truth = |x: bool| f64::from(u8::from(x));
    Some(match op {
        "Add" | "Sum" => a + b,
        "Sub" => a - b,
        "Mul" => a * b,
        "Div" if integers => (b != 0.0).then(|| (a / b).trunc())?,
        "Div" => a / b,
        "Pow" => a.powf(b),
        // The result has the sign of the divisor, as in ONNX without fmod.
        "Mod" if integers => (b != 0.0).then(|| a - b * (a / b).floor())?,
        "Max" => a.max(b),
        "Min" => a.min(b),
        "Equal" => truth(a == b),
        "Less" => truth(a < b),
        "Greater" => truth(a > b),
        "LessOrEqual" => truth(a <= b),
        "GreaterOrEqual" => truth(a >= b),
        "And" => truth(a != 0.0 && b != 0.0),
        "Or" => truth(a != 0.0 || b != 0.0),
        "Xor" => truth((a != 0.0) != (b != 0.0)),
        _ => return None,
    })
}

/// Computes the outputs of `node` from `inputs`; `None` if the operator is not supported, or if a tensor is too large.
#[must_use]
pub fn eval(
    file: &[u8],
    node: &Node,
    opset: i64,
    inputs: &[Option<&Array>],
    limits: Limits,
) -> Option<Vec<Array>> {
    node.domain.is_empty().then_some(())?;
    let values: Vec<Option<Value>> =
        inputs.iter().map(|array| array.map(|array| array.clone().into())).collect();
    let values: Vec<Option<&Value>> = values.iter().map(Option::as_ref).collect();
    let mut made = Vec::new();
    for (kind, shape) in shapes::of(node, opset, &values)? {
        let shape = counts(&shape)?;
        count(&shape, limits.elements)?;
        made.push((kind, shape));
    }
    let (kind, shape) = made.first()?.clone();
    let get = |i: usize| inputs.get(i).copied().flatten();
    let same = |array: &Array| vec![Array { kind, shape: shape.clone(), data: array.data.clone() }];
    let one = |data: Vec<f64>| vec![Array::new(kind, shape.clone(), data)];
    let n = count(&shape, LARGEST)?;
    Some(match node.op.as_str() {
        "Constant" => match node.attributes.values().next()? {
            Attribute::Tensor(stored) => vec![stored.array(file, LARGEST)?],
            Attribute::Float(x) => one(vec![f64::from(*x)]),
            Attribute::Int(x) => one(vec![*x as f64]),
            Attribute::Floats(all) => one(all.iter().map(|&x| f64::from(x)).collect()),
            Attribute::Ints(all) => one(all.iter().map(|&x| x as f64).collect()),
            _ => return None,
        },
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => same(get(0)?),
        "Identity" => same(get(0)?),
        "Dropout" => {
            if get(2).is_some_and(|training| training.scalar() != Some(0.0)) || node.outputs.len() > 1 {
                return None;
            }
            same(get(0)?)
        }
        "Cast" => {
            let from = get(0)?;
            if kind.is_float() && from.kind.is_float() {
                return Some(same(from));
            }
            one(from.data.iter().map(|&x| kind.rounded(x)).collect())
        }
        "Shape" => {
            let all = &get(0)?.shape;
            let start = node.int("start").unwrap_or(0);
            let rank = i64::try_from(all.len()).ok()?;
            let start =
                usize::try_from(if start < 0 { start.saturating_add(rank) } else { start }.clamp(0, rank))
                    .ok()?;
            one(all[start..start + n].iter().map(|&n| n as f64).collect())
        }
        "Size" => one(vec![get(0)?.data.len() as f64]),
        "ConstantOfShape" => {
            let value = match node.attributes.get("value") {
                Some(Attribute::Tensor(stored)) => stored.array(file, 1)?.scalar()?,
                _ => 0.0,
            };
            one(vec![value; n])
        }
        "Range" => {
            let (start, delta) = (get(0)?.scalar()?, get(2)?.scalar()?);
            one((0..n).map(|i| start + i as f64 * delta).collect())
        }
        "Where" => {
            let [c, a, b] = [0, 1, 2].map(|i| expanded(get(i)?, &shape));
            let (c, a, b) = (c?, a?, b?);
            one((0..n).map(|i| if c[i] != 0.0 { a[i] } else { b[i] }).collect())
        }
        "Clip" => {
            let bound = |i: usize, name: &str, default: f64| match (get(i), node.float(name)) {
                (Some(array), _) => array.scalar(),
                (None, Some(x)) => Some(f64::from(x)),
                (None, None) => Some(default),
            };
            let (low, high) = (bound(1, "min", f64::NEG_INFINITY)?, bound(2, "max", f64::INFINITY)?);
            one(get(0)?.data.iter().map(|&x| x.max(low).min(high)).collect())
        }
        "MatMul" => one(product(get(0)?, get(1)?, &shape, limits)?),
        "Gemm" => {
            let turned = |name: &str| node.int(name).unwrap_or(0) != 0;
            if turned("transA") || get(2).is_none() || node.float("alpha").unwrap_or(1.0) != 1.0 {
                return None;
            }
            let b = get(1)?;
            let [l, k] = b.shape.as_slice() else { return None };
            let b = if turned("transB") {
                Array::new(b.kind, vec![*k, *l], strided(&b.data, &[*k, *l], 0, &[1, k.cast_signed()])?)
            } else {
                b.clone()
            };
            let c = expanded(get(2)?, &shape)?;
            let beta = f64::from(node.float("beta").unwrap_or(1.0));
            one(product(get(0)?, &b, &shape, limits)?.into_iter().zip(c).map(|(x, c)| x + beta * c).collect())
        }
        "Softmax" => {
            let axis = place(node.int("axis").unwrap_or(if opset < 13 { 1 } else { -1 }), shape.len())?;
            if axis + 1 != shape.len() {
                return None;
            }
            let mut data = get(0)?.data.to_vec();
            softmax(&mut data, shape[axis]);
            one(data)
        }
        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceL2" => {
            reduce(node, &values, get(0)?, &one)?
        }
        "Transpose" => {
            let from = get(0)?;
            let own = steps(&from.shape);
            let strides: Vec<isize> =
                shapes::permutation(node, own.len())?.into_iter().map(|axis| own[axis]).collect();
            one(strided(&from.data, &shape, 0, &strides)?)
        }
        "Expand" => one(expanded(get(0)?, &shape)?),
        "Tile" => {
            let from = get(0)?;
            let own = steps(&from.shape);
            let place = |mut at: usize| {
                let mut place = 0;
                for axis in (0..shape.len()).rev() {
                    place += at % shape[axis] % from.shape[axis] * own[axis].cast_unsigned();
                    at /= shape[axis];
                }
                from.data.get(place).copied()
            };
            one((0..n).map(place).collect::<Option<_>>()?)
        }
        "Slice" => {
            let from = get(0)?;
            let mut strides = steps(&from.shape);
            let mut offset = 0isize;
            for (axis, start, step, _) in extents::slices(node, &values)? {
                offset =
                    offset.checked_add(strides[axis].checked_mul(isize::try_from(start.known()?).ok()?)?)?;
                strides[axis] = strides[axis].checked_mul(isize::try_from(step).ok()?)?;
            }
            one(strided(&from.data, &shape, offset, &strides)?)
        }
        "Split" => {
            let from = get(0)?;
            let (axis, _) = extents::parts(node, &values)?;
            let strides = steps(&from.shape);
            let mut offset = 0;
            let mut all = Vec::new();
            for (kind, shape) in &made {
                all.push(Array::new(*kind, shape.clone(), strided(&from.data, shape, offset, &strides)?));
                offset += strides[axis] * shape[axis].cast_signed();
            }
            all
        }
        "Concat" => {
            let axis = place(node.int("axis")?, shape.len())?;
            let outer = count(&shape[..axis], LARGEST)?;
            let mut data = Vec::with_capacity(n);
            for i in 0..outer {
                for part in inputs.iter().flatten() {
                    let block = count(&part.shape[axis..], LARGEST)?;
                    data.extend(&part.data[i * block..][..block]);
                }
            }
            one(data)
        }
        "Gather" => {
            let (from, indices) = (get(0)?, get(1)?);
            let axis = place(node.int("axis").unwrap_or(0), from.shape.len())?;
            let (outer, size) = (count(&from.shape[..axis], LARGEST)?, from.shape[axis]);
            let inner = count(&from.shape[axis + 1..], LARGEST)?;
            let mut data = Vec::with_capacity(n);
            for i in 0..outer {
                for &index in indices.data.iter() {
                    let at = place(index as i64, size)?;
                    data.extend(&from.data[(i * size + at) * inner..][..inner]);
                }
            }
            one(data)
        }
        "ScatterND" if replaces(node) => {
            let (from, indices, updates) = (get(0)?, get(1)?, get(2)?);
            let depth = *indices.shape.last()?;
            let (own, mut data) = (steps(&from.shape), from.data.to_vec());
            let block = count(from.shape.get(depth..)?, LARGEST)?;
            for (i, index) in indices.data.chunks_exact(depth.max(1)).enumerate() {
                let mut start = 0;
                for (axis, &x) in index.iter().enumerate() {
                    start += place(x as i64, from.shape[axis])? * own[axis].cast_unsigned();
                }
                data.get_mut(start..)?
                    .get_mut(..block)?
                    .copy_from_slice(updates.data.get(i * block..)?.get(..block)?);
            }
            one(data)
        }
        "ScatterElements" if replaces(node) => {
            let (from, indices, updates) = (get(0)?, get(1)?, get(2)?);
            let axis = place(node.int("axis").unwrap_or(0), shape.len())?;
            let (own, given, mut data) = (steps(&shape), steps(&indices.shape), from.data.to_vec());
            (indices.shape.len() == shape.len() && indices.shape == updates.shape).then_some(())?;
            for (i, (&x, &index)) in updates.data.iter().zip(indices.data.iter()).enumerate() {
                let mut to = 0;
                for other in 0..shape.len() {
                    let at = i / given[other].cast_unsigned() % indices.shape[other];
                    let at = if other == axis { place(index as i64, shape[axis])? } else { at };
                    (at < shape[other]).then_some(())?;
                    to += at * own[other].cast_unsigned();
                }
                data[to] = x;
            }
            one(data)
        }
        "Pad" if node.text("mode").is_none_or(|mode| mode == "constant") && get(3).is_none() => {
            let (from, pads) = (get(0)?, get(1)?);
            let value = get(2).map_or(Some(0.0), Array::scalar)?;
            let (own, made) = (steps(&from.shape), steps(&shape));
            let element = |i: usize| {
                let mut at = 0;
                for axis in 0..shape.len() {
                    let index =
                        (i / made[axis].cast_unsigned() % shape[axis]) as i64 - pads.data[axis] as i64;
                    let Some(index) = usize::try_from(index).ok().filter(|&index| index < from.shape[axis])
                    else {
                        return value;
                    };
                    at += index * own[axis].cast_unsigned();
                }
                from.data[at]
            };
            (pads.data.len() == 2 * shape.len()).then(|| one((0..n).map(element).collect()))?
        }
        "Trilu" => {
            let k = get(1).map_or(Some(0.0), Array::scalar)? as i64;
            let upper = node.int("upper").unwrap_or(1) != 0;
            let [.., rows, columns] = shape.as_slice() else { return None };
            let keeps = |i: usize| {
                let (row, column) = ((i / columns % rows) as i64, (i % columns) as i64);
                let distance = column - row;
                if upper { distance >= k } else { distance <= k }
            };
            one(get(0)?.data.iter().enumerate().map(|(i, &x)| if keeps(i) { x } else { 0.0 }).collect())
        }
        "CumSum" if ["exclusive", "reverse"].iter().all(|name| node.int(name).unwrap_or(0) == 0) => {
            let axis = place(get(1)?.scalar()? as i64, shape.len())?;
            let inner = count(&shape[axis + 1..], LARGEST)?;
            let mut data = get(0)?.data.to_vec();
            for line in data.chunks_exact_mut((shape[axis] * inner).max(1)) {
                (inner..line.len()).for_each(|i| line[i] += line[i - inner]);
            }
            one(data)
        }
        op => match (inputs.len(), get(0)?) {
            (1, array) => one(array.data.iter().map(|&x| unary(op, x)).collect::<Option<_>>()?),
            (_, array) => {
                let integers = !array.kind.is_float() && array.kind != Kind::BOOL;
                let mut data = expanded(array, &shape)?;
                for other in &inputs[1..] {
                    let other = expanded((*other)?, &shape)?;
                    for (x, y) in data.iter_mut().zip(other) {
                        *x = binary(op, integers, *x, y)?;
                    }
                }
                one(data)
            }
        },
    })
}

fn reduce(
    node: &Node,
    values: &[Option<&Value>],
    from: &Array,
    one: &dyn Fn(Vec<f64>) -> Vec<Array>,
) -> Option<Vec<Array>> {
    let (gone, _) = extents::reduced(node, values)?;
    let kept: Vec<usize> = from.shape.iter().zip(&gone).map(|(&n, &gone)| if gone { 1 } else { n }).collect();
    let own = steps(&kept);
    let strides: Vec<isize> =
        own.iter().zip(&gone).map(|(&step, &gone)| if gone { 0 } else { step }).collect();
    let n = count(&kept, LARGEST)?;
    // Output position of each element: the position along the kept axes, repeated along the reduced axes.
    let places: Vec<f64> = (0..n).map(|i| i as f64).collect();
    let places = strided(&places, &from.shape, 0, &strides)?;
    let (start, op) = (
        if node.op == "ReduceMax" {
            f64::NEG_INFINITY
        } else if node.op == "ReduceMin" {
            f64::INFINITY
        } else {
            0.0
        },
        node.op.as_str(),
    );
    let mut out = vec![start; n];
    for (&x, &place) in from.data.iter().zip(&places) {
        let into = &mut out[place as usize];
        *into = match op {
            "ReduceMax" => into.max(x),
            "ReduceMin" => into.min(x),
            "ReduceL2" => *into + x * x,
            _ => *into + x,
        };
    }
    match op {
        "ReduceMean" => out.iter_mut().for_each(|x| *x /= (from.data.len() / n.max(1)).max(1) as f64),
        "ReduceL2" => out.iter_mut().for_each(|x| *x = x.sqrt()),
        _ => {}
    }
    Some(one(out))
}
