#include "messages.hpp"

#include <cstring>

namespace realtime {

Messages::Messages(std::FILE *file, const char *name)
    : file_(file), name_(name), writer_([this] { write(); }) {}

Messages::~Messages() {
    {
        const std::lock_guard<std::mutex> guard(lock_);
        ends_ = true;
    }
    arrived_.notify_one();
    writer_.join();
}

void Messages::post(const char *text) noexcept {
    {
        const std::lock_guard<std::mutex> guard(lock_);
        if (waiting_ == lines_.size()) {
            ++dropped_;
            return;
        }
        std::array<char, 256> &line = lines_[(first_ + waiting_) % lines_.size()];
        std::strncpy(line.data(), text, line.size() - 1);
        line.back() = 0;
        ++waiting_;
    }
    arrived_.notify_one();
}

std::uint64_t Messages::dropped() const noexcept {
    const std::lock_guard<std::mutex> guard(lock_);
    return dropped_;
}

void Messages::write() noexcept {
    std::unique_lock<std::mutex> guard(lock_);
    for (;;) {
        arrived_.wait(guard, [this] { return ends_ || waiting_ > 0; });
        if (waiting_ == 0) {
            return;
        }
        const std::array<char, 256> line = lines_[first_];
        first_ = (first_ + 1) % lines_.size();
        --waiting_;
        guard.unlock();
        std::fprintf(file_, "%s: %s\n", name_, line.data());
        guard.lock();
    }
}

} // namespace realtime
