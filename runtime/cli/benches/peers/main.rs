//! Benchmark of this library against its peers on the CPU: PyTorch, ONNX Runtime and OpenVINO. sgemm is measured too, to
//! show the speed that a matrix product alone reaches.
//!
//! `cargo bench -p elsa-cli --bench peers -- [OPTIONS] [SHAPE | SET]...` measures attention. A shape is written as for
//! `elsa bench --shape`; a set is `plain` (the default), `masks`, `causal` or `swin`. `-- linear [OPTIONS]
//! [PROBLEM]...` measures linear attention (`linear.rs`), and `-- layers [OPTIONS] [SHAPE]...` the time that each layer
//! of this library adds to a call (`layers.rs`). `--help` lists the options.
//!
//! `ELSA_PEERS_PYTHON` names the Python that has the peers installed; `cargo xtask peers` creates one and runs
//! this benchmark. The back end `avx2` restricts PyTorch and sgemm to AVX2 too. Every output, including those of
//! the peers, is compared with attention in f64 on the same data. An output of this library that is too far off
//! ends the run.
//!
//! The speed of a shared machine varies, so nothing is measured on its own:
//!
//! 1. Every round gives each job a slice of a few milliseconds, and only slices of the same round are compared.
//!    The result is the median of the ratios over the rounds, with their quartiles.
//! 2. The order of the jobs rotates by one each round, so that no job always follows the same neighbour.
//! 3. A job starts once the threads of the previous job are asleep (see `slices.py`). Its first slice is not measured:
//!    it wakes the pool, gives its threads time to settle on processors, and warms the caches.
//! 4. Each round times sgemm twice in a row. The second slice follows no other job, so the ratio of the two slices
//!    shows how much the jobs disturb each other. This ratio should be near 1.
//! 5. With one thread, a slice is measured by its processor time, so other programs disturb only its caches and its
//!    clock. With several threads, a slice is measured by the wall clock. Its threads may have to wait for a processor,
//!    because another program uses it or because the system put two threads on the same one. Such a slice is repeated
//!    at once. If repeating does not help, the round is dropped.
//! 6. The best peer of a shape is the one with the highest median rate, not the luckiest one of each round.

#![forbid(unsafe_code)]

mod account;
mod layers;
mod linear;
mod outcome;
mod pictures;
mod process;
mod request;

use account::{Account, rounds};
use clap::Parser;
use elsa_cli::shape::{Data, Mask, Shape};
use elsa_core::attention::Outputs;
use elsa_core::dtype::DType;
use elsa_files::Buffer;
use elsa_runtime::{Backend, Engine, EngineOptions, PlanOptions, backends};
use half::{bf16, f16};
use outcome::{ARITHMETIC, Outcome, ROUNDS, SGEMM, WRONG, each};
use pictures::Pictures;
use process::{Peers, Prepared, own_slice, write};
use request::{Common, Failure, Operator, Request};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

fn measure(
    engine: &Engine,
    peers: &mut Peers,
    request: &Request,
    dir: &Path,
    shape: Shape,
) -> Result<Outcome, Failure> {
    let (dtype, common) = (request.dtype, &request.common);
    let problem = shape.problem(dtype)?;
    let data = Data::random(&shape, &problem)?;
    for (name, x) in [("q", &data.query), ("k", &data.key), ("v", &data.value)] {
        write(dir, name, x.elements())?;
    }
    match &data.mask {
        Some(Mask::Bool(mask)) => std::fs::write(dir.join("mask"), mask)?,
        Some(Mask::Additive(mask)) => write(dir, "mask", mask.elements())?,
        None => {}
    }
    if let Some(table) = &data.table {
        write(dir, "table", table.elements())?;
    }
    let mut wanted = outcome::described(shape);
    wanted.extend([
        ("dtype".to_owned(), json!(dtype.name())),
        ("threads".to_owned(), json!(common.threads)),
        ("dir".to_owned(), json!(dir)),
        ("isa".to_owned(), json!(request.isa().map(|(name, _)| name))),
    ]);
    let prepared: Prepared = peers.ask(&wanted.into())?;

    let plan = engine.plan(&problem, &PlanOptions::default())?;
    let mut workspace = plan.workspace()?;
    let mut y = Buffer::zeros("out", dtype, problem.spec().output.extent())?;
    let mut bound = plan.bind(data.inputs(), Outputs::new(y.elements_mut()), &mut workspace)?;

    let work = shape.operations();
    let sgemm = 2.0 * SGEMM.1.powi(3);
    let mut outcome = Outcome::new(engine.kernel().to_owned(), prepared);
    // The jobs are the peers (among them sgemm), then this library, then a second slice of sgemm, which runs directly
    // after the first.
    let own = outcome.others.len();
    let after = |job: usize| outcome.others.get(job).is_some_and(|(name, _)| name == SGEMM.0);
    let turns: Vec<_> =
        (0..=own).map(|job| if after(job) { vec![job, own + 1] } else { vec![job] }).collect();
    let names: Vec<_> = outcome.others.iter().map(|(name, _)| name.clone()).collect();
    let slice = |job: usize| match names.get(job) {
        Some(name) => peers.slice(name, common.slice()),
        None if job == own => own_slice(&mut || Ok(bound.run().map(|_| ())?), common.threads, common.slice()),
        None => peers.slice(SGEMM.0, common.slice()),
    };
    outcome.tried = rounds(common.rounds.unwrap_or(ROUNDS), &turns, slice, |job, slice| {
        outcome.settle = outcome.settle.max(slice.settle);
        match outcome.others.get_mut(job) {
            Some((name, account)) => account.add(if name == SGEMM.0 { sgemm } else { work }, &slice),
            None if job == own => outcome.own.add(work, &slice),
            None => outcome.undisturbed.add(sgemm, &slice),
        }
    })?;
    let rounding = match dtype {
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => f16::EPSILON.to_f64(),
        DType::Bf16 => bf16::EPSILON.to_f64(),
    } / 2.0;
    let limit = rounding + ARITHMETIC;
    write(dir, "y", y.elements())?;
    let errors: BTreeMap<String, f64> = peers.ask(&json!({ "check": dir.join("y") }))?;
    outcome.judge(&errors, WRONG * limit);
    match outcome.own.error {
        Some(error) if error <= limit => Ok(outcome),
        error => Err(format!("{shape}: relative L2 error {error:?} against f64; allowed: {limit:e}").into()),
    }
}

