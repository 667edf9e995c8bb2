//! The table of attention kernels for GPUs: roles, tiles and error constants of the modules in `kernels/ptx`.
//! Their registers and shared memory are copied from `kernels/ptx/manifest.json`.

use super::math::MATH_TILE;
use crate::cuda::kernel::{GpuKernel, Role};
use crate::cuda::module::kernel;
use elsa_core::attention::plan::{GpuKernelSpec, GpuResources, Pace, Paces, Summation};

/// Defines an attention kernel. The last arguments of the macro are the fields that differ from their defaults.
macro_rules! attention {
    ($name:literal, $sixteen_bit:literal, $head_dim:literal, $most:expr, $most_plain:expr, $threads:literal x $rows:literal,
     $shared:literal, $registers:literal, $summation:expr $(, $field:ident: $value:expr)*) => {
        attention!(Attention, $name, $sixteen_bit, $head_dim, $most, $most_plain, $threads x $rows, $shared, $registers,
            $summation $(, $field: $value)*)
    };
    ($role:ident, $name:literal, $sixteen_bit:literal, $head_dim:literal, $most:expr, $most_plain:expr,
     $threads:literal x $rows:literal, $shared:literal, $registers:literal, $summation:expr $(, $field:ident: $value:expr)*) => {
        kernel!($name, Role::$role(GpuKernelSpec {
            $($field: $value,)*
            ..GpuKernelSpec {
                few_blocks: false,
                joins_race: false,
                serial: false,
                merges: NONE,
                slow_edges: false,
                idles: true,
                name: $name,
                head_dim: $head_dim,
                sixteen_bit: $sixteen_bit,
                most_queries: $most,
                most_plain: $most_plain,
                most_causal: $most,
                most_added: $most,
                paces: about($rows * $head_dim),
                rows: $rows,
                keys: TILE,
                resources: GpuResources { threads: $threads, shared: $shared, registers: $registers },
                summation: $summation,
                chain: $head_dim,
                exp2_relative: EXP2_RELATIVE,
                half_chain: 0,
                one_product: false,
            }
        }))
    };
}

/// Defines an attention kernel for few rows, in which several lanes share a row. To compute a score, each lane sums
/// over four dims (eight if the head size exceeds 128), and a tree over the lanes adds these sums.
macro_rules! rows {
    ($name:literal, $sixteen_bit:literal, $head_dim:literal, $shared:literal, $registers:literal $(, $field:ident: $value:expr)*) => {
        attention!($name, $sixteen_bit, $head_dim, ROWS, ROWS, 128 x 4, $shared, $registers,
            Summation::Groups { groups: if $head_dim < 128 { 512 / $head_dim } else { 4 }, flush: 256 },
            chain: if $head_dim > 128 { 8 + 5 } else { 4 + 5 } $(, $field: $value)*)
    };
}

/// Defines a kernel that computes no scores, such as a merge.
macro_rules! helper {
    ($name:literal, $role:ident { $($field:ident: $value:expr),* }, $registers:literal) => {
        kernel!($name, Role::$role {
            $($field: $value,)*
            resources: GpuResources { threads: 128, shared: 0, registers: $registers },
        })
    };
}

/// Number of keys per tile.
const TILE: usize = 64;
/// Returns the summation of a kernel in which each lane has `columns` columns of scores. Sums are added to memory after
/// every `tiles` tiles.
const fn tiles(columns: usize, tiles: usize) -> Summation {
    Summation::Tiles { columns, flush: tiles * TILE }
}
/// Returns approximate [`Paces`] for a kernel with `elements` query elements per thread block. These paces are equal
/// for all GPUs.
const fn about(elements: usize) -> Paces {
    let paces = [elements * 9 / 100, elements * 27 / 200];
    exactly(paces, paces)
}
/// Returns the paces of a kernel on early and late GPUs. Paces on early GPUs are derived from machine code; paces on
/// late GPUs are measured. The first element of each array is the pace of thread blocks that share an SM. The second
/// element is the pace of a thread block that is alone on an SM.
const fn exactly(early: [usize; 2], late: [usize; 2]) -> Paces {
    let [early, late] =
        [Pace { shared: early[0], alone: early[1] }, Pace { shared: late[0], alone: late[1] }];
    Paces { early, late }
}
/// Relative error bound of `ex2.approx.ftz.f32` according to the PTX ISA: 2^-22.
const EXP2_RELATIVE: f64 = 2.384_185_791_015_625e-7;
/// Limit for a kernel that supports any number of query rows.
const ANY: usize = usize::MAX;
/// Limit for a kernel that does not support one kind of problem.
const NONE: usize = 0;
/// Largest number of query rows for which blocks of 32 rows occupy a device better than larger blocks.
const FEW: usize = 960;
/// Largest number of query rows for which the blocks with the fewest rows are faster than blocks with twice as many
/// rows, because the larger blocks leave SMs idle.
const LOW: usize = 640;
/// Largest number of query rows for which tiles on the edge of a causal mask need to be fast.
const EDGY: usize = 3072;
/// Largest number of query rows for which the time is mostly spent on reading keys.
const ROWS: usize = 8;

