//! Computes the recurrence on the CPU.

use super::operator::{OnCpu, Place};
use super::spectrum::Transforms;
use super::stage::{ChannelTile, Convert, PassInput, States, Target, TokenBlock, tile};
use crate::cpu::slices::{elements, elements_mut, slice, slice_mut};
use crate::error::RunError;
use crate::tensors::HostTensors;
use elsa_core::series::plan::part_tokens;
use elsa_core::series::recurrence::{Gate, Inputs, Operand, Problem};
use elsa_kernels::series::{Columns, RecurrenceTile};
use std::ops::Range;

/// The tensors of a call.
///
/// Invariant: the tensors have been checked against the problem, and the outputs are borrowed exclusively.
#[derive(Debug)]
pub struct RecurrenceCall<'a> {
    problem: &'a Problem,
    a: PassInput<'a>,
    b: PassInput<'a>,
    out: Option<Target>,
    states: States,
}

// SAFETY: workers only read the inputs, and they write disjoint elements of the outputs: each item has separate
// channels or tokens.
unsafe impl Sync for RecurrenceCall<'_> {}
// SAFETY: a call is equivalent to shared references to the inputs and exclusive references to the outputs.
unsafe impl Send for RecurrenceCall<'_> {}

/// Result that is computed from the tokens of a part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// The state after each token, written to the output.
    Outputs,
    /// Only the state after the last token.
    Last,
    /// The affine map of all tokens. The factor of the map is written to this address. The addend of the map is written
    /// to the state.
    Fold(*mut f32),
}

/// Returns whether `n` values are finite.
///
/// # Safety
/// - `n` values are readable and initialised at `values`.
unsafe fn finite(values: *const f32, n: usize) -> bool {
    // SAFETY: the values are readable and initialised (clause).
    unsafe { std::slice::from_raw_parts(values, n) }.iter().all(|x| x.is_finite())
}

impl RecurrenceCall<'_> {
    /// Updates the state of a tile, in place at `state`, with the tokens of `steps`.
    ///
    /// # Safety
    /// - The clauses of [`OnCpu::run`] hold; `worker` is the number of the calling worker.
    /// - The values of a tile are readable and writable at `state` and, for [`Pass::Fold`], at the address in `Fold`.
    /// - No other worker processes these tokens of the tile.
    unsafe fn pass(
        &self,
        place: &Place<'_>,
        worker: usize,
        tile: ChannelTile,
        steps: Range<usize>,
        pass: Pass,
        state: *mut f32,
    ) {
        let (k, l, p) = (place.kernel, place.layout, place.kernel.primitives);
        let (w, s) = (k.spec.width, self.problem.spec());
        let region = place.worker(worker);
        let [a_at, b_at, out_at, _] = l.series.map(|span| region.wrapping_add(span.start));
        let convert =
            Convert { at: region.wrapping_add(l.convert.start), lines: w, line: place.choice.block };
        let row = region.wrapping_add(l.rows[0].start);
        let mut first = true;
        let mut start = steps.start;
        // Runs at least once, so that an empty part is folded to the identity.
        loop {
            let end = steps.end.min(start + place.choice.block);
            let block = TokenBlock::of(start..end, self.problem.tokens(), s.reverse);
            // SAFETY: the tile's channels and the block's tokens are in the tensors (invariant). The worker's regions
            // have room for a block (layout). Only this worker writes these elements of the output (clause).
            unsafe {
                let a = self.a.rows(p, tile, &block, w, a_at, &convert);
                let b = self.b.rows(p, tile, &block, w, b_at, &convert);
                let (out, in_place) = match (pass, &self.out) {
                    (Pass::Outputs, Some(out)) => out.rows(tile, &block, w, out_at),
                    _ => (Columns { first: std::ptr::null_mut(), stride: 0 }, true),
                };
                let work = RecurrenceTile { a, b, out, tokens: end - start, state, log: s.gate == Gate::Log };
                match pass {
                    // The first block of a part begins the part's map. The other blocks update the addend and multiply
                    // the factors.
                    Pass::Fold(product) if first => (k.fold)(&work, product),
                    Pass::Fold(product) => {
                        let scratch = RecurrenceTile { state: row, ..work };
                        let factor = out_at;
                        (k.fold)(&scratch, factor);
                        if finite(factor, w) && finite(state, w) {
                            (k.carry)(factor, row, state);
                        } else {
                            // If the product of factors exceeds the range of f32, the state cannot be derived from it.
                            // If the product vanishes, it does not clear non-finite states, although single factors may
                            // do so.
                            (k.recurrence)(&work);
                        }
                        std::slice::from_raw_parts_mut(row, w).fill(0.0);
                        (k.carry)(factor, row, product);
                    }
                    _ => (k.recurrence)(&work),
                }
                if let (Some(out), false) = (&self.out, in_place) {
                    out.store(p, tile, &block, w, out_at, &convert);
                }
            }
            first = false;
            start = end;
            if start >= steps.end || place.crew.is_cancelled() {
                break;
            }
        }
    }

    /// Returns the result that a pass must compute for a part whose preceding state is known: the outputs if the call
    /// has an output tensor, otherwise only the state after the part.
    fn wanted(&self) -> Pass {
        if self.out.is_some() { Pass::Outputs } else { Pass::Last }
    }

    /// Returns the tile with this number, counted over all sequences.
    fn tile(&self, place: &Place<'_>, number: usize) -> ChannelTile {
        let channels = self.problem.channels();
        tile(number, place.choice.tiles, channels, channels, place.kernel.spec.width)
    }

    /// Returns the index of a tile's first channel among the states of all sequences.
    fn first_state(&self, tile: ChannelTile) -> usize {
        tile.batch * self.problem.channels() + tile.channel
    }
}

