//! Outputs: no file appears or changes before all outputs of a call are complete.
//!
//! [`Writer::add`] is called for every output before anything is computed. It checks that the target can be
//! written and makes a temporary file in the same folder, with the mode and owner of the file that it replaces.
//! [`Writer::commit`] writes all temporary files and then renames them, so a reader sees either the old file or the
//! whole new one. A target that exists and is not a regular file, such as `/dev/null`, is written directly.
//!
//! An output may replace an input: inputs are in memory when outputs are written. An output in a `.safetensors` file
//! that exists takes the place of the tensor of its name; the other tensors and the file's metadata are kept.

use super::file::InputFile;
use super::npy;
use super::safetensors::{self, Directory};
use super::source::{Format, Source};
use super::stored::{Fault, Stored};
use crate::error::Error;
use crate::memory::Buffer;
use crate::temporary::{self, Temporary};
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A tensor to write.
#[derive(Clone, Debug)]
pub struct Content {
    /// Sizes of its axes.
    pub shape: Vec<usize>,
    /// Its elements.
    pub data: Buffer,
}

/// The content of one output.
#[derive(Clone, Debug)]
pub enum Output {
    /// A tensor, to a `.npy` file or into a `.safetensors` file.
    Tensor(Content),
    /// Named arrays, to a `.npz` file.
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
        /// The elements, as many as the shape takes.
        data: Vec<i64>,
    },
}

impl From<Content> for Array {
    fn from(content: Content) -> Array {
        Array::Float(content)
    }
}

enum Sink {
    Replace(Temporary),
    Direct(File),
}

/// A file that is to be written.
#[derive(Debug)]
pub struct Prepared {
    /// The flag, without its dashes.
    pub argument: &'static str,
    /// The target, with links followed.
    pub path: PathBuf,
    /// A file beside the target, unless that is written directly.
    pub temporary: Option<Temporary>,
    /// The target itself, if it is no regular file.
    pub direct: Option<File>,
    /// Its format.
    pub format: Format,
    /// What the file holds before it is replaced; `.safetensors` only.
    pub kept: Option<Kept>,
    /// Tensor name and number of each output in it, as they were added.
    pub members: Vec<(String, usize)>,
}

impl Prepared {
    /// What tells this file from others, and from itself with other tensors, in a line.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = format!("{} {}", self.argument, self.path.display());
        if self.format == Format::Safetensors {
            let names: Vec<&str> = self.members.iter().map(|(name, _)| name.as_str()).collect();
            text += &format!(" {names:?}");
        }
        if let Some(kept) = &self.kept {
            text += &format!(" over {}", kept.file.stamp());
        }
        text
    }
}

/// A file whose tensors are kept.
#[derive(Debug)]
pub struct Kept {
    /// The file.
    pub file: InputFile,
    /// Its header.
    pub directory: Directory,
}

struct Target {
    argument: &'static str,
    path: PathBuf,
    sink: Sink,
    format: Format,
    /// What the file holds before it is replaced; `.safetensors` only.
    kept: Option<Kept>,
    /// Tensor name and index of the output.
    members: Vec<(String, usize)>,
}

/// All outputs of a call.
#[derive(Default)]
pub struct Writer {
    targets: Vec<Target>,
    count: usize,
}

impl Writer {
    /// Prepares the next output, a tensor.
    ///
    /// # Errors
    /// A path that cannot be written, an extension other than `.npy` or `.safetensors#name`, a name or a file
    /// of another output, a `.safetensors` file whose tensors cannot be kept.
    pub fn add(&mut self, argument: &'static str, source: &Source) -> Result<(), Error> {
        if source.format == Format::Npz {
            return Err(extension(argument, source.to_string(), Format::Npy));
        }
        self.target(argument, &source.path, source.format, source.name.clone().unwrap_or_default())
    }

    /// Prepares the next output, an archive.
    ///
    /// # Errors
    /// As [`Writer::add`]; the extension is `.npz`.
    pub fn add_archive(&mut self, argument: &'static str, path: &Path) -> Result<(), Error> {
        self.target(argument, path, Format::Npz, String::new())
    }

    fn target(
        &mut self,
        argument: &'static str,
        path: &Path,
        format: Format,
        name: String,
    ) -> Result<(), Error> {
        let refuse = |reason: String| Error::Target { argument, path: path.to_path_buf(), reason };
        let index = self.count;
        let (resolved, metadata) = resolve(path).map_err(|e| refuse(e.to_string()))?;
        if metadata.as_ref().is_none_or(Metadata::is_file) {
            if !path.to_string_lossy().ends_with(format.extension()) {
                return Err(extension(argument, path.display().to_string(), format));
            }
            if let Some(same) = self.targets.iter_mut().find(|t| t.path == resolved) {
                if format != Format::Safetensors || same.members.iter().any(|(other, _)| *other == name) {
                    return Err(refuse(format!("--{} writes the same", same.argument)));
                }
                same.members.push((name, index));
                self.count += 1;
                return Ok(());
            }
        }
        let mut kept = None;
        let sink = match metadata {
            Some(m) if m.is_dir() => return Err(refuse("a folder".into())),
            Some(m) if !m.is_file() => {
                Sink::Direct(File::options().write(true).open(path).map_err(|e| refuse(e.to_string()))?)
            }
            Some(m) if m.permissions().readonly() => return Err(refuse("read-only".into())),
            existing => {
                // An empty file holds nothing to keep.
                if format == Format::Safetensors && existing.as_ref().is_some_and(|m| m.len() > 0) {
                    kept = Some(keep(&resolved).map_err(|e| {
                        refuse(format!("the tensors that it holds cannot be kept ({e}); remove it first"))
                    })?);
                }
                let made = Temporary::new(folder(&resolved), existing.as_ref());
                Sink::Replace(made.map_err(|e| refuse(e.to_string()))?)
            }
        };
        let members = vec![(name, index)];
        self.targets.push(Target { argument, path: resolved, sink, format, kept, members });
        self.count += 1;
        Ok(())
    }

