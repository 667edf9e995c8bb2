//! From flags and files to a problem and its inputs.

use crate::args::{Choice, EngineArgs, ProblemArgs};
use crate::error::Error;
use crate::tensor::{Accept, Source, Tensor, TensorError};
use elsa_core::argument::ArgumentError;
use elsa_core::attention::MaskView;
use elsa_core::attention::{Inputs, Lengths, Problem, Spec};
use elsa_core::dtype::Elements;
use elsa_core::view::{Layout, View};
use elsa_runtime::{Backend, CudaOptions, Engine, EngineOptions};

/// Tensors that were read, and the problem that they make.
pub struct Job {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Option<Tensor>,
    past_k: Option<Tensor>,
    past_v: Option<Tensor>,
    kv_lens: Option<Vec<i64>>,
    cu_seqlens_q: Option<Vec<i64>>,
    cu_seqlens_k: Option<Vec<i64>>,
    /// The checked problem.
    pub problem: Problem,
    /// Axes of the output as the layout has them.
    pub out_shape: Vec<usize>,
    /// Axes of the present keys.
    pub present_k_shape: Vec<usize>,
    /// Axes of the present values.
    pub present_v_shape: Vec<usize>,
}

impl Job {
    /// Reads the files that `args` names and checks everything about them that can be checked. `present`
    /// says whether the present keys and the present values are to be written.
    ///
    /// # Errors
    /// The first thing that is not allowed.
    pub fn load(args: &ProblemArgs, present: [bool; 2]) -> Result<Job, Error> {
        let required = |argument, source: &Option<Source>| match source {
            Some(source) => Tensor::load(argument, source, Accept::Float),
            None => Err(Error::Argument {
                argument,
                found: "missing".into(),
                allowed: "path.npy or path.safetensors#name".into(),
            }),
        };
        let optional = |argument, source: &Option<Source>, accept| {
            source.as_ref().map(|source| Tensor::load(argument, source, accept)).transpose()
        };
        let q = required("q", &args.q)?;
        let k = required("k", &args.k)?;
        let v = required("v", &args.v)?;
        let mask = optional("mask", &args.mask, Accept::Mask)?;
        let past_k = optional("past-k", &args.past_k, Accept::Float)?;
        let past_v = optional("past-v", &args.past_v, Accept::Float)?;
        let kv_lens = lengths("kv-lens", &args.kv_lens)?;
        let cu_seqlens_q = lengths("cu-seqlens-q", &args.cu_seqlens_q)?;
        let cu_seqlens_k = lengths("cu-seqlens-k", &args.cu_seqlens_k)?;
        let needs = |argument, other| Err(Error::Problem(ArgumentError::Needs { argument, other }));
        let packed = match (&cu_seqlens_q, &cu_seqlens_k) {
            (Some(bounds), Some(_)) => Some(bounds.len().saturating_sub(1)),
            (None, None) => None,
            (Some(_), None) => return needs("cu-seqlens-q", "cu-seqlens-k"),
            (None, Some(_)) => return needs("cu-seqlens-k", "cu-seqlens-q"),
        };
        let layout = layout(args, packed.is_some(), [("q", &q), ("k", &k), ("v", &v)])?;
        let kv_heads = args.kv_heads.or(args.heads);
        let query = View::dense("q", layout, q.shape(), args.heads)?;
        let key = View::dense("k", layout, k.shape(), kv_heads)?;
        let value = View::dense("v", layout, v.shape(), kv_heads)?;
        for (argument, given, view, of) in
            [("heads", args.heads, &query, "q"), ("kv-heads", args.kv_heads, &key, "k")]
        {
            if let Some(given) = given
                && given != view.heads()
            {
                return Err(Error::Argument {
                    argument,
                    found: given.to_string(),
                    allowed: format!("{}, as {of} has", view.heads()),
                });
            }
        }
        let mut out_shape = q.shape().to_vec();
        if let Some(last) = out_shape.last_mut() {
            let width = match layout {
                Layout::Bnc => value.dim().checked_mul(query.heads()),
                _ => Some(value.dim()),
            };
            *last = width.ok_or(ArgumentError::TooLarge { argument: "out", shape: value.shape() })?;
        }
        let output = View::dense("out", layout, &out_shape, args.heads)?;
        let dtype = match q.elements() {
            Some(elements) => elements.dtype(),
            None => return needs_elements("q"),
        };
        let mut spec = Spec::new(dtype, query, key, value, output);
        let dense = |argument, tensor: &Option<Tensor>| {
            tensor.as_ref().map(|t| View::dense(argument, Layout::Bhnd, t.shape(), None)).transpose()
        };
        spec.past_key = dense("past-k", &past_k)?;
        spec.past_value = dense("past-v", &past_v)?;
        let past = spec.past_key.as_ref().map_or(0, View::tokens);
        let present_k_shape = present_shape(&key, past, past_k.as_ref(), layout, k.shape());
        let present_v_shape = present_shape(&value, past, past_v.as_ref(), layout, v.shape());
        if present[0] {
            spec.present_key = Some(View::dense("present-k", Layout::Bhnd, &present_k_shape, None)?);
        }
        if present[1] {
            spec.present_value = Some(View::dense("present-v", Layout::Bhnd, &present_v_shape, None)?);
        }
        spec.scale = args.scale;
        spec.causal = args.causal;
        spec.window = args.window.unwrap_or_default();
        spec.softcap = args.softcap;
        if let Some(mask) = &mask {
            let Some(elements) = mask.mask() else { return needs_elements("mask") };
            spec.mask = Some(MaskView::dense(elements.kind(), mask.shape())?);
        }
        spec.key_lengths = kv_lens.is_some();
        spec.packed = packed;
        let problem = spec.check()?;
        let job = Job {
            q,
            k,
            v,
            mask,
            past_k,
            past_v,
            kv_lens,
            cu_seqlens_q,
            cu_seqlens_k,
            problem,
            out_shape,
            present_k_shape,
            present_v_shape,
        };
        job.inputs()?.check(&job.problem)?;
        Ok(job)
    }

