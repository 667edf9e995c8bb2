/* Linear attention: every rule and form against its recurrence in f64, states in place and token by token, bound
   calls, packed sequences, and refusals. Also on a GPU, if one is present. */
#include "common.h"

#define GATES (H * N)
#define STATES (H * D * D)

static float decay[GATES * D], beta[GATES], past[STATES], present[STATES], other[COUNT];
static double want[COUNT], last[STATES];

/* Fills keys of length about one, gates between 0.6 and 1, rates between 0 and 1. */
static void fill_linear(void) {
    size_t i;
    fill_all();
    for (i = 0; i < COUNT; i++) k[i] *= 0.4f;
    for (i = 0; i < GATES * D; i++) decay[i] = -0.25f * (1.0f + q[i % COUNT]);
    for (i = 0; i < GATES; i++) beta[i] = 0.5f + 0.5f * v[i];
    for (i = 0; i < STATES; i++) past[i] = q[(i * 7) % COUNT];
}

typedef struct {
    elsa_linear_problem problem;
    elsa_linear_options options;
    elsa_plan plan;
    elsa_workspace room;
    elsa_linear_inputs in;
    elsa_linear_outputs to;
} linear;

/* The recurrence by its definition: want and last of all tensors, with zeros or past before the first token. */
static void recurrence(const linear *c) {
    const int gated = c->problem.has_decay != 0, delta = c->problem.has_beta != 0, dims = c->problem.decay.shape[3] == D;
    size_t h, i, x, y;
    for (h = 0; h < H; h++) {
        double *s = last + h * D * D;
        for (x = 0; x < D * D; x++) s[x] = c->problem.has_past_state ? past[h * D * D + x] : 0;
        for (i = 0; i < N; i++) {
            const size_t row = h * N + i, t = c->problem.direction == ELSA_DIRECTION_REVERSE ? h * N + N - 1 - i : row;
            for (x = 0; x < D && gated; x++) {
                const double a = exp((double)(dims ? decay[t * D + x] : decay[t]));
                for (y = 0; y < D; y++) s[x * D + y] *= a;
            }
            for (y = 0; y < D; y++) {
                double held = 0, written = v[t * D + y];
                for (x = 0; x < D; x++) held += k[t * D + x] * s[x * D + y];
                if (delta) written = beta[t] * (written - held);
                for (x = 0; x < D; x++) s[x * D + y] += k[t * D + x] * written;
            }
            for (y = 0; y < D; y++) {
                double o = 0;
                for (x = 0; x < D; x++) o += q[t * D + x] * s[x * D + y];
                want[t * D + y] = o / sqrt((double)D);
            }
        }
    }
}

/* Describes a problem of all tensors, with states as requested. */
static linear describe(elsa_rule rule, int dims) {
    linear c;
    memset(&c, 0, sizeof c);
    elsa_linear_problem_init(&c.problem);
    elsa_linear_options_init(&c.options);
    elsa_linear_inputs_init(&c.in);
    elsa_linear_outputs_init(&c.to);
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, H, N, D, &c.problem.q));
    c.problem.k = c.problem.v = c.problem.out = c.problem.q;
    c.problem.rule = rule;
    c.in.q = input(q, sizeof q);
    c.in.k = input(k, sizeof k);
    c.in.v = input(v, sizeof v);
    c.to.out = output(out, sizeof out);
    if (rule == ELSA_RULE_GATED || rule == ELSA_RULE_GATED_DELTA) {
        c.problem.has_decay = 1;
        OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, H, N, dims ? D : 1, &c.problem.decay));
        c.in.decay = input(decay, sizeof decay);
    }
    if (rule == ELSA_RULE_DELTA || rule == ELSA_RULE_GATED_DELTA) {
        c.problem.has_beta = 1;
        OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, H, N, 1, &c.problem.beta));
        c.in.beta = input(beta, sizeof beta);
    }
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, H, D, D, &c.problem.past_state));
    c.problem.present_state = c.problem.past_state;
    return c;
}