/// Attention kernels of this build, including those that merge states, measure tensors and write the present tensor.
pub const KERNELS: &[GpuKernel] = &[
    attention!("attention_f32_d32_q32k64__sm53_exp2_approx", false, 32, ANY, ANY, 64 x 32, 16384, 167, tiles(8, 6), most_causal: EDGY, most_added: NONE, merges: 8,
        paces: exactly([107, 280], [100, 200])),
    attention!("attention_f32_d32_q32k64__sm53_exp2_approx_added", false, 32, NONE, NONE, 64 x 32, 16384, 183, tiles(8, 6), idles: false, most_added: ANY),
    attention!("attention_f32_d32_q64k64__sm53_exp2_approx", false, 32, NONE, ANY, 64 x 64, 24576, 204, tiles(8, 6), most_causal: ANY, most_added: NONE,
        slow_edges: true, paces: exactly([234, 467], [180, 300])),
    attention!("attention_f32_d64_q32k64__sm53_exp2_approx", false, 64, LOW, ANY, 128 x 32, 24576, 128, tiles(4, 4), most_added: NONE, few_blocks: true, merges: 8,
        paces: exactly([213, 310], [205, 400])),
    attention!("attention_f32_d64_q32k64__sm53_exp2_approx_added", false, 64, NONE, NONE, 128 x 32, 24576, 139, tiles(4, 4), idles: false, most_added: FEW),
    attention!("attention_f32_d64_q64k64__sm53_exp2_approx", false, 64, ANY, ANY, 128 x 64, 32768, 168, tiles(8, 4), most_causal: EDGY, most_added: NONE,
        serial: true, paces: exactly([367, 471], [367, 470])),
    attention!("attention_f32_d64_q128k64__sm53_exp2_approx", false, 64, NONE, ANY, 128 x 128, 49152, 255, tiles(8, 4), most_causal: ANY, slow_edges: true,
        paces: exactly([785, 785], [636, 1070])),
    attention!("attention_f32_d64_q128k64__sm53_exp2_approx_added", false, 64, NONE, NONE, 128 x 128, 49152, 255, tiles(8, 4), idles: false, most_added: ANY),
    attention!("attention_f32_d96_q64k64__sm53_exp2_approx", false, 96, ANY, ANY, 128 x 64, 47104, 227, tiles(8, 4), idles: false, most_causal: EDGY,
        paces: exactly([959, 959], [660, 950])),
    attention!("attention_f32_d96_q64k64__sm53_exp2_approx_plain", false, 96, NONE, ANY, 128 x 64, 45056, 186, tiles(8, 4), idles: false, most_causal: ANY,
        slow_edges: true, paces: exactly([702, 702], [543, 800])),
    attention!("attention_f32_d128_q64k64__sm53_exp2_approx", false, 128, ANY, ANY, 128 x 64, 49152, 252, tiles(4, 4), idles: false),
    attention!("attention_f32_d256_q32k64__sm53_exp2_approx", false, 256, ANY, ANY, 128 x 32, 49152, 206, tiles(4, 4)),
    attention!("attention_b16_d64_q64k64__sm53_exp2_approx", true, 64, ANY, ANY, 128 x 64, 32768, 168, tiles(8, 4)),
    attention!("attention_f16_d64_q64k64__sm53_exp2_approx_half2_c16", true, 64, ANY, ANY, 128 x 64, 24576, 189, tiles(8, 4), half_chain: 16),
    attention!("attention_b16_d128_q64k64__sm53_exp2_approx", true, 128, ANY, ANY, 128 x 64, 49152, 239, tiles(4, 4), idles: false),
    attention!("attention_b16_d256_q32k64__sm53_exp2_approx", true, 256, ANY, ANY, 128 x 32, 49152, 192, tiles(4, 4)),
    rows!("attention_f32_d64_q4k64__sm53_exp2_approx", false, 64, 8960, 164, joins_race: true, merges: 8,
        paces: exactly([120, 382], [115, 170])),
    rows!("attention_f32_d128_q4k64__sm53_exp2_approx", false, 128, 8832, 227),
    rows!("attention_f32_d256_q4k64__sm53_exp2_approx", false, 256, 17024, 222),
    rows!("attention_b16_d64_q4k64__sm53_exp2_approx", true, 64, 8960, 154),
    rows!("attention_b16_d128_q4k64__sm53_exp2_approx", true, 128, 8832, 197),
    rows!("attention_b16_d256_q4k64__sm53_exp2_approx", true, 256, 17024, 206),
    attention!(AttentionWithin, "attention_f32_d32_q32k64__sm53_exp2_approx_within", false, 32, ANY, ANY, 64 x 32, 16384, 213, tiles(8, 6), idles: false, most_causal: EDGY,
        paces: exactly([107, 280], [100, 200])),
    attention!(AttentionWithin, "attention_f32_d32_q64k64__sm53_exp2_approx_within", false, 32, NONE, ANY, 64 x 64, 24576, 254, tiles(8, 6), idles: false, most_causal: ANY,
        slow_edges: true, paces: exactly([234, 467], [180, 300])),
    attention!(AttentionWithin, "attention_f32_d64_q64k64__sm53_exp2_approx_within", false, 64, ANY, ANY, 128 x 64, 32768, 230, tiles(8, 4), idles: false, most_causal: EDGY,
        paces: exactly([367, 471], [367, 470])),
    attention!(AttentionWithin, "attention_f32_d64_q128k64__sm53_exp2_approx_within", false, 64, NONE, ANY, 128 x 128, 49152, 248, tiles(8, 4), idles: false, most_causal: ANY,
        slow_edges: true, paces: exactly([785, 785], [636, 1070])),
    attention!(AttentionWithin, "attention_f32_d128_q64k64__sm53_exp2_approx_within", false, 128, ANY, ANY, 128 x 64, 49152, 251, tiles(4, 4), idles: false),
    attention!(AttentionWithin, "attention_f32_d256_q32k64__sm53_exp2_approx_within", false, 256, ANY, ANY, 128 x 32, 49152, 209, tiles(4, 4), idles: false),
    attention!(AttentionWithin, "attention_b16_d64_q64k64__sm53_exp2_approx_within", true, 64, ANY, ANY, 128 x 64, 32768, 187, tiles(8, 4), idles: false),
    attention!(AttentionWithin, "attention_b16_d128_q64k64__sm53_exp2_approx_within", true, 128, ANY, ANY, 128 x 64, 49152, 234, tiles(4, 4), idles: false),
    attention!(AttentionWithin, "attention_b16_d256_q32k64__sm53_exp2_approx_within", true, 256, ANY, ANY, 128 x 32, 49152, 195, tiles(4, 4), idles: false),
    helper!("merge_f32_s4__sm53", AttentionMerge { states: 4, most: 4 }, 64),
    helper!("merge_f32_s8__sm53", AttentionMerge { states: 8, most: ANY }, 165),
    helper!("merge_f32_s4__sm53_within", AttentionMergeWithin { states: 4 }, 133),
    helper!("stream_f32_s4__sm53", AttentionStream { states: 4 }, 103),
    kernel!(
        "measure__sm53",
        Role::AttentionMeasure { resources: GpuResources { threads: 256, shared: 8448, registers: 124 } }
    ),
    helper!("present__sm53", AttentionPresent {}, 54),
    kernel!(
        "math_scores__sm53",
        Role::MathScores { resources: GpuResources { threads: 128, shared: 16384, registers: 149 } }
    ),
    helper!("math_weights__sm53", MathWeights {}, 77),
    kernel!(
        "math_values__sm53",
        Role::MathValues(GpuKernelSpec {
            few_blocks: false,
            joins_race: false,
            serial: false,
            merges: NONE,
            slow_edges: false,
            idles: false,
            name: "math_values__sm53",
            // The chains are as long as the head size.
            head_dim: usize::MAX,
            sixteen_bit: false,
            most_queries: ANY,
            most_plain: ANY,
            most_causal: ANY,
            most_added: ANY,
            paces: about(MATH_TILE * MATH_TILE),
            rows: MATH_TILE,
            keys: MATH_TILE,
            resources: GpuResources { threads: 128, shared: 16384, registers: 168 },
            // A lane computes two keys of each tile for a row; the products of four tiles, 256 keys, form one chain.
            summation: tiles(2, 4),
            chain: usize::MAX,
            exp2_relative: EXP2_RELATIVE,
            half_chain: 0,
            one_product: false,
        })
    ),
];

