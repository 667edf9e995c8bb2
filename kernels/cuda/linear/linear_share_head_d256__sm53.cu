#include "share.cuh"

LINEAR_SHARE(linear_share_head_d256__sm53, 256, false, 1)
