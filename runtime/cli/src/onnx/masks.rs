//! What masks are: causal, a table of relative positions, the mask of shifted windows, or just a mask.
//!
//! A mask that follows from constants is known element by element, and what it is shows in its elements, whatever nodes
//! make it. It has to be the same thing in every world.
//!
//! 1. **Causal**: zero at and below the diagonal, and at most −10,000 above it. Each row attends itself, so a weight
//!    above the diagonal is at most `e^(−10,000 + d)` with `d` the difference of two scores, and zero in f32 for every
//!    `d` below 9,896. It is `is_causal`.
//! 2. **Table**: for some grid of `r × c` tokens, elements of pairs with the same distance in rows and in columns have the
//!    same bits. Every entry of the table is read from one of them. It is `bias_table` with `grid`.
//! 3. **Shifted windows**: of each window, zero where [`Windows`] says that a token attends another, and at most −100
//!    elsewhere. It is `shift` with `picture`. The weights that this drops are at most `e^(−100 + d)` of the row's
//!    largest, `d` being what the score of a masked key lies above the largest score that is attended. With n keys of a
//!    window they change an answer by less than `2^-24` of its largest value while `d < 100 − 16.6 − ln 2n`, which is 78.8
//!    for windows of 7 × 7; f32 itself drops weights below `2^-149 = e^-103.3`, and this runtime those below
//!    `2^-126 = e^-87.3`.

use super::array::{Array, Kind};
use super::find::{Action, Term};
use super::forms::Sizes;
use super::infer::World;
use elsa_core::attention::Windows;

/// A mask of `[batch, heads, queries, keys]`, each axis whole or 1, in one world.
pub type Piece = Array;

/// The mask of shifted windows puts at least this much below the others.
const SHIFTED: f64 = -100.0;

/// The causal mask puts at least this much below the others.
const CAUSAL: f64 = -1e4;

/// The four axes of a mask that is applied to scores of another rank: its elements keep their order.
///
/// # Errors
/// Why it has none.
pub fn axes(mask: &[usize], scores: &[usize], s: &Sizes) -> Result<[usize; 4], String> {
    let refuse = || {
        let Sizes { batch, heads, queries, keys, .. } = s;
        Err(format!("a mask of {mask:?} cannot be broadcast to [{batch}, {heads}, {queries}, {keys}]"))
    };
    if mask.len() > scores.len() {
        return refuse();
    }
    let mut all = vec![1; scores.len() - mask.len()];
    all.extend(mask);
    if all.iter().zip(scores).any(|(&n, &whole)| n != 1 && n != whole) {
        return refuse();
    }
    match (all[..].split_last_chunk::<2>(), scores[..].split_last_chunk::<2>()) {
        (Some((outer, &[n, m])), Some((whole, &[queries, keys])))
            if (queries, keys) == (s.queries, s.keys) =>
        {
            let [b, h] = match (outer, whole) {
                ([], []) => [1, 1],
                (_, whole) if whole.iter().product::<usize>() != s.batch * s.heads => return refuse(),
                (outer, _) if outer.iter().all(|&n| n == 1) => [1, 1],
                (&[b, h], &[_, heads]) if heads == s.heads => [b, h],
                // Batch and heads as one axis.
                ([_], [_]) => [s.batch, s.heads],
                (outer, whole) if s.heads == 1 && outer == whole => [s.batch, 1],
                // Pictures, windows, heads: masks of windows repeat with every picture.
                (&[p, w, h], &[pictures, _, heads]) if heads == s.heads => match p {
                    1 => [w, h],
                    _ if p == pictures && outer[1] == whole[1] => [p * w, h],
                    _ => return refuse(),
                },
                _ => return refuse(),
            };
            Ok([b, h, n, m])
        }
        _ => refuse(),
    }
}

/// The shape of the scores to which a term is applied.
#[must_use]
pub fn scores(world: &World<'_>, term: &Term, s: &Sizes) -> Option<Vec<usize>> {
    match &term.scores {
        Some(name) => world.shape(name).map(<[usize]>::to_vec),
        None => Some(vec![s.batch, s.heads, s.queries, s.keys]),
    }
}

/// What a known term adds to the scores of a world; none if it is not known, or does not fit.
pub fn piece(world: &World<'_>, term: &Term, s: &Sizes) -> Option<Piece> {
    let array = world.array(&term.name)?;
    let shape = axes(&array.shape, &scores(world, term, s)?, s).ok()?;
    let data = match term.action {
        Action::Add => return Some(Array { kind: array.kind, shape: shape.to_vec(), data: array.data }),
        Action::Subtract => array.data.iter().map(|x| -x).collect(),
        Action::Choose { keeps, fill } => {
            array.data.iter().map(|&x| if (x != 0.0) == keeps { 0.0 } else { lowest(fill) }).collect()
        }
    };
    Some(Array::new(Kind::F32, shape.to_vec(), data))
}

/// What stands for `fill` in a mask that is added: what absorbs every score, so that a row in which nothing is attended has
/// equal weights as it had.
#[must_use]
pub fn lowest(fill: f64) -> f64 {
    if fill == f64::NEG_INFINITY { fill } else { f64::from(f32::MIN) }
}

/// Whether nothing is added.
#[must_use]
pub fn is_nothing(piece: &Piece) -> bool {
    piece.data.iter().all(|&x| x == 0.0)
}

/// Whether the mask is the causal one, with the diagonal from the top left.
#[must_use]
pub fn is_causal(piece: &Piece, s: &Sizes) -> bool {
    piece.shape == [1, 1, s.queries, s.keys]
        && s.queries > 1
        && s.keys > 1
        && piece.data.iter().enumerate().all(|(at, &x)| {
            let (i, j) = (at / s.keys, at % s.keys);
            if j <= i { x == 0.0 } else { x <= CAUSAL }
        })
}

/// Pairs of factors of `n`, the most equal first.
fn factors(n: usize) -> Vec<[usize; 2]> {
    let mut all: Vec<[usize; 2]> = (1..=n).filter(|r| n.is_multiple_of(*r)).map(|r| [r, n / r]).collect();
    all.sort_by_key(|[r, c]| r.abs_diff(*c));
    all
}

/// The grid and the table, `[entries, heads]`, of a bias that depends only on the distance of two tokens.
#[must_use]
pub fn table(piece: &Piece, s: &Sizes) -> Option<([usize; 2], Vec<f64>)> {
    let n = s.queries;
    if piece.shape != [1, s.heads, n, s.keys] || n != s.keys || n < 4 {
        return None;
    }
    factors(n).into_iter().find_map(|grid| {
        let windows = Windows { picture: grid, size: grid, shift: [0, 0] };
        let mut table = vec![None::<f64>; windows.entries().checked_mul(s.heads)?];
        for (at, &x) in piece.data.iter().enumerate() {
            let (h, i, j) = (at / (n * n), at / n % n, at % n);
            let entry = &mut table[windows.entry(i, j) * s.heads + h];
            if entry.get_or_insert(x).to_bits() != x.to_bits() {
                return None;
            }
        }
        Some((grid, table.into_iter().collect::<Option<_>>()?))
    })
}

/// The picture and the shift of a mask of shifted windows of `grid`.
#[must_use]
pub fn shift(piece: &Piece, s: &Sizes, grid: [usize; 2]) -> Option<([usize; 2], [usize; 2])> {
    let n = s.queries;
    let &[count, 1, queries, keys] = &piece.shape[..] else { return None };
    if count < 2 || queries != n || keys != n || !s.batch.is_multiple_of(count) {
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
