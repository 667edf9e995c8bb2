/* Stack usage of the library: CPU calls with only the stack that elsa.h states, ELSA_STACK_BYTES, above a protected page. With an
   argument it prints the stack used. */
#define _GNU_SOURCE
#define H 2
#define N 600
#define D 16
#include "common.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

static float state_m[2][H * N], state_s[2][H * N], state_w[2][COUNT], lse[H * N];
static float past[2][COUNT], present[2][2 * COUNT];
static unsigned char attended[N * 2 * N];
static int64_t lengths[1] = {N - 3};

typedef struct {
    elsa_dtype dtype;
    elsa_causal causal;
    elsa_method method;
    elsa_layout layout;
    size_t threads, heads, queries, keys, dim;
    int mask, past, lengths, states, softcap;
    elsa_schedule schedule;
} kind;

static const kind kinds[] = {
    {ELSA_DTYPE_F32, 0, ELSA_METHOD_ELSA, ELSA_LAYOUT_BHND, 1, H, N, N, D, 0, 0, 0, 0, 0, ELSA_SCHEDULE_EXACT},
    {ELSA_DTYPE_F32, 0, ELSA_METHOD_ELSA, ELSA_LAYOUT_BHND, 2, H, N, N, D, 0, 0, 0, 1, 0, ELSA_SCHEDULE_EXACT},
    {ELSA_DTYPE_F32, 0, ELSA_METHOD_ELSA, ELSA_LAYOUT_BHND, 1, H, 1, N, D, 0, 0, 1, 0, 0, ELSA_SCHEDULE_EXACT},
    {ELSA_DTYPE_F16, ELSA_CAUSAL_TOP_LEFT, ELSA_METHOD_ELSA, ELSA_LAYOUT_BNHD, 2, H, N, N, D, 0, 0, 0, 0, 1, ELSA_SCHEDULE_EXACT},
    {ELSA_DTYPE_BF16, 0, ELSA_METHOD_ELSA, ELSA_LAYOUT_BNHD, 1, H, 1, N, D, 0, 0, 0, 0, 0, ELSA_SCHEDULE_EXACT},
    {ELSA_DTYPE_F32, 0, ELSA_METHOD_ELSA, ELSA_LAYOUT_BHND, 2, H, N, N, D - 3, 1, 0, 1, 1, 0, ELSA_SCHEDULE_EXACT},
    {ELSA_DTYPE_F32, ELSA_CAUSAL_BOTTOM_RIGHT, ELSA_METHOD_ELSA, ELSA_LAYOUT_BHND, 2, H, N, N, D, 0, 1, 0, 1, 0, ELSA_SCHEDULE_EXACT},
    {ELSA_DTYPE_F32, 0, ELSA_METHOD_MATH, ELSA_LAYOUT_BHND, 2, H, N, N, D, 0, 0, 0, 1, 0, ELSA_SCHEDULE_EXACT},
    {ELSA_DTYPE_F32, 0, ELSA_METHOD_ELSA, ELSA_LAYOUT_BHND, 2, H, N, N, D, 0, 0, 0, 1, 0, ELSA_SCHEDULE_VSA}};
#define KINDS (sizeof kinds / sizeof *kinds)

/* Objects of one kind of call. Static, so that little of the measured stack is theirs. */
static const kind *now;
static elsa_backend backend;
static elsa_engine engine;
static elsa_plan plan;
static elsa_workspace room;
static elsa_problem problem;
static elsa_inputs in;
static elsa_outputs to;

static void put(elsa_view *view, size_t heads, size_t tokens) {
    OK(elsa_view_init(now->layout, 1, heads, tokens, now->dim, view));
}

static void create_engine(void) {
    static elsa_engine_options options;
    static elsa_engine_info info;
    elsa_engine_options_init(&options);
    options.threads = now->threads;
    options.backend = backend;
    OK(elsa_engine_create(&options, &engine));
    elsa_engine_info_init(&info);
    OK(elsa_engine_describe(engine, &info));
    OK(elsa_engine_load_kernels(engine));
    options.threads = 1 << 20;
    CHECK(elsa_engine_create(&options, &engine) == ELSA_STATUS_ARGUMENT);
}

