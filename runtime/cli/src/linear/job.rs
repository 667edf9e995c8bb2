//! Conversion of flags and files to a problem of linear attention and its inputs.

use super::args::{SemanticsArgs, TensorArgs};
use crate::args::FILE_IS;
use crate::error::{Error, dashed, say};
use crate::files::Files;
use crate::flag::flag;
use crate::job::{Packed, check_heads, floats, layout, list, missing};
use elsa_core::argument::ArgumentError;
use elsa_core::dtype::{DType, Elements};
use elsa_core::linear::{Inputs, Operand, Operands, Problem, Rule, Spec};
use elsa_core::view::{Layout, View};
use elsa_files::{Accept, FileError, Tensor, TensorPath, zeros};
use std::rc::Rc;

/// Requested outputs in addition to `out`.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// `true` if the states after the last token are written.
    pub present_state: bool,
}

/// Texts for errors about packed tensors of linear attention.
const PACKED: Packed = Packed {
    argument: "--cu-seqlens",
    bnc: "2 (tokens, heads*dim), with --cu-seqlens",
    bnhd: "3 (tokens, heads, dim), with --cu-seqlens",
};

/// Tensors read from files, and the problem that they define.
pub struct LinearJob {
    tensors: Operands<Option<Rc<Tensor>>>,
    /// Elements converted to f32, for operands whose file has a type that the problem does not accept.
    widened: Operands<Option<Vec<f32>>>,
    cu_seqlens: Option<Tensor>,
    /// The checked problem.
    pub problem: Problem,
    /// Shape that the file of each output tensor states; empty for operands that are not outputs.
    pub shapes: Operands<Vec<usize>>,
}

impl LinearJob {
    /// Reads the files of `args` and checks everything about them that can be checked.
    ///
    /// # Errors
    /// Returns an error for the first argument or header that is not allowed.
    pub fn load(args: &TensorArgs, semantics: &SemanticsArgs, written: Written) -> Result<LinearJob, Error> {
        rule_takes(semantics.rule, args)?;
        let mut loaded: Vec<(TensorPath, Rc<Tensor>)> = Vec::new();
        let mut files = Files::default();
        let mut tensors = Operands::<Option<Rc<Tensor>>>::default();
        for operand in Operand::ALL {
            let Some(source) = args.source(operand) else { continue };
            let argument = flag(operand.argument());
            let tensor = match loaded.iter().find(|(other, _)| other == source) {
                Some((_, tensor)) => Rc::clone(tensor),
                None => {
                    let tensor = Rc::new(Tensor::load(argument, source, Accept::Float)?);
                    loaded.push((source.clone(), Rc::clone(&tensor)));
                    tensor
                }
            };
            files.add(argument, &source.to_string(), tensor.dtype().name(), tensor.shape());
            tensors[operand] = Some(tensor);
        }
        let cu_seqlens = list("cu-seqlens", &args.cu_seqlens, &mut files)?;
        let job =
            LinearJob::of(args, semantics, written, tensors, cu_seqlens, &files).map_err(
                |fault| match fault {
                    Error::Problem(fault) => files.explain(fault.renamed(flag)),
                    other => other,
                },
            )?;
        for notice in loaded.iter().filter_map(|(_, tensor)| tensor.notice()) {
            say(&dashed(&notice));
        }
        Ok(job)
    }

