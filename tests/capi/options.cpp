// Options of problems and plans by elsa.hpp, against sums in f64: scale and soft cap, schedules, packed sequences, past and
// present, and calls that end early. With and without ELSA_THROW.
#include "common.hpp"

namespace {

const std::size_t heads = 2, dim = 8;

// Computes one row of attention by the definition: the keys `from` to `to` of head `h` of k and v with `tokens` tokens.
std::vector<double> row(const float *q, const std::vector<float> &k, const std::vector<float> &v, std::size_t h,
                        std::size_t tokens, std::size_t from, std::size_t to, double scale, double cap = 0) {
    std::vector<double> y(dim);
    double sum = 0;
    for (std::size_t j = from; j < to; j++) {
        const std::size_t key = (h * tokens + j) * dim;
        double s = 0;
        for (std::size_t c = 0; c < dim; c++) s += static_cast<double>(q[c]) * k[key + c];
        s *= scale;
        const double p = std::exp(cap > 0 ? cap * std::tanh(s / cap) : s);
        sum += p;
        for (std::size_t c = 0; c < dim; c++) y[c] += p * v[key + c];
    }
    for (double &x : y) x /= sum;
    return y;
}

double distance(const float *found, const std::vector<double> &expected) {
    double worst = 0;
    for (std::size_t c = 0; c < dim; c++) {
        const double e = std::fabs(found[c] - expected[c]);
        if (!(e <= worst)) worst = e == e ? e : HUGE_VAL;
    }
    return worst;
}

const double ordinary = 1 / std::sqrt(static_cast<double>(dim));

void scale_and_softcap(const elsa::engine &engine) {
    const std::size_t tokens = 23, count = heads * tokens * dim;
    const std::vector<float> q = noise(count, 61), k = noise(count, 62), v = noise(count, 63);
    elsa::inputs<float> in;
    in.q = q;
    in.k = k;
    in.v = v;
    for (const float scale : {0.7f, -1.5f})
        for (const float cap : {0.0f, 1.25f}) {
            elsa::problem<float> p;
            p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, dim);
            p.with_scale(scale).softcap = cap;
            const auto plan = engine.plan(p).value();
            std::vector<float> y(count, NAN);
            elsa::outputs<float> to;
            to.out = y;
            CHECK(plan.run(plan.workspace().value(), in, to).ok());
            for (std::size_t at = 0; at < heads * tokens; at++)
                CHECK(distance(&y[at * dim], row(&q[at * dim], k, v, at / tokens, tokens, 0, tokens, scale, cap)) < 1e-5);
        }
}

// Checks schedules that skip no block, or only blocks of weights below a threshold, and their reports.
void schedules(const elsa::engine &engine) {
    const std::size_t tokens = 256, count = heads * tokens * dim;
    const std::vector<float> q(count, 1.0f), v = noise(count, 73);
    std::vector<float> k = noise(count, 72);
    // The last 64 keys have small weights.
    for (std::size_t at = 0; at < count; at++) k[at] = (at / dim % tokens < 192 ? 0.0f : -4.0f) + 0.01f * k[at];
    elsa::problem<float> p;
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, dim);
    elsa::inputs<float> in;
    in.q = q;
    in.k = k;
    in.v = v;
    for (const elsa_schedule which : {ELSA_SCHEDULE_FLASH, ELSA_SCHEDULE_VFA, ELSA_SCHEDULE_VSA, ELSA_SCHEDULE_BLASST}) {
        const bool skips = which == ELSA_SCHEDULE_VSA || which == ELSA_SCHEDULE_BLASST;
        const auto plan = engine.plan(p, elsa::plan_options().with_schedule(which, skips ? 0.01f : 0.0f)).value();
        const auto workspace = plan.workspace().value();
        std::vector<float> y(count, NAN), share(heads * tokens);
        elsa::outputs<float> to;
        to.out = y;
        CHECK(plan.run(workspace, in, to).ok());
        const elsa::result<elsa_left_out> left = workspace.left_out(share.data(), share.size());
        CHECK(left.ok() && left->rows == heads * tokens && left->skipped_row_blocks == (skips ? heads * tokens : 0));
        const std::size_t last = skips ? 192 : tokens;
        for (std::size_t at = 0; at < heads * tokens; at++)
            CHECK(distance(&y[at * dim], row(&q[at * dim], k, v, at / tokens, tokens, 0, last, ordinary)) < 1e-5);
    }
    CHECK(engine.plan(p, elsa::plan_options().with_schedule(ELSA_SCHEDULE_VFA, 0.5f)).status().code() == ELSA_STATUS_ARGUMENT);
}

