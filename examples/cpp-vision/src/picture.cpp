#include "picture.hpp"

#include "error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>

#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_ONLY_PNG
#define STBI_ONLY_JPEG
#define STBI_NO_LINEAR
#define STBI_NO_HDR
#define STBI_MAX_DIMENSIONS 8192
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#endif
#include <stb_image.h>
#include <stb_image_write.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

static_assert(STBI_MAX_DIMENSIONS == vision::max_side, "one limit");

namespace vision {
namespace {

/// Smallest side of a map.
const std::size_t map_side = 256;
const float most_opaque = 0.7f;
const std::array<float, 3> orange = {{255.0f, 110.0f, 0.0f}};

void append(void *to, void *data, int size) {
    const char *bytes = static_cast<const char *>(data);
    static_cast<std::vector<char> *>(to)->insert(static_cast<std::vector<char> *>(to)->end(), bytes, bytes + size);
}

/// Returns the pixels of a file with `channels` bytes each.
std::vector<std::uint8_t> decoded(const std::string &path, int channels, std::size_t &width, std::size_t &height) {
    const std::string allowed = "a PNG or JPEG file of at most " + std::to_string(max_side) + " pixels a side";
    errno = 0;
    std::unique_ptr<std::FILE, int (*)(std::FILE *)> file(std::fopen(path.c_str(), "rb"), std::fclose);
    if (!file) {
        throw file_error(path, errno, allowed);
    }
    int columns = 0, rows = 0, stored = 0;
    std::unique_ptr<stbi_uc, void (*)(void *)> pixels(
        stbi_load_from_file(file.get(), &columns, &rows, &stored, channels), stbi_image_free);
    if (std::ferror(file.get())) {
        throw file_error(path, errno, allowed);
    }
    if (!pixels) {
        throw refused(path, stbi_failure_reason(), allowed);
    }
    width = static_cast<std::size_t>(columns);
    height = static_cast<std::size_t>(rows);
    return std::vector<std::uint8_t>(pixels.get(), pixels.get() + width * height * static_cast<std::size_t>(channels));
}

} // namespace

Picture read_picture(const std::string &path) {
    Picture picture;
    picture.grey = decoded(path, 1, picture.width, picture.height);
    return picture;
}

ColourPicture read_colours(const std::string &path) {
    ColourPicture picture;
    picture.rgb = decoded(path, 3, picture.width, picture.height);
    return picture;
}

void reduce(const Picture &picture, std::array<float, side * side> &cells) {
    const auto grey = [&picture](std::size_t y, std::size_t x) { return picture.grey[y * picture.width + x]; };
    reduce(picture.width, picture.height, grey, cells);
}

void write_map(const std::string &path, const Picture &picture, const std::vector<float> &weights, std::size_t grid) {
    const std::size_t shorter = std::min(picture.width, picture.height);
    std::size_t factor = (map_side + shorter - 1) / shorter;
    // A long strip is not enlarged beyond the limit of the encoder.
    factor = std::max<std::size_t>(1, std::min(factor, max_side / std::max(picture.width, picture.height)));
    const std::size_t w = picture.width * factor, h = picture.height * factor;
    const auto ends = std::minmax_element(weights.begin(), weights.end());
    const float least = *ends.first;
    const float range = std::max(*ends.second - least, std::numeric_limits<float>::min());
    std::vector<std::uint8_t> pixels(3 * w * h);
    for (std::size_t y = 0; y < h; ++y) {
        for (std::size_t x = 0; x < w; ++x) {
            const float weight = weights[y * grid / h * grid + x * grid / w];
            const float opacity = most_opaque * (weight - least) / range;
            const float grey = picture.grey[y / factor * picture.width + x / factor];
            for (std::size_t c = 0; c < 3; ++c) {
                pixels[3 * (y * w + x) + c] =
                    static_cast<std::uint8_t>(grey + opacity * (orange[c] - grey) + 0.5f);
            }
        }
    }
    const std::string allowed = "a file that can be written";
    std::vector<char> bytes;
    if (!stbi_write_png_to_func(append, &bytes, static_cast<int>(w), static_cast<int>(h), 3, pixels.data(),
                                static_cast<int>(3 * w))) {
        throw Error(Fault::system, path + ": out of memory; allowed: " + allowed);
    }
    errno = 0;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    if (!file) {
        throw file_error(path, errno, allowed);
    }
    if (!file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush()) {
        throw file_error(path, errno, allowed);
    }
}

} // namespace vision
