//! The C and C++ programs of `tests/capi`: their folder, and the flags for compiling them.

/// Folder of the programs.
pub const SOURCES: &str = "tests/capi";
/// Folder with declarations in place of other libraries' headers, which the adaptors of `elsa.hpp` include.
pub const FOREIGN: &str = "tests/capi/foreign";
/// Compiler flags for the programs.
pub const WARNINGS: &str = "-Wall -Wextra -Wpedantic -Werror";
/// System libraries that a program linked with the static library needs. The CMake and pkg-config packages list the
/// same libraries.
pub const BESIDE: &str = "-lutil -lrt -lpthread -lm -ldl";
