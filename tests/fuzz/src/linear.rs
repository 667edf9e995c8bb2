//! Problems of linear attention in the C interface: mostly valid, occasionally wrong in one place.

use elsa::*;
use libfuzzer_sys::arbitrary::{Result, Unstructured};

/// Picks a view of `shape`, mostly dense.
fn view(u: &mut Unstructured<'_>, shape: [usize; 4]) -> Result<elsa_view> {
    let [_, h, n, d] = shape;
    let mut view = elsa_view { shape, strides: [h * n * d, n * d, d, 1] };
    match u.int_in_range(0..=31)? {
        0 => view.strides[u.choose_index(4)?] = u.int_in_range(0..=99)?,
        1 => view.shape[u.choose_index(4)?] = u.int_in_range(0..=9)?,
        2 => view.strides[u.choose_index(3)?] = u.arbitrary()?,
        // In this layout, the tokens are the outer axis and the heads are the inner axis.
        3..=8 => view.strides = [h * n * d, d, h * d, 1],
        _ => {}
    }
    Ok(view)
}

/// Picks the flag that states whether an operand is present: mostly the value of `should`.
fn has(u: &mut Unstructured<'_>, should: bool) -> Result<u32> {
    Ok(u32::from(should != u.ratio(1, 32)?))
}

/// Picks a problem of linear attention.
///
/// # Errors
/// Returns an error if the input has ended.
pub fn linear_problem(u: &mut Unstructured<'_>) -> Result<elsa_linear_problem> {
    let most = if u.ratio(1, 32)? { 9 } else { 3 };
    let rule = u.int_in_range(0..=most)?;
    let most = if u.ratio(1, 32)? { 9 } else { 3 };
    let direction = u.int_in_range(0..=most)?;
    let (gated, delta) = (matches!(rule, 1 | 3), matches!(rule, 2 | 3));
    let packed = if u.ratio(1, 4)? { u.int_in_range(1..=3)? } else { 0 };
    let batch = if packed > 0 { 1 } else { u.int_in_range(1..=2)? };
    let keys = u.int_in_range(1..=2)?;
    let states = keys * u.int_in_range(1..=2)?;
    let queries = *u.choose(&[states, states * 2, 1])?;
    let (tokens, d, dv) = (u.int_in_range(0..=9)?, u.int_in_range(1..=9)?, u.int_in_range(1..=9)?);
    let dtype = u.int_in_range(0..=2)?;
    let sequences = if packed > 0 { packed } else { batch };
    let state = [sequences, states, d, dv];
    let gates = if u.arbitrary()? { d } else { 1 };
    let rates = if u.arbitrary()? { states } else { 1 };
    let (past, present) = (u.arbitrary()?, u.arbitrary()?);
    Ok(elsa_linear_problem {
        dtype: if u.ratio(1, 32)? { u.arbitrary()? } else { dtype },
        gate_dtype: if u.ratio(1, 4)? { dtype } else { ELSA_DTYPE_F32 },
        rule,
        direction,
        q: view(u, [batch, queries, tokens, d])?,
        k: view(u, [batch, keys, tokens, d])?,
        v: view(u, [batch, states, tokens, dv])?,
        out: view(u, [batch, queries.max(states), tokens, dv])?,
        decay: view(u, [batch, states, tokens, gates])?,
        beta: view(u, [batch, rates, tokens, 1])?,
        past_state: view(u, state)?,
        present_state: view(u, state)?,
        has_decay: has(u, gated)?,
        has_beta: has(u, delta)?,
        has_past_state: u32::from(past && direction != ELSA_DIRECTION_BIDIRECTIONAL),
        has_present_state: u32::from(present && direction != ELSA_DIRECTION_BIDIRECTIONAL),
        in_place: u32::from(u.ratio(1, 4)? && past && present),
        has_scale: u.int_in_range(0..=1)?,
        scale: u.arbitrary()?,
        has_normalize: u32::from(u.ratio(1, 4)?),
        normalize: if u.ratio(1, 8)? { u.arbitrary()? } else { 1e-6 },
        reserved: u32::from(u.ratio(1, 64)?),
        packed,
        ..elsa_linear_problem::default()
    })
}

/// Picks options for a plan of linear attention.
///
/// # Errors
/// Returns an error if the input has ended.
pub fn linear_options(u: &mut Unstructured<'_>) -> Result<elsa_linear_options> {
    Ok(elsa_linear_options {
        form: u.int_in_range(0..=6)?,
        chunk: *u.choose(&[0, 0, 8, 16, 64, 7, 512])?,
        parts: *u.choose(&[0, 0, 0, 2, 5, 1, 1000])?,
        budget: if u.ratio(1, 8)? { u.int_in_range(0..=1 << 20)? } else { 0 },
        reserved: u32::from(u.ratio(1, 64)?),
        ..elsa_linear_options::default()
    })
}
