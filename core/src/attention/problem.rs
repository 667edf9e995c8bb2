//! The problem: shapes, masks and options of an attention call, checked once, as plain data.

use super::bias::{BiasView, TableView};
use super::mask::MaskView;
use super::operands::Operand;
use super::sequence::{Alignment, Chunk, Lengths, Sequence, Window};
use super::windows::Windows;
use crate::argument::{ArgumentError, same};
use crate::dtype::DType;
use crate::memory::Memory;
use crate::setters;
use crate::view::View;
use core::f64::consts::LOG2_E;

/// The largest allowed `|scale| log2 e`, or `|scale| / X` with a soft cap `X`: `2^64`.
pub const LARGEST_FACTOR: f32 = 1.844_674_4e19;

/// The unchecked description of a problem. Create it with [`Spec::new`], set the fields that differ from plain
/// attention, and call [`Spec::check`] to obtain a [`Problem`].
///
/// # Range
///
/// Scores are sums of f32 products `(q_x · scale · log2 e) · k_x`, in base-2 units. The error bound holds for them if
/// every `q_x · scale · log2 e`, every product and every partial sum is below `2^127` in magnitude. It is sufficient
/// that `|q_x| · max(1, |scale|)` and `|scale| Σ |q_x k_x|` are below `1.1e38`. A score beyond these limits overflows:
/// the score `+∞` makes the row NaN, and a key with the score `−∞` counts as not attended. A scale whose product with
/// `log2 e` exceeds [`LARGEST_FACTOR`] is rejected, because it leaves the queries too little range. Finite elements of
/// an additive mask are clamped to [`MASK_LIMIT`](super::MASK_LIMIT) in magnitude.
///
/// Weights below `2^-126` relative to the row's reference are zero or too small ([`crate::state::WEIGHT_FLOOR`]). Weighted
/// sums are in f32 and divided at the end, so an output row is finite if `2^8 Σ |v_j|` is below `3.4e38`.
///
/// ```
/// # use elsa_core::{argument::ArgumentError, attention::{Alignment, Spec}, dtype::DType, view::View};
/// let view = View::bhnd("q", [1, 12, 197, 64])?;
/// let problem = Spec::new(DType::F32, view, view, view, view).causal(Alignment::TopLeft).scale(0.1).check()?;
/// assert_eq!(problem.keys(), 197);
///
/// let narrow = View::bhnd("k", [1, 12, 197, 32])?;
/// let refused = Spec::new(DType::F32, view, narrow, view, view).check().unwrap_err();
/// assert_eq!(refused.to_string(), "k: head size 32; allowed: 64, as q has");
/// # Ok::<(), ArgumentError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Spec {
    /// Element type of query, key, value, output, past and present.
    pub dtype: DType,
    /// Queries, `[batch, heads, queries, d]`.
    pub query: View,
    /// Keys, `[batch, kv_heads, keys, d]`.
    pub key: View,
    /// Values, `[batch, kv_heads, keys, d_v]`.
    pub value: View,
    /// The output, `[batch, heads, queries, d_v]`.
    pub output: View,
    /// Past keys, `[batch, kv_heads, past, d]`.
    pub past_key: Option<View>,
    /// Past values, `[batch, kv_heads, past, d_v]`.
    pub past_value: Option<View>,
    /// Output tensor that contains the past keys and then the new keys, `[batch, kv_heads, past + keys, d]`.
    pub present_key: Option<View>,
    /// Output tensor that contains the past values and then the new values, `[batch, kv_heads, past + keys, d_v]`.
    pub present_value: Option<View>,
    /// `true` if the call appends in place: the past occupies the first rows of the present tensors' memory, and the call
    /// writes the new rows after these. The problem must have past and present keys and values, and the past and the
    /// present must have equal strides; a call passes only the present tensors. If the strides of a present tensor leave
    /// room for more tokens, it is a cache with that capacity.
    pub append: bool,
    /// Scale of the scores; `None` means `1 / sqrt(d)`.
    pub scale: Option<f32>,
    /// Alignment of the causal diagonal; `None` if the problem is not causal.
    pub causal: Option<Alignment>,
    /// Sliding window around the diagonal.
    pub window: Window,
    /// The soft cap `X` in `X · tanh(s / X)`; `None` or zero turns it off.
    pub softcap: Option<f32>,
    /// A boolean or additive mask.
    pub mask: Option<MaskView>,
    /// An additive bias in addition to the mask. If the last axis of the mask or of the bias is shorter than the number of
    /// keys, the last axis of the other must have the same size or size 1.
    pub bias: Option<BiasView>,
    /// `true` if the last axis of mask and bias may be shorter than the number of keys, as in ONNX. Keys beyond the end of
    /// that axis are then not attended.
    pub short_mask: bool,
    /// The windows of a picture if each sequence is a window, otherwise `None`. The queries and keys of a sequence are
    /// the tokens of its window.
    pub windows: Option<Windows>,
    /// `true` if a call supplies the number of valid keys of each sequence ([`Lengths::keys`]).
    pub key_lengths: bool,
    /// Number of sequences that are packed along the token axes of query and key, whose batch is then 1. A call supplies
    /// the boundaries of the sequences ([`Lengths::cu_seqlens_q`] and [`Lengths::cu_seqlens_k`]).
    pub packed: Option<usize>,
}

