//! Conversion of masks of unsupported types.

use crate::fault::{Fault, call};
use crate::memory::{Buffer, Unchecked, apart};
use crate::types::*;
use elsa_core::attention::mask::{attended, rounded};
use std::ffi::c_void;

/// Converts count elements of a mask or a bias whose type has no ELSA_MASK_* constant. Integers become bytes of
/// ELSA_MASK_BOOL: zero means not attended, any other number attended. f64 values become ELSA_MASK_F32, rounded to
/// nearest; finite values stay finite, so that the lowest f64 value becomes the lowest f32 value. A mask of 8-bit
/// integers already is an ELSA_MASK_BOOL.
///
/// # Safety
/// from holds count elements of the source type, and nothing writes there during the call (*read*). to has room for
/// count converted elements, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_mask_convert(
    source: elsa_mask_source,
    from: *const c_void,
    count: usize,
    to: *mut c_void,
) -> elsa_status {
    call(|| {
        let (size, size_made) = match source {
            ELSA_MASK_SOURCE_I32 => (size_of::<i32>(), size_of::<u8>()),
            ELSA_MASK_SOURCE_I64 => (size_of::<i64>(), size_of::<u8>()),
            ELSA_MASK_SOURCE_F64 => (size_of::<f64>(), size_of::<f32>()),
            found => {
                return Err(Fault::argument(format_args!(
                    "source: {found}; allowed: one of ELSA_MASK_SOURCE_*"
                )));
            }
        };
        let buffer = |name, data, size| {
            Buffer::new(name, Unchecked { data, bytes: count.saturating_mul(size) }, count, size)
        };
        let (to, from) = (buffer("to", to, size_made)?, buffer("from", from.cast_mut(), size)?);
        apart([(true, to), (false, from)].into_iter())?;
        // SAFETY: the caller keeps the clauses *read* and *write*; the buffers have been checked for elements of these
        // sizes and share no byte.
        unsafe {
            match source {
                ELSA_MASK_SOURCE_I32 => convert(from.read(), to.write(), |x: i32| attended(x.into())),
                ELSA_MASK_SOURCE_I64 => convert(from.read(), to.write(), attended),
                _ => convert(from.read(), to.write(), rounded),
            }
        }
        Ok(())
    })
}

fn convert<S: Copy, T>(from: &[S], to: &mut [T], each: impl Fn(S) -> T) {
    for (from, to) in from.iter().zip(to) {
        *to = each(*from);
    }
}
