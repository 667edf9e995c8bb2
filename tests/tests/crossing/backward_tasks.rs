//! Tests the backward pass of quorum tasks. The gradient shares of all tasks must add up to the gradients of the entire
//! problem, within the bound. Each share is computed from the tokens of its task alone.

use crate::tasks::{all, gathered, places};
use elsa_core::argument::ArgumentError;
use elsa_core::attention::backward::{
    BackwardInputs, BackwardProblem, BackwardSpec, Statistics, Structure, scalar,
};
use elsa_core::attention::{Alignment, Chunk, Inputs, Lengths, MaskKind, Window};
use elsa_core::dtype::{DType, Elements};
use elsa_core::quorum::{Division, Task, TaskPath, Tree};
use elsa_core::view::{Layout, View};
use elsa_oracle::cases::{Case, Data, MaskParams, Params};
use elsa_oracle::gradients::{GradientBuffers, GradientCase};
use elsa_oracle::strides::far_case;
use elsa_oracle::{SLOW, cpu_engines};
use elsa_runtime::{
    BackwardPlanOptions, BackwardTaskPlan, BackwardTaskReport, Engine, EngineOptions, GradientMerge,
    GradientSizes, PlanError, TaskGradients, TaskTokens,
};

fn division(chunks: &[usize]) -> Division {
    Division::new(chunks).unwrap()
}

fn options() -> BackwardPlanOptions {
    BackwardPlanOptions::default().all_workers(true)
}

fn plan(
    engine: &Engine,
    given: &GradientCase,
    division: &Division,
    path: &TaskPath,
    held: TaskTokens,
) -> BackwardTaskPlan {
    BackwardTaskPlan::new(engine, &given.problem, division, path, held, &options()).unwrap()
}

fn run(plan: &mut BackwardTaskPlan, inputs: &BackwardInputs<'_>) -> (TaskGradients, BackwardTaskReport) {
    let mut shares = TaskGradients::zeros(&plan.sizes()).unwrap();
    for x in shares.query.iter_mut().chain(&mut shares.key).chain(&mut shares.value) {
        *x = f32::NAN;
    }
    let report = plan.run(inputs, shares.borrow()).unwrap();
    (shares, report)
}

fn bits(shares: &TaskGradients) -> Vec<u32> {
    shares.query.iter().chain(&shares.key).chain(&shares.value).map(|x| x.to_bits()).collect()
}

/// Returns the data that a board has if it stores only the tokens of `task`.
fn alone(given: &GradientCase, task: &Task) -> GradientCase {
    let case: Case = gathered(&given.case, task);
    let rows = places(task.queries());
    let [b, h, n, dv] = given.case.spec.output.shape();
    let problem = BackwardProblem::new(&case.problem()).unwrap();
    let (view, up) = (given.case.spec.output, given.problem.spec().upstream);
    let mut output = vec![f32::NAN; case.spec.output.extent()];
    let mut upstream = Data::filled(case.spec.dtype, problem.spec().upstream.extent(), f32::NAN);
    let mut statistics = [(); 3].map(|()| Vec::new());
    for (batch, head) in (0..b).flat_map(|b| (0..h).map(move |h| (b, h))) {
        for (to, token) in rows.iter().enumerate() {
            for x in 0..dv {
                output[case.spec.output.row(batch, head, to) + x] =
                    given.output[view.row(batch, head, *token) + x];
                let value = given.upstream.get(up.row(batch, head, *token) + x);
                upstream.set(problem.spec().upstream.row(batch, head, to) + x, value);
            }
            for (to, from) in statistics.iter_mut().zip([&given.m, &given.s, &given.lse]) {
                to.push(from[(batch * h + head) * n + token]);
            }
        }
    }
    let [m, s, lse] = statistics;
    GradientCase { case, problem, output, upstream, m, s, lse }
}

