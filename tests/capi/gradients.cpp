// Gradients by elsa.hpp: causal attention with grouped heads against sums in f64, over float and over f16, bound calls,
// tasks of quorums, and refusals. With and without ELSA_THROW.
#include "common.hpp"

namespace {

const std::size_t heads = 4, groups = 2, tokens = 19, dim = 8;

struct Data {
    std::vector<float> q = noise(heads * tokens * dim, 41), k = noise(groups * tokens * dim, 42),
                       v = noise(groups * tokens * dim, 43), d_out = noise(heads * tokens * dim, 44);
};

struct Expected {
    std::vector<double> d_q = std::vector<double>(heads * tokens * dim), d_k = std::vector<double>(groups * tokens * dim),
                        d_v = std::vector<double>(groups * tokens * dim);
};

double dot(const std::vector<float> &a, std::size_t i, const std::vector<float> &b, std::size_t j) {
    double sum = 0;
    for (std::size_t c = 0; c < dim; c++) sum += static_cast<double>(a[i * dim + c]) * b[j * dim + c];
    return sum;
}

// Computes the gradients by the definition: query i of a head attends keys 0 to i.
Expected differentiated(const Data &x) {
    Expected to;
    const double scale = 1 / std::sqrt(static_cast<double>(dim));
    for (std::size_t h = 0; h < heads; h++)
        for (std::size_t i = 0; i < tokens; i++) {
            const std::size_t row = h * tokens + i, first = h * groups / heads * tokens;
            std::vector<double> p(i + 1), d_p(i + 1);
            double sum = 0, mean = 0;
            for (std::size_t j = 0; j <= i; j++) sum += p[j] = std::exp(scale * dot(x.q, row, x.k, first + j));
            for (std::size_t j = 0; j <= i; j++) {
                p[j] /= sum;
                d_p[j] = dot(x.d_out, row, x.v, first + j);
                mean += p[j] * d_p[j];
            }
            for (std::size_t j = 0; j <= i; j++)
                for (std::size_t c = 0; c < dim; c++) {
                    const double d_s = scale * p[j] * (d_p[j] - mean);
                    to.d_q[row * dim + c] += d_s * x.k[(first + j) * dim + c];
                    to.d_k[(first + j) * dim + c] += d_s * x.q[row * dim + c];
                    to.d_v[(first + j) * dim + c] += p[j] * x.d_out[row * dim + c];
                }
        }
    return to;
}

template <class T>
elsa::problem<T> described() {
    elsa::problem<T> p;
    p.q = p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, dim);
    p.k = p.v = *elsa::view(ELSA_LAYOUT_BHND, 1, groups, tokens, dim);
    p.causal = ELSA_CAUSAL_TOP_LEFT;
    return p;
}

// The gradients of a call, filled with NaN before it.
struct Found {
    std::vector<float> d_q = std::vector<float>(heads * tokens * dim, NAN),
                       d_k = std::vector<float>(groups * tokens * dim, NAN),
                       d_v = std::vector<float>(groups * tokens * dim, NAN);

    elsa::gradients_outputs outputs() {
        elsa::gradients_outputs to;
        to.d_q = d_q;
        to.d_k = d_k;
        to.d_v = d_v;
        return to;
    }
    double distance_from(const Expected &want) const {
        return std::max(distance(d_q, want.d_q), std::max(distance(d_k, want.d_k), distance(d_v, want.d_v)));
    }
};

// Computes the gradients as 21 tasks, whose shares a merge adds.
template <class T>
void tasks(const elsa::engine &engine, const elsa::gradients_inputs<T, float> &in, const Expected &want) {
    const elsa::problem<T> p = described<T>();
    const elsa::gradients_merge merge = elsa::gradients_merge::create(p, elsa::task_options({3, 7}, 0)).value();
    std::uint64_t count = 1, pairs = 0;
    Found found;
    for (std::uint64_t number = 0; number < count; number++) {
        CHECK(merge.finish(found.outputs()).message().find("merge: ") == 0);
        const auto task = engine.gradients_task<float>(p, elsa::task_options({3, 7}, number)).value();
        const elsa_task_info info = task.describe().value();
        count = info.tasks;
        pairs += info.pairs;
        const elsa::task_tokens list = task.tokens().value();
        CHECK(list.queries.size() == info.queries && list.keys.size() == info.keys && list.keys.size() < tokens);
        elsa::gradients_shares part = task.shares().value();
        CHECK(part.d_q.size() == heads * info.queries * dim && part.d_k.size() == groups * info.keys * dim);
        elsa::task_report done;
        CHECK(task.run(in, part.write(), &done).ok() && (done.calls + done.skipped > 0 || info.pairs == 0));
        CHECK(merge.add(number, part).ok());
        CHECK(merge.add(number, part).code() == ELSA_STATUS_ARGUMENT);
        if (info.queries > 0) {
            part.d_q.pop_back();
            CHECK(task.run(in, part.write()).message().find("d_q: ") == 0);
        }
    }
    CHECK(count == 21 && pairs == tokens * tokens);
    CHECK(merge.finish(found.outputs()).ok());
    CHECK(found.distance_from(want) < 1e-5);

    // Refusals, and a task whose types the caller checks.
    const elsa_problem &plain = p;
    CHECK(engine.gradients_task(plain, elsa::task_options({7}, 0)).ok());
    CHECK(engine.gradients_task<float>(p, elsa::task_options({7}, 7)).status().code() == ELSA_STATUS_ARGUMENT);
    CHECK(engine.gradients_task<float>(p, elsa::task_options({7}, 0).with_gathered(tokens, tokens)).message().find("the task") !=
          std::string::npos);
    elsa::problem<T> other = p;
    other.dtype = 99;
    CHECK(engine.gradients_task<float>(other, elsa::task_options({7}, 0)).message().find("dtype: ") == 0);
    elsa::gradients_inputs<T, float> masked = in;
    const std::vector<float> added(tokens);
    masked.mask = added;
    const auto task = engine.gradients_task<float>(p, elsa::task_options({7}, 0)).value();
    CHECK(task.run(masked, task.shares()->write()).message().find("mask: elements of kind") == 0);
}

