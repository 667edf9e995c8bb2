//! Streams work that is larger than memory through two buffers: while one part is computed, the next one is read.

mod excerpt;
mod prefetch;
mod source;

pub use excerpt::Excerpt;
pub use prefetch::{Times, prefetch};
pub use source::{PieceError, RowSink, RowSource, Sink, Source};
