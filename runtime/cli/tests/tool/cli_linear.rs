//! Tests `elsa linear run` through the binary. For every flag, the output is compared with the recurrence in f64, and
//! the flag must change the output.

use crate::common::{Desk, count, distance, noise, swap_heads};
use half::f16;

/// Maximum relative distance of a correct output from the reference. It allows for the rounding of a few hundred f32
/// operations.
const CLOSE: f64 = 2e-6;
/// Minimum relative change that a flag with an effect makes in the output.
const FAR: f64 = 1e-2;

/// Sizes of a problem: batch; heads of queries, of keys and of values; tokens; head sizes of keys and of values.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub b: usize,
    pub hq: usize,
    pub hk: usize,
    pub hv: usize,
    pub t: usize,
    pub dk: usize,
    pub dv: usize,
}

pub const N: Sizes = Sizes { b: 2, hq: 2, hk: 2, hv: 2, t: 37, dk: 8, dv: 6 };

impl Sizes {
    pub fn q(&self) -> [usize; 4] {
        [self.b, self.hq, self.t, self.dk]
    }
    pub fn k(&self) -> [usize; 4] {
        [self.b, self.hk, self.t, self.dk]
    }
    pub fn v(&self) -> [usize; 4] {
        [self.b, self.hv, self.t, self.dv]
    }
    pub fn out(&self) -> [usize; 4] {
        [self.b, self.hq.max(self.hv), self.t, self.dv]
    }
    pub fn state(&self) -> [usize; 4] {
        [self.b, self.hv, self.dk, self.dv]
    }
}

/// Tensors for all rules.
pub struct Data {
    q: Vec<f32>,
    pub k: Vec<f32>,
    v: Vec<f32>,
    /// One gate per dim. Problems with one gate per head use the gate of the first dim.
    decay: Vec<f32>,
    beta: Vec<f32>,
    past: Vec<f32>,
}

/// Options of the reference recurrence.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    gated: bool,
    per_dim: bool,
    delta: bool,
    past: bool,
    scale: f64,
    epsilon: Option<f64>,
    direction: &'a str,
}

/// Returns the options for the rule `rule`. Options that do not follow from the rule have their default values.
pub fn asked(rule: &str) -> Asked<'static> {
    Asked {
        gated: rule.starts_with("gated"),
        per_dim: false,
        delta: rule.ends_with("delta"),
        past: false,
        scale: f64::from((1.0 / (N.dk as f64).sqrt()) as f32),
        epsilon: None,
        direction: "forward",
    }
}

/// Computes the recurrence in f64 from its definition. Returns the output and the final states.
pub fn recurrence(n: Sizes, data: &Data, ask: Asked<'_>) -> [Vec<f64>; 2] {
    let heads = n.hq.max(n.hv);
    let mut output = vec![0.0; count(&n.out())];
    let mut states = Vec::new();
    let unit = |x: &[f32]| -> Vec<f64> {
        let norm =
            ask.epsilon.map_or(1.0, |e| (x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() + e).sqrt());
        x.iter().map(|x| f64::from(*x) / norm).collect()
    };
    for b in 0..n.b {
        for h in 0..n.hv {
            let at = |t: usize| (b * n.hv + h) * n.t + t;
            let key = |t: usize| unit(&data.k[((b * n.hk + h / (n.hv / n.hk)) * n.t + t) * n.dk..][..n.dk]);
            let mut state = vec![0.0; n.dk * n.dv];
            let begin = |state: &mut Vec<f64>| {
                let past = &data.past[(b * n.hv + h) * n.dk * n.dv..];
                for (s, x) in state.iter_mut().zip(past) {
                    *s = if ask.past { f64::from(*x) } else { 0.0 };
                }
            };
            let step = |state: &mut [f64], t: usize| {
                let k = key(t);
                for x in 0..n.dk {
                    let g = data.decay[at(t) * n.dk + if ask.per_dim { x } else { 0 }];
                    let a = if ask.gated { f64::from(g).exp() } else { 1.0 };
                    state[x * n.dv..][..n.dv].iter_mut().for_each(|s| *s *= a);
                }
                for c in 0..n.dv {
                    let v = f64::from(data.v[at(t) * n.dv + c]);
                    let held: f64 = (0..n.dk).map(|x| k[x] * state[x * n.dv + c]).sum();
                    let written = if ask.delta { f64::from(data.beta[at(t)]) * (v - held) } else { v };
                    (0..n.dk).for_each(|x| state[x * n.dv + c] += k[x] * written);
                }
            };
            let mut read = |state: &[f64], t: usize| {
                for o in (0..heads).filter(|o| o / (heads / n.hv) == h) {
                    let q = unit(&data.q[((b * n.hq + o / (heads / n.hq)) * n.t + t) * n.dk..][..n.dk]);
                    for c in 0..n.dv {
                        let read: f64 = (0..n.dk).map(|x| q[x] * state[x * n.dv + c]).sum();
                        output[((b * heads + o) * n.t + t) * n.dv + c] += ask.scale * read;
                    }
                }
            };
            let (ahead, back): (Vec<usize>, Vec<usize>) = ((0..n.t).collect(), (0..n.t).rev().collect());
            let passes: Vec<&[usize]> = match ask.direction {
                "reverse" => vec![&back],
                "bidirectional" => vec![&ahead, &back],
                _ => vec![&ahead],
            };
            for pass in passes {
                begin(&mut state);
                for &t in pass {
                    step(&mut state, t);
                    if ask.direction != "non-causal" {
                        read(&state, t);
                    }
                }
            }
            if ask.direction == "non-causal" {
                ahead.iter().for_each(|&t| read(&state, t));
            }
            states.extend(state);
        }
    }
    [output, states]
}

