//! Tests the layered decoder: its output has the same bits as the output of a decoder with all weights in memory, and
//! agrees with an independent layer in f64. Invalid requests are rejected.
#![allow(clippy::unwrap_used)]

use elsa_decoder::forward::{all_layers, buffers, differing, in_memory, streamed};
use elsa_decoder::layer::{Sizes, Weight};
use elsa_decoder::model::Model;
use elsa_decoder::weights::{Weights, noise};
use elsa_runtime::{Engine, EngineOptions};
use std::process::Command;

const SIZES: Sizes = Sizes { heads: 4, kv_heads: 2, head_dim: 16, mlp: 96 };

fn engine(threads: usize) -> Engine {
    Engine::new(&EngineOptions::default().threads(threads)).unwrap()
}

#[test]
fn weights_through_two_buffers_have_the_bits_of_weights_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    for layers in [0, 1, 2, 5] {
        let weights = Weights::random(folder.path(), SIZES, layers).unwrap();
        let all = all_layers(&weights).unwrap();
        for tokens in [1, 7, 64, 130] {
            let expected = in_memory(&engine(1), &weights, &all, tokens).unwrap();
            for threads in [1, 2] {
                let mut room = buffers(&weights).unwrap();
                let (found, row) = streamed(&engine(threads), &weights, &mut room, tokens).unwrap();
                assert_eq!(differing(&found, &expected), 0, "{layers} {tokens} {threads}");
                assert_eq!(row.times.bytes, (layers * weights.layer_bytes()) as u64);
                assert_eq!(row.times.parts, layers as u64);
                assert!(found.iter().all(|x| x.is_finite()) && (0.0..=1.0).contains(&row.times.overlap()));
            }
            // The weights of layers differ, and each layer changes the output.
            if layers > 1 {
                let mut swapped = all.clone();
                swapped.swap(0, 1);
                let other = in_memory(&engine(1), &weights, &swapped, tokens).unwrap();
                assert!(differing(&other, &expected) > expected.len() / 2);
            }
        }
    }
}

/// Computes a layer in f64, directly from its definition.
fn naive(weights: &[f32], x: &mut [f64], tokens: usize) {
    let Sizes { heads, kv_heads, head_dim, mlp } = SIZES;
    let dim = SIZES.dim();
    let of = |weight: Weight| -> Vec<f64> {
        weights[weight.range(&SIZES)].iter().map(|x| f64::from(*x)).collect()
    };
    let norm = |x: &[f64], scale: &[f64]| -> Vec<f64> {
        let row = |row: &[f64]| {
            let by = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / dim as f64 + 1e-5).sqrt();
            row.iter().zip(scale).map(|(x, s)| x * by * s).collect::<Vec<f64>>()
        };
        x.chunks(dim).flat_map(row).collect()
    };
    let times = |a: &[f64], b: &[f64], inner: usize, columns: usize| -> Vec<f64> {
        let cell = |i: usize, j: usize| (0..inner).map(|k| a[i * inner + k] * b[k * columns + j]).sum();
        (0..tokens).flat_map(|i| (0..columns).map(move |j| (i, j))).map(|(i, j)| cell(i, j)).collect()
    };
    let h = norm(x, &of(Weight::AttentionNorm));
    let kv = kv_heads * head_dim;
    let (q, k, v) = (
        times(&h, &of(Weight::Query), dim, dim),
        times(&h, &of(Weight::Key), dim, kv),
        times(&h, &of(Weight::Value), dim, kv),
    );
    let mut attended = vec![0.0; tokens * dim];
    for i in 0..tokens {
        for head in 0..heads {
            let shared = head / (heads / kv_heads);
            let score = |j: usize| -> f64 {
                let dot = |d: usize| q[i * dim + head * head_dim + d] * k[j * kv + shared * head_dim + d];
                (0..head_dim).map(dot).sum::<f64>() / (head_dim as f64).sqrt()
            };
            let most = (0..=i).map(score).fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = (0..=i).map(|j| (score(j) - most).exp()).collect();
            let all: f64 = weights.iter().sum();
            for d in 0..head_dim {
                let value = |(j, w): (usize, &f64)| w / all * v[j * kv + shared * head_dim + d];
                attended[i * dim + head * head_dim + d] = weights.iter().enumerate().map(value).sum();
            }
        }
    }
    let out = times(&attended, &of(Weight::Output), dim, dim);
    x.iter_mut().zip(out).for_each(|(x, y)| *x += y);
    let h = norm(x, &of(Weight::MlpNorm));
    let gate = times(&h, &of(Weight::Gate), dim, mlp);
    let up = times(&h, &of(Weight::Up), dim, mlp);
    let inner: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    let down = times(&inner, &of(Weight::Down), mlp, dim);
    x.iter_mut().zip(down).for_each(|(x, y)| *x += y);
}

#[test]
fn a_layer_is_what_its_definition_says() {
    let folder = tempfile::tempdir().unwrap();
    let weights = Weights::random(folder.path(), SIZES, 1).unwrap();
    let layer = &all_layers(&weights).unwrap()[0];
    let tokens = 33;
    let mut x = noise(3, tokens * SIZES.dim()).unwrap();
    let mut expected: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    Model::new(&engine(1), SIZES, tokens).unwrap().layer(layer, &mut x).unwrap();
    naive(layer, &mut expected, tokens);
    for (found, expected) in x.iter().zip(&expected) {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= 2e-5, "{found} {expected}");
    }
    assert!(Model::new(&engine(1), SIZES, tokens).unwrap().layer(&layer[1..], &mut x).is_err());
}

/// Returns the command line that runs the program. If the tests run in an emulator, the returned command line starts
/// with the emulator's command.
fn program() -> Vec<String> {
    let foreign = cfg!(target_arch = "aarch64");
    let runner =
        foreign.then(|| std::env::var("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER").ok()).flatten();
    let path = env!("CARGO_BIN_EXE_elsa-decoder");
    runner.unwrap_or_default().split_whitespace().chain([path]).map(str::to_owned).collect()
}

#[test]
fn the_program_prints_a_row_for_each_length_and_refuses_wrong_sizes() {
    let words = program();
    let run = |args: &[&str]| Command::new(&words[0]).args(&words[1..]).args(args).output().unwrap();
    let small =
        ["--layers", "3", "--heads", "2", "--kv-heads", "1", "--dim", "16", "--mlp", "40", "--threads", "1"];
    let output = run(&[&small[..], &["--tokens", "5,17", "--cold"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.matches("as in memory").count(), 2, "{text}");
    for words in ["copy ms", "compute ms", "wait ms", "Overlap_eff", "tok/s"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    for (wrong, words) in [
        (["--heads", "3", "--kv-heads", "2"], "--kv-heads: 2; allowed: a divisor of --heads"),
        (["--tokens", "0", "--layers", "1"], "--tokens: 0; allowed"),
        (["--mlp", "0", "--layers", "1"], "--mlp: 0; allowed"),
    ] {
        let output = run(&wrong);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && text.contains(words), "{text}");
    }
    let nowhere = run(&["--folder", "/nowhere/at/all", "--layers", "1"]);
    assert_eq!(nowhere.status.code(), Some(3));
}
