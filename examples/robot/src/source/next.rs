//! What every source of frames offers the loop.

use super::error::SourceError;
use crate::frame::{BrokenFrame, Frame};

/// What a source has at a moment.
#[derive(Debug)]
pub enum Next<'a> {
    /// A frame.
    Frame(Frame<'a>),
    /// A frame that cannot be used.
    Broken(BrokenFrame),
    /// Nothing yet.
    Nothing,
    /// No more frames will come.
    End,
}

/// A source of frames. Asking it never waits and, once frames flow, allocates nothing.
pub trait Source {
    /// What there is now.
    ///
    /// # Errors
    /// A source that has failed for good.
    fn next(&mut self) -> Result<Next<'_>, SourceError>;

    /// Frames that came and were replaced by newer ones before the loop asked.
    fn replaced(&self) -> u64 {
        0
    }
}
