//! Operators that treat each channel independently: their problems, their options, and the tensors of a
//! call.

use super::data::{elsa_input, elsa_output};
use super::numbers::*;
use super::problem::elsa_view;

/// Meaning of the elements of tensor a of a recurrence.
pub type elsa_gate = u32;
/// Factors that multiply the state.
pub const ELSA_GATE_FACTOR: elsa_gate = 0;
/// Natural logarithms of factors; -inf clears the state.
pub const ELSA_GATE_LOG: elsa_gate = 1;

/// Order of the weights of a filter.
pub type elsa_taps = u32;
/// The first weight belongs to the current token, as in a relative decay.
pub const ELSA_TAPS_NEWEST_FIRST: elsa_taps = 0;
/// The last weight belongs to the current token, as in the convolutions of ONNX and PyTorch.
pub const ELSA_TAPS_NEWEST_LAST: elsa_taps = 1;

/// Method of a convolution.
pub type elsa_convolution_method = u32;
/// The method with the lower time, as estimated from operation counts.
pub const ELSA_CONVOLUTION_AUTO: elsa_convolution_method = 0;
/// Sum of products.
pub const ELSA_CONVOLUTION_DIRECT: elsa_convolution_method = 1;
/// Products of spectra, in f64. Errors are relative to the norms of filter and input.
pub const ELSA_CONVOLUTION_FFT: elsa_convolution_method = 2;

/// First-order recurrence, h_t = a_t h_{t-1} + b_t in each channel. All zeros except the views means factors over f32.
///
/// Views are [batch, heads, tokens, dim], and the number of channels is heads times dim: channel c is element c mod dim
/// of head c / dim. Thus [batch, tokens, channels] in memory is ELSA_LAYOUT_BNHD with one head, and [batch, channels,
/// tokens] is ELSA_LAYOUT_BHND with one head per channel and a dim of 1. States are dense f32 [batch, channels].
///
/// A factor of zero, or a logarithm of -inf, clears any state, even one that is not finite. A NaN factor poisons the
/// state.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_recurrence_problem {
    /// sizeof(elsa_recurrence_problem). elsa_recurrence_problem_init sets it.
    pub size: usize,
    /// Element type of b and out: one of ELSA_DTYPE_*.
    pub dtype: elsa_dtype,
    /// Element type of a: ELSA_DTYPE_F32, or that of b.
    pub gate_dtype: elsa_dtype,
    /// One of ELSA_GATE_*.
    pub gate: elsa_gate,
    /// Non-zero to process tokens from last to first. The past state then precedes the last token.
    pub reverse: u32,
    /// Non-zero if past and present states are the same memory. past_state of the inputs is then absent or the address
    /// of present_state.
    pub in_place: u32,
    /// Must be zero.
    pub reserved: u32,
    /// Factors or their logarithms. A stride of zero shares them among heads or sequences.
    pub a: elsa_view,
    /// Addends.
    pub b: elsa_view,
    /// Output: the state after each token.
    pub out: elsa_view,
}

/// Selective scan, as in Mamba. Each of D channels has a state x of N numbers; d is the skip vector, f32 [D]:
///
///   delta' = delta + delta_bias, or softplus(delta + delta_bias) with softplus
///   x_t = exp(delta' A) x_{t-1} + delta' B_t u_t
///   out_t = C_t x_t + d u_t, multiplied by z / (1 + exp(-z)) if z is set
///
/// Views follow the rules of elsa_recurrence_problem. States are dense f32 [batch, D, N]. A is real.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_selective_problem {
    /// sizeof(elsa_selective_problem). elsa_selective_problem_init sets it.
    pub size: usize,
    /// Element type of u, of per-token B and C, of z and of out: one of ELSA_DTYPE_*.
    pub dtype: elsa_dtype,
    /// Element type of delta: ELSA_DTYPE_F32, or that of u.
    pub gate_dtype: elsa_dtype,
    /// Non-zero to apply softplus to the sum of delta and delta_bias.
    pub softplus: u32,
    /// Non-zero to process tokens from last to first. The past state then precedes the last token.
    pub reverse: u32,
    /// Non-zero if past and present states are the same memory. past_state of the inputs is then absent or the address
    /// of present_state.
    pub in_place: u32,
    /// Non-zero if B is constant over tokens: f32 [D, N], dense, without a view.
    pub fixed_b: u32,
    /// Non-zero if C is constant over tokens: f32 [D, N], dense, without a view.
    pub fixed_c: u32,
    /// Non-zero if z is set.
    pub has_z: u32,
    /// Number N of states per channel, 1 to 256.
    pub states: usize,
    /// Inputs, D channels.
    pub u: elsa_view,
    /// Time steps, D channels.
    pub delta: elsa_view,
    /// Input coefficients B of each token, groups times N channels: N coefficients for each group of neighbouring
    /// channels of u.
    pub b: elsa_view,
    /// Output coefficients C of each token, in the layout of b.
    pub c: elsa_view,
    /// Gates of the output, D channels.
    pub z: elsa_view,
    /// Output, D channels.
    pub out: elsa_view,
}

