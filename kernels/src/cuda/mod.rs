//! GPU kernels: what each is, the PTX that holds it, and what a launch is told.
//!
//! The device code lies in `kernels/cuda`, and the PTX that is generated from it in `kernels/ptx/sm_62`.

pub mod call;

/// Rows and types that a GPU kernel is made for, what it takes of an SM, and its error constants.
///
/// A kernel is launched with [`GpuKernel::threads`] threads a block on
/// `sequences · heads · splits · row_blocks` blocks, `row_blocks` being the blocks of [`GpuKernel::rows`] rows of
/// the longest sequence; all of it is in [`call::Call`], its only parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuKernel {
    /// Its name: of the entry point, and of the module that holds nothing else.
    pub name: &'static str,
    /// PTX text, zero-terminated.
    pub ptx: &'static str,
    /// The same, assembled for one device, where the build has it.
    pub cubin: Option<&'static [u8]>,
    /// What the kernel is for.
    pub role: Role,
    /// Threads of a block.
    pub threads: u32,
    /// Query rows of a block.
    pub rows: usize,
    /// Keys of a tile; parts of the keys are multiples of it.
    pub keys: usize,
    /// Static shared memory of a block in bytes.
    pub shared: usize,
    /// Registers of a thread on sm_62.
    pub registers: usize,
    /// Keys in the longest chain of additions before sums are added to those in memory.
    pub flush: usize,
    /// Longest chain of multiply-adds in a score, for head sizes up to the kernel's.
    pub chain: usize,
    /// Largest relative error of a weight against `2^x`, as the instruction set promises it.
    pub exp2_relative: f64,
    /// Relative error of a product sum of eight dims beyond that of singles: zero unless halves multiply.
    pub score_relative: f64,
}

/// What a GPU kernel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Attention of query tiles for head sizes up to `head_dim`, both of keys and of values.
    Attention {
        /// Largest head size.
        head_dim: usize,
        /// Whether it takes 16-bit types instead of singles.
        half: bool,
        /// Whether products of halves are summed eight at a time in halves.
        half_scores: bool,
        /// Most query rows of a sequence that it is meant for.
        most_queries: usize,
    },
    /// Merge of partial states in the tree over splits, and everything that a finished row gives.
    Merge,
    /// Earlier and new rows one after the other.
    Present,
}

/// The module of a kernel, zero-terminated.
macro_rules! module {
    ($name:literal) => {
        concat!(include_str!(concat!("../../ptx/sm_62/", $name, ".ptx")), "\0")
    };
}

/// An attention kernel.
macro_rules! attention {
    ($name:literal, $half:literal, $head_dim:literal, $most:expr, $threads:literal x $rows:literal,
     $shared:literal, $registers:literal, $flush:literal) => {
        GpuKernel {
            name: $name,
            ptx: module!($name),
            cubin: cubin($name),
            role: Role::Attention {
                head_dim: $head_dim,
                half: $half,
                half_scores: false,
                most_queries: $most,
            },
            threads: $threads,
            rows: $rows,
            keys: TILE,
            shared: $shared,
            registers: $registers,
            flush: $flush * TILE,
            chain: $head_dim,
            exp2_relative: EXP2_RELATIVE,
            score_relative: 0.0,
        }
    };
}

/// A kernel without scores.
macro_rules! helper {
    ($name:literal, $role:expr, $registers:literal) => {
        GpuKernel {
            name: $name,
            ptx: module!($name),
            cubin: cubin($name),
            role: $role,
            threads: 128,
            rows: 4,
            keys: 0,
            shared: 0,
            registers: $registers,
            flush: 0,
            chain: 0,
            exp2_relative: 0.0,
            score_relative: 0.0,
        }
    };
}

/// Keys of a tile.
const TILE: usize = 64;
/// What the PTX ISA promises of `ex2.approx.ftz.f32`: 2^-22.
const EXP2_RELATIVE: f64 = 2.384_185_791_015_625e-7;
/// Any number of query rows.
const ANY: usize = usize::MAX;
/// Query rows up to which blocks of half the rows fill a device better.
const FEW: usize = 960;

/// The assembled form of a module, where this build has one.
const fn cubin(_name: &str) -> Option<&'static [u8]> {
    None
}

/// Every GPU kernel of this build.
pub static GPU_KERNELS: &[GpuKernel] = &[
    attention!("attention_f32_d32_r64", false, 32, ANY, 128 x 64, 24576, 135, 6),
    attention!("attention_f32_d64_r64", false, 64, FEW, 128 x 64, 32768, 162, 4),
    attention!("attention_f32_d64_r128", false, 64, ANY, 128 x 128, 49152, 255, 6),
    attention!("attention_f32_d96_r64", false, 96, ANY, 128 x 64, 49152, 173, 4),
    attention!("attention_f32_d128_r64", false, 128, ANY, 128 x 64, 49152, 201, 4),
    attention!("attention_f32_d256_r32", false, 256, ANY, 64 x 32, 49152, 255, 4),
    attention!("attention_b16_d64_r64", true, 64, ANY, 128 x 64, 32768, 151, 4),
    attention!("attention_b16_d128_r64", true, 128, ANY, 128 x 64, 49152, 194, 4),
    helper!("merge", Role::Merge, 69),
    helper!("present", Role::Present, 54),
];
