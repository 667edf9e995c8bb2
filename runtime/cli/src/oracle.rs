//! The oracle computes rows in f64, and outputs are compared with these rows. The bounds on the differences are defined
//! in [`elsa_core::attention::bound::rounding`].

use crate::rows::{RowId, for_rows, output_row};
use elsa_core::attention::bound::rounding::{Bounds, Component, Row};
use elsa_core::attention::bound::{Arithmetic, LN_RANGE, UNLIKELY, split};
use elsa_core::attention::certificate::Executed;
use elsa_core::attention::drift::{Drift, Metrics, RowDrift};
use elsa_core::attention::{Inputs, Problem, Sequence, reference, scalar};
use elsa_core::drift::larger;
use elsa_core::dtype::{DType, Elements};
use elsa_core::state::HEADROOM;

/// Magnitude of a score or of a scaled query from which on intermediate results may overflow f32.
const SCORES: f64 = 1.1e38;

/// Largest finite f16.
const HALF: f64 = 65_504.0;

/// Data about a run. The error bounds of the run are computed from these data.
#[derive(Clone, Copy, Debug)]
pub struct Bounded<'e, 'a> {
    /// Structure and constants of the run's arithmetic.
    pub executed: &'e Executed,
    /// For each row, the share of its weights that the run skipped; `None` for runs under the exact schedule.
    pub shares: Option<&'a [f32]>,
}

impl<'e> Bounded<'e, '_> {
    /// Describes a run under the exact schedule.
    #[must_use]
    pub const fn by(executed: &'e Executed) -> Self {
        Bounded { executed, shares: None }
    }
}

/// Oracle for one row at a time: exact results, error bounds, and scratch memory.
pub struct Oracle<'a> {
    problem: &'a Problem,
    inputs: Inputs<'a>,
    arithmetic: Arithmetic,
    /// Probability of every key of the sequence, including past keys. The probability is zero for keys that are not
    /// attended.
    pub p: Vec<f64>,
    /// Bound on the error of each score, in natural-log units.
    pub delta: Vec<f64>,
    /// Exact output of the row.
    pub y: Vec<f64>,
    /// For each output component, the bounds on its error.
    pub bounds: Vec<Bounds>,
    /// For each component, the sum of absolute terms `Σ p_j |v_j|`.
    pub terms: Vec<f64>,
    /// Largest value of `Σ_c |q_c k_jc|` times the scale, over all keys `j` that the row attends.
    pub score: f64,
    /// `true` if a run may leave the range of its arithmetic in this row, and may then return an infinity or NaN.
    pub beyond_range: bool,
    components: Vec<Component>,
    shares: Option<&'a [f32]>,
    /// Logarithm of the probability of every key; `−∞` for keys that are not attended.
    ln_p: Vec<f64>,
}

/// Finds key `j` of a sequence. Returns the tensor that contains the key, and the index of its first element in this
/// tensor.
#[must_use]
pub fn key<'a>(
    problem: &Problem,
    inputs: &Inputs<'a>,
    s: &Sequence,
    kv_head: usize,
    j: usize,
) -> (Elements<'a>, usize) {
    let spec = problem.spec();
    match inputs.past(problem) {
        Some([(view, past), _]) if j < s.past => (past, view.row(s.batch, kv_head, j)),
        _ => (inputs.key, spec.key.row(s.batch, kv_head, s.key0 + j - s.past)),
    }
}

/// Finds value `j` of a sequence. Returns the tensor that contains the value, and the index of its first element in
/// this tensor.
#[must_use]
pub fn value<'a>(
    problem: &Problem,
    inputs: &Inputs<'a>,
    s: &Sequence,
    kv_head: usize,
    j: usize,
) -> (Elements<'a>, usize) {
    let spec = problem.spec();
    match inputs.past(problem) {
        Some([_, (view, past)]) if j < s.past => (past, view.row(s.batch, kv_head, j)),
        _ => (inputs.value, spec.value.row(s.batch, kv_head, s.key0 + j - s.past)),
    }
}

