//! Comparison of the original model and the rewritten model in the user's ONNX Runtime.
//!
//! The proof covers the ONNX semantics of each node. In this check, ONNX Runtime runs the two entire models, and their
//! outputs are compared. The models run at up to three assignments of sizes to the free axes. The numbers of tokens
//! range from one to more tokens than short windows and tables cover. A model does not state which sizes it accepts, so
//! assignments are tried until the original has run at three of them. Outputs may differ by the accumulated rounding of
//! a deep network. Elements that are NaN in the original's output, such as rows that attend no key, are not compared.

use super::array::Kind;
use super::model::{Axis, Declared, Model};
use super::random::normal;
use elsa_onnxruntime::{Data, HostTensor, Model as Form, Options, Runtime, RuntimeError, Session};
use fastrand::Rng;
use half::f16;
use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum number of assignments of sizes at which the models are compared.
const WANTED: usize = 3;
/// Time limit for all runs together.
const LIMIT: Duration = Duration::from_secs(60);
/// Maximum total number of elements in the inputs of a run. The outputs of a run have the same limit.
const ELEMENTS: usize = 1 << 25;
/// Tolerated error of an element, relative to the largest element of the same output. The first value is for models
/// without f16, the second for models with f16.
const NEAR: [f64; 2] = [1e-3, 3e-2];
/// In an output of integers or booleans, at most one in this many elements may differ, because rounding can flip a
/// decision.
const DECIDED: usize = 100;
/// First minor version of ONNX Runtime that accepts the operator in f16 without an extra setting.
const WITH_HALVES: u32 = 18;

/// The two models to compare.
pub struct Pair<'a> {
    /// The original model.
    pub model: &'a Model<'a>,
    /// Path of the original model's file.
    pub original: &'a Path,
    /// Files with the original model's weights.
    pub weights: Vec<PathBuf>,
    /// The rewritten model.
    pub rewritten: Form<'a>,
    /// Memory limit of both models together, in bytes.
    pub memory: u64,
}

/// Reason why a rewritten model was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The two models could not be compared.
    #[error("{0}")]
    Unchecked(String),
    /// The rewritten model fails, or its outputs differ.
    #[error("{0}")]
    Differs(String),
}

impl From<String> for CheckError {
    fn from(reason: String) -> CheckError {
        CheckError::Unchecked(reason)
    }
}

/// Sizes of the free axes by name.
pub type Sizes = BTreeMap<String, usize>;

