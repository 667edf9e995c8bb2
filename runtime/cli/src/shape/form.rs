//! The parts of a shape, and the problem that they define.

use crate::error::Error;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::{
    Alignment, BiasView, MaskKind, MaskView, Problem, Spec, TableView, Window, Windows,
};
use elsa_core::dtype::DType;
use elsa_core::view::{Layout, View};
use std::fmt::{self, Display, Formatter};

/// Alignments of a causal mask by name. The first is the alignment that `causal` without a value selects.
pub const ALIGNMENTS: [(&str, Alignment); 2] =
    [("top-left", Alignment::TopLeft), ("bottom-right", Alignment::BottomRight)];

/// The sizes and the semantics of a problem with dense tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of sequences.
    pub batch: usize,
    /// Number of heads of the queries.
    pub heads: usize,
    /// Number of query tokens per sequence.
    pub queries: usize,
    /// Number of key tokens per sequence.
    pub keys: usize,
    /// Head size, which is the same for keys and values.
    pub dim: usize,
    /// Number of heads of keys and values; a divisor of `heads`.
    pub kv_heads: usize,
    /// Alignment of the causal mask, if there is one.
    pub causal: Option<Alignment>,
    /// Sliding window around the diagonal.
    pub window: Window,
    /// The mask, if there is one.
    pub mask: Option<MaskForm>,
    /// Windows of a picture; `None` if the sequences are not square windows. With windows, a table of relative
    /// positions is added to the scores.
    pub windows: Option<Windows>,
    /// Length of the shortest sequence; `None` if the sequences are not packed one after another. For packed sequences,
    /// `queries` and `keys` are the length of the longest sequence.
    pub packed: Option<usize>,
}

/// Form of a mask: its kind, and the axes along which it varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskForm {
    /// Boolean, `[B, H, NQ, NK]`, with random elements that are mostly true.
    Bool,
    /// Boolean, `[B, H, NQ, NK]`, true everywhere.
    True,
    /// Boolean, `[B, 1, 1, NK]`: true for the first keys of each sequence. The number of these keys decreases from one
    /// sequence to the next.
    Padding,
    /// Additive, `[B, H, NQ, NK]`.
    Float,
    /// Additive, `[1, H, NQ, NK]`: all sequences share it.
    Bias,
    /// Additive, `[B, 1, NQ, NK]`: all heads of a sequence share it.
    Batch,
    /// Additive, `[B, 1, 1, NK]`: all queries of a sequence share it.
    Row,
}

impl MaskForm {
    /// Every form, with its name in the notation of shapes.
    pub const ALL: [(&str, MaskForm); 7] = [
        ("bool", MaskForm::Bool),
        ("true", MaskForm::True),
        ("padding", MaskForm::Padding),
        ("float", MaskForm::Float),
        ("bias", MaskForm::Bias),
        ("batch", MaskForm::Batch),
        ("row", MaskForm::Row),
    ];

    /// Returns the name of the form in the notation of shapes.
    #[must_use]
    pub fn name(self) -> &'static str {
        MaskForm::ALL.into_iter().find(|(_, form)| *form == self).map_or("", |(name, _)| name)
    }

    /// Returns `true` if the elements are booleans, and `false` if they are added to the scores.
    #[must_use]
    pub const fn is_boolean(self) -> bool {
        matches!(self, MaskForm::Bool | MaskForm::True | MaskForm::Padding)
    }

    /// Returns the lengths of the axes of the mask for `shape`. An axis along which the mask does not vary has length
    /// one.
    #[must_use]
    pub const fn axes(self, shape: &Shape) -> [usize; 4] {
        let Shape { batch, heads, queries, keys, .. } = *shape;
        match self {
            MaskForm::Bool | MaskForm::True | MaskForm::Float => [batch, heads, queries, keys],
            MaskForm::Bias => [1, heads, queries, keys],
            MaskForm::Batch => [batch, 1, queries, keys],
            MaskForm::Padding | MaskForm::Row => [batch, 1, 1, keys],
        }
    }
}

impl Shape {
    /// Creates a shape of plain attention.
    #[must_use]
    pub const fn plain(batch: usize, heads: usize, queries: usize, keys: usize, dim: usize) -> Shape {
        let window = Window { left: None, right: None };
        Shape {
            batch,
            heads,
            queries,
            keys,
            dim,
            kv_heads: heads,
            causal: None,
            window,
            mask: None,
            windows: None,
            packed: None,
        }
    }

