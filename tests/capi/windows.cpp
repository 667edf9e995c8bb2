// Windows of a picture, biases and tables of relative positions: compared with the definition in f64 with mask and bias written
// out, with each other, and refusals. On a GPU also sums in f16.
#include "common.hpp"

namespace {

// Two pictures of 6 by 10 tokens in windows of 3 by 5, rolled by 1 and 2.
const std::size_t picture[2] = {6, 10}, window[2] = {3, 5}, shift[2] = {1, 2};
const std::size_t rows = 2, columns = 2, count = rows * columns, batch = 2 * count;
const std::size_t tokens = 15, heads = 3, dim = 8, entries = 5 * 9, each = batch * heads * tokens * dim;
const float none = -std::numeric_limits<float>::infinity();

struct Data {
    std::vector<float> q = noise(each, 21), k = noise(each, 22), v = noise(each, 23), table = noise(entries * heads, 24);
};

// Returns the index of the table's entry, by coordinates within the window.
std::size_t entry(std::size_t i, std::size_t j) {
    const std::size_t down = i / window[1] + window[0] - 1 - j / window[1];
    const std::size_t right = i % window[1] + window[1] - 1 - j % window[1];
    return down * (2 * window[1] - 1) + right;
}

// Returns the region of a rolled picture that a token of a window came from, as Swin numbers them.
int region(std::size_t w, std::size_t token, const std::size_t by[2]) {
    const std::size_t at[2] = {w / columns * window[0] + token / window[1], w % columns * window[1] + token % window[1]};
    int number = 0;
    for (int axis = 0; axis < 2; axis++) {
        const bool last = at[axis] >= picture[axis] - by[axis];
        const bool before = at[axis] >= picture[axis] - window[axis];
        number = 3 * number + (by[axis] == 0 ? 0 : last ? 2 : before ? 1 : 0);
    }
    return number;
}

// Returns the mask [windows, 1, n, n]: 0, or minus infinity between regions.
std::vector<float> regions(const std::size_t by[2]) {
    std::vector<float> mask;
    for (std::size_t w = 0; w < count; w++)
        for (std::size_t i = 0; i < tokens; i++)
            for (std::size_t j = 0; j < tokens; j++) mask.push_back(region(w, i, by) == region(w, j, by) ? 0.0f : none);
    return mask;
}

// Returns the bias [heads, n, n] of a table.
std::vector<float> expanded(const std::vector<float> &table) {
    std::vector<float> bias;
    for (std::size_t h = 0; h < heads; h++)
        for (std::size_t i = 0; i < tokens; i++)
            for (std::size_t j = 0; j < tokens; j++) bias.push_back(table[entry(i, j) * heads + h]);
    return bias;
}

// Computes the answer by the definition.
std::vector<double> naive(const Data &x, const std::vector<float> &mask, const std::vector<float> &bias) {
    std::vector<double> y(each, 0.0);
    for (std::size_t row = 0; row < batch * heads * tokens; row++) {
        const std::size_t b = row / (heads * tokens), h = row / tokens % heads, i = row % tokens;
        double sum = 0;
        for (std::size_t j = 0; j < tokens; j++) {
            const std::size_t key = (b * heads + h) * tokens + j;
            const float m = mask[((b % count) * tokens + i) * tokens + j], a = bias[(h * tokens + i) * tokens + j];
            if (m == none || a == none) continue;
            double s = 0;
            for (std::size_t c = 0; c < dim; c++)
                s += static_cast<double>(x.q[row * dim + c]) * static_cast<double>(x.k[key * dim + c]);
            const double p = std::exp(s / std::sqrt(static_cast<double>(dim)) + static_cast<double>(m) + static_cast<double>(a));
            sum += p;
            for (std::size_t c = 0; c < dim; c++) y[row * dim + c] += p * static_cast<double>(x.v[key * dim + c]);
        }
        for (std::size_t c = 0; c < dim && sum > 0; c++) y[row * dim + c] /= sum;
    }
    return y;
}

double worst(const std::vector<double> &want, const std::vector<float> &out) {
    double most = 0;
    for (std::size_t i = 0; i < each; i++) {
        const double d = std::fabs(want[i] - static_cast<double>(out[i]));
        if (!(d <= most)) most = d == d ? d : HUGE_VAL;
    }
    return most;
}

template <class T>
elsa::problem<T> plain() {
    elsa::problem<T> p;
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, batch, heads, tokens, dim);
    return p;
}

