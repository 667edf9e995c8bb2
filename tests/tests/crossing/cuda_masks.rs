//! Tests masks on a GPU: every mask type gives the same bits, and skipping a tile whose keys are all masked does not change them.

use elsa_core::attention::{MaskKind, MaskView};
use elsa_core::dtype::DType;
use elsa_oracle::cases::{Buffers, Case, Data, MaskData, Params};
use elsa_oracle::gpu_engine;
use elsa_runtime::{Engine, Fallback, PlanOptions};
use half::f16;

/// Number of queries of a case: two blocks of 64 rows and two more rows.
const QUERIES: usize = 130;
const HEADS: usize = 2;
/// Number of keys per tile.
const TILE: usize = 64;
/// Pairs of a head size and a type, each computed by a different kernel.
const KERNELS: [(usize, DType); 6] = [
    (32, DType::F32),
    (64, DType::F32),
    (96, DType::F32),
    (128, DType::F32),
    (256, DType::F32),
    (64, DType::F16),
];
const TYPES: [MaskKind; 3] = [MaskKind::Bool, MaskKind::Additive(DType::F32), MaskKind::Additive(DType::F16)];

/// Builds a case whose mask has the axes `[1, HEADS or 1, rows, columns]`; `attends(query, key)` applies to all heads.
fn case(
    (d, dtype): (usize, DType),
    [rows, keys, columns]: [usize; 3],
    kind: MaskKind,
    attends: &dyn Fn(usize, usize) -> bool,
) -> Case {
    let params = Params { dtype, heads: HEADS, kv_heads: HEADS, ..Params::plain(QUERIES, keys, d, d) };
    let mut case = params.build("masks");
    let heads = if rows == 1 { 1 } else { HEADS };
    case.spec.mask = Some(MaskView::dense(kind, &[1, heads, rows, columns]).unwrap());
    let attended: Vec<bool> =
        (0..heads * rows * columns).map(|n| attends(n / columns % rows, n % columns)).collect();
    let natural = |x: &bool| if *x { 0.0 } else { f32::NEG_INFINITY };
    case.mask = Some(match kind {
        // Every byte except zero means attended.
        MaskKind::Bool => MaskData::Bool(
            attended.iter().enumerate().map(|(n, x)| if *x { (n % 255 + 1) as u8 } else { 0 }).collect(),
        ),
        MaskKind::Additive(DType::F32) => {
            MaskData::Additive(Data::F32(attended.iter().map(natural).collect()))
        }
        MaskKind::Additive(_) => {
            MaskData::Additive(Data::F16(attended.iter().map(|x| f16::from_f32(natural(x))).collect()))
        }
    });
    case
}

/// Returns the kernel of a case.
fn kernel_of(engine: &Engine, case: &Case) -> &'static str {
    engine.plan(&case.problem(), &PlanOptions::default()).unwrap().kernel()
}

fn run(engine: &Engine, case: &Case) -> Buffers {
    case.run_on(engine, &PlanOptions::default())
}

/// Returns the bits of the output, row by row.
fn rows(buffers: &Buffers, d: usize) -> Vec<Vec<u32>> {
    let bits: Vec<u32> = (0..buffers.output.len()).map(|i| buffers.output.get(i).to_bits()).collect();
    bits.chunks(d).map(<[u32]>::to_vec).collect()
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host"]
fn the_type_of_a_mask_changes_no_bit_of_a_kernel() {
    let engine = gpu_engine(Fallback::Fail);
    // Two tiles are empty, one is completely attended, and the third block of rows attends no key.
    let attends = |i: usize, j: usize| match (i / TILE, j / TILE) {
        (2, _) | (0, 1) | (1, 0) => false,
        (0, 0) => true,
        _ => !(i * 7 + j * 3).is_multiple_of(5),
    };
    let mut same = 0;
    for kernel in KERNELS {
        for keys in [200, 197] {
            for [rows_of, columns] in [[QUERIES, keys], [1, keys], [QUERIES, 1]] {
                let [bools, floats, halves] = TYPES.map(|kind| {
                    let case = case(kernel, [rows_of, keys, columns], kind, &attends);
                    (run(&engine, &case), case)
                });
                let what = format!("{kernel:?}, {keys} keys, mask of {rows_of} x {columns}");
                bools.1.naive().check_all(&bools.0, 5000).unwrap_or_else(|e| panic!("{what}: {e}"));
                let wanted = rows(&bools.0, kernel.0);
                assert!(wanted.iter().flatten().all(|x| f32::from_bits(*x).is_finite()), "{what}");
                for (other, kind) in [(floats, "f32"), (halves, "f16")] {
                    let [one, another] = [&bools.1, &other.1].map(|case| kernel_of(&engine, case));
                    if one == another {
                        same += 1;
                        assert_eq!(wanted, rows(&other.0, kernel.0), "{what}: {kind}");
                    } else {
                        // The kernels that add masks in plain tiles support neither f16 masks nor masks of a single
                        // column.
                        assert!(one.ends_with("_added"), "{what}: {kind}: {one}, {another}");
                        other.1.naive().check_all(&other.0, 5000).unwrap_or_else(|e| panic!("{what}: {e}"));
                    }
                }
            }
        }
    }
    // Two f32 kernels have variants for f32 and boolean masks. Only with these kernels may f16 masks and masks of a
    // single column run on another kernel.
    assert!(same > KERNELS.len() * 12 - 20, "{same}");
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host"]
fn tiles_that_a_mask_empties_change_no_bit() {
    const KEYS: usize = 3 * TILE;
    let engine = gpu_engine(Fallback::Fail);
    let empty = |j: usize| j / TILE == 1;
    for kernel in KERNELS {
        for kind in TYPES {
            let (d, what) = (kernel.0, format!("{kernel:?} {kind:?}"));
            let axes = [QUERIES, KEYS, KEYS];
            let case_of = |attends: &dyn Fn(usize, usize) -> bool| case(kernel, axes, kind, attends);
            let some = |i: usize, j: usize| !empty(j) && !(i * 7 + j * 3).is_multiple_of(5);
            let mut left_out = case_of(&some);
            let wanted = rows(&run(&engine, &left_out), d);
            // The contents of masked keys must not leak.
            for x in [&mut left_out.k, &mut left_out.v] {
                for at in 0..x.len() {
                    if empty(at / d % KEYS) {
                        x.set(at, f32::NAN);
                    }
                }
            }
            assert_eq!(wanted, rows(&run(&engine, &left_out), d), "{what}: NaN in the empty tile");
            // If another row attends a key of the tile, the block computes the tile, and rows that do not attend the
            // key keep their bits.
            let other = |i: usize| i % 32 == 9;
            let taken_in = case_of(&|i, j| some(i, j) || (other(i) && j == TILE + 5));
            let found = rows(&run(&engine, &taken_in), d);
            for (n, (wanted, found)) in wanted.iter().zip(&found).enumerate() {
                let same = wanted == found;
                assert_eq!(same, !other(n % QUERIES), "{what}: row {n}");
            }
        }
    }
}
