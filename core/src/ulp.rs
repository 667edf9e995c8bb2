//! ulp (being written).
