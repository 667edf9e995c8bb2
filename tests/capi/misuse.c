/* Misuse of every function: arguments that are null, misaligned, stale or of another kind. Each is a status with a
   message that names the argument, and nothing is written. elsa_last_error belongs to its thread. */
#define _POSIX_C_SOURCE 200809L
#include "common.h"

#include <pthread.h>

enum { FILL = 0xa5, ROOM = 2048 };

/* Memory for the output of a function, at a misaligned address and at an aligned one. It must keep its bytes. */
static union {
    double align;
    unsigned char bytes[ROOM];
} target;
#define GOOD ((void *)target.bytes)
#define ODD ((void *)(target.bytes + 1))

static void refused(int line, elsa_status status, elsa_status expected, const char *name) {
    size_t i;
    const int good = status == expected && strstr(elsa_last_error(), name) != NULL;
    checks++;
    if (!good) {
        fprintf(stderr, "%d: status %d, allowed: %d, naming %s; message: %s\n", line, (int)status, (int)expected, name,
                elsa_last_error());
        exit(1);
    }
    for (i = 0; i < ROOM; i++)
        if (target.bytes[i] != FILL) {
            fprintf(stderr, "%d: byte %d was written\n", line, (int)i);
            exit(1);
        }
    CHECK(strlen(elsa_status_text(status)) > 0);
}
#define ARGUMENT(call, name) refused(__LINE__, call, ELSA_STATUS_ARGUMENT, name)
#define HANDLE(call, name) refused(__LINE__, call, ELSA_STATUS_HANDLE, name)

