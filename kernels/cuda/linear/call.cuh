// The arguments of the launches of linear attention: the device twin of kernels/src/cuda/linear/args.rs.
//
// Field for field the same structures as there; both sides assert every offset. Addresses are device addresses
// held in 64 bits, strides count elements, and the last axis of every tensor is contiguous.
#pragma once

#include "../common/tensor.cuh"

// Tokens of a chunk.
constexpr int CHUNK = 16;

// One sequence: its index along the batch axis, its first token there, its number of tokens, the index of its first chunk among
// the prepared ones, and the number of chunks per part in a scan. Its index in the table is its index among the states.
struct Sequence {
  int batch, first, tokens, chunk0, part_chunks;
};

// f32 states [sequence][head][part][row of key_dim][value_dim]: strides in elements.
struct States {
  Address data;  // zero if absent
  long long sequence, head, part, row;
};

enum {
  STEPS = 1,       // token by token, without records
  REVERSE = 2,     // from the last token of a sequence to its first
  NORMALIZE = 4,   // rows of queries and keys are divided by sqrt(sum of squares + epsilon)
  IDENTITY = 8,    // the first state is the identity and values are zero, so that the last one is the transition of a part
  READ = 16,       // tokens read the first state and change nothing
  QUERY_VEC4 = 32, // rows may be accessed four elements at a time: data, strides and row sizes are multiples
  KEY_VEC4 = 64,   // of four elements, and tokens are less than 2^22 elements apart
  VALUE_VEC4 = 128,
  DECAY_VEC4 = 256,
  OUTPUT_VEC4 = 512,
  PARTIAL_VEC4 = 1024,
  STATE_VEC4 = 2048,
  FOLD = 4096,     // parts except the first begin with zeros; with IDENTITY the first has no transition; chunk_answers.cuh: see there
  RESUME = 8192,   // parts except the first begin with the previous part's `boundaries`; only the last with tokens has a last state
  VALUE_F32 = 16384,  // values are f32, independent of the type of queries and keys
  DIM_GATES = 32768,  // each dim has a gate: for kernels of the quadratic form (quadratic.cuh)
};

// A whole call. A head is an output head: it reads state head / readers and query head / sharers, and the state uses key head state
// / key_group. For kernels that share (share.cuh) heads are states. Positions count tokens in processing order, chunk by chunk.
struct Linear {
  Divisor by_columns, by_parts, by_heads;          // precomputed divisions by the fields of these names
  Divisor by_readers, by_sharers, by_key_group;
  Divisor by_sequence_chunks;
  int columns, parts, heads, sequence_count;       // blocks of columns of a state; parts of a sequence; output heads
  Address sequences;                               // table of `sequence_count` sequences; zero if every index of the batch is one
  int tokens, sequence_chunks;                     // of each sequence, if there is no table
  int chunks, part_chunks;                         // prepared chunks of all sequences; chunks per part, zero: see the table
  int key_dim, value_dim;
  int dtype, gate_dtype;                           // types of query, key and value; of decay and beta
  int output_dtype, flags;
  int readers, boundary_chunks;                    // output heads per state; chunks between consecutive `boundaries`
  float scale, epsilon;
  Tensor query, key, value, output;
  Tensor decay, beta;                              // data is zero if absent
  Tensor partial;                                  // f32, added to the output; data is zero if absent
  States initial, last;                            // states before the first chunk of a part; states after its last chunk
  States boundaries;                               // states before every run of `boundary_chunks` chunks
  Address records;                                 // f32 [head][chunk][RECORD], see prepare.cuh
  Address tiles;                                   // with gates per dim: f32 [head][chunk][TILE_ROWS][dims of the kernel]
  int least, most;                                 // sequences of least .. most - 1 tokens are processed, others are left alone
};

static_assert(sizeof(Sequence) == 20 && sizeof(States) == 40, "");
static_assert(__builtin_offsetof(Linear, columns) == 56 && __builtin_offsetof(Linear, sequences) == 72, "");
static_assert(__builtin_offsetof(Linear, key_dim) == 96 && __builtin_offsetof(Linear, scale) == 128, "");
static_assert(__builtin_offsetof(Linear, query) == 136 && __builtin_offsetof(Linear, decay) == 264, "");
static_assert(__builtin_offsetof(Linear, initial) == 360 && __builtin_offsetof(Linear, boundaries) == 440, "");
static_assert(__builtin_offsetof(Linear, records) == 480 && __builtin_offsetof(Linear, least) == 496 && sizeof(Linear) == 504, "");
