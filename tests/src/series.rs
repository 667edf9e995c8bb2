//! Series with owned elements, and comparisons with what is exact.

use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::random::Random;
use elsa_core::series::Series;
use elsa_core::series::bound::Judged;
use elsa_core::view::View;
use half::{bf16, f16};

/// Memory layout of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `[batch, tokens, channels]`.
    TokensFirst,
    /// `[batch, channels, tokens]`.
    ChannelsFirst,
    /// `[batch, tokens, channels]` with gaps between rows.
    Gaps,
    /// `[batch, tokens, half of the channels]` for one half of the channels after the other, with gaps between rows.
    /// Requires an even number of channels.
    Heads,
}

impl Order {
    /// All layouts.
    pub const ALL: [Order; 4] = [Order::TokensFirst, Order::ChannelsFirst, Order::Gaps, Order::Heads];

    /// Returns a series of this layout; [`Order::Heads`] with an odd number of channels falls back to the first layout.
    ///
    /// # Panics
    /// Panics if the series is too large to index.
    #[must_use]
    pub fn series(self, [b, t, c]: [usize; 3]) -> Series {
        let of = |shape, strides| Series::of(View::new("x", shape, strides).expect("a view of the test"));
        match self {
            Order::ChannelsFirst => Series::channels_first("x", [b, c, t]).expect("a series of the test"),
            Order::Gaps => of([b, 1, t, c], [(c + 3) * t + 5, 0, c + 3, 1]),
            Order::Heads if c.is_multiple_of(2) && c > 0 => {
                of([b, 2, t, c / 2], [(c + 2) * t + 1, (c / 2 + 1) * t, c / 2 + 1, 1])
            }
            _ => Series::tokens_first("x", [b, t, c]).expect("a series of the test"),
        }
    }
}

/// Owned elements.
#[derive(Clone, Debug)]
pub enum Values {
    /// f32.
    F32(Vec<f32>),
    /// f16.
    F16(Vec<f16>),
    /// bf16.
    Bf16(Vec<bf16>),
}

impl Values {
    /// Creates `n` values of `of`, rounded to `dtype`.
    pub fn of(dtype: DType, n: usize, mut of: impl FnMut(usize) -> f32) -> Values {
        let values = (0..n).map(&mut of);
        match dtype {
            DType::F32 => Values::F32(values.collect()),
            DType::F16 => Values::F16(values.map(f16::from_f32).collect()),
            DType::Bf16 => Values::Bf16(values.map(bf16::from_f32).collect()),
        }
    }

    /// Creates `n` values that no computation produces, for outputs.
    #[must_use]
    pub fn unwritten(dtype: DType, n: usize) -> Values {
        Values::of(dtype, n, |_| UNWRITTEN)
    }

    /// Borrows the elements for reading.
    #[must_use]
    pub fn elements(&self) -> Elements<'_> {
        match self {
            Values::F32(x) => Elements::F32(x),
            Values::F16(x) => Elements::F16(x),
            Values::Bf16(x) => Elements::Bf16(x),
        }
    }

    /// Borrows the elements for writing.
    pub fn elements_mut(&mut self) -> ElementsMut<'_> {
        match self {
            Values::F32(x) => ElementsMut::F32(x),
            Values::F16(x) => ElementsMut::F16(x),
            Values::Bf16(x) => ElementsMut::Bf16(x),
        }
    }

    /// Returns the bits of all elements.
    #[must_use]
    pub fn bits(&self) -> Vec<u32> {
        let x = self.elements();
        (0..x.len()).map(|i| x.get(i).to_bits()).collect()
    }
}

/// A number that no test computes.
pub const UNWRITTEN: f32 = -1.5 * 16_384.0;

/// Draws `n` numbers of a bell-shaped distribution, times `factor`.
#[must_use]
pub fn normals(random: &mut Random, n: usize, factor: f32) -> Vec<f32> {
    (0..n).map(|_| factor * random.normal()).collect()
}

/// Checks a value, and keeps the largest distance from what is exact, relative to the bound.
///
/// # Panics
/// Panics if the value is out of bounds.
pub fn check(what: &str, found: f32, exact: Judged, dtype: DType, worst: &mut f64) {
    let distance = exact.distance(found, dtype);
    assert!(distance <= 1.0, "{what}: {found:e} for {exact:?}, {distance} of the bound");
    *worst = worst.max(distance);
}
