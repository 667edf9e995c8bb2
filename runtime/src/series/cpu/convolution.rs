//! Computes the causal convolution on the CPU.

use super::operator::{OnCpu, Place};
use super::spectrum::Transforms;
use super::stage::{ChannelTile, Convert, PassInput, States, Target, TokenBlock, tile};
use crate::cpu::slices::{elements, elements_mut, slice, slice_mut};
use crate::error::RunError;
use crate::tensors::HostTensors;
use elsa_core::series::convolution::{Inputs, Operand, Problem};
use elsa_core::series::token_of;
use elsa_kernels::series::{Columns, ConvolutionTile};
use std::ptr::null;

/// The tensors of a call.
///
/// Invariant: the tensors have been checked against the problem, and the outputs are borrowed exclusively.
#[derive(Debug)]
pub struct ConvolutionCall<'a> {
    problem: &'a Problem,
    transforms: Option<&'a Transforms>,
    inputs: Inputs<'a>,
    u: PassInput<'a>,
    out: Option<Target>,
    states: States,
}

// SAFETY: workers only read the inputs, and they write disjoint elements of the outputs: each item has separate
// channels.
unsafe impl Sync for ConvolutionCall<'_> {}
// SAFETY: a call is equivalent to shared references to the inputs and exclusive references to the outputs.
unsafe impl Send for ConvolutionCall<'_> {}

impl ConvolutionCall<'_> {
    /// Returns whether inputs before the first token may differ from zero.
    fn has_past(&self) -> bool {
        !self.states.past(0, 0).is_null()
    }

    /// Computes a tile by summing products directly.
    ///
    /// The products are computed from a window of inputs in the worker's region. The window contains the earlier inputs
    /// that a block needs, followed by the inputs of the block, in the order of the pass.
    ///
    /// # Safety
    /// - The clauses of [`OnCpu::run`] hold; `worker` is the number of the calling worker, and no other worker has the tile.
    unsafe fn direct(&self, place: &Place<'_>, worker: usize, tile: ChannelTile) {
        let (k, l, p) = (place.kernel, place.layout, place.kernel.primitives);
        let (w, s, problem) = (k.spec.width, self.problem.spec(), self.problem);
        let (tokens, history, taps) = (problem.tokens(), problem.history(), problem.taps());
        let region = place.worker(worker);
        let [window, out_at, ..] = l.series.map(|span| region.wrapping_add(span.start));
        let [filter, bias] = [l.parameters, l.rows[0]].map(|span| region.wrapping_add(span.start));
        let convert =
            Convert { at: region.wrapping_add(l.convert.start), lines: w, line: place.choice.block };
        let first = tile.batch * problem.channels() + tile.channel;
        // SAFETY: the worker's region has room for the weights and the bias of a tile (layout).
        let (weights, biases) = unsafe {
            self.states.load(p, first, tile.channels, history, w, window);
            (std::slice::from_raw_parts_mut(filter, taps * w), std::slice::from_raw_parts_mut(bias, w))
        };
        for (back, row) in weights.chunks_exact_mut(w).enumerate() {
            for (c, x) in row.iter_mut().enumerate() {
                let weight = || self.inputs.filter[problem.weight(tile.channel + c, back)];
                *x = if c < tile.channels { weight() } else { 0.0 };
            }
        }
        for (c, x) in biases.iter_mut().enumerate() {
            let given = self.inputs.bias.filter(|_| c < tile.channels);
            *x = given.map_or(0.0, |bias| bias[tile.channel + c]);
        }
        let (filter, bias) = (weights.as_ptr(), biases.as_ptr());
        for start in place.blocks(tokens) {
            let end = tokens.min(start + place.choice.block);
            let block = TokenBlock::of(start..end, tokens, s.reverse);
            let count = end - start;
            // SAFETY: the tile's channels and the block's tokens are in the tensors (invariant). The worker's regions
            // have room for a block, and the window also has room for the inputs before the block (layout). Only this
            // worker writes these elements of the output (clause).
            unsafe {
                let new = window.add(history * w);
                if s.reverse {
                    self.u.copy(p, tile, &block, w, out_at, &convert);
                    for row in 0..count {
                        new.add((count - 1 - row) * w).copy_from_nonoverlapping(out_at.add(row * w), w);
                    }
                } else {
                    self.u.copy(p, tile, &block, w, new, &convert);
                }
                if let Some(target) = &self.out {
                    let (out, in_place) = target.rows(tile, &block, w, out_at);
                    (k.convolution)(&ConvolutionTile {
                        u: Columns { first: new.cast_const(), stride: w as isize },
                        out,
                        tokens: count,
                        // If there is no past, the inputs before the first token are zeros, so they need no weights.
                        taps: if self.has_past() { taps } else { taps.min(end) },
                        filter,
                        bias: if self.inputs.bias.is_some() { bias } else { null() },
                        silu: s.silu,
                    });
                    if !in_place {
                        target.store(p, tile, &block, w, out_at, &convert);
                    }
                }
                window.copy_from(window.add(count * w), history * w);
            }
        }
        // SAFETY: the tensors have the states of the tile's channels, which only this worker writes (clauses).
        unsafe { self.states.store(p, first, tile.channels, history, w, window) };
    }

    /// Adds the products of non-finite inputs, which the transforms treat as zeros.
    fn poison(&self, channel: usize, history: usize, input: impl Fn(usize) -> f32, to: &mut [f32]) {
        let mut lost = 0;
        for i in 0..history + to.len() {
            let x = input(i);
            if x.is_finite() {
                continue;
            }
            // Input `i` is `history − i` tokens before the first token.
            let start = i.saturating_sub(history);
            let end = to.len().min((i + self.problem.taps()).saturating_sub(history));
            if x.is_nan() {
                // The outputs before `lost` are NaN already.
                if let Some(rows) = to.get_mut(start.max(lost)..end) {
                    rows.fill(f32::NAN);
                }
                lost = lost.max(end);
            } else {
                for step in start..end {
                    to[step] += x * self.inputs.filter[self.problem.weight(channel, step + history - i)];
                }
            }
        }
    }

    /// Computes a channel of every sequence by FFT.
    ///
    /// # Safety
    /// - The clauses of [`OnCpu::run`] hold; `worker` is the number of the calling worker, and no other worker has the
    ///   channel. The layout was computed for these transforms.
    unsafe fn spectral(&self, place: &Place<'_>, transforms: &Transforms, worker: usize, channel: usize) {
        let (problem, s, layout) = (self.problem, self.problem.spec(), place.layout);
        let (tokens, history) = (problem.tokens(), problem.history());
        let region = place.worker(worker);
        // SAFETY: the region is the worker's (clause), and the line has room for every token, in complete vectors
        // (layout).
        let (mut room, line) = unsafe {
            let line = region.wrapping_add(layout.series[0].start);
            (transforms.room(layout, region), std::slice::from_raw_parts_mut(line, layout.series[0].len))
        };
        let finite = room.filter(problem, self.inputs.filter, channel);
        for batch in 0..problem.batch() {
            let state = batch * problem.channels() + channel;
            let past = self.states.past(state, history);
            let before = if self.has_past() { history } else { 0 };
            let input = |i: usize| match i.checked_sub(before) {
                Some(step) => {
                    let token = token_of(step, tokens, s.reverse);
                    self.u.data.get(self.u.series.at(batch, token, channel))
                }
                // SAFETY: the channel has this past input (invariant), and present states are written only after it is
                // read.
                None => unsafe { past.add(i).read() },
            };
            if let Some(out) = &self.out {
                let sums = &mut line[..tokens];
                if !finite {
                    // A spectrum cannot represent a weight that is not finite, so the products are summed directly.
                    for (step, sum) in sums.iter_mut().enumerate() {
                        let taps = problem.taps().min(before + step + 1);
                        let product = |back: usize| {
                            let weight = self.inputs.filter[problem.weight(channel, back)];
                            weight * input(before + step - back)
                        };
                        *sum = (0..taps).map(product).sum();
                    }
                } else if !room.convolve(before, input, sums) {
                    self.poison(channel, before, input, sums);
                }
                if let Some(bias) = self.inputs.bias {
                    sums.iter_mut().for_each(|x| *x += bias[channel]);
                }
                if s.silu {
                    // SAFETY: the line consists of complete vectors; *kernel*.
                    unsafe { (place.kernel.silu)(line.as_mut_ptr(), line.len()) };
                }
                for (step, x) in line[..tokens].iter().enumerate() {
                    // SAFETY: the output has this element of the channel, which only this worker writes (clause).
                    unsafe { out.set(batch, token_of(step, tokens, s.reverse), channel, *x) };
                }
            }
            let present = self.states.present(state, history);
            if present.is_null() {
                continue;
            }
            let (new, missing) = (tokens.min(history), history - tokens.min(history));
            // SAFETY: only this worker uses the states of the channel (clauses). If past and present share memory, the
            // inputs that remain move towards the place of the oldest input.
            unsafe {
                if past.is_null() {
                    present.write_bytes(0, missing);
                } else {
                    present.copy_from(past.add(new), missing);
                }
                for i in 0..new {
                    present.add(missing + i).write(input(before + tokens - new + i));
                }
            }
        }
    }
}

