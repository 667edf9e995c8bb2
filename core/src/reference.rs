//! reference (being written).
