//! Calls of the operators besides attention, each with its outputs in f64, computed by the operator's definition, and
//! calls that must be refused.

use crate::cases::{Numbers, Refusal};
use crate::model::Attribute::{self, Float, Int};
use crate::oracle::Heads;
use elsa_onnxruntime::{Data, HostTensor};
use half::f16;

/// Inputs in the order of the operator; an absent input has an empty name.
type Given = Vec<(&'static str, Option<HostTensor>)>;

/// The right values of an output.
pub struct Wanted {
    pub dims: Vec<i64>,
    pub values: Vec<f64>,
    /// Number of roundings to f32 that an element may have lost, relative to the largest element.
    pub sums: f64,
}

/// A call of an operator.
pub struct Call {
    pub name: &'static str,
    pub operator: &'static str,
    pub attributes: Vec<(&'static str, Attribute)>,
    pub inputs: Given,
    /// The right outputs: the main output, and perhaps the last states.
    pub wanted: Vec<Wanted>,
}

impl Call {
    /// Returns the names of the call's outputs.
    pub fn outputs(&self) -> &'static [&'static str] {
        if self.wanted.len() > 1 { &["out", "present_state"] } else { &["out"] }
    }
}

/// Returns the element of a tensor at an index.
fn at<const N: usize>(tensor: &HostTensor, index: [usize; N]) -> f64 {
    let place = index.iter().zip(&tensor.dims).fold(0, |place, (i, size)| place * *size as usize + i);
    tensor.data.get(place)
}

/// Returns an input by its name.
fn input<'a>(inputs: &'a Given, name: &str) -> Option<&'a HostTensor> {
    inputs.iter().find(|(other, _)| *other == name).and_then(|(_, tensor)| tensor.as_ref())
}

