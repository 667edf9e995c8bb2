//! Computes the convolution of a channel by multiplying spectra, in f64.
//!
//! The signal `x` of a channel and its weights are real. With `ω = e^(−2πi/n)`, the spectrum of `n` real values is
//! `X_k = Σ_j x_j ω^(jk)`; the indices `k = 0 … n/2` are enough. A complex transform of length `n` would compute twice as much
//! as needed, so the even and odd values become the real and imaginary parts of `m = n/2` numbers
//! `z_j = x_(2j) + i x_(2j+1)`. A complex transform of length `m` yields `Z`, and with `Z_m = Z_0`
//!
//! ```text
//! even_k = (Z_k + conj Z_(m−k)) / 2,   odd_k = (Z_k − conj Z_(m−k)) / 2i,   X_k = even_k + ω^k odd_k
//! ```
//!
//! The inverse solves these equations for `Z_k = even_k + i odd_k`. Indices `k` and `m − k` share their sums, so
//! [`unpack`] and [`pack`] process them together, in place.
//!
//! Lengths are `2^i` or `3 · 2^i` (`fft_length` in `elsa-core`). The complex transforms therefore need neither a planner
//! nor the transforms of other primes, which are larger than all other code of a convolution.

use elsa_core::series::convolution::Problem;
use elsa_core::series::plan::SeriesLayout;
use rustfft::algorithm::Radix4;
use rustfft::algorithm::butterflies::{Butterfly3, Butterfly6, Butterfly12, Butterfly24};
use rustfft::num_complex::Complex;
use rustfft::{Fft, FftDirection};
use std::f64::consts::TAU;
use std::sync::Arc;

/// The forward and inverse Fourier transforms for one length. Clones of this value share the tables of the transforms.
#[derive(Clone)]
pub struct Transforms {
    length: usize,
    forward: Arc<Radix4<f64>>,
    inverse: Arc<Radix4<f64>>,
    /// The powers `ω^k` for `k = 0 … n/4`.
    roots: Arc<[Complex<f64>]>,
}

impl std::fmt::Debug for Transforms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transforms").field("length", &self.length).finish_non_exhaustive()
    }
}

/// Creates the complex transform for `length` numbers, which must be `2^i` or `3 · 2^i`.
fn complex(length: usize, direction: FftDirection) -> Arc<Radix4<f64>> {
    if length.is_power_of_two() {
        return Arc::new(Radix4::new(length, direction));
    }
    // The base is multiplied by a power of four.
    let base: Arc<dyn Fft<f64>> = match length.trailing_zeros() {
        0 => Arc::new(Butterfly3::new(direction)),
        1 => Arc::new(Butterfly6::new(direction)),
        i if i % 2 == 0 => Arc::new(Butterfly12::new(direction)),
        _ => Arc::new(Butterfly24::new(direction)),
    };
    Arc::new(Radix4::new_with_base((length / base.len()).trailing_zeros() / 2, base))
}

/// Replaces the transform `Z_0 … Z_(m−1)` by the spectrum `X_0 … X_m`. `roots` has the powers of `ω`.
fn unpack(spectrum: &mut [Complex<f64>], roots: &[Complex<f64>]) {
    let m = spectrum.len() - 1;
    spectrum[m] = spectrum[0];
    for (k, root) in roots.iter().enumerate() {
        let (z, mirrored) = (spectrum[k], spectrum[m - k].conj());
        let even = (z + mirrored).unscale(2.0);
        let odd = (z - mirrored).unscale(2.0);
        // Division by i: (a + bi) / i = b − ai.
        let turned = root * Complex::new(odd.im, -odd.re);
        spectrum[k] = even + turned;
        spectrum[m - k] = (even - turned).conj();
    }
}

