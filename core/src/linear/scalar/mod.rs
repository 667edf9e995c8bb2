//! Computes a whole call of linear attention in every form, without threads, vector instructions or an allocator: the scalar
//! fallback.
//!
//! States are computed one after another. The tokens of a state are processed in the order of the problem's direction.
//! `scalar/chunk.rs` describes the computation of a chunk. The forms differ in the state from which an output is
//! computed:
//!
//! ```text
//! recurrent     the state after the token
//! fused-chunk   the state before the chunk, which advances after the outputs of the chunk
//! chunk         as fused-chunk, with equal bits, but all of these states are computed before the first output
//! parallel      the state before the first token: one chunk of all tokens
//! scan          as recurrent within each part; Blelloch's scan over the maps (A, b) of parts gives the first state
//! ```
//!
//! In problems that are not causal, the state advances in the same way, and then every token reads the last state. In
//! bidirectional problems, the outputs of the first pass stay in the scratch until the outputs of the second pass are
//! added to them.

mod chunk;
mod stage;

use super::bound::{Executed, Solve};
use super::data::{Inputs, Outputs};
use super::law::{Affine, AffineSlots};
use super::problem::Problem;
use super::rule::{Direction, Form, Gates};
use crate::argument::ArgumentError;
use crate::dtype::DType;
use crate::scan::blelloch;
use chunk::Room;
use stage::{Rows, Sink, Stage};

/// The form in which a call runs, and the sizes of its chunks and parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Form in which the call runs.
    pub form: Form,
    /// Number of tokens per chunk, at least one; the last chunk may have fewer. Only [`Form::Chunk`] and
    /// [`Form::FusedChunk`] use it.
    pub chunk: usize,
    /// Number of tokens per part of [`Form::Scan`], at least one; the last part may have fewer. Other forms ignore it.
    pub part: usize,
}

impl Walk {
    /// Selects the form `form`, with chunks of 16 tokens and parts of 256.
    #[must_use]
    pub const fn new(form: Form) -> Walk {
        Walk { form, chunk: 16, part: 256 }
    }

    /// Returns the number of tokens per chunk for sequences of up to `tokens` tokens.
    fn chunk_of(&self, tokens: usize) -> usize {
        match self.form {
            Form::Recurrent | Form::Scan => 1,
            Form::Chunk | Form::FusedChunk => self.chunk.min(tokens),
            Form::Parallel => tokens,
        }
        .max(1)
    }

    fn check(&self) -> Result<(), ArgumentError> {
        for (argument, found) in [("chunk", self.chunk), ("part", self.part)] {
            if found == 0 {
                return Err(ArgumentError::Count { argument, found, min: 1, max: usize::MAX });
            }
        }
        Ok(())
    }
}

/// Numbers of f32 values of scratch that a call needs, by purpose.
struct Needs {
    state: usize,
    room: usize,
    /// Outputs of the first pass of a bidirectional problem.
    kept: usize,
    /// States before chunks in [`Form::Chunk`], or the slots of the scan in [`Form::Scan`].
    states: usize,
}

impl Needs {
    fn of(problem: &Problem, walk: &Walk) -> Option<Needs> {
        let (rows, columns, tokens) = (problem.key_dim(), problem.value_dim(), problem.tokens());
        let readers = problem.readers(0).1;
        let chunk = walk.chunk_of(tokens);
        let state = rows.checked_mul(columns)?;
        let kept = match problem.spec().direction {
            Direction::Bidirectional => readers.checked_mul(tokens)?.checked_mul(columns)?,
            _ => 0,
        };
        let states = match walk.form {
            // A walk with parts of zero tokens needs no room, because it is rejected.
            Form::Scan if walk.part == 0 => 0,
            Form::Chunk => state.checked_mul(tokens.div_ceil(chunk))?,
            Form::Scan => AffineSlots::workspace_len(&Affine::of(problem), tokens.div_ceil(walk.part), 0),
            _ => 0,
        };
        let room = Room::len(rows, columns, stage::gates(problem), chunk, readers)?;
        Some(Needs { state, room, kept, states })
    }

