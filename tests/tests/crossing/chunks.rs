//! Tests chunks of keys on every back end. The states of chunks that cover all keys merge into the state of the entire
//! sequence, with its causal diagonals, windows and lengths. Also tests calls without an output.

use elsa_core::argument::ArgumentError;
use elsa_core::attention::{
    Alignment, Chunk, Inputs, MaskKind, MaskView, Operand, Outputs, Problem, Spec, StateOut, Window,
    reference, scalar,
};
use elsa_core::dtype::{DType, Elements};
use elsa_core::random::Random;
use elsa_core::state::NaturalMerge;
use elsa_core::view::{Layout, View};
use elsa_oracle::cases::{Buffers, Case, Data, MaskData, MaskParams, Params};
use elsa_oracle::engines;
use elsa_oracle::random::seeded;
use elsa_runtime::{BindError, Engine, PlanOptions};
use std::ops::Range;

/// Softmax states of all rows.
#[derive(Clone, Debug, PartialEq)]
struct States {
    m: Vec<f32>,
    s: Vec<f32>,
    w: Vec<f32>,
}

impl States {
    fn of(problem: &Problem) -> States {
        let rows = |n: usize| vec![f32::NAN; problem.rows() * n];
        States { m: rows(1), s: rows(1), w: rows(problem.value_dim()) }
    }

    fn outputs(&mut self) -> Outputs<'_> {
        Outputs::states(StateOut { m: &mut self.m, s: &mut self.s, w: &mut self.w })
    }

    fn bits(&self) -> Vec<u32> {
        self.m.iter().chain(&self.s).chain(&self.w).map(|x| x.to_bits()).collect()
    }

    /// Merges earlier states with `later` ones.
    fn merge(mut self, later: &States) -> States {
        let dv = self.w.len() / self.m.len();
        for row in 0..self.m.len() {
            let merge = NaturalMerge::of((self.m[row], self.s[row]), (later.m[row], later.s[row]));
            (self.m[row], self.s[row]) = (merge.m, merge.s);
            for x in row * dv..(row + 1) * dv {
                self.w[x] = merge.w(self.w[x], later.w[x]);
            }
        }
        self
    }

    /// Computes the output and the log-sum-exp from the states, and returns them together with the states.
    fn finish(&self, problem: &Problem) -> Buffers {
        let view = problem.spec().output;
        let dv = problem.value_dim();
        let mut output = Data::filled(problem.spec().dtype, view.extent(), 0.0);
        let [_, heads, tokens, _] = view.shape();
        for row in 0..self.m.len() {
            let at = view.row(row / (heads * tokens), row / tokens % heads, row % tokens);
            for x in 0..dv {
                let empty = self.s[row] == 0.0;
                output.set(at + x, if empty { 0.0 } else { self.w[row * dv + x] / self.s[row] });
            }
        }
        let lse = |(m, s): (&f32, &f32)| (f64::from(*m) + f64::from(*s).ln()) as f32;
        let lse = self.m.iter().zip(&self.s).map(lse).collect();
        let States { m, s, w } = self.clone();
        Buffers { output, lse, m, s, w, present: None }
    }
}

/// Returns the elements from `from` on.
fn tail(data: &Data, from: usize) -> Elements<'_> {
    match data.elements() {
        Elements::F32(x) => Elements::F32(&x[from.min(x.len())..]),
        Elements::F16(x) => Elements::F16(&x[from.min(x.len())..]),
        Elements::Bf16(x) => Elements::Bf16(&x[from.min(x.len())..]),
    }
}

/// A range of a case's keys, with the mask columns of these keys in separate memory.
struct Part<'a> {
    case: &'a Case,
    spec: Spec,
    mask: Option<MaskData>,
    chunk: Chunk,
}

