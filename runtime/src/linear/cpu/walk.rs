//! Updates states with tokens, chunk by chunk and strip by strip.
//!
//! The naive way computes the recurrence as it is written, one head at a time:
//!
//! ```text
//! for every token t:
//!     S ← a_t ⊙ S + k_t u_tᵀ           u = v, or β (v − Sᵀ k)
//!     o_t = scale · Sᵀ q_t
//! ```
//!
//! **Why the code differs.**
//!
//! 1. *Chunks of tokens.* Data that all columns share (exponentials of gates, products with other tokens) are prepared
//!    once per chunk, and rows that the kernel cannot read in place are copied once.
//! 2. *Strips of columns.* A strip of the state stays in the first-level cache while the tokens of a chunk update it.
//!    Strips are independent, so workers share them.
//! 3. *Segments.* The kernel ends a segment before the product of gates would leave the range of a number, so a chunk
//!    may consist of several segments.
//! 4. *Two passes over chunks* ([`Form::Chunk`](elsa_core::linear::Form::Chunk)): the first stores the state before
//!    each chunk, the second computes outputs from it. Together they execute the operations of a single pass, so the
//!    bits are the same.
//! 5. *Few tokens work in place.* Packing a state into strips and unpacking it costs as much as processing a few
//!    tokens. So the strips of a call with few tokens are columns of the present state itself ([`state::in_place`]). A
//!    single token reads these columns from the past state ([`state::elsewhere`]), so the past state need not be copied
//!    first.

use super::context::{Context, Past, Rows, Stretch};
use super::{stage, state};
use crate::cpu::pool::Crew;
use elsa_core::linear::{Direction, Form, Gates, Sequence};
use elsa_kernels::linear::{Ahead, Columns, Head, Reading, Segment, Strip};
use std::ops::Range;

/// Columns of a state or transition that tokens update: packed strips, or columns of a matrix in a tensor.
#[derive(Clone, Copy)]
pub(super) struct Target {
    /// Address of the first strip's first value.
    pub data: *mut f32,
    /// Distance between rows of the matrix; `None` if each strip is packed.
    pub stride: Option<usize>,
    /// Past state, if a single token reads it from memory other than `data`; otherwise `None`.
    pub past: Option<Past>,
    /// Number of columns in the entire matrix.
    pub columns: usize,
    /// Index of the first strip at `data`, and the index of the last strip plus one.
    pub strips: (usize, usize),
    /// `true` for a state, to which tokens add their values; `false` for a transition, to which they add zeros.
    pub values: bool,
}

/// Results that are needed from a pass over tokens.
#[derive(Clone, Copy)]
pub(super) struct Aim {
    /// `true` if outputs must be computed.
    pub outputs: bool,
    /// `true` if the state after the tokens must be computed.
    pub keep: bool,
}

/// Computes a task. The task is a group of strips that belong to one state in one sequence.
///
/// # Safety
/// - The invariants of [`Context`] hold. No other worker has these strips or this worker number.
pub(super) unsafe fn attend(
    c: &Context<'_>,
    sequence: &Sequence,
    (state, group): (usize, usize),
    worker: usize,
    crew: Crew<'_>,
) {
    let part = c.worker_part(worker);
    let strips = c.choice.group(group);
    let data = part.wrapping_add(c.layout.worker.state.start);
    let (outputs, keep) = (c.has_output(), c.has_present());
    let of = |reverse| {
        let (tokens, strips) = (0..sequence.tokens, strips.clone());
        Stretch { sequence, state, tokens, reverse, strips, crew }
    };
    let strips_of = (strips.start, strips.end);
    let columns = c.choice.columns;
    let target = Target { data, stride: None, past: None, columns, strips: strips_of, values: true };
    // SAFETY: the region has room for the strips of a group (layout), and only this worker uses it (clause).
    unsafe {
        match c.choice.direction {
            Direction::Bidirectional => {
                for reverse in [false, true] {
                    state::load(c, &of(reverse), data);
                    pass(c, &of(reverse), &target, part, Aim { outputs, keep: false });
                }
            }
            Direction::NonCausal => {
                let s = of(false);
                state::load(c, &s, data);
                fold(c, &s, &[target], part);
                if outputs {
                    read(c, &s, &target, part);
                }
                state::store(c, &s, data);
            }
            Direction::Forward | Direction::Reverse => {
                let s = of(c.choice.direction == Direction::Reverse);
                if let Some((data, stride)) = state::in_place(c, &s) {
                    let mut target = Target { data, stride: Some(stride), ..target };
                    if s.tokens.len() == 1 {
                        target.past = state::elsewhere(c, &s);
                    } else {
                        // Copying the columns of all strips together is faster than copying one strip after another.
                        state::begin(c, &s, data, stride);
                    }
                    pass(c, &s, &target, part, Aim { outputs, keep });
                    return;
                }
                state::load(c, &s, data);
                pass(c, &s, &target, part, Aim { outputs, keep });
                state::store(c, &s, data);
            }
        }
    }
}

