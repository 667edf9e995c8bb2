//! The working memory of a run.

use crate::cpu::memory::Memory;
use crate::cuda::workspace::GpuWorkspace;

/// The working memory of a run.
pub enum RunMemory<'w> {
    Cpu(&'w mut Memory),
    Gpu(&'w mut GpuWorkspace),
}

impl RunMemory<'_> {
    /// Reborrows the same memory.
    pub fn again(&mut self) -> RunMemory<'_> {
        match self {
            RunMemory::Cpu(memory) => RunMemory::Cpu(memory),
            RunMemory::Gpu(workspace) => RunMemory::Gpu(workspace),
        }
    }
}
