//! Code that the commands `recurrence`, `selective` and `conv` share: the order of axes, tensors from files, outputs
//! and the report.
// Doc comments of flags are their help texts, in which brackets enclose shapes and are not links.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::args::values::one_of;
use crate::args::{FILE, ForceArgs, HostArgs};
use crate::error::{Error, dashed, one_line, say};
use crate::report::{self, count, object};
use clap::Args;
use elsa_core::dtype::{DType, Elements};
use elsa_core::series::bound::Judged;
use elsa_core::series::{self, Series};
use elsa_files::{
    Accept, Buffer, Content, FileError, Output, Tensor, TensorError, TensorPath, Writer, zeros,
};
use elsa_runtime::operators::{Operator, Plan};
use elsa_runtime::{Backend, Engine, Report};

/// The order of the axes of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `[batch, tokens, channels]`.
    TokensFirst,
    /// `[batch, channels, tokens]`.
    ChannelsFirst,
}

/// Values of `--layout`. The first is the default.
pub const ORDERS: [(&str, Order); 2] = [("btc", Order::TokensFirst), ("bct", Order::ChannelsFirst)];

/// Flags of every command.
#[derive(Args, Debug)]
pub struct CallArgs {
    /// Order of the axes of series: [batch, tokens, channels], or [batch, channels, tokens] as in Mamba and ONNX
    #[arg(long, default_value = ORDERS[0].0, value_parser = one_of(ORDERS))]
    pub layout: Order,
    /// Run from the last token to the first; the past state comes before the last token
    #[arg(long)]
    pub reverse: bool,
    /// States before the first token, f32 [default: zeros]
    #[arg(long, value_name = FILE)]
    pub past_state: Option<TensorPath>,
    /// File for the states after the last token
    #[arg(long, value_name = FILE)]
    pub present_state: Option<TensorPath>,
    /// File for the output, of the type of the input
    #[arg(long, value_name = FILE)]
    pub out: TensorPath,
    /// Compare with the operator in f64; exit status 4 if an element exceeds the error bound
    #[arg(long)]
    pub verify: bool,
    /// Permission for outputs to replace inputs.
    #[command(flatten)]
    pub force: ForceArgs,
    /// Print a machine-readable report
    #[arg(long)]
    pub json: bool,
    /// Engine.
    #[command(flatten)]
    pub host: HostArgs,
}

/// A tensor read from the file of a flag.
pub struct FlagTensor {
    argument: &'static str,
    source: TensorPath,
    tensor: Tensor,
}

impl FlagTensor {
    /// Reads the tensor of a flag.
    ///
    /// # Errors
    /// Returns an error for a file that is not a tensor of floating-point numbers.
    pub fn load(argument: &'static str, source: &TensorPath) -> Result<FlagTensor, Error> {
        let tensor = Tensor::load(argument, source, Accept::Float)?;
        if let Some(notice) = tensor.notice() {
            log::warn!("{}", dashed(&notice));
        }
        Ok(FlagTensor { argument, source: source.clone(), tensor })
    }

    /// Reads the tensor of an optional flag; `None` if the flag is not given.
    ///
    /// # Errors
    /// Returns the errors of [`FlagTensor::load`].
    pub fn load_if(argument: &'static str, source: Option<&TensorPath>) -> Result<Option<FlagTensor>, Error> {
        source.map(|source| FlagTensor::load(argument, source)).transpose()
    }

    /// Returns the sizes of the axes.
    pub fn shape(&self) -> &[usize] {
        self.tensor.shape()
    }

