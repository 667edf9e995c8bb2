//! A layer: `x + attention(norm(x))`, then `x + mlp(norm(x))`.
//!
//! ```text
//! h = rmsnorm(x) ⊙ a        q, k, v = h Wq, h Wk, h Wv        x += attention(q, k, v) Wo
//! h = rmsnorm(x) ⊙ b        x += (silu(h Wg) ⊙ h Wu) Wd
//! ```
//!
//! Attention is causal, and query heads share key heads. This library computes attention in place, in the layout
//! `bnhd`: `[tokens, heads, dim]`. There are no position embeddings; only the causal mask depends on positions.
//! `ndarray` computes the matrix products, on one thread.

use crate::error::{Error, zeros};
use crate::layer::{Sizes, Weight};
use elsa_core::attention::{Alignment, Inputs, Outputs, Spec};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use elsa_runtime::{Engine, Plan, PlanOptions, Workspace};
use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, ShapeError};

/// Term added to the mean square, so that a row of zeros stays zero.
const EPSILON: f32 = 1e-5;

/// A layer for a fixed number of tokens: the plan of its attention, and buffers for intermediate results.
#[derive(Debug)]
pub struct Model {
    sizes: Sizes,
    tokens: usize,
    plan: Plan,
    workspace: Workspace,
    normed: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    attended: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
}

/// Computes `c ← beta c + a b` for `a` `[rows, inner]`, `b` `[inner, columns]` and `c` `[rows, columns]`, stored by
/// rows.
///
/// # Errors
/// Returns an error if the length of a slice does not match these shapes.
fn product(
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
    [rows, inner, columns]: [usize; 3],
    beta: f32,
) -> Result<(), Error> {
    let shapes = |e: ShapeError| Error::Reader(format!("a weight is not of its shape: {e}"));
    let a = ArrayView2::from_shape((rows, inner), a).map_err(shapes)?;
    let b = ArrayView2::from_shape((inner, columns), b).map_err(shapes)?;
    let mut c = ArrayViewMut2::from_shape((rows, columns), c).map_err(shapes)?;
    general_mat_mul(1.0, &a, &b, beta, &mut c);
    Ok(())
}

impl Model {
    /// Creates the plan and the buffers for a layer with `tokens` tokens.
    ///
    /// # Errors
    /// Returns an error if the sizes do not form an attention problem, a plan cannot be created, or the system refuses
    /// memory.
    pub fn new(engine: &Engine, sizes: Sizes, tokens: usize) -> Result<Model, Error> {
        let Sizes { heads, kv_heads, head_dim, mlp } = sizes;
        let view = |name, heads| View::dense(name, Layout::Bnhd, &[1, tokens, heads, head_dim], None);
        let mut spec = Spec::new(
            DType::F32,
            view("q", heads)?,
            view("k", kv_heads)?,
            view("v", kv_heads)?,
            view("out", heads)?,
        );
        spec.causal = Some(Alignment::TopLeft);
        let plan = engine.plan(&spec.check()?, &PlanOptions::default())?;
        let workspace = plan.workspace()?;
        let of = |count: usize| zeros("layer", tokens * count);
        Ok(Model {
            sizes,
            tokens,
            plan,
            workspace,
            normed: of(sizes.dim())?,
            q: of(sizes.dim())?,
            k: of(kv_heads * head_dim)?,
            v: of(kv_heads * head_dim)?,
            attended: of(sizes.dim())?,
            gate: of(mlp)?,
            up: of(mlp)?,
        })
    }

    /// Applies the layer with weights `weights` to `x`, `[tokens, dim]`, in place.
    ///
    /// # Errors
    /// Returns an error if attention fails, or if `weights` or `x` has the wrong length.
    pub fn layer(&mut self, weights: &[f32], x: &mut [f32]) -> Result<(), Error> {
        let (sizes, tokens) = (self.sizes, self.tokens);
        let (dim, kv) = (sizes.dim(), sizes.kv_heads * sizes.head_dim);
        if weights.len() != sizes.elements() || x.len() != tokens * dim {
            return Err(Error::Reader(format!("{} weights; allowed: {}", weights.len(), sizes.elements())));
        }
        let of = |weight: Weight| &weights[weight.range(&sizes)];
        norm(x, of(Weight::AttentionNorm), &mut self.normed);
        product(&self.normed, of(Weight::Query), &mut self.q, [tokens, dim, dim], 0.0)?;
        product(&self.normed, of(Weight::Key), &mut self.k, [tokens, dim, kv], 0.0)?;
        product(&self.normed, of(Weight::Value), &mut self.v, [tokens, dim, kv], 0.0)?;
        let inputs = Inputs::new(Elements::F32(&self.q), Elements::F32(&self.k), Elements::F32(&self.v));
        let outputs = Outputs::new(ElementsMut::F32(&mut self.attended));
        self.plan.run(inputs, outputs, &mut self.workspace)?;
        product(&self.attended, of(Weight::Output), x, [tokens, dim, dim], 1.0)?;
        norm(x, of(Weight::MlpNorm), &mut self.normed);
        product(&self.normed, of(Weight::Gate), &mut self.gate, [tokens, dim, sizes.mlp], 0.0)?;
        product(&self.normed, of(Weight::Up), &mut self.up, [tokens, dim, sizes.mlp], 0.0)?;
        for (gate, up) in self.gate.iter_mut().zip(&self.up) {
            *gate = *gate / (1.0 + libm::expf(-*gate)) * up;
        }
        product(&self.gate, of(Weight::Down), x, [tokens, sizes.mlp, dim], 1.0)?;
        Ok(())
    }
}

/// Divides each row of `x` by the row's root mean square, multiplies the quotients by `scale` element by element, and
/// writes the products to `to`.
fn norm(x: &[f32], scale: &[f32], to: &mut [f32]) {
    for (row, to) in x.chunks_exact(scale.len()).zip(to.chunks_exact_mut(scale.len())) {
        let squares: f32 = row.iter().map(|x| x * x).sum();
        let by = 1.0 / (squares / row.len() as f32 + EPSILON).sqrt();
        for ((to, x), scale) in to.iter_mut().zip(row).zip(scale) {
            *to = x * by * scale;
        }
    }
}
