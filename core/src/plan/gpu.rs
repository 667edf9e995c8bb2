//! The chooser for GPUs: the kernel, the blocks of rows, the division of the keys, and the workspace.
//!
//! A block of threads computes a block of query rows over a part of the keys. Where the blocks of rows of one
//! sequence do not fill the device, the keys are divided into `splits` parts of `chunk` keys. Each part then
//! leaves a partial state per row in memory, and a second kernel merges the states of a row in the balanced tree
//! over the numbers of the parts.
//!
//! The division is a function of queries, keys, heads, head sizes, device and budget, never of the batch, so that
//! a sequence gives the same bits alone and among others. A budget alone looks at the batch: where the partial
//! states of the whole batch do not fit it, the keys are not divided.

use super::PlanError;
use crate::problem::Problem;
use crate::profile::GpuProfile;
use crate::schedule;
use crate::view::DType;

/// An attention kernel of a GPU as chooser and certificate see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuSpec {
    /// Its name.
    pub name: &'static str,
    /// Largest head size of keys and of values.
    pub head_dim: usize,
    /// Whether it takes 16-bit types instead of singles.
    pub half: bool,
    /// Whether products of halves are summed in halves.
    pub half_scores: bool,
    /// Most query rows of a sequence that it is meant for.
    pub most_queries: usize,
    /// The same of a plain problem, whose window is open to the right, and which has neither a mask of elements nor a
    /// soft cap nor a past.
    pub most_plain: usize,
    /// Threads of a block.
    pub threads: usize,
    /// Query rows of a block.
    pub rows: usize,
    /// Keys of a tile; parts of the keys are multiples of it.
    pub keys: usize,
    /// Static shared memory of a block in bytes.
    pub shared: usize,
    /// Registers of a thread.
    pub registers: usize,
    /// Keys in the longest chain of additions before sums are added to those in memory.
    pub flush: usize,
}

impl GpuSpec {
    /// Blocks that an SM holds at once, by registers, shared memory and threads. At least one.
    #[must_use]
    pub fn resident(&self, device: &GpuProfile) -> usize {
        let per = |room: usize, takes: usize| room.checked_div(takes).unwrap_or(MOST_BLOCKS);
        // Registers are handed out to warps in units of eight for each thread.
        let registers = self.registers.next_multiple_of(8) * self.threads;
        per(REGISTERS, registers)
            .min(per(device.shared_per_sm.max(SHARED), self.shared))
            .min(per(THREADS, self.threads))
            .clamp(1, MOST_BLOCKS)
    }
}

/// Registers of an SM, of every device from compute capability 6.0 on.
const REGISTERS: usize = 65_536;
/// Threads that an SM of any such device holds, at least.
const THREADS: usize = 1024;
/// Blocks that an SM of any such device holds, at least.
const MOST_BLOCKS: usize = 16;
/// Shared memory of an SM of any such device, at least, in bytes.
const SHARED: usize = 64 << 10;
/// Blocks of an SM that the division aims at.
const FILL: usize = 2;
/// Parts of the keys where rows differ in their keys, while the blocks would fill the device fewer than
/// `CAUSAL_FILL` times.
const CAUSAL_SPLITS: usize = 4;
const CAUSAL_FILL: usize = 8;
/// Partial states of a sequence may take this many bytes, or as many as its output does.
const PARTS: usize = 16 << 20;
/// Tokens, rows and blocks are counted in 32 bits on the device, and sums of two lengths must not overflow.
const MOST_TOKENS: usize = 1 << 30;
/// Bytes of an entry in the table of sequences.
pub const SEQUENCE_BYTES: usize = 40;

/// Fewest keys of a part. Few keys are soon done, and parts of them share little work: there the last idle SM
/// counts for more than the merge costs.
const fn least(keys: usize) -> usize {
    if keys <= 1024 { 64 } else { 256 }
}

/// What the caller wishes of a plan for a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuOptions {
    /// Most bytes of workspace: partial states and tables.
    pub budget: Option<usize>,
    /// Whether products of halves may be summed in halves.
    pub half_scores: bool,
}

