//! Builds, checks and deploys the folders that boards receive.

pub mod bad;
pub mod build;
pub mod check;
pub mod deploy;
pub mod library;
pub mod paths;
pub mod target;
