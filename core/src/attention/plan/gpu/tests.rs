//! Tests of the GPU chooser.

use super::super::gpu_choice::{ARRIVALS, ByteSpan, GpuResources, SEQUENCE_BYTES};
use super::super::race::{Pace, Paces};
use super::super::testing::{H200, TX2, alike, kernel as spec};
use super::*;
use crate::attention::mask::{MaskKind, MaskView};
use crate::attention::plan::race::MOST_SPLITS;
use crate::attention::problem::Spec;
use crate::attention::sequence::Alignment;
use crate::attention::windows::Windows;
use crate::view::{Layout, View};

const ALL: usize = usize::MAX;
const KERNELS: [GpuKernelSpec; 7] = [
    spec("wide", 256, false, ALL, 32),
    spec("d64", 64, false, ALL, 64),
    GpuKernelSpec {
        summation: Summation::Groups { groups: 8, flush: 256 },
        ..spec("rows64", 64, false, 4, 4)
    },
    spec("d128", 128, false, ALL, 64),
    spec("half64", 64, true, ALL, 64),
    GpuKernelSpec { half_chain: 16, ..spec("halfhalf64", 64, true, ALL, 64) },
    spec("half128", 128, true, ALL, 64),
];

fn problem(dtype: DType, b: usize, h: usize, nq: usize, nk: usize, [d, dv]: [usize; 2]) -> Spec {
    let view = |n, d| View::dense("x", Layout::Bhnd, &[b, h, n, d], None).unwrap();
    Spec::new(dtype, view(nq, d), view(nk, d), view(nk, dv), view(nq, dv))
}

fn choice(spec: Spec, device: &GpuProfile, options: GpuOptions) -> Result<GpuChoice, ChooseError> {
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
    // A few rows of a kernel with a large head size are less work than many rows of a kernel with a small head size.
    let narrow = [spec("d32", 32, false, ALL, 64)];
    for (nq, want) in [(4, "rows64"), (5, "d32")] {
        let small = problem(DType::F32, 1, 1, nq, 100, [16, 16]).check().unwrap();
        let kernels = KERNELS.iter().chain(&narrow);
        let chosen = choose_gpu(&small, &H200, kernels, &GpuOptions::default()).map(|c| c.kernel.name);
        assert_eq!(chosen, Ok(want));
    }
    let refused = name(DType::F32, 100, [257, 8], false);
    assert_eq!(refused, Err(ChooseError::HeadSize { found: 257, max: 256 }));
    let refused = name(DType::F16, 100, [64, 129], false);
    assert_eq!(refused, Err(ChooseError::HeadSize { found: 129, max: 128 }));
    let twins = [spec("first", 64, false, ALL, 64), spec("second", 64, false, ALL, 64)];
    let small = problem(DType::F32, 1, 1, 100, 100, [64, 64]).check().unwrap();
    assert_eq!(choose_gpu(&small, &H200, &twins, &GpuOptions::default()).unwrap().candidate, 0);
    let none = problem(DType::F32, 1, 1, 8, 8, [8, 8]).check().unwrap();
    assert_eq!(choose_gpu(&none, &H200, &[], &GpuOptions::default()), Err(ChooseError::NoKernel));
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
    // 8 rows of 256 dims are as much work as 64 rows of 32 dims. For a kernel with blocks of 64 rows, one row is as much
    // work as 64 rows.
    assert_eq!([name(1, 32, None), name(8, 64, None), name(9, 64, None)], ["rows", "rows", "d64r64"]);
    assert_eq!([name(9, 32, None), name(64, 33, None)], ["d32", "d64r64"]);
    assert_eq!(
        [name(128, 64, None), name(900, 64, None), name(961, 64, None)],
        ["d64r64", "d64r64", "d64r128"]
    );
    // Packed sequences use this kernel for any number of rows, because the rows of the tensor belong to all of them.
    for nq in [1, 100, 961] {
        assert_eq!(name(nq, 64, Some(1)), "d64r128");
    }
}

