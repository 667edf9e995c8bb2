//! Tests certificates of runs, for every hard case on every back end: compares the measurements with f64, and the
//! errors of the outputs with the certified bound.

use elsa_core::attention::measured::Flags;
use elsa_core::attention::run_certificate::RunCertificate;
use elsa_core::attention::{MASK_LIMIT, MaskKind};
use elsa_core::drift::larger;
use elsa_core::dtype::DType;
use elsa_core::view::View;
use elsa_oracle::cases::{Case, Data, MaskData, MaskParams, Params, some_hard_cases};
use elsa_oracle::engines;
use elsa_oracle::present;
use elsa_oracle::standin::{child, folder, is_child, said};
use elsa_runtime::{Backend, Engine, EngineOptions, Method, Plan, PlanOptions, RunError, Workspace};

fn certifying() -> PlanOptions {
    PlanOptions::default().all_workers(true).certify(true)
}

/// Measurements of a case in f64: largest norms of a query and of a key, largest addend, and largest value per channel.
struct Exact {
    query: f64,
    key: f64,
    added: f64,
    channels: Vec<f64>,
}

fn norm(view: &View, data: &Data, [b, h, t]: [usize; 3]) -> f64 {
    let row = view.row(b, h, t);
    (0..view.dim()).map(|x| f64::from(data.get(row + x)).powi(2)).sum::<f64>().sqrt()
}

/// Returns the largest magnitude of the addends. Finite addends are clamped to the limit of masks, ∞ and NaN count, and
/// `−∞` does not count.
fn added(elements: impl Iterator<Item = f32>) -> f64 {
    elements.filter(|x| *x != f32::NEG_INFINITY).fold(0.0, |most, x| {
        let x = if x.is_finite() { x.abs().min(MASK_LIMIT) } else { x.abs() };
        larger(most, f64::from(x))
    })
}

/// Measures a case element by element. A key counts only if the lengths, causality and the window let some row attend
/// it.
fn exact(case: &Case) -> Exact {
    let (problem, inputs) = (case.problem(), case.inputs());
    let s = &case.spec;
    let mut exact = Exact { query: 0.0, key: 0.0, added: 0.0, channels: vec![0.0; s.value.dim()] };
    for index in 0..problem.sequences() {
        let sequence = problem.sequence(&inputs.lengths, index);
        let (mut first, mut last) = (usize::MAX, 0);
        for i in 0..sequence.queries {
            let (start, end) = sequence.range(i);
            (first, last) = (first.min(start), last.max(end));
            for h in 0..problem.heads() {
                let found = norm(&s.query, &case.q, [sequence.batch, h, sequence.query0 + i]);
                exact.query = larger(exact.query, found);
            }
        }
        for (j, h) in (first..last).flat_map(|j| (0..problem.kv_heads()).map(move |h| (j, h))) {
            let past = problem.past();
            let ((key_view, keys), (value_view, values), token) =
                match (&s.past_key, &s.past_value, &case.past) {
                    (Some(k), Some(v), Some(data)) if j < past => ((k, &data.0), (v, &data.1), j),
                    _ => ((&s.key, &case.k), (&s.value, &case.v), sequence.key0 + j - past),
                };
            let at = [sequence.batch, h, token];
            exact.key = larger(exact.key, norm(key_view, keys, at));
            let row = value_view.row(sequence.batch, h, token);
            for (x, most) in exact.channels.iter_mut().enumerate() {
                *most = larger(*most, f64::from(values.get(row + x)).abs());
            }
        }
    }
    if problem.rows() == 0 {
        return exact;
    }
    if let (Some(view), Some(MaskData::Additive(mask))) = (s.mask, &case.mask)
        && view.kind() != MaskKind::Bool
    {
        exact.added += added((0..view.extent()).map(|i| mask.get(i)));
    }
    if let (Some(view), Some(bias)) = (s.bias, &case.bias) {
        exact.added += added((0..view.extent()).map(|i| bias.get(i)));
    }
    exact
}

/// Returns `true` if `found` is a close upper bound of `x`, or if both are NaN or infinite.
fn bounds(found: f64, x: f64) -> bool {
    if x.is_nan() {
        return found.is_nan();
    }
    // If squares overflow f32, the looser bound from the largest element applies.
    found >= x && (found <= x * (1.0 + 1e-4) + 1e-15 || x > 1e18)
}

