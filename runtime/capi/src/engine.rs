//! Engines: a back end with its workers.

use crate::fault::call;
use crate::growing::{Room, take_or_default};
use crate::handles::Table;
use crate::pointer::{aligned, put};
use crate::text::Text;
use crate::types::*;
use crate::{convert, lend};
use elsa_runtime::{Engine, EngineOptions};

pub(crate) static ENGINES: Table<Engine> = Table::new("engine");

/// Creates an engine: a back end with its workers. Null options are the defaults.
///
/// Any number of threads may use it, and their calls run side by side. On the CPU, calls that need several of its
/// standing threads take turns; a call that needs one, by threads = 1 or because it is small, never waits.
///
/// A host that lends its threads (parallel_for) keeps the engine from having its own. Calls then use the host's for all
/// that needs more than one, at most as many as threads says. The hook may be called by several threads at once, and by
/// a thread of the host that is inside the hook already. It must return, must not throw, and may be called until the
/// engine and everything that was made with it are gone. A hook that calls a task twice, too late or not at all changes
/// no answer: each share is computed once, the caller computes what is left over, and a call waits for the shares that
/// have begun. A task needs as much stack as elsa_run.
///
/// In a child of fork the engines of the parent compute on the CPU, on the calling thread alone and with the same bits;
/// where the policy is ELSA_FALLBACK_FAIL, a call of a plan on a GPU returns ELSA_STATUS_UNSUPPORTED. An engine that
/// the child creates has threads of its own, but no GPU if the parent has used one. At the fork no other thread of the
/// parent may be in a call of this library.
///
/// # Safety
/// *read*, *write*, *hook*: parallel_for is null or such a function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_engine_create(
    options: *const elsa_engine_options,
    engine: *mut elsa_engine,
) -> elsa_status {
    call(|| {
        aligned("engine", engine)?;
        // SAFETY: *read*.
        let options = unsafe { take_or_default("options", options) }?;
        // SAFETY: *read*, *hook*.
        let (cores, host) = unsafe { (lend::cores(&options)?, lend::host(&options)) };
        let options = EngineOptions { cores, host, ..convert::engine_options(&options)? };
        let id = ENGINES.insert(Engine::new(&options)?)?;
        // SAFETY: *write*.
        unsafe { put(engine, elsa_engine { id }) };
        Ok(())
    })
}

/// Writes what an engine computes on.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_engine_describe(
    engine: elsa_engine,
    info: *mut elsa_engine_info,
) -> elsa_status {
    call(|| {
        // SAFETY: *write*.
        let room = unsafe { Room::new("info", info) }?;
        let engine = ENGINES.get(engine.id)?;
        let device = engine.device();
        let (driver, capability) = device.map_or(((0, 0), (0, 0)), |d| (d.driver, d.profile.capability));
        let name = device.map_or_else(Text::new, |device| Text::of(&device.name));
        let reason = engine.absence().map_or_else(Text::new, |reason| Text::of(reason));
        room.fill(elsa_engine_info {
            size: size_of::<elsa_engine_info>(),
            backend: convert::backend_number(engine.backend()),
            fallback: convert::fallback_number(engine.fallback()),
            threads: engine.threads(),
            device_memory: device.map_or(0, |device| device.memory),
            driver_major: driver.0,
            driver_minor: driver.1,
            capability_major: capability.0,
            capability_minor: capability.1,
            integrated: u32::from(device.is_some_and(|device| device.profile.integrated)),
            absent: u32::from(engine.absence().is_some()),
            device: name.chars(),
            reason: reason.chars(),
        });
        Ok(())
    })
}

/// Loads every GPU kernel of the library, so that plans find them loaded. Without a GPU it does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_engine_load_kernels(engine: elsa_engine) -> elsa_status {
    call(|| Ok(ENGINES.get(engine.id)?.load_kernels()?))
}

/// Cancels every call on plans and streams of an engine that has begun and not ended: each returns ELSA_STATUS_CANCELLED.
/// Any thread may call it, parallel_for, read and write included, and it does not wait. A call that begins later computes,
/// so that a cancel between two calls does nothing: where it may come before the call has begun, repeat it until the call
/// returns.
///
/// When a call returns: on the CPU the workers end what they are in at their next block of keys or chunk of tokens, and
/// begin nothing else. On a GPU the kernels and copies that the call has enqueued end first, a stream enqueues no further
/// part, and elsa_run_device and its like are not cancelled. A callback that is being called returns first.
///
/// Outputs then hold any mixture of old and new elements, and nothing else was written. Plan, workspace, frame and stream
/// stay usable. Nothing computes in place of a call that was cancelled, whatever the engine's fallback.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_engine_cancel(engine: elsa_engine) -> elsa_status {
    call(|| {
        ENGINES.get(engine.id)?.cancel();
        Ok(())
    })
}

/// Ends the handle of an engine. Plans that were made with it keep working.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_engine_destroy(engine: elsa_engine) -> elsa_status {
    call(|| ENGINES.remove(engine.id).map(drop))
}