    /// Returns the start of each packed sequence, and the end of the last sequence. The lengths are spread evenly from
    /// the shortest to the longest, in an order that mixes short and long sequences. Returns `None` if sequences are
    /// not packed.
    #[must_use]
    pub fn bounds(self) -> Option<Vec<i64>> {
        let shortest = self.packed?;
        let steps = self.batch.saturating_sub(1).max(1);
        let mut end = 0;
        let ends = (0..self.batch).map(|b| {
            // Takes the lengths alternately from both ends: 0, n - 1, 1, n - 2, and so on.
            let rank = if b % 2 == 0 { b / 2 } else { self.batch - 1 - b / 2 };
            end += shortest + (self.queries - shortest) * rank / steps;
            i64::try_from(end).unwrap_or(i64::MAX)
        });
        Some(std::iter::once(0).chain(ends).collect())
    }

    /// Builds the problem of attention over dense tensors `[batch, heads, tokens, dim]`, without checking it. Elements
    /// of an additive mask and of a table have the same type as the tensors.
    ///
    /// # Errors
    /// Returns an error if the product of the sizes overflows.
    pub fn spec(self, dtype: DType) -> Result<Spec, Error> {
        self.unnamed(dtype).map_err(named)
    }

    /// Builds the problem like [`Shape::spec`], and checks it.
    ///
    /// # Errors
    /// Returns an error if the sizes do not form a valid problem.
    pub fn problem(self, dtype: DType) -> Result<Problem, Error> {
        self.unnamed(dtype).and_then(Spec::check).map_err(named)
    }

    /// Builds the problem like [`Shape::spec`]. The errors name tensors, not parts of the shape.
    fn unnamed(self, dtype: DType) -> Result<Spec, ArgumentError> {
        let Shape { batch, heads, queries, keys, dim, kv_heads, .. } = self;
        let total = self.bounds().and_then(|bounds| usize::try_from(*bounds.last()?).ok());
        let view = |name, heads, tokens| match total {
            Some(total) => View::dense(name, Layout::Bnhd, &[total, heads, dim], None),
            None => View::dense(name, Layout::Bhnd, &[batch, heads, tokens, dim], None),
        };
        let (query, output) = (view("q", heads, queries)?, view("out", heads, queries)?);
        let mut spec =
            Spec::new(dtype, query, view("k", kv_heads, keys)?, view("v", kv_heads, keys)?, output);
        spec.causal = self.causal;
        spec.window = self.window;
        if let Some(mask) = self.mask {
            let kind = if mask.is_boolean() { MaskKind::Bool } else { MaskKind::Additive(dtype) };
            spec.mask = Some(MaskView::dense(kind, &mask.axes(&self))?);
        }
        if let Some(windows) = self.windows {
            let table = TableView { dtype, entries: windows.entries(), heads, indexed: false };
            spec.bias = Some(BiasView::Table(table));
            spec.windows = Some(windows);
        }
        spec.packed = total.map(|_| batch);
        Ok(spec)
    }

    /// Counts the operations of both matrix products of a call over all pairs, attended or not:
    /// `4 · batch · heads · queries · keys · dim`. For packed sequences, the counts of the sequences are added up.
    #[must_use]
    pub fn operations(self) -> f64 {
        let pairs = match self.bounds() {
            Some(bounds) => bounds.windows(2).map(|ends| ((ends[1] - ends[0]) as f64).powi(2)).sum(),
            None => [self.batch, self.queries, self.keys].map(|n| n as f64).iter().product::<f64>(),
        };
        4.0 * pairs * self.heads as f64 * self.dim as f64
    }

    /// Counts the query tokens of a call, in all sequences. Heads do not count.
    #[must_use]
    pub fn tokens(self) -> f64 {
        match self.bounds().and_then(|bounds| bounds.last().copied()) {
            Some(total) => total as f64,
            None => self.batch as f64 * self.queries as f64,
        }
    }

