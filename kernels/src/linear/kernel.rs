//! The operands of a micro-kernel of linear attention and its table of entry points.
//!
//! A kernel sees only registers, strips and pointers, never a tensor. Sizes, strides and offsets count f32 values;
//! strides are signed, so that tokens can be processed in reverse order.
//!
//! A caller processes the tokens of a head in segments. The caller first splits the tokens by position into blocks. For
//! each segment of a block, the caller calls [`Kernel::prepare`], which determines the number of tokens in the segment,
//! and then calls [`Kernel::recur`] for every strip of the state. These calls are repeated until no token of the block
//! is left.

use crate::lanes::MAX_LANES;
use crate::primitives::Primitives;
use elsa_core::linear::Gates;
use elsa_core::linear::plan::{KernelSpec, LONG_PASS};

/// Tokens of one head that are not yet in a segment.
///
/// Contract, where `dim` is a multiple of four and `rows` is at most `dim`:
/// - `queries` is readable for `tokens` tokens, `query_stride` apart. Each token has `group` rows of `dim` values,
///   `group_stride` apart. `queries` may be null; `group` is then zero.
/// - `keys` is readable for `tokens` rows of `dim` values, `key_stride` apart.
/// - With [`Gates::PerHead`], `gates` is readable for one value per token. With [`Gates::PerDim`], `gates` is readable
///   for `dim` values per token. The gates of successive tokens are `gate_stride` apart.
/// - `betas` is null, or readable for one value per token, `beta_stride` apart.
/// - `tokens` and `pass` are at least one.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Number of tokens. The next segment has at most this number of tokens.
    pub tokens: usize,
    /// Size of queries and keys, a multiple of four. Shorter rows are padded with zeros.
    pub dim: usize,
    /// Number of dims of a query or key before padding. It is also the number of state rows that tokens write; other
    /// state rows stay zero.
    pub rows: usize,
    /// Queries; null if there are no outputs.
    pub queries: *const f32,
    /// Stride of tokens in the queries.
    pub query_stride: isize,
    /// Number of query rows per token; all read the same state.
    pub group: usize,
    /// Stride of the query rows of a token.
    pub group_stride: isize,
    /// Keys of the tokens.
    pub keys: *const f32,
    /// Stride of tokens in the keys.
    pub key_stride: isize,
    /// Natural logarithms of the gates.
    pub gates: *const f32,
    /// Stride of tokens in the gates.
    pub gate_stride: isize,
    /// Number of gates per token: none, one per head, or one per dim. With [`Gates::None`], `gates` is not used.
    pub per: Gates,
    /// Rates of the delta rule; null for rules without rates.
    pub betas: *const f32,
    /// Stride of tokens in the rates.
    pub beta_stride: isize,
    /// Factor applied to every output.
    pub scale: f32,
    /// Number of tokens in one pass over the state: a few in the recurrent algorithm, and more in the chunked
    /// algorithms. The tokens of a pass interact through the products `Q Kᵀ` and `K Kᵀ`.
    pub pass: usize,
}

/// Factors that multiply the rows of a state. Each factor is `high · (1 + rest)`. Because of `rest`, a factor that is
/// applied at thousands of tokens does not repeat the same rounding error. A `high` of [`CLEARS`] clears its rows by
/// selection. A negative `rest` marks a factor beyond the range of f32 numbers. The square root of such a factor is
/// `high · (1 − rest)`, and rows are multiplied by this root twice.
#[derive(Clone, Copy, Debug)]
pub struct Factors {
    /// Largest f32 numbers that do not exceed the factors: one number for all rows, or one per row.
    pub high: *const f32,
    /// Relative remainders of the factors, laid out like `high`; never zero.
    pub rest: *const f32,
    /// `true` if each row has its own factor; `false` if all rows have the same factor.
    pub per_dim: bool,
}

