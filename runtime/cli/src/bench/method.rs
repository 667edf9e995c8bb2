//! The methods that `elsa bench` compares: those of a plan, and the baseline [`rows`].

use super::grid::Case;
use crate::error::Error;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::Outputs;
use elsa_core::attention::certificate::Certificate;
use elsa_core::attention::{Inputs, Problem, rows};
use elsa_core::dtype::ElementsMut;
use elsa_runtime::{
    Backend, Bound, CallTimes, Engine, Method, Plan, PlanOptions, RunError, Traversed, Workspace,
};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Name of [`Algorithm::Elsa`] in records and flags.
pub const ELSA: &str = "elsa";
/// Name of [`Algorithm::Math`] in records and flags.
pub const MATH: &str = "math";
/// Name of [`Algorithm::Rows`] in records and flags.
pub const ROWS: &str = "rows";

/// A method that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// [`Method::Elsa`].
    Elsa,
    /// [`Method::Math`].
    Math,
    /// The baseline [`rows`]: one pass over the keys for each query row, on the CPU.
    Rows,
}

impl Algorithm {
    /// Returns the name in records and flags.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Elsa => ELSA,
            Algorithm::Math => MATH,
            Algorithm::Rows => ROWS,
        }
    }

    /// Returns the method of a plan; `None` for the baseline, which has no plan.
    #[must_use]
    pub const fn planned(self) -> Option<Method> {
        match self {
            Algorithm::Elsa => Some(Method::Elsa),
            Algorithm::Math => Some(Method::Math),
            Algorithm::Rows => None,
        }
    }
}

/// Number of query rows that a worker computes at a time with [`Algorithm::Rows`].
const AT_ONCE: usize = 16;

/// The baseline [`rows`] for one problem.
pub struct Baseline {
    engine: Engine,
    problem: Problem,
}

impl Baseline {
    /// Prepares the baseline for the problem of `case`.
    ///
    /// # Errors
    /// Returns an error for packed sequences, for schedules and error budgets, and if the budget is too small.
    pub fn new(
        engine: &Engine,
        case: &Case,
        problem: &Problem,
        options: &PlanOptions,
    ) -> Result<Baseline, Error> {
        let refused = |found: &str, allowed| {
            Err(Error::Argument { argument: "method", found: format!("{ROWS} with {found}"), allowed })
        };
        if problem.spec().packed.is_some() {
            return refused("packed sequences", ELSA.to_owned());
        }
        if options.traverses() {
            return refused("an error budget or a schedule", ELSA.to_owned());
        }
        let baseline = Baseline { engine: engine.clone(), problem: *problem };
        let needed = baseline.bytes();
        if let Some(budget) = options.budget.filter(|budget| *budget < needed) {
            return Err(no_room(budget, needed, Algorithm::Rows, case));
        }
        Ok(baseline)
    }

    /// Returns the size of the scratch memory of all workers in bytes.
    fn bytes(&self) -> usize {
        self.engine.threads() * rows::scratch_len(&self.problem) * size_of::<f32>()
    }
}

/// Creates the error of a budget that is too small for a method.
pub fn no_room(budget: usize, needed: usize, method: Algorithm, case: &Case) -> Error {
    let (method, keys) = (method.name(), case.shape.keys);
    Error::Argument {
        argument: "budget",
        found: format!("{budget} bytes"),
        allowed: format!("at least {needed} for the method {method} at {keys} keys"),
    }
}

/// A method that is ready to be bound to tensors.
// There are only a few of them, so their size does not matter.
#[allow(clippy::large_enum_variant)]
pub enum Prepared {
    /// A plan with its workspace.
    Planned {
        /// The plan.
        plan: Plan,
        /// The workspace.
        workspace: Workspace,
    },
    /// The baseline.
    Rows(Baseline),
}

