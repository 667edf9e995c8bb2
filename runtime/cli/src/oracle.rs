//! The f64 oracle, row by row, and the comparison of answers with it and with the bounds of
//! [`elsa_core::attention::bound::rounding`].

use crate::rows::RowId;
use elsa_core::attention::bound::rounding::{Bounds, Component, Row};
use elsa_core::attention::bound::{Arithmetic, UNLIKELY};
use elsa_core::attention::certificate::Executed;
use elsa_core::attention::reference;
use elsa_core::attention::{Inputs, Problem, Sequence};
use elsa_core::drift::{Drift, Metrics, RowDrift};
use elsa_core::dtype::Elements;

/// The oracle and the error bounds, one row at a time, with scratch memory.
pub struct Oracle<'a> {
    problem: &'a Problem,
    inputs: Inputs<'a>,
    arithmetic: Arithmetic,
    /// Probability of every key of the sequence, the past included. Zero for keys that are not attended.
    pub p: Vec<f64>,
    /// Bound of the error of each score, in natural-log units.
    pub delta: Vec<f64>,
    /// The answer of the row.
    pub y: Vec<f64>,
    /// Bounds of the error of each component.
    pub bounds: Vec<Bounds>,
    components: Vec<Component>,
}

impl<'a> Oracle<'a> {
    /// The oracle of a problem, with the bounds for runs that execute `executed`.
    #[must_use]
    pub fn new(problem: &'a Problem, inputs: Inputs<'a>, executed: &Executed) -> Oracle<'a> {
        Oracle {
            problem,
            inputs,
            arithmetic: Arithmetic::of(problem, *executed),
            p: Vec::new(),
            delta: Vec::new(),
            y: vec![0.0; problem.value_dim()],
            bounds: Vec::new(),
            components: Vec::new(),
        }
    }

    /// Key `j` of a sequence: the elements that hold it, and the index of its first.
    fn key(&self, s: &Sequence, kv_head: usize, j: usize) -> (Elements<'a>, usize) {
        let spec = self.problem.spec();
        match (self.inputs.past_key, &spec.past_key) {
            (Some(past), Some(view)) if j < s.past => (past, view.row(s.batch, kv_head, j)),
            _ => (self.inputs.key, spec.key.row(s.batch, kv_head, s.key0 + j - s.past)),
        }
    }

    /// Value `j` of a sequence, likewise.
    fn value(&self, s: &Sequence, kv_head: usize, j: usize) -> (Elements<'a>, usize) {
        let spec = self.problem.spec();
        match (self.inputs.past_value, &spec.past_value) {
            (Some(past), Some(view)) if j < s.past => (past, view.row(s.batch, kv_head, j)),
            _ => (self.inputs.value, spec.value.row(s.batch, kv_head, s.key0 + j - s.past)),
        }
    }

    /// Computes `p`, `delta`, `y` and `bounds` of a row.
    pub fn row(&mut self, row: RowId) {
        let (problem, inputs) = (self.problem, self.inputs);
        let spec = problem.spec();
        let RowId { sequence, head, query } = row;
        let found = reference::row(problem, &inputs, sequence, head, query, &mut self.y);
        self.p.clear();
        let p = &mut self.p;
        reference::probabilities_in(
            problem,
            &inputs,
            sequence,
            head,
            query,
            &found,
            0..usize::MAX,
            |_, x| {
                p.push(x);
            },
        );
        self.delta.clear();
        self.delta.resize(self.p.len(), 0.0);
        self.components.clear();
        self.components.extend(self.y.iter().map(|&y| Component::new(y)));

        let s = problem.sequence(&inputs.lengths, sequence);
        let kv_head = problem.kv_head(head);
        let (d, scale) = (problem.head_dim(), f64::from(problem.scale()).abs());
        let q0 = spec.query.row(s.batch, head, s.query0 + query);
        let q: Vec<f64> = (0..d).map(|c| f64::from(inputs.query.get(q0 + c)).abs()).collect();
        let mut bounds = Row::new(self.arithmetic);
        for j in 0..self.p.len() {
            let p = self.p[j];
            // The probability of an attended key may underflow in f64.
            if p == 0.0 && !reference::attends(problem, &inputs, sequence, head, query, j) {
                continue;
            }
            let (k, at) = self.key(&s, kv_head, j);
            let magnitude: f64 = q.iter().enumerate().map(|(c, q)| q * f64::from(k.get(at + c)).abs()).sum();
            let bias = reference::bias_magnitude(problem, &inputs, sequence, head, query, j);
            let key = self.arithmetic.key(p, magnitude * scale, bias);
            self.delta[j] = key.delta;
            bounds.absorb(&key);
            let (v, at) = self.value(&s, kv_head, j);
            for (c, component) in self.components.iter_mut().enumerate() {
                component.absorb(&key, f64::from(v.get(at + c)));
            }
        }
        self.bounds.clear();
        self.bounds.extend(self.components.iter().map(|component| bounds.bounds(component)));
    }
}

