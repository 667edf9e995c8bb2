//! The causal convolution of each channel with a filter. This operator is also linear attention with a relative decay:
//!
//! ```text
//! o_t = Σ_k α_k u_{t−k}        inputs before the first token: from the past state, or zero
//! ```
//!
//! The convolution with a short filter, a bias and `SiLU` is `CausalConvWithState` of ONNX opset 27. There, the last
//! weight of a filter multiplies the newest input ([`Taps`]). The same convolution is used before the scans of Mamba
//! and Gated `DeltaNet`. The state consists of the last `K − 1` inputs; the next call, of one token or of many,
//! continues from it. For `α = 1, 1/2, 1/4, 1/8` and `u = 1, 2, 3, 4` the outputs are 1, 2.5, 4.25 and 6.125.
//!
//! | method | operations per token and channel | error |
//! |---|---|---|
//! | [`Method::Direct`] | `K` | relative to `Σ \|α_k\| \|u_{t−k}\|` |
//! | [`Method::Fft`], in f64 | a multiple of `log2(tokens + K)` | relative to norms of filter and input, in units of `2^-53` |

mod problem;
pub mod reference;
pub mod scalar;

pub use crate::series::tensor::Outputs;
pub use problem::{InputTensors, Inputs, Method, Operand, Operands, Problem, Spec, Taps, fft_length};
