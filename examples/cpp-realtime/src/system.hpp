#pragma once

#include <cstdint>
#include <string>

namespace realtime {

/// Gives the calling thread, and the threads that it starts from now on, the policy SCHED_FIFO with `priority`, 1 to 99.
/// Returns why the system does not grant it, or nothing.
std::string prioritise(int priority);

/// Keeps everything that is mapped at this moment from being paged out. Returns why the system does not grant it, or
/// nothing.
std::string lock_memory();

/// Signals that come within this time after the first, in nanoseconds, repeat it: timeout(1) sends two.
const std::uint64_t same_request = 1000000000;

/// Has Ctrl-C and SIGTERM set what `stopped` returns. One that comes `same_request` after the first, or later, ends the
/// process at once. Throws vision::Error.
void stop_on_signals();
bool stopped() noexcept;

} // namespace realtime
