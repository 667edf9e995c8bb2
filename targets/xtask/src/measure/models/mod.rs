//! `cargo xtask models`: runs complete models in ONNX Runtime, both the exported models and the models that the tool
//! has rewritten, and networks in torch, with and without `elsa.patch()`.

use std::path::{Path, PathBuf};

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

/// Lets a script find `packages`, which would otherwise write settings into the home folder, and look for weights on the
/// network. The files that the script leaves are in `folder`.
fn with_packages(run: Run, packages: &[PathBuf], folder: &Path) -> Result<Run, String> {
    let paths = std::env::join_paths(packages).map_err(|error| error.to_string())?;
    let run = run.env("YOLO_CONFIG_DIR", folder).env("YOLO_OFFLINE", "true").env("HF_HUB_OFFLINE", "1");
    Ok(run.env("TORCHINDUCTOR_CACHE_DIR", folder.join("compiled")).env("PYTHONPATH", paths))
}

/// Returns the folder of the packages with more networks. The tables name each network whose package is missing.
fn packages(tree: &Tree) -> Option<PathBuf> {
    setup::model_packages(tree).inspect_err(|error| eprintln!("xtask: {error}")).ok()
}

/// Creates the Python environment and the build for this machine. Tests `elsa.py` with torch, and compares it with
/// torch's attention, also in a process in which the pools of both alternate. Tests layers of linear attention. Exports the models
/// whose names contain every one of `words`, compares them in ONNX Runtime, compares networks in torch with these words in
/// their names, and prints the tables. The comparisons run with each number of `threads`, such as `1,2`, and get
/// `rounds`. `cpu` selects processor time in ONNX Runtime. If `gpu` is set, torch also runs the networks on this machine's
/// GPU: eagerly, in CUDA graphs and compiled.
pub fn run(
    tree: &Tree,
    words: &[String],
    threads: &str,
    rounds: &str,
    cpu: bool,
    gpu: bool,
) -> Result<(), String> {
    let python = setup::models(tree)?;
    let packages = packages(tree);
    build::run(tree, HOST, build::Additions::default())?;
    let dist = Target::named(tree, HOST)?.dist(tree);
    let folder = tree.target.join("models");
    let script = |name: &str| Run::new(tree, "").arg(&python).arg("-B").arg(tree.root.join(name));
    let with_words = |run: Run| words.iter().fold(run, |run, word| run.arg(word));

    let with_module = |run: Run| run.env("PYTHONPATH", dist.join("share/python")).env("ELSA_LIBRARY", "");
    let tested = TORCH.map(|tests| (tests, with_module(script(tests)).run()));
    let sdpa = with_module(script(&format!("{HERE}/sdpa.py"))).run();
    let pools = with_module(script(&format!("{HERE}/threads.py"))).run();
    let layers = script(LAYERS).arg(dist.join("bin/elsa")).run();
    // If an exporter refuses some models, their names are printed, and the other models are compared.
    let exported = with_words(script(&format!("{HERE}/export.py")).arg(&folder)).run();
    let compare = script(&format!("{HERE}/compare.py"))
        .arg(&folder)
        .arg(dist.join("bin/elsa"))
        .arg(dist.join("lib/libelsa_ort.so"));
    let compare = compare.arg(rounds).args("--threads").arg(threads);
    let compare = if cpu { compare.arg("--cpu") } else { compare };
    let compared = with_words(compare).run();
    let host = threads.split(',').map(|count| format!("--threads {count}"));
    let device = ["eager", "graph", "compiled"].map(|form| format!("--device cuda --form {form}"));
    let paths: Vec<PathBuf> = std::iter::once(dist.join("share/python")).chain(packages).collect();
    let mut patched = Vec::new();
    for options in host.chain(device.into_iter().filter(|_| gpu)) {
        let run = script(&format!("{HERE}/patched.py")).env("ELSA_LIBRARY", "").arg(rounds).args(&options);
        patched.push(("patched.py", with_words(with_packages(run, &paths, &folder)?).run()));
    }
    let pools = [("sdpa.py", sdpa), ("threads.py", pools)];
    let all = [(LAYERS, layers), ("export.py", exported), ("compare.py", compared)];
    for (what, out) in tested.into_iter().chain(pools).chain(all).chain(patched) {
        out.text(what)?;
    }
    Ok(())
}

/// Exports the thirty models whose names contain every one of `words`, with two exporters. Rewrites them, compares them,
/// and prints a table of the attentions that were found and replaced. The comparison gets `rounds`, and measures processor
/// time if `cpu` is set. If `gpu` is set, the models also run on this machine's GPU.
pub fn thirty(tree: &Tree, words: &[String], rounds: &str, cpu: bool, gpu: bool) -> Result<(), String> {
    let python = setup::models(tree)?;
    let packages: Vec<PathBuf> = packages(tree).into_iter().collect();
    let gpu = gpu.then(|| setup::models_gpu(tree)).transpose()?;
    build::run(tree, HOST, build::Additions::default())?;
    let dist = Target::named(tree, HOST)?.dist(tree);
    let run = Run::new(tree, "").arg(&python).arg("-B").arg(tree.root.join(HERE).join("thirty.py"));
    let folder = tree.target.join("models/thirty");
    let run = with_packages(run, &packages, &folder)?.arg(folder);
    let run = run.arg(dist.join("bin/elsa")).arg(dist.join("lib/libelsa_ort.so"));
    let run = gpu.iter().fold(run, |run, python| run.arg("--gpu").arg(python));
    let run = if cpu { run.arg("--cpu") } else { run };
    words.iter().fold(run.arg(rounds), |run, word| run.arg(word)).run().text("thirty.py").map(|_| ())
}
