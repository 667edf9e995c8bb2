//! Bound frames: the objects behind the handles of type elsa_bound.

use crate::buffer::Held;
use crate::handles::Table;
use crate::planned::Planned;
use crate::space::Space;
use crate::types::*;
use std::sync::{Arc, Mutex};

pub(crate) static BOUNDS: Table<Frame> = Table::new("bound");

/// Copies of the caller's input and output structs, with one variant per operator.
#[derive(Debug)]
pub(crate) enum Named {
    Attention(elsa_inputs, elsa_outputs),
    Linear(elsa_linear_inputs, elsa_linear_outputs),
    Recurrence(elsa_recurrence_inputs, elsa_series_outputs),
    Selective(elsa_selective_inputs, elsa_series_outputs),
    Convolution(elsa_convolution_inputs, elsa_series_outputs),
}

/// Plan, workspace and tensors of a bound frame.
#[derive(Debug)]
pub(crate) struct Frame {
    pub plan: Arc<Planned>,
    pub workspace: Arc<Mutex<Space>>,
    pub tensors: Named,
    _held: Held,
}

impl Frame {
    /// Creates a frame; `held` keeps the buffers of its tensors alive.
    pub(crate) fn new(plan: Arc<Planned>, workspace: Arc<Mutex<Space>>, tensors: Named, held: Held) -> Frame {
        Frame { plan, workspace, tensors, _held: held }
    }
}

// SAFETY: the memory is valid and nothing else uses it, whichever thread runs the frame (clause *tensors* of the
// function that bound it).
unsafe impl Send for Frame {}
// SAFETY: the same clause holds, and a run holds the lock of the workspace.
unsafe impl Sync for Frame {}
