//! Calls of the operator, each with the data from which its expected results are computed, and calls that must be
//! refused.

use crate::model::Attribute::{self, Float, Int, Ints, Text};
use crate::oracle::Heads;
use elsa_core::random::Random;
use elsa_onnxruntime::{Data, HostTensor};
use half::f16;

/// Function that changes a score, given its index `[batch, head, query, key]` and its value.
pub type Score = Box<dyn Fn([usize; 4], f64) -> f64>;

/// A call of the operator, with the parameters from which the oracle computes the expected outputs.
pub struct Case {
    pub name: &'static str,
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Inputs in the order of the operator; an absent input has an empty name.
    pub inputs: Vec<(&'static str, Option<HostTensor>)>,
    pub heads: usize,
    pub kv_heads: usize,
    pub scale: f64,
    pub score: Score,
    /// Outputs in the order of the operator; an omitted output has an empty name.
    pub outputs: &'static [&'static str],
}

/// Generator of random tensors and flags, with a fixed seed.
pub struct Numbers(Random);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(Random::new(seed))
    }

    pub fn tensor(&mut self, half: bool, dims: &[i64]) -> HostTensor {
        self.mapped(half, dims, |x| 2.0 * x)
    }

    /// Returns a tensor whose elements are `of` a random number from −1 to 1.
    pub fn mapped(&mut self, half: bool, dims: &[i64], of: impl Fn(f32) -> f32) -> HostTensor {
        let count: i64 = dims.iter().product();
        let numbers: Vec<f32> = (0..count).map(|_| of(self.0.signed())).collect();
        let data = if half {
            Data::F16(numbers.iter().map(|x| f16::from_f32(*x)).collect())
        } else {
            Data::F32(numbers)
        };
        HostTensor { dims: dims.to_vec(), data }
    }

    fn flags(&mut self, dims: &[i64]) -> HostTensor {
        let count: i64 = dims.iter().product();
        let data = (0..count).map(|i| u8::from(i == 0 || self.0.signed() > -0.4)).collect();
        HostTensor { dims: dims.to_vec(), data: Data::Bool(data) }
    }
}

const NO: f64 = f64::NEG_INFINITY;

/// Builds a call with tensors of rank 4: a batch of 2, 4 heads, 12 tokens, 16 elements. Each case is made by changing
/// this call.
fn plain(name: &'static str, numbers: &mut Numbers, half: bool) -> Case {
    let dims = [2, 4, 12, 16];
    let inputs = ["Q", "K", "V"].map(|name| (name, Some(numbers.tensor(half, &dims)))).into();
    let (attributes, score) = (Vec::new(), Box::new(|_, s| s));
    Case { name, attributes, inputs, heads: 4, kv_heads: 4, scale: 0.25, score, outputs: &["Y"] }
}

fn keep(attended: bool, s: f64) -> f64 {
    if attended { s } else { NO }
}

