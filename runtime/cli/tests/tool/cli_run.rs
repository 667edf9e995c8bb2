//! Tests `elsa run` and `elsa warmup` through the binary. For every flag of `run`, the output is compared with
//! attention in f64, and the flag must change the output.

use crate::common::{self, Desk, Sizes, attention, count, distance, elsa, keep, noise, swap_heads};
use elsa_core::drift::larger;
use half::{bf16, f16};
use serde_json::Value;

/// Maximum relative distance of a correct output from the reference. It allows for the error of a few hundred f32
/// additions without much cancellation.
const CLOSE: f64 = 1e-6;
/// Minimum relative change that a flag with an effect makes in the output.
const FAR: f64 = 1e-2;

const N: Sizes = Sizes { b: 2, h: 4, hk: 4, nq: 19, nk: 45, d: 16, dv: 16 };

fn desk(n: Sizes) -> (Desk, [Vec<f32>; 3]) {
    let desk = Desk::new();
    // The scores are spread over several units, so that every key has a different weight.
    let data = desk.qkv(n, 4.0);
    (desk, data)
}

const FILES: &str = "run --q @q.npy --k @k.npy --v @v.npy --out @y.npy";

fn views(x: &[Vec<f32>; 3]) -> [&[f32]; 3] {
    [&x[0], &x[1], &x[2]]
}

/// Runs the tool with `flags`. Requires that the output is close to attention with the scores `score` and far from
/// attention with the scores `other`.
fn agrees(
    n: Sizes,
    desk: &Desk,
    data: &[Vec<f32>; 3],
    flags: &str,
    factor: f64,
    score: impl Fn(usize, usize, usize, usize, f64) -> f64,
    other: impl Fn(usize, usize, usize, usize, f64) -> f64,
) {
    desk.ok(&format!("{FILES} {flags}"));
    let (shape, y) = desk.read("y.npy");
    assert_eq!(shape, n.out());
    let near = distance(&y, &attention(n, factor, views(data), score).y);
    assert!(near < CLOSE, "{flags}: {near:e}");
    let far = distance(&y, &attention(n, factor, views(data), other).y);
    assert!(far > FAR, "{flags}: makes no difference, {far:e}");
}

#[test]
fn every_layout_has_the_same_answer_in_its_own_shape() {
    let (desk, data) = desk(N);
    let expected = attention(N, N.scale(), views(&data), |_, _, _, _, s| s).y;
    desk.ok(FILES);
    let (shape, y) = desk.read("y.npy");
    assert_eq!(shape, N.out());
    assert!(distance(&y, &expected) < CLOSE);

    for (name, x, s) in [("q", &data[0], N.q()), ("k", &data[1], N.k()), ("v", &data[2], N.v())] {
        let swapped = swap_heads(x, s);
        desk.f32(&format!("{name}n.npy"), &[s[0], s[2], s[1], s[3]], &swapped);
        desk.f32(&format!("{name}c.npy"), &[s[0], s[2], s[1] * s[3]], &swapped);
    }
    let swapped = swap_heads(&y, N.out());
    desk.ok("run --q @qn.npy --k @kn.npy --v @vn.npy --out @yn.npy --layout bnhd");
    assert_eq!(desk.read("yn.npy"), (vec![2, 19, 4, 16], swapped.clone()));
    desk.ok("run --q @qc.npy --k @kc.npy --v @vc.npy --out @yc.npy --layout bnc --heads 4");
    assert_eq!(desk.read("yc.npy"), (vec![2, 19, 64], swapped));

    // Tensors of one sequence have three axes, and tensors of one head have two.
    for (name, x, s) in [("q", &data[0], N.q()), ("k", &data[1], N.k()), ("v", &data[2], N.v())] {
        desk.f32(&format!("{name}3.npy"), &s[1..], &x[..count(&s[1..])]);
        desk.f32(&format!("{name}2.npy"), &s[2..], &x[..count(&s[2..])]);
    }
    desk.ok("run --q @q3.npy --k @k3.npy --v @v3.npy --out @y3.npy");
    assert_eq!(desk.read("y3.npy"), (vec![4, 19, 16], y[..4 * 19 * 16].to_vec()));
    desk.ok("run --q @q2.npy --k @k2.npy --v @v2.npy --out @y2.npy");
    assert_eq!(desk.read("y2.npy"), (vec![19, 16], y[..19 * 16].to_vec()));
}

