// Common parts of the arguments of every operator: addresses, strided tensors, element types, divisors.
//
// With the call structure of an operator this is the device twin of kernels/src/cuda, field for field: tensor.rs there,
// and args.rs of the operator. Both sides assert every offset. Strides count elements, and the last axis of every tensor
// is contiguous.
#pragma once

// A device address.
typedef unsigned long long Address;

// A strided tensor [batch, heads, tokens, dim].
struct Tensor {
  Address data;
  long long batch, head, token;  // strides in elements
};

enum { TYPE_F32 = 0, TYPE_F16 = 1, TYPE_BF16 = 2 };

// A divisor d > 0 of numbers n below 2^31: n / d = (2 n * multiplier >> 32) >> shift, with the least shift for which
// 2^shift >= d, and multiplier = 2^(31 + shift) / d, rounded up.
struct Divisor {
  unsigned multiplier, shift;
};

static_assert(sizeof(Tensor) == 32 && sizeof(Divisor) == 8, "");
