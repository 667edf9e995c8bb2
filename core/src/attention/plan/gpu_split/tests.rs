//! Tests of the chooser for Tensor Cores.

use super::super::gpu_choice::{GpuResources, GpuWorkspaceLayout};
use super::super::testing::{H200, TX2, kernel as spec};
use super::*;
use crate::attention::mask::{MaskKind, MaskView};
use crate::attention::problem::Spec;
use crate::attention::sequence::{Alignment, Lengths};
use crate::view::{Layout, View};

const ALL: usize = usize::MAX;

/// Returns the kernels for a head size and a type: for plain scores in blocks of 64 and of 128 rows, and for changed scores.
fn kernels(head_dim: usize, sixteen_bit: bool, names: [&'static str; 3]) -> [SplitKernels; 3] {
    let refused = spec("refused", head_dim, sixteen_bit, ALL, 64);
    let of = |name, rows, changed| {
        let (plain, most) = if changed { (0, ALL) } else { (ALL, 0) };
        let attend = GpuKernelSpec { most_plain: plain, ..spec(name, head_dim, sixteen_bit, most, rows) };
        SplitKernels { attend, refused }
    };
    [of(names[0], 64, false), of(names[1], 128, false), of(names[2], 64, true)]
}

fn all() -> [SplitKernels; 9] {
    let [a, b, c] = [
        kernels(128, false, ["f128", "f128 tall", "f128 added"]),
        kernels(32, false, ["f32", "f32 tall", "f32 added"]),
        kernels(64, true, ["b64", "b64 tall", "b64 added"]),
    ];
    let mut all = a.iter().chain(&b).chain(&c);
    core::array::from_fn(|_| *all.next().unwrap())
}

fn problem(dtype: DType, h: usize, nq: usize, nk: usize, d: usize) -> Spec {
    let view = |n| View::dense("x", Layout::Bhnd, &[1, h, n, d], None).unwrap();
    Spec::new(dtype, view(nq), view(nk), view(nk), view(nq))
}

fn options(tensor_cores: TensorCores) -> GpuOptions {
    GpuOptions { tensor_cores, ..GpuOptions::default() }
}

fn choose(spec: Spec, options: &GpuOptions) -> Option<GpuChoice> {
    choose_gpu_split(&spec.check().unwrap(), &H200, &all(), options)
}

fn name(spec: Spec, tensor_cores: TensorCores) -> Option<&'static str> {
    choose(spec, &options(tensor_cores)).map(|choice| choice.split.unwrap().kernel.name)
}

#[test]
fn the_smallest_head_size_and_kernels_for_changed_scores() {
    let always = |spec| name(spec, TensorCores::Always);
    let of = |dtype, d| problem(dtype, 1, 10, 10, d);
    assert_eq!(
        [20, 32, 36, 128].map(|d| always(of(DType::F32, d))),
        ["f32", "f32", "f128", "f128"].map(Some)
    );
    assert_eq!([64, 68].map(|d| always(of(DType::F16, d))), [Some("b64"), None]);
    assert_eq!([30, 132].map(|d| always(of(DType::F32, d))), [None; 2]);
    for (dtype, wanted) in [(DType::F32, "f32 added"), (DType::Bf16, "b64 added")] {
        let plain = of(dtype, 32);
        let mask = MaskView::dense(MaskKind::Additive(DType::F16), &[10, 10]).unwrap();
        assert_eq!(always(plain.mask(mask)), Some(wanted));
        assert_eq!(always(plain.softcap(3.0)), Some(wanted));
    }
    let cache = |n| Some(View::dense("x", Layout::Bhnd, &[1, 1, n, 32], None).unwrap());
    let past = Spec { past_key: cache(7), past_value: cache(7), ..of(DType::F32, 32) };
    assert_eq!(always(past), Some("f32"));
    assert_eq!(always(Spec { present_key: cache(17), present_value: cache(17), ..past }), Some("f32"));
}

