//! Decisions of the GPU chooser that a measurement may override: the kernel, and the number of splits of the keys.
//!
//! The chooser of [`super::gpu`] describes a device by a few numbers. A measurement on the device is more accurate for
//! the measured shapes. A measurement overrides only these two decisions. All kernels that it may select compute the
//! same function, and a plan with any number of splits has a fixed merge tree and a certificate. Bits therefore depend
//! on the measured decision, but never on the batch, which is not part of [`ShapeClass`].

use super::choice::Division;
use super::gpu::{adds_f32, choose_gpu};
use super::gpu_choice::{GpuChoice, GpuKernelSpec, GpuOptions, Summation};
use crate::attention::bias::BiasView;
use crate::attention::mask::MaskKind;
use crate::attention::problem::Problem;
use crate::dtype::DType;
use crate::plan::ChooseError;
use crate::profile::GpuProfile;

/// All properties of a problem that determine the time of its kernels, except the batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeClass {
    /// Element type of the tensors.
    pub dtype: DType,
    /// `true` if chains of f16 products may be summed in f16.
    pub half_scores: bool,
    /// Number of query heads.
    pub heads: usize,
    /// Number of heads of keys and values.
    pub kv_heads: usize,
    /// Number of query rows per sequence.
    pub queries: usize,
    /// Number of keys per sequence, including the past.
    pub keys: usize,
    /// Head size of queries and keys.
    pub head_dim: usize,
    /// Head size of values.
    pub value_dim: usize,
    /// Number of windows of a picture that are computed together; 1 without windows.
    pub windows: usize,
    /// Differences between the problem and plain attention.
    pub changes: Changes,
}

/// A set of differences between a problem and plain attention. [`Changes::NAMES`] contains their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes(u16);

impl Changes {
    /// The names of the possible changes, in this order: a limit on later keys (causal or window), a window limit to the
    /// left, a boolean mask, an additive mask, an additive bias, a table bias, a mask or bias whose layout suits the
    /// kernels that read added elements, shifted windows, a soft cap, a past, lengths that a call supplies.
    pub const NAMES: [&'static str; 11] = [
        "causal",
        "window",
        "mask",
        "added-mask",
        "bias",
        "table",
        "near",
        "shifted",
        "softcap",
        "past",
        "lengths",
    ];

    /// Creates a set from flags in the order of [`Changes::NAMES`], `true` for each change that applies.
    #[must_use]
    pub fn of(applies: [bool; Changes::NAMES.len()]) -> Changes {
        Changes(applies.iter().enumerate().fold(0, |set, (i, &applies)| set | u16::from(applies) << i))
    }

    /// Returns the set with the named change added; `None` if the name is unknown.
    #[must_use]
    pub fn with(self, name: &str) -> Option<Changes> {
        let at = Changes::NAMES.iter().position(|known| *known == name)?;
        Some(Changes(self.0 | 1 << at))
    }

    /// Iterates over the names of the changes in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let named = Changes::NAMES.into_iter().enumerate();
        named.filter(move |(at, _)| self.0 >> at & 1 == 1).map(|(_, name)| name)
    }
}

impl ShapeClass {
    /// Returns the class of `problem`; `None` for packed sequences, because each call supplies their lengths and their keys
    /// are never divided.
    #[must_use]
    pub fn of(problem: &Problem, half_scores: bool) -> Option<ShapeClass> {
        let s = problem.spec();
        if s.packed.is_some() {
            return None;
        }
        let changes = Changes::of([
            problem.grows_with_the_row(),
            s.window.left.is_some(),
            s.mask.is_some_and(|mask| mask.kind() == MaskKind::Bool),
            s.mask.is_some_and(|mask| mask.kind() != MaskKind::Bool),
            matches!(s.bias, Some(BiasView::Dense(_))),
            matches!(s.bias, Some(BiasView::Table(_))),
            adds_f32(s),
            s.windows.is_some_and(|windows| windows.is_shifted()),
            s.softcap.is_some(),
            s.has_past(),
            s.key_lengths,
        ]);
        Some(ShapeClass {
            dtype: s.dtype,
            half_scores,
            heads: problem.heads(),
            kv_heads: problem.kv_heads(),
            queries: s.query.tokens(),
            keys: problem.keys(),
            head_dim: problem.head_dim(),
            value_dim: problem.value_dim(),
            windows: s.windows.map_or(1, |windows| windows.count()),
            changes,
        })
    }

