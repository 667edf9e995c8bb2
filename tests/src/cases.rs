//! Problems with owned data.

use crate::naive::{self, Answer};
use crate::random::Random;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::{Alignment, Inputs, Outputs, Problem, Spec, StateOut, Window};
use elsa_core::attention::{MaskElements, MaskKind, MaskView};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;

/// Owned elements of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Singles.
    F32(Vec<f32>),
    /// Halves.
    F16(Vec<f16>),
    /// Brain floats.
    Bf16(Vec<bf16>),
}

impl Data {
    /// `len` elements equal to `value`.
    #[must_use]
    pub fn filled(dtype: DType, len: usize, value: f32) -> Data {
        match dtype {
            DType::F32 => Data::F32(vec![value; len]),
            DType::F16 => Data::F16(vec![f16::from_f32(value); len]),
            DType::Bf16 => Data::Bf16(vec![bf16::from_f32(value); len]),
        }
    }

    /// Borrowed.
    #[must_use]
    pub fn elements(&self) -> Elements<'_> {
        match self {
            Data::F32(x) => Elements::F32(x),
            Data::F16(x) => Elements::F16(x),
            Data::Bf16(x) => Elements::Bf16(x),
        }
    }

    /// Borrowed to be written.
    pub fn elements_mut(&mut self) -> ElementsMut<'_> {
        match self {
            Data::F32(x) => ElementsMut::F32(x),
            Data::F16(x) => ElementsMut::F16(x),
            Data::Bf16(x) => ElementsMut::Bf16(x),
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.elements().len()
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at `index` as a single.
    #[must_use]
    pub fn get(&self, index: usize) -> f32 {
        self.elements().get(index)
    }

    /// Writes `value` at `index`, rounded to the nearest element.
    pub fn set(&mut self, index: usize, value: f32) {
        self.elements_mut().set(index, value);
    }
}

/// Owned elements of a mask.
#[derive(Clone, Debug, PartialEq)]
pub enum MaskData {
    /// One byte an element; non-zero is attended.
    Bool(Vec<u8>),
    /// Added to the score.
    Additive(Data),
}

impl MaskData {
    /// Borrowed.
    #[must_use]
    pub fn elements(&self) -> MaskElements<'_> {
        match self {
            MaskData::Bool(x) => MaskElements::Bool(x),
            MaskData::Additive(x) => MaskElements::Additive(x.elements()),
        }
    }

    /// Makes the element at `index` attended (with nothing added) or not.
    pub fn set_attended(&mut self, index: usize, attended: bool) {
        match self {
            MaskData::Bool(x) => x[index] = u8::from(attended),
            MaskData::Additive(x) => x.set(index, if attended { 0.0 } else { f32::NEG_INFINITY }),
        }
    }
}

/// A mask to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct MaskParams {
    /// What its elements mean.
    pub kind: MaskKind,
    /// Its dimensions, aligned to `[batch, heads, q, k]` from the right.
    pub dims: Vec<usize>,
    /// Share of the elements that are attended.
    pub density: f64,
}

/// Everything that a case is made from. The same parameters make the same case.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// Seed of all data.
    pub seed: u64,
    /// Type of query, key, value, output, past and present.
    pub dtype: DType,
    /// Layout of query, key, value and output; past and present are always bhnd.
    pub layout: Layout,
    /// Elements between rows that belong to nothing; inputs hold NaN there.
    pub pad: usize,
    /// Sequences in the batch; one when packed.
    pub batch: usize,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Query tokens; ignored when packed.
    pub queries: usize,
    /// New key tokens; ignored when packed.
    pub keys: usize,
    /// Past key tokens.
    pub past: Option<usize>,
    /// Whether the present is written.
    pub present: bool,
    /// Head size of queries and keys.
    pub d: usize,
    /// Head size of values.
    pub dv: usize,
    /// Factor of the scores.
    pub scale: Option<f32>,
    /// Causal alignment.
    pub causal: Option<Alignment>,
    /// Window around the diagonal.
    pub window: Window,
    /// Soft cap of the scores.
    pub softcap: Option<f32>,
    /// Mask.
    pub mask: Option<MaskParams>,
    /// Whether each sequence has its own number of valid keys.
    pub lengths: bool,
    /// Queries and keys of each packed sequence.
    pub packed: Option<Vec<(usize, usize)>>,
    /// Whether all sequences of the batch share keys and values (stride zero).
    pub shared_keys: bool,
    /// Standard deviation of the queries; keys and values have one.
    pub gain: f32,
}

impl Params {
    /// Plain attention in f32: one sequence, one head.
    #[must_use]
    pub fn plain(queries: usize, keys: usize, d: usize, dv: usize) -> Params {
        Params {
            seed: 1,
            dtype: DType::F32,
            layout: Layout::Bhnd,
            pad: 0,
            batch: 1,
            heads: 1,
            kv_heads: 1,
            queries,
            keys,
            past: None,
            present: false,
            d,
            dv,
            scale: None,
            causal: None,
            window: Window::default(),
            softcap: None,
            mask: None,
            lengths: false,
            packed: None,
            shared_keys: false,
            gain: 1.0,
        }
    }

