//! Predicts the latency of a plan on a GPU that is not available, from the machine code of its kernels.
//!
//! **The formula.** If a launch of `n` blocks runs on `P` multiprocessors, the busiest multiprocessor gets `ceil(n /
//! P)` blocks. Its registers, shared memory and threads allow `r` blocks at once, so its blocks run in waves of `r`.
//! The remaining blocks run in a last, smaller wave. The busiest unit of the multiprocessor, or a single warp,
//! determines the duration of a wave of `k` blocks:
//!
//! ```text
//! wave(k) = norm(issue, shared, alone)
//! issue   = k · warps / schedulers · (slots + conflicts) / efficiency   cycles of the schedulers
//! shared  = k · warps · bytes of shared memory / 128                 cycles of the shared memory
//! alone   = cycles of one warp that never waits for another
//! norm    = (issue^4 + shared^4 + alone^4)^(1/4)
//! launch  = overhead + max(waves / clock, bytes / bandwidth)
//! ```
//!
//! The norm is slightly above the largest of the three: if a unit is almost as busy as the busiest one, the cycles of
//! the two do not overlap completely.
//!
//! **Differences between GPUs.** Maxwell and Pascal (compute capability 5 and 6) issue two instructions of a warp in
//! one cycle if the compiler has paired them, and multiply integers in three steps. Newer GPUs issue one instruction of
//! a warp at a time and multiply integers in one step. The counts come from code for capability 6.2. A driver compiles
//! the same PTX to different code for a newer GPU. [`GpuMachine::efficiency`] accounts for this difference. It is the
//! share of its issue slots that the newer GPU's code fills, if the filled slots are counted in the code for capability
//! 6.2.
//!
//! A prediction is not a measurement: it ignores caches, page hits in DRAM, and other load on the machine.

use elsa_core::attention::plan::{GpuChoice, GpuResources, Summation};
use elsa_core::profile::GpuProfile;

/// Instruction and cycle counts of one warp for a part of a kernel, from code for compute capability 6.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuPart {
    /// Number of executed instructions.
    pub instructions: u32,
    /// Number of pairs of instructions that are issued in one cycle.
    pub pairs: u32,
    /// Number of floating-point multiply-adds, of f32 or of pairs of f16.
    pub fma: u32,
    /// Number of floating-point instructions other than multiply-adds.
    pub floats: u32,
    /// Number of integer instructions, moves and jumps.
    pub integers: u32,
    /// Number of multiplications of 16-bit integers; three of them form a 32-bit multiplication.
    pub xmad: u32,
    /// Number of instructions for exponentials, conversions and f64 arithmetic.
    pub special: u32,
    /// Number of instructions that access shared memory.
    pub shared: u32,
    /// Number of 32-bit words that a lane moves to or from shared memory.
    pub shared_words: u32,
    /// Number of 32-bit words that a lane moves to or from global memory.
    pub global_words: u32,
    /// Number of cycles in which a multiply-add waits for a register bank.
    pub conflicts: u32,
    /// Number of wait cycles that the control codes prescribe.
    pub stalls: u32,
    /// Number of cycles of a warp that runs alone: the cycles of the control codes, and the waits for memory and for
    /// results.
    pub alone: u32,
}

/// Instruction and cycle counts of each part of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuCost {
    /// Number of keys per tile; zero for a kernel without tiles, whose only part is `before`.
    pub keys: u32,
    /// Counts for the part before the first tile.
    pub before: GpuPart,
    /// Counts for a tile of keys that every row attends.
    pub plain: GpuPart,
    /// Counts for a tile at the end of the keys or on the diagonal.
    pub edge: GpuPart,
    /// Counts for the addition of partial sums to the sums in memory.
    pub flush: GpuPart,
    /// Counts for the part after the last tile.
    pub after: GpuPart,
}

/// Properties of a machine that a prediction needs in addition to its [`GpuProfile`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuMachine {
    /// Multiprocessors, registers and clock.
    pub profile: GpuProfile,
    /// Memory bandwidth in 10⁹ bytes per second.
    pub bandwidth_gbs: f64,
    /// Time in microseconds from the end of one kernel to the first instruction of the next kernel. The same time
    /// passes before the first kernel.
    pub launch_us: f64,
    /// Number of issue slots that the kernel's code for capability 6.2 fills, divided by the number of issue slots that
    /// pass while this GPU executes its own code of the same kernel.
    pub efficiency: f64,
}

