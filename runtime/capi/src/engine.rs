//! Engines: a back end with its workers.

use crate::convert;
use crate::fault::call;
use crate::handles::Table;
use crate::pointer::{aligned, get_or, put};
use crate::types::*;
use elsa_runtime::Engine;

pub(crate) static ENGINES: Table<Engine> = Table::new("engine");

/// Creates an engine: a back end with its workers. Null options are the defaults.
///
/// Any number of threads may use it. On the CPU they take turns.
///
/// In a child of fork the engines of the parent compute on the CPU, on the calling thread alone and with the same bits;
/// where the policy is ELSA_FALLBACK_FAIL, a call of a plan on a GPU returns ELSA_STATUS_UNSUPPORTED. An engine that
/// the child creates has threads of its own, but no GPU if the parent has used one. At the fork no other thread of the
/// parent may be in a call of this library.
///
/// # Safety
/// *read*, *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_engine_create(
    options: *const elsa_engine_options,
    engine: *mut elsa_engine,
) -> elsa_status {
    call(|| {
        aligned("engine", engine)?;
        let default = elsa_engine_options::default();
        // SAFETY: *read*.
        let options = unsafe { get_or("options", options, &default) }?;
        let id = ENGINES.insert(Engine::new(&convert::engine_options(options)?)?)?;
        // SAFETY: *write*.
        unsafe { put(engine, elsa_engine { id }) };
        Ok(())
    })
}

/// Writes the back end that computes, one of ELSA_BACKEND_*, and the number of CPU threads.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_engine_info(
    engine: elsa_engine,
    backend: *mut elsa_backend,
    threads: *mut usize,
) -> elsa_status {
    call(|| {
        aligned("backend", backend)?;
        aligned("threads", threads)?;
        let engine = ENGINES.get(engine.id)?;
        // SAFETY: *write*.
        unsafe {
            put(backend, convert::backend_number(engine.backend()));
            put(threads, engine.threads());
        }
        Ok(())
    })
}

/// Ends the handle of an engine. Plans that were made with it keep working.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_engine_destroy(engine: elsa_engine) -> elsa_status {
    call(|| ENGINES.remove(engine.id).map(drop))
}
