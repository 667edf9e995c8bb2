#include "clock.hpp"

#include "error.hpp"

#include <cerrno>
#include <cstring>
#include <ctime>

namespace realtime {
namespace {

const std::uint64_t second = 1000000000;

} // namespace

std::uint64_t now() noexcept {
    timespec time;
    // The monotonic clock of Linux always works.
    clock_gettime(CLOCK_MONOTONIC, &time);
    return std::uint64_t(time.tv_sec) * second + std::uint64_t(time.tv_nsec);
}

bool sleep_until(std::uint64_t time) {
    timespec until;
    until.tv_sec = static_cast<time_t>(time / second);
    until.tv_nsec = static_cast<long>(time % second);
    const int code = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
    if (code != 0 && code != EINTR) {
        throw vision::Error(vision::Fault::system, std::string("clock: ") + std::strerror(code));
    }
    return code == 0;
}

Tick Schedule::next(std::uint64_t time) noexcept {
    const std::uint64_t skipped = time > next_ ? (time - next_) / period_ : 0;
    const std::uint64_t release = next_ + skipped * period_;
    next_ = release + period_;
    return Tick{release, next_, skipped};
}

} // namespace realtime
