// The parts of a chunk's products that do not depend on the state: T, P and the factors of its tokens (record.cuh), for all
// chunks at once.
//
//   A_ij = beta_i exp(G_i - G_j) k_i.k_j  for j < i,   T = (I + A)^-1 diag(beta),   P_ij = scale exp(G_i - G_j) q_i.k_j
//
// 1. A warp has a chunk. It loads SLAB dims of keys and queries at a time into shared memory; a lane has every eighth row and
//    every fourth key of the products.
// 2. T comes by substitution, with a column per lane: powers of A overflow if keys are alike.
// 3. Sums of logarithms are f64. With a gate per dim they are in units (run.cuh), and the gates are applied to the rows:
//    exp(G_i) q_i . exp(-G_j) k_j, which is valid while all sums are within 2^±100; a lane has a dim.
// 4. A chunk is marked if a sum exceeds 2^100 (with a gate per dim, in either direction), if a logarithm is -inf or NaN, or if
//    a product is not finite.
#pragma once

#include "exp.cuh"
#include "place.cuh"
#include "product.cuh"
#include "record.cuh"
#include "run.cuh"

// Largest gate of a run of tokens.
constexpr float MOST_GATE = 0x1p100f;

template <bool PER_DIM, bool DELTA> struct Prepare {
  enum {
    WARPS = 4,
    THREADS = WARPS * 32,
    SLAB = 32,
    ROW_BYTES = SLAB * 4 + 16,
    // Rows of keys, of queries and, with a gate per dim, of keys for columns.
    ROWS = PER_DIM ? 48 : 32,
    COLUMNS_AT = PER_DIM ? 32 * ROW_BYTES : 0,
    FACTORS_AT = ROWS * ROW_BYTES,  // factors of rows
    WARP_BYTES = FACTORS_AT + 128,
    SHARED_BYTES = WARPS * WARP_BYTES,
    FIRST = DELTA ? 0 : 2,  // only a rule with delta needs products of keys with keys
  };
  static_assert(2 * CHUNK * CHUNK * 4 <= FACTORS_AT, "products take the place of rows");

  const Linear& call;
  const SharedBytes sm;
  const int lane, token;  // token: one for each lane of half a warp
  Sequence sequence;
  int position, tokens;  // position of the chunk's first token; number of its tokens
  Rows keys, queries, gates;
  Address tile;
  int dims;

  INLINE Prepare(SharedBytes sm, const Linear& call)
      : call(call), sm(sm), lane(thread_index() & 31), token(lane & 15) {}

  INLINE bool has(int flag) const { return (call.flags & flag) != 0; }
  INLINE Rows rows(const Tensor& t, int h, int dim, int dtype, int flag) const {
    return rows_of(t, sequence, h, dim, dtype, has(flag), has(REVERSE));
  }

  // Element x of row r; the rows are keys, then queries. Zero past the last token and the last dim.
  INLINE float at(int r, int x) const {
    const Rows& from = r < CHUNK ? keys : queries;
    const int t = r % CHUNK;
    return t < tokens && x < from.dim ? element(row_at(from, position + t), x, from.dtype) : 0.f;
  }
  INLINE float factor_of(int r) const { return load_shared_f(sm + FACTORS_AT + r * 4); }

  // Computes the factors that normalise the rows.
  INLINE void measure() {
    float own = 1.f;
    if (has(NORMALIZE)) {
      NO_UNROLL for (int r = 0; r < 2 * CHUNK; r++) {
        float sum = 0.f;
        NO_UNROLL for (int x = lane; x < call.key_dim; x += 32) sum = __builtin_fmaf(at(r, x), at(r, x), sum);
        UNROLL for (int bit = 1; bit < 32; bit *= 2) sum += shuffle_xor(sum, bit);
        if (lane == r) own = 1.f / __builtin_sqrtf(sum + call.epsilon);
      }
    }
    store_shared_f(sm + FACTORS_AT + lane * 4, own);
    sync_warp();
  }

  // Loads the rows of a slab of dims from `x0` on into shared memory.
  INLINE void bring(int x0) {
    f4 quad[8];
    UNROLL for (int i = 0; i < 8; i++) {
      const Rows& from = i < 4 ? keys : queries;
      const int t = i % 4 * 4 + lane / 8, x = x0 + lane % 8 * 4;
      quad[i] = zero4();
      if (t < tokens) quad[i] = load_row4(from, row_at(from, position + t), x);
    }
    UNROLL for (int i = 0; i < 8; i++) {
      const int r = i * 4 + lane / 8;
      store_shared(sm + r * ROW_BYTES + lane % 8 * 16, unpacked(i < 4 ? keys : queries, quad[i]) * factor_of(r));
    }
  }

  INLINE Address tile_at(int r, int x) const { return tile + (r * dims + x) * 4; }

  // Like bring, with a gate per dim and one dim per lane. Returns whether the sums of logarithms are within bounds.
  INLINE bool bring_gated(int x0) {
    const int x = x0 + lane;
    UnitSum sum;
    NO_UNROLL for (int t0 = 0; t0 < CHUNK; t0 += 4) {
      float g[4], k[4], q[4];
      load_run(g, gates, position + t0, tokens - t0, x);
      load_run(k, keys, position + t0, tokens - t0, x);
      load_run(q, queries, position + t0, tokens - t0, x);
      UNROLL for (int e = 0; e < 4; e++) {
        const int t = t0 + e, units = sum.add(g[e]);
        const float before = power_of_units(units), undone = power_of_units((int)-(unsigned)units);
        const float key = k[e] * factor_of(t), query = q[e] * factor_of(CHUNK + t);
        const SharedBytes to = sm + t * ROW_BYTES + lane * 4;
        store_shared_f(to, key * before);
        store_shared_f(to + CHUNK * ROW_BYTES, query * before);
        store_shared_f(to + COLUMNS_AT, key * undone);
        write_f32(tile_at(t, x), key * before);
        write_f32(tile_at(CHUNK + t, x), query * before);
      }
    }
    const float end = power_of_units((int)sum.units);
    NO_UNROLL for (int t = 0; t < CHUNK; t++)
      write_f32(tile_at(2 * CHUNK + t, x), load_shared_f(sm + COLUMNS_AT + t * ROW_BYTES + lane * 4) * end);
    write_f32(tile_at(3 * CHUNK, x), end);
    return sum.good;
  }

  // Writes the tile of a marked chunk. Rows past the last dim are cleared, even after a change that was not finite.
  INLINE void write_marked() const {
    NO_UNROLL for (int x = lane; x < dims; x += 32)
      NO_UNROLL for (int t = 0; t < CHUNK; t++) {
        write_f32(tile_at(t, x), at(t, x) * factor_of(t));
        write_f32(tile_at(CHUNK + t, x), at(CHUNK + t, x) * factor_of(CHUNK + t));
        write_f32(tile_at(2 * CHUNK + t, x),
                  x >= call.key_dim ? CLEAR
                  : t < tokens     ? gate_of(element(row_at(gates, position + t), x, gates.dtype))
                                   : 1.f);
      }
  }

  // Returns a lane's double.
  static INLINE double from_lane(double x, int lane) {
    const unsigned long long bits = bits_of_double(x);
    const unsigned high = shuffle_from((unsigned)(bits >> 32), lane), low = shuffle_from((unsigned)bits, lane);
    return double_of_bits((unsigned long long)high << 32 | low);
  }

  // Processes one chunk per warp, in the first `call.heads * call.chunks` warps.
  INLINE void run(int warp) {
    const int head = warp / call.chunks, of_all = warp - head * call.chunks;
    sequence = sequence_of(call, sequence_of_chunk(call, of_all));
    position = (of_all - sequence.chunk0) * CHUNK;
    tokens = min_of(sequence.tokens - position, CHUNK);
    const int state_head = quotient_of(head, call.by_readers);
    keys = rows(call.key, quotient_of(state_head, call.by_key_group), call.key_dim, call.dtype, KEY_VEC4);
    queries = rows(call.query, quotient_of(head, call.by_sharers), call.key_dim, call.dtype, QUERY_VEC4);
    gates = rows(call.decay, state_head, PER_DIM ? call.key_dim : 1, call.gate_dtype, 0);
    const Rows betas = rows(call.beta, state_head, 1, call.gate_dtype, 0);
    const long long chunk = (long long)head * call.chunks + of_all;
    const Address record = call.records + chunk * (RECORD * 4);
    dims = call.key_dim > 64 ? 128 : 64;
    tile = call.tiles + chunk * (TILE_ROWS * dims * 4);
    const bool inside = token < tokens;
    float gate = 0.f, beta = 0.f;
    if (!PER_DIM && inside && call.decay.data != 0) gate = element(row_at(gates, position + token), 0, gates.dtype);
    if (DELTA && inside) beta = element(row_at(betas, position + token), 0, betas.dtype);
    double sum = 0.;
    if (!PER_DIM)
      NO_UNROLL for (int t = 0; t < CHUNK; t++) {
        const float other = float_of_bits(shuffle_from(bits_of(gate), t));
        if (t <= token) sum += (double)other;
      }
    measure();

    float products[4][4];
    UNROLL for (int a = FIRST; a < 4; a++)
      UNROLL for (int b = 0; b < 4; b++) products[a][b] = 0.f;
    bool good = true;
    NO_UNROLL for (int x0 = 0; x0 < (PER_DIM ? dims : call.key_dim); x0 += SLAB) {
      if (PER_DIM) good = bring_gated(x0) && good;
      else bring(x0);
      sync_warp();
      NO_UNROLL for (int x = 0; x < SLAB; x += 4) {
        f4 row[4], column[4];
        UNROLL for (int a = FIRST; a < 4; a++) row[a] = load_shared(sm + (a * 8 + lane / 4) * ROW_BYTES + x * 4);
        UNROLL for (int b = 0; b < 4; b++) column[b] = load_shared(sm + COLUMNS_AT + (b * 4 + lane % 4) * ROW_BYTES + x * 4);
        UNROLL for (int e = 0; e < 4; e++)
          UNROLL for (int a = FIRST; a < 4; a++)
            UNROLL for (int b = 0; b < 4; b++)
              products[a][b] = __builtin_fmaf(row[a][e], column[b][e], products[a][b]);
      }
      sync_warp();
    }
    UNROLL for (int a = FIRST; a < 4; a++)
      UNROLL for (int b = 0; b < 4; b++)
        store_shared_f(sm + ((a * 8 + lane / 4) * CHUNK + b * 4 + lane % 4) * 4, products[a][b]);
    sync_warp();

    // Products of keys become A; those with queries are written to the record as P.
    NO_UNROLL for (int m = 0; m < 8; m++) {
      const int i = 2 * m + lane / 16, j = token;
      const float gates = PER_DIM ? 1.f : exp_of(from_lane(sum, i) - sum);
      const float rate = float_of_bits(shuffle_from(bits_of(beta), i));
      const SharedBytes of_keys = sm + (i * CHUNK + j) * 4;
      float p = 0.f;
      if (j <= i) {
        p = load_shared_f(of_keys + CHUNK * CHUNK * 4) * gates;
        good = good && gates <= MOST_GATE && is_finite(p);
        p *= call.scale;
      }
      write_f32(record + (RECORD_P + i * CHUNK + j) * 4, p);
      if (DELTA) {
        float a = 0.f;
        if (j < i) {
          a = load_shared_f(of_keys) * gates;
          good = good && is_finite(a);
          a *= rate;
        }
        store_shared_f(of_keys, a);
      }
    }
    if (DELTA) {
      sync_warp();
      float x[CHUNK];
      UNROLL for (int i = 0; i < CHUNK; i++) {
        float sum = i == token ? 1.f : 0.f;
        UNROLL for (int j = 0; j < i; j += 4) {
          const f4 a = load_shared(sm + (i * CHUNK + j) * 4);
          UNROLL for (int e = 0; e < 4; e++)
            if (j + e < i) sum = __builtin_fmaf(-a[e], x[j + e], sum);
        }
        x[i] = sum;
      }
      UNROLL for (int i = 0; i < CHUNK; i++) {
        const float t = x[i] * beta;
        good = good && is_finite(t);
        if (lane < CHUNK) write_f32(record + (RECORD_T + i * CHUNK + lane) * 4, t);
      }
    }
    const double last = from_lane(sum, CHUNK - 1);
    float before = exp_of(sum), after = exp_of(last - sum);
    good = good && before <= MOST_GATE;
    const bool marked = any_of_warp(!good);
    const float end = exp_of(last);
    if (marked) {
      before = gate_of(gate);
      after = beta;
      if (PER_DIM) write_marked();
    }
    if (lane >= CHUNK) return;
    write_f32(record + (RECORD_BEFORE + lane) * 4, before);
    write_f32(record + (RECORD_AFTER + lane) * 4, after);
    if (lane > 0) return;
    write_f32(record + RECORD_END * 4, end);
    write_f32(record + RECORD_MARKED * 4, marked ? 1.f : 0.f);
    const unsigned long long bits = bits_of_double(last);
    write_f2(record + RECORD_SUM * 4, f2{float_of_bits((unsigned)bits), float_of_bits((unsigned)(bits >> 32))});
  }
};

// Parameters: name, gate per dim, delta, blocks per SM.
#define LINEAR_PREPARE(name, PER_DIM, DELTA, BLOCKS)                                               \
  KERNEL LAUNCH_BOUNDS((Prepare<PER_DIM, DELTA>::THREADS), BLOCKS) void name(const Linear call) {  \
    typedef Prepare<PER_DIM, DELTA> P;                                                             \
    SHARED(memory, P::SHARED_BYTES);                                                               \
    const int own = thread_index() >> 5, warp = block_index() * P::WARPS + own;                    \
    if (warp < call.heads * call.chunks) P(memory + own * P::WARP_BYTES, call).run(warp);          \
  }
