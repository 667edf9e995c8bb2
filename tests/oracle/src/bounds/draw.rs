//! Problems whose outputs are sensitive to rounding, drawn from a seed.

use crate::cases::Data;
use crate::random::seeded;
use elsa_core::attention::{Alignment, Inputs, MaskElements, MaskKind, MaskView, Problem, Spec, Window};
use elsa_core::dtype::DType;
use elsa_core::random::Random;
use elsa_core::view::{Layout, View};

/// Property that makes the scores of a problem hard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hard {
    /// No such property: queries, keys and values are Gaussian.
    Gaussian,
    /// Scores of large magnitude that are nearly equal.
    Tied,
    /// A large vector that is added to all keys.
    Offset,
    /// One key of a row outweighs all others.
    OneHot,
    /// Scores near the ends of the exponential's range: ±88 and beyond.
    Ends,
    /// Scores whose terms cancel.
    Cancelling,
    /// Queries and keys, or their products, around the smallest normal numbers.
    Denormal,
    /// Queries and keys over many orders of magnitude.
    Wide,
    /// A few keys that repeat over the entire sequence.
    Repeated,
    /// Scores that grow with the index of the key, so that every block moves the reference of the row.
    Rising,
}

/// All properties.
pub const HARD: [Hard; 10] = [
    Hard::Gaussian,
    Hard::Tied,
    Hard::Offset,
    Hard::OneHot,
    Hard::Ends,
    Hard::Cancelling,
    Hard::Denormal,
    Hard::Wide,
    Hard::Repeated,
    Hard::Rising,
];

/// Property of the values of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// No property that makes sums hard.
    Plain,
    /// Every second value is the negative of the one before it, so that their weighted sums cancel.
    Cancelling,
    /// Some values are drawn much larger than others.
    Outliers,
}

/// A problem with its data.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// The problem.
    pub problem: Problem,
    /// Property of the scores that makes the problem hard.
    pub hard: Hard,
    /// Property of the values.
    pub values: Values,
    /// Whether a few elements of a tensor were made larger.
    enlarged: bool,
    query: Data,
    key: Data,
    value: Data,
    mask: Option<Data>,
}

/// Numbers of queries, and head sizes of keys and of values, that a problem is drawn from.
struct Shapes {
    queries: [usize; 7],
    dims: [&'static [usize]; 2],
}

const ANY: Shapes = Shapes {
    queries: [1, 2, 3, 8, 17, 48, 64],
    dims: [&[1, 3, 4, 8, 8, 16, 20, 64, 67, 130], &[1, 4, 4, 5, 8, 13]],
};
const FOR_TENSOR_CORES: Shapes = Shapes {
    queries: [1, 8, 17, 64, 100, 128, 200],
    dims: [&[4, 8, 8, 16, 20, 32, 64, 64, 80, 132], &[4, 4, 8, 8, 12, 20]],
};

impl Drawn {
    /// Returns the tensors of a call.
    #[must_use]
    pub fn inputs(&self) -> Inputs<'_> {
        let mut inputs = Inputs::new(self.query.elements(), self.key.elements(), self.value.elements());
        inputs.mask = self.mask.as_ref().map(|mask| MaskElements::Additive(mask.elements()));
        inputs
    }

    /// Creates a buffer for the output of the problem.
    #[must_use]
    pub fn output(&self) -> Data {
        let spec = self.problem.spec();
        Data::filled(spec.dtype, spec.output.extent(), 0.0)
    }

    /// Draws one head of Gaussian queries, keys and values with head size `d`, in f32.
    ///
    /// # Panics
    /// Panics if the problem is refused.
    #[must_use]
    pub fn gaussian(seed: u64, queries: usize, keys: usize, d: usize) -> Drawn {
        let mut r = seeded(seed);
        let of = |rows: usize| {
            View::dense("x", Layout::Bhnd, &[1, 1, rows, d], None).unwrap_or_else(|e| panic!("{e}"))
        };
        let spec = Spec::new(DType::F32, of(queries), of(keys), of(keys), of(queries));
        let problem = spec.check().unwrap_or_else(|e| panic!("{e}"));
        let [query, key, value] =
            [queries, keys, keys].map(|rows| Data::F32((0..rows * d).map(|_| r.normal()).collect()));
        Drawn {
            problem,
            hard: Hard::Gaussian,
            values: Values::Plain,
            enlarged: false,
            query,
            key,
            value,
            mask: None,
        }
    }

