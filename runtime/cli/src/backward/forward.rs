//! Results of the forward pass that the backward pass needs: read from files, or computed.

use super::args::BackwardArgs;
use crate::error::Error;
use crate::job::{Job, floats};
use crate::task::load::{Rows, token_axis};
use crate::task::planned;
use elsa_core::attention::backward::Statistics;
use elsa_core::attention::{Operand, Outputs, StateOut};
use elsa_core::dtype::{Elements, ElementsMut};
use elsa_files::merge::misfit;
use elsa_files::{
    Accept, FileError, Format, MemoryError, Stored, Tensor, TensorPath, leaves_enough, reserved, zeros,
};
use elsa_runtime::{Engine, RowStates};
use std::path::Path;

/// Results of the forward pass.
pub enum Forward {
    /// Output and log-sum-exp, from files.
    Output(Box<[Tensor; 2]>),
    /// Output and row statistics, derived from states.
    States {
        /// Output tensor in the problem's view, row references, and row sums.
        numbers: [Vec<f32>; 3],
        /// Files of the states; empty if the states were computed.
        files: Vec<Tensor>,
    },
}

impl Forward {
    /// Returns the output.
    ///
    /// # Errors
    /// Returns an error if the elements of the tensor are not floating-point numbers.
    pub fn output(&self) -> Result<Elements<'_>, Error> {
        match self {
            Forward::Output(files) => floats("out", &files[0]),
            Forward::States { numbers: [output, ..], .. } => Ok(Elements::F32(output)),
        }
    }

    /// Returns the statistics of each row.
    ///
    /// # Errors
    /// Returns an error if the log-sum-exp is not f32.
    pub fn statistics(&self) -> Result<Statistics<'_>, Error> {
        match self {
            Forward::Output(files) => Ok(Statistics::LogSumExp(log_sum_exp(&files[1])?)),
            Forward::States { numbers: [_, m, s], .. } => Ok(Statistics::State { m, s }),
        }
    }

    /// Reads the results of the forward pass for `rows` from the files that the flags name; `None` if no flag names a file.
    ///
    /// # Errors
    /// Returns an error if a file does not belong to the problem.
    pub fn read(args: &BackwardArgs, job: &Job, rows: &Rows) -> Result<Option<Forward>, Error> {
        match (args.out.as_ref().zip(args.lse.as_ref()), &args.state) {
            (Some((out, lse)), _) => Forward::read_output(args, job, rows, [out, lse]).map(Some),
            (None, Some(state)) => Forward::read_state(job, rows, state).map(Some),
            (None, None) => Ok(None),
        }
    }

    fn read_output(
        args: &BackwardArgs,
        job: &Job,
        rows: &Rows,
        [out, lse]: [&TensorPath; 2],
    ) -> Result<Forward, Error> {
        let out = like_output("out", out, args, job, rows)?;
        let lse = rows.load("lse", lse, |shape| shape.len().checked_sub(1))?;
        floats("out", &out)?;
        if log_sum_exp(&lse)?.len() != job.problem.rows() {
            return Err(Error::Argument {
                argument: "lse",
                found: format!("shape {:?}", lse.shape()),
                allowed: format!("{:?}, one number for each query row", job.shapes[Operand::LogSumExp]),
            });
        }
        Ok(Forward::Output(Box::new([out, lse])))
    }

    /// Reads states from an archive and computes the output `W / S` in f32.
    fn read_state(job: &Job, rows: &Rows, path: &Path) -> Result<Forward, Error> {
        let named =
            |name: &str| TensorPath { path: path.into(), format: Format::Npz, name: Some(name.into()) };
        let [of_row, of_value] = [&job.shapes[Operand::StateReference], &job.shapes[Operand::StateWeighted]];
        let refused = |name: &str, tensor: &Tensor, allowed: &[usize]| Error::Argument {
            argument: "state",
            found: format!("{name} of {}, shape {:?}", tensor.dtype().name(), tensor.shape()),
            allowed: format!("f32, {allowed:?}"),
        };
        // All headers are checked before the first element is read.
        for (name, shape) in [("m", of_row), ("S", of_row), ("W", of_value)] {
            let tensor = Tensor::header("state", &named(name), Accept::Float)?;
            rows.covers("state", tensor.shape(), Some(2))?;
            let whole = rows.shape(shape, 2);
            if !matches!(tensor.dtype(), Stored::F32 | Stored::F64) || tensor.shape() != whole {
                return Err(refused(name, &tensor, &whole));
            }
        }
        let mut tensors = Vec::new();
        let mut read = |name: &str, back: usize, allowed: &[usize]| -> Result<Vec<f32>, Error> {
            let tensor = rows.load("state", &named(name), |shape| shape.len().checked_sub(back))?;
            let data = match tensor.elements() {
                Some(Elements::F32(x)) if tensor.shape() == allowed => copied("state", x)?,
                _ => return Err(refused(name, &tensor, allowed)),
            };
            tensors.push(tensor);
            Ok(data)
        };
        let (m, s) = (read("m", 1, of_row)?, read("S", 1, of_row)?);
        let states = RowStates { m, s, w: read("W", 2, of_value)? };
        states.check().map_err(|e| match misfit(&e, [job.problem.heads(), of_row[2]]) {
            Some((found, allowed)) => Error::Argument { argument: "state", found, allowed },
            None => e.into(),
        })?;
        Forward::of(job, states, tensors)
    }

    /// Computes the results by running the forward pass.
    ///
    /// # Errors
    /// Returns an error if the plan cannot be made, or if the run fails.
    pub fn compute(args: &BackwardArgs, job: &Job, engine: &Engine) -> Result<Forward, Error> {
        let problem = &job.problem;
        let plan = engine.plan(problem, &args.engine.plan_options())?;
        let mut states =
            RowStates::empty(problem.rows(), problem.value_dim()).map_err(planned("state-out"))?;
        let mut workspace = plan.workspace()?;
        leaves_enough("budget", plan.workspace_bytes())?;
        let state = StateOut { m: &mut states.m, s: &mut states.s, w: &mut states.w };
        plan.run(job.inputs()?, Outputs::states(state), &mut workspace)?;
        Forward::of(job, states, Vec::new())
    }

    /// Derives the results from states. The output is `W / S` in f32, for any input type.
    fn of(job: &Job, states: RowStates, files: Vec<Tensor>) -> Result<Forward, Error> {
        let view = job.problem.spec().output;
        let mut output = zeros::<f32>("out", view.extent())?;
        states.output(&view, &mut ElementsMut::F32(&mut output));
        Ok(Forward::States { numbers: [output, states.m, states.s], files })
    }

    /// Returns the files that were read.
    fn files(&self) -> &[Tensor] {
        match self {
            Forward::Output(files) => &files[..],
            Forward::States { files, .. } => files,
        }
    }

    /// Returns the number of bytes read from the files.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let bytes = |tensor: &Tensor| tensor.shape().iter().product::<usize>() * tensor.dtype().size();
        self.files().iter().map(bytes).sum()
    }

    /// Requires that no file has changed since it was read.
    ///
    /// # Errors
    /// Returns an error for the first file that has changed.
    pub fn unchanged(&self) -> Result<(), FileError> {
        self.files().iter().try_for_each(Tensor::unchanged)
    }
}

