//! Classification of masks: causal, a table of relative positions, shifted windows, or a plain mask.
//!
//! If a mask depends only on constants, its elements are known. The elements determine the kind of the mask, regardless
//! of the nodes that produce it. A mask that depends on free axes is recognised as a diagonal or a window if its nodes
//! compute it from positions (`positions`). Any other mask that depends on a free axis or on data stays a tensor of the
//! graph.
//!
//! 1. **Diagonal**: zero in a band around the diagonal that starts at the first key or ends at the last key, and at
//!    most −10,000 elsewhere. Each row attends a key, so the weight of a masked key is at most `e^(−10,000 + d)`, where
//!    `d` is the difference of two scores. This weight is zero in f32 for every `d` below 9,896. The mask becomes
//!    `is_causal`, `align_last` and `window`.
//! 2. **Table**: for some grid of `r × c` tokens, all pairs of tokens with the same distance in rows and in columns
//!    have elements with the same bits. Every entry of the table is read from such an element. The mask becomes
//!    `bias_table` with `grid`.
//! 3. **Shifted windows**: in each window, zero where [`Windows`] lets a token attend another, and at most −100
//!    elsewhere. The mask becomes `shift` with `picture`. The dropped weights are at most `e^(−100 + d)` of the row's
//!    largest weight, where `d` is the excess of a masked key's score over the largest attended score. With n keys in a
//!    window, the dropped weights change an output by less than `2^-24` of its largest value while `d < 100 − 16.6 − ln
//!    2n`, which is 78.8 for windows of 7 × 7. For comparison, f32 itself drops weights below `2^-149 = e^-103.3`, and
//!    this runtime drops weights below `2^-126 = e^-87.3`.

use super::array::{Array, Kind};
use super::find::{Action, Site, Term};
use super::forms::Axes;
use super::size::{Size, shown};
use super::value::counts;
use elsa_core::attention::Windows;

/// A mask of shape `[batch, heads, queries, keys]`. Each axis has either its full size or size 1.
pub type Piece = Array;

/// Largest element with which a mask of shifted windows masks a score.
const SHIFTED: f64 = -100.0;

/// Largest element with which a diagonal mask masks a score.
pub const CAUSAL: f64 = -1e4;

/// Returns the four axes that a mask has as an input of the operator. The order of the elements does not change. If the
/// scores have four axes, the mask keeps its own axes, and the operator broadcasts it as the graph does.
///
/// # Errors
/// Returns the reason why the axes of the mask do not fit.
pub fn axes(mask: &[Size], scores: Option<&[Size]>, s: &Axes) -> Result<[Size; 4], String> {
    let whole: Vec<Size> = s.scores().into_iter().cloned().collect();
    let refuse = || Err(format!("a mask of {} cannot be broadcast to {}", shown(mask), shown(&whole)));
    let scores = scores.unwrap_or(&whole);
    let one = Size::from(1);
    if mask.len() > scores.len() {
        return refuse();
    }
    let mut all = vec![one.clone(); scores.len() - mask.len()];
    all.extend_from_slice(mask);
    if scores.len() == 4 && scores[1] == s.heads {
        return <[Size; 4]>::try_from(all).or_else(|_| refuse());
    }
    if all.iter().zip(scores).any(|(n, whole)| !n.is(1) && n != whole) {
        return refuse();
    }
    match (all[..].split_last_chunk::<2>(), scores[..].split_last_chunk::<2>()) {
        (Some((outer, [n, m])), Some((whole, [queries, keys])))
            if (queries, keys) == (&s.queries, &s.keys) =>
        {
            let [b, h] = match (outer, whole) {
                ([], []) => [one.clone(), one],
                (_, whole) if Size::product(whole) != s.batch.times(&s.heads) => return refuse(),
                (outer, _) if outer.iter().all(|n| n.is(1)) => [one.clone(), one],
                // Batch and heads share one axis.
                ([_], [_]) => [s.batch.clone(), s.heads.clone()],
                // All heads share the mask, and they have two axes or one.
                ([p, w, h], [batch, ..]) if w.is(1) && h.is(1) && *batch == s.batch => [p.clone(), one],
                (outer, whole) if s.heads.is(1) && outer == whole => [s.batch.clone(), one],
                // Axes of pictures, windows and heads: a mask with one picture repeats with every picture of the batch.
                ([p, w, h], [pictures, all, heads]) if *heads == s.heads => {
                    if p.is(1) {
                        [w.clone(), h.clone()]
                    } else if p == pictures && w == all {
                        [s.batch.clone(), h.clone()]
                    } else {
                        return refuse();
                    }
                }
                _ => return refuse(),
            };
            Ok([b, h, n.clone(), m.clone()])
        }
        _ => refuse(),
    }
}

/// Returns the shape of the scores to which a term is applied; `None` if these scores have the axes of the attention.
///
/// # Errors
/// Returns an error if the shape of the scores is unknown.
pub fn scores<'a>(site: &'a Site<'_>, term: &Term) -> Result<Option<&'a [Size]>, String> {
    let Some(name) = &term.scores else { return Ok(None) };
    let shape = site.symbols.shape(name);
    shape.map(Some).ok_or_else(|| "the shape of its scores does not follow from the model".to_string())
}

