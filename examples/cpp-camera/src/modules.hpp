#pragma once

namespace camera {
namespace modules {

/// PTX of the kernels, which CMake puts into the program.
extern const char prepare[], normalise[], map[];

} // namespace modules
} // namespace camera
