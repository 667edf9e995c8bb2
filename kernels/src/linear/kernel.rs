//! What a micro-kernel of linear attention works on, and the table of entry points that it is.
//!
//! Everything here is registers, strips and pointers: a kernel never sees a tensor. Sizes, strides and offsets count f32
//! values; strides are signed, so that tokens may pass in the reverse order.
//!
//! A caller walks over the tokens of a head in segments. It cuts the tokens by position into blocks, and for each block
//! repeats [`Kernel::prepare`], which says how many tokens the segment has, and then, for every strip of the state,
//! [`Kernel::recur`], until no token is left.

use crate::lanes::MAX_LANES;
use crate::primitives::Primitives;
use elsa_core::linear::Gates;
use elsa_core::linear::plan::{KernelSpec, LONG_PASS};

/// The tokens of one head as they are in memory, from the first that no segment has taken.
///
/// Contract, with `dim` a multiple of four, and `rows` at most that:
/// - `queries` is readable for `group` rows of `dim` values of each of `tokens` tokens: `query_stride` from one token to the
///   next, `group_stride` from one row of a token to the next. It may be null, and then `group` is zero.
/// - `keys` is readable for `tokens` rows of `dim` values, `key_stride` apart.
/// - `gates` is readable for one value of each token with [`Gates::PerHead`], for `dim` values with [`Gates::PerDim`],
///   `gate_stride` apart.
/// - `betas` is null, or readable for one value of each token, `beta_stride` apart.
/// - `tokens` and `pass` are at least one.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Tokens that a segment may have at most.
    pub tokens: usize,
    /// Size of queries and keys, a multiple of four. Rows that are shorter are padded with zeros.
    pub dim: usize,
    /// Their size before that: the rows of a state that tokens write. The rest stay zero, whatever passes.
    pub rows: usize,
    /// Queries, null where there are no outputs.
    pub queries: *const f32,
    /// From one token to the next.
    pub query_stride: isize,
    /// Query rows of a token, that all read the same state.
    pub group: usize,
    /// From one query row of a token to the next.
    pub group_stride: isize,
    /// Keys.
    pub keys: *const f32,
    /// From one token to the next.
    pub key_stride: isize,
    /// Natural logarithms of the gates.
    pub gates: *const f32,
    /// From one token to the next.
    pub gate_stride: isize,
    /// What a gate multiplies; with [`Gates::None`] the pointer is not used.
    pub per: Gates,
    /// Rates of the delta rule; null for the rules without.
    pub betas: *const f32,
    /// From one token to the next.
    pub beta_stride: isize,
    /// What multiplies every output.
    pub scale: f32,
    /// Tokens that pass the state together: few in the recurrence; with more they are a chunk. They meet each other
    /// in products `Q Kᵀ` and `K Kᵀ`.
    pub pass: usize,
}

/// Factors of the rows of a state, each `high · (1 + rest)`, so that factors which repeat for thousands of tokens are not
/// off by the same rounding each time. A `high` of [`CLEARS`] clears its rows by selection. A `rest` below zero tells a factor
/// beyond the range of f32 numbers, the square of `high · (1 − rest)`: the rows take that twice.
#[derive(Clone, Copy, Debug)]
pub struct Factors {
    /// The f32 numbers below the factors or equal; one for all rows, or one for each.
    pub high: *const f32,
    /// The rest, other than zero.
    pub rest: *const f32,
    /// Whether each row has its own.
    pub per_dim: bool,
}

