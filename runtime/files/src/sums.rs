//! Checksums per token. They distinguish files whose tensors have equal shapes but different elements.
//!
//! The checksum of a query token covers its queries in all batches and heads. The checksum of a key token covers its
//! keys and values. In files of gradient shares, each query token has a second checksum, which covers the gradient of
//! its output. A token has the same checksum in every task that contains it, so the checksums of all tokens can be
//! assembled from those of the tasks.
//!
//! A checksum is a polynomial over the bits of the elements, modulo 2^64, in a constant base. Its lowest bit is set, so
//! that zero can mean "no checksum". Two different tokens collide by chance once in 2^63; collisions can be constructed
//! on purpose.

use crate::{MemoryError, reserved};
use elsa_core::attention::{Inputs, Problem};
use elsa_core::dtype::Elements;
use elsa_core::quorum::{Run, Task};
use elsa_core::view::View;
use std::iter::zip;

/// Names of the arrays with the checksums of queries, of keys and values, and of the output's gradient.
pub const NAMES: [&str; 3] = ["query_sums", "key_sums", "d_out_sums"];

/// Names of the tensors that the checksums cover, for messages, in the order of [`NAMES`].
pub const TOKENS: [&str; 3] = ["queries", "keys and values", "d-out"];

/// The base of the polynomial.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// Checksums of tokens in the order of [`NAMES`]; empty if the run has a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums(pub [Vec<i64>; 3]);

/// Extends the checksum of each token of `view` by the token's rows. The token's rows in a batch are left out if
/// `counts(batch, token)` is `false`.
fn fold(sums: &mut [u64], view: &View, data: &Elements<'_>, counts: &dyn Fn(usize, usize) -> bool) {
    fn rows<T: Copy>(
        sums: &mut [u64],
        view: &View,
        data: &[T],
        counts: &dyn Fn(usize, usize) -> bool,
        bits: impl Fn(T) -> u64,
    ) {
        let [batches, heads, tokens, dim] = view.shape();
        for (token, sum) in sums.iter_mut().enumerate().take(tokens) {
            for batch in (0..batches).filter(|batch| counts(*batch, token)) {
                for head in 0..heads {
                    let at = view.row(batch, head, token);
                    let row = data.get(at..at + dim).unwrap_or_default();
                    *sum = row.iter().fold(*sum, |sum, x| sum.wrapping_mul(BASE).wrapping_add(bits(*x)));
                }
            }
        }
    }
    match data {
        Elements::F32(x) => rows(sums, view, x, counts, |x| x.to_bits().into()),
        Elements::F16(x) => rows(sums, view, x, counts, |x| x.to_bits().into()),
        Elements::Bf16(x) => rows(sums, view, x, counts, |x| x.to_bits().into()),
    }
}

