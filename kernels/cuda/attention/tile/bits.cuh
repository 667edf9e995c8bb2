// Boolean masks in registers, one bit per key.
#pragma once

#include "../added.cuh"
#include "tile.cuh"

// Whether the call has a boolean mask.
template <class S> INLINE bool Tiles<S>::has_bits(const Call& call) {
  return (call.changes & CHANGED_BY_MASK) && call.mask.kind == ADDEND_BOOL;
}

// Bit n is set if byte n of x is not zero.
INLINE unsigned bits_of_bytes(unsigned x) {
  const unsigned high = (((x & 0x7f7f7f7f) + 0x7f7f7f7f) | x) & 0x80808080;
  return high * 0x00204081u >> 28;
}

// Loads the words of tile k0. Returns whether a row of the block attends one of its keys. Rows and keys past the last
// ones repeat them.
template <class S> INLINE bool Tiles<S>::find_bits() {
  const Share share = here();
  const int t = opaque(tid), lane = t & 31, reach = share.sequence.reach;
  const int first = first_row(share) + (t >> 5) * WARP_ROWS, last = share.sequence.queries - 1;
  const Address base = addend_base(call.mask, share.sequence, share.head);
  const long long per_row = call.mask.query;
  const bool wide = call.mask.key == 1 && ((base | (Address)per_row) & 7) == 0 && k0 + TILE <= reach;
  UNROLL for (int i = 0; i < OWN_WORDS; i++) {
    unsigned word = 0;
    if (wide) {
      const int n = i * 32 + lane & WORDS - 1;
      const Address at = base + min_of(first + n % WARP_ROWS, last) * per_row + (k0 + n / WARP_ROWS * 32);
      u2 x[4];
      UNROLL for (int e = 0; e < 4; e++) x[e] = load_u2(at + e * 8);
      UNROLL for (int e = 0; e < 8; e++) word |= bits_of_bytes(x[e >> 1][e & 1]) << (e * 4);
      if (k0 + TILE < reach) prefetch(at + TILE);
    } else {
      NO_UNROLL for (int n = 0; n < 32 && n < WORDS; n += 8) {
        const int index = i * 32 + n, key = min_of(k0 + index / WARP_ROWS * 32 + lane, reach - 1);
        const Address at = base + key * call.mask.key;
        unsigned x[8];
        UNROLL for (int e = 0; e < 8; e++)
          x[e] = load_u8(at + min_of(first + index % WARP_ROWS + e, last) * per_row);
        UNROLL for (int e = 0; e < 8; e++) {
          const unsigned votes = ballot(x[e] != 0);
          word = (lane & WORDS - 1) == n + e ? votes : word;
        }
      }
    }
    words[i] = word;
  }
  bool some = false;
  UNROLL for (int i = 0; i < OWN_WORDS; i++) some = some || words[i] != 0;
  return any_of_block(some);
}

// Masks the keys whose bits are zero. Returns whether there is such a key.
template <class S> INLINE bool Tiles<S>::take_bits() {
  bool zero = false;
  UNROLL for (int i = 0; i < OWN_WORDS; i++) zero = zero || words[i] != ~0u;
  if (!any_of_warp(zero)) return false;
  const int t = opaque(tid), own = lane_row(t) * TM, g = lane_col(t);
  constexpr int COLS = TN / 2;  // columns per word
  UNROLL for (int h = 0; h < 2; h++)
    UNROLL for (int i = 0; i < TM; i++) {
      const unsigned word = shuffle_from(words[WARP_ROWS == 32 ? h : 0], (h * WARP_ROWS + own + i) & 31) >> g;
      UNROLL for (int j = 0; j < COLS; j++)
        s[i][h * COLS + j] = word & 1u << j * LANE_COLS ? s[i][h * COLS + j] : NEG_INF;
    }
  return true;
}
