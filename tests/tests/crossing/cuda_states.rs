//! Compares the device's definition of the softmax state with that of core, bit by bit: a program with `state.cuh`,
//! compiled for this machine, merges the states that this test sends. Also compares the gates of linear attention
//! (`exp.cuh`) with exponentials in f64.

use elsa_core::state::{State, log_sum_exp, natural_reference};
use elsa_oracle::random::seeded;
use elsa_oracle::standin::folder;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Returns states. Their references are whole numbers: close together, far apart, beyond `2^24`, absent, and at the
/// ends of the range. Their sums are zero, ordinary, subnormal, infinite or NaN.
fn states() -> Vec<[f32; 3]> {
    let mut random = seeded(17);
    let mut states =
        vec![[f32::NEG_INFINITY, 0.0, 0.0], [0.0, f32::NAN, f32::NAN], [f32::NEG_INFINITY, f32::NAN, 0.0]];
    let large = [28_853_902.0f32, 28_853_904.0, -5e8, 1_431_655_808.0, 2.9e9, -2.9e9, 3e38];
    for m in [-126.0f32, -1.0, 0.0, 1.0, 8.0, 126.0, 127.0, 1e6, -1e6].into_iter().chain(large) {
        for s in [1.0f32, 1.5, 0.0, 3e38, 1e-40, f32::INFINITY] {
            states.push([m, s, -s * 0.75]);
        }
    }
    for _ in 0..150 {
        let m = (random.normal() * 40.0).round();
        // `s` has twelve bits, so that sums of a few such numbers are exact.
        let s = (random.unit() * 4096.0).floor() as f32 / 256.0;
        states.push([m, s, (random.normal() * 256.0).round() / 16.0]);
    }
    states
}

/// Runs the program with `text` as its standard input and returns its output.
fn answer(arguments: &[&str], text: String) -> String {
    let mut command = Command::new(folder().join("states"));
    let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn gates_are_exponentials_within_an_ulp() {
    let mut random = seeded(19);
    let mut sums: Vec<f64> = vec![0.0, -0.0, 1.0, -1000.0, 1000.0, 88.7, 88.8, -87.3, -87.4, 1e300, -1e300];
    sums.extend([f64::NEG_INFINITY, f64::INFINITY, f64::NAN]);
    for scale in [1e-9, 1e-3, 0.1, 1.0, 20.0, 80.0] {
        sums.extend((0..5000).map(|_| f64::from(random.normal()) * scale));
    }
    let text = sums.iter().fold(String::new(), |text, x| text + &format!("{:x}\n", x.to_bits()));
    let output = answer(&["exp"], text);
    assert_eq!(output.lines().count(), sums.len());
    let mut worst = 0.0f64;
    for (x, line) in sums.iter().zip(output.lines()) {
        let bits: Vec<u32> = line.split(' ').map(|word| u32::from_str_radix(word, 16).unwrap()).collect();
        let [found, gate] = [bits[0], bits[1]].map(f32::from_bits);
        // The device represents a gate of −∞, which clears, by −1. It represents a gate beyond f32 by the negative
        // exponential of half the logarithm, which is applied twice.
        let most = f64::from(88.7f32);
        let of = |x: f64| match x {
            f64::NEG_INFINITY => -1.0,
            x if x > most && x < f64::INFINITY => -(x / 2.0).min(most).exp(),
            x => x.exp(),
        };
        for (found, want) in [(found, x.exp()), (gate, of(f64::from(*x as f32)))] {
            let good = if want.is_nan() {
                found.is_nan()
            } else if want >= 2f64.powi(128) {
                found == f32::INFINITY
            } else if want.abs() < f64::from(f32::MIN_POSITIVE) {
                found == 0.0
            } else {
                let error = (f64::from(found) / want - 1.0).abs();
                worst = worst.max(error);
                error <= f64::from(f32::EPSILON)
            };
            assert!(good, "e^{x}: {found}, not {want}");
        }
    }
    println!("relative error of gates at most {worst:.2e}");
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn merges_have_the_bits_of_core() {
    let states = states();
    let mut text = String::new();
    for a in &states {
        for b in &states {
            let words: Vec<String> = a.iter().chain(b).map(|x| format!("{:x}", x.to_bits())).collect();
            writeln!(text, "{}", words.join(" ")).unwrap();
        }
    }
    let output = answer(&[], text);
    let mut lines = output.lines();
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    for a in &states {
        for b in &states {
            let words: Vec<&str> = lines.next().unwrap().split(' ').collect();
            let float = |i: usize| f32::from_bits(u32::from_str_radix(words[i], 16).unwrap());
            let mut merged = State { m: a[0], s: a[1], w: [a[2]] };
            merged.merge(&State { m: b[0], s: b[1], w: [b[2]] });
            for (i, want) in [merged.m, merged.s, merged.w[0]].into_iter().enumerate() {
                assert!(same(float(i), want), "{a:?} {b:?}: word {i} is {}, not {want}", float(i));
            }
            // The device computes logarithm and exponential by series, which are as accurate as core's, but not
            // identical.
            let (lse, want) = (float(3), log_sum_exp(merged.m, f64::from(merged.s)));
            assert!(
                same(lse, want) || (lse - want).abs() <= want.abs() * f32::EPSILON,
                "{a:?} {b:?}: {lse}, {want}"
            );
            let (m, factor) = natural_reference(merged.m);
            assert!(same(float(4), m), "{a:?} {b:?}");
            let found = f64::from_bits(u64::from_str_radix(words[5], 16).unwrap());
            assert!((found / factor - 1.0).abs() < 1e-13, "{a:?} {b:?}: {found}, {factor}");
        }
    }
    assert!(lines.next().is_none());
    println!("{} merges", states.len() * states.len());
}
