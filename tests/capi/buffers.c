/* Buffers, warmed-up plans, and copies of runs: on the CPU, and on a GPU if one is present, NVIDIA's or the stand-in.
   ELSA_STANDIN_FAIL can make the stand-in refuse memory or lose its context at the first launch. */
#define _POSIX_C_SOURCE 200809L
#include "common.h"

#include <sys/wait.h>
#include <unistd.h>

/* Bytes before, between and after the tensors of a buffer: not a multiple of a float4. */
#define GAP 20
#define STATES (2 * H * N * sizeof(float) + sizeof out)
#define BYTES (4 * sizeof out + STATES + 8 * GAP)

static elsa_engine engine_of(elsa_backend backend, elsa_fallback fallback) {
    elsa_engine engine;
    elsa_engine_options options;
    elsa_engine_options_init(&options);
    options.backend = backend;
    options.fallback = fallback;
    options.threads = 2;
    OK(elsa_engine_create(&options, &engine));
    return engine;
}

static elsa_buffer_info describe(elsa_buffer buffer) {
    elsa_buffer_info info;
    elsa_buffer_info_init(&info);
    OK(elsa_buffer_describe(buffer, &info));
    CHECK(info.data != NULL && (size_t)info.data % 64 == 0);
    CHECK(!info.in_place || info.page_locked);
    CHECK(!info.page_locked == !info.device_data);
    return info;
}

static elsa_buffer buffer_of(elsa_engine engine, elsa_buffer_info *info) {
    elsa_buffer buffer;
    size_t i = 0;
    OK(elsa_buffer_create(engine, BYTES, &buffer));
    *info = describe(buffer);
    CHECK(info->bytes == BYTES);
    while (i < BYTES && ((unsigned char *)info->data)[i] == 0) i++;
    CHECK(i == BYTES);
    return buffer;
}

/* Returns the same call with its tensors, and states if requested, at an address, which may be the device's. */
static call at(const call *c, void *base, int states) {
    call d = *c;
    char *next = (char *)base + GAP;
    const void **in[3];
    elsa_output *to[4];
    size_t i;
    in[0] = &d.in.q.data;
    in[1] = &d.in.k.data;
    in[2] = &d.in.v.data;
    to[0] = &d.to.out;
    to[1] = &d.to.state_m;
    to[2] = &d.to.state_s;
    to[3] = &d.to.state_w;
    for (i = 0; i < 3; i++, next += sizeof out + GAP) *in[i] = next;
    for (i = 0; i < (states ? 4u : 1u); i++) {
        to[i]->data = next;
        to[i]->bytes = i % 3 ? H * N * sizeof(float) : sizeof out;
        next += to[i]->bytes + GAP;
    }
    return d;
}

/* Copies the inputs into a buffer and fills the rest with wrong values. */
static void put(const elsa_buffer_info *info) {
    char *base = info->data;
    memset(base, 0xff, BYTES);
    memcpy(base + GAP, q, sizeof q);
    memcpy(base + 2 * GAP + sizeof q, k, sizeof k);
    memcpy(base + 3 * GAP + 2 * sizeof q, v, sizeof v);
}

static double got(const elsa_buffer_info *info) {
    memcpy(out, (char *)info->data + 4 * GAP + 3 * sizeof out, sizeof out);
    return error();
}