    fn sum(&self) -> Option<usize> {
        self.state.checked_add(self.room)?.checked_add(self.kept)?.checked_add(self.states)
    }
}

/// Returns the number of f32 values of scratch that [`run`] needs; `None` on overflow.
#[must_use]
pub fn scratch_len(problem: &Problem, walk: &Walk) -> Option<usize> {
    Needs::of(problem, walk)?.sum()
}

/// Returns the structure and the arithmetic that [`run`] executes, for its error bound.
#[must_use]
pub fn executed(problem: &Problem, walk: &Walk) -> Executed {
    let (rows, chunk) = (problem.key_dim(), walk.chunk_of(problem.tokens()));
    let factors = chunk > 1 && problem.gates() == Gates::PerDim;
    Executed {
        form: walk.form,
        chunk,
        part: walk.part,
        // A gate is an exponential. It is computed in f64, exact to a unit in the last place, and then rounded to the
        // nearest f32 number.
        exp_relative: if problem.rule().is_gated() { 1.001 * UNIT } else { 0.0 },
        query_relative: 1.001 * UNIT,
        key_relative: if problem.spec().normalize.is_some() { 1.001 * UNIT } else { 0.0 },
        // If gates are not split into factors, each product with a key is one dot product.
        dims: if factors { chunk::roundings(rows).max(rows + 2) } else { chunk::roundings(rows) },
        tokens: if chunk == 1 { 1 } else { chunk::roundings(chunk) },
        solve: Solve::Rows,
        factored: if factors { chunk::FACTORED } else { 0.0 },
    }
}

/// The unit roundoff of f32.
const UNIT: f64 = DType::F32.unit_roundoff();

/// Computes `problem` for `inputs` in the form that `walk` selects, and writes the results to `outputs`. All arguments are
/// checked before anything is written.
///
/// # Errors
/// Returns an error if inputs or outputs do not match the problem, if a size in `walk` is zero, or if `scratch` is
/// shorter than [`scratch_len`].
pub fn run(
    problem: &Problem,
    walk: &Walk,
    inputs: &Inputs<'_>,
    outputs: &mut Outputs<'_>,
    scratch: &mut [f32],
) -> Result<(), ArgumentError> {
    inputs.check(problem)?;
    outputs.check(problem)?;
    walk.check()?;
    let needs = Needs::of(problem, walk);
    let needed = needs.as_ref().and_then(Needs::sum).unwrap_or(usize::MAX);
    let (Some(needs), true) = (needs, scratch.len() >= needed) else {
        return Err(ArgumentError::Short { argument: "scratch", found: scratch.len(), needed });
    };
    drive(problem, walk, inputs, outputs, &needs, scratch);
    Ok(())
}

/// Processes every state: loads its past and passes over its tokens, twice if the problem is bidirectional.
fn drive(
    problem: &Problem,
    walk: &Walk,
    inputs: &Inputs<'_>,
    outputs: &mut Outputs<'_>,
    needs: &Needs,
    scratch: &mut [f32],
) {
    let (state, scratch) = scratch.split_at_mut(needs.state);
    let (room, scratch) = scratch.split_at_mut(needs.room);
    let (kept, states) = scratch.split_at_mut(needs.kept);
    let (rows, columns, readers) = (problem.key_dim(), problem.value_dim(), problem.readers(0).1);
    let chunk = walk.chunk_of(problem.tokens());
    let mut room = Room::new(room, rows, columns, stage::gates(problem), chunk, readers);
    let direction = problem.spec().direction;
    // The number of sequences may be arbitrarily large if there are neither tokens nor present states.
    let any = problem.state_heads() > 0 && (problem.tokens() > 0 || outputs.present_state.is_some());
    for index in 0..if any { problem.sequences() } else { 0 } {
        for head in 0..problem.state_heads() {
            let sequence = problem.sequence(inputs.cu_seqlens, index);
            let mut stage = Stage { problem, inputs, sequence, state: head, reverse: false };
            stage.past(outputs, state);
            if let (Direction::Bidirectional, Some(output)) = (direction, &mut outputs.output) {
                let mut sink = Sink { output, rows: Rows::Keep(kept) };
                pass(walk, &stage, &mut room, state, states, Some(&mut sink));
                stage.reverse = true;
                state.fill(0.0);
                let mut sink = Sink { output, rows: Rows::Add(kept) };
                pass(walk, &stage, &mut room, state, states, Some(&mut sink));
                continue;
            }
            stage.reverse = direction == Direction::Reverse;
            let mut sink = outputs.output.as_mut().map(|output| Sink { output, rows: Rows::Write });
            if direction == Direction::NonCausal {
                pass(walk, &stage, &mut room, state, states, None);
                if let Some(sink) = &mut sink {
                    for i in 0..sequence.tokens {
                        room.answer(&stage, i, state, sink);
                    }
                }
            } else {
                pass(walk, &stage, &mut room, state, states, sink.as_mut());
            }
            stage.present(outputs, state);
        }
    }
}

