//! Folders for boards: built, checked and deployed.

pub mod bad;
pub mod build;
pub mod check;
pub mod deploy;
pub mod library;
pub mod paths;
pub mod target;
