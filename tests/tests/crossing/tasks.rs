//! Tests the tasks of quorums on every back end. Their states merge into the result of the entire problem, with its
//! masks, lengths and windows. A task gives the same bits if its tensors contain only the tokens of the task.

use elsa_core::argument::ArgumentError;
use elsa_core::attention::{Alignment, Inputs, MaskElements, MaskKind, MaskView, StateOut, Window};
use elsa_core::dtype::DType;
use elsa_core::quorum::{Division, Run, Task, TaskPath, Tree};
use elsa_core::view::{Layout, View};
use elsa_oracle::cases::{Buffers, Case, Data, MaskData, MaskParams, Params};
use elsa_oracle::strides::far_case;
use elsa_oracle::{SLOW, engines};
use elsa_runtime::{
    BindError, Engine, EngineOptions, PlanError, PlanOptions, RowStates, RunError, TaskMerge, TaskPlan,
    TaskReport, TaskTokens,
};

fn division(chunks: &[usize]) -> Division {
    Division::new(chunks).unwrap()
}

fn options() -> PlanOptions {
    PlanOptions::default().all_workers(true)
}

fn compute(plan: &mut TaskPlan, case: &Case, inputs: &Inputs<'_>) -> (RowStates, TaskReport) {
    let rows = case.spec.query.batch() * case.spec.query.heads() * plan.task().query_tokens();
    let mut states = RowStates::empty(rows, case.spec.value.dim()).unwrap();
    for x in states.m.iter_mut().chain(&mut states.s).chain(&mut states.w) {
        *x = f32::NAN;
    }
    let out = StateOut { m: &mut states.m, s: &mut states.s, w: &mut states.w };
    let report = plan.run(inputs, out).unwrap();
    assert!(
        report.fallback.is_none() && report.backend == plan.plans().first().map(elsa_runtime::Plan::backend)
    );
    (states, report)
}

/// Returns the positions that the tokens of `runs` have in the entire sequence. They are in the order of the task.
pub fn places(runs: &[Run]) -> Vec<usize> {
    runs.iter().flat_map(|run| run.span().start..run.span().start + run.span().tokens).collect()
}

/// Returns the case with only the tokens of `task`, in the layout bhnd without gaps.
pub fn gathered(case: &Case, task: &Task) -> Case {
    let (rows, columns) = (places(task.queries()), places(task.keys()));
    let mut small = case.clone();
    let pick = |view: &mut View, data: &mut Data, tokens: &[usize]| {
        let [b, h, _, d] = view.shape();
        let dense = View::dense("x", Layout::Bhnd, &[b, h, tokens.len(), d], None).unwrap();
        let mut picked = Data::filled(case.spec.dtype, dense.extent(), 0.0);
        for (at, (b, h, t)) in (0..b)
            .flat_map(|b| (0..h).flat_map(move |h| (0..tokens.len()).map(move |t| (b, h, t))))
            .enumerate()
        {
            for x in 0..d {
                picked.set(at * d + x, data.get(view.row(b, h, tokens[t]) + x));
            }
        }
        (*view, *data) = (dense, picked);
    };
    pick(&mut small.spec.query, &mut small.q, &rows);
    pick(&mut small.spec.key, &mut small.k, &columns);
    pick(&mut small.spec.value, &mut small.v, &columns);
    let [b, h, _, _] = case.spec.output.shape();
    let dv = case.spec.value.dim();
    small.spec.output = View::dense("y", Layout::Bhnd, &[b, h, rows.len(), dv], None).unwrap();
    if let (Some(view), Some(mask)) = (&case.spec.mask, &case.mask) {
        let [mb, mh, mq, mk] = view.shape();
        let axis = |whole: usize, picked: &[usize]| if whole == 1 { vec![0] } else { picked.to_vec() };
        let (mask_rows, mask_columns) = (axis(mq, &rows), axis(mk, &columns));
        let dims = [mb, mh, mask_rows.len(), mask_columns.len()];
        small.spec.mask = Some(MaskView::dense(view.kind(), &dims).unwrap());
        let mut at = Vec::new();
        for head in 0..mb * mh {
            for row in &mask_rows {
                // Columns beyond the mask's last axis are not attended.
                at.extend(mask_columns.iter().map(|j| (*j < mk).then_some((head * mq + row) * mk + j)));
            }
        }
        small.mask = Some(match mask {
            MaskData::Bool(x) => MaskData::Bool(at.iter().map(|i| i.map_or(0, |i| x[i])).collect()),
            MaskData::Additive(x) => {
                let mut picked = Data::filled(x.elements().dtype(), at.len(), f32::NEG_INFINITY);
                at.iter().enumerate().for_each(|(to, i)| {
                    if let Some(i) = i {
                        picked.set(to, x.get(*i));
                    }
                });
                MaskData::Additive(picked)
            }
        });
    }
    small
}

