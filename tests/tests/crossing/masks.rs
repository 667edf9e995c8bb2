//! Checks that masks shared by heads, sequences or queries give the bits of the expanded mask, for any problem and
//! number of threads, and that changing one element changes the output.

use elsa_core::attention::{Alignment, Inputs, MaskElements, MaskKind, MaskView, Outputs, Spec};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use elsa_oracle::SLOW;
use elsa_oracle::random::seeded;
use elsa_runtime::{Backend, Engine, EngineOptions, Method, PlanOptions, backends};

/// Shapes `[batch, heads, key heads, queries, keys]`.
const SHAPES: [[usize; 5]; 5] =
    [[3, 4, 2, 49, 49], [5, 2, 1, 1, 70], [4, 1, 1, 17, 300], [2, 3, 3, 100, 197], [1, 6, 6, 130, 64]];
/// Number of shapes to test; emulated processors and sanitizers are slow, so they test fewer shapes and one number of
/// threads.
const MOST: usize = if SLOW { 3 } else { SHAPES.len() };
const THREADS: &[usize] = if SLOW { &[3] } else { &[1, 3] };
const DIM: usize = 16;

struct Setting {
    shape: [usize; 5],
    lengths: Option<Vec<i64>>,
    causal: Option<Alignment>,
}

/// Returns the output of a call with a mask of shape `dims`, whose elements are `element([batch, head, query, key])`.
fn run(
    engine: &Engine,
    setting: &Setting,
    dims: [usize; 4],
    bools: bool,
    element: &dyn Fn([usize; 4]) -> f32,
    options: &PlanOptions,
) -> Vec<f32> {
    let [batch, heads, kv_heads, queries, keys] = setting.shape;
    let mut random = seeded(7);
    let mut tensor = |heads: usize, tokens: usize| {
        let view = View::dense("q", Layout::Bhnd, &[batch, heads, tokens, DIM], None).unwrap();
        (view, (0..view.count()).map(|_| random.normal()).collect::<Vec<f32>>())
    };
    let ((qv, q), (kv, k), (vv, v)) =
        (tensor(heads, queries), tensor(kv_heads, keys), tensor(kv_heads, keys));
    let kind = if bools { MaskKind::Bool } else { MaskKind::Additive(DType::F32) };
    let mut spec = Spec::new(DType::F32, qv, kv, vv, qv);
    spec.mask = Some(MaskView::dense(kind, &dims).unwrap());
    spec.short_mask = true;
    spec.causal = setting.causal;
    spec.key_lengths = setting.lengths.is_some();
    let mut floats = Vec::new();
    for b in 0..dims[0] {
        for h in 0..dims[1] {
            for i in 0..dims[2] {
                floats.extend((0..dims[3]).map(|j| element([b, h, i, j])));
            }
        }
    }
    let bytes: Vec<u8> = floats.iter().map(|x| u8::from(*x != f32::NEG_INFINITY)).collect();
    let mut inputs = Inputs::new(Elements::F32(&q), Elements::F32(&k), Elements::F32(&v));
    inputs.mask =
        Some(if bools { MaskElements::Bool(&bytes) } else { MaskElements::Additive(Elements::F32(&floats)) });
    inputs.lengths.keys = setting.lengths.as_deref();
    let mut out = vec![0.0; qv.count()];
    let plan = engine.plan(&spec.check().unwrap(), options).unwrap();
    let mut workspace = plan.workspace().unwrap();
    for _ in 0..2 {
        let outputs = Outputs::new(ElementsMut::F32(&mut out));
        plan.bind(inputs, outputs, &mut workspace).unwrap().run().unwrap();
    }
    out
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Returns a function for the elements of a mask, which depend on all axes of `dims` that are longer than one. It masks
/// every seventh key of a query, and some tiles entirely.
fn element(dims: [usize; 4]) -> impl Fn([usize; 4]) -> f32 {
    move |at| {
        let [b, h, i, j] = [0, 1, 2, 3].map(|axis| if dims[axis] == 1 { 0 } else { at[axis] });
        let mixed = b * 31 + h * 17 + i * 7 + j * 3;
        match (mixed % 7, (b + h + i / 64 + j / 64) % 4) {
            (0, _) | (_, 3) => f32::NEG_INFINITY,
            (n, _) => n as f32 * 0.25 - 0.5,
        }
    }
}

#[test]
fn shared_masks_have_the_bits_of_expanded_ones() {
    let mut compared = 0;
    for backend in backends().into_iter().filter(|p| p.present && p.backend != Backend::Cuda) {
        for &threads in THREADS {
            let options = EngineOptions::default().backend(backend.backend).threads(threads);
            let engine = Engine::new(&options).unwrap();
            for (n, shape) in SHAPES.into_iter().enumerate().take(MOST) {
                let [batch, heads, _, queries, keys] = shape;
                let full = [batch, heads, queries, keys];
                for form in 0..16usize {
                    let dims = [0, 1, 2, 3].map(|axis| if form >> axis & 1 == 1 { 1 } else { full[axis] });
                    let lengths = (0..batch).map(|b| (keys * (b + 1) / batch) as i64).collect();
                    let setting = Setting {
                        shape,
                        lengths: (n + form).is_multiple_of(2).then_some(lengths),
                        causal: (form % 3 == 1).then_some(Alignment::BottomRight),
                    };
                    let bools = (form + n).is_multiple_of(3);
                    let all = PlanOptions::default().all_workers(true);
                    let element = element(dims);
                    let wanted = run(&engine, &setting, full, bools, &element, &all);
                    let found = run(&engine, &setting, dims, bools, &element, &all);
                    assert!(wanted.iter().all(|x| x.is_finite()));
                    assert!(same(&found, &wanted), "{backend:?} {shape:?} {dims:?}: not the bits");
                    let math = all.method(Method::Math);
                    let math = run(&engine, &setting, dims, bools, &element, &math);
                    let near = found.iter().zip(&math).all(|(a, b)| (a - b).abs() <= 1e-5);
                    assert!(near, "{backend:?} {shape:?} {dims:?}: not the baseline");
                    // Masking or unmasking a single key of each row changes the output.
                    let other = |at: [usize; 4]| match (at[3], element(at) == f32::NEG_INFINITY) {
                        (1, true) => 0.0,
                        (1, false) => f32::NEG_INFINITY,
                        _ => element(at),
                    };
                    let changed = run(&engine, &setting, dims, bools, &other, &all);
                    assert!(
                        dims[3] == 1 || !same(&changed, &found),
                        "{backend:?} {shape:?} {dims:?}: no change"
                    );
                    compared += 1;
                }
            }
        }
    }
    assert!(compared >= 2 * THREADS.len() * 16 * MOST, "{compared}");
}
