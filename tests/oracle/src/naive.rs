//! Attention computed in f64 from the definition, row by row, and the tolerance of a computation in f32.

use crate::cases::{Case, Data, MaskData};
use elsa_core::attention::{Alignment, BiasView, MASK_LIMIT, MaskView};
use elsa_core::dtype::DType;
use elsa_core::view::View;
use std::ops::Range;

/// Unit roundoff of f32.
const U: f64 = 5.960_464_477_539_063e-8;

/// Exact output of a case, in f64, with the quantities from which its tolerances follow.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Output in the layout of its view, [`View::extent`] elements; gaps between rows contain zero.
    pub y: Vec<f64>,
    /// Log-sum-exp, `[batch, heads, queries]`, natural logarithm.
    pub lse: Vec<f64>,
    /// `Σ p_j |v_j|`, in the layout of `y`.
    pub spread: Vec<f64>,
    /// `Σ p_j |v_j|` over the keys whose weight a computation may lose, in the layout of `y`. Here `p_j` is the largest
    /// probability that a computation can give to such a key.
    pub lost: Vec<f64>,
    /// For each row, the sum of the probabilities in `lost`.
    pub lost_weight: Vec<f64>,
    /// Largest `|scale| Σ_x |q_x k_x| + |mask| + |bias|` for each row, over the keys whose weight cannot be lost.
    pub size: Vec<f64>,
    /// Number of keys that each row attends.
    pub attended: Vec<usize>,
    /// Length of the longest chain of products that a kernel sums in f16; zero if the kernel sums in f32. The tolerances depend
    /// on this length.
    pub half_chain: usize,
    scale: f64,
    output: View,
    dtype: DType,
    depth: usize,
}