/// Adds the gradient shares of the tasks of `paths`, in the views of the gradients. Returns the sums, and the
/// parameters of their error bound.
fn merged(
    engine: &Engine,
    given: &GradientCase,
    division: &Division,
    paths: &[TaskPath],
) -> (GradientBuffers, Structure) {
    let spec = *given.problem.spec();
    let [[b, h, queries, dim], [_, kv_heads, keys, value_dim]] = [spec.query.shape(), spec.value.shape()];
    let sizes =
        GradientSizes { query_sequences: b * h, key_sequences: b * kv_heads, queries, keys, dim, value_dim };
    let mut merge = GradientMerge::new(&sizes, paths.len()).unwrap();
    let mut structure = scalar::structure(&given.problem);
    let mut pairs = 0;
    for (number, path) in paths.iter().enumerate() {
        let mut plan = plan(engine, given, division, path, TaskTokens::Whole);
        let (shares, report) = run(&mut plan, &given.inputs());
        if number % 3 == 0 {
            let small = alone(given, plan.task());
            let held = TaskTokens::Gathered { queries, keys };
            let mut other = self::plan(engine, &small, division, path, held);
            let (same, _) = run(&mut other, &small.inputs());
            assert_eq!(bits(&same), bits(&shares), "{} {path} {:?}", engine.backend(), given.case);
        }
        merge.push(plan.task(), &shares).unwrap();
        pairs += report.pairs;
        if let Some(of_task) = plan.structure(scalar::structure(&given.problem).forward) {
            let additions =
                structure.additions.max(of_task.additions + GradientMerge::additions(paths.len()));
            structure = Structure { additions, ..of_task };
        }
    }
    assert_eq!(pairs, queries as u128 * keys as u128);
    let sums = merge.finish();
    let mut found = GradientBuffers::room(&given.problem);
    let GradientBuffers { query, key, value } = &mut found;
    for (view, to, from) in
        [(spec.query, query, &sums.query), (spec.key, key, &sums.key), (spec.value, value, &sums.value)]
    {
        TaskGradients::lay(from, &view, to);
    }
    (found, structure)
}

/// Computes the gradients of a case as seven tasks, with `c = 7` chunks.
pub fn of_seven_tasks(engine: &Engine, given: &GradientCase) -> GradientBuffers {
    merged(engine, given, &division(&[7]), &all(&division(&[7]))).0
}

fn check(engine: &Engine, given: &GradientCase, division: &Division, paths: &[TaskPath]) {
    let (found, structure) = merged(engine, given, division, paths);
    let exact = given.exact();
    exact.check(&found, &structure).unwrap_or_else(|e| panic!("{} {:?}: {e}", engine.backend(), given.case));
    // If scores are of order one, the errors of the sums are similar to those of the gradients in memory.
    let (memory, own) = given.engine(engine, given.inputs(), None);
    let near = exact.check(&memory, &own).unwrap();
    let apart = exact.check(&found, &structure).unwrap();
    assert!(apart <= 4.0 * near + 5e-7, "{} {:?}: {apart:e} {near:e}", engine.backend(), given.case);
}

fn cases() -> Vec<Case> {
    let heads = |n, d, dv| Params { heads: 4, kv_heads: 2, ..Params::plain(n, n, d, dv) };
    let (top, bottom) = (Some(Alignment::TopLeft), Some(Alignment::BottomRight));
    let window = |left, right| Window { left, right };
    let mask = |kind, dims: &[usize]| Some(MaskParams { kind, dims: dims.to_vec(), density: 0.7 });
    let (bool, added) = (MaskKind::Bool, MaskKind::Additive(DType::F32));
    vec![
        heads(61, 16, 24).build("plain"),
        Params { causal: top, window: window(Some(20), None), batch: 2, ..heads(70, 12, 8) }
            .build("a window behind"),
        Params { causal: bottom, keys: 93, softcap: Some(2.0), ..heads(50, 16, 16) }.build("fewer queries"),
        Params { window: window(Some(7), Some(5)), layout: Layout::Bnhd, pad: 3, ..heads(66, 8, 8) }
            .build("a window around"),
        Params { causal: bottom, lengths: true, batch: 3, ..heads(45, 16, 16) }.build("lengths"),
        Params { mask: mask(bool, &[2, 4, 52, 52]), causal: top, batch: 2, ..heads(52, 8, 16) }
            .build("a mask"),
        Params { mask: mask(added, &[4, 1, 52]), dtype: DType::F16, ..heads(52, 16, 8) }.build("halves"),
        Params { scale: Some(1.0), gain: 1000.0, ..heads(40, 4, 8) }.build("scores of a thousand"),
    ]
}