/* Describes the same with separate states. */
static linear with_states(elsa_rule rule, int dims) {
    linear c = describe(rule, dims);
    c.problem.has_past_state = c.problem.has_present_state = 1;
    c.in.past_state = input(past, sizeof past);
    c.to.present_state = output(present, sizeof present);
    return c;
}

static void plan_of(elsa_engine engine, linear *c) {
    OK(elsa_linear_plan_create(engine, &c->problem, &c->options, &c->plan));
    OK(elsa_workspace_create(c->plan, &c->room));
}

static void finish(const linear *c) {
    OK(elsa_workspace_destroy(c->room));
    OK(elsa_plan_destroy(c->plan));
}

static void rules_and_forms(elsa_engine engine) {
    elsa_rule rule;
    elsa_form form;
    int dims;
    for (rule = ELSA_RULE_LINEAR; rule <= ELSA_RULE_GATED_DELTA; rule++)
        for (dims = 0; dims < 2; dims++)
            for (form = ELSA_FORM_AUTO; form <= ELSA_FORM_SCAN; form++) {
                linear c = with_states(rule, dims);
                elsa_report done;
                elsa_linear_info chosen;
                elsa_plan_info plan;
                elsa_report_init(&done);
                elsa_linear_info_init(&chosen);
                elsa_plan_info_init(&plan);
                c.options.form = form;
                c.problem.direction = (form + dims) % 2 ? ELSA_DIRECTION_REVERSE : ELSA_DIRECTION_FORWARD;
                plan_of(engine, &c);
                OK(elsa_linear_plan_describe(c.plan, &chosen));
                CHECK(form == ELSA_FORM_AUTO ? chosen.form != form : chosen.form == form);
                OK(elsa_plan_describe(c.plan, &plan));
                CHECK(plan.kernel != NULL && strlen(plan.kernel) > 0);
                memset(out, 0xff, sizeof out);
                memset(present, 0xff, sizeof present);
                OK(elsa_linear_run(c.plan, c.room, &c.in, &c.to, &done));
                CHECK(done.backend != ELSA_BACKEND_AUTO && done.workers > 0);
                recurrence(&c);
                CHECK(farthest(out, want, COUNT) < 1e-5);
                CHECK(farthest(present, last, STATES) < 1e-5);
                finish(&c);
            }
}

/* Checks the bounds of every rule and form against the errors, with past states in their own memory and in place. */
static void certificates(elsa_engine engine) {
    static double absolute[D + 1];
    elsa_linear_certified found;
    elsa_rule rule;
    elsa_form form;
    int in_place;
    elsa_linear_certified_init(&found);
    for (rule = ELSA_RULE_LINEAR; rule <= ELSA_RULE_GATED_DELTA; rule++)
        for (form = ELSA_FORM_AUTO; form <= ELSA_FORM_SCAN; form++)
            for (in_place = 0; in_place < 2; in_place++) {
                linear c = with_states(rule, form % 2);
                elsa_report done;
                double worst = 0;
                size_t x, i;
                elsa_report_init(&done);
                c.options.form = form;
                c.problem.in_place = (uint32_t)in_place;
                if (in_place) {
                    memcpy(present, past, sizeof past);
                    c.in.past_state = input(NULL, 0);
                }
                plan_of(engine, &c);
                OK(elsa_linear_run(c.plan, c.room, &c.in, &c.to, &done));
                recurrence(&c);
                if (in_place) {
                    CHECK(elsa_linear_certify(c.plan, done.backend, &c.in, &found, NULL, 0) == ELSA_STATUS_ARGUMENT);
                    CHECK(strstr(elsa_last_error(), "past_state: null") != NULL);
                    c.in.past_state = input(past, sizeof past);
                }
                for (x = 0; x <= D; x++) absolute[x] = -1;
                OK(elsa_linear_certify(c.plan, done.backend, &c.in, &found, absolute, D + 1));
                CHECK(found.claims == 1 && found.reserved == 0 && found.unclaimed == 0 && found.channels == D);
                CHECK(found.gain > 0 && found.absolute > 0 && found.absolute < 0.1 && found.state < 0.1);
                CHECK(farthest(present, last, STATES) <= found.state);
                for (x = 0; x < D; x++) {
                    for (i = x; i < COUNT; i += D) CHECK(fabs(out[i] - want[i]) <= absolute[x]);
                    if (absolute[x] > worst) worst = absolute[x];
                }
                CHECK(worst == found.absolute && absolute[D] == -1);
                finish(&c);
            }
}

