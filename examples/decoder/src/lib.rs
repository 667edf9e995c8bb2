//! A decoder with random weights. The weights may be larger than memory: the weights of layer n + 1 are read into one
//! buffer while layer n is computed from a second buffer, as in appendix F.2 of the ELSA paper. The program prints the
//! columns of the paper's table 13.
//!
//! | module | contents |
//! |---|---|
//! | [`layer`] | sizes of a layer, and the positions of its weights |
//! | [`model`] | the layer itself: norms, projections, causal attention by this library, a gated MLP |
//! | [`weights`] | a file of random weights, and its layers in memory |
//! | [`forward`] | all layers, from memory and through two buffers |
#![forbid(unsafe_code)]

pub mod error;
pub mod forward;
pub mod layer;
pub mod model;
pub mod weights;
