//! The plan: what is decided once per shape.

use crate::cpu::call::Call;
use crate::cpu::workspace::Workspace;
use crate::engine::Engine;
use crate::error::BindError;
use crate::run::Bound;
use elsa_core::certificate::{Certificate, Executed};
use elsa_core::plan::{Choice, Layout, Method, PlanError};
use elsa_core::problem::{Inputs, Outputs, Problem};
use elsa_core::schedule;
use elsa_kernels::kernel::Kernel;

/// What is wished of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// How the answer is computed.
    pub method: Method,
    /// Keys in a block: 64, 128 or 256.
    pub block: usize,
    /// Most bytes of workspace.
    pub budget: Option<usize>,
    /// Whether all threads take part however little there is to do; otherwise as many as pay for being woken.
    /// It changes no bit of the answer.
    pub all_workers: bool,
}

impl Default for PlanOptions {
    fn default() -> Self {
        PlanOptions { method: Method::Elsa, block: 64, budget: None, all_workers: false }
    }
}

/// A problem with everything decided that does not depend on pointers. It belongs to the engine that made it.
#[derive(Clone, Debug)]
pub struct Plan {
    engine: Engine,
    kernel: &'static Kernel,
    problem: Problem,
    choice: Choice,
    layout: Layout,
}

impl Plan {
    pub(crate) fn new(
        engine: Engine,
        kernel: &'static Kernel,
        problem: Problem,
        choice: Choice,
    ) -> Result<Plan, PlanError> {
        let layout = Layout::of(&choice).ok_or(PlanError::Memory { needed: usize::MAX })?;
        Ok(Plan { engine, kernel, problem, choice, layout })
    }

    /// The problem.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// What was decided.
    #[must_use]
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Name of the micro-kernel.
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        self.choice.kernel.name
    }

    /// What may be said of the error of its runs.
    #[must_use]
    pub fn certificate(&self) -> Certificate {
        let (c, keys) = (&self.choice, self.problem.keys());
        let merge_depth = match c.method {
            Method::Elsa => schedule::depth(c.segments),
            Method::Math => 0,
        };
        let leaf = match c.method {
            Method::Elsa => c.segment.min(keys),
            Method::Math => keys,
        };
        let executed = Executed {
            block: c.block,
            segment_blocks: c.segment / c.block,
            merge_depth,
            additions: leaf + merge_depth,
        };
        Certificate::new(self.problem.spec().dtype, keys, executed)
    }

    /// Bytes of the workspace.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.layout.bytes()
    }

    /// Allocates a workspace.
    ///
    /// # Errors
    /// Memory that the system does not give.
    pub fn workspace(&self) -> Result<Workspace, PlanError> {
        Workspace::new(&self.layout, self.problem.sequences())
            .ok_or(PlanError::Memory { needed: self.workspace_bytes() })
    }

    /// Binds the tensors of a frame. Nothing is allocated and nothing is written.
    ///
    /// # Errors
    /// Data that are not those of the problem, and another plan's workspace.
    pub fn bind<'a>(
        &'a self,
        inputs: Inputs<'a>,
        outputs: Outputs<'a>,
        workspace: &'a mut Workspace,
    ) -> Result<Bound<'a>, BindError> {
        let call =
            Call::new(self.kernel, &self.problem, &self.choice, &self.layout, inputs, outputs, workspace)?;
        Ok(Bound::new(&self.engine, call))
    }
}
