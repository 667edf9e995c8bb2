//! Similarity and norms of queries and keys: the article's figures 3 and 4.

use elsa_cli::oracle::key;
use elsa_core::attention::{Inputs, Problem};

/// Number of tokens per block in the article's figure 3.
pub const BLOCK: usize = 32;

/// Maximum number of points of a curve of norms.
const POINTS: usize = 256;

/// Mean, smallest and largest value of a quantity over all heads and sequences, at one token or block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Index of the first token that the value represents, or index of the block.
    pub at: usize,
    /// Mean value.
    pub mean: f64,
    /// Smallest value.
    pub low: f64,
    /// Largest value.
    pub high: f64,
}

/// Similarity and norms of the queries, or of the keys.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// Similarity `mean(X Xᵀ) / |max(X Xᵀ)|` of each block of [`BLOCK`] tokens.
    pub similarity: Vec<Spread>,
    /// Euclidean norms, by token.
    pub norms: Vec<Spread>,
    /// Mean similarity over all blocks.
    pub mean_similarity: f64,
}

/// Accumulator for a [`Spread`].
#[derive(Clone, Copy, Debug)]
struct Tally {
    sum: f64,
    count: f64,
    low: f64,
    high: f64,
}

impl Tally {
    const NONE: Tally = Tally { sum: 0.0, count: 0.0, low: f64::INFINITY, high: f64::NEG_INFINITY };

    fn add(&mut self, x: f64) {
        // Infinite and NaN values have no place on a scale.
        if x.is_finite() {
            self.sum += x;
            self.count += 1.0;
            (self.low, self.high) = (self.low.min(x), self.high.max(x));
        }
    }
}

fn spreads(tallies: &[Tally], step: usize) -> Vec<Spread> {
    let some = tallies.iter().enumerate().filter(|(_, tally)| tally.count > 0.0);
    some.map(|(i, t)| Spread { at: i * step, mean: t.sum / t.count, low: t.low, high: t.high }).collect()
}

/// Returns the similarity `mean(X Xᵀ) / |max(X Xᵀ)|` of a block of tokens, from the sum of its vectors and their
/// largest squared norm. The mean of all products is the squared norm of the mean vector, and the largest product is
/// the product of the longest vector with itself.
fn similarity(sum: &[f64], tokens: usize, largest_square: f64) -> f64 {
    let square: f64 = sum.iter().map(|x| x * x).sum();
    square / (tokens * tokens) as f64 / largest_square
}

/// Returns the similarity and norms of a problem's queries, then those of its keys.
#[must_use]
pub fn sides(problem: &Problem, inputs: &Inputs<'_>) -> [Side; 2] {
    let (heads, kv_heads, d) = (problem.heads(), problem.kv_heads(), problem.head_dim());
    let query = |s: usize, head: usize, i: usize, x: usize| {
        let sequence = problem.sequence(&inputs.lengths, s);
        let at = problem.spec().query.row(sequence.batch, head, sequence.query0 + i);
        inputs.query.get(at + x)
    };
    let of_key = |s: usize, head: usize, j: usize, x: usize| {
        let sequence = problem.sequence(&inputs.lengths, s);
        let (elements, at) = key(problem, inputs, &sequence, head, j);
        elements.get(at + x)
    };
    let queries = |s: usize| problem.sequence(&inputs.lengths, s).queries;
    let keys = |s: usize| problem.sequence(&inputs.lengths, s).valid;
    let sequences = problem.sequences();
    [side(sequences, heads, d, &queries, &query), side(sequences, kv_heads, d, &keys, &of_key)]
}

/// Measures the queries or the keys. `tokens` returns the number of tokens of a sequence. `element` returns the element
/// at a sequence, head, token and dim.
fn side(
    sequences: usize,
    heads: usize,
    d: usize,
    tokens: &dyn Fn(usize) -> usize,
    element: &dyn Fn(usize, usize, usize, usize) -> f32,
) -> Side {
    let longest = (0..sequences).map(tokens).max().unwrap_or(0);
    let step = longest.div_ceil(POINTS).max(1);
    let mut norms = vec![Tally::NONE; longest.div_ceil(step)];
    let mut blocks = vec![Tally::NONE; longest.div_ceil(BLOCK)];
    let mut sum = vec![0.0; d];
    let mut all = Tally::NONE;
    for s in 0..sequences {
        let count = tokens(s);
        for head in 0..heads {
            for (block, tally) in blocks.iter_mut().enumerate().take(count.div_ceil(BLOCK)) {
                let members = block * BLOCK..count.min((block + 1) * BLOCK);
                let (n, mut largest) = (members.len(), 0.0);
                sum.fill(0.0);
                for i in members {
                    let mut square = 0.0;
                    for (x, to) in sum.iter_mut().enumerate() {
                        let e = f64::from(element(s, head, i, x));
                        *to += e;
                        square += e * e;
                    }
                    largest = f64::max(largest, square);
                    norms[i / step].add(square.sqrt());
                }
                let alike = similarity(&sum, n, largest);
                tally.add(alike);
                all.add(alike);
            }
        }
    }
    Side {
        similarity: spreads(&blocks, 1),
        norms: spreads(&norms, step),
        mean_similarity: all.sum / all.count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similarity_is_that_of_the_gram_matrix() {
        let vectors = [[1.0f64, 2.0], [3.0, -1.0], [0.5, 0.5]];
        let gram = |i: usize, j: usize| vectors[i][0] * vectors[j][0] + vectors[i][1] * vectors[j][1];
        let pairs = || (0..3).flat_map(|i| (0..3).map(move |j| (i, j)));
        let mean = pairs().map(|(i, j)| gram(i, j)).sum::<f64>() / 9.0;
        let largest = pairs().map(|(i, j)| gram(i, j)).fold(f64::MIN, f64::max);
        let element = |_: usize, _: usize, i: usize, x: usize| vectors[i][x] as f32;
        let side = side(1, 1, 2, &|_| 3, &element);
        assert!((side.similarity[0].mean - mean / largest).abs() < 1e-12, "{side:?}");
        assert!((side.mean_similarity - mean / largest).abs() < 1e-12);
        let norms: Vec<f64> = side.norms.iter().map(|x| x.mean).collect();
        assert!((norms[0] - 5f64.sqrt()).abs() < 1e-12 && norms.len() == 3, "{norms:?}");
    }

    #[test]
    fn long_sides_are_binned_and_infinite_tokens_left_out() {
        let element = |_: usize, head: usize, i: usize, _: usize| match i {
            7 => f32::INFINITY,
            _ => (1 + head) as f32,
        };
        let side = side(1, 2, 4, &|_| 1000, &element);
        assert_eq!((side.norms.len(), side.similarity.len()), (250, 31));
        assert_eq!(side.norms[1], Spread { at: 4, mean: 3.0, low: 2.0, high: 4.0 });
        assert_eq!(side.norms[9], Spread { at: 36, mean: 3.0, low: 2.0, high: 4.0 });
        // Equal tokens have similarity 1; the block with the infinite token has no similarity.
        assert_eq!((side.similarity[0].at, side.similarity[0].mean), (1, 1.0));
    }
}