/// Iterates over the chunks of a stretch, until the call is cancelled.
pub(super) fn chunks<'a>(s: &Stretch<'a>, chunk: usize) -> impl Iterator<Item = Range<usize>> + Clone + 'a {
    let (Range { start, end }, crew) = (s.tokens.clone(), s.crew);
    let chunks = (start..end).step_by(chunk.max(1)).map(move |first| first..end.min(first + chunk));
    chunks.take_while(move |_| !crew.is_cancelled())
}

/// Updates the state with the tokens of a stretch, in the form that was chosen, and computes what `aim` requests.
///
/// # Safety
/// - The invariants of [`Context`] hold. `target` has the strips of the stretch, packed for [`Form::Chunk`], and no other
///   worker uses them; `part` is the worker's region.
/// - No other worker writes the outputs of these tokens and strips.
pub(super) unsafe fn pass(c: &Context<'_>, s: &Stretch<'_>, target: &Target, part: *mut f32, aim: Aim) {
    let targets = [*target];
    if c.choice.form != Form::Chunk || !aim.outputs {
        for range in chunks(s, c.choice.chunk) {
            let keep = aim.keep || range.end < s.tokens.end;
            // SAFETY: the safety clauses of `chunk` are those of this function.
            unsafe { chunk(c, s, &range, &targets, part, Aim { keep, ..aim }) };
        }
        return;
    }
    let size = c.choice.rows * s.columns(c).len();
    let before = part.wrapping_add(c.layout.worker.boundaries.start);
    let count = c.choice.boundaries.max(1);
    let span = c.choice.chunk.saturating_mul(count);
    for first in s.tokens.clone().step_by(span.max(1)) {
        let some = Stretch { tokens: first..s.tokens.end.min(first.saturating_add(span)), ..s.clone() };
        // SAFETY: the region has room for the state of each chunk in a span (layout); the safety clauses of `chunk` are
        // those of this function.
        unsafe {
            for (n, range) in chunks(&some, c.choice.chunk).enumerate() {
                before.add(n * size).copy_from_nonoverlapping(target.data, size);
                if aim.keep || range.end < s.tokens.end {
                    chunk(c, &some, &range, &targets, part, Aim { outputs: false, keep: true });
                }
            }
            for (n, range) in chunks(&some, c.choice.chunk).enumerate() {
                let target = Target { data: before.add(n * size), ..*target };
                chunk(c, &some, &range, &[target], part, Aim { outputs: true, keep: false });
            }
        }
    }
}

/// Updates the targets with the tokens of a stretch, without computing outputs.
///
/// # Safety
/// - The invariants of [`Context`] hold. No other worker uses the targets. Targets to which values are added have the
///   strips of the stretch; `part` is the worker's region.
pub(super) unsafe fn fold(c: &Context<'_>, s: &Stretch<'_>, targets: &[Target], part: *mut f32) {
    for range in chunks(s, c.choice.chunk) {
        // SAFETY: without outputs, the safety clauses of `chunk` are those of this function.
        unsafe { chunk(c, s, &range, targets, part, Aim { outputs: false, keep: true }) };
    }
}

