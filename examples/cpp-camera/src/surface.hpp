#pragma once

// Pictures of NvBufSurface, mapped by elsa/nvbufsurface.hpp: used where the camera or the decoder has written them.
// Without NVIDIA's headers, this header is empty. It has not run on a board yet.

#include <elsa.hpp>
#include <elsa/nvbufsurface.hpp>

#ifdef __has_include
#if __has_include(<nvbufsurface.h>) && __has_include(<cudaEGL.h>)

/// NVIDIA's headers are there.
#define CAMERA_SURFACES

#include "error.hpp"
#include "frame.hpp"

#include <cstdint>
#include <string>

namespace camera {

/// Returns the picture of a mapped surface: pixels of 3 or 4 bytes, or NV12 with the given standard, whose planes have
/// one pitch. Throws vision::Error.
inline Frame frame_of(const CUeglFrame &mapped, Standard standard) {
    const auto at = [&mapped](int plane) {
        return static_cast<Address>(reinterpret_cast<std::uintptr_t>(mapped.frame.pPitch[plane]));
    };
    const int width = static_cast<int>(mapped.width), height = static_cast<int>(mapped.height);
    const int pitch = static_cast<int>(mapped.pitch);
    const bool bytes = mapped.frameType == CU_EGL_FRAME_TYPE_PITCH && mapped.cuFormat == CU_AD_FORMAT_UNSIGNED_INT8;
    if (bytes && mapped.planeCount == 1 && (mapped.numChannels == 3 || mapped.numChannels == 4)) {
        return pixels(at(0), pitch, width, height, mapped.numChannels == 3 ? FORMAT_RGB : FORMAT_RGBA);
    }
    if (bytes && mapped.planeCount == 2) {
        return nv12(at(0), at(1), pitch, pitch, width, height, standard);
    }
    const std::string planes = std::to_string(mapped.planeCount), channels = std::to_string(mapped.numChannels);
    throw vision::refused("surface", planes + " planes of " + channels + " channels",
                          "bytes with a pitch: RGB, RGBA or NV12");
}

} // namespace camera

#endif
#endif
