/* A client of ABI 1.1, as it was when that was current: compiled against the header beside it, linked with the library
   of today. What it prints is compared with old.txt. */
#include "elsa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 5, KEYS = 7, DIM = 4 };

static float q[ROWS * DIM], k[KEYS * DIM], v[KEYS * DIM], out[ROWS * DIM], lse[ROWS];
static int checks;

static void done(const char *what, elsa_status status) {
    checks++;
    printf("%s: %d\n", what, (int)status);
    if (status != ELSA_STATUS_OK) {
        printf("%s\n", elsa_last_error());
        exit(1);
    }
}

static void show(const char *what, const float *x, int rows, int columns) {
    int i, j;
    for (i = 0; i < rows; i++) {
        printf("%s", what);
        for (j = 0; j < columns; j++) printf(" %.4f", (double)x[i * columns + j]);
        printf("\n");
    }
}

static void fill(float *x, int count, int step) {
    int i;
    for (i = 0; i < count; i++) x[i] = (float)(i * step % 17) / 8.0f - 1.0f;
}

/* Copies dense rows of one head. */
static int32_t reads(void *unused, const elsa_rows *rows, void *data, size_t bytes) {
    const float *from = rows->operand == ELSA_OPERAND_Q ? q : rows->operand == ELSA_OPERAND_K ? k : v;
    size_t t;
    (void)unused, (void)bytes;
    for (t = 0; t < rows->count[2]; t++)
        memcpy((float *)data + t * rows->strides[2], from + (rows->first[2] + t) * DIM, sizeof(float) * DIM);
    return 0;
}

static int32_t writes(void *fails, const elsa_rows *rows, const void *data, size_t bytes) {
    float *to = rows->operand == ELSA_OPERAND_OUT ? out : lse;
    size_t t;
    (void)bytes;
    for (t = 0; t < rows->count[2]; t++)
        memcpy(to + (rows->first[2] + t) * rows->length, (const float *)data + t * rows->strides[2],
               sizeof(float) * rows->length);
    return *(const int32_t *)fails;
}

int main(void) {
    elsa_engine_options options;
    elsa_engine engine;
    elsa_engine_info on;
    elsa_problem problem;
    elsa_plan plan;
    elsa_plan_info chosen;
    elsa_workspace room;
    elsa_inputs in;
    elsa_outputs to;
    elsa_report report;
    elsa_bound frame;
    elsa_stream_options budget;
    elsa_stream_info account;
    elsa_stream_data callbacks;
    elsa_stream_report passed;
    elsa_stream stream;
    int32_t fails = 0;
    const int64_t lengths[1] = {6};

    fill(q, ROWS * DIM, 5);
    fill(k, KEYS * DIM, 3);
    fill(v, KEYS * DIM, 7);
    printf("ABI %u, as in the header: %d\n", elsa_abi_version() >> 16, elsa_abi_version() >> 16 == ELSA_ABI_MAJOR);

    elsa_engine_options_init(&options);
    options.backend = ELSA_BACKEND_SCALAR;
    options.threads = 1;
    done("engine", elsa_engine_create(&options, &engine));
    elsa_engine_info_init(&on);
    done("engine, described", elsa_engine_describe(engine, &on));
    printf("backend %u, threads %u, device '%s'\n", on.backend, (unsigned)on.threads, on.device);

    elsa_problem_init(&problem);
    done("queries", elsa_view_init(ELSA_LAYOUT_BHND, 1, 1, ROWS, DIM, &problem.q));
    done("keys", elsa_view_init(ELSA_LAYOUT_BNHD, 1, 1, KEYS, DIM, &problem.k));
    problem.out = problem.q;
    problem.v = problem.k;
    problem.causal = ELSA_CAUSAL_BOTTOM_RIGHT;
    problem.has_key_lengths = 1;
    problem.has_window_left = 1;
    problem.window_left = 3;
    problem.softcap = 30.0f;
    done("plan", elsa_plan_create(engine, &problem, NULL, &plan));
    elsa_plan_info_init(&chosen);
    done("plan, described", elsa_plan_describe(plan, &chosen));
    printf("backend %u, fallback %u '%s', staging %u\n", chosen.backend, chosen.fallback, chosen.reason,
           (unsigned)chosen.staging_bytes);
    done("workspace", elsa_workspace_create(plan, &room));

    elsa_inputs_init(&in);
    elsa_outputs_init(&to);
    elsa_report_init(&report);
    in.q.data = q;
    in.q.bytes = sizeof q;
    in.k.data = k;
    in.k.bytes = sizeof k;
    in.v.data = v;
    in.v.bytes = sizeof v;
    in.key_lengths.data = lengths;
    in.key_lengths.count = 1;
    to.out.data = out;
    to.out.bytes = sizeof out;
    to.lse.data = lse;
    to.lse.bytes = sizeof lse;
    done("run", elsa_run(plan, room, &in, &to, &report));
    printf("backend %u, fallback %u '%s', workers %u\n", report.backend, report.fallback, report.reason,
           (unsigned)report.workers);
    show("out", out, ROWS, DIM);
    show("lse", lse, 1, ROWS);
    done("frame", elsa_bind(plan, room, &in, &to, &frame));
    out[0] = -1.0f;
    done("frame, run", elsa_bound_run(frame, &report));
    show("out", out, 1, DIM);

    elsa_stream_options_init(&budget);
    budget.host_budget = (size_t)128 << 20;
    budget.outputs = ELSA_STREAM_OUT | ELSA_STREAM_LSE;
    done("stream", elsa_stream_create(engine, &problem, &budget, &stream));
    elsa_stream_info_init(&account);
    done("stream, described", elsa_stream_describe(stream, &account));
    printf("backend %u, fallback %u, rows %u, units %u\n", account.backend, account.fallback,
           (unsigned)account.resident_rows, (unsigned)account.units);
    elsa_stream_data_init(&callbacks);
    elsa_stream_report_init(&passed);
    callbacks.read = reads;
    callbacks.write = writes;
    callbacks.user = &fails;
    callbacks.key_lengths = in.key_lengths;
    memset(out, 0, sizeof out);
    memset(lse, 0, sizeof lse);
    done("stream, run", elsa_stream_run(stream, &callbacks, &passed));
    printf("units %u of %u, bytes %u and %u\n", (unsigned)passed.finished, (unsigned)passed.units,
           (unsigned)passed.read_bytes, (unsigned)passed.written_bytes);
    show("out", out, ROWS, DIM);
    show("lse", lse, 1, ROWS);
    fails = 7;
    printf("a callback that fails: %d\n", (int)elsa_stream_run(stream, &callbacks, &passed));
    printf("code %d, operand %u, units %u of %u\n", passed.code, passed.operand, (unsigned)passed.finished,
           (unsigned)passed.units);
    done("end of the stream", elsa_stream_destroy(stream));

    done("end of the frame", elsa_bound_destroy(frame));
    done("end of the workspace", elsa_workspace_destroy(room));
    done("end of the plan", elsa_plan_destroy(plan));
    done("end of the engine", elsa_engine_destroy(engine));
    printf("a handle that has ended: %d\n", (int)elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
