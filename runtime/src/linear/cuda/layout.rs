//! Lays out the workspace of runs in device memory.

use super::choice::{LinearGpuChoice, is_quadratic};
use elsa_core::dtype::DType;
use elsa_core::linear::{Direction, Form, Gates, Problem};
use elsa_kernels::cuda::linear::{
    LONG_CHUNK, LONG_GATE, LONG_RECORD, LinearSequence, RECORD, TILE_ROWS, long_tile,
};

/// Alignment of every region of the workspace, in bytes.
const ALIGNMENT: usize = 256;

/// Offsets of a workspace's regions, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionOffsets {
    /// Size of the table of sequences, which is at offset zero. If packed sequences are computed in long and in short
    /// chunks, there are two tables: one of the long chunks, then one of the short chunks.
    pub table: usize,
    /// Prepared data of the chunks: a record of f32 values for each output head and chunk, `[output heads, chunks,
    /// record]`.
    pub records: u64,
    /// Gated keys and queries of the prepared chunks, if there are per-dim gates. If all chunks are computed at once, also what
    /// solves the chunks of a delta rule. Both kinds of chunks use the same memory, one after the other.
    pub tiles: u64,
    /// States before parts, `[sequences, state heads, parts, d_k, d_v]`. A scan folds every part except the last into
    /// this region, then replaces the results by the states after these parts. The rows of this region are padded. If all
    /// chunks are computed at once, the states before all chunks, `[state heads, chunks, long_state]` ([`long_state`]).
    pub boundaries: u64,
    /// For a scan with a delta rule: transitions of all parts except the last,
    /// `[sequences, state heads, parts, d_k, d_k]` with padded rows.
    pub transitions: u64,
    /// For a scan without a delta rule: sums of the logarithms of gates over each part except the last, f64
    /// `[sequences, state heads, parts, gates]`.
    pub gate_sums: u64,
    /// Last states, `[sequences, state heads, d_k, d_v]`, if they need separate memory ([`holds`]).
    pub held: u64,
    /// Values that tokens write under a delta rule, in the quadratic form or if all chunks are computed at once, f32 `[batch, state heads, tokens, d_v]` with
    /// padded rows.
    pub written: u64,
    /// For a bidirectional problem, outputs of the first direction, f32 `[batch, output heads, tokens, d_v]`.
    pub sums: u64,
    /// Size of the transitions in bytes.
    pub transition_bytes: usize,
    /// Size of the workspace in bytes.
    pub bytes: usize,
}

/// Returns whether the last states of a call need separate memory. This is the case if they would overwrite states that
/// other heads or parts still read. It is also the case if tokens read the last states and the call does not output
/// them.
pub fn holds(problem: &Problem, choice: &LinearGpuChoice) -> bool {
    let spec = problem.spec();
    if spec.direction == Direction::NonCausal {
        return spec.present_state.is_none();
    }
    let together = matches!(choice.form, Form::Recurrent | Form::FusedChunk) || choice.recurrent_below > 0;
    let alone = choice.shares || problem.readers(0).1 <= 1;
    spec.in_place && (choice.form == Form::Scan || together && !alone)
}

/// Returns the length of a row of `columns` columns in the workspace: rounded up to a multiple of four, since rows are
/// read four elements at a time.
pub const fn padded(columns: usize) -> usize {
    columns.next_multiple_of(4)
}

/// Returns the number of f32 values of a state before a chunk, if all chunks are computed at once: its padded rows, then
/// the gate of the chunk.
pub fn long_state(problem: &Problem) -> Option<usize> {
    problem.key_dim().checked_mul(padded(problem.value_dim()))?.checked_add(LONG_GATE)
}

/// Returns the number of gates per token: zero, one, or the number of key dims.
pub fn gates(problem: &Problem) -> usize {
    match problem.gates() {
        Gates::None => 0,
        Gates::PerHead => 1,
        Gates::PerDim => problem.key_dim(),
    }
}

/// Returns whether the outputs of the first direction need separate memory. This is the case for a bidirectional
/// problem whose output is not f32.
pub fn sums(problem: &Problem) -> bool {
    problem.spec().direction == Direction::Bidirectional && problem.spec().dtype != DType::F32
}

