//! Tests of the chooser on simulated devices.

use super::{Device, Walk, choose};
use crate::linear::cuda::choice::LinearGpuChoice;
use crate::linear::options::LinearPlanOptions;
use elsa_core::dtype::DType;
use elsa_core::linear::bound::Solve;
use elsa_core::linear::{Form, Problem, Rule, Spec};
use elsa_core::plan::ChooseError;
use elsa_core::view::{Layout, View};
use elsa_kernels::cuda::linear::LinearWalk;

const NARROW: LinearWalk =
    LinearWalk { dims: 64, per_dim: false, columns: 32, shares: false, pairs: false, steps: false };
const STEPPED: LinearWalk = LinearWalk { dims: 1024, columns: 8, shares: true, steps: true, ..NARROW };
const WALKS: [Walk; 4] = [
    ("narrow", NARROW),
    ("wide", LinearWalk { dims: 128, ..NARROW }),
    ("shared", LinearWalk { shares: true, ..NARROW }),
    ("stepped", STEPPED),
];

const NANO: Device = Device { sms: 1, memory: 4 << 30 };
const H200: Device = Device { sms: 132, memory: 140 << 30 };

fn problem(rule: Rule, [batch, heads, tokens, d]: [usize; 4], packed: Option<usize>) -> Problem {
    let view = |d| View::dense("x", Layout::Bhnd, &[batch, heads, tokens, d], None).unwrap();
    let mut spec = Spec::new(DType::F32, view(d), view(d), view(d), view(d));
    (spec.rule, spec.packed) = (rule, packed);
    spec.decay = rule.is_gated().then(|| view(1));
    spec.beta = rule.is_delta().then(|| view(1));
    spec.check().unwrap()
}

fn form(device: Device, shape: [usize; 4]) -> Form {
    let found =
        choose(&problem(Rule::Gated, shape, None), device, WALKS.into_iter(), &LinearPlanOptions::default());
    found.unwrap().0.form
}

#[test]
fn chunks_begin_where_a_launch_pays() {
    // Measured on an H200.
    assert_eq!(form(H200, [4, 8, 16, 128]), Form::Recurrent);
    assert_eq!(form(H200, [4, 8, 32, 128]), Form::FusedChunk);
    // All chunks at once take three launches.
    let long = |shape| form(H200, shape) == Form::Chunk;
    for [heads, dim, from] in [[8, 128, 208], [16, 128, 208], [1, 64, 112], [32, 64, 112]] {
        assert_eq!(
            [from - 1, from].map(|tokens| long([4, heads, tokens, dim])),
            [false, true],
            "{heads} {dim}"
        );
    }
    // A board runs the blocks of 8 heads in 16 waves, so chunks already save time for 16 tokens.
    assert_eq!(form(NANO, [1, 8, 15, 128]), Form::Recurrent);
    assert_eq!(form(NANO, [1, 8, 16, 128]), Form::FusedChunk);
    assert_eq!(form(NANO, [1, 1, 20, 32]), Form::Recurrent);
    let mut last = usize::MAX;
    for blocks in [0, 1, 2, 3, 4, 8, 100, usize::MAX] {
        let found = LinearGpuChoice::crossover(1, blocks);
        assert!((16..=24).contains(&found) && found <= last);
        last = found;
    }
    let of = |(sms, blocks)| LinearGpuChoice::crossover(sms, blocks);
    assert_eq!([(0, 1), (132, 264), (132, 265)].map(of), [24, 24, 16]);
}

/// Checks that the size of the batch does not change the form. Also checks that a plan without options computes all chunks
/// at once if the blocks of a sequence would leave half of the SMs idle, and otherwise makes one pass over the tokens.
#[test]
fn the_batch_changes_no_form() {
    for tokens in [1, 15, 16, 23, 24, 48, 111, 112, 1000] {
        for device in [NANO, H200] {
            for heads in [1, 8, 40] {
                let forms = [1, 2, 64].map(|batch| form(device, [batch, heads, tokens, 64]));
                assert!(forms.iter().all(|form| *form == forms[0]), "{tokens} {heads} {forms:?}");
                // A head has two blocks of columns.
                let fills = 4 * heads > device.sms || tokens < 112;
                let chunks = if fills { Form::FusedChunk } else { Form::Chunk };
                assert!(tokens < 24 || forms[0] == chunks, "{tokens} {heads} {forms:?}");
            }
        }
    }
    assert_eq!(form(H200, [1, 1, 100_000, 64]), Form::Chunk);
}

