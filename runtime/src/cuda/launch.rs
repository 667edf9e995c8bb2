//! Lists the launches of a run: kernels, their parameters and their grids.
//!
//! A run enqueues up to five kinds of work. All but the last are in one stream, in the order of this list:
//!
//! 1. *The table* of the workspace, such as the table of sequences, is copied to the device if the list requests it.
//!    The operator has written the table on the host. Before writing, the operator waited until an earlier run had
//!    finished copying the table ([`GpuWorkspace::open_table`]).
//! 2. *Words* of the workspace are set to a value if the list requests it.
//! 3. *The kernels before the fork*.
//! 4. *The kernels after the fork*. Outside a capture, one kernel may replace the last of them. That kernel needs counters in the
//!    workspace that are zero. They are set once, and every kernel leaves them at zero.
//! 5. *A concurrent kernel* in a separate stream. It begins at the fork, and the run's stream waits for it at the end.
//!    It uses the SMs that the other kernels leave idle.
//!
//! The list is built when tensors are bound. [`Launches::enqueue`] only passes it to the driver, so a run makes no
//! decision and allocates nothing. Parameters are stored in the list, one after another, with the layout that the
//! kernels expect. A workspace keeps the lists of calls that may repeat ([`super::kept`]).

use super::driver::{Context, Entered, Event, Function, RawStream, Stream};
use super::parameter::Parameter;
use crate::error::DeviceError;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{mem, slice};

/// The size of a launch: its number of thread blocks, and the number of threads per block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Number of thread blocks; a kernel with zero blocks is not launched.
    pub blocks: u32,
    /// Number of threads per block.
    pub threads: u32,
    /// Shared memory per block in addition to the kernel's own, in bytes.
    pub shared: u32,
}

impl Grid {
    /// Returns a launch of `blocks` blocks of `threads` threads, without additional shared memory.
    pub const fn new(blocks: u32, threads: u32) -> Grid {
        Grid { blocks, threads, shared: 0 }
    }
}

/// A kernel, its grid, and the position of its parameter.
#[derive(Debug)]
struct Kernel {
    function: Function,
    grid: Grid,
    parameter: usize,
}

/// Unit of the memory for parameters, which determines their alignment.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
struct Unit([u64; 2]);

/// Position of a parameter that is stored in [`Launches`]. Several kernels may use the same parameter.
#[derive(Clone, Copy, Debug)]
pub struct Stored(usize);

/// A stream for a concurrent kernel, with its events.
#[derive(Debug)]
pub struct Beside {
    pub stream: Stream,
    /// Event that is recorded when the inputs of the kernel are ready.
    pub inputs: Event,
    /// Event that is recorded after the kernel.
    pub done: Event,
}

impl Beside {
    /// Creates the stream and the events.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub fn new(context: &Arc<Context>) -> Result<Beside, DeviceError> {
        let (inputs, done) = (Event::new(context)?, Event::new(context)?);
        Ok(Beside { stream: Stream::new(context)?, inputs, done })
    }
}

/// The parts of a workspace that a run of a list uses, besides the memory whose addresses are in the parameters.
#[derive(Clone, Copy, Debug)]
pub struct Means<'a> {
    /// The table on the host.
    pub table: *const u8,
    /// Event that is recorded after the copy of the table.
    pub uploaded: &'a Event,
    /// Stream of the concurrent kernel; `None` if no plan of the workspace has one.
    pub beside: Option<&'a Beside>,
    /// `true` once the counters of the workspace are zero.
    pub counts: &'a AtomicBool,
}

/// A kernel that replaces the last kernels of a list, and its counters.
#[derive(Debug)]
struct Instead {
    kernel: Kernel,
    /// Number of kernels that it replaces.
    replaced: usize,
    /// Device address of the counters, and their number.
    counters: (u64, usize),
}

/// Kernels and copies that a run launches.
///
/// Invariant *parameters*: every kernel's parameter position is the position of a stored value.
#[derive(Debug, Default)]
pub struct Launches {
    /// Device address to which the table is copied, and the number of bytes to copy.
    table: (u64, usize),
    /// Device address of the words that are set, their number, and their value.
    filled: (u64, usize, u32),
    kernels: Vec<Kernel>,
    /// The concurrent kernel, and the number of kernels before the fork.
    beside: Option<(Kernel, usize)>,
    instead: Option<Instead>,
    parameters: Vec<Unit>,
    /// Number of thread blocks that share the work.
    blocks: usize,
}

impl Launches {
    /// Empties the list, and keeps its memory.
    pub fn clear(&mut self) {
        let Launches { mut kernels, mut parameters, .. } = mem::take(self);
        kernels.clear();
        parameters.clear();
        *self = Launches { kernels, parameters, ..Launches::default() };
    }

