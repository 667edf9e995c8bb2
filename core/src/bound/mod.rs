//! bound/mod (being written).
