//! The problem: what is attended by what, checked once, as plain data.
//!
//! For every query row `i` of a sequence the answer is
//!
//! ```text
//! s_j = cap(scale · q_i · k_j) + mask_ij       for the keys j that row i attends
//! y_i = Σ_j exp(s_j) v_j / Σ_j exp(s_j)        zeros when it attends none
//! ```
//!
//! with `cap(s) = X · tanh(s / X)` where a soft cap is set. Which keys a row attends is the intersection of
//! - the valid keys of its sequence (all, or the first `key_lengths[b]`),
//! - `j ≤ i + offset` when causal,
//! - `i + offset − L ≤ j ≤ i + offset + R` with a window,
//! - the mask: true, or not `−∞`; keys beyond its last axis are not attended.
//!
//! A score that is `−∞` by arithmetic, from an infinite query or key, weighs nothing; what a NaN or an infinity
//! in the value of that key then does to the row is not specified.
//!
//! Scores are held in singles in units of `log 2`, and sums before they are divided: a row is only finite where
//! `|s_j| < 2.3e38`, every partial sum of `q_i · k_j` too, and `keys · 2^8 · max |v_j| < 3.4e38`. Beyond that it
//! may hold infinities and NaN, and scores below `−2.3e38` count as `−∞`.
//!
//! Keys are counted from the start of the past, where there is one. The first three make one interval per
//! row, [`Sequence::range`]; only the mask is looked up.

use crate::mask::{MaskElements, MaskKind, MaskView};
use crate::view::{DType, Elements, ElementsMut, View};
use core::fmt;

/// Why a problem, or the data bound to it, is refused. Each names the argument, what was found and what is
/// allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ProblemError {
    /// A tensor of a rank that its layout does not have.
    Rank {
        /** The tensor. */
        argument: &'static str,
        /** Its rank. */
        found: usize,
        /** Ranks that are allowed. */
        allowed: &'static str,
    },
    /// A tensor whose rows are not contiguous.
    DimStride {
        /** The tensor. */
        argument: &'static str,
        /** The stride of its last axis in elements. */
        found: usize,
    },
    /// A tensor whose elements cannot be indexed.
    TooLarge {
        /** The tensor. */
        argument: &'static str,
        /** `[batch, heads, tokens, dim]`. */
        shape: [usize; 4],
    },
    /// Layout `bnc` without a number of heads.
    HeadsMissing {
        /** The tensor. */
        argument: &'static str,
    },
    /// A last axis that the heads do not divide.
    HeadsDoNotDivide {
        /** The tensor. */
        argument: &'static str,
        /** Its last axis. */
        width: usize,
        /** Heads given. */
        heads: usize,
    },
    /// Query heads that the key heads do not divide.
    Groups {
        /** Query heads. */
        heads: usize,
        /** Key heads. */
        kv_heads: usize,
    },
    /// An axis that must have at least one element.
    Zero {
        /** The tensor. */
        argument: &'static str,
        /** The axis. */
        axis: &'static str,
    },
    /// An axis that must equal another tensor's.
    Mismatch {
        /** The tensor. */
        argument: &'static str,
        /** The axis. */
        axis: &'static str,
        /** Its size. */
        found: usize,
        /** The size that is allowed. */
        allowed: usize,
        /** Where that size comes from. */
        of: &'static str,
    },
    /// A number that must be finite, or within bounds.
    Number {
        /** The argument. */
        argument: &'static str,
        /** Its value. */
        found: f32,
        /** What is allowed. */
        allowed: &'static str,
    },
    /// A mask that does not broadcast.
    MaskShape {
        /** The axis from the left of `[batch, heads, q, k]`. */
        axis: &'static str,
        /** Its size. */
        found: usize,
        /** The size besides one. */
        allowed: usize,
    },
    /// An entry of a list of lengths that is out of bounds.
    Length {
        /** The list. */
        argument: &'static str,
        /** The entry. */
        index: usize,
        /** Its value. */
        found: i64,
        /** Least. */
        min: i64,
        /** Greatest. */
        max: i64,
    },
    /// Two arguments that exclude each other.
    Conflict {
        /** The argument. */
        argument: &'static str,
        /** The other. */
        other: &'static str,
    },
    /// An argument that another one needs.
    Needs {
        /** The argument. */
        argument: &'static str,
        /** What it needs. */
        other: &'static str,
    },
    /// Data of another type than the problem's.
    Type {
        /** The tensor. */
        argument: &'static str,
        /** Its type. */
        found: &'static str,
        /** The problem's. */
        allowed: &'static str,
    },
    /// A buffer that is too short for its view.
    Short {
        /** The tensor. */
        argument: &'static str,
        /** Its elements. */
        found: usize,
        /** Elements needed. */
        needed: usize,
    },
    /// A tensor that is written whose rows overlap.
    Overlap {
        /** The tensor. */
        argument: &'static str,
    },
}

