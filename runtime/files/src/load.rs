//! Loads the tensors that are arguments of a call from files.

use super::contents::{self, Accept, Contents, Data};
use super::error::{FileError, MemoryError};
use super::file::InputFile;
use super::npz::{self, CopyError};
use super::part::{self, Part};
use super::source::{Format, TensorPath};
use super::stored::{Fault, Header, Stored};
use super::turn::{TurnError, turn};
use elsa_core::attention::MaskElements;
use elsa_core::dtype::Elements;
use std::cell::OnceCell;
use std::fs::{File, Metadata};
use std::io;
use std::path::Path;

/// A tensor read from a file.
pub struct Tensor {
    argument: &'static str,
    // Holds the advisory lock.
    file: InputFile,
    contents: Contents,
    left: Left,
}

/// Location of the elements that remain to be read.
enum Left {
    /// Nowhere: all elements are in memory.
    Nowhere,
    /// In the file, from this byte offset on.
    InFile(u64),
    /// In the file, but they must be unpacked or checked before ranges of them can be read.
    Unready(Unready),
}

/// Elements that are in a member of an archive, or in Fortran order, or both.
struct Unready {
    /// Name of the archive member; `None` for a file that is not an archive.
    name: Option<String>,
    header: Header,
    /// Byte offset of the elements in the file; `None` if they are deflated.
    stored: Option<u64>,
    /// Empty until the first use, and then the unpacked copy of the elements, or `None` if the elements are used in
    /// place.
    ready: OnceCell<Option<File>>,
}

impl Tensor {
    /// Reads the tensor at `source` for `argument`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is malformed or changes during the read, if `accept` excludes the
    /// tensor's type, or if the system refuses memory.
    pub fn load(argument: &'static str, source: &TensorPath, accept: Accept) -> Result<Tensor, FileError> {
        let (format, name) = (source.format, source.name.as_deref());
        let read = |file: &InputFile| contents::read(file.reader(), file.length(), format, name, accept);
        let (file, contents) = Tensor::open(argument, source, Some(accept), read)?;
        Ok(Tensor { argument, file, contents, left: Left::Nowhere })
    }

    /// Loads one part of the tensor at `source`; `part` computes the part from the tensor's shape.
    ///
    /// # Errors
    /// Returns the errors of [`Tensor::load`].
    pub fn load_part(
        argument: &'static str,
        source: &TensorPath,
        accept: Accept,
        part: &dyn Fn(&[usize]) -> Result<Part, Fault>,
    ) -> Result<Tensor, FileError> {
        let (format, name) = (source.format, source.name.as_deref());
        let read =
            |file: &InputFile| part::read_part(file.reader(), file.length(), format, name, accept, part);
        let (file, contents) = Tensor::open(argument, source, Some(accept), read)?;
        Ok(Tensor { argument, file, contents, left: Left::Nowhere })
    }

    /// Returns the shape of the tensor at `source` without reading its elements.
    ///
    /// # Errors
    /// Returns the errors of [`Tensor::load`].
    pub fn shape_at(argument: &'static str, source: &TensorPath) -> Result<Vec<usize>, FileError> {
        let (format, name) = (source.format, source.name.as_deref());
        let read = |file: &InputFile| part::shape(file.reader(), file.length(), format, name);
        Ok(Tensor::open(argument, source, None, read)?.1)
    }

    /// Reads the header of the tensor at `source`, and leaves its elements in the file.
    ///
    /// # Errors
    /// Returns the errors of [`Tensor::load`].
    pub fn header(argument: &'static str, source: &TensorPath, accept: Accept) -> Result<Tensor, FileError> {
        let (format, name) = (source.format, source.name.as_deref());
        let read = |file: &InputFile| contents::header(file.reader(), file.length(), format, name, accept);
        let (file, (contents, header, stored)) = Tensor::open(argument, source, Some(accept), read)?;
        let left = match (source.format, stored) {
            (Format::Npy | Format::Safetensors, Some(start)) if !header.fortran => Left::InFile(start),
            (format, stored) => {
                let name = name.filter(|_| format == Format::Npz).map(str::to_owned);
                Left::Unready(Unready { name, header, stored, ready: OnceCell::new() })
            }
        };
        Ok(Tensor { argument, file, contents, left })
    }

