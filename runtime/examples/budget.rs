//! Measures how much faster plans with an error budget run than exact plans. There are five cases. Without a mask,
//! either no block of keys may be skipped or every other block may be skipped. With an additive mask that falls with
//! the distance between query and key, attention is either causal or not. With another additive mask, no block may be
//! skipped.
//!
//! Also measures the norm gate. Plans whose tiles pass the gate, without and with an additive mask, are compared with
//! exact plans. A plan with both budget and gate is compared with a plan that has only the budget.
//!
//! `cargo run --release -p elsa-runtime --example budget [heads,tokens,d [rounds [back end]]]`. Runs use one thread, on
//! the named back end, or on every back end of this machine, one after another. Each case compares a first plan with a
//! second plan. A round times one call of each plan, in alternating order. The time is the thread's processor time,
//! which other programs hardly disturb, or the device's time on a GPU. A line contains the median of the ratios of the
//! two times (above one if the second plan is faster), the quartiles of these ratios, the milliseconds of the first
//! plan's call, the share of skipped blocks, the share of blocks skipped before their first product, and the share of
//! rows that passed the gate. A GPU has no gate.

use elsa_core::attention::traversal::Schedule;
use elsa_core::attention::{Alignment, Inputs, MaskElements, MaskKind, MaskView, Outputs, Spec};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use elsa_runtime::{Backend, Engine, EngineOptions, Fallback, Plan, PlanOptions, Workspace, backends};
use rustix::time::{ClockId, clock_gettime};

type Failure = Box<dyn std::error::Error>;

const BUDGET: f32 = 1e-3;
/// Number of calls that a GPU runs back to back per measurement.
const CALLS: usize = 8;
/// Number of keys per block.
const BLOCK: usize = 64;

