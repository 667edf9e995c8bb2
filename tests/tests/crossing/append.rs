//! Tests calls that append to caches in place, on every back end. The output has the bits of a run with a copied cache
//! and matches the definition, and no byte of the cache changes except in the new rows.

use elsa_core::argument::ArgumentError;
use elsa_core::attention::{Alignment, MaskKind, Problem, Spec, Window, scalar};
use elsa_core::dtype::DType;
use elsa_core::view::{Layout, View};
use elsa_oracle::cases::{Buffers, Case, Data, MaskParams, Params};
use elsa_oracle::strides::{TURNS, far_case, far_spec};
use elsa_oracle::{SLOW, engines};
use elsa_runtime::{BindError, Method, PlanOptions};

/// Memory layout of a cache.
#[derive(Clone, Copy, Debug)]
struct Cache {
    layout: Layout,
    /// Number of unused tokens at the end of the cache, after those of the call.
    spare: usize,
    /// Number of elements between rows.
    pad: usize,
}

const CACHES: [Cache; 4] = [
    Cache { layout: Layout::Bhnd, spare: 0, pad: 0 },
    Cache { layout: Layout::Bhnd, spare: 9, pad: 0 },
    Cache { layout: Layout::Bnhd, spare: 3, pad: 0 },
    Cache { layout: Layout::Bnhd, spare: 1, pad: 4 },
];

impl Cache {
    /// Returns the view of the first `tokens` tokens of a cache that contains `all` tokens after the call.
    fn view(self, [batch, heads, all, d]: [usize; 4], tokens: usize) -> View {
        let (room, row) = (all + self.spare, d + self.pad);
        let strides = match self.layout {
            Layout::Bhnd => [heads * room * row, room * row, row, 1],
            _ => [room * heads * row, row, heads * row, 1],
        };
        View::new("cache", [batch, heads, tokens, d], strides).unwrap()
    }
}

/// Iterates over all elements of a view. Yields the batch, head, token and column of each element, and its index.
fn elements(view: View) -> impl Iterator<Item = ([usize; 4], usize)> {
    let [b, h, n, d] = view.shape();
    let all = (0..b).flat_map(move |b| (0..h).flat_map(move |h| (0..n).map(move |t| (b, h, t))));
    all.flat_map(move |(b, h, t)| (0..d).map(move |x| ([b, h, t, x], view.row(b, h, t) + x)))
}

/// A case whose past and present are the same cache, which is stored separately from the case. Outside the past rows,
/// the cache contains NaN.
struct Appending {
    spec: Spec,
    caches: [Data; 2],
}

impl Appending {
    fn of(case: &Case, cache: Cache) -> Appending {
        let mut spec = case.spec.append(true);
        let past = case.spec.past_key.unwrap().tokens();
        let filled = |d: usize, from: View, data: &Data| {
            let [b, h, _, _] = from.shape();
            let all = [b, h, past + case.spec.key.tokens(), d];
            let (before, whole) = (cache.view(all, past), cache.view(all, all[2]));
            let end = cache.view(all, all[2] + cache.spare).extent();
            let mut memory = Data::filled(case.spec.dtype, end, f32::NAN);
            for ([b, h, t, x], at) in elements(before) {
                memory.set(at, data.get(from.row(b, h, t) + x));
            }
            (before, whole, memory)
        };
        let (keys, values) = case.past.as_ref().unwrap();
        let (pk, k, key) = filled(case.spec.key.dim(), case.spec.past_key.unwrap(), keys);
        let (pv, v, value) = filled(case.spec.value.dim(), case.spec.past_value.unwrap(), values);
        (spec.past_key, spec.past_value) = (Some(pk), Some(pv));
        (spec.present_key, spec.present_value) = (Some(k), Some(v));
        Appending { spec, caches: [key, value] }
    }

    fn problem(&self) -> Problem {
        self.spec.check().unwrap()
    }