    /// Checks that `kernel` can compute problems of this class with `splits` splits.
    ///
    /// # Errors
    /// Returns the reason if the kernel cannot compute them.
    pub fn check(&self, kernel: &GpuKernelSpec, splits: usize) -> Result<(), &'static str> {
        let counts =
            [self.heads, self.kv_heads, self.queries, self.keys, self.head_dim, self.value_dim, self.windows];
        let tiles = self.keys.div_ceil(kernel.keys.max(1)).max(1);
        let refused = [
            (counts.contains(&0), "a number is zero"),
            (!self.heads.is_multiple_of(self.kv_heads.max(1)), "heads are no multiple of kv_heads"),
            (kernel.sixteen_bit != (self.dtype != DType::F32), "the kernel is for another dtype"),
            (kernel.head_dim < self.head_dim.max(self.value_dim), "the kernel is for smaller heads"),
            (
                kernel.half_scores() && !(self.half_scores && self.dtype == DType::F16),
                "the kernel sums in f16",
            ),
            (splits == 0, "splits is zero"),
            (splits > tiles, "more splits than tiles of keys"),
            // Splits are equal numbers of tiles, except the last.
            (
                splits > 0 && tiles.div_ceil(tiles.div_ceil(splits)) != splits,
                "tiles of keys do not divide into that many splits",
            ),
        ];
        refused.into_iter().find(|(refused, _)| *refused).map_or(Ok(()), |(_, why)| Err(why))
    }
}

/// Largest ratio of an alternative's work to the work of the chooser's own choice. The work is the number of computed rows
/// times the number of dims.
const MOST_WORK: usize = 4;
/// Largest ratio of an alternative kernel's head size to that of the kernel that the chooser prefers.
const MOST_DIMS: usize = 2;
/// Largest number of query rows for which few-row kernels, whose lanes share the keys of a row, are alternatives.
const FEW_ROWS: usize = 64;
/// Largest number of blocks per SM for which a division of the keys is an alternative.
const MOST_PER_SM: usize = 16;
/// Numbers of splits that are alternatives.
const SPLITS: [usize; 22] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256];

/// Iterates over the divisions from which a measurement may choose one for `problem`. The first is the chooser's own
/// choice, and the others are those that [`GpuOptions::division`] can request. Divisions with far more blocks than the
/// device can run at once, and kernels that mostly compute padding, are omitted.
///
/// # Errors
/// Returns an error if the chooser rejects the problem.
pub fn alternatives<'a, 'k, K>(
    problem: &'a Problem,
    device: &'a GpuProfile,
    kernels: K,
    options: &'a GpuOptions,
) -> Result<impl Iterator<Item = GpuChoice> + 'a, ChooseError>
where
    'k: 'a,
    K: IntoIterator<Item = &'k GpuKernelSpec, IntoIter: Clone> + Clone + 'a,
{
    let options = GpuOptions { division: None, ..*options };
    let own = choose_gpu(problem, device, kernels.clone(), &options)?;
    let work = |choice: &GpuChoice| {
        let rows = choice.row_blocks.saturating_mul(choice.kernel.rows);
        rows.saturating_mul(choice.kernel.head_dim)
    };
    let most_blocks = device.sms.max(1).saturating_mul(MOST_PER_SM);
    let others = kernels.clone().into_iter().enumerate().flat_map(move |(candidate, kernel)| {
        let kernels = kernels.clone();
        SPLITS.into_iter().filter_map(move |splits| {
            let division = Some(Division { candidate, splits });
            let few = problem.spec().query.tokens() <= FEW_ROWS;
            if matches!(kernel.summation, Summation::Groups { .. }) && !few {
                return None;
            }
            let choice =
                choose_gpu(problem, device, kernels.clone(), &GpuOptions { division, ..options }).ok()?;
            let blocks = choice.row_blocks.saturating_mul(problem.heads()).saturating_mul(splits);
            let sensible = work(&choice) <= work(&own).saturating_mul(MOST_WORK)
                && choice.kernel.head_dim <= own.kernel.head_dim.saturating_mul(MOST_DIMS)
                && (splits == 1 || blocks <= most_blocks);
            (choice.splits == splits && sensible && choice != own).then_some(choice)
        })
    });
    Ok(core::iter::once(own).chain(others))
}

#[cfg(test)]
mod tests;
