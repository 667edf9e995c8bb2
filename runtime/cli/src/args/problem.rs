//! The flags of a problem: its tensors and their semantics.
// Doc comments of flags are their help texts, in which brackets enclose shapes and are not links.
#![allow(rustdoc::broken_intra_doc_links)]

use super::values::{number, one_of, positive, shift, sides, window};
use crate::flag::flag;
use crate::shape::ALIGNMENTS;
use clap::builder::TypedValueParser;
use clap::{Args, Command, Id};
use elsa_core::attention::{Alignment, Operand, Window};
use elsa_core::view::Layout;
use elsa_files::{Reads, TensorPath};

/// Placeholder for a file in help texts.
pub const FILE: &str = "FILE";

/// Meaning of the placeholder [`FILE`].
pub const FILE_IS: &str = "path.npy, path.npz#name or path.safetensors#name";

/// Axis orders by the names that flags accept.
const LAYOUTS: [(&str, Layout); 3] = [("bhnd", Layout::Bhnd), ("bnhd", Layout::Bnhd), ("bnc", Layout::Bnc)];

/// Returns a parser of axis orders.
pub fn layouts() -> impl TypedValueParser<Value = Layout> {
    one_of(LAYOUTS)
}

/// The tensors and the semantics of a problem.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Problem")]
pub struct ProblemArgs {
    /// Queries: path.npy, path.npz#name or path.safetensors#name. Elements are f32, f16 or f64, in .safetensors also bf16
    #[arg(long, value_name = FILE)]
    pub q: Option<TensorPath>,
    /// Keys
    #[arg(long, value_name = FILE)]
    pub k: Option<TensorPath>,
    /// Values
    #[arg(long, value_name = FILE)]
    pub v: Option<TensorPath>,
    /// Order of axes [default: bhnd, for packed tensors bnhd]. bhnd is [batch, heads, tokens, dim] (also [n,d] and
    /// [h,n,d]), bnhd is [batch, tokens, heads, dim], bnc is [batch, tokens, heads*dim]
    #[arg(long, value_parser = layouts())]
    pub layout: Option<Layout>,
    /// Query heads; required by the layout bnc
    #[arg(long, value_name = "H", allow_negative_numbers = true, value_parser = positive)]
    pub heads: Option<usize>,
    /// Key heads, if fewer: query head i uses key head i / (H/HK)
    #[arg(long, value_name = "HK", allow_negative_numbers = true, value_parser = positive)]
    pub kv_heads: Option<usize>,
    /// Multiply q·k by X [default: 1/sqrt(dim)]
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = number)]
    pub scale: Option<f32>,
    /// Query i attends keys j <= i + offset. The offset is the length of the past with top-left (the default of
    /// --causal alone), and valid keys minus queries with bottom-right, for a decoder whose cache is in --k
    #[arg(long, value_name = "ALIGNMENT", num_args = 0..=1, require_equals = true,
        default_missing_value = ALIGNMENTS[0].0, value_parser = one_of(ALIGNMENTS))]
    pub causal: Option<Alignment>,
    /// Query i attends keys j with i + offset - L <= j <= i + offset + R. -1 is open. With --causal, keys after i + offset
    /// are not attended
    #[arg(long, value_name = "L,R", allow_hyphen_values = true, value_parser = window)]
    pub window: Option<Window>,
    /// s <- X tanh(s / X), before mask and bias; 0 is off
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = number)]
    pub softcap: Option<f32>,
    /// bool, uint8, int32 or int64 (0 = masked, others = attend), or float (added). Broadcasts to [batch, heads, q, k]
    /// from the right, so that a padding mask is [batch, 1, 1, k]. With n masks along a batch axis that divides the
    /// batch, sequence b uses mask b % n. The last axis is 1 or as long as the keys
    #[arg(long, value_name = FILE)]
    pub mask: Option<TensorPath>,
    /// float, added in addition to the mask and broadcast in the same way; -inf is not attended
    #[arg(long, value_name = FILE)]
    pub bias: Option<TensorPath>,
    /// float [entries, heads], added. --bias-index gives the entry of each pair; with --windows it is Swin's,
    /// (r - r' + H-1) * (2W-1) + (c - c' + W-1) for query token (r, c) and key token (r', c')
    #[arg(long, value_name = FILE, conflicts_with = "bias")]
    pub bias_table: Option<TensorPath>,
    /// int64 [q, k]: the entry of the table for each pair
    #[arg(long, value_name = FILE)]
    pub bias_index: Option<TensorPath>,
    /// Each sequence is a window of H rows of W tokens, row by row; the windows of a picture are consecutive in the
    /// batch
    #[arg(long, value_name = "HxW", allow_hyphen_values = true, value_parser = sides)]
    pub windows: Option<[usize; 2]>,
    /// Size of the picture that the windows divide, in tokens [default: one window; --shift requires a picture]
    #[arg(long, value_name = "HxW", allow_hyphen_values = true, value_parser = sides)]
    pub picture: Option<[usize; 2]>,
    /// Shift of the picture, rolled by -A rows and -B columns: tokens of the last windows attend only those of their
    /// own side of the picture
    #[arg(long, value_name = "A,B", allow_hyphen_values = true, value_parser = shift)]
    pub shift: Option<[usize; 2]>,
    /// int64 [batch]: valid keys of each sequence
    #[arg(long, value_name = FILE)]
    pub kv_lens: Option<TensorPath>,
    /// Earlier keys, always [batch, heads, tokens, dim]
    #[arg(long, value_name = FILE)]
    pub past_k: Option<TensorPath>,
    /// Earlier values, always [batch, heads, tokens, dim]
    #[arg(long, value_name = FILE)]
    pub past_v: Option<TensorPath>,
    /// int64 [sequences + 1]: bounds of packed sequences among the queries; q is then [total, heads, dim]
    #[arg(long, value_name = FILE)]
    pub cu_seqlens_q: Option<TensorPath>,
    /// int64 [sequences + 1]: bounds of packed sequences among the keys
    #[arg(long, value_name = FILE)]
    pub cu_seqlens_k: Option<TensorPath>,
}

