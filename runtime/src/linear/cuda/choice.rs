//! What is decided once per shape for runs on a GPU.

use elsa_core::dtype::DType;
use elsa_core::linear::bound::{Executed, Solve};
use elsa_core::linear::{Form, Gates, Problem};
use elsa_kernels::cuda::linear::CHUNK;

/// Largest relative error of a gate: of an exponential whose argument is reduced in f64.
const EXP_RELATIVE: f64 = 1.0 / 4_194_304.0;

/// Base-2 logarithm of the largest factor into which gates for each dim are split.
const FACTORED: f64 = 100.0;

/// The choice for a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearGpuChoice {
    /// Name of the kernel that walks.
    pub kernel: &'static str,
    /// The order of operations.
    pub form: Form,
    /// Tokens that meet a state at once: 1 of [`Form::Recurrent`].
    pub chunk: usize,
    /// Chunks of a part: of [`Form::Scan`], between two states of [`Form::Chunk`], and of a non-causal read.
    pub boundary: usize,
    /// Blocks of columns of a state.
    pub columns: usize,
    /// Largest number of parts of a sequence that are computed side by side.
    pub parts: usize,
    /// Dims of the kernel, to which those of keys are padded.
    pub dims: usize,
    /// Largest number of chunks of all sequences together.
    pub chunks: usize,
}

impl LinearGpuChoice {
    /// What a run executes, for its error bound.
    #[must_use]
    pub fn executed(&self, problem: &Problem) -> Executed {
        let unit = DType::F32.unit_roundoff();
        // A unit vector: half the roundings of a sum of squares, its root, its inverse and a product.
        let key = match problem.spec().normalize {
            Some(_) => (self.dims as f64 / 2.0 + 4.0) * unit,
            None => 0.0,
        };
        Executed {
            form: self.form,
            chunk: self.chunk,
            part: if self.form == Form::Scan { self.boundary * CHUNK } else { problem.tokens().max(1) },
            exp_relative: EXP_RELATIVE,
            query_relative: key + 2.0 * unit,
            key_relative: key,
            dims: self.dims + 1,
            tokens: self.chunk + 4,
            solve: Solve::Factors,
            factored: if problem.gates() == Gates::PerDim { FACTORED } else { 0.0 },
        }
    }
}
