//! Costs of the kernels of linear attention in the calls whose times are predicted: f32, complete chunks, one head, no states, as
//! many dims in values as in keys. [`thread`](super::thread) executes them.

use super::code::Instruction;
use super::thread::{Program, Thread};
use elsa_kernels::cuda::linear::{
    CHUNK, DECAY_VEC4, DIM_GATES, KEY_VEC4, LONG_CHUNK, LONG_ELEMENTS, LONG_TILE, LinearArgs, LongArgs,
    OUTPUT_VEC4, QUERY_VEC4, STATE_VEC4, STEPS, VALUE_F32, VALUE_VEC4, long_blocks, long_width, terms_blocks,
};
use elsa_kernels::cuda::tensor::Divisor;
use std::collections::HashMap;
use std::mem::offset_of;

/// Source file of the table, relative to the root of the tree.
pub const TABLE: &str = "runtime/lab/src/predict/linear/costs.rs";
/// Prefix of the kernels.
pub const PREFIX: &str = "linear_";

/// Address of the parameter in constant bank 0.
const PARAMETERS: usize = 0x140;
/// Number of lanes of a warp.
const WARP: usize = 32;
/// Numbers of chunks of the two calls whose difference is the cost of a chunk: of short chunks, and of long ones, whose loops
/// process several at once.
const SHORT_CHUNKS: [usize; 2] = [4, 8];
const LONG_CHUNKS: [usize; 2] = [8, 16];
/// Number of chunks of a call whose blocks do not pass over tokens.
const APART: usize = 2;

/// The rules of the predicted calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Linear,
    Gated,
    PerDim,
    Delta,
}

impl Of {
    fn name(self) -> &'static str {
        match self {
            Of::Linear => "linear",
            Of::Gated => "gated",
            Of::PerDim => "gated-dim",
            Of::Delta => "delta",
        }
    }
}

/// A call of a kernel.
#[derive(Clone, Copy)]
struct Call {
    of: Of,
    dim: usize,
    steps: bool,
    /// Number of tokens of a chunk.
    chunk: usize,
    /// `true` if a block passes over all tokens.
    passes: bool,
    /// Number of blocks of a state, or of a chunk of a state.
    columns: usize,
}

/// Counts of one warp, on average over the warps of the blocks: those of a part, then the instructions of f64.
type Counts = Vec<usize>;

/// Cost of a kernel in a call: the cost of a block without its chunks, and that of each chunk.
pub struct Row {
    of: &'static str,
    dim: usize,
    steps: bool,
    block: Counts,
    chunk: Counts,
}

/// Returns the calls of a kernel that are predicted.
fn calls(kernel: &str) -> Vec<Call> {
    let name = kernel.trim_start_matches(PREFIX).trim_end_matches("__sm53");
    let plain: &[Of] = &[Of::Linear, Of::Gated];
    let head: &[Of] = &[Of::Linear, Of::Gated, Of::Delta];
    let both: &[usize] = &[64, 128];
    let (of, dims, columns, chunk): (&[Of], &[usize], usize, usize) = match name {
        "walk_head_d64" => (head, &[64], 32, CHUNK),
        "walk_head_d128" => (head, &[128], 32, CHUNK),
        "pairs_head_d128" => (head, &[128], 16, CHUNK),
        "walk_dim_d64" => (&[Of::PerDim], &[64], 32, CHUNK),
        "walk_dim_d128" => (&[Of::PerDim], &[128], 32, CHUNK),
        "prepare_head_plain" => (plain, both, 32, CHUNK),
        "prepare_head_delta" => (&[Of::Delta], both, 32, CHUNK),
        "prepare_dim_plain" => (&[Of::PerDim], both, 32, CHUNK),
        "long_terms" | "long_terms_few" | "long_answers" => (plain, both, LONG_TILE, LONG_CHUNK),
        "long_states" => (plain, both, 0, LONG_CHUNK),
        "long_answers_few" => (&[Of::Linear, Of::Gated, Of::PerDim, Of::Delta], both, LONG_TILE, LONG_CHUNK),
        "solve_head" => (&[Of::Delta], both, LONG_TILE, LONG_CHUNK),
        "solve_dim" => (&[Of::PerDim], both, LONG_TILE, LONG_CHUNK),
        "long_carry_d64" => (&[Of::Delta, Of::PerDim], &[64], 0, LONG_CHUNK),
        "long_carry_d128" => (&[Of::Delta, Of::PerDim], &[128], 0, LONG_CHUNK),
        _ => return Vec::new(),
    };
    let (walks, carries) = (chunk == CHUNK && !name.starts_with("prepare"), name.contains("carry"));
    let passes = walks || carries || name == "long_states";
    let mut all = Vec::new();
    for &dim in dims {
        for &of in of {
            let columns = match name {
                "long_states" => dim * dim / LONG_ELEMENTS,
                _ if carries => dim / long_width(of == Of::Delta),
                _ => dim / columns,
            };
            let call = Call { of, dim, steps: false, chunk, passes, columns };
            all.extend([Some(call), walks.then_some(Call { steps: true, ..call })].into_iter().flatten());
        }
    }
    all
}