/// The answer of one row, compared with the oracle and with the error bounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Comparison {
    /// Its drift, of outputs only.
    pub drift: RowDrift,
    /// Its components beside their bounds.
    pub explained: Explained,
}

/// The components of some rows beside the error that rounding explains.
#[derive(Clone, Copy, Debug, Default)]
pub struct Explained {
    /// `Σ y²`, over finite components like the next two.
    pub reference: f64,
    /// `Σ worst²`.
    pub worst: f64,
    /// `Σ likely²`.
    pub likely: f64,
    /// Components.
    pub components: usize,
    /// Components where answer or oracle is not finite and the two differ.
    pub not_finite: usize,
    /// Components beyond the worst case.
    pub beyond: usize,
    /// Components beyond the likely case.
    pub unlikely: usize,
}

impl Comparison {
    /// `ŷ`, read by component, against the oracle's row.
    #[must_use]
    pub fn of(oracle: &Oracle<'_>, found: impl Fn(usize) -> f64) -> Comparison {
        let mut comparison = Comparison::default();
        let explained = &mut comparison.explained;
        for (c, (&y, bounds)) in oracle.y.iter().zip(&oracle.bounds).enumerate() {
            let x = found(c);
            comparison.drift.output(x, y);
            explained.components += 1;
            if !x.is_finite() || !y.is_finite() {
                explained.not_finite += usize::from(!(x == y || (x.is_nan() && y.is_nan())));
                continue;
            }
            explained.reference += y * y;
            explained.worst += bounds.worst * bounds.worst;
            explained.likely += bounds.likely * bounds.likely;
            // A component that does not compare with its bound is beyond it.
            let within = |bound: f64| (x - y).abs() <= bound;
            explained.beyond += usize::from(!within(bounds.worst));
            explained.unlikely += usize::from(!within(bounds.likely));
        }
        comparison
    }
}

/// The comparisons of some rows, taken together.
#[derive(Clone, Copy, Debug)]
pub struct Total {
    /// Drift over all rows; none without rows.
    pub drift: Option<Metrics>,
    /// All components beside their bounds.
    pub explained: Explained,
}

impl Total {
    /// The total of `rows`.
    #[must_use]
    pub fn of(rows: &[Comparison]) -> Total {
        let (mut drift, mut all) = (Drift::new(), Explained::default());
        for row in rows {
            drift.finish_row(&row.drift);
            let one = &row.explained;
            all.reference += one.reference;
            all.worst += one.worst;
            all.likely += one.likely;
            all.components += one.components;
            all.not_finite += one.not_finite;
            all.beyond += one.beyond;
            all.unlikely += one.unlikely;
        }
        Total { drift: drift.metrics(), explained: all }
    }

