//! Magnitudes of tensors, and the errors of f16 in storage and in sums.
//!
//! A sum in f16 is computed as a single accumulator computes it: the terms are added in the order of memory, and each
//! step is rounded once, as a fused multiply-add rounds. Hardware that adds in f32, or in several accumulators, loses
//! less. Elements of at most `-1e9` are masks: f16 turns them into `-inf`, which a softmax treats alike, so they count
//! for nothing here.

use super::super::node::Node;
use elsa_onnxruntime::{Data, HostTensor};
use fastrand::Rng;
use half::f16;

/// Largest finite f16.
pub const MOST: f64 = 65_504.0;
/// Smallest positive f16.
pub const LEAST: f64 = 5.960_464_477_539_063e-8;
/// Largest element that is treated as a mask.
const MASKED: f32 = -1e9;
/// Number of elements of a product whose sums are computed in f16.
const SAMPLES: usize = 256;

/// If the scores within a node take more than this number of multiplications, only some queries are measured.
const WORK: usize = 1 << 28;

/// Rounds to f16 and back.
fn rounded(x: f64) -> f64 {
    f16::from_f64(x).to_f64()
}

/// Magnitudes of one or several tensors, and the error of their storage in f16.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Magnitudes {
    /// Largest magnitude.
    pub most: f64,
    /// Smallest magnitude above zero; infinite if all elements are zero.
    pub least: f64,
    /// Number of elements above zero in magnitude.
    pub count: usize,
    /// Number of these elements that become zero in f16.
    pub flushed: usize,
    /// Number of finite elements that become infinite in f16.
    pub overflows: usize,
    lost: f64,
    square: f64,
}

impl Default for Magnitudes {
    fn default() -> Magnitudes {
        Magnitudes {
            most: 0.0,
            least: f64::INFINITY,
            count: 0,
            flushed: 0,
            overflows: 0,
            lost: 0.0,
            square: 0.0,
        }
    }
}

impl Magnitudes {
    /// Measures the elements of a tensor. Infinite elements, NaN and masks are left out.
    #[must_use]
    pub fn of(x: &[f32]) -> Magnitudes {
        let mut all = Magnitudes::default();
        for &x in x.iter().filter(|x| x.is_finite() && **x > MASKED && **x != 0.0) {
            let (x, half) = (f64::from(x.abs()), rounded(f64::from(x.abs())));
            all.most = all.most.max(x);
            all.least = all.least.min(x);
            all.count += 1;
            all.square += x * x;
            if half.is_finite() {
                all.flushed += usize::from(half == 0.0);
                all.lost += (x - half) * (x - half);
            } else {
                all.overflows += 1;
            }
        }
        all
    }

    /// Returns the magnitudes of the elements of both.
    #[must_use]
    pub fn and(self, other: Magnitudes) -> Magnitudes {
        Magnitudes {
            most: self.most.max(other.most),
            least: self.least.min(other.least),
            count: self.count + other.count,
            flushed: self.flushed + other.flushed,
            overflows: self.overflows + other.overflows,
            lost: self.lost + other.lost,
            square: self.square + other.square,
        }
    }

    /// Returns the norm of the rounding errors relative to the norm of the elements; infinite if an element overflows.
    #[must_use]
    pub fn stored(&self) -> f64 {
        if self.overflows > 0 {
            f64::INFINITY
        } else if self.square == 0.0 {
            0.0
        } else {
            (self.lost / self.square).sqrt()
        }
    }
}

/// Sums within a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sums {
    /// Largest magnitude of a sum.
    pub most: f64,
    /// Norm of the errors of the sums in f16, relative to the norm of the sums; infinite if a sum overflows.
    pub error: f64,
}

impl Sums {
    /// Compares sums in f16 with exact sums. Each pair contains both.
    fn of(pairs: impl Iterator<Item = (f64, f64)>) -> Sums {
        let (mut most, mut lost, mut square) = (0.0f64, 0.0f64, 0.0f64);
        for (found, exact) in pairs {
            most = most.max(exact.abs());
            lost += (found - exact) * (found - exact);
            square += exact * exact;
        }
        let error = if !lost.is_finite() {
            f64::INFINITY
        } else if square == 0.0 {
            0.0
        } else {
            (lost / square).sqrt()
        };
        Sums { most, error }
    }
}