impl<'a> Part<'a> {
    fn of(case: &'a Case, keys: Range<usize>) -> Part<'a> {
        let mut spec = case.spec;
        for view in [&mut spec.key, &mut spec.value] {
            let [b, h, _, d] = view.shape();
            *view = View::new("part", [b, h, keys.len(), d], view.strides()).unwrap();
        }
        let mut mask = None;
        if let (Some(view), Some(MaskData::Bool(bytes))) = (&case.spec.mask, &case.mask) {
            let [b, h, q, k] = view.shape();
            let columns = |row: usize| keys.clone().map(move |j| bytes[row * k + j]);
            mask = Some(MaskData::Bool((0..b * h * q).flat_map(columns).collect()));
            spec.mask = Some(MaskView::dense(view.kind(), &[b, h, q, keys.len()]).unwrap());
        }
        let chunk = Chunk::of_keys(keys.start, case.spec.key.tokens());
        Part { case, spec, mask, chunk }
    }

    fn problem(&self) -> Problem {
        self.spec.check().unwrap()
    }

    fn inputs(&self) -> Inputs<'_> {
        let mut inputs = self.case.inputs();
        let from = |view: View| view.row(0, 0, self.chunk.key_offset);
        inputs.key = tail(&self.case.k, from(self.case.spec.key));
        inputs.value = tail(&self.case.v, from(self.case.spec.value));
        inputs.mask = self.mask.as_ref().map(MaskData::elements);
        inputs.lengths.chunk = Some(self.chunk);
        inputs
    }

    /// Computes the states of the part, without an output.
    fn states(&self, engine: &Engine) -> States {
        let problem = self.problem();
        let plan = engine.plan(&problem, &PlanOptions::default().all_workers(true)).unwrap();
        let mut workspace = plan.workspace().unwrap();
        let mut states = States::of(&problem);
        let mut bound = plan.bind(self.inputs(), states.outputs(), &mut workspace).unwrap();
        let report = bound.run().unwrap();
        assert_eq!(report.backend, engine.backend());
        drop(bound);
        states
    }

    /// Compares states with those of the oracle for the rows of this part.
    fn check(&self, states: &States) -> Result<(), String> {
        let (problem, inputs) = (self.problem(), self.inputs());
        let (dv, queries) = (problem.value_dim(), self.spec.query.tokens());
        for row in 0..states.m.len() {
            let (b, h, i) =
                (row / (problem.heads() * queries), row / queries % problem.heads(), row % queries);
            let mut y = vec![0.0; dv];
            let want = reference::row(&problem, &inputs, b, h, i, &mut y);
            let (m, s) = (states.m[row], states.s[row]);
            let w = &states.w[row * dv..(row + 1) * dv];
            if want.sum == 0.0 {
                if (m, s) != (f32::NEG_INFINITY, 0.0) || w.iter().any(|w| *w != 0.0) {
                    return Err(format!("row {row}: ({m}, {s}) of no key"));
                }
                continue;
            }
            let lse = f64::from(m) + f64::from(s).ln();
            let near = (lse - want.lse).abs() <= 4e-6 * want.lse.abs().max(1.0);
            let columns = w.iter().zip(&y).all(|(w, y)| (f64::from(*w) / f64::from(s) - y).abs() <= 2e-5);
            if !near || !columns {
                return Err(format!("row {row}: {lse} and {w:?} / {s}, not {} and {y:?}", want.lse));
            }
        }
        Ok(())
    }
}

/// Returns the ranges of `count` chunks that cover `keys` keys; some may be empty.
fn cuts(random: &mut Random, keys: usize, count: usize) -> Vec<Range<usize>> {
    let mut at: Vec<usize> = (1..count).map(|_| random.below(keys + 1)).collect();
    at.extend([0, keys]);
    at.sort_unstable();
    at.windows(2).map(|x| x[0]..x[1]).collect()
}

