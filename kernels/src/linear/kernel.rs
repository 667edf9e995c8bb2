//! The operands of a micro-kernel of linear attention and its table of entry points.
//!
//! Everything here is registers, strips and pointers: a kernel never sees a tensor. Sizes, strides and offsets count f32
//! values; strides are signed, so that tokens can be processed in reverse order.
//!
//! A caller walks over the tokens of a head in segments. It splits the tokens by position into blocks. Within a block
//! it repeats [`Kernel::prepare`], which returns the number of tokens of the segment, followed by [`Kernel::recur`] for
//! every strip of the state, until no token is left.

use crate::lanes::MAX_LANES;
use crate::primitives::Primitives;
use elsa_core::linear::Gates;
use elsa_core::linear::plan::{KernelSpec, LONG_PASS};

/// The tokens of one head in memory, from the first one that no segment has taken.
///
/// Contract, with `dim` a multiple of four, and `rows` at most that:
/// - `queries` is readable for `group` rows of `dim` values of each of `tokens` tokens: `query_stride` from one token
///   to the next, `group_stride` from one row of a token to the next. It may be null; `group` is then zero.
/// - `keys` is readable for `tokens` rows of `dim` values, `key_stride` apart.
/// - `gates` is readable for one value of each token with [`Gates::PerHead`], for `dim` values with [`Gates::PerDim`],
///   `gate_stride` apart.
/// - `betas` is null, or readable for one value of each token, `beta_stride` apart.
/// - `tokens` and `pass` are at least one.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Largest number of tokens in a segment.
    pub tokens: usize,
    /// Size of queries and keys, a multiple of four. Shorter rows are padded with zeros.
    pub dim: usize,
    /// Size of queries and keys before padding: the state rows that tokens write. The other rows stay zero.
    pub rows: usize,
    /// Queries; null without outputs.
    pub queries: *const f32,
    /// Stride of tokens in the queries.
    pub query_stride: isize,
    /// Query rows per token, which all read the same state.
    pub group: usize,
    /// Stride of a token's query rows.
    pub group_stride: isize,
    /// Keys.
    pub keys: *const f32,
    /// Stride of keys.
    pub key_stride: isize,
    /// Natural logarithms of the gates.
    pub gates: *const f32,
    /// Stride of tokens in the gates.
    pub gate_stride: isize,
    /// Scope of a gate; with [`Gates::None`] the pointer is not used.
    pub per: Gates,
    /// Rates of the delta rule; null for rules without rates.
    pub betas: *const f32,
    /// Stride of rates.
    pub beta_stride: isize,
    /// Factor of every output.
    pub scale: f32,
    /// Number of tokens in one pass over the state: few in the recurrence; more than that form a chunk. The tokens of a
    /// pass interact through the products `Q Kᵀ` and `K Kᵀ`.
    pub pass: usize,
}

/// Factors of the rows of a state, each `high · (1 + rest)`, so that a factor repeated for thousands of tokens does not
/// repeat the same rounding error. A `high` of [`CLEARS`] clears its rows by selection. A negative `rest` marks a
/// factor beyond the range of f32 numbers, the square of `high · (1 − rest)`; rows are multiplied by that root twice.
#[derive(Clone, Copy, Debug)]
pub struct Factors {
    /// The largest f32 numbers not above the factors: one for all rows, or one per row.
    pub high: *const f32,
    /// The values `rest` of the factors, laid out like `high`; never zero.
    pub rest: *const f32,
    /// `true` if each row has its own factor.
    pub per_dim: bool,
}

/// A run of tokens of a head between two multiplications of the state, as [`Kernel::prepare`] describes it.
///
/// Inside a segment the state is held as `S' = S / c`, where `c` is the product of the gates so far, so that tokens do
/// not multiply it: a token writes `k / c` and reads `c q`. Gates per head apply this through the scalars `down` and
/// `up`, gates per dim through the rows. A segment ends before `c` leaves `2^-40 ..= 2^40`, so nothing overflows; a
/// single gate beyond that range multiplies the state at the start of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Number of tokens, at least one.
    pub tokens: usize,
    /// Size of queries and keys.
    pub dim: usize,
    /// Size of queries and keys before padding. State rows past it are zero after tokens have passed.
    pub rows: usize,
    /// Query rows per token.
    pub group: usize,
    /// Number of tokens in one pass over the state.
    pub pass: usize,
    /// Queries.
    pub queries: *const f32,
    /// Stride of tokens in the queries.
    pub query_stride: isize,
    /// Stride of a token's query rows.
    pub group_stride: isize,
    /// Keys that read the state.
    pub readers: *const f32,
    /// Stride of reading keys.
    pub reader_stride: isize,
    /// Keys that write the state.
    pub writers: *const f32,
    /// Stride of writing keys.
    pub writer_stride: isize,
    /// Factors of the results that tokens read, `[tokens]`.
    pub up: *const f32,
    /// Factors of the values that tokens write, `[tokens]`.
    pub down: *const f32,
    /// Rates, `[tokens]`; null for rules without rates.
    pub betas: *const f32,
    /// Queries times writing keys of the same pass, `[group][tokens][row]`, followed by reading keys times writing
    /// keys, `[tokens][row]`. Only products with earlier tokens are used, and those of a query with its own token. Null
    /// if tokens do not interact.
    pub products: *const f32,
    /// Values per row of products.
    pub row: usize,
    /// `true` if products are summed in f64, and the sum of what many tokens write is f64.
    pub wide: bool,
    /// Factors of the state at the start of the segment.
    pub enter: Option<Factors>,
    /// Factors of the state at the end of the segment.
    pub exit: Option<Factors>,
}