static void create_plan(void) {
    static elsa_plan_options options;
    static elsa_plan_info info;
    static elsa_certificate certificate;
    elsa_problem_init(&problem);
    elsa_plan_options_init(&options);
    options.method = now->method;
    options.schedule = now->schedule;
    options.certify = 1;
    problem.dtype = now->dtype;
    problem.causal = now->causal;
    problem.softcap = now->softcap ? 20.0f : 0.0f;
    put(&problem.q, now->heads, now->queries);
    put(&problem.k, now->heads, now->keys);
    problem.v = problem.k;
    problem.out = problem.q;
    problem.has_key_lengths = (uint32_t)now->lengths;
    if (now->past) {
        problem.has_past = problem.has_present = 1;
        put(&problem.past_k, now->heads, now->keys);
        put(&problem.present_k, now->heads, 2 * now->keys);
        problem.past_v = problem.past_k;
        problem.present_v = problem.present_k;
    }
    if (now->mask) {
        problem.mask.kind = ELSA_MASK_BOOL;
        problem.mask.rank = 2;
        problem.mask.dims[0] = now->queries;
        problem.mask.dims[1] = now->keys;
    }
    OK(elsa_plan_create(engine, &problem, &options, &plan));
    elsa_plan_info_init(&info);
    OK(elsa_plan_describe(plan, &info));
    elsa_certificate_init(&certificate);
    OK(elsa_plan_certificate(plan, ELSA_BACKEND_AUTO, &certificate));
    OK(elsa_workspace_create(plan, &room));
    problem.dtype = 99;
    CHECK(elsa_plan_create(engine, &problem, &options, &plan) == ELSA_STATUS_ARGUMENT);
}

static void run(void) {
    static elsa_report report;
    static elsa_bound bound;
    static elsa_certified certified;
    static double absolute[sizeof q / sizeof *q];
    elsa_inputs_init(&in);
    elsa_outputs_init(&to);
    in.q.data = q;
    in.k.data = k;
    in.v.data = v;
    in.q.bytes = in.k.bytes = in.v.bytes = sizeof q;
    to.out.data = out;
    to.out.bytes = sizeof out;
    if (now->past) {
        in.past_k.data = past[0];
        in.past_v.data = past[1];
        in.past_k.bytes = in.past_v.bytes = sizeof past[0];
        to.present_k.data = present[0];
        to.present_v.data = present[1];
        to.present_k.bytes = to.present_v.bytes = sizeof present[0];
    }
    if (now->mask) {
        in.mask.data = attended;
        in.mask.bytes = sizeof attended;
    }
    if (now->lengths) {
        in.key_lengths.data = lengths;
        in.key_lengths.count = 1;
    }
    if (now->states) {
        to.lse.data = lse;
        to.lse.bytes = now->heads * now->queries * sizeof(float);
        to.state_m.data = state_m[0];
        to.state_s.data = state_s[0];
        to.state_w.data = state_w[0];
        to.state_m.bytes = to.state_s.bytes = now->heads * now->queries * sizeof(float);
        to.state_w.bytes = to.state_m.bytes * now->dim;
    }
    elsa_report_init(&report);
    OK(elsa_run(plan, room, &in, &to, &report));
    CHECK(report.backend == backend);
    OK(elsa_bind(plan, room, &in, &to, &bound));
    OK(elsa_bound_run(bound, &report));
    OK(elsa_bound_destroy(bound));
    elsa_certified_init(&certified);
    OK(elsa_workspace_certified(room, &certified, absolute, now->dim));
    in.q.bytes = 1;
    CHECK(elsa_run(plan, room, &in, &to, &report) == ELSA_STATUS_ARGUMENT);
}

