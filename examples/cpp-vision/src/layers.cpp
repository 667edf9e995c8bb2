#include "layers.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#ifdef VISION_BLAS
#include <cblas.h>
#endif

namespace vision {
namespace {

#ifdef VISION_BLAS

/// Adds x W to y for the rows of x.
void product(const float *x, std::size_t rows, const float *weight, std::size_t inputs, std::size_t outputs, float *y) {
    const int m = static_cast<int>(rows), n = static_cast<int>(outputs), k = static_cast<int>(inputs);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1.0f, x, k, weight, n, 1.0f, y, n);
}

#else

/// Number of rows of x in one pass over the weights, so that a weight is read from the cache once for all of
/// them.
const std::size_t block = 4;

/// Adds x[r] W to y[r] for `rows` rows, at most `block`.
void rows_of(const float *x, std::size_t rows, const float *weight, std::size_t inputs, std::size_t outputs, float *y) {
    for (std::size_t i = 0; i < inputs; ++i) {
        const float *row = weight + i * outputs;
        for (std::size_t r = 0; r < rows; ++r) {
            const float factor = x[r * inputs + i];
            float *to = y + r * outputs;
            for (std::size_t o = 0; o < outputs; ++o) {
                to[o] += factor * row[o];
            }
        }
    }
}

/// Adds x W to y for the rows of x.
void product(const float *x, std::size_t rows, const float *weight, std::size_t inputs, std::size_t outputs, float *y) {
    for (std::size_t r = 0; r < rows; r += block) {
        rows_of(x + r * inputs, std::min(block, rows - r), weight, inputs, outputs, y + r * outputs);
    }
}

#endif

} // namespace

Linear::Linear(const std::vector<float> &weight, std::vector<float> bias)
    : weight_(weight.size()), bias_(std::move(bias)) {
    const std::size_t outputs = bias_.size(), inputs = weight.size() / outputs;
    for (std::size_t o = 0; o < outputs; ++o) {
        for (std::size_t i = 0; i < inputs; ++i) {
            weight_[i * outputs + o] = weight[o * inputs + i];
        }
    }
}

void Linear::apply(const float *x, std::size_t rows, float *y) const {
    for (std::size_t r = 0; r < rows; ++r) {
        std::copy(bias_.begin(), bias_.end(), y + r * outputs());
    }
    product(x, rows, weight_.data(), inputs(), outputs(), y);
}

Norm::Norm(std::vector<float> weight, std::vector<float> bias) : weight_(std::move(weight)), bias_(std::move(bias)) {}

void Norm::apply(const float *x, std::size_t rows, float *y) const {
    const std::size_t n = weight_.size();
    for (std::size_t r = 0; r < rows; ++r, x += n, y += n) {
        float sum = 0.0f;
        for (std::size_t i = 0; i < n; ++i) {
            sum += x[i];
        }
        const float mean = sum / static_cast<float>(n);
        float squares = 0.0f;
        for (std::size_t i = 0; i < n; ++i) {
            squares += (x[i] - mean) * (x[i] - mean);
        }
        const float factor = 1.0f / std::sqrt(squares / static_cast<float>(n) + norm_epsilon);
        for (std::size_t i = 0; i < n; ++i) {
            y[i] = (x[i] - mean) * factor * weight_[i] + bias_[i];
        }
    }
}

void gelu(float *x, std::size_t n) {
    const float half_root = 0.70710678f;
    for (std::size_t i = 0; i < n; ++i) {
        x[i] *= 0.5f * (1.0f + std::erf(x[i] * half_root));
    }
}

void add(float *x, const float *y, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
        x[i] += y[i];
    }
}

std::size_t largest(const std::vector<float> &scores) {
    return static_cast<std::size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

void softmax(const std::vector<float> &scores, std::vector<float> &probabilities) {
    const float most = scores[largest(scores)];
    float sum = 0.0f;
    for (std::size_t i = 0; i < scores.size(); ++i) {
        probabilities[i] = std::exp(scores[i] - most);
        sum += probabilities[i];
    }
    for (float &p : probabilities) {
        p /= sum;
    }
}

} // namespace vision
