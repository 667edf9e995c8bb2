//! The flags of a problem of linear attention, and of what computes it.
// Doc comments of flags are their help texts, where brackets hold shapes.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::args::values::{bytes, number, one_of, ordinal, positive};
use crate::args::{BackendFlag, EngineArgs, FALLBACKS, FILE, layouts};
use crate::error::Error;
use crate::flag::flag;
use clap::Args;
use elsa_core::linear::{Direction, Form, Operand, Rule};
use elsa_core::view::Layout;
use elsa_files::{Reads, Source};
use elsa_runtime::{Engine, Fallback, LinearPlanOptions};

/// What a bare `--normalize` adds to the sum of squares.
const EPSILON: &str = "1e-6";

/// The form that `--form` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormFlag {
    /// The one that is chosen.
    Auto,
    /// This one.
    Forced(Form),
}

impl FormFlag {
    /// The value that leaves the choice to the plan.
    pub const AUTO: &str = "auto";

    /// Every value with its name.
    pub fn values() -> impl Iterator<Item = (&'static str, FormFlag)> {
        let forced = Form::ALL.map(|form| (form.name(), FormFlag::Forced(form)));
        [(FormFlag::AUTO, FormFlag::Auto)].into_iter().chain(forced)
    }

    /// The form; none if it is chosen.
    #[must_use]
    pub fn form(self) -> Option<Form> {
        match self {
            FormFlag::Auto => None,
            FormFlag::Forced(form) => Some(form),
        }
    }
}

/// The tensors of a problem.
#[derive(Args, Debug, Clone)]
pub struct TensorArgs {
    /// Queries: path.npy, path.npz#name (f32, f16, f64) or path.safetensors#name (f32, f16, bf16, f64)
    #[arg(long, value_name = FILE)]
    pub q: Option<Source>,
    /// Keys; their heads divide those of v
    #[arg(long, value_name = FILE)]
    pub k: Option<Source>,
    /// Values; each of their heads has a state
    #[arg(long, value_name = FILE)]
    pub v: Option<Source>,
    /// Natural logarithms of the gates: the axes of v without the last for one gate per head, and with dim of k as the last
    /// for one per dim; f32 or the type of q. -inf clears
    #[arg(long, value_name = FILE)]
    pub decay: Option<Source>,
    /// Rates of the delta rules: the axes of v without the last, or with one head for all
    #[arg(long, value_name = FILE)]
    pub beta: Option<Source>,
    /// States before the first token, f32 [sequences, heads of v, dim of k, dim of v] [default: zeros]
    #[arg(long, value_name = FILE)]
    pub past_state: Option<Source>,
    /// int64 [sequences + 1]: bounds of packed sequences; q is then [total, heads, dim]
    #[arg(long, value_name = FILE)]
    pub cu_seqlens: Option<Source>,
    /// Order of axes: bhnd is [batch, heads, tokens, dim] (also [n,d] and [h,n,d]), bnhd is [batch, tokens,
    /// heads, dim], bnc is [batch, tokens, heads*dim] [default: bhnd, for packed tensors bnhd]
    #[arg(long, value_parser = layouts())]
    pub layout: Option<Layout>,
    /// Query heads; required by the layout bnc
    #[arg(long, value_name = "H", allow_negative_numbers = true, value_parser = positive)]
    pub heads: Option<usize>,
    /// Heads of values, if they are not as many: a divisor of H, or a multiple
    #[arg(long, value_name = "HV", allow_negative_numbers = true, value_parser = positive)]
    pub kv_heads: Option<usize>,
}

impl TensorArgs {
    /// Where `operand` is read, if it is.
    #[must_use]
    pub fn source(&self, operand: Operand) -> Option<&Source> {
        match operand {
            Operand::Query => self.q.as_ref(),
            Operand::Key => self.k.as_ref(),
            Operand::Value => self.v.as_ref(),
            Operand::Decay => self.decay.as_ref(),
            Operand::Beta => self.beta.as_ref(),
            Operand::PastState => self.past_state.as_ref(),
            Operand::Output | Operand::PresentState => None,
        }
    }

