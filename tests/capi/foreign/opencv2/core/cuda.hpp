// A stand-in for OpenCV's header of the same name: what elsa/opencv_cuda.hpp uses of it, with the same names and types.
#ifndef OPENCV_CORE_CUDA_HPP
#define OPENCV_CORE_CUDA_HPP

#include <cstddef>

namespace cv {
namespace cuda {

// Matrix of `channels_` elements of `depth_` in each of its columns.
class GpuMat {
public:
    GpuMat(int height, int width, int depth, int channels, void *memory, std::size_t pitch)
        : rows(height), cols(width), step(pitch), data(static_cast<unsigned char *>(memory)), depth_(depth),
          channels_(channels) {}

    int depth() const { return depth_; }
    // Returns the bytes of the elements of all channels.
    std::size_t elemSize() const {
        const std::size_t bytes[] = {1, 1, 2, 2, 4, 4, 8, 2};
        return bytes[depth_] * static_cast<std::size_t>(channels_);
    }

    int rows, cols;
    std::size_t step;
    unsigned char *data;

private:
    int depth_, channels_;
};

} // namespace cuda
} // namespace cv

#endif
