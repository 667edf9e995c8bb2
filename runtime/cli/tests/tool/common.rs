//! Shared code of the tool's tests: calls, files, and attention in f64 from its definition.
#![allow(dead_code)]

use elsa_core::random;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::Value;
use std::fs::File;
use std::io::{Cursor, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// Returns the command, with its arguments, that emulates the architecture of the tests; `None` if no emulator is
/// needed. The command is the value of the environment variable with which Cargo is told how to run the tests
/// themselves.
fn runner() -> Option<String> {
    let foreign = cfg!(target_arch = "aarch64");
    foreign.then(|| std::env::var("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER").ok()).flatten()
}

/// Returns `true` if the tool runs in an emulator. Tests are then skipped or use smaller problems.
pub fn emulated() -> bool {
    runner().is_some()
}

/// Returns the words that start the tool: the emulator's words, if there is one, and the path of the tool.
pub fn tool() -> Vec<String> {
    let runner = runner().unwrap_or_default();
    runner.split_whitespace().chain([env!("CARGO_BIN_EXE_elsa")]).map(str::to_owned).collect()
}

/// Runs the tool with `args`. If the tests run in an emulator, the tool runs in it too.
pub fn elsa<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Output {
    elsa_with(args, &[])
}

/// Runs the tool like [`elsa`], with the given environment variables.
pub fn elsa_with<S: AsRef<std::ffi::OsStr>>(args: &[S], variables: &[(&str, &str)]) -> Output {
    let words = tool();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(args).envs(variables.iter().copied()).output().unwrap()
}

/// Returns what a call printed on standard error.
pub fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs `elsa bench` and requires exit status 0 or 5. Status 5 means that other programs disturbed some rows;
/// concurrent tests may do so.
pub fn bench<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Output {
    let words = std::iter::once("bench".into()).chain(args.iter().map(|arg| arg.as_ref().to_owned()));
    let words: Vec<std::ffi::OsString> = words.collect();
    let output = elsa(&words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 5)), "{:?}: {said}", output.status);
    output
}

/// Processes that keep cores busy until this value is dropped.
pub struct Busy(Vec<Child>);