    /// Adds the files to what a call reads.
    pub fn add_to(&self, reads: &mut Reads) {
        for operand in Operand::ALL {
            if let Some(source) = self.source(operand) {
                source.add_to(reads, flag(operand.argument()));
            }
        }
        if let Some(source) = &self.cu_seqlens {
            source.add_to(reads, "cu-seqlens");
        }
    }
}

/// What a problem computes.
#[derive(Args, Debug, Clone)]
pub struct SemanticsArgs {
    /// How a token updates its state
    #[arg(long, value_parser = one_of(Rule::ALL.map(|rule| (rule.name(), rule))))]
    pub rule: Rule,
    /// Factor of the output [default: 1/sqrt(dim of k)]
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = number)]
    pub scale: Option<f32>,
    /// Queries and keys become unit vectors first: x / sqrt(sum x^2 + EPS)
    #[arg(long, value_name = "EPS", num_args = 0..=1, require_equals = true, default_missing_value = EPSILON,
        value_parser = number)]
    pub normalize: Option<f32>,
    /// Tokens pass from the last to the first; the past state comes before the last
    #[arg(long, conflicts_with_all = ["bidirectional", "non_causal"])]
    pub reverse: bool,
    /// The sum of the answers forward and reverse, both with the token itself; without states
    #[arg(long, conflicts_with = "non_causal")]
    pub bidirectional: bool,
    /// Every token reads the state after the last one
    #[arg(long)]
    pub non_causal: bool,
}

impl SemanticsArgs {
    /// The order in which tokens pass the state.
    #[must_use]
    pub fn direction(&self) -> Direction {
        match (self.reverse, self.bidirectional, self.non_causal) {
            (true, ..) => Direction::Reverse,
            (_, true, _) => Direction::Bidirectional,
            (.., true) => Direction::NonCausal,
            _ => Direction::Forward,
        }
    }
}

/// How a problem is computed.
#[derive(Args, Debug, Clone)]
pub struct FormArgs {
    /// The order of operations. auto takes what is the fastest by work, cache and cores
    #[arg(long, default_value = FormFlag::AUTO, value_parser = one_of(FormFlag::values()))]
    pub form: FormFlag,
    /// Tokens of a chunk [default: chosen]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = positive)]
    pub chunk: Option<usize>,
    /// Parts of each sequence of the form scan [default: chosen]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = positive)]
    pub parts: Option<usize>,
}

/// What computes.
#[derive(Args, Debug, Clone)]
pub struct HostArgs {
    /// What computes. auto takes the environment variable ELSA_BACKEND if it is set, else the best that is present
    #[arg(long, default_value = BackendFlag::AUTO, value_parser = one_of(BackendFlag::values()))]
    pub backend: BackendFlag,
    /// If the GPU is missing or fails: the CPU finishes the call, or the call fails
    #[arg(long, default_value = FALLBACKS[0].0, value_parser = one_of(FALLBACKS))]
    pub fallback: Fallback,
    /// Number of the GPU, as its driver counts [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = ordinal)]
    pub device: Option<usize>,
    /// Worker threads of the CPU, 1 to 1024 [default: all cores]. With a GPU they stand by for it
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = positive)]
    pub threads: Option<usize>,
    /// Hard limit of the workspace of a call, besides its tensors: bytes, or a number of KiB, MiB or GiB
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes)]
    pub budget: Option<usize>,
}

impl HostArgs {
    /// The requested engine.
    ///
    /// # Errors
    /// Those of [`EngineArgs::engine`].
    pub fn engine(&self) -> Result<Engine, Error> {
        let HostArgs { backend, fallback, device, threads, budget } = *self;
        let rest = EngineArgs {
            block: None,
            half_scores: false,
            tuned: None,
            backend,
            fallback,
            device,
            threads,
            budget,
        };
        rest.engine()
    }

    /// The requested options of a plan.
    #[must_use]
    pub fn plan_options(&self, form: &FormArgs) -> LinearPlanOptions {
        LinearPlanOptions {
            form: form.form.form(),
            chunk: form.chunk,
            parts: form.parts,
            budget: self.budget,
            ..LinearPlanOptions::default()
        }
    }
}
