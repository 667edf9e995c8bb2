#include "long_carry.cuh"

LINEAR_LONG_CARRY(linear_long_carry_d128__sm53, 128)
