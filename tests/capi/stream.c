/* Streams: tensors that callbacks fill and take within a budget. The bits are those of elsa_run, for every budget, chunk
   and number of threads, with every kind of input; the account adds up; whatever goes wrong in a callback, at every
   index, is reported and can be gone on from; what is refused calls nothing back. */
#define _POSIX_C_SOURCE 200809L
#define H 4
#define N 1300
#define D 8
#include "common.h"

#include <pthread.h>
#include <time.h>

/* Queries of the tests, and heads of the keys. */
enum { ROWS = 37, FEW = 400, SHARED = 2, SPAN = H * N * D };

/* Where a tensor lies in memory of this program. */
typedef struct {
    char *data;
    size_t bytes, strides[3], shape[3], length;
} place;

/* What the callbacks of a run work with. */
typedef struct {
    place of[15];
    /* Calls so far, and the ones that fail, counted from one; 0 is none. */
    int reads, writes, fail_read, fail_write;
    /* Operand of the call that failed. */
    elsa_operand failed;
    /* Microseconds that each call takes. */
    long slow;
    pthread_t caller;
    /* What a callback does besides. */
    void (*also)(void);
    /* How often each byte of the output was written. */
    unsigned char written[SPAN];
} user;

static float stream_out[SPAN], lse[H * N], state_m[H * N], state_s[H * N], state_w[SPAN];
static float stream_lse[H * N], stream_m[H * N], stream_s[H * N], stream_w[SPAN];
static float past_k[SPAN], past_v[SPAN], present[2][2 * SPAN], stream_present[2][2 * SPAN];
static float bias[ROWS * N], table[32 * H];
static unsigned char mask[ROWS * N];
static int64_t numbers[ROWS * N], lengths[2];
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

static void pause_for(long microseconds) {
    struct timespec time;
    time.tv_sec = 0;
    time.tv_nsec = microseconds * 1000;
    if (microseconds > 0) nanosleep(&time, NULL);
}

