/* Gradients against sums in f64: causality, masks, lengths, a soft cap, grouped heads, states and log-sum-exp, bound
   calls, and refusals. */
#include "gradients.h"

static float other[COUNT];

static void answers(elsa_engine engine) {
    int variant;
    for (variant = 0; variant < VARIANTS; variant++) {
        gradients g = begin(engine, variant);
        elsa_plan_info info;
        elsa_report done;
        elsa_plan_info_init(&info);
        elsa_report_init(&done);
        differentiate(variant, g.groups);
        OK(elsa_plan_describe(g.plan, &info));
        CHECK(info.workspace_bytes > 0 && info.kernel != NULL && strlen(info.kernel) > 0);
        forget();
        OK(elsa_gradients_run(g.plan, g.room, &g.in, &g.to, &done));
        CHECK(done.backend != ELSA_BACKEND_AUTO && done.backend != ELSA_BACKEND_CUDA && done.workers > 0);
        judge(&g);
        /* The log-sum-exp in place of the states. */
        g.in.state_m = g.in.state_s = input(NULL, 0);
        g.in.lse = input(lse, sizeof lse);
        forget();
        OK(elsa_gradients_run(g.plan, g.room, &g.in, &g.to, NULL));
        judge(&g);
        finish(&g);
    }
}

/* Checks that bound calls have the bits of runs, that their tensors can be replaced, and that a plan can be warmed up. */
static void bound(elsa_engine engine) {
    gradients g = begin(engine, CAUSAL);
    elsa_bound made;
    int i;
    differentiate(CAUSAL, H);
    OK(elsa_plan_warm(g.plan, g.room));
    OK(elsa_gradients_run(g.plan, g.room, &g.in, &g.to, NULL));
    memcpy(other, d_q, sizeof other);
    OK(elsa_gradients_bind(g.plan, g.room, &g.in, &g.to, &made));
    for (i = 0; i < 3; i++) {
        forget();
        OK(elsa_bound_run(made, NULL));
        CHECK(memcmp(other, d_q, sizeof other) == 0);
        judge(&g);
    }
    /* Other outputs; refused tensors leave the bound call as it is. */
    g.to.d_q = output(other, sizeof other);
    OK(elsa_gradients_bound_set(made, &g.in, &g.to));
    memset(other, 0xff, sizeof other);
    OK(elsa_bound_run(made, NULL));
    CHECK(memcmp(other, d_q, sizeof other) == 0);
    g.to.d_q = output(other, sizeof other - 4);
    CHECK(elsa_gradients_bound_set(made, &g.in, &g.to) == ELSA_STATUS_ARGUMENT);
    OK(elsa_bound_run(made, NULL));
    CHECK(elsa_bound_set(made, &g.forward.in, &g.forward.to) == ELSA_STATUS_ARGUMENT);
    CHECK(strstr(elsa_last_error(), "bound: of gradients") != NULL);
    OK(elsa_bound_destroy(made));
    finish(&g);
}

static void run(const gradients *g, const char *name) {
    REFUSED(elsa_gradients_run(g->plan, g->room, &g->in, &g->to, NULL), name);
}

static void misuse(elsa_engine engine) {
    gradients g = begin(engine, PLAIN), bad;
    elsa_problem past = g.forward.problem;
    elsa_plan made = {77};
    size_t i;
    past.has_past = past.has_present = 1;
    past.past_k = past.past_v = past.k;
    past.present_k = past.present_v = past.k;
    past.present_k.shape[2] = past.present_v.shape[2] = 2 * N;
    past.present_k.strides[1] = past.present_v.strides[1] = 2 * N * D;
    past.present_k.strides[0] = past.present_v.strides[0] = 2 * H * N * D;
    REFUSED(elsa_gradients_plan_create(engine, &past, NULL, &made), "past_k");
    REFUSED(elsa_gradients_plan_create(engine, NULL, NULL, &made), "problem: null");
    REFUSED(elsa_gradients_plan_create(engine, &g.forward.problem, NULL, NULL), "plan: null");
    g.options.budget = 1;
    CHECK(elsa_gradients_plan_create(engine, &g.forward.problem, &g.options, &made) == ELSA_STATUS_MEMORY);
    CHECK(made.id == 77);

    forget();
    bad = g, bad.in.state_s = input(NULL, 0), run(&bad, "state_m, state_s, lse: one of the states is null");
    bad = g, bad.in.lse = input(lse, sizeof lse), run(&bad, "state_m, state_s, lse: all are given");
    bad = g, bad.in.state_m = bad.in.state_s = input(NULL, 0), run(&bad, "state_m, state_s, lse: all are null");
    bad = g, bad.in.state_m.bytes -= 4, run(&bad, "state_m: ");
    bad = g, bad.in.q = input(NULL, 0), run(&bad, "q: null");
    bad = g, bad.in.out.bytes -= 4, run(&bad, "out: ");
    bad = g, bad.in.d_out = input(NULL, 0), run(&bad, "d_out: null");
    bad = g, bad.in.d_out = input((const char *)d_out + 2, sizeof d_out - 2), run(&bad, "d_out: address");
    bad = g, bad.in.mask = input(attended, sizeof attended), run(&bad, "mask: given");
    bad = g, bad.in.key_lengths.data = &length, bad.in.key_lengths.count = 1, run(&bad, "key_lengths");
    bad = g, bad.to.d_k = output(NULL, 0), run(&bad, "d_k: null");
    bad = g, bad.to.d_v.bytes -= 4, run(&bad, "d_v: ");
    bad = g, bad.to.d_v = output(d_k, sizeof d_k), run(&bad, "overlap d_v");
    bad = g, bad.to.d_q = output(q, sizeof q), run(&bad, "overlap q");
    for (i = 0; i < COUNT; i++) CHECK(d_q[i] != d_q[i] && d_k[i] != d_k[i] && d_v[i] != d_v[i]);

    REFUSED(elsa_gradients_run(g.plan, g.room, NULL, &g.to, NULL), "inputs: null");
    REFUSED(elsa_gradients_run(g.plan, g.room, &g.in, NULL, NULL), "outputs: null");
    REFUSED(elsa_gradients_bind(g.plan, g.room, &g.in, &g.to, NULL), "bound: null");
    REFUSED(elsa_gradients_run(g.forward.plan, g.room, &g.in, &g.to, NULL), "plan: of attention");
    REFUSED(elsa_gradients_run(g.plan, g.forward.room, &g.in, &g.to, NULL), "workspace: of a plan of attention");
    REFUSED(elsa_run(g.plan, g.room, &g.forward.in, &g.forward.to, NULL), "plan: of gradients");
    finish(&g);
    CHECK(elsa_gradients_run(g.plan, g.room, &g.in, &g.to, NULL) == ELSA_STATUS_HANDLE);
}

int main(void) {
    elsa_engine_options options;
    elsa_engine engine;
    elsa_engine_options_init(&options);
    options.threads = 2;
    OK(elsa_engine_create(&options, &engine));
    fill_gradients();
    answers(engine);
    bound(engine);
    misuse(engine);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
