//! The Vision Transformer of `examples/cpp-vision`, with attention by `elsa-runtime`.
//!
//! A picture of 8 x 8 pixels is cut into patches of 2 x 2 pixels. Each patch is one token, and a class token comes
//! first. Each block is pre-norm: `x += proj(attention(norm1(x)))`, then `x += fc2(gelu(fc1(norm2(x))))`. The scores of
//! the classes are a linear map of the normalised class token.
//!
//! All blocks share one plan, since their shapes are equal. One linear map writes the rows `[q | k | v]`, and attention
//! reads these rows in place, through views whose token stride is the length of such a row. The output of attention is
//! dense: each row contains the heads one after another. All buffers are allocated once; [`Model::classify`] allocates
//! nothing.

mod error;
mod layers;
mod reduce;
mod weights;

pub use error::ModelError;
pub use reduce::SIDE;

use crate::frame::Frame;
use elsa_core::attention::{Inputs, Outputs, Spec};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::View;
use elsa_runtime::{Backend, Engine, EngineOptions, Plan, PlanOptions, Workspace};
use layers::{Linear, Norm, add, gelu, softmax_at};
use std::ops::DerefMut;
use std::path::Path;
use weights::Weights;

/// Side of a patch in pixels.
const PATCH: usize = 2;
/// Number of patches per side of the picture.
const GRID: usize = SIDE / PATCH;
/// Number of tokens: the class token and one per patch.
const TOKENS: usize = 1 + GRID * GRID;
/// Term added to the variance in layer normalisation.
const EPSILON: f32 = 1e-5;
/// Largest number of blocks in a network.
const MAX_BLOCKS: usize = 64;

/// The answer for one frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    /// Index of the class with the highest score; if several classes have this score, the first of them.
    pub class: usize,
    /// Probability of the class.
    pub score: f32,
    /// The back end that computed attention.
    pub backend: Backend,
    /// `true` if, in at least one block, the CPU computed attention in place of a failing GPU.
    pub fallback: bool,
}

struct Block {
    norm1: Norm,
    qkv: Linear,
    proj: Linear,
    norm2: Norm,
    fc1: Linear,
    fc2: Linear,
    hidden: usize,
}

/// The network with its buffers.
pub struct Model {
    patch: Linear,
    /// The position embeddings, `[TOKENS, width]`. The first row also includes the class token.
    position: Vec<f32>,
    blocks: Vec<Block>,
    norm: Norm,
    head: Linear,
    plan: Plan,
    workspace: Workspace,
    engine: Engine,
    backend: Backend,
    copied: usize,
    width: usize,
    buffers: Buffers,
}

/// Memory for inputs and outputs of attention. A GPU uses the memory in place if the engine could allocate it. If not,
/// it is ordinary memory.
type Shared = Box<dyn DerefMut<Target = [f32]>>;

/// Intermediate results for a frame.
struct Buffers {
    cells: [f32; SIDE * SIDE],
    patches: [f32; GRID * GRID * PATCH * PATCH],
    /// The residual stream and its normalisation, `[TOKENS, width]` each.
    x: Vec<f32>,
    normed: Vec<f32>,
    /// Queries, keys and values, `[TOKENS, 3 width]`: each row contains the query of every head, then the keys, then
    /// the values.
    qkv: Shared,
    /// Output of attention, `[TOKENS, width]`.
    attended: Shared,
    /// Output of the linear map that follows attention or the MLP, `[TOKENS, width]`.
    mapped: Vec<f32>,
    /// Hidden values of the MLP, `[TOKENS, hidden]`.
    hidden: Vec<f32>,
    scores: Vec<f32>,
}

