//! Shares prepared masks and biases among tasks, and orders the tasks accordingly.
//!
//! **The naive way** converts masks and biases to the layout of a tile separately for every head of every sequence.
//!
//! **Why the code differs.**
//!
//! 1. *A mask is contiguous along keys and a tile along rows*, so a mask must be transposed. The entries of a table of
//!    relative positions must be looked up. Each of these two steps takes at least a tenth of the time that the products of
//!    a block take. If heads or sequences share the elements of a mask or bias, their tasks are made consecutive, and the
//!    worker keeps the prepared biases of its tiles for all keys, which takes O(n) memory.
//! 2. *The cost is that the keys of a head are read again for each group of tiles*, so either the keys of all heads
//!    whose tasks alternate must fit into L2, or a head must be one task. If all tiles of a head can be one task, as in
//!    a window, they become one task.
//! 3. *Inputs that are not shared are prepared and added separately*, task by task. The order of tasks is chosen so
//!    that both mask and bias are shared if possible, otherwise one of them.

use super::choice::{CpuChoice, Keeps, MAX_TILES, Method, TaskOrder};
use crate::attention::bias::BiasView;
use crate::attention::problem::Problem;
use crate::profile::DeviceProfile;

/// Properties of a mask or bias. `any` is `true` if it has elements to prepare, `sequences` if the sequences of a batch
/// share them, and `heads` if the heads of a sequence share them.
///
/// The type has the flag `any` instead of being wrapped in an `Option`. A `None` initialises only its tag, and if the
/// compiler branches on the other flags before the tag, memory checkers report a read of uninitialised memory.
#[derive(Clone, Copy, Default)]
struct SharedBy {
    any: bool,
    sequences: bool,
    heads: bool,
}

