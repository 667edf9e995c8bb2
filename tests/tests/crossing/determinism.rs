//! Checks that the bits of an output do not depend on the number of threads, the batch size, the memory budget, the
//! other sequences of a batch, or on whether the call is repeated.

use elsa_core::attention::{Alignment, Window};
use elsa_core::dtype::DType;
use elsa_core::plan::ChooseError as Refused;
use elsa_core::view::{Layout, View};
use elsa_oracle::SLOW;
use elsa_oracle::cases::{Buffers, Case, Data, Params, some_hard_cases};
use elsa_oracle::engine;
use elsa_oracle::naive::Answer;
use elsa_oracle::present;
use elsa_runtime::{Backend, Engine, EngineOptions, HostTask, HostThreads, ParallelFor};
use elsa_runtime::{PlanError, PlanOptions};

/// Number of additions between a key and the result: in its block, in its segment and in the merge tree.
const ADDITIONS: usize = 64 + 8 + 12;

fn run(engine: &Engine, case: &Case, budget: Option<usize>) -> Buffers {
    let problem = case.problem();
    let plan = engine.plan(&problem, &PlanOptions::default().budget(budget).all_workers(true)).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let mut buffers = case.buffers();
    let mut bound = plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap();
    bound.run().unwrap();
    bound.run().unwrap();
    buffers
}

/// Returns the bits of all outputs. All NaNs map to the same bits, except in present keys and values, which are copies.
fn bits(b: &Buffers) -> Vec<u32> {
    let present = b.present.iter().flat_map(|(k, v)| [k.bits(), v.bits()]);
    std::iter::once(b.bits()).chain(present).flatten().collect()
}

/// Returns the CPU back ends. A GPU guarantees less (see `cuda_determinism`): its split of the keys, and therefore the
/// rounding, depends on the number of queries and heads and on the budget.
fn processors() -> Vec<elsa_runtime::Present> {
    present().into_iter().filter(|p| p.backend != Backend::Cuda).collect()
}

#[test]
fn threads_budget_and_repetition_change_no_bit() {
    let mut cases = some_hard_cases();
    let (queries, keys) = if SLOW { (200, 1100) } else { (700, 1300) };
    cases.push(Params { heads: 3, kv_heads: 1, ..Params::plain(queries, keys, 32, 32) }.build("long"));
    // Equal bits do not prove that an output is correct. Where f64 is slow, only `conformance` checks this.
    let naive = |case: &Case| (!SLOW).then(|| case.naive());
    let cases: Vec<(Case, Option<Answer>)> =
        cases.into_iter().map(|case| (case.clone(), naive(&case))).collect();
    for present in processors() {
        let one = engine(present.backend, 1);
        let threads: &[usize] = if SLOW { &[3] } else { &[2, 3, 7] };
        let many: Vec<Engine> = threads.iter().map(|threads| engine(present.backend, *threads)).collect();
        for (case, answer) in &cases {
            let first = run(&one, case, None);
            if let Some(answer) = answer {
                answer.check_all(&first, ADDITIONS).unwrap_or_else(|e| panic!("{case:?}: {e}"));
            }
            let want = bits(&first);
            for engine in &many {
                assert_eq!(bits(&run(engine, case, None)), want, "{} {case:?}", engine.kernel());
            }
            let smallest = match one.plan(&case.problem(), &PlanOptions::default().budget(0)) {
                Err(PlanError::Refused(Refused::Budget { needed, budget: 0 })) => needed,
                other => panic!("{other:?}"),
            };
            assert_eq!(
                bits(&run(&many[many.len() / 2], case, Some(smallest))),
                want,
                "smallest budget, {case:?}"
            );
            let refused = one.plan(&case.problem(), &PlanOptions::default().budget(smallest - 1));
            assert_eq!(
                refused.err(),
                Some(Refused::Budget { needed: smallest, budget: smallest - 1 }.into())
            );
            let plan = one.plan(&case.problem(), &PlanOptions::default().budget(smallest)).unwrap();
            assert!(plan.workspace_bytes() <= smallest);
        }
    }
}

