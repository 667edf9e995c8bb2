//! `elsa warmup`: loads GPU kernels ahead of the first frame.

use crate::args::values::dtype;
use crate::args::{EngineArgs, warn_without_effect};
use crate::error::{Error, one_line};
use crate::report::{self, Loaded, object};
use crate::shape::{self, Shape};
use clap::Args;
use elsa_core::dtype::DType;
use elsa_runtime::Backend;
use std::io::Write;

/// Returns the text below the flags.
fn help() -> String {
    format!(
        "\
The driver keeps what it compiles in its cache on disk, so that later processes load it in less time. On the CPU
nothing needs loading. --dtype, --budget, --block, --half-scores and --tensor-cores describe the plans of shapes,
and need --shape.
{}",
        shape::HELP
    )
}

/// `elsa warmup`.
#[derive(Args, Debug)]
#[command(after_help = help())]
pub struct WarmupArgs {
    /// Shape whose kernels are loaded; may be repeated [default: all kernels]
    #[arg(long, value_name = shape::VALUE, allow_negative_numbers = true)]
    pub shape: Vec<Shape>,
    /// Element type of the shapes [default: f32]
    #[arg(long, value_parser = dtype())]
    pub dtype: Option<DType>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Engine.
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the engine is not available, or if the driver refuses to load a kernel.
pub fn warmup(args: &WarmupArgs) -> Result<(), Error> {
    if args.shape.is_empty() {
        let EngineArgs { ref host, block, half_scores, tensor_cores, .. } = args.engine;
        for (given, argument) in [
            (args.dtype.is_some(), "dtype"),
            (host.budget.is_some(), "budget"),
            (block.is_some(), "block"),
            (half_scores, "half-scores"),
            (tensor_cores.is_some(), "tensor-cores"),
        ] {
            if given {
                let found = "given without --shape".into();
                return Err(Error::Argument { argument, found, allowed: "with --shape".into() });
            }
        }
    }
    let engine = args.engine.engine()?;
    let options = args.engine.plan_options();
    let mut fallback = engine.absence().map(ToString::to_string);
    if args.shape.is_empty() {
        engine.load_kernels()?;
    }
    for shape in &args.shape {
        let plan = engine.plan(&shape.problem(args.dtype.unwrap_or(DType::F32))?, &options)?;
        warn_without_effect(&options, &plan);
        fallback = fallback.or_else(|| plan.refusal().map(ToString::to_string));
    }
    let loaded: Vec<Loaded> = engine.loaded_kernels().into_iter().map(Loaded::from).collect();
    let backend = engine.backend().to_string();
    let mut out = crate::foreign::stdout();
    if args.json {
        let warmup = object! { what: "warmup", backend: backend, loaded: loaded, fallback: fallback };
        return Ok(report::json(&mut out, &warmup)?);
    }
    writeln!(out, "backend   {backend}")?;
    if let Some(reason) = &fallback {
        writeln!(out, "fallback  {}", one_line(reason))?;
    }
    if engine.backend() != Backend::Cuda {
        writeln!(out, "loaded    nothing: the kernels of the CPU are part of the program")?;
    }
    Ok(report::loaded(&mut out, &loaded)?)
}
