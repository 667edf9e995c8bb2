//! The flags of `elsa run`.
// Doc comments of flags are their help texts, where brackets hold shapes.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::args::{EngineArgs, FILE, ForceArgs, ProblemArgs, TaskArgs, TraversalArgs};
use crate::error::Error;
use crate::flag::flag;
use crate::stream::StreamArgs;
use clap::{Arg, Args};
use elsa_core::attention::Operand;
use elsa_files::{Reads, Source, Writer};
use std::path::PathBuf;

/// The text below the flags.
const HELP: &str = "\
Examples:
  elsa run --q q.npy --k k.npy --v v.npy --out y.npy
  elsa run --q q.npy --k k.npy --v v.npy --out y.npy --causal=top-left --window 128,0 --lse-out lse.npy
  elsa run --q q.npy --k k.npy --v v.npy --out y.npy --mask padding.npy --threads 2 --budget 4MiB --json
  elsa run --q new-q.npy --k new-k.npy --v new-v.npy --past-k k.npy --past-v v.npy --present-k all-k.npy \
--present-v all-v.npy --causal --out y.npy
  elsa run --q in.safetensors#q --k in.safetensors#k --v in.safetensors#v --out out.safetensors#y --layout bnc --heads 12
  elsa run --q wq.npy --k wk.npy --v wv.npy --out y.npy --bias-table table.npy --windows 7x7 --picture 14x14 --shift 3,3
  elsa run --q q.npy --k k.npy --v v.npy --quorum 7 --task 0/7 --state-out task0.npz
  elsa run --q q.npy --k k.npy --v v.npy --out y.npy --error-budget 0.001
  elsa run --q packed.npy --k packed.npy --v packed.npy --cu-seqlens-q bounds.npy --cu-seqlens-k bounds.npy --out y.npy
Tensors of the first: numpy.save('q.npy', q) of a float32 array of [batch, heads, tokens, dim], and k and v alike.
Those of the windows: [pictures * 4, heads, 49, dim], and a table [169, heads].

Files are little-endian; .npy files in Fortran order are brought into C order. Several tensors may lie in one .safetensors
file, in and out: an output replaces the tensor of its name and keeps the others, with the file's metadata. No output
replaces a tensor that the command reads, by whatever name or link, but with --force. .npy has no bf16: such outputs go there as f32. Inputs may also lie in .npz files: --q in.npz#q. f64 is rounded
to f32, and a notice says so.
The range is that of f32: weights are exact down to 2^-126 of a row's largest and zero below; scores and queries times
the scale must stay below 1.1e38, keys * 2^8 * max |v| below 3.4e38, and beyond a row is infinite or NaN. Finite masks
and biases count as at least -1.18e38; a row that is masked wholly by finite numbers is the mean of its values, by -inf it
is zero.
With --host-budget tensors stay in their files, also those larger than memory, and the process stays within the budget; where
the system refuses memory, fewer rows stay, with the same bits, and a line and refused of --json say so. Members of .npz
files are read once more, for their checksums; deflated ones and files in Fortran order are unpacked into a file without a name
beside the output, so they need room on the disk. The number that a refused budget names is enough. With --resume a run that is
killed at any time goes on; no output may lie in the file of an input then. For --certificate masks and biases are read once more; it has the CPU compute, and excludes
--resume. elsa info --budget prints what a budget is for.
On a GPU head sizes go up to 256; larger ones are computed by the CPU, or refused with --fallback fail.
The certificate says how wrong the output may be, proved for the kernel that ran and the norms of these tensors: each
element is within bound * sum_j p_j |v_j| of the exact one, and every element within absolute. Its claim is none, and why
says why, where a tensor is not finite or scores are too large. It contains the bound published with ELSA, labelled as not
rigorous. elsa verify measures the error of an answer.
Exit status: 0 done; 2 the request was wrong, and nothing was written; 3 the device or the system failed; 141 the reader
of standard output has closed it. Outputs are complete by then, as they are where printing fails. elsa help has the
variables of the environment.";

/// Marks a flag as required.
fn required(flag: Arg) -> Arg {
    flag.required(true)
}

/// `elsa run`.
#[derive(Args, Debug)]
#[command(override_usage = "elsa run --q <FILE> --k <FILE> --v <FILE> --out <FILE> [OPTIONS]", after_help = HELP,
    mut_arg("q", required), mut_arg("k", required), mut_arg("v", required))]
pub struct RunArgs {
    /// The problem.
    #[command(flatten)]
    pub problem: ProblemArgs,
    /// Output, of the inputs' type and layout (bf16 goes to .npy as f32)
    #[arg(long, value_name = FILE, required_unless_present_any = ["task", "task_path"])]
    pub out: Option<Source>,
    /// Write past and new keys, [batch, heads, tokens, dim]
    #[arg(long, value_name = FILE)]
    pub present_k: Option<Source>,
    /// Write past and new values, [batch, heads, tokens, dim]
    #[arg(long, value_name = FILE)]
    pub present_v: Option<Source>,
    /// Write the log-sum-exp of each row, f32 [batch, heads, queries]
    #[arg(long, value_name = FILE)]
    pub lse_out: Option<Source>,
    /// Write the state of each row as .npz: m, S, W, in natural-log units. W / S is the answer at any m; S exp(m) is the
    /// sum of exp(score) where |m| is below 2^30, and m + log S its logarithm within the spacing of f32 beyond
    #[arg(long, value_name = "FILE.npz")]
    pub state_out: Option<PathBuf>,
    /// Part of the work.
    #[command(flatten)]
    pub task: TaskArgs,
    /// Engine.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Traversal of the keys.
    #[command(flatten)]
    pub traversal: TraversalArgs,
    /// Tensors that stay in their files.
    #[command(flatten)]
    pub stream: StreamArgs,
    /// Measure the tensors, and print a bound on the output's error as one JSON line
    #[arg(long)]
    pub certificate: bool,
    /// Permission for outputs to replace inputs.
    #[command(flatten)]
    pub force: ForceArgs,
    /// Print a machine-readable report
    #[arg(long)]
    pub json: bool,
}

impl RunArgs {
    /// Returns the files that the command reads.
    #[must_use]
    pub fn reads(&self) -> Reads {
        let mut reads = self.force.reads();
        self.problem.add_to(&mut reads);
        self.engine.add_to(&mut reads);
        reads
    }

    /// Checks that every output can be written. The outputs are prepared in the order in which
    /// [`run`](super::run) lists them.
    pub fn writer(&self) -> Result<Writer, Error> {
        let mut writer = Writer::new(self.reads());
        for (operand, source) in [
            (Operand::Output, self.out.as_ref()),
            (Operand::PresentKey, self.present_k.as_ref()),
            (Operand::PresentValue, self.present_v.as_ref()),
            (Operand::LogSumExp, self.lse_out.as_ref()),
        ] {
            if let Some(source) = source {
                writer.add(flag(operand.argument()), source)?;
            }
        }
        if let Some(path) = &self.state_out {
            writer.add_archive("state-out", path)?;
        }
        Ok(writer)
    }
}