/// Replaces the spectrum `X_0 … X_m` by `2 Z_0 … 2 Z_(m−1)`. The last number of `spectrum` is then no longer needed.
fn pack(spectrum: &mut [Complex<f64>], roots: &[Complex<f64>]) {
    let m = spectrum.len() - 1;
    for (k, root) in roots.iter().enumerate() {
        let (x, mirrored) = (spectrum[k], spectrum[m - k].conj());
        let even = x + mirrored;
        let odd = (x - mirrored) * root.conj();
        // Multiplication by i: i (a + bi) = −b + ai.
        let turned = Complex::new(-odd.im, odd.re);
        spectrum[k] = even + turned;
        spectrum[m - k] = (even - turned).conj();
    }
}

impl Transforms {
    /// Upper limit on the size of the tables of the transforms, in bytes per transformed value.
    pub const BYTES: usize = 64;

    /// Creates the transforms for `length` values, which must be `2^i` or `3 · 2^i` and at least 4. Returns `None` if the
    /// system cannot allocate memory for their tables.
    pub fn new(length: usize) -> Option<Transforms> {
        // The transforms end the process if memory is not available, so this statement first checks that the memory for
        // the tables is available.
        Vec::<u8>::new().try_reserve_exact(length.checked_mul(Self::BYTES)?).ok()?;
        let root = |k: usize| Complex::cis(-TAU * k as f64 / length as f64);
        Some(Transforms {
            length,
            forward: complex(length / 2, FftDirection::Forward),
            inverse: complex(length / 2, FftDirection::Inverse),
            roots: (0..=length / 4).map(root).collect(),
        })
    }

    /// Returns the size of the scratch memory that the transforms need, as a number of f64 values.
    pub fn scratch(&self) -> usize {
        2 * self.forward.get_outofplace_scratch_len().max(self.inverse.get_outofplace_scratch_len())
    }

    /// Writes the spectrum of the values that `signal` packs to `spectrum`, and uses `signal` as scratch memory.
    fn spectrum_of(
        &self,
        signal: &mut [Complex<f64>],
        spectrum: &mut [Complex<f64>],
        scratch: &mut [Complex<f64>],
    ) {
        let half = signal.len();
        self.forward.process_outofplace_with_scratch(signal, &mut spectrum[..half], scratch);
        unpack(spectrum, &self.roots);
    }

    /// Writes the values that have the spectrum `spectrum`, multiplied by their number, to `signal`, and uses `spectrum` as
    /// scratch memory.
    fn signal_of(
        &self,
        spectrum: &mut [Complex<f64>],
        signal: &mut [Complex<f64>],
        scratch: &mut [Complex<f64>],
    ) {
        pack(spectrum, &self.roots);
        self.inverse.process_outofplace_with_scratch(&mut spectrum[..signal.len()], signal, scratch);
    }

    /// Returns the scratch memory of a worker. This memory is in the worker's region, which begins at address `region`
    /// in the workspace.
    ///
    /// # Safety
    /// - The region is 64-byte aligned and initialised, and nothing else uses it for the lifetime of the result.
    ///   `layout` belongs to a convolution by FFT of this length, with the scratch that these transforms need.
    pub unsafe fn room<'a>(&'a self, layout: &SeriesLayout, region: *mut f32) -> Room<'a> {
        let [signal, filter, spectrum, scratch] = layout.spectra.map(|span| region.wrapping_add(span.start));
        let half = self.length / 2;
        // SAFETY: spans begin at multiples of 64 bytes and are disjoint (layout). Every bit pattern is a number, and a
        // complex number consists of two numbers.
        unsafe {
            Room {
                of: self,
                signal: std::slice::from_raw_parts_mut(signal.cast(), half),
                filter: std::slice::from_raw_parts_mut(filter.cast(), half + 1),
                spectrum: std::slice::from_raw_parts_mut(spectrum.cast(), half + 1),
                scratch: std::slice::from_raw_parts_mut(scratch.cast(), self.scratch() / 2),
            }
        }
    }
}

