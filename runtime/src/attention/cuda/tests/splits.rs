//! Tests of kernels whose last block of each row block merges the splits of the keys.

use super::tensors::{context, upload};
use crate::cuda::driver::Stream;
use crate::testing::{bits, gpu_engine, noise};
use crate::workspace::Memory;
use crate::{Engine, Plan, PlanOptions, Workspace};
use elsa_core::attention::plan::Division;
use elsa_core::attention::{Inputs, Lengths, Outputs, Problem, Spec, StateTensors};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel};

const D: usize = 64;
/// Batch, heads, key heads, queries and keys.
const SHAPES: [[usize; 5]; 2] = [[1, 3, 3, 70, 600], [2, 4, 2, 3, 700]];
const SPLITS: [usize; 6] = [2, 3, 4, 7, 8, 9];

/// The host tensors of a shape.
struct Tensors {
    rows: usize,
    data: [Vec<f32>; 3],
    lengths: Option<Vec<i64>>,
}

impl Tensors {
    fn inputs(&self) -> Inputs<'_> {
        let [q, k, v] = self.data.each_ref().map(|x| Elements::F32(x));
        let mut inputs = Inputs::new(q, k, v);
        inputs.lengths = Lengths { keys: self.lengths.as_deref(), ..Lengths::default() };
        inputs
    }

    /// Returns the bits of output and log-sum-exp. With `states`, the call also outputs states.
    fn run(&self, plan: &Plan, states: bool, workspace: &mut Workspace) -> Vec<u32> {
        let mut y = vec![f32::NAN; self.rows * D];
        let [mut lse, mut m, mut s] = [(); 3].map(|()| vec![f32::NAN; self.rows]);
        let mut w = vec![f32::NAN; self.rows * D];
        let mut outputs = Outputs::new(ElementsMut::F32(&mut y));
        outputs.lse = Some(&mut lse);
        outputs.state = states.then_some(StateTensors { m: &mut m[..], s: &mut s[..], w: &mut w[..] });
        plan.bind(self.inputs(), outputs, workspace).unwrap().run().unwrap();
        bits(&[y, lse].concat())
    }
}

/// Returns the tensors of a shape, and its problem, with key lengths if `lengths` is set.
fn tensors([b, h, kv, queries, keys]: [usize; 5], lengths: bool) -> (Problem, Tensors) {
    let view = |h, n| View::dense("x", Layout::Bhnd, &[b, h, n, D], None).unwrap();
    let mut spec = Spec::new(DType::F32, view(h, queries), view(kv, keys), view(kv, keys), view(h, queries));
    spec.key_lengths = lengths;
    let data = [h * queries, kv * keys, kv * keys];
    let data = [1, 2, 3].map(|seed| noise(seed, b * data[seed as usize - 1] * D));
    let lengths = lengths.then(|| (0..b).map(|i| (keys * i / b) as i64).collect());
    (spec.check().unwrap(), Tensors { rows: b * h * queries, data, lengths })
}

/// Returns the plan with a kernel that can merge and a number of splits.
fn plan(engine: &Engine, problem: &Problem, candidate: usize, splits: usize) -> Plan {
    let division = Some(Division { candidate, splits });
    engine.plan(problem, &PlanOptions { division, ..PlanOptions::default() }).unwrap()
}

/// Returns the kernels that can merge, as indices of candidates, with their limits.
fn merging() -> impl Iterator<Item = (usize, usize)> {
    let specs = GPU_KERNELS.iter().filter_map(GpuKernel::attention).enumerate();
    specs.filter(|(_, spec)| spec.merges > 0).map(|(candidate, spec)| (candidate, spec.merges))
}

fn launched(workspace: &Workspace) -> usize {
    let Memory::Gpu { gpu: Ok(memory), .. } = &workspace.memory else { panic!("not on a GPU") };
    memory.list.launched()
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn the_last_block_computes_the_bits_of_the_merge_kernel() {
    let engine = gpu_engine();
    let mut merged = 0;
    for (shape, lengths) in SHAPES.iter().flat_map(|shape| [(*shape, false), (*shape, true)]) {
        let (problem, tensors) = tensors(shape, lengths);
        for (candidate, most) in merging() {
            let plans = SPLITS.map(|splits| plan(&engine, &problem, candidate, splits));
            let mut workspace = Workspace::shared(&plans.each_ref()).unwrap();
            let want = plans.each_ref().map(|plan| tensors.run(plan, true, &mut workspace));
            for round in 0..2 {
                for (plan, want) in plans.iter().zip(&want) {
                    let case = format!("{shape:?}, {} in round {round}", plan.kernel());
                    assert!(&tensors.run(plan, false, &mut workspace) == want, "{case}");
                    let choice = &plan.execution.gpu().unwrap().choice;
                    let merges = choice.divided() && !choice.serial && choice.splits <= most;
                    let kernels = if choice.divided() && !choice.serial && !merges { 2 } else { 1 };
                    assert_eq!(launched(&workspace), kernels, "{case}");
                    merged += usize::from(merges);
                }
            }
        }
    }
    assert!(merged >= 40, "{merged}");
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn memory_of_the_caller_may_hold_anything() {
    let engine = gpu_engine();
    let (problem, tensors) = tensors(SHAPES[0], false);
    let context = context(&engine);
    let stream = Stream::new(&context).unwrap();
    for (candidate, _) in merging() {
        let plan = plan(&engine, &problem, candidate, 3);
        let want = tensors.run(&plan, true, &mut plan.workspace().unwrap());
        let memory = upload(&context, &stream, &vec![f32::from_bits(3); plan.workspace_bytes() / 4]);
        stream.raw().synchronize(&context.enter().unwrap()).unwrap();
        // SAFETY: *lent*: nothing else uses the memory, which outlives the workspace.
        let mut workspace =
            unsafe { plan.workspace_on_device(memory.address(), plan.workspace_bytes()) }.unwrap();
        for _ in 0..2 {
            assert!(tensors.run(&plan, false, &mut workspace) == want);
        }
        assert_eq!(launched(&workspace), 1);
    }
}
