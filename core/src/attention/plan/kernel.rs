//! Descriptions of CPU micro-kernels, as data.

use crate::profile::InstructionSet;

/// The memory layout in which a micro-kernel reads keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyLayout {
    /// Rows, read in place.
    Rows,
    /// Packed panels with this number of keys per panel, `[panel][dim][key]`.
    Panels(usize),
}

/// The properties of a CPU micro-kernel. The chooser and the certificate use them.
///
/// CPU and GPU kernels share one grammar of names, `operation_type[_dD]_qQkK__set_arithmetic`: the operation; the
/// element type; the largest head size, where it matters; the number of query rows in the widest tile; the number
/// of keys in a register tile (on a GPU, in a tile); the instruction set; and the method of the exponential with
/// its polynomial degree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelSpec {
    /// Name of the kernel.
    pub name: &'static str,
    /// The instruction set that the kernel requires.
    pub set: InstructionSet,
    /// Number of query rows per vector.
    pub lanes: usize,
    /// Number of vectors in the kernel's widest tile.
    pub vectors: usize,
    /// Largest number of keys in a register tile; at most 8.
    pub tile_keys: usize,
    /// Preferred number of query tiles that share a key block while the block is in cache.
    pub group: usize,
    /// The layout in which the kernel reads keys.
    pub keys: KeyLayout,
    /// Largest number of query rows per sequence for which the kernel is used.
    pub most_queries: usize,
    /// Common factor of the kernel's weights, and therefore of `S` and `W`. It cancels in `W / S`.
    pub weight_scale: f64,
    /// Longest chain of multiply-adds in a score.
    pub chain: usize,
    /// Number of sums over which the kernel distributes the weights of a row. A tree adds up these sums at the end. The
    /// number is 1 if each lane of a vector is a row.
    pub weight_sums: usize,
    /// Largest relative error of a weight, compared with `weight_scale · 2^x`.
    pub exp2_relative: f64,
    /// `true` if a multiply-add rounds once (fused).
    pub fused: bool,
    /// `true` if the kernel raises weights: it multiplies them by a factor so that their products with values are not
    /// subnormal. Such a kernel needs the largest value of every block. If the values of a block are tiny, the kernel
    /// uses copies that are scaled up.
    pub raises: bool,
    /// Largest number of tiles that take their step through a block of keys together, so that one load serves all of
    /// them. 1 if a tile is wide enough alone.
    pub together: usize,
}
