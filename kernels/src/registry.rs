//! Lists the CPU kernels in tables, one per operator.

use crate::attention::Kernel;
use crate::attention::backward::BackwardKernel;
use crate::linear;
use crate::series::SeriesKernel;
use elsa_core::profile::InstructionSet;

/// Every attention kernel of this architecture. Kernels for the fastest instruction set come first. Among the kernels
/// for one instruction set, those for fewer queries come first. [`Kernel::is_present`] says whether this machine can
/// execute a kernel.
pub static ATTENTION: &[&Kernel] = &[
    #[cfg(all(target_arch = "x86_64", not(elsa_without = "avx512")))]
    &crate::avx512::attention::ROW_KERNEL,
    #[cfg(all(target_arch = "x86_64", not(elsa_without = "avx512")))]
    &crate::avx512::attention::KERNEL,
    #[cfg(all(target_arch = "x86_64", not(elsa_without = "avx2")))]
    &crate::avx2::attention::ROW_KERNEL,
    #[cfg(all(target_arch = "x86_64", not(elsa_without = "avx2")))]
    &crate::avx2::attention::KERNEL,
    #[cfg(target_arch = "aarch64")]
    &crate::neon::attention::ROW_KERNEL,
    #[cfg(target_arch = "aarch64")]
    &crate::neon::attention::KERNEL,
    #[cfg(not(all(target_arch = "aarch64", elsa_without = "scalar")))]
    &crate::scalar::attention::ROW_KERNEL,
    #[cfg(not(all(target_arch = "aarch64", elsa_without = "scalar")))]
    &crate::scalar::attention::KERNEL,
];

/// Iterates over the attention kernels for an instruction set. The iterator is empty if the set belongs to another
/// architecture.
pub fn attention_of(set: InstructionSet) -> impl Iterator<Item = &'static Kernel> {
    ATTENTION.iter().copied().filter(move |k| k.spec.set == set)
}

/// Returns the attention kernel for an instruction set and any number of queries; `None` if the set belongs to another
/// architecture.
#[must_use]
pub fn attention_for_any(set: InstructionSet) -> Option<&'static Kernel> {
    attention_of(set).find(|k| k.spec.most_queries == usize::MAX)
}

/// Every backward kernel of this architecture, fastest first. [`BackwardKernel::is_present`] says whether this machine
/// can execute a kernel.
pub static BACKWARD: &[&BackwardKernel] = &[
    #[cfg(all(target_arch = "x86_64", not(elsa_without = "avx512")))]
    &crate::avx512::backward::KERNEL,
    #[cfg(all(target_arch = "x86_64", not(elsa_without = "avx2")))]
    &crate::avx2::backward::KERNEL,
    #[cfg(target_arch = "aarch64")]
    &crate::neon::backward::KERNEL,
    #[cfg(not(all(target_arch = "aarch64", elsa_without = "scalar")))]
    &crate::scalar::backward::KERNEL,
];

/// Returns the backward kernel for an instruction set; `None` if the set belongs to another architecture.
#[must_use]
pub fn backward_of(set: InstructionSet) -> Option<&'static BackwardKernel> {
    BACKWARD.iter().copied().find(|k| k.spec.set == set)
}

/// Every kernel of linear attention for this architecture, fastest first. [`linear::Kernel::is_present`] says whether
/// this machine can execute a kernel.
pub static LINEAR: &[&linear::Kernel] = &[
    #[cfg(all(target_arch = "x86_64", not(elsa_without = "avx512")))]
    &crate::avx512::linear::KERNEL,
    #[cfg(all(target_arch = "x86_64", not(elsa_without = "avx2")))]
    &crate::avx2::linear::KERNEL,
    #[cfg(target_arch = "aarch64")]
    &crate::neon::linear::KERNEL,
    #[cfg(not(all(target_arch = "aarch64", elsa_without = "scalar")))]
    &crate::scalar::linear::KERNEL,
];

/// Returns the kernel of linear attention for an instruction set; `None` if the set belongs to another architecture.
#[must_use]
pub fn linear_of(set: InstructionSet) -> Option<&'static linear::Kernel> {
    LINEAR.iter().copied().find(|k| k.spec.set == set)
}

/// Kernels of recurrences, selective scans and convolutions for this architecture, fastest first.
/// [`SeriesKernel::is_present`] says whether this machine can execute them.
pub static SERIES: &[&SeriesKernel] = &[
    #[cfg(all(target_arch = "x86_64", not(elsa_without = "avx512")))]
    &crate::avx512::series::KERNEL,
    #[cfg(all(target_arch = "x86_64", not(elsa_without = "avx2")))]
    &crate::avx2::series::KERNEL,
    #[cfg(target_arch = "aarch64")]
    &crate::neon::series::KERNEL,
    #[cfg(not(all(target_arch = "aarch64", elsa_without = "scalar")))]
    &crate::scalar::series::KERNEL,
];

/// Returns the per-channel kernels for an instruction set; `None` if the set belongs to another architecture.
#[must_use]
pub fn series_of(set: InstructionSet) -> Option<&'static SeriesKernel> {
    SERIES.iter().copied().find(|k| k.spec.set == set)
}