// Checks that Tensor Cores compute only where a GPU has them and the options allow them, and the counts of refused blocks. The
// options do not change the bits of a CPU.
void tensor_cores(const elsa::engine &engine) {
    const std::size_t tokens = 70, width = 64, count = heads * tokens * width;
    const std::vector<float> q = noise(count, 81), k = noise(count, 82), plain = noise(count, 83);
    std::vector<float> v = plain;
    // A channel of the first head is tiny compared with the others, so the guard refuses this head.
    for (std::size_t at = 5; at < tokens * width; at += width) v[at] *= 1e-9f;
    elsa::problem<float> p;
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, width);
    elsa::inputs<float> in;
    in.q = q;
    in.k = k;
    std::vector<float> by_products(count), y(count, NAN);
    elsa::outputs<float> to;
    for (const elsa_tensor_cores use : {ELSA_TENSOR_CORES_ALWAYS, ELSA_TENSOR_CORES_F16}) {
        for (const bool refuses : {false, true}) {
            in.v = refuses ? v : plain;
            to.out = by_products;
            const elsa::plan<float> off = engine.plan(p).value();
            const elsa::workspace room = off.workspace().value();
            CHECK(off.describe()->tensor_cores == 0 && off.run(room, in, to).ok());
            CHECK(room.refused_blocks().ok() && room.refused_blocks()->blocks == 0);
            const elsa::plan<float> plan = engine.plan(p, elsa::plan_options().with_tensor_cores(use)).value();
            const elsa::workspace workspace = plan.workspace().value();
            const bool on = plan.describe()->tensor_cores != 0;
            const char *device = std::getenv("ELSA_STANDIN_DEVICE");
            CHECK(on || device == nullptr || std::strcmp(device, "tensor") != 0);
            CHECK(on == (std::strstr(plan.describe()->kernel, "__sm80") != nullptr));
            CHECK((plan.describe()->tensor_cores == ELSA_TENSOR_CORES_F16) == (on && use == ELSA_TENSOR_CORES_F16));
            to.out = y;
            CHECK(plan.run(workspace, in, to).ok());
            const elsa::result<elsa::refused_blocks> found = workspace.refused_blocks();
            CHECK(found.ok() && (found->blocks > 0) == on && found->refused == (on && refuses ? found->blocks / heads : 0));
            CHECK(on || std::memcmp(y.data(), by_products.data(), count * sizeof(float)) == 0);
            const float most = on && use == ELSA_TENSOR_CORES_F16 ? 5e-3f : 1e-5f;
            for (std::size_t at = 0; at < count; at++) CHECK(std::fabs(y[at] - by_products[at]) < most);
        }
    }
    elsa::plan_options wrong;
    wrong.tensor_cores = ELSA_TENSOR_CORES_F16 + 1;
    CHECK(engine.plan(p, wrong).message().find("tensor_cores") == 0);
    wrong.reserved = 1;
    wrong.tensor_cores = ELSA_TENSOR_CORES_OFF;
    CHECK(engine.plan(p, wrong).message().find("reserved") == 0);
    // A program with an earlier header has no such field.
    wrong.size = offsetof(elsa_plan_options, tensor_cores);
    const auto earlier = engine.plan(p, wrong);
    CHECK(wrong.size == 56 && earlier.ok() && earlier->describe()->tensor_cores == 0);
}

// Checks that no packed sequence attends the keys of another; the second has no token.
void packed(const elsa::engine &engine) {
    const std::size_t tokens = 21, count = heads * tokens * dim;
    const std::vector<std::int64_t> ends = {0, 8, 8, 21};
    const std::vector<float> q = noise(count, 64), k = noise(count, 65), v = noise(count, 66);
    elsa::problem<float> p;
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, dim);
    p.packed = 3;
    const auto plan = engine.plan(p).value();
    std::vector<float> y(count, NAN);
    elsa::inputs<float> in;
    in.q = q;
    in.k = k;
    in.v = v;
    in.cu_seqlens_q = in.cu_seqlens_k = ends;
    elsa::outputs<float> to;
    to.out = y;
    const elsa::workspace room = plan.workspace().value();
    CHECK(plan.run(room, in, to).ok());
    for (std::size_t h = 0; h < heads; h++)
        for (std::size_t i = 0; i < tokens; i++) {
            const std::size_t at = (h * tokens + i) * dim, from = i < 8 ? 0 : 8, end = i < 8 ? 8 : tokens;
            CHECK(distance(&y[at], row(&q[at], k, v, h, tokens, from, end, ordinary)) < 1e-5);
        }
    const std::vector<std::int64_t> wrong = {0, 9, 8, 21};
    in.cu_seqlens_k = wrong;
    CHECK(plan.run(room, in, to).message().find("cu_seqlens_k") == 0);
}

