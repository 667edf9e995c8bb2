//! Runs complete calls, small enough for Miri and valgrind, through the engine. They use every buffer that the runtime
//! accesses by pointers, with one worker and with several, in a workspace that other plans have used before.

use elsa_core::attention::{Alignment, MaskKind, Outputs, Window, Windows};
use elsa_core::dtype::DType;
use elsa_core::view::{Layout, View};
use elsa_oracle::cases::{BiasParams, Buffers, Case, MaskParams, Params};
use elsa_oracle::gradients::GradientCase;
use elsa_runtime::{BindError, Engine, EngineOptions, Method, PlanOptions, RunError, Workspace};

/// Number of keys in one long case, more than the 512 keys of a segment; Miri takes a while for it.
const LONG: usize = 514;

const SCALE: Option<f32> = Some(0.4);

const TABLE: BiasParams = BiasParams::Table { dtype: DType::F32, entries: None, density: 1.0 };

/// Returns the parameters of two windows whose shift puts tokens of different regions into one window.
fn windowed() -> Params {
    Params::windowed(Windows { picture: [2, 6], size: [2, 3], shift: [1, 2] }, 1)
}

fn cases() -> Vec<Case> {
    let mask = |kind, dims: &[usize]| Some(MaskParams { kind, dims: dims.to_vec(), density: 0.6 });
    let window = Window { left: Some(3), right: Some(1) };
    let plain = Params::plain(7, 9, 5, 3);
    let cases = [
        ("plain", Params { batch: 2, heads: 2, kv_heads: 2, ..Params::plain(7, 9, 8, 4) }),
        ("odd sizes, groups", Params { heads: 4, kv_heads: 2, layout: Layout::Bnc, pad: 3, ..plain.clone() }),
        ("keys shared by the batch", Params { batch: 3, shared_keys: true, lengths: true, ..plain.clone() }),
        ("blocks", Params { causal: Some(Alignment::TopLeft), ..Params::plain(3, 67, 4, 4) }),
        (
            "segments",
            Params { window: Window { left: Some(LONG), right: None }, ..Params::plain(1, LONG, 2, 1) },
        ),
        ("bool mask", Params { mask: mask(MaskKind::Bool, &[7, 9]), ..plain.clone() }),
        ("float mask", Params { mask: mask(MaskKind::Additive(DType::F16), &[1, 1, 8]), ..plain.clone() }),
        (
            "past",
            Params { past: Some(6), present: true, causal: Some(Alignment::BottomRight), ..plain.clone() },
        ),
        ("f16", Params { dtype: DType::F16, layout: Layout::Bnhd, window, past: Some(2), ..plain.clone() }),
        ("bf16", Params { dtype: DType::Bf16, softcap: Some(1.5), present: true, heads: 2, ..plain.clone() }),
        ("packed", Params { packed: Some(vec![(3, 4), (0, 2), (2, 0), (5, 6)]), ..plain.clone() }),
        ("one query", Params { causal: Some(Alignment::BottomRight), ..Params::plain(1, 33, 20, 9) }),
        ("one query of shared heads", Params { heads: 5, ..Params::plain(1, 6, 5, 3) }),
        ("windows", Params { bias: Some(TABLE), mask: mask(MaskKind::Bool, &[2, 1, 6, 6]), ..windowed() }),
        ("no query", Params::plain(0, 3, 4, 4)),
        ("no key", Params::plain(3, 0, 4, 4)),
    ];
    // The default scale takes a square root, for which the library has machine code that Miri cannot execute.
    cases.into_iter().map(|(name, params)| Params { scale: SCALE, ..params }.build(name)).collect()
}

/// Creates the engine that this machine chooses; `ELSA_BACKEND` overrides the choice.
fn engine(threads: usize) -> Engine {
    Engine::new(&EngineOptions::default().threads(threads)).unwrap()
}

/// Runs the case in the given workspace, or in a new one if the given one is too small. Returns the outputs, and `true`
/// if the given workspace was large enough.
fn run(engine: &Engine, case: &Case, method: Method, workspace: &mut Workspace) -> (Buffers, bool) {
    let options = PlanOptions::default().method(method).all_workers(true);
    let problem = case.problem();
    let plan = engine.plan(&problem, &options).unwrap();
    let mut buffers = case.buffers();
    let mut own = plan.workspace().unwrap();
    let fits = match plan.bind(case.inputs(), buffers.outputs(), workspace) {
        Ok(mut bound) => {
            bound.run().unwrap();
            true
        }
        Err(BindError::Room { .. }) => false,
        Err(other) => panic!("{case:?}: {other}"),
    };
    if !fits {
        let mut bound = plan.bind(case.inputs(), buffers.outputs(), &mut own).unwrap();
        bound.run().unwrap();
        // Miri is an interpreter, so it repeats only one case.
        if !cfg!(miri) || case.name == "plain" {
            bound.run().unwrap();
        }
    }
    (buffers, fits)
}