    /// The case that these parameters make.
    ///
    /// # Panics
    /// When they make no valid problem.
    #[must_use]
    pub fn build(&self, name: impl Into<String>) -> Case {
        let mut random = Random::new(self.seed);
        let (mut batch, mut queries, mut keys) = (self.batch, self.queries, self.keys);
        let mut cu = None;
        if let Some(lens) = &self.packed {
            let sums = |part: fn(&(usize, usize)) -> usize| {
                let mut list = vec![0i64];
                for x in lens {
                    list.push(list[list.len() - 1] + part(x) as i64);
                }
                list
            };
            let (q, k) = (sums(|x| x.0), sums(|x| x.1));
            (batch, queries, keys) = (1, q[lens.len()] as usize, k[lens.len()] as usize);
            cu = Some((q, k));
        }
        let past_len = self.past.unwrap_or(0);
        let mut key = self.view("k", batch, self.kv_heads, keys, self.d);
        let mut value = self.view("v", batch, self.kv_heads, keys, self.dv);
        if self.shared_keys {
            for view in [&mut key, &mut value] {
                let [_, h, n, d] = view.strides();
                *view = made(View::new("shared", view.shape(), [0, h, n, d]));
            }
        }
        let mut spec = Spec::new(
            self.dtype,
            self.view("q", batch, self.heads, queries, self.d),
            key,
            value,
            self.view("out", batch, self.heads, queries, self.dv),
        );
        let cache = |n, d| made(View::dense("cache", Layout::Bhnd, &[batch, self.kv_heads, n, d], None));
        if self.past.is_some() {
            spec.past_key = Some(cache(past_len, self.d));
            spec.past_value = Some(cache(past_len, self.dv));
        }
        if self.present {
            spec.present_key = Some(cache(past_len + keys, self.d));
            spec.present_value = Some(cache(past_len + keys, self.dv));
        }
        spec.scale = self.scale;
        spec.causal = self.causal;
        spec.window = self.window;
        spec.softcap = self.softcap;
        spec.key_lengths = self.lengths;
        spec.packed = self.packed.as_ref().map(Vec::len);
        spec.mask = self.mask.as_ref().map(|m| made(MaskView::dense(m.kind, &m.dims)));
        let mut tensor = |view: &View, gain: f32| {
            let mut data = Data::filled(self.dtype, view.extent(), f32::NAN);
            each_row(view, |row| {
                for x in 0..view.dim() {
                    data.set(row + x, random.normal() * gain);
                }
            });
            data
        };
        let q = tensor(&spec.query, self.gain);
        let k = tensor(&spec.key, 1.0);
        let v = tensor(&spec.value, 1.0);
        let past = spec.past_key.zip(spec.past_value).map(|(k, v)| (tensor(&k, 1.0), tensor(&v, 1.0)));
        let mask = self.mask.as_ref().map(|m| m.data(&mut random));
        let lengths =
            self.lengths.then(|| (0..batch).map(|_| random.below(past_len + keys + 1) as i64).collect());
        let case = Case { name: name.into(), params: self.clone(), spec, q, k, v, past, mask, lengths, cu };
        made(case.inputs().check(&case.problem()));
        case
    }

    fn view(&self, argument: &'static str, b: usize, h: usize, n: usize, d: usize) -> View {
        made(match (self.layout, self.pad) {
            (Layout::Bhnd, 0) => View::dense(argument, Layout::Bhnd, &[b, h, n, d], None),
            (Layout::Bnhd, 0) => View::dense(argument, Layout::Bnhd, &[b, n, h, d], None),
            (Layout::Bnc, 0) => View::dense(argument, Layout::Bnc, &[b, n, h * d], Some(h)),
            (Layout::Bhnd, pad) => {
                View::new(argument, [b, h, n, d], [h * n * (d + pad), n * (d + pad), d + pad, 1])
            }
            (_, pad) => View::new(argument, [b, h, n, d], [n * (h * d + pad), d, h * d + pad, 1]),
        })
    }
}

/// What was made, or a panic that says why it was not.
fn made<T>(result: Result<T, ArgumentError>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}

impl MaskParams {
    fn data(&self, random: &mut Random) -> MaskData {
        let len = self.dims.iter().product();
        match self.kind {
            // Any byte but zero is true.
            MaskKind::Bool => MaskData::Bool(
                (0..len)
                    .map(|_| if random.unit() < self.density { 1 + random.below(255) as u8 } else { 0 })
                    .collect(),
            ),
            MaskKind::Additive(dtype) => {
                let mut data = Data::filled(dtype, len, 0.0);
                for x in 0..len {
                    let attended = random.unit() < self.density;
                    data.set(x, if attended { 2.0 * random.normal() } else { f32::NEG_INFINITY });
                }
                MaskData::Additive(data)
            }
        }
    }
}

