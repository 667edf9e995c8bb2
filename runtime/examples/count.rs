//! Runs attention calls between markers, for counting instructions in an emulator: `cargo xtask count` builds this
//! program for aarch64, runs it and reads the counts.
//!
//! Arguments are shapes `heads,tokens,d`. With `heads/kv_heads` in place of `heads`, query heads share the heads of keys
//! and values. With `queries:keys` in place of `tokens`, the numbers of queries and keys differ. A shape may be followed
//! by the name of a problem or of a plan: `causal` (aligned to the last query and key), `windows` (as many sequences as
//! heads, three heads each, and a bias that the sequences share), `exact`, `budget` (an error budget that permits no
//! skips), `half` (an error budget that permits skipping every other block of 64 keys), `gate` (all tiles pass the norm
//! gate). Each shape is planned and bound. The bound plan runs once to touch all memory, and then twice more. Each of
//! the last two runs is between `hint #0x7e` and `hint #0x7f`. One line per shape contains the name of the kernel and the
//! share of skipped blocks. The output is checked against the f64 oracle, so that no wrong kernel is counted.

use elsa_core::attention::reference;
use elsa_core::attention::traversal::Schedule;
use elsa_core::attention::{Alignment, Inputs, MaskElements, MaskKind, MaskView, Outputs, Spec};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use elsa_runtime::{Engine, EngineOptions, PlanOptions};

type Failure = Box<dyn std::error::Error>;

/// Number of counted calls per shape.
const CALLS: usize = 2;
/// Maximum error of an output. A correct kernel's error on these data is far smaller, a wrong kernel's error is far
/// larger.
const TOLERANCE: f64 = 1e-5;
/// Error budget of the plans `budget` and `half`. It is above the total weight of the blocks that `half` may skip.
const BUDGET: f32 = 1e-5;
/// Number of keys per block.
const BLOCK: usize = 64;
/// Number of heads of each sequence of the problem `windows`.
const WINDOW_HEADS: usize = 3;
/// Score of the keys in every other block of the plan `half`. It is so low that the weights of these keys are within
/// the budget.
const LOW: f32 = -24.0;

#[cfg(target_arch = "aarch64")]
fn marked<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: the hints have no effect on any aarch64 processor, and preserve the stack and the flags. The compiler must
    // assume that they access memory, so it keeps the call between them.
    unsafe { core::arch::asm!("hint #0x7e", options(nostack, preserves_flags)) };
    let result = call();
    // SAFETY: as above.
    unsafe { core::arch::asm!("hint #0x7f", options(nostack, preserves_flags)) };
    result
}

#[cfg(not(target_arch = "aarch64"))]
fn marked<T>(_: impl FnOnce() -> T) -> T {
    eprintln!("the markers are instructions of aarch64: build for it, or run `cargo xtask count`");
    std::process::exit(2)
}

fn main() -> Result<(), Failure> {
    // One thread executes the call, so all of its instructions are between the markers.
    let engine = Engine::new(&EngineOptions::default().threads(1))?;
    for text in std::env::args().skip(1) {
        let refused = || {
            format!(
                "{text}: allowed: heads[/kv_heads],[queries:]keys,d, each at least 1, and causal, windows (heads in \
                 threes), exact, budget, half or gate"
            )
        };
        let words: Vec<&str> = text.split(',').collect();
        let (shape, name) = words.split_at(words.len().min(3));
        let plain = PlanOptions::default();
        let (scale, options) = match name {
            [] | ["exact" | "causal" | "windows"] => (None, plain),
            ["budget"] => (None, plain.error_budget(BUDGET)),
            ["half"] => (Some(1.0), plain.error_budget(BUDGET)),
            ["gate"] => (None, plain.schedule(Schedule { gate: true, ..Schedule::EXACT })),
            _ => return Err(refused().into()),
        };
        let &[heads, tokens, d] = shape else { return Err(refused().into()) };
        let (h, kv_heads) = heads.split_once('/').unwrap_or((heads, heads));
        let (queries, n) = tokens.split_once(':').unwrap_or((tokens, tokens));
        let numbers: Result<Vec<usize>, _> =
            [h, kv_heads, queries, n, d].into_iter().map(str::parse).collect();
        let Ok([h, kv_heads, queries, n, d]) = <[usize; 5]>::try_from(numbers.map_err(|_| refused())?) else {
            return Err(refused().into());
        };
        let (causal, windows) = (name == ["causal"], name == ["windows"]);
        let sequences = if windows { h / WINDOW_HEADS } else { 1 };
        if sequences == 0 || h % sequences != 0 || kv_heads % sequences != 0 {
            return Err(refused().into());
        }
        let view = View::dense("shape", Layout::Bhnd, &[sequences, h / sequences, queries, d], None)?;
        let key = View::dense("shape", Layout::Bhnd, &[sequences, kv_heads / sequences, n, d], None)?;
        let kind = MaskKind::Additive(DType::F32);
        let mask = MaskView::dense(kind, &[h / sequences, queries, n])?;
        let problem = Spec::new(DType::F32, view, key, key, view)
            .scale(scale)
            .causal(causal.then_some(Alignment::BottomRight))
            .mask(windows.then_some(mask))
            .check()?;
        let wave =
            |view: &View, rate: f32| (0..view.count()).map(|i| (i as f32 * rate).sin()).collect::<Vec<f32>>();
        let (mut q, mut k, v) = (wave(&view, 0.37), wave(&key, 0.61), wave(&key, 0.89));
        if scale.is_some() {
            // The first dim of a key sets its score.
            q.iter_mut().step_by(d).for_each(|q| *q = 1.0);
            q.iter_mut().enumerate().filter(|(i, _)| i % d > 0).for_each(|(_, q)| *q *= 0.01);
            let low = |token: usize| if token % n / BLOCK % 2 == 1 { LOW } else { 0.0 };
            k.iter_mut().step_by(d).enumerate().for_each(|(token, k)| *k = low(token));
        }
        let added: Vec<f32> = (0..mask.extent()).map(|i| (i as f32 * 0.23).cos()).collect();
        let inputs = || {
            let mut inputs = Inputs::new(Elements::F32(&q), Elements::F32(&k), Elements::F32(&v));
            inputs.mask = windows.then_some(MaskElements::Additive(Elements::F32(&added)));
            inputs
        };
        let mut y = vec![0.0; view.count()];
        let plan = engine.plan(&problem, &options)?;
        let mut workspace = plan.workspace()?;
        {
            let mut bound = plan.bind(inputs(), Outputs::new(ElementsMut::F32(&mut y)), &mut workspace)?;
            bound.run()?;
            for _ in 0..CALLS {
                marked(|| bound.run())?;
            }
        }
        // One row of each head is enough to detect a wrong kernel.
        let mut truth = vec![0.0f64; d];
        for head in 0..h {
            let row = (head * 7 + queries / 2) % queries;
            let of_sequence = h / sequences;
            reference::row(&problem, &inputs(), head / of_sequence, head % of_sequence, row, &mut truth);
            for (a, b) in y[(head * queries + row) * d..].iter().zip(&truth) {
                let error = (f64::from(*a) - b).abs();
                if error.is_nan() || error > TOLERANCE {
                    return Err(format!("{text}: head {head}, row {row}: {a}, but {b} in f64").into());
                }
            }
        }
        let left_out = workspace.traversed().map_or(0.0, |traversed| traversed.report.block_sparsity());
        println!("{text} {} {left_out:.2}", plan.kernel());
    }
    Ok(())
}
