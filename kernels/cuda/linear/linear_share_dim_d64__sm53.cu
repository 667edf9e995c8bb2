#include "share.cuh"

LINEAR_SHARE(linear_share_dim_d64__sm53, 64, true, 1)