/// Runs both models; returns a description of the comparison.
///
/// # Errors
/// Returns an error if the outputs differ, or if the models cannot be compared.
pub fn check(pair: &Pair<'_>, runtime: &Runtime, operator: &Path) -> Result<String, CheckError> {
    let version = format!("ONNX Runtime {}", runtime.version);
    let graph = &pair.model.graph;
    let half = graph.inputs.iter().chain(&graph.outputs).chain(&graph.infos).any(|of| of.kind == Kind::F16)
        || graph.initializers.values().any(|(stored, _)| stored.kind == Kind::F16);
    if half && runtime.minor < WITH_HALVES && env::var_os("ELSA_ORT_TYPE").is_none() {
        return Err(format!("{version} takes the operator in f16 with ELSA_ORT_TYPE=f16 only").into());
    }
    let bytes = |path: &PathBuf| std::fs::metadata(path).map_or(0, |data| data.len());
    let size = pair.model.file.len() as u64 + pair.weights.iter().map(bytes).sum::<u64>();
    let room = pair.memory;
    if size.saturating_mul(3) > room {
        return Err(format!("two models of {size} bytes do not fit in {room} bytes of memory").into());
    }
    let inputs: Vec<&Declared> =
        graph.inputs.iter().filter(|input| !graph.initializers.contains_key(&input.name)).collect();
    let outputs: Vec<&str> = graph.outputs.iter().map(|output| output.name.as_str()).collect();
    let options = Options { operators: Some(operator), ..Options::default() };
    let end = Instant::now() + LIMIT;
    let unfit = |e: RuntimeError| format!("{version} does not run the original: {e}");
    let session = runtime.session(Form::File(pair.original), &options).map_err(unfit)?;
    let (runs, last) = originals(&session, &inputs, &outputs, end)?;
    drop(session);
    if runs.is_empty() {
        return Err(last.map_or_else(|| format!("{version} runs the original at no size"), unfit).into());
    }
    let wrong = |what: String| CheckError::Differs(format!("{what} ({version})"));
    let fails = |e: RuntimeError| wrong(format!("the rewritten model does not run, the original does: {e}"));
    let session = runtime.session(pair.rewritten, &options).map_err(fails)?;
    let near = NEAR[usize::from(half)];
    for run in &runs {
        let given: Vec<_> = inputs.iter().map(|input| input.name.as_str()).zip(&run.inputs).collect();
        let found = match session.run(&given, &outputs, Some(end.saturating_duration_since(Instant::now()))) {
            Ok(found) => found,
            Err(RuntimeError::Late(_)) => {
                return Err(format!("{version} takes longer than {} s", LIMIT.as_secs()).into());
            }
            Err(e) => return Err(fails(e)),
        };
        for ((name, want), found) in outputs.iter().zip(&run.outputs).zip(&found) {
            if let Some(fault) = fault(want, found, near) {
                return Err(wrong(format!("output '{name}'{fault}, at {}", told(&run.sizes))));
            }
        }
    }
    let all: Vec<String> = runs.iter().map(|run| told(&run.sizes)).collect();
    Ok(format!("{version} answers the same at {}", all.join("; ")))
}

/// Formats the sizes of the free axes for a message.
#[must_use]
pub fn told(sizes: &Sizes) -> String {
    if sizes.is_empty() {
        return "its fixed sizes".into();
    }
    sizes.iter().map(|(name, size)| format!("{name} = {size}")).collect::<Vec<_>>().join(", ")
}

/// Inputs and outputs of one run of the original model.
struct Run {
    sizes: Sizes,
    inputs: Vec<HostTensor>,
    outputs: Vec<HostTensor>,
}

/// Runs the original model at up to [`WANTED`] assignments of sizes. Returns these runs, and the error of the last run
/// that failed.
fn originals(
    session: &Session<'_>,
    inputs: &[&Declared],
    outputs: &[&str],
    end: Instant,
) -> Result<(Vec<Run>, Option<RuntimeError>), CheckError> {
    let (mut runs, mut last, mut random) = (Vec::<Run>::new(), None, Rng::with_seed(38));
    for sizes in candidates(inputs)? {
        let left = end.saturating_duration_since(Instant::now());
        if runs.len() == WANTED || left.is_zero() {
            break;
        }
        let Some(given) = drawn(inputs, &sizes, &mut random)? else { continue };
        let named: Vec<_> = inputs.iter().map(|input| input.name.as_str()).zip(&given).collect();
        match session.run(&named, outputs, Some(left)) {
            Ok(made) if made.iter().map(|tensor| tensor.data.len()).sum::<usize>() <= ELEMENTS => {
                runs.push(Run { sizes, inputs: given, outputs: made });
            }
            Ok(_) => {}
            Err(e) => last = Some(e),
        }
    }
    Ok((runs, last))
}

/// Assignment of sizes to the free axes: batch, tokens, channels and sides of an image.
enum Turn {
    /// The batch size, and different sizes for the token axes.
    Apart(usize, [usize; 4]),
    /// The batch size, and one size for all token axes.
    Alike(usize, usize),
    /// The batch size, and the side of square images.
    Picture(usize, usize),
}