/// Returns the values that a term adds to the scores. Returns `None` if the values do not depend only on constants, if
/// they are unknown, or if their axes do not fit.
pub fn piece(site: &Site<'_>, term: &Term, s: &Axes) -> Option<Piece> {
    if !site.symbols.is_fixed(&term.name) {
        return None;
    }
    let array = site.worlds.first()?.array(&term.name)?;
    let shape = axes(site.symbols.shape(&term.name)?, scores(site, term).ok()?, s).ok()?;
    let shape = counts(&shape)?;
    let data = match term.action {
        Action::Add => return Some(Array { kind: array.kind, shape, data: array.data }),
        Action::Subtract => array.data.iter().map(|x| -x).collect(),
        Action::Choose { keeps, fill } => {
            array.data.iter().map(|&x| if (x != 0.0) == keeps { 0.0 } else { lowest(fill) }).collect()
        }
    };
    Some(Array::new(Kind::F32, shape, data))
}

/// Returns the number that the operator adds to a score where the graph replaces the score with `fill`. A finite `fill`
/// becomes the lowest f32, which absorbs every score. All weights of a row without an attended key are therefore still
/// equal.
#[must_use]
pub fn lowest(fill: f64) -> f64 {
    if fill == f64::NEG_INFINITY { fill } else { f64::from(f32::MIN) }
}

/// Returns `true` if the mask has no effect: all of its elements are zero, and each of its axes has size 1 or the size
/// of the same axis of the scores.
#[must_use]
pub fn is_nothing(piece: &Piece, s: &Axes) -> bool {
    let axes = piece.shape.iter().zip(s.scores());
    let fits = |(&n, whole): (&usize, &Size)| n == 1 || number(whole) == Some(n);
    axes.into_iter().all(fits) && piece.data.iter().all(|&x| x == 0.0)
}

/// Returns a size as a number, if it depends on no free axis.
fn number(size: &Size) -> Option<usize> {
    usize::try_from(size.known()?).ok()
}

/// Returns all pairs of factors of `n`, sorted by their difference, the smallest first.
fn factors(n: usize) -> Vec<[usize; 2]> {
    let mut all: Vec<[usize; 2]> = (1..=n).filter(|r| n.is_multiple_of(*r)).map(|r| [r, n / r]).collect();
    all.sort_by_key(|[r, c]| r.abs_diff(*c));
    all
}

/// Returns the grid and the table `[entries, heads]` of a mask. Each element of the mask must depend only on the
/// distance of two tokens in the grid.
#[must_use]
pub fn table(piece: &Piece, s: &Axes) -> Option<([usize; 2], Vec<f64>)> {
    let (n, keys, heads) = (number(&s.queries)?, number(&s.keys)?, number(&s.heads)?);
    if piece.shape != [1, heads, n, keys] || n != keys || n < 4 {
        return None;
    }
    factors(n).into_iter().find_map(|grid| {
        let windows = Windows { picture: grid, size: grid, shift: [0, 0] };
        let mut table = vec![None::<f64>; windows.entries().checked_mul(heads)?];
        for (at, &x) in piece.data.iter().enumerate() {
            let (h, i, j) = (at / (n * n), at / n % n, at % n);
            let entry = &mut table[windows.entry(i, j) * heads + h];
            if entry.get_or_insert(x).to_bits() != x.to_bits() {
                return None;
            }
        }
        Some((grid, table.into_iter().collect::<Option<_>>()?))
    })
}

/// Returns the size of the picture and the shift, if the mask is the mask of shifted windows of size `grid`.
#[must_use]
pub fn shift(piece: &Piece, s: &Axes, grid: [usize; 2]) -> Option<([usize; 2], [usize; 2])> {
    let (n, m) = (number(&s.queries)?, number(&s.keys)?);
    let &[count, 1, queries, keys] = &piece.shape[..] else { return None };
    // The batch, even a symbolic one, must be a multiple of `count`, the number of windows per picture.
    let pictures = Size::count(count)?;
    let whole = s.batch.over(&pictures)?.times(&pictures)? == s.batch;
    if count < 2 || queries != n || keys != n || n != m || !whole {
        return None;
    }
    if piece.data.iter().any(|&x| x.is_nan() || x > SHIFTED && x != 0.0) {
        return None;
    }
    let [r, c] = grid;
    for [rows, columns] in factors(count) {
        let picture = [rows * r, columns * c];
        for (a, b) in (0..r).flat_map(|a| (0..c).map(move |b| (a, b))) {
            let windows = Windows { picture, size: grid, shift: [a, b] };
            let mut all = piece.data.iter().enumerate();
            if all.all(|(at, &x)| windows.attends(at / (n * n), at / n % n, at % n) == (x == 0.0)) {
                return Some((picture, windows.shift));
            }
        }
    }
    None
}