#[test]
fn splits_cover_the_keys_and_fill_the_device() {
    for device in [H200, TX2] {
        for h in [1, 2, 8, 32] {
            for nq in [1, 4, 5, 64, 300, 900, 4096] {
                for nk in [0, 1, 63, 128, 255, 256, 900, 1024, 1025, 5000, 65_536, 1_000_000] {
                    let c = plain(problem(DType::F32, 1, h, nq, nk, [64, 64]), &device);
                    let what = (h, nq, nk, c);
                    assert!(c.chunk.is_multiple_of(c.kernel.keys) && c.chunk > 0, "{what:?}");
                    assert!(c.splits * c.chunk >= nk, "{what:?}");
                    assert!(c.splits == 1 || (c.splits - 1) * c.chunk < nk, "{what:?}");
                    assert_eq!(c.row_blocks, nq.div_ceil(c.kernel.rows));
                    if c.kernel.rows > 4 {
                        assert!(c.splits <= MOST_SPLITS, "{what:?}");
                        continue;
                    }
                    // All splits must be resident on the device at once.
                    let room = device.sms * c.kernel.resources.resident(&device);
                    assert!(c.splits == 1 || c.splits * c.row_blocks * h <= room, "{what:?}");
                    assert!(c.splits == 1 || c.chunk >= min_rows_chunk(nk), "{what:?}");
                }
            }
        }
    }
    let decode = plain(problem(DType::F32, 1, 8, 1, 65_536, [64, 64]), &H200);
    assert_eq!((decode.kernel.name, decode.splits * 8), ("rows64", 32 * 8));
    let short = plain(problem(DType::F32, 1, 1, 64, 900, [64, 64]), &H200);
    assert_eq!((short.splits, short.chunk), (8, 128));
    // An SM with only one block idles while the block waits, so the keys are split. With two blocks they are not.
    let splits = |h| plain(problem(DType::F32, 1, h, 64, 2048, [64, 64]), &H200).splits;
    assert_eq!([splits(132), splits(264)], [2, 1]);
    for (n, rows, splits) in [(1024, 64, 2), (2048, 64, 1), (4096, 64, 1)] {
        let c = plain(problem(DType::F32, 1, 8, n, n, [64, 64]), &H200);
        assert_eq!((c.kernel.rows, c.splits), (rows, splits), "{c:?}");
    }
}

/// Returns a kernel with tall blocks for plain problems only, and kernels with short blocks for all problems.
fn two_heights() -> [GpuKernelSpec; 3] {
    let short = GpuKernelSpec { most_plain: 960, ..spec("d64r64", 64, false, ALL, 64) };
    let tall = GpuKernelSpec { most_queries: 0, ..spec("d64r128", 64, false, ALL, 128) };
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
    let pack = |s: &mut Spec| {
        *s = problem(DType::F32, 1, 8, 100, 100, [64, 64]);
        s.packed = Some(3);
    };
    assert_eq!(height(&pack), 128, "packed sequences take the tallest blocks, whatever their lengths");
    assert_eq!(height(&|s| s.window.left = Some(100)), 128);
    assert_eq!(height(&|s| s.softcap = Some(0.0)), 128);
    assert_eq!(height(&|s| s.softcap = Some(30.0)), 64);
    assert_eq!(height(&|s| s.window.right = Some(100)), 64);
    assert_eq!(height(&|s| s.mask = Some(mask())), 64);
    assert_eq!(height(&|s| (s.past_key, s.past_value) = (Some(view(5)), Some(view(5)))), 64);
}