/// Computes one checksum per token. The checksum covers the token's rows in the first tensor, then its rows in the next
/// tensor, and so on.
fn of_tokens(
    tensors: &[(&View, &Elements<'_>)],
    counts: &dyn Fn(usize, usize) -> bool,
) -> Result<Vec<i64>, MemoryError> {
    let tokens = tensors.first().map_or(0, |(view, _)| view.tokens());
    let mut sums = room::<u64>(tokens)?;
    sums.resize(tokens, 1);
    for (view, data) in tensors {
        fold(&mut sums, view, data, counts);
    }
    let mut finished = room(tokens)?;
    finished.extend(sums.into_iter().map(|sum| (sum ^ sum >> 32) as i64 | 1));
    Ok(finished)
}

fn room<T>(count: usize) -> Result<Vec<T>, MemoryError> {
    reserved(count).map_err(|bytes| MemoryError { argument: "q", bytes })
}

impl Sums {
    /// Computes the checksums of the inputs of `problem`. The inputs contain the tokens of `task`, or all tokens if
    /// `task` is `None`. `upstream` is the gradient of the output in a backward pass. The checksums of past keys
    /// precede the checksums of the other keys. Keys beyond the length of their sequence are left out, because their
    /// values are arbitrary.
    ///
    /// # Errors
    /// Returns an error if the system refuses the memory.
    pub fn of(
        problem: &Problem,
        inputs: &Inputs<'_>,
        task: Option<&Task>,
        upstream: Option<&Elements<'_>>,
    ) -> Result<Sums, MemoryError> {
        let spec = problem.spec();
        let all = |_: usize, _: usize| true;
        let queries = of_tokens(&[(&spec.query, &inputs.query)], &all)?;
        let mut held = room(task.map_or(0, Task::key_tokens))?;
        held.extend(task.into_iter().flat_map(|task| places(task.keys())));
        let past = problem.past();
        let within = |batch: usize, place: usize| match inputs.lengths.keys.and_then(|keys| keys.get(batch)) {
            Some(length) => usize::try_from(*length).is_ok_and(|length| place < length),
            None => true,
        };
        let counts = |batch: usize, token: usize| match task {
            Some(_) => held.get(token).is_some_and(|place| within(batch, *place)),
            None => within(batch, past + token),
        };
        let mut keys = Vec::new();
        if let Some(past) = inputs.past(problem) {
            keys = of_tokens(&past.each_ref().map(|(view, data)| (view, data)), &within)?;
        }
        keys.extend(of_tokens(&[(&spec.key, &inputs.key), (&spec.value, &inputs.value)], &counts)?);
        let upstream = upstream.map_or(Ok(Vec::new()), |data| of_tokens(&[(&spec.output, data)], &all))?;
        Ok(Sums([queries, keys, upstream]))
    }

    /// Allocates unset checksums for `queries` query tokens and `keys` key tokens. [`Sums::join`] merges the checksums
    /// of tasks into them.
    ///
    /// # Errors
    /// Returns an error if the system refuses the memory.
    pub fn none([queries, keys]: [usize; 2], upstream: bool) -> Result<Sums, MemoryError> {
        let of = |count: usize| {
            let mut sums = room(count)?;
            sums.resize(count, 0);
            Ok::<_, MemoryError>(sums)
        };
        Ok(Sums([of(queries)?, of(keys)?, of(if upstream { queries } else { 0 })?]))
    }

    /// Merges `own`, the checksums of `task`, into `self`, the checksums of all tokens. Returns the tensor and the
    /// index of the first token for which an earlier task had a different checksum.
    pub fn join(&mut self, task: &Task, own: &Sums) -> Option<(&'static str, usize)> {
        let runs = [task.queries(), task.keys(), task.queries()];
        let parts = zip(zip(self.0.iter_mut(), &own.0), zip(runs, TOKENS));
        for ((whole, own), (runs, name)) in parts.filter(|((whole, _), _)| !whole.is_empty()) {
            for (place, sum) in zip(places(runs), own) {
                match whole.get_mut(place) {
                    Some(known) if *known == 0 => *known = *sum,
                    Some(known) if known == sum => {}
                    _ => return Some((name, place)),
                }
            }
        }
        None
    }

    /// Compares `self` with `whole`. `self` contains the checksums of the tokens of `task`, or of all tokens. `whole`
    /// contains the checksums of all tokens. Returns the tensor and the index of the first token whose checksum
    /// differs. Empty checksums are not compared.
    #[must_use]
    pub fn differ(&self, whole: &Sums, task: Option<&Task>) -> Option<(&'static str, usize)> {
        let runs = task.map(|task| [task.queries(), task.keys(), task.queries()]);
        for (i, (own, whole)) in zip(&self.0, &whole.0).enumerate() {
            if own.is_empty() || whole.is_empty() {
                continue;
            }
            let name = TOKENS[i];
            let picked = runs.filter(|_| own.len() != whole.len());
            let other = match picked {
                Some(runs) => zip(own, places(runs[i]))
                    .find(|(sum, place)| whole.get(*place) != Some(sum))
                    .map(|(_, place)| place),
                None if own.len() != whole.len() => Some(own.len().min(whole.len())),
                None => zip(own, whole).position(|(a, b)| a != b),
            };
            if let Some(place) = other {
                return Some((name, place));
            }
        }
        None
    }
}

/// Returns the index among all tokens for each token of `runs`, in the order of the task's tokens.
fn places(runs: &[Run]) -> impl Iterator<Item = usize> + '_ {
    runs.iter().flat_map(|run| run.span().start..run.span().start + run.span().tokens)
}
