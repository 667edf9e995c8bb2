/* elsa_linear_run_device, with NVIDIA's driver or the stand-in: the bits of a run on host tensors, one sequence or packed
   sequences, states in place in device memory, the caller's stream and the null stream, a workspace in the caller's memory; and
   refusals. */
#define _POSIX_C_SOURCE 200809L
#include "common.h"
#include "driver.h"

/* Most sequences, and values of their states. */
#define MOST 2
#define STATES (MOST * H * D * D)

static float decay[H * N], beta[H * N], past[STATES], present[STATES], host_out[COUNT], host_present[STATES];
/* Offsets of packed sequences, and offsets beyond the tokens. */
static const int64_t offsets[MOST + 1] = {0, 20, N}, beyond[MOST + 1] = {0, N + 1, N + 1};

typedef struct {
    address q, k, v, decay, beta, out, state;
} tensors;

#define AT(address) ((void *)(size_t)(address))

/* Restores the past into the memory of the states. */
static void restart(const tensors *t) {
    memset(out, 0xff, sizeof out);
    CHECK(cuMemcpyHtoD(t->state, past, sizeof past) == 0 && cuMemcpyHtoD(t->out, out, sizeof out) == 0);
}

/* Refuses a call before its launch, with a message that begins with a part. */
static void refused(elsa_plan plan, elsa_workspace room, const elsa_linear_inputs *in, const elsa_linear_outputs *to,
                    const char *part) {
    CHECK(elsa_linear_run_device(plan, room, in, to, NULL, NULL) == ELSA_STATUS_ARGUMENT);
    CHECK(strncmp(elsa_last_error(), part, strlen(part)) == 0);
}

/* Checks that output and states equal those of the host tensors. */
static void same(const tensors *t) {
    CHECK(cuMemcpyDtoH(out, t->out, sizeof out) == 0 && cuMemcpyDtoH(present, t->state, sizeof present) == 0);
    CHECK(memcmp(out, host_out, sizeof out) == 0 && memcmp(present, host_present, sizeof present) == 0);
}

