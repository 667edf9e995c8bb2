//! Decisions made once per shape for runs on a GPU.

use elsa_core::dtype::DType;
use elsa_core::linear::bound::{Executed, Solve};
use elsa_core::linear::{Direction, Form, Gates, Problem};
use elsa_kernels::cuda::linear::{CHUNK, LONG_CHUNK, LONG_DIMS, MOST_READERS};

/// Largest relative error of a gate. A gate is an exponential, and its argument is reduced in f64.
const EXP_RELATIVE: f64 = 1.0 / 4_194_304.0;

/// Base-2 logarithm of the largest factor into which per-dim gates are split.
const FACTORED: f64 = 100.0;

/// Number of roundings of a product in a sum over dims or tokens, in the kernels that compute a factor for each pair of
/// tokens. The roundings are four in a chain of four products, two in Kahan's summation, one for the summation's error
/// terms that grow with the length, two for the norms of rows, one for a factor, and one for a final addition.
const BY_PAIRS: usize = 11;

/// Smallest number of tokens for which chunks are faster than single tokens, on a device that runs all blocks of a
/// sequence at once. At this number, chunks save exactly the time that their additional launch costs; this launch
/// prepares the chunks. Measured on an H200, d 64 and 128: between 22 (delta) and 25 (gated); with a gate per dim between 18 and 21,
/// where the second chunk of 16 begins.
const PAYS_FROM: usize = 24;

/// Number of blocks that an SM runs at once, for a kernel that updates states. A block has 128 threads with up to
/// 255 registers each.
const RESIDENT: usize = 2;

/// Number of tokens per part of a scan. This number applies if the chooser determines the number of parts, which is
/// then from 2 to [`PARTS`].
const TOKENS_OF_PART: usize = 512;

/// Largest number of parts that the chooser selects for a scan.
const PARTS: usize = 16;

/// Returns whether the quadratic form is computed by kernels that sum pair by pair and also compute the last state.
/// This is the case for delta rules and for per-dim gates. Non-causal calls are an exception: they are computed in
/// chunks.
pub fn is_quadratic(problem: &Problem, form: Form) -> bool {
    let direction = problem.spec().direction;
    form == Form::Parallel
        && direction != Direction::NonCausal
        && (problem.rule().is_delta() || problem.gates() == Gates::PerDim)
}

/// When computing all chunks of a sequence at once is faster than passing over its tokens once.
struct AtOnce {
    /// Largest number of blocks of 32 columns in all states of a sequence, in eighths of the number of SMs.
    eighths: usize,
    /// Smallest number of tokens.
    tokens: usize,
}

/// Measured on an H200, by `linear_forms.py`. With at most one gate per head and no delta rule the numbers of tokens are 96 and
/// 192 if the call returns no states, which saves a launch, and some 30 more otherwise.
const fn at_once(delta: bool, per_dim: bool, dims: usize) -> AtOnce {
    let (eighths, tokens) = match (delta, per_dim, dims > 64) {
        (false, false, false) => (4, 112),
        (false, false, true) => (4, 208),
        (true, false, false) => (2, 176),
        (true, false, true) => (1, 320),
        (false, true, false) => (8, 120),
        (false, true, true) => (4, 120),
        (true, true, _) => (4, 160),
    };
    AtOnce { eighths, tokens }
}

/// Returns whether a problem in the form `form` is computed in long chunks, all of them at once. Keys may have any number of
/// dims without a delta rule and with at most one gate per head, and otherwise [`LONG_DIMS`] dims. Non-causal calls are an
/// exception, because their outputs only need the last state.
pub(super) fn has_long_chunks(problem: &Problem, form: Form) -> bool {
    form == Form::Chunk
        && problem.spec().direction != Direction::NonCausal
        && (!has_marks(problem) || problem.key_dim() <= LONG_DIMS)
}

/// Returns whether chunks of a problem that are computed at once may be marked, and are then computed token by token.
pub(super) fn has_marks(problem: &Problem) -> bool {
    problem.rule().is_delta() || problem.gates() == Gates::PerDim
}

/// Returns the number of parts into which a scan divides a sequence of `tokens` tokens, if the options do not set this
/// number.
pub(super) fn usual_parts(tokens: usize) -> usize {
    (tokens / TOKENS_OF_PART).clamp(2, PARTS)
}

/// Returns the number of waves in which a device with `sms` SMs runs `blocks` blocks of a kernel that updates states.
fn turns(sms: usize, blocks: usize) -> usize {
    blocks.div_ceil(RESIDENT.saturating_mul(sms).max(1)).max(1)
}