    /// Opens the file of `source` and calls `read` with it. If the tensor's type is refused, the error lists the types
    /// that `accept` includes.
    fn open<T>(
        argument: &'static str,
        source: &TensorPath,
        accept: Option<Accept>,
        read: impl FnOnce(&InputFile) -> Result<T, Fault>,
    ) -> Result<(InputFile, T), FileError> {
        with_file(argument, &source.path, |file| {
            log::debug!("reading {source} in a file of {} bytes", file.length());
            read(file).map_err(|fault| match (fault, accept) {
                (Fault::Content(error), Some(accept)) => accept.narrowed(error).into(),
                (fault, _) => fault,
            })
        })
    }

    /// Returns `true` if the elements are still in the file.
    #[must_use]
    pub fn is_left(&self) -> bool {
        !matches!(self.left, Left::Nowhere)
    }

    /// Returns the file with the elements, and their byte offset in it; `None` if the elements are in memory. If the
    /// file is an archive, the first call reads the elements once to compare their checksum. Deflated elements and
    /// elements in Fortran order are unpacked into a nameless file in `folder`. The system removes this file even if
    /// the process is killed. `notice` receives a message about the unpacking. The message starts with the argument.
    ///
    /// # Errors
    /// Returns the errors of [`Tensor::load`], and file system errors of the unpacked file.
    pub fn in_file(
        &self,
        folder: &Path,
        notice: &mut dyn FnMut(String),
    ) -> Result<Option<(&File, u64)>, FileError> {
        let of = match &self.left {
            Left::Nowhere => return Ok(None),
            Left::InFile(start) => return Ok(Some((self.file.reader(), *start))),
            Left::Unready(of) => of,
        };
        if of.ready.get().is_none() {
            // The cell is still empty, so `set` succeeds.
            let _ = of.ready.set(self.unpacked(of, folder, notice)?);
        }
        Ok(Some(match (of.ready.get(), of.stored) {
            (Some(Some(unpacked)), _) => (unpacked, 0),
            (_, stored) => (self.file.reader(), stored.unwrap_or(0)),
        }))
    }

    /// If the elements are in an archive member, reads them once to compare their checksum. Unpacks elements that are
    /// deflated or in Fortran order. Returns the file with the unpacked elements, or `None` if the elements can be used
    /// in place.
    fn unpacked(
        &self,
        of: &Unready,
        folder: &Path,
        notice: &mut dyn FnMut(String),
    ) -> Result<Option<File>, FileError> {
        let argument = self.argument;
        let unwritten = |source| FileError::Write { argument, path: folder.to_path_buf(), source };
        let unread = |fault| failed(argument, self.path(), fault);
        let made = || tempfile::tempfile_in(folder).map_err(unwritten);
        let (reader, length) = (self.file.reader(), self.file.length());
        let (deflated, fortran) = (of.stored.is_none(), of.header.fortran);
        if let Some((what, advice)) = match (deflated, fortran) {
            (true, _) => Some(("deflated", "numpy.savez stores instead")),
            (_, true) => Some(("Fortran order", "numpy.ascontiguousarray makes C order")),
            _ => None,
        } {
            let name = of.name.as_ref().map_or_else(String::new, |name| format!("#{name}"));
            notice(format!(
                "{argument}: {}{name}: {what}: {} bytes are unpacked into a file without a name in {} for the run; {advice}",
                self.path().display(),
                of.header.bytes,
                folder.display()
            ));
        }
        let mut file = None;
        if let Some(name) = &of.name {
            let copied = if deflated {
                npz::copy(reader, length, name, file.insert(made()?))
            } else {
                npz::copy(reader, length, name, io::sink())
            };
            self.unchanged()?;
            copied.map_err(|fault| match fault {
                CopyError::Unread(fault) => unread(fault),
                CopyError::Unwritten(source) => unwritten(source),
            })?;
        }
        if fortran {
            let to = made()?;
            let (from, start) = file.as_ref().map_or((reader, of.stored.unwrap_or(0)), |file| (file, 0));
            let turned = turn(from, start, &of.header, &to);
            self.unchanged()?;
            turned.map_err(|fault| match fault {
                TurnError::Unread(fault) => unread(fault),
                TurnError::Unwritten(source) => unwritten(source),
            })?;
            file = Some(to);
        }
        Ok(file)
    }

