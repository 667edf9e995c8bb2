// common/state.cuh as a program: reads the bits of two states (m, s, w each, six hexadecimal words per line) and writes
// those of their merge, then of log-sum-exp, of the natural reference and of its factor (a double). With an argument,
// linear/exp.cuh: reads the bits of doubles, one per line, and writes those of their exponential, then of the gate of
// the nearest f32.
#include "common/state.cuh"
#include "linear/exp.cuh"

#include <cstdio>

int main(int arguments, char**) {
  if (arguments > 1) {
    unsigned long long bits;
    while (std::scanf("%llx", &bits) == 1) {
      const double x = double_of_bits(bits);
      std::printf("%x %x\n", bits_of(exp_of(x)), bits_of(gate_of((float)x)));
    }
    return 0;
  }
  unsigned x[6];
  while (std::scanf("%x %x %x %x %x %x", &x[0], &x[1], &x[2], &x[3], &x[4], &x[5]) == 6) {
    float f[6];
    for (int i = 0; i < 6; i++) f[i] = float_of_bits(x[i]);
    const Merge merge = merge_of(f[0], f[3]);
    const float s = merge_apply(merge, f[1], f[4]), w = merge_apply(merge, f[2], f[5]);
    const NaturalReference natural = natural_reference(merge.m);
    std::printf("%x %x %x %x %x %llx\n", bits_of(merge.m), bits_of(s), bits_of(w), bits_of(log_sum_exp(merge.m, s)),
                bits_of(natural.m), bits_of_double(natural.factor));
  }
}