fn check_measured(case: &Case, certified: &RunCertificate<'_>, gpu: bool) -> Result<(), String> {
    let (want, found) = (exact(case), certified.measured);
    for (name, found, want) in
        [("query", found.query, want.query), ("key", found.key, want.key), ("added", found.added, want.added)]
    {
        if !bounds(found, want) {
            return Err(format!("{name}: {found:e}, not {want:e}"));
        }
    }
    if certified.channels().len() != want.channels.len() {
        return Err(format!("{} channels", certified.channels().len()));
    }
    for (c, (found, want)) in certified.channels().iter().zip(&want.channels).enumerate() {
        if f64::from(*found) != *want && !(found.is_nan() && want.is_nan()) {
            return Err(format!("channel {c}: {found:e}, not {want:e}"));
        }
    }
    let value = want.channels.iter().fold(0.0, |a, b| larger(a, *b));
    for (x, nan, infinite) in [
        (want.query, Flags::QUERY_NAN, Flags::QUERY_INFINITE),
        (want.key, Flags::KEY_NAN, Flags::KEY_INFINITE),
        (value, Flags::VALUE_NAN, Flags::VALUE_INFINITE),
        (want.added, Flags::ADDED_NAN, Flags::ADDED_INFINITE),
    ] {
        if found.flags.contains(nan) != x.is_nan() || found.flags.contains(infinite) != x.is_infinite() {
            return Err(format!("flags {} for {x:e}", found.flags));
        }
    }
    let output = found.flags.contains(Flags::OUTPUT_NAN) || found.flags.contains(Flags::OUTPUT_INFINITE);
    if gpu && output {
        return Err("a GPU does not measure the output".into());
    }
    Ok(())
}

/// Checks every norm, channel and flag of certificates, and the bound for every element. Requesting a certificate must
/// not change the bits of the output.
#[test]
fn hard_cases_are_measured_and_bounded() {
    let cases = some_hard_cases();
    // Each back end tests a third of the cases, different from the third of the previous back end.
    for (turn, engine) in engines(3).into_iter().enumerate() {
        let gpu = engine.backend() == Backend::Cuda;
        let cases: Vec<_> = cases.iter().skip(turn % 3).step_by(if gpu { 6 } else { 3 }).collect();
        let (mut claims, mut elements, mut tightest, mut failures) = (0, 0, f64::INFINITY, Vec::new());
        for &case in &cases {
            let (problem, answer) = (case.problem(), case.naive());
            for method in [Method::Elsa, Method::Math] {
                if method == Method::Math && case.spec.packed.is_some() {
                    continue;
                }
                let options = certifying().method(method);
                let plain = options.certify(false);
                let [(bare, _), (mut buffers, plan)] = [plain, options].map(|options| {
                    let plan = engine.plan(&problem, &options).unwrap();
                    let mut buffers = case.buffers();
                    let mut workspace = plan.workspace().unwrap();
                    plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap().run().unwrap();
                    (buffers, plan)
                });
                if (0..bare.output.len())
                    .any(|i| bare.output.get(i).to_bits() != buffers.output.get(i).to_bits())
                {
                    failures.push(format!("{case:?}: the certificate changes bits"));
                }
                let mut workspace = plan.workspace().unwrap();
                let mut bound = plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap();
                bound.run().unwrap();
                let certified = bound.certificate().unwrap();
                let (channels, prior) = (certified.channels().to_vec(), certified.claim().copied());
                if let Err(e) = check_measured(case, &certified, gpu) {
                    failures.push(format!("{} {method:?} {case:?}: {e}", engine.backend()));
                    continue;
                }
                let Ok(prior) = prior else { continue };
                claims += 1;
                let view = &case.spec.output;
                let [batch, heads, tokens, dim] = view.shape();
                for at in (0..batch)
                    .flat_map(|b| (0..heads).map(move |h| (b, h)))
                    .flat_map(|(b, h)| (0..tokens).map(move |t| view.row(b, h, t)))
                {
                    for (x, value) in channels.iter().enumerate().take(dim) {
                        let error = (f64::from(buffers.output.get(at + x)) - answer.y[at + x]).abs();
                        let value = f64::from(*value);
                        let most = prior.relative * answer.spread[at + x] + prior.lost * value + prior.tiny;
                        elements += 1;
                        tightest = tightest.min(most / error);
                        let within = error <= most && error <= prior.absolute(value);
                        if !within {
                            failures.push(format!(
                                "{} {method:?} {case:?}: element {at} + {x} is off by {error:e}, beyond {most:e}",
                                engine.backend()
                            ));
                        }
                    }
                }
            }
        }
        println!(
            "{}: {claims} claims, {elements} elements, least bound over error {tightest:.1}",
            engine.backend()
        );
        failures.dedup_by_key(|failure| failure.split(": element").next().unwrap_or_default().to_owned());
        assert!(
            failures.is_empty(),
            "{} failures\n{}",
            failures.len(),
            failures[..failures.len().min(9)].join("\n")
        );
        assert!(claims > cases.len() / 2);
    }
}