/// Makes tasks that share masks or biases consecutive, and lets their worker keep the shared inputs if that saves time.
/// `most` is the largest number of tiles per task, and `tiles` the number of tiles per head.
pub(super) fn share(
    choice: &mut CpuChoice,
    problem: &Problem,
    device: &DeviceProfile,
    most: usize,
    tiles: usize,
) {
    let spec = problem.spec();
    if spec.packed.is_some() || (spec.mask.is_none() && spec.bias.is_none()) {
        return;
    }
    let (batch, heads) = (spec.query.batch(), problem.heads());
    let dense = |shape: [usize; 4]| SharedBy {
        any: true,
        sequences: shape[0] == 1 && batch > 1,
        heads: shape[1] == 1 && heads > 1,
    };
    let [mut mask, mut bias] = [SharedBy::default(); 2];
    if let Some(view) = &spec.mask {
        mask = dense(view.shape());
        // A mask with a single row for all queries is kept as that row, so there is nothing to prepare.
        mask.any = !view.same_for_all_queries();
    }
    if let Some(view) = &spec.bias {
        bias = match view {
            BiasView::Dense(view) => dense(view.shape()),
            BiasView::Table(_) => SharedBy { any: true, sequences: batch > 1, heads: false },
        };
    }
    let group = match choice.method {
        Method::Elsa if tiles <= most.min(MAX_TILES) => tiles,
        Method::Elsa => choice.group,
        Method::Math => 1,
    };
    // Between two groups of one head, the worker reads the keys and values of all heads with which the head alternates.
    let tensor = problem.keys().saturating_mul(choice.head_dim + choice.value_dim).saturating_mul(4);
    let fits = |tensors: usize| tiles <= group || tensor.saturating_mul(tensors) <= device.l2 / 4 * 3;
    let kept = group.saturating_mul(choice.width()).saturating_mul(choice.blocks() * choice.block);
    if kept.saturating_mul(4) > device.l2 / 2 {
        return;
    }
    let orders = [
        (TaskOrder::SequencesAndHeads, batch.saturating_mul(problem.kv_heads()), true, true),
        (TaskOrder::Sequences, batch, true, false),
        (TaskOrder::Heads, problem.kv_heads(), false, true),
    ];
    let mut best = 0;
    for (order, tensors, sequences, heads) in orders {
        let keep = |by: SharedBy| by.any && (by.sequences || !sequences) && (by.heads || !heads);
        let keeps = Keeps { mask: keep(mask), bias: keep(bias) };
        let count = usize::from(keeps.mask) + usize::from(keeps.bias);
        if count > best && fits(tensors) {
            best = count;
            (choice.order, choice.keeps, choice.group) = (order, keeps, group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::choice::Options;
    use super::super::choose::choose;
    use super::super::kernel::{KernelSpec, KeyLayout};
    use super::*;
    use crate::attention::bias::TableView;
    use crate::attention::mask::{MaskKind, MaskView};
    use crate::attention::problem::Spec;
    use crate::dtype::DType;
    use crate::profile::InstructionSet;
    use crate::view::{Layout, View};

    const KERNEL: KernelSpec = KernelSpec {
        name: "kernel",
        set: InstructionSet::Scalar,
        lanes: 16,
        vectors: 3,
        tile_keys: 8,
        group: 2,
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

    fn chosen(tokens: usize, mask: Option<&[usize]>, bias: Option<BiasView>, l2: usize) -> CpuChoice {
        let view = View::dense("x", Layout::Bhnd, &[8, 4, tokens, 32], None).unwrap();
        let mut spec = Spec::new(DType::F32, view, view, view, view);
        spec.mask = mask.map(|dims| MaskView::dense(MaskKind::Bool, dims).unwrap());
        spec.bias = bias;
        let device = DeviceProfile { l2, ..DeviceProfile::modest() };
        choose(&spec.check().unwrap(), &device, [&KERNEL], &Options::default()).unwrap()
    }

    #[test]
    fn the_order_serves_what_is_shared() {
        let table = BiasView::Table(TableView { dtype: DType::F32, entries: 9, heads: 4, indexed: true });
        let of = |mask: Option<&[usize]>, bias| {
            let choice = chosen(49, mask, bias, 1 << 20);
            (choice.order, choice.keeps.mask, choice.keeps.bias)
        };
        assert_eq!(of(None, None), (TaskOrder::Tiles, false, false));
        assert_eq!(of(Some(&[8, 4, 49, 49]), None), (TaskOrder::Tiles, false, false));
        assert_eq!(of(Some(&[8, 1, 1, 49]), None), (TaskOrder::Tiles, false, false));
        assert_eq!(of(Some(&[8, 1, 49, 49]), None), (TaskOrder::Heads, true, false));
        assert_eq!(of(Some(&[4, 49, 49]), None), (TaskOrder::Sequences, true, false));
        assert_eq!(of(Some(&[49, 49]), None), (TaskOrder::SequencesAndHeads, true, false));
        assert_eq!(of(None, Some(table)), (TaskOrder::Sequences, false, true));
        assert_eq!(of(Some(&[49, 49]), Some(table)), (TaskOrder::Sequences, true, true));
        assert_eq!(of(Some(&[4, 1, 49, 49]), Some(table)), (TaskOrder::Sequences, false, true));
        assert_eq!(of(Some(&[8, 1, 1, 49]), Some(table)), (TaskOrder::Sequences, false, true));
    }

    /// Checks that the six tiles of a window become one task if L2 has room for the kept inputs and the states of all six.
    #[test]
    fn a_window_is_one_task() {
        let table = BiasView::Table(TableView { dtype: DType::F32, entries: 9, heads: 4, indexed: true });
        let plain = chosen(256, None, None, 2 << 20);
        assert_eq!((plain.group, plain.keeps.any()), (2, false));
        let large = chosen(256, None, Some(table), 2 << 20);
        assert_eq!((large.group, large.keeps.bias), (6, true));
        let small = chosen(256, None, Some(table), 512 << 10);
        assert_eq!((small.group, small.keeps.any(), small.order), (2, false, TaskOrder::Tiles));
    }
}
