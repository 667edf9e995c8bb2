//! Compares every form with the oracle within its error bound, tests the monoid laws of a scan's elements, and checks
//! which runs have identical bits.

extern crate std;

// The code under test forbids unsafe code, so Miri only runs one small problem of each form.
#[cfg(not(miri))]
mod bits;
#[cfg(not(miri))]
mod bounds;
mod forms;
#[cfg(not(miri))]
mod laws;

use super::bound::{self, Executed, Judgement};
use super::scalar::{self, Walk};
use super::{Direction, Form, Inputs, Outputs, Problem, Rule, Spec, reference};
use crate::dtype::{DType, Elements, ElementsMut};
use crate::random::Random;
use crate::view::View;
use half::{bf16, f16};
use std::vec::Vec;
use std::{format, string::String, vec};

/// Kind of numbers that fill a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Unit keys, rates up to one, gates near one.
    Plain,
    /// Logarithms of gates of −1000, −∞, −30, 0 and +1 among mild ones.
    Gates,
    /// One key for all tokens, rates of 1.9.
    EqualKeys,
    /// Keys within a hundredth of one another, rates of 1.
    NearKeys,
    /// Keys and rates with `β |k|² = 2.2`, which let states grow.
    Growing,
    /// Large values in pairs that cancel each other.
    Cancelling,
    /// Numbers that underflow when they are multiplied.
    Small,
    /// Logarithms of gates down to −23, which are too strong to be split into factors.
    Wild,
    /// Queries and keys whose products underflow, and values that are large enough to compensate for it.
    Faint,
}

impl Style {
    pub const ALL: [Style; 9] = [
        Style::Plain,
        Style::Gates,
        Style::EqualKeys,
        Style::NearKeys,
        Style::Growing,
        Style::Cancelling,
        Style::Small,
        Style::Wild,
        Style::Faint,
    ];
}

/// Owned elements of a tensor.
#[derive(Clone, Debug)]
enum Data {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Data {
    fn of(dtype: DType, x: Vec<f32>) -> Data {
        match dtype {
            DType::F32 => Data::F32(x),
            DType::F16 => Data::F16(x.into_iter().map(f16::from_f32).collect()),
            DType::Bf16 => Data::Bf16(x.into_iter().map(bf16::from_f32).collect()),
        }
    }

    fn get(&self) -> Elements<'_> {
        match self {
            Data::F32(x) => Elements::F32(x),
            Data::F16(x) => Elements::F16(x),
            Data::Bf16(x) => Elements::Bf16(x),
        }
    }

    fn get_mut(&mut self) -> ElementsMut<'_> {
        match self {
            Data::F32(x) => ElementsMut::F32(x),
            Data::F16(x) => ElementsMut::F16(x),
            Data::Bf16(x) => ElementsMut::Bf16(x),
        }
    }

    fn wide(&self) -> Vec<f32> {
        (0..self.get().len()).map(|i| self.get().get(i)).collect()
    }
}

/// A problem with its data. Its sizes are fields; change them before you call [`Case::fill`].
#[derive(Clone, Debug)]
pub struct Case {
    pub rule: Rule,
    pub per_dim: bool,
    pub direction: Direction,
    pub batch: usize,
    /// Numbers of query, key and value heads.
    pub heads: [usize; 3],
    pub tokens: usize,
    pub dims: [usize; 2],
    pub past: bool,
    pub in_place: bool,
    pub normalize: Option<f32>,
    pub scale: Option<f32>,
    pub one_beta: bool,
    pub dtype: DType,
    pub cu_seqlens: Option<Vec<i64>>,
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
    state: Vec<f32>,
}

/// The outputs and states that a run computes.
#[derive(Clone, Debug)]
pub struct Answer {
    pub output: Vec<f32>,
    pub present: Vec<f32>,
}

impl Answer {
    pub fn bits(&self) -> Vec<u32> {
        self.output.iter().chain(&self.present).map(|x| x.to_bits()).collect()
    }
}

fn dense(shape: [usize; 4]) -> View {
    let [_, h, n, d] = shape;
    View::new("x", shape, [h * n * d, n * d, d, 1]).unwrap()
}

