#pragma once

#include <cstddef>
#include <vector>

namespace vision {

/// A linear map y = W x + b.
class Linear {
public:
    Linear() = default;

    /// Creates the map from `weight` [outputs, inputs], as PyTorch stores it, and `bias` [outputs].
    Linear(const std::vector<float> &weight, std::vector<float> bias);

    /// Maps the rows `x` [rows, inputs] to `y` [rows, outputs].
    void apply(const float *x, std::size_t rows, float *y) const;

    std::size_t inputs() const noexcept { return weight_.size() / bias_.size(); }
    std::size_t outputs() const noexcept { return bias_.size(); }
    /// Returns the weights as [inputs, outputs].
    const std::vector<float> &weight() const noexcept { return weight_; }
    const std::vector<float> &bias() const noexcept { return bias_; }

private:
    /// [inputs, outputs]: transposed, so the inner loop runs along outputs.
    std::vector<float> weight_;
    std::vector<float> bias_;
};

/// Addend of a variance in Norm.
constexpr float norm_epsilon = 1e-5f;

/// Layer normalisation over a row: (x - mean) / sqrt(variance + 1e-5) * weight + bias, with the variance over n.
class Norm {
public:
    Norm() = default;
    Norm(std::vector<float> weight, std::vector<float> bias);

    /// Normalises the rows `x` into `y`, both [rows, width].
    void apply(const float *x, std::size_t rows, float *y) const;

    const std::vector<float> &weight() const noexcept { return weight_; }
    const std::vector<float> &bias() const noexcept { return bias_; }

private:
    std::vector<float> weight_, bias_;
};

/// Computes the exact GELU, x (1 + erf(x / sqrt 2)) / 2, in place.
void gelu(float *x, std::size_t n);

/// Adds y to x.
void add(float *x, const float *y, std::size_t n);

/// Returns the index of the largest score; the first if several are equal.
std::size_t largest(const std::vector<float> &scores);

/// Replaces scores by probabilities: exp(s - max) over their sum.
void softmax(const std::vector<float> &scores, std::vector<float> &probabilities);

} // namespace vision