/// Tokens of a head between two places where the state is multiplied: what [`Kernel::prepare`] makes of them.
///
/// Inside a segment the state is held as `S' = S / c` with `c` the product of the gates so far, so that a token does not
/// multiply it: it writes `k / c` and reads `c q`. Where a gate belongs to a head, the scalars `down` and `up` do this;
/// where to a dim, the rows. A segment ends before `c` leaves `2^-40 ..= 2^40`, so nothing overflows; a single gate beyond
/// that multiplies the state as the segment begins.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Its tokens, at least one.
    pub tokens: usize,
    /// Size of queries and keys.
    pub dim: usize,
    /// Their size before they were padded. Rows of a state past it are zero when tokens have passed.
    pub rows: usize,
    /// Query rows of a token.
    pub group: usize,
    /// Tokens that pass the state together.
    pub pass: usize,
    /// Queries.
    pub queries: *const f32,
    /// From one token to the next.
    pub query_stride: isize,
    /// From one query row of a token to the next.
    pub group_stride: isize,
    /// Keys that read the state.
    pub readers: *const f32,
    /// From one to the next.
    pub reader_stride: isize,
    /// Keys that write the state.
    pub writers: *const f32,
    /// From one to the next.
    pub writer_stride: isize,
    /// What multiplies what a token reads, `[tokens]`.
    pub up: *const f32,
    /// What multiplies the values that a token writes, `[tokens]`.
    pub down: *const f32,
    /// Rates, `[tokens]`; null for the rules without.
    pub betas: *const f32,
    /// Queries times writing keys of the same pass, `[group][tokens][row]`, and then reading keys times writing keys,
    /// `[tokens][row]`; only those with tokens that pass earlier, or for queries at once, are used. Null where tokens do not meet.
    pub products: *const f32,
    /// Values of such a row.
    pub row: usize,
    /// Whether products are sums in f64, and what many tokens write is added up in f64.
    pub wide: bool,
    /// What multiplies the state as the segment begins.
    pub enter: Option<Factors>,
    /// What multiplies it as the segment ends.
    pub exit: Option<Factors>,
}

impl Segment {
    /// A segment without tokens, for [`Kernel::prepare`] to write.
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

/// A strip of value columns of one state, and the memory that it is worked on in. The strip is packed, or lies in the
/// state as it is, `stride` columns wide; no bit depends on that.
///
/// Contract, for a segment of `dim` rows and passes of `pass` tokens:
/// - `width` is [`KernelSpec::lanes`], [`KernelSpec::columns`], or for the delta rules [`KernelSpec::delta_columns`].
/// - `state` is writable for `dim` rows of `width` values, `stride` apart.
/// - `from` is `state`, with its stride, and then that is readable; or readable for as many rows, `from_stride` apart; or null,
///   which stands for zeros. Rows past [`Segment::rows`] are zero.
/// - `room` is writable for [`strip_room`] values.
/// - None of them overlaps another, or what the segment and the columns point to.
#[derive(Clone, Copy, Debug)]
pub struct Strip {
    /// The columns of the state.
    pub state: *mut f32,
    /// Columns, padded to whole vectors.
    pub width: usize,
    /// From one row to the next, at least the width.
    pub stride: usize,
    /// The columns of the state before the segment.
    pub from: *const f32,
    /// From one row of it to the next.
    pub from_stride: usize,
    /// Room for a pass.
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
    /// From one token to the next.
    pub value_stride: isize,
    /// Outputs; null where only the state is wanted.
    pub outputs: *mut f32,
    /// From one token to the next.
    pub output_stride: isize,
    /// From one row of a token to the next.
    pub group_stride: isize,
    /// Whether outputs are added to what is there.
    pub add: bool,
    /// Whether the state after the segment is wanted. Otherwise the strip is left with any numbers.
    pub keep: bool,
    /// What a later segment reads, to be brought to the cache meanwhile.
    pub ahead: Ahead,
}

/// Columns of queries and keys that a later segment reads: token by token the cache is asked for them while the tokens of this
/// one pass, so that no segment begins with waiting. They need not be memory. Null pointers ask for nothing.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    /// Queries.
    pub queries: *const f32,
    /// From one token to the next.
    pub query_stride: isize,
    /// Keys.
    pub keys: *const f32,
    /// From one token to the next.
    pub key_stride: isize,
}

impl Ahead {
    /// Nothing.
    pub const NOTHING: Ahead =
        Ahead { queries: core::ptr::null(), query_stride: 0, keys: core::ptr::null(), key_stride: 0 };
}

/// What is read of a state that does not change: `Y = scale · X S`.
///
/// Contract, for a packed strip of `dim` rows of `width` values at `state`, of a width of [`Strip`], `dim` a multiple of four:
/// - `x` is readable for `rows` rows of `dim` values, `x_stride` apart.
/// - `y` is writable for `rows` rows of `width` values, `y_stride` apart, and readable with `add`. It does not overlap the
///   rest.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The state.
    pub state: *const f32,
    /// Its columns, padded to whole vectors.
    pub width: usize,
    /// Its rows.
    pub dim: usize,
    /// Rows that read it.
    pub x: *const f32,
    /// From one to the next.
    pub x_stride: isize,
    /// Their number.
    pub rows: usize,
    /// What multiplies what is read.
    pub scale: f32,
    /// Where it goes.
    pub y: *mut f32,
    /// From one row to the next.
    pub y_stride: isize,
    /// Whether it is added to what is there.
    pub add: bool,
}

