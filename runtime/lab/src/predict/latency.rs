//! Predicts the latency of a plan on a GPU that is not available, from the machine code of its kernels.
//!
//! **The formula.** A launch of `n` blocks on `P` multiprocessors gives the busiest one `ceil(n / P)` of them. It holds `r`
//! at once, by registers, shared memory and threads, so they run in waves of `r`, and a last wave of the rest. The busiest
//! part of the multiprocessor, or a single warp, determines the duration of a wave:
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
//! The norm is slightly above the largest of the three, because a part that is nearly as long hides the others less well.
//!
//! **Differences between GPUs.** Maxwell and Pascal (compute capability 5 and 6) issue two instructions of a warp in a cycle
//! if the compiler found a pair, and multiply integers in three steps. Newer ones issue one instruction of a warp at a time
//! and multiply integers in one step. The counts come from code for capability 6.2. A driver compiles the same PTX for a
//! newer GPU to different code, which [`GpuMachine::efficiency`] accounts for: the share of its issue slots that such code
//! fills, according to the counts.
//!
//! A prediction is not a measurement: it ignores caches, page hits of the memory and other load on the machine.

use elsa_core::attention::plan::{GpuChoice, GpuResources, Summation};
use elsa_core::profile::GpuProfile;

/// Counts over a part of a kernel for one warp, in code for compute capability 6.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuPart {
    /// Executed instructions.
    pub instructions: u32,
    /// Issue pairs, executed in one cycle.
    pub pairs: u32,
    /// Floating-point multiply-adds, of f32 or of pairs of halves.
    pub fma: u32,
    /// Other floating-point arithmetic.
    pub floats: u32,
    /// Integer instructions, moves, jumps.
    pub integers: u32,
    /// Multiplications of 16-bit integers; three of them form a 32-bit one.
    pub xmad: u32,
    /// Exponentials, conversions and f64 arithmetic.
    pub special: u32,
    /// Shared-memory instructions.
    pub shared: u32,
    /// Number of 32-bit words that a lane moves to or from shared memory.
    pub shared_words: u32,
    /// Number of 32-bit words that a lane moves to or from global memory.
    pub global_words: u32,
    /// Cycles in which a multiply-add waits for a register bank.
    pub conflicts: u32,
    /// Wait cycles of the control codes.
    pub stalls: u32,
    /// Cycles of a single warp: those of the control codes, and its waits for memory and for results.
    pub alone: u32,
}

/// The parts of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuCost {
    /// Number of keys of a tile; zero for a kernel without tiles, whose only part is `before`.
    pub keys: u32,
    /// Part before the first tile.
    pub before: GpuPart,
    /// A tile that every row attends.
    pub plain: GpuPart,
    /// A tile at the end of the keys.
    pub edge: GpuPart,
    /// An addition of sums to memory.
    pub flush: GpuPart,
    /// Part after the last tile.
    pub after: GpuPart,
}

/// Properties of a machine that a prediction needs in addition to its [`GpuProfile`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuMachine {
    /// Multiprocessors, registers and clock.
    pub profile: GpuProfile,
    /// Bandwidth of its memory, in 10⁹ bytes per second.
    pub bandwidth_gbs: f64,
    /// Time from the end of one kernel to the first instruction of the next one, in microseconds; the first kernel waits as
    /// long.
    pub launch_us: f64,
    /// Share of issue slots that multiprocessors of this architecture fill.
    pub efficiency: f64,
}

/// A launch of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuLaunch {
    /// Number of blocks.
    pub blocks: usize,
    /// Number of blocks that a multiprocessor holds at once.
    pub resident: usize,
    /// Number of waves of blocks on the busiest multiprocessor.
    pub waves: usize,
    /// Time in microseconds, including overhead.
    pub us: f64,
}

/// The predicted latency of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuPrediction {
    /// The attention kernel.
    pub attention: GpuLaunch,
    /// The merge, if keys are divided.
    pub merge: Option<GpuLaunch>,
}

impl GpuPrediction {
    /// Returns the time of both launches, in microseconds.
    #[must_use]
    pub fn us(&self) -> f64 {
        self.attention.us + self.merge.map_or(0.0, |merge| merge.us)
    }
}

/// The merge of a plan with divided keys.
#[derive(Clone, Copy, Debug)]
pub struct GpuMerge {
    /// Cost of its parts.
    pub cost: GpuCost,
    /// Resources of an SM that a block occupies.
    pub resources: GpuResources,
    /// Number of blocks.
    pub blocks: usize,
}

