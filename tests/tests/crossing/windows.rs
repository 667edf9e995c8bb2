//! Tests windows of pictures on every back end. Every entry of a table, the shift, the position of a window and the
//! mask of each window change the output. A picture has the same bits alone and among other pictures, and memory does
//! not grow with the number of windows.

use elsa_core::attention::{MaskKind, Windows};
use elsa_core::dtype::DType;
use elsa_oracle::cases::{BiasParams, Buffers, Case, MaskData, MaskParams, Params};
use elsa_oracle::engines;
use elsa_runtime::{Backend, Engine, PlanOptions};

const TABLE: BiasParams = BiasParams::Table { dtype: DType::F32, entries: None, density: 1.0 };

fn run(engine: &Engine, case: &Case) -> Buffers {
    case.run_on(engine, &PlanOptions::default().all_workers(true))
}

/// Returns the indices of the rows, in `[batch, heads, queries]`, whose log-sum-exps differ.
fn changed(a: &Buffers, b: &Buffers) -> Vec<usize> {
    (0..a.lse.len()).filter(|at| a.lse[*at].to_bits() != b.lse[*at].to_bits()).collect()
}

fn case(windows: Windows, pictures: usize) -> Case {
    let p = Params {
        heads: 2,
        kv_heads: 2,
        d: 32,
        dv: 32,
        bias: Some(TABLE),
        ..Params::windowed(windows, pictures)
    };
    let (n, of) = (windows.tokens(), windows.count());
    let mask = MaskParams { kind: MaskKind::Bool, dims: vec![of, 1, n, n], density: 0.9 };
    Params { mask: Some(mask), ..p }.build("windows")
}

#[test]
fn every_entry_the_shift_and_the_place_of_a_window_matter() {
    let windows = Windows { picture: [6, 9], size: [3, 3], shift: [1, 2] };
    let base = case(windows, 2);
    let (n, of, rows) = (windows.tokens(), windows.count(), base.problem().rows());
    for engine in engines(2) {
        let before = run(&engine, &base);
        for entry in 0..windows.entries() {
            for head in 0..2 {
                let mut other = base.clone();
                other.bias.as_mut().unwrap().set(entry * 2 + head, 20.0);
                let attends = |row: usize| {
                    let (b, h, i) = (row / (2 * n), row / n % 2, row % n);
                    let MaskData::Bool(mask) = base.mask.as_ref().unwrap() else { unreachable!() };
                    let sees = |j| windows.attends(b, i, j) && mask[(b % of * n + i) * n + j] != 0;
                    h == head && (0..n).any(|j| windows.entry(i, j) == entry && sees(j))
                };
                let wanted: Vec<usize> = (0..rows).filter(|row| attends(*row)).collect();
                assert_eq!(
                    changed(&before, &run(&engine, &other)),
                    wanted,
                    "{}: entry {entry}",
                    engine.kernel()
                );
            }
        }
        for (picture, shift) in [([6, 9], [1, 1]), ([6, 9], [0, 2]), ([6, 9], [0, 0]), ([9, 6], [1, 2])] {
            let mut other = base.clone();
            other.spec.windows = Some(Windows { picture, shift, ..windows });
            let differ = changed(&before, &run(&engine, &other));
            assert!(!differ.is_empty() && differ.len() < rows, "{}: {picture:?} {shift:?}", engine.kernel());
        }
        // One element of one window's mask changes, in both pictures.
        for window in 0..of {
            let mut other = base.clone();
            let MaskData::Bool(mask) = other.mask.as_mut().unwrap() else { unreachable!() };
            let at = window * n * n + 4 * n + 4;
            mask[at] = 1 - mask[at].min(1);
            let wanted: Vec<usize> =
                (0..rows).filter(|row| row % n == 4 && row / (2 * n) % of == window).collect();
            assert_eq!(changed(&before, &run(&engine, &other)), wanted, "{}: mask {window}", engine.kernel());
        }
    }
}

#[test]
fn a_picture_alone_has_the_bits_that_it_has_among_others() {
    for size in [[7, 7], [8, 8]] {
        let windows = Windows { picture: size.map(|side| side * 2), size, shift: [3, 3] };
        let (together, mut alone) = (case(windows, 2), case(windows, 1));
        let half = alone.q.len();
        for i in 0..half {
            alone.q.set(i, together.q.get(half + i));
            alone.k.set(i, together.k.get(half + i));
            alone.v.set(i, together.v.get(half + i));
        }
        (alone.mask, alone.bias) = (together.mask.clone(), together.bias.clone());
        for threads in [1, 3] {
            for engine in engines(threads) {
                let (a, b) = (run(&engine, &alone), run(&engine, &together));
                let rows = a.lse.len();
                assert!(
                    (0..rows).all(|at| a.lse[at].to_bits() == b.lse[rows + at].to_bits()),
                    "{}",
                    engine.kernel()
                );
                let same = (0..half).all(|i| a.output.get(i).to_bits() == b.output.get(half + i).to_bits());
                assert!(same, "{}: {size:?}", engine.kernel());
            }
        }
    }
}

/// Checks that a workspace contains one table, and buffers for one window per worker, for any number of pictures.
#[test]
fn memory_does_not_grow_with_windows() {
    for engine in engines(1).into_iter().filter(|engine| engine.backend() != Backend::Cuda) {
        for side in [7, 16] {
            let bytes = |pictures: usize| {
                let windows = Windows { picture: [side * 4; 2], size: [side; 2], shift: [side / 2; 2] };
                let case = case(windows, pictures);
                let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
                (plan.workspace_bytes(), windows.count() * windows.tokens() * windows.tokens() * 4)
            };
            let ((few, scores), (many, _)) = (bytes(1), bytes(4));
            // The table of sequences has one entry for each sequence.
            let lists = 3 * 16 * 128;
            assert!(many <= few + lists, "{}: {few} bytes for a picture, {many} for 4", engine.kernel());
            assert!(few < scores / 2 + 300_000, "{}: {few} bytes, scores {scores}", engine.kernel());
        }
    }
}
