// Pictures in memory and the arguments of the kernels, for the host and the device.
#pragma once

// An address of a device, or of the host for the CPU's own computation.
typedef unsigned long long Address;

namespace camera {

// How a picture stores its pixels: 3 or 4 bytes R, G, B, (any); or NV12, a plane of luma Y and a plane of pairs U, V,
// one for each square of 2 x 2 pixels.
enum { FORMAT_RGB = 0, FORMAT_RGBA = 1, FORMAT_NV12 = 2 };

// A picture. Its planes are [height][width] pixels and, of NV12, [ceil(height / 2)][ceil(width / 2)] pairs.
//
// With y = (Y - luma_offset) luma_scale, u = U - 128 and v = V - 128, the colour of NV12 is R = y + red_v v, G = y -
// green_u u - green_v v and B = y + blue_u u, each limited to 0 to 255.
struct Frame {
  Address planes[2];  // pixels, or luma and pairs
  int pitches[2];     // bytes from a row to the next
  int width, height;
  int format;
  float luma_offset, luma_scale;
  float red_v, green_u, green_v, blue_u;
  int unused;
};

// From a picture to embedded tokens, [1 + grid^2][width]: the class token, then a token for each patch, row by row.
//
// The picture is reduced to (grid patch)^2 cells. A cell has the bilinear value at its centre, between the centres of
// the four nearest pixels; beyond the outer pixels the picture goes on unchanged. Channels are one grey value, or red,
// green and blue. A token is start + sum over the inputs of its patch, [channels][patch][patch], of (value factor +
// addend) weight.
struct Prepare {
  Address frame;   // a Frame
  Address start;   // f32 [1 + grid^2][width]
  Address weight;  // f32 [channels patch^2][width]
  Address levels;  // f32 [2][channels]: the factor of values from 0 to 255, and the addend
  Address tokens;  // f32 [1 + grid^2][width], written
  int width, channels, patch, grid;
};

// Most inputs of a patch.
constexpr int MOST_INPUTS = 1024;

// Layer normalisation of rows, y = (x - mean) / sqrt(variance + epsilon) weight + bias.
struct Normalise {
  Address x, y;          // f32 [rows][width]
  Address weight, bias;  // f32 [width]
  int width;
  float epsilon;
};

// A linear map, y = x weight + bias. Its flags add steps.
struct Map {
  Address x;       // f32 [rows][inputs]
  Address weight;  // f32 [inputs][outputs]
  Address bias;    // f32 [outputs]
  Address y;       // f32 [rows][outputs]
  Address sums;    // f32 [rows][outputs]: the products x weight, if they are computed already; or zero
  int rows, inputs, outputs, flags;
};

// The exact GELU of the sums, and after it the addition of the former y.
enum { MAP_GELU = 1, MAP_ADD = 2 };

static_assert(sizeof(Frame) == 64 && sizeof(Prepare) == 56 && sizeof(Normalise) == 40 && sizeof(Map) == 56, "");

}  // namespace camera
