#pragma once

#include <cstdint>
#include <string>

namespace realtime {

/// Sets the policy SCHED_FIFO with `priority`, 1 to 99, for the calling thread and the threads that it starts later.
/// Returns the reason if the system refuses, or nothing.
std::string prioritise(int priority);

/// Locks all currently mapped memory against paging. Returns the reason if the system refuses, or nothing.
std::string lock_memory();

/// Signals within this time after the first, in nanoseconds, count as a repetition: timeout(1) sends two.
const std::uint64_t same_request = 1000000000;

/// Makes Ctrl-C and SIGTERM set the result of `stopped`. A signal `same_request` or more after the first ends the
/// process at once. Throws vision::Error.
void stop_on_signals();
bool stopped() noexcept;

} // namespace realtime
