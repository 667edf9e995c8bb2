/* elsa_run_device, and workspaces in the caller's memory, with NVIDIA's driver or the stand-in, which does the work of a
   stream only when something waits for it. Correct answers on the caller's stream, the null stream and the default one,
   after an event and before one, and in memory that the host shares; sums in f16; and all refusals. */
#define _POSIX_C_SOURCE 200809L
#include "common.h"
#include "driver.h"

/* Tensors in device memory. */
typedef struct {
    address q, k, v, out, lse;
} tensors;

#define LSE (H * N * sizeof(float))

static tensors upload_all(void) {
    tensors t;
    t.q = upload(q, sizeof q);
    t.k = upload(k, sizeof k);
    t.v = upload(v, sizeof v);
    memset(out, 0xff, sizeof out);
    t.out = upload(out, sizeof out);
    t.lse = upload(out, LSE);
    return t;
}

static void free_all(const tensors *t) {
    CHECK(cuMemFree(t->q) == 0 && cuMemFree(t->k) == 0 && cuMemFree(t->v) == 0);
    CHECK(cuMemFree(t->out) == 0 && cuMemFree(t->lse) == 0);
}

/* Returns the call on these tensors. */
static call on(const call *c, const tensors *t) {
    call d = *c;
    d.in.q.data = (const void *)(size_t)t->q;
    d.in.k.data = (const void *)(size_t)t->k;
    d.in.v.data = (const void *)(size_t)t->v;
    d.to.out.data = (void *)(size_t)t->out;
    d.to.lse.data = (void *)(size_t)t->lse;
    d.to.lse.bytes = LSE;
    return d;
}

static elsa_status run(const call *c, void *stream, elsa_report *report) {
    return elsa_run_device(c->plan, c->room, &c->in, &c->to, stream, report);
}

/* Returns the current output: the copy waits for the default stream only. */
static double download(const tensors *t) {
    CHECK(cuMemcpyDtoH(out, t->out, sizeof out) == 0);
    return error();
}

static double lse_error(const tensors *t) {
    float lse[H * N];
    double worst = 0;
    size_t row, j, c;
    CHECK(cuMemcpyDtoH(lse, t->lse, LSE) == 0);
    for (row = 0; row < H * N; row++) {
        double sum = 0, e;
        for (j = 0; j < N; j++) {
            double s = 0;
            for (c = 0; c < D; c++) s += (double)q[row * D + c] * k[(row / N * N + j) * D + c];
            sum += exp(s / sqrt((double)D));
        }
        e = fabs(log(sum) - lse[row]);
        if (!(e <= worst)) worst = e;
    }
    return worst;
}

/* Checks that a call with a null stream waits for its work even if it fails: the third launch, the attention, fails and
   leaves the present keys in flight. */
static void a_call_that_fails_waits(elsa_engine engine) {
    call c = make(engine), d;
    tensors t = upload_all();
    float present[COUNT];
    const address present_k = upload(out, sizeof out), present_v = upload(out, sizeof out);
    end(&c);
    c.problem.has_present = 1;
    c.problem.present_k = c.problem.present_v = c.problem.k;
    OK(elsa_plan_create(engine, &c.problem, NULL, &c.plan));
    OK(elsa_workspace_create(c.plan, &c.room));
    d = on(&c, &t);
    d.to.present_k.data = (void *)(size_t)present_k;
    d.to.present_v.data = (void *)(size_t)present_v;
    d.to.present_k.bytes = d.to.present_v.bytes = sizeof out;
    CHECK(run(&d, NULL, NULL) == ELSA_STATUS_DEVICE);
    CHECK(strstr(elsa_last_error(), "cuLaunchKernel") != NULL);
    CHECK(cuMemcpyDtoH(present, present_k, sizeof present) == 0);
    CHECK(memcmp(present, k, sizeof present) == 0);
    CHECK(!(download(&t) < 1e-5));
    OK(run(&d, NULL, NULL));
    CHECK(cuMemcpyDtoH(present, present_v, sizeof present) == 0);
    CHECK(memcmp(present, v, sizeof present) == 0);
    CHECK(download(&t) < 1e-5);
    free_all(&t);
    CHECK(cuMemFree(present_k) == 0 && cuMemFree(present_v) == 0);
    end(&d);
}

