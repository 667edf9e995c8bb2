//! attention (being written).
