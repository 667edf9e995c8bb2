//! Checks problems with hostile shapes: nothing may panic, and accepted problems must be consistent.
//!
//! The fuzzer's input determines the problem: its sizes are mostly small and consistent, with an occasional inconsistent
//! size or a size near the end of the address space. A small accepted problem gets buffers, some of them too short or of
//! the wrong type. If [`Inputs::check`] accepts the data, the keys of every row are compared with the definition in
//! `elsa_core::attention`, in arithmetic that cannot overflow.
#![no_main]

use elsa_core::argument::ArgumentError;
use elsa_core::attention::{Alignment, Inputs, Outputs, Problem, Sequence, Spec, Window};
use elsa_core::attention::{MaskElements, MaskKind, MaskView};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;

/// Number of elements in the largest buffer.
const SMALL: usize = 1 << 12;
/// Largest number of comparisons with the definition, so that a problem without dims or heads does not take minutes.
const WORK: usize = 1 << 25;

fuzz_target!(|bytes: &[u8]| {
    // Input that ends early is not an error, only fewer choices.
    let _ = explore(&mut Unstructured::new(bytes));
});

fn explore(u: &mut Unstructured<'_>) -> Result<()> {
    let Some(spec) = spec(u)? else { return Ok(()) };
    let problem = match spec.check() {
        Ok(problem) => problem,
        Err(error) => {
            check_message(&error);
            return Ok(());
        }
    };
    assert!(problem.scale().is_finite());
    assert_eq!(problem.keys(), problem.past() + problem.spec().key.tokens());
    // Without key heads there are no query heads either.
    assert_eq!(problem.heads().checked_rem(problem.kv_heads()).unwrap_or(problem.heads()), 0);
    let spec = problem.spec();
    let views = [Some(spec.query), Some(spec.key), Some(spec.value), Some(spec.output), spec.past_key];
    for view in views.into_iter().flatten().chain(spec.past_value) {
        coherent(&view);
    }
    let sequences = problem.sequences();
    let sizes = [
        spec.query.extent(),
        spec.key.extent(),
        spec.value.extent(),
        spec.output.extent(),
        spec.past_key.map_or(0, |v| v.extent()),
        spec.past_value.map_or(0, |v| v.extent()),
        spec.mask.map_or(0, |v| v.extent()),
        spec.query.batch(),
        spec.query.tokens(),
        problem.keys(),
        problem.rows(),
        sequences,
    ];
    // `accepted` compares every pair of queries of a sequence with every key.
    let tokens = [spec.query.batch(), spec.query.tokens(), spec.query.tokens(), problem.keys()];
    let work = tokens.into_iter().fold(1, usize::saturating_mul);
    if sizes.into_iter().all(|n| n <= SMALL) && work <= WORK {
        bind(u, &problem)?;
    } else if u.arbitrary()? {
        // Data that is too short for such a large problem must be refused without an overflow.
        let few = [0i64; 3];
        let zeros = Zeros::new(SMALL);
        let some = |view: &View| zeros.of(spec.dtype, view.extent().min(SMALL));
        let mut inputs = Inputs::new(some(&spec.query), some(&spec.key), some(&spec.value));
        inputs.past_key = spec.past_key.as_ref().map(some);
        inputs.past_value = spec.past_value.as_ref().map(some);
        inputs.lengths.keys = spec.key_lengths.then_some(&few[..]);
        inputs.lengths.cu_seqlens_q = spec.packed.map(|_| &few[..]);
        inputs.lengths.cu_seqlens_k = spec.packed.map(|_| &few[..]);
        if let Err(error) = inputs.check(&problem) {
            check_message(&error);
        }
    }
    Ok(())
}

/// Checks that the message of an error is one line in the form `argument: limits`.
fn check_message(error: &ArgumentError) {
    let text = error.to_string();
    assert!(text.contains(": ") && !text.contains('\n'), "{text}");
}

/// Picks a size: mostly small, occasionally any number.
fn size(u: &mut Unstructured<'_>) -> Result<usize> {
    Ok(match u.int_in_range(0..=31u8)? {
        0 => u.arbitrary()?,
        1 => *u.choose(&[usize::MAX, usize::MAX / 2, isize::MAX as usize / 4, 1 << 32, 1 << 16])?,
        _ => u.int_in_range(0..=6)?,
    })
}

/// Picks `n`, or occasionally another size.
fn about(u: &mut Unstructured<'_>, n: usize) -> Result<usize> {
    if u.ratio(1, 48)? { size(u) } else { Ok(n) }
}