/* The only task of a division, and the sum of its shares. */
static void gradients_of_tasks(const elsa_gradients_inputs *read) {
    static elsa_task_options how;
    static elsa_gradients_task made;
    static elsa_gradients_merge merge;
    static elsa_gradients_outputs written;
    static elsa_gradients_shares shares;
    static float d_q[COUNT], d_k[COUNT], d_v[COUNT];
    const size_t bytes = now->heads * now->dim * sizeof *d_q;
    elsa_task_options_init(&how);
    elsa_gradients_outputs_init(&written);
    elsa_gradients_shares_init(&shares);
    how.chunks[0] = 1;
    written.d_q = output(d_q, now->queries * bytes);
    written.d_k = output(d_k, now->keys * bytes);
    written.d_v = output(d_v, now->keys * bytes);
    shares.d_q = input(d_q, now->queries * bytes);
    shares.d_k = input(d_k, now->keys * bytes);
    shares.d_v = input(d_v, now->keys * bytes);
    OK(elsa_gradients_task_create(engine, &problem, NULL, &how, &made));
    OK(elsa_gradients_task_run(made, read, &written, NULL));
    OK(elsa_gradients_merge_create(&problem, &how, &merge));
    OK(elsa_gradients_merge_add(merge, 0, &shares));
    OK(elsa_gradients_merge_finish(merge, &written));
    OK(elsa_gradients_merge_destroy(merge));
    OK(elsa_gradients_task_destroy(made));
}

/* The gradients of the kind, unless it has a past. */
static void gradients(void) {
    static elsa_gradients_inputs read;
    static elsa_gradients_outputs written;
    static elsa_plan made;
    static elsa_workspace scratch;
    static elsa_bound bound;
    static float d_q[COUNT], d_k[COUNT], d_v[COUNT];
    problem.dtype = now->dtype;
    if (now->past) {
        CHECK(elsa_gradients_plan_create(engine, &problem, NULL, &made) == ELSA_STATUS_ARGUMENT);
        return;
    }
    OK(elsa_gradients_plan_create(engine, &problem, NULL, &made));
    OK(elsa_workspace_create(made, &scratch));
    elsa_gradients_inputs_init(&read);
    elsa_gradients_outputs_init(&written);
    read.q = in.q;
    read.q.bytes = sizeof q;
    read.k = in.k;
    read.v = in.v;
    read.mask = in.mask;
    read.key_lengths = in.key_lengths;
    read.out = input(out, sizeof out);
    read.d_out = input(v, sizeof v);
    read.lse = input(lse, sizeof lse);
    written.d_q = output(d_q, sizeof d_q);
    written.d_k = output(d_k, sizeof d_k);
    written.d_v = output(d_v, sizeof d_v);
    OK(elsa_gradients_run(made, scratch, &read, &written, NULL));
    OK(elsa_gradients_bind(made, scratch, &read, &written, &bound));
    OK(elsa_bound_run(bound, NULL));
    OK(elsa_gradients_bound_set(bound, &read, &written));
    OK(elsa_bound_destroy(bound));
    OK(elsa_plan_warm(made, scratch));
    OK(elsa_workspace_destroy(scratch));
    OK(elsa_plan_destroy(made));
    gradients_of_tasks(&read);
}

/* A task of the kind, unless it has a past. */
static void task(void) {
    static elsa_task_options how;
    static elsa_states_out part;
    static elsa_task made;
    elsa_task_options_init(&how);
    how.chunks[0] = 7;
    how.number = 2;
    if (now->past) {
        CHECK(elsa_task_create(engine, &problem, NULL, &how, &made) == ELSA_STATUS_ARGUMENT);
        return;
    }
    OK(elsa_task_create(engine, &problem, NULL, &how, &made));
    in.q.bytes = sizeof q;
    part.m = state_m[0];
    part.s = state_s[0];
    part.w = state_w[0];
    OK(elsa_task_run(made, &in, &part, NULL));
    OK(elsa_task_destroy(made));
}

static int32_t zeros(void *user, const elsa_rows *rows, void *data, size_t bytes) {
    (void)user, (void)rows;
    memset(data, 0, bytes);
    return 0;
}

static int32_t nothing(void *user, const elsa_rows *rows, const void *data, size_t bytes) {
    (void)rows, (void)data, (void)bytes;
    return *(const int32_t *)user;
}

