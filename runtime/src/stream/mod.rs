//! Streams work that is larger than memory through two buffers: the next part is read while the current one is
//! computed.

mod excerpt;
mod prefetch;
mod source;

pub use excerpt::Excerpt;
pub use prefetch::{Times, prefetch};
pub use source::{PieceError, RowSink, RowSource, Sink, Source};