/* Calls of a function that the stand-in has counted. */
static long calls(const char *log, const char *name) {
    char line[128];
    long calls = 0;
    FILE *file = fopen(log, "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL)
        calls += strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ' ';
    fclose(file);
    return calls;
}

/* Counts calls that allocate or load. */
static long lazy(const char *log) {
    return calls(log, "cuMemAlloc_v2") + calls(log, "cuMemHostAlloc") + calls(log, "cuModuleLoadDataEx") +
           calls(log, "cuEventCreate");
}

/* Checks the properties of every engine. */
static void anywhere(elsa_engine engine, int gpu) {
    const elsa_status argument = ELSA_STATUS_ARGUMENT;
    elsa_buffer buffer = {5}, other;
    elsa_buffer_info info;
    elsa_report report;
    elsa_bound bound;
    call c = make(engine), d;
    size_t all = 4 * sizeof out + STATES;
    elsa_report_init(&report);
    CHECK(elsa_buffer_create(engine, 0, &buffer) == argument && strstr(elsa_last_error(), "bytes: 0") != NULL);
    CHECK(elsa_buffer_create(engine, (size_t)-1, &buffer) == ELSA_STATUS_MEMORY);
    if (!gpu || STANDIN) CHECK(elsa_buffer_create(engine, (size_t)-1 / 2, &buffer) == ELSA_STATUS_MEMORY);
    CHECK(buffer.id == 5);
    CHECK(elsa_buffer_create(engine, 1, NULL) == argument);
    OK(elsa_engine_load_kernels(engine));

    buffer = buffer_of(engine, &info);
    CHECK(!info.page_locked == !gpu);
    OK(elsa_plan_warm(c.plan, c.room));
    put(&info);
    d = at(&c, info.data, 1);
    OK(elsa_run(d.plan, d.room, &d.in, &d.to, &report));
    CHECK(got(&info) < 1e-5);
    CHECK(report.copied_bytes == (gpu && !info.in_place ? all : 0));
    /* Tensors elsewhere are copied if a GPU computes. */
    memset(out, 0xff, sizeof out);
    OK(elsa_run(c.plan, c.room, &c.in, &c.to, &report));
    CHECK(error() < 1e-5 && report.copied_bytes == (gpu ? 4 * sizeof out : 0));

    /* A bound call keeps the buffer alive after its handle is destroyed. */
    put(&info);
    OK(elsa_bind(d.plan, d.room, &d.in, &d.to, &bound));
    OK(elsa_buffer_destroy(buffer));
    CHECK(elsa_buffer_destroy(buffer) == ELSA_STATUS_HANDLE);
    info.size = sizeof info;
    CHECK(elsa_buffer_describe(buffer, &info) == ELSA_STATUS_HANDLE);
    other = buffer_of(engine, &info);
    OK(elsa_buffer_destroy(other));
    OK(elsa_bound_run(bound, &report));
    CHECK(report.copied_bytes == (gpu && !info.in_place ? all : 0));
    memcpy(out, d.to.out.data, sizeof out);
    CHECK(error() < 1e-5);
    OK(elsa_bound_destroy(bound));
    end(&c);
}

/* Runs by device addresses, and with the objects of an enqueued run destroyed. */
static void on_the_device(elsa_engine engine) {
    elsa_buffer from, to;
    elsa_buffer_info in, result;
    elsa_report report;
    call c = make(engine), d, e;
    elsa_report_init(&report);
    from = buffer_of(engine, &in);
    to = buffer_of(engine, &result);
    put(&in);
    put(&result);
    d = at(&c, in.device_data, 0);
    e = at(&c, result.device_data, 0);
    OK(elsa_run_device(c.plan, c.room, &d.in, &e.to, NULL, &report));
    CHECK(got(&result) < 1e-5 && report.copied_bytes == 0 && report.backend == ELSA_BACKEND_CUDA);
    put(&result);
    OK(elsa_run_device(c.plan, c.room, &d.in, &e.to, (void *)1, &report));
    OK(elsa_buffer_destroy(from));
    CHECK(got(&result) < 1e-5);
    if (STANDIN) CHECK(elsa_run_device(c.plan, c.room, &d.in, &e.to, NULL, NULL) == ELSA_STATUS_ARGUMENT);
    OK(elsa_buffer_destroy(to));
    end(&c);
}

/* Checks the first run after a warm-up, with or without states, on the host or the device. */
static void warm(elsa_engine engine, const char *log) {
    elsa_buffer buffer;
    elsa_buffer_info info;
    int kind;
    buffer = buffer_of(engine, &info);
    for (kind = 0; kind < 6; kind++) {
        call c = make(engine), d = c;
        elsa_plan_info plan;
        elsa_buffer memory = {0};
        elsa_buffer_info room;
        long before;
        elsa_plan_info_init(&plan);
        OK(elsa_plan_describe(c.plan, &plan));
        if (kind >= 4) {
            /* Workspaces of the device use the caller's memory. */
            OK(elsa_buffer_create(engine, plan.state_workspace_bytes, &memory));
            room = describe(memory);
            OK(elsa_workspace_destroy(c.room));
            before = calls(log, "cuMemAlloc_v2");
            OK(elsa_workspace_create_on_device(c.plan, room.device_data, room.bytes, &c.room));
            put(&info);
            d = at(&c, info.device_data, kind % 2);
            OK(elsa_run_device(c.plan, c.room, &d.in, &d.to, NULL, NULL));
            CHECK(got(&info) < 1e-5);
            CHECK(calls(log, "cuMemAlloc_v2") == before);
        }
        OK(elsa_plan_warm(c.plan, c.room));
        before = lazy(log);
        put(&info);
        d = at(&c, kind < 2 ? info.data : info.device_data, kind % 2);
        if (kind < 2)
            OK(elsa_run(c.plan, c.room, &d.in, &d.to, NULL));
        else
            OK(elsa_run_device(c.plan, c.room, &d.in, &d.to, NULL, NULL));
        CHECK(got(&info) < 1e-5);
        CHECK(lazy(log) == before);
        end(&c);
        if (kind >= 4) OK(elsa_buffer_destroy(memory));
    }
    OK(elsa_buffer_destroy(buffer));
}

/* Loses the context in the first launch, and with it the memory of a workspace. */
static void lost(elsa_engine engine) {
    elsa_buffer buffer;
    elsa_buffer_info info;
    call c = make(engine), d;
    buffer = buffer_of(engine, &info);
    put(&info);
    OK(elsa_workspace_destroy(c.room));
    OK(elsa_workspace_create_on_device(c.plan, NULL, 0, &c.room));
    d = at(&c, info.device_data, 0);
    CHECK(elsa_run_device(c.plan, c.room, &d.in, &d.to, NULL, NULL) == ELSA_STATUS_DEVICE);
    CHECK(elsa_run_device(c.plan, c.room, &d.in, &d.to, NULL, NULL) == ELSA_STATUS_DEVICE);
    CHECK(strstr(elsa_last_error(), "lost with the context") != NULL);
    CHECK(elsa_plan_warm(c.plan, c.room) == ELSA_STATUS_DEVICE);
    CHECK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL) == ELSA_STATUS_DEVICE);
    OK(elsa_workspace_destroy(c.room));
    OK(elsa_workspace_create_on_device(c.plan, NULL, 0, &c.room));
    OK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL));
    CHECK(error() < 1e-5);
    /* Memory of the lost context stays readable, and its handle can be destroyed. */
    memcpy(out, info.data, sizeof out);
    OK(elsa_buffer_destroy(buffer));
    end(&c);
}

