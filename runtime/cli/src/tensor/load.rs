//! Tensors read for the flags of a command.

use super::contents::{self, Accept, Contents, Data};
use super::file::InputFile;
use super::part::{self, Part};
use super::source::Source;
use super::stored::{Fault, Stored};
use crate::error::Error;
use elsa_core::attention::MaskElements;
use elsa_core::dtype::Elements;

/// A tensor read from a file.
pub struct Tensor {
    argument: &'static str,
    // Holds the advisory lock.
    file: InputFile,
    contents: Contents,
    /// Where the elements start in the file, if they were left there.
    start: Option<u64>,
}

impl Tensor {
    /// Reads the tensor at `source` for the flag `argument`.
    ///
    /// # Errors
    /// A file that cannot be read, that is malformed, that changes meanwhile, or whose type `accept` does not take;
    /// memory that the system refuses.
    pub fn load(argument: &'static str, source: &Source, accept: Accept) -> Result<Tensor, Error> {
        let (format, name) = (source.format, source.name.as_deref());
        let read = |file: &InputFile| contents::read(file.reader(), file.length(), format, name, accept);
        let (file, contents) = Tensor::open(argument, source, Some(accept), read)?;
        Ok(Tensor { argument, file, contents, start: None })
    }

    /// As [`Tensor::load`], of the part that `part` makes of the tensor's shape.
    ///
    /// # Errors
    /// As [`Tensor::load`].
    pub fn load_part(
        argument: &'static str,
        source: &Source,
        accept: Accept,
        part: &dyn Fn(&[usize]) -> Result<Part, Fault>,
    ) -> Result<Tensor, Error> {
        let (format, name) = (source.format, source.name.as_deref());
        let read =
            |file: &InputFile| part::read_part(file.reader(), file.length(), format, name, accept, part);
        let (file, contents) = Tensor::open(argument, source, Some(accept), read)?;
        Ok(Tensor { argument, file, contents, start: None })
    }

    /// The shape of the tensor at `source`, whose elements are not read.
    ///
    /// # Errors
    /// As [`Tensor::load`].
    pub fn shape_at(argument: &'static str, source: &Source) -> Result<Vec<usize>, Error> {
        let (format, name) = (source.format, source.name.as_deref());
        let read = |file: &InputFile| part::shape(file.reader(), file.length(), format, name);
        Ok(Tensor::open(argument, source, None, read)?.1)
    }

    /// Reads the header of the tensor at `source`, and leaves its elements in the file.
    ///
    /// # Errors
    /// As [`Tensor::load`], and an archive.
    pub fn header(argument: &'static str, source: &Source, accept: Accept) -> Result<Tensor, Error> {
        let (format, name) = (source.format, source.name.as_deref());
        let read = |file: &InputFile| contents::header(file.reader(), file.length(), format, name, accept);
        let (file, (contents, start)) = Tensor::open(argument, source, Some(accept), read)?;
        Ok(Tensor { argument, file, contents, start: Some(start) })
    }

    /// Opens the file of `source` and calls `read` with it.
    fn open<T>(
        argument: &'static str,
        source: &Source,
        accept: Option<Accept>,
        read: impl FnOnce(&InputFile) -> Result<T, Fault>,
    ) -> Result<(InputFile, T), Error> {
        let path = || source.path.clone();
        let unread = |source| Error::Read { argument, path: path(), source };
        let file = InputFile::open(&source.path).map_err(unread)?;
        log::debug!("reading {source} in a file of {} bytes", file.length());
        let read = read(&file);
        // What was read of a file that changed is neither the old contents nor the new.
        if !file.unchanged() {
            return Err(Error::Changed { argument, path: path() });
        }
        let contents = read.map_err(|fault| match fault {
            Fault::Content(source) => {
                let source = match accept {
                    Some(accept) => accept.narrowed(source),
                    None => source,
                };
                Error::Tensor { argument, path: path(), source }
            }
            Fault::Io(source) => unread(source),
            Fault::Memory(bytes) => Error::Memory { argument, bytes },
        })?;
        Ok((file, contents))
    }

    /// The file, if the elements were left there, and where they start.
    #[must_use]
    pub fn in_file(&self) -> Option<(&InputFile, u64)> {
        Some((&self.file, self.start?))
    }

    /// The element type in the file.
    #[must_use]
    pub fn dtype(&self) -> Stored {
        self.contents.stored
    }

    /// Sizes of the axes.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.contents.shape
    }

    /// The elements, if they are floating-point numbers.
    #[must_use]
    pub fn elements(&self) -> Option<Elements<'_>> {
        match &self.contents.data {
            Data::Float(x) => Some(x.elements()),
            _ => None,
        }
    }

    /// The elements as a mask, if they are booleans or floating-point numbers.
    #[must_use]
    pub fn mask(&self) -> Option<MaskElements<'_>> {
        match &self.contents.data {
            Data::Bool(x) => Some(MaskElements::Bool(x)),
            _ => self.elements().map(MaskElements::Additive),
        }
    }

    /// The elements as lengths, if they are integers.
    #[must_use]
    pub fn lengths(&self) -> Option<&[i64]> {
        match &self.contents.data {
            Data::Integer(x) => Some(x),
            _ => None,
        }
    }

    /// What a user should know about how the elements differ from those in the file; none if they do not.
    #[must_use]
    pub fn notice(&self) -> Option<String> {
        (self.contents.stored == Stored::F64).then(|| {
            let infinite = match self.contents.overflows {
                0 => String::new(),
                n => format!("; {n} of its values are beyond the range of f32 and became infinite"),
            };
            format!("--{}: {}: f64 is rounded to f32{infinite}", self.argument, self.file.path().display())
        })
    }

    /// The flag, and what tells the file from others and from itself once it has been written.
    #[must_use]
    pub fn stamp(&self) -> String {
        format!("{} {}", self.argument, self.file.stamp())
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &std::path::Path {
        self.file.path()
    }

    /// Requires that the file is still the one that was read.
    ///
    /// # Errors
    /// A file that has been written, replaced or removed.
    pub fn unchanged(&self) -> Result<(), Error> {
        if self.file.unchanged() {
            return Ok(());
        }
        Err(Error::Changed { argument: self.argument, path: self.file.path().to_path_buf() })
    }
}