#[test]
fn kernels_that_add_are_for_f32_elements_side_by_side_and_bits() {
    let adds = GpuKernelSpec { most_queries: 0, most_added: ALL, ..spec("adds", 64, false, 0, 64) };
    let all = GpuKernelSpec { most_added: 0, ..spec("all", 64, false, ALL, 64) };
    let name = |change: &dyn Fn(&mut Spec)| {
        let mut spec = problem(DType::F32, 1, 8, 100, 100, [64, 64]);
        change(&mut spec);
        let spec = spec.check().unwrap();
        choose_gpu(&spec, &H200, &[all, adds], &GpuOptions::default()).unwrap().kernel.name
    };
    let view = |kind, dims: &[usize]| MaskView::dense(kind, dims).unwrap();
    let float = || view(MaskKind::Additive(DType::F32), &[100, 100]);
    let bits = || view(MaskKind::Bool, &[100, 1]);
    assert_eq!(name(&|_| ()), "all");
    assert_eq!(name(&|s| s.mask = Some(float())), "adds");
    assert_eq!(name(&|s| s.mask = Some(bits())), "adds");
    assert_eq!(name(&|s| s.bias = Some(BiasView::Dense(float()))), "adds");
    assert_eq!(name(&|s| (s.mask, s.bias) = (Some(bits()), Some(BiasView::Dense(float())))), "adds");
    assert_eq!(name(&|s| (s.mask, s.bias) = (Some(float()), Some(BiasView::Dense(float())))), "all");
    assert_eq!(name(&|s| s.mask = Some(view(MaskKind::Additive(DType::F16), &[100, 100]))), "all");
    assert_eq!(name(&|s| s.mask = Some(view(MaskKind::Additive(DType::F32), &[100, 1]))), "all");
    assert_eq!(name(&|s| (s.mask, s.softcap) = (Some(float()), Some(3.0))), "all");
    assert_eq!(name(&|s| (s.mask, s.window.right) = (Some(float()), Some(3))), "all");
    let narrow = |s: &mut Spec| *s = problem(DType::F32, 1, 8, 100, 100, [48, 64]);
    assert_eq!(
        name(&|s| {
            narrow(s);
            s.mask = Some(float());
        }),
        "all"
    );
}

#[test]
fn low_blocks_are_for_problems_that_leave_sms_idle() {
    let paces = |shared, alone| alike(Pace { shared, alone });
    let low = GpuKernelSpec { few_blocks: true, paces: paces(205, 400), ..spec("low", 64, false, ALL, 32) };
    let kernels = [GpuKernelSpec { paces: paces(367, 470), ..spec("d64", 64, false, ALL, 64) }, low];
    let chosen = |h, n, device| {
        let spec = problem(DType::F32, 1, h, n, n, [64, 64]).check().unwrap();
        let c = choose_gpu(&spec, device, &kernels, &GpuOptions::default()).unwrap();
        (c.kernel.name, c.splits)
    };
    // The blocks of one head leave enough SMs idle for all splits to start at once; those of twelve heads do not.
    assert_eq!(
        [64, 100, 196, 256].map(|n| chosen(1, n, &H200)),
        [("low", 1), ("low", 2), ("low", 4), ("low", 4)]
    );
    // Blocks of four rows need no merge if all of them start at once. With more tiles or more blocks they are slower.
    let joining = GpuKernelSpec {
        joins_race: true,
        summation: Summation::Groups { groups: 8, flush: 256 },
        paces: Paces { early: Pace { shared: 120, alone: 382 }, late: Pace { shared: 115, alone: 170 } },
        ..spec("rows64", 64, false, 8, 4)
    };
    let with_rows = [kernels[0], kernels[1], joining];
    let joined = |b, h, n, device| {
        let spec = problem(DType::F32, b, h, n, n, [64, 64]).check().unwrap();
        let c = choose_gpu(&spec, device, &with_rows, &GpuOptions::default()).unwrap();
        (c.kernel.name, c.splits)
    };
    for b in [1, 8] {
        assert_eq!([9, 64, 100, 144, 192].map(|n| joined(b, 1, n, &H200)), [("rows64", 1); 5]);
        assert_eq!([196, 256, 576].map(|n| joined(b, 1, n, &H200).0), ["low"; 3]);
        assert_eq!(
            [(2, 128), (2, 136), (12, 64)].map(|(h, n)| joined(b, h, n, &H200).0),
            ["rows64", "low", "low"]
        );
        assert_eq!([9, 64, 100].map(|n| joined(b, 1, n, &TX2)), [("low", 1); 3]);
    }
    assert_eq!(joined(1, 1, 8, &H200).0, "rows64");
    assert_eq!(chosen(12, 197, &H200), ("d64", 2));
    assert_eq!(chosen(16, 257, &H200).0, "d64");
    // Low blocks fill the device evenly, so the keys are not divided.
    assert_eq!(chosen(16, 1041, &H200), ("low", 1));
    assert_eq!(chosen(1, 64, &TX2), ("low", 1));
    assert_eq!([(1, 100), (2, 64), (8, 128)].map(|(h, n)| chosen(h, n, &TX2).0), ["low", "low", "d64"]);
    // The batch changes neither the kernel nor the division.
    let of = |b| {
        let spec = problem(DType::F32, b, 12, 197, 197, [64, 64]).check().unwrap();
        choose_gpu(&spec, &H200, &kernels, &GpuOptions::default()).unwrap()
    };
    assert_eq!((of(1).kernel, of(1).splits, of(1).chunk), (of(8).kernel, of(8).splits, of(8).chunk));
    // The size of the batch determines which block merges the states of a row. If the batch fills the device and the kernel
    // supports it, one block processes all splits of its rows.
    assert!(!of(8).serial);
    let able = [GpuKernelSpec { serial: true, ..kernels[0] }, kernels[1]];
    let serial = |change: &dyn Fn(&mut Spec)| {
        [1, 4, 8, 16].map(|b| {
            let mut spec = problem(DType::F32, b, 12, 197, 197, [64, 64]);
            change(&mut spec);
            choose_gpu(&spec.check().unwrap(), &H200, &able, &GpuOptions::default()).unwrap().serial
        })
    };
    assert_eq!(serial(&|_| {}), [false, false, true, true]);
    assert_eq!(serial(&|s| s.key_lengths = true), [false; 4]);
    assert_eq!(serial(&|s| s.window.left = Some(100)), [false; 4]);
    assert_eq!(serial(&|s| s.softcap = Some(30.0)), [false; 4]);
}

