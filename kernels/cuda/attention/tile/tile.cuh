// The tiled kernel: its shapes, the registers of a thread, and the parts of the work.
#pragma once

#include "../../common/elements.cuh"
#include "../added.cuh"
#include "../budget.cuh"
#include "../finish.cuh"

constexpr int TILE = 64;  // keys per tile

INLINE int clamped(long long x, int low, int high) { return x < low ? low : x > high ? high : (int)x; }

// Elements of a call, and the product of queries and keys. F32: f32. WIDENED: f16 or bf16, widened. PAIRED: f16, two dims at a
// time.
enum Elements { F32, WIDENED, PAIRED };

// Possible changes of the scores, other than ranges. ALL: any. EDGES: any, with every tile as an edge, which is less code.
// ADDENDS: a boolean mask and one f32 addend that is contiguous along keys, without a past. NONE: none, without a past; edges are
// small and slow, so that a driver compiles the kernel sooner and plain tiles have more registers.
enum Changes { ALL, EDGES, ADDENDS, NONE };

// Parameters of an instance of the kernel.
//
//   IN        elements
//   D         largest head size
//   WARPS     warps of a block
//   TM, TN    rows and columns of the scores of a lane
//   KD        dims of keys in the exchange area at a time
//   VK        values there at a time
//   PC        score columns of a lane in an exchange of weights
//   STRAIGHT  how much of W += P V is straight-line code in plain tiles: 0 none, 1 the stages of values, 2 the
//             exchanges of a stage
//   BODY      keys of a loop body of W += P V in plain tiles
//   FLUSH     tiles between additions to memory
//   CHANGES   possible changes of the scores
//   BUDGET    whether tiles are left out inside an error budget
//   SERIAL    whether a block can take all splits of its rows, one after another
template <Elements IN_, int D_, int WARPS_, int TM_, int TN_, int KD_, int VK_, int PC_, int STRAIGHT_, int BODY_,
          int FLUSH_, Changes CHANGES_, bool BUDGET_ = false, bool SERIAL_ = false>
struct Shape {
  static constexpr Elements IN = IN_;
  static constexpr int D = D_, WARPS = WARPS_, TM = TM_, TN = TN_, KD = KD_, VK = VK_, PC = PC_;
  static constexpr int STRAIGHT = STRAIGHT_, BODY = BODY_, FLUSH = FLUSH_;
  static constexpr Changes CHANGES = CHANGES_;
  static constexpr bool BUDGET = BUDGET_, SERIAL = SERIAL_;
};

// A lane's vote inside an error budget, for one of the rows that it shares: the sum of the weights that the split has left out. A
// row past the last one has no vote, and -0 or less in `lost`. `place` is the block's place among the counts. Empty without a
// budget.
template <bool BUDGET> struct Voting {
  typedef Unlimited Limit;
  struct Vote {};
  static INLINE Voting of(const Limit&, Vote&) { return {}; }
};
template <> struct Voting<true> {
  typedef Budget Limit;
  struct Vote {
    float lost;
    int place;
  };
  const Limit& limit;
  Vote& vote;
  static INLINE Voting of(const Limit& limit, Vote& vote) { return {limit, vote}; }
};

