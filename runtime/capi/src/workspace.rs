//! Workspaces: the scratch memory of runs, for one call at a time.

use crate::fault::{Fault, call};
use crate::objects::{AnyWorkspace, PLANS, WORKSPACES, lock};
use crate::pointer::{aligned, put};
use crate::types::*;
use elsa_runtime::{PlanError, Trust};
use std::ffi::c_void;
use std::slice;
use std::sync::{Arc, Mutex};

/// Stores a workspace and writes its handle.
///
/// # Safety
/// The caller keeps the crate's clause *write*.
unsafe fn hand_out(made: AnyWorkspace, workspace: *mut elsa_workspace) -> Result<(), Fault> {
    let id = WORKSPACES.insert(Arc::new(Mutex::new(made)))?;
    // SAFETY: the caller keeps the clause *write*.
    unsafe { put(workspace, elsa_workspace { id }) };
    Ok(())
}

/// Allocates the scratch memory for runs of a plan. Only one call at a time may use it; a concurrent second
/// call returns ELSA_STATUS_BUSY.
///
/// # Safety
/// Each pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_workspace_create(
    plan: elsa_plan,
    workspace: *mut elsa_workspace,
) -> elsa_status {
    call(|| {
        aligned("workspace", workspace)?;
        let plan = PLANS.get(plan.id)?;
        let made = plan.shared(slice::from_ref(&plan))?;
        // SAFETY: the caller guarantees *write*.
        unsafe { hand_out(made, workspace) }
    })
}

/// Allocates one workspace for several plans, sized for the most demanding of them. Runs and bound calls of any of
/// these plans may use it, one at a time. Any other plan may use it too, under two conditions: its workspace_bytes do
/// not exceed those of the most demanding plan, and its engine has the same GPU as the engine of these plans, or
/// neither engine has a GPU. A plan that needs more is rejected when it runs or binds. If a GPU also needs host memory,
/// the first call that needs it allocates it. Plans that compute on a GPU must belong to one engine.
///
/// # Safety
/// `plans` is null or valid for reads of `count` handles, and nothing writes there during the call (*read*). The output
/// pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_workspace_create_shared(
    plans: *const elsa_plan,
    count: usize,
    workspace: *mut elsa_workspace,
) -> elsa_status {
    call(|| {
        aligned("workspace", workspace)?;
        aligned("plans", plans)?;
        if count > isize::MAX as usize / size_of::<elsa_plan>() {
            return Err(Fault::argument(format_args!("count: {count}; allowed: that of plans")));
        }
        // SAFETY: the pointer is not null and is aligned, and the caller guarantees *read*.
        let handles = unsafe { slice::from_raw_parts(plans, count) };
        let plans = handles.iter().map(|plan| PLANS.get(plan.id)).collect::<Result<Vec<_>, _>>()?;
        let made = plans.first().ok_or(PlanError::NoPlan)?.shared(&plans)?;
        // SAFETY: the caller guarantees *write*.
        unsafe { hand_out(made, workspace) }
    })
}

/// Creates a workspace in memory of the caller, which must have at least the workspace_bytes of the plan's
/// elsa_plan_info, with any alignment. The first workspace_bytes of the memory are cleared and used; any further bytes
/// are not touched. The memory must stay valid, and nothing else may use it, until the handle is destroyed and no call
/// or bound call uses it any longer. For GPU plans it returns ELSA_STATUS_UNSUPPORTED.
///
/// # Safety
/// Each output pointer is null or valid for writes, and nothing else uses that memory during the call (*write*). The
/// memory has `bytes` writable bytes for as long as stated above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_workspace_create_in(
    plan: elsa_plan,
    memory: *mut c_void,
    bytes: usize,
    workspace: *mut elsa_workspace,
) -> elsa_status {
    call(|| {
        aligned("workspace", workspace)?;
        let plan = PLANS.get(plan.id)?;
        // SAFETY: the caller guarantees the clause on memory, and *write*.
        unsafe { hand_out(plan.workspace_in(memory.cast(), bytes)?, workspace) }
    })
}