fn cases() -> Vec<Case> {
    let heads =
        |queries, keys, d, dv| Params { heads: 4, kv_heads: 2, ..Params::plain(queries, keys, d, dv) };
    let (top, bottom) = (Some(Alignment::TopLeft), Some(Alignment::BottomRight));
    let window = |left, right| Window { left, right };
    let mask = MaskParams { kind: MaskKind::Bool, dims: vec![6, 130], density: 0.5 };
    let half = |p: Params| Params { dtype: DType::F16, layout: Layout::Bnhd, ..p };
    vec![
        heads(3, 700, 64, 64).build("plain"),
        Params { causal: top, ..heads(90, 80, 32, 32) }.build("top-left"),
        Params { causal: bottom, ..heads(90, 150, 32, 32) }.build("bottom-right"),
        Params { causal: bottom, ..heads(9, 1300, 16, 24) }.build("few rows, many keys"),
        Params { causal: bottom, ..heads(150, 60, 8, 8) }.build("rows before every key"),
        Params { causal: bottom, window: window(Some(30), None), ..heads(70, 200, 64, 64) }
            .build("a window behind"),
        Params { window: window(Some(7), Some(5)), ..heads(70, 200, 16, 16) }.build("a window around"),
        Params { window: window(None, Some(40)), ..heads(5, 100, 16, 16) }.build("a window ahead"),
        Params { causal: bottom, lengths: true, batch: 3, ..heads(20, 170, 16, 16) }.build("lengths"),
        Params { lengths: true, batch: 4, seed: 5, ..heads(3, 90, 5, 7) }.build("lengths of odd heads"),
        half(Params { causal: bottom, batch: 2, ..heads(66, 140, 64, 32) }).build("in f16"),
        Params { mask: Some(mask), causal: bottom, ..heads(6, 130, 16, 16) }.build("a mask"),
        Params { softcap: Some(3.0), pad: 3, causal: top, ..heads(40, 60, 24, 16) }.build("gaps and a cap"),
    ]
}

#[test]
fn chunks_merge_into_the_whole() {
    let mut random = seeded(23);
    for (i, case) in cases().into_iter().enumerate() {
        let (keys, answer) = (case.spec.key.tokens(), case.naive());
        let plans = [1 + i % 7, 7].map(|count| cuts(&mut random, keys, count));
        for engine in engines(2) {
            for ranges in &plans {
                let merged = ranges.iter().map(|keys| {
                    let part = Part::of(&case, keys.clone());
                    let states = part.states(&engine);
                    part.check(&states)
                        .unwrap_or_else(|e| panic!("{} {keys:?} {case:?}: {e}", engine.kernel()));
                    states
                });
                let merged = merged.reduce(|sum, part| sum.merge(&part)).unwrap();
                // The path has the additions of a block, of the blocks in a segment, of the merge tree, and of merging
                // the chunks.
                let additions = 64 + 8 + 12 + ranges.len();
                answer
                    .check_all(&merged.finish(&case.problem()), additions)
                    .unwrap_or_else(|e| panic!("{} {ranges:?} {case:?}: {e}", engine.kernel()));
            }
        }
    }
}

#[test]
fn the_scalar_fallback_takes_chunks() {
    let mut random = seeded(29);
    for case in cases() {
        let ranges = cuts(&mut random, case.spec.key.tokens(), 4);
        let parts = ranges.iter().map(|keys| {
            let part = Part::of(&case, keys.clone());
            let problem = part.problem();
            let mut states = States::of(&problem);
            let mut scratch = vec![f32::NAN; scalar::scratch_len(&problem).unwrap()];
            scalar::run(&problem, &part.inputs(), &mut states.outputs(), &mut scratch).unwrap();
            part.check(&states).unwrap_or_else(|e| panic!("{keys:?} {case:?}: {e}"));
            states
        });
        let merged = parts.reduce(|sum, part| sum.merge(&part)).unwrap();
        let finished = merged.finish(&case.problem());
        case.naive().check_all(&finished, 512 + 16).unwrap_or_else(|e| panic!("{case:?}: {e}"));
    }
}

/// Checks the promise of `elsa_states_merge`: a fold over chunks in the order of their keys has the same bits at every
/// repetition and for any number of threads. Other bracketings give the same numbers except for roundings.
#[test]
fn a_fold_in_order_is_reproducible() {
    let params = Params { heads: 3, causal: Some(Alignment::BottomRight), ..Params::plain(50, 900, 32, 16) };
    let case = params.build("fold");
    let ranges = [0..100, 100..430, 430..431, 431..700, 700..900];
    for (one, many) in engines(1).into_iter().zip(engines(3)) {
        let parts = |engine: &Engine| ranges.clone().map(|keys| Part::of(&case, keys).states(engine));
        let fold = |parts: &[States; 5]| parts[1..].iter().fold(parts[0].clone(), States::merge);
        let [first, again, threads] = [parts(&one), parts(&one), parts(&many)];
        let want = fold(&first);
        assert_eq!(fold(&again).bits(), want.bits(), "{}: repetition", one.kernel());
        assert_eq!(fold(&threads).bits(), want.bits(), "{}: threads", one.kernel());
        let [a, b, c, d, e] = first;
        let swapped = b.clone().merge(&a);
        assert_eq!(swapped.s, a.clone().merge(&b).s, "{}: places", one.kernel());
        let bracketed = a.merge(&b.merge(&c)).merge(&d.merge(&e));
        let (x, y) = (want.finish(&case.problem()), bracketed.finish(&case.problem()));
        for i in 0..x.output.len() {
            let (x, y) = (x.output.get(i), y.output.get(i));
            assert!((x - y).abs() <= 1e-5, "{}: {x} {y}", one.kernel());
        }
    }
}

