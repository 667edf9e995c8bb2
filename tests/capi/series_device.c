/* elsa_recurrence_run_device, elsa_selective_run_device and elsa_convolution_run_device, with NVIDIA's driver or the stand-in:
   the bits of a run on host tensors, states in place in device memory, the caller's stream and the null stream; and refusals. */
#define _POSIX_C_SOURCE 200809L
#define H 1
#define N 1100
#define D 6
#include "common.h"
#include "driver.h"

/* Sequences, channels, states of a channel, weights of a filter. */
#define B 2
#define C D
#define S 5
#define K 4
#define TOKENS (B * N * C)
#define STATES (B * C * S)

enum { U, DELTA, GATES, Z, RATES, IN_B, OUT_C, SKIP, BIAS, FILTER, Y, PRESENT, TENSORS };
static const size_t counts[TENSORS] = {TOKENS, TOKENS, TOKENS, TOKENS, C * S, B * N * S, B * N * S, C, C, C * K, TOKENS, STATES};
static float host[TENSORS][TOKENS], past[STATES], found[TOKENS];
static address device[TENSORS];

typedef struct {
    elsa_recurrence_inputs r;
    elsa_selective_inputs s;
    elsa_convolution_inputs c;
    elsa_series_outputs to;
} series;

static elsa_input reads(int of, int on_device) {
    return input(on_device ? (const void *)(size_t)device[of] : host[of], counts[of] * sizeof(float));
}

static elsa_output writes(int of, int on_device) {
    return output(on_device ? (void *)(size_t)device[of] : host[of], counts[of] * sizeof(float));
}

static series tensors(int on_device) {
    series x;
    elsa_recurrence_inputs_init(&x.r);
    elsa_selective_inputs_init(&x.s);
    elsa_convolution_inputs_init(&x.c);
    elsa_series_outputs_init(&x.to);
    x.r.a = reads(GATES, on_device);
    x.r.b = x.s.u = x.c.u = reads(U, on_device);
    x.s.delta = reads(DELTA, on_device);
    x.s.a = reads(RATES, on_device);
    x.s.b = reads(IN_B, on_device);
    x.s.c = reads(OUT_C, on_device);
    x.s.d = reads(SKIP, on_device);
    x.s.z = reads(Z, on_device);
    x.s.delta_bias = x.c.bias = reads(BIAS, on_device);
    x.c.filter = reads(FILTER, on_device);
    x.to.out = writes(Y, on_device);
    x.to.present_state = writes(PRESENT, on_device);
    return x;
}

static elsa_view view(size_t channels) {
    elsa_view made;
    OK(elsa_view_init(ELSA_LAYOUT_BNHD, B, 1, N, channels, &made));
    return made;
}

enum { RECURRENCE, SELECTIVE, CONVOLUTION, OPERATORS };

static elsa_plan plan_of(elsa_engine engine, int of) {
    elsa_recurrence_problem r;
    elsa_selective_problem s;
    elsa_convolution_problem c;
    elsa_series_options options;
    elsa_plan plan;
    elsa_recurrence_problem_init(&r);
    elsa_selective_problem_init(&s);
    elsa_convolution_problem_init(&c);
    elsa_series_options_init(&options);
    r.a = r.b = r.out = s.u = s.delta = s.z = s.out = c.u = c.out = view(C);
    s.b = s.c = view(S);
    r.gate = ELSA_GATE_LOG;
    s.states = S;
    s.softplus = s.has_z = 1;
    c.taps = K;
    r.in_place = s.in_place = c.in_place = 1;
    if (of == RECURRENCE) {
        /* Parts, whose maps are in the workspace. */
        options.parts = 3;
        OK(elsa_recurrence_plan_create(engine, &r, &options, &plan));
    } else if (of == SELECTIVE) {
        OK(elsa_selective_plan_create(engine, &s, &options, &plan));
    } else {
        OK(elsa_convolution_plan_create(engine, &c, &options, &plan));
    }
    return plan;
}

static elsa_status run_device(int of, elsa_plan plan, elsa_workspace room, const series *x, void *stream, elsa_report *report) {
    return of == RECURRENCE  ? elsa_recurrence_run_device(plan, room, &x->r, &x->to, stream, report)
           : of == SELECTIVE ? elsa_selective_run_device(plan, room, &x->s, &x->to, stream, report)
                             : elsa_convolution_run_device(plan, room, &x->c, &x->to, stream, report);
}

/* Restores the past into the memory of the states. */
static void restart(void) {
    memset(found, 0xff, sizeof found);
    CHECK(cuMemcpyHtoD(device[Y], found, sizeof found) == 0 && cuMemcpyHtoD(device[PRESENT], past, sizeof past) == 0);
}

/* Checks that output and states equal those of the host tensors. */
static void same(void) {
    CHECK(cuMemcpyDtoH(found, device[Y], sizeof found) == 0 && memcmp(found, host[Y], sizeof found) == 0);
    CHECK(cuMemcpyDtoH(found, device[PRESENT], sizeof past) == 0 && memcmp(found, host[PRESENT], sizeof past) == 0);
}

