//! Callbacks of the streams of the fuzz target `capi`.

use elsa::*;
use std::ffi::c_void;

/// For each callback of a stream, the number of calls that remain until the callback ends the run.
pub struct Left {
    /// Calls of [`fill`].
    pub reads: usize,
    /// Calls of [`drain`] and [`note`].
    pub writes: usize,
}

/// Returns the number of bytes from the start of the first row to the end of the last.
fn extent(rows: &elsa_rows) -> usize {
    let last = (0..3).fold(rows.length, |last, axis| last + (rows.count[axis] - 1) * rows.strides[axis]);
    last * rows.element_bytes as usize
}

/// Decrements the number of calls left. Returns an error, which ends the run, when no call is left.
fn counted(left: &mut usize) -> i32 {
    *left = left.saturating_sub(1);
    if *left == 0 { -4 } else { 0 }
}

/// Reads rows for a stream: fills everything from the first to the last row.
///
/// # Safety
/// `user` is a [`Left`], and the library passes valid rows and `bytes` bytes of memory.
///
/// # Panics
/// Panics if the rows do not match the memory.
pub unsafe extern "C" fn fill(
    user: *mut c_void,
    rows: *const elsa_rows,
    to: *mut c_void,
    bytes: usize,
) -> i32 {
    // SAFETY: the library passes valid rows and `bytes` bytes of memory, and only this callback uses the field `reads`.
    let (rows, left) = unsafe { (&*rows, &mut (*user.cast::<Left>()).reads) };
    assert!(rows.operand < ELSA_OPERAND_OUT && bytes == extent(rows), "{rows:?}");
    // SAFETY: as above.
    unsafe { to.cast::<u8>().write_bytes(rows.first[2] as u8 & 0x3f, bytes) };
    counted(left)
}

/// Accepts rows of a stream: reads everything from the first to the last row.
///
/// # Safety
/// `user` is a [`Left`], and the library passes valid rows and `bytes` bytes of memory.
///
/// # Panics
/// Panics if the rows do not match the memory.
pub unsafe extern "C" fn drain(
    user: *mut c_void,
    rows: *const elsa_rows,
    from: *const c_void,
    bytes: usize,
) -> i32 {
    // SAFETY: the library passes valid rows and `bytes` bytes of memory, and only this callback uses the field
    // `writes`.
    let (rows, left) = unsafe { (&*rows, &mut (*user.cast::<Left>()).writes) };
    assert!(rows.operand >= ELSA_OPERAND_OUT && bytes == extent(rows), "{rows:?}");
    // SAFETY: as above.
    std::hint::black_box(unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) }.iter().max());
    counted(left)
}

/// Accepts the number of a finished unit.
///
/// # Safety
/// `user` is a [`Left`].
pub unsafe extern "C" fn note(user: *mut c_void, _unit: usize) -> i32 {
    // SAFETY: only this callback and `drain`, which the same thread calls, use the field `writes`.
    counted(unsafe { &mut (*user.cast::<Left>()).writes })
}