/// Calls `visit` with the index of the first element of every row, batch by batch, head by head.
pub fn each_row(view: &View, mut visit: impl FnMut(usize)) {
    for b in 0..view.batch() {
        for h in 0..view.heads() {
            for t in 0..view.tokens() {
                visit(view.row(b, h, t));
            }
        }
    }
}

/// A problem with its data.
#[derive(Clone)]
pub struct Case {
    /// What it is about.
    pub name: String,
    /// What it was made from, before any change to its data.
    pub params: Params,
    /// The problem, not yet checked.
    pub spec: Spec,
    /// Elements of the query view.
    pub q: Data,
    /// Elements of the key view.
    pub k: Data,
    /// Elements of the value view.
    pub v: Data,
    /// Elements of the past keys and values.
    pub past: Option<(Data, Data)>,
    /// Elements of the mask.
    pub mask: Option<MaskData>,
    /// Valid keys of each sequence.
    pub lengths: Option<Vec<i64>>,
    /// Bounds of the packed sequences among queries and keys.
    pub cu: Option<(Vec<i64>, Vec<i64>)>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {:?}", self.name, self.params)?;
        if let Some(lengths) = &self.lengths {
            write!(f, ", key lengths {lengths:?}")?;
        }
        Ok(())
    }
}

impl Case {
    /// The checked problem.
    ///
    /// # Panics
    /// When it is refused.
    #[must_use]
    pub fn problem(&self) -> Problem {
        made(self.spec.check())
    }

    /// The data, borrowed.
    #[must_use]
    pub fn inputs(&self) -> Inputs<'_> {
        let mut inputs = Inputs::new(self.q.elements(), self.k.elements(), self.v.elements());
        inputs.past_key = self.past.as_ref().map(|x| x.0.elements());
        inputs.past_value = self.past.as_ref().map(|x| x.1.elements());
        inputs.mask = self.mask.as_ref().map(MaskData::elements);
        inputs.lengths.keys = self.lengths.as_deref();
        inputs.lengths.cu_seqlens_q = self.cu.as_ref().map(|x| &x.0[..]);
        inputs.lengths.cu_seqlens_k = self.cu.as_ref().map(|x| &x.1[..]);
        inputs
    }

    /// The answer by the definition, in f64.
    #[must_use]
    pub fn naive(&self) -> Answer {
        naive::attention(self)
    }

    /// What the present must hold: earlier keys and values, then the new ones.
    #[must_use]
    pub fn naive_present(&self) -> Option<(Data, Data)> {
        let (pk, pv) = self.spec.present_key.zip(self.spec.present_value)?;
        let joined = |to: &View, past_view: Option<View>, past: Option<&Data>, view: &View, new: &Data| {
            let mut out = Data::filled(self.spec.dtype, to.extent(), 0.0);
            let before = past_view.map_or(0, |v| v.tokens());
            for (b, h, t) in tokens(to) {
                for x in 0..to.dim() {
                    let element = match (&past_view, past) {
                        (Some(view), Some(past)) if t < before => past.get(view.row(b, h, t) + x),
                        _ => new.get(view.row(b, h, t - before) + x),
                    };
                    out.set(to.row(b, h, t) + x, element);
                }
            }
            out
        };
        let past = self.past.as_ref();
        Some((
            joined(&pk, self.spec.past_key, past.map(|x| &x.0), &self.spec.key, &self.k),
            joined(&pv, self.spec.past_value, past.map(|x| &x.1), &self.spec.value, &self.v),
        ))
    }

    /// Buffers for everything that the problem can write, filled with NaN.
    #[must_use]
    pub fn buffers(&self) -> Buffers {
        let problem = self.problem();
        let dtype = self.spec.dtype;
        let nan = |view: View| Data::filled(dtype, view.extent(), f32::NAN);
        let rows = problem.rows();
        Buffers {
            output: nan(self.spec.output),
            lse: vec![f32::NAN; rows],
            m: vec![f32::NAN; rows],
            s: vec![f32::NAN; rows],
            w: vec![f32::NAN; rows * problem.value_dim()],
            present: self.spec.present_key.zip(self.spec.present_value).map(|(k, v)| (nan(k), nan(v))),
        }
    }

    /// The same case with another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Case {
        self.name = name.into();
        self
    }

    /// The same problem with the first `n` queries of every sequence alone; none for packed sequences, and
    /// where there are no more.
    #[must_use]
    pub fn first_queries(&self, n: usize) -> Option<Case> {
        let before = self.spec.query.tokens();
        if self.spec.packed.is_some() || before <= n {
            return None;
        }
        let mut case = self.clone().named(format!("{}, {n} of the queries", self.name));
        let shorter = |view: View| {
            let [b, h, _, d] = view.shape();
            made(View::new("q", [b, h, n, d], view.strides()))
        };
        case.spec.query = shorter(case.spec.query);
        case.spec.output = shorter(case.spec.output);
        if let (Some(view), Some(data)) = (self.spec.mask, &self.mask)
            && !view.same_for_all_queries()
        {
            let [b, h, _, k] = view.shape();
            case.spec.mask = Some(made(MaskView::dense(view.kind(), &[b, h, n, k])));
            // Rows of the first queries, one head after the other.
            let kept = |i: usize| i / k % before < n;
            case.mask = Some(match data {
                MaskData::Bool(x) => {
                    MaskData::Bool(x.iter().enumerate().filter(|(i, _)| kept(*i)).map(|(_, x)| *x).collect())
                }
                MaskData::Additive(x) => {
                    let rows: Vec<f32> = (0..x.len()).filter(|i| kept(*i)).map(|i| x.get(i)).collect();
                    let mut fewer = Data::filled(x.elements().dtype(), rows.len(), 0.0);
                    rows.iter().enumerate().for_each(|(i, x)| fewer.set(i, *x));
                    MaskData::Additive(fewer)
                }
            });
        }
        Some(case)
    }

    /// Writes `value` into every element of key `token` (of the new keys) of all heads of sequence `batch`.
    pub fn fill_key(&mut self, batch: usize, token: usize, value: f32) {
        for h in 0..self.spec.key.heads() {
            let at = self.spec.key.row(batch, h, token);
            (0..self.spec.key.dim()).for_each(|x| self.k.set(at + x, value));
        }
    }

    /// Writes `value` into every element of value `token` (of the new ones) of all heads of sequence `batch`.
    pub fn fill_value(&mut self, batch: usize, token: usize, value: f32) {
        for h in 0..self.spec.value.heads() {
            let at = self.spec.value.row(batch, h, token);
            (0..self.spec.value.dim()).for_each(|x| self.v.set(at + x, value));
        }
    }
}

