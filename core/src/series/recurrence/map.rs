//! The affine map of a token or of a run of tokens.

use crate::monoid::Monoid;
use crate::series::tensor::kept;

/// The map `h ↦ a h + b`. [`Monoid::combine`] composes two maps: `self` is the earlier map, which is applied first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Map {
    /// The factor. If the factor is zero, the result does not depend on the earlier state, even if the earlier state is
    /// infinite or NaN.
    pub a: f32,
    /// The addend.
    pub b: f32,
}

impl Map {
    /// Applies the map to the state `h`.
    #[must_use]
    pub fn of(&self, h: f32) -> f32 {
        let h = self.a * kept(self.a, h) + self.b;
        kept(h, h)
    }
}

impl Monoid for Map {
    fn identity() -> Map {
        Map { a: 1.0, b: 0.0 }
    }

    fn combine(&self, later: &Map) -> Map {
        let a = later.a * kept(later.a, self.a);
        Map { a: kept(a, a), b: later.of(self.b) }
    }
}
