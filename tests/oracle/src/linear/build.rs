//! Cases of linear attention.

use crate::cases::{Data, each_row};
use crate::random::seeded;
use elsa_core::dtype::DType;
use elsa_core::linear::{Direction, Inputs, Problem, Rule, Spec};
use elsa_core::random::Random;
use elsa_core::view::View;

/// Distributions of the gates' logarithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateKind {
    /// All logarithms are between −0.2 and 0.
    Mild,
    /// One logarithm in seven is −1000, one in seven is +1, and the others are mild.
    Hard,
    /// One logarithm in five is −∞, and the others are mild.
    Clearing,
}

/// Layout of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// `[batch, heads, tokens, dim]` without gaps.
    Heads,
    /// `[batch, tokens, heads, dim]` without gaps.
    Tokens,
    /// `[batch, heads, tokens, dim]` with gaps between rows, heads and batches.
    Gaps,
}

/// Parameters of a case.
#[derive(Clone, Debug)]
pub struct Params {
    /// Rule of the recurrence.
    pub rule: Rule,
    /// `true` if each dim of a key has its own gate.
    pub per_dim: bool,
    /// Type of query, key, value and output.
    pub dtype: DType,
    /// Type of the gates' logarithms (decay) and of the rates (beta).
    pub gate_dtype: DType,
    /// Number of sequences in the batch.
    pub batch: usize,
    /// Numbers of query heads, key heads and value heads.
    pub heads: [usize; 3],
    /// Number of tokens per sequence.
    pub tokens: usize,
    /// Head sizes of keys and of values.
    pub dims: [usize; 2],
    /// Order in which the recurrence visits the tokens.
    pub direction: Direction,
    /// `true` if the problem has past states.
    pub past: bool,
    /// `true` if present states are written.
    pub present: bool,
    /// `true` if present states alias the past states.
    pub in_place: bool,
    /// Cumulative lengths of packed sequences; `None` if sequences are not packed.
    pub packed: Option<Vec<i64>>,
    /// Epsilon of the normalisation of queries and keys to unit vectors; `None` if they are not normalised.
    pub normalize: Option<f32>,
    /// Scale of the outputs; `None` for the default.
    pub scale: Option<f32>,
    /// `true` if all state heads share one rate per token.
    pub shared_beta: bool,
    /// Distribution of the gates.
    pub gates: GateKind,
    /// `true` if all keys are nearly equal.
    pub equal_keys: bool,
    /// Upper limit of the rates.
    pub most_beta: f32,
    /// Layout of the rows.
    pub packing: Packing,
    /// Seed of the data.
    pub seed: u64,
}

impl Params {
    /// Creates the parameters of a case in f32 with one head of queries, keys and values, in forward direction and without
    /// past states.
    #[must_use]
    pub fn plain(rule: Rule, tokens: usize, dims: [usize; 2]) -> Params {
        Params {
            rule,
            per_dim: false,
            dtype: DType::F32,
            gate_dtype: DType::F32,
            batch: 1,
            heads: [1; 3],
            tokens,
            dims,
            direction: Direction::Forward,
            past: false,
            present: true,
            in_place: false,
            packed: None,
            normalize: None,
            scale: None,
            shared_beta: false,
            gates: GateKind::Mild,
            equal_keys: false,
            most_beta: 1.0,
            packing: Packing::Heads,
            seed: 1,
        }
    }

    fn view(&self, shape: [usize; 4]) -> View {
        let [_, h, n, d] = shape;
        let strides = match self.packing {
            Packing::Heads => [h * n * d, n * d, d, 1],
            Packing::Tokens => [h * n * d, d, h * d, 1],
            Packing::Gaps => {
                let head = n * (d + 3) + 5;
                [h * head + 7, head, d + 3, 1]
            }
        };
        View::new("x", shape, strides).unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }

