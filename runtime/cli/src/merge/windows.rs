//! Merges the states of tasks within a memory budget.

use super::args::MergeArgs;
use crate::error::Error;
use crate::flag::flag;
use crate::progress;
use crate::stream::Outputs;
use elsa_core::attention::Operand;
use elsa_core::dtype::DType;
use elsa_core::view::Layout;
use elsa_files::merge::{Budget, Member, Rows, Totals, shape, sums, windows};
use elsa_files::task::{Kind, Whole};
use elsa_files::{FileError, Writer};
use elsa_runtime::Sink;

/// Totals over the input files, name of the first output file, and shape of its tensor.
pub type Done = (Totals, String, Vec<usize>);

/// Returns an error for an output that a merge within a budget does not write.
///
/// # Errors
/// Returns an error if states are requested.
pub fn outputs_allowed(args: &MergeArgs) -> Result<(), Error> {
    match args.host_budget.is_some() && args.state_out.is_some() {
        true => {
            let (found, allowed) = ("given with --host-budget".into(), "without it".into());
            Err(Error::Argument { argument: "state-out", found, allowed })
        }
        false => Ok(()),
    }
}

/// Merges the states in the files, and writes the outputs, with at most `budget` bytes of memory for the process.
/// `fixed` is the part of the budget that the process uses for other things.
///
/// # Errors
/// Returns an error if the outputs are not computed and written completely. All regular targets are then unchanged,
/// unless the error is a failed rename.
pub(super) fn states(
    args: &MergeArgs,
    members: &[Member<'_>],
    whole: &Whole,
    [budget, fixed]: [usize; 2],
) -> Result<Done, Error> {
    let layout = args.layout.unwrap_or(Layout::Bhnd);
    let [batch, heads, _, queries, _, _, dim] = whole.shape;
    let out = shape(layout, [batch, heads, queries, dim]);
    let mut writer = Writer::new(args.reads());
    let mut shapes = Vec::new();
    for (operand, source, dtype, shape) in [
        (Operand::Output, &args.out, whole.dtype(), out.clone()),
        (Operand::LogSumExp, &args.lse_out, DType::F32, vec![batch, heads, queries]),
    ] {
        if let Some(source) = source {
            writer.add(flag(operand.argument()), source)?;
            shapes.push((operand, dtype, shape));
        }
    }
    drop(sums(members, Kind::States, whole)?);
    let budget = Budget { argument: "host-budget", bytes: Some(budget), fixed };
    let begin = |windows: usize| {
        let mut outputs = Outputs::new(writer.prepared(), &shapes, None)?;
        outputs.show(progress::bar(windows as u64, windows as f64));
        Ok(outputs)
    };
    let (totals, outputs) = windows(members, whole, budget, begin, |outputs, window| {
        if args.out.is_some() {
            write(outputs, Operand::Output, &window.output(layout)?)?;
        }
        if args.lse_out.is_some() {
            write(outputs, Operand::LogSumExp, &window.log_sum_exp("lse-out")?)?;
        }
        Sink::<Operand>::advanced(outputs);
        Ok::<_, Error>(())
    })?;
    outputs.commit()?;
    let first = args.out.as_ref().or(args.lse_out.as_ref()).map(ToString::to_string);
    Ok((totals, first.unwrap_or_default(), out))
}

/// Writes the rows of a window to an output.
fn write(outputs: &mut Outputs, operand: Operand, rows: &Rows) -> Result<(), Error> {
    for (offset, bytes) in rows.pieces() {
        outputs.write(operand, offset, bytes).map_err(|source| {
            let (argument, path) = outputs.target(operand);
            FileError::Write { argument, path, source }
        })?;
    }
    Ok(())
}
