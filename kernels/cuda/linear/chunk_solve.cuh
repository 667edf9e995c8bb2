// Delta rules, all chunks at once: the first launch. chunks.cuh has the formulas of rules without delta, whose chunks have the same
// length; walk.cuh has those of a delta rule that walks.
//
//   solve     A_ij = beta_i exp(G_i - G_j) k_i.k_j  for j < i,   (I + A) W = beta exp(G) k,   (I + A) U = beta v
//   states    u = U - W S,   S_next = exp(G_C) S + sum_j exp(G_C - G_j) k_j u_j',  chunk by chunk
//   answers   those of chunks.cuh, with u in place of v
//
// The naive loop solves the rows u of a chunk one after the other, when it knows the state. W and U are solved without it, so that
// the first launch has blocks for every chunk, and the second one only multiplies.
//
//  1. A block solves 128 columns of W and U, and computes A itself. Its threads share the columns like those of the other launches
//     (Shape). SOLVED rows at a time are substituted, a column per lane, and then subtracted from all later rows.
//  2. A chunk is marked if a gate clears, is NaN or grows too much, or if a number of A, W or U is not finite. The second launch
//     processes its tokens one by one and writes their answers; the third one skips it. Each block marks for itself.
//  3. W and the keys of the second launch are stored in the order in which its threads read them (Tile).
#pragma once

#include "chunk_dims.cuh"
#include "chunk_terms.cuh"