/// Checks which problems are computed in long chunks, all of them at once. If their workspace exceeds the budget, smaller
/// ones replace it.
#[test]
fn long_chunks_are_for_few_heads() {
    let of = |rule, shape, packed, options: &LinearPlanOptions| {
        choose(&problem(rule, shape, packed), H200, WALKS.into_iter(), options).unwrap()
    };
    let plain = LinearPlanOptions::default();
    let shape = [2, 8, 2000, 64];
    for rule in [Rule::Linear, Rule::Gated] {
        let (choice, layout) = of(rule, shape, None, &plain);
        assert_eq!((choice.form, choice.chunk, choice.chunks, choice.parts), (Form::Chunk, 64, 2 * 32, 1));
        // Weights and factors of the pairs of tokens, then a state and its gate for each chunk.
        assert_eq!(layout.bytes, 8 * 64 * (64 * 67 + 64 * 64 + 4) * 4);
        for (budget, form) in [(8 << 20, Form::FusedChunk), (1 << 20, Form::Recurrent)] {
            let (choice, layout) = of(rule, shape, None, &plain.budget(budget));
            assert!(choice.form == form && layout.bytes <= budget, "{choice:?}");
        }
        let (choice, _) = of(rule, [1, 8, 2000, 64], Some(5), &plain);
        assert_eq!((choice.form, choice.chunks), (Form::Chunk, 2000 / 64 + 5));
        assert_eq!((choice.recurrent_below, choice.fused_below), (24, 112));
        let chunk = |tokens| choice.executed(&problem(rule, [1, 8, 2000, 64], Some(5)), tokens).chunk;
        assert_eq!([23, 24, 111, 112, 2000].map(chunk), [1, 16, 16, 64, 64]);
    }
    for rule in [Rule::Delta, Rule::GatedDelta] {
        let (choice, layout) = of(rule, shape, None, &plain);
        assert_eq!((choice.form, choice.chunk, choice.chunks), (Form::Chunk, 64, 2 * 32));
        // Those of plain rules, then two matrices with gates and marks for each chunk, and the values that tokens write.
        let own = 8 * 64 * (2 * 64 * 64 + 64 + 4) + 2 * 8 * 2000 * 64;
        assert_eq!(layout.bytes, (8 * 64 * (64 * 67 + 64 * 64 + 4) + own) * 4);
        let executed = choice.executed(&problem(rule, shape, None), 2000);
        assert_eq!((executed.chunk, executed.solve), (64, Solve::Factors));
        let form = |heads, tokens, dim| of(rule, [1, heads, tokens, dim], None, &plain).0.form;
        assert_eq!([form(8, 175, 64), form(8, 176, 64)], [Form::FusedChunk, Form::Chunk]);
        assert_eq!([form(16, 176, 64), form(17, 176, 64)], [Form::Chunk, Form::FusedChunk]);
        assert_eq!([form(1, 319, 128), form(1, 320, 128)], [Form::FusedChunk, Form::Chunk]);
        assert_eq!([form(4, 4000, 128), form(5, 4000, 128)], [Form::Chunk, Form::FusedChunk]);
    }
}

/// Checks from which length on problems with a gate per dim are computed all chunks at once. A board with few SMs does so for one
/// head of 64 dims only.
#[test]
fn gates_per_dim_need_long_chunks_for_few_heads() {
    let per_dim = WALKS.map(|(name, walk)| (name, LinearWalk { per_dim: true, ..walk }));
    let form = |rule, device, shape: [usize; 4]| {
        let view = |d| View::dense("x", Layout::Bhnd, &[shape[0], shape[1], shape[2], d], None).unwrap();
        let mut spec = *problem(rule, shape, None).spec();
        spec.decay = Some(view(shape[3]));
        let problem = spec.check().unwrap();
        choose(&problem, device, per_dim.into_iter(), &LinearPlanOptions::default()).unwrap().0.form
    };
    use Form::{Chunk, FusedChunk, Recurrent};
    // Measured on an H200.
    for (rule, heads, dims, from) in [
        (Rule::Gated, 66, 64, 120),
        (Rule::Gated, 16, 128, 120),
        (Rule::GatedDelta, 33, 64, 160),
        (Rule::GatedDelta, 16, 128, 160),
    ] {
        for few in [1, heads] {
            let of = |tokens| form(rule, H200, [2, few, tokens, dims]);
            let found = [23, 24, from - 1, from].map(of);
            assert_eq!(found, [Recurrent, FusedChunk, FusedChunk, Chunk], "{rule:?} {dims}");
        }
        assert_eq!(form(rule, H200, [2, heads + 1, 4096, dims]), FusedChunk, "{rule:?} {dims}");
    }
    assert_eq!(form(Rule::Gated, NANO, [1, 1, 4096, 64]), FusedChunk);
    assert_eq!(
        [15, 16, 4096].map(|tokens| form(Rule::Gated, NANO, [1, 8, tokens, 64])),
        [Recurrent, FusedChunk, FusedChunk]
    );
}

