#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <thread>

namespace realtime {

/// Writes lines to a file from a separate thread, so that a stalled terminal does not stall the caller.
class Messages {
public:
    /// Each line begins with `name` and a colon. Both must outlive the object.
    Messages(std::FILE *file, const char *name);
    /// Writes the waiting lines.
    ~Messages();
    Messages(const Messages &) = delete;
    Messages &operator=(const Messages &) = delete;

    /// Enqueues a line, cut to 255 bytes. Allocates nothing. If the queue is full, the line is dropped and counted.
    void post(const char *text) noexcept;

    std::uint64_t dropped() const noexcept;

private:
    void write() noexcept;

    std::FILE *file_;
    const char *name_;
    mutable std::mutex lock_;
    std::condition_variable arrived_;
    std::array<std::array<char, 256>, 32> lines_;
    std::size_t first_ = 0, waiting_ = 0;
    std::uint64_t dropped_ = 0;
    bool ends_ = false;
    std::thread writer_;
};

} // namespace realtime
