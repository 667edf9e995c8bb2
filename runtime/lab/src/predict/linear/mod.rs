//! Predicts the latency of linear attention on a GPU that is not available, for each form that a plan chooses.
//!
//! The launches are those of `elsa_kernels::cuda::linear`, and a launch takes the time that [`latency`](super::latency) computes.
//! Its blocks execute the code of a complete chunk as often as they have chunks. On a GPU with few units for f64, these units may
//! be the busiest. `costs` contains the counts of instructions.
//!
//! Not modelled: caches, incomplete chunks, lanes of a warp that take different ways, blocks that compute the states before their
//! chunks themselves, and numbers that make a kernel process a chunk token by token.

mod cost;
mod costs;
pub mod report;

use super::forecast::ForecastError;
use super::latency::{GpuMachine, GpuPart, launch, norm};
use cost::Cost;
use costs::COSTS;
use elsa_core::dtype::DType;
use elsa_core::linear::{Form, Problem, Rule, Spec};
use elsa_core::view::{Layout, View};
use elsa_kernels::cuda::GPU_KERNELS;
use elsa_kernels::cuda::linear::{
    CHUNK, LONG_CHUNK, LONG_ELEMENTS, LONG_GATE, LONG_RECORD, LONG_TILE, RECORD, TILE_ROWS, long_blocks,
    long_tile, long_width, prepare_blocks, terms_blocks,
};
use elsa_runtime::{LinearGpuChoice, LinearPlanOptions};

/// Rules of the predicted calls, by the names that the command takes: the last has a gate for each dim.
pub const RULES: [&str; 4] = ["linear", "gated", "delta", "gated-dim"];
/// Numbers of tokens and head sizes of the predicted calls.
pub const TOKENS: [usize; 3] = [256, 2_048, 16_384];
pub const DIMS: [usize; 2] = [64, 128];
/// The predicted forms, in the order of the columns of the table.
pub const FORMS: [Form; 3] = [Form::Recurrent, Form::FusedChunk, Form::Chunk];

/// Number of lanes of a warp.
const WARP: usize = 32;

/// A call of one sequence: f32, as many dims in values as in keys, no states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub rule: &'static str,
    pub heads: usize,
    pub tokens: usize,
    pub dim: usize,
}

/// Predicted milliseconds of a call in each of [`FORMS`], and two choices of the form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    pub ms: [f64; FORMS.len()],
    /// The plan's choice.
    pub chosen: Form,
    /// The choice among the forms that pass over the tokens of a sequence in order.
    pub in_order: Form,
}

impl Prediction {
    /// Returns the milliseconds of a form.
    pub fn of(&self, form: Form) -> f64 {
        FORMS.iter().position(|x| *x == form).map_or(f64::NAN, |index| self.ms[index])
    }
}

/// A launch: the kernel with its way of processing tokens, the numbers of blocks and of chunks per block, and the bytes moved.
struct Launch {
    kernel: String,
    steps: bool,
    blocks: usize,
    chunks: usize,
    bytes: usize,
}

impl Call {
    fn is_delta(self) -> bool {
        self.rule == "delta"
    }

    fn is_per_dim(self) -> bool {
        self.rule == "gated-dim"
    }

    fn problem(self) -> Result<Problem, ForecastError> {
        let view = |dim| View::dense("x", Layout::Bhnd, &[1, self.heads, self.tokens, dim], None);
        let spec = || {
            let whole = view(self.dim)?;
            let mut spec = Spec::new(DType::F32, whole, whole, whole, whole);
            spec.rule = match self.rule {
                "linear" => Rule::Linear,
                "delta" => Rule::Delta,
                _ => Rule::Gated,
            };
            spec.decay = spec
                .rule
                .is_gated()
                .then(|| view(if self.is_per_dim() { self.dim } else { 1 }))
                .transpose()?;
            spec.beta = self.is_delta().then(|| view(1)).transpose()?;
            spec.check()
        };
        spec().map_err(|_| ForecastError::Changed { found: "size of the call" })
    }