#[test]
fn tasks_add_up_to_the_gradients() {
    let levels: &[&[usize]] = &[&[7], &[3, 3], &[13], &[7, 3]];
    let count = if SLOW { 3 } else { usize::MAX };
    for (i, case) in cases().into_iter().enumerate().take(count) {
        let division = division(levels[i % levels.len()]);
        let given = GradientCase::of(&case).unwrap();
        for engine in cpu_engines(2) {
            check(&engine, &given, &division, &all(&division));
        }
    }
}

#[test]
fn few_tokens_none_and_a_hybrid_tree() {
    for (n, m) in [(0, 0), (0, 5), (5, 0), (1, 1), (6, 9), (22, 19)] {
        let causal = Some(Alignment::BottomRight);
        let case = Params { heads: 2, causal, ..Params::plain(n, m, 8, 8) }.build("few tokens");
        for engine in cpu_engines(1) {
            check(&engine, &GradientCase::of(&case).unwrap(), &division(&[7]), &all(&division(&[7])));
        }
    }
    let causal = Some(Alignment::TopLeft);
    let case = Params { causal, heads: 4, kv_heads: 2, ..Params::plain(97, 97, 16, 12) }.build("hybrid");
    let two = division(&[7, 3]);
    let mut paths: Vec<TaskPath> =
        ["0", "1", "2", "3", "4.0", "4.1", "4.2", "5", "6"].map(|x| x.parse().unwrap()).into();
    let tree = Tree::new(&two, &mut paths).unwrap();
    for engine in cpu_engines(2) {
        check(&engine, &GradientCase::of(&case).unwrap(), &two, tree.paths());
    }
}

#[test]
fn the_bits_do_not_depend_on_threads_or_foreign_tokens() {
    let case = Params { heads: 3, ..Params::plain(150, 150, 16, 16) }.build("bits");
    let (given, seven) = (GradientCase::of(&case).unwrap(), division(&[7]));
    let path = "3".parse().unwrap();
    for (one, many) in cpu_engines(1).into_iter().zip(cpu_engines(3)) {
        let mut plan = self::plan(&one, &given, &seven, &path, TaskTokens::Whole);
        let (want, _) = run(&mut plan, &given.inputs());
        assert_eq!(bits(&run(&mut plan, &given.inputs()).0), bits(&want), "repetition");
        let mut others = self::plan(&many, &given, &seven, &path, TaskTokens::Whole);
        assert_eq!(bits(&run(&mut others, &given.inputs()).0), bits(&want), "threads");
        let (rows, columns) = (places(plan.task().queries()), places(plan.task().keys()));
        let mut foreign = given.clone();
        for j in (0..150).filter(|j| !columns.contains(j)) {
            foreign.case.fill_key(0, j, f32::NAN);
            foreign.case.fill_value(0, j, f32::NAN);
        }
        for (i, head) in (0..150).filter(|i| !rows.contains(i)).flat_map(|i| (0..3).map(move |h| (i, h))) {
            let at = foreign.problem.spec().upstream.row(0, head, i);
            (0..16).for_each(|x| foreign.upstream.set(at + x, f32::NAN));
            (foreign.m[head * 150 + i], foreign.s[head * 150 + i]) = (f32::NAN, f32::NAN);
        }
        assert_eq!(bits(&run(&mut plan, &foreign.inputs()).0), bits(&want), "foreign tokens");
        // Changing the statistics of a row of the task changes the gradients.
        foreign.m[rows[0]] += 1.0;
        assert_ne!(bits(&run(&mut plan, &foreign.inputs()).0), bits(&want));
        let lse = BackwardInputs { statistics: Statistics::LogSumExp(&given.lse), ..given.inputs() };
        let near = run(&mut plan, &lse).0;
        let apart = near.query.iter().zip(&want.query).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart > 0.0 && apart < 1e-4, "{apart:e}");
    }
}

