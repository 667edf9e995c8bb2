//! Fills the kernel parameters from a problem and the addresses of its tensors.

use super::layout::{long_state, padded};
use super::plan::GpuPlan;
use crate::cuda::marshal::{dtype, int, is_vec4, tensor};
use crate::cuda::parameter::parameters;
use elsa_core::linear::{Gates, Operand, Operands, Problem};
use elsa_core::view::View;
use elsa_kernels::cuda::linear::{
    self as args, CarryArgs, DECAY_VEC4, DIM_GATES, KEY_VEC4, LinearArgs, LinearSequence, LongArgs,
    NORMALIZE, OUTPUT_VEC4, PARALLEL_COLUMNS, PARTIAL_VEC4, QUERY_VEC4, STATE_VEC4, States, SumsArgs,
    VALUE_F32, VALUE_VEC4, carry_blocks,
};
use elsa_kernels::cuda::tensor::{DeviceTensor, Divisor, TYPE_F32};

parameters!(CarryArgs, LinearArgs, LongArgs, SumsArgs);

/// Upper limit on the row stride in elements. For smaller strides, the byte offsets within a chunk fit in 31 bits.
const NEAR: i64 = 1 << 22;

/// The sequences of a call, in the form that the kernels read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sequences {
    /// Device address of the table of sequences. It is zero if sequences are not packed; each sequence then has all
    /// tokens.
    pub table: u64,
    /// Total number of prepared chunks in all sequences; of long chunks, if they are computed at once.
    pub chunks: usize,
    /// Total number of chunks of 16 tokens in the sequences that are computed in these chunks although others have long
    /// ones, and the device address of a table in which only the former have chunks.
    pub short_chunks: usize,
    pub short_table: u64,
    /// Number of chunks of 16 tokens in the longest sequence.
    pub longest: usize,
    /// `true` if some sequences are so short that they are computed token by token in every form. `long` is `true` if
    /// some sequences are longer.
    pub short: bool,
    pub long: bool,
}

/// Converts a sequence to the kernels' format. `chunk0` is the index of the sequence's first chunk among the chunks of
/// all sequences.
pub fn sequence(s: &elsa_core::linear::Sequence, chunk0: usize, part_chunks: usize) -> LinearSequence {
    let [batch, first, tokens] = [s.batch, s.start, s.tokens].map(int);
    LinearSequence { batch, first, tokens, chunk0: int(chunk0), part_chunks: int(part_chunks) }
}

/// Returns a description of the states at the device address `data`, whose shape is `[sequences, heads, d_k, d_v]` and
/// whose strides are the steps of `view`. The description is empty if `data` is zero.
fn states(view: Option<&View>, data: u64) -> States {
    let Some(view) = view.filter(|_| data != 0) else { return States::default() };
    let [sequence, head, row, _] = view.steps().map(|step| step as i64);
    States { data, sequence, head, part: 0, row }
}

/// Returns a description of the states of `parts` parts at the address `data`. The states are stored without gaps, with
/// the shape `[sequences, heads, parts, d_k, row]`.
pub fn dense(problem: &Problem, parts: usize, row: usize, data: u64) -> States {
    let row = row as i64;
    let part = problem.key_dim() as i64 * row;
    let head = parts as i64 * part;
    States { data, sequence: problem.state_heads() as i64 * head, head, part, row }
}

/// Returns a description of the states before the chunks of all sequences, if all chunks are computed at once. A part is
/// one of these `chunks` chunks.
pub fn long_states(problem: &Problem, chunks: i32, data: u64) -> States {
    let part = long_state(problem).unwrap_or(0) as i64;
    let head = i64::from(chunks) * part;
    States { data, sequence: 0, head, part, row: padded(problem.value_dim()) as i64 }
}

/// Returns descriptions of the past and of the present states of a call. The description of states that the call omits
/// is empty.
pub fn past_and_present(problem: &Problem, at: &Operands<u64>) -> [States; 2] {
    let spec = problem.spec();
    let past = states(spec.past_state.as_ref(), at[problem.past_source()]);
    [past, states(spec.present_state.as_ref(), at[Operand::PresentState])]
}