/// Creates a folder with all tensors. The tensor `g` has one gate per head, and the tensor `gd` has one gate per dim.
pub fn desk(n: Sizes) -> (Desk, Data) {
    let desk = Desk::new();
    let negative = |x: Vec<f32>| -> Vec<f32> { x.iter().map(|x| -x.abs() / 2.0).collect() };
    let data = Data {
        q: noise(1, count(&n.q())),
        k: noise(2, count(&n.k())).iter().map(|x| x * 0.6).collect(),
        v: noise(3, count(&n.v())),
        decay: negative(noise(4, n.b * n.hv * n.t * n.dk)),
        beta: noise(5, n.b * n.hv * n.t).iter().map(|x| 0.5 + x / 2.0).collect(),
        past: noise(6, count(&n.state())),
    };
    let first: Vec<f32> = data.decay.iter().step_by(n.dk).copied().collect();
    let gates = [n.b, n.hv, n.t];
    desk.f32("q.npy", &n.q(), &data.q);
    desk.f32("k.npy", &n.k(), &data.k);
    desk.f32("v.npy", &n.v(), &data.v);
    desk.f32("g.npy", &gates, &first);
    desk.f32("gd.npy", &[n.b, n.hv, n.t, n.dk], &data.decay);
    desk.f32("b.npy", &gates, &data.beta);
    desk.f32("s.npy", &n.state(), &data.past);
    (desk, data)
}

pub const RULES: [&str; 4] = ["linear", "gated", "delta", "gated-delta"];
const FORMS: [&str; 5] = ["recurrent", "chunk", "fused-chunk", "parallel", "scan"];
const TENSORS: &str = "--q @q.npy --k @k.npy --v @v.npy";

/// Returns the flags that select a rule and its tensors.
pub fn flags(rule: &str) -> String {
    let ask = asked(rule);
    let decay = if ask.gated { " --decay @g.npy" } else { "" };
    let beta = if ask.delta { " --beta @b.npy" } else { "" };
    format!("--rule {rule} {TENSORS}{decay}{beta}")
}

/// Runs the tool with the flags `line`. Requires that the output is close to the recurrence with the options `ask` and
/// far from the recurrence with the options `other`.
fn agrees(desk: &Desk, n: Sizes, data: &Data, line: &str, ask: Asked<'_>, other: Asked<'_>) {
    desk.ok(&format!("linear run {line} --out @y.npy"));
    let (shape, y) = desk.read("y.npy");
    assert_eq!(shape, n.out(), "{line}");
    let near = distance(&y, &recurrence(n, data, ask)[0]);
    assert!(near < CLOSE, "{line}: {near:e}");
    let far = distance(&y, &recurrence(n, data, other)[0]);
    assert!(far > FAR, "{line}: makes no difference, {far:e}");
}