/// Checks that core's scalar fallback computes gradient shares tile by tile, without an allocator.
#[test]
fn the_scalar_core_computes_shares_tile_by_tile() {
    let causal = Some(Alignment::BottomRight);
    let params =
        Params { heads: 4, kv_heads: 2, batch: 2, causal, lengths: true, ..Params::plain(33, 41, 8, 12) };
    let given = GradientCase::of(&params.build("tiles")).unwrap();
    let spec = *given.problem.forward().spec();
    let seven = division(&[7]);
    let mut sums = GradientBuffers::room(&given.problem);
    for data in [&mut sums.query, &mut sums.key, &mut sums.value] {
        data.fill(0.0);
    }
    let mut structure = scalar::structure(&given.problem);
    for path in all(&seven) {
        let task = Task::new(&seven, &path, 33, 41).unwrap();
        for (queries, keys) in task.pairs() {
            let of = |view: &View, tokens| {
                let [b, h, _, d] = view.shape();
                View::new("x", [b, h, tokens, d], view.strides()).unwrap()
            };
            let tile = spec
                .query(of(&spec.query, queries.tokens))
                .key(of(&spec.key, keys.tokens))
                .value(of(&spec.value, keys.tokens))
                .output(of(&spec.output, queries.tokens));
            let problem = BackwardSpec {
                upstream: of(&given.problem.spec().upstream, queries.tokens),
                ..BackwardSpec::new(&tile.check().unwrap()).unwrap()
            };
            let problem = problem.check(&tile.check().unwrap()).unwrap();
            fn from<'a>(data: Elements<'a>, start: usize) -> Elements<'a> {
                let Elements::F32(x) = data else { panic!() };
                Elements::F32(&x[start..])
            }
            let rows = |data: &[f32]| -> Vec<f32> {
                data.chunks_exact(33)
                    .flat_map(|row| row[queries.start..][..queries.tokens].to_vec())
                    .collect()
            };
            let (m, s) = (rows(&given.m), rows(&given.s));
            let whole = given.inputs();
            let chunk =
                Chunk { key_offset: keys.start, key_total: 41, query_offset: queries.start, query_total: 33 };
            let inputs = BackwardInputs {
                forward: Inputs {
                    query: from(whole.forward.query, spec.query.row(0, 0, queries.start)),
                    key: from(whole.forward.key, spec.key.row(0, 0, keys.start)),
                    value: from(whole.forward.value, spec.value.row(0, 0, keys.start)),
                    lengths: Lengths { chunk: Some(chunk), ..whole.forward.lengths },
                    ..whole.forward
                },
                output: from(whole.output, spec.output.row(0, 0, queries.start)),
                upstream: from(whole.upstream, given.problem.spec().upstream.row(0, 0, queries.start)),
                statistics: Statistics::State { m: &m, s: &s },
            };
            let mut part = GradientBuffers::room(&problem);
            let mut scratch = vec![f32::NAN; scalar::scratch_len(&problem).unwrap()];
            scalar::run(&problem, &inputs, &mut part.gradients(), &mut scratch).unwrap();
            structure.additions += 1;
            let at = [queries.start, keys.start];
            sums.gradients().add(&given.problem, &part.gradients(), &problem, at).unwrap();
            // These rows would extend beyond the end of the entire gradients.
            let before = sums.clone();
            let error = sums
                .gradients()
                .add(&given.problem, &part.gradients(), &problem, [34 - queries.tokens, keys.start])
                .unwrap_err();
            let same = ArgumentError::Mismatch {
                argument: "d_q",
                axis: "tokens",
                found: 34,
                allowed: 33,
                of: "the gradient",
            };
            assert!(error == same && sums == before, "{error}");
        }
    }
    given.exact().check(&sums, &structure).unwrap();
}

