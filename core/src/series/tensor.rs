//! Series: tensors of tokens and channels, for the per-channel operators.

use crate::argument::{ArgumentError, enough, same};
use crate::dtype::{DType, ElementsMut};
use crate::memory::Memory;
use crate::view::{Layout, View};

/// A tensor `[batch, tokens, channels]` with any strides, stored as a [`View`] in which heads and dims together are the
/// channels: channel `c` is dim `c mod dim` of head `c / dim`. A tensor `[batch, tokens, channels]` in memory is
/// therefore a view with one head, and `[batch, channels, tokens]` is a view with one head per channel and one dim.
///
/// ```
/// # use elsa_core::series::Series;
/// let series = Series::channels_first("u", [1, 64, 1000])?;
/// assert_eq!((series.channels(), series.tokens()), (64, 1000));
/// # Ok::<(), elsa_core::argument::ArgumentError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Series(View);

impl Series {
    /// Creates the series that `view` describes: it has heads times dims channels.
    #[must_use]
    pub const fn of(view: View) -> Series {
        Series(view)
    }

    /// Creates a dense series in the order `[batch, tokens, channels]`. `argument` names the tensor in errors.
    ///
    /// # Errors
    /// Returns an error if the series is too large to index.
    pub fn tokens_first(
        argument: &'static str,
        [batch, tokens, channels]: [usize; 3],
    ) -> Result<Series, ArgumentError> {
        View::dense(argument, Layout::Bnhd, &[batch, tokens, 1, channels], None).map(Series)
    }

    /// Creates a dense series in the order `[batch, channels, tokens]`, as Mamba uses it. `argument` names the tensor
    /// in errors.
    ///
    /// # Errors
    /// Returns an error if the series is too large to index.
    pub fn channels_first(
        argument: &'static str,
        [batch, channels, tokens]: [usize; 3],
    ) -> Result<Series, ArgumentError> {
        View::dense(argument, Layout::Bhnd, &[batch, channels, tokens, 1], None).map(Series)
    }

    /// Returns the view of the tensor.
    #[must_use]
    pub const fn view(&self) -> &View {
        &self.0
    }

    /// Returns the number of sequences.
    #[must_use]
    pub const fn batch(&self) -> usize {
        self.0.batch()
    }

    /// Returns the number of tokens per sequence.
    #[must_use]
    pub const fn tokens(&self) -> usize {
        self.0.tokens()
    }

    /// Returns the number of channels. In an empty series, the number may exceed `usize::MAX`; the function then
    /// returns `usize::MAX`.
    #[must_use]
    pub const fn channels(&self) -> usize {
        self.0.heads().saturating_mul(self.0.dim())
    }

    /// Returns the number of elements that a buffer must have.
    #[must_use]
    pub fn extent(&self) -> usize {
        self.0.extent()
    }

    /// Returns the index of an element.
    #[inline]
    #[must_use]
    pub const fn at(&self, batch: usize, token: usize, channel: usize) -> usize {
        let dim = self.0.dim();
        self.0.row(batch, channel / dim, token) + channel % dim
    }

    /// Returns the stride from one channel to the next; `None` if the stride is not equal for all channels.
    #[must_use]
    pub const fn channel_stride(&self) -> Option<usize> {
        let (dim, stride) = (self.0.dim(), self.0.strides()[1]);
        match (self.0.heads(), dim) {
            (0 | 1, _) => Some(1),
            (_, 1) => Some(stride),
            _ if stride == dim => Some(1),
            _ => None,
        }
    }

    /// Checks that the series has the given numbers of sequences, tokens and channels. In errors, `of` names the tensor
    /// that determines these sizes.
    pub(super) fn check(
        &self,
        argument: &'static str,
        of: &'static str,
        [batch, tokens, channels]: [usize; 3],
    ) -> Result<(), ArgumentError> {
        same(argument, "batch", self.batch(), batch, of)?;
        same(argument, "tokens", self.tokens(), tokens, of)?;
        same(argument, "channels", self.channels(), channels, of)
    }

    /// Returns the numbers of sequences, tokens and channels.
    pub(super) const fn shape(&self) -> [usize; 3] {
        [self.batch(), self.tokens(), self.channels()]
    }

    /// Checks that no two elements share memory, as an output requires.
    pub(super) fn check_written(&self, argument: &'static str) -> Result<(), ArgumentError> {
        if self.0.may_overlap() { Err(ArgumentError::Overlap { argument }) } else { Ok(()) }
    }
}

