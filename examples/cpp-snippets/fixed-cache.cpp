// Decoder with a cache of fixed size: one plan and one bound call for every length. The program writes the rows of each
// new token into the cache, and key_lengths gives the number of valid rows; the rest is neither read nor computed.

#define ELSA_THROW
#include <elsa.hpp>

#include "check.hpp"

#include <cstdint>

int main() {
    const std::size_t heads = 4, room = 48, tokens = 32, dim = 16;
    const std::vector<float> q = check::noise(heads * tokens * dim, 1), k = check::noise(heads * tokens * dim, 2),
                             v = check::noise(heads * tokens * dim, 3);
    const std::vector<double> want = check::attention(q, k, v, heads, tokens, dim, true);

    const elsa::engine engine = elsa::or_throw(elsa::engine::create());
    elsa::problem<float> problem;
    problem.q = problem.out = elsa::or_throw(elsa::view(ELSA_LAYOUT_BHND, 1, heads, 1, dim));
    problem.k = problem.v = elsa::or_throw(elsa::view(ELSA_LAYOUT_BHND, 1, heads, room, dim));
    problem.with_key_lengths();
    const elsa::plan<float> plan = elsa::or_throw(engine.plan(problem));
    const elsa::workspace workspace = elsa::or_throw(plan.workspace());
    elsa::or_throw(plan.warm(workspace));

    elsa::buffer<float> keys = elsa::or_throw(engine.buffer<float>(heads * room * dim));
    elsa::buffer<float> values = elsa::or_throw(engine.buffer<float>(heads * room * dim));
    std::vector<float> new_q(heads * dim), out(heads * dim);
    std::int64_t valid[] = {0};
    elsa::inputs<float> inputs;
    inputs.q = new_q;
    inputs.k = keys;
    inputs.v = values;
    inputs.key_lengths = valid;
    elsa::outputs<float> outputs;
    outputs.out = out;
    // The list is read when the bound call runs.
    const elsa::bound bound = elsa::or_throw(plan.bind(workspace, inputs, outputs));

    check::Worst worst;
    for (std::size_t token = 0; token < tokens; ++token) {
        for (std::size_t i = 0; i < heads * dim; ++i) {
            const std::size_t from = (i / dim * tokens + token) * dim + i % dim;
            const std::size_t to = (i / dim * room + token) * dim + i % dim;
            new_q[i] = q[from];
            keys[to] = k[from];
            values[to] = v[from];
        }
        valid[0] = static_cast<std::int64_t>(token) + 1;
        elsa::or_throw(bound.run());
        for (std::size_t i = 0; i < heads * dim; ++i) {
            worst.compare(out[i], want[(i / dim * tokens + token) * dim + i % dim]);
        }
    }
    return worst.verdict();
}