impl fmt::Display for ProblemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ProblemError as E;
        match *self {
            E::Rank { argument, found, allowed } => write!(f, "{argument}: rank {found}; allowed: {allowed}"),
            E::DimStride { argument, found } => {
                write!(f, "{argument}: stride {found} along the head size; allowed: 1")
            }
            E::TooLarge { argument, shape: [b, h, n, d] } => {
                write!(
                    f,
                    "{argument}: shape [{b}, {h}, {n}, {d}] cannot be indexed; allowed: at most {} elements",
                    isize::MAX / 4
                )
            }
            E::HeadsMissing { argument } => {
                write!(
                    f,
                    "{argument}: layout bnc without a number of heads; allowed: a number that divides the last axis"
                )
            }
            E::HeadsDoNotDivide { argument, width, heads } => {
                write!(f, "{argument}: last axis {width} with {heads} heads; allowed: heads that divide it")
            }
            E::Groups { heads, kv_heads } => {
                write!(f, "k: {kv_heads} heads for {heads} query heads; allowed: a divisor of {heads}")
            }
            E::Zero { argument, axis } => write!(f, "{argument}: {axis} 0; allowed: at least 1"),
            E::Mismatch { argument, axis, found, allowed, of } => {
                write!(f, "{argument}: {axis} {found}; allowed: {allowed}, as {of} has")
            }
            E::Number { argument, found, allowed } => write!(f, "{argument}: {found}; allowed: {allowed}"),
            E::MaskShape { axis, found, allowed } if axis == "keys" => {
                write!(f, "mask: {found} {axis}; allowed: at most {allowed}")
            }
            E::MaskShape { axis, found, allowed } => {
                write!(f, "mask: {axis} {found}; allowed: 1 or {allowed}")
            }
            E::Length { argument, index, found, min, max } => {
                write!(f, "{argument}: entry {index} is {found}; allowed: {min} to {max}")
            }
            E::Conflict { argument, other } => {
                write!(f, "{argument}: given with {other}; allowed: one of the two")
            }
            E::Needs { argument, other } => {
                write!(f, "{argument}: given without {other}; allowed: both or neither")
            }
            E::Type { argument, found, allowed } => write!(f, "{argument}: type {found}; allowed: {allowed}"),
            E::Short { argument, found, needed } => {
                write!(f, "{argument}: {found} elements; allowed: at least {needed}")
            }
            E::Overlap { argument } => {
                write!(f, "{argument}: strides make rows overlap; allowed: rows that share no element")
            }
        }
    }
}

impl core::error::Error for ProblemError {}

/// Where the diagonal of a causal mask or a window starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// The offset is the length of the past: the first new query sees the first new key.
    TopLeft,
    /// The offset is valid keys minus queries: the last query sees the last valid key.
    BottomRight,
}

/// A sliding window around the diagonal; `None` is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Keys before the diagonal.
    pub left: Option<usize>,
    /// Keys after the diagonal.
    pub right: Option<usize>,
}

