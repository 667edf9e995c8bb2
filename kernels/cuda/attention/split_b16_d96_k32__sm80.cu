#include "tensor/prepare.cuh"

SPLIT(split_b16_d96_k32__sm80, 96, 32, true)
