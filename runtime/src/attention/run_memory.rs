//! The working memory of a run, on either back end.

use crate::cpu::memory::Memory;
use crate::cuda::workspace::GpuWorkspace;

/// The working memory of a run: a CPU workspace or a GPU workspace.
pub enum RunMemory<'w> {
    Cpu(&'w mut Memory),
    Gpu(&'w mut GpuWorkspace),
}

impl RunMemory<'_> {
    /// Reborrows the memory for a shorter lifetime.
    pub fn again(&mut self) -> RunMemory<'_> {
        match self {
            RunMemory::Cpu(memory) => RunMemory::Cpu(memory),
            RunMemory::Gpu(workspace) => RunMemory::Gpu(workspace),
        }
    }
}