#define REFUSED(call, name)                                               \
    do {                                                                  \
        CHECK((call) == ELSA_STATUS_ARGUMENT);                            \
        CHECK(strstr(elsa_last_error(), name) != NULL);                   \
    } while (0)

/* Checks that tokens one at a time, with their state in place, give the answer of all tokens at once. */
static void decode(elsa_engine engine) {
    linear all = with_states(ELSA_RULE_GATED_DELTA, 0), one = describe(ELSA_RULE_GATED_DELTA, 0);
    elsa_bound bound;
    size_t i, h;
    plan_of(engine, &all);
    recurrence(&all);
    one.problem.q.shape[2] = one.problem.k.shape[2] = one.problem.v.shape[2] = one.problem.out.shape[2] = 1;
    one.problem.decay.shape[2] = one.problem.beta.shape[2] = 1;
    one.problem.has_past_state = one.problem.has_present_state = one.problem.in_place = 1;
    plan_of(engine, &one);
    memcpy(present, past, sizeof past);
    one.to.present_state = output(present, sizeof present);
    for (i = 0; i < N; i++) {
        one.in.q = input(q + i * D, sizeof q - i * D * sizeof *q);
        one.in.k = input(k + i * D, sizeof k - i * D * sizeof *k);
        one.in.v = input(v + i * D, sizeof v - i * D * sizeof *v);
        one.in.decay = input(decay + i, sizeof decay - i * sizeof *decay);
        one.in.beta = input(beta + i, sizeof beta - i * sizeof *beta);
        one.to.out = output(out + i * D, sizeof out - i * D * sizeof *out);
        /* The past may be named by the present's address. */
        one.in.past_state = i % 2 ? input(present, sizeof present) : input(NULL, 0);
        OK(elsa_linear_run(one.plan, one.room, &one.in, &one.to, NULL));
    }
    for (h = 0; h < H; h++) CHECK(farthest(out + h * N * D, want + h * N * D, N * D) < 1e-5);
    CHECK(farthest(present, last, STATES) < 1e-5);
    /* A bound call has the bits of a run, at every repetition. */
    all.to.out = output(other, sizeof other);
    OK(elsa_linear_bind(all.plan, all.room, &all.in, &all.to, &bound));
    OK(elsa_plan_warm(all.plan, all.room));
    for (i = 0; i < 3; i++) {
        memset(other, 0xff, sizeof other);
        OK(elsa_bound_run(bound, NULL));
        all.to.out = output(out, sizeof out);
        OK(elsa_linear_run(all.plan, all.room, &all.in, &all.to, NULL));
        CHECK(memcmp(out, other, sizeof out) == 0);
    }
    /* A bound call with other tensors has the bits of a run over them. */
    REFUSED(elsa_bound_set(bound, NULL, NULL), "bound: of linear attention");
    REFUSED(elsa_linear_bound_set(bound, NULL, &all.to), "inputs: null");
    all.in.q = input(k, sizeof k);
    all.in.k = input(q, sizeof q - 4);
    REFUSED(elsa_linear_bound_set(bound, &all.in, &all.to), "k: ");
    all.in.k = input(q, sizeof q);
    OK(elsa_linear_run(all.plan, all.room, &all.in, &all.to, NULL));
    CHECK(memcmp(out, other, sizeof out) != 0);
    all.to.out = output(other, sizeof other);
    OK(elsa_linear_bound_set(bound, &all.in, &all.to));
    OK(elsa_bound_run(bound, NULL));
    CHECK(memcmp(out, other, sizeof out) == 0);
    OK(elsa_bound_destroy(bound));
    finish(&all);
    finish(&one);
}