#[test]
fn heads_are_shared_and_head_sizes_differ() {
    let n = Sizes { h: 6, hk: 2, dv: 9, d: 10, ..N };
    let (desk, data) = desk(n);
    desk.ok(&format!("{FILES} --heads 6 --kv-heads 2"));
    let (shape, y) = desk.read("y.npy");
    assert_eq!(shape, n.out());
    assert!(distance(&y, &attention(n, n.scale(), views(&data), |_, _, _, _, s| s).y) < CLOSE);
    let swapped: Vec<Vec<f32>> =
        [(0, n.q()), (1, n.k()), (2, n.v())].iter().map(|(i, s)| swap_heads(&data[*i], *s)).collect();
    desk.f32("qc.npy", &[2, 19, 60], &swapped[0]);
    desk.f32("kc.npy", &[2, 45, 20], &swapped[1]);
    desk.f32("vc.npy", &[2, 45, 18], &swapped[2]);
    desk.ok("run --q @qc.npy --k @kc.npy --v @vc.npy --out @yc.npy --layout bnc --heads 6 --kv-heads 2");
    assert_eq!(desk.read("yc.npy"), (vec![2, 19, 54], swap_heads(&y, n.out())));
}

#[test]
fn scale_and_softcap_act() {
    let (desk, data) = desk(N);
    let plain = |_, _, _, _, s| s;
    agrees(N, &desk, &data, "--scale 0.75", 0.75, plain, |_, _, _, _, s: f64| s / 3.0);
    agrees(N, &desk, &data, "--scale -0.5", -0.5, plain, |_, _, _, _, s: f64| -s);
    let cap = |_, _, _, _, s: f64| 0.7 * (s / 0.7).tanh();
    agrees(N, &desk, &data, "--softcap 0.7", N.scale(), cap, plain);
    desk.ok(&format!("{FILES} --softcap 0"));
    assert!(distance(&desk.read("y.npy").1, &attention(N, N.scale(), views(&data), plain).y) < CLOSE);
}

#[test]
fn causal_and_window_act() {
    let (desk, data) = desk(N);
    let plain = |_, _, _, _, s| s;
    let top = |_, _, i, j, s| keep(j <= i, s);
    let bottom = |_, _, i: usize, j: usize, s| keep(j <= i + 26, s);
    agrees(N, &desk, &data, "--causal=top-left", N.scale(), top, plain);
    agrees(N, &desk, &data, "--causal=bottom-right", N.scale(), bottom, top);
    agrees(N, &desk, &data, "--causal", N.scale(), top, bottom);
    let window = |_, _, i: usize, j: usize, s| keep(j + 3 >= i && j <= i + 5, s);
    agrees(N, &desk, &data, "--window 3,5", N.scale(), window, plain);
    let left = |_, _, i: usize, j: usize, s| keep(j + 3 >= i, s);
    agrees(N, &desk, &data, "--window 3,-1", N.scale(), left, plain);
    let right = |_, _, i: usize, j: usize, s| keep(j <= i + 5, s);
    agrees(N, &desk, &data, "--window -1,5", N.scale(), right, plain);
    let both = |_, _, i: usize, j: usize, s| keep(j + 7 >= i + 26 && j <= i + 26, s);
    agrees(N, &desk, &data, "--causal=bottom-right --window 7,-1", N.scale(), both, bottom);
}

#[test]
fn key_lengths_act() {
    let (desk, data) = desk(N);
    desk.i64("lens.npy", &[45, 30]);
    let short = |b: usize, _, _, j: usize, s| keep(j < [45, 30][b], s);
    agrees(N, &desk, &data, "--kv-lens @lens.npy", N.scale(), short, |_, _, _, _, s| s);
    let bottom = |_, _, i: usize, j: usize, s| keep(j <= i + 26, s);
    let lens = |b: usize, _, i: usize, j: usize, s| {
        let valid = [45, 30][b];
        keep(j < valid && j as isize <= i as isize + valid as isize - 19, s)
    };
    agrees(N, &desk, &data, "--causal=bottom-right --kv-lens @lens.npy", N.scale(), lens, bottom);
}

