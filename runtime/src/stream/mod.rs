//! Work that is larger than memory, passed through two buffers: what is needed next is read while what is there is
//! computed.

mod prefetch;
mod source;

pub use prefetch::{PrefetchError, Times, prefetch};
pub use source::{Sink, Source};