/// Everything that defines a problem, not yet checked. Make one with [`Spec::new`], set what differs from
/// plain attention, and check it with [`Spec::check`].
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Type of query, key, value, output, past and present.
    pub dtype: DType,
    /// `[batch, heads, queries, d]`.
    pub query: View,
    /// `[batch, kv_heads, keys, d]`.
    pub key: View,
    /// `[batch, kv_heads, keys, d_v]`.
    pub value: View,
    /// `[batch, heads, queries, d_v]`.
    pub output: View,
    /// Earlier keys, `[batch, kv_heads, past, d]`.
    pub past_key: Option<View>,
    /// Earlier values, `[batch, kv_heads, past, d_v]`.
    pub past_value: Option<View>,
    /// Where earlier and new keys are to be written, `[batch, kv_heads, past + keys, d]`.
    pub present_key: Option<View>,
    /// Where earlier and new values are to be written, `[batch, kv_heads, past + keys, d_v]`.
    pub present_value: Option<View>,
    /// Factor of the scores; `None` is `1 / sqrt(d)`.
    pub scale: Option<f32>,
    /// Causal, and from where the diagonal starts.
    pub causal: Option<Alignment>,
    /// A window around the diagonal.
    pub window: Window,
    /// `X` in `X · tanh(s / X)`; `None` or zero is off.
    pub softcap: Option<f32>,
    /// A boolean or additive mask.
    pub mask: Option<MaskView>,
    /// Whether the number of valid keys of each sequence comes with the data.
    pub key_lengths: bool,
    /// Number of sequences that query and key pack along their tokens (batch one), whose bounds come with
    /// the data.
    pub packed: Option<usize>,
}

impl Spec {
    /// Plain attention of `query` over `key` and `value` into `output`.
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
            scale: None,
            causal: None,
            window: Window::default(),
            softcap: None,
            mask: None,
            key_lengths: false,
            packed: None,
        }
    }

    /// Checks the whole and makes it a problem.
    ///
    /// # Errors
    /// Sizes that disagree, sizes of zero other than tokens, numbers that are not finite, masks that do not
    /// broadcast, arguments that exclude each other, outputs whose rows overlap.
    pub fn check(self) -> Result<Problem, ProblemError> {
        use ProblemError as E;
        let Spec { query, key, value, output, .. } = self;
        for (view, argument) in [(&query, "q"), (&key, "k"), (&value, "v")] {
            for (n, axis) in [(view.batch(), "batch"), (view.heads(), "heads"), (view.dim(), "head size")] {
                if n == 0 {
                    return Err(E::Zero { argument, axis });
                }
            }
        }
        let same = |argument, axis, found, allowed, of| {
            if found == allowed { Ok(()) } else { Err(E::Mismatch { argument, axis, found, allowed, of }) }
        };
        same("k", "batch", key.batch(), query.batch(), "q")?;
        same("k", "head size", key.dim(), query.dim(), "q")?;
        same("v", "batch", value.batch(), key.batch(), "k")?;
        same("v", "heads", value.heads(), key.heads(), "k")?;
        same("v", "tokens", value.tokens(), key.tokens(), "k")?;
        if !query.heads().is_multiple_of(key.heads()) {
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
                same("past-k", "batch", pk.batch(), key.batch(), "k")?;
                same("past-k", "heads", pk.heads(), key.heads(), "k")?;
                same("past-k", "head size", pk.dim(), key.dim(), "k")?;
                same("past-v", "batch", pv.batch(), value.batch(), "v")?;
                same("past-v", "heads", pv.heads(), value.heads(), "v")?;
                same("past-v", "head size", pv.dim(), value.dim(), "v")?;
                same("past-v", "tokens", pv.tokens(), past, "past-k")?;
            }
            (None, None) => {}
            (Some(_), None) => return Err(E::Needs { argument: "past-k", other: "past-v" }),
            (None, Some(_)) => return Err(E::Needs { argument: "past-v", other: "past-k" }),
        }
        let Some(keys) = past.checked_add(key.tokens()) else {
            return Err(E::TooLarge { argument: "past-k", shape: key.shape() });
        };
        for (view, argument, dim) in
            [(&self.present_key, "present-k", key.dim()), (&self.present_value, "present-v", value.dim())]
        {
            if let Some(view) = view {
                writes(argument, view, [key.batch(), key.heads(), keys, dim], "past and k")?;
            }
        }
        if let Some(sequences) = self.packed {
            if sequences == 0 {
                return Err(E::Zero { argument: "cu-seqlens-q", axis: "sequences" });
            }
            same("q", "batch", query.batch(), 1, "a packed tensor")?;
            let given = [
                (self.past_key.is_some(), "past-k"),
                (self.present_key.is_some(), "present-k"),
                (self.present_value.is_some(), "present-v"),
                (self.mask.is_some(), "mask"),
                (self.key_lengths, "kv-lens"),
            ];
            for (given, argument) in given {
                if given {
                    return Err(E::Conflict { argument, other: "cu-seqlens-q" });
                }
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
                allowed: "0 (off) or a positive finite number",
            });
        }
        if let Some(mask) = &self.mask {
            mask.check([query.batch(), query.heads(), query.tokens(), keys])?;
        }
        let scale = match self.scale {
            Some(scale) => scale,
            // Rounded once, from the exact quotient.
            None => (1.0 / libm::sqrt(query.dim() as f64)) as f32,
        };
        let problem = Problem { spec: Spec { softcap, scale: Some(scale), ..self }, scale, past, keys };
        // What queries and capped scores are multiplied by must not lose its precision.
        let (factor, after) = crate::attention::score_factors(&problem);
        let factor_holds = factor.is_normal() || scale == 0.0;
        match softcap {
            Some(found) if !(factor_holds && after.is_normal()) => Err(E::Number {
                argument: "softcap",
                found,
                allowed: "0 (off) or X with X log2(e) and scale / X normal singles",
            }),
            None if !factor_holds => Err(E::Number {
                argument: "scale",
                found: scale,
                allowed: "0, or a number that times log2(e) is a normal single",
            }),
            _ => Ok(problem),
        }
    }
}

