//! Linear attention: the problem, the options, and the tensors of a call.

use super::data::{elsa_input, elsa_integers, elsa_output};
use super::numbers::*;
use super::problem::elsa_view;

/// Update rule of a head's state S, f32 [d_k, d_v], for a token with key k, value v, gate a = exp(decay) and rate beta.
/// The rules are those of LinearAttention in ONNX opset 27. A gate of zero, from a decay of -inf, clears the state or
/// the rows that it multiplies, including infinities and NaN.
pub type elsa_rule = u32;
/// S <- S + k v'.
pub const ELSA_RULE_LINEAR: elsa_rule = 0;
/// S <- a S + k v', where a scales the entire state or each of its rows.
pub const ELSA_RULE_GATED: elsa_rule = 1;
/// S <- S + beta k (v - S'k)'.
pub const ELSA_RULE_DELTA: elsa_rule = 2;
/// S <- a S, followed by ELSA_RULE_DELTA.
pub const ELSA_RULE_GATED_DELTA: elsa_rule = 3;

/// Order in which tokens update the state.
pub type elsa_direction = u32;
/// First to last. A token reads the state after its own update.
pub const ELSA_DIRECTION_FORWARD: elsa_direction = 0;
/// Last to first. The past state precedes the last token.
pub const ELSA_DIRECTION_REVERSE: elsa_direction = 1;
/// Sum of the forward and the reverse outputs, each including the token itself. No past or present states.
pub const ELSA_DIRECTION_BIDIRECTIONAL: elsa_direction = 2;
/// First to last; afterwards every token reads the final state.
pub const ELSA_DIRECTION_NON_CAUSAL: elsa_direction = 3;

/// Form of the computation: its order of operations. All forms are algebraically equal and differ only in rounding,
/// speed and memory.
pub type elsa_form = u32;
/// ELSA_FORM_RECURRENT or ELSA_FORM_FUSED_CHUNK, by the head size, the number of tokens and the device. If the options
/// set parts: ELSA_FORM_SCAN. The choice does not depend on the number of threads or the batch.
pub const ELSA_FORM_AUTO: elsa_form = 0;
/// One token at a time.
pub const ELSA_FORM_RECURRENT: elsa_form = 1;
/// Two passes over chunks of tokens: first the states between chunks, then the outputs of each chunk.
pub const ELSA_FORM_CHUNK: elsa_form = 2;
/// One pass over chunks of tokens.
pub const ELSA_FORM_FUSED_CHUNK: elsa_form = 3;
/// Products of each token with all earlier tokens, in time quadratic in the number of tokens.
pub const ELSA_FORM_PARALLEL: elsa_form = 4;
/// Scan over parts of the sequence; each part is then computed from the state before it.
pub const ELSA_FORM_SCAN: elsa_form = 5;

/// Problem of linear attention. All zeros except the views of q, k, v and out means ELSA_RULE_LINEAR over f32.
///
/// Each head of v has a state. The number of key heads divides the number of state heads: state s uses key head s /
/// (state heads / key heads). If there are at least as many query heads as states, their number is a multiple of the
/// number of states, and query head i reads state i / (heads / state heads). If there are fewer, their number divides
/// the number of states, and query head s / (state heads / heads) reads state s. out has as many heads as the larger of
/// q and v.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_linear_problem {
    /// sizeof(elsa_linear_problem). elsa_linear_problem_init sets it.
    pub size: usize,
    /// Element type of q, k, v and out: one of ELSA_DTYPE_*.
    pub dtype: elsa_dtype,
    /// Element type of decay and beta: ELSA_DTYPE_F32, or that of q.
    pub gate_dtype: elsa_dtype,
    /// One of ELSA_RULE_*.
    pub rule: elsa_rule,
    /// One of ELSA_DIRECTION_*.
    pub direction: elsa_direction,
    /// Queries, [batch, heads, tokens, d_k].
    pub q: elsa_view,
    /// Keys, [batch, key heads, tokens, d_k].
    pub k: elsa_view,
    /// Values, [batch, state heads, tokens, d_v].
    pub v: elsa_view,
    /// Output, [batch, heads of q or of v, tokens, d_v].
    pub out: elsa_view,
    /// Natural logarithms of the gates, [batch, state heads, tokens, 1] or [batch, state heads, tokens, d_k]. Required by the
    /// gated rules, not allowed with the others.
    pub decay: elsa_view,
    /// Rates, [batch, state heads or 1, tokens, 1]. Required by the delta rules, not allowed with the others.
    pub beta: elsa_view,
    /// States before the first token, f32 [batch or packed, state heads, d_k, d_v].
    pub past_state: elsa_view,
    /// States after the last token, f32 [batch or packed, state heads, d_k, d_v].
    pub present_state: elsa_view,
    /// Non-zero if decay is set.
    pub has_decay: u32,
    /// Non-zero if beta is set.
    pub has_beta: u32,
    /// Non-zero if past_state is set; otherwise the initial states are zero.
    pub has_past_state: u32,
    /// Non-zero if present_state is set.
    pub has_present_state: u32,
    /// Non-zero if past and present states are the same memory with the same strides. past_state of the inputs is then
    /// absent or the address of present_state.
    pub in_place: u32,
    /// Non-zero if scale is set; otherwise the scale is 1 / sqrt(d_k).
    pub has_scale: u32,
    /// Multiplies the output; read only if has_scale is set.
    pub scale: f32,
    /// Non-zero to normalize queries and keys to unit length first: x / sqrt(sum of x^2 + normalize).
    pub has_normalize: u32,
    /// Term added to the sum of squares if has_normalize is set.
    pub normalize: f32,
    /// Must be zero.
    pub reserved: u32,
    /// Number of sequences packed along the token axis; the batch must then be 1, and cu_seqlens holds their offsets. 0 if
    /// sequences are not packed.
    pub packed: usize,
}

