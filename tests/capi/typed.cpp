// elsa.hpp in use: memory named by containers, the diagonals and masks of elsa.h, buffers, workspaces shared by plans,
// caches, chunks of keys, the host's threads, and absent values. With and without ELSA_THROW.
#include "common.hpp"

#if __cplusplus >= 202002L
#include <span>
#endif
#include <sys/wait.h>
#include <unistd.h>

namespace {

// Checks sizes of containers, and absent values.
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
    elsa::inputs<float> in;
    elsa::outputs<float> to;
    CHECK(in.get().ready_event == nullptr && to.get().done_event == nullptr);
    in.ready_event = row;
    to.done_event = row + 1;
    CHECK(in.get().ready_event == row && to.get().done_event == row + 1);
    // A count whose bytes overflow is not accepted as a small one.
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
    // A slice ends with its last row, not with the rows of other slices.
    CHECK(elsa::extent(*elsa::view(ELSA_LAYOUT_QKV, 2, 3, 5, 7)) == 2 * 3 * 3 * 5 * 7 - 2 * 3 * 7);
    elsa_view empty = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, 1, 1);
    empty.shape[2] = 0;
    CHECK(elsa::extent(empty) == 0);
    empty.shape[2] = SIZE_MAX;
    empty.strides[2] = 2;
    CHECK(elsa::extent(empty) == 0);
    CHECK(std::strlen(elsa::status_text(ELSA_STATUS_BUSY)) > 0);
}

// Returns the numbers of keys that rows attend: queries of zero have exp(lse) = keys.
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

// Checks diagonals, windows, strides and masks as the header documents them.
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
    // A mask of 1 key is shared. Integers and doubles are converted: nonzero attends, finite numbers stay finite.
    CHECK(attended(engine, masked.with_mask<bool>({5, 1}), 5, 0, 9, 0, elsa::mask(matrix.data(), 5)) == Counts(15, 9));
    const std::vector<std::int32_t> words = {0, -256, 1, 2, 3, 4, 5, 6, 7};
    std::vector<std::int64_t> longs(9, std::int64_t(1) << 32);
    std::vector<double> numbers(9, 0.0);
    longs[0] = 0;
    numbers[0] = std::numeric_limits<double>::lowest();
    masked.with_mask<bool>({9});
    CHECK(attended(engine, masked, 5, 0, 9, 0, elsa::mask_of(words.data(), 9).value()) == Counts(15, 8));
    CHECK(attended(engine, masked, 5, 0, 9, 0, elsa::mask_of(longs.data(), 9).value()) == Counts(15, 8));
    const std::vector<float> floats = elsa::mask_of(numbers.data(), 9).value();
    CHECK(floats[0] == std::numeric_limits<float>::lowest() && floats[1] == 0.0f);
    CHECK(attended(engine, masked.with_mask<float>({9}), 5, 0, 9, 0, floats) == Counts(15, 8));
    CHECK(elsa::mask_of(numbers.data(), 0).value().empty());
    CHECK(elsa_mask_convert(4, words.data(), 9, row.data()) == ELSA_STATUS_ARGUMENT);
    CHECK(elsa_mask_convert(ELSA_MASK_SOURCE_I32, nullptr, 9, row.data()) == ELSA_STATUS_ARGUMENT);
    CHECK(elsa_mask_convert(ELSA_MASK_SOURCE_I64, longs.data(), 9, longs.data()) == ELSA_STATUS_ARGUMENT);
    // Fewer keys than in the tensors are refused.
    p = elsa::problem<float>();
    p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 1, 9, 4);
    const elsa::result<elsa::plan<float>> few = engine.plan(p.with_mask<bool>({7}));
    CHECK(few.status().code() == ELSA_STATUS_ARGUMENT && few.message() == "mask: keys 7; allowed: 1 or 9");
}

// Checks that every axis except the head size may be empty: an empty vector, null with 0 bytes, is a tensor.
void empty(const elsa::engine &engine) {
    const std::size_t sizes[3][3] = {{0, 2, 5}, {3, 0, 5}, {3, 2, 0}};
    for (const auto &size : sizes) {
        elsa::problem<float> p;
        p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, size[0], size[1], size[2], 4);
        const elsa::plan<float> plan = engine.plan(p).value();
        std::vector<float> none, lse;
        elsa::inputs<float> in;
        elsa::outputs<float> to;
        in.q = in.k = in.v = none;
        to.out = none;
        CHECK(plan.run(plan.workspace().value(), in, to).ok());
        to.lse = lse;
        CHECK(plan.run(plan.workspace().value(), in, to).ok());
    }
    elsa::problem<float> p;
    p.q = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 2, 3, 4);
    p.k = p.v = *elsa::view(ELSA_LAYOUT_BHND, 1, 2, 0, 4);
    const elsa::plan<float> plan = engine.plan(p).value();
    std::vector<float> none, q(24, 1.0f), out(24, 7.0f), lse(6, 7.0f);
    elsa::inputs<float> in;
    elsa::outputs<float> to;
    in.q = q;
    in.k = in.v = none;
    to.out = out;
    to.lse = lse;
    CHECK(plan.run(plan.workspace().value(), in, to).ok());
    CHECK(out == std::vector<float>(24, 0.0f) && lse == std::vector<float>(6, -std::numeric_limits<float>::infinity()));
}

