//! Computes the selective scan on the CPU.

use super::operator::{OnCpu, Place};
use super::spectrum::Transforms;
use super::stage::{ChannelTile, Convert, PassInput, States, Target, TokenBlock, columns_of_lines, tile};
use crate::cpu::slices::{elements, elements_mut, slice, slice_mut};
use crate::error::RunError;
use crate::tensors::HostTensors;
use elsa_core::dtype::Elements;
use elsa_core::series::selective::{Coefficient, Inputs, Operand, Problem};
use elsa_kernels::series::{Coefficients, Columns, SelectiveTile};
use std::ptr::{null, null_mut};

/// The tensors of a call.
///
/// Invariant: the tensors have been checked against the problem, and the outputs are borrowed exclusively.
#[derive(Debug)]
pub struct SelectiveCall<'a> {
    problem: &'a Problem,
    inputs: Inputs<'a>,
    u: PassInput<'a>,
    delta: PassInput<'a>,
    z: Option<PassInput<'a>>,
    out: Option<Target>,
    states: States,
}

// SAFETY: workers only read the inputs, and they write disjoint elements of the outputs: each item has separate
// channels.
unsafe impl Sync for SelectiveCall<'_> {}
// SAFETY: a call is equivalent to shared references to the inputs and exclusive references to the outputs.
unsafe impl Send for SelectiveCall<'_> {}

/// Transposes `n` values per channel from the layout `[channel][n]`, from channel `first` on, to the layout
/// `[n][width]` at `to`. Fills columns beyond `channels` with zeros.
///
/// # Safety
/// - `n · width` values are writable at `to`; `channels ≤ width`.
unsafe fn by_state(
    get: impl Fn(usize) -> f32,
    first: usize,
    channels: usize,
    n: usize,
    width: usize,
    to: *mut f32,
) {
    // SAFETY: `n` rows of `width` values are writable (clause).
    let rows = unsafe { std::slice::from_raw_parts_mut(to, n * width) };
    for (i, row) in rows.chunks_exact_mut(width).enumerate() {
        for (c, x) in row.iter_mut().enumerate() {
            *x = if c < channels { get((first + c) * n + i) } else { 0.0 };
        }
    }
}

/// A coefficient for a tile. It either has values per channel, which are copied once, or values per token, which are
/// read from a series.
enum TileCoefficient<'a> {
    Channel,
    Token(PassInput<'a>, ChannelTile),
}

