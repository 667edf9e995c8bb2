#pragma once

#include "picture.hpp"

#include <sensor_msgs/Image.h>

#include <array>
#include <cstddef>

namespace node {

/// Reasons why a picture is refused.
enum class Refusal {
    /// The picture is accepted.
    none,
    /// Its encoding is none of those that the node reads.
    encoding,
    /// Its width is zero or too large.
    width,
    /// Its height is zero or too large.
    height,
    /// Its rows are shorter than its width.
    step,
    /// Its data end before its last row.
    data,
};

/// Returns the name of the field that is refused; empty for Refusal::none.
const char *name_of(Refusal refusal) noexcept;

/// A line of text of limited length, without memory of its own on the heap.
typedef std::array<char, 192> Line;

/// Input of the network.
typedef std::array<float, vision::side * vision::side> Cells;

/// Reduces the picture of a message to cells, without a copy of the picture. A colour becomes grey as in
/// vision::read_picture. If the picture is refused, `why` receives the field, the value found and the values allowed,
/// and the cells stay as they are. Allocates nothing.
Refusal read(const sensor_msgs::Image &image, Cells &cells, Line &why) noexcept;

} // namespace node
