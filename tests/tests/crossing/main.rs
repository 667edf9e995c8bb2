//! Tests that cross crates, in one program: what they share is compiled and linked once. Tests that count allocations
//! have a program of their own.

mod append;
mod bounds;
mod certificate;
mod certified;
mod chunks;
mod conformance;
mod cuda_conformance;
mod cuda_determinism;
mod cuda_faults;
mod cuda_fit;
mod cuda_lost;
mod cuda_masks;
mod cuda_sanitized;
mod cuda_scale;
mod cuda_states;
mod cuda_stream;
mod cuda_warm;
mod determinism;
mod drift;
mod error_growth;
mod extremes;
mod fallback;
mod hostile;
mod laws;
mod layout;
mod masks;
mod reference_oracle;
mod refusals;
mod scans;
mod schedule;
mod small_calls;
mod streamed;
mod ulp;
mod windows;