    /// Draws a problem as [`Drawn::gaussian`] does, but with pairs of equal keys, whose values cancel to within a
    /// millionth.
    ///
    /// # Panics
    /// Panics if the problem is refused.
    #[must_use]
    pub fn cancelling(seed: u64, queries: usize, keys: usize, d: usize) -> Drawn {
        let mut drawn = Drawn { values: Values::Cancelling, ..Drawn::gaussian(seed, queries, keys, d) };
        for i in d..keys * d {
            if i / d % 2 == 1 {
                let (key, value) = (drawn.key.get(i - d), drawn.value.get(i - d));
                drawn.key.set(i, key);
                drawn.value.set(i, -value * (1.0 + 1e-6 * (i % 3) as f32));
            }
        }
        drawn
    }

    /// Creates a problem of at most 16 queries and 255 keys: the first eight bytes choose its shape and options. The
    /// remaining bytes are the bits of its elements, and are repeated if there are too few. Elements that are too large or
    /// not finite are replaced by one. Returns `None` for fewer than twelve bytes, or if the problem is refused.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Option<Drawn> {
        let (head, rest) = bytes.split_first_chunk::<8>()?;
        let [queries, keys, d, dv, kind, cap, scale, masked] = *head;
        let (queries, keys) = (1 + usize::from(queries % 16), usize::from(keys.max(1)));
        let (d, dv) = (1 + usize::from(d % 20), 1 + usize::from(dv % 5));
        let dtype = [DType::F32, DType::F16, DType::Bf16][usize::from(kind % 3)];
        let of = |rows: usize, dim: usize| View::dense("x", Layout::Bhnd, &[1, 1, rows, dim], None).ok();
        let mut spec = Spec::new(dtype, of(queries, d)?, of(keys, d)?, of(keys, dv)?, of(queries, dv)?);
        spec.softcap = (cap % 4 == 0).then_some(f32::from(cap) / 4.0 + 0.5);
        spec.scale = (scale % 4 == 0).then_some(f32::from(scale) / 64.0 + 0.01);
        spec.causal = (kind >= 128).then_some(Alignment::BottomRight);
        spec.mask = (masked % 4 == 0)
            .then(|| MaskView::dense(MaskKind::Additive(DType::F32), &[queries, keys]))
            .transpose()
            .ok()?;
        let problem = spec.check().ok()?;
        let (words, _) = rest.as_chunks::<4>();
        // Missing elements repeat earlier ones.
        let mut words = words.iter().map(|word| f32::from_le_bytes(*word)).cycle();
        let mut take = |n: usize| {
            let x: Vec<f32> = words.by_ref().take(n).collect();
            (x.len() == n).then_some(x)
        };
        let finite = |x: Vec<f32>, most: f32| -> Vec<f32> {
            x.into_iter().map(|x| if x.abs() <= most { x } else { 1.0 }).collect()
        };
        let [query, key] = [take(queries * d)?, take(keys * d)?].map(|x| data_of(dtype, &finite(x, 1e18)));
        let value = data_of(dtype, &finite(take(keys * dv)?, 1e30));
        let mask = match spec.mask {
            Some(_) => Some(Data::F32(
                take(queries * keys)?
                    .into_iter()
                    .map(|x| if x.is_nan() || x > 1e9 { 0.0 } else { x })
                    .collect(),
            )),
            None => None,
        };
        Some(Drawn {
            problem,
            hard: Hard::Wide,
            values: Values::Plain,
            enlarged: false,
            query,
            key,
            value,
            mask,
        })
    }

    /// Draws the problem of a seed. Most problems have at most `keys` keys; a few have up to twenty times as many.
    ///
    /// # Panics
    /// Panics if the problem is refused.
    #[must_use]
    pub fn new(seed: u64, keys: usize) -> Drawn {
        Drawn::of_shapes(seed, keys, &ANY, 0)
    }

    /// Draws a problem as [`Drawn::new`] does, of a shape that Tensor Cores multiply. In two of three problems, a few elements of
    /// one of the tensors are 1e4, 1e6 or 1e7 times as large.
    ///
    /// # Panics
    /// Panics if the problem is refused.
    #[must_use]
    pub fn for_tensor_cores(seed: u64, keys: usize) -> Drawn {
        Drawn::of_shapes(seed, keys, &FOR_TENSOR_CORES, 6)
    }

    /// Returns `true` if some queries, keys or values are drawn much larger than others.
    #[must_use]
    pub fn has_outliers(&self) -> bool {
        matches!(self.hard, Hard::OneHot | Hard::Wide) || self.values == Values::Outliers || self.enlarged
    }

    /// Returns `true` if terms of the scores, or of the weighted sums of values, cancel.
    #[must_use]
    pub fn cancels(&self) -> bool {
        self.hard == Hard::Cancelling || self.values == Values::Cancelling
    }

    /// Draws a problem of `shapes`, in which a tensor has outliers if a number below `outliers` is less than 4.
    fn of_shapes(seed: u64, keys: usize, shapes: &Shapes, outliers: usize) -> Drawn {
        let mut r = seeded(seed);
        let hard = HARD[r.below(HARD.len())];
        let dtype = [DType::F32, DType::F32, DType::F32, DType::F16, DType::Bf16][r.below(5)];
        let heads = 1 + r.below(3);
        let queries = shapes.queries[r.below(shapes.queries.len())];
        // A few problems have many keys, so that their chains, segments and merge trees are long, too.
        let most = if r.below(40) == 0 { 20 * keys } else { keys };
        let keys = 1 + r.below(most.max(1));
        let [d, dv] = shapes.dims.map(|dims| dims[r.below(dims.len())]);
        let of = |rows: usize, dim: usize| {
            View::dense("x", Layout::Bhnd, &[1, heads, rows, dim], None).unwrap_or_else(|e| panic!("{e}"))
        };
        let mut spec = Spec::new(dtype, of(queries, d), of(keys, d), of(keys, dv), of(queries, dv));
        spec.scale = [None, None, Some(1.0), Some(-0.3), Some(0.01)][r.below(5)];
        spec.softcap = [None, None, None, Some(0.5), Some(30.0), Some(1000.0)][r.below(6)];
        spec.causal = [None, None, Some(Alignment::BottomRight), Some(Alignment::TopLeft)][r.below(4)];
        if r.below(6) == 0 {
            spec.window = Window { left: Some(r.below(keys)), right: Some(r.below(keys)) };
        }
        let mask = (r.below(4) == 0).then(|| mask_of(&mut r, queries, keys));
        spec.mask = mask
            .is_some()
            .then(|| MaskView::dense(MaskKind::Additive(DType::F32), &[queries, keys]))
            .map(|view| view.unwrap_or_else(|e| panic!("{e}")));
        let problem = spec.check().unwrap_or_else(|e| panic!("{e}"));
        let [query, key] = scores_of(&mut r, hard, &problem, [heads * queries, heads * keys]);
        let (value, values) = values_of(&mut r, heads * keys, dv);
        let mut tensors = [query, key, value];
        let enlarged = outliers > 0 && r.below(outliers) < 4;
        if enlarged {
            enlarge(&mut r, &mut tensors);
        }
        let [query, key, value] = tensors.map(|x| data_of(dtype, &x));
        Drawn { problem, hard, values, enlarged, query, key, value, mask: mask.map(Data::F32) }
    }
}

