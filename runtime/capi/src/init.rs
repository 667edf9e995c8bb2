//! Structs with their defaults, which a caller then changes.

use crate::fault::{Fault, call};
use crate::pointer::{aligned, put};
use crate::types::*;
use elsa_core::view::{Layout, View};
use elsa_runtime::PlanOptions;

/// Writes the defaults: the back end that the environment variable ELSA_BACKEND names or the first that is present,
/// fallback to the CPU, every core.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_engine_options_init(options: *mut elsa_engine_options) -> elsa_status {
    call(|| {
        aligned("options", options)?;
        // SAFETY: *write*.
        unsafe { put(options, elsa_engine_options::default()) };
        Ok(())
    })
}

/// Writes the defaults: method elsa, blocks of 64 keys, no limit of workspace.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_plan_options_init(options: *mut elsa_plan_options) -> elsa_status {
    call(|| {
        aligned("options", options)?;
        // SAFETY: *write*.
        unsafe { put(options, plan_options()) };
        Ok(())
    })
}

/// The default options of a plan.
pub(crate) fn plan_options() -> elsa_plan_options {
    elsa_plan_options { block: PlanOptions::default().block, ..elsa_plan_options::default() }
}

/// Writes plain attention over f32: no past, no masks, the default scale. Its views are empty.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_problem_init(problem: *mut elsa_problem) -> elsa_status {
    call(|| {
        aligned("problem", problem)?;
        // SAFETY: *write*.
        unsafe {
            put(problem, elsa_problem { window_left: -1, window_right: -1, ..elsa_problem::default() })
        };
        Ok(())
    })
}

/// Writes the view of a tensor in one of the layouts ELSA_LAYOUT_*.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_view_init(
    layout: elsa_layout,
    batch: usize,
    heads: usize,
    tokens: usize,
    dim: usize,
    view: *mut elsa_view,
) -> elsa_status {
    call(|| {
        aligned("view", view)?;
        let v = match layout {
            ELSA_LAYOUT_BHND => View::dense("view", Layout::Bhnd, &[batch, heads, tokens, dim], None)?,
            ELSA_LAYOUT_BNHD => View::dense("view", Layout::Bnhd, &[batch, tokens, heads, dim], None)?,
            ELSA_LAYOUT_QKV => {
                let dense = View::dense("view", Layout::Bnhd, &[batch, tokens, heads, dim], None)?;
                let [b, h, n, d] = dense.strides().map(|s| s.saturating_mul(3));
                View::new("view", dense.shape(), [b, h / 3, n, d / 3])?
            }
            found => {
                return Err(Fault::argument(format_args!("layout: {found}; allowed: one of ELSA_LAYOUT_*")));
            }
        };
        // SAFETY: *write*.
        unsafe { put(view, elsa_view { shape: v.shape(), strides: v.strides() }) };
        Ok(())
    })
}
