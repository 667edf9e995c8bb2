//! Plans of any operator: their descriptions and their ends.

use crate::fault::call;
use crate::growing::Room;
use crate::objects::PLANS;
use crate::types::*;

/// Describes the choices of a plan and the bytes that it needs.
///
/// # Safety
/// Each pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_plan_describe(plan: elsa_plan, info: *mut elsa_plan_info) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clause *write*.
        let room = unsafe { Room::new("info", info) }?;
        room.fill(PLANS.get(plan.id)?.info());
        Ok(())
    })
}

/// Destroys the handle of a plan. Workspaces and bound calls created from it keep working.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_plan_destroy(plan: elsa_plan) -> elsa_status {
    call(|| PLANS.remove(plan.id).map(drop))
}