#[test]
fn slow_edges_are_for_whole_tiles_and_many() {
    let slow = GpuKernelSpec {
        most_queries: 0,
        slow_edges: true,
        paces: alike(Pace { shared: 300, alone: 500 }),
        ..spec("slow", 64, false, ALL, 64)
    };
    let kernels = [spec("fast", 64, false, ALL, 64), slow];
    let name = |n| {
        let spec = problem(DType::F32, 1, 8, n, n, [64, 64]).check().unwrap();
        choose_gpu(&spec, &H200, &kernels, &GpuOptions::default()).unwrap().kernel.name
    };
    assert_eq!([256, 257, 4096, 4097].map(name), ["slow", "fast", "slow", "slow"]);
}

#[test]
fn a_block_of_few_rows_serves_the_heads_that_share_keys() {
    let of = |heads: usize, kv_heads: usize, queries: usize| {
        let view = |heads, n| View::dense("x", Layout::Bhnd, &[1, heads, n, 64], None).unwrap();
        let (q, k) = (view(heads, queries), view(kv_heads, 65_536));
        plain(Spec::new(DType::F32, q, k, k, q), &H200)
    };
    let shape = |c: GpuChoice| (c.kernel.name, c.heads_at_once, c.row_blocks);
    assert_eq!(shape(of(32, 8, 1)), ("rows64", 4, 1));
    assert_eq!(shape(of(32, 8, 3)), ("rows64", 4, 3));
    assert_eq!(shape(of(24, 8, 1)), ("rows64", 3, 1));
    assert_eq!(shape(of(64, 8, 1)), ("rows64", 8, 2));
    assert_eq!(shape(of(8, 8, 4)), ("rows64", 1, 1));
    assert_eq!(shape(of(32, 8, 64)), ("d64", 1, 1));
    // The number of splits follows from the blocks of the head groups, not from the number of query heads.
    assert_eq!(of(32, 8, 1).splits, of(8, 8, 1).splits);
}

#[test]
fn changed_scores_leave_a_device_full() {
    let kernels = [GpuKernelSpec {
        resources: GpuResources { threads: 128, shared: 32 << 10, registers: 168 },
        ..spec("d64", 64, false, ALL, 64)
    }];
    let splits = |b: usize, heads: usize, n: usize, masked: bool| {
        let mask = masked.then(|| MaskView::dense(MaskKind::Bool, &[n, n]).unwrap());
        let spec = Spec { mask, ..problem(DType::F32, b, heads, n, n, [64, 64]) };
        choose_gpu(&spec.check().unwrap(), &H200, &kernels, &GpuOptions::default()).unwrap().splits
    };
    // On a device with room for 264 blocks, 512 blocks take two rounds, and the second is almost full. With 320 blocks,
    // only a quarter of the second round is used.
    assert_eq!([splits(1, 8, 4096, true), splits(1, 5, 4096, true)], [1, 3]);
    assert_eq!([splits(1, 8, 4096, false), splits(1, 5, 4096, false)], [1, 1]);
    assert_eq!(splits(4, 5, 4096, true), 3, "a batch changes nothing");
}