    /// Builds the job from loaded tensors. `files` describes them in messages.
    fn of(
        args: &TensorArgs,
        semantics: &SemanticsArgs,
        written: Written,
        tensors: Operands<Option<Rc<Tensor>>>,
        cu_seqlens: Option<Tensor>,
        files: &Files,
    ) -> Result<LinearJob, Error> {
        let packed = cu_seqlens.as_ref().map(|bounds| bounds.shape()[0].saturating_sub(1));
        let required = |operand| tensors[operand].as_deref().ok_or_else(|| missing(operand.argument()));
        let (q, k, v) = (required(Operand::Query)?, required(Operand::Key)?, required(Operand::Value)?);
        let of_packed = cu_seqlens.as_ref().map(|_| &PACKED);
        let layout = layout(args.layout, args.heads, of_packed, [("q", q), ("k", k), ("v", v)])?;
        let query = View::dense("q", layout, q.shape(), args.heads)?;
        let value = View::dense("v", layout, v.shape(), args.kv_heads.or(args.heads))?;
        // The keys have the same head size as the queries, so it is the last axis of k divided by the number of heads.
        let width = k.shape().last().copied().unwrap_or(0);
        let key_heads = width.checked_div(query.dim()).filter(|heads| heads * query.dim() == width);
        let key = View::dense("k", layout, k.shape(), key_heads.filter(|n| *n > 0).or(Some(value.heads())))?;
        check_heads(files, [("heads", args.heads, &query, "q"), ("kv-heads", args.kv_heads, &value, "v")])?;
        let heads = query.heads().max(value.heads());
        let mut out = v.shape().to_vec();
        let axis = match layout {
            Layout::Bhnd => out.len().checked_sub(3),
            Layout::Bnhd => (out.len() > 2).then(|| out.len() - 2),
            Layout::Bnc => Some(out.len() - 1),
        };
        if let Some(axis) = axis {
            let width = if layout == Layout::Bnc { value.dim() } else { 1 };
            out[axis] = heads
                .checked_mul(width)
                .ok_or(ArgumentError::TooLarge { argument: "out", shape: value.shape() })?;
        }
        let output = View::dense("out", layout, &out, Some(heads))?;

        let dtype = floats("q", q)?.dtype();
        let gates = Gates { layout, rank: q.shape().len(), heads: value.heads() };
        let gate = |operand: Operand| match tensors[operand].as_deref() {
            Some(tensor) => gates.view(operand, tensor.shape()).map(Some),
            None => Ok(None),
        };
        let state = |operand: Operand, shape: &[usize]| {
            View::dense(flag(operand.argument()), Layout::Bhnd, shape, None)
        };
        let mut spec = Spec::new(dtype, query, key, value, output);
        spec.rule = semantics.rule;
        spec.decay = gate(Operand::Decay)?;
        spec.beta = gate(Operand::Beta)?;
        let past = tensors[Operand::PastState].as_deref();
        spec.past_state = past.map(|past| state(Operand::PastState, past.shape())).transpose()?;
        let sequences = packed.unwrap_or(query.batch());
        // A present state has as many axes as the past state. Without a past state, it has as many axes as the queries
        // would have with a separate axis for heads.
        let tensor_axes = if layout == Layout::Bnc { q.shape().len() + 1 } else { q.shape().len() };
        let axes = past.map_or(if packed.is_some() { 4 } else { tensor_axes }, |past| past.shape().len());
        let present = [sequences, value.heads(), query.dim(), value.dim()][4 - axes.clamp(2, 4)..].to_vec();
        if written.present_state {
            spec.present_state = Some(state(Operand::PresentState, &present)?);
        }
        spec.scale = semantics.scale;
        spec.normalize = semantics.normalize;
        spec.direction = semantics.order.direction();
        spec.packed = packed;

        // Decay and beta share one type. This is the type of the other tensors if both have it, and f32 otherwise.
        let of = |operand| tensors[operand].as_deref().and_then(Tensor::elements).map(|x| x.dtype());
        let narrow =
            [Operand::Decay, Operand::Beta].into_iter().all(|o| of(o).is_none_or(|found| found == dtype));
        spec.gate_dtype = if narrow { dtype } else { DType::F32 };
        let problem = spec.check()?;
        let mut widened = Operands::<Option<Vec<f32>>>::default();
        for operand in [Operand::Decay, Operand::Beta, Operand::PastState] {
            if let Some(tensor) = tensors[operand].as_deref()
                && of(operand) != Some(problem.dtype_of(operand))
                && problem.dtype_of(operand) == DType::F32
            {
                let from = floats(operand.argument(), tensor)?;
                let mut to = zeros::<f32>(flag(operand.argument()), from.len())?;
                to.iter_mut().enumerate().for_each(|(i, x)| *x = from.get(i));
                widened[operand] = Some(to);
            }
        }
        let mut shapes = Operands::<Vec<usize>>::default();
        shapes[Operand::Output] = out;
        shapes[Operand::PresentState] = present;
        let job = LinearJob { tensors, widened, cu_seqlens, problem, shapes };
        job.inputs()?.check(&job.problem)?;
        Ok(job)
    }

