//! The flags of an engine and its plans.

use super::values::{AUTO, Choice, auto_or, bytes, one_of, ordinal, positive};
use crate::error::{Error, say};
use clap::Args;
use elsa_core::attention::plan::{BLOCK_SIZES, TensorCores};
use elsa_files::{Reads, SPARE, leaves_enough};
use elsa_runtime::{
    Backend, CudaOptions, DeviceError, Engine, EngineOptions, Fallback, Plan, PlanError, PlanOptions, Tuned,
    Tuning,
};
use std::path::PathBuf;
use std::sync::Once;

/// Values of `--fallback`. The first is the default.
const FALLBACKS: [(&str, Fallback); 2] = [("cpu", Fallback::Cpu), ("fail", Fallback::Fail)];

/// Engine.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Engine and plan")]
pub struct HostArgs {
    /// Back end. auto uses the environment variable ELSA_BACKEND if it is set, else the best one present
    #[arg(long, default_value = AUTO, value_parser = auto_or(backends()))]
    pub backend: Choice<Backend>,
    /// If the GPU is missing or fails: cpu finishes the call on the CPU, fail ends it. fail requires a GPU and is
    /// refused without one
    #[arg(long, default_value = FALLBACKS[0].0, value_parser = one_of(FALLBACKS))]
    pub fallback: Fallback,
    /// Number of the GPU in its driver's order [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = ordinal::<usize>)]
    pub device: Option<usize>,
    /// Worker threads of the CPU, 1 to 1024 [default: all cores]. With a GPU they are the fallback
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = positive)]
    pub threads: Option<usize>,
    /// Hard limit of the workspace of a call, excluding its tensors. Bytes, or a number of KiB, MiB or GiB
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes)]
    pub budget: Option<usize>,
}

impl HostArgs {
    /// Creates the requested engine.
    ///
    /// # Errors
    /// Returns the errors of [`EngineArgs::engine`].
    pub fn engine(&self) -> Result<Engine, Error> {
        self.alone().engine()
    }

    /// Creates the requested engine without a tuned file, even if the environment names one.
    ///
    /// # Errors
    /// Returns the errors of [`EngineArgs::engine`].
    pub fn untuned_engine(&self) -> Result<Engine, Error> {
        self.alone().build(self.device, EngineOptions::default().tuned(Tuning::Off))
    }

    /// Returns these flags without flags of a plan.
    fn alone(&self) -> EngineArgs {
        EngineArgs { host: self.clone(), block: None, half_scores: false, tensor_cores: None, tuned: None }
    }
}

/// Engine and its options.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Engine and plan")]
pub struct EngineArgs {
    /// Engine.
    #[command(flatten)]
    pub host: HostArgs,
    /// Keys of a block on the CPU [default: 64]. GPU kernels have fixed block sizes
    #[arg(long, allow_negative_numbers = true,
        value_parser = one_of(BLOCK_SIZES.map(|block| (block.to_string(), block))))]
    pub block: Option<usize>,
    /// Let a GPU sum short chains of products of f16 inputs in f16: faster and less exact; `elsa verify` reports by how
    /// much. Bits then also depend on the alignment of keys and values. A warning is printed if the flag has no effect
    #[arg(long)]
    pub half_scores: bool,
    /// Use of a GPU's Tensor Cores: off, allow where they are faster and as exact as f32 products, always where they are as
    /// exact, or f16: one f16 product for each product of f32 tensors, with errors of about 1e-3 [default: off]
    #[arg(long, value_name = "USE", value_parser = one_of(tensor_cores()))]
    pub tensor_cores: Option<TensorCores>,
    /// Use the decisions that elsa tune measured on this GPU or CPU: from FILE, else from the file in ELSA_TUNED, else
    /// from elsa/tuned.toml in XDG_CONFIG_HOME or ~/.config. A file of another device, driver or version is ignored
    /// with a warning. On a CPU --block takes precedence
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub tuned: Option<Option<PathBuf>>,
}