impl RegionOffsets {
    /// Computes the layout for a choice. Returns `None` if the size of the workspace overflows.
    pub fn of(problem: &Problem, c: &LinearGpuChoice) -> Option<RegionOffsets> {
        let mut at = 0usize;
        let mut take = |needed: bool, sizes: &[usize]| {
            let start = at;
            if needed {
                let bytes = sizes.iter().try_fold(1usize, |bytes, n| bytes.checked_mul(*n))?;
                at = at.checked_add(bytes)?.checked_next_multiple_of(ALIGNMENT)?;
            }
            Some(start)
        };
        let heads = problem.output_heads();
        let state = [problem.sequences(), problem.state_heads(), problem.key_dim(), problem.value_dim(), 4];
        let [sequences, states, rows, columns, _] = state;
        let records = match c.form {
            Form::Recurrent => false,
            form if is_quadratic(problem, form) => false,
            Form::Parallel => {
                problem.spec().present_state.is_some() || problem.spec().direction == Direction::NonCausal
            }
            _ => true,
        };
        let (scan, delta) = (c.form == Form::Scan, problem.rule().is_delta());
        let divided = scan || c.form == Form::Chunk;
        let items = if scan { c.parts.saturating_sub(1) } else { c.parts };
        let row = if scan { padded(columns) } else { columns };
        let boundaries = match c.is_long() {
            true => [1, states, c.chunks, long_state(problem)?, 1, 4],
            false => [sequences, states, items, rows, row, 4],
        };
        // Both kinds of chunks use the same memory, one after the other.
        let record = match (c.is_long(), c.fused_below > 0) {
            (true, true) => {
                [c.chunks.checked_mul(LONG_RECORD)?, c.short_chunks(problem).checked_mul(RECORD)?]
                    .into_iter()
                    .max()?
            }
            (true, false) => c.chunks.checked_mul(LONG_RECORD)?,
            (false, _) => c.chunks.checked_mul(RECORD)?,
        };
        let (per_dim, solves) = (problem.gates() == Gates::PerDim, delta && c.is_long());
        let short_tiles =
            heads.checked_mul(TILE_ROWS)?.checked_mul(c.dims)?.checked_mul(c.short_chunks(problem))?;
        let tiles = match c.is_long() {
            true => {
                let queries = if per_dim { heads.checked_mul(LONG_CHUNK)?.checked_mul(c.dims)? } else { 0 };
                let own =
                    long_tile(delta, c.dims, rows, columns).checked_mul(states)?.checked_add(queries)?;
                let long = own.checked_mul(c.chunks)?;
                if c.fused_below > 0 && per_dim { long.max(short_tiles) } else { long }
            }
            false => heads.checked_mul(c.chunks)?.checked_mul(TILE_ROWS)?.checked_mul(c.dims)?,
        };
        let transitions = [sequences, states, items, rows, padded(rows), 4];
        let tables = if c.fused_below > 0 { 2 } else { 1 };
        let entries = problem.spec().packed.map_or(0, |n| n.saturating_mul(tables));
        let table = entries.saturating_mul(size_of::<LinearSequence>());
        take(true, &[table])?;
        let output = &problem.spec().output;
        let written = [output.batch(), states, output.tokens(), padded(columns), 4];
        let layout = RegionOffsets {
            table,
            records: take(records, &[heads, record, 4])? as u64,
            tiles: take(records && (per_dim || solves), &[tiles, 4])? as u64,
            boundaries: take(divided, &boundaries)? as u64,
            transitions: take(scan && delta, &transitions)? as u64,
            gate_sums: take(scan && !delta, &[sequences, states, items, gates(problem), 8])? as u64,
            held: take(holds(problem, c), &state)? as u64,
            written: take(delta && (solves || is_quadratic(problem, c.form)), &written)? as u64,
            sums: take(sums(problem), &[output.batch(), heads, output.tokens(), columns, 4])? as u64,
            transition_bytes: if scan && delta {
                transitions.into_iter().fold(1, usize::saturating_mul)
            } else {
                0
            },
            bytes: 0,
        };
        (at <= isize::MAX as usize).then_some(RegionOffsets { bytes: at, ..layout })
    }
}
