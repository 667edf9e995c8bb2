//! Tests the trained model: for every held-out picture the program answers as PyTorch did.

use crate::common;
use elsa_core::drift::larger;
use elsa_robot::model::Model;
use elsa_robot::source::{Folder, Next, Source};
use elsa_runtime::{EngineOptions, backends};
use serde_json::Value;
use std::path::{Path, PathBuf};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cpp-vision/model");

/// A picture with PyTorch's results: its file, its label, and PyTorch's class and scores.
struct Recorded {
    file: String,
    label: u64,
    class: u64,
    scores: Vec<f64>,
}

/// Returns the recorded pictures, in the order of their files, and PyTorch's accuracy.
fn recorded() -> (Vec<Recorded>, f64) {
    let text = std::fs::read_to_string(Path::new(MODEL).join("heldout.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let number = |name: &str, i: usize| all[name][i].as_u64().unwrap();
    let count = all["indices"].as_array().unwrap().len();
    let mut recorded: Vec<Recorded> = (0..count)
        .map(|i| Recorded {
            file: format!("{}-{:04}.png", number("labels", i), number("indices", i)),
            label: number("labels", i),
            class: number("classes", i),
            scores: all["scores"][i].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect(),
        })
        .collect();
    recorded.sort_by(|a, b| a.file.cmp(&b.file));
    (recorded, all["accuracy"].as_f64().unwrap())
}

/// Returns the folder of pictures that `train/export.py` has written. The folder must contain exactly the recorded
/// pictures.
fn pictures(recorded: &[Recorded]) -> PathBuf {
    let folder =
        std::env::var_os("ELSA_DIGITS").expect("ELSA_DIGITS: absent; allowed: the folder of export.py");
    let folder = PathBuf::from(folder);
    let names = std::fs::read_dir(&folder).unwrap().map(|x| x.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert!(names.iter().eq(recorded.iter().map(|x| &x.file)));
    folder
}

/// Tolerance of a score. Scores are recorded with six digits. A score depends on sixteen consecutive sums, in this
/// program and in PyTorch. Each sum has at most 96 terms, and each term has an error of 6e-8. The normalisations
/// between the sums magnify earlier errors by a factor of less than ten.
const TOLERANCE: f64 = 5e-6 + 2.0 * 96.0 * 6e-8 * 16.0 * 10.0;

/// Step between the indices of the tested pictures. In an emulator only every eighth picture is classified, except in
/// [`the_program_answers_as_pytorch_did`], which classifies all pictures.
const STEP: usize = if cfg!(target_arch = "aarch64") { 8 } else { 1 };

#[test]
#[ignore = "needs the pictures of examples/cpp-vision: cargo xtask test --only robot"]
fn scores_are_those_of_pytorch_on_every_back_end() {
    let (recorded, accuracy) = recorded();
    let folder = pictures(&recorded);
    for present in backends().iter().filter(|p| p.present) {
        let options = EngineOptions::default().backend(present.backend).threads(1);
        let mut model = Model::open(&Path::new(MODEL).join("digits.safetensors"), &options).unwrap();
        let mut source = Folder::open(&folder, false).unwrap();
        let (mut right, mut worst) = (0, 0.0f64);
        for (i, wanted) in recorded.iter().enumerate() {
            let Next::Frame(frame) = source.next().unwrap() else { panic!("{}: no frame", wanted.file) };
            right += u64::from(wanted.class == wanted.label);
            if !i.is_multiple_of(STEP) {
                continue;
            }
            let class = model.classify(&frame).unwrap();
            assert!(!class.fallback && class.backend == present.backend);
            assert_eq!(class.class as u64, wanted.class, "{}", wanted.file);
            let largest = wanted.scores.iter().fold(0.0, |m, x| larger(m, x.abs()));
            for (score, wanted) in model.scores().iter().zip(&wanted.scores) {
                worst = larger(worst, (f64::from(*score) - wanted).abs() / largest);
            }
        }
        println!("{}: {right} of {} right, scores within {worst:e}", present.backend, recorded.len());
        assert!(worst < TOLERANCE, "{worst:e}");
        assert!((right as f64 / recorded.len() as f64 - accuracy).abs() < 1e-6 && accuracy >= 0.97);
    }
}

#[test]
#[ignore = "needs the pictures of examples/cpp-vision: cargo xtask test --only robot"]
fn the_program_answers_as_pytorch_did() {
    let (recorded, _) = recorded();
    let folder = pictures(&recorded);
    let output = common::robot(&format!("--model {MODEL}/digits.safetensors --rate 200 --json"))
        .arg("--images")
        .arg(&folder)
        .output()
        .unwrap();
    let (answers, summary) = common::account(&output);
    assert_eq!(summary["frames"], recorded.len());
    for (answer, wanted) in answers.iter().zip(&recorded) {
        assert_eq!(answer["class"], wanted.class, "{}", wanted.file);
    }
}
