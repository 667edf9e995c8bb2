//! The one table of micro-kernels.

use crate::kernel::Kernel;
use elsa_core::profile::InstructionSet;

/// Every micro-kernel that this architecture can have: instruction sets fastest first, and within one those
/// for fewer queries first. Which of them the machine at hand can
/// execute, each entry's `present` tells.
pub static KERNELS: &[&Kernel] = &[
    #[cfg(target_arch = "x86_64")]
    &crate::avx512::ROW_KERNEL,
    #[cfg(target_arch = "x86_64")]
    &crate::avx512::KERNEL,
    #[cfg(target_arch = "x86_64")]
    &crate::avx2::ROW_KERNEL,
    #[cfg(target_arch = "x86_64")]
    &crate::avx2::KERNEL,
    #[cfg(target_arch = "aarch64")]
    &crate::neon::ROW_KERNEL,
    #[cfg(target_arch = "aarch64")]
    &crate::neon::KERNEL,
    &crate::scalar::ROW_KERNEL,
    &crate::scalar::KERNEL,
];

/// The kernels of an instruction set, if this architecture has it.
pub fn of(set: InstructionSet) -> impl Iterator<Item = &'static Kernel> {
    KERNELS.iter().copied().filter(move |k| k.spec.set == set)
}

/// The kernel of an instruction set that takes any number of queries, if this architecture has it.
#[must_use]
pub fn find(set: InstructionSet) -> Option<&'static Kernel> {
    of(set).find(|k| k.spec.most_queries == usize::MAX)
}
