// Calls of the shipped library through C, many at a time, so that layers.py can time them.
#include "elsa.h"

#include <stdlib.h>

struct layers {
    elsa_plan plan;
    elsa_workspace room;
    elsa_bound bound;
    elsa_inputs in;
    elsa_outputs to;
};

// Binds dense tensors [batch, heads, tokens, d] on an engine with `threads` threads. Returns null if that fails.
struct layers *layers_bind(const size_t sizes[5], const float *q, const float *k, const float *v, float *out, size_t threads) {
    const size_t batch = sizes[0], heads = sizes[1], queries = sizes[2], keys = sizes[3], dim = sizes[4];
    struct layers *made = calloc(1, sizeof *made);
    elsa_engine_options options;
    elsa_engine engine;
    elsa_problem problem;
    if (!made) return NULL;
    elsa_engine_options_init(&options);
    elsa_problem_init(&problem);
    elsa_inputs_init(&made->in);
    elsa_outputs_init(&made->to);
    options.threads = threads;
    made->in.q.data = q, made->in.k.data = k, made->in.v.data = v, made->to.out.data = out;
    made->in.q.bytes = made->to.out.bytes = batch * heads * queries * dim * sizeof *q;
    made->in.k.bytes = made->in.v.bytes = batch * heads * keys * dim * sizeof *k;
    if (elsa_engine_create(&options, &engine) == ELSA_STATUS_OK
        && elsa_view_init(ELSA_LAYOUT_BHND, batch, heads, queries, dim, &problem.q) == ELSA_STATUS_OK
        && elsa_view_init(ELSA_LAYOUT_BHND, batch, heads, keys, dim, &problem.k) == ELSA_STATUS_OK) {
        problem.v = problem.k, problem.out = problem.q;
        if (elsa_plan_create(engine, &problem, NULL, &made->plan) == ELSA_STATUS_OK
            && elsa_workspace_create(made->plan, &made->room) == ELSA_STATUS_OK
            && elsa_bind(made->plan, made->room, &made->in, &made->to, &made->bound) == ELSA_STATUS_OK)
            return made;
    }
    free(made);
    return NULL;
}

// Makes `calls` calls: way 0 runs the bound call, way 1 first replaces its tensors, and way 2 is elsa_run. Returns the
// first status that is not ELSA_STATUS_OK.
int layers_run(struct layers *made, int calls, int way) {
    for (int call = 0; call < calls; call++) {
        elsa_status status = ELSA_STATUS_OK;
        if (way == 1) status = elsa_bound_set(made->bound, &made->in, &made->to);
        if (status == ELSA_STATUS_OK)
            status = way == 2 ? elsa_run(made->plan, made->room, &made->in, &made->to, NULL)
                              : elsa_bound_run(made->bound, NULL);
        if (status != ELSA_STATUS_OK) return (int)status;
    }
    return 0;
}
