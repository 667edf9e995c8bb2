// elsa.hpp in use: every layout, type and flag against a naive double loop, states of disjoint sets of keys, threads,
// refusals. Compiled with and without ELSA_THROW; with INJECT against a library that panics on request.
#include "elsa.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#if __cplusplus >= 202002L
#include <span>
#endif
#include <sys/wait.h>
#include <unistd.h>

#ifdef INJECT
extern "C" void elsa_test_panic_next(void);
#endif

namespace {

int checks = 0;

void check(bool good, const char *what, int line) {
    checks++;
    if (!good) {
        std::fprintf(stderr, "%d: %s (%s)\n", line, what, elsa_last_error());
        std::exit(1);
    }
}
#define CHECK(x) check((x), #x, __LINE__)

std::vector<float> noise(std::size_t count, unsigned seed) {
    std::vector<float> x(count);
    for (float &v : x) {
        seed = seed * 1664525u + 1013904223u;
        v = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
    }
    return x;
}

// The upper 16 bits of an f32, rounded to nearest even; and back.
std::uint16_t to_bf16(float x) {
    std::uint32_t b;
    std::memcpy(&b, &x, 4);
    return static_cast<std::uint16_t>((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}
float from_bf16(std::uint16_t x) {
    const std::uint32_t b = static_cast<std::uint32_t>(x) << 16;
    float f;
    std::memcpy(&f, &b, 4);
    return f;
}
// f16 of a number that needs no more than eleven bits and is neither tiny nor huge; and back.
std::uint16_t to_f16(float x) {
    int exponent;
    const float m = std::frexp(std::fabs(x), &exponent);
    if (m == 0 || exponent < -13) return 0;
    const int bits = static_cast<int>(m * 2048.0f) - 1024;
    return static_cast<std::uint16_t>((x < 0 ? 0x8000 : 0) | ((exponent + 14) << 10) | bits);
}
float from_f16(std::uint16_t x) {
    const int exponent = (x >> 10) & 31, bits = x & 1023;
    const float m = exponent == 0 ? std::ldexp(static_cast<float>(bits), -24)
                                  : std::ldexp(static_cast<float>(bits + 1024), exponent - 25);
    return x & 0x8000 ? -m : m;
}

typedef std::function<float(const elsa_view &, std::size_t h, std::size_t token, std::size_t dim)> Read;

std::size_t at(const elsa_view &v, std::size_t h, std::size_t token, std::size_t dim) {
    return h * v.strides[1] + token * v.strides[2] + dim;
}

// Softmax attention of one sequence by the definition; `attends` selects the pairs that count.
std::vector<double> naive(const elsa_problem &p, const Read &q, const Read &k, const Read &v,
                          const std::function<bool(std::size_t, std::size_t)> &attends) {
    const std::size_t heads = p.q.shape[1], group = heads / p.k.shape[1], dim = p.q.shape[3], wide = p.v.shape[3];
    std::vector<double> y(heads * p.q.shape[2] * wide, 0.0);
    for (std::size_t h = 0; h < heads; h++)
        for (std::size_t i = 0; i < p.q.shape[2]; i++) {
            double sum = 0;
            double *row = &y[(h * p.q.shape[2] + i) * wide];
            for (std::size_t j = 0; j < p.k.shape[2]; j++) {
                if (!attends(i, j)) continue;
                double s = 0;
                for (std::size_t c = 0; c < dim; c++)
                    s += static_cast<double>(q(p.q, h, i, c)) * static_cast<double>(k(p.k, h / group, j, c));
                const double w = std::exp(s / std::sqrt(static_cast<double>(dim)));
                sum += w;
                for (std::size_t c = 0; c < wide; c++) row[c] += w * static_cast<double>(v(p.v, h / group, j, c));
            }
            for (std::size_t c = 0; c < wide && sum > 0; c++) row[c] /= sum;
        }
    return y;
}

double distance(const elsa_problem &p, const std::vector<double> &want, const Read &out) {
    double worst = 0;
    for (std::size_t h = 0; h < p.out.shape[1]; h++)
        for (std::size_t i = 0; i < p.out.shape[2]; i++)
            for (std::size_t c = 0; c < p.out.shape[3]; c++) {
                const double w = want[(h * p.out.shape[2] + i) * p.out.shape[3] + c];
                const double d = std::fabs(static_cast<double>(out(p.out, h, i, c)) - w);
                if (!(d <= worst)) worst = d == d ? d : HUGE_VAL;
            }
    return worst;
}

// The largest difference of two rows of numbers; infinite where one is no number.
double distance(const std::vector<float> &a, const std::vector<float> &b) {
    double worst = 0;
    for (std::size_t i = 0; i < a.size(); i++) {
        const double d = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
        if (!(d <= worst)) worst = d == d ? d : HUGE_VAL;
    }
    return worst;
}

Read reader(const std::vector<float> &x, std::size_t from = 0) {
    return [&x, from](const elsa_view &v, std::size_t h, std::size_t t, std::size_t d) { return x[from + at(v, h, t, d)]; };
}

bool all(std::size_t, std::size_t) { return true; }

// Queries, keys and values side by side in one tensor [tokens, 3, heads, dim].
void packed_qkv(const elsa::engine &engine) {
    const std::size_t tokens = 45, heads = 3, dim = 24, row = 3 * heads * dim;
    const std::vector<float> x = noise(tokens * row, 1);
    std::vector<float> out(tokens * heads * dim, -7.0f);
    elsa::problem<float> p;
    p.q = *elsa::view(ELSA_LAYOUT_BNHD, 1, heads, tokens, dim);
    p.out = p.q;
    p.q.strides[2] = row;
    p.q.strides[0] = row * tokens;
    p.k = p.v = p.q;
    elsa::result<elsa::plan<float>> plan = engine.plan(p);
    CHECK(plan.ok());
    elsa::result<elsa::workspace> room = plan->workspace();
    CHECK(room.ok());
    elsa::inputs<float> in;
    elsa::outputs<float> to;
    const std::size_t reach = (tokens - 1) * row + heads * dim;
    in.q = {x.data(), reach};
    in.k = {x.data() + heads * dim, reach};
    in.v = {x.data() + 2 * heads * dim, reach};
    to.out = out;
    elsa::report report;
    CHECK(plan->run(*room, in, to, &report).ok());
    CHECK(report.workers >= 1 && report.kernel != nullptr && report.kernel[0] != 0 && report.fallback == 0);
    const std::vector<double> want =
        naive(p, reader(x), reader(x, heads * dim), reader(x, 2 * heads * dim), all);
    CHECK(distance(p, want, reader(out)) < 1e-5);
    // The same bits through a bound plan, whose handle is moved.
    const std::vector<float> first = out;
    elsa::result<elsa::bound> bound = plan->bind(*room, in, to);
    CHECK(bound.ok());
    elsa::bound mine = std::move(bound).value();
    std::fill(out.begin(), out.end(), 0.0f);
    CHECK(mine.run().ok() && mine.run(&report).ok());
    CHECK(std::memcmp(first.data(), out.data(), out.size() * 4) == 0);
    const elsa::result<elsa_plan_info> info = plan->describe();
    CHECK(info.ok() && info.value().workspace_bytes > 0);
    // The same bits in memory of the caller's, wherever it starts; a byte less is refused.
    const std::size_t bytes = info.value().workspace_bytes;
    for (std::size_t shift = 0; shift < 5; shift += 3) {
        if (report.backend == ELSA_BACKEND_CUDA) {
            std::vector<unsigned char> memory(bytes);
            CHECK(plan->workspace_in(memory.data(), bytes).status().code() == ELSA_STATUS_UNSUPPORTED);
            break;
        }
        std::vector<unsigned char> memory(bytes + shift + 5, 0xff);
        CHECK(plan->workspace_in(memory.data() + shift, bytes - 1).status().code() == ELSA_STATUS_ARGUMENT);
        CHECK(plan->workspace_in(nullptr, bytes + 77).status().code() == ELSA_STATUS_ARGUMENT);
        CHECK(std::strstr(elsa_last_error(), std::to_string(bytes + 77).c_str()) != nullptr);
        // More than memory can be.
        for (const std::size_t most : {SIZE_MAX, SIZE_MAX / 2 + 1, SIZE_MAX - shift}) {
            CHECK(plan->workspace_in(memory.data() + shift, most).status().code() == ELSA_STATUS_ARGUMENT);
            CHECK(std::strstr(elsa_last_error(), "address space") != nullptr);
        }
        CHECK(memory[shift] == 0xff);
        elsa::result<elsa::workspace> own = plan->workspace_in(memory.data() + shift, bytes + 5);
        CHECK(own.ok());
        std::fill(out.begin(), out.end(), 0.0f);
        CHECK(plan->run(*own, in, to).ok());
        CHECK(std::memcmp(first.data(), out.data(), out.size() * 4) == 0);
        // What the plan does not need is left alone.
        for (std::size_t i = 0; i < 5; i++) CHECK(memory[shift + bytes + i] == 0xff);
    }
    const elsa::result<elsa_certificate> certificate = plan->certificate();
    CHECK(certificate.ok() && certificate.value().keys == tokens && certificate.value().published_bound > 0);
}

// Grouped heads, a mask, lengths, causality and a window.
void flags(const elsa::engine &engine) {
    const std::size_t tokens = 33, heads = 4, dim = 16;
    const std::vector<float> q = noise(heads * tokens * dim, 2), k = noise(2 * tokens * dim, 3), v = noise(2 * tokens * dim, 4);
    std::vector<unsigned char> mask(tokens * tokens);
    for (std::size_t i = 0; i < mask.size(); i++) mask[i] = i * 7919 % 5 != 0;
    elsa::problem<float> p;
    p.q = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, dim);
    p.k = p.v = *elsa::view(ELSA_LAYOUT_BHND, 1, 2, tokens, dim);
    elsa::inputs<float> in;
    in.q = q;
    in.k = k;
    in.v = v;
    const std::int64_t length = 29;
    for (int flag = 0; flag < 4; flag++) {
        elsa::problem<float> f = p;
        elsa::inputs<float> with = in;
        std::function<bool(std::size_t, std::size_t)> attends = all;
        if (flag == 0) {
            f.causal = ELSA_CAUSAL_TOP_LEFT;
            attends = [](std::size_t i, std::size_t j) { return j <= i; };
        } else if (flag == 1) {
            f.has_window_left = f.has_window_right = 1;
            f.window_left = 3;
            f.window_right = 2;
            attends = [](std::size_t i, std::size_t j) { return j + 3 >= i && j <= i + 2; };
        } else if (flag == 2) {
            f.mask.kind = ELSA_MASK_BOOL;
            f.mask.rank = 2;
            f.mask.dims[0] = f.mask.dims[1] = tokens;
            with.mask = mask;
            attends = [&](std::size_t i, std::size_t j) { return mask[i * tokens + j] != 0; };
        } else {
            f.has_key_lengths = 1;
            with.key_lengths = elsa::integers(&length, 1);
            attends = [&](std::size_t, std::size_t j) { return j < static_cast<std::size_t>(length); };
        }
        std::vector<float> out(q.size(), -7.0f);
        elsa::outputs<float> to;
        to.out = out;
        elsa::result<elsa::plan<float>> plan = engine.plan(f);
        CHECK(plan.ok());
        elsa::result<elsa::workspace> room = plan->workspace();
        CHECK(room.ok());
        CHECK(plan->run(*room, with, to).ok());
        CHECK(distance(f, naive(f, reader(q), reader(k), reader(v), attends), reader(out)) < 1e-5);
        CHECK(distance(f, naive(f, reader(q), reader(k), reader(v), all), reader(out)) > 1e-3);
    }
}

// f16 and bf16: sums in f32, the output rounded once.
template <class T>
void sixteen_bits(const elsa::engine &engine, std::uint16_t (*narrow)(float), float (*widen)(std::uint16_t),
                  double rounding) {
    const std::size_t tokens = 50, dim = 32, each = tokens * dim;
    const std::vector<float> x = noise(3 * each, 5);
    std::vector<T> raw(x.size()), out(each, T{0x7fff});
    for (std::size_t i = 0; i < x.size(); i++) raw[i].bits = narrow(x[i]);
    const auto read = [&](const std::vector<T> &data, std::size_t from) -> Read {
        return [&data, from, widen](const elsa_view &v, std::size_t h, std::size_t t, std::size_t d) {
            return widen(data[from + at(v, h, t, d)].bits);
        };
    };
    elsa::problem<T> p;
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, tokens, dim);
    elsa::inputs<T> in;
    elsa::outputs<T> to;
    in.q = {raw.data(), each};
    in.k = {raw.data() + each, each};
    in.v = {raw.data() + 2 * each, each};
    to.out = out;
    elsa::result<elsa::plan<T>> plan = engine.plan(p);
    CHECK(plan.ok());
    elsa::result<elsa::workspace> room = plan->workspace();
    CHECK(plan->run(*room, in, to).ok());
    // The error of f32 sums besides.
    CHECK(distance(p, naive(p, read(raw, 0), read(raw, each), read(raw, 2 * each), all), read(out, 0)) <=
          rounding + 1e-5);
    // Words of 16 bits that somebody else has made.
    std::vector<std::uint16_t> words(x.size()), other(each, 0x7fff);
    for (std::size_t i = 0; i < x.size(); i++) words[i] = narrow(x[i]);
    in.q = elsa::as<T>(words.data(), each);
    to.out = elsa::as<T>(other.data(), each);
    CHECK(plan->run(*room, in, to).ok());
    CHECK(std::memcmp(out.data(), other.data(), 2 * each) == 0);
    // A type of elements that changed behind the type's back.
    p.dtype = ELSA_DTYPE_F32;
    CHECK(engine.plan(p).status().code() == ELSA_STATUS_ARGUMENT);
}

// The states of two disjoint sets of keys merge into the state of all. Scores lie about `centre`, a few values of f32
// apart where it is large.
void parts(const elsa::engine &engine, float centre) {
    const std::size_t tokens = 40, keys = 70, cut = 27, dim = 16;
    std::vector<float> q = noise(tokens * dim, 6), k = noise(keys * dim, 7);
    const std::vector<float> v = noise(keys * dim, 8);
    const float infinity = std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < tokens && centre != 0; i++) q[i * dim] = i % 2 ? 4.0f : 3.0f;
    for (std::size_t j = 0; j < keys && centre != 0; j++) {
        k[j * dim] = centre;
        for (std::size_t up = j * 5 % 7; up > 0; up--) k[j * dim] = std::nextafter(k[j * dim], infinity);
    }
    std::vector<float> out(tokens * dim), whole(tokens * dim), lse(tokens);
    elsa::states all_keys(tokens, dim), folded(tokens, dim);
    const std::size_t from[3] = {0, cut, 0}, to_key[3] = {cut, keys, keys};
    for (int part = 0; part < 3; part++) {
        const std::size_t count = to_key[part] - from[part];
        elsa::problem<float> p;
        p.q = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, tokens, dim);
        p.k = p.v = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, count, dim);
        elsa::result<elsa::plan<float>> plan = engine.plan(p);
        CHECK(plan.ok());
        elsa::result<elsa::workspace> room = plan->workspace();
        elsa::states states(tokens, dim);
        elsa::inputs<float> in;
        elsa::outputs<float> to;
        in.q = q;
        in.k = {k.data() + from[part] * dim, count * dim};
        in.v = {v.data() + from[part] * dim, count * dim};
        to.out = part == 2 ? whole : out;
        CHECK(!plan->partial(*room, in, to).ok());
        to.with_states(states);
        CHECK(plan->partial(*room, in, to).ok());
        if (part == 2) all_keys = std::move(states);
        else CHECK(folded.merge(states).ok());
    }
    CHECK(folded.finish(out, lse).ok());
    CHECK(distance(out, whole) < 2e-6);
    const elsa_states_in state = all_keys.read();
    for (std::size_t i = 0; i < tokens; i++) {
        const double want = static_cast<double>(state.m[i]) + std::log(static_cast<double>(state.s[i]));
        CHECK(std::fabs(static_cast<double>(lse[i]) - want) < 1e-5 + 2e-7 * std::fabs(want));
    }
    // States without keys change nothing, on either side.
    std::vector<float> again(tokens * dim);
    CHECK(folded.merge(elsa::states(tokens, dim)).ok() && folded.finish(again).ok());
    CHECK(std::memcmp(out.data(), again.data(), out.size() * 4) == 0);
    // Others are refused, and memory that is too short.
    CHECK(folded.merge(elsa::states(tokens, dim + 1)).code() == ELSA_STATUS_ARGUMENT);
    CHECK(folded.merge(elsa::states(tokens - 1, dim)).code() == ELSA_STATUS_ARGUMENT);
    CHECK(folded.finish({again.data(), again.size() - 1}).code() == ELSA_STATUS_ARGUMENT);
    CHECK(folded.finish(again, {lse.data(), tokens - 1}).code() == ELSA_STATUS_ARGUMENT);
    const elsa_states_in a = folded.read();
    const elsa_states_out merged = folded.write();
    CHECK(elsa_states_merge(tokens, dim, &a, nullptr, &merged) == ELSA_STATUS_ARGUMENT);
}