impl OnCpu for Problem {
    type Call<'a> = RecurrenceCall<'a>;

    fn call<'a>(
        &'a self,
        tensors: &HostTensors<'a, Operand>,
        _: Option<&'a Transforms>,
    ) -> RecurrenceCall<'a> {
        let s = self.spec();
        // SAFETY: each tensor has the elements that the problem states, and nothing else uses those of the outputs.
        let (inputs, out, present) = unsafe {
            let inputs = Inputs::of(
                |operand| elements(self, tensors, operand),
                |operand| slice(self, tensors, operand),
            );
            let out = elements_mut(self, tensors, Operand::Output);
            (inputs, out, slice_mut(self, tensors, Operand::PresentState))
        };
        RecurrenceCall {
            problem: self,
            a: PassInput { series: s.a, data: inputs.a },
            b: PassInput { series: s.b, data: inputs.b },
            out: out.map(|mut out| Target::new(s.out, &mut out)),
            states: States::new(s.in_place, inputs.past_state, present),
        }
    }

    unsafe fn run(call: &RecurrenceCall<'_>, place: &Place<'_>) -> Result<(), RunError> {
        let (choice, w, p) = (place.choice, place.kernel.spec.width, place.kernel.primitives);
        let (tokens, parts) = (call.problem.tokens(), choice.parts);
        if call.states.leave_nothing(call.problem.batch(), call.problem.tokens()) {
            return Ok(());
        }
        let items = call.problem.batch() * choice.tiles;
        if parts == 1 {
            return place.crew.divide(choice.workers, items, &|worker, item| {
                let tile = call.tile(place, item);
                let state = place.worker(worker).wrapping_add(place.layout.state.start);
                // SAFETY: the clauses of this function hold, and each item, with its channels, belongs to one worker.
                unsafe {
                    call.states.load(p, call.first_state(tile), tile.channels, 1, w, state);
                    call.pass(place, worker, tile, 0..tokens, call.wanted(), state);
                    call.states.store(p, call.first_state(tile), tile.channels, 1, w, state);
                }
            });
        }
        // Returns the addresses of three values for a part of a tile: the factor, the addend, and the state before the
        // part.
        let map = |item: usize, part: usize| {
            let at = place.base.wrapping_add(place.layout.maps.start + (item * parts + part) * 3 * w);
            [at, at.wrapping_add(w), at.wrapping_add(2 * w)]
        };
        // The last part needs no map, because no part follows it.
        place.crew.divide(choice.workers, items * (parts - 1), &|worker, number| {
            let (item, part) = (number / (parts - 1), number % (parts - 1));
            let [factor, added, _] = map(item, part);
            let (tile, steps) = (call.tile(place, item), part_tokens(tokens, parts, part));
            // SAFETY: the clauses of this function hold, and each map is written by one worker.
            unsafe { call.pass(place, worker, tile, steps, Pass::Fold(factor), added) };
        })?;
        place.crew.divide(choice.workers, items, &|worker, item| {
            let tile = call.tile(place, item);
            // SAFETY: the clauses of this function hold, all maps are complete, and each item's maps belong to one
            // worker.
            unsafe {
                call.states.load(p, call.first_state(tile), tile.channels, 1, w, map(item, 0)[2]);
                for part in 0..parts - 1 {
                    let ([factor, added, before], [_, _, after]) = (map(item, part), map(item, part + 1));
                    after.copy_from_nonoverlapping(before, w);
                    if finite(factor, w) && finite(before, w) {
                        (place.kernel.carry)(factor, added, after);
                    } else {
                        // If the product of factors exceeds the range of f32, the state cannot be derived from it. If
                        // the product vanishes, it does not clear non-finite states.
                        call.pass(place, worker, tile, part_tokens(tokens, parts, part), Pass::Last, after);
                    }
                }
            }
        })?;
        place.crew.divide(choice.workers, items * parts, &|worker, number| {
            let (item, part) = (number / parts, number % parts);
            let (tile, [_, _, state]) = (call.tile(place, item), map(item, part));
            let last = part + 1 == parts;
            // SAFETY: the clauses of this function hold. Each state, and the tokens of each part of a tile, belong to
            // one worker. All past states have been read.
            unsafe {
                if last || call.out.is_some() {
                    call.pass(place, worker, tile, part_tokens(tokens, parts, part), call.wanted(), state);
                }
                if last {
                    call.states.store(p, call.first_state(tile), tile.channels, 1, w, state);
                }
            }
        })
    }
}