/// Returns whether rows of states can be accessed four elements at a time.
fn is_state_vec4(states: &States, columns: usize) -> bool {
    let strides = [states.sequence, states.head, states.part, states.row];
    states.data.is_multiple_of(16)
        && strides.iter().all(|stride| stride % 4 == 0)
        && columns.is_multiple_of(4)
}

/// Sets or clears a flag.
fn flag(filled: &mut LinearArgs, flag: i32, on: bool) {
    filled.flags = if on { filled.flags | flag } else { filled.flags & !flag };
}

/// Returns the parameters that all launches of a call share, with one part, no outputs and no states. `at` contains the
/// device address of every operand, or zero if the call omits it; `scratch` is the address of the workspace.
pub fn common(
    plan: &GpuPlan,
    problem: &Problem,
    at: &Operands<u64>,
    sequences: &Sequences,
    scratch: u64,
) -> LinearArgs {
    let (s, c, layout) = (problem.spec(), &plan.choice, &plan.layout);
    let of = |operand| match problem.memory(operand).and_then(|memory| memory.view) {
        Some(view) if at[operand] != 0 => tensor(&view, at[operand]),
        _ => DeviceTensor::default(),
    };
    let (heads, states) = (problem.output_heads(), problem.state_heads());
    let (readers, sharers) = (problem.readers(0).1, heads / problem.heads().max(1));
    let key_group = states / s.key.heads().max(1);
    let sequence_chunks = problem.tokens().div_ceil(c.prepared());
    let mut beta = of(Operand::Beta);
    if s.beta.is_some_and(|beta| beta.heads() == 1) {
        beta.head = 0;
    }
    let mut filled = LinearArgs {
        by_columns: Divisor::new(int(c.columns)),
        by_heads: Divisor::new(int(heads)),
        by_readers: Divisor::new(int(readers)),
        by_sharers: Divisor::new(int(sharers)),
        by_key_group: Divisor::new(int(key_group)),
        by_sequence_chunks: Divisor::new(int(sequence_chunks)),
        columns: int(c.columns),
        heads: int(heads),
        sequence_count: int(problem.sequences()),
        sequences: sequences.table,
        tokens: int(problem.tokens()),
        sequence_chunks: int(sequence_chunks),
        chunks: int(sequences.chunks),
        key_dim: int(problem.key_dim()),
        value_dim: int(problem.value_dim()),
        dtype: dtype(s.dtype),
        gate_dtype: dtype(s.gate_dtype),
        readers: int(readers),
        boundary_chunks: int(c.boundary),
        scale: problem.scale(),
        epsilon: s.normalize.unwrap_or(0.0),
        query: of(Operand::Query),
        key: of(Operand::Key),
        value: of(Operand::Value),
        decay: of(Operand::Decay),
        beta,
        records: scratch + layout.records,
        tiles: scratch + layout.tiles,
        least: int(c.recurrent_below),
        most: i32::MAX,
        ..LinearArgs::default()
    };
    let (dk, dv) = (problem.key_dim(), problem.value_dim());
    let (size, gate) = (s.dtype.size(), s.gate_dtype.size());
    let vec4 = |tensor: &DeviceTensor, dim, size| is_vec4(tensor, dim, size) && tensor.token < NEAR;
    let rows = [
        (QUERY_VEC4, vec4(&filled.query, dk, size)),
        (KEY_VEC4, vec4(&filled.key, dk, size)),
        (VALUE_VEC4, vec4(&filled.value, dv, size)),
        (DECAY_VEC4, problem.gates() == Gates::PerDim && vec4(&filled.decay, dk, gate)),
        (NORMALIZE, s.normalize.is_some()),
    ];
    rows.into_iter().for_each(|(which, on)| flag(&mut filled, which, on));
    with_parts(filled, 1, sequences.longest)
}

/// Returns `filled` with `parts` parts of `part_chunks` chunks.
pub fn with_parts(filled: LinearArgs, parts: usize, part_chunks: usize) -> LinearArgs {
    LinearArgs { part_chunks: int(part_chunks.max(1)), ..of_parts(filled, parts) }
}

/// Returns `filled` with `parts` parts.
fn of_parts(filled: LinearArgs, parts: usize) -> LinearArgs {
    LinearArgs { by_parts: Divisor::new(int(parts)), parts: int(parts), ..filled }
}