static void stream(void) {
    static elsa_stream_options options;
    static elsa_stream_info info;
    static elsa_stream_data data;
    static elsa_stream_report report;
    static elsa_stream made;
    static int32_t code;
    elsa_stream_options_init(&options);
    elsa_stream_data_init(&data);
    problem.dtype = now->dtype;
    options.outputs = ELSA_STREAM_OUT | ELSA_STREAM_LSE | ELSA_STREAM_STATES;
    CHECK(elsa_stream_create(engine, &problem, &options, &made) == ELSA_STATUS_MEMORY);
    options.host_budget = (size_t)256 << 20;
    options.eta = 0.1;
    OK(elsa_stream_create(engine, &problem, &options, &made));
    elsa_stream_info_init(&info);
    OK(elsa_stream_describe(made, &info));
    data.read = zeros;
    data.write = nothing;
    data.user = &code;
    if (now->lengths) {
        data.key_lengths.data = lengths;
        data.key_lengths.count = 1;
    }
    elsa_stream_report_init(&report);
    code = 0;
    OK(elsa_stream_run(made, &data, &report));
    CHECK(report.finished == info.units);
    code = 5;
    CHECK(elsa_stream_run(made, &data, &report) == ELSA_STATUS_CALLBACK && report.code == 5);
    OK(elsa_stream_destroy(made));
}

static void destroy(void) {
    OK(elsa_workspace_destroy(room));
    OK(elsa_plan_destroy(plan));
    OK(elsa_engine_destroy(engine));
}

/* Far more than any thread needs, so that its beginning does not matter. */
#define WHOLE ((size_t)1 << 20)
#define PAINT 0xa5
/* Sanitizers enlarge stack frames. */
#ifdef INJECT
#define LEFT (8 * (size_t)ELSA_STACK_BYTES)
#else
#define LEFT ((size_t)ELSA_STACK_BYTES)
#endif

static void (*next)(void);
static unsigned char *memory;
static size_t used;
static int measured;

/* Runs the step with only the stated bytes left: a protected page is below them. */
static void *step(void *unused) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char here;
    const size_t left = ((size_t)(&here - memory) - LEFT) / page * page;
    size_t at = left;
    (void)unused;
    CHECK(mprotect(memory + left - page, page, PROT_NONE) == 0);
    next();
    CHECK(mprotect(memory + left - page, page, PROT_READ | PROT_WRITE) == 0);
    if (measured) {
        while (memory[at] == PAINT) at++;
        used = (size_t)(&here - memory) - at;
    }
    return NULL;
}

static void on_little(void (*what)(void), size_t *most) {
    pthread_attr_t attributes;
    pthread_t thread;
    if (measured) memset(memory, PAINT, WHOLE);
    next = what;
    used = 0;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstack(&attributes, memory, WHOLE) == 0);
    CHECK(pthread_create(&thread, &attributes, step, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(pthread_attr_destroy(&attributes) == 0);
    if (used > *most) *most = used;
}

/* Checks that the same calls with the program's whole stack give the expected answer. */
static void with_plenty(void) {
    static const kind plain = {ELSA_DTYPE_F32, 0, ELSA_METHOD_ELSA, ELSA_LAYOUT_BHND, 1, H, N, N, D, 0, 0, 0, 0, 0, ELSA_SCHEDULE_EXACT};
    call c;
    now = &plain;
    create_engine();
    c = make(engine);
    memset(out, 0, sizeof out);
    OK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL));
    CHECK(error() < 1e-5);
    end(&c);
    OK(elsa_engine_destroy(engine));
}

int main(int count, char **arguments) {
    size_t engines = 0, plans = 0, runs = 0, passes = 0, tasks = 0, streams = 0, ends = 0;
    size_t i;
    memory = mmap(NULL, WHOLE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    (void)arguments;
    measured = count > 1;
    fill_all();
    memset(attended, 1, sizeof attended);
    for (backend = ELSA_BACKEND_SCALAR; backend < ELSA_BACKEND_CUDA; backend++) {
        uint32_t is_present = 0;
        OK(elsa_backend_present(backend, &is_present));
        if (!is_present) continue;
        with_plenty();
        for (i = 0; i < KINDS; i++) {
            now = &kinds[i];
            on_little(create_engine, &engines);
            on_little(create_plan, &plans);
            on_little(run, &runs);
            on_little(gradients, &passes);
            on_little(task, &tasks);
            on_little(stream, &streams);
            on_little(destroy, &ends);
        }
    }
    CHECK(munmap(memory, WHOLE) == 0);
    if (measured)
        printf("bytes of stack: engines %zu, plans %zu, runs %zu, gradients %zu, tasks %zu, streams %zu, ends %zu\n", engines, plans,
               runs, passes, tasks, streams, ends);
    printf("%d checks\n", checks);
    return 0;
}
