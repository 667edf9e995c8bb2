//! Writes outputs part by part to files next to their targets. Once all files are complete, they replace the targets.

use super::commit::{ARRAYS, Move, beside, finish, part_of, synced};
use super::journal::Journal;
use super::journal::Stage;
use crate::error::Error;
use elsa_core::attention::{Operand, Operands};
use elsa_core::dtype::DType;
use elsa_files::{
    FileError, Format, InputFile, MemoryError, Prepared, Stored, npy,
    safetensors::{self, EntryLayout, Origin, Piece},
    temporary::{self, Temporary, regular, resemble, step},
};
use elsa_runtime::Sink;
use half::bf16;
use indicatif::ProgressBar;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Number of bytes that are converted or copied at once.
const PIECE: usize = 64 << 10;

/// The operands of the states, and the names of their arrays in the archive.
const STATES: [(Operand, &str); 3] = [
    (Operand::StateReference, ARRAYS[0]),
    (Operand::StateSum, ARRAYS[1]),
    (Operand::StateWeighted, ARRAYS[2]),
];

/// The open file that receives an output before it is complete.
#[derive(Debug)]
enum Making {
    /// A temporary file, which disappears when the process ends.
    Temporary(Temporary),
    /// A partial file that remains for a resumed run if the process ends.
    Partial(File),
    /// The target itself, which is not a regular file.
    Direct(File),
}

impl Making {
    fn file(&self) -> io::Result<&File> {
        match self {
            Making::Temporary(temporary) => temporary.get().ok_or_else(|| io::ErrorKind::NotFound.into()),
            Making::Partial(file) | Making::Direct(file) => Ok(file),
        }
    }
}

/// An output file.
#[derive(Debug)]
struct Target {
    argument: &'static str,
    /// Path of the target, after links are resolved.
    path: PathBuf,
    making: Making,
    /// `true` if the file is an array from which the archive is built.
    of_archive: bool,
    /// The existing file that will be replaced. Its tensors are copied to the new file, except the tensors that the run
    /// writes.
    kept: Option<InputFile>,
}

impl Target {
    fn failed(&self, source: io::Error) -> FileError {
        FileError::Write { argument: self.argument, path: self.path.clone(), source }
    }
}

/// Location of an output's elements in its file.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Index of the file in `targets` of [`Outputs`].
    target: usize,
    /// Byte offset of the elements in the file.
    start: u64,
    /// `true` if bf16 elements are widened to f32.
    widens: bool,
}

/// The outputs of a run.
#[derive(Debug)]
pub struct Outputs {
    targets: Vec<Target>,
    places: Operands<Option<Place>>,
    /// The archive of states: its path and, if the target is not a regular file, the open target. The archive is built
    /// at the end, from one file for each array.
    archive: Option<(PathBuf, Option<File>)>,
    journal: Option<Journal>,
    /// Renames that complete a resumable run.
    moves: Vec<Move>,
    /// `true` if an earlier run has already begun the renames.
    complete: bool,
    bar: ProgressBar,
    piece: Vec<u8>,
    /// Number of parts after which the process aborts; set only by tests.
    parts_left: Option<u64>,
}

/// Operand, element type and axis sizes of an output.
pub type Shape = (Operand, DType, Vec<usize>);

impl Outputs {
    /// Creates the output files. For each member of a file in `prepared`, the index of the member is the index of its
    /// output in `shapes`. An archive of states contains the outputs from the index of its first member to the end of
    /// `shapes`. If `stage` is given, the files remain if the process is killed, and `stage` states whether an earlier
    /// run has created them. For [`Stage::Complete`], nothing is created.
    ///
    /// # Errors
    /// Returns an error if the file system fails, if the system refuses memory, or if a file with kept tensors ends
    /// early.
    pub fn new(prepared: Vec<Prepared>, shapes: &[Shape], stage: Option<Stage>) -> Result<Outputs, Error> {
        let mut piece = Vec::new();
        piece.try_reserve_exact(PIECE).map_err(|_| MemoryError { argument: "out", bytes: PIECE })?;
        piece.resize(PIECE, 0);
        let parts_left = std::env::var("ELSA_TEST_ABORT_AFTER").ok().filter(|_| cfg!(debug_assertions));
        let mut outputs = Outputs {
            targets: Vec::new(),
            places: Operands::from_fn(|_| None),
            archive: None,
            journal: None,
            moves: stage.map_or_else(Vec::new, |_| prepared.iter().map(Move::of).collect()),
            complete: stage == Some(Stage::Complete),
            bar: ProgressBar::hidden(),
            piece,
            parts_left: parts_left.and_then(|text| text.parse().ok()),
        };
        if outputs.complete {
            return Ok(outputs);
        }
        for file in prepared {
            let first = file.members.first().map_or(0, |(_, number)| *number);
            match file.format {
                Format::Npz => outputs.add_archive(file, shapes.get(first..).unwrap_or_default(), stage)?,
                Format::Npy => {
                    let Some((operand, dtype, shape)) = shapes.get(first) else { continue };
                    let target = Target::of(file, stage)?;
                    outputs.add_npy(target, *operand, *dtype, shape, stage)?;
                }
                Format::Safetensors => outputs.add_safetensors(file, shapes, stage)?,
            }
        }
        Ok(outputs)
    }