/* Runs a form over one sequence, forward, or over packed sequences, in reverse. */
static void form(elsa_engine engine, elsa_form order, int sequences, const tensors *t) {
    elsa_linear_problem problem;
    elsa_linear_options options;
    elsa_linear_inputs in;
    elsa_linear_outputs to;
    elsa_plan plan, other;
    elsa_plan_info info;
    elsa_workspace room, lent;
    elsa_report report;
    address memory = 0;
    void *stream = NULL;
    elsa_linear_problem_init(&problem);
    elsa_linear_options_init(&options);
    elsa_linear_inputs_init(&in);
    elsa_linear_outputs_init(&to);
    elsa_plan_info_init(&info);
    elsa_report_init(&report);
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, H, N, D, &problem.q));
    problem.k = problem.v = problem.out = problem.q;
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, H, N, 1, &problem.decay));
    problem.beta = problem.decay;
    OK(elsa_view_init(ELSA_LAYOUT_BHND, sequences, H, D, D, &problem.past_state));
    problem.present_state = problem.past_state;
    problem.rule = ELSA_RULE_GATED_DELTA;
    problem.has_decay = problem.has_beta = problem.has_past_state = problem.has_present_state = problem.in_place = 1;
    if (sequences > 1) {
        problem.packed = sequences;
        problem.direction = ELSA_DIRECTION_REVERSE;
        in.cu_seqlens.data = offsets;
        in.cu_seqlens.count = sequences + 1;
    }
    options.form = order;
    OK(elsa_linear_plan_create(engine, &problem, &options, &plan));
    OK(elsa_workspace_create(plan, &room));

    in.q = input(q, sizeof q);
    in.k = input(k, sizeof k);
    in.v = input(v, sizeof v);
    in.decay = input(decay, sizeof decay);
    in.beta = input(beta, sizeof beta);
    memcpy(host_present, past, sizeof past);
    to.out = output(host_out, sizeof host_out);
    to.present_state = output(host_present, sizeof host_present);
    OK(elsa_linear_run(plan, room, &in, &to, &report));
    CHECK(report.backend == ELSA_BACKEND_CUDA && report.fallback == 0);

    in.q = input(AT(t->q), sizeof q);
    in.k = input(AT(t->k), sizeof k);
    in.v = input(AT(t->v), sizeof v);
    in.decay = input(AT(t->decay), sizeof decay);
    in.beta = input(AT(t->beta), sizeof beta);
    to.out = output(AT(t->out), sizeof out);
    to.present_state = output(AT(t->state), sizeof present);
    restart(t);
    OK(elsa_linear_run_device(plan, room, &in, &to, NULL, &report));
    CHECK(report.backend == ELSA_BACKEND_CUDA && report.copied_bytes == 0);
    same(t);
    OK(elsa_plan_describe(plan, &info));
    CHECK(cuMemAlloc(&memory, info.workspace_bytes + 256) == 0);
    OK(elsa_workspace_create_on_device(plan, AT(memory), info.workspace_bytes + 256, &lent));
    restart(t);
    OK(elsa_linear_run_device(plan, lent, &in, &to, NULL, NULL));
    same(t);
    CHECK(elsa_workspace_trust(lent, 4) == ELSA_STATUS_ARGUMENT);
    OK(elsa_workspace_trust(lent, ELSA_TRUST_ADDRESSES | ELSA_TRUST_STREAMS));
    restart(t);
    OK(elsa_linear_run_device(plan, lent, &in, &to, NULL, NULL));
    same(t);
    OK(elsa_workspace_destroy(lent));
    CHECK(cuMemFree(memory) == 0);
    restart(t);
    in.past_state = input(AT(t->state), sizeof past);
    CHECK(cuStreamCreate(&stream, 0) == 0);
    OK(elsa_linear_run_device(plan, room, &in, &to, stream, NULL));
    CHECK(cuStreamSynchronize(stream) == 0);
    same(t);

    /* Host memory, and a state in another tensor's memory. */
    to.out = output(AT(t->v), sizeof v);
    CHECK(elsa_linear_run_device(plan, room, &in, &to, stream, NULL) == ELSA_STATUS_ARGUMENT);
    CHECK(strstr(elsa_last_error(), "out: ") != NULL && strstr(elsa_last_error(), "overlap v") != NULL);
    to.out = output(AT(t->out), sizeof out);
    in.past_state = input(AT(t->v), sizeof past);
    CHECK(elsa_linear_run_device(plan, room, &in, &to, stream, NULL) == ELSA_STATUS_ARGUMENT);
    CHECK(strstr(elsa_last_error(), "past_state: address") != NULL);
    CHECK(cuStreamDestroy(stream) == 0);

    /* Rates and gates in host memory, offsets that do not fit the tokens or are absent, and no output at all. */
    in.past_state = input(NULL, 0);
    in.beta = input(beta, sizeof beta);
    refused(plan, room, &in, &to, "beta: address");
    in.beta = input(AT(t->beta), sizeof beta);
    in.decay = input(decay, sizeof decay);
    refused(plan, room, &in, &to, "decay: address");
    in.decay = input(AT(t->decay), sizeof decay);
    if (sequences > 1) {
        in.cu_seqlens.data = beyond;
        refused(plan, room, &in, &to, "cu_seqlens");
        in.cu_seqlens.data = NULL;
        in.cu_seqlens.count = 0;
        refused(plan, room, &in, &to, "cu_seqlens");
        in.cu_seqlens.data = offsets;
        in.cu_seqlens.count = sequences + 1;
    }
    OK(elsa_workspace_destroy(room));
    problem.has_past_state = problem.has_present_state = problem.in_place = 0;
    OK(elsa_linear_plan_create(engine, &problem, &options, &other));
    OK(elsa_workspace_create(other, &room));
    to.out = to.present_state = output(NULL, 0);
    refused(other, room, &in, &to, "out");
    OK(elsa_workspace_destroy(room));
    OK(elsa_plan_destroy(other));
    OK(elsa_plan_destroy(plan));
}

int main(void) {
    elsa_engine engine;
    elsa_engine_options options;
    tensors t;
    void *context = NULL, *popped = NULL;
    size_t i;
    open_driver();
    fill_all();
    for (i = 0; i < COUNT; i++) k[i] *= 0.4f;
    for (i = 0; i < H * N; i++) {
        decay[i] = -0.25f * (1.0f + q[i]);
        beta[i] = 0.5f + 0.5f * v[i];
    }
    for (i = 0; i < STATES; i++) past[i] = q[(i * 7) % COUNT];
    elsa_engine_options_init(&options);
    options.backend = ELSA_BACKEND_CUDA;
    options.fallback = ELSA_FALLBACK_FAIL;
    OK(elsa_engine_create(&options, &engine));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxPushCurrent(context) == 0);
    t.q = upload(q, sizeof q);
    t.k = upload(k, sizeof k);
    t.v = upload(v, sizeof v);
    t.decay = upload(decay, sizeof decay);
    t.beta = upload(beta, sizeof beta);
    t.out = upload(out, sizeof out);
    t.state = upload(past, sizeof past);
    form(engine, ELSA_FORM_RECURRENT, 1, &t);
    form(engine, ELSA_FORM_CHUNK, 1, &t);
    form(engine, ELSA_FORM_FUSED_CHUNK, 1, &t);
    form(engine, ELSA_FORM_AUTO, MOST, &t);
    CHECK(cuMemFree(t.q) == 0 && cuMemFree(t.k) == 0 && cuMemFree(t.v) == 0 && cuMemFree(t.decay) == 0);
    CHECK(cuMemFree(t.beta) == 0 && cuMemFree(t.out) == 0 && cuMemFree(t.state) == 0);
    CHECK(cuCtxPopCurrent(&popped) == 0 && cuDevicePrimaryCtxRelease(0) == 0);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
