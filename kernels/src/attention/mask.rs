//! Converts mask elements to the bias of a tile.
//!
//! ```text
//! naive:  for each row i, for each key j:  bias[j][i] = limited(mask[i][j]) · log2 e
//! ```
//!
//! 1. *A mask is contiguous along keys, a bias along rows.* Squares of `N` rows and `N` keys are read along the keys
//!    and transposed in registers, so that both loads and stores move whole vectors.
//! 2. *One pass.* While a square is in registers, types and units are converted, finite elements are limited, and the
//!    effect of the mask is recorded. Elements beyond the limit are rare; one comparison per square finds them.
//! 3. *The last square overlaps the one before it.* If a block has fewer than `N` keys, the mask elements before the
//!    block's first key complete its squares. If the mask has no such elements, rows go through a buffer. A square of
//!    ordinary elements stays in registers; squares with an element beyond the limit, or with fewer than `N` rows, are
//!    processed one vector at a time.
//! 4. *A row shared by all queries is read once*, and expanded over the tile only if it masks part of the block.
//! 5. *Booleans become bits.* A word holds 32 keys of a row. The words of `N` rows form a vector; testing the same bit
//!    in each of them yields a vector of the bias. Nothing is transposed, and words of all ones or all zeros are
//!    detected before anything is written.

use crate::lanes::{Lanes, MAX_LANES};
use core::f32::consts::LOG2_E;
use core::ops::Range;
use elsa_core::attention::{MASK_LIMIT, MaskKind, MaskView};
use elsa_core::dtype::DType;

/// Largest number of keys in a block.
const MOST_KEYS: usize = 256;

/// The elements of a mask for the rows of a tile and the keys of a block.
///
/// Contract, for a tile of `width` rows and blocks of at most 256 keys:
/// - `rows` is at least one and at most `width`; `keys` is at least one.
/// - Rows are `stride` elements apart. Each row has `keys` readable elements of `kind`, or one if `same_for_all_keys`
///   is set. In front of these, each row has `before` more readable elements.
#[derive(Clone, Copy, Debug)]
pub struct MaskTile {
    /// The element of the first row and the first key.
    pub data: *const u8,
    /// Type of the elements.
    pub kind: MaskKind,
    /// Stride of rows in elements; zero if all rows have the same elements.
    pub stride: usize,
    /// `true` if a row has a single element for all keys.
    pub same_for_all_keys: bool,
    /// Number of readable elements of a row before the first key.
    pub before: usize,
    /// Number of rows.
    pub rows: usize,
    /// Number of keys.
    pub keys: usize,
}

impl MaskTile {
    /// Returns the tile for the query rows `rows` and the keys `keys` of one sequence and head. `data` points to the
    /// first element of the whole mask.
    #[inline]
    #[must_use]
    pub fn of(
        view: &MaskView,
        data: *const u8,
        (batch, head): (usize, usize),
        rows: &Range<usize>,
        keys: &Range<usize>,
    ) -> MaskTile {
        let row = view.row(batch, head, rows.start);
        MaskTile {
            data: data.wrapping_add(row.index(keys.start) * view.kind().size()),
            kind: view.kind(),
            stride: if view.same_for_all_queries() { 0 } else { view.strides()[2] },
            same_for_all_keys: row.step == 0,
            before: keys.start * row.step,
            rows: rows.len(),
            keys: keys.len(),
        }
    }
}

/// Effect of a mask on a block of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// No row attends any key. The bias was not written.
    Nothing,
    /// Every row attends every key, and every addend is zero. The bias was not written, or is zero.
    Plain,
    /// Every row attends every key, and some addends are not zero. The bias was written.
    Added,
    /// Some rows may not attend every key, or some addends are not zero. The bias was written.
    Biased,
}

impl Seen {
    /// Returns `true` if a bias was written that the scores need.
    #[inline]
    #[must_use]
    pub fn is_written(self) -> bool {
        matches!(self, Seen::Added | Seen::Biased)
    }
}

/// An element type of masks.
trait Element {
    const SIZE: usize;
    const ADDITIVE: bool;