/// Computes the tasks of `paths` one by one and merges them.
fn merged(engine: &Engine, case: &Case, division: &Division, paths: &[TaskPath]) -> (Buffers, [usize; 2]) {
    let problem = case.problem();
    let (queries, keys) = (case.spec.query.tokens(), case.spec.key.tokens());
    let sequences = case.spec.query.batch() * case.spec.query.heads();
    let mut merge = TaskMerge::new(sequences, queries, problem.value_dim(), paths.len()).unwrap();
    let (mut pairs, mut counts) = (0, [0; 2]);
    for (number, path) in paths.iter().enumerate() {
        let mut plan =
            TaskPlan::new(engine, &problem, division, path, TaskTokens::Whole, &options()).unwrap();
        let (states, report) = compute(&mut plan, case, &case.inputs());
        if number % 3 == 0 {
            let small = gathered(case, plan.task());
            let held = TaskTokens::Gathered { queries, keys };
            let mut alone =
                TaskPlan::new(engine, &small.problem(), division, path, held, &options()).unwrap();
            let (same, _) = compute(&mut alone, &small, &small.inputs());
            let bits = |states: &RowStates| -> Vec<u32> {
                states.m.iter().chain(&states.s).chain(&states.w).map(|x| x.to_bits()).collect()
            };
            assert_eq!(bits(&same), bits(&states), "{} {path} {case:?}", engine.kernel());
        }
        merge.push(plan.task().queries(), &states).unwrap();
        pairs += report.pairs;
        counts = [counts[0] + report.calls, counts[1] + report.skipped];
    }
    assert_eq!(pairs, queries as u128 * keys as u128);
    let whole = merge.finish();
    let mut buffers = case.buffers();
    whole.output(&case.spec.output, &mut buffers.output.elements_mut());
    buffers.lse = whole.log_sum_exp().collect();
    (buffers.m, buffers.s, buffers.w) = (whole.m, whole.s, whole.w);
    (buffers, counts)
}

fn check(engine: &Engine, case: &Case, division: &Division, paths: &[TaskPath]) -> [usize; 2] {
    let (buffers, counts) = merged(engine, case, division, paths);
    // The path has the additions of a block, of the blocks in a segment, of the merge tree, and of merging calls and
    // tasks.
    let additions = 64 + 8 + 12 + 8 + paths.len();
    let answer = case.naive().check_all(&buffers, additions);
    answer.unwrap_or_else(|e| panic!("{} {case:?}: {e}", engine.kernel()));
    counts
}

/// Returns the paths of all tasks at full depth.
pub fn all(division: &Division) -> Vec<TaskPath> {
    (0..division.tasks()).map(|number| division.path(number).unwrap()).collect()
}

fn cases() -> Vec<Case> {
    let heads = |n, d, dv| Params { heads: 4, kv_heads: 2, ..Params::plain(n, n, d, dv) };
    let (top, bottom) = (Some(Alignment::TopLeft), Some(Alignment::BottomRight));
    let window = |left, right| Window { left, right };
    let mask = |kind, dims: &[usize]| Some(MaskParams { kind, dims: dims.to_vec(), density: 0.6 });
    let (bool, added) = (MaskKind::Bool, MaskKind::Additive(DType::F32));
    vec![
        heads(61, 16, 24).build("plain"),
        Params { gain: 1000.0, ..heads(40, 16, 16) }.build("scores of a thousand"),
        Params { causal: top, ..heads(70, 32, 32) }.build("causal"),
        Params { causal: bottom, keys: 93, ..heads(50, 16, 16) }.build("fewer queries than keys"),
        Params { causal: bottom, keys: 31, ..heads(50, 16, 16) }.build("rows before every key"),
        Params { causal: top, window: window(Some(9), None), ..heads(80, 16, 16) }.build("a window behind"),
        Params { window: window(Some(7), Some(5)), layout: Layout::Bnhd, pad: 3, ..heads(66, 8, 8) }
            .build("a window around"),
        Params { causal: bottom, lengths: true, batch: 3, ..heads(45, 16, 16) }.build("lengths"),
        Params { mask: mask(bool, &[2, 4, 52, 52]), causal: top, batch: 2, ..heads(52, 16, 16) }
            .build("a mask"),
        Params { mask: mask(bool, &[2, 1, 1, 40]), batch: 2, ..heads(52, 16, 16) }
            .build("a short mask of keys"),
        Params { mask: mask(added, &[52, 52]), window: window(Some(30), None), ..heads(52, 16, 16) }
            .build("numbers"),
        Params {
            mask: mask(MaskKind::Additive(DType::F16), &[4, 52, 1]),
            dtype: DType::F16,
            causal: bottom,
            ..heads(52, 16, 16)
        }
        .build("half rows"),
        Params { softcap: Some(3.0), dtype: DType::Bf16, ..heads(33, 24, 16) }.build("a cap in bf16"),
    ]
}

