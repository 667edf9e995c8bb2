//! The table of GPU kernels: roles, tiles and error constants of the modules in `kernels/ptx/sm_62`. Registers and
//! shared memory are those of `kernels/ptx/manifest.json`.

use super::{GpuKernel, Role};

/// The module of a kernel, zero-terminated.
macro_rules! module {
    ($name:literal) => {
        concat!(include_str!(concat!("../../ptx/sm_62/", $name, ".ptx")), "\0")
    };
}

/// An attention kernel.
macro_rules! attention {
    ($name:literal, $half:literal, $head_dim:literal, $most:expr, $most_plain:expr, $threads:literal x $rows:literal,
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
                most_plain: $most_plain,
            },
            threads: $threads,
            rows: $rows,
            keys: TILE,
            shared: $shared,
            registers: $registers,
            flush: $flush * TILE,
            chain: $head_dim,
            exp2_relative: EXP2_RELATIVE,
            half_chain: 0,
        }
    };
}

/// The same as an attention kernel for 16-bit types, of halves alone and with their products summed in halves.
macro_rules! in_halves {
    ($chain:literal, $name:literal, $head_dim:literal, $($rest:tt)*) => {
        GpuKernel {
            role: Role::Attention {
                head_dim: $head_dim,
                half: true,
                half_scores: true,
                most_queries: ANY,
                most_plain: ANY,
            },
            half_chain: $chain,
            ..attention!($name, true, $head_dim, ANY, ANY, $($rest)*)
        }
    };
}

/// An attention kernel for few rows, which its lanes share out: a score is summed over four dims (eight beyond
/// 128) in a lane, then over the lanes in a tree.
macro_rules! rows {
    ($name:literal, $half:literal, $head_dim:literal, $shared:literal, $registers:literal) => {
        GpuKernel {
            name: $name,
            ptx: module!($name),
            cubin: cubin($name),
            role: Role::Attention {
                head_dim: $head_dim,
                half: $half,
                half_scores: false,
                most_queries: ROWS,
                most_plain: ROWS,
            },
            threads: 128,
            rows: 4,
            keys: TILE,
            shared: $shared,
            registers: $registers,
            flush: 256,
            chain: if $head_dim > 128 { 8 + 5 } else { 4 + 5 },
            exp2_relative: EXP2_RELATIVE,
            half_chain: 0,
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
            half_chain: 0,
        }
    };
}

/// Keys of a tile.
const TILE: usize = 64;
/// What the PTX ISA promises of `ex2.approx.ftz.f32`: 2^-22.
const EXP2_RELATIVE: f64 = 2.384_185_791_015_625e-7;
/// Any number of query rows.
const ANY: usize = usize::MAX;
/// No query rows.
const NONE: usize = 0;
/// Query rows up to which blocks of half the rows fill a device better.
const FEW: usize = 960;
/// Query rows up to which reading the keys takes the time.
const ROWS: usize = 8;

/// Assembled modules that the build was given, by name.
const CUBINS: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/cubins.rs"));

/// The assembled form of a module, where this build has one.
const fn cubin(name: &str) -> Option<&'static [u8]> {
    let mut i = 0;
    while i < CUBINS.len() {
        if same(CUBINS[i].0, name) {
            return Some(CUBINS[i].1);
        }
        i += 1;
    }
    None
}

const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// Every GPU kernel of this build.
pub static GPU_KERNELS: &[GpuKernel] = &[
    attention!("attention_f32_d32_q64k64__sm62_exp2_approx", false, 32, ANY, ANY, 64 x 64, 24576, 217, 6),
    attention!("attention_f32_d64_q64k64__sm62_exp2_approx", false, 64, ANY, FEW, 128 x 64, 32768, 147, 4),
    attention!("attention_f32_d64_q128k64__sm62_exp2_approx", false, 64, NONE, ANY, 128 x 128, 49152, 245, 4),
    attention!("attention_f32_d96_q64k64__sm62_exp2_approx", false, 96, ANY, ANY, 128 x 64, 47104, 191, 4),
    attention!("attention_f32_d128_q64k64__sm62_exp2_approx", false, 128, ANY, ANY, 128 x 64, 49152, 227, 4),
    attention!("attention_f32_d256_q32k64__sm62_exp2_approx", false, 256, ANY, ANY, 128 x 32, 49152, 204, 4),
    attention!("attention_b16_d64_q64k64__sm62_exp2_approx", true, 64, ANY, ANY, 128 x 64, 32768, 159, 4),
    in_halves!(16, "attention_f16_d64_q64k64__sm62_exp2_approx_half2_c16", 64, 128 x 64, 24576, 188, 4),
    attention!("attention_b16_d128_q64k64__sm62_exp2_approx", true, 128, ANY, ANY, 128 x 64, 49152, 210, 4),
    attention!("attention_b16_d256_q32k64__sm62_exp2_approx", true, 256, ANY, ANY, 128 x 32, 49152, 191, 4),
    rows!("attention_f32_d64_q4k64__sm62_exp2_approx", false, 64, 8960, 153),
    rows!("attention_f32_d128_q4k64__sm62_exp2_approx", false, 128, 8832, 153),
    rows!("attention_f32_d256_q4k64__sm62_exp2_approx", false, 256, 17024, 199),
    rows!("attention_b16_d64_q4k64__sm62_exp2_approx", true, 64, 8960, 145),
    rows!("attention_b16_d128_q4k64__sm62_exp2_approx", true, 128, 8832, 149),
    rows!("attention_b16_d256_q4k64__sm62_exp2_approx", true, 256, 17024, 189),
    helper!("merge_f32_s4__sm62", Role::Merge { states: 4, most: 4 }, 64),
    helper!("merge_f32_s8__sm62", Role::Merge { states: 8, most: ANY }, 150),
    helper!("present__sm62", Role::Present, 54),
];
