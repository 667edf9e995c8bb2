//! Checks that problems that would make the runtime's pointers invalid are refused: overlapping output rows, lengths and
//! masks beyond the tensors, factors that are not normal f32 values. Data that does not match its problem is also refused:
//! missing, too short, of another type, or not requested.

use elsa_core::argument::ArgumentError;
use elsa_core::attention::{
    Alignment, BiasView, Inputs, MaskElements, MaskKind, MaskView, Outputs, Spec, TableView, Windows,
};
use elsa_core::dtype::{DType, Elements};
use elsa_core::view::{Layout, View};
use elsa_oracle::cases::{BiasParams, Case, Data, MaskParams, Params};

#[test]
fn outputs_whose_rows_overlap() {
    let base = Params { batch: 2, heads: 3, kv_heads: 3, ..Params::plain(4, 5, 8, 8) }.build("base");
    let with = |strides| {
        let output = View::new("out", [2, 3, 4, 8], strides).unwrap();
        base.spec.output(output).check().err()
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
        ([0, 8, 3], Some(("key_lengths", 1))),
        ([0, 7, -1], Some(("key_lengths", 2))),
        ([i64::MIN, 7, 1], Some(("key_lengths", 0))),
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
        assert_eq!(refusal(&case), want.map(|i| ("cu_seqlens_k", i)), "{k:?}");
    }
}

#[test]
fn masks_that_do_not_broadcast() {
    let base = Params { batch: 2, heads: 3, kv_heads: 3, ..Params::plain(4, 5, 8, 8) }.build("base");
    let with = |dims: &[usize]| {
        let mask = Some(MaskView::dense(MaskKind::Bool, dims).unwrap());
        [false, true].map(|short_mask| base.spec.mask(mask).short_mask(short_mask).check().is_ok())
    };
    for good in [&[5][..], &[1], &[4, 5], &[2, 3, 4, 5], &[1, 1, 1, 1]] {
        assert_eq!(with(good), [true, true], "{good:?}");
    }
    // ONNX allows masks with fewer keys than the tensors.
    for short in [&[3][..], &[4], &[0], &[3, 1, 2]] {
        assert_eq!(with(short), [false, true], "{short:?}");
    }
    for bad in [&[6][..], &[3, 5], &[5, 5], &[2, 4, 5], &[3, 3, 4, 5], &[2, 3, 4, 6], &[0, 5]] {
        assert_eq!(with(bad), [false, false], "{bad:?}");
    }
}

