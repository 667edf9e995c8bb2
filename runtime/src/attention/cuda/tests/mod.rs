//! Tests of tensors and workspaces in device memory.

mod buffers;
mod kept;
mod splits;
mod tensors;
