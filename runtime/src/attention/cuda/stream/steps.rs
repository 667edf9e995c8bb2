//! Iterates over the steps of a stream. A step is a pair of a query block and a key chunk. Each step also contains the
//! number of pending states that merge with the state of its chunk.

use elsa_core::attention::{Lengths, Problem};
use elsa_core::scan::stack::{self, MergeStack};
use std::ops::Range;

/// The sequences to which a block of queries belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Batch index of the first sequence in the tensors, and number of sequences.
    pub batch: [usize; 2],
    /// First query token and first new key token in the tensors.
    pub first: [usize; 2],
    /// Number of queries and number of keys (including past keys) in each sequence.
    pub len: [usize; 2],
}

/// Returns the number of sequences that are resident at once: the complete batch, to keep the device busy. Windows are
/// processed picture by picture, and packed sequences, which differ in length, one by one.
pub fn at_once(problem: &Problem) -> usize {
    let spec = problem.spec();
    match (&spec.packed, &spec.windows) {
        (Some(_), _) => 1,
        (None, Some(windows)) => windows.count(),
        (None, None) => spec.query.batch(),
    }
}

/// A chunk of keys that is streamed past a block of resident queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The sequences of the block.
    pub group: Group,
    /// The resident queries, counted within each sequence.
    pub tokens: Range<usize>,
    /// The keys of the chunk, counted from the first past key; empty if no query of the block attends a key.
    pub keys: Range<usize>,
    /// `true` for the first step of a block, whose queries must be transferred.
    pub first: bool,
    /// `true` for the last step of a block.
    pub last: bool,
    /// Number of pending states with which the state of the chunk merges.
    pub joins: usize,
    /// Slot of the first pending state that merges. It receives the merged state.
    pub into: usize,
}

impl Step {
    /// Returns the batch indices of the step's sequences.
    pub fn batch(&self) -> Range<usize> {
        let [first, count] = self.group.batch;
        first..first + count
    }

    /// Returns the step's queries as a range of tokens in the tensors.
    pub fn queries(&self) -> Range<usize> {
        let first = self.group.first[0];
        first + self.tokens.start..first + self.tokens.end
    }

    /// Returns the step's keys as a range of tokens. This range counts the past tokens first, then the new tokens.
    pub fn key_tokens(&self) -> Range<usize> {
        let first = self.group.first[1];
        first + self.keys.start..first + self.keys.end
    }
}

/// Returns the number of slots for the pending states of a row with `chunks` chunks: one per level of the tree. Before
/// the state of a chunk occupies a slot, this state merges with every pending state whose subtree the chunk completes.
pub const fn slots(chunks: usize) -> usize {
    let depth = stack::depth(chunks);
    if depth == 0 { 1 } else { depth }
}

/// The steps of a call, in order: all chunks for the first block of queries, then all chunks for the next block.
#[derive(Debug)]
pub struct Steps<'a> {
    problem: &'a Problem,
    lengths: &'a Lengths<'a>,
    /// Number of queries per block, and number of keys per chunk.
    extent: [usize; 2],
    /// Number of sequences per group. `sequence` is the first sequence of the current group, and `token` the first
    /// query of the next block.
    at_once: usize,
    sequence: usize,
    token: usize,
    block: Option<QueryBlock>,
}

/// A block of queries, with the position of its next step.
#[derive(Debug)]
struct QueryBlock {
    group: Group,
    tokens: Range<usize>,
    /// End of the keys that the block's queries may attend.
    end: usize,
    /// Chunks that remain for the block.
    chunks: Range<usize>,
    first: bool,
    /// The merge tree over the chunks. It has already absorbed the next chunk, whose slot is `slot`.
    tree: MergeStack,
    slot: usize,
}

