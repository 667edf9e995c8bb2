//! Finds the rows of each tensor that a part of a run needs, and the places of these rows in the buffers.

use super::tensors::tensors_of;
use crate::attention::cpu::resident::{Place, Places, Unit};
use crate::stream::Excerpt;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::plan::{StreamChoice, Written};
use elsa_core::attention::{BiasView, Lengths, MaskView, Operand, Operands, Problem, Sequence};
use elsa_core::view::View;
use std::ops::Range;

/// Inputs that are read for each [`Part`] of a run.
const INPUTS: [Operand; 8] = [
    Operand::Query,
    Operand::PastKey,
    Operand::Key,
    Operand::PastValue,
    Operand::Value,
    Operand::Mask,
    Operand::Bias,
    Operand::BiasIndex,
];

/// Outputs that a run may write for a unit.
const OUTPUTS: [Operand; 5] =
    [Operand::Output, Operand::LogSumExp, Operand::StateReference, Operand::StateSum, Operand::StateWeighted];

/// The regions of the operands in a run's buffers: their starts, and the sizes of the buffers, in bytes.
#[derive(Clone, Debug)]
pub struct Regions<'a> {
    problem: &'a Problem,
    choice: &'a StreamChoice,
    written: Written,
    /// Views of the tensors as they are stored in files.
    tensors: Operands<View>,
    starts: Operands<usize>,
    /// Size in bytes of a buffer for a chunk.
    pub chunk: usize,
    /// Size in bytes of the buffer for outputs.
    pub rows: usize,
}

/// A part of a run: one unit and one chunk of keys.
#[derive(Clone, Debug)]
pub struct Part {
    /// The unit, whose rows attend the keys.
    pub unit: Unit,
    /// The keys of the chunk.
    pub keys: Range<usize>,
    /// `true` if this is the first part of its unit.
    pub begins: bool,
    /// `true` if this is the last part of its unit.
    pub ends: bool,
}

/// Reserves the next region in a buffer and returns its start. Regions are aligned to a cache line.
fn take(at: &mut usize, bytes: usize) -> usize {
    let start = *at;
    *at += bytes.next_multiple_of(64);
    start
}

