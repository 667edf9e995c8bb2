//! The macro that instantiates the attention kernels for one instruction set.

/// Declares a module `attention` with two statics. The tiles of `KERNEL` are one to three vectors of rows. `ROW_KERNEL`
/// processes one row at a time. The parent module must contain the static `PRIMITIVES` of the instruction set.
///
/// `tile_keys` contains three numbers: the keys per register tile for tiles of one, two and three vectors.
macro_rules! attention {
    (
        isa: $isa:ident, lanes: $lanes:ident, features: $features:tt,
        name: $name:literal, row_name: $row_name:literal,
        tile_keys: [$r1:literal, $r2:literal, $r3:literal], vectors: $vectors:literal, group: $group:literal,
        keys: $keys:expr, exp2_relative: $exp2:literal, fused: $fused:literal $(,)?
    ) => {
        /// The attention kernels of this instruction set.
        pub mod attention {
        use super::{$isa, $lanes, PRIMITIVES};
        use elsa_core::attention::plan::{KernelSpec, KeyLayout};
        use $crate::attention::{
            Block, Budget, Entries, Kernel, MaskTile, Measure, MeasuredRows, OneRow, RowStep, Seen, SideTile, Sums, Tile,
            TileOps, Vectors, combine, mask, measure, shared, values,
        };
        use $crate::lanes::Lanes;
        use $crate::{memory, product};

        const KEYS: KeyLayout = $keys;
        const PANELS: bool = matches!(KEYS, KeyLayout::Panels(_));

        /// The kernel for any number of queries, with its entry points.
        pub static KERNEL: Kernel = Kernel {
            spec: KernelSpec {
                name: $name,
                set: PRIMITIVES.set,
                lanes: $lanes::N,
                vectors: $vectors,
                tile_keys: $r1,
                group: $group,
                keys: KEYS,
                most_queries: usize::MAX,
                weight_scale: $lanes::WEIGHT_SCALE,
                chain: product::CHAIN,
                weight_sums: 1,
                exp2_relative: $exp2,
                fused: $fused,
                raises: $lanes::RAISE != 1.0,
                together: 1,
            },
            primitives: &PRIMITIVES,
            entries: [v1::ENTRIES, v2::ENTRIES, v3::ENTRIES],
            together: None,
            pack,
            largest,
            lift,
            bias,
            add,
            divide,
            measure: Measure { norms, channels, addends },
        };

        /// The kernel for few queries, which processes one row at a time.
        pub static ROW_KERNEL: Kernel = Kernel {
            spec: KernelSpec {
                name: $row_name,
                lanes: 1,
                vectors: 1,
                tile_keys: 1,
                group: 4,
                keys: KeyLayout::Rows,
                most_queries: $lanes::N.div_ceil(4),
                weight_sums: $lanes::N,
                raises: false,
                together: shared::most_rows::<$lanes>(),
                ..KERNEL.spec
            },
            entries: [row1::ENTRIES; 3],
            together: Some(together),
            ..KERNEL
        };

        $crate::attention::instance::entries!(row1, $features, $isa, OneRow<$lanes>);
        $crate::attention::instance::entries!(v1, $features, $isa, Vectors<$lanes, $r1, 1, PANELS>);
        $crate::attention::instance::entries!(v2, $features, $isa, Vectors<$lanes, $r2, 2, PANELS>);
        $crate::attention::instance::entries!(v3, $features, $isa, Vectors<$lanes, $r3, 3, PANELS>);

        $crate::entry::entry_points! {
            $features, $isa,
            fn together(rows: &[RowStep], block: &Block) = <OneRow<$lanes>>::together;
            fn pack(src: *const f32, stride: usize, rows: usize, dim: usize, dst: *mut f32)
                = memory::pack::<$lanes, $r1>;
            fn bias(tile: &MaskTile, width: usize, dst: *mut f32, seen: &mut Seen) = mask::bias::<$lanes>;
            fn largest(block: &Block, value_dim: usize, to: &mut f32) = values::largest::<$lanes>;
            fn lift(block: &Block, value_dim: usize, to: *mut f32) = values::lift::<$lanes>;
            fn add(a: *const f32, b: *const f32, n: usize, dst: *mut f32) = combine::add::<$lanes>;
            fn divide(tile: &SideTile, width: usize, dst: *mut f32, seen: &mut Seen) = combine::divide::<$lanes>;
            fn norms(rows: &MeasuredRows, to: *mut f32) = measure::norms::<$lanes>;
            fn channels(rows: &MeasuredRows, to: *mut f32) = measure::channels::<$lanes>;
            fn addends(rows: &MeasuredRows, to: *mut f32) = measure::addends::<$lanes>;
        }
        }
    };
}

/// Declares a module with the entry points for one tile width. The module's name shows the width in profiles.
macro_rules! entries {
    ($module:ident, $features:tt, $isa:ident, $ops:ty) => {
        mod $module {
            use super::*;

            pub(super) const ENTRIES: Entries = Entries { step, decide, weigh, merge, finish, scores, softmax, accumulate };

            $crate::entry::entry_points! {
                $features, $isa,
                fn step(tile: &Tile, block: &Block, sums: &Sums, first: bool) = <$ops>::step;
                fn decide(tile: &Tile, block: &Block, sums: &Sums, budget: &mut Budget, first: bool)
                    = <$ops>::decide;
                fn weigh(tile: &Tile, block: &Block, sums: &Sums, first: bool) = <$ops>::weigh;
                fn merge(earlier: &Sums, later: &Sums, value_dim: usize) = <$ops>::merge;
                fn finish(sums: &Sums, value_dim: usize) = <$ops>::finish;
                fn scores(tile: &Tile, block: &Block, dst: *mut f32, top: *mut f32) = <$ops>::scores;
                fn softmax(p: *mut f32, count: usize, sums: &Sums) = <$ops>::softmax;
                fn accumulate(tile: &Tile, block: &Block, p: *const f32, sums: &Sums, flags: [bool; 2]) = <$ops>::accumulate;
            }
        }
    };
}

pub(crate) use {attention, entries};