/// Returns the uses of Tensor Cores with their names.
fn tensor_cores() -> [(&'static str, TensorCores); 4] {
    [
        ("off", TensorCores::Off),
        ("allow", TensorCores::Allow),
        ("always", TensorCores::Always),
        ("f16", TensorCores::F16),
    ]
}

/// Iterates over the back ends with their names, the most portable first.
fn backends() -> impl Iterator<Item = (&'static str, Backend)> {
    Backend::ALL.into_iter().rev().map(|backend| (backend.name(), backend))
}

/// Returns `true` if this machine and this build allow a back end. A GPU is always allowed: if it is absent,
/// `--fallback` decides what happens.
fn is_allowed(backend: Backend) -> bool {
    backend == Backend::Cuda || backend.is_present()
}

impl EngineArgs {
    /// Creates the requested engine. Some flags may have no effect on this engine. Such a flag is refused if the
    /// results would then differ from the requested ones. Otherwise, a warning reports the flag.
    ///
    /// # Errors
    /// Returns an error if the back end is absent, the number of threads is out of bounds, the memory is too small for the
    /// threads, or a GPU flag is given for another back end.
    pub fn engine(&self) -> Result<Engine, Error> {
        self.engine_from(EngineOptions::default())
    }

    /// Creates the requested engine like [`EngineArgs::engine`]. Options that have no flag in this struct are those of
    /// `options`.
    ///
    /// # Errors
    /// Returns the errors of [`EngineArgs::engine`], and an error if the system refuses an option.
    pub fn engine_from(&self, options: EngineOptions) -> Result<Engine, Error> {
        self.build(self.host.device, options.tuned(self.tuning()))
    }

    /// Creates the requested engine, for the GPU `device` and with the tuned file of `options`.
    fn build(&self, device: Option<usize>, options: EngineOptions) -> Result<Engine, Error> {
        let HostArgs { backend: Choice(backend), fallback, threads, .. } = self.host;
        if let Some(backend) = backend.filter(|backend| !is_allowed(*backend)) {
            let allowed = backends().filter(|(_, backend)| is_allowed(*backend)).map(|(name, _)| name);
            return Err(Error::Argument {
                argument: "backend",
                found: format!("{backend}, which this machine or build does not have"),
                allowed: [AUTO].into_iter().chain(allowed).collect::<Vec<_>>().join(", "),
            });
        }
        if let Some(backend @ Backend::Cpu(_)) = backend
            && let Some((_, argument)) = self.of_a_gpu().into_iter().find(|(given, _)| *given)
        {
            let found = format!("given with --backend {backend}");
            return Err(Error::Argument { argument, found, allowed: "with --backend cuda or auto".into() });
        }
        let options = options
            .backend(backend)
            .threads(threads)
            .fallback(fallback)
            .cuda(CudaOptions::default().device(device.unwrap_or_default()));
        // Starting a thread without free memory aborts the process.
        leaves_enough("threads", SPARE)?;
        let engine = Engine::new(&options)?;
        leaves_enough("threads", SPARE)?;
        let chosen = engine.backend();
        if chosen == Backend::Cuda {
            if self.block.is_some() {
                log::warn!("--block has no effect on a GPU, only where the CPU takes its place");
            }
        } else {
            // If `absence` returns a reason, the flags name a GPU and allow the CPU to replace it.
            if fallback == Fallback::Fail && engine.absence().is_none() {
                return Err(Error::Argument {
                    argument: "fallback",
                    found: format!("fail, and the back end is {chosen}"),
                    allowed: "cpu, or a GPU; elsa info tells what this machine has".into(),
                });
            }
            for (given, argument) in self.of_a_gpu() {
                if given {
                    log::warn!("--{argument} has no effect: the back end is {chosen}, not a GPU");
                }
            }
        }
        Ok(engine)
    }

    /// Creates an engine for each of the GPUs `numbers`, and returns it with its number. With `--fallback cpu`, a GPU that
    /// cannot be used is left out. If none can be used, the only engine is one for the CPU, and it has no number.
    ///
    /// # Errors
    /// Returns an error if a back end of the CPU is requested, if a GPU does not exist, or an error of
    /// [`EngineArgs::engine`].
    pub fn engines(&self, numbers: &[usize]) -> Result<Vec<(Option<usize>, Engine)>, Error> {
        if let Choice(Some(backend @ Backend::Cpu(_))) = self.host.backend {
            let found = format!("given with --backend {backend}");
            return Err(Error::Argument {
                argument: "devices",
                found,
                allowed: "with --backend cuda or auto".into(),
            });
        }
        let refused = |reason: &DeviceError| match *reason {
            DeviceError::Ordinal { found, count } => Some(Error::Argument {
                argument: "devices",
                found: found.to_string(),
                allowed: format!("numbers below {count}, the number of GPUs"),
            }),
            _ => None,
        };
        let mut on_a_gpu = self.clone();
        on_a_gpu.host.backend = Choice(Some(Backend::Cuda));
        let engine = |number: usize| {
            let options = EngineOptions::default().tuned(self.tuning());
            match on_a_gpu.build(Some(number), options) {
                Ok(engine) => engine.absence().and_then(|reason| refused(reason)).map_or(Ok(engine), Err),
                Err(Error::Plan(PlanError::Unusable { reason })) => {
                    let refused = refused(&reason);
                    let unusable = || Error::from(PlanError::Unusable { reason });
                    Err(refused.unwrap_or_else(|| Error::OnDevice { number, source: unusable().into() }))
                }
                Err(e) => Err(e),
            }
        };
        let mut engines = Vec::new();
        let mut absent = Vec::new();
        for &number in numbers {
            let engine = engine(number)?;
            match engine.absence().cloned() {
                None => engines.push((Some(number), engine)),
                Some(reason) => absent.push((number, reason, engine)),
            }
        }
        if engines.is_empty() {
            return Ok(absent.into_iter().take(1).map(|(_, _, engine)| (None, engine)).collect());
        }
        for (number, reason, _) in absent {
            say(&format!("--devices: {number}: {reason}; the other GPUs compute its tasks"));
        }
        Ok(engines)
    }

    /// Returns the tuned file that the engine uses.
    fn tuning(&self) -> Tuning {
        match &self.tuned {
            Some(Some(path)) => Tuning::File(path.clone()),
            Some(None) if Tuned::named_path().is_none() => Tuning::Standard,
            Some(None) | None => Tuning::Environment,
        }
    }

    /// Adds the tuned file to the files that a call reads.
    pub fn add_to(&self, reads: &mut Reads) {
        if let Some(path) = self.tuned.clone().flatten().or_else(Tuned::named_path) {
            reads.keep("tuned", &path);
        }
    }

    /// Lists the flags that only a GPU uses. Each entry states whether the flag is given, and contains the flag's name.
    fn of_a_gpu(&self) -> [(bool, &'static str); 4] {
        [
            (self.host.device.is_some(), "device"),
            (self.half_scores, "half-scores"),
            (self.tensor_cores.is_some_and(|cores| cores != TensorCores::Off), "tensor-cores"),
            (self.host.fallback == Fallback::Fail, "fallback"),
        ]
    }

    /// Returns the requested options of a plan.
    #[must_use]
    pub fn plan_options(&self) -> PlanOptions {
        PlanOptions::default()
            .block(self.block.unwrap_or(PlanOptions::default().block))
            .budget(self.host.budget)
            .half_scores(self.half_scores)
            .tensor_cores(self.tensor_cores.unwrap_or_default())
    }
}

/// Warns once if `options` allow a GPU to sum in f16 or to compute on Tensor Cores, but no kernel of `plan` does so.
pub fn warn_without_effect(options: &PlanOptions, plan: &Plan) {
    static OF_SUMS: Once = Once::new();
    static OF_TENSOR_CORES: Once = Once::new();
    if plan.backend() != Backend::Cuda {
        return;
    }
    if options.half_scores && plan.certificate_of(Backend::Cuda).executed.half_chain == 0 {
        OF_SUMS.call_once(|| {
            log::warn!("--half-scores has no effect: no kernel sums in f16 for this type and head size");
        });
    }
    if options.tensor_cores != TensorCores::Off && !plan.on_tensor_cores(Backend::Cuda) {
        OF_TENSOR_CORES.call_once(|| {
            log::warn!(
                "--tensor-cores has no effect: f32 products are faster, or Tensor Cores cannot compute this"
            );
        });
    } else if options.tensor_cores == TensorCores::F16
        && !plan.certificate_of(Backend::Cuda).executed.one_product
    {
        OF_TENSOR_CORES.call_once(|| {
            log::warn!(
                "--tensor-cores f16 is computed as `always`: no kernel takes one f16 product for this"
            );
        });
    }
}
