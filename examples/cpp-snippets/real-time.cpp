// A hard loop: worker threads with a name, a core and a real-time priority, a loop with the same priority, and memory
// that is never paged out. If the system refuses a measure, the program prints the reason and goes on without it.

#define ELSA_THROW
#include <elsa.hpp>

#include "check.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

namespace {

// Returns the last core that this program may use. A robot names the cores that it keeps free of other work.
std::uint32_t last_core() {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::uint32_t last = 0;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        for (std::uint32_t core = 0; core < CPU_SETSIZE; ++core) {
            last = CPU_ISSET(core, &set) ? core : last;
        }
    }
    return last;
}

// Creates an engine with one worker thread, which is named vision-1.
elsa::engine prepare(std::uint32_t core, int priority) {
    elsa::engine_options options;
    options.threads = 2;                                    // the loop, and one worker thread
    options.thread_name = "vision";
    options.cores = &core;
    options.core_count = 1;
    options.priority = priority;
    options.spin_us = 20;                                   // an idle worker soon leaves its core to other programs
    elsa::result<elsa::engine> made = elsa::engine::create(options);
    if (made.status().code() == ELSA_STATUS_UNSUPPORTED) {
        std::printf("without a priority: %s\n", made.message().c_str());
        options.priority = 0;
        made = elsa::engine::create(options);
    }
    return elsa::or_throw(std::move(made));
}

} // namespace

int main() {
    const std::size_t heads = 3, tokens = 64, dim = 64, count = heads * tokens * dim;
    const int priority = 20, frames = 200;
    const std::chrono::milliseconds period(2);
    const std::vector<float> q = check::noise(count, 1), k = check::noise(count, 2), v = check::noise(count, 3);
    std::vector<float> out(count);

    // Threads inherit the priority and the cores of the thread that starts them, so the engine comes first.
    const elsa::engine engine = prepare(last_core(), priority);
    elsa::problem<float> problem;
    problem.q = elsa::or_throw(elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, dim));
    problem.k = problem.v = problem.out = problem.q;
    const elsa::plan<float> plan = elsa::or_throw(engine.plan(problem));
    const elsa::workspace workspace = elsa::or_throw(plan.workspace());
    elsa::inputs<float> inputs;
    inputs.q = q;
    inputs.k = k;
    inputs.v = v;
    elsa::outputs<float> outputs;
    outputs.out = out;
    const elsa::bound bound = elsa::or_throw(plan.bind(workspace, inputs, outputs));

    // The loop computes too, so it has the priority of the worker.
    sched_param parameters = sched_param();
    parameters.sched_priority = priority;
    if (const int code = pthread_setschedparam(pthread_self(), SCHED_FIFO, &parameters)) {
        std::printf("the loop keeps its priority: %s\n", std::strerror(code));
    }
    // The first frame touches all memory; then no page of the program leaves memory.
    elsa::or_throw(bound.run());
    if (mlockall(MCL_CURRENT) != 0) {
        std::printf("memory is not locked: %s\n", std::strerror(errno));
    }

    std::chrono::nanoseconds worst(0);
    auto release = std::chrono::steady_clock::now();
    for (int frame = 0; frame < frames; ++frame) {
        std::this_thread::sleep_until(release);
        elsa::or_throw(bound.run());
        const auto latency = std::chrono::steady_clock::now() - release;
        worst = std::max(worst, std::chrono::duration_cast<std::chrono::nanoseconds>(latency));
        release += period;
    }
    std::printf("worst of %d frames: %.3f ms\n", frames, double(worst.count()) * 1e-6);

    const std::vector<double> want = check::attention(q, k, v, heads, tokens, dim, false);
    check::Worst error;
    for (std::size_t i = 0; i < count; ++i) {
        error.compare(out[i], want[i]);
    }
    return error.verdict();
}
