/* Recurrences, selective scans and convolutions against their definitions in f64: both axis orders, both directions, states in
   place and token by token, clearing and poisoning of states, bound calls, and refusals. */
#define H 2
#define N 70
#define D 6
#include "common.h"

/* Sequences, tokens, channels, states of a channel, weights of a filter. */
#define B 2
#define T N
#define C D
#define S 5
#define K 4
#define TOKENS (B * T * C)
#define STATES (B * C * S)

static float u[TOKENS], delta[TOKENS], z[TOKENS], y[TOKENS], other[TOKENS], gates[TOKENS];
static float rates[C * S], in_b[B * T * S], out_c[B * T * S], skip[C], bias[C], filter[C * K];
static float past[STATES], present[STATES];
static double want[TOKENS], last[STATES];

static void fill_series(void) {
    noise(u, TOKENS, 1, -1, 1);
    noise(delta, TOKENS, 2, -1, 1);
    noise(z, TOKENS, 3, -2, 2);
    noise(gates, TOKENS, 4, -1.5f, 0);
    noise(rates, C * S, 5, -2, -0.1f);
    noise(in_b, B * T * S, 6, -1, 1);
    noise(out_c, B * T * S, 7, -1, 1);
    noise(skip, C, 8, -1, 1);
    noise(bias, C, 9, -1, 1);
    noise(filter, C * K, 10, -1, 1);
    noise(past, STATES, 11, -2, 2);
}

/* The view of a series of so many channels, [batch, tokens, channels] or [batch, channels, tokens] in memory. */
static elsa_view view(size_t tokens, size_t channels, int turned) {
    elsa_view made;
    OK(turned ? elsa_view_init(ELSA_LAYOUT_BHND, B, channels, tokens, 1, &made)
              : elsa_view_init(ELSA_LAYOUT_BNHD, B, 1, tokens, channels, &made));
    return made;
}

/* Returns the index of an element. */
static size_t at(size_t b, size_t t, size_t c, size_t channels, int turned) {
    return turned ? (b * channels + c) * T + t : (b * T + t) * channels + c;
}

static double silu(double x) {
    return x / (1 + exp(-x));
}

typedef struct {
    int turned, reverse, states;
} kind;

/* Computes want and last by the definitions, from zeros or past. */
static void recurrence(kind k) {
    size_t b, c, i;
    for (b = 0; b < B; b++)
        for (c = 0; c < C; c++) {
            double h = k.states ? past[b * C + c] : 0;
            for (i = 0; i < T; i++) {
                const size_t x = at(b, k.reverse ? T - 1 - i : i, c, C, k.turned);
                const double a = exp((double)gates[x]);
                h = (a == 0 ? 0 : a * h) + u[x];
                want[x] = h;
            }
            last[b * C + c] = h;
        }
}

static void selective(kind k) {
    size_t b, c, i, n;
    for (b = 0; b < B; b++)
        for (c = 0; c < C; c++) {
            double *x = last + (b * C + c) * S;
            for (n = 0; n < S; n++) x[n] = k.states ? past[(b * C + c) * S + n] : 0;
            for (i = 0; i < T; i++) {
                const size_t t = k.reverse ? T - 1 - i : i, e = at(b, t, c, C, k.turned);
                const double step = log1p(exp((double)delta[e] + bias[c]));
                double sum = (double)skip[c] * u[e];
                for (n = 0; n < S; n++) {
                    const size_t f = at(b, t, n, S, k.turned);
                    x[n] = exp(step * rates[c * S + n]) * x[n] + step * in_b[f] * u[e];
                    sum += out_c[f] * x[n];
                }
                want[e] = sum * silu(z[e]);
            }
        }
}

static void convolution(kind k) {
    size_t b, c, i, j;
    for (b = 0; b < B; b++)
        for (c = 0; c < C; c++) {
            double all[K - 1 + T];
            for (i = 0; i < K - 1; i++) all[i] = k.states ? past[(b * C + c) * (K - 1) + i] : 0;
            for (i = 0; i < T; i++) all[K - 1 + i] = u[at(b, k.reverse ? T - 1 - i : i, c, C, k.turned)];
            for (i = 0; i < T; i++) {
                double sum = bias[c];
                for (j = 0; j < K; j++) sum += (double)filter[c * K + j] * all[i + j];
                want[at(b, k.reverse ? T - 1 - i : i, c, C, k.turned)] = silu(sum);
            }
            for (i = 0; i < K - 1; i++) last[(b * C + c) * (K - 1) + i] = all[T + i];
        }
}