/// A checked problem.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    spec: Spec,
    scale: f32,
    past: usize,
    keys: usize,
}

impl Problem {
    /// What it was made from, with the scale filled in and a soft cap of zero taken out.
    #[must_use]
    pub const fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Factor of the scores.
    #[must_use]
    pub const fn scale(&self) -> f32 {
        self.scale
    }

    /// Query heads.
    #[must_use]
    pub const fn heads(&self) -> usize {
        self.spec.query.heads()
    }

    /// Key heads.
    #[must_use]
    pub const fn kv_heads(&self) -> usize {
        self.spec.key.heads()
    }

    /// The key head that a query head uses.
    #[must_use]
    pub const fn kv_head(&self, head: usize) -> usize {
        head / (self.heads() / self.kv_heads())
    }

    /// Head size of queries and keys.
    #[must_use]
    pub const fn head_dim(&self) -> usize {
        self.spec.query.dim()
    }

    /// Head size of values and output.
    #[must_use]
    pub const fn value_dim(&self) -> usize {
        self.spec.value.dim()
    }

    /// Keys before the first new one.
    #[must_use]
    pub const fn past(&self) -> usize {
        self.past
    }

    /// Keys in all, the past included; of all sequences together when packed.
    #[must_use]
    pub const fn keys(&self) -> usize {
        self.keys
    }

    /// Query rows: `batch · heads · queries`.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.spec.query.batch() * self.heads() * self.spec.query.tokens()
    }

    /// Sequences: the batch, or those that are packed.
    #[must_use]
    pub const fn sequences(&self) -> usize {
        match self.spec.packed {
            Some(n) => n,
            None => self.spec.query.batch(),
        }
    }

    /// The geometry of sequence `index` with lengths that [`Inputs::check`] has accepted.
    #[must_use]
    pub fn sequence(&self, inputs: &Inputs<'_>, index: usize) -> Sequence {
        let mut s = match (self.spec.packed, inputs.cu_seqlens_q, inputs.cu_seqlens_k) {
            (Some(_), Some(cq), Some(ck)) => {
                let (q0, k0) = (cq[index] as usize, ck[index] as usize);
                let (queries, keys) = (cq[index + 1] as usize - q0, ck[index + 1] as usize - k0);
                Sequence { batch: 0, query0: q0, queries, key0: k0, keys, valid: keys, ..Sequence::default() }
            }
            _ => {
                let valid = match inputs.key_lengths {
                    Some(lengths) if self.spec.key_lengths => lengths[index] as usize,
                    _ => self.keys,
                };
                let queries = self.spec.query.tokens();
                Sequence { batch: index, queries, keys: self.keys, valid, ..Sequence::default() }
            }
        };
        s.past = self.past;
        let aligned = match self.spec.causal {
            Some(Alignment::BottomRight) => s.valid as isize - s.queries as isize,
            Some(Alignment::TopLeft) | None => s.past as isize,
        };
        s.offset = aligned;
        s.left = self.spec.window.left;
        s.right = match (self.spec.causal, self.spec.window.right) {
            (Some(_), _) => Some(0),
            (None, right) => right,
        };
        s.reach = match &self.spec.mask {
            Some(mask) => s.valid.min(mask.reach(s.keys)),
            None => s.valid,
        };
        s
    }
}