/// Terms of a sum over the elements of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// The elements.
    Value,
    /// Squares of the elements.
    Square,
    /// Squares of the differences from the mean.
    Centred,
    /// Exponentials of the differences from the largest element.
    Exponential,
}

/// Rows of a tensor: `outer` groups of `inner` rows with `length` elements each, which are `inner` elements apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Number of groups.
    pub outer: usize,
    /// Number of elements of a row.
    pub length: usize,
    /// Number of rows of a group.
    pub inner: usize,
}

impl Rows {
    /// Returns the rows over the axes from `from` to before `to` of a tensor.
    fn over(dims: &[usize], from: usize, to: usize) -> Option<Rows> {
        let size = |dims: &[usize]| dims.iter().product();
        Some(Rows {
            outer: size(dims.get(..from)?),
            length: size(dims.get(from..to)?),
            inner: size(dims.get(to..)?),
        })
    }
}

/// Computes the sum of each row of `x`, exactly and in f16.
#[must_use]
pub fn summed(x: &[f32], rows: Rows, term: Term) -> Option<Sums> {
    let Rows { outer, length, inner } = rows;
    let count = outer.checked_mul(inner)?;
    (length > 0 && count.checked_mul(length)? == x.len()).then_some(())?;
    let pairs = (0..count).map(|row| {
        let start = row / inner * length * inner + row % inner;
        let elements = || (0..length).map(move |i| f64::from(x[start + i * inner])).filter(|x| x.is_finite());
        let center = match term {
            Term::Centred => elements().sum::<f64>() / length as f64,
            Term::Exponential => elements().fold(f64::NEG_INFINITY, f64::max),
            Term::Value | Term::Square => 0.0,
        };
        let (mut found, mut exact) = (0.0f64, 0.0f64);
        for x in elements().map(|x| x - center) {
            let half = rounded(x);
            // The square of a number that is rounded to f16 is exact in f64.
            let (term, near) = match term {
                Term::Value => (x, half),
                Term::Square | Term::Centred => (x * x, half * half),
                Term::Exponential => (x.exp(), rounded(half.exp())),
            };
            exact += term;
            found = rounded(found + near);
        }
        (found, exact)
    });
    Some(Sums::of(pairs))
}

/// Returns the sizes of the axes.
fn sizes(tensor: &HostTensor) -> Option<Vec<usize>> {
    tensor.dims.iter().map(|&n| usize::try_from(n).ok()).collect()
}

fn elements(tensor: &HostTensor) -> Option<&[f32]> {
    if let Data::F32(x) = &tensor.data { Some(x) } else { None }
}

/// A batch of matrices, as a product reads them.
struct Matrices<'a> {
    x: &'a [f32],
    batch: Vec<usize>,
    /// Sizes of the last two axes in memory.
    stored: [usize; 2],
    /// `true` if the product reads the matrices transposed.
    turned: bool,
}

