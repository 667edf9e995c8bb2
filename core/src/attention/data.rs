//! The data of a call: its input and output tensors.

use super::bias::BiasView;
use super::mask::MaskElements;
use super::operands::Operand;
use super::problem::Problem;
use super::sequence::{Chunk, Lengths};
use crate::argument::{self, ArgumentError, INPUT, LIST, OUTPUT, enough, paired, same};
use crate::dtype::{DType, Elements, ElementsMut};
use crate::lengths::cumulative;
use crate::memory::Memory;
use crate::operands::{Place, by_operand};

/// The input tensors of a call. Their shapes and strides are those of the [`Problem`]. `E` refers to the elements of a
/// tensor, `M` to those of a mask, and `I` to those of an index. All three are slices on the host ([`Inputs`]), or
/// addresses in device memory.
#[derive(Clone, Copy, Debug)]
pub struct InputTensors<'a, E, M, I> {
    /// Elements of the query view.
    pub query: E,
    /// Elements of the key view.
    pub key: E,
    /// Elements of the value view.
    pub value: E,
    /// Elements of the past keys; `None` if they are stored in the present tensor
    /// ([`Spec::append`](super::Spec::append)).
    pub past_key: Option<E>,
    /// Elements of the past values; `None` if they are stored in the present tensor.
    pub past_value: Option<E>,
    /// Elements of the mask.
    pub mask: Option<M>,
    /// Elements of the bias tensor or of the bias table.
    pub bias: Option<E>,
    /// Table entry for each pair of a query and a key, `[queries, keys]`. On a device the entries are not checked: an
    /// entry outside the table counts as the first or the last entry.
    pub bias_index: Option<I>,
    /// Lengths of the sequences, in host memory.
    pub lengths: Lengths<'a>,
}

impl<E: Default, M, I> Default for InputTensors<'_, E, M, I> {
    fn default() -> Self {
        InputTensors::of(|_| None)
    }
}

/// The input tensors of a call on the host.
pub type Inputs<'a> = InputTensors<'a, Elements<'a>, MaskElements<'a>, &'a [i64]>;

impl Place for MaskElements<'_> {
    type Address = *mut u8;

    fn address(&mut self) -> *mut u8 {
        self.as_ptr().cast_mut()
    }

    fn dtype(&self) -> Option<DType> {
        match self {
            MaskElements::Bool(_) => None,
            MaskElements::Additive(elements) => Some(elements.dtype()),
        }
    }
}

by_operand! {
    InputTensors<'_, E, M, I>:
    required Query = query, Key = key, Value = value;
    optional PastKey = past_key, PastValue = past_value, Mask = mask, Bias = bias, BiasIndex = bias_index;
}

impl<'a, E: Default, M, I> InputTensors<'a, E, M, I> {
    /// Creates inputs without mask, index and lengths. `elements` returns the elements of each other operand.
    pub fn of(mut elements: impl FnMut(Operand) -> Option<E>) -> InputTensors<'a, E, M, I> {
        InputTensors {
            query: elements(Operand::Query).unwrap_or_default(),
            key: elements(Operand::Key).unwrap_or_default(),
            value: elements(Operand::Value).unwrap_or_default(),
            past_key: elements(Operand::PastKey),
            past_value: elements(Operand::PastValue),
            mask: None,
            bias: elements(Operand::Bias),
            bias_index: None,
            lengths: Lengths::default(),
        }
    }
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

    /// Checks the inputs against `problem`: element types, buffer lengths, and sequence lengths.
    ///
    /// # Errors
    /// Returns an error for the first mismatch.
    pub fn check(&self, problem: &Problem) -> Result<(), ArgumentError> {
        use ArgumentError as E;
        for (operand, data) in [
            (Operand::Query, Some(self.query)),
            (Operand::Key, Some(self.key)),
            (Operand::Value, Some(self.value)),
            (Operand::PastKey, self.past_key),
            (Operand::PastValue, self.past_value),
        ] {
            let past = matches!(operand, Operand::PastKey | Operand::PastValue);
            if past && data.is_some() && problem.spec().append {
                return Err(E::Conflict { argument: operand.argument(), other: "append" });
            }
            let found = data.map(|data| (data.dtype(), data.len()));
            covers(problem, operand, found, INPUT)?;
        }
        let spec = problem.spec();
        let mask = spec.mask.map(|mask| (mask.kind().name(), mask.extent()));
        let found = self.mask.map(|data| (data.kind().name(), data.len()));
        argument::covers(Operand::Mask.argument(), mask, found, INPUT)?;
        let bias = spec.bias.map(|bias| (bias.dtype().name(), bias.extent()));
        let found = self.bias.map(|data| (data.dtype().name(), data.len()));
        argument::covers(Operand::Bias.argument(), bias, found, INPUT)?;
        problem.check_index(self.bias_index)?;
        self.lengths.check(problem)
    }
}