/// Predicted launch of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuLaunch {
    /// Number of blocks.
    pub blocks: usize,
    /// Number of blocks that run on a multiprocessor at once.
    pub resident: usize,
    /// Number of waves of blocks on the busiest multiprocessor.
    pub waves: usize,
    /// Time in microseconds, including the launch overhead.
    pub us: f64,
}

/// The predicted latency of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuPrediction {
    /// Launch of the attention kernel.
    pub attention: GpuLaunch,
    /// Launch of the merge kernel, if keys are divided.
    pub merge: Option<GpuLaunch>,
}

impl GpuPrediction {
    /// Returns the total time of the launches in microseconds.
    #[must_use]
    pub fn us(&self) -> f64 {
        self.attention.us + self.merge.map_or(0.0, |merge| merge.us)
    }
}

/// The merge kernel of a plan with divided keys.
#[derive(Clone, Copy, Debug)]
pub struct GpuMerge {
    /// Instruction and cycle counts of the kernel.
    pub cost: GpuCost,
    /// Resources of a multiprocessor that a block occupies.
    pub resources: GpuResources,
    /// Number of blocks.
    pub blocks: usize,
}

/// Number of schedulers of a multiprocessor, on every device from compute capability 5.0 on.
const SCHEDULERS: f64 = 4.0;
/// Number of lanes of a warp.
const WARP: usize = 32;
/// Number of bytes that the shared memory of a multiprocessor moves per cycle. `SHARED_ALIKE` is the minimum number of
/// lanes that read the same bytes in one request.
const SHARED_BYTES: f64 = 128.0;
const SHARED_ALIKE: f64 = 2.0;
/// Number of instructions for a 32-bit integer multiplication on devices that need several.
const PRODUCT_STEPS: f64 = 3.0;

impl GpuPart {
    /// Returns the number of issue slots that the part fills on a device of compute capability `capability`.
    fn slots(&self, capability: (u32, u32)) -> f64 {
        let all = f64::from(self.instructions);
        match capability.0 {
            0..=6 => all - f64::from(self.pairs),
            _ => all - f64::from(self.xmad) * (PRODUCT_STEPS - 1.0) / PRODUCT_STEPS,
        }
    }
}

/// Returns `Σ x^4` to the power of 1/4.
pub(super) fn norm(terms: [f64; 3]) -> f64 {
    let sum: f64 = terms.iter().map(|x| x * x * (x * x)).sum();
    libm::sqrt(libm::sqrt(sum))
}

/// Returns the average share of its tiles that a block of a causal problem executes. The average is over the blocks of
/// a multiprocessor that gets `most` blocks. Over all blocks of the problem, the average share is a half. If the
/// longest blocks come first, one block of the multiprocessor is counted with all of its tiles; otherwise the average
/// is assumed to be midway between a half and one.
fn causal_share(longest_first: bool, most: usize) -> f64 {
    if longest_first { 0.5 + 0.5 / most.max(1) as f64 } else { 0.75 }
}

/// Parts of a kernel, each with the number of times that a block executes it.
pub(super) type Work<'a> = [(&'a GpuPart, f64); 5];

/// Returns the cycles that `blocks` concurrent blocks of `warps` warps take on one multiprocessor.
fn wave(work: &Work<'_>, blocks: f64, warps: f64, machine: &GpuMachine) -> f64 {
    let capability = machine.profile.capability;
    let cycles = |(part, times): &(&GpuPart, f64)| {
        let conflicts = if capability.0 <= 6 { f64::from(part.conflicts) } else { 0.0 };
        let issue = (part.slots(capability) + conflicts) * libm::fmax(blocks * warps / SCHEDULERS, 1.0);
        let moved = f64::from(part.shared_words) * (4 * WARP) as f64 / SHARED_ALIKE;
        let shared = moved * blocks * warps / SHARED_BYTES;
        times * norm([issue / machine.efficiency, shared, f64::from(part.alone)])
    };
    work.iter().map(cycles).sum()
}

