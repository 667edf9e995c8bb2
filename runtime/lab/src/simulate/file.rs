//! Files of measured costs. A file stores the measurements; the fit is computed when the file is read.

use super::costs::{Costs, Origin, Pass};
use super::measure::Samples;
use elsa_cli::error::Error;
use elsa_files::{FileError, InputFile};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Value of the field `format`, the first field of a file.
const FORMAT: &str = "elsa costs 1";
/// Maximum size of a file in bytes.
const LARGEST: u64 = 1 << 20;

/// Content of a file. Each entry of `seconds` is a pair of a number of tokens and the measured seconds. Each entry of
/// `bytes` is a pair of a number of tokens and bytes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    title: String,
    source: String,
    heads: usize,
    dim: usize,
    element_bytes: usize,
    seconds: Vec<[f64; 2]>,
    bytes: Vec<[f64; 2]>,
    /// Samples of the backward pass: seconds, then bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backward: Option<Samples>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<f64>,
}

/// Returns the text of a file with the measured seconds and bytes, and those of the backward pass if it was measured.
///
/// # Errors
/// Returns an error if serialization fails.
pub fn text(costs: &Costs, [seconds, bytes]: &Samples, backward: Option<&Samples>) -> Result<String, Error> {
    let file = File {
        format: FORMAT.into(),
        title: costs.title.clone(),
        source: costs.source.clone(),
        heads: costs.heads,
        dim: costs.dim,
        element_bytes: costs.element,
        seconds: seconds.clone(),
        bytes: bytes.clone(),
        backward: backward.cloned(),
        memory_bytes: costs.limit,
    };
    serde_json::to_string_pretty(&file).map(|text| text + "\n").map_err(|e| std::io::Error::other(e).into())
}

/// Reads the costs in the file at `path`.
///
/// # Errors
/// Returns an error if the file cannot be read or parsed, if a measurement is not positive, or if there are too few sizes.
pub fn read(path: &Path) -> Result<Costs, Error> {
    let failed = |source| FileError::Read { argument: "fit", path: path.to_path_buf(), source };
    let refuse = |found: String| Error::Argument {
        argument: "fit",
        found: format!("{}: {found}", path.display()),
        allowed: "what elsa-lab simulate --measure --save-fit has written".into(),
    };
    let text = InputFile::contents(path, LARGEST).map_err(failed)?;
    let file: File = serde_json::from_slice(&text).map_err(|e| refuse(e.to_string()))?;
    if file.format != FORMAT {
        return Err(refuse(format!("format '{}'", file.format)));
    }
    let natural = |n: usize| (1..=1 << 20).contains(&n);
    if !(natural(file.heads) && natural(file.dim) && [2, 4].contains(&file.element_bytes)) {
        return Err(refuse("heads, dim or element_bytes out of range".into()));
    }
    if file.memory_bytes.is_some_and(|bytes| !(bytes > 0.0 && bytes.is_finite())) {
        return Err(refuse("memory_bytes that is not positive".into()));
    }
    let fitted = |seconds: &[[f64; 2]], bytes: &[[f64; 2]]| {
        Pass::fitted(seconds, bytes).map_err(|e| refuse(e.to_string()))
    };
    let forward = fitted(&file.seconds, &file.bytes)?;
    let backward = file.backward.as_ref().map(|[seconds, bytes]| fitted(seconds, bytes)).transpose()?;
    Ok(Costs {
        name: path.display().to_string(),
        title: file.title,
        origin: Origin::Measured,
        source: file.source,
        heads: file.heads,
        dim: file.dim,
        element: file.element_bytes,
        limit: file.memory_bytes,
        forward,
        backward,
    })
}

#[cfg(test)]
mod tests {
    use super::super::sets;
    use super::*;

    #[test]
    fn costs_come_back_and_what_is_none_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("costs.json");
        let costs = sets::named("h200").unwrap();
        let points = |of: &dyn Fn(f64) -> f64| [1e3, 2e3, 4e3].map(|x| [x, of(x)]).to_vec();
        let (time, memory) = (costs.forward.time, costs.forward.memory);
        let samples = [points(&|x| time.formula(x)), points(&|x| memory.at(x))];
        let twice = samples.clone().map(|all| all.into_iter().map(|[x, y]| [x, 2.0 * y]).collect());
        std::fs::write(&path, text(&costs, &samples, Some(&twice)).unwrap()).unwrap();
        let backward = read(&path).unwrap().backward.unwrap();
        assert!((backward.time.square / (2.0 * time.square) - 1.0).abs() < 1e-9);
        let good = text(&costs, &samples, None).unwrap();
        std::fs::write(&path, &good).unwrap();
        let again = read(&path).unwrap();
        assert!((again.forward.time.square / time.square - 1.0).abs() < 1e-9);
        assert_eq!((again.heads, again.dim, again.limit), (8, 64, Some(141e9)));
        assert!(again.backward.is_none());
        for (from, to, words) in [
            ("elsa costs 1", "elsa costs 2", "format 'elsa costs 2'"),
            ("\"heads\": 8", "\"heads\": 0", "out of range"),
            ("\"element_bytes\": 4", "\"element_bytes\": 3", "out of range"),
            ("\"dim\"", "\"dims\"", "unknown field"),
            ("1000.0,", "-1000.0,", "positive finite numbers"),
            ("1000.0,", "2000.0,", "2 different sizes"),
            ("}", "", "EOF"),
        ] {
            std::fs::write(&path, good.replace(from, to)).unwrap();
            let e = read(&path).unwrap_err();
            assert!(e.status() == 2 && e.to_string().contains(words), "{words}: {e}");
        }
        assert_eq!(read(&folder.path().join("none")).unwrap_err().status(), 2);
        assert_eq!(read(folder.path()).unwrap_err().status(), 2);
    }
}
