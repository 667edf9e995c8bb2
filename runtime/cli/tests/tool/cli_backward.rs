//! Tests `elsa backward` through the binary, against gradients in f64.

use crate::common::{Desk, Sizes, attention, count, distance, noise};

pub const N: Sizes = Sizes { b: 2, h: 4, hk: 2, nq: 19, nk: 45, d: 16, dv: 12 };

const FILES: &str = "backward --q @q.npy --k @k.npy --v @v.npy --d-out @dy.npy --dq-out @dq.npy --dk-out @dk.npy \
                     --dv-out @dv.npy";
pub const WRITTEN: [&str; 3] = ["dq.npy", "dk.npy", "dv.npy"];

pub fn desk() -> (Desk, [Vec<f32>; 4]) {
    let desk = Desk::new();
    let [q, k, v] = desk.qkv(N, 3.0);
    let dy = noise(4, count(&N.out()));
    desk.f32("dy.npy", &N.out(), &dy);
    (desk, [q, k, v, dy])
}

/// Computes gradients in f64. `score` turns a scaled dot product into a score, and `slope` is the derivative of
/// `score`.
pub fn gradients(
    [q, k, v, dy]: [&[f32]; 4],
    score: impl Fn(usize, usize, f64) -> f64,
    slope: impl Fn(f64) -> f64,
) -> [Vec<f64>; 3] {
    let scale = 0.25;
    let answer = attention(N, scale, [q, k, v], |_, _, i, j, s| score(i, j, s));
    let mut out = [vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]];
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    for row in 0..N.b * N.h * N.nq {
        let (i, h) = (row % N.nq, row / N.nq);
        let kv = h / N.h * N.hk + h % N.h / (N.h / N.hk);
        let (q, up) = (&q[row * N.d..][..N.d], &dy[row * N.dv..][..N.dv]);
        let mean: f64 = (0..N.dv).map(|x| answer.y[row * N.dv + x] * f64::from(up[x])).sum();
        for j in 0..N.nk {
            let at = kv * N.nk + j;
            let key = &k[at * N.d..][..N.d];
            let raw = dot(q, key) * scale;
            let s = score(i, j, raw);
            if s == f64::NEG_INFINITY {
                continue;
            }
            let p = (s - answer.lse[row]).exp();
            let ds = scale * p * slope(raw) * (dot(up, &v[at * N.dv..][..N.dv]) - mean);
            for x in 0..N.d {
                out[0][row * N.d + x] += ds * f64::from(key[x]);
                out[1][at * N.d + x] += ds * f64::from(q[x]);
            }
            (0..N.dv).for_each(|x| out[2][at * N.dv + x] += p * f64::from(up[x]));
        }
    }
    out
}

pub fn views(data: &[Vec<f32>; 4]) -> [&[f32]; 4] {
    [0, 1, 2, 3].map(|n| &data[n][..])
}

pub fn close(desk: &Desk, what: &str, want: &[Vec<f64>; 3]) {
    for (name, (want, shape)) in WRITTEN.into_iter().zip(want.iter().zip([N.q(), N.k(), N.v()])) {
        let (found, data) = desk.read(name);
        assert_eq!(found, shape, "{what}");
        let near = distance(&data, want);
        assert!(near < 2e-6, "{what}: {name}: {near:e}");
    }
}

#[test]
fn gradients_are_those_of_f64_and_flags_matter() {
    let (desk, data) = desk();
    let plain = gradients(views(&data), |_, _, s| s, |_| 1.0);
    desk.ok(FILES);
    close(&desk, "plain", &plain);
    let bits = |desk: &Desk| WRITTEN.map(|name| std::fs::read(desk.path(name)).unwrap());
    let want = bits(&desk);
    desk.ok(&format!("{FILES} --threads 1"));
    assert_eq!(bits(&desk), want);

    let causal = gradients(views(&data), |i, j, s| if j <= i { s } else { f64::NEG_INFINITY }, |_| 1.0);
    desk.ok(&format!("{FILES} --causal=top-left --backend scalar"));
    close(&desk, "causal", &causal);
    assert!(distance(&desk.read("dk.npy").1, &plain[1]) > 1e-2);

    let capped = gradients(views(&data), |_, _, s| 0.5 * (s / 0.5).tanh(), |s| (s / 0.5).cosh().powi(-2));
    desk.ok(&format!("{FILES} --softcap 0.5"));
    close(&desk, "softcap", &capped);
}