/// A run of consecutive tokens of a head, between two multiplications of the state. [`Kernel::prepare`] fills in this
/// description.
///
/// Inside a segment the state is stored as `S' = S / c`, where `c` is the product of the gates so far. Tokens therefore
/// do not multiply the state: a token writes `k / c` and reads `c q`. Gates per head are applied through the scalars
/// `down` and `up`, gates per dim through the rows of keys and queries. A segment ends before `c` leaves
/// `2^-40 ..= 2^40`, so nothing overflows. A single gate beyond that range multiplies the state at the start of a
/// segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Number of tokens, at least one.
    pub tokens: usize,
    /// Size of queries and keys, with padding.
    pub dim: usize,
    /// Size of queries and keys before padding. Later rows of the state are zero after each pass.
    pub rows: usize,
    /// Number of query rows per token.
    pub group: usize,
    /// Number of tokens in one pass over the state.
    pub pass: usize,
    /// Queries; with gates per dim, multiplied by the gates.
    pub queries: *const f32,
    /// Stride of tokens in the queries.
    pub query_stride: isize,
    /// Stride of the query rows of a token.
    pub group_stride: isize,
    /// Keys with which tokens read the state.
    pub readers: *const f32,
    /// Stride of tokens in `readers`.
    pub reader_stride: isize,
    /// Keys with which tokens write to the state.
    pub writers: *const f32,
    /// Stride of tokens in `writers`.
    pub writer_stride: isize,
    /// Factors applied to the values that tokens read from the state, `[tokens]`.
    pub up: *const f32,
    /// Factors applied to the values that tokens write to the state, `[tokens]`.
    pub down: *const f32,
    /// Rates, `[tokens]`; null for rules without rates.
    pub betas: *const f32,
    /// Products of queries and writing keys of the same pass, `[group][tokens][row]`, followed by products of reading
    /// and writing keys, `[tokens][row]`. A row uses only its products with the keys of earlier tokens; a query also
    /// uses its product with the key of the same token. The pointer is null if tokens do not interact.
    pub products: *const f32,
    /// Number of values per row of products.
    pub row: usize,
    /// `true` if the products and the writes of long passes are summed in f64.
    pub wide: bool,
    /// Factors that multiply the state at the start of the segment.
    pub entry: Option<Factors>,
    /// Factors that multiply the state at the end of the segment.
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
        entry: None,
        exit: None,
    };
}

/// Strip of value columns of one state, and its working memory. The strip is packed, or it is a part of the complete
/// state; rows of the complete state are `stride` columns wide. Both layouts give results with the same bits.
///
/// Contract, for a segment of `dim` rows and passes of `pass` tokens:
/// - `width` is [`KernelSpec::lanes`], [`KernelSpec::columns`], or for the delta rules [`KernelSpec::delta_columns`].
/// - `state` is writable for `dim` rows of `width` values, `stride` apart.
/// - `from` has one of three forms. It is null, which means zeros. Or it is equal to `state`, with the same stride, and
///   `state` is then also readable. Or it is readable for `dim` rows of `width` values, `from_stride` apart. In `from`,
///   rows past [`Segment::rows`] are zero.
/// - `room` is writable for [`strip_room`] values.
/// - These memory areas overlap neither each other nor the memory of the segment and the columns.
#[derive(Clone, Copy, Debug)]
pub struct Strip {
    /// Columns of the state after the segment.
    pub state: *mut f32,
    /// Number of columns, padded to whole vectors.
    pub width: usize,
    /// Stride of rows, at least the width.
    pub stride: usize,
    /// Columns of the state before the segment; null means zeros.
    pub from: *const f32,
    /// Stride of rows in `from`.
    pub from_stride: usize,
    /// Buffer for the writes of a pass, of [`strip_room`] values.
    pub room: *mut f32,
}

/// Values and outputs of a strip. All pointers start at the first token of a segment.
///
/// Contract, for a segment of `tokens` tokens and a strip of `width` columns:
/// - `values` is null, which means zeros, or readable for `tokens` rows of `width` values, `value_stride` apart.
/// - `outputs` is null, or writable for each token, `output_stride` apart. Each token has `group` rows of `width`
///   values, `group_stride` apart. With `add`, `outputs` is also readable.
/// - If `outputs` is not null, the segment was prepared with queries.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// Values of the tokens; null means zeros.
    pub values: *const f32,
    /// Stride of tokens in the values.
    pub value_stride: isize,
    /// Outputs of the tokens; null if only the state is needed.
    pub outputs: *mut f32,
    /// Stride of tokens in the outputs.
    pub output_stride: isize,
    /// Stride of the output rows of a token.
    pub group_stride: isize,
    /// `true` to add the outputs to the numbers in memory, `false` to overwrite these numbers.
    pub add: bool,
    /// `true` if the state after the segment is needed. If it is not, the strip's contents are unspecified afterwards.
    pub keep: bool,
    /// Queries and keys of a later segment to prefetch.
    pub ahead: Ahead,
}

/// Queries and keys that a later segment reads. They are prefetched token by token while the tokens of this segment are
/// processed, so that no segment starts by waiting. The pointers need not be valid; null pointers prefetch nothing.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    /// Queries to prefetch; null for none.
    pub queries: *const f32,
    /// Stride of tokens in the queries.
    pub query_stride: isize,
    /// Keys to prefetch; null for none.
    pub keys: *const f32,
    /// Stride of tokens in the keys.
    pub key_stride: isize,
}

impl Ahead {
    /// Null pointers, which prefetch nothing.
    pub const NOTHING: Ahead =
        Ahead { queries: core::ptr::null(), query_stride: 0, keys: core::ptr::null(), key_stride: 0 };
}