#[test]
fn what_the_options_and_the_device_do_not_allow() {
    let large = problem(DType::F32, 8, 1024, 1024, 128);
    let allow = options(TensorCores::Allow);
    assert!(choose(large, &allow).is_some());
    assert_eq!(choose(problem(DType::F32, 8, 64, 64, 128), &allow), None);
    assert_eq!(choose(large, &options(TensorCores::Off)), None);
    assert_eq!(choose(large, &GpuOptions { error_budget: Some(0.1), ..allow }), None);
    assert_eq!(choose(large, &GpuOptions { budget: Some(1 << 10), ..allow }), None);
    assert_eq!(choose_gpu_split(&large.check().unwrap(), &TX2, &all(), &allow), None);
    // Too many blocks for a launch, and a count beyond 32 bits.
    let far = |heads, n| {
        let view = |n| View::new("x", [1, heads, n, 4], [0, 0, 0, 1]).unwrap();
        let output = View::dense("out", Layout::Bhnd, &[1, heads, 1, 4], None).unwrap();
        Spec::new(DType::F32, view(1), view(n), view(n), output)
    };
    assert_eq!(choose(far(1 << 20, 1 << 20), &allow), None);
    assert_eq!(choose(far(1, 1 << 31), &allow), None);
}

#[test]
fn lengths_of_packed_sequences_decide_nothing() {
    for tokens in [1, 100, 5000] {
        let spec = problem(DType::F32, 2, tokens, tokens, 32).packed(3).causal(Some(Alignment::BottomRight));
        let choice = choose(spec, &options(TensorCores::Allow)).unwrap();
        let split = choice.split.unwrap();
        assert_eq!((split.kernel.name, choice.splits, choice.longest_first), ("f32 tall", 1, false));
        assert_eq!((choice.sequences, split.sequences, split.batch), (3, 3, 1));
    }
}

/// The tiles and words of packed sequences do not overlap, and the workspace has room for them, for any lengths.
#[test]
fn packed_sequences_have_their_own_tiles() {
    for lens in [
        &[1usize, 1, 1, 1][..],
        &[64, 64, 64],
        &[63, 1, 65, 0, 0, 128, 2],
        &[0, 0, 200, 0],
        &[0],
        &[129, 127, 300, 1],
    ] {
        let mut bounds = [0i64; 8];
        lens.iter().enumerate().for_each(|(i, n)| bounds[i + 1] = bounds[i] + *n as i64);
        let bounds = &bounds[..=lens.len()];
        let tokens = lens.iter().sum();
        let spec = problem(DType::F32, 2, tokens, tokens, 32).packed(lens.len());
        let problem = spec.check().unwrap();
        let choice = choose_gpu_split(&problem, &H200, &all(), &options(TensorCores::Always)).unwrap();
        let split = choice.split.unwrap();
        let lengths =
            Lengths { cu_seqlens_q: Some(bounds), cu_seqlens_k: Some(bounds), ..Lengths::default() };
        let (mut of_keys, mut of_rows) = (0, 0);
        for index in 0..lens.len() {
            let s = problem.sequence(&lengths, index);
            // The kernels compute these (planes.cuh).
            let first = [s.key0 / split.kernel.keys + index, s.query0 / split.kernel.rows + index];
            assert!(first[0] >= of_keys && first[1] >= of_rows, "{lens:?}");
            of_keys = first[0] + s.keys.div_ceil(split.kernel.keys);
            of_rows = first[1] + s.queries.div_ceil(split.kernel.rows);
        }
        assert!(of_keys <= split.tiles && of_rows <= split.row_blocks, "{lens:?}");
        let layout = GpuWorkspaceLayout::of(&choice, false).unwrap();
        assert_eq!(layout.planes.len, 2 * split.tiles * 8 * split.kernel.keys * split.kernel.head_dim);
        assert_eq!(layout.zeroed.len, 4 * (3 * 2 * lens.len() * 32 + 2 * lens.len() + 2 * split.row_blocks));
    }
}

#[test]
fn the_batch_changes_no_split() {
    let of = |b| {
        let view = View::dense("x", Layout::Bhnd, &[b, 2, 3000, 64], None).unwrap();
        let choice =
            choose(Spec::new(DType::F16, view, view, view, view), &options(TensorCores::Allow)).unwrap();
        (choice.kernel, choice.splits, choice.chunk, choice.split.unwrap().tiles)
    };
    assert_eq!(of(1), of(8));
    // A device with more shared memory per SM may run kernels that need it.
    let mut large = kernels(64, true, ["b64", "b64 tall", "b64 added"]);
    large
        .iter_mut()
        .for_each(|k| k.attend.resources = GpuResources { shared: 100 << 10, ..k.attend.resources });
    let problem = problem(DType::F16, 2, 3000, 3000, 64).check().unwrap();
    let choose = |device| choose_gpu_split(&problem, &device, &large, &options(TensorCores::Allow));
    assert_eq!(choose(H200), None);
    assert!(choose(GpuProfile { shared_per_sm: 228 << 10, ..H200 }).is_some());
}