// States that a caller has written: references that differ by a few values of f32, at any magnitude.
void written_states() {
    const float infinity = std::numeric_limits<float>::infinity();
    const float references[] = {0.0f, -700.5f, 2e7f, -2e7f, 1e9f, -3e9f, 1e30f};
    for (const float ma : references)
        for (int up = 0; up < 4; up++) {
            float mb = ma;
            for (int i = 0; i < up; i++) mb = std::nextafter(mb, infinity);
            const float sa = 1.5f, sb = 0.25f, wa[2] = {3, -1}, wb[2] = {0.5f, 8};
            const elsa_states_in a = {&ma, &sa, wa}, b = {&mb, &sb, wb};
            float m = 0, s = 0, w[2] = {0, 0}, out[2] = {0, 0}, lse = 0;
            const elsa_states_out to = {&m, &s, w};
            CHECK(elsa_states_merge(1, 2, &a, &b, &to) == ELSA_STATUS_OK);
            const elsa_states_in merged = {&m, &s, w};
            CHECK(elsa_states_finish(1, 2, &merged, out, &lse) == ELSA_STATUS_OK);
            const double weaker = std::exp(static_cast<double>(ma) - static_cast<double>(mb));
            const double sum = 1.5 * weaker + 0.25;
            for (int i = 0; i < 2; i++) {
                const double y = (static_cast<double>(wa[i]) * weaker + static_cast<double>(wb[i])) / sum;
                CHECK(std::fabs(static_cast<double>(out[i]) - y) <= 3e-7 * (1 + std::fabs(y)));
            }
            const double want = static_cast<double>(mb) + std::log(sum);
            CHECK(m == mb && std::fabs(static_cast<double>(lse) - want) <= 1e-6 + 1e-7 * std::fabs(want));
        }
    // What stands beside no key does not come out.
    const float none = -infinity, zero = 0, five = 5, nan = std::numeric_limits<float>::quiet_NaN();
    const elsa_states_in a = {&none, &zero, &nan}, b = {&none, &five, &nan};
    float m = 0, s = 1, w = 1;
    const elsa_states_out to = {&m, &s, &w};
    CHECK(elsa_states_merge(1, 1, &a, &b, &to) == ELSA_STATUS_OK);
    CHECK(m == none && s == 0 && w == 0);
}

