//! Outputs: no file appears or changes before all outputs of a call are complete.
//!
//! [`Writer::add`] is called for every output before anything is computed. It checks that the target can be
//! written and makes a temporary file in the same folder. [`Writer::commit`] writes all temporary files and then
//! renames them, so a reader sees either the old file or the whole new one. A target that exists and is not a
//! regular file, such as `/dev/null`, is written directly.
//!
//! An output may replace an input: inputs are mapped, and the map keeps the contents that a rename replaces.
//! A `.safetensors` file that is an input is refused: the new file would hold the outputs alone, and the other
//! tensors would be lost.

use super::source::Source;
use super::stored::Stored;
use super::{npy, safetensors};
use crate::error::Error;
use crate::memory::Buffer;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

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
    /// Named tensors, to a `.npz` file.
    Archive(Vec<(&'static str, Content)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Npy,
    Npz,
    Safetensors,
}

enum Sink {
    Replace(NamedTempFile),
    Direct(File),
}

struct Target {
    argument: &'static str,
    path: PathBuf,
    sink: Sink,
    format: Format,
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
    /// Prepares the next output, a tensor. `inputs` are the tensors that the call reads.
    ///
    /// # Errors
    /// A path that cannot be written, an extension other than `.npy` or `.safetensors#name`, a name or a file
    /// of another output.
    pub fn add(
        &mut self,
        argument: &'static str,
        source: &Source,
        inputs: &[(&'static str, &Source)],
    ) -> Result<(), Error> {
        let (format, name) = match &source.name {
            Some(name) => (Format::Safetensors, name.clone()),
            None => (Format::Npy, String::new()),
        };
        self.target(argument, &source.path, format, name, inputs)
    }

    /// Prepares the next output, an archive.
    ///
    /// # Errors
    /// As [`Writer::add`]; the extension is `.npz`.
    pub fn add_archive(
        &mut self,
        argument: &'static str,
        path: &Path,
        inputs: &[(&'static str, &Source)],
    ) -> Result<(), Error> {
        self.target(argument, path, Format::Npz, String::new(), inputs)
    }

    fn target(
        &mut self,
        argument: &'static str,
        path: &Path,
        format: Format,
        name: String,
        inputs: &[(&'static str, &Source)],
    ) -> Result<(), Error> {
        let refuse = |reason: String| Error::Target { argument, path: path.to_path_buf(), reason };
        let index = self.count;
        // A link is followed: its target is replaced, not the link.
        let existing = match std::fs::canonicalize(path) {
            Ok(path) => Some(path),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(refuse(e.to_string())),
        };
        let resolved = match &existing {
            Some(path) => path.clone(),
            None => {
                let Some(file) = path.file_name() else { return Err(refuse("names no file".into())) };
                let folder = std::fs::canonicalize(folder(path)).map_err(|e| refuse(e.to_string()))?;
                folder.join(file)
            }
        };
        let metadata = existing.as_deref().map(std::fs::metadata).transpose();
        let metadata = metadata.map_err(|e| refuse(e.to_string()))?;
        let regular = metadata.as_ref().is_none_or(std::fs::Metadata::is_file);
        if regular {
            let extension = match format {
                Format::Npy => "npy",
                Format::Npz => "npz",
                Format::Safetensors => "safetensors",
            };
            if path.extension().is_none_or(|e| e != extension) {
                let allowed = match format {
                    Format::Npz => "path.npz",
                    _ => "path.npy or path.safetensors#name",
                };
                return Err(Error::Argument {
                    argument,
                    found: path.display().to_string(),
                    allowed: allowed.into(),
                });
            }
            if format == Format::Safetensors {
                for (input, source) in inputs {
                    if std::fs::canonicalize(&source.path).is_ok_and(|p| p == resolved) {
                        return Err(refuse(format!(
                            "--{input} reads it and its other tensors would be lost"
                        )));
                    }
                }
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
        let sink = match metadata {
            Some(m) if m.is_dir() => return Err(refuse("a folder".into())),
            Some(m) if !m.is_file() => {
                Sink::Direct(File::options().write(true).open(path).map_err(|e| refuse(e.to_string()))?)
            }
            Some(m) if m.permissions().readonly() => return Err(refuse("read-only".into())),
            _ => Sink::Replace(temporary(folder(&resolved)).map_err(|e| refuse(e.to_string()))?),
        };
        self.targets.push(Target { argument, path: resolved, sink, format, members: vec![(name, index)] });
        self.count += 1;
        Ok(())
    }

    /// Writes `outputs`, one for each call of [`Writer::add`] or [`Writer::add_archive`] and in their order, and
    /// renames all files to their names.
    ///
    /// # Errors
    /// A failure of the file system, and outputs of another kind than were prepared. Unless a rename fails, no
    /// file has changed.
    pub fn commit(self, outputs: Vec<Output>) -> Result<(), Error> {
        let mut files = Vec::new();
        for target in self.targets {
            let Target { argument, path, mut sink, format, members } = target;
            let written = match &mut sink {
                Sink::Replace(file) => write(file.as_file_mut(), format, &members, &outputs)
                    .and_then(|()| file.as_file().sync_data()),
                Sink::Direct(file) => write(file, format, &members, &outputs),
            };
            match written {
                Ok(()) => files.push((argument, path, sink)),
                Err(source) => return Err(Error::Write { argument, path, source }),
            }
        }
        for (argument, path, sink) in files {
            if let Sink::Replace(file) = sink {
                file.persist(&path).map_err(|e| Error::Write { argument, path, source: e.error })?;
            }
        }
        Ok(())
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn temporary(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".elsa-").suffix(".part");
    // The permissions of an ordinary new file, before the process's mask. The default is for secrets.
    #[cfg(unix)]
    builder.permissions(<Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o666));
    builder.tempfile_in(folder)
}

fn write(file: &mut File, format: Format, members: &[(String, usize)], outputs: &[Output]) -> io::Result<()> {
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
            writer.write_all(&safetensors::serialize(&tensors)?)?;
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

fn write_npy(writer: impl Write, tensor: &Content) -> io::Result<()> {
    match &tensor.data {
        // The format has no bf16. f32 holds it exactly.
        Buffer::Bf16(x) => {
            let widened: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
            npy::write(writer, Stored::F32, &tensor.shape, bytemuck::cast_slice(&widened))
        }
        data => npy::write(writer, stored(data), &tensor.shape, data.bytes()),
    }
}

/// Writes a zip archive of `.npy` members, not compressed and with a fixed date, so that its bytes depend on the
/// arrays alone.
fn write_npz(writer: &mut impl Write, arrays: &[(&'static str, Content)]) -> io::Result<()> {
    let mut zip = zip::ZipWriter::new_stream(writer);
    for (name, content) in arrays {
        let large = content.data.bytes().len() > 0x7fff_ffff;
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored)
            .large_file(large);
        zip.start_file(format!("{name}.npy"), options).map_err(io::Error::other)?;
        write_npy(&mut zip, content)?;
    }
    zip.finish().map_err(io::Error::other)?;
    Ok(())
}
