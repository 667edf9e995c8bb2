//! The macro that instantiates the kernel of linear attention for one instruction set.

/// Declares a module `linear` with the static `KERNEL`. The parent module must contain the static `PRIMITIVES` of the
/// instruction set.
///
/// Under the rules without rates, a pass over the state has `pass` tokens, or `most` tokens if nothing decays. In the
/// second case `tall` tokens read the state at once. A shorter pass processes `together` tokens at once. A register
/// tile of products has `rows` rows. The widest strip has `vectors` vectors, or `delta` vectors under the delta rules.
/// The loops of the delta rules have half as many sums as the loops of the other rules, so that their strips may be
/// wider.
macro_rules! linear {
    (
        isa: $isa:ident, lanes: $lanes:ident, features: $features:tt, name: $name:literal,
        together: $b:literal, rows: $r:literal, pass: $n:literal, most: $p:literal, tall: $t:literal, vectors: $v:literal, delta: $w:literal, fused: $fused:literal $(,)?
    ) => {
        /// The kernel of linear attention of this instruction set.
        pub mod linear {
            use super::{$isa, $lanes, PRIMITIVES};
            use $crate::lanes::Lanes;
            use $crate::linear::kernel::{
                Columns, Entries, Factors, Head, Kernel, MOST_TOGETHER, Reading, Segment, Strip,
            };
            use elsa_core::linear::plan::KernelSpec;
            use $crate::linear::{EXP_RELATIVE, factor, prepare as prepared, read as reading, recur as recurrence};

            /// Table entry of the kernel.
            pub static KERNEL: Kernel = Kernel {
                spec: KernelSpec {
                    name: $name,
                    set: PRIMITIVES.set,
                    lanes: $lanes::N,
                    columns: $v * $lanes::N,
                    delta_columns: $w * $lanes::N,
                    tokens: $n,
                    delta_tokens: MOST_TOGETHER,
                    steady_tokens: $p,
                    exp_relative: EXP_RELATIVE,
                    fused: $fused,
                },
                primitives: &PRIMITIVES,
                prepare,
                recur,
                read,
                multiply,
            };

            const ENTRIES: Entries = {
                // Strips that are equally wide share their functions.
                let more = $w > $v;
                Entries {
                    columns: $v * $lanes::N,
                    single: [single_one, single_wide],
                    single_delta: [single_delta_one, single_delta_wide, if more { single_delta_widest } else { single_delta_wide }],
                    plain: [plain_one, plain_wide],
                    delta: [delta_one, delta_wide, if more { delta_widest } else { delta_wide }],
                }
            };

            $crate::entry::entry_points! {
                $features, $isa,
                fn prepare(head: &Head, room: *mut f32, segment: &mut Segment) = prepared::prepare::<$lanes>;
                fn recur(strip: &Strip, segment: &Segment, columns: &Columns)
                    = |isa, strip, segment, columns| recurrence::recur::<$lanes>(isa, &ENTRIES, strip, segment, columns);
                fn single_one(strip: &Strip, segment: &Segment, columns: &Columns) = recurrence::single::<$lanes, 1, false>;
                fn single_wide(strip: &Strip, segment: &Segment, columns: &Columns) = recurrence::single::<$lanes, $v, false>;
                fn single_delta_one(strip: &Strip, segment: &Segment, columns: &Columns) = recurrence::single::<$lanes, 1, true>;
                fn single_delta_wide(strip: &Strip, segment: &Segment, columns: &Columns) = recurrence::single::<$lanes, $v, true>;
                fn single_delta_widest(strip: &Strip, segment: &Segment, columns: &Columns) = recurrence::single::<$lanes, $w, true>;
                fn plain_one(strip: &Strip, segment: &Segment, columns: &Columns) = recurrence::plain::<$lanes, $b, $r, $t, $p, 1>;
                fn plain_wide(strip: &Strip, segment: &Segment, columns: &Columns) = recurrence::plain::<$lanes, $b, $r, $t, $p, $v>;
                fn delta_one(strip: &Strip, segment: &Segment, columns: &Columns)
                    = recurrence::together::<$lanes, $b, $r, $t, $p, 1, true>;
                fn delta_wide(strip: &Strip, segment: &Segment, columns: &Columns)
                    = recurrence::together::<$lanes, $b, $r, $t, $p, $v, true>;
                fn delta_widest(strip: &Strip, segment: &Segment, columns: &Columns)
                    = recurrence::together::<$lanes, $b, $r, $t, $p, $w, true>;
                fn read(of: &Reading) = reading::read::<$lanes, $r, $v, $w>;
                fn multiply(
                    factors: &Factors, from: (*const f32, usize), to: (*mut f32, usize), dim: usize, width: usize
                ) = factor::multiply::<$lanes>;
            }
        }
    };
}

pub(crate) use linear;