impl<'a> Oracle<'a> {
    /// Creates the oracle of a problem. Its bounds apply to runs that follow the exact schedule with the arithmetic
    /// `executed`.
    #[must_use]
    pub fn new(problem: &'a Problem, inputs: Inputs<'a>, executed: &Executed) -> Oracle<'a> {
        Oracle::bounded(problem, inputs, Bounded::by(executed))
    }

    /// Creates the oracle of a problem, with error bounds for the run that the [`Bounded`] describes.
    #[must_use]
    pub fn bounded(
        problem: &'a Problem,
        inputs: Inputs<'a>,
        Bounded { executed, shares }: Bounded<'_, 'a>,
    ) -> Oracle<'a> {
        let width = problem.value_dim();
        Oracle {
            problem,
            inputs,
            shares,
            arithmetic: Arithmetic::of(problem, *executed),
            p: Vec::new(),
            delta: Vec::new(),
            y: vec![0.0; width],
            bounds: Vec::new(),
            terms: vec![0.0; width],
            score: 0.0,
            beyond_range: false,
            components: Vec::new(),
            ln_p: Vec::new(),
        }
    }

    /// Computes all fields for a row: its exact output, the error bounds, and the numbers on which the bounds depend.
    pub fn row(&mut self, row: RowId) {
        self.compute(row, true);
    }

    /// Computes only `p`, `delta` and the exact output of a row. The bounds of the output's components are meaningless
    /// afterwards.
    pub fn probabilities(&mut self, row: RowId) {
        self.compute(row, false);
    }

    fn compute(&mut self, row: RowId, values: bool) {
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
        let arithmetic = self.arithmetic;
        self.components.extend(self.y.iter().map(|&y| Component::new(&arithmetic, y)));
        self.terms.fill(0.0);
        let mut attended = Vec::with_capacity(self.p.len());
        self.ln_p.clear();
        let ln_p = &mut self.ln_p;
        reference::log_probabilities(problem, &inputs, sequence, head, query, &found, |_, x| {
            ln_p.push(x.unwrap_or(f64::NEG_INFINITY));
            attended.push(x.is_some());
        });

        let s = problem.sequence(&inputs.lengths, sequence);
        let kv_head = problem.kv_head(head);
        let q0 = spec.query.row(s.batch, head, s.query0 + query);
        let q: Vec<f32> = (0..problem.head_dim()).map(|c| inputs.query.get(q0 + c)).collect();
        // Under another schedule, there are two cases for a row, each with its own bounds: the row skips keys, or it
        // was computed again under the exact schedule. The resulting bounds cover both cases.
        let left = self.shares.map(|shares| {
            let at = (s.batch * problem.heads() + head) * spec.query.tokens() + s.query0 + query;
            f64::from(shares.get(at).copied().unwrap_or(f32::NAN))
        });
        let mut bounds = match left {
            // The sum over the kept keys is within the range; the sum over all keys is larger, by the skipped share.
            Some(left) => Row::frozen(arithmetic, &self.ln_p, (1.0 - left).ln() - LN_RANGE),
            None => Row::new(arithmetic, &self.ln_p),
        };
        let exact = Arithmetic::of(problem, scalar::executed(problem));
        let mut again = Row::new(exact, &self.ln_p);
        let mut of_again: Vec<Component> = match left {
            Some(_) => self.y.iter().map(|&y| Component::new(&exact, y)).collect(),
            None => Vec::new(),
        };
        let (mut keys, mut channels) = (vec![0.0; q.len()], vec![0.0; self.y.len()]);
        if arithmetic.executed.split {
            split::channels(problem, &inputs, (sequence, head), &mut keys, &mut channels);
            self.components.iter_mut().zip(&channels).for_each(|(component, x)| component.within_channel(*x));
        }
        let reach = split::reach(arithmetic.scale, &q, &keys);
        let mut largest = 0.0;
        self.score = 0.0;
        for j in 0..self.p.len() {
            if !attended[j] {
                continue;
            }
            let (k, at) = key(problem, &inputs, &s, kv_head, j);
            let score = arithmetic.score(&q, |c| k.get(at + c)).split(&arithmetic, reach);
            self.score = f64::max(self.score, score.magnitude);
            let bias = reference::bias_magnitude(problem, &inputs, sequence, head, query, j);
            let key = bounds.absorb(j, &score, bias);
            let key_again = left.map(|_| again.absorb(j, &exact.score(&q, |c| k.get(at + c)), bias));
            self.delta[j] = key.delta;
            if !values {
                continue;
            }
            let (v, at) = value(problem, &inputs, &s, kv_head, j);
            for (c, component) in self.components.iter_mut().enumerate() {
                let v = f64::from(v.get(at + c));
                component.absorb(&key, v);
                if let (Some(component), Some(key)) = (of_again.get_mut(c), &key_again) {
                    component.absorb(key, v);
                }
                // A weight of zero keeps an infinite value out of the terms, but not out of the output.
                self.terms[c] += if key.p == 0.0 { 0.0 } else { key.p * v.abs() };
                largest = f64::max(largest, if v.is_finite() { v.abs() } else { 0.0 });
            }
        }
        self.bounds.clear();
        self.bounds.extend(self.components.iter().enumerate().map(|(c, component)| {
            let (Some(left), Some(of_again)) = (left, of_again.get(c)) else {
                return bounds.bounds(component);
            };
            let frozen = match left {
                0.0 => bounds.bounds(component),
                left => bounds.bounds_left_out(component, left),
            };
            let exact = again.bounds(of_again);
            Bounds {
                worst: frozen.worst.max(exact.worst),
                likely: frozen.likely.max(exact.likely),
                poisoned: frozen.poisoned || exact.poisoned,
            }
        }));
        let scale = f64::from(problem.scale()).abs();
        let query = q.iter().map(|q| f64::from(*q).abs()).fold(0.0, f64::max) * scale;
        let weight = f64::from(HEADROOM).exp2();
        // Sums in f16 are of products that have not been scaled yet.
        let half = if scale < 1.0 { self.score / scale } else { self.score };
        self.beyond_range = query.max(self.score) >= SCORES
            || self.p.len() as f64 * weight * largest >= f64::from(f32::MAX)
            || (arithmetic.executed.half_chain > 0 && half >= HALF);
    }

    /// Returns `true` if `x` is a value that a correct run may compute for component `c` of the row. Callers use this
    /// method only if `x` or the exact value is not finite.
    #[must_use]
    pub fn stands_for(&self, x: f64, c: usize) -> bool {
        let y = self.y[c];
        if x.is_finite() {
            return false;
        }
        if y.is_finite() {
            // Values outside the range of the output's type are rounded to infinity.
            let most = match self.problem.spec().dtype {
                DType::F32 => f64::from(f32::MAX),
                DType::F16 => f64::from(half::f16::MAX),
                DType::Bf16 => f64::from(half::bf16::MAX),
            };
            let far = y.abs() + self.bounds[c].worst > most;
            return far && x.is_infinite() && x.is_sign_positive() == y.is_sign_positive();
        }
        self.bounds[c].admit(y, x)
    }
}

