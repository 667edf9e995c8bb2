//! Builds and checks the folders that boards receive, and runs them there.

pub mod bad;
pub mod build;
pub mod check;
pub mod day;
pub mod library;
pub mod link;
pub mod outputs;
pub mod paths;
pub mod slice;
pub mod target;
