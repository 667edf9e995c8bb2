#pragma once

#include <cstdint>

namespace realtime {

/// Returns the monotonic clock in nanoseconds.
std::uint64_t now() noexcept;

/// Sleeps until `time`, in nanoseconds of the monotonic clock, or until a signal arrives. Returns true if the time was
/// reached. Throws vision::Error.
bool sleep_until(std::uint64_t time);

/// One period.
struct Tick {
    /// Start of its frame.
    std::uint64_t release;
    /// Deadline of its answer: the end of the period.
    std::uint64_t deadline;
    /// Number of periods before it that passed without a frame.
    std::uint64_t skipped;
};

/// A grid of releases at a fixed rate. It does not drift: neither the work of a frame nor a late wake-up moves it.
/// Periods that pass during a long frame are skipped and counted, never made up.
class Schedule {
public:
    /// Creates releases every `period` nanoseconds, not zero, the first at `start`.
    Schedule(std::uint64_t period, std::uint64_t start) noexcept : period_(period), next_(start) {}

    /// Returns the period to serve next: the first that has not ended at `time`.
    Tick next(std::uint64_t time) noexcept;

private:
    std::uint64_t period_, next_;
};

} // namespace realtime
