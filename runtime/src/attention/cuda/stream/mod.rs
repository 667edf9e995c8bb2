//! Computes attention on a GPU whose memory is too small for the keys: they are streamed in chunks past resident queries.
//!
//! **The naive way**, for each block of queries and each chunk of keys:
//!
//! ```text
//! read the chunk            copy it to the device            (m, S, W) ← (m, S, W) ⊕ attention(block, chunk)
//! ```
//!
//! The device waits for each copy, and a chain of merges produces bits that differ from those of the in-memory run.
//!
//! **Why the code differs.**
//!
//! 1. *Two buffers, two streams.* Chunk `i + 1` is copied while chunk `i` is computed. An event after each copy delays
//!    the products until their keys have arrived; the host refills a buffer when the products of its chunk are done.
//!    Buffers are page-locked, because a copy engine can read no other host memory directly.
//! 2. *If the GPU shares the host's memory, nothing is copied.* Chunks are read into page-locked memory that is mapped
//!    into the device's address space. Keys that are already in page-locked memory are used in place.
//! 3. *The number of splits in a chunk is a power of two*, and the splits are those of the in-memory run. The attention
//!    kernels write the partial states of the splits. The states of a chunk's splits are a subtree of the tree over all
//!    splits. A complete state waits for its right neighbour in a binary counter ([`steps`]), which has one slot per
//!    level of the tree. So bits depend on the number of keys per split, not on chunks, resident queries, or the source
//!    of the keys.
//! 4. *States stay in base-2 units on the device.* If references are integers, a merge rounds only in its additions. The
//!    kernel that merges the last chunk converts the units.
//! 5. *Masks and biases are transferred with the keys*, as the box for a block and a chunk ([`addends`]); a table is
//!    transferred once. Past keys come before the new keys, and move the diagonal by the number of past keys. Windows
//!    are processed picture by picture and are not divided, since a table of positions refers to the complete picture.
//!    Packed sequences are processed one by one.
//! 6. *Everything is allocated before the first product.* Page-locked memory is written once. The system's limits are
//!    checked first ([`available_memory`](crate::available_memory)), because Linux kills a process that exceeds them
//!    instead of refusing memory.

mod addends;
mod bring;
mod call;
mod engine;
mod fit;
mod memory;
mod plan;
mod run;
mod steps;
#[cfg(test)]
mod tests;

pub use call::{
    DeviceKeys, FillAddends, FillKeys, FillRows, StreamBox, StreamCall, StreamKeys, StreamRows, StreamTimes,
    StreamTokens, TakeRows,
};
pub use engine::GpuStream;
pub use fit::{Fitted, StreamBudget, StreamWants};
pub use plan::{GpuStreamOptions, KeysFrom, StreamDivision};
