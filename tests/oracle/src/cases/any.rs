//! Random cases.

use super::case::Case;
use super::params::{BiasParams, MaskParams, Params};
use elsa_core::attention::{Alignment, MaskKind, Window, Windows};
use elsa_core::dtype::DType;
use elsa_core::view::Layout;
use proptest::prelude::*;
use proptest::sample::select;

/// Generates the parameters of any small problem, with every feature alone and combined with others.
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
    // Kinds of bias: 0 is none, 1 is dense, 2 is a table, which the windows index if the case has windows, and 3 is a
    // table with an explicit index.
    let bias = (
        select(vec![0, 0, 0, 1, 2, 3]),
        select(vec![DType::F32, DType::F32, DType::F16, DType::Bf16]),
        proptest::array::uniform4(any::<bool>()),
        select(vec![0.2f64, 0.9, 1.0]),
    );
    let windows = proptest::option::weighted(
        0.25,
        (
            select(vec![[1usize, 1], [2, 3], [3, 2], [4, 4], [1, 7], [7, 7]]),
            (1usize..=2, 1usize..=3),
            any::<[u8; 2]>(),
        ),
    );
    (any::<u64>(), sizes, memory, scores, mask, packed, bias, windows).prop_map(
        |(seed, sizes, memory, scores, mask, packed, bias, windows)| {
            let (mut batch, (heads, kv_heads), mut queries, mut keys, d, dv) = sizes;
            let (dtype, layout, pad, mut past, mut present, mut shared_keys) = memory;
            let (scale, mut causal, (mut left, mut right), softcap, mut lengths, gain) = scores;
            let (mut mask, mut packed) = (mask, packed);
            let windows = windows.map(|(size, across, shift)| {
                let picture = [size[0] * across.0, size[1] * across.1];
                let shift = [0, 1].map(|a| usize::from(shift[a]) % size[a]);
                Windows { picture, size, shift }
            });
            let mut repeated = 1;
            if let Some(windows) = &windows {
                (packed, past, present, lengths) = (None, None, false, false);
                (causal, left, right) = (None, None, None);
                (queries, keys) = (windows.tokens(), windows.tokens());
                repeated = batch.min(2);
                batch = repeated * windows.count();
            }
            if packed.is_some() {
                (batch, past, present, shared_keys, lengths, mask) = (1, None, false, false, false, None);
            }
            let total = keys + past.unwrap_or(0);
            let mask = mask.map(|(kind, rank, broadcast, short, density)| {
                let last = short.map_or(total, |cut| total.saturating_sub(cut));
                // All pictures share the masks of their windows.
                let full = [batch / repeated, heads, queries, last];
                let dims = (4 - rank..4).map(|a| if broadcast[a] { 1 } else { full[a] }).collect();
                MaskParams { kind, dims, density }
            });
            // A mask over zero keys has a last axis of at most one.
            let mask = mask.filter(|m| total > 0 || m.dims[m.dims.len() - 1] <= 1);
            let whole = mask.as_ref().is_none_or(|m| [1, total].contains(&m.dims[m.dims.len() - 1]));
            let (kind, dtype_of_bias, broadcast, density) = bias;
            let bias = match kind {
                _ if packed.is_some() || !whole || total == 0 => None,
                1 => {
                    let full = [batch / repeated, heads, queries, total];
                    let dims = (0..4).map(|a| if broadcast[a] { 1 } else { full[a] }).collect();
                    Some(BiasParams::Dense(MaskParams {
                        kind: MaskKind::Additive(dtype_of_bias),
                        dims,
                        density,
                    }))
                }
                2 if windows.is_some() => {
                    Some(BiasParams::Table { dtype: dtype_of_bias, entries: None, density })
                }
                2 | 3 => Some(BiasParams::Table { dtype: dtype_of_bias, entries: Some(5), density }),
                _ => None,
            };
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
                bias,
                windows,
                lengths,
                packed,
                shared_keys,
                gain,
            }
        },
    )
}

/// Generates cases from [`any_params`].
pub fn any_case() -> impl Strategy<Value = Case> {
    any_params().prop_map(|params| params.build("random"))
}