void answers(const elsa::engine &engine) {
    const Data x;
    const Expected want = differentiated(x);
    const elsa::problem<float> p = described<float>();
    const auto forward = engine.plan(p).value();
    std::vector<float> y(heads * tokens * dim), lse(heads * tokens);
    elsa::states states(heads * tokens, dim);
    elsa::inputs<float> in;
    in.q = x.q;
    in.k = x.k;
    in.v = x.v;
    elsa::outputs<float> to;
    to.out = y;
    to.lse = lse;
    CHECK(forward.run(forward.workspace().value(), in, to.with_states(states)).ok());

    const auto plan = engine.gradients_plan<float>(p).value();
    CHECK(plan.describe()->workspace_bytes > 0);
    const elsa::workspace room = plan.workspace().value();
    CHECK(plan.warm(room).ok());
    elsa::gradients_inputs<float> with;
    with.q = x.q;
    with.k = x.k;
    with.v = x.v;
    with.out = y;
    with.d_out = x.d_out;
    with.with_states(states);
    Found found;
    elsa::report done;
    CHECK(plan.run(room, with, found.outputs(), &done).ok() && done.workers > 0);
    CHECK(found.distance_from(want) < 1e-5);
    tasks(engine, with, want);

    // By log-sum-exp, through a bound call, and in other outputs.
    with.state_m = with.state_s = elsa::input<float>();
    with.lse = lse;
    Found again, moved;
    const elsa::bound bound = plan.bind(room, with, again.outputs()).value();
    CHECK(bound.run().ok() && again.distance_from(want) < 1e-5);
    CHECK(plan.set(bound, with, moved.outputs()).ok() && bound.run().ok());
    CHECK(moved.d_q == again.d_q && moved.d_k == again.d_k && moved.d_v == again.d_v);

    // An untyped plan, with a budget that is too small for any plan.
    const elsa_problem &plain = p;
    CHECK(engine.gradients_plan(plain).ok());
    CHECK(engine.gradients_plan(plain, elsa::gradients_options().with_budget(1)).status().code() == ELSA_STATUS_MEMORY);
    const std::vector<float> added(tokens);
    with.mask = added;
    CHECK(plan.run(room, with, found.outputs()).message().find("mask: elements of kind") == 0);
}

// Runs f16 tensors, with out and d_out of f32.
void halves(const elsa::engine &engine) {
    Data x;
    const auto narrow = [](std::vector<float> &from) {
        std::vector<elsa::f16> to;
        for (float &v : from) {
            to.push_back(elsa::f16{to_f16(v)});
            v = from_f16(to.back().bits);
        }
        return to;
    };
    const auto q = narrow(x.q), k = narrow(x.k), v = narrow(x.v);
    // The forward pass over the same numbers in f32 gives an output that is not rounded to f16.
    const auto forward = engine.plan(described<float>()).value();
    std::vector<float> y(heads * tokens * dim), lse(heads * tokens);
    elsa::inputs<float> in;
    in.q = x.q;
    in.k = x.k;
    in.v = x.v;
    elsa::outputs<float> to;
    to.out = y;
    to.lse = lse;
    CHECK(forward.run(forward.workspace().value(), in, to).ok());
    const auto plan = engine.gradients_plan<float>(described<elsa::f16>()).value();
    const elsa::workspace room = plan.workspace().value();
    CHECK(plan.warm(room).ok());
    elsa::gradients_inputs<elsa::f16, float> with;
    with.q = q;
    with.k = k;
    with.v = v;
    with.out = y;
    with.d_out = x.d_out;
    with.lse = lse;
    Found found;
    CHECK(plan.run(room, with, found.outputs()).ok());
    CHECK(found.distance_from(differentiated(x)) < 1e-5);
    tasks(engine, with, differentiated(x));
}

} // namespace

int main() {
    elsa::engine_options options;
    options.threads = 2;
    const elsa::engine engine = elsa::engine::create(options).value();
    answers(engine);
    halves(engine);
    std::printf("%d checks\n", checks);
}