/// Defines a kernel on Tensor Cores: for plain problems, or for problems with a soft cap, a mask or a bias.
#[cfg(not(elsa_without = "sm80"))]
macro_rules! split {
    ($name:literal, $sixteen_bit:literal, $most:expr, $most_plain:expr, $head_dim:literal, $threads:literal x $rows:literal, $keys:literal, $shared:literal,
     $registers:literal, $pace:expr $(, $field:ident: $value:expr)*) => {
        attention!(AttentionSplit, $name, $sixteen_bit, $head_dim, $most, $most_plain, $threads x $rows, $shared, $registers,
            Summation::Tiles { columns: $keys / 4, flush: $keys }, keys: $keys, paces: exactly($pace, $pace) $(, $field: $value)*)
    };
}

/// Kernels of attention on Tensor Cores. Their shared memory is that of the launch.
#[cfg(not(elsa_without = "sm80"))]
pub const TENSOR_KERNELS: &[GpuKernel] = &[
    kernel!("split_f32_d32_k64__sm80", planes(false, 32, 64, 3136, 68)),
    kernel!("split_f32_d64_k64__sm80", planes(false, 64, 64, 6208, 66)),
    kernel!("split_f32_d96_k32__sm80", planes(false, 96, 32, 9280, 77)),
    kernel!("split_f32_d128_k32__sm80", planes(false, 128, 32, 12352, 68)),
    kernel!("split_f32_d256_k32__sm80", planes(false, 256, 32, 24640, 80)),
    kernel!("split_b16_d32_k64__sm80", planes(true, 32, 64, 3136, 51)),
    kernel!("split_b16_d64_k64__sm80", planes(true, 64, 64, 6208, 55)),
    kernel!("split_b16_d96_k32__sm80", planes(true, 96, 32, 9280, 60)),
    kernel!("split_b16_d128_k32__sm80", planes(true, 128, 32, 12352, 56)),
    kernel!("split_b16_d256_k32__sm80", planes(true, 256, 32, 24640, 72)),
    split!("attention_f32_d32_q64k64__sm80_split", false, NONE, ANY, 32, 128 x 64, 64, 16384, 124, [75, 130]),
    split!("attention_f32_d64_q64k64__sm80_split", false, NONE, ANY, 64, 128 x 64, 64, 32768, 162, [117, 190]),
    split!("attention_f32_d64_q128k64__sm80_split", false, NONE, ANY, 64, 128 x 128, 64, 65536, 255, [207, 305]),
    split!("attention_f32_d96_q64k32__sm80_split", false, NONE, ANY, 96, 128 x 64, 32, 36864, 200, [88, 150]),
    split!("attention_f32_d128_q64k32__sm80_split", false, NONE, ANY, 128, 128 x 64, 32, 49152, 242, [112, 185]),
    split!("attention_f32_d128_q128k32__sm80_split", false, NONE, ANY, 128, 128 x 128, 32, 98304, 248, [213, 350]),
    split!("attention_f32_d256_q64k32__sm80_split", false, NONE, ANY, 256, 128 x 64, 32, 131072, 226, [256, 400]),
    split!("attention_f32_d256_q128k32__sm80_split", false, NONE, ANY, 256, 256 x 128, 32, 196608, 226, [446, 446]),
    split!("attention_f32_d64_q64k64__sm80_split_halves", false, NONE, ANY, 64, 256 x 64, 64, 131072, 229, [117, 117]),
    split!("attention_f32_d128_q64k32__sm80_split_halves", false, NONE, ANY, 128, 256 x 64, 32, 131072, 255, [112, 112]),
    split!("attention_b16_d64_q64k64__sm80_split_halves", true, NONE, ANY, 64, 256 x 64, 64, 65536, 206, [65, 65]),
    split!("attention_b16_d128_q64k32__sm80_split_halves", true, NONE, ANY, 128, 256 x 64, 32, 65536, 254, [60, 60]),
    split!("attention_f32_d32_q64k64__sm80_split_added", false, ANY, NONE, 32, 128 x 64, 64, 34816, 132, [85, 145]),
    split!("attention_f32_d64_q64k64__sm80_split_added", false, ANY, NONE, 64, 128 x 64, 64, 51200, 168, [130, 210]),
    split!("attention_f32_d96_q64k32__sm80_split_added", false, ANY, NONE, 96, 128 x 64, 32, 36864, 196, [100, 165]),
    split!("attention_f32_d128_q64k32__sm80_split_added", false, ANY, NONE, 128, 128 x 64, 32, 49152, 244, [125, 205]),
    split!("attention_f32_d256_q64k32__sm80_split_added", false, ANY, NONE, 256, 128 x 64, 32, 141312, 222, [270, 420]),
    split!("attention_b16_d32_q64k64__sm80_split", true, NONE, ANY, 32, 128 x 64, 64, 16384, 108, [50, 85]),
    split!("attention_b16_d64_q64k64__sm80_split", true, NONE, ANY, 64, 128 x 64, 64, 32768, 152, [65, 105]),
    split!("attention_b16_d64_q128k64__sm80_split", true, NONE, ANY, 64, 128 x 128, 64, 32768, 241, [115, 170]),
    split!("attention_b16_d96_q64k32__sm80_split", true, NONE, ANY, 96, 128 x 64, 32, 24576, 160, [50, 85]),
    split!("attention_b16_d128_q128k32__sm80_split", true, NONE, ANY, 128, 128 x 128, 32, 65536, 243, [115, 190]),
    split!("attention_b16_d256_q128k32__sm80_split", true, NONE, ANY, 256, 256 x 128, 32, 131072, 227, [290, 290]),
    split!("attention_b16_d32_q64k64__sm80_split_added", true, ANY, NONE, 32, 128 x 64, 64, 26624, 128, [60, 100]),
    split!("attention_b16_d64_q64k64__sm80_split_added", true, ANY, NONE, 64, 128 x 64, 64, 34816, 157, [78, 125]),
    split!("attention_b16_d96_q64k32__sm80_split_added", true, ANY, NONE, 96, 128 x 64, 32, 24576, 166, [60, 100]),
    split!("attention_b16_d128_q64k32__sm80_split_added", true, ANY, NONE, 128, 128 x 64, 32, 32768, 186, [70, 115]),
    split!("attention_b16_d256_q64k32__sm80_split_added", true, ANY, NONE, 256, 128 x 64, 32, 75776, 222, [155, 240]),
    // The paces of kernels with one product are estimates: three quarters of those for 16-bit elements.
    kernel!("split_f32_d64_k64__sm80_f16", one_plane(64, 64, 6208, 60)),
    kernel!("split_f32_d128_k32__sm80_f16", one_plane(128, 32, 12352, 56)),
    kernel!("split_f32_d256_k32__sm80_f16", one_plane(256, 32, 24640, 72)),
    split!("attention_f32_d64_q128k64__sm80_f16", false, NONE, ANY, 64, 128 x 128, 64, 32768, 228, [86, 128], one_product: true),
    split!("attention_f32_d128_q128k32__sm80_f16", false, NONE, ANY, 128, 128 x 128, 32, 65536, 241, [86, 143], one_product: true),
    split!("attention_f32_d256_q128k32__sm80_f16", false, NONE, ANY, 256, 256 x 128, 32, 131072, 219, [210, 250], one_product: true),
    attention!(AttentionRefused, "attention_b16_d256_q32k64__sm80_refused", true, 256, ANY, ANY, 128 x 32, 49152, 192, tiles(4, 4)),
    attention!(AttentionRefused, "attention_f32_d64_q64k64__sm80_refused", false, 64, ANY, ANY, 128 x 64, 32768, 168, tiles(8, 4)),
    attention!(AttentionRefused, "attention_f32_d128_q64k64__sm80_refused", false, 128, ANY, ANY, 128 x 64, 49152, 252, tiles(4, 4)),
    attention!(AttentionRefused, "attention_f32_d256_q32k64__sm80_refused", false, 256, ANY, ANY, 128 x 32, 49152, 214, tiles(4, 4)),
];

/// Returns the role of a kernel that splits keys and values.
#[cfg(not(elsa_without = "sm80"))]
const fn planes(sixteen_bit: bool, head_dim: usize, keys: usize, shared: usize, registers: usize) -> Role {
    planes_of([sixteen_bit, false], [head_dim, keys], shared, registers)
}

/// Like [`planes`], for f32 elements that are rounded to one f16 value.
#[cfg(not(elsa_without = "sm80"))]
const fn one_plane(head_dim: usize, keys: usize, shared: usize, registers: usize) -> Role {
    planes_of([false, true], [head_dim, keys], shared, registers)
}

#[cfg(not(elsa_without = "sm80"))]
const fn planes_of(
    [sixteen_bit, one_product]: [bool; 2],
    [head_dim, keys]: [usize; 2],
    shared: usize,
    registers: usize,
) -> Role {
    let resources = GpuResources { threads: 256, shared, registers };
    Role::SplitPlanes { sixteen_bit, one_product, head_dim, keys, resources }
}
