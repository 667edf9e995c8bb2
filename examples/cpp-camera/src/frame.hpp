#pragma once

#include "../kernels/calls.cuh"

#include <cstddef>
#include <string>

namespace camera {

/// Meaning of luma and chroma: ITU-R BT.601 or BT.709, with values from 0 to 255 or those of video (luma 16 to 235,
/// chroma 16 to 240).
enum class Standard { bt601_full, bt601_video, bt709_video };

/// Returns the bytes of a picture without gaps between its rows.
std::size_t bytes_of(int format, int width, int height) noexcept;

/// Returns a picture of RGB or RGBA pixels, with rows `pitch` bytes apart.
Frame pixels(Address at, int pitch, int width, int height, int format) noexcept;

/// Returns a picture of NV12, with rows `pitches` bytes apart.
Frame nv12(Address luma, Address pairs, int luma_pitch, int pair_pitch, int width, int height,
           Standard standard) noexcept;

/// Returns a picture at `at` without gaps. NV12 has the standard BT.601 with values from 0 to 255, as in JPEG files.
Frame dense(Address at, int format, int width, int height) noexcept;

/// Returns the format `rgb`, `rgba` or `nv12`. Throws vision::Error.
int format_named(const std::string &name);

} // namespace camera