impl Model {
    /// Reads the weights from the file `path`, creates an engine with `options`, and plans attention on this engine.
    ///
    /// # Errors
    /// Returns an error if the file does not contain the weights of such a network, or if the engine is not available.
    pub fn open(path: &Path, options: &EngineOptions) -> Result<Model, ModelError> {
        let read = |source| ModelError::Read { path: path.to_owned(), source };
        let bytes = std::fs::read(path).map_err(read)?;
        let weights = Weights::new(path, &bytes)?;
        let width = weights.rows("norm.weight")?;
        let heads = weights.heads(width)?;
        let linear = |name: &str, outputs: usize, inputs: usize| {
            let weight = weights.tensor(&format!("{name}.weight"), &[outputs, inputs])?;
            Ok::<_, ModelError>(Linear::new(&weight, weights.tensor(&format!("{name}.bias"), &[outputs])?))
        };
        let norm = |name: &str| {
            let weight = weights.tensor(&format!("{name}.weight"), &[width])?;
            let bias = weights.tensor(&format!("{name}.bias"), &[width])?;
            Ok::<_, ModelError>(Norm { weight, bias, epsilon: EPSILON })
        };
        let mut blocks = Vec::new();
        let mut widest = 0;
        while blocks.len() < MAX_BLOCKS && weights.has(&format!("blocks.{}.norm1.weight", blocks.len())) {
            let name = |part: &str| format!("blocks.{}.{part}", blocks.len());
            let hidden = weights.rows(&name("fc1.weight"))?;
            widest = widest.max(hidden);
            blocks.push(Block {
                norm1: norm(&name("norm1"))?,
                qkv: linear(&name("qkv"), 3 * width, width)?,
                proj: linear(&name("proj"), width, width)?,
                norm2: norm(&name("norm2"))?,
                fc1: linear(&name("fc1"), hidden, width)?,
                fc2: linear(&name("fc2"), width, hidden)?,
                hidden,
            });
        }
        let mut position = weights.tensor("pos", &[TOKENS, width])?;
        add(&mut position, &weights.tensor("cls", &[width])?);
        let classes = weights.rows("head.weight")?;

        let dim = width / heads;
        let qkv = View::new("qkv", [1, heads, TOKENS, dim], [TOKENS * 3 * width, dim, 3 * width, 1])?;
        let output = View::new("attended", [1, heads, TOKENS, dim], [TOKENS * width, dim, width, 1])?;
        let problem = Spec::new(DType::F32, qkv, qkv, qkv, output).check()?;
        let engine = Engine::new(options).map_err(ModelError::Engine)?;
        let plan = engine.plan(&problem, &PlanOptions::default())?;
        let rows = |columns: usize| vec![0.0; TOKENS * columns];
        let shared = |columns: usize| -> Shared {
            match engine.host_buffer::<f32>(TOKENS * columns) {
                Ok(buffer) => Box::new(buffer),
                // With buffers in ordinary memory a run copies to the GPU, or falls back to the CPU if the GPU is gone.
                Err(reason) => {
                    log::warn!("buffers in ordinary memory: {reason}");
                    Box::new(rows(columns))
                }
            }
        };
        Ok(Model {
            patch: linear("patch", width, PATCH * PATCH)?,
            position,
            blocks,
            norm: norm("norm")?,
            head: linear("head", classes, width)?,
            workspace: plan.workspace()?,
            plan,
            engine: engine.clone(),
            backend: engine.backend(),
            copied: 0,
            width,
            buffers: Buffers {
                cells: [0.0; SIDE * SIDE],
                patches: [0.0; SIDE * SIDE],
                x: rows(width),
                normed: rows(width),
                qkv: shared(3 * width),
                attended: shared(width),
                mapped: rows(width),
                hidden: rows(widest),
                scores: vec![0.0; classes],
            },
        })
    }

    /// Returns the engine. Another thread may use it to cancel calls.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the back end that computes attention.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Returns the number of tensor bytes that attention copied between host and GPU for the last frame; zero if the
    /// CPU computed attention, or if the GPU used all tensors in place.
    #[must_use]
    pub fn copied(&self) -> usize {
        self.copied
    }

    /// Returns the scores of the last frame, one per class, before softmax.
    #[must_use]
    pub fn scores(&self) -> &[f32] {
        &self.buffers.scores
    }

    /// Classifies a black frame, so that all one-time work is done before the first real frame.
    ///
    /// # Errors
    /// Returns the errors of [`Model::classify`].
    pub fn warm_up(&mut self) -> Result<(), ModelError> {
        self.buffers.cells.fill(0.0);
        self.forward().map(drop)
    }

    /// Classifies a frame.
    ///
    /// # Errors
    /// Returns an error if attention fails; the next frame may still succeed.
    pub fn classify(&mut self, frame: &Frame<'_>) -> Result<Class, ModelError> {
        reduce::reduce(frame, &mut self.buffers.cells);
        self.forward()
    }

    fn forward(&mut self) -> Result<Class, ModelError> {
        let (width, b) = (self.width, &mut self.buffers);
        let (mut fallback, mut copied) = (false, 0);
        // A patch contains its pixels row by row, scaled to the range from 0 to 1.
        for (i, pixel) in b.patches.iter_mut().enumerate() {
            let (patch, inside) = (i / (PATCH * PATCH), i % (PATCH * PATCH));
            let (y, x) = (patch / GRID * PATCH + inside / PATCH, patch % GRID * PATCH + inside % PATCH);
            *pixel = b.cells[y * SIDE + x] / 255.0;
        }
        b.x[..width].fill(0.0);
        self.patch.apply(&b.patches, &mut b.x[width..]);
        add(&mut b.x, &self.position);
        for block in &self.blocks {
            block.norm1.apply(&b.x, &mut b.normed);
            block.qkv.apply(&b.normed, &mut b.qkv);
            let inputs = Inputs::new(
                Elements::F32(&b.qkv),
                Elements::F32(&b.qkv[width..]),
                Elements::F32(&b.qkv[2 * width..]),
            );
            let outputs = Outputs::new(ElementsMut::F32(&mut b.attended));
            let report = self.plan.run(inputs, outputs, &mut self.workspace)?;
            self.backend = report.backend;
            fallback |= report.fallback.is_some();
            copied += report.copied;
            block.proj.apply(&b.attended, &mut b.mapped);
            add(&mut b.x, &b.mapped);
            block.norm2.apply(&b.x, &mut b.normed);
            let hidden = &mut b.hidden[..TOKENS * block.hidden];
            block.fc1.apply(&b.normed, hidden);
            gelu(hidden);
            block.fc2.apply(hidden, &mut b.mapped);
            add(&mut b.x, &b.mapped);
        }
        self.copied = copied;
        // The answer depends only on the class token.
        self.norm.apply(&b.x[..width], &mut b.normed[..width]);
        self.head.apply(&b.normed[..width], &mut b.scores);
        let best = |best: usize, (i, score): (usize, &f32)| if *score > b.scores[best] { i } else { best };
        let class = b.scores.iter().enumerate().fold(0, best);
        let score = softmax_at(&b.scores, class);
        Ok(Class { class, score, backend: self.backend, fallback })
    }
}
