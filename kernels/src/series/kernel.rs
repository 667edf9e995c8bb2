//! Operands of the kernels of series. Strides and offsets count f32 values.

use crate::primitives::Primitives;
use elsa_core::series::plan::SeriesKernelSpec;

/// Vectors of channels per tile.
pub const VECTORS: usize = 2;

/// Rows of a tile's channels, one per token in processing order. The row of the next token is `stride` values further
/// on, or before for a backward pass.
#[derive(Clone, Copy, Debug)]
pub struct Columns<P> {
    /// The row of the first token.
    pub first: P,
    /// Stride of tokens in values.
    pub stride: isize,
}

impl<T> Columns<*const T> {
    /// Returns the row of token `token`.
    #[inline(always)]
    #[must_use]
    pub fn row(&self, token: usize) -> *const T {
        self.first.wrapping_offset(self.stride * token as isize)
    }
}

impl<T> Columns<*mut T> {
    /// Returns the row of token `token`.
    #[inline(always)]
    #[must_use]
    pub fn row(&self, token: usize) -> *mut T {
        self.first.wrapping_offset(self.stride * token as isize)
    }
}

/// A tile of a recurrence.
///
/// Contract, with `W` for the `width` of the kernel's [`SeriesKernelSpec`]:
/// - `W` values are readable in each of the `tokens` rows of `a` and `b`, and writable in those of `out`, unless its pointer
///   is null.
/// - `state` is readable and writable for `W` values.
/// - Written operands overlap nothing else.
#[derive(Clone, Copy, Debug)]
pub struct RecurrenceTile {
    /// Factors, or their natural logarithms.
    pub a: Columns<*const f32>,
    /// Addends.
    pub b: Columns<*const f32>,
    /// States after each token; null if not requested.
    pub out: Columns<*mut f32>,
    /// Number of tokens.
    pub tokens: usize,
    /// The state before the first token, replaced by the one after the last.
    pub state: *mut f32,
    /// `true` if `a` holds logarithms.
    pub log: bool,
}

/// A coefficient of a selective scan.
#[derive(Clone, Copy, Debug)]
pub enum Coefficients {
    /// Per token, `[token][state]` with rows of `N` values shared by all channels of the tile.
    Token(Columns<*const f32>),
    /// Per channel, `[state][W]`.
    Channel(*const f32),
}

/// A tile of a selective scan.
///
/// Contract, with `W` for the `width` of the kernel's [`SeriesKernelSpec`] and `N` for `states`:
/// - `W` values are readable in each of the `tokens` rows of `u`, `delta`, and `z` unless it is null, and writable in those of
///   `out` unless it is null.
/// - `a` is readable for `N · W` values, `[state][W]`; so are the coefficients, each in its form.
/// - `bias` and `skip` are readable for `W` values each.
/// - `state` is readable and writable for `N · W` values, `[state][W]`.
/// - Written operands overlap nothing else.
#[derive(Clone, Copy, Debug)]
pub struct SelectiveTile {
    /// Inputs.
    pub u: Columns<*const f32>,
    /// Time steps.
    pub delta: Columns<*const f32>,
    /// Gates of the output; null if absent.
    pub z: Columns<*const f32>,
    /// Outputs; null if not requested.
    pub out: Columns<*mut f32>,
    /// Number of tokens.
    pub tokens: usize,
    /// State elements per channel.
    pub states: usize,
    /// Rates.
    pub a: *const f32,
    /// Input coefficients.
    pub b: Coefficients,
    /// Output coefficients.
    pub c: Coefficients,
    /// Addends of the time steps.
    pub bias: *const f32,
    /// Factors of the input in the output; null if the output does not include it.
    pub skip: *const f32,
    /// `true` if time steps are the softplus of the given values.
    pub softplus: bool,
    /// The state before the first token, replaced by the one after the last.
    pub state: *mut f32,
}

/// A tile of a convolution.
///
/// Contract, with `W` for the `width` of the kernel's [`SeriesKernelSpec`]:
/// - `taps` is at least one. `W` values are readable in each of the `tokens` rows of `u` and in `taps − 1` rows before
///   the first, and writable in those of `out`.
/// - `filter` is readable for `taps · W` values, `[tap][W]`, starting with the current token's; `bias` for `W`, unless
///   null.
/// - Written operands overlap nothing else.
#[derive(Clone, Copy, Debug)]
pub struct ConvolutionTile {
    /// Inputs.
    pub u: Columns<*const f32>,
    /// Outputs.
    pub out: Columns<*mut f32>,
    /// Number of tokens.
    pub tokens: usize,
    /// Weights of a filter.
    pub taps: usize,
    /// Weights.
    pub filter: *const f32,
    /// Addends of the sums; null for none.
    pub bias: *const f32,
    /// `true` if the output is the silu of the sum.
    pub silu: bool,
}

/// The kernels of series of one instruction set.
///
/// Each function is unsafe with the contract of its tile, and one clause more: the instruction set is present.
#[derive(Debug)]
pub struct SeriesKernel {
    /// Names and sizes.
    pub spec: SeriesKernelSpec,
    /// Moves and conversions of the instruction set.
    pub primitives: &'static Primitives,
    /// Entry point of `recurrence::run`.
    pub recurrence: unsafe fn(&RecurrenceTile),
    /// Entry point of `recurrence::fold`. The second argument, writable for `width` values, receives the factor of all
    /// tokens.
    pub fold: unsafe fn(&RecurrenceTile, *mut f32),
    /// Entry point of `recurrence::carry`, with factors, addends, and the state, which is updated.
    pub carry: unsafe fn(*const f32, *const f32, *mut f32),
    /// Entry point of `selective::run`.
    pub selective: unsafe fn(&SelectiveTile),
    /// Entry point of `convolution::run`.
    pub convolution: unsafe fn(&ConvolutionTile),
    /// Entry point of `functions::silu_in_place`, with values and their number.
    pub silu: unsafe fn(*mut f32, usize),
    /// `functions::table`, for measuring errors: arguments, their number, and exponentials, softplus, silu.
    pub functions: unsafe fn(*const f32, usize, [*mut f32; 3]),
}

impl SeriesKernel {
    /// Returns `true` if this machine can execute the kernels.
    #[must_use]
    pub fn is_present(&self) -> bool {
        (self.primitives.present)()
    }
}