impl OnCpu for Problem {
    type Call<'a> = ConvolutionCall<'a>;

    fn call<'a>(
        &'a self,
        tensors: &HostTensors<'a, Operand>,
        transforms: Option<&'a Transforms>,
    ) -> ConvolutionCall<'a> {
        let s = self.spec();
        // SAFETY: each tensor has the elements that the problem states, and nothing else uses those of the outputs.
        unsafe {
            let inputs = Inputs::of(
                |operand| elements(self, tensors, operand),
                |operand| slice(self, tensors, operand),
            );
            let out = elements_mut(self, tensors, Operand::Output);
            let present = slice_mut(self, tensors, Operand::PresentState);
            ConvolutionCall {
                problem: self,
                transforms,
                u: PassInput { series: s.u, data: inputs.u },
                out: out.map(|mut out| Target::new(s.out, &mut out)),
                states: States::new(s.in_place, inputs.past_state, present),
                inputs,
            }
        }
    }

    unsafe fn run(call: &ConvolutionCall<'_>, place: &Place<'_>) -> Result<(), RunError> {
        let (problem, choice) = (call.problem, place.choice);
        if call.states.leave_nothing(problem.batch(), problem.tokens()) {
            return Ok(());
        }
        let channels = problem.channels();
        match call.transforms {
            Some(transforms) => place.crew.divide(choice.workers, channels, &|worker, channel| {
                // SAFETY: the clauses of this function hold, and each channel belongs to one worker.
                unsafe { call.spectral(place, transforms, worker, channel) };
            }),
            None => place.crew.divide(choice.workers, problem.batch() * choice.tiles, &|worker, item| {
                let tile = tile(item, choice.tiles, channels, channels, place.kernel.spec.width);
                // SAFETY: the clauses of this function hold, and each item belongs to one worker.
                unsafe { call.direct(place, worker, tile) };
            }),
        }
    }
}
