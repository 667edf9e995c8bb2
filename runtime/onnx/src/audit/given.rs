//! Inputs of all runs of an audit: tensors of the user, and random tensors in place of missing ones.

use super::super::check::{self, Sizes};
use super::super::model::{Axis, Declared, Model};
use super::error::AuditError;
use elsa_onnxruntime::{HostTensor, Session};
use fastrand::Rng;

/// Returns the inputs of a model for which the caller supplies tensors.
pub fn inputs<'a>(model: &'a Model<'_>) -> impl Iterator<Item = &'a Declared> {
    let graph = &model.graph;
    graph.inputs.iter().filter(|input| !graph.initializers.contains_key(&input.name))
}

/// Inputs of all runs.
pub struct Given<'a> {
    /// Names and tensors of all inputs.
    pub tensors: Vec<(&'a str, HostTensor)>,
    /// Sizes of the free axes; empty if no axis is free.
    pub sizes: String,
    /// Names of the inputs that are random.
    pub random: Vec<String>,
}

impl<'a> Given<'a> {
    /// Returns the inputs of a run.
    pub fn named(&self) -> Vec<(&str, &HostTensor)> {
        self.tensors.iter().map(|(name, tensor)| (*name, tensor)).collect()
    }

    /// Checks the given tensors and draws the missing ones, at sizes at which the model runs.
    ///
    /// # Errors
    /// Returns an error if a given tensor is not one of the model, or if the model runs at no sizes.
    pub fn of(
        model: &'a Model<'_>,
        session: &Session<'_>,
        outputs: &[&str],
        tensors: &[(String, HostTensor)],
    ) -> Result<Given<'a>, AuditError> {
        let declared: Vec<&Declared> = inputs(model).collect();
        let wrong = |found: String, allowed: String| AuditError::Input { found, allowed };
        let mut fixed = Sizes::new();
        for (name, tensor) in tensors {
            let Some(input) = declared.iter().find(|input| input.name == *name) else {
                let names: Vec<&str> = declared.iter().map(|input| input.name.as_str()).collect();
                return Err(wrong(format!("'{name}', which is no input"), names.join(", ")));
            };
            let Some(axes) = &input.shape else { continue };
            let shown = |axes: &[Axis]| {
                let axis = |axis: &Axis| match axis {
                    Axis::Size(n) => n.to_string(),
                    Axis::Any(name) if name.is_empty() => "any".to_owned(),
                    Axis::Any(name) => name.clone(),
                };
                format!("[{}]", axes.iter().map(axis).collect::<Vec<_>>().join(", "))
            };
            let mut fits = axes.len() == tensor.dims.len();
            for (at, (axis, &size)) in axes.iter().zip(&tensor.dims).enumerate() {
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                fits &= match axis {
                    Axis::Size(n) => *n == size,
                    Axis::Any(name) => {
                        *fixed.entry(check::axis_name(input, at, name)).or_insert(size) == size
                    }
                };
            }
            if !fits {
                return Err(wrong(format!("'{name}' of {:?}", tensor.dims), shown(axes)));
            }
        }
        let is_given = |input: &&Declared| tensors.iter().any(|(name, _)| *name == input.name);
        let missing: Vec<&Declared> = declared.iter().copied().filter(|input| !is_given(input)).collect();
        let unable = |e: check::CheckError| AuditError::Unable(e.to_string());
        let mut ways = check::candidates(&missing).map_err(unable)?;
        ways.iter_mut().for_each(|way| way.extend(fixed.iter().map(|(name, size)| (name.clone(), *size))));
        if missing.is_empty() {
            ways.truncate(1);
        }
        let mut last = None;
        for sizes in ways {
            let Some(drawn) = check::drawn(&missing, &sizes, &mut Rng::with_seed(44)).map_err(unable)? else {
                continue;
            };
            let known = tensors.iter().filter_map(|(name, tensor)| {
                let input = declared.iter().find(|input| input.name == *name)?;
                Some((input.name.as_str(), tensor.clone()))
            });
            let all = known.chain(missing.iter().map(|input| input.name.as_str()).zip(drawn)).collect();
            let random = missing.iter().map(|input| input.name.clone()).collect();
            let words = if sizes.is_empty() { String::new() } else { check::told(&sizes) };
            let given = Given { tensors: all, sizes: words, random };
            match session.run(&given.named(), outputs, None) {
                Ok(_) => return Ok(given),
                Err(e) => last = Some(e),
            }
        }
        let reason = last.map_or_else(|| "no sizes of its inputs are known".to_owned(), |e| e.to_string());
        Err(AuditError::Unable(format!("ONNX Runtime does not run the model: {reason}; give it your inputs")))
    }
}
