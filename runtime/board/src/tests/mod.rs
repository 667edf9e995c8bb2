//! Tests on boards simulated by trees of files. Each misleading file is shown to mislead a program that trusts it.

mod gates;
mod traps;
mod tree;
mod watching;