/* Runs both heads as packed sequences of one head: the same bits with one form. */
static void packed(elsa_engine engine) {
    static int64_t ends[] = {0, N, N, 2 * N};
    linear c = with_states(ELSA_RULE_GATED, 0);
    elsa_bound bound;
    size_t i;
    c.options.form = ELSA_FORM_FUSED_CHUNK;
    plan_of(engine, &c);
    OK(elsa_linear_run(c.plan, c.room, &c.in, &c.to, NULL));
    memcpy(other, out, sizeof out);
    finish(&c);
    c = describe(ELSA_RULE_GATED, 0);
    c.options.form = ELSA_FORM_FUSED_CHUNK;
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, 1, 2 * N, D, &c.problem.q));
    c.problem.k = c.problem.v = c.problem.out = c.problem.q;
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, 1, 2 * N, 1, &c.problem.decay));
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 3, 1, D, D, &c.problem.past_state));
    c.problem.has_past_state = 1;
    c.problem.packed = 3;
    c.in.cu_seqlens.data = ends;
    c.in.cu_seqlens.count = 4;
    {
        static float states[3 * D * D];
        memcpy(states, past, D * D * sizeof *past);
        memcpy(states + 2 * D * D, past + D * D, D * D * sizeof *past);
        c.in.past_state = input(states, sizeof states);
        plan_of(engine, &c);
        memset(out, 0xff, sizeof out);
        OK(elsa_linear_run(c.plan, c.room, &c.in, &c.to, NULL));
    }
    for (i = 0; i < COUNT; i++) CHECK(out[i] == other[i]);
    /* A bound call reads cu_seqlens in each run, and checks it again. */
    OK(elsa_linear_bind(c.plan, c.room, &c.in, &c.to, &bound));
    memset(out, 0xff, sizeof out);
    OK(elsa_bound_run(bound, NULL));
    CHECK(memcmp(out, other, sizeof out) == 0);
    ends[1] = 3 * N;
    REFUSED(elsa_bound_run(bound, NULL), "cu_seqlens");
    ends[1] = N;
    OK(elsa_bound_destroy(bound));
    finish(&c);
}

/* Checks that nothing is claimed about values that are not finite, and the refusals of certificates. */
static void uncertified(elsa_engine engine) {
    linear c = with_states(ELSA_RULE_GATED, 0);
    call softmax = make(engine);
    elsa_linear_certified found;
    double absolute[2] = {-1, -1};
    const float kept = v[1];
    elsa_linear_certified_init(&found);
    plan_of(engine, &c);
    v[1] = (float)NAN;
    OK(elsa_linear_certify(c.plan, ELSA_BACKEND_AUTO, &c.in, &found, absolute, 2));
    v[1] = kept;
    CHECK(found.claims == 0 && found.unclaimed > 0 && found.absolute != found.absolute);
    CHECK(absolute[1] != absolute[1]);
    absolute[0] = -1;
    REFUSED(elsa_linear_certify(c.plan, ELSA_BACKEND_AUTO, NULL, &found, NULL, 0), "inputs: null");
    REFUSED(elsa_linear_certify(c.plan, ELSA_BACKEND_AUTO, &c.in, NULL, NULL, 0), "value: null");
    REFUSED(elsa_linear_certify(c.plan, ELSA_BACKEND_AUTO, &c.in, &found, NULL, 1), "absolute: null");
    REFUSED(elsa_linear_certify(c.plan, 99, &c.in, &found, absolute, 1), "backend: 99");
    REFUSED(elsa_linear_certify(softmax.plan, ELSA_BACKEND_AUTO, &c.in, &found, NULL, 0), "plan: of attention");
    c.in.decay = input(NULL, 0);
    REFUSED(elsa_linear_certify(c.plan, ELSA_BACKEND_AUTO, &c.in, &found, absolute, 1), "decay: null");
    CHECK(absolute[0] == -1);
    end(&softmax);
    finish(&c);
}

static void create(elsa_engine engine, const linear *c, const char *name) {
    elsa_plan plan = {77};
    REFUSED(elsa_linear_plan_create(engine, &c->problem, &c->options, &plan), name);
    CHECK(plan.id == 77);
}

static void run(const linear *c, const char *name) {
    REFUSED(elsa_linear_run(c->plan, c->room, &c->in, &c->to, NULL), name);
}