/// Returns `filled` with `parts` parts of a scan. If there is a table of sequences, this table determines the length of
/// the parts.
pub fn with_scanned_parts(plan: &GpuPlan, problem: &Problem, filled: LinearArgs, parts: usize) -> LinearArgs {
    let part_chunks = if filled.sequences == 0 { plan.choice.part_chunks(problem.tokens()) } else { 0 };
    LinearArgs { part_chunks: int(part_chunks), ..of_parts(filled, parts) }
}

/// Returns `filled` for only the sequences of fewer than `most` tokens that are computed in short chunks although others
/// are computed in long chunks.
pub fn with_short_chunks(filled: LinearArgs, sequences: &Sequences, most: usize) -> LinearArgs {
    let (table, chunks) = (sequences.short_table, int(sequences.short_chunks));
    LinearArgs { sequences: table, chunks, most: int(most), ..filled }
}

/// Returns `filled` for only the sequences of at least `least` tokens.
pub fn from_tokens(filled: LinearArgs, least: usize) -> LinearArgs {
    LinearArgs { least: filled.least.max(int(least)), ..filled }
}

/// Returns `filled` for only the short sequences, which are computed token by token in every form.
pub fn with_steps(filled: LinearArgs) -> LinearArgs {
    LinearArgs { least: 0, most: filled.least, flags: filled.flags | args::STEPS, ..filled }
}

/// Returns `filled` with blocks of the quadratic form. The launch computes at most `most` rows, and each block computes
/// `rows` of them. A row is a token or a row of a state.
pub fn parallel(filled: LinearArgs, most: usize, rows: usize) -> LinearArgs {
    of_parts(with_columns(filled, PARALLEL_COLUMNS), most.div_ceil(rows).max(1))
}

/// Returns `filled` with the flag for per-dim gates, if the problem has such gates.
pub fn with_dim_gates(problem: &Problem, mut filled: LinearArgs) -> LinearArgs {
    flag(&mut filled, DIM_GATES, problem.gates() == Gates::PerDim);
    filled
}

/// Sets the parameters that all launches of the quadratic form share, for delta rules and per-dim gates.
pub fn quadratic(problem: &Problem, filled: LinearArgs) -> LinearArgs {
    of_parts(with_columns(with_dim_gates(problem, filled), PARALLEL_COLUMNS), 1)
}

/// Returns a description of the values that tokens write to the workspace at `data`. There is one row per token and
/// state, and each row is padded to a multiple of four elements.
pub fn written(problem: &Problem, data: u64) -> DeviceTensor {
    let token = padded(problem.value_dim()) as i64;
    let head = problem.spec().output.tokens() as i64 * token;
    DeviceTensor { data, batch: problem.state_heads() as i64 * head, head, token }
}

/// Returns `filled` with `written`, the values that tokens have written, in place of the call's values.
pub fn with_written(mut filled: LinearArgs, written: DeviceTensor) -> LinearArgs {
    filled.value = written;
    flag(&mut filled, VALUE_F32, true);
    let whole = is_vec4(&written, filled.value_dim as usize, 4) && written.token < NEAR;
    flag(&mut filled, VALUE_VEC4, whole);
    filled
}

/// Returns `filled` with one head and one reader per state.
pub fn with_one_reader(problem: &Problem, filled: LinearArgs) -> LinearArgs {
    let one = Divisor::new(1);
    LinearArgs { readers: 1, by_readers: one, ..with_states_as_heads(problem, filled) }
}

/// Returns `filled` with outputs of type `output_dtype`, to which the sums in `partial` are added. Either tensor may
/// be absent.
pub fn with_answers(
    mut filled: LinearArgs,
    output: DeviceTensor,
    output_dtype: i32,
    partial: DeviceTensor,
) -> LinearArgs {
    let (dim, size) = (filled.value_dim as usize, if output_dtype == TYPE_F32 { 4 } else { 2 });
    (filled.output, filled.output_dtype, filled.partial) = (output, output_dtype, partial);
    flag(&mut filled, OUTPUT_VEC4, is_vec4(&output, dim, size) && output.token < NEAR);
    flag(&mut filled, PARTIAL_VEC4, is_vec4(&partial, dim, 4) && partial.token < NEAR);
    filled
}

