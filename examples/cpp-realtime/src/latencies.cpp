#include "latencies.hpp"

#include <algorithm>
#include <cmath>

namespace realtime {

void Latencies::record(std::uint64_t microseconds) noexcept {
    ++count_;
    largest_ = std::max(largest_, microseconds);
    const std::uint64_t value = std::min<std::uint64_t>(microseconds, 0xffffffffu);
    // Halvings until the value is below 128.
    unsigned halvings = 0;
    while (value >> halvings >= 2 * parts) {
        ++halvings;
    }
    ++cells_[halvings * parts + static_cast<std::size_t>(value >> halvings)];
}

std::uint64_t Latencies::quantile(double q) const noexcept {
    const double wanted = std::max(1.0, std::ceil(q * double(count_)));
    std::uint64_t seen = 0;
    for (std::size_t cell = 0; cell < cells_.size(); ++cell) {
        seen += cells_[cell];
        if (count_ > 0 && double(seen) >= wanted) {
            const std::size_t halvings = cell < 2 * parts ? 0 : cell / parts - 1;
            const std::uint64_t last = ((std::uint64_t(cell - halvings * parts) + 1) << halvings) - 1;
            return std::min(last, largest_);
        }
    }
    return 0;
}

} // namespace realtime