fn check(engine: &Engine, case: &Case, buffers: &Buffers) {
    let share = case.naive().check_all(buffers, 1024);
    assert!(share.is_ok(), "{} {case:?}: {share:?}", engine.kernel());
    if let (Some(got), Some(want)) = (&buffers.present, case.naive_present()) {
        for (got, want) in [(&got.0, &want.0), (&got.1, &want.1)] {
            assert!((0..want.len()).all(|i| want.get(i) == 0.0 || got.get(i) == want.get(i)), "{case:?}");
        }
    }
}

/// Returns the workspace of a problem with one query and one key.
fn tiny(engine: &Engine) -> Workspace {
    let case = Params { scale: SCALE, ..Params::plain(1, 1, 1, 1) }.build("tiny");
    engine.plan(&case.problem(), &PlanOptions::default()).unwrap().workspace().unwrap()
}

#[test]
fn calls_agree_with_the_definition() {
    // Miri is an interpreter, so it tests only one number of threads.
    let threads: &[usize] = if cfg!(miri) { &[3] } else { &[1, 3] };
    for &threads in threads {
        let engine = engine(threads);
        for case in cases() {
            for method in [Method::Elsa, Method::Math] {
                // Miri is an interpreter, so it runs method math only for the cases in which its code differs.
                let short = !cfg!(miri) || ["plain", "float mask", "f16", "windows"].contains(&&*case.name);
                if method == Method::Elsa || case.spec.packed.is_none() && short {
                    let (buffers, _) = run(&engine, &case, method, &mut tiny(&engine));
                    check(&engine, &case, &buffers);
                }
            }
        }
    }
}

/// Checks that a single run has the bits and the refusals of a bound plan, and that a refused run writes nothing.
#[test]
fn a_single_run_is_that_of_a_bound_plan() {
    let (engine, mut refused) = (engine(2), 0);
    for case in cases().into_iter().step_by(if cfg!(miri) { 4 } else { 1 }) {
        let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
        let mut workspace = plan.workspace().unwrap();
        let (mut bound, mut single) = (case.buffers(), case.buffers());
        let wanted =
            plan.bind(case.inputs(), bound.outputs(), &mut workspace).unwrap().run().unwrap().backend;
        let report = plan.run(case.inputs(), single.outputs(), &mut workspace).unwrap();
        assert_eq!((report.backend, report.fallback), (wanted, None), "{case:?}");
        assert_eq!(single.bits(), bound.bits(), "{case:?}");
        let mut buffers = case.buffers();
        let short = Outputs { lse: Some(&mut []), ..buffers.outputs() };
        let short = plan.run(case.inputs(), short, &mut workspace);
        let small = plan.run(case.inputs(), case.buffers().outputs(), &mut tiny(&engine));
        for error in [&short, &small].into_iter().filter_map(|run| run.as_ref().err()) {
            assert!(matches!(error, RunError::Bind(_)), "{case:?}: {error}");
            refused += 1;
        }
        assert!(short.is_ok() || buffers.bits() == case.buffers().bits(), "{case:?}");
    }
    // Calls without rows accept a log-sum-exp without rows.
    assert!(refused > if cfg!(miri) { 3 } else { 20 }, "{refused}");
}

/// Compares gradients with gradients in f64, for all cases without a past.
#[test]
fn gradients_match_f64() {
    let engines = [engine(1), engine(3)];
    // Miri is an interpreter, so it runs only a few cases.
    for case in cases().into_iter().step_by(if cfg!(miri) { 5 } else { 1 }) {
        let Some(given) = GradientCase::of(&case) else { continue };
        let exact = given.exact();
        for engine in &engines[usize::from(cfg!(miri))..] {
            let (found, structure) = given.engine(engine, given.inputs(), None);
            exact.check(&found, &structure).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        }
    }
}

