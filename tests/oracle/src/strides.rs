//! Views with large strides along axes that have fewer than two elements. Such a stride has no effect, so every call must
//! have the bits that it has with dense views, and no arithmetic may overflow.

use crate::cases::Case;
use elsa_core::attention::{BiasView, MaskView, Spec};
use elsa_core::series::Series;
use elsa_core::view::View;

/// The strides: the largest number, a multiple of four whose lower 32 bits are zero, the number whose bits are those of
/// the least signed number, and an odd number.
const FAR: [usize; 4] = [usize::MAX, usize::MAX << 40, 1 << 63, (1 << 63) + 7];

/// Number of ways in which the strides can be assigned to axes. Over all turns below this number, each axis has each of
/// the strides once.
pub const TURNS: usize = FAR.len();

fn strides(shape: [usize; 4], strides: [usize; 4], turn: usize) -> [usize; 4] {
    std::array::from_fn(|axis| if shape[axis] > 1 { strides[axis] } else { FAR[(axis + turn) % TURNS] })
}

/// Returns the view with large strides along axes that have fewer than two elements.
///
/// # Panics
/// Panics if such a view is refused.
#[must_use]
pub fn far(view: View, turn: usize) -> View {
    let strides = strides(view.shape(), view.strides(), turn);
    View::new("far", view.shape(), strides).expect("a view whose strides have no effect")
}

/// Returns the series whose view is the one of [`far`].
#[must_use]
pub fn far_series(series: Series, turn: usize) -> Series {
    Series::of(far(*series.view(), turn))
}

fn far_mask(view: MaskView, turn: usize) -> MaskView {
    view.with_strides(strides(view.shape(), view.strides(), turn))
}

/// Returns the problem with the views of [`far`]. The same holds for the mask and a dense bias.
#[must_use]
pub fn far_spec(mut spec: Spec, turn: usize) -> Spec {
    for view in [&mut spec.query, &mut spec.key, &mut spec.value, &mut spec.output] {
        *view = far(*view, turn);
    }
    for view in [&mut spec.past_key, &mut spec.past_value, &mut spec.present_key, &mut spec.present_value] {
        *view = view.map(|view| far(view, turn));
    }
    spec.mask = spec.mask.map(|mask| far_mask(mask, turn));
    if let Some(BiasView::Dense(view)) = spec.bias {
        spec.bias = Some(BiasView::Dense(far_mask(view, turn)));
    }
    spec
}

/// Returns the case with the problem of [`far_spec`] and the same data.
#[must_use]
pub fn far_case(case: &Case, turn: usize) -> Case {
    Case { spec: far_spec(case.spec, turn), ..case.clone() }
}