    /// Adds a copy to the list: before a run launches kernels, it copies the first `bytes` bytes of the workspace's
    /// table to the device address `to`.
    pub fn copy_table(&mut self, to: u64, bytes: usize) {
        self.table = (to, bytes);
    }

    /// Adds a step to the list: before a run launches kernels, it sets `words` 32-bit words at the device address `at` to
    /// `value`.
    pub fn fill(&mut self, at: u64, words: usize, value: u32) {
        self.filled = (at, words, value);
    }

    /// Stores a parameter in the list.
    ///
    /// # Errors
    /// Returns an error if memory is not available.
    pub fn store<P: Parameter>(&mut self, parameter: &P) -> Result<Stored, DeviceError> {
        const { assert!(align_of::<P>() <= align_of::<Unit>()) };
        let (start, units) = (self.parameters.len(), size_of::<P>().div_ceil(size_of::<Unit>()));
        let bytes = units * size_of::<Unit>();
        self.parameters.try_reserve(units).map_err(|_| DeviceError::HostMemory { bytes })?;
        self.parameters.resize(start + units, Unit([0; 2]));
        let room = self.parameters.as_mut_ptr().wrapping_add(start);
        // SAFETY: the units have the size of a `P` or more and are aligned for a `P`, which is whole words (*whole*).
        unsafe { room.cast::<P>().write(*parameter) };
        Ok(Stored(start))
    }

    /// Returns the words of all parameters.
    pub fn words(&self) -> &[u64] {
        // SAFETY: a unit is two words.
        unsafe { slice::from_raw_parts(self.parameters.as_ptr().cast(), self.parameters.len() * 2) }
    }