    /// Returns the elements.
    ///
    /// # Errors
    /// Returns an error if the elements are not floating-point numbers, which [`FlagTensor::load`] rules out.
    pub fn elements(&self) -> Result<Elements<'_>, Error> {
        self.tensor
            .elements()
            .ok_or_else(|| self.wrong("elements of another type", "f32, f16 or bf16".into()))
    }

    /// Returns the elements of a tensor that must be f32 and have the axes `shape`.
    ///
    /// # Errors
    /// Returns an error for another type or another shape.
    pub fn numbers(&self, shape: &[usize]) -> Result<&[f32], Error> {
        match self.elements()? {
            Elements::F32(x) if self.shape() == shape => Ok(x),
            Elements::F32(_) => Err(self.wrong(format!("shape {:?}", self.shape()), format!("{shape:?}"))),
            other => Err(self.wrong(format!("type {}", other.dtype()), "f32".into())),
        }
    }

    /// Converts a tensor of rank 3 to a series.
    ///
    /// # Errors
    /// Returns an error for another rank, or for a size that no memory can hold.
    pub fn series(&self, order: Order) -> Result<Series, Error> {
        match *self.shape() {
            [b, t, c] if order == Order::TokensFirst => Ok(Series::tokens_first(self.argument, [b, t, c])?),
            [b, c, t] => Ok(Series::channels_first(self.argument, [b, c, t])?),
            _ => Err(self.rank("3")),
        }
    }

    /// Builds the error for a tensor whose rank its flag does not allow.
    pub fn rank(&self, allowed: &'static str) -> Error {
        let source = TensorError::Rank { shape: self.shape().to_vec(), allowed };
        FileError::Tensor { argument: self.argument, path: self.tensor.path().to_path_buf(), source }.into()
    }

    fn wrong(&self, found: impl Into<String>, allowed: String) -> Error {
        Error::Argument { argument: self.argument, found: found.into(), allowed }
    }

    /// Checks that the file has not changed since it was read.
    ///
    /// # Errors
    /// Returns an error for a file that has changed.
    pub fn unchanged(&self) -> Result<(), FileError> {
        self.tensor.unchanged()
    }
}

/// Returns the elements of an optional tensor, like [`FlagTensor::numbers`].
///
/// # Errors
/// Returns the errors of [`FlagTensor::numbers`].
pub fn numbers<'a>(given: Option<&'a FlagTensor>, shape: &[usize]) -> Result<Option<&'a [f32]>, Error> {
    given.map(|given| given.numbers(shape)).transpose()
}

/// Memory for the outputs of a call, and the files for them.
pub struct Outputs {
    writer: Writer,
    /// Elements of the output.
    pub out: Buffer,
    out_shape: Vec<usize>,
    /// The states after the last token, if requested.
    pub present: Option<Vec<f32>>,
    state_shape: Vec<usize>,
}

impl Outputs {
    /// Prepares the files of a call that reads `inputs`, and allocates the outputs. The output has the shape and type
    /// of `like`.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written, or if the system refuses memory.
    pub fn new(
        args: &CallArgs,
        inputs: &[&FlagTensor],
        like: &FlagTensor,
        state: &[usize],
    ) -> Result<Outputs, Error> {
        let mut reads = args.force.reads();
        inputs.iter().for_each(|given| given.source.add_to(&mut reads, given.argument));
        let mut writer = Writer::new(reads);
        writer.add("out", &args.out)?;
        if let Some(source) = &args.present_state {
            writer.add("present-state", source)?;
        }
        let count = like.shape().iter().product();
        let values = state.iter().product();
        let present = args.present_state.as_ref().map(|_| zeros("present-state", values)).transpose()?;
        Ok(Outputs {
            writer,
            out: Buffer::zeros("out", like.elements()?.dtype(), count)?,
            out_shape: like.shape().to_vec(),
            present,
            state_shape: state.to_vec(),
        })
    }