#[test]
fn tasks_merge_into_the_whole() {
    let levels: &[&[usize]] = &[&[7], &[3, 3], &[13], &[7, 3]];
    for (i, case) in cases().into_iter().enumerate() {
        let division = division(levels[i % levels.len()]);
        for engine in engines(2) {
            let [calls, skipped] = check(&engine, &case, &division, &all(&division));
            assert!(calls > 0);
            if case.name == "causal" {
                assert!(skipped * 10 > calls * 3, "{calls} {skipped}");
            }
        }
    }
}

#[test]
fn few_tokens_none_and_more_than_chunks() {
    for n in [0, 1, 2, 6, 7, 8, 22] {
        for m in [n, 0, n + 3] {
            let params =
                Params { heads: 2, causal: Some(Alignment::BottomRight), ..Params::plain(n, m, 8, 8) };
            let case = params.build("few tokens");
            for engine in engines(1) {
                check(&engine, &case, &division(&[7]), &all(&division(&[7])));
                if n > 5 {
                    check(&engine, &case, &division(&[3, 7]), &all(&division(&[3, 7])));
                }
            }
        }
    }
}

#[test]
fn three_levels_and_a_hybrid_tree() {
    let case =
        Params { causal: Some(Alignment::TopLeft), heads: 2, ..Params::plain(97, 97, 16, 16) }.build("deep");
    let (three, two) = (division(&[3, 7, 3]), division(&[7, 3]));
    let mut paths: Vec<TaskPath> =
        ["0", "1", "2", "3", "4.0", "4.1", "4.2", "5", "6"].map(|x| x.parse().unwrap()).into();
    let tree = Tree::new(&two, &mut paths).unwrap();
    for engine in engines(2) {
        check(&engine, &case, &two, tree.paths());
        if !SLOW {
            check(&engine, &case, &three, &all(&three));
        }
    }
}

/// Checks that masked keys may contain NaN, and that a task does not read the tokens of other tasks.
#[test]
fn masked_keys_and_foreign_tokens_may_hold_nan() {
    let params = Params { heads: 2, batch: 2, lengths: true, ..Params::plain(30, 30, 8, 8) };
    let mut case = params.build("poisoned");
    let lengths = vec![17, 0];
    for (b, valid) in lengths.iter().enumerate() {
        for j in *valid as usize..30 {
            case.fill_key(b, j, f32::NAN);
            case.fill_value(b, j, f32::NAN);
        }
    }
    case.lengths = Some(lengths);
    let seven = division(&[7]);
    for engine in engines(2) {
        check(&engine, &case, &seven, &all(&seven));
        let path = "3".parse().unwrap();
        let mut plan =
            TaskPlan::new(&engine, &case.problem(), &seven, &path, TaskTokens::Whole, &options()).unwrap();
        let (clean, _) = compute(&mut plan, &case, &case.inputs());
        let held = places(plan.task().keys());
        let mut foreign = case.clone();
        for j in (0..30).filter(|j| !held.contains(j)) {
            (0..2).for_each(|b| foreign.fill_value(b, j, f32::NAN));
        }
        let (same, _) = compute(&mut plan, &foreign, &foreign.inputs());
        assert_eq!(same, clean);
    }
}

