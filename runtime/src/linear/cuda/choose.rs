//! Chooses how a GPU computes a problem. The chooser is a pure function of the problem, the options, the kernels and
//! the device. Its criteria:
//!
//! 1. *Bits.* `recurrent` and the forms that process chunks have different bits. Whether `recurrent` is chosen depends
//!    only on the rule, the number of tokens of a sequence and the number of its states ([`LinearGpuChoice::crossover`]). The
//!    lengths of packed sequences arrive with the data, so each packed sequence is computed as if it were alone
//!    ([`LinearGpuChoice::recurrent_below`]).
//! 2. *Chunks at once.* `chunk` computes all chunks of all sequences at once, in three launches, with chunks of 64 tokens, unless
//!    keys have more than 128 dims under a delta rule or with a gate per dim. Its bits differ from those of `fused-chunk`. It
//!    fills the device even if there is a single sequence, but multiplies more and stores a state per chunk. So it is
//!    chosen if the blocks of a sequence would leave SMs idle and the sequence is long enough to pay for three launches
//!    ([`LinearGpuChoice::long_from`]). For packed sequences and for batches the choice is that of a sequence
//!    alone ([`LinearGpuChoice::fused_below`]).
//! 3. *Passes.* Other calls use `fused-chunk`, which passes over the tokens once. `scan` and `parallel` are only chosen
//!    on request, and so is `chunk` with more than 128 dims. There, `chunk` has the bits of `fused-chunk`, but
//!    needs a second pass. It occupies SMs that `fused-chunk` leaves idle, but only long sequences of few heads gain from
//!    it. `scan` passes twice over most tokens,
//!    and a delta rule also needs the transitions of the parts. So `scan` is faster if most SMs would be idle, and
//!    slower if the batch fills the device. The bits of `scan` depend on its parts, so the batch must not decide between
//!    `scan` and `fused-chunk`; a choice without the batch would slow down large batches. The time of `parallel` is
//!    quadratic.
//! 4. *Readers.* If several query heads read a state and the blocks of a sequence run in several waves, one block
//!    computes the state and the outputs of all these heads. Tiles of chunks have up to 256 dims of a key, or 128 with
//!    per-dim gates. Keys with more dims, up to 1024, are computed token by token, by a kernel whose blocks always
//!    compute all heads of a state. If a launch would leave half of the SMs without a block, the launch uses twice the
//!    number of blocks, with half the columns each.
//! 5. *Memory.* The prepared data of a chunk take kilobytes, and more with per-dim gates or if all chunks are computed at
//!    once. Without a budget they may take a quarter of the device's memory. If they do not fit, `fused-chunk` replaces
//!    `chunk`, and `recurrent` replaces `fused-chunk`. This is the only criterion that depends on the batch and can change
//!    a bit.

use super::choice::{LinearGpuChoice, has_long_chunks, usual_parts};
use super::layout::RegionOffsets;
use crate::linear::options::LinearPlanOptions;
use elsa_core::linear::plan::{CHUNK_STEP, MOST_CHUNK, MOST_PARTS};
use elsa_core::linear::{Direction, Form, Gates, Problem};
use elsa_core::plan::ChooseError;
use elsa_kernels::cuda::linear::{CHUNK, LONG_CHUNK, LONG_TILE, LinearWalk, PARALLEL_ROWS};

/// Factor by which the number of blocks grows if the kernel with half the columns per block replaces the ordinary
/// kernel. Measured on an H200, d 128: the replacement takes 0.69 of the ordinary kernel's time if each of its blocks has an
/// SM to itself, and 1.04 if two blocks share an SM.
const PAIRED: usize = 2;

/// Number of blocks per SM that a pass over parts needs to fill the device.
const BLOCKS_PER_SM: usize = 4;

/// Number of dims per block in the step-by-step kernel. Each thread computes one dim.
const STEPPED_DIMS: usize = 128;

/// Device properties used by the chooser.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// Number of SMs.
    pub sms: usize,
    /// Size of the device's memory in bytes.
    pub memory: usize,
}

