//! Checks the statuses of the C interface. Also makes structs, which begin with their size, in the sizes that programs
//! built for any version pass.

use elsa::*;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::CStr;
use std::ptr::NonNull;

/// Upper limit for the size of a struct in any version; the library reads no larger struct.
const LARGEST: usize = 4096;
/// Guard bytes after memory that a call writes.
const BEHIND: [u8; 16] = [0xa5; 16];

/// Returns `true` if a call succeeded. Its status must be one that the header names, and a refusal must have a message.
///
/// # Panics
/// Panics if the status is unknown, or if a refusal has no message.
pub fn accepted(status: elsa_status) -> bool {
    let known = (ELSA_STATUS_OK..ELSA_STATUS_PANIC).contains(&status) || status == ELSA_STATUS_CALLBACK;
    assert!(known, "status {status}");
    if status != ELSA_STATUS_OK {
        // SAFETY: the message ends in a zero byte and lives until the next call of this thread.
        assert!(unsafe { !CStr::from_ptr(elsa_last_error()).is_empty() });
    }
    status == ELSA_STATUS_OK
}

/// A struct in separate memory, with its required alignment.
pub struct Block {
    memory: NonNull<u8>,
    layout: Layout,
}

impl Block {
    /// Copies the first `bytes` bytes of a value; beyond the size of the value, the block contains zeros.
    fn new<T: Copy>(value: &T, bytes: usize) -> Block {
        // Every struct begins with its size, which is read even if it is wrong.
        let layout = Layout::from_size_align(bytes.max(size_of::<usize>()), align_of::<T>());
        let layout = layout.expect("sizes are small");
        // SAFETY: the layout is not empty, and no more bytes are copied than the value and the block have.
        unsafe {
            let memory = NonNull::new(alloc_zeroed(layout)).expect("memory for a struct");
            let from = (&raw const *value).cast::<u8>();
            from.copy_to_nonoverlapping(memory.as_ptr(), layout.size().min(size_of::<T>()));
            Block { memory, layout }
        }
    }

    /// Returns the address of the struct.
    pub fn get<T>(&self) -> *mut T {
        self.memory.as_ptr().cast()
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the block has this many bytes, all of them initialised, and no other reference to them exists.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.layout.size()) }
    }

    fn set_size(&mut self, size: usize) {
        self.bytes()[..size_of::<usize>()].copy_from_slice(&size.to_ne_bytes());
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// Picks the size that a struct has in some version: mostly `known`, the size in this version.
fn version(u: &mut Unstructured<'_>, known: usize) -> Result<usize> {
    Ok(match u.int_in_range(0..=15)? {
        0..=10 => known,
        11 | 12 => u.int_in_range(0..=known)?,
        13 | 14 => known + u.int_in_range(0..=40)?,
        _ => u.arbitrary()?,
    })
}

/// Makes an input struct as a program built for any version would, with as many bytes as its size field states.
///
/// # Errors
/// Returns an error if the input has ended.
pub fn read<T: Copy>(u: &mut Unstructured<'_>, value: &T) -> Result<Block> {
    let known = size_of::<T>();
    let size = version(u, known)?;
    let mut block = Block::new(value, if size > LARGEST { known } else { size });
    block.set_size(size);
    if size > known && size <= LARGEST && u.arbitrary()? {
        let at = u.int_in_range(known..=size - 1)?;
        block.bytes()[at] = u.arbitrary()?;
    }
    Ok(block)
}

/// Runs a call that writes a struct, in memory sized for any version. The call must not write beyond the size that the
/// struct states, and a refused call must not write at all.
///
/// # Errors
/// Returns an error if the input has ended.
///
/// # Panics
/// Panics if the call changes a byte that it must not write.
pub fn write<T: Copy>(
    u: &mut Unstructured<'_>,
    value: &T,
    call: impl FnOnce(*mut T) -> elsa_status,
) -> Result<bool> {
    let known = size_of::<T>();
    let size = version(u, known)?;
    let room = if size > LARGEST { known } else { size.max(size_of::<usize>()) };
    let mut block = Block::new(value, room + BEHIND.len());
    block.bytes()[size_of::<usize>()..].fill(BEHIND[0]);
    block.set_size(size);
    let done = accepted(call(block.get()));
    assert_eq!(block.bytes()[..size_of::<usize>()], size.to_ne_bytes(), "the size of a struct was changed");
    let kept = if done { size } else { size_of::<usize>() };
    assert!(
        block.bytes()[kept..].iter().all(|byte| *byte == BEHIND[0]),
        "size {size}: written from {kept} on"
    );
    Ok(done)
}
