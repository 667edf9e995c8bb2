//! Tests of the tool. They form a single program, so that their shared code is compiled and linked only once.

#![allow(clippy::unwrap_used)]

mod cli_all_tasks;
#[cfg(feature = "gradients")]
mod cli_backward;
#[cfg(feature = "gradients")]
mod cli_backward_tasks;
mod cli_bad_input;
mod cli_bench;
mod cli_budget;
mod cli_commit;
mod cli_exec;
mod cli_files;
mod cli_foreign;
mod cli_groups;
mod cli_inputs;
mod cli_linear;
mod cli_linear_bench;
mod cli_linear_series;
mod cli_linear_verify;
mod cli_listen;
mod cli_memory;
mod cli_onnx;
mod cli_orders;
mod cli_origin;
mod cli_resume;
mod cli_run;
mod cli_stream;
mod cli_tables;
mod cli_tasks;
mod cli_tensor_cores;
mod cli_traversal;
mod cli_tune;
mod cli_types;
mod cli_usage;
mod cli_verify;
mod cli_verify_bench;
mod cli_windows;
mod cli_words;
mod common;
