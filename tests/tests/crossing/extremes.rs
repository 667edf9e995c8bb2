//! Tests sizes at the ends of their range. For any problem, checking and planning must return a value or a typed error;
//! the tests are built with overflow checks, so that an overflow is a failure.

use elsa_core::attention::plan::{
    BLOCK_SIZES, GpuOptions, GpuWorkspaceLayout, Options, WorkspaceLayout, choose, choose_gpu,
};
use elsa_core::attention::{Alignment, MaskKind, MaskView, Operand, Problem, Sequence, Spec, Window, scalar};
use elsa_core::dtype::DType;
use elsa_core::plan::ChooseError;
use elsa_core::profile::{DeviceProfile, GpuProfile, InstructionSet};
use elsa_core::view::View;
use elsa_kernels::cuda::GPU_KERNELS;
use elsa_kernels::registry;
use elsa_runtime::{Backend, Engine, EngineOptions, Method, PlanOptions};
use proptest::prelude::*;
use proptest::sample::select;

fn device() -> DeviceProfile {
    let gpu = GpuProfile { sms: 48, ..Default::default() };
    DeviceProfile { cores: 4, l1d: 32 << 10, l2: 1 << 20, l3: 0, cpu_mhz: 2000, gpu: Some(gpu) }
}

/// Plans `problem` with every instruction set and option, and returns the errors of the CPU's chooser.
fn plan(problem: &Problem, budget: Option<usize>, workers: usize) -> Vec<ChooseError> {
    let device = device();
    let mut errors = Vec::new();
    for set in InstructionSet::ALL {
        for (method, block) in [Method::Elsa, Method::Math].into_iter().zip(BLOCK_SIZES) {
            for all_workers in [false, true] {
                let options = Options { method, block, budget, workers, all_workers, ..Options::default() };
                let kernels = registry::attention_of(set).map(|kernel| &kernel.spec);
                match choose(problem, &device, kernels, &options) {
                    Ok(choice) => {
                        let l = WorkspaceLayout::of(&choice).unwrap();
                        assert!(l.bytes() > 4 * l.total);
                        // The last region of a worker, and those that all workers share.
                        let last =
                            [l.tiles, l.scores, l.all_tiles, l.left_out, l.norms, l.sequences, l.tasks];
                        assert!(last.iter().all(|span| span.start + span.len <= l.total));
                    }
                    Err(ChooseError::NoKernel) => {}
                    Err(e) => errors.push(e),
                }
            }
        }
    }
    let kernels = || GPU_KERNELS.iter().filter_map(|kernel| kernel.attention());
    for half_scores in [false, true] {
        let gpu = device.gpu.unwrap();
        if let Ok(choice) = choose_gpu(
            problem,
            &gpu,
            kernels(),
            &GpuOptions { budget, half_scores, certify: half_scores, ..GpuOptions::default() },
        ) {
            let _ = [false, true].map(|states| GpuWorkspaceLayout::of(&choice, states));
            assert!(choice.longest_path(true).additions() >= choice.longest_path(false).merges);
        }
    }
    let _ = scalar::scratch_len(problem);
    for operand in Operand::ALL {
        let _ = problem.memory(operand).map(|memory| (memory.bytes(), memory.gaps()));
    }
    errors
}

fn size() -> impl Strategy<Value = usize> {
    let power = (0..usize::BITS, select(vec![-1isize, 0, 1]));
    prop_oneof![
        select(vec![0, 1, 2, 3, 7, 8, 64, 100, usize::MAX, isize::MAX as usize, isize::MAX as usize / 4]),
        power.prop_map(|(power, by)| (1usize << power).saturating_add_signed(by)),
    ]
}

/// Generates a size, mostly so small that other sizes can be large.
fn small() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1usize..9, 1 => size()]
}