    /// Returns the words of all parameters.
    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: a unit is two words, and all words are valid.
        unsafe { slice::from_raw_parts_mut(self.parameters.as_mut_ptr().cast(), self.parameters.len() * 2) }
    }

    /// Returns `true` if the lists differ at most in their words.
    pub fn is_like(&self, other: &Launches) -> bool {
        let kernels = |list: &Launches| {
            let instead =
                list.instead.as_ref().map(|instead| (&instead.kernel, instead.replaced, instead.counters));
            let of = |kernel: &Kernel| (kernel.grid, kernel.parameter);
            (
                list.kernels.iter().map(of).collect::<Vec<_>>(),
                instead.map(|(kernel, n, at)| (of(kernel), n, at)),
            )
        };
        let plain =
            |list: &Launches| list.is_plain().then_some((list.filled, list.blocks, list.parameters.len()));
        plain(self).is_some() && plain(self) == plain(other) && kernels(self) == kernels(other)
    }

    /// Appends a kernel.
    ///
    /// # Errors
    /// Returns an error if memory is not available.
    ///
    /// # Safety
    /// - *parameter*: `parameter` is stored in this list, and has the type of the function's only parameter.
    pub unsafe fn push(
        &mut self,
        function: &Function,
        grid: Grid,
        parameter: Stored,
    ) -> Result<(), DeviceError> {
        let kernel = Kernel { function: function.clone(), grid, parameter: parameter.0 };
        self.kernels.try_reserve(1).map_err(|_| DeviceError::HostMemory { bytes: size_of::<Kernel>() })?;
        self.kernels.push(kernel);
        Ok(())
    }

    /// Adds the kernel that runs concurrently with the kernels appended after this call. A list has at most one such
    /// kernel.
    ///
    /// # Safety
    /// - *parameter*: the clause *parameter* of [`Launches::push`] holds.
    pub unsafe fn fork(&mut self, function: &Function, grid: Grid, parameter: Stored) {
        let kernel = Kernel { function: function.clone(), grid, parameter: parameter.0 };
        self.beside = Some((kernel, self.kernels.len()));
    }

    /// Adds a kernel that replaces the last `replaced` kernels of the list, unless the stream is being captured. Its
    /// `counters` are the device address and the number of 32-bit words in the workspace, which the run sets to zero if no
    /// earlier run did. In a capture the graph could not rely on that run.
    ///
    /// # Safety
    /// - *parameter*: the clause *parameter* of [`Launches::push`] holds.
    /// - *counters*: the kernel leaves the counters at zero, and no other work writes them.
    pub unsafe fn instead(
        &mut self,
        function: &Function,
        grid: Grid,
        parameter: Stored,
        replaced: usize,
        counters: (u64, usize),
    ) {
        let kernel = Kernel { function: function.clone(), grid, parameter: parameter.0 };
        self.instead = Some(Instead { kernel, replaced, counters });
    }

    /// Sets the number of thread blocks that share the work. The report of a run contains this number.
    pub fn shared_by(&mut self, blocks: usize) {
        self.blocks = blocks;
    }

    /// Returns the number of thread blocks that share the work.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Returns the number of kernels that a run launches outside a capture.
    #[cfg(test)]
    pub fn launched(&self) -> usize {
        self.kernels.len() - self.instead.as_ref().map_or(0, |instead| instead.replaced - 1)
    }

    /// Returns the number of table bytes that a run copies.
    pub fn table_bytes(&self) -> usize {
        self.table.1
    }

    /// Returns `true` if a run uses a single stream and reads no host memory.
    pub fn is_plain(&self) -> bool {
        self.table.1 == 0 && self.beside.is_none()
    }

    /// Enqueues the work of one run. `captured` is `true` if the stream is being captured.
    ///
    /// # Safety
    /// The clauses *room* and *alive* hold for every address in the parameters, including addresses in the workspace.
    /// The table of the workspace has been laid out and filled, both on the host and on the device.
    ///
    /// # Errors
    /// Returns the error that the driver reports.
    pub unsafe fn enqueue(
        &self,
        entered: &Entered<'_>,
        stream: RawStream,
        means: Means<'_>,
        captured: bool,
    ) -> Result<(), DeviceError> {
        let (to, bytes) = self.table;
        if bytes > 0 {
            // SAFETY: *room*: the caller guarantees it (clauses). *alive*: the workspace waits for `uploaded` before it
            // writes the table again, and for pending work before it is freed.
            unsafe { stream.copy_in(entered, to, means.table, bytes)? };
            means.uploaded.record(entered, stream)?;
        }
        let (at, words, value) = self.filled;
        if words > 0 {
            // SAFETY: the caller guarantees *room* and *alive* (clauses).
            unsafe { stream.fill(entered, at, words, value)? };
        }
        let instead = self.instead.as_ref().filter(|_| !captured);
        if let Some(Instead { counters: (at, words), .. }) = instead
            && !means.counts.load(Ordering::Relaxed)
        {
            // SAFETY: the caller guarantees *room* and *alive* (clauses).
            unsafe { stream.fill(entered, *at, *words, 0)? };
            means.counts.store(true, Ordering::Relaxed);
        }
        let kept = self.kernels.len() - instead.map_or(0, |instead| instead.replaced);
        let fork = self.beside.as_ref().map_or(kept, |(_, fork)| *fork);
        let (before, behind) = self.kernels[..kept].split_at(fork.min(kept));
        // SAFETY: the caller guarantees the clauses of this function.
        unsafe { self.launch(before, entered, stream)? };
        let beside = match &self.beside {
            Some((kernel, _)) => {
                let beside = means.beside.ok_or(DeviceError::NoKernel { role: "measuring" })?;
                beside.inputs.record(entered, stream)?;
                Some((kernel, beside))
            }
            None => None,
        };
        // SAFETY: the caller guarantees the clauses of this function.
        unsafe { self.launch(behind, entered, stream)? };
        if let Some(Instead { kernel, .. }) = instead {
            // SAFETY: the caller guarantees the clauses of this function; *counters* of `instead`.
            unsafe { self.launch(std::slice::from_ref(kernel), entered, stream)? };
        }
        let Some((kernel, beside)) = beside else { return Ok(()) };
        let own = beside.stream.raw();
        beside.inputs.precede(entered, own)?;
        // SAFETY: the caller guarantees the clauses of this function.
        unsafe { self.launch(std::slice::from_ref(kernel), entered, own)? };
        let joined = beside.done.record(entered, own).and_then(|()| beside.done.precede(entered, stream));
        if joined.is_err() && !captured {
            // The run's stream does not wait for the concurrent kernel, so this function waits for it.
            own.synchronize(entered)?;
        }
        joined
    }

    /// Enqueues `kernels`, which must be kernels of the list.
    ///
    /// # Safety
    /// The clauses of [`Launches::enqueue`] hold.
    unsafe fn launch(
        &self,
        kernels: &[Kernel],
        entered: &Entered<'_>,
        stream: RawStream,
    ) -> Result<(), DeviceError> {
        for Kernel { function, grid, parameter } in kernels.iter().filter(|kernel| kernel.grid.blocks > 0) {
            let parameter = self.parameters.as_ptr().wrapping_add(*parameter).cast::<c_void>();
            // SAFETY: the caller guarantees the clauses of this function; *parameter* of `push` and `fork`, and
            // *parameters*.
            unsafe { stream.launch(entered, function, [grid.blocks, grid.threads, grid.shared], parameter)? };
        }
        Ok(())
    }
}
