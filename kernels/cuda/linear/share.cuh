// Linear attention with several query heads per state: a block computes the state once and answers all of its readers.
//
// Queries change no state. Keys, values, T and the changes of a chunk are therefore loaded and computed as in walk.cuh, which
// defines them, and every answer has the same bits as there:
//
//  1. By products, the queries and P of one reader after another replace those of the previous one in shared memory. The
//     operands of the next reader travel through registers while a reader is answered.
//  2. Token by token, each reader reads the state after each token. A tile has sixteen rows: those of CHUNK / readers tokens at
//     a time, one reader after another. Slice s answers row s of the tile.
//  3. If one reader needs a chunk token by token, because a product with its queries is not finite, all of them get it token by
//     token. With a gate per dim, the tiles of such a reader hold keys and gates separately.
#pragma once

#include "walk.cuh"

template <int DIMS, bool PER_DIM> struct Share : Walk<DIMS, PER_DIM> {
  typedef Walk<DIMS, PER_DIM> Alone;
  typedef typename Alone::Piece Piece;
  typedef typename Alone::State State;
  using Alone::AHEAD, Alone::EARLY, Alone::MATRICES_AT, Alone::MATRIX_QUADS, Alone::QUADS, Alone::TILE_BYTES;
  using Alone::after, Alone::before, Alone::call, Alone::column, Alone::end, Alone::head, Alone::lane, Alone::marked;
  using Alone::matrix, Alone::number, Alone::record0, Alone::sequence, Alone::slice, Alone::sm, Alone::state;
  using Alone::state_head, Alone::tile_at, Alone::tiles;
  using Alone::has, Alone::is_delta, Alone::is_whole, Alone::own_tiles, Alone::whole_tiles;

  INLINE Share(SharedBytes sm, const Linear& call) : Alone(sm, call) {}

  // Switches queries, records and answers to those of a reader.
  INLINE void turn_to(int reader) {
    head = state_head * call.readers + reader;
    record0 = (long long)head * call.chunks + sequence.chunk0;
  }
  INLINE Address record_of(int chunk) const { return call.records + (record0 + chunk) * (RECORD * 4); }

  // Loads the chunk with the queries of the first reader; and in lane r, whether the chunk of reader r is marked.
  INLINE void bring_first(int chunk) {
    this->bring(chunk);
    if (has(STEPS)) return;
    const long long own = (long long)(state_head * call.readers + lane) * call.chunks + sequence.chunk0 + chunk;
    marked = lane < call.readers ? load_f32(call.records + (own * RECORD + RECORD_MARKED) * 4) : 0.f;
  }

  // Loads the queries and P of a reader.
  INLINE void bring_reader(int chunk, int reader) {
    turn_to(reader);
    if (AHEAD) {
      if (whole_tiles() && (is_whole(chunk) || own_tiles())) {
        const Address next = tile_at[AHEAD ? 1 : 0];  // address of the first reader's queries in the next chunk
        this->find_tile(1, chunk);
        this->bring_tile(1);
        tile_at[AHEAD ? 1 : 0] = next;
      } else {
        tiles[AHEAD ? 1 : 0].drop();
      }
    }
    matrix = load_f4(record_of(chunk) + (thread_index() % (2 * MATRIX_QUADS)) * 16);
  }
  INLINE void store_reader(int chunk) {
    const bool own = own_tiles(), norms = has(NORMALIZE) && !own;
    if (whole_tiles() && (is_whole(chunk) || own)) this->store_whole(1, chunk, own, norms);
    else this->store_any(1, chunk, norms);
    const int at = thread_index() - MATRIX_QUADS;
    if (at >= 0 && at < MATRIX_QUADS)
      store_shared(sm + MATRICES_AT + (MATRIX_QUADS + matrix_quad(at >> 2, at & 3)) * 16, matrix);
  }

  // Processes the chunk by products.
  INLINE void by_products(int chunk, bool is_last, f4 u, float before, float after, float end) {
    f4 held[1];
    if (is_delta()) {
      state.times_tiles(sm, slice, held);
      u = this->changes(u, held[0], before);
    }
    const bool finite = this->leave_changes(u, after);
    NO_UNROLL for (int reader = 0;;) {
      const bool more = reader + 1 < call.readers;
      if (EARLY && more) bring_reader(chunk, reader + 1);
      if (EARLY && !more && !is_last) bring_first(chunk + 1);
      turn_to(reader);
      state.times_tiles(sm + TILE_BYTES, slice, held);
      this->write_answer(chunk * CHUNK + slice, this->answer_of(held[0], before, finite));
      if (!more) break;
      reader++;
      sync_block();
      if (!EARLY) bring_reader(chunk, reader);
      turn_to(reader);
      store_reader(chunk);
      sync_block();
    }
    this->change(chunk, end, finite);
  }

  // Stores the queries of tokens from .. from + each - 1 of the chunk, one reader after another. With a gate per dim, the queries
  // of the readers in `marks` come from their tiles.
  INLINE void store_queries(int chunk, int from, int each, int tokens, unsigned marks) {
    NO_UNROLL for (int i = 0; i < Piece::EACH; i += Piece::OF_ROW) {
      const int row = Piece::row_of(i), reader = row / each, token = from + row - reader * each;
      const bool prepared = PER_DIM && (marks >> reader & 1) != 0;
      f4 x[Piece::OF_ROW], finished[Piece::OF_ROW];
      UNROLL for (int o = 0; o < Piece::OF_ROW; o++) x[o] = zero4();
      if (reader < call.readers && token < tokens) {
        turn_to(reader);
        if (prepared) {
          const Address at = call.tiles + ((record0 + chunk) * TILE_ROWS + CHUNK + token) * (DIMS * 4);
          UNROLL for (int o = 0; o < Piece::OF_ROW; o++) x[o] = load_f4(at + Piece::quad_of(i + o) * 16);
        } else {
          const Rows from =
              this->rows(call.query, quotient_of(head, call.by_sharers), call.key_dim, call.dtype, QUERY_VEC4);
          const Address at = row_at(from, chunk * CHUNK + token);
          UNROLL for (int o = 0; o < Piece::OF_ROW; o++)
            x[o] = unpacked(from, load_row4(from, at, Piece::quad_of(i + o) * 4));
        }
      }
      UNROLL for (int o = 0; o < Piece::OF_ROW; o++) finished[o] = x[o];
      this->finish(finished, has(NORMALIZE));
      UNROLL for (int o = 0; o < Piece::OF_ROW; o++)
        store_shared(sm + TILE_BYTES + Piece::first_place() + Piece::place_of(i + o), prepared ? x[o] : finished[o]);
    }
  }

  // Processes tokens from .. stop - 1 of the chunk, one by one: returns the answer to row `slice` of the queries. `gate` and
  // `beta` are those of token `slice`.
  INLINE f4 steps(int from, int stop, int each, f4 v, float gate, float beta) {
    f4 answer = zero4();
    NO_UNROLL for (int j = from; j < stop; j++) {
      f4 k[QUADS];
      const f4 u = this->step(j, v, gate, beta, k);
      UNROLL for (int i = 0; i < QUADS; i++)
        UNROLL for (int e = 0; e < 4; e++)
          if (this->has_row(i * 4 + e)) add_product(state.row[i * 4 + e], k[i][e], u);
      NO_UNROLL for (int row = j - from; row < each * call.readers; row += each) {
        f4 sum = zero4();
        UNROLL for (int i = 0; i < QUADS; i++) {
          const f4 q = load_shared(State::own_quads(sm, row, slice) + (TILE_BYTES + i * 256));
          UNROLL for (int e = 0; e < 4; e++) add_product(sum, q[e], state.row[i * 4 + e]);
        }
        sum = over_slices(sum);
        if (slice == row) answer = sum * call.scale;
      }
    }
    return answer;
  }

  // Processes the chunk token by token.
  INLINE void by_steps(int chunk, f4 v, float gate, float beta, unsigned marks) {
    const int tokens = min_of(sequence.tokens - chunk * CHUNK, CHUNK), each = CHUNK / call.readers;
    if (!has(STEPS)) {
      int first = 0;
      while ((marks >> first & 1) == 0) first++;
      turn_to(first);
      gate = load_f32(record_of(chunk) + (RECORD_BEFORE + slice) * 4);
      beta = load_f32(record_of(chunk) + (RECORD_AFTER + slice) * 4);
      if (PER_DIM)
        NO_UNROLL for (int t = 0; t < 3; t += 2)
          Piece::copy(sm + t * TILE_BYTES, this->source(t), chunk, [&](f4 (&)[Piece::OF_ROW]) LAMBDA {});
    }
    NO_UNROLL for (int from = 0; from < tokens; from += each) {
      sync_block();
      store_queries(chunk, from, each, tokens, marks);
      sync_block();
      const f4 answer = steps(from, min_of(from + each, tokens), each, v, gate, beta);
      const int reader = slice / each, token = from + slice - reader * each;
      turn_to(reader);
      if (reader < call.readers && token < tokens) this->write_answer(chunk * CHUNK + token, answer);
    }
  }

  INLINE void run() {
    const int of_columns = quotient_of(block_index(), call.by_columns);
    number = quotient_of(of_columns, call.by_heads);
    state_head = of_columns - number * call.heads;
    column = ((block_index() - of_columns * call.columns) * Alone::WARPS + (thread_index() >> 5)) * 8 + (lane & 1) * 4;
    sequence = sequence_of(call, number);
    if (sequence.tokens < call.least || sequence.tokens >= call.most) return;
    const int chunks = (sequence.tokens + CHUNK - 1) / CHUNK;
    turn_to(0);
    this->read_state(0);
    before = after = end = marked = 0.f;
    this->set_out(0);
    if (EARLY && chunks > 0) bring_first(0);
    NO_UNROLL for (int chunk = 0; chunk < chunks; chunk++) {
      sync_block();
      turn_to(0);
      if (!EARLY) bring_first(chunk);
      this->store(chunk);
      const f4 v = this->value_of(chunk);
      const unsigned marks = ballot(marked != 0.f);
      float of_state = before, of_change = after;
      const float kept = end;
      if (has(STEPS)) this->read_factors(chunk, of_state, of_change);
      sync_block();
      const bool is_last = chunk + 1 == chunks;
      if (RARELY(has(STEPS) || marks != 0)) {
        if (EARLY && !is_last) bring_first(chunk + 1);
        by_steps(chunk, v, of_state, of_change, marks);
      } else {
        by_products(chunk, is_last, v, of_state, of_change, kept);
      }
    }
    if (call.last.data != 0) this->write_state(call.last, 0);
  }
};

// Parameters: name, dims, gate per dim, blocks per SM.
#define LINEAR_SHARE(name, DIMS, PER_DIM, BLOCKS)                                                  \
  KERNEL LAUNCH_BOUNDS((Share<DIMS, PER_DIM>::THREADS), BLOCKS) void name(const Linear call) {     \
    SHARED(memory, (Share<DIMS, PER_DIM>::SHARED_BYTES));                                          \
    Share<DIMS, PER_DIM>(memory, call).run();                                                      \
  }