fn tokens(view: &View) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
    let [batch, heads, n, _] = view.shape();
    (0..batch).flat_map(move |b| (0..heads).flat_map(move |h| (0..n).map(move |t| (b, h, t))))
}

/// Owned buffers of everything that a problem can write.
#[derive(Clone, Debug)]
pub struct Buffers {
    /// Elements of the output view.
    pub output: Data,
    /// Log-sum-exp, `[batch, heads, queries]`.
    pub lse: Vec<f32>,
    /// References of the states, `[batch, heads, queries]`.
    pub m: Vec<f32>,
    /// Sums of the states, `[batch, heads, queries]`.
    pub s: Vec<f32>,
    /// Weighted sums of the states, `[batch, heads, queries, d_v]`.
    pub w: Vec<f32>,
    /// Present keys and values.
    pub present: Option<(Data, Data)>,
}

impl Buffers {
    /// All of them, borrowed.
    pub fn outputs(&mut self) -> Outputs<'_> {
        let mut outputs = Outputs::new(self.output.elements_mut());
        outputs.lse = Some(&mut self.lse);
        outputs.state = Some(StateOut { m: &mut self.m, s: &mut self.s, w: &mut self.w });
        if let Some((k, v)) = &mut self.present {
            outputs.present_key = Some(k.elements_mut());
            outputs.present_value = Some(v.elements_mut());
        }
        outputs
    }
}

/// Any small problem: every feature of the problem, alone and together.
pub fn any_params() -> impl Strategy<Value = Params> {
    let sizes = (
        1usize..=3,
        select(vec![(1usize, 1usize), (2, 1), (2, 2), (3, 1), (4, 2), (6, 3)]),
        select(vec![0usize, 1, 2, 3, 5, 8, 13, 21, 34]),
        select(vec![0usize, 1, 2, 3, 7, 16, 33, 65, 90]),
        select(vec![1usize, 2, 3, 8, 16, 19]),
        select(vec![1usize, 2, 4, 8, 17]),
    );
    let memory = (
        select(vec![DType::F32, DType::F32, DType::F16, DType::Bf16]),
        select(vec![Layout::Bhnd, Layout::Bnhd, Layout::Bnc]),
        select(vec![0usize, 0, 3]),
        proptest::option::weighted(0.3, 0usize..=9),
        any::<bool>(),
        proptest::bool::weighted(0.1),
    );
    let scores = (
        proptest::option::weighted(0.3, select(vec![0.0f32, 0.05, 1.0, -0.7])),
        select(vec![None, None, Some(Alignment::TopLeft), Some(Alignment::BottomRight)]),
        (proptest::option::weighted(0.3, 0usize..=12), proptest::option::weighted(0.3, 0usize..=12)),
        proptest::option::weighted(0.3, select(vec![0.0f32, 0.5, 2.0, 30.0])),
        proptest::bool::weighted(0.3),
        select(vec![1.0f32, 1.0, 10.0]),
    );
    let mask = proptest::option::weighted(
        0.5,
        (
            select(vec![
                MaskKind::Bool,
                MaskKind::Bool,
                MaskKind::Additive(DType::F32),
                MaskKind::Additive(DType::F16),
                MaskKind::Additive(DType::Bf16),
            ]),
            1usize..=4,
            proptest::array::uniform4(any::<bool>()),
            proptest::option::weighted(0.3, 1usize..=9),
            select(vec![0.0f64, 0.2, 0.5, 0.9, 1.0]),
        ),
    );
    let packed = proptest::option::weighted(0.2, proptest::collection::vec((0usize..=9, 0usize..=12), 1..=4));
    (any::<u64>(), sizes, memory, scores, mask, packed).prop_map(
        |(seed, sizes, memory, scores, mask, packed)| {
            let (mut batch, (heads, kv_heads), queries, keys, d, dv) = sizes;
            let (dtype, layout, pad, mut past, mut present, mut shared_keys) = memory;
            let (scale, causal, (left, right), softcap, mut lengths, gain) = scores;
            let mut mask = mask;
            if packed.is_some() {
                (batch, past, present, shared_keys, lengths, mask) = (1, None, false, false, false, None);
            }
            let total = keys + past.unwrap_or(0);
            let mask = mask.map(|(kind, rank, broadcast, short, density)| {
                let last = short.map_or(total, |cut| total.saturating_sub(cut));
                let full = [batch, heads, queries, last];
                let dims = (4 - rank..4).map(|a| if broadcast[a] { 1 } else { full[a] }).collect();
                MaskParams { kind, dims, density }
            });
            // A broadcast axis needs something to be broadcast over.
            let mask = mask.filter(|m| total > 0 || m.dims[m.dims.len() - 1] <= 1);
            Params {
                seed,
                dtype,
                layout,
                pad,
                batch,
                heads,
                kv_heads,
                queries,
                keys,
                past,
                present,
                d,
                dv,
                scale,
                causal,
                window: Window { left, right },
                softcap,
                mask,
                lengths,
                packed,
                shared_keys,
                gain,
            }
        },
    )
}