    /// Returns the caches as a call must leave them: new rows after the past ones, and every other element unchanged.
    fn expected(&self, case: &Case) -> [Data; 2] {
        let mut caches = self.caches.clone();
        let views = [
            (self.spec.present_key, case.spec.key, &case.k),
            (self.spec.present_value, case.spec.value, &case.v),
        ];
        for (cache, (to, from, data)) in caches.iter_mut().zip(views) {
            let past = to.unwrap().tokens() - from.tokens();
            for ([b, h, t, x], at) in elements(from) {
                cache.set(to.unwrap().row(b, h, past + t) + x, data.get(at));
            }
        }
        caches
    }

    /// Runs `call` with the inputs of the case and copies of the caches. Returns the outputs and the caches.
    fn run(
        &self,
        case: &Case,
        mut call: impl FnMut(&Problem, elsa_core::attention::Inputs<'_>, elsa_core::attention::Outputs<'_>),
    ) -> (Buffers, [Data; 2]) {
        let mut buffers = case.buffers();
        let [mut key, mut value] = self.caches.clone();
        let mut inputs = case.inputs();
        (inputs.past_key, inputs.past_value) = (None, None);
        let mut outputs = buffers.outputs();
        (outputs.present_key, outputs.present_value) = (Some(key.elements_mut()), Some(value.elements_mut()));
        call(&self.problem(), inputs, outputs);
        (buffers, [key, value])
    }
}

fn cases() -> Vec<Case> {
    let cached = |past, queries, keys, d, dv| Params {
        batch: 2,
        heads: 4,
        kv_heads: 2,
        past: Some(past),
        present: true,
        ..Params::plain(queries, keys, d, dv)
    };
    let causal = Some(Alignment::BottomRight);
    let mask = MaskParams { kind: MaskKind::Bool, dims: vec![5, 45], density: 0.6 };
    vec![
        cached(300, 1, 1, 64, 64).build("a decoding step"),
        Params { dtype: DType::F16, ..cached(300, 1, 1, 64, 64) }.build("a step in f16"),
        Params { dtype: DType::Bf16, causal, ..cached(77, 6, 6, 24, 40) }.build("six in bf16"),
        Params { causal, ..cached(70, 90, 90, 32, 32) }.build("many rows"),
        Params { dtype: DType::F16, causal, layout: Layout::Bnhd, ..cached(130, 70, 70, 16, 8) }
            .build("many in f16"),
        Params { causal: Some(Alignment::TopLeft), ..cached(40, 5, 5, 5, 7) }.build("odd heads"),
        Params { mask: Some(mask), softcap: Some(2.0), ..cached(40, 5, 5, 12, 20) }.build("a mask"),
        Params {
            lengths: true,
            window: Window { left: Some(20), right: Some(3) },
            ..cached(60, 9, 9, 16, 16)
        }
        .build("lengths and a window"),
        Params { pad: 3, causal, ..cached(33, 4, 4, 64, 64) }.build("new rows with gaps"),
        cached(0, 3, 3, 64, 64).build("no past"),
        cached(1, 2, 1, 8, 8).build("one past key"),
        cached(600, 2, 0, 64, 64).build("no new key"),
    ]
}

#[test]
fn the_bits_of_copies_and_no_other_byte() {
    for engine in engines(2) {
        for (i, case) in cases().into_iter().enumerate() {
            let (problem, naive) = (case.problem(), case.naive());
            // If calls are slow, each case uses only one cache.
            let caches = if SLOW { &CACHES[i % CACHES.len()..][..1] } else { &CACHES[..] };
            for (method, states) in [(Method::Elsa, true), (Method::Elsa, false), (Method::Math, true)] {
                let options = PlanOptions::default().method(method).all_workers(true);
                let copying = engine.plan(&problem, &options).unwrap();
                let mut want = case.buffers();
                let mut workspace = copying.workspace().unwrap();
                let mut outputs = want.outputs();
                // The attention kernel of a GPU writes the output itself if there are neither states nor splits of the
                // keys.
                outputs.state = outputs.state.filter(|_| states);
                copying.bind(case.inputs(), outputs, &mut workspace).unwrap().run().unwrap();
                let additions = if method == Method::Math { 4096 } else { 64 + 8 + 12 };
                let answer = naive.check(&want.output, Some(&want.lse), additions);
                answer.unwrap_or_else(|e| panic!("{case:?}: {e}"));
                for &cache in caches {
                    let appending = Appending::of(&case, cache);
                    let (got, kept) = appending.run(&case, |problem, inputs, mut outputs| {
                        outputs.state = outputs.state.filter(|_| states);
                        let plan = engine.plan(problem, &options).unwrap();
                        let mut workspace = plan.workspace().unwrap();
                        let warm = plan.warm(&mut workspace).unwrap();
                        assert_eq!((warm.backend, &warm.fallback), (engine.backend(), &None));
                        let mut bound = plan.bind(inputs, outputs, &mut workspace).unwrap();
                        let report = bound.run().unwrap();
                        assert_eq!(report.backend, engine.backend());
                        // A second run writes the new rows again, although they are already present.
                        bound.run().unwrap();
                    });
                    let what = format!("{} {method:?} {cache:?} {case:?}", engine.kernel());
                    assert!(got.bits() == want.bits(), "{what}: other bits than with copies");
                    for (found, want) in kept.iter().zip(appending.expected(&case)) {
                        assert!(found.bits() == want.bits(), "{what}: the cache");
                    }
                }
            }
        }
    }
}

