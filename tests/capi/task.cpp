// Tasks of quorums by elsa.hpp: the states of all tasks merge into attention of all pairs, in memory and in files, and
// refusals. With and without
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

// Files of tasks merge to the bits of a merge in memory. The tree of three tasks is ((0 1) 2) in both.
void files(const elsa::engine &engine) {
    const std::size_t heads = 2, tokens = 45, dim = 8, count = heads * tokens * dim;
    const std::vector<float> q = noise(count, 71), k = noise(count, 72), v = noise(count, 73);
    elsa::problem<float> p;
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, dim);
    elsa::inputs<float> in;
    in.q = q;
    in.k = k;
    in.v = v;
    const char *home = std::getenv("TMPDIR");
    std::string folder = std::string(home ? home : "/tmp") + "/elsa-task-files-XXXXXX";
    CHECK(mkdtemp(&folder[0]) != nullptr);
    elsa::states sum(heads * tokens, dim);
    std::vector<std::string> paths;
    for (std::uint64_t number = 0; number < 3; number++) {
        const elsa::task task = engine.task(p, elsa::task_options({3}, number)).value();
        elsa::states part = task.states().value();
        CHECK(task.run(in.get(), part).ok());
        paths.push_back(folder + "/task" + std::to_string(number) + ".npz");
        CHECK(task.write_file(part, paths.back(), "frame 7").ok());
        CHECK(sum.merge(task.spread(part).value()).ok());
        CHECK(task.write_file(part, paths.back(), "").message().find("run: ") == 0);
        CHECK(task.write_file(part, paths.back(), "frame 7", {3}).message().find("key_lengths") == 0);
        const elsa::states wrong(part.rows() + 1, dim);
        CHECK(task.write_file(wrong, paths.back(), "frame 7").message().find("of_task: ") == 0);
    }
    std::vector<float> y(count), lse(heads * tokens), read_y(count), read_lse(heads * tokens);
    CHECK(sum.finish(elsa::output<float>(y), lse).ok());
    const std::string out_path = folder + "/y.npy", lse_path = folder + "/lse.npy";
    const elsa_task_merged merged =
        elsa::task_files(paths).with_run("frame 7").with_out(out_path).with_lse(lse_path).merge().value();
    CHECK(merged.tasks == 3 && merged.windows == 1 && merged.shape[2] == tokens);
    const auto read = [](const std::string &path, std::vector<float> &to) {
        std::FILE *file = std::fopen(path.c_str(), "rb");
        CHECK(file && std::fseek(file, -static_cast<long>(to.size() * sizeof(float)), SEEK_END) == 0);
        CHECK(std::fread(to.data(), sizeof(float), to.size(), file) == to.size() && std::fclose(file) == 0);
    };
    read(out_path, read_y);
    read(lse_path, read_lse);
    CHECK(std::memcmp(y.data(), read_y.data(), count * sizeof(float)) == 0);
    CHECK(std::memcmp(lse.data(), read_lse.data(), lse.size() * sizeof(float)) == 0);
    const auto small = elsa::task_files(paths).with_out(out_path, ELSA_LAYOUT_BNHD).with_host_budget(1).merge();
    CHECK(small.status().code() == ELSA_STATUS_MEMORY && small.message().find("host_budget: 1") == 0);
    CHECK(elsa::task_files(paths).with_run("frame 8").with_out(out_path).merge().message().find("run: ") == 0);
    CHECK(elsa::task_files(paths).merge().message().find("out, lse: ") == 0);
    CHECK(elsa::task_files({paths[0], paths[2]}).with_lse(lse_path).merge().message().find("paths: task 1 is missing") == 0);
    for (const std::string &path : paths) CHECK(std::remove(path.c_str()) == 0);
    CHECK(std::remove(out_path.c_str()) == 0 && std::remove(lse_path.c_str()) == 0 && std::remove(folder.c_str()) == 0);
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
    files(engine);
    refused(engine);
    std::printf("%d checks\n", checks);
    return 0;
}