#[test]
fn windows_of_a_picture_fill_the_device_together() {
    let windows = Windows { picture: [48, 48], size: [12, 12], shift: [6, 6] };
    let splits = |windows, b| {
        let spec = Spec { windows, ..problem(DType::F32, b, 12, 144, 144, [32, 32]) };
        choose_gpu(&spec.check().unwrap(), &H200, &KERNELS, &GpuOptions::default()).unwrap().splits
    };
    assert_eq!([splits(Some(windows), 16), splits(Some(windows), 48), splits(None, 16)], [1, 1, 3]);
}

#[test]
fn causal_rows_have_short_blocks_and_splits() {
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
    assert_eq!([shape(2048, false), shape(2048, true)], [("d64r128", 2), ("d64r64", 2)]);
    // Keys are not divided if the longest block takes no longer than the average SM is busy.
    assert_eq!([shape(4096, true), shape(16_384, true)], [("d64r64", 1), ("d64r64", 1)]);
    assert_eq!(shape(8, true), ("rows", 1));
    assert!(of(1024, true, &H200).longest_first && !of(1024, false, &H200).longest_first);
    // The blocks fill a small device, and starting the longest first evens out their lengths.
    assert_eq!((of(900, true, &TX2).splits, of(64, true, &TX2).splits), (1, 1));
    assert!(GpuWorkspaceLayout::of(&of(4096, true, &H200), false).unwrap().bytes <= 2_600_000);
}

#[test]
fn the_batch_changes_no_split() {
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
    let layout = GpuWorkspaceLayout::of(&c, false).unwrap();
    assert_eq!(layout.partial_ms, ByteSpan { start: ARRIVALS * 4, len: 9 * c.splits * 8 });
    assert_eq!(layout.partial_w.len, 9 * c.splits * 64 * 4);
    assert_eq!(layout.sequences.len, 3 * SEQUENCE_BYTES);
    assert!(layout.partial_w.start.is_multiple_of(256) && layout.sequences.start.is_multiple_of(256));
    assert!(layout.partial_ms.len <= layout.partial_w.start);
    assert!(layout.partial_w.start + layout.partial_w.len <= layout.sequences.start);
    assert!(layout.sequences.start + layout.sequences.len <= layout.bytes);
}

#[test]
fn the_workspace_is_small_and_a_budget_is_kept() {
    let large = plain(problem(DType::F32, 1, 8, 4096, 4096, [64, 64]), &H200);
    assert!(GpuWorkspaceLayout::of(&large, false).unwrap().bytes <= 2_600_000, "{large:?}");
    let room = GpuWorkspaceLayout::of(&large, true).unwrap();
    assert_eq!((room.partial_ms.len, room.partial_w.len), (8 * 4096 * 8, 8 * 4096 * 256));
    for (h, nq, nk) in [(1, 64, 65_536), (8, 900, 900), (1, 4096, 65_536), (8, 1, 1_000_000)] {
        let c = plain(problem(DType::F32, 1, h, nq, nk, [64, 64]), &H200);
        let bytes = GpuWorkspaceLayout::of(&c, false).unwrap().bytes;
        assert!(bytes <= PARTIAL_BYTES.max(h * nq * 256) + ARRIVALS * 4 + 512, "{c:?}");
        let with = |budget| {
            let options = GpuOptions { budget: Some(budget), ..GpuOptions::default() };
            choice(problem(DType::F32, 1, h, nq, nk, [64, 64]), &H200, options)
        };
        assert_eq!(with(bytes), Ok(c));
        if bytes > 0 {
            let c = with(bytes - 1).unwrap();
            assert!(!c.divided() && GpuWorkspaceLayout::of(&c, false).unwrap().bytes == 0, "{c:?}");
        }
    }
    let mut table = problem(DType::F32, 9, 1, 3, 50, [64, 64]);
    table.key_lengths = true;
    let needed = ARRIVALS * 4 + 512;
    let options = GpuOptions { budget: Some(needed - 1), ..GpuOptions::default() };
    let refused = choice(table, &H200, options);
    assert_eq!(refused, Err(ChooseError::Budget { needed, budget: needed - 1 }));
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
    let axis = |found: Result<GpuChoice, ChooseError>| match found {
        Err(ChooseError::Extent { axis, .. }) => Some(axis),
        Err(e) => panic!("{e}"),
        Ok(_) => None,
    };
    assert_eq!(axis(of(1, 1, 1, MAX_COUNT)), None);
    assert_eq!(axis(of(1, 1, 1, MAX_COUNT + 1)), Some("keys"));
    assert_eq!(axis(of(1, 1, MAX_COUNT + 1, 1)), Some("queries"));
    assert_eq!(axis(of(1 << 16, 1 << 15, 1, 1)), Some("rows"));
    // 2^27 row blocks with hundreds of splits each are too many blocks for a launch.
    assert_eq!(axis(of(1 << 27, 1, 1, 1 << 16)), Some("blocks"));
}

