//! Runs the operators of a library in ONNX Runtime and compares their outputs with an oracle in f64:
//! `host RUNTIME OPERATOR [WHAT] [cuda]`. `RUNTIME` and `OPERATOR` are the paths of the two libraries. With `cuda`, the
//! CUDA provider computes on the first GPU. `WHAT` is
//!
//! - `f32` (the default): every case, every call that must be refused, and four threads in two sessions;
//! - `f16`: every case with tensors of f16;
//! - `run FOLDER`: runs the models in the folder, as `given.rs` describes.
//!
//! `host models FOLDER` writes models for other programs, and runs nothing.
//!
//! Prints a line for each check.

mod cases;
mod given;
mod model;
mod oracle;
mod others;

use cases::{Case, Refusal, cases, refusals};
use elsa_onnxruntime::{Data, HostTensor, Model, Options, Runtime, Session};
use model::{model, timed};
use oracle::Heads;
use others::Wanted;
use std::ffi::CStr;
use std::path::Path;
use std::process::ExitCode;

/// Sizes of the tensors of the models that are timed: the attention of ViT-B/16 at 224 x 224.
const TIMED: [i64; 4] = [1, 12, 197, 64];

/// The operator of softmax attention.
const ATTENTION: &str = "ElsaAttention";

/// The library of operators, and whether the CUDA provider computes them.
struct Library<'a> {
    path: &'a Path,
    cuda: bool,
}

/// Creates a session of a model with the operators of a library, and with one thread in the runtime.
fn session<'a>(
    runtime: &'a Runtime,
    operator: &Library<'_>,
    model: &[u8],
    configuration: Option<(&CStr, &CStr)>,
) -> Result<Session<'a>, String> {
    let Library { path, cuda } = *operator;
    let options = Options { operators: Some(path), threads: 1, configuration, cuda };
    runtime.session(Model::Bytes(model), &options).map_err(|e| e.to_string())
}

/// Runs the session.
fn run(
    session: &Session<'_>,
    inputs: &[(&str, &HostTensor)],
    outputs: &[&str],
) -> Result<Vec<HostTensor>, String> {
    session.run(inputs, outputs, None).map_err(|e| e.to_string())
}

/// Returns the inputs that are present in a case.
fn given(case: &Case) -> Vec<(&str, &HostTensor)> {
    case.inputs.iter().filter_map(|(name, tensor)| Some((*name, tensor.as_ref()?))).collect()
}

/// Returns the names of the outputs that a case has.
fn outputs(case: &Case) -> Vec<&'static str> {
    case.outputs.iter().copied().filter(|name| !name.is_empty()).collect()
}

/// Returns the bytes of a case's ONNX model. `half` selects f16 for the outputs of the type of `Q`; `hidden` adds a standard node after the
/// attention.
fn written(case: &Case, half: bool, hidden: bool) -> Vec<u8> {
    let values: Vec<_> = case
        .inputs
        .iter()
        .map(|(name, tensor)| (*name, tensor.as_ref().map_or(1, |tensor| tensor.data.element())))
        .collect();
    let element = |name: &str| if half && (name == "Y" || name.starts_with("present")) { 10 } else { 1 };
    let outputs: Vec<_> = case.outputs.iter().map(|name| (*name, element(name))).collect();
    model(ATTENTION, &case.attributes, &values, &outputs, hidden)
}

/// Compares the outputs of a case with the oracle. Returns the largest ratio of an error to its bound.
fn compare(case: &Case, found: &[HostTensor]) -> Result<f64, String> {
    let [q, k, v] = case.heads().ok_or("a case without Q")?;
    let y = &found[0];
    let want = oracle::attention(&q, &k, &v, case.scale, &*case.score, oracle::unit(&y.data));
    let flat = oracle::flat(y, case.heads);
    if flat.len() != want.len() {
        return Err(format!("{} elements; allowed: {}", flat.len(), want.len()));
    }
    let mut worst = 0f64;
    for (found, (want, allowed)) in flat.iter().zip(&want) {
        let part = (found - want).abs() / allowed;
        let right = part <= 1.0;
        if !right {
            return Err(format!("{found} where {want} is right; allowed: an error of {allowed:e}"));
        }
        worst = worst.max(part);
    }
    compare_rows(case, [&q, &k, &v], found)?;
    // `present_key` and `present_value` are copies, so their bits must be equal.
    for (tensor, name) in found.iter().zip(outputs(case)).filter(|(_, name)| name.starts_with("present")) {
        let of = if name == "present_key" { &k } else { &v };
        let [b, h, n, d] = of.shape;
        if tensor.dims != [b, h, n, d].map(|size| size as i64) {
            return Err(format!("present of {:?}", tensor.dims));
        }
        let mut at = 0..;
        for i in 0..b * h * n * d {
            let wrong = tensor.data.get(at.next().unwrap_or(i))
                != (of.at)(i / (d * n * h), i / (d * n) % h, i / d % n, i % d);
            if wrong {
                return Err(format!("present: element {i} differs"));
            }
        }
    }
    Ok(worst)
}