/// The chooser's decisions for a GPU.
///
/// Only `kernel`, `form`, `chunk`, the parts of [`Form::Scan`] and `recurrent_below` can change bits of the result. The
/// bits of a sequence's results depend on the rule, the heads and their sizes, the number of its tokens, the number of
/// SMs and the options. They do not depend on the batch or on other sequences packed with it, with one exception. If the
/// options leave the form open and the workspace would exceed the budget, the entire batch is computed in a form with a
/// smaller workspace, in the end token by token. Without a budget, the limit is a quarter of the device's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearGpuChoice {
    /// Name of the kernel that updates the states.
    pub kernel: &'static str,
    /// The form of the computation, which determines the order of operations.
    pub form: Form,
    /// Number of tokens per chunk, within which tokens interact directly: 1 for [`Form::Recurrent`], all tokens for
    /// [`Form::Parallel`], 64 if all chunks are computed at once, and 16 for every other form.
    pub chunk: usize,
    /// Number of tokens below which a packed sequence is computed token by token, for every value of `form`; zero if
    /// sequences are not packed or the options determine the form.
    pub recurrent_below: usize,
    /// If all chunks are computed at once, number of tokens below which a packed sequence is computed in the form
    /// [`Form::FusedChunk`] instead; otherwise zero, and also if the options determine the form.
    pub fused_below: usize,
    /// For [`Form::Chunk`], the number of chunks between two stored states, unless all chunks are computed at once. In a
    /// non-causal call that reads the last state, this is the number of chunks per part.
    pub boundary: usize,
    /// Number of blocks into which the columns of a state are divided.
    pub columns: usize,
    /// Largest number of parts that are computed in parallel in one sequence.
    pub parts: usize,
    /// Number of key dims that the kernel processes. Keys are padded to this number of dims.
    pub dims: usize,
    /// Upper limit on the number of chunks in all sequences together.
    pub chunks: usize,
    /// `true` if one block computes the outputs of all query heads that read a state, so that the state is computed
    /// only once. The bits stay the same, with one exception: if a product of queries and keys is not finite, all heads
    /// that read the state are computed token by token.
    pub shares: bool,
    /// Largest number of blocks for which a launch uses the kernel with half the columns per block. This limit does not
    /// change the bits of the result.
    pub pairs: usize,
    /// `true` if keys have too many dims for chunks: the kernel that updates the states then computes token by token.
    pub(super) steps: bool,
    /// Number of parts that the options request for [`Form::Scan`]; `None` leaves the number to the chooser.
    pub(super) asked_parts: Option<usize>,
}

impl LinearGpuChoice {
    /// Returns the smallest number of tokens for which a sequence is computed in chunks on a device with `sms` SMs, if
    /// no option requests a form. `blocks` is the number of blocks of 32 columns in all states of the sequence. Some
    /// devices, such as a board with one or two SMs, run the blocks in several waves. On these devices, chunks save
    /// more time per token with every wave, while the cost of their additional launch stays the same. The result is at
    /// least 16, since a chunk of 16 tokens is always computed completely.
    #[must_use]
    pub fn crossover(sms: usize, blocks: usize) -> usize {
        (PAYS_FROM / turns(sms, blocks)).max(CHUNK)
    }

    /// Returns the smallest number of tokens for which a sequence is computed in long chunks, all of them at once, on a
    /// device with `sms` SMs, if no option requests a form. Returns `None` if there is no such number. `blocks` is the
    /// number of blocks of 32 columns in all states of a sequence. Long chunks multiply more, and store a state per
    /// chunk. So they are faster if the blocks of a sequence would leave SMs idle; with a gate per dim, where a factor of
    /// every pair of tokens costs most, also if they would not. The batch does not count, because the bits of a sequence
    /// must not depend on it.
    pub(super) fn long_from(problem: &Problem, blocks: usize, sms: usize) -> Option<usize> {
        let per_dim = problem.gates() == Gates::PerDim;
        let at_once = at_once(problem.rule().is_delta(), per_dim, problem.key_dim());
        let few = blocks.saturating_mul(8) <= sms.saturating_mul(at_once.eighths);
        (has_long_chunks(problem, Form::Chunk) && few).then_some(at_once.tokens)
    }

    /// Returns whether a launch of `blocks` blocks has few of them for a device with `sms` SMs. Some kernels have a twin for such
    /// launches.
    #[must_use]
    pub const fn is_few(blocks: usize, sms: usize) -> bool {
        blocks <= 2 * sms
    }

