//! Tests element types other than f32 and file formats other than `.npy`. Each must yield the same output as the same
//! numbers in f32 and `.npy`.

use crate::common::{self, Desk, count, noise};
use safetensors::Dtype;
use zip::CompressionMethod;

const SHAPE: [usize; 4] = [2, 4, 19, 16];

/// Creates a folder with q, k and v in f32. Returns the folder and the attention output of these tensors.
fn desk() -> (Desk, Vec<f32>) {
    let desk = Desk::new();
    for (seed, name) in [(1, "q.npy"), (2, "k.npy"), (3, "v.npy")] {
        desk.f32(name, &SHAPE, &noise(seed, count(&SHAPE)));
    }
    desk.ok("run --q @q.npy --k @k.npy --v @v.npy --out @y.npy");
    let answer = desk.read("y.npy").1;
    (desk, answer)
}

fn stderr(desk: &Desk, line: &str) -> String {
    let output = desk.call(line);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{line}: {text}");
    text
}

#[test]
fn f64_is_rounded_to_f32_with_a_notice() {
    let (desk, answer) = desk();
    // The relative distance to the next f32 is at least 6e-8, so rounding removes the added 1e-9.
    let wide: Vec<f64> = noise(2, count(&SHAPE)).iter().map(|&x| f64::from(x) * (1.0 + 1e-9)).collect();
    desk.npy("k8.npy", "<f8", &SHAPE, bytemuck::cast_slice(&wide));
    desk.safetensors("k8.safetensors", &[("k", Dtype::F64, &SHAPE, bytemuck::cast_slice(&wide))]);
    for file in ["k8.npy", "k8.safetensors#k"] {
        let said = stderr(&desk, &format!("run --q @q.npy --k @{file} --v @v.npy --out @y8.npy"));
        let first = said.lines().next().unwrap();
        assert!(first.starts_with("elsa: --k: ") && first.ends_with(": f64 is rounded to f32"), "{said}");
        assert_eq!(desk.read("y8.npy"), (SHAPE.to_vec(), answer.clone()), "{file}");
    }
    // The queries are rounded to f32, so the output is f32 too.
    let wide: Vec<f64> = noise(1, count(&SHAPE)).iter().map(|&x| f64::from(x)).collect();
    desk.npy("q8.npy", "<f8", &SHAPE, bytemuck::cast_slice(&wide));
    let said = stderr(&desk, "run --q @q8.npy --k @k.npy --v @v.npy --out @y8.npy");
    assert!(said.contains("--q: ") && said.contains("f64 is rounded") && !said.contains("--k: "), "{said}");
    assert_eq!(desk.read("y8.npy").1, answer);
    assert!(!stderr(&desk, "run --q @q.npy --k @k.npy --v @v.npy --out @y8.npy").contains("f64"));

    // In an additive mask, the smallest f64 masks a key, and the output stays finite.
    let mask: Vec<f64> = (0..19 * 19).map(|i| if i % 19 > i / 19 { f64::MIN } else { 0.0 }).collect();
    desk.npy("mask.npy", "<f8", &[19, 19], bytemuck::cast_slice(&mask));
    let said = stderr(&desk, "run --q @q.npy --k @k.npy --v @v.npy --out @ym.npy --mask @mask.npy");
    assert!(said.contains("--mask: ") && said.contains("f64 is rounded to f32"), "{said}");
    desk.ok("run --q @q.npy --k @k.npy --v @v.npy --out @yc.npy --causal=top-left");
    let (masked, causal) = (desk.read("ym.npy").1, desk.read("yc.npy").1);
    assert!(masked.iter().zip(&causal).all(|(a, b)| (a - b).abs() <= 1e-6));
    assert_ne!(causal, answer);

    // A refused request prints only its error, without the notice about rounding.
    let output = desk.call("run --q @q.npy --k @k8.npy --v @v.npy --out @y8.npy --heads 3");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
}

#[test]
fn a_uint8_mask_is_a_boolean_mask() {
    let (desk, answer) = desk();
    let bits: Vec<bool> = noise(9, 19 * 19).iter().map(|&x| x < 0.3).collect();
    desk.bool("bits.npy", &[19, 19], &bits);
    // Every byte other than zero counts as true.
    let bytes: Vec<u8> =
        bits.iter().enumerate().map(|(i, &bit)| if bit { (i % 255 + 1) as u8 } else { 0 }).collect();
    desk.npy("bytes.npy", "|u1", &[19, 19], &bytes);
    desk.safetensors("m.safetensors", &[("m", Dtype::U8, &[19, 19], &bytes)]);
    let masked = |file: &str| {
        desk.ok(&format!("run --q @q.npy --k @k.npy --v @v.npy --out @y.npy --mask @{file}"));
        desk.read("y.npy").1
    };
    let expected = masked("bits.npy");
    assert_ne!(expected, answer);
    assert_eq!(masked("bytes.npy"), expected);
    assert_eq!(masked("m.safetensors#m"), expected);
}

#[test]
fn inputs_are_read_from_npz() {
    let (desk, answer) = desk();
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let read = |name: &'static str| (name, std::fs::read(desk.path(&format!("{name}.npy"))).unwrap());
        let lens = common::npy("<i8", "False", &[2], bytemuck::cast_slice(&[19i64, 7]));
        desk.npz("in.npz", &[read("q"), read("k"), read("v"), ("lens", lens)], method);
        let inputs = "run --q @in.npz#q --k @in.npz#k --v @in.npz#v";
        desk.ok(&format!("{inputs} --out @z.npy"));
        assert_eq!(desk.read("z.npy"), (SHAPE.to_vec(), answer.clone()));
        desk.ok(&format!("{inputs} --out @z.npy --kv-lens @in.npz#lens"));
        assert_ne!(desk.read("z.npy").1, answer);
        let output = desk.call(&format!("{inputs} --out @z.npy --mask @in.npz#mask"));
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(
            text.contains("--mask") && text.contains("no tensor 'mask'; allowed: k, lens, q, v"),
            "{text}"
        );
    }
    // The archive of states that the tool writes can be read like any other archive.
    desk.ok("run --q @q.npy --k @k.npy --v @v.npy --out @z.npy --state-out @state.npz");
    desk.ok("run --q @state.npz#W --k @k.npy --v @v.npy --out @z.npy");
    desk.ok("verify --q @in.npz#q --k @in.npz#k --v @in.npz#v");
}
