//! Cases with biases, tables of relative positions, and windows of pictures.

use super::case::Case;
use super::data::MaskData;
use super::params::{BiasParams, MaskParams, Params};
use elsa_core::attention::{MaskKind, Windows};
use elsa_core::dtype::DType;

const F32: MaskKind = MaskKind::Additive(DType::F32);

fn dense(dims: &[usize], density: f64) -> Option<BiasParams> {
    Some(BiasParams::Dense(MaskParams { kind: F32, dims: dims.to_vec(), density }))
}

fn table(dtype: DType, entries: Option<usize>) -> Option<BiasParams> {
    Some(BiasParams::Table { dtype, entries, density: 1.0 })
}

fn mask(kind: MaskKind, dims: &[usize]) -> Option<MaskParams> {
    Some(MaskParams { kind, dims: dims.to_vec(), density: 0.7 })
}

/// Adds cases with every kind of bias, alone and with a mask, and with windows of pictures, with and without a shift.
pub fn windowed(cases: &mut Vec<Case>) {
    let base = Params { batch: 4, heads: 4, kv_heads: 2, ..Params::plain(23, 75, 16, 24) };
    for dims in
        [&[75usize][..], &[23, 75], &[4, 1, 1], &[4, 23, 75], &[2, 1, 1, 75], &[4, 4, 23, 75], &[23, 64]]
    {
        let name = format!("bias {dims:?}");
        cases.push(Params { bias: dense(dims, 0.8), ..base.clone() }.build(&*name));
        let kind = if dims.len() % 2 == 0 { MaskKind::Bool } else { F32 };
        let masked = mask(kind, &[2, 1, 23, if dims.ends_with(&[64]) { 64 } else { 75 }]);
        let p = Params { mask: masked, bias: dense(dims, 0.8), ..base.clone() };
        cases.push(p.build(format!("{name} beside a {} mask for every second sequence", kind.name())));
    }
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let p = Params { bias: table(dtype, Some(11)), dtype, mask: mask(F32, &[75]), ..base.clone() };
        cases.push(p.build(format!("table of {dtype} with an index")));
    }
    for (picture, size, shift) in [
        ([14, 21], [7, 7], [3, 3]),
        ([14, 14], [7, 7], [0, 0]),
        ([8, 16], [8, 8], [0, 4]),
        ([24, 12], [12, 12], [6, 0]),
        ([16, 16], [16, 16], [8, 8]),
        ([4, 6], [2, 3], [1, 2]),
        ([1, 5], [1, 1], [0, 0]),
    ] {
        let windows = Windows { picture, size, shift };
        let dtype = if size == [8, 8] { DType::F16 } else { DType::F32 };
        let p = Params { heads: 3, kv_heads: 3, d: 32, dv: 32, dtype, ..Params::windowed(windows, 1) };
        let name = format!("windows of {size:?} in {picture:?}, shift {shift:?}");
        if shift != [0, 0] {
            cases.push(p.build(&*name));
        }
        let p = Params { bias: table(dtype, None), ..p };
        cases.push(p.build(format!("{name}, table")));
        let (n, of) = (windows.tokens(), windows.count());
        if n < 60 {
            let p = Params { batch: 2 * of, mask: mask(MaskKind::Bool, &[of, 1, n, n]), ..p };
            cases.push(p.build(format!("{name}, table, a mask for each window, two pictures")));
        }
    }
    hostile(cases, &base);
}

/// Adds cases with a masked key for which the mask or the bias contains NaN or an infinity. The mask, the bias or the
/// shift of the windows masks this key. Also adds a case in which the lowest finite numbers of mask and bias add up.
fn hostile(cases: &mut Vec<Case>, base: &Params) {
    for (name, bad) in [("NaN", f32::NAN), ("+inf", f32::INFINITY)] {
        let p = Params { bias: dense(&[23, 75], 1.0), mask: mask(F32, &[23, 75]), ..base.clone() };
        let mut c = p.build(format!("{name} in a bias behind a mask, and in a mask behind a bias"));
        for at in 0..23 * 75 {
            let (Some(bias), Some(MaskData::Additive(mask))) = (&mut c.bias, &mut c.mask) else { continue };
            if mask.get(at) == f32::NEG_INFINITY {
                bias.set(at, bad);
            } else if at % 11 == 0 {
                bias.set(at, f32::NEG_INFINITY);
                mask.set(at, bad);
            }
        }
        cases.push(c);
        let windows = Windows { picture: [4, 4], size: [4, 4], shift: [2, 1] };
        let p = Params { bias: dense(&[16, 16], 1.0), ..Params::windowed(windows, 1) };
        let mut c = p.build(format!("{name} in the bias of tokens on other sides"));
        for (i, j) in
            (0..16).flat_map(|i| (0..16).map(move |j| (i, j))).filter(|(i, j)| !windows.attends(0, *i, *j))
        {
            if let Some(bias) = &mut c.bias {
                bias.set(i * 16 + j, bad);
            }
        }
        cases.push(c);
    }
    let p = Params { bias: dense(&[23, 75], 1.0), mask: mask(F32, &[75]), ..base.clone() };
    let mut c = p.build("least numbers in mask and bias of all keys of some rows");
    for j in 0..75 {
        let (Some(bias), Some(MaskData::Additive(mask))) = (&mut c.bias, &mut c.mask) else { continue };
        mask.set(j, f32::MIN);
        for i in (0..23).step_by(2) {
            bias.set(i * 75 + j, f32::MIN);
        }
    }
    cases.push(c);
}
