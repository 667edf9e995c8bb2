//! The memory that a run worked in.

use crate::cpu::memory::Memory;
use crate::cuda::workspace::GpuWorkspace;

/// The memory that a run worked in.
pub enum Worked<'w> {
    Cpu(&'w mut Memory),
    Gpu(&'w mut GpuWorkspace),
}

impl Worked<'_> {
    /// The same memory, borrowed from this.
    pub fn again(&mut self) -> Worked<'_> {
        match self {
            Worked::Cpu(memory) => Worked::Cpu(memory),
            Worked::Gpu(workspace) => Worked::Gpu(workspace),
        }
    }
}
