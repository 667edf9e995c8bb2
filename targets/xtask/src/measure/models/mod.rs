//! `cargo xtask models`: runs complete models in ONNX Runtime, both the exported models and the models that the tool
//! has rewritten.

use crate::boards::build;
use crate::boards::target::{HOST, Target};
use crate::setup;
use crate::shell::{Run, Tree};

const HERE: &str = "targets/xtask/src/measure/models";
/// Tests of `elsa.py` with torch. The Python environment of this command contains torch.
const TORCH: [&str; 5] = [
    "runtime/python/tests/test_torch.py",
    "runtime/python/tests/test_operator.py",
    "runtime/python/tests/test_compiled.py",
    "runtime/python/tests/test_gradients.py",
    "runtime/python/tests/test_distributed.py",
];
/// Script that tests layers of linear attention. The tool computes the recurrences of these layers.
const LAYERS: &str = "runtime/cli/tests/linear_layers.py";

/// Creates the Python environment and the build for this machine. Tests `elsa.py` with torch, and compares it with
/// torch's attention, also in a process whose pools compute in turn. Tests layers of linear attention. Exports the models whose names contain every one of `words`,
/// compares them, and prints the tables of the comparison. `arguments`, such as `--threads 1,2` or `--rounds N`, are
/// passed to the comparison.
pub fn run(tree: &Tree, words: &[String], arguments: &[String]) -> Result<(), String> {
    let python = setup::models(tree)?;
    build::run(tree, HOST, build::Additions::default())?;
    let dist = Target::named(tree, HOST)?.dist(tree);
    let folder = tree.target.join("models");
    let script = |name: &str| Run::new(tree, "").arg(&python).arg("-B").arg(tree.root.join(name));
    let with_words = |run: Run| words.iter().fold(run, |run, word| run.arg(word));

    let with_module = |run: Run| run.env("PYTHONPATH", dist.join("share/python")).env("ELSA_LIBRARY", "");
    let tested = TORCH.map(|tests| (tests, with_module(script(tests)).run()));
    let sdpa = with_module(script(&format!("{HERE}/sdpa.py"))).run();
    let threads = with_module(script(&format!("{HERE}/threads.py"))).run();
    let layers = script(LAYERS).arg(dist.join("bin/elsa")).run();
    // If an exporter refuses some models, their names are printed, and the other models are compared.
    let exported = with_words(script(&format!("{HERE}/export.py")).arg(&folder)).run();
    let compare = script(&format!("{HERE}/compare.py"))
        .arg(&folder)
        .arg(dist.join("bin/elsa"))
        .arg(dist.join("lib/libelsa_ort.so"));
    let compare = arguments.iter().fold(compare, |run, argument| run.arg(argument));
    let compared = with_words(compare).run();
    let pools = [("sdpa.py", sdpa), ("threads.py", threads)];
    let all = [(LAYERS, layers), ("export.py", exported), ("compare.py", compared)];
    for (what, out) in tested.into_iter().chain(pools).chain(all) {
        out.text(what)?;
    }
    Ok(())
}

/// Exports the thirty models whose names contain every one of `words`, with two exporters. Rewrites them, compares them,
/// and prints a table of the attentions that were found and replaced. `arguments` are passed to the comparison. If
/// `gpu` is set, the models also run on this machine's GPU.
pub fn thirty(tree: &Tree, words: &[String], arguments: &[String], gpu: bool) -> Result<(), String> {
    let python = setup::models(tree)?;
    // The table names each model whose package is missing.
    let packages = setup::model_packages(tree);
    if let Err(error) = &packages {
        eprintln!("xtask: {error}");
    }
    let gpu = gpu.then(|| setup::models_gpu(tree)).transpose()?;
    build::run(tree, HOST, build::Additions::default())?;
    let dist = Target::named(tree, HOST)?.dist(tree);
    let run = Run::new(tree, "").arg(&python).arg("-B").arg(tree.root.join(HERE).join("thirty.py"));
    let folder = tree.target.join("models/thirty");
    // The packages would otherwise write settings into the home folder, and look for weights on the network.
    let run = run.env("YOLO_CONFIG_DIR", &folder).env("YOLO_OFFLINE", "true").env("HF_HUB_OFFLINE", "1");
    let run = run.arg(folder);
    let run = run.arg(dist.join("bin/elsa")).arg(dist.join("lib/libelsa_ort.so"));
    let run = packages.iter().fold(run, |run, folder| run.env("PYTHONPATH", folder));
    let run = gpu.iter().fold(run, |run, python| run.arg("--gpu").arg(python));
    let run = arguments.iter().chain(words).fold(run, |run, word| run.arg(word));
    run.run().text("thirty.py").map(|_| ())
}