/// Runs a case and returns numbers of its certificate: the norms of query and key, the largest addend and the relative
/// bound, followed by the magnitudes of the channels.
fn certify(engine: &Engine, case: &Case) -> ([f64; 4], Vec<f32>) {
    let plan = engine.plan(&case.problem(), &certifying()).unwrap();
    let (mut workspace, mut buffers) = (plan.workspace().unwrap(), case.buffers());
    let mut bound = plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap();
    bound.run().unwrap();
    let c = bound.certificate().unwrap();
    ([c.measured.query, c.measured.key, c.measured.added, c.prior.relative], c.channels().to_vec())
}

/// Checks that the largest element of each tensor changes the certificate, wherever this element is.
#[test]
fn the_largest_element_of_each_tensor_matters() {
    let p = Params {
        mask: Some(MaskParams { kind: MaskKind::Additive(DType::F32), dims: vec![37, 91], density: 1.0 }),
        past: Some(20),
        heads: 4,
        kv_heads: 2,
        batch: 2,
        ..Params::plain(37, 71, 24, 20)
    };
    let case = p.build("a tensor of each kind");
    let (s, past) = (case.spec, case.past.clone().unwrap());
    for engine in engines(3) {
        let (plain, channels) = certify(&engine, &case);
        let changed = |name: &str, changed: &Case, place: usize| {
            let (numbers, _) = certify(&engine, changed);
            for (i, (a, b)) in plain.iter().zip(numbers).enumerate() {
                let moved = i == place || (i == 3 && place != 2);
                assert!(if moved { b > *a } else { i == 3 || b == *a }, "{} {name} {i}", engine.backend());
            }
        };
        for (b, h, t) in [(0, 0, 0), (1, 3, 36), (1, 2, 17)] {
            let mut other = case.clone();
            other.q.set(s.query.row(b, h, t) + 23, 900.0);
            changed("q", &other, 0);
        }
        for (b, h, t) in [(0, 0, 0), (1, 1, 70), (0, 1, 33)] {
            let mut other = case.clone();
            other.k.set(s.key.row(b, h, t) + 5, -900.0);
            changed("k", &other, 1);
            let mut other = case.clone();
            other.v.set(s.value.row(b, h, t) + 19, -900.0);
            let (_, now) = certify(&engine, &other);
            assert_eq!((&now[..19], now[19]), (&channels[..19], 900.0), "{} v", engine.backend());
        }
        let (keys, values) = (s.past_key.unwrap(), s.past_value.unwrap());
        for (b, h, t) in [(0, 0, 0), (1, 1, 19)] {
            let (mut k, mut v) = past.clone();
            k.set(keys.row(b, h, t), 900.0);
            v.set(values.row(b, h, t), 800.0);
            let other = Case { past: Some((k, v)), ..case.clone() };
            assert!(certify(&engine, &other).0[1] >= 900.0 && certify(&engine, &other).1[0] == 800.0);
        }
        for at in [0, 37 * 91 - 1, 1000] {
            let mut other = case.clone();
            if let Some(MaskData::Additive(mask)) = &mut other.mask {
                mask.set(at, -77.0);
            }
            changed("mask", &other, 2);
        }
    }
}

