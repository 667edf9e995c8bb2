#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace vision {

/// Number of cells along a side of the network's input.
constexpr std::size_t side = 8;
/// Longest side of a picture, in pixels.
constexpr std::size_t max_side = 8192;

/// Grey values, 0 to 255, row by row.
struct Picture {
    std::size_t width = 0;
    std::size_t height = 0;
    std::vector<std::uint8_t> grey;
};

/// Pixels of three bytes, red, green and blue, row by row.
struct ColourPicture {
    std::size_t width = 0;
    std::size_t height = 0;
    std::vector<std::uint8_t> rgb;
};

/// Reads a PNG or JPEG file. A colour becomes (77 R + 150 G + 29 B) / 256, rounded down: the weights of ITU-R BT.601.
/// Transparency is ignored. Throws Error.
Picture read_picture(const std::string &path);

/// Reads a PNG or JPEG file with its colours. Transparency is ignored. Throws Error.
ColourPicture read_colours(const std::string &path);

/// Returns the overlap of a cell with a pixel, along an axis of n pixels, in eighths of a pixel.
inline std::uint64_t overlap(std::size_t cell, std::size_t n, std::size_t pixel) noexcept {
    return std::min((cell + 1) * n, (pixel + 1) * side) - std::max(cell * n, pixel * side);
}

/// Reduces a picture of w x h pixels to `side` x `side` cells by area averaging: each cell is the mean over its share
/// of the picture, and a pixel on a border counts in proportion to its area inside. `grey(y, x)` returns the grey value
/// of a pixel, 0 to 255. Cells are on a scale from 0 to 1. Allocates nothing.
///
/// Along an axis of n pixels, measured in eighths of a pixel, cell c covers [c n, (c + 1) n) and pixel p covers [8 p, 8
/// p + 8), so that every overlap is an integer and the sums are exact.
template <class Grey>
void reduce(std::size_t w, std::size_t h, const Grey &grey, std::array<float, side * side> &cells) {
    for (std::size_t cy = 0; cy < side; ++cy) {
        for (std::size_t cx = 0; cx < side; ++cx) {
            std::uint64_t sum = 0;
            for (std::size_t y = cy * h / side; y * side < (cy + 1) * h; ++y) {
                std::uint64_t of_row = 0;
                for (std::size_t x = cx * w / side; x * side < (cx + 1) * w; ++x) {
                    of_row += overlap(cx, w, x) * grey(y, x);
                }
                sum += overlap(cy, h, y) * of_row;
            }
            cells[cy * side + cx] = static_cast<float>(sum) / static_cast<float>(w * h) / 255.0f;
        }
    }
}

/// Reduces a picture to cells.
void reduce(const Picture &picture, std::array<float, side * side> &cells);

/// Writes the picture as PNG, enlarged by a whole number to at least 256 pixels a side if the longer side then stays
/// within `max_side`, with weights [grid, grid] over it in orange: the least weight is clear, the largest 70 % opaque,
/// and opacity is linear between. Throws Error.
void write_map(const std::string &path, const Picture &picture, const std::vector<float> &weights, std::size_t grid);

} // namespace vision