fn view(u: &mut Unstructured<'_>, argument: &'static str, shape: [usize; 4]) -> Result<Option<View>> {
    let mut shape = shape;
    for n in &mut shape {
        *n = about(u, *n)?;
    }
    let [b, h, n, d] = shape;
    let made = match u.int_in_range(0..=9u8)? {
        0..=4 => View::dense(argument, Layout::Bhnd, &shape, None),
        5 | 6 => View::dense(argument, Layout::Bnhd, &[b, n, h, d], None),
        7 => View::dense(argument, Layout::Bnc, &[b, n, h.wrapping_mul(d)], Some(h)),
        8 => {
            let dims = [size(u)?, size(u)?, size(u)?, size(u)?, size(u)?];
            let layout = *u.choose(&[Layout::Bhnd, Layout::Bnhd, Layout::Bnc])?;
            let rank = u.int_in_range(0..=5)?;
            let heads = if u.arbitrary()? { Some(size(u)?) } else { None };
            View::dense(argument, layout, &dims[..rank], heads)
        }
        _ => View::new(argument, shape, [size(u)?, size(u)?, size(u)?, about(u, 1)?]),
    };
    match made {
        Ok(view) => {
            coherent(&view);
            Ok(Some(view))
        }
        Err(error) => {
            check_message(&error);
            Ok(None)
        }
    }
}

/// Checks that the last element of a view ends at the view's extent, and that no two rows share an element if the view
/// reports no overlap.
fn coherent(view: &View) {
    let [b, h, n, d] = view.shape();
    if view.count() == 0 {
        assert_eq!(view.extent(), 0);
        assert!(!view.may_overlap());
        return;
    }
    assert_eq!(view.row(0, 0, 0), 0);
    assert_eq!(view.row(b - 1, h - 1, n - 1) + d, view.extent());
    if !view.may_overlap() {
        assert!(view.extent() >= view.count());
        if view.extent() <= SMALL {
            let mut taken = vec![false; view.extent()];
            for (b, h, n) in rows(view.shape()) {
                for x in &mut taken[view.row(b, h, n)..][..d] {
                    assert!(!core::mem::replace(x, true), "rows of {view:?} share an element");
                }
            }
        }
    }
}

fn rows([b, h, n, _]: [usize; 4]) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..b).flat_map(move |b| (0..h).flat_map(move |h| (0..n).map(move |n| (b, h, n))))
}

/// Picks a specification; `None` if one of its views is refused.
fn spec(u: &mut Unstructured<'_>) -> Result<Option<Spec>> {
    let packed = if u.ratio(1, 4)? { Some(size(u)?) } else { None };
    let b = if packed.is_some() { 1 } else { size(u)? };
    let (kv_heads, group) = (size(u)?, size(u)?);
    let h = about(u, kv_heads.wrapping_mul(group))?;
    let (n, k, d, dv) = (size(u)?, size(u)?, size(u)?, size(u)?);
    let dtype = *u.choose(&[DType::F32, DType::F16, DType::Bf16])?;
    let views = (
        view(u, "q", [b, h, n, d])?,
        view(u, "k", [b, kv_heads, k, d])?,
        view(u, "v", [b, kv_heads, k, dv])?,
        view(u, "out", [b, h, n, dv])?,
    );
    let (Some(query), Some(key), Some(value), Some(output)) = views else { return Ok(None) };
    let mut spec = Spec::new(dtype, query, key, value, output);
    let mut past = 0;
    if u.ratio(1, 4)? {
        past = size(u)?;
        spec.past_key = view(u, "past_k", [b, kv_heads, past, d])?;
        spec.past_value = view(u, "past_v", [b, kv_heads, past, dv])?;
    }
    let all = past.wrapping_add(k);
    if u.ratio(1, 4)? {
        spec.present_key = view(u, "present_k", [b, kv_heads, all, d])?;
        spec.present_value = view(u, "present_v", [b, kv_heads, all, dv])?;
    }
    if u.ratio(1, 2)? {
        spec.causal = Some(*u.choose(&[Alignment::TopLeft, Alignment::BottomRight])?);
    }
    if u.ratio(1, 3)? {
        let mut side = || if u.arbitrary()? { Ok(Some(size(u)?)) } else { Ok(None) };
        spec.window = Window { left: side()?, right: side()? };
    }
    if u.ratio(1, 4)? {
        spec.scale = Some(u.arbitrary()?);
    }
    if u.ratio(1, 4)? {
        spec.softcap = Some(u.arbitrary()?);
    }
    if u.ratio(1, 3)? {
        let kind = *u.choose(&[
            MaskKind::Bool,
            MaskKind::Additive(DType::F32),
            MaskKind::Additive(DType::F16),
            MaskKind::Additive(DType::Bf16),
        ])?;
        let mut dims = [b, h, n, all, 1];
        for n in &mut dims[..3] {
            *n = if u.arbitrary()? { 1 } else { about(u, *n)? };
        }
        dims[3] = if u.arbitrary()? { all } else { size(u)? };
        let (from, to) = (u.int_in_range(0..=4)?, u.int_in_range(3..=5)?);
        match MaskView::dense(kind, &dims[from.min(to)..to]) {
            Ok(mask) => (spec.mask, spec.short_mask) = (Some(mask), u.arbitrary()?),
            Err(error) => check_message(&error),
        }
    }
    spec.key_lengths = u.ratio(1, 4)?;
    spec.packed = packed;
    Ok(Some(spec))
}

