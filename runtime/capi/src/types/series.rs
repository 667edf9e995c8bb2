//! Operators that treat every channel by itself: their problems, their options, and the data of a call.

use super::data::{elsa_input, elsa_output};
use super::numbers::*;
use super::problem::elsa_view;

/// What a of a recurrence holds.
pub type elsa_gate = u32;
/// Factors of the state.
pub const ELSA_GATE_FACTOR: elsa_gate = 0;
/// Natural logarithms of factors; -inf clears the state.
pub const ELSA_GATE_LOG: elsa_gate = 1;

/// The order of the weights of a filter.
pub type elsa_taps = u32;
/// The first weight is that of the token itself, as in a relative decay.
pub const ELSA_TAPS_NEWEST_FIRST: elsa_taps = 0;
/// The last weight is that of the token itself, as in the convolutions of ONNX and PyTorch.
pub const ELSA_TAPS_NEWEST_LAST: elsa_taps = 1;

/// How a convolution is computed.
pub type elsa_convolution_method = u32;
/// What takes less time by count.
pub const ELSA_CONVOLUTION_AUTO: elsa_convolution_method = 0;
/// By the sum of products.
pub const ELSA_CONVOLUTION_DIRECT: elsa_convolution_method = 1;
/// By products of spectra, in f64. Errors are relative to norms of filter and input.
pub const ELSA_CONVOLUTION_FFT: elsa_convolution_method = 2;

/// A recurrence of first order, h_t = a_t h_{t-1} + b_t in each channel. All zeros but for the views are factors over f32.
///
/// Views are [batch, heads, tokens, dim], and the channels are heads times dim: channel c is dim c mod dim of head c / dim. So
/// [batch, tokens, channels] in memory is ELSA_LAYOUT_BNHD with one head, and [batch, channels, tokens] is ELSA_LAYOUT_BHND
/// with as many heads as channels and one dim. States are dense f32 [batch, channels].
///
/// A factor of zero, which a logarithm of -inf is, clears the state whatever that holds; a NaN poisons it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_recurrence_problem {
    /// sizeof(elsa_recurrence_problem). elsa_recurrence_problem_init sets it.
    pub size: usize,
    /// Type of b and out: one of ELSA_DTYPE_*.
    pub dtype: elsa_dtype,
    /// Type of a: ELSA_DTYPE_F32, or that of b.
    pub gate_dtype: elsa_dtype,
    /// One of ELSA_GATE_*.
    pub gate: elsa_gate,
    /// Non-zero where tokens pass from the last to the first. The past state then comes before the last token.
    pub reverse: u32,
    /// Non-zero where past and present states are the same memory. past_state of the inputs is then absent, or the address of
    /// present_state.
    pub in_place: u32,
    /// Zero.
    pub reserved: u32,
    /// Factors or their logarithms. A stride of zero shares them among heads or sequences.
    pub a: elsa_view,
    /// Addends.
    pub b: elsa_view,
    /// The states after each token.
    pub out: elsa_view,
}

/// A selective scan, as Mamba has it. Channel d of D has a state x of N numbers:
///
///   delta' = delta + delta_bias, or with softplus that of it
///   x_t = exp(delta' A) x_{t-1} + delta' B_t u_t
///   out_t = C_t x_t + D u_t, with z times z / (1 + exp(-z))
///
/// Views are those of elsa_recurrence_problem. States are dense f32 [batch, D, N]. A is real.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_selective_problem {
    /// sizeof(elsa_selective_problem). elsa_selective_problem_init sets it.
    pub size: usize,
    /// Type of u, of B and C of each token, of z and out: one of ELSA_DTYPE_*.
    pub dtype: elsa_dtype,
    /// Type of delta: ELSA_DTYPE_F32, or that of u.
    pub gate_dtype: elsa_dtype,
    /// Non-zero where the time step is the softplus of delta and its bias.
    pub softplus: u32,
    /// Non-zero where tokens pass from the last to the first. The past state then comes before the last token.
    pub reverse: u32,
    /// Non-zero where past and present states are the same memory. past_state of the inputs is then absent, or the address of
    /// present_state.
    pub in_place: u32,
    /// Non-zero where B is of each channel: f32 [D, N], dense, without a view.
    pub fixed_b: u32,
    /// Non-zero where C is of each channel: f32 [D, N], dense, without a view.
    pub fixed_c: u32,
    /// Non-zero with z.
    pub has_z: u32,
    /// N, 1 to 256.
    pub states: usize,
    /// Inputs, D channels.
    pub u: elsa_view,
    /// Time steps, D channels.
    pub delta: elsa_view,
    /// Input coefficients B of each token: groups times N channels, N for each of as many groups of neighbouring channels of u.
    pub b: elsa_view,
    /// Output coefficients C of each token, likewise.
    pub c: elsa_view,
    /// Gates of the output, D channels.
    pub z: elsa_view,
    /// The output, D channels.
    pub out: elsa_view,
}

