// CARRY of the operators whose maps have a factor and an addend for each element of a state: passes a lane's element
// over maps.
//
// A warp waits once for the maps that it reads together. A round without a count, for all maps but the last few, has
// no comparisons and no selections of addresses.
#pragma once

#include "call.cuh"
#include "functions.cuh"

// Takes the element `x` over the next `count` maps, at most N, or over N if WHOLE is set. Replaces their factors by
// the elements before them, and advances `map`. If an element of the warp is not finite behind one of these maps,
// changes nothing and returns 0; otherwise returns the number of maps. `by` is the distance of maps and `addends` that
// of an addend from its factor. Only lanes that are `inside` write.
template <int N, bool WHOLE>
INLINE int over_maps(Address& map, long long by, Address addends, int count, bool inside, float& x) {
  const int taken = WHOLE ? N : min_of(N, count);
  float before[N], addend[N], check = __builtin_fmaf(x, 0.f, 0.f);  // NaN if an element is not finite
  Address at = map;
  unsigned loaded = 0;
  UNROLL for (int i = 0; i < N; i++) {
    before[i] = read_f32(at);
    addend[i] = read_f32(at + addends);
    loaded |= bits_of(before[i]) | bits_of(addend[i]);
    at += WHOLE || i + 1 < taken ? by : 0;
  }
  float h = after_loads(x, loaded);
  UNROLL for (int i = 0; i < N; i++) {
    const float next = step_of(before[i], h, addend[i]);
    before[i] = h;
    h = WHOLE || i < taken ? next : h;
    check = __builtin_fmaf(h, 0.f, check);
  }
  if (any_of_warp(!(check == 0.f))) return 0;
  at = map;
  UNROLL for (int i = 0; i < N; i++) {
    if (inside && (WHOLE || i < taken)) write_f32(at, before[i]);
    at += by;
  }
  map += taken * by;
  x = h;
  return taken;
}

// As above, for MANY maps if there are so many.
template <int MANY> INLINE int over_maps(Address& map, long long by, Address addends, int count, bool inside, float& x) {
  return count >= MANY ? over_maps<MANY, true>(map, by, addends, count, inside, x)
                       : over_maps<8, false>(map, by, addends, count, inside, x);
}
