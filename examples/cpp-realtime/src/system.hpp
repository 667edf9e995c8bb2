#pragma once

#include <string>

namespace realtime {

/// Gives the calling thread, and the threads that it starts from now on, the policy SCHED_FIFO with `priority`, 1 to 99.
/// Returns why the system does not grant it, or nothing.
std::string prioritise(int priority);

/// Keeps everything that is mapped at this moment from being paged out. Returns why the system does not grant it, or
/// nothing.
std::string lock_memory();

/// Has Ctrl-C and SIGTERM set what `stopped` returns; the second of either ends the process at once. Throws
/// vision::Error.
void stop_on_signals();
bool stopped() noexcept;

} // namespace realtime
