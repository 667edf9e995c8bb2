//! `--input`: tensors of files as inputs of a model.

use crate::error::{Error, say};
use elsa_core::attention::MaskElements;
use elsa_core::dtype::Elements;
use elsa_files::{Accept, Format, Stored, Tensor, TensorPath};
use elsa_onnx::ModelInput;
use elsa_onnxruntime::{Data, HostTensor};
use half::f16;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The flag, for error messages.
const FLAG: &str = "input";

/// Value of `--input`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GivenInput {
    /// A tensor for one input.
    One {
        /// Name of the input.
        name: String,
        /// The tensor.
        file: TensorPath,
    },
    /// An `.npz` file with a tensor for each input, under the input's name.
    All(PathBuf),
}

impl FromStr for GivenInput {
    type Err = String;

    fn from_str(text: &str) -> Result<GivenInput, String> {
        match text.split_once('=') {
            Some((name, file)) if !name.is_empty() => {
                let unnamed =
                    [Format::Npz, Format::Safetensors].iter().any(|of| file.ends_with(of.extension()));
                let file = if unnamed { format!("{file}#{name}") } else { file.to_owned() };
                Ok(GivenInput::One { name: name.to_owned(), file: file.parse()? })
            }
            None if text.ends_with(Format::Npz.extension()) => Ok(GivenInput::All(text.into())),
            _ => Err("allowed: NAME=FILE.npy, NAME=FILE.npz#MEMBER or FILE.npz".into()),
        }
    }
}

impl GivenInput {
    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            GivenInput::One { file, .. } => &file.path,
            GivenInput::All(path) => path,
        }
    }
}

/// Loads the given tensors for the inputs of a model, each with the name of its input. A later tensor for an input
/// replaces an earlier one.
///
/// # Errors
/// Returns an error for a name that the model does not have, and if a file cannot be read or has another type.
pub fn load(inputs: &[ModelInput], given: &[GivenInput]) -> Result<Vec<(String, HostTensor)>, Error> {
    let mut all: Vec<(String, HostTensor)> = Vec::new();
    let mut add = |input: &ModelInput, file: &TensorPath| -> Result<(), Error> {
        let tensor = tensor(input, file)?;
        all.retain(|(name, _)| *name != input.name);
        all.push((input.name.clone(), tensor));
        Ok(())
    };
    for given in given {
        match given {
            GivenInput::One { name, file } => {
                let Some(input) = inputs.iter().find(|input| input.name == *name) else {
                    let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
                    let found = format!("'{name}', which is no input of IN");
                    return Err(Error::Argument { argument: FLAG, found, allowed: names.join(", ") });
                };
                add(input, file)?;
            }
            GivenInput::All(path) => {
                for input in inputs {
                    let (path, name) = (path.clone(), Some(input.name.clone()));
                    let file = TensorPath { path, format: Format::Npz, name };
                    add(input, &file)?;
                }
            }
        }
    }
    Ok(all)
}

/// Loads a tensor, and converts it to the element type of the input.
fn tensor(input: &ModelInput, file: &TensorPath) -> Result<HostTensor, Error> {
    let refused = |found: &str, allowed: &str| {
        let found = format!("{file}: {found} for '{}'", input.name);
        Error::Argument { argument: FLAG, found, allowed: allowed.to_owned() }
    };
    let accept = match input.element {
        1 | 10 | 11 => Accept::Float,
        6 | 7 => Accept::Lengths,
        2 | 9 => Accept::Mask,
        _ => return Err(refused("a tensor", "inputs of f32, f16, f64, i32, i64, u8 or bool")),
    };
    let loaded = Tensor::load(FLAG, file, accept)?;
    if let Some(notice) = loaded.notice() {
        say(&notice);
    }
    let floats = || -> Vec<f32> {
        match loaded.elements() {
            Some(Elements::F32(x)) => x.to_vec(),
            Some(Elements::F16(x)) => x.iter().map(|x| x.to_f32()).collect(),
            Some(Elements::Bf16(x)) => x.iter().map(|x| x.to_f32()).collect(),
            None => Vec::new(),
        }
    };
    let integers = || loaded.lengths().unwrap_or_default();
    let bytes = || match loaded.mask() {
        Some(MaskElements::Bool(x)) => Some(x.to_vec()),
        _ => None,
    };
    let stored = loaded.dtype();
    let data = match input.element {
        1 => Data::F32(floats()),
        10 => Data::F16(floats().into_iter().map(f16::from_f32).collect()),
        11 => Data::F64(floats().into_iter().map(f64::from).collect()),
        7 => Data::I64(integers().to_vec()),
        6 => {
            let narrow: Result<Vec<i32>, _> = integers().iter().map(|&x| i32::try_from(x)).collect();
            Data::I32(narrow.map_err(|_| refused("integers beyond 32 bits", "32-bit integers"))?)
        }
        2 if stored != Stored::U8 => return Err(refused(stored.name(), "u8")),
        2 => Data::U8(bytes().unwrap_or_default()),
        _ => {
            let bytes = bytes().ok_or_else(|| refused(stored.name(), "bool or integers"))?;
            Data::Bool(bytes.into_iter().map(|x| u8::from(x != 0)).collect())
        }
    };
    let dims = loaded.shape().iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect();
    Ok(HostTensor { dims, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_name_their_files() {
        let parsed = |text: &str| text.parse::<GivenInput>().unwrap();
        let one = |name: &str, file: &str| GivenInput::One { name: name.into(), file: file.parse().unwrap() };
        assert_eq!(parsed("x=a.npy"), one("x", "a.npy"));
        assert_eq!(parsed("x=a.npz"), one("x", "a.npz#x"));
        assert_eq!(parsed("x=a.npz#b"), one("x", "a.npz#b"));
        assert_eq!(parsed("a.npz"), GivenInput::All("a.npz".into()));
        for wrong in ["a.npy", "=a.npy", "x"] {
            let refused = wrong.parse::<GivenInput>().unwrap_err();
            assert!(refused.starts_with("allowed: NAME=FILE.npy"), "{wrong}: {refused}");
        }
    }
}
