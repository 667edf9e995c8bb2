//! Measures the number of additions that a run executes on the path of a key. The number is derived from the roundings of the
//! result.
//!
//! Key 0 has the weight 1 or the value 1, and some other keys are *small*: their weights or values are a little more
//! than half of the distance from 1 to the next f32 number. Whenever a small key is added to the sum that contains key
//! 0, the sum is rounded up to the next number. All other keys are zero, or far too small to matter. If every addition
//! on the path of key 0 adds exactly one small key, the sum grows by one such distance per addition.

use elsa_core::attention::{Inputs, Outputs, Spec};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use elsa_kernels::attention::Kernel;
use elsa_kernels::registry;
use elsa_runtime::{Engine, Method, Plan, PlanOptions};

/// Head size of queries, keys and values.
const DIM: usize = 8;
/// Half of the distance from 1 to the next f32 number, as a power of two.
const HALF_A_STEP: i32 = -24;
/// Allowed error of a measured number of additions: two final roundings.
pub const SLACK: f64 = 1.5;

/// A planned call whose keys differ in one dim only.
#[derive(Debug)]
pub struct Probe {
    plan: Plan,
    queries: usize,
    keys: usize,
}

impl Probe {
    /// Creates a probe from the plan of `engine` for one head with `queries` rows and `keys` keys.
    ///
    /// # Panics
    /// Panics if the problem is refused.
    #[must_use]
    pub fn new(engine: &Engine, queries: usize, keys: usize, method: Method) -> Probe {
        let view = |n| View::dense("q", Layout::Bhnd, &[1, n, DIM], None).unwrap_or_else(|e| panic!("{e}"));
        let mut spec = Spec::new(DType::F32, view(queries), view(keys), view(keys), view(queries));
        spec.scale = Some(1.0);
        let problem = spec.check().unwrap_or_else(|e| panic!("{e}"));
        let options = PlanOptions::default().method(method);
        let plan = engine.plan(&problem, &options).unwrap_or_else(|e| panic!("{e}"));
        Probe { plan, queries, keys }
    }

    /// Returns the plan that is probed.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the number of additions according to the certificate of the plan.
    #[must_use]
    pub fn counted(&self) -> usize {
        self.plan.certificate().executed.additions
    }

    /// Runs the call on keys with the given values and with the given scores in base-2 units. Returns the output, which
    /// is the same for all rows.
    fn answer(&self, score: impl Fn(usize) -> f64, value: impl Fn(usize) -> f64) -> f64 {
        let (mut q, mut y) = (vec![0.0; self.queries * DIM], vec![0.0; self.queries * DIM]);
        let (mut k, mut v) = (vec![0.0; self.keys * DIM], vec![0.0; self.keys * DIM]);
        q.iter_mut().step_by(DIM).for_each(|q| *q = 1.0);
        for j in 0..self.keys {
            k[j * DIM] = (score(j) * core::f64::consts::LN_2) as f32;
            v[j * DIM..(j + 1) * DIM].fill(value(j) as f32);
        }
        let mut workspace = self.plan.workspace().unwrap_or_else(|e| panic!("{e}"));
        let inputs = Inputs::new(Elements::F32(&q), Elements::F32(&k), Elements::F32(&v));
        let outputs = Outputs::new(ElementsMut::F32(&mut y));
        let bound = self.plan.bind(inputs, outputs, &mut workspace);
        bound.unwrap_or_else(|e| panic!("{e}")).run().unwrap_or_else(|e| panic!("{e}"));
        assert!(y.iter().all(|x| x.to_bits() == y[0].to_bits()), "{y:?}");
        f64::from(y[0])
    }

    /// Returns the kernel of the plan; `None` if it is not a CPU kernel.
    fn kernel(&self) -> Option<&'static Kernel> {
        registry::ATTENTION.iter().copied().find(|kernel| kernel.spec.name == self.plan.kernel())
    }

    /// Returns the number of partial sums over which the CPU kernel distributes a row's weights.
    #[must_use]
    pub fn weight_sums(&self) -> usize {
        self.kernel().map_or(1, |kernel| kernel.spec.weight_sums)
    }

    /// Returns the factor by which the kernel multiplies all weights; it is in `1..2`, like the measured sums.
    fn weight(&self) -> f64 {
        self.kernel().map_or(1.0, |kernel| kernel.spec.weight_scale)
    }

    /// Measures the additions to `W` on the path of key 0; each addition must add one key of `small`.
    #[must_use]
    pub fn of_values(&self, small: &[usize]) -> f64 {
        self.values(small, 1.0, self.weight())
    }

    /// Measures the additions to `W` as [`Probe::of_values`] does, for kernels that first divide the weights by their
    /// sum. The sum is a power of two, except for rounding.
    #[must_use]
    pub fn of_quotients(&self, small: &[usize]) -> f64 {
        // 1.5 is midway between two powers of two, so the rounding of the weights cannot move the sum to a range in which
        // the distance between f32 numbers differs.
        self.values(small, 1.5, 1.5)
    }

    /// Measures the additions when key 0 has the value `first`. The product of this value and its weight is `sum` times
    /// a power of two.
    fn values(&self, small: &[usize], first: f64, sum: f64) -> f64 {
        let half = 2f64.powi(HALF_A_STEP) * (1.0 + 2f64.powi(-10));
        let mut values = vec![0.0; self.keys];
        values[0] = first;
        // All weights are equal, so their sum cancels.
        let alone = self.answer(|_| 0.0, |j| values[j]);
        small.iter().for_each(|j| values[*j] = half);
        (self.answer(|_| 0.0, |j| values[j]) / alone - 1.0) * sum / 2f64.powi(HALF_A_STEP + 1)
    }

    /// Measures the additions to `S` on the path of key 0; each addition must add one key of `small`.
    #[must_use]
    pub fn of_weights(&self, small: &[usize]) -> f64 {
        let mut scores = vec![-60.0; self.keys];
        small.iter().for_each(|j| scores[*j] = f64::from(HALF_A_STEP) + 0.01);
        scores[0] = 0.0;
        let y = self.answer(|j| scores[j], |j| f64::from(u8::from(j == 0)));
        (1.0 / y - 1.0) * self.weight() / 2f64.powi(HALF_A_STEP + 1)
    }
}

/// Returns the positive multiples of `step` below `end`.
#[must_use]
pub fn multiples(step: usize, end: usize) -> Vec<usize> {
    (step..end).step_by(step).collect()
}

/// Returns `step` times each power of two below `count`. A balanced tree over `count` parts of `step` keys adds the
/// parts that start at these keys to the part of key 0.
#[must_use]
pub fn powers(step: usize, count: usize) -> Vec<usize> {
    (0..usize::BITS)
        .map(|level| 1usize << level)
        .take_while(|part| *part < count)
        .map(|part| part * step)
        .collect()
}