setters! {
    Spec:
    dtype: DType, query: View, key: View, value: View, output: View, append: bool, window: Window, short_mask: bool,
    key_lengths: bool;
    optional past_key: View, past_value: View, present_key: View, present_value: View, scale: f32, causal: Alignment,
    softcap: f32, mask: MaskView, bias: BiasView, windows: Windows, packed: usize,
}

impl Spec {
    /// Describes plain attention of `query` over `key` and `value`, with the result in `output`.
    #[must_use]
    pub fn new(dtype: DType, query: View, key: View, value: View, output: View) -> Spec {
        Spec {
            dtype,
            query,
            key,
            value,
            output,
            past_key: None,
            past_value: None,
            present_key: None,
            present_value: None,
            append: false,
            scale: None,
            causal: None,
            window: Window::default(),
            softcap: None,
            mask: None,
            bias: None,
            short_mask: false,
            windows: None,
            key_lengths: false,
            packed: None,
        }
    }

    /// Checks every field and returns the problem.
    ///
    /// # Errors
    /// Returns an error if sizes disagree, a head size is zero, a number is NaN, infinite or imprecise in base-2 units,
    /// the mask does not broadcast, two arguments exclude each other, or rows of an output overlap.
    pub fn check(self) -> Result<Problem, ArgumentError> {
        use ArgumentError as E;
        let Spec { query, key, value, output, .. } = self;
        for (view, argument) in [(&query, "q"), (&key, "k"), (&value, "v")] {
            view.check_dim(argument)?;
        }
        same("k", "batch", key.batch(), query.batch(), "q")?;
        same("k", "head size", key.dim(), query.dim(), "q")?;
        same("v", "batch", value.batch(), key.batch(), "k")?;
        same("v", "heads", value.heads(), key.heads(), "k")?;
        same("v", "tokens", value.tokens(), key.tokens(), "k")?;
        if !query.heads().is_multiple_of(key.heads()) || (query.heads() == 0 && key.heads() > 0) {
            return Err(E::Groups { heads: query.heads(), kv_heads: key.heads() });
        }
        let writes = |argument, view: &View, shape: [usize; 4], of| {
            let axes = ["batch", "heads", "tokens", "head size"];
            for a in 0..4 {
                same(argument, axes[a], view.shape()[a], shape[a], of)?;
            }
            if view.may_overlap() { Err(E::Overlap { argument }) } else { Ok(()) }
        };
        writes("out", &output, [query.batch(), query.heads(), query.tokens(), value.dim()], "q with v")?;
        let mut past = 0;
        match (&self.past_key, &self.past_value) {
            (Some(pk), Some(pv)) => {
                past = pk.tokens();
                same("past_k", "batch", pk.batch(), key.batch(), "k")?;
                same("past_k", "heads", pk.heads(), key.heads(), "k")?;
                same("past_k", "head size", pk.dim(), key.dim(), "k")?;
                same("past_v", "batch", pv.batch(), value.batch(), "v")?;
                same("past_v", "heads", pv.heads(), value.heads(), "v")?;
                same("past_v", "head size", pv.dim(), value.dim(), "v")?;
                same("past_v", "tokens", pv.tokens(), past, "past_k")?;
            }
            (None, None) => {}
            (Some(_), None) => return Err(E::Needs { argument: "past_k", other: "past_v" }),
            (None, Some(_)) => return Err(E::Needs { argument: "past_v", other: "past_k" }),
        }
        let Some(keys) = past.checked_add(key.tokens()) else {
            return Err(E::TooLarge { argument: "past_k", shape: key.shape() });
        };
        for (view, argument, dim) in
            [(&self.present_key, "present_k", key.dim()), (&self.present_value, "present_v", value.dim())]
        {
            if let Some(view) = view {
                writes(argument, view, [key.batch(), key.heads(), keys, dim], "past and k")?;
            }
        }
        if self.append {
            self.check_append()?;
        }
        if let Some(sequences) = self.packed {
            if sequences == 0 {
                return Err(E::Zero { argument: "cu_seqlens_q", axis: "sequences" });
            }
            same("q", "batch", query.batch(), 1, "a packed tensor")?;
            let given = [
                (self.mask.is_some(), "mask"),
                (self.bias.is_some(), "bias"),
                (self.key_lengths, "key_lengths"),
            ];
            let rest = given.into_iter().filter_map(|(given, argument)| given.then_some(argument));
            if let Some(argument) = self.past_or_present().into_iter().chain(rest).next() {
                return Err(E::Conflict { argument, other: "cu_seqlens_q" });
            }
        }
        if let Some(scale) = self.scale
            && !scale.is_finite()
        {
            return Err(E::Number { argument: "scale", found: scale, allowed: "a finite number" });
        }
        let softcap = self.softcap.filter(|x| *x != 0.0);
        if let Some(x) = softcap
            && !(x.is_finite() && x >= f32::MIN_POSITIVE)
        {
            return Err(E::Number {
                argument: "softcap",
                found: x,
                allowed: "0 (off) or a finite number of at least 2^-126 = 1.1754944e-38",
            });
        }
        let scores = [query.batch(), query.heads(), query.tokens(), keys];
        if let Some(mask) = &self.mask {
            mask.check("mask", scores, self.short_mask)?;
        }
        if let Some(windows) = &self.windows {
            windows.check(query.batch(), query.tokens(), key.tokens())?;
            self.check_alone_with_windows()?;
        }
        if let Some(bias) = &self.bias {
            let entries = self.windows.map(|windows| windows.entries());
            bias.check(scores, self.mask.map(|mask| mask.shape()[3]), self.short_mask, entries)?;
        }
        let scale = self.scale.unwrap_or_else(|| query.default_scale());
        let problem = Problem { spec: Spec { softcap, scale: Some(scale), ..self }, scale, past, keys };
        // The factors of queries and of capped scores must be normal f32 values to keep precision, and the factor
        // of queries must leave them enough range.
        let (factor, after) = problem.score_factors();
        let factor_holds = (factor.is_normal() && factor.abs() <= LARGEST_FACTOR) || scale == 0.0;
        match softcap {
            Some(found) if !(factor_holds && after.is_normal()) => Err(E::Number {
                argument: "softcap",
                found,
                allowed: "0 (off) or X with X log2(e) and scale / X normal f32 values, the latter at most 2^64",
            }),
            None if !factor_holds => Err(E::Number {
                argument: "scale",
                found: scale,
                allowed: "0, or a number that times log2(e) is a normal f32 value of at most 2^64",
            }),
            _ => Ok(problem),
        }
    }

