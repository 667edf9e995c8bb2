//! Chooses, from a problem, a device and options, everything that is decided before a run of linear attention on a CPU.
//!
//! The choice is a pure function of its arguments and follows these considerations:
//!
//! 1. *The form depends on the head size, never on the batch or the workers.* Forms add terms in different orders, so
//!    the bits depend on the form. On a CPU the cost of a token grows with the number of tokens only in
//!    [`Form::Parallel`]. The recurrence has the fewest operations and moves the state once per
//!    [`KernelSpec::together`] tokens. Chunks move the state less often, but add products of tokens with one another.
//!    [`Crossovers`] contains, for each instruction set, the head size from which chunks are faster. Without a present
//!    state, chunks skip the update of the state after the last pass. If this is the only pass, chunks can be faster
//!    for smaller heads too. The form does not depend on this, because an output must have the same bits with and
//!    without a present state. [`Options::whole`] lifts this rule for calls without states: pairs of tokens are up to
//!    1.7 times as fast as the recurrence while a sequence has fewer tokens than a head has dims.
//! 2. *Workers share columns.* The columns of a state are independent in every rule, so strips of columns become tasks
//!    if there are fewer than four states per worker; the bits stay the same. [`Form::Scan`] divides the tokens too, but
//!    costs 1.5 times as many operations, or twice as many for a delta rule, and its bits depend on the parts. It is
//!    therefore chosen only on request.
//! 3. *Tensors are copied only if the kernel cannot read them in place.* It cannot read rows of 16-bit types, or rows
//!    that must be normalised to unit vectors. It also needs head sizes that are a multiple of four (queries, keys) or
//!    of the vector length (values, outputs).
//! 4. *A budget is a hard limit.* To meet it, the chooser first reduces [`Choice::resident`], then
//!    [`Choice::boundaries`], and then the number of workers, one by one. None of these steps changes the bits of the
//!    output. If the workspace is still too large, the error reports the smallest size in bytes.

use super::choice::{Choice, usual_parts};
use super::crossovers::Crossovers;
use super::kernel::KernelSpec;
use super::layout::{Rooms, WorkspaceLayout};
use super::options::{CHUNK_STEP, MOST_CHUNK, MOST_PARTS, Options};
use super::strips::Strips;
use crate::linear::{Direction, Form, Problem};
use crate::plan::ChooseError;
use crate::profile::DeviceProfile;
use crate::workers::{WORK_PER_LANE, worthwhile};
use core::mem::size_of;

/// Number of tokens per chunk if the options request none. Forms that compute a chunk in passes round this number up to a
/// whole number of passes.
const CUT: usize = 64;

/// Largest number of chunks whose initial states are stored at once.
const BOUNDARIES: usize = 16;

/// Number of tasks per worker, so that workers do not idle for long during the last tasks.
const TASKS_PER_WORKER: usize = 4;

/// Chooses how `problem` is computed with `kernel` on `device`, and lays out the workspace. `rooms` returns the working
/// memory that the kernel needs for a choice.
///
/// # Errors
/// Returns an error if an option is out of bounds or does not apply to the form, if the size of the workspace overflows, or
/// if even the smallest workspace exceeds the budget.
pub fn choose(
    problem: &Problem,
    kernel: &KernelSpec,
    device: &DeviceProfile,
    options: &Options,
    rooms: impl Fn(&Choice) -> Rooms,
) -> Result<(Choice, WorkspaceLayout), ChooseError> {
    let (form, chunk, pass) = form_of(problem, kernel, options)?;
    let parts = match (form, options.parts) {
        (Form::Scan, Some(parts)) => parts,
        (Form::Scan, None) => usual_parts(problem.tokens()),
        _ => 1,
    };
    let (sequences, states) = (problem.sequences(), problem.state_heads());
    let heads = sequences.saturating_mul(states).max(1);
    let staged = Choice::staged_of(problem, kernel.lanes);
    let direction = problem.spec().direction;
    let columns = problem.value_dim();
    let rows = problem.key_dim().next_multiple_of(4);
    let wide = strips_of(problem, kernel, device, rows);
    let mut choice = Choice {
        kernel: *kernel,
        rule: problem.rule(),
        gates: problem.gates(),
        direction,
        form,
        chunk,
        pass,
        parts,
        own_parts: options.parts.is_none(),
        strips: wide,
        groups: 1,
        boundaries: if form == Form::Chunk {
            problem.tokens().div_ceil(chunk).clamp(1, BOUNDARIES)
        } else {
            0
        },
        resident: if form == Form::Scan { heads } else { 0 },
        workers: 1,
        work_per_worker: if options.all_workers { 0.0 } else { WORK_PER_LANE * kernel.lanes as f64 },
        rows,
        columns,
        readers: problem.readers(0).1,
        staged,
        sums: direction == Direction::Bidirectional && staged.columns,
        extent: [sequences, states, problem.tokens(), {
            let output = &problem.spec().output;
            output.batch().saturating_mul(output.heads()).saturating_mul(output.tokens())
        }],
    };
    let tokens = match problem.spec().packed {
        Some(_) => states as f64 * problem.tokens() as f64,
        None => heads as f64 * problem.tokens() as f64,
    };
    let most = heads.saturating_mul(match form {
        Form::Scan => parts,
        _ => Strips::new(kernel.lanes, kernel.lanes).count(columns),
    });
    let wanted = worthwhile(
        tokens * choice.work_of_token(),
        choice.work_per_worker,
        options.workers.clamp(1, most.max(1)),
    );
    choice.workers = wanted;
    if form != Form::Scan && wanted > 1 {
        // Use narrow strips if there are fewer wide strips than workers.
        for strips in [kernel.columns, kernel.lanes].map(|wide| Strips::new(wide, kernel.lanes)) {
            if heads.saturating_mul(choice.strips.count(columns)) < wanted {
                choice.strips = strips;
            }
        }
        let groups = wanted.saturating_mul(TASKS_PER_WORKER).div_ceil(heads.max(1));
        choice.groups = groups.clamp(1, choice.strip_count().max(1));
    }
    loop {
        let layout =
            WorkspaceLayout::of(&choice, rooms(&choice)).ok_or(ChooseError::Memory { needed: usize::MAX })?;
        match options.budget {
            Some(budget) if layout.bytes() > budget => {
                if choice.resident > choice.workers {
                    choice.resident = choice.resident.div_ceil(2).max(choice.workers);
                } else if choice.boundaries > 1 {
                    choice.boundaries = choice.boundaries.div_ceil(2);
                } else if choice.workers > 1 {
                    choice.workers -= 1;
                } else if choice.resident > 1 {
                    choice.resident = 1;
                } else {
                    let transitions = layout.element.transition.len.saturating_mul(choice.parts * 4);
                    return Err(ChooseError::budget(layout.bytes(), budget, transitions));
                }
            }
            _ => return Ok((choice, layout)),
        }
    }
}

