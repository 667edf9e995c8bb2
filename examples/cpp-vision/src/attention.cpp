#include "attention.hpp"

#include "error.hpp"

#include <utility>

namespace vision {
namespace {

struct Name {
    const char *name;
    elsa_backend backend;
};

const Name backends[] = {
    {"auto", ELSA_BACKEND_AUTO}, {"scalar", ELSA_BACKEND_SCALAR}, {"neon", ELSA_BACKEND_NEON},
    {"avx2", ELSA_BACKEND_AVX2}, {"avx512", ELSA_BACKEND_AVX512}, {"cuda", ELSA_BACKEND_CUDA},
};

void check(const elsa::status &status) {
    if (status.ok()) {
        return;
    }
    const bool request = status.code() == ELSA_STATUS_ARGUMENT || status.code() == ELSA_STATUS_UNSUPPORTED;
    throw Error(request ? Fault::request : Fault::system, "attention: " + status.message());
}

template <class T>
T take(elsa::result<T> result) {
    check(result.status());
    return std::move(result).value();
}

elsa_backend backend_named(const std::string &name) {
    for (const Name &entry : backends) {
        if (name == entry.name) {
            return entry.backend;
        }
    }
    throw refused("--backend", name, "auto, scalar, neon, avx2, avx512, cuda");
}

const char *name_of(elsa_backend backend) {
    for (const Name &entry : backends) {
        if (backend == entry.backend) {
            return entry.name;
        }
    }
    return "unknown";
}

void run(const elsa::bound &bound, AttentionReport &told) {
    elsa_report report = elsa::report();
    check(bound.run(&report));
    told.backend = name_of(report.backend);
    told.fallback = told.fallback || report.fallback != 0;
}

} // namespace

Attention::Attention(const AttentionOptions &options, std::size_t heads, std::size_t tokens, std::size_t dim)
    : qkv_(3 * tokens * heads * dim), out_(tokens * heads * dim) {
    elsa_engine_options wanted = elsa::engine_options();
    wanted.backend = backend_named(options.backend);
    wanted.fallback = options.fallback ? ELSA_FALLBACK_CPU : ELSA_FALLBACK_FAIL;
    wanted.threads = options.threads;
    elsa::result<elsa::engine> engine = elsa::engine::create(wanted);
    // A missing instruction set is a wrong request; a GPU that cannot be used is a failing system.
    if (wanted.backend == ELSA_BACKEND_CUDA && engine.status().code() == ELSA_STATUS_UNSUPPORTED) {
        throw Error(Fault::system, "attention: " + engine.message());
    }
    engine_ = take(std::move(engine));

    const std::size_t width = heads * dim;
    elsa_problem problem = elsa::problem();
    problem.q = problem.k = problem.v = take(elsa::view(ELSA_LAYOUT_QKV, 1, heads, tokens, dim));
    problem.out = take(elsa::view(ELSA_LAYOUT_BNHD, 1, heads, tokens, dim));
    elsa_inputs inputs = elsa::inputs();
    inputs.q = elsa::input(qkv_.data(), qkv_.size());
    inputs.k = elsa::input(qkv_.data() + width, qkv_.size() - width);
    inputs.v = elsa::input(qkv_.data() + 2 * width, qkv_.size() - 2 * width);
    elsa_outputs outputs = elsa::outputs();
    outputs.out = elsa::output(out_.data(), out_.size());
    plan_ = take(engine_.plan(problem));
    workspace_ = take(plan_.workspace());
    bound_ = take(plan_.bind(workspace_, inputs, outputs));

    if (options.probabilities) {
        identity_.resize(tokens * tokens);
        for (std::size_t i = 0; i < tokens; ++i) {
            identity_[i * tokens + i] = 1.0f;
        }
        probabilities_.resize(heads * tokens * tokens);
        problem.v = problem.out = take(elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, tokens));
        // Every head reads the same identity.
        problem.v.strides[1] = 0;
        inputs.v = elsa::input(identity_.data(), identity_.size());
        outputs.out = elsa::output(probabilities_.data(), probabilities_.size());
        probability_plan_ = take(engine_.plan(problem));
        probability_workspace_ = take(probability_plan_.workspace());
        probability_bound_ = take(probability_plan_.bind(probability_workspace_, inputs, outputs));
    }
}

AttentionReport Attention::run() {
    AttentionReport report;
    vision::run(bound_, report);
    if (probability_bound_) {
        vision::run(probability_bound_, report);
    }
    return report;
}

} // namespace vision