impl<'a> Matrices<'a> {
    fn of(tensor: &'a HostTensor, turned: bool) -> Option<Matrices<'a>> {
        let (x, mut batch) = (elements(tensor)?, sizes(tensor)?);
        let (columns, rows) = (batch.pop()?, batch.pop()?);
        Some(Matrices { x, batch, stored: [rows, columns], turned })
    }

    fn rows(&self) -> usize {
        self.stored[usize::from(self.turned)]
    }

    fn columns(&self) -> usize {
        self.stored[usize::from(!self.turned)]
    }

    /// Returns an element of the matrix at `place` in a batch of sizes `batch`, to which the matrices are broadcast.
    fn at(&self, batch: &[usize], place: usize, row: usize, column: usize) -> Option<f64> {
        let (mut rest, mut matrix, mut step) = (place, 0, 1);
        for (i, &size) in batch.iter().rev().enumerate() {
            let own = self.batch.len().checked_sub(i + 1).map_or(1, |axis| self.batch[axis]);
            matrix += if own == 1 { 0 } else { rest % size * step };
            step *= own;
            rest /= size;
        }
        let (row, column) = if self.turned { (column, row) } else { (row, column) };
        let at = (matrix * self.stored[0] + row) * self.stored[1] + column;
        self.x.get(at).map(|&x| f64::from(x))
    }
}

/// Computes elements of the product of `a` and `b`, exactly and in f16, from factors that are rounded to f16. Elements
/// with a factor that overflows are left out. `first` is the index of an element that is computed in any case.
#[must_use]
pub fn product(a: &HostTensor, b: &HostTensor, turned: [bool; 2], first: Option<usize>) -> Option<Sums> {
    let (a, b) = (Matrices::of(a, turned[0])?, Matrices::of(b, turned[1])?);
    let inner = a.columns();
    (inner == b.rows()).then_some(())?;
    let rank = a.batch.len().max(b.batch.len());
    let size =
        |of: &Matrices<'_>, i: usize| (i + of.batch.len()).checked_sub(rank).map_or(1, |i| of.batch[i]);
    let batch: Vec<usize> =
        (0..rank).map(|i| if size(&a, i) == 1 { size(&b, i) } else { size(&a, i) }).collect();
    let (rows, columns) = (a.rows(), b.columns());
    let total = batch.iter().product::<usize>().checked_mul(rows)?.checked_mul(columns)?;
    let mut random = Rng::with_seed(44);
    let drawn = (0..SAMPLES.min(total)).map(|i| if total <= SAMPLES { i } else { random.usize(..total) });
    let places: Vec<usize> = first.filter(|&first| first < total).into_iter().chain(drawn).collect();
    let mut pairs = Vec::new();
    for place in places {
        let (rest, column) = (place / columns, place % columns);
        let (matrix, row) = (rest / rows, rest % rows);
        let (mut found, mut exact) = (0.0f64, 0.0f64);
        for i in 0..inner {
            let x = rounded(a.at(&batch, matrix, row, i)?) * rounded(b.at(&batch, matrix, i, column)?);
            exact += x;
            found = rounded(found + x);
        }
        if exact.is_finite() {
            pairs.push((found, exact));
        }
    }
    Some(Sums::of(pairs.into_iter()))
}

/// Rows of the heads of queries or keys.
struct Heads<'a> {
    x: &'a [f32],
    batch: usize,
    heads: usize,
    tokens: usize,
    dim: usize,
    /// `true` if the heads of a token are neighbours in memory.
    packed: bool,
}

impl<'a> Heads<'a> {
    /// Reads a tensor of shape `[batch, heads, tokens, dim]`, or of shape `[batch, tokens, heads · dim]`.
    fn of(tensor: &'a HostTensor, heads: Option<i64>) -> Option<Heads<'a>> {
        let x = elements(tensor)?;
        match sizes(tensor)?[..] {
            [batch, heads, tokens, dim] => Some(Heads { x, batch, heads, tokens, dim, packed: false }),
            [batch, tokens, width] => {
                let heads = usize::try_from(heads?).ok()?;
                let dim = width.checked_div(heads).filter(|dim| dim * heads == width)?;
                Some(Heads { x, batch, heads, tokens, dim, packed: true })
            }
            _ => None,
        }
    }

    fn row(&self, batch: usize, head: usize, token: usize) -> Option<&'a [f32]> {
        let row = if self.packed {
            (batch * self.tokens + token) * self.heads + head
        } else {
            (batch * self.heads + head) * self.tokens + token
        };
        self.x.get(row * self.dim..(row + 1) * self.dim)
    }
}

