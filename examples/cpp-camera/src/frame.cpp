#include "frame.hpp"

#include "error.hpp"

namespace camera {
namespace {

/// Channels of chroma in colours: R = y + red_v v, and so on.
struct Matrix {
    float luma_offset, luma_scale, red_v, green_u, green_v, blue_u;
};

Matrix matrix_of(Standard standard) noexcept {
    // Chroma of video has 224 steps in place of 255, and luma 219.
    const float chroma = 255.0f / 224.0f, luma = 255.0f / 219.0f;
    switch (standard) {
    case Standard::bt601_video:
        return {16.0f, luma, 1.402f * chroma, 0.344136286f * chroma, 0.714136286f * chroma, 1.772f * chroma};
    case Standard::bt709_video:
        return {16.0f, luma, 1.5748f * chroma, 0.187324273f * chroma, 0.468124273f * chroma, 1.8556f * chroma};
    case Standard::bt601_full:
        break;
    }
    return {0.0f, 1.0f, 1.402f, 0.344136286f, 0.714136286f, 1.772f};
}

int row_bytes(int format, int width) noexcept {
    return format == FORMAT_RGB ? 3 * width : format == FORMAT_RGBA ? 4 * width : width;
}

} // namespace

std::size_t bytes_of(int format, int width, int height) noexcept {
    const std::size_t w = static_cast<std::size_t>(width), h = static_cast<std::size_t>(height);
    const std::size_t pairs = format == FORMAT_NV12 ? (w + 1) / 2 * 2 * ((h + 1) / 2) : 0;
    return static_cast<std::size_t>(row_bytes(format, width)) * h + pairs;
}

Frame pixels(Address at, int pitch, int width, int height, int format) noexcept {
    Frame frame = Frame();
    frame.planes[0] = at;
    frame.pitches[0] = pitch;
    frame.width = width;
    frame.height = height;
    frame.format = format;
    return frame;
}

Frame nv12(Address luma, Address pairs, int luma_pitch, int pair_pitch, int width, int height,
           Standard standard) noexcept {
    Frame frame = pixels(luma, luma_pitch, width, height, FORMAT_NV12);
    frame.planes[1] = pairs;
    frame.pitches[1] = pair_pitch;
    const Matrix matrix = matrix_of(standard);
    frame.luma_offset = matrix.luma_offset;
    frame.luma_scale = matrix.luma_scale;
    frame.red_v = matrix.red_v;
    frame.green_u = matrix.green_u;
    frame.green_v = matrix.green_v;
    frame.blue_u = matrix.blue_u;
    return frame;
}

Frame dense(Address at, int format, int width, int height) noexcept {
    const int pitch = row_bytes(format, width);
    if (format != FORMAT_NV12) {
        return pixels(at, pitch, width, height, format);
    }
    const Address pairs = at + static_cast<Address>(pitch) * static_cast<Address>(height);
    return nv12(at, pairs, pitch, (width + 1) / 2 * 2, width, height, Standard::bt601_full);
}

int format_named(const std::string &name) {
    if (name == "rgb") {
        return FORMAT_RGB;
    }
    if (name == "rgba") {
        return FORMAT_RGBA;
    }
    if (name != "nv12") {
        throw vision::refused("--format", name, "rgb, rgba, nv12");
    }
    return FORMAT_NV12;
}

} // namespace camera
