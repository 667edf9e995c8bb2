//! Conversion of flags and files to a problem and its inputs.

use crate::args::{FILE_IS, ProblemArgs};
use crate::error::{Error, dashed, say_once};
use crate::files::Files;
use crate::flag::flag;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::{
    BiasView, Chunk, Inputs, Lengths, MaskKind, MaskView, Operand, Operands, Problem, Spec, TableView,
    Windows,
};
use elsa_core::dtype::Elements;
use elsa_core::view::{Layout, View};
use elsa_files::{Accept, FileError, Tensor, TensorError, TensorPath};
use std::fs::Metadata;
use std::rc::Rc;

/// Input tensors by operand; `None` for operands without a file. Operands whose flags name the same tensor share one
/// copy of it.
type Tensors = Operands<Option<Rc<Tensor>>>;

/// Tensors read from files, and the problem that they define.
pub struct Job {
    tensors: Tensors,
    lengths: Lists,
    /// The checked problem.
    pub problem: Problem,
    /// Shape that the file of each output tensor states; empty for operands that are not outputs.
    pub shapes: Operands<Vec<usize>>,
}

impl Job {
    /// Reads the files of `args` and checks everything about them that can be checked. The two elements of `present`
    /// are `true` if present keys and present values are written, respectively.
    ///
    /// # Errors
    /// Returns an error for the first argument or header that is not allowed.
    pub fn load(args: &ProblemArgs, present: [bool; 2]) -> Result<Job, Error> {
        Job::load_by(args, present, None, |_, argument, source, accept| {
            Ok(Tensor::load(argument, source, accept)?)
        })
    }

    /// Reads the headers of the files that `args` names. The lists of lengths are read completely; elements of other
    /// tensors are neither read nor checked.
    ///
    /// # Errors
    /// Returns an error for the first argument or header that is not allowed.
    pub fn headers(args: &ProblemArgs, present: [bool; 2]) -> Result<Job, Error> {
        Job::load_by(args, present, None, |_, argument, source, accept| {
            Ok(Tensor::header(argument, source, accept)?)
        })
    }

