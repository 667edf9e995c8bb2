//! Plans: everything that depends on the shape, decided once.

use crate::engine::ENGINES;
use crate::fault::{Fault, call};
use crate::growing::{Room, take, take_or_default};
use crate::handles::Table;
use crate::pointer::{aligned, put};
use crate::text::Text;
use crate::types::*;
use crate::{convert, text};
use elsa_runtime::{LinearPlan, Plan};

pub(crate) static PLANS: Table<Planned> = Table::new("plan");

/// A plan of one of the operators.
#[derive(Debug)]
pub(crate) enum Planned {
    Attention(Box<Plan>),
    Linear(Box<LinearPlan>),
}

/// Calls a method that plans of all operators have.
macro_rules! of_any {
    ($planned:expr, $plan:ident => $call:expr) => {
        match $planned {
            Planned::Attention($plan) => $call,
            Planned::Linear($plan) => $call,
        }
    };
}

impl Planned {
    /// The plan of attention.
    pub(crate) fn attention(&self) -> Result<&Plan, Fault> {
        match self {
            Planned::Attention(plan) => Ok(plan),
            Planned::Linear(_) => Err(Fault::argument(format_args!(
                "plan: of linear attention; allowed: one of elsa_plan_create"
            ))),
        }
    }

    /// The plan of linear attention.
    pub(crate) fn linear(&self) -> Result<&LinearPlan, Fault> {
        match self {
            Planned::Linear(plan) => Ok(plan),
            Planned::Attention(_) => Err(Fault::argument(format_args!(
                "plan: not of linear attention; allowed: one of elsa_linear_plan_create"
            ))),
        }
    }
}

/// Decides everything that depends on the shape. Null options are the defaults. On a GPU this loads the kernels of runs
/// that output no states.
///
/// Any number of threads may use a plan, each with a workspace of its own.
///
/// # Safety
/// *read*, *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_plan_create(
    engine: elsa_engine,
    problem: *const elsa_problem,
    options: *const elsa_plan_options,
    plan: *mut elsa_plan,
) -> elsa_status {
    call(|| {
        aligned("plan", plan)?;
        let engine = ENGINES.get(engine.id)?;
        // SAFETY: *read*.
        let problem = convert::problem(&unsafe { take("problem", problem) }?)?;
        // SAFETY: *read*.
        let options = unsafe { take_or_default("options", options) }?;
        let made = engine.plan(&problem, &convert::plan_options(&options)?)?;
        let id = PLANS.insert(Planned::Attention(Box::new(made)))?;
        // SAFETY: *write*.
        unsafe { put(plan, elsa_plan { id }) };
        Ok(())
    })
}

/// Writes what a plan has chosen, and the bytes that it needs.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_plan_describe(plan: elsa_plan, info: *mut elsa_plan_info) -> elsa_status {
    call(|| {
        // SAFETY: *write*.
        let room = unsafe { Room::new("info", info) }?;
        let plan = PLANS.get(plan.id)?;
        let state_workspace_bytes = match &*plan {
            Planned::Attention(plan) => plan.state_workspace_bytes(),
            Planned::Linear(plan) => plan.workspace_bytes(),
        };
        room.fill(of_any!(&*plan, plan => {
            let reason = plan.refusal().map_or_else(Text::new, |reason| Text::of(reason));
            elsa_plan_info {
                size: size_of::<elsa_plan_info>(),
                backend: convert::backend_number(plan.backend()),
                fallback: u32::from(plan.refusal().is_some()),
                workspace_bytes: plan.workspace_bytes(),
                staging_bytes: plan.staging_bytes(),
                kernel: text::name(plan.kernel()),
                state_workspace_bytes,
                reason: reason.chars(),
            }
        }));
        Ok(())
    })
}

/// Writes what is known of the error of a run of attention on a back end: that of the report, or ELSA_BACKEND_AUTO for the back end
/// of the plan.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_plan_certificate(
    plan: elsa_plan,
    backend: elsa_backend,
    certificate: *mut elsa_certificate,
) -> elsa_status {
    call(|| {
        // SAFETY: *write*.
        let room = unsafe { Room::new("certificate", certificate) }?;
        let plan = PLANS.get(plan.id)?;
        let plan = plan.attention()?;
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

/// Ends the handle of a plan. Workspaces and frames that were made with it keep working.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_plan_destroy(plan: elsa_plan) -> elsa_status {
    call(|| PLANS.remove(plan.id).map(drop))
}