impl<'a> Steps<'a> {
    /// Creates the steps for blocks of `rows` queries and chunks of `keys` keys.
    pub fn new(problem: &'a Problem, lengths: &'a Lengths<'a>, rows: usize, keys: usize) -> Steps<'a> {
        let extent = [rows.max(1), keys.max(1)];
        Steps {
            problem,
            lengths,
            extent,
            at_once: at_once(problem).max(1),
            sequence: 0,
            token: 0,
            block: None,
        }
    }

    /// Returns the range from the first to the last key that a query of the block may attend.
    fn keys(&self, group: &Group, tokens: &Range<usize>) -> Range<usize> {
        if self.problem.spec().windows.is_some() {
            // Positions refer to the complete picture, so all its keys are streamed.
            return 0..group.len[1];
        }
        let (mut start, mut end) = (usize::MAX, 0);
        for index in self.sequence..(self.sequence + self.at_once).min(self.problem.sequences()) {
            let (any, _) = self.problem.sequence(self.lengths, index).ranges(tokens.clone());
            if any.start < any.end {
                (start, end) = (start.min(any.start), end.max(any.end));
            }
        }
        if start < end { start..end } else { 0..0 }
    }

    /// Returns the group of sequences that starts with the current sequence.
    fn group(&self) -> Group {
        let first = self.problem.sequence(self.lengths, self.sequence);
        let count = match self.problem.spec().packed {
            Some(_) => 1,
            None => self.at_once.min(self.problem.sequences() - self.sequence),
        };
        Group {
            batch: [first.batch, count],
            first: [first.query0, first.key0],
            len: [first.queries, first.keys],
        }
    }

    /// Returns the next block of queries; `None` after the last one.
    fn open(&mut self) -> Option<QueryBlock> {
        let group = loop {
            if self.sequence >= self.problem.sequences() || self.problem.heads() == 0 {
                return None;
            }
            let group = self.group();
            if self.token < group.len[0] {
                break group;
            }
            (self.sequence, self.token) = (self.sequence + self.at_once, 0);
        };
        let tokens = self.token..group.len[0].min(self.token.saturating_add(self.extent[0]));
        self.token = tokens.end;
        let keys = self.keys(&group, &tokens);
        let chunks = keys.start / self.extent[1]..keys.end.div_ceil(self.extent[1]);
        let mut tree = MergeStack::default();
        let slot = tree.push(chunks.start, |_| {});
        Some(QueryBlock { group, tokens, end: keys.end, chunks, first: true, tree, slot })
    }

    /// Skips the next `count` blocks.
    pub fn skip_blocks(&mut self, count: usize) {
        for _ in 0..count {
            self.block = None;
            if self.open().is_none() {
                break;
            }
        }
    }
}

impl Iterator for Steps<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let mut block = match self.block.take() {
            Some(block) => block,
            None => self.open()?,
        };
        let (group, tokens, first, slot) = (block.group, block.tokens.clone(), block.first, block.slot);
        let chunk = block.chunks.start;
        // Keys after the last key that a query of the block attends are not transferred.
        let begin = chunk.saturating_mul(self.extent[1]).min(block.end);
        let end = block.end.min(begin.saturating_add(self.extent[1])).max(begin);
        block.chunks.start = (chunk + 1).min(block.chunks.end);
        let last = block.chunks.is_empty();
        // This chunk completes the subtrees that the tree merges before it absorbs the next chunk.
        let mut joins = 0;
        if last {
            block.tree.finish(|_| joins += 1);
        } else {
            block.slot = block.tree.push(chunk + 1, |_| joins += 1);
            block.first = false;
            self.block = Some(block);
        }
        Some(Step { group, tokens, keys: begin..end, first, last, joins, into: slot.saturating_sub(joins) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::attention::{Alignment, Spec, Window};
    use elsa_core::dtype::DType;
    use elsa_core::view::{Layout, View};

    fn problem(queries: usize, keys: usize, edit: impl Fn(&mut Spec)) -> Problem {
        let view = |n| View::dense("x", Layout::Bhnd, &[1, 2, n, 4], None).unwrap();
        let mut spec = Spec::new(DType::F32, view(queries), view(keys), view(keys), view(queries));
        edit(&mut spec);
        spec.check().unwrap()
    }

    /// Returns the tree over leaves `lo..hi` as text, in the merge order of an in-memory run.
    fn tree(lo: usize, hi: usize, end: usize) -> String {
        let mid = usize::midpoint(lo, hi);
        match (hi - lo, mid < end) {
            (1, _) => lo.to_string(),
            (_, false) => tree(lo, mid, end),
            _ => format!("({}+{})", tree(lo, mid, end), tree(mid, hi, end)),
        }
    }

    #[test]
    fn states_merge_in_the_tree_over_chunks() {
        for chunks in 1..=33usize {
            let problem = problem(1, chunks * 64, |_| {});
            let lengths = Lengths::default();
            let mut pending = vec![String::new(); slots(chunks)];
            let mut results = Vec::new();
            for (number, step) in Steps::new(&problem, &lengths, 1, 64).enumerate() {
                assert_eq!(step.keys, number * 64..(number + 1) * 64);
                assert_eq!((step.first, step.last), (number == 0, number + 1 == chunks));
                let mut state = number.to_string();
                for slot in (step.into..step.into + step.joins).rev() {
                    state = format!("({}+{state})", pending[slot]);
                }
                if step.last {
                    assert_eq!(step.into, 0);
                    results.push(state);
                } else {
                    // There are never more slots than levels, so the index exists.
                    pending[step.into] = state;
                }
            }
            assert_eq!(results, [tree(0, chunks.next_power_of_two(), chunks)], "{chunks} chunks");
        }
    }

    #[test]
    fn every_query_meets_every_key_that_it_attends_once() {
        let windows = [(None, None), (Some(5), Some(3)), (Some(0), Some(0)), (Some(100), None)];
        for (queries, keys, rows, chunk) in
            [(10, 40, 4, 8), (1, 7, 1, 3), (9, 9, 9, 100), (40, 10, 7, 4), (3, 0, 2, 4)]
        {
            for causal in [None, Some(Alignment::TopLeft), Some(Alignment::BottomRight)] {
                for (left, right) in windows {
                    let problem = problem(queries, keys, |spec| {
                        (spec.causal, spec.window) = (causal, Window { left, right });
                    });
                    let lengths = Lengths::default();
                    let sequence = problem.sequence(&lengths, 0);
                    let mut met = vec![vec![0; keys]; queries];
                    let mut done = 0;
                    for step in Steps::new(&problem, &lengths, rows, chunk) {
                        assert!(step.keys.len() <= chunk && step.tokens.len() <= rows);
                        done += if step.last { step.tokens.len() } else { 0 };
                        for token in step.tokens.clone() {
                            step.keys.clone().for_each(|key| met[token][key] += 1);
                        }
                        // Chunks that no query of the block attends are not streamed.
                        let (any, _) = sequence.ranges(step.tokens.clone());
                        assert!(
                            step.keys.is_empty() || (any.start < step.keys.end && step.keys.start < any.end)
                        );
                    }
                    assert_eq!(done, queries);
                    for (token, met) in met.iter().enumerate() {
                        let (start, end) = sequence.range(token);
                        assert!(met[start..end.max(start)].iter().all(|n| *n == 1), "{token}: {met:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_queries_take_no_step() {
        let (problem, lengths) = (problem(0, 8, |_| {}), Lengths::default());
        assert_eq!(Steps::new(&problem, &lengths, 4, 4).next(), None);
        assert_eq!([0, 1, 2, 3, 4, 5, 9].map(slots), [1, 1, 1, 2, 2, 3, 4]);
    }
}
