//! The latency of a plan on a GPU that is not at hand, from the machine code of its kernels.
//!
//! **The formula.** A launch of `n` blocks on `P` multiprocessors gives the busiest one `ceil(n / P)` of them. It holds
//! `r` at once, by registers, shared memory and threads, so they come in waves of `r`, the last one of what is left.
//! A wave lasts as long as the part of the multiprocessor that is busiest, or as a warp by itself:
//!
//! ```text
//! wave(k) = norm(issue, shared, alone)
//! issue   = k · warps / schedulers · (slots + conflicts) / efficiency   what the schedulers issue
//! shared  = k · warps · bytes of shared memory / 128                 what the shared memory moves
//! alone   = cycles of one warp that never waits for another
//! norm    = (issue^4 + shared^4 + alone^4)^(1/4)
//! launch  = overhead + max(waves / clock, bytes / bandwidth)
//! ```
//!
//! The norm lies a little above the largest of the three, since what is nearly as long hides the others less well.
//!
//! **What differs between GPUs.** Maxwell and Pascal (compute capability 5 and 6) issue two instructions of a warp in a
//! cycle where the compiler found a pair, and multiply integers in three steps. Newer ones issue one instruction of a
//! warp at a time and multiply integers in one. The counts come from code for capability 6.2; a driver compiles the
//! same PTX for a newer GPU to other code, which [`GpuMachine::efficiency`] stands for: the share of issue slots that
//! such code fills of those that the counts say.
//!
//! A prediction is not a measurement: caches, the memory's page hits and what else the machine does are not in it.

use elsa_core::attention::plan::{GpuChoice, GpuResources, Summation};
use elsa_core::profile::GpuProfile;

/// Counts over a part of a kernel for one warp, in code for compute capability 6.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuPart {
    /// Executed instructions.
    pub instructions: u32,
    /// Pairs that issue in one cycle.
    pub pairs: u32,
    /// Multiply-adds of floating point, of f32 or of pairs of halves.
    pub fma: u32,
    /// Other arithmetic of floating point.
    pub floats: u32,
    /// Integers, moves, jumps.
    pub integers: u32,
    /// Multiplications of 16-bit integers, three of which make one of 32 bits.
    pub xmad: u32,
    /// Exponentials, conversions and f64 arithmetic.
    pub special: u32,
    /// Instructions for shared memory.
    pub shared: u32,
    /// Words of 32 bits that a lane moves to or from shared memory.
    pub shared_words: u32,
    /// Words of 32 bits that a lane moves to or from global memory.
    pub global_words: u32,
    /// Cycles in which a multiply-add waits for a bank of registers.
    pub conflicts: u32,
    /// Cycles that the control codes wait.
    pub stalls: u32,
    /// Cycles of a warp by itself: those of the control codes, and those that it waits for memory and for results.
    pub alone: u32,
}

/// The parts of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuCost {
    /// Keys of a tile; zero for a kernel without tiles, all of which is `before`.
    pub keys: u32,
    /// Before the first tile.
    pub before: GpuPart,
    /// A tile that every row attends.
    pub plain: GpuPart,
    /// A tile at the end of the keys.
    pub edge: GpuPart,
    /// An addition of sums to memory.
    pub flush: GpuPart,
    /// After the last tile.
    pub after: GpuPart,
}

/// What a prediction needs to know of a machine besides its [`GpuProfile`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuMachine {
    /// Multiprocessors, registers and clock.
    pub profile: GpuProfile,
    /// Bandwidth of its memory, in 10⁹ bytes per second.
    pub bandwidth_gbs: f64,
    /// Time from one kernel's end to the next one's first instruction, and as much before the first, in microseconds.
    pub launch_us: f64,
    /// Share of issue slots that multiprocessors of this architecture fill.
    pub efficiency: f64,
}

/// A launch of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuLaunch {
    /// Number of blocks.
    pub blocks: usize,
    /// Blocks that a multiprocessor holds at once.
    pub resident: usize,
    /// Waves of blocks of the busiest multiprocessor.
    pub waves: usize,
    /// Its time in microseconds, overhead included.
    pub us: f64,
}

/// The predicted latency of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuPrediction {
    /// The attention kernel.
    pub attention: GpuLaunch,
    /// The merge, where keys are divided.
    pub merge: Option<GpuLaunch>,
}

impl GpuPrediction {
    /// Both launches, in microseconds.
    #[must_use]
    pub fn us(&self) -> f64 {
        self.attention.us + self.merge.map_or(0.0, |merge| merge.us)
    }
}

/// The merge of a plan with divided keys.
#[derive(Clone, Copy, Debug)]
pub struct GpuMerge {
    /// Its cost.
    pub cost: GpuCost,
    /// What a block takes of an SM.
    pub resources: GpuResources,
    /// Number of blocks.
    pub blocks: usize,
}

