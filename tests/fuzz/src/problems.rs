//! Attention problems in the C interface, picked from the input of a fuzz target.

use elsa::*;
use libfuzzer_sys::arbitrary::{Result, Unstructured};

fn view(u: &mut Unstructured<'_>, shape: [usize; 4]) -> Result<elsa_view> {
    let mut shape = shape;
    if u.ratio(1, 24)? {
        shape[u.choose_index(4)?] = u.arbitrary()?;
    }
    let [_, h, n, d] = shape;
    let m = |a: usize, b: usize| a.wrapping_mul(b);
    let mut strides =
        if u.arbitrary()? { [m(h, m(n, d)), m(n, d), d, 1] } else { [m(n, m(h, d)), d, m(h, d), 1] };
    if u.ratio(1, 16)? {
        strides[u.choose_index(4)?] = if u.arbitrary()? { u.arbitrary()? } else { u.int_in_range(0..=9)? };
    }
    Ok(elsa_view { shape, strides })
}

/// Picks a mask or a dense bias that mostly matches the last axes of the scores.
fn mask(u: &mut Unstructured<'_>, scores: [usize; 4]) -> Result<elsa_mask> {
    let (kind, rank) = (u.int_in_range(0..=5)?, u.int_in_range(0..=5)?);
    let mut dims = scores;
    dims.rotate_left(4usize.saturating_sub(rank as usize) % 4);
    if u.ratio(1, 4)? {
        dims[u.choose_index(4)?] = u.int_in_range(0..=4)?;
    }
    Ok(elsa_mask { kind, rank, dims })
}

/// Picks windows of up to three rows and columns in a picture of up to two windows along each side.
fn windows(u: &mut Unstructured<'_>) -> Result<elsa_windows> {
    let mut w = elsa_windows::default();
    for axis in 0..2 {
        w.size[axis] = u.int_in_range(1..=3)?;
        w.picture[axis] = w.size[axis] * u.int_in_range(1..=2)?;
        w.shift[axis] = u.int_in_range(0..=w.size[axis] - 1)?;
    }
    Ok(w)
}

/// Picks a table of relative positions, mostly with the number of entries that the windows need.
fn table(u: &mut Unstructured<'_>, heads: usize, windows: &elsa_windows) -> Result<elsa_table> {
    let needed = windows.size.iter().map(|side| (2 * side).saturating_sub(1)).product();
    let some = |u: &mut Unstructured<'_>, n| if u.ratio(1, 8)? { u.int_in_range(0..=30) } else { Ok(n) };
    Ok(elsa_table {
        dtype: u.int_in_range(0..=3)?,
        has_index: u.int_in_range(0..=1)?,
        entries: some(u, needed)?,
        heads: some(u, heads)?,
    })
}

/// Picks a problem with mostly consistent shapes and any other features.
///
/// # Errors
/// Returns an error if the input ends early.
pub fn problem(u: &mut Unstructured<'_>) -> Result<elsa_problem> {
    let mut p = elsa_problem::default();
    let (mut b, kv, group) = (u.int_in_range(1..=2)?, u.int_in_range(1..=2)?, u.int_in_range(1..=2)?);
    let (mut n, mut k, past) = (u.int_in_range(0..=9)?, u.int_in_range(0..=9)?, u.int_in_range(0..=4)?);
    let windowed = u.ratio(1, 4)?;
    if windowed {
        p.windows = windows(u)?;
        n = p.windows.size.iter().product();
        k = n;
        b *= p.windows.picture.iter().product::<usize>() / n;
    }
    let (d, dv) = (u.int_in_range(1..=9)?, u.int_in_range(1..=9)?);
    p.dtype = u.int_in_range(0..=3)?;
    p.q = view(u, [b, kv * group, n, d])?;
    p.k = view(u, [b, kv, k, d])?;
    p.v = view(u, [b, kv, k, dv])?;
    p.out = view(u, [b, kv * group, n, dv])?;
    if u.ratio(1, 3)? {
        p.has_past = 1;
        p.past_k = view(u, [b, kv, past, d])?;
        p.past_v = view(u, [b, kv, past, dv])?;
        p.has_present = u.int_in_range(0..=1)?;
        p.present_k = view(u, [b, kv, past + k, d])?;
        p.present_v = view(u, [b, kv, past + k, dv])?;
        if u.ratio(1, 3)? {
            p.append = 1;
            (p.past_k.strides, p.past_v.strides) = (p.present_k.strides, p.present_v.strides);
        }
    }
    if u.ratio(1, 4)? {
        p.has_scale = 1;
        p.scale = u.arbitrary()?;
    }
    if u.ratio(1, 4)? {
        p.softcap = u.arbitrary()?;
    }
    p.causal = u.int_in_range(0..=3)?;
    if u.ratio(1, 4)? {
        (p.has_window_left, p.window_left) = (u.int_in_range(0..=1)?, u.int_in_range(-2..=5)?);
        (p.has_window_right, p.window_right) = (u.int_in_range(0..=1)?, u.arbitrary()?);
    }
    if u.ratio(1, 3)? {
        p.mask = mask(u, [b, kv * group, n, k])?;
    }
    if u.ratio(1, 3)? {
        p.bias = mask(u, [b, kv * group, n, k])?;
    } else if u.ratio(1, 3)? {
        p.bias_table = table(u, kv * group, &p.windows)?;
    }
    p.has_key_lengths = u32::from(u.ratio(1, 4)?);
    if u.ratio(1, 6)? {
        p.packed = u.int_in_range(1..=3)?;
    }
    if windowed && u.ratio(7, 8)? {
        // Turns off the features that cannot be combined with windows.
        (p.causal, p.has_window_left, p.has_window_right) = (ELSA_CAUSAL_NONE, 0, 0);
        (p.has_past, p.has_present, p.append, p.has_key_lengths, p.packed) = (0, 0, 0, 0, 0);
    }
    if u.ratio(1, 32)? {
        let sizes = [&mut p.windows.picture, &mut p.windows.size, &mut p.windows.shift];
        sizes.into_iter().nth(u.choose_index(3)?).expect("three")[u.choose_index(2)?] = u.arbitrary()?;
    }
    Ok(p)
}