#[test]
fn depths_are_those_of_flush_and_tree() {
    let path = |choice: &GpuChoice, states| {
        let path = choice.longest_path(states);
        (path.merges, path.additions())
    };
    let undivided = plain(problem(DType::F32, 1, 8, 4096, 4096, [64, 64]), &H200);
    assert_eq!(path(&undivided, false), (0, 511 + 7));
    // An f16 output cannot store the sums, so products form one chain, unless states are written.
    let half = plain(problem(DType::F16, 1, 8, 4096, 4096, [64, 64]), &H200);
    assert_eq!(path(&half, false), (0, 4095));
    assert_eq!(path(&half, true), (0, 511 + 7));
    let short = plain(problem(DType::F32, 1, 32, 4096, 100, [64, 64]), &H200);
    assert_eq!(path(&short, false), (0, 99));
    let none = plain(problem(DType::F32, 1, 32, 4096, 0, [64, 64]), &H200);
    assert_eq!(path(&none, false), (0, 0));
    // If there are many keys, the path of the weights is longer: it sums the eight weights that a lane has in a tile,
    // then the 1024 tiles, then the eight lanes.
    let long = plain(problem(DType::F32, 1, 64, 4096, 65_536, [64, 64]), &H200);
    assert_eq!((long.splits, long.longest_path(false).into_s), (1, 7 + 1023 + 3));

    let decode = plain(problem(DType::F32, 1, 8, 1, 65_536, [64, 64]), &H200);
    assert_eq!((decode.kernel.name, decode.splits, decode.chunk), ("rows64", 32, 2048));
    // Each of eight groups sums 256 keys; then the groups merge, and then the splits.
    assert_eq!(path(&decode, false), (5, 255 + 3 + 5));
    let few = plain(problem(DType::F32, 1, 8, 1, 5, [64, 64]), &H200);
    assert_eq!(path(&few, false), (0, 3));
}

#[test]
fn groups_flush_into_outer_sums() {
    let groups = |keys| Summation::Groups { groups: 4, flush: 256 }.additions(64, keys, false);
    // Numbers of keys below the flush, at the flush, one key beyond it, and far beyond it.
    assert_eq!(
        [1, 4, 1024, 1025, 65_536].map(groups),
        [0, 2, 255 + 2, 255 + 1 + 2, 255 + 63 + 2].map(|n| [n; 2])
    );
}

#[test]
fn blocks_that_an_sm_holds() {
    let k = KERNELS[1].resources;
    assert_eq!(k.resident(&H200), 2);
    assert_eq!(GpuResources { shared: 8 << 10, ..k }.resident(&H200), 4);
    assert_eq!(GpuResources { shared: 0, registers: 32, ..k }.resident(&H200), 8);
    assert_eq!(GpuResources { registers: 255, threads: 512, ..k }.resident(&H200), 1);
    // A device with unknown shared memory is assumed to have 64 KiB per SM.
    let unknown = GpuProfile { shared_per_sm: 0, ..H200 };
    assert_eq!(GpuResources { registers: 32, ..k }.resident(&unknown), 2);
}

