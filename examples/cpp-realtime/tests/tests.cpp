// Parts of the loop: its grid, its percentiles, its messages.

#include "clock.hpp"
#include "latencies.hpp"
#include "messages.hpp"
#include "system.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace {

std::size_t passed = 0, failed = 0;

void check(bool holds, const std::string &what) {
    (holds ? passed : failed) += 1;
    if (!holds) {
        std::fprintf(stderr, "failed: %s\n", what.c_str());
    }
}

bool is(const realtime::Tick &tick, std::uint64_t release, std::uint64_t deadline, std::uint64_t skipped) {
    return tick.release == release && tick.deadline == deadline && tick.skipped == skipped;
}

void grid() {
    realtime::Schedule punctual(10000000, 5);
    bool kept = true;
    for (std::uint64_t k = 0; k < 1000; ++k) {
        const std::uint64_t release = 5 + k * 10000000;
        const std::uint64_t time = k == 0 ? release : release - k * 7919 % 9999999;
        kept = kept && is(punctual.next(time), release, release + 10000000, 0);
    }
    check(kept, "a punctual loop keeps the grid");
    realtime::Schedule late(100, 0);
    check(is(late.next(0), 0, 100, 0), "the first period");
    check(is(late.next(130), 100, 200, 0), "a period in progress");
    check(is(late.next(470), 400, 500, 2), "two have passed");
    check(is(late.next(480), 500, 600, 0), "back on the grid, without a burst");
    check(is(late.next(700), 700, 800, 1), "a period that ends at this moment has passed");
    const std::uint64_t start = realtime::now(), until = start + 3000000;
    while (!realtime::sleep_until(until)) {
    }
    check(realtime::now() >= until && realtime::sleep_until(start), "sleeping reaches the time");
}

void percentiles() {
    realtime::Latencies none;
    check(none.quantile(0.5) == 0 && none.count() == 0, "no latency");
    std::vector<std::uint64_t> all;
    realtime::Latencies latencies;
    std::uint64_t x = 1;
    for (int i = 0; i < 10000; ++i) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        // Over nine decades of bits.
        all.push_back((x >> 33) >> (x % 31));
        latencies.record(all.back());
    }
    std::sort(all.begin(), all.end());
    for (const double q : {0.0, 0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0}) {
        const std::size_t rank = std::max<std::size_t>(1, static_cast<std::size_t>(q * 10000.0 + 0.999999));
        const std::uint64_t exact = all[rank - 1], found = latencies.quantile(q);
        check(found >= exact && found - exact <= exact / 64, "quantile " + std::to_string(q));
    }
    check(latencies.largest() == all.back() && latencies.count() == 10000, "the largest");
    realtime::Latencies huge;
    huge.record(UINT64_MAX);
    check(huge.quantile(1.0) >= 0xffffffffu && huge.largest() == UINT64_MAX, "a latency beyond the cells");
}

void lines() {
    std::FILE *file = std::tmpfile();
    if (file == nullptr) {
        check(false, "a temporary file");
        return;
    }
    std::uint64_t dropped = 0;
    {
        realtime::Messages messages(file, "name");
        messages.post("first");
        messages.post(std::string(1000, 'x').c_str());
        dropped = messages.dropped();
    }
    std::rewind(file);
    char text[2000] = "";
    const std::string all(text, std::fread(text, 1, sizeof text, file));
    std::fclose(file);
    check(all == "name: first\nname: " + std::string(255, 'x') + "\n" && dropped == 0, "lines, cut, in their order");
}

/// Returns how a process ends that gets SIGTERM and SIGINT at once, and SIGTERM once more after `pause`
/// nanoseconds.
int ends_after(std::uint64_t pause) {
    const pid_t child = fork();
    if (child == 0) {
        realtime::stop_on_signals();
        const bool before = realtime::stopped();
        std::raise(SIGTERM);
        const bool after = realtime::stopped();
        std::raise(SIGINT);
        const std::uint64_t until = realtime::now() + pause;
        while (!realtime::sleep_until(until)) {
        }
        std::raise(SIGTERM);
        _exit(!before && after && realtime::stopped() ? 17 : 1);
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

void signals() {
    const int repeated = ends_after(realtime::same_request / 10);
    check(WIFEXITED(repeated) && WEXITSTATUS(repeated) == 17, "signals that repeat the first");
    const int later = ends_after(realtime::same_request);
    check(WIFSIGNALED(later) && WTERMSIG(later) == SIGTERM, "a later signal ends the process");
}

} // namespace

int main() {
    grid();
    signals();
    percentiles();
    lines();
    check(realtime::prioritise(1000).find("--priority: SCHED_FIFO 1000: ") == 0, "a priority that there is not");
    check(!realtime::stopped(), "no signal");
    std::printf("%zu passed, %zu failed\n", passed, failed);
    return failed == 0 && passed > 0 ? 0 : 1;
}
