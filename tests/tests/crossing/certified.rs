//! Certificates of runs: what is measured against f64, over every hard case on every back end, and the bound against the
//! definition.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use elsa_core::attention::certified::Certified;
use elsa_core::attention::measured::Flags;
use elsa_core::attention::{MASK_LIMIT, MaskKind};
use elsa_core::drift::larger;
use elsa_core::view::View;
use elsa_runtime::{Backend, Engine, EngineOptions, Method, PlanOptions};
use elsa_tests::cases::{Case, Data, MaskData, some_hard_cases};
use elsa_tests::present;

fn engines(threads: usize) -> Vec<Engine> {
    let options = |b| EngineOptions { backend: Some(b), threads: Some(threads), ..EngineOptions::default() };
    present().into_iter().map(|p| Engine::new(&options(p.backend)).unwrap()).collect()
}

const CERTIFY: PlanOptions = PlanOptions {
    method: Method::Elsa,
    block: 64,
    budget: None,
    all_workers: true,
    half_scores: false,
    certify: true,
};

/// What the elements of a case are, in f64: norms of queries and keys, what is added, channels of values.
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

/// The largest finite magnitude of what is added, `∞` or NaN if there is one, of all elements but `−∞`.
fn added(elements: impl Iterator<Item = f32>) -> f64 {
    elements.filter(|x| *x != f32::NEG_INFINITY).fold(0.0, |most, x| {
        let x = if x.is_finite() { x.abs().min(MASK_LIMIT) } else { x.abs() };
        larger(most, f64::from(x))
    })
}

/// Element by element, for every row the keys that it may attend by length, causality and window.
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

/// An upper bound of `x` that is close to it, or NaN or infinite as it is.
fn bounds(found: f64, x: f64) -> bool {
    if x.is_nan() {
        return found.is_nan();
    }
    // The bound by the largest element counts where squares overflow f32.
    found >= x && (found <= x * (1.0 + 1e-4) + 1e-15 || x > 1e18)
}

fn check_measured(case: &Case, certified: &Certified<'_>, gpu: bool) -> Result<(), String> {
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

/// Every norm, channel and flag; the bound over every element; and bits of the answer that are those without a certificate.
#[test]
fn hard_cases_are_measured_and_bounded() {
    let cases = some_hard_cases();
    let answers: Vec<_> = cases.iter().map(Case::naive).collect();
    for engine in engines(3) {
        let gpu = engine.backend() == Backend::Cuda;
        let (mut claims, mut elements, mut tightest, mut failures) = (0, 0, f64::INFINITY, Vec::new());
        for (case, answer) in cases.iter().zip(&answers) {
            let problem = case.problem();
            for method in [Method::Elsa, Method::Math] {
                if method == Method::Math && (case.spec.packed.is_some() || gpu) {
                    continue;
                }
                let options = PlanOptions { method, ..CERTIFY };
                let plain = PlanOptions { certify: false, ..options };
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
                let certified = bound.certified().unwrap();
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
                        if !(error <= most) || !(error <= prior.absolute(value)) {
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
