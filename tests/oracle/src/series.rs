//! Memory layouts of series, and comparisons of computed values with exact ones.

use crate::cases::Data;
use elsa_core::dtype::DType;
use elsa_core::random::Random;
use elsa_core::series::bound::{Judged, Precision};
use elsa_core::series::{Outputs, Series};
use elsa_core::view::View;
use elsa_kernels::registry::series_of;
use elsa_runtime::{Backend, Engine};

/// Memory layout of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `[batch, tokens, channels]`.
    TokensFirst,
    /// `[batch, channels, tokens]`.
    ChannelsFirst,
    /// `[batch, tokens, channels]` with gaps between rows.
    Gaps,
    /// `[batch, tokens, channels / 2]` for the first half of the channels, then for the second half, with gaps between
    /// rows. Requires an even number of channels.
    Heads,
}

impl Order {
    /// All layouts.
    pub const ALL: [Order; 4] = [Order::TokensFirst, Order::ChannelsFirst, Order::Gaps, Order::Heads];

    /// Returns a series of this layout, with `b` sequences, `t` tokens and `c` channels. [`Order::Heads`] with an odd
    /// number of channels falls back to [`Order::TokensFirst`].
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

/// Initial value of outputs; no test computes this number.
pub const UNWRITTEN: f32 = -1.5 * 16_384.0;

/// Draws `n` numbers of a bell-shaped distribution, times `factor`.
#[must_use]
pub fn normals(random: &mut Random, n: usize, factor: f32) -> Vec<f32> {
    (0..n).map(|_| factor * random.normal()).collect()
}

/// Checks that the error of a value is within the bound in `exact`. Raises `worst` to the error divided by the bound, if
/// this ratio is larger.
///
/// # Panics
/// Panics if the error exceeds the bound.
pub fn check(what: &str, found: f32, exact: Judged, dtype: DType, worst: &mut f64) {
    let distance = exact.distance(found, dtype);
    assert!(distance <= 1.0, "{what}: {found:e} for {exact:?}, {distance} of the bound");
    *worst = worst.max(distance);
}

/// Outputs of a call.
pub struct SeriesOutputs {
    /// The output.
    pub out: Data,
    /// The states after the last token.
    pub present: Vec<f32>,
}

impl SeriesOutputs {
    /// Creates an output of `extent` elements with the value [`UNWRITTEN`], and the given present states.
    #[must_use]
    pub fn unwritten(dtype: DType, extent: usize, present: Vec<f32>) -> SeriesOutputs {
        SeriesOutputs { out: Data::filled(dtype, extent, UNWRITTEN), present }
    }

    /// Returns the bits of the output and of the states.
    #[must_use]
    pub fn bits(&self) -> Vec<u32> {
        self.out.bits().into_iter().chain(self.present.iter().map(|x| x.to_bits())).collect()
    }

    /// Borrows the outputs for a call.
    pub fn outputs(&mut self) -> Outputs<'_> {
        Outputs { out: Some(self.out.elements_mut()), present_state: Some(&mut self.present) }
    }
}

/// Returns the precision of the kernels of an engine.
///
/// # Panics
/// Panics if the engine is not on a CPU back end.
#[must_use]
pub fn precision(engine: &Engine) -> Precision {
    let Backend::Cpu(set) = engine.backend() else { panic!("an engine of the CPU") };
    series_of(set).expect("kernels of the engine").spec.precision
}
