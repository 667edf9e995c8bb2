//! plan/mod (being written).