/// One sequence of a batch: where its tokens lie and which interval of keys each row attends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Index along the batch axis of the tensors; zero when packed.
    pub batch: usize,
    /// First query token in the query view.
    pub query0: usize,
    /// Query tokens.
    pub queries: usize,
    /// First key token in the key view.
    pub key0: usize,
    /// Keys, the past included.
    pub keys: usize,
    /// Keys before the first of the key view.
    pub past: usize,
    /// Keys that are valid.
    pub valid: usize,
    /// Valid keys that the mask reaches.
    reach: usize,
    /// Column of the diagonal in row zero.
    offset: isize,
    left: Option<usize>,
    right: Option<usize>,
}

impl Sequence {
    /// Keys that are valid and that the mask reaches.
    #[must_use]
    pub const fn reach(&self) -> usize {
        self.reach
    }

    /// Column of the diagonal in row zero, counted from the first key.
    #[must_use]
    pub const fn offset(&self) -> isize {
        self.offset
    }

    /// Keys before the diagonal that a row attends; `None` is open.
    #[must_use]
    pub const fn left(&self) -> Option<usize> {
        self.left
    }

    /// Keys after the diagonal that a row attends; `None` is open, and causal is zero.
    #[must_use]
    pub const fn right(&self) -> Option<usize> {
        self.right
    }

    /// The keys `start..end` that row `i` may attend by length, causality and window; `start == end` when
    /// none. Neither end ever decreases with `i`.
    #[inline]
    #[must_use]
    pub fn range(&self, i: usize) -> (usize, usize) {
        let diagonal = self.offset.saturating_add_unsigned(i);
        let start = match self.left {
            Some(left) => diagonal.saturating_sub_unsigned(left).max(0) as usize,
            None => 0,
        };
        let end = match self.right {
            Some(right) => diagonal.saturating_add_unsigned(right).saturating_add(1).max(0) as usize,
            None => usize::MAX,
        };
        let end = end.min(self.reach);
        (start.min(end), end)
    }

    /// The smallest interval that holds every key which a row of `rows` may attend, and the largest that
    /// every one of them attends by length, causality and window.
    #[must_use]
    pub fn ranges(
        &self,
        rows: core::ops::Range<usize>,
    ) -> (core::ops::Range<usize>, core::ops::Range<usize>) {
        if rows.is_empty() {
            return (0..0, 0..0);
        }
        // Both ends never decrease with the row, so the outermost rows decide.
        let (first, last) = (self.range(rows.start), self.range(rows.end - 1));
        let all = if last.0 < first.1 { last.0..first.1 } else { 0..0 };
        (first.0..last.1, all)
    }
}

/// The data of a problem that is read.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Elements of the query view.
    pub query: Elements<'a>,
    /// Elements of the key view.
    pub key: Elements<'a>,
    /// Elements of the value view.
    pub value: Elements<'a>,
    /// Elements of the past keys.
    pub past_key: Option<Elements<'a>>,
    /// Elements of the past values.
    pub past_value: Option<Elements<'a>>,
    /// Elements of the mask.
    pub mask: Option<MaskElements<'a>>,
    /// Valid keys of each sequence, `[batch]`.
    pub key_lengths: Option<&'a [i64]>,
    /// Bounds of the packed sequences among the queries, `[sequences + 1]`.
    pub cu_seqlens_q: Option<&'a [i64]>,
    /// Bounds of the packed sequences among the keys, `[sequences + 1]`.
    pub cu_seqlens_k: Option<&'a [i64]>,
}

