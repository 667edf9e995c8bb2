#pragma once

#include <cstdint>
#include <string>

namespace realtime {

/// Gives the calling thread, and threads that it starts from now on, the policy SCHED_FIFO with `priority`, 1 to 99.
/// Returns why the system refuses it, or an empty string.
std::string prioritise(int priority);

/// Locks all current mappings in memory. Returns why the system refuses it, or an empty string.
std::string lock_memory();

/// Signals within this time after the first, in nanoseconds, count as repetitions: timeout(1) sends two.
const std::uint64_t same_request = 1000000000;

/// Makes Ctrl-C and SIGTERM set the result of `stopped`. A signal `same_request` or more after the first ends the
/// process at once. Throws vision::Error.
void stop_on_signals();
bool stopped() noexcept;

} // namespace realtime