impl Problem {
    /// Checks the index of a bias table: it must be supplied if declared, be large enough, and have entries that are
    /// within the table.
    ///
    /// # Errors
    /// Returns an error for a missing or unexpected index, for its length, or for the first entry outside the table.
    pub fn check_index(&self, index: Option<&[i64]>) -> Result<(), ArgumentError> {
        let (argument, memory) = (Operand::BiasIndex.argument(), self.memory(Operand::BiasIndex));
        let found = paired(argument, memory, index, LIST)?;
        if let (Some(BiasView::Table(table)), Some((memory, index))) = (self.spec().bias, found) {
            enough(argument, index.len(), memory.elements)?;
            let (min, max) = (0, table.entries as i64 - 1);
            let outside = |entry: &i64| !(min..=max).contains(entry);
            if let Some(at) = index[..memory.elements].iter().position(outside) {
                return Err(ArgumentError::Length { argument, index: at, found: index[at], min, max });
            }
        }
        Ok(())
    }
}

impl Lengths<'_> {
    /// Checks the lists of lengths against `problem`: each declared list must be supplied, with the correct number of
    /// entries, all within bounds.
    ///
    /// # Errors
    /// Returns an error for the first list or list entry that does not match.
    pub fn check(&self, problem: &Problem) -> Result<(), ArgumentError> {
        let s = problem.spec();
        if let Some(chunk) = self.chunk {
            chunk.check(problem)?;
        }
        let argument = "key_lengths";
        if let Some(((), lengths)) = paired(argument, s.key_lengths.then_some(()), self.keys, LIST)? {
            same(argument, "entries", lengths.len(), s.query.batch(), "the batch")?;
            let max = self.chunk.map_or(problem.keys(), |chunk| chunk.key_total) as i64;
            for (index, &found) in lengths.iter().enumerate() {
                if !(0..=max).contains(&found) {
                    return Err(ArgumentError::Length { argument, index, found, min: 0, max });
                }
            }
        }
        for (argument, list, total) in [
            ("cu_seqlens_q", self.cu_seqlens_q, s.query.tokens()),
            ("cu_seqlens_k", self.cu_seqlens_k, s.key.tokens()),
        ] {
            if let Some((n, list)) = paired(argument, s.packed, list, LIST)? {
                cumulative(argument, list, n, total as i64)?;
            }
        }
        Ok(())
    }
}

impl Chunk {
    /// Checks that the queries and keys of `problem` fit into the longer sequence at the offsets of the chunk.
    fn check(self, problem: &Problem) -> Result<(), ArgumentError> {
        use ArgumentError as E;
        let (s, keys) = (problem.spec(), problem.keys());
        let packed = s.packed.map(|_| "cu_seqlens_q");
        if let Some(other) = s.past_or_present().or(packed).or(s.windows.map(|_| "windows")) {
            return Err(E::Conflict { argument: "chunk", other });
        }
        let (found, max) = (self.key_total, isize::MAX as usize / 4);
        if !(keys..=max).contains(&found) {
            return Err(E::Count { argument: "key_total", found, min: keys, max });
        }
        let (found, max) = (self.key_offset, self.key_total - keys);
        if found > max {
            return Err(E::Count { argument: "key_offset", found, min: 0, max });
        }
        let (queries, max) = (s.query.tokens(), isize::MAX as usize / 4);
        let found = self.query_total;
        if found != 0 && !(queries..=max).contains(&found) {
            return Err(E::Count { argument: "query_total", found, min: queries, max });
        }
        let (found, max) = (self.query_offset, self.query_total.saturating_sub(queries));
        if found > max {
            return Err(E::Count { argument: "query_offset", found, min: 0, max });
        }
        Ok(())
    }
}

