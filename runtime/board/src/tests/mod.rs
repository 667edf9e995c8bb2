//! Tests on boards that are simulated by trees of files. The tests also show that each misleading file misleads a
//! program that trusts it.

mod gates;
mod traps;
mod tree;
mod watching;
