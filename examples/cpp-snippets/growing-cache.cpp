// A decoder whose cache is appended to in place: the run itself writes keys and values of each new token after the
// earlier ones, and nothing else is copied. The cache has room for more tokens than it holds, as its strides show.

#define ELSA_THROW
#include <elsa.hpp>

#include "check.hpp"

int main() {
    const std::size_t heads = 4, room = 48, tokens = 32, dim = 16;
    const std::vector<float> q = check::noise(heads * tokens * dim, 1), k = check::noise(heads * tokens * dim, 2),
                             v = check::noise(heads * tokens * dim, 3);
    const std::vector<double> want = check::attention(q, k, v, heads, tokens, dim, true);

    const elsa::engine engine = elsa::or_throw(elsa::engine::create());
    const elsa_view cache = elsa::or_throw(elsa::view(ELSA_LAYOUT_BHND, 1, heads, room, dim));
    // A Jetson's GPU uses buffers in place.
    elsa::buffer<float> keys = elsa::or_throw(engine.buffer<float>(elsa::extent(cache)));
    elsa::buffer<float> values = elsa::or_throw(engine.buffer<float>(elsa::extent(cache)));
    std::vector<float> new_q(heads * dim), new_k(heads * dim), new_v(heads * dim), out(heads * dim);

    check::Worst worst;
    for (std::size_t past = 0; past < tokens; ++past) {
        // One token, as produced by the linear maps of a network: [heads, dim].
        for (std::size_t i = 0; i < heads * dim; ++i) {
            const std::size_t at = (i / dim * tokens + past) * dim + i % dim;
            new_q[i] = q[at];
            new_k[i] = k[at];
            new_v[i] = v[at];
        }
        elsa::problem<float> problem;
        problem.q = problem.k = problem.v = problem.out =
            elsa::or_throw(elsa::view(ELSA_LAYOUT_BHND, 1, heads, 1, dim));
        problem.causal = ELSA_CAUSAL_BOTTOM_RIGHT;
        problem.with_cache(cache, cache, past);
        // Shapes change with every token, and so do plans. fixed-cache.cpp uses one plan for all.
        const elsa::plan<float> plan = elsa::or_throw(engine.plan(problem));
        const elsa::workspace workspace = elsa::or_throw(plan.workspace());
        elsa::inputs<float> inputs;
        inputs.q = new_q;
        inputs.k = new_k;
        inputs.v = new_v;
        elsa::outputs<float> outputs;
        outputs.out = out;
        outputs.present_k = keys;
        outputs.present_v = values;
        elsa::or_throw(plan.run(workspace, inputs, outputs));
        for (std::size_t i = 0; i < heads * dim; ++i) {
            worst.compare(out[i], want[(i / dim * tokens + past) * dim + i % dim]);
        }
    }
    return worst.verdict();
}