/// Returns the cases for an element type: f16 if `half`, otherwise f32.
pub fn cases(half: bool) -> Vec<Case> {
    let numbers = &mut Numbers::new(7);
    let mut cases = Vec::new();
    let mut add = |name, change: &dyn Fn(&mut Case, &mut Numbers)| {
        let mut case = plain(name, numbers, half);
        change(&mut case, numbers);
        cases.push(case);
    };
    add("rank 4", &|_, _| ());
    add("rank 3", &|case, numbers| {
        case.attributes = vec![("num_heads", Int(4))];
        case.inputs.iter_mut().for_each(|input| input.1 = Some(numbers.tensor(half, &[2, 12, 64])));
    });
    add("rank 3, heads of keys, another dim of values", &|case, numbers| {
        case.attributes = vec![("num_heads", Int(4)), ("kv_num_heads", Int(2))];
        case.kv_heads = 2;
        let dims = [[2, 12, 64], [2, 9, 32], [2, 9, 48]];
        for (input, dims) in case.inputs.iter_mut().zip(dims) {
            input.1 = Some(numbers.tensor(half, &dims));
        }
    });
    add("no sequence", &|case, numbers| {
        case.inputs.iter_mut().for_each(|input| input.1 = Some(numbers.tensor(half, &[0, 4, 12, 16])));
    });
    add("packed", &|case, numbers| {
        case.attributes = vec![("num_heads", Int(4)), ("packed", Int(1))];
        case.inputs = vec![("Q", Some(numbers.tensor(half, &[2, 12, 192])))];
    });
    add("one key head", &|case, numbers| {
        case.kv_heads = 1;
        for input in &mut case.inputs[1..] {
            input.1 = Some(numbers.tensor(half, &[2, 1, 12, 16]));
        }
    });
    add("boolean mask", &|case, numbers| {
        let mask = numbers.flags(&[2, 1, 12, 12]);
        let data = mask.data.clone();
        case.score = Box::new(move |[b, _, i, j], s| keep(data.get((b * 12 + i) * 12 + j) != 0.0, s));
        case.inputs.push(("mask", Some(mask)));
    });
    add("mask of f32, shorter than the keys", &|case, numbers| {
        let mask = numbers.tensor(false, &[4, 12, 8]);
        let data = mask.data.clone();
        case.score =
            Box::new(move |[_, h, i, j], s| if j < 8 { s + data.get((h * 12 + i) * 8 + j) } else { NO });
        case.inputs.push(("mask", Some(mask)));
    });
    add("mask of the type of Q", &|case, numbers| {
        let mask = numbers.tensor(half, &[12, 12]);
        let data = mask.data.clone();
        case.score = Box::new(move |[_, _, i, j], s| s + data.get(i * 12 + j));
        case.inputs.push(("mask", Some(mask)));
    });
    add("causal, scale, soft cap", &|case, _| {
        case.attributes = vec![("is_causal", Int(1)), ("scale", Float(0.5)), ("softcap", Float(2.0))];
        case.scale = 0.5;
        case.score = Box::new(|[_, _, i, j], s| keep(j <= i, 2.0 * (s / 2.0).tanh()));
    });
    add("causal from the last key, window", &|case, numbers| {
        case.attributes = vec![("is_causal", Int(1)), ("align_last", Int(1)), ("window", Ints(&[6, -1]))];
        case.inputs[0].1 = Some(numbers.tensor(half, &[2, 4, 5, 16]));
        case.score = Box::new(|[_, _, i, j], s| keep(j <= i + 7 && j + 6 >= i + 7, s));
    });
    add("window", &|case, _| {
        case.attributes = vec![("window", Ints(&[2, 1]))];
        case.score = Box::new(|[_, _, i, j], s| keep(j + 2 >= i && j <= i + 1, s));
    });
    add("past and present, causal", &|case, numbers| {
        case.attributes = vec![("is_causal", Int(1))];
        let mut past = || Some(numbers.tensor(half, &[2, 4, 5, 16]));
        case.inputs.extend([("", None), ("", None), ("past_key", past()), ("past_value", past())]);
        case.score = Box::new(|[_, _, i, j], s| keep(j <= i + 5, s));
        case.outputs = &["Y", "present_key", "present_value"];
    });
    add("present without a past", &|case, _| case.outputs = &["Y", "present_key", "present_value"]);
    add("present values alone", &|case, _| case.outputs = &["Y", "", "present_value"]);
    add("outputs that are left out", &|case, _| case.outputs = &["Y", "", ""]);
    add("lengths, causal", &|case, _| {
        case.attributes = vec![("is_causal", Int(1))];
        let lengths = HostTensor { dims: vec![2], data: Data::I64(vec![7, 12]) };
        case.inputs.extend([("", None), ("", None), ("", None), ("", None), ("kv_lengths", Some(lengths))]);
        case.score = Box::new(|[b, _, i, j], s| keep(j + 12 <= i + [7, 12][b], s));
    });
    add("packed sequences, causal", &|case, numbers| {
        case.attributes = vec![("is_causal", Int(1))];
        let mut bounded = |tokens: i64| Some(numbers.tensor(half, &[1, 4, tokens, 16]));
        let tensors = [bounded(12), bounded(15), bounded(15)];
        case.inputs.iter_mut().zip(tensors).for_each(|(input, tensor)| input.1 = tensor);
        // The second sequence has no query, and the third has fewer keys than queries.
        add_bounds(case, &[&[0, 4, 4, 12], &[0, 7, 9, 15]]);
        case.score = Box::new(|[_, _, i, j], s| {
            let (of, first) = if i < 4 { (0..7, 0) } else { (9..15, 4) };
            keep(of.contains(&j) && j - of.start <= i - first, s)
        });
        case.outputs = &["Y", "", "", "lse"];
    });
    add("packed sequences in one tensor, the last query at the last key", &|case, numbers| {
        case.attributes =
            vec![("num_heads", Int(4)), ("packed", Int(1)), ("is_causal", Int(1)), ("align_last", Int(1))];
        case.inputs = vec![("Q", Some(numbers.tensor(half, &[1, 12, 192]))), ("", None), ("", None)];
        add_bounds(case, &[&[0, 5, 12]]);
        case.score = Box::new(|[_, _, i, j], s| keep((j < 5) == (i < 5) && j <= i, s));
    });
    add("log-sum-exp and states", &|case, numbers| {
        let mask = numbers.flags(&[2, 1, 12, 12]);
        let data = mask.data.clone();
        // The first row attends no key.
        case.score =
            Box::new(move |[b, _, i, j], s| keep(i > 0 && data.get((b * 12 + i) * 12 + j) != 0.0, s));
        let Data::Bool(mut flags) = mask.data else { return };
        (0..2).for_each(|b| flags[b * 144..][..12].fill(0));
        case.inputs.push(("mask", Some(HostTensor { dims: mask.dims, data: Data::Bool(flags) })));
        case.outputs = &["Y", "", "", "lse", "state_m", "state_s", "state_w"];
    });
    add("states of rows of three axes", &|case, numbers| {
        case.attributes = vec![("num_heads", Int(4)), ("half_scores", Int(1))];
        case.inputs.iter_mut().for_each(|input| input.1 = Some(numbers.tensor(half, &[2, 12, 64])));
        case.outputs = &["Y", "", "", "", "state_m", "state_s", "state_w", ""];
    });
    add("products on Tensor Cores", &|case, numbers| {
        case.attributes = vec![("tensor_cores", Int(2))];
        case.inputs.iter_mut().for_each(|input| input.1 = Some(numbers.tensor(half, &[2, 4, 12, 64])));
        case.scale = 0.125;
    });
    add("an error budget", &|case, numbers| {
        case.attributes = vec![("error_budget", Float(1e-3))];
        for (tensor, input) in case.inputs.iter_mut().enumerate() {
            let keys = numbers.mapped(false, &[1, 4, 128, 16], |x| 0.1 * x);
            let numbers: Vec<f32> = (0..4 * 128 * 16)
                .map(|i| match (tensor, i % 16, i / 16 % 128) {
                    // The keys from 64 on have scores that are less by about 8.
                    (0, 0, _) => 1.0,
                    (1, 0, key) => {
                        if key < 64 {
                            0.0
                        } else {
                            -32.0
                        }
                    }
                    (2, ..) => 10.0 * keys.data.get(i) as f32 + if i / 16 % 128 < 64 { 0.0 } else { 3.0 },
                    _ => keys.data.get(i) as f32,
                })
                .collect();
            let data = match half {
                true => Data::F16(numbers.iter().map(|x| f16::from_f32(*x)).collect()),
                false => Data::F32(numbers),
            };
            input.1 = Some(HostTensor { dims: keys.dims, data });
        }
        case.score = Box::new(|[_, _, _, j], s| keep(j < 64, s));
        case.outputs = &["Y", "", "", "", "", "", "", "left_out"];
    });
    add("windows of a shifted picture", &|case, numbers| {
        windows(case, numbers, half, None);
    });
    add("windows of a shifted picture, masked", &|case, numbers| {
        let mask = numbers.flags(&[12, 12]);
        windows(case, numbers, half, Some(mask));
        case.outputs = &["Y", "", "", "lse"];
    });
    cases
}

