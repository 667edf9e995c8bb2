//! The command line: flags and the values they take.
// Doc comments of flags are their help texts, where brackets hold shapes.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::tensor::Source;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use elsa_core::attention::{Alignment, Window};
use elsa_core::dtype::DType;
use elsa_core::view::Layout;
use elsa_runtime::{Backend, Fallback, Method, PlanOptions};
use std::path::PathBuf;

/// Exact softmax attention: run it, verify it, measure it.
#[derive(Parser, Debug)]
#[command(name = "elsa", version, arg_required_else_help = true, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Attention over tensors in files, to a file
    Run(Box<RunArgs>),
    /// Compare with the f64 oracle: drift metrics, certificate, merge depth
    Verify(Box<VerifyArgs>),
    /// Measure latency on this machine; every answer is checked
    Bench(BenchArgs),
    /// Tell what this machine has, and what would be chosen and why
    Info(InfoArgs),
    /// Load the GPU's kernels ahead of the first frame, so that its driver has compiled them
    Warmup(WarmupArgs),
}

const FILE: &str = "FILE";

/// The tensors and the semantics of a problem.
#[derive(Args, Debug, Clone)]
pub struct ProblemArgs {
    /// Queries: path.npy (f32, f16) or path.safetensors#name (f32, f16, bf16)
    #[arg(long, value_name = FILE)]
    pub q: Option<Source>,
    /// Keys
    #[arg(long, value_name = FILE)]
    pub k: Option<Source>,
    /// Values
    #[arg(long, value_name = FILE)]
    pub v: Option<Source>,
    /// Order of axes: bhnd is [batch, heads, tokens, dim] (also [n,d] and [h,n,d]), bnhd is [batch, tokens,
    /// heads, dim], bnc is [batch, tokens, heads*dim]
    #[arg(long, default_value = "bhnd", value_parser = PossibleValuesParser::new(["bhnd", "bnhd", "bnc"]).map(layout))]
    pub layout: Layout,
    /// Query heads; needed by the layout bnc
    #[arg(long, value_name = "H", allow_negative_numbers = true, value_parser = positive)]
    pub heads: Option<usize>,
    /// Key heads, where they are fewer: query head i uses key head i / (H/HK)
    #[arg(long, value_name = "HK", allow_negative_numbers = true, value_parser = positive)]
    pub kv_heads: Option<usize>,
    /// Factor of the scores [default: 1/sqrt(dim)]
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = number)]
    pub scale: Option<f32>,
    /// Query i attends keys j <= i + offset. top-left: offset is the past length; bottom-right, which a bare
    /// --causal means: valid keys minus queries
    #[arg(long, value_name = "ALIGNMENT", num_args = 0..=1, require_equals = true,
        default_missing_value = "bottom-right",
        value_parser = PossibleValuesParser::new(["top-left", "bottom-right"]).map(alignment))]
    pub causal: Option<Alignment>,
    /// Keys j with i + offset - L <= j <= i + offset + R; -1 is open
    #[arg(long, value_name = "L,R", allow_hyphen_values = true, value_parser = window)]
    pub window: Option<Window>,
    /// s <- X tanh(s / X), before masks; 0 is off
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = number)]
    pub softcap: Option<f32>,
    /// bool (true = attend) or float (added), broadcast over [batch, heads, q, k] from the right; a last axis
    /// shorter than the keys leaves the rest unattended
    #[arg(long, value_name = FILE)]
    pub mask: Option<Source>,
    /// int64 [batch]: valid keys of each sequence
    #[arg(long, value_name = FILE)]
    pub kv_lens: Option<Source>,
    /// Earlier keys, always [batch, heads, tokens, dim]
    #[arg(long, value_name = FILE)]
    pub past_k: Option<Source>,
    /// Earlier values, always [batch, heads, tokens, dim]
    #[arg(long, value_name = FILE)]
    pub past_v: Option<Source>,
    /// int64 [sequences + 1]: bounds of packed sequences; q is then [total, heads, dim]
    #[arg(long, value_name = FILE)]
    pub cu_seqlens_q: Option<Source>,
    /// int64 [sequences + 1]: bounds of packed sequences among the keys
    #[arg(long, value_name = FILE)]
    pub cu_seqlens_k: Option<Source>,
}

/// What computes, and how.
#[derive(Args, Debug, Clone)]
pub struct EngineArgs {
    /// auto takes the environment variable ELSA_BACKEND if it is set, else the best that is present
    #[arg(long, default_value = "auto",
        value_parser = PossibleValuesParser::new(["auto", "scalar", "neon", "avx2", "avx512", "cuda"]).map(backend))]
    pub backend: BackendChoice,
    /// Where the GPU is missing or fails: the CPU finishes the call, or the call fails
    #[arg(long, default_value = "cpu", value_parser = PossibleValuesParser::new(["cpu", "fail"]).map(fallback))]
    pub fallback: Fallback,
    /// Number of the GPU, as its driver counts
    #[arg(long, value_name = "N", default_value = "0", allow_negative_numbers = true, value_parser = ordinal)]
    pub device: usize,
    /// Worker threads [default: all cores]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = positive)]
    pub threads: Option<usize>,
    /// Hard limit of the workspace in bytes; KiB, MiB and GiB are understood
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes)]
    pub budget: Option<usize>,
    /// Keys of a block
    #[arg(long, default_value = "64",
        value_parser = PossibleValuesParser::new(["64", "128", "256"]).try_map(|s| s.parse::<usize>()))]
    pub block: usize,
    /// Let a GPU sum short chains of products of f16 inputs in halves: faster and less exact; `verify` says how much
    #[arg(long)]
    pub half_scores: bool,
}

