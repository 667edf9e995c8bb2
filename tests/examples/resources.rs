//! Prints a table of the resources of attention kernels on Tensor Cores, and how many of their blocks fit an SM of each
//! compute capability.
//!
//! `cargo run -p elsa-tests --example resources [-- --all]`
//!
//! With `--all`, the kernels that split tensors, add masks and biases, or compute refused rows are printed, too.
//! Registers are the largest number that ptxas reports for `sm_80`, `sm_87` and `sm_90`, as `cargo xtask ptx` records it.

#![forbid(unsafe_code)]

use elsa_core::attention::plan::GpuResources;
use elsa_core::profile::GpuProfile;
use elsa_kernels::cuda::GPU_KERNELS;

/// Shared memory that CUDA reserves for each block, in bytes, from compute capability 8.0 on.
const RESERVED: usize = 1 << 10;
/// Compute capabilities, each with the shared memory of an SM in KiB. A block can have all of it except [`RESERVED`].
const SMS: [(&str, usize); 3] = [("8.0", 164), ("8.7", 164), ("9.0", 228)];

/// Returns the number of blocks with `resources` that are resident on an SM with `shared_per_sm` bytes of shared memory at once.
fn resident(resources: GpuResources, shared_per_sm: usize) -> usize {
    let taken = GpuResources { shared: resources.shared + RESERVED, ..resources };
    if taken.shared > shared_per_sm {
        return 0;
    }
    taken.resident(&GpuProfile { shared_per_sm, ..GpuProfile::default() })
}

/// Returns `true` for kernels of whole calls without masks and biases.
fn is_main(name: &str) -> bool {
    name.starts_with("attention") && ["_split", "_halves", "_f16"].iter().any(|end| name.ends_with(end))
}

/// Returns the lines of the table, of all kernels on Tensor Cores or of those of [`is_main`].
fn table(all: bool) -> Vec<String> {
    let blocks = SMS.map(|(capability, kib)| format!("blocks, {capability} ({kib} KiB)")).join(" | ");
    let head = format!("| kernel | threads | registers | shared, bytes | {blocks} |");
    let shown =
        GPU_KERNELS.iter().filter(|kernel| kernel.name.contains("__sm80") && (all || is_main(kernel.name)));
    let lines = shown.map(|kernel| {
        let resources = kernel.resources();
        let GpuResources { threads, registers, shared } = resources;
        let blocks = SMS.map(|(_, kib)| resident(resources, kib << 10).to_string()).join(" | ");
        format!("| `{}` | {threads} | {registers} | {shared} | {blocks} |", kernel.name)
    });
    [head, "|---|---|---|---|---|---|---|".into()].into_iter().chain(lines).collect()
}

fn main() {
    table(std::env::args().any(|x| x == "--all")).iter().for_each(|line| println!("{line}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_this_table() {
        let guide = include_str!("../../docs/src/tensor-cores.md");
        let lines = table(false);
        assert!(lines.len() > 10, "{lines:?}");
        assert!(
            guide.contains(&(lines.join("\n") + "\n")),
            "print it: cargo run -p elsa-tests --example resources"
        );
    }

    #[test]
    fn shared_memory_limits_blocks() {
        let resources = GpuResources { threads: 128, registers: 64, shared: 40 << 10 };
        assert_eq!([81, 82, 164].map(|kib| resident(resources, kib << 10)), [1, 2, 4]);
        assert_eq!(resident(resources, 40 << 10), 0);
    }
}
