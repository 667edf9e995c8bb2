// Linear attention: carries a state through the chunks of a part.
//
//   a token:  S <- a S,  u = beta (v - S' k)  (or v),  S <- S + k u',  o = scale S' q
//
// The naive loop updates and reads the state once per token, and each token waits for the previous one. For a chunk of C tokens
// products of matrices give the same result. With G_i the sum of the chunk's logarithms up to token i,
//
//   w_i = v_i - exp(G_i) S' k_i                       the values minus the readings of the state before the chunk
//   u   = T w,   T = (I + A)^-1 diag(beta),  A_ij = beta_i exp(G_i - G_j) k_i.k_j  for j < i
//   o_i = scale exp(G_i) S' q_i + sum_j P_ij u_j,     P_ij = scale exp(G_i - G_j) q_i.k_j  for j <= i
//   S   <- exp(G_C) S + sum_j exp(G_C - G_j) k_j u_j'
//
// T and P do not depend on the state: prepare kernels (prepare.cuh) compute them for all chunks at once. Rules without delta have
// u = v.
//
//  1. A warp has eight columns of the state in registers: a lane has DIMS / 16 rows, dealt in quads, of four columns. With COUNT =
//     2 a warp has four columns and a lane two, with the same bits, and a call with few states uses twice the SMs. A lane is
//     slice lane / 2 of sixteen, and token lane / 2 of the chunk. Warps share keys, queries, T and P in shared memory, and nothing
//     else.
//  2. A product of the state with sixteen tokens is summed over a lane's own rows, then over the slices. Slice s has token j ^ s in
//     place j: the sums that its partner keeps are then in the same registers in every lane, and a tree of exchanges, each halving
//     what is left, ends with token s in slice s.
//  3. Products over tokens read the rows that the sixteen lanes have left in an area of the warp.
//  4. The changes of a chunk are summed separately and then added, so that a chain of roundings grows by one per chunk.
//  5. The operands of the next chunk travel through registers while a chunk is computed, if there are enough registers.
//  6. With a gate per dim, keys and queries are already multiplied by gates (record.cuh).
//  7. Chunks that products would get wrong are marked: a gate clears the state, is NaN, or grows beyond 2^100, or a product is not
//     finite. They go token by token, and so does everything with STEPS.
//  8. With few states a warp has its scheduler to itself, and waits for each branch. Whole chunks of f32 rows that fill their tiles
//     and only need answers use a loop without branches (PLAIN), which saves a sixth of the time.
//  9. Values that are not finite must not reach earlier tokens, or rows past the last dim, through a product with zero: a warp that
//     encounters one selects. Those rows stay zero, or each answer would include their NaN.
#pragma once

#include "product.cuh"
#include "record.cuh"
#include "tiles.cuh"

INLINE States either(bool first, const States& a, const States& b) {
  return States{first ? a.data : b.data, first ? a.sequence : b.sequence, first ? a.head : b.head,
                first ? a.part : b.part, first ? a.row : b.row};
}

