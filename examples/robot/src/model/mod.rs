//! The Vision Transformer of `examples/cpp-vision`, with attention through `elsa-runtime`.
//!
//! A picture of 8 x 8 pixels is cut into 2 x 2 patches, one token each, preceded by a class token. Each block is
//! pre-norm: `x += proj(attention(norm1(x)))`, then `x += fc2(gelu(fc1(norm2(x))))`. The classes are a linear map of
//! the normalised class token.
//!
//! One plan serves every block, since the shapes are the same. Attention reads the rows `[q | k | v]` that one linear
//! map writes in place, through views with the stride of a row, and its output is dense, with heads side by side. All
//! buffers are made once; [`Model::classify`] allocates nothing.

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

/// Pixels per side of a patch.
const PATCH: usize = 2;
/// Patches per side.
const GRID: usize = SIDE / PATCH;
/// Number of tokens: the class token and one per patch.
const TOKENS: usize = 1 + GRID * GRID;
/// Addend of the variance in layer normalisation.
const EPSILON: f32 = 1e-5;
/// Largest number of blocks in a network.
const MAX_BLOCKS: usize = 64;

/// The answer for one frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    /// The class with the highest score; the first of equal ones.
    pub class: usize,
    /// Probability.
    pub score: f32,
    /// The back end that computed attention.
    pub backend: Backend,
    /// `true` if the CPU computed in place of a failing GPU, in at least one block.
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
    /// The class token with its position, and the positions of the patches: `[TOKENS, width]`.
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

/// Inputs and outputs of attention: memory that a GPU uses in place, if the engine has a GPU.
type Shared = Box<dyn DerefMut<Target = [f32]>>;

/// The intermediate results of a frame.
struct Buffers {
    cells: [f32; SIDE * SIDE],
    patches: [f32; GRID * GRID * PATCH * PATCH],
    /// The residual stream, and its normalised form: `[TOKENS, width]`.
    x: Vec<f32>,
    normed: Vec<f32>,
    /// `[TOKENS, 3 width]`: in each row the query, key and value of every head.
    qkv: Shared,
    /// Output of attention: `[TOKENS, width]`.
    attended: Shared,
    /// Output of the map after it: `[TOKENS, width]`.
    mapped: Vec<f32>,
    /// `[TOKENS, hidden]`.
    hidden: Vec<f32>,
    scores: Vec<f32>,
}

impl Model {
    /// Reads the weights of `path` and plans attention on an engine with `options`.
    ///
    /// # Errors
    /// If the file has no such model, or the engine is not available.
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
                // A run then copies to the GPU, or falls back if the GPU is gone.
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

    /// Returns the engine, whose calls another thread may cancel.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the back end that computes attention.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Returns the bytes of tensors that attention copied between host and GPU for the last frame; 0 if it used all
    /// in place, and on the CPU.
    #[must_use]
    pub fn copied(&self) -> usize {
        self.copied
    }

    /// Returns the scores of the last frame, one per class, before softmax.
    #[must_use]
    pub fn scores(&self) -> &[f32] {
        &self.buffers.scores
    }

    /// Classifies a black frame, so that all one-time work is done.
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
    /// If attention fails; the next frame may be tried.
    pub fn classify(&mut self, frame: &Frame<'_>) -> Result<Class, ModelError> {
        reduce::reduce(frame, &mut self.buffers.cells);
        self.forward()
    }

    fn forward(&mut self) -> Result<Class, ModelError> {
        let (width, b) = (self.width, &mut self.buffers);
        let (mut fallback, mut copied) = (false, 0);
        // A patch is its pixels row by row, on a scale from 0 to 1.
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
            let report = self.plan.bind(inputs, outputs, &mut self.workspace)?.run()?;
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
