//! The problem and the data of a selective scan.

use crate::argument::{ArgumentError, INPUT, enough, paired, same};
use crate::dtype::{DType, Elements};
use crate::memory::Memory;
use crate::operands::operands;
use crate::series::tensor::{
    OutputTensors, Outputs, Series, check_written, countable, dense, memory_of, problem, states, tensors,
};
use crate::setters;

operands! {
    /// A tensor that a selective scan reads or writes. Parameters are dense f32.
    read {
        /// Inputs, `[batch, tokens, D]`.
        Signal = "u",
        /// Time steps, `[batch, tokens, D]`.
        Steps = "delta",
        /// Rates, `[D, N]`.
        Rates = "a",
        /// Input coefficients `B`, with the shape that [`Spec::b`] describes.
        IntoState = "b",
        /// Output coefficients `C`, with the shape that [`Spec::c`] describes.
        OutOfState = "c",
        /// Skip coefficients `d`, `[D]`: `d u` is added to the output.
        Skip = "d",
        /// Gates of the output, `[batch, tokens, D]`.
        Gate = "z",
        /// Bias added to the time steps, `[D]`.
        StepBias = "delta_bias",
        /// States before the first token, `[batch, D, N]`.
        PastState = "past_state",
    }
    written {
        /// The output, `[batch, tokens, D]`.
        Output = "out",
        /// States after the last token, f32 `[batch, D, N]`.
        PresentState = "present_state",
    }
}

/// Largest number of values in a channel's state.
pub const MAX_STATES: usize = 256;

/// Shape of the coefficients `B` or `C`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coefficient {
    /// Per-token coefficients: a series of `groups · N` channels, `N` for each group of neighbouring channels of `u`. A
    /// tensor `[batch, groups, N, tokens]` in memory is therefore [`Series::channels_first`] of
    /// `[batch, groups · N, tokens]`, and `[batch, tokens, groups, N]` is [`Series::tokens_first`] of
    /// `[batch, tokens, groups · N]`.
    Token(Series),
    /// Per-channel coefficients, dense `[D, N]`, which all tokens share.
    Channel,
}

/// The unchecked description of a selective scan. Each series may have its own element type.
///
/// ```
/// # use elsa_core::{argument::ArgumentError, series::{Series, selective::{Coefficient, Spec}}};
/// let u = Series::channels_first("u", [1, 64, 1000])?;
/// let b = Coefficient::Token(Series::channels_first("b", [1, 16, 1000])?);
/// let problem = Spec::new(u, u, 16, b, b, u).z(u).softplus(true).check()?;
/// # Ok::<(), ArgumentError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Spec {
    /// Inputs, `[batch, tokens, D]`.
    pub u: Series,
    /// Time steps, `[batch, tokens, D]`.
    pub delta: Series,
    /// Number of values in a channel's state, `N`.
    pub states: usize,
    /// Input coefficients `B`.
    pub b: Coefficient,
    /// Output coefficients `C`.
    pub c: Coefficient,
    /// Gates of the output, `[batch, tokens, D]`.
    pub z: Option<Series>,
    /// The output, `[batch, tokens, D]`.
    pub out: Series,
    /// `true` if `δ` is the softplus of the sum of time step and bias, `false` if it is the sum itself.
    pub softplus: bool,
    /// `true` if tokens are processed from last to first. The past state is then the state before the last token.
    pub reverse: bool,
    /// `true` if past and present states share memory; a call then passes only the present state.
    pub in_place: bool,
}

setters! {
    Spec:
    u: Series, delta: Series, states: usize, b: Coefficient, c: Coefficient, out: Series, softplus: bool,
    reverse: bool, in_place: bool;
    optional z: Series,
}