/// Schedulers of an SM, on every device from compute capability 5.0 on.
const SCHEDULERS: f64 = 4.0;
/// Lanes of a warp.
const WARP: usize = 32;
/// Bytes that the shared memory of an SM moves in a cycle, and how many lanes of a request take the same ones, at least.
const SHARED_BYTES: f64 = 128.0;
const SHARED_ALIKE: f64 = 2.0;
/// Instructions of an integer product where it takes several.
const PRODUCT_STEPS: f64 = 3.0;

impl GpuPart {
    /// Issue slots of a warp on a device.
    fn slots(&self, capability: (u32, u32)) -> f64 {
        let all = f64::from(self.instructions);
        match capability.0 {
            0..=6 => all - f64::from(self.pairs),
            _ => all - f64::from(self.xmad) * (PRODUCT_STEPS - 1.0) / PRODUCT_STEPS,
        }
    }
}

/// `Σ x^4` to the power of 1/4.
fn norm(terms: [f64; 3]) -> f64 {
    let sum: f64 = terms.iter().map(|x| x * x * (x * x)).sum();
    libm::sqrt(libm::sqrt(sum))
}

/// Share of the tiles that a multiprocessor with `most` blocks of a causal problem takes of each. On average that is half
/// of them. Where the longest blocks come first, the last one decides how much more; otherwise it is the middle between
/// half of them and all.
fn causal_share(longest_first: bool, most: usize) -> f64 {
    if longest_first { 0.5 + 0.5 / most.max(1) as f64 } else { 0.75 }
}

/// Parts of a kernel and how often a block executes each.
type Work<'a> = [(&'a GpuPart, f64); 5];

/// Cycles that `blocks` blocks of `warps` warps take that share a multiprocessor.
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

/// A launch of `blocks` blocks, of whose warps a share `live` has rows, which move `bytes` bytes of memory.
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
    // Where blocks fill several waves, one that ends early makes room for the next.
    let waves = most.div_ceil(resident);
    let full = (most / resident) as f64;
    let rest = most % resident;
    // Waves that follow each other average over blocks. The last one is as long as one of blocks with all their rows.
    let average = if waves > 1 { warps * live } else { warps };
    let mut cycles = full * wave(work, resident as f64, average, machine);
    if rest > 0 {
        cycles += wave(work, rest as f64, warps, machine);
    }
    let us = cycles / libm::fmax(f64::from(profile.mhz), 1.0);
    let memory = bytes / (machine.bandwidth_gbs * 1e3);
    GpuLaunch { blocks, resident, waves, us: machine.launch_us + libm::fmax(us, memory) }
}

/// The number of tiles of a split of a plan that is neither causal nor limited by a window: plain ones, then those at
/// the end of the keys.
fn tiles(chunk: usize, keys: usize, tile: usize) -> (f64, f64) {
    let keys = keys.min(chunk);
    ((keys / tile.max(1)) as f64, usize::from(!keys.is_multiple_of(tile.max(1))) as f64)
}

/// What a prediction needs to know of a call besides its plan. No mask, bias, window, soft cap or past changes its scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuCall {
    /// Blocks of the attention kernel.
    pub blocks: usize,
    /// Share of their warps that have rows.
    pub live: f64,
    /// Number of keys of a sequence.
    pub keys: usize,
    /// Whether a row attends keys up to its own number only.
    pub causal: bool,
    /// Whether a head is shorter than the kernel's and its dims are checked, so that no tile is plain.
    pub padded: bool,
    /// Bytes of all tensors.
    pub bytes: f64,
}

/// Predicts the latency of a plan.
///
/// Blocks of a causal problem have up to twice the average number of tiles. Its latency lies between that of blocks
/// of the average, which a perfect order has, and that of the longest: the nearer to the average, the more blocks a
/// multiprocessor has and the longest come first. Each tile on the diagonal is an edge. A head that is shorter than the
/// kernel's counts as long as it.
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
            // A warp by itself takes at least its own time, many of them what the schedulers issue.
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
        // The second multiprocessor takes the second block, and none the work of the others.
        assert_eq!(of(1, 0.0).us, of(2, 0.0).us);
        assert!(of(3, 0.0).us > of(2, 0.0).us && of(5, 0.0).us > of(4, 0.0).us);
        // 10^6 bytes at 10 GB/s are 100 us.
        assert_eq!(of(1, 1e6).us, 105.0);
        assert_eq!(of(0, 0.0).us, 5.0);
        // Warps without rows issue nothing, though one with rows still takes its time.
        let many = GpuResources { shared: 0, ..resources };
        let live = |share| launch(&work, &many, 64, share, 0.0, &machine((6, 2))).us - 5.0;
        assert!((0.49..0.55).contains(&(live(0.5) / live(1.0))), "{}", live(0.5) / live(1.0));
    }
}
