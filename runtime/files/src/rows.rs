//! Reads the states of some rows of a task's file.

use crate::part::{Part, read_part};
use crate::task::{Description, array_header, misshapen};
use crate::{Accept, Buffer, Data, Fault, Format};
use elsa_core::quorum::Task;
use elsa_runtime::RowStates;
use std::io::{Read, Seek};
use std::ops::Range;

impl Description {
    /// Reads the states of the rows `rows` of `task`, `[batch, heads, rows]`, in the order of `rows`. Otherwise works like
    /// [`Description::states`]. Each call reads the file once more for its checksums.
    ///
    /// # Errors
    /// Returns the errors of [`Description::states`], and an error if the task does not have the rows.
    pub fn states_of_rows(
        &self,
        task: &Task,
        file: &mut (impl Read + Seek),
        length: u64,
        rows: &[Range<usize>],
    ) -> Result<RowStates, Fault> {
        let [batch, heads, .., dim] = self.whole.shape;
        let all = task.query_tokens();
        Ok(RowStates {
            m: array(file, length, "m", &[batch, heads, all], rows)?,
            s: array(file, length, "S", &[batch, heads, all], rows)?,
            w: array(file, length, "W", &[batch, heads, all, dim], rows)?,
        })
    }
}

/// Reads the rows `rows` of the f32 array `name`, whose shape must be `shape` and whose rows are along the third axis.
fn array(
    file: &mut (impl Read + Seek),
    length: u64,
    name: &str,
    shape: &[usize],
    rows: &[Range<usize>],
) -> Result<Vec<f32>, Fault> {
    array_header(file, length, name, shape)?;
    let part = |shape: &[usize]| Part::of(shape, &[None, None, Some(rows.to_vec())]);
    let contents = read_part(file, length, Format::Npz, Some(name), Accept::Float, &part)?;
    let mut wanted = shape.to_vec();
    if let Some(axis) = wanted.get_mut(2) {
        *axis = rows.iter().map(Range::len).sum();
    }
    match contents.data {
        Data::Float(Buffer::F32(data)) if contents.shape == wanted => Ok(data),
        _ => Err(misshapen(name, &contents.shape, &wanted)),
    }
}