    /// Creates a file for each array of the archive.
    fn add_archive(&mut self, file: Prepared, shapes: &[Shape], stage: Option<Stage>) -> Result<(), Error> {
        let Prepared { argument, path, temporary, direct, .. } = file;
        for (operand, dtype, shape) in shapes {
            let name = STATES.iter().find(|(state, _)| state == operand).map_or("", |(_, name)| name);
            let own = beside(&path, &format!(".{name}"));
            let making = making(argument, &own, stage, || Temporary::new(&own, None))?;
            let target = Target { argument, path: path.clone(), making, of_archive: true, kept: None };
            self.add_npy(target, *operand, *dtype, shape, stage)?;
        }
        // The archive's temporary file is not needed: until the archive is built, only the arrays' files exist.
        drop(temporary);
        self.archive = Some((path, direct));
        Ok(())
    }

    /// Writes the header of a file with one tensor, and records where the elements of the tensor begin.
    fn add_npy(
        &mut self,
        target: Target,
        operand: Operand,
        dtype: DType,
        shape: &[usize],
        stage: Option<Stage>,
    ) -> Result<(), Error> {
        // The .npy format has no bf16; f32 represents it exactly.
        let widens = dtype == DType::Bf16;
        let stored: Stored = if widens { Stored::F32 } else { dtype.into() };
        let mut header = Vec::new();
        npy::write_header(&mut header, stored, shape).map_err(|e| target.failed(e))?;
        let start = header.len() as u64;
        let length = start + (shape.iter().product::<usize>() * stored.size()) as u64;
        target.begin(&header, length, stage)?;
        self.places[operand] = Some(Place { target: self.targets.len(), start, widens });
        self.targets.push(target);
        Ok(())
    }

    /// Writes the header of a file with several tensors, and records where the elements of each output begin. The
    /// tensors are outputs, and the kept tensors of the existing file that the new file will replace. Copies the kept
    /// tensors, unless an earlier run has copied them.
    fn add_safetensors(
        &mut self,
        mut file: Prepared,
        shapes: &[Shape],
        stage: Option<Stage>,
    ) -> Result<(), Error> {
        let (members, kept) = (std::mem::take(&mut file.members), file.kept.take());
        let mut target = Target::of(file, stage)?;
        let outputs: Vec<(&str, &Shape)> =
            members.iter().filter_map(|(name, at)| Some((name.as_str(), shapes.get(*at)?))).collect();
        let tensors: Vec<(&str, Stored, &[usize])> =
            outputs.iter().map(|(name, (_, dtype, shape))| (*name, (*dtype).into(), &shape[..])).collect();
        let (old, directory) = kept.map(|kept| (kept.file, kept.directory)).unzip();
        let form = EntryLayout::new(directory.as_ref(), &tensors).map_err(|e| target.failed(e))?;
        target.begin(&form.header, form.length, stage)?;
        for piece in &form.pieces {
            match (piece.from, &old) {
                (Origin::New(at), _) => {
                    let Some((_, (operand, ..))) = outputs.get(at) else { continue };
                    let place = Place { target: self.targets.len(), start: piece.start, widens: false };
                    self.places[*operand] = Some(place);
                }
                // The partial file of a resumed run already contains the kept tensors.
                (Origin::Kept(at), Some(old)) if stage != Some(Stage::Begun) => {
                    target.keep(old, at, piece).map_err(|e| target.failed(e))?;
                }
                (Origin::Kept(_), _) => {}
            }
        }
        if stage == Some(Stage::New) {
            // The kept tensors must be on the storage device before the journal begins.
            synced(target.making.file().map_err(|e| target.failed(e))?).map_err(|e| target.failed(e))?;
        }
        target.kept = old;
        self.targets.push(target);
        Ok(())
    }

    /// Makes the outputs record finished units in `journal`.
    pub fn note_in(&mut self, journal: Journal) {
        self.journal = Some(journal);
    }

    /// Gives the outputs a progress bar, which advances with each part that is written.
    pub fn show(&mut self, bar: ProgressBar) {
        self.bar = bar;
    }

