//! Tests of tensors and workspaces in memory of the device.

mod buffers;
mod tensors;
