//! The working memory of a run.

use crate::cpu::memory::Memory;
use crate::cuda::workspace::GpuWorkspace;

/// The working memory of a run.
pub enum Worked<'w> {
    Cpu(&'w mut Memory),
    Gpu(&'w mut GpuWorkspace),
}

impl Worked<'_> {
    /// Reborrows the same memory.
    pub fn again(&mut self) -> Worked<'_> {
        match self {
            Worked::Cpu(memory) => Worked::Cpu(memory),
            Worked::Gpu(workspace) => Worked::Gpu(workspace),
        }
    }
}
