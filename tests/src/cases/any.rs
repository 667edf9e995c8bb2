//! Random cases.

use super::case::Case;
use super::params::{MaskParams, Params};
use elsa_core::attention::{Alignment, MaskKind, Window};
use elsa_core::dtype::DType;
use elsa_core::view::Layout;
use proptest::prelude::*;
use proptest::sample::select;

/// Any small problem, with every feature alone and together with others.
pub fn any_params() -> impl Strategy<Value = Params> {
    let sizes = (
        1usize..=3,
        select(vec![(1usize, 1usize), (2, 1), (2, 2), (3, 1), (4, 2), (6, 3)]),
        select(vec![0usize, 1, 2, 3, 5, 8, 13, 21, 34]),
        select(vec![0usize, 1, 2, 3, 7, 16, 33, 65, 90]),
        select(vec![1usize, 2, 3, 8, 16, 19]),
        select(vec![1usize, 2, 4, 8, 17]),
    );
    let memory = (
        select(vec![DType::F32, DType::F32, DType::F16, DType::Bf16]),
        select(vec![Layout::Bhnd, Layout::Bnhd, Layout::Bnc]),
        select(vec![0usize, 0, 3]),
        proptest::option::weighted(0.3, 0usize..=9),
        any::<bool>(),
        proptest::bool::weighted(0.1),
    );
    let scores = (
        proptest::option::weighted(0.3, select(vec![0.0f32, 0.05, 1.0, -0.7])),
        select(vec![None, None, Some(Alignment::TopLeft), Some(Alignment::BottomRight)]),
        (proptest::option::weighted(0.3, 0usize..=12), proptest::option::weighted(0.3, 0usize..=12)),
        proptest::option::weighted(0.3, select(vec![0.0f32, 0.5, 2.0, 30.0])),
        proptest::bool::weighted(0.3),
        select(vec![1.0f32, 1.0, 10.0]),
    );
    let mask = proptest::option::weighted(
        0.5,
        (
            select(vec![
                MaskKind::Bool,
                MaskKind::Bool,
                MaskKind::Additive(DType::F32),
                MaskKind::Additive(DType::F16),
                MaskKind::Additive(DType::Bf16),
            ]),
            1usize..=4,
            proptest::array::uniform4(any::<bool>()),
            proptest::option::weighted(0.3, 1usize..=9),
            select(vec![0.0f64, 0.2, 0.5, 0.9, 1.0]),
        ),
    );
    let packed = proptest::option::weighted(0.2, proptest::collection::vec((0usize..=9, 0usize..=12), 1..=4));
    (any::<u64>(), sizes, memory, scores, mask, packed).prop_map(
        |(seed, sizes, memory, scores, mask, packed)| {
            let (mut batch, (heads, kv_heads), queries, keys, d, dv) = sizes;
            let (dtype, layout, pad, mut past, mut present, mut shared_keys) = memory;
            let (scale, causal, (left, right), softcap, mut lengths, gain) = scores;
            let mut mask = mask;
            if packed.is_some() {
                (batch, past, present, shared_keys, lengths, mask) = (1, None, false, false, false, None);
            }
            let total = keys + past.unwrap_or(0);
            let mask = mask.map(|(kind, rank, broadcast, short, density)| {
                let last = short.map_or(total, |cut| total.saturating_sub(cut));
                let full = [batch, heads, queries, last];
                let dims = (4 - rank..4).map(|a| if broadcast[a] { 1 } else { full[a] }).collect();
                MaskParams { kind, dims, density }
            });
            // A mask over no keys at all has a last axis of at most one.
            let mask = mask.filter(|m| total > 0 || m.dims[m.dims.len() - 1] <= 1);
            Params {
                seed,
                dtype,
                layout,
                pad,
                batch,
                heads,
                kv_heads,
                queries,
                keys,
                past,
                present,
                d,
                dv,
                scale,
                causal,
                window: Window { left, right },
                softcap,
                mask,
                lengths,
                packed,
                shared_keys,
                gain,
            }
        },
    )
}

/// The case of [`any_params`].
pub fn any_case() -> impl Strategy<Value = Case> {
    any_params().prop_map(|params| params.build("random"))
}