/// Updates the targets with a chunk of tokens.
///
/// # Safety
/// - The clauses of [`pass`] hold or, if no outputs are computed, the clauses of [`fold`]. `range` is a chunk of the stretch.
unsafe fn chunk(
    c: &Context<'_>,
    s: &Stretch<'_>,
    range: &Range<usize>,
    targets: &[Target],
    part: *mut f32,
    aim: Aim,
) {
    let (choice, at) = (c.choice, &c.layout.worker);
    // SAFETY: the chunk is in the stretch, and `part` is the worker's region (clauses).
    let (rows, values) =
        unsafe { (stage::heads(c, s, range, part, aim.outputs), stage::values(c, s, range, part)) };
    let outputs = if aim.outputs { stage::outputs(c, s, range, part) } else { Rows::NONE };
    let room = part.wrapping_add(at.strip.start);
    let mut segment = Segment::EMPTY;
    let mut done = 0;
    while done < range.len() {
        let heads = [rows.queries, rows.keys, rows.decay, rows.beta].map(|rows| rows.from(done, 0));
        let [queries, keys, decay, beta] = heads;
        let head = Head {
            tokens: range.len() - done,
            dim: choice.rows,
            rows: c.problem.key_dim(),
            queries: queries.data,
            query_stride: queries.token,
            group: if aim.outputs { choice.readers } else { 0 },
            group_stride: queries.head,
            keys: keys.data,
            key_stride: keys.token,
            gates: decay.data,
            gate_stride: decay.token,
            per: choice.gates,
            betas: beta.data,
            beta_stride: beta.token,
            scale: c.problem.scale(),
            pass: choice.pass_of(s.sequence.tokens),
        };
        // SAFETY: the rows of the tokens are readable (*inputs*, or copied), and the region has the room that the
        // kernel needs for this choice (layout); *kernel*.
        unsafe { (c.kernel.prepare)(&head, part.wrapping_add(at.head.start), &mut segment) };
        let keep = aim.keep || done + segment.tokens < range.len();
        for target in targets {
            let first = choice.strips.columns(target.columns, &(target.strips.0..target.strips.1)).start;
            for strip in target.strips.0..target.strips.1 {
                let strip = choice.strips.strip(target.columns, strip);
                let x = strip.first - first;
                let [values, outputs] = [values, outputs].map(|rows| rows.from(done, x));
                let columns = Columns {
                    values: if target.values { values.data } else { std::ptr::null() },
                    value_stride: values.token,
                    outputs: outputs.data,
                    output_stride: outputs.token,
                    group_stride: outputs.head,
                    add: choice.direction == Direction::Bidirectional && s.reverse,
                    keep,
                    ahead: ahead(c, &rows, done, x),
                };
                let (state, stride) = match target.stride {
                    None => (target.data.wrapping_add(x * choice.rows), strip.width),
                    Some(stride) => (target.data.wrapping_add(x), stride),
                };
                let past = target.past.map_or(Past { data: state, stride }, |past| past.from(x));
                let (from, from_stride) = (past.data, past.stride);
                let strip = Strip { state, width: strip.width, stride, from, from_stride, room };
                // SAFETY: only this worker uses the strip, its values and its outputs (clauses), and the region has the
                // room that the kernel needs for this choice (layout); *kernel*.
                unsafe { (c.kernel.recur)(&strip, &segment, &columns) };
            }
        }
        done += segment.tokens.max(1);
    }
    if aim.outputs {
        // SAFETY: the outputs of the chunk were computed at `outputs`, and no other worker writes them (clause).
        unsafe { stage::store(c, s, range, outputs) };
    }
}

/// Returns the queries and keys to be prefetched, from column `x` on. They belong to the token that is one chunk after
/// token `done`. Returns nothing if the kernel does not read them in place.
fn ahead(c: &Context<'_>, rows: &stage::Heads, done: usize, x: usize) -> Ahead {
    if c.choice.staged.rows || x >= c.choice.rows {
        return Ahead::NOTHING;
    }
    let [queries, keys] = [rows.queries, rows.keys].map(|rows| rows.from(done + c.choice.chunk, x));
    Ahead { queries: queries.data, query_stride: queries.token, keys: keys.data, key_stride: keys.token }
}

/// Computes the outputs of a stretch's queries from a state that the tokens do not change.
///
/// # Safety
/// - The clauses of [`pass`] hold.
pub(super) unsafe fn read(c: &Context<'_>, s: &Stretch<'_>, target: &Target, part: *mut f32) {
    let choice = c.choice;
    let start = s.columns(c).start;
    for range in chunks(s, choice.chunk) {
        // SAFETY: the range is in the sequence, and `part` is the worker's region (clause).
        let queries = unsafe { stage::queries(c, s, &range, part) };
        let outputs = stage::outputs(c, s, &range, part);
        for strip in s.strips.clone() {
            let strip = choice.strips.strip(choice.columns, strip);
            let x = strip.first - start;
            for reader in 0..choice.readers {
                let of = |rows: Rows| rows.data.wrapping_offset(reader as isize * rows.head);
                let reading = Reading {
                    state: target.data.wrapping_add(x * choice.rows),
                    width: strip.width,
                    dim: choice.rows,
                    x: of(queries),
                    x_stride: queries.token,
                    rows: range.len(),
                    scale: c.problem.scale(),
                    y: of(outputs.from(0, x)),
                    y_stride: outputs.token,
                    add: false,
                };
                // SAFETY: only this worker uses the strip and the outputs, and the queries are readable (clauses);
                // *kernel*.
                unsafe { (c.kernel.read)(&reading) };
            }
        }
        // SAFETY: the outputs of the chunk were computed at `outputs`, and no other worker writes them (clause).
        unsafe { stage::store(c, s, &range, outputs) };
    }
}

/// Returns whether a token multiplies the state, and does not only add to it. In this case, each part of a sequence has
/// a transition.
pub(super) fn has_transition(c: &Context<'_>) -> bool {
    c.choice.rule.is_delta() || c.choice.gates != Gates::None
}