elsa::problem<float> swin(std::size_t down = shift[0], std::size_t right = shift[1]) {
    elsa::problem<float> p = plain<float>();
    p.with_bias_table<float>(entries, heads);
    return p.with_windows(picture[0], picture[1], window[0], window[1], down, right);
}

elsa::inputs<float> inputs(const Data &x) {
    elsa::inputs<float> in;
    in.q = x.q;
    in.k = x.k;
    in.v = x.v;
    return in;
}

std::vector<float> run(const elsa::engine &engine, const elsa::problem<float> &p, const elsa::inputs<float> &in) {
    std::vector<float> out(each, NAN);
    elsa::outputs<float> to;
    to.out = out;
    const elsa::result<elsa::plan<float>> plan = engine.plan(p);
    CHECK(plan.ok());
    CHECK(plan->run(plan->workspace().value(), in, to).ok());
    return out;
}

// Runs a table in shifted windows, in all equivalent forms.
void answers(const elsa::engine &engine) {
    const Data x;
    const std::size_t still[2] = {0, 0};
    const std::vector<float> mask = regions(shift), bias = expanded(x.table), open = regions(still);
    const std::vector<double> want = naive(x, mask, bias);
    elsa::inputs<float> in = inputs(x);
    in.bias = x.table;
    const std::vector<float> out = run(engine, swin(), in);
    CHECK(worst(want, out) < 1e-5);
    // The answer differs without the roll, with another roll or another entry.
    CHECK(worst(naive(x, open, bias), run(engine, swin(0, 0), in)) < 1e-5);
    CHECK(worst(want, run(engine, swin(0, 0), in)) > 1e-3 && worst(want, run(engine, swin(shift[0], 1), in)) > 1e-3);
    Data other = x;
    other.table[(entries - 1) * heads + 1] += 4.0f;
    elsa::inputs<float> with_other = in;
    with_other.bias = other.table;
    CHECK(worst(want, run(engine, swin(), with_other)) > 1e-3);

    // A mask whose batch axis divides the batch, and a bias shared by sequences, in one call.
    elsa::problem<float> dense = plain<float>();
    dense.with_mask<float>({count, 1, tokens, tokens});
    dense.with_bias<float>({heads, tokens, tokens});
    elsa::inputs<float> of_dense = inputs(x);
    of_dense.mask = mask;
    of_dense.bias = bias;
    CHECK(worst(want, run(engine, dense, of_dense)) < 1e-5);
    // The mask excludes a key for any number in the bias.
    std::vector<float> behind = bias;
    std::vector<float> shut = mask;
    for (std::size_t w = 0; w < count; w++) shut[(w * tokens + 3) * tokens + 7] = none;
    const std::vector<double> without = naive(x, shut, bias);
    for (std::size_t h = 0; h < heads; h++) behind[(h * tokens + 3) * tokens + 7] = NAN;
    of_dense.mask = shut;
    of_dense.bias = behind;
    CHECK(worst(without, run(engine, dense, of_dense)) < 1e-5);
    of_dense.mask = mask;
    CHECK(worst(want, run(engine, dense, of_dense)) == HUGE_VAL);

    // An index names the entries; here those of windows, reversed.
    std::vector<std::int64_t> index;
    std::vector<float> backwards(x.table.size());
    for (std::size_t at = 0; at < tokens * tokens; at++)
        index.push_back(static_cast<std::int64_t>(entries - 1 - entry(at / tokens, at % tokens)));
    for (std::size_t e = 0; e < entries; e++)
        for (std::size_t h = 0; h < heads; h++) backwards[e * heads + h] = x.table[(entries - 1 - e) * heads + h];
    elsa::problem<float> indexed = swin();
    indexed.with_bias_table<float>(entries, heads, true);
    elsa::inputs<float> named = inputs(x);
    named.bias = backwards;
    named.bias_index = index;
    CHECK(worst(want, run(engine, indexed, named)) < 1e-5);
    indexed.windows = elsa_windows();
    indexed.with_mask<float>({count, 1, tokens, tokens});
    named.mask = mask;
    CHECK(worst(want, run(engine, indexed, named)) < 1e-5);

    // bf16, and a bound call whose table and index are in buffers that are destroyed while it is bound.
    elsa::buffer<elsa::bf16> table = engine.buffer<elsa::bf16>(entries * heads).value();
    elsa::buffer<std::int64_t> list = engine.buffer<std::int64_t>(index.size()).value();
    Data rounded = x;
    for (std::size_t i = 0; i < table.size(); i++) {
        std::uint32_t bits;
        std::memcpy(&bits, &backwards[i], 4);
        table[i].bits = static_cast<std::uint16_t>(bits >> 16);
        bits &= 0xffff0000u;
        std::memcpy(&rounded.table[(entries - 1 - i / heads) * heads + i % heads], &bits, 4);
    }
    std::copy(index.begin(), index.end(), list.begin());
    elsa::problem<float> narrow = swin();
    narrow.with_bias_table<elsa::bf16>(entries, heads, true);
    std::vector<float> answer(each, NAN);
    elsa::outputs<float> to;
    to.out = answer;
    elsa::inputs<float> held = inputs(x);
    held.bias = table;
    held.bias_index = list;
    const elsa::plan<float> plan = engine.plan(narrow).value();
    const elsa::workspace room = plan.workspace().value();
    const elsa::bound bound = plan.bind(room, held, to).value();
    table.reset();
    list.reset();
    CHECK(bound.run().ok() && worst(naive(x, mask, expanded(rounded.table)), answer) < 1e-5);
    // Elements of another type than the problem's.
    held.bias = x.table;
    CHECK(plan.run(room, held, to).code() == ELSA_STATUS_ARGUMENT);
    CHECK(plan.run(room, held, to).message().find("bias: elements of kind") == 0);
}