/* A call of one of the operators. */
typedef struct {
    elsa_recurrence_problem r;
    elsa_selective_problem s;
    elsa_convolution_problem c;
    elsa_series_options options;
    elsa_recurrence_inputs r_in;
    elsa_selective_inputs s_in;
    elsa_convolution_inputs c_in;
    elsa_series_outputs to;
    elsa_plan plan;
    elsa_workspace room;
} series;

enum { RECURRENCE, SELECTIVE, CONVOLUTION, OPERATORS };
static const size_t state_bytes[] = {B * C * sizeof(float), sizeof past, B * C * (K - 1) * sizeof(float)};

/* Describes all problems over the same data, with this number of tokens. */
static series describe(kind k, size_t tokens) {
    series x;
    memset(&x, 0, sizeof x);
    elsa_recurrence_problem_init(&x.r);
    elsa_selective_problem_init(&x.s);
    elsa_convolution_problem_init(&x.c);
    elsa_series_options_init(&x.options);
    elsa_recurrence_inputs_init(&x.r_in);
    elsa_selective_inputs_init(&x.s_in);
    elsa_convolution_inputs_init(&x.c_in);
    elsa_series_outputs_init(&x.to);
    x.r.a = x.r.b = x.r.out = view(tokens, C, k.turned);
    x.r.gate = ELSA_GATE_LOG;
    x.s.u = x.s.delta = x.s.z = x.s.out = x.r.a;
    x.s.b = x.s.c = view(tokens, S, k.turned);
    x.s.states = S;
    x.s.softplus = x.s.has_z = 1;
    x.c.u = x.c.out = x.r.a;
    x.c.taps = K;
    x.c.order = ELSA_TAPS_NEWEST_LAST;
    x.c.silu = 1;
    x.r.reverse = x.s.reverse = x.c.reverse = (uint32_t)k.reverse;
    x.r_in.a = input(gates, sizeof gates);
    x.r_in.b = x.s_in.u = x.c_in.u = input(u, sizeof u);
    x.s_in.delta = input(delta, sizeof delta);
    x.s_in.a = input(rates, sizeof rates);
    x.s_in.b = input(in_b, sizeof in_b);
    x.s_in.c = input(out_c, sizeof out_c);
    x.s_in.d = input(skip, sizeof skip);
    x.s_in.z = input(z, sizeof z);
    x.s_in.delta_bias = x.c_in.bias = input(bias, sizeof bias);
    x.c_in.filter = input(filter, sizeof filter);
    x.to.out = output(y, sizeof y);
    if (k.states) {
        x.r_in.past_state = x.s_in.past_state = x.c_in.past_state = input(past, sizeof past);
        x.to.present_state = output(present, sizeof present);
    }
    return x;
}

static elsa_status create(elsa_engine engine, int of, const series *x, elsa_plan *plan) {
    return of == RECURRENCE  ? elsa_recurrence_plan_create(engine, &x->r, &x->options, plan)
           : of == SELECTIVE ? elsa_selective_plan_create(engine, &x->s, &x->options, plan)
                             : elsa_convolution_plan_create(engine, &x->c, &x->options, plan);
}

static elsa_status run(int of, const series *x, elsa_report *report) {
    return of == RECURRENCE  ? elsa_recurrence_run(x->plan, x->room, &x->r_in, &x->to, report)
           : of == SELECTIVE ? elsa_selective_run(x->plan, x->room, &x->s_in, &x->to, report)
                             : elsa_convolution_run(x->plan, x->room, &x->c_in, &x->to, report);
}

static elsa_status run_device(int of, const series *x, elsa_report *report) {
    return of == RECURRENCE  ? elsa_recurrence_run_device(x->plan, x->room, &x->r_in, &x->to, NULL, report)
           : of == SELECTIVE ? elsa_selective_run_device(x->plan, x->room, &x->s_in, &x->to, NULL, report)
                             : elsa_convolution_run_device(x->plan, x->room, &x->c_in, &x->to, NULL, report);
}

