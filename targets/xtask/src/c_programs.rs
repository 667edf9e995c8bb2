//! The C and C++ programs of `tests/capi`: their folder, and the flags for compiling them.

/// Folder of the programs.
pub const SOURCES: &str = "tests/capi";
/// Compiler flags for the programs.
pub const WARNINGS: &str = "-Wall -Wextra -Wpedantic -Werror";
/// System libraries that a program linked with the static library needs. The CMake and pkg-config packages list the
/// same libraries.
pub const BESIDE: &str = "-lutil -lrt -lpthread -lm -ldl";
