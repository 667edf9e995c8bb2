//! Tests of measured decisions.

use super::super::kernel::KeyLayout;
use super::super::race::Pace;
use super::super::testing::{self, TX2, alike};
use super::*;
use crate::attention::mask::MaskView;
use crate::attention::problem::Spec;
use crate::attention::sequence::Alignment;
use crate::profile::InstructionSet;
use crate::view::{Layout, View};

const DEVICE: GpuProfile = GpuProfile { sms: 8, ..TX2 };

const fn kernel(name: &'static str, head_dim: usize, sixteen_bit: bool, rows: usize) -> GpuKernelSpec {
    let paces = alike(Pace { shared: rows * head_dim * 9 / 1000, alone: rows * head_dim * 27 / 2000 });
    GpuKernelSpec { paces, ..testing::kernel(name, head_dim, sixteen_bit, usize::MAX, rows) }
}

const KERNELS: [GpuKernelSpec; 6] = [
    kernel("d64r64", 64, false, 64),
    kernel("d64r32", 64, false, 32),
    GpuKernelSpec { most_queries: 0, most_added: 0, most_causal: 0, ..kernel("plain", 64, false, 128) },
    kernel("wide", 256, false, 32),
    kernel("half", 64, true, 64),
    GpuKernelSpec {
        most_queries: 4,
        most_plain: 4,
        most_added: 4,
        most_causal: 4,
        summation: Summation::Groups { groups: 8, flush: 256 },
        ..kernel("rows", 64, false, 4)
    },
];

fn spec(dtype: DType, batch: usize, queries: usize, keys: usize) -> Spec {
    let view = |n| View::dense("x", Layout::Bhnd, &[batch, 2, n, 64], None).unwrap();
    Spec::new(dtype, view(queries), view(keys), view(keys), view(queries))
}

#[test]
fn alternatives_are_what_the_chooser_takes() {
    let options = GpuOptions::default();
    for (queries, keys) in [(1, 1), (1, 640), (70, 300), (300, 1000), (5, 0), (0, 5)] {
        for causal in [None, Some(Alignment::TopLeft)] {
            let problem = Spec { causal, ..spec(DType::F32, 1, queries, keys) }.check().unwrap();
            let own = choose_gpu(&problem, &DEVICE, &KERNELS, &options).unwrap();
            let mut seen: [Option<GpuChoice>; 256] = [None; 256];
            let all = alternatives(&problem, &DEVICE, &KERNELS, &options).unwrap();
            for (i, choice) in all.enumerate() {
                assert!(i > 0 || choice == own);
                assert!(seen[..i].iter().all(|before| *before != Some(choice)), "{choice:?} twice");
                seen[i] = Some(choice);
                let division = Some(choice.division());
                let again = choose_gpu(&problem, &DEVICE, &KERNELS, &GpuOptions { division, ..options });
                assert_eq!(again, Ok(choice));
                // The splits cover the keys, and no split is empty.
                assert!(choice.splits * choice.chunk >= keys);
                assert!(choice.splits == 1 || (choice.splits - 1) * choice.chunk < keys, "{choice:?}");
                assert_eq!(choice.executed().merge_depth, crate::scan::stack::depth(choice.splits));
                let class = ShapeClass::of(&problem, false).unwrap();
                let valid = class.check(&choice.kernel, choice.splits);
                assert!(valid.is_ok() || queries * keys == 0, "{valid:?} {choice:?}");
                let name = choice.kernel.name;
                assert!(name != "half" && name != "wide", "{name}");
                assert!(causal.is_none() || name != "plain");
                assert!(name != "rows" || queries <= 64);
            }
            let many = seen.iter().flatten().count();
            assert!(many >= if queries * keys >= 70 * 300 { 6 } else { 1 }, "{many} of {queries} {keys}");
        }
    }
}

#[test]
fn a_division_is_checked() {
    let problem = spec(DType::F32, 1, 100, 1000).check().unwrap();
    let choose = |candidate, splits, budget| {
        let division = Some(Division { candidate, splits });
        choose_gpu(&problem, &DEVICE, &KERNELS, &GpuOptions { division, budget, ..GpuOptions::default() })
    };
    let found = |c: GpuChoice| (c.kernel.name, c.splits, c.chunk);
    assert_eq!(choose(1, 3, None).map(found), Ok(("d64r32", 3, 384)));
    // A kernel's limit on the number of queries is only a preference, so a division may exceed it.
    assert_eq!(choose(5, 1, None).map(found), Ok(("rows", 1, 1024)));
    // At most one split per tile is possible. Five splits of sixteen tiles have four tiles each, so four splits remain.
    assert_eq!(choose(0, 1000, None).map(found), Ok(("d64r64", 16, 64)));
    assert_eq!(choose(0, 0, None).map(found), Ok(("d64r64", 1, 1024)));
    assert_eq!(choose(0, 5, Some(0)).map(found), Ok(("d64r64", 1, 1024)));
    assert_eq!(choose(4, 1, None), Err(ChooseError::NoKernel));
    assert_eq!(choose(99, 1, None), Err(ChooseError::NoKernel));
    let causal = Spec { causal: Some(Alignment::TopLeft), ..spec(DType::F32, 1, 100, 1000) };
    let options =
        GpuOptions { division: Some(Division { candidate: 2, splits: 1 }), ..GpuOptions::default() };
    let refused = choose_gpu(&causal.check().unwrap(), &DEVICE, &KERNELS, &options);
    assert_eq!(refused, Err(ChooseError::NoKernel), "a kernel for plain problems");
    let packed = Spec { packed: Some(3), ..spec(DType::F32, 1, 100, 1000) }.check().unwrap();
    let options = GpuOptions { division: Some(Division { candidate: 0, splits: 4 }), ..options };
    assert_eq!(choose_gpu(&packed, &DEVICE, &KERNELS, &options).map(|c| c.splits), Ok(1));
    assert_eq!(ShapeClass::of(&packed, false), None);
}