impl Segment {
    /// A segment without tokens, which [`Kernel::prepare`] overwrites.
    pub const EMPTY: Segment = Segment {
        tokens: 0,
        dim: 0,
        rows: 0,
        group: 0,
        pass: 0,
        queries: core::ptr::null(),
        query_stride: 0,
        group_stride: 0,
        readers: core::ptr::null(),
        reader_stride: 0,
        writers: core::ptr::null(),
        writer_stride: 0,
        up: core::ptr::null(),
        down: core::ptr::null(),
        betas: core::ptr::null(),
        products: core::ptr::null(),
        row: 0,
        wide: false,
        enter: None,
        exit: None,
    };
}

/// A strip of value columns of one state, and its working memory. The strip is packed, or part of the state in place,
/// `stride` columns wide; the results have the same bits.
///
/// Contract, for a segment of `dim` rows and passes of `pass` tokens:
/// - `width` is [`KernelSpec::lanes`], [`KernelSpec::columns`], or for the delta rules [`KernelSpec::delta_columns`].
/// - `state` is writable for `dim` rows of `width` values, `stride` apart.
/// - `from` is `state`, with its stride, and then that is readable; or readable for as many rows, `from_stride` apart;
///   or null, which stands for zeros. Rows past [`Segment::rows`] are zero.
/// - `room` is writable for [`strip_room`] values.
/// - None of them overlaps another, or what the segment and the columns point to.
#[derive(Clone, Copy, Debug)]
pub struct Strip {
    /// The columns of the state.
    pub state: *mut f32,
    /// Columns, padded to whole vectors.
    pub width: usize,
    /// Stride of rows, at least the width.
    pub stride: usize,
    /// The columns of the state before the segment.
    pub from: *const f32,
    /// Stride of its rows.
    pub from_stride: usize,
    /// Buffer for a pass.
    pub room: *mut f32,
}

/// Values and outputs of a strip, from the first token of a segment.
///
/// Contract, for a segment of `tokens` tokens and a strip of `width` columns:
/// - `values` is readable for `tokens` rows of `width` values, `value_stride` apart, or null, which stands for zeros.
/// - `outputs` is null, or writable for `group` rows of `width` values of each token: `output_stride` from one token to the
///   next, `group_stride` from one row of a token to the next. With `add` it is readable too.
/// - Where the outputs are not null, the segment was prepared with queries.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// Values.
    pub values: *const f32,
    /// Stride of values.
    pub value_stride: isize,
    /// Outputs; null if only the state is needed.
    pub outputs: *mut f32,
    /// Stride of tokens in the outputs.
    pub output_stride: isize,
    /// Stride of a token's output rows.
    pub group_stride: isize,
    /// `true` to add outputs to those in memory.
    pub add: bool,
    /// `true` if the state after the segment is needed. Otherwise the contents of the strip are unspecified.
    pub keep: bool,
    /// Rows of a later segment to prefetch.
    pub ahead: Ahead,
}

/// Columns of queries and keys that a later segment reads. They are prefetched token by token while the tokens of this
/// segment pass, so that no segment starts by waiting. They need not be valid memory. Null pointers prefetch nothing.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    /// Queries.
    pub queries: *const f32,
    /// Stride of queries.
    pub query_stride: isize,
    /// Keys.
    pub keys: *const f32,
    /// Stride of keys.
    pub key_stride: isize,
}

impl Ahead {
    /// Prefetches nothing.
    pub const NOTHING: Ahead =
        Ahead { queries: core::ptr::null(), query_stride: 0, keys: core::ptr::null(), key_stride: 0 };
}