impl<'a> Inputs<'a> {
    /// Query, key and value, and nothing else.
    #[must_use]
    pub fn new(query: Elements<'a>, key: Elements<'a>, value: Elements<'a>) -> Inputs<'a> {
        Inputs {
            query,
            key,
            value,
            past_key: None,
            past_value: None,
            mask: None,
            key_lengths: None,
            cu_seqlens_q: None,
            cu_seqlens_k: None,
        }
    }

    /// Checks that the data are those of `problem`: types, lengths of buffers, lengths of sequences.
    ///
    /// # Errors
    /// The first thing that is not as the problem says.
    pub fn check(&self, problem: &Problem) -> Result<(), ProblemError> {
        use ProblemError as E;
        let s = problem.spec();
        let tensor = |argument, view: Option<&View>, data: Option<Elements<'_>>| match (view, data) {
            (Some(view), Some(data)) => covers(argument, s.dtype, view, data.dtype(), data.len()),
            (None, None) => Ok(()),
            (Some(_), None) => Err(E::Needs { argument, other: "its data" }),
            (None, Some(_)) => Err(E::Needs { argument, other: "its shape in the problem" }),
        };
        tensor("q", Some(&s.query), Some(self.query))?;
        tensor("k", Some(&s.key), Some(self.key))?;
        tensor("v", Some(&s.value), Some(self.value))?;
        tensor("past-k", s.past_key.as_ref(), self.past_key)?;
        tensor("past-v", s.past_value.as_ref(), self.past_value)?;
        match (&s.mask, &self.mask) {
            (Some(mask), Some(data)) => {
                let found = data.kind();
                if found != mask.kind() {
                    return Err(E::Type {
                        argument: "mask",
                        found: found.name(),
                        allowed: mask.kind().name(),
                    });
                }
                if data.len() < mask.extent() {
                    return Err(E::Short { argument: "mask", found: data.len(), needed: mask.extent() });
                }
            }
            (None, None) => {}
            (Some(_), None) => return Err(E::Needs { argument: "mask", other: "its data" }),
            (None, Some(_)) => return Err(E::Needs { argument: "mask", other: "its shape in the problem" }),
        }
        self.check_lengths(problem)
    }

    /// Checks the lengths of keys and the bounds of packed sequences, and nothing else.
    ///
    /// # Errors
    /// The first list, or entry of a list, that is not as the problem says.
    pub fn check_lengths(&self, problem: &Problem) -> Result<(), ProblemError> {
        use ProblemError as E;
        let s = problem.spec();
        match (s.key_lengths, self.key_lengths) {
            (true, Some(lengths)) => {
                let allowed = s.query.batch();
                if lengths.len() != allowed {
                    return Err(E::Mismatch {
                        argument: "kv-lens",
                        axis: "entries",
                        found: lengths.len(),
                        allowed,
                        of: "the batch",
                    });
                }
                let max = problem.keys() as i64;
                for (index, &found) in lengths.iter().enumerate() {
                    if !(0..=max).contains(&found) {
                        return Err(E::Length { argument: "kv-lens", index, found, min: 0, max });
                    }
                }
            }
            (false, None) => {}
            (true, None) => return Err(E::Needs { argument: "kv-lens", other: "its data" }),
            (false, Some(_)) => {
                return Err(E::Needs { argument: "kv-lens", other: "its mention in the problem" });
            }
        }
        let bounds = [
            ("cu-seqlens-q", self.cu_seqlens_q, s.query.tokens()),
            ("cu-seqlens-k", self.cu_seqlens_k, s.key.tokens()),
        ];
        for (argument, list, total) in bounds {
            match (s.packed, list) {
                (Some(n), Some(list)) => bounds_hold(argument, list, n, total as i64)?,
                (None, None) => {}
                (Some(_), None) => return Err(E::Needs { argument, other: "its data" }),
                (None, Some(_)) => return Err(E::Needs { argument, other: "its mention in the problem" }),
            }
        }
        Ok(())
    }
}

