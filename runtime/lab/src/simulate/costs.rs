//! Costs of attention on a machine: fits, their origin, and the measurements that they were made from.

use crate::model::{Bytes, FitError, Sample, Seconds};
use serde::Serialize;

/// Number of bytes in a GiB.
pub const GIB: f64 = 1_073_741_824.0;

/// Origin of costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Numbers from a publication.
    Published,
    /// Measurements of this library.
    Measured,
    /// Calculation from the data sheet of a machine that was not measured.
    Predicted,
}

impl Origin {
    /// Returns the name of the origin.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Origin::Published => "published",
            Origin::Measured => "measured",
            Origin::Predicted => "predicted",
        }
    }
}

/// Costs of the forward or the backward pass.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Seconds per call as a function of the number of tokens.
    pub time: Seconds,
    /// Bytes per call as a function of the number of tokens.
    pub memory: Bytes,
    /// Two errors: the largest relative error of the fitted seconds, and that of the fitted bytes, each over the
    /// samples of its fit.
    pub worst: Option<[f64; 2]>,
    /// Samples of the measured seconds to which the time was fitted.
    pub times: Vec<Sample>,
    /// The fits as a publication prints them. Their values may be negative.
    pub printed: Option<(Seconds, Bytes)>,
}

impl Pass {
    /// Fits the costs of a pass. `times` contains pairs of a number of tokens and seconds, and `bytes` pairs of a
    /// number of tokens and bytes.
    ///
    /// # Errors
    /// Returns an error if there are too few sizes, or if a number is not positive.
    pub fn fitted(times: &[[f64; 2]], bytes: &[[f64; 2]]) -> Result<Pass, FitError> {
        let samples = |all: &[[f64; 2]]| -> Vec<Sample> {
            all.iter().map(|&[tokens, value]| Sample { tokens, value }).collect()
        };
        let times = samples(times);
        let (time, of_time) = Seconds::fitted(&times)?;
        let (memory, of_memory) = Bytes::fitted(&samples(bytes))?;
        Ok(Pass { time, memory, worst: Some([of_time.worst, of_memory.worst]), times, printed: None })
    }
}

/// Costs of attention on a machine, for one number of heads, head size and element type.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Name that `--board` accepts.
    pub name: String,
    /// Description of the machine.
    pub title: String,
    /// Kind of source that the numbers come from.
    pub origin: Origin,
    /// Description of the source.
    pub source: String,
    /// Number of heads per call.
    pub heads: usize,
    /// Head size.
    pub dim: usize,
    /// Bytes per element.
    pub element: usize,
    /// Memory of the machine in bytes, if known.
    pub limit: Option<f64>,
    /// Costs of the forward pass.
    pub forward: Pass,
    /// Costs of the backward pass, if known.
    pub backward: Option<Pass>,
}

impl Costs {
    /// Iterates over the passes, each with its name and costs. The forward pass comes first. The backward pass follows
    /// if `backward` is set and the costs of that pass are known.
    pub fn passes(&self, backward: bool) -> impl Iterator<Item = (&'static str, &Pass)> {
        let backward = self.backward.as_ref().filter(|_| backward).map(|pass| ("backward", pass));
        std::iter::once(("forward", &self.forward)).chain(backward)
    }
}
