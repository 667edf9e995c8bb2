#pragma once

#include <elsa.hpp>

#include <cstddef>
#include <string>
#include <utility>

namespace vision {

/// Options of attention.
struct AttentionOptions {
    /// auto, scalar, neon, avx2, avx512 or cuda.
    std::string backend = "auto";
    /// Number of computing threads; 0 is one for each core.
    std::size_t threads = 0;
    /// True if the CPU computes when the GPU cannot.
    bool fallback = true;
    /// True if probabilities are computed too.
    bool probabilities = false;
    /// True if each run is certified: the library measures the tensors and proves a bound on the error.
    bool certify = false;
    /// Real-time priority (SCHED_FIFO) of the worker threads; 0 is the priority of the thread that creates them.
    int priority = 0;
};

/// Device that attention computes on.
struct AttentionDevice {
    /// Name of the selected back end.
    std::string backend;
    /// Name of the GPU; empty on the CPU.
    std::string gpu;
    /// True if the GPU uses the tensors in place.
    bool in_place = false;
    /// Reason why the CPU computes instead of a requested GPU; empty if it does not.
    std::string reason;
};

/// The report of one run, or of several.
struct AttentionReport {
    /// Name of the back end that computed.
    const char *backend = "";
    /// True if the CPU computed instead of a failing GPU. The reason is logged once.
    bool fallback = false;
    /// Certificate of the run, or of the least certain of several runs: a run without a bound, otherwise the run with
    /// the largest bound. All zero unless AttentionOptions::certify is set.
    elsa_certified certified = {};

    /// Adds the report of a later run.
    void add(const AttentionReport &later) noexcept;
};

/// Throws the error of a failed call of the library.
void check(const elsa::status &status);

/// Returns the value of a call of the library, or throws the error.
template <class T>
T take(elsa::result<T> result) {
    check(result.status());
    return std::move(result).value();
}

/// Creates the engine that the options describe. Throws Error.
elsa::engine create_engine(const AttentionOptions &options);

/// Returns attention over one picture, with rows [q | k | v] of a linear map, and a dense output with heads side by
/// side.
elsa::problem<float> problem_of(std::size_t heads, std::size_t tokens, std::size_t dim);

/// Returns queries, keys and values in the rows [tokens, 3, width]; their memory may be that of a GPU.
elsa::inputs<float> rows_of(const float *qkv, std::size_t tokens, std::size_t width);

/// Exact softmax attention of every block: planned, bound and warmed up once, run for each block. The blocks share the
/// tensors, which are in buffers of the library: on a Jetson the GPU uses them in place, without a copy.
///
/// The rows [q | k | v] of one linear map are read in place; the output is dense, heads side by side, as the next
/// linear map reads it.
///
/// Probabilities come from the same operation: its output is P V with P = softmax(Q K^T / sqrt(d)), so V = I yields P
/// itself.
class Attention {
public:
    /// For one picture of `tokens` rows and `heads` heads of size `dim`. Throws Error.
    Attention(const AttentionOptions &options, std::size_t heads, std::size_t tokens, std::size_t dim);

    /// Returns the buffer of queries, keys and values, to be filled before a run: [tokens, 3, heads, dim].
    float *qkv() noexcept { return qkv_.data(); }
    /// Output of the last run: [tokens, heads, dim].
    const float *out() const noexcept { return out_.data(); }
    /// Probabilities of the last run: [heads, tokens, tokens]; empty unless AttentionOptions::probabilities is set.
    const elsa::buffer<float> &probabilities() const noexcept { return probabilities_; }

    const AttentionDevice &device() const noexcept { return device_; }

    /// Runs attention over the buffers. Allocates nothing. Throws Error.
    AttentionReport run();

private:
    AttentionDevice device_;
    bool certify_;
    elsa::engine engine_;
    elsa::buffer<float> qkv_, out_, identity_, probabilities_;
    elsa::plan<float> plan_, probability_plan_;
    /// Shared by both plans, which run one after the other.
    elsa::workspace workspace_;
    elsa::bound bound_, probability_bound_;
};

} // namespace vision