#[test]
fn the_scalar_fallback_appends() {
    for case in cases() {
        for cache in CACHES {
            let appending = Appending::of(&case, cache);
            let (got, caches) = appending.run(&case, |problem, inputs, mut outputs| {
                let mut scratch = vec![f32::NAN; scalar::scratch_len(problem).unwrap()];
                scalar::run(problem, &inputs, &mut outputs, &mut scratch).unwrap();
            });
            let what = format!("{cache:?} {case:?}");
            case.naive().check_all(&got, 512 + 12).unwrap_or_else(|e| panic!("{what}: {e}"));
            for (found, want) in caches.iter().zip(appending.expected(&case)) {
                assert!(found.bits() == want.bits(), "{what}: the cache");
            }
        }
    }
}

/// Checks a cache that grows token by token. Each step must give the output of a call with all tokens so far.
#[test]
fn steps_of_a_decoder() {
    let (all, d) = (12, 32);
    let params = |n| Params { heads: 2, kv_heads: 1, ..Params::plain(n, n, d, d) };
    let whole = params(all).build("whole");
    let dense = |n| View::dense("x", Layout::Bhnd, &[1, n, d], None).unwrap();
    for engine in engines(2) {
        let mut caches = [vec![f32::NAN; all * d], vec![f32::NAN; all * d]];
        for t in 0..all {
            let mut step = Params { queries: 1, keys: 1, ..params(1) }.build("step");
            let from = |data: &Data, at: usize| Data::F32((at..at + d).map(|i| data.get(i)).collect());
            step.q = Data::F32(
                [0, 1]
                    .iter()
                    .flat_map(|h| (0..d).map(|x| whole.q.get((h * all + t) * d + x)).collect::<Vec<_>>())
                    .collect(),
            );
            (step.k, step.v) = (from(&whole.k, t * d), from(&whole.v, t * d));
            let mut spec = step.spec.append(true);
            (spec.past_key, spec.past_value) = (Some(dense(t)), Some(dense(t)));
            (spec.present_key, spec.present_value) = (Some(dense(t + 1)), Some(dense(t + 1)));
            let plan = engine.plan(&spec.check().unwrap(), &PlanOptions::default()).unwrap();
            let mut workspace = plan.workspace().unwrap();
            let mut buffers = step.buffers();
            let mut outputs = buffers.outputs();
            let [key, value] = &mut caches;
            outputs.present_key = Some(elsa_core::dtype::ElementsMut::F32(key));
            outputs.present_value = Some(elsa_core::dtype::ElementsMut::F32(value));
            plan.bind(step.inputs(), outputs, &mut workspace).unwrap().run().unwrap();
            // The result must equal that of the same step over contiguous keys.
            let mut plain = Params { queries: 1, ..params(t + 1) }.build("plain");
            plain.q = step.q.clone();
            plain.k = Data::F32((0..(t + 1) * d).map(|i| whole.k.get(i)).collect());
            plain.v = Data::F32((0..(t + 1) * d).map(|i| whole.v.get(i)).collect());
            plain.naive().check_all(&buffers, 84).unwrap_or_else(|e| panic!("{} {t}: {e}", engine.kernel()));
        }
        let kept: Vec<u32> = caches[0].iter().map(|x| x.to_bits()).collect();
        assert_eq!(kept, whole.k.bits());
    }
}

