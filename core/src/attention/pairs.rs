//! Reads the scores and the values of a head, one key at a time, for the scalar implementations.

use super::addends::Addends;
use super::data::{Inputs, Outputs};
use super::problem::Problem;
use super::sequence::Sequence;
use crate::dtype::{Elements, ElementsMut};
use crate::state::{NaturalState, State, log_sum_exp};
use crate::view::View;

/// Longest chain of multiply-adds in a score.
pub(super) const CHAIN: usize = 64;

/// Rows of keys or of values: the new rows and, if they are in a separate tensor, the past rows.
#[derive(Clone, Copy)]
struct Rows<'a> {
    past: Option<(View, Elements<'a>)>,
    new: (View, Elements<'a>),
}

impl<'a> Rows<'a> {
    /// Returns the tensor that contains row `j` of a sequence, and the index of the row's first element.
    #[inline]
    fn at(&self, sequence: &Sequence, kv_head: usize, j: usize) -> (&Elements<'a>, usize) {
        // Past rows come first. Past and new rows are read in place, never copied.
        match &self.past {
            Some((view, elements)) if j < sequence.past => (elements, view.row(sequence.batch, kv_head, j)),
            _ => {
                let (view, elements) = &self.new;
                (elements, view.row(sequence.batch, kv_head, sequence.key0 + j - sequence.past))
            }
        }
    }
}

/// The elements of the present keys and values, after the call has written them; `None` if the problem does not append in
/// place.
pub type Present<'a> = Option<[Elements<'a>; 2]>;

/// Returns the elements of the present keys and values; `None` if the problem does not append in place.
pub(super) fn present<'a>(problem: &Problem, [key, value]: [&'a Option<ElementsMut<'_>>; 2]) -> Present<'a> {
    match (key, value) {
        (Some(key), Some(value)) if problem.spec().append => Some([key.elements(), value.elements()]),
        _ => None,
    }
}

/// The keys and values that a query head of a sequence attends, and everything added to its scores.
#[derive(Clone, Copy)]
pub(super) struct Pairs<'a> {
    sequence: Sequence,
    head: usize,
    kv_head: usize,
    keys: Rows<'a>,
    values: Rows<'a>,
    added: Option<Addends<'a>>,
    cap: f32,
}

impl<'a> Pairs<'a> {
    /// Creates the pairs of query head `head` of `sequence`.
    pub(super) fn new(
        problem: &Problem,
        inputs: &Inputs<'a>,
        present: Present<'a>,
        sequence: &Sequence,
        head: usize,
    ) -> Pairs<'a> {
        let s = problem.spec();
        let added = problem.modifies(sequence.batch).then(|| Addends::new(problem, inputs));
        // New rows are read from the key and value tensors or, if the problem appends in place, from the present
        // tensors.
        let (key, value) = match (s.present_key, s.present_value, present) {
            (Some(pk), Some(pv), Some([key, value])) => ((pk, key), (pv, value)),
            _ => ((s.key, inputs.key), (s.value, inputs.value)),
        };
        let past = inputs.past(problem);
        Pairs {
            sequence: *sequence,
            head,
            kv_head: problem.kv_head(head),
            keys: Rows { past: past.map(|[key, _]| key), new: key },
            values: Rows { past: past.map(|[_, value]| value), new: value },
            added,
            cap: problem.score_factors().1,
        }
    }

    /// Returns the value added to the score of row `i` and key `j`, in base-2 units; `−∞` if mask, bias or sides
    /// exclude the key. Key `j` must be in [`Sequence::range`] of the row.
    #[inline]
    pub(super) fn addend(&self, i: usize, j: usize) -> f32 {
        self.added.as_ref().map_or(0.0, |added| added.at(self.sequence.batch, self.head, i, j))
    }

    /// Returns element `x` of key `j`.
    #[inline]
    pub(super) fn key(&self, j: usize, x: usize) -> f32 {
        let (key, k) = self.keys.at(&self.sequence, self.kv_head, j);
        key.get(k + x)
    }

    /// Returns the score of `query` and key `j`, in base-2 units. `query` is a row loaded by [`query`], and `added` is
    /// the result of [`Pairs::added`].
    #[inline]
    pub(super) fn score(&self, query: &[f32], j: usize, added: f32) -> f32 {
        let (key, k) = self.keys.at(&self.sequence, self.kv_head, j);
        let score = self.capped(query, |x| key.get(k + x));
        if added != 0.0 { score + added } else { score }
    }

    /// Returns the score of `query` and a key before mask and bias are added. `key` returns a key element by its index.
    #[inline]
    pub(super) fn capped(&self, query: &[f32], key: impl Fn(usize) -> f32) -> f32 {
        let mut score = 0.0;
        for (n, chunk) in query.chunks(CHAIN).enumerate() {
            let mut chain = 0.0;
            for (x, q) in chunk.iter().enumerate() {
                chain += q * key(n * CHAIN + x);
            }
            score += chain;
        }
        if self.cap != 0.0 { self.cap * libm::tanhf(score) } else { score }
    }

    /// Returns the tensor that contains value row `j`, and the index of the row's first element.
    #[inline]
    pub(super) fn value(&self, j: usize) -> (&Elements<'a>, usize) {
        self.values.at(&self.sequence, self.kv_head, j)
    }
}

/// Loads query row `i` of `head`, multiplied by the factor that yields scores in base-2 units.
pub(super) fn query(
    problem: &Problem,
    inputs: &Inputs<'_>,
    sequence: &Sequence,
    head: usize,
    i: usize,
    to: &mut [f32],
) {
    let (factor, _) = problem.score_factors();
    let from = problem.spec().query.row(sequence.batch, head, sequence.query0 + i);
    for (x, q) in to.iter_mut().enumerate() {
        *q = inputs.query.get(from + x) * factor;
    }
}

/// Returns the index of row `i` in arrays of shape `[batch, heads, queries]`.
pub(super) fn number(problem: &Problem, sequence: &Sequence, head: usize, i: usize) -> usize {
    let tokens = problem.spec().query.tokens();
    (sequence.batch * problem.heads() + head) * tokens + sequence.query0 + i
}

/// Writes the requested outputs of row `i` of `head`, whose state is `state`. `left_out` is the sum of the weights that
/// the state omits; it is added to `S` for log-sum-exp only.
pub(super) fn write_row(
    problem: &Problem,
    outputs: &mut Outputs<'_>,
    sequence: &Sequence,
    head: usize,
    i: usize,
    state: &mut State<&mut [f32]>,
    left_out: f32,
) {
    let dv = problem.value_dim();
    let at = number(problem, sequence, head, i);
    if let Some(lse) = &mut outputs.lse {
        lse[at] = log_sum_exp(state.m, f64::from(state.s) + f64::from(left_out));
    }
    if let Some(out) = &mut outputs.state {
        let natural = NaturalState::of(state.m, state.s, 1.0, false);
        (out.m[at], out.s[at]) = (natural.m, natural.s);
        for (o, w) in out.w[at * dv..(at + 1) * dv].iter_mut().zip(state.w.iter()) {
            *o = natural.w(*w);
        }
    }
    if let Some(output) = &mut outputs.output {
        state.finish();
        let to = problem.spec().output.row(sequence.batch, head, sequence.query0 + i);
        for (x, w) in state.w.iter().enumerate() {
            output.set(to + x, *w);
        }
    }
}