/// Comparison of one output row with the oracle and with the error bounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Comparison {
    /// Drift metrics of the row, computed only from the two outputs.
    pub drift: RowDrift,
    /// Comparison of the row's components with their bounds.
    pub explained: Explained,
    /// Largest magnitudes in the row.
    pub sizes: Sizes,
}

/// Largest magnitudes in a row, over the components for which both the output and the exact value are finite.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// Largest absolute error of a component.
    pub error: f64,
    /// Largest worst-case bound of a component.
    pub bound: f64,
    /// Largest `Σ p_j |v_j|`.
    pub terms: f64,
    /// Largest magnitude of a component of the exact output.
    pub answer: f64,
    /// Magnitude below which values are lost to underflow in the output type.
    pub least: f64,
    /// Largest score; see [`Oracle::score`].
    pub score: f64,
}

impl Sizes {
    /// Returns `true` if the bound is meaningful: if it is below the sum of absolute terms, or as small as the
    /// underflow of the output type. A bound that is neither proves nothing, because even an output of zeros would be
    /// within it.
    #[must_use]
    pub fn claims(&self) -> bool {
        self.bound < self.terms || self.bound <= self.least
    }

    /// Returns `true` if the values cancel so strongly that the exact output is smaller than its bound.
    #[must_use]
    pub fn cancels(&self) -> bool {
        self.claims() && self.bound >= self.answer && self.bound > self.least
    }

    /// Returns `x` divided by the largest `Σ p_j |v_j|`; zero if `x` is as small as the underflow of the output type.
    #[must_use]
    pub fn relative(&self, x: f64) -> f64 {
        if x <= self.least { 0.0 } else { x / self.terms }
    }
}

/// Comparison of errors with the errors that rounding explains: totals over the compared components.
#[derive(Clone, Copy, Debug, Default)]
pub struct Explained {
    /// `Σ y²`, with the oracle's components `y`. The sums `reference`, `worst` and `likely` extend over the components
    /// that are finite in both the output and the oracle.
    pub reference: f64,
    /// Sum of the squares of the worst-case bounds.
    pub worst: f64,
    /// Sum of the squares of the likely bounds.
    pub likely: f64,
    /// Number of compared components.
    pub components: usize,
    /// Number of components for which the output or the oracle is not finite, and for which [`Oracle::stands_for`] does
    /// not accept the output.
    pub not_finite: usize,
    /// Number of components whose output is not finite because the row leaves the range of the arithmetic.
    pub beyond_range: usize,
    /// Number of components whose error exceeds the worst-case bound.
    pub beyond: usize,
    /// Number of components whose error exceeds the likely bound.
    pub unlikely: usize,
}