impl Prepared {
    /// Binds the tensors of a call, which must have passed [`Inputs::check`].
    ///
    /// # Errors
    /// Returns an error if the tensors do not match the problem, or if the device fails.
    pub fn bind<'a>(&'a mut self, inputs: Inputs<'a>, output: ElementsMut<'a>) -> Result<Call<'a>, Error> {
        match self {
            Prepared::Planned { plan, workspace } => {
                Ok(Call::Planned(plan.bind(inputs, Outputs::new(output), workspace)?))
            }
            Prepared::Rows(baseline) => Ok(Call::Rows(RowsCall::new(baseline, inputs, output))),
        }
    }

    /// Returns the back end that computes.
    #[must_use]
    pub fn backend(&self) -> Backend {
        match self {
            Prepared::Planned { plan, .. } => plan.backend(),
            Prepared::Rows(_) => Backend::SCALAR,
        }
    }

    /// Returns the name of the kernel on `backend`.
    #[must_use]
    pub fn kernel_of(&self, backend: Backend) -> &'static str {
        match self {
            Prepared::Planned { plan, .. } => plan.kernel_of(backend),
            Prepared::Rows(baseline) => rows::executed(&baseline.problem).kernel,
        }
    }

    /// Returns the size of the workspace in bytes.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        match self {
            Prepared::Planned { plan, .. } => plan.workspace_bytes(),
            Prepared::Rows(baseline) => baseline.bytes(),
        }
    }

    /// Returns the certificate of a run on `backend`.
    #[must_use]
    pub fn certificate_of(&self, backend: Backend) -> Certificate {
        match self {
            Prepared::Planned { plan, .. } => plan.certificate_of(backend),
            Prepared::Rows(Baseline { problem, .. }) => {
                Certificate::new(problem.spec().dtype, problem.keys(), rows::executed(problem))
            }
        }
    }

    /// Reports the keys that the last run skipped, if the plan has a schedule other than the exact one.
    ///
    /// # Errors
    /// Returns an error if there is no such report, or if the device fails.
    pub fn traversed(&mut self) -> Result<Traversed<'_>, RunError> {
        match self {
            Prepared::Planned { workspace, .. } => workspace.traversed(),
            Prepared::Rows(_) => Err(RunError::Exact),
        }
    }
}

/// A method bound to the tensors of a call.
#[allow(clippy::large_enum_variant)]
pub enum Call<'a> {
    /// A bound plan.
    Planned(Bound<'a>),
    /// The baseline.
    Rows(RowsCall<'a>),
}

impl Call<'_> {
    /// Runs the call, and returns the back end that computed.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn run(&mut self) -> Result<Backend, Error> {
        match self {
            Call::Planned(bound) => Ok(bound.run()?.backend),
            Call::Rows(call) => call.run(),
        }
    }

    /// Runs the call like [`Call::run`]; on a GPU the tensors stay in its memory.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn run_resident(&mut self) -> Result<Backend, Error> {
        match self {
            Call::Planned(bound) => Ok(bound.run_resident()?.backend),
            Call::Rows(call) => call.run(),
        }
    }

    /// Runs the call like [`Call::run_resident`]. Returns the times of its parts if a GPU computed.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn run_timed(&mut self) -> Result<Option<CallTimes>, Error> {
        match self {
            Call::Planned(bound) => Ok(bound.run_timed()?.1),
            Call::Rows(call) => call.run().map(|_| None),
        }
    }
}

/// The baseline, bound to the tensors of a call. A run allocates nothing.
pub struct RowsCall<'a> {
    engine: &'a Engine,
    problem: &'a Problem,
    inputs: Inputs<'a>,
    /// Scratch memory of each worker.
    scratch: Vec<Mutex<Vec<f32>>>,
    /// The output in parts of at most [`AT_ONCE`] rows of a head, in the order of the output.
    parts: Vec<Mutex<ElementsMut<'a>>>,
    /// First error of a run.
    failed: Mutex<Option<ArgumentError>>,
}

/// Locks a mutex. A panic of another worker ends the run in any case.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Divides the rows of each head, which have `head` elements together, into parts of at most `part` elements.
fn divided<T>(output: &mut [T], head: usize, part: usize) -> impl Iterator<Item = &mut [T]> {
    output.chunks_mut(head.max(1)).flat_map(move |rows| rows.chunks_mut(part.max(1)))
}