    /// Returns the name of the causal mask's alignment, if there is a causal mask.
    #[must_use]
    pub fn corner(self) -> Option<&'static str> {
        let of =
            |causal| ALIGNMENTS.iter().find(|(_, alignment)| *alignment == causal).map(|(name, _)| *name);
        self.causal.and_then(of)
    }

    /// Returns the left and right sizes of the window, with −1 for an open side; `None` without a window.
    #[must_use]
    pub fn sides(self) -> Option<[i64; 2]> {
        let side = |side: Option<usize>| side.map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX));
        let Window { left, right } = self.window;
        (self.window != Window::default()).then(|| [side(left), side(right)])
    }

    /// Returns the parts of the shape after its five sizes, in the notation of the command line.
    #[must_use]
    pub fn parts(self) -> Vec<String> {
        let kv = (self.kv_heads != self.heads).then(|| format!("kv={}", self.kv_heads));
        let causal = self.causal.map(|alignment| {
            if alignment == ALIGNMENTS[0].1 {
                "causal".to_owned()
            } else {
                format!("causal={}", self.corner().unwrap_or_default())
            }
        });
        let window = self.sides().map(|[left, right]| format!("window={left}:{right}"));
        let mask = self.mask.map(|mask| format!("mask={}", mask.name()));
        let swin =
            self.windows.map(
                |Windows { picture: [h, w], shift: [s, _], .. }| {
                    if s == 0 { format!("swin={h}x{w}") } else { format!("swin={h}x{w}:{s}") }
                },
            );
        let packed = self.packed.map(|shortest| format!("packed={shortest}"));
        [kv, causal, window, mask, swin, packed].into_iter().flatten().collect()
    }
}

/// Converts an error about a tensor to an error about the user's shape.
fn named(e: ArgumentError) -> Error {
    Error::Problem(e.renamed(|_| "shape"))
}

impl Display for Shape {
    /// Writes the shape in the notation of the command line.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Shape { batch, heads, queries, keys, dim, .. } = self;
        let parts: String = self.parts().iter().map(|part| format!(",{part}")).collect();
        f.pad(&format!("{batch},{heads},{queries},{keys},{dim}{parts}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_what_shapes_say() {
        let problem = |text: &str| text.parse::<Shape>().unwrap().problem(DType::F32).unwrap();
        let grouped = problem("2,8,30,40,16,kv=2,causal=top-left,window=9:-1,mask=batch");
        let spec = grouped.spec();
        assert_eq!((spec.query.shape(), spec.key.shape()), ([2, 8, 30, 16], [2, 2, 40, 16]));
        assert_eq!((spec.value.shape(), spec.output.shape()), ([2, 2, 40, 16], [2, 8, 30, 16]));
        let window = Window { left: Some(9), right: None };
        assert_eq!((spec.causal, spec.window), (Some(Alignment::TopLeft), window));
        let mask = spec.mask.map(|mask| (mask.kind(), mask.shape()));
        assert_eq!(mask, Some((MaskKind::Additive(DType::F32), [2, 1, 30, 40])));
        assert_eq!((spec.bias, spec.windows), (None, None));

        let swin = problem("8,3,16,16,8,mask=padding,swin=8x8:1");
        let windows = Windows { picture: [8; 2], size: [4; 2], shift: [1; 2] };
        let table = TableView { dtype: DType::F32, entries: 49, heads: 3, indexed: false };
        assert_eq!((swin.spec().windows, swin.spec().bias), (Some(windows), Some(BiasView::Table(table))));
        assert_eq!(
            swin.spec().mask.map(|mask| (mask.kind(), mask.shape())),
            Some((MaskKind::Bool, [8, 1, 1, 16]))
        );

        let shape: Shape = "2,3,5,7,11,kv=1,causal".parse().unwrap();
        assert_eq!((shape.operations(), shape.corner()), (4.0 * 2310.0, Some("top-left")));
        assert_eq!(shape.tokens(), 10.0);

        // The five sequences have lengths 10, 30, 15, 25 and 20.
        let shape: Shape = "5,6,30,30,8,kv=2,packed=10".parse().unwrap();
        assert_eq!((shape.bounds(), shape.tokens()), (Some(vec![0, 10, 40, 55, 80, 100]), 100.0));
        let packed = shape.problem(DType::F32).unwrap();
        let spec = packed.spec();
        assert_eq!((spec.query.shape(), spec.key.shape()), ([1, 6, 100, 8], [1, 2, 100, 8]));
        assert_eq!((spec.packed, packed.sequences()), (Some(5), 5));
        assert_eq!(shape.operations(), 4.0 * 6.0 * 8.0 * (100.0 + 900.0 + 225.0 + 625.0 + 400.0));
        assert_eq!("1,1,7,7,8,packed=7".parse::<Shape>().unwrap().bounds(), Some(vec![0, 7]));
    }
}
