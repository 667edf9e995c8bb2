// Attention on the program's own threads: an engine that lends a pool starts none. The pool stands for TBB, ONNX
// Runtime's intra-op threads, or another pool of the program.

#define ELSA_THROW
#include <elsa.hpp>

#include "check.hpp"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace {

// Threads that take jobs from a list of one: call job(i) for every i below count, together with the caller's
// thread.
class Pool {
public:
    explicit Pool(std::size_t threads) {
        for (std::size_t i = 1; i < threads; ++i) {
            threads_.emplace_back([this] { work(); });
        }
    }
    ~Pool() {
        {
            const std::lock_guard<std::mutex> guard(lock_);
            ends_ = true;
        }
        changed_.notify_all();
        for (std::thread &thread : threads_) {
            thread.join();
        }
    }

    // The interface of elsa::engine_options::lend: returns when every call has returned.
    template <class Task>
    void operator()(std::size_t count, Task task) {
        const std::lock_guard<std::mutex> one(turn_);
        std::unique_lock<std::mutex> guard(lock_);
        job_ = std::ref(task);
        next_ = 0;
        count_ = left_ = count;
        changed_.notify_all();
        take(guard);
        changed_.wait(guard, [this] { return left_ == 0; });
        calls++;
    }

    std::atomic<int> calls{0};

private:
    void work() {
        std::unique_lock<std::mutex> guard(lock_);
        while (!ends_) {
            take(guard);
            changed_.wait(guard, [this] { return ends_ || next_ < count_; });
        }
    }
    void take(std::unique_lock<std::mutex> &guard) {
        while (next_ < count_) {
            const std::size_t mine = next_++;
            guard.unlock();
            job_(mine);
            guard.lock();
            if (--left_ == 0) {
                changed_.notify_all();
            }
        }
    }

    std::mutex turn_, lock_;
    std::condition_variable changed_;
    std::function<void(std::size_t)> job_;
    std::size_t next_ = 0, count_ = 0, left_ = 0;
    bool ends_ = false;
    std::vector<std::thread> threads_;
};

} // namespace

int main() {
    const std::size_t heads = 4, tokens = 200, dim = 32;
    const std::vector<float> q = check::noise(heads * tokens * dim, 1), k = check::noise(heads * tokens * dim, 2),
                             v = check::noise(heads * tokens * dim, 3);
    Pool pool(3); // outlives the engine and everything made with it
    elsa::engine_options options;
    options.threads = 3;
    const elsa::engine engine = elsa::or_throw(elsa::engine::create(options.lend(pool)));
    elsa::problem<float> problem;
    problem.q = problem.k = problem.v = problem.out =
        elsa::or_throw(elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, dim));
    const elsa::plan<float> plan = elsa::or_throw(engine.plan(problem));
    const elsa::workspace workspace = elsa::or_throw(plan.workspace());
    std::vector<float> out(heads * tokens * dim);
    elsa::inputs<float> inputs;
    inputs.q = q;
    inputs.k = k;
    inputs.v = v;
    elsa::outputs<float> outputs;
    outputs.out = out;
    check::Worst worst;
    const std::vector<double> want = check::attention(q, k, v, heads, tokens, dim, false);
    for (int i = 0; i < 20; ++i) {
        elsa::or_throw(plan.run(workspace, inputs, outputs));
        for (std::size_t at = 0; at < out.size(); ++at) {
            worst.compare(out[at], want[at]);
        }
    }
    // A GPU needs no threads.
    const bool used = pool.calls > 0 || elsa::or_throw(plan.describe()).backend == ELSA_BACKEND_CUDA;
    return used ? worst.verdict() : 1;
}