static elsa_status bind(int of, const series *x, elsa_bound *bound) {
    return of == RECURRENCE  ? elsa_recurrence_bind(x->plan, x->room, &x->r_in, &x->to, bound)
           : of == SELECTIVE ? elsa_selective_bind(x->plan, x->room, &x->s_in, &x->to, bound)
                             : elsa_convolution_bind(x->plan, x->room, &x->c_in, &x->to, bound);
}

static elsa_status set(int of, const series *x, elsa_bound bound) {
    return of == RECURRENCE  ? elsa_recurrence_bound_set(bound, &x->r_in, &x->to)
           : of == SELECTIVE ? elsa_selective_bound_set(bound, &x->s_in, &x->to)
                             : elsa_convolution_bound_set(bound, &x->c_in, &x->to);
}

static void exact(int of, kind k) {
    if (of == RECURRENCE) recurrence(k);
    if (of == SELECTIVE) selective(k);
    if (of == CONVOLUTION) convolution(k);
}

static void plan_of(elsa_engine engine, int of, series *x) {
    OK(create(engine, of, x, &x->plan));
    OK(elsa_workspace_create(x->plan, &x->room));
}

static void finish(const series *x) {
    OK(elsa_workspace_destroy(x->room));
    OK(elsa_plan_destroy(x->plan));
}

#define REFUSED(call, name)                                               \
    do {                                                                  \
        CHECK((call) == ELSA_STATUS_ARGUMENT);                            \
        CHECK(strstr(elsa_last_error(), name) != NULL);                   \
    } while (0)

/* Checks that a bound call writes to the output that replaced y, and nowhere else. The answer is in y. */
static void moved(int of, const series *x, elsa_bound bound) {
    static float elsewhere[TOKENS];
    series other = *x;
    other.to.out = output(elsewhere, sizeof y - 1);
    REFUSED(set(of, &other, bound), "out: ");
    REFUSED(set((of + 1) % OPERATORS, &other, bound), "bound: of a ");
    other.to.out = output(elsewhere, sizeof y);
    memset(elsewhere, 0xff, sizeof y);
    OK(set(of, &other, bound));
    OK(elsa_bound_run(bound, NULL));
    CHECK(memcmp(y, elsewhere, sizeof y) == 0);
}

static void answers(elsa_engine engine) {
    int of, way, more;
    for (of = 0; of < OPERATORS; of++)
        for (way = 0; way < 8; way++)
            for (more = 0; more < (of == SELECTIVE ? 1 : 2); more++) {
                const kind k = {way % 2, way / 2 % 2, way / 4};
                const size_t states = state_bytes[of] / sizeof(float);
                series x = describe(k, T);
                elsa_series_info chosen;
                elsa_plan_info plan;
                elsa_report done;
                elsa_bound bound;
                elsa_series_info_init(&chosen);
                elsa_plan_info_init(&plan);
                elsa_report_init(&done);
                if (more && of == RECURRENCE) x.options.parts = 3;
                if (more && of == CONVOLUTION) x.options.method = ELSA_CONVOLUTION_FFT;
                plan_of(engine, of, &x);
                OK(elsa_series_plan_describe(x.plan, &chosen));
                CHECK(chosen.parts == (more && of == RECURRENCE ? 3 : 1));
                CHECK(of == CONVOLUTION ? chosen.method == (elsa_convolution_method)(1 + more) : chosen.method == 0);
                CHECK((chosen.fft_length > 0) == (more && of == CONVOLUTION));
                OK(elsa_plan_describe(x.plan, &plan));
                CHECK(plan.kernel != NULL && strncmp(plan.kernel, "series_f32", 10) == 0);
                CHECK(plan.workspace_bytes > 0 && plan.state_workspace_bytes == plan.workspace_bytes);
                OK(elsa_plan_warm(x.plan, x.room));
                memset(y, 0xff, sizeof y);
                memset(present, 0xff, sizeof present);
                OK(run(of, &x, &done));
                CHECK(done.workers > 0 && done.copied_bytes == 0 && done.backend == plan.backend);
                CHECK(done.fallback == plan.fallback && (done.fallback != 0) == (strlen(done.reason) > 0));
                exact(of, k);
                CHECK(farthest(y, want, TOKENS) < 2e-5);
                if (k.states) CHECK(farthest(present, last, states) < 2e-5);
                /* A run for the states only, and a bound call, have the same bits. */
                memcpy(other, y, sizeof y);
                OK(bind(of, &x, &bound));
                memset(y, 0xff, sizeof y);
                OK(elsa_bound_run(bound, NULL));
                CHECK(memcmp(y, other, sizeof y) == 0);
                moved(of, &x, bound);
                OK(elsa_bound_destroy(bound));
                if (k.states) {
                    memcpy(other, present, state_bytes[of]);
                    memset(present, 0xff, sizeof present);
                    x.to.out = output(NULL, 0);
                    OK(run(of, &x, NULL));
                    CHECK(memcmp(present, other, state_bytes[of]) == 0);
                }
                finish(&x);
            }
}