/// Compares the log-sum-exp, the states and the shares that a call left out with the oracle. The states of a row must agree
/// with its log-sum-exp `m + ln S` and its output `W / S`.
fn compare_rows(case: &Case, [q, k, v]: [&Heads; 3], found: &[HostTensor]) -> Result<(), String> {
    let mut named = found.iter().zip(outputs(case));
    let [lse, m, s, w, left_out] = ["lse", "state_m", "state_s", "state_w", "left_out"]
        .map(|wanted| named.clone().find(|(_, name)| *name == wanted).map(|(tensor, _)| tensor));
    let [batch, heads, queries, _] = q.shape;
    let dim = v.shape[3];
    let rows = [batch, heads, queries].map(|size| size as i64);
    for (tensor, name) in named.by_ref().filter(|(_, name)| !name.starts_with("present") && *name != "Y") {
        let wanted = if name == "state_w" { [&rows[..], &[dim as i64]].concat() } else { rows.to_vec() };
        if tensor.dims != wanted || tensor.data.element() != 1 {
            return Err(format!("{name} of {:?}", tensor.dims));
        }
    }
    let (y, unit) = (oracle::flat(&found[0], case.heads), oracle::unit(&found[0].data));
    let same = |found: f64, wanted: f64, unit: f64| {
        found == wanted || (found - wanted).abs() <= unit * wanted.abs().max(1.0)
    };
    for (row, [all, kept]) in oracle::rows(q, k, case.scale, &*case.score).into_iter().enumerate() {
        let wrong =
            |name: &str, found: f64| Err(format!("{name} {found} of row {row} where {kept} is right"));
        if let Some(found) = lse.map(|lse| lse.data.get(row)).filter(|found| !same(*found, kept, 1e-5)) {
            return wrong("lse", found);
        }
        if let (Some(m), Some(s), Some(w)) = (m, s, w) {
            let (sum, found) = (s.data.get(row), m.data.get(row) + s.data.get(row).ln());
            let none = kept == f64::NEG_INFINITY && sum == 0.0 && m.data.get(row) == f64::NEG_INFINITY;
            if !none && !same(found, kept, 1e-5) {
                return wrong("state", found);
            }
            for x in row * dim..(row + 1) * dim {
                let quotient = if none { w.data.get(x) } else { w.data.get(x) / sum };
                if !same(quotient, y[x], 1e-5 + unit) {
                    return wrong("state_w", quotient);
                }
            }
        }
        // An upper bound that is near the share.
        let share = 1.0 - (kept - all).exp();
        if let Some(found) = left_out.map(|left_out| left_out.data.get(row))
            && !(share * 0.999..=share * 1.1).contains(&found)
        {
            return Err(format!("left_out {found} of row {row} where {share} is right"));
        }
    }
    Ok(())
}

/// Runs every case of an element type.
fn all_cases(
    runtime: &Runtime,
    operator: &Library<'_>,
    half: bool,
    note: &mut impl FnMut(&str, Result<String, String>),
) {
    // Version 1.16 cannot infer the types of outputs, so its models have no hidden node.
    let hidden = runtime.minor != 16;
    for case in cases(half) {
        let done = (|| {
            let session = session(runtime, operator, &written(&case, half, hidden), None)?;
            if operator.cuda && case.outputs.contains(&"left_out") {
                return match run(&session, &given(&case), &outputs(&case)) {
                    Err(message) if message.contains("left_out: an output of a node of the CUDA") => {
                        Ok("refused".to_owned())
                    }
                    Err(message) => Err(message),
                    Ok(_) => Err("was not refused".to_owned()),
                };
            }
            let first = run(&session, &given(&case), &outputs(&case))?;
            let second = run(&session, &given(&case), &outputs(&case))?;
            if first != second {
                return Err("the second run has other bits".to_owned());
            }
            compare(&case, &first).map(|worst| format!("{worst:.2} of the allowed error"))
        })();
        note(case.name, done);
    }
}