    /// Returns the argument and the target path of an output.
    #[must_use]
    pub fn target(&self, operand: Operand) -> (&'static str, PathBuf) {
        let target = self.places[operand].and_then(|place| self.targets.get(place.target));
        target.map_or(("out", PathBuf::new()), |target| (target.argument, target.path.clone()))
    }

    /// Replaces every target by its complete file, and removes the journal.
    ///
    /// # Errors
    /// Returns an error if the file system fails, or if a file with kept tensors has changed. Unless the error is a
    /// failed rename, no target has changed.
    pub fn commit(mut self) -> Result<(), Error> {
        self.bar.finish_and_clear();
        for target in &self.targets {
            if target.kept.as_ref().is_some_and(|kept| !kept.unchanged()) {
                return Err(
                    FileError::Changed { argument: target.argument, path: target.path.clone() }.into()
                );
            }
        }
        // The buffer was allocated before the run, because no memory should be refused after it.
        let mut piece = std::mem::take(&mut self.piece);
        match self.journal.take() {
            Some(mut journal) => {
                if !self.complete {
                    self.complete_parts(&mut piece)?;
                    let parts: Vec<String> =
                        self.moves.iter().map(Move::identity).collect::<Result<_, _>>()?;
                    journal.commit(&parts)?;
                }
                Ok(finish(&self.moves, journal)?)
            }
            None => self.replace(&mut piece),
        }
    }

    /// Completes the partial files of a resumable run: builds the archive, sets mode and owner, and waits until the
    /// files are on the storage device.
    fn complete_parts(&mut self, piece: &mut [u8]) -> Result<(), Error> {
        if let Some((path, direct)) = self.archive.take() {
            let made = match direct {
                Some(file) => self.write_archive(&file, piece),
                None => part(&part_of(&path), true).and_then(|file| {
                    self.write_archive(&file, piece)?;
                    settled(&file, &path)
                }),
            };
            made.map_err(|source| FileError::Write { argument: "state-out", path: path.clone(), source })?;
        }
        for target in self.targets.iter().filter(|target| !target.of_archive) {
            let settle = match &target.making {
                Making::Partial(file) => settled(file, &target.path),
                making => making.file().and_then(synced),
            };
            settle.map_err(|e| target.failed(e))?;
        }
        Ok(())
    }

    /// Completes the temporary files of a run without a journal, and renames them to their targets.
    fn replace(&mut self, piece: &mut [u8]) -> Result<(), Error> {
        let (mut files, mut names) = (Vec::new(), Vec::new());
        if let Some((path, direct)) = self.archive.take() {
            let made = match direct {
                Some(file) => self.write_archive(&file, piece).map(|()| None),
                None => Temporary::new(&path, path.metadata().ok().as_ref()).and_then(|temporary| {
                    temporary.fill(|file| self.write_archive(file, piece))?;
                    Ok(Some(temporary))
                }),
            };
            let made = made.map_err(|source| FileError::Write {
                argument: "state-out",
                path: path.clone(),
                source,
            })?;
            if let Some(temporary) = made {
                files.push(temporary);
                names.push(("state-out", path));
            }
        }
        // The files of the archive's arrays are not renamed: the archive contains them.
        for target in std::mem::take(&mut self.targets).into_iter().filter(|target| !target.of_archive) {
            let synced = target.making.file().and_then(synced);
            synced.map_err(|e| target.failed(e))?;
            if let Making::Temporary(temporary) = target.making {
                names.push((target.argument, target.path));
                files.push(temporary);
            }
        }
        Ok(temporary::replace_all(files, &names)?)
    }

    /// Returns the open file of an output.
    fn file(&self, operand: Operand) -> Option<io::Result<&File>> {
        let target = self.targets.get(self.places[operand]?.target)?;
        Some(target.making.file())
    }

    /// Writes the archive from the files of its arrays, a piece at a time.
    fn write_archive(&self, file: &File, piece: &mut [u8]) -> io::Result<()> {
        let mut zip = zip::ZipWriter::new_stream(BufWriter::new(file));
        for (operand, name) in STATES {
            let Some(array) = self.file(operand).transpose()? else { continue };
            let length = array.metadata()?.len();
            let options = zip::write::SimpleFileOptions::default()
                .compression_method(zip::CompressionMethod::Stored)
                .large_file(length > 0x7fff_ffff);
            zip.start_file(format!("{name}.npy"), options).map_err(io::Error::other)?;
            let mut at = 0;
            while at < length {
                let n = piece.len().min((length - at) as usize);
                array.read_exact_at(&mut piece[..n], at)?;
                zip.write_all(&piece[..n])?;
                at += n as u64;
            }
        }
        zip.finish().map_err(io::Error::other)?.into_inner().flush()
    }
}