/* Checks that a state of zeros equals no state, and that tokens one at a time, with their state in place in the caller's memory,
   give the bits of all tokens at once. */
static void decode(elsa_engine engine) {
    static unsigned char memory[1 << 16];
    const kind k = {0, 0, 1}, plain = {0, 0, 0};
    int of;
    size_t t, b;
    for (of = 0; of < OPERATORS; of++) {
        series all = describe(k, T), one = describe(k, 1);
        elsa_plan_info info;
        plan_of(engine, of, &all);
        OK(run(of, &all, NULL));
        memcpy(other, y, sizeof y);
        /* Steps of one token within a tensor of all. */
        one.r.a.strides[0] = one.r.b.strides[0] = one.r.out.strides[0] = T * C;
        one.s.u.strides[0] = one.s.delta.strides[0] = one.s.z.strides[0] = one.s.out.strides[0] = T * C;
        one.s.b.strides[0] = one.s.c.strides[0] = T * S;
        one.c.u.strides[0] = one.c.out.strides[0] = T * C;
        one.r.in_place = one.s.in_place = one.c.in_place = 1;
        OK(create(engine, of, &one, &one.plan));
        elsa_plan_info_init(&info);
        OK(elsa_plan_describe(one.plan, &info));
        CHECK(info.workspace_bytes <= sizeof memory);
        CHECK(elsa_workspace_create_in(one.plan, memory, info.workspace_bytes - 1, &one.room) == ELSA_STATUS_ARGUMENT);
        OK(elsa_workspace_create_in(one.plan, memory, sizeof memory, &one.room));
        memset(y, 0xff, sizeof y);
        memcpy(present, past, sizeof past);
        for (t = 0; t < T; t++) {
#define STEP(array, width) input(array + t * (width), sizeof array - t * (width) * sizeof *array)
            one.r_in.a = STEP(gates, C);
            one.r_in.b = one.s_in.u = one.c_in.u = STEP(u, C);
            one.s_in.delta = STEP(delta, C);
            one.s_in.z = STEP(z, C);
            one.s_in.b = STEP(in_b, S);
            one.s_in.c = STEP(out_c, S);
            one.to.out = output(y + t * C, sizeof y - t * C * sizeof *y);
            /* The past may be named by the present's address. */
            one.r_in.past_state = one.s_in.past_state = one.c_in.past_state =
                t % 2 ? input(present, sizeof present) : input(NULL, 0);
            OK(run(of, &one, NULL));
        }
        for (b = 0; b < TOKENS; b++) CHECK(y[b] == other[b]);
        finish(&one);
        finish(&all);
        one = describe(plain, T);
        plan_of(engine, of, &one);
        OK(run(of, &one, NULL));
        memcpy(other, y, sizeof y);
        memset(present, 0, sizeof present);
        one.r_in.past_state = one.s_in.past_state = one.c_in.past_state = input(present, sizeof present);
        OK(run(of, &one, NULL));
        for (b = 0; b < TOKENS; b++) CHECK(y[b] == other[b]);
        finish(&one);
    }
}

/* Checks that a gate of -inf clears the state, regardless of its content, that a NaN poisons it until then, and that channels do
   not affect each other. */
static void clearing(elsa_engine engine) {
    const kind k = {0, 0, 1};
    series x = describe(k, T);
    const float kept[3] = {gates[20 * C], gates[40 * C], u[10 * C]};
    size_t t;
    u[10 * C] = INFINITY;
    gates[20 * C] = -INFINITY;
    gates[40 * C] = NAN;
    plan_of(engine, RECURRENCE, &x);
    OK(run(RECURRENCE, &x, NULL));
    recurrence(k);
    for (t = 0; t < T; t++) {
        CHECK(t < 10 || t >= 40 || (t < 20 ? isinf(y[t * C]) : isfinite(y[t * C])));
        CHECK(t < 40 || isnan(y[t * C]));
        CHECK(isfinite(y[t * C + 1]));
    }
    CHECK(y[20 * C] == u[20 * C]);
    CHECK(farthest(y + 20 * C, want + 20 * C, TOKENS - 20 * C) < 2e-5);
    gates[20 * C] = kept[0], gates[40 * C] = kept[1], u[10 * C] = kept[2];
    finish(&x);
}