// Threads share an engine and a plan, each with a workspace of its own; one workspace serves one call at a time.
void threads(const elsa::engine &engine) {
    const std::size_t tokens = 64, dim = 32, each = tokens * dim;
    const std::vector<float> x = noise(3 * each, 9);
    elsa::problem<float> p;
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, tokens, dim);
    elsa::result<elsa::plan<float>> plan = engine.plan(p);
    CHECK(plan.ok());
    elsa::inputs<float> in;
    in.q = {x.data(), each};
    in.k = {x.data() + each, each};
    in.v = {x.data() + 2 * each, each};
    elsa::result<elsa::workspace> common = plan->workspace();
    CHECK(common.ok());
    std::vector<std::vector<float>> outs(4, std::vector<float>(each)), shared(4, std::vector<float>(each));
    std::atomic<int> good(0), busy(0), odd(0);
    std::vector<std::thread> workers;
    for (std::size_t t = 0; t < 4; t++)
        workers.emplace_back([&, t] {
            elsa::result<elsa::workspace> room = plan->workspace();
            elsa::outputs<float> to;
            for (int i = 0; i < 20; i++) {
                to.out = {outs[t].data(), each};
                if (room.ok() && plan->run(*room, in, to).ok()) good++;
                to.out = {shared[t].data(), each};
                const elsa::status done = plan->run(*common, in, to);
                if (done.code() == ELSA_STATUS_BUSY) busy++;
                else if (!done.ok()) odd++;
            }
        });
    for (std::thread &worker : workers) worker.join();
    CHECK(good == 80 && odd == 0 && busy < 80);
    for (std::size_t t = 1; t < 4; t++) CHECK(std::memcmp(outs[0].data(), outs[t].data(), each * 4) == 0);
}

