// elsa.hpp in use: every layout, type and flag against a naive double loop, states of disjoint sets of keys, threads,
// refusals. Compiled with and without ELSA_THROW; with INJECT against a library that panics on request.
#include "elsa.hpp"

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

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
    elsa_problem p = elsa::problem();
    p.q = *elsa::view(ELSA_LAYOUT_BNHD, 1, heads, tokens, dim);
    p.out = p.q;
    p.q.strides[2] = row;
    p.q.strides[0] = row * tokens;
    p.k = p.v = p.q;
    elsa::result<elsa::plan> plan = engine.plan(p);
    CHECK(plan.ok());
    elsa::result<elsa::workspace> room = plan->workspace();
    CHECK(room.ok());
    elsa_inputs in = elsa::inputs();
    elsa_outputs to = elsa::outputs();
    const std::size_t reach = (tokens - 1) * row + heads * dim;
    in.q = elsa::input(x.data(), reach);
    in.k = elsa::input(x.data() + heads * dim, reach);
    in.v = elsa::input(x.data() + 2 * heads * dim, reach);
    to.out = elsa::output(out.data(), out.size());
    elsa_report report = elsa::report();
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
    elsa_problem p = elsa::problem();
    p.q = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, dim);
    p.k = p.v = *elsa::view(ELSA_LAYOUT_BHND, 1, 2, tokens, dim);
    elsa_inputs in = elsa::inputs();
    in.q = elsa::input(q.data(), q.size());
    in.k = elsa::input(k.data(), k.size());
    in.v = elsa::input(v.data(), v.size());
    const std::int64_t length = 29;
    for (int flag = 0; flag < 4; flag++) {
        elsa_problem f = p;
        elsa_inputs with = in;
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
            with.mask = elsa::input(mask.data(), mask.size());
            attends = [&](std::size_t i, std::size_t j) { return mask[i * tokens + j] != 0; };
        } else {
            f.has_key_lengths = 1;
            with.key_lengths = elsa::integers(&length, 1);
            attends = [&](std::size_t, std::size_t j) { return j < static_cast<std::size_t>(length); };
        }
        std::vector<float> out(q.size(), -7.0f);
        elsa_outputs to = elsa::outputs();
        to.out = elsa::output(out.data(), out.size());
        elsa::result<elsa::plan> plan = engine.plan(f);
        CHECK(plan.ok());
        elsa::result<elsa::workspace> room = plan->workspace();
        CHECK(room.ok());
        CHECK(plan->run(*room, with, to).ok());
        CHECK(distance(f, naive(f, reader(q), reader(k), reader(v), attends), reader(out)) < 1e-5);
        CHECK(distance(f, naive(f, reader(q), reader(k), reader(v), all), reader(out)) > 1e-3);
    }
}

