/* Gradients against sums in f64: causality, masks, lengths, a soft cap, grouped heads, states and log-sum-exp, bound
   calls, and refusals. */
#include "common.h"

#define GROUPS 1

static float d_out[COUNT], lse[H * N], state_m[H * N], state_s[H * N], state_w[COUNT];
static float d_q[COUNT], d_k[COUNT], d_v[COUNT], other[COUNT];
static double want_q[COUNT], want_k[COUNT], want_v[COUNT];
static unsigned char attended[N * N];
static const int64_t length = N - 5;

/* A call of gradients with the forward pass that it needs. */
typedef struct {
    call forward;
    elsa_gradients_options options;
    elsa_plan plan;
    elsa_workspace room;
    elsa_gradients_inputs in;
    elsa_gradients_outputs to;
    size_t groups;
} gradients;

enum { PLAIN, CAUSAL, MASKED, SHORT, CAPPED, GROUPED, VARIANTS };

static int attends(int variant, size_t i, size_t j) {
    switch (variant) {
    case CAUSAL: return j <= i;
    case MASKED: return attended[i * N + j];
    case SHORT: return j < (size_t)length;
    default: return 1;
    }
}

/* Computes the gradients by their definition. */
static void differentiate(int variant, size_t groups) {
    static double p[N], d_p[N], slope[N];
    const double scale = 1 / sqrt((double)D), cap = 2;
    size_t h, i, j, c;
    memset(want_q, 0, sizeof want_q);
    memset(want_k, 0, sizeof want_k);
    memset(want_v, 0, sizeof want_v);
    for (h = 0; h < H; h++)
        for (i = 0; i < N; i++) {
            const size_t row = h * N + i, first = h * groups / H * N;
            double sum = 0, mean = 0;
            for (j = 0; j < N; j++) {
                double s = 0;
                d_p[j] = 0;
                for (c = 0; c < D; c++) {
                    s += scale * q[row * D + c] * k[(first + j) * D + c];
                    d_p[j] += (double)d_out[row * D + c] * v[(first + j) * D + c];
                }
                slope[j] = 1;
                if (variant == CAPPED) {
                    const double t = tanh(s / cap);
                    s = cap * t;
                    slope[j] = 1 - t * t;
                }
                p[j] = attends(variant, i, j) ? exp(s) : 0;
                sum += p[j];
            }
            for (j = 0; j < N && sum > 0; j++) {
                p[j] /= sum;
                mean += p[j] * d_p[j];
            }
            for (j = 0; j < N && sum > 0; j++)
                for (c = 0; c < D; c++) {
                    const double d_s = scale * slope[j] * p[j] * (d_p[j] - mean);
                    want_q[row * D + c] += d_s * k[(first + j) * D + c];
                    want_k[(first + j) * D + c] += d_s * q[row * D + c];
                    want_v[(first + j) * D + c] += p[j] * d_out[row * D + c];
                }
        }
}

static void judge(const gradients *g) {
    const size_t shared = g->groups * N * D;
    size_t i;
    CHECK(farthest(d_q, want_q, COUNT) < 1e-5);
    CHECK(farthest(d_k, want_k, shared) < 1e-5);
    CHECK(farthest(d_v, want_v, shared) < 1e-5);
    /* Nothing is written beyond the shared heads. */
    for (i = shared; i < COUNT; i++) CHECK(d_k[i] != d_k[i] && d_v[i] != d_v[i]);
}

static void forget(void) {
    memset(d_q, 0xff, sizeof d_q);
    memset(d_k, 0xff, sizeof d_k);
    memset(d_v, 0xff, sizeof d_v);
}

/* Describes a variant, runs its forward pass and makes the plan of its gradients. */
static gradients begin(elsa_engine engine, int variant) {
    gradients g;
    elsa_problem *p = &g.forward.problem;
    memset(&g, 0, sizeof g);
    elsa_problem_init(p);
    elsa_inputs_init(&g.forward.in);
    elsa_outputs_init(&g.forward.to);
    elsa_gradients_options_init(&g.options);
    elsa_gradients_inputs_init(&g.in);
    elsa_gradients_outputs_init(&g.to);
    g.groups = variant == GROUPED ? GROUPS : H;
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, H, N, D, &p->q));
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, g.groups, N, D, &p->k));
    p->out = p->q;
    p->v = p->k;
    g.in.q = g.forward.in.q = input(q, sizeof q);
    g.in.k = g.forward.in.k = input(k, sizeof k);
    g.in.v = g.forward.in.v = input(v, sizeof v);
    if (variant == CAUSAL) p->causal = ELSA_CAUSAL_TOP_LEFT;
    if (variant == CAPPED) p->softcap = 2;
    if (variant == MASKED) {
        p->mask.kind = ELSA_MASK_BOOL;
        p->mask.rank = 2;
        p->mask.dims[0] = p->mask.dims[1] = N;
        g.in.mask = g.forward.in.mask = input(attended, sizeof attended);
    }
    if (variant == SHORT) {
        p->has_key_lengths = 1;
        g.forward.in.key_lengths.data = &length;
        g.forward.in.key_lengths.count = 1;
        g.in.key_lengths = g.forward.in.key_lengths;
    }
    OK(elsa_plan_create(engine, p, NULL, &g.forward.plan));
    OK(elsa_workspace_create(g.forward.plan, &g.forward.room));
    g.forward.to.out = output(out, sizeof out);
    g.forward.to.lse = output(lse, sizeof lse);
    g.forward.to.state_m = output(state_m, sizeof state_m);
    g.forward.to.state_s = output(state_s, sizeof state_s);
    g.forward.to.state_w = output(state_w, sizeof state_w);
    OK(elsa_run(g.forward.plan, g.forward.room, &g.forward.in, &g.forward.to, NULL));
    OK(elsa_gradients_plan_create(engine, p, &g.options, &g.plan));
    OK(elsa_workspace_create(g.plan, &g.room));
    g.in.out = input(out, sizeof out);
    g.in.d_out = input(d_out, sizeof d_out);
    g.in.state_m = input(state_m, sizeof state_m);
    g.in.state_s = input(state_s, sizeof state_s);
    g.to.d_q = output(d_q, sizeof d_q);
    g.to.d_k = output(d_k, sizeof d_k);
    g.to.d_v = output(d_v, sizeof d_v);
    return g;
}

static void finish(const gradients *g) {
    OK(elsa_workspace_destroy(g->room));
    OK(elsa_plan_destroy(g->plan));
    end(&g->forward);
}

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

#define REFUSED(call, name)                             \
    do {                                                \
        CHECK((call) == ELSA_STATUS_ARGUMENT);          \
        CHECK(strstr(elsa_last_error(), name) != NULL); \
    } while (0)

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
    size_t i;
    elsa_engine_options_init(&options);
    options.threads = 2;
    OK(elsa_engine_create(&options, &engine));
    fill_all();
    fill(d_out, 4);
    /* The mask leaves a row without keys, and keys without rows. */
    for (i = 0; i < N * N; i++) attended[i] = i * 7919 % 5 != 0 && i / N != 3 && i % N != 6;
    answers(engine);
    bound(engine);
    misuse(engine);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