impl SelectiveCall<'_> {
    /// Returns a coefficient for a tile's channels. A [`Coefficient::Channel`] is copied to `to`; a
    /// [`Coefficient::Token`] stays in its series.
    ///
    /// # Safety
    /// - A coefficient of the tile can be written to `to`.
    unsafe fn given<'a>(
        &self,
        of: &Coefficient,
        data: Elements<'a>,
        tile: ChannelTile,
        width: usize,
        to: *mut f32,
    ) -> TileCoefficient<'a> {
        let n = self.problem.states();
        match of {
            Coefficient::Channel => {
                // SAFETY: `n` rows of a tile's width can be written to `to` (clause).
                unsafe { by_state(|i| data.get(i), tile.channel, tile.channels, n, width, to) };
                TileCoefficient::Channel
            }
            Coefficient::Token(series) => {
                let channel = tile.channel / self.problem.group(of) * n;
                TileCoefficient::Token(
                    PassInput { series: *series, data },
                    ChannelTile { channel, channels: n, ..tile },
                )
            }
        }
    }

    /// Computes a tile.
    ///
    /// # Safety
    /// - The clauses of [`OnCpu::run`] hold; `worker` is the number of the calling worker, and no other worker has the tile.
    unsafe fn tile(&self, place: &Place<'_>, worker: usize, tile: ChannelTile) {
        let (k, l, p) = (place.kernel, place.layout, place.kernel.primitives);
        let (w, s, n) = (k.spec.width, self.problem.spec(), self.problem.states());
        let region = place.worker(worker);
        let [u_at, delta_at, z_at, out_at] = l.series.map(|span| region.wrapping_add(span.start));
        let [b_at, c_at] = l.coefficients.map(|span| region.wrapping_add(span.start));
        let [bias, skip] = l.rows.map(|span| region.wrapping_add(span.start));
        let [a, state] = [l.parameters, l.state].map(|span| region.wrapping_add(span.start));
        let convert =
            Convert { at: region.wrapping_add(l.convert.start), lines: w, line: place.choice.block };
        let first = tile.batch * self.problem.channels() + tile.channel;
        // SAFETY: the tensors have the parameters of the tile's channels (invariant), and the worker's region has room
        // for them (layout).
        let (b, c) = unsafe {
            let rates = self.inputs.a[tile.channel * n..(tile.channel + tile.channels) * n].as_ptr();
            columns_of_lines(p, rates, tile.channels, n, w, a);
            for (vector, to) in [(self.inputs.delta_bias, bias), (self.inputs.d, skip)] {
                by_state(|i| vector.map_or(0.0, |x| x[i]), tile.channel, tile.channels, 1, w, to);
            }
            self.states.load(p, first, tile.channels, n, w, state);
            (self.given(&s.b, self.inputs.b, tile, w, b_at), self.given(&s.c, self.inputs.c, tile, w, c_at))
        };
        let tokens = self.problem.tokens();
        for start in place.blocks(tokens) {
            let end = tokens.min(start + place.choice.block);
            let block = TokenBlock::of(start..end, tokens, s.reverse);
            // SAFETY: the tile's channels and the block's tokens are in the tensors (invariant). The worker's regions
            // have room for a block (layout). Only this worker writes these elements of the output (clause).
            unsafe {
                let rows = |source: &PassInput<'_>, to| source.rows(p, tile, &block, w, to, &convert);
                let coefficient = |given: &TileCoefficient<'_>, to: *mut f32| match given {
                    TileCoefficient::Channel => Coefficients::Channel(to),
                    TileCoefficient::Token(source, tile) => {
                        Coefficients::Token(source.rows(p, *tile, &block, n, to, &convert))
                    }
                };
                let (out, in_place) = match &self.out {
                    Some(out) => out.rows(tile, &block, w, out_at),
                    None => (Columns { first: null_mut(), stride: 0 }, true),
                };
                let none = Columns { first: null(), stride: 0 };
                (k.selective)(&SelectiveTile {
                    u: rows(&self.u, u_at),
                    delta: rows(&self.delta, delta_at),
                    z: self.z.as_ref().map_or(none, |z| rows(z, z_at)),
                    out,
                    tokens: end - start,
                    states: n,
                    a,
                    b: coefficient(&b, b_at),
                    c: coefficient(&c, c_at),
                    bias,
                    skip: if self.inputs.d.is_some() { skip } else { null() },
                    softplus: s.softplus,
                    state,
                });
                if let (Some(out), false) = (&self.out, in_place) {
                    out.store(p, tile, &block, w, out_at, &convert);
                }
            }
        }
        // SAFETY: the tensors have the states of the tile's channels, which only this worker writes (clauses).
        unsafe { self.states.store(p, first, tile.channels, n, w, state) };
    }
}

impl OnCpu for Problem {
    type Call<'a> = SelectiveCall<'a>;

    fn call<'a>(
        &'a self,
        tensors: &HostTensors<'a, Operand>,
        _: Option<&'a Transforms>,
    ) -> SelectiveCall<'a> {
        let s = self.spec();
        // SAFETY: each tensor has the elements that the problem states, and nothing else uses those of the outputs.
        unsafe {
            let inputs = Inputs::of(
                |operand| elements(self, tensors, operand),
                |operand| slice(self, tensors, operand),
            );
            let out = elements_mut(self, tensors, Operand::Output);
            let present = slice_mut(self, tensors, Operand::PresentState);
            SelectiveCall {
                problem: self,
                u: PassInput { series: s.u, data: inputs.u },
                delta: PassInput { series: s.delta, data: inputs.delta },
                z: s.z.zip(inputs.z).map(|(series, data)| PassInput { series, data }),
                out: out.map(|mut out| Target::new(s.out, &mut out)),
                states: States::new(s.in_place, inputs.past_state, present),
                inputs,
            }
        }
    }

    unsafe fn run(call: &SelectiveCall<'_>, place: &Place<'_>) -> Result<(), RunError> {
        let (problem, choice) = (call.problem, place.choice);
        let (channels, group) = (problem.channels(), problem.tile_group());
        if call.states.leave_nothing(problem.batch(), problem.tokens()) {
            return Ok(());
        }
        place.crew.divide(choice.workers, problem.batch() * choice.tiles, &|worker, item| {
            let tile = tile(item, choice.tiles, channels, group, place.kernel.spec.width);
            // SAFETY: the clauses of this function hold, and each item belongs to one worker.
            unsafe { call.tile(place, worker, tile) };
        })
    }
}
