//! Compares a computed output with its error bounds, row by row.

use super::draw::Drawn;
use crate::cases::Data;
use elsa_core::attention::bound::rounding::{Bounds, Component, Row};
use elsa_core::attention::bound::{Arithmetic, Norms, split};
use elsa_core::attention::certificate::Executed;
use elsa_core::attention::{Inputs, Problem, reference};

/// One component of an output row: its exact value, the error of the computed value, and bounds of this error.
#[derive(Clone, Copy, Debug)]
pub struct Judged {
    /// Exact value.
    pub y: f64,
    /// Absolute error of the computed value.
    pub error: f64,
    /// Error bounds that are computed along with the exact value.
    pub bounds: Bounds,
    /// `Σ p_j |v_j|` over the keys.
    pub terms: f64,
    /// Error bound from the norms of queries and keys, scaled by `terms`.
    pub prior: f64,
    /// Likely case of the bound from norms.
    pub likely_prior: f64,
    /// `true` if the bound from norms is not vacuous.
    pub claims: bool,
}

/// Judge of the rows of one problem: computes exact rows and their error bounds, with reused scratch memory.
#[derive(Debug)]
pub struct Judge<'a> {
    problem: &'a Problem,
    inputs: Inputs<'a>,
    arithmetic: Arithmetic,
    norms: Norms,
    ln_p: Vec<Option<f64>>,
    logs: Vec<f64>,
    y: Vec<f64>,
    components: Vec<Component>,
    terms: Vec<(f64, f64)>,
    key: Vec<f32>,
    /// Largest magnitude of each channel of the keys, and of the values, for a run with split operands.
    channels: [Vec<f64>; 2],
    /// Head that `channels` belong to.
    of_head: Option<usize>,
    /// Components of the row that was judged last.
    pub judged: Vec<Judged>,
}

/// Returns the largest Euclidean norm of any row of `d` elements, rounded up.
fn largest_norm(elements: &elsa_core::dtype::Elements<'_>, d: usize) -> f64 {
    let mut largest = 0.0f64;
    for row in 0..elements.len() / d {
        let norm = (0..d).map(|c| f64::from(elements.get(row * d + c)).powi(2)).sum::<f64>().sqrt();
        largest = largest.max(norm);
    }
    largest * (1.0 + 1e-12)
}

impl<'a> Judge<'a> {
    /// Creates a judge for outputs of runs with the arithmetic `executed`.
    #[must_use]
    pub fn new(drawn: &'a Drawn, executed: Executed) -> Judge<'a> {
        let (problem, inputs) = (&drawn.problem, drawn.inputs());
        let d = problem.head_dim();
        let bias = inputs.mask.map_or(0.0, |mask| match mask {
            elsa_core::attention::MaskElements::Bool(_) => 0.0,
            elsa_core::attention::MaskElements::Additive(x) => {
                (0..x.len()).map(|i| f64::from(x.get(i)).abs()).filter(|x| x.is_finite()).fold(0.0, f64::max)
            }
        });
        Judge {
            problem,
            inputs,
            arithmetic: Arithmetic::of(problem, executed),
            norms: Norms { query: largest_norm(&inputs.query, d), key: largest_norm(&inputs.key, d), bias },
            ln_p: Vec::new(),
            logs: Vec::new(),
            y: vec![0.0; problem.value_dim()],
            components: Vec::new(),
            terms: Vec::new(),
            key: vec![0.0; d],
            channels: [vec![0.0; d], vec![0.0; problem.value_dim()]],
            of_head: None,
            judged: Vec::new(),
        }
    }

    /// Judges one row of the output `found`. Returns `false` for a row without valid bounds: its exact output is not
    /// finite, or a score or sum leaves the range of f32.
    pub fn row(&mut self, head: usize, query: usize, found: &Data) -> bool {
        let (problem, inputs) = (self.problem, self.inputs);
        let spec = problem.spec();
        self.judged.clear();
        let row = reference::row(problem, &inputs, 0, head, query, &mut self.y);
        if !self.y.iter().all(|y| y.is_finite() && y.abs() < 1e38) {
            return false;
        }
        self.ln_p.clear();
        let ln_p = &mut self.ln_p;
        reference::log_probabilities(problem, &inputs, 0, head, query, &row, |_, x| ln_p.push(x));
        self.logs.clear();
        self.logs.extend(self.ln_p.iter().map(|x| x.unwrap_or(f64::NEG_INFINITY)));
        let (d, kv_head) = (problem.head_dim(), problem.kv_head(head));
        let q0 = spec.query.row(0, head, query);
        let q: Vec<f32> = (0..d).map(|c| inputs.query.get(q0 + c)).collect();
        let (arithmetic, y) = (&self.arithmetic, &self.y);
        self.components.clear();
        self.components.extend(y.iter().map(|&y| Component::new(arithmetic, y)));
        let [keys, values] = &mut self.channels;
        if arithmetic.executed.split {
            if self.of_head != Some(head) {
                split::channels(problem, &inputs, (0, head), keys, values);
                self.of_head = Some(head);
            }
            self.components.iter_mut().zip(values).for_each(|(component, x)| component.within_channel(*x));
        }
        let reach = split::reach(arithmetic.scale, &q, keys);
        self.terms.clear();
        self.terms.resize(y.len(), (0.0, 0.0));
        let mut bounds = Row::new(*arithmetic, &self.logs);
        for j in 0..self.logs.len() {
            if self.ln_p[j].is_none() {
                continue;
            }
            let k0 = spec.key.row(0, kv_head, j);
            self.key.iter_mut().enumerate().for_each(|(c, k)| *k = inputs.key.get(k0 + c));
            let score = arithmetic.score(&q, |c| self.key[c]).split(arithmetic, reach);
            if score.magnitude.is_nan() || score.magnitude >= 1e37 {
                return false;
            }
            let bias = reference::bias_magnitude(problem, &inputs, 0, head, query, j);
            let key = bounds.absorb(j, &score, bias);
            let v0 = spec.value.row(0, kv_head, j);
            for (c, component) in self.components.iter_mut().enumerate() {
                let v = f64::from(inputs.value.get(v0 + c));
                component.absorb(&key, v);
                let (terms, most) = &mut self.terms[c];
                (*terms, *most) = (*terms + key.p * v.abs(), most.max(v.abs()));
            }
        }
        let prior = arithmetic.prior(problem.keys(), &self.norms);
        let at = spec.output.row(0, head, query);
        for (c, component) in self.components.iter().enumerate() {
            let (terms, attended) = self.terms[c];
            // Splits are relative to the channel of all keys of the sequence.
            let most = if arithmetic.executed.split { self.channels[1][c] } else { attended };
            let y = y[c];
            let of =
                |relative: f64| (relative * terms + prior.lost * most + prior.tiny).min(prior.absolute(most));
            self.judged.push(Judged {
                y,
                error: (f64::from(found.get(at + c)) - y).abs(),
                bounds: bounds.bounds(component),
                terms,
                prior: of(prior.relative),
                likely_prior: of(prior.likely),
                claims: prior.claims(),
            });
        }
        true
    }
}