impl Case {
    pub fn new(rule: Rule, per_dim: bool, tokens: usize, dims: [usize; 2]) -> Case {
        Case {
            rule,
            per_dim: per_dim && rule.is_gated(),
            direction: Direction::Forward,
            batch: 1,
            heads: [1, 1, 1],
            tokens,
            dims,
            past: false,
            in_place: false,
            normalize: None,
            scale: None,
            one_beta: false,
            dtype: DType::F32,
            cu_seqlens: None,
            query: vec![],
            key: vec![],
            value: vec![],
            decay: vec![],
            beta: vec![],
            state: vec![],
        }
    }

    fn sequences(&self) -> usize {
        self.cu_seqlens.as_ref().map_or(self.batch, |list| list.len() - 1)
    }

    /// Draws the data of the case: numbers of kind `style`.
    pub fn fill(mut self, style: Style, seed: u64) -> Case {
        let mut random = Random::new(seed.wrapping_mul(77).wrapping_add(style as u64));
        let [hq, hk, hv] = self.heads;
        let [dk, dv] = self.dims;
        let (b, n) = (self.batch, self.tokens);
        let size = if style == Style::Small { 1e-20 } else { 1.0 };
        let faint = if style == Style::Faint { 1e-21 } else { 1.0 };
        self.query = (0..b * hq * n * dk).map(|_| faint * random.normal()).collect();
        self.key = (0..b * hk * n * dk).map(|_| random.normal()).collect();
        self.value = (0..b * hv * n * dv).map(|_| size / faint * random.normal()).collect();
        for head in self.key.chunks_exact_mut((n * dk).max(1)) {
            let one: Vec<f32> = head.iter().take(dk).copied().collect();
            for key in head.chunks_exact_mut(dk) {
                match style {
                    Style::EqualKeys => key.copy_from_slice(&one),
                    Style::NearKeys => key.iter_mut().zip(&one).for_each(|(k, one)| *k = one + 0.01 * *k),
                    _ => {}
                }
                let norm = libm::sqrtf(key.iter().map(|k| k * k).sum::<f32>()).max(1e-3);
                let length = if style == Style::Growing { libm::sqrtf(2.2) } else { 1.0 };
                key.iter_mut().for_each(|k| *k *= length * size * faint / norm);
            }
        }
        if style == Style::Cancelling {
            for head in self.value.chunks_exact_mut((n * dv).max(1)) {
                for pair in head.chunks_exact_mut(2 * dv) {
                    let (a, b) = pair.split_at_mut(dv);
                    b.iter_mut().zip(a).for_each(|(b, a)| *b = -*a * 1.000_001);
                }
                head.iter_mut().for_each(|v| *v *= 1e4);
            }
        }
        if self.rule.is_gated() {
            let each = if self.per_dim { dk } else { 1 };
            self.decay = (0..b * hv * n * each)
                .map(|_| {
                    let mild = libm::log(1.0 - 0.2 * random.unit()) as f32;
                    match (style, random.below(24)) {
                        (Style::Gates, 0) => -1000.0,
                        (Style::Gates, 1) => f32::NEG_INFINITY,
                        (Style::Gates, 2) => -30.0,
                        (Style::Gates, 3) => 1.0,
                        (Style::Gates, 4) => 0.0,
                        (Style::Wild, x) => -(x as f32),
                        (Style::Small, _) => 30.0 * mild,
                        _ => mild,
                    }
                })
                .collect();
        }
        if self.rule.is_delta() {
            let heads = if self.one_beta { 1 } else { hv };
            self.beta = (0..b * heads * n)
                .map(|_| match style {
                    Style::EqualKeys => 1.9,
                    Style::NearKeys | Style::Growing => 1.0,
                    _ => random.unit() as f32,
                })
                .collect();
        }
        if self.past {
            let len = self.sequences() * hv * dk * dv;
            self.state = (0..len).map(|_| size * random.normal()).collect();
        }
        for x in [&mut self.query, &mut self.key, &mut self.value] {
            *x = Data::of(self.dtype, core::mem::take(x)).wide();
        }
        self
    }

