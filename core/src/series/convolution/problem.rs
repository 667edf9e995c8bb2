//! The problem and the data of a causal convolution.

use crate::argument::{ArgumentError, enough};
use crate::dtype::{DType, Elements};
use crate::memory::Memory;
use crate::operands::operands;
use crate::series::tensor::{
    OutputTensors, Outputs, Series, check_written, countable, dense, memory_of, problem, states, tensors,
};
use crate::setters;

operands! {
    /// A tensor that a convolution reads or writes. Parameters are dense f32.
    read {
        /// Inputs, `[batch, tokens, channels]`.
        Signal = "u",
        /// Filters, `[channels, K]`, or `[K]` if all channels share one filter.
        Filter = "filter",
        /// Bias added to each sum of products, `[channels]`.
        Bias = "bias",
        /// Inputs before the first token, `[batch, channels, K − 1]`.
        PastState = "past_state",
    }
    written {
        /// The output, `[batch, tokens, channels]`.
        Output = "out",
        /// The last inputs, f32 `[batch, channels, K − 1]`.
        PresentState = "present_state",
    }
}

/// The order of the weights of a filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Taps {
    /// The first weight multiplies the input of the current token, like `α_0` in a relative decay.
    #[default]
    NewestFirst,
    /// The last weight multiplies the input of the current token, as in the convolutions of ONNX and PyTorch.
    NewestLast,
}

/// Method of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// The sum of the products of weights and inputs.
    Direct,
    /// Multiplication of spectra, which FFTs compute in f64.
    Fft,
}

impl Method {
    /// Both methods.
    pub const ALL: [Method; 2] = [Method::Direct, Method::Fft];

    /// Returns the name: `direct` or `fft`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Method::Direct => "direct",
            Method::Fft => "fft",
        }
    }
}

/// The unchecked description of a convolution. Each series may have its own element type.
///
/// ```
/// # use elsa_core::{argument::ArgumentError, series::{Series, convolution::Spec}};
/// let u = Series::channels_first("u", [1, 64, 1000])?;
/// let problem = Spec::new(u, 4, u).silu(true).check()?;
/// # Ok::<(), ArgumentError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Spec {
    /// Inputs, `[batch, tokens, channels]`.
    pub u: Series,
    /// The output, `[batch, tokens, channels]`.
    pub out: Series,
    /// Number of weights per filter, `K`.
    pub taps: usize,
    /// `true` if all channels share one filter.
    pub shared: bool,
    /// The order of the weights in a filter.
    pub order: Taps,
    /// `true` if `silu` is applied to each output.
    pub silu: bool,
    /// `true` if tokens are processed from last to first: `o_t = Σ_k α_k u_{t+k}`. The past state then contains the
    /// inputs that follow the last token. The input nearest to the last token comes last.
    pub reverse: bool,
    /// `true` if past and present states share memory; a call then passes only the present state.
    pub in_place: bool,
}

setters! {
    Spec:
    u: Series, out: Series, taps: usize, shared: bool, order: Taps, silu: bool, reverse: bool, in_place: bool;
    optional
}

impl Spec {
    /// Describes the convolution of each channel of `u` with the channel's own filter of `taps` weights. The results are
    /// written to `out`.
    #[must_use]
    pub const fn new(u: Series, taps: usize, out: Series) -> Spec {
        let order = Taps::NewestFirst;
        Spec { u, out, taps, shared: false, order, silu: false, reverse: false, in_place: false }
    }

    /// Checks the shapes and returns the problem.
    ///
    /// # Errors
    /// Returns an error for the first fault found.
    pub fn check(self) -> Result<Problem, ArgumentError> {
        let shape = self.u.shape();
        self.out.check("out", "u", shape)?;
        self.out.check_written("out")?;
        if self.taps == 0 {
            return Err(ArgumentError::Zero { argument: "filter", axis: "taps" });
        }
        countable("filter", [1, shape[2], self.taps])?;
        countable("present_state", [shape[0], shape[2], self.taps])?;
        // The number of tokens and past inputs, and twice that number, do not overflow.
        countable("u", [4, shape[1].max(1), 1]).and_then(|()| countable("filter", [4, self.taps, 1]))?;
        Ok(Problem { spec: self })
    }
}

problem! {
    /// A checked convolution, created by [`Spec::check`].
    u
}

