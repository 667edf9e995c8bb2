//! Views of common layouts.

use crate::fault::{Fault, call};
use crate::pointer::{aligned, put};
use crate::types::*;
use elsa_core::view::{Layout, View};

/// Writes the view of a tensor [batch, heads, tokens, dim] stored in layout, one of ELSA_LAYOUT_*. Another layout, or a
/// tensor too large to index, returns ELSA_STATUS_ARGUMENT.
///
/// # Safety
/// Each pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
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
        // SAFETY: the caller guarantees *write*.
        unsafe { put(view, elsa_view { shape: v.shape(), strides: v.strides() }) };
        Ok(())
    })
}
