//! Gradients of cases: forward pass, backward pass, and exact gradients for comparison.

use crate::cases::{Case, Data};
use crate::random::seeded;
use elsa_core::attention::backward::reference::pairs;
use elsa_core::attention::backward::{
    BackwardInputs, BackwardProblem, Gradients, Statistics, Structure, scalar as backward_scalar,
};
use elsa_core::attention::{Inputs, Outputs, Problem, StateOut, reference, scalar};
use elsa_core::dtype::Elements;
use elsa_core::view::View;
use elsa_runtime::{BackwardPlanOptions, Engine, PlanOptions};

/// A case with an upstream gradient and the results of its forward pass.
#[derive(Clone, Debug)]
pub struct GradientCase {
    /// The case.
    pub case: Case,
    /// The problem of the backward pass.
    pub problem: BackwardProblem,
    /// The output in f32.
    pub output: Vec<f32>,
    /// The upstream gradient.
    pub upstream: Data,
    /// References of the rows' states.
    pub m: Vec<f32>,
    /// Sums of the rows' states.
    pub s: Vec<f32>,
    /// Log-sum-exp of the rows.
    pub lse: Vec<f32>,
}

/// Computed gradients, in the views of the backward problem.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientBuffers {
    /// Gradients of the queries.
    pub query: Vec<f32>,
    /// Gradients of the keys.
    pub key: Vec<f32>,
    /// Gradients of the values.
    pub value: Vec<f32>,
}

impl GradientBuffers {
    /// Creates buffers for the gradients, filled with NaN.
    #[must_use]
    pub fn room(problem: &BackwardProblem) -> GradientBuffers {
        let nan = |view: &View| vec![f32::NAN; view.extent()];
        let spec = problem.spec();
        GradientBuffers { query: nan(&spec.query), key: nan(&spec.key), value: nan(&spec.value) }
    }

    /// Borrows the buffers.
    pub fn gradients(&mut self) -> Gradients<'_> {
        Gradients { query: &mut self.query, key: &mut self.key, value: &mut self.value }
    }

    /// Returns the bits of all elements. All NaNs map to the same bits, regardless of payload.
    #[must_use]
    pub fn bits(&self) -> Vec<u32> {
        let all = self.query.iter().chain(&self.key).chain(&self.value);
        all.map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
    }
}

fn rows(view: &View) -> impl Iterator<Item = usize> + use<> {
    let view = *view;
    let [b, h, n, _] = view.shape();
    (0..b).flat_map(move |b| (0..h).flat_map(move |h| (0..n).map(move |t| view.row(b, h, t))))
}

impl GradientCase {
    /// Runs the forward pass of a case on the scalar fallback, and draws a random upstream gradient. `None` if the case
    /// has past or present keys and values.
    ///
    /// # Panics
    /// Panics if a valid case is refused.
    #[must_use]
    pub fn of(case: &Case) -> Option<GradientCase> {
        GradientCase::by(case, |problem, inputs, outputs| {
            let mut scratch = vec![0.0; scalar::scratch_len(problem).unwrap_or(0)];
            scalar::run(problem, inputs, outputs, &mut scratch).unwrap_or_else(|e| panic!("{e}"));
        })
    }

    /// Works like [`GradientCase::of`], but runs the forward pass on an engine instead of the scalar fallback.
    ///
    /// # Panics
    /// Panics if a valid case is refused.
    #[must_use]
    pub fn on(engine: &Engine, case: &Case) -> Option<GradientCase> {
        GradientCase::by(case, |problem, inputs, outputs| {
            let plan = engine.plan(problem, &PlanOptions::default()).unwrap_or_else(|e| panic!("{e}"));
            let mut workspace = plan.workspace().unwrap_or_else(|e| panic!("{e}"));
            let outputs = std::mem::take(outputs);
            let mut bound = plan.bind(*inputs, outputs, &mut workspace).unwrap_or_else(|e| panic!("{e}"));
            bound.run().unwrap_or_else(|e| panic!("{e}"));
        })
    }

