//! Tests of kernels whose last block of each row block merges the splits of the keys.

use super::tensors::{context, upload};
use crate::cuda::driver::Stream;
use crate::testing::{bits, gpu_engine, noise};
use crate::workspace::Memory;
use crate::{Engine, Plan, PlanOptions, Workspace};
use elsa_core::attention::plan::Division;
use elsa_core::attention::{Alignment, Inputs, Lengths, Outputs, Problem, Spec, StateTensors};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel};

#[derive(Debug)]
struct Shape {
    /// Sequences, heads and key heads.
    heads: [usize; 3],
    /// Queries and keys.
    tokens: [usize; 2],
    /// Head sizes of keys and of values.
    dims: [usize; 2],
    causal: Option<Alignment>,
}

/// The last blocks of rows are incomplete, and differ in which teams of lanes have how many rows.
const SHAPES: [Shape; 6] = [
    Shape { heads: [1, 3, 3], tokens: [70, 600], dims: [64, 64], causal: None },
    Shape { heads: [2, 4, 2], tokens: [3, 700], dims: [64, 64], causal: None },
    Shape { heads: [2, 2, 2], tokens: [44, 520], dims: [40, 31], causal: Some(Alignment::BottomRight) },
    Shape { heads: [1, 4, 2], tokens: [64, 600], dims: [32, 32], causal: None },
    // Rows attend keys of the first splits only; some attend none.
    Shape { heads: [2, 2, 1], tokens: [83, 530], dims: [32, 32], causal: Some(Alignment::TopLeft) },
    // Elements are read and written one at a time.
    Shape { heads: [1, 2, 2], tokens: [50, 540], dims: [15, 31], causal: None },
];
const SPLITS: [usize; 6] = [2, 3, 4, 7, 8, 9];

/// The host tensors of a shape.
struct Tensors {
    rows: usize,
    /// Head size of the values.
    columns: usize,
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
        let mut y = vec![f32::NAN; self.rows * self.columns];
        let [mut lse, mut m, mut s] = [(); 3].map(|()| vec![f32::NAN; self.rows]);
        let mut w = vec![f32::NAN; self.rows * self.columns];
        let mut outputs = Outputs::new(ElementsMut::F32(&mut y));
        outputs.lse = Some(&mut lse);
        outputs.state = states.then_some(StateTensors { m: &mut m[..], s: &mut s[..], w: &mut w[..] });
        plan.bind(self.inputs(), outputs, workspace).unwrap().run().unwrap();
        bits(&[y, lse].concat())
    }
}

/// Returns the tensors of a shape, and its problem, with key lengths if `lengths` is set.
fn tensors(shape: &Shape, lengths: bool) -> (Problem, Tensors) {
    let Shape { heads: [b, h, kv], tokens: [queries, keys], dims: [d, columns], causal } = *shape;
    let dims = [[h, queries, d], [kv, keys, d], [kv, keys, columns], [h, queries, columns]];
    let [q, k, v, y] = dims.map(|[h, n, d]| View::dense("x", Layout::Bhnd, &[b, h, n, d], None).unwrap());
    let mut spec = Spec::new(DType::F32, q, k, v, y);
    spec.causal = causal;
    spec.key_lengths = lengths;
    let data = [0, 1, 2].map(|i| noise(i as u64 + 1, b * dims[i].iter().product::<usize>()));
    let lengths = lengths.then(|| (0..b).map(|i| (keys * i / b) as i64).collect());
    (spec.check().unwrap(), Tensors { rows: b * h * queries, columns, data, lengths })
}

/// Returns the plan with a kernel that can merge and a number of splits.
fn plan(engine: &Engine, problem: &Problem, candidate: usize, splits: usize) -> Plan {
    let division = Some(Division { candidate, splits });
    engine.plan(problem, &PlanOptions { division, ..PlanOptions::default() }).unwrap()
}

/// Returns the kernels that can merge and compute a shape, as indices of candidates, with their limits.
fn merging(shape: &Shape) -> impl Iterator<Item = (usize, usize)> {
    let least = shape.dims.into_iter().max();
    let specs = GPU_KERNELS.iter().filter_map(GpuKernel::attention).enumerate();
    let able = specs.filter(move |(_, spec)| spec.merges > 0 && Some(spec.head_dim) >= least);
    able.map(|(candidate, spec)| (candidate, spec.merges))
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
    for (shape, lengths) in SHAPES.iter().flat_map(|shape| [(shape, false), (shape, true)]) {
        let (problem, tensors) = tensors(shape, lengths);
        for (candidate, most) in merging(shape) {
            let plans = SPLITS.map(|splits| plan(&engine, &problem, candidate, splits));
            let mut workspace = Workspace::shared(&plans.each_ref()).unwrap();
            let want = plans.each_ref().map(|plan| tensors.run(plan, true, &mut workspace));
            for round in 0..2 {
                for (plan, want) in plans.iter().zip(&want) {
                    let case = format!("{shape:?} {lengths}, {} in round {round}", plan.kernel());
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
    let (problem, tensors) = tensors(&SHAPES[0], false);
    let context = context(&engine);
    let stream = Stream::new(&context).unwrap();
    for (candidate, _) in merging(&SHAPES[0]) {
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