impl ProblemArgs {
    /// Returns the names of all flags of a problem.
    #[must_use]
    pub fn names() -> Vec<Id> {
        let command = ProblemArgs::augment_args(Command::new("problem"));
        command.get_arguments().map(|flag| flag.get_id().clone()).collect()
    }

    /// Returns the source of `operand`, if it is given.
    #[must_use]
    pub fn source(&self, operand: Operand) -> Option<&TensorPath> {
        match operand {
            Operand::Query => self.q.as_ref(),
            Operand::Key => self.k.as_ref(),
            Operand::Value => self.v.as_ref(),
            Operand::PastKey => self.past_k.as_ref(),
            Operand::PastValue => self.past_v.as_ref(),
            Operand::Mask => self.mask.as_ref(),
            Operand::Bias => self.bias.as_ref().or(self.bias_table.as_ref()),
            Operand::BiasIndex => self.bias_index.as_ref(),
            _ => None,
        }
    }

    /// Adds the files of the problem to the inputs of a call.
    pub fn add_to(&self, reads: &mut Reads) {
        for operand in Operand::ALL {
            if let Some(source) = self.source(operand) {
                source.add_to(reads, self.flag(operand.argument()));
            }
        }
        for (argument, list) in [
            ("kv-lens", &self.kv_lens),
            ("cu-seqlens-q", &self.cu_seqlens_q),
            ("cu-seqlens-k", &self.cu_seqlens_k),
        ] {
            if let Some(source) = list {
                source.add_to(reads, argument);
            }
        }
    }

    /// Returns the flag, without its dashes, that sets an argument of the library. For a bias, this is the flag that was
    /// given: `bias` or `bias-table`.
    #[must_use]
    pub fn flag(&self, argument: &'static str) -> &'static str {
        match flag(argument) {
            "bias" if self.bias_table.is_some() => "bias-table",
            name => name,
        }
    }
}