/// Checks that one plan computes all chunks of one shape, and that a chunk's position determines which of its keys a
/// row attends.
#[test]
fn chunks_of_a_shape_share_a_plan_and_differ_by_their_place() {
    let causal = Some(Alignment::BottomRight);
    let case = Params { causal, heads: 2, kv_heads: 1, ..Params::plain(60, 180, 16, 16) }.build("shared");
    for engine in engines(2) {
        let first = Part::of(&case, 0..60);
        let problem = first.problem();
        let plan = engine.plan(&problem, &PlanOptions::default()).unwrap();
        let mut workspace = plan.workspace().unwrap();
        let mut run = |part: &Part<'_>, key_offset| {
            let mut inputs = part.inputs();
            inputs.lengths.chunk = Some(Chunk { key_offset, ..part.chunk });
            let mut states = States::of(&problem);
            plan.bind(inputs, states.outputs(), &mut workspace).unwrap().run().unwrap();
            states
        };
        for start in [0, 60, 120] {
            let part = Part::of(&case, start..start + 60);
            let states = run(&part, start);
            assert_eq!(states.bits(), part.states(&engine).bits());
            part.check(&states).unwrap_or_else(|e| panic!("{} {start}: {e}", engine.kernel()));
            let [here, there] = [118, 119].map(|start| run(&part, start));
            assert_ne!(here.bits(), there.bits(), "{}: the place changes nothing", engine.kernel());
        }
    }
}

/// Checks that a chunk after the diagonal of every row, at any distance, has empty states.
#[test]
fn chunks_that_no_row_attends_are_empty() {
    let params = |causal, window| Params { causal, window, heads: 2, ..Params::plain(40, 30, 16, 8) };
    let far = isize::MAX as usize / 4;
    let window = |left, right| Window { left, right };
    for engine in engines(2) {
        for (causal, around, chunk) in [
            (Some(Alignment::TopLeft), Window::default(), Chunk::of_keys(40, 70)),
            (Some(Alignment::TopLeft), Window::default(), Chunk::of_keys(far - 30, far)),
            (Some(Alignment::TopLeft), Window::default(), Chunk::of_keys(5_000_000_000, far)),
            (None, window(None, Some(1000)), Chunk::of_keys(1040, 2000)),
            (Some(Alignment::BottomRight), window(Some(9), None), Chunk::of_keys(0, 79)),
            (Some(Alignment::BottomRight), window(Some(9), None), Chunk::of_keys(7, far)),
        ] {
            let case = params(causal, around).build("far");
            let part = Part { chunk, ..Part::of(&case, 0..30) };
            let mut inputs = case.inputs();
            inputs.lengths.chunk = Some(chunk);
            let problem = part.problem();
            let plan = engine.plan(&problem, &PlanOptions::default()).unwrap();
            let mut states = States::of(&problem);
            plan.bind(inputs, states.outputs(), &mut plan.workspace().unwrap()).unwrap().run().unwrap();
            let what = format!("{} {chunk:?} {around:?}", engine.kernel());
            assert!(states.m.iter().all(|m| *m == f32::NEG_INFINITY), "{what}: {:?}", states.m);
            assert!(states.s.iter().chain(&states.w).all(|x| x.to_bits() == 0), "{what}");
            // If the chunk is one key closer to the rows, some row attends one of its keys.
            let near = match (causal, around.right) {
                (_, Some(_)) | (Some(Alignment::TopLeft), _) if chunk.key_total < 5000 => {
                    Chunk { key_offset: chunk.key_offset - 1, ..chunk }
                }
                _ if chunk.key_total == 79 => Chunk { key_total: 78, ..chunk },
                _ => continue,
            };
            inputs.lengths.chunk = Some(near);
            plan.bind(inputs, states.outputs(), &mut plan.workspace().unwrap()).unwrap().run().unwrap();
            assert!(states.s.iter().any(|s| *s > 0.0), "{what}: nothing at {near:?}");
        }
    }
}

