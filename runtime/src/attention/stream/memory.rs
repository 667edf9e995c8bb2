//! The memory of a streamed run.

use super::error::StreamError;
use super::plan::StreamPlan;
use super::regions::Regions;
use crate::attention::cpu::resident::Resident;
use crate::cpu::limits::available_memory;
use crate::cpu::memory::Bytes;
use elsa_core::attention::plan::{Account, Part};

/// Number of bytes that must remain for the process after the memory of a run has been allocated: for the stack of the
/// reading thread, and for library allocations whose failure cannot be returned as an error. The account counts this
/// number among the fixed bytes.
const SPARE: u64 = 1 << 20;

/// The memory of a streamed run. It consists of the memory of one unit and of two buffers for chunks.
#[derive(Debug)]
pub struct StreamMemory {
    pub resident: Resident,
    pub buffers: [Bytes; 2],
    /// Room for the measurements of a run that certifies.
    pub record: Vec<f32>,
}

/// Returns the number of bytes that a run with this account allocates.
pub fn allocated(account: &Account) -> usize {
    account.host().saturating_sub(account.of(Part::Fixed))
}

impl StreamMemory {
    /// Allocates all memory, then writes to it once, so that the system maps every page. If an allocation is refused,
    /// no page has been mapped.
    ///
    /// # Errors
    /// Returns an error if the system refuses memory, or if the allocation would leave the process too little memory
    /// for other purposes.
    pub fn new(plan: &StreamPlan) -> Result<StreamMemory, StreamError> {
        let StreamPlan { problem, choice, .. } = plan;
        let regions = Regions::new(problem, choice, plan.written)?;
        let refused = || StreamError::Memory { bytes: allocated(&choice.account) };
        let [Some(one), Some(two)] = [regions.chunk; 2].map(Bytes::zeroed) else { return Err(refused()) };
        let (rows, table) = (regions.rows, choice.table_bytes(problem));
        let resident = Resident::new(&plan.cpu, rows, table, choice.sequences).ok_or_else(refused)?;
        let (mut record, numbers) = (Vec::new(), plan.cpu.layout.measured.len);
        record.try_reserve_exact(numbers).map_err(|_| refused())?;
        record.resize(numbers, 0.0);
        let mut memory = StreamMemory { resident, buffers: [one, two], record };
        memory.resident.touch();
        memory.buffers.iter_mut().for_each(Bytes::touch);
        if available_memory().is_some_and(|available| available.bytes < SPARE) {
            return Err(refused());
        }
        Ok(memory)
    }
}
