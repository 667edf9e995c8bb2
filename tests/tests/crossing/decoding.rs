//! Decodes with key heads that several query heads read. The CPU serves the rows of such heads together. A row must have
//! the bits that it has in a call in which every query head has its own copy of keys and values, whose rows are served
//! one by one, and the answer must agree with f64.

use elsa_core::attention::{Alignment, MaskKind};
use elsa_core::dtype::DType;
use elsa_core::view::{Layout, View};
use elsa_oracle::cases::{Case, Data, MaskParams, Params};
use elsa_oracle::{SLOW, engine, present};
use elsa_runtime::{Backend, Method, PlanOptions};

/// Number of additions between a key and the result: in its block, in its segment and in the merge tree.
const ADDITIONS: usize = 64 + 8 + 12;

/// Returns the case with a copy of each key head for every query head that reads it.
fn with_own_keys(case: &Case) -> Case {
    let (mut alone, spec) = (case.clone(), &case.spec);
    let [batch, heads, ..] = spec.query.shape();
    let copy = |from: &Data, view: &View| {
        let [_, kv_heads, keys, dim] = view.shape();
        let to = View::dense("copy", Layout::Bhnd, &[batch, heads, keys, dim], None).unwrap();
        let mut data = Data::filled(spec.dtype, to.count(), 0.0);
        for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
            for (t, x) in (0..keys).flat_map(|t| (0..dim).map(move |x| (t, x))) {
                data.set(to.row(b, h, t) + x, from.get(view.row(b, h / (heads / kv_heads), t) + x));
            }
        }
        (data, to)
    };
    (alone.k, alone.spec.key) = copy(&case.k, &spec.key);
    (alone.v, alone.spec.value) = copy(&case.v, &spec.value);
    alone
}

fn cases() -> Vec<Case> {
    let decode = |heads, kv_heads, keys, [d, dv]: [usize; 2]| Params {
        heads,
        kv_heads,
        gain: 3.0,
        ..Params::plain(1, keys, d, dv)
    };
    let mut cases = Vec::new();
    // The numbers of heads leave one to three rows for the last step; 26 rows are more than a task has. The sizes leave
    // dims past the last whole vector, and keys past the last four.
    for (heads, kv_heads) in [(2, 1), (6, 2), (8, 2), (7, 1), (26, 1), (3, 3)] {
        for (keys, sizes) in [(1, [64, 64]), (66, [20, 36]), (131, [128, 128])] {
            cases.push(decode(heads, kv_heads, keys, sizes).build(format!("{heads} over {kv_heads}")));
        }
    }
    let long = if SLOW { 600 } else { 1100 };
    let base = Params { batch: 2, ..decode(8, 2, long, [36, 68]) };
    let mask = |dims: &[usize]| Some(MaskParams { kind: MaskKind::Bool, dims: dims.to_vec(), density: 0.5 });
    for (name, params) in [
        ("segments", base.clone()),
        ("f16", Params { dtype: DType::F16, ..base.clone() }),
        ("rows with gaps", Params { layout: Layout::Bnhd, pad: 3, ..base.clone() }),
        ("soft cap", Params { softcap: Some(4.0), ..base.clone() }),
        ("lengths", Params { lengths: true, ..base.clone() }),
        ("two causal queries", Params { queries: 2, causal: Some(Alignment::BottomRight), ..base.clone() }),
        ("four causal queries", Params { queries: 4, causal: Some(Alignment::BottomRight), ..base.clone() }),
        ("mask of a sequence", Params { mask: mask(&[2, 1, 1, long]), ..base.clone() }),
        ("mask of each head", Params { mask: mask(&[2, 8, 1, long]), ..base.clone() }),
        ("mask of each query", Params { queries: 2, mask: mask(&[2, 1, 2, long]), ..base.clone() }),
    ] {
        cases.push(params.build(name));
    }
    // A key that all rows mask must leak into none of them, even if it is not finite.
    let keys = 70;
    let hidden = Params { mask: mask(&[keys]), ..decode(4, 1, keys, [32, 32]) };
    let mut hidden = hidden.build("mask over numbers that are not finite");
    for token in [0, 3, 65, keys - 1] {
        if let Some(mask) = &mut hidden.mask {
            mask.set_attended(token, false);
        }
        hidden.fill_key(0, token, f32::NAN);
        hidden.fill_value(0, token, f32::INFINITY);
    }
    cases.push(hidden);
    cases
}

#[test]
fn heads_that_share_keys_have_the_bits_of_heads_that_do_not() {
    let cases: Vec<_> = cases().into_iter().map(|case| (with_own_keys(&case), case)).collect();
    for present in present().into_iter().filter(|present| present.backend != Backend::Cuda) {
        for (alone, case) in &cases {
            for block in [64, 128] {
                let options = PlanOptions::default().block(block).all_workers(true);
                let want = alone.run_on(&engine(present.backend, 1), &options);
                if !SLOW && block == 64 {
                    case.naive().check_all(&want, ADDITIONS).unwrap_or_else(|e| panic!("{case:?}: {e}"));
                }
                for threads in [1, 3] {
                    let engine = engine(present.backend, threads);
                    let got = case.run_on(&engine, &options);
                    assert!(got.bits() == want.bits(), "{} {threads} {case:?}", present.backend.name());
                    let certified = case.run_on(&engine, &options.certify(true));
                    assert!(certified.bits() == want.bits(), "certified {threads} {case:?}");
                }
            }
        }
    }
}

/// Checks the certificates: a task with several heads measures the tensors of all of them.
#[test]
fn a_certificate_covers_every_head_of_a_task() {
    for present in present().into_iter().filter(|present| present.backend != Backend::Cuda) {
        let mut case = Params { heads: 6, kv_heads: 2, ..Params::plain(1, 150, 32, 32) }.build("certified");
        // The largest query element is in the last head of a key head, and the largest key in the last quarter.
        let query = case.spec.query;
        case.q.set(query.row(0, 5, 0) + 7, 50.0);
        case.k.set(case.spec.key.row(0, 1, 149) + 3, 60.0);
        let measured = |method| {
            let options = PlanOptions::default().certify(true).method(method);
            let plan = engine(present.backend, 1).plan(&case.problem(), &options).unwrap();
            let mut workspace = plan.workspace().unwrap();
            let mut buffers = case.buffers();
            let mut bound = plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap();
            bound.run().unwrap();
            let certified = bound.certificate().unwrap();
            (certified.measured.query, certified.measured.key, certified.channels().to_vec())
        };
        // Method math serves one head per task.
        assert_eq!(measured(Method::Elsa), measured(Method::Math));
    }
}