    /// Returns an error if an option is set that cannot be combined with windows.
    fn check_alone_with_windows(&self) -> Result<(), ArgumentError> {
        let given = [
            (self.packed.is_some(), "cu_seqlens_q"),
            (self.key_lengths, "key_lengths"),
            (self.causal.is_some(), "causal"),
            (self.window.left.is_some(), "window_left"),
            (self.window.right.is_some(), "window_right"),
        ];
        let rest = || given.into_iter().find_map(|(given, other)| given.then_some(other));
        match self.past_or_present().or_else(rest) {
            Some(other) => Err(ArgumentError::Conflict { argument: "windows", other }),
            None => Ok(()),
        }
    }
}

/// A checked attention problem, created by [`Spec::check`].
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    spec: Spec,
    scale: f32,
    past: usize,
    keys: usize,
}

impl Problem {
    /// Returns the specification of the problem, with the scale filled in and a soft cap of zero removed.
    #[must_use]
    pub const fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Returns the scale of the scores.
    #[must_use]
    pub const fn scale(&self) -> f32 {
        self.scale
    }

    /// Returns the number of query heads.
    #[must_use]
    pub const fn heads(&self) -> usize {
        self.spec.query.heads()
    }

    /// Returns the number of key and value heads.
    #[must_use]
    pub const fn kv_heads(&self) -> usize {
        self.spec.key.heads()
    }

