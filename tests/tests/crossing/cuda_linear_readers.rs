//! Tests several query heads (readers) per state on the GPU back end: a block computes the state once, and every output
//! has the bits that it has when the state is computed separately for each reader.

use elsa_core::dtype::DType;
use elsa_core::linear::{Direction, Form, Rule};
use elsa_oracle::cases::Data;
use elsa_oracle::gpu_engine;
use elsa_oracle::linear::{Case, GateKind, LinearOutputs, Packing, Params, RULES};
use elsa_runtime::{Backend, Engine, Fallback, LinearPlanOptions};

fn of(form: Form) -> LinearPlanOptions {
    LinearPlanOptions::default().form(form)
}

/// Runs a case, and checks that its states are computed once for all readers if `shares`, otherwise once per reader.
fn run(engine: &Engine, case: &Case, form: Form, shares: bool) -> LinearOutputs {
    let plan = engine.linear_plan(&case.problem, &of(form)).unwrap();
    let kernel = plan.kernel_of(Backend::Cuda);
    let choice = plan.gpu_choice().unwrap();
    assert_eq!(
        (choice.shares, kernel.starts_with("linear_share")),
        (shares, shares),
        "{kernel} {}",
        case.name
    );
    case.run(&plan, &mut plan.workspace().unwrap()).0
}

/// Returns `params` with as many heads as the device needs to compute states once for all readers.
fn full(engine: &Engine, mut params: Params, options: &LinearPlanOptions) -> Params {
    loop {
        let plan = engine.linear_plan(&params.build().problem, options).unwrap();
        if plan.gpu_choice().unwrap().shares {
            return params;
        }
        params.heads = params.heads.map(|heads| 2 * heads);
        assert!(params.heads[0] <= 4096, "{params:?}");
    }
}

/// Returns the case with only query head `reader` of each state.
fn of_reader(params: &Params, case: &Case, reader: usize) -> Case {
    let [heads, key_heads, states] = params.heads;
    let alone = Params { heads: [states, key_heads, states], ..params.clone() }.build();
    let row = params.tokens * params.dims[0];
    let mut query = Data::filled(params.dtype, params.batch * states * row, 0.0);
    for at in 0..params.batch * states {
        let (batch, state) = (at / states, at % states);
        let from = batch * heads + state * (heads / states) + reader;
        (0..row).for_each(|i| query.set(at * row + i, case.query.get(from * row + i)));
    }
    let name = format!("reader {reader} of {}", case.name);
    Case { name, problem: alone.problem, query, ..case.clone() }
}