/// The case of [`any_params`].
pub fn any_case() -> impl Strategy<Value = Case> {
    any_params().prop_map(|params| params.build("random"))
}

/// Head sizes that the kernels must take, round ones and others.
pub const HEAD_SIZES: [usize; 14] = [1, 3, 8, 16, 24, 32, 40, 64, 72, 80, 96, 128, 192, 256];

/// Lengths around the sizes of blocks and tiles.
pub const LENGTHS: [usize; 9] = [1, 3, 63, 64, 65, 127, 129, 197, 577];

/// Problems that break naive code, by name.
#[must_use]
pub fn hard_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    shapes(&mut cases);
    magnitudes(&mut cases);
    absences(&mut cases);
    poison(&mut cases);
    semantics(&mut cases);
    // Very few queries have kernels of their own.
    let few: Vec<Case> = cases
        .iter()
        .enumerate()
        .flat_map(|(i, case)| [1, 2 + i % 3].into_iter().filter_map(|n| case.first_queries(n)))
        .collect();
    cases.extend(few);
    cases
}

fn additive(dims: &[usize], density: f64) -> Option<MaskParams> {
    Some(MaskParams { kind: MaskKind::Additive(DType::F32), dims: dims.to_vec(), density })
}

fn boolean(dims: &[usize], density: f64) -> Option<MaskParams> {
    Some(MaskParams { kind: MaskKind::Bool, dims: dims.to_vec(), density })
}

fn shapes(cases: &mut Vec<Case>) {
    for n in LENGTHS {
        cases.push(Params::plain(n, n, 64, 64).build(format!("n = {n}")));
        let causal = Some(Alignment::BottomRight);
        cases.push(Params { causal, ..Params::plain(n, n, 16, 16) }.build(format!("n = {n}, causal")));
    }
    for d in HEAD_SIZES {
        cases.push(Params::plain(17, 70, d, d).build(format!("d = {d}")));
    }
    for (d, dv) in [(64, 1), (1, 64), (64, 128), (80, 24), (3, 5), (256, 8)] {
        cases.push(Params::plain(19, 131, d, dv).build(format!("d = {d}, d_v = {dv}")));
    }
    for dtype in [DType::F16, DType::Bf16] {
        for n in [1, 65, 197] {
            cases.push(Params { dtype, ..Params::plain(n, n, 64, 64) }.build(format!("{dtype}, n = {n}")));
        }
        for d in [1, 3, 24, 72] {
            cases.push(Params { dtype, ..Params::plain(5, 33, d, d + 1) }.build(format!("{dtype}, d = {d}")));
        }
    }
    cases.push(Params::plain(1, 1, 1, 1).build("a single number"));
    cases.push(Params::plain(1, 577, 64, 64).build("one query"));
    cases.push(Params::plain(577, 1, 64, 64).build("one key"));
    cases.push(Params::plain(2, 1700, 8, 8).build("several segments"));
    cases.push(Params::plain(0, 5, 8, 8).build("zero queries"));
    cases.push(Params::plain(5, 0, 8, 8).build("zero keys"));
    cases.push(Params::plain(0, 0, 8, 8).build("zero queries and keys"));
    for layout in [Layout::Bhnd, Layout::Bnhd, Layout::Bnc] {
        for pad in [0, 5] {
            let p = Params { layout, pad, batch: 2, heads: 3, kv_heads: 3, ..Params::plain(21, 37, 24, 40) };
            cases.push(p.build(format!("layout {layout:?}, {pad} elements between rows")));
        }
    }
    let p = Params { batch: 3, shared_keys: true, lengths: true, ..Params::plain(9, 40, 16, 16) };
    cases.push(p.build("keys shared by the batch"));
}

