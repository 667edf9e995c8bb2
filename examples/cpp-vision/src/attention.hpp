#pragma once

#include <elsa.hpp>

#include <cstddef>
#include <string>

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
    /// Real-time priority (SCHED_FIFO) of the threads that stand by; 0 is that of the thread that creates them.
    int priority = 0;
};

/// What attention computes on.
struct AttentionDevice {
    /// Name of the back end that is to compute.
    std::string backend;
    /// Name of the GPU; empty on the CPU.
    std::string gpu;
    /// Whether the GPU uses the tensors where they lie.
    bool in_place = false;
    /// Why the CPU computes in place of a GPU that was asked for; empty where it does not.
    std::string reason;
};

/// The report of one run.
struct AttentionReport {
    /// Name of the back end that computed.
    const char *backend = "";
    /// Whether the CPU computed in place of a GPU that could not. Why is logged, once.
    bool fallback = false;
};

/// Exact softmax attention of every block: planned, bound and warmed up once, run for each block. The blocks share the
/// tensors, which lie in buffers of elsa's: on a Jetson the GPU uses them in place, and nothing is copied.
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
    const elsa::buffer<float> &probabilities() const noexcept { return probabilities_; }

    const AttentionDevice &device() const noexcept { return device_; }

    /// Allocates nothing. Throws Error.
    AttentionReport run();

private:
    AttentionDevice device_;
    elsa::engine engine_;
    elsa::buffer<float> qkv_, out_, identity_, probabilities_;
    elsa::plan<float> plan_, probability_plan_;
    /// Of both plans, which run one after the other.
    elsa::workspace workspace_;
    elsa::bound bound_, probability_bound_;
};

} // namespace vision
