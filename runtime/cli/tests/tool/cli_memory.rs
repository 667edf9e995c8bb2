//! Tests the peak memory of `elsa run` and `elsa onnx rewrite`.
#![cfg(target_os = "linux")]

use crate::cli_onnx::{field, model};
use crate::common::{Desk, emulated, noise};
use safetensors::Dtype;
use std::process::{Child, Output};

const MB: usize = 1_000_000;

/// Waits until a process ends, and reads its peak memory several times per millisecond. Returns the largest sample in
/// bytes, or 0 without samples. Only samples of the tool or its emulator count. Before either of them starts, the
/// process is a shell, or still has the memory of the test process.
fn peak(mut child: Child) -> (usize, Output) {
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let name = text.lines().next().and_then(|line| line.strip_prefix("Name:\t")).unwrap_or_default();
        if (name == "elsa" || name.starts_with("qemu"))
            && let Some(line) = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))
        {
            let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().unwrap();
            peak = peak.max(kilobytes * 1024);
        }
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    (peak, child.wait_with_output().unwrap())
}

/// Requires that the run ends with exit status `code` and a peak of at most `most` bytes.
fn within(desk: &Desk, line: &str, code: i32, most: usize) {
    // An emulator needs additional memory.
    let most = most + if emulated() { 80 * MB } else { 0 };
    // A run that ends before its memory is sampled is repeated.
    let mut runs = (0..100).map(|_| peak(desk.start("", line)));
    let (peak, output) = runs.find(|(peak, _)| *peak > 0).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{line}: {text}");
    assert!(peak <= most, "{line}: {peak} bytes, allowed: {most}: {text}");
}

fn desk() -> Desk {
    let desk = Desk::new();
    desk.f32("q.npy", &[1, 1, 3, 8], &noise(1, 24));
    desk
}

const KEYS: &str = "--k @q.npy --v @q.npy --out @y.npy --threads 1";

fn safetensors(header: &str, payload: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), payload].concat()
}

#[test]
fn headers_take_memory_in_proportion() {
    let desk = desk();
    let write = |name: &str, bytes: &[u8]| std::fs::write(desk.path(name), bytes).unwrap();
    let tensors = |bytes: usize| {
        let mut header = String::from("{");
        for i in 0.. {
            if header.len() + 300 > bytes {
                break;
            }
            header += &format!(r#""{i:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},"#);
        }
        header + r#""q":{"dtype":"F32","shape":[1,1,3,8],"data_offsets":[0,96]}}"#
    };
    write("long.safetensors", &safetensors(&tensors(60 * MB), &[0; 96]));
    within(&desk, &format!("run --q @long.safetensors#q {KEYS}"), 2, 100 * MB);
    write("many.safetensors", &safetensors(&tensors(10 * MB), &[0; 96]));
    within(&desk, &format!("run --q @many.safetensors#q {KEYS}"), 0, 100 * MB);
    let mut text = String::from(r#"{"__metadata__":{"#);
    for i in 0..800_000 {
        text += &format!(r#""{i:x}":"","#);
    }
    text += r#""z":""},"q":{"dtype":"F32","shape":[1,1,3,8],"data_offsets":[0,96]}}"#;
    assert!(text.len() > 8 * MB);
    write("text.safetensors", &safetensors(&text, &[0; 96]));
    within(&desk, &format!("run --q @text.safetensors#q {KEYS}"), 0, 100 * MB);
    // The header consists of brackets only, each nested in the previous one.
    write("deep.safetensors", &safetensors(&format!(r#"{{"q":{}"#, "[".repeat(9 * MB)), &[]));
    within(&desk, &format!("run --q @deep.safetensors#q {KEYS}"), 2, 100 * MB);

    let mut npy = b"\x93NUMPY\x02\x00".to_vec();
    npy.extend((60 * MB as u32).to_le_bytes());
    npy.resize(60 * MB + 12, b' ');
    write("long.npy", &npy);
    within(&desk, &format!("run --q @long.npy {KEYS}"), 2, 50 * MB);

    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for i in 0..65_000 {
        zip.start_file(format!("{i:x}"), options).unwrap();
    }
    write("many.npz", zip.finish().unwrap().get_ref());
    within(&desk, &format!("run --q @many.npz#q {KEYS}"), 2, 100 * MB);
}

/// Checks that only one copy of the output is in memory, with an output that is much larger than the inputs.
#[test]
fn an_output_is_held_once() {
    let desk = Desk::new();
    let (queries, values) = (1 << 17, 256);
    desk.f32("q.npy", &[queries, 1], &noise(1, queries));
    desk.f32("k.npy", &[1, 1], &[1.0]);
    desk.f32("v.npy", &[1, values], &noise(2, values));
    let output = queries * values * 4;
    let inputs = "run --q @q.npy --k @k.npy --v @v.npy --threads 1 --backend scalar";
    within(&desk, &format!("{inputs} --out @y.safetensors#y"), 0, output * 3 / 2);
    // Tensors that the file already contains must not be in memory twice either.
    within(&desk, &format!("{inputs} --lse-out @y.safetensors#l --out @y.npy"), 0, output * 3 / 2);
}

/// Checks that only one copy of an input is in memory, even if its elements are not aligned in the file.
#[test]
fn an_input_is_held_once() {
    let desk = desk();
    let (keys, dim) = (1 << 18, 64);
    let bytes = keys * dim * 4;
    let header =
        format!(r#"{{"k":{{"dtype":"F32","shape":[1,1,{keys},{dim}],"data_offsets":[0,{bytes}]}}}}"#);
    let mut file = safetensors(&format!("{header:<101}"), &[]);
    assert!(!file.len().is_multiple_of(4));
    file.resize(file.len() + bytes, 0);
    std::fs::write(desk.path("k.safetensors"), file).unwrap();
    desk.f32("q.npy", &[1, 1, 1, dim], &noise(1, dim));
    desk.f32("v.npy", &[1, 1, keys, 1], &noise(1, keys));
    let line = "run --q @q.npy --k @k.safetensors#k --v @v.npy --out @y.npy --threads 1 --backend scalar";
    within(&desk, line, 0, bytes * 3 / 2);
    // A tensor that is used both as keys and as values is read once.
    let line = line.replace("@v.npy", "@k.safetensors#k");
    within(&desk, &line, 0, bytes * 3 / 2);

    // A tensor of f64 is never completely in memory.
    let halves = vec![0u8; bytes];
    desk.safetensors("k.safetensors", &[("k", Dtype::F64, &[1, 1, keys, dim / 2], &halves)]);
    desk.f32("q.npy", &[1, 1, 1, dim / 2], &noise(1, dim / 2));
    within(&desk, &line, 0, bytes);
}

/// A rewritten model is written from the parts of the original file, not from a copy of its weights.
#[test]
fn a_model_is_rewritten_in_half_as_much_memory_again() {
    let desk = Desk::new();
    let weights = vec![1; 128 * MB];
    let tensor = [&[1 << 3, 32, 2 << 3, 1][..], &field(8, b"weights"), &field(9, &weights)].concat();
    let bytes = model(&field(5, &tensor));
    std::fs::write(desk.path("m.onnx"), &bytes).unwrap();
    within(&desk, "onnx rewrite @m.onnx @o.onnx --check off", 0, bytes.len() * 3 / 2);
    let found = std::fs::read(desk.path("o.onnx")).unwrap();
    assert_ne!(found, bytes);
    assert!(found.windows(MB).any(|at| at == &weights[..MB]));
}
