#include "system.hpp"

#include "clock.hpp"
#include "error.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <pthread.h>
#include <sys/mman.h>

namespace realtime {
namespace {

/// Time of the first signal, in nanoseconds of `now`; 0 before it.
std::atomic<std::uint64_t> asked{0};
static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "a handler may use only atomics without locks");

extern "C" void on_signal(int signal) {
    const std::uint64_t time = now();
    std::uint64_t first = 0;
    // Another thread may have set a later time than `time`.
    if (!asked.compare_exchange_strong(first, time) && time > first && time - first >= same_request) {
        std::signal(signal, SIG_DFL);
        std::raise(signal);
    }
}

} // namespace

std::string prioritise(int priority) {
    sched_param parameters = sched_param();
    parameters.sched_priority = priority;
    const int code = pthread_setschedparam(pthread_self(), SCHED_FIFO, &parameters);
    return code == 0 ? std::string()
                     : "--priority: SCHED_FIFO " + std::to_string(priority) + ": " + std::strerror(code) +
                           "; goes on without. Allowed for root, with CAP_SYS_NICE, or within the limit RTPRIO";
}

std::string lock_memory() {
    if (mlockall(MCL_CURRENT) == 0) {
        return std::string();
    }
    return std::string("--lock-memory: ") + std::strerror(errno) +
           "; goes on without. Allowed for root, with CAP_IPC_LOCK, or within the limit MEMLOCK";
}

void stop_on_signals() {
    struct sigaction action;
    std::memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    // Without SA_RESTART: sleeping is not resumed.
    sigemptyset(&action.sa_mask);
    for (const int signal : {SIGINT, SIGTERM}) {
        if (sigaction(signal, &action, nullptr) != 0) {
            throw vision::Error(vision::Fault::system, std::string("signals: ") + std::strerror(errno));
        }
    }
}

bool stopped() noexcept { return asked.load() != 0; }

} // namespace realtime
