//! Attention on a GPU whose keys do not fit its memory: they pass resident queries in chunks.
//!
//! **The naive way**, for each block of queries and each chunk of keys:
//!
//! ```text
//! read the chunk            copy it to the device            (m, S, W) ← (m, S, W) ⊕ attention(block, chunk)
//! ```
//!
//! The device waits for each copy, and a chain of merges has other bits than the run in memory.
//!
//! **Why the code differs.**
//!
//! 1. *Two buffers, two streams.* Chunk `i + 1` is copied under chunk `i`. An event behind each copy holds the products
//!    back until their keys are there; the host fills a buffer again when the products of the chunk that it held are
//!    done. Page-locked memory is what a copy engine reads by itself.
//! 2. *Where the GPU shares the host's memory, reading is the copy.* Chunks are read into page-locked memory that the
//!    device has in its address space, and keys that lie in such memory are used where they are.
//! 3. *A chunk is a power of two of splits*, which are those of the run in memory: the attention kernels write their
//!    partial states. The states of a chunk's splits are a subtree of the tree over all splits, and pending states wait
//!    for their right neighbour in a binary counter ([`steps`]), one slot for each level. So bits depend on the keys of a
//!    split, not on chunks, resident queries, or where the keys come from.
//! 4. *States stay in base-2 units on the device.* A whole reference makes every merge exact but for its additions. The
//!    kernel that merges the last chunk converts.
//! 5. *What changes scores comes with the keys.* A mask or a bias is brought as the box of a block and a chunk ([`added`]),
//!    a table once. A past comes before the new keys and moves the diagonal as queries before the first would. Windows
//!    come picture by picture, undivided, since positions in a picture are those in the call; packed sequences one by one.
//! 6. *Everything is allocated before the first product*, page-locked memory is written once, and the system's limits are
//!    asked first ([`available_memory`](crate::available_memory)): past them Linux ends a process instead of refusing.

mod added;
mod bring;
mod call;
mod engine;
mod error;
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
pub use error::GpuStreamError;
pub use fit::{Fitted, StreamBudget, StreamWants};
pub use plan::{GpuStreamOptions, KeysFrom, StreamDivision};