static void streams(elsa_engine engine) {
    call c = make(engine);
    void *stream = NULL, *later = NULL;
    elsa_report report;
    tensors t[3];
    call d[3];
    int i;
    elsa_report_init(&report);
    for (i = 0; i < 3; i++) {
        t[i] = upload_all();
        d[i] = on(&c, &t[i]);
    }
    /* Streams that do not wait for the default one. */
    CHECK(cuStreamCreate(&stream, 1) == 0 && cuStreamCreate(&later, 1) == 0);
    /* The caller's stream: enqueued, without waiting. */
    OK(run(&d[0], stream, &report));
    CHECK(report.backend == ELSA_BACKEND_CUDA && !report.fallback && report.workers > 0 && report.kernel[0] != 0);
    CHECK(!STANDIN || !(download(&t[0]) < 1e-5));
    CHECK(cuStreamSynchronize(stream) == 0);
    CHECK(download(&t[0]) < 1e-5);
    CHECK(lse_error(&t[0]) < 1e-5);
    /* No stream: complete when the call returns. */
    OK(run(&d[1], NULL, NULL));
    CHECK(download(&t[1]) < 1e-5);
    CHECK(lse_error(&t[1]) < 1e-5);
    /* The default stream. */
    OK(run(&d[2], (void *)1, NULL));
    CHECK(download(&t[2]) < 1e-5);
    free_all(&t[1]);
    /* A later call in the same workspace follows unfinished work, on the device and on the host. */
    t[1] = upload_all();
    d[1] = on(&c, &t[1]);
    OK(run(&d[1], stream, NULL));
    OK(run(&d[0], later, NULL));
    CHECK(cuStreamSynchronize(later) == 0);
    CHECK(download(&t[0]) < 1e-5 && download(&t[1]) < 1e-5);
    free_all(&t[2]);
    t[2] = upload_all();
    d[2] = on(&c, &t[2]);
    OK(run(&d[2], stream, NULL));
    OK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL));
    CHECK(error() < 1e-5);
    CHECK(download(&t[2]) < 1e-5);
    /* Destroying a workspace waits for enqueued work. */
    free_all(&t[1]);
    t[1] = upload_all();
    d[1] = on(&c, &t[1]);
    OK(run(&d[1], stream, NULL));
    end(&c);
    CHECK(download(&t[1]) < 1e-5);
    for (i = 0; i < 3; i++) free_all(&t[i]);
    CHECK(cuStreamDestroy(stream) == 0 && cuStreamDestroy(later) == 0);
}

static void refused(const call *c, void *stream, elsa_status status, const char *part) {
    CHECK(run(c, stream, NULL) == status);
    CHECK(strstr(elsa_last_error(), part) != NULL);
}