/// The stride of an axis with fewer than two elements may be any number, so it must not change a bit, and no arithmetic
/// with it may overflow.
#[test]
fn strides_of_single_elements_do_not_matter() {
    let engines = engines(2);
    for (i, [past, new]) in [[0, 1], [1, 0], [1, 1], [70, 1]].into_iter().enumerate() {
        let params = Params { heads: 4, past: Some(past), present: true, ..Params::plain(1, new, 32, 32) };
        let case = params.build("single elements");
        for (j, cache) in CACHES.into_iter().enumerate() {
            let (dense, mut far) = (Appending::of(&case, cache), Appending::of(&case, cache));
            far.spec = far_spec(far.spec, (i + j) % TURNS);
            for engine in &engines {
                let run = |appending: &Appending, case: &Case| {
                    let (found, caches) = appending.run(case, |problem, inputs, outputs| {
                        let plan = engine.plan(problem, &PlanOptions::default()).unwrap();
                        let mut workspace = plan.workspace().unwrap();
                        plan.bind(inputs, outputs, &mut workspace).unwrap().run().unwrap();
                    });
                    (found.bits(), caches.map(|cache| cache.bits()))
                };
                let (want, found) = (run(&dense, &case), run(&far, &far_case(&case, i % TURNS)));
                assert_eq!(found, want, "{} {cache:?} {case:?}", engine.kernel());
            }
        }
    }
}

#[test]
fn what_is_no_cache_is_refused() {
    let case =
        Params { heads: 2, kv_heads: 2, batch: 2, past: Some(4), present: true, ..Params::plain(3, 3, 8, 8) }
            .build("cache");
    let good = Appending::of(&case, CACHES[1]).spec;
    good.check().unwrap();
    let refused = |change: &dyn Fn(&mut Spec)| {
        let mut spec = good;
        change(&mut spec);
        spec.check().unwrap_err()
    };
    let needs = |other| ArgumentError::Needs { argument: "append", other };
    assert_eq!(refused(&|s| (s.past_key, s.past_value) = (None, None)), {
        // If the past is missing, the present has too many tokens, which is the first error found.
        ArgumentError::Mismatch {
            argument: "present_k",
            axis: "tokens",
            found: 7,
            allowed: 3,
            of: "past and k",
        }
    });
    let none = Params::plain(3, 3, 8, 8).build("plain").spec.append(true);
    assert_eq!(none.check().unwrap_err(), needs("past_k"));
    assert_eq!(refused(&|s| s.present_key = None), needs("present_k"));
    assert_eq!(refused(&|s| s.present_value = None), needs("present_v"));
    for (axis, name) in ["batch stride", "head stride", "token stride"].into_iter().enumerate() {
        let view = good.past_value.unwrap();
        let mut strides = view.strides();
        let allowed = strides[axis];
        strides[axis] += 8;
        let found = strides[axis];
        let error = refused(&|s| s.past_value = Some(View::new("x", view.shape(), strides).unwrap()));
        let want =
            ArgumentError::Mismatch { argument: "past_v", axis: name, found, allowed, of: "present_v" };
        assert_eq!(error, want);
    }
    // A separate past conflicts with a present that already contains it.
    for engine in engines(2) {
        let appending = Appending::of(&case, CACHES[1]);
        let (_, caches) = appending.run(&case, |problem, inputs, outputs| {
            let inputs = elsa_core::attention::Inputs { past_key: case.inputs().past_key, ..inputs };
            let plan = engine.plan(problem, &PlanOptions::default()).unwrap();
            let error = plan.bind(inputs, outputs, &mut plan.workspace().unwrap()).map(|_| ()).unwrap_err();
            let conflict = ArgumentError::Conflict { argument: "past_k", other: "append" };
            assert_eq!(error, BindError::Problem(conflict));
        });
        assert!(caches.iter().zip(&appending.caches).all(|(a, b)| a.bits() == b.bits()));
    }
}
