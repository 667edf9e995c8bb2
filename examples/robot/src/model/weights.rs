//! Tensors of a safetensors file, checked against the shapes that the network needs.

use super::error::ModelError;
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::path::Path;

/// An open safetensors file.
pub(super) struct Weights<'a> {
    tensors: SafeTensors<'a>,
    metadata: Option<HashMap<String, String>>,
}

impl<'a> Weights<'a> {
    /// Reads the header of `bytes`, the contents of the file `path`.
    pub fn new(path: &Path, bytes: &'a [u8]) -> Result<Weights<'a>, ModelError> {
        let fault = |error: safetensors::SafeTensorError| ModelError::Format {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(fault)?;
        let tensors = SafeTensors::deserialize(bytes).map_err(fault)?;
        Ok(Weights { tensors, metadata: header.metadata().clone() })
    }

    /// Returns `true` if the file contains a tensor named `name`.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.tensor(name).is_ok()
    }

    /// Returns the number of attention heads, which is stored in the metadata. The number must divide `width`.
    pub fn heads(&self, width: usize) -> Result<usize, ModelError> {
        let text = self.metadata.as_ref().and_then(|all| all.get("heads"));
        let heads = text.and_then(|text| text.parse().ok());
        heads.filter(|&heads: &usize| heads > 0 && width.is_multiple_of(heads)).ok_or_else(|| {
            ModelError::Tensor {
                name: "metadata heads".to_owned(),
                found: text.map_or_else(|| "absent".to_owned(), |text| format!("{text:?}")),
                allowed: format!("a whole number that divides {width}"),
            }
        })
    }

    /// Returns the length of the first axis of a tensor.
    pub fn rows(&self, name: &str) -> Result<usize, ModelError> {
        let shape = self.tensors.tensor(name).ok().and_then(|view| view.shape().first().copied());
        shape.filter(|&n| n > 0).ok_or_else(|| absent(name, "at least one row"))
    }

    /// Returns the elements of the f32 tensor `name`. Apart from axes of length one, the tensor must have the shape
    /// `shape`.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let allowed = format!("finite f32 {shape:?}");
        let view = self.tensors.tensor(name).map_err(|_| absent(name, &allowed))?;
        let refuse =
            |found: String| ModelError::Tensor { name: name.to_owned(), found, allowed: allowed.clone() };
        let long = |shape: &[usize]| shape.iter().copied().filter(|&n| n != 1).collect::<Vec<_>>();
        if view.dtype() != Dtype::F32 || long(view.shape()) != long(shape) {
            return Err(refuse(format!("{:?} {:?}", view.dtype(), view.shape())));
        }
        let numbers = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let numbers: Vec<f32> = numbers.collect();
        match numbers.iter().find(|x| !x.is_finite()) {
            Some(x) => Err(refuse(x.to_string())),
            None => Ok(numbers),
        }
    }
}

fn absent(name: &str, allowed: &str) -> ModelError {
    ModelError::Tensor { name: name.to_owned(), found: "absent".to_owned(), allowed: allowed.to_owned() }
}
