//! The oracle: linear attention in f64, token by token, written as the definition in [`crate::linear`] states it.
//!
//! ```text
//! S = past, or zeros
//! for every token t, in the order of the direction:
//!     S_x ← exp(decay_x) S_x      rows with a decay of −∞ become zeros, regardless of their contents
//!     u   ← v, or β (v − Sᵀ k)
//!     S   ← S + k uᵀ
//!     o_t ← scale · Sᵀ q_t        in a problem that is not causal: after the last token
//! ```
//!
//! Inputs are read as stored, the scale is the f32 value of the problem, and everything else is f64. Subnormal numbers
//! are not treated as zero. A NaN spreads as IEEE 754 arithmetic spreads it.

use super::data::Inputs;
use super::problem::Problem;
use super::rule::Direction;
use super::token::StateTokens;

/// Returns the number of f64 values of scratch that [`head`] needs.
#[must_use]
pub const fn scratch_len(problem: &Problem) -> usize {
    problem.key_dim() + problem.value_dim()
}

/// Computes the last value of one state of a sequence, and all outputs that are read from the state.
///
/// `output` receives the outputs of the heads in [`Problem::readers`], `[readers, tokens, d_v]`, with tokens in the
/// order of the inputs. `present` receives the last state, `[d_k, d_v]`; for a bidirectional problem, that is the last
/// state of the second pass, which a run does not output. `sequence` is an index as in [`Problem::sequence`]. The
/// inputs must have passed [`Inputs::check`]. After this check, the caller of an in-place problem must add the past
/// states to the inputs, with their contents before the call.
///
/// # Panics
/// Panics if a buffer does not have the stated number of elements, if `scratch` is shorter than [`scratch_len`], or if
/// `sequence` or `state` is out of bounds.
pub fn head(
    problem: &Problem,
    inputs: &Inputs<'_>,
    sequence: usize,
    state: usize,
    output: &mut [f64],
    present: &mut [f64],
    scratch: &mut [f64],
) {
    let head = StateTokens::new(problem, inputs, sequence, state);
    let (rows, columns) = (problem.key_dim(), problem.value_dim());
    let (first, readers) = problem.readers(state);
    assert_eq!(output.len(), readers * head.tokens * columns, "output of the oracle");
    assert_eq!(present.len(), rows * columns, "state of the oracle");
    let (key, written) = scratch[..rows + columns].split_at_mut(rows);
    let scale = f64::from(problem.scale());
    output.fill(0.0);
    let mut read = |token: usize, state: &[f64], query: &mut [f64]| {
        for reader in 0..readers {
            head.query(first + reader, token, query);
            let at = (reader * head.tokens + token) * columns;
            let output = &mut output[at..at + columns];
            for (q, row) in query.iter().zip(state.chunks_exact(columns)) {
                output.iter_mut().zip(row).for_each(|(o, s)| *o += scale * q * s);
            }
        }
    };
    let direction = problem.spec().direction;
    let passes: &[bool] = match direction {
        Direction::Forward | Direction::NonCausal => &[false],
        Direction::Reverse => &[true],
        Direction::Bidirectional => &[false, true],
    };
    for reverse in passes {
        head.past(present);
        for i in 0..head.tokens {
            let token = if *reverse { head.tokens - 1 - i } else { i };
            head.step(token, present, key, written);
            if direction != Direction::NonCausal {
                read(token, present, key);
            }
        }
    }
    if direction == Direction::NonCausal {
        for token in 0..head.tokens {
            read(token, present, key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{DType, Elements};
    use crate::linear::{Rule, Spec};
    use crate::view::View;

    fn view(heads: usize, tokens: usize, dim: usize) -> View {
        View::new("x", [1, heads, tokens, dim], [heads * tokens * dim, tokens * dim, dim, 1]).unwrap()
    }

    fn problem(tokens: usize, d: usize, change: impl Fn(&mut Spec)) -> Problem {
        let x = view(1, tokens, d);
        let mut spec = Spec::new(DType::F32, x, x, view(1, tokens, 1), view(1, tokens, 1));
        spec.scale = Some(1.0);
        change(&mut spec);
        spec.check().unwrap()
    }

    #[test]
    fn the_example_of_the_article() {
        // The recurrence is h_t = h_{t−1} / 2 + v_t for v = 1, 2, 3, 4, and the output is o_t = h_t.
        let half = libm::logf(0.5);
        let p = problem(4, 1, |s| {
            s.rule = Rule::Gated;
            s.decay = Some(view(1, 4, 1));
        });
        let (ones, v, g) = ([1.0; 4], [1.0, 2.0, 3.0, 4.0], [half; 4]);
        let mut x = Inputs::new(Elements::F32(&ones), Elements::F32(&ones), Elements::F32(&v));
        x.decay = Some(Elements::F32(&g));
        let (mut o, mut s) = ([9.0; 4], [9.0; 1]);
        head(&p, &x, 0, 0, &mut o, &mut s, &mut [0.0; 2]);
        for (found, expected) in o.iter().zip([1.0, 2.5, 4.25, 6.125]) {
            assert!((found - expected).abs() < 1e-6, "{o:?}");
        }
        assert_eq!(s[0], o[3]);
    }

    #[test]
    fn delta_rules_by_hand() {
        // Both tokens have the same key. With a rate of 1/2, the second write moves the value halfway from 3 to 5.
        let p = problem(2, 2, |s| {
            s.rule = Rule::Delta;
            s.beta = Some(view(1, 2, 1));
        });
        let (k, v, beta) = ([0.6, 0.8, 0.6, 0.8], [3.0, 5.0], [1.0, 0.5]);
        let mut x = Inputs::new(Elements::F32(&k), Elements::F32(&k), Elements::F32(&v));
        x.beta = Some(Elements::F32(&beta));
        let (mut o, mut s) = ([0.0; 2], [0.0; 2]);
        head(&p, &x, 0, 0, &mut o, &mut s, &mut [0.0; 3]);
        assert!((o[0] - 3.0).abs() < 1e-6 && (o[1] - 4.0).abs() < 1e-6, "{o:?}");
        // The gate comes first: a state of 8 k decays to 4 k. Then half of the difference between 4 and 6 is added.
        let p = problem(1, 2, |s| {
            s.rule = Rule::GatedDelta;
            (s.decay, s.beta) = (Some(view(1, 1, 1)), Some(view(1, 1, 1)));
            s.past_state = Some(view(1, 2, 1));
        });
        let (g, past) = ([libm::logf(0.5)], [8.0 * 0.6, 8.0 * 0.8]);
        let mut x = Inputs::new(Elements::F32(&k[..2]), Elements::F32(&k[..2]), Elements::F32(&[6.0]));
        x.beta = Some(Elements::F32(&[0.5]));
        x.decay = Some(Elements::F32(&g));
        x.past_state = Some(&past);
        head(&p, &x, 0, 0, &mut o[..1], &mut s, &mut [0.0; 3]);
        assert!((o[0] - 5.0).abs() < 1e-6, "{o:?}");
    }

    #[test]
    fn gates_clear_by_selection_and_directions_agree() {
        let past = [f32::NAN, f32::INFINITY];
        let p = problem(1, 2, |s| {
            s.rule = Rule::Gated;
            s.decay = Some(view(1, 1, 2));
            s.past_state = Some(view(1, 2, 1));
        });
        let (one, g) = ([1.0, 2.0], [f32::NEG_INFINITY; 2]);
        let mut x = Inputs::new(Elements::F32(&one), Elements::F32(&one), Elements::F32(&[3.0]));
        x.decay = Some(Elements::F32(&g));
        x.past_state = Some(&past);
        let (mut o, mut s) = ([0.0; 3], [0.0; 2]);
        head(&p, &x, 0, 0, &mut o[..1], &mut s, &mut [0.0; 3]);
        assert_eq!((o[0], s), (15.0, [3.0, 6.0]));
        x.decay = Some(Elements::F32(&[f32::NEG_INFINITY, 0.0]));
        head(&p, &x, 0, 0, &mut o[..1], &mut s, &mut [0.0; 3]);
        assert_eq!((s[0], s[1]), (3.0, f64::INFINITY));

        // For values 1, 2, 4, the outputs are the prefix sums, the suffix sums, the sums of both, and the total.
        let (ones, v) = ([1.0; 3], [1.0, 2.0, 4.0]);
        let x = Inputs::new(Elements::F32(&ones), Elements::F32(&ones), Elements::F32(&v));
        for (direction, expected) in Direction::ALL.into_iter().zip([
            [1.0, 3.0, 7.0],
            [7.0, 6.0, 4.0],
            [8.0, 9.0, 11.0],
            [7.0, 7.0, 7.0],
        ]) {
            let p = problem(3, 1, |s| s.direction = direction);
            head(&p, &x, 0, 0, &mut o, &mut s[..1], &mut [0.0; 2]);
            assert_eq!(o, expected, "{}", direction.name());
        }
    }

    #[test]
    fn heads_sequences_and_norms() {
        // Four query heads read two states, which share one key head. The two packed sequences have one and two tokens.
        let mut spec = Spec::new(DType::F32, view(4, 3, 2), view(1, 3, 2), view(2, 3, 1), view(4, 3, 1));
        (spec.scale, spec.packed, spec.normalize) = (Some(2.0), Some(2), Some(0.0));
        let p = spec.check().unwrap();
        // The queries of head h are (h + 1, 0), and every key is (3, 4).
        let q: [f32; 24] = core::array::from_fn(|i| if i % 2 == 0 { (i / 6 + 1) as f32 } else { 0.0 });
        let k = [3.0, 4.0, 3.0, 4.0, 3.0, 4.0];
        let v = [1.0, 2.0, 4.0, 10.0, 20.0, 40.0];
        let mut x = Inputs::new(Elements::F32(&q), Elements::F32(&k), Elements::F32(&v));
        x.cu_seqlens = Some(&[0, 1, 3]);
        let (mut o, mut s) = ([0.0; 4], [0.0; 2]);
        head(&p, &x, 1, 1, &mut o, &mut s, &mut [0.0; 3]);
        // Both readers of state 1 have equal outputs for tokens 1 and 2 of the call: 2 · 0.6 · (20, 60).
        for (found, expected) in o.iter().zip([24.0, 72.0, 24.0, 72.0]) {
            assert!((found - expected).abs() < 1e-12, "{o:?}");
        }
        assert!((s[1] - 48.0).abs() < 1e-12);
    }
}