    /// Returns the input tensors of a call, and the bounds of packed sequences.
    ///
    /// # Errors
    /// Returns an error for a tensor without floating-point elements, which [`LinearJob::load`] rules out.
    pub fn inputs(&self) -> Result<Inputs<'_>, Error> {
        let found = |operand| match &self.widened[operand] {
            Some(widened) => Some(Elements::F32(widened)),
            None => self.tensors[operand].as_deref().and_then(Tensor::elements),
        };
        let required = |operand: Operand| found(operand).ok_or_else(|| missing(operand.argument()));
        let past_state = match found(Operand::PastState) {
            Some(Elements::F32(state)) => Some(state),
            _ => None,
        };
        Ok(Inputs {
            decay: found(Operand::Decay),
            beta: found(Operand::Beta),
            past_state,
            cu_seqlens: self.cu_seqlens.as_ref().and_then(Tensor::lengths),
            ..Inputs::new(required(Operand::Query)?, required(Operand::Key)?, required(Operand::Value)?)
        })
    }

    /// Requires that no file has changed since it was read. Otherwise, the output would not belong to the current
    /// contents of the files.
    ///
    /// # Errors
    /// Returns an error for the first file that has changed.
    pub fn unchanged(&self) -> Result<(), FileError> {
        let tensors = self.tensors.iter().filter_map(|(_, tensor)| tensor.as_deref());
        tensors.chain(&self.cu_seqlens).try_for_each(Tensor::unchanged)
    }
}

/// Checks that decay and beta are given if and only if the rule uses them.
fn rule_takes(rule: Rule, args: &TensorArgs) -> Result<(), Error> {
    let with = |of: fn(Rule) -> bool| {
        let names: Vec<&str> = Rule::ALL.into_iter().filter(|rule| of(*rule)).map(Rule::name).collect();
        names.join(" and ")
    };
    let decay = ("decay", args.decay.is_some(), rule.is_gated(), with(Rule::is_gated));
    let beta = ("beta", args.beta.is_some(), rule.is_delta(), with(Rule::is_delta));
    for (argument, given, takes, rules) in [decay, beta] {
        let (found, allowed) = match (given, takes) {
            (false, true) => (format!("missing, and --rule is {}", rule.name()), FILE_IS.into()),
            (true, false) => {
                (format!("given with --rule {}", rule.name()), format!("with the rules {rules}"))
            }
            _ => continue,
        };
        return Err(Error::Argument { argument, found, allowed });
    }
    Ok(())
}

/// Properties of the queries and values that determine the axes of decay and beta.
struct Gates {
    layout: Layout,
    /// Rank of the queries.
    rank: usize,
    /// Number of heads of the values.
    heads: usize,
}

impl Gates {
    /// Returns the view of decay or beta for axes of the sizes `shape`, in the order of the layout. If the last axis
    /// would have length one, it may be missing.
    fn view(&self, operand: Operand, shape: &[usize]) -> Result<View, ArgumentError> {
        let argument = operand.argument();
        let ranks = |allowed| ArgumentError::Rank { argument, found: shape.len(), allowed };
        if self.layout != Layout::Bnc {
            return match self.rank.checked_sub(shape.len()) {
                Some(0) => View::dense(argument, self.layout, shape, None),
                Some(1) => View::dense(argument, self.layout, &[shape, &[1]].concat(), None),
                _ => Err(ranks("that of q, or one less")),
            };
        }
        match shape.len().checked_sub(self.rank) {
            Some(0) => {
                let shared = operand == Operand::Beta && shape.last() == Some(&1);
                View::dense(argument, Layout::Bnc, shape, Some(if shared { 1 } else { self.heads }))
            }
            Some(1) => View::dense(argument, Layout::Bnhd, shape, None),
            _ => Err(ranks("that of q, or one more for layout bnc")),
        }
    }
}