    /// Loads a job like [`Job::load`], but calls `read` with each operand and its flag to load the tensor. If `chunk`
    /// is given, the tensors are part of a longer sequence, and the key lengths refer to this longer sequence.
    ///
    /// # Errors
    /// Returns the errors of [`Job::load`].
    pub fn load_by(
        args: &ProblemArgs,
        present: [bool; 2],
        chunk: Option<Chunk>,
        read: impl Fn(Operand, &'static str, &TensorPath, Accept) -> Result<Tensor, Error>,
    ) -> Result<Job, Error> {
        let mut loaded: Vec<(TensorPath, Accept, Rc<Tensor>)> = Vec::new();
        let tensors = Tensors::try_from_fn(|operand| -> Result<_, Error> {
            let accept = match operand {
                Operand::Mask => Accept::Mask,
                Operand::Bias => Accept::Bias,
                Operand::BiasIndex => Accept::Lengths,
                _ => Accept::Float,
            };
            let Some(source) = args.source(operand) else { return Ok(None) };
            if let Some((.., tensor)) = loaded.iter().find(|(s, a, _)| (s, *a) == (source, accept)) {
                return Ok(Some(Rc::clone(tensor)));
            }
            let tensor = Rc::new(read(operand, args.flag(operand.argument()), source, accept)?);
            loaded.push((source.clone(), accept, Rc::clone(&tensor)));
            Ok(Some(tensor))
        })?;
        let mut files = Files::default();
        for (operand, tensor) in tensors.iter() {
            if let (Some(source), Some(tensor)) = (args.source(operand), tensor) {
                files.add(
                    args.flag(operand.argument()),
                    &source.to_string(),
                    tensor.dtype().name(),
                    tensor.shape(),
                );
            }
        }
        let lengths = Lists { chunk, ..Lists::load(args, &mut files)? };
        let job = Job::of(args, present, tensors, lengths, &files).map_err(|fault| match fault {
            Error::Problem(fault) => files.explain(fault.renamed(|name| args.flag(name))),
            other => other,
        })?;
        for notice in loaded.iter().filter_map(|(.., tensor)| tensor.notice()) {
            say_once(&dashed(&notice));
        }
        Ok(job)
    }

    /// Builds the job from loaded tensors. `files` describes them in messages.
    fn of(
        args: &ProblemArgs,
        present: [bool; 2],
        tensors: Tensors,
        lengths: Lists,
        files: &Files,
    ) -> Result<Job, Error> {
        let packed = lengths.sequences()?;
        let required = |operand| tensors[operand].as_deref().ok_or_else(|| missing(operand.argument()));
        let (q, k, v) = (required(Operand::Query)?, required(Operand::Key)?, required(Operand::Value)?);
        let layout =
            layout(args.layout, args.heads, packed.map(|_| &PACKED), [("q", q), ("k", k), ("v", v)])?;
        let kv_heads = args.kv_heads.or(args.heads);
        let query = View::dense("q", layout, q.shape(), args.heads)?;
        let key = View::dense("k", layout, k.shape(), kv_heads)?;
        let value = View::dense("v", layout, v.shape(), kv_heads)?;
        check_heads(files, [("heads", args.heads, &query, "q"), ("kv-heads", args.kv_heads, &key, "k")])?;
        let mut out = q.shape().to_vec();
        if let Some(last) = out.last_mut() {
            let width = match layout {
                Layout::Bnc => value.dim().checked_mul(query.heads()),
                _ => Some(value.dim()),
            };
            *last = width.ok_or(ArgumentError::TooLarge { argument: "out", shape: value.shape() })?;
        }
        let output = View::dense("out", layout, &out, args.heads)?;

        let dtype = floats("q", q)?.dtype();
        let mut spec = Spec::new(dtype, query, key, value, output);
        // Past and present always have the axes of the default layout.
        let dense =
            |operand: Operand, shape| View::dense(flag(operand.argument()), Layout::Bhnd, shape, None);
        let past = |operand| tensors[operand].as_ref().map(|past| dense(operand, past.shape())).transpose();
        spec.past_key = past(Operand::PastKey)?;
        spec.past_value = past(Operand::PastValue)?;
        let tokens = spec.past_tokens();
        let present_shape = |new: &View, tensor: &Tensor, past| {
            let past = tensors[past].as_ref().map(|past| past.shape().len());
            // A present tensor has as many axes as its past tensor. Without a past tensor, it has as many axes as the
            // tensor of new tokens.
            let rank = past.unwrap_or(tensor.shape().len() + usize::from(layout == Layout::Bnc));
            let [b, h, n, d] = new.shape();
            [b, h, n.saturating_add(tokens), d][4 - rank.clamp(2, 4)..].to_vec()
        };
        let present_k = present_shape(&key, k, Operand::PastKey);
        let present_v = present_shape(&value, v, Operand::PastValue);
        if present[0] {
            spec.present_key = Some(dense(Operand::PresentKey, &present_k)?);
        }
        if present[1] {
            spec.present_value = Some(dense(Operand::PresentValue, &present_v)?);
        }
        spec.scale = args.scale;
        spec.causal = args.causal;
        spec.window = args.window.unwrap_or_default();
        spec.softcap = args.softcap;
        if let Some(mask) = &tensors[Operand::Mask] {
            let other = "floating-point elements";
            let elements = mask.mask().ok_or(ArgumentError::Needs { argument: "mask", other })?;
            spec.mask = Some(MaskView::dense(elements.kind(), mask.shape())?);
        }
        spec.windows = windows(args)?;
        spec.bias = bias(args, &tensors, [query.tokens(), key.tokens().saturating_add(tokens)])?;
        spec.key_lengths = lengths.keys.is_some();
        spec.packed = packed;

        let mut shapes = Operands::from_fn(|operand| match operand {
            Operand::LogSumExp | Operand::StateReference | Operand::StateSum => output.shape()[..3].to_vec(),
            Operand::StateWeighted => output.shape().to_vec(),
            _ => Vec::new(),
        });
        shapes[Operand::Output] = out;
        shapes[Operand::PresentKey] = present_k;
        shapes[Operand::PresentValue] = present_v;
        let explained =
            |fault: ArgumentError| files.explain_spec(fault.renamed(|name| args.flag(name)), &spec);
        let problem = spec.check().map_err(explained)?;
        let job = Job { problem, tensors, lengths, shapes };
        match job.tensors.iter().any(|(_, tensor)| tensor.as_ref().is_some_and(|t| t.is_left())) {
            true => job.lengths.borrow().check(&job.problem)?,
            false => job.inputs()?.check(&job.problem)?,
        }
        Ok(job)
    }

    /// Returns the input tensor of an operand, if it has a file.
    #[must_use]
    pub fn tensor(&self, operand: Operand) -> Option<&Tensor> {
        self.tensors[operand].as_deref()
    }

    /// Returns the lengths of the sequences.
    #[must_use]
    pub fn lengths(&self) -> Lengths<'_> {
        self.lengths.borrow()
    }