/// Returns the parameter of a call with `tokens` tokens, by addresses in constant bank 0.
fn parameters(kernel: &str, call: &Call, tokens: usize) -> HashMap<usize, u32> {
    let mut filled = HashMap::new();
    let mut word = |at: usize, value: u32| filled.insert(PARAMETERS + at, value);
    macro_rules! set {
        ($($field:ident).+, $value:expr) => {
            word(offset_of!(LinearArgs, $($field).+), $value as u32)
        };
    }
    // An address, and strides below 2^32.
    macro_rules! tensor {
        ($at:expr, $strides:expr) => {{
            word($at, 256);
            for (index, stride) in $strides.into_iter().enumerate() {
                word($at + 8 * (index + 1), stride as u32);
            }
        }};
    }
    let (chunks, dim) = (tokens / call.chunk, call.dim);
    let (per_dim, delta, gated) = (call.of == Of::PerDim, call.of == Of::Delta, call.of == Of::Gated);
    let one = Divisor::new(1);
    for at in [
        offset_of!(LinearArgs, by_parts),
        offset_of!(LinearArgs, by_heads),
        offset_of!(LinearArgs, by_readers),
        offset_of!(LinearArgs, by_sharers),
        offset_of!(LinearArgs, by_key_group),
    ] {
        word(at + offset_of!(Divisor, multiplier), one.multiplier);
        word(at + offset_of!(Divisor, shift), one.shift);
    }
    let (by_columns, by_chunks) = (Divisor::new(call.columns as i32), Divisor::new(chunks as i32));
    set!(by_columns.multiplier, by_columns.multiplier);
    set!(by_columns.shift, by_columns.shift);
    set!(by_sequence_chunks.multiplier, by_chunks.multiplier);
    set!(by_sequence_chunks.shift, by_chunks.shift);
    set!(columns, call.columns);
    set!(parts, 1);
    set!(heads, 1);
    set!(sequence_count, 1);
    set!(tokens, tokens);
    set!(sequence_chunks, chunks);
    set!(chunks, chunks);
    set!(part_chunks, tokens / CHUNK);
    set!(key_dim, dim);
    set!(value_dim, dim);
    let flags = [
        (STEPS, call.steps),
        (QUERY_VEC4 | KEY_VEC4 | VALUE_VEC4 | OUTPUT_VEC4 | STATE_VEC4, true),
        (DECAY_VEC4, per_dim),
        (DIM_GATES, per_dim && call.chunk == LONG_CHUNK),
        (VALUE_F32, delta && kernel.contains("answers")),
    ];
    set!(flags, flags.iter().filter(|(_, on)| *on).fold(0, |all, (flag, _)| all | flag));
    set!(readers, 1);
    set!(boundary_chunks, 1);
    set!(scale, 1f32.to_bits());
    let strides = [tokens * dim, tokens * dim, dim];
    for at in [
        offset_of!(LinearArgs, query),
        offset_of!(LinearArgs, key),
        offset_of!(LinearArgs, value),
        offset_of!(LinearArgs, output),
    ] {
        tensor!(at, strides);
    }
    if per_dim {
        tensor!(offset_of!(LinearArgs, decay), strides);
    } else if gated {
        tensor!(offset_of!(LinearArgs, decay), [tokens, tokens, 1]);
    }
    if delta {
        tensor!(offset_of!(LinearArgs, beta), [tokens, tokens, 1]);
    }
    if call.chunk == LONG_CHUNK {
        tensor!(offset_of!(LinearArgs, boundaries), [0, chunks * dim * (dim + 1), dim * (dim + 1), dim]);
        tensor!(offset_of!(LongArgs, written), strides);
    }
    if !call.passes {
        // The last chunk needs no terms if the call has no last state.
        tensor!(offset_of!(LinearArgs, last), [dim * dim, dim * dim, 0, dim]);
    }
    set!(records, 256);
    set!(tiles, 256);
    set!(most, i32::MAX);
    filled
}