/// Creates a workspace in GPU memory of the caller, which must be aligned to 256 bytes and have at least the
/// workspace_bytes of the plan's elsa_plan_info, or state_workspace_bytes for runs that output states or omit out. For
/// a plan that needs none, pass null with 0 bytes. elsa_run_device with this workspace allocates no GPU memory;
/// elsa_run does, for the tensors that it copies. The memory must stay valid, and nothing else may use it, until the
/// handle is destroyed and no call or bound call uses it any longer; destroying the handle then waits for enqueued
/// work.
///
/// If an error destroys the context, the memory is lost with it: calls return ELSA_STATUS_DEVICE, or the CPU finishes
/// them, until another workspace is created. For CPU plans it returns ELSA_STATUS_UNSUPPORTED.
///
/// # Safety
/// Each output pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
/// `device_memory` is an allocation of at least `bytes` bytes on the plan's device for as long as stated above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_workspace_create_on_device(
    plan: elsa_plan,
    device_memory: *mut c_void,
    bytes: usize,
    workspace: *mut elsa_workspace,
) -> elsa_status {
    call(|| {
        aligned("workspace", workspace)?;
        let (plan, address) = (PLANS.get(plan.id)?, device_memory.addr() as u64);
        // SAFETY: the caller guarantees the clause on memory, and *write*.
        unsafe { hand_out(plan.workspace_on_device(address, bytes)?, workspace) }
    })
}

/// States what is true of all later calls that run this workspace on tensors in GPU memory: flags of ELSA_TRUST_*, which
/// replace earlier ones; 0 at first. The library does not ask the driver about these facts, which takes time for every
/// tensor of every call. If a stated fact is false, a call reads or writes memory that is not the tensor's. Facts that
/// are not stated are checked, and so are alignment, sizes and overlap. Other calls and the results do not change.
///
/// With ELSA_TRUST_ADDRESSES, the workspace keeps what its last 128 different calls without lists have prepared. Another
/// call with the same plan and structs that differ at most in the addresses of tensors then only launches the kernels.
///
/// # Safety
/// The stated facts are true of every such call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_workspace_trust(workspace: elsa_workspace, trust: elsa_trust) -> elsa_status {
    call(|| {
        let workspace = WORKSPACES.get(workspace.id)?;
        if trust & !(ELSA_TRUST_ADDRESSES | ELSA_TRUST_STREAMS) != 0 {
            return Err(Fault::argument(format_args!("trust: {trust}; allowed: flags of ELSA_TRUST_*")));
        }
        let has = |flag| trust & flag != 0;
        lock(&workspace)?.trust =
            Trust::default().addresses(has(ELSA_TRUST_ADDRESSES)).streams(has(ELSA_TRUST_STREAMS));
        Ok(())
    })
}

/// Warms up a plan by running it over internal zero tensors, so that its first run in this workspace takes as long as
/// later ones and allocates nothing. The warm-up loads and launches the kernels of every kind of run, allocates GPU
/// memory for copies of tensors and states (even if later tensors need no copy), and wakes the threads. It takes the
/// time of one or two runs, and temporarily allocates tensors like those of a run. It does not access the caller's
/// tensors.
///
/// If a GPU fails during the warm-up and the policy is ELSA_FALLBACK_CPU, the CPU takes its place, as in a run; reports
/// of later runs name the back end that computed. For a workspace in GPU memory of the caller, the warm-up prepares
/// elsa_run_device and then frees the memory for copies.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_plan_warm(plan: elsa_plan, workspace: elsa_workspace) -> elsa_status {
    call(|| {
        let (plan, workspace) = (PLANS.get(plan.id)?, WORKSPACES.get(workspace.id)?);
        let mut workspace = lock(&workspace)?;
        plan.warm(&mut workspace)
    })
}

/// Destroys the handle of a workspace. Its memory is freed once no call and no bound call uses it.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_workspace_destroy(workspace: elsa_workspace) -> elsa_status {
    call(|| WORKSPACES.remove(workspace.id).map(drop))
}