static void refusals(elsa_engine engine) {
    const elsa_status argument = ELSA_STATUS_ARGUMENT;
    call c = make(engine), d, bad, other;
    tensors t = upload_all();
    elsa_engine cpu;
    elsa_engine_options options;
    void *foreign = NULL, *popped = NULL, *stream = NULL;
    address memory = 0, freed = 0, brief = upload(q, sizeof q / 2);
    d = on(&c, &t);
    CHECK(cuMemAlloc(&freed, 16 << 20) == 0 && cuMemFree(freed) == 0);

    /* Pointers. */
    bad = d;
    bad.in.q.data = NULL;
    refused(&bad, NULL, argument, "q: null");
    bad.in.q.data = q;
    refused(&bad, NULL, argument, "q: address");
    bad.in.q.data = (const void *)(size_t)freed;
    refused(&bad, NULL, argument, "q: address");
    bad.in.q.data = (const void *)(size_t)(t.q + 2);
    refused(&bad, NULL, argument, "q: address");
    /* Fewer bytes exist than stated; an output that follows then counts as overlapping q. */
    bad.in.q.data = (const void *)(size_t)brief;
    CHECK(run(&bad, NULL, NULL) == argument);
    CHECK(strstr(elsa_last_error(), "q: ") == elsa_last_error() || strstr(elsa_last_error(), " overlap q at ") != NULL);
    bad.in.q.data = (const void *)(size_t)(t.q + 4);
    CHECK(run(&bad, NULL, NULL) == argument);
    CHECK(strstr(elsa_last_error(), "q: ") == elsa_last_error() || strstr(elsa_last_error(), " overlap q at ") != NULL);
    bad = d;
    bad.in.k.bytes -= 4;
    refused(&bad, NULL, argument, "k: ");
    bad = d;
    bad.to.out.data = out;
    refused(&bad, NULL, argument, "out: address");
    bad = d;
    bad.to.lse.data = (void *)(size_t)freed;
    refused(&bad, NULL, argument, "lse: address");
    bad = d;
    bad.to.out.data = (void *)(size_t)t.v;
    refused(&bad, NULL, argument, "overlap");
    bad = d;
    bad.in.mask = bad.in.q;
    refused(&bad, NULL, argument, "mask");
    CHECK(elsa_run_device(c.plan, c.room, NULL, &d.to, NULL, NULL) == argument);
    CHECK(elsa_run_device(c.plan, c.room, &d.in, NULL, NULL, NULL) == argument);

    /* Another context: its memory and its stream. */
    CHECK(cuCtxCreate(&foreign, 0, 0) == 0);
    memory = upload(q, sizeof q);
    CHECK(cuStreamCreate(&stream, 0) == 0);
    bad = d;
    bad.in.q.data = (const void *)(size_t)memory;
    refused(&bad, NULL, argument, "q: address");
    refused(&d, stream, argument, "stream: ");
    CHECK(cuStreamDestroy(stream) == 0 && cuMemFree(memory) == 0);
    CHECK(cuCtxPopCurrent(&popped) == 0 && popped == foreign && cuCtxDestroy(foreign) == 0);

    /* A plan and a workspace of the CPU, and a missing device. */
    elsa_engine_options_init(&options);
    options.backend = ELSA_BACKEND_SCALAR;
    OK(elsa_engine_create(&options, &cpu));
    other = make(cpu);
    bad = d;
    bad.plan = other.plan;
    refused(&bad, NULL, ELSA_STATUS_UNSUPPORTED, "backend: scalar");
    bad = d;
    bad.room = other.room;
    refused(&bad, NULL, argument, "workspace: ");
    end(&other);
    refused(&bad, NULL, ELSA_STATUS_HANDLE, "workspace");
    OK(elsa_engine_destroy(cpu));
    options.backend = ELSA_BACKEND_CUDA;
    options.fallback = ELSA_FALLBACK_FAIL;
    options.cuda_device = 7;
    CHECK(elsa_engine_create(&options, &cpu) == argument);
    CHECK(strstr(elsa_last_error(), "device: 7") != NULL);

    /* None of these has written anything, and the call still works. */
    CHECK(!(download(&t) < 1e-5));
    OK(run(&d, NULL, NULL));
    CHECK(download(&t) < 1e-5);
    free_all(&t);
    CHECK(cuMemFree(brief) == 0);
    end(&c);
}

/* Makes the queries on the device unknown, enqueues their copy in the stream `camera`, and records `taken` after it. */
static void camera_takes(const tensors *t, void *camera, void *taken) {
    memset(out, 0xff, sizeof out);
    CHECK(cuMemcpyHtoD(t->q, out, sizeof out) == 0 && cuMemcpyHtoD(t->out, out, sizeof out) == 0);
    CHECK(cuMemcpyHtoDAsync(t->q, q, sizeof q, camera) == 0 && cuEventRecord(taken, camera) == 0);
}

/* Checks that the work waits for an event of another stream or another context, and that an event recorded after the
   work lets another stream wait for it. Only elsa_run_device accepts events. */
