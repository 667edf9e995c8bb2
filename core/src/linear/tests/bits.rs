//! Tests of bit-identical results.

use super::*;

/// Returns the part of a case that contains the tokens `from .. to`, with the past state `state`.
fn cut(case: &Case, from: usize, to: usize, state: Option<Vec<f32>>) -> Case {
    let rows = |x: &[f32], width: usize| x[from * width..to * width].to_vec();
    let each = if case.per_dim { case.dims[0] } else { 1 };
    Case {
        tokens: to - from,
        past: state.is_some(),
        state: state.unwrap_or_default(),
        query: rows(&case.query, case.dims[0]),
        key: rows(&case.key, case.dims[0]),
        value: rows(&case.value, case.dims[1]),
        decay: if case.rule.is_gated() { rows(&case.decay, each) } else { vec![] },
        beta: if case.rule.is_delta() { rows(&case.beta, 1) } else { vec![] },
        ..case.clone()
    }
}

#[test]
fn a_stream_cut_at_the_ends_of_chunks_keeps_its_bits() {
    for &(rule, per_dim) in kinds() {
        for style in [Style::Plain, Style::Gates] {
            let case = Case::new(rule, per_dim, 37, [5, 3]).fill(style, 2);
            for walk in walks() {
                let cuts: &[usize] = match walk.form {
                    Form::Recurrent => &[1, 2, 17, 36],
                    Form::Chunk | Form::FusedChunk => &[8, 16, 32],
                    Form::Parallel | Form::Scan => continue,
                };
                let whole = case.run(walk);
                let (mut output, mut state, mut from) = (vec![], None, 0);
                for to in cuts.iter().copied().chain([37]) {
                    let part = cut(&case, from, to, state.take()).run(walk);
                    output.extend(part.output);
                    (state, from) = (Some(part.present), to);
                }
                let stream = Answer { output, present: state.unwrap() };
                assert_eq!(stream.bits(), whole.bits(), "{} {}", rule.name(), walk.form.name());
            }
        }
    }
}

#[test]
fn both_chunked_forms_have_the_same_bits_and_others_differ() {
    for &(rule, per_dim) in kinds() {
        let case = Case::new(rule, per_dim, 37, [5, 3]).fill(Style::Plain, 2);
        let [recurrent, chunk, fused, parallel, scan] = walks().map(|walk| case.run(walk).bits());
        assert_eq!(chunk, fused);
        // The other forms have different orders of operations, and therefore different bits.
        for (a, b) in
            [(&recurrent, &chunk), (&recurrent, &parallel), (&chunk, &parallel), (&recurrent, &scan)]
        {
            assert_ne!(a, b, "{}", rule.name());
        }
    }
}

#[test]
fn packed_sequences_are_single_runs() {
    for &(rule, per_dim) in kinds() {
        let mut case = Case::new(rule, per_dim, 40, [4, 3]);
        (case.cu_seqlens, case.past) = (Some(vec![0, 17, 17, 40]), true);
        let case = case.fill(Style::Plain, 5);
        for walk in walks() {
            let packed = case.run(walk);
            let (mut output, mut present) = (vec![], vec![]);
            for (s, [from, to]) in [[0, 17], [17, 17], [17, 40]].into_iter().enumerate() {
                let mut one = cut(&case, from, to, Some(case.state[s * 12..(s + 1) * 12].to_vec()));
                one.cu_seqlens = None;
                let answer = one.run(walk);
                output.extend(answer.output);
                present.extend(answer.present);
            }
            assert_eq!(packed.bits(), Answer { output, present }.bits(), "{}", walk.form.name());
        }
    }
}

#[test]
fn reverse_is_forward_over_reversed_tokens() {
    for &(rule, per_dim) in kinds() {
        let mut case = Case::new(rule, per_dim, 21, [4, 3]);
        (case.direction, case.past) = (Direction::Reverse, true);
        let case = case.fill(Style::Plain, 5);
        let flip =
            |x: &[f32], width: usize| x.chunks_exact(width).rev().flatten().copied().collect::<Vec<f32>>();
        let each = if case.per_dim { 4 } else { 1 };
        let mut flipped = case.clone();
        flipped.direction = Direction::Forward;
        (flipped.query, flipped.key) = (flip(&case.query, 4), flip(&case.key, 4));
        (flipped.value, flipped.decay) = (flip(&case.value, 3), flip(&case.decay, each));
        flipped.beta = flip(&case.beta, 1);
        for walk in walks() {
            let (a, mut b) = (case.run(walk), flipped.run(walk));
            b.output = flip(&b.output, 3);
            assert_eq!(a.bits(), b.bits());
        }
    }
}
