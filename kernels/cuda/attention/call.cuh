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
  int query0, queries;  // first query token in the query view; number of query tokens
  int key0;             // first token of the new keys in the key view
  int keys, past;       // all keys, including the past; keys of the past
  int reach;            // keys that are valid and inside the mask
  int left, right;      // window around the diagonal; -1 is open (causal: right is 0)
  int offset;           // column of the diagonal in row zero
};

enum { ADDEND_NONE = 0, ADDEND_BOOL = 1, ADDEND_F32 = 2, ADDEND_F16 = 3, ADDEND_BF16 = 4 };

// A mask or bias added to the scores, in natural units. The element of query q and key k has the index
//   batch * (b mod period) + head * h + query * P(q) + key * P(k)
// with the position P(t) = t, or P(t) = t + (t / width) * (width - 1) in the bias of windows.
struct Addend {
  Address data;
  long long batch, head, query, key;    // in elements; zero where broadcast
  Divisor by_period;
  int period, kind;                     // number of distinct sequences; ADDEND_NONE .. ADDEND_BF16
};

// The windows of pictures. In the last row of windows, rows from `side_row` on attend only one another and no other row
// attends them; in the last column of windows, the same holds for columns from `side_column` on.
struct Windows {
  Divisor by_windows, by_across, by_width;  // precomputed divisions by the fields of these names
  int windows, across, width;           // windows per picture and per row of windows; token columns per window
  int side_row, side_column;            // beyond any token if windows have no second side
  int positions;                        // whether the bias is a table of relative positions
};

// Changes of the scores in a call, other than the soft cap.
enum { CHANGED_BY_MASK = 1, CHANGED_BY_BIAS = 2, CHANGED_BY_SIDES = 4, CHANGED_BY_INDEX = 8 };
// Rows of the tensor may be read or written four elements at a time: its data is aligned to four elements, its strides and
// head size are multiples of four, and rows are less than 2^22 elements apart.
enum {
  QUERY_VEC4 = 1,
  KEY_VEC4 = 2,
  VALUE_VEC4 = 4,
  OUTPUT_VEC4 = 8,
};
// Query, key and value rows, including the past, are read four elements at a time and have the head size of the kernel. For
// a kernel that sums scores in f32, queries and keys may have a smaller multiple of eight.
enum { WHOLE_ROWS = 16 };
// A block computes all splits of its rows and writes the results of the call: the launch has as many blocks as a launch
// without splits.
enum { SERIAL_SPLITS = 32 };
// The blocks of the last rows come first, for all heads together.
enum { LONGEST_FIRST = 64 };
// The last of the blocks that compute the splits of a row block merges their states and writes the results. It is found by
// counting: the ARRIVALS words before `part_ms`, one for each row block of each head, are zero before and after the launch.
enum { LAST_MERGES = 128, ARRIVALS = 1024 };

// A whole attention call. Query rows are numbered r = (batch * heads + head) * tokens + token, where token counts in the
// query view. Fields that every block reads come first, so that they arrive together.
struct Call {
  Divisor by_first, by_splits, by_heads, by_group;  // precomputed divisions by the fields of these names
  // Consecutive blocks of one split: blocks of rows, or heads of all sequences with LONGEST_FIRST. Index of the first short
  // block, or beyond any block: if the last rows of a head do not fill a block, blocks with such rows follow all others.
  int first, short_from;
  // Numbers of row blocks in the longest sequence, of splits of the keys, of query heads, and of keys per split.
  int row_blocks, splits, heads, chunk;
  Address sequences;                    // table of `sequence_count`, or zero: `sequence` describes every index
  Sequence sequence;
  int changes, flags;
  float query_factor, cap;              // scores in base-2 units: factor * (q . k), or cap * tanh(factor * (q . k))
  Tensor query, key, value;
  Address part_ms, part_w;              // partial states: [row][split][2], [row][split][part_dim]; zero if absent
  int part_dim, tokens, dtype, group;   // `tokens`: those of the query view; `group`: query heads per key head
  Tensor output;                        // data is zero if it is not requested and there are partial states
  Divisor by_tokens;
  int head_dim, value_dim;
  int query_rows, sequence_count;       // `query_rows`: batch * heads * tokens
  Address lse;                          // [row], natural logarithm; zero if not requested
  Address state_m, state_s, state_w;    // [row], [row], [row][value_dim], natural units; zero if not requested
  Tensor past_key, past_value;
  Addend mask, bias;
  Address index;                        // with CHANGED_BY_INDEX: entries, i64 [query][index_keys], of the table `bias`,
  int index_keys, entries;              // whose entries are `query` elements apart
  Windows windows;
};

// A copy of earlier rows followed by new ones: present[b][h][0 .. past + fresh].
struct Present {
  Tensor past, fresh, present;
  int batch, heads, past_tokens, fresh_tokens;
  int dim, element_size;                // elements per row; bytes per element
};

static_assert(sizeof(Sequence) == 40, "");
static_assert(__builtin_offsetof(Call, sequences) == 56 && __builtin_offsetof(Call, changes) == 104, "");
static_assert(__builtin_offsetof(Call, query) == 120 && __builtin_offsetof(Call, part_dim) == 232, "");
static_assert(__builtin_offsetof(Call, output) == 248 && __builtin_offsetof(Call, lse) == 304, "");
static_assert(__builtin_offsetof(Call, past_key) == 336 && __builtin_offsetof(Call, mask) == 400, "");
static_assert(__builtin_offsetof(Call, bias) == 456 && __builtin_offsetof(Call, windows) == 528, "");
static_assert(sizeof(Addend) == 56 && sizeof(Windows) == 48 && sizeof(Call) == 576 && sizeof(Present) == 120, "");
