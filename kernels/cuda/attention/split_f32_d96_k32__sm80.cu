#include "tensor/prepare.cuh"

SPLIT(split_f32_d96_k32__sm80, 96, 32, false)
