//! What every source of frames offers the loop.

use super::error::SourceError;
use crate::frame::{BrokenFrame, Frame};

/// What a source has when it is asked.
#[derive(Debug)]
pub enum Next<'a> {
    /// A frame.
    Frame(Frame<'a>),
    /// A frame that cannot be used.
    Broken(BrokenFrame),
    /// No frame yet.
    Nothing,
    /// No more frames will come.
    End,
}

/// A source of frames. [`Source::next`] never waits and, once frames flow, allocates nothing.
pub trait Source {
    /// The next frame, if it has come.
    ///
    /// # Errors
    /// A source that has failed for good.
    fn next(&mut self) -> Result<Next<'_>, SourceError>;

    /// Frames that were replaced by newer ones before the loop took them.
    fn replaced(&self) -> u64 {
        0
    }
}
