//! Outputs: no file appears or changes before all outputs of a call are complete.
//!
//! [`Writer::add`] is called for every output before anything is computed. It checks that the target can be written and
//! creates a temporary file in the same folder, with the mode and owner of the file that will be replaced.
//! [`Writer::commit`] writes all temporary files and then renames them, so a reader sees either the old file or the
//! complete new one. An existing target that is not a regular file, such as `/dev/null`, is written directly.
//!
//! An output to an existing `.safetensors` file replaces the tensor of the same name, and keeps the other tensors and
//! the file's metadata. The file may therefore also contain inputs. An output may replace an input only if `force` is
//! set ([`Reads`]). This is safe because every input is in memory, or its file is open, when the outputs are written.

use super::error::FileError;
use super::file::InputFile;
use super::memory::Buffer;
use super::npy;
use super::outlet::{Place, Reads, Sink};
use super::safetensors::{self, Directory};
use super::source::{Format, TensorPath};
use super::stored::{Fault, Stored};
use super::temporary::{self, Temporary};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A tensor to write.
#[derive(Clone, Debug)]
pub struct Content {
    /// Sizes of the tensor's axes.
    pub shape: Vec<usize>,
    /// Elements in C order.
    pub data: Buffer,
}

/// The content of one output.
#[derive(Clone, Debug)]
pub enum Output {
    /// A tensor for an `.npy` file or for a `.safetensors` file.
    Tensor(Content),
    /// Named arrays for an `.npz` file.
    Archive(Vec<(&'static str, Array)>),
}

/// An array of an archive.
#[derive(Clone, Debug)]
pub enum Array {
    /// Floating-point numbers.
    Float(Content),
    /// Integers.
    Integers {
        /// Sizes of the axes.
        shape: Vec<usize>,
        /// Elements in C order.
        data: Vec<i64>,
    },
}

impl From<Content> for Array {
    fn from(content: Content) -> Array {
        Array::Float(content)
    }
}

/// An output file that passed all checks and has yet to be written.
#[derive(Debug)]
pub struct Prepared {
    /// The argument that names the file.
    pub argument: &'static str,
    /// Path of the target, after links are resolved.
    pub path: PathBuf,
    /// Temporary file next to the target; `None` if the target is written directly.
    pub temporary: Option<Temporary>,
    /// The open target if it is not a regular file, and `None` for a regular one.
    pub direct: Option<File>,
    /// Format of the file.
    pub format: Format,
    /// The existing `.safetensors` file whose other tensors are kept.
    pub kept: Option<ExistingFile>,
    /// For each output in the file: the name of its tensor, and its index among the call's outputs. The outputs are in
    /// the order in which they were added.
    pub members: Vec<(String, usize)>,
}

impl Prepared {
    /// Returns two texts. The first is a line with the argument, the path and the names of the new tensors. The second
    /// contains a fingerprint of the existing file whose tensors are kept. It is empty if no tensors are kept.
    #[must_use]
    pub fn describe(&self) -> (String, String) {
        let mut text = format!("{} {}", self.argument, self.path.display());
        if self.format == Format::Safetensors {
            let names: Vec<&str> = self.members.iter().map(|(name, _)| name.as_str()).collect();
            text += &format!(" {names:?}");
        }
        let over = self.kept.as_ref().map(|kept| format!(" over {}", kept.file.stamp()));
        (text, over.unwrap_or_default())
    }
}

/// An existing file whose tensors are kept.
#[derive(Debug)]
pub struct ExistingFile {
    /// The open file.
    pub file: InputFile,
    /// Parsed header of the file.
    pub directory: Directory,
}

struct Target {
    argument: &'static str,
    path: PathBuf,
    sink: Sink,
    format: Format,
    /// The existing `.safetensors` file whose other tensors are kept.
    kept: Option<ExistingFile>,
    /// For each output in the file: the name of its tensor, and its index among the call's outputs.
    members: Vec<(String, usize)>,
}

/// The outputs of a call.
pub struct Writer {
    targets: Vec<Target>,
    count: usize,
    reads: Reads,
}

impl Writer {
    /// Creates a writer without outputs, for a call that reads `reads`.
    #[must_use]
    pub fn new(reads: Reads) -> Writer {
        Writer { targets: Vec::new(), count: 0, reads }
    }

    /// Prepares a file for the next output, which is a tensor.
    ///
    /// # Errors
    /// Returns an error for a path that is not writable or has an extension other than `.npy` or `.safetensors#name`.
    /// Returns an error for a name or a file that another output already uses, for an input of the call, and for a
    /// `.safetensors` file whose tensors cannot be kept.
    pub fn add(&mut self, argument: &'static str, source: &TensorPath) -> Result<(), FileError> {
        if source.format == Format::Npz {
            return Err(extension(argument, source.to_string(), Format::Npy));
        }
        self.target(argument, &source.path, source.format, source.name.clone().unwrap_or_default())
    }

    /// Prepares a file for the next output, which is an archive.
    ///
    /// # Errors
    /// Returns the errors of [`Writer::add`]; the allowed extension is `.npz`.
    pub fn add_archive(&mut self, argument: &'static str, path: &Path) -> Result<(), FileError> {
        self.target(argument, path, Format::Npz, String::new())
    }

    fn target(
        &mut self,
        argument: &'static str,
        path: &Path,
        format: Format,
        name: String,
    ) -> Result<(), FileError> {
        let index = self.count;
        let joins = (format == Format::Safetensors).then_some(name.as_str());
        let place = Place::find(argument, path, joins, &self.reads)?;
        if place.is_regular() {
            if !path.to_string_lossy().ends_with(format.extension()) {
                return Err(extension(argument, path.display().to_string(), format));
            }
            if let Some(same) = self.targets.iter_mut().find(|t| t.path == place.path) {
                if format != Format::Safetensors || same.members.iter().any(|(other, _)| *other == name) {
                    return Err(FileError::Output {
                        argument,
                        path: path.to_path_buf(),
                        other: same.argument,
                    });
                }
                same.members.push((name, index));
                self.count += 1;
                return Ok(());
            }
        }
        let sink = place.open()?;
        // An empty file holds nothing to keep.
        let holds = place.existing.as_ref().is_some_and(|there| there.is_file() && there.len() > 0);
        let kept = match format == Format::Safetensors && holds {
            true => Some(keep(&place.path).map_err(|e| {
                place.refuse(format!("the tensors that it holds cannot be kept ({e}); remove it first"))
            })?),
            false => None,
        };
        let members = vec![(name, index)];
        self.targets.push(Target { argument, path: place.path, sink, format, kept, members });
        self.count += 1;
        Ok(())
    }

    /// Returns the prepared files in the order in which they were added. The caller writes these files and replaces
    /// their targets.
    #[must_use]
    pub fn prepared(self) -> Vec<Prepared> {
        let each = self.targets.into_iter().map(|target| {
            let Target { argument, path, sink, format, kept, members } = target;
            let (temporary, direct) = match sink {
                Sink::Replace(temporary) => (Some(temporary), None),
                Sink::Direct(file) => (None, Some(file)),
            };
            Prepared { argument, path, temporary, direct, format, kept, members }
        });
        each.collect()
    }

    /// Writes `outputs`, one for each call of [`Writer::add`] or [`Writer::add_archive`], in the order of the calls, and
    /// renames the temporary files to their final names.
    ///
    /// # Errors
    /// Returns an error if the file system fails, if an output is not of the prepared kind, or if a file whose tensors
    /// are kept has changed. After an error, all regular targets are unchanged, unless the error is a failed rename.
    pub fn commit(self, outputs: &[Output]) -> Result<(), FileError> {
        for Target { argument, path, sink, format, kept, members } in &self.targets {
            let write = |file: &File| write(file, *format, members, kept.as_ref(), outputs);
            let written = match sink {
                Sink::Replace(temporary) => temporary.fill(write),
                Sink::Direct(file) => write(file),
            };
            // A change of the kept file is reported first, because it may have caused the error of the write.
            if kept.as_ref().is_some_and(|kept| !kept.file.unchanged()) {
                return Err(FileError::Changed { argument, path: path.clone() });
            }
            written.map_err(|source| FileError::Write { argument, path: path.clone(), source })?;
        }
        let (mut files, mut names) = (Vec::new(), Vec::new());
        for Target { argument, path, sink, .. } in self.targets {
            if let Sink::Replace(temporary) = sink {
                files.push(temporary);
                names.push((argument, path));
            }
        }
        temporary::replace_all(files, &names)
    }
}

fn extension(argument: &'static str, found: String, format: Format) -> FileError {
    let allowed = match format {
        Format::Npz => "path.npz",
        _ => "path.npy or path.safetensors#name",
    };
    FileError::Extension { argument, found, allowed }
}

/// Opens the `.safetensors` file at `path` to keep its tensors.
fn keep(path: &Path) -> Result<ExistingFile, String> {
    let file = InputFile::open(path).map_err(|e| e.to_string())?;
    let directory = Directory::read(&mut file.reader(), file.length()).map_err(|fault| match fault {
        Fault::Content(error) => error.to_string(),
        Fault::Io(error) => error.to_string(),
        Fault::Memory(bytes) => format!("{bytes} bytes of memory were refused"),
    })?;
    Ok(ExistingFile { file, directory })
}

fn write(
    file: &File,
    format: Format,
    members: &[(String, usize)],
    kept: Option<&ExistingFile>,
    outputs: &[Output],
) -> io::Result<()> {
    let mut writer = BufWriter::new(file);
    match format {
        Format::Npy => match members.first().and_then(|(_, index)| outputs.get(*index)) {
            Some(Output::Tensor(tensor)) => write_npy(&mut writer, tensor)?,
            _ => return Err(io::Error::other("no tensor for this output")),
        },
        Format::Safetensors => {
            let mut tensors = Vec::new();
            for (name, index) in members {
                let Some(Output::Tensor(tensor)) = outputs.get(*index) else {
                    return Err(io::Error::other("no tensor for this output"));
                };
                tensors.push((name.as_str(), stored(&tensor.data), &tensor.shape[..], tensor.data.bytes()));
            }
            let kept = kept.map(|kept| (&kept.directory, kept.file.reader()));
            safetensors::write(&mut writer, kept, &tensors)?;
        }
        Format::Npz => match members.first().and_then(|(_, index)| outputs.get(*index)) {
            Some(Output::Archive(arrays)) => write_npz(&mut writer, arrays)?,
            _ => return Err(io::Error::other("no arrays for this output")),
        },
    }
    writer.flush()
}

/// Returns the element type that a file states for `data`.
fn stored(data: &Buffer) -> Stored {
    data.elements().dtype().into()
}

fn write_npy(writer: &mut impl Write, tensor: &Content) -> io::Result<()> {
    match &tensor.data {
        // The `.npy` format has no bf16; f32 represents every bf16 value exactly.
        Buffer::Bf16(x) => {
            npy::write_header(&mut *writer, Stored::F32, &tensor.shape)?;
            x.iter().try_for_each(|x| writer.write_all(&x.to_f32().to_le_bytes()))
        }
        data => {
            npy::write_header(&mut *writer, stored(data), &tensor.shape)?;
            writer.write_all(data.bytes())
        }
    }
}

/// Writes a zip archive of `.npy` members, uncompressed and with a fixed date, so its bytes depend only on the arrays.
fn write_npz(writer: &mut impl Write, arrays: &[(&'static str, Array)]) -> io::Result<()> {
    let mut zip = zip::ZipWriter::new_stream(writer);
    for (name, array) in arrays {
        let bytes: &[u8] = match array {
            Array::Float(content) => content.data.bytes(),
            Array::Integers { data, .. } => bytemuck::cast_slice(data),
        };
        let large = bytes.len() > 0x7fff_ffff;
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored)
            .large_file(large);
        zip.start_file(format!("{name}.npy"), options).map_err(io::Error::other)?;
        match array {
            Array::Float(content) => write_npy(&mut zip, content)?,
            Array::Integers { shape, .. } => {
                npy::write_header(&mut zip, Stored::I64, shape)?;
                zip.write_all(bytes)?;
            }
        }
    }
    zip.finish().map_err(io::Error::other)?;
    Ok(())
}
