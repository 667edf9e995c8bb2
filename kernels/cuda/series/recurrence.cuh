// The argument of the kernels of recurrences: the device twin of kernels/src/cuda/series/args.rs.
#pragma once

#include "call.cuh"

struct Recurrence {
  Divisor by_tiles;     // precomputed division by the field of this name
  int tiles, items;     // tiles of 32 channels; tiles in all sequences and listed parts
  int channels, tokens;
  int batch, flags;
  Parts parts;
  Series a, b, out;
  Address past, present;  // f32 [batch][channel]; zero if absent
  Address maps;           // f32 [2][batch][part][channel]: factors, later replaced by the states before the parts; addends
};

static_assert(__builtin_offsetof(Recurrence, parts) == 32 && __builtin_offsetof(Recurrence, a) == 56, "");
static_assert(__builtin_offsetof(Recurrence, past) == 224 && sizeof(Recurrence) == 248, "");