// The registers of a thread while its block works through the tiles of a split, and the parts of that work, each in the file that
// is named above it.
//
// Members are references to variables of `run`, so that each is split into registers on its own: a structure of all of them could
// not be split before the loops over its arrays are unrolled. Their order determines the register numbers in the PTX.
template <class S> struct Tiles : Voting<S::BUDGET> {
  static constexpr Elements IN = S::IN;
  static constexpr int D = S::D, WARPS = S::WARPS, TM = S::TM, TN = S::TN, KD = S::KD, VK = S::VK, PC = S::PC;
  static constexpr int STRAIGHT = S::STRAIGHT, BODY = S::BODY, FLUSH = S::FLUSH;
  static constexpr bool BUDGET = S::BUDGET, SERIAL = S::SERIAL;
  typedef typename Voting<BUDGET>::Vote Vote;
  typedef typename Voting<BUDGET>::Limit Limit;
  static constexpr bool LEAN = S::CHANGES == NONE, ADDED = S::CHANGES == ADDENDS;
  static constexpr bool PLAINS = S::CHANGES != EDGES;        // whether plain tiles have their own loop
  static constexpr bool ADDS = S::CHANGES == ALL || !PLAINS;  // whether addends pass through the exchange area
  // Whether the weights of a column are exchanged while the previous column is multiplied: not where registers are scarce.
  static constexpr bool PIPED = S::STRAIGHT == 2 && !ADDED && !BUDGET;
  static constexpr bool SLOW = LEAN || (ADDED && TM * TN > 32);  // whether edges are small and slow

  // Whether warps without a row skip products: not where the test costs full blocks more than others gain.
  static constexpr bool IDLES = !BUDGET && !ADDED && D != 96 && D != 128;

  static constexpr bool B16 = IN != F32, PAIRS = IN == PAIRED;
  typedef typename Raw<B16>::Type Raw4;
  static constexpr int SIZE = B16 ? 2 : 4;                  // bytes per element
  static constexpr int LANE_COLS = TILE / TN, LANE_ROWS = 32 / LANE_COLS;  // lanes of a warp along columns and along rows
  static constexpr int WARP_ROWS = LANE_ROWS * TM, BM = WARPS * WARP_ROWS, NT = WARPS * 32;  // rows per warp, per block; threads
  static constexpr int AN = D / LANE_COLS, AF = AN / 4;     // columns of W per lane, and groups of four of them
  static constexpr int Q_STRIDE = BM * 4, P_STRIDE = WARP_ROWS * 4, V_STRIDE = D * 4;  // in bytes
  static constexpr int DF = D / 4, CHUNKS = D / KD, KF = KD / 4;
  static constexpr int WORD = PAIRS ? 2 : 1;                // dims per word of shared memory
  static constexpr int SD = D / WORD, KS = KD / WORD;       // words per row; words per chunk
  static constexpr int CHAIN = 16;                          // words of PAIRED whose products are summed in f16
  static constexpr int Q_ITEMS = BM / 4 * DF / NT;          // 4 x 4 blocks of queries that a thread stages
  static constexpr int K_STEP = NT / KF;                    // groups of four keys that the block stages at once
  static constexpr int K_ITEMS = TILE / 4 / K_STEP;         // 4 x 4 blocks of keys that a thread stages
  static constexpr int K_ITEM = TN == 8 ? 32 : 8;           // keys between these blocks
  static constexpr int V_ITEMS = VK * DF / NT;              // groups of four values that a thread stages
  static constexpr int STAGES = TILE / VK;
  static constexpr int PK = PC * LANE_COLS;                 // keys per exchange of weights
  static constexpr int UK = PK < VK ? PK : VK;              // keys per product
  static constexpr int BATCH = WARP_ROWS < 16 || B16 ? 2 : 4;  // chunks of four rows that a lane adds to at once
  // Whether a lane has registers for the addends of its scores while these are computed.
  static constexpr bool EARLY = ADDED && TM * TN <= 32;
  static constexpr int WORDS = WARP_ROWS * 2;               // words of 32 keys of a boolean mask per warp
  static constexpr int OWN_WORDS = WORDS > 32 ? WORDS / 32 : 1;  // words per lane
  static constexpr int ROWS = BATCH * 4, LOOKS = BATCH / 2;  // rows of these chunks; chunks whose entries a lane looks up at once
  // Products of UK keys per tile, per stage, per exchange.
  static constexpr int PRODUCTS = TILE / UK, PRODUCTS_V = VK / UK, PRODUCTS_P = PK / UK;
  // Offsets in shared memory, in bytes: the queries are first; from X on there are keys, or values and, from XP on, weights per
  // warp.
  static constexpr int X = SD * Q_STRIDE, XP = X + VK * V_STRIDE, P_BYTES = PK * P_STRIDE;
  static constexpr int K_AREA = KS * TILE * 4, V_AREA = VK * V_STRIDE + WARPS * P_BYTES;
  static constexpr int SHARED_BYTES = X + (K_AREA > V_AREA ? K_AREA : V_AREA);
  static_assert((TM == 4 || TM == 8) && (TN == 4 || TN == 8) && AN % 4 == 0, "");
  static_assert(SHARED_BYTES <= 49152 && (!ADDS || SHARED_BYTES - X >= TILE * BM * 4), "");
  static_assert(BM / 4 * DF % NT == 0 && TILE / 4 % K_STEP == 0 && VK * DF % NT == 0 && TN % PC == 0, "");
  static_assert(K_ITEMS == 1 || K_STEP == 8, "");
  static_assert(!STRAIGHT || PRODUCTS_P == 1, "");
  static_assert(STRAIGHT != 2 || (V_ITEMS <= K_ITEMS * 4 && NT % DF == 0), "");
  static_assert(!PIPED || (PC == 2 && TM == 8), "");
  static_assert(KS % 32 == 0 || CHUNKS == 1, "");
  static_assert(!BUDGET || (IN != PAIRED && (S::CHANGES == ALL || LEAN) && TM <= LANE_COLS), "");

  // Lanes that differ in bit 0 have the same columns, lanes that differ in bit 1 the same rows.
  static INLINE int lane_col(int t) { return (t >> 1) & (LANE_COLS - 1); }
  static INLINE int lane_row(int t) { return LANE_COLS == 8 ? (t & 1) | ((t >> 3) & 2) : t & 1; }
  // Shift of the chunks of rows in column group g of the weights, so that a warp stores them without conflicts.
  static INLINE int weight_shift(int g) {
    return WARP_ROWS == 32 ? (g & 1) | ((g & 2) << 1) | ((g & 4) >> 1)
           : WARP_ROWS == 8 ? 0
           : TM == 8 ? (g >> 1) & 3 : (g & 2) | ((g >> 2) & 1);
  }
  // The key, within its tile, of element e of group q of four adjacent transposed keys.
  static INLINE int key_of(int q, int e) { return TN == 8 ? ((q >> 3) * 4 + e) * 8 + (q & 7) : e * 16 + q; }
  // Place n of run i of `count` places, with alternating direction.
  static INLINE int to_and_fro(int i, int n, int count) { return i & 1 ? count - 1 - n : n; }
  // Position of chunk h of row group rg among the weights of a key with shift f.
  static INLINE int chunk_of_weights(int rg, int h, int f) {
    return TM == 8 ? ((rg ^ (f & ~1)) << 4) + ((h ^ (f & 1)) << 4) : (rg ^ f) << 4;
  }
  // The dim of column j of W in lane group g.
  static INLINE int dim_of(int g, int j) { return (j >> 2) * (LANE_COLS * 4) + g * 4 + (j & 3); }
  // The block's first row.
  static INLINE int first_row(const Share& share) { return share.row_block * BM; }
  // The lane's first row.
  static INLINE int own_row(const Share& share, int t) {
    return first_row(share) + (t >> 5) * WARP_ROWS + lane_row(t) * TM;
  }

  int& full_from;  // first key that every row attends

  const SharedBytes sm;
  const Call& call;
  const int& tid;

  // Keys and values in transit from memory to shared memory.
  Raw4 (&kr)[K_ITEMS * 4];
  Raw4 (&vr)[V_ITEMS];

  // Below key `near_to` rows are read without checks from `near_key` and `near_value`, the addresses of key zero. Tiles from
  // `full_from` to below `plain_to` are plain. Edges that end at or before `edge_to` are read the same way, and repeat the row
  // before `near_to`.
  Address& near_value;
  Address& near_key;
  bool& near_past;  // whether `near_key` and `near_value` belong to the past
  int& plain_to;
  int& near_to;
  int& edge_to;

  bool& ready;  // whether the first keys of tile k0 are in the exchange area

  // The states of the lane's rows, with W in `acc`, and the scores of a tile, which become its weights.
  float (&acc)[TM][AN];
  float (&m)[TM];
  float (&sum)[TM];
  float (&s)[TM][TN];

  bool& flushed;       // whether a part of W is in memory
  unsigned& odd_sums;  // PAIRED: two f16 values, NaN once a sum was not finite
  int& k0;             // first key of the tile
  int& end;            // end of the keys that some row attends
  // Bits of a boolean mask for the tile: word n has the keys from 32 (n / WARP_ROWS) on of row n % WARP_ROWS of the warp, and is
  // element n / 32 in lane n % 32. Lanes beyond the last word repeat the words.
  unsigned (&words)[OWN_WORDS];
  float (&early)[EARLY ? TM : 1][TN];  // addends of the scores of a plain tile

  // W of the lane's first row in memory, as f32: a row stride of `step` bytes, `left` rows of `width` columns, and whether columns
  // may be accessed four at a time.
  struct Home {
    Address at;
    long long step;
    int left, width;
    bool vec4;
  };
  // F32 elements that are contiguous along keys: those of `row` begin at `at`. The last row is `rows`, and `keys` more keys follow
  // the first.
  struct Elements32 {
    Address at;
    long long per_row;
    int rows, keys, row;
  };
  // The column and row groups of a lane, and the area where its warp exchanges weights.
  struct Exchange {
    int cg, rg;
    SharedBytes weights;
  };

  // Number of keys of tile k0 up to the last one that some row attends; in a plain tile, the number of all its keys.
  template <bool EDGE> INLINE int live() { return EDGE ? min_of(end - k0, TILE) : TILE; }

  // Whether the warp should skip products because it has no row: decided from the share at the start, and later from references.
  INLINE bool begins_idle(const Share& share) {
    return IDLES && first_row(share) + (opaque(tid) >> 5) * WARP_ROWS >= share.sequence.queries;
  }
  INLINE bool idles() { return IDLES && !any_of_warp(m[0] == m[0]); }

  // The block's share, computed again.
  INLINE Share here() { return share_of(call, opaque(block_index())); }
  // The block's share, computed again, with the current split.
  INLINE Share in_hand() {
    Share x = here();
    if constexpr (SERIAL)
      if (takes_all()) x.split = split();
    return x;
  }

  // The maximum and the sum of x over the lanes that share a row.
  static INLINE float row_max(float x) {
    UNROLL for (int w = 2; w <= LANE_COLS; w <<= 1) x = max2(x, shuffle_xor(x, w));
    return x;
  }
  static INLINE float row_sum(float x) {
    UNROLL for (int w = 2; w <= LANE_COLS; w <<= 1) x += shuffle_xor(x, w);
    return x;
  }

  // attention.cuh: the loops over tiles.
  static INLINE void run(SharedBytes sm, const Call& call, const Limit& limit);

  // staging.cuh: loads the first keys of tile k0.
  template <bool EDGE> INLINE void begin();
  // attend.cuh: the work on a tile, either an edge or plain.
  template <bool EDGE> INLINE void attend();

  // queries.cuh: Q to shared memory.
  INLINE void store_q(int n, const Raw4 (&x)[4]);
  INLINE void store_queries(const Call& call, const Share& outset);

  // staging.cuh: keys and values through registers to shared memory.
  INLINE void approach(const Share& share, int tile);
  template <class To, class Spot>
  INLINE void gather(To& to, const Tensor& past, const Tensor& fresh, int dims, bool vec4, int tile,
                     Spot spot);
  static INLINE int near_dim(int dim, int dims);
  INLINE int key_step();
  INLINE int value_step();
  INLINE void drop_k();
  // The registers that carry the values of plain tiles. A loop over the stages has one set for the next operands, keys or values.
  INLINE auto& travelling() {
    if constexpr (STRAIGHT == 2) return kr;
    else return vr;
  }
  template <bool EDGE> INLINE void load_k(int tile, int chunk);
  template <bool EDGE> INLINE void load_v(int tile, int stage);
  INLINE void gather_k(int tile, int chunk);
  INLINE void gather_v(int tile, int stage);
  INLINE void store_k();
  template <class From> INLINE void store_v(const From& from);

  // scores.cuh: products of queries and keys.
  template <int COLUMNS> INLINE void multiply_f32(const f4 (&qa)[TM / 4], const f4 (&kb)[TN / 4]);
  template <bool EDGE, int COLUMNS> INLINE void multiply_chunk(int chunk);
  INLINE void multiply_widened(const f4 (&qa)[TM / 4], const f4 (&kb)[TN / 4]);
  static INLINE void multiply_half2(const f4 (&qa)[TM / 4], const f4 (&kb)[TN / 4], unsigned (&pair)[TM][TN]);
  INLINE void add_half2(unsigned (&pair)[TM][TN]);

  // bits.cuh: boolean masks.
  static INLINE bool has_bits(const Call& call);
  INLINE bool find_bits();
  INLINE bool take_bits();

  // changes.cuh: changes of the scores.
  INLINE void cap_scores();
  INLINE SharedBytes spot(int t, int chunk, int column);
  INLINE void look_up();
  INLINE void fetch_ahead(const Share& share, Address base, long long per_row, long long per_key);
  INLINE void add_elements(bool of_bias, bool fresh, bool& special);
  INLINE int own_addend();
  template <bool CLAMPED, bool FETCH> INLINE Elements32 own_elements();
  template <bool CLAMPED, int COUNT> INLINE void load_elements(Elements32& from, float (&x)[COUNT][TN]);
  template <int COUNT> INLINE void add_elements_to(int first, float (&x)[COUNT][TN], bool& absent);
  INLINE void load_early();
  template <bool EDGE> INLINE bool add_scores();
  INLINE void take_out(const Sides& sides, bool fresh);
  INLINE bool change_scores();
  INLINE bool limit_scores();

  // weights.cuh: references, weights, S.
  INLINE void raise_references(const float (&mx)[TM], float (&scale)[TM]);
  INLINE void rescale_rows(float (&scale)[TM]);
  INLINE void take_weights();
  INLINE void take_signed_weights();
  INLINE void rotate_rows(const float (&y)[TN], const float& reference, const float& z);

  // within.cuh: votes inside an error budget.
  static INLINE int own_row_of(int t) { return lane_col(t) & (TM - 1); }
  static INLINE int lane_of_row(int t, int i) { return (t & 31 & ~((LANE_COLS - 1) << 1)) | i << 1; }
  static INLINE int place_of_counts(const Limit& limit, const Share& share);
  static INLINE void open_counts(const Limit& limit, const Share& share, int rows, int tiles);
  INLINE void count(int which, int more);
  INLINE void open_vote(const Share& share);
  INLINE float own_sum(const float (&x)[TM]);
  INLINE void move_vote(int i, float scale);
  INLINE void move_vote(const float (&scale)[TM]);
  INLINE void weigh(bool absent, float (&r)[TM]);
  template <bool EDGE> INLINE bool holds_odd_values();
  template <bool EDGE> INLINE bool leaves_out(const float (&r)[TM], bool absent);
  INLINE void write_left_out(const Share& share, int row, int i, float m, float s, float d);

  // values.cuh: W += P V.
  template <bool EDGE> INLINE void open_stage(const Exchange& x, int stage, bool absent, bool gaps, bool& odd_values);
  INLINE void add_products(const f4 (&p)[TM / 4], const float (&v)[AN]);
  INLINE void put_column(const Exchange& x, int slot, int column);
  INLINE void multiply_stage(const Exchange& x);
  INLINE void put_weights(const Exchange& x, int first, int last);
  template <bool EDGE> INLINE void multiply_values(const Exchange& x, SharedBytes pu, SharedBytes vu, int keys, bool odd_values);

  // memory.cuh: W in memory.
  INLINE Home home(const Share& share);
  INLINE void exchange(const Home& x, bool add, bool store);
  INLINE void rescale(const Home& x, int i, int g, const float& scale);

  // serial.cuh: several splits per block, one after another.
  INLINE bool takes_all();
  INLINE int split();
  INLINE bool is_last();
  INLINE bool joins();
  INLINE void take_in(int slot);
  INLINE int end_of_all();
  INLINE bool next();

  // result.cuh: finished rows.
  INLINE void finish();
};
