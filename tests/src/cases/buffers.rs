//! Owned buffers for all outputs of a problem.

use super::case::Case;
use super::data::Data;
use elsa_core::attention::{Outputs, StateOut};
use elsa_core::view::View;

/// Owned buffers for all outputs of a problem.
#[derive(Clone, Debug)]
pub struct Buffers {
    /// Elements of the output view.
    pub output: Data,
    /// Log-sum-exp, `[batch, heads, queries]`.
    pub lse: Vec<f32>,
    /// References of the states, `[batch, heads, queries]`.
    pub m: Vec<f32>,
    /// Sums of the states, `[batch, heads, queries]`.
    pub s: Vec<f32>,
    /// Weighted sums of the states, `[batch, heads, queries, d_v]`.
    pub w: Vec<f32>,
    /// Present keys and values.
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
}
