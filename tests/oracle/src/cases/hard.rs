//! Designed cases: sizes near those of tiles and blocks, extreme magnitudes, rows without keys, NaN and infinities, every
//! feature.

use super::case::Case;
use super::data::MaskData;
use super::params::{MaskParams, Params};
use super::windowed::windowed;
use elsa_core::attention::{Alignment, MaskKind, Window};
use elsa_core::dtype::DType;
use elsa_core::view::Layout;

/// Head sizes that the kernels must support: multiples of vector widths, and sizes in between.
pub const HEAD_SIZES: [usize; 14] = [1, 3, 8, 16, 24, 32, 40, 64, 72, 80, 96, 128, 192, 256];

/// Numbers of tokens, most of them around the sizes of blocks and tiles.
pub const LENGTHS: [usize; 9] = [1, 3, 63, 64, 65, 127, 129, 197, 577];

/// Returns problems that break naive code, each with a name.
#[must_use]
pub fn hard_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    shapes(&mut cases);
    magnitudes(&mut cases);
    absences(&mut cases);
    poison(&mut cases);
    semantics(&mut cases);
    windowed(&mut cases);
    // Calls with very few queries use separate kernels.
    let few: Vec<Case> = cases
        .iter()
        .enumerate()
        .flat_map(|(i, case)| [1, 2 + i % 3].into_iter().filter_map(|n| case.first_queries(n)))
        .collect();
    cases.extend(few);
    cases
}

/// Returns every third hard case. The test `conformance` uses all of them, so other tests need only this selection.
#[must_use]
pub fn some_hard_cases() -> Vec<Case> {
    hard_cases().into_iter().step_by(3).collect()
}

fn additive(dims: &[usize], density: f64) -> Option<MaskParams> {
    Some(MaskParams { kind: MaskKind::Additive(DType::F32), dims: dims.to_vec(), density })
}

fn boolean(dims: &[usize], density: f64) -> Option<MaskParams> {
    Some(MaskParams { kind: MaskKind::Bool, dims: dims.to_vec(), density })
}

fn shapes(cases: &mut Vec<Case>) {
    for n in LENGTHS {
        cases.push(Params::plain(n, n, 64, 64).build(format!("n = {n}")));
        let causal = Some(Alignment::BottomRight);
        cases.push(Params { causal, ..Params::plain(n, n, 16, 16) }.build(format!("n = {n}, causal")));
    }
    for d in HEAD_SIZES {
        cases.push(Params::plain(17, 70, d, d).build(format!("d = {d}")));
    }
    for (d, dv) in [(64, 1), (1, 64), (64, 128), (80, 24), (3, 5), (256, 8)] {
        cases.push(Params::plain(19, 131, d, dv).build(format!("d = {d}, d_v = {dv}")));
    }
    for dtype in [DType::F16, DType::Bf16] {
        for n in [1, 65, 197] {
            cases.push(Params { dtype, ..Params::plain(n, n, 64, 64) }.build(format!("{dtype}, n = {n}")));
        }
        for d in [1, 3, 24, 72] {
            cases.push(Params { dtype, ..Params::plain(5, 33, d, d + 1) }.build(format!("{dtype}, d = {d}")));
        }
    }
    cases.push(Params::plain(1, 1, 1, 1).build("a single number"));
    cases.push(Params::plain(1, 577, 64, 64).build("one query"));
    cases.push(Params::plain(577, 1, 64, 64).build("one key"));
    cases.push(Params::plain(2, 1700, 8, 8).build("several segments"));
    cases.push(Params::plain(0, 5, 8, 8).build("zero queries"));
    cases.push(Params::plain(5, 0, 8, 8).build("zero keys"));
    cases.push(Params::plain(0, 0, 8, 8).build("zero queries and keys"));
    for layout in [Layout::Bhnd, Layout::Bnhd, Layout::Bnc] {
        for pad in [0, 5] {
            let p = Params { layout, pad, batch: 2, heads: 3, kv_heads: 3, ..Params::plain(21, 37, 24, 40) };
            cases.push(p.build(format!("layout {layout:?}, {pad} elements between rows")));
        }
    }
    let p = Params { batch: 3, shared_keys: true, lengths: true, ..Params::plain(9, 40, 16, 16) };
    cases.push(p.build("keys shared by the batch"));
}

