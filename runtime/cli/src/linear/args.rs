//! The flags of a linear-attention problem and of its form.
// Doc comments of flags are their help texts, in which brackets enclose shapes and are not links.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::args::values::{AUTO, Choice, auto_or, number, one_of, positive};
use crate::args::{FILE, layouts};
use crate::flag::flag;
use clap::Args;
use clap::builder::TypedValueParser;
use elsa_core::linear::{Direction, Form, Operand, Rule};
use elsa_core::view::Layout;
use elsa_files::{Reads, TensorPath};
use elsa_runtime::LinearPlanOptions;

/// Epsilon that a bare `--normalize` adds to the sum of squares.
const EPSILON: &str = "1e-6";

/// Returns a parser for the names of forms and for `auto`.
pub fn forms() -> impl TypedValueParser<Value = Choice<Form>> {
    auto_or(Form::ALL.map(|form| (form.name(), form)))
}

/// The tensors of a problem.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Problem")]
pub struct TensorArgs {
    /// Queries: path.npy, path.npz#name or path.safetensors#name. Elements are f32, f16 or f64, in .safetensors also bf16
    #[arg(long, value_name = FILE)]
    pub q: Option<TensorPath>,
    /// Keys; their number of heads divides that of v
    #[arg(long, value_name = FILE)]
    pub k: Option<TensorPath>,
    /// Values; each head has a state
    #[arg(long, value_name = FILE)]
    pub v: Option<TensorPath>,
    /// Natural logarithms of the gates. f32 or the type of q, with the axes of v without the last for one gate per head,
    /// and with dim of k as the last for one per dim; -inf clears
    #[arg(long, value_name = FILE)]
    pub decay: Option<TensorPath>,
    /// Rates of the delta rules. The axes are those of v without the last, or with one head for all
    #[arg(long, value_name = FILE)]
    pub beta: Option<TensorPath>,
    /// States before the first token, f32 [sequences, heads of v, dim of k, dim of v] [default: zeros]
    #[arg(long, value_name = FILE)]
    pub past_state: Option<TensorPath>,
    /// int64 [sequences + 1]: bounds of packed sequences; q is then [total, heads, dim]
    #[arg(long, value_name = FILE)]
    pub cu_seqlens: Option<TensorPath>,
    /// Order of axes [default: bhnd, for packed tensors bnhd]. bhnd is [batch, heads, tokens, dim] (also [n,d] and
    /// [h,n,d]), bnhd is [batch, tokens, heads, dim], bnc is [batch, tokens, heads*dim]
    #[arg(long, value_parser = layouts())]
    pub layout: Option<Layout>,
    /// Query heads; required by the layout bnc
    #[arg(long, value_name = "H", allow_negative_numbers = true, value_parser = positive)]
    pub heads: Option<usize>,
    /// Heads of values, if different: a divisor of H, or a multiple
    #[arg(long, value_name = "HV", allow_negative_numbers = true, value_parser = positive)]
    pub kv_heads: Option<usize>,
}

impl TensorArgs {
    /// Returns the source of `operand`, if it is given.
    #[must_use]
    pub fn source(&self, operand: Operand) -> Option<&TensorPath> {
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

    /// Adds the files that the flags name to `reads`, the inputs of a call.
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

/// Semantics of a problem.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Problem")]
pub struct SemanticsArgs {
    /// Rule by which a token updates its state
    #[arg(long, value_parser = one_of(Rule::ALL.map(|rule| (rule.name(), rule))))]
    pub rule: Rule,
    /// Multiply the output by X [default: 1/sqrt(dim of k)]
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = number)]
    pub scale: Option<f32>,
    /// Normalize queries and keys to unit vectors first: x / sqrt(sum x^2 + EPS)
    #[arg(long, value_name = "EPS", num_args = 0..=1, require_equals = true, default_missing_value = EPSILON,
        value_parser = number)]
    pub normalize: Option<f32>,
    /// Order of the tokens.
    #[command(flatten)]
    pub order: DirectionArgs,
}

/// Order in which tokens update the state.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Problem")]
pub struct DirectionArgs {
    /// Process tokens from the last to the first; the past state comes before the last
    #[arg(long, conflicts_with_all = ["bidirectional", "non_causal"])]
    pub reverse: bool,
    /// Sum the forward and reverse answers, both including the token itself; without states
    #[arg(long, conflicts_with = "non_causal")]
    pub bidirectional: bool,
    /// Let every token read the state after the last one
    #[arg(long)]
    pub non_causal: bool,
}

impl DirectionArgs {
    /// Returns the direction.
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

/// Form of the computation.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Engine and plan")]
pub struct FormArgs {
    /// Order of operations. auto: recurrent, chunk or fused-chunk, by head size, tokens and device
    #[arg(long, default_value = AUTO, value_parser = forms())]
    pub form: Choice<Form>,
    /// Number of tokens per chunk [default: chosen by the plan]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = positive)]
    pub chunk: Option<usize>,
    /// Number of parts per sequence in the form scan [default: chosen by the plan]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = positive)]
    pub parts: Option<usize>,
}

impl FormArgs {
    /// Returns the requested options of a plan whose workspace is at most `budget` bytes.
    #[must_use]
    pub fn plan_options(&self, budget: Option<usize>) -> LinearPlanOptions {
        let FormArgs { form, chunk, parts } = *self;
        LinearPlanOptions::default().form(form.0).chunk(chunk).parts(parts).budget(budget)
    }
}