// Host memory with these elements, as a GPU addresses it.
template <class T>
elsa::buffer<T> copied(const elsa::engine &engine, const std::vector<T> &from) {
    elsa::buffer<T> to = engine.buffer<T>(from.size()).value();
    std::copy(from.begin(), from.end(), to.begin());
    return to;
}

// Runs table and index in GPU memory. Entries outside the table count as its first or last.
void on_a_gpu(const elsa::engine &engine) {
    elsa::problem<float> p = swin();
    p.with_bias_table<float>(entries, heads, true);
    const elsa::plan<float> plan = engine.plan(p).value();
    if (plan.describe()->backend != ELSA_BACKEND_CUDA) return;
    const Data x;
    std::vector<std::int64_t> index;
    for (std::size_t at = 0; at < tokens * tokens; at++)
        index.push_back(static_cast<std::int64_t>(entry(at / tokens, at % tokens)));
    const elsa::buffer<float> q = copied(engine, x.q), k = copied(engine, x.k), v = copied(engine, x.v);
    const elsa::buffer<float> table = copied(engine, x.table), out = engine.buffer<float>(each).value();
    elsa::buffer<std::int64_t> list = copied(engine, index);
    const elsa::workspace room = plan.workspace().value();
    elsa::inputs<float> in;
    in.q = {q.device_data(), each};
    in.k = {k.device_data(), each};
    in.v = {v.device_data(), each};
    in.bias = {table.device_data(), table.size()};
    in.bias_index = {list.device_data(), list.size()};
    elsa::outputs<float> to;
    to.out = {out.device_data(), each};
    const auto answer = [&]() {
        CHECK(plan.run_device(room, in, to, nullptr).ok());
        return std::vector<float>(out.begin(), out.end());
    };
    const std::vector<float> bias = expanded(x.table), mask = regions(shift);
    CHECK(worst(naive(x, mask, bias), answer()) < 1e-5);
    const std::int64_t last = static_cast<std::int64_t>(entries) - 1;
    const std::int64_t outside[][2] = {{last + 1, last}, {INT64_MAX, last}, {-1, 0}, {INT64_MIN, 0}};
    for (const auto &pair : outside) {
        list[31] = pair[0];
        std::vector<float> other = bias;
        for (std::size_t h = 0; h < heads; h++)
            other[h * tokens * tokens + 31] = x.table[static_cast<std::size_t>(pair[1]) * heads + h];
        CHECK(worst(naive(x, mask, other), answer()) < 1e-5);
    }
}

