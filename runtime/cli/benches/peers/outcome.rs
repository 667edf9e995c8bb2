//! Measurements and their output.

use crate::account::Account;
use crate::process::Prepared;
use crate::request::{Common, Failure};
use elsa_cli::shape::{MaskForm, Shape};
use elsa_core::dtype::DType;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

/// Default number of rounds.
pub const ROUNDS: usize = 25;
/// Name of the matrix product, which is measured like a peer, and number of rows of its square matrices.
pub const SGEMM: (&str, f64) = ("sgemm", 768.0);

/// Allowed error of the f32 arithmetic, in addition to the rounding of the output: 2⁻¹⁹. This is far above the errors
/// of correct kernels and far below the errors of wrong kernels.
pub const ARITHMETIC: f64 = 1.0 / 524_288.0;
/// Maximum error of a peer, as a multiple of the error allowed for this library. A peer with a greater error computes
/// a different function.
pub const WRONG: f64 = 16.0;

const LEGEND: &str = "\
GFLOP/s (4 b h q k d / time) are medians over rounds; ratios are medians (and quartiles) within a
round; errors are relative L2 against f64. 'calm' is sgemm after another job over sgemm after itself, 'settle'
the longest time in ms for which threads of peers spun after their slice, 'rounds' those kept of those tried.";

/// The measurements of one problem.
pub struct Outcome {
    /// How this library computed: the name of the kernel for attention, the form and any chunk size for linear attention.
    pub ran: String,
    pub own: Account,
    /// Measurements of the second slice of sgemm in each round. This slice follows no other job.
    pub undisturbed: Account,
    pub others: Vec<(String, Account)>,
    pub absent: BTreeMap<String, String>,
    pub versions: Map<String, Value>,
    /// Longest time, in seconds, for which thread pools kept spinning after a slice.
    pub settle: f64,
    /// Number of rounds, including dropped ones.
    pub tried: usize,
}

impl Outcome {
    /// Creates an outcome without measurements for the jobs of `prepared`.
    pub fn new(ran: String, prepared: Prepared) -> Outcome {
        Outcome {
            ran,
            own: Account::default(),
            undisturbed: Account::default(),
            others: prepared.jobs.into_iter().map(|name| (name, Account::default())).collect(),
            absent: prepared.absent,
            versions: prepared.versions,
            settle: 0.0,
            tried: 0,
        }
    }

    /// Stores the errors of all outputs. A peer whose error is greater than `wrong` or NaN counts as absent.
    pub fn judge(&mut self, errors: &BTreeMap<String, f64>, wrong: f64) {
        self.own.error = errors.get("elsa").copied();
        for (name, account) in &mut self.others {
            account.error = errors.get(name).copied();
        }
        // An error that is NaN is not within any limit.
        let is_wrong = |account: &Account| account.error.is_some_and(|error| error.is_nan() || error > wrong);
        for (name, account) in self.others.extract_if(.., |(_, account)| is_wrong(account)) {
            let why = format!("its answer has an error of {:.1e}", account.error.unwrap_or(f64::NAN));
            self.absent.insert(name, why);
        }
    }

    pub fn sgemm(&self) -> Option<&Account> {
        self.others.iter().find(|(name, _)| name == SGEMM.0).map(|(_, account)| account)
    }

    /// Returns the peer with the highest median rate.
    pub fn best(&self) -> Option<&(String, Account)> {
        self.best_of("")
    }

    /// Returns the fastest peer whose name begins with `library`.
    pub fn best_of(&self, library: &str) -> Option<&(String, Account)> {
        let of = |name: &str| name != SGEMM.0 && name.starts_with(library);
        let peers = self.others.iter().filter(|(name, _)| of(name));
        peers.max_by(|(_, a), (_, b)| a.rate()[1].total_cmp(&b.rate()[1]))
    }
}

/// Prints the conditions of the measurements of `kernel`, with `rounds` rounds unless another number was requested.
pub fn conditions(common: &Common, kernel: &str, rounds: usize, outcome: &Outcome) {
    let processor = elsa_cli::machine::cpu_model().unwrap_or_else(|| "unknown processor".into());
    println!("{kernel} with {} thread(s); {processor}", common.threads);
    println!(
        "{} rounds of slices of {:?} of {}; peers: {}",
        common.rounds.unwrap_or(rounds),
        common.slice(),
        if common.threads == 1 { "the thread's processor time" } else { "the wall clock" },
        Value::from(outcome.versions.clone())
    );
}

/// Prints the lines above a table whose first column is `width` characters wide.
pub fn headline(common: &Common, width: usize, outcome: &Outcome) {
    conditions(common, &outcome.ran, ROUNDS, outcome);
    if common.markdown {
        println!(
            "\n| shape | GFLOP/s | rel. L2 error | times the best peer | of sgemm | torch | onnxruntime | openvino | sgemm | calm | rounds |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|");
        return;
    }
    println!("{LEGEND}");
    println!(
        "{:<width$} {:>7} {:>8} {:>17} {:>17} {:>6} {:>7} {:>7}   peers",
        "b,h,q,k,d", "elsa", "error", "/ best peer", "/ sgemm", "calm", "settle", "rounds"
    );
}

