#include "share.cuh"

LINEAR_SHARE(linear_share_dim_d128__sm53, 128, true, 1)
