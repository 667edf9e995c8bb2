//! Buffers: host memory that a GPU can access in place.

use crate::engine::ENGINES;
use crate::fault::{Fault, call};
use crate::growing::Room;
use crate::handles::Table;
use crate::pointer::{aligned, put};
use crate::types::*;
use elsa_runtime::HostBuffer;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Arc, PoisonError, RwLock};

static BUFFERS: Table<Buffer> = Table::new("buffer");

/// Live buffers by the address of their first byte, each with the address of its end. A buffer has one entry for its
/// host address and one for its address on the GPU.
static SPANS: RwLock<BTreeMap<usize, (usize, Arc<Buffer>)>> = RwLock::new(BTreeMap::new());

/// Host buffer. Dropping it waits for the GPU.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: HostBuffer<u8>,
    /// `true` if the engine's GPU accesses tensors in this buffer without a copy.
    in_place: bool,
}

impl Buffer {
    fn device_address(&self) -> Option<usize> {
        self.memory.device_address().and_then(|address| usize::try_from(address).ok())
    }

    /// Iterates over the start addresses of the buffer, which are its keys in [`SPANS`]: its host address and, if it has
    /// one, its address on the GPU.
    fn starts(&self) -> impl Iterator<Item = usize> {
        [Some(self.memory.data().expose_provenance()), self.device_address()].into_iter().flatten()
    }
}

/// Buffers used by a call or a bound call. They are not freed before this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    _buffers: [Option<Arc<Buffer>>; 18],
}

/// Retains every buffer that contains one of `addresses`.
pub(crate) fn held(mut addresses: impl Iterator<Item = usize>) -> Held {
    let spans = SPANS.read().unwrap_or_else(PoisonError::into_inner);
    if spans.is_empty() {
        return Held::default();
    }
    let buffers = std::array::from_fn(|_| {
        let address = addresses.next()?;
        let (_, (end, buffer)) = spans.range(..=address).next_back()?;
        (address < *end).then(|| buffer.clone())
    });
    Held { _buffers: buffers }
}

/// Allocates host memory for tensors: bytes zero bytes, aligned to 64. If the engine has a GPU, the memory is
/// page-locked where the system allows it. Without a GPU, or if page-locking fails and the policy is ELSA_FALLBACK_CPU,
/// it is ordinary memory, so that the same program runs everywhere. A buffer may contain any number of tensors, at any
/// position.
///
/// Copies:
///  - elsa_run and bound calls, on a GPU that shares the host's memory, as on a Jetson: tensors in buffers are used in
///    place, and so are tensors in memory that the program has page-locked itself. Every other tensor is copied
///    completely to or from GPU memory, before or after the kernels. copied_bytes of the report is the sum of the sizes
///    of the copied tensors.
///  - elsa_run and bound calls, on any other GPU: every tensor is copied in each run. Copies from and to buffers are
///    faster than copies from and to ordinary memory.
///  - elsa_run_device: no copies, on any GPU. device_data of elsa_buffer_info is the address of a buffer on the GPU; a
///    GPU that does not share the host's memory reads and writes the buffer over its bus.
///
/// A fork child must not use a buffer that its parent has page-locked.
///
/// # Safety
/// Each pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_buffer_create(
    engine: elsa_engine,
    bytes: usize,
    buffer: *mut elsa_buffer,
) -> elsa_status {
    call(|| {
        aligned("buffer", buffer)?;
        let engine = ENGINES.get(engine.id)?;
        if bytes == 0 {
            return Err(Fault::argument(format_args!("bytes: 0; allowed: at least 1")));
        }
        let memory = engine.host_buffer::<u8>(bytes)?;
        let integrated = engine.device().is_some_and(|device| device.profile.integrated);
        let in_place = integrated && memory.device_address().is_some();
        let id = BUFFERS.insert(Arc::new(Buffer { memory, in_place }))?;
        let made = BUFFERS.get(id)?;
        let mut spans = SPANS.write().unwrap_or_else(PoisonError::into_inner);
        for start in made.starts() {
            spans.insert(start, (start.saturating_add(bytes), made.clone()));
        }
        drop(spans);
        // SAFETY: the caller keeps the clause *write*.
        unsafe { put(buffer, elsa_buffer { id }) };
        Ok(())
    })
}