static void events(elsa_engine engine) {
    call c = make(engine), d, bad;
    tensors t = upload_all();
    elsa_bound bound = {77};
    void *camera = NULL, *stream = NULL, *next = NULL, *taken = NULL, *done = NULL;
    void *foreign = NULL, *popped = NULL, *elsewhere = NULL, *other = NULL;
    d = on(&c, &t);
    /* Streams that do not wait for the default one, and events without times. */
    CHECK(cuStreamCreate(&camera, 1) == 0 && cuStreamCreate(&stream, 1) == 0 && cuStreamCreate(&next, 1) == 0);
    CHECK(cuEventCreate(&taken, 2) == 0 && cuEventCreate(&done, 2) == 0);

    /* Events that have not been recorded count as done. */
    d.in.ready_event = taken;
    OK(run(&d, NULL, NULL));
    CHECK(download(&t) < 1e-5);

    /* No host waits until the end. */
    camera_takes(&t, camera, taken);
    d.to.done_event = done;
    OK(run(&d, stream, NULL));
    CHECK(!STANDIN || !(download(&t) < 1e-5));
    CHECK(cuStreamWaitEvent(next, done, 0) == 0 && cuStreamSynchronize(next) == 0);
    CHECK(download(&t) < 1e-5);

    /* The call's own stream waits, too. */
    camera_takes(&t, camera, taken);
    OK(run(&d, NULL, NULL));
    CHECK(download(&t) < 1e-5);

    /* Another context: its event can be waited for, but not recorded. */
    CHECK(cuCtxCreate(&foreign, 0, 0) == 0);
    CHECK(cuStreamCreate(&elsewhere, 1) == 0 && cuEventCreate(&other, 2) == 0 && cuEventRecord(other, elsewhere) == 0);
    CHECK(cuCtxPopCurrent(&popped) == 0 && popped == foreign);
    d.in.ready_event = other;
    memset(out, 0xff, sizeof out);
    CHECK(cuMemcpyHtoD(t.out, out, sizeof out) == 0);
    OK(run(&d, NULL, NULL));
    CHECK(download(&t) < 1e-5);
    d.to.done_event = other;
    CHECK(run(&d, NULL, NULL) == ELSA_STATUS_DEVICE);
    CHECK(strstr(elsa_last_error(), "cuEventRecord") != NULL);
    CHECK(cuCtxPushCurrent(foreign) == 0 && cuEventDestroy(other) == 0 && cuStreamDestroy(elsewhere) == 0);
    CHECK(cuCtxPopCurrent(&popped) == 0 && cuCtxDestroy(foreign) == 0);

    /* Calls on host memory. */
    bad = c;
    bad.in.ready_event = taken;
    CHECK(elsa_run(bad.plan, bad.room, &bad.in, &bad.to, NULL) == ELSA_STATUS_ARGUMENT);
    CHECK(strstr(elsa_last_error(), "ready_event: given; allowed: null") != NULL);
    bad.in.ready_event = NULL;
    bad.to.done_event = done;
    CHECK(elsa_bind(bad.plan, bad.room, &bad.in, &bad.to, &bound) == ELSA_STATUS_ARGUMENT && bound.id == 77);
    CHECK(strstr(elsa_last_error(), "done_event: given; allowed: null") != NULL);

    CHECK(cuEventDestroy(taken) == 0 && cuEventDestroy(done) == 0);
    CHECK(cuStreamDestroy(camera) == 0 && cuStreamDestroy(stream) == 0 && cuStreamDestroy(next) == 0);
    free_all(&t);
    end(&c);
}

/* Runs a call on tensors in `memory`, which both the host and the device can use at this address, as a call on device
   tensors and as one on host tensors. Returns the bytes that the latter copied. */
static size_t on_both_sides(elsa_engine engine, float *memory) {
    call c = make(engine);
    float *const answer = memory + 3 * COUNT;
    elsa_report report;
    elsa_report_init(&report);
    memcpy(memory, q, sizeof q);
    memcpy(memory + COUNT, k, sizeof k);
    memcpy(memory + 2 * COUNT, v, sizeof v);
    c.in.q.data = memory;
    c.in.k.data = memory + COUNT;
    c.in.v.data = memory + 2 * COUNT;
    c.to.out.data = answer;
    memset(answer, 0xff, sizeof out);
    OK(run(&c, NULL, &report));
    CHECK(report.copied_bytes == 0);
    memcpy(out, answer, sizeof out);
    CHECK(error() < 1e-5);
    memset(answer, 0xff, sizeof out);
    OK(elsa_run(c.plan, c.room, &c.in, &c.to, &report));
    CHECK(report.backend == ELSA_BACKEND_CUDA && !report.fallback);
    memcpy(out, answer, sizeof out);
    CHECK(error() < 1e-5);
    end(&c);
    return report.copied_bytes;
}

/* Checks memory that the program has page-locked itself: an integrated device uses it in place even for host tensors.
   Also checks managed memory, which the stand-in does not have. */
