use super::*;
use crate::dtype::DType;
use crate::linear::plan::Staged;
use crate::linear::{Problem, Rule, Spec};
use crate::profile::{DeviceProfile, InstructionSet};
use crate::view::View;

const KERNEL: KernelSpec = KernelSpec {
    name: "linear_f32_t4c32__test",
    set: InstructionSet::Scalar,
    lanes: 16,
    columns: 32,
    delta_columns: 64,
    tokens: 4,
    delta_tokens: 4,
    steady_tokens: 5,
    exp_relative: 1e-7,
    fused: true,
};

fn problem(rule: Rule, [batch, heads, tokens]: [usize; 3], [dk, dv]: [usize; 2]) -> Problem {
    let view =
        |d: usize| View::new("x", [batch, heads, tokens, d], [heads * tokens * d, tokens * d, d, 1]).unwrap();
    let mut spec = Spec::new(DType::F32, view(dk), view(dk), view(dv), view(dv));
    spec.rule = rule;
    spec.decay = rule.is_gated().then(|| view(1));
    spec.beta = rule.is_delta().then(|| view(1));
    spec.check().unwrap()
}

fn rooms(c: &Choice) -> Rooms {
    Rooms { head: c.chunk.saturating_mul(c.pass), strip: c.pass * c.strips.wide }
}

fn chosen(problem: &Problem, options: &Options) -> Result<(Choice, WorkspaceLayout), ChooseError> {
    choose(problem, &KERNEL, &DeviceProfile::modest(), options, rooms)
}

fn with(form: Form) -> Options {
    Options { form: Some(form), ..Options::default() }
}

/// Returns the form, chunk, pass and parts of a choice, on which the bits of a run depend.
fn deciding(c: &Choice) -> (Form, usize, usize, usize) {
    (c.form, c.chunk, c.pass, c.parts)
}

#[test]
fn the_form_follows_the_head_size() {
    let form = |rule, d| chosen(&problem(rule, [1, 2, 500], [d, d]), &Options::default()).unwrap().0.form;
    for d in [16, 64, 256] {
        assert_eq!(form(Rule::Gated, d), Form::Recurrent);
        assert_eq!(form(Rule::Linear, d), Form::Recurrent);
        let large = d >= Crossovers::of(KERNEL.set).delta.head_size;
        assert_eq!(form(Rule::GatedDelta, d) == Form::FusedChunk, large, "{d}");
    }
    assert_eq!(form(Rule::Delta, 16), Form::Recurrent);
    // A pass has more tokens if the roundings of the state add up.
    let pass = |rule, d| chosen(&problem(rule, [1, 2, 500], [d, d]), &with(Form::Recurrent)).unwrap().0.pass;
    assert_eq!([Rule::Linear, Rule::Gated, Rule::Delta].map(|rule| pass(rule, 128)), [5, 4, 4]);
    assert_eq!(pass(Rule::Linear, 64), 4);
}

/// Checks that neither the number of tokens nor the states of a call change what decides the bits. So a stream may be
/// cut at the ends of chunks, and an output has the same bits with and without a present state.
#[test]
fn neither_tokens_nor_states_decide_bits() {
    for rule in Rule::ALL {
        for d in [64, 128, 256] {
            let of = |tokens, [past, present]: [bool; 2]| {
                let state = View::new("state", [1, 2, d, d], [2 * d * d, d * d, d, 1]).unwrap();
                let mut spec = *problem(rule, [1, 2, tokens], [d, d]).spec();
                (spec.past_state, spec.present_state) = (past.then_some(state), present.then_some(state));
                deciding(&chosen(&spec.check().unwrap(), &Options::default()).unwrap().0)
            };
            let long = of(5000, [true, true]);
            for tokens in [1, 16, 64, 100] {
                for states in [[false, false], [true, false], [false, true], [true, true]] {
                    assert_eq!(of(tokens, states), long, "{rule:?} {d} {tokens} {states:?}");
                }
            }
        }
    }
}

#[test]
fn a_whole_short_sequence_is_computed_in_pairs() {
    let whole = Options { whole: true, ..Options::default() };
    let form = |spec: &Spec, options: &Options| chosen(&spec.check().unwrap(), options).unwrap().0.form;
    let of = |rule, tokens, d| *problem(rule, [1, 2, tokens], [d, d]).spec();
    for (rule, d, most) in [(Rule::Linear, 64, 48), (Rule::Gated, 128, 96), (Rule::Delta, 128, 32)] {
        let limits = [4, 5, most, most + 1];
        let found = limits.map(|tokens| form(&of(rule, tokens, d), &whole) == Form::Parallel);
        assert_eq!(found, [false, true, true, false], "{rule:?}");
        let short = of(rule, most, d);
        assert_ne!(form(&short, &Options::default()), Form::Parallel);
        assert_ne!(form(&short, &Options { budget: Some(1 << 30), ..whole }), Form::Parallel);
        assert_eq!(form(&short, &Options { form: Some(Form::Recurrent), ..whole }), Form::Recurrent);
        let state = Some(View::new("state", [1, 2, d, d], [2 * d * d, d * d, d, 1]).unwrap());
        for other in [
            Spec { past_state: state, ..short },
            Spec { present_state: state, ..short },
            Spec { direction: Direction::Bidirectional, ..short },
            Spec { direction: Direction::NonCausal, ..short },
        ] {
            assert_ne!(form(&other, &whole), Form::Parallel, "{rule:?}");
        }
    }
}

