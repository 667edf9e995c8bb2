//! Owned buffers for all outputs of a problem.

use super::case::Case;
use super::data::Data;
use elsa_core::attention::{Outputs, StateOut};
use elsa_core::view::View;
use elsa_runtime::{Engine, Plan, PlanOptions, Report, Workspace};

/// Owned buffers for all outputs of a problem.
#[derive(Clone, Debug)]
pub struct Buffers {
    /// Elements of the output view.
    pub output: Data,
    /// Log-sum-exp, `[batch, heads, queries]`.
    pub lse: Vec<f32>,
    /// References `m` of the states, `[batch, heads, queries]`.
    pub m: Vec<f32>,
    /// Sums `S` of the states, `[batch, heads, queries]`.
    pub s: Vec<f32>,
    /// Weighted sums `W` of the states, `[batch, heads, queries, d_v]`.
    pub w: Vec<f32>,
    /// Present keys and values, if the problem writes them.
    pub present: Option<(Data, Data)>,
}

impl Buffers {
    /// Borrows all buffers.
    pub fn outputs(&mut self) -> Outputs<'_> {
        let mut outputs = Outputs::new(self.output.elements_mut());
        outputs.lse = Some(&mut self.lse);
        outputs.state = Some(StateOut { m: &mut self.m, s: &mut self.s, w: &mut self.w });
        if let Some((k, v)) = &mut self.present {
            outputs.present_key = Some(k.elements_mut());
            outputs.present_value = Some(v.elements_mut());
        }
        outputs
    }

    /// Returns the bits of output, log-sum-exp and states. All NaNs map to the same bits.
    #[must_use]
    pub fn bits(&self) -> Vec<u32> {
        let output = (0..self.output.len()).map(|i| self.output.get(i));
        let rows = [&self.lse, &self.m, &self.s, &self.w].into_iter().flatten().copied();
        output.chain(rows).map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
    }
}

impl Case {
    /// Creates buffers for all outputs of the problem, filled with NaN.
    #[must_use]
    pub fn buffers(&self) -> Buffers {
        let problem = self.problem();
        let dtype = self.spec.dtype;
        let nan = |view: View| Data::filled(dtype, view.extent(), f32::NAN);
        let rows = problem.rows();
        Buffers {
            output: nan(self.spec.output),
            lse: vec![f32::NAN; rows],
            m: vec![f32::NAN; rows],
            s: vec![f32::NAN; rows],
            w: vec![f32::NAN; rows * problem.value_dim()],
            present: self.spec.present_key.zip(self.spec.present_value).map(|(k, v)| (nan(k), nan(v))),
        }
    }

    /// Runs a plan of the case in `workspace`. Returns all outputs and the report.
    ///
    /// # Panics
    /// Panics if the call or its run is refused.
    pub fn run(&self, plan: &Plan, workspace: &mut Workspace) -> (Buffers, Report) {
        self.run_with(plan, workspace, |_| ())
    }

    /// Runs a plan of the case in `workspace`, for the outputs that `keep` does not remove. Returns all buffers and the
    /// report.
    ///
    /// # Panics
    /// Panics if the call or its run is refused.
    pub fn run_with(
        &self,
        plan: &Plan,
        workspace: &mut Workspace,
        keep: impl FnOnce(&mut Outputs<'_>),
    ) -> (Buffers, Report) {
        let mut buffers = self.buffers();
        let mut outputs = buffers.outputs();
        keep(&mut outputs);
        let bound = plan.bind(self.inputs(), outputs, workspace);
        let report = bound.expect("a call of the plan").run().expect("a run of the plan");
        (buffers, report)
    }

    /// Plans and runs the case on the back end of `engine`. Returns all outputs.
    ///
    /// # Panics
    /// Panics if the plan, the call or its run is refused, or if the run used another back end.
    #[must_use]
    pub fn run_on(&self, engine: &Engine, options: &PlanOptions) -> Buffers {
        let plan = engine.plan(&self.problem(), options).expect("a plan of the case");
        let (buffers, report) = self.run(&plan, &mut plan.workspace().expect("a workspace"));
        assert_eq!(report.backend, engine.backend(), "{self:?}");
        buffers
    }
}
