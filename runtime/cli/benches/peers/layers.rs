//! The time of a call through each layer of this library, compared with calls of the peers. It shows the time that each
//! layer adds to the kernel.
//!
//! `ELSA_LAYERS` names the folder that `cargo xtask build` makes for this machine, and `ELSA_LAYERS_C` the library made
//! from `layers.c`. `cargo xtask peers layers` sets both. Every layer computes the same problem. The time of the kernel is
//! that of a call with up to 64 times the batch, divided by their number, so that the call itself counts less. A shape
//! whose tensors fill the second cache is measured as it is, because a larger one would also measure memory.

use crate::account::{Account, quartiles, rounds};
use crate::outcome::{self, ARITHMETIC, Outcome, ROUNDS, WRONG, conditions, each};
use crate::pictures::Pictures;
use crate::process::{Peers, Prepared, own_slice, write};
use crate::request::{Common, Failure, Layers};
use elsa_cli::shape::{Data, Shape};
use elsa_core::attention::Outputs;
use elsa_core::dtype::DType;
use elsa_files::Buffer;
use elsa_runtime::{Engine, PlanOptions};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Largest batch of the call that measures the kernel, as a multiple of the batch of the shape, and the most bytes of its
/// tensors.
const MOST: (usize, usize) = (64, 256 << 10);
/// Number of nodes in the sessions that measure a node.
const NODES: usize = 16;
/// The job that measures a session without attention.
const SESSION: &str = "session";
/// Names of this library's own jobs.
const OWN: [&str; 2] = ["kernel", "library"];
/// The layers in the order of the table: the name of the job, its meaning, and whether it measures a chain of nodes.
const LAYERS: [(&str, &str, bool); 14] = [
    ("kernel", "kernel", false),
    ("library", "Rust, `Bound::run`", false),
    ("c", "C, `elsa_bound_run`", false),
    ("c-set", "C, `elsa_bound_set` and `elsa_bound_run`", false),
    ("c-run", "C, `elsa_run`", false),
    ("python", "Python, `elsa.attention` with `out`", false),
    ("python-new", "Python, `elsa.attention`", false),
    ("torch-patched", "PyTorch's function under `elsa.patch()`", false),
    ("onnxruntime", "ONNX Runtime, a session of one `ElsaAttention`", false),
    ("onnxruntime-node", "ONNX Runtime, a node `ElsaAttention`", true),
    ("torch", "peer: PyTorch's function", false),
    ("onnxruntime-attention", "peer: ONNX Runtime, a session of one `Attention`", false),
    ("onnxruntime-attention-node", "peer: ONNX Runtime, a node `Attention`", true),
    ("openvino", "peer: OpenVINO", false),
];

/// The layers in the picture, which has eight colours.
const DRAWN: [&str; 8] =
    ["kernel", "library", "c", "python", "torch-patched", "onnxruntime", "torch", "onnxruntime-attention"];

/// Microseconds of a layer in every round, with the session's own time taken from chains of nodes.
struct Layer {
    name: &'static str,
    meaning: &'static str,
    microseconds: Vec<f64>,
}

fn layers(outcome: &Outcome) -> Vec<Layer> {
    let find = |name: &str| outcome.others.iter().find(|(job, _)| job == name).map(|(_, account)| account);
    let microseconds = |account: &Account| account.rates.iter().map(|rate| 1e-3 / rate).collect::<Vec<f64>>();
    let session = find(SESSION).map(microseconds);
    let of = |(name, meaning, node): (&'static str, &'static str, bool)| {
        let mut found = microseconds(find(name)?);
        if node {
            for (time, session) in found.iter_mut().zip(session.as_ref()?) {
                *time = (*time - session) / NODES as f64;
            }
        }
        Some(Layer { name, meaning, microseconds: found })
    };
    LAYERS.into_iter().filter_map(of).collect()
}

/// Returns the differences to the first layer, the kernel, within each round.
fn above(layer: &Layer, kernel: &Layer) -> Vec<f64> {
    layer.microseconds.iter().zip(&kernel.microseconds).map(|(time, kernel)| time - kernel).collect()
}