impl Spec {
    /// Describes the scan of `u` from the first token to the last, with time steps `delta`, coefficients `b` and `c`, and
    /// `states` values in the state of each channel. The results are written to `out`.
    #[must_use]
    pub const fn new(
        u: Series,
        delta: Series,
        states: usize,
        b: Coefficient,
        c: Coefficient,
        out: Series,
    ) -> Spec {
        Spec { u, delta, states, b, c, z: None, out, softplus: false, reverse: false, in_place: false }
    }

    /// Checks the shapes and returns the problem.
    ///
    /// # Errors
    /// Returns an error for the first fault found.
    pub fn check(self) -> Result<Problem, ArgumentError> {
        use ArgumentError as E;
        let shape = self.u.shape();
        self.delta.check("delta", "u", shape)?;
        if let Some(z) = &self.z {
            z.check("z", "u", shape)?;
        }
        self.out.check("out", "u", shape)?;
        self.out.check_written("out")?;
        if !(1..=MAX_STATES).contains(&self.states) {
            return Err(E::Count { argument: "states", found: self.states, min: 1, max: MAX_STATES });
        }
        for (argument, coefficient) in [("b", &self.b), ("c", &self.c)] {
            let Coefficient::Token(series) = coefficient else { continue };
            same(argument, "batch", series.batch(), shape[0], "u")?;
            same(argument, "tokens", series.tokens(), shape[1], "u")?;
            let (found, allowed) = (series.channels(), self.states);
            if found == 0 {
                return Err(E::Zero { argument, axis: "channels" });
            }
            if !found.is_multiple_of(allowed) {
                return Err(E::Multiple { argument, axis: "channels", found, allowed, of: "a" });
            }
            let groups = found / allowed;
            if !shape[2].is_multiple_of(groups) {
                let (argument, axis) = ("u", "channels");
                return Err(E::Multiple {
                    argument,
                    axis,
                    found: shape[2],
                    allowed: groups,
                    of: "b or c in groups",
                });
            }
        }
        countable("a", [1, shape[2], self.states])?;
        countable("present_state", [shape[0], shape[2], self.states])?;
        Ok(Problem { spec: self })
    }
}

problem! {
    /// A checked selective scan, created by [`Spec::check`].
    u
}

impl Problem {
    /// Returns the number of values in a channel's state, `N`.
    #[must_use]
    pub const fn states(&self) -> usize {
        self.spec.states
    }

    /// Returns the number of neighbouring channels that share a per-token coefficient. Returns the number of all channels
    /// for per-channel coefficients, because per-channel coefficients do not limit the number.
    #[must_use]
    pub const fn group(&self, coefficient: &Coefficient) -> usize {
        match coefficient {
            Coefficient::Token(series) => self.channels() / (series.channels() / self.states()),
            Coefficient::Channel => self.channels(),
        }
    }

    /// Returns the number of neighbouring channels that share all per-token coefficients: the greatest common divisor
    /// of the group sizes of `B` and `C`.
    #[must_use]
    pub const fn tile_group(&self) -> usize {
        let (mut a, mut b) = (self.group(&self.spec.b), self.group(&self.spec.c));
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    }

    /// Returns the index, within the tensor of `coefficient`, of the coefficient for value `n` of a channel's state.
    #[must_use]
    pub const fn coefficient(
        &self,
        coefficient: &Coefficient,
        [batch, token, channel]: [usize; 3],
        n: usize,
    ) -> usize {
        match coefficient {
            Coefficient::Token(series) => {
                series.at(batch, token, channel / self.group(coefficient) * self.states() + n)
            }
            Coefficient::Channel => channel * self.states() + n,
        }
    }

    /// Returns the number of values in the past and in the present states, `[batch, D, N]`.
    #[must_use]
    pub const fn state_values(&self) -> usize {
        self.batch() * self.channels() * self.states()
    }
}