#[test]
fn a_class_leaves_the_batch_out_and_nothing_else() {
    let class = |spec: Spec, half| ShapeClass::of(&spec.check().unwrap(), half).unwrap();
    let plain = spec(DType::F32, 1, 100, 200);
    let of_plain = class(plain, false);
    assert_eq!(of_plain, class(spec(DType::F32, 7, 100, 200), false));
    assert_eq!(of_plain.changes.names().count(), 0);
    let mask = |kind| Some(MaskView::dense(kind, &[100, 200]).unwrap());
    let others = [
        class(plain, true),
        class(spec(DType::F16, 1, 100, 200), false),
        class(spec(DType::F32, 1, 101, 200), false),
        class(spec(DType::F32, 1, 100, 201), false),
        class(Spec { causal: Some(Alignment::TopLeft), ..plain }, false),
        class(Spec { softcap: Some(1.0), ..plain }, false),
        class(Spec { mask: mask(MaskKind::Bool), ..plain }, false),
        class(Spec { mask: mask(MaskKind::Additive(DType::F32)), ..plain }, false),
        class(Spec { mask: mask(MaskKind::Additive(DType::F16)), ..plain }, false),
        class(Spec { bias: mask(MaskKind::Additive(DType::F32)).map(BiasView::Dense), ..plain }, false),
        class(Spec { key_lengths: true, ..plain }, false),
    ];
    for (i, other) in others.iter().enumerate() {
        assert!(*other != of_plain && others[..i].iter().all(|before| before != other), "{other:?}");
        let read = other.changes.names().try_fold(Changes::default(), Changes::with);
        assert_eq!(read, Some(other.changes));
    }
    assert_eq!(Changes::default().with("batch"), None);
}

#[test]
fn impossible_divisions_are_named() {
    let class = ShapeClass::of(&spec(DType::F32, 1, 100, 1000).check().unwrap(), false).unwrap();
    let [d64, .., half, _] = &KERNELS;
    for splits in [1, 2, 3, 4, 6, 8, 16] {
        assert_eq!(class.check(d64, splits), Ok(()), "{splits}");
    }
    for splits in [0, 5, 7, 9, 15, 17, usize::MAX] {
        assert!(class.check(d64, splits).is_err(), "{splits}");
    }
    assert!(class.check(half, 1).is_err());
    assert!(class.check(&kernel("d32", 32, false, 32), 1).is_err());
    assert!(class.check(&GpuKernelSpec { half_chain: 16, ..*d64 }, 1).is_err());
    assert!(ShapeClass { kv_heads: 3, ..class }.check(d64, 1).is_err());
    for zero in [
        ShapeClass { heads: 0, ..class },
        ShapeClass { kv_heads: 0, ..class },
        ShapeClass { queries: 0, ..class },
        ShapeClass { keys: 0, ..class },
        ShapeClass { head_dim: 0, ..class },
        ShapeClass { value_dim: 0, ..class },
        ShapeClass { windows: 0, ..class },
    ] {
        assert_eq!(zero.check(d64, 1), Err("a number is zero"));
    }
}

#[test]
fn alternatives_on_a_cpu_are_what_the_chooser_takes() {
    const KERNEL: KernelSpec = KernelSpec {
        name: "kernel",
        set: InstructionSet::Scalar,
        lanes: 16,
        vectors: 3,
        tile_keys: 8,
        group: 4,
        keys: KeyLayout::Rows,
        most_queries: usize::MAX,
        weight_scale: 1.0,
        chain: 64,
        weight_sums: 1,
        exp2_relative: 1.6e-7,
        fused: true,
        raises: false,
        together: 1,
    };
    let device = DeviceProfile { l2: 1 << 20, ..DeviceProfile::modest() };
    for (queries, workers, count) in [(1, 1, 2), (1, 8, 5), (300, 1, 8), (300, 6, 35)] {
        let problem = spec(DType::F32, 1, queries, 1000).check().unwrap();
        let options = Options { workers, all_workers: true, ..Options::default() };
        let own = choose(&problem, &device, [&KERNEL], &options).unwrap().division();
        let all = cpu_alternatives(&problem, &device, [&KERNEL], &options).unwrap();
        let mut seen = [None; 64];
        for (i, choice) in all.enumerate() {
            let division = choice.division();
            assert!(division != own && !seen[..i].contains(&Some(division)), "{division:?}");
            let options = Options { division: Some(division), ..options };
            assert_eq!(choose(&problem, &device, [&KERNEL], &options), Ok(choice));
            seen[i] = Some(division);
        }
        let found = seen.iter().flatten().count();
        assert_eq!(found, count, "{queries} queries, {workers} workers, own {own:?}");
    }
}

#[test]
fn impossible_decisions_on_a_cpu_are_named() {
    let class = ShapeClass::of(&spec(DType::F16, 1, 100, 1000).check().unwrap(), false).unwrap();
    let division = CpuDivision { block: 128, group: 3, workers: 2 };
    assert_eq!(class.check_cpu(&division), Ok(()));
    for wrong in [
        CpuDivision { block: 65, ..division },
        CpuDivision { group: 0, ..division },
        CpuDivision { workers: 0, ..division },
    ] {
        assert!(class.check_cpu(&wrong).is_err(), "{wrong:?}");
    }
    assert!(ShapeClass { half_scores: true, ..class }.check_cpu(&division).is_err());
    assert_eq!(ShapeClass { keys: 0, ..class }.check_cpu(&division), Err("a number is zero"));
}
