// The reference for the snippets: softmax attention by its definition, in double precision.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

namespace check {

// Numbers from -1 to 1.
inline std::vector<float> noise(std::size_t count, unsigned seed) {
    std::vector<float> x(count);
    for (float &v : x) {
        seed = seed * 1664525u + 1013904223u;
        v = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
    }
    return x;
}

// Causal attention of dense q, k and v [heads, tokens, dim] with all queries: query i sees keys 0 to i. Not causal if
// `causal` is false.
inline std::vector<double> attention(const std::vector<float> &q, const std::vector<float> &k,
                                     const std::vector<float> &v, std::size_t heads, std::size_t tokens,
                                     std::size_t dim, bool causal) {
    std::vector<double> y(heads * tokens * dim, 0.0);
    for (std::size_t h = 0; h < heads; ++h) {
        for (std::size_t i = 0; i < tokens; ++i) {
            const std::size_t row = (h * tokens + i) * dim, keys = causal ? i + 1 : tokens;
            double sum = 0.0;
            for (std::size_t j = 0; j < keys; ++j) {
                const std::size_t key = (h * tokens + j) * dim;
                double score = 0.0;
                for (std::size_t c = 0; c < dim; ++c) {
                    score += double(q[row + c]) * double(k[key + c]);
                }
                const double weight = std::exp(score / std::sqrt(double(dim)));
                sum += weight;
                for (std::size_t c = 0; c < dim; ++c) {
                    y[row + c] += weight * double(v[key + c]);
                }
            }
            for (std::size_t c = 0; c < dim; ++c) {
                y[row + c] /= sum;
            }
        }
    }
    return y;
}

// The largest error so far.
class Worst {
public:
    void compare(float found, double wanted) {
        const double error = std::fabs(double(found) - wanted);
        if (!(error <= worst_)) {
            worst_ = error == error ? error : HUGE_VAL;
        }
        ++compared_;
    }

    // Prints ok and returns 0 if something was compared and no error exceeds 1e-5, the rounding error of such sums.
    int verdict() const {
        const bool good = compared_ > 0 && worst_ <= 1e-5;
        std::printf("%s: %zu numbers, largest error %.1e\n", good ? "ok" : "wrong", compared_, worst_);
        return good ? 0 : 1;
    }

private:
    double worst_ = 0.0;
    std::size_t compared_ = 0;
};

} // namespace check
