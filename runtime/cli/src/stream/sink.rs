//! Outputs that leave part by part: files beside their targets, which take their places when all are complete.

use super::journal::Journal;
use crate::error::Error;
use crate::temporary::{self, Temporary};
use crate::tensor::output::{Prepared, folder, sync};
use crate::tensor::{Format, Stored, npy};
use elsa_core::attention::{Operand, Operands};
use elsa_core::dtype::DType;
use elsa_runtime::Sink;
use half::bf16;
use indicatif::ProgressBar;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that are converted at once.
const PIECE: usize = 64 << 10;

/// The arrays of an archive of states.
const STATES: [(Operand, &str); 3] =
    [(Operand::StateReference, "m"), (Operand::StateSum, "S"), (Operand::StateWeighted, "W")];

/// A file in the making.
#[derive(Debug)]
enum Making {
    /// It goes when the process does.
    Temporary(Temporary),
    /// It stays for a run that goes on.
    Partial(PathBuf, File),
    /// The target itself.
    Direct(File),
}

impl Making {
    fn file(&self) -> io::Result<&File> {
        match self {
            Making::Temporary(temporary) => temporary.get().ok_or_else(|| io::ErrorKind::NotFound.into()),
            Making::Partial(_, file) | Making::Direct(file) => Ok(file),
        }
    }
}

/// Where the elements of an output go.
#[derive(Debug)]
struct Place {
    argument: &'static str,
    /// The target, as the user named it.
    target: PathBuf,
    making: Making,
    /// Where its elements start.
    start: u64,
    /// Whether bf16 becomes f32.
    widens: bool,
}

/// The outputs of a run.
#[derive(Debug)]
pub struct Outputs {
    places: Operands<Option<Place>>,
    /// The archive of the states, which is made of their files at the end, and the target itself if that is no regular
    /// file.
    archive: Option<(PathBuf, Option<File>)>,
    journal: Option<Journal>,
    bar: ProgressBar,
    piece: Vec<u8>,
    /// Parts until the process ends itself, for tests.
    parts_left: Option<u64>,
}

/// The name of a file beside `target`.
fn beside(target: &Path, name: &str) -> PathBuf {
    let mut path = target.as_os_str().to_owned();
    path.push(name);
    path.into()
}

/// Where the journal of a run with the output `target` is.
#[must_use]
pub fn journal_of(target: &Path) -> PathBuf {
    beside(target, ".elsa-journal")
}

/// What an output holds: operand, element type and sizes of its axes.
pub type Shape = (Operand, DType, Vec<usize>);

impl Outputs {
    /// Makes the files of `shapes` from those that were prepared, in the same order: one for each tensor, and a last one for
    /// the states. `resumes` says whether they stay after a kill, and whether they are there already.
    ///
    /// # Errors
    /// What the file system reports; memory that the system refuses.
    pub fn new(prepared: Vec<Prepared>, shapes: &[Shape], resumes: Option<bool>) -> Result<Outputs, Error> {
        let mut places = Operands::from_fn(|_| None);
        let mut archive = None;
        let mut shapes = shapes.iter();
        for file in prepared {
            let Prepared { argument, path, temporary, direct, format } = file;
            let parts: Vec<&Shape> = match format {
                Format::Npz => shapes.by_ref().collect(),
                _ => shapes.by_ref().take(1).collect(),
            };
            if format == Format::Npz {
                let folder = folder(&path).to_path_buf();
                for (operand, dtype, shape) in parts {
                    let name = STATES.iter().find(|(state, _)| state == operand).map_or("", |(_, name)| name);
                    let own = beside(&path, &format!(".{name}"));
                    let making = making(argument, &own, resumes, || Temporary::new(&folder, None))?;
                    places[*operand] = Some(place(argument, &path, making, *dtype, shape, resumes)?);
                }
                // Until then nothing but those files is there.
                drop(temporary);
                archive = Some((path, direct));
                continue;
            }
            let Some((operand, dtype, shape)) = parts.first() else { continue };
            let making = match (temporary, direct) {
                (_, Some(file)) => Making::Direct(file),
                (Some(temporary), None) => making(argument, &path, resumes, || Ok(temporary))?,
                (None, None) => continue,
            };
            places[*operand] = Some(place(argument, &path, making, *dtype, shape, resumes)?);
        }
        let mut piece = Vec::new();
        piece.try_reserve_exact(PIECE).map_err(|_| Error::Memory { argument: "out", bytes: PIECE })?;
        piece.resize(PIECE, 0);
        let parts_left = std::env::var("ELSA_TEST_ABORT_AFTER").ok().filter(|_| cfg!(debug_assertions));
        let parts_left = parts_left.and_then(|text| text.parse().ok());
        Ok(Outputs { places, archive, journal: None, bar: ProgressBar::hidden(), piece, parts_left })
    }

    /// Takes notes in `journal`.
    pub fn note_in(&mut self, journal: Journal) {
        self.journal = Some(journal);
    }

    /// Shows progress.
    pub fn show(&mut self, bar: ProgressBar) {
        self.bar = bar;
    }

    /// The flag and the target of an output.
    #[must_use]
    pub fn target(&self, operand: Operand) -> (&'static str, PathBuf) {
        let place = self.places[operand].as_ref();
        place.map_or(("out", PathBuf::new()), |place| (place.argument, place.target.clone()))
    }