/* Checks coefficients per channel, two groups of channels, one filter for all, and no tokens. */
static void variants(elsa_engine engine) {
    static float grouped[B * T * 2 * S], fixed[C * S];
    const kind k = {0, 0, 0}, with = {0, 0, 1};
    size_t b, t, n, c;
    series x = describe(k, T), one;
    plan_of(engine, SELECTIVE, &x);
    OK(run(SELECTIVE, &x, NULL));
    memcpy(other, y, sizeof y);
    for (b = 0; b < B * T; b++)
        for (n = 0; n < 2 * S; n++) grouped[b * 2 * S + n] = in_b[b * S + n % S];
    one = describe(k, T);
    one.s.b = view(T, 2 * S, 0);
    one.s_in.b = input(grouped, sizeof grouped);
    plan_of(engine, SELECTIVE, &one);
    OK(run(SELECTIVE, &one, NULL));
    for (b = 0; b < TOKENS; b++) CHECK(y[b] == other[b]);
    finish(&one);
    finish(&x);

    /* B per channel, the same for every token. */
    for (c = 0; c < C; c++)
        for (n = 0; n < S; n++) fixed[c * S + n] = in_b[n];
    for (b = 0; b < B * T; b++)
        for (n = 0; n < S; n++) grouped[b * S + n] = in_b[n];
    one = describe(k, T), one.s_in.b = input(grouped, sizeof grouped);
    plan_of(engine, SELECTIVE, &one);
    OK(run(SELECTIVE, &one, NULL));
    memcpy(other, y, sizeof y);
    finish(&one);
    one = describe(k, T), one.s.fixed_b = 1, one.s_in.b = input(fixed, sizeof fixed);
    plan_of(engine, SELECTIVE, &one);
    OK(run(SELECTIVE, &one, NULL));
    for (b = 0; b < TOKENS; b++) CHECK(y[b] == other[b]);
    finish(&one);

    /* One filter. */
    one = describe(k, T), one.c.shared = 1, one.c_in.filter = input(filter, K * sizeof *filter);
    plan_of(engine, CONVOLUTION, &one);
    OK(run(CONVOLUTION, &one, NULL));
    memcpy(other, y, sizeof y);
    finish(&one);
    for (c = 0; c < C; c++) memcpy(fixed + c * K, filter, K * sizeof *filter);
    one = describe(k, T), one.c_in.filter = input(fixed, C * K * sizeof *fixed);
    plan_of(engine, CONVOLUTION, &one);
    OK(run(CONVOLUTION, &one, NULL));
    for (b = 0; b < TOKENS; b++) CHECK(y[b] == other[b]);
    finish(&one);

    /* No tokens leave the state unchanged. */
    for (t = 0; t < OPERATORS; t++) {
        one = describe(with, 0);
        plan_of(engine, (int)t, &one);
        memset(present, 0xff, sizeof present);
        OK(run((int)t, &one, NULL));
        CHECK(memcmp(present, past, state_bytes[t]) == 0);
        finish(&one);
    }
}

static void no_plan(elsa_engine engine, int of, const series *x, const char *name) {
    elsa_plan plan = {77};
    REFUSED(create(engine, of, x, &plan), name);
    CHECK(plan.id == 77);
}

