//! Checks the layout of the workspace: regions do not overlap and meet the requirements of the kernels, for every
//! kernel of the registry, even those that this machine cannot execute.

use elsa_core::attention::plan::{CpuChoice, KeyLayout, Method, Options, WorkspaceLayout, choose};
use elsa_core::attention::traversal::{RowRoom, Schedule, TraversalReport, scratch_len};
use elsa_core::plan::ChooseError;
use elsa_core::profile::DeviceProfile;
use elsa_core::room::Span;
use elsa_kernels::registry::ATTENTION;
use elsa_oracle::cases::{Case, Params, hard_cases};

/// Returns the regions of a layout in order, each with its name and the smallest number of f32 values that it must contain. The
/// regions before the score matrices of [`Method::Math`] belong to the first worker, its first tile and its first state. All
/// workers share the remaining regions.
fn regions(choice: &CpuChoice, layout: &WorkspaceLayout) -> [(&'static str, Span, usize); 21] {
    let (w, block) = (choice.width(), choice.block);
    let when = |wanted: bool, n: usize| if wanted { n } else { 0 };
    let panels = matches!(choice.kernel.keys, KeyLayout::Panels(_));
    let math = choice.method == Method::Math;
    let [queries, keys, heads] = choice.extent;
    let tiles = heads * choice.tiling(queries).count();
    let tiles_of_a_task = if math { 1 } else { choice.group };
    let [d, dv] = [choice.head_dim, choice.value_dim];
    let words = when(choice.keeps.any(), tiles_of_a_task) + when(choice.row_mask, 1);
    let staged = block.next_multiple_of(choice.kernel.tile_keys) * d;
    let inside = |span: Span| Span { start: layout.tiles.start + span.start, len: span.len };
    [
        // Kernels require this size for the weights of a tile.
        ("weights", layout.weights, (block + 16) * w),
        ("pad", layout.pad, choice.kernel.tile_keys * d),
        ("keys", layout.keys, when(choice.stage_keys, staged)),
        ("values", layout.values, when(choice.stage_values || choice.kernel.raises, block * dv)),
        (
            "rows",
            layout.rows,
            when(choice.convert || (choice.stage_keys && panels), block.max(w) * d.max(dv)),
        ),
        ("bias", layout.bias, when(choice.masked, block * w)),
        ("second bias", layout.second_bias, when(choice.adds_two, block * w)),
        (
            "kept bias",
            layout.kept_bias,
            when(choice.keeps.any(), tiles_of_a_task * keys.next_multiple_of(block) * w),
        ),
        ("kept", layout.kept_header, when(choice.keeps_something(), 16 + words * keys.div_ceil(block))),
        ("kept row", layout.kept_row, when(choice.row_mask, keys.next_multiple_of(block))),
        ("entries", layout.entries, choice.entries + choice.lines + when(choice.lines > 0, w)),
        ("sides", layout.sides, when(choice.divided > 0, choice.divided + w)),
        // There are eight measurements of the tensors, and one for each channel of the values.
        ("measured", layout.measured, when(choice.certify, 8 + dv)),
        // The region contains the scratch of a tile and the scratch of the exact run.
        (
            "scratch",
            layout.scratch,
            when(choice.traverses(), (d + block + dv) * w + 2 * d + dv + choice.scratch),
        ),
        ("scratch rows", layout.scratch_rows, when(choice.traverses(), w * size_of::<RowRoom>() / 4)),
        ("counts", layout.counts, when(!choice.schedule.is_exact(), size_of::<TraversalReport>() / 4)),
        ("query", inside(layout.tile.query), d * w),
        ("states", inside(layout.tile.state), (2 + dv + usize::from(choice.odds().is_some())) * w),
        ("scores", layout.scores, when(math, tiles * keys.next_multiple_of(16) * w)),
        ("all states", layout.all_tiles, when(math, tiles * (2 + dv) * w)),
        ("left out", layout.left_out, 2 * choice.recorded),
    ]
}

fn check(case: &Case, choice: &CpuChoice) {
    let layout = WorkspaceLayout::of(choice).unwrap();
    let mut end = 0;
    for (region, span, needed) in regions(choice, &layout) {
        if region == "scores" {
            assert!(end <= layout.worker_stride, "{case:?}: tiles leave the worker's part");
            end = choice.workers * layout.worker_stride;
        }
        assert!(span.len >= needed, "{case:?} {choice:?}: {region} has {}", span.len);
        if span.len > 0 {
            assert!(span.start >= end && span.start % 16 == 0, "{case:?}: {region} overlaps, or no line");
            end = span.start + span.len;
        }
    }
    assert!(end <= layout.total && layout.bytes() > layout.total * 4, "{case:?}: total");
    let states = layout.tile.state.start + choice.levels() * layout.tile.state.len;
    assert!(states <= layout.tile_stride, "{case:?}: states leave their tile");
    let totals = layout.tile.totals;
    if choice.odds().is_some() {
        let end = totals.start + 4 * choice.width();
        assert!(totals.start >= states && end <= layout.tile_stride, "{case:?}: totals");
    }
    let tiles = if choice.method == Method::Math { 1 } else { choice.group };
    assert!(layout.tiles.start + tiles * layout.tile_stride <= layout.worker_stride, "{case:?}: tiles");
}

#[test]
fn parts_lie_apart_and_are_large_enough() {
    let device = DeviceProfile::modest();
    let mut seen = 0;
    for kernel in ATTENTION {
        for case in hard_cases() {
            let problem = case.problem();
            for method in [Method::Elsa, Method::Math] {
                for (block, workers) in [(64, 1), (128, 3), (256, 7)] {
                    let certify = workers == 3;
                    let options =
                        Options { method, block, workers, all_workers: true, certify, ..Options::default() };
                    let schedule = match (method, workers) {
                        (Method::Elsa, 1) => Schedule::within(0.1),
                        (Method::Elsa, 3) => Schedule::VFA,
                        _ => Schedule::EXACT,
                    };
                    let options = Options { schedule, ..options };
                    match choose(&problem, &device, [&kernel.spec], &options) {
                        // Method math has room for the tiles of one sequence, and therefore refuses packed sequences.
                        Ok(choice) => {
                            assert!(method == Method::Elsa || case.spec.packed.is_none(), "{case:?}");
                            check(&case, &choice);
                            let rows = if schedule.is_exact() { 0 } else { problem.rows() };
                            assert_eq!(choice.recorded, rows, "{case:?}");
                            if let Some(needed) = scratch_len(&problem, choice.decides()) {
                                let scratch = WorkspaceLayout::of(&choice).unwrap().scratch;
                                assert!(!choice.traverses() || scratch.len >= needed, "{case:?}");
                            }
                        }
                        Err(ChooseError::NoKernel) => {
                            let many = case.spec.packed.is_some()
                                || case.spec.query.tokens() > kernel.spec.most_queries;
                            assert!(many && kernel.spec.most_queries < usize::MAX, "{case:?}");
                        }
                        Err(e) => assert!(e == ChooseError::Packed && case.spec.packed.is_some(), "{e}"),
                    }
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 5000);
}

/// Checks that the chooser takes the first kernel that supports the number of queries. A packed problem never counts as a
/// problem with few queries.
#[test]
fn the_kernel_follows_the_queries() {
    let device = DeviceProfile::modest();
    let scalar = || ATTENTION.iter().map(|k| &k.spec).filter(|s| s.set.name() == "scalar");
    let few = scalar().map(|s| s.most_queries).min().unwrap();
    assert!(few < 8 && scalar().count() == 2);
    for queries in 0..8 {
        let case = Params::plain(queries, 20, 8, 8).build("plain");
        let choice = choose(&case.problem(), &device, scalar(), &Options::default()).unwrap();
        assert_eq!(choice.kernel.most_queries == few, queries <= few, "{queries}");
        let packed =
            Params { packed: Some(vec![(queries, 20)]), ..Params::plain(queries, 20, 8, 8) }.build("packed");
        let choice = choose(&packed.problem(), &device, scalar(), &Options::default()).unwrap();
        assert_eq!(choice.kernel.most_queries, usize::MAX);
    }
}

/// Checks that a smaller budget first reduces the number of tiles that share a key block, then the number of workers,
/// then the width of tiles.
#[test]
fn a_budget_takes_the_cheapest_first() {
    let device = DeviceProfile::modest();
    let kernel = ATTENTION.iter().find(|k| k.spec.vectors > 1 && k.spec.group > 1).unwrap();
    let problem =
        Params { heads: 4, kv_heads: 4, ..Params::plain(700, 700, 64, 64) }.build("budget").problem();
    let options = Options { workers: 3, all_workers: true, ..Options::default() };
    let mut budget = None;
    let mut before: Option<CpuChoice> = None;
    let mut kinds = [0; 3];
    loop {
        match choose(&problem, &device, [&kernel.spec], &Options { budget, ..options }) {
            Ok(choice) => {
                let bytes = WorkspaceLayout::of(&choice).unwrap().bytes();
                assert!(budget.is_none_or(|b| bytes <= b));
                if let Some(before) = before {
                    let fewer = [
                        choice.group < before.group,
                        choice.workers < before.workers,
                        choice.vectors < before.vectors,
                    ];
                    assert_eq!(fewer.iter().filter(|x| **x).count(), 1, "{choice:?} after {before:?}");
                    (0..3).for_each(|i| kinds[i] += usize::from(fewer[i]));
                    assert!(!fewer[1] || choice.group == 1);
                    assert!(!fewer[2] || choice.workers == 1);
                }
                before = Some(choice);
                budget = Some(bytes - 1);
            }
            Err(ChooseError::Budget { needed, budget: found }) => {
                assert_eq!((needed, Some(found)), (found + 1, budget));
                break;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(kinds.iter().all(|n| *n > 0), "{kinds:?}");
}
