//! Scans over any monoid.