void refusals(const elsa::engine &engine) {
    elsa::problem<float> p;
    CHECK(!engine.plan(p).ok());
    CHECK(!engine.plan(p).message().empty());
    CHECK(!elsa::view(99, 1, 1, 1, 1).ok());
    CHECK(!elsa::view(ELSA_LAYOUT_BHND, static_cast<std::size_t>(-1), 2, 2, 2).ok());
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, 4, 4);
    p.dtype = 77;
    CHECK(engine.plan(p).status().code() == ELSA_STATUS_ARGUMENT);
    CHECK(std::strstr(elsa_last_error(), "allowed") != nullptr);
    p.dtype = ELSA_DTYPE_F32;
    elsa::plan_options small;
    small.budget = 1;
    CHECK(engine.plan(p, small).status().code() == ELSA_STATUS_MEMORY);
    elsa::engine_options bad;
    bad.threads = 1000000;
    CHECK(!elsa::engine::create(bad).ok());
    elsa::engine none;
    CHECK(none.plan(p).status().code() == ELSA_STATUS_HANDLE);
    CHECK(!none && static_cast<bool>(engine));
}

// A requested GPU: where it is missing the CPU computes and reports it once, or the engine is refused.
void gpu() {
    std::atomic<int> messages(0), earlier(0);
    elsa::result<elsa::logger> first =
        elsa::logger::create(ELSA_LOG_WARN, [&](elsa_log_level, const char *) { earlier++; });
    elsa::result<elsa::logger> log = elsa::logger::create(ELSA_LOG_WARN, [&](elsa_log_level level, const char *text) {
        if (level >= ELSA_LOG_ERROR && level <= ELSA_LOG_WARN && text[0] != 0) messages++;
    });
    CHECK(first.ok() && log.ok());
    // The end of the earlier one leaves the later one in force.
    *first = elsa::logger();
    std::uint32_t present = 0;
    CHECK(elsa_backend_present(ELSA_BACKEND_CUDA, &present) == ELSA_STATUS_OK);
    elsa::engine_options options;
    options.backend = ELSA_BACKEND_CUDA;
    elsa::result<elsa::engine> engine = elsa::engine::create(options);
    CHECK(engine.ok());
    const elsa::result<elsa_engine_info> info = engine->describe();
    CHECK(info.ok() && info->threads >= 1);
    CHECK((info->backend == ELSA_BACKEND_CUDA) == (present != 0));
    CHECK((info->absent != 0) == (present == 0) && (info->reason[0] != 0) == (present == 0));
    CHECK((info->device[0] != 0) == (present != 0) && (info->capability_major >= 6) == (present != 0));
    CHECK(info->fallback == ELSA_FALLBACK_CPU && engine->load_kernels().ok());
    CHECK((present != 0 || messages == 1) && earlier == 0);
    options.fallback = ELSA_FALLBACK_FAIL;
    CHECK(elsa::engine::create(options).ok() == (present != 0));
    const int before = messages;
    *log = elsa::logger();
    options.fallback = ELSA_FALLBACK_CPU;
    CHECK(elsa::engine::create(options).ok() && messages == before);
}