/* Invalid handles: zero, one that never existed, a destroyed one. */
#define STALE(type, handle, call)                                                    \
    do {                                                                             \
        static const uint64_t never[] = {0, 1, (uint64_t)-1, (uint64_t)1 << 32};     \
        type handle;                                                                 \
        size_t at;                                                                   \
        for (at = 0; at < 4; at++) {                                                 \
            handle.id = never[at];                                                   \
            HANDLE(call, #handle);                                                   \
        }                                                                            \
        handle = old_##handle;                                                       \
        HANDLE(call, #handle);                                                       \
    } while (0)

static elsa_engine engine, old_engine;
static elsa_plan plan, old_plan;
static elsa_workspace workspace, old_workspace;
static elsa_bound old_bound;
static elsa_stream stream, old_stream;
static elsa_stream_data callbacks;
static call good;

/* Copies a struct to a misaligned address. */
static const void *odd(const void *from, size_t bytes) {
    static union {
        double align;
        unsigned char bytes[ROOM];
    } copy;
    memcpy(copy.bytes + 1, from, bytes);
    return copy.bytes + 1;
}

static void handles(void) {
    elsa_engine_info on;
    elsa_plan_info chosen;
    elsa_certificate known;
    elsa_certified certified;
    elsa_stream_info account;
    elsa_stream_info_init(&account);
    elsa_engine_info_init(&on);
    elsa_plan_info_init(&chosen);
    elsa_certificate_init(&known);
    elsa_certified_init(&certified);
    STALE(elsa_engine, engine, elsa_engine_describe(engine, &on));
    STALE(elsa_engine, engine, elsa_engine_load_kernels(engine));
    STALE(elsa_engine, engine, elsa_engine_cancel(engine));
    STALE(elsa_engine, engine, elsa_engine_destroy(engine));
    STALE(elsa_engine, engine, elsa_plan_create(engine, &good.problem, NULL, (elsa_plan *)GOOD));
    STALE(elsa_plan, plan, elsa_plan_describe(plan, &chosen));
    STALE(elsa_plan, plan, elsa_plan_certificate(plan, ELSA_BACKEND_AUTO, &known));
    STALE(elsa_plan, plan, elsa_plan_destroy(plan));
    STALE(elsa_plan, plan, elsa_workspace_create(plan, (elsa_workspace *)GOOD));
    STALE(elsa_plan, plan, elsa_workspace_create_in(plan, q, sizeof q, (elsa_workspace *)GOOD));
    STALE(elsa_plan, plan, elsa_run(plan, workspace, &good.in, &good.to, NULL));
    STALE(elsa_plan, plan, elsa_partial(plan, workspace, NULL, &good.in, &good.to, NULL));
    STALE(elsa_plan, plan, elsa_run_device(plan, workspace, &good.in, &good.to, NULL, NULL));
    STALE(elsa_plan, plan, elsa_bind(plan, workspace, &good.in, &good.to, (elsa_bound *)GOOD));
    STALE(elsa_workspace, workspace, elsa_workspace_certified(workspace, &certified, NULL, 0));
    STALE(elsa_workspace, workspace, elsa_workspace_refused_blocks(workspace, (size_t *)GOOD, (size_t *)GOOD));
    STALE(elsa_workspace, workspace, elsa_workspace_destroy(workspace));
    STALE(elsa_workspace, workspace, elsa_run(plan, workspace, &good.in, &good.to, NULL));
    STALE(elsa_workspace, workspace, elsa_bind(plan, workspace, &good.in, &good.to, (elsa_bound *)GOOD));
    STALE(elsa_bound, bound, elsa_bound_run(bound, NULL));
    STALE(elsa_bound, bound, elsa_bound_set(bound, &good.in, &good.to));
    STALE(elsa_bound, bound, elsa_bound_destroy(bound));
    STALE(elsa_engine, engine, elsa_stream_create(engine, &good.problem, NULL, (elsa_stream *)GOOD));
    STALE(elsa_stream, stream, elsa_stream_describe(stream, &account));
    STALE(elsa_stream, stream, elsa_stream_run(stream, &callbacks, NULL));
    STALE(elsa_stream, stream, elsa_stream_destroy(stream));
    CHECK(account.chunk_keys == 0);
    CHECK(on.threads == 0 && chosen.workspace_bytes == 0 && known.keys == 0);
}

static void pointers(void) {
    elsa_engine_options options;
    elsa_plan_options how;
    elsa_chunk chunk;
    elsa_stream_options budget;
    elsa_stream_options_init(&budget);
    elsa_engine_options_init(&options);
    elsa_plan_options_init(&how);
    elsa_chunk_init(&chunk);
    ARGUMENT(elsa_backend_present(ELSA_BACKEND_SCALAR, NULL), "present");
    ARGUMENT(elsa_backend_present(ELSA_BACKEND_SCALAR, (uint32_t *)ODD), "present");
    ARGUMENT(elsa_view_init(ELSA_LAYOUT_BHND, 1, 1, 1, 1, NULL), "view");
    ARGUMENT(elsa_view_init(ELSA_LAYOUT_BHND, 1, 1, 1, 1, (elsa_view *)ODD), "view");
    ARGUMENT(elsa_engine_create(NULL, NULL), "engine");
    ARGUMENT(elsa_engine_create(NULL, (elsa_engine *)ODD), "engine");
    ARGUMENT(elsa_engine_create((const elsa_engine_options *)odd(&options, sizeof options), (elsa_engine *)GOOD),
             "options");
    ARGUMENT(elsa_engine_describe(engine, NULL), "info");
    ARGUMENT(elsa_engine_describe(engine, (elsa_engine_info *)ODD), "info");
    ARGUMENT(elsa_plan_create(engine, NULL, NULL, (elsa_plan *)GOOD), "problem");
    ARGUMENT(elsa_plan_create(engine, (const elsa_problem *)odd(&good.problem, sizeof good.problem), NULL,
                              (elsa_plan *)GOOD),
             "problem");
    ARGUMENT(elsa_plan_create(engine, &good.problem, (const elsa_plan_options *)odd(&how, sizeof how),
                              (elsa_plan *)GOOD),
             "options");
    ARGUMENT(elsa_plan_create(engine, &good.problem, NULL, NULL), "plan");
    ARGUMENT(elsa_plan_create(engine, &good.problem, NULL, (elsa_plan *)ODD), "plan");
    ARGUMENT(elsa_plan_describe(plan, NULL), "info");
    ARGUMENT(elsa_plan_describe(plan, (elsa_plan_info *)ODD), "info");
    ARGUMENT(elsa_plan_certificate(plan, ELSA_BACKEND_AUTO, NULL), "certificate");
    ARGUMENT(elsa_plan_certificate(plan, ELSA_BACKEND_AUTO, (elsa_certificate *)ODD), "certificate");
    ARGUMENT(elsa_workspace_certified(workspace, NULL, NULL, 0), "value");
    ARGUMENT(elsa_workspace_certified(workspace, (elsa_certified *)ODD, NULL, 0), "value");
    ARGUMENT(elsa_workspace_refused_blocks(workspace, NULL, (size_t *)GOOD), "refused");
    ARGUMENT(elsa_workspace_refused_blocks(workspace, (size_t *)ODD, (size_t *)GOOD), "refused");
    ARGUMENT(elsa_workspace_refused_blocks(workspace, (size_t *)GOOD, NULL), "blocks");
    ARGUMENT(elsa_workspace_create(plan, NULL), "workspace");
    ARGUMENT(elsa_workspace_create(plan, (elsa_workspace *)ODD), "workspace");
    ARGUMENT(elsa_workspace_create_in(plan, NULL, 1 << 20, (elsa_workspace *)GOOD), ": null");
    ARGUMENT(elsa_workspace_create_in(plan, GOOD, 1 << 20, NULL), "workspace");
    ARGUMENT(elsa_run(plan, workspace, NULL, &good.to, NULL), "inputs");
    ARGUMENT(elsa_run(plan, workspace, (const elsa_inputs *)odd(&good.in, sizeof good.in), &good.to, NULL), "inputs");
    ARGUMENT(elsa_run(plan, workspace, &good.in, NULL, NULL), "outputs");
    ARGUMENT(elsa_run(plan, workspace, &good.in, (const elsa_outputs *)odd(&good.to, sizeof good.to), NULL),
             "outputs");
    ARGUMENT(elsa_run(plan, workspace, &good.in, &good.to, (elsa_report *)ODD), "report");
    ARGUMENT(elsa_partial(plan, workspace, (const elsa_chunk *)odd(&chunk, sizeof chunk), &good.in, &good.to, NULL),
             "chunk");
    ARGUMENT(elsa_partial(plan, workspace, NULL, NULL, &good.to, NULL), "inputs");
    ARGUMENT(elsa_partial(plan, workspace, NULL, &good.in, NULL, NULL), "outputs");
    ARGUMENT(elsa_partial(plan, workspace, NULL, &good.in, &good.to, NULL), "state_m");
    ARGUMENT(elsa_run_device(plan, workspace, NULL, &good.to, NULL, NULL), "inputs");
    ARGUMENT(elsa_run_device(plan, workspace, &good.in, NULL, NULL, NULL), "outputs");
    ARGUMENT(elsa_run_device(plan, workspace, &good.in, &good.to, NULL, (elsa_report *)ODD), "report");
    ARGUMENT(elsa_bind(plan, workspace, NULL, &good.to, (elsa_bound *)GOOD), "inputs");
    ARGUMENT(elsa_bind(plan, workspace, &good.in, NULL, (elsa_bound *)GOOD), "outputs");
    ARGUMENT(elsa_bind(plan, workspace, &good.in, &good.to, NULL), "bound");
    ARGUMENT(elsa_bind(plan, workspace, &good.in, &good.to, (elsa_bound *)ODD), "bound");
    ARGUMENT(elsa_stream_create(engine, NULL, &budget, (elsa_stream *)GOOD), "problem");
    ARGUMENT(elsa_stream_create(engine, &good.problem, (const elsa_stream_options *)odd(&budget, sizeof budget),
                                (elsa_stream *)GOOD),
             "options");
    ARGUMENT(elsa_stream_create(engine, &good.problem, &budget, NULL), "stream");
    ARGUMENT(elsa_stream_create(engine, &good.problem, &budget, (elsa_stream *)ODD), "stream");
    ARGUMENT(elsa_stream_describe(stream, (elsa_stream_info *)ODD), "info");
    ARGUMENT(elsa_stream_run(stream, NULL, NULL), "data");
    ARGUMENT(elsa_stream_run(stream, (const elsa_stream_data *)odd(&callbacks, sizeof callbacks), NULL), "data");
    ARGUMENT(elsa_stream_run(stream, &callbacks, (elsa_stream_report *)ODD), "report");
}

/* Callbacks that must not be called. */
static int32_t no_read(void *user, const elsa_rows *rows, void *data, size_t bytes) {
    (void)user, (void)rows, (void)data, (void)bytes;
    abort();
}

static int32_t no_write(void *user, const elsa_rows *rows, const void *data, size_t bytes) {
    (void)user, (void)rows, (void)data, (void)bytes;
    abort();
}

/* Checks tensors that are null, misaligned or too short; nothing is written to out. */
static void tensors(void) {
    static const int64_t lengths[1] = {N};
    const elsa_input whole = good.in.k;
    elsa_inputs in = good.in;
    elsa_outputs to = good.to;
    to.out.data = GOOD;
    in.k.data = NULL;
    ARGUMENT(elsa_run(plan, workspace, &in, &to, NULL), "k:");
    in.k.data = (const char *)whole.data + 1;
    ARGUMENT(elsa_run(plan, workspace, &in, &to, NULL), "k:");
    in.k = whole;
    in.k.bytes--;
    ARGUMENT(elsa_run(plan, workspace, &in, &to, NULL), "k:");
    in.k = whole;
    in.past_k = whole;
    ARGUMENT(elsa_run(plan, workspace, &in, &to, NULL), "past_k:");
    in = good.in;
    in.key_lengths.data = lengths;
    in.key_lengths.count = 1;
    ARGUMENT(elsa_run(plan, workspace, &in, &to, NULL), "key_lengths:");
    in = good.in;
    to.lse.data = ODD;
    to.lse.bytes = sizeof(float) * H * N;
    ARGUMENT(elsa_run(plan, workspace, &in, &to, NULL), "lse:");
    to = good.to;
    to.out.data = NULL;
    ARGUMENT(elsa_run(plan, workspace, &in, &to, NULL), "out");
}

static void states(void) {
    const elsa_states_in part = {q, k, v};
    const elsa_states_out to = {(float *)GOOD, (float *)GOOD + 8, (float *)GOOD + 16};
    elsa_states_in broken = part;
    elsa_states_out bad = to;
    ARGUMENT(elsa_states_merge(4, 2, NULL, &part, &to), "earlier");
    ARGUMENT(elsa_states_merge(4, 2, &part, NULL, &to), "later");
    ARGUMENT(elsa_states_merge(4, 2, &part, &part, NULL), "merged");
    ARGUMENT(elsa_states_merge(4, 2, (const elsa_states_in *)odd(&part, sizeof part), &part, &to), "earlier");
    ARGUMENT(elsa_states_merge((size_t)-1, (size_t)-1, &part, &part, &to), "rows, dim");
    broken.s = NULL;
    ARGUMENT(elsa_states_merge(4, 2, &part, &broken, &to), "later.s");
    ARGUMENT(elsa_states_finish(4, 2, &broken, (float *)GOOD, NULL), "states.s");
    broken.s = (const float *)ODD;
    ARGUMENT(elsa_states_merge(4, 2, &broken, &part, &to), "earlier.s");
    bad.w = (float *)ODD;
    ARGUMENT(elsa_states_merge(4, 2, &part, &part, &bad), "merged.w");
    bad.w = to.m;
    ARGUMENT(elsa_states_merge(4, 2, &part, &part, &bad), "merged");
    ARGUMENT(elsa_states_finish(4, 2, NULL, (float *)GOOD, NULL), "states");
    ARGUMENT(elsa_states_finish(4, 2, &part, NULL, NULL), "out");
    ARGUMENT(elsa_states_finish(4, 2, &part, (float *)ODD, NULL), "out");
    ARGUMENT(elsa_states_finish(4, 2, &part, (float *)GOOD, (float *)ODD), "lse");
}

/* Checks invalid numbers. */
static void numbers(void) {
    elsa_engine_options options;
    elsa_plan_options how;
    elsa_problem p = good.problem;
    elsa_certificate known;
    elsa_certified certified;
    double numbers[2] = {-1, -1};
    uint32_t *present = (uint32_t *)GOOD;
    elsa_engine_options_init(&options);
    elsa_plan_options_init(&how);
    elsa_certificate_init(&known);
    ARGUMENT(elsa_backend_present(99, present), "backend");
    ARGUMENT(elsa_view_init(99, 1, 1, 1, 1, (elsa_view *)GOOD), "layout");
    ARGUMENT(elsa_view_init(ELSA_LAYOUT_BHND, (size_t)-1, 2, 2, 2, (elsa_view *)GOOD), "view");
    ARGUMENT(elsa_log_set(99, NULL, NULL), "level");
    options.backend = 99;
    ARGUMENT(elsa_engine_create(&options, (elsa_engine *)GOOD), "backend");
    options.backend = ELSA_BACKEND_SCALAR;
    options.fallback = 99;
    ARGUMENT(elsa_engine_create(&options, (elsa_engine *)GOOD), "fallback");
    options.fallback = ELSA_FALLBACK_CPU;
    options.cuda_context = 99;
    ARGUMENT(elsa_engine_create(&options, (elsa_engine *)GOOD), "cuda_context");
    options.cuda_context = ELSA_CUDA_CONTEXT_PRIMARY;
    options.priority = -1;
    ARGUMENT(elsa_engine_create(&options, (elsa_engine *)GOOD), "priority");
    options.priority = 0;
    options.core_count = 1;
    ARGUMENT(elsa_engine_create(&options, (elsa_engine *)GOOD), "cores");
    how.method = 99;
    ARGUMENT(elsa_plan_create(engine, &p, &how, (elsa_plan *)GOOD), "method");
    how.method = ELSA_METHOD_ELSA;
    how.block = 65;
    ARGUMENT(elsa_plan_create(engine, &p, &how, (elsa_plan *)GOOD), "block");
    p.dtype = 99;
    ARGUMENT(elsa_plan_create(engine, &p, NULL, (elsa_plan *)GOOD), "dtype");
    p = good.problem;
    p.causal = 99;
    ARGUMENT(elsa_plan_create(engine, &p, NULL, (elsa_plan *)GOOD), "causal");
    p = good.problem;
    p.mask.kind = 99;
    ARGUMENT(elsa_plan_create(engine, &p, NULL, (elsa_plan *)GOOD), "mask");
    p = good.problem;
    p.has_window_left = 1;
    p.window_left = -1;
    ARGUMENT(elsa_plan_create(engine, &p, NULL, (elsa_plan *)GOOD), "window_left");
    p = good.problem;
    p.has_past = 1;
    ARGUMENT(elsa_plan_create(engine, &p, NULL, (elsa_plan *)GOOD), "past_k");
    ARGUMENT(elsa_plan_certificate(plan, 99, &known), "backend");
    CHECK(known.keys == 0);
    elsa_certified_init(&certified);
    ARGUMENT(elsa_workspace_certified(workspace, &certified, NULL, 1), "absolute");
    ARGUMENT(elsa_workspace_certified(workspace, &certified, (double *)ODD, 2), "absolute");
    how.block = 0;
    how.error_budget = 2;
    ARGUMENT(elsa_plan_create(engine, &good.problem, &how, (elsa_plan *)GOOD), "error_budget");
    /* The plan does not certify. */
    CHECK(elsa_workspace_certified(workspace, &certified, numbers, 2) == ELSA_STATUS_UNSUPPORTED);
    CHECK(strstr(elsa_last_error(), "certify") != NULL);
    CHECK(certified.keys == 0 && certified.claims == 0 && numbers[0] == -1 && numbers[1] == -1);
}

/* Checks that the last error belongs to its thread, and that a successful call does not clear it. */
static void *other_thread(void *unused) {
    CHECK(elsa_last_error()[0] == 0);
    CHECK(elsa_view_init(99, 1, 1, 1, 1, (elsa_view *)GOOD) == ELSA_STATUS_ARGUMENT);
    CHECK(strstr(elsa_last_error(), "layout") != NULL);
    return unused;
}

static void last_error(void) {
    pthread_t thread;
    uint32_t present;
    ARGUMENT(elsa_backend_present(ELSA_BACKEND_SCALAR, NULL), "present");
    CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(strstr(elsa_last_error(), "present") != NULL);
    OK(elsa_backend_present(ELSA_BACKEND_SCALAR, &present));
    CHECK(present == 1 && strstr(elsa_last_error(), "present") != NULL);
}

int main(void) {
    call other;
    elsa_engine_options options;
    elsa_stream_options budget;
    memset(target.bytes, FILL, ROOM);
    fill_all();
    elsa_engine_options_init(&options);
    options.backend = ELSA_BACKEND_SCALAR;
    options.threads = 1;
    OK(elsa_engine_create(&options, &engine));
    OK(elsa_engine_create(&options, &old_engine));
    other = make(old_engine);
    old_plan = other.plan;
    old_workspace = other.room;
    OK(elsa_bind(old_plan, old_workspace, &other.in, &other.to, &old_bound));
    OK(elsa_bound_destroy(old_bound));
    end(&other);
    OK(elsa_engine_destroy(old_engine));
    good = make(engine);
    plan = good.plan;
    workspace = good.room;
    elsa_stream_options_init(&budget);
    elsa_stream_data_init(&callbacks);
    budget.host_budget = (size_t)256 << 20;
    callbacks.read = no_read;
    callbacks.write = no_write;
    OK(elsa_stream_create(engine, &good.problem, &budget, &old_stream));
    OK(elsa_stream_destroy(old_stream));
    OK(elsa_stream_create(engine, &good.problem, &budget, &stream));

    handles();
    pointers();
    tensors();
    states();
    numbers();
    last_error();
    CHECK(out[0] == 0 && out[COUNT - 1] == 0);
    OK(elsa_run(plan, workspace, &good.in, &good.to, NULL));
    CHECK(error() < 1e-5);
    OK(elsa_stream_destroy(stream));
    end(&good);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