// f16 and bf16: sums in f32, the output rounded once.
void sixteen_bits(const elsa::engine &engine) {
    const std::size_t tokens = 50, dim = 32;
    const std::vector<float> x = noise(3 * tokens * dim, 5);
    for (int is_f16 = 0; is_f16 < 2; is_f16++) {
        std::vector<std::uint16_t> raw(x.size()), out(tokens * dim, 0x7fff);
        for (std::size_t i = 0; i < x.size(); i++) raw[i] = is_f16 ? to_f16(x[i]) : to_bf16(x[i]);
        std::function<float(std::uint16_t)> widen = from_bf16;
        if (is_f16) widen = from_f16;
        const auto read = [&](const std::vector<std::uint16_t> &data, std::size_t from) -> Read {
            return [&data, from, widen](const elsa_view &v, std::size_t h, std::size_t t, std::size_t d) {
                return widen(data[from + at(v, h, t, d)]);
            };
        };
        elsa_problem p = elsa::problem();
        p.dtype = is_f16 ? ELSA_DTYPE_F16 : ELSA_DTYPE_BF16;
        p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, tokens, dim);
        elsa_inputs in = elsa::inputs();
        elsa_outputs to = elsa::outputs();
        const std::size_t each = tokens * dim;
        in.q = elsa::input(raw.data(), each);
        in.k = elsa::input(raw.data() + each, each);
        in.v = elsa::input(raw.data() + 2 * each, each);
        to.out = elsa::output(out.data(), each);
        elsa::result<elsa::plan> plan = engine.plan(p);
        CHECK(plan.ok());
        elsa::result<elsa::workspace> room = plan->workspace();
        CHECK(plan->run(*room, in, to).ok());
        // Half a unit in the last place of outputs below one, and the error of f32 sums.
        const double allowed = (is_f16 ? 1.0 / 4096 : 1.0 / 512) + 1e-5;
        CHECK(distance(p, naive(p, read(raw, 0), read(raw, each), read(raw, 2 * each), all), read(out, 0)) <= allowed);
    }
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
    std::vector<float> m[3], s[3], w[3], out(tokens * dim), whole(tokens * dim), lse(tokens);
    for (int part = 0; part < 3; part++) {
        m[part].resize(tokens);
        s[part].resize(tokens);
        w[part].resize(tokens * dim);
    }
    const std::size_t from[3] = {0, cut, 0}, to_key[3] = {cut, keys, keys};
    for (int part = 0; part < 3; part++) {
        const std::size_t count = to_key[part] - from[part];
        elsa_problem p = elsa::problem();
        p.q = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, tokens, dim);
        p.k = p.v = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, count, dim);
        elsa::result<elsa::plan> plan = engine.plan(p);
        CHECK(plan.ok());
        elsa::result<elsa::workspace> room = plan->workspace();
        elsa_inputs in = elsa::inputs();
        elsa_outputs to = elsa::outputs();
        in.q = elsa::input(q.data(), q.size());
        in.k = elsa::input(k.data() + from[part] * dim, count * dim);
        in.v = elsa::input(v.data() + from[part] * dim, count * dim);
        to.out = elsa::output(part == 2 ? whole.data() : out.data(), tokens * dim);
        CHECK(!plan->partial(*room, in, to).ok());
        to.state_m = elsa::output(m[part].data(), tokens);
        to.state_s = elsa::output(s[part].data(), tokens);
        to.state_w = elsa::output(w[part].data(), tokens * dim);
        CHECK(plan->partial(*room, in, to).ok());
    }
    const elsa_states_in a = {m[0].data(), s[0].data(), w[0].data()}, b = {m[1].data(), s[1].data(), w[1].data()};
    std::vector<float> mm(tokens), ss(tokens), ww(tokens * dim);
    const elsa_states_out merged = {mm.data(), ss.data(), ww.data()};
    CHECK(elsa_states_merge(tokens, dim, &a, &b, &merged) == ELSA_STATUS_OK);
    const elsa_states_in both = {mm.data(), ss.data(), ww.data()};
    CHECK(elsa_states_finish(tokens, dim, &both, out.data(), lse.data()) == ELSA_STATUS_OK);
    CHECK(distance(out, whole) < 2e-6);
    for (std::size_t i = 0; i < tokens; i++) {
        const double want = static_cast<double>(m[2][i]) + std::log(static_cast<double>(s[2][i]));
        CHECK(std::fabs(static_cast<double>(lse[i]) - want) < 1e-5 + 2e-7 * std::fabs(want));
    }
    // A state without keys changes nothing.
    const std::vector<float> none_m(tokens, -std::numeric_limits<float>::infinity()), none_s(tokens, 0.0f),
        none_w(tokens * dim, 0.0f);
    const elsa_states_in none = {none_m.data(), none_s.data(), none_w.data()};
    std::vector<float> m2(tokens), s2(tokens), w2(tokens * dim), again(tokens * dim);
    const elsa_states_out same = {m2.data(), s2.data(), w2.data()};
    CHECK(elsa_states_merge(tokens, dim, &both, &none, &same) == ELSA_STATUS_OK);
    const elsa_states_in third = {m2.data(), s2.data(), w2.data()};
    CHECK(elsa_states_finish(tokens, dim, &third, again.data(), nullptr) == ELSA_STATUS_OK);
    CHECK(distance(out, again) < 1e-6);
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
    elsa_problem p = elsa::problem();
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, tokens, dim);
    elsa::result<elsa::plan> plan = engine.plan(p);
    CHECK(plan.ok());
    elsa_inputs in = elsa::inputs();
    in.q = elsa::input(x.data(), each);
    in.k = elsa::input(x.data() + each, each);
    in.v = elsa::input(x.data() + 2 * each, each);
    elsa::result<elsa::workspace> common = plan->workspace();
    CHECK(common.ok());
    std::vector<std::vector<float>> outs(4, std::vector<float>(each)), shared(4, std::vector<float>(each));
    std::atomic<int> good(0), busy(0), odd(0);
    std::vector<std::thread> workers;
    for (std::size_t t = 0; t < 4; t++)
        workers.emplace_back([&, t] {
            elsa::result<elsa::workspace> room = plan->workspace();
            elsa_outputs to = elsa::outputs();
            for (int i = 0; i < 20; i++) {
                to.out = elsa::output(outs[t].data(), each);
                if (room.ok() && plan->run(*room, in, to).ok()) good++;
                to.out = elsa::output(shared[t].data(), each);
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
    elsa_problem p = elsa::problem();
    CHECK(!engine.plan(p).ok());
    CHECK(!engine.plan(p).message().empty());
    CHECK(!elsa::view(99, 1, 1, 1, 1).ok());
    CHECK(!elsa::view(ELSA_LAYOUT_BHND, static_cast<std::size_t>(-1), 2, 2, 2).ok());
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, 4, 4);
    p.dtype = 77;
    CHECK(engine.plan(p).status().code() == ELSA_STATUS_ARGUMENT);
    CHECK(std::strstr(elsa_last_error(), "allowed") != nullptr);
    p.dtype = ELSA_DTYPE_F32;
    elsa_plan_options small = elsa::plan_options();
    small.budget = 1;
    CHECK(engine.plan(p, small).status().code() == ELSA_STATUS_MEMORY);
    elsa_engine_options bad = elsa::engine_options();
    bad.threads = 1000000;
    CHECK(!elsa::engine::create(bad).ok());
    elsa::engine none;
    CHECK(none.plan(p).status().code() == ELSA_STATUS_HANDLE);
    CHECK(!none && static_cast<bool>(engine));
}

int messages = 0;
void listen(void *user, elsa_log_level, const char *text) {
    if (user == &messages && text != nullptr && text[0] != 0) messages++;
}

// A requested GPU: where it is missing the CPU computes and reports it once, or the engine is refused.
void gpu() {
    CHECK(elsa_log_set(ELSA_LOG_WARN, listen, &messages) == ELSA_STATUS_OK);
    std::uint32_t present = 0;
    CHECK(elsa_backend_present(ELSA_BACKEND_CUDA, &present) == ELSA_STATUS_OK);
    elsa_engine_options options = elsa::engine_options();
    options.backend = ELSA_BACKEND_CUDA;
    elsa::result<elsa::engine> engine = elsa::engine::create(options);
    CHECK(engine.ok());
    elsa_engine_info info;
    elsa_engine_info_init(&info);
    CHECK(elsa_engine_describe(engine->get(), &info) == ELSA_STATUS_OK && info.threads >= 1);
    CHECK((info.backend == ELSA_BACKEND_CUDA) == (present != 0));
    CHECK((info.absent != 0) == (present == 0) && (info.reason[0] != 0) == (present == 0));
    CHECK((info.device[0] != 0) == (present != 0) && (info.capability_major >= 6) == (present != 0));
    CHECK(info.fallback == ELSA_FALLBACK_CPU && elsa_engine_load_kernels(engine->get()) == ELSA_STATUS_OK);
    CHECK(present != 0 || messages == 1);
    options.fallback = ELSA_FALLBACK_FAIL;
    CHECK(elsa::engine::create(options).ok() == (present != 0));
    CHECK(elsa_log_set(ELSA_LOG_OFF, nullptr, nullptr) == ELSA_STATUS_OK);
}

#ifdef ELSA_THROW
void throwing(const elsa::engine &engine) {
    elsa_problem p = elsa::problem();
    bool thrown = false;
    try {
        elsa::or_throw(engine.plan(p));
    } catch (const elsa::error &error) {
        thrown = error.code() == ELSA_STATUS_ARGUMENT && error.what()[0] != 0;
    }
    CHECK(thrown);
    p.q = p.k = p.v = p.out = elsa::or_throw(elsa::view(ELSA_LAYOUT_BHND, 1, 1, 4, 4));
    const elsa::plan plan = elsa::or_throw(engine.plan(p));
    CHECK(static_cast<bool>(elsa::or_throw(plan.workspace())));
}
#endif

} // namespace

int main() {
    elsa_engine_options options = elsa::engine_options();
    options.threads = 2;
    elsa::result<elsa::engine> made = elsa::engine::create(options);
    CHECK(made.ok());
    elsa::engine engine = std::move(made).value();
    packed_qkv(engine);
    flags(engine);
    sixteen_bits(engine);
    // Scores near 2e7, -2e7, 1e9 and 3e9 as well as small ones.
    for (const float centre : {0.0f, 2e7f, -2e7f, 1e9f, 3e9f}) parts(engine, centre);
    written_states();
    threads(engine);
    refusals(engine);
    gpu();
#ifdef ELSA_THROW
    throwing(engine);
#endif
#ifdef INJECT
    elsa_problem p = elsa::problem();
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, 4, 4);
    elsa_test_panic_next();
    CHECK(engine.plan(p).status().code() == ELSA_STATUS_PANIC);
    CHECK(engine.plan(p).ok());
#endif
    std::printf("%d checks\n", checks);
    return 0;
}