/// Opens the partial file at `path`. If `new` is set, the file is created or emptied.
fn part(path: &Path, new: bool) -> io::Result<File> {
    step();
    let file = regular(File::options().read(true).write(true).create(new).truncate(false), path)?;
    if new {
        step();
        file.set_len(0)?;
    }
    Ok(file)
}

/// Gives a partial file the mode and owner of the file at `target`, if that file exists. Then waits until the partial
/// file is on the storage device.
fn settled(file: &File, target: &Path) -> io::Result<()> {
    if let Ok(existing) = target.metadata() {
        resemble(file, &existing)?;
    }
    synced(file)
}

/// Opens the file that receives an output: a partial file of a resumable run, or a temporary file.
fn making(
    argument: &'static str,
    target: &Path,
    stage: Option<Stage>,
    temporary: impl FnOnce() -> io::Result<Temporary>,
) -> Result<Making, FileError> {
    let path = part_of(target);
    let refuse = |e: io::Error| FileError::Target { argument, path: path.clone(), reason: e.to_string() };
    match stage {
        None => temporary().map(Making::Temporary).map_err(refuse),
        Some(stage) => part(&path, stage == Stage::New).map(Making::Partial).map_err(refuse),
    }
}

impl Target {
    /// Opens the file that receives the outputs that belong in the prepared file `file`.
    fn of(file: Prepared, stage: Option<Stage>) -> Result<Target, Error> {
        let Prepared { argument, path, temporary, direct, .. } = file;
        let making = match (temporary, direct) {
            (_, Some(file)) => Making::Direct(file),
            (temporary, None) => making(argument, &path, stage, || match temporary {
                Some(temporary) => Ok(temporary),
                None => Temporary::new(&path, None),
            })?,
        };
        Ok(Target { argument, path, making, of_archive: false, kept: None })
    }

    /// Writes `header` and sets the file's length to `length` bytes. In a resumed run, checks that the file already has
    /// this header and this length.
    fn begin(&self, header: &[u8], length: u64, stage: Option<Stage>) -> Result<(), Error> {
        let failed = |source| self.failed(source);
        let file = self.making.file().map_err(failed)?;
        // A target that is written directly contains nothing from an earlier run.
        if stage == Some(Stage::Begun) && !matches!(self.making, Making::Direct(_)) {
            let mut found = vec![0; header.len()];
            let read = file.read_exact_at(&mut found, 0);
            if read.is_err() || found != header || file.metadata().map_err(failed)?.len() != length {
                let found = format!("{}: not the file that the journal is of", part_of(&self.path).display());
                let allowed = "the file as the run left it; remove it and the journal to begin anew".into();
                return Err(Error::Argument { argument: "resume", found, allowed });
            }
            return Ok(());
        }
        step();
        file.write_all_at(header, 0).map_err(failed)?;
        if !matches!(self.making, Making::Direct(_)) {
            step();
            file.set_len(length).map_err(failed)?;
        }
        Ok(())
    }

    /// Copies a kept tensor to its location `piece` in the new file. In the file `old`, the tensor begins at byte `at`.
    fn keep(&self, old: &InputFile, at: u64, piece: &Piece) -> io::Result<()> {
        let mut to = self.making.file()?;
        to.seek(SeekFrom::Start(piece.start))?;
        safetensors::keep(old.reader(), at, piece.bytes, &mut to)
    }
}

impl Sink<Operand> for Outputs {
    fn write(&mut self, operand: Operand, offset: u64, from: &[u8]) -> io::Result<()> {
        let Some(place) = self.places[operand] else { return Ok(()) };
        let Some(target) = self.targets.get(place.target) else { return Ok(()) };
        let file = target.making.file()?;
        if !place.widens {
            return file.write_all_at(from, place.start + offset);
        }
        let mut at = place.start + 2 * offset;
        for from in from.chunks(PIECE / 2) {
            let to = &mut self.piece[..2 * from.len()];
            for (x, to) in from.as_chunks::<2>().0.iter().zip(to.as_chunks_mut::<4>().0) {
                *to = bf16::from_le_bytes(*x).to_f32().to_le_bytes();
            }
            file.write_all_at(to, at)?;
            at += to.len() as u64;
        }
        Ok(())
    }

    fn finished(&mut self, unit: usize) -> io::Result<()> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        // The outputs of a unit must survive a crash once the journal records the unit.
        for target in &self.targets {
            step();
            match target.making.file()?.sync_data() {
                Err(e) if !matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
                    return Err(e);
                }
                _ => {}
            }
        }
        journal.note(unit)
    }

    fn advanced(&mut self) {
        self.bar.inc(1);
        if let Some(left) = &mut self.parts_left {
            match left.checked_sub(1) {
                Some(fewer) if fewer > 0 => *left = fewer,
                _ => std::process::abort(),
            }
        }
    }
}
