#include "system.hpp"

#include "error.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>

#include <pthread.h>
#include <sys/mman.h>

namespace realtime {
namespace {

volatile std::sig_atomic_t stop = 0;

extern "C" void on_signal(int) { stop = 1; }

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
    // Once only, and sleeping is not resumed.
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigemptyset(&action.sa_mask);
    for (const int signal : {SIGINT, SIGTERM}) {
        if (sigaction(signal, &action, nullptr) != 0) {
            throw vision::Error(vision::Fault::system, std::string("signals: ") + std::strerror(errno));
        }
    }
}

bool stopped() noexcept { return stop != 0; }

} // namespace realtime
