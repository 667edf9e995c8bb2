// elsa: tensors of DLPack in memory of a GPU, used in place. Without DLPack's header (version 0.5 or later), this
// header is empty.
#ifndef ELSA_DLPACK_HPP
#define ELSA_DLPACK_HPP

#ifdef __has_include
#if __has_include(<dlpack/dlpack.h>)

#include "strided.hpp"

#include <dlpack/dlpack.h>

#include <string>

namespace elsa {
inline namespace ELSA_NAMESPACE {

// Returns the tensor, whose 2 to 4 axes are the last axes of layout: ELSA_LAYOUT_BHND or ELSA_LAYOUT_BNHD. Two axes are
// tokens and elements of a head. The last axis must be dense; the other axes may have any stride. The memory must be of
// CUDA: on the device, managed, or page-locked on the host. `argument` is the name of the tensor in errors.
template <class T>
result<strided<T>> from_dlpack(const char *argument, const DLTensor &tensor, elsa_layout layout = ELSA_LAYOUT_BHND) {
    // kDLCUDA, kDLCUDAHost and kDLCUDAManaged; older versions lack the last name.
    const int device = static_cast<int>(tensor.device.device_type);
    if (device != 2 && device != 3 && device != 13) {
        return detail::refused(argument, "device type " + std::to_string(device) +
                                             "; allowed: 2, 3 or 13, memory of CUDA; pass other memory by its pointer");
    }
    // kDLFloat and kDLBfloat.
    const bool is_bf16 = element<T>::dtype == ELSA_DTYPE_BF16;
    const int code = is_bf16 ? 4 : 2, bits = static_cast<int>(8 * sizeof(T));
    if (tensor.dtype.code != code || tensor.dtype.bits != bits || tensor.dtype.lanes != 1) {
        const auto described = [](int type, int size, int lanes) {
            return "code " + std::to_string(type) + " with " + std::to_string(size) + " bits and " +
                   std::to_string(lanes) + " lanes";
        };
        return detail::refused(argument, "elements of " +
                                             described(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) +
                                             "; allowed: " + described(code, bits, 1));
    }
    void *data = tensor.data == nullptr ? nullptr : static_cast<char *>(tensor.data) + tensor.byte_offset;
    return detail::axes_of<T>(argument, data, tensor.ndim, tensor.shape, tensor.strides, layout);
}

} // inline namespace
} // namespace elsa

#endif
#endif
#endif
