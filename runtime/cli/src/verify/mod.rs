//! `elsa verify`: the answer against the f64 oracle.
//!
//! The answer `Y` is compared row by row with [`elsa_core::attention::reference`]. The executed probabilities `P`
//! are extracted by running the same plan options on the same queries and keys with one-hot values: with columns
//! `j0..j1` of the identity as values, the output is `P[:, j0..j1]`. It has the type of the problem, so the
//! metrics of `P` include the rounding to f16 or bf16.
//!
//! The six metrics are those of ELSA section C.2 as [`elsa_core::drift`] defines them. Each is reported as median,
//! 95th and 99th percentile over rows, and in total. An attended NaN makes them NaN.
//!
//! An answer fails where rounding cannot explain it. The measure is the worst case of
//! [`elsa_core::attention::bound::rounding`], and nothing here tunes it. Failures are:
//! - a component of `Y` that lies further from the oracle than the worst case;
//! - a component that is finite where the oracle's is not, or the reverse;
//! - a row whose most likely key differs although the oracle's two keys lie further apart than their errors allow.
//!
//! Actual errors lie far below the worst case. So more components beyond the likely case of the same module than
//! its model expects are a warning, and for the built-in scenarios a failure: their numbers are random and
//! independent, as the model assumes. Tensors from files may repeat tokens, and with them roundings.

mod extract;
mod judge;
mod print;

pub use judge::{Metric, Verdict};

use crate::args::values::one_of;
use crate::args::{EngineArgs, ProblemArgs};
use crate::error::Error;
use crate::job::Job;
use crate::report;
use crate::scenario::{self, Scenario};
use clap::{Arg, Args};
use elsa_core::attention::{Inputs, Problem};
use judge::judge;
use print::print;

/// The text below the flags, the scenarios apart. The formula is that of [`elsa_core::attention::bound::rounding`].
const HELP: &str = "\
The answer is compared with attention in f64. Verification fails (exit status 4) when
- a component of Y lies further from the oracle than the worst case of rounding:
  |dY| <= (1 + h) [sum p_j F_j |v_j - y| + (g(A) + g(A+1)) sum p_j (1 + E_j) |v_j|] / (1 - D) + h |y| + t
  with u = 2^-24, g(k) = k u / (1 - k u), A the additions on the path of a weight, E_j = exp(delta_j) - 1,
  delta_j = g(d+6) |scale| sum |q||k_j| + u [5 (|mask_j| + |bias_j|) + 2 (|ln p_j| + 6) + 8 (1 + softcap)],
  and where chains of c products are summed in f16, with e = c 2^-11 / (1 - c 2^-11), delta_j has in addition
  e (1 + g(d+6)) |scale| sum |q||k_j| + |scale| d 2^-25;
  F_j = (1 + E_j)(1 + g(A)) - 1, D = sum p_j F_j, h = g(3) + roundoff of an f16 or bf16 output,
  t = 2^-126, and 2^-25 (2^-134) more for an f16 (bf16) output, whose least number is twice that;
- a component is finite where the oracle's is not, or the reverse;
- the most likely key differs from the oracle's, and the two lie further apart than their errors allow;
- in a scenario, more components lie beyond the likely case than its model expects. The likely case is the same
  analysis with errors of random sign (Azuma-Hoeffding, one component in 10^9). For tensors from files this is a
  warning, because repeated tokens repeat their roundings.
Nothing in either bound is fitted. P is the output of the kernel for one-hot values, over a sample of rows if all
would take too long. NaN is null in JSON.";

/// A flag without which the command verifies built-in tensors.
fn required(flag: Arg) -> Arg {
    flag.required_unless_present("scenario")
}

/// `elsa verify`.
#[derive(Args, Debug)]
#[command(override_usage = "elsa verify --q <FILE> --k <FILE> --v <FILE> [OPTIONS]\n       \
    elsa verify --scenario <SCENARIO> [OPTIONS]", after_help = format!("{HELP}\n\n{}", scenario::HELP),
    mut_arg("q", required), mut_arg("k", required), mut_arg("v", required))]
pub struct VerifyArgs {
    /// The problem.
    #[command(flatten)]
    pub problem: ProblemArgs,
    /// Built-in tensors instead of files
    #[arg(long, conflicts_with_all = ["q", "k", "v", "mask", "bias", "bias_table", "bias_index", "windows",
        "picture", "shift", "kv_lens", "past_k", "past_v", "cu_seqlens_q",
        "cu_seqlens_k", "layout", "heads", "kv_heads", "scale", "causal", "window", "softcap"],
        value_parser = one_of(Scenario::ALL))]
    pub scenario: Option<Scenario>,
    /// What computes.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Print one JSON object for each case
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
///
/// # Errors
/// Wrong requests, failing devices, and answers that rounding does not explain.
pub fn verify(args: &VerifyArgs) -> Result<(), Error> {
    let engine = args.engine.engine()?;
    let options = args.engine.plan_options();
    let mut failed = Vec::new();
    let mut show = |name: &str, problem: &Problem, inputs: Inputs<'_>| -> Result<(), Error> {
        let verdict = judge(&engine, &options, name, problem, inputs, args.scenario.is_some())?;
        let mut out = std::io::stdout().lock();
        if args.json {
            report::json(&mut out, &verdict)?;
        } else {
            print(&mut out, &verdict)?;
        }
        if !verdict.passed {
            failed.push(format!(
                "{name}: {} components of Y beyond the worst case, {} beyond the likely case, {} not finite, \
                 {} argmax unexplained",
                verdict.beyond, verdict.unlikely, verdict.not_finite, verdict.argmax_unexplained
            ));
        }
        Ok(())
    };
    match args.scenario {
        Some(scenario) => {
            for case in scenario.cases()? {
                show(case.name, &case.problem, case.inputs())?;
            }
        }
        None => {
            let job = Job::load(&args.problem, [false, false])?;
            show("given", &job.problem, job.inputs()?)?;
            job.unchanged()?;
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Error::Verification(failed.join("; "))) }
}