#[test]
fn every_rule_in_every_form_is_the_recurrence() {
    let (desk, data) = desk(N);
    for (rule, other) in RULES.into_iter().zip(["gated", "linear", "gated-delta", "delta"]) {
        for form in FORMS {
            let line = format!("{} --form {form}", flags(rule));
            agrees(&desk, N, &data, &line, asked(rule), asked(other));
            let report = desk.json(&format!("linear run {line} --out @y.npy --json"));
            assert_eq!((&report["form"], &report["rule"]), (&form.into(), &rule.into()));
        }
        agrees(&desk, N, &data, &flags(rule), asked(rule), asked(other));
    }
}

#[test]
fn every_flag_of_the_definition_acts() {
    let (desk, data) = desk(N);
    for rule in RULES {
        let (plain, ask) = (flags(rule), asked(rule));
        for direction in ["reverse", "bidirectional", "non-causal"] {
            agrees(&desk, N, &data, &format!("{plain} --{direction}"), Asked { direction, ..ask }, ask);
        }
        let unit = Asked { epsilon: Some(1e-6), ..ask };
        agrees(&desk, N, &data, &format!("{plain} --normalize"), unit, ask);
        let softer = Asked { epsilon: Some(0.5), ..ask };
        agrees(&desk, N, &data, &format!("{plain} --normalize=0.5"), softer, unit);
        agrees(&desk, N, &data, &format!("{plain} --scale -0.75"), Asked { scale: -0.75, ..ask }, ask);
        let past = Asked { past: true, ..ask };
        agrees(&desk, N, &data, &format!("{plain} --past-state @s.npy"), past, ask);
        if ask.gated {
            let line = plain.replace("@g.npy", "@gd.npy");
            agrees(&desk, N, &data, &line, Asked { per_dim: true, ..ask }, ask);
        }
    }
}

#[test]
fn states_are_written_and_carry_on() {
    let (desk, data) = desk(N);
    let line = format!("linear run {} --past-state @s.npy", flags("gated-delta"));
    desk.ok(&format!("{line} --out @y.npy --present-state @last.npy"));
    let [output, states] = recurrence(N, &data, Asked { past: true, ..asked("gated-delta") });
    let (shape, last) = desk.read("last.npy");
    assert_eq!(shape, N.state());
    assert!(distance(&last, &states) < CLOSE && distance(&desk.read("y.npy").1, &output) < CLOSE);
    // A call may write the states without the output.
    let before = desk.list();
    desk.ok(&format!("{line} --present-state @alone.npy"));
    assert_eq!((desk.read("alone.npy"), desk.list().len()), ((shape, last.clone()), before.len() + 1));

    // One file is both the past and the present state, while the tokens are processed one by one.
    let one = Sizes { b: 1, hq: 1, hk: 1, hv: 1, t: 1, ..N };
    desk.f32("state.npy", &one.state(), &data.past[..count(&one.state())]);
    for t in 0..N.t {
        desk.f32("qt.npy", &[1, N.dk], &data.q[t * N.dk..][..N.dk]);
        desk.f32("kt.npy", &[1, N.dk], &data.k[t * N.dk..][..N.dk]);
        desk.f32("vt.npy", &[1, N.dv], &data.v[t * N.dv..][..N.dv]);
        desk.f32("gt.npy", &[1], &data.decay[t * N.dk..][..1]);
        desk.f32("bt.npy", &[1], &data.beta[t..=t]);
        desk.ok(
            "linear run --rule gated-delta --q @qt.npy --k @kt.npy --v @vt.npy --decay @gt.npy --beta @bt.npy \
             --past-state @state.npy --present-state @state.npy --force --out @yt.npy",
        );
        let (shape, y) = desk.read("yt.npy");
        assert_eq!(shape, [1, N.dv]);
        assert!(distance(&y, &output[t * N.dv..][..N.dv]) < 10.0 * CLOSE, "{t}");
    }
    let (shape, state) = desk.read("state.npy");
    assert_eq!(shape, one.state());
    assert!(distance(&state, &states[..count(&one.state())]) < CLOSE);
}

