#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace realtime {

/// Counts of latencies in microseconds. Recording allocates nothing. Up to 127 each value has its own cell; beyond,
/// each doubling is divided into 64 cells, so that reported values are at most 1/64 above recorded ones.
class Latencies {
public:
    void record(std::uint64_t microseconds) noexcept;

    std::uint64_t count() const noexcept { return count_; }
    std::uint64_t largest() const noexcept { return largest_; }

    /// Returns the latency that the share `q` of all, 0 to 1, does not exceed; 0 if nothing was recorded.
    std::uint64_t quantile(double q) const noexcept;

private:
    static const std::size_t parts = 64;
    /// 128 exact cells and 64 for each further doubling up to 2^32.
    std::array<std::uint64_t, 2 * parts + 25 * parts> cells_{};
    std::uint64_t count_ = 0, largest_ = 0;
};

} // namespace realtime
