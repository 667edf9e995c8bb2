//! The C and C++ programs of `tests/capi`: where they are, and how they compile.

/// Their folder.
pub const SOURCES: &str = "tests/capi";
/// Flags under which they compile.
pub const WARNINGS: &str = "-Wall -Wextra -Wpedantic -Werror";
/// Libraries that a static link needs besides this one; the packages name the same.
pub const BESIDE: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";