namespace chunks {

// Solves (I + A) X = R for GROUPS times 64 columns. A and two panels of X are in shared memory; a thread has its elements of R, and
// then those of X.
template <class S> struct Substitution {
  enum {
    SOLVED = 16,
    GROUPS = 2,
    A_BYTES = LONG_CHUNK * 4 + 16,
    PANELS_AT = ROWS * A_BYTES,
    ROW_BYTES = GROUPS * COLUMN_BYTES,
    PANEL_BYTES = SOLVED * ROW_BYTES,
    BYTES = PANELS_AT + 2 * PANEL_BYTES,
  };
  static_assert(4 * S::DOWN == SOLVED && S::ACROSS == 4, "a warp substitutes its own rows, with a column of each group per lane");
  const SharedBytes sm;
  f4 sum[S::DOWN][GROUPS];

  static INLINE int row_of(int i) { return S::first_row() + S::lane_row() + i * 4; }
  static INLINE int column_of(int g) { return g * COLUMNS + S::column_of(0); }
  INLINE SharedBytes a_at(int row, int column) const { return sm + row * A_BYTES + column * 4; }
  // Place of a row of the panel that starts with row `from`.
  INLINE SharedBytes x_at(int from, int row, int column) const {
    return sm + PANELS_AT + from / SOLVED % 2 * PANEL_BYTES + row * ROW_BYTES + column * 4;
  }
  INLINE SharedBytes own_at(int i, int g) const { return x_at(S::first_row(), S::lane_row() + i * 4, column_of(g)); }

  // Substitutes the rows of this warp. Returns whether they are finite.
  INLINE bool substitute() const {
    const int first = S::first_row();
    const SharedBytes own = x_at(first, 0, S::first_column() + (S::thread() & 31));
    UNROLL for (int i = 0; i < S::DOWN; i++)
      UNROLL for (int g = 0; g < GROUPS; g++) store_shared(own_at(i, g), sum[i][g]);
    sync_warp();
    bool finite = true;
    float x[SOLVED][GROUPS];
    UNROLL for (int i = 0; i < SOLVED; i++) {
      UNROLL for (int g = 0; g < GROUPS; g++) x[i][g] = load_shared_f(own + i * ROW_BYTES + g * COLUMN_BYTES);
      UNROLL for (int j = 0; j < i; j += 4) {
        const f4 a = load_shared(a_at(first + i, first + j));
        UNROLL for (int e = 0; e < 4; e++)
          UNROLL for (int g = 0; g < GROUPS; g++)
            if (j + e < i) x[i][g] = __builtin_fmaf(-a[e], x[j + e][g], x[i][g]);
      }
      UNROLL for (int g = 0; g < GROUPS; g++) {
        finite = finite && is_finite(x[i][g]);
        store_shared_f(own + i * ROW_BYTES + g * COLUMN_BYTES, x[i][g]);
      }
    }
    return finite;
  }

  // Subtracts what rows from .. from + SOLVED - 1 add to the rows of this thread.
  INLINE void subtract(int from) {
    NO_UNROLL for (int k = 0; k < SOLVED; k += 4) {
      f4 weights[S::DOWN];
      UNROLL for (int i = 0; i < S::DOWN; i++) weights[i] = load_shared(a_at(row_of(0), from + k) + i * 4 * A_BYTES);
      UNROLL for (int e = 0; e < 4; e++)
        UNROLL for (int g = 0; g < GROUPS; g++) {
          const f4 x = load_shared(x_at(from, k + e, column_of(g)));
          UNROLL for (int i = 0; i < S::DOWN; i++) add_product(sum[i][g], -weights[i][e], x);
        }
    }
  }

  // Solves. Returns whether X is finite, as far as this warp computes it.
  INLINE bool solve() {
    bool finite = true;
    NO_UNROLL for (int from = 0; from < LONG_CHUNK; from += SOLVED) {
      if (S::first_row() == from) finite = substitute();
      sync_block();
      if (S::first_row() > from) subtract(from);
      if (S::first_row() == from)
        UNROLL for (int i = 0; i < S::DOWN; i++)
          UNROLL for (int g = 0; g < GROUPS; g++) sum[i][g] = load_shared(own_at(i, g));
    }
    return finite;
  }
};

// The products of a chunk with at most one gate per head, and the keys of a block that solves.
template <class S> struct HeadKeys : Pairs<S> {
  typedef Pairs<S> P;
  enum { KEPT_AT = P::LOGS_AT, FREE_AT = P::SHARED_BYTES };  // memory from KEPT_AT on is used until the end

  INLINE HeadKeys(SharedBytes sm, const Linear& call) : P(sm, call) {}

  // Computes the products. Returns whether no gate clears or grows too much.
  INLINE bool multiply(int head, int state_head, bool own, Address, int) {
    P::multiply(head, state_head, own);
    const int t = thread_index() % LONG_CHUNK;
    return this->logs.clears(t) == 0.f && this->logs.excess(t) == 0.;
  }
  INLINE float norm(int t) const { return this->logs.number(NORMS_AT, LONG_CHUNK + t); }
  template <class Each> INLINE void for_each(Each each) const {
    UNROLL for (int i = 0; i < S::DOWN; i++)
      UNROLL for (int b = 0; b < S::ACROSS; b++) each(P::row_of(i), P::key_of(b), this->score[i][b]);
  }

  // Stores exp(G) of each token and exp(G_C - G).
  INLINE void prepare(SharedBytes to) const {
    const int t = thread_index() % LONG_CHUNK;
    const double sum = this->logs.sum(t);
    if (thread_index() < 2 * LONG_CHUNK)
      store_shared_f(to + thread_index() * 4, exp_of(thread_index() < LONG_CHUNK ? sum : this->logs.sum(LONG_CHUNK - 1) - sum));
  }
  // Raw elements of the keys of this thread's rows.
  INLINE void fetch_keys(f4 (&to)[S::DOWN], int state_head, Address, int dim) const {
    this->fetch_rows(to, this->keys(state_head), P::row_of(0), 4, dim, this->tokens == LONG_CHUNK && dim / COLUMNS * COLUMNS + COLUMNS <= this->call.key_dim);
  }
  // Turns them into those of exp(G) k, normalised. Leaves the keys of the change of the state.
  INLINE void finish_keys(f4 (&x)[S::DOWN], Address tile, int dim, SharedBytes gates) const {
    const int row = P::row_of(0);
    const Address to = Tile::key(this->call, tile, row, dim);
    const int across = Tile::dims(this->call) * 32;  // from an element of a quad to the next one
    UNROLL for (int i = 0; i < S::DOWN; i++) {
      const f4 k = this->numbers(x[i], KEY_VEC4, this->call.dtype) * norm(row + i * 4);
      const float left = load_shared_f(gates + (LONG_CHUNK + row + i * 4) * 4);
      UNROLL for (int e = 0; e < 4; e++) write_f32(to + i * 16 + e % 2 * across + e / 2 * 64, k[e] * left);
      x[i] = k * load_shared_f(gates + (row + i * 4) * 4);
    }
  }
  INLINE void write_gates(Address tile) const {
    if (thread_index() < Tile::dims(this->call))
      write_f32(Tile::gate(this->call, tile, thread_index()), exp_of(this->logs.sum(LONG_CHUNK - 1)));
  }
};

// The same with a gate per dim. The products leave gated keys and gates.
struct DimKeys : DimPairs {
  enum { KEPT_AT = DimPairs::NORMS_AT, FREE_AT = DimPairs::SHARED_BYTES };