/// Measures attention.
fn attention(request: &Request, python: &str, engine: &Engine) -> Result<(), Failure> {
    let Request { common, dtype, .. } = request;
    let variables: Vec<_> = request.isa().into_iter().flat_map(|(_, variables)| variables).collect();
    let mut peers = Peers::start(python, "peers.py", &variables)?;
    let dir = tempfile::tempdir()?;
    let shapes = request.shapes()?;
    let width = shapes.iter().map(|shape| shape.to_string().len()).max().unwrap_or(0);
    let mut pictures = Pictures::new(["GFLOP/s", "times as fast"]);
    let done = each(
        common,
        shapes,
        |shape| {
            let outcome = measure(engine, &mut peers, request, dir.path(), shape)?;
            if outcome.best().is_none() {
                return Err(format!("{python}: no peer can be measured: {:?}", outcome.absent).into());
            }
            Ok(outcome)
        },
        |outcome| outcome::headline(common, width, outcome),
        |shape, outcome| {
            outcome::print(common, *dtype, width, shape, outcome);
            if shape.queries != shape.keys {
                return;
            }
            let mut speeds = vec![("elsa".to_owned(), outcome.own.rate()[1])];
            speeds.extend(outcome.others.iter().map(|(name, account)| (name.clone(), account.rate()[1])));
            let ratio = |name: &str, account: &Account| (name.to_owned(), outcome.own.over(account)[1]);
            let ratios = outcome.best().map(|(_, account)| ratio("elsa / best peer", account)).into_iter();
            let ratios =
                ratios.chain(outcome.sgemm().map(|account| ratio("elsa / sgemm", account))).collect();
            let parts: String = shape.parts().iter().map(|part| format!(", {part}")).collect();
            let Shape { batch, heads, dim, .. } = shape;
            let family =
                format!("batch {batch}, heads {heads}, d {dim}, {dtype}, threads {}{parts}", common.threads);
            pictures.add(family, &outcome.ran, shape.keys, [speeds, ratios]);
        },
    );
    peers.end()?;
    if let Some(folder) = &common.plot {
        pictures.write(folder)?;
    }
    done
}

fn main() -> Result<(), Failure> {
    let request = Request::parse();
    let python = std::env::var("ELSA_PEERS_PYTHON").unwrap_or_else(|_| "python3".into());
    let Common { threads, backend, .. } = request.common;
    // The peers compute on the CPU, even if there is a GPU.
    let best = backends().into_iter().find(|found| found.present && found.backend != Backend::Cuda);
    let backend = backend.or(best.map(|found| found.backend));
    let engine = Engine::new(&EngineOptions::default().threads(threads).backend(backend))?;
    match &request.operator {
        Some(Operator::Linear(linear)) => linear::run(&request.common, linear, &python, &engine),
        Some(Operator::Layers(layers)) => layers::run(&request.common, layers, &python, &engine),
        None => attention(&request, &python, &engine),
    }
}