    /// The data of the problem.
    ///
    /// # Errors
    /// A tensor without floating-point elements, which loading has ruled out.
    pub fn inputs(&self) -> Result<Inputs<'_>, Error> {
        let elements = |argument, tensor: &'_ Tensor| -> Result<(), Error> {
            if tensor.elements().is_some() { Ok(()) } else { needs_elements(argument) }
        };
        for (argument, tensor) in [("q", &self.q), ("k", &self.k), ("v", &self.v)] {
            elements(argument, tensor)?;
        }
        let (empty, none) = (Elements::F32(&[]), None);
        Ok(Inputs {
            query: self.q.elements().unwrap_or(empty),
            key: self.k.elements().unwrap_or(empty),
            value: self.v.elements().unwrap_or(empty),
            past_key: self.past_k.as_ref().map_or(none, Tensor::elements),
            past_value: self.past_v.as_ref().map_or(none, Tensor::elements),
            mask: self.mask.as_ref().and_then(Tensor::mask),
            lengths: Lengths {
                keys: self.kv_lens.as_deref(),
                cu_seqlens_q: self.cu_seqlens_q.as_deref(),
                cu_seqlens_k: self.cu_seqlens_k.as_deref(),
            },
        })
    }
}

fn needs_elements<T>(argument: &'static str) -> Result<T, Error> {
    Err(Error::Problem(ArgumentError::Needs { argument, other: "floating-point elements" }))
}

fn lengths(argument: &'static str, source: &Option<Source>) -> Result<Option<Vec<i64>>, Error> {
    let Some(source) = source else { return Ok(None) };
    let tensor = Tensor::load(argument, source, Accept::Lengths)?;
    let found = tensor.shape().len();
    if found != 1 {
        let source_error = TensorError::Rank { found, allowed: "1" };
        return Err(Error::Tensor { argument, path: source.path.clone(), source: source_error });
    }
    Ok(tensor.lengths())
}

/// The layout in which views are made. Packed tensors are `[total, heads, dim]`, which is bnhd without a batch,
/// or `[total, heads · dim]`.
fn layout(args: &ProblemArgs, packed: bool, tensors: [(&'static str, &Tensor); 3]) -> Result<Layout, Error> {
    if args.layout == Layout::Bnc && args.heads.is_none() {
        return Err(Error::Argument {
            argument: "heads",
            found: "missing".into(),
            allowed: "with --layout bnc, a number that divides the last axis of q".into(),
        });
    }
    if !packed {
        return Ok(args.layout);
    }
    let (layout, rank, allowed) = match args.layout {
        Layout::Bnc => (Layout::Bnc, 2, "2 (tokens, heads*dim), with --cu-seqlens-q"),
        _ => (Layout::Bnhd, 3, "3 (tokens, heads, dim), with --cu-seqlens-q"),
    };
    for (argument, tensor) in tensors {
        let found = tensor.shape().len();
        if found != rank {
            return Err(Error::Problem(ArgumentError::Rank { argument, found, allowed }));
        }
    }
    Ok(layout)
}

/// `[batch, heads, past + tokens, dim]`, with as many of its axes as the past has, or the new tokens.
fn present_shape(
    new: &View,
    past: usize,
    past_tensor: Option<&Tensor>,
    layout: Layout,
    shape: &[usize],
) -> Vec<usize> {
    let [b, h, n, d] = new.shape();
    let rank = match (past_tensor, layout) {
        (Some(past), _) => past.shape().len(),
        (None, Layout::Bnc) => shape.len() + 1,
        (None, _) => shape.len(),
    };
    let full = [b, h, n.saturating_add(past), d];
    full[4 - rank.clamp(2, 4)..].to_vec()
}

/// The engine that the flags ask for.
///
/// # Errors
/// A back end that is absent, a number of threads that cannot be had.
pub fn engine(args: &EngineArgs) -> Result<Engine, Error> {
    let backend = match args.backend {
        Choice::Auto => None,
        Choice::Forced(wanted) => {
            let present = |wanted: Backend| wanted.is_present() || wanted == Backend::Cuda;
            if !present(wanted) {
                let all = Backend::ALL.into_iter().filter(|b| present(*b)).map(Backend::name);
                return Err(Error::Argument {
                    argument: "backend",
                    found: format!("{wanted}, which this machine or build does not have"),
                    allowed: std::iter::once("auto").chain(all).collect::<Vec<_>>().join(", "),
                });
            }
            Some(wanted)
        }
    };
    let options = EngineOptions {
        backend,
        threads: args.threads,
        fallback: args.fallback,
        cuda: CudaOptions { device: args.device, ..CudaOptions::default() },
    };
    Ok(Engine::new(&options)?)
}