// What containers say of themselves, and what is absent.
void memory() {
    std::vector<float> list(5);
    std::array<float, 3> three = {{0, 0, 0}};
    float row[2] = {0, 0};
    CHECK(elsa::input<float>(list).get().data == list.data() && elsa::input<float>(list).get().bytes == 20);
    CHECK(elsa::output<float>(list).get().data == list.data() && elsa::output<float>(list).get().bytes == 20);
    CHECK(elsa::input<float>(three).get().bytes == 12 && elsa::output<float>(three).get().bytes == 12);
    CHECK(elsa::input<float>(row).get().bytes == 8 && elsa::output<float>(row).get().bytes == 8);
    CHECK(elsa::input<float>().get().data == nullptr && elsa::output<float>().get().bytes == 0);
    CHECK(elsa::input<float>(elsa::output<float>(row)).get().bytes == 8);
    // A count whose bytes overflow is not a small one.
    CHECK(elsa::input<float>(row, SIZE_MAX / 2).get().bytes == SIZE_MAX);
    const std::vector<std::int64_t> lengths = {1, 2, 3};
    const long long other[] = {4, 5};
    CHECK(elsa::integers(lengths).get().count == 3 && elsa::integers(other, 2).get().data[1] == 5);
    const bool allowed[] = {true, false, true};
    CHECK(elsa::mask(allowed, 3).kind() == ELSA_MASK_BOOL && elsa::mask(allowed, 3).get().bytes == 3);
    CHECK(elsa::mask(list).kind() == ELSA_MASK_F32 && elsa::mask().kind() == ELSA_MASK_NONE);
    CHECK(elsa::mask(std::vector<elsa::bf16>(2)).kind() == ELSA_MASK_BF16);
#if __cplusplus >= 202002L
    const std::span<float> part(list.data() + 1, 2);
    CHECK(elsa::input<float>(part).get().bytes == 8 && elsa::output<float>(part).get().data == list.data() + 1);
    CHECK(elsa::input<float>(std::span<const float>(part)).get().bytes == 8);
#endif
    for (const elsa_layout layout : {ELSA_LAYOUT_BHND, ELSA_LAYOUT_BNHD})
        CHECK(elsa::extent(*elsa::view(layout, 2, 3, 5, 7)) == 2 * 3 * 5 * 7);
    // A slice ends with its last row, not with those of the other slices.
    CHECK(elsa::extent(*elsa::view(ELSA_LAYOUT_QKV, 2, 3, 5, 7)) == 2 * 3 * 3 * 5 * 7 - 2 * 3 * 7);
    elsa_view empty = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, 1, 1);
    empty.shape[2] = 0;
    CHECK(elsa::extent(empty) == 0);
    empty.shape[2] = SIZE_MAX;
    empty.strides[2] = 2;
    CHECK(elsa::extent(empty) == 0);
    CHECK(std::strlen(elsa::status_text(ELSA_STATUS_BUSY)) > 0);
}

// The numbers of keys that rows attend: queries of zero have exp(lse) = keys.
std::vector<long> attended(const elsa::engine &engine, elsa::problem<float> p, std::size_t queries, std::size_t past,
                           std::size_t keys, std::int64_t length, const elsa::mask &mask = elsa::mask()) {
    const std::size_t heads = 3;
    p.q = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, queries, 4);
    p.k = p.v = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, keys, 4);
    const std::vector<float> zeros(heads * (queries + past + keys) * 4, 0.0f);
    std::vector<float> lse(heads * queries);
    elsa::inputs<float> in;
    in.q = in.k = in.v = zeros;
    in.mask = mask;
    if (past > 0) {
        p.past_k = p.past_v = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, past, 4);
        p.with_past(p.past_k, p.past_v);
        in.past_k = in.past_v = zeros;
    }
    if (length > 0) {
        p.with_key_lengths();
        in.key_lengths = {&length, 1};
    }
    elsa::outputs<float> to;
    to.lse = lse;
    const elsa::plan<float> plan = engine.plan(p).value();
    CHECK(plan.run(plan.workspace().value(), in, to).ok());
    std::vector<long> counts;
    for (const float l : lse) counts.push_back(std::lround(std::exp(l)));
    return counts;
}

