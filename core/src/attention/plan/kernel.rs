//! A CPU micro-kernel as data.

use crate::profile::InstructionSet;

/// How a micro-kernel reads keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyLayout {
    /// Row by row, where they lie.
    Rows,
    /// In panels of that many keys, `[panel][dim][key]`, packed for it.
    Panels(usize),
}

/// A micro-kernel as the chooser and the certificate see it.
///
/// Names follow one grammar on CPU and GPU, `operation_type[_dD]_qQkK__set_arithmetic`: the type of the elements, the
/// largest head size where it matters, query rows of the widest tile, keys of a register tile (on a GPU, of a tile), the
/// instruction set, and the exponential's method with its polynomial degree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelSpec {
    /// Its name.
    pub name: &'static str,
    /// The instruction set that it needs.
    pub set: InstructionSet,
    /// Rows in a vector.
    pub lanes: usize,
    /// Vectors in its widest tile.
    pub vectors: usize,
    /// Most keys in a register tile; at most eight.
    pub tile_keys: usize,
    /// Query tiles that share a key block while it is in cache.
    pub group: usize,
    /// How it reads keys.
    pub keys: KeyLayout,
    /// Most query rows of a sequence that it is meant for.
    pub most_queries: usize,
    /// A factor that all its weights carry, and with them `S` and `W`; it cancels in `W / S`.
    pub weight_scale: f64,
    /// Longest chain of multiply-adds in a score.
    pub chain: usize,
    /// Largest relative error of a weight against `weight_scale · 2^x`.
    pub exp2_relative: f64,
    /// Whether multiply-adds round once.
    pub fused: bool,
}