fn magnitudes(cases: &mut Vec<Case>) {
    for gain in [1e3, 1e4] {
        let p = Params { gain, ..Params::plain(33, 129, 64, 64) };
        cases.push(p.build(format!("scores that overflow exp, queries of {gain}")));
    }
    let p = Params { gain: 1e3, dtype: DType::F16, ..Params::plain(33, 129, 32, 32) };
    cases.push(p.build("scores that overflow exp, f16"));
    for at in [0, 64, 128] {
        let mut c = Params::plain(17, 129, 32, 32).build(format!("one dominant key, {at}"));
        // This key is the only one that points in the direction of the queries.
        let key = c.spec.key.row(0, 0, at);
        for i in 0..17 {
            let query = c.spec.query.row(0, 0, i);
            for x in 0..32 {
                c.k.set(key + x, if x % 2 == 0 { 40.0 } else { -40.0 });
                c.q.set(query + x, if x % 2 == 0 { 2.0 } else { -2.0 });
            }
        }
        cases.push(c);
    }
    for (up, name) in [(true, "scores rise with every key"), (false, "scores fall with every key")] {
        let mut c = Params::plain(5, 700, 4, 8).build(name);
        for j in 0..700 {
            c.fill_key(0, j, if up { j as f32 } else { 700.0 - j as f32 });
        }
        (0..c.q.len()).for_each(|x| c.q.set(x, 10.0));
        cases.push(c);
    }
    for value in [1e30, 1e-30, 1e-38, 1e-41] {
        let mut c = Params::plain(17, 129, 16, 16).build(format!("values of {value:e}"));
        (0..c.v.len()).for_each(|x| c.v.set(x, c.v.get(x) * value));
        cases.push(c);
    }
    let mut c =
        Params { dtype: DType::F16, ..Params::plain(17, 65, 16, 16) }.build("values near the end of f16");
    (0..c.v.len()).for_each(|x| c.v.set(x, if c.v.get(x) > 0.0 { 65504.0 } else { -6e-8 }));
    cases.push(c);
    for dtype in [DType::F32, DType::F16] {
        let tiny = if dtype == DType::F32 { 1e-41 } else { 1e-6 };
        let mut c =
            Params { dtype, ..Params::plain(9, 65, 16, 16) }.build(format!("subnormal inputs, {dtype}"));
        (0..c.q.len()).for_each(|x| c.q.set(x, c.q.get(x) * tiny));
        (0..c.k.len()).for_each(|x| c.k.set(x, c.k.get(x) * tiny));
        (0..c.v.len()).for_each(|x| c.v.set(x, c.v.get(x) * tiny));
        cases.push(c);
    }
    for largest in [1.0, -1.0] {
        let mut c =
            Params::plain(9, 129, 16, 20).build(format!("values as large as a problem may have, {largest}"));
        // If all 129 keys had twice the largest weight (2^8), the weighted sum would be the largest number of f32.
        let value = f32::MAX / (129.0 * 512.0) * largest;
        (0..c.v.len()).for_each(|x| c.v.set(x, value));
        cases.push(c);
    }
    for softcap in [None, Some(2.0)] {
        let name = format!("scores of both infinities, soft cap {softcap:?}");
        let mut c = Params { softcap, ..Params::plain(9, 70, 16, 20) }.build(name);
        for x in 0..c.q.len() {
            c.q.set(x, if x % 16 == 0 { f32::INFINITY } else { 0.5 });
        }
        for j in 0..70 {
            // With a soft cap, the row attends keys whose scores before the cap are `+∞` and `−∞`. Without a soft cap, the
            // case contains no score of `+∞`, because it would lead to NaN.
            c.k.set(j * 16, if softcap.is_some() && j % 2 == 0 { 1.0 } else { -1.0 });
        }
        cases.push(c);
    }
    let mut c = Params::plain(9, 200, 16, 16).build("identical keys");
    for j in 0..200 {
        c.fill_key(0, j, 0.5);
    }
    cases.push(c);
    let mut c = Params::plain(9, 200, 16, 16).build("values that cancel");
    for j in 0..200 {
        c.fill_key(0, j, 0.5);
        c.fill_value(0, j, if j % 2 == 0 { 1000.0 } else { -1000.0 });
    }
    cases.push(c);
    let mut c = Params::plain(9, 64, 16, 16).build("queries of zero, negative zero and one sign");
    (0..c.q.len()).for_each(|x| c.q.set(x, [0.0, -0.0, -1.0][x / 16 % 3]));
    cases.push(c);
}

