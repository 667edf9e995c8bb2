// The shape of a kernel on Tensor Cores, and what its blocks have in shared memory.
#pragma once

#include "planes.cuh"

constexpr int largest(int a, int b) { return a > b ? a : b; }

// D: head size; BN: keys of a tile; WARPS; ROWS: products of 16 rows that a warp owns; PAIRS: 16 keys whose scores are computed
// together; IN_SHARED: queries in shared memory; APART: own sums for the small products; STAGES: tiles in shared memory; CHANGED:
// soft cap, biases and masks; B16: elements of 16 bits; PARTS: groups of warps that divide the tiles; F16: f32 elements, one f16 product
// for each product.
template <int D_, int BN_, int WARPS_, int ROWS_, int PAIRS_, bool IN_SHARED_, bool APART_, int STAGES_, bool CHANGED_, bool B16_,
          int PARTS_ = 1, bool F16_ = false>
struct Exact {
  static constexpr int D = D_, BN = BN_, WARPS = WARPS_, ROWS = ROWS_, PAIRS = PAIRS_;
  static constexpr bool IN_SHARED = IN_SHARED_, CHANGED = CHANGED_, B16 = B16_, F16 = F16_;
  static constexpr bool ONE = B16 || F16, APART = APART_ && !ONE;  // ONE: operands have one plane
  static constexpr int STAGES = STAGES_, PARTS = PARTS_, ABREAST = WARPS / PARTS;
  static constexpr int BM = ABREAST * ROWS * 16, NT = WARPS * 32, KD = D / 16, KN = BN / 16, TILES = BN / 8, DT = D / 8;
  static constexpr int FRAGMENT = ONE ? 512 : 1024;  // bytes of 16 rows and 16 dims of queries
  static constexpr int TILE = Image<D, BN, ONE>::BYTES, TILE_BYTES = STAGES_ * PARTS_ * TILE;
  // Queries as fragments of each warp: next to the tiles, or, before the loop only, where its second tile or its first values
  // will be.
  static constexpr int ALL_QUERIES = WARPS * ROWS * KD * FRAGMENT, QUERIES = IN_SHARED ? ALL_QUERIES : 0;
  static constexpr int QUERIES_AT = IN_SHARED ? TILE_BYTES : STAGES_ == 2 ? TILE_BYTES / 2 : TILE / 2;
  // Addends of the rows of a warp. The padding keeps the lanes of a row in banks of their own.
  static constexpr int ADDENDS = TILE_BYTES + QUERIES, ADDED_ROW = (BN + 8) * 4, ADDED = CHANGED_ ? ROWS * 16 * ADDED_ROW : 0;
  // Results of a warp after the loop, and the state that the second part leaves there.
  static constexpr int RESULTS = ROWS * (DT + (PARTS_ > 1 ? 1 : 0)) * 512;
  static constexpr int SHARED_BYTES = largest(ADDENDS + WARPS * ADDED, largest(QUERIES_AT + ALL_QUERIES, ABREAST * RESULTS));
  static_assert(!(B16_ && F16_), "");
  static_assert((!CHANGED_ || STAGES_ == 1) && (PARTS_ == 1 || (PARTS_ == 2 && STAGES_ == 2 && !IN_SHARED_)), "");
  // 16 dims whose weighted sums are computed together: products that follow each other have four different sums at least.
  static constexpr int GROUP = ROWS == 1 ? 2 : 1;
  // Whether the sums of a group are added to W after the first products of the next group, when they are complete.
  static constexpr bool LATE = ONE || D > 64;
  // Whether the loop needs all registers.
  static constexpr bool TIGHT = !ONE && D == 64 && ROWS == 2;
  // Groups of copies that may be incomplete when the first of keys, addends and values is needed.
  static constexpr int LATER = CHANGED_ ? 2 : 1;
};