/// Checks that every bad call is refused, and that the session then executes a valid call.
fn all_refusals(
    runtime: &Runtime,
    operator: &Library<'_>,
    note: &mut impl FnMut(&str, Result<String, String>),
) {
    let (good, bad) = (cases(false), refusals());
    let Some(plain) = good.first() else { return };
    let served = session(runtime, operator, &written(plain, false, false), None);
    for refusal in bad {
        let values: Vec<_> =
            refusal.inputs.iter().map(|(name, tensor)| (*name, tensor.data.element())).collect();
        let bytes = model(ATTENTION, &refusal.attributes, &values, &[("Y", 1)], false);
        let inputs: Vec<_> = refusal
            .inputs
            .iter()
            .filter(|(name, _)| !name.is_empty())
            .map(|(name, tensor)| (*name, tensor))
            .collect();
        let result = |session: &Session<'_>| run(session, &inputs, &["Y"]).map(drop);
        let found = session(runtime, operator, &bytes, None).and_then(|session| result(&session));
        // From version 1.18 on, the operator has a table for each type, so the runtime itself refuses the type of K.
        let says = if refusal.says == "Type" && runtime.minor < 18 {
            "K: type f16; allowed: that of Q"
        } else {
            refusal.says
        };
        let done = match found {
            Ok(()) => Err("was not refused".to_owned()),
            Err(message)
                if message.contains(says) || (says == "past_v" && message.contains("past_value")) =>
            {
                Ok("refused".to_owned())
            }
            Err(message) => Err(message),
        };
        note(says, done);
    }
    for (attributes, outputs, says) in cases::output_refusals() {
        let values: Vec<_> = plain
            .inputs
            .iter()
            .map(|(name, tensor)| (*name, tensor.as_ref().map_or(1, |x| x.data.element())))
            .collect();
        let declared: Vec<_> = outputs.iter().map(|name| (*name, 1)).collect();
        let wanted: Vec<_> = outputs.iter().copied().filter(|name| !name.is_empty()).collect();
        let bytes = model(ATTENTION, &attributes, &values, &declared, false);
        let found = session(runtime, operator, &bytes, None)
            .and_then(|session| run(&session, &given(plain), &wanted).map(drop));
        let done = match found {
            Err(message) if message.contains(says) => Ok("refused".to_owned()),
            Err(message) => Err(message),
            Ok(()) => Err("was not refused".to_owned()),
        };
        note(says, done);
    }
    // The session refuses a bad call and then executes a valid one.
    let recovered = served.and_then(|session| {
        let mut inputs = given(plain);
        let wrong = HostTensor { dims: vec![1, 4, 3, 16], data: Data::F32(vec![0.0; 192]) };
        inputs[1].1 = &wrong;
        match run(&session, &inputs, &["Y"]) {
            Err(message) if message.contains("V: tokens 12; allowed: 3, as K has") => {}
            Err(message) => return Err(message),
            Ok(_) => return Err("was not refused".to_owned()),
        }
        let found = run(&session, &given(plain), &["Y"])?;
        compare(plain, &found).map(|_| "served".to_owned())
    });
    note("the next request after one that was refused", recovered);
}

/// Compares an output with its right values. Returns the largest ratio of an error to the allowed error.
fn near(found: &HostTensor, wanted: &Wanted) -> Result<f64, String> {
    if found.dims != wanted.dims {
        return Err(format!("an output of {:?}; allowed: {:?}", found.dims, wanted.dims));
    }
    let size = wanted.values.iter().fold(1.0f64, |size, x| size.max(x.abs()));
    let allowed = size * (wanted.sums * f64::from(f32::EPSILON) / 2.0 + oracle::unit(&found.data));
    let mut worst = 0f64;
    for (i, want) in wanted.values.iter().enumerate() {
        let part = (found.data.get(i) - want).abs() / allowed;
        let right = part <= 1.0;
        if !right {
            return Err(format!(
                "{} where {want} is right; allowed: an error of {allowed:e}",
                found.data.get(i)
            ));
        }
        worst = worst.max(part);
    }
    Ok(worst)
}