    /// `‖ŷ − y‖ / ‖y‖`; NaN if an attended number is NaN, and without rows.
    #[must_use]
    pub fn relative(&self) -> f64 {
        self.drift.map_or(f64::NAN, |drift| drift.rel_l2_y)
    }
}

impl Explained {
    /// `‖worst‖ / ‖y‖`: the greatest relative error that rounding can cause.
    #[must_use]
    pub fn worst(&self) -> f64 {
        ratio(self.worst, self.reference)
    }

    /// `‖likely‖ / ‖y‖`.
    #[must_use]
    pub fn likely(&self) -> f64 {
        ratio(self.likely, self.reference)
    }

    /// Whether the worst case explains every component.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.not_finite == 0 && self.beyond == 0
    }

    /// Whether more components lie beyond the likely case than its model expects.
    #[must_use]
    pub fn surprises(&self) -> bool {
        self.unlikely > self.unlikely_allowed()
    }

    /// The greatest number of components beyond the likely case that its model expects.
    #[must_use]
    pub fn unlikely_allowed(&self) -> usize {
        (self.components as f64 * UNLIKELY).ceil() as usize
    }
}

/// `√a / √b`, with `0 / 0 = 0`.
fn ratio(a: f64, b: f64) -> f64 {
    if a == 0.0 && b == 0.0 { 0.0 } else { a.sqrt() / b.sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use elsa_core::attention::{Spec, scalar};
    use elsa_core::dtype::DType;
    use elsa_core::view::{Layout, View};

    fn with_problem(test: impl Fn(&Problem, Inputs<'_>)) {
        let view = View::dense("q", Layout::Bhnd, &[2, 3, 20, 8], None).unwrap();
        let problem = Spec::new(DType::F32, view, view, view, view).check().unwrap();
        let mut random = Random::new(7);
        let [q, k, v] = [0; 3].map(|_| random.normals("q", DType::F32, view.extent(), 2.0).unwrap());
        test(&problem, Inputs::new(q.elements(), k.elements(), v.elements()));
    }

    #[test]
    fn what_lies_beyond_the_bound_is_noticed() {
        with_problem(|problem, inputs| {
            let mut oracle = Oracle::new(problem, inputs, &scalar::executed(problem));
            oracle.row(RowId { sequence: 1, head: 2, query: 7 });
            let judge = |found: &dyn Fn(usize) -> f64| Comparison::of(&oracle, found).explained;
            assert!(judge(&|c| oracle.y[c]).holds());
            assert_eq!(Total::of(&[Comparison::of(&oracle, |c| oracle.y[c])]).relative(), 0.0);
            // Rounding to f32 is within the bounds.
            let rounded = judge(&|c| f64::from(oracle.y[c] as f32));
            assert_eq!((rounded.holds(), rounded.unlikely), (true, 0));
            let off = |c: usize, at: usize, by: f64| oracle.y[c] + if c == at { 1.01 * by } else { 0.0 };
            let beyond = judge(&|c| off(c, 3, oracle.bounds[c].worst));
            assert_eq!((beyond.beyond, beyond.unlikely, beyond.holds()), (1, 1, false));
            let unlikely = judge(&|c| off(c, 5, -oracle.bounds[c].likely));
            assert_eq!((unlikely.beyond, unlikely.unlikely, unlikely.unlikely_allowed()), (0, 1, 1));
            let nan = judge(&|c| if c < 2 { f64::NAN } else { oracle.y[c] });
            assert_eq!((nan.beyond, nan.not_finite, nan.holds()), (0, 2, false));
            assert!(oracle.bounds.iter().all(|b| b.worst < 1e-3 && b.likely <= b.worst));
            // A wrong answer, such as the next row's, is far beyond.
            let wrong = oracle.y.clone();
            oracle.row(RowId { sequence: 1, head: 2, query: 8 });
            assert!(Comparison::of(&oracle, |c| wrong[c]).explained.beyond > 4);
        });
    }
}
