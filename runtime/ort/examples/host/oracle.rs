//! The definition of the operator in f64, written for clarity rather than speed.

use elsa_onnxruntime::{Data, HostTensor};

/// The elements of a tensor in the order `[batch, heads, tokens, dim]`, read from any layout of the operator.
pub struct Heads {
    pub shape: [usize; 4],
    pub at: Box<dyn Fn(usize, usize, usize, usize) -> f64>,
}

impl Heads {
    /// Reads a tensor of rank 4, or of rank 3 with `heads` heads. The last axis contains `parts` tensors, one after
    /// another; the tensor at index `part` is read.
    pub fn of(tensor: &HostTensor, heads: usize, part: usize, parts: usize) -> Heads {
        let dims: Vec<usize> = tensor.dims.iter().map(|dim| *dim as usize).collect();
        let data = tensor.data.clone();
        match dims[..] {
            [b, h, n, d] => Heads {
                shape: [b, h, n, d],
                at: Box::new(move |i, j, t, x| data.get(((i * h + j) * n + t) * d + x)),
            },
            [b, n, c] => {
                let d = c / parts / heads;
                let at = move |i: usize, j, t, x| data.get((i * n + t) * c + part * (c / parts) + j * d + x);
                Heads { shape: [b, heads, n, d], at: Box::new(at) }
            }
            _ => Heads { shape: [0; 4], at: Box::new(|_, _, _, _| f64::NAN) },
        }
    }

    /// Prepends `past` along the axis of tokens.
    pub fn after(self, past: Heads) -> Heads {
        let n = past.shape[2];
        let [b, h, tokens, d] = self.shape;
        let at = move |i, j, t, x| {
            if t < n { (past.at)(i, j, t, x) } else { (self.at)(i, j, t - n, x) }
        };
        Heads { shape: [b, h, n + tokens, d], at: Box::new(at) }
    }
}

/// Function that changes a score, given its index `[batch, head, query, key]` and its value.
pub type Scored<'a> = &'a dyn Fn([usize; 4], f64) -> f64;

/// Returns each element of the output with its error bound, in the order `[batch, heads, queries, dim]`. The bound has
/// two parts: the rounding of the output, and the rounding errors of f32 arithmetic. The second part is relative to the
/// sum of the magnitudes that are added.
pub fn attention(
    q: &Heads,
    k: &Heads,
    v: &Heads,
    scale: f64,
    scored: Scored<'_>,
    unit: f64,
) -> Vec<(f64, f64)> {
    let [batch, heads, queries, d] = q.shape;
    let [_, kv_heads, keys, dv] = v.shape;
    let mut out = Vec::new();
    for b in 0..batch {
        for h in 0..heads {
            let g = h / (heads / kv_heads);
            for i in 0..queries {
                let score = |j| {
                    let sum: f64 = (0..d).map(|x| (q.at)(b, h, i, x) * (k.at)(b, g, j, x)).sum();
                    scored([b, h, i, j], sum * scale)
                };
                let scores: Vec<f64> = (0..keys).map(score).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores
                    .iter()
                    .map(|s| if most == f64::NEG_INFINITY { 0.0 } else { (s - most).exp() })
                    .collect();
                let total: f64 = weights.iter().sum();
                for x in 0..dv {
                    let sum = |of: &dyn Fn(f64) -> f64| -> f64 {
                        (0..keys).map(|j| weights[j] * of((v.at)(b, g, j, x))).sum()
                    };
                    let [y, size] =
                        if total == 0.0 { [0.0; 2] } else { [sum(&|v| v) / total, sum(&f64::abs) / total] };
                    let largest = scores.iter().filter(|s| s.is_finite()).fold(1.0, |a, s| s.abs().max(a));
                    let arithmetic = (2.0 + 0.5 * (d as f64 + 8.0) * largest) * f64::from(f32::EPSILON);
                    out.push((y, unit * y.abs() + arithmetic * size + 1e-7));
                }
            }
        }
    }
    out
}

/// Returns two log-sum-exps for each row, in the order `[batch, heads, queries]`: that of the scores before `scored`
/// changes them, and that of the changed scores.
pub fn rows(q: &Heads, k: &Heads, scale: f64, scored: Scored<'_>) -> Vec<[f64; 2]> {
    let [batch, heads, queries, d] = q.shape;
    let [_, kv_heads, keys, _] = k.shape;
    let mut out = Vec::with_capacity(batch * heads * queries);
    for row in 0..batch * heads * queries {
        let (b, h, i) = (row / queries / heads, row / queries % heads, row % queries);
        let plain = |j| -> f64 {
            (0..d).map(|x| (q.at)(b, h, i, x) * (k.at)(b, h / (heads / kv_heads), j, x)).sum::<f64>() * scale
        };
        let scores: Vec<[f64; 2]> = (0..keys).map(|j| [plain(j), scored([b, h, i, j], plain(j))]).collect();
        out.push([0, 1].map(|of| {
            let most = scores.iter().map(|s| s[of]).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s[of] - most).exp()).sum();
            if most == f64::NEG_INFINITY { most } else { most + sum.ln() }
        }));
    }
    out
}

/// Returns the elements of an output in the order of [`attention`].
pub fn flat(y: &HostTensor, heads: usize) -> Vec<f64> {
    let of = Heads::of(y, heads, 0, 1);
    let [b, h, n, d] = of.shape;
    let mut out = Vec::with_capacity(b * h * n * d);
    for i in 0..b * h * n * d {
        let (x, t) = (i % d, i / d % n);
        out.push((of.at)(i / (d * n * h), i / (d * n) % h, t, x));
    }
    out
}

/// Returns the unit roundoff of the output's type.
pub fn unit(data: &Data) -> f64 {
    if matches!(data, Data::F16(_)) { 4.9e-4 } else { 6.0e-8 }
}
