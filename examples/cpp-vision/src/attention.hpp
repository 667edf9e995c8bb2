#pragma once

#include <elsa.hpp>

#include <cstddef>
#include <string>

namespace vision {

/// Options of attention.
struct AttentionOptions {
    /// auto, scalar, neon, avx2, avx512 or cuda.
    std::string backend = "auto";
    /// Number of threads that compute; 0 is one per core.
    std::size_t threads = 0;
    /// Whether the CPU computes if the GPU cannot.
    bool fallback = true;
    /// Whether probabilities are computed as well.
    bool probabilities = false;
    /// Real-time priority (SCHED_FIFO) of the worker threads; 0 is that of the thread that creates them.
    int priority = 0;
};

/// The device that computes attention.
struct AttentionDevice {
    /// Name of the back end.
    std::string backend;
    /// Name of the GPU; empty on the CPU.
    std::string gpu;
    /// Whether the GPU uses the tensors in place.
    bool in_place = false;
    /// Why the CPU computes in place of a requested GPU; empty if it does not.
    std::string reason;
};

/// The report of one run.
struct AttentionReport {
    /// Name of the back end that computed.
    const char *backend = "";
    /// Whether the CPU computed in place of a failing GPU. The reason is logged once.
    bool fallback = false;
};

/// Exact softmax attention of every block: planned, bound and warmed up once, run for each block. The blocks share the
/// tensors, which are in elsa's buffers: on a Jetson the GPU uses them in place, and nothing is copied.
///
/// The rows [q | k | v] that one linear map writes are read in place; the output is dense, with heads side by side, as
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

    /// Runs attention. Allocates nothing. Throws Error.
    AttentionReport run();

private:
    AttentionDevice device_;
    elsa::engine engine_;
    elsa::buffer<float> qkv_, out_, identity_, probabilities_;
    elsa::plan<float> plan_, probability_plan_;
    /// Shared by both plans, which run one after the other.
    elsa::workspace workspace_;
    elsa::bound bound_, probability_bound_;
};

} // namespace vision
