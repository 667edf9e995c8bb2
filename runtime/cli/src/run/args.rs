//! The flags of `elsa run`.
// Doc comments of flags are their help texts, in which brackets enclose shapes and are not links.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::args::values::{Devices, devices};
use crate::args::{EngineArgs, FILE, ForceArgs, ProblemArgs, TaskArgs, TraversalArgs, required};
use crate::error::{Error, say};
use crate::flag::flag;
use crate::stream::StreamArgs;
use clap::Args;
use elsa_core::attention::Operand;
use elsa_files::{Reads, TensorPath, Writer};
use std::path::PathBuf;

/// The text below the flags.
const HELP: &str = "\
Examples:
  elsa run --q q.npy --k k.npy --v v.npy --out y.npy
  elsa run --q q.npy --k k.npy --v v.npy --out y.npy --causal=top-left --window 128,0 \\
      --lse-out lse.npy
  elsa run --q q.npy --k k.npy --v v.npy --out y.npy --mask padding.npy --threads 2 --budget 4MiB
  elsa run --q new-q.npy --k new-k.npy --v new-v.npy --past-k k.npy --past-v v.npy \\
      --present-k all-k.npy --present-v all-v.npy --causal --out y.npy
  elsa run --q in.safetensors#q --k in.safetensors#k --v in.safetensors#v \\
      --out out.safetensors#y --layout bnc --heads 12
  elsa run --q wq.npy --k wk.npy --v wv.npy --out y.npy --bias-table table.npy --windows 7x7 \\
      --picture 14x14 --shift 3,3
  elsa run --q q.npy --k k.npy --v v.npy --quorum 7 --task 0/7 --state-out task0.npz
  elsa run --q q.npy --k k.npy --v v.npy --quorum 7,7 --host-budget 1GiB --out y.npy
  elsa run --q q.npy --k k.npy --v v.npy --out y.npy --error-budget 0.001
  elsa run --q packed.npy --k packed.npy --v packed.npy --cu-seqlens-q bounds.npy \\
      --cu-seqlens-k bounds.npy --out y.npy
The first reads files that numpy.save('q.npy', q) writes, float32 arrays [batch, heads, tokens, dim]. The one with
windows reads [pictures * 4, heads, 49, dim] and a table [169, heads].

Files are little-endian. Inputs may be members of .npz files: --q in.npz#q. .npy files in Fortran order are converted
to C order. f64 is rounded to f32, and a notice says so. A .safetensors file may hold several inputs and outputs: an
output replaces the tensor of its name and keeps the others and the file's metadata. .npy has no bf16, so bf16 outputs
are written as f32. Without --force no output replaces a tensor that the command reads, by any name or link.

The range is that of f32: weights below 2^-126 of a row's largest are zero or too small. Scores, and queries times the
scale, must stay below 1.1e38, and keys * 2^8 * max |v| below 3.4e38; beyond that a row is infinite or NaN, or a key
whose score overflows to -inf is not attended. Finite masks and biases count as at least -1.18e38. A row that is masked
completely is the mean of its values if the masks are finite, and zero if they are -inf.

With --host-budget tensors stay in their files, even if they are larger than memory, and the process stays within the
budget. If the system refuses memory, fewer rows are kept, with the same bits, and a line and the field refused of
--json report it. Members of .npz files are read once more for their checksums. Deflated members and files in Fortran
order are unpacked into an unnamed file in the folder of the output, which needs disk space. If a budget is refused,
the number that the message names is enough. --resume continues a run that was killed at any time; its outputs must not
be in an input's file. elsa info --budget prints what a budget is used for.

--quorum without --task computes all tasks in this process and merges them. With --host-budget it divides a task further,
by the levels of --quorum, until its tokens are expected to fit, and merges within the budget. The bits then depend on the
tasks, which --json lists by level. A call that was killed or failed continues with the tasks whose files are complete.
The output is that of elsa merge, which has all axes of its layout.