    /// Returns the key head that query head `head` reads.
    #[must_use]
    pub const fn kv_head(&self, head: usize) -> usize {
        head / self.group()
    }

    /// Returns the number of query heads that read one key head; 1 in a problem without heads.
    #[must_use]
    pub const fn group(&self) -> usize {
        match self.heads().checked_div(self.kv_heads()) {
            Some(group) => group,
            None => 1,
        }
    }

    /// Returns the head size of queries and keys.
    #[must_use]
    pub const fn head_dim(&self) -> usize {
        self.spec.query.dim()
    }

    /// Returns the head size of values and output.
    #[must_use]
    pub const fn value_dim(&self) -> usize {
        self.spec.value.dim()
    }

    /// Returns the number of past keys.
    #[must_use]
    pub const fn past(&self) -> usize {
        self.past
    }

    /// Returns the number of keys, including the past. For a packed problem, it is the total over all sequences.
    #[must_use]
    pub const fn keys(&self) -> usize {
        self.keys
    }

    /// Returns the number of query rows: `batch · heads · queries`.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.spec.query.batch() * self.heads() * self.spec.query.tokens()
    }

    /// Returns the number of sequences: the batch size, or the number of packed sequences.
    #[must_use]
    pub const fn sequences(&self) -> usize {
        match self.spec.packed {
            Some(n) => n,
            None => self.spec.query.batch(),
        }
    }

    /// Returns `(query_factor, cap)`, the factors that yield scores in base-2 units. Without a soft cap a score is
    /// `query_factor · q · k`, and `cap` is zero. With a soft cap `X` a score is
    /// `cap · tanh(query_factor · q · k)`, with `query_factor = scale / X` and `cap = X · log2 e`.
    #[must_use]
    pub fn score_factors(&self) -> (f32, f32) {
        let scale = f64::from(self.scale);
        match self.spec.softcap {
            Some(cap) => ((scale / f64::from(cap)) as f32, (f64::from(cap) * LOG2_E) as f32),
            None => ((scale * LOG2_E) as f32, 0.0),
        }
    }

    /// Returns `true` if the scores of sequence `batch` are modified key by key, by a mask, a bias, or the sides of
    /// a shifted window.
    #[must_use]
    pub fn modifies(&self, batch: usize) -> bool {
        let s = &self.spec;
        let divides = s.windows.is_some_and(|windows| windows.sides(batch).is_some());
        s.mask.is_some() || s.bias.is_some() || divides
    }

    /// Returns `true` if lengths, causality, a window, a mask or a bias may exclude keys from a row or change a
    /// score.
    #[must_use]
    pub fn is_masked(&self) -> bool {
        let s = &self.spec;
        let shifted = s.windows.is_some_and(|windows| windows.is_shifted());
        s.mask.is_some()
            || s.bias.is_some()
            || shifted
            || s.causal.is_some()
            || s.window.left.is_some()
            || s.window.right.is_some()
            || s.key_lengths
    }

    /// Returns `true` if the number of attended keys may grow with the row: the problem is causal, or its window is
    /// limited on the right.
    #[must_use]
    pub const fn grows_with_the_row(&self) -> bool {
        self.spec.causal.is_some() || self.spec.window.right.is_some()
    }

    /// Returns the operand from which a run reads keys or values. This is `operand` itself, except in a problem
    /// that appends in place: there a run reads all rows from the present tensor, after it has written the new rows.
    #[must_use]
    pub const fn source(&self, operand: Operand) -> Operand {
        match operand {
            Operand::Key if self.spec.append => Operand::PresentKey,
            Operand::Value if self.spec.append => Operand::PresentValue,
            _ => operand,
        }
    }

    /// Returns the number of past tokens at the start of `operand`, if `operand` is a present tensor and the problem
    /// appends in place; otherwise `None`. A call reads these tokens and does not write them.
    #[must_use]
    pub const fn kept_tokens(&self, operand: Operand) -> Option<usize> {
        match operand {
            Operand::PresentKey | Operand::PresentValue if self.spec.append => Some(self.past),
            _ => None,
        }
    }

    /// Returns the size and layout of the memory of `operand`. Returns `None` if the problem does not have that operand, or
    /// if the operand shares the memory of another operand. In a problem that appends in place, for example, the past
    /// shares the memory of the present. Every problem has the operands output, log-sum-exp and states; a call may omit
    /// them.
    #[must_use]
    pub fn memory(&self, operand: Operand) -> Option<Memory> {
        let s = &self.spec;
        let rows = |width: usize| {
            Some(Memory { elements: self.rows().saturating_mul(width), element_size: 4, view: None })
        };
        let view = match operand {
            Operand::PastKey | Operand::PastValue if s.append => None,
            Operand::Query => Some(s.query),
            Operand::Key => Some(s.key),
            Operand::Value => Some(s.value),
            Operand::Output => Some(s.output),
            Operand::PastKey => s.past_key,
            Operand::PastValue => s.past_value,
            Operand::PresentKey => s.present_key,
            Operand::PresentValue => s.present_value,
            Operand::Mask => {
                let mask = s.mask.as_ref()?;
                return Some(Memory {
                    elements: mask.extent(),
                    element_size: mask.kind().size(),
                    view: None,
                });
            }
            Operand::Bias => {
                let bias = s.bias.as_ref()?;
                let element_size = bias.dtype().size();
                return Some(Memory { elements: bias.extent(), element_size, view: None });
            }
            Operand::BiasIndex => {
                let Some(BiasView::Table(TableView { indexed: true, .. })) = s.bias else { return None };
                let elements = s.query.tokens().saturating_mul(self.keys);
                return Some(Memory { elements, element_size: 8, view: None });
            }
            Operand::LogSumExp | Operand::StateReference | Operand::StateSum => return rows(1),
            Operand::StateWeighted => return rows(self.value_dim()),
        };
        view.map(|view| Memory { elements: view.extent(), element_size: s.dtype.size(), view: Some(view) })
    }

    /// Returns the geometry of sequence `index`. `lengths` must have passed [`Lengths::check`].
    #[must_use]
    pub fn sequence(&self, lengths: &Lengths<'_>, index: usize) -> Sequence {
        let mut s = match (self.spec.packed, lengths.cu_seqlens_q, lengths.cu_seqlens_k) {
            (Some(_), Some(cq), Some(ck)) => {
                let (q0, k0) = (cq[index] as usize, ck[index] as usize);
                let (queries, keys) = (cq[index + 1] as usize - q0, ck[index + 1] as usize - k0);
                Sequence { batch: 0, query0: q0, queries, key0: k0, keys, valid: keys, ..Sequence::default() }
            }
            _ => {
                let (queries, keys) = (self.spec.query.tokens(), self.keys);
                Sequence { batch: index, queries, keys, valid: keys, ..Sequence::default() }
            }
        };
        // A problem that appends in place has past and new keys in one tensor.
        s.past = if self.spec.append { 0 } else { self.past };
        // The diagonal and the number of valid keys refer to the complete sequence; the call may be a chunk of it.
        let chunk = lengths.chunk.unwrap_or(Chunk::of_keys(0, s.keys));
        let valid = match lengths.keys {
            // A batch without sequences has no lengths, so the valid keys of its nominal sequence are zero.
            Some(lengths) if self.spec.key_lengths => lengths.get(index).map_or(0, |valid| *valid as usize),
            _ => chunk.key_total,
        };
        s.valid = valid.saturating_sub(chunk.key_offset).min(s.keys);
        // A past moves the diagonal. A bottom-right diagonal does not move: it ends at the last valid key.
        let past = if self.spec.causal == Some(Alignment::BottomRight) { 0 } else { self.past as isize };
        s.offset = chunk.diagonal(self.spec.causal, s.queries, valid) + past;
        s.left = self.spec.window.left;
        s.right = match (self.spec.causal, self.spec.window.right) {
            (Some(_), _) => Some(0),
            (None, right) => right,
        };
        let mask = self.spec.mask.map_or(s.keys, |mask| mask.reach(s.keys));
        let bias = self.spec.bias.map_or(s.keys, |bias| bias.reach(s.keys));
        s.reach = s.valid.min(mask).min(bias);
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::mask::MaskKind;
    use crate::view::Layout;

    /// Returns a spec with six query heads over two key heads: 4 queries of size 5, 8 keys, values of size 7, a batch
    /// of 3.
    fn spec() -> Spec {
        let of = |dims: [usize; 4]| View::dense("x", Layout::Bhnd, &dims, None).unwrap();
        Spec::new(DType::F16, of([3, 6, 4, 5]), of([3, 2, 8, 5]), of([3, 2, 8, 7]), of([3, 6, 4, 7]))
    }

    fn with_past() -> Spec {
        let of = |d| Some(View::dense("x", Layout::Bhnd, &[3, 2, 9, d], None).unwrap());
        Spec { past_key: of(5), past_value: of(7), ..spec() }
    }

    #[test]
    fn counts_follow_the_shapes() {
        let problem = with_past().check().unwrap();
        assert_eq!((problem.heads(), problem.kv_heads()), (6, 2));
        assert_eq!([0, 1, 2, 3, 4, 5].map(|head| problem.kv_head(head)), [0, 0, 0, 1, 1, 1]);
        assert_eq!((problem.head_dim(), problem.value_dim()), (5, 7));
        assert_eq!((problem.past(), problem.keys()), (9, 17));
        assert_eq!((problem.rows(), problem.sequences()), (72, 3));
        assert_eq!(problem.sequence(&Lengths::default(), 2).past, 9);
    }

    #[test]
    fn scores_are_in_base_2_units() {
        let scale = (1.0 / libm::sqrt(5.0)) as f32;
        let problem = spec().check().unwrap();
        assert_eq!((problem.scale(), problem.spec().scale), (scale, Some(scale)));
        assert_eq!(problem.score_factors(), ((f64::from(scale) * LOG2_E) as f32, 0.0));
        let capped = Spec { scale: Some(3.0), softcap: Some(20.0), ..spec() }.check().unwrap();
        assert_eq!(capped.score_factors(), (0.15, (20.0 * LOG2_E) as f32));
        let off = Spec { scale: Some(3.0), softcap: Some(0.0), ..spec() }.check().unwrap();
        assert_eq!((off.spec().softcap, off.score_factors().1), (None, 0.0));
    }

    #[test]
    fn each_limit_alone_masks() {
        let plain = spec();
        let (left, right) = (Window { left: Some(9), right: None }, Window { left: None, right: Some(9) });
        let mask = MaskView::dense(MaskKind::Bool, &[8]).ok();
        for (spec, masked, grows) in [
            (plain, false, false),
            (Spec { mask, ..plain }, true, false),
            (Spec { causal: Some(Alignment::TopLeft), ..plain }, true, true),
            (Spec { window: left, ..plain }, true, false),
            (Spec { window: right, ..plain }, true, true),
            (Spec { key_lengths: true, ..plain }, true, false),
        ] {
            let problem = spec.check().unwrap();
            assert_eq!((problem.is_masked(), problem.grows_with_the_row()), (masked, grows), "{spec:?}");
        }
    }

    #[test]
    fn memory_is_what_the_views_span() {
        let key = View::new("k", [3, 2, 8, 5], [0, 100, 6, 1]).unwrap();
        let mask = MaskView::dense(MaskKind::Additive(DType::F32), &[4, 8]).ok();
        let problem = Spec { key, mask, ..spec() }.check().unwrap();
        let of = |operand| problem.memory(operand).map(|m: Memory| (m.elements, m.bytes(), m.gaps()));
        assert_eq!(of(Operand::Query), Some((360, 720, None)));
        assert_eq!(of(Operand::Key), Some((147, 294, Some(key))));
        assert_eq!(of(Operand::Output), Some((504, 1008, None)));
        assert_eq!(of(Operand::Mask), Some((32, 128, None)));
        assert_eq!(of(Operand::StateSum), Some((72, 288, None)));
        assert_eq!(of(Operand::StateWeighted), Some((504, 2016, None)));
        assert_eq!(of(Operand::PastKey), None);
    }

    #[test]
    fn packed_sequences_lie_between_their_bounds() {
        let of = |n, d| View::dense("x", Layout::Bhnd, &[1, 2, n, d], None).unwrap();
        let spec = Spec::new(DType::F32, of(9, 4), of(11, 4), of(11, 4), of(9, 4));
        let problem = Spec { packed: Some(3), ..spec }.check().unwrap();
        let lengths = Lengths {
            cu_seqlens_q: Some(&[0, 3, 5, 9]),
            cu_seqlens_k: Some(&[0, 4, 10, 11]),
            ..Lengths::default()
        };
        assert_eq!(problem.sequences(), 3);
        for (index, want) in [(0, (0, 3, 0, 4)), (1, (3, 2, 4, 6)), (2, (5, 4, 10, 1))] {
            let s = problem.sequence(&lengths, index);
            assert_eq!((s.query0, s.queries, s.key0, s.keys), want);
            assert_eq!((s.batch, s.valid, s.past), (0, s.keys, 0));
        }
    }
}
