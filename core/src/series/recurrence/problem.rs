//! The problem and the data of a recurrence.

use crate::argument::{ArgumentError, enough};
use crate::dtype::{DType, Elements};
use crate::memory::Memory;
use crate::operands::operands;
use crate::series::tensor::{
    OutputTensors, Outputs, Series, check_written, countable, memory_of, problem, states, tensors,
};
use crate::setters;

operands! {
    /// A tensor that a recurrence reads or writes.
    read {
        /// Gates, `[batch, tokens, channels]`.
        Gates = "a",
        /// Addends, `[batch, tokens, channels]`.
        Addends = "b",
        /// States before the first token, f32 `[batch, channels]`.
        PastState = "past_state",
    }
    written {
        /// States after each token, `[batch, tokens, channels]`.
        Output = "out",
        /// States after the last token, f32 `[batch, channels]`.
        PresentState = "present_state",
    }
}

/// Meaning of the gates of a recurrence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Gate {
    /// Factors that multiply the state.
    #[default]
    Factor,
    /// Natural logarithms of factors; `−∞` clears the state.
    Log,
}

/// The unchecked description of a recurrence. Each series may have its own element type.
///
/// ```
/// # use elsa_core::{argument::ArgumentError, series::{Series, recurrence::{Gate, Spec}}};
/// let series = Series::tokens_first("a", [1, 1000, 64])?;
/// let problem = Spec::new(series, series, series).gate(Gate::Log).check()?;
/// # Ok::<(), ArgumentError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Spec {
    /// Gates, `[batch, tokens, channels]`. If the head stride or the batch stride of the view is zero, heads or sequences
    /// share the gates.
    pub a: Series,
    /// Addends, `[batch, tokens, channels]`.
    pub b: Series,
    /// States after each token, `[batch, tokens, channels]`.
    pub out: Series,
    /// Meaning of the values in `a`.
    pub gate: Gate,
    /// `true` if tokens are processed from last to first. The past state is then the state before the last token.
    pub reverse: bool,
    /// `true` if past and present states share memory; a call then passes only the present state.
    pub in_place: bool,
}

setters! {
    Spec:
    a: Series, b: Series, out: Series, gate: Gate, reverse: bool, in_place: bool;
    optional
}

impl Spec {
    /// Describes the recurrence with factors `a` and addends `b`, from the first token to the last. The states after each
    /// token are written to `out`.
    #[must_use]
    pub const fn new(a: Series, b: Series, out: Series) -> Spec {
        Spec { a, b, out, gate: Gate::Factor, reverse: false, in_place: false }
    }

    /// Checks the shapes and returns the problem.
    ///
    /// # Errors
    /// Returns an error for the first fault found.
    pub fn check(self) -> Result<Problem, ArgumentError> {
        let shape = self.b.shape();
        self.a.check("a", "b", shape)?;
        self.out.check("out", "b", shape)?;
        self.out.check_written("out")?;
        countable("present_state", [1, shape[0], shape[2]])?;
        Ok(Problem { spec: self })
    }
}

problem! {
    /// A checked recurrence, created by [`Spec::check`].
    b
}

impl Problem {
    /// Returns the number of values in the past and in the present states, `[batch, channels]`.
    #[must_use]
    pub const fn states(&self) -> usize {
        self.batch() * self.channels()
    }
}

/// The input tensors of a call. Fields for series have the type `E`, and fields for f32 tensors have the type `F`. Both
/// types are slices on the host ([`Inputs`]), or addresses in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputTensors<E, F> {
    /// Gates, with the layout [`Spec::a`].
    pub a: E,
    /// Addends, with the layout [`Spec::b`].
    pub b: E,
    /// States before the first token of a pass, `[batch, channels]`; zeros if absent. The tensor must be absent if past and
    /// present states share memory.
    pub past_state: Option<F>,
}

/// The input tensors of a call on the host.
pub type Inputs<'a> = InputTensors<Elements<'a>, &'a [f32]>;

tensors! {
    series Gates = a, Addends = b;
    values;
    optional series;
    optional values PastState = past_state;
}

impl Problem {
    /// Returns the size and layout of an operand's memory. Returns `None` if the problem does not have the operand, and
    /// for a past state that shares the memory of the present state. `dtype` is the element type of a series; states
    /// ignore it.
    #[must_use]
    pub fn memory(&self, operand: Operand, dtype: DType) -> Option<Memory> {
        let s = &self.spec;
        match operand {
            Operand::Gates => memory_of(&s.a, dtype),
            Operand::Addends => memory_of(&s.b, dtype),
            Operand::Output => memory_of(&s.out, dtype),
            Operand::PastState if s.in_place => None,
            Operand::PastState | Operand::PresentState => states([self.batch(), self.channels(), 1]),
        }
    }

    /// Checks the data of a call: the lengths of buffers, and which states are given.
    ///
    /// # Errors
    /// Returns an error for the first mismatch.
    pub fn check_data(&self, inputs: &Inputs<'_>, outputs: &Outputs<'_>) -> Result<(), ArgumentError> {
        let s = &self.spec;
        enough("a", inputs.a.len(), s.a.extent())?;
        enough("b", inputs.b.len(), s.b.extent())?;
        let (past, present) = (inputs.past_state, outputs.present_state.as_deref());
        check_written(&s.out, s.in_place, self.states(), past, outputs.out.as_ref(), present)
    }
}
