//! Writes the merged rows of each window to `.npy` files, which replace their targets once they are complete.

use super::error::MergeError;
use super::members::{Member, check_run, reserved, sums, tree};
use super::windows::{Budget, Rows, Window, shape, windows};
use crate::outlet::Reads;
use crate::output::{Prepared, Writer};
use crate::task::{Kind, Whole};
use crate::temporary::replace_all;
use crate::{FileError, Format, MemoryError, Stored, TensorPath, npy};
use elsa_core::dtype::DType;
use elsa_core::view::Layout;
use half::bf16;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Number of bytes that are converted at once.
const PIECE: usize = 64 << 10;

/// The requested outputs of a merge.
#[derive(Clone, Debug)]
pub struct Sought<'a> {
    /// Order of axes of the output.
    pub layout: Layout,
    /// The `.npy` file of the output, for the argument `out`. bf16 is written as f32.
    pub out: Option<&'a Path>,
    /// The `.npy` file of the log-sum-exp, f32 `[batch, heads, queries]`, for the argument `lse`.
    pub lse: Option<&'a Path>,
}

/// Result of a merge whose outputs have been written.
pub struct Merged {
    /// The complete problem.
    pub whole: Whole,
    /// Number of parts of the queries that were merged one after another.
    pub windows: usize,
    /// Number of bytes of states that were read.
    pub bytes: usize,
}

/// Files of a merged answer. They are written window by window.
pub struct Answer {
    layout: Layout,
    out: Option<Npy>,
    lse: Option<Npy>,
    piece: Vec<u8>,
}

/// A `.npy` file whose elements are written in any order.
struct Npy {
    file: Prepared,
    /// Byte offset of the elements in the file.
    start: u64,
    /// `true` if bf16 elements are widened to f32.
    widens: bool,
}

