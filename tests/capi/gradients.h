/* Shared by the programs of gradients: variants of attention with their gradients in f64, and a call of gradients with the
   forward pass that it needs. */
#ifndef GRADIENTS_H
#define GRADIENTS_H

#include "common.h"

#define GROUPS 1

static float d_out[COUNT], lse[H * N], state_m[H * N], state_s[H * N], state_w[COUNT];
static float d_q[COUNT], d_k[COUNT], d_v[COUNT];
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

static inline int attends(int variant, size_t i, size_t j) {
    switch (variant) {
    case CAUSAL: return j <= i;
    case MASKED: return attended[i * N + j];
    case SHORT: return j < (size_t)length;
    default: return 1;
    }
}

/* Computes the gradients by their definition. */
static inline void differentiate(int variant, size_t groups) {
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

static inline void judge(const gradients *g) {
    const size_t shared = g->groups * N * D;
    size_t i;
    CHECK(farthest(d_q, want_q, COUNT) < 1e-5);
    CHECK(farthest(d_k, want_k, shared) < 1e-5);
    CHECK(farthest(d_v, want_v, shared) < 1e-5);
    /* Nothing is written beyond the shared heads. */
    for (i = shared; i < COUNT; i++) CHECK(d_k[i] != d_k[i] && d_v[i] != d_v[i]);
}

static inline void forget(void) {
    memset(d_q, 0xff, sizeof d_q);
    memset(d_k, 0xff, sizeof d_k);
    memset(d_v, 0xff, sizeof d_v);
}

/* Describes a variant, runs its forward pass and makes the plan of its gradients. */
static inline gradients begin(elsa_engine engine, int variant) {
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

static inline void finish(const gradients *g) {
    OK(elsa_workspace_destroy(g->room));
    OK(elsa_plan_destroy(g->plan));
    end(&g->forward);
}

#define REFUSED(call, name)                             \
    do {                                                \
        CHECK((call) == ELSA_STATUS_ARGUMENT);          \
        CHECK(strstr(elsa_last_error(), name) != NULL); \
    } while (0)

/* Fills the tensors. The mask leaves a row without keys, and keys without rows. */
static inline void fill_gradients(void) {
    size_t i;
    fill_all();
    fill(d_out, 4);
    for (i = 0; i < N * N; i++) attended[i] = i * 7919 % 5 != 0 && i / N != 3 && i % N != 6;
}

#endif