/* Destroys handles of the parent's buffers in a child of fork, which has no GPU: it works without one and does not
   affect the parent. */
static void in_a_child(elsa_engine engine) {
    elsa_buffer buffer, other;
    elsa_buffer_info info;
    pid_t child;
    int status = -1;
    buffer = buffer_of(engine, &info);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        elsa_engine cpu;
        CHECK(elsa_buffer_create(engine, 100, &other) == ELSA_STATUS_UNSUPPORTED);
        OK(elsa_buffer_destroy(buffer));
        CHECK(elsa_buffer_destroy(buffer) == ELSA_STATUS_HANDLE);
        cpu = engine_of(ELSA_BACKEND_CUDA, ELSA_FALLBACK_CPU);
        OK(elsa_buffer_create(cpu, 100, &other));
        CHECK(!describe(other).page_locked);
        OK(elsa_buffer_destroy(other));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    info = describe(buffer);
    CHECK(((char *)info.data)[BYTES - 1] == 0);
    OK(elsa_buffer_destroy(buffer));
}

/* Checks page-locked memory refused by the driver. */
static void refused(void) {
    elsa_engine strict = engine_of(ELSA_BACKEND_CUDA, ELSA_FALLBACK_FAIL);
    elsa_engine lenient = engine_of(ELSA_BACKEND_CUDA, ELSA_FALLBACK_CPU);
    elsa_buffer buffer = {5};
    elsa_buffer_info info;
    elsa_report report;
    call c = make(lenient), d;
    elsa_report_init(&report);
    CHECK(elsa_buffer_create(strict, BYTES, &buffer) == ELSA_STATUS_MEMORY && buffer.id == 5);
    CHECK(strstr(elsa_last_error(), "cuMemHostAlloc") != NULL);
    buffer = buffer_of(lenient, &info);
    CHECK(!info.page_locked && !info.in_place && info.device_data == NULL);
    put(&info);
    d = at(&c, info.data, 0);
    OK(elsa_run(d.plan, d.room, &d.in, &d.to, &report));
    CHECK(got(&info) < 1e-5 && report.backend == ELSA_BACKEND_CUDA && report.copied_bytes == 4 * sizeof out);
    OK(elsa_buffer_destroy(buffer));
    end(&c);
    OK(elsa_engine_destroy(strict));
    OK(elsa_engine_destroy(lenient));
}

int main(void) {
    const char *fault = getenv("ELSA_STANDIN_FAIL");
    char log[] = "/tmp/elsa-buffers-XXXXXX";
    int file = mkstemp(log);
    uint32_t gpu = 0;
    elsa_engine engine = engine_of(ELSA_BACKEND_SCALAR, ELSA_FALLBACK_FAIL);
    CHECK(file >= 0 && close(file) == 0);
    /* Read at the first call of the driver. */
    CHECK(setenv("ELSA_STANDIN_LOG", log, 1) == 0);
    fill_all();
    anywhere(engine, 0);
    OK(elsa_engine_destroy(engine));
    OK(elsa_backend_present(ELSA_BACKEND_CUDA, &gpu));
    if (fault != NULL && strncmp(fault, "cuMemHostAlloc", 14) == 0) {
        refused();
    } else if (gpu) {
        engine = engine_of(ELSA_BACKEND_CUDA, ELSA_FALLBACK_FAIL);
        if (fault != NULL && fault[0] != 0) lost(engine);
        anywhere(engine, 1);
        on_the_device(engine);
        warm(engine, log);
        in_a_child(engine);
        OK(elsa_engine_destroy(engine));
    } else {
        /* A GPU is requested and missing: ordinary memory. */
        engine = engine_of(ELSA_BACKEND_CUDA, ELSA_FALLBACK_CPU);
        anywhere(engine, 0);
        OK(elsa_engine_destroy(engine));
    }
    CHECK(unlink(log) == 0);
    printf("%d checks\n", checks);
    return 0;
}