fn absences(cases: &mut Vec<Case>) {
    let base = Params { batch: 2, heads: 2, kv_heads: 1, ..Params::plain(19, 70, 16, 16) };
    cases
        .push(Params { mask: boolean(&[1, 1, 1, 70], 0.0), ..base.clone() }.build("everything masked, bool"));
    cases.push(Params { mask: additive(&[19, 70], 0.0), ..base.clone() }.build("everything masked, float"));
    for (mask, name) in [(boolean(&[19, 70], 0.5), "bool"), (additive(&[19, 70], 0.5), "float")] {
        let mut c = Params { mask, ..base.clone() }.build(format!("some rows masked whole, {name}"));
        for i in [0usize, 7, 18] {
            for j in 0..70 {
                if let Some(mask) = &mut c.mask {
                    mask.set_attended(i * 70 + j, false);
                }
            }
        }
        cases.push(c);
    }
    let mut c = Params { lengths: true, ..base.clone() }.build("a sequence without valid keys");
    c.lengths = Some(vec![0, 70]);
    cases.push(c);
    let causal = Some(Alignment::BottomRight);
    cases.push(Params { causal, ..Params::plain(70, 19, 16, 16) }.build("more queries than keys, causal"));
    let causal = Some(Alignment::TopLeft);
    cases.push(Params { causal, ..Params::plain(19, 70, 16, 16) }.build("more keys than queries, causal"));
    let window = Window { left: None, right: Some(0) };
    cases.push(Params { window, ..Params::plain(33, 70, 16, 16) }.build("window open to the left"));
    let window = Window { left: Some(0), right: Some(0) };
    cases.push(Params { window, ..Params::plain(33, 70, 16, 16) }.build("the diagonal alone"));
    let window = Window { left: Some(usize::MAX), right: Some(usize::MAX) };
    cases.push(Params { window, ..Params::plain(9, 70, 16, 16) }.build("a window wider than any length"));
    let window = Window { left: Some(2), right: Some(1) };
    cases.push(Params { window, ..Params::plain(90, 40, 16, 16) }.build("a window that leaves the keys"));
    let mut c =
        Params { mask: boolean(&[3, 2100], 0.0), ..Params::plain(3, 2100, 8, 8) }.build("gaps of segments");
    for (i, j) in [(0usize, 3usize), (0, 1600), (1, 2099), (2, 511), (2, 512), (2, 1536)] {
        if let Some(mask) = &mut c.mask {
            mask.set_attended(i * 2100 + j, true);
        }
    }
    cases.push(c);
}

fn poison(cases: &mut Vec<Case>) {
    const BAD: [(f32, &str); 3] =
        [(f32::NAN, "NaN"), (f32::INFINITY, "infinity"), (f32::NEG_INFINITY, "minus infinity")];
    for (bad, name) in BAD {
        let base = Params::plain(19, 70, 16, 16);
        for mask in [boolean(&[1, 70], 0.7), additive(&[1, 70], 0.7), boolean(&[19, 70], 0.7)] {
            let kind = mask.as_ref().map_or("", |m| m.kind.name());
            let rows = mask.as_ref().map_or(1, |m| m.dims[0]);
            let mut c = Params { mask, ..base.clone() }
                .build(format!("{name} in keys and values that a {kind} mask of {rows} rows takes out"));
            for j in [0usize, 5, 69] {
                for i in 0..rows {
                    if let Some(mask) = &mut c.mask {
                        mask.set_attended(i * 70 + j, false);
                    }
                }
                c.fill_key(0, j, bad);
                c.fill_value(0, j, bad);
            }
            cases.push(c);
        }
        let mut c = Params { batch: 2, lengths: true, ..base.clone() }
            .build(format!("{name} in keys and values beyond the valid ones"));
        c.lengths = Some(vec![41, 0]);
        for (b, from) in [(0, 41), (1, 0)] {
            for j in from..70 {
                c.fill_key(b, j, bad);
                c.fill_value(b, j, bad);
            }
        }
        cases.push(c);
        let window = Window { left: Some(3), right: None };
        let mut c = Params { causal: Some(Alignment::TopLeft), window, ..base.clone() }
            .build(format!("{name} in keys and values that only some rows attend"));
        c.fill_key(0, 9, bad);
        c.fill_value(0, 9, bad);
        cases.push(c);
        let mut c = Params { mask: additive(&[19, 50], 1.0), ..base.clone() }
            .build(format!("{name} in keys and values past the end of the mask"));
        for j in 50..70 {
            c.fill_key(0, j, bad);
            c.fill_value(0, j, bad);
        }
        cases.push(c);
        // A mask is not read for keys that lengths or causality already exclude.
        for dims in [&[19usize, 70][..], &[1, 70]] {
            let mut c = Params { mask: additive(dims, 1.0), lengths: true, ..base.clone() }
                .build(format!("{name} in a mask of {} rows beyond the valid keys", dims[0]));
            c.lengths = Some(vec![30]);
            for i in 0..dims[0] {
                for j in 30..70 {
                    if let Some(MaskData::Additive(mask)) = &mut c.mask {
                        mask.set(i * 70 + j, bad);
                    }
                }
            }
            cases.push(c);
        }
        let mut c = Params { mask: additive(&[19, 70], 1.0), ..base.clone() }
            .build(format!("{name} in the mask of one attended key"));
        if let Some(MaskData::Additive(mask)) = &mut c.mask {
            mask.set(3 * 70 + 11, bad);
        }
        cases.push(c);
    }
    let base = Params { heads: 2, kv_heads: 1, ..Params::plain(19, 140, 16, 16) };
    let mut c = base.build("NaN in one element of a query");
    let at = c.spec.query.row(0, 1, 7);
    c.q.set(at + 3, f32::NAN);
    cases.push(c);
    for j in [0, 70, 139] {
        let mut c = base.build(format!("NaN in one element of attended key {j}"));
        let at = c.spec.key.row(0, 0, j);
        c.k.set(at + 15, f32::NAN);
        cases.push(c);
        let mut c = base.build(format!("NaN in one element of attended value {j}"));
        let at = c.spec.value.row(0, 0, j);
        c.v.set(at + 2, f32::NAN);
        cases.push(c);
        // Key `j` is NaN, while key 33 has a far larger score than all other keys.
        let mut c = base.build(format!("NaN in attended key {j} beside a dominant one"));
        c.fill_key(0, j, f32::NAN);
        c.fill_key(0, 33, 1000.0);
        (0..c.q.len()).for_each(|x| c.q.set(x, 1.0));
        cases.push(c);
        let mut c = base.build(format!("score of minus infinity at key {j}"));
        (0..c.q.len()).for_each(|x| c.q.set(x, c.q.get(x).abs() + 0.1));
        c.fill_key(0, j, f32::NEG_INFINITY);
        cases.push(c);
    }
    let mut c = base.build("all scores minus infinity");
    (0..c.q.len()).for_each(|x| c.q.set(x, 1.0));
    (0..140).for_each(|j| c.fill_key(0, j, f32::NEG_INFINITY));
    cases.push(c);
}

