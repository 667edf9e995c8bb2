//! Bound calls of any operator: their runs and their ends.

use crate::fault::call;
use crate::growing::Room;
use crate::objects::BOUND_CALLS;
use crate::types::*;

/// Runs a bound call. After the first run of its plan, nothing is allocated. The report may be null.
///
/// # Safety
/// The report is null or valid for writes, and nothing else uses it during the call (*write*). The memory of the
/// tensors is as elsa_bind, or the function that bound them for another operator, requires (*tensors*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_bound_run(bound: elsa_bound, report: *mut elsa_report) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clause *write*.
        let room = unsafe { Room::optional("report", report) }?;
        // SAFETY: the caller keeps the clause *tensors* of the function that bound the tensors.
        unsafe { BOUND_CALLS.get(bound.id)?.run(room) }
    })
}

/// Destroys the handle of a bound call.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_bound_destroy(bound: elsa_bound) -> elsa_status {
    call(|| BOUND_CALLS.remove(bound.id).map(drop))
}
