//! The flags of schedules and error budgets.

use super::values::{number, one_of};
use crate::error::Error;
use clap::Args;
use elsa_core::attention::traversal::{Schedule, Skip};
use elsa_runtime::PlanOptions;

/// Schedules by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// Blocks are processed in order, references are updated with each block, and no block is skipped.
    Exact,
    /// References are frozen.
    Vfa,
    /// References are frozen, and blocks below the threshold λ are skipped.
    Vsa,
}

/// Values of `--schedule`. The first is the default.
const SCHEDULES: [(&str, Named); 3] = [("exact", Named::Exact), ("vfa", Named::Vfa), ("vsa", Named::Vsa)];

/// Order of the keys, and permission to skip blocks.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Schedules")]
pub struct TraversalArgs {
    /// Skip blocks of keys while every row keeps all but the share E of its weights. An element is then off by at most
    /// E times the spread of its values, plus rounding; the share that each run skipped is printed
    #[arg(long, value_name = "E", allow_hyphen_values = true, value_parser = number)]
    pub error_budget: Option<f32>,
    /// Traversal of the keys. vfa freezes references and recomputes rows that leave the safe range; vsa also skips
    /// blocks whose largest score is below lambda times the reference's weight, which bounds no error in advance. Both
    /// run on the CPU
    #[arg(long, default_value = SCHEDULES[0].0, value_parser = one_of(SCHEDULES))]
    pub schedule: Named,
    /// Threshold of --schedule vsa, between 0 and 1 [default: 0.001]
    #[arg(long, value_name = "L", allow_hyphen_values = true, value_parser = number)]
    pub lambda: Option<f32>,
    /// Update a reference only if a score exceeds it by more than this many bits, 0 to 8 [default: 8, of vfa and vsa 0]
    #[arg(long, value_name = "TAU", allow_hyphen_values = true, value_parser = number)]
    pub rescale_threshold: Option<f32>,
    /// Use zero as the reference of all rows of a tile if the norms of its queries and keys prove that every score
    /// stays near it. Runs on the CPU
    #[arg(long)]
    pub norm_gate: bool,
}

/// Builds the error for a flag that excludes the flag `other`.
fn conflict(argument: &'static str, other: &str) -> Error {
    let found = format!("given with --{other}");
    Error::Argument { argument, found, allowed: "one of the two".into() }
}

impl TraversalArgs {
    /// Returns the first flag that requests a schedule other than the exact one.
    fn given(&self) -> Option<&'static str> {
        let flags = [
            ("error-budget", self.error_budget.is_some()),
            ("schedule", self.schedule != Named::Exact),
            ("lambda", self.lambda.is_some()),
            ("rescale-threshold", self.rescale_threshold.is_some()),
            ("norm-gate", self.norm_gate),
        ];
        flags.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }

    /// Checks that the flag `other` is not combined with a flag that requests a schedule other than the exact one.
    /// `is_given` is `true` if `other` is given.
    ///
    /// # Errors
    /// Returns an error that names the flag that conflicts with `other`.
    pub fn excluded_by(&self, other: &str, is_given: bool) -> Result<(), Error> {
        match self.given() {
            Some(argument) if is_given => Err(conflict(argument, other)),
            _ => Ok(()),
        }
    }

    /// Adds the schedule and the error budget to `options`.
    ///
    /// # Errors
    /// Returns an error if a number is out of bounds or two flags exclude each other.
    pub fn options(&self, options: PlanOptions) -> Result<PlanOptions, Error> {
        let mut schedule = match self.schedule {
            Named::Exact => Schedule::EXACT,
            Named::Vfa => Schedule::VFA,
            Named::Vsa => Schedule::vsa(self.lambda.unwrap_or(Schedule::LAMBDA)),
        };
        if self.lambda.is_some() && self.schedule != Named::Vsa {
            let (found, allowed) = ("given without --schedule vsa".into(), "with --schedule vsa".into());
            return Err(Error::Argument { argument: "lambda", found, allowed });
        }
        if let Some(threshold) = self.rescale_threshold {
            schedule.threshold = threshold;
        }
        schedule.gate = self.norm_gate;
        if schedule.gate && self.schedule == Named::Vsa {
            return Err(conflict("norm-gate", "schedule vsa"));
        }
        if let Some(budget) = self.error_budget {
            if self.schedule == Named::Vsa {
                return Err(conflict("error-budget", "schedule vsa"));
            }
            schedule.skip = Skip::Budget(budget);
        }
        schedule.check().map_err(|e| Error::Problem(e.renamed(crate::flag::flag)))?;
        // The plan also knows the budget by its name.
        schedule.skip = if self.error_budget.is_some() { Skip::Never } else { schedule.skip };
        Ok(options.schedule(schedule).error_budget(self.error_budget))
    }
}