#[test]
fn the_output_of_an_earlier_run_and_quorums_give_the_same() {
    let (desk, data) = desk();
    let want = gradients(views(&data), |_, _, s| s, |_| 1.0);
    desk.ok("run --q @q.npy --k @k.npy --v @v.npy --out @y.npy --lse-out @lse.npy");
    let report = desk.json(&format!("{FILES} --out @y.npy --lse @lse.npy --json"));
    assert_eq!((&report["what"], &report["forward"]), (&"backward".into(), &false.into()));
    assert_eq!(report["shape"], serde_json::json!([2, 4, 2, 19, 45, 16, 12]));
    assert!(report["kernel"].as_str().unwrap().starts_with("backward_f32_"));
    close(&desk, "given", &want);
    // A different output must change the gradients; this shows that the output is read.
    desk.f32("y.npy", &N.out(), &vec![0.0; count(&N.out())]);
    desk.ok(&format!("{FILES} --out @y.npy --lse @lse.npy"));
    assert!(distance(&desk.read("dq.npy").1, &want[0]) > 1e-2);

    let report = desk.json(&format!("{FILES} --quorum 7 --json"));
    assert_eq!((&report["tasks"], &report["forward"]), (&7.into(), &true.into()));
    close(&desk, "quorum", &want);
}

#[test]
fn bad_requests_name_the_argument_and_write_nothing() {
    let (desk, _) = desk();
    desk.f32("short.npy", &[2, 4, 19, 11], &vec![0.0; 2 * 4 * 19 * 11]);
    desk.f32("lse.npy", &[2, 4, 18], &[0.0; 144]);
    desk.f32("bias.npy", &[1, 1, 1, 1], &[0.0]);
    desk.f32("y.npy", &N.out(), &vec![0.0; count(&N.out())]);
    let without = |flag: &str| FILES.replace(flag, "");
    desk.refuse_all([
        (without("--d-out @dy.npy"), "--d-out: missing"),
        (without("--dv-out @dv.npy"), "--dv-out: missing"),
        (FILES.replace("@dy.npy", "@short.npy"), "--d-out: shape [2, 4, 19, 11]; allowed: [2, 4, 19, 12]"),
        (format!("{FILES} --out @y.npy"), "--lse: missing"),
        (format!("{FILES} --out @y.npy --lse @lse.npy"), "--lse: shape [2, 4, 18]; allowed: [2, 4, 19]"),
        (format!("{FILES} --past-k @k.npy --past-v @v.npy"), "--past-k: given with d-out"),
        (format!("{FILES} --quorum 8"), "--quorum: "),
        (
            format!("{FILES} --quorum 7 --bias @bias.npy"),
            "--bias: given with quorum; allowed: one of the two",
        ),
        (format!("{FILES} --budget 1000"), "--budget: 1000 bytes"),
        (FILES.replace("@dk.npy", "@dq.npy"), "--dk-out: "),
        (FILES.replace("@dk.npy", "@missing/dk.npy"), "--dk-out: "),
    ]);
}

#[test]
fn examples_of_the_help_run() {
    let (desk, _) = desk();
    desk.ok(
        "run --q @q.npy --k @k.npy --v @v.npy --out @y.npy --lse-out @lse.npy --state-out @y.npz --causal",
    );
    let examples = desk.examples("backward");
    assert_eq!(examples.len(), 4, "{examples:?}");
    for example in examples {
        desk.ok(&example);
        for name in WRITTEN {
            let _ = std::fs::remove_file(desk.path(name));
        }
    }
    assert!(desk.path("grad0.npz").exists());
}