    /// Returns the size in bytes of the file of unpacked elements.
    #[must_use]
    pub fn unpacked_bytes(&self) -> u64 {
        match &self.left {
            Left::Unready(Unready { ready, .. }) => match ready.get() {
                Some(Some(file)) => file.metadata().map_or(0, |metadata| metadata.len()),
                _ => 0,
            },
            _ => 0,
        }
    }

    /// Returns the element type in the file.
    #[must_use]
    pub fn dtype(&self) -> Stored {
        self.contents.stored
    }

    /// Returns the sizes of the axes.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.contents.shape
    }

    /// Returns the elements if they are floating-point numbers; `None` for other types.
    #[must_use]
    pub fn elements(&self) -> Option<Elements<'_>> {
        match &self.contents.data {
            Data::Float(x) => Some(x.elements()),
            _ => None,
        }
    }

    /// Returns the elements as a mask if they are booleans or floating-point numbers; `None` for other types.
    #[must_use]
    pub fn mask(&self) -> Option<MaskElements<'_>> {
        match &self.contents.data {
            Data::Bool(x) => Some(MaskElements::Bool(x)),
            _ => self.elements().map(MaskElements::Additive),
        }
    }

    /// Returns the elements as lengths if they are integers; `None` for other types.
    #[must_use]
    pub fn lengths(&self) -> Option<&[i64]> {
        match &self.contents.data {
            Data::Integer(x) => Some(x),
            _ => None,
        }
    }

    /// Returns a message for the user if the file contains f64 values, which were rounded to f32; `None` for other
    /// types. The message starts with the argument.
    #[must_use]
    pub fn notice(&self) -> Option<String> {
        (self.contents.stored == Stored::F64).then(|| {
            let infinite = match self.contents.overflows {
                0 => String::new(),
                n => format!("; {n} of its values are beyond the range of f32 and became infinite"),
            };
            format!("{}: {}: f64 is rounded to f32{infinite}", self.argument, self.file.path().display())
        })
    }

    /// Returns the argument and a fingerprint that distinguishes the file from other files and from its later versions.
    #[must_use]
    pub fn stamp(&self) -> String {
        format!("{} {}", self.argument, self.file.stamp())
    }

    /// Returns the tensor's argument if `found` describes the tensor's file, even under another name.
    #[must_use]
    pub fn reads(&self, found: &Metadata) -> Option<&'static str> {
        self.file.is(found).then_some(self.argument)
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Checks that the file is unchanged since it was read.
    ///
    /// # Errors
    /// Returns an error if the file has been written, replaced or removed.
    pub fn unchanged(&self) -> Result<(), FileError> {
        if self.file.unchanged() {
            return Ok(());
        }
        Err(FileError::Changed { argument: self.argument, path: self.file.path().to_path_buf() })
    }
}

/// Opens the file at `path` for `argument`, calls `read` with it, and checks that the file did not change during the
/// call.
///
/// # Errors
/// Returns an error if the file cannot be opened or changes, and errors of `read`.
pub fn with_file<T>(
    argument: &'static str,
    path: &Path,
    read: impl FnOnce(&InputFile) -> Result<T, Fault>,
) -> Result<(InputFile, T), FileError> {
    let unread = |source| FileError::Read { argument, path: path.to_path_buf(), source };
    let file = InputFile::open(path).map_err(unread)?;
    let read = read(&file);
    // Data read from a file that changes may mix the old contents with the new.
    if !file.unchanged() {
        return Err(FileError::Changed { argument, path: path.to_path_buf() });
    }
    let contents = read.map_err(|fault| failed(argument, path, fault))?;
    Ok((file, contents))
}

/// Builds the error for a tensor at `path` that cannot be read.
pub(crate) fn failed(argument: &'static str, path: &Path, fault: Fault) -> FileError {
    let path = path.to_path_buf();
    match fault {
        Fault::Content(source) => FileError::Tensor { argument, path, source },
        Fault::Io(source) => FileError::Read { argument, path, source },
        Fault::Memory(bytes) => MemoryError { argument, bytes }.into(),
    }
}