/// Measures the scores within a node that computes attention. If there are many scores, only those of some queries are
/// measured. Returns `None` for other nodes, and for attention with earlier keys or a bias of its queries and keys.
#[must_use]
pub fn fused_scores<'a>(node: &Node, tensor: &dyn Fn(&str) -> Option<&'a HostTensor>) -> Option<Magnitudes> {
    let microsoft = node.op == "MultiHeadAttention";
    (microsoft || node.is("Attention")).then_some(())?;
    let more: &[usize] = if microsoft { &[3, 6] } else { &[4] };
    more.iter().all(|&i| node.input(i).is_none()).then_some(())?;
    let names = if microsoft { ["num_heads"; 2] } else { ["q_num_heads", "kv_num_heads"] };
    let q = Heads::of(tensor(node.input(0)?)?, node.int(names[0]))?;
    let k = Heads::of(tensor(node.input(1)?)?, node.int(names[1]))?;
    let group = q.heads.checked_div(k.heads).filter(|group| group * k.heads == q.heads)?;
    (q.batch == k.batch && q.dim == k.dim).then_some(())?;
    let scale = node.float("scale").map(f64::from).filter(|scale| *scale != 0.0);
    let scale = scale.unwrap_or(1.0 / (q.dim as f64).sqrt());
    let sizes = [q.batch, q.heads, q.tokens, k.tokens, q.dim];
    let work = sizes.into_iter().fold(1usize, usize::saturating_mul);
    let mut all = Magnitudes::default();
    for (batch, head) in (0..q.batch).flat_map(|batch| (0..q.heads).map(move |head| (batch, head))) {
        for query in (0..q.tokens).step_by((work / WORK).max(1)) {
            let a = q.row(batch, head, query)?;
            let score = |key: usize| {
                let b = k.row(batch, head / group, key)?;
                let sum: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                Some((sum * scale) as f32)
            };
            all = all.and(Magnitudes::of(&(0..k.tokens).map(score).collect::<Option<Vec<f32>>>()?));
        }
    }
    Some(all)
}

/// Returns the index of the element with the largest magnitude.
fn largest(x: &[f32]) -> Option<usize> {
    let finite = x.iter().enumerate().filter(|(_, x)| x.is_finite());
    finite.max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())).map(|(i, _)| i)
}

/// Returns the axes that a reduction removes or sets to 1, if they are neighbours.
fn reduced(from: &[usize], to: &[usize]) -> Option<Rows> {
    let rank = from.len();
    if to.len() == rank {
        let changed = |i: &usize| from[*i] != to[*i];
        let first = (0..rank).find(changed)?;
        let last = (0..rank).rev().find(changed)?;
        let all = (first..=last).all(|i| to[i] == 1);
        return Rows::over(from, first, last + 1).filter(|_| all);
    }
    let removed = rank.checked_sub(to.len())?;
    let stays = |at: usize| from[..at] == to[..at] && from[at + removed..] == to[at..];
    let at = (0..=to.len()).rev().find(|&at| stays(at))?;
    Rows::over(from, at, at + removed)
}