/// Runs every call of the operators besides attention.
fn all_others(
    runtime: &Runtime,
    operator: &Library<'_>,
    half: bool,
    note: &mut impl FnMut(&str, Result<String, String>),
) {
    // Version 1.16 cannot infer the types of outputs, so its models have no hidden node.
    let hidden = runtime.minor != 16;
    for call in others::calls(half) {
        let done = (|| {
            let element = |tensor: &HostTensor| tensor.data.element();
            let values: Vec<_> = call
                .inputs
                .iter()
                .map(|(name, tensor)| (*name, tensor.as_ref().map_or(1, element)))
                .collect();
            // The last states are f32 for any type of the other tensors.
            let types = [if half { 10 } else { 1 }, 1];
            let outputs: Vec<_> = call.outputs().iter().copied().zip(types).collect();
            let bytes = model(call.operator, &call.attributes, &values, &outputs, hidden);
            let session = session(runtime, operator, &bytes, None)?;
            let given: Vec<_> =
                call.inputs.iter().filter_map(|(name, tensor)| Some((*name, tensor.as_ref()?))).collect();
            let first = run(&session, &given, call.outputs())?;
            if first != run(&session, &given, call.outputs())? {
                return Err("the second run has other bits".to_owned());
            }
            if call.wanted.is_empty() {
                return Err("the call has no right answer".to_owned());
            }
            let mut worst = 0f64;
            for (found, wanted) in first.iter().zip(&call.wanted) {
                worst = worst.max(near(found, wanted)?);
            }
            Ok(format!("{worst:.2} of the allowed error"))
        })();
        note(call.name, done);
    }
}

/// Checks that every bad call of the operators besides attention is refused.
fn other_refusals(
    runtime: &Runtime,
    operator: &Library<'_>,
    note: &mut impl FnMut(&str, Result<String, String>),
) {
    for (of, Refusal { says, attributes, inputs }) in others::refusals() {
        let values: Vec<_> = inputs.iter().map(|(name, tensor)| (*name, tensor.data.element())).collect();
        let bytes = model(of, &attributes, &values, &[("out", 1)], false);
        let given: Vec<_> =
            inputs.iter().filter(|(name, _)| !name.is_empty()).map(|(n, x)| (*n, x)).collect();
        let found = session(runtime, operator, &bytes, None)
            .and_then(|session| run(&session, &given, &["out"]).map(drop));
        let done = match found {
            Ok(()) => Err("was not refused".to_owned()),
            Err(message) if message.contains(says) => Ok("refused".to_owned()),
            Err(message) => Err(message),
        };
        note(says, done);
    }
}

/// Runs two sessions on four threads, and checks that the bits equal those of a single thread. Each thread alternates
/// between shapes.
fn threads(runtime: &Runtime, operator: &Library<'_>) -> Result<String, String> {
    let all = cases(false);
    let case = all.first().ok_or("no case")?;
    let bytes = written(case, false, false);
    let sessions = [session(runtime, operator, &bytes, None)?, session(runtime, operator, &bytes, None)?];
    let mut numbers = cases::Numbers::new(11);
    let inputs: Vec<[HostTensor; 3]> =
        [40, 7, 65].map(|tokens| [(); 3].map(|()| numbers.tensor(false, &[2, 4, tokens, 16]))).into();
    let run = |session: &Session<'_>, tensors: &[HostTensor; 3]| {
        run(session, &[("Q", &tensors[0]), ("K", &tensors[1]), ("V", &tensors[2])], &["Y"])
    };
    let alone: Vec<Vec<HostTensor>> =
        inputs.iter().map(|tensors| run(&sessions[0], tensors)).collect::<Result<_, _>>()?;
    let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (session, inputs, alone) = (&sessions[thread % 2], &inputs, &alone);
                scope.spawn(move || {
                    for turn in 0..30 {
                        let at = (turn + thread) % inputs.len();
                        if run(session, &inputs[at])? != alone[at] {
                            return Err(format!("thread {thread}: other bits in turn {turn}"));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("panicked".to_owned())))
            .collect()
    });
    results.into_iter().collect::<Result<Vec<()>, String>>().map(|_| "120 runs, equal bits".to_owned())
}