#[test]
fn heads_are_shared_in_both_directions() {
    for n in [
        Sizes { hq: 4, hk: 2, hv: 2, ..N },
        Sizes { hq: 6, hk: 1, hv: 3, ..N },
        Sizes { hq: 1, hk: 2, hv: 4, ..N },
        Sizes { hq: 4, hk: 2, hv: 8, ..N },
    ] {
        let (desk, data) = desk(n);
        let line = format!("linear run {} --heads {} --kv-heads {}", flags("gated"), n.hq, n.hv);
        desk.ok(&format!("{line} --out @y.npy"));
        let (shape, y) = desk.read("y.npy");
        assert_eq!(shape, n.out());
        assert!(distance(&y, &recurrence(n, &data, asked("gated"))[0]) < CLOSE);
        // In this layout, the last axis contains all heads.
        for (name, x, s) in [("q", &data.q, n.q()), ("k", &data.k, n.k()), ("v", &data.v, n.v())] {
            desk.f32(&format!("{name}.npy"), &[s[0], s[2], s[1] * s[3]], &swap_heads(x, s));
        }
        let first: Vec<f32> = data.decay.iter().step_by(n.dk).copied().collect();
        desk.f32("g.npy", &[n.b, n.t, n.hv], &swap_heads(&first, [n.b, n.hv, n.t, 1]));
        desk.ok(&format!("{line} --layout bnc --out @yc.npy"));
        let [b, h, t, d] = n.out();
        assert_eq!(desk.read("yc.npy"), (vec![b, t, h * d], swap_heads(&y, n.out())));
    }
}

#[test]
fn layouts_and_packed_sequences_have_the_same_answer_in_their_own_shape() {
    let (desk, data) = desk(N);
    let line = format!("linear run {}", flags("gated-delta").replace("@g.npy", "@gd.npy"));
    desk.ok(&format!("{line} --out @y.npy --present-state @last.npy"));
    let (y, last) = (desk.read("y.npy").1, desk.read("last.npy"));
    let swapped = swap_heads(&y, N.out());
    let gates = [N.b, N.hv, N.t, N.dk];
    let rates = [N.b, N.hv, N.t, 1];
    for (name, x, s) in [
        ("q", &data.q, N.q()),
        ("k", &data.k, N.k()),
        ("v", &data.v, N.v()),
        ("gd", &data.decay, gates),
        ("b", &data.beta, rates),
    ] {
        let [b, h, t, d] = s;
        let x = swap_heads(x, s);
        desk.f32(&format!("{name}n.npy"), &[b, t, h, d], &x);
        desk.f32(&format!("{name}c.npy"), &[b, t, h * d], &x);
        desk.f32(&format!("{name}p.npy"), &[b * t, h, d], &x);
        desk.f32(&format!("{name}w.npy"), &[b * t, h * d], &x);
    }
    let with = |letter: &str| line.replace(".npy", &format!("{letter}.npy"));
    desk.ok(&format!("{} --layout bnhd --out @yn.npy --present-state @lastn.npy", with("n")));
    assert_eq!(desk.read("yn.npy"), (vec![2, 37, 2, 6], swapped.clone()));
    assert_eq!(desk.read("lastn.npy"), last);
    desk.ok(&format!("{} --layout bnc --heads 2 --out @yc.npy --present-state @lastc.npy", with("c")));
    assert_eq!(desk.read("yc.npy"), (vec![2, 37, 12], swapped.clone()));
    assert_eq!(desk.read("lastc.npy"), last);
    // The two sequences are packed, with an empty sequence between them.
    desk.i64("ends.npy", &[0, 37, 37, 74]);
    desk.ok(&format!("{} --cu-seqlens @ends.npy --out @yp.npy --present-state @lastp.npy", with("p")));
    assert_eq!(desk.read("yp.npy"), (vec![74, 2, 6], swapped.clone()));
    let (shape, states) = desk.read("lastp.npy");
    let half = count(&N.state()) / 2;
    assert_eq!(shape, [3, 2, 8, 6]);
    assert_eq!((&states[..half], &states[2 * half..]), (&last.1[..half], &last.1[half..]));
    assert!(states[half..2 * half].iter().all(|x| *x == 0.0));
    desk.ok(&format!("{} --layout bnc --heads 2 --cu-seqlens @ends.npy --out @yw.npy", with("w")));
    assert_eq!(desk.read("yw.npy"), (vec![74, 12], swapped));
    // The tensors of one sequence, or of one head, have fewer axes.
    for (name, x, s) in [("q", &data.q, N.q()), ("k", &data.k, N.k()), ("v", &data.v, N.v())] {
        desk.f32(&format!("{name}2.npy"), &s[2..], &x[..s[2] * s[3]]);
        desk.f32(&format!("{name}3.npy"), &s[1..], &x[..count(&s[1..])]);
    }
    desk.f32("gd2.npy", &gates[2..], &data.decay[..N.t * N.dk]);
    desk.f32("b2.npy", &[N.t], &data.beta[..N.t]);
    desk.ok(&format!("{} --out @y2.npy --present-state @last2.npy", with("2")));
    assert_eq!(desk.read("y2.npy"), (vec![37, 6], y[..37 * 6].to_vec()));
    assert_eq!(desk.read("last2.npy"), (vec![8, 6], last.1[..48].to_vec()));
    desk.f32("gd3.npy", &gates[1..], &data.decay[..count(&gates[1..])]);
    desk.f32("b3.npy", &[N.hv, N.t, 1], &data.beta[..N.hv * N.t]);
    desk.ok(&format!("{} --out @y3.npy", with("3")));
    assert_eq!(desk.read("y3.npy"), (vec![2, 37, 6], y[..2 * 37 * 6].to_vec()));
}

