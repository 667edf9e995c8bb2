// Parts of the step from scores to weights.
#pragma once

#include "tile.cuh"

// Raises the scores of attended keys to where they weigh 2^WEIGHT_FLOOR.
template <class S> INLINE void Tiles<S>::raise_low_scores() {
  NO_UNROLL for (int j = 0; j < TN; j++)
    UNROLL for (int i = 0; i < TM; i++) {
      const float low = m[i] + WEIGHT_FLOOR, x = s[i][0];
      UNROLL for (int n = 0; n + 1 < TN; n++) s[i][n] = s[i][n + 1];
      s[i][TN - 1] = floored(x, low);
    }
}