/// Assignments of sizes. They are tried in this order until the original has run at [`WANTED`] of them. The first three
/// distinguish the axes: fewer queries than keys, more queries than keys, and many tokens. A model that accepts none of
/// these may need token axes of equal size.
const TURNS: [Turn; 10] = [
    Turn::Apart(2, [1, 9, 5, 7]),
    Turn::Apart(1, [13, 11, 7, 5]),
    Turn::Apart(1, [307, 311, 313, 317]),
    Turn::Alike(2, 6),
    Turn::Alike(3, 1),
    Turn::Alike(1, 307),
    Turn::Picture(1, 64),
    Turn::Picture(2, 224),
    Turn::Picture(1, 256),
    Turn::Picture(1, 512),
];

/// A free axis, as declared by the first input that has it.
struct Free {
    name: String,
    /// `true` if the model gives the axis a name.
    named: bool,
    /// `true` if the input's elements are floating-point numbers.
    float: bool,
    rank: usize,
    at: usize,
}

/// Lists the free axes of the inputs.
fn free(inputs: &[&Declared]) -> Result<Vec<Free>, CheckError> {
    let mut all: Vec<Free> = Vec::new();
    for input in inputs {
        let Some(axes) = &input.shape else {
            return Err(format!("input '{}' declares no shape", input.name).into());
        };
        for (at, axis) in axes.iter().enumerate() {
            if let Axis::Any(name) = axis {
                let (named, name) = (!name.is_empty(), axis_name(input, at, name));
                if all.iter().all(|other| other.name != name) {
                    all.push(Free { name, named, float: input.kind.is_float(), rank: axes.len(), at });
                }
            }
        }
    }
    Ok(all)
}

/// Returns the name of axis `at` of an input. An axis without a name is named after its input.
#[must_use]
pub fn axis_name(input: &Declared, at: usize, name: &str) -> String {
    if name.is_empty() { format!("{}[{at}]", input.name) } else { name.to_owned() }
}

/// Returns the sizes to try, in order.
///
/// # Errors
/// Returns an error if an input declares no shape.
pub fn candidates(inputs: &[&Declared]) -> Result<Vec<Sizes>, CheckError> {
    let free = free(inputs)?;
    let mut all: Vec<Sizes> = Vec::new();
    for turn in TURNS {
        let mut sizes = Sizes::new();
        // An axis whose name is a sum of other names gets the sum of their sizes.
        let (sums, plain): (Vec<_>, Vec<_>) = free.iter().partition(|axis| axis.name.contains(" + "));
        let (mut tokens, mut batches) = (0, 0);
        for Free { name, named, float, rank, at } in plain {
            // The first axis of a matrix of floating-point numbers is the axis of the tokens. The first axis of a
            // matrix of indices is the axis of the sequences.
            let first = *at == 0 && (*rank > 2 || *rank == 2 && !float);
            batches += usize::from(first);
            let size = match (&turn, first) {
                // A second batch axis with its own name may be one that broadcasts, so it gets size 1.
                (Turn::Apart(..), true) if *named && batches > 1 => 1,
                (Turn::Apart(batch, _) | Turn::Alike(batch, _) | Turn::Picture(batch, _), true) => *batch,
                (Turn::Apart(_, of), _) => {
                    tokens += 1;
                    of[(tokens - 1) % of.len()]
                }
                (Turn::Alike(_, size), _) => *size,
                (Turn::Picture(_, side), _) => match (rank, at) {
                    (4, 1) => 3,
                    (4, _) => *side,
                    _ => 9,
                },
            };
            sizes.insert(name.clone(), size);
        }
        for Free { name, .. } in sums {
            let terms = name.split(" + ").map(str::trim);
            let terms = terms.map(|term| term.parse().ok().or_else(|| sizes.get(term).copied()));
            // If a name in the sum belongs to no input, the sum is treated as an ordinary axis.
            let sum = terms.sum::<Option<usize>>().unwrap_or(11);
            sizes.insert(name.clone(), sum);
        }
        if !all.contains(&sizes) {
            all.push(sizes);
        }
    }
    Ok(all)
}