#[test]
fn types_and_shared_rates() {
    let (desk, data) = desk(N);
    let narrow = |x: &[f32]| -> Vec<f32> { x.iter().map(|x| f16::from_f32(*x).to_f32()).collect() };
    let rounded = Data {
        q: narrow(&data.q),
        k: narrow(&data.k),
        v: narrow(&data.v),
        decay: narrow(&data.decay),
        beta: narrow(&data.beta),
        past: narrow(&data.past),
    };
    let half = |name: &str, shape: &[usize], x: &[f32]| {
        let x: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
        desk.npy(name, "<f2", shape, bytemuck::cast_slice(&x));
    };
    half("qh.npy", &N.q(), &data.q);
    half("kh.npy", &N.k(), &data.k);
    half("vh.npy", &N.v(), &data.v);
    half("gdh.npy", &[N.b, N.hv, N.t, N.dk], &data.decay);
    half("bh.npy", &[N.b, N.hv, N.t], &data.beta);
    half("sh.npy", &N.state(), &data.past);
    let line = "linear run --rule gated-delta --q @qh.npy --k @kh.npy --v @vh.npy --decay @gdh.npy --past-state @sh.npy";
    let ask = Asked { per_dim: true, past: true, ..asked("gated-delta") };
    let [expected, states] = recurrence(N, &rounded, ask);
    // The gates of f16 tensors are first all f16, and then of two types.
    for beta in ["bh", "b"] {
        desk.ok(&format!("{line} --beta @{beta}.npy --out @y.npy --present-state @last.npy"));
        let file = std::fs::read(desk.path("y.npy")).unwrap();
        let file = npyz::NpyFile::new(&file[..]).unwrap();
        let y: Vec<f32> = file.into_vec::<f16>().unwrap().into_iter().map(f16::to_f32).collect();
        let near = distance(&y, &expected);
        assert!(near > 1e-5 && near < 1e-3, "{beta}: rounded to f16: {near:e}");
        let near = distance(&desk.read("last.npy").1, &states);
        assert!(near < if beta == "bh" { CLOSE } else { 1e-3 }, "{beta}: {near:e}");
    }
    // Rates and states in f16 are accepted with tensors in f32.
    let line = flags("gated-delta").replace("@b.npy", "@bh.npy");
    desk.ok(&format!("linear run {line} --past-state @sh.npy --out @y.npy"));
    let mixed = Data {
        q: data.q.clone(),
        k: data.k.clone(),
        v: data.v.clone(),
        decay: data.decay.clone(),
        beta: rounded.beta.clone(),
        past: rounded.past.clone(),
    };
    let want = recurrence(N, &mixed, Asked { past: true, ..asked("gated-delta") });
    assert!(distance(&desk.read("y.npy").1, &want[0]) < CLOSE);
    // All heads share one rate per token.
    let shared: Vec<f32> = (0..N.b).flat_map(|b| data.beta[b * N.hv * N.t..][..N.t].to_vec()).collect();
    desk.f32("shared.npy", &[N.b, 1, N.t], &shared);
    let each: Vec<f32> = shared.chunks(N.t).flat_map(|x| [x, x].concat()).collect();
    let data = Data { beta: each, ..data };
    let line = flags("delta").replace("@b.npy", "@shared.npy");
    desk.ok(&format!("linear run {line} --out @y.npy"));
    assert!(distance(&desk.read("y.npy").1, &recurrence(N, &data, asked("delta"))[0]) < CLOSE);
}

