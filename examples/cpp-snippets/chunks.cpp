// Keys that arrive in chunks, or are spread over several machines: each chunk yields the states of its keys, without an
// output, and the states merge. A chunk knows its position in the whole, so causality needs no mask.

#define ELSA_THROW
#include <elsa.hpp>

#include "check.hpp"

#include <algorithm>

int main() {
    const std::size_t heads = 4, tokens = 100, dim = 16, longest = 32;
    const std::vector<float> q = check::noise(heads * tokens * dim, 1), k = check::noise(heads * tokens * dim, 2),
                             v = check::noise(heads * tokens * dim, 3);
    const std::vector<double> want = check::attention(q, k, v, heads, tokens, dim, true);

    const elsa::engine engine = elsa::or_throw(elsa::engine::create());
    elsa::problem<float> problem;
    problem.q = problem.out = elsa::or_throw(elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, dim));
    // Views into all keys: a chunk has the strides of the whole.
    problem.k = problem.v = problem.q;
    problem.causal = ELSA_CAUSAL_TOP_LEFT;

    elsa::states total(heads * tokens, dim), part(heads * tokens, dim);
    for (std::size_t first = 0; first < tokens; first += longest) {
        // Chunks of one length share a plan; here only the last one differs.
        problem.k.shape[2] = problem.v.shape[2] = std::min(longest, tokens - first);
        const elsa::plan<float> plan = elsa::or_throw(engine.plan(problem));
        const elsa::workspace workspace = elsa::or_throw(plan.workspace());
        elsa::inputs<float> inputs;
        inputs.q = q;
        inputs.k = {k.data() + first * dim, elsa::extent(problem.k)};
        inputs.v = {v.data() + first * dim, elsa::extent(problem.v)};
        elsa::outputs<float> outputs;
        outputs.with_states(part);
        elsa::or_throw(plan.partial(workspace, elsa::chunk(first, tokens), inputs, outputs));
        // Merging in the order of the keys gives the same bits every time.
        elsa::or_throw(total.merge(part));
    }
    std::vector<float> out(heads * tokens * dim);
    elsa::or_throw(total.finish(out));

    check::Worst worst;
    for (std::size_t i = 0; i < out.size(); ++i) {
        worst.compare(out[i], want[i]);
    }
    return worst.verdict();
}
