//! Boards simulated by trees of files. Each trap is shown to mislead a program that does not know about it.

mod gates;
mod traps;
mod tree;
mod watching;