// Runs sums of 64 products of 40,000, which are beyond the range of f16 and within that of f32. All values are 1.
void half_scores(const elsa::engine &engine) {
    const std::size_t queries = 64, keys = 128, width = 64;
    elsa::problem<elsa::f16> p;
    p.q = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, queries, width);
    p.k = p.v = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, keys, width);
    const std::vector<elsa::f16> large(keys * width, elsa::f16{0x5a40}), ones(keys * width, elsa::f16{0x3c00});
    elsa::inputs<elsa::f16> in;
    in.q = {large.data(), queries * width};
    in.k = large;
    in.v = ones;
    for (const bool half : {false, true}) {
        elsa::plan_options options;
        options.half_scores = half;
        const elsa::plan<elsa::f16> plan = engine.plan(p, options).value();
        const bool on_gpu = plan.describe()->backend == ELSA_BACKEND_CUDA;
        CHECK((std::strstr(plan.describe()->kernel, "half2") != nullptr) == (on_gpu && half));
        std::vector<elsa::f16> y(queries * width);
        elsa::outputs<elsa::f16> to;
        to.out = y;
        elsa_report done;
        elsa_report_init(&done);
        CHECK(plan.run(plan.workspace().value(), in, to, &done).ok());
        const bool rounds = half && done.backend == ELSA_BACKEND_CUDA;
        for (const elsa::f16 x : y) CHECK(rounds ? (x.bits & 0x7fff) > 0x7c00 : x.bits == 0x3c00);
    }
}

// The plan is refused with this at the start of its message.
#define REFUSED(p, begin)                                                                       \
    do {                                                                                        \
        const elsa::result<elsa::plan<float>> refused = engine.plan(p);                         \
        CHECK(refused.status().code() == ELSA_STATUS_ARGUMENT);                                 \
        CHECK(std::strncmp(refused.message().c_str(), begin, std::strlen(begin)) == 0);         \
    } while (0)