#[test]
fn what_is_not_the_tasks_is_refused_and_nothing_is_written() {
    let engine = Engine::new(&EngineOptions::default().threads(1)).unwrap();
    let (seven, path): (Division, TaskPath) = (division(&[7]), "3".parse().unwrap());
    let plain = GradientCase::of(&Params::plain(21, 21, 8, 8).build("plain")).unwrap();
    let of = |given: &GradientCase, path: &str, held| {
        let path: TaskPath = path.parse().unwrap();
        BackwardTaskPlan::new(&engine, &given.problem, &seven, &path, held, &options())
            .unwrap_err()
            .to_string()
    };
    let packed = Params { packed: Some(vec![(9, 9), (3, 4)]), ..Params::plain(0, 0, 8, 8) };
    assert!(
        of(&GradientCase::of(&packed.build("packed")).unwrap(), "3", TaskTokens::Whole)
            .contains("cu_seqlens_q")
    );
    let text = of(&plain, "3", TaskTokens::Gathered { queries: 21, keys: 21 });
    assert!(text.contains("tokens 21; allowed: 9, as the task has"), "{text}");
    assert!(of(&plain, "7", TaskTokens::Whole).contains("allowed: 0 to 6"));
    let small = options().budget(1000);
    let error = BackwardTaskPlan::new(&engine, &plain.problem, &seven, &path, TaskTokens::Whole, &small);
    assert!(matches!(error, Err(PlanError::Refused(_))));

    let mut task = plan(&engine, &plain, &seven, &path, TaskTokens::Whole);
    let sizes = task.sizes();
    let room = || {
        let mut room = TaskGradients::zeros(&sizes).unwrap();
        [&mut room.query, &mut room.key, &mut room.value].into_iter().for_each(|x| x.fill(7.0));
        room
    };
    let untouched = |x: &TaskGradients| x.query.iter().chain(&x.key).chain(&x.value).all(|x| *x == 7.0);
    for (of, argument) in ["d_q", "d_k", "d_v"].into_iter().enumerate() {
        let mut shares = room();
        [&mut shares.query, &mut shares.key, &mut shares.value].into_iter().nth(of).unwrap().pop();
        let error = task.run(&plain.inputs(), shares.borrow()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{argument}: elements 71; allowed: 72")), "{error}");
        assert!(untouched(&shares));
    }
    let (short, m) = ([0.0; 3], [0.0; 20]);
    let statistics = Statistics::State { m: &m, s: &plain.s };
    for (inputs, argument) in [
        (BackwardInputs { upstream: Elements::F32(&short), ..plain.inputs() }, "d_out: "),
        (BackwardInputs { output: Elements::F32(&short), ..plain.inputs() }, "out: "),
        (BackwardInputs { statistics, ..plain.inputs() }, "state_m: "),
    ] {
        let mut shares = room();
        let error = task.run(&inputs, shares.borrow()).unwrap_err().to_string();
        assert!(error.starts_with(argument) && untouched(&shares), "{error}");
    }

    let whole = GradientSizes { queries: 20, keys: 20, ..sizes };
    let mut merge = GradientMerge::new(&whole, 2).unwrap();
    let at = |path: &str| Task::new(&seven, &path.parse().unwrap(), 21, 21).unwrap();
    let shares = room();
    let refused = |merge: &mut GradientMerge, path: &str, shares: &TaskGradients| {
        merge.push(&at(path), shares).unwrap_err().to_string()
    };
    assert!(refused(&mut merge, "6", &shares).contains("task: 21; allowed: 0 to 20"));
    let mut less = room();
    less.value.pop();
    assert!(refused(&mut merge, "1", &less).contains("d_v: elements 71; allowed: 72"));
    merge.push(&at("1"), &shares).unwrap();
    merge.push(&at("1"), &shares).unwrap();
    assert!(refused(&mut merge, "1", &shares).contains("tasks: 3; allowed: 0 to 2"));
    let sums = merge.finish();
    assert!(sums.query.iter().chain(&sums.key).all(|x| *x == 0.0 || *x == 14.0));
    assert_eq!(sums.query.iter().filter(|x| **x == 14.0).count(), 72);
}

/// The stride of an axis with fewer than two elements may be any number, so it must not change a bit, and no arithmetic
/// with it may overflow.
#[test]
fn strides_of_single_elements_do_not_matter() {
    for (turn, [queries, keys]) in [[1, 1], [1, 9], [9, 1]].into_iter().enumerate() {
        let params = Params { heads: 2, kv_heads: 1, ..Params::plain(queries, keys, 8, 8) };
        let case = params.build("single elements");
        let [far, want] = [&far_case(&case, turn), &case].map(|case| GradientCase::of(case).unwrap());
        for engine in cpu_engines(1) {
            let [found, want] = [&far, &want].map(|given| of_seven_tasks(&engine, given).bits());
            assert_eq!(found, want, "{} {case:?}", engine.backend());
        }
    }
}
