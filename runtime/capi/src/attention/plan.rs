//! Plans of attention: decisions that depend on the shape, made once.

use crate::convert;
use crate::fault::call;
use crate::growing::Room;
use crate::objects::PLANS;
use crate::operator::{create, plan_of};
use crate::types::*;
use elsa_runtime::Attention;

/// Creates a plan: everything that depends on the shape is decided here. Null options select the defaults. On a GPU
/// this loads the kernels of runs that output no states.
///
/// Any number of threads may use a plan, each with its own workspace.
///
/// # Safety
/// Each input pointer is null or valid for reads, and nothing writes there during the call (*read*). Each output
/// pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_plan_create(
    engine: elsa_engine,
    problem: *const elsa_problem,
    options: *const elsa_plan_options,
    plan: *mut elsa_plan,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read* and *write*.
    call(|| unsafe { create::<Attention>(engine, problem, options, plan) })
}

/// Writes the certificate of an attention plan for runs on a back end: the published error bound, compared with the
/// operations that a run executes. backend is the one in the report of a run, or ELSA_BACKEND_AUTO for the plan's back
/// end.
///
/// # Safety
/// Each pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_plan_certificate(
    plan: elsa_plan,
    backend: elsa_backend,
    certificate: *mut elsa_certificate,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clause *write*.
        let room = unsafe { Room::new("certificate", certificate) }?;
        let plan = PLANS.get(plan.id)?;
        let plan = &plan_of::<Attention>(&*plan)?.plan;
        let c = plan.certificate_of(convert::backend(backend)?.unwrap_or(plan.backend()));
        room.fill(elsa_certificate {
            size: size_of::<elsa_certificate>(),
            dtype: convert::dtype_number(c.dtype),
            covers_additions: u32::from(c.covers_additions()),
            keys: c.keys,
            block: c.executed.block,
            segment_blocks: c.executed.segment_blocks,
            merge_depth: c.executed.merge_depth,
            half_chain: c.executed.half_chain,
            additions: c.executed.additions,
            published_depth: c.published_depth,
            published_bound: c.published_bound,
            output_rounding: c.output_rounding,
        });
        Ok(())
    })
}
