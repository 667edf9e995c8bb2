//! The tensors of a call as they are stored in files.

use crate::attention::cpu::plan::views_of;
use crate::stream::Excerpt;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::{BiasView, MaskView, Operand, Operands, Problem};
use elsa_core::view::View;

/// Returns the views of all tensors as they are stored in files. The view of a mask or a dense bias has the shape of
/// the mask or the bias. The view of an index has the shape `[1, 1, queries, keys]`.
///
/// # Errors
/// Returns an error if a tensor cannot be indexed.
pub fn tensors_of(problem: &Problem) -> Result<Operands<View>, ArgumentError> {
    let spec = problem.spec();
    let queries = spec.query.tokens();
    let of_mask = |mask: &MaskView| View::new("mask", mask.shape(), mask.strides());
    let pairs = View::new("bias_index", [1, 1, queries, problem.keys()], [0, 0, problem.keys(), 1]);
    let mut tensors = *views_of(problem);
    if let Some(mask) = &spec.mask {
        tensors[Operand::Mask] = of_mask(mask)?;
    }
    match &spec.bias {
        Some(BiasView::Dense(view)) => tensors[Operand::Bias] = of_mask(view)?,
        Some(BiasView::Table(table)) if table.indexed => tensors[Operand::BiasIndex] = pairs?,
        _ => {}
    }
    Ok(tensors)
}

/// Returns an excerpt that covers a complete bias table, `[entries, heads]`, as if its entries were rows of one head.
pub fn table_of(problem: &Problem) -> Result<Excerpt, ArgumentError> {
    let (entries, heads, size) = match problem.spec().bias {
        Some(BiasView::Table(table)) => (table.entries, table.heads, table.dtype.size()),
        _ => (0, 0, 1),
    };
    let tensor = View::new("bias", [1, 1, entries, heads], [entries * heads, entries * heads, heads, 1])?;
    let (count, to) = ([1, 1, entries], [entries * heads, entries * heads, heads]);
    Ok(Excerpt { tensor, size, first: [0; 3], count, start: 0, len: heads, to, at: 0 })
}