/// A product with a constant state: `Y = scale · X S`.
///
/// Contract, for a packed strip of `dim` rows of `width` values at `state`, of a width of [`Strip`], `dim` a multiple of four:
/// - `x` is readable for `rows` rows of `dim` values, `x_stride` apart.
/// - `y` is writable for `rows` rows of `width` values, `y_stride` apart, and readable with `add`. It does not overlap
///   the other operands.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The state.
    pub state: *const f32,
    /// Columns of the state, padded to whole vectors.
    pub width: usize,
    /// Rows of the state.
    pub dim: usize,
    /// Rows that read it.
    pub x: *const f32,
    /// Stride of the reading rows.
    pub x_stride: isize,
    /// Number of reading rows.
    pub rows: usize,
    /// Factor of the results.
    pub scale: f32,
    /// Results.
    pub y: *mut f32,
    /// Stride of the results.
    pub y_stride: isize,
    /// `true` to add the results to those in memory.
    pub add: bool,
}

/// [`super::factor::multiply`] of an instruction set.
pub type Multiply = unsafe fn(&Factors, (*const f32, usize), (*mut f32, usize), usize, usize);

/// A micro-kernel of linear attention.
///
/// Each function is unsafe with the clauses of the function that it names and of its arguments, and one more: the
/// kernel's instruction set is present.
#[derive(Debug)]
pub struct Kernel {
    /// Name, strip, error constants.
    pub spec: KernelSpec,
    /// Presence, moves and conversions of its instruction set.
    pub primitives: &'static Primitives,
    /// Entry point of `prepare::prepare`.
    pub prepare: unsafe fn(&Head, *mut f32, &mut Segment),
    /// Entry point of `recur::recur`.
    pub recur: unsafe fn(&Strip, &Segment, &Columns),
    /// Entry point of `read::read`.
    pub read: unsafe fn(&Reading),
    /// Entry point of `factor::multiply`.
    pub multiply: Multiply,
}

impl Kernel {
    /// Returns `true` if this machine has the kernel's instruction set.
    #[must_use]
    pub fn is_present(&self) -> bool {
        (self.primitives.present)()
    }
}

/// Returns the size of the room of [`Kernel::prepare`] in values, for a head of at most `tokens` tokens. The room
/// belongs to the segment until the next call.
#[must_use]
pub const fn head_room(
    tokens: usize,
    dim: usize,
    group: usize,
    per: Gates,
    delta: bool,
    pass: usize,
) -> usize {
    // Scalars of a token; factors of both ends.
    let mut size = tokens.saturating_mul(3).saturating_add(4);
    if matches!(per, Gates::PerDim) {
        let rows = group.saturating_add(1).saturating_add(delta as usize);
        size = size.saturating_add(rows.saturating_mul(tokens).saturating_mul(dim));
        size = size.saturating_add(dim.saturating_mul(4));
    }
    if has_products(group, delta) {
        let rows = group.saturating_add(delta as usize).saturating_mul(tokens);
        let columns = if pass < FEW { 0 } else { dim };
        size = size.saturating_add(rows.saturating_add(columns).saturating_mul(product_row(pass)));
        if wide(per, delta, pass) {
            size = size.saturating_add(dim.saturating_mul(ROWS_TOGETHER * 2));
        }
    }
    size
}

/// Returns the size of the room of a [`Strip`] in values, for passes of `pass` tokens.
#[must_use]
pub const fn strip_room(pass: usize, width: usize) -> usize {
    pass.saturating_mul(width)
}

/// Returns `true` if the tokens of a pass interact through products of queries and keys.
pub(super) const fn has_products(group: usize, delta: bool) -> bool {
    delta || group > 0
}

/// Returns the values in a row of products for passes of `pass` tokens: whole quads for few tokens, otherwise whole
/// vectors.
pub(super) const fn product_row(pass: usize) -> usize {
    pass.next_multiple_of(if pass < FEW { 4 } else { MAX_LANES })
}

/// Returns `true` if passes of `pass` tokens have f64 sums: long ones under the delta rule without gates. There, only
/// later writes cancel earlier ones, so sums over all tokens have terms that cancel.
pub(super) const fn wide(per: Gates, delta: bool, pass: usize) -> bool {
    delta && matches!(per, Gates::None) && pass > LONG_PASS
}

/// The factor of a gate of `−∞`: minus zero, which no exponential produces. Plus zero belongs to a gate whose
/// exponential underflows, and multiplies.
pub const CLEARS: f32 = -0.0;

/// Number of tokens from which writing keys are in the lanes when they are multiplied with other rows.
pub(super) const FEW: usize = 12;

/// Rows that are multiplied with the same keys one after another if products are summed in f64.
pub(super) const ROWS_TOGETHER: usize = 32;

/// Number of tokens in one pass over the state under the delta rules.
pub const MOST_TOGETHER: usize = 4;
