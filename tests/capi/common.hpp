// Shared by the C++ programs: counted checks, numbers, and a naive double loop to compare with.
#pragma once

#include "elsa.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

static int checks = 0;

inline void check(bool good, const char *what, int line) {
    checks++;
    if (!good) {
        std::fprintf(stderr, "%d: %s (%s)\n", line, what, elsa_last_error());
        std::exit(1);
    }
}
#define CHECK(x) check((x), #x, __LINE__)

inline std::vector<float> noise(std::size_t count, unsigned seed) {
    std::vector<float> x(count);
    for (float &v : x) {
        seed = seed * 1664525u + 1013904223u;
        v = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
    }
    return x;
}

// Converts to the upper 16 bits of an f32, rounded to nearest even, and back.
inline std::uint16_t to_bf16(float x) {
    std::uint32_t b;
    std::memcpy(&b, &x, 4);
    return static_cast<std::uint16_t>((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}
inline float from_bf16(std::uint16_t x) {
    const std::uint32_t b = static_cast<std::uint32_t>(x) << 16;
    float f;
    std::memcpy(&f, &b, 4);
    return f;
}
// Converts a number of at most eleven bits, neither tiny nor huge, to f16 and back.
inline std::uint16_t to_f16(float x) {
    int exponent;
    const float m = std::frexp(std::fabs(x), &exponent);
    if (m == 0 || exponent < -13) return 0;
    const int bits = static_cast<int>(m * 2048.0f) - 1024;
    return static_cast<std::uint16_t>((x < 0 ? 0x8000 : 0) | ((exponent + 14) << 10) | bits);
}
inline float from_f16(std::uint16_t x) {
    const int exponent = (x >> 10) & 31, bits = x & 1023;
    const float m = exponent == 0 ? std::ldexp(static_cast<float>(bits), -24)
                                  : std::ldexp(static_cast<float>(bits + 1024), exponent - 25);
    return x & 0x8000 ? -m : m;
}

typedef std::function<float(const elsa_view &, std::size_t h, std::size_t token, std::size_t dim)> Read;

inline std::size_t at(const elsa_view &v, std::size_t h, std::size_t token, std::size_t dim) {
    return h * v.strides[1] + token * v.strides[2] + dim;
}

// Computes softmax attention of one sequence by the definition; `attends` selects the pairs.
inline std::vector<double> naive(const elsa_problem &p, const Read &q, const Read &k, const Read &v,
                          const std::function<bool(std::size_t, std::size_t)> &attends) {
    const std::size_t heads = p.q.shape[1], group = heads / p.k.shape[1], dim = p.q.shape[3], wide = p.v.shape[3];
    std::vector<double> y(heads * p.q.shape[2] * wide, 0.0);
    for (std::size_t h = 0; h < heads; h++)
        for (std::size_t i = 0; i < p.q.shape[2]; i++) {
            double sum = 0;
            double *row = &y[(h * p.q.shape[2] + i) * wide];
            for (std::size_t j = 0; j < p.k.shape[2]; j++) {
                if (!attends(i, j)) continue;
                double s = 0;
                for (std::size_t c = 0; c < dim; c++)
                    s += static_cast<double>(q(p.q, h, i, c)) * static_cast<double>(k(p.k, h / group, j, c));
                const double w = std::exp(s / std::sqrt(static_cast<double>(dim)));
                sum += w;
                for (std::size_t c = 0; c < wide; c++) row[c] += w * static_cast<double>(v(p.v, h / group, j, c));
            }
            for (std::size_t c = 0; c < wide && sum > 0; c++) row[c] /= sum;
        }
    return y;
}

inline double distance(const elsa_problem &p, const std::vector<double> &want, const Read &out) {
    double worst = 0;
    for (std::size_t h = 0; h < p.out.shape[1]; h++)
        for (std::size_t i = 0; i < p.out.shape[2]; i++)
            for (std::size_t c = 0; c < p.out.shape[3]; c++) {
                const double w = want[(h * p.out.shape[2] + i) * p.out.shape[3] + c];
                const double d = std::fabs(static_cast<double>(out(p.out, h, i, c)) - w);
                if (!(d <= worst)) worst = d == d ? d : HUGE_VAL;
            }
    return worst;
}

// Returns the largest difference of two rows; infinite if one is not a number.
inline double distance(const std::vector<float> &a, const std::vector<float> &b) {
    double worst = 0;
    for (std::size_t i = 0; i < a.size(); i++) {
        const double d = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
        if (!(d <= worst)) worst = d == d ? d : HUGE_VAL;
    }
    return worst;
}

// Returns the largest difference of two equally long rows; infinite if one is not a number.
inline double distance(const std::vector<float> &found, const std::vector<double> &expected) {
    CHECK(found.size() == expected.size());
    double worst = 0;
    for (std::size_t i = 0; i < found.size(); i++) {
        const double e = std::fabs(static_cast<double>(found[i]) - expected[i]);
        if (!(e <= worst)) worst = e == e ? e : HUGE_VAL;
    }
    return worst;
}

inline Read reader(const std::vector<float> &x, std::size_t from = 0) {
    return [&x, from](const elsa_view &v, std::size_t h, std::size_t t, std::size_t d) { return x[from + at(v, h, t, d)]; };
}

inline bool all(std::size_t, std::size_t) { return true; }