void refusals(const elsa::engine &engine) {
    elsa::problem<float> p = swin();
    CHECK(engine.plan(p).ok());
    p.bias_table.entries--;
    REFUSED(p, "bias: entries of the table 44");
    p = swin();
    p.bias_table.entries = 0;
    REFUSED(p, "bias: entries of the table 0");
    p = swin();
    p.bias_table.heads = 2;
    REFUSED(p, "bias: heads of the table 2");
    p = swin();
    p.bias_table.dtype = 3;
    REFUSED(p, "bias_table.dtype: 3");
    p = swin();
    p.windows = elsa_windows();
    REFUSED(p, "bias: given without bias_index or windows");
    p = swin();
    p.with_bias<float>({1, tokens});
    REFUSED(p, "bias: given with bias_table");
    p = plain<float>();
    p.with_bias<float>({tokens, tokens});
    p.bias.kind = ELSA_MASK_BOOL;
    REFUSED(p, "bias: type bool");
    p.bias.kind = 9;
    REFUSED(p, "bias.kind: 9");
    REFUSED(plain<float>().with_bias<float>({1, 1, 1, 1, tokens}), "bias.rank: 5");
    REFUSED(plain<float>().with_bias<float>({3, 1, 1, tokens}), "bias: batch 3; allowed: a divisor of 8");
    REFUSED(plain<float>().with_mask<float>({5, 1, 1, tokens}), "mask: batch 5; allowed: a divisor of 8");
    p = plain<float>();
    p.with_mask<bool>({tokens - 1}).with_bias<float>({tokens - 2});
    REFUSED(p, "mask: keys 14; allowed: 1 or 15");
    p = swin();
    p.windows.size[0] = 0;
    REFUSED(p, "windows.size: height 0");
    p = swin();
    p.windows.picture[1] = 11;
    REFUSED(p, "windows.picture: width 11; allowed: a multiple of 5");
    p = swin();
    p.windows.shift[1] = 5;
    REFUSED(p, "windows.shift: 5");
    p = swin();
    p.windows.picture[1] = 15;
    REFUSED(p, "q: batch 8; allowed: a multiple of 6");
    p = swin();
    p.windows.size[0] = 2;
    REFUSED(p, "windows.size: tokens 10");
    p = swin();
    p.causal = ELSA_CAUSAL_TOP_LEFT;
    REFUSED(p, "windows: given with causal");
    p = swin();
    p.with_key_lengths();
    REFUSED(p, "windows: given with key_lengths");
    p = swin();
    p.with_window_left(2);
    REFUSED(p, "windows: given with window_left");
    p = swin();
    p.windows.picture[0] = p.windows.size[0] = SIZE_MAX;
    REFUSED(p, "windows.size: tokens");

    // Data that does not belong to the problem, or is missing.
    const Data x;
    std::vector<std::int64_t> index(tokens * tokens, entries - 1);
    elsa::problem<float> indexed = plain<float>();
    indexed.with_bias_table<float>(entries, heads, true);
    const elsa::plan<float> plan = engine.plan(indexed).value(), other = engine.plan(plain<float>()).value();
    const elsa::workspace room = plan.workspace().value();
    std::vector<float> out(each, -7.0f);
    elsa::outputs<float> to;
    to.out = out;
    const auto message = [&](const elsa::inputs<float> &in, const char *begin) {
        const elsa_inputs all = in.get();
        const elsa::untyped_plan &any = plan;
        const elsa::status status = any.run(room, all, to.get());
        CHECK(status.code() == ELSA_STATUS_ARGUMENT);
        CHECK(std::strncmp(status.message().c_str(), begin, std::strlen(begin)) == 0);
        for (const float o : out) CHECK(o == -7.0f);
    };
    elsa::inputs<float> in = inputs(x);
    message(in, "bias: null");
    in.bias = x.table;
    message(in, "bias_index: null");
    in.bias_index = {index.data(), index.size() - 1};
    message(in, "bias_index: 1792 bytes; allowed: at least 1800");
    in.bias_index = index;
    in.bias = {x.table.data(), x.table.size() - 1};
    message(in, "bias: 536 bytes; allowed: at least 540");
    in.bias = x.table;
    for (const std::int64_t beyond : {static_cast<std::int64_t>(entries), std::int64_t(-1), INT64_MIN}) {
        index[31] = beyond;
        message(in, "bias_index: entry 31 is ");
    }
    index[31] = 0;
    elsa::outputs<float> over = to;
    over.out = {const_cast<float *>(x.table.data()), each};
    CHECK(plan.run(room, in, over).code() == ELSA_STATUS_ARGUMENT);
    CHECK(plan.run(room, in, to).ok() && out[0] != -7.0f);
    const elsa::status without = other.run(other.workspace().value(), in, to);
    CHECK(!without.ok() && without.message().find("bias: ") == 0);
}

} // namespace

int main() {
    elsa::engine_options options;
    options.threads = 2;
    const elsa::engine engine = elsa::engine::create(options).value();
    answers(engine);
    refusals(engine);
    on_a_gpu(engine);
    half_scores(engine);
    std::printf("%d checks\n", checks);
    return 0;
}