/// Computes softmax attention over the case's data as `elsa_core::attention` defines it. For every row, it collects the
/// attended keys, their scores and their weights in vectors.
#[must_use]
pub fn attention(case: &Case) -> Answer {
    let spec = &case.spec;
    let (d, dv) = (spec.query.dim(), spec.value.dim());
    let [batch, heads, tokens, _] = spec.query.shape();
    let past = spec.past_key.map_or(0, |view| view.tokens());
    let scale = f64::from(spec.scale.unwrap_or_else(|| (1.0 / (d as f64).sqrt()) as f32));
    let cap = f64::from(spec.softcap.unwrap_or(0.0));
    let rows = batch * heads * tokens;
    let extent = spec.output.extent();
    let mut answer = Answer {
        y: vec![0.0; extent],
        lse: vec![f64::NAN; rows],
        spread: vec![0.0; extent],
        lost: vec![0.0; extent],
        lost_weight: vec![0.0; rows],
        size: vec![0.0; rows],
        attended: vec![0; rows],
        half_chain: 0,
        scale: scale.abs(),
        output: spec.output,
        dtype: spec.dtype,
        depth: d,
    };
    for sequence in sequences(case) {
        let Sequence { b, q0, nq, valid, .. } = sequence;
        let mut rows = Rows::default();
        for h in 0..heads {
            let hk = h * spec.key.heads() / heads;
            if h == 0 || hk != (h - 1) * spec.key.heads() / heads {
                rows = Rows::of(case, &sequence, hk, past);
            }
            for i in 0..nq {
                let query = spec.query.row(b, h, q0 + i);
                let near = (0..valid).filter(|j| near_diagonal(case, i, *j, past, nq, valid));
                let unmasked: Vec<(usize, [f64; 2])> =
                    near.filter_map(|j| Some((j, added(case, b, h, i, j)?))).collect();
                let attended = unmasked.len();
                let span =
                    unmasked.first().map_or(0, |first| first.0)..unmasked.last().map_or(0, |last| last.0 + 1);
                let query: Vec<f64> = (0..d).map(|x| f64::from(case.q.get(query + x))).collect();
                let products = rows.products(&query, span.clone());
                // Each entry has a key, its score, and the sum of the magnitudes in that score.
                let mut keys: Vec<(usize, f64, f64)> = Vec::new();
                for (j, [bias, size]) in unmasked {
                    let [sum, magnitude] = products[j - span.start];
                    let mut score = sum * scale;
                    if cap != 0.0 {
                        score = cap * (score / cap).tanh();
                    }
                    if score + bias != f64::NEG_INFINITY {
                        // The soft cap of an infinite score is exact.
                        let exact = cap != 0.0 && magnitude.is_infinite();
                        let scaled = if exact { cap.abs() } else { magnitude * scale.abs() };
                        keys.push((j, score + bias, scaled + size));
                    }
                }
                let at = (b * heads + h) * tokens + q0 + i;
                answer.attended[at] = attended;
                if keys.is_empty() {
                    answer.lse[at] = f64::NEG_INFINITY;
                    continue;
                }
                let poisoned = keys.iter().any(|k| k.1.is_nan());
                let max = if poisoned {
                    f64::NAN
                } else {
                    keys.iter().map(|k| k.1).fold(f64::NEG_INFINITY, f64::max)
                };
                let weights: Vec<f64> = keys.iter().map(|k| (k.1 - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let lse = max + sum.ln();
                answer.lse[at] = lse;
                let lost: Vec<Option<f64>> = keys.iter().map(|k| lost(k.1 - lse, k.2)).collect();
                for (key, lost) in keys.iter().zip(&lost) {
                    answer.lost_weight[at] += lost.unwrap_or(0.0);
                    if lost.is_none() {
                        answer.size[at] = answer.size[at].max(key.2);
                    }
                }
                let to = spec.output.row(b, h, q0 + i);
                let outputs = answer.y[to..][..dv].iter_mut();
                let sums = outputs.zip(&mut answer.spread[to..][..dv]).zip(&mut answer.lost[to..][..dv]);
                let mut sums: Vec<_> = sums.collect();
                for ((w, (j, ..)), lost) in weights.iter().zip(&keys).zip(&lost) {
                    let lost = lost.unwrap_or(0.0);
                    for (((y, spread), left), v) in sums.iter_mut().zip(&rows.values[j * dv..]) {
                        **y += w * v / sum;
                        **spread += w * v.abs() / sum;
                        **left += lost * v.abs();
                    }
                }
            }
        }
    }
    answer
}

/// Natural logarithm of `2^-117`, the probability below which a weight may count as zero. Such a weight is less than
/// `2^-126` relative to the reference, because the reference is at most a factor of `2^8` below the largest weight, and the
/// sum of weights is at least `2^-1/2` relative to the reference.
const LOST: f64 = -117.0 * std::f64::consts::LN_2;

/// Computes the largest probability that a computation can give to a key with log-probability `ln_p` and a score of magnitude
/// `size`. Returns this probability if it is so small that the key may be lost; otherwise `None`. The error of a score is at
/// most 1 % of its magnitude, even if products are summed in f16.
fn lost(ln_p: f64, size: f64) -> Option<f64> {
    let most = ln_p + 0.02 * size;
    (most < LOST).then(|| most.exp())
}

impl Case {
    /// Computes the exact output from the definition, in f64.
    #[must_use]
    pub fn naive(&self) -> Answer {
        attention(self)
    }
}

/// Keys and values of one head in one sequence, in f64. They are stored such that a loop over keys or over columns reads
/// adjacent elements.
#[derive(Default)]
struct Rows {
    /// Number of keys that are not beyond the sequence's length.
    count: usize,
    /// Elements of the keys, `[dim, count]`.
    keys: Vec<f64>,
    /// Elements of the values, `[count, value dim]`.
    values: Vec<f64>,
}

impl Rows {
    /// Reads the rows of head `head`; the first `past` keys of a sequence are in the tensors of the past.
    fn of(case: &Case, sequence: &Sequence, head: usize, past: usize) -> Rows {
        let spec = &case.spec;
        let Sequence { b, k0, valid: count, .. } = *sequence;
        let [past_key, past_value] = [
            spec.past_key.as_ref().zip(case.past.as_ref().map(|data| &data.0)),
            spec.past_value.as_ref().zip(case.past.as_ref().map(|data| &data.1)),
        ];
        let element =
            |past_data: Option<(&View, &Data)>, view: &View, data: &Data, j: usize, x: usize| match past_data
            {
                Some((view, data)) if j < past => f64::from(data.get(view.row(b, head, j) + x)),
                _ => f64::from(data.get(view.row(b, head, k0 + j - past) + x)),
            };
        let mut rows = Rows { count, ..Rows::default() };
        for x in 0..spec.key.dim() {
            rows.keys.extend((0..count).map(|j| element(past_key, &spec.key, &case.k, j, x)));
        }
        for j in 0..count {
            let columns = 0..spec.value.dim();
            rows.values.extend(columns.map(|x| element(past_value, &spec.value, &case.v, j, x)));
        }
        rows
    }

    /// Returns the dot product of `query` with each key of `span`, and the sum of the products' magnitudes. Products are
    /// added in the order of the columns.
    fn products(&self, query: &[f64], span: Range<usize>) -> Vec<[f64; 2]> {
        let mut sums = vec![[0.0; 2]; span.len()];
        for (q, keys) in query.iter().zip(self.keys.chunks_exact(self.count.max(1))) {
            for (sum, k) in sums.iter_mut().zip(&keys[span.clone()]) {
                let product = q * k;
                sum[0] += product;
                sum[1] += product.abs();
            }
        }
        sums
    }
}

/// Tokens of a sequence.
struct Sequence {
    b: usize,
    q0: usize,
    nq: usize,
    k0: usize,
    /// Number of keys that rows may attend, including past keys.
    valid: usize,
}

fn sequences(case: &Case) -> Vec<Sequence> {
    let spec = &case.spec;
    if let Some((cq, ck)) = &case.cu {
        let pairs = cq.windows(2).zip(ck.windows(2));
        return pairs
            .map(|(q, k)| {
                let [nq, valid] = [q, k].map(|ends| (ends[1] - ends[0]) as usize);
                Sequence { b: 0, q0: q[0] as usize, nq, k0: k[0] as usize, valid }
            })
            .collect();
    }
    let nk = spec.key.tokens() + spec.past_key.map_or(0, |view| view.tokens());
    (0..spec.query.batch())
        .map(|b| {
            let valid = case.lengths.as_ref().map_or(nk, |l| l[b] as usize);
            Sequence { b, q0: 0, nq: spec.query.tokens(), k0: 0, valid }
        })
        .collect()
}

/// Returns `true` if causality and the window allow row `i` to attend key `j`.
fn near_diagonal(case: &Case, i: usize, j: usize, past: usize, nq: usize, valid: usize) -> bool {
    let offset = match case.spec.causal {
        Some(Alignment::BottomRight) => valid as i128 - nq as i128,
        _ => past as i128,
    };
    // Number of tokens by which the key is after the diagonal.
    let ahead = j as i128 - (i as i128 + offset);
    let right = if case.spec.causal.is_some() { Some(0) } else { case.spec.window.right };
    right.is_none_or(|r| ahead <= r as i128) && case.spec.window.left.is_none_or(|l| -ahead <= l as i128)
}

/// Returns the sum of the mask and bias elements for query `i` and key `j`, and the sum of their magnitudes; `None` for
/// a masked key.
fn added(case: &Case, b: usize, h: usize, i: usize, j: usize) -> Option<[f64; 2]> {
    let [mask, bias] = [mask(case, b, h, i, j)?, bias(case, b, h, i, j)?];
    if mask == f64::NEG_INFINITY || bias == f64::NEG_INFINITY || region(case, b, i) != region(case, b, j) {
        return None;
    }
    let most = f64::from(MASK_LIMIT);
    let limited = |x: f64| if x.is_finite() { x.clamp(-most, most) } else { x };
    let sum = mask + bias;
    Some([if mask.is_finite() && bias.is_finite() { limited(sum) } else { sum }, mask.abs() + bias.abs()])
}

/// Returns the index of an element in a tensor that broadcasts; `None` for a key beyond the end of the tensor.
fn element(view: &MaskView, b: usize, h: usize, i: usize, j: usize) -> Option<usize> {
    let mut index = 0;
    for (axis, (n, at)) in view.shape().into_iter().zip([b, h, i, j]).enumerate() {
        let at = if n == 1 || (axis == 0 && n > 0) { at % n } else { at };
        if at >= n {
            return None;
        }
        index = index * n + at;
    }
    Some(index)
}

/// Returns the mask element for query `i` and key `j`; `None` if the key is beyond the end of the mask.
fn mask(case: &Case, b: usize, h: usize, i: usize, j: usize) -> Option<f64> {
    let (Some(view), Some(data)) = (&case.spec.mask, &case.mask) else { return Some(0.0) };
    let index = element(view, b, h, i, j)?;
    Some(match data {
        MaskData::Bool(x) if x[index] == 0 => f64::NEG_INFINITY,
        MaskData::Bool(_) => 0.0,
        MaskData::Additive(x) => limited(x.get(index)),
    })
}

/// Returns the bias element for query `i` and key `j`; `None` if the key is beyond the end of the bias.
fn bias(case: &Case, b: usize, h: usize, i: usize, j: usize) -> Option<f64> {
    let (Some(view), Some(data)) = (&case.spec.bias, &case.bias) else { return Some(0.0) };
    let index = match (view, &case.bias_index, &case.spec.windows) {
        (BiasView::Dense(view), ..) => element(view, b, h, i, j)?,
        (BiasView::Table(table), Some(index), _) => {
            let entry = index[i * (index.len() / case.spec.query.tokens()) + j];
            entry as usize * table.heads + h
        }
        (BiasView::Table(table), None, windows) => {
            // The difference of two picture rows selects a row of the table, and the difference of two columns selects an entry
            // of this row. Both differences are shifted to be non-negative.
            let [rows, columns] = windows.map_or([1, 1], |windows| windows.size.map(|n| n as isize));
            let (i, j) = (i as isize, j as isize);
            let (down, across) = (i / columns - j / columns, i % columns - j % columns);
            let entry = (down + rows - 1) * (2 * columns - 1) + across + columns - 1;
            entry as usize * table.heads + h
        }
    };
    Some(limited(data.get(index)))
}

/// Clamps a finite element of a mask or bias to ±[`MASK_LIMIT`], as the definition does.
fn limited(x: f32) -> f64 {
    f64::from(if x.is_finite() { x.clamp(-MASK_LIMIT, MASK_LIMIT) } else { x })
}

/// Returns the region of the picture that a token of a window comes from. Each side of the picture has three bands, and
/// a region is a pair of bands. The shift of the windows puts tokens of different regions into one window.
fn region(case: &Case, b: usize, token: usize) -> [u8; 2] {
    let Some(windows) = case.spec.windows else { return [0; 2] };
    let [across, columns] = [windows.picture[1] / windows.size[1], windows.size[1]];
    let number = b % (windows.picture[0] / windows.size[0] * across);
    let at =
        [number / across * windows.size[0] + token / columns, number % across * columns + token % columns];
    [0, 1].map(|a| match windows.picture[a] {
        side if at[a] < side - windows.size[a] => 0,
        side if at[a] < side - windows.shift[a] => 1,
        _ => 2,
    })
}

impl Answer {
    /// Returns the tolerance of output element `x` of row `at` (of `[batch, heads, queries]`) for a computation in f32
    /// with at most `additions` additions between a key and the result.
    ///
    /// First-order analysis. The error of a score is at most `δ = (d + 16) u · size`: `d` roundings of the dot product, plus
    /// those of scale, soft cap, mask and change of base. Weights then have a relative error of `exp(±δ)(1 ± 8u)`. Quotients of
    /// sums have an error of `exp(2δ) (1 + 2 (additions + 8) u)`, relative to `Σ p|v|`. Weights far below the largest may be
    /// lost, and each product may underflow by `2^-150`. The output is rounded to its type.
    ///
    /// A chain of `c` products in f16 adds `c 2^-11 / (1 - c 2^-11) · size` to `δ`, and `2^-25` for each product in
    /// case a sum is subnormal.
    #[must_use]
    pub fn tolerance(&self, at: usize, x: usize, additions: usize) -> f64 {
        let index = self.index(at, x);
        let growth = self.relative(at, additions);
        let n = self.attended[at] as f64;
        let lost = self.lost[index] + n * 2f64.powi(-141);
        let y = self.y[index].abs();
        let unit = self.dtype.unit_roundoff();
        let subnormal = match self.dtype {
            DType::F16 => 2f64.powi(-25),
            _ => 0.0,
        };
        let computed = growth * self.spread[index] + lost;
        computed + unit * (y + computed) + subnormal
    }

    /// Returns the tolerance of the log-sum-exp of row `at`.
    #[must_use]
    pub fn tolerance_lse(&self, at: usize, additions: usize) -> f64 {
        let n = self.attended[at] as f64;
        self.relative(at, additions)
            + self.lost_weight[at]
            + n * 2f64.powi(-117)
            + 2.0 * U * self.lse[at].abs()
    }

    fn relative(&self, at: usize, additions: usize) -> f64 {
        let steps = self.half_chain as f64 * 2f64.powi(-11);
        let lost = if self.half_chain > 0 { self.scale * self.depth as f64 * 2f64.powi(-25) } else { 0.0 };
        let half_error = steps / (1.0 - steps) * self.size[at] + lost;
        let delta = (self.depth as f64 + 16.0) * (U * self.size[at] + 2f64.powi(-149)) + half_error;
        (2.0 * delta).exp_m1() + (2.0 * delta).exp() * 2.0 * (additions as f64 + 8.0) * U
    }

    /// Returns the number of output elements per row.
    pub(crate) fn dim(&self) -> usize {
        self.output.dim()
    }

    /// Returns the output index of element `x` in row `at`, which is an index into `[batch, heads, queries]`.
    pub(crate) fn index(&self, at: usize, x: usize) -> usize {
        let [_, heads, tokens, _] = self.output.shape();
        let (b, h, t) = (at / (heads * tokens), at / tokens % heads, at % tokens);
        self.output.row(b, h, t) + x
    }

    /// Compares a computed output, and log-sum-exp if given, with the exact ones. NaN must be exactly where the exact
    /// output has NaN, and rows without keys must be zeros. Returns the largest ratio of error to tolerance of any
    /// element.
    ///
    /// # Errors
    /// Returns a text that names the element furthest beyond its tolerance.
    pub fn check(&self, output: &Data, lse: Option<&[f32]>, additions: usize) -> Result<f64, String> {
        if output.len() < self.output.extent() || lse.is_some_and(|l| l.len() != self.lse.len()) {
            return Err("a buffer has the wrong length".into());
        }
        let mut worst = 0.0;
        let mut offender = String::new();
        let mut see = |computed: f64, wanted: f64, allowed: f64, largest: f64, what: &dyn Fn() -> String| {
            let share = if wanted.is_nan() {
                if computed.is_nan() { 0.0 } else { f64::INFINITY }
            } else if computed == wanted {
                0.0
            } else if !wanted.is_finite() {
                f64::INFINITY
            } else if computed.is_infinite()
                && computed.signum() == wanted.signum()
                && wanted.abs() + allowed >= largest
            {
                0.0
            } else if (computed - wanted).is_nan() || allowed.is_nan() {
                f64::INFINITY
            } else {
                (computed - wanted).abs() / allowed
            };
            if share > worst {
                worst = share;
                offender =
                    format!("{}: computed {computed:e}, answer {wanted:e}, allowed ±{allowed:e}", what());
            }
        };
        let largest = match self.dtype {
            DType::F32 => f64::from(f32::MAX),
            DType::F16 => 65504.0,
            DType::Bf16 => f64::from(half::bf16::MAX.to_f32()),
        };
        for at in 0..self.lse.len() {
            for x in 0..self.output.dim() {
                let index = self.index(at, x);
                let computed = f64::from(output.get(index));
                see(computed, self.y[index], self.tolerance(at, x, additions), largest, &|| {
                    format!("row {at}, column {x}")
                });
            }
            if let Some(lse) = lse {
                let computed = f64::from(lse[at]);
                let allowed = self.tolerance_lse(at, additions);
                see(computed, self.lse[at], allowed, f64::INFINITY, &|| format!("log-sum-exp of row {at}"));
            }
        }
        if worst <= 1.0 { Ok(worst) } else { Err(offender) }
    }
}