  INLINE DimKeys(SharedBytes sm, const Linear& call) : DimPairs(sm, call) {}

  INLINE float norm(int t) const { return DimPairs::norm(LONG_CHUNK + t); }
  INLINE void prepare(SharedBytes) const {}
  INLINE void fetch_keys(f4 (&to)[4], int, Address tile, int dim) const {
    const Address from = Tile::w(call, tile, Substitution<Few>::row_of(0), dim / 4);
    UNROLL for (int i = 0; i < 4; i++) to[i] = read_f4(from + i * Tile::lanes_of_w(call) * 32);
  }
  INLINE void finish_keys(f4 (&)[4], Address, int, SharedBytes) const {}
  INLINE void write_gates(Address) const {}
};

// The first launch: P of every output head if the call has answers, and columns of W or U of every state.
template <class S, class Keys> struct Solve : Keys {
  using Keys::call;
  using Keys::position;
  using Keys::sm;
  using Keys::tokens;
  enum { BETAS_AT = Keys::FREE_AT, GATES_AT = BETAS_AT + LONG_CHUNK * 4, SHARED_BYTES = GATES_AT + 2 * LONG_CHUNK * 4 };
  static_assert((int)Substitution<S>::BYTES <= (int)Keys::KEPT_AT, "A and X take the place of slabs");

  // The work of a block: an output head and a chunk, or a block of a state and a chunk.
  struct Place {
    int head, state_head, block;
    bool own;  // of a state; `head` is then unused
  };

  INLINE Solve(SharedBytes sm, const Linear& call) : Keys(sm, call) {}

  INLINE float beta(int t) const { return load_shared_f(sm + BETAS_AT + t * 4); }

  // Solves, after the products. `finite` is false in a thread that knows that the chunk must be marked.
  INLINE void solve(const Tensor& written, int state_head, int block, bool finite) {
    typedef Substitution<S> Solver;
    Solver solver{sm, {}};
    f4 of[Solver::GROUPS][S::DOWN];
    const Address tile = Tile::of(call, state_head, this->of_all);
    if (thread_index() < LONG_CHUNK) {
      const int t = thread_index();
      const Rows betas = this->rows(call.beta, state_head, 1, call.gate_dtype, 0);
      const float rate = t < tokens ? element(row_at(betas, position + t), 0, betas.dtype) : 0.f;
      finite = is_finite(rate) && finite;
      store_shared_f(sm + BETAS_AT + t * 4, rate);
    }
    this->prepare(sm + GATES_AT);
    sync_block();
    this->for_each([&](int r, int j, float s) LAMBDA {
      const float a = j < r && r < tokens ? s * Keys::norm(r) * Keys::norm(j) * beta(r) : 0.f;
      finite = finite && is_finite(a);
      store_shared_f(solver.a_at(r, j), a);
    });
    const int group0 = block * Solver::GROUPS, of_w = Tile::row_blocks(call), row = solver.row_of(0), quad = S::column_of(0);
    const Rows from = this->values(state_head);
    UNROLL for (int g = 0; g < Solver::GROUPS; g++) {
      const int group = group0 + g, column = (group - of_w) * COLUMNS + quad;
      if (group < of_w) this->fetch_keys(of[g], state_head, tile, group * COLUMNS + quad);
      else this->fetch_rows(of[g], from, row, 4, column, tokens == LONG_CHUNK && column / COLUMNS * COLUMNS + COLUMNS <= from.dim);
    }
    UNROLL for (int g = 0; g < Solver::GROUPS; g++) {
      const int group = group0 + g;
      if (group < of_w) this->finish_keys(of[g], tile, group * COLUMNS + quad, sm + GATES_AT);
      UNROLL for (int i = 0; i < S::DOWN; i++) {
        const f4 x = group < of_w ? of[g][i] : this->numbers(of[g][i], VALUE_VEC4, from.dtype);
        solver.sum[i][g] = x * beta(row + i * 4);
      }
    }
    sync_block();
    finite = solver.solve() && finite;
    const Rows to = this->rows(written, state_head, (int)call.boundaries.row, TYPE_F32, 0);
    UNROLL for (int g = 0; g < Solver::GROUPS; g++) {
      const int group = group0 + g, column = (group - of_w) * COLUMNS + quad;
      const int apart = group < of_w ? Tile::lanes_of_w(call) * 32 : 4 * (int)to.step;
      const Address first = group < of_w ? Tile::w(call, tile, row, (group * COLUMNS + quad) / 4) : row_at(to, position + row) + column * 4;
      const int count = group < of_w ? LONG_CHUNK : column < to.dim ? tokens : 0;
      UNROLL for (int i = 0; i < S::DOWN; i++)
        if (row + i * 4 < count) write_f4(first + i * apart, solver.sum[i][g]);
    }
    const bool marked = any_of_block(!finite);
    if (block == 0) this->write_gates(tile);
    if (thread_index() == 0) write_f32(Tile::mark(call, tile, block), marked ? 1.f : 0.f);
  }

  // The blocks of states take longest, and come first.
  INLINE Place place() {
    const int blocks = Tile::blocks(call), of_states = quotient_of(call.heads, call.by_readers) * call.chunks * blocks;
    const bool own = block_index() < of_states;
    const int index = own ? block_index() : block_index() - of_states, of_blocks = own ? index / blocks : index;
    const int head = of_blocks / call.chunks;
    this->take(of_blocks - head * call.chunks);
    return Place{head, own ? head : quotient_of(head, call.by_readers), own ? index - of_blocks * blocks : 0, own};
  }

  // The code of the products is long, and there once.
  INLINE void run(const Place& at, const Tensor& written) {
    const int dim0 = at.block * Substitution<S>::GROUPS * COLUMNS;
    Address to = at.own ? Tile::of(call, at.state_head, this->of_all) : Tile::queries(call, at.head, this->of_all);
    if (at.own && dim0 >= call.key_dim) to = 0;
    const bool finite = this->multiply(at.head, at.state_head, at.own, to, dim0);
    if (at.own) solve(written, at.state_head, at.block, finite);
    else this->write(at.head);
  }
  INLINE void run(const Tensor& written) { run(place(), written); }
};

typedef Solve<Few, HeadKeys<Few>> HeadTerms;

// The first launch with a gate per dim: that of a delta rule, or P and B.
struct DimTerms : Solve<Few, DimKeys> {
  typedef Solve<Few, DimKeys> Solving;
  typedef DimWrites<Few> Writing;
  enum {
    SHARED_BYTES = (int)Solving::SHARED_BYTES > (int)Writing::SHARED_BYTES ? (int)Solving::SHARED_BYTES : (int)Writing::SHARED_BYTES,
  };

  INLINE DimTerms(SharedBytes sm, const Linear& call) : Solving(sm, call) {}

  INLINE void run(const Tensor& written) {
    const Place at = place();
    if (Tile::has_w(call) || !at.own) return Solving::run(at, written);
    Writing block(sm, call);
    block.take(of_all);
    block.run(at.state_head, at.block);
  }
};

}  // namespace chunks

// Parameters: name, work of a block, blocks per SM.
#define LINEAR_SOLVE(name, TERMS, BLOCKS)                                               \
  KERNEL LAUNCH_BOUNDS(chunks::Few::THREADS, BLOCKS) void name(const Long args) {       \
    SHARED(memory, TERMS::SHARED_BYTES);                                                \
    TERMS(memory, args.call).run(args.written);                                         \
  }
