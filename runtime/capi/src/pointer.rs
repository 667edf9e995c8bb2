//! Pointers to the structs of the ABI: checked for null and alignment before they are used.

use crate::fault::Fault;

/// Checks that the pointer is neither null nor misaligned.
pub(crate) fn aligned<T>(argument: &str, pointer: *const T) -> Result<(), Fault> {
    if pointer.is_null() {
        return Err(Fault::null(argument));
    }
    if !pointer.is_aligned() {
        let (found, size) = (pointer as usize, align_of::<T>());
        return Err(Fault::argument(format_args!(
            "{argument}: address {found:#x}; allowed: a multiple of {size}"
        )));
    }
    Ok(())
}

/// Checks the pointer and borrows its target.
///
/// # Safety
/// The caller keeps the crate's clause *read*.
pub(crate) unsafe fn get<'a, T>(argument: &str, pointer: *const T) -> Result<&'a T, Fault> {
    aligned(argument, pointer)?;
    // SAFETY: the pointer is not null, is aligned, and is readable (clause *read*).
    Ok(unsafe { &*pointer })
}

/// # Safety
/// The caller keeps the crate's clause *write*, and `pointer` has passed [`aligned`].
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T) {
    // SAFETY: the caller keeps the clause of this function.
    unsafe { pointer.write(value) }
}
