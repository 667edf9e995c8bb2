//! Certificates of linear attention: bounds on the errors of a run, from its inputs.

use super::tensors;
use crate::convert;
use crate::fault::call;
use crate::growing::{Room, take};
use crate::objects::PLANS;
use crate::operator::plan_of;
use crate::pointer::aligned;
use crate::types::*;
use elsa_runtime::Linear;

/// Writes bounds on the errors of a run of linear attention over inputs in host memory. backend is the one in the report of
/// the run, or ELSA_BACKEND_AUTO for the plan's back end. If the problem is in place, past_state of the inputs must be a
/// copy of the states before the run, because the run overwrites them.
///
/// The calling thread computes the run and its bounds in f64, which takes far longer than the run, and allocates memory.
///
/// absolute receives one number for each channel of the output, at most count numbers: an upper bound on the error of every
/// element in the channel. absolute may be null if count is 0.
///
/// # Safety
/// inputs and the memory that it names are valid for reads, and nothing writes there during the call (*read*, *tensors*).
/// value is null or valid for writes, and nothing else uses it during the call (*write*); absolute is writable for count
/// numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_linear_certify(
    plan: elsa_plan,
    backend: elsa_backend,
    inputs: *const elsa_linear_inputs,
    value: *mut elsa_linear_certified,
    absolute: *mut f64,
    count: usize,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clauses *read* and *write*.
        let (room, inputs) = unsafe { (Room::new("value", value)?, take("inputs", inputs)?) };
        if count > 0 {
            aligned("absolute", absolute)?;
        }
        let plan = PLANS.get(plan.id)?;
        let plan = &plan_of::<Linear>(&*plan)?.plan;
        let backend = convert::backend(backend)?.unwrap_or(plan.backend());
        // SAFETY: the caller keeps the clause *tensors*.
        let inputs = unsafe { tensors::inputs(&plan.problem().out_of_place(), &inputs) }?;
        let found = plan.certificate(backend, &inputs)?;
        for (channel, bound) in found.channels.iter().take(count).enumerate() {
            // SAFETY: absolute is writable for count numbers (clause of this function), and channel < count.
            unsafe { absolute.add(channel).write(*bound) };
        }
        room.fill(elsa_linear_certified {
            size: size_of::<elsa_linear_certified>(),
            claims: u32::from(found.unclaimed == 0),
            reserved: 0,
            channels: found.channels.len(),
            unclaimed: found.unclaimed,
            absolute: found.output,
            state: found.present,
            gain: found.gain,
        });
        Ok(())
    })
}
