/* Shared code of the programs with streams: tensors in the program's memory, callbacks that copy rows of them, and the
   run in memory to compare with. */
#ifndef STREAM_H
#define STREAM_H

#define H 4
#define N 1300
#define D 8
#include "common.h"

#include <pthread.h>
#include <time.h>

/* Queries of the tests, and heads of the keys. */
enum { ROWS = 37, SHARED = 2, SPAN = H * N * D };

/* Location of a tensor in the program's memory. */
typedef struct {
    char *data;
    size_t bytes, strides[3], shape[3], length;
} place;

/* User data of the callbacks of a run. */
typedef struct {
    place of[15];
    /* Calls so far, and the ones that fail, counted from one; 0 is none. */
    int reads, writes, fail_read, fail_write;
    /* Operand of the call that failed. */
    elsa_operand failed;
    /* Microseconds that each call takes. */
    long slow;
    pthread_t caller;
    /* An additional action of a callback. */
    void (*also)(void);
    /* How often each byte of the output was written. */
    unsigned char written[SPAN];
} user;

static float stream_out[SPAN], lse[H * N], state_m[H * N], state_s[H * N], state_w[SPAN];
static float stream_lse[H * N], stream_m[H * N], stream_s[H * N], stream_w[SPAN];
static elsa_engine engine;
static user of_run;

