//! Decisions made once per shape for runs on a GPU.

use elsa_core::dtype::DType;
use elsa_core::linear::bound::{Executed, Solve};
use elsa_core::linear::{Direction, Form, Gates, Problem};
use elsa_kernels::cuda::linear::{CHUNK, MOST_READERS};

/// Largest relative error of a gate: of an exponential whose argument is reduced in f64.
const EXP_RELATIVE: f64 = 1.0 / 4_194_304.0;

/// Base-2 logarithm of the largest factor into which gates for each dim are split.
const FACTORED: f64 = 100.0;

/// Roundings of a product in a sum over dims or over tokens, pair by pair: four in a chain of four, two of Kahan's sum and one more
/// for the terms that grow with its length, two for the norms of rows, one for a factor and one for a last addition.
const BY_PAIRS: usize = 11;

/// Number of tokens from which chunks are faster than single tokens, on a device that runs all blocks of a sequence at
/// once: their saving then equals the launch that prepares them. Measured on an H200, d 128, between 46 (gated) and 49
/// (delta).
const TOKENS: usize = 48;

/// Blocks of a kernel that walks, of 128 threads with up to 255 registers, that an SM runs at once.
const RESIDENT: usize = 2;

/// Number of tokens for each further division of a scan, up to [`PARTS`] parts.
const TOKENS_OF_PART: usize = 512;

/// Maximum number of parts of a scan if the options leave the number to the chooser.
const PARTS: usize = 16;

/// Returns whether kernels that sum pair by pair compute the quadratic form, and leave the last state. They do for delta rules and
/// for gates for each dim. A non-causal call goes by chunks.
pub fn is_quadratic(problem: &Problem, form: Form) -> bool {
    let direction = problem.spec().direction;
    form == Form::Parallel
        && direction != Direction::NonCausal
        && (problem.rule().is_delta() || problem.gates() == Gates::PerDim)
}

/// Returns the number of parts into which a scan divides a sequence of `tokens` tokens, unless the options say so.
pub(super) fn usual_parts(tokens: usize) -> usize {
    (tokens / TOKENS_OF_PART).clamp(2, PARTS)
}

/// Counts the waves in which a device of `sms` SMs runs `blocks` blocks of a kernel that walks.
fn turns(sms: usize, blocks: usize) -> usize {
    blocks.div_ceil(RESIDENT.saturating_mul(sms).max(1)).max(1)
}

/// Choice for a GPU.
///
/// Only `kernel`, `form`, `chunk`, the parts of [`Form::Scan`] and `recurrent_below` can change a bit of the result.
/// For a sequence they depend on the rule, the sizes of a head, the tokens of that sequence and the options, never on
/// the batch or on other sequences packed with it. Memory is the one exception: if chunks need more than a quarter of
/// the device's memory, and no option requests a form, the whole batch is computed token by token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearGpuChoice {
    /// Name of the kernel that walks.
    pub kernel: &'static str,
    /// The order of operations.
    pub form: Form,
    /// Number of tokens that interact directly: 1 for [`Form::Recurrent`], all for [`Form::Parallel`].
    pub chunk: usize,
    /// Length below which packed sequences are computed token by token regardless of the form; zero if the
    /// options request a form.
    pub recurrent_below: usize,
    /// Number of chunks between two stored states of [`Form::Chunk`], and in a part of a non-causal read.
    pub boundary: usize,
    /// Blocks of columns of a state.
    pub columns: usize,
    /// Largest number of parts of a sequence that are computed in parallel.
    pub parts: usize,
    /// Number of dims of the kernel, to which keys are padded.
    pub dims: usize,
    /// Largest number of chunks of all sequences together.
    pub chunks: usize,
    /// `true` if a block answers all query heads that read its state, so that the state is computed once for all of them. It
    /// changes no bit, unless a product of queries and keys is not finite: then it has other readers of the state go token by
    /// token, too.
    pub shares: bool,
    /// Maximum number of blocks of a launch that uses the kernel with half the columns per block. It changes no bit.
    pub pairs: usize,
    /// `true` if keys have so many dims that the walking kernel only supports token-by-token processing.
    pub(super) steps: bool,
    /// Number of parts of [`Form::Scan`] that the options request.
    pub(super) asked_parts: Option<usize>,
}

impl LinearGpuChoice {
    /// Returns the number of tokens from which a sequence is computed in chunks on a device of `sms` SMs, if no option
    /// requests a form, and if its states have `blocks` blocks of 32 columns. If a device runs the blocks in several
    /// waves, as the one or two SMs of a board do, the saving per token grows with the number of waves, while the cost
    /// of the additional launch stays. A chunk of 16 tokens is computed as a whole, so fewer tokens never form one.
    #[must_use]
    pub fn crossover(sms: usize, blocks: usize) -> usize {
        (TOKENS / turns(sms, blocks)).max(CHUNK)
    }

    /// Returns whether a block answers all `readers` query heads of a state, if separate blocks would take `blocks`
    /// blocks for all heads of a sequence. An answer takes about as long as its state, so a block of a state takes half
    /// a wave for the state and half a wave for each reader. A device that has room for all readers at once computes
    /// the state for each.
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

    /// Returns the number of chunks of a part of [`Form::Scan`] over a sequence of `tokens` tokens.
    pub(super) fn part_chunks(&self, tokens: usize) -> usize {
        let parts = self.asked_parts.unwrap_or(usual_parts(tokens)).max(1);
        tokens.div_ceil(CHUNK).div_ceil(parts).max(1)
    }

    /// Returns the operations of a run over a sequence of `tokens` tokens, for its error bound.
    #[must_use]
    pub fn executed(&self, problem: &Problem, tokens: usize) -> Executed {
        let unit = DType::F32.unit_roundoff();
        // A unit vector: half the roundings of a sum of squares, its root, its inverse and a product.
        let key = match problem.spec().normalize {
            Some(_) => (self.dims as f64 / 2.0 + 4.0) * unit,
            None => 0.0,
        };
        let (form, chunk) = match self.form {
            _ if tokens < self.recurrent_below => (Form::Recurrent, 1),
            // States pass chunk by chunk, and tokens read the last one.
            Form::Parallel if problem.spec().direction == Direction::NonCausal => (Form::FusedChunk, CHUNK),
            Form::Parallel => (Form::Parallel, tokens.max(1)),
            form => (form, self.chunk),
        };
        let by_pairs = is_quadratic(problem, form);
        Executed {
            form,
            chunk,
            part: if form == Form::Scan { self.part_chunks(tokens) * CHUNK } else { tokens.max(1) },
            exp_relative: EXP_RELATIVE,
            query_relative: key + 2.0 * unit,
            key_relative: key,
            // Norms of two rows in the quadratic form.
            dims: match form {
                _ if by_pairs => BY_PAIRS,
                Form::Parallel => self.dims + 3,
                _ => self.dims + 1,
            },
            // The quadratic form adds the past, dim by dim, to an answer; its last state comes by chunks, each of which rounds
            // it and an exponential.
            tokens: match form {
                _ if by_pairs => BY_PAIRS,
                Form::Parallel => tokens + self.dims + 64,
                _ => chunk + 4,
            },
            solve: if by_pairs { Solve::Rows } else { Solve::Factors },
            factored: if problem.gates() == Gates::PerDim { FACTORED } else { 0.0 },
        }
    }
}