    /// The prepared files, in the order in which they were added, for a caller that writes them itself and
    /// replaces their targets.
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

    /// Writes `outputs`, one for each call of [`Writer::add`] or [`Writer::add_archive`] and in their order, and
    /// renames all files to their names.
    ///
    /// # Errors
    /// A failure of the file system, outputs of another kind than were prepared, and a file to keep tensors of that
    /// has changed. Unless a rename fails, no file has changed.
    pub fn commit(self, outputs: &[Output]) -> Result<(), Error> {
        for Target { argument, path, sink, format, kept, members } in &self.targets {
            let write = |file: &File| write(file, *format, members, kept.as_ref(), outputs);
            let written = match sink {
                Sink::Replace(temporary) => temporary.fill(write),
                Sink::Direct(file) => write(file),
            };
            // A kept file that changes may also end early.
            if kept.as_ref().is_some_and(|kept| !kept.file.unchanged()) {
                return Err(Error::Changed { argument, path: path.clone() });
            }
            written.map_err(|source| Error::Write { argument, path: path.clone(), source })?;
        }
        let (mut files, mut names) = (Vec::new(), Vec::new());
        for Target { argument, path, sink, .. } in self.targets {
            if let Sink::Replace(temporary) = sink {
                files.push(temporary);
                names.push((argument, path));
            }
        }
        let failed = |at: usize, source| {
            let (argument, path) = names[at].clone();
            Error::Write { argument, path, source }
        };
        let paths = names.iter().map(|(_, path)| path.as_path());
        temporary::replace(files.into_iter().zip(paths)).map_err(|(at, source)| failed(at, source))?;
        // A rename is in the folder. Folders are few: each is written to the device once.
        let folders: BTreeMap<&Path, usize> =
            names.iter().enumerate().map(|(at, (_, path))| (folder(path), at)).collect();
        folders.into_iter().try_for_each(|(folder, at)| sync(folder).map_err(|source| failed(at, source)))
    }
}

fn extension(argument: &'static str, found: String, format: Format) -> Error {
    let allowed = match format {
        Format::Npz => "path.npz",
        _ => "path.npy or path.safetensors#name",
    };
    Error::Argument { argument, found, allowed: allowed.into() }
}

/// The path of the file that `path` stands for, and what is known about the file if there is one. A link is followed,
/// also to a file that is not there yet: what is written is the file, not the link.
fn resolve(path: &Path) -> io::Result<(PathBuf, Option<Metadata>)> {
    let mut path = path.to_path_buf();
    // As many links in a row as Linux follows.
    for _ in 0..40 {
        match std::fs::canonicalize(&path) {
            Ok(resolved) => {
                let metadata = std::fs::metadata(&resolved)?;
                return Ok((resolved, Some(metadata)));
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        match std::fs::read_link(&path) {
            // Of an absolute target only the target is left.
            Ok(target) => path = folder(&path).join(target),
            Err(_) => {
                let file = path.file_name().ok_or_else(|| io::Error::other("names no file"))?;
                return Ok((std::fs::canonicalize(folder(&path))?.join(file), None));
            }
        }
    }
    Err(io::Error::other("too many links"))
}

/// The folder of a file.
#[must_use]
pub fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Waits until the names in `folder` are on the device, where the file system can tell.
///
/// # Errors
/// What the file system reports.
pub fn sync(folder: &Path) -> io::Result<()> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // A folder that may be written but not read, and file systems that sync no folders.
        Err(e)
            if matches!(
                e.kind(),
                ErrorKind::PermissionDenied | ErrorKind::InvalidInput | ErrorKind::Unsupported
            ) =>
        {
            log::debug!("{}: not synced: {e}", folder.display());
            Ok(())
        }
        done => done,
    }
}

/// Opens the `.safetensors` file at `path` to keep its tensors.
fn keep(path: &Path) -> Result<Kept, String> {
    let file = InputFile::open(path).map_err(|e| e.to_string())?;
    let directory = Directory::read(&mut file.reader(), file.length()).map_err(|fault| match fault {
        Fault::Content(error) => error.to_string(),
        Fault::Io(error) => error.to_string(),
        Fault::Memory(bytes) => format!("{bytes} bytes of memory were refused"),
    })?;
    Ok(Kept { file, directory })
}

fn write(
    file: &File,
    format: Format,
    members: &[(String, usize)],
    kept: Option<&Kept>,
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

/// The type of `data` in a file.
fn stored(data: &Buffer) -> Stored {
    data.elements().dtype().into()
}

fn write_npy(writer: &mut impl Write, tensor: &Content) -> io::Result<()> {
    match &tensor.data {
        // The format has no bf16. f32 holds it exactly.
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

/// Writes a zip archive of `.npy` members, not compressed and with a fixed date, so that its bytes depend on the
/// arrays alone.
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