/// Returns a view of the given shape. `order` selects the layout: dense with heads before tokens (0), dense with tokens
/// before heads (1), or a stride of zero along batch and heads (2).
fn view([b, h, n, d]: [usize; 4], order: u8) -> Option<View> {
    let of = |a: usize, b: usize| a.checked_mul(b);
    let strides = match order {
        0 => [of(of(n, d)?, h)?, of(n, d)?, d, 1],
        1 => [of(of(n, d)?, h)?, d, of(h, d)?, 1],
        _ => [0, 0, d, 1],
    };
    View::new("x", [b, h, n, d], strides).ok()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn sizes_at_the_ends_of_their_range(
        (b, group, kv) in (small(), small(), small()),
        (n, m, past) in (small(), small(), prop::option::weighted(0.3, small())),
        (d, dv) in prop_oneof![(size(), small()), (small(), size()), (small(), small())],
        (order, dtype) in (0u8..3, select(vec![DType::F32, DType::F16, DType::Bf16])),
        (mask, packed) in (prop::option::weighted(0.3, prop::array::uniform4(small())), prop::option::weighted(0.2, size())),
        (causal, lengths) in (select(vec![None, Some(Alignment::TopLeft), Some(Alignment::BottomRight)]), any::<bool>()),
        window in (prop::option::of(size()), prop::option::of(size())),
        (budget, workers) in (prop::option::of(size()), size()),
    ) {
        let h = group.saturating_mul(kv);
        let views = (view([b, h, n, d], order), view([b, kv, m, d], order), view([b, kv, m, dv], order), view([b, h, n, dv], order % 2));
        let (Some(q), Some(k), Some(v), Some(out)) = views else { return Ok(()) };
        let mut spec = Spec::new(dtype, q, k, v, out);
        if let Some(past) = past {
            spec.past_key = view([b, kv, past, d], order);
            spec.past_value = view([b, kv, past, dv], order);
            spec.present_key = past.checked_add(m).and_then(|all| view([b, kv, all, d], order % 2));
        }
        spec.mask = mask.and_then(|dims| MaskView::dense(MaskKind::Bool, &dims).ok());
        (spec.causal, spec.key_lengths, spec.packed) = (causal, lengths, packed);
        spec.window = Window { left: window.0, right: window.1 };
        if let Ok(problem) = spec.check() {
            plan(&problem, budget, workers);
        }
    }
}

/// Checks that problems too large for any memory, by head size, length or number of sequences, are refused. The error
/// gives the number of bytes that they need, or the largest allowed number.
#[test]
fn what_no_memory_holds_is_refused() {
    let of = |q: [usize; 4], k: [usize; 4], v: [usize; 4]| {
        let view = |shape| view(shape, 2).unwrap();
        let out = View::new("out", [q[0], q[1], q[2], v[3]], [q[1] * q[2] * v[3], q[2] * v[3], v[3], 1]);
        Spec::new(DType::F32, view(q), view(k), view(v), out.unwrap())
    };
    let wide = 1usize << (usize::BITS - 6);
    let engine = EngineOptions::default().backend(Backend::SCALAR).threads(2);
    let engine = Engine::new(&engine).unwrap();
    let mut packed = of([1, 1, 4, 8], [1, 1, 4, 8], [1, 1, 4, 8]);
    // The tables alone of this problem take nearly `usize::MAX` bytes.
    packed.packed = Some(usize::MAX / (size_of::<Sequence>() + size_of::<usize>()) - 1);
    for spec in [
        of([1, 1, 4, wide], [1, 1, 1, wide], [1, 1, 1, 1]),
        of([1, 1, 4, 1], [1, 1, 1, 1], [1, 1, 1, wide]),
        of([1, 1, 5, wide - 1], [1, 1, 0, wide - 1], [1, 1, 0, 3]),
        packed,
    ] {
        let problem = spec.check().unwrap();
        for budget in [None, Some(1 << 30)] {
            let errors = plan(&problem, budget, usize::MAX);
            // A plan of this size may be possible without a budget, although its workspace cannot be allocated.
            assert!(budget.is_none() || !errors.is_empty(), "{spec:?}");
            for e in errors {
                let needed = match e {
                    ChooseError::Memory { needed } | ChooseError::Budget { needed, .. } => needed,
                    ChooseError::Packed => continue,
                    e => panic!("{e}"),
                };
                assert!(needed > 1 << 40, "{e}");
            }
            let options = PlanOptions::default().budget(budget);
            let made = engine.plan(&problem, &options).and_then(|plan| plan.workspace());
            let refused = made.map(|_| ()).unwrap_err().to_string();
            assert!(refused.contains("allowed: "), "{refused}");
        }
    }
}
