//! Tests of the GPU plan for [`Method::Math`](super::super::Method::Math).

use super::super::gpu_choice::{ARRIVALS, GpuResources, GpuWorkspaceLayout, Summation};
use super::super::race::Pace;
use super::super::testing::{alike, kernel};
use super::*;
use crate::attention::problem::Spec;
use crate::attention::sequence::Window;
use crate::dtype::DType;
use crate::view::{Layout, View};

const KERNEL: GpuKernelSpec = GpuKernelSpec {
    head_dim: usize::MAX,
    paces: alike(Pace { shared: 1, alone: 1 }),
    resources: GpuResources { threads: 128, shared: 16 << 10, registers: 168 },
    summation: Summation::Tiles { columns: 2, flush: 256 },
    chain: usize::MAX,
    ..kernel("values", 0, false, usize::MAX, 64)
};

fn device() -> GpuProfile {
    GpuProfile { sms: 2, ..GpuProfile::default() }
}

fn spec(dtype: DType, [batch, heads, queries, keys, d, dv]: [usize; 6]) -> Spec {
    let view = |n, d| View::dense("x", Layout::Bhnd, &[batch, heads, n, d], None).unwrap();
    Spec::new(dtype, view(queries, d), view(keys, d), view(keys, dv), view(queries, dv))
}

#[test]
fn the_workspace_is_the_matrix_beside_a_reference_and_a_sum_a_row() {
    let problem = spec(DType::F16, [2, 3, 65, 130, 300, 7]).check().unwrap();
    let options = GpuOptions { certify: true, ..GpuOptions::default() };
    let c = choose_gpu_math(&problem, &device(), &KERNEL, &options).unwrap();
    assert_eq!((c.rows, c.row_blocks, c.splits, c.scores, c.partial_dim), (390, 2, 1, 192, 8));
    let [without, with] = [false, true].map(|states| GpuWorkspaceLayout::of(&c, states).unwrap());
    assert_eq!((without.partial_ms.len, without.partial_w.len), (390 * 8, 0));
    assert_eq!((with.partial_ms.len, with.partial_w.len), (390 * 8, 390 * 8 * 4));
    assert_eq!(without.scores.len, 390 * 192 * 4);
    assert!(without.scores.start >= without.records.start + without.records.len && without.records.len > 0);
    assert!(without.bytes >= without.scores.start + without.scores.len && without.scores.start % 256 == 0);
    // A weight passes through one addition of the two keys of a lane, five in the tree over 32 lanes, and two that add
    // the sums of three tiles. The weighted values of 130 keys form one chain.
    let path = c.longest_path(false);
    assert_eq!((path.merges, path.into_s, path.into_w), (0, 1 + 5 + 2, 129));
    let executed = c.executed();
    assert_eq!((executed.chain, executed.order.references, executed.order.values), (300, 192, 256));
    assert!(!executed.order.normalizes);
}

#[test]
fn what_does_not_fit_is_refused() {
    let problem = spec(DType::F32, [1, 1, 64, 64, 8, 8]).check().unwrap();
    let of = |budget| {
        choose_gpu_math(&problem, &device(), &KERNEL, &GpuOptions { budget, ..GpuOptions::default() })
    };
    let needed = ARRIVALS * 4 + 64 * 8 + 64 * 64 * 4;
    assert!(of(Some(needed)).is_ok());
    assert_eq!(of(Some(needed - 1)), Err(ChooseError::Budget { needed, budget: needed - 1 }));
    // The product needs 2^31 blocks: there are 2^26 rows of 2^17 keys, which exceed any memory.
    let huge = spec(DType::F32, [1, 1, 1 << 26, 1 << 17, 8, 8]).check().unwrap();
    let refused = choose_gpu_math(&huge, &device(), &KERNEL, &GpuOptions::default());
    assert!(matches!(refused, Err(ChooseError::Extent { axis: "blocks", .. })), "{refused:?}");
    let packed = Spec { packed: Some(2), ..spec(DType::F32, [1, 1, 64, 64, 8, 8]) };
    let packed = packed.check().unwrap();
    assert_eq!(
        choose_gpu_math(&packed, &device(), &KERNEL, &GpuOptions::default()),
        Err(ChooseError::Packed)
    );
}

#[test]
fn windows_leave_the_order_of_sums_unknown() {
    let window = Window { left: Some(3), right: None };
    let cut = Spec { window, ..spec(DType::F32, [1, 1, 100, 100, 8, 8]) }.check().unwrap();
    let c = choose_gpu_math(&cut, &device(), &KERNEL, &GpuOptions::default()).unwrap();
    assert_eq!(c.executed().order.values, 0);
}