/// Returns the number of blocks of a call with `chunks` chunks whose costs are averaged.
fn blocks(kernel: &str, call: &Call, chunks: usize) -> usize {
    if kernel.contains("terms") {
        terms_blocks(1, 1, chunks, call.dim, call.columns)
    } else if kernel.contains("solve") {
        long_blocks(call.of == Of::Delta, [1, 1], chunks, call.dim, call.dim)
    } else {
        // All blocks of another kernel do the same.
        1
    }
}

/// Returns the costs of the kernel in the predicted calls, with `threads` threads per block. `count` counts the instructions
/// on a path.
///
/// # Errors
/// Returns an error if the code contains an unknown instruction.
pub fn rows(
    code: &[Instruction],
    literals: &[u8],
    kernel: &str,
    threads: usize,
    count: impl Fn(&[usize]) -> Vec<usize>,
) -> Result<Vec<Row>, String> {
    let program = Program::new(code);
    // The lane with more instructions, the first or the last, takes the way of the warp.
    let warp = |parameters: &HashMap<usize, u32>, block: usize, warp: usize| -> Result<Counts, String> {
        let lane = |lane: usize| {
            let thread = (warp * WARP + lane) as u32;
            program.run(&Thread { parameters, literals, block: block as u32, thread })
        };
        let (first, last) = (lane(0)?, lane(WARP - 1)?);
        let way = if first.len() >= last.len() { first } else { last };
        let f64s = way.iter().filter(|&&at| {
            code[at].name.starts_with('D') && code[at].name != "DEPBAR" || code[at].has("F64")
        });
        let mut counts = count(&way);
        counts.push(f64s.count());
        Ok(counts)
    };
    let average = |call: &Call, chunks: usize| -> Result<Counts, String> {
        let parameters = parameters(kernel, call, chunks * call.chunk);
        let (blocks, warps) = (blocks(kernel, call, chunks), threads / WARP);
        let mut sums = warp(&parameters, 0, 0)?;
        for index in 1..blocks * warps {
            let of = warp(&parameters, index / warps, index % warps)?;
            sums.iter_mut().zip(of).for_each(|(sum, of)| *sum += of);
        }
        Ok(sums.into_iter().map(|sum| sum / (blocks * warps)).collect())
    };
    let row = |call: &Call| -> Result<Row, String> {
        let fault = |fault| format!("{kernel}, {}, d {}: {fault}", call.of.name(), call.dim);
        let [few, more] = if call.chunk == CHUNK { SHORT_CHUNKS } else { LONG_CHUNKS };
        // A prepare kernel has a chunk for each warp.
        let few = if call.passes || call.chunk == CHUNK { few } else { APART };
        let block = average(call, few).map_err(fault)?;
        let mut chunk = vec![0; block.len()];
        let mut once = block.clone();
        if call.passes {
            let all = average(call, more).map_err(fault)?;
            for (index, each) in chunk.iter_mut().enumerate() {
                *each = all[index].saturating_sub(block[index]) / (more - few);
                once[index] = block[index].saturating_sub(*each * few);
            }
        }
        Ok(Row { of: call.of.name(), dim: call.dim, steps: call.steps, block: once, chunk })
    };
    calls(kernel).iter().map(row).collect()
}

/// Renders the costs as the Rust source of the table.
pub fn table<'a>(costs: impl Iterator<Item = (&'a str, &'a [Row])>) -> String {
    let mut text = String::from(
        "//! Costs of the kernels of linear attention on a GPU of compute capability 6.2. Generated from their machine code by `cargo xtask\n\
         //! ptx`.\n\n\
         use super::cost::Cost;\n\n\
         /// The costs of the kernels, in the order of the fields.\n\
         #[rustfmt::skip]\n\
         pub static COSTS: &[Cost] = &[\n",
    );
    for (kernel, rows) in costs {
        for Row { of, dim, steps, block, chunk } in rows {
            text.push_str(&format!(
                "    Cost::new(\"{kernel}\", \"{of}\", {dim}, {steps},\n        {block:?},\n        {chunk:?}),\n"
            ));
        }
    }
    text + "];\n"
}