    fn by(case: &Case, run: impl Fn(&Problem, &Inputs<'_>, &mut Outputs<'_>)) -> Option<GradientCase> {
        let s = &case.spec;
        if s.past_key.is_some() || s.present_key.is_some() || s.present_value.is_some() {
            return None;
        }
        let problem = case.problem();
        let backward = BackwardProblem::new(&problem).unwrap_or_else(|e| panic!("{e}"));
        let (n, dv) = (problem.rows(), problem.value_dim());
        let [mut m, mut s, mut lse] = [(); 3].map(|()| vec![f32::NAN; n]);
        let mut w = vec![f32::NAN; n * dv];
        let mut outputs = Outputs::states(StateOut { m: &mut m, s: &mut s, w: &mut w });
        outputs.lse = Some(&mut lse);
        run(&problem, &case.inputs(), &mut outputs);
        let view = case.spec.output;
        let mut output = vec![f32::NAN; view.extent()];
        for (row, at) in rows(&view).enumerate() {
            for x in 0..dv {
                output[at + x] = if s[row] == 0.0 { 0.0 } else { w[row * dv + x] / s[row] };
            }
        }
        let up = backward.spec().upstream;
        let mut upstream = Data::filled(case.spec.dtype, up.extent(), f32::NAN);
        let mut random = seeded(case.params.seed ^ 0xb1);
        for at in rows(&up) {
            (0..dv).for_each(|x| upstream.set(at + x, random.normal()));
        }
        Some(GradientCase { case: case.clone(), problem: backward, output, upstream, m, s, lse })
    }

    /// Returns the inputs of the backward pass, with the states of the forward pass.
    #[must_use]
    pub fn inputs(&self) -> BackwardInputs<'_> {
        BackwardInputs {
            forward: self.case.inputs(),
            output: Elements::F32(&self.output),
            upstream: self.upstream.elements(),
            statistics: Statistics::State { m: &self.m, s: &self.s },
        }
    }

    /// Computes the gradients on the scalar fallback.
    ///
    /// # Panics
    /// Panics if the backward pass is refused.
    #[must_use]
    pub fn scalar(&self) -> GradientBuffers {
        let mut found = GradientBuffers::room(&self.problem);
        let mut scratch = vec![f32::NAN; backward_scalar::scratch_len(&self.problem).unwrap_or(0)];
        backward_scalar::run(&self.problem, &self.inputs(), &mut found.gradients(), &mut scratch)
            .unwrap_or_else(|e| panic!("{:?}: {e}", self.case));
        found
    }

    /// Runs the backward pass twice on an engine. Returns the gradients of the second run, with the parameters of their
    /// error bound.
    ///
    /// # Panics
    /// Panics if the backward pass is refused.
    #[must_use]
    pub fn engine(
        &self,
        engine: &Engine,
        inputs: BackwardInputs<'_>,
        budget: Option<usize>,
    ) -> (GradientBuffers, Structure) {
        let options = BackwardPlanOptions::default().budget(budget).all_workers(true);
        let plan = engine.backward_plan(&self.problem, &options).unwrap_or_else(|e| panic!("{e}"));
        let mut workspace = plan.workspace().unwrap_or_else(|e| panic!("{e}"));
        let mut found = GradientBuffers::room(&self.problem);
        let bound = plan.bind(inputs, found.gradients(), &mut workspace);
        let mut bound = bound.unwrap_or_else(|e| panic!("{:?}: {e}", self.case));
        for _ in 0..2 {
            bound.run().unwrap_or_else(|e| panic!("{:?}: {e}", self.case));
        }
        let forward = backward_scalar::structure(&self.problem).forward;
        (found, plan.choice().structure(forward, self.problem.forward().spec().softcap))
    }

    /// Computes the exact gradients.
    #[must_use]
    pub fn exact(&self) -> Exact {
        Exact::of(&self.problem, &self.inputs())
    }
}

/// Exact gradients, and the sums of the absolute values of their terms, in the views of the backward problem.
#[derive(Clone, Debug)]
pub struct Exact {
    /// Gradients of the queries, the keys and the values.
    pub sums: [Vec<f64>; 3],
    /// For each element of `sums`, the sum of the absolute values of its terms.
    pub absolute: [Vec<f64>; 3],
    /// Argument of [`Structure::bound`]: over all pairs of a query and a key, the largest sum of the magnitudes of the
    /// score, of its mask and bias, and of the row's reference.
    pub largest: f64,
    /// Estimated size of the largest sum of products, which scales the allowance for underflow.
    pub magnitude: f64,
    views: [View; 3],
}

