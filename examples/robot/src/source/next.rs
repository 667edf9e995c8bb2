//! The interface between sources of frames and the loop.

use super::error::SourceError;
use crate::frame::{BrokenFrame, Frame};

/// Answer of a source to a request for a frame.
#[derive(Debug)]
pub enum Next<'a> {
    /// The next frame.
    Frame(Frame<'a>),
    /// An unusable frame.
    Broken(BrokenFrame),
    /// No frame has arrived yet.
    Nothing,
    /// No more frames will come.
    End,
}

/// A source of frames. [`Source::next`] never waits and, once frames flow, allocates nothing.
pub trait Source {
    /// Returns the next frame, if it has arrived.
    ///
    /// # Errors
    /// Returns an error if the source has failed permanently.
    fn next(&mut self) -> Result<Next<'_>, SourceError>;

    /// Returns the number of frames that were replaced by newer frames before the loop took them.
    fn replaced(&self) -> u64 {
        0
    }
}
