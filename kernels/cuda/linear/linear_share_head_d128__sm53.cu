#include "share.cuh"

LINEAR_SHARE(linear_share_head_d128__sm53, 128, false, 1)