/// Processes all tokens of `stage`: advances `state`, and writes outputs to `sink` if there is one.
fn pass(
    walk: &Walk,
    stage: &Stage<'_>,
    room: &mut Room<'_>,
    state: &mut [f32],
    states: &mut [f32],
    mut sink: Option<&mut Sink<'_, '_>>,
) {
    let tokens = stage.sequence.tokens;
    let chunk = walk.chunk_of(stage.problem.tokens());
    let chunks = (0..tokens).step_by(chunk).map(|first| (first, chunk.min(tokens - first)));
    match walk.form {
        Form::Recurrent => recur(stage, room, 0..tokens, state, sink),
        Form::Scan => scan(walk, stage, room, state, states, sink),
        Form::FusedChunk | Form::Parallel => {
            for (first, n) in chunks {
                room.pass(stage, first, n, state, sink.as_deref_mut(), true);
            }
        }
        Form::Chunk => {
            for (c, (first, n)) in chunks.clone().enumerate() {
                states[c * state.len()..(c + 1) * state.len()].copy_from_slice(state);
                room.pass(stage, first, n, state, None, true);
            }
            let Some(sink) = &mut sink else { return };
            for (before, (first, n)) in states.chunks_exact_mut(state.len()).zip(chunks) {
                room.pass(stage, first, n, before, Some(sink), false);
            }
        }
    }
}

/// Processes one token after another.
fn recur(
    stage: &Stage<'_>,
    room: &mut Room<'_>,
    tokens: core::ops::Range<usize>,
    state: &mut [f32],
    mut sink: Option<&mut Sink<'_, '_>>,
) {
    for i in tokens {
        room.step(stage, i, state, stage.problem.value_dim(), true);
        if let Some(sink) = &mut sink {
            room.answer(stage, i, state, sink);
        }
    }
}

/// Executes [`Form::Scan`], which scans in two levels.
fn scan(
    walk: &Walk,
    stage: &Stage<'_>,
    room: &mut Room<'_>,
    state: &mut [f32],
    workspace: &mut [f32],
    mut sink: Option<&mut Sink<'_, '_>>,
) {
    let law = Affine::of(stage.problem);
    let tokens = stage.sequence.tokens;
    let each = walk.part;
    let parts = tokens.div_ceil(each);
    let Some(mut slots) = AffineSlots::new(law, parts, workspace) else { return };
    for part in 0..parts {
        let element = slots.element(part);
        law.identity(element);
        // The last part is in no exclusive prefix, so its map is not computed.
        if part + 1 < parts {
            let run = part * each..(part + 1) * each;
            let (a, b) = element.split_at_mut(law.transition_len());
            room.transition(stage, run.clone(), &law, a);
            recur(stage, room, run, b, None);
        }
    }
    blelloch::exclusive(&mut slots);
    for part in 0..parts {
        // The state before the first part is the past itself.
        if part > 0 {
            slots.apply(part, state);
        } else {
            slots.element(part)[law.transition_len()..].copy_from_slice(state);
        }
        let run = part * each..tokens.min((part + 1) * each);
        let b = &mut slots.element(part)[law.transition_len()..];
        recur(stage, room, run, b, sink.as_deref_mut());
        if part + 1 == parts {
            state.copy_from_slice(b);
        }
    }
}