    /// Loads `N` elements as addends of a score, in natural-log units.
    ///
    /// # Safety
    /// - `p` is readable for `N` elements.
    unsafe fn load<L: Lanes>(isa: L::Isa, p: *const u8) -> L;
}

struct Bool;
struct F32;
struct F16;
struct Bf16;

impl Element for Bool {
    const SIZE: usize = 1;
    const ADDITIVE: bool = false;
    #[inline(always)]
    unsafe fn load<L: Lanes>(isa: L::Isa, p: *const u8) -> L {
        // SAFETY: `p` is readable for `N` elements (clause of `load`).
        unsafe { L::load_bool(isa, p) }
    }
}

impl Element for F32 {
    const SIZE: usize = 4;
    const ADDITIVE: bool = true;
    #[inline(always)]
    unsafe fn load<L: Lanes>(isa: L::Isa, p: *const u8) -> L {
        // SAFETY: `p` is readable for `N` elements (clause of `load`).
        unsafe { L::load(isa, p.cast()) }
    }
}

impl Element for F16 {
    const SIZE: usize = 2;
    const ADDITIVE: bool = true;
    #[inline(always)]
    unsafe fn load<L: Lanes>(isa: L::Isa, p: *const u8) -> L {
        // SAFETY: `p` is readable for `N` elements (clause of `load`).
        unsafe { L::load_f16(isa, p.cast()) }
    }
}

impl Element for Bf16 {
    const SIZE: usize = 2;
    const ADDITIVE: bool = true;
    #[inline(always)]
    unsafe fn load<L: Lanes>(isa: L::Isa, p: *const u8) -> L {
        // SAFETY: `p` is readable for `N` elements (clause of `load`).
        unsafe { L::load_bf16(isa, p.cast()) }
    }
}

/// Effect of the mask elements converted so far.
#[derive(Clone, Copy)]
struct Sight<L> {
    /// `true` if at least one vector had no element beyond the limit, so that all keys of that vector are attended.
    attended: bool,
    /// One in every lane that has had an attended key; zero in every other lane.
    present: L,
    /// Largest magnitude of the elements in each lane; NaN if an element of the lane is NaN.
    magnitude: L,
}

impl<L: Lanes> Sight<L> {
    #[inline(always)]
    fn new(isa: L::Isa) -> Sight<L> {
        let zero = L::splat(isa, 0.0);
        Sight { attended: false, present: zero, magnitude: zero }
    }

    /// Converts a vector of elements to base-2 units, limits the finite elements, and records the effect of all
    /// elements.
    #[inline(always)]
    fn bias<E: Element>(&mut self, isa: L::Isa, x: L) -> L {
        let (zero, limit) = (L::splat(isa, 0.0), L::splat(isa, MASK_LIMIT));
        let y = if E::ADDITIVE { x.times(L::splat(isa, LOG2_E)) } else { x };
        let size = x.abs();
        self.magnitude = self.magnitude.larger_magnitude(x);
        if !size.any_greater(limit) {
            self.attended = true;
            return y;
        }
        self.present = x.if_present(L::splat(isa, 1.0), self.present);
        let most = L::splat(isa, MASK_LIMIT * LOG2_E);
        let limited = zero.if_greater(x, zero.minus(most), most);
        let infinity = L::splat(isa, f32::INFINITY);
        size.if_greater(limit, infinity.if_greater(size, limited, x), y)
    }

    #[inline(always)]
    fn seen(&self, isa: L::Isa) -> Seen {
        if !self.attended && !self.present.any_greater(L::splat(isa, 0.0)) {
            Seen::Nothing
        } else if self.magnitude.all_at_most(L::splat(isa, 0.0)) {
            Seen::Plain
        } else if self.magnitude.all_at_most(L::splat(isa, MASK_LIMIT)) {
            Seen::Added
        } else {
            Seen::Biased
        }
    }
}