/// Returns the elements of a tensor that was loaded as the log-sum-exp.
fn log_sum_exp(lse: &Tensor) -> Result<&[f32], Error> {
    match lse.elements() {
        Some(Elements::F32(rows)) => Ok(rows),
        _ => {
            let found = format!("type {}", lse.dtype().name());
            Err(Error::Argument { argument: "lse", found, allowed: "f32".into() })
        }
    }
}

/// Copies `from` to a new vector, or returns an error that names `argument` if the system refuses memory.
fn copied(argument: &'static str, from: &[f32]) -> Result<Vec<f32>, Error> {
    let mut data = reserved(from.len()).map_err(|bytes| MemoryError { argument, bytes })?;
    data.extend_from_slice(from);
    Ok(data)
}

/// Loads a tensor of floating-point elements in the shape of the output.
///
/// # Errors
/// Returns an error if the file cannot be read or has another shape.
pub fn like_output(
    argument: &'static str,
    source: &TensorPath,
    args: &BackwardArgs,
    job: &Job,
    rows: &Rows,
) -> Result<Tensor, Error> {
    let tensor = rows.load(argument, source, |shape| token_axis(args.problem.layout, shape))?;
    let shape = &job.shapes[Operand::Output];
    if tensor.shape() != shape {
        return Err(Error::Argument {
            argument,
            found: format!("shape {:?}", tensor.shape()),
            allowed: format!("{shape:?}, the shape of the output"),
        });
    }
    Ok(tensor)
}
