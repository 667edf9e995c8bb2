//! Executes the machine code of a kernel for one thread, to find the instructions that its warp issues in a call.
//!
//! Global memory reads as zeros, and so does shared memory that the thread has not written. A shuffle returns the thread's own
//! value, and a vote or a reduction of a barrier the thread's own predicate: with zeros for data, all threads have the same
//! numbers. A called function, which divides denormal numbers, counts as one instruction.

mod state;
mod step;

use super::code::Instruction;
pub use state::Thread;
use state::ThreadState;
use step::Step;

/// Largest number of instructions of a thread.
const MOST: usize = 4_000_000;

/// The code of a kernel, ready to be executed.
pub struct Program {
    steps: Vec<Step>,
}

impl Program {
    /// Decodes the code of a kernel.
    pub fn new(code: &[Instruction]) -> Program {
        Program { steps: code.iter().map(|x| Step::of(x, code)).collect() }
    }

    /// Returns the indices of the instructions that `thread` executes, in order. An instruction whose predicate is false is
    /// issued too.
    ///
    /// # Errors
    /// Returns an error if an instruction is not known, or if the thread does not end.
    pub fn run(&self, thread: &Thread<'_>) -> Result<Vec<usize>, String> {
        let mut state = ThreadState::new(thread);
        let (mut way, mut at) = (Vec::new(), 0);
        while let Some(step) = self.steps.get(at) {
            way.push(at);
            at += 1;
            if way.len() > MOST {
                return Err("a thread that does not end".into());
            }
            if !state.predicate(&step.guard) {
                continue;
            }
            match step.name.as_str() {
                "BRA" | "EXIT" if step.if_not_equal && state.zero => {}
                "EXIT" => return Ok(way),
                "BRA" | "SYNC" | "BRK" => at = step.target.ok_or("a jump without a target")?,
                _ => state.execute(step).map_err(|fault| format!("{} {fault}", step.name))?,
            }
        }
        Err("code without an end".into())
    }
}

#[cfg(test)]
mod tests;