/// [`super::factor::multiply`] of an instruction set.
pub type Multiply = unsafe fn(&Factors, (*const f32, usize), (*mut f32, usize), usize, usize);

/// A micro-kernel of linear attention.
///
/// Each function is unsafe with the clauses of what it names and of its arguments, and one more: the kernel's instruction
/// set is present.
#[derive(Debug)]
pub struct Kernel {
    /// Name, strip, error constants.
    pub spec: KernelSpec,
    /// Presence, moves and conversions of its instruction set.
    pub primitives: &'static Primitives,
    /// [`super::prepare::prepare`].
    pub prepare: unsafe fn(&Head, *mut f32, &mut Segment),
    /// [`super::recur::recur`].
    pub recur: unsafe fn(&Strip, &Segment, &Columns),
    /// [`super::read::read`].
    pub read: unsafe fn(&Reading),
    /// [`super::factor::multiply`].
    pub multiply: Multiply,
}

impl Kernel {
    /// Whether this machine has the kernel's instruction set.
    #[must_use]
    pub fn is_present(&self) -> bool {
        (self.primitives.present)()
    }
}

/// Values of the room in which [`Kernel::prepare`] works, for a head of at most `tokens` tokens. The room belongs to the
/// segment until the next call.
#[must_use]
pub const fn head_room(
    tokens: usize,
    dim: usize,
    group: usize,
    per: Gates,
    delta: bool,
    pass: usize,
) -> usize {
    // Scalars of a token; factors of either end.
    let mut size = tokens.saturating_mul(3).saturating_add(4);
    if matches!(per, Gates::PerDim) {
        let rows = group.saturating_add(1).saturating_add(delta as usize);
        size = size.saturating_add(rows.saturating_mul(tokens).saturating_mul(dim));
        size = size.saturating_add(dim.saturating_mul(4));
    }
    if meets(group, delta) {
        let rows = group.saturating_add(delta as usize).saturating_mul(tokens);
        let columns = if pass < FEW { 0 } else { dim };
        size = size.saturating_add(rows.saturating_add(columns).saturating_mul(product_row(pass)));
        if wide(per, delta, pass) {
            size = size.saturating_add(dim.saturating_mul(MEETING * 2));
        }
    }
    size
}

/// Values of the room of a [`Strip`], for passes of `pass` tokens.
#[must_use]
pub const fn strip_room(pass: usize, width: usize) -> usize {
    pass.saturating_mul(width)
}

/// Whether the tokens of a pass meet each other in products of queries and keys.
pub(super) const fn meets(group: usize, delta: bool) -> bool {
    delta || group > 0
}

/// Values of a row of products for passes of `pass` tokens: of few tokens whole quads, otherwise whole vectors.
pub(super) const fn product_row(pass: usize) -> usize {
    pass.next_multiple_of(if pass < FEW { 4 } else { MAX_LANES })
}

/// Whether passes of `pass` tokens have their sums in f64: long ones under the delta rule without gates. There nothing but what
/// later tokens write takes away what earlier ones wrote, so sums over all of them are of terms that cancel.
pub(super) const fn wide(per: Gates, delta: bool, pass: usize) -> bool {
    delta && matches!(per, Gates::None) && pass > LONG_PASS
}

/// The factor of a gate of `−∞`: minus zero, which no exponential is. One of zero belongs to a gate whose exponential is too
/// small for a number, and multiplies.
pub const CLEARS: f32 = -0.0;

/// From how many tokens on writing keys lie in the lanes as they meet other rows.
pub(super) const FEW: usize = 12;

/// Rows that meet the same keys one after the other where products are sums in f64.
pub(super) const MEETING: usize = 32;

/// Tokens that pass the state together under the delta rules.
pub const MOST_TOGETHER: usize = 4;
