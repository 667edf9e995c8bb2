//! Costs of a machine's attention: fits, their origin, and the measurements behind them.

use crate::model::{Bytes, FitError, Sample, Seconds};
use serde::Serialize;

/// Bytes of a GiB.
pub const GIB: f64 = 1_073_741_824.0;

/// Origin of costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Numbers of a publication.
    Published,
    /// Measurements of this library.
    Measured,
    /// Arithmetic from the data sheet of an unmeasured machine.
    Predicted,
}

impl Origin {
    /// Returns its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Origin::Published => "published",
            Origin::Measured => "measured",
            Origin::Predicted => "predicted",
        }
    }
}

/// Costs of a pass.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Seconds of a call.
    pub time: Seconds,
    /// Bytes of a call.
    pub memory: Bytes,
    /// The greatest relative error of both fits at their own samples.
    pub worst: Option<[f64; 2]>,
    /// Seconds that were measured.
    pub times: Vec<Sample>,
    /// The fits as a publication prints them, which may be negative.
    pub printed: Option<(Seconds, Bytes)>,
}

impl Pass {
    /// Fits a pass to seconds and bytes by tokens.
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

/// Costs of a machine, for tensors of one kind.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Name in `--board`.
    pub name: String,
    /// The machine.
    pub title: String,
    /// Origin and method of the numbers.
    pub origin: Origin,
    /// The source in words.
    pub source: String,
    /// Heads of a call.
    pub heads: usize,
    /// Size of a head.
    pub dim: usize,
    /// Bytes of an element.
    pub element: usize,
    /// Memory of the machine, where it is known.
    pub limit: Option<f64>,
    /// The forward pass.
    pub forward: Pass,
    /// The backward pass, where it is known.
    pub backward: Option<Pass>,
}

impl Costs {
    /// Iterates over the requested passes and their names.
    pub fn passes(&self, backward: bool) -> impl Iterator<Item = (&'static str, &Pass)> {
        let backward = self.backward.as_ref().filter(|_| backward).map(|pass| ("backward", pass));
        std::iter::once(("forward", &self.forward)).chain(backward)
    }
}