/// Writes the bias for a tile and a block to `dst`, `[key][width]`, in base-2 units, if a bias is needed. `seen`
/// receives the effect of the mask. Entries of `dst` past the last row repeat those of another row.
///
/// # Safety
/// - The clauses of [`MaskTile`] hold.
/// - `keys · width` values are writable at `dst`, and `width` is one or a multiple of the number of lanes.
#[inline(always)]
pub unsafe fn bias<L: Lanes>(isa: L::Isa, tile: &MaskTile, width: usize, dst: *mut f32, seen: &mut Seen) {
    // SAFETY: `of` has the same clauses as this function.
    unsafe {
        *seen = match tile.kind {
            MaskKind::Bool => of::<L, Bool>(isa, tile, width, dst),
            MaskKind::Additive(DType::F32) => of::<L, F32>(isa, tile, width, dst),
            MaskKind::Additive(DType::F16) => of::<L, F16>(isa, tile, width, dst),
            MaskKind::Additive(DType::Bf16) => of::<L, Bf16>(isa, tile, width, dst),
        }
    }
}

/// Computes [`bias`] for a mask whose elements are of type `E`.
///
/// # Safety
/// The clauses of [`bias`] hold.
#[inline(always)]
unsafe fn of<L: Lanes, E: Element>(isa: L::Isa, tile: &MaskTile, width: usize, dst: *mut f32) -> Seen {
    // SAFETY: the called functions have the same clauses as this one.
    unsafe {
        if tile.same_for_all_keys {
            along_rows::<L, E>(isa, tile, width, dst)
        } else if tile.stride == 0 || width == 1 {
            shared::<L, E>(isa, tile, width, dst)
        } else {
            if E::ADDITIVE {
                squares::<L, E>(isa, tile, width, dst)
            } else {
                bits::<L>(isa, tile, width, dst)
            }
        }
    }
}

/// Loads `count` elements, at most `N`, and fills the other lanes with copies of the first element.
///
/// # Safety
/// - `p` is readable for one element, and for `count` elements `stride` apart.
#[inline(always)]
unsafe fn gather<L: Lanes, E: Element>(isa: L::Isa, p: *const u8, stride: usize, count: usize) -> L {
    let mut buffer = [0u32; MAX_LANES];
    let to = buffer.as_mut_ptr().cast::<u8>();
    for i in 0..L::N {
        let from = if i < count { i * stride * E::SIZE } else { 0 };
        // SAFETY: the source is element `i` of `count`, or the first one (clause); the buffer has four bytes per
        // element.
        unsafe { to.add(i * E::SIZE).copy_from_nonoverlapping(p.add(from), E::SIZE) };
    }
    // SAFETY: the buffer has room for `N` elements.
    unsafe { E::load(isa, to) }
}

/// Computes the bias of a mask that has one element per row, for all keys.
///
/// # Safety
/// The clauses of [`of`] hold.
#[inline(always)]
unsafe fn along_rows<L: Lanes, E: Element>(
    isa: L::Isa,
    tile: &MaskTile,
    width: usize,
    dst: *mut f32,
) -> Seen {
    let mut sight = Sight::new(isa);
    let mut row = 0;
    while row < width {
        // SAFETY: the rows read are below `rows`, or repeat the first of them (clause).
        let x = unsafe {
            let first = row.min(tile.rows - 1);
            let count = (tile.rows - first).min(L::N);
            gather::<L, E>(isa, tile.data.add(first * tile.stride * E::SIZE), tile.stride, count)
        };
        let y = sight.bias::<E>(isa, x);
        let mut first = [0.0; MAX_LANES];
        // SAFETY: the buffer has room for a vector. Each store is within the key's `width` values (clause).
        unsafe {
            y.store(first.as_mut_ptr());
            for key in 0..tile.keys {
                if width == 1 {
                    dst.add(key).write(first[0]);
                } else {
                    y.store(dst.add(key * width + row));
                }
            }
        }
        row += L::N;
    }
    sight.seen(isa)
}

