#pragma once

#include <elsa.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace vision {

/// Options of attention.
struct AttentionOptions {
    /// auto, scalar, neon, avx2, avx512 or cuda.
    std::string backend = "auto";
    /// Threads that compute; 0 is one for every core.
    std::size_t threads = 0;
    /// Whether the CPU computes where the GPU cannot.
    bool fallback = true;
    /// Whether probabilities are computed, too.
    bool probabilities = false;
};

/// The report of one run.
struct AttentionReport {
    /// Name of the back end that computed.
    const char *backend = "";
    /// Whether the CPU computed in place of a GPU that could not.
    bool fallback = false;
};

/// Exact softmax attention of every block: planned and bound once, run for each block. The blocks share the buffers.
///
/// The rows [q | k | v] that one linear map writes are read as they lie; the output is dense, heads side by side, as
/// the next linear map reads it.
///
/// Probabilities come from the same operation: its output is P V with P = softmax(Q K^T / sqrt(d)), so that V = I
/// yields P itself.
class Attention {
public:
    /// For one picture of `tokens` rows and `heads` heads of size `dim`. Throws Error.
    Attention(const AttentionOptions &options, std::size_t heads, std::size_t tokens, std::size_t dim);

    /// Queries, keys and values, to be filled before a run: [tokens, 3, heads, dim].
    float *qkv() noexcept { return qkv_.data(); }
    /// Output of the last run: [tokens, heads, dim].
    const float *out() const noexcept { return out_.data(); }
    /// Probabilities of the last run: [heads, tokens, tokens]; empty unless AttentionOptions::probabilities is set.
    const std::vector<float> &probabilities() const noexcept { return probabilities_; }

    /// Allocates nothing. Throws Error.
    AttentionReport run();

private:
    std::vector<float> qkv_, out_, identity_, probabilities_;
    elsa::engine engine_;
    elsa::plan plan_, probability_plan_;
    elsa::workspace workspace_, probability_workspace_;
    elsa::bound bound_, probability_bound_;
};

} // namespace vision