/// Draws random inputs. Floating-point numbers are normally distributed. Indices and masks consist of ones and zeros,
/// and each of their rows begins with a one. Integers with one axis may be lengths, so all of them are ones. Returns
/// `None` if the inputs are too large.
///
/// # Errors
/// Returns an error for an input of a type that cannot be drawn.
pub fn drawn(
    inputs: &[&Declared],
    sizes: &Sizes,
    random: &mut Rng,
) -> Result<Option<Vec<HostTensor>>, CheckError> {
    let (mut all, mut total) = (Vec::new(), 0usize);
    for input in inputs {
        let axes = input.shape.iter().flatten().enumerate();
        let dims: Vec<usize> = axes
            .map(|(at, axis)| match axis {
                Axis::Size(size) => *size,
                Axis::Any(name) => sizes.get(&axis_name(input, at, name)).copied().unwrap_or(1),
            })
            .collect();
        let count = dims.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
        let Some(count) = count.filter(|n| total.saturating_add(*n) <= ELEMENTS) else { return Ok(None) };
        total += count;
        let whole = dims.len() == 1 && input.kind != Kind::BOOL;
        let row = dims.last().copied().filter(|_| !whole).unwrap_or(1).max(1);
        let mut normals = || (0..count).map(|_| normal(random)).collect::<Vec<f64>>();
        let data = match input.kind {
            Kind::F32 => Data::F32(normals().into_iter().map(|x| x as f32).collect()),
            Kind::F16 => Data::F16(normals().into_iter().map(f16::from_f64).collect()),
            Kind::F64 => Data::F64(normals()),
            kind => {
                let mut bit = |i: usize| u8::from(i.is_multiple_of(row) || random.f64() < 0.8);
                let bits: Vec<u8> = (0..count).map(&mut bit).collect();
                match kind {
                    Kind::BOOL => Data::Bool(bits),
                    Kind::I64 => Data::I64(bits.into_iter().map(i64::from).collect()),
                    Kind(6) => Data::I32(bits.into_iter().map(i32::from).collect()),
                    Kind(2) => Data::U8(bits),
                    kind => return Err(format!("input '{}' is {}", input.name, kind.name()).into()),
                }
            }
        };
        let dims = dims.into_iter().map(|size| i64::try_from(size).unwrap_or(i64::MAX)).collect();
        all.push(HostTensor { dims, data });
    }
    Ok(Some(all))
}

/// Describes how two outputs differ, in words that follow the output's name in a message. Returns `None` if they agree.
fn fault(want: &HostTensor, found: &HostTensor, near: f64) -> Option<String> {
    if want.dims != found.dims || want.data.element() != found.data.element() {
        return Some(format!(" has the axes {:?}, {:?} in the original", found.dims, want.dims));
    }
    let values = || (0..want.data.len()).map(|at| (at, want.data.get(at), found.data.get(at)));
    let most = values().map(|(_, want, _)| want.abs()).filter(|x| x.is_finite()).fold(0.0, f64::max);
    let exact = !want.data.is_float();
    let allowed = if exact { 0.0 } else { near * most };
    let mut bad = values().filter(|(_, want, found)| {
        let same = (want - found).abs() <= allowed;
        (exact || want.is_finite()) && !same
    });
    let (at, want_at, found_at) = bad.next()?;
    let count = 1 + bad.count();
    if exact && count.saturating_mul(DECIDED) <= want.data.len() {
        return None;
    }
    let mut rest = at;
    let mut place: Vec<usize> = Vec::new();
    for &size in want.dims.iter().rev() {
        let size = usize::try_from(size).unwrap_or(1).max(1);
        place.insert(0, rest % size);
        rest /= size;
    }
    let of = format!("{count} of {} elements differ", want.data.len());
    // Numbers of f32 and narrower types are printed with as many digits as distinguish f32 numbers.
    let shown = |x: f64| if exact { x.to_string() } else { (x as f32).to_string() };
    Some(format!("{place:?} is {}, {} in the original; {of}", shown(found_at), shown(want_at)))
}