fn semantics(cases: &mut Vec<Case>) {
    let base = Params { batch: 2, heads: 4, kv_heads: 2, ..Params::plain(23, 75, 16, 24) };
    for causal in [Alignment::TopLeft, Alignment::BottomRight] {
        for past in [None, Some(0), Some(61)] {
            for lengths in [false, true] {
                let p = Params { causal: Some(causal), past, present: true, lengths, ..base.clone() };
                cases.push(p.build(format!("{causal:?}, past {past:?}, lengths {lengths}")));
            }
        }
    }
    for dims in [
        &[75usize][..],
        &[1],
        &[23, 75],
        &[23, 1],
        &[4, 1, 75],
        &[4, 23, 75],
        &[2, 1, 1, 75],
        &[2, 4, 23, 75],
    ] {
        for mask in [boolean(dims, 0.6), additive(dims, 0.6)] {
            let kind = mask.as_ref().map_or("", |m| m.kind.name());
            cases.push(Params { mask, ..base.clone() }.build(format!("{kind} mask {dims:?}")));
        }
    }
    for dtype in [DType::F16, DType::Bf16] {
        let mask = Some(MaskParams { kind: MaskKind::Additive(dtype), dims: vec![23, 75], density: 0.6 });
        cases.push(Params { mask, dtype, ..base.clone() }.build(format!("{dtype} mask and data")));
    }
    cases
        .push(Params { mask: boolean(&[23, 64], 0.8), ..base.clone() }.build("a mask shorter than the keys"));
    cases.push(Params { mask: additive(&[2, 1, 1, 0], 0.8), ..base.clone() }.build("a mask without keys"));
    for softcap in [0.5, 30.0] {
        let p = Params { softcap: Some(softcap), gain: 20.0, mask: additive(&[23, 75], 0.8), ..base.clone() };
        cases.push(p.build(format!("soft cap {softcap} and a float mask")));
    }
    for scale in [0.0, -1.0, 0.37] {
        cases.push(Params { scale: Some(scale), ..base.clone() }.build(format!("scale {scale}")));
    }
    for (heads, kv_heads) in [(8, 1), (6, 3), (5, 5)] {
        let p = Params { heads, kv_heads, ..base.clone() };
        cases.push(p.build(format!("{heads} heads over {kv_heads}")));
    }
    let packed = Some(vec![(5, 9), (0, 4), (7, 0), (1, 1), (0, 0), (40, 70), (3, 66)]);
    for causal in [None, Some(Alignment::TopLeft), Some(Alignment::BottomRight)] {
        for layout in [Layout::Bhnd, Layout::Bnhd] {
            let p = Params { packed: packed.clone(), causal, layout, batch: 1, ..base.clone() };
            cases.push(p.build(format!("packed, {causal:?}, {layout:?}")));
        }
    }
    let window = Window { left: Some(4), right: Some(2) };
    let p = Params { packed, window, batch: 1, ..base.clone() };
    cases.push(p.build("packed with a window"));
    let p = Params {
        window,
        past: Some(10),
        lengths: true,
        softcap: Some(3.0),
        mask: additive(&[4, 23, 80], 0.8),
        present: true,
        layout: Layout::Bnc,
        ..base
    };
    cases.push(p.build("everything at once"));
}