/// Runs one session with more shapes than its cache of plans holds.
fn shapes(runtime: &Runtime, operator: &Library<'_>) -> Result<String, String> {
    let mut numbers = cases::Numbers::new(5);
    let all = cases(false);
    let case = all.first().ok_or("no case")?;
    let session = session(runtime, operator, &written(case, false, false), None)?;
    for tokens in (1..45).chain(1..45) {
        let mut case = cases(false).swap_remove(0);
        case.inputs.iter_mut().for_each(|input| input.1 = Some(numbers.tensor(false, &[1, 4, tokens, 16])));
        compare(&case, &run(&session, &given(&case), &["Y"])?)?;
    }
    Ok("44 shapes, twice".to_owned())
}

/// Checks that a session is refused if its configuration requests a number of threads other than the engine's 2. An engine
/// of a GPU is not asked for threads.
fn configuration(runtime: &Runtime, operator: &Library<'_>) -> Result<String, String> {
    let all = cases(false);
    let bytes = written(all.first().ok_or("no case")?, false, false);
    let of = |value| session(runtime, operator, &bytes, Some((c"elsa.threads", value))).map(drop);
    for (value, says) in
        [(c"none", "elsa.threads: \"none\"; allowed: "), (c"7", "elsa.threads: 7, but the engine")]
    {
        match (of(value), runtime.minor) {
            (Err(message), 14..) if message.contains(says) => {}
            // Before version 1.14, the runtime does not report its configuration.
            (Ok(()), ..14) => {}
            (Err(message), _) => return Err(message),
            (Ok(()), _) => return Err(format!("{value:?} was not refused")),
        }
    }
    of(c"2").map(|()| "read".to_owned())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let cuda = words.last() == Some(&"cuda");
    let (path, operator, what, folder) = match words[..words.len() - usize::from(cuda)] {
        ["models", folder] => ("", "", "models", folder),
        [path, operator] => (path, operator, "f32", ""),
        [path, operator, what] => (path, operator, what, ""),
        [path, operator, "run", folder] if !cuda => (path, operator, "run", folder),
        _ => {
            eprintln!(
                "host RUNTIME OPERATOR [f32|f16] [cuda], host RUNTIME OPERATOR run FOLDER, or host models FOLDER"
            );
            return ExitCode::from(2);
        }
    };
    let mut failed = 0;
    let mut note = |name: &str, found: Result<String, String>| match found {
        Ok(found) => println!("ok: {name}: {found}"),
        Err(fault) => {
            failed += 1;
            println!("FAILED: {name}: {fault}");
        }
    };
    if what == "models" {
        let [own, standard] = timed(TIMED);
        let mut models = vec![("attention.onnx", own), ("plain.onnx", standard)];
        let quick = cases(false).into_iter().filter(|case| case.name == "rank 4");
        models.extend(quick.map(|case| ("rank4.onnx", written(&case, false, false))));
        for (name, model) in models {
            let path = Path::new(folder).join(name);
            let done = std::fs::write(&path, model);
            note("model", done.map(|()| path.display().to_string()).map_err(|e| e.to_string()));
        }
        return if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let runtime = match Runtime::open(Path::new(path)) {
        Ok(runtime) => runtime,
        Err(fault) => {
            println!("FAILED: {path}: {fault}");
            return ExitCode::FAILURE;
        }
    };
    println!("ONNX Runtime {}, {}", runtime.version, std::env::consts::ARCH);
    let operator = &Library { path: Path::new(operator), cuda };
    match what {
        "f32" => {
            all_cases(&runtime, operator, false, &mut note);
            all_others(&runtime, operator, false, &mut note);
            all_refusals(&runtime, operator, &mut note);
            other_refusals(&runtime, operator, &mut note);
            note("four threads in two sessions", threads(&runtime, operator));
            note("more shapes than plans", shapes(&runtime, operator));
            if !cuda {
                note("configuration", configuration(&runtime, operator));
            }
        }
        "f16" => {
            all_cases(&runtime, operator, true, &mut note);
            all_others(&runtime, operator, true, &mut note);
        }
        "run" => given::models(&runtime, Path::new(folder), &mut note),
        _ => note(what, Err("allowed: f32, f16 or run FOLDER".to_owned())),
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
