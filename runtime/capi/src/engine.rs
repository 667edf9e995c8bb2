//! Engines: back ends with their worker threads.

use crate::fault::call;
use crate::growing::{Room, take_or_default};
use crate::handles::Table;
use crate::pointer::{aligned, put};
use crate::text::Text;
use crate::types::*;
use crate::{convert, lend};
use elsa_runtime::Engine;
use std::sync::Arc;

pub(crate) static ENGINES: Table<Engine> = Table::new("engine");

/// Creates an engine: a back end with its worker threads. Null options select the defaults.
///
/// Any number of threads may use an engine, and their calls run concurrently. On the CPU, calls that need several
/// worker threads run one after another; a call that needs only the calling thread, because of threads = 1 or because
/// it is small, never waits.
///
/// An engine with parallel_for creates no threads. For work that needs several threads, its calls use the host's
/// threads, at most as many as the option threads specifies. Several threads may call the hook at the same time, and a
/// thread that is inside the hook may call it again. The hook must return, must not throw, and must stay callable until
/// the engine and everything created from it are gone. A hook that calls a task twice, too late or not at all does not
/// change results: each share of the work is computed once, the calling thread computes any shares left over, and a
/// call waits for shares that have begun. A task needs the same stack size as elsa_run.
///
/// In a child process after fork, engines of the parent compute on the CPU, on the calling thread alone, with the same
/// bits; with ELSA_FALLBACK_FAIL, a call of a GPU plan returns ELSA_STATUS_UNSUPPORTED. An engine created by the child
/// has its own threads, but no GPU if the parent has used one. During the fork, no other thread of the parent may be in
/// a call of this library.
///
/// # Safety
/// Each input pointer is null or valid for reads, and nothing writes there during the call (*read*). Each output
/// pointer is null or valid for writes, and nothing else uses that memory during the call (*write*). parallel_for is
/// null or a function that obeys the rules above (*hook*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_engine_create(
    options: *const elsa_engine_options,
    engine: *mut elsa_engine,
) -> elsa_status {
    call(|| {
        aligned("engine", engine)?;
        // SAFETY: the caller keeps the clause *read*.
        let options = unsafe { take_or_default("options", options) }?;
        // SAFETY: the caller keeps the clauses *read* and *hook*.
        let (name, cores, host) =
            unsafe { (lend::thread_name(&options), lend::cores(&options)?, lend::host(&options)) };
        let options = convert::engine_options(&options)?.thread_name(name).cores(cores).host(host);
        let id = ENGINES.insert(Arc::new(Engine::new(&options)?))?;
        // SAFETY: the caller keeps the clause *write*.
        unsafe { put(engine, elsa_engine { id }) };
        Ok(())
    })
}

/// Describes the devices and limits of an engine.
///
/// # Safety
/// Each pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_engine_describe(
    engine: elsa_engine,
    info: *mut elsa_engine_info,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clause *write*.
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

/// Loads all GPU kernels of the library, so that creating plans does not have to load them. Does nothing without a GPU.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_engine_load_kernels(engine: elsa_engine) -> elsa_status {
    call(|| Ok(ENGINES.get(engine.id)?.load_kernels()?))
}

/// Cancels every call in progress on plans and streams of an engine: each returns ELSA_STATUS_CANCELLED. Any thread may
/// cancel, including from within parallel_for, read and write; elsa_engine_cancel does not wait. Calls that begin later
/// are not affected. If the call to be cancelled may not have begun yet, repeat elsa_engine_cancel until it returns.
///
/// On the CPU, a cancelled call returns when its workers have finished their current block of keys or chunk of tokens;
/// they start nothing else. On a GPU, the kernels and copies that the call has enqueued finish first, and a stream
/// enqueues no further part; elsa_run_device and its counterparts for other operators are not cancelled. A callback
/// that is running returns first.
///
/// After a cancelled call, its outputs contain any mixture of old and new elements; nothing else was written. Plan,
/// workspace, bound call and stream remain usable. Fallback does not apply to cancelled calls.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_engine_cancel(engine: elsa_engine) -> elsa_status {
    call(|| {
        ENGINES.get(engine.id)?.cancel();
        Ok(())
    })
}

/// Destroys the handle of an engine. Plans created from it keep working.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_engine_destroy(engine: elsa_engine) -> elsa_status {
    call(|| ENGINES.remove(engine.id).map(drop))
}