/// Checks that the error bound uses the constants of the selected kernel.
#[test]
fn executed_has_the_constants_of_the_kernel() {
    let mut own = KERNELS;
    for (n, kernel) in own.iter_mut().enumerate() {
        kernel.exp2_relative = 1e-7 * (n + 1) as f64;
        kernel.chain = 100 + n;
    }
    for (dtype, queries, d) in
        [(DType::F32, 1, 64), (DType::F32, 4096, 64), (DType::F16, 4096, 64), (DType::F32, 300, 128)]
    {
        let problem = problem(dtype, 1, 8, queries, 4096, [d, d]).check().unwrap();
        let choice = choose_gpu(&problem, &H200, &own, &GpuOptions::default()).unwrap();
        let (executed, kernel) = (choice.executed(), own[choice.candidate]);
        assert_eq!((executed.kernel, executed.chain), (kernel.name, kernel.chain));
        assert_eq!(executed.exp2_relative, kernel.exp2_relative);
        assert_eq!((executed.half_chain, executed.fused), (kernel.half_chain, true));
        let path = choice.longest_path(false);
        assert_eq!((executed.into_s, executed.into_w), (path.into_s, path.into_w));
        assert_eq!(executed.order.segment, choice.chunk);
    }
    // If a window excludes keys on the left, chains may begin anywhere.
    let mut spec = problem(DType::F32, 1, 8, 4096, 4096, [64, 64]);
    let values = |spec: Spec| {
        choose_gpu(&spec.check().unwrap(), &H200, &own, &GpuOptions::default())
            .unwrap()
            .executed()
            .order
            .values
    };
    assert!(values(spec) > 0);
    spec.window.left = Some(100);
    assert_eq!(values(spec), 0);
}

#[test]
fn a_budget_has_room_for_what_is_left_out() {
    let of = |error_budget, b, splits| {
        let division = Some(Division { candidate: 1, splits });
        let options = GpuOptions { error_budget, division, ..GpuOptions::default() };
        choice(problem(DType::F32, b, 3, 130, 1000, [64, 64]), &H200, options).unwrap()
    };
    let exact = of(None, 2, 4);
    let layout = GpuWorkspaceLayout::of(&exact, false).unwrap();
    assert_eq!((exact.odds(), exact.counting, layout.partial_d.len, layout.left_out.len), (None, 0, 0, 0));
    // Each head has three row blocks with four splits, and a counter has 16 bytes. Each row has three numbers.
    let (c, rows) = (of(Some(0.01), 2, 4), 2 * 3 * 130);
    let layout = GpuWorkspaceLayout::of(&c, false).unwrap();
    assert_eq!((c.counting, c.splits, c.chunk), (2 * 3 * 3 * 4, 4, 256));
    assert_eq!((layout.partial_d.len, layout.left_out.len), (rows * 4 * 4, 72 * 16 + rows * 12));
    assert!(layout.partial_d.start + layout.partial_d.len <= layout.partial_bytes());
    assert!(layout.left_out.start >= layout.partial_bytes() && layout.bytes >= layout.left_out.len);
    // Packed sequences have counters for the blocks that all rows of a head fill, plus one per sequence.
    let packed = Spec { packed: Some(5), ..problem(DType::F32, 1, 3, 130, 1000, [64, 64]) };
    let options = GpuOptions { error_budget: Some(0.01), ..GpuOptions::default() };
    let of_packed = choice(packed, &H200, options).unwrap();
    assert_eq!((of_packed.counting, of_packed.splits), (3 * (130 / of_packed.kernel.rows + 5), 1));
    // The odds allow for the roundings of the compared sums and of the reported sums.
    let odds = f64::from(c.odds().unwrap());
    assert!(odds < 0.01 / 0.99 && odds > 0.01 / 0.99 * (1.0 - 1e-4), "{odds}");
    assert_eq!(c.odds(), of(Some(0.01), 1, 4).odds());
    // Undivided keys have longer chains of tiles, so the odds differ.
    assert!(c.odds() != of(Some(0.01), 2, 1).odds());
}