/// Describes the addresses and size of a buffer.
///
/// # Safety
/// Each pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_buffer_describe(
    buffer: elsa_buffer,
    info: *mut elsa_buffer_info,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clause *write*.
        let room = unsafe { Room::new("info", info) }?;
        let buffer = BUFFERS.get(buffer.id)?;
        room.fill(elsa_buffer_info {
            size: size_of::<elsa_buffer_info>(),
            data: buffer.memory.data().cast(),
            device_data: buffer.device_address().map_or(ptr::null_mut(), ptr::without_provenance_mut),
            bytes: buffer.memory.len(),
            page_locked: u32::from(buffer.memory.is_pinned()),
            in_place: u32::from(buffer.in_place),
        });
        Ok(())
    })
}

/// Destroys the handle of a buffer. The buffer's memory is freed when no call and no bound call uses a tensor or a
/// list that begins in it; freeing it waits for all work submitted to the GPU's context. The caller must ensure that
/// nothing else uses the memory: neither the program itself, nor a workspace in it, nor elsa_states_merge or
/// elsa_states_finish.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_buffer_destroy(buffer: elsa_buffer) -> elsa_status {
    call(|| {
        let ended = BUFFERS.remove(buffer.id)?;
        let mut spans = SPANS.write().unwrap_or_else(PoisonError::into_inner);
        let kept = ended.starts().map(|start| spans.remove(&start)).collect::<Vec<_>>();
        drop(spans);
        // Freed outside of the lock.
        drop((ended, kept));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Input of 8 bytes at the address `at`.
    fn input(at: usize) -> elsa_input {
        elsa_input { data: ptr::without_provenance(at), bytes: 8 }
    }

    #[test]
    fn a_call_keeps_the_buffers_in_which_its_tensors_begin() {
        let mut engine = elsa_engine::default();
        let options = elsa_engine_options { backend: ELSA_BACKEND_SCALAR, threads: 1, ..Default::default() };
        let mut buffers = [elsa_buffer::default(); 2];
        let mut info = [elsa_buffer_info::default(); 2];
        // SAFETY: the pointers are to local structs that no other thread uses.
        unsafe {
            assert_eq!(crate::elsa_engine_create(&raw const options, &raw mut engine), ELSA_STATUS_OK);
            for (buffer, info) in buffers.iter_mut().zip(&mut info) {
                assert_eq!(elsa_buffer_create(engine, 100, buffer), ELSA_STATUS_OK);
                assert_eq!(elsa_buffer_describe(*buffer, info), ELSA_STATUS_OK);
            }
        }
        let at = info.map(|info| info.data.addr());
        let weak = buffers.map(|buffer| Arc::downgrade(&BUFFERS.get(buffer.id).unwrap()));
        // `q` is the last byte of the first buffer, and `k` begins just past the second buffer.
        let inputs = elsa_inputs { q: input(at[0] + 99), k: input(at[1] + 100), ..Default::default() };
        let held_of = |inputs: &elsa_inputs| held([inputs.q, inputs.k].map(|x| x.data.addr()).into_iter());
        let kept = held_of(&inputs);
        for buffer in buffers {
            assert_eq!(elsa_buffer_destroy(buffer), ELSA_STATUS_OK);
            assert_eq!(elsa_buffer_destroy(buffer), ELSA_STATUS_HANDLE);
        }
        assert_eq!(weak.each_ref().map(|weak| weak.strong_count() > 0), [true, false]);
        drop(kept);
        assert_eq!(weak[0].strong_count(), 0);
        assert!(held_of(&inputs)._buffers.iter().all(Option::is_none));
        assert_eq!(crate::elsa_engine_destroy(engine), ELSA_STATUS_OK);
    }
}