/// Measures the sums that `node` computes, if it computes any. `tensor` returns a tensor by its name.
#[must_use]
pub fn sums<'a>(node: &Node, opset: i64, tensor: &dyn Fn(&str) -> Option<&'a HostTensor>) -> Option<Sums> {
    let input = |i: usize| tensor(node.input(i)?);
    let output = || tensor(node.outputs.first()?);
    let first = input(0)?;
    let (x, dims) = (elements(first)?, sizes(first)?);
    let rank = dims.len();
    let axis = |default: i64| {
        let axis = node.int("axis").unwrap_or(default);
        usize::try_from(if axis < 0 { axis.checked_add(i64::try_from(rank).ok()?)? } else { axis }).ok()
    };
    let rows = |rows: usize| {
        let length = x.len().checked_div(rows)?;
        Some(Rows { outer: rows, length, inner: 1 })
    };
    match node.op.as_str() {
        "MatMul" | "FusedMatMul" | "Gemm" => {
            let turned = ["transA", "transB"].map(|name| node.int(name).unwrap_or(0) != 0);
            product(first, input(1)?, turned, output().and_then(elements).and_then(largest))
        }
        "Softmax" | "LogSoftmax" if opset < 13 => {
            summed(x, Rows::over(&dims, axis(1)?, rank)?, Term::Exponential)
        }
        "Softmax" | "LogSoftmax" => {
            let axis = axis(-1)?;
            summed(x, Rows::over(&dims, axis, axis + 1)?, Term::Exponential)
        }
        "LayerNormalization" => summed(x, Rows::over(&dims, axis(-1)?, rank)?, Term::Centred),
        "RMSNormalization" | "SimplifiedLayerNormalization" => {
            summed(x, Rows::over(&dims, axis(-1)?, rank)?, Term::Square)
        }
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => {
            let more = elements(input(1)?)?;
            let both: Vec<f32> = x.iter().zip(more).map(|(a, b)| a + b).collect();
            let term = if node.op == "SkipLayerNormalization" { Term::Centred } else { Term::Square };
            summed(&both, Rows::over(&dims, rank.checked_sub(1)?, rank)?, term)
        }
        "InstanceNormalization" => summed(x, Rows::over(&dims, 2, rank)?, Term::Centred),
        "GroupNormalization" => {
            let groups = usize::try_from(node.int("num_groups")?).ok()?;
            summed(x, rows(dims.first()?.checked_mul(groups)?)?, Term::Centred)
        }
        "LpNormalization" => {
            let axis = axis(-1)?;
            summed(x, Rows::over(&dims, axis, axis + 1)?, Term::Square)
        }
        "ReduceSum" | "ReduceMean" => summed(x, reduced(&dims, &sizes(output()?)?)?, Term::Value),
        "ReduceSumSquare" | "ReduceL2" => summed(x, reduced(&dims, &sizes(output()?)?)?, Term::Square),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::node::Attribute;
    use super::*;

    fn tensor(dims: &[i64], x: Vec<f32>) -> HostTensor {
        HostTensor { dims: dims.to_vec(), data: Data::F32(x) }
    }

    #[test]
    fn magnitudes_leave_out_masks_and_count_what_f16_loses() {
        let all = Magnitudes::of(&[3.0, -4.0, 0.0, -1e9, f32::MIN, f32::NAN, 1e-9, 2049.0]);
        assert_eq!((all.most, all.count, all.flushed, all.overflows), (2049.0, 4, 1, 0));
        assert_eq!(all.least, f64::from(1e-9f32));
        // f16 rounds 2049 to 2048.
        let wanted = 1.0 / (9.0f64 + 16.0 + 2049.0 * 2049.0).sqrt();
        assert!((all.stored() - wanted).abs() < 1e-12, "{}", all.stored());
        let more = all.and(Magnitudes::of(&[65519.0, 65520.0]));
        assert_eq!((more.overflows, more.stored()), (1, f64::INFINITY));
        assert_eq!((Magnitudes::of(&[0.0]).stored(), Magnitudes::of(&[]).least), (0.0, f64::INFINITY));
    }

    #[test]
    fn sums_of_rows_stagnate_and_overflow_as_in_f16() {
        // 2048 + 1 is 2048 in f16, so the sum of 4096 ones stays at 2048.
        let ones = vec![1.0; 4096];
        let whole = Rows { outer: 1, length: 4096, inner: 1 };
        assert_eq!(summed(&ones, whole, Term::Value), Some(Sums { most: 4096.0, error: 0.5 }));
        // The squares sum to 90,000, although no element exceeds 300.
        let x = [0.0, 300.0, 0.0, 1.0];
        let found = summed(&x, Rows { outer: 1, length: 4, inner: 1 }, Term::Square).unwrap();
        assert_eq!((found.most, found.error), (90_001.0, f64::INFINITY));
        // Columns: 0 and 0, 300 and 1.
        let columns = summed(&x, Rows { outer: 1, length: 2, inner: 2 }, Term::Value).unwrap();
        assert_eq!((columns.most, columns.error), (301.0, 0.0));
        let centred = summed(&[7.0, 9.0], Rows { outer: 1, length: 2, inner: 1 }, Term::Centred).unwrap();
        assert_eq!((centred.most, centred.error), (2.0, 0.0));
        let weights = summed(&[5.0, 5.0, -90.0], Rows { outer: 1, length: 3, inner: 1 }, Term::Exponential);
        assert!((weights.unwrap().most - 2.0).abs() < 1e-12);
        assert_eq!(summed(&x, Rows { outer: 1, length: 3, inner: 1 }, Term::Value), None);
    }

    #[test]
    fn products_are_those_of_the_definition() {
        // Two batches of [2, 3] by a shared [3, 2], which is stored transposed.
        let a = tensor(&[2, 2, 3], (0..12).map(|x| x as f32).collect());
        let b = tensor(&[2, 3], vec![1.0, 0.0, 2.0, 0.0, 1.0, 1.0]);
        // The last row is 9, 10, 11: its products are 31 and 21.
        let found = product(&a, &b, [false, true], None).unwrap();
        assert_eq!((found.most, found.error), (31.0, 0.0));
        let large = tensor(&[1, 2], vec![300.0, 300.0]);
        let found = product(&large, &large, [false, true], Some(0)).unwrap();
        assert_eq!((found.most, found.error), (180_000.0, f64::INFINITY));
        assert_eq!(product(&a, &b, [false, false], None), None);
    }

    #[test]
    fn scores_within_a_node_are_those_of_its_heads() {
        let node = |op: &str, heads: &[(&str, i64)]| Node {
            op: op.into(),
            domain: if op == "Attention" { "" } else { "com.microsoft" }.into(),
            inputs: vec!["q".into(), "k".into(), "v".into()],
            attributes: heads.iter().map(|(name, n)| ((*name).to_owned(), Attribute::Int(*n))).collect(),
            ..Node::default()
        };
        // Two tokens with two heads of two elements. Only the second head has large scores, with the second key.
        let q = tensor(&[1, 2, 4], vec![1.0, 0.0, 300.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        let k = tensor(&[1, 2, 4], vec![3.0, 4.0, 0.0, 0.0, 0.0, 0.0, 400.0, 0.0]);
        let packed = |name: &str| if name == "q" { Some(&q) } else { Some(&k) };
        let found = fused_scores(&node("MultiHeadAttention", &[("num_heads", 2)]), &packed).unwrap();
        let wanted = 120_000.0 / 2.0f64.sqrt();
        assert!((found.most / wanted - 1.0).abs() < 1e-6, "{found:?}");
        assert_eq!((found.count, found.overflows, found.stored()), (3, 1, f64::INFINITY));
        // Two query heads share a key head.
        let one = tensor(&[1, 1, 1, 2], vec![1.0, 0.0]);
        let two = tensor(&[1, 2, 1, 2], vec![5.0, 0.0, 7.0, 0.0]);
        let apart = |name: &str| if name == "q" { Some(&two) } else { Some(&one) };
        let found = fused_scores(&node("Attention", &[]), &apart).unwrap();
        assert!((found.most - 7.0 / 2.0f64.sqrt()).abs() < 1e-6 && found.count == 2, "{found:?}");
        assert_eq!(fused_scores(&node("Attention", &[("q_num_heads", 2)]), &packed), None);
        assert_eq!(fused_scores(&node("MatMul", &[("num_heads", 2)]), &packed), None);
        let mut biased = node("MultiHeadAttention", &[("num_heads", 2)]);
        biased.inputs.push("bias".into());
        assert_eq!(fused_scores(&biased, &packed), None);
    }

    #[test]
    fn reduced_axes_follow_from_the_shapes() {
        let rows = |outer, length, inner| Some(Rows { outer, length, inner });
        assert_eq!(reduced(&[2, 3, 4], &[2, 3, 1]), rows(6, 4, 1));
        assert_eq!(reduced(&[2, 3, 4], &[2, 1, 4]), rows(2, 3, 4));
        assert_eq!(reduced(&[2, 3, 4], &[2]), rows(2, 12, 1));
        assert_eq!(reduced(&[2, 3, 4], &[1, 3, 1]), None);
    }
}
