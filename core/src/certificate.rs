//! certificate (being written).