/// The input tensors of a call. Parameters are dense f32. Fields for series and for the coefficients `b` and `c` have
/// the type `E`, and the other fields, which are f32, have the type `F`. Both types are slices on the host
/// ([`Inputs`]), or addresses in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputTensors<E, F> {
    /// Inputs, with the layout [`Spec::u`].
    pub u: E,
    /// Time steps, with the layout [`Spec::delta`].
    pub delta: E,
    /// The rates `A`, `[D, N]`; negative in a stable model.
    pub a: F,
    /// Input coefficients, with the shape and layout of [`Spec::b`].
    pub b: E,
    /// Output coefficients, with the shape and layout of [`Spec::c`].
    pub c: E,
    /// Skip coefficients `d`, `[D]`: `d u` is added to the output; zeros if absent.
    pub d: Option<F>,
    /// Gates of the output, with the layout [`Spec::z`].
    pub z: Option<E>,
    /// Bias added to the time steps, `[D]`; zeros if absent.
    pub delta_bias: Option<F>,
    /// States before the first token of a pass, `[batch, D, N]`; zeros if absent. The tensor must be absent if past and
    /// present states share memory.
    pub past_state: Option<F>,
}

/// The input tensors of a call on the host.
pub type Inputs<'a> = InputTensors<Elements<'a>, &'a [f32]>;

tensors! {
    series Signal = u, Steps = delta, IntoState = b, OutOfState = c;
    values Rates = a;
    optional series Gate = z;
    optional values Skip = d, StepBias = delta_bias, PastState = past_state;
}

impl Problem {
    /// Returns the size and layout of an operand's memory. Returns `None` if the problem does not have the operand, and for
    /// a past state that shares the memory of the present state. `dtype` is the element type of a series; operands that are
    /// always f32 ignore it.
    #[must_use]
    pub fn memory(&self, operand: Operand, dtype: DType) -> Option<Memory> {
        let s = &self.spec;
        let parameters = self.channels().saturating_mul(self.states());
        let coefficient = |of: &Coefficient| match of {
            Coefficient::Token(series) => memory_of(series, dtype),
            Coefficient::Channel => dense(parameters, dtype),
        };
        match operand {
            Operand::Signal => memory_of(&s.u, dtype),
            Operand::Steps => memory_of(&s.delta, dtype),
            Operand::Rates => dense(parameters, DType::F32),
            Operand::IntoState => coefficient(&s.b),
            Operand::OutOfState => coefficient(&s.c),
            Operand::Skip | Operand::StepBias => dense(self.channels(), DType::F32),
            Operand::Gate => memory_of(s.z.as_ref()?, dtype),
            Operand::Output => memory_of(&s.out, dtype),
            Operand::PastState if s.in_place => None,
            Operand::PastState | Operand::PresentState => {
                states([self.batch(), self.channels(), self.states()])
            }
        }
    }

    /// Checks the data of a call: the lengths of buffers, and which tensors are given.
    ///
    /// # Errors
    /// Returns an error for the first mismatch.
    pub fn check_data(&self, inputs: &Inputs<'_>, outputs: &Outputs<'_>) -> Result<(), ArgumentError> {
        let (s, parameters) = (&self.spec, self.channels() * self.states());
        enough("u", inputs.u.len(), s.u.extent())?;
        enough("delta", inputs.delta.len(), s.delta.extent())?;
        enough("a", inputs.a.len(), parameters)?;
        for (argument, coefficient, found) in [("b", &s.b, inputs.b.len()), ("c", &s.c, inputs.c.len())] {
            let needed = match coefficient {
                Coefficient::Token(series) => series.extent(),
                Coefficient::Channel => parameters,
            };
            enough(argument, found, needed)?;
        }
        for (argument, vector) in [("d", inputs.d), ("delta_bias", inputs.delta_bias)] {
            vector.map_or(Ok(()), |x| enough(argument, x.len(), self.channels()))?;
        }
        if let Some((view, z)) = paired("z", s.z, inputs.z, INPUT)? {
            enough("z", z.len(), view.extent())?;
        }
        let (past, present) = (inputs.past_state, outputs.present_state.as_deref());
        check_written(&s.out, s.in_place, self.state_values(), past, outputs.out.as_ref(), present)
    }
}