// Runs new queries over a past and new keys, which are also joined in the present.
void past_and_present(const elsa::engine &engine) {
    const std::size_t past = 9, added = 4, all_keys = past + added;
    const std::vector<float> q = noise(heads * added * dim, 67), k = noise(heads * all_keys * dim, 68),
                             v = noise(heads * all_keys * dim, 69);
    // The keys `from` to `to` of every head.
    const auto part = [&](const std::vector<float> &whole, std::size_t from, std::size_t to) {
        std::vector<float> cut;
        for (std::size_t h = 0; h < heads; h++) {
            const auto start = whole.begin() + static_cast<std::ptrdiff_t>(h * all_keys * dim);
            cut.insert(cut.end(), start + static_cast<std::ptrdiff_t>(from * dim), start + static_cast<std::ptrdiff_t>(to * dim));
        }
        return cut;
    };
    const std::vector<float> past_k = part(k, 0, past), past_v = part(v, 0, past), new_k = part(k, past, all_keys),
                             new_v = part(v, past, all_keys);
    elsa::problem<float> p;
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, added, dim);
    const elsa_view before = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, past, dim);
    const elsa_view after = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, all_keys, dim);
    p.with_past(before, before).with_present(after, after).causal = ELSA_CAUSAL_TOP_LEFT;
    const auto plan = engine.plan(p).value();
    std::vector<float> y(q.size(), NAN), present_k(k.size(), NAN), present_v(v.size(), NAN);
    elsa::inputs<float> in;
    in.q = q;
    in.k = new_k;
    in.v = new_v;
    in.past_k = past_k;
    in.past_v = past_v;
    elsa::outputs<float> to;
    to.out = y;
    to.present_k = present_k;
    to.present_v = present_v;
    CHECK(plan.run(plan.workspace().value(), in, to).ok());
    CHECK(present_k == k && present_v == v);
    for (std::size_t h = 0; h < heads; h++)
        for (std::size_t i = 0; i < added; i++) {
            const std::size_t at = (h * added + i) * dim;
            CHECK(distance(&y[at], row(&q[at], k, v, h, all_keys, 0, past + i + 1, ordinary)) < 1e-5);
        }
}

// Cancels a call while it waits for the host's threads; the next call is complete.
void ends_early() {
    const std::size_t tokens = 768, count = heads * tokens * dim;
    const std::vector<float> x = noise(count, 70);
    const elsa::engine *cancelled = nullptr;
    auto pool = [&](std::size_t workers, const std::function<void(std::size_t)> &task) {
        CHECK(!cancelled || cancelled->cancel().ok());
        for (std::size_t worker = 0; worker < workers; worker++) task(worker);
    };
    elsa::engine_options options;
    options.threads = 2;
    options.backend = ELSA_BACKEND_SCALAR;
    const elsa::engine engine = elsa::engine::create(options.lend(pool)).value();
    elsa::problem<float> p;
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, dim);
    const auto plan = engine.plan(p).value();
    const elsa::workspace room = plan.workspace().value();
    std::vector<float> y(count), again(count);
    elsa::inputs<float> in;
    in.q = in.k = in.v = x;
    elsa::outputs<float> to;
    to.out = y;
    CHECK(plan.run(room, in, to).ok());
    cancelled = &engine;
    to.out = again;
    CHECK(plan.run(room, in, to).code() == ELSA_STATUS_CANCELLED);
    cancelled = nullptr;
    CHECK(plan.run(room, in, to).ok() && again == y);
}

} // namespace

int main() {
    elsa::engine_options options;
    options.threads = 2;
    const elsa::engine engine = elsa::engine::create(options).value();
    scale_and_softcap(engine);
    schedules(engine);
    tensor_cores(engine);
    packed(engine);
    past_and_present(engine);
    ends_early();
    std::printf("%d checks\n", checks);
    return 0;
}