impl<'a> RowsCall<'a> {
    /// Binds the tensors of a call. The output is dense, `[batch, heads, queries, dim]`.
    fn new(baseline: &'a Baseline, inputs: Inputs<'a>, output: ElementsMut<'a>) -> RowsCall<'a> {
        let Baseline { engine, problem } = baseline;
        let width = problem.value_dim();
        let (head, part) = (problem.spec().query.tokens() * width, AT_ONCE * width);
        let parts = match output {
            ElementsMut::F32(x) => divided(x, head, part).map(|x| Mutex::new(ElementsMut::F32(x))).collect(),
            ElementsMut::F16(x) => divided(x, head, part).map(|x| Mutex::new(ElementsMut::F16(x))).collect(),
            ElementsMut::Bf16(x) => {
                divided(x, head, part).map(|x| Mutex::new(ElementsMut::Bf16(x))).collect()
            }
        };
        let scratch = || Mutex::new(vec![0.0; rows::scratch_len(problem)]);
        let scratch = (0..engine.threads()).map(|_| scratch()).collect();
        RowsCall { engine, problem, inputs, scratch, parts, failed: Mutex::new(None) }
    }

    /// Computes all rows on the workers of the engine.
    ///
    /// # Errors
    /// Returns an error if a part cannot be computed.
    fn run(&self) -> Result<Backend, Error> {
        let queries = self.problem.spec().query.tokens();
        let (parts, heads) = (queries.div_ceil(AT_ONCE), self.problem.heads());
        self.engine.divide(self.parts.len(), &|worker, item| {
            let (head, first) = (item / parts, item % parts * AT_ONCE);
            let place = (head / heads, head % heads);
            let range = first..queries.min(first + AT_ONCE);
            let (mut scratch, mut output) = (locked(&self.scratch[worker]), locked(&self.parts[item]));
            let done = rows::run(self.problem, &self.inputs, place, range, &mut scratch, &mut output);
            if let Err(e) = done {
                locked(&self.failed).get_or_insert(e);
            }
        })?;
        match locked(&self.failed).take() {
            Some(e) => Err(e.into()),
            None => Ok(Backend::SCALAR),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Data;
    use elsa_core::attention::reference;
    use elsa_core::dtype::DType;
    use elsa_files::Buffer;
    use elsa_runtime::EngineOptions;

    /// Returns the case of a shape in f32.
    fn case(shape: &str) -> Case {
        Case { workload: None, shape: shape.parse().unwrap(), dtype: DType::F32 }
    }

    #[test]
    fn the_baseline_writes_every_row_of_every_head() {
        for (shape, threads) in [
            ("2,4,35,50,20,kv=2,causal,mask=padding", 3),
            ("3,2,1,40,8,mask=bool", 2),
            ("4,1,16,16,8,swin=8x8:1", 1),
        ] {
            let case = case(shape);
            let problem = case.shape.problem(DType::F32).unwrap();
            let data = Data::random(&case.shape, &problem).unwrap();
            let inputs = data.inputs();
            let engine = Engine::new(&EngineOptions::default().threads(threads));
            let engine = engine.unwrap();
            let baseline = Baseline::new(&engine, &case, &problem, &PlanOptions::default()).unwrap();
            let mut prepared = Prepared::Rows(baseline);
            let mut output = Buffer::zeros("out", DType::F32, problem.spec().output.extent()).unwrap();
            let mut call = prepared.bind(inputs, output.elements_mut()).unwrap();
            assert_eq!(call.run().unwrap(), Backend::SCALAR);
            drop(call);
            let mut exact = vec![0.0; problem.value_dim()];
            for batch in 0..case.shape.batch {
                for head in 0..case.shape.heads {
                    for query in 0..case.shape.queries {
                        reference::row(&problem, &inputs, batch, head, query, &mut exact);
                        let at = problem.spec().output.row(batch, head, query);
                        for (x, exact) in exact.iter().enumerate() {
                            let y = f64::from(output.elements().get(at + x));
                            assert!(
                                (y - exact).abs() < 1e-5,
                                "{shape}: {batch} {head} {query} {x}: {y} {exact}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_baseline_names_what_it_cannot_do() {
        let engine = Engine::new(&EngineOptions::default().threads(1)).unwrap();
        let said = |shape: &str, options: PlanOptions| {
            let case = case(shape);
            let problem = case.shape.problem(DType::F32).unwrap();
            Baseline::new(&engine, &case, &problem, &options).err().map(|e| e.to_string()).unwrap_or_default()
        };
        let plain = PlanOptions::default();
        assert_eq!(said("1,1,4,4,8", plain.budget(64)), "");
        let short = said("1,1,4,4,8", plain.budget(63));
        assert_eq!(short, "--budget: 63 bytes; allowed: at least 64 for the method rows at 4 keys");
        assert!(said("2,1,4,4,8,packed=2", plain).starts_with("--method: rows with packed sequences"));
        assert!(
            said("1,1,4,4,8", plain.error_budget(0.1)).starts_with("--method: rows with an error budget")
        );
    }
}