#[test]
fn masks_of_every_kind_and_rank_act() {
    let (desk, data) = desk(N);
    let plain = |_, _, _, _, s| s;
    let shapes: [&[usize]; 6] = [&[45], &[19, 45], &[4, 1, 45], &[2, 1, 19, 45], &[2, 4, 19, 45], &[19, 1]];
    for (t, shape) in shapes.into_iter().enumerate() {
        let bits: Vec<bool> = noise(10 + t as u64, count(shape)).iter().map(|x| *x < 0.2).collect();
        let numbers: Vec<f32> = noise(20 + t as u64, count(shape)).iter().map(|x| x * 3.0).collect();
        let mut full = [1; 4];
        full[4 - shape.len()..].copy_from_slice(shape);
        let at = move |b: usize, h: usize, i: usize, j: usize| {
            let index = [b, h, i, j];
            (0..4).fold(0, |at, a| at * full[a] + if full[a] == 1 { 0 } else { index[a] })
        };
        desk.bool("mask.npy", shape, &bits);
        let mutated: Vec<bool> = bits.iter().map(|x| !x).collect();
        let masked = |b, h, i, j, s| keep(bits[at(b, h, i, j)], s);
        let other = |b, h, i, j, s| keep(mutated[at(b, h, i, j)], s);
        agrees(N, &desk, &data, "--mask @mask.npy", N.scale(), masked, other);
        desk.f32("bias.npy", shape, &numbers);
        let biased = |b, h, i, j, s: f64| s + f64::from(numbers[at(b, h, i, j)]);
        if shape != [19, 1] {
            agrees(N, &desk, &data, "--mask @bias.npy", N.scale(), biased, plain);
        }
        let halves: Vec<f16> = numbers.iter().map(|&x| f16::from_f32(x)).collect();
        desk.npy("half.npy", "<f2", shape, bytemuck::cast_slice(&halves));
        let halved = |b, h, i, j, s: f64| s + halves[at(b, h, i, j)].to_f64();
        if shape != [19, 1] {
            agrees(N, &desk, &data, "--mask @half.npy", N.scale(), halved, plain);
        }
    }
}

/// Runs a transformer layer with twelve heads, a padded batch, and a boolean mask. The masked keys and values are NaN.
#[test]
fn a_padded_layer_of_twelve_heads() {
    let n = Sizes { b: 3, h: 12, hk: 12, nq: 77, nk: 77, d: 64, dv: 64 };
    let (desk, mut data) = desk(n);
    let lens = [77usize, 50, 1];
    let mut bits = Vec::new();
    for (b, len) in lens.iter().enumerate() {
        bits.extend((0..n.nk).map(|j| j < *len));
        for h in 0..n.h {
            for j in *len..n.nk {
                for x in &mut data[1..] {
                    x[((b * n.h + h) * n.nk + j) * 64..][..64].fill(f32::NAN);
                }
            }
        }
    }
    desk.f32("k.npy", &n.k(), &data[1]);
    desk.f32("v.npy", &n.v(), &data[2]);
    desk.bool("mask.npy", &[3, 1, 1, 77], &bits);
    desk.ok(&format!("{FILES} --mask @mask.npy"));
    let (_, y) = desk.read("y.npy");
    let expected = attention(n, n.scale(), views(&data), |b, _, _, j, s| keep(j < lens[b], s));
    let near = distance(&y, &expected.y);
    assert!(near < CLOSE, "{near:e}");
    desk.i64("lens.npy", &[77, 50, 1]);
    desk.ok(&format!("{FILES} --kv-lens @lens.npy"));
    assert!(distance(&desk.read("y.npy").1, &expected.y) < CLOSE);
    // The NaN must reach the output if there is no mask.
    desk.ok(FILES);
    assert!(desk.read("y.npy").1.iter().any(|x| x.is_nan()));
}

/// Reads the shapes and elements of m, S and W from `state.npz`.
fn states(desk: &Desk) -> [(Vec<usize>, Vec<f32>); 3] {
    ["m", "S", "W"].map(|name| common::read_f32(&desk.array("state.npz", name)))
}