    /// Returns fingerprints of the input files. They change if a file is replaced or modified.
    #[must_use]
    pub fn stamps(&self) -> Vec<String> {
        let tensors = self.tensors.iter().filter_map(|(_, tensor)| tensor.as_deref());
        tensors.chain(self.lengths.tensors()).map(Tensor::stamp).collect()
    }

    /// Returns the flag that reads the file whose metadata is `found`. The flag may name the file by another path.
    #[must_use]
    pub fn reads(&self, found: &Metadata) -> Option<&'static str> {
        let tensors = self.tensors.iter().filter_map(|(_, tensor)| tensor.as_deref());
        tensors.chain(self.lengths.tensors()).find_map(|tensor| tensor.reads(found))
    }

    /// Requires that no file has changed since it was read. Otherwise, the output would not belong to the current
    /// contents of the files.
    ///
    /// # Errors
    /// Returns an error for the first file that has changed.
    pub fn unchanged(&self) -> Result<(), FileError> {
        let mut tensors =
            self.tensors.iter().filter_map(|(_, tensor)| tensor.as_deref()).chain(self.lengths.tensors());
        tensors.try_for_each(Tensor::unchanged)
    }

    /// Returns the number of multiplications in both matrix products over all pairs of a query and a key, for a
    /// progress display.
    #[must_use]
    pub fn multiplications(&self) -> f64 {
        let dims = self.problem.head_dim() + self.problem.value_dim();
        self.problem.rows() as f64 * self.problem.keys() as f64 * dims as f64
    }

    /// Returns the shape of an input tensor in its file; empty without a file.
    #[must_use]
    pub fn shape(&self, operand: Operand) -> Vec<usize> {
        self.tensors[operand].as_deref().map_or_else(Vec::new, |tensor| tensor.shape().to_vec())
    }

    /// Returns the input tensors and lists of a call.
    ///
    /// # Errors
    /// Returns an error for a tensor without floating-point elements, which [`Job::load`] rules out.
    pub fn inputs(&self) -> Result<Inputs<'_>, Error> {
        let elements = |operand| self.tensors[operand].as_deref().and_then(Tensor::elements);
        let required = |operand: Operand| match self.tensors[operand].as_deref() {
            Some(tensor) => floats(operand.argument(), tensor),
            None => Err(missing(operand.argument())),
        };
        Ok(Inputs {
            query: required(Operand::Query)?,
            key: required(Operand::Key)?,
            value: required(Operand::Value)?,
            mask: self.tensors[Operand::Mask].as_deref().and_then(Tensor::mask),
            bias_index: self.tensors[Operand::BiasIndex].as_deref().and_then(Tensor::lengths),
            lengths: self.lengths.borrow(),
            ..Inputs::of(elements)
        })
    }
}

/// Returns the windows that the flags define. Without `--picture`, the picture has the size of one window.
fn windows(args: &ProblemArgs) -> Result<Option<Windows>, Error> {
    let needs = |argument, needed: &str| Error::Argument {
        argument,
        found: format!("given without --{needed}"),
        allowed: format!("with --{needed}"),
    };
    match (args.windows, args.picture, args.shift) {
        (Some(_), None, Some(_)) => Err(Error::Argument {
            argument: "shift",
            found: "given without --picture".into(),
            allowed: "with --picture HxW, whose default is one window, which has no shift".into(),
        }),
        (None, Some(_), _) => Err(needs("picture", "windows")),
        (None, _, Some(_)) => Err(needs("shift", "windows")),
        (size, picture, shift) => Ok(size.map(|size| Windows {
            picture: picture.unwrap_or(size),
            size,
            shift: shift.unwrap_or_default(),
        })),
    }
}

