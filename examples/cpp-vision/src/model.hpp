#pragma once

#include "attention.hpp"
#include "layers.hpp"
#include "picture.hpp"
#include "safetensors.hpp"

#include <array>
#include <cstddef>
#include <vector>

namespace vision {

/// Answer for one picture.
struct Answer {
    /// Class with the highest score; the first if several are equal.
    std::size_t best = 0;
    AttentionReport attention;
};

/// Weights of a network, as a file has them.
struct Weights {
    struct Block {
        Norm norm1;
        Linear qkv, proj;
        Norm norm2;
        Linear fc1, fc2;
    };

    /// Throws Error if the file is not such a network.
    Weights(const SafeTensors &file);

    /// Returns the number of outputs of the widest hidden layer.
    std::size_t widest() const noexcept;

    std::size_t width, heads;
    Linear patch;
    /// Positions of the tokens, with the class token added to its own: [tokens, width].
    std::vector<float> position;
    std::vector<Block> blocks;
    Norm norm;
    Linear head;
};

/// A Vision Transformer. A picture of 8 x 8 cells is cut into 2 x 2 patches, each a token; a class token precedes them.
/// Each block is pre-norm: x += proj(attention(norm1(x))), then x += fc2(gelu(fc1(norm2(x)))). The scores are a linear
/// map of the normalised class token. Buffers are allocated once: `classify` allocates nothing.
class Model {
public:
    static constexpr std::size_t patch = 2;
    static constexpr std::size_t grid = side / patch;
    static constexpr std::size_t tokens = 1 + grid * grid;

    /// Throws Error if attention is not available.
    Model(Weights weights, const AttentionOptions &options);

    /// Classifies a picture on a scale from 0 to 1. Throws Error.
    Answer classify(const std::array<float, side * side> &cells);

    /// Returns the tokens that `encode` reads and overwrites, [tokens, width]: patches, mapped and at their positions.
    float *embedded() noexcept { return x_.data(); }

    /// Classifies the picture of the embedded tokens. Throws Error.
    Answer encode();

    /// Return the scores of the last picture, one for each class, before softmax, and its probabilities, after softmax.
    const std::vector<float> &scores() const noexcept { return scores_; }
    const std::vector<float> &probabilities() const noexcept { return probabilities_; }

    /// Returns the device that attention computes on.
    const AttentionDevice &device() const noexcept { return attention_.device(); }

    /// Returns the contribution of each patch of the last picture to the class token, [grid, grid]. Requires
    /// AttentionOptions::probabilities.
    ///
    /// Attention rollout (Abnar and Zuidema 2020, "Quantifying attention flow in transformers"): with P_l the
    /// probabilities of block l averaged over its heads, the row of the class token in A_L ... A_1, A_l = (P_l + I) /
    /// 2; the half I stands for the residual connection.
    std::vector<float> map() const;

private:
    Weights weights_;
    Attention attention_;
    std::array<float, side * side> patches_;
    std::vector<float> x_, normed_, mapped_, hidden_, scores_, probabilities_;
    /// Probabilities of each block averaged over heads, [blocks, tokens, tokens], if they are computed.
    std::vector<float> averages_;
};

} // namespace vision
