//! `elsa bench`: latency on this machine, with every answer checked.
//!
//! For each shape and method the problem is planned and bound once. The first call is the cold one. Then the
//! methods alternate in slices of a few milliseconds until the time for the shape is over, so that a machine that
//! warms up or is disturbed affects both alike. Nothing but the call is timed. On a GPU the tensors stay in its
//! memory, as in a pipeline on the GPU. The first answer is compared with the f64 oracle, component by component,
//! against the worst case of [`elsa_core::attention::bound::rounding`]. The last answer must equal the first bit
//! for bit.

mod measure;
mod print;

pub use measure::{Grid, Record};

use crate::args::EngineArgs;
use crate::args::values::{dtype, one_of, positive, seconds};
use crate::error::Error;
use crate::shape::{self, Shape};
use crate::{progress, report};
use clap::Args;
use elsa_core::dtype::DType;
use elsa_runtime::{Backend, Method};
use measure::{ELSA, MATH, measure};
use std::io::Write;

/// Tokens of the default grid: the sequence lengths of ELSA table 6.
pub const GRID: [usize; 12] = [64, 100, 144, 196, 256, 324, 400, 484, 576, 676, 784, 900];

/// Head size of the default grid.
const DIM: usize = 64;

/// The text below the flags.
fn help() -> String {
    let grid = GRID.map(|tokens| tokens.to_string()).join(" ");
    format!(
        "\
Without --shape: tokens {grid} at head size {DIM}.
{}
The inputs are standard normal, additive masks too. math is the same call with the score matrix materialised. A GPU
does not have it: there only elsa is measured, with tensors that stay in the GPU's memory. The cold call copies them
and loads the kernels. GFLOP/s counts 4 * B * H * NQ * NK * D operations for a call, attended pairs or not. rel L2 is
the distance from the f64 oracle, over all rows or, for large shapes, over an even sample of them. certified: rel L2
does not exceed the bound published with ELSA, plus the rounding of the output for f16 and bf16. --json prints one
object per line. There, n is NK, shape is the shape whole, and what it does not say or the board does not report is
null.
--budget limits each method that is measured by itself; the tensors and the oracle are outside of it. --method both
fails where the budget has no room for one of the two or a GPU is used; without --method, math is left out there.
Exit status 4: an answer is wrong, that is, further from the oracle than rounding explains.",
        shape::HELP
    )
}

/// Sets of methods. Without the flag it is [`BOTH`] as far as possible.
const METHODS: [(&str, &[Method]); 3] = [(ELSA, &[Method::Elsa]), (MATH, &[Method::Math]), ("both", BOTH)];

/// Every method, the first the one that is never left out.
const BOTH: &[Method] = &[Method::Elsa, Method::Math];

/// `elsa bench`.
#[derive(Args, Debug)]
#[command(after_help = help())]
pub struct BenchArgs {
    /// Heads of the default grid; a shape has its own
    #[arg(long, value_name = "H", default_value = "1", allow_negative_numbers = true, value_parser = positive,
        conflicts_with = "shape")]
    pub heads: usize,
    /// Element type
    #[arg(long, default_value_t = DType::F32, value_parser = dtype())]
    pub dtype: DType,
    /// A shape instead of the default grid; may be repeated
    #[arg(long, value_name = shape::VALUE, allow_negative_numbers = true)]
    pub shape: Vec<Shape>,
    /// What is measured [default: both, where the device and the budget allow]
    #[arg(long, value_parser = one_of(METHODS))]
    pub method: Option<&'static [Method]>,
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

/// Runs the command.
///
/// # Errors
/// Wrong requests, failing devices, and answers that are wrong.
pub fn bench(args: &BenchArgs) -> Result<(), Error> {
    let engine = args.engine.engine()?;
    let methods = args.method.unwrap_or(BOTH);
    if engine.backend() == Backend::Cuda && methods.contains(&Method::Math) {
        if args.method.is_some() {
            return Err(Error::Argument {
                argument: "method",
                found: "math with the back end cuda".into(),
                allowed: "elsa, or another back end".into(),
            });
        }
        log::info!("the back end cuda has no method math: only elsa is measured");
    }
    let shapes: Vec<Shape> = if args.shape.is_empty() {
        GRID.map(|n| Shape::plain(1, args.heads, n, n, DIM)).to_vec()
    } else {
        args.shape.clone()
    };
    let options = args.engine.plan_options();
    let mut out = std::io::stdout().lock();
    let bar = progress::bar(shapes.len() as u64, args.seconds * shapes.len() as f64);
    let mut header = false;
    let width = print::width(&shapes);
    for shape in &shapes {
        bar.set_message(shape.to_string());
        let records =
            measure(&engine, methods, args.method.is_none(), &options, args.dtype, *shape, args.seconds)?;
        bar.suspend(|| -> Result<(), Error> {
            if args.json {
                for (record, _) in &records {
                    report::json(&mut out, record)?;
                }
            } else {
                if !header {
                    writeln!(out, "{}", print::headline(&engine, args.dtype, width, &records))?;
                    header = true;
                }
                writeln!(out, "{}", print::row(width, &records))?;
            }
            Ok(out.flush()?)
        })?;
        bar.inc(1);
        for (record, total) in &records {
            let explained = &total.explained;
            if !explained.holds() {
                return Err(Error::Verification(format!(
                    "{} at {}: {} components are not finite, {} further from the oracle than rounding \
                     explains; rel L2 {:.3e}, allowed {:.3e}",
                    record.method,
                    record.shape,
                    explained.not_finite,
                    explained.beyond,
                    record.rel_l2,
                    explained.worst()
                )));
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}