#[test]
fn windows_that_do_not_fit() {
    let windows = Windows { picture: [6, 9], size: [3, 3], shift: [1, 2] };
    let base = Params { heads: 2, kv_heads: 2, ..Params::windowed(windows, 2) }.build("base").spec;
    type Change<'a> = &'a dyn Fn(&mut Spec, &mut Windows);
    let lengths = Alignment::TopLeft;
    let past = View::dense("past", Layout::Bhnd, &[12, 2, 4, 8], None).ok();
    let changes: [(Change<'_>, Option<&str>); 15] = [
        (&|_, _| (), None),
        (&|_, w| w.shift = [2, 0], None),
        (&|_, w| w.picture = [3, 3], None),
        (&|_, w| w.size = [3, 0], Some("windows.size: width 0; allowed: at least 1")),
        (&|_, w| w.picture = [0, 9], Some("windows.picture: height 0; allowed: at least 1")),
        (
            &|_, w| w.picture = [6, 10],
            Some("windows.picture: width 10; allowed: a multiple of 3, as windows.size has"),
        ),
        (&|_, w| w.shift = [3, 0], Some("windows.shift: 3; allowed: 0 to 2")),
        (&|_, w| w.shift = [0, usize::MAX], Some("windows.shift: 18446744073709551615; allowed: 0 to 2")),
        (&|_, w| w.size = [3, 9], Some("windows.size: tokens 27; allowed: 9, as q has")),
        (
            &|_, w| w.picture = [15, 3],
            Some("q: batch 12; allowed: a multiple of 5, as windows.picture in windows has"),
        ),
        (&|s, _| s.causal = Some(lengths), Some("windows: given with causal; allowed: one of the two")),
        (&|s, _| s.window.left = Some(3), Some("windows: given with window_left; allowed: one of the two")),
        (&|s, _| s.key_lengths = true, Some("windows: given with key_lengths; allowed: one of the two")),
        (
            &|s, _| (s.past_key, s.past_value) = (past, past),
            Some("windows: given with past_k; allowed: one of the two"),
        ),
        (
            &|_, w| *w = Windows { size: [usize::MAX, 2], picture: [usize::MAX, 2], shift: [0, 0] },
            Some("windows.size: tokens 18446744073709551615; allowed: 9, as q has"),
        ),
    ];
    for (i, (change, want)) in changes.into_iter().enumerate() {
        let (mut spec, mut changed) = (base, windows);
        change(&mut spec, &mut changed);
        spec.windows = Some(changed);
        assert_eq!(spec.check().err().map(|e| e.to_string()).as_deref(), want, "{i}");
    }
}

#[test]
fn biases_that_do_not_fit() {
    let windows = Windows { picture: [6, 9], size: [3, 3], shift: [0, 0] };
    let base = Params { heads: 2, kv_heads: 2, ..Params::windowed(windows, 2) }.build("base");
    let dense =
        |dims: &[usize]| BiasView::Dense(MaskView::dense(MaskKind::Additive(DType::F32), dims).unwrap());
    let table = TableView { dtype: DType::F32, entries: 25, heads: 2, indexed: false };
    let mask = |dims: &[usize]| MaskView::dense(MaskKind::Bool, dims).ok();
    let refused = |bias, mask, windows| {
        let spec = base.spec.bias(bias).mask(mask).windows(windows).short_mask(false);
        spec.check().err().map(|e| e.to_string())
    };
    let some = Some(windows);
    let long = isize::MAX as usize;
    for (bias, mask, windows, want) in [
        (dense(&[4, 2, 9, 9]), None, some, None),
        (dense(&[9, 9]), mask(&[1]), some, None),
        (dense(&[9, 8]), mask(&[1]), some, Some("bias: keys 8; allowed: 1 or 9")),
        (BiasView::Table(table), mask(&[6, 1, 9, 9]), some, None),
        (BiasView::Table(TableView { entries: 3, indexed: true, ..table }), None, None, None),
        (dense(&[5, 2, 9, 9]), None, some, Some("bias: batch 5; allowed: a divisor of 12")),
        (dense(&[3, 9, 9]), None, some, Some("bias: heads 3; allowed: 1 or 2")),
        (dense(&[9, 10]), None, some, Some("bias: keys 10; allowed: 1 or 9")),
        (dense(&[9, 9]), mask(&[9, 8]), some, Some("mask: keys 8; allowed: 1 or 9")),
        (BiasView::Table(table), mask(&[8]), some, Some("mask: keys 8; allowed: 1 or 9")),
        (
            BiasView::Dense(MaskView::dense(MaskKind::Bool, &[9]).unwrap()),
            None,
            some,
            Some("bias: type bool; allowed: f32, f16 or bf16"),
        ),
        (
            BiasView::Table(TableView { entries: 24, ..table }),
            None,
            some,
            Some("bias: entries of the table 24; allowed: 25, as windows.size has"),
        ),
        (
            BiasView::Table(TableView { heads: 1, ..table }),
            None,
            some,
            Some("bias: heads of the table 1; allowed: 2, as q has"),
        ),
        (
            BiasView::Table(table),
            None,
            None,
            Some("bias: given without bias_index or windows; allowed: both or neither"),
        ),
        (
            BiasView::Table(TableView { entries: 0, indexed: true, ..table }),
            None,
            None,
            Some("bias: entries of the table 0; allowed: at least 1"),
        ),
    ] {
        assert_eq!(refused(bias, mask, windows).as_deref(), want, "{bias:?} {mask:?} {windows:?}");
    }
    let huge = BiasView::Table(TableView { entries: long, indexed: true, ..table });
    assert!(refused(huge, None, None).is_some_and(|e| e.starts_with("bias: shape [1, 1, ")));

    let params = BiasParams::Table { dtype: DType::F32, entries: Some(5), density: 1.0 };
    let case = Params { bias: Some(params), ..base.params.clone() }.build("index");
    let index = |change: &dyn Fn(&mut Vec<i64>)| {
        let mut case = case.clone();
        case.bias_index.as_mut().into_iter().for_each(change);
        case.inputs().check(&case.problem()).err().map(|e| e.to_string())
    };
    assert_eq!(index(&|_| ()), None);
    for (entry, bad) in [(80, 5), (0, -1), (17, i64::MIN)] {
        let want = format!("bias_index: entry {entry} is {bad}; allowed: 0 to 4");
        assert_eq!(index(&|list| list[entry] = bad), Some(want));
    }
    let want = "bias_index: 80 elements; allowed: at least 81";
    assert_eq!(index(&|list| list.truncate(80)).as_deref(), Some(want));
    let mut inputs = case.inputs();
    inputs.bias_index = None;
    assert_eq!(
        inputs.check(&case.problem()).unwrap_err(),
        ArgumentError::Needs { argument: "bias_index", other: "its data" }
    );
    inputs = case.inputs();
    inputs.bias = None;
    assert_eq!(
        inputs.check(&case.problem()).unwrap_err(),
        ArgumentError::Needs { argument: "bias", other: "its data" }
    );
    let plain = Params::plain(9, 9, 8, 8).build("plain");
    let mut inputs = plain.inputs();
    inputs.bias = Some(Elements::F32(&[0.0; 81]));
    let mention = ArgumentError::Needs { argument: "bias", other: "its shape in the problem" };
    assert_eq!(inputs.check(&plain.problem()).unwrap_err(), mention);
}

#[test]
fn factors_that_a_single_does_not_hold_or_that_leave_queries_no_range() {
    let base = Params::plain(4, 5, 8, 8).build("base");
    let with = |scale, softcap| match base.spec.scale(scale).softcap(softcap).check() {
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

/// Returns a problem with every operand: grouped heads, past and present, a mask and lengths.
fn whole() -> Case {
    let mask = MaskParams { kind: MaskKind::Additive(DType::F32), dims: vec![4, 8], density: 0.5 };
    let (batch, heads, past, present) = (2, 4, Some(3), true);
    Params {
        batch,
        heads,
        kv_heads: 2,
        past,
        present,
        mask: Some(mask),
        lengths: true,
        ..Params::plain(4, 5, 8, 6)
    }
    .build("whole")
}

fn shorter(x: Elements<'_>) -> Elements<'_> {
    match x {
        Elements::F32(x) => Elements::F32(&x[1..]),
        _ => panic!("not f32"),
    }
}

#[test]
fn inputs_that_are_not_what_the_problem_says() {
    use ArgumentError as E;
    let (case, plain) = (whole(), Params::plain(4, 5, 8, 6).build("plain"));
    let halves = Data::filled(DType::F16, 1000, 0.0);
    let (half, mask, bytes) = (halves.elements(), case.inputs().mask.unwrap(), [1u8; 32]);
    let (nine, one) = ([0i64; 9], [0i64; 1]);
    let short = |argument, needed| Some(E::Short { argument, found: needed - 1, needed });
    let wrong = |argument, found| Some(E::Type { argument, found, allowed: "f32" });
    let needs = |argument, other| Some(E::Needs { argument, other });
    type Change<'a> = &'a dyn Fn(&mut Inputs<'a>);
    let data = "its data";
    let changes: [(Change<'_>, Option<E>); 13] = [
        (&|_| (), None),
        (&|x| x.query = shorter(x.query), short("q", 256)),
        (&|x| x.key = half, wrong("k", "f16")),
        (&|x| x.value = shorter(x.value), short("v", 120)),
        (&|x| x.past_key = x.past_key.map(shorter), short("past_k", 96)),
        (&|x| x.past_key = None, needs("past_k", data)),
        (&|x| x.past_value = Some(half), wrong("past_v", "f16")),
        (&|x| x.mask = None, needs("mask", data)),
        (&|x| x.mask = Some(MaskElements::Bool(&bytes)), wrong("mask", "bool")),
        (&|x| x.mask = Some(MaskElements::Additive(Elements::F32(&[0.0; 31]))), short("mask", 32)),
        (&|x| x.lengths.keys = None, needs("key_lengths", data)),
        (
            &|x| x.lengths.keys = Some(&one),
            Some(E::Mismatch {
                argument: "key_lengths",
                axis: "entries",
                found: 1,
                allowed: 2,
                of: "the batch",
            }),
        ),
        (&|x| x.lengths.cu_seqlens_q = Some(&nine), needs("cu_seqlens_q", "its mention in the problem")),
    ];
    for (i, (change, want)) in changes.into_iter().enumerate() {
        let mut inputs = case.inputs();
        change(&mut inputs);
        assert_eq!(inputs.check(&case.problem()).err(), want, "{i}");
    }
    let changes: [(Change<'_>, Option<E>); 4] = [
        (&|_| (), None),
        (&|x| x.past_value = Some(half), needs("past_v", "its shape in the problem")),
        (&|x| x.mask = Some(mask), needs("mask", "its shape in the problem")),
        (&|x| x.lengths.keys = Some(&one), needs("key_lengths", "its mention in the problem")),
    ];
    for (i, (change, want)) in changes.into_iter().enumerate() {
        let mut inputs = plain.inputs();
        change(&mut inputs);
        assert_eq!(inputs.check(&plain.problem()).err(), want, "plain, {i}");
    }
}

#[test]
fn outputs_that_are_not_what_the_problem_says() {
    use ArgumentError as E;
    let (case, plain) = (whole(), Params::plain(4, 5, 8, 6).build("plain"));
    let refused = |case: &Case, change: &dyn Fn(&mut Outputs<'_>)| {
        let mut buffers = case.buffers();
        let mut outputs = buffers.outputs();
        change(&mut outputs);
        outputs.check(&case.problem()).err()
    };
    assert_eq!((refused(&case, &|_| ()), refused(&plain, &|_| ())), (None, None));
    let of = |n| Data::F32(vec![0.0; n]);
    let mut buffers = case.buffers();
    for (n, want) in [(192, None), (191, Some(E::Short { argument: "out", found: 191, needed: 192 }))] {
        let mut data = of(n);
        assert_eq!(
            Outputs { output: Some(data.elements_mut()), ..buffers.outputs() }.check(&case.problem()).err(),
            want
        );
    }
    let mut halves = Data::filled(DType::Bf16, 1000, 0.0);
    let outputs = Outputs { present_value: Some(halves.elements_mut()), ..buffers.outputs() };
    let error = E::Type { argument: "present_v", found: "bf16", allowed: "f32" };
    assert_eq!(outputs.check(&case.problem()), Err(error));
    let error = E::Needs { argument: "present_k", other: "its buffer" };
    assert_eq!(refused(&case, &|x| x.present_key = None), Some(error));
    let (mut data, mut buffers) = (of(1000), plain.buffers());
    let outputs = Outputs { present_key: Some(data.elements_mut()), ..buffers.outputs() };
    let error = E::Needs { argument: "present_k", other: "its shape in the problem" };
    assert_eq!(outputs.check(&plain.problem()), Err(error));
    // Log-sum-exp and states may be omitted; otherwise their sizes must be exact.
    assert_eq!(refused(&case, &|x| (x.lse, x.state) = (None, None)), None);
    for by in [-1, 1] {
        let rows = |n: usize| n.checked_add_signed(by).unwrap();
        for (argument, n) in [("lse", 32), ("state_m", 32), ("state_s", 32), ("state_w", 192)] {
            let mut buffers = case.buffers();
            let which = match argument {
                "lse" => &mut buffers.lse,
                "state_m" => &mut buffers.m,
                "state_s" => &mut buffers.s,
                _ => &mut buffers.w,
            };
            which.resize(rows(n), 0.0);
            let error =
                E::Mismatch { argument, axis: "elements", found: rows(n), allowed: n, of: "the output" };
            assert_eq!(buffers.outputs().check(&case.problem()), Err(error));
        }
    }
}

#[test]
fn bounds_that_are_missing_or_too_many() {
    use ArgumentError as E;
    let packed = Some(vec![(3, 4), (2, 6), (4, 1)]);
    let case = Params { packed, ..Params::plain(0, 0, 8, 8) }.build("packed");
    for (list, found) in [(&[][..], 0), (&[0, 3, 9], 3), (&[0, 3, 5, 9, 9], 5)] {
        let mut inputs = case.inputs();
        inputs.lengths.cu_seqlens_q = Some(list);
        let of = "one more than the sequences";
        let error = E::Mismatch { argument: "cu_seqlens_q", axis: "entries", found, allowed: 4, of };
        assert_eq!(inputs.check(&case.problem()), Err(error));
    }
    let mut inputs = case.inputs();
    inputs.lengths.cu_seqlens_k = None;
    let error = E::Needs { argument: "cu_seqlens_k", other: "its data" };
    assert_eq!(inputs.check(&case.problem()), Err(error));
}
