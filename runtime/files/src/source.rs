//! Location of a tensor, in text form.

use super::outlet::Reads;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Key in a `.safetensors` header whose value is the file's metadata; no tensor can have this name.
pub(super) const METADATA: &str = "__metadata__";

/// A format of tensor files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A single tensor.
    Npy,
    /// A zip archive of `.npy` files.
    Npz,
    /// A JSON header followed by named tensors.
    Safetensors,
}

impl Format {
    /// Returns the file extension of the format, with its dot.
    #[must_use]
    pub const fn extension(self) -> &'static str {
        match self {
            Format::Npy => ".npy",
            Format::Npz => ".npz",
            Format::Safetensors => ".safetensors",
        }
    }
}

/// Location of a tensor as text: `path.npy`, `path.npz#name` or `path.safetensors#name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPath {
    /// The file.
    pub path: PathBuf,
    /// Format according to the extension: `.npz`, `.safetensors`, or `.npy` for any other extension.
    pub format: Format,
    /// The tensor's name in an `.npz` or a `.safetensors` file; `None` for `.npy`.
    pub name: Option<String>,
}

impl TensorPath {
    /// Adds this tensor to `reads`, the inputs of a call. `argument` names the command-line argument that contains this
    /// location.
    pub fn add_to(&self, reads: &mut Reads, argument: &'static str) {
        reads.add(argument, &self.path, self.name.as_deref());
    }
}

impl FromStr for TensorPath {
    type Err = String;

    fn from_str(text: &str) -> Result<TensorPath, String> {
        const ALLOWED: &str = "allowed: path.npy, path.npz#name (inputs) or path.safetensors#name";
        if text.is_empty() {
            return Err(format!("an empty path; {ALLOWED}"));
        }
        let named = [Format::Safetensors, Format::Npz];
        // The path ends at the first extension that a `#` follows; the name after it may contain any characters.
        let split = |format: Format| {
            let at = text.find(&format!("{}#", format.extension()))? + format.extension().len();
            Some((at, format))
        };
        if let Some((at, format)) = named.into_iter().filter_map(split).min_by_key(|(at, _)| *at) {
            let name = &text[at + 1..];
            if name.is_empty() {
                return Err(format!("an empty tensor name; {ALLOWED}"));
            }
            if format == Format::Safetensors && name == METADATA {
                return Err(format!(
                    "the tensor name {METADATA}, which .safetensors files keep for text; allowed: another name"
                ));
            }
            return Ok(TensorPath { path: text[..at].into(), format, name: Some(name.into()) });
        }
        if named.iter().any(|format| text.ends_with(format.extension())) {
            return Err(format!("no tensor name; {ALLOWED}"));
        }
        Ok(TensorPath { path: text.into(), format: Format::Npy, name: None })
    }
}

impl fmt::Display for TensorPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{}#{name}", self.path.display()),
            None => write!(f, "{}", self.path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_a_path_a_format_and_a_name() {
        let place = |text: &str| {
            let source: TensorPath = text.parse().unwrap();
            assert_eq!(source.to_string(), text);
            (source.path.to_str().unwrap().to_string(), source.format, source.name)
        };
        assert_eq!(place("a.npy"), ("a.npy".into(), Format::Npy, None));
        assert_eq!(place("/dev/null"), ("/dev/null".into(), Format::Npy, None));
        assert_eq!(place("a.npz#k"), ("a.npz".into(), Format::Npz, Some("k".into())));
        let (path, format, name) = place("a.safetensors#b.npz#c");
        assert_eq!(
            (&path[..], format, name.as_deref()),
            ("a.safetensors", Format::Safetensors, Some("b.npz#c"))
        );
        assert_eq!(place("a.npz#__metadata__").2.as_deref(), Some("__metadata__"));
    }

    #[test]
    fn what_names_no_tensor_is_refused() {
        for (text, word) in [
            ("", "empty path"),
            ("a.safetensors", "no tensor name"),
            ("a.npz", "no tensor name"),
            ("a.npz#", "empty tensor name"),
            ("a.safetensors#", "empty tensor name"),
            ("a.safetensors#__metadata__", "__metadata__"),
        ] {
            let error = text.parse::<TensorPath>().unwrap_err();
            assert!(error.contains(word) && error.contains("allowed: "), "{text}: {error}");
        }
    }
}