/// Checks that a call with a subset of the queries computes the states that a call with all queries computes for these
/// rows. Each row keeps its diagonal and window.
#[test]
fn queries_may_be_some_of_a_whole() {
    let window = |left, right| Window { left, right };
    for engine in engines(2) {
        for (causal, window, lengths) in [
            (None, Window::default(), false),
            (Some(Alignment::TopLeft), Window::default(), false),
            (Some(Alignment::BottomRight), Window::default(), true),
            (Some(Alignment::BottomRight), window(Some(40), None), false),
            (None, window(Some(30), Some(7)), true),
        ] {
            let params = Params { causal, window, lengths, heads: 2, ..Params::plain(100, 170, 16, 8) };
            let case = Params { kv_heads: 1, ..params }.build("rows");
            let whole = Part::of(&case, 0..170);
            let want = whole.states(&engine);
            whole.check(&want).unwrap_or_else(|e| panic!("{}: {e}", engine.kernel()));
            for rows in [0..100, 0..37, 37..100, 99..100] {
                let mut part = Part::of(&case, 0..170);
                for view in [&mut part.spec.query, &mut part.spec.output] {
                    let [b, h, _, d] = view.shape();
                    *view = View::new("rows", [b, h, rows.len(), d], view.strides()).unwrap();
                }
                let problem = part.problem();
                let plan = engine.plan(&problem, &PlanOptions::default()).unwrap();
                let run = |query_offset| {
                    let mut inputs = part.inputs();
                    inputs.query = tail(&case.q, case.spec.query.row(0, 0, rows.start));
                    let place = Chunk { query_offset, query_total: 100, ..Chunk::of_keys(0, 170) };
                    inputs.lengths.chunk = Some(place);
                    let mut states = States::of(&problem);
                    plan.bind(inputs, states.outputs(), &mut plan.workspace().unwrap())
                        .unwrap()
                        .run()
                        .unwrap();
                    states
                };
                let found = run(rows.start);
                let what = format!("{} {causal:?} {window:?} {rows:?}", engine.kernel());
                // A call with all queries may use other references and divisions, so the results may differ by
                // roundings.
                let answer = |states: &States, row: usize| -> [f32; 9] {
                    let (m, s) = (states.m[row], states.s[row]);
                    let w = &states.w[row * 8..];
                    std::array::from_fn(|x| match x {
                        _ if s == 0.0 => 0.0,
                        8 => m + s.ln(),
                        _ => w[x] / s,
                    })
                };
                for head in 0..2 {
                    for i in rows.clone() {
                        let (at, of) = (head * rows.len() + i - rows.start, head * 100 + i);
                        for (x, y) in answer(&found, at).into_iter().zip(answer(&want, of)) {
                            assert!((x - y).abs() <= 1e-5, "{what} {i}: {x} {y}");
                        }
                    }
                }
                if causal.is_some() && !lengths && rows.len() == 37 {
                    let moved = run(rows.start + 1).bits() != found.bits();
                    assert!(moved, "{what}: the place changes nothing");
                }
            }
        }
    }
}

