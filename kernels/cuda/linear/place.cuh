// Addresses of the rows of a sequence.
#pragma once

#include "../common/elements.cuh"
#include "../common/index.cuh"
#include "call.cuh"

// Rows of a tensor by token position: the row at position zero, and the row stride in bytes.
struct Rows {
  Address zero;
  long long step;
  int dim, dtype;
  bool vec4;
};

INLINE Rows rows_of(const Tensor& t, const Sequence& s, int head, int dim, int dtype, bool vec4, bool reverse) {
  const int size = element_size(dtype), first = reverse ? s.first + s.tokens - 1 : s.first;
  const long long step = t.token * size;
  return Rows{t.data + row_offset(t, s.batch, head, first) * size, reverse ? -step : step, dim, dtype, vec4};
}

INLINE Address row_at(const Rows& rows, int position) { return rows.zero + position * rows.step; }

// Sequence `number` of the call.
INLINE Sequence sequence_of(const Linear& call, int number) {
  if (call.sequences == 0) return Sequence{number, 0, call.tokens, number * call.sequence_chunks, call.part_chunks};
  const Address at = call.sequences + (long long)number * (int)sizeof(Sequence);
  const int own = call.part_chunks > 0 ? call.part_chunks : load_i32(at + 16);
  return Sequence{load_i32(at), load_i32(at + 4), load_i32(at + 8), load_i32(at + 12), own};
}

// The sequence of a chunk among the prepared ones.
INLINE int sequence_of_chunk(const Linear& call, int chunk) {
  int number = quotient_of(chunk, call.by_sequence_chunks);
  if (call.sequences != 0) {  // finds the last sequence that does not begin after this chunk
    number = 0;
    NO_UNROLL for (int past = call.sequence_count; past - number > 1;) {
      const int middle = (number + past) / 2;
      if (sequence_of(call, middle).chunk0 <= chunk) number = middle;
      else past = middle;
    }
  }
  return number;
}

// Loads four elements raw: f32 values or, if `packed`, the words of four 16-bit elements in the first two places.
INLINE f4 load_quad(const Rows& rows, Address row, int first) {
  if (rows.dtype == TYPE_F32) return load_f4(row + first * 4);
  const u2 words = load_u2(row + first * 2);
  return f4{float_of_bits(words[0]), float_of_bits(words[1]), 0.f, 0.f};
}
INLINE f4 unpacked(const Rows& rows, f4 x) {
  return rows.vec4 && rows.dtype != TYPE_F32 ? to_f32(u2{bits_of(x[0]), bits_of(x[1])}, rows.dtype) : x;
}
// Loads four elements of a row that cannot be read four at a time, as values.
INLINE f4 load_elements(const Rows& rows, Address row, int first) {
  f4 x = zero4();
  NO_UNROLL for (int e = 0; e < 4; e++) {
    x = f4{x[1], x[2], x[3], 0.f};
    if (first + e < rows.dim) x[3] = element(row, first + e, rows.dtype);
  }
  return x;
}
// Loads elements first .. first + 3 of a row, zero past its end, in the form that `unpacked` expects.
INLINE f4 load_row4(const Rows& rows, Address row, int first) {
  if (!rows.vec4) return load_elements(rows, row, first);
  return first < rows.dim ? load_quad(rows, row, first) : zero4();
}

// Loads a lane's columns from global memory: f32 values, or 16-bit elements as raw words.
INLINE void read_columns(f4& x, Address a) { x = read_f4(a); }
INLINE void read_columns(f2& x, Address a) { x = read_f2(a); }
INLINE void write_columns(Address a, f4 x) { write_f4(a, x); }
INLINE void write_columns(Address a, f2 x) { write_f2(a, x); }
INLINE void load_columns(f4& x, Address a) { x = load_f4(a); }
INLINE void load_columns(f2& x, Address a) {
  const u2 words = load_u2(a);
  x = f2{float_of_bits(words[0]), float_of_bits(words[1])};
}
INLINE void load_words(f4& x, Address a) {
  const u2 words = load_u2(a);
  x[0] = float_of_bits(words[0]);
  x[1] = float_of_bits(words[1]);
}
INLINE void load_words(f2& x, Address a) { x[0] = load_f32(a); }
INLINE f4 of_words(f4 x, int dtype) { return to_f32(u2{bits_of(x[0]), bits_of(x[1])}, dtype); }
INLINE f2 of_words(f2 x, int dtype) {
  return f2{widen(bits_of(x[0]) & 0xffff, dtype), widen(bits_of(x[0]) >> 16, dtype)};
}
INLINE void load_row(f4& x, const Rows& rows, Address row, int first) { x = unpacked(rows, load_row4(rows, row, first)); }
INLINE void load_row(f2& x, const Rows& rows, Address row, int first) {
  UNROLL for (int c = 0; c < 2; c++) x[c] = first + c < rows.dim ? element(row, first + c, rows.dtype) : 0.f;
}

// Writes four answers of a position from column `column` on, plus those of `partials`, if any.
INLINE void write_row4(const Rows& answers, const Rows& partials, bool has_partials, int position, int column, f4 x) {
  const Address row = row_at(answers, position);
  if (has_partials) {
    const Address from = row_at(partials, position) + column * 4;
    if (partials.vec4) {
      x = x + read_f4(from);
    } else {
      UNROLL for (int c = 0; c < 4; c++)
        if (column + c < answers.dim) x[c] += read_f32(from + c * 4);
    }
  }
  if (!answers.vec4) {
    UNROLL for (int c = 0; c < 4; c++)
      if (column + c < answers.dim) write_element(row, column + c, x[c], answers.dtype);
  } else if (answers.dtype == TYPE_F32) {
    write_f4(row + column * 4, x);
  } else {
    const int d = answers.dtype;
    write_u2(row + column * 2, u2{narrow(x[0], d) | narrow(x[1], d) << 16, narrow(x[2], d) | narrow(x[3], d) << 16});
  }
}
INLINE void write_row(const Rows& answers, const Rows& partials, bool has_partials, int position, int column, f4 x) {
  write_row4(answers, partials, has_partials, position, column, x);
}
INLINE void write_row(const Rows& answers, const Rows& partials, bool has_partials, int position, int column, f2 x) {
  const Address row = row_at(answers, position), from = row_at(partials, position);
  UNROLL for (int c = 0; c < 2; c++) {
    if (column + c >= answers.dim) continue;
    const float before = has_partials ? read_f32(from + (column + c) * 4) : 0.f;
    write_element(row, column + c, has_partials ? x[c] + before : x[c], answers.dtype);
  }
}