/// Checks that a call reads its cache through the address of the present and appends the new rows there. The output may
/// be absent.
#[test]
fn caches_are_appended_to_in_place() {
    let engine = engine(2);
    let options = PlanOptions::default().all_workers(true);
    for dtype in [DType::F32, DType::F16] {
        let causal = Some(Alignment::BottomRight);
        let params =
            Params { heads: 2, kv_heads: 2, past: Some(6), present: true, ..Params::plain(3, 3, 8, 4) };
        let case = Params { dtype, causal, scale: SCALE, ..params }.build("cache");
        let mut spec = case.spec.append(true);
        let mut buffers = case.buffers();
        {
            let past = case.past.as_ref().unwrap();
            let (keys, values) = buffers.present.as_mut().unwrap();
            for (view, present, data, cache) in [
                (&mut spec.past_key, spec.present_key, &past.0, keys),
                (&mut spec.past_value, spec.present_value, &past.1, values),
            ] {
                let (from, strides) = (view.unwrap(), present.unwrap().strides());
                let [_, heads, tokens, d] = from.shape();
                *view = View::new("past", from.shape(), strides).ok();
                for (h, t) in (0..heads).flat_map(|h| (0..tokens).map(move |t| (h, t))) {
                    let (at, to) = (from.row(0, h, t), present.unwrap().row(0, h, t));
                    (0..d).for_each(|x| cache.set(to + x, data.get(at + x)));
                }
            }
        }
        let plan = engine.plan(&spec.check().unwrap(), &options).unwrap();
        let mut workspace = plan.workspace().unwrap();
        let mut inputs = case.inputs();
        (inputs.past_key, inputs.past_value) = (None, None);
        plan.bind(inputs, buffers.outputs(), &mut workspace).unwrap().run().unwrap();
        check(&engine, &case, &buffers);
        let states = buffers.s.clone();
        buffers.s.fill(f32::NAN);
        let without = Outputs { output: None, ..buffers.outputs() };
        plan.bind(inputs, without, &mut workspace).unwrap().run().unwrap();
        assert_eq!(buffers.s, states);
    }
}

/// Checks that a run reads nothing that an earlier plan left in the workspace: the earlier plan leaves NaN, which would
/// reach the output.
#[test]
fn a_workspace_may_be_shared_by_plans() {
    let engine = engine(2);
    // Miri is an interpreter, so it runs fewer keys and cases.
    let keys = if cfg!(miri) { 5 } else { 64 };
    let step = if cfg!(miri) { 5 } else { 1 };
    let large = Params { batch: 4, heads: 1, scale: SCALE, past: Some(2), ..Params::plain(9, keys, 21, 21) };
    let mut large = Params { dtype: DType::F16, causal: Some(Alignment::TopLeft), ..large }.build("NaN");
    for data in [&mut large.q, &mut large.v] {
        (0..data.len()).for_each(|x| data.set(x, f32::NAN));
    }
    let problem = large.problem();
    let options = PlanOptions::default().all_workers(true);
    let plan = engine.plan(&problem, &options).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let mut shared = 0;
    for case in cases().into_iter().step_by(step) {
        let mut buffers = large.buffers();
        plan.bind(large.inputs(), buffers.outputs(), &mut workspace).unwrap().run().unwrap();
        let (buffers, fits) = run(&engine, &case, Method::Elsa, &mut workspace);
        check(&engine, &case, &buffers);
        shared += usize::from(fits);
    }
    assert!(shared >= 10 / step, "{shared} cases fit the workspace");
}

/// Checks that a workspace is refused if it is too small, even if it lacks space only for the table of sequences.
/// Nothing may be written.
#[test]
fn a_workspace_that_is_too_small_is_refused() {
    let engine = engine(2);
    let small = Params { scale: SCALE, ..Params::plain(3, 4, 4, 4) }.build("small");
    let batch = Params { batch: 3, scale: SCALE, ..Params::plain(3, 4, 4, 4) }.build("more sequences");
    let wide = Params { scale: SCALE, ..Params::plain(3, 4, 4, 64) }.build("more bytes");
    let plan = |case: &Case| engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
    for case in [batch, wide] {
        let mut workspace = plan(&small).workspace().unwrap();
        let mut buffers = case.buffers();
        let own = plan(&case);
        let bound = own.bind(case.inputs(), buffers.outputs(), &mut workspace);
        assert!(matches!(bound, Err(BindError::Room { .. })), "{case:?}");
        assert!((0..buffers.output.len()).all(|i| buffers.output.get(i).is_nan()), "{case:?}");
    }
}
