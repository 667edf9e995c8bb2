//! Divides tokens into chunks whose sizes differ by one token at most.

use core::ops::Range;

/// A sequence cut into chunks whose sizes differ by at most one token. The larger chunks come first. If there are fewer
/// tokens than chunks, the last chunks are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalancedChunkLayout {
    tokens: usize,
    chunks: usize,
}

impl BalancedChunkLayout {
    /// Cuts `tokens` tokens into `chunks` chunks; zero chunks count as one.
    #[must_use]
    pub const fn new(tokens: usize, chunks: usize) -> BalancedChunkLayout {
        BalancedChunkLayout { tokens, chunks: if chunks == 0 { 1 } else { chunks } }
    }

    /// Returns the tokens of chunk `chunk`. If there is no such chunk, the range is empty and starts after the last
    /// token.
    #[must_use]
    pub fn range(&self, chunk: usize) -> Range<usize> {
        self.start(chunk)..self.start(chunk.saturating_add(1))
    }

    fn start(&self, chunk: usize) -> usize {
        if chunk >= self.chunks {
            return self.tokens;
        }
        chunk * (self.tokens / self.chunks) + chunk.min(self.tokens % self.chunks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_balanced_and_cover_every_token_once() {
        for chunks in [1, 3, 7, 13, 57] {
            for tokens in 0..130 {
                let layout = BalancedChunkLayout::new(tokens, chunks);
                let mut next = 0;
                for chunk in 0..chunks {
                    let range = layout.range(chunk);
                    assert_eq!(range.start, next);
                    let size = range.len();
                    assert!(size == tokens / chunks || size == tokens.div_ceil(chunks));
                    next = range.end;
                }
                assert_eq!(
                    (next, layout.range(chunks), layout.range(usize::MAX)),
                    (tokens, tokens..tokens, tokens..tokens)
                );
            }
        }
        let most = BalancedChunkLayout::new(usize::MAX, 1057);
        assert_eq!(most.range(1056).end, usize::MAX);
    }
}
