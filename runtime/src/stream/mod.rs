//! Work that is larger than memory, passed through two buffers: what is needed next is read while what is there is
//! computed.

mod excerpt;
mod prefetch;
mod source;

pub use excerpt::Excerpt;
pub use prefetch::{PrefetchError, Times, prefetch};
pub use source::{PieceError, RowSink, RowSource, Sink, Source};