/// Name and properties of a kernel that updates states.
pub type Walk = (&'static str, LinearWalk);

/// Chooses how `problem` is computed, and lays out the workspace. `walks` are the available kernels that update states.
///
/// # Errors
/// Returns an error if no kernel supports the form or the head size, if a size exceeds the kernels' 32-bit integers, or
/// if the workspace exceeds the budget.
pub fn choose(
    problem: &Problem,
    device: Device,
    walks: impl Iterator<Item = Walk> + Clone,
    options: &LinearPlanOptions,
) -> Result<(LinearGpuChoice, RegionOffsets), ChooseError> {
    if let Some(found) = options.chunk
        && !(found.is_multiple_of(CHUNK_STEP) && (CHUNK_STEP..=MOST_CHUNK).contains(&found))
    {
        return Err(ChooseError::Chunk { found, step: CHUNK_STEP, max: MOST_CHUNK });
    }
    if let Some(found) = options.parts
        && !(2..=MOST_PARTS).contains(&found)
    {
        return Err(ChooseError::Parts { found, min: 2, max: MOST_PARTS });
    }
    match (options.form, options.parts, options.chunk) {
        (Some(form), Some(_), _) if form != Form::Scan => {
            return Err(ChooseError::Option { option: "parts", form: form.name(), allowed: "scan" });
        }
        (Some(form @ (Form::Recurrent | Form::Parallel)), _, Some(_)) => {
            let allowed = "chunk, fused-chunk or scan";
            return Err(ChooseError::Option { option: "chunk", form: form.name(), allowed });
        }
        _ => {}
    }
    let per_dim = problem.gates() == Gates::PerDim;
    let found = problem.key_dim();
    let is_free = (options.form, options.chunk, options.parts) == (None, None, None);
    let is_stepped = is_free || options.form == Some(Form::Recurrent);
    let fit = walks.clone().filter(|(_, walk)| walk.per_dim == per_dim);
    // Keys with more dims than a kernel's tiles are computed token by token.
    let usable =
        fit.clone().filter(|(_, walk)| if walk.steps { is_stepped } else { !walk.shares && !walk.pairs });
    let most = usable.clone().map(|(_, walk)| walk.dims).max().unwrap_or(0);
    let smallest = usable.filter(|(_, walk)| walk.dims >= found).min_by_key(|(_, walk)| walk.dims);
    let (kernel, walk) = smallest.ok_or(ChooseError::Large { what: "d_k", found, most })?;
    let (tokens, sequences) = (problem.tokens(), problem.sequences());
    let heads = if walk.steps { problem.state_heads() } else { problem.output_heads() };
    let chunks_of = |length: usize| match problem.spec().packed {
        // The last chunk of each sequence may have fewer tokens.
        Some(n) => (tokens / length).saturating_add(n),
        None => tokens.div_ceil(length).saturating_mul(sequences),
    };
    let longest = tokens.div_ceil(CHUNK);
    let columns = problem.value_dim().div_ceil(walk.columns);
    let own = columns.saturating_mul(heads).saturating_mul(sequences);
    let wanted = (BLOCKS_PER_SM * device.sms).div_ceil(own.max(1));
    let blocks = columns.saturating_mul(heads);
    let long_from = LinearGpuChoice::long_from(problem, blocks, device.sms);
    let chunks_from = LinearGpuChoice::crossover(device.sms, blocks);
    let from = long_from.unwrap_or(chunks_from).min(chunks_from);
    let form = match (options.form, options.chunk) {
        (Some(form), _) => form,
        (None, _) if walk.steps => Form::Recurrent,
        (None, _) if options.parts.is_some() => Form::Scan,
        (None, None) if tokens < from => Form::Recurrent,
        (None, None) if long_from.is_some_and(|long_from| tokens >= long_from) => Form::Chunk,
        (None, _) => Form::FusedChunk,
    };
    let is_long = has_long_chunks(problem, form);
    let is_shared = |form| {
        let (direction, readers) = (problem.spec().direction, problem.readers(0).1);
        let mut all = fit.clone();
        let has_kernel = all.any(|(_, other)| other.shares && !other.steps && other.dims == walk.dims);
        walk.steps || has_kernel && LinearGpuChoice::is_shared(form, direction, readers, blocks, device.sms)
    };
    let has_pairs = fit.clone().any(|(_, other)| other.pairs && other.dims == walk.dims);
    let boundary = match (form, options.chunk) {
        (Form::Chunk, Some(chunk)) => chunk.div_ceil(CHUNK),
        _ => longest.div_ceil(wanted.max(1)),
    };
    let boundary = boundary.max(1);
    let several = form == Form::Chunk && !is_long || problem.spec().direction == Direction::NonCausal;
    let is_packed = problem.spec().packed.is_some();
    let mut choice = LinearGpuChoice {
        kernel,
        form,
        chunk: match form {
            Form::Recurrent => 1,
            Form::Parallel => tokens.max(1),
            _ if is_long => LONG_CHUNK,
            _ => CHUNK,
        },
        recurrent_below: if is_packed && form != Form::Recurrent && is_free { from } else { 0 },
        fused_below: long_from.filter(|_| is_packed && is_long && is_free).unwrap_or(0),
        boundary,
        columns,
        parts: if several { longest.div_ceil(boundary).max(1) } else { 1 },
        dims: if walk.steps { found.next_multiple_of(STEPPED_DIMS) } else { walk.dims },
        chunks: chunks_of(if is_long { LONG_CHUNK } else { CHUNK }),
        steps: walk.steps,
        shares: is_shared(form),
        pairs: if has_pairs { device.sms / PAIRED } else { 0 },
        asked_parts: options.parts,
    };
    if form == Form::Scan {
        choice.parts = match is_packed {
            // No packed sequence has more parts than this number.
            true => options.parts.unwrap_or(usual_parts(tokens)),
            false => longest.div_ceil(choice.part_chunks(tokens)).max(1),
        };
    }
    let most = i32::MAX as usize;
    let fits =
        |what, found| if found > most { Err(ChooseError::Large { what, found, most }) } else { Ok(()) };
    fits("tokens", tokens.saturating_add(CHUNK))?;
    // A transition has as many columns as a key has dims.
    let widest = columns.max(found.div_ceil(walk.columns));
    let rows = if form == Form::Parallel { tokens.div_ceil(PARALLEL_ROWS) } else { 0 };
    let parts = choice.parts.max(rows).max(if several { longest.div_ceil(boundary) } else { 0 });
    fits("blocks", [widest, parts, heads, sequences].into_iter().fold(1, usize::saturating_mul))?;
    fits("chunks", heads.saturating_mul(chunks_of(CHUNK)))?;
    if is_long {
        // A launch has blocks for the pairs of tokens of each output head, and for the tiles of each state.
        let tiles = found.div_ceil(LONG_TILE).saturating_mul(problem.value_dim().div_ceil(LONG_TILE));
        fits("blocks", heads.saturating_mul(choice.chunks).saturating_mul(tiles.saturating_add(1)))?;
    }
    fits("d_v", problem.value_dim())?;
    let overflow = ChooseError::Memory { needed: usize::MAX };
    let mut layout = RegionOffsets::of(problem, &choice).ok_or(overflow)?;
    let room = options.budget.unwrap_or(device.memory / 4);
    if layout.bytes > room && is_free && is_long {
        (choice.form, choice.chunk, choice.chunks) = (Form::FusedChunk, CHUNK, chunks_of(CHUNK));
        choice.fused_below = 0;
        choice.shares = is_shared(choice.form);
        layout = RegionOffsets::of(problem, &choice).ok_or(overflow)?;
    }
    if layout.bytes > room && is_free {
        (choice.form, choice.chunk, choice.recurrent_below) = (Form::Recurrent, 1, 0);
        choice.shares = is_shared(choice.form);
        layout = RegionOffsets::of(problem, &choice).ok_or(overflow)?;
    }
    match options.budget {
        Some(budget) if layout.bytes > budget => {
            Err(ChooseError::budget(layout.bytes, budget, layout.transition_bytes))
        }
        _ => Ok((choice, layout)),
    }
}

#[cfg(test)]
mod tests;