impl Comparison {
    /// Compares an output row `ŷ` with the oracle's row. `found` returns the components of `ŷ`.
    #[must_use]
    pub fn of(oracle: &Oracle<'_>, found: impl Fn(usize) -> f64) -> Comparison {
        let mut comparison = Comparison::default();
        let (explained, sizes) = (&mut comparison.explained, &mut comparison.sizes);
        let dtype = oracle.problem.spec().dtype;
        sizes.least = 4.0 * f64::from(f32::MIN_POSITIVE).max(dtype.subnormal_roundoff());
        sizes.score = oracle.score;
        for (c, (&y, bounds)) in oracle.y.iter().zip(&oracle.bounds).enumerate() {
            let x = found(c);
            comparison.drift.output(x, y);
            explained.components += 1;
            if !x.is_finite() || !y.is_finite() {
                if y.is_finite() && oracle.beyond_range {
                    explained.beyond_range += 1;
                } else {
                    explained.not_finite += usize::from(!oracle.stands_for(x, c));
                }
                continue;
            }
            let error = (x - y).abs();
            explained.reference += y * y;
            explained.worst += bounds.worst * bounds.worst;
            explained.likely += bounds.likely * bounds.likely;
            // A NaN in the error or the bound counts as beyond the bound.
            let within = |bound: f64| error <= bound;
            explained.beyond += usize::from(!within(bounds.worst));
            explained.unlikely += usize::from(!within(bounds.likely));
            sizes.error = larger(sizes.error, error);
            sizes.bound = larger(sizes.bound, bounds.worst);
            sizes.terms = larger(sizes.terms, oracle.terms[c]);
            sizes.answer = larger(sizes.answer, y.abs());
        }
        comparison
    }
}

/// Compares `rows` of the output `found` with the oracle, on all cores. `bounded` describes the run that computed the
/// output. Each thread calls `done` with the number of rows that it has just finished.
#[must_use]
pub fn compare(
    problem: &Problem,
    inputs: Inputs<'_>,
    bounded: Bounded<'_, '_>,
    rows: &[RowId],
    found: Elements<'_>,
    done: impl Fn(u64) + Sync,
) -> Vec<Comparison> {
    let each = |oracle: &mut Oracle<'_>, row| {
        oracle.row(row);
        let at = output_row(problem, &inputs, row);
        Comparison::of(oracle, |c| f64::from(found.get(at + c)))
    };
    for_rows(rows, || Oracle::bounded(problem, inputs, bounded), each, done)
}

/// Totals over the comparisons of several rows.
#[derive(Clone, Copy, Debug)]
pub struct Total {
    /// Drift over all rows; `None` without rows.
    pub drift: Option<Metrics>,
    /// Comparison of all components with their bounds.
    pub explained: Explained,
}

impl Total {
    /// Returns the total of `rows`.
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
            all.beyond_range += one.beyond_range;
            all.beyond += one.beyond;
            all.unlikely += one.unlikely;
        }
        Total { drift: drift.metrics(), explained: all }
    }

    /// Returns `‖ŷ − y‖ / ‖y‖`; NaN if an attended element is NaN or if there are no rows.
    #[must_use]
    pub fn relative(&self) -> f64 {
        self.drift.map_or(f64::NAN, |drift| drift.rel_l2_y)
    }
}

impl Explained {
    /// Returns `‖worst‖ / ‖y‖`: the greatest relative error that rounding can cause.
    #[must_use]
    pub fn worst(&self) -> f64 {
        ratio(self.worst, self.reference)
    }

    /// Returns `‖likely‖ / ‖y‖`: the relative error below which rounding is likely to stay.
    #[must_use]
    pub fn likely(&self) -> f64 {
        ratio(self.likely, self.reference)
    }

    /// Returns `true` if the error of every component is within its worst-case bound.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.not_finite == 0 && self.beyond == 0 && self.beyond_range == 0
    }

    /// Returns `true` if more components exceed the likely bound than the model of likely errors expects.
    #[must_use]
    pub fn surprises(&self) -> bool {
        self.unlikely > self.unlikely_allowed()
    }

    /// Returns the largest number of components that may exceed the likely bound according to the model of likely
    /// errors.
    #[must_use]
    pub fn unlikely_allowed(&self) -> usize {
        (self.components as f64 * UNLIKELY).ceil() as usize
    }
}

/// Returns `√a / √b`, with `0 / 0 = 0`.
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
            // An output that is rounded to f32 is within the bounds.
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
            // A wrong output, such as that of the next row, is far beyond the bounds.
            let wrong = oracle.y.clone();
            oracle.row(RowId { sequence: 1, head: 2, query: 8 });
            assert!(Comparison::of(&oracle, |c| wrong[c]).explained.beyond > 4);
        });
    }
}