#[test]
fn threads_and_repetition_keep_every_bit_and_options_are_reported() {
    let (desk, _) = desk(N);
    let line = format!("linear run {} --out @y.npy --json", flags("gated-delta"));
    let report = |more: &str| desk.json(&format!("{line} {more}"));
    let bits = || std::fs::read(desk.path("y.npy")).unwrap();
    for form in FORMS {
        let first = report(&format!("--form {form} --threads 1"));
        let want = bits();
        let second = report(&format!("--form {form} --threads 2"));
        assert_eq!((bits(), &first["threads"], &second["threads"]), (want, &1.into(), &2.into()));
    }
    let found = report("--form chunk --chunk 16");
    assert_eq!(
        (&found["what"], &found["chunk"], &found["direction"]),
        (&"linear".into(), &16.into(), &"forward".into())
    );
    assert_eq!(found["shape"]["states"], 2);
    let found = report("--form scan --parts 4 --backend scalar --reverse");
    assert_eq!(
        (&found["parts"], &found["backend"], &found["direction"]),
        (&4.into(), &"scalar".into(), &"reverse".into())
    );
    assert!(found["workspace_bytes"].as_u64().is_some_and(|bytes| bytes > 0));
}

#[test]
fn a_certificate_bounds_what_it_measures() {
    let (desk, _) = desk(N);
    for rule in RULES {
        let line = format!("linear run {} --out @y.npy --present-state @last.npy --certificate", flags(rule));
        let printed = desk.ok(&format!("{line} --verbose"));
        let [sentence, json] = printed.lines().collect::<Vec<_>>()[..] else { panic!("{printed}") };
        let told: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(desk.ok(&line), format!("{sentence}\n"));
        let number = |name: &str| told[name].as_f64().unwrap();
        assert_eq!((&told["what"], &told["claim"]), (&"certificate".into(), &"bound".into()), "{told}");
        assert!(
            number("measured_absolute") > 0.0 && number("measured_absolute") <= number("absolute"),
            "{told}"
        );
        assert!(number("measured_relative") <= number("relative") && number("relative") < 1e-3, "{told}");
        assert!(number("gain") <= 1.0, "{told}");
        let most = number("absolute");
        let proven = format!(
            "certificate: every number of the output is proven to be within {most:.1e} of the recurrence"
        );
        assert_eq!(sentence, proven);
        let lines = desk.ok(&format!("{line} --json"));
        assert!(lines.lines().count() == 2 && lines.starts_with(json), "{lines}");
    }
    desk.f32("g.npy", &[2, 2, 37], &[f32::NAN; 148]);
    let line = format!("linear run {} --out @y.npy --certificate", flags("gated"));
    assert!(desk.ok(&line).starts_with("certificate: nothing is proven about the output; "));
    let printed = desk.ok(&format!("{line} --json"));
    let told: serde_json::Value = serde_json::from_str(printed.lines().next().unwrap()).unwrap();
    assert_eq!((&told["claim"], told["not_finite"].as_u64()), (&"none".into(), Some(2 * 2 * 37 * 6)));
}

#[test]
fn examples_of_the_help_run() {
    let (desk, _) = desk(N);
    let examples = desk.examples("linear run");
    assert_eq!(examples.len(), 4, "{examples:?}");
    examples.iter().for_each(|example| drop(desk.ok(example)));
}