impl Busy {
    /// Starts `count` processes. Each process uses a whole core.
    pub fn with(count: usize) -> Busy {
        let spin = |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        Busy((0..count).map(spin).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Parses each line of `text`.
pub fn lines(text: impl AsRef<[u8]>) -> Vec<Value> {
    let text = std::str::from_utf8(text.as_ref()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Parses the rows that `elsa bench --json` prints.
pub fn cells(text: &[u8]) -> Vec<Value> {
    lines(text).into_iter().filter(|line| line["what"] == "bench").collect()
}

/// Waits until `holds` returns `true`; panics with `what` after a minute.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A temporary folder with the files for calls of the tool.
pub struct Desk(pub tempfile::TempDir);

impl Desk {
    pub fn new() -> Desk {
        Desk(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn words(&self, line: &str) -> Vec<String> {
        let folder = self.0.path().to_str().unwrap();
        line.split_whitespace().map(|word| word.replace('@', &format!("{folder}/"))).collect()
    }

    /// Runs the tool. In `line`, `@name` stands for the path of the file `name` in the folder.
    pub fn call(&self, line: &str) -> Output {
        elsa(&self.words(line))
    }

    /// Starts the tool with `line`, as [`Desk::call`] does, from a shell that first runs `first`. Before that, signals
    /// that the tests ignore, for example under `nohup`, are reset to their default actions.
    pub fn start(&self, first: &str, line: &str) -> Child {
        Command::new("env")
            .args(["--default-signal", "sh", "-c", &format!("{first}\nexec \"$@\""), "sh"])
            .args(tool())
            .args(self.words(line))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Runs all `lines` concurrently, and requires that they succeed. Each line, as in [`Desk::call`], runs in its own
    /// process with one thread.
    pub fn together(&self, lines: impl Iterator<Item = String>) {
        let tool = tool();
        let start = |line: String| {
            let mut command = Command::new(&tool[0]);
            command.args(&tool[1..]).args(self.words(&line)).args(["--threads", "1"]);
            (command.stderr(Stdio::piped()).spawn().unwrap(), line)
        };
        for (child, line) in lines.map(start).collect::<Vec<_>>() {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    /// Returns the examples in the help of a command, as lines for [`Desk::call`].
    pub fn examples(&self, verb: &str) -> Vec<String> {
        let help = self.ok(&format!("{verb} --help")).replace("\\\n", "");
        let is_file = |word: &str| word.ends_with(".npy") || word.ends_with(".npz");
        let word = |word: &str| if is_file(word) { format!("@{word}") } else { word.to_owned() };
        let examples = help.lines().filter_map(|line| line.strip_prefix("  elsa "));
        examples.map(|line| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")).collect()
    }

    /// Calls the tool like [`Desk::call`] and requires success. Returns the standard output.
    pub fn ok(&self, line: &str) -> String {
        let output = self.call(line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Calls the tool like [`Desk::ok`], and parses what it prints.
    pub fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.ok(line)).unwrap()
    }

    /// Requires that a call is refused with exit status 2 and one line that contains all `words`, and that no file
    /// changes. Returns the line.
    pub fn refuses(&self, line: &str, words: &[&str]) -> String {
        let before = self.contents();
        let output = self.call(line);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{line}: {text}");
        assert!(text.ends_with('\n') && output.stdout.is_empty(), "{line}: {text}");
        for word in words {
            assert!(text.contains(word), "{line}: '{word}' is missing in: {text}");
        }
        assert!(before == self.contents(), "{line}: files changed");
        text
    }

    /// Checks each call like [`Desk::refuses`]. In addition, the first of the words must follow the tool's name at the
    /// start of the printed line. Bars separate the words.
    pub fn refuse_all<'a, L: AsRef<str>>(&self, calls: impl IntoIterator<Item = (L, &'a str)>) {
        for (line, words) in calls {
            let (line, words): (&str, Vec<&str>) = (line.as_ref(), words.split('|').collect());
            let text = self.refuses(line, &words);
            assert!(text.starts_with(&format!("elsa: {}", words[0])), "{line}: {text}");
        }
    }

    /// Lists the files in the folder, with the bytes of each readable file.
    fn contents(&self) -> Vec<(String, Option<Vec<u8>>)> {
        self.list().into_iter().map(|name| (name.clone(), std::fs::read(self.path(&name)).ok())).collect()
    }

    pub fn f32(&self, name: &str, shape: &[usize], data: &[f32]) {
        self.npy(name, "<f4", shape, bytemuck::cast_slice(data));
    }

    /// Writes `q.npy`, `k.npy` and `v.npy`; the queries are noise times `gain`. Returns their elements.
    pub fn qkv(&self, n: Sizes, gain: f32) -> [Vec<f32>; 3] {
        let q = noise(1, count(&n.q())).iter().map(|x| x * gain).collect();
        let data = [q, noise(2, count(&n.k())), noise(3, count(&n.v()))];
        for ((name, shape), x) in [("q", n.q()), ("k", n.k()), ("v", n.v())].into_iter().zip(&data) {
            self.f32(&format!("{name}.npy"), &shape, x);
        }
        data
    }

    pub fn i64(&self, name: &str, data: &[i64]) {
        self.npy(name, "<i8", &[data.len()], bytemuck::cast_slice(data));
    }

    pub fn bool(&self, name: &str, shape: &[usize], data: &[bool]) {
        self.npy(name, "|b1", shape, &data.iter().map(|&x| u8::from(x)).collect::<Vec<u8>>());
    }

    pub fn npy(&self, name: &str, descr: &str, shape: &[usize], bytes: &[u8]) {
        std::fs::write(self.path(name), npy(descr, "False", shape, bytes)).unwrap();
    }

    /// Writes a `.safetensors` file. A tensor has a name, a type, a shape and the bytes of its elements.
    pub fn safetensors(&self, name: &str, tensors: &[(&str, Dtype, &[usize], &[u8])]) {
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
            (*name, TensorView::new(*dtype, shape.to_vec(), bytes).unwrap())
        });
        std::fs::write(self.path(name), safetensors::serialize(views, None).unwrap()).unwrap();
    }

    /// Writes an archive of `.npy` files, each with the name of its array.
    pub fn npz(&self, name: &str, arrays: &[(&str, Vec<u8>)], method: CompressionMethod) {
        let mut zip = ZipWriter::new(File::create(self.path(name)).unwrap());
        for (array, bytes) in arrays {
            let options = SimpleFileOptions::default().compression_method(method);
            zip.start_file(format!("{array}.npy"), options).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap();
    }

    /// Returns the `.npy` file of an array in an archive.
    pub fn array(&self, name: &str, array: &str) -> Vec<u8> {
        array_of(&std::fs::read(self.path(name)).unwrap(), array)
    }

    /// Reads the shape and elements of an f32 `.npy` file without the tool's own reader.
    pub fn read(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        read_f32(&std::fs::read(self.path(name)).unwrap())
    }

    /// Lists the names of the files in the folder, sorted.
    pub fn list(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// Encodes a `.npy` file of version 1 without the tool's own writer.
pub fn npy(descr: &str, fortran: &str, shape: &[usize], bytes: &[u8]) -> Vec<u8> {
    let axes: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': ({axes}), }}\n");
    let header = header.replace("(, )", "()");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(bytes);
    file
}

/// Returns the `.npy` file of an array in the bytes of an archive.
pub fn array_of(archive: &[u8], array: &str) -> Vec<u8> {
    let mut zip = ZipArchive::new(Cursor::new(archive)).unwrap();
    let mut bytes = Vec::new();
    zip.by_name(&format!("{array}.npy")).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

pub fn read_f32(bytes: &[u8]) -> (Vec<usize>, Vec<f32>) {
    let file = npyz::NpyFile::new(bytes).unwrap();
    let shape = file.shape().iter().map(|&n| n as usize).collect();
    (shape, file.into_vec::<f32>().unwrap())
}

/// Returns `count` random numbers between −1 and 1.
pub fn noise(seed: u64, count: usize) -> Vec<f32> {
    random::noise(seed, count).collect()
}

/// Sizes of a problem with tensors `[batch, heads, tokens, dim]`.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub b: usize,
    pub h: usize,
    pub hk: usize,
    pub nq: usize,
    pub nk: usize,
    pub d: usize,
    pub dv: usize,
}

impl Sizes {
    pub fn q(&self) -> [usize; 4] {
        [self.b, self.h, self.nq, self.d]
    }
    pub fn k(&self) -> [usize; 4] {
        [self.b, self.hk, self.nk, self.d]
    }
    pub fn v(&self) -> [usize; 4] {
        [self.b, self.hk, self.nk, self.dv]
    }
    pub fn out(&self) -> [usize; 4] {
        [self.b, self.h, self.nq, self.dv]
    }

    /// Returns the default scale of the scores, rounded to f32.
    pub fn scale(&self) -> f64 {
        f64::from((1.0 / (self.d as f64).sqrt()) as f32)
    }
}

/// Returns the score `s` if `yes` is set. Otherwise returns `−∞`, the score of a masked key.
pub fn keep(yes: bool, s: f64) -> f64 {
    if yes { s } else { f64::NEG_INFINITY }
}

pub fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Output and log-sum-exp of every row of the f64 reference.
pub struct Answer {
    pub y: Vec<f64>,
    pub lse: Vec<f64>,
}

/// Computes attention in f64. `score(b, h, i, j, s)` returns the score for the scaled dot product `s`, and `−∞` for a
/// key that is not attended.
pub fn attention(
    n: Sizes,
    scale: f64,
    [q, k, v]: [&[f32]; 3],
    score: impl Fn(usize, usize, usize, usize, f64) -> f64,
) -> Answer {
    let mut answer = Answer { y: Vec::new(), lse: Vec::new() };
    for b in 0..n.b {
        for h in 0..n.h {
            let kv = b * n.hk + h / (n.h / n.hk);
            for i in 0..n.nq {
                let q = &q[((b * n.h + h) * n.nq + i) * n.d..][..n.d];
                let scores: Vec<f64> = (0..n.nk)
                    .map(|j| {
                        let k = &k[(kv * n.nk + j) * n.d..][..n.d];
                        let dot: f64 = q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                        score(b, h, i, j, dot * scale)
                    })
                    .collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores
                    .iter()
                    .map(|s| if *s == f64::NEG_INFINITY { 0.0 } else { (s - max).exp() })
                    .collect();
                let sum: f64 = weights.iter().sum();
                for c in 0..n.dv {
                    let terms = (0..n.nk).filter(|&j| weights[j] != 0.0);
                    let w: f64 = terms.map(|j| weights[j] * f64::from(v[(kv * n.nk + j) * n.dv + c])).sum();
                    answer.y.push(if sum == 0.0 { 0.0 } else { w / sum });
                }
                answer.lse.push(if sum == 0.0 { f64::NEG_INFINITY } else { max + sum.ln() });
            }
        }
    }
    answer
}

/// Computes `‖a − b‖ / ‖b‖`.
pub fn distance(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let error: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    let norm: f64 = b.iter().map(|b| b * b).sum();
    (error / norm).sqrt()
}

/// Transposes `[b, h, n, d]` to `[b, n, h, d]`.
pub fn swap_heads(x: &[f32], [b, h, n, d]: [usize; 4]) -> Vec<f32> {
    let mut y = Vec::with_capacity(x.len());
    for b in 0..b {
        for n_ in 0..n {
            for h_ in 0..h {
                y.extend_from_slice(&x[((b * h + h_) * n + n_) * d..][..d]);
            }
        }
    }
    y
}