static void shared_memory(elsa_engine engine) {
    elsa_engine_info info;
    address managed = 0;
    void *locked = NULL;
    elsa_engine_info_init(&info);
    OK(elsa_engine_describe(engine, &info));
    CHECK(cuMemHostAlloc(&locked, 4 * sizeof out, 3) == 0);
    CHECK(on_both_sides(engine, (float *)locked) == (info.integrated ? 0 : 4 * sizeof out));
    CHECK(cuMemFreeHost(locked) == 0);
    CHECK((cuMemAllocManaged(&managed, 4 * sizeof out, 1) != 0) == STANDIN);
    if (managed != 0) {
        on_both_sides(engine, (float *)(size_t)managed);
        CHECK(cuMemFree(managed) == 0);
    }
}

/* Bytes of a workspace in the caller's memory. */
static elsa_status made(const call *c, address memory, size_t bytes, elsa_workspace *room) {
    return elsa_workspace_create_on_device(c->plan, (void *)(size_t)memory, bytes, room);
}

static void no_room(const call *c, address memory, size_t bytes, elsa_status status, const char *part) {
    elsa_workspace room = {77};
    CHECK(made(c, memory, bytes, &room) == status);
    CHECK(strstr(elsa_last_error(), status == ELSA_STATUS_ARGUMENT ? "memory: " : "workspace: ") != NULL);
    CHECK(strstr(elsa_last_error(), part) != NULL && room.id == 77);
}

/* Checks workspaces in the caller's memory: correct answers, with and without states, even with room for the latter
   only; and invalid memory. */
static void workspaces(elsa_engine engine) {
    const elsa_status argument = ELSA_STATUS_ARGUMENT;
    call c = make(engine), d, other;
    tensors t = upload_all();
    elsa_plan_info info;
    elsa_report report;
    elsa_engine cpu;
    elsa_engine_options options;
    elsa_workspace own = c.room;
    address memory = 0, freed = 0, states[3];
    size_t i;
    float lse[H * N], m[H * N], s[H * N];
    elsa_plan_info_init(&info);
    elsa_report_init(&report);
    OK(elsa_plan_describe(c.plan, &info));
    CHECK(info.state_workspace_bytes > info.workspace_bytes);
    /* Allocated first, so that it cannot get the address that is freed next. */
    CHECK(cuMemAlloc(&memory, info.state_workspace_bytes) == 0);
    CHECK(cuMemAlloc(&freed, 16 << 20) == 0 && cuMemFree(freed) == 0);

    no_room(&c, 0, info.state_workspace_bytes, argument, "null");
    no_room(&c, memory, (size_t)-1, argument, "address space");
    no_room(&c, memory, (size_t)-1 / 2, argument, "allocation");
    no_room(&c, memory, info.state_workspace_bytes + 1, argument, "allocation");
    no_room(&c, memory + 4, 256, argument, "multiple of 256");
    no_room(&c, freed, info.state_workspace_bytes, argument, "no memory of the plan's device");
    no_room(&c, ((size_t)&info + 255) / 256 * 256, 256, argument, "no memory of the plan's device");
    CHECK(elsa_workspace_create_on_device(c.plan, NULL, 0, NULL) == argument);

    OK(made(&c, memory, info.state_workspace_bytes, &c.room));
    d = on(&c, &t);
    for (i = 0; i < 3; i++) states[i] = upload(out, i < 2 ? LSE : sizeof out);
    d.to.state_m.data = (void *)(size_t)states[0];
    d.to.state_s.data = (void *)(size_t)states[1];
    d.to.state_w.data = (void *)(size_t)states[2];
    d.to.state_m.bytes = d.to.state_s.bytes = LSE;
    d.to.state_w.bytes = sizeof out;
    OK(run(&d, NULL, &report));
    CHECK(report.backend == ELSA_BACKEND_CUDA && report.copied_bytes == 0);
    CHECK(download(&t) < 1e-5 && lse_error(&t) < 1e-5);
    CHECK(cuMemcpyDtoH(lse, t.lse, LSE) == 0 && cuMemcpyDtoH(m, states[0], LSE) == 0);
    CHECK(cuMemcpyDtoH(s, states[1], LSE) == 0);
    for (i = 0; i < H * N; i++) CHECK(fabs(m[i] + log((double)s[i]) - lse[i]) < 1e-5);
    OK(elsa_plan_warm(c.plan, c.room));
    /* Host tensors work too; they are copied to the library's memory. */
    memset(out, 0xff, sizeof out);
    OK(elsa_run(c.plan, c.room, &c.in, &c.to, &report));
    CHECK(error() < 1e-5 && report.copied_bytes == 4 * sizeof out);
    OK(elsa_workspace_destroy(c.room));

    /* Room for runs without states: none here. */
    OK(made(&c, 0, 0, &c.room));
    d.room = c.room;
    refused(&d, NULL, argument, "where states are given");
    OK(elsa_plan_warm(c.plan, c.room));
    memset(&d.to.state_m, 0, sizeof d.to.state_m);
    memset(&d.to.state_s, 0, sizeof d.to.state_s);
    memset(&d.to.state_w, 0, sizeof d.to.state_w);
    OK(run(&d, NULL, NULL));
    CHECK(download(&t) < 1e-5);
    OK(elsa_workspace_destroy(c.room));

    /* A plan of the CPU. */
    elsa_engine_options_init(&options);
    options.backend = ELSA_BACKEND_SCALAR;
    OK(elsa_engine_create(&options, &cpu));
    other = make(cpu);
    no_room(&other, memory, info.state_workspace_bytes, ELSA_STATUS_UNSUPPORTED, "scalar");
    CHECK(elsa_plan_warm(c.plan, other.room) == argument);
    OK(elsa_plan_warm(other.plan, own));
    end(&other);
    CHECK(elsa_plan_warm(c.plan, other.room) == ELSA_STATUS_HANDLE);
    OK(elsa_engine_destroy(cpu));
    c.room = own;
    end(&c);
    for (i = 0; i < 3; i++) CHECK(cuMemFree(states[i]) == 0);
    free_all(&t);
    CHECK(cuMemFree(memory) == 0);
}

