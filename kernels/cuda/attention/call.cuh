// The arguments of attention launches: the device twin of kernels/src/cuda/attention/args.rs.
//
// Field for field the same structures as there; both sides assert every offset. Addresses are device addresses
// held in 64 bits, strides count elements, and the last axis of every tensor is contiguous.
#pragma once

#include "../common/tensor.cuh"

// One sequence of the batch and the interval of keys that each of its rows attends:
//   diagonal = offset + row
//   start    = left < 0 ? 0 : max(diagonal - left, 0)
//   end      = min(reach, right < 0 ? reach : max(diagonal + right + 1, 0))
struct Sequence {
  int batch;            // index along the batch axis; zero when packed
  int query0, queries;  // first query token in the query view, and how many
  int key0;             // first token of the new keys in the key view
  int keys, past;       // all keys, with those of the past; keys of the past
  int reach;            // keys that are valid and that the mask covers
  int left, right;      // window around the diagonal; -1 is open (causal: right is 0)
  int offset;           // column of the diagonal in row zero
};

enum { ADDEND_NONE = 0, ADDEND_BOOL = 1, ADDEND_F32 = 2, ADDEND_F16 = 3, ADDEND_BF16 = 4 };

// What is added to the scores, in natural units: a mask or a bias. The element of query q and key k is that at
//   batch * (b mod period) + head * h + query * P(q) + key * P(k)
// with the position P(t) = t, or P(t) = t + (t / width) * (width - 1) in the bias of windows.
struct Addend {
  Address data;
  long long batch, head, query, key;    // in elements; zero where broadcast
  Divisor by_period;
  int period, kind;                     // sequences that differ; ADDEND_NONE .. ADDEND_BF16
};

// The windows of pictures. Of the last row of windows the rows from `side_row` on, and of the last column the columns
// from `side_column` on, attend only one another, and are attended by no others.
struct Windows {
  Divisor by_windows, by_across, by_width;  // of the fields of those names
  int windows, across, width;           // windows of a picture and of a row of it; columns of a window
  int side_row, side_column;            // beyond any token where there is no other side
  int positions;                        // whether the bias is one of relative positions
};

// Which changes of the scores a call has, besides the soft cap.
enum { CHANGED_BY_MASK = 1, CHANGED_BY_BIAS = 2, CHANGED_BY_SIDES = 4, CHANGED_BY_INDEX = 8 };
// Rows of the tensor may be read or written four elements at a time: its data are aligned to four elements and
// its strides, and the head size, are multiples of four, and rows follow one another at less than 2^22 elements.
enum {
  QUERY_VEC4 = 1,
  KEY_VEC4 = 2,
  VALUE_VEC4 = 4,
  OUTPUT_VEC4 = 8,
};
// Query, key and value rows, those of the past too, are read four elements at a time, and have the head size of the
// kernel; or queries and keys have a multiple of eight below it, for a kernel that sums scores in f32.
enum { WHOLE_ROWS = 16 };
// A block takes all splits of its rows, and the kernel's results are the call's: there are as many blocks as without splits.
enum { SERIAL_SPLITS = 32 };
// The blocks of the last rows come first, those of all heads together.
enum { LONGEST_FIRST = 64 };

// A whole attention call. Row r = (batch * heads + head) * tokens + token numbers the query rows, with the token
// counted in the query view. What every block reads comes first, so that it arrives together.
struct Call {
  Divisor by_first, by_splits, by_heads, by_group;  // of the fields of those names
  // Blocks that come one after the other before another split: blocks of rows; or heads of all sequences with
  // LONGEST_FIRST. The block from which on come those of the last rows of all splits and heads, where they are not among
  // the others because they have fewer rows; else beyond any block.
  int first, short_from;
  // Blocks of rows of the longest sequence; splits of the keys; query heads; keys of a split.
  int row_blocks, splits, heads, chunk;
  Address sequences;                    // table of `sequence_count`, or zero: `sequence` for each of the batch
  Sequence sequence;
  int changes, flags;
  float query_factor, cap;              // scores in base-2 units: factor * (q . k), or cap * tanh(factor * (q . k))
  Tensor query, key, value;
  Address part_ms, part_w;              // partial states: [row][split][2], [row][split][part_dim]; zero: none
  int part_dim, tokens, dtype, group;   // tokens of the query view; query heads of a key head
  Tensor output;                        // data zero: not requested, and there are partial states
  Divisor by_tokens;
  int head_dim, value_dim;
  int query_rows, sequence_count;       // batch * heads * tokens
  Address lse;                          // [row], natural logarithm; zero: not requested
  Address state_m, state_s, state_w;    // [row], [row], [row][value_dim], natural units; zero: not requested
  Tensor past_key, past_value;
  Addend mask, bias;
  Address index;                        // with CHANGED_BY_INDEX: [query][index_keys], i64; the bias is a table, of which
  int index_keys, entries;              // each element names an entry, `query` elements from one to the next
  Windows windows;
};

// A copy of earlier and new rows one after the other: present[b][h][0 .. past + fresh].
struct Present {
  Tensor past, fresh, present;
  int batch, heads, past_tokens, fresh_tokens;
  int dim, element_size;                // elements of a row; bytes of an element
};

static_assert(sizeof(Sequence) == 40, "");
static_assert(__builtin_offsetof(Call, sequences) == 56 && __builtin_offsetof(Call, changes) == 104, "");
static_assert(__builtin_offsetof(Call, query) == 120 && __builtin_offsetof(Call, part_dim) == 232, "");
static_assert(__builtin_offsetof(Call, output) == 248 && __builtin_offsetof(Call, lse) == 304, "");
static_assert(__builtin_offsetof(Call, past_key) == 336 && __builtin_offsetof(Call, mask) == 400, "");
static_assert(__builtin_offsetof(Call, bias) == 456 && __builtin_offsetof(Call, windows) == 528, "");
static_assert(sizeof(Addend) == 56 && sizeof(Windows) == 48 && sizeof(Call) == 576 && sizeof(Present) == 120, "");