    /// Returns whether all chunks are computed at once. Chunks are then long.
    pub(super) fn is_long(&self) -> bool {
        self.form == Form::Chunk && self.chunk == LONG_CHUNK
    }

    /// Returns the number of tokens per prepared chunk.
    pub(super) fn prepared(&self) -> usize {
        if self.is_long() { LONG_CHUNK } else { CHUNK }
    }

    /// Returns whether one block computes the outputs of all `readers` query heads of a state. `blocks` is the number
    /// of blocks for all heads of a sequence if each head has separate blocks. Computing the outputs of one head takes
    /// about as long as computing the state. So a shared block takes half a wave for the state and half a wave for each
    /// reader. If all separate blocks fit on the device at once, sharing is slower.
    pub(super) fn is_shared(
        form: Form,
        direction: Direction,
        readers: usize,
        blocks: usize,
        sms: usize,
    ) -> bool {
        let divides = matches!(form, Form::Recurrent | Form::FusedChunk) && direction != Direction::NonCausal;
        let half_turns =
            turns(sms, blocks.div_ceil(readers.max(1))).saturating_mul(readers.saturating_add(1));
        divides && (2..=MOST_READERS).contains(&readers) && half_turns < turns(sms, blocks).saturating_mul(2)
    }

    /// Returns an upper limit on the number of chunks of 16 tokens in all packed sequences together.
    pub(super) fn short_chunks(&self, problem: &Problem) -> usize {
        (problem.tokens() / CHUNK).saturating_add(problem.sequences())
    }

    /// Returns the number of chunks per part, for [`Form::Scan`] and a sequence of `tokens` tokens.
    pub(super) fn part_chunks(&self, tokens: usize) -> usize {
        let parts = self.asked_parts.unwrap_or(usual_parts(tokens)).max(1);
        tokens.div_ceil(CHUNK).div_ceil(parts).max(1)
    }

    /// Returns the properties that determine the error bound of a run over a sequence of `tokens` tokens.
    #[must_use]
    pub fn executed(&self, problem: &Problem, tokens: usize) -> Executed {
        let unit = DType::F32.unit_roundoff();
        // Roundings of a unit vector: half of the roundings of a sum of squares, and the roundings of its root, the
        // inverse and a product.
        let key = match problem.spec().normalize {
            Some(_) => (self.dims as f64 / 2.0 + 4.0) * unit,
            None => 0.0,
        };
        let (form, chunk) = match self.form {
            _ if tokens < self.recurrent_below => (Form::Recurrent, 1),
            _ if tokens < self.fused_below => (Form::FusedChunk, CHUNK),
            // This case computes the state chunk by chunk, and then all tokens read the last state.
            Form::Parallel if problem.spec().direction == Direction::NonCausal => (Form::FusedChunk, CHUNK),
            Form::Parallel => (Form::Parallel, tokens.max(1)),
            form => (form, self.chunk),
        };
        let (by_pairs, per_dim) = (is_quadratic(problem, form), problem.gates() == Gates::PerDim);
        Executed {
            form,
            chunk,
            part: if form == Form::Scan { self.part_chunks(tokens) * CHUNK } else { tokens.max(1) },
            // The sums of per-dim logarithms in a chunk have roundings to half a unit of 2^-24: two in short chunks and nine in
            // long ones. Long chunks also use up to four exponentials instead of two, with two more roundings.
            exp_relative: match (per_dim, chunk) {
                (true, LONG_CHUNK) => 3.5 * EXP_RELATIVE,
                (true, CHUNK) => 1.2 * EXP_RELATIVE,
                _ => EXP_RELATIVE,
            },
            query_relative: key + 2.0 * unit,
            key_relative: key,
            // In the quadratic form, this includes the roundings of the norms of two rows.
            dims: match form {
                _ if by_pairs => BY_PAIRS,
                // The norms of two rows, the factors of two gates or of three per dim, and the products with them.
                Form::Chunk if chunk == LONG_CHUNK => self.dims + if per_dim { 6 } else { 4 },
                Form::Parallel => self.dims + 3,
                _ => self.dims + 1,
            },
            // The quadratic form adds the contribution of the past state to an output, dim by dim. It computes the last
            // state chunk by chunk, and every chunk rounds the state and an exponential.
            tokens: match form {
                _ if by_pairs => BY_PAIRS,
                Form::Parallel => tokens + self.dims + 64,
                _ => chunk + 4,
            },
            solve: if by_pairs { Solve::Rows } else { Solve::Factors },
            factored: if per_dim { FACTORED } else { 0.0 },
        }
    }
}
