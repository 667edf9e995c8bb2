//! Compares the measurements of rows with a computation that processes one element at a time and has f64 sums. The
//! tests cover every instruction set and type, sizes around the vector width, gaps of NaN between rows, and infinite
//! and NaN elements.

use elsa_core::dtype::DType;
use elsa_kernels::attention::MeasuredRows;
use elsa_kernels::registry::ATTENTION;
use half::{bf16, f16};

const ROWS: usize = 5;

/// Returns number `i` of a sequence with a few different magnitudes.
fn number(i: usize) -> f32 {
    let x = ((i * 7919 + 13) % 1000) as f32 / 500.0 - 1.0;
    x * [1.0, 1e-3, 30.0][i % 3]
}

/// Returns rows of `dim` elements, `stride` apart. Their memory is aligned for any type and ends with the last element.
/// Also returns the elements, rounded to the type.
fn rows(dtype: DType, dim: usize, stride: usize, of: impl Fn(usize) -> f32) -> (Vec<u32>, Vec<f32>) {
    let (mut bytes, mut values) = (Vec::new(), Vec::new());
    for i in 0..ROWS * stride - (stride - dim) {
        let x = if i % stride < dim { of(i / stride * dim + i % stride) } else { f32::NAN };
        let (x, element) = match dtype {
            DType::F32 => (x, x.to_bits().to_ne_bytes().to_vec()),
            DType::F16 => (f16::from_f32(x).to_f32(), f16::from_f32(x).to_bits().to_ne_bytes().to_vec()),
            DType::Bf16 => (bf16::from_f32(x).to_f32(), bf16::from_f32(x).to_bits().to_ne_bytes().to_vec()),
        };
        bytes.extend(element);
        if i % stride < dim {
            values.push(x);
        }
    }
    let words = bytes.chunks(4).map(|chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        u32::from_ne_bytes(word)
    });
    (words.collect(), values)
}

/// Returns `true` if two numbers are equal or both are NaN.
fn same(a: f32, b: f32) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

/// Returns the larger number; NaN is larger than any number.
fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || b <= a { a } else { b }
}

#[test]
fn rows_are_measured_whatever_their_length() {
    let dims: &[usize] = if cfg!(miri) {
        &[1, 17]
    } else {
        &[1, 3, 4, 8, 15, 16, 17, 31, 32, 48, 63, 64, 65, 70, 128, 131, 256]
    };
    // Values that replace the last but one element of the third row; `None` replaces nothing.
    let hostile = [None, Some(f32::NAN), Some(f32::INFINITY), Some(f32::NEG_INFINITY), Some(3e4), Some(-0.0)];
    let hostile = &hostile[..if cfg!(miri) { 2 } else { hostile.len() }];
    let mut ran = 0;
    for kernel in ATTENTION.iter().filter(|kernel| kernel.is_present()) {
        for (dtype, &dim) in
            [DType::F32, DType::F16, DType::Bf16].into_iter().flat_map(|t| dims.iter().map(move |d| (t, d)))
        {
            for (other, gap) in hostile.iter().copied().zip([0, 3, 0, 1, 0, 2]) {
                let at = 2 * dim + dim.saturating_sub(2);
                let of = |i: usize| other.filter(|_| i == at).unwrap_or(number(i));
                let (words, values) = rows(dtype, dim, dim + gap, of);
                let rows =
                    MeasuredRows { data: words.as_ptr().cast(), dtype, stride: dim + gap, rows: ROWS, dim };
                let what = || format!("{} {dtype} {dim} {other:?}", kernel.spec.name);

                let mut norms = [0f32; 2];
                // SAFETY: the rows are in `words`, and two numbers are written; the instruction set is present.
                unsafe { (kernel.measure.norms)(&rows, norms.as_mut_ptr()) };
                let largest = values.iter().fold(0.0, |a, b| larger(a, b.abs()));
                assert!(same(norms[1], largest), "{}: {norms:?} {largest}", what());
                let squares = |row: &[f32]| row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
                let want = values
                    .chunks(dim)
                    .map(squares)
                    .fold(0.0, |a: f64, b| if a.is_nan() || b <= a { a } else { b });
                let found = f64::from(norms[0]);
                let near = (found - want).abs() <= want * (dim as f64 + 4.0) * 2f64.powi(-24);
                assert!(
                    near || found == want || (found.is_nan() && want.is_nan()),
                    "{}: {found:e} {want:e}",
                    what()
                );

                let mut channels = vec![0.25f32; dim];
                // SAFETY: as above; a number for each element of a row is read and written.
                unsafe { (kernel.measure.channels)(&rows, channels.as_mut_ptr()) };
                for (x, found) in channels.iter().enumerate() {
                    let want = values[x..].iter().step_by(dim).fold(0.25, |a, b| larger(a, b.abs()));
                    assert!(same(*found, want), "{}: channel {x} {found} {want}", what());
                }

                let mut added = 0f32;
                // SAFETY: as above; one number is read and written.
                unsafe { (kernel.measure.addends)(&rows, &raw mut added) };
                let want =
                    values.iter().filter(|x| **x != f32::NEG_INFINITY).fold(0.0, |a, b| larger(a, b.abs()));
                assert!(same(added, want), "{}: {added} {want}", what());
                ran += 1;
            }
        }
    }
    assert!(ran >= 2 * 3 * dims.len() * hostile.len());
}

/// Checks that measuring zero rows, or a row of smaller elements, leaves earlier results unchanged.
#[test]
fn what_was_found_stays() {
    for kernel in ATTENTION.iter().filter(|kernel| kernel.is_present()) {
        for rows in [0, 1] {
            let rows =
                MeasuredRows { data: [1f32; 4].as_ptr().cast(), dtype: DType::F32, stride: 4, rows, dim: 4 };
            let mut found = [7.0, f32::NAN, 9.0, 8.0f32];
            // SAFETY: at most the existing rows are read; the instruction set is present.
            unsafe {
                (kernel.measure.norms)(&rows, found.as_mut_ptr());
                (kernel.measure.channels)(&rows, found.as_mut_ptr());
            }
            assert!(found[1].is_nan() && [found[0], found[2], found[3]] == [7.0, 9.0, 8.0], "{found:?}");
        }
    }
}
