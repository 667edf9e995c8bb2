//! Linear attention by this library compared with its peers on the CPU: ONNX Runtime's `LinearAttention`, ggml's
//! `GATED_DELTA_NET`, and PyTorch.
//!
//! `ELSA_PEERS_GGML` names the folder of ggml's libraries. All libraries compute with the same numbers in the same
//! memory layout, `[batch, tokens, heads, d]`, and write the last states in addition to the output. Every output,
//! including those of the peers, is compared with the recurrence in f64. An output of this library that is too far off
//! ends the run.

use crate::account::{Account, rounds};
use crate::outcome::{Outcome, conditions, each};
use crate::pictures::Pictures;
use crate::process::{Peers, Prepared, own_slice};
use crate::request::{Cell, Common, Failure, Linear};
use elsa_cli::random::Random;
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::linear::{Form, Inputs, Outputs, Problem, Spec};
use elsa_core::view::{Layout, View};
use elsa_runtime::{Engine, LinearPlanOptions};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Largest relative L2 error of a correct output: far above the errors of correct kernels on unit keys, and far below
/// the errors of wrong kernels.
const WRONG: f64 = 1e-5;
/// Default number of rounds.
const ROUNDS: usize = 15;
/// Number of f32 values in a cache line.
const LINE: usize = 16;

/// Tensors of a problem, `[tokens, heads, …]`.
struct Data {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    /// Logarithms of the gates; empty if the rule has no gates.
    decay: Vec<f32>,
    /// Rates; empty if the rule has no rates.
    beta: Vec<f32>,
}

impl Data {
    /// Draws unit queries and keys, normal values, gates whose median is exp(−0.067), and rates between 0 and 1.
    fn random(cell: &Cell) -> Data {
        let mut random = Random::new(1);
        let rows = cell.tokens * cell.heads;
        let mut normals = |count: usize| -> Vec<f32> { (0..count).map(|_| random.normal() as f32).collect() };
        let unit = |mut x: Vec<f32>| {
            for row in x.chunks_mut(cell.dim) {
                let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
                row.iter_mut().for_each(|x| *x /= norm);
            }
            x
        };
        let (query, key, value) =
            (unit(normals(rows * cell.dim)), unit(normals(rows * cell.dim)), normals(rows * cell.dim));
        let gates = if cell.rule.is_gated() { rows * if cell.per_dim { cell.dim } else { 1 } } else { 0 };
        let rates = if cell.rule.is_delta() { rows } else { 0 };
        let decay = normals(gates).into_iter().map(|x| -0.1 * x.abs()).collect();
        let beta = normals(rates).into_iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect();
        Data { query, key, value, decay, beta }
    }

    /// Writes the tensors for `linear.py`.
    fn write(&self, dir: &Path) -> std::io::Result<()> {
        let Data { query, key, value, decay, beta } = self;
        for (name, x) in [("q", query), ("k", key), ("v", value), ("decay", decay), ("beta", beta)] {
            write(dir, name, x)?;
        }
        Ok(())
    }

    fn inputs(&self) -> Inputs<'_> {
        let Data { query, key, value, decay, beta } = self;
        let mut inputs = Inputs::new(Elements::F32(query), Elements::F32(key), Elements::F32(value));
        inputs.decay = (!decay.is_empty()).then_some(Elements::F32(decay));
        inputs.beta = (!beta.is_empty()).then_some(Elements::F32(beta));
        inputs
    }
}