fn magnitudes(cases: &mut Vec<Case>) {
    for gain in [1e3, 1e4] {
        let p = Params { gain, ..Params::plain(33, 129, 64, 64) };
        cases.push(p.build(format!("scores that overflow exp, queries of {gain}")));
    }
    let p = Params { gain: 1e3, dtype: DType::F16, ..Params::plain(33, 129, 32, 32) };
    cases.push(p.build("scores that overflow exp, f16"));
    for at in [0, 64, 128] {
        let mut c = Params::plain(17, 129, 32, 32).build(format!("one dominant key, {at}"));
        // Every query agrees with this key alone.
        let key = c.spec.key.row(0, 0, at);
        for i in 0..17 {
            let query = c.spec.query.row(0, 0, i);
            for x in 0..32 {
                c.k.set(key + x, if x % 2 == 0 { 40.0 } else { -40.0 });
                c.q.set(query + x, if x % 2 == 0 { 2.0 } else { -2.0 });
            }
        }
        cases.push(c);
    }
    for (up, name) in [(true, "scores rise with every key"), (false, "scores fall with every key")] {
        let mut c = Params::plain(5, 700, 4, 8).build(name);
        for j in 0..700 {
            c.fill_key(0, j, if up { j as f32 } else { 700.0 - j as f32 });
        }
        (0..c.q.len()).for_each(|x| c.q.set(x, 10.0));
        cases.push(c);
    }
    for value in [1e30, 1e-30, 1e-38, 1e-41] {
        let mut c = Params::plain(17, 129, 16, 16).build(format!("values of {value:e}"));
        (0..c.v.len()).for_each(|x| c.v.set(x, c.v.get(x) * value));
        cases.push(c);
    }
    let mut c =
        Params { dtype: DType::F16, ..Params::plain(17, 65, 16, 16) }.build("values near the end of f16");
    (0..c.v.len()).for_each(|x| c.v.set(x, if c.v.get(x) > 0.0 { 65504.0 } else { -6e-8 }));
    cases.push(c);
    for dtype in [DType::F32, DType::F16] {
        let tiny = if dtype == DType::F32 { 1e-41 } else { 1e-6 };
        let mut c =
            Params { dtype, ..Params::plain(9, 65, 16, 16) }.build(format!("subnormal inputs, {dtype}"));
        (0..c.q.len()).for_each(|x| c.q.set(x, c.q.get(x) * tiny));
        (0..c.k.len()).for_each(|x| c.k.set(x, c.k.get(x) * tiny));
        (0..c.v.len()).for_each(|x| c.v.set(x, c.v.get(x) * tiny));
        cases.push(c);
    }
    for largest in [1.0, -1.0] {
        let mut c =
            Params::plain(9, 129, 16, 20).build(format!("values as large as a problem may have, {largest}"));
        // Keys times twice the greatest weight, times the value.
        let value = f32::MAX / (129.0 * 512.0) * largest;
        (0..c.v.len()).for_each(|x| c.v.set(x, value));
        cases.push(c);
    }
    for softcap in [None, Some(2.0)] {
        let name = format!("scores of both infinities, soft cap {softcap:?}");
        let mut c = Params { softcap, ..Params::plain(9, 70, 16, 20) }.build(name);
        for x in 0..c.q.len() {
            c.q.set(x, if x % 16 == 0 { f32::INFINITY } else { 0.5 });
        }
        for j in 0..70 {
            // With a cap both ends are attended scores; without one the upper end is not a number.
            c.k.set(j * 16, if softcap.is_some() && j % 2 == 0 { 1.0 } else { -1.0 });
        }
        cases.push(c);
    }
    let mut c = Params::plain(9, 200, 16, 16).build("identical keys");
    for j in 0..200 {
        c.fill_key(0, j, 0.5);
    }
    cases.push(c);
    let mut c = Params::plain(9, 200, 16, 16).build("values that cancel");
    for j in 0..200 {
        c.fill_key(0, j, 0.5);
        c.fill_value(0, j, if j % 2 == 0 { 1000.0 } else { -1000.0 });
    }
    cases.push(c);
    let mut c = Params::plain(9, 64, 16, 16).build("queries of zero, negative zero and one sign");
    (0..c.q.len()).for_each(|x| c.q.set(x, [0.0, -0.0, -1.0][x / 16 % 3]));
    cases.push(c);
}

