//! The flags of `elsa backward`.
// Doc comments of flags are their help texts, in which brackets enclose shapes and are not links.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::args::{EngineArgs, FILE, ForceArgs, ProblemArgs, TaskArgs, required};
use clap::Args;
use elsa_files::{Reads, TensorPath};
use std::path::PathBuf;

/// The text below the flags.
const HELP: &str = "\
Examples:
  elsa backward --q q.npy --k k.npy --v v.npy --d-out dy.npy --dq-out dq.npy --dk-out dk.npy \\
      --dv-out dv.npy
  elsa backward --q q.npy --k k.npy --v v.npy --d-out dy.npy --dq-out dq.npy --dk-out dk.npy \\
      --dv-out dv.npy --causal --out y.npy --lse lse.npy
  elsa backward --q q.npy --k k.npy --v v.npy --d-out dy.npy --dq-out dq.npy --dk-out dk.npy \\
      --dv-out dv.npy --quorum 7
  elsa backward --q q.npy --k k.npy --v v.npy --d-out dy.npy --state y.npz --quorum 7 --task 0/7 \\
      --shares-out grad0.npz

With p = exp(s - lse) of the scores s of elsa run, and d-out the gradient of a loss with respect to its output:
  ds = p (<d-out, v> - <d-out, out>), times 1 - tanh^2 with --softcap
  dv = sum_i p d-out;  dq = scale sum_j ds k;  dk = scale sum_i ds q
Gradients of a key head are sums over the query heads that share it. Queries without keys, and keys that no query
attends, get zeros. Gradients are f32 in the shapes of q, k and v, for inputs of any type. They are computed on the CPU,
with the same bits for any number of threads; if there is a GPU, the report says so.
Without --out and --lse, the forward pass runs first. It keeps references and sums apart, so gradients stay exact if
scores are large. A log-sum-exp of 4000 in f32 is off by up to 1.2e-4, and so is every p of its row. An --out of 16 bits
is rounded, which adds an error to the gradients. A past is not supported.
A task reads its own tokens from each file; with --gathered, the files contain only these. It also reads results of the
whole sequence for its rows, which elsa merge writes: --state, or --out and --lse. Its shares are sums in f32 over its
pairs. elsa merge adds the shares of all tasks in a fixed tree, ((0 + 1) + (2 + 3)) + ..., which adds log2 of their
number of roundings. --quorum without --task does the same in one process.

Exit status: 0 done; 2 the request was wrong, and nothing was written; 3 the device or the system failed.";

/// Help text of `--quorum`.
const QUORUM: &str = "Divide the pairs of queries and keys among the tasks of quorums, the chunks of each level as of elsa run; \
    without --task, compute all tasks and add their shares [default with --task: its N]";

/// `elsa backward`.
#[derive(Args, Debug)]
#[command(override_usage = "elsa backward --q <FILE> --k <FILE> --v <FILE> --d-out <FILE> --dq-out <FILE> \
    --dk-out <FILE> --dv-out <FILE> [OPTIONS]", after_help = HELP,
    mut_arg("q", required), mut_arg("k", required), mut_arg("v", required), mut_arg("quorum", |arg| arg.help(QUORUM)))]
pub struct BackwardArgs {
    /// Gradient of the loss with respect to the output, in its shape; of the inputs' type, or f32
    #[arg(long, value_name = FILE)]
    pub d_out: TensorPath,
    /// Output of the forward pass, of the inputs' type, or f32 [default: computed, as is --lse]
    #[arg(long, value_name = FILE, requires = "lse")]
    pub out: Option<TensorPath>,
    /// Log-sum-exp of the forward pass, f32 [batch, heads, queries]
    #[arg(long, value_name = FILE, requires = "out")]
    pub lse: Option<TensorPath>,
    /// States of the forward pass, instead of --out and --lse: m, S and W from --state-out of elsa run or elsa merge.
    /// They stay exact for large scores. States with another --run-id or, by checksum, from other q, k and v are
    /// refused; files from --host-budget or other programs carry neither and are not checked
    #[arg(long, value_name = "FILE.npz", conflicts_with_all = ["out", "lse"])]
    pub state: Option<PathBuf>,
    /// Gradient of q, f32
    #[arg(long, value_name = FILE, required_unless_present_any = ["task", "task_path"])]
    pub dq_out: Option<TensorPath>,
    /// Gradient of k, f32
    #[arg(long, value_name = FILE, required_unless_present_any = ["task", "task_path"])]
    pub dk_out: Option<TensorPath>,
    /// Gradient of v, f32
    #[arg(long, value_name = FILE, required_unless_present_any = ["task", "task_path"])]
    pub dv_out: Option<TensorPath>,
    /// With --task: the task's shares of the gradients, dq, dk and dv of its tokens, as .npz. elsa merge adds the
    /// shares of all tasks
    #[arg(long, value_name = "FILE.npz")]
    pub shares_out: Option<PathBuf>,
    /// Permission for outputs to replace inputs.
    #[command(flatten)]
    pub force: ForceArgs,
    /// Print a machine-readable report
    #[arg(long)]
    pub json: bool,
    /// The problem.
    #[command(flatten)]
    pub problem: ProblemArgs,
    /// Division by quorums.
    #[command(flatten)]
    pub task: TaskArgs,
    /// Engine.
    #[command(flatten)]
    pub engine: EngineArgs,
}

impl BackwardArgs {
    /// Returns the files that the command reads.
    #[must_use]
    pub fn reads(&self) -> Reads {
        let mut reads = self.force.reads();
        self.problem.add_to(&mut reads);
        self.engine.add_to(&mut reads);
        self.d_out.add_to(&mut reads, "d-out");
        for (argument, source) in [("out", &self.out), ("lse", &self.lse)] {
            if let Some(source) = source {
                source.add_to(&mut reads, argument);
            }
        }
        if let Some(path) = &self.state {
            reads.add("state", path, None);
        }
        reads
    }
}