impl EngineArgs {
    /// The options of a plan that its flags ask for.
    #[must_use]
    pub fn plan_options(&self) -> PlanOptions {
        PlanOptions {
            block: self.block,
            budget: self.budget,
            half_scores: self.half_scores,
            ..PlanOptions::default()
        }
    }
}

/// `elsa run`.
#[derive(Args, Debug)]
#[command(override_usage = "elsa run --q <FILE> --k <FILE> --v <FILE> --out <FILE> [OPTIONS]",
    after_help = crate::run::HELP)]
pub struct RunArgs {
    /// The problem.
    #[command(flatten)]
    pub problem: ProblemArgs,
    /// Output, of the inputs' type and layout (bf16 goes to .npy as f32)
    #[arg(long, value_name = FILE)]
    pub out: Source,
    /// Write earlier and new keys, [batch, heads, tokens, dim]
    #[arg(long, value_name = FILE)]
    pub present_k: Option<Source>,
    /// Write earlier and new values, [batch, heads, tokens, dim]
    #[arg(long, value_name = FILE)]
    pub present_v: Option<Source>,
    /// Write the log-sum-exp of each row, f32 [batch, heads, queries]
    #[arg(long, value_name = FILE)]
    pub lse_out: Option<Source>,
    /// Write the state of each row as .npz: m, S, W, in natural-log units
    #[arg(long, value_name = "FILE.npz")]
    pub state_out: Option<PathBuf>,
    /// What computes.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Print the certificate as one JSON line
    #[arg(long)]
    pub certificate: bool,
    /// Print a machine-readable report
    #[arg(long)]
    pub json: bool,
}

/// `elsa verify`.
#[derive(Args, Debug)]
#[command(override_usage = "elsa verify --q <FILE> --k <FILE> --v <FILE> [OPTIONS]\n       \
    elsa verify --scenario <SCENARIO> [OPTIONS]", after_help = crate::verify::HELP)]
pub struct VerifyArgs {
    /// The problem.
    #[command(flatten)]
    pub problem: ProblemArgs,
    /// Built-in tensors instead of files
    #[arg(long, conflicts_with_all = ["q", "k", "v", "mask", "kv_lens", "past_k", "past_v", "cu_seqlens_q",
        "cu_seqlens_k", "layout", "heads", "kv_heads", "scale", "causal", "window", "softcap"],
        value_parser = PossibleValuesParser::new(["regular", "long", "stress"]).map(scenario))]
    pub scenario: Option<Scenario>,
    /// What computes.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Print one JSON object for each case
    #[arg(long)]
    pub json: bool,
}

/// Built-in tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Eight heads, 1,024 tokens, standard normal.
    Regular,
    /// 65,536 keys.
    Long,
    /// Overflowing, dominated, cancelling and masked scores.
    Stress,
}

/// `elsa bench`.
#[derive(Args, Debug)]
#[command(after_help = crate::bench::HELP)]
pub struct BenchArgs {
    /// Heads of the default grid
    #[arg(long, value_name = "H", default_value = "1", allow_negative_numbers = true, value_parser = positive)]
    pub heads: usize,
    /// Element type
    #[arg(long, default_value = "f32", value_parser = PossibleValuesParser::new(["f32", "f16", "bf16"]).map(dtype))]
    pub dtype: DType,
    /// A shape instead of the default grid; may be repeated
    #[arg(long, value_name = "B,H,NQ,NK,D", allow_negative_numbers = true, value_parser = shape)]
    pub shape: Vec<Shape>,
    /// What is measured
    #[arg(long, default_value = "both", value_parser = PossibleValuesParser::new(["elsa", "math", "both"]).map(methods))]
    pub method: Methods,
    /// Time for each shape
    #[arg(long, value_name = "X", default_value = "1", allow_negative_numbers = true, value_parser = seconds)]
    pub seconds: f64,
    /// What computes.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// `elsa info`.
#[derive(Args, Debug)]
pub struct InfoArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `elsa warmup`.
#[derive(Args, Debug)]
#[command(after_help = crate::info::WARMUP_HELP)]
pub struct WarmupArgs {
    /// A shape whose kernels are loaded; may be repeated [default: all kernels]
    #[arg(long, value_name = "B,H,NQ,NK,D", allow_negative_numbers = true, value_parser = shape)]
    pub shape: Vec<Shape>,
    /// Element type of the shapes
    #[arg(long, default_value = "f32", value_parser = PossibleValuesParser::new(["f32", "f16", "bf16"]).map(dtype))]
    pub dtype: DType,
    /// What computes.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A back end, or none in particular.
pub type BackendChoice = Choice;

/// Which back end is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The environment's, or the best present.
    Auto,
    /// This one.
    Forced(Backend),
}

/// Methods to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Methods {
    /// Online softmax.
    pub elsa: bool,
    /// The score matrix materialised.
    pub math: bool,
}