fn absences(cases: &mut Vec<Case>) {
    let base = Params { batch: 2, heads: 2, kv_heads: 1, ..Params::plain(19, 70, 16, 16) };
    cases
        .push(Params { mask: boolean(&[1, 1, 1, 70], 0.0), ..base.clone() }.build("everything masked, bool"));
    cases.push(Params { mask: additive(&[19, 70], 0.0), ..base.clone() }.build("everything masked, float"));
    for (mask, name) in [(boolean(&[19, 70], 0.5), "bool"), (additive(&[19, 70], 0.5), "float")] {
        let mut c = Params { mask, ..base.clone() }.build(format!("some rows masked whole, {name}"));
        for i in [0usize, 7, 18] {
            for j in 0..70 {
                if let Some(mask) = &mut c.mask {
                    mask.set_attended(i * 70 + j, false);
                }
            }
        }
        cases.push(c);
    }
    let mut c = Params { lengths: true, ..base.clone() }.build("a sequence without valid keys");
    c.lengths = Some(vec![0, 70]);
    cases.push(c);
    let causal = Some(Alignment::BottomRight);
    cases.push(Params { causal, ..Params::plain(70, 19, 16, 16) }.build("more queries than keys, causal"));
    let causal = Some(Alignment::TopLeft);
    cases.push(Params { causal, ..Params::plain(19, 70, 16, 16) }.build("more keys than queries, causal"));
    let window = Window { left: None, right: Some(0) };
    cases.push(Params { window, ..Params::plain(33, 70, 16, 16) }.build("window open to the left"));
    let window = Window { left: Some(0), right: Some(0) };
    cases.push(Params { window, ..Params::plain(33, 70, 16, 16) }.build("the diagonal alone"));
    let window = Window { left: Some(usize::MAX), right: Some(usize::MAX) };
    cases.push(Params { window, ..Params::plain(9, 70, 16, 16) }.build("a window wider than any length"));
    let window = Window { left: Some(2), right: Some(1) };
    cases.push(Params { window, ..Params::plain(90, 40, 16, 16) }.build("a window that leaves the keys"));
    let mut c =
        Params { mask: boolean(&[3, 2100], 0.0), ..Params::plain(3, 2100, 8, 8) }.build("gaps of segments");
    for (i, j) in [(0usize, 3usize), (0, 1600), (1, 2099), (2, 511), (2, 512), (2, 1536)] {
        if let Some(mask) = &mut c.mask {
            mask.set_attended(i * 2100 + j, true);
        }
    }
    cases.push(c);
}

fn poison(cases: &mut Vec<Case>) {
    const BAD: [(f32, &str); 3] =
        [(f32::NAN, "NaN"), (f32::INFINITY, "infinity"), (f32::NEG_INFINITY, "minus infinity")];
    for (bad, name) in BAD {
        let base = Params::plain(19, 70, 16, 16);
        for mask in [boolean(&[1, 70], 0.7), additive(&[1, 70], 0.7), boolean(&[19, 70], 0.7)] {
            let kind = mask.as_ref().map_or("", |m| m.kind.name());
            let rows = mask.as_ref().map_or(1, |m| m.dims[0]);
            let mut c = Params { mask, ..base.clone() }
                .build(format!("{name} in keys and values that a {kind} mask of {rows} rows takes out"));
            for j in [0usize, 5, 69] {
                for i in 0..rows {
                    if let Some(mask) = &mut c.mask {
                        mask.set_attended(i * 70 + j, false);
                    }
                }
                c.fill_key(0, j, bad);
                c.fill_value(0, j, bad);
            }
            cases.push(c);
        }
        let mut c = Params { batch: 2, lengths: true, ..base.clone() }
            .build(format!("{name} in keys and values beyond the valid ones"));
        c.lengths = Some(vec![41, 0]);
        for (b, from) in [(0, 41), (1, 0)] {
            for j in from..70 {
                c.fill_key(b, j, bad);
                c.fill_value(b, j, bad);
            }
        }
        cases.push(c);
        let window = Window { left: Some(3), right: None };
        let mut c = Params { causal: Some(Alignment::TopLeft), window, ..base.clone() }
            .build(format!("{name} in keys and values that only some rows attend"));
        c.fill_key(0, 9, bad);
        c.fill_value(0, 9, bad);
        cases.push(c);
        let mut c = Params { mask: additive(&[19, 50], 1.0), ..base.clone() }
            .build(format!("{name} in keys and values past the end of the mask"));
        for j in 50..70 {
            c.fill_key(0, j, bad);
            c.fill_value(0, j, bad);
        }
        cases.push(c);
        // What a mask holds where lengths or causality already exclude the key is not looked at.
        for dims in [&[19usize, 70][..], &[1, 70]] {
            let mut c = Params { mask: additive(dims, 1.0), lengths: true, ..base.clone() }
                .build(format!("{name} in a mask of {} rows beyond the valid keys", dims[0]));
            c.lengths = Some(vec![30]);
            for i in 0..dims[0] {
                for j in 30..70 {
                    if let Some(MaskData::Additive(mask)) = &mut c.mask {
                        mask.set(i * 70 + j, bad);
                    }
                }
            }
            cases.push(c);
        }
        let mut c = Params { mask: additive(&[19, 70], 1.0), ..base.clone() }
            .build(format!("{name} in the mask of one attended key"));
        if let Some(MaskData::Additive(mask)) = &mut c.mask {
            mask.set(3 * 70 + 11, bad);
        }
        cases.push(c);
    }
    let base = Params { heads: 2, kv_heads: 1, ..Params::plain(19, 140, 16, 16) };
    let mut c = base.build("NaN in one element of a query");
    let at = c.spec.query.row(0, 1, 7);
    c.q.set(at + 3, f32::NAN);
    cases.push(c);
    for j in [0, 70, 139] {
        let mut c = base.build(format!("NaN in one element of attended key {j}"));
        let at = c.spec.key.row(0, 0, j);
        c.k.set(at + 15, f32::NAN);
        cases.push(c);
        let mut c = base.build(format!("NaN in one element of attended value {j}"));
        let at = c.spec.value.row(0, 0, j);
        c.v.set(at + 2, f32::NAN);
        cases.push(c);
        // The NaN comes with a key far below the largest score.
        let mut c = base.build(format!("NaN in attended key {j} beside a dominant one"));
        c.fill_key(0, j, f32::NAN);
        c.fill_key(0, 33, 1000.0);
        (0..c.q.len()).for_each(|x| c.q.set(x, 1.0));
        cases.push(c);
        let mut c = base.build(format!("score of minus infinity at key {j}"));
        (0..c.q.len()).for_each(|x| c.q.set(x, c.q.get(x).abs() + 0.1));
        c.fill_key(0, j, f32::NEG_INFINITY);
        cases.push(c);
    }
    let mut c = base.build("all scores minus infinity");
    (0..c.q.len()).for_each(|x| c.q.set(x, 1.0));
    (0..140).for_each(|j| c.fill_key(0, j, f32::NEG_INFINITY));
    cases.push(c);
}