/* Runs sums of 64 products of 40,000: they are beyond the range of f16 and within that of f32. All keys have the same
   score, and all values are 1. */
static void half_scores(elsa_engine engine) {
    enum { QUERIES = 64, KEYS = 128, WIDTH = 64 };
    static uint16_t large[KEYS * WIDTH], ones[KEYS * WIDTH], y[QUERIES * WIDTH];
    size_t i;
    int half;
    for (i = 0; i < KEYS * WIDTH; i++) {
        /* 200 and 1. */
        large[i] = 0x5a40;
        ones[i] = 0x3c00;
    }
    for (half = 0; half < 2; half++) {
        elsa_problem problem;
        elsa_plan_options how;
        elsa_plan_info info;
        elsa_inputs in;
        elsa_outputs to;
        elsa_plan plan;
        elsa_workspace room;
        elsa_problem_init(&problem);
        elsa_plan_options_init(&how);
        elsa_plan_info_init(&info);
        elsa_inputs_init(&in);
        elsa_outputs_init(&to);
        problem.dtype = ELSA_DTYPE_F16;
        OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, 1, QUERIES, WIDTH, &problem.q));
        OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, 1, KEYS, WIDTH, &problem.k));
        problem.v = problem.k;
        problem.out = problem.q;
        how.half_scores = (uint32_t)half;
        OK(elsa_plan_create(engine, &problem, &how, &plan));
        OK(elsa_plan_describe(plan, &info));
        CHECK((strstr(info.kernel, "half2") != NULL) == half);
        OK(elsa_workspace_create(plan, &room));
        in.q = input(large, sizeof y);
        in.k = input(large, sizeof large);
        in.v = input(ones, sizeof ones);
        to.out = output(y, sizeof y);
        memset(y, 0, sizeof y);
        OK(elsa_run(plan, room, &in, &to, NULL));
        for (i = 0; i < QUERIES * WIDTH; i++) CHECK(half ? (y[i] & 0x7fff) > 0x7c00 : y[i] == 0x3c00);
        OK(elsa_workspace_destroy(room));
        OK(elsa_plan_destroy(plan));
    }
}

/* True if a row is the first value. */
static int is_first(const float *row) {
    size_t c;
    for (c = 0; c < D; c++)
        if (!(fabsf(row[c] - v[c]) < 1e-6f)) return 0;
    return 1;
}

/* Repeats calls in a workspace that trusts addresses: the second call with equal structs is not checked again. It reads the
   current elements and lists, and belongs to its own plan. */
