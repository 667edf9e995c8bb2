//! Files of models. The weights of a model may be in other files in the same folder.

use super::array::{self, Array, Stored};
use super::audit::{self, Audit, AuditError, AuditOptions, ModelInput, OpenSession};
use super::check::{self, CheckError};
use super::lower::{self, LoweredModel, Target};
use super::model::{Declared, Model, ModelError};
use super::ops::Limits;
use super::{Attention, Examined, ModelBytes, examine, write};
use elsa_onnxruntime::Runtime;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A model's file in memory.
#[derive(Debug)]
pub struct ModelFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl ModelFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// Returns errors of the file system, and an error if the path does not lead to a regular file.
    pub fn open(path: &Path) -> io::Result<ModelFile> {
        if !fs::metadata(path)?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(ModelFile { path: path.to_path_buf(), bytes: fs::read(path)? })
    }

    /// Returns the folder of the file, which also contains the files with weights.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    /// Returns `true` if the file at `location` is in the folder of the model after links have been followed, or in the
    /// folder of the file to which a link to the model leads.
    fn is_inside(&self, location: &str) -> bool {
        let Ok(target) = fs::canonicalize(self.folder().join(location)) else { return false };
        let linked = fs::canonicalize(&self.path).ok();
        let folders = [
            fs::canonicalize(self.folder()).ok(),
            linked.as_deref().and_then(Path::parent).map(Path::to_path_buf),
        ];
        folders.iter().flatten().any(|folder| target.starts_with(folder))
    }

    /// Parses the model, and checks that the files with its weights exist.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a model, if a file with weights is missing from the folder, or if it is a
    /// link that leaves the folder.
    pub fn parse(&self) -> Result<Parsed<'_>, ModelError> {
        let model = Model::read(&self.bytes)?;
        let locations = model.locations()?;
        for location in &locations {
            if !self.folder().join(location).is_file() {
                return Err(ModelError::Rule {
                    found: format!("external data at '{location}', which is no file there"),
                    allowed: "a model with its data beside it",
                });
            }
            if !self.is_inside(location) {
                return Err(ModelError::Rule {
                    found: format!(
                        "external data at '{location}', a link that leaves the folder of the model"
                    ),
                    allowed: "data in the folder of the model",
                });
            }
        }
        Ok(Parsed { file: self, model, locations })
    }

    /// Reads the elements of a constant that is stored in another file.
    fn external(&self, stored: &Stored, most: usize) -> Option<Array> {
        let get = |key: &str| {
            stored.external()?.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
        };
        let length = array::count(&stored.shape, most)?.checked_mul(stored.kind.size()?)?;
        if get("length").is_some_and(|given| given.parse() != Ok(length)) {
            return None;
        }
        let offset = get("offset").map_or(Ok(0), str::parse::<u64>).ok()?;
        let mut file = File::open(self.folder().join(get("location")?)).ok()?;
        file.seek(SeekFrom::Start(offset)).ok()?;
        let mut bytes = vec![0; length];
        file.read_exact(&mut bytes).ok()?;
        stored.decode(&bytes, most)
    }
}

/// A parsed model.
#[derive(Debug)]
pub struct Parsed<'a> {
    file: &'a ModelFile,
    model: Model<'a>,
    locations: Vec<String>,
}

impl Parsed<'_> {
    /// Returns the paths of the files with the model's weights, relative to the model's folder.
    #[must_use]
    pub fn weights(&self) -> &[String] {
        &self.locations
    }

    /// Returns the inputs for which a caller supplies tensors.
    #[must_use]
    pub fn inputs(&self) -> Vec<ModelInput> {
        let input = |input: &Declared| ModelInput { name: input.name.clone(), element: input.kind.0 };
        audit::inputs(&self.model).map(input).collect()
    }

    /// Finds every attention of the model and tries to prove a replacement for it. An attention without a proof is
    /// kept.
    #[must_use]
    pub fn rewrite(&self) -> Rewrite<'_> {
        let external = |stored: &Stored, most| self.file.external(stored, most);
        Rewrite { of: self, found: examine(&self.model, &external, Limits::WHOLE) }
    }
}

/// The proved replacements of a model.
pub struct Rewrite<'a> {
    of: &'a Parsed<'a>,
    found: Examined,
}

impl Rewrite<'_> {
    /// Returns every attention of the model, whether it is replaced or not.
    #[must_use]
    pub fn attentions(&self) -> &[Attention] {
        &self.found.attentions
    }

    /// Returns the sizes of the dynamic axes at which [`Attention::share`] is computed, such as `batch = 1, tokens =
    /// 128`; an empty text if no axis is dynamic.
    #[must_use]
    pub fn sizes(&self) -> &str {
        &self.found.sizes
    }

    /// Returns the contents of the rewritten model's file.
    ///
    /// # Errors
    /// Returns no error for a model that was parsed.
    pub fn bytes(&self) -> Result<ModelBytes<'_>, ModelError> {
        Ok(write::write(&self.of.model, &self.found.changes)?)
    }

    /// Returns the rewritten model in the operators of an older runtime.
    ///
    /// # Errors
    /// Returns no error for a model that was parsed.
    pub fn lowered(&self, target: Target) -> Result<LoweredModel, ModelError> {
        let external = |stored: &Stored, most| self.of.file.external(stored, most);
        lower::lowered(self.bytes()?.joined(), &external, target)
    }

    /// Runs the original model and `rewritten` in ONNX Runtime with the library `operator`, at up to three assignments
    /// of sizes to the free axes, for at most a minute in total. Returns a description of the comparison. Both models
    /// together may use `memory` bytes.
    ///
    /// # Errors
    /// Returns an error if the outputs differ, or if the models cannot be compared.
    pub fn check(
        &self,
        rewritten: elsa_onnxruntime::Model<'_>,
        runtime: &Runtime,
        operator: &Path,
        memory: u64,
    ) -> Result<String, CheckError> {
        let Parsed { file, model, locations } = self.of;
        let weights = locations.iter().map(|location| file.folder().join(location)).collect();
        check::check(
            &check::Pair { model, original: &file.path, weights, rewritten, memory },
            runtime,
            operator,
        )
    }

    /// Runs the original model in ONNX Runtime, and finds the nodes that half precision breaks. `open` opens sessions of
    /// models with the same weights. The runs in f16 end after the time in `options`.
    ///
    /// # Errors
    /// Returns an error if a tensor in `options` does not fit the model, or if ONNX Runtime cannot run the model.
    pub fn audit(&self, open: OpenSession<'_, '_>, options: &AuditOptions) -> Result<Audit, AuditError> {
        let Parsed { file, model, .. } = self.of;
        let external = |stored: &Stored, most| file.external(stored, most);
        audit::audit(model, &external, &self.found.attentions, open, options)
    }
}
