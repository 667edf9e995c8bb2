// Tasks of quorums by elsa.hpp: the states of all tasks merge into attention of all pairs, and refusals. With and without
// ELSA_THROW.
#include "common.hpp"

namespace {

void answers(const elsa::engine &engine) {
    const std::size_t heads = 2, tokens = 45, dim = 8, count = heads * tokens * dim;
    const std::vector<float> q = noise(count, 71), k = noise(count, 72), v = noise(count, 73);
    elsa::problem<float> p;
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, dim);
    elsa::inputs<float> in;
    in.q = q;
    in.k = k;
    in.v = v;
    elsa::states sum(heads * tokens, dim);
    std::uint64_t tasks = 1, pairs = 0;
    for (std::uint64_t number = 0; number < tasks; number++) {
        const elsa::task task = engine.task(p, elsa::task_options({3, 7}, number)).value();
        const elsa_task_info info = task.describe().value();
        tasks = info.tasks;
        pairs += info.pairs;
        const elsa::task_tokens list = task.tokens().value();
        CHECK(list.queries.size() == info.queries && list.keys.size() == info.keys);
        CHECK(list.queries.size() < tokens);
        elsa::states part = task.states().value();
        elsa::task_report done;
        CHECK(task.run(in.get(), part, &done).ok() && done.calls + done.skipped > 0);
        CHECK(sum.merge(task.spread(part).value()).ok());
        elsa::states wrong(part.rows() + 1, dim);
        CHECK(task.run(in.get(), wrong).message().find("states: ") == 0);
        CHECK(task.spread(wrong).message().find("of_task: ") == 0);
    }
    CHECK(tasks == 21 && pairs == tokens * tokens);
    std::vector<float> y(count);
    const elsa::output<float> to(y);
    CHECK(sum.finish(to).ok());
    CHECK(distance(p, naive(p, reader(q), reader(k), reader(v), all), reader(y)) < 1e-5);
}

void refused(const elsa::engine &engine) {
    elsa::problem<float> p;
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, 20, 8);
    CHECK(engine.task(p, elsa::task_options({7}, 7)).status().code() == ELSA_STATUS_ARGUMENT);
    CHECK(engine.task(p, elsa::task_options({}, 0)).status().code() == ELSA_STATUS_ARGUMENT);
    // More levels than the library knows.
    CHECK(engine.task(p, elsa::task_options({3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3}, 0)).message().find("chunks") == 0);
    const auto few = engine.task(p, elsa::task_options({7}, 0).with_gathered(20, 20));
    CHECK(few.message().find("the task") != std::string::npos);
    CHECK(engine.task(p, elsa::task_options({7}, 0), elsa::plan_options().with_error_budget(0.1f)).message().find("error_budget") == 0);
}

} // namespace

int main() {
    elsa::engine_options options;
    options.threads = 2;
    const elsa::engine engine = elsa::engine::create(options).value();
    answers(engine);
    refused(engine);
    std::printf("%d checks\n", checks);
    return 0;
}