impl Answer {
    /// Merges the states in the files `paths` and writes the outputs `sought` within `budget`. `argument` is the caller's
    /// argument that lists the files. `run` is an argument of the caller, and the name that the files must have if there is
    /// one.
    ///
    /// # Errors
    /// Returns an error if the files are not those of all tasks of one problem and one run, if they hold other content than
    /// states, and the errors of [`windows`] and of writing the outputs. All regular targets are then unchanged, unless the
    /// error is a failed rename.
    pub fn merge(
        argument: &'static str,
        paths: &[PathBuf],
        (run_argument, run): (&'static str, Option<&str>),
        sought: &Sought<'_>,
        budget: Budget,
    ) -> Result<Merged, MergeError> {
        let mut members = reserved(argument, paths.len())?;
        for path in paths {
            members.push(Member::open(argument, path)?);
        }
        let (kind, whole) = tree(&mut members)?;
        if kind != Kind::States {
            return Err(MergeError::Content { argument, found: kind, allowed: Kind::States });
        }
        if let Some(run) = run {
            check_run(run_argument, run, &whole)?;
        }
        drop(sums(&members, kind, &whole)?);
        let mut reads = Reads::new(false);
        paths.iter().for_each(|path| reads.keep(argument, path));
        let mut parts = 0;
        let begin = |count| {
            parts = count;
            Answer::new(sought, &whole, reads)
        };
        let (totals, answer) = windows(&members, &whole, budget, begin, Answer::write)?;
        answer.commit()?;
        Ok(Merged { windows: parts, bytes: totals.bytes, whole })
    }

    /// Creates the temporary files of the outputs, for a merge that reads `reads`.
    ///
    /// # Errors
    /// Returns an error if a path is not writable, has another extension than `.npy`, or leads
    /// to an input or to the other output, if the file system fails, or if the system refuses memory.
    fn new(sought: &Sought<'_>, whole: &Whole, reads: Reads) -> Result<Answer, MergeError> {
        let mut writer = Writer::new(reads);
        for (argument, path) in [("out", sought.out), ("lse", sought.lse)] {
            let Some(path) = path else { continue };
            let target = TensorPath { path: path.to_path_buf(), format: Format::Npy, name: None };
            writer.add(argument, &target).map_err(|e| match e {
                FileError::Extension { argument, found, .. } => {
                    FileError::Extension { argument, found, allowed: "path.npy" }
                }
                e => e,
            })?;
        }
        let mut files = writer.prepared().into_iter();
        let [batch, heads, _, queries, _, _, dim] = whole.shape;
        let mut npy = |given: bool, dtype, shape: Vec<usize>| {
            let file = given.then(|| files.next()).flatten();
            file.map(|file| Npy::begin(file, dtype, &shape)).transpose()
        };
        let out = shape(sought.layout, [batch, heads, queries, dim]);
        let out = npy(sought.out.is_some(), whole.dtype(), out)?;
        let lse = npy(sought.lse.is_some(), DType::F32, vec![batch, heads, queries])?;
        let bytes = if out.as_ref().is_some_and(|out| out.widens) { PIECE } else { 0 };
        let mut piece = crate::reserved(bytes).map_err(|bytes| MemoryError { argument: "out", bytes })?;
        piece.resize(bytes, 0);
        Ok(Answer { layout: sought.layout, out, lse, piece })
    }

    /// Writes the rows of a window.
    ///
    /// # Errors
    /// Returns an error if the file system fails, or if the system refuses memory.
    fn write(&mut self, window: &Window<'_>) -> Result<(), MergeError> {
        if let Some(out) = &self.out {
            out.write(&window.output(self.layout)?, &mut self.piece)?;
        }
        if let Some(lse) = &self.lse {
            lse.write(&window.log_sum_exp(lse.file.argument)?, &mut self.piece)?;
        }
        Ok(())
    }

    /// Replaces the targets by the complete files.
    ///
    /// # Errors
    /// Returns an error if the file system fails. No target has then changed, unless the error is a failed rename.
    fn commit(self) -> Result<(), MergeError> {
        let (mut files, mut names) = (Vec::new(), Vec::new());
        for npy in [self.out, self.lse].into_iter().flatten() {
            if let Some(temporary) = npy.file.temporary {
                temporary.fill(|_| Ok(())).map_err(|source| FileError::Write {
                    argument: npy.file.argument,
                    path: npy.file.path.clone(),
                    source,
                })?;
                files.push(temporary);
                names.push((npy.file.argument, npy.file.path));
            }
        }
        Ok(replace_all(files, &names)?)
    }
}

impl Npy {
    /// Writes the header of a tensor with shape `shape`, and extends the file to its length.
    fn begin(file: Prepared, dtype: DType, shape: &[usize]) -> Result<Npy, MergeError> {
        // The .npy format has no bf16; f32 represents it exactly.
        let widens = dtype == DType::Bf16;
        let stored: Stored = if widens { Stored::F32 } else { dtype.into() };
        let mut header = Vec::new();
        let written = npy::write_header(&mut header, stored, shape).and_then(|()| {
            let to = opened(&file)?;
            to.write_all_at(&header, 0)?;
            match file.direct {
                Some(_) => Ok(()),
                None => to.set_len((header.len() + shape.iter().product::<usize>() * stored.size()) as u64),
            }
        });
        let npy = Npy { file, start: header.len() as u64, widens };
        written.map_err(|source| npy.failed(source))?;
        Ok(npy)
    }

    fn write(&self, rows: &Rows, piece: &mut [u8]) -> Result<(), MergeError> {
        let written = opened(&self.file).and_then(|to| {
            rows.pieces().try_for_each(|(offset, bytes)| match self.widens {
                true => widened(to, self.start + 2 * offset, bytes, piece),
                false => to.write_all_at(bytes, self.start + offset),
            })
        });
        written.map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> MergeError {
        FileError::Write { argument: self.file.argument, path: self.file.path.clone(), source }.into()
    }
}

fn opened(file: &Prepared) -> io::Result<&File> {
    let temporary = file.temporary.as_ref().and_then(|temporary| temporary.get());
    temporary.or(file.direct.as_ref()).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Writes bf16 elements as f32, starting at byte `at`. `piece` is room for the converted elements.
fn widened(to: &File, mut at: u64, from: &[u8], piece: &mut [u8]) -> io::Result<()> {
    for from in from.chunks(PIECE / 2) {
        let wide = &mut piece[..2 * from.len()];
        for (x, wide) in from.as_chunks::<2>().0.iter().zip(wide.as_chunks_mut::<4>().0) {
            *wide = bf16::from_le_bytes(*x).to_f32().to_le_bytes();
        }
        to.write_all_at(wide, at)?;
        at += wide.len() as u64;
    }
    Ok(())
}