/// Returns the processor time of this thread in seconds.
fn now() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// Runs a call and returns its duration in seconds: processor time, or device time on a GPU.
fn time(
    plan: &Plan,
    workspace: &mut Workspace,
    [q, k, v]: [&[f32]; 3],
    mask: Option<&[f32]>,
    y: &mut [f32],
) -> Result<f64, Failure> {
    let mut inputs = Inputs::new(Elements::F32(q), Elements::F32(k), Elements::F32(v));
    inputs.mask = mask.map(|mask| MaskElements::Additive(Elements::F32(mask)));
    let mut bound = plan.bind(inputs, Outputs::new(ElementsMut::F32(y)), workspace)?;
    if plan.backend() == Backend::Cuda {
        let (_, spent) = bound.time_on_device(CALLS)?;
        return Ok(spent.map_or(f64::NAN, |spent| spent.as_secs_f64()));
    }
    let begin = now();
    bound.run()?;
    Ok(now() - begin)
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let text = args.next().unwrap_or_else(|| "1,4096,64".to_owned());
    let rounds: usize = args.next().map_or(Ok(15), |text| text.parse())?;
    let only = args.next();
    let numbers: Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
    let [heads, tokens, d] = <[usize; 3]>::try_from(numbers?).map_err(|_| "allowed: heads,tokens,d")?;
    let view = View::dense("shape", Layout::Bhnd, &[heads, tokens, d], None)?;
    let spec = Spec::new(DType::F32, view, view, view, view).scale(1.0);
    let problem = spec.check()?;
    let linear = MaskView::dense(MaskKind::Additive(DType::F32), &[tokens, tokens])?;
    let linear = spec.mask(linear);
    let causal = linear.causal(Alignment::TopLeft).check()?;
    let linear = linear.check()?;
    let wave = |i: usize| (i as f32 * 0.37).sin() * 0.1;
    let falls: Vec<f32> =
        (0..tokens * tokens).map(|i| -0.5 * (i / tokens).abs_diff(i % tokens) as f32).collect();
    let waves: Vec<f32> = (0..tokens * tokens).map(wave).collect();
    let q: Vec<f32> = (0..view.count()).map(|i| if i % d == 0 { 1.0 } else { wave(i) }).collect();
    let v: Vec<f32> = (0..view.count()).map(wave).collect();
    let mut y = vec![0.0; view.count()];
    println!("exact / budget {BUDGET:e}, {text}, {rounds} rounds");
    for backend in backends()
        .into_iter()
        .filter(|b| b.present)
        .map(|b| b.backend)
        .filter(|b| only.as_ref().is_none_or(|name| b.name() == name))
    {
        let (threads, fallback) = (Some(1), Fallback::Fail);
        let options = EngineOptions::default().backend(backend).threads(threads).fallback(fallback);
        let engine = Engine::new(&options)?;
        let plain = PlanOptions::default();
        let gate = Schedule { gate: true, ..Schedule::EXACT };
        let budget = plain.error_budget(BUDGET);
        let gate = |options: PlanOptions| Some(options.schedule(gate)).filter(|_| backend != Backend::Cuda);
        let (falls, waves) = (Some(&falls[..]), Some(&waves[..]));
        for (name, low, problem, mask, one, other) in [
            ("nothing may go", 0.0f32, &problem, None, plain, Some(budget)),
            ("every other block may go", -12.0, &problem, None, plain, Some(budget)),
            ("a mask that falls", 0.0, &linear, falls, plain, Some(budget)),
            ("a causal mask that falls", 0.0, &causal, falls, plain, Some(budget)),
            ("a mask, nothing may go", 0.0, &linear, waves, plain, Some(budget)),
            ("the norm gate", 0.0, &problem, None, plain, gate(plain)),
            ("the norm gate, a mask", 0.0, &linear, waves, plain, gate(plain)),
            ("budget, the norm gate", 0.0, &problem, None, budget, gate(budget)),
        ] {
            let Some(other) = other else { continue };
            let [exact, within] = [engine.plan(problem, &one)?, engine.plan(problem, &other)?];
            let [mut one, mut other] = [exact.workspace()?, within.workspace()?];
            // The first element of a key determines the level of the scores of its block.
            let level = |i: usize| if i / d / BLOCK % 2 == 1 { low } else { 0.0 };
            let k: Vec<f32> =
                (0..view.count()).map(|i| if i % d == 0 { level(i) } else { wave(i + 7) }).collect();
            let tensors = [&q[..], &k[..], &v[..]];
            let mut ratios = Vec::with_capacity(rounds);
            let mut spent = Vec::with_capacity(rounds);
            for round in 0..=rounds {
                let (a, b) = if round % 2 == 0 {
                    let a = time(&exact, &mut one, tensors, mask, &mut y)?;
                    (a, time(&within, &mut other, tensors, mask, &mut y)?)
                } else {
                    let b = time(&within, &mut other, tensors, mask, &mut y)?;
                    (time(&exact, &mut one, tensors, mask, &mut y)?, b)
                };
                // Round 0 is the warm-up and does not count.
                if round > 0 {
                    ratios.push(a / b);
                    spent.push(a * 1e3);
                }
            }
            ratios.sort_by(f64::total_cmp);
            spent.sort_by(f64::total_cmp);
            let at = |part: usize| ratios.get((ratios.len() * part / 4).min(ratios.len() - 1)).copied();
            let [low, median, high] = [1, 2, 3].map(|part| at(part).unwrap_or(f64::NAN));
            let report = other.traversed()?.report;
            let (sparsity, rows) = (report.block_sparsity(), report.accepted + report.recomputed);
            println!(
                "{:8} {name:25} {median:.3} ({low:.3} to {high:.3})  {:.3} ms  {sparsity:.3} left out, {:.3} unseen, {:.3} near zero",
                backend.name(),
                spent.get(spent.len() / 2).copied().unwrap_or(f64::NAN),
                report.unseen_share(),
                report.gated as f64 / rows as f64
            );
        }
    }
    Ok(())
}
