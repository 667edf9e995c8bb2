// Streams with callables: their arguments, results and exceptions; compared with a run in memory.
#include "common.hpp"

#include <memory>
#include <stdexcept>

namespace {

const std::size_t heads = 2, shared = 1, queries = 250, keys = 700, dim = 32;

// SLOW: built for ThreadSanitizer, under which an operation takes fifty times as long: every fortieth index fails.
#ifdef SLOW
const int step = 40;
#else
const int step = 1;
#endif

struct Data {
    std::vector<float> q = noise(heads * queries * dim, 1), k = noise(shared * keys * dim, 2),
                       v = noise(shared * keys * dim, 3);

    const std::vector<float> &of(elsa_operand operand) const {
        return operand == ELSA_OPERAND_Q ? q : operand == ELSA_OPERAND_K ? k : v;
    }
};

elsa::problem<float> plain() {
    elsa::problem<float> p;
    p.q = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, queries, dim);
    p.k = p.v = *elsa::view(ELSA_LAYOUT_BHND, 1, shared, keys, dim);
    return p;
}

// Makes a stream with the smallest budget, and a little more.
elsa::stream stream(const elsa::engine &engine, const elsa::problem<float> &p, std::size_t more = 1 << 20,
                    elsa_stream_outputs outputs = ELSA_STREAM_OUT | ELSA_STREAM_LSE) {
    for (int tries = 0;; tries++) {
        const elsa::result<elsa::stream> refused = engine.stream(p, elsa::stream_options(1).with_outputs(outputs));
        CHECK(refused.status().code() == ELSA_STATUS_MEMORY && refused.message().find("host_budget: 1 bytes") == 0);
        const std::size_t at = refused.message().find("at least ");
        CHECK(at != std::string::npos);
        const std::size_t budget = std::strtoull(refused.message().c_str() + at + 9, nullptr, 10) + more;
        elsa::result<elsa::stream> made =
            engine.stream(p, elsa::stream_options(budget).with_outputs(outputs).with_eta(0.1));
        // The memory of the process may grow between the two calls.
        if (made.ok() || tries == 100) {
            CHECK(made.ok() && made->describe()->host_bytes <= budget);
            return std::move(made).value();
        }
    }
}

// Searches a budget with more than one unit: the memory of the process changes between two calls.
elsa::stream divided(const elsa::engine &engine, const elsa::problem<float> &p) {
    std::size_t more = 1 << 17;
    for (int tries = 0;; tries++) {
        elsa::stream made = stream(engine, p, more);
        const std::size_t units = made.describe()->units;
        if (units > 1 && units < 20) return made;
        CHECK(tries < 200);
        more = units >= 20 ? more + (1 << 15) : more - more / 4;
    }
}

std::size_t place(std::size_t head, std::size_t token, std::size_t tokens) { return (head * tokens + token) * dim; }

// Fills rows of q, k and v. The callable type cannot be copied.
struct Reads {
    const Data *data;
    std::unique_ptr<int> calls;

    explicit Reads(const Data &from) : data(&from), calls(new int(0)) {}

    void operator()(const elsa::rows_to_fill &rows) {
        ++*calls;
        const std::vector<float> &from = data->of(rows.operand());
        const std::size_t tokens = rows.operand() == ELSA_OPERAND_Q ? queries : keys;
        rows.each<float>([&](std::size_t, std::size_t head, std::size_t token, float *row) {
            std::copy_n(&from[place(head, token, tokens)], rows.where().length, row);
        });
    }
};

// Takes rows of out and lse.
struct Writes {
    std::vector<float> out = std::vector<float>(heads * queries * dim, NAN), lse = std::vector<float>(heads * queries, NAN);

    std::int32_t operator()(const elsa::rows_to_take &rows) {
        rows.each<float>([&](std::size_t, std::size_t head, std::size_t token, const float *row) {
            if (rows.operand() == ELSA_OPERAND_OUT) {
                std::copy_n(row, dim, &out[place(head, token, queries)]);
            } else {
                lse[head * queries + token] = *row;
            }
        });
        return 0;
    }
};