/* A check in a callback, which is not counted: several threads call back. */
#define MUST(x)                                                                     \
    do {                                                                            \
        if (!(x)) {                                                                 \
            fprintf(stderr, "%d: %s (%s)\n", __LINE__, #x, elsa_last_error());      \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

static inline void pause_for(long microseconds) {
    struct timespec time;
    time.tv_sec = 0;
    time.tv_nsec = microseconds * 1000;
    if (microseconds > 0) nanosleep(&time, NULL);
}

/* The tensor of an operand; rows must be inside it and have the stated number of bytes. */
static inline const place *checked(const user *u, const elsa_rows *rows, size_t bytes) {
    const place *at = &u->of[rows->operand];
    size_t axis, last = rows->length;
    MUST(rows->size == sizeof(elsa_rows) && rows->operand < 15 && at->data != NULL);
    MUST(rows->element_bytes == at->bytes && rows->length > 0);
    MUST(rows->start + rows->length <= at->length);
    for (axis = 0; axis < 3; axis++) {
        MUST(rows->count[axis] > 0 && rows->first[axis] + rows->count[axis] <= at->shape[axis]);
        last += (rows->count[axis] - 1) * rows->strides[axis];
    }
    MUST(bytes == last * rows->element_bytes);
    return at;
}

/* Copies rows between the program's memory and the library's. */
static inline void move(const place *at, const elsa_rows *rows, char *data, int out) {
    size_t b, h, t;
    const size_t bytes = rows->length * rows->element_bytes;
    for (b = 0; b < rows->count[0]; b++)
        for (h = 0; h < rows->count[1]; h++)
            for (t = 0; t < rows->count[2]; t++) {
                char *mine = at->data + ((rows->first[0] + b) * at->strides[0] + (rows->first[1] + h) * at->strides[1] +
                                         (rows->first[2] + t) * at->strides[2] + rows->start) *
                                            rows->element_bytes;
                char *theirs = data + (b * rows->strides[0] + h * rows->strides[1] + t * rows->strides[2]) *
                                          rows->element_bytes;
                memcpy(out ? mine : theirs, out ? theirs : mine, bytes);
            }
}

static inline int32_t reads(void *given, const elsa_rows *rows, void *data, size_t bytes) {
    user *u = (user *)given;
    const int own = rows->operand == ELSA_OPERAND_BIAS && u->of[ELSA_OPERAND_BIAS].length == H;
    /* The caller's thread reads the table of a bias; another one reads everything else. */
    MUST((pthread_equal(pthread_self(), u->caller) != 0) == own);
    MUST(rows->operand < ELSA_OPERAND_OUT);
    pause_for(u->slow);
    if (++u->reads == u->fail_read) {
        u->failed = rows->operand;
        return -1000 - u->reads;
    }
    if (u->also != NULL) u->also();
    move(checked(u, rows, bytes), rows, (char *)data, 0);
    return 0;
}

static inline int32_t writes(void *given, const elsa_rows *rows, const void *data, size_t bytes) {
    user *u = (user *)given;
    MUST(pthread_equal(pthread_self(), u->caller));
    MUST(rows->operand >= ELSA_OPERAND_OUT);
    pause_for(u->slow);
    if (++u->writes == u->fail_write) {
        u->failed = rows->operand;
        return 1000 + u->writes;
    }
    if (u->also != NULL) u->also();
    move(checked(u, rows, bytes), rows, (char *)(size_t)data, 1);
    if (rows->operand == ELSA_OPERAND_OUT) {
        const place marks = {(char *)u->written, 1, {0, 0, 0}, {0, 0, 0}, 0};
        size_t b, h, t, c;
        const place *at = &u->of[ELSA_OPERAND_OUT];
        for (b = 0; b < rows->count[0]; b++)
            for (h = 0; h < rows->count[1]; h++)
                for (t = 0; t < rows->count[2]; t++)
                    for (c = 0; c < rows->length; c++)
                        marks.data[(rows->first[0] + b) * at->strides[0] + (rows->first[1] + h) * at->strides[1] +
                                   (rows->first[2] + t) * at->strides[2] + c]++;
    }
    return 0;
}

/* A stream, its problem, and the call in memory to compare with. */
typedef struct {
    elsa_problem problem;
    elsa_inputs in;
    elsa_outputs to;
    elsa_stream_options how;
    elsa_stream_data data;
} both;

static inline void put(elsa_operand operand, const void *data, size_t bytes, const elsa_view *view) {
    place *at = &of_run.of[operand];
    size_t axis;
    at->data = (char *)(size_t)data;
    at->bytes = bytes;
    for (axis = 0; axis < 3; axis++) at->shape[axis] = view->shape[axis], at->strides[axis] = view->strides[axis];
    at->length = view->shape[3];
}

static inline elsa_view dense(size_t batch, size_t heads, size_t tokens, size_t dim) {
    elsa_view view;
    OK(elsa_view_init(ELSA_LAYOUT_BHND, batch, heads, tokens, dim, &view));
    return view;
}

static inline elsa_input from(const void *data, size_t bytes) {
    elsa_input x;
    x.data = data, x.bytes = bytes;
    return x;
}

static inline elsa_output into(void *data, size_t bytes) {
    elsa_output x;
    x.data = data, x.bytes = bytes;
    return x;
}

/* Groups of heads, queries and outputs with heads inside: common to all tests. */
static inline void prepare(both *x, size_t batch, size_t queries, size_t keys) {
    const elsa_view row = dense(batch, H, queries, 1), wide = dense(batch, H, queries, D);
    memset(&of_run, 0, sizeof of_run);
    elsa_problem_init(&x->problem);
    elsa_inputs_init(&x->in);
    elsa_outputs_init(&x->to);
    elsa_stream_options_init(&x->how);
    elsa_stream_data_init(&x->data);
    OK(elsa_view_init(ELSA_LAYOUT_BNHD, batch, H, queries, D, &x->problem.q));
    x->problem.out = x->problem.q;
    x->problem.k = x->problem.v = dense(batch, SHARED, keys, D);
    x->in.q = from(q, sizeof q), x->in.k = from(k, sizeof k), x->in.v = from(v, sizeof v);
    x->to.out = into(out, sizeof out), x->to.lse = into(lse, sizeof lse);
    x->to.state_m = into(state_m, sizeof state_m), x->to.state_s = into(state_s, sizeof state_s);
    x->to.state_w = into(state_w, sizeof state_w);
    put(ELSA_OPERAND_Q, q, 4, &x->problem.q);
    put(ELSA_OPERAND_K, k, 4, &x->problem.k);
    put(ELSA_OPERAND_V, v, 4, &x->problem.v);
    put(ELSA_OPERAND_OUT, stream_out, 4, &x->problem.out);
    put(ELSA_OPERAND_LSE, stream_lse, 4, &row);
    put(ELSA_OPERAND_STATE_M, stream_m, 4, &row);
    put(ELSA_OPERAND_STATE_S, stream_s, 4, &row);
    put(ELSA_OPERAND_STATE_W, stream_w, 4, &wide);
    x->how.outputs = ELSA_STREAM_OUT | ELSA_STREAM_LSE | ELSA_STREAM_STATES;
    x->data.read = reads;
    x->data.write = writes;
    x->data.user = &of_run;
    of_run.caller = pthread_self();
}

/* The answer in memory. */
static inline void in_memory(const both *x) {
    elsa_plan plan;
    elsa_workspace room;
    elsa_plan_options options;
    elsa_plan_options_init(&options);
    options.block = x->how.block;
    OK(elsa_plan_create(engine, &x->problem, &options, &plan));
    OK(elsa_workspace_create(plan, &room));
    OK(elsa_run(plan, room, &x->in, &x->to, NULL));
    OK(elsa_workspace_destroy(room));
    OK(elsa_plan_destroy(plan));
}

/* The bytes that a message names. */
static inline size_t named(void) {
    const char *text = strstr(elsa_last_error(), "at least ");
    CHECK(text != NULL && strncmp(elsa_last_error(), "host_budget: ", 13) == 0);
    return (size_t)strtoull(text + 9, NULL, 10);
}

/* The bytes that a stream needs, as reported for a budget that is too small. */
static inline size_t needed(const both *x) {
    elsa_stream_options how = x->how;
    elsa_stream stream;
    stream.id = 77;
    how.host_budget = 1;
    CHECK(elsa_stream_create(engine, &x->problem, &how, &stream) == ELSA_STATUS_MEMORY);
    CHECK(stream.id == 77);
    return named();
}

/* The process's own memory varies a little over time. */
#define VARIES ((size_t)1 << 20)

static inline elsa_stream streamed(const both *x, size_t more, elsa_stream_info *info) {
    elsa_stream_options how = x->how;
    elsa_stream stream;
    elsa_status status;
    int tries = 0;
    do {
        /* The process's own memory may grow between the two calls. */
        how.host_budget = needed(x) + more;
        status = elsa_stream_create(engine, &x->problem, &how, &stream);
    } while (status == ELSA_STATUS_MEMORY && ++tries < 100);
    OK(status);
    elsa_stream_info_init(info);
    OK(elsa_stream_describe(stream, info));
    CHECK(info->host_bytes <= how.host_budget && info->resident_rows > 0 && info->chunk_keys > 0);
    CHECK(info->host_bytes == info->fixed_bytes + info->query_bytes + info->key_bytes + info->added_bytes +
                                  info->output_bytes + info->state_bytes + info->resident_bytes +
                                  info->workspace_bytes);
    CHECK(info->backend >= ELSA_BACKEND_SCALAR && info->backend < ELSA_BACKEND_CUDA && info->kernel[0] != 0);
    CHECK(info->fallback == 0);
    return stream;
}

/* A stream of more than `above` units and fewer than `below`; searches for a small budget, because the process's own
   memory changes between two calls. */
static inline elsa_stream in_units(const both *x, size_t above, size_t below, elsa_stream_info *info) {
    size_t more = VARIES / 8;
    int tries = 0;
    for (;;) {
        const elsa_stream stream = streamed(x, more, info);
        if (info->units > above && info->units < below) return stream;
        CHECK(++tries < 200);
        more = info->units >= below ? more + VARIES / 32 : more - more / 4;
        OK(elsa_stream_destroy(stream));
    }
}

static inline void forget(void) {
    memset(stream_out, 0xff, sizeof stream_out);
    memset(stream_lse, 0xff, sizeof stream_lse);
    memset(stream_m, 0xff, sizeof stream_m);
    memset(stream_s, 0xff, sizeof stream_s);
    memset(stream_w, 0xff, sizeof stream_w);
    memset(of_run.written, 0, sizeof of_run.written);
    of_run.reads = of_run.writes = 0;
}

/* The bits of the answer in memory, each written once. */
static inline void same(const both *x, const elsa_stream_report *done) {
    const size_t rows = x->problem.q.shape[0] * H * x->problem.q.shape[2];
    size_t i;
    CHECK(memcmp(stream_out, out, rows * D * sizeof *out) == 0);
    CHECK(memcmp(stream_lse, lse, rows * sizeof *lse) == 0);
    CHECK(memcmp(stream_m, state_m, rows * sizeof *lse) == 0 && memcmp(stream_s, state_s, rows * sizeof *lse) == 0);
    CHECK(memcmp(stream_w, state_w, rows * D * sizeof *out) == 0);
    for (i = 0; i < rows * D; i++)
        if (of_run.written[i] != 1) break;
    CHECK(i == rows * D);
    CHECK(done->code == 0 && done->operand == 0 && done->finished == done->units && done->parts > 0);
    CHECK(done->written_bytes >= rows * (2 * D + 3) * sizeof *out && done->read_bytes > 0);
    CHECK(done->total_ms > 0 && done->overlap <= 1 && done->wait_ms <= done->total_ms);
}

/* The CPU's best back end. */
static inline elsa_backend best(void) {
    elsa_backend backend = ELSA_BACKEND_CUDA;
    uint32_t present = 0;
    while (!present) OK(elsa_backend_present(--backend, &present));
    return backend;
}

#endif
