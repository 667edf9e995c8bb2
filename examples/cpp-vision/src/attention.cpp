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
    elsa::report report;
    check(bound.run(&report));
    told.backend = name_of(report.backend);
    told.fallback = told.fallback || report.fallback != 0;
}

} // namespace

void check(const elsa::status &status) {
    if (status.ok()) {
        return;
    }
    const bool request = status.code() == ELSA_STATUS_ARGUMENT || status.code() == ELSA_STATUS_UNSUPPORTED;
    throw Error(request ? Fault::request : Fault::system, "attention: " + status.message());
}

elsa::engine create_engine(const AttentionOptions &options) {
    elsa::engine_options wanted;
    wanted.backend = backend_named(options.backend);
    wanted.fallback = options.fallback ? ELSA_FALLBACK_CPU : ELSA_FALLBACK_FAIL;
    wanted.threads = options.threads;
    wanted.priority = options.priority;
    elsa::result<elsa::engine> engine = elsa::engine::create(wanted);
    // A missing instruction set is a wrong request; an unusable GPU is a failing system.
    if (wanted.backend == ELSA_BACKEND_CUDA && engine.status().code() == ELSA_STATUS_UNSUPPORTED) {
        throw Error(Fault::system, "attention: " + engine.message());
    }
    return take(std::move(engine));
}

elsa::problem<float> problem_of(std::size_t heads, std::size_t tokens, std::size_t dim) {
    elsa::problem<float> problem;
    problem.q = problem.k = problem.v = take(elsa::view(ELSA_LAYOUT_QKV, 1, heads, tokens, dim));
    problem.out = take(elsa::view(ELSA_LAYOUT_BNHD, 1, heads, tokens, dim));
    return problem;
}

elsa::inputs<float> rows_of(const float *qkv, std::size_t tokens, std::size_t width) {
    const std::size_t size = 3 * tokens * width;
    elsa::inputs<float> inputs;
    inputs.q = {qkv, size};
    inputs.k = {qkv + width, size - width};
    inputs.v = {qkv + 2 * width, size - 2 * width};
    return inputs;
}

void AttentionReport::add(const AttentionReport &later) noexcept {
    backend = later.backend;
    fallback = fallback || later.fallback;
    const bool first = certified.size == 0;
    const bool covered = later.certified.claims != 0 && later.certified.bound <= certified.bound;
    if (first || (certified.claims != 0 && !covered)) {
        certified = later.certified;
    }
}

Attention::Attention(const AttentionOptions &options, std::size_t heads, std::size_t tokens, std::size_t dim)
    : certify_(options.certify), engine_(create_engine(options)) {
    const std::size_t width = heads * dim;
    qkv_ = take(engine_.buffer<float>(3 * tokens * width));
    out_ = take(engine_.buffer<float>(tokens * width));
    elsa::problem<float> problem = problem_of(heads, tokens, dim);
    const elsa::inputs<float> inputs = rows_of(qkv_.data(), tokens, width);
    elsa::outputs<float> outputs;
    outputs.out = out_;
    elsa::plan_options certified;
    certified.certify = options.certify ? 1 : 0;
    plan_ = take(engine_.plan(problem, certified));
    if (!options.probabilities) {
        workspace_ = take(plan_.workspace());
    } else {
        identity_ = take(engine_.buffer<float>(tokens * tokens));
        for (std::size_t i = 0; i < tokens; ++i) {
            identity_[i * tokens + i] = 1.0f;
        }
        probabilities_ = take(engine_.buffer<float>(heads * tokens * tokens));
        problem.v = problem.out = take(elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, tokens));
        // Every head reads the same identity.
        problem.v.strides[1] = 0;
        elsa::inputs<float> with_identity = inputs;
        with_identity.v = identity_;
        elsa::outputs<float> to_probabilities;
        to_probabilities.out = probabilities_;
        probability_plan_ = take(engine_.plan(problem));
        workspace_ = take(elsa::shared_workspace(plan_, probability_plan_));
        probability_bound_ = take(probability_plan_.bind(workspace_, with_identity, to_probabilities));
        check(probability_plan_.warm(workspace_));
    }
    bound_ = take(plan_.bind(workspace_, inputs, outputs));
    check(plan_.warm(workspace_));

    const elsa_engine_info engine_info = take(engine_.describe());
    const elsa_plan_info plan_info = take(plan_.describe());
    device_.backend = name_of(plan_info.backend);
    if (plan_info.backend == ELSA_BACKEND_CUDA) {
        device_.gpu = engine_info.device;
        device_.in_place = qkv_.in_place() && out_.in_place();
    }
    device_.reason = plan_info.reason;
}

AttentionReport Attention::run() {
    AttentionReport report;
    vision::run(bound_, report);
    if (certify_) {
        // The workspace describes its last run, so this comes before the run for the probabilities.
        report.certified = take(workspace_.certified());
    }
    if (probability_bound_) {
        vision::run(probability_bound_, report);
    }
    return report;
}

} // namespace vision