/// A causal convolution of each channel with a filter, out_t = sum over k of alpha_k u_{t-k}: linear attention with a relative
/// decay; with bias and silu the convolution before Mamba's scan, and CausalConvWithState of ONNX opset 27.
///
/// Views are those of elsa_recurrence_problem. States are the last taps - 1 inputs of each channel, oldest first, dense f32
/// [batch, channels, taps - 1].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_convolution_problem {
    /// sizeof(elsa_convolution_problem). elsa_convolution_problem_init sets it.
    pub size: usize,
    /// Type of u and out: one of ELSA_DTYPE_*.
    pub dtype: elsa_dtype,
    /// One of ELSA_TAPS_*.
    pub order: elsa_taps,
    /// Non-zero where one filter serves all channels.
    pub shared: u32,
    /// Non-zero where the output is x / (1 + exp(-x)) of the sum x.
    pub silu: u32,
    /// Non-zero where tokens pass from the last to the first. The past state then comes after the last token, and holds what is
    /// nearest to it last.
    pub reverse: u32,
    /// Non-zero where past and present states are the same memory. past_state of the inputs is then absent, or the address of
    /// present_state.
    pub in_place: u32,
    /// Number of weights of a filter.
    pub taps: usize,
    /// Inputs.
    pub u: elsa_view,
    /// The output.
    pub out: elsa_view,
}

/// Options of a plan of a recurrence, a selective scan or a convolution. All zeros are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_series_options {
    /// sizeof(elsa_series_options). elsa_series_options_init sets it.
    pub size: usize,
    /// Parts of the tokens of a recurrence that are passed side by side, 1 to 1024: for few channels and many tokens, with
    /// twice the work. 0 is one pass. Other operators have 0.
    pub parts: usize,
    /// Most bytes of workspace; 0 is no limit. A plan that does not fit is refused with the bytes that it needs.
    pub budget: usize,
    /// One of ELSA_CONVOLUTION_*. Other operators have 0.
    pub method: elsa_convolution_method,
    /// Zero.
    pub reserved: u32,
}

/// What a plan of a recurrence, a selective scan or a convolution has chosen. elsa_plan_describe has the rest.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_series_info {
    /// sizeof(elsa_series_info). elsa_series_info_init sets it.
    pub size: usize,
    /// Parts of the tokens.
    pub parts: usize,
    /// Length of the transforms of a convolution by FFT; otherwise 0.
    pub fft_length: usize,
    /// Of a convolution ELSA_CONVOLUTION_DIRECT or ELSA_CONVOLUTION_FFT; otherwise 0.
    pub method: elsa_convolution_method,
    /// Zero.
    pub reserved: u32,
}

/// The data of a recurrence that is read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_recurrence_inputs {
    /// sizeof(elsa_recurrence_inputs). elsa_recurrence_inputs_init sets it.
    pub size: usize,
    /// Factors or their logarithms.
    pub a: elsa_input,
    /// Addends.
    pub b: elsa_input,
    /// States before the first token, f32; zeros where absent. Of a problem in place, absent or the address of present_state.
    pub past_state: elsa_input,
}

/// The data of a selective scan that is read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_selective_inputs {
    /// sizeof(elsa_selective_inputs). elsa_selective_inputs_init sets it.
    pub size: usize,
    /// Inputs.
    pub u: elsa_input,
    /// Time steps.
    pub delta: elsa_input,
    /// Rates A, f32 [D, N]; negative in a model that contracts.
    pub a: elsa_input,
    /// Input coefficients B.
    pub b: elsa_input,
    /// Output coefficients C.
    pub c: elsa_input,
    /// The skip D, f32 [D]; zeros where absent.
    pub d: elsa_input,
    /// Gates of the output.
    pub z: elsa_input,
    /// Added to the time steps, f32 [D]; zeros where absent.
    pub delta_bias: elsa_input,
    /// States before the first token, f32; zeros where absent. Of a problem in place, absent or the address of present_state.
    pub past_state: elsa_input,
}

/// The data of a convolution that is read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_convolution_inputs {
    /// sizeof(elsa_convolution_inputs). elsa_convolution_inputs_init sets it.
    pub size: usize,
    /// Inputs.
    pub u: elsa_input,
    /// The filters, f32 [channels, taps], or [taps] where one is shared.
    pub filter: elsa_input,
    /// Added to the sums, f32 [channels]; zeros where absent.
    pub bias: elsa_input,
    /// Inputs before the first token, f32; zeros where absent. Of a problem in place, absent or the address of present_state.
    pub past_state: elsa_input,
}

/// The data of a recurrence, a selective scan or a convolution that is written. No output shares memory with another tensor of
/// the call, but for present_state with past_state where the problem is in place.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_series_outputs {
    /// sizeof(elsa_series_outputs). elsa_series_outputs_init sets it.
    pub size: usize,
    /// Output. May be absent where present_state is given.
    pub out: elsa_output,
    /// States after the last token, f32; not written where absent. Of a problem in place they hold the past ones when the call
    /// begins.
    pub present_state: elsa_output,
}