fn write(dir: &Path, name: &str, x: &[f32]) -> std::io::Result<()> {
    std::fs::write(dir.join(name), x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
}

fn problem(cell: &Cell) -> Result<Problem, Failure> {
    let Cell { rule, heads, tokens, dim, per_dim } = *cell;
    let view = |name, last| View::dense(name, Layout::Bnhd, &[1, tokens, heads, last], None);
    let mut spec =
        Spec::new(DType::F32, view("q", dim)?, view("k", dim)?, view("v", dim)?, view("out", dim)?);
    spec.rule = rule;
    if rule.is_gated() {
        spec.decay = Some(view("decay", if per_dim { dim } else { 1 })?);
    }
    if rule.is_delta() {
        spec.beta = Some(view("beta", 1)?);
    }
    spec.present_state = Some(View::dense("present_state", Layout::Bhnd, &[1, heads, dim, dim], None)?);
    Ok(spec.check()?)
}

fn measure(
    engine: &Engine,
    peers: &mut Peers,
    (common, request): (&Common, &Linear),
    dir: &Path,
    cell: &Cell,
) -> Result<Outcome, Failure> {
    let problem = problem(cell)?;
    let data = Data::random(cell);
    data.write(dir)?;
    let prepared: Prepared = peers.ask(&json!({
        "rule": cell.rule.name(), "per_dim": cell.per_dim, "sizes": [cell.heads, cell.tokens, cell.dim],
        "threads": common.threads, "dir": dir,
    }))?;

    let options = LinearPlanOptions::default().form(request.form).chunk(request.chunk);
    let plan = engine.linear_plan(&problem, &options)?;
    let mut workspace = plan.workspace()?;
    let mut y = vec![0.0; cell.tokens * cell.heads * cell.dim];
    // The state begins at a cache line, as ONNX Runtime's memory does.
    let count = cell.heads * cell.dim * cell.dim;
    let mut room = vec![0.0f32; count + LINE];
    let first = room.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
    let state = &mut room[first..first + count];
    let mut outputs = Outputs::new(ElementsMut::F32(&mut y));
    outputs.present_state = Some(&mut *state);
    let mut bound = plan.bind(data.inputs(), outputs, &mut workspace)?;

    let ran = plan.choice().map_or_else(String::new, |choice| match choice.form {
        Form::Recurrent => choice.form.name().to_owned(),
        form => format!("{} {}", form.name(), choice.chunk),
    });
    let jobs = prepared.jobs.clone();
    let mut outcome = Outcome::new(ran, prepared);
    let work = (cell.tokens * cell.heads) as f64;
    let turns: Vec<_> = (0..=jobs.len()).map(|job| vec![job]).collect();
    let slice = |job: usize| match jobs.get(job) {
        Some(name) => peers.slice(name, common.slice()),
        None => own_slice(&mut || Ok(bound.run().map(|_| ())?), common.threads, common.slice()),
    };
    outcome.tried = rounds(common.rounds.unwrap_or(ROUNDS), &turns, slice, |job, slice| {
        outcome.settle = outcome.settle.max(slice.settle);
        let account = outcome.others.get_mut(job).map_or(&mut outcome.own, |(_, account)| account);
        account.add(work, &slice);
    })?;
    write(dir, "y", &y)?;
    let errors: BTreeMap<String, f64> = peers.ask(&json!({ "check": dir.join("y") }))?;
    outcome.judge(&errors, WRONG);
    match outcome.own.error {
        Some(error) if error <= WRONG => Ok(outcome),
        error => Err(format!("{cell}: relative L2 error {error:?} against f64; allowed: {WRONG:e}").into()),
    }
}

/// Converts the quartiles of the rates to quartiles of the nanoseconds per token and head.
fn nanoseconds(account: &Account) -> [f64; 3] {
    let [low, middle, high] = account.rate();
    [1.0 / high, 1.0 / middle, 1.0 / low]
}

fn print(common: &Common, cell: &Cell, outcome: &Outcome) {
    let Outcome { ran: form, own, others, tried, .. } = outcome;
    let [low, middle, high] = nanoseconds(own);
    let error = own.error.unwrap_or(f64::NAN);
    let ratio = |[low, middle, high]: [f64; 3]| format!("{middle:.2} ({low:.2}–{high:.2})");
    let columns = ["onnxruntime", "ggml", "torch"].map(|library| {
        outcome.best_of(library).map_or(["–".to_owned(), "–".to_owned()], |(_, account)| {
            [format!("{:.0}", nanoseconds(account)[1]), ratio(own.over(account))]
        })
    });
    let [[onnxruntime, to_onnxruntime], [ggml, to_ggml], [torch, to_torch]] = columns;
    if common.json {
        let others: Map<String, Value> = others
            .iter()
            .map(|(name, account)| {
                let value = json!({ "ns": nanoseconds(account), "ratio": own.over(account),
                        "rel_l2": account.error, "calls": account.calls });
                (name.clone(), value)
            })
            .collect();
        let line = json!({ "what": "linear-peers", "rule": cell.rule.name(), "per_dim": cell.per_dim,
                "heads": cell.heads, "tokens": cell.tokens, "d": cell.dim, "form": form,
                "threads": common.threads, "cpu": elsa_cli::machine::cpu_model(), "rounds": own.rates.len(),
                "rounds_tried": tried, "slice_ms": common.slice().as_millis() as u64,
                "clock": if common.threads == 1 { "thread" } else { "wall" },
                "ns": [low, middle, high], "rel_l2": error, "calls": own.calls, "peers": others,
                "settle_ms": outcome.settle * 1e3, "absent": outcome.absent, "versions": outcome.versions });
        println!("{line}");
    } else if common.markdown {
        println!(
            "| {cell} | {form} | {middle:.0} ({low:.0}–{high:.0}) | {error:.1e} | {to_onnxruntime} | {onnxruntime} | {to_ggml} | \
             {ggml} | {to_torch} | {torch} | {} |",
            own.rates.len()
        );
    } else {
        println!(
            "{:<28} {form:<20} {middle:>8.0} {error:>8.1e} {to_onnxruntime:>18} {onnxruntime:>8} {to_ggml:>18} {ggml:>8} \
             {to_torch:>22} {torch:>8} {:>5}/{tried}",
            cell.to_string(),
            own.rates.len()
        );
    }
}

fn headline(common: &Common, engine: &Engine, outcome: &Outcome) {
    conditions(common, engine.kernel(), ROUNDS, outcome);
    println!(
        "Nanoseconds per token and head, medians (quartiles); ratios are medians (quartiles) within a round."
    );
    if common.markdown {
        println!(
            "\n| rule, heads, tokens, d | form | ns | rel. L2 error | times ONNX Runtime | its ns | times ggml | its ns | times \
             PyTorch | its ns | rounds |\n|---|---|---|---|---|---|---|---|---|---|---|"
        );
    } else {
        println!(
            "{:<28} {:<20} {:>8} {:>8} {:>18} {:>8} {:>18} {:>8} {:>22} {:>8} rounds",
            "rule,heads,tokens,d",
            "form",
            "ns",
            "error",
            "/ onnxruntime",
            "ns",
            "/ ggml",
            "ns",
            "/ torch",
            "ns"
        );
    }
}

/// Measures the problems of `request`.
pub fn run(common: &Common, request: &Linear, python: &str, engine: &Engine) -> Result<(), Failure> {
    let mut peers = Peers::start(python, "linear.py", &[])?;
    let dir = tempfile::tempdir()?;
    let mut pictures = Pictures::new(["ns per token and head", "times as fast as a peer"]);
    let done = each(
        common,
        request.cells(),
        |cell| measure(engine, &mut peers, (common, request), dir.path(), &cell),
        |outcome| headline(common, engine, outcome),
        |cell, outcome| {
            print(common, &cell, outcome);
            let median = |account: &Account| nanoseconds(account)[1];
            let mut times = vec![("elsa".to_owned(), median(&outcome.own))];
            times.extend(outcome.others.iter().map(|(name, account)| (name.clone(), median(account))));
            let ratio = |(name, account): &(String, Account)| {
                (format!("elsa / {name}"), outcome.own.over(account)[1])
            };
            let ratios = outcome.others.iter().map(ratio).collect();
            let Cell { rule, heads, dim, per_dim, .. } = cell;
            let gates = if per_dim { ", per-dim" } else { "" };
            let family =
                format!("{}{gates}, heads {heads}, d {dim}, threads {}", rule.name(), common.threads);
            pictures.add(family, engine.kernel(), cell.tokens, [times, ratios]);
        },
    );
    peers.end()?;
    if let Some(folder) = &common.plot {
        pictures.write(folder)?;
    }
    done
}
