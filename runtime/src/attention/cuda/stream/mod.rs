//! Computes attention on a GPU whose memory is too small for the keys: they are streamed in chunks past resident queries.
//!
//! **The naive way**, for each block of queries and each chunk of keys:
//!
//! ```text
//! read the chunk            copy it to the device            (m, S, W) ← (m, S, W) ⊕ attention(block, chunk)
//! ```
//!
//! The device waits for each copy, and a chain of merges has other bits than the in-memory run.
//!
//! **Why the code differs.**
//!
//! 1. *Two buffers, two streams.* Chunk `i + 1` is copied while chunk `i` is computed. An event after each copy delays the
//!    products until their keys have arrived; the host refills a buffer when the products of its chunk are done. Only
//!    page-locked memory can be read by a copy engine directly.
//! 2. *If the GPU shares the host's memory, reading is the copy.* Chunks are read into page-locked memory that the device has
//!    in its address space, and keys that already are in such memory are used in place.
//! 3. *A chunk is a power of two of splits*, which are those of the in-memory run: the attention kernels write their partial
//!    states. The states of a chunk's splits are a subtree of the tree over all splits, and pending states wait for their
//!    right neighbour in a binary counter ([`steps`]), one slot for each level. So bits depend on the keys of a split, not on
//!    chunks, resident queries, or the source of the keys.
//! 4. *States stay in base-2 units on the device.* An integer reference makes every merge exact except for its additions. The
//!    kernel that merges the last chunk converts the units.
//! 5. *Masks and biases are transferred with the keys*, as the box of a block and a chunk ([`added`]); a table is transferred
//!    once. A past comes before the new keys and moves the diagonal in the same way as queries before the first would.
//!    Windows are processed picture by picture, undivided, since positions in a picture are those in the call; packed
//!    sequences one by one.
//! 6. *Everything is allocated before the first product*, page-locked memory is written once, and the system's limits are
//!    checked first ([`available_memory`](crate::available_memory)): beyond them Linux kills a process instead of refusing
//!    memory.

mod added;
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
    DeviceKeys, FillAdded, FillKeys, FillRows, StreamBox, StreamCall, StreamKeys, StreamRows, StreamTimes,
    StreamTokens, TakeRows,
};
pub use engine::GpuStream;
pub use fit::{Fitted, StreamBudget, StreamWants};
pub use plan::{GpuStreamOptions, KeysFrom, StreamDivision};