#[test]
fn the_bits_do_not_depend_on_threads_or_repetition() {
    let case = Params { heads: 3, ..Params::plain(150, 150, 32, 16) }.build("bits");
    let seven = division(&[7]);
    for (one, many) in engines(1).into_iter().zip(engines(3)) {
        let bits = |engine: &Engine| {
            merged(engine, &case, &seven, &all(&seven)).0.w.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let want = bits(&one);
        assert_eq!(bits(&one), want, "{}: repetition", one.kernel());
        assert_eq!(bits(&many), want, "{}: threads", one.kernel());
    }
}

/// The stride of an axis with fewer than two elements may be any number, so it must not change a bit, and no arithmetic
/// with it may overflow.
#[test]
fn strides_of_single_elements_do_not_matter() {
    let seven = division(&[7]);
    for (turn, [queries, keys]) in [[1, 1], [1, 9], [9, 1]].into_iter().enumerate() {
        let params = Params { heads: 2, kv_heads: 1, ..Params::plain(queries, keys, 8, 8) };
        let case = params.build("single elements");
        for engine in engines(1) {
            let [found, want] = [&far_case(&case, turn), &case]
                .map(|case| merged(&engine, case, &seven, &all(&seven)).0.bits());
            assert_eq!(found, want, "{} {case:?}", engine.kernel());
        }
    }
}

#[test]
fn what_a_task_does_not_take_is_refused() {
    let engine = Engine::new(&EngineOptions::default().threads(1)).unwrap();
    let seven = division(&[7]);
    let path: TaskPath = "3".parse().unwrap();
    let plan = |case: &Case, held| TaskPlan::new(&engine, &case.problem(), &seven, &path, held, &options());
    let past = Params { past: Some(3), ..Params::plain(9, 9, 8, 8) }.build("past");
    let refused = |result: Result<TaskPlan, PlanError>, want: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(want) && error.contains("allowed"), "{error}");
    };
    refused(plan(&past, TaskTokens::Whole), "past_k");
    let plain = Params::plain(21, 21, 8, 8).build("plain");
    refused(
        plan(&plain, TaskTokens::Gathered { queries: 21, keys: 21 }),
        "tokens 21; allowed: 9, as the task has",
    );
    refused(
        TaskPlan::new(
            &engine,
            &plain.problem(),
            &seven,
            &"7".parse().unwrap(),
            TaskTokens::Whole,
            &options(),
        ),
        "allowed: 0 to 6",
    );
    let mut task = plan(&plain, TaskTokens::Whole).unwrap();
    let (mut m, mut s, mut w) = (vec![7.0; 9], vec![7.0; 9], vec![7.0; 71]);
    let out = StateOut { m: &mut m, s: &mut s, w: &mut w };
    let error = task.run(&plain.inputs(), out).unwrap_err();
    assert!(matches!(
        error,
        RunError::Bind(BindError::Problem(ArgumentError::Mismatch {
            argument: "state_w",
            found: 71,
            allowed: 72,
            ..
        }))
    ));
    let mask = MaskElements::Bool(&[1; 21]);
    let inputs = Inputs { mask: Some(mask), ..plain.inputs() };
    let out = StateOut { m: &mut m, s: &mut s, w: &mut [0.0; 72] };
    assert!(task.run(&inputs, out).is_err());
    assert!(m.iter().chain(&s).all(|x| *x == 7.0), "refused calls write nothing");
    let mut merge = TaskMerge::new(1, 20, 8, 7).unwrap();
    let states = RowStates::empty(9, 8).unwrap();
    let first = Task::new(&seven, &"1".parse().unwrap(), 21, 21).unwrap();
    assert!(merge.push(first.queries(), &states).is_ok());
    // No run produces a negative sum.
    let mut forged = states.clone();
    (forged.m[3], forged.s[3]) = (0.0, -1.0);
    let refused = merge.push(first.queries(), &forged);
    let found = ArgumentError::State {
        argument: "state_s",
        row: 3,
        found: -1.0,
        allowed: "a positive number or NaN",
    };
    assert_eq!(refused, Err(found));
    let last = Task::new(&seven, &"6".parse().unwrap(), 21, 21).unwrap();
    assert!(merge.push(last.queries(), &states).is_err(), "tokens beyond the whole");
    assert!(merge.push(&last.queries()[1..], &states).is_err(), "too few rows");
}