/// Returns the bias or the bias table, if a flag names one. `pairs` holds the numbers of queries and keys.
fn bias(args: &ProblemArgs, tensors: &Tensors, pairs: [usize; 2]) -> Result<Option<BiasView>, Error> {
    let rank = |operand: Operand, tensor: &Tensor, allowed| match args.source(operand) {
        Some(source) if tensor.shape().len() != 2 => Err(FileError::Tensor {
            argument: args.flag(operand.argument()),
            path: source.path.clone(),
            source: TensorError::Rank { shape: tensor.shape().to_vec(), allowed },
        }),
        _ => Ok(()),
    };
    let index = tensors[Operand::BiasIndex].as_deref();
    if let Some(index) = index {
        let argument = "bias-index";
        if args.bias_table.is_none() {
            let (found, allowed) = ("given without --bias-table".into(), "with --bias-table".into());
            return Err(Error::Argument { argument, found, allowed });
        }
        rank(Operand::BiasIndex, index, "2 (queries, keys)")?;
        for (axis, (name, of)) in [("queries", "q"), ("keys", "k")].into_iter().enumerate() {
            let (found, allowed) = (index.shape()[axis], pairs[axis]);
            if found != allowed {
                return Err(ArgumentError::Mismatch { argument, axis: name, found, allowed, of }.into());
            }
        }
    }
    let Some(tensor) = tensors[Operand::Bias].as_deref() else { return Ok(None) };
    let dtype = floats("bias", tensor)?.dtype();
    if args.bias_table.is_none() {
        let view = MaskView::dense(MaskKind::Additive(dtype), tensor.shape());
        return Ok(Some(BiasView::Dense(view.map_err(|fault| fault.renamed(|_| "bias"))?)));
    }
    rank(Operand::Bias, tensor, "2 (entries, heads)")?;
    let (entries, heads) = (tensor.shape()[0], tensor.shape()[1]);
    Ok(Some(BiasView::Table(TableView { dtype, entries, heads, indexed: index.is_some() })))
}

