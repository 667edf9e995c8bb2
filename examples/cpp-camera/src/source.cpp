#include "source.hpp"

#include "files.hpp"
#include "picture.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace camera {
namespace {

const std::uint8_t dark = 16, bright = 235, no_chroma = 128;

std::uint8_t byte_of(double x) {
    return static_cast<std::uint8_t>(std::lround(std::min(255.0, std::max(0.0, x))));
}

} // namespace

std::vector<std::uint8_t> converted(const std::vector<std::uint8_t> &rgb, int width, int height, int format) {
    const std::size_t w = static_cast<std::size_t>(width), h = static_cast<std::size_t>(height);
    if (format == FORMAT_RGB) {
        return rgb;
    }
    std::vector<std::uint8_t> bytes(bytes_of(format, width, height));
    if (format == FORMAT_RGBA) {
        for (std::size_t i = 0; i < w * h; ++i) {
            std::copy(&rgb[3 * i], &rgb[3 * i] + 3, &bytes[4 * i]);
            bytes[4 * i + 3] = 255;
        }
        return bytes;
    }
    const auto luma_of = [](double r, double g, double b) { return 0.299 * r + 0.587 * g + 0.114 * b; };
    for (std::size_t i = 0; i < w * h; ++i) {
        bytes[i] = byte_of(luma_of(rgb[3 * i], rgb[3 * i + 1], rgb[3 * i + 2]));
    }
    const std::size_t pairs = (w + 1) / 2;
    for (std::size_t y = 0; y < h; y += 2) {
        for (std::size_t x = 0; x < w; x += 2) {
            double sum[3] = {0.0, 0.0, 0.0}, all = 0.0;
            for (std::size_t at_y = y; at_y < std::min(y + 2, h); ++at_y) {
                for (std::size_t at_x = x; at_x < std::min(x + 2, w); ++at_x, all += 1.0) {
                    for (std::size_t c = 0; c < 3; ++c) {
                        sum[c] += rgb[3 * (at_y * w + at_x) + c];
                    }
                }
            }
            const double luma = luma_of(sum[0], sum[1], sum[2]);
            std::uint8_t *pair = &bytes[w * h + 2 * (y / 2 * pairs + x / 2)];
            pair[0] = byte_of(128.0 + (sum[2] - luma) / all / 1.772);
            pair[1] = byte_of(128.0 + (sum[0] - luma) / all / 1.402);
        }
    }
    return bytes;
}

Files::Files(const std::vector<std::string> &paths, int format) : format_(format) {
    for (const std::string &path : vision::pictures_of(paths)) {
        const vision::ColourPicture read = vision::read_colours(path);
        Picture picture;
        picture.path = path;
        picture.label = vision::label_of(path);
        picture.width = static_cast<int>(read.width);
        picture.height = static_cast<int>(read.height);
        picture.bytes = converted(read.rgb, picture.width, picture.height, format);
        most_ = std::max(most_, picture.bytes.size());
        pictures_.push_back(std::move(picture));
    }
}

Shot Files::take(std::uint64_t n, const Shared &room) {
    const Picture &picture = pictures_[n % pictures_.size()];
    std::memcpy(room.data, picture.bytes.data(), picture.bytes.size());
    return {dense(room.address, format_, picture.width, picture.height), &picture.path, picture.label};
}

constexpr std::size_t Synthetic::steps;

Synthetic::Synthetic(int format, int width, int height)
    : format_(format), width_(width), height_(height), name_("synthetic") {}

Shot Synthetic::take(std::uint64_t n, const Shared &room) {
    const std::size_t w = static_cast<std::size_t>(width_), h = static_cast<std::size_t>(height_);
    const std::size_t channels = format_ == FORMAT_RGB ? 3 : format_ == FORMAT_RGBA ? 4 : 1;
    const std::size_t from = n % steps * w / steps, to = (n % steps + 1) * w / steps;
    std::memset(room.data, dark, w * h * channels);
    for (std::size_t y = 0; y < h; ++y) {
        std::memset(room.data + (y * w + from) * channels, bright, (to - from) * channels);
    }
    if (format_ == FORMAT_NV12) {
        std::memset(room.data + w * h, no_chroma, bytes() - w * h);
    }
    return {dense(room.address, format_, width_, height_), &name_, -1};
}

} // namespace camera