    /// Returns the launches of a form. `pairs` is the largest number of blocks for which blocks have half the columns.
    fn launches(self, form: Form, pairs: usize, sms: usize) -> Vec<Launch> {
        let Call { heads, tokens, dim, .. } = self;
        let (delta, per_dim) = (self.is_delta(), self.is_per_dim());
        let rows = heads * tokens * dim * 4;
        let gates = match self.rule {
            "linear" => 0,
            "gated-dim" => rows,
            _ => heads * tokens * 4,
        };
        let kind = if per_dim { "dim" } else { "head" };
        let named = |name: &str| format!("linear_{name}__sm53");
        let walk = |steps, bytes| {
            let blocks = heads * dim.div_ceil(32);
            let in_pairs = blocks <= pairs && dim == 128 && !per_dim;
            let (name, blocks) = if in_pairs { ("pairs", 2 * blocks) } else { ("walk", blocks) };
            let kernel = named(&format!("{name}_{kind}_d{dim}"));
            Launch { kernel, steps, blocks, chunks: tokens.div_ceil(CHUNK), bytes }
        };
        let once = |kernel: &str, blocks, bytes| Launch {
            kernel: named(kernel),
            steps: false,
            blocks,
            chunks: 0,
            bytes,
        };
        if form == Form::Recurrent {
            return vec![walk(true, 4 * rows + gates)];
        }
        if form == Form::FusedChunk {
            let chunks = tokens.div_ceil(CHUNK);
            let tile = if per_dim { TILE_ROWS * dim } else { 0 };
            let records = heads * chunks * (RECORD + tile) * 4;
            let name = format!("prepare_{kind}_{}", if delta { "delta" } else { "plain" });
            let read = if per_dim { 2 * rows } else { 4 * rows };
            let first = once(&name, prepare_blocks(heads, chunks), 2 * rows + gates + records);
            return vec![first, walk(false, read + records)];
        }
        let chunks = tokens.div_ceil(LONG_CHUNK);
        let all = heads * chunks;
        let (weights, states) = (all * LONG_RECORD * 4, all * (dim * dim + LONG_GATE) * 4);
        let answering = all * dim.div_ceil(LONG_TILE);
        let few = |name: &str, blocks| match LinearGpuChoice::is_few(blocks, sms) {
            true => format!("{name}_few"),
            false => name.to_owned(),
        };
        let passing = |kernel: &str, blocks, bytes| Launch { chunks, ..once(kernel, blocks, bytes) };
        if delta || per_dim {
            let queries = if per_dim { rows } else { 0 };
            let tiles = all * long_tile(delta, dim, dim, dim) * 4 + queries;
            let (written, terms) = if delta { (rows, 0) } else { (0, states) };
            let first = long_blocks(delta, [heads, heads], chunks, dim, dim);
            let carrying = heads * dim / long_width(delta);
            return vec![
                once(&format!("solve_{kind}"), first, 3 * rows + gates + weights + tiles + written + terms),
                passing(
                    &format!("long_carry_d{dim}"),
                    carrying,
                    tiles - queries + 2 * written + terms + states,
                ),
                once("long_answers_few", answering, 3 * rows + weights + states),
            ];
        }
        let first = terms_blocks(heads, heads, chunks, dim, dim.div_ceil(LONG_TILE));
        vec![
            once(&few("long_terms", first), first, 3 * rows + gates + weights + states),
            passing("long_states", heads * (dim * dim).div_ceil(LONG_ELEMENTS), 2 * states),
            once(&few("long_answers", answering), answering, 3 * rows + weights + states),
        ]
    }

    /// Predicts the call on `machine`, whose memory is assumed to suffice for every form.
    ///
    /// # Errors
    /// Returns an error if the machine or the cost of a kernel is not known, or if the plan has no kernel for the call.
    pub fn predict(self, machine: &GpuMachine) -> Result<Prediction, ForecastError> {
        machine.check()?;
        let (problem, sms) = (self.problem()?, machine.profile.sms);
        let choice = LinearGpuChoice::of(&problem, sms, usize::MAX, &LinearPlanOptions::default())?;
        let from = LinearGpuChoice::crossover(sms, choice.columns * self.heads);
        let mut ms = [0.0; FORMS.len()];
        for (ms, form) in ms.iter_mut().zip(FORMS) {
            for launch in self.launches(form, choice.pairs, sms) {
                *ms += self.us(&launch, machine)? / 1e3;
            }
        }
        let in_order = if self.tokens < from { Form::Recurrent } else { Form::FusedChunk };
        Ok(Prediction { ms, chosen: choice.form, in_order })
    }

    /// Returns the microseconds of a launch.
    fn us(self, of: &Launch, machine: &GpuMachine) -> Result<f64, ForecastError> {
        let is_own = |cost: &&Cost| {
            (cost.kernel, cost.rule, cost.dim, cost.steps)
                == (of.kernel.as_str(), self.rule, self.dim, of.steps)
        };
        let unknown = ForecastError::Cost { kernel: "of linear attention" };
        let cost = COSTS.iter().find(is_own).ok_or(unknown.clone())?;
        let kernel = GPU_KERNELS.iter().find(|kernel| kernel.name == cost.kernel).ok_or(unknown)?;
        let (resources, chunks, none) = (kernel.resources(), of.chunks as f64, GpuPart::default());
        let rest = (&none, 0.0);
        let work = [(&cost.block.part, 1.0), (&cost.chunk.part, chunks), rest, rest, rest];
        let us = launch(&work, &resources, of.blocks, 1.0, of.bytes as f64, machine).us - machine.launch_us;
        let f64s = f64::from(cost.block.f64s) + chunks * f64::from(cost.chunk.f64s);
        let warps = resources.threads.div_ceil(WARP) * of.blocks.div_ceil(machine.profile.sms);
        let cycles = f64s * (warps * WARP) as f64 / f64_lanes(machine.profile.capability);
        Ok(machine.launch_us + norm([us, cycles / f64::from(machine.profile.mhz), 0.0]))
    }
}

/// Returns the number of results of f64 arithmetic per cycle of a multiprocessor, from NVIDIA's table of throughputs.
fn f64_lanes(capability: (u32, u32)) -> f64 {
    match capability {
        (9, 0) => 64.0,
        (6 | 8, 0) | (7, 0 | 2) => 32.0,
        (7, 5) | (8, _) => 2.0,
        _ => 4.0,
    }
}

#[cfg(test)]
mod tests;