/// Checks that a run without the option has no certificate and needs a smaller workspace. A certificate belongs to the
/// last run: after warming up, or after a run without the option, there is no certificate.
#[test]
fn a_certificate_is_that_of_the_last_run() {
    let case = Params::plain(70, 90, 16, 16).build("plain");
    let larger = Params { heads: 2, kv_heads: 2, ..Params::plain(80, 90, 16, 16) }.build("larger");
    for engine in engines(2) {
        let plain = certifying().certify(false);
        let [without, with, of_larger] = [(&case, plain), (&case, certifying()), (&larger, certifying())]
            .map(|(case, options)| engine.plan(&case.problem(), &options).unwrap());
        assert_eq!(PlanOptions::default(), plain.all_workers(false));
        assert!(with.workspace_bytes() > without.workspace_bytes());
        let mut own = without.workspace().unwrap();
        assert_eq!(own.certificate().unwrap_err(), RunError::NoRun);
        let mut buffers = case.buffers();
        without.bind(case.inputs(), buffers.outputs(), &mut own).unwrap().run().unwrap();
        assert_eq!(own.certificate().unwrap_err(), RunError::NoRun);

        let mut shared = Workspace::shared(&[&with, &of_larger, &without]).unwrap();
        with.warm(&mut shared).unwrap();
        assert_eq!(shared.certificate().unwrap_err(), RunError::NoRun);
        let run = |plan: &Plan, case: &Case, shared: &mut Workspace| {
            let mut buffers = case.buffers();
            plan.bind(case.inputs(), buffers.outputs(), shared).unwrap().run().unwrap();
        };
        run(&with, &case, &mut shared);
        let first = shared.certificate().unwrap().measured;
        run(&of_larger, &larger, &mut shared);
        let second = shared.certificate().unwrap().measured;
        assert_ne!(first, second);
        run(&with, &case, &mut shared);
        assert_eq!(shared.certificate().unwrap().measured, first);
        // Requesting the certificate again returns the same measurements.
        assert_eq!(shared.certificate().unwrap().measured, first);
        run(&without, &case, &mut shared);
        assert_eq!(shared.certificate().unwrap_err(), RunError::NoRun);
    }
}

/// Checks that neither the number of workers nor a second run changes a measurement.
#[test]
fn what_is_measured_depends_on_the_tensors_alone() {
    let case = Params { heads: 3, kv_heads: 1, ..Params::plain(300, 170, 40, 24) }.build("several tiles");
    for present in present() {
        let all: Vec<_> = [1, 2, 5]
            .map(|threads| {
                let options = EngineOptions::default().backend(present.backend).threads(threads);
                certify(&Engine::new(&options).unwrap(), &case)
            })
            .into();
        assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
    }
}

/// Runs a certified call on the GPU twice, in a child process; an injected fault may move a run to the CPU.
#[test]
#[ignore = "run by another test in a child"]
fn a_run_that_may_fail() {
    if !is_child() {
        return;
    }
    let options = EngineOptions::default().backend(Backend::Cuda).threads(2);
    let engine = Engine::new(&options).unwrap();
    let case = Params::plain(70, 90, 24, 24).build("faults");
    let plan = engine.plan(&case.problem(), &certifying()).unwrap();
    let (mut workspace, mut buffers) = (plan.workspace().unwrap(), case.buffers());
    for _ in 0..2 {
        let mut bound = plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap();
        let report = bound.run().unwrap();
        match bound.certificate() {
            Ok(found) => {
                assert_eq!(report.fallback.is_some(), found.measured.flags.contains(Flags::FALLBACK));
                check_measured(&case, &found, report.backend == Backend::Cuda).unwrap();
                println!("certified: {} [{}]", report.backend == Backend::Cuda, found.measured.flags);
            }
            Err(e) => println!("certified: {e}"),
        }
        case.naive().check_all(&buffers, 600).unwrap();
    }
}

/// Checks that, if a GPU fails at any step, the CPU certifies the results that it computes instead. The only failure
/// that leads to an error is that the record of measurements cannot be fetched.
#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn faults_of_a_gpu_are_certified_or_told() {
    let (gpu, cpu) = ("true []", "false [fallback]");
    for (fault, want) in [
        ("", [gpu, gpu]),
        // The first launch is the attention kernel, the second the kernel that measures.
        ("cuLaunchKernel:1:1", [cpu, gpu]),
        ("cuLaunchKernel:2:1", [cpu, gpu]),
        ("cuLaunchKernel:2:700", [cpu, gpu]),
        ("cuEventRecord:1+:1", [cpu, cpu]),
        ("cuStreamWaitEvent:1+:1", [cpu, cpu]),
    ] {
        let out = child("certified::a_run_that_may_fail", &folder(), &[("ELSA_STANDIN_FAIL", fault)]);
        assert!(out.status.success(), "{fault}: {}", String::from_utf8_lossy(&out.stdout));
        assert_eq!(said(&out, "certified"), want, "{fault}");
    }
    // A run copies its outputs to the host; the next copy is that of the records of measurements.
    let fetched = (1..9).find(|n| {
        let fault = format!("cuMemcpyDtoHAsync_v2:{n}:1");
        let out = child("certified::a_run_that_may_fail", &folder(), &[("ELSA_STANDIN_FAIL", fault)]);
        let told = said(&out, "certified");
        assert_eq!((told.len(), &*told[1]), (2, gpu), "{n}: {told:?}");
        told[0].starts_with("backend: cuda: cuMemcpyDtoHAsync_v2")
    });
    assert!(fetched.is_some());
}
