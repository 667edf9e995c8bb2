//! The one table of micro-kernels.

use crate::kernel::Kernel;
use elsa_core::plan::InstructionSet;

/// Every micro-kernel that this architecture can have, fastest first. Which of them the machine at hand can
/// execute, each entry's `present` tells.
pub static KERNELS: &[&Kernel] = &[
    #[cfg(target_arch = "x86_64")]
    &crate::avx512::KERNEL,
    #[cfg(target_arch = "x86_64")]
    &crate::avx2::KERNEL,
    #[cfg(target_arch = "aarch64")]
    &crate::neon::KERNEL,
    &crate::scalar::KERNEL,
];

/// The kernel of an instruction set, if this architecture has it.
#[must_use]
pub fn find(set: InstructionSet) -> Option<&'static Kernel> {
    KERNELS.iter().find(|k| k.spec.set == set).copied()
}
