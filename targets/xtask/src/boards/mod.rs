//! Folders for boards: built, checked and deployed.

pub mod bad;
pub mod build;
pub mod check;
pub mod deploy;
pub mod target;