/// Converts elements to `dtype`; those that would become infinite are clamped to a finite number.
fn data_of(dtype: DType, x: &[f32]) -> Data {
    let most = match dtype {
        DType::F32 => f32::MAX,
        DType::F16 => 60_000.0,
        DType::Bf16 => 3e38,
    };
    let mut data = Data::filled(dtype, x.len(), 0.0);
    x.iter().enumerate().for_each(|(i, x)| data.set(i, x.clamp(-most, most)));
    data
}

/// Draws an additive mask of small and large numbers, in which some keys are masked.
fn mask_of(r: &mut Random, queries: usize, keys: usize) -> Vec<f32> {
    let scale = [0.1, 3.0, 50.0, 1e4][r.below(4)];
    let out = [f32::NEG_INFINITY, f32::MIN, -1e9, -100.0][r.below(4)];
    let dense = r.below(4);
    (0..queries * keys).map(|_| if r.below(8) < dense { out } else { scale * r.normal() }).collect()
}

/// Draws queries and keys, each `[rows, d]`, whose scores have the property `hard`.
fn scores_of(r: &mut Random, hard: Hard, problem: &Problem, rows: [usize; 2]) -> [Vec<f32>; 2] {
    let d = problem.head_dim();
    let scale = problem.scale().abs().max(1e-3);
    let gain = [0.1, 1.0, 1.0, 4.0, 30.0][r.below(5)];
    let mut q: Vec<f32> = (0..rows[0] * d).map(|_| gain * r.normal()).collect();
    let mut k: Vec<f32> = (0..rows[1] * d).map(|_| r.normal()).collect();
    match hard {
        Hard::Gaussian => {}
        Hard::Tied => {
            // All keys are equal, except in the last bits.
            let large = [30.0f32, 1e3, 1e4][r.below(3)];
            let tied: Vec<f32> = (0..d).map(|_| large * r.normal()).collect();
            let spread = [1e-7, 1e-6, 1e-4][r.below(3)];
            for (i, k) in k.iter_mut().enumerate() {
                *k = tied[i % d] * (1.0 + spread * *k);
            }
        }
        Hard::Offset => {
            let offset = [10.0f32, 1e3, 1e5][r.below(3)];
            k.iter_mut().for_each(|k| *k += offset);
        }
        Hard::OneHot => {
            let hot = r.below(rows[1]);
            let by = [5.0f32, 100.0, 1e6][r.below(3)];
            k[hot * d..(hot + 1) * d].iter_mut().for_each(|k| *k *= by);
        }
        Hard::Ends => {
            let ends = [0.0f32, 1e-3, 87.0, 87.3, 87.5, 88.0, 88.7, 90.0, 103.0, 104.0, 150.0, 300.0];
            for row in q.chunks_mut(d) {
                row.fill(0.0);
                row[0] = 1.0;
            }
            for row in k.chunks_mut(d) {
                let sign = if r.below(2) == 0 { -1.0 } else { 1.0 };
                row[0] = sign * ends[r.below(ends.len())] / scale + 1e-3 * r.normal();
            }
        }
        Hard::Cancelling => {
            let large = [1e2f32, 1e4, 1e6][r.below(3)];
            for row in k.chunks_mut(d) {
                for pair in row.chunks_mut(2) {
                    if let [a, b] = pair {
                        *a = large * (1.0 + 0.5 * *a);
                        *b = -*a + r.normal();
                    }
                }
            }
            for row in q.chunks_mut(d) {
                for pair in row.chunks_mut(2) {
                    if let [a, b] = pair {
                        *b = *a;
                    }
                }
            }
        }
        Hard::Denormal => {
            let (a, b) = [(1e-38f32, 1e-2f32), (1e-40, 1e36), (1e-20, 1e-20), (1e-44, 1.0)][r.below(4)];
            q.iter_mut().for_each(|q| *q *= a);
            k.iter_mut().for_each(|k| *k *= b);
        }
        Hard::Wide => {
            for x in q.iter_mut().chain(k.iter_mut()) {
                *x *= 10f32.powf(12.0 * (r.unit() as f32 - 0.7));
            }
        }
        Hard::Repeated => {
            let kinds = 1 + r.below(3);
            for i in kinds * d..k.len() {
                k[i] = k[i - kinds * d];
            }
        }
        Hard::Rising => {
            let step = [0.01f32, 0.3, 9.0][r.below(3)];
            for row in q.chunks_mut(d) {
                row[0] = 1.0;
            }
            for (j, row) in k.chunks_mut(d).enumerate() {
                row[0] = step * j as f32 / scale;
            }
        }
    }
    [q, k]
}

