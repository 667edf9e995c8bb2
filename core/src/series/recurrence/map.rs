//! The affine map of a token, and of a run of tokens.

use crate::monoid::Monoid;
use crate::series::tensor::kept;

/// The map `h ↦ a h + b`. Composition is [`Monoid::combine`], the earlier map first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Map {
    /// Factor. If it is zero, earlier elements have no part in the result, even if they are infinite or
    /// NaN.
    pub a: f32,
    /// The addend.
    pub b: f32,
}

impl Map {
    /// Returns the map of the state `h`.
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