/// Returns the values of an integer attribute; 0 if the call does not have it.
fn set(attributes: &[(&'static str, Attribute)], name: &str) -> i64 {
    let found = attributes.iter().find(|(other, _)| *other == name);
    found.map_or(0, |(_, value)| if let Int(x) = value { *x } else { 0 })
}

fn wanted(dims: &[usize], values: Vec<f64>, sums: usize) -> Wanted {
    Wanted { dims: dims.iter().map(|size| *size as i64).collect(), values, sums: sums as f64 }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Numbers of a call of linear attention that its tensors do not state.
#[derive(Clone, Copy, Default)]
struct LinearNumbers {
    heads: usize,
    states: usize,
    scale: Option<f64>,
    normalize: Option<f64>,
    direction: i64,
}

/// Computes linear attention token by token.
fn linear(inputs: &Given, numbers: &LinearNumbers) -> Option<Vec<Wanted>> {
    let rows = input(inputs, "q")?.dims.len() == 3;
    let q = Heads::of(input(inputs, "q")?, numbers.heads, 0, 1);
    let [batch, heads, tokens, dk] = q.shape;
    let k = input(inputs, "k")?;
    let k = Heads::of(k, k.dims[2] as usize / dk, 0, 1);
    let v = Heads::of(input(inputs, "v")?, numbers.states, 0, 1);
    let [_, states, _, dv] = v.shape;
    let decay = input(inputs, "decay").map(|decay| Heads::of(decay, states, 0, 1));
    let beta = input(inputs, "beta").map(|beta| Heads::of(beta, beta.dims[2] as usize, 0, 1));
    let past = input(inputs, "past_state");
    let scale = numbers.scale.unwrap_or(1.0 / (dk as f64).sqrt());
    let unit = |row: Vec<f64>| -> Vec<f64> {
        let Some(epsilon) = numbers.normalize else { return row };
        let norm = (row.iter().map(|x| x * x).sum::<f64>() + epsilon).sqrt();
        row.iter().map(|x| x / norm).collect()
    };
    let all = heads.max(states);
    let mut out = vec![0.0; batch * all * tokens * dv];
    let bounds: Option<Vec<usize>> = input(inputs, "cu_seqlens")
        .map(|bounds| (0..bounds.dims[0] as usize).map(|i| bounds.data.get(i) as usize).collect());
    let sequences = bounds.as_ref().map_or(batch, |bounds| bounds.len() - 1);
    let mut present = vec![0.0; sequences * states * dk * dv];
    let passes: &[bool] = match numbers.direction {
        1 => &[true],
        2 => &[false, true],
        _ => &[false],
    };
    for (n, s) in (0..sequences).flat_map(|n| (0..states).map(move |s| (n, s))) {
        let (b, own) = bounds.as_ref().map_or((n, 0..tokens), |bounds| (0, bounds[n]..bounds[n + 1]));
        let mut read = |t: usize, state: &[f64]| {
            for h in s * all / states..(s + 1) * all / states {
                let query = unit((0..dk).map(|x| (q.at)(b, h * heads / all, t, x)).collect());
                for y in 0..dv {
                    let sum: f64 = (0..dk).map(|x| query[x] * state[x * dv + y]).sum();
                    let place = if rows { (b * tokens + t) * all + h } else { (b * all + h) * tokens + t };
                    out[place * dv + y] += scale * sum;
                }
            }
        };
        for &reverse in passes {
            let mut state: Vec<f64> =
                (0..dk * dv).map(|i| past.map_or(0.0, |past| at(past, [n, s, i / dv, i % dv]))).collect();
            for step in 0..own.len() {
                let t = if reverse { own.end - 1 - step } else { own.start + step };
                let group = s * k.shape[1] / states;
                let key = unit((0..dk).map(|x| (k.at)(b, group, t, x)).collect());
                if let Some(decay) = &decay {
                    let last = decay.shape[3] - 1;
                    (0..dk * dv).for_each(|i| state[i] *= (decay.at)(b, s, t, last.min(i / dv)).exp());
                }
                for y in 0..dv {
                    let held: f64 = (0..dk).map(|x| key[x] * state[x * dv + y]).sum();
                    let mut added = (v.at)(b, s, t, y);
                    if let Some(beta) = &beta {
                        added = (beta.at)(b, s.min(beta.shape[1] - 1), t, 0) * (added - held);
                    }
                    (0..dk).for_each(|x| state[x * dv + y] += key[x] * added);
                }
                if numbers.direction != 3 {
                    read(t, &state);
                }
            }
            if numbers.direction == 3 {
                own.clone().for_each(|t| read(t, &state));
            }
            present[(n * states + s) * dk * dv..][..dk * dv].copy_from_slice(&state);
        }
    }
    let dims = if rows { vec![batch, tokens, all * dv] } else { vec![batch, all, tokens, dv] };
    let sums = 16 + 4 * (dk + tokens);
    Some(vec![wanted(&dims, out, sums), wanted(&[sequences, states, dk, dv], present, sums)])
}

/// Places of a series of batch, tokens and channels in a tensor.
#[derive(Clone, Copy)]
struct Axes {
    sizes: [usize; 3],
    tokens_first: bool,
}

impl Axes {
    fn of(tensor: &HostTensor, attributes: &[(&'static str, Attribute)]) -> Axes {
        let tokens_first = set(attributes, "tokens_first") == 1;
        let [b, x, y] = [0, 1, 2].map(|axis| tensor.dims[axis] as usize);
        Axes { sizes: if tokens_first { [b, x, y] } else { [b, y, x] }, tokens_first }
    }

    fn get(self, tensor: &HostTensor, b: usize, t: usize, c: usize) -> f64 {
        at(tensor, if self.tokens_first { [b, t, c] } else { [b, c, t] })
    }

    /// Returns the sizes of the tensor's axes, and the place of an element.
    fn place(self, b: usize, t: usize, c: usize) -> ([usize; 3], usize) {
        let [batch, tokens, channels] = self.sizes;
        if self.tokens_first {
            ([batch, tokens, channels], (b * tokens + t) * channels + c)
        } else {
            ([batch, channels, tokens], (b * channels + c) * tokens + t)
        }
    }

    /// Calls `visit` for every sequence and channel, and returns the output. `visit` receives a function that sets the
    /// output at a token, and the tokens in the order of the pass.
    fn each(
        self,
        reverse: bool,
        mut visit: impl FnMut(usize, usize, &[usize], &mut dyn FnMut(usize, f64)),
    ) -> Vec<f64> {
        let [batch, tokens, channels] = self.sizes;
        let mut order: Vec<usize> = (0..tokens).collect();
        if reverse {
            order.reverse();
        }
        let mut out = vec![0.0; batch * tokens * channels];
        for (b, c) in (0..batch).flat_map(|b| (0..channels).map(move |c| (b, c))) {
            visit(b, c, &order, &mut |t, y| out[self.place(b, t, c).1] = y);
        }
        out
    }
}

fn recurrence(inputs: &Given, attributes: &[(&'static str, Attribute)]) -> Option<Vec<Wanted>> {
    let (a, b) = (input(inputs, "a")?, input(inputs, "b")?);
    let past = input(inputs, "past_state");
    let axes = Axes::of(b, attributes);
    let [batch, tokens, channels] = axes.sizes;
    let log = set(attributes, "log_gates") == 1;
    let mut present = vec![0.0; batch * channels];
    let out = axes.each(set(attributes, "reverse") == 1, |i, c, order, put| {
        let mut state = past.map_or(0.0, |past| at(past, [i, c]));
        for &t in order {
            let gate = axes.get(a, i, t, c);
            let factor = if log { gate.exp() } else { gate };
            state = state * factor + axes.get(b, i, t, c);
            put(t, state);
        }
        present[i * channels + c] = state;
    });
    let sums = 16 + 4 * tokens;
    Some(vec![wanted(&axes.place(0, 0, 0).0, out, sums), wanted(&[batch, channels], present, sums)])
}

fn convolution(inputs: &Given, attributes: &[(&'static str, Attribute)]) -> Option<Vec<Wanted>> {
    let (u, filter) = (input(inputs, "u")?, input(inputs, "filter")?);
    let (bias, past) = (input(inputs, "bias"), input(inputs, "past_state"));
    let axes = Axes::of(u, attributes);
    let [batch, _, channels] = axes.sizes;
    let taps = *filter.dims.last()? as usize;
    let history = taps - 1;
    let weight = |c: usize, back: usize| {
        let tap = if set(attributes, "newest_first") == 1 { back } else { history - back };
        let first = if filter.dims.len() == 1 { 0 } else { c * taps };
        filter.data.get(first + tap)
    };
    let mut present = vec![0.0; batch * channels * history];
    let out = axes.each(set(attributes, "reverse") == 1, |i, c, order, put| {
        let mut line: Vec<f64> = (0..history).map(|x| past.map_or(0.0, |past| at(past, [i, c, x]))).collect();
        line.extend(order.iter().map(|&t| axes.get(u, i, t, c)));
        for (step, &t) in order.iter().enumerate() {
            let sum: f64 = (0..taps).map(|back| weight(c, back) * line[history + step - back]).sum();
            let sum = sum + bias.map_or(0.0, |bias| at(bias, [c]));
            put(t, if set(attributes, "silu") == 1 { silu(sum) } else { sum });
        }
        present[(i * channels + c) * history..][..history].copy_from_slice(&line[line.len() - history..]);
    });
    let sums = 16 + taps;
    Some(vec![wanted(&axes.place(0, 0, 0).0, out, sums), wanted(&[batch, channels, history], present, 0)])
}

fn selective(inputs: &Given, attributes: &[(&'static str, Attribute)]) -> Option<Vec<Wanted>> {
    let [u, delta, a, b, c] = ["u", "delta", "a", "b", "c"].map(|name| input(inputs, name));
    let (u, delta, a, b, c) = (u?, delta?, a?, b?, c?);
    let [d, z, bias, past] = ["d", "z", "delta_bias", "past_state"].map(|name| input(inputs, name));
    let axes = Axes::of(u, attributes);
    let ([batch, tokens, channels], numbers) = (axes.sizes, a.dims[1] as usize);
    let coefficient = |of: &HostTensor, i: usize, t: usize, x: usize, n: usize| match of.dims.len() {
        2 => at(of, [x, n]),
        3 => axes.get(of, i, t, n),
        _ if axes.tokens_first => at(of, [i, t, x / (channels / of.dims[2] as usize), n]),
        _ => at(of, [i, x / (channels / of.dims[1] as usize), n, t]),
    };
    let mut present = vec![0.0; batch * channels * numbers];
    let out = axes.each(set(attributes, "reverse") == 1, |i, x, order, put| {
        let mut state: Vec<f64> =
            (0..numbers).map(|n| past.map_or(0.0, |past| at(past, [i, x, n]))).collect();
        for &t in order {
            let step = axes.get(delta, i, t, x) + bias.map_or(0.0, |bias| at(bias, [x]));
            let step = if set(attributes, "softplus") == 1 { softplus(step) } else { step };
            let own = axes.get(u, i, t, x);
            let mut y = d.map_or(0.0, |d| at(d, [x]) * own);
            for (n, state) in state.iter_mut().enumerate() {
                *state = (step * at(a, [x, n])).exp() * *state + step * coefficient(b, i, t, x, n) * own;
                y += coefficient(c, i, t, x, n) * *state;
            }
            put(t, y * z.map_or(1.0, |z| silu(axes.get(z, i, t, x))));
        }
        present[(i * channels + x) * numbers..][..numbers].copy_from_slice(&state);
    });
    let sums = 64 + 4 * (numbers + tokens);
    let shape = [batch, channels, numbers];
    Some(vec![wanted(&axes.place(0, 0, 0).0, out, sums), wanted(&shape, present, sums)])
}

/// Collects calls, whose outputs are computed by the definitions.
struct Calls<'a> {
    all: Vec<Call>,
    numbers: &'a mut Numbers,
}

impl Calls<'_> {
    /// Adds a call. `states` says whether it has the output of the last states.
    fn add(
        &mut self,
        name: &'static str,
        operator: &'static str,
        attributes: &[(&'static str, Attribute)],
        inputs: Given,
        states: bool,
    ) {
        let float = |name: &str| {
            let found = attributes.iter().find(|(other, _)| *other == name);
            found.and_then(|(_, value)| if let Float(x) = value { Some(f64::from(*x)) } else { None })
        };
        let heads = set(attributes, "num_heads") as usize;
        let states_of = set(attributes, "kv_num_heads") as usize;
        let numbers = LinearNumbers {
            heads,
            states: if states_of > 0 { states_of } else { heads },
            scale: float("scale"),
            normalize: float("normalize"),
            direction: set(attributes, "direction"),
        };
        let made = match operator {
            "ElsaLinearAttention" => linear(&inputs, &numbers),
            "ElsaRecurrence" => recurrence(&inputs, attributes),
            "ElsaSelectiveScan" => selective(&inputs, attributes),
            _ => convolution(&inputs, attributes),
        };
        let mut wanted = made.unwrap_or_default();
        wanted.truncate(if states { 2 } else { 1 });
        self.all.push(Call { name, operator, attributes: attributes.to_vec(), inputs, wanted });
    }

    fn linear(&mut self, half: bool) {
        let operator = "ElsaLinearAttention";
        let gate = |x: f32| -x.abs();
        let rate = |x: f32| 0.5 + 0.5 * x;
        let some = |name, tensor| (name, Some(tensor));
        let n = &mut *self.numbers;
        let whole = |n: &mut Numbers, name| some(name, n.tensor(half, &[2, 4, 9, 8]));
        let inputs = vec![whole(n, "q"), whole(n, "k"), whole(n, "v")];
        self.add("linear rule, rank 4", operator, &[], inputs.clone(), true);
        for (name, direction) in [("reverse", 1), ("bidirectional", 2), ("not causal", 3)] {
            let attributes = [("direction", Int(direction)), ("scale", Float(0.5))];
            self.add(name, operator, &attributes, inputs.clone(), false);
        }
        let n = &mut *self.numbers;
        let rows = [("num_heads", Int(4)), ("kv_num_heads", Int(2))];
        let inputs = vec![
            some("q", n.tensor(half, &[2, 37, 32])),
            some("k", n.tensor(half, &[2, 37, 8])),
            some("v", n.tensor(half, &[2, 37, 12])),
            some("decay", n.mapped(false, &[2, 37, 2], gate)),
            ("", None),
            some("past_state", n.tensor(false, &[2, 2, 8, 6])),
        ];
        self.add("gated, rank 3, shared heads, past and present", operator, &rows, inputs, true);
        let n = &mut *self.numbers;
        let rows = [("num_heads", Int(2)), ("kv_num_heads", Int(4)), ("normalize", Float(1e-6))];
        let inputs = vec![
            some("q", n.tensor(half, &[1, 20, 16])),
            some("k", n.tensor(half, &[1, 20, 32])),
            some("v", n.tensor(half, &[1, 20, 20])),
            ("", None),
            some("beta", n.mapped(half, &[1, 20, 1], rate)),
        ];
        self.add("delta, fewer queries, one rate", operator, &rows, inputs, true);
        let n = &mut *self.numbers;
        let inputs = vec![
            whole(n, "q"),
            whole(n, "k"),
            whole(n, "v"),
            some("decay", n.mapped(half, &[2, 4, 9, 8], gate)),
            some("beta", n.mapped(half, &[2, 4, 9, 1], rate)),
        ];
        let attributes = [("normalize", Float(1e-6)), ("direction", Int(1))];
        self.add("gated delta, a gate for each dim, reverse", operator, &attributes, inputs, true);
        let n = &mut *self.numbers;
        let rows = [("num_heads", Int(2))];
        let inputs = vec![
            some("q", n.tensor(half, &[1, 37, 16])),
            some("k", n.tensor(half, &[1, 37, 16])),
            some("v", n.tensor(half, &[1, 37, 12])),
            some("decay", n.mapped(false, &[1, 37, 2], gate)),
            ("", None),
            some("past_state", n.tensor(false, &[3, 2, 8, 6])),
            // The second sequence has no token, so its state stays.
            some("cu_seqlens", HostTensor { dims: vec![4], data: Data::I64(vec![0, 10, 10, 37]) }),
        ];
        self.add("gated, packed sequences", operator, &rows, inputs, true);
    }

    fn series(&mut self, half: bool) {
        let some = |name, tensor| (name, Some(tensor));
        let n = &mut *self.numbers;
        let inputs = vec![
            some("a", n.mapped(half, &[2, 5, 33], |x| x)),
            some("b", n.tensor(half, &[2, 5, 33])),
            some("past_state", n.tensor(false, &[2, 5])),
        ];
        self.add("recurrence, past and present", "ElsaRecurrence", &[], inputs, true);
        let n = &mut *self.numbers;
        let inputs = vec![
            some("a", n.mapped(false, &[1, 12, 7], |x| -x.abs())),
            some("b", n.tensor(half, &[1, 12, 7])),
        ];
        let attributes = [("log_gates", Int(1)), ("tokens_first", Int(1)), ("reverse", Int(1))];
        self.add("recurrence, logarithms, reverse", "ElsaRecurrence", &attributes, inputs, false);

        let n = &mut *self.numbers;
        let rates = |x: f32| -2.0 * x.abs();
        let small = |x: f32| 0.1 + 0.1 * x;
        let inputs = vec![
            some("u", n.tensor(half, &[2, 6, 17])),
            some("delta", n.mapped(half, &[2, 6, 17], small)),
            some("a", n.mapped(false, &[6, 4], rates)),
            some("b", n.tensor(half, &[2, 4, 17])),
            some("c", n.tensor(half, &[2, 4, 17])),
        ];
        self.add("selective scan", "ElsaSelectiveScan", &[], inputs, false);
        let n = &mut *self.numbers;
        let inputs = vec![
            some("u", n.tensor(half, &[2, 6, 17])),
            some("delta", n.tensor(false, &[2, 6, 17])),
            some("a", n.mapped(false, &[6, 4], rates)),
            some("b", n.tensor(half, &[2, 2, 4, 17])),
            some("c", n.tensor(half, &[2, 3, 4, 17])),
            some("d", n.tensor(false, &[6])),
            some("z", n.tensor(half, &[2, 6, 17])),
            some("delta_bias", n.tensor(false, &[6])),
            some("past_state", n.tensor(false, &[2, 6, 4])),
        ];
        let attributes = [("softplus", Int(1))];
        self.add("selective scan with every input", "ElsaSelectiveScan", &attributes, inputs, true);
        let n = &mut *self.numbers;
        let inputs = vec![
            some("u", n.tensor(half, &[1, 11, 3])),
            some("delta", n.mapped(half, &[1, 11, 3], small)),
            some("a", n.mapped(false, &[3, 5], rates)),
            some("b", n.tensor(false, &[3, 5])),
            some("c", n.tensor(half, &[1, 11, 1, 5])),
        ];
        let attributes = [("tokens_first", Int(1)), ("reverse", Int(1))];
        self.add("selective scan, reverse, fixed b", "ElsaSelectiveScan", &attributes, inputs, true);

        let n = &mut *self.numbers;
        let inputs = vec![
            some("u", n.tensor(half, &[2, 5, 19])),
            some("filter", n.tensor(false, &[5, 1, 4])),
            some("bias", n.tensor(false, &[5])),
            some("past_state", n.tensor(false, &[2, 5, 3])),
        ];
        self.add("convolution, past and present", "ElsaConv", &[("silu", Int(1))], inputs, true);
        let n = &mut *self.numbers;
        let inputs = vec![some("u", n.tensor(half, &[1, 19, 5])), some("filter", n.tensor(false, &[3]))];
        let attributes = [("newest_first", Int(1)), ("tokens_first", Int(1)), ("reverse", Int(1))];
        self.add("convolution, shared filter, reverse", "ElsaConv", &attributes, inputs, true);
        let n = &mut *self.numbers;
        let inputs = vec![some("u", n.tensor(half, &[1, 2, 1])), some("filter", n.tensor(false, &[2, 1]))];
        self.add("convolution, one weight, one token", "ElsaConv", &[], inputs, false);
    }
}

/// Returns the calls for an element type: f16 if `half`, otherwise f32.
pub fn calls(half: bool) -> Vec<Call> {
    let mut numbers = Numbers::new(13);
    let mut calls = Calls { all: Vec::new(), numbers: &mut numbers };
    calls.linear(half);
    calls.series(half);
    calls.all
}

/// Returns the calls that must be refused, each with its operator.
pub fn refusals() -> Vec<(&'static str, Refusal)> {
    let zeros = |dims: &[i64]| {
        let count: i64 = dims.iter().product();
        HostTensor { dims: dims.to_vec(), data: Data::F32(vec![0.0; count as usize]) }
    };
    let half = |dims: &[i64]| {
        let count: i64 = dims.iter().product();
        HostTensor { dims: dims.to_vec(), data: Data::F16(vec![f16::ONE; count as usize]) }
    };
    let (q, u) = ([1, 2, 3, 4], [1, 2, 5]);
    let three = || vec![("q", zeros(&q)), ("k", zeros(&q)), ("v", zeros(&q))];
    let with = |name: &'static str, tensor: HostTensor| {
        let mut inputs = three();
        for absent in ["decay", "beta", "past_state"] {
            if absent == name {
                break;
            }
            inputs.push(("", zeros(&[0])));
        }
        inputs.push((name, tensor));
        inputs
    };
    let conv = |filter: HostTensor| vec![("u", zeros(&u)), ("filter", filter)];
    let mut all = Vec::new();
    let mut add = |operator, attributes: &[(&'static str, Attribute)], inputs, says| {
        all.push((operator, Refusal { says, attributes: attributes.to_vec(), inputs }));
    };
    let linear = "ElsaLinearAttention";
    add(linear, &[("direction", Int(7))], three(), "direction: 7; allowed: 0 forward");
    add(linear, &[("normalize", Float(-1.0))], three(), "normalize: -1; allowed: ");
    add(linear, &[], with("decay", zeros(&[1, 2, 3, 2])), "decay: head size 2; allowed: 4, as q has");
    add(linear, &[], with("beta", zeros(&[1, 2, 4, 1])), "beta: tokens 4; allowed: 3, as q has");
    add(linear, &[], with("past_state", half(&[1, 2, 4, 4])), "past_state: type f16; allowed: f32");
    let i64s = |list: &[i64]| HostTensor { dims: vec![list.len() as i64], data: Data::I64(list.to_vec()) };
    add(linear, &[], with("cu_seqlens", zeros(&[2])), "cu_seqlens: type f32; allowed: i64");
    add(linear, &[], with("cu_seqlens", i64s(&[3])), "cu_seqlens: 1 entries; allowed: at least 2");
    add(linear, &[], with("cu_seqlens", i64s(&[0, 2])), "cu_seqlens: entry 1 is 2; allowed: 3");
    let gates = vec![("a", zeros(&[1, 2, 4])), ("b", zeros(&u))];
    add("ElsaRecurrence", &[], gates, "a: tokens 4; allowed: 5, as b has");
    add("ElsaConv", &[], conv(zeros(&[3, 4])), "filter: channels 3; allowed: 2, as u has");
    add("ElsaConv", &[], conv(half(&[2, 4])), "filter: type f16; allowed: f32");
    add("ElsaConv", &[("silu", Int(2))], conv(zeros(&[2, 4])), "silu: 2; allowed: 0 or 1");
    let mut scan = vec![("u", zeros(&u)), ("delta", zeros(&u))];
    scan.extend(["a", "b", "c"].map(|name| (name, zeros(&[2, 300]))));
    add("ElsaSelectiveScan", &[], scan, "states: 300; allowed: 1 to 256");
    all
}