impl Exact {
    /// Computes the exact gradients of a problem from its inputs.
    #[must_use]
    pub fn of(problem: &BackwardProblem, inputs: &BackwardInputs<'_>) -> Exact {
        let forward = problem.forward();
        let (s, spec) = (forward.spec(), problem.spec());
        let views = [spec.query, spec.key, spec.value];
        let zeros = || views.map(|view| vec![0.0; view.extent()]);
        let (mut sums, mut absolute, mut largest) = (zeros(), zeros(), 0.0f64);
        let take = |x: f64, largest: &mut f64| {
            if x.is_finite() {
                *largest = largest.max(x)
            }
        };
        let mut elements = 1.0;
        for index in 0..forward.sequences() {
            let sequence = forward.sequence(&inputs.forward.lengths, index);
            for head in 0..forward.heads() {
                let kv_head = forward.kv_head(head);
                for i in 0..sequence.queries {
                    let token = sequence.query0 + i;
                    let q = s.query.row(sequence.batch, head, token);
                    let dq = spec.query.row(sequence.batch, head, token);
                    let up = spec.upstream.row(sequence.batch, head, token);
                    let row = reference::statistics(forward, &inputs.forward, index, head, i);
                    take(row.max.abs() + row.lse.abs(), &mut largest);
                    pairs(problem, inputs, index, head, i, |pair| {
                        let key = sequence.key0 + pair.key;
                        let k = s.key.row(sequence.batch, kv_head, key);
                        let bias = reference::bias(forward, &inputs.forward, index, head, i, pair.key);
                        take(pair.magnitude + bias.unwrap_or(0.0).abs() + row.max.abs(), &mut largest);
                        let [dk, dv] =
                            [spec.key, spec.value].map(|view| view.row(sequence.batch, kv_head, key));
                        let mut add = |of: usize, at: usize, factor: f64, absolute_factor: f64, x: f32| {
                            sums[of][at] += factor * f64::from(x);
                            absolute[of][at] += absolute_factor * f64::from(x.abs());
                            take(f64::from(x.abs()), &mut elements);
                        };
                        for x in 0..forward.head_dim() {
                            add(0, dq + x, pair.gradient, pair.absolute, inputs.forward.key.get(k + x));
                            add(1, dk + x, pair.gradient, pair.absolute, inputs.forward.query.get(q + x));
                        }
                        for x in 0..forward.value_dim() {
                            let p = pair.probability;
                            add(2, dv + x, p, p, inputs.upstream.get(up + x));
                        }
                    });
                }
            }
        }
        let pairs = (forward.keys().max(s.query.tokens()) * forward.heads() * forward.sequences()) as f64;
        let magnitude = elements.powi(3) * (1.0 + f64::from(forward.scale().abs())) * pairs;
        Exact { sums, absolute, largest, magnitude, views }
    }

    /// Compares computed gradients with the exact ones. Returns the largest error of an element, relative to the sum of the
    /// absolute values of its terms.
    ///
    /// # Errors
    /// Returns an error in three cases: the error of an element exceeds the bound of `structure`; only one of the
    /// computed element and the exact element is finite; an element between rows was written.
    pub fn check(&self, found: &GradientBuffers, structure: &Structure) -> Result<f64, String> {
        let bound = structure.bound(self.largest);
        // Allowance for probabilities below the smallest normal number and for subnormal products, which lose bits.
        let tiny = 64.0 * f64::from(f32::MIN_POSITIVE) * self.magnitude;
        let mut worst = 0.0f64;
        let names = ["d_q", "d_k", "d_v"];
        let found = [&found.query, &found.key, &found.value];
        for of in 0..3 {
            let mut inside = vec![false; found[of].len()];
            for at in rows(&self.views[of]) {
                for x in at..at + self.views[of].dim() {
                    inside[x] = true;
                    let (exact, absolute) = (self.sums[of][x], self.absolute[of][x]);
                    let got = f64::from(found[of][x]);
                    let error = (got - exact).abs();
                    let good = match exact.is_finite() {
                        true => error <= bound * absolute + tiny,
                        false => !got.is_finite(),
                    };
                    if !good {
                        return Err(format!(
                            "{}[{x}] is {got:e}, exact {exact:e}, absolute terms {absolute:e}, bound {bound:e}",
                            names[of]
                        ));
                    }
                    if exact.is_finite() && absolute > 1e6 * tiny {
                        worst = worst.max(error / absolute);
                    }
                }
            }
            if let Some(x) = inside.iter().zip(found[of]).position(|(inside, x)| !inside && !x.is_nan()) {
                return Err(format!("{}[{x}] lies between rows and was written", names[of]));
            }
        }
        Ok(worst)
    }
}