// Checks that a mask with another element type than the problem's is refused, even if its bytes would fit.
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
    const elsa::bound bound = plan.bind(room, in, to).value();
    CHECK(plan.set(bound, in, to).ok());
    in.mask = wide;
    CHECK(plan.set(bound, in, to).message().find("mask: ") == 0 && bound.run().ok());
    // More axes than a mask has.
    p.with_mask<float>({1, 1, 1, 1, tokens});
    CHECK(engine.plan(p).status().code() == ELSA_STATUS_ARGUMENT);
}

// Checks that tensors in buffers give the same bits as tensors elsewhere.
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

// Checks that a workspace serves every plan that fits into it: many sequences of few tokens in that of one of many.
void shared(const elsa::engine &engine) {
    elsa::problem<float> wide, many;
    wide.q = wide.k = wide.v = wide.out = *elsa::view(ELSA_LAYOUT_BHND, 1, 2, 300, 64);
    many.q = many.k = many.v = many.out = *elsa::view(ELSA_LAYOUT_BHND, 40, 1, 2, 4);
    const elsa::plan<float> a = engine.plan(wide).value(), b = engine.plan(many).value();
    CHECK(a.describe()->workspace_bytes > b.describe()->workspace_bytes);
    const elsa::workspace of_a = a.workspace().value(), of_b = b.workspace().value();
    const elsa::workspace room = elsa::shared_workspace(b, a).value();
    CHECK(b.describe()->workspace_bytes > 0);
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
    CHECK(a.run(of_b, in, to).code() == ELSA_STATUS_ARGUMENT && b.run(of_a, in, second).ok());
    CHECK(std::memcmp(out.data(), again.data(), 4 * out.size()) == 0);
    CHECK(b.bind(of_a, in, second).value().run().ok());
    // Any sequence of shapes in one workspace, and in that of the most demanding shape alone.
    std::vector<elsa::plan<float>> plans;
    std::vector<elsa_plan> handles;
    std::uint32_t random = 7;
    for (int n = 0; n < 20; n++) {
        const auto below = [&random](std::uint32_t most) { return (random = random * 1664525 + 1013904223) / 65536 % most; };
        elsa::problem<float> p;
        p.q = p.k = p.v = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1 + below(60), 1, 1 + below(5) * below(5), 4 << below(4));
        plans.push_back(engine.plan(p).value());
        handles.push_back(plans.back().get());
    }
    elsa_workspace all = {0};
    CHECK(elsa_workspace_create_shared(handles.data(), handles.size(), &all) == ELSA_STATUS_OK);
    std::size_t largest = 0;
    for (std::size_t n = 0; n < plans.size(); n++)
        if (plans[n].describe()->workspace_bytes > plans[largest].describe()->workspace_bytes) largest = n;
    const elsa::workspace alone = plans[largest].workspace().value();
    const std::vector<float> many_numbers = noise(60 * 17 * 32, 13);
    std::vector<float> one(many_numbers.size()), other(many_numbers.size()), third(many_numbers.size());
    in.q = in.k = in.v = many_numbers;
    for (const elsa::plan<float> &plan : plans) {
        elsa::outputs<float> own, its, shares;
        own.out = one;
        its.out = other;
        shares.out = third;
        CHECK(plan.run(plan.workspace().value(), in, own).ok() && plan.run(alone, in, its).ok());
        const elsa_outputs raw = shares.get();
        const elsa_inputs read = in.get();
        CHECK(elsa_run(plan.get(), all, &read, &raw, nullptr) == ELSA_STATUS_OK);
        CHECK(one == other && one == third);
    }
    CHECK(elsa_workspace_destroy(all) == ELSA_STATUS_OK);
    const elsa_plan none = {0}, here = a.get();
    elsa_workspace made = {7};
    CHECK(elsa_workspace_create_shared(&none, 1, &made) == ELSA_STATUS_HANDLE);
    CHECK(elsa_workspace_create_shared(&here, 0, &made) == ELSA_STATUS_ARGUMENT);
    CHECK(elsa_workspace_create_shared(&here, SIZE_MAX, &made) == ELSA_STATUS_ARGUMENT);
    CHECK(elsa_workspace_create_shared(nullptr, 1, &made) == ELSA_STATUS_ARGUMENT && made.id == 7);
}

// Checks that tokens appended one by one to a cache give the answers of causal attention over all tokens, and so do chunks
// of the keys whose states merge.
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

// The host's threads, in the number that a call requests.
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
        CHECK(room.trust(ELSA_TRUST_ADDRESSES).ok() && !room.trust(4).ok());
        CHECK(plan.run(room, in, to).ok());
    }
    CHECK(lender.calls > 0 && std::memcmp(outs[0].data(), outs[1].data(), 4 * each) == 0);
}

// Checks that the value of a failed result is absent.
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
    // A success is not an error.
    const elsa::result<elsa::plan<float>> neither{elsa::status()};
    CHECK(!neither.ok() && !neither.message().empty());
}

} // namespace

int main() {
    elsa::engine_options options;
    options.threads = 2;
    const elsa::engine engine = elsa::engine::create(options).value();
    memory();
    header(engine);
    other_masks(engine);
    buffers(engine);
    shared(engine);
    empty(engine);
    caches_and_chunks(engine);
    lent();
    no_value(engine);
    std::printf("%d checks\n", checks);
    return 0;
}