/// The output tensors of a call: the output, the states after the last token, or both. The field for the output has the
/// type `E`, and the field for the states, which are f32, has the type `F`. Both types are slices on the host
/// ([`Outputs`]), or addresses in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputTensors<E, F> {
    /// Elements of the output.
    pub out: Option<E>,
    /// States after the last token of a pass. In an in-place problem, they contain the past states before the call.
    pub present_state: Option<F>,
}

/// The output tensors of a call on the host.
pub type Outputs<'a> = OutputTensors<ElementsMut<'a>, &'a mut [f32]>;

impl<E, F> Default for OutputTensors<E, F> {
    fn default() -> OutputTensors<E, F> {
        OutputTensors { out: None, present_state: None }
    }
}

/// Returns the size and layout of the memory of a series whose elements are of type `dtype`.
pub(super) fn memory_of(series: &Series, dtype: DType) -> Option<Memory> {
    Some(Memory { elements: series.extent(), element_size: dtype.size(), view: Some(*series.view()) })
}

/// Returns the size of the memory of a dense tensor with `elements` elements of type `dtype`.
pub(super) fn dense(elements: usize, dtype: DType) -> Option<Memory> {
    Some(Memory { elements, element_size: dtype.size(), view: None })
}

/// Returns the size and layout of the memory of dense f32 states with the shape `shape`.
pub(super) fn states(shape: [usize; 3]) -> Option<Memory> {
    let [a, b, c] = shape;
    let elements = shape.iter().fold(1, |n: usize, size| n.saturating_mul(*size));
    // The problem has checked that the number of bytes does not overflow.
    let view = View::dense("present_state", Layout::Bhnd, &[1, a, b, c], None).ok();
    Some(Memory { elements, element_size: size_of::<f32>(), view })
}

/// Checks that the number of bytes of a dense tensor of shape `sizes` does not overflow.
pub(super) fn countable(argument: &'static str, sizes: [usize; 3]) -> Result<(), ArgumentError> {
    let [a, b, c] = sizes;
    View::dense(argument, Layout::Bhnd, &[1, a, b, c], None).map(|_| ())
}

/// Checks the outputs and the past states of a call. The output must have enough elements for `series`; states, if given,
/// must have `states` values. In an in-place problem, only the present states may be given.
pub(super) fn check_written(
    series: &Series,
    in_place: bool,
    states: usize,
    past: Option<&[f32]>,
    out: Option<&ElementsMut<'_>>,
    present: Option<&[f32]>,
) -> Result<(), ArgumentError> {
    use ArgumentError as E;
    match (out, present) {
        (Some(out), _) => enough("out", out.len(), series.extent())?,
        (None, Some(_)) => {}
        // An output without elements may be absent.
        (None, None) if series.extent() == 0 => {}
        (None, None) => return Err(E::NoOutput { argument: "out" }),
    }
    match (in_place, past, present) {
        (true, Some(_), _) => return Err(E::Conflict { argument: "past_state", other: "in_place" }),
        (true, None, None) if states > 0 => {
            return Err(E::Needs { argument: "in_place", other: "present_state" });
        }
        _ => {}
    }
    past.map_or(Ok(()), |past| enough("past_state", past.len(), states))?;
    present.map_or(Ok(()), |present| enough("present_state", present.len(), states))
}