/// Adds the bounds of packed sequences to a case: those of the queries, and perhaps those of the keys.
fn add_bounds(case: &mut Case, bounds: &[&[i64]]) {
    case.inputs.resize_with(8, || ("", None));
    for (name, list) in ["cu_seqlens_q", "cu_seqlens_k"].into_iter().zip(bounds) {
        let tensor = HostTensor { dims: vec![list.len() as i64], data: Data::I64(list.to_vec()) };
        case.inputs.push((name, Some(tensor)));
    }
}

/// Changes a case to windows of 3 × 4 tokens. The batch has two pictures of 6 × 8 tokens, which are rolled by 1 × 2.
fn windows(case: &mut Case, numbers: &mut Numbers, half: bool, mask: Option<HostTensor>) {
    case.attributes = vec![("grid", Ints(&[3, 4])), ("picture", Ints(&[6, 8])), ("shift", Ints(&[1, 2]))];
    case.inputs.iter_mut().for_each(|input| input.1 = Some(numbers.tensor(half, &[8, 4, 12, 16])));
    let table = numbers.tensor(half, &[35, 4]);
    let (entries, masked) = (table.data.clone(), mask.clone());
    case.inputs.push((if mask.is_some() { "mask" } else { "" }, mask));
    case.inputs.push(("bias_table", Some(table)));
    case.score = Box::new(move |[b, h, i, j], s| {
        let (row, column) = (i / 4 + 2 - j / 4, i % 4 + 3 - j % 4);
        // Index of a token's region in the rolled picture, as Swin numbers the regions: by bands of rows and of columns.
        let region = |t: usize| {
            let (r, c) = (b % 4 / 2 * 3 + t / 4, b % 2 * 4 + t % 4);
            let band = |x: usize, all: usize, size: usize, shift: usize| {
                usize::from(x + size >= all) + usize::from(x + shift >= all)
            };
            3 * band(r, 6, 3, 1) + band(c, 8, 4, 2)
        };
        let open = masked.as_ref().is_none_or(|mask| mask.data.get(i * 12 + j) != 0.0);
        keep(region(i) == region(j) && open, s + entries.get((row * 7 + column) * 4 + h))
    });
}

