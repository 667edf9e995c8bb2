//! Tests that span crates, built as one program, so that shared code is compiled and linked once. Tests that count
//! allocations are a separate program.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod append;
mod backward;
mod backward_tasks;
mod bounds;
mod cancel;
mod certificate;
mod certified;
mod chunks;
mod conformance;
mod cuda_barriers;
mod cuda_conformance;
mod cuda_determinism;
mod cuda_faults;
mod cuda_fit;
mod cuda_linear;

mod cuda_linear_long;
mod cuda_linear_marks;
mod cuda_linear_quadratic;
mod cuda_linear_readers;
mod cuda_lost;
mod cuda_masks;
mod cuda_sanitized;
mod cuda_scale;
mod cuda_schedules;
mod cuda_semantics;
mod cuda_series;
mod cuda_states;
mod cuda_stream;
mod cuda_tensor;
mod cuda_tuned;
mod cuda_warm;
mod decoding;
mod determinism;
mod drift;
mod empty_axes;
mod error_growth;
mod extremes;
mod fallback;
mod hostile;
mod laws;
mod layout;
mod linear;
mod linear_convolution;
mod linear_core;
mod linear_poison;
mod linear_recurrence;
mod linear_recurrence_range;
mod linear_selective;
mod linear_vim;
mod masks;
mod quorums;
mod reference_oracle;
mod refusals;
mod scans;
mod schedule;
mod schedules;
mod schedules_budget;
mod schedules_diagonal;
mod schedules_gate;
mod schedules_kernels;
mod schedules_shares;
mod schedules_unseen;
mod small_calls;
mod streamed;
mod tasks;
mod tuned_cpu;
mod windows;
mod workspaces;