/// Checks that outputs and states have the bits that they have with a single reader per state.
fn compare(engine: &Engine, params: &Params, form: Form) {
    let case = params.build();
    let [heads, _, states] = params.heads;
    let (readers, answers) = (heads / states, params.tokens * params.dims[1]);
    let shared = run(engine, &case, form, true);
    for reader in [0, readers / 2, readers - 1] {
        let of_one = of_reader(params, &case, reader);
        let alone = run(engine, &of_one, form, false);
        for at in 0..params.batch * states {
            let from = (at / states * heads + at % states * readers + reader) * answers;
            let same = |i: usize| {
                shared.output.get(from + i).to_bits() == alone.output.get(at * answers + i).to_bits()
            };
            assert!((0..answers).all(same), "{form:?} {}", of_one.name);
        }
        let bits = |found: &LinearOutputs| {
            found.present.as_ref().map(|all| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        };
        assert!(bits(&shared) == bits(&alone), "the states of {form:?} {}", of_one.name);
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn a_state_is_computed_once_and_changes_no_bit() {
    let engine = gpu_engine(Fallback::Fail);
    let rules = [
        (Rule::Linear, false),
        (Rule::Gated, true),
        (Rule::Delta, false),
        (Rule::GatedDelta, false),
        (Rule::GatedDelta, true),
    ];
    for (n, (rule, per_dim)) in rules.into_iter().enumerate() {
        // The head sizes select kernels of every size. The readers of a state fill a tile of queries in some cases
        // only.
        for (m, dims) in [[12, 36], [100, 5]].into_iter().enumerate() {
            for form in [Form::Recurrent, Form::FusedChunk] {
                let heads = [[6, 1, 2], [16, 1, 1], [10, 2, 2]][(n + m) % 3];
                let mut params = Params { per_dim, heads, past: true, ..Params::plain(rule, 35, dims) };
                params.direction =
                    [Direction::Forward, Direction::Reverse, Direction::Bidirectional][(n + m) % 3];
                params.past = params.direction != Direction::Bidirectional;
                params.in_place = params.past && n % 2 == 0;
                params.dtype = [DType::F32, DType::F16][(n + m) % 2];
                params.normalize = (m == 1 || n == 3).then_some(1e-6);
                // Some gates make chunks go token by token.
                params.gates = [GateKind::Mild, GateKind::Clearing, GateKind::Hard][(n + m) % 3];
                compare(&engine, &full(&engine, params, &of(form)), form);
            }
        }
    }
}

/// Checks that states are computed once per reader if a state has more readers than a tile has rows, or if the device
/// has room for the additional work.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn who_shares_a_state() {
    let engine = gpu_engine(Fallback::Fail);
    for heads in [[17 * 64, 64, 64], [2, 1, 1], [64, 64, 128]] {
        let case = Params { heads, batch: 2, ..Params::plain(Rule::Gated, 3, [4, 4]) }.build();
        run(&engine, &case, Form::Recurrent, false);
    }
}

/// Compares outputs with the recurrence in f64, for different layouts, for packed sequences (some of them computed
/// token by token), and for queries that are not finite. Queries of one reader affect no other reader and no state.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn readers_do_not_know_of_each_other() {
    let engine = gpu_engine(Fallback::Fail);
    let default = LinearPlanOptions::default();
    for (n, (rule, per_dim)) in [(Rule::GatedDelta, false), (Rule::Gated, true)].into_iter().enumerate() {
        let mut params =
            Params { per_dim, heads: [10, 2, 2], past: true, ..Params::plain(rule, 140, [8, 40]) };
        (params.packing, params.in_place) = ([Packing::Gaps, Packing::Tokens][n], n == 0);
        params.packed = Some(vec![0, 3, 3, 70, 90, 140]);
        let case = full(&engine, params, &default).build();
        let plan = engine.linear_plan(&case.problem, &default).unwrap();
        let form = plan.gpu_choice().unwrap().form;
        assert_eq!(form, Form::FusedChunk);
        case.check_on(&engine, &default);
        // In chunks with such queries, the products of the other readers stay finite.
        for form in [Form::Recurrent, Form::FusedChunk] {
            let plain = Params { per_dim, heads: [5, 1, 1], past: true, ..Params::plain(rule, 35, [8, 8]) };
            let params = full(&engine, plain, &of(form));
            let mut case = params.build();
            for (head, token, x) in [(1, 3, f32::INFINITY), (3, 20, f32::NAN), (4, 20, f32::INFINITY)] {
                case.query.set((head * 35 + token) * 8 + 5, x);
            }
            let plan = engine.linear_plan(&case.problem, &of(form)).unwrap();
            let answer = case.answer(|tokens| plan.executed_of(Backend::Cuda, tokens));
            let found = run(&engine, &case, form, true);
            found.check(&case, &answer);
            let rows = found.rows(&case);
            let strange = |head: usize, token: usize| {
                rows[(head * 35 + token) * 8..][..8].iter().any(|x| !x.is_finite())
            };
            for (head, token) in (0..5).flat_map(|head| (0..35).map(move |token| (head, token))) {
                assert_eq!(
                    strange(head, token),
                    matches!((head, token), (1, 3) | (3 | 4, 20)),
                    "{head} {token}"
                );
            }
        }
    }
}

/// Runs keys with more dims than a tile has, token by token.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn keys_of_many_dims() {
    let engine = gpu_engine(Fallback::Fail);
    let mut n = 0;
    for (rule, per_dim) in RULES {
        for direction in Direction::ALL {
            n += 1;
            let key_dim = [257, 300, 1000, 384][n % 4];
            let dims =
                [if per_dim { [129, 200, 256, 513][n % 4] } else { key_dim }, [9, 12, 3, 16][n / 2 % 4]];
            let mut params = Params { per_dim, direction, ..Params::plain(rule, 19, dims) };
            params.heads = [[1, 1, 1], [6, 1, 2], [1, 1, 2], [2, 2, 2]][n / 3 % 4];
            params.dtype = [DType::F32, DType::F16, DType::Bf16][n % 3];
            params.past = direction != Direction::Bidirectional;
            params.in_place = params.past && n % 5 < 2;
            params.normalize = (n % 3 == 1).then_some(1e-6);
            params.packing = [Packing::Heads, Packing::Gaps][n % 2];
            params.gates = [GateKind::Mild, GateKind::Clearing, GateKind::Hard][n % 3];
            params.packed = (n % 4 == 2).then(|| vec![0, 0, 7, 19]);
            params.batch = if n % 4 == 1 { 2 } else { 1 };
            let case = params.build();
            let plan = engine.linear_plan(&case.problem, &LinearPlanOptions::default()).unwrap();
            assert!(plan.kernel_of(Backend::Cuda).starts_with("linear_wide"), "{}", case.name);
            let answer = case.answer(|tokens| plan.executed_of(Backend::Cuda, tokens));
            let mut workspace = plan.workspace().unwrap();
            let [first, second] = [0, 1].map(|_| case.run(&plan, &mut workspace).0);
            first.check(&case, &answer);
            assert!(first.bits() == second.bits(), "{}", case.name);
        }
    }
    // Contents that a gate of −∞ clears may be NaN, and the padding rows of a key contribute nothing.
    for per_dim in [false, true] {
        let mut case = Params { per_dim, past: true, ..Params::plain(Rule::GatedDelta, 9, [300, 4]) }.build();
        if let Some(past) = &mut case.past {
            past[..4].fill(f32::NAN);
        }
        case.value.set(4, f32::INFINITY);
        if let Some(decay) = &mut case.decay {
            let width = if per_dim { 300 } else { 1 };
            (0..width).for_each(|x| decay.set(5 * width + x, f32::NEG_INFINITY));
        }
        let rows = case.check_on(&engine, &LinearPlanOptions::default()).0.rows(&case);
        assert!(rows[..5 * 4].iter().any(|x| x.is_nan()) && rows[5 * 4..].iter().all(|x| x.is_finite()));
    }
}
