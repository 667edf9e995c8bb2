//! Sources of frames.

mod camera;
mod error;
mod folder;
mod next;
mod pipe;
mod queue;

pub use camera::Camera;
pub use error::SourceError;
pub use folder::Folder;
pub use next::{Next, Source};
pub use pipe::Pipe;
pub use queue::Keep;
