//! Shared code of the robot's tests: a small network with random weights, its definition in f64, pictures, and calls of
//! the program.
#![allow(dead_code)]

use elsa_oracle::random::seeded;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the emulator command for AArch64 programs, with its arguments, from the environment variable that configures
/// Cargo's runner; `None` if programs run natively.
fn runner() -> Option<String> {
    let foreign = cfg!(target_arch = "aarch64");
    foreign.then(|| std::env::var("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER").ok()).flatten()
}

/// Returns `true` if the program runs in an emulator, in which measured times mean little.
pub fn emulated() -> bool {
    runner().is_some()
}

/// Returns the command of the program with the arguments in `line`. The program runs in an emulator if the tests do.
pub fn robot(line: &str) -> Command {
    let runner = runner().unwrap_or_default();
    let mut words = runner.split_whitespace().chain([env!("CARGO_BIN_EXE_elsa-robot")]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(line.split_whitespace());
    command
}

/// Returns the number of frames in the tests of long runs. The test stage `robot` sets a larger number.
pub fn frames() -> u64 {
    let asked = std::env::var("ELSA_ROBOT_FRAMES").ok().map(|n| n.parse().unwrap());
    asked.unwrap_or(if emulated() { 20 } else { 100 })
}

/// A picture of 8 x 8 grey values.
pub type Picture = [u8; 64];

/// Draws `count` random pictures.
pub fn pictures(count: usize) -> Vec<Picture> {
    let mut random = seeded(5);
    (0..count).map(|_| std::array::from_fn(|_| random.below(256) as u8)).collect()
}

/// Writes pictures as PNG files `000.png`, `001.png`, ….
pub fn write_pictures(dir: &Path, pictures: &[Picture]) {
    for (i, picture) in pictures.iter().enumerate() {
        let image = image::GrayImage::from_raw(8, 8, picture.to_vec()).unwrap();
        image.save(dir.join(format!("{i:03}.png"))).unwrap();
    }
}

/// Converts a picture to a YUYV frame in which each pixel is `scale` pixels wide and high. The chroma is arbitrary.
pub fn yuyv(picture: &Picture, scale: usize) -> Vec<u8> {
    let side = 8 * scale;
    let grey = |i: usize| picture[i / side / scale * 8 + i % side / scale];
    (0..side * side).flat_map(|i| [grey(i), (i * 37) as u8]).collect()
}

const WIDTH: usize = 16;
const HEADS: usize = 2;
const HIDDEN: usize = 24;
const BLOCKS: usize = 2;
const CLASSES: usize = 10;

/// Function that adds a random tensor. Its arguments are the tensor's name and shape, and the mean and spread of the
/// elements.
type Add<'a> = dyn FnMut(&str, &[usize], f32, f32) + 'a;

/// Contents of a model file: the shape and elements of each tensor by name, and the metadata.
#[derive(Clone)]
pub struct Network(pub BTreeMap<String, (Vec<usize>, Vec<f32>)>, pub HashMap<String, String>);

impl Network {
    /// Draws random weights that are large enough to separate the classes clearly.
    pub fn random(seed: u64) -> Network {
        let mut random = seeded(seed);
        let mut all = BTreeMap::new();
        let mut add = |name: &str, shape: &[usize], around: f32, spread: f32| {
            let count = shape.iter().product();
            let data = (0..count).map(|_| around + spread * random.normal()).collect();
            all.insert(name.to_owned(), (shape.to_vec(), data));
        };
        let linear = |add: &mut Add<'_>, name: &str, out: usize, inp: usize| {
            add(&format!("{name}.weight"), &[out, inp], 0.0, 2.0 / (inp as f32).sqrt());
            add(&format!("{name}.bias"), &[out], 0.0, 0.2);
        };
        let norm = |add: &mut Add<'_>, name: &str| {
            add(&format!("{name}.weight"), &[WIDTH], 1.0, 0.1);
            add(&format!("{name}.bias"), &[WIDTH], 0.0, 0.1);
        };
        linear(&mut add, "patch", WIDTH, 4);
        add("cls", &[1, 1, WIDTH], 0.0, 1.0);
        add("pos", &[1, 17, WIDTH], 0.0, 0.5);
        for i in 0..BLOCKS {
            let name = |part: &str| format!("blocks.{i}.{part}");
            norm(&mut add, &name("norm1"));
            linear(&mut add, &name("qkv"), 3 * WIDTH, WIDTH);
            linear(&mut add, &name("proj"), WIDTH, WIDTH);
            norm(&mut add, &name("norm2"));
            linear(&mut add, &name("fc1"), HIDDEN, WIDTH);
            linear(&mut add, &name("fc2"), WIDTH, HIDDEN);
        }
        norm(&mut add, "norm");
        linear(&mut add, "head", CLASSES, WIDTH);
        Network(all, HashMap::from([("heads".to_owned(), HEADS.to_string())]))
    }

    /// Writes the weights as a safetensors file.
    pub fn write(&self, path: &Path) {
        let bytes: BTreeMap<&String, Vec<u8>> = self
            .0
            .iter()
            .map(|(name, (_, x))| (name, x.iter().flat_map(|x| x.to_le_bytes()).collect()))
            .collect();
        let views = self.0.iter().map(|(name, (shape, _))| {
            (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), &bytes[name]).unwrap())
        });
        safetensors::serialize_to_file(views, Some(self.1.clone()), path).unwrap();
    }

    fn linear(&self, name: &str, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (weight, bias) = (&self.0[&format!("{name}.weight")].1, &self.0[&format!("{name}.bias")].1);
        let row = |x: &Vec<f64>| {
            let dot = |o: usize| (0..x.len()).map(|i| x[i] * f64::from(weight[o * x.len() + i])).sum::<f64>();
            (0..bias.len()).map(|o| dot(o) + f64::from(bias[o])).collect()
        };
        x.iter().map(row).collect()
    }

    fn norm(&self, name: &str, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (weight, bias) = (&self.0[&format!("{name}.weight")].1, &self.0[&format!("{name}.bias")].1);
        let row = |x: &Vec<f64>| {
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
            let normed = |i: usize| (x[i] - mean) / (variance + 1e-5).sqrt();
            (0..x.len()).map(|i| normed(i) * f64::from(weight[i]) + f64::from(bias[i])).collect()
        };
        x.iter().map(row).collect()
    }

    /// Computes the scores of a picture in f64, directly from the formulas.
    pub fn scores(&self, picture: &Picture) -> Vec<f64> {
        let pixel = |y: usize, x: usize| f64::from(picture[y * 8 + x]) / 255.0;
        let patch = |p: usize| (0..4).map(|i| pixel(p / 4 * 2 + i / 2, p % 4 * 2 + i % 2)).collect();
        let mut x = vec![self.0["cls"].1.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>()];
        x.extend(self.linear("patch", &(0..16).map(patch).collect::<Vec<_>>()));
        let add = |x: &mut Vec<Vec<f64>>, y: &[Vec<f64>]| {
            x.iter_mut().flatten().zip(y.iter().flatten()).for_each(|(x, y)| *x += y);
        };
        let pos = self.0["pos"].1.chunks(WIDTH).map(|row| row.iter().map(|&x| f64::from(x)).collect());
        add(&mut x, &pos.collect::<Vec<_>>());
        for i in 0..BLOCKS {
            let name = |part: &str| format!("blocks.{i}.{part}");
            let qkv = self.linear(&name("qkv"), &self.norm(&name("norm1"), &x));
            add(&mut x, &self.linear(&name("proj"), &attention(&qkv)));
            let mut hidden = self.linear(&name("fc1"), &self.norm(&name("norm2"), &x));
            hidden.iter_mut().flatten().for_each(|x| *x *= 0.5 * (1.0 + libm::erf(*x / 2f64.sqrt())));
            add(&mut x, &self.linear(&name("fc2"), &hidden));
        }
        self.linear("head", &self.norm("norm", &x[..1])).remove(0)
    }
}

