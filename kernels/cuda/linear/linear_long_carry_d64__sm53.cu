#include "long_carry.cuh"

LINEAR_LONG_CARRY(linear_long_carry_d64__sm53, 64)