/// Makes about one element in fifty of one of the tensors 1e4, 1e6 or 1e7 times as large.
fn enlarge(r: &mut Random, tensors: &mut [Vec<f32>; 3]) {
    let (x, by) = (&mut tensors[r.below(3)], [1e4, 1e6, 1e7][r.below(3)]);
    for _ in 0..=x.len() / 50 {
        let at = r.below(x.len());
        x[at] *= by;
    }
}

/// Draws values, `[keys, dv]`.
fn values_of(r: &mut Random, keys: usize, dv: usize) -> (Vec<f32>, Values) {
    let mut v: Vec<f32> = (0..keys * dv).map(|_| r.normal()).collect();
    let which = r.below(8);
    match which {
        0 => {
            // Every second value is the negative of the one before it, so that they cancel.
            for i in dv..v.len() {
                if i / dv % 2 == 1 {
                    v[i] = -v[i - dv];
                }
            }
        }
        1 => v.iter_mut().for_each(|v| *v += 1e4),
        2 => v.iter_mut().for_each(|v| *v *= 10f32.powf(20.0 * (r.unit() as f32 - 0.5))),
        3 => v.iter_mut().for_each(|v| *v *= 1e-39),
        4 => v.iter_mut().for_each(|v| *v = v.signum()),
        5 => {
            let half = v.len() / 2;
            v[half..].iter_mut().for_each(|v| *v *= 1e6);
        }
        _ => {}
    }
    let values = match which {
        0 => Values::Cancelling,
        2 | 5 => Values::Outliers,
        _ => Values::Plain,
    };
    (v, values)
}