/// Scratch memory of a worker's transforms.
#[derive(Debug)]
pub struct Room<'a> {
    of: &'a Transforms,
    /// Real values, two in a number.
    signal: &'a mut [Complex<f64>],
    filter: &'a mut [Complex<f64>],
    spectrum: &'a mut [Complex<f64>],
    scratch: &'a mut [Complex<f64>],
}

/// Returns the real values that `signal` packs, in order.
fn values(signal: &mut [Complex<f64>]) -> impl Iterator<Item = &mut f64> {
    signal.iter_mut().flat_map(|z| [&mut z.re, &mut z.im])
}

impl Room<'_> {
    /// Computes the spectrum of a channel's filter. Returns whether all weights are finite; if not, the spectrum must
    /// not be used.
    pub fn filter(&mut self, problem: &Problem, weights: &[f32], channel: usize) -> bool {
        self.signal.fill(Complex::ZERO);
        let mut finite = true;
        for (back, x) in values(self.signal).take(problem.taps()).enumerate() {
            let weight = weights[problem.weight(channel, back)];
            finite &= weight.is_finite();
            *x = f64::from(weight);
        }
        self.of.spectrum_of(self.signal, self.filter, self.scratch);
        let scale = 1.0 / self.of.length as f64;
        self.filter.iter_mut().for_each(|x| *x *= scale);
        finite
    }

    /// Writes the convolution at every token to `to`. `input` returns the inputs in the order of the pass: first the
    /// `history` past inputs, then one input for each token. Non-finite inputs count as zero. Returns whether all
    /// inputs were finite.
    pub fn convolve(&mut self, history: usize, input: impl Fn(usize) -> f32, to: &mut [f32]) -> bool {
        let mut finite = true;
        self.signal.fill(Complex::ZERO);
        for (i, x) in values(self.signal).take(history + to.len()).enumerate() {
            let value = input(i);
            finite &= value.is_finite();
            *x = if value.is_finite() { f64::from(value) } else { 0.0 };
        }
        self.of.spectrum_of(self.signal, self.spectrum, self.scratch);
        self.spectrum.iter_mut().zip(&*self.filter).for_each(|(x, filter)| *x *= filter);
        self.of.signal_of(self.spectrum, self.signal, self.scratch);
        to.iter_mut().zip(values(self.signal).skip(history)).for_each(|(to, x)| *to = *x as f32);
        finite
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::random::Random;

    /// Compares spectra with their definition, and restored values with the original ones, for both kinds of lengths.
    #[test]
    fn spectra_equal_their_definition() {
        let mut r = Random::new(7);
        for length in [4usize, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768] {
            let transforms = Transforms::new(length).unwrap();
            let x: Vec<f64> = (0..length).map(|_| f64::from(r.normal())).collect();
            let mut signal: Vec<_> = x.chunks(2).map(|two| Complex::new(two[0], two[1])).collect();
            let mut spectrum = vec![Complex::ZERO; length / 2 + 1];
            let mut scratch = vec![Complex::ZERO; transforms.scratch() / 2];
            transforms.spectrum_of(&mut signal, &mut spectrum, &mut scratch);
            // A bound on the sum of the magnitudes, times a few units in the last place for each of the log n steps.
            let allowed = 1e-15 * x.iter().map(|x| x.abs()).sum::<f64>();
            for (k, found) in spectrum.iter().enumerate() {
                let root = |j: usize| Complex::cis(-TAU * (j * k % length) as f64 / length as f64);
                let want: Complex<f64> = x.iter().enumerate().map(|(j, x)| root(j) * x).sum();
                assert!((found - want).norm() <= allowed, "{length}, {k}: {found}, not {want}");
            }
            transforms.signal_of(&mut spectrum, &mut signal, &mut scratch);
            for (j, (found, want)) in values(&mut signal).zip(&x).enumerate() {
                let found = *found / length as f64;
                assert!((found - want).abs() <= allowed, "{length}, {j}: {found}, not {want}");
            }
        }
    }
}