/// Cumulative lengths: `sequences + 1` entries that start at zero, never decrease and end at `total`.
fn bounds_hold(
    argument: &'static str,
    list: &[i64],
    sequences: usize,
    total: i64,
) -> Result<(), ProblemError> {
    use ProblemError as E;
    if list.len().checked_sub(1) != Some(sequences) {
        let (of, allowed) = ("one more than the sequences", sequences.saturating_add(1));
        return Err(E::Mismatch { argument, axis: "entries", found: list.len(), allowed, of });
    }
    let mut before = 0;
    for (index, &found) in list.iter().enumerate() {
        let (min, max) = match index {
            0 => (0, 0),
            i if i == sequences => (total, total),
            _ => (before, total),
        };
        if found < min || found > max {
            return Err(E::Length { argument, index, found, min, max });
        }
        before = found;
    }
    Ok(())
}

fn covers(
    argument: &'static str,
    dtype: DType,
    view: &View,
    found: DType,
    len: usize,
) -> Result<(), ProblemError> {
    if found != dtype {
        return Err(ProblemError::Type { argument, found: found.name(), allowed: dtype.name() });
    }
    if len < view.extent() {
        return Err(ProblemError::Short { argument, found: len, needed: view.extent() });
    }
    Ok(())
}

/// The state `(m, S, W)` of every row, in natural units: `S = Σ exp(s_j − m)`, `W = Σ exp(s_j − m) v_j`.
/// `m` lies near the largest score; any reference gives the same `W / S`.
#[derive(Debug)]
pub struct StateOut<'a> {
    /// `[batch, heads, queries]`, natural logarithm; `−∞` for a row with no key.
    pub m: &'a mut [f32],
    /// `[batch, heads, queries]`.
    pub s: &'a mut [f32],
    /// `[batch, heads, queries, d_v]`.
    pub w: &'a mut [f32],
}

/// The data of a problem that is written.
#[derive(Debug)]
pub struct Outputs<'a> {
    /// Elements of the output view.
    pub output: ElementsMut<'a>,
    /// Log-sum-exp of each row, `[batch, heads, queries]`, natural logarithm; `−∞` for a row with no key.
    pub lse: Option<&'a mut [f32]>,
    /// The state of each row.
    pub state: Option<StateOut<'a>>,
    /// Elements of the present keys.
    pub present_key: Option<ElementsMut<'a>>,
    /// Elements of the present values.
    pub present_value: Option<ElementsMut<'a>>,
}

impl<'a> Outputs<'a> {
    /// The output, and nothing else.
    #[must_use]
    pub fn new(output: ElementsMut<'a>) -> Outputs<'a> {
        Outputs { output, lse: None, state: None, present_key: None, present_value: None }
    }

    /// Checks that the buffers are those of `problem`.
    ///
    /// # Errors
    /// The first buffer whose type or length is not as the problem says.
    pub fn check(&self, problem: &Problem) -> Result<(), ProblemError> {
        use ProblemError as E;
        let s = problem.spec();
        covers("out", s.dtype, &s.output, self.output.dtype(), self.output.len())?;
        for (argument, view, data) in [
            ("present-k", &s.present_key, &self.present_key),
            ("present-v", &s.present_value, &self.present_value),
        ] {
            match (view, data) {
                (Some(view), Some(data)) => covers(argument, s.dtype, view, data.dtype(), data.len())?,
                (None, None) => {}
                (Some(_), None) => return Err(E::Needs { argument, other: "its buffer" }),
                (None, Some(_)) => return Err(E::Needs { argument, other: "its shape in the problem" }),
            }
        }
        let rows = problem.rows();
        let exact = |argument, found, needed| {
            if found == needed {
                Ok(())
            } else {
                Err(E::Mismatch { argument, axis: "elements", found, allowed: needed, of: "the output" })
            }
        };
        if let Some(lse) = &self.lse {
            exact("lse-out", lse.len(), rows)?;
        }
        if let Some(state) = &self.state {
            exact("state-out m", state.m.len(), rows)?;
            exact("state-out s", state.s.len(), rows)?;
            exact("state-out w", state.w.len(), rows * problem.value_dim())?;
        }
        Ok(())
    }
}

impl MaskKind {
    /// `bool`, `f32`, `f16` or `bf16`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            MaskKind::Bool => "bool",
            MaskKind::Additive(dtype) => dtype.name(),
        }
    }
}
