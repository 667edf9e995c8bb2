//! Searches every back end for outputs that violate their error bounds, and collects the findings.

use super::draw::Drawn;
use super::judge::{Judge, Judged};
use crate::cases::Data;
use elsa_core::attention::certificate::Executed;
use elsa_core::attention::plan::TensorCores;
use elsa_core::attention::{Outputs, scalar};
use elsa_core::dtype::DType;
use elsa_runtime::{Backend, Engine, EngineOptions, Fallback, Method, PlanOptions, RefusedBlocks};

/// A back end with plan options, whose outputs are judged.
#[derive(Debug)]
pub struct Hunter {
    /// Back end and plan options, for messages.
    pub name: String,
    /// The engine; `None` for the scalar fallback of `elsa_core`.
    engine: Option<Engine>,
    options: PlanOptions,
}

/// Returns the scalar fallback, and every back end on this machine with each of the plan options to test.
///
/// # Panics
/// Panics if an engine of a present back end cannot be opened.
#[must_use]
pub fn hunters() -> Vec<Hunter> {
    let mut all = vec![Hunter { name: "core".into(), engine: None, options: PlanOptions::default() }];
    for present in crate::present() {
        let backend = Some(present.backend);
        let options = EngineOptions::default().backend(backend).threads(1).fallback(Fallback::Fail);
        let engine = || Engine::new(&options).unwrap_or_else(|e| panic!("{e}"));
        let plain = PlanOptions::default();
        let methods = if present.backend != Backend::Cuda {
            vec![("64", plain), ("128", plain.block(128)), ("Math", plain.method(Method::Math))]
        } else {
            let tensor_cores = engine().device().is_some_and(|x| x.profile.capability >= (8, 0));
            let [own, one] = [TensorCores::Always, TensorCores::F16].map(|cores| plain.tensor_cores(cores));
            let more = [("Tensor Cores", own), ("Tensor Cores f16", one)];
            let more = more.into_iter().filter(|_| tensor_cores);
            [("f32", plain), ("half", plain.half_scores(true))].into_iter().chain(more).collect()
        };
        for (method, options) in methods {
            let name = format!("{} {method}", present.backend.name());
            all.push(Hunter { name, engine: Some(engine()), options });
        }
    }
    all
}

impl Hunter {
    /// Computes the output of a problem; also returns the arithmetic that the run executed. `None` if the back end does
    /// not support the problem.
    ///
    /// # Panics
    /// Panics if a call fails although the back end has planned it.
    #[must_use]
    pub fn answer(&self, drawn: &Drawn) -> Option<(Data, Executed)> {
        self.answer_and_refusals(drawn).map(|(output, executed, _)| (output, executed))
    }

    /// Computes the output of a problem as [`Hunter::answer`] does; also returns the blocks of rows that a run on Tensor Cores
    /// refused.
    fn answer_and_refusals(&self, drawn: &Drawn) -> Option<(Data, Executed, Option<RefusedBlocks>)> {
        let mut output = drawn.output();
        let problem = &drawn.problem;
        let Some(engine) = &self.engine else {
            let mut scratch = vec![f32::NAN; scalar::scratch_len(problem)?];
            let mut outputs = Outputs::new(output.elements_mut());
            let done = scalar::run(problem, &drawn.inputs(), &mut outputs, &mut scratch);
            done.unwrap_or_else(|e| panic!("{e}"));
            return Some((output, scalar::executed(problem), None));
        };
        let plan = engine.plan(problem, &self.options).ok()?;
        let planned = plan.certificate().executed;
        let as_asked = match self.options.tensor_cores {
            TensorCores::Off => true,
            TensorCores::F16 => planned.one_product,
            TensorCores::Allow | TensorCores::Always => planned.split,
        };
        if !as_asked {
            return None;
        }
        let mut workspace = plan.workspace().unwrap_or_else(|e| panic!("{e}"));
        let bound = plan.bind(drawn.inputs(), Outputs::new(output.elements_mut()), &mut workspace);
        let report = bound.unwrap_or_else(|e| panic!("{e}")).run().unwrap_or_else(|e| panic!("{e}"));
        let executed = plan.certificate_of(report.backend).executed;
        let refused = workspace.refused_blocks().unwrap_or_else(|e| panic!("{e}"));
        Some((output, executed, refused))
    }

    /// Returns `true` if the plans of this hunter are on Tensor Cores.
    #[must_use]
    pub fn on_tensor_cores(&self) -> bool {
        self.options.tensor_cores != TensorCores::Off
    }

    /// Computes the problem of a seed, drawn by [`Drawn::new`], and judges every row.
    pub fn hunt(&self, seed: u64, keys: usize, found: &mut Findings) {
        self.judge(&Drawn::new(seed, keys), &format!("seed {seed}"), found);
    }

    /// Computes a problem, named `which` in messages, and judges every row.
    pub fn judge(&self, drawn: &Drawn, which: &str, found: &mut Findings) {
        let Some((answer, executed, refused)) = self.answer_and_refusals(drawn) else { return };
        let before = found.rows;
        let mut judge = Judge::new(drawn, executed);
        let spec = drawn.problem.spec();
        let (queries, single) = (spec.query.tokens(), spec.dtype == DType::F32);
        for head in 0..drawn.problem.heads() {
            for query in 0..queries {
                if judge.row(head, query, &answer) {
                    let what =
                        || format!("{}: {which}, {:?}, head {head}, row {query}", self.name, drawn.hard);
                    found.row(&judge.judged, single, what);
                }
            }
        }
        let rows = found.rows - before;
        found.outliers += if drawn.has_outliers() { rows } else { 0 };
        found.cancelling += if drawn.cancels() { rows } else { 0 };
        if let Some(RefusedBlocks { refused, .. }) = refused {
            found.with_refusals += if refused > 0 { rows } else { 0 };
        }
    }
}

