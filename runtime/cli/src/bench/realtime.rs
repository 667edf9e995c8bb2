//! Flags that keep a soak on time on a busy machine: cores, a real-time priority, and memory that is never paged out.

use crate::args::values::ordinal;
use crate::error::Error;
use clap::Args;
use elsa_runtime::{EngineOptions, place_thread};
use rustix::mm::{MlockAllFlags, mlockall};

/// Real time.
#[derive(Args, Debug, Clone)]
pub struct RealTimeArgs {
    /// Cores of --soak, such as 2,3: the loop runs on the first, worker threads on the following ones and then again on the first
    #[arg(long, value_name = "CORES", value_delimiter = ',', allow_negative_numbers = true,
        value_parser = ordinal::<usize>, requires = "soak")]
    pub cores: Vec<usize>,
    /// Real-time priority of the loop and the worker threads of --soak, policy SCHED_FIFO, 1 to 99
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = ordinal::<u8>, requires = "soak")]
    pub priority: Option<u8>,
    /// Lock the memory of --soak, so that the system never pages it out
    #[arg(long, requires = "soak")]
    pub lock_memory: bool,
}

impl RealTimeArgs {
    /// Returns options of an engine whose worker threads have these cores and this priority.
    #[must_use]
    pub fn options(&self) -> EngineOptions {
        let mut cores = self.cores.clone();
        // The first core is that of the loop, and worker thread 1 runs on the first core of the engine's list.
        if !cores.is_empty() {
            cores.rotate_left(1);
        }
        EngineOptions::default().cores(cores).priority(self.priority)
    }

    /// Places the calling thread, which runs the loop, and locks the current memory of the process.
    ///
    /// # Errors
    /// Returns an error if the system refuses the core, the priority or the lock.
    pub fn begin(&self) -> Result<(), Error> {
        place_thread(self.cores.first().copied(), self.priority)?;
        if self.lock_memory {
            mlockall(MlockAllFlags::CURRENT).map_err(|e| Error::Lock { reason: e.to_string() })?;
        }
        Ok(())
    }

    /// Tries the requested placement and lock on a thread of its own, so that a refusal is reported before anything is
    /// written.
    ///
    /// # Errors
    /// Returns the errors of [`RealTimeArgs::begin`].
    pub fn check(&self) -> Result<(), Error> {
        if self.cores.is_empty() && self.priority.is_none() && !self.lock_memory {
            return Ok(());
        }
        std::thread::scope(|scope| scope.spawn(|| self.begin()).join()).unwrap_or(Ok(()))
    }
}