template <int DIMS, bool PER_DIM, int COUNT = 4> struct Walk {
  enum {
    WARPS = 4,
    AHEAD = DIMS <= (PER_DIM ? 64 : 128),  // whether the tiles of the next chunk have registers of their own
    EARLY = DIMS <= 128,                   // whether the other operands of the next chunk do
    THREADS = WARPS * 32,
    ROWS = DIMS / 16,
    QUADS = ROWS / 4,
    BOTH = DIMS <= (PER_DIM ? 64 : 128),  // whether there are enough registers to multiply keys and queries together
    TILES = PER_DIM ? 3 : 2,  // keys, queries and, with a gate per dim, keys for the change of the state, or gates
    PLAIN = DIMS == 128 && !PER_DIM,  // whether there is a loop for plain chunks
    MATRIX_QUADS = CHUNK * CHUNK / 4,
    TILE_BYTES = CHUNK * DIMS * 4,
    MATRICES_AT = TILES * TILE_BYTES,
    WARPS_AT = MATRICES_AT + 2 * MATRIX_QUADS * 16,
    LEFT_BYTES = CHUNK * COUNT * 8,
    WARP_BYTES = 2 * LEFT_BYTES,
    SHARED_BYTES = WARPS_AT + WARPS * WARP_BYTES,
  };
  static_assert(2 * MATRIX_QUADS <= THREADS, "a thread brings a quad of T and P");

  typedef typename Lane<COUNT>::Type V;
  typedef Columns<DIMS, V> State;
  typedef Tile<DIMS, THREADS> Piece;

  // The work of a block.
  const Linear& call;
  const SharedBytes sm, left;  // left: what the lanes of this warp leave, rows u and rows for the change of the state
  const int lane, slice;
  int column, head, number, state_head;
  Sequence sequence;
  long long record0;
  State state;

  // Addresses for the next chunk: of this thread's piece of each tile, of the lane's value and answer, and of the record. Then
  // byte strides between the rows of a piece, and between chunks.
  Address tile_at[AHEAD ? TILES : 1], value_at, answer_at, record_at;
  int across[AHEAD ? TILES : 1], value_onward, answer_onward;

  // Operands of a chunk, in transit.
  Piece tiles[AHEAD ? TILES : 1];
  V value;
  f4 matrix;
  float before, after, end, marked;

  INLINE Walk(SharedBytes sm, const Linear& call)
      : call(call), sm(sm), left(sm + WARPS_AT + (thread_index() >> 5) * WARP_BYTES), lane(thread_index() & 31),
        slice(lane >> 1) {}

  // When registers are scarce, conditions are computed where they are used.
  static INLINE int recomputed(int x) { return DIMS > 128 ? opaque(x) : x; }
  INLINE bool has(int flag) const { return (recomputed(call.flags) & flag) != 0; }
  INLINE bool is_delta() const { return call.beta.data != 0; }
  INLINE bool writes() const { return call.output.data != 0; }
  INLINE bool is_wide() const { return recomputed(call.dtype) == TYPE_F32; }
  INLINE bool fills_rows() const { return recomputed(call.key_dim) == DIMS; }
  // Whether rows need no checks except that their tokens exist.
  INLINE bool whole_tiles() const {
    return own_tiles() || (!PER_DIM && has(KEY_VEC4) && has(QUERY_VEC4) && (Piece::OF_ROW == 1 || fills_rows()));
  }
  INLINE bool whole_values() const { return has(VALUE_VEC4) && !has(IDENTITY | READ); }
  INLINE bool whole_answers() const {
    return writes() && has(OUTPUT_VEC4) && recomputed(call.output_dtype) == TYPE_F32 && call.partial.data == 0 &&
           column < recomputed(call.value_dim);
  }

  INLINE Address state_row(const States& s, int at, int row) const {
    return s.data + (opaque(number) * s.sequence + opaque(state_head) * s.head + at * s.part + row * s.row + column) * 4;
  }

  INLINE void read_state(int part) {
    UNROLL for (int r = 0; r < ROWS; r++) state.row[r] = none<V>();
    const bool later = part > 0 && has(FOLD | RESUME);
    const States from = either(later, call.boundaries, call.initial);
    const int place = later ? part - 1 : part;
    if (!has(IDENTITY) && from.data == 0) return;
    NO_UNROLL for (int r = 0; r < ROWS; r++) {  // each step puts the next row in the last place
      V x = none<V>();
      const int row = State::row_of(slice, r);
      if (has(IDENTITY)) {
        UNROLL for (int c = 0; c < COUNT; c++) x[c] = row == column + c ? 1.f : 0.f;
      } else if (row < call.key_dim) {
        const Address at = state_row(from, place, row);
        if (has(STATE_VEC4)) {
          if (column < call.value_dim) read_columns(x, at);
        } else {
          UNROLL for (int c = 0; c < COUNT; c++)
            if (column + c < call.value_dim) x[c] = read_f32(at + c * 4);
        }
      }
      UNROLL for (int o = 1; o < ROWS; o++) state.row[o - 1] = state.row[o];
      state.row[ROWS - 1] = x;
    }
  }

  INLINE void write_state(const States& to, int at) {
    NO_UNROLL for (int r = 0; r < ROWS; r++) {  // each step moves the first row to the last place
      const V x = state.row[0];
      UNROLL for (int o = 1; o < ROWS; o++) state.row[o - 1] = state.row[o];
      state.row[ROWS - 1] = x;
      const int row = State::row_of(slice, r);
      if (row >= call.key_dim) continue;
      const Address a = state_row(to, at, row);
      if (has(STATE_VEC4)) {
        if (column < call.value_dim) write_columns(a, x);
      } else {
        UNROLL for (int c = 0; c < COUNT; c++)
          if (column + c < call.value_dim) write_f32(a + c * 4, x[c]);
      }
    }
  }

  // Computed on use: kept, they would cost registers.
  INLINE Rows rows(const Tensor& t, int h, int dim, int dtype, int flag) const {
    return rows_of(t, sequence, opaque(h), dim, opaque(dtype), has(flag), has(REVERSE));
  }

  INLINE Rows values() const { return rows(call.value, state_head, call.value_dim, call.dtype, VALUE_VEC4); }
  INLINE Rows answers() const { return rows(call.output, head, call.value_dim, call.output_dtype, OUTPUT_VEC4); }

  // Source of the rows of a tile.
  INLINE Source source(int tile) const {
    if (own_tiles()) {
      const Address first = call.tiles + (record0 * TILE_ROWS + tile * CHUNK) * (DIMS * 4);
      return Source{Rows{first, DIMS * 4, DIMS, TYPE_F32, true}, TILE_ROWS * DIMS * 4, 0x7fffffff};
    }
    const int dim = call.key_dim;
    const Rows found =
        tile == 0   ? rows(call.key, quotient_of(state_head, call.by_key_group), dim, call.dtype, KEY_VEC4)
        : tile == 1 ? rows(call.query, quotient_of(head, call.by_sharers), dim, call.dtype, QUERY_VEC4)
                    : rows(call.decay, state_head, dim, call.gate_dtype, DECAY_VEC4);
    return source_of(found, sequence.tokens);
  }
  INLINE bool takes(int tile) const { return tile == 1 ? writes() : !has(READ); }

  INLINE void find_tile(int t, int chunk) {
    const Source tile = source(t);
    // Lanes past the last dim load another lane's elements.
    const int quad = Piece::quad_of(0) * 4 < tile.rows.dim ? Piece::quad_of(0) : 0;
    across[AHEAD ? t : 0] = (int)tile.rows.step * Piece::APART;
    tile_at[AHEAD ? t : 0] = tile.rows.zero + chunk * tile.chunk + Piece::row_of(0) * tile.rows.step +
                             quad * (own_tiles() || is_wide() ? 16 : 8);
  }

  // Moves to the start of chunk `first`.
  INLINE void set_out(int first) {
    const Rows from = values(), to = answers();
    if (AHEAD)
      UNROLL for (int t = 0; t < TILES; t++) find_tile(t, first);
    const int position = first * CHUNK + slice;
    value_onward = (int)from.step * CHUNK;
    answer_onward = (int)to.step * CHUNK;
    // Lanes past the last column use another lane's values.
    value_at = row_at(from, position) + (column < call.value_dim ? column : 0) * element_size(call.dtype);
    answer_at = row_at(to, position) + column * 4;
    record_at = call.records + (record0 + first) * (RECORD * 4);
  }

  INLINE bool is_whole(int chunk) const { return (chunk + 1) * CHUNK <= sequence.tokens; }

  // Whether a register of the state belongs to a key dim.
  INLINE bool has_row(int r) const { return State::row_of(slice, r) < recomputed(call.key_dim); }

  INLINE bool own_tiles() const { return PER_DIM && !has(STEPS | READ); }

  INLINE void bring_tile(int t) {
    const int at = AHEAD ? t : 0;
    tiles[at].bring(tile_at[at], across[at], own_tiles() || is_wide());
  }

  // Loads the operands of the chunk that are in whole rows.
  INLINE void bring(int chunk) {
    const bool own = own_tiles(), whole = is_whole(chunk);
    if (AHEAD) {
      const bool all = whole_tiles() && (whole || own);
      UNROLL for (int t = 0; t < TILES; t++) {
        if (all && takes(t)) bring_tile(t);
        else tiles[t].drop();
      }
      go_on();
    }
    if (whole_values() && whole) {
      if (is_wide()) load_columns(value, value_at);
      else load_words(value, value_at);
    } else {
      forget(value);
    }
    value_at += value_onward;
    if (has(STEPS | READ)) forget(matrix);
    else bring_record();
  }
  INLINE void bring_record() {
    matrix = load_f4(record_at + (thread_index() % (2 * MATRIX_QUADS)) * 16);
    before = load_f32(record_at + (RECORD_BEFORE + slice) * 4);
    after = load_f32(record_at + (RECORD_AFTER + slice) * 4);
    end = load_f32(record_at + RECORD_END * 4);
    marked = load_f32(record_at + RECORD_MARKED * 4);
    record_at += RECORD * 4;
  }

  // Advances the tiles to the next chunk.
  INLINE void go_on() {
    UNROLL for (int t = 0; t < TILES; t++)
      tile_at[t] += own_tiles() ? TILE_ROWS * DIMS * 4 : (long long)across[t] * (CHUNK / Piece::APART);
  }

  // Normalises a row of keys or queries.
  INLINE void finish(f4 (&x)[Piece::OF_ROW], bool norms) const {
    if (Piece::quad_of(0) * 4 >= call.key_dim) x[0] = zero4();
    if (norms) Piece::normalize(x, call.epsilon);
  }

  // Stores a tile of the chunk in shared memory: a tile of whole rows, which may have been loaded, or any tile without gates.
  INLINE void store_whole(int t, int chunk, bool own, bool norms) {
    if (!AHEAD) {
      find_tile(t, chunk);
      bring_tile(t);
    }
    Piece& tile = tiles[AHEAD ? t : 0];
    if (own || (is_wide() && !norms && fills_rows())) tile.store(sm + t * TILE_BYTES);
    else tile.store(sm + t * TILE_BYTES, is_wide(), call.dtype, [&](f4 (&x)[Piece::OF_ROW]) LAMBDA { finish(x, norms); });
  }
  INLINE void store_any(int t, int chunk, bool norms) {
    Piece::copy(sm + t * TILE_BYTES, source(t), chunk, [&](f4 (&x)[Piece::OF_ROW]) LAMBDA { finish(x, norms); });
  }

  // Stores the tiles and matrices of the chunk in shared memory.
  INLINE void store(int chunk) {
    const bool own = own_tiles(), norms = has(NORMALIZE) && !own;
    if (whole_tiles() && (is_whole(chunk) || own)) {
      UNROLL for (int t = 0; t < TILES; t++)
        if (takes(t)) store_whole(t, chunk, own, norms);
    } else {
      UNROLL for (int t = 0; t < 2; t++)
        if (takes(t)) store_any(t, chunk, norms);
      if (PER_DIM && takes(2))
        Piece::copy(sm + 2 * TILE_BYTES, source(2), chunk, [&](f4 (&x)[Piece::OF_ROW]) LAMBDA {
          NO_UNROLL for (int e = 0; e < 4 * Piece::OF_ROW; e++) {  // each step puts the next element in the last place
            const float gate = Piece::quad_of(e / 4) * 4 + e % 4 < call.key_dim ? gate_of(x[0][0]) : CLEAR;
            UNROLL for (int o = 1; o < 4 * Piece::OF_ROW; o++) x[(o - 1) / 4][(o - 1) % 4] = x[o / 4][o % 4];
            x[Piece::OF_ROW - 1][3] = gate;
          }
        });
    }
    if (!has(STEPS | READ)) store_matrices();
  }
  INLINE void store_matrices() const {
    if (thread_index() < 2 * MATRIX_QUADS) {
      const int at = thread_index() % MATRIX_QUADS, second = thread_index() / MATRIX_QUADS;
      store_shared(sm + MATRICES_AT + (second * MATRIX_QUADS + matrix_quad(at >> 2, at & 3)) * 16, matrix);
    }
  }

  // The lane's value in the chunk.
  INLINE V value_of(int chunk) const {
    const int position = chunk * CHUNK + slice;
    if (whole_values() && is_whole(chunk))
      return is_wide() ? value : of_words(value, call.dtype);
    if (has(IDENTITY | READ) || position >= sequence.tokens) return none<V>();
    const Rows from = values();
    V x;
    load_row(x, from, row_at(from, position), column);
    return x;
  }

  // With STEPS: reads the gate and the beta of token `slice`.
  INLINE void read_factors(int chunk, float& gate, float& beta) const {
    const int position = chunk * CHUNK + slice;
    gate = 1.f;
    beta = 0.f;
    if (position >= sequence.tokens) return;
    if (!PER_DIM && call.decay.data != 0) {
      const Rows gates = rows(call.decay, state_head, 1, call.gate_dtype, 0);
      gate = gate_of(element(row_at(gates, position), 0, gates.dtype));
    }
    if (is_delta()) {
      const Rows betas = rows(call.beta, state_head, 1, call.gate_dtype, 0);
      beta = element(row_at(betas, position), 0, betas.dtype);
    }
  }

  INLINE void write_answer(int position, V x) const {
    if (position >= sequence.tokens || column >= call.value_dim) return;
    const Rows partials = rows(call.partial, head, call.value_dim, TYPE_F32, PARTIAL_VEC4);
    write_row(answers(), partials, call.partial.data != 0, position, column, x);
  }

  INLINE SharedBytes left_rows(int which) const { return left + which * LEFT_BYTES + (lane & 1) * (COUNT * 4); }
  INLINE void leave(int which, V x) const { store_shared(left_rows(which) + slice * (COUNT * 8), x); }

  // Processes the chunk by products: returns the answer of token `slice`.
  INLINE V products(int chunk, V v, float before, float after, float end) {
    const bool reads = has(READ), both = is_delta() && writes() && !reads;
    // Readings of the state for the keys, and for the queries.
    V held[2] = {none<V>(), none<V>()};
    if (BOTH && both) {
      state.times_tiles(sm, slice, held);
    } else {
      NO_UNROLL for (int t = is_delta() && !reads ? 0 : 1; t < (writes() ? 2 : 1); t++) {
        V one[1];
        state.times_tiles(sm + t * TILE_BYTES, slice, one);
        held[0] = t == 0 ? one[0] : held[0];
        held[1] = one[0];
      }
    }
    V u = v, answer = held[1];
    if (is_delta() && !reads) u = changes(u, held[0], before);
    const bool finite = leave_changes(u, after);
    if (reads) return answer * call.scale;
    if (writes()) answer = answer_of(answer, before, finite);
    change(chunk, end, finite);
    return answer;
  }

  // T w, with the readings `held` of the state for the keys: the changes under a rule with delta.
  INLINE V changes(V u, const V& held, float before) {
    UNROLL for (int c = 0; c < COUNT; c++) u[c] = PER_DIM ? u[c] - held[c] : __builtin_fmaf(-before, held[c], u[c]);
    leave(0, u);
    const bool finite = !any_of_warp(!is_finite(u));
    sync_warp();
    u = times_matrix<V>(sm + MATRICES_AT, left_rows(0), slice, finite);
    sync_warp();
    return u;
  }

  // Leaves the changes for products over tokens. Returns whether all are finite.
  INLINE bool leave_changes(V u, float after) {
    leave(0, u);
    leave(1, PER_DIM ? u : u * after);
    const bool finite = !any_of_warp(!is_finite(u));
    sync_warp();
    return finite;
  }

  // The answer of token `slice`; `held` is the reading, for its query, of the state before the chunk.
  INLINE V answer_of(V held, float before, bool finite) {
    const V within = times_matrix<V>(sm + MATRICES_AT + MATRIX_QUADS * 16, left_rows(0), slice, finite);
    const float factor = PER_DIM ? call.scale : call.scale * before;
    UNROLL for (int c = 0; c < COUNT; c++) held[c] = __builtin_fmaf(factor, held[c], within[c]);
    return held;
  }

  // Updates the state for the chunk; `finite`: all its changes are finite.
  INLINE void change(int chunk, float end, bool finite) {
    const Address ends = call.tiles + ((record0 + chunk) * TILE_ROWS + 3 * CHUNK) * (DIMS * 4) + slice * 16;
    const f4 same = f4{end, end, end, end};
    state.change(sm + (PER_DIM ? 2 * TILE_BYTES : 0), left_rows(1), slice,
                 [&](int quad) LAMBDA { return PER_DIM ? load_f4(ends + quad * 256) : same; });
    if (RARELY(!finite))
      UNROLL for (int r = 0; r < ROWS; r++)
        if (!has_row(r)) state.row[r] = none<V>();
  }

  // Processes token j of the chunk up to its change: returns the values u of S + k u', and its key. `gate` and `beta` are those of
  // token `slice`.
  INLINE V step(int j, V v, float gate, float beta, f4 (&k)[QUADS]) {
    const float a = float_of_bits(shuffle_from(bits_of(gate), 2 * j));
    V held = none<V>(), u;
    UNROLL for (int i = 0; i < QUADS; i++) {
      const SharedBytes own = State::own_quads(sm, j, slice) + i * 256;
      f4 gates = f4{a, a, a, a};
      if (PER_DIM) gates = load_shared(own + 2 * TILE_BYTES);
      k[i] = load_shared(own);
      UNROLL for (int e = 0; e < 4; e++) {
        V& row = state.row[i * 4 + e];
        if (has_row(i * 4 + e))
          UNROLL for (int c = 0; c < COUNT; c++) row[c] = gated(row[c], gates[e]);
        if (is_delta()) add_product(held, k[i][e], row);
      }
    }
    if (is_delta()) held = over_slices(held);
    UNROLL for (int c = 0; c < COUNT; c++) u[c] = float_of_bits(shuffle_from(bits_of(v[c]), 2 * j + (lane & 1)));
    if (is_delta()) {
      const float b = float_of_bits(shuffle_from(bits_of(beta), 2 * j));
      UNROLL for (int c = 0; c < COUNT; c++) u[c] = b * (u[c] - held[c]);
    }
    return u;
  }

  // Processes the chunk token by token. Returns the answer of token `slice`; `gate` and `beta` are those of this token.
  INLINE V steps(int tokens, V v, float gate, float beta) {
    V answer = none<V>();
    NO_UNROLL for (int j = 0; j < tokens; j++) {
      f4 k[QUADS];
      const V u = step(j, v, gate, beta, k);
      V sum = none<V>();
      UNROLL for (int i = 0; i < QUADS; i++) {
        f4 q = zero4();
        if (writes()) q = load_shared(State::own_quads(sm, j, slice) + (TILE_BYTES + i * 256));
        UNROLL for (int e = 0; e < 4; e++) {
          if (has_row(i * 4 + e)) add_product(state.row[i * 4 + e], k[i][e], u);
          if (writes()) add_product(sum, q[e], state.row[i * 4 + e]);
        }
      }
      if (writes()) {
        sum = over_slices(sum);
        if (slice == j) answer = sum * call.scale;
      }
    }
    return answer;
  }

  // Whether whole chunks are plain. The result is the same for every lane of a block, because lanes meet at barriers: columns
  // past the last one use the result of the others.
  INLINE bool is_plain() const {
    const int own = (thread_index() >> 5) * (2 * COUNT) + (lane & 1) * COUNT;
    return PLAIN && column - own + WARPS * 2 * COUNT <= call.value_dim && writes() && !has(STEPS | READ | IDENTITY | NORMALIZE) && is_wide() && fills_rows() && whole_tiles() &&
           whole_values() && whole_answers();
  }

  // Processes plain chunks from `chunk` on. Returns the first one that is not whole, is marked, or is `stop`.
  INLINE int pass_plain(int chunk, int stop) {
    NO_UNROLL for (; chunk < stop && is_whole(chunk) && marked == 0.f; chunk++) {
      sync_block();
      UNROLL for (int t = 0; t < TILES; t++) tiles[AHEAD ? t : 0].store(sm + t * TILE_BYTES);
      store_matrices();
      const V v = value;
      const float of_state = before, of_change = after, kept = end;
      sync_block();
      if (chunk + 1 < stop) {
        if (is_whole(chunk + 1)) {
          UNROLL for (int t = 0; t < TILES; t++) tiles[AHEAD ? t : 0].bring(tile_at[AHEAD ? t : 0], across[AHEAD ? t : 0], true);
          load_columns(value, value_at);
        }
        go_on();
        value_at += value_onward;
        bring_record();
      }
      V held[2] = {none<V>(), none<V>()}, u = v;
      if (is_delta()) {
        state.times_tiles(sm, slice, held);
        u = changes(u, held[0], of_state);
      } else {
        V one[1];
        state.times_tiles(sm + TILE_BYTES, slice, one);
        held[1] = one[0];
      }
      const bool finite = leave_changes(u, of_change);
      write_columns(answer_at, answer_of(held[1], of_state, finite));
      change(chunk, kept, finite);
      answer_at += answer_onward;
    }
    return chunk;
  }

  INLINE void run() {
    const int of_columns = quotient_of(block_index(), call.by_columns);
    const int of_parts = quotient_of(of_columns, call.by_parts), part = of_columns - of_parts * call.parts;
    number = quotient_of(of_parts, call.by_heads);
    head = of_parts - number * call.heads;
    state_head = quotient_of(head, call.by_readers);
    column = ((block_index() - of_columns * call.columns) * WARPS + (thread_index() >> 5)) * (2 * COUNT) + (lane & 1) * COUNT;
    const bool first_reader = state_head * call.readers == head;
    if (!first_reader && !writes()) return;
    if (has(FOLD) && has(IDENTITY) && part == 0) return;
    sequence = sequence_of(call, number);
    if (sequence.tokens < call.least || sequence.tokens >= call.most) return;
    record0 = (long long)head * call.chunks + sequence.chunk0;
    const int chunks = (sequence.tokens + CHUNK - 1) / CHUNK;
    const int first = part * sequence.part_chunks, stop = min_of(first + sequence.part_chunks, chunks);
    // The last part that has tokens leaves the last state of its sequence.
    const bool leaves = !has(RESUME) || (first + sequence.part_chunks >= chunks && (part == 0 || first < chunks));
    if (!leaves && !writes()) return;
    read_state(part);
    const int every = first_reader && call.boundaries.data != 0 ? call.boundary_chunks : 0;
    before = after = end = marked = 0.f;
    set_out(first);
    if (EARLY && first < stop) bring(first);
    int chunk = first;
    if (PLAIN && every == 0 && is_plain()) chunk = pass_plain(chunk, stop);
    NO_UNROLL for (;; chunk++) {
      const bool over = chunk >= stop;
      if (over || (every != 0 && chunk % every == 0)) {
        const States to = either(over, call.last, call.boundaries);
        if (to.data != 0 && first_reader && leaves) write_state(to, over ? part : chunk / every);
      }
      if (over) return;
      sync_block();
      if (!EARLY) bring(chunk);
      store(chunk);
      const V v = value_of(chunk);
      const bool by_steps = has(STEPS) || marked != 0.f;
      float of_state = before, of_change = after;
      const float kept = end;
      if (has(STEPS)) read_factors(chunk, of_state, of_change);
      sync_block();
      if (EARLY && chunk + 1 < stop) bring(chunk + 1);
      V answer;
      if (RARELY(by_steps)) answer = steps(min_of(sequence.tokens - chunk * CHUNK, CHUNK), v, of_state, of_change);
      else answer = products(chunk, v, of_state, of_change, kept);
      if (whole_answers() && is_whole(chunk)) write_columns(answer_at, answer);
      else if (writes()) write_answer(chunk * CHUNK + slice, answer);
      answer_at += answer_onward;
    }
  }
};

// Parameters: name, dims, gate per dim, blocks per SM.
#define LINEAR_WALK(name, DIMS, PER_DIM, BLOCKS)                                                   \
  KERNEL LAUNCH_BOUNDS((Walk<DIMS, PER_DIM>::THREADS), BLOCKS) void name(const Linear call) {      \
    SHARED(memory, (Walk<DIMS, PER_DIM>::SHARED_BYTES));                                           \
    Walk<DIMS, PER_DIM>(memory, call).run();                                                       \
  }

// Like LINEAR_WALK, with two columns per lane.
#define LINEAR_PAIRS(name, DIMS, PER_DIM, BLOCKS)                                                  \
  KERNEL LAUNCH_BOUNDS((Walk<DIMS, PER_DIM, 2>::THREADS), BLOCKS) void name(const Linear call) {   \
    SHARED(memory, (Walk<DIMS, PER_DIM, 2>::SHARED_BYTES));                                        \
    Walk<DIMS, PER_DIM, 2>(memory, call).run();                                                    \
  }
