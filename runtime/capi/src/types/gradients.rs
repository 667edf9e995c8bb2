//! Gradients of softmax attention: options and tensors.

use super::data::{elsa_input, elsa_integers, elsa_output};

/// Options of a plan of gradients. All zeros selects the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_gradients_options {
    /// sizeof(elsa_gradients_options). elsa_gradients_options_init sets it.
    pub size: usize,
    /// Maximum bytes of workspace; 0 means no limit. With a small budget, the keys of a head are divided into fewer parts,
    /// which changes the order of additions and so the last bits of the gradients. A plan that does not fit is rejected, and
    /// the message gives the required bytes.
    pub budget: usize,
    /// Non-zero if out of the inputs is f32; otherwise it has the element type of the problem. If out is rounded to 16 bits,
    /// the rounding also affects the gradients.
    pub out_is_f32: u32,
    /// Non-zero if d_out of the inputs is f32; otherwise it has the element type of the problem.
    pub d_out_is_f32: u32,
}

/// Input tensors and lists of a call of gradients: those of the forward pass, and its results. Tensors have the views and
/// element types of the problem. Inputs that the problem does not use must be absent. The results must be those of a
/// forward pass over the same tensors; otherwise the gradients are meaningless.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_gradients_inputs {
    /// sizeof(elsa_gradients_inputs). elsa_gradients_inputs_init sets it.
    pub size: usize,
    /// Queries.
    pub q: elsa_input,
    /// Keys.
    pub k: elsa_input,
    /// Values.
    pub v: elsa_input,
    /// The mask.
    pub mask: elsa_input,
    /// Number of valid keys of each sequence: [batch], each from 0 to the number of keys.
    pub key_lengths: elsa_integers,
    /// Offsets of the packed sequences in the queries, as in elsa_inputs.
    pub cu_seqlens_q: elsa_integers,
    /// Offsets of the packed sequences in the keys, as in elsa_inputs.
    pub cu_seqlens_k: elsa_integers,
    /// The bias tensor, or the table of biases.
    pub bias: elsa_input,
    /// Index of the table entry for each pair of query and key, [queries, keys].
    pub bias_index: elsa_integers,
    /// The output of the forward pass.
    pub out: elsa_input,
    /// Gradient of the loss with respect to the output, in the view of out.
    pub d_out: elsa_input,
    /// Log-sum-exp of each row, f32 [batch, heads, queries]. Absent if state_m and state_s are given. The rounding of lse to
    /// f32 becomes a relative error of every weight of its row, so the states are better if scores are large.
    pub lse: elsa_input,
    /// Reference m of each row's state, f32 [batch, heads, queries]. Given together with state_s, or absent.
    pub state_m: elsa_input,
    /// Sum S of each row's state, f32 [batch, heads, queries].
    pub state_s: elsa_input,
}

/// Output tensors of a call of gradients, all required. They are f32 for every element type of the inputs. Each has the view
/// of its tensor in the problem, or a dense view [batch, heads, tokens, dim] if rows of the tensor share memory. The rows
/// of queries that attend no key, and of keys that no query attends, are zero. No output may share memory with another
/// tensor of the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_gradients_outputs {
    /// sizeof(elsa_gradients_outputs). elsa_gradients_outputs_init sets it.
    pub size: usize,
    /// Gradient of the queries.
    pub d_q: elsa_output,
    /// Gradient of the keys, summed over the query heads that share a key head.
    pub d_k: elsa_output,
    /// Gradient of the values, summed in the same way.
    pub d_v: elsa_output,
}
