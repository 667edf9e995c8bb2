//! What a measurement may decide in place of the GPU chooser: the kernel, and the number of splits of the keys.
//!
//! The chooser of [`super::gpu`] knows a device by a few numbers. A measurement on the device itself knows better, for
//! the shapes that were measured. It replaces two decisions and nothing else: every kernel that it may name computes the
//! same function, and the splits stay those of a plan, with their fixed tree of merges and the certificate that follows
//! from it. Bits therefore depend on the measured decision, and still never on the batch, which [`ShapeClass`] leaves
//! out.

use super::choice::{ChooseError, Division};
use super::gpu::{adds_f32, choose_gpu};
use super::gpu_choice::{GpuChoice, GpuKernelSpec, GpuOptions, Summation};
use crate::attention::bias::BiasView;
use crate::attention::mask::MaskKind;
use crate::attention::problem::Problem;
use crate::dtype::DType;
use crate::profile::GpuProfile;

/// Everything of a problem that the time of its kernels depends on, except the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeClass {
    /// Element type of the tensors.
    pub dtype: DType,
    /// Whether chains of f16 products may be summed in f16.
    pub half_scores: bool,
    /// Number of query heads.
    pub heads: usize,
    /// Number of heads of keys and values.
    pub kv_heads: usize,
    /// Number of query rows of a sequence.
    pub queries: usize,
    /// Number of keys of a sequence, the past included.
    pub keys: usize,
    /// Head size of queries and keys.
    pub head_dim: usize,
    /// Head size of values.
    pub value_dim: usize,
    /// Windows of a picture that come together; 1 without any.
    pub windows: usize,
    /// What makes the problem differ from a plain one.
    pub changes: Changes,
}

/// A set of what makes a problem differ from a plain one, by the names of [`Changes::NAMES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes(u16);

impl Changes {
    /// The names: no later key is attended, a limit to the left, a boolean mask, an added mask, an added bias, a bias
    /// from a table, masks or biases that the kernels of added elements read, shifted windows, a soft cap, a past, lengths
    /// that arrive with the call.
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

    /// The set of those changes that apply, in the order of the names.
    #[must_use]
    pub fn of(applies: [bool; Changes::NAMES.len()]) -> Changes {
        Changes(applies.iter().enumerate().fold(0, |set, (i, &applies)| set | u16::from(applies) << i))
    }

    /// The set with one more change, or `None` if there is no such name.
    #[must_use]
    pub fn with(self, name: &str) -> Option<Changes> {
        let at = Changes::NAMES.iter().position(|known| *known == name)?;
        Some(Changes(self.0 | 1 << at))
    }

    /// The names of the changes in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let named = Changes::NAMES.into_iter().enumerate();
        named.filter(move |(at, _)| self.0 >> at & 1 == 1).map(|(_, name)| name)
    }
}

impl ShapeClass {
    /// The class of `problem`. `None` for packed sequences, whose lengths arrive with the data and whose keys are never
    /// divided.
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
            s.past_key.is_some() || s.past_value.is_some(),
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

    /// Whether problems of this class can be computed by `kernel` in so many splits.
    ///
    /// # Errors
    /// Returns what is impossible about it.
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

/// Kernels that compute more than so many times the rows and dims of the chooser's are no alternatives.
const MOST_WORK: usize = 4;
/// Neither are kernels for heads that are more than so many times larger than the chooser's kernel is for.
const MOST_DIMS: usize = 2;
/// The most query rows for which kernels whose lanes share the keys of a row are alternatives.
const FEW_ROWS: usize = 64;
/// Keys are not divided into more blocks than so many for each SM.
const MOST_PER_SM: usize = 16;
/// The numbers of splits that are alternatives.
const SPLITS: [usize; 22] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256];

/// What a measurement may choose from for `problem`: every division that the chooser could be made to take, the chooser's
/// own first. Divisions that more than fill the device, and kernels that mostly compute padding, are left out.
///
/// # Errors
/// Returns an error if the chooser refuses the problem.
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