/// Requires that each given number of heads equals the number of heads of its view. Each entry contains the flag that
/// gives the number; the number, or `None` if the flag is missing; the view; and the flag of the view's tensor.
///
/// # Errors
/// Returns an error for the first number that differs.
pub fn check_heads(
    files: &Files,
    given: [(&'static str, Option<usize>, &View, &str); 2],
) -> Result<(), Error> {
    for (argument, given, view, of) in given {
        if let Some(given) = given.filter(|given| *given != view.heads()) {
            return Err(Error::Argument {
                argument,
                found: given.to_string(),
                allowed: format!("{}, as {of} has ({})", view.heads(), files.of(of).unwrap_or_default()),
            });
        }
    }
    Ok(())
}

/// Returns the error for a required tensor whose flag is missing.
#[must_use]
pub fn missing(argument: &'static str) -> Error {
    Error::Argument { argument: flag(argument), found: "missing".into(), allowed: FILE_IS.into() }
}

/// Returns the elements of a tensor.
///
/// # Errors
/// Returns an error for a tensor without floating-point elements.
pub fn floats<'a>(argument: &'static str, tensor: &'a Tensor) -> Result<Elements<'a>, Error> {
    let other = "floating-point elements";
    tensor.elements().ok_or(Error::Problem(ArgumentError::Needs { argument: flag(argument), other }))
}

/// Reads a list, which is a tensor with one axis: lengths, or bounds of packed sequences.
///
/// # Errors
/// Returns an error if the file cannot be read or does not contain a list of integers.
pub fn list(
    argument: &'static str,
    source: &Option<TensorPath>,
    files: &mut Files,
) -> Result<Option<Tensor>, Error> {
    let Some(source) = source else { return Ok(None) };
    let tensor = Tensor::load(argument, source, Accept::Lengths)?;
    files.add(argument, &source.to_string(), tensor.dtype().name(), tensor.shape());
    if tensor.shape().len() != 1 {
        let fault = TensorError::Rank { shape: tensor.shape().to_vec(), allowed: "1" };
        return Err(FileError::Tensor { argument, path: source.path.clone(), source: fault }.into());
    }
    Ok(Some(tensor))
}

/// The lists from which [`Lengths`] is made. Each list is read as a tensor with one axis.
struct Lists {
    keys: Option<Tensor>,
    cu_seqlens_q: Option<Tensor>,
    cu_seqlens_k: Option<Tensor>,
    /// Position of the tensors within a longer sequence, if they are part of one.
    chunk: Option<Chunk>,
}

impl Lists {
    fn load(args: &ProblemArgs, files: &mut Files) -> Result<Lists, Error> {
        Ok(Lists {
            keys: list("kv-lens", &args.kv_lens, files)?,
            cu_seqlens_q: list("cu-seqlens-q", &args.cu_seqlens_q, files)?,
            cu_seqlens_k: list("cu-seqlens-k", &args.cu_seqlens_k, files)?,
            chunk: None,
        })
    }

    /// Returns the number of packed sequences; `None` if sequences are not packed.
    fn sequences(&self) -> Result<Option<usize>, ArgumentError> {
        match (&self.cu_seqlens_q, &self.cu_seqlens_k) {
            (Some(bounds), Some(_)) => Ok(Some(bounds.shape()[0].saturating_sub(1))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(ArgumentError::Needs { argument: "cu-seqlens-q", other: "cu-seqlens-k" }),
            (None, Some(_)) => Err(ArgumentError::Needs { argument: "cu-seqlens-k", other: "cu-seqlens-q" }),
        }
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        [&self.keys, &self.cu_seqlens_q, &self.cu_seqlens_k].into_iter().flatten()
    }

    fn borrow(&self) -> Lengths<'_> {
        Lengths {
            keys: self.keys.as_ref().and_then(Tensor::lengths),
            cu_seqlens_q: self.cu_seqlens_q.as_ref().and_then(Tensor::lengths),
            cu_seqlens_k: self.cu_seqlens_k.as_ref().and_then(Tensor::lengths),
            chunk: self.chunk,
        }
    }
}

/// Texts for errors about packed tensors.
pub struct Packed {
    /// The flag that names the bounds of the packed sequences, with its dashes.
    pub argument: &'static str,
    /// Allowed ranks in the layout bnc.
    pub bnc: &'static str,
    /// Allowed ranks in the layout bnhd.
    pub bnhd: &'static str,
}

/// Texts for errors about packed tensors of attention.
const PACKED: Packed = Packed {
    argument: "--cu-seqlens-q",
    bnc: "2 (tokens, heads*dim), with --cu-seqlens-q",
    bnhd: "3 (tokens, heads, dim), with --cu-seqlens-q",
};

/// Returns the layout of the views: `asked`, or the default. Packed tensors are `[total, heads, dim]`, which is bnhd
/// without a batch, or `[total, heads · dim]`.
///
/// # Errors
/// Returns an error for the layout bnc without a number of heads, for packed tensors in the layout bhnd, and for packed
/// tensors of a rank that their layout does not allow.
pub fn layout(
    asked: Option<Layout>,
    heads: Option<usize>,
    packed: Option<&Packed>,
    tensors: [(&'static str, &Tensor); 3],
) -> Result<Layout, Error> {
    let given = asked.unwrap_or(Layout::Bhnd);
    if given == Layout::Bnc && heads.is_none() {
        return Err(Error::Argument {
            argument: "heads",
            found: "missing".into(),
            allowed: "with --layout bnc, a number that divides the last axis of q".into(),
        });
    }
    let Some(packed) = packed else { return Ok(given) };
    if asked == Some(Layout::Bhnd) {
        return Err(Error::Argument {
            argument: "layout",
            found: format!("bhnd with {}", packed.argument),
            allowed: "bnhd, which packed tensors have without the flag, or bnc".into(),
        });
    }
    let (layout, rank, allowed) = match given {
        Layout::Bnc => (Layout::Bnc, 2, packed.bnc),
        _ => (Layout::Bnhd, 3, packed.bnhd),
    };
    for (argument, tensor) in tensors {
        let found = tensor.shape().len();
        if found != rank {
            return Err(Error::Problem(ArgumentError::Rank { argument, found, allowed }));
        }
    }
    Ok(layout)
}