fn measure(
    engine: &Engine,
    peers: &mut Peers,
    common: &Common,
    dir: &Path,
    shape: Shape,
) -> Result<Outcome, Failure> {
    let problem = shape.problem(DType::F32)?;
    let data = Data::random(&shape, &problem)?;
    for (name, x) in [("q", &data.query), ("k", &data.key), ("v", &data.value)] {
        write(dir, name, x.elements())?;
    }
    let mut wanted = outcome::described(shape);
    wanted.extend([
        ("threads".to_owned(), json!(common.threads)),
        ("dir".to_owned(), json!(dir)),
        ("nodes".to_owned(), json!(NODES)),
    ]);
    let prepared: Prepared = peers.ask(&wanted.into())?;

    let plan = engine.plan(&problem, &PlanOptions::default())?;
    let mut workspace = plan.workspace()?;
    let mut y = Buffer::zeros("out", DType::F32, problem.spec().output.extent())?;
    let mut bound = plan.bind(data.inputs(), Outputs::new(y.elements_mut()), &mut workspace)?;
    let bytes = size_of::<f32>() * (data.inputs().query.len() * 2 + data.inputs().key.len() * 2);
    let batches = (MOST.1 / bytes).clamp(1, MOST.0);
    let many = Shape { batch: shape.batch * batches, ..shape };
    let many_problem = many.problem(DType::F32)?;
    let many_data = Data::random(&many, &many_problem)?;
    let many_plan = engine.plan(&many_problem, &PlanOptions::default())?;
    let mut many_workspace = many_plan.workspace()?;
    let mut many_y = Buffer::zeros("out", DType::F32, many_problem.spec().output.extent())?;
    let mut many_bound =
        many_plan.bind(many_data.inputs(), Outputs::new(many_y.elements_mut()), &mut many_workspace)?;

    let jobs = prepared.jobs.clone();
    let mut outcome = Outcome::new(engine.kernel().to_owned(), prepared);
    outcome.others.extend(OWN.map(|name| (name.to_owned(), Account::default())));
    let turns: Vec<_> = (0..outcome.others.len()).map(|job| vec![job]).collect();
    let slice = |job: usize| match jobs.get(job) {
        Some(name) => peers.slice(name, common.slice()),
        None if job == jobs.len() => {
            let mut slice =
                own_slice(&mut || Ok(many_bound.run().map(|_| ())?), common.threads, common.slice())?;
            slice.seconds /= batches as f64;
            Ok(slice)
        }
        None => own_slice(&mut || Ok(bound.run().map(|_| ())?), common.threads, common.slice()),
    };
    outcome.tried = rounds(common.rounds.unwrap_or(ROUNDS), &turns, slice, |job, slice| {
        outcome.settle = outcome.settle.max(slice.settle);
        outcome.others[job].1.add(1.0, &slice);
    })?;
    let limit = ARITHMETIC + f64::from(f32::EPSILON) / 2.0;
    write(dir, "y", y.elements())?;
    let errors: BTreeMap<String, f64> = peers.ask(&json!({ "check": dir.join("y") }))?;
    // Every layer of this library computes the answer of the library.
    let own = errors
        .iter()
        .filter(|(name, _)| LAYERS.iter().any(|layer| layer.0 == **name && !layer.1.starts_with("peer")));
    for (name, error) in own.chain(errors.get_key_value("elsa")) {
        if error.is_nan() || *error > limit {
            return Err(format!(
                "{shape}, {name}: relative L2 error {error:e} against f64; allowed: {limit:e}"
            )
            .into());
        }
    }
    outcome.judge(&errors, WRONG * limit);
    if let Some((_, library)) = outcome.others.last_mut() {
        library.error = outcome.own.error;
    }
    outcome.own.rates = outcome.others.last().map(|(_, library)| library.rates.clone()).unwrap_or_default();
    Ok(outcome)
}

fn headline(common: &Common, outcome: &Outcome) {
    conditions(common, &outcome.ran, ROUNDS, outcome);
    println!(
        "\n| batch, heads, queries, keys, d | layer | µs (quartiles) | µs above the kernel (quartiles) |\n|---|---|---|---|"
    );
}

fn print(common: &Common, shape: Shape, outcome: &Outcome) {
    let found = layers(outcome);
    let Some(kernel) = found.iter().find(|layer| layer.name == OWN[0]) else { return };
    if common.json {
        let times: Map<String, Value> = found
            .iter()
            .map(|layer| (layer.name.to_owned(), json!(quartiles(layer.microseconds.clone()))))
            .collect();
        println!(
            "{}",
            json!({ "what": "layers", "shape": shape.to_string(), "threads": common.threads, "kernel": outcome.ran,
                "cpu": elsa_cli::machine::cpu_model(), "rounds": kernel.microseconds.len(),
                "rounds_tried": outcome.tried, "us": times, "absent": outcome.absent, "versions": outcome.versions })
        );
        return;
    }
    for layer in &found {
        let [low, middle, high] = quartiles(layer.microseconds.clone());
        let [less, more, most] = quartiles(above(layer, kernel));
        let added = if layer.name == kernel.name {
            "–".to_owned()
        } else {
            format!("{more:.1} ({less:.1}–{most:.1})")
        };
        println!("| {shape} | {} | {middle:.1} ({low:.1}–{high:.1}) | {added} |", layer.meaning);
    }
}

/// Measures the shapes of `request`.
pub fn run(common: &Common, request: &Layers, python: &str, engine: &Engine) -> Result<(), Failure> {
    let mut peers = Peers::start(python, "layers.py", &[("ELSA_BACKEND", engine.backend().name())])?;
    let dir = tempfile::tempdir()?;
    let mut pictures = Pictures::new(["µs of a call", "µs above the kernel"]);
    let done = each(
        common,
        request.shapes()?,
        |shape| measure(engine, &mut peers, common, dir.path(), shape),
        |outcome| headline(common, outcome),
        |shape, outcome| {
            print(common, shape, outcome);
            let found: Vec<_> =
                layers(outcome).into_iter().filter(|layer| DRAWN.contains(&layer.name)).collect();
            let Some(kernel) = found.iter().find(|layer| layer.name == OWN[0]) else { return };
            let median = |x: Vec<f64>| quartiles(x)[1];
            let times = found.iter().map(|layer| (layer.name.to_owned(), median(layer.microseconds.clone())));
            let others = found.iter().filter(|layer| layer.name != kernel.name);
            let added = others.map(|layer| (layer.name.to_owned(), median(above(layer, kernel))));
            let Shape { batch, heads, dim, .. } = shape;
            let family = format!("layers, batch {batch}, heads {heads}, d {dim}, threads {}", common.threads);
            pictures.add(family, &outcome.ran, shape.keys, [times.collect(), added.collect()]);
        },
    );
    peers.end()?;
    if let Some(folder) = &common.plot {
        pictures.write(folder)?;
    }
    done
}