/// Computes the bias of a mask that has one row for all queries.
///
/// # Safety
/// The clauses of [`of`] hold.
#[inline(always)]
unsafe fn shared<L: Lanes, E: Element>(isa: L::Isa, tile: &MaskTile, width: usize, dst: *mut f32) -> Seen {
    let mut sight = Sight::new(isa);
    let mut line = [0.0; MOST_KEYS + MAX_LANES];
    let mut key = 0;
    while key < tile.keys {
        // SAFETY: vectors end at or before the last key, and the remaining keys go through a buffer; `line` is at least
        // one vector longer than the keys (clause).
        unsafe {
            let from = tile.data.add(key * E::SIZE);
            let left = tile.keys - key;
            let x = if left >= L::N { E::load(isa, from) } else { gather::<L, E>(isa, from, 1, left) };
            sight.bias::<E>(isa, x).store(line.as_mut_ptr().add(key));
        }
        key += L::N;
    }
    let seen = sight.seen(isa);
    if !seen.is_written() {
        return seen;
    }
    // SAFETY: every key has `width` values at `dst` (clause).
    unsafe {
        if width == 1 {
            dst.copy_from_nonoverlapping(line.as_ptr(), tile.keys);
            return seen;
        }
        for key in 0..tile.keys {
            let x = L::splat(isa, line[key]);
            for row in (0..width).step_by(L::N) {
                x.store(dst.add(key * width + row));
            }
        }
    }
    seen
}

/// Converts a square of `N` rows and `N` keys to base-2 units, and writes the transposed square to `to`. Returns the
/// largest magnitude of the elements in each lane; NaN if an element of the lane is NaN.
///
/// # Safety
/// - `N` rows of `N` elements, `step` bytes apart, are readable at `from`. `N` vectors, `width` values apart, are
///   writable at `to`.
#[inline(always)]
unsafe fn square<L: Lanes, E: Element>(
    isa: L::Isa,
    from: *const u8,
    step: usize,
    to: *mut f32,
    width: usize,
) -> L {
    // SAFETY: `transpose_square` has the same clauses as this function, and rows and vectors are below `N`.
    unsafe {
        if E::SIZE == 4 {
            return L::transpose_square(isa, from.cast(), step / 4, LOG2_E, to, width);
        }
        let mut rows = [L::splat(isa, 0.0); MAX_LANES];
        let mut largest = rows[0];
        for i in 0..L::N {
            rows[i] = E::load(isa, from.add(i * step));
            largest = largest.larger_magnitude(rows[i]);
        }
        L::transpose(isa, &mut rows);
        for i in 0..L::N {
            rows[i].times(L::splat(isa, LOG2_E)).store(to.add(i * width));
        }
        largest
    }
}

/// Computes the bias of an additive mask that has a row per query.
///
/// # Safety
/// The clauses of [`of`] hold.
#[inline(always)]
unsafe fn squares<L: Lanes, E: Element>(isa: L::Isa, tile: &MaskTile, width: usize, dst: *mut f32) -> Seen {
    let mut sight = Sight::<L>::new(isa);
    let limit = L::splat(isa, MASK_LIMIT);
    let step = tile.stride * E::SIZE;
    for row in (0..width).step_by(L::N) {
        let first = row.min(tile.rows - 1);
        let count = (tile.rows - first).min(L::N);
        let rows = tile.data.wrapping_add(first * step);
        for key in (0..tile.keys).step_by(L::N) {
            // The last square overlaps the one before it.
            let key = if tile.keys >= L::N { key.min(tile.keys - L::N) } else { key };
            if (count == L::N || count == 1) && tile.keys >= L::N {
                // A single row is read `N` times.
                let step = if count == 1 { 0 } else { step };
                // SAFETY: the `N` elements read from a row end at or before the last key, and rows are below `rows`.
                // The vectors are written within the `width` values of a key, for keys below `keys` (clauses).
                let largest = unsafe {
                    let from = rows.add(key * E::SIZE);
                    square::<L, E>(isa, from, step, dst.add(key * width + row), width)
                };
                if largest.all_at_most(limit) {
                    sight.attended = true;
                    sight.magnitude = sight.magnitude.larger_magnitude(largest);
                    continue;
                }
            }
            let left = tile.keys - key;
            let back = L::N.saturating_sub(left);
            let precede = back <= key + tile.before;
            let mut square = [L::splat(isa, 0.0); MAX_LANES];
            // SAFETY: rows are below `rows`. If at least `back` elements precede `key`, reads start `back` elements
            // before `key`; if not, `left` elements are read from `key` on. Vectors are written within the `width`
            // values of a key, for keys below `keys` (clauses).
            unsafe {
                for i in 0..L::N {
                    let from = rows.add(if i < count { i } else { 0 } * step + key * E::SIZE);
                    square[i] = if precede {
                        E::load(isa, from.sub(back * E::SIZE))
                    } else {
                        gather::<L, E>(isa, from, 1, left)
                    };
                }
                L::transpose(isa, &mut square);
                let skip = if precede { back } else { 0 };
                let to = dst.add(key * width + row);
                for i in 0..L::N.min(left) {
                    sight.bias::<E>(isa, square[skip + i]).store(to.add(i * width));
                }
            }
        }
    }
    sight.seen(isa)
}

