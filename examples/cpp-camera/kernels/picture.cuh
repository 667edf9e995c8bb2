// Inputs of the network from a picture. The device and the CPU compile this file, and their results have the same bits:
// sums and products are rounded one by one, and positions are computed in integers.
//
// Before it is included, these must exist: INLINE; load_u8 and load_f32, which load from an Address; and product(a, b),
// a product that never becomes part of a fused multiply-add. A compiler that fuses must be told not to.
#pragma once

#include "calls.cuh"

namespace camera {

struct Colour {
  float red, green, blue;
};

INLINE float byte_at(Address plane, int pitch, int row, int byte) {
  return (float)load_u8(plane + (Address)((long long)row * pitch + byte));
}

INLINE float limited(float x) { return x < 0.f ? 0.f : x > 255.f ? 255.f : x; }

INLINE Colour colour_at(const Frame& frame, int y, int x) {
  if (frame.format != FORMAT_NV12) {
    const int at = x * (frame.format == FORMAT_RGB ? 3 : 4);
    return Colour{byte_at(frame.planes[0], frame.pitches[0], y, at),
                  byte_at(frame.planes[0], frame.pitches[0], y, at + 1),
                  byte_at(frame.planes[0], frame.pitches[0], y, at + 2)};
  }
  const float luma = product(byte_at(frame.planes[0], frame.pitches[0], y, x) - frame.luma_offset, frame.luma_scale);
  const int pair = x / 2 * 2;
  const float u = byte_at(frame.planes[1], frame.pitches[1], y / 2, pair) - 128.f;
  const float v = byte_at(frame.planes[1], frame.pitches[1], y / 2, pair + 1) - 128.f;
  return Colour{limited(luma + product(frame.red_v, v)),
                limited(luma - product(frame.green_u, u) - product(frame.green_v, v)),
                limited(luma + product(frame.blue_u, u))};
}

// The value of a channel, 0 to 255. Grey has the weights of ITU-R BT.601 in 256ths.
INLINE float value_at(const Frame& frame, int channels, int channel, int y, int x) {
  const Colour c = colour_at(frame, y, x);
  if (channels == 1) {
    return product(77.f / 256.f, c.red) + product(150.f / 256.f, c.green) + product(29.f / 256.f, c.blue);
  }
  return channel == 0 ? c.red : channel == 1 ? c.green : c.blue;
}

// The pixels around the centre of a cell along an axis, and the share of the later one.
struct Around {
  int first, second;
  float share;
};

// The centre of cell c of n is (2 c + 1) pixels / (2 n) - 1/2 in pixels, counted from the centre of the first.
INLINE Around around(int cell, int cells, int pixels) {
  const int twice = (2 * cell + 1) * pixels - cells;
  const int at = twice < 0 ? 0 : twice;
  const int first = at / (2 * cells);
  return Around{first, first + 1 < pixels ? first + 1 : first, (float)(at - first * 2 * cells) / (float)(2 * cells)};
}

INLINE float between(float a, float b, float share) { return a + product(share, b - a); }

// Input i of a patch.
INLINE float input_of(const Frame& frame, const Prepare& call, int patch, int i) {
  const int area = call.patch * call.patch, cells = call.grid * call.patch;
  const int channel = i / area, inside = i - channel * area;
  const int patch_y = patch / call.grid, y = inside / call.patch;
  const Around rows = around(patch_y * call.patch + y, cells, frame.height);
  const Around columns =
      around((patch - patch_y * call.grid) * call.patch + inside - y * call.patch, cells, frame.width);
  const auto row = [&](int at) {
    return between(value_at(frame, call.channels, channel, at, columns.first),
                   value_at(frame, call.channels, channel, at, columns.second), columns.share);
  };
  const float value = between(row(rows.first), row(rows.second), rows.share);
  return product(value, load_f32(call.levels + (Address)channel * 4)) +
         load_f32(call.levels + (Address)(call.channels + channel) * 4);
}

}  // namespace camera
