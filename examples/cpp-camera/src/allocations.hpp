#pragma once

#include <cstdint>

namespace camera {

/// Returns the number of calls of operator new in all threads of the program.
std::uint64_t allocated() noexcept;

} // namespace camera
