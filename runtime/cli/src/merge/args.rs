//! Flags of `elsa merge`.
// Doc comments of flags are their help texts, in which brackets enclose shapes and are not links.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::args::values::bytes;
use crate::args::{FILE, ForceArgs, layouts, run_id};
use crate::error::Error;
use clap::Args;
use elsa_core::view::Layout;
use elsa_files::task::Kind;
use elsa_files::{Reads, TensorPath};
use std::path::PathBuf;

/// The text below the flags.
const HELP: &str = "\
Examples:
  elsa run --q q.npy --k k.npy --v v.npy --quorum 7 --task 0/7 --state-out task0.npz
  elsa merge task0.npz task1.npz task2.npz task3.npz task4.npz task5.npz task6.npz --out y.npy \\
      --state-out y.npz
  elsa backward --q q.npy --k k.npy --v v.npy --d-out dy.npy --state y.npz --quorum 7 --task 0/7 \\
      --shares-out grad0.npz
  elsa merge grad0.npz grad1.npz grad2.npz grad3.npz grad4.npz grad5.npz grad6.npz \\
      --dq-out dq.npy --dk-out dk.npy --dv-out dv.npy
Run the first command for each task, 0/7 to 6/7, on as many boards or processes as you like. With c = l (l - 1) + 1
chunks, a task reads l of them: 3 of 7. --quorum 7,7 divides each task again. Tasks of two depths can be mixed, such as
--task-path 3 with 0.0 to 0.6.
States are maxima, sums and weighted sums of rows, so no score overflows. They merge in the order of the tasks, so the
same files give the same bits in any order. Shares of gradients are added in the same tree.
A file is refused if it holds states that no run produces, or if it belongs to another problem or to another --run-id.
Without --run-id, a file of other tensors is refused, too: files contain checksums of each token's queries, keys and
values, and shares also of its --d-out. Several tasks hold each token, and their checksums must agree.
These mistakes are not detected: files that all belong to one other run; other masks; other numbers in --out and --lse
of a backward pass; keys beyond --kv-lens, which have no effect; with --run-id, other tensors in a run of the same name;
and forged files.

Exit status: 0 done; 2 a task is missing, given twice or of another run, or a file is not that of a task, and nothing was
written; 3 the system failed.";

/// `elsa merge`.
#[derive(Args, Debug)]
#[command(override_usage = "elsa merge <STATES>... --out <FILE> [OPTIONS]", after_help = HELP)]
pub struct MergeArgs {
    /// Files from elsa run --task of all tasks, in any order; or from elsa backward --task
    #[arg(required = true, value_name = "STATES")]
    pub states: Vec<PathBuf>,
    /// Output, of the inputs' type (bf16 goes to .npy as f32)
    #[arg(long, value_name = FILE,
        required_unless_present_any = ["lse_out", "state_out", "dq_out", "dk_out", "dv_out"])]
    pub out: Option<TensorPath>,
    /// Order of axes of the output, or the gradients: bhnd is [batch, heads, queries, dim], bnhd is [batch, queries, heads, dim], bnc is [batch,
    /// queries, heads*dim] [default: bhnd]
    #[arg(long, value_parser = layouts())]
    pub layout: Option<Layout>,
    /// Write the log-sum-exp of each row, f32 [batch, heads, queries]
    #[arg(long, value_name = FILE)]
    pub lse_out: Option<TensorPath>,
    /// Write the state of each row as .npz: m, S, W, in natural-log units
    #[arg(long, value_name = "FILE.npz")]
    pub state_out: Option<PathBuf>,
    /// Gradient of q, f32, from shares
    #[arg(long, value_name = FILE)]
    pub dq_out: Option<TensorPath>,
    /// Gradient of k, f32, from shares
    #[arg(long, value_name = FILE)]
    pub dk_out: Option<TensorPath>,
    /// Gradient of v, f32, from shares
    #[arg(long, value_name = FILE)]
    pub dv_out: Option<TensorPath>,
    /// Limit of the process's peak memory. Bytes, or a number of KiB, MiB or GiB. States stay in their files, and the rows
    /// of some tokens are merged at a time; with a smaller budget the files are read more often. The results have the bits
    /// of a merge in memory. Not for shares
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes)]
    pub host_budget: Option<usize>,
    /// Permission for outputs to replace inputs.
    #[command(flatten)]
    pub force: ForceArgs,
    /// Require that elsa run or elsa backward gave the files this run name
    #[arg(long, value_name = "TEXT", value_parser = run_id)]
    pub run_id: Option<String>,
    /// Print a machine-readable report
    #[arg(long)]
    pub json: bool,
}

impl MergeArgs {
    /// Returns the files that the command reads.
    pub(super) fn reads(&self) -> Reads {
        let mut reads = self.force.reads();
        self.states.iter().for_each(|path| reads.add("STATES", path, None));
        reads
    }

    /// Returns the paths of the outputs.
    pub(super) fn outputs(&self) -> impl Iterator<Item = String> {
        let tensors = [&self.out, &self.lse_out, &self.dq_out, &self.dk_out, &self.dv_out];
        let tensors = tensors.into_iter().flatten().map(ToString::to_string);
        tensors.chain(self.state_out.iter().map(|path| path.display().to_string()))
    }

    /// Checks that files of the kind `kind` can provide each requested output.
    pub(super) fn check(&self, kind: Kind) -> Result<(), Error> {
        let [of_states, of_gradients] = [
            [
                (self.out.is_some(), "out"),
                (self.lse_out.is_some(), "lse-out"),
                (self.state_out.is_some(), "state-out"),
            ],
            [
                (self.dq_out.is_some(), "dq-out"),
                (self.dk_out.is_some(), "dk-out"),
                (self.dv_out.is_some(), "dv-out"),
            ],
        ];
        let (foreign, allowed) = match kind {
            Kind::States => (of_gradients, "out, --lse-out or --state-out"),
            Kind::Gradients => (of_states, "dq-out, --dk-out or --dv-out"),
        };
        match foreign.into_iter().find(|(given, _)| *given) {
            Some((_, argument)) => {
                let found = format!("given for files of {}", kind.name());
                Err(Error::Argument { argument, found, allowed: format!("--{allowed}") })
            }
            None => Ok(()),
        }
    }
}