/// A buffer of f32 zeros and a buffer of 16-bit zeros, both with the same number of elements.
struct Zeros {
    wide: Vec<f32>,
    narrow: Vec<u16>,
}

impl Zeros {
    fn new(n: usize) -> Zeros {
        Zeros { wide: vec![0.0; n], narrow: vec![0; n] }
    }

    fn of(&self, dtype: DType, n: usize) -> Elements<'_> {
        match dtype {
            DType::F32 => Elements::F32(&self.wide[..n]),
            DType::F16 => Elements::F16(as_f16(&self.narrow[..n])),
            DType::Bf16 => Elements::Bf16(as_bf16(&self.narrow[..n])),
        }
    }
}

fn as_f16(bits: &[u16]) -> &[half::f16] {
    half::slice::HalfBitsSliceExt::reinterpret_cast(bits)
}

fn as_bf16(bits: &[u16]) -> &[half::bf16] {
    half::slice::HalfBitsSliceExt::reinterpret_cast(bits)
}

/// Picks data for a small problem. If the data is accepted, checks the rows of the problem.
fn bind(u: &mut Unstructured<'_>, problem: &Problem) -> Result<()> {
    let spec = problem.spec();
    let zeros = Zeros::new(SMALL + 1);
    let mut type_and_len = |dtype: DType, extent: usize| -> Result<Elements<'_>> {
        let dtype = if u.ratio(1, 64)? { DType::F32 } else { dtype };
        let n = if u.ratio(1, 64)? {
            extent.saturating_sub(1)
        } else {
            extent + usize::from(u.arbitrary::<bool>()?)
        };
        Ok(zeros.of(dtype, n))
    };
    let mut inputs = Inputs::new(
        type_and_len(spec.dtype, spec.query.extent())?,
        type_and_len(spec.dtype, spec.key.extent())?,
        type_and_len(spec.dtype, spec.value.extent())?,
    );
    if let Some(view) = &spec.past_key {
        inputs.past_key = Some(type_and_len(spec.dtype, view.extent())?);
    }
    if let Some(view) = &spec.past_value {
        inputs.past_value = Some(type_and_len(spec.dtype, view.extent())?);
    }
    let ones = vec![1u8; SMALL + 1];
    if let Some(view) = &spec.mask {
        inputs.mask = Some(match view.kind() {
            MaskKind::Bool => MaskElements::Bool(&ones[..view.extent()]),
            MaskKind::Additive(dtype) => MaskElements::Additive(type_and_len(dtype, view.extent())?),
        });
    }
    let mut lengths = Vec::new();
    if spec.key_lengths {
        for _ in 0..about(u, spec.query.batch())?.min(SMALL) {
            lengths.push(length(u, problem.keys())?);
        }
        inputs.lengths.keys = Some(&lengths);
    }
    let (mut cq, mut ck) = (Vec::new(), Vec::new());
    if let Some(n) = spec.packed {
        bounds(u, n, spec.query.tokens(), &mut cq)?;
        bounds(u, n, spec.key.tokens(), &mut ck)?;
        inputs.lengths.cu_seqlens_q = Some(&cq);
        inputs.lengths.cu_seqlens_k = Some(&ck);
    }
    if let Err(error) = inputs.check(problem) {
        check_message(&error);
        return Ok(());
    }
    accepted(problem, &inputs);
    let mut out = vec![0.0; about(u, spec.output.extent())?.min(SMALL)];
    let mut lse = vec![0.0; about(u, problem.rows())?.min(SMALL)];
    let mut outputs = Outputs::new(ElementsMut::F32(&mut out));
    outputs.lse = Some(&mut lse);
    if let Err(error) = outputs.check(problem) {
        check_message(&error);
    }
    Ok(())
}