// What the header says of diagonals, windows, strides and masks.
void header(const elsa::engine &engine) {
    typedef std::vector<long> Counts;
    const Counts four_five = {4, 5, 4, 5, 4, 5}, three_four = {3, 4, 3, 4, 3, 4};
    elsa::problem<float> p;
    for (const elsa_causal causal : {ELSA_CAUSAL_TOP_LEFT, ELSA_CAUSAL_BOTTOM_RIGHT}) {
        p.causal = causal;
        CHECK(attended(engine, p, 2, 3, 2, 0) == four_five);
    }
    CHECK(attended(engine, p, 2, 3, 2, 4) == three_four);
    p.causal = ELSA_CAUSAL_TOP_LEFT;
    CHECK(attended(engine, p, 2, 3, 2, 4) == Counts(6, 4));
    p.with_window_right(2);
    CHECK(attended(engine, p, 2, 3, 2, 0) == four_five);
    p.causal = ELSA_CAUSAL_NONE;
    p.with_window_left(3);
    const Counts windows = attended(engine, p, 20, 0, 20, 0);
    CHECK(windows[10] == 6 && windows[0] == 3 && windows[19] == 4);
    const std::size_t strides[3][4] = {{105, 35, 7, 1}, {105, 7, 21, 1}, {315, 7, 63, 1}};
    for (elsa_layout layout = 0; layout < 3; layout++)
        CHECK(std::memcmp(elsa::view(layout, 2, 3, 5, 7)->strides, strides[layout], sizeof strides[0]) == 0);
    // The first of 9 keys is masked: for all, for the last of 5 queries, for the last of 3 heads.
    std::vector<unsigned char> row(9, 1), matrix(45, 1), heads(27, 1);
    row[0] = matrix[36] = heads[18] = 0;
    elsa::problem<float> masked;
    CHECK(attended(engine, masked.with_mask<bool>({9}), 5, 0, 9, 0, row) == Counts(15, 8));
    Counts counts = attended(engine, masked.with_mask<bool>({5, 9}), 5, 0, 9, 0, matrix);
    CHECK(counts[4] == 8 && counts[9] == 8 && counts[14] == 8 && counts[3] == 9);
    counts = attended(engine, masked.with_mask<bool>({3, 1, 9}), 5, 0, 9, 0, heads);
    CHECK(counts[9] == 9 && counts[10] == 8 && counts[14] == 8);
    // A mask of 7 keys leaves the last two unattended; one of 1 is shared.
    CHECK(attended(engine, masked.with_mask<bool>({7}), 5, 0, 9, 0, elsa::mask(matrix.data(), 7)) == Counts(15, 7));
    CHECK(attended(engine, masked.with_mask<bool>({5, 1}), 5, 0, 9, 0, elsa::mask(matrix.data(), 5)) == Counts(15, 9));
}

// A mask of other elements than the problem's is refused, though its bytes would do.
void other_masks(const elsa::engine &engine) {
    const std::size_t tokens = 6, dim = 4;
    std::vector<float> x(tokens * dim, 0.5f), out(tokens * dim, -7.0f), wide(tokens * tokens, 1.0f);
    elsa::problem<float> p;
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, tokens, dim);
    p.with_mask<bool>({tokens, tokens});
    const elsa::plan<float> plan = engine.plan(p).value();
    const elsa::workspace room = plan.workspace().value();
    elsa::inputs<float> in;
    elsa::outputs<float> to;
    in.q = in.k = in.v = x;
    to.out = out;
    in.mask = wide;
    CHECK(plan.run(room, in, to).code() == ELSA_STATUS_ARGUMENT && out[0] == -7.0f);
    CHECK(plan.bind(room, in, to).status().message().find("mask") == 0);
    CHECK(plan.partial(room, in, to).code() == ELSA_STATUS_ARGUMENT);
    CHECK(plan.run_device(room, in, to, nullptr).code() == ELSA_STATUS_ARGUMENT);
    const std::vector<unsigned char> right(tokens * tokens, 1);
    in.mask = right;
    CHECK(plan.run(room, in, to).ok() && out[0] == 0.5f);
    // More axes than a mask has.
    p.with_mask<float>({1, 1, 1, 1, tokens});
    CHECK(engine.plan(p).status().code() == ELSA_STATUS_ARGUMENT);
}

