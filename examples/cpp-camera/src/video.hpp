#pragma once

#include "source.hpp"

#include <memory>
#include <string>

namespace camera {

/// Opens a camera of V4L2 that has NV12 or YUYV, and starts it. Its pictures become NV12 while they are written into
/// the memory of the network. Throws vision::Error.
std::unique_ptr<Source> video(const std::string &device);

/// Writes a picture of YUYV, with rows `pitch` bytes apart, as NV12 without gaps. Width and height are even; the chroma
/// of two rows becomes their mean.
void nv12_of_yuyv(const std::uint8_t *from, std::size_t pitch, std::size_t width, std::size_t height,
                  std::uint8_t *to);

} // namespace camera
