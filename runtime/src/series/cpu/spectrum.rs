//! Computes the convolution of a channel by multiplying spectra, in f64.

use elsa_core::series::convolution::Problem;
use elsa_core::series::plan::SeriesLayout;
use realfft::num_complex::Complex;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};
use std::sync::Arc;

/// The forward and inverse Fourier transforms for one length. Clones of this value share the tables of the transforms.
#[derive(Clone)]
pub struct Transforms {
    length: usize,
    forward: Arc<dyn RealToComplex<f64>>,
    inverse: Arc<dyn ComplexToReal<f64>>,
}

impl std::fmt::Debug for Transforms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transforms").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Transforms {
    /// Upper limit on the size of the tables of the transforms, in bytes per transformed value.
    pub const BYTES: usize = 64;

    /// Creates the transforms for `length` values. Returns `None` if the system cannot allocate memory for their
    /// tables.
    pub fn new(length: usize) -> Option<Transforms> {
        // The planner ends the process if memory is not available, so this statement first checks that the memory for
        // the tables is available.
        Vec::<u8>::new().try_reserve_exact(length.checked_mul(Self::BYTES)?).ok()?;
        let mut planner = RealFftPlanner::new();
        let (forward, inverse) = (planner.plan_fft_forward(length), planner.plan_fft_inverse(length));
        Some(Transforms { length, forward, inverse })
    }

    /// Returns the size of the scratch memory that the transforms need, as a number of f64 values.
    pub fn scratch(&self) -> usize {
        2 * self.forward.get_scratch_len().max(self.inverse.get_scratch_len())
    }

    /// Returns the scratch memory of a worker. This memory is in the worker's region, which begins at address `region`
    /// in the workspace.
    ///
    /// # Safety
    /// - The region is 64-byte aligned and initialised, and nothing else uses it for the lifetime of the result.
    ///   `layout` belongs to a convolution by FFT of this length, with the scratch that these transforms need.
    pub unsafe fn room<'a>(&'a self, layout: &SeriesLayout, region: *mut f32) -> Room<'a> {
        let [signal, filter, spectrum, scratch] = layout.spectra.map(|span| region.wrapping_add(span.start));
        let (n, half) = (self.length, self.length / 2 + 1);
        // SAFETY: spans begin at multiples of 64 bytes and are disjoint (layout). Every bit pattern is a number, and a
        // complex number consists of two numbers.
        unsafe {
            Room {
                of: self,
                signal: std::slice::from_raw_parts_mut(signal.cast(), n),
                filter: std::slice::from_raw_parts_mut(filter.cast(), half),
                spectrum: std::slice::from_raw_parts_mut(spectrum.cast(), half),
                scratch: std::slice::from_raw_parts_mut(scratch.cast(), self.scratch() / 2),
            }
        }
    }
}

/// Scratch memory of a worker's transforms.
#[derive(Debug)]
pub struct Room<'a> {
    of: &'a Transforms,
    signal: &'a mut [f64],
    filter: &'a mut [Complex<f64>],
    spectrum: &'a mut [Complex<f64>],
    scratch: &'a mut [Complex<f64>],
}

impl Room<'_> {
    /// Computes the spectrum of a channel's filter. Returns whether all weights are finite; if not, the spectrum must
    /// not be used.
    pub fn filter(&mut self, problem: &Problem, weights: &[f32], channel: usize) -> bool {
        self.signal.fill(0.0);
        for (back, x) in self.signal[..problem.taps()].iter_mut().enumerate() {
            *x = f64::from(weights[problem.weight(channel, back)]);
        }
        let finite = self.signal.iter().all(|x| x.is_finite());
        let done = self.of.forward.process_with_scratch(self.signal, self.filter, self.scratch);
        assert!(done.is_ok(), "buffers have the lengths of the transform");
        let scale = 1.0 / self.of.length as f64;
        self.filter.iter_mut().for_each(|x| *x *= scale);
        finite
    }

    /// Writes the convolution at every token to `to`. `input` returns the inputs in the order of the pass: first the
    /// `history` past inputs, then one input for each token. Non-finite inputs count as zero. Returns whether all
    /// inputs were finite.
    pub fn convolve(&mut self, history: usize, input: impl Fn(usize) -> f32, to: &mut [f32]) -> bool {
        let count = history + to.len();
        let mut finite = true;
        for (i, x) in self.signal[..count].iter_mut().enumerate() {
            let value = input(i);
            finite &= value.is_finite();
            *x = if value.is_finite() { f64::from(value) } else { 0.0 };
        }
        self.signal[count..].fill(0.0);
        let done = self.of.forward.process_with_scratch(self.signal, self.spectrum, self.scratch);
        assert!(done.is_ok(), "buffers have the lengths of the transform");
        self.spectrum.iter_mut().zip(&*self.filter).for_each(|(x, filter)| *x *= filter);
        let done = self.of.inverse.process_with_scratch(self.spectrum, self.signal, self.scratch);
        assert!(done.is_ok(), "the first and last of a product of two real spectra's values are real");
        to.iter_mut().zip(&self.signal[history..]).for_each(|(to, x)| *to = *x as f32);
        finite
    }
}