/// Predicts a launch of `blocks` blocks that move `bytes` bytes to and from memory; `live` is the share of warps with
/// rows.
pub(super) fn launch(
    work: &Work<'_>,
    resources: &GpuResources,
    blocks: usize,
    live: f64,
    bytes: f64,
    machine: &GpuMachine,
) -> GpuLaunch {
    let profile = &machine.profile;
    let resident = resources.resident(profile);
    let warps = resources.threads.div_ceil(WARP) as f64;
    let most = blocks.div_ceil(profile.sms.max(1));
    // A block that ends early makes room for the next if there are several waves.
    let waves = most.div_ceil(resident);
    let full = (most / resident) as f64;
    let rest = most % resident;
    // Over several waves, the numbers of rows per block average out. The last wave is assumed to take as long as a wave
    // of blocks with all of their rows.
    let average = if waves > 1 { warps * live } else { warps };
    let mut cycles = full * wave(work, resident as f64, average, machine);
    if rest > 0 {
        cycles += wave(work, rest as f64, warps, machine);
    }
    let us = cycles / libm::fmax(f64::from(profile.mhz), 1.0);
    let memory = bytes / (machine.bandwidth_gbs * 1e3);
    GpuLaunch { blocks, resident, waves, us: machine.launch_us + libm::fmax(us, memory) }
}

/// Returns two numbers for a split of `chunk` keys: the number of plain tiles and the number of edge tiles. The plan
/// must be neither causal nor limited by a window.
fn tiles(chunk: usize, keys: usize, tile: usize) -> (f64, f64) {
    let keys = keys.min(chunk);
    ((keys / tile.max(1)) as f64, usize::from(!keys.is_multiple_of(tile.max(1))) as f64)
}

/// Properties of a call that a prediction needs in addition to the plan of the call. The call has no mask, bias,
/// window, soft cap or past.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuCall {
    /// Number of blocks of the attention kernel.
    pub blocks: usize,
    /// Share of the warps that have rows.
    pub live: f64,
    /// Number of keys per sequence.
    pub keys: usize,
    /// `true` if the number of keys that a row attends grows with the row.
    pub causal: bool,
    /// `true` if the head size of the call is smaller than the head size of the kernel, and the kernel checks this. All
    /// tiles are then edge tiles.
    pub padded: bool,
    /// Size of all tensors in bytes.
    pub bytes: f64,
}