On a GPU head sizes go up to 256. Larger ones are computed by the CPU, or refused with --fallback fail.

The certificate bounds the error of the output, proved for the kernel that ran and the norms of these tensors. In its
JSON, each element is within bound * sum_j p_j |v_j| of the exact one, and every element is within absolute. Its claim
is none if a tensor is not finite or scores are too large; the field why gives the reason. It also contains the bound
published with ELSA, labelled as not rigorous. --certificate reads masks and biases once more, computes on the CPU if
the run is streamed, and excludes --resume. elsa verify measures the error of an answer.

Exit status: 0 done; 2 the request was wrong, and nothing was written; 3 the device or the system failed; 141 the
reader of standard output closed it. Outputs are then complete, as they are if printing fails. elsa help lists the
environment variables.";

/// `elsa run`.
#[derive(Args, Debug)]
#[command(override_usage = "elsa run --q <FILE> --k <FILE> --v <FILE> --out <FILE> [OPTIONS]", after_help = HELP,
    mut_arg("q", required), mut_arg("k", required), mut_arg("v", required))]
pub struct RunArgs {
    /// Output, of the inputs' type and layout (bf16 goes to .npy as f32)
    #[arg(long, value_name = FILE, required_unless_present_any = ["task", "task_path"])]
    pub out: Option<TensorPath>,
    /// Write past and new keys, [batch, heads, tokens, dim]
    #[arg(long, value_name = FILE)]
    pub present_k: Option<TensorPath>,
    /// Write past and new values, [batch, heads, tokens, dim]
    #[arg(long, value_name = FILE)]
    pub present_v: Option<TensorPath>,
    /// Write the log-sum-exp of each row, f32 [batch, heads, queries]
    #[arg(long, value_name = FILE)]
    pub lse_out: Option<TensorPath>,
    /// Write the state of each row as .npz: m, S, W, in natural-log units. W / S is the answer at any m; S exp(m) is the
    /// sum of exp(score) where |m| is below 2^30, and m + log S its logarithm within the spacing of f32 beyond
    #[arg(long, value_name = "FILE.npz")]
    pub state_out: Option<PathBuf>,
    /// With --quorum and without --task: folder for the files of the tasks, which stay there. A later call uses the files
    /// that have the states of its tasks, and computes the others [default: OUT.tasks, removed after success]
    #[arg(long, value_name = "FOLDER", help_heading = "Division among boards", requires = "quorum",
        conflicts_with_all = ["task", "task_path"])]
    pub task_dir: Option<PathBuf>,
    /// With --quorum and without --task: compute the tasks on these GPUs, one task at a time on each. It selects --backend
    /// cuda; --budget holds for each GPU. Equal GPUs give the bits of one
    #[arg(long, value_name = "N[,N...]", allow_hyphen_values = true, value_parser = devices, requires = "quorum",
        help_heading = "Division among boards", conflicts_with_all = ["task", "task_path", "device", "host_budget"])]
    pub devices: Option<Devices>,
    /// Measure the tensors, and print a bound on the output's error. With --json or --verbose it is a line of JSON
    #[arg(long)]
    pub certificate: bool,
    /// Permission for outputs to replace inputs.
    #[command(flatten)]
    pub force: ForceArgs,
    /// Print a machine-readable report
    #[arg(long)]
    pub json: bool,
    /// Print all numbers of the certificate, and of the blocks that an error budget skipped
    #[arg(long, conflicts_with = "json")]
    pub verbose: bool,
    /// The problem.
    #[command(flatten)]
    pub problem: ProblemArgs,
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

    /// Names the written files other than the output, one on each line of standard error.
    pub fn tell_others(&self) {
        let tensors = [&self.present_k, &self.present_v, &self.lse_out];
        let tensors = tensors.into_iter().flatten().map(ToString::to_string);
        let states = self.state_out.iter().map(|path| path.display().to_string());
        tensors.chain(states).for_each(|path| say(&format!("wrote {path}")));
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
