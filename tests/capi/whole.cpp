// elsa.hpp in use: every layout, type and flag against a naive double loop, states of disjoint sets of keys, threads, refusals.
// Compiled with and without ELSA_THROW; with INJECT against a library that panics on request.
#include "common.hpp"

#ifdef INJECT
extern "C" void elsa_test_panic_next(void);
#endif

namespace {

// Runs queries, keys and values side by side in one tensor [tokens, 3, heads, dim].
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
    // The same bits through a bound plan whose handle is moved.
    const std::vector<float> first = out;
    elsa::result<elsa::bound> bound = plan->bind(*room, in, to);
    CHECK(bound.ok());
    elsa::bound mine = std::move(bound).value();
    std::fill(out.begin(), out.end(), 0.0f);
    CHECK(mine.run().ok() && mine.run(&report).ok());
    CHECK(std::memcmp(first.data(), out.data(), out.size() * 4) == 0);
    // And in another output, which replaces the first.
    std::vector<float> other(out.size());
    elsa::outputs<float> there;
    there.out = other;
    CHECK(plan->set(mine, in, there).ok() && mine.run().ok());
    CHECK(std::memcmp(first.data(), other.data(), other.size() * 4) == 0);
    there.out = {other.data(), other.size() - 1};
    CHECK(plan->set(mine, in, there).message().find("out: ") == 0);
    CHECK(mine.set(in.get(), to.get()).ok());
    CHECK(mine.set(elsa_linear_inputs(), elsa_linear_outputs()).code() == ELSA_STATUS_ARGUMENT);
    std::fill(out.begin(), out.end(), 0.0f);
    CHECK(mine.run().ok() && std::memcmp(first.data(), out.data(), out.size() * 4) == 0);
    const elsa::result<elsa_plan_info> info = plan->describe();
    CHECK(info.ok() && info.value().workspace_bytes > 0);
    // The same bits in the caller's memory at any offset; one byte less is refused.
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
        // More than memory can hold.
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
        // Fields that the plan does not use are ignored.
        for (std::size_t i = 0; i < 5; i++) CHECK(memory[shift + bytes + i] == 0xff);
    }
    // Bound of the error, and the error.
    elsa::plan_options how;
    how.certify = 1;
    elsa::result<elsa::plan<float>> certifying = engine.plan(p, how);
    CHECK(certifying.ok());
    elsa::result<elsa::workspace> measuring = certifying->workspace();
    CHECK(measuring.ok() && measuring->certified().status().code() == ELSA_STATUS_UNSUPPORTED);
    CHECK(certifying->run(*measuring, in, to).ok() && std::memcmp(first.data(), out.data(), out.size() * 4) == 0);
    std::vector<double> absolute(dim + 1, -1.0);
    const elsa::result<elsa_certified> certified = measuring->certified(absolute.data(), absolute.size());
    CHECK(certified.ok());
    const elsa_certified &c = certified.value();
    CHECK(c.claims == 1 && c.flags == 0 && c.reason[0] == 0 && std::strcmp(c.kernel, report.kernel) == 0);
    CHECK(c.channels == dim && c.keys == tokens && c.added == 0 && c.query_norm > 0 && c.key_norm > 0 && c.value > 0);
    CHECK(c.bound > 0 && c.bound < 1e-3 && c.likely <= c.bound && c.absolute >= c.bound * c.value);
    for (std::size_t i = 0; i < dim; i++) CHECK(absolute[i] > 0 && absolute[i] <= c.absolute);
    CHECK(absolute[dim] == -1.0 && distance(p, want, reader(out)) <= c.absolute);
    // Inputs that are not finite are reported, and nothing is claimed.
    std::vector<float> poisoned = x;
    poisoned[2 * heads * dim + row] = NAN;
    in.q = {poisoned.data(), reach};
    in.k = {poisoned.data() + heads * dim, reach};
    in.v = {poisoned.data() + 2 * heads * dim, reach};
    CHECK(certifying->run(*measuring, in, to).ok());
    const elsa::result<elsa_certified> unknown = measuring->certified(absolute.data(), 1);
    CHECK(unknown.ok() && unknown.value().claims == 0 && (unknown.value().flags & ELSA_CERTIFIED_V_NAN) != 0);
    CHECK(std::isnan(unknown.value().bound) && std::isnan(unknown.value().absolute) && std::isnan(absolute[0]));
    CHECK(std::strstr(unknown.value().reason, "v_nan") != nullptr);
    // Runs within an error budget report the share that each row left out.
    CHECK(measuring->left_out().status().code() == ELSA_STATUS_UNSUPPORTED);
    const elsa::result<elsa::plan<float>> thrifty = engine.plan(p, elsa::plan_options().with_error_budget(1e-3f));
    CHECK(thrifty.ok());
    in.q = {x.data(), reach};
    in.k = {x.data() + heads * dim, reach};
    in.v = {x.data() + 2 * heads * dim, reach};
    const elsa::result<elsa::workspace> counting = thrifty->workspace();
    CHECK(counting.ok() && thrifty->run(*counting, in, to).ok());
    std::vector<float> share(heads * tokens + 1, -1.0f);
    const elsa::result<elsa_left_out> left = counting->left_out(share.data(), share.size());
    CHECK(left.ok() && left->rows == heads * tokens && left->worst <= 1e-3f && share.back() == -1.0f);
    for (std::size_t i = 0; i < heads * tokens; i++) CHECK(share[i] >= 0 && share[i] <= left->worst);
    CHECK(distance(p, want, reader(out)) <= 1e-5 + 4 * left->worst);
    const elsa::result<elsa_certificate> certificate = plan->certificate();
    CHECK(certificate.ok() && certificate.value().keys == tokens && certificate.value().published_bound > 0);
}