/// Predicts the latency of a plan.
///
/// A block of a causal problem executes up to twice the average number of tiles. With a perfect order of the blocks,
/// the latency would be as low as if every block had the average number. The predicted latency is between this latency
/// and the latency if every block had the largest number. It is closer to the former if a multiprocessor gets many
/// blocks and the longest blocks come first. Each tile on the diagonal is an edge tile. If the head size of the call is
/// smaller than the head size of the kernel, the time is not shorter.
#[must_use]
pub fn predict(
    choice: &GpuChoice,
    cost: &GpuCost,
    merge: Option<&GpuMerge>,
    call: &GpuCall,
    machine: &GpuMachine,
) -> GpuPrediction {
    let GpuCall { blocks, live, keys, causal, padded, bytes } = *call;
    let tile = (cost.keys as usize).max(1);
    let (mut plain, mut edges) = tiles(choice.chunk, keys, tile);
    if causal {
        let diagonal = choice.kernel.rows.div_ceil(tile) as f64;
        let most = blocks.div_ceil(machine.profile.sms.max(1));
        let all = (plain + edges) * causal_share(choice.longest_first, most);
        edges = libm::fmin(diagonal / choice.splits.max(1) as f64, all);
        plain = all - edges;
    }
    if padded {
        (plain, edges) = (0.0, plain + edges);
    }
    let flushes = match choice.kernel.summation {
        Summation::Tiles { flush, .. } => (choice.chunk.min(keys) / flush.max(1)) as f64,
        Summation::Groups { .. } => 0.0,
    };
    let work = [
        (&cost.before, 1.0),
        (&cost.plain, plain),
        (&cost.edge, edges),
        (&cost.flush, flushes),
        (&cost.after, 1.0),
    ];
    let states = if merge.is_some() {
        (choice.rows * choice.splits * (choice.partial_dim + 2) * 4) as f64
    } else {
        0.0
    };
    let attention = launch(&work, &choice.kernel.resources, blocks, live, bytes + states, machine);
    let merge = merge.map(|merge| {
        let whole = &merge.cost.before;
        let work = [(whole, 1.0), (whole, 0.0), (whole, 0.0), (whole, 0.0), (whole, 0.0)];
        launch(&work, &merge.resources, merge.blocks, 1.0, states, machine)
    });
    GpuPrediction { attention, merge }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: GpuPart = GpuPart {
        instructions: 1000,
        pairs: 100,
        fma: 600,
        floats: 20,
        integers: 80,
        xmad: 300,
        special: 0,
        shared: 0,
        shared_words: 0,
        global_words: 0,
        conflicts: 50,
        stalls: 1000,
        alone: 1000,
    };

    fn machine(capability: (u32, u32)) -> GpuMachine {
        let profile = GpuProfile { capability, sms: 2, mhz: 1000, ..GpuProfile::default() };
        GpuMachine { profile, bandwidth_gbs: 10.0, launch_us: 5.0, efficiency: 1.0 }
    }

    #[test]
    fn pairs_issue_together_where_the_hardware_has_them() {
        for (capability, slots, issued) in
            [((5, 3), 900.0, 950.0), ((6, 2), 900.0, 950.0), ((7, 2), 800.0, 800.0), ((9, 0), 800.0, 800.0)]
        {
            assert_eq!(PART.slots(capability), slots, "{capability:?}");
            let none = GpuPart::default();
            let work = [(&PART, 1.0), (&none, 0.0), (&none, 0.0), (&none, 0.0), (&none, 0.0)];
            // A single warp takes at least its time alone; many warps take the time of the schedulers.
            let alone = wave(&work, 1.0, 1.0, &machine(capability));
            assert!((1000.0..1250.0).contains(&alone), "{alone}");
            let many = wave(&work, 16.0, 4.0, &machine(capability)) / (16.0 * issued);
            assert!((1.0..1.01).contains(&many), "{many}");
        }
    }

    #[test]
    fn causal_blocks_near_the_average_where_the_longest_come_first() {
        let shares: [f64; 4] = [1, 2, 4, 50].map(|most| causal_share(true, most));
        assert_eq!(shares, [1.0, 0.75, 0.625, 0.51]);
        assert_eq!((causal_share(true, 0), causal_share(false, 4)), (1.0, 0.75));
    }

    #[test]
    fn a_launch_lasts_as_long_as_its_busiest_multiprocessor_or_its_memory() {
        let none = GpuPart::default();
        let work = [(&PART, 1.0), (&none, 0.0), (&none, 0.0), (&none, 0.0), (&none, 0.0)];
        let resources = GpuResources { threads: 128, shared: 32 << 10, registers: 64 };
        let of = |blocks, bytes| launch(&work, &resources, blocks, 1.0, bytes, &machine((6, 2)));
        let waves: [usize; 5] = [1, 2, 4, 5, 9].map(|blocks| of(blocks, 0.0).waves);
        assert_eq!((of(4, 0.0).resident, waves), (2, [1, 1, 1, 2, 3]));
        // Two multiprocessors execute two blocks in the time of one.
        assert_eq!(of(1, 0.0).us, of(2, 0.0).us);
        assert!(of(3, 0.0).us > of(2, 0.0).us && of(5, 0.0).us > of(4, 0.0).us);
        // 10^6 bytes at 10 GB/s are 100 us.
        assert_eq!(of(1, 1e6).us, 105.0);
        assert_eq!(of(0, 0.0).us, 5.0);
        // Warps without rows issue nothing, but warps with rows still take their time.
        let many = GpuResources { shared: 0, ..resources };
        let live = |share| launch(&work, &many, 64, share, 0.0, &machine((6, 2))).us - 5.0;
        assert!((0.49..0.55).contains(&(live(0.5) / live(1.0))), "{}", live(0.5) / live(1.0));
    }
}
