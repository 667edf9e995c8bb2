#include "frame.hpp"

#include <cstdint>
#include <cstdio>

namespace node {
namespace {

/// An encoding of eight bits a channel: its channels, and the places of its colours. Grey is red, green and blue.
struct Encoding {
    const char *name;
    std::size_t channels, red, green, blue;
};

const Encoding encodings[] = {
    {"mono8", 1, 0, 0, 0}, {"rgb8", 3, 0, 1, 2}, {"bgr8", 3, 2, 1, 0}, {"rgba8", 4, 0, 1, 2}, {"bgra8", 4, 2, 1, 0},
};

} // namespace

const char *name_of(Refusal refusal) noexcept {
    switch (refusal) {
    case Refusal::none:
        break;
    case Refusal::encoding:
        return "encoding";
    case Refusal::width:
        return "width";
    case Refusal::height:
        return "height";
    case Refusal::step:
        return "step";
    case Refusal::data:
        return "data";
    }
    return "";
}

Refusal read(const sensor_msgs::Image &image, Cells &cells, Line &why) noexcept {
    const auto refuse = [&why](Refusal refusal, unsigned long long found, unsigned long long least,
                               unsigned long long most) {
        const int n = std::snprintf(why.data(), why.size(), "%s: %llu; allowed: %llu", name_of(refusal), found, least);
        const std::size_t end = n < 0 ? 0 : static_cast<std::size_t>(n);
        if (most > 0) {
            std::snprintf(why.data() + end, why.size() - end, " to %llu", most);
        } else {
            std::snprintf(why.data() + end, why.size() - end, " or more");
        }
        return refusal;
    };
    const Encoding *found = nullptr;
    for (const Encoding &each : encodings) {
        if (image.encoding == each.name) {
            found = &each;
        }
    }
    if (found == nullptr) {
        std::snprintf(why.data(), why.size(), "encoding: '%.64s'; allowed: mono8, rgb8, bgr8, rgba8, bgra8",
                      image.encoding.c_str());
        return Refusal::encoding;
    }
    const Encoding encoding = *found;
    if (image.width < 1 || image.width > vision::max_side) {
        return refuse(Refusal::width, image.width, 1, vision::max_side);
    }
    if (image.height < 1 || image.height > vision::max_side) {
        return refuse(Refusal::height, image.height, 1, vision::max_side);
    }
    const std::uint64_t row = std::uint64_t(image.width) * encoding.channels;
    if (image.step < row) {
        return refuse(Refusal::step, image.step, row, 0);
    }
    // The padding after the last row may be absent.
    const std::uint64_t bytes = std::uint64_t(image.step) * (image.height - 1) + row;
    if (image.data.size() < bytes) {
        return refuse(Refusal::data, image.data.size(), bytes, 0);
    }
    const std::uint8_t *data = image.data.data();
    const std::size_t step = image.step;
    const auto grey = [data, step, encoding](std::size_t y, std::size_t x) {
        const std::uint8_t *pixel = data + y * step + x * encoding.channels;
        return (77u * pixel[encoding.red] + 150u * pixel[encoding.green] + 29u * pixel[encoding.blue]) >> 8;
    };
    vision::reduce(image.width, image.height, grey, cells);
    return Refusal::none;
}

} // namespace node