/// Returns the strips of a state. A delta rule uses the kernel's widest strips if two conditions hold: one such strip,
/// with all rows, fits half of the level 1 cache, and the state does not need more wide strips than narrower ones.
/// Otherwise, the narrower strips are used. The width does not change the output's bits.
fn strips_of(problem: &Problem, kernel: &KernelSpec, device: &DeviceProfile, rows: usize) -> Strips {
    let narrower = Strips::new(kernel.columns, kernel.lanes);
    let wide = Strips::new(kernel.delta_columns, kernel.lanes);
    let fits = rows.saturating_mul(wide.wide).saturating_mul(size_of::<f32>()) <= device.l1d / 2;
    let fewer = wide.count(problem.value_dim()) <= narrower.count(problem.value_dim());
    if problem.rule().is_delta() && fits && fewer { wide } else { narrower }
}

/// Returns the form, the number of tokens per chunk, and the number of tokens in one pass over the state.
fn form_of(
    problem: &Problem,
    kernel: &KernelSpec,
    options: &Options,
) -> Result<(Form, usize, usize), ChooseError> {
    if let Some(found) = options.chunk
        && !(found.is_multiple_of(CHUNK_STEP) && (CHUNK_STEP..=MOST_CHUNK).contains(&found))
    {
        return Err(ChooseError::Chunk { found, step: CHUNK_STEP, max: MOST_CHUNK });
    }
    if let Some(found) = options.parts
        && !(2..=MOST_PARTS).contains(&found)
    {
        return Err(ChooseError::Parts { found, min: 2, max: MOST_PARTS });
    }
    // This is the fastest of the forms whose cost per token does not grow with the number of tokens.
    let from = Crossovers::of(kernel.set).crossover(problem.rule(), problem.gates());
    let recurrent = (Form::Recurrent, CUT, kernel.together(problem.rule(), problem.key_dim()));
    let preferred = match problem.key_dim() >= from.head_size {
        true => (Form::FusedChunk, CUT.next_multiple_of(from.pass), from.pass),
        false => recurrent,
    };
    let form = match (options.form, options.parts, options.chunk) {
        (Some(form), _, _) => form,
        (None, Some(_), _) => Form::Scan,
        (None, None, Some(_)) => Form::FusedChunk,
        (None, None, None) if options.whole && suits_pairs(problem, kernel, options) => Form::Parallel,
        (None, None, None) => preferred.0,
    };
    let refused = |option, allowed| Err(ChooseError::Option { option, form: form.name(), allowed });
    match form {
        Form::Recurrent | Form::Parallel if options.chunk.is_some() => {
            return refused("chunk", "chunk, fused-chunk or scan");
        }
        Form::Scan => {}
        _ if options.parts.is_some() => return refused("parts", "scan"),
        _ => {}
    }
    let asked = options.chunk.map(|chunk| (chunk, chunk));
    let (chunk, pass) = match form {
        Form::Recurrent => (recurrent.1, recurrent.2),
        Form::Chunk | Form::FusedChunk => asked.unwrap_or((CUT.next_multiple_of(from.pass), from.pass)),
        Form::Scan => asked.unwrap_or((preferred.1, preferred.2)),
        Form::Parallel => (problem.tokens().max(1), problem.tokens().max(1)),
    };
    Ok((form, chunk, pass))
}

/// Returns `true` if a problem without states is fastest as pairs of tokens.
fn suits_pairs(problem: &Problem, kernel: &KernelSpec, options: &Options) -> bool {
    let spec = problem.spec();
    let (rule, gates) = (problem.rule(), problem.gates());
    let plain = spec.past_state.is_none() && spec.present_state.is_none() && spec.packed.is_none();
    let one_pass = matches!(spec.direction, Direction::Forward | Direction::Reverse);
    let faster = Crossovers::of(kernel.set);
    plain
        && one_pass
        && options.budget.is_none()
        && faster.is_faster_in_pairs(rule, gates, problem.key_dim(), problem.tokens())
}

#[cfg(test)]
mod tests;