#[test]
fn places_that_no_whole_has_are_refused() {
    use ArgumentError as E;
    let case = Params::plain(3, 10, 8, 8).build("plain");
    let max = isize::MAX as usize / 4;
    let check = |case: &Case, key_offset, key_total| {
        let mut inputs = case.inputs();
        inputs.lengths.chunk = Some(Chunk::of_keys(key_offset, key_total));
        inputs.check(&case.problem())
    };
    assert_eq!(check(&case, 0, 10), Ok(()));
    assert_eq!(check(&case, 90, 100), Ok(()));
    let error = |argument, found, min, max| Err(E::Count { argument, found, min, max });
    assert_eq!(check(&case, 0, 9), error("key_total", 9, 10, max));
    assert_eq!(check(&case, 0, max + 1), error("key_total", max + 1, 10, max));
    assert_eq!(check(&case, 91, 100), error("key_offset", 91, 0, 90));
    assert_eq!(check(&case, usize::MAX, 100), error("key_offset", usize::MAX, 0, 90));
    let mut inputs = case.inputs();
    for (query_offset, query_total, refused) in [
        (0, 0, None),
        (0, 3, None),
        (7, 10, None),
        (1, 0, Some(("query_offset", 1, 0, 0))),
        (8, 10, Some(("query_offset", 8, 0, 7))),
        (0, 2, Some(("query_total", 2, 3, max))),
        (0, max + 1, Some(("query_total", max + 1, 3, max))),
        (usize::MAX, 3, Some(("query_offset", usize::MAX, 0, 0))),
    ] {
        inputs.lengths.chunk = Some(Chunk { query_offset, query_total, ..Chunk::of_keys(0, 10) });
        let want = refused.map_or(Ok(()), |(argument, found, min, max)| error(argument, found, min, max));
        assert_eq!(inputs.check(&case.problem()), want);
    }
    let conflict = |other| Err(E::Conflict { argument: "chunk", other });
    let past = Params { past: Some(2), ..Params::plain(3, 10, 8, 8) }.build("past");
    assert_eq!(check(&past, 0, 20), conflict("past_k"));
    let present = Params { present: true, ..Params::plain(3, 10, 8, 8) }.build("present");
    assert_eq!(check(&present, 0, 20), conflict("present_k"));
    let packed = Params { packed: Some(vec![(3, 4)]), ..Params::plain(0, 0, 8, 8) }.build("packed");
    assert_eq!(check(&packed, 0, 20), conflict("cu_seqlens_q"));
    // Lengths count the keys of the entire sequence.
    let mut lengths = Params { lengths: true, ..Params::plain(3, 10, 8, 8) }.build("lengths");
    lengths.lengths = Some(vec![40]);
    assert_eq!(check(&lengths, 5, 40), Ok(()));
    let long = E::Length { argument: "key_lengths", index: 0, found: 40, min: 0, max: 39 };
    assert_eq!(check(&lengths, 5, 39), Err(long));
}

#[test]
fn only_what_is_asked_for_is_written() {
    let cases =
        [Params::plain(70, 150, 64, 64), Params::plain(2, 3000, 16, 24), Params::plain(300, 1400, 32, 32)];
    for (engine, params) in
        engines(2).into_iter().flat_map(|engine| cases.clone().map(|params| (engine.clone(), params)))
    {
        let case = Params { heads: 2, kv_heads: 2, ..params }.build("outputs");
        let problem = case.problem();
        let plan = engine.plan(&problem, &PlanOptions::default()).unwrap();
        let mut workspace = plan.workspace().unwrap();
        let mut all = case.buffers();
        plan.bind(case.inputs(), all.outputs(), &mut workspace).unwrap().run().unwrap();
        case.naive().check_all(&all, 84).unwrap();
        let (of_all, lse) = (States { m: all.m, s: all.s, w: all.w }, all.lse);
        // The calls request only states, only log-sum-exp, and then both.
        let mut states = States::of(&problem);
        plan.bind(case.inputs(), states.outputs(), &mut workspace).unwrap().run().unwrap();
        assert_eq!(states.bits(), of_all.bits(), "{}", engine.kernel());
        let mut alone = vec![f32::NAN; problem.rows()];
        let outputs = Outputs { lse: Some(&mut alone), ..Outputs::default() };
        plan.bind(case.inputs(), outputs, &mut workspace).unwrap().run().unwrap();
        assert_eq!(alone, lse, "{}", engine.kernel());
        let (mut states, mut beside) = (States::of(&problem), vec![f32::NAN; problem.rows()]);
        let outputs = Outputs { lse: Some(&mut beside), ..states.outputs() };
        plan.bind(case.inputs(), outputs, &mut workspace).unwrap().run().unwrap();
        assert_eq!((states.bits(), beside), (of_all.bits(), lse), "{}", engine.kernel());
        // A call without any output is refused.
        let none = plan.bind(case.inputs(), Outputs::default(), &mut workspace).map(|_| ()).unwrap_err();
        let argument = Operand::Output.argument();
        assert_eq!(none, BindError::Problem(ArgumentError::NoOutput { argument }));
    }
}
