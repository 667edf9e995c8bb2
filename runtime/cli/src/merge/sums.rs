//! Totals over the files of a merge.

use super::members::Member;
use crate::error::Error;
use elsa_core::view::Layout;

/// Totals over the files of all tasks.
pub struct Sums {
    /// Number of pairs of a query and a key, for one head.
    pub pairs: u128,
    /// Numbers of query tokens and key tokens. A token counts once for each task that has it.
    pub tokens: [usize; 2],
    /// Number of bytes read.
    pub bytes: usize,
}

impl Sums {
    /// Calls `push` for each file in the order of the merge tree, and returns the totals. `push` reads the file and
    /// returns the number of bytes read.
    pub fn of(
        members: &[Member<'_>],
        mut push: impl FnMut(&Member<'_>) -> Result<usize, Error>,
    ) -> Result<Sums, Error> {
        let mut sums = Sums { pairs: 0, tokens: [0; 2], bytes: 0 };
        for member in members {
            let task = &member.task;
            sums.bytes += push(member)?;
            sums.pairs += task.pair_count();
            sums.tokens = [sums.tokens[0] + task.query_tokens(), sums.tokens[1] + task.key_tokens()];
        }
        Ok(sums)
    }
}

/// Totals over the input files, name of the first output file, and shape of its tensor.
pub type Done = (Sums, String, Vec<usize>);

/// Returns the shape in the layout `layout` of a tensor with `batch` sequences, `heads` heads, `tokens` tokens and head
/// size `dim`.
pub fn shape(layout: Layout, [batch, heads, tokens, dim]: [usize; 4]) -> Vec<usize> {
    match layout {
        Layout::Bhnd => vec![batch, heads, tokens, dim],
        Layout::Bnhd => vec![batch, tokens, heads, dim],
        Layout::Bnc => vec![batch, tokens, heads.saturating_mul(dim)],
    }
}
