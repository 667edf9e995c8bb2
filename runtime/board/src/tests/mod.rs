//! Boards that are trees of files. Each trap is shown to change what a program finds that does not know of it.

mod gates;
mod traps;
mod tree;
mod watching;
