//! Bounds the errors of runs of linear attention, computed from the inputs of the run.

use super::operator::LinearPlan;
use crate::backend::Backend;
use crate::error::{DeviceError, RunError};
use elsa_core::drift::larger;
use elsa_core::linear::Inputs;
use elsa_core::linear::bound::{self, Judgement};

/// Bounds on the errors of a run of linear attention. A bound is infinite if the run guarantees nothing about an element,
/// and NaN if the exact value of an element is NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearCertificate {
    /// Largest error of an element of the output.
    pub output: f64,
    /// Largest error of an element of the output in each channel of the values, `[d_v]`.
    pub channels: Vec<f64>,
    /// Largest error of an element of the states after the last token; zero if the problem does not have these states.
    pub present: f64,
    /// Largest factor by which tokens may have amplified an earlier error of a state: at most one if gates and rates
    /// contract.
    pub gain: f64,
    /// Number of elements, of the output and of the states, that have no finite bound.
    pub unclaimed: u64,
}

/// Makes `list` a list of `count` zeros.
fn zeros(list: &mut Vec<f64>, count: usize) -> Result<(), RunError> {
    list.clear();
    let refused = DeviceError::HostMemory { bytes: count.saturating_mul(size_of::<f64>()) };
    list.try_reserve_exact(count).map_err(|_| RunError::Memory(refused))?;
    list.resize(count, 0.0);
    Ok(())
}

/// Returns the number of bounds that are not finite.
fn unclaimed(bounds: &[f64]) -> u64 {
    bounds.iter().filter(|bound| !bound.is_finite()).count() as u64
}

impl LinearPlan {
    /// Bounds the errors of a run on `backend` over `inputs`. The bounds are proven for the arithmetic of the plan.
    /// `backend` is the one in the [`Report`](crate::Report) of the run. If the problem is in place, the run overwrites the
    /// past states, but `inputs` must have a copy of the states before the run.
    ///
    /// One thread computes the run in f64 and its bounds, which takes far longer than the run. Allocates buffers for the
    /// outputs of one state.
    ///
    /// ```
    /// # use elsa_core::{dtype::DType, linear::{Inputs, Outputs, Spec}, view::View};
    /// # use elsa_runtime::{Engine, EngineOptions, LinearPlanOptions};
    /// let view = View::bhnd("q", [1, 1, 4, 2])?;
    /// let problem = Spec::new(DType::F32, view, view, view, view).check()?;
    /// let (x, mut y) = ([0.3f32; 8], [0.0f32; 8]);
    /// let inputs = Inputs::new(&x[..], &x[..], &x[..]);
    /// let engine = Engine::new(&EngineOptions::default())?;
    /// let plan = engine.linear_plan(&problem, &LinearPlanOptions::default())?;
    /// let report = plan.run(inputs, Outputs::new(&mut y[..]), &mut plan.workspace()?)?;
    /// let certificate = plan.certificate(report.backend, &inputs)?;
    /// assert!(certificate.unclaimed == 0 && certificate.output < 1e-5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the inputs do not match the problem, or if the system refuses memory.
    pub fn certificate(&self, backend: Backend, inputs: &Inputs<'_>) -> Result<LinearCertificate, RunError> {
        let problem = self.problem.out_of_place();
        inputs.check(&problem)?;
        let (columns, states) = (problem.value_dim(), problem.state_heads());
        let mut found =
            LinearCertificate { output: 0.0, channels: Vec::new(), present: 0.0, gain: 0.0, unclaimed: 0 };
        zeros(&mut found.channels, columns)?;
        let [mut output, mut output_error, mut present, mut present_error, mut scratch] =
            [const { Vec::new() }; 5];
        for buffer in [&mut present, &mut present_error] {
            zeros(buffer, problem.key_dim().saturating_mul(columns))?;
        }
        for sequence in 0..problem.sequences() {
            let tokens = problem.sequence(inputs.cu_seqlens, sequence).tokens;
            let executed = self.executed_of(backend, tokens);
            zeros(&mut scratch, bound::scratch_len(&problem, &executed).unwrap_or(usize::MAX))?;
            for state in 0..states {
                let elements = problem.readers(state).1.saturating_mul(tokens).saturating_mul(columns);
                for buffer in [&mut output, &mut output_error] {
                    zeros(buffer, elements)?;
                }
                let mut to = Judgement {
                    output: &mut output,
                    output_error: &mut output_error,
                    present: &mut present,
                    present_error: &mut present_error,
                };
                let judged = bound::head(&problem, inputs, &executed, sequence, state, &mut to, &mut scratch);
                found.gain = larger(found.gain, judged.gain);
                found.unclaimed += unclaimed(&output_error);
                for row in output_error.chunks_exact(columns.max(1)) {
                    for (channel, error) in found.channels.iter_mut().zip(row) {
                        *channel = larger(*channel, *error);
                    }
                }
                if problem.spec().present_state.is_some() {
                    found.unclaimed += unclaimed(&present_error);
                    found.present = present_error.iter().copied().fold(found.present, larger);
                }
            }
        }
        found.output = found.channels.iter().copied().fold(found.output, larger);
        Ok(found)
    }
}
