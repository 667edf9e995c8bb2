//! Places threads: sets their names, cores and priority.

use crate::error::PlanError;
use elsa_core::argument::ArgumentError;

/// Number of cores that a Linux CPU set can represent (`CPU_SETSIZE`).
const MAX_CORES: usize = 1024;
/// Range of the priorities of `SCHED_FIFO`.
const PRIORITIES: std::ops::RangeInclusive<u8> = 1..=99;
/// First part of the names of worker threads, unless the options specify another.
const NAME: &str = "elsa";
/// Largest length of the first part of a name, in bytes. Linux keeps 15 bytes of a name. At most 5 of them are the
/// hyphen and the number of the worker.
const MAX_NAME: usize = 10;

/// Pins the calling thread to a core, and gives it a priority under `SCHED_FIFO`, on Linux. `None` leaves the property
/// unchanged. Threads that the calling thread starts later inherit both.
///
/// A loop calls this function for its own thread, which computes the share of worker zero.
/// [`EngineOptions`](crate::EngineOptions) has the same options for the worker threads.
///
/// ```no_run
/// # use elsa_runtime::{Engine, EngineOptions, place_thread};
/// let options = EngineOptions::default().threads(2).thread_name("vision".to_owned()).cores(vec![3]).priority(20);
/// let engine = Engine::new(&options)?;
/// place_thread(Some(2), Some(20))?;
/// # Ok::<(), elsa_runtime::PlanError>(())
/// ```
///
/// # Errors
/// Returns an error if the core or the priority is out of range, if the system refuses it, or if this system is not
/// Linux. If only the priority is refused, the thread is pinned already.
pub fn place_thread(core: Option<usize>, priority: Option<u8>) -> Result<(), PlanError> {
    Placement::new(None, core.as_slice(), priority)?.apply(1)
}

/// The first part of the names, the cores and the priority of worker threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    name: Option<String>,
    cores: Vec<usize>,
    priority: Option<u8>,
}

impl Placement {
    /// Checks the name, cores and priority.
    ///
    /// # Errors
    /// Returns an error if the name has a forbidden length or character, if a core or the priority is out of range, or
    /// if this system does not support cores or priorities.
    pub fn new(name: Option<&str>, cores: &[usize], priority: Option<u8>) -> Result<Placement, PlanError> {
        let fits = |name: &&str| {
            (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if let Some(name) = name.filter(|name| !fits(name)) {
            return Err(PlanError::ThreadName { found: name.to_owned(), max: MAX_NAME });
        }
        if let Some(&found) = cores.iter().find(|core| **core >= MAX_CORES) {
            return Err(PlanError::CoreRange { found, max: MAX_CORES });
        }
        if let Some(found) = priority.filter(|priority| !PRIORITIES.contains(priority)) {
            let (argument, found, max) = ("priority", found.into(), (*PRIORITIES.end()).into());
            return Err(ArgumentError::Count { argument, found, min: 1, max }.into());
        }
        let placement = Placement { name: name.map(str::to_owned), cores: cores.to_vec(), priority };
        if let (Some(option), false) = (placement.granted(), cfg!(target_os = "linux")) {
            return Err(PlanError::Placement { option });
        }
        Ok(placement)
    }

    /// Returns the name of an option that is set: `cores`, `priority` or `thread_name`. Returns `None` if no option is
    /// set.
    pub fn option(&self) -> Option<&'static str> {
        self.granted().or(self.name.is_some().then_some("thread_name"))
    }

    /// Returns the name of an option that is set and that the system may refuse: `cores` or `priority`. Returns `None`
    /// if neither option is set.
    pub fn granted(&self) -> Option<&'static str> {
        match (self.cores.is_empty(), self.priority) {
            (false, _) => Some("cores"),
            (true, Some(_)) => Some("priority"),
            (true, None) => None,
        }
    }

    /// Returns the name of worker thread number `index`, counted from one.
    pub fn thread_name(&self, index: usize) -> String {
        format!("{}-{index}", self.name.as_deref().unwrap_or(NAME))
    }

    /// Sets the core and the priority of the calling thread, if the placement specifies them. The calling thread is
    /// worker thread number `index`, counted from one.
    ///
    /// # Errors
    /// Returns an error if the system refuses the core or the priority.
    pub fn apply(&self, index: usize) -> Result<(), PlanError> {
        if !self.cores.is_empty() {
            let core = self.cores[(index - 1) % self.cores.len()];
            system::pin(core).map_err(|reason| PlanError::Core { found: core, reason })?;
        }
        match self.priority {
            Some(found) => system::urge(found).map_err(|reason| PlanError::Priority { found, reason }),
            None => Ok(()),
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::io;

    /// Pins the calling thread to a core below `CPU_SETSIZE`.
    pub fn pin(core: usize) -> Result<(), String> {
        // SAFETY: a set of cores is an array of integers, so zero bytes are a valid set. The set has a bit for the
        // core, and the call reads a set of the given size.
        let failed = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set) != 0
        };
        if failed { Err(io::Error::last_os_error().to_string()) } else { Ok(()) }
    }

    /// Sets the priority of the calling thread under `SCHED_FIFO`.
    pub fn urge(priority: u8) -> Result<(), String> {
        // SAFETY: the parameters are integers, so zero bytes are valid parameters, and the call only reads them.
        let code = unsafe {
            let mut parameters: libc::sched_param = std::mem::zeroed();
            parameters.sched_priority = i32::from(priority);
            libc::pthread_setschedparam(libc::pthread_self(), libc::SCHED_FIFO, &raw const parameters)
        };
        if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code).to_string()) }
    }
}

/// Stand-ins on systems other than Linux, where [`Placement::new`] rejects cores and priorities before these functions
/// are called.
#[cfg(not(target_os = "linux"))]
mod system {
    pub fn pin(_: usize) -> Result<(), String> {
        Err("only on Linux".to_owned())
    }

    pub fn urge(_: u8) -> Result<(), String> {
        Err("only on Linux".to_owned())
    }
}