static void misuse(elsa_engine engine) {
    const kind k = {0, 0, 1};
    series x = describe(k, T), bad;
    elsa_plan plans[2];
    elsa_workspace shared;
    elsa_series_info chosen;
    elsa_certificate known;
    call softmax = make(engine);
    int of;
    size_t i;
    elsa_series_info_init(&chosen);
    elsa_certificate_init(&known);
    for (of = 0; of < OPERATORS; of++) {
        bad = x, bad.r.dtype = bad.s.dtype = bad.c.dtype = 9, no_plan(engine, of, &bad, "dtype: 9");
        bad = x, bad.r.out.shape[2] = bad.s.out.shape[2] = bad.c.out.shape[2] = T - 1, no_plan(engine, of, &bad, "out: tokens 69");
        bad = x, bad.r.out.strides[2] = bad.s.out.strides[2] = bad.c.out.strides[2] = 0, no_plan(engine, of, &bad, "out: ");
        bad = x, bad.r.out.strides[3] = bad.s.out.strides[3] = bad.c.out.strides[3] = 2, no_plan(engine, of, &bad, "out: ");
        bad = x, bad.options.reserved = 1, no_plan(engine, of, &bad, "reserved: 1");
        bad = x, bad.r.size = bad.s.size = bad.c.size = 8, no_plan(engine, of, &bad, "problem.size: 8");
        bad = x, bad.options.size = 0, no_plan(engine, of, &bad, "options.size: 0");
        bad = x, bad.options.parts = of == RECURRENCE ? 1025 : 2, no_plan(engine, of, &bad, "parts: ");
        bad = x, bad.options.method = of == CONVOLUTION ? 3 : 1, no_plan(engine, of, &bad, "method: ");
        bad = x, bad.options.budget = 1;
        CHECK(create(engine, of, &bad, &bad.plan) == ELSA_STATUS_MEMORY);
        CHECK(strstr(elsa_last_error(), "budget: 1 bytes") != NULL);
        REFUSED(create(engine, of, &x, NULL), "plan: null");
    }
    bad = x, bad.r.gate = 2, no_plan(engine, RECURRENCE, &bad, "gate: 2");
    bad = x, bad.r.reserved = 1, no_plan(engine, RECURRENCE, &bad, "reserved: 1");
    bad = x, bad.r.gate_dtype = ELSA_DTYPE_F16, no_plan(engine, RECURRENCE, &bad, "gate_dtype: 1");
    bad = x, bad.r.a.shape[3] = C - 1, no_plan(engine, RECURRENCE, &bad, "a: channels 5");
    bad = x, bad.s.states = 0, no_plan(engine, SELECTIVE, &bad, "states: 0");
    bad = x, bad.s.states = 257, no_plan(engine, SELECTIVE, &bad, "states: 257");
    bad = x, bad.s.states = 4, no_plan(engine, SELECTIVE, &bad, "b: channels 5");
    bad = x, bad.s.delta.shape[0] = 1, no_plan(engine, SELECTIVE, &bad, "delta: batch 1");
    bad = x, bad.s.z.shape[2] = 1, no_plan(engine, SELECTIVE, &bad, "z: tokens 1");
    bad = x, bad.s.c = view(T, 4 * S, 0), no_plan(engine, SELECTIVE, &bad, "a multiple of 4");
    bad = x, bad.c.taps = 0, no_plan(engine, CONVOLUTION, &bad, "filter: ");
    bad = x, bad.c.taps = SIZE_MAX / 2, no_plan(engine, CONVOLUTION, &bad, "filter: ");
    bad = x, bad.c.order = 2, no_plan(engine, CONVOLUTION, &bad, "order: 2");
    bad = x, bad.c.u.shape[2] = SIZE_MAX, no_plan(engine, CONVOLUTION, &bad, "u: ");
    /* More tokens than any memory holds: no tables of that length are made. */
    bad = x, bad.c.u.shape[0] = bad.c.out.shape[0] = 1, bad.c.u.shape[2] = bad.c.out.shape[2] = (size_t)1 << 50;
    bad.c.u.shape[3] = bad.c.out.shape[3] = 1, bad.c.u.strides[2] = bad.c.out.strides[2] = 1;
    bad.options.method = ELSA_CONVOLUTION_FFT;
    CHECK(create(engine, CONVOLUTION, &bad, &bad.plan) == ELSA_STATUS_MEMORY);

    for (of = 0; of < OPERATORS; of++) {
        x = describe(k, T);
        plan_of(engine, of, &x);
        memset(y, 0x5a, sizeof y);
        memset(present, 0x5a, sizeof present);
        bad = x, bad.r_in.b = bad.s_in.u = bad.c_in.u = input(NULL, 0);
        REFUSED(run(of, &bad, NULL), of == RECURRENCE ? "b: null" : "u: null");
        bad = x, bad.r_in.b.bytes = bad.s_in.u.bytes = bad.c_in.u.bytes = sizeof u - 1;
        REFUSED(run(of, &bad, NULL), "bytes; allowed: at least");
        bad = x, bad.to.out.bytes = 0; REFUSED(run(of, &bad, NULL), "out: 0 bytes");
        bad = x, bad.to.out = output((char *)y + 2, sizeof y - 2); REFUSED(run(of, &bad, NULL), "out: address");
        bad = x, bad.to.present_state.bytes = state_bytes[of] - 1; REFUSED(run(of, &bad, NULL), "present_state: ");
        bad = x, bad.to.out = bad.to.present_state = output(NULL, 0); REFUSED(run(of, &bad, NULL), "out");
        bad = x, bad.to.out = output(u, sizeof u); REFUSED(run(of, &bad, NULL), "overlap");
        bad = x, bad.to.present_state = output(past, sizeof past); REFUSED(run(of, &bad, NULL), "overlap past_state");
        bad = x, bad.to.present_state = output(y, sizeof y); REFUSED(run(of, &bad, NULL), "overlap present_state");
        bad = x, bad.r_in.size = bad.s_in.size = bad.c_in.size = 0; REFUSED(run(of, &bad, NULL), "inputs.size: 0");
        bad = x, bad.to.size = 0; REFUSED(bind(of, &bad, NULL), "bound: null");
        REFUSED(run(of, &bad, NULL), "outputs.size: 0");
        /* GPU memory for a plan without a GPU. */
        REFUSED(run_device(of, &bad, NULL), "outputs.size: 0");
        CHECK(run_device(of, &x, NULL) == ELSA_STATUS_UNSUPPORTED && strstr(elsa_last_error(), "backend") != NULL);
        for (i = 0; i < sizeof y; i++) CHECK(((unsigned char *)y)[i] == 0x5a);
        for (i = 0; i < sizeof present; i++) CHECK(((unsigned char *)present)[i] == 0x5a);

        /* Plans and workspaces of other operators. */
        bad = x, bad.plan = softmax.plan; REFUSED(run(of, &bad, NULL), "plan: of attention");
        bad = x, bad.room = softmax.room; REFUSED(run(of, &bad, NULL), "workspace: of a plan of attention");
        REFUSED(run((of + 1) % OPERATORS, &x, NULL), "plan: of a ");
        REFUSED(elsa_run(x.plan, softmax.room, &softmax.in, &softmax.to, NULL), "plan: of a ");
        REFUSED(elsa_plan_warm(x.plan, softmax.room), "workspace: of a plan of attention");
        REFUSED(elsa_plan_certificate(x.plan, ELSA_BACKEND_AUTO, &known), "plan: of a ");
        REFUSED(elsa_series_plan_describe(softmax.plan, &chosen), "plan: of attention");
        plans[0] = x.plan, plans[1] = softmax.plan;
        REFUSED(elsa_workspace_create_shared(plans, 2, &shared), "plan: of attention");
        CHECK(elsa_workspace_create_on_device(x.plan, NULL, 0, &shared) == ELSA_STATUS_UNSUPPORTED);
        plans[1] = x.plan;
        OK(elsa_workspace_create_shared(plans, 2, &shared));
        bad = x, bad.room = shared;
        OK(run(of, &bad, NULL));
        OK(elsa_workspace_destroy(shared));

        /* In place, the past is that memory and no other. */
        bad = x, bad.r.in_place = bad.s.in_place = bad.c.in_place = 1;
        plan_of(engine, of, &bad);
        REFUSED(run(of, &bad, NULL), "past_state: address");
        bad.r_in.past_state = bad.s_in.past_state = bad.c_in.past_state = input(NULL, 0);
        bad.to.present_state = output(NULL, 0);
        REFUSED(run(of, &bad, NULL), "in_place");
        finish(&bad);
        finish(&x);
        CHECK(run(of, &x, NULL) == ELSA_STATUS_HANDLE);
    }
    /* Fields that the problem does not have. */
    x = describe(k, T), x.s.has_z = 0;
    plan_of(engine, SELECTIVE, &x);
    REFUSED(run(SELECTIVE, &x, NULL), "z: given");
    finish(&x);
    end(&softmax);
}

int main(void) {
    elsa_engine_options options;
    elsa_engine engine;
    elsa_engine_options_init(&options);
    options.threads = 2;
    OK(elsa_engine_create(&options, &engine));
    fill_all();
    fill_series();
    answers(engine);
    decode(engine);
    clearing(engine);
    variants(engine);
    misuse(engine);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