    /// Puts every file in its place, and removes the journal.
    ///
    /// # Errors
    /// What the file system reports. Unless a rename fails, no target has changed.
    pub fn commit(mut self) -> Result<(), Error> {
        self.bar.finish_and_clear();
        let (mut renames, mut partial) = (Vec::new(), Vec::new());
        let mut folders = BTreeSet::new();
        let archived = self.archive.is_some();
        let mut names = Vec::new();
        // It was allocated before the run, after which no memory should be refused.
        let mut piece = std::mem::take(&mut self.piece);
        if let Some((path, direct)) = self.archive.take() {
            let made = match direct {
                Some(file) => self.write_archive(&file, &mut piece).map(|()| None),
                None => Temporary::new(folder(&path), path.metadata().ok().as_ref()).and_then(|temporary| {
                    temporary.fill(|file| self.write_archive(file, &mut piece))?;
                    Ok(Some(temporary))
                }),
            };
            let made =
                made.map_err(|source| Error::Write { argument: "state-out", path: path.clone(), source })?;
            if let Some(temporary) = made {
                folders.insert(folder(&path).to_path_buf());
                renames.push(temporary);
                names.push(("state-out", path));
            }
        }
        for operand in Operand::ALL {
            let Some(place) = self.places[operand].take() else { continue };
            let failed =
                |source| Error::Write { argument: place.argument, path: place.target.clone(), source };
            if operand.is_state() && archived {
                // It is in the archive.
                if let Making::Partial(path, _) = place.making {
                    partial.push((path, None));
                }
                continue;
            }
            synced(place.making.file().map_err(failed)?).map_err(failed)?;
            folders.insert(folder(&place.target).to_path_buf());
            match place.making {
                Making::Temporary(temporary) => {
                    names.push((place.argument, place.target));
                    renames.push(temporary);
                }
                Making::Partial(path, _) => partial.push((path, Some((place.argument, place.target)))),
                Making::Direct(_) => {}
            }
        }
        let paths = names.iter().map(|(_, path)| path.as_path());
        temporary::replace(renames.into_iter().zip(paths)).map_err(|(at, source)| {
            let (argument, path) = names[at].clone();
            Error::Write { argument, path, source }
        })?;
        for (path, target) in partial {
            let done = match &target {
                Some((_, target)) => std::fs::rename(&path, target),
                None => std::fs::remove_file(&path),
            };
            let (argument, named) = target.unwrap_or(("state-out", path));
            done.map_err(|source| Error::Write { argument, path: named, source })?;
        }
        let journal = self.journal.take();
        for folder in folders {
            sync(&folder).map_err(|source| Error::Write { argument: "out", path: folder.clone(), source })?;
        }
        if let Some(journal) = journal
            && let Err(e) = journal.remove()
        {
            log::warn!("the journal cannot be removed: {e}");
        }
        Ok(())
    }

    /// Writes the archive from the files of its arrays, a piece at a time.
    fn write_archive(&self, file: &File, piece: &mut [u8]) -> io::Result<()> {
        let mut zip = zip::ZipWriter::new_stream(BufWriter::new(file));
        for (operand, name) in STATES {
            let Some(place) = &self.places[operand] else { continue };
            let array = place.making.file()?;
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

/// Waits until a file is on the device, where it is on one.
fn synced(file: &File) -> io::Result<()> {
    match file.sync_all() {
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        done => done,
    }
}

/// The file in which an output is made.
fn making(
    argument: &'static str,
    target: &Path,
    resumes: Option<bool>,
    temporary: impl FnOnce() -> io::Result<Temporary>,
) -> Result<Making, Error> {
    let path = beside(target, ".elsa-part");
    let refuse = |e: io::Error| Error::Target { argument, path: path.clone(), reason: e.to_string() };
    match resumes {
        None => temporary().map(Making::Temporary).map_err(refuse),
        Some(there) => {
            let mut options = File::options();
            options.read(true).write(true).create(!there).truncate(!there);
            let file = options.open(&path).map_err(refuse)?;
            Ok(Making::Partial(path, file))
        }
    }
}

/// Where the elements of an output go, behind a header that is written here unless it is there.
fn place(
    argument: &'static str,
    target: &Path,
    making: Making,
    dtype: DType,
    shape: &[usize],
    resumes: Option<bool>,
) -> Result<Place, Error> {
    let failed = |source| Error::Write { argument, path: target.to_path_buf(), source };
    // The format has no bf16. f32 holds it exactly.
    let widens = dtype == DType::Bf16;
    let stored: Stored = if widens { Stored::F32 } else { dtype.into() };
    let mut header = Vec::new();
    npy::write_header(&mut header, stored, shape).map_err(failed)?;
    let file = making.file().map_err(failed)?;
    let length = header.len() as u64 + (shape.iter().product::<usize>() * stored.size()) as u64;
    if resumes == Some(true) {
        let mut found = vec![0; header.len()];
        let read = file.read_exact_at(&mut found, 0);
        if read.is_err() || found != header || file.metadata().map_err(failed)?.len() != length {
            let path = beside(target, ".elsa-part");
            let found = format!("{}: not the file that the journal is of", path.display());
            let allowed = "the file as the run left it; remove it and the journal to begin anew".into();
            return Err(Error::Argument { argument: "resume", found, allowed });
        }
    } else {
        file.write_all_at(&header, 0).map_err(failed)?;
        if !matches!(making, Making::Direct(_)) {
            file.set_len(length).map_err(failed)?;
        }
    }
    Ok(Place { argument, target: target.to_path_buf(), start: header.len() as u64, widens, making })
}

impl Sink for Outputs {
    fn write(&mut self, operand: Operand, offset: u64, from: &[u8]) -> io::Result<()> {
        let Some(place) = &self.places[operand] else { return Ok(()) };
        let file = place.making.file()?;
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
        // What is noted must be there after a crash.
        for (_, place) in self.places.iter() {
            if let Some(place) = place {
                match place.making.file()?.sync_data() {
                    Err(e)
                        if !matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) =>
                    {
                        return Err(e);
                    }
                    _ => {}
                }
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
