//! The memory that a run worked in.

use super::cpu::plan::CpuWorkspace;
use crate::cuda::workspace::GpuWorkspace;

/// The memory that a run worked in.
pub enum Worked<'w> {
    Cpu(&'w mut CpuWorkspace),
    Gpu(&'w mut GpuWorkspace),
}

impl Worked<'_> {
    /// The same memory, borrowed from this.
    pub fn again(&mut self) -> Worked<'_> {
        match self {
            Worked::Cpu(workspace) => Worked::Cpu(workspace),
            Worked::Gpu(workspace) => Worked::Gpu(workspace),
        }
    }
}