/// For one row, the ratio of each of four error bounds to the error. The bounds are the worst case, the likely case,
/// the bound from norms, and the likely case of the bound from norms.
#[derive(Clone, Copy, Debug)]
pub struct Tightness {
    /// Ratios of the largest component of each bound to the largest component of the error.
    pub largest: [f64; 4],
    /// Ratios of the Euclidean norm of each bound to that of the error.
    pub norm: [f64; 4],
}

impl Hunter {
    /// Measures the tightness of the bounds for every row of a Gaussian problem. The result is empty if the back end
    /// does not support the problem.
    #[must_use]
    pub fn tightness(&self, seed: u64, queries: usize, keys: usize, d: usize) -> Vec<Tightness> {
        let drawn = Drawn::gaussian(seed, queries, keys, d);
        let Some((answer, executed)) = self.answer(&drawn) else { return Vec::new() };
        let mut judge = Judge::new(&drawn, executed);
        let mut all = Vec::new();
        for query in 0..queries {
            if !judge.row(0, query, &answer) {
                continue;
            }
            let of = |x: &Judged| [x.bounds.worst, x.bounds.likely, x.prior, x.likely_prior, x.error];
            let (mut most, mut squares) = ([0.0f64; 5], [0.0f64; 5]);
            for x in judge.judged.iter().map(of) {
                for i in 0..5 {
                    most[i] = most[i].max(x[i]);
                    squares[i] += x[i] * x[i];
                }
            }
            let over = |x: [f64; 5]| core::array::from_fn(|i| x[i] / x[4]);
            all.push(Tightness { largest: over(most), norm: over(squares.map(f64::sqrt)) });
        }
        all
    }
}

/// Findings of a hunt.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Number of rows judged.
    pub rows: u64,
    /// Number of these rows whose problem has outliers; see [`Drawn::has_outliers`].
    pub outliers: u64,
    /// Number of these rows whose problem has terms that cancel; see [`Drawn::cancels`].
    pub cancelling: u64,
    /// Number of these rows whose problem has a block of rows that Tensor Cores refused. All other rows of a hunter on Tensor
    /// Cores were computed by them.
    pub with_refusals: u64,
    /// Number of components judged.
    pub components: u64,
    /// Number of components whose error exceeds the worst-case bound or the bound from norms.
    pub violations: u64,
    /// Number of components whose error exceeds the probabilistic bound of the likely case.
    pub unlikely: u64,
    /// Number of rows in which the bound from norms is not vacuous.
    pub claimed: u64,
    /// Largest ratio of an error to its worst-case bound, over f32 outputs. In other types, the bound consists almost
    /// entirely of the final rounding of the output.
    pub worst: f64,
    /// Largest ratio of an error to its likely-case bound, over f32 outputs.
    pub likely: f64,
    /// Largest ratio of an error to the bound from norms, over f32 outputs.
    pub prior: f64,
    /// Descriptions of the first violations.
    pub which: Vec<String>,
    /// Descriptions of the rows whose errors come closest to the worst-case bound and to the bound from norms.
    pub closest: [String; 2],
}

impl Findings {
    /// Adds the findings of another hunt.
    pub fn merge(&mut self, other: &Findings) {
        self.rows += other.rows;
        self.outliers += other.outliers;
        self.cancelling += other.cancelling;
        self.with_refusals += other.with_refusals;
        self.components += other.components;
        self.violations += other.violations;
        self.unlikely += other.unlikely;
        self.claimed += other.claimed;
        if other.worst > self.worst {
            self.worst = other.worst;
            self.closest[0].clone_from(&other.closest[0]);
        }
        if other.prior > self.prior {
            self.prior = other.prior;
            self.closest[1].clone_from(&other.closest[1]);
        }
        self.likely = self.likely.max(other.likely);
        self.which.extend(other.which.iter().take(20).cloned());
    }

    /// Adds the components of a row.
    fn row(&mut self, judged: &[Judged], single: bool, what: impl Fn() -> String) {
        self.rows += 1;
        self.claimed += u64::from(judged.iter().all(|x| x.claims));
        for x in judged {
            self.components += 1;
            // A NaN in the error or in the bound counts as a violation.
            let within = |bound: f64| x.error <= bound;
            if !within(x.bounds.worst) || !within(x.prior) {
                self.violations += 1;
                if self.which.len() < 20 {
                    self.which.push(format!("{}: {x:?}", what()));
                }
            }
            self.unlikely += u64::from(!within(x.bounds.likely));
            let share = |bound: f64| if x.error == 0.0 || !single { 0.0 } else { x.error / bound };
            if share(x.bounds.worst) > self.worst {
                self.worst = share(x.bounds.worst);
                self.closest[0] = what();
            }
            if share(x.prior) > self.prior {
                self.prior = share(x.prior);
                self.closest[1] = what();
            }
            self.likely = self.likely.max(share(x.bounds.likely));
        }
    }
}