/// Picks a length in `0..=most`, or occasionally any other number.
fn length(u: &mut Unstructured<'_>, most: usize) -> Result<i64> {
    if u.ratio(1, 32)? { u.arbitrary() } else { u.int_in_range(0..=most as i64) }
}

/// Picks cumulative lengths of `n` sequences over `total` tokens. Some of these lists are invalid.
fn bounds(u: &mut Unstructured<'_>, n: usize, total: usize, list: &mut Vec<i64>) -> Result<()> {
    list.push(0);
    for _ in 1..n.min(SMALL) {
        list.push(length(u, total)?);
    }
    if !u.ratio(1, 16)? {
        list.sort_unstable();
    }
    if !u.ratio(1, 32)? {
        list.push(total as i64);
    }
    Ok(())
}

/// Compares the sequences, rows and key ranges of accepted data with their definition.
fn accepted(problem: &Problem, inputs: &Inputs<'_>) {
    let spec = problem.spec();
    let (mut queries, mut keys) = (0, 0);
    for index in 0..problem.sequences() {
        let s = problem.sequence(&inputs.lengths, index);
        assert!(s.valid <= s.keys && s.keys <= problem.keys(), "{s:?}");
        assert!(s.query0 + s.queries <= spec.query.tokens(), "{s:?}");
        assert!(s.batch < spec.query.batch(), "{s:?}");
        assert!(s.keys - s.past + s.key0 <= spec.key.tokens(), "{s:?}");
        if spec.packed.is_some() {
            assert_eq!((s.query0, s.key0), (queries, keys), "{s:?}");
        }
        queries += s.queries;
        keys += s.keys;
        let mut before = (0, 0);
        for i in 0..s.queries {
            let range = s.range(i);
            assert!(range.0 <= range.1 && range.1 <= s.valid, "{s:?} row {i}: {range:?}");
            assert!(before.0 <= range.0 && before.1 <= range.1, "{s:?} row {i}: {range:?} after {before:?}");
            before = range;
            for j in 0..s.keys {
                let attended = (range.0..range.1).contains(&j);
                assert_eq!(attended, attends(problem, &s, i, j), "{s:?} row {i} key {j}: {range:?}");
            }
            if let Some(mask) = &spec.mask {
                for head in 0..problem.heads() {
                    let row = mask.row(s.batch, head, i);
                    assert!(range.0 == range.1 || row.index(range.1 - 1) < mask.extent(), "{s:?} row {i}");
                }
            }
        }
        for from in 0..s.queries {
            let (any, all) = s.ranges(from..s.queries);
            for j in 0..s.keys {
                let of = |i: &usize| attends(problem, &s, *i, j);
                assert!(
                    any.contains(&j) || !(from..s.queries).any(|i| of(&i)),
                    "{s:?} {from}.. key {j}: {any:?}"
                );
                assert_eq!(
                    all.contains(&j),
                    (from..s.queries).all(|i| of(&i)),
                    "{s:?} {from}.. key {j}: {all:?}"
                );
            }
        }
    }
    if spec.packed.is_some() {
        assert_eq!((queries, keys), (spec.query.tokens(), spec.key.tokens()));
    }
}

/// Returns `true` if the length, causality, the window and the last axis of the mask allow row `i` to attend key
/// `j`, as `elsa_core::attention` defines it.
fn attends(problem: &Problem, s: &Sequence, i: usize, j: usize) -> bool {
    let spec = problem.spec();
    let offset = match spec.causal {
        Some(Alignment::BottomRight) => s.valid as i128 - s.queries as i128,
        _ => s.past as i128,
    };
    let diagonal = i as i128 + offset;
    let key = j as i128;
    j < s.valid
        && (spec.causal.is_none() || key <= diagonal)
        && spec.window.left.is_none_or(|left| key >= diagonal - left as i128)
        && spec.window.right.is_none_or(|right| key <= diagonal + right as i128)
        && spec.mask.is_none_or(|mask| mask.shape()[3] == 1 || j < mask.shape()[3])
}