impl<'a> Regions<'a> {
    /// Lays out the buffers of a run.
    ///
    /// # Errors
    /// Returns an error if an excerpt cannot be indexed.
    pub fn new(
        problem: &'a Problem,
        choice: &'a StreamChoice,
        written: Written,
    ) -> Result<Regions<'a>, ArgumentError> {
        let (spec, tensors) = (problem.spec(), tensors_of(problem)?);
        let (size, d, dv) = (spec.dtype.size(), problem.head_dim(), problem.value_dim());
        let rows = choice.sequences * choice.heads * choice.rows(problem);
        let [keys, values] = choice.chunk_bytes(problem);
        let [mask, bias, index] = choice.slices(problem);
        let mut starts = Operands::from_fn(|_| 0);
        let mut chunk = 0;
        for (operand, bytes) in [
            (Operand::Query, rows * d * size),
            (Operand::Key, keys),
            (Operand::Value, values),
            (Operand::Mask, mask),
            (Operand::Bias, bias),
            (Operand::BiasIndex, index),
        ] {
            starts[operand] = take(&mut chunk, bytes);
        }
        (starts[Operand::PastKey], starts[Operand::PastValue]) =
            (starts[Operand::Key], starts[Operand::Value]);
        let mut end = 0;
        for (operand, wanted, bytes) in [
            (Operand::Output, written.output, rows * dv * size),
            (Operand::LogSumExp, written.lse, rows * 4),
            (Operand::StateReference, written.states, rows * 4),
            (Operand::StateSum, written.states, rows * 4),
            (Operand::StateWeighted, written.states, rows * dv * 4),
        ] {
            starts[operand] = take(&mut end, if wanted { bytes } else { 0 });
        }
        Ok(Regions { problem, choice, written, tensors, starts, chunk, rows: end })
    }

    /// Returns the start of an operand's region in its buffer, in bytes.
    pub fn start(&self, operand: Operand) -> usize {
        self.starts[operand]
    }

    /// Returns the views of the tensors as they are stored in files.
    pub fn tensors(&self) -> &Operands<View> {
        &self.tensors
    }

    fn has(&self, operand: Operand) -> bool {
        let spec = self.problem.spec();
        match operand {
            Operand::Output => self.written.output,
            Operand::LogSumExp => self.written.lse,
            Operand::StateReference | Operand::StateSum | Operand::StateWeighted => self.written.states,
            Operand::Bias => matches!(spec.bias, Some(BiasView::Dense(_))),
            _ => self.problem.memory(operand).is_some(),
        }
    }

    fn size(&self, operand: Operand) -> usize {
        self.problem.memory(operand).map_or(4, |memory| memory.element_size)
    }

    /// Returns the excerpt of an operand's rows that a part of a unit needs; `None` if the call does not have the
    /// operand. `first` is the unit's first sequence.
    fn excerpt(&self, operand: Operand, part: &Part, first: &Sequence) -> Option<Excerpt> {
        if !self.has(operand) {
            return None;
        }
        let (unit, keys) = (&part.unit, &part.keys);
        let (tensor, size) = (self.tensors[operand], self.size(operand));
        let sequences = if self.problem.spec().packed.is_some() { 1 } else { unit.sequences.len() };
        let batch = first.batch;
        let all =
            |len| Excerpt { tensor, size, first: [0; 3], count: [0; 3], start: 0, len, to: [0; 3], at: 0 };
        Some(match operand {
            Operand::Key | Operand::Value | Operand::PastKey | Operand::PastValue => {
                let like = match operand {
                    Operand::Key | Operand::PastKey => self.tensors[Operand::Key],
                    _ => self.tensors[Operand::Value],
                };
                let heads = self.kv_heads(unit);
                let past = first.past.clamp(keys.start, keys.end);
                let of_past = matches!(operand, Operand::PastKey | Operand::PastValue);
                let (token, count, at) = match of_past {
                    true => (keys.start, past - keys.start, 0),
                    false => {
                        ((first.key0 + past).saturating_sub(first.past), keys.end - past, past - keys.start)
                    }
                };
                let to = self.distances(&like);
                Excerpt {
                    first: [batch, heads.start, token],
                    count: [sequences, heads.len(), count],
                    at: at * to[2],
                    to,
                    ..all(tensor.dim())
                }
            }
            Operand::Mask | Operand::Bias => {
                let view = self.mask(operand)?;
                let shape = view.shape();
                let slice = self.choice.slice(self.problem, &view);
                let one = |axis: usize, at: usize, n: usize| if shape[axis] == 1 { (0, 1) } else { (at, n) };
                let (b, nb) = match shape[0] {
                    1 => (0, 1),
                    n if n == self.problem.spec().query.batch() => (batch, sequences),
                    n if slice[0] == 1 => (batch % n.max(1), 1),
                    n => (0, n),
                };
                let (h, nh) = one(1, unit.heads.start, unit.heads.len());
                let (q, nq) = one(2, unit.rows.start, unit.rows.len());
                let (start, len) = match shape[3] {
                    1 => (0, 1),
                    n => (keys.start, keys.end.min(n).saturating_sub(keys.start)),
                };
                let [_, sh, sq, sk] = slice;
                Excerpt {
                    first: [b, h, q],
                    count: [nb, nh, nq],
                    start,
                    to: [sh * sq * sk, sq * sk, sk],
                    ..all(len)
                }
            }
            Operand::BiasIndex => Excerpt {
                first: [0, 0, unit.rows.start],
                count: [1, 1, unit.rows.len()],
                start: keys.start,
                to: [0, 0, self.choice.chunk],
                ..all(keys.len())
            },
            // The remaining operands are the queries and their outputs.
            _ => Excerpt {
                first: [batch, unit.heads.start, first.query0 + unit.rows.start],
                count: [sequences, unit.heads.len(), unit.rows.len()],
                to: self.row_distances(&tensor),
                ..all(tensor.dim())
            },
        })
    }

    /// Iterates over the excerpts that are read for a part of the run.
    pub fn reads(&self, part: &Part, first: &Sequence) -> impl Iterator<Item = (Operand, Excerpt)> {
        let wanted = INPUTS.into_iter().filter(|operand| part.begins || *operand != Operand::Query);
        wanted.filter_map(|operand| Some((operand, self.excerpt(operand, part, first)?)))
    }

    /// Iterates over the excerpts that are written after the last part of a unit.
    pub fn writes(&self, part: &Part, first: &Sequence) -> impl Iterator<Item = (Operand, Excerpt)> {
        OUTPUTS.into_iter().filter_map(|operand| Some((operand, self.excerpt(operand, part, first)?)))
    }

    /// Returns the key heads that a unit's query heads use.
    fn kv_heads(&self, unit: &Unit) -> Range<usize> {
        let last = unit.heads.end.saturating_sub(1);
        self.problem.kv_head(unit.heads.start)..self.problem.kv_head(last) + 1
    }

    /// Returns the strides of keys or values in a buffer for a chunk.
    fn distances(&self, tensor: &View) -> [usize; 3] {
        let room = [self.choice.sequences, self.choice.kv_heads(self.problem), self.choice.chunk];
        Excerpt::strides(tensor, room, tensor.dim())
    }

    /// Returns the strides of query rows, or of their outputs, in the buffers.
    fn row_distances(&self, tensor: &View) -> [usize; 3] {
        let room = [self.choice.sequences, self.choice.heads, self.choice.rows(self.problem)];
        Excerpt::strides(tensor, room, tensor.dim())
    }

    fn mask(&self, operand: Operand) -> Option<MaskView> {
        let spec = self.problem.spec();
        match (operand, spec.bias) {
            (Operand::Mask, _) => spec.mask,
            (_, Some(BiasView::Dense(view))) => Some(view),
            _ => None,
        }
    }

    /// Returns the places of a part's excerpts in the buffers.
    ///
    /// # Errors
    /// Returns an error if an excerpt cannot be indexed.
    pub fn places(&self, part: &Part, first: &Sequence) -> Result<Places, ArgumentError> {
        let mut operands = Operands::from_fn(|_| None);
        for operand in INPUTS.into_iter().chain(OUTPUTS) {
            let Some(excerpt) = self.excerpt(operand, part, first) else { continue };
            let [b, h, t] = excerpt.to;
            let token = match operand {
                // Token of the new tensor at which the chunk starts; negative if it starts with past keys.
                Operand::Key | Operand::Value => {
                    (first.key0 + part.keys.start) as isize - first.past as isize
                }
                Operand::PastKey | Operand::PastValue => part.keys.start as isize,
                _ => excerpt.first[2] as isize,
            };
            let skip =
                (excerpt.first[0] * b + excerpt.first[1] * h + excerpt.start) as isize + token * t as isize;
            let argument = operand.argument();
            let view = match operand {
                Operand::Mask | Operand::Bias | Operand::BiasIndex => View::EMPTY,
                _ => View::new(argument, excerpt.tensor.shape(), [b, h, t, 1])?,
            };
            let skip = skip * excerpt.size as isize;
            operands[operand] = Some(Place { view, at: self.starts[operand], skip });
        }
        let spec = self.problem.spec();
        let moved = |operand| {
            let view = self.mask(operand)?;
            let [b, h, t] = self.excerpt(operand, part, first)?.to;
            Some(view.with_strides([b, h, t, 1]))
        };
        let bias = match spec.bias {
            Some(BiasView::Dense(_)) => moved(Operand::Bias).map(BiasView::Dense),
            other => other,
        };
        let table = matches!(spec.bias, Some(BiasView::Table(_)));
        if table {
            operands[Operand::Bias] = Some(Place { view: View::EMPTY, at: 0, skip: 0 });
        }
        Ok(Places { operands, mask: moved(Operand::Mask), bias, index_stride: self.choice.chunk, table })
    }
}

/// Returns the sequences of a unit.
pub fn sequences<'a>(
    problem: &'a Problem,
    lengths: &'a Lengths<'a>,
    unit: &Unit,
) -> impl Iterator<Item = Sequence> + 'a {
    unit.sequences.clone().map(|index| problem.sequence(lengths, index))
}