/* The place of an operand; rows must lie inside of it, and be as many bytes as they say. */
static const place *checked(const user *u, const elsa_rows *rows, size_t bytes) {
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
static void move(const place *at, const elsa_rows *rows, char *data, int out) {
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

static int32_t reads(void *given, const elsa_rows *rows, void *data, size_t bytes) {
    user *u = (user *)given;
    const int own = rows->operand == ELSA_OPERAND_BIAS && u->of[ELSA_OPERAND_BIAS].length == H;
    /* The table of a bias is read by the caller's thread, all else by another one. */
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

static int32_t writes(void *given, const elsa_rows *rows, const void *data, size_t bytes) {
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

/* A stream, the problem that it has, and the call in memory to compare with. */
typedef struct {
    elsa_problem problem;
    elsa_inputs in;
    elsa_outputs to;
    elsa_stream_options how;
    elsa_stream_data data;
} both;

static void put(elsa_operand operand, const void *data, size_t bytes, const elsa_view *view) {
    place *at = &of_run.of[operand];
    size_t axis;
    at->data = (char *)(size_t)data;
    at->bytes = bytes;
    for (axis = 0; axis < 3; axis++) at->shape[axis] = view->shape[axis], at->strides[axis] = view->strides[axis];
    at->length = view->shape[3];
}

static elsa_view dense(size_t batch, size_t heads, size_t tokens, size_t dim) {
    elsa_view view;
    OK(elsa_view_init(ELSA_LAYOUT_BHND, batch, heads, tokens, dim, &view));
    return view;
}

static elsa_input from(const void *data, size_t bytes) {
    elsa_input x;
    x.data = data, x.bytes = bytes;
    return x;
}

static elsa_output into(void *data, size_t bytes) {
    elsa_output x;
    x.data = data, x.bytes = bytes;
    return x;
}

/* Groups of heads, queries and outputs with heads inside: all that every test has. */
static void prepare(both *x, size_t batch, size_t queries, size_t keys) {
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
static void in_memory(const both *x) {
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
static size_t named(void) {
    const char *text = strstr(elsa_last_error(), "at least ");
    CHECK(text != NULL && strncmp(elsa_last_error(), "host_budget: ", 13) == 0);
    return (size_t)strtoull(text + 9, NULL, 10);
}

/* The bytes that a stream needs, which a budget that is too small is told. */
static size_t needed(const both *x) {
    elsa_stream_options how = x->how;
    elsa_stream stream;
    stream.id = 77;
    how.host_budget = 1;
    CHECK(elsa_stream_create(engine, &x->problem, &how, &stream) == ELSA_STATUS_MEMORY);
    CHECK(stream.id == 77);
    return named();
}

/* What a process has differs a little from one moment to the next. */
#define VARIES ((size_t)1 << 20)

static elsa_stream streamed(const both *x, size_t more, elsa_stream_info *info) {
    elsa_stream_options how = x->how;
    elsa_stream stream;
    elsa_status status;
    int tries = 0;
    do {
        /* What the process has may grow between the two calls. */
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

static void forget(void) {
    memset(stream_out, 0xff, sizeof stream_out);
    memset(stream_lse, 0xff, sizeof stream_lse);
    memset(stream_m, 0xff, sizeof stream_m);
    memset(stream_s, 0xff, sizeof stream_s);
    memset(stream_w, 0xff, sizeof stream_w);
    memset(of_run.written, 0, sizeof of_run.written);
    of_run.reads = of_run.writes = 0;
}

/* The bits of the answer in memory, each written once. */
static void same(const both *x, const elsa_stream_report *done) {
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

/* Runs streams of some budgets and chunks; each has the answer in memory. Returns the most units. */
static size_t agrees(both *x) {
    static const size_t more[] = {VARIES, 2 * VARIES, (size_t)64 << 20};
    static const double etas[] = {0.1, 0};
    size_t i, j, most = 0;
    in_memory(x);
    for (i = 0; i < 3; i++)
        for (j = 0; j < 2; j++) {
            elsa_stream_info info;
            elsa_stream_report done;
            elsa_stream stream;
            x->how.eta = etas[j];
            stream = streamed(x, more[i], &info);
            elsa_stream_report_init(&done);
            forget();
            OK(elsa_stream_run(stream, &x->data, &done));
            same(x, &done);
            CHECK(x->problem.packed > 0 ? info.units == 0 : done.units == info.units);
            if (done.units > most) most = done.units;
            OK(elsa_stream_destroy(stream));
        }
    return most;
}

/* The distance of out from the definition: causal attention whose last query sees the last valid key. */
static double wrong(const both *x, size_t queries, size_t keys, size_t valid) {
    double worst = 0, y[D];
    size_t h, i, j, c;
    for (h = 0; h < H; h++)
        for (i = 0; i < queries; i++) {
            const float *row = q + i * x->problem.q.strides[2] + h * x->problem.q.strides[1];
            const float *found = stream_out + i * x->problem.q.strides[2] + h * x->problem.q.strides[1];
            const size_t shared = h / (H / SHARED);
            double sum = 0;
            memset(y, 0, sizeof y);
            for (j = 0; j <= i + valid - queries; j++) {
                double s = 0, p;
                for (c = 0; c < D; c++) s += (double)row[c] * k[(shared * keys + j) * D + c];
                p = exp(s / sqrt((double)D));
                sum += p;
                for (c = 0; c < D; c++) y[c] += p * v[(shared * keys + j) * D + c];
            }
            for (c = 0; c < D; c++) {
                double e = fabs(y[c] / sum - found[c]);
                if (!(e <= worst)) worst = e == e ? e : HUGE_VAL;
            }
        }
    return worst;
}

/* Every kind of input. */
static void kinds(void) {
    static both x;
    static const elsa_view wide = {{1, SHARED, 600, D}, {SHARED * 600 * D, 600 * D, D, 1}};
    elsa_view view;
    size_t i;
    prepare(&x, 1, ROWS, N);
    x.problem.causal = ELSA_CAUSAL_BOTTOM_RIGHT;
    x.problem.has_key_lengths = 1;
    lengths[0] = N - 5;
    x.in.key_lengths.data = x.data.key_lengths.data = lengths;
    x.in.key_lengths.count = x.data.key_lengths.count = 1;
    agrees(&x);
    CHECK(wrong(&x, ROWS, N, N - 5) < 1e-5);
    /* Another block has other bits, which are its own. */
    x.how.block = 128;
    agrees(&x);
    CHECK(wrong(&x, ROWS, N, N - 5) < 1e-5);

    /* A mask that heads share, and a bias that they do not. */
    prepare(&x, 1, ROWS, N);
    for (i = 0; i < ROWS * N; i++) mask[i] = i % 3 != 1;
    x.problem.mask.kind = ELSA_MASK_BOOL;
    x.problem.mask.rank = 2, x.problem.mask.dims[0] = ROWS, x.problem.mask.dims[1] = N;
    x.in.mask = from(mask, sizeof mask);
    view = dense(1, 1, ROWS, N);
    put(ELSA_OPERAND_MASK, mask, 1, &view);
    for (i = 0; i < ROWS * N; i++) bias[i] = (float)(i % 11) / 4.0f - 1.0f;
    x.problem.bias.kind = ELSA_MASK_F32;
    x.problem.bias.rank = 3;
    x.problem.bias.dims[0] = H, x.problem.bias.dims[1] = 1, x.problem.bias.dims[2] = N;
    x.in.bias = from(bias, sizeof bias);
    view = dense(1, H, 1, N);
    put(ELSA_OPERAND_BIAS, bias, 4, &view);
    agrees(&x);

    /* A table of positions with an index. */
    prepare(&x, 1, ROWS, N);
    for (i = 0; i < 32 * H; i++) table[i] = (float)(i % 13) / 8.0f;
    for (i = 0; i < ROWS * N; i++) numbers[i] = (int64_t)(i * 7 % 32);
    x.problem.bias_table.dtype = ELSA_DTYPE_F32;
    x.problem.bias_table.has_index = 1;
    x.problem.bias_table.entries = 32, x.problem.bias_table.heads = H;
    x.in.bias = from(table, sizeof table);
    x.in.bias_index.data = numbers, x.in.bias_index.count = ROWS * N;
    view = dense(1, 1, 32, H);
    put(ELSA_OPERAND_BIAS, table, 4, &view);
    view = dense(1, 1, ROWS, N);
    put(ELSA_OPERAND_BIAS_INDEX, numbers, 8, &view);
    agrees(&x);
    {
        /* An entry that the table does not have. */
        elsa_stream_info info;
        elsa_stream_report done;
        const elsa_stream stream = streamed(&x, VARIES, &info);
        elsa_stream_report_init(&done);
        numbers[N + 700] = 32;
        CHECK(elsa_stream_run(stream, &x.data, &done) == ELSA_STATUS_ARGUMENT);
        CHECK(strncmp(elsa_last_error(), "bias_index: entry 2000 is 32", 28) == 0 && done.units == 0);
        OK(elsa_stream_destroy(stream));
    }

    /* A past and a present. */
    prepare(&x, 1, ROWS, N - 600);
    x.problem.has_past = x.problem.has_present = 1;
    x.problem.past_k = x.problem.past_v = wide;
    x.problem.present_k = x.problem.present_v = dense(1, SHARED, N, D);
    x.problem.causal = ELSA_CAUSAL_TOP_LEFT;
    x.in.past_k = from(past_k, sizeof past_k), x.in.past_v = from(past_v, sizeof past_v);
    x.to.present_k = into(present[0], sizeof present[0]), x.to.present_v = into(present[1], sizeof present[1]);
    put(ELSA_OPERAND_PAST_K, past_k, 4, &wide);
    put(ELSA_OPERAND_PAST_V, past_v, 4, &wide);
    put(ELSA_OPERAND_PRESENT_K, stream_present[0], 4, &x.problem.present_k);
    put(ELSA_OPERAND_PRESENT_V, stream_present[1], 4, &x.problem.present_v);
    memset(stream_present, 0, sizeof stream_present);
    agrees(&x);
    CHECK(memcmp(present, stream_present, sizeof present) == 0);

    /* Packed sequences. */
    {
        static const int64_t of_q[4] = {0, 20, 20, ROWS}, of_k[4] = {0, 900, 1000, N};
        prepare(&x, 1, ROWS, N);
        x.problem.packed = 3;
        x.in.cu_seqlens_q.data = x.data.cu_seqlens_q.data = of_q;
        x.in.cu_seqlens_k.data = x.data.cu_seqlens_k.data = of_k;
        x.in.cu_seqlens_q.count = x.in.cu_seqlens_k.count = 4;
        x.data.cu_seqlens_q.count = x.data.cu_seqlens_k.count = 4;
        agrees(&x);
    }

    /* Several sequences in a unit, and none of keys. */
    prepare(&x, 2, ROWS, 600);
    agrees(&x);
    prepare(&x, 1, ROWS, 0);
    in_memory(&x);
    {
        elsa_stream_info info;
        const elsa_stream stream = streamed(&x, VARIES, &info);
        forget();
        OK(elsa_stream_run(stream, &x.data, NULL));
        CHECK(memcmp(stream_out, out, H * ROWS * D * sizeof *out) == 0 && stream_out[0] == 0);
        CHECK(memcmp(stream_lse, lse, H * ROWS * sizeof *lse) == 0 && stream_lse[0] == -HUGE_VALF);
        OK(elsa_stream_destroy(stream));
    }
}

/* Callbacks that fail, at every index; each run is gone on with where it ended. */
static void failures(void) {
    static both x;
    elsa_stream_info info;
    elsa_stream_report done;
    elsa_stream stream;
    int which, i, calls[2];
    prepare(&x, 1, FEW, 600);
    x.how.eta = 0.1;
    in_memory(&x);
    stream = streamed(&x, VARIES / 8, &info);
    forget();
    OK(elsa_stream_run(stream, &x.data, NULL));
    calls[0] = of_run.reads, calls[1] = of_run.writes;
    CHECK(info.units > 1 && info.units < 20 && calls[0] > 6 && calls[1] > 5);
    for (which = 0; which < 2; which++)
        for (i = 1; i <= calls[which]; i++) {
            const int32_t code = which ? 1000 + i : -1000 - i;
            size_t finished;
            forget();
            *(which ? &of_run.fail_write : &of_run.fail_read) = i;
            elsa_stream_report_init(&done);
            CHECK(elsa_stream_run(stream, &x.data, &done) == ELSA_STATUS_CALLBACK);
            CHECK(done.code == code && done.operand == of_run.failed && done.units == info.units);
            CHECK(done.finished < done.units && done.parts == 0 && done.total_ms == 0);
            CHECK(strstr(elsa_last_error(), which ? "write returned 1" : "read returned -1") != NULL);
            CHECK(which == 0 || of_run.writes == i);
            CHECK(which == 1 || of_run.reads == i);
            of_run.fail_read = of_run.fail_write = 0;
            /* What of the unit that did not finish was written is written again. */
            finished = done.finished;
            x.data.first_unit = finished;
            OK(elsa_stream_run(stream, &x.data, &done));
            x.data.first_unit = 0;
            CHECK(done.finished == info.units && done.units == info.units);
            CHECK(memcmp(stream_out, out, sizeof(float) * H * FEW * D) == 0);
            CHECK(memcmp(stream_w, state_w, sizeof(float) * H * FEW * D) == 0);
        }
    /* Nothing is left to do. */
    x.data.first_unit = info.units;
    forget();
    OK(elsa_stream_run(stream, &x.data, &done));
    CHECK(of_run.reads == 0 && of_run.writes == 0 && done.finished == info.units && done.parts == 0);
    x.data.first_unit = info.units + 1;
    CHECK(elsa_stream_run(stream, &x.data, NULL) == ELSA_STATUS_ARGUMENT);
    CHECK(strstr(elsa_last_error(), "first unit") != NULL && of_run.reads == 0);
    OK(elsa_stream_destroy(stream));
}

/* What callbacks may do: other calls, the end of their stream, and taking their time. */
static call beside;
static elsa_stream ends;

static void other_calls(void) {
    float kept[2];
    memcpy(kept, beside.to.out.data, sizeof kept);
    MUST(elsa_run(beside.plan, beside.room, &beside.in, &beside.to, NULL) == ELSA_STATUS_OK);
    MUST(memcmp(kept, beside.to.out.data, sizeof kept) == 0);
    if (ends.id != 0) {
        const elsa_stream stream = ends;
        ends.id = 0;
        MUST(elsa_stream_destroy(stream) == ELSA_STATUS_OK);
    }
}

static void within(void) {
    static both x;
    static float small_out[COUNT];
    elsa_stream_info info;
    elsa_stream_report done;
    elsa_stream stream;
    prepare(&x, 1, ROWS, N);
    in_memory(&x);
    /* Of the call beside, one row of each head is enough; it has memory of its own, and calls take turns in it. */
    elsa_problem_init(&beside.problem);
    beside.problem.q = beside.problem.k = beside.problem.v = beside.problem.out = dense(1, 1, 9, D);
    elsa_inputs_init(&beside.in);
    elsa_outputs_init(&beside.to);
    beside.in.q = beside.in.k = beside.in.v = from(q, sizeof q);
    beside.to.out = into(small_out, sizeof small_out);
    OK(elsa_plan_create(engine, &beside.problem, NULL, &beside.plan));
    OK(elsa_workspace_create(beside.plan, &beside.room));
    OK(elsa_run(beside.plan, beside.room, &beside.in, &beside.to, NULL));
    x.how.eta = 0.1;
    stream = streamed(&x, VARIES, &info);
    elsa_stream_report_init(&done);
    forget();
    of_run.slow = 2000;
    OK(elsa_stream_run(stream, &x.data, &done));
    of_run.slow = 0;
    same(&x, &done);
    /* The first chunk is always waited for: its queries, keys and values. */
    CHECK(done.wait_ms >= 6 && done.read_ms >= 2.0 * of_run.reads && done.compute_ms >= 2.0 * of_run.writes);
    CHECK(fabs(done.overlap - (1 - done.wait_ms / done.total_ms)) < 1e-9);
    /* The outputs of one unit follow all of its reads, so that the callbacks may share a workspace. */
    CHECK(info.units == 1);
    forget();
    of_run.also = other_calls;
    ends = stream;
    OK(elsa_stream_run(stream, &x.data, &done));
    same(&x, &done);
    CHECK(elsa_stream_describe(stream, &info) == ELSA_STATUS_HANDLE);
    of_run.also = NULL;
    OK(elsa_workspace_destroy(beside.room));
    OK(elsa_plan_destroy(beside.plan));
}

/* Two threads in one stream. */
static user of_other;
static both of_both;

static void *other_run(void *stream) {
    elsa_stream_data data = of_both.data;
    data.user = &of_other;
    of_other.caller = pthread_self();
    MUST(elsa_stream_run(*(const elsa_stream *)stream, &data, NULL) == ELSA_STATUS_OK);
    return NULL;
}

static void at_once(void) {
    static float answer[SPAN];
    const size_t bytes = sizeof(float) * H * ROWS * D;
    elsa_stream_info info;
    elsa_stream stream;
    pthread_t thread;
    prepare(&of_both, 1, ROWS, N);
    in_memory(&of_both);
    of_both.how.outputs = 0;
    of_both.how.eta = 0.1;
    stream = streamed(&of_both, VARIES, &info);
    CHECK(info.state_bytes == 0);
    forget();
    of_run.slow = 500;
    of_other = of_run;
    of_other.of[ELSA_OPERAND_OUT].data = (char *)answer;
    CHECK(pthread_create(&thread, NULL, other_run, &stream) == 0);
    OK(elsa_stream_run(stream, &of_both.data, NULL));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(memcmp(answer, out, bytes) == 0 && memcmp(stream_out, out, bytes) == 0);
    OK(elsa_stream_destroy(stream));
}

/* What is refused, with the argument named; nothing is called back, and nothing is written. */
static void refused(int line, elsa_status status, elsa_status expected, const char *name) {
    checks++;
    if (status != expected || strncmp(elsa_last_error(), name, strlen(name)) != 0) {
        fprintf(stderr, "%d: status %d, allowed: %d, with %s; message: %s\n", line, (int)status, (int)expected, name,
                elsa_last_error());
        exit(1);
    }
    CHECK(of_run.reads == 0 && of_run.writes == 0);
}
#define REFUSED(call, status, name) refused(__LINE__, call, ELSA_STATUS_##status, name)

static void refusals(void) {
    static both x;
    static const double etas[] = {-1, NAN, HUGE_VAL, -HUGE_VAL};
    elsa_stream_info info, same_info;
    elsa_stream_report done, same_done;
    elsa_stream stream, made;
    elsa_stream_options how;
    elsa_stream_data data;
    elsa_problem append;
    size_t bytes, i;
    prepare(&x, 1, ROWS, N);
    made.id = 5;
    bytes = needed(&x);
    CHECK(bytes > 1 << 16);
    how = x.how;
    how.host_budget = bytes / 2;
    REFUSED(elsa_stream_create(engine, &x.problem, &how, &made), MEMORY, "host_budget: ");
    CHECK(named() > bytes / 2);
    how.host_budget = 0;
    REFUSED(elsa_stream_create(engine, &x.problem, &how, &made), MEMORY, "host_budget: 0 bytes");
    REFUSED(elsa_stream_create(engine, &x.problem, NULL, &made), MEMORY, "host_budget: 0 bytes");
    how.host_budget = (size_t)-1;
    REFUSED(elsa_stream_create(engine, &x.problem, &how, &made), MEMORY, "host_budget: ");
    CHECK(strstr(elsa_last_error(), "which the system leaves this process") != NULL);
    how = x.how;
    how.host_budget = bytes + ((size_t)16 << 20);
    for (i = 0; i < 4; i++) {
        how.eta = etas[i];
        REFUSED(elsa_stream_create(engine, &x.problem, &how, &made), ARGUMENT, "eta: ");
    }
    how.eta = 0;
    how.outputs = 8;
    REFUSED(elsa_stream_create(engine, &x.problem, &how, &made), ARGUMENT, "outputs: 8");
    how.outputs = 0;
    how.reserved = 1;
    REFUSED(elsa_stream_create(engine, &x.problem, &how, &made), ARGUMENT, "reserved: 1");
    how.reserved = 0;
    how.block = 65;
    REFUSED(elsa_stream_create(engine, &x.problem, &how, &made), ARGUMENT, "block: 65");
    how.block = 0;
    append = x.problem;
    append.has_past = append.has_present = append.append = 1;
    append.past_k = append.past_v = append.k;
    append.past_k.shape[2] = append.past_v.shape[2] = 0;
    append.present_k = append.present_v = append.k;
    REFUSED(elsa_stream_create(engine, &append, &how, &made), UNSUPPORTED, "append: ");
    REFUSED(elsa_stream_create(engine, NULL, &how, &made), ARGUMENT, "problem: null");
    REFUSED(elsa_stream_create(engine, &x.problem, &how, NULL), ARGUMENT, "stream: null");
    how.size--;
    REFUSED(elsa_stream_create(engine, &x.problem, &how, &made), ARGUMENT, "options.size: ");
    CHECK(made.id == 5);

    stream = streamed(&x, VARIES, &info);
    memset(&done, 0xa5, sizeof done);
    done.size = sizeof done;
    same_done = done;
    data = x.data;
    data.read = NULL;
    REFUSED(elsa_stream_run(stream, &data, &done), ARGUMENT, "read: null");
    data = x.data;
    data.write = NULL;
    REFUSED(elsa_stream_run(stream, &data, &done), ARGUMENT, "write: null");
    data = x.data;
    data.key_lengths.data = lengths, data.key_lengths.count = 1;
    REFUSED(elsa_stream_run(stream, &data, &done), ARGUMENT, "key_lengths");
    data = x.data;
    data.cu_seqlens_q.count = 1;
    REFUSED(elsa_stream_run(stream, &data, &done), ARGUMENT, "cu_seqlens_q: null");
    data = x.data;
    data.size--;
    REFUSED(elsa_stream_run(stream, &data, &done), ARGUMENT, "data.size: ");
    REFUSED(elsa_stream_run(stream, NULL, &done), ARGUMENT, "data: null");
    REFUSED(elsa_stream_run(made, &x.data, &done), HANDLE, "stream: handle 0x5");
    CHECK(memcmp(&done, &same_done, sizeof done) == 0);
    done.size = 9;
    REFUSED(elsa_stream_run(stream, &x.data, &done), ARGUMENT, "report.size: 9");
    memset(&info, 0xa5, sizeof info);
    info.size = sizeof info;
    same_info = info;
    REFUSED(elsa_stream_describe(made, &info), HANDLE, "stream: handle 0x5");
    REFUSED(elsa_stream_describe(stream, NULL), ARGUMENT, "info: null");
    CHECK(memcmp(&info, &same_info, sizeof info) == 0);
    OK(elsa_stream_destroy(stream));
    REFUSED(elsa_stream_destroy(stream), HANDLE, "stream: handle");
    REFUSED(elsa_stream_run(stream, &x.data, NULL), HANDLE, "stream: handle");
    made.id = 0;
    REFUSED(elsa_stream_describe(made, &info), HANDLE, "stream: handle 0x0");
    CHECK(strncmp(elsa_status_text(ELSA_STATUS_CALLBACK), "ELSA_STATUS_CALLBACK: ", 22) == 0);
}

/* Keys and values that are larger than all that a run allocates. Scores are zero, so that the answer is a mean. */
enum { LONG = 1 << 19, ODD_VALUE = 3 };
static size_t most_at_once;

static int32_t makes(void *unused, const elsa_rows *rows, void *data, size_t bytes) {
    size_t t;
    float *to = (float *)data;
    (void)unused;
    if (bytes > most_at_once) most_at_once = bytes;
    memset(to, 0, bytes);
    if (rows->operand == ELSA_OPERAND_V)
        for (t = 0; t < rows->count[2]; t++)
            if ((rows->first[2] + t) % 2 == 1) to[t * rows->strides[2]] = ODD_VALUE;
    return 0;
}

static int32_t means(void *answer, const elsa_rows *rows, const void *data, size_t bytes) {
    (void)rows;
    memcpy(answer, data, bytes);
    return 0;
}

static void larger_than_memory(void) {
    elsa_problem problem;
    elsa_stream_options how;
    elsa_stream_info info;
    elsa_stream_report done;
    elsa_stream_data data;
    elsa_stream stream;
    float answer[D];
    elsa_problem_init(&problem);
    elsa_stream_options_init(&how);
    elsa_stream_info_init(&info);
    elsa_stream_report_init(&done);
    elsa_stream_data_init(&data);
    problem.q = problem.out = dense(1, 1, 1, D);
    problem.k = problem.v = dense(1, 1, LONG, D);
    CHECK(elsa_stream_create(engine, &problem, &how, &stream) == ELSA_STATUS_MEMORY);
    how.host_budget = named() + VARIES;
    OK(elsa_stream_create(engine, &problem, &how, &stream));
    OK(elsa_stream_describe(stream, &info));
    CHECK(info.units == 1 && info.resident_rows == 1);
    CHECK(8 * (info.host_bytes - info.fixed_bytes) < 2 * sizeof(float) * LONG * D);
    data.read = makes;
    data.write = means;
    data.user = answer;
    OK(elsa_stream_run(stream, &data, &done));
    CHECK(done.read_bytes == (2 * (size_t)LONG + 1) * sizeof(float) * D && done.written_bytes == sizeof answer);
    CHECK(done.parts == (LONG + info.chunk_keys - 1) / info.chunk_keys && most_at_once <= info.key_bytes);
    CHECK(answer[0] == ODD_VALUE / 2.0f && answer[1] == 0 && answer[D - 1] == 0);
    OK(elsa_stream_destroy(stream));
}

/* The CPU's best back end. */
static elsa_backend best(void) {
    elsa_backend backend = ELSA_BACKEND_CUDA;
    uint32_t present = 0;
    while (!present) OK(elsa_backend_present(--backend, &present));
    return backend;
}

int main(void) {
    elsa_engine_options options;
    size_t i;
    fill_all();
    for (i = 0; i < SPAN; i++) past_k[i] = q[SPAN - 1 - i], past_v[i] = k[SPAN - 1 - i];
    elsa_engine_options_init(&options);
    for (options.threads = 1; options.threads <= 2; options.threads++) {
        options.backend = options.threads == 1 ? ELSA_BACKEND_SCALAR : best();
        OK(elsa_engine_create(&options, &engine));
        kinds();
        if (options.threads == 2) {
            larger_than_memory();
            failures();
            within();
            at_once();
            refusals();
        }
        OK(elsa_engine_destroy(engine));
    }
    printf("%d checks\n", checks);
    return 0;
}