/// Prints the measurements of a shape in the requested format.
pub fn print(common: &Common, dtype: DType, width: usize, shape: Shape, outcome: &Outcome) {
    let ratio = |[low, middle, high]: [f64; 3]| format!("{middle:.2} ({low:.2}-{high:.2})");
    let own = &outcome.own;
    let to_sgemm = outcome.sgemm().map(|sgemm| own.over(sgemm));
    let undisturbed = outcome.sgemm().map(|sgemm| sgemm.over(&outcome.undisturbed));
    let to_best = outcome.best().map(|(name, account)| (name, own.over(account)));
    if common.markdown {
        let ratio = |[low, middle, high]: [f64; 3]| format!("{middle:.2} ({low:.2}–{high:.2})");
        let best = |library| {
            let of = |(name, account): &(String, Account)| {
                let form = name.strip_prefix(library).filter(|form| !form.is_empty());
                format!(
                    "{:.1}{}",
                    account.rate()[1],
                    form.map_or(String::new(), |x| format!(" ({})", &x[1..]))
                )
            };
            outcome.best_of(library).map_or("–".to_owned(), of)
        };
        let error = format!("{:.1e}", own.error.unwrap_or(f64::NAN));
        println!(
            "| {shape} | {:.1} | {error} | {} | {} | {} | {} | {} | {:.1} | {:.2} | {} |",
            own.rate()[1],
            to_best.map_or("–".to_owned(), |(_, x)| ratio(x)),
            to_sgemm.map_or("–".to_owned(), ratio),
            best("torch"),
            best("onnxruntime"),
            best("openvino"),
            outcome.sgemm().map_or(f64::NAN, |sgemm| sgemm.rate()[1]),
            undisturbed.map_or(f64::NAN, |x| x[1]),
            own.rates.len(),
        );
        return;
    }
    if common.json {
        let others: Map<String, Value> = outcome
            .others
            .iter()
            .map(|(name, account)| {
                let value = json!({ "gflops": account.rate()[1], "calls": account.calls,
                    "ratio": own.over(account), "rel_l2": account.error });
                (name.clone(), value)
            })
            .collect();
        let mut line = described(shape);
        let measured = json!({ "what": "peers", "kernel": outcome.ran, "threads": common.threads,
            "dtype": dtype.name(), "cpu": elsa_cli::machine::cpu_model(),
            "rounds": own.rates.len(), "rounds_tried": outcome.tried, "slice_ms": common.slice().as_millis() as u64,
            "clock": if common.threads == 1 { "thread" } else { "wall" },
            "gflops": own.rate()[1], "gflops_quartiles": own.rate(), "calls": own.calls,
            "rel_l2": own.error, "best_peer": to_best.map(|(name, _)| name),
            "to_best_peer": to_best.map(|(_, x)| x[1]), "to_best_peer_quartiles": to_best.map(|(_, x)| x),
            "to_sgemm": to_sgemm.map(|x| x[1]), "to_sgemm_quartiles": to_sgemm,
            "sgemm_disturbed": undisturbed.map(|x| x[1]), "settle_ms": outcome.settle * 1e3,
            "peers": others, "absent": outcome.absent, "versions": outcome.versions });
        line.extend(
            measured.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())),
        );
        println!("{}", Value::from(line));
        return;
    }
    let mut list = Vec::new();
    for (name, account) in &outcome.others {
        let error = account.error.map_or(String::new(), |error| format!(" ({error:.0e})"));
        list.push(format!("{name} {:.1}{error}", account.rate()[1]));
    }
    println!(
        "{shape:<width$} {:>7.1} {:>8.1e} {:>17} {:>17} {:>6.2} {:>7.1} {:>7}   {}",
        own.rate()[1],
        own.error.unwrap_or(f64::NAN),
        to_best.map_or("-".to_owned(), |(_, x)| ratio(x)),
        to_sgemm.map_or("-".to_owned(), ratio),
        undisturbed.map_or(f64::NAN, |x| x[1]),
        outcome.settle * 1e3,
        format!("{}/{}", own.rates.len(), outcome.tried),
        list.join(", ")
    );
}

/// Converts a shape to the JSON fields that `peers.py` and the readers of `--json` expect.
pub fn described(shape: Shape) -> Map<String, Value> {
    let mask = shape.mask.map(|mask| json!({ "axes": mask.axes(&shape), "boolean": mask.is_boolean() }));
    let windows = shape.windows.map(|x| json!({ "picture": x.picture, "size": x.size, "shift": x.shift }));
    let sizes = [shape.batch, shape.heads, shape.queries, shape.keys, shape.dim];
    let fields = [
        ("shape", json!(sizes)),
        ("kv_heads", json!(shape.kv_heads)),
        ("causal", json!(shape.corner())),
        ("window", json!(shape.sides())),
        ("mask", json!(mask)),
        ("mask_form", json!(shape.mask.map(MaskForm::name))),
        ("windows", json!(windows)),
        ("parts", json!(shape.parts())),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Measures problems one after the other. Prints `headline` before the first, and calls `print` for each problem.
///
/// # Errors
/// Returns an error if a measurement fails. If other programs disturbed every round of a problem, the other problems
/// are still measured, and the error is returned after the last of them.
pub fn each<P: Copy + Display>(
    common: &Common,
    problems: Vec<P>,
    mut measure: impl FnMut(P) -> Result<Outcome, Failure>,
    headline: impl Fn(&Outcome),
    mut print: impl FnMut(P, &Outcome),
) -> Result<(), Failure> {
    let mut absent = BTreeSet::new();
    let (mut told, mut disturbed) = (common.json, 0);
    for problem in problems {
        let outcome = measure(problem)?;
        if outcome.own.rates.is_empty() {
            disturbed += 1;
            eprintln!("{problem}: other programs disturbed each of {} rounds", outcome.tried);
            continue;
        }
        if !told {
            told = true;
            headline(&outcome);
        }
        for (name, why) in outcome.absent.iter().filter(|_| common.columns()) {
            if absent.insert(format!("{name}: {why}")) {
                println!("not measured: {name}: {why}");
            }
        }
        print(problem, &outcome);
    }
    if disturbed > 0 {
        return Err(format!("{disturbed} problem(s) could not be measured: the machine is busy").into());
    }
    Ok(())
}