/// Checks an operand whose elements must have the problem's type. Either the operand has this type and enough elements,
/// or both the problem and the call lack the operand.
fn covers(
    problem: &Problem,
    operand: Operand,
    found: Option<(DType, usize)>,
    missing: [&'static str; 2],
) -> Result<(), ArgumentError> {
    let needed = problem.memory(operand).map(|memory| (problem.spec().dtype.name(), memory.elements));
    let found = found.map(|(dtype, len)| (dtype.name(), len));
    argument::covers(operand.argument(), needed, found, missing)
}

/// Buffers for the state `(m, S, W)` of every row, in natural-log units: `S = Σ exp(s_j − m)` and
/// `W = Σ exp(s_j − m) v_j`. The reference `m` is near the largest score; every reference yields the same
/// `W / S`. References of `2^30` and above are described at
/// [`natural_reference`](crate::state::natural_reference).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateTensors<F> {
    /// References `m`, `[batch, heads, queries]`; `−∞` for a row that attends no key.
    pub m: F,
    /// Sums `S`, `[batch, heads, queries]`.
    pub s: F,
    /// Weighted sums `W`, `[batch, heads, queries, d_v]`.
    pub w: F,
}

/// Host buffers for the state of every row.
pub type StateOut<'a> = StateTensors<&'a mut [f32]>;

/// The output tensors of a call. Their shapes and strides are those of the [`Problem`]. A call writes the output,
/// log-sum-exp, states, or several of them. `E` refers to the elements of a tensor, and `F` to f32 values. Both are
/// slices on the host ([`Outputs`]), or addresses in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputTensors<E, F> {
    /// Elements of the output view.
    pub output: Option<E>,
    /// Log-sum-exp of each row, `[batch, heads, queries]`, natural logarithm; `−∞` for a row that attends no key.
    pub lse: Option<F>,
    /// The state of each row.
    pub state: Option<StateTensors<F>>,
    /// Elements of the present keys. If the problem appends in place, the first rows of this tensor are the past keys;
    /// the call reads these rows and does not write them.
    pub present_key: Option<E>,
    /// Elements of the present values. If the problem appends in place, the first rows are the past values, as in
    /// `present_key`.
    pub present_value: Option<E>,
}

/// The output tensors of a call on the host.
pub type Outputs<'a> = OutputTensors<ElementsMut<'a>, &'a mut [f32]>;

impl<E, F> Default for OutputTensors<E, F> {
    fn default() -> OutputTensors<E, F> {
        OutputTensors { output: None, lse: None, state: None, present_key: None, present_value: None }
    }
}

by_operand! {
    OutputTensors<E, F>:
    optional Output = output, PresentKey = present_key, PresentValue = present_value, LogSumExp = lse;
    within state StateReference = m, StateSum = s, StateWeighted = w;
}

impl<'a> Outputs<'a> {
    /// Creates outputs with the output tensor only.
    #[must_use]
    pub fn new(output: impl Into<ElementsMut<'a>>) -> Outputs<'a> {
        Outputs { output: Some(output.into()), ..Outputs::default() }
    }

    /// Creates outputs with states only.
    #[must_use]
    pub fn states(state: StateOut<'a>) -> Outputs<'a> {
        Outputs { state: Some(state), ..Outputs::default() }
    }

    /// Checks the buffers against `problem`: element types and lengths.
    ///
    /// # Errors
    /// Returns an error for the first mismatch.
    pub fn check(&self, problem: &Problem) -> Result<(), ArgumentError> {
        use ArgumentError as E;
        for (operand, data) in [
            (Operand::Output, self.output.as_ref()),
            (Operand::PresentKey, self.present_key.as_ref()),
            (Operand::PresentValue, self.present_value.as_ref()),
        ] {
            if operand == Operand::Output && data.is_none() {
                // A problem with an empty output needs no output buffer.
                let elements = problem.memory(operand).map_or(0, |memory| memory.elements);
                if self.lse.is_none() && self.state.is_none() && elements > 0 {
                    return Err(E::NoOutput { argument: operand.argument() });
                }
                continue;
            }
            covers(problem, operand, data.map(|data| (data.dtype(), data.len())), OUTPUT)?;
        }
        let exact = |operand: Operand, found| match problem.memory(operand) {
            Some(Memory { elements, .. }) if elements != found => Err(E::Mismatch {
                argument: operand.argument(),
                axis: "elements",
                found,
                allowed: elements,
                of: "the output",
            }),
            _ => Ok(()),
        };
        if let Some(lse) = &self.lse {
            exact(Operand::LogSumExp, lse.len())?;
        }
        if let Some(state) = &self.state {
            exact(Operand::StateReference, state.m.len())?;
            exact(Operand::StateSum, state.s.len())?;
            exact(Operand::StateWeighted, state.w.len())?;
        }
        Ok(())
    }
}