/// Everything that is decided before pointers are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuChoice {
    /// The attention kernel.
    pub kernel: GpuSpec,
    /// Blocks of rows of a sequence; of packed sequences, of one that holds every row.
    pub row_blocks: usize,
    /// Parts of the keys; one when they are not divided.
    pub splits: usize,
    /// Keys of a part, a multiple of the kernel's tile.
    pub chunk: usize,
    /// Singles from one partial weighted sum to the next: the head size of values, rounded up to a multiple of
    /// four.
    pub part_dim: usize,
    /// Query rows in all.
    pub rows: usize,
    /// Entries of the table of sequences; zero when one entry serves all.
    pub sequences: usize,
    /// Whether a kernel that finishes itself adds its sums to those in memory every [`GpuSpec::flush`] keys.
    flushes: bool,
    /// Keys of the longest sequence.
    keys: usize,
}

/// What a run executes along the longest path from a key to the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuDepth {
    /// Merges of partial states.
    pub merges: usize,
    /// Additions, those of the merges included.
    pub additions: usize,
}

impl GpuChoice {
    /// Whether the attention kernel leaves partial states, and another one merges them.
    #[must_use]
    pub const fn divided(&self) -> bool {
        self.splits > 1
    }

    /// Additions and merges on the longest path, `states` saying whether states are given too: they go
    /// through memory even when the keys are not divided.
    #[must_use]
    pub fn depth(&self, states: bool) -> GpuDepth {
        let merges = schedule::depth(self.splits);
        let leaf = self.chunk.min(self.keys).max(1);
        let chain = match self.flushes || self.divided() || states {
            true if self.kernel.flush > 0 && self.kernel.flush < leaf => {
                self.kernel.flush + leaf.div_ceil(self.kernel.flush)
            }
            _ => leaf,
        };
        GpuDepth { merges, additions: chain + merges }
    }
}

/// A part of the device workspace, in bytes from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuSpan {
    /// First byte, a multiple of 256.
    pub start: usize,
    /// Bytes.
    pub len: usize,
}

/// The device workspace: everything beyond inputs and outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuLayout {
    /// References and sums of partial states, singles `[row][split][2]`.
    pub part_ms: GpuSpan,
    /// Weighted sums of partial states, singles `[row][split][part_dim]`.
    pub part_w: GpuSpan,
    /// The table of sequences.
    pub sequences: GpuSpan,
    /// Bytes in all.
    pub bytes: usize,
}

impl GpuLayout {
    /// Lays out the workspace of a choice; none if it cannot be counted. `states` gives partial states room even
    /// when the keys are not divided.
    #[must_use]
    pub fn of(choice: &GpuChoice, states: bool) -> Option<GpuLayout> {
        let parts = if choice.divided() || states { choice.rows.checked_mul(choice.splits)? } else { 0 };
        let mut at = 0usize;
        let mut take = |len: usize| {
            let span = GpuSpan { start: at, len };
            at = at.checked_add(len)?.checked_next_multiple_of(256)?;
            Some(span)
        };
        let part_ms = take(parts.checked_mul(8)?)?;
        let part_w = take(parts.checked_mul(4)?.checked_mul(choice.part_dim)?)?;
        let sequences = take(choice.sequences.checked_mul(SEQUENCE_BYTES)?)?;
        (at <= isize::MAX as usize).then_some(GpuLayout { part_ms, part_w, sequences, bytes: at })
    }
}