/// Causal convolution of each channel with a filter, out_t = sum over k of alpha_k u_{t-k}. It is linear attention with
/// a relative decay. With bias and silu, it is CausalConvWithState of ONNX opset 27, and the convolution before Mamba's
/// scan.
///
/// Views follow the rules of elsa_recurrence_problem. States are the last taps - 1 inputs of each channel, oldest
/// first, dense f32 [batch, channels, taps - 1].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_convolution_problem {
    /// sizeof(elsa_convolution_problem). elsa_convolution_problem_init sets it.
    pub size: usize,
    /// Element type of u and out: one of ELSA_DTYPE_*.
    pub dtype: elsa_dtype,
    /// One of ELSA_TAPS_*.
    pub order: elsa_taps,
    /// Non-zero if all channels share one filter.
    pub shared: u32,
    /// Non-zero to output x / (1 + exp(-x)) for each sum x.
    pub silu: u32,
    /// Non-zero to process tokens from last to first. The past state then follows the last token, and its last input is
    /// the one nearest to that token.
    pub reverse: u32,
    /// Non-zero if past and present states are the same memory. past_state of the inputs is then absent or the address
    /// of present_state.
    pub in_place: u32,
    /// Number of weights of a filter.
    pub taps: usize,
    /// Inputs.
    pub u: elsa_view,
    /// Output.
    pub out: elsa_view,
}

/// Options of a plan of a recurrence, a selective scan or a convolution. All zeros selects the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_series_options {
    /// sizeof(elsa_series_options). elsa_series_options_init sets it.
    pub size: usize,
    /// Number of parts into which a recurrence divides its tokens, to process the parts in parallel; 1 to 1024. Parts
    /// pay off for few channels and many tokens, at twice the work. 0 means a single pass. Must be 0 for other
    /// operators.
    pub parts: usize,
    /// Maximum bytes of workspace; 0 means no limit. A plan that does not fit is rejected, and the message gives
    /// the required bytes.
    pub budget: usize,
    /// One of ELSA_CONVOLUTION_*. Must be 0 for other operators.
    pub method: elsa_convolution_method,
    /// Must be zero.
    pub reserved: u32,
}

/// Choices of a plan of a recurrence, a selective scan or a convolution, in addition to those that elsa_plan_describe
/// reports.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_series_info {
    /// sizeof(elsa_series_info). elsa_series_info_init sets it.
    pub size: usize,
    /// Number of parts into which the tokens are divided.
    pub parts: usize,
    /// Length of the transforms of an FFT convolution; otherwise 0.
    pub fft_length: usize,
    /// ELSA_CONVOLUTION_DIRECT or ELSA_CONVOLUTION_FFT for a convolution; otherwise 0.
    pub method: elsa_convolution_method,
    /// Always zero.
    pub reserved: u32,
}

/// Input tensors of a recurrence, with the views and element types of the problem.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_recurrence_inputs {
    /// sizeof(elsa_recurrence_inputs). elsa_recurrence_inputs_init sets it.
    pub size: usize,
    /// Factors or their logarithms.
    pub a: elsa_input,
    /// Addends.
    pub b: elsa_input,
    /// States before the first token, f32; zeros if absent. If the problem is in place: absent, or the address of
    /// present_state.
    pub past_state: elsa_input,
}

/// Input tensors of a selective scan, with the views and element types of the problem.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_selective_inputs {
    /// sizeof(elsa_selective_inputs). elsa_selective_inputs_init sets it.
    pub size: usize,
    /// Inputs.
    pub u: elsa_input,
    /// Time steps.
    pub delta: elsa_input,
    /// Rates A, f32 [D, N]; negative in a contractive model.
    pub a: elsa_input,
    /// Input coefficients B.
    pub b: elsa_input,
    /// Output coefficients C.
    pub c: elsa_input,
    /// Skip coefficients d, f32 [D]; zeros if absent.
    pub d: elsa_input,
    /// Gates of the output.
    pub z: elsa_input,
    /// Bias of the time steps, f32 [D]; zeros if absent.
    pub delta_bias: elsa_input,
    /// States before the first token, f32; zeros if absent. If the problem is in place: absent, or the address of
    /// present_state.
    pub past_state: elsa_input,
}

/// Input tensors of a convolution, with the view and element type of the problem.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_convolution_inputs {
    /// sizeof(elsa_convolution_inputs). elsa_convolution_inputs_init sets it.
    pub size: usize,
    /// Inputs.
    pub u: elsa_input,
    /// Filters, f32 [channels, taps], or [taps] if one filter is shared.
    pub filter: elsa_input,
    /// Bias added to the sums, f32 [channels]; zeros if absent.
    pub bias: elsa_input,
    /// Inputs before the first token, f32; zeros if absent. If the problem is in place: absent, or the address of
    /// present_state.
    pub past_state: elsa_input,
}

/// Output tensors of a recurrence, a selective scan or a convolution. No output may share memory with another tensor of
/// the call, except present_state with past_state if the problem is in place.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_series_outputs {
    /// sizeof(elsa_series_outputs). elsa_series_outputs_init sets it.
    pub size: usize,
    /// Output. May be absent if present_state is present.
    pub out: elsa_output,
    /// States after the last token, f32; not written if absent. If the problem is in place, they hold the past states
    /// when the call begins.
    pub present_state: elsa_output,
}
