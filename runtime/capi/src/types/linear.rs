//! Linear attention: its problem, its options, and the data of a call.

use super::data::{elsa_input, elsa_integers, elsa_output};
use super::numbers::*;
use super::problem::elsa_view;

/// How a token updates the state S of a head, f32 [d_k, d_v], with its key k, value v, gate a = exp(decay) and rate beta. The
/// rules are those of LinearAttention in ONNX opset 27. A gate of zero, of a decay of -inf, clears what it multiplies,
/// whatever that holds.
pub type elsa_rule = u32;
/// S <- S + k v'.
pub const ELSA_RULE_LINEAR: elsa_rule = 0;
/// S <- a S + k v', where a scales the state, or each of its rows.
pub const ELSA_RULE_GATED: elsa_rule = 1;
/// S <- S + beta k (v - S'k)'.
pub const ELSA_RULE_DELTA: elsa_rule = 2;
/// S <- a S, then as ELSA_RULE_DELTA.
pub const ELSA_RULE_GATED_DELTA: elsa_rule = 3;

/// The order in which tokens pass the state.
pub type elsa_direction = u32;
/// From the first to the last. A token reads the state after its own update.
pub const ELSA_DIRECTION_FORWARD: elsa_direction = 0;
/// From the last to the first. The past state comes before the last token.
pub const ELSA_DIRECTION_REVERSE: elsa_direction = 1;
/// The sum of the answers of both, each with the token itself. Without states.
pub const ELSA_DIRECTION_BIDIRECTIONAL: elsa_direction = 2;
/// From the first to the last; then every token reads the last state.
pub const ELSA_DIRECTION_NON_CAUSAL: elsa_direction = 3;

/// The order of operations. All forms are exact algebra and differ in rounding, speed and memory alone.
pub type elsa_form = u32;
/// The form that is expected to be the fastest, by the problem and the device. Neither the number of threads nor the batch
/// changes it.
pub const ELSA_FORM_AUTO: elsa_form = 0;
/// One token after the other.
pub const ELSA_FORM_RECURRENT: elsa_form = 1;
/// Two passes over chunks of tokens: the states between them, then the answers of each.
pub const ELSA_FORM_CHUNK: elsa_form = 2;
/// One pass over chunks of tokens.
pub const ELSA_FORM_FUSED_CHUNK: elsa_form = 3;
/// Every token against every earlier one, in time that is quadratic in the tokens.
pub const ELSA_FORM_PARALLEL: elsa_form = 4;
/// A scan over parts of the sequence, each of which is then computed from the state before it.
pub const ELSA_FORM_SCAN: elsa_form = 5;

/// A problem of linear attention. All zeros but for the views of q, k, v and out are ELSA_RULE_LINEAR over f32.
///
/// Each head of v has a state. The heads of k divide those of v: state s takes key head s / (state heads / key heads). The
/// heads of q are a multiple of them (query head i reads state i / (heads / state heads)), or divide them (state s is read
/// by query head s / (state heads / heads)). out has as many heads as the larger of q and v.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_linear_problem {
    /// sizeof(elsa_linear_problem). elsa_linear_problem_init sets it.
    pub size: usize,
    /// Type of q, k, v and out: one of ELSA_DTYPE_*.
    pub dtype: elsa_dtype,
    /// Type of decay and beta: ELSA_DTYPE_F32, or that of q.
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
    /// Natural logarithms of the gates, [batch, state heads, tokens, 1] or [batch, state heads, tokens, d_k]. The gated rules
    /// have it, the others do not.
    pub decay: elsa_view,
    /// Rates, [batch, state heads or 1, tokens, 1]. The delta rules have it, the others do not.
    pub beta: elsa_view,
    /// States before the first token, f32 [sequences, state heads, d_k, d_v].
    pub past_state: elsa_view,
    /// States after the last token, f32 [sequences, state heads, d_k, d_v].
    pub present_state: elsa_view,
    /// Non-zero with decay.
    pub has_decay: u32,
    /// Non-zero with beta.
    pub has_beta: u32,
    /// Non-zero with past_state; states are otherwise zero before the first token.
    pub has_past_state: u32,
    /// Non-zero with present_state.
    pub has_present_state: u32,
    /// Non-zero where past and present states are the same memory, with the same strides. past_state of the inputs is then
    /// absent, or the address of present_state.
    pub in_place: u32,
    /// Non-zero with scale.
    pub has_scale: u32,
    /// Factor of the output; 1 / sqrt(d_k) without has_scale.
    pub scale: f32,
    /// Non-zero where queries and keys become unit vectors first: x / sqrt(sum of x^2 + normalize).
    pub has_normalize: u32,
    /// What is added to the sum of squares.
    pub normalize: f32,
    /// Zero.
    pub reserved: u32,
    /// Number of sequences that are packed along the tokens; the batch is then 1, and cu_seqlens has their bounds. 0 where
    /// sequences are not packed.
    pub packed: usize,
}

/// Options of a plan of linear attention. All zeros are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_linear_options {
    /// sizeof(elsa_linear_options). elsa_linear_options_init sets it.
    pub size: usize,
    /// One of ELSA_FORM_*.
    pub form: elsa_form,
    /// Zero.
    pub reserved: u32,
    /// Tokens of a chunk: a multiple of 8 from 8 to 256; 0 is the size that is expected to be the fastest.
    pub chunk: usize,
    /// Parts of a sequence of ELSA_FORM_SCAN: 2 to 256; 0 is a number by the tokens.
    pub parts: usize,
    /// Most bytes of workspace; 0 is no limit. A plan that does not fit is refused with the bytes that it needs.
    pub budget: usize,
}

/// What a plan of linear attention has chosen. elsa_plan_describe has the rest.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_linear_info {
    /// sizeof(elsa_linear_info). elsa_linear_info_init sets it.
    pub size: usize,
    /// The form: one of ELSA_FORM_*, and never ELSA_FORM_AUTO.
    pub form: elsa_form,
    /// Zero.
    pub reserved: u32,
    /// Tokens of a chunk: those that meet a state at once.
    pub chunk: usize,
    /// Most parts of a sequence that are computed side by side.
    pub parts: usize,
}

/// The data of a problem of linear attention that is read. What the problem does not have is absent.
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
    /// States before the first token, f32. Of a problem in place, absent or the address of present_state.
    pub past_state: elsa_input,
    /// Bounds of the packed sequences, [packed + 1].
    pub cu_seqlens: elsa_integers,
}

/// The data of a problem of linear attention that is written. No output shares memory with another tensor of the call, but
/// for present_state with past_state where the problem is in place.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_linear_outputs {
    /// sizeof(elsa_linear_outputs). elsa_linear_outputs_init sets it.
    pub size: usize,
    /// Output. May be absent where present_state is given.
    pub out: elsa_output,
    /// States after the last token, f32. Of a problem in place they hold the past ones when the call begins.
    pub present_state: elsa_output,
}
