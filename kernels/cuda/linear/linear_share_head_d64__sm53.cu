#include "share.cuh"

LINEAR_SHARE(linear_share_head_d64__sm53, 64, false, 1)