impl Case {
    /// Returns the queries, the keys and the values. Past keys and values precede the new ones.
    pub fn heads(&self) -> Option<[Heads; 3]> {
        let input = |name| {
            let mut inputs = self.inputs.iter();
            inputs.find(|(n, _)| *n == name).and_then(|(_, tensor)| tensor.as_ref())
        };
        let q = input("Q")?;
        let (Some(k), Some(v)) = (input("K"), input("V")) else {
            return Some([0, 1, 2].map(|part| Heads::of(q, self.heads, part, 3)));
        };
        let with = |new: &HostTensor, past| {
            let new = Heads::of(new, self.kv_heads, 0, 1);
            match input(past) {
                Some(past) => new.after(Heads::of(past, self.kv_heads, 0, 1)),
                None => new,
            }
        };
        Some([Heads::of(q, self.heads, 0, 1), with(k, "past_key"), with(v, "past_value")])
    }
}

/// A call that must be refused.
pub struct Refusal {
    /// Text that the error message must contain.
    pub says: &'static str,
    pub attributes: Vec<(&'static str, Attribute)>,
    pub inputs: Vec<(&'static str, HostTensor)>,
}

fn zeros(dims: &[i64]) -> HostTensor {
    let count: i64 = dims.iter().product();
    HostTensor { dims: dims.to_vec(), data: Data::F32(vec![0.0; count as usize]) }
}

/// Returns the calls that must be refused, either when the session is created or when it runs.
pub fn refusals() -> Vec<Refusal> {
    let three = |q: &[i64], k: &[i64], v: &[i64]| vec![("Q", zeros(q)), ("K", zeros(k)), ("V", zeros(v))];
    let same = |dims: &[i64]| three(dims, dims, dims);
    let four = [1, 2, 3, 4];
    let with = |name, tensor: HostTensor| {
        let mut inputs = same(&four);
        for absent in ["mask", "bias_table", "past_key", "past_value", "kv_lengths", "cu_seqlens_q"] {
            if absent == name {
                break;
            }
            inputs.push(("", zeros(&[0])));
        }
        inputs.push((name, tensor));
        inputs
    };
    let i64s = |data: &[i64]| HostTensor { dims: vec![data.len() as i64], data: Data::I64(data.to_vec()) };
    let half = HostTensor { dims: four.to_vec(), data: Data::F16(vec![f16::ONE; 24]) };
    let mut all = Vec::new();
    let mut add = |says, attributes: &[(&'static str, Attribute)], inputs| {
        all.push(Refusal { says, attributes: attributes.to_vec(), inputs });
    };
    add("Q: rank 2; allowed: 3 or 4", &[], same(&[3, 4]));
    add("Q: rank 5; allowed: 3 or 4", &[], same(&[1, 1, 2, 3, 4]));
    add("num_heads: absent; allowed: given, because Q of rank 3 is", &[], same(&[1, 3, 8]));
    add("Q: last axis 8 with 3 heads; allowed: ", &[("num_heads", Int(3))], same(&[1, 3, 8]));
    add("Q: heads 2; allowed: 3, as num_heads says", &[("num_heads", Int(3))], same(&four));
    add("K: heads 2; allowed: 1, as kv_num_heads says", &[("kv_num_heads", Int(1))], same(&four));
    add("K: rank 3; allowed: that of Q", &[], three(&four, &[1, 3, 8], &four));
    add("K: 2 heads for 3 of Q; allowed: ", &[], three(&[1, 3, 3, 4], &four, &four));
    add("K: head size 5; allowed: 4", &[], three(&four, &[1, 2, 3, 5], &four));
    add("V: tokens 7; allowed: 3", &[], three(&four, &four, &[1, 2, 7, 4]));
    add("Q: head size 0; allowed: at least 1", &[], same(&[1, 2, 3, 0]));
    add("mask: keys 4; allowed: at most 3", &[], with("mask", zeros(&[3, 4])));
    add("mask: queries 2; allowed: 1 or 3", &[], with("mask", zeros(&[2, 3])));
    add("mask: rank 5; allowed: 1 to 4", &[], with("mask", zeros(&[1, 1, 1, 3, 3])));
    add("mask: type i64; allowed: bool, u8, f32, or that of Q", &[], with("mask", i64s(&[1, 1, 1])));
    add("grid: absent; allowed: given, because bias_table is", &[], with("bias_table", zeros(&[5, 2])));
    add("bias_table: absent; allowed: given, because grid is", &[("grid", Ints(&[1, 3]))], same(&four));
    let table = || with("bias_table", zeros(&[5, 2]));
    add("grid: tokens 4; allowed: 3", &[("grid", Ints(&[2, 2]))], table());
    add("heads of the table 3; allowed: 2", &[("grid", Ints(&[1, 3]))], {
        with("bias_table", zeros(&[5, 3]))
    });
    add("bias_table: entries of the table 7; allowed: 5", &[("grid", Ints(&[1, 3]))], {
        with("bias_table", zeros(&[7, 2]))
    });
    add(
        "picture: width 4; allowed: a multiple of 3",
        &[("grid", Ints(&[1, 3])), ("picture", Ints(&[1, 4]))],
        table(),
    );
    add(
        "shift: 3; allowed: 0 to 2",
        &[("grid", Ints(&[1, 3])), ("picture", Ints(&[1, 3])), ("shift", Ints(&[0, 3]))],
        table(),
    );
    let huge = i64::MAX;
    add(
        "grid: [9223372036854775807, 9223372036854775807]",
        &[("grid", Ints(&[i64::MAX, i64::MAX]))],
        table(),
    );
    add("picture", &[("grid", Ints(&[1, 3])), ("picture", Ints(&[i64::MAX, i64::MAX]))], table());
    add("num_heads: 0; allowed: ", &[("num_heads", Int(0))], same(&four));
    add("heads 2; allowed: 9223372036854775807", &[("num_heads", Int(huge))], same(&four));
    add("is_causal: 2; allowed: 0 or 1", &[("is_causal", Int(2))], same(&four));
    add("is_causal: absent; allowed: given, because align_last is", &[("align_last", Int(1))], same(&four));
    add("scale: NaN; allowed: a finite number", &[("scale", Float(f32::NAN))], same(&four));
    add("scale: an attribute of another type", &[("scale", Text("1"))], same(&four));
    add("softcap: -1; allowed: ", &[("softcap", Float(-1.0))], same(&four));
    add("window: [-2, 0]; allowed: ", &[("window", Ints(&[-2, 0]))], same(&four));
    add("window: 1 values; allowed: ", &[("window", Ints(&[1]))], same(&four));
    add("K: given with packed", &[("packed", Int(1)), ("num_heads", Int(2))], same(&[1, 3, 24]));
    add("Q: last axis 20 with 2 heads; allowed: ", &[("packed", Int(1)), ("num_heads", Int(2))], {
        vec![("Q", zeros(&[1, 3, 20]))]
    });
    add("past_v", &[], with("past_key", zeros(&[1, 2, 5, 4])));
    add("past_key: head size 3; allowed: 4", &[], {
        let mut inputs = with("past_key", zeros(&[1, 2, 5, 3]));
        inputs.push(("past_value", zeros(&[1, 2, 5, 4])));
        inputs
    });
    add("kv_lengths: entries 2; allowed: 1", &[], with("kv_lengths", i64s(&[1, 1])));
    add("kv_lengths: entry 0 is 4; allowed: 0 to 3", &[], with("kv_lengths", i64s(&[4])));
    add("kv_lengths: type f32; allowed: i64", &[], with("kv_lengths", zeros(&[1])));
    add(
        "is_causal: absent; allowed: given, because window with kv_lengths is",
        &[("window", Ints(&[1, 1]))],
        with("kv_lengths", i64s(&[2])),
    );
    let bounds = "cu_seqlens_q";
    add("cu_seqlens_q: type f32; allowed: i64", &[], with(bounds, zeros(&[2])));
    add("cu_seqlens_q: rank 2; allowed: 1", &[], {
        with(bounds, HostTensor { dims: vec![1, 2], data: Data::I64(vec![0, 3]) })
    });
    add("cu_seqlens_q: 1 entries; allowed: at least 2", &[], with(bounds, i64s(&[0])));
    add("cu_seqlens_q: entry 1 is 2; allowed: 3", &[], with(bounds, i64s(&[0, 2])));
    add("cu_seqlens_q: entry 1 is 4; allowed: ", &[], with(bounds, i64s(&[0, 4, 3])));
    add("cu_seqlens_q: absent; allowed: given, because cu_seqlens_k is", &[], {
        with("cu_seqlens_k", i64s(&[0, 3]))
    });
    let two = |keys: &[i64]| {
        let mut inputs = with(bounds, i64s(&[0, 1, 3]));
        inputs.push(("cu_seqlens_k", i64s(keys)));
        inputs
    };
    add("cu_seqlens_k: entries 2; allowed: 3, as cu_seqlens_q has", &[], two(&[0, 3]));
    add("cu_seqlens_k: entry 2 is 2; allowed: ", &[], two(&[0, 1, 2]));
    add("Q: batch 2; allowed: 1", &[], {
        let mut inputs = with(bounds, i64s(&[0, 3]));
        let batch = three(&[2, 2, 3, 4], &[2, 2, 3, 4], &[2, 2, 3, 4]);
        inputs.splice(..3, batch);
        inputs
    });
    add("mask: given with cu_seqlens_q", &[], {
        let mut inputs = with(bounds, i64s(&[0, 3]));
        inputs[3] = ("mask", zeros(&[3, 3]));
        inputs
    });
    add("error_budget: 1; allowed: 0 (off) or ", &[("error_budget", Float(1.0))], same(&four));
    add("tensor_cores: 4; allowed: 0 (off), 1 (allow), 2", &[("tensor_cores", Int(4))], same(&four));
    add("half_scores: 2; allowed: 0 or 1", &[("half_scores", Int(2))], same(&four));
    add("Type", &[], vec![("Q", zeros(&four)), ("K", half), ("V", zeros(&four))]);
    all
}

/// A call whose outputs must be refused: its attributes, its outputs, and text that the error message must contain.
pub type OutputRefusal = (Vec<(&'static str, Attribute)>, &'static [&'static str], &'static str);

/// Returns the calls whose outputs must be refused.
pub fn output_refusals() -> [OutputRefusal; 3] {
    [
        (
            Vec::new(),
            &["Y", "", "", "", "state_m", "state_s"],
            "state_w: absent; allowed: given, because state_m is",
        ),
        (
            Vec::new(),
            &["Y", "", "", "", "", "state_s", "state_w"],
            "state_m: absent; allowed: given, because state_s is",
        ),
        (
            vec![("error_budget", Float(0.0))],
            &["Y", "", "", "", "", "", "", "left_out"],
            "error_budget: absent; allowed: given, because left_out is",
        ),
    ]
}