/// Checks that a packed sequence executes the same operations as the same sequence does if it is the only sequence of a
/// call.
#[test]
fn packed_sequences_execute_what_they_do_alone() {
    let of = |form, parts| LinearPlanOptions { form, parts, ..LinearPlanOptions::default() };
    for options in [of(None, None), of(Some(Form::Scan), None), of(Some(Form::Scan), Some(7))] {
        for rule in [Rule::Gated, Rule::Delta] {
            let whole = problem(rule, [1, 2, 10_000, 64], Some(9));
            let (packed, _) = choose(&whole, H200, WALKS.into_iter(), &options).unwrap();
            for tokens in [1, 23, 24, 111, 112, 700, 5000] {
                let alone = problem(rule, [1, 2, tokens, 64], None);
                let (choice, _) = choose(&alone, H200, WALKS.into_iter(), &options).unwrap();
                let (one, other) = (choice.executed(&alone, tokens), packed.executed(&whole, tokens));
                assert_eq!(one, other, "{options:?} {tokens}");
                assert!(packed.form != Form::Scan || tokens.div_ceil(one.part) <= packed.parts);
            }
        }
    }
}

/// Checks that only a delta rule has a region for the values that tokens write, and that the quadratic form prepares no
/// chunks.
#[test]
fn the_quadratic_form_is_for_all_rules() {
    let of = |rule, form| {
        let options = LinearPlanOptions { form: Some(form), ..LinearPlanOptions::default() };
        choose(&problem(rule, [2, 3, 300, 64], None), H200, WALKS.into_iter(), &options).unwrap()
    };
    for (rule, bytes) in [(Rule::Linear, 0), (Rule::Gated, 0), (Rule::Delta, 2 * 3 * 300 * 64 * 4)] {
        let (choice, layout) = of(rule, Form::Parallel);
        assert_eq!((choice.form, layout.bytes), (Form::Parallel, bytes), "{rule:?}");
    }
    // If sums are computed pair by pair, roundings grow neither with the dims nor with the tokens.
    let own = problem(Rule::Delta, [2, 3, 300, 64], None);
    let executed = of(Rule::Delta, Form::Parallel).0.executed(&own, 300);
    assert_eq!((executed.form, executed.chunk, executed.solve), (Form::Parallel, 300, Solve::Rows));
    assert!(executed.dims < 16 && executed.tokens < 16);
}

/// Checks that a state is computed once for all heads that read it, under two conditions: separate blocks would run in
/// several waves, and the form and the kernel support sharing.
#[test]
fn readers_share_a_state_where_blocks_take_turns() {
    let of = |device, [heads, states]: [usize; 2], [batch, tokens, d]: [usize; 3], form| {
        let view = |heads| View::dense("x", Layout::Bhnd, &[batch, heads, tokens, d], None).unwrap();
        let (all, own) = (view(heads), view(states));
        let problem = Spec::new(DType::F32, all, own, own, all).check().unwrap();
        let options = LinearPlanOptions { form, ..LinearPlanOptions::default() };
        let (choice, _) = choose(&problem, device, WALKS.into_iter(), &options).unwrap();
        (choice.form, choice.shares)
    };
    use Form::{Chunk, FusedChunk, Recurrent};
    for (device, heads, sizes, form, found) in [
        (NANO, [8, 2], [1, 1, 64], None, (Recurrent, true)),
        (NANO, [8, 2], [100, 1, 64], None, (Recurrent, true)),
        (NANO, [8, 2], [1, 1000, 64], None, (FusedChunk, true)),
        (H200, [1600, 400], [1, 1, 64], None, (Recurrent, true)),
        (NANO, [2, 2], [1, 1, 64], None, (Recurrent, false)),
        (NANO, [34, 2], [1, 1, 64], None, (Recurrent, false)),
        (NANO, [8, 2], [1, 1, 128], None, (Recurrent, false)),
        (NANO, [8, 2], [1, 1000, 64], Some(Chunk), (Chunk, false)),
        // The batch must not decide. Sharing would change the bits if a product is not finite.
        (H200, [8, 2], [1, 1, 64], None, (Recurrent, false)),
        (H200, [8, 2], [100, 1, 64], None, (Recurrent, false)),
    ] {
        assert_eq!(of(device, heads, sizes, form), found, "{heads:?} {sizes:?}");
    }
}

/// Checks that keys with more dims than a tile has are computed token by token, and that forms which process chunks
/// reject such keys.
#[test]
fn keys_of_many_dims_go_step_by_step() {
    let of = |d, form, chunk| {
        let options = LinearPlanOptions { form, chunk, ..LinearPlanOptions::default() };
        choose(&problem(Rule::GatedDelta, [1, 2, 500, d], None), H200, WALKS.into_iter(), &options)
    };
    for form in [None, Some(Form::Recurrent)] {
        let (choice, layout) = of(300, form, None).unwrap();
        assert_eq!((choice.kernel, choice.form, choice.shares), ("stepped", Form::Recurrent, true));
        assert_eq!((choice.dims, choice.columns, layout.bytes), (384, 38, 0));
        let large = ChooseError::Large { what: "d_k", found: 1025, most: 1024 };
        assert_eq!(of(1025, form, None).unwrap_err(), large);
    }
    for (form, chunk) in [(Some(Form::Chunk), None), (Some(Form::Scan), None), (None, Some(16))] {
        let large = ChooseError::Large { what: "d_k", found: 129, most: 128 };
        assert_eq!(of(129, form, chunk).unwrap_err(), large);
    }
}
