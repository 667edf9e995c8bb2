//! The macro that makes an instance of the generic micro-kernels for one instruction set.

/// Declares `KERNEL`: entry points with the instruction set's target features around the generic code.
///
/// `rows` are the rows of a register tile for one, two and three vectors.
macro_rules! instance {
    (
        isa: $isa:ty, lanes: $lanes:ty, features: [$($features:literal)?],
        name: $name:literal, row_name: $row_name:literal, set: $set:expr,
        rows: [$r1:literal, $r2:literal, $r3:literal], vectors: $vectors:literal, group: $group:literal,
        keys: $keys:expr, exp2_relative: $exp2:literal, fused: $fused:literal,
    ) => {
        use $crate::generic::{finish, memory, merge, row, scores, softmax, step, values};
        use $crate::kernel::{Block, Entries, Kernel, Sums, Tile};
        use $crate::lanes::Lanes;

        const PANELS: bool = matches!($keys, elsa_core::attention::plan::KeyLayout::Panels(_));

        /// The kernel of this instruction set for few queries, one row at a time.
        pub static ROW_KERNEL: Kernel = Kernel {
            spec: elsa_core::attention::plan::KernelSpec {
                name: $row_name,
                lanes: 1,
                vectors: 1,
                tile_keys: 1,
                group: 4,
                keys: elsa_core::attention::plan::KeyLayout::Rows,
                most_queries: <$lanes as Lanes>::N.div_ceil(4),
                ..KERNEL.spec
            },
            entries: [row1::ENTRIES; 3],
            ..KERNEL
        };

        /// The kernel of this instruction set.
        pub static KERNEL: Kernel = Kernel {
            spec: elsa_core::attention::plan::KernelSpec {
                name: $name,
                set: $set,
                lanes: <$lanes as Lanes>::N,
                vectors: $vectors,
                tile_keys: $r1,
                group: $group,
                keys: $keys,
                most_queries: usize::MAX,
                weight_scale: <$lanes as Lanes>::WEIGHT_SCALE,
                chain: $crate::generic::product::CHAIN,
                exp2_relative: $exp2,
                fused: $fused,
            },
            present: || <$isa>::detect().is_some(),
            entries: [v1::ENTRIES, v2::ENTRIES, v3::ENTRIES],
            transpose_in,
            transpose_out,
            pack,
            widen_f16,
            widen_bf16,
            narrow_f16,
            narrow_bf16,
            exp2,
        };

        mod row1 {
            use super::*;

            pub(super) const ENTRIES: Entries = Entries { step, merge, finish, scores, softmax, accumulate };

            $(#[target_feature(enable = $features)])?
            unsafe fn step(tile: &Tile, block: &Block, sums: &Sums, first: bool) {
                // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
                unsafe { row::step::<$lanes>(<$isa>::assume(), tile, block, sums, first) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn merge(earlier: &Sums, later: &Sums, value_dim: usize) {
                // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
                unsafe { row::merge::<$lanes>(<$isa>::assume(), earlier, later, value_dim) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn finish(sums: &Sums, value_dim: usize) {
                // SAFETY: the caller keeps the clauses of the generic function.
                unsafe { row::finish(sums, value_dim) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn scores(tile: &Tile, block: &Block, dst: *mut f32) {
                // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
                unsafe { row::scores::<$lanes>(<$isa>::assume(), tile, block, dst) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn softmax(p: *mut f32, count: usize, sums: &Sums, _masked: bool) {
                // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
                unsafe { row::softmax::<$lanes>(<$isa>::assume(), p, count, sums) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn accumulate(tile: &Tile, block: &Block, p: *const f32, sums: &Sums, first: bool) {
                // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
                unsafe { row::add::<$lanes>(<$isa>::assume(), block, tile.value_dim, p, sums.w, first) }
            }
        }

        $crate::instance::width!(v1, $isa, $lanes, [$($features)?], $r1, 1);
        $crate::instance::width!(v2, $isa, $lanes, [$($features)?], $r2, 2);
        $crate::instance::width!(v3, $isa, $lanes, [$($features)?], $r3, 3);

        $(#[target_feature(enable = $features)])?
        unsafe fn transpose_in(
            src: *const f32, stride: usize, rows: usize, dim: usize, padded: usize, w: usize, factor: f32, dst: *mut f32,
        ) {
            // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
            unsafe { memory::transpose_in::<$lanes>(<$isa>::assume(), src, stride, rows, dim, padded, w, factor, dst) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn transpose_out(
            src: *const f32, w: usize, rows: usize, dim: usize, dst: *mut f32, stride: usize,
        ) {
            // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
            unsafe { memory::transpose_out::<$lanes>(<$isa>::assume(), src, w, rows, dim, dst, stride) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn pack(src: *const f32, stride: usize, rows: usize, dim: usize, dst: *mut f32) {
            // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
            unsafe { memory::pack::<$lanes, $r1>(<$isa>::assume(), src, stride, rows, dim, dst) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn widen_f16(
            src: *const u16, stride: usize, rows: usize, dim: usize, dst: *mut f32, to_stride: usize,
        ) {
            // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
            unsafe { memory::widen::<$lanes, false>(<$isa>::assume(), src, stride, rows, dim, dst, to_stride) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn widen_bf16(
            src: *const u16, stride: usize, rows: usize, dim: usize, dst: *mut f32, to_stride: usize,
        ) {
            // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
            unsafe { memory::widen::<$lanes, true>(<$isa>::assume(), src, stride, rows, dim, dst, to_stride) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn narrow_f16(src: *const f32, rows: usize, dim: usize, dst: *mut u16, to_stride: usize) {
            // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
            unsafe { memory::narrow::<$lanes, false>(<$isa>::assume(), src, rows, dim, dst, to_stride) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn narrow_bf16(src: *const f32, rows: usize, dim: usize, dst: *mut u16, to_stride: usize) {
            // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
            unsafe { memory::narrow::<$lanes, true>(<$isa>::assume(), src, rows, dim, dst, to_stride) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn exp2(x: *const f32, n: usize, y: *mut f32) {
            let mut i = 0;
            while i < n {
                let mut lanes = [0.0f32; 16];
                let take = (n - i).min(<$lanes as Lanes>::N);
                // SAFETY: `n` singles at either pointer (clause of `Kernel::exp2`); a vector has at most 16.
                unsafe {
                    lanes.as_mut_ptr().copy_from_nonoverlapping(x.add(i), take);
                    let v = <$lanes as Lanes>::load(<$isa>::assume(), lanes.as_ptr());
                    v.exp2().store(lanes.as_mut_ptr());
                    y.add(i).copy_from_nonoverlapping(lanes.as_ptr(), take);
                }
                i += take;
            }
        }
    };
}

/// Declares the entry points for one tile width.
macro_rules! width {
    ($module:ident, $isa:ty, $lanes:ty, [$($features:literal)?], $rows:literal, $vectors:literal) => {
        mod $module {
            use super::*;

            pub(super) const ENTRIES: Entries = Entries { step, merge, finish, scores, softmax, accumulate };

            $(#[target_feature(enable = $features)])?
            unsafe fn step(tile: &Tile, block: &Block, sums: &Sums, first: bool) {
                // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
                unsafe {
                    step::step::<$lanes, $rows, $vectors, PANELS>(<$isa>::assume(), tile, block, sums, first)
                }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn merge(earlier: &Sums, later: &Sums, value_dim: usize) {
                // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
                unsafe { merge::merge::<$lanes, $vectors>(<$isa>::assume(), earlier, later, value_dim) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn finish(sums: &Sums, value_dim: usize) {
                // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
                unsafe { finish::finish::<$lanes, $vectors>(<$isa>::assume(), sums, value_dim) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn scores(tile: &Tile, block: &Block, dst: *mut f32) {
                // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
                unsafe {
                    scores::scores::<$lanes, $rows, $vectors, PANELS>(<$isa>::assume(), tile, block, dst);
                }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn softmax(p: *mut f32, count: usize, sums: &Sums, masked: bool) {
                // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
                unsafe { softmax::softmax::<$lanes, $vectors>(<$isa>::assume(), p, count, sums, masked) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn accumulate(tile: &Tile, block: &Block, p: *const f32, sums: &Sums, first: bool) {
                // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
                unsafe {
                    let (isa, dim) = (<$isa>::assume(), tile.value_dim);
                    values::add_block::<$lanes, $rows, $vectors>(isa, block, dim, p, sums.w, first);
                }
            }
        }
    };
}

pub(crate) use {instance, width};