/// The product `Y = scale · X S` with a constant state `S`.
///
/// Contract, for a packed strip of `dim` rows of `width` values at `state`, where `width` is one of the widths of a
/// [`Strip`] and `dim` is a multiple of four:
/// - `x` is readable for `rows` rows of `dim` values, `x_stride` apart.
/// - `y` is writable for `rows` rows of `width` values, `y_stride` apart, and readable with `add`. `y` does not overlap
///   the other operands.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Strip of the state, packed.
    pub state: *const f32,
    /// Number of columns of the state, padded to whole vectors.
    pub width: usize,
    /// Number of rows of the state.
    pub dim: usize,
    /// Rows that read the state.
    pub x: *const f32,
    /// Stride of rows in `x`.
    pub x_stride: isize,
    /// Number of rows in `x`.
    pub rows: usize,
    /// Factor applied to the results.
    pub scale: f32,
    /// Results, one row for each row of `x`.
    pub y: *mut f32,
    /// Stride of rows in `y`.
    pub y_stride: isize,
    /// `true` to add the results to the numbers in memory, `false` to overwrite these numbers.
    pub add: bool,
}

/// Type of [`super::factor::multiply`], instantiated for an instruction set.
pub type Multiply = unsafe fn(&Factors, (*const f32, usize), (*mut f32, usize), usize, usize);

/// Functions that implement `recur`. There is one function for each width of a strip: one vector, `V` vectors and `W`
/// vectors. A single function for all widths would increase the compile time.
pub(crate) struct Entries {
    /// Largest number of columns of a strip under the rules without rates: the columns of `V` vectors.
    pub columns: usize,
    /// Instances of `recur::single` for the rules without rates.
    pub single: [Entry; 2],
    /// Instances of `recur::single` for the delta rules.
    pub single_delta: [Entry; 3],
    /// Instances of `recur::plain`, for the rules without rates.
    pub plain: [Entry; 2],
    /// Instances of `recur::together` for the delta rules.
    pub delta: [Entry; 3],
}

/// A function for strips of one width, with the clauses of `recur::recur`.
pub(crate) type Entry = unsafe fn(&Strip, &Segment, &Columns);

/// Micro-kernel of linear attention.
///
/// Each function has the safety clauses of the function that the field's comment names, the clauses of its arguments,
/// and one more clause: the processor has the kernel's instruction set.
#[derive(Debug)]
pub struct Kernel {
    /// Name, widths of strips, and error constants.
    pub spec: KernelSpec,
    /// Functions of the instruction set that test its presence, move data and convert element types.
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

/// Returns the size in values of the buffer that [`Kernel::prepare`] requires for a head of at most `tokens` tokens.
/// The segment uses the buffer until the next call of that function.
#[must_use]
pub const fn head_room(
    tokens: usize,
    dim: usize,
    group: usize,
    per: Gates,
    delta: bool,
    pass: usize,
) -> usize {
    // Three scalars per token, and two factors at either end.
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

/// Returns the size of a [`Strip`]'s `room` in values, for passes of `pass` tokens.
#[must_use]
pub const fn strip_room(pass: usize, width: usize) -> usize {
    pass.saturating_mul(width)
}

/// Returns `true` if the tokens of a pass interact through products of queries and keys.
pub(super) const fn has_products(group: usize, delta: bool) -> bool {
    delta || group > 0
}

/// Returns the number of values per row of products, for passes of `pass` tokens. It is a multiple of four for few
/// tokens, and a multiple of [`MAX_LANES`] for more tokens.
pub(super) const fn product_row(pass: usize) -> usize {
    pass.next_multiple_of(if pass < FEW { 4 } else { MAX_LANES })
}

/// Returns `true` if passes of `pass` tokens use f64 sums. Only long passes of the delta rule without gates use f64
/// sums. Without gates, a write stays in the state until later writes cancel it, so sums over all tokens have terms
/// that cancel.
pub(super) const fn wide(per: Gates, delta: bool, pass: usize) -> bool {
    delta && matches!(per, Gates::None) && pass > LONG_PASS
}

/// Factor for a gate of `−∞`: minus zero, which no exponential returns. If the exponential of a gate underflows, the
/// factor of this gate is plus zero, and rows are multiplied by plus zero.
pub const CLEARS: f32 = -0.0;

/// Smallest number of tokens per pass for which products are computed with writing keys in the lanes.
pub(super) const FEW: usize = 12;

/// Number of rows that are multiplied with the same keys one after another if products are summed in f64.
pub(super) const ROWS_TOGETHER: usize = 32;

/// Largest number of tokens in one pass over the state under the delta rules.
pub const MOST_TOGETHER: usize = 4;