// Tensors in buffers have the bits of tensors anywhere else.
void buffers(const elsa::engine &engine) {
    const std::size_t tokens = 37, heads = 2, dim = 24, each = heads * tokens * dim;
    const std::vector<float> x = noise(3 * each, 11);
    elsa::problem<float> p;
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, dim);
    const elsa::plan<float> plan = engine.plan(p).value();
    const elsa::workspace room = plan.workspace().value();
    CHECK(plan.warm(room).ok());
    std::vector<float> want(each);
    elsa::inputs<float> in;
    elsa::outputs<float> to;
    in.q = {x.data(), each};
    in.k = {x.data() + each, each};
    in.v = {x.data() + 2 * each, each};
    to.out = want;
    CHECK(plan.run(room, in, to).ok());
    elsa::buffer<float> q = engine.buffer<float>(each).value(), kv, out = engine.buffer<float>(each).value();
    CHECK(kv.data() == nullptr && kv.size() == 0 && !kv);
    kv = engine.buffer<float>(2 * each).value();
    CHECK(kv.size() == 2 * each && reinterpret_cast<std::uintptr_t>(kv.data()) % 64 == 0);
    for (const float zero : kv) CHECK(zero == 0.0f);
    std::copy(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(each), q.begin());
    std::copy(x.begin() + static_cast<std::ptrdiff_t>(each), x.end(), kv.begin());
    in.q = q;
    in.k = {kv.data(), each};
    in.v = {kv.data() + each, each};
    to.out = out;
    CHECK(plan.run(room, in, to).ok() && std::memcmp(want.data(), out.data(), 4 * each) == 0);
    const elsa::buffer<float> moved = std::move(out);
    CHECK(moved[0] == want[0] && out.data() == nullptr && out.size() == 0);
    CHECK(!engine.buffer<float>(SIZE_MAX).ok() && !engine.buffer<float>(SIZE_MAX / 4 - 64).ok());
    CHECK(plan.workspace_on_device(nullptr, 0).status().code() == ELSA_STATUS_UNSUPPORTED);
}

// One workspace for plans of which each needs more of something than the other.
void shared(const elsa::engine &engine) {
    elsa::problem<float> wide, many;
    wide.q = wide.k = wide.v = wide.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 2, 300, 64);
    many.q = many.k = many.v = many.out = *elsa::view(ELSA_LAYOUT_BHND, 40, 1, 2, 4);
    const elsa::plan<float> a = engine.plan(wide).value(), b = engine.plan(many).value();
    CHECK(a.describe()->workspace_bytes > b.describe()->workspace_bytes);
    const elsa::workspace of_a = a.workspace().value(), of_b = b.workspace().value();
    const elsa::workspace room = elsa::shared_workspace(b, a).value();
    const std::vector<float> x = noise(2 * 300 * 64, 12);
    std::vector<float> out(x.size()), again(x.size());
    elsa::inputs<float> in;
    elsa::outputs<float> to, second;
    in.q = in.k = in.v = x;
    to.out = out;
    second.out = again;
    CHECK(a.run(of_a, in, to).ok() && a.run(room, in, second).ok());
    CHECK(std::memcmp(out.data(), again.data(), 4 * out.size()) == 0);
    CHECK(b.run(of_b, in, to).ok() && b.run(room, in, second).ok());
    CHECK(std::memcmp(out.data(), again.data(), 4 * out.size()) == 0);
    CHECK(a.run(of_b, in, to).code() == ELSA_STATUS_ARGUMENT && b.run(of_a, in, to).code() == ELSA_STATUS_ARGUMENT);
    const elsa_plan none = {0}, here = a.get();
    elsa_workspace made = {7};
    CHECK(elsa_workspace_create_shared(&none, 1, &made) == ELSA_STATUS_HANDLE);
    CHECK(elsa_workspace_create_shared(&here, 0, &made) == ELSA_STATUS_ARGUMENT);
    CHECK(elsa_workspace_create_shared(&here, SIZE_MAX, &made) == ELSA_STATUS_ARGUMENT);
    CHECK(elsa_workspace_create_shared(nullptr, 1, &made) == ELSA_STATUS_ARGUMENT && made.id == 7);
}

// Tokens appended one by one to a cache have the answers of causal attention over all of them, and so have chunks of the
// keys whose states merge.
void caches_and_chunks(const elsa::engine &engine) {
    const std::size_t tokens = 23, room_for = 32, heads = 2, dim = 8, each = heads * tokens * dim;
    const std::vector<float> q = noise(each, 13), k = noise(each, 14), v = noise(each, 15);
    elsa::problem<float> p;
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, dim);
    p.causal = ELSA_CAUSAL_TOP_LEFT;
    const std::vector<double> want =
        naive(p, reader(q), reader(k), reader(v), [](std::size_t i, std::size_t j) { return j <= i; });
    const elsa_view cache = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, room_for, dim);
    std::vector<float> keys(elsa::extent(cache), NAN), values(keys), out(heads * dim);
    for (std::size_t i = 0; i < tokens; i++) {
        elsa::problem<float> step;
        step.q = step.k = step.v = p.q;
        step.q.shape[2] = step.k.shape[2] = step.v.shape[2] = 1;
        step.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, 1, dim);
        step.causal = ELSA_CAUSAL_BOTTOM_RIGHT;
        step.with_cache(cache, cache, i);
        const elsa::plan<float> plan = engine.plan(step).value();
        const elsa::workspace room = plan.workspace().value();
        const std::size_t reach = elsa::extent(step.q), used = elsa::extent(step.present_k);
        elsa::inputs<float> in;
        in.q = {q.data() + i * dim, reach};
        in.k = {k.data() + i * dim, reach};
        in.v = {v.data() + i * dim, reach};
        elsa::outputs<float> to;
        to.out = out;
        to.present_k = {keys.data(), used};
        to.present_v = {values.data(), used};
        CHECK(plan.run(room, in, to).ok());
        for (std::size_t h = 0; h < heads; h++)
            for (std::size_t c = 0; c < dim; c++)
                CHECK(std::fabs(static_cast<double>(out[h * dim + c]) - want[(h * tokens + i) * dim + c]) < 1e-5);
    }
    CHECK(std::isnan(keys[tokens * dim]) && keys[0] == k[0]);

    std::vector<float> whole(each);
    elsa::states folded(heads * tokens, dim);
    const std::size_t cuts[] = {0, 9, 10, tokens};
    for (int part = 0; part < 3; part++) {
        const std::size_t from = cuts[part], count = cuts[part + 1] - from;
        elsa::problem<float> some = p;
        some.k.shape[2] = some.v.shape[2] = count;
        const elsa::plan<float> plan = engine.plan(some).value();
        const elsa::workspace room = plan.workspace().value();
        elsa::inputs<float> in;
        in.q = q;
        in.k = {k.data() + from * dim, elsa::extent(some.k)};
        in.v = {v.data() + from * dim, elsa::extent(some.v)};
        elsa::states states(heads * tokens, dim);
        elsa::outputs<float> to;
        CHECK(plan.partial(room, elsa::chunk(from, tokens), in, to.with_states(states)).ok());
        CHECK(folded.merge(states).ok());
    }
    CHECK(folded.finish(whole).ok() && distance(p, want, reader(whole)) < 1e-5);
}