/// Checks the states of rows with two keys and scores from 2e7 to 3e22. The score of the second key is either equal to
/// the score of the first key or far above it.
#[test]
fn states_of_large_scores_hold_the_answer() {
    let desk = Desk::new();
    desk.f32("q.npy", &[4, 1], &[1.0, 30.0, 100.0, 1e15]);
    desk.f32("v.npy", &[2, 2], &[3.0, -1.0, 5.0, 7.0]);
    for (first, want) in [(3e7f32, [4.0f32, 3.0]), (2e7, [5.0, 7.0])] {
        desk.f32("k.npy", &[2, 1], &[first, 3e7]);
        desk.ok(&format!("{FILES} --scale 1 --lse-out @lse.npy --state-out @state.npz"));
        let y = desk.read("y.npy").1;
        assert!(y.iter().zip(want.repeat(4)).all(|(y, want)| (y - want).abs() < 1e-6), "{y:?}");
        let [(_, m), (_, s), (_, w)] = states(&desk);
        for (row, lse) in desk.read("lse.npy").1.into_iter().enumerate() {
            let again = f64::from(m[row]) + f64::from(s[row]).ln();
            assert!((again / f64::from(lse) - 1.0).abs() < 2e-7, "row {row}: {again}, {lse}");
            for c in 0..2 {
                let quotient = w[row * 2 + c] / s[row];
                assert!((quotient - want[c]).abs() < 1e-5, "row {row}: {quotient}, not {}", want[c]);
            }
        }
    }
}

#[test]
fn log_sum_exp_and_state_are_those_of_the_rows() {
    let (desk, data) = desk(N);
    desk.i64("lens.npy", &[45, 0]);
    let kept = |b, _, _, j, s| keep(j < [45, 0][b], s);
    desk.ok(&format!("{FILES} --kv-lens @lens.npy --lse-out @lse.npy --state-out @state.npz"));
    let expected = attention(N, N.scale(), views(&data), kept);
    let (shape, lse) = desk.read("lse.npy");
    assert_eq!(shape, [2, 4, 19]);
    let [(m_shape, m), (s_shape, s), (w_shape, w)] = states(&desk);
    assert_eq!((m_shape, s_shape, w_shape), (vec![2, 4, 19], vec![2, 4, 19], vec![2, 4, 19, 16]));
    let (_, y) = desk.read("y.npy");
    for row in 0..2 * 4 * 19 {
        if row < 4 * 19 {
            assert!((f64::from(lse[row]) - expected.lse[row]).abs() < 2e-6, "{row}");
            let again = f64::from(m[row]) + f64::from(s[row]).ln();
            assert!((again - expected.lse[row]).abs() < 2e-6, "{row}");
        } else {
            assert_eq!((lse[row], m[row], s[row]), (f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0));
        }
        for c in 0..16 {
            let (w, y) = (w[row * 16 + c], y[row * 16 + c]);
            let again = if row < 4 * 19 { w / s[row] } else { w };
            assert!((again - y).abs() < 1e-6, "{row} {c}");
            assert!((f64::from(y) - expected.y[row * 16 + c]).abs() < 1e-6, "{row} {c}");
        }
    }
}

#[test]
fn past_keys_come_first_and_present_keys_are_both() {
    let n = Sizes { nk: 45, ..N };
    let (desk, data) = desk(n);
    // The first 31 of each head's 45 keys are the past.
    let cut = |x: &[f32], d: usize, past: bool| -> Vec<f32> {
        x.chunks(45 * d)
            .flat_map(|head| if past { &head[..31 * d] } else { &head[31 * d..] })
            .copied()
            .collect()
    };
    desk.f32("pk.npy", &[2, 4, 31, 16], &cut(&data[1], 16, true));
    desk.f32("pv.npy", &[2, 4, 31, 16], &cut(&data[2], 16, true));
    let new = [2, 4, 14, 16];
    desk.f32("k.npy", &[2, 14, 4, 16], &swap_heads(&cut(&data[1], 16, false), new));
    desk.f32("v.npy", &[2, 14, 4, 16], &swap_heads(&cut(&data[2], 16, false), new));
    desk.f32("q.npy", &[2, 19, 4, 16], &swap_heads(&data[0], n.q()));
    desk.ok(&format!(
        "{FILES} --layout bnhd --past-k @pk.npy --past-v @pv.npy --present-k @nk.npy --present-v @nv.npy \
         --causal=top-left"
    ));
    let expected = attention(n, n.scale(), views(&data), |_, _, i, j, s| keep(j <= i + 31, s));
    let unswapped: Vec<f32> = swap_heads(&desk.read("y.npy").1, [2, 19, 4, 16]);
    assert!(distance(&unswapped, &expected.y) < CLOSE);
    assert_eq!(desk.read("nk.npy"), (n.k().to_vec(), data[1].clone()));
    assert_eq!(desk.read("nv.npy"), (n.v().to_vec(), data[2].clone()));
}

