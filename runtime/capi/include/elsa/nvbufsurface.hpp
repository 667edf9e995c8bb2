// elsa: NvBufSurface of a camera or a decoder, mapped for CUDA through an EGLImage, without a copy. Without the headers
// nvbufsurface.h and cudaEGL.h, this header is empty. The functions of EGL have not been tested on a board yet.
#ifndef ELSA_NVBUFSURFACE_HPP
#define ELSA_NVBUFSURFACE_HPP

#ifdef __has_include
#if __has_include(<nvbufsurface.h>) && __has_include(<cudaEGL.h>)

#include "strided.hpp"

#include <cudaEGL.h>
#include <nvbufsurface.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace elsa {
inline namespace ELSA_NAMESPACE {

// Surface that CUDA can use. Its end unregisters the surface, so every run on its memory must be complete before.
class nvbuf_frame {
public:
    nvbuf_frame() = default;
    nvbuf_frame(nvbuf_frame &&other) noexcept { *this = std::move(other); }
    nvbuf_frame &operator=(nvbuf_frame &&other) noexcept {
        std::swap(surface_, other.surface_);
        std::swap(index_, other.index_);
        std::swap(resource_, other.resource_);
        std::swap(frame_, other.frame_);
        return *this;
    }
    ~nvbuf_frame() {
        if (resource_ != nullptr) {
            cuGraphicsUnregisterResource(resource_);
        }
        if (surface_ != nullptr) {
            NvBufSurfaceUnMapEglImage(surface_, index_);
        }
    }

    // Maps the surface `index` of a batch. The engine's CUDA context must be current. The surface must have the memory
    // NVBUF_MEM_SURFACE_ARRAY and the layout NVBUF_LAYOUT_PITCH, and outlive the frame.
    static result<nvbuf_frame> map(const char *argument, NvBufSurface &surface, std::uint32_t index = 0) {
        nvbuf_frame made;
        if (index >= surface.batchSize) {
            return detail::refused(argument, "surface " + std::to_string(index) + "; allowed: below " +
                                                 std::to_string(surface.batchSize));
        }
        if (NvBufSurfaceMapEglImage(&surface, static_cast<int>(index)) != 0) {
            return status(ELSA_STATUS_DEVICE, std::string(argument) + ": NvBufSurfaceMapEglImage failed");
        }
        made.surface_ = &surface;
        made.index_ = static_cast<int>(index);
        CUresult code = cuGraphicsEGLRegisterImage(&made.resource_, surface.surfaceList[index].mappedAddr.eglImage, 0);
        if (code != CUDA_SUCCESS) {
            made.resource_ = nullptr;
            return failed(argument, "cuGraphicsEGLRegisterImage", code);
        }
        code = cuGraphicsResourceGetMappedEglFrame(&made.frame_, made.resource_, 0, 0);
        if (code != CUDA_SUCCESS) {
            return failed(argument, "cuGraphicsResourceGetMappedEglFrame", code);
        }
        if (made.frame_.frameType != CU_EGL_FRAME_TYPE_PITCH) {
            return detail::refused(argument, "a frame of arrays; allowed: a surface with NVBUF_LAYOUT_PITCH");
        }
        return result<nvbuf_frame>(std::move(made));
    }

    // Addresses of all planes, pitch and format, for a kernel that makes tensors of the picture.
    const CUeglFrame &frame() const noexcept { return frame_; }

    // Returns the first plane as a tensor: its rows are tokens, and its bytes are elements of type T.
    template <class T>
    result<strided<T>> tensor(const char *argument, std::size_t heads = 1) const {
        const CUarray_format format = frame_.cuFormat;
        const std::size_t bytes = format == CU_AD_FORMAT_FLOAT ? 4 : format == CU_AD_FORMAT_HALF ? 2 : 1;
        if (bytes == 1 && format != CU_AD_FORMAT_UNSIGNED_INT8) {
            return detail::refused(argument, "format " + std::to_string(static_cast<int>(format)) +
                                                 "; allowed: CU_AD_FORMAT_UNSIGNED_INT8, _HALF or _FLOAT");
        }
        return detail::rows_of<T>(argument, frame_.frame.pPitch[0], frame_.height,
                                  bytes * frame_.width * frame_.numChannels, frame_.pitch, heads, 1);
    }

private:
    static status failed(const char *argument, const char *call, CUresult code) {
        return status(ELSA_STATUS_DEVICE,
                      std::string(argument) + ": " + call + " returned " + std::to_string(static_cast<int>(code)));
    }

    NvBufSurface *surface_ = nullptr;
    int index_ = 0;
    CUgraphicsResource resource_ = nullptr;
    CUeglFrame frame_ = CUeglFrame();
};

} // inline namespace
} // namespace elsa

#endif
#endif
#endif
