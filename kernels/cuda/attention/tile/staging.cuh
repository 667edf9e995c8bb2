// Staging of keys and values: from memory to registers, from registers to shared memory.
#pragma once

#include "tile.cuh"

// Locates the rows of keys and values from tile `tile` on, in the past or among the new keys.
template <class S> INLINE void Tiles<S>::approach(const Share& share, int tile) {
  const Sequence& s = share.sequence;
  const int kv_head = quotient_of(share.head, call.by_group);
  const bool old = ADDS && tile < s.past;
  const Tensor& k = old ? call.past_key : call.key;
  const Tensor& v = old ? call.past_value : call.value;
  const int origin = old ? 0 : s.key0 - s.past;
  near_to = call.flags & WHOLE_ROWS ? old ? min_of(s.past, s.reach) : s.reach : 0;
  near_past = old;
  near_key = k.data + row_offset(k, s.batch, kv_head, 0) * SIZE + (long long)origin * (k.token * SIZE);
  near_value = v.data + row_offset(v, s.batch, kv_head, 0) * SIZE + (long long)origin * (v.token * SIZE);
  plain_to = ADDS && (call.changes != 0 || call.cap != 0.f) ? 0 : min_of(range_of(s, first_row(share)).end, near_to) - TILE + 1;
  edge_to = near_to == s.reach ? near_to + TILE - 1 : near_to;
}

// Loads an edge whose rows are not adjacent into registers, checking rows and dims one by one; absent elements are zero.
// `spot(n, key, dim)` sets the key of the tile and the dim at which group n starts.
template <class S>
template <class To, class Spot>
INLINE void Tiles<S>::gather(To& to, const Tensor& past, const Tensor& fresh, int dims, bool vec4,
                             int tile, Spot spot) {
  constexpr int COUNT = sizeof(to) / sizeof(Raw4);
  const Share share = here();
  const Sequence& s = share.sequence;
  const int kv_head = quotient_of(share.head, call.by_group);
  const Address old = past.data + row_offset(past, s.batch, kv_head, 0) * SIZE;
  const Address now = fresh.data + row_offset(fresh, s.batch, kv_head, s.key0 - s.past) * SIZE;
  auto row = [&](int key) LAMBDA -> Address {
    return ADDS && key < s.past ? old + key * past.token * SIZE : now + key * fresh.token * SIZE;
  };
  UNROLL for (int n = 0; n < COUNT; n++) clear(to[n]);
  if (vec4) {
    UNROLL for (int n = 0; n < COUNT; n++) {
      int key, dim;
      spot(n, key, dim);
      key += tile;
      if (key < s.reach && dim < dims) load4(to[n], row(key) + dim * SIZE);
    }
  } else {
    NO_UNROLL for (int n = 0; n < COUNT; n++) {
      Raw4 x;
      clear(x);
      int key, dim;
      spot(n, key, dim);
      key += tile;
      if (key < s.reach) load4_checked(x, row(key), dim, dims, false);
      UNROLL for (int i = 0; i + 1 < COUNT; i++) to[i] = to[i + 1];
      to[COUNT - 1] = x;
    }
  }
}

// Row stride of adjacent rows in bytes.
template <class S> INLINE int Tiles<S>::key_step() {
  return (int)(ADDS && near_past ? call.past_key.token : call.key.token) * SIZE;
}
template <class S> INLINE int Tiles<S>::value_step() {
  return (int)(ADDS && near_past ? call.past_value.token : call.value.token) * SIZE;
}

// Position of the four dims from `dim` on in an adjacent row of `dims`. Past its end the last four dims are read instead: they
// are multiplied by no query, and their products with weights are no columns of the output.
template <class S> INLINE int Tiles<S>::near_dim(int dim, int dims) {
  if constexpr (PAIRS) return dim;
  else return min_of(dim, dims - 4);
}

// Discards the registers of keys.
template <class S> INLINE void Tiles<S>::drop_k() {
  UNROLL for (int n = 0; n < K_ITEMS * 4; n++) {
    if constexpr (STRAIGHT == 2) forget(kr[n]);
    else clear(kr[n]);
  }
}

// Loads the keys of an edge whose rows and dims are checked.
template <class S> INLINE void Tiles<S>::gather_k(int tile, int chunk) {
  const int t = opaque(tid), c = t & (KF - 1), q = t / KF;
  gather(kr, call.past_key, call.key, call.head_dim, (call.flags & KEY_VEC4) != 0, tile,
         [&](int n, int& key, int& dim) LAMBDA {
           key = key_of(q, n & 3) + (n >> 2) * K_ITEM;
           dim = chunk * KD + c * 4;
         });
}

