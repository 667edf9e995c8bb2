//! The data of a call: its input and output tensors.

use super::operands::Operand;
use super::problem::Problem;
use crate::argument::{self, ArgumentError, INPUT, LIST, OUTPUT, paired};
use crate::dtype::{DType, Elements, ElementsMut};
use crate::lengths::cumulative;
use crate::operands::by_operand;

/// The input tensors of a call. Their shapes and strides are those of the [`Problem`]. Fields for tensors that are
/// always f32 have the type `F`, and fields for all other tensors have the type `E`. Both types are slices on the host
/// ([`Inputs`]), or addresses in device memory.
#[derive(Clone, Copy, Debug)]
pub struct InputTensors<'a, E, F> {
    /// Elements of the query view.
    pub query: E,
    /// Elements of the key view.
    pub key: E,
    /// Elements of the value view.
    pub value: E,
    /// Elements of the decay view.
    pub decay: Option<E>,
    /// Elements of the beta view.
    pub beta: Option<E>,
    /// Elements of the past states; `None` if they are stored in the present states
    /// ([`Spec::in_place`](super::Spec::in_place)).
    pub past_state: Option<F>,
    /// Boundaries of the packed sequences, in host memory: `sequences + 1` token indices, from zero to the number of
    /// tokens.
    pub cu_seqlens: Option<&'a [i64]>,
}

impl<E: Default, F> Default for InputTensors<'_, E, F> {
    fn default() -> Self {
        let (query, key, value) = Default::default();
        InputTensors { query, key, value, decay: None, beta: None, past_state: None, cu_seqlens: None }
    }
}

/// The input tensors of a call on the host.
pub type Inputs<'a> = InputTensors<'a, Elements<'a>, &'a [f32]>;

by_operand! {
    InputTensors<'_, E, F>:
    required Query = query, Key = key, Value = value;
    optional Decay = decay, Beta = beta, PastState = past_state;
}

impl<'a> Inputs<'a> {
    /// Creates inputs with a query, a key and a value, and no optional tensor.
    #[must_use]
    pub fn new(
        query: impl Into<Elements<'a>>,
        key: impl Into<Elements<'a>>,
        value: impl Into<Elements<'a>>,
    ) -> Inputs<'a> {
        Inputs { query: query.into(), key: key.into(), value: value.into(), ..Inputs::default() }
    }

    /// Returns the elements of an input; `None` for an output, and for an input that the call does not have.
    #[must_use]
    pub fn elements(&self, operand: Operand) -> Option<Elements<'a>> {
        match operand {
            Operand::Query => Some(self.query),
            Operand::Key => Some(self.key),
            Operand::Value => Some(self.value),
            Operand::Decay => self.decay,
            Operand::Beta => self.beta,
            Operand::PastState => self.past_state.map(Elements::F32),
            Operand::Output | Operand::PresentState => None,
        }
    }

    /// Checks the inputs against `problem`: element types, buffer lengths, and the boundaries of packed sequences.
    ///
    /// # Errors
    /// Returns an error for the first mismatch.
    pub fn check(&self, problem: &Problem) -> Result<(), ArgumentError> {
        use ArgumentError as E;
        if self.past_state.is_some() && problem.spec().in_place {
            return Err(E::Conflict { argument: "past_state", other: "in_place" });
        }
        for operand in Operand::ALL.into_iter().filter(|operand| !operand.is_written()) {
            let found = self.elements(operand).map(|data| (data.dtype(), data.len()));
            covers(problem, operand, found, INPUT)?;
        }
        problem.check_bounds(self.cu_seqlens)
    }
}

impl Problem {
    /// Checks the boundaries of packed sequences. `cu_seqlens` must be `Some` if and only if the problem is packed.
    ///
    /// # Errors
    /// Returns an error for the first mismatch.
    pub fn check_bounds(&self, cu_seqlens: Option<&[i64]>) -> Result<(), ArgumentError> {
        let argument = "cu_seqlens";
        match paired(argument, self.spec().packed, cu_seqlens, LIST)? {
            Some((n, list)) => cumulative(argument, list, n, self.tokens() as i64),
            None => Ok(()),
        }
    }
}

/// The output tensors of a call. Their shapes and strides are those of the [`Problem`]. A call writes the output, the
/// present states, or both. Fields for tensors that are always f32 have the type `F`, and fields for all other tensors
/// have the type `E`. Both types are slices on the host ([`Outputs`]), or addresses in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputTensors<E, F> {
    /// Elements of the output view.
    pub output: Option<E>,
    /// Elements of the present states. If the problem is in place, they contain the past states when the call begins.
    pub present_state: Option<F>,
}

/// The output tensors of a call on the host.
pub type Outputs<'a> = OutputTensors<ElementsMut<'a>, &'a mut [f32]>;

impl<E, F> Default for OutputTensors<E, F> {
    fn default() -> OutputTensors<E, F> {
        OutputTensors { output: None, present_state: None }
    }
}

by_operand! {
    OutputTensors<E, F>:
    optional Output = output, PresentState = present_state;
}

impl<'a> Outputs<'a> {
    /// Creates outputs with the output tensor only.
    #[must_use]
    pub fn new(output: impl Into<ElementsMut<'a>>) -> Outputs<'a> {
        Outputs { output: Some(output.into()), present_state: None }
    }

    /// Checks the buffers against `problem`: element types and lengths.
    ///
    /// # Errors
    /// Returns an error for the first mismatch.
    pub fn check(&self, problem: &Problem) -> Result<(), ArgumentError> {
        let output = self.output.as_ref().map(|data| (data.dtype(), data.len()));
        if output.is_some() {
            covers(problem, Operand::Output, output, OUTPUT)?;
        } else if self.present_state.is_none() && problem.spec().output.count() > 0 {
            // An output may only be absent if it has no elements.
            return Err(ArgumentError::NoOutput { argument: Operand::Output.argument() });
        }
        let state = self.present_state.as_ref().map(|data| (DType::F32, data.len()));
        covers(problem, Operand::PresentState, state, OUTPUT)
    }
}

/// Checks the data of an operand. Requires either that the data have the declared type and enough elements, or that both
/// the problem and the call lack the operand.
fn covers(
    problem: &Problem,
    operand: Operand,
    found: Option<(DType, usize)>,
    missing: [&'static str; 2],
) -> Result<(), ArgumentError> {
    let allowed = problem.dtype_of(operand).name();
    let needed = problem.memory(operand).map(|memory| (allowed, memory.elements));
    let found = found.map(|(dtype, len)| (dtype.name(), len));
    argument::covers(operand.argument(), needed, found, missing)
}