impl Problem {
    /// Returns the number of weights per filter, `K`.
    #[must_use]
    pub const fn taps(&self) -> usize {
        self.spec.taps
    }

    /// Returns the number of inputs in a channel's state: `K − 1`.
    #[must_use]
    pub const fn history(&self) -> usize {
        self.spec.taps - 1
    }

    /// Returns the total number of weights of all filters.
    #[must_use]
    pub const fn weights(&self) -> usize {
        let filters = if self.spec.shared { 1 } else { self.channels() };
        filters * self.spec.taps
    }

    /// Returns the index of the weight that multiplies the input `back` tokens before the output.
    #[inline]
    #[must_use]
    pub const fn weight(&self, channel: usize, back: usize) -> usize {
        let tap = match self.spec.order {
            Taps::NewestFirst => back,
            Taps::NewestLast => self.spec.taps - 1 - back,
        };
        let filter = if self.spec.shared { 0 } else { channel };
        filter * self.spec.taps + tap
    }

    /// Returns the number of values in the past and in the present states, `[batch, channels, K − 1]`.
    #[must_use]
    pub const fn states(&self) -> usize {
        self.batch() * self.channels() * self.history()
    }
}

/// Returns the length of the FFTs for `tokens` tokens and a filter of `taps` weights: the smallest number of the form
/// `2^i` or `3 · 2^i`, at least 4, for which the convolution does not wrap around. If filter and input are equally
/// long, the result is at least twice their length.
#[must_use]
pub const fn fft_length(tokens: usize, taps: usize) -> usize {
    let least = tokens + taps;
    let mut length = 4;
    while length < least {
        length *= 2;
    }
    if length > 4 && length / 4 * 3 >= least { length / 4 * 3 } else { length }
}

/// The input tensors of a call. Parameters are dense f32. Fields for series have the type `E`, and fields for f32
/// tensors have the type `F`. Both types are slices on the host ([`Inputs`]), or addresses in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputTensors<E, F> {
    /// Inputs, with the layout [`Spec::u`].
    pub u: E,
    /// The filters, `[channels, K]`, or `[K]` if all channels share one filter.
    pub filter: F,
    /// Bias added to each sum of products, `[channels]`; zeros if absent.
    pub bias: Option<F>,
    /// The `K − 1` inputs before the first token of a pass, oldest first, `[batch, channels, K − 1]`; zeros if absent. The
    /// tensor must be absent if past and present states share memory. The present states have the same shape and contain
    /// the last inputs of the pass.
    pub past_state: Option<F>,
}

/// The input tensors of a call on the host.
pub type Inputs<'a> = InputTensors<Elements<'a>, &'a [f32]>;

tensors! {
    series Signal = u;
    values Filter = filter;
    optional series;
    optional values Bias = bias, PastState = past_state;
}

impl Problem {
    /// Returns the size and layout of an operand's memory. Returns `None` if the problem does not have the operand, and for
    /// a past state that shares the memory of the present state. `dtype` is the element type of a series; filters, biases
    /// and states ignore it.
    #[must_use]
    pub fn memory(&self, operand: Operand, dtype: DType) -> Option<Memory> {
        let s = &self.spec;
        match operand {
            Operand::Signal => memory_of(&s.u, dtype),
            Operand::Filter => dense(self.weights(), DType::F32),
            Operand::Bias => dense(self.channels(), DType::F32),
            Operand::Output => memory_of(&s.out, dtype),
            Operand::PastState if s.in_place => None,
            Operand::PastState | Operand::PresentState => {
                states([self.batch(), self.channels(), self.history()])
            }
        }
    }

    /// Checks the data of a call: the lengths of buffers, and which states are given.
    ///
    /// # Errors
    /// Returns an error for the first mismatch.
    pub fn check_data(&self, inputs: &Inputs<'_>, outputs: &Outputs<'_>) -> Result<(), ArgumentError> {
        let s = &self.spec;
        enough("u", inputs.u.len(), s.u.extent())?;
        enough("filter", inputs.filter.len(), self.weights())?;
        inputs.bias.map_or(Ok(()), |bias| enough("bias", bias.len(), self.channels()))?;
        let (past, present) = (inputs.past_state, outputs.present_state.as_deref());
        check_written(&s.out, s.in_place, self.states(), past, outputs.out.as_ref(), present)
    }
}