/// Returns `filled` with these states: the states before the first token, after the last token, and at the boundaries
/// of parts.
pub fn with_states(mut filled: LinearArgs, initial: States, last: States, boundaries: States) -> LinearArgs {
    (filled.initial, filled.last, filled.boundaries) = (initial, last, boundaries);
    let columns = filled.value_dim as usize;
    let all = [initial, last, boundaries].iter().all(|states| is_state_vec4(states, columns));
    flag(&mut filled, STATE_VEC4, all);
    filled
}

/// Returns `filled` with `columns` columns per block.
pub fn with_columns(filled: LinearArgs, columns: usize) -> LinearArgs {
    with_blocks(filled, (filled.value_dim as usize).div_ceil(columns))
}

/// Returns `filled` with `blocks` blocks per state and part.
pub fn with_blocks(filled: LinearArgs, blocks: usize) -> LinearArgs {
    let columns = int(blocks);
    LinearArgs { columns, by_columns: Divisor::new(columns), ..filled }
}

/// Returns `filled` with one head per state. The block of this head computes the outputs of all heads that read the
/// state.
pub fn with_states_as_heads(problem: &Problem, filled: LinearArgs) -> LinearArgs {
    let heads = int(problem.state_heads());
    LinearArgs { heads, by_heads: Divisor::new(heads), ..filled }
}

/// Returns `filled` with changes, so that the launch computes the transitions of the parts instead of the parts' last
/// states.
pub fn transitions(mut filled: LinearArgs, columns: usize, to: States) -> LinearArgs {
    (filled.columns, filled.by_columns) = (int(columns), Divisor::new(int(columns)));
    filled.value_dim = filled.key_dim;
    filled.flags |= args::IDENTITY;
    with_states(filled, States::default(), to, States::default())
}

/// Returns the parameters that all launches of the scan over `items` parts share, with the number of blocks per node.
/// The other three arguments are device addresses. `states` is the address of the folded parts, which the scan replaces
/// by the states after these parts. `transitions` is the address of the dense transitions, or zero. `sums` is the
/// address of the sums of gate logarithms.
pub fn carry(
    problem: &Problem,
    items: usize,
    [states, transitions, sums]: [u64; 3],
    gates: usize,
) -> CarryArgs {
    let (key_dim, value_dim) = (problem.key_dim(), problem.value_dim());
    let [blocks, heads] =
        [carry_blocks(transitions != 0, key_dim, value_dim), problem.state_heads()].map(int);
    CarryArgs {
        by_blocks: Divisor::new(blocks),
        by_nodes: Divisor::new(1),
        by_heads: Divisor::new(heads),
        blocks,
        nodes: 1,
        heads,
        items: int(items),
        key_dim: int(key_dim),
        value_dim: int(value_dim),
        gates: int(gates),
        states,
        transitions,
        sums,
        ..CarryArgs::default()
    }
}

/// Returns the parameters of the launch for one step of the scan, with `nodes` nodes. `down` is `true` in the downward
/// phase.
pub fn with_step(filled: CarryArgs, step: usize, down: bool, nodes: usize) -> CarryArgs {
    let nodes = int(nodes);
    CarryArgs { by_nodes: Divisor::new(nodes), nodes, step: int(step), down: i32::from(down), ..filled }
}

/// Returns the parameters of a launch that copies states. The launch has no tokens, and one head per state.
pub fn copy(problem: &Problem, mut filled: LinearArgs, from: States, to: States) -> LinearArgs {
    let one = Divisor::new(1);
    filled.heads = int(problem.state_heads());
    filled.by_heads = Divisor::new(filled.heads);
    (filled.readers, filled.by_readers, filled.by_sharers) = (1, one, one);
    (filled.sequences, filled.tokens, filled.sequence_chunks, filled.chunks) = (0, 0, 0, 0);
    (filled.flags, filled.least, filled.most) = (args::STEPS, 0, i32::MAX);
    let silent =
        with_answers(with_parts(filled, 1, 1), DeviceTensor::default(), TYPE_F32, DeviceTensor::default());
    with_states(silent, from, to, States::default())
}
