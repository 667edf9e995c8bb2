//! Problems on which the runtime's pointers cannot rely are refused: rows of outputs that overlap, lengths and masks
//! beyond the tensors, factors that are no normal f32 values.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use elsa_core::argument::ArgumentError;
use elsa_core::attention::Spec;
use elsa_core::attention::{MaskKind, MaskView};
use elsa_core::view::View;
use elsa_tests::cases::{Case, Params};

#[test]
fn outputs_whose_rows_overlap() {
    let base = Params { batch: 2, heads: 3, kv_heads: 3, ..Params::plain(4, 5, 8, 8) }.build("base");
    let with = |strides| {
        let output = View::new("out", [2, 3, 4, 8], strides).unwrap();
        Spec { output, ..base.spec }.check().err()
    };
    let overlap = Some(ArgumentError::Overlap { argument: "out" });
    for good in [[96, 32, 8, 1], [96, 8, 24, 1], [32, 64, 8, 1], [200, 60, 9, 1]] {
        assert_eq!(with(good), None, "{good:?}");
    }
    for bad in [[96, 32, 7, 1], [96, 31, 8, 1], [95, 32, 8, 1], [0, 32, 8, 1], [96, 0, 8, 1], [96, 32, 0, 1]]
    {
        assert_eq!(with(bad), overlap, "{bad:?}");
    }
}

fn refusal(case: &Case) -> Option<(&'static str, usize)> {
    match case.inputs().check(&case.problem()) {
        Err(ArgumentError::Length { argument, index, .. }) => Some((argument, index)),
        other => other.map(|()| None).unwrap(),
    }
}

#[test]
fn lengths_beyond_the_keys() {
    let mut case =
        Params { batch: 3, lengths: true, past: Some(2), ..Params::plain(4, 5, 8, 8) }.build("case");
    for (lengths, want) in [
        ([0, 7, 3], None),
        ([0, 8, 3], Some(("kv-lens", 1))),
        ([0, 7, -1], Some(("kv-lens", 2))),
        ([i64::MIN, 7, 1], Some(("kv-lens", 0))),
    ] {
        case.lengths = Some(lengths.to_vec());
        assert_eq!(refusal(&case), want, "{lengths:?}");
    }
}

#[test]
fn bounds_that_are_none() {
    let packed = Some(vec![(3, 4), (2, 6), (4, 1)]);
    let base = Params { packed, ..Params::plain(0, 0, 8, 8) }.build("packed");
    let q = vec![0, 3, 5, 9];
    for (k, want) in [
        ([0, 4, 10, 11], None),
        ([0, 0, 11, 11], None),
        ([1, 4, 10, 11], Some(0)),
        ([0, 5, 4, 11], Some(2)),
        ([0, 4, 12, 11], Some(2)),
        ([0, 4, 10, 10], Some(3)),
        ([0, 4, 10, 12], Some(3)),
        ([0, -1, 10, 11], Some(1)),
    ] {
        let mut case = base.clone();
        case.cu = Some((q.clone(), k.to_vec()));
        assert_eq!(refusal(&case), want.map(|i| ("cu-seqlens-k", i)), "{k:?}");
    }
}

#[test]
fn masks_that_do_not_broadcast() {
    let base = Params { batch: 2, heads: 3, kv_heads: 3, ..Params::plain(4, 5, 8, 8) }.build("base");
    let with = |dims: &[usize]| {
        let mask = Some(MaskView::dense(MaskKind::Bool, dims).unwrap());
        Spec { mask, ..base.spec }.check().is_ok()
    };
    for good in [&[5][..], &[1], &[3], &[4, 5], &[3, 1, 2], &[2, 3, 4, 5], &[1, 1, 1, 1]] {
        assert!(with(good), "{good:?}");
    }
    for bad in [&[6][..], &[3, 5], &[5, 5], &[2, 4, 5], &[3, 3, 4, 5], &[2, 3, 4, 6], &[0, 5]] {
        assert!(!with(bad), "{bad:?}");
    }
}

#[test]
fn factors_that_a_single_does_not_hold_or_that_leave_queries_no_range() {
    let base = Params::plain(4, 5, 8, 8).build("base");
    let with = |scale, softcap| match (Spec { scale, softcap, ..base.spec }).check() {
        Ok(_) => None,
        Err(ArgumentError::Number { argument, .. }) => Some(argument),
        Err(other) => panic!("{other}"),
    };
    for scale in [None, Some(0.0), Some(-0.0), Some(-3.0), Some(1.2e19), Some(1e-37)] {
        assert_eq!(with(scale, None), None, "{scale:?}");
    }
    for scale in [1.3e19, -1.3e19, 3e38, 1e-40, f32::NAN, f32::INFINITY] {
        assert_eq!(with(Some(scale), None), Some("scale"), "{scale}");
    }
    assert_eq!(with(Some(0.0), Some(5.0)), None);
    assert_eq!(with(Some(20.0), Some(2e38)), None);
    for (scale, softcap) in
        [(1.0, 3e38), (1000.0, 1.2e-38), (1.0, 5e-20), (1e-5, 1e37), (1.0, -1.0), (1.0, f32::NAN)]
    {
        assert_eq!(with(Some(scale), Some(softcap)), Some("softcap"), "{scale} {softcap}");
    }
}