/// Computes all rows, or only the first rows, of one head in one sequence in a separate call. Checks that these rows have
/// the same bits as in the complete call. The two calls use the same kernel; only calls with very few queries would use
/// another kernel.
#[test]
fn a_row_does_not_depend_on_its_neighbours() {
    const KEYS: usize = if SLOW { 540 } else { 1200 };
    for present in processors() {
        let engine = engine(present.backend, 2);
        for causal in [None, Some(Alignment::TopLeft)] {
            for left in [None, Some(70)] {
                let window = Window { left, right: None };
                let p = Params {
                    batch: 3,
                    heads: 2,
                    kv_heads: 2,
                    causal,
                    window,
                    ..Params::plain(150, KEYS, 24, 16)
                };
                let whole = p.build("whole");
                let all = run(&engine, &whole, None);
                for (b, h, n) in [(0, 0, 150), (2, 1, 150), (1, 0, 5), (1, 1, 37)] {
                    let mut part = Params { batch: 1, heads: 1, kv_heads: 1, ..p.clone() }.build("part");
                    let copy = |from: &Data, view: &View, n: usize| {
                        let mut to = Data::filled(DType::F32, n * view.dim(), 0.0);
                        for t in 0..n {
                            for x in 0..view.dim() {
                                to.set(t * view.dim() + x, from.get(view.row(b, h, t) + x));
                            }
                        }
                        to
                    };
                    let view = |n, d| View::dense("x", Layout::Bhnd, &[n, d], None).unwrap();
                    part.q = copy(&whole.q, &whole.spec.query, n);
                    part.k = copy(&whole.k, &whole.spec.key, KEYS);
                    part.v = copy(&whole.v, &whole.spec.value, KEYS);
                    part.spec.query = view(n, 24);
                    part.spec.output = view(n, 16);
                    (part.spec.key, part.spec.value) = (view(KEYS, 24), view(KEYS, 16));
                    let alone = run(&engine, &part, None);
                    for t in 0..n {
                        let at = whole.spec.output.row(b, h, t);
                        for x in 0..16 {
                            let (a, b) = (all.output.get(at + x), alone.output.get(t * 16 + x));
                            assert_eq!(a.to_bits(), b.to_bits(), "{} row {t} column {x}", engine.kernel());
                        }
                    }
                }
            }
        }
    }
}

/// Host threads that run workers in an unusual order: some workers run twice, and some run only on threads that the
/// host does not wait for.
struct Unruly;

impl ParallelFor for Unruly {
    fn parallel_for(&self, workers: usize, task: HostTask) {
        std::thread::spawn(move || task.call(workers - 1));
        (1..workers - 1).rev().for_each(|i| task.call(i));
        std::thread::spawn(move || (0..workers).for_each(|i| task.call(i)));
    }
}

#[test]
fn threads_that_a_host_lends_change_no_bit() {
    for present in processors() {
        let one = engine(present.backend, 1);
        let host = Some(HostThreads::new(Unruly));
        let options = EngineOptions::default().backend(present.backend).threads(4).host(host);
        let lent = Engine::new(&options).unwrap();
        assert_eq!(lent.threads(), 4);
        for case in some_hard_cases() {
            assert_eq!(bits(&run(&lent, &case, None)), bits(&run(&one, &case, None)), "{case:?}");
        }
    }
}

#[test]
fn an_engine_serves_several_threads() {
    let engine = engine(present()[0].backend, 2);
    let (tokens, rounds) = if SLOW { (70, 2) } else { (197, 5) };
    let case = Params { heads: 4, kv_heads: 4, ..Params::plain(tokens, tokens, 64, 64) }.build("shared");
    let first = run(&engine, &case, None);
    case.naive().check_all(&first, ADDITIONS).unwrap();
    let want = bits(&first);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| (0..rounds).for_each(|_| assert_eq!(bits(&run(&engine, &case, None)), want)));
        }
    });
}

/// Checks the workspace of one head of 4,096 tokens. A GPU with many SMs divides the keys, and keeps states for each split.
#[test]
fn workspace_of_a_long_head_is_small() {
    let view = View::dense("q", Layout::Bhnd, &[4096, 64], None).unwrap();
    let problem = elsa_core::attention::Spec::new(DType::F32, view, view, view, view).check().unwrap();
    for present in present() {
        let plan = engine(present.backend, 2).plan(&problem, &PlanOptions::default()).unwrap();
        let splits = plan.gpu_choice().map_or(1, |choice| choice.splits);
        assert!(plan.workspace_bytes() <= splits * (1280 << 10), "{} bytes", plan.workspace_bytes());
    }
}

/// Checks that a packed sequence has the same bits alone and among others, for any number of queries.
#[test]
fn a_packed_sequence_does_not_depend_on_its_neighbours() {
    for present in present() {
        let engine = engine(present.backend, 2);
        let packed = Some(vec![(1, 150), (2, 64), (9, 9), (40, 20)]);
        let whole = Params { packed, ..Params::plain(0, 0, 24, 20) }.build("whole");
        let mut part = whole.clone();
        let first = |view: View, n: usize| {
            let [b, h, _, d] = view.shape();
            View::new("x", [b, h, n, d], view.strides()).unwrap()
        };
        (part.spec.query, part.spec.output) = (first(whole.spec.query, 1), first(whole.spec.output, 1));
        (part.spec.key, part.spec.value) = (first(whole.spec.key, 150), first(whole.spec.value, 150));
        part.spec.packed = Some(1);
        part.cu = Some((vec![0, 1], vec![0, 150]));
        let (all, alone) = (run(&engine, &whole, None), run(&engine, &part, None));
        for x in 0..20 {
            let (a, b) = (all.output.get(x), alone.output.get(x));
            assert_eq!(a.to_bits(), b.to_bits(), "{} column {x}", engine.kernel());
        }
    }
}
