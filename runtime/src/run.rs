//! The bound plan and its run.

use crate::cpu::call::Call;
use crate::engine::{Backend, Engine};
use crate::error::RunError;

/// A plan with the tensors of a frame.
#[derive(Debug)]
pub struct Bound<'a> {
    engine: &'a Engine,
    call: Call<'a>,
}

/// What a run did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// What computed.
    pub backend: Backend,
    /// Workers among which it was divided.
    pub workers: usize,
}

impl<'a> Bound<'a> {
    pub(crate) fn new(engine: &'a Engine, call: Call<'a>) -> Bound<'a> {
        Bound { engine, call }
    }

    /// Computes the outputs. Nothing is allocated; the bits do not depend on threads, batch or repetition.
    ///
    /// # Errors
    /// A worker that panicked; the outputs are then incomplete.
    pub fn run(&mut self) -> Result<Report, RunError> {
        self.call.run(self.engine.pool())?;
        Ok(Report { backend: self.engine.backend(), workers: self.call.workers() })
    }
}