// Runs grouped heads, a mask, lengths, causality and a window.
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
    // Plus the error of f32 sums.
    CHECK(distance(p, naive(p, read(raw, 0), read(raw, each), read(raw, 2 * each), all), read(out, 0)) <=
          rounding + 1e-5);
    // 16-bit words from another source.
    std::vector<std::uint16_t> words(x.size()), other(each, 0x7fff);
    for (std::size_t i = 0; i < x.size(); i++) words[i] = narrow(x[i]);
    in.q = elsa::as<T>(words.data(), each);
    to.out = elsa::as<T>(other.data(), each);
    CHECK(plan->run(*room, in, to).ok());
    CHECK(std::memcmp(out.data(), other.data(), 2 * each) == 0);
    // An element type that changed without its wrapper.
    p.dtype = ELSA_DTYPE_F32;
    CHECK(engine.plan(p).status().code() == ELSA_STATUS_ARGUMENT);
}

// Checks that the states of two disjoint sets of keys merge into the state of all. Scores are near `centre`, a few values of
// f32 apart if it is large.
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
    // States without keys change nothing, as either operand.
    std::vector<float> again(tokens * dim);
    CHECK(folded.merge(elsa::states(tokens, dim)).ok() && folded.finish(again).ok());
    CHECK(std::memcmp(out.data(), again.data(), out.size() * 4) == 0);
    // Other states are refused, and memory that is too short.
    CHECK(folded.merge(elsa::states(tokens, dim + 1)).code() == ELSA_STATUS_ARGUMENT);
    CHECK(folded.merge(elsa::states(tokens - 1, dim)).code() == ELSA_STATUS_ARGUMENT);
    CHECK(folded.finish({again.data(), again.size() - 1}).code() == ELSA_STATUS_ARGUMENT);
    CHECK(folded.finish(again, {lse.data(), tokens - 1}).code() == ELSA_STATUS_ARGUMENT);
    const elsa_states_in a = folded.read();
    const elsa_states_out merged = folded.write();
    CHECK(elsa_states_merge(tokens, dim, &a, nullptr, &merged) == ELSA_STATUS_ARGUMENT);
}

// Merges states written by a caller: references that differ by a few values of f32, at any magnitude.
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
    // The value next to a state without keys has no effect.
    const float none = -infinity, zero = 0, five = 5, nan = std::numeric_limits<float>::quiet_NaN();
    const elsa_states_in a = {&none, &zero, &nan}, b = {&none, &five, &nan};
    float m = 0, s = 1, w = 1;
    const elsa_states_out to = {&m, &s, &w};
    CHECK(elsa_states_merge(1, 1, &a, &b, &to) == ELSA_STATUS_ARGUMENT);
    CHECK(m == 0 && s == 1 && w == 1);
    CHECK(elsa_states_merge(1, 1, &a, &a, &to) == ELSA_STATUS_OK);
    CHECK(m == none && s == 0 && w == 0);
}

// Runs threads that share an engine and a plan, each with its own workspace; a workspace serves one call at a time.
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

// Requests a GPU: if it is missing, the CPU computes and reports it once, or the engine is refused.
void gpu() {
    std::atomic<int> messages(0), earlier(0);
    elsa::result<elsa::logger> first =
        elsa::logger::create(ELSA_LOG_WARN, [&](elsa_log_level, const char *) { earlier++; });
    elsa::result<elsa::logger> log = elsa::logger::create(ELSA_LOG_WARN, [&](elsa_log_level level, const char *text) {
        if (level >= ELSA_LOG_ERROR && level <= ELSA_LOG_WARN && text[0] != 0) messages++;
    });
    CHECK(first.ok() && log.ok());
    // Destroying the earlier one leaves the later one in effect.
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
    CHECK(info->fallback == ELSA_FALLBACK_CPU && engine->load_kernels().ok() && engine->cancel().ok());
    CHECK((present != 0 || messages == 1) && earlier == 0);
    options.fallback = ELSA_FALLBACK_FAIL;
    CHECK(elsa::engine::create(options).ok() == (present != 0));
    const int before = messages;
    *log = elsa::logger();
    options.fallback = ELSA_FALLBACK_CPU;
    CHECK(elsa::engine::create(options).ok() && messages == before);
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