fn semantics(cases: &mut Vec<Case>) {
    let base = Params { batch: 2, heads: 4, kv_heads: 2, ..Params::plain(23, 75, 16, 24) };
    for causal in [Alignment::TopLeft, Alignment::BottomRight] {
        for past in [None, Some(0), Some(61)] {
            for lengths in [false, true] {
                let p = Params { causal: Some(causal), past, present: true, lengths, ..base.clone() };
                cases.push(p.build(format!("{causal:?}, past {past:?}, lengths {lengths}")));
            }
        }
    }
    for dims in [
        &[75usize][..],
        &[1],
        &[23, 75],
        &[23, 1],
        &[4, 1, 75],
        &[4, 23, 75],
        &[2, 1, 1, 75],
        &[2, 4, 23, 75],
    ] {
        for mask in [boolean(dims, 0.6), additive(dims, 0.6)] {
            let kind = mask.as_ref().map_or("", |m| m.kind.name());
            cases.push(Params { mask, ..base.clone() }.build(format!("{kind} mask {dims:?}")));
        }
    }
    for dtype in [DType::F16, DType::Bf16] {
        let mask = Some(MaskParams { kind: MaskKind::Additive(dtype), dims: vec![23, 75], density: 0.6 });
        cases.push(Params { mask, dtype, ..base.clone() }.build(format!("{dtype} mask and data")));
    }
    cases
        .push(Params { mask: boolean(&[23, 64], 0.8), ..base.clone() }.build("a mask shorter than the keys"));
    cases.push(Params { mask: additive(&[2, 1, 1, 0], 0.8), ..base.clone() }.build("a mask without keys"));
    for softcap in [0.5, 30.0] {
        let p = Params { softcap: Some(softcap), gain: 20.0, mask: additive(&[23, 75], 0.8), ..base.clone() };
        cases.push(p.build(format!("soft cap {softcap} and a float mask")));
    }
    for scale in [0.0, -1.0, 0.37] {
        cases.push(Params { scale: Some(scale), ..base.clone() }.build(format!("scale {scale}")));
    }
    for (heads, kv_heads) in [(8, 1), (6, 3), (5, 5)] {
        let p = Params { heads, kv_heads, ..base.clone() };
        cases.push(p.build(format!("{heads} heads over {kv_heads}")));
    }
    let packed = Some(vec![(5, 9), (0, 4), (7, 0), (1, 1), (0, 0), (40, 70), (3, 66)]);
    for causal in [None, Some(Alignment::TopLeft), Some(Alignment::BottomRight)] {
        for layout in [Layout::Bhnd, Layout::Bnhd] {
            let p = Params { packed: packed.clone(), causal, layout, batch: 1, ..base.clone() };
            cases.push(p.build(format!("packed, {causal:?}, {layout:?}")));
        }
    }
    let window = Window { left: Some(4), right: Some(2) };
    let p = Params { packed, window, batch: 1, ..base.clone() };
    cases.push(p.build("packed with a window"));
    let p = Params {
        window,
        past: Some(10),
        lengths: true,
        softcap: Some(3.0),
        mask: additive(&[4, 23, 80], 0.8),
        present: true,
        layout: Layout::Bnc,
        ..base
    };
    cases.push(p.build("everything at once"));
}