bool same(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Boom {
    int where;
};

void answers(const elsa::engine &engine, const Data &x) {
    elsa::problem<float> p = plain();
    p.with_key_lengths();
    const std::vector<std::int64_t> lengths = {static_cast<std::int64_t>(keys) - 7};
    elsa::inputs<float> in;
    in.q = x.q;
    in.k = x.k;
    in.v = x.v;
    in.key_lengths = lengths;
    Writes whole, found;
    elsa::outputs<float> to;
    to.out = whole.out;
    to.lse = whole.lse;
    const elsa::plan<float> plan = engine.plan(p).value();
    CHECK(plan.run(plan.workspace().value(), in, to).ok());

    const elsa::stream small = stream(engine, p);
    elsa::stream_lists lists;
    lists.key_lengths = lengths;
    elsa::stream_report done;
    Reads reads(x);
    CHECK(small.run(reads, found, &done, lists).ok());
    CHECK(same(found.out, whole.out) && same(found.lse, whole.lse));
    CHECK(*reads.calls > 0 && done.finished == done.units && done.overlap <= 1 && done.code == 0);
    // Against the definition.
    const auto valid = [](std::size_t, std::size_t j) { return j < keys - 7; };
    const std::vector<double> want = naive(p, reader(x.q), reader(x.k), reader(x.v), valid);
    CHECK(distance(p, want, reader(found.out)) < 1e-5);
    // Callables that end with the call, including a function pointer.
    Writes again;
    CHECK(small.run(Reads(x), std::ref(again), nullptr, lists).ok() && same(again.out, whole.out));
    std::int32_t (*const refuses)(const elsa::rows_to_take &) = [](const elsa::rows_to_take &) -> std::int32_t { return 9; };
    CHECK(small.run(Reads(x), refuses, nullptr, lists).code() == ELSA_STATUS_CALLBACK);
    // Without its lists.
    const elsa::status none = small.run(Reads(x), again);
    CHECK(none.code() == ELSA_STATUS_ARGUMENT && none.message().find("key_lengths") == 0);
}

// Checks status numbers and exceptions of callables, on either side.
void endings(const elsa::engine &engine, const Data &x) {
    const elsa::stream small = divided(engine, plain());
    const std::size_t units = small.describe()->units;
    CHECK(units > 1 && units < 20);
    Writes whole;
    Reads counted(x);
    CHECK(small.run(counted, whole).ok());
    for (int fail = 1; fail <= *counted.calls; fail += step) {
        Reads inner(x);
        Writes found;
        const auto returns = [&](const elsa::rows_to_fill &rows) -> std::int32_t {
            inner(rows);
            return *inner.calls == fail ? -fail - 1 : 0;
        };
        elsa::stream_report done;
        const elsa::status ended = small.run(returns, found, &done);
        CHECK(ended.code() == ELSA_STATUS_CALLBACK && done.code == -fail - 1 && done.operand <= ELSA_OPERAND_V);
        CHECK(ended.message().find("read returned " + std::to_string(-fail - 1)) != std::string::npos);
        CHECK(*inner.calls == fail && done.finished < units && done.units == units);

        // The same call throws, and the run continues from its end.
        Reads again(x);
        int caught = 0;
        const auto throws = [&](const elsa::rows_to_fill &rows) {
            again(rows);
            if (*again.calls == fail) throw Boom{fail};
        };
        try {
            CHECK(small.run(throws, found, &done).ok());
        } catch (const Boom &boom) {
            caught = boom.where;
        }
        CHECK(caught == fail && done.code == -1);
        elsa::stream_lists rest;
        rest.first_unit = done.finished;
        CHECK(small.run(Reads(x), found, &done, rest).ok() && done.finished == units);
        CHECK(same(found.out, whole.out) && same(found.lse, whole.lse));
    }
    // Outputs, and an exception whose message outlives its thrower.
    std::string message;
    int writes = 0;
    const auto throws = [&](const elsa::rows_to_take &) {
        if (++writes == 3) throw std::runtime_error(std::string("disk ") + "full");
    };
    elsa::stream_report done;
    try {
        CHECK(small.run(Reads(x), throws, &done).ok());
    } catch (const std::runtime_error &error) {
        message = error.what();
    }
    CHECK(message == "disk full" && writes == 3 && done.operand >= ELSA_OPERAND_OUT && done.finished == 1);
    // No work is left.
    elsa_stream_report *const unread = nullptr;
    elsa::stream_lists rest;
    rest.first_unit = units;
    Reads none(x);
    CHECK(small.run(none, whole, unread, rest).ok() && *none.calls == 0);
    // The read of the second unit throws while the outputs of the first are written: the write completes before the run
    // ends.
    int caught = 0;
    Reads inner(x);
    std::atomic<bool> thrown(false);
    const int second = 1 + *counted.calls / static_cast<int>(units);
    const auto ahead = [&](const elsa::rows_to_fill &rows) {
        inner(rows);
        if (*inner.calls == second) {
            thrown = true;
            throw Boom{1};
        }
    };
    const auto meanwhile = [&](const elsa::rows_to_take &) {
        while (!thrown) std::this_thread::yield();
        throw Boom{2};
    };
    try {
        CHECK(small.run(ahead, meanwhile).ok());
    } catch (const Boom &boom) {
        caught = boom.where;
    }
    CHECK(caught == 2);
}

// A callable that receives finished units, and a second stream that resumes with the sizes of the first.
void resumed(const elsa::engine &engine, const Data &x) {
    const elsa::stream small = divided(engine, plain());
    const elsa_stream_info info = small.describe().value();
    Writes whole, found;
    std::size_t finished = 0;
    const auto counts = [&](std::size_t unit) { CHECK(unit == finished++); };
    CHECK(small.run_noted(Reads(x), whole, counts).ok() && finished == info.units);
    elsa::stream_report done;
    const auto ends = [](std::size_t unit) -> std::int32_t { return unit == 1 ? 7 : 0; };
    CHECK(small.run_noted(Reads(x), found, ends, &done).code() == ELSA_STATUS_CALLBACK && done.code == 7);
    CHECK(done.finished == 1 && done.units == info.units);
    const auto other = engine.stream(plain(), elsa::stream_options(info.host_bytes + (16 << 20))
                                                  .with_outputs(ELSA_STREAM_OUT | ELSA_STREAM_LSE)
                                                  .with_eta(0.1)
                                                  .with_sizes(info));
    CHECK(other.ok() && other->describe()->units == info.units);
    elsa::stream_lists rest;
    rest.first_unit = done.finished;
    CHECK(other->run(Reads(x), found, &done, rest).ok() && done.finished == info.units);
    CHECK(same(found.out, whole.out) && same(found.lse, whole.lse));
    int caught = 0;
    const auto throws = [](std::size_t) { throw Boom{4}; };
    try {
        CHECK(small.run_noted(Reads(x), found, throws).ok());
    } catch (const Boom &boom) {
        caught = boom.where;
    }
    CHECK(caught == 4);
}

// Checks rows of another type, or beyond the counts.
void misuse(const elsa::engine &engine, const Data &x) {
    elsa_rows where = elsa_rows();
    float data[6] = {0, 1, 2, 3, 4, 5};
    where.element_bytes = sizeof(float);
    where.count[0] = where.count[1] = 1;
    where.count[2] = where.length = 2;
    where.strides[2] = 3;
    const elsa::rows_to_take rows(where, data, sizeof data);
    CHECK(*rows.row<float>(0, 0, 1) == 3 && rows.bytes() == sizeof data && rows.data() == data);
#ifdef ELSA_THROW
    int caught = 0;
    const auto beyond = [&](std::size_t b, std::size_t h, std::size_t t) {
        try {
            CHECK(rows.row<float>(b, h, t) == nullptr);
        } catch (const elsa::error &error) {
            caught += error.code() == ELSA_STATUS_ARGUMENT;
        }
    };
    beyond(1, 0, 0);
    beyond(0, 1, 0);
    beyond(0, 0, 2);
    CHECK(caught == 3);
    // An exception inside a callable reaches the caller.
    try {
        CHECK(stream(engine, plain()).run([](const elsa::rows_to_fill &to) { to.row<double>(0, 0, 0); }, Writes()).ok());
    } catch (const elsa::error &error) {
        caught = std::strstr(error.what(), "elements of 8 bytes; allowed: below (1, ") != nullptr ? 9 : 0;
    }
    CHECK(caught == 9);
#endif
    CHECK(stream(engine, plain()).run(Reads(x), Writes()).ok());
    elsa::stream gone;
    CHECK(!gone && gone.run(Reads(x), Writes()).code() == ELSA_STATUS_HANDLE);
    gone = stream(engine, plain());
    const elsa_stream handle = gone.get();
    elsa_stream_info info;
    elsa_stream_info_init(&info);
    CHECK(elsa_stream_describe(handle, &info) == ELSA_STATUS_OK);
    gone.reset();
    CHECK(elsa_stream_describe(handle, &info) == ELSA_STATUS_HANDLE);
}

// Returns the CPU's best back end.
elsa_backend best() {
    elsa_backend backend = ELSA_BACKEND_CUDA;
    std::uint32_t present = 0;
    while (present == 0) CHECK(elsa_backend_present(--backend, &present) == ELSA_STATUS_OK);
    return backend;
}

// Runs within a budget of GPU memory.
void on_a_gpu(const Data &x) {
    std::uint32_t present = 0;
    CHECK(elsa_backend_present(ELSA_BACKEND_CUDA, &present) == ELSA_STATUS_OK);
    if (!present) return;
    elsa::engine_options of_engine;
    of_engine.backend = ELSA_BACKEND_CUDA;
    of_engine.fallback = ELSA_FALLBACK_FAIL;
    const elsa::engine engine = elsa::engine::create(of_engine).value();
    const elsa::problem<float> p = plain();
    elsa::stream_options options(std::size_t(1) << 30);
    options.with_eta(0.05).with_device_budget(1);
    const elsa::result<elsa::stream> refused = engine.stream(p, options);
    CHECK(refused.status().code() == ELSA_STATUS_MEMORY && refused.message().find("device_budget: 1 bytes") == 0);
    const std::size_t at = refused.message().find("at least ");
    CHECK(at != std::string::npos);
    const std::size_t budget = 2 * std::strtoull(refused.message().c_str() + at + 9, nullptr, 10);
    const elsa::stream made = engine.stream(p, options.with_device_budget(budget)).value();
    CHECK(made.describe()->backend == ELSA_BACKEND_CUDA && made.describe()->device_bytes <= budget);
    Writes found;
    Reads reads(x);
    CHECK(made.run(reads, found).ok());
    const auto all = [](std::size_t, std::size_t) { return true; };
    const std::vector<double> want = naive(p, reader(x.q), reader(x.k), reader(x.v), all);
    CHECK(distance(p, want, reader(found.out)) < 1e-5);
}

} // namespace

int main() {
    const Data x;
    elsa::engine_options options;
    options.backend = best();
    options.threads = 1;
    const elsa::engine engine = elsa::engine::create(options).value();
    answers(engine, x);
    endings(engine, x);
    resumed(engine, x);
    misuse(engine, x);
    on_a_gpu(x);
    std::printf("%d checks\n", checks);
    return 0;
}
