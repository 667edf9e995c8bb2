//! Streams data that are larger than memory through two buffers: while one part of the data is computed, the next part
//! is read.

mod excerpt;
mod prefetch;
mod source;

pub use excerpt::Excerpt;
pub use prefetch::{Times, prefetch};
pub use source::{PieceError, RowSink, RowSource, Sink, Source};