/* Checks errors in a problem, in its options, and in the tensors of a call; nothing is written. */
static void misuse(elsa_engine engine) {
    linear c = with_states(ELSA_RULE_GATED_DELTA, 0), bad;
    call softmax;
    elsa_certificate known;
    elsa_plan_options small;
    elsa_linear_info chosen;
    elsa_workspace shared;
    elsa_plan plans[2];
    size_t i;
    elsa_certificate_init(&known);
    elsa_plan_options_init(&small);
    elsa_linear_info_init(&chosen);
    bad = c, bad.problem.has_decay = 0, create(engine, &bad, "decay");
    bad = c, bad.problem.has_beta = 0, create(engine, &bad, "beta");
    bad = c, bad.problem.rule = ELSA_RULE_DELTA, create(engine, &bad, "decay");
    bad = c, bad.problem.rule = ELSA_RULE_GATED, create(engine, &bad, "beta");
    bad = c, bad.problem.rule = 4, create(engine, &bad, "rule: 4");
    bad = c, bad.problem.direction = 4, create(engine, &bad, "direction: 4");
    bad = c, bad.problem.direction = ELSA_DIRECTION_BIDIRECTIONAL, create(engine, &bad, "past_state");
    bad = c, bad.problem.dtype = 9, create(engine, &bad, "dtype: 9");
    bad = c, bad.problem.gate_dtype = ELSA_DTYPE_F16, create(engine, &bad, "gate_dtype: 1");
    bad = c, bad.problem.past_state.shape[3] = D - 1, create(engine, &bad, "past_state: d_v");
    bad = c, bad.problem.decay.shape[3] = 3, create(engine, &bad, "decay: head size 3");
    bad = c, bad.problem.k.shape[1] = 3, create(engine, &bad, "a multiple of 3");
    bad = c, bad.problem.has_present_state = 0, bad.problem.in_place = 1, create(engine, &bad, "in_place");
    bad = c, bad.problem.has_normalize = 1, bad.problem.normalize = -1, create(engine, &bad, "normalize: -1");
    bad = c, bad.problem.reserved = 1, create(engine, &bad, "reserved");
    bad = c, bad.options.form = 6, create(engine, &bad, "form: 6");
    bad = c, bad.options.form = ELSA_FORM_CHUNK, bad.options.chunk = 12, create(engine, &bad, "chunk: 12");
    bad = c, bad.options.form = ELSA_FORM_SCAN, bad.options.parts = 1, create(engine, &bad, "parts: 1");
    bad = c, bad.options.reserved = 1, create(engine, &bad, "reserved");
    bad = c, bad.options.budget = 1;
    CHECK(elsa_linear_plan_create(engine, &bad.problem, &bad.options, &bad.plan) == ELSA_STATUS_MEMORY);
    CHECK(strstr(elsa_last_error(), "budget: 1 bytes") != NULL);

    plan_of(engine, &c);
    memset(out, 0x5a, sizeof out);
    memset(present, 0x5a, sizeof present);
    bad = c, bad.in.decay = input(NULL, 0), run(&bad, "decay: null");
    bad = c, bad.in.beta = input(NULL, 0), run(&bad, "beta: null");
    bad = c, bad.in.past_state = input(NULL, 0), run(&bad, "past_state: null");
    bad = c, bad.in.past_state = input((const char *)past + 2, sizeof past - 2), run(&bad, "past_state: address");
    bad = c, bad.in.q.bytes -= 4, run(&bad, "q: ");
    bad = c, bad.in.cu_seqlens.data = (const int64_t *)past, bad.in.cu_seqlens.count = 2, run(&bad, "cu_seqlens");
    bad = c, bad.to.out = output(NULL, 0), bad.to.present_state = output(NULL, 0), run(&bad, "present_state: null");
    /* The same memory without in_place, and a part of it. */
    bad = c, bad.in.past_state = input(present, sizeof present), run(&bad, "present_state: ");
    bad = c, bad.to.present_state = output(past, sizeof past), run(&bad, "overlap past_state");
    bad = c, bad.in.past_state = input(other, sizeof past);
    bad.to.present_state = output(other + 4, sizeof other - 16), run(&bad, "overlap past_state");
    bad = c, bad.to.out = output(v, sizeof v), run(&bad, "overlap v");
    bad = c, bad.to.present_state = output(out, sizeof out), run(&bad, "out: ");
    for (i = 0; i < sizeof out; i++) CHECK(((unsigned char *)out)[i] == 0x5a);
    for (i = 0; i < sizeof present; i++) CHECK(((unsigned char *)present)[i] == 0x5a);

    /* Null pointers, and GPU memory for a plan without a GPU. */
    REFUSED(elsa_linear_plan_create(engine, NULL, NULL, plans), "problem: null");
    REFUSED(elsa_linear_plan_create(engine, &c.problem, NULL, NULL), "plan: null");
    REFUSED(elsa_linear_plan_describe(c.plan, NULL), "info: null");
    REFUSED(elsa_linear_run(c.plan, c.room, NULL, &c.to, NULL), "inputs: null");
    REFUSED(elsa_linear_run(c.plan, c.room, &c.in, NULL, NULL), "outputs: null");
    REFUSED(elsa_linear_bind(c.plan, c.room, &c.in, &c.to, NULL), "bound: null");
    if (elsa_linear_run_device(c.plan, c.room, &c.in, &c.to, NULL, NULL) == ELSA_STATUS_UNSUPPORTED)
        CHECK(strstr(elsa_last_error(), "backend") != NULL);
    for (i = 0; i < sizeof out; i++) CHECK(((unsigned char *)out)[i] == 0x5a);

    /* In place, the past is that memory and no other. */
    bad = describe(ELSA_RULE_GATED_DELTA, 0);
    bad.problem.has_past_state = bad.problem.has_present_state = bad.problem.in_place = 1;
    plan_of(engine, &bad);
    bad.to.present_state = output(present, sizeof present);
    bad.in.past_state = input(past, sizeof past);
    REFUSED(elsa_linear_run(bad.plan, bad.room, &bad.in, &bad.to, NULL), "past_state: address");
    finish(&bad);

    /* Handles of the two kinds. */
    softmax = make(engine);
    REFUSED(elsa_run(c.plan, c.room, &softmax.in, &softmax.to, NULL), "plan: of linear attention");
    REFUSED(elsa_partial(c.plan, c.room, NULL, &softmax.in, &softmax.to, NULL), "state_m");
    REFUSED(elsa_run(softmax.plan, c.room, &softmax.in, &softmax.to, NULL), "workspace: of a plan of linear attention");
    REFUSED(elsa_linear_run(softmax.plan, c.room, &c.in, &c.to, NULL), "plan: of attention");
    REFUSED(elsa_linear_run(c.plan, softmax.room, &c.in, &c.to, NULL), "workspace: of a plan of attention");
    REFUSED(elsa_linear_plan_describe(softmax.plan, &chosen), "plan: of attention");
    REFUSED(elsa_plan_certificate(c.plan, ELSA_BACKEND_AUTO, &known), "plan: of linear attention");
    REFUSED(elsa_plan_warm(c.plan, softmax.room), "workspace: of a plan of attention");
    plans[0] = c.plan, plans[1] = softmax.plan;
    REFUSED(elsa_workspace_create_shared(plans, 2, &shared), "plan: of attention");
    plans[1] = c.plan;
    OK(elsa_workspace_create_shared(plans, 2, &shared));
    OK(elsa_linear_run(c.plan, shared, &c.in, &c.to, NULL));
    OK(elsa_workspace_destroy(shared));
    end(&softmax);
    finish(&c);
    CHECK(elsa_linear_run(c.plan, c.room, &c.in, &c.to, NULL) == ELSA_STATUS_HANDLE);
}

int main(void) {
    elsa_engine_options options;
    elsa_engine engine;
    elsa_engine_options_init(&options);
    options.threads = 2;
    OK(elsa_engine_create(&options, &engine));
    fill_linear();
    rules_and_forms(engine);
    certificates(engine);
    decode(engine);
    packed(engine);
    uncertified(engine);
    misuse(engine);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