#[test]
fn packed_sequences_do_not_see_each_other() {
    let (h, d) = (3, 8);
    let lengths = [(4usize, 9usize), (0, 3), (7, 7), (5, 0)];
    let (nq, nk) = (16, 19);
    let desk = Desk::new();
    let [q, k, v] = [noise(1, nq * h * d), noise(2, nk * h * d), noise(3, nk * h * d)];
    desk.f32("q.npy", &[nq, h, d], &q);
    desk.f32("k.npy", &[nk, h, d], &k);
    desk.f32("v.npy", &[nk, h, d], &v);
    desk.i64("cq.npy", &[0, 4, 4, 11, 16]);
    desk.npy("ck.npy", "<i4", &[5], bytemuck::cast_slice(&[0i32, 9, 12, 19, 19]));
    let packed = format!("{FILES} --cu-seqlens-q @cq.npy --cu-seqlens-k @ck.npy");
    for (flags, causal) in [("", false), ("--causal", true)] {
        desk.ok(&format!("{packed} {flags}"));
        let (shape, y) = desk.read("y.npy");
        assert_eq!(shape, [nq, h, d]);
        let (mut q0, mut k0) = (0, 0);
        for (lq, lk) in lengths {
            let n = Sizes { b: 1, h, hk: h, nq: lq, nk: lk, d, dv: d };
            let part = |x: &[f32], at: usize, len: usize| {
                swap_heads(&x[at * h * d..(at + len) * h * d], [1, len, h, d])
            };
            let data = [part(&q, q0, lq), part(&k, k0, lk), part(&v, k0, lk)];
            let expected = attention(n, n.scale(), views(&data), |_, _, i: usize, j: usize, s| {
                keep(!causal || j <= i, s)
            });
            let found = part(&y, q0, lq);
            let worst = found.iter().zip(&expected.y).map(|(a, b)| (f64::from(*a) - b).abs());
            assert!(worst.fold(0.0, larger) < 1e-6, "{flags} {lq} {lk}");
            (q0, k0) = (q0 + lq, k0 + lk);
        }
    }
}

