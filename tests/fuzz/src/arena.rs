//! Handles and tensors for hostile calls. Handles are occasionally stale. Tensors are stored in an arena. Most tensors
//! match their descriptions; some are misaligned, too short, overlapping or null.

use elsa::*;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use std::ptr::null_mut;

/// Size of an arena in bytes.
pub const ARENA: usize = 1 << 15;

/// Picks one of the handles in `from`, or occasionally `none`, which is not a handle.
///
/// # Errors
/// Returns an error if the input has ended.
pub fn pick<T: Copy>(u: &mut Unstructured<'_>, from: &[T], none: T) -> Result<T> {
    if from.is_empty() || u.ratio(1, 16)? { Ok(none) } else { u.choose(from).copied() }
}

/// Picks memory in an arena for a view. In most cases, the memory has the number of bytes that the view requires.
fn memory(
    u: &mut Unstructured<'_>,
    arena: *mut u8,
    view: &elsa_view,
    dtype: u32,
) -> Result<(*mut u8, usize)> {
    if view.shape[0] == 0 || u.ratio(1, 24)? {
        return Ok((null_mut(), if u.ratio(1, 8)? { 4 } else { 0 }));
    }
    let size = if dtype == ELSA_DTYPE_F32 { 4 } else { 2 };
    let reach = view.shape.iter().zip(&view.strides).map(|(n, s)| n.saturating_sub(1).wrapping_mul(*s));
    let needed = reach.fold(1usize, usize::wrapping_add).wrapping_mul(size);
    let mut at = u.int_in_range(0..=ARENA / 64)? * 32;
    if u.ratio(1, 24)? {
        at += u.int_in_range(0..=3)?;
    }
    let room = ARENA - at;
    let bytes = if u.ratio(1, 24)? { u.int_in_range(0..=room)? } else { needed.min(room) };
    Ok((arena.wrapping_add(at), bytes))
}

/// Picks a tensor for a call to read.
///
/// # Errors
/// Returns an error if the input has ended.
pub fn input(u: &mut Unstructured<'_>, arena: *mut u8, view: &elsa_view, dtype: u32) -> Result<elsa_input> {
    let (data, bytes) = memory(u, arena, view, dtype)?;
    Ok(elsa_input { data: data.cast_const().cast(), bytes })
}

/// Picks a tensor for a call to write.
///
/// # Errors
/// Returns an error if the input has ended.
pub fn output(u: &mut Unstructured<'_>, arena: *mut u8, view: &elsa_view, dtype: u32) -> Result<elsa_output> {
    let (data, bytes) = memory(u, arena, view, dtype)?;
    Ok(elsa_output { data: data.cast(), bytes })
}

/// Returns the view of a dense tensor.
#[must_use]
pub fn dense(shape: [usize; 4]) -> elsa_view {
    let m = |a: usize, b: usize| a.wrapping_mul(b);
    let [_, h, n, d] = shape;
    elsa_view { shape, strides: [m(h, m(n, d)), m(n, d), d, 1] }
}