// Loads the values of an edge whose rows and dims are checked.
template <class S> INLINE void Tiles<S>::gather_v(int tile, int stage) {
  const int t = opaque(tid);
  gather(vr, call.past_value, call.value, call.value_dim, (call.flags & VALUE_VEC4) != 0, tile,
         [&](int n, int& key, int& dim) LAMBDA {
           key = stage * VK + (t + n * NT) / DF;
           dim = (t + n * NT) % DF * 4;
         });
}

// Loads the keys of a tile.
template <class S> template <bool EDGE> INLINE void Tiles<S>::load_k(int tile, int chunk) {
  const int t = opaque(tid), c = t & (KF - 1), q = t / KF, step = key_step();
  if constexpr (EDGE) {
    if (tile + TILE > edge_to) {
      gather_k(tile, chunk);
      return;
    }
    const Address a = near_key + near_dim(chunk * KD + c * 4, call.head_dim) * SIZE;
    const int first = tile + key_of(q, 0), last = near_to - 1;
    UNROLL for (int i = 0; i < K_ITEMS; i++)
      UNROLL for (int e = 0; e < 4; e++)
        load4(kr[i * 4 + e], a + (long long)min_of(first + i * K_ITEM + e * LANE_COLS, last) * step);
    return;
  }
  const Address a = near_key + (long long)(tile + key_of(q, 0)) * step + near_dim(chunk * KD + c * 4, call.head_dim) * SIZE;
  UNROLL for (int i = 0; i < K_ITEMS; i++)
    UNROLL for (int e = 0; e < 4; e++)
      load4(kr[i * 4 + e], a + (long long)((i * K_ITEM + e * LANE_COLS) * step));
}

// Loads the values of a tile.
template <class S> template <bool EDGE> INLINE void Tiles<S>::load_v(int tile, int stage) {
  const int t = opaque(tid), step = value_step();
  auto& to = travelling();
  if constexpr (EDGE) {
    if (tile + TILE > edge_to) {
      gather_v(tile, stage);
      return;
    }
    const int first = tile + stage * VK, last = near_to - 1;
    UNROLL for (int i = 0; i < V_ITEMS; i++) {
      const int n = t + i * NT;
      load4(to[i], near_value + (long long)min_of(first + n / DF, last) * step + near_dim(n % DF * 4, call.value_dim) * SIZE);
    }
    return;
  }
  if constexpr (STRAIGHT == 2) drop_k();
  if constexpr (NT % DF == 0) {
    const Address a = near_value + (long long)(tile + stage * VK + t / DF) * step + near_dim(t % DF * 4, call.value_dim) * SIZE;
    UNROLL for (int i = 0; i < V_ITEMS; i++) load4(to[i], a + (long long)(i * (NT / DF) * step));
  } else {
    const Address a = near_value + (long long)(tile + stage * VK) * step;
    UNROLL for (int i = 0; i < V_ITEMS; i++) {
      const int n = t + i * NT;
      load4(to[i], a + (long long)(n / DF * step) + near_dim(n % DF * 4, call.value_dim) * SIZE);
    }
  }
}

// Stores keys transposed, [dim][key]; chunk (key / 4) is at chunk ^ (dim / 4 & 7).
template <class S> INLINE void Tiles<S>::store_k() {
  const int t = opaque(tid), c = t & (KF - 1), q = t / KF;
  UNROLL for (int i = 0; i < K_ITEMS; i++) {
    if constexpr (PAIRS) {
      const SharedBytes p = sm + X + c * (TILE * 8) + (((q + i * K_STEP) ^ (c >> 1 & 7)) << 4);
      const Raw4* x = kr + i * 4;
      UNROLL for (int e = 0; e < 2; e++) store_shared(p + e * (TILE * 4), words4(x[0][e], x[1][e], x[2][e], x[3][e]));
      continue;
    }
    const SharedBytes p = sm + X + c * (TILE * 16) + (((q + i * K_STEP) ^ (c & 7)) << 4);
    f4 x[4];
    UNROLL for (int e = 0; e < 4; e++) x[e] = to_f32(kr[i * 4 + e], call.dtype);
    UNROLL for (int e = 0; e < 4; e++) store_shared(p + e * (TILE * 4), f4{x[0][e], x[1][e], x[2][e], x[3][e]});
  }
}

// Loads and stores the first keys of tile k0.
template <class S> template <bool EDGE> INLINE void Tiles<S>::begin() {
  load_k<EDGE>(k0, 0);
  store_k();
  sync_block();
}

// Stores values in their order, [key][dim].
template <class S> template <class From> INLINE void Tiles<S>::store_v(const From& from) {
  const int t = opaque(tid);
  UNROLL for (int i = 0; i < V_ITEMS; i++)
    store_shared(sm + X + (t + i * NT) * 16, to_f32(from[i], call.dtype));
}