/// Computes attention for every head from the rows `[q | k | v]`, with an explicit score matrix.
fn attention(qkv: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let dim = WIDTH / HEADS;
    let mut out = vec![vec![0.0; WIDTH]; qkv.len()];
    for head in 0..HEADS {
        let part = |row: usize, which: usize| &qkv[row][which * WIDTH + head * dim..][..dim];
        for (i, out) in out.iter_mut().enumerate() {
            let dot = |j: usize| part(i, 0).iter().zip(part(j, 1)).map(|(q, k)| q * k).sum::<f64>();
            let weights: Vec<f64> = (0..qkv.len()).map(|j| (dot(j) / (dim as f64).sqrt()).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for (j, weight) in weights.iter().enumerate() {
                for c in 0..dim {
                    out[head * dim + c] += weight / sum * part(j, 2)[c];
                }
            }
        }
    }
    out
}

/// Returns the class with the highest score, the probability of this class, and the difference between the two highest
/// scores.
pub fn best(scores: &[f64]) -> (usize, f64, f64) {
    let class = (0..scores.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap();
    let sum: f64 = scores.iter().map(|x| (x - scores[class]).exp()).sum();
    let others = scores.iter().enumerate().filter(|(i, _)| *i != class).map(|(_, x)| *x);
    (class, 1.0 / sum, scores[class] - others.fold(f64::NEG_INFINITY, f64::max))
}

/// Tolerance of an f32 score relative to the largest f64 score. A score depends on ten consecutive sums of at most 24
/// terms each, so each sum adds at most 25 unit roundoffs of 6e-8. The normalisations between the sums magnify earlier
/// errors by a factor of less than ten.
pub const TOLERANCE: f64 = 25.0 * 6e-8 * 10.0 * 10.0;

/// A folder with a model and pictures, and the correct answers for the pictures.
pub struct Desk {
    pub dir: tempfile::TempDir,
    pub pictures: Vec<Picture>,
    /// Class and probability of each picture.
    pub wanted: Vec<(usize, f64)>,
}

impl Desk {
    /// Creates a model file and, next to it, a folder `images` with `count` pictures. The model classifies the pictures
    /// clearly, and into more than one class.
    pub fn new(count: usize) -> Desk {
        let dir = tempfile::tempdir().unwrap();
        let network = Network::random(1);
        network.write(&dir.path().join("model.safetensors"));
        let clear = |picture: &Picture| best(&network.scores(picture)).2 > 0.01;
        let pictures: Vec<Picture> = pictures(2 * count).into_iter().filter(clear).take(count).collect();
        assert_eq!(pictures.len(), count);
        let wanted: Vec<(usize, f64)> = pictures
            .iter()
            .map(|picture| {
                let (class, score, _) = best(&network.scores(picture));
                (class, score)
            })
            .collect();
        // Pictures of a single class would prove nothing.
        assert!(wanted.iter().any(|x| x.0 != wanted[0].0));
        std::fs::create_dir(dir.path().join("images")).unwrap();
        write_pictures(&dir.path().join("images"), &pictures);
        Desk { dir, pictures, wanted }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the command of the program with the model and the arguments in `line`, in which `@name` stands for the
    /// path of `name` in the folder.
    pub fn robot(&self, line: &str) -> Command {
        let folder = self.dir.path().to_str().unwrap();
        robot(&format!("--model @model.safetensors {line}").replace('@', &format!("{folder}/")))
    }

    /// Returns `true` if an answer for picture `index` is correct.
    pub fn is_right(&self, index: usize, class: u64, score: f64) -> bool {
        let (wanted, probability) = self.wanted[index % self.wanted.len()];
        // A probability changes by at most half as much as the difference between two scores.
        class == wanted as u64 && (score - probability).abs() < 20.0 * TOLERANCE
    }
}

/// Parses lines of JSON.
pub fn lines(bytes: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(bytes).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}

/// Returns the answers and the summary of a run, which must have succeeded.
pub fn account(output: &Output) -> (Vec<Value>, Value) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    split(output)
}

/// Returns the answers and the summary of a run, which may have failed.
pub fn split(output: &Output) -> (Vec<Value>, Value) {
    let mut all = lines(&output.stdout);
    let summary = all.pop().unwrap()["summary"].take();
    assert!(summary.is_object());
    (all, summary)
}

/// Checks that each frame with an index below `count` was answered once, in order and correctly. `picture` returns the
/// index of the picture that a frame shows.
pub fn check(desk: &Desk, answers: &[Value], count: u64, picture: impl Fn(u64) -> usize) {
    assert_eq!(answers.len() as u64, count);
    for (answer, frame) in answers.iter().zip(0..) {
        assert_eq!(answer["frame"], frame, "{answer}");
        let (class, score) = (answer["class"].as_u64().unwrap(), answer["score"].as_f64().unwrap());
        assert!(desk.is_right(picture(frame), class, score), "{answer} {:?}", desk.wanted);
    }
}
