//! Source of a streamed run, which reads ranges of tensors from files.

use crate::error::{Error, dashed, say};
use crate::job::Job;
use elsa_core::attention::{Operand, Operands, mask};
use elsa_files::{MemoryError, Prepared, Stored, temporary::folder};
use elsa_runtime::Source;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Maximum number of bytes of a file that are converted at a time.
const PIECE: usize = 64 << 10;

/// A tensor in a file.
#[derive(Clone, Copy, Debug)]
struct StoredTensor<'a> {
    file: &'a File,
    /// Offset of the tensor's elements in the file.
    start: u64,
    stored: Stored,
}

/// The tensors of a job, which are still in their files. Reads convert the elements: f64 is rounded to f32, i32 indices
/// are widened to i64, and integers of a mask become booleans.
#[derive(Debug)]
pub struct Files<'a> {
    tensors: Operands<Option<StoredTensor<'a>>>,
    piece: Vec<u8>,
    /// Total unpacked size of the compressed archive members, in bytes. These members are unpacked into temporary
    /// files.
    pub unpacked: u64,
}

impl<'a> Files<'a> {
    /// Opens the tensors of `job`. Deflated members of archives are unpacked into nameless files. These files are in
    /// the folder of the first output that is a regular file. If no output is a regular file, they are in the folder of
    /// the archive.
    ///
    /// # Errors
    /// Returns an error if a member is damaged or cannot be unpacked, or if the system refuses memory.
    pub fn of(job: &'a Job, outputs: &[Prepared]) -> Result<Files<'a>, Error> {
        let beside = outputs.iter().find(|file| file.direct.is_none()).map(|file| folder(&file.path));
        let mut piece = Vec::new();
        piece.try_reserve_exact(PIECE).map_err(|_| MemoryError { argument: "host-budget", bytes: PIECE })?;
        piece.resize(PIECE, 0);
        let (mut unpacked, mut seen) = (0, Vec::new());
        let tensors = Operands::try_from_fn(|operand| -> Result<_, Error> {
            let Some(tensor) = job.tensor(operand) else { return Ok(None) };
            let folder = beside.unwrap_or_else(|| folder(tensor.path()));
            let Some((file, start)) = tensor.in_file(folder, &mut |text| say(&dashed(&text)))? else {
                return Ok(None);
            };
            // Operands that share a tensor open it once.
            if !seen.iter().any(|other| std::ptr::eq(*other, tensor)) {
                seen.push(tensor);
                unpacked += tensor.unpacked_bytes();
            }
            Ok(Some(StoredTensor { file, start, stored: tensor.dtype() }))
        })?;
        Ok(Files { tensors, piece, unpacked })
    }
}

impl Source<Operand> for Files<'_> {
    fn read(&mut self, operand: Operand, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let StoredTensor { file, start, stored } = self.tensors[operand].ok_or(io::ErrorKind::NotFound)?;
        match stored {
            Stored::F64 if matches!(operand, Operand::Mask | Operand::Bias) => {
                converted(file, start + 2 * offset, to, &mut self.piece, |x: [u8; 8]| {
                    mask::rounded(f64::from_le_bytes(x)).to_le_bytes()
                })
            }
            Stored::I64 if operand == Operand::Mask => {
                converted(file, start + 8 * offset, to, &mut self.piece, |x: [u8; 8]| {
                    [mask::attended(i64::from_le_bytes(x))]
                })
            }
            Stored::I32 if operand == Operand::Mask => {
                converted(file, start + 4 * offset, to, &mut self.piece, |x: [u8; 4]| {
                    [mask::attended(i32::from_le_bytes(x).into())]
                })
            }
            Stored::F64 => converted(file, start + 2 * offset, to, &mut self.piece, |x: [u8; 8]| {
                (f64::from_le_bytes(x) as f32).to_le_bytes()
            }),
            Stored::I32 => converted(file, start + offset / 2, to, &mut self.piece, |x: [u8; 4]| {
                i64::from(i32::from_le_bytes(x)).to_le_bytes()
            }),
            _ => file.read_exact_at(to, start + offset),
        }
    }
}

/// Reads elements of `A` bytes each from a file, starting at byte `at`, and converts each element to `B` bytes in `to`.
fn converted<const A: usize, const B: usize>(
    file: &File,
    mut at: u64,
    to: &mut [u8],
    piece: &mut [u8],
    convert: impl Fn([u8; A]) -> [u8; B],
) -> io::Result<()> {
    let most = piece.len() / A;
    for to in to.chunks_mut(most * B) {
        let from = &mut piece[..to.len() / B * A];
        file.read_exact_at(from, at)?;
        at += from.len() as u64;
        for (from, to) in from.as_chunks::<A>().0.iter().zip(to.as_chunks_mut::<B>().0) {
            *to = convert(*from);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn elements_are_converted_piece_by_piece() {
        let mut file = tempfile::tempfile().unwrap();
        let numbers: Vec<f64> = (0..1000).map(|i| f64::from(i) / 3.0).collect();
        file.write_all(&[9; 5]).unwrap();
        numbers.iter().for_each(|x| file.write_all(&x.to_le_bytes()).unwrap());
        let mut to = vec![0; 4 * 900];
        let round = |x: [u8; 8]| (f64::from_le_bytes(x) as f32).to_le_bytes();
        converted(&file, 5 + 8 * 50, &mut to, &mut [0; 70], round).unwrap();
        let want: Vec<u8> = numbers[50..950].iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
        assert_eq!(to, want);
        let end = converted(&file, 5 + 8 * 101, &mut to, &mut [0; 70], round).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }
}
