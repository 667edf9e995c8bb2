//! Decisions of the choosers that a measurement may override: on a GPU the kernel and the number of splits of the keys,
//! on a CPU the block, the tiles that share a block, and the workers.
//!
//! The choosers describe a device by a few numbers. A measurement on the device is more accurate for the measured
//! shapes. A measurement overrides only these decisions. All kernels that it may select compute the same function, and
//! a plan with any number of splits or any block has a fixed merge tree and a certificate. Bits therefore depend on the
//! measured decision, but never on the batch, which is not part of [`ShapeClass`].

use super::choice::{BLOCK_SIZES, CpuChoice, CpuDivision, Division, MAX_TILES, Options};
use super::choose::choose;
use super::gpu::{adds_f32, choose_gpu};
use super::gpu_choice::{GpuChoice, GpuKernelSpec, GpuOptions, Summation};
use super::kernel::KernelSpec;
use crate::attention::bias::BiasView;
use crate::attention::mask::MaskKind;
use crate::attention::problem::Problem;
use crate::dtype::DType;
use crate::plan::ChooseError;
use crate::profile::{DeviceProfile, GpuProfile};

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
        self.check_counts()?;
        let tiles = self.keys.div_ceil(kernel.keys.max(1)).max(1);
        let refused = [
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
        first(refused)
    }

    /// Checks that a CPU can compute problems of this class with `division`.
    ///
    /// # Errors
    /// Returns the reason if it cannot.
    pub fn check_cpu(&self, division: &CpuDivision) -> Result<(), &'static str> {
        self.check_counts()?;
        first([
            (self.half_scores, "a CPU does not sum in f16"),
            (!BLOCK_SIZES.contains(&division.block), "block is none of 64, 128 and 256"),
            (division.group == 0, "group is zero"),
            (division.workers == 0, "workers is zero"),
        ])
    }

    /// Checks that a problem can have the sizes of this class.
    fn check_counts(&self) -> Result<(), &'static str> {
        let counts =
            [self.heads, self.kv_heads, self.queries, self.keys, self.head_dim, self.value_dim, self.windows];
        first([
            (counts.contains(&0), "a number is zero"),
            (!self.heads.is_multiple_of(self.kv_heads.max(1)), "heads are no multiple of kv_heads"),
        ])
    }
}

/// Returns the reason of the first condition that holds as an error.
fn first<const N: usize>(refused: [(bool, &'static str); N]) -> Result<(), &'static str> {
    refused.into_iter().find(|(refused, _)| *refused).map_or(Ok(()), |(_, why)| Err(why))
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

/// Numbers of tiles per block that are alternatives.
const GROUPS: [usize; 6] = [1, 2, 4, 8, 12, MAX_TILES];

/// Iterates over the decisions from which a measurement on a CPU may choose one for `problem`: every block, several
/// numbers of tiles that share it, and one, two, half of all and all workers. The chooser's own decisions, and those
/// that the problem does not allow, are omitted. The device must be able to execute all `kernels`.
///
/// # Errors
/// Returns an error if the chooser rejects the problem.
pub fn cpu_alternatives<'a, 'k, K>(
    problem: &'a Problem,
    device: &'a DeviceProfile,
    kernels: K,
    options: &'a Options,
) -> Result<impl Iterator<Item = CpuChoice> + 'a, ChooseError>
where
    'k: 'a,
    K: IntoIterator<Item = &'k KernelSpec> + Clone + 'a,
{
    let options = Options { division: None, ..*options };
    let own = choose(problem, device, kernels.clone(), &options)?.division();
    let most = options.workers.max(1);
    let workers = [1, 2, most / 2, most];
    let counts = (0..workers.len()).filter(move |&at| workers[at] > 0 && workers[at] <= most);
    let counts = counts.filter(move |&at| !workers[..at].contains(&workers[at]));
    Ok(counts.flat_map(move |at| {
        let kernels = kernels.clone();
        BLOCK_SIZES.into_iter().flat_map(move |block| {
            let kernels = kernels.clone();
            GROUPS.into_iter().filter_map(move |group| {
                let wanted = CpuDivision { block, group, workers: workers[at] };
                let options = Options { division: Some(wanted), ..options };
                let choice = choose(problem, device, kernels.clone(), &options).ok()?;
                (choice.division() == wanted && wanted != own).then_some(choice)
            })
        })
    }))
}

#[cfg(test)]
mod tests;
