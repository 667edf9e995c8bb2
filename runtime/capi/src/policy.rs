//! The policy of an engine: what happens where its GPU cannot compute.

use crate::convert;
use crate::engine::ENGINES;
use crate::fault::call;
use crate::pointer::{aligned, put};
use crate::types::*;

/// Writes the fallback policy of an engine, one of ELSA_FALLBACK_*.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_engine_fallback(
    engine: elsa_engine,
    fallback: *mut elsa_fallback,
) -> elsa_status {
    call(|| {
        aligned("fallback", fallback)?;
        let value = convert::fallback_number(ENGINES.get(engine.id)?.fallback());
        // SAFETY: *write*.
        unsafe { put(fallback, value) };
        Ok(())
    })
}