static void run_all(elsa_engine engine, int of) {
    const series on_host = tensors(0);
    series x = tensors(1);
    const elsa_plan plan = plan_of(engine, of), other = plan_of(engine, (of + 1) % OPERATORS);
    const address brief = upload(host[IN_B], counts[IN_B] * sizeof(float) / 2);
    elsa_workspace room;
    elsa_report report;
    elsa_series_info chosen;
    void *stream = NULL;
    elsa_report_init(&report);
    elsa_series_info_init(&chosen);
    OK(elsa_series_plan_describe(plan, &chosen));
    CHECK(of == CONVOLUTION ? chosen.parts == 1 : chosen.parts > 1);
    OK(elsa_workspace_create(plan, &room));
    memset(host[Y], 0xff, sizeof host[Y]);
    memcpy(host[PRESENT], past, sizeof past);
    OK(of == RECURRENCE  ? elsa_recurrence_run(plan, room, &on_host.r, &on_host.to, &report)
       : of == SELECTIVE ? elsa_selective_run(plan, room, &on_host.s, &on_host.to, &report)
                         : elsa_convolution_run(plan, room, &on_host.c, &on_host.to, &report));
    CHECK(report.backend == ELSA_BACKEND_CUDA && report.fallback == 0);
    restart();
    OK(run_device(of, plan, room, &x, NULL, &report));
    CHECK(report.backend == ELSA_BACKEND_CUDA && report.copied_bytes == 0 && strncmp(report.kernel, "series_", 7) == 0);
    same();
    /* The past may be named by its own address; the run is in the caller's stream. */
    restart();
    x.r.past_state = x.s.past_state = x.c.past_state = reads(PRESENT, 1);
    CHECK(cuStreamCreate(&stream, 0) == 0);
    OK(run_device(of, plan, room, &x, stream, NULL));
    CHECK(cuStreamSynchronize(stream) == 0);
    same();
    /* A past in another tensor, an output over an input, host memory, no states for a call in place, a tensor in a shorter
       allocation, and the plan of another operator: nothing is written. */
    restart();
    x.r.past_state = x.s.past_state = x.c.past_state = reads(U, 1);
    CHECK(run_device(of, plan, room, &x, stream, NULL) == ELSA_STATUS_ARGUMENT);
    CHECK(strstr(elsa_last_error(), "past_state: address") != NULL);
    x = tensors(1);
    x.to.out = writes(U, 1);
    CHECK(run_device(of, plan, room, &x, stream, NULL) == ELSA_STATUS_ARGUMENT);
    CHECK(strstr(elsa_last_error(), "overlap") != NULL);
    x = tensors(1);
    x.to.out = writes(Y, 0);
    CHECK(run_device(of, plan, room, &x, stream, NULL) == ELSA_STATUS_ARGUMENT);
    CHECK(strstr(elsa_last_error(), "out: address") != NULL);
    x = tensors(1);
    x.to.present_state = output(NULL, 0);
    CHECK(run_device(of, plan, room, &x, stream, NULL) == ELSA_STATUS_ARGUMENT);
    CHECK(strstr(elsa_last_error(), "in_place") != NULL);
    if (of == SELECTIVE) {
        /* An output that follows the allocation counts as overlapping. */
        x = tensors(1);
        x.s.b.data = (const void *)(size_t)brief;
        CHECK(run_device(of, plan, room, &x, stream, NULL) == ELSA_STATUS_ARGUMENT);
        CHECK(strncmp(elsa_last_error(), "b: ", 3) == 0 || strstr(elsa_last_error(), " overlap b at ") != NULL);
    }
    x = tensors(1);
    CHECK(run_device(of, other, room, &x, stream, NULL) == ELSA_STATUS_ARGUMENT);
    CHECK(strstr(elsa_last_error(), "plan: of ") != NULL);
    CHECK(cuMemcpyDtoH(found, device[PRESENT], sizeof past) == 0 && memcmp(found, past, sizeof past) == 0);
    CHECK(cuStreamDestroy(stream) == 0 && cuMemFree(brief) == 0);
    OK(elsa_workspace_destroy(room));
    OK(elsa_plan_destroy(other));
    OK(elsa_plan_destroy(plan));
}

int main(void) {
    elsa_engine engine;
    elsa_engine_options options;
    void *context = NULL, *popped = NULL;
    int of;
    open_driver();
    noise(host[U], TOKENS, 1, -1, 1);
    noise(host[DELTA], TOKENS, 2, -1, 1);
    noise(host[GATES], TOKENS, 3, -1.5f, 0);
    noise(host[Z], TOKENS, 4, -2, 2);
    noise(host[RATES], C * S, 5, -2, -0.1f);
    noise(host[IN_B], B * N * S, 6, -1, 1);
    noise(host[OUT_C], B * N * S, 7, -1, 1);
    noise(host[SKIP], C, 8, -1, 1);
    noise(host[BIAS], C, 9, -1, 1);
    noise(host[FILTER], C * K, 10, -1, 1);
    noise(past, STATES, 11, -2, 2);
    elsa_engine_options_init(&options);
    options.backend = ELSA_BACKEND_CUDA;
    options.fallback = ELSA_FALLBACK_FAIL;
    OK(elsa_engine_create(&options, &engine));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxPushCurrent(context) == 0);
    for (of = 0; of < TENSORS; of++) device[of] = upload(host[of], counts[of] * sizeof(float));
    for (of = 0; of < OPERATORS; of++) run_all(engine, of);
    for (of = 0; of < TENSORS; of++) CHECK(cuMemFree(device[of]) == 0);
    CHECK(cuCtxPopCurrent(&popped) == 0 && cuDevicePrimaryCtxRelease(0) == 0);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