impl Methods {
    /// Those that are measured.
    pub fn iter(self) -> impl Iterator<Item = Method> {
        [(self.elsa, Method::Elsa), (self.math, Method::Math)].into_iter().filter_map(|(x, m)| x.then_some(m))
    }
}

/// A shape to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Sequences.
    pub batch: usize,
    /// Heads.
    pub heads: usize,
    /// Query tokens.
    pub queries: usize,
    /// Key tokens.
    pub keys: usize,
    /// Head size.
    pub dim: usize,
}

fn layout(s: String) -> Layout {
    match s.as_str() {
        "bnhd" => Layout::Bnhd,
        "bnc" => Layout::Bnc,
        _ => Layout::Bhnd,
    }
}

fn alignment(s: String) -> Alignment {
    if s == "top-left" { Alignment::TopLeft } else { Alignment::BottomRight }
}

fn backend(s: String) -> BackendChoice {
    s.parse().map_or(Choice::Auto, Choice::Forced)
}

fn ordinal(s: &str) -> Result<usize, String> {
    s.parse().map_err(|_| "allowed: a whole number not below 0".into())
}

fn fallback(s: String) -> Fallback {
    if s == "fail" { Fallback::Fail } else { Fallback::Cpu }
}

fn scenario(s: String) -> Scenario {
    match s.as_str() {
        "long" => Scenario::Long,
        "stress" => Scenario::Stress,
        _ => Scenario::Regular,
    }
}

fn dtype(s: String) -> DType {
    match s.as_str() {
        "f16" => DType::F16,
        "bf16" => DType::Bf16,
        _ => DType::F32,
    }
}

fn methods(s: String) -> Methods {
    Methods { elsa: s != "math", math: s != "elsa" }
}

fn window(s: &str) -> Result<Window, String> {
    const ALLOWED: &str = "allowed: L,R, both whole numbers not below -1";
    let side = |s: &str| match s.trim().parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(n) => usize::try_from(n).map(Some).map_err(|_| ALLOWED.to_string()),
        Err(_) => Err(ALLOWED.to_string()),
    };
    let (left, right) = s.split_once(',').ok_or(ALLOWED)?;
    Ok(Window { left: side(left)?, right: side(right)? })
}

fn bytes(s: &str) -> Result<usize, String> {
    let allowed = || "allowed: a whole number of bytes, KiB, MiB or GiB".to_string();
    let (number, factor) = [("KiB", 1usize << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)]
        .into_iter()
        .find_map(|(unit, factor)| Some((s.strip_suffix(unit)?, factor)))
        .unwrap_or((s, 1));
    let number: usize = number.trim_end().parse().map_err(|_| allowed())?;
    number.checked_mul(factor).ok_or_else(allowed)
}

fn number(s: &str) -> Result<f32, String> {
    s.parse().map_err(|_| "allowed: a finite number".into())
}

fn positive(s: &str) -> Result<usize, String> {
    match s.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("allowed: a whole number from 1".into()),
    }
}

fn seconds(s: &str) -> Result<f64, String> {
    match s.parse() {
        Ok(x) if x > 0.0 && x <= 86_400.0 => Ok(x),
        _ => Err("allowed: a positive number of seconds, at most 86400".into()),
    }
}

fn shape(s: &str) -> Result<Shape, String> {
    const ALLOWED: &str = "allowed: B,H,NQ,NK,D, whole numbers from 1";
    let numbers: Vec<usize> = s.split(',').map(positive).collect::<Result<_, _>>().map_err(|_| ALLOWED)?;
    match numbers[..] {
        [batch, heads, queries, keys, dim] => Ok(Shape { batch, heads, queries, keys, dim }),
        _ => Err(ALLOWED.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn values_are_understood() {
        assert_eq!(window("-1,0"), Ok(Window { left: None, right: Some(0) }));
        assert_eq!(window("128,-1"), Ok(Window { left: Some(128), right: None }));
        assert!(window("-2,0").is_err() && window("3").is_err() && window("a,b").is_err());
        assert_eq!(bytes("4KiB"), Ok(4096));
        assert_eq!(bytes("2 MiB"), Ok(2 << 20));
        assert!(bytes("-1").is_err() && bytes("99999999999GiB").is_err() && bytes("x").is_err());
        assert_eq!(shape("1,2,3,4,5"), Ok(Shape { batch: 1, heads: 2, queries: 3, keys: 4, dim: 5 }));
        assert!(shape("1,2,3,4").is_err() && shape("1,2,3,4,0").is_err());
        assert!(seconds("nan").is_err() && seconds("-1").is_err());
    }
}
