// elsa: tensors in a cv::cuda::GpuMat, used in place. Without OpenCV's header, this header is empty.
#ifndef ELSA_OPENCV_CUDA_HPP
#define ELSA_OPENCV_CUDA_HPP

#ifdef __has_include
#if __has_include(<opencv2/core/cuda.hpp>)

#include "strided.hpp"

#include <opencv2/core/cuda.hpp>

#include <cstddef>
#include <string>

namespace elsa {
inline namespace ELSA_NAMESPACE {

// Returns the matrix as a tensor with any pitch. Its rows are tokens, of one sequence after another if batch is larger
// than 1. The elements of a row, over all columns and channels, are those of all heads, one head after another. The
// depth of the matrix is CV_32F for float, CV_16F for elsa::f16, and CV_16U for elsa::bf16. `argument` is the name of
// the tensor in errors.
template <class T>
result<strided<T>> from_opencv(const char *argument, const cv::cuda::GpuMat &mat, std::size_t heads = 1,
                               std::size_t batch = 1) {
    // CV_32F, CV_16F, which OpenCV 3 does not name, and CV_16U.
    const int depth = element<T>::dtype == ELSA_DTYPE_F32 ? 5 : element<T>::dtype == ELSA_DTYPE_F16 ? 7 : 2;
    if (mat.depth() != depth) {
        return detail::refused(argument, "matrix of depth " + std::to_string(mat.depth()) + "; allowed: " +
                                             std::to_string(depth) + ", the depth of the tensor's elements");
    }
    return detail::rows_of<T>(argument, mat.data, static_cast<std::size_t>(mat.rows),
                              static_cast<std::size_t>(mat.cols) * mat.elemSize(), mat.step, heads, batch);
}

} // inline namespace
} // namespace elsa

#endif
#endif
#endif