    /// Borrows the memory of the outputs for a call.
    pub fn tensors(&mut self) -> series::Outputs<'_> {
        series::Outputs { out: Some(self.out.elements_mut()), present_state: self.present.as_deref_mut() }
    }

    /// Writes the files and prints the report of a run of `plan`. `what` is the name of the command. `form` names the
    /// method of the run or its number of parts. `series` contains the sizes. `worst` is the result of the
    /// verification, if one was requested. `ms` is the time of the computation in milliseconds.
    ///
    /// # Errors
    /// Returns an error if inputs have changed, if files cannot be written, or if the verification failed.
    pub fn finish<O: Operator>(
        self,
        args: &CallArgs,
        engine: &Engine,
        inputs: &[&FlagTensor],
        (plan, report): (&Plan<O>, &Report),
        (what, form, series): (&'static str, &str, &Series),
        (worst, ms): (Option<f64>, f64),
    ) -> Result<(), Error> {
        if let Some(worst) = worst
            && (worst.is_nan() || worst > 1.0)
        {
            return Err(Error::Verification(format!(
                "out: {worst:.3} of the error bound; allowed: at most 1; nothing was written"
            )));
        }
        inputs.iter().try_for_each(|given| given.unchanged())?;
        let mut contents = vec![Output::Tensor(Content { shape: self.out_shape, data: self.out })];
        if let Some(present) = self.present {
            contents.push(Output::Tensor(Content { shape: self.state_shape, data: Buffer::F32(present) }));
        }
        self.writer.commit(&contents)?;
        let (kernel, workspace_bytes) = (plan.kernel_of(report.backend), plan.workspace_bytes());
        let fallback = report.fallback.as_ref().map(ToString::to_string);
        if args.json {
            let told = object! {
                what: what,
                backend: report.backend.to_string(),
                kernel: kernel,
                threads: engine.threads(),
                shape: [series.batch(), series.tokens(), series.channels()],
                form: form,
                workspace_bytes: workspace_bytes,
                // The reason why the CPU computed instead of a GPU.
                fallback: fallback,
                // Largest error relative to its bound; only with --verify.
                worst: worst,
                ms: ms,
            };
            report::json(&mut crate::foreign::stdout(), &told)?;
        } else {
            let each = if report.backend == Backend::Cuda { "block" } else { "thread" };
            let files: Vec<String> = [Some(&args.out), args.present_state.as_ref()]
                .into_iter()
                .flatten()
                .map(ToString::to_string)
                .collect();
            say(&format!(
                "wrote {} in {ms:.3} ms ({}, {kernel}, {form}, {}, {workspace_bytes} bytes of workspace){}{}",
                one_line(&files.join(" and ")),
                report.backend,
                count(report.workers as u64, each),
                worst.map(|worst| format!("; PASS: {worst:.3} of the error bound")).unwrap_or_default(),
                fallback.map(|why| format!("; {why}")).unwrap_or_default()
            ));
        }
        Ok(())
    }
}

/// Formats a number of parts, such as `2 parts`.
pub fn parts_of(parts: usize) -> String {
    format!("{parts} {}", if parts == 1 { "part" } else { "parts" })
}

/// Compares the output of a call with the exact values. `each` receives a batch and a channel, and computes the exact
/// value for every token. For each token, it calls its last argument with the token and the exact value. Returns the
/// largest ratio of an error to its bound.
pub fn worst(
    outputs: &Outputs,
    series: &Series,
    mut each: impl FnMut([usize; 2], DType, &mut dyn FnMut(usize, Judged)),
) -> f64 {
    let (mut worst, out, dtype) = (0.0, outputs.out.elements(), outputs.out.elements().dtype());
    for [batch, channel] in
        (0..series.batch()).flat_map(|batch| (0..series.channels()).map(move |channel| [batch, channel]))
    {
        each([batch, channel], dtype, &mut |token, exact| {
            worst = farther(worst, exact, out.get(series.at(batch, token, channel)), dtype);
        });
    }
    worst
}

/// Computes the ratio of an error to its bound, and returns the larger of this ratio and `worst`. The error is the
/// distance of `found` from `exact`. The result is infinite if the distance is NaN.
pub fn farther(worst: f64, exact: Judged, found: f32, dtype: DType) -> f64 {
    let distance = exact.distance(found, dtype);
    if distance.is_nan() { f64::INFINITY } else { worst.max(distance) }
}