/// Number of keys per word of bits.
const WORD: usize = 32;

/// Largest number of words for the rows of a tile and the keys of a block.
const MOST_WORDS: usize = MOST_KEYS / WORD * 3 * MAX_LANES;

/// Packs `left` elements of a boolean row, at most [`WORD`], into the low bits of a word.
///
/// # Safety
/// - `left` is at least one. `left` bytes are readable at `p`, and `before` bytes are readable in front of `p`.
#[inline(always)]
unsafe fn word<L: Lanes>(isa: L::Isa, p: *const u8, left: usize, before: usize) -> u32 {
    let back = WORD.saturating_sub(left);
    // SAFETY: three cases. The 32 bytes read start at `p`; or they end with the last element; or `left` bytes are
    // copied to a buffer of 32 bytes, which is then read (clause).
    unsafe {
        if back <= before {
            return L::load_bits(isa, p.sub(back)) >> back;
        }
        let mut buffer = [0u8; WORD];
        buffer.as_mut_ptr().copy_from_nonoverlapping(p, left);
        L::load_bits(isa, buffer.as_ptr())
    }
}

/// Computes the bias of a boolean mask that has a row per query.
///
/// # Safety
/// The clauses of [`of`] hold; elements are boolean, and `width` is at most three vectors.
#[inline(always)]
unsafe fn bits<L: Lanes>(isa: L::Isa, tile: &MaskTile, width: usize, dst: *mut f32) -> Seen {
    // One word per row for every 32 keys, `[32 keys][row]`.
    let mut words = [0u32; MOST_WORDS];
    let (mut any, mut all) = (0, u32::MAX);
    for (key, words) in (0..tile.keys).step_by(WORD).zip(words.chunks_exact_mut(width)) {
        let left = (tile.keys - key).min(WORD);
        let beyond = (u32::MAX << 1) << (left - 1);
        for (row, to) in words.iter_mut().enumerate() {
            let from = tile.data.wrapping_add(row.min(tile.rows - 1) * tile.stride + key);
            // SAFETY: the row has `left` elements from `key` on, and `key + before` elements in front of these
            // (clauses).
            *to = unsafe { word::<L>(isa, from, left, key + tile.before) } & !beyond;
            any |= *to;
            all &= *to | beyond;
        }
    }
    if any == 0 {
        return Seen::Nothing;
    }
    if all == u32::MAX {
        return Seen::Plain;
    }
    for (key, words) in (0..tile.keys).step_by(WORD).zip(words.chunks_exact(width)) {
        for row in (0..width).step_by(L::N) {
            // SAFETY: vectors are read within the `width` words, and written within the `width` values of a key, for
            // keys below `keys` (clauses).
            unsafe {
                let rows = L::load(isa, words.as_ptr().add(row).cast());
                let to = dst.add(key * width + row);
                for i in 0..(tile.keys - key).min(WORD) {
                    rows.unless(isa, 1 << i).store(to.add(i * width));
                }
            }
        }
    }
    Seen::Biased
}
