//! Operands of the per-channel kernels. Strides and offsets count f32 values.

use crate::primitives::Primitives;
use elsa_core::series::plan::SeriesKernelSpec;

/// Number of vectors of channels per tile.
pub const VECTORS: usize = 2;

/// Rows of a tile's channels, one per token in processing order. The next token's row is `stride` values further on;
/// the stride is negative if tokens are processed from the last to the first.
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

/// Tile of a recurrence.
///
/// Contract, with `W` for the `width` of the kernel's [`SeriesKernelSpec`]:
/// - `W` values are readable in each of the `tokens` rows of `a` and `b`. `W` values are writable in each row of `out`,
///   unless the pointer of `out` is null.
/// - `state` is readable and writable for `W` values.
/// - Operands that are written overlap no other operand.
#[derive(Clone, Copy, Debug)]
pub struct RecurrenceTile {
    /// Factors `a` of the recurrence `h ← a h + b`, or their natural logarithms.
    pub a: Columns<*const f32>,
    /// Addends `b` of the recurrence.
    pub b: Columns<*const f32>,
    /// State after each token; null if not requested.
    pub out: Columns<*mut f32>,
    /// Number of tokens.
    pub tokens: usize,
    /// State before the first token, replaced by the state after the last.
    pub state: *mut f32,
    /// `true` if `a` contains logarithms.
    pub log: bool,
}

/// Input or output coefficients of a selective scan.
#[derive(Clone, Copy, Debug)]
pub enum Coefficients {
    /// Coefficients per token, `[token][state]`: rows of `N` values, which all channels of the tile use.
    Token(Columns<*const f32>),
    /// Coefficients per channel, `[state][W]`.
    Channel(*const f32),
}

/// Tile of a selective scan.
///
/// Contract, with `W` for the `width` of the kernel's [`SeriesKernelSpec`] and `N` for `states`:
/// - `W` values are readable in each of the `tokens` rows of `u` and `delta`, and also of `z` unless `z` is null. `W`
///   values are writable in each row of `out`, unless `out` is null.
/// - `a` is readable for `N · W` values, `[state][W]`. The coefficients are readable as [`Coefficients`] says.
/// - `bias` is readable for `W` values. `skip` is null or readable for `W` values.
/// - `state` is readable and writable for `N · W` values, `[state][W]`.
/// - Operands that are written overlap no other operand.
#[derive(Clone, Copy, Debug)]
pub struct SelectiveTile {
    /// Inputs of the scan.
    pub u: Columns<*const f32>,
    /// Time steps.
    pub delta: Columns<*const f32>,
    /// Gates of the output; null if absent.
    pub z: Columns<*const f32>,
    /// Outputs; null if not requested.
    pub out: Columns<*mut f32>,
    /// Number of tokens.
    pub tokens: usize,
    /// Number of state elements per channel.
    pub states: usize,
    /// Decay rates.
    pub a: *const f32,
    /// Input coefficients.
    pub b: Coefficients,
    /// Output coefficients.
    pub c: Coefficients,
    /// Biases added to the time steps.
    pub bias: *const f32,
    /// Factors `d` of the terms `d u` that are added to the outputs; null if there are no such terms.
    pub skip: *const f32,
    /// `true` if the time step in effect is the softplus of the value in `delta` plus its bias.
    pub softplus: bool,
    /// State before the first token, replaced by the state after the last.
    pub state: *mut f32,
}

/// Tile of a convolution.
///
/// Contract, with `W` for the `width` of the kernel's [`SeriesKernelSpec`]:
/// - `taps` is at least one. `W` values are readable in each of the `tokens` rows of `u`, and in the `taps − 1` rows
///   before the first row. `W` values are writable in each of the `tokens` rows of `out`.
/// - `filter` is readable for `taps · W` values, `[tap][W]`, starting with the weight of the current token. `bias` is
///   null or readable for `W` values.
/// - Operands that are written overlap no other operand.
#[derive(Clone, Copy, Debug)]
pub struct ConvolutionTile {
    /// Inputs of the convolution.
    pub u: Columns<*const f32>,
    /// Outputs of the convolution.
    pub out: Columns<*mut f32>,
    /// Number of tokens.
    pub tokens: usize,
    /// Number of weights per filter.
    pub taps: usize,
    /// Weights of the filters.
    pub filter: *const f32,
    /// Biases added to the sums; null for none.
    pub bias: *const f32,
    /// `true` if the output is the silu of the sum.
    pub silu: bool,
}

/// Per-channel kernels of one instruction set.
///
/// Each function has the safety clauses of the generic function that its comment names, and one more clause: the
/// processor has the instruction set.
#[derive(Debug)]
pub struct SeriesKernel {
    /// Names, sizes and error constants.
    pub spec: SeriesKernelSpec,
    /// Functions that move and convert rows with the same instruction set.
    pub primitives: &'static Primitives,
    /// Entry point of `recurrence::run`.
    pub recurrence: unsafe fn(&RecurrenceTile),
    /// Entry point of `recurrence::fold`. The second argument, writable for `width` values, receives the product of the
    /// factors of all tokens.
    pub fold: unsafe fn(&RecurrenceTile, *mut f32),
    /// Entry point of `recurrence::carry`; arguments: factors, addends, and the state, which is updated.
    pub carry: unsafe fn(*const f32, *const f32, *mut f32),
    /// Entry point of `selective::run`.
    pub selective: unsafe fn(&SelectiveTile),
    /// Entry point of `convolution::run`.
    pub convolution: unsafe fn(&ConvolutionTile),
    /// Entry point of `functions::silu_in_place`; arguments: values and their number.
    pub silu: unsafe fn(*mut f32, usize),
    /// Entry point of `functions::table`, for measuring errors. Arguments: values, their number, and where to write
    /// their exponentials, softplus and silu.
    pub functions: unsafe fn(*const f32, usize, [*mut f32; 3]),
}

impl SeriesKernel {
    /// Returns `true` if this machine can execute the kernels.
    #[must_use]
    pub fn is_present(&self) -> bool {
        (self.primitives.present)()
    }
}
