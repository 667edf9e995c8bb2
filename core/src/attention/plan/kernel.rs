//! Describes a CPU micro-kernel, as data.

use crate::profile::InstructionSet;

/// The memory layout in which a micro-kernel reads keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyLayout {
    /// Rows, read in place.
    Rows,
    /// Packed panels of that many keys, `[panel][dim][key]`.
    Panels(usize),
}

/// A CPU micro-kernel, as the chooser and the certificate see it.
///
/// CPU and GPU kernels share one grammar of names, `operation_type[_dD]_qQkK__set_arithmetic`: the operation; the
/// element type; the largest head size, where it matters; the number of query rows of the widest tile; the number
/// of keys of a register tile (on a GPU, of a tile); the instruction set; and the method of the exponential with
/// its polynomial degree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelSpec {
    /// Name of the kernel.
    pub name: &'static str,
    /// The instruction set that it requires.
    pub set: InstructionSet,
    /// Number of rows in a vector.
    pub lanes: usize,
    /// Number of vectors in its widest tile.
    pub vectors: usize,
    /// Largest number of keys in a register tile; at most 8.
    pub tile_keys: usize,
    /// Preferred number of query tiles that share a key block while it is in cache.
    pub group: usize,
    /// The layout in which it reads keys.
    pub keys: KeyLayout,
    /// Largest number of query rows per sequence for which it is used.
    pub most_queries: usize,
    /// Factor of all its weights, and therefore of `S` and `W`. It cancels in `W / S`.
    pub weight_scale: f64,
    /// Longest chain of multiply-adds in a score.
    pub chain: usize,
    /// Number of sums over which it distributes a row's weights before it adds those sums up in a tree. 1 if lanes
    /// are rows.
    pub weight_sums: usize,
    /// Largest relative error of a weight, compared with `weight_scale · 2^x`.
    pub exp2_relative: f64,
    /// `true` if a multiply-add rounds once (fused).
    pub fused: bool,
    /// `true` if it raises weights so that products are not subnormal: steps need the largest value of every block,
    /// and blocks of tiny values are copied.
    pub raises: bool,
}