/// Chooses kernel, blocks of rows and division of the keys for `problem` on `device`. Of `kernels` that suffice the
/// one is taken that computes the fewest rows and dims, with those that pad its blocks; of equal ones, that for
/// the fewest queries. Packed sequences, whose lengths come with the data, take one for any number of queries,
/// and undivided keys.
///
/// # Errors
/// A head size, or a number of tokens or rows, that no kernel takes; a budget that even the undivided form
/// exceeds.
pub fn choose_gpu<'a>(
    problem: &Problem,
    device: &GpuProfile,
    kernels: impl IntoIterator<Item = &'a GpuSpec>,
    options: &GpuOptions,
) -> Result<GpuChoice, PlanError> {
    let s = problem.spec();
    let (queries, keys, heads) = (s.query.tokens(), problem.keys(), problem.heads());
    let (d, dv) = (problem.head_dim(), problem.value_dim());
    let half = s.dtype != DType::F32;
    let packed = s.packed.is_some();
    let at_once = if packed { usize::MAX } else { queries };
    // Rows differ in their keys, the last having most.
    let causal = s.causal.is_some() || s.window.right.is_some();
    let past = s.past_key.is_some() || s.past_value.is_some();
    let plain = !causal && s.mask.is_none() && s.softcap.is_none() && !past;
    let mut widest = 0;
    let mut best = None;
    for k in kernels {
        let scores = !k.half_scores || (options.half_scores && s.dtype == DType::F16);
        let most = if plain { k.most_plain } else { k.most_queries };
        if k.half != half || at_once > most || !scores {
            continue;
        }
        widest = widest.max(k.head_dim);
        // Rows and dims that are computed, padded ones too. Packed sequences have any number of rows each.
        let rows = if packed { 1 } else { queries.max(1).next_multiple_of(k.rows.max(1)) };
        let work = rows.saturating_mul(k.head_dim);
        // Among equals, sums in halves are what was asked for.
        let rank = (work, most, k.head_dim, k.rows, !k.half_scores);
        if k.head_dim >= d.max(dv) && best.is_none_or(|(least, _)| rank < least) {
            best = Some((rank, *k));
        }
    }
    let Some((_, kernel)) = best else {
        return Err(match widest {
            0 => PlanError::NoKernel,
            max => PlanError::HeadSize { found: d.max(dv), max },
        });
    };
    let row_blocks = queries.div_ceil(kernel.rows);
    let counts = [
        ("queries", queries),
        ("keys", keys),
        ("heads", heads),
        ("sequences", problem.sequences()),
        ("rows", problem.rows()),
        ("head size", d.max(dv)),
    ];
    for (axis, found) in counts {
        if found > MOST_TOKENS {
            return Err(PlanError::Extent { axis, found, max: MOST_TOKENS });
        }
    }
    let part_dim = dv.next_multiple_of(4);
    let sequences = if packed || s.key_lengths { problem.sequences() } else { 0 };
    let whole = keys.max(1).next_multiple_of(kernel.keys.max(1));
    let mut choice = GpuChoice {
        kernel,
        row_blocks,
        splits: 1,
        chunk: whole,
        part_dim,
        rows: problem.rows(),
        sequences,
        flushes: !half,
        keys,
    };
    if !packed {
        let fill = device.sms.max(1) * kernel.resident(device).min(FILL);
        let blocks = row_blocks.saturating_mul(heads).max(1);
        // As many as come nearest to filling the device.
        let even = (fill + blocks / 2) / blocks;
        // The blocks of the last rows take longest, and end last unless they are cut.
        let wanted = if causal && blocks < CAUSAL_FILL * fill { even.max(CAUSAL_SPLITS) } else { even };
        let least = least(keys);
        let output = heads.saturating_mul(queries).saturating_mul(dv).saturating_mul(s.dtype.size());
        let part = heads.saturating_mul(queries).saturating_mul(4 * (part_dim + 2));
        let held = output.max(PARTS) / part.max(1);
        let splits = wanted.min(keys / least).min(held).max(1);
        if splits > 1 {
            choice.chunk = keys.div_ceil(splits).next_multiple_of(kernel.keys.max(1));
            choice.splits = keys.div_ceil(choice.chunk);
        }
    }
    let size = |choice: &GpuChoice| GpuLayout::of(choice, false).map(|layout| layout.bytes);
    if let Some(budget) = options.budget
        && choice.divided()
        && size(&choice).is_none_or(|bytes| bytes > budget)
    {
        (choice.splits, choice.chunk) = (1, whole);
    }
    match (size(&choice), options.budget) {
        (None, _) => return Err(PlanError::Memory { needed: usize::MAX }),
        (Some(needed), Some(budget)) if needed > budget => return Err(PlanError::Budget { needed, budget }),
        _ => {}
    }
    let blocks = [heads, choice.splits, row_blocks]
        .iter()
        .try_fold(problem.sequences(), |a, n| a.checked_mul(*n))
        .unwrap_or(usize::MAX);
    if blocks > i32::MAX as usize {
        return Err(PlanError::Extent { axis: "blocks", found: blocks, max: i32::MAX as usize });
    }
    Ok(choice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::{MaskKind, MaskView};
    use crate::problem::{Alignment, Spec};
    use crate::view::{Layout, View};

    const H200: GpuProfile = GpuProfile {
        capability: (9, 0),
        sms: 132,
        lanes_per_sm: 128,
        shared_memory: 48 << 10,
        shared_per_sm: 64 << 10,
        l2: 50 << 20,
        mhz: 1980,
        integrated: false,
    };
    const TX2: GpuProfile =
        GpuProfile { capability: (6, 2), sms: 2, mhz: 1300, l2: 512 << 10, integrated: true, ..H200 };

    const fn spec(name: &'static str, head_dim: usize, half: bool, most: usize, rows: usize) -> GpuSpec {
        GpuSpec {
            name,
            head_dim,
            half,
            half_scores: false,
            most_queries: most,
            most_plain: most,
            threads: 128,
            rows,
            keys: 64,
            shared: 24 << 10,
            registers: 128,
            flush: 512,
        }
    }

    const ALL: usize = usize::MAX;
    const KERNELS: [GpuSpec; 7] = [
        spec("wide", 256, false, ALL, 32),
        spec("d64", 64, false, ALL, 64),
        spec("rows64", 64, false, 4, 4),
        spec("d128", 128, false, ALL, 64),
        spec("half64", 64, true, ALL, 64),
        GpuSpec { half_scores: true, ..spec("halfhalf64", 64, true, ALL, 64) },
        spec("half128", 128, true, ALL, 64),
    ];

    fn problem(dtype: DType, b: usize, h: usize, nq: usize, nk: usize, [d, dv]: [usize; 2]) -> Spec {
        let view = |n, d| View::dense("x", Layout::Bhnd, &[b, h, n, d], None).unwrap();
        Spec::new(dtype, view(nq, d), view(nk, d), view(nk, dv), view(nq, dv))
    }

    fn choice(spec: Spec, device: &GpuProfile, options: GpuOptions) -> Result<GpuChoice, PlanError> {
        choose_gpu(&spec.check().unwrap(), device, &KERNELS, &options)
    }

    fn plain(spec: Spec, device: &GpuProfile) -> GpuChoice {
        choice(spec, device, GpuOptions::default()).unwrap()
    }

    #[test]
    fn the_smallest_kernel_that_suffices() {
        let name = |dtype, nq, dims, half_scores| {
            let options = GpuOptions { half_scores, ..GpuOptions::default() };
            choice(problem(dtype, 1, 1, nq, 100, dims), &H200, options).map(|c| c.kernel.name)
        };
        assert_eq!(name(DType::F32, 100, [64, 64], true), Ok("d64"));
        assert_eq!(name(DType::F32, 4, [17, 64], false), Ok("rows64"));
        assert_eq!(name(DType::F32, 5, [64, 65], false), Ok("d128"));
        assert_eq!(name(DType::F32, 1, [129, 8], false), Ok("wide"));
        assert_eq!(name(DType::F16, 100, [64, 64], false), Ok("half64"));
        assert_eq!(name(DType::F16, 100, [64, 64], true), Ok("halfhalf64"));
        assert_eq!(name(DType::Bf16, 100, [64, 64], true), Ok("half64"));
        // Few rows of a wide kernel are less work than many of a narrow one.
        let narrow = [spec("d32", 32, false, ALL, 64)];
        for (nq, want) in [(4, "rows64"), (5, "d32")] {
            let small = problem(DType::F32, 1, 1, nq, 100, [16, 16]).check().unwrap();
            let kernels = KERNELS.iter().chain(&narrow);
            let chosen = choose_gpu(&small, &H200, kernels, &GpuOptions::default()).map(|c| c.kernel.name);
            assert_eq!(chosen, Ok(want));
        }
        let refused = name(DType::F32, 100, [257, 8], false);
        assert_eq!(refused, Err(PlanError::HeadSize { found: 257, max: 256 }));
        let refused = name(DType::F16, 100, [64, 129], false);
        assert_eq!(refused, Err(PlanError::HeadSize { found: 129, max: 128 }));
        let none = problem(DType::F32, 1, 1, 8, 8, [8, 8]).check().unwrap();
        assert_eq!(choose_gpu(&none, &H200, &[], &GpuOptions::default()), Err(PlanError::NoKernel));
    }

    #[test]
    fn padding_is_work() {
        let kernels = [
            spec("rows", 256, false, 8, 8),
            spec("d32", 32, false, ALL, 64),
            spec("d64r64", 64, false, 960, 64),
            spec("d64r128", 64, false, ALL, 128),
        ];
        let name = |nq, d: usize, packed| {
            let mut spec = problem(DType::F32, 1, 1, nq, 100, [d, d]);
            spec.packed = packed;
            choose_gpu(&spec.check().unwrap(), &H200, &kernels, &GpuOptions::default()).unwrap().kernel.name
        };
        // 8 rows of 256 dims are as many as 64 of 32; one row of 64 dims needs 64 of them.
        assert_eq!([name(1, 32, None), name(8, 64, None), name(9, 64, None)], ["rows", "rows", "d64r64"]);
        assert_eq!([name(9, 32, None), name(64, 33, None)], ["d32", "d64r64"]);
        assert_eq!(
            [name(128, 64, None), name(900, 64, None), name(961, 64, None)],
            ["d64r64", "d64r64", "d64r128"]
        );
        // However many rows there are, as their number is the neighbours' too.
        for nq in [1, 100, 961] {
            assert_eq!(name(nq, 64, Some(1)), "d64r128");
        }
    }

    #[test]
    fn parts_cover_the_keys_and_fill_the_device() {
        for device in [H200, TX2] {
            for h in [1, 2, 8, 32] {
                for nq in [1, 4, 5, 64, 300, 900, 4096] {
                    for nk in [0, 1, 63, 128, 255, 256, 900, 1024, 1025, 5000, 65_536, 1_000_000] {
                        let c = plain(problem(DType::F32, 1, h, nq, nk, [64, 64]), &device);
                        let what = (h, nq, nk, c);
                        assert!(c.chunk.is_multiple_of(c.kernel.keys) && c.chunk > 0, "{what:?}");
                        assert!(c.splits * c.chunk >= nk, "{what:?}");
                        assert!(c.splits == 1 || (c.splits - 1) * c.chunk < nk, "{what:?}");
                        assert!(c.splits == 1 || c.chunk >= least(nk), "{what:?}");
                        assert_eq!(c.row_blocks, nq.div_ceil(c.kernel.rows));
                        // Never more than half a device beyond a full one.
                        let blocks = c.row_blocks * h;
                        assert!(c.splits == 1 || c.splits * blocks <= 3 * device.sms, "{what:?}");
                    }
                }
            }
        }
        let decode = plain(problem(DType::F32, 1, 8, 1, 65_536, [64, 64]), &H200);
        assert_eq!((decode.kernel.name, decode.splits * 8), ("rows64", 32 * 8));
        let short = plain(problem(DType::F32, 1, 1, 64, 900, [64, 64]), &H200);
        assert_eq!((short.splits, short.chunk), (8, 128));
        // Two blocks for each SM.
        for (n, rows, splits) in [(1024, 64, 2), (2048, 64, 1), (4096, 64, 1)] {
            let c = plain(problem(DType::F32, 1, 8, n, n, [64, 64]), &H200);
            assert_eq!((c.kernel.rows, c.splits), (rows, splits), "{c:?}");
        }
    }

    /// Tall blocks for plain problems, short ones for all.
    fn two_heights() -> [GpuSpec; 3] {
        let short = GpuSpec { most_plain: 960, ..spec("d64r64", 64, false, ALL, 64) };
        let tall = GpuSpec { most_queries: 0, ..spec("d64r128", 64, false, ALL, 128) };
        [short, tall, spec("rows", 64, false, 8, 4)]
    }

    #[test]
    fn tall_blocks_are_for_plain_problems() {
        let kernels = two_heights();
        let height = |change: &dyn Fn(&mut Spec)| {
            let mut spec = problem(DType::F32, 1, 8, 2048, 2048, [64, 64]);
            change(&mut spec);
            choose_gpu(&spec.check().unwrap(), &H200, &kernels, &GpuOptions::default()).unwrap().kernel.rows
        };
        let view = |tokens| View::dense("x", Layout::Bhnd, &[1, 8, tokens, 64], None).unwrap();
        let mask = || MaskView::dense(MaskKind::Bool, &[1, 1, 2048, 2048]).unwrap();
        assert_eq!(height(&|_| ()), 128);
        assert_eq!(height(&|s| s.key_lengths = true), 128);
        assert_eq!(height(&|s| s.window.left = Some(100)), 128);
        assert_eq!(height(&|s| s.softcap = Some(0.0)), 128);
        assert_eq!(height(&|s| s.softcap = Some(30.0)), 64);
        assert_eq!(height(&|s| s.window.right = Some(100)), 64);
        assert_eq!(height(&|s| s.mask = Some(mask())), 64);
        assert_eq!(height(&|s| (s.past_key, s.past_value) = (Some(view(5)), Some(view(5)))), 64);
    }

    #[test]
    fn causal_rows_have_short_blocks_and_parts() {
        let kernels = two_heights();
        let of = |n, causal: bool, device: &GpuProfile| {
            let mut spec = problem(DType::F32, 1, 8, n, n, [64, 64]);
            spec.causal = causal.then_some(Alignment::TopLeft);
            choose_gpu(&spec.check().unwrap(), device, &kernels, &GpuOptions::default()).unwrap()
        };
        let shape = |n, causal| {
            let c = of(n, causal, &H200);
            (c.kernel.name, c.splits)
        };
        assert_eq!([shape(1024, false), shape(1024, true)], [("d64r128", 4), ("d64r64", 4)]);
        assert_eq!([shape(2048, false), shape(2048, true)], [("d64r128", 2), ("d64r64", 3)]);
        // Whole where partial states of four parts would take too much memory.
        assert_eq!([shape(4096, true), shape(16_384, true)], [("d64r64", 1), ("d64r64", 1)]);
        assert_eq!(shape(8, true), ("rows", 1));
        // A small device is full of blocks, and their order evens them out.
        assert_eq!((of(900, true, &TX2).splits, of(64, true, &TX2).splits), (1, 1));
        assert!(GpuLayout::of(&of(4096, true, &H200), false).unwrap().bytes <= 2_600_000);
    }

    #[test]
    fn the_batch_changes_no_part() {
        for nq in [1, 64, 900] {
            for nk in [900, 5000, 65_536] {
                let of = |b| {
                    let c = plain(problem(DType::F32, b, 8, nq, nk, [64, 64]), &H200);
                    (c.kernel.name, c.row_blocks, c.splits, c.chunk)
                };
                assert!([2, 3, 64, 1000].iter().all(|b| of(*b) == of(1)), "{nq} {nk}");
            }
        }
    }

    #[test]
    fn packed_sequences_and_lengths() {
        let mut packed = problem(DType::F32, 1, 1, 3, 5000, [64, 64]);
        packed.packed = Some(7);
        let c = plain(packed, &H200);
        assert_eq!((c.kernel.name, c.splits, c.sequences), ("d64", 1, 7));
        let mut lengths = problem(DType::F32, 3, 1, 3, 5000, [64, 64]);
        lengths.key_lengths = true;
        let c = plain(lengths, &H200);
        assert!(c.sequences == 3 && c.divided(), "{c:?}");
        let layout = GpuLayout::of(&c, false).unwrap();
        assert_eq!(layout.part_ms, GpuSpan { start: 0, len: 9 * c.splits * 8 });
        assert_eq!(layout.part_w.len, 9 * c.splits * 64 * 4);
        assert_eq!(layout.sequences.len, 3 * SEQUENCE_BYTES);
        assert!(layout.part_w.start.is_multiple_of(256) && layout.sequences.start.is_multiple_of(256));
        assert!(layout.part_ms.len <= layout.part_w.start);
        assert!(layout.part_w.start + layout.part_w.len <= layout.sequences.start);
        assert!(layout.sequences.start + layout.sequences.len <= layout.bytes);
    }

    #[test]
    fn the_workspace_is_small_and_a_budget_is_kept() {
        let large = plain(problem(DType::F32, 1, 8, 4096, 4096, [64, 64]), &H200);
        assert!(GpuLayout::of(&large, false).unwrap().bytes <= 2_600_000, "{large:?}");
        let room = GpuLayout::of(&large, true).unwrap();
        assert_eq!((room.part_ms.len, room.part_w.len), (8 * 4096 * 8, 8 * 4096 * 256));
        for (h, nq, nk) in [(1, 64, 65_536), (8, 900, 900), (1, 4096, 65_536), (8, 1, 1_000_000)] {
            let c = plain(problem(DType::F32, 1, h, nq, nk, [64, 64]), &H200);
            let bytes = GpuLayout::of(&c, false).unwrap().bytes;
            assert!(bytes <= PARTS.max(h * nq * 256) + 512, "{c:?}");
            let with = |budget| {
                let options = GpuOptions { budget: Some(budget), ..GpuOptions::default() };
                choice(problem(DType::F32, 1, h, nq, nk, [64, 64]), &H200, options)
            };
            assert_eq!(with(bytes), Ok(c));
            if bytes > 0 {
                let c = with(bytes - 1).unwrap();
                assert!(!c.divided() && GpuLayout::of(&c, false).unwrap().bytes == 0, "{c:?}");
            }
        }
        let mut table = problem(DType::F32, 9, 1, 3, 50, [64, 64]);
        table.key_lengths = true;
        let options = GpuOptions { budget: Some(511), ..GpuOptions::default() };
        let refused = choice(table, &H200, options);
        assert_eq!(refused, Err(PlanError::Budget { needed: 512, budget: 511 }));
    }

    #[test]
    fn what_32_bits_do_not_count_is_refused() {
        let of = |b, h, nq, nk| {
            let view = |n: usize, rows: usize| {
                View::new("x", [b, h, n, 8], [0, 0, if rows == 0 { 0 } else { 8 }, 1]).unwrap()
            };
            let dense = View::dense("out", Layout::Bhnd, &[b, h, nq, 8], None).unwrap();
            choice(
                Spec::new(DType::F32, view(nq, 1), view(nk, 0), view(nk, 0), dense),
                &H200,
                GpuOptions::default(),
            )
        };
        let axis = |found: Result<GpuChoice, PlanError>| match found {
            Err(PlanError::Extent { axis, .. }) => Some(axis),
            Err(e) => panic!("{e}"),
            Ok(_) => None,
        };
        assert_eq!(axis(of(1, 1, 1, MOST_TOKENS)), None);
        assert_eq!(axis(of(1, 1, 1, MOST_TOKENS + 1)), Some("keys"));
        assert_eq!(axis(of(1, 1, MOST_TOKENS + 1, 1)), Some("queries"));
        assert_eq!(axis(of(1 << 16, 1 << 15, 1, 1)), Some("rows"));
    }

    #[test]
    fn depths_are_those_of_flush_and_tree() {
        let undivided = plain(problem(DType::F32, 1, 8, 4096, 4096, [64, 64]), &H200);
        assert_eq!(undivided.depth(false), GpuDepth { merges: 0, additions: 512 + 8 });
        let half = plain(problem(DType::F16, 1, 8, 4096, 4096, [64, 64]), &H200);
        assert_eq!(half.depth(false), GpuDepth { merges: 0, additions: 4096 });
        assert_eq!(half.depth(true), GpuDepth { merges: 0, additions: 512 + 8 });
        let decode = plain(problem(DType::F32, 1, 8, 1, 65_536, [64, 64]), &H200);
        let leaf = decode.chunk;
        assert_eq!(decode.depth(false).merges, 5);
        assert_eq!(decode.depth(false).additions, 512 + leaf.div_ceil(512) + 5);
        let short = plain(problem(DType::F32, 1, 32, 4096, 100, [64, 64]), &H200);
        assert_eq!(short.depth(false), GpuDepth { merges: 0, additions: 100 });
    }

    #[test]
    fn blocks_that_an_sm_holds() {
        let k = KERNELS[1];
        assert_eq!(k.resident(&H200), 2);
        assert_eq!(GpuSpec { shared: 8 << 10, ..k }.resident(&H200), 4);
        assert_eq!(GpuSpec { shared: 0, registers: 32, ..k }.resident(&H200), 8);
        assert_eq!(GpuSpec { registers: 255, threads: 512, ..k }.resident(&H200), 1);
    }
}