#[test]
fn neither_workers_nor_batch_nor_budget_decide_bits() {
    for rule in Rule::ALL {
        for form in Form::ALL.map(Some).into_iter().chain([None]) {
            let mut seen = None;
            for batch in [1, 7] {
                for workers in [1, 2, 16] {
                    let problem = problem(rule, [batch, 2, 5000], [64, 100]);
                    let options = Options { form, workers, all_workers: true, ..Options::default() };
                    let (choice, layout) = chosen(&problem, &options).unwrap();
                    let budget = Some(layout.bytes() - 1);
                    let small = chosen(&problem, &Options { budget, ..options });
                    for choice in [Some(choice), small.ok().map(|(choice, _)| choice)].into_iter().flatten() {
                        let first = *seen.get_or_insert(deciding(&choice));
                        assert_eq!(deciding(&choice), first, "{rule:?} {form:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn options_that_a_form_does_not_have_are_refused() {
    let problem = problem(Rule::Delta, [1, 1, 100], [16, 16]);
    let refused = |options: Options| chosen(&problem, &options).unwrap_err();
    for found in [0, 4, 12, 264, usize::MAX] {
        let options = Options { chunk: Some(found), ..Options::default() };
        assert_eq!(refused(options), ChooseError::Chunk { found, step: 8, max: 256 });
    }
    for found in [0, 1, 257] {
        let options = Options { parts: Some(found), ..Options::default() };
        assert_eq!(refused(options), ChooseError::Parts { found, min: 2, max: 256 });
    }
    for form in [Form::Recurrent, Form::Parallel] {
        let error = refused(Options { chunk: Some(16), ..with(form) });
        assert!(matches!(error, ChooseError::Option { option: "chunk", .. }), "{error}");
    }
    for form in [Form::Recurrent, Form::Parallel, Form::Chunk, Form::FusedChunk] {
        let error = refused(Options { parts: Some(2), ..with(form) });
        assert!(matches!(error, ChooseError::Option { option: "parts", .. }), "{error}");
    }
    let form = |options| chosen(&problem, &options).unwrap().0.form;
    assert_eq!(form(Options { parts: Some(2), ..Options::default() }), Form::Scan);
    assert_eq!(form(Options { chunk: Some(24), ..Options::default() }), Form::FusedChunk);
}

/// Checks that the smallest workspace fits the budget that the error reports, and that no smaller budget
/// is enough.
#[test]
fn budgets_are_kept_and_named() {
    for form in Form::ALL {
        let problem = problem(Rule::GatedDelta, [2, 3, 2000], [64, 64]);
        let options = Options { workers: 4, all_workers: true, ..with(form) };
        let most = chosen(&problem, &options).unwrap().1.bytes();
        let (needed, transitions) = match chosen(&problem, &Options { budget: Some(0), ..options }) {
            Err(ChooseError::Budget { needed, budget: 0 }) => (needed, 0),
            Err(ChooseError::PartsBudget { needed, budget: 0, transitions }) => (needed, transitions),
            other => panic!("{form:?}: {other:?}"),
        };
        assert_eq!(transitions > 0, form == Form::Scan, "{form:?}");
        assert!(needed < most, "{form:?}");
        for budget in [needed, needed + 5000, most] {
            let (_, layout) = chosen(&problem, &Options { budget: Some(budget), ..options }).unwrap();
            assert!(layout.bytes() <= budget, "{form:?}");
        }
        assert!(chosen(&problem, &Options { budget: Some(needed - 1), ..options }).is_err(), "{form:?}");
    }
    let huge = problem(Rule::Delta, [1, 1, 1 << 40], [16, 16]);
    let error = chosen(&huge, &with(Form::Parallel)).unwrap_err();
    assert_eq!(error, ChooseError::Memory { needed: usize::MAX });
}

/// Checks that groups consist of whole strips, and that every worker has a group even if there are few heads.
#[test]
fn groups_share_the_strips() {
    for (heads, workers, dv) in [(1, 1, 128), (1, 4, 128), (1, 8, 128), (2, 3, 100), (64, 4, 128)] {
        let problem = problem(Rule::Gated, [1, heads, 100], [64, dv]);
        let options = Options { workers, all_workers: true, ..Options::default() };
        let (choice, _) = chosen(&problem, &options).unwrap();
        let mut next = 0;
        for group in 0..choice.groups {
            let strips = choice.group(group);
            assert!(strips.start == next && !strips.is_empty());
            next = strips.end;
        }
        assert_eq!(next, choice.strip_count());
        assert!(choice.groups * heads >= choice.workers, "{choice:?}");
        assert!(choice.workers == workers.min(heads * dv.div_ceil(16)), "{choice:?}");
    }
}

/// Checks that the delta rules use wide strips if one such strip fits half of the level 1 cache and the state does not
/// need more wide strips than narrower ones. Otherwise, the narrower strips are used.
#[test]
fn strips_are_as_wide_as_the_first_cache_allows() {
    let wide = |rule, dims| {
        let problem = problem(rule, [1, 4, 100], dims);
        chosen(&problem, &Options::default()).unwrap().0.strips.wide
    };
    assert_eq!(wide(Rule::Delta, [64, 128]), KERNEL.delta_columns);
    assert_eq!(wide(Rule::GatedDelta, [64, 100]), KERNEL.delta_columns);
    assert_eq!(wide(Rule::Delta, [128, 128]), KERNEL.columns);
    assert_eq!(wide(Rule::Delta, [64, 48]), KERNEL.columns);
    assert_eq!(wide(Rule::Gated, [64, 128]), KERNEL.columns);
    let options = Options { workers: 4, all_workers: true, ..Options::default() };
    let few = |heads| chosen(&problem(Rule::Delta, [1, heads, 100], [64, 64]), &options).unwrap().0;
    assert_eq!([1, 2, 4].map(|heads| few(heads).strips.wide), [16, 32, 64]);
}

#[test]
fn tensors_are_copied_where_the_kernel_cannot_read_them() {
    let staged = |change: &dyn Fn(&mut Spec), dims| {
        let mut spec = *problem(Rule::GatedDelta, [1, 1, 10], dims).spec();
        change(&mut spec);
        chosen(&spec.check().unwrap(), &Options::default()).unwrap().0.staged
    };
    let nothing = Staged::default();
    assert_eq!(staged(&|_| (), [4, 16]), nothing);
    assert_eq!(staged(&|_| (), [6, 16]), Staged { rows: true, ..nothing });
    assert_eq!(staged(&|_| (), [4, 17]), Staged { columns: true, ..nothing });
    assert_eq!(staged(&|s| s.normalize = Some(0.0), [4, 16]), Staged { rows: true, ..nothing });
    let gates = Staged { decay: true, beta: true, ..nothing };
    assert_eq!(staged(&|s| s.gate_dtype = DType::F16, [4, 16]), gates);
    let rows = Staged { rows: true, columns: true, ..nothing };
    assert_eq!(staged(&|s| s.dtype = DType::Bf16, [4, 16]), rows);
    let sums = |direction, columns| {
        let mut spec = *problem(Rule::Gated, [1, 1, 10], [4, columns]).spec();
        spec.direction = direction;
        chosen(&spec.check().unwrap(), &Options::default()).unwrap().0.sums
    };
    assert!(sums(Direction::Bidirectional, 17) && !sums(Direction::Bidirectional, 16));
    assert!(!sums(Direction::Forward, 17));
}

#[test]
fn parts_are_whole_chunks_and_cover_the_tokens() {
    let problem = problem(Rule::Gated, [1, 1, 1000], [16, 16]);
    for (parts, chunk) in [(2, 8), (3, 64), (16, 64), (256, 8)] {
        let options = Options { parts: Some(parts), chunk: Some(chunk), ..with(Form::Scan) };
        let (choice, _) = chosen(&problem, &options).unwrap();
        for tokens in [0, 1, chunk, 999, 1000] {
            let (part, count) = (choice.part(tokens), choice.parts_of(tokens));
            assert!(part.is_multiple_of(chunk) && part > 0);
            assert!(count >= 1 && count <= parts && part * count >= tokens);
            assert!(count == 1 || part * (count - 1) < tokens);
        }
    }
}

/// Checks that a sequence of a packed call is divided into the number of parts that it would have in a separate call,
/// unless the options request a number.
#[test]
fn sequences_have_parts_by_their_own_length() {
    let scan = |tokens, parts| {
        let problem = problem(Rule::Gated, [1, 1, tokens], [16, 16]);
        chosen(&problem, &Options { parts, ..with(Form::Scan) }).unwrap().0
    };
    let (packed, asked) = (scan(100_000, None), scan(100_000, Some(16)));
    for tokens in [1, 100, 1000, 1536, 3000, 8192, 100_000] {
        assert_eq!(packed.part(tokens), scan(tokens, None).part(tokens), "{tokens}");
        assert!(packed.parts_of(tokens) <= packed.parts);
        assert_eq!(asked.part(tokens), tokens.div_ceil(16).next_multiple_of(asked.chunk), "{tokens}");
    }
}
