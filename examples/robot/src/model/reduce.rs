//! Reduces a frame of any size to the picture that the network reads.
//!
//! The picture has 8 x 8 cells, and the frame is divided into 8 x 8 equal parts. The value of a cell is the mean of the
//! grey values in the corresponding part. A pixel on the border of a part counts in proportion to its area inside the
//! part. Along an axis of `n` pixels, measured in eighths of a pixel, cell `c` covers `[c n, (c + 1) n)` and pixel `p`
//! covers `[8 p, 8 p + 8)`, so every overlap is an integer and the sums are exact.

use crate::frame::{Frame, PixelFormat};

/// Number of cells per side of the picture.
pub const SIDE: usize = 8;

/// Returns the range of the pixels that cell `c` overlaps along an axis of `n` pixels.
fn touched(c: usize, n: usize) -> std::ops::Range<usize> {
    c * n / SIDE..((c + 1) * n).div_ceil(SIDE)
}

/// Returns the overlap of cell `c` and pixel `p` along an axis of `n` pixels, in eighths of a pixel.
fn overlap(c: usize, n: usize, p: usize) -> u64 {
    (((c + 1) * n).min((p + 1) * SIDE) - (c * n).max(p * SIDE)) as u64
}

/// Writes the mean grey value of each cell, from 0 to 255, to `cells`, row by row.
pub(super) fn reduce(frame: &Frame<'_>, cells: &mut [f32; SIDE * SIDE]) {
    let size = frame.geometry().size;
    match frame.geometry().format {
        PixelFormat::Grey => sums(frame, cells, |row, x| row[x]),
        PixelFormat::Yuyv => sums(frame, cells, |row, x| row[2 * x]),
        PixelFormat::Rgb8 => sums(frame, cells, |row, x| luma([row[3 * x], row[3 * x + 1], row[3 * x + 2]])),
    }
    let area = (size.width * size.height) as f32;
    cells.iter_mut().for_each(|cell| *cell /= area);
}

/// Returns the grey value of a colour, with the weights of ITU-R BT.601 rounded to multiples of 1/256.
fn luma([r, g, b]: [u8; 3]) -> u8 {
    ((77 * u32::from(r) + 150 * u32::from(g) + 29 * u32::from(b)) >> 8) as u8
}

/// Adds to each cell the grey values of the pixels that it overlaps, weighted by the area of the overlap.
fn sums(frame: &Frame<'_>, cells: &mut [f32; SIDE * SIDE], grey: impl Fn(&[u8], usize) -> u8) {
    let size = frame.geometry().size;
    for (cy, cells) in cells.chunks_exact_mut(SIDE).enumerate() {
        let mut sums = [0u64; SIDE];
        for y in touched(cy, size.height) {
            let row = frame.row(y);
            let tall = overlap(cy, size.height, y);
            for (cx, sum) in sums.iter_mut().enumerate() {
                let wide = touched(cx, size.width)
                    .map(|x| overlap(cx, size.width, x) * u64::from(grey(row, x)))
                    .sum::<u64>();
                *sum += tall * wide;
            }
        }
        for (cell, sum) in cells.iter_mut().zip(sums) {
            *cell = sum as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Geometry, Size};

    /// Computes the means in f64, pixel by pixel, directly from their definition.
    fn naive(size: Size, grey: impl Fn(usize, usize) -> f64) -> Vec<f64> {
        let share = |c: usize, n: usize, p: usize| {
            let (n, c, p) = (n as f64 / SIDE as f64, c as f64, p as f64);
            (((c + 1.0) * n).min(p + 1.0) - (c * n).max(p)).max(0.0)
        };
        let mut cells = Vec::new();
        for cy in 0..SIDE {
            for cx in 0..SIDE {
                let mut sum = 0.0;
                for y in 0..size.height {
                    for x in 0..size.width {
                        sum += share(cy, size.height, y) * share(cx, size.width, x) * grey(x, y);
                    }
                }
                cells.push(sum * (SIDE * SIDE) as f64 / (size.width * size.height) as f64);
            }
        }
        cells
    }

    #[test]
    fn cells_are_means_over_areas_for_every_size_and_format() {
        for (width, height) in [(8, 8), (1, 1), (3, 5), (16, 8), (13, 29), (100, 7)] {
            let size = Size { width, height };
            for format in [PixelFormat::Grey, PixelFormat::Rgb8, PixelFormat::Yuyv] {
                let dense = Geometry::dense(size, format);
                let geometry = Geometry { stride: dense.stride + 5, ..dense };
                let data: Vec<u8> =
                    (0..geometry.stride * height).map(|i| (i * i * 31 + i * 7) as u8).collect();
                let at = |x: usize, y: usize| {
                    let pixel = &data[y * geometry.stride + x * format.pixel_bytes()..];
                    match format {
                        PixelFormat::Rgb8 => f64::from(luma([pixel[0], pixel[1], pixel[2]])),
                        _ => f64::from(pixel[0]),
                    }
                };
                let mut cells = [0.0; SIDE * SIDE];
                reduce(&Frame::new(geometry, &data).unwrap(), &mut cells);
                for (cell, wanted) in cells.iter().zip(naive(size, at)) {
                    assert!((f64::from(*cell) - wanted).abs() < 1e-4, "{size} {format:?} {cell} {wanted}");
                }
            }
        }
        assert_eq!([luma([255; 3]), luma([0; 3]), luma([255, 0, 0])], [255, 0, 76]);
    }
}
