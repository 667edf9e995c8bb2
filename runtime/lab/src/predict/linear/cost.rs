//! The form of the table of costs.

use crate::predict::latency::GpuPart;

/// Counts of one warp, on average over the warps of a block.
pub struct Counts {
    pub part: GpuPart,
    /// Number of instructions of f64, conversions included.
    pub f64s: u32,
}

/// Cost of a kernel in a call.
pub struct Cost {
    pub kernel: &'static str,
    pub rule: &'static str,
    pub dim: usize,
    /// `true` for a call that processes tokens one by one.
    pub steps: bool,
    /// Counts of a block without its chunks, and of each chunk.
    pub block: Counts,
    pub chunk: Counts,
}

impl Cost {
    /// Returns the cost with these counts of a block and of a chunk.
    pub const fn new(
        kernel: &'static str,
        rule: &'static str,
        dim: usize,
        steps: bool,
        block: [u32; 14],
        chunk: [u32; 14],
    ) -> Cost {
        Cost { kernel, rule, dim, steps, block: Counts::new(block), chunk: Counts::new(chunk) }
    }
}

impl Counts {
    #[rustfmt::skip]
    const fn new(counts: [u32; 14]) -> Counts {
        let [instructions, pairs, fma, floats, integers, xmad, special, shared, shared_words, global_words, conflicts, stalls, alone, f64s] = counts;
        let part = GpuPart { instructions, pairs, fma, floats, integers, xmad, special, shared, shared_words, global_words, conflicts, stalls, alone };
        Counts { part, f64s }
    }
}