    pub fn problem(&self) -> Problem {
        let [hq, hk, hv] = self.heads;
        let [dk, dv] = self.dims;
        let (b, n) = (self.batch, self.tokens);
        let mut spec = Spec::new(
            self.dtype,
            dense([b, hq, n, dk]),
            dense([b, hk, n, dk]),
            dense([b, hv, n, dv]),
            dense([b, hq.max(hv), n, dv]),
        );
        spec.rule = self.rule;
        spec.decay = self.rule.is_gated().then(|| dense([b, hv, n, if self.per_dim { dk } else { 1 }]));
        spec.beta = self.rule.is_delta().then(|| dense([b, if self.one_beta { 1 } else { hv }, n, 1]));
        let state = dense([self.sequences(), hv, dk, dv]);
        spec.past_state = self.past.then_some(state);
        spec.present_state = (self.direction != Direction::Bidirectional).then_some(state);
        (spec.in_place, spec.normalize, spec.scale) = (self.in_place, self.normalize, self.scale);
        spec.direction = self.direction;
        spec.packed = self.cu_seqlens.as_ref().map(|list| list.len() - 1);
        spec.check().unwrap()
    }

    /// Calls `use_inputs` with the inputs of a run. If `oracle` is set, they also contain the past state of an in-place
    /// problem.
    fn with<R>(&self, oracle: bool, use_inputs: impl FnOnce(&Inputs<'_>) -> R) -> R {
        let [q, k, v] = [&self.query, &self.key, &self.value].map(|x| Data::of(self.dtype, x.clone()));
        let mut inputs = Inputs::new(q.get(), k.get(), v.get());
        inputs.decay = self.rule.is_gated().then_some(Elements::F32(&self.decay));
        inputs.beta = self.rule.is_delta().then_some(Elements::F32(&self.beta));
        inputs.past_state = (self.past && (oracle || !self.in_place)).then_some(&self.state);
        inputs.cu_seqlens = self.cu_seqlens.as_deref();
        use_inputs(&inputs)
    }

    fn collect(&self, run: impl FnOnce(&Problem, &Inputs<'_>, &mut Outputs<'_>)) -> Answer {
        let problem = self.problem();
        let spec = problem.spec();
        let mut output = Data::of(self.dtype, vec![f32::NAN; spec.output.count()]);
        let mut present = if self.in_place { self.state.clone() } else { vec![] };
        if let Some(view) = &spec.present_state {
            present.resize(view.count(), f32::NAN);
        }
        self.with(false, |inputs| {
            let mut outputs = Outputs::new(output.get_mut());
            outputs.present_state = spec.present_state.is_some().then_some(&mut present);
            run(&problem, inputs, &mut outputs);
        });
        Answer { output: output.wide(), present }
    }

    /// Runs the scalar fallback and returns its results.
    pub fn run(&self, walk: Walk) -> Answer {
        self.collect(|problem, inputs, outputs| {
            let mut scratch = vec![f32::NAN; scalar::scratch_len(problem, &walk).unwrap()];
            scalar::run(problem, &walk, inputs, outputs, &mut scratch).unwrap();
        })
    }

    /// Returns the exact outputs, in the layout of the output tensor, and the exact states.
    pub fn exact(&self) -> [Vec<f64>; 2] {
        let problem = self.problem();
        self.gather(|inputs, sequence, state, output, present| {
            let mut scratch = vec![f64::NAN; reference::scratch_len(&problem)];
            reference::head(&problem, inputs, sequence, state, output, present, &mut scratch);
        })
    }

    /// Returns the exact outputs and states, the bounds for a run in the same order, and the largest gain.
    pub fn judge(&self, executed: &Executed) -> ([Vec<f64>; 2], [Vec<f64>; 2], f64) {
        let problem = self.problem();
        let mut gain = 0.0f64;
        let mut judged = |errors: bool| {
            self.gather(|inputs, sequence, state, output, present| {
                let mut scratch = vec![f64::NAN; bound::scratch_len(&problem, executed).unwrap()];
                let mut others = [vec![0.0; output.len()], vec![0.0; present.len()]];
                let [a, b] = &mut others;
                let mut to = if errors {
                    Judgement { output: a, output_error: output, present: b, present_error: present }
                } else {
                    Judgement { output, output_error: a, present, present_error: b }
                };
                let judged = bound::head(&problem, inputs, executed, sequence, state, &mut to, &mut scratch);
                gain = gain.max(judged.gain);
            })
        };
        let (exact, errors) = (judged(false), judged(true));
        (exact, errors, gain)
    }

    /// Calls `head` for every state, and copies its results into arrays with the layout of the output and the present
    /// state.
    fn gather(
        &self,
        mut head: impl FnMut(&Inputs<'_>, usize, usize, &mut [f64], &mut [f64]),
    ) -> [Vec<f64>; 2] {
        let problem = self.problem();
        let [dk, dv] = self.dims;
        let view = problem.spec().output;
        let mut output = vec![f64::NAN; view.count()];
        let mut states = vec![f64::NAN; problem.sequences() * problem.state_heads() * dk * dv];
        self.with(true, |inputs| {
            for index in 0..problem.sequences() {
                let sequence = problem.sequence(inputs.cu_seqlens, index);
                for state in 0..problem.state_heads() {
                    let (first, readers) = problem.readers(state);
                    let mut rows = vec![f64::NAN; readers * sequence.tokens * dv];
                    let at = (index * problem.state_heads() + state) * dk * dv;
                    head(inputs, index, state, &mut rows, &mut states[at..at + dk * dv]);
                    for (i, row) in rows.chunks_exact(dv).enumerate() {
                        let (reader, token) = (i / sequence.tokens, i % sequence.tokens);
                        let at = view.row(sequence.batch, first + reader, sequence.start + token);
                        output[at..at + dv].copy_from_slice(row);
                    }
                }
            }
        });
        [output, states]
    }

    /// Checks that `answer` differs from the oracle by at most the error bound for `executed`, and returns the largest
    /// ratio of error to bound.
    pub fn check(&self, answer: &Answer, executed: &Executed) -> f64 {
        let (exact, errors, _) = self.judge(executed);
        let oracle = self.exact();
        let mut share = 0.0f64;
        let found = [&answer.output, &answer.present];
        let what = if self.direction == Direction::Bidirectional { 1 } else { 2 };
        for (kind, (found, (exact, errors))) in
            found.into_iter().zip(exact.iter().zip(&errors)).enumerate().take(what)
        {
            assert_eq!(found.len(), exact.len());
            for (i, (found, (exact, error))) in found.iter().zip(exact.iter().zip(errors)).enumerate() {
                let want = oracle[kind][i];
                if !exact.is_finite() {
                    assert!(
                        !found.is_finite() && !want.is_finite(),
                        "{found} {want}: {}",
                        self.describe(executed)
                    );
                    continue;
                }
                assert!((want - exact).abs() <= 1e-12 * exact.abs() + 1e-6 * error, "{want:e} {exact:e}");
                let off = (f64::from(*found) - exact).abs();
                assert!(
                    off <= *error,
                    "{} {i}: {found:e} for {exact:e}, off by {off:e}, bound {error:e}: {}",
                    if kind == 0 { "output" } else { "state" },
                    self.describe(executed)
                );
                if off > 0.0 && error.is_finite() {
                    share = share.max(off / error);
                }
            }
        }
        share
    }

    fn describe(&self, executed: &Executed) -> String {
        format!(
            "{} {:?} per dim {} {} heads {:?} tokens {} dims {:?}",
            self.rule.name(),
            executed,
            self.per_dim,
            self.direction.name(),
            self.heads,
            self.tokens,
            self.dims
        )
    }

    /// Runs the scalar fallback with `walk`, checks its results, and returns the largest ratio of error to bound.
    pub fn check_walk(&self, walk: Walk) -> f64 {
        self.check(&self.run(walk), &scalar::executed(&self.problem(), &walk))
    }
}

/// Returns every form, with chunks of 8 tokens and parts of 12.
pub fn walks() -> [Walk; 5] {
    Form::ALL.map(|form| Walk { form, chunk: 8, part: 12 })
}

/// `true` if calls take many times their native time because they are interpreted, emulated or instrumented by a
/// sanitizer.
pub const SLOW: bool = cfg!(miri) || cfg!(target_arch = "aarch64") || cfg!(elsa_sanitized);

/// Returns every rule, with `true` for gates per dim; gated rules appear with both granularities. If calls are slow,
/// returns only the rule with all operations.
pub fn kinds() -> &'static [(Rule, bool)] {
    if SLOW { &KINDS[4..] } else { &KINDS }
}

const KINDS: [(Rule, bool); 6] = [
    (Rule::Linear, false),
    (Rule::Gated, false),
    (Rule::Gated, true),
    (Rule::Delta, false),
    (Rule::GatedDelta, false),
    (Rule::GatedDelta, true),
];

/// Returns the relative error in the Euclidean norm.
pub fn relative(found: &[f32], exact: &[f64]) -> f64 {
    let off: f64 = found.iter().zip(exact).map(|(f, e)| (f64::from(*f) - e) * (f64::from(*f) - e)).sum();
    libm::sqrt(off / exact.iter().map(|e| e * e).sum::<f64>())
}