    /// Builds the case, reproducibly.
    #[must_use]
    pub fn build(&self) -> Case {
        let Params { batch, heads: [hq, hk, hv], tokens, dims: [dk, dv], .. } = *self;
        let mut random = seeded(self.seed);
        let [query, key, value] =
            [(hq, dk), (hk, dk), (hv, dv)].map(|(h, d)| self.view([batch, h, tokens, d]));
        let mut spec = Spec::new(self.dtype, query, key, value, self.view([batch, hq.max(hv), tokens, dv]));
        (spec.rule, spec.gate_dtype, spec.direction) = (self.rule, self.gate_dtype, self.direction);
        (spec.normalize, spec.scale) = (self.normalize, self.scale);
        spec.packed = self.packed.as_ref().map(|list| list.len() - 1);
        let gated =
            self.rule.is_gated().then(|| self.view([batch, hv, tokens, if self.per_dim { dk } else { 1 }]));
        let rated = self
            .rule
            .is_delta()
            .then(|| self.view([batch, if self.shared_beta { 1 } else { hv }, tokens, 1]));
        (spec.decay, spec.beta) = (gated, rated);
        let states = self.view([spec.packed.unwrap_or(batch), hv, dk, dv]);
        spec.past_state = self.past.then_some(states);
        spec.present_state = (self.present && self.direction != Direction::Bidirectional).then_some(states);
        spec.in_place = self.in_place;
        let problem = spec.check().unwrap_or_else(|e| panic!("{self:?}: {e}"));
        // This scale gives keys a norm of about one.
        let key_scale = 1.0 / (dk as f32).sqrt();
        let common: Vec<f32> = (0..dk).map(|_| random.normal()).collect();
        let apart = if self.equal_keys { 1e-3 } else { 1.0 };
        let mut rows = |view: &View, dtype: DType, element: &mut dyn FnMut(&mut Random, usize) -> f32| {
            // Gaps contain NaN, because they must not be read.
            let mut data = Data::filled(dtype, view.extent(), f32::NAN);
            each_row(view, |row| {
                for x in 0..view.dim() {
                    data.set(row + x, element(&mut random, x));
                }
            });
            data
        };
        let query = rows(&query, self.dtype, &mut |r, _| r.normal());
        let key = rows(&key, self.dtype, &mut |r, x| {
            let shared = if self.equal_keys { common[x] } else { 0.0 };
            (shared + apart * r.normal()) * key_scale
        });
        let value = rows(&value, self.dtype, &mut |r, _| r.normal());
        let kind = self.gates;
        let decay = gated.map(|view| {
            rows(&view, self.gate_dtype, &mut |r, _| match (kind, r.below(35)) {
                (GateKind::Hard, 0..5) => -1000.0,
                (GateKind::Hard, 5..10) => 1.0,
                (GateKind::Clearing, 0..7) => f32::NEG_INFINITY,
                _ => -0.2 * r.unit() as f32,
            })
        });
        let most = self.most_beta;
        let beta = rated.map(|view| rows(&view, self.gate_dtype, &mut |r, _| most * r.unit() as f32));
        let past = self.past.then(|| match rows(&states, DType::F32, &mut |r, _| r.normal()) {
            Data::F32(values) => values,
            _ => Vec::new(),
        });
        Case {
            name: format!("{self:?}"),
            problem,
            query,
            key,
            value,
            decay,
            beta,
            past,
            bounds: self.packed.clone(),
        }
    }
}

/// A problem with owned data.
#[derive(Clone, Debug)]
pub struct Case {
    /// Description of the case, for messages.
    pub name: String,
    /// The problem.
    pub problem: Problem,
    /// Elements of the query view.
    pub query: Data,
    /// Elements of the key view.
    pub key: Data,
    /// Elements of the value view.
    pub value: Data,
    /// Elements of the decay view.
    pub decay: Option<Data>,
    /// Elements of the beta view.
    pub beta: Option<Data>,
    /// Past states.
    pub past: Option<Vec<f32>>,
    /// Cumulative lengths of packed sequences.
    pub bounds: Option<Vec<i64>>,
}

impl Case {
    /// Returns all inputs, including past states that a call in place reads from its output.
    #[must_use]
    pub fn all_inputs(&self) -> Inputs<'_> {
        let mut inputs = Inputs::new(self.query.elements(), self.key.elements(), self.value.elements());
        inputs.decay = self.decay.as_ref().map(Data::elements);
        inputs.beta = self.beta.as_ref().map(Data::elements);
        inputs.past_state = self.past.as_deref();
        inputs.cu_seqlens = self.bounds.as_deref();
        inputs
    }

    /// Returns the inputs that a call accepts. If the problem replaces states in place, they exclude the past states.
    #[must_use]
    pub fn inputs(&self) -> Inputs<'_> {
        let mut inputs = self.all_inputs();
        if self.problem.spec().in_place {
            inputs.past_state = None;
        }
        inputs
    }
}

impl Case {
    /// Splits a case after its first `tokens` tokens. The case must have one head and no gaps between rows. The caller
    /// sets the past of the second part.
    ///
    /// # Panics
    /// Panics if the case has several heads or sequences.
    #[must_use]
    pub fn cut(&self, tokens: usize) -> (Case, Case) {
        let spec = *self.problem.spec();
        assert_eq!(spec.query.batch() * self.problem.output_heads(), 1, "{}", self.name);
        let part = |range: std::ops::Range<usize>| {
            let view = |of: &View| {
                let (n, d) = (range.len(), of.dim());
                View::new("x", [1, 1, n, d], [n * d, n * d, d, 1]).unwrap_or_default()
            };
            let data = |data: &Data, of: &View| {
                let d = of.dim();
                let mut some = Data::filled(data.elements().dtype(), range.len() * d, 0.0);
                (0..range.len() * d).for_each(|i| some.set(i, data.get(range.start * d + i)));
                some
            };
            let mut own = spec;
            (own.query, own.key) = (view(&spec.query), view(&spec.key));
            (own.value, own.output) = (view(&spec.value), view(&spec.output));
            (own.decay, own.beta) = (spec.decay.as_ref().map(view), spec.beta.as_ref().map(view));
            Case {
                problem: own.check().unwrap_or_else(|e| panic!("{}: {e}", self.name)),
                query: data(&self.query, &spec.query),
                key: data(&self.key, &spec.key),
                value: data(&self.value, &spec.value),
                decay: self.decay.as_ref().zip(spec.decay.as_ref()).map(|(x, of)| data(x, of)),
                beta: self.beta.as_ref().zip(spec.beta.as_ref()).map(|(x, of)| data(x, of)),
                ..self.clone()
            }
        };
        (part(0..tokens), part(tokens..self.problem.tokens()))
    }
}
