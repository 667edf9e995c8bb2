//! The name of a tensor's place on the command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where a tensor is read or written: `path.npy`, or `path.safetensors#name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// The tensor's name in a `.safetensors` file; none for `.npy`.
    pub name: Option<String>,
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Source, String> {
        const ALLOWED: &str = "allowed: path.npy or path.safetensors#name";
        const EXTENSION: &str = ".safetensors";
        if text.is_empty() {
            return Err(format!("an empty path; {ALLOWED}"));
        }
        if let Some((path, name)) = text.split_once(".safetensors#") {
            if name.is_empty() {
                return Err(format!("an empty tensor name; {ALLOWED}"));
            }
            return Ok(Source { path: format!("{path}{EXTENSION}").into(), name: Some(name.into()) });
        }
        if text.ends_with(EXTENSION) {
            return Err(format!("no tensor name; {ALLOWED}"));
        }
        Ok(Source { path: text.into(), name: None })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{}#{name}", self.path.display()),
            None => write!(f, "{}", self.path.display()),
        }
    }
}
