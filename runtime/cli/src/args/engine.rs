//! The flags of an engine and its plans.

use super::values::{bytes, one_of, ordinal, positive};
use crate::error::Error;
use clap::Args;
use elsa_core::attention::plan::BLOCK_SIZES;
use elsa_runtime::{Backend, CudaOptions, Engine, EngineOptions, Fallback, PlanOptions};

/// Values of `--fallback`. The first is the default.
const FALLBACKS: [(&str, Fallback); 2] = [("cpu", Fallback::Cpu), ("fail", Fallback::Fail)];

/// What computes, and how.
#[derive(Args, Debug, Clone)]
pub struct EngineArgs {
    /// What computes. auto takes the environment variable ELSA_BACKEND if it is set, else the best that is present
    #[arg(long, default_value = BackendFlag::AUTO, value_parser = one_of(BackendFlag::values()))]
    pub backend: BackendFlag,
    /// If the GPU is missing or fails: the CPU finishes the call, or the call fails
    #[arg(long, default_value = FALLBACKS[0].0, value_parser = one_of(FALLBACKS))]
    pub fallback: Fallback,
    /// Number of the GPU, as its driver counts
    #[arg(long, value_name = "N", default_value = "0", allow_negative_numbers = true, value_parser = ordinal)]
    pub device: usize,
    /// Worker threads [default: all cores]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = positive)]
    pub threads: Option<usize>,
    /// Hard limit of the workspace: bytes, or a number of KiB, MiB or GiB
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes)]
    pub budget: Option<usize>,
    /// Keys of a block
    #[arg(long, default_value_t = PlanOptions::default().block,
        value_parser = one_of(BLOCK_SIZES.map(|block| (block.to_string(), block))))]
    pub block: usize,
    /// Let a GPU sum short chains of products of f16 inputs in f16. This is faster and less exact; `elsa verify`
    /// reports by how much
    #[arg(long)]
    pub half_scores: bool,
}

/// The back end that `--backend` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendFlag {
    /// That of the environment, or the best present.
    Auto,
    /// This one.
    Forced(Backend),
}

impl BackendFlag {
    const AUTO: &str = "auto";

    /// Every value with its name, the most portable back end first.
    fn values() -> impl Iterator<Item = (&'static str, BackendFlag)> {
        let forced =
            Backend::ALL.into_iter().rev().map(|backend| (backend.name(), BackendFlag::Forced(backend)));
        [(BackendFlag::AUTO, BackendFlag::Auto)].into_iter().chain(forced)
    }

    /// Whether this machine and this build allow it. A GPU may be absent: `--fallback` decides then.
    fn is_allowed(self) -> bool {
        match self {
            BackendFlag::Auto | BackendFlag::Forced(Backend::Cuda) => true,
            BackendFlag::Forced(backend) => backend.is_present(),
        }
    }
}

impl EngineArgs {
    /// The requested engine.
    ///
    /// # Errors
    /// A back end that is absent, a number of threads out of bounds.
    pub fn engine(&self) -> Result<Engine, Error> {
        let backend = match self.backend {
            BackendFlag::Auto => None,
            BackendFlag::Forced(backend) => Some(backend),
        };
        if let Some(backend) = backend
            && !self.backend.is_allowed()
        {
            let allowed = BackendFlag::values().filter(|(_, flag)| flag.is_allowed()).map(|(name, _)| name);
            return Err(Error::Argument {
                argument: "backend",
                found: format!("{backend}, which this machine or build does not have"),
                allowed: allowed.collect::<Vec<_>>().join(", "),
            });
        }
        let options = EngineOptions {
            backend,
            threads: self.threads,
            fallback: self.fallback,
            cuda: CudaOptions { device: self.device, ..CudaOptions::default() },
        };
        Ok(Engine::new(&options)?)
    }

    /// The requested options of a plan.
    #[must_use]
    pub fn plan_options(&self) -> PlanOptions {
        PlanOptions {
            block: self.block,
            budget: self.budget,
            half_scores: self.half_scores,
            ..PlanOptions::default()
        }
    }
}