/// Defines the checked problem of a per-channel operator. `$series` is the field of its `Spec` that determines the
/// numbers of sequences, tokens and channels.
macro_rules! problem {
    ($(#[$documented:meta])* $series:ident) => {
        $(#[$documented])*
        #[derive(Clone, Copy, Debug)]
        pub struct Problem {
            spec: Spec,
        }

        impl Problem {
            /// Returns the specification of the problem.
            #[must_use]
            pub const fn spec(&self) -> &Spec {
                &self.spec
            }

            /// Returns the number of sequences.
            #[must_use]
            pub const fn batch(&self) -> usize {
                self.spec.$series.batch()
            }

            /// Returns the number of tokens per sequence.
            #[must_use]
            pub const fn tokens(&self) -> usize {
                self.spec.$series.tokens()
            }

            /// Returns the number of channels.
            #[must_use]
            pub const fn channels(&self) -> usize {
                self.spec.$series.channels()
            }
        }
    };
}
pub(super) use problem;

/// Implements the lookup of a call's tensors by operand, and the construction of inputs. The lists state the operand of
/// each field of `InputTensors`. The first two lists contain the series and the f32 tensors that every call has. The last
/// two lists contain the series that the problem may lack, and the f32 tensors that the call may omit.
macro_rules! tensors {
    (
        series $($series:ident = $of_series:ident),*;
        values $($values:ident = $of_values:ident),*;
        optional series $($some_series:ident = $of_some_series:ident),*;
        optional values $($some_values:ident = $of_some_values:ident),*;
    ) => {
        $crate::operands::by_operand! {
            InputTensors<E, F>:
            required $($series = $of_series),* $(, $values = $of_values)*;
            optional $($some_values = $of_some_values),* $(, $some_series = $of_some_series)*;
        }

        $crate::operands::by_operand! {
            OutputTensors<E, F>:
            optional Output = out, PresentState = present_state;
        }

        impl<E: Default, F: Default> InputTensors<E, F> {
            /// Builds the inputs from series that `series` returns and f32 tensors that `values` returns.
            pub fn of(
                mut series: impl FnMut(Operand) -> Option<E>,
                mut values: impl FnMut(Operand) -> Option<F>,
            ) -> InputTensors<E, F> {
                InputTensors {
                    $($of_series: series(Operand::$series).unwrap_or_default(),)*
                    $($of_values: values(Operand::$values).unwrap_or_default(),)*
                    $($of_some_series: series(Operand::$some_series),)*
                    $($of_some_values: values(Operand::$some_values),)*
                }
            }
        }

        impl Operand {
            /// Returns `true` if a call may omit the tensor even if the problem has it.
            #[must_use]
            pub const fn is_optional(self) -> bool {
                matches!(self, $(Operand::$some_values |)* Operand::Output | Operand::PresentState)
            }
        }
    };
}
pub(super) use tensors;

/// Returns the token that step `step` of a pass over `tokens` tokens processes.
#[inline]
#[must_use]
pub const fn token_of(step: usize, tokens: usize, reverse: bool) -> usize {
    if reverse { tokens - 1 - step } else { step }
}

/// Returns `true` if a call writes anything: elements of an output `[batch, tokens, channels]`, or states.
///
/// If the result is `false`, the caller skips its loop over the batch, because a problem without elements may have a
/// batch of any size.
#[must_use]
pub(crate) fn writes([batch, tokens, channels]: [usize; 3], output: bool, states: usize) -> bool {
    output && batch > 0 && tokens > 0 && channels > 0 || states > 0
}

/// Magnitude below which a factor or an element of a state may be treated as zero: the smallest normal number.
pub const TINY: f32 = f32::MIN_POSITIVE;

/// Returns zero if the magnitude of `by` is below [`TINY`], and `x` for every other value of `by`, including NaN.
#[inline(always)]
#[must_use]
pub fn kept(by: f32, x: f32) -> f32 {
    if TINY > by.abs() { 0.0 } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_index_the_same_element() {
        let first = Series::tokens_first("u", [2, 5, 3]).unwrap();
        let last = Series::channels_first("u", [2, 3, 5]).unwrap();
        assert_eq!((first.shape(), last.shape()), ([2, 5, 3], [2, 5, 3]));
        assert_eq!((first.at(1, 4, 2), last.at(1, 4, 2)), (15 + 4 * 3 + 2, 15 + 2 * 5 + 4));
        assert_eq!((first.channel_stride(), last.channel_stride()), (Some(1), Some(5)));
        assert_eq!((first.extent(), last.extent()), (30, 30));
        let heads = Series::of(View::new("u", [1, 2, 4, 3], [0, 12, 3, 1]).unwrap());
        assert_eq!((heads.channels(), heads.at(0, 1, 4), heads.channel_stride()), (6, 16, None));
        let shared = Series::of(View::new("a", [1, 6, 4, 1], [0, 0, 1, 1]).unwrap());
        assert_eq!((shared.channels(), shared.at(0, 3, 5), shared.channel_stride()), (6, 3, Some(0)));
        assert!(shared.check_written("a").is_err() && heads.check_written("a").is_ok());
    }

    #[test]
    fn selection_keeps_a_nan() {
        assert_eq!((kept(0.0, f32::NAN), kept(-1e-39, 3.0), kept(TINY, 3.0)), (0.0, 0.0, 3.0));
        assert_eq!(kept(f32::NAN, 3.0), 3.0);
    }
}