/// Number of schedulers of an SM, on every device from compute capability 5.0 on.
const SCHEDULERS: f64 = 4.0;
/// Number of lanes of a warp.
const WARP: usize = 32;
/// Number of bytes that the shared memory of an SM moves in a cycle, and the least number of lanes of a request that read the
/// same bytes.
const SHARED_BYTES: f64 = 128.0;
const SHARED_ALIKE: f64 = 2.0;
/// Number of instructions of an integer product on devices that need several.
const PRODUCT_STEPS: f64 = 3.0;

impl GpuPart {
    /// Returns the issue slots of a warp on a device.
    fn slots(&self, capability: (u32, u32)) -> f64 {
        let all = f64::from(self.instructions);
        match capability.0 {
            0..=6 => all - f64::from(self.pairs),
            _ => all - f64::from(self.xmad) * (PRODUCT_STEPS - 1.0) / PRODUCT_STEPS,
        }
    }
}

/// Returns `Σ x^4` to the power of 1/4.
fn norm(terms: [f64; 3]) -> f64 {
    let sum: f64 = terms.iter().map(|x| x * x * (x * x)).sum();
    libm::sqrt(libm::sqrt(sum))
}

/// Returns the share of its tiles that each block of a causal problem executes on a multiprocessor with `most` blocks. On
/// average that is half of them. If the longest blocks come first, the last one decides how much more; otherwise it is the
/// middle between half of them and all.
fn causal_share(longest_first: bool, most: usize) -> f64 {
    if longest_first { 0.5 + 0.5 / most.max(1) as f64 } else { 0.75 }
}

/// Parts of a kernel and how often a block executes each.
type Work<'a> = [(&'a GpuPart, f64); 5];

/// Returns the cycles of `blocks` blocks of `warps` warps that share a multiprocessor.
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

/// Predicts a launch of `blocks` blocks that move `bytes` bytes of memory; a share `live` of their warps has rows.
fn launch(
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
    // Successive waves average over blocks. The last one is as long as a wave of blocks with all their rows.
    let average = if waves > 1 { warps * live } else { warps };
    let mut cycles = full * wave(work, resident as f64, average, machine);
    if rest > 0 {
        cycles += wave(work, rest as f64, warps, machine);
    }
    let us = cycles / libm::fmax(f64::from(profile.mhz), 1.0);
    let memory = bytes / (machine.bandwidth_gbs * 1e3);
    GpuLaunch { blocks, resident, waves, us: machine.launch_us + libm::fmax(us, memory) }
}

/// Returns the number of tiles of a split of a plan that is neither causal nor limited by a window: plain ones, then those at
/// the end of the keys.
fn tiles(chunk: usize, keys: usize, tile: usize) -> (f64, f64) {
    let keys = keys.min(chunk);
    ((keys / tile.max(1)) as f64, usize::from(!keys.is_multiple_of(tile.max(1))) as f64)
}

/// Properties of a call that a prediction needs in addition to its plan. No mask, bias, window, soft cap or past changes its
/// scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuCall {
    /// Number of blocks of the attention kernel.
    pub blocks: usize,
    /// Share of their warps that have rows.
    pub live: f64,
    /// Number of keys of a sequence.
    pub keys: usize,
    /// `true` if a row only attends keys up to its own number.
    pub causal: bool,
    /// `true` if a head is smaller than the kernel's and its dims are checked, so no tile is plain.
    pub padded: bool,
    /// Bytes of all tensors.
    pub bytes: f64,
}

/// Predicts the latency of a plan.
///
/// Blocks of a causal problem have up to twice the average number of tiles. Its latency is between that of average blocks,
/// which a perfect order would reach, and that of the longest. It is closer to the average if a multiprocessor has many
/// blocks and the longest come first. Each tile on the diagonal is an edge. A head that is smaller than the kernel's takes
/// the same time.
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
            // A single warp takes at least its own time, many warps take that of the schedulers.
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
        // The second multiprocessor executes the second block, and none repeats the work of the others.
        assert_eq!(of(1, 0.0).us, of(2, 0.0).us);
        assert!(of(3, 0.0).us > of(2, 0.0).us && of(5, 0.0).us > of(4, 0.0).us);
        // 10^6 bytes at 10 GB/s are 100 us.
        assert_eq!(of(1, 1e6).us, 105.0);
        assert_eq!(of(0, 0.0).us, 5.0);
        // Warps without rows issue nothing, though a warp with rows still takes its time.
        let many = GpuResources { shared: 0, ..resources };
        let live = |share| launch(&work, &many, 64, share, 0.0, &machine((6, 2))).us - 5.0;
        assert!((0.49..0.55).contains(&(live(0.5) / live(1.0))), "{}", live(0.5) / live(1.0));
    }
}