#[test]
fn f16_and_bf16_keep_their_type() {
    let (desk, data) = desk(N);
    let f16s: Vec<Vec<f16>> = data.iter().map(|x| x.iter().map(|&x| f16::from_f32(x)).collect()).collect();
    let bf16s: Vec<Vec<bf16>> = data.iter().map(|x| x.iter().map(|&x| bf16::from_f32(x)).collect()).collect();
    for (i, (name, shape)) in [("q", N.q()), ("k", N.k()), ("v", N.v())].iter().enumerate() {
        desk.npy(&format!("{name}.npy"), "<f2", shape, bytemuck::cast_slice(&f16s[i]));
    }
    desk.ok(FILES);
    let bytes = std::fs::read(desk.path("y.npy")).unwrap();
    let y: Vec<f32> = npyz::NpyFile::new(&bytes[..])
        .unwrap()
        .into_vec::<f16>()
        .unwrap()
        .iter()
        .map(|x| x.to_f32())
        .collect();
    let exact: [Vec<f32>; 3] = [0, 1, 2].map(|i: usize| f16s[i].iter().map(|x| x.to_f32()).collect());
    let expected = attention(N, N.scale(), views(&exact), |_, _, _, _, s| s).y;
    let near = distance(&y, &expected);
    assert!(near < 2f64.powi(-11), "{near:e}");

    let bytes = |i: usize| bytemuck::cast_slice(&bf16s[i]);
    desk.safetensors(
        "in.safetensors",
        &[
            ("q", safetensors::Dtype::BF16, &N.q(), bytes(0)),
            ("k", safetensors::Dtype::BF16, &N.k(), bytes(1)),
            ("v", safetensors::Dtype::BF16, &N.v(), bytes(2)),
        ],
    );
    let inputs = "run --q @in.safetensors#q --k @in.safetensors#k --v @in.safetensors#v";
    desk.ok(&format!("{inputs} --out @out.safetensors#y.0 --lse-out @out.safetensors#lse"));
    let bytes = std::fs::read(desk.path("out.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let y = file.tensor("y.0").unwrap();
    assert_eq!((y.dtype(), y.shape()), (safetensors::Dtype::BF16, &N.out()[..]));
    assert_eq!(file.tensor("lse").unwrap().shape(), [2, 4, 19]);
    let y: Vec<f32> = y.data().chunks(2).map(|x| bf16::from_le_bytes([x[0], x[1]]).to_f32()).collect();
    let exact: [Vec<f32>; 3] = [0, 1, 2].map(|i: usize| bf16s[i].iter().map(|x| x.to_f32()).collect());
    let expected = attention(N, N.scale(), views(&exact), |_, _, _, _, s| s).y;
    let near = distance(&y, &expected);
    assert!(near < 2f64.powi(-8), "{near:e}");
    desk.ok(&format!("{inputs} --out @b.npy"));
    assert_eq!(desk.read("b.npy"), (N.out().to_vec(), y));
}

#[test]
fn data_that_are_not_aligned_are_read_all_the_same() {
    let (desk, data) = desk(N);
    desk.ok(FILES);
    let aligned = desk.read("y.npy").1;
    let k: &[u8] = bytemuck::cast_slice(&data[1]);
    for pad in 0..4 {
        let mut header =
            format!(r#"{{"k":{{"dtype":"F32","shape":[2,4,45,16],"data_offsets":[0,{}]}}}}"#, k.len());
        header.push_str(&" ".repeat(pad));
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(k);
        std::fs::write(desk.path("k.safetensors"), file).unwrap();
        desk.ok("run --q @q.npy --k @k.safetensors#k --v @v.npy --out @z.npy");
        assert_eq!(desk.read("z.npy").1, aligned, "{pad}");
    }
}

#[test]
fn no_queries_and_no_keys() {
    let desk = Desk::new();
    desk.f32("q.npy", &[2, 0, 8], &[]);
    desk.f32("k.npy", &[2, 3, 8], &noise(1, 48));
    desk.f32("v.npy", &[2, 3, 5], &noise(2, 30));
    desk.ok(FILES);
    assert_eq!(desk.read("y.npy"), (vec![2, 0, 5], vec![]));
    desk.f32("q.npy", &[2, 3, 8], &noise(1, 48));
    desk.f32("k.npy", &[2, 0, 8], &[]);
    desk.f32("v.npy", &[2, 0, 5], &[]);
    desk.ok(&format!("{FILES} --lse-out @lse.npy"));
    assert_eq!(desk.read("y.npy"), (vec![2, 3, 5], vec![0.0; 30]));
    assert_eq!(desk.read("lse.npy").1, [f32::NEG_INFINITY; 6]);
}

#[test]
fn outputs_of_one_file_and_of_another_are_each_their_own() {
    let (desk, _) = desk(N);
    desk.ok(&format!("{FILES} --lse-out @lse.npy --state-out @s.npz"));
    desk.ok("run --q @q.npy --k @k.npy --v @v.npy --out @all.safetensors#y --lse-out @all.safetensors#lse \
         --state-out @again.npz");
    assert!(std::fs::read(desk.path("s.npz")).unwrap() == std::fs::read(desk.path("again.npz")).unwrap());
    let all = std::fs::read(desk.path("all.safetensors")).unwrap();
    let all = safetensors::SafeTensors::deserialize(&all).unwrap();
    for (name, file) in [("y", "y.npy"), ("lse", "lse.npy")] {
        let bytes: Vec<u8> = desk.read(file).1.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert!(all.tensor(name).unwrap().data() == bytes, "{name}");
    }
}

#[test]
fn an_output_may_replace_an_input() {
    let (desk, _) = desk(N);
    desk.ok(FILES);
    desk.ok("run --q @q.npy --k @k.npy --v @v.npy --out @q.npy --force");
    assert_eq!(desk.read("q.npy"), desk.read("y.npy"));
    assert_eq!(desk.list(), ["k.npy", "q.npy", "v.npy", "y.npy"]);
}

#[cfg(unix)]
#[test]
fn a_device_is_written_directly_and_a_link_is_followed() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
    let (desk, _) = desk(N);
    desk.ok("run --q @q.npy --k @k.npy --v @v.npy --out /dev/null --lse-out /dev/null --state-out /dev/null");
    assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    desk.ok(FILES);
    std::fs::write(desk.path("target.npy"), b"old").unwrap();
    symlink(desk.path("target.npy"), desk.path("link.npy")).unwrap();
    desk.ok("run --q @q.npy --k @k.npy --v @v.npy --out @link.npy");
    assert!(desk.path("link.npy").symlink_metadata().unwrap().is_symlink());
    assert_eq!(desk.read("target.npy"), desk.read("y.npy"));
    // The output has the permissions of any new file, and not the private ones of a temporary file.
    std::fs::write(desk.path("plain"), b"").unwrap();
    let mode = |name: &str| std::fs::metadata(desk.path(name)).unwrap().permissions().mode();
    assert_eq!(mode("y.npy"), mode("plain"));
}

#[test]
fn bits_do_not_depend_on_threads_and_answers_not_on_block_or_back_end() {
    let n = Sizes { b: 1, h: 2, hk: 1, nq: 70, nk: 1200, d: 64, dv: 64 };
    let (desk, data) = desk(n);
    let expected = attention(n, n.scale(), views(&data), |_, _, _, _, s| s).y;
    desk.ok(&format!("{FILES} --threads 1"));
    let one = desk.read("y.npy");
    for threads in [2, 3, 7] {
        desk.ok(&format!("{FILES} --threads {threads}"));
        assert_eq!(desk.read("y.npy"), one);
    }
    for flags in ["--block 64", "--block 128", "--block 256", "--backend scalar", "--budget 16MiB"] {
        desk.ok(&format!("{FILES} {flags}"));
        let near = distance(&desk.read("y.npy").1, &expected);
        assert!(near < CLOSE, "{flags} {near:e}");
    }
}

#[test]
fn reports_are_json_and_name_what_ran() {
    let (desk, _) = desk(N);
    let text = desk.ok(&format!("{FILES} --json --certificate --threads 1 --backend scalar"));
    let lines = common::lines(&text);
    assert_eq!(lines.len(), 2, "{text}");
    // The published depth is L(45, 64) = 6 + 0 + 3.
    let published = &lines[0]["published"];
    assert_eq!((&published["claim"], &published["published_depth"]), (&"published".into(), &9.into()));
    assert_eq!((&published["rigorous"], &published["executed"]["merge_depth"]), (&false.into(), &0.into()));
    let certified = &lines[0];
    assert_eq!((&certified["claim"], &certified["rigorous"]), (&"rigorous".into(), &true.into()));
    assert_eq!(certified["relative_to"], "sum_j p_j |v_j|");
    let number = |name: &str| certified[name].as_f64().unwrap();
    assert!(
        number("bound") > 1e-7 && number("bound") < 1e-3 && number("likely") <= number("bound"),
        "{text}"
    );
    assert!(number("absolute") >= number("bound") * number("value"), "{text}");
    assert!(number("query_norm") > 0.0 && number("key_norm") > 0.0 && number("added") == 0.0, "{text}");
    assert_eq!(certified["flags"], serde_json::json!([]));
    assert!(certified["kernel"].as_str().unwrap().contains("scalar"));
    let report = &lines[1];
    assert_eq!((report["backend"].as_str(), report["threads"].as_u64()), (Some("scalar"), Some(1)));
    assert!(report["kernel"].as_str().unwrap().contains("scalar"));
    assert!(report["ms"].as_f64().unwrap() > 0.0 && report["workspace_bytes"].as_u64().unwrap() > 0);
    assert_eq!(report["shape"]["queries"], 19);
    assert_eq!(report["shape"]["keys"], 45);
    let needed = report["workspace_bytes"].as_u64().unwrap();
    desk.ok(&format!("{FILES} --threads 1 --backend scalar --budget {needed}"));
}

#[test]
fn a_gpu_that_is_not_there_is_replaced_or_refused() {
    let (desk, data) = desk(N);
    // No machine has a device with this index, whether a driver is installed or not.
    let flags = format!("{FILES} --backend cuda --device 4096 --json");
    let report = desk.json(&flags);
    assert_ne!(report["backend"], "cuda");
    assert!(report["fallback"].as_str().unwrap().starts_with("backend: cuda: "), "{report}");
    let (_, y) = desk.read("y.npy");
    assert!(distance(&y, &attention(N, N.scale(), views(&data), |_, _, _, _, s| s).y) < CLOSE);
    std::fs::remove_file(desk.path("y.npy")).unwrap();
    let output = desk.call(&format!("{flags} --fallback fail"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(matches!(output.status.code(), Some(2 | 3)), "{said}");
    assert!(said.contains("--backend: cuda cannot be used: "), "{said}");
    assert!(!desk.path("y.npy").exists());
    let plain = desk.json(&format!("{FILES} --backend scalar --json"));
    assert!(plain["fallback"].is_null(), "{plain}");
}

/// Checks that the tool reports flags that have no effect: a flag for the CPU on the GPU, and a flag for the GPU on the
/// CPU. The test stage `host` also runs this with a GPU.
#[test]
fn flags_of_the_other_processor_are_reported() {
    let (desk, _) = desk(N);
    let text = String::from_utf8(elsa(&["warmup", "--shape", "1,1,4,4,4"]).stdout).unwrap();
    let on_gpu = text.starts_with("backend   cuda");
    let said = |line: &str| {
        let output = desk.call(line);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (flags, warning, expected) in [
        ("--half-scores", "--half-scores has no effect", true),
        ("--tensor-cores off", "--tensor-cores has no effect", false),
        ("--block 128", "--block has no effect", on_gpu),
        ("--device 0", "--device has no effect", !on_gpu),
        ("--threads 1", "has no effect", false),
    ] {
        let (status, said) = said(&format!("{FILES} {flags}"));
        assert_eq!((status, said.contains(warning)), (Some(0), expected), "{flags}: {said}");
    }
    let data: Vec<f16> = noise(9, 64 * 64).into_iter().map(f16::from_f32).collect();
    desk.npy("h.npy", "<f2", &[64, 64], bytemuck::cast_slice(&data));
    let (status, halves) = said("run --q @h.npy --k @h.npy --v @h.npy --out @y.npy --half-scores");
    assert_eq!((status, halves.contains("has no effect")), (Some(0), !on_gpu), "{halves}");
    let (status, both) = said("bench --shape 1,1,4,4,4 --seconds 0.01 --method both");
    assert!(matches!(status, Some(0 | 5)), "{status:?} {both}");
}

/// Checks that `elsa warmup` loads the kernels of the given shapes, or all kernels if no shape is given, and that it
/// loads nothing on the CPU.
#[test]
fn warmup_loads_what_the_back_end_needs() {
    let warm = |flags: &[&str]| {
        let output = elsa(&[&["warmup", "--json"], flags].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(said["what"], "warmup");
        let names: Vec<String> =
            said["loaded"].as_array().unwrap().iter().map(|k| k["name"].as_str().unwrap().into()).collect();
        for kernel in said["loaded"].as_array().unwrap() {
            assert!(kernel["load_ms"].as_f64().unwrap() >= 0.0, "{kernel}");
            let (registers, local) = (kernel["registers"].as_u64(), kernel["local_bytes"].as_u64());
            assert!((1..=255).contains(&registers.unwrap()) && local.is_some(), "{kernel}");
        }
        (said["backend"].as_str().unwrap().to_owned(), names)
    };
    let (backend, all) = warm(&[]);
    let (_, some) = warm(&["--shape", "1,1,64,64,64"]);
    if backend == "cuda" {
        assert!(!some.is_empty() && some.len() < all.len(), "{some:?} of {all:?}");
        assert!(some.iter().all(|name| all.contains(name)), "{some:?} of {all:?}");
    } else {
        assert!(all.is_empty() && some.is_empty(), "{backend}: {all:?}");
    }
    assert_eq!(warm(&["--backend", "scalar"]), ("scalar".to_owned(), Vec::new()));
    assert_eq!(elsa(&["warmup", "--backend", "abacus"]).status.code(), Some(2));
}