// Threads of the host's own, as many as a call asks for.
struct Lender {
    std::atomic<int> calls{0};
    template <class Task>
    void operator()(std::size_t workers, Task task) {
        calls++;
        std::vector<std::thread> threads;
        for (std::size_t i = 1; i < workers; i++) threads.emplace_back([=] { task(i); });
        task(0);
        for (std::thread &thread : threads) thread.join();
    }
};

void lent() {
    const std::size_t tokens = 130, heads = 4, dim = 32, each = heads * tokens * dim;
    const std::vector<float> x = noise(each, 16);
    std::vector<float> outs[2] = {std::vector<float>(each), std::vector<float>(each)};
    Lender lender;
    for (int way = 0; way < 2; way++) {
        elsa::engine_options options;
        options.threads = way == 0 ? 1 : 3;
        if (way == 1) options.lend(lender);
        const elsa::engine engine = elsa::engine::create(options).value();
        elsa::problem<float> p;
        p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, dim);
        const elsa::plan<float> plan = engine.plan(p).value();
        const elsa::workspace room = plan.workspace().value();
        elsa::inputs<float> in;
        elsa::outputs<float> to;
        in.q = in.k = in.v = x;
        to.out = outs[way];
        CHECK(plan.run(room, in, to).ok());
    }
    CHECK(lender.calls > 0 && std::memcmp(outs[0].data(), outs[1].data(), 4 * each) == 0);
}

// The value of a failed result is not there.
void no_value(const elsa::engine &engine) {
#ifdef ELSA_THROW
    int thrown = 0;
    const elsa::result<elsa::plan<float>> failed = engine.plan(elsa::problem<float>());
    for (int way = 0; way < 4; way++) try {
            if (way == 0) static_cast<void>(failed.value());
            if (way == 1) static_cast<void>(*failed);
            if (way == 2) static_cast<void>(failed->get());
            if (way == 3) static_cast<void>(engine.plan(elsa::problem<float>()).value());
        } catch (const elsa::error &error) {
            thrown += error.code() == ELSA_STATUS_ARGUMENT && error.what()[0] != 0;
        }
    CHECK(thrown == 4);
#else
    for (int way = 0; way < 4; way++) {
        const pid_t child = fork();
        if (child == 0) {
            std::signal(SIGABRT, SIG_DFL);
            if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(0);
            const elsa::result<elsa::plan<float>> failed = elsa::engine().plan(elsa::problem<float>());
            if (way == 0) static_cast<void>(failed.value());
            if (way == 1) static_cast<void>(*failed);
            if (way == 2) static_cast<void>(failed->get());
            if (way == 3) static_cast<void>(elsa::engine().plan(elsa::problem<float>()).value());
            _exit(0);
        }
        int how = 0;
        CHECK(child > 0 && waitpid(child, &how, 0) == child);
        CHECK(WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT);
    }
    static_cast<void>(engine);
#endif
    // Success is no failure.
    const elsa::result<elsa::plan<float>> neither{elsa::status()};
    CHECK(!neither.ok() && !neither.message().empty());
}

#ifdef ELSA_THROW
void throwing(const elsa::engine &engine) {
    elsa::problem<float> p;
    bool thrown = false;
    try {
        elsa::or_throw(engine.plan(p));
    } catch (const elsa::error &error) {
        thrown = error.code() == ELSA_STATUS_ARGUMENT && error.what()[0] != 0;
    }
    CHECK(thrown);
    p.q = p.k = p.v = p.out = elsa::or_throw(elsa::view(ELSA_LAYOUT_BHND, 1, 1, 4, 4));
    const elsa::plan<float> plan = elsa::or_throw(engine.plan(p));
    CHECK(static_cast<bool>(elsa::or_throw(plan.workspace())));
}
#endif

} // namespace

int main() {
    elsa::engine_options options;
    options.threads = 2;
    elsa::result<elsa::engine> made = elsa::engine::create(options);
    CHECK(made.ok());
    elsa::engine engine = std::move(made).value();
    packed_qkv(engine);
    flags(engine);
    sixteen_bits<elsa::f16>(engine, to_f16, from_f16, 1.0 / 4096);
    sixteen_bits<elsa::bf16>(engine, to_bf16, from_bf16, 1.0 / 512);
    // Scores near 2e7, -2e7, 1e9 and 3e9 as well as small ones.
    for (const float centre : {0.0f, 2e7f, -2e7f, 1e9f, 3e9f}) parts(engine, centre);
    written_states();
    threads(engine);
    refusals(engine);
    memory();
    header(engine);
    other_masks(engine);
    buffers(engine);
    shared(engine);
    caches_and_chunks(engine);
    lent();
    no_value(engine);
    gpu();
#ifdef ELSA_THROW
    throwing(engine);
#endif
#ifdef INJECT
    elsa::problem<float> p;
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, 4, 4);
    elsa_test_panic_next();
    CHECK(engine.plan(p).status().code() == ELSA_STATUS_PANIC);
    CHECK(engine.plan(p).ok());
#endif
    std::printf("%d checks\n", checks);
    return 0;
}