/// Options of a plan of linear attention. All zeros selects the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_linear_options {
    /// sizeof(elsa_linear_options). elsa_linear_options_init sets it.
    pub size: usize,
    /// One of ELSA_FORM_*.
    pub form: elsa_form,
    /// Must be zero.
    pub reserved: u32,
    /// Tokens per chunk: a multiple of 8 from 8 to 256; 0 selects the size with the lowest predicted time.
    pub chunk: usize,
    /// Parts of a sequence for ELSA_FORM_SCAN: 2 to 256; 0 derives the number of parts from the number of tokens.
    pub parts: usize,
    /// Maximum bytes of workspace; 0 means no limit. A plan that does not fit is rejected, and the message gives
    /// the required bytes.
    pub budget: usize,
}

/// Choices of a plan of linear attention, in addition to those that elsa_plan_describe reports.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_linear_info {
    /// sizeof(elsa_linear_info). elsa_linear_info_init sets it.
    pub size: usize,
    /// Form of the computation: one of ELSA_FORM_*, never ELSA_FORM_AUTO.
    pub form: elsa_form,
    /// Always zero.
    pub reserved: u32,
    /// Tokens per chunk. The tokens of a chunk read and update a state together.
    pub chunk: usize,
    /// Maximum number of parts of a sequence that are computed in parallel.
    pub parts: usize,
}

/// Input tensors of linear attention, with the views and element types of the problem. Inputs that the problem does not
/// use must be absent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_linear_inputs {
    /// sizeof(elsa_linear_inputs). elsa_linear_inputs_init sets it.
    pub size: usize,
    /// Queries.
    pub q: elsa_input,
    /// Keys.
    pub k: elsa_input,
    /// Values.
    pub v: elsa_input,
    /// Natural logarithms of the gates.
    pub decay: elsa_input,
    /// Rates.
    pub beta: elsa_input,
    /// States before the first token, f32. If the problem is in place: absent, or the address of present_state.
    pub past_state: elsa_input,
    /// Offsets of the packed sequences, [packed + 1]: from 0 to the number of tokens, never decreasing.
    pub cu_seqlens: elsa_integers,
}

/// Output tensors of linear attention. No output may share memory with another tensor of the call, except present_state
/// with past_state if the problem is in place.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_linear_outputs {
    /// sizeof(elsa_linear_outputs). elsa_linear_outputs_init sets it.
    pub size: usize,
    /// Output. May be absent if present_state is present.
    pub out: elsa_output,
    /// States after the last token, f32. If the problem is in place, they hold the past states when the call begins.
    pub present_state: elsa_output,
}

/// Proven bounds on the errors of a run of linear attention, from the arithmetic of its plan and the contents of its inputs.
/// An infinite bound means that the run guarantees nothing about an element, and NaN that its exact value is NaN.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_linear_certified {
    /// sizeof(elsa_linear_certified). elsa_linear_certified_init sets it.
    pub size: usize,
    /// Non-zero if every element has a finite bound. Otherwise the bounds of some elements are infinite or NaN.
    pub claims: u32,
    /// Always zero.
    pub reserved: u32,
    /// Channels of the values; the maximum number of values that elsa_linear_certify writes to absolute.
    pub channels: usize,
    /// Number of elements of the output and of the states without a finite bound.
    pub unclaimed: u64,
    /// Maximum error of an element of the output.
    pub absolute: f64,
    /// Maximum error of an element of present_state; 0 if the problem does not have it.
    pub state: f64,
    /// Largest factor by which tokens may have amplified an earlier error of a state: at most 1 if gates and rates contract.
    pub gain: f64,
}