static void repeated_calls(elsa_engine engine) {
    const elsa_status argument = ELSA_STATUS_ARGUMENT;
    const tensors t = upload_all();
    const address other = upload(out, sizeof out), queries = upload(q, sizeof q);
    const address wrong[3] = {queries, other + 2, 0};
    void *const stream = (void *)(size_t)1;
    int64_t lengths[1] = {N};
    call c = make(engine), d = on(&c, &t);
    elsa_plan plain = c.plan;
    float all[COUNT], some[COUNT];
    int i, n;
    OK(elsa_workspace_trust(c.room, ELSA_TRUST_ADDRESSES | ELSA_TRUST_STREAMS));
    for (i = 0; i < 4; i++) {
        fill(k, 10 + (unsigned)i);
        CHECK(cuMemcpyHtoD(t.k, k, sizeof k) == 0);
        OK(run(&d, stream, NULL));
        CHECK(download(&t) < 1e-5);
        d.to.out.data = (void *)(size_t)other;
        OK(run(&d, stream, NULL));
        CHECK(cuMemcpyDtoH(out, other, sizeof out) == 0 && error() < 1e-5);
        d.in.q.data = (void *)(size_t)queries;
        CHECK(cuMemcpyHtoD(other, k, sizeof out) == 0);
        OK(run(&d, stream, NULL));
        CHECK(cuMemcpyDtoH(out, other, sizeof out) == 0 && error() < 1e-5);
        for (n = 0; n < 3; n++) { /* no list gets these addresses */
            d.to.out.data = (void *)(size_t)wrong[n];
            CHECK(run(&d, stream, NULL) == argument);
        }
        d.to.out.data = (void *)(size_t)t.out;
        d.in.q.data = (void *)(size_t)t.q;
    }
    memcpy(all, out, sizeof out);
    c.problem.causal = ELSA_CAUSAL_TOP_LEFT;
    OK(elsa_plan_create(engine, &c.problem, NULL, &d.plan));
    for (i = 0; i < 2; i++) {
        OK(run(&d, stream, NULL));
        CHECK(cuMemcpyDtoH(some, t.out, sizeof some) == 0);
        CHECK(is_first(some) && !is_first(all) && memcmp(some, all, sizeof all) != 0);
    }
    OK(elsa_plan_destroy(d.plan));
    OK(elsa_workspace_destroy(c.room));
    c.problem.causal = 0;
    c.problem.has_key_lengths = 1;
    OK(elsa_plan_create(engine, &c.problem, NULL, &d.plan));
    OK(elsa_workspace_create(d.plan, &d.room));
    OK(elsa_workspace_trust(d.room, ELSA_TRUST_ADDRESSES | ELSA_TRUST_STREAMS));
    d.in.key_lengths.data = lengths;
    d.in.key_lengths.count = 1;
    for (i = 0; i < 4; i++) {
        lengths[0] = i % 2 ? 1 : N;
        OK(run(&d, stream, NULL));
        CHECK(cuMemcpyDtoH(some, t.out, sizeof some) == 0);
        CHECK(is_first(some + 5 * D) == i % 2);
        CHECK(i % 2 || memcmp(some, all, sizeof all) == 0);
        lengths[0] = N + 1;
        CHECK(run(&d, stream, NULL) == argument);
    }
    OK(elsa_plan_destroy(plain));
    end(&d);
    free_all(&t);
    CHECK(cuMemFree(other) == 0 && cuMemFree(queries) == 0);
}

int main(void) {
    elsa_engine engine;
    elsa_engine_options options;
    void *context = NULL, *popped = NULL;
    /* Read at the first call of the driver. */
    CHECK(setenv("ELSA_STANDIN_FAIL", "cuLaunchKernel:3:1", 1) == 0);
    open_driver();
    fill_all();
    elsa_engine_options_init(&options);
    options.backend = ELSA_BACKEND_CUDA;
    options.fallback = ELSA_FALLBACK_FAIL;
    OK(elsa_engine_create(&options, &engine));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxPushCurrent(context) == 0);
    if (STANDIN) a_call_that_fails_waits(engine);
    streams(engine);
    events(engine);
    shared_memory(engine);
    refusals(engine);
    workspaces(engine);
    repeated_calls(engine);
    half_scores(engine);
    CHECK(cuCtxPopCurrent(&popped) == 0 && cuDevicePrimaryCtxRelease(0) == 0);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
