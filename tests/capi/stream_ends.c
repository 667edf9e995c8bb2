/* Streams whose callbacks fail at every index, take their time, make other calls and end their stream; several at once;
   and refusals, which call nothing back. */
#define _POSIX_C_SOURCE 200809L
#include "stream.h"

/* SLOW: built for ThreadSanitizer, under which an operation takes fifty times as long: every twentieth index fails. */
#ifdef SLOW
enum { FEW = 400, STEP = 20 };
#else
enum { FEW = 400, STEP = 1 };
#endif

static int64_t lengths[1];

/* Runs callbacks that fail at every index; each run continues from its end. */
static void failures(void) {
    static both x;
    elsa_stream_info info;
    elsa_stream_report done;
    elsa_stream stream;
    int which, i, calls[2];
    prepare(&x, 1, FEW, 600);
    x.how.eta = 0.1;
    in_memory(&x);
    stream = in_units(&x, 1, 20, &info);
    forget();
    OK(elsa_stream_run(stream, &x.data, NULL));
    calls[0] = of_run.reads, calls[1] = of_run.writes;
    CHECK(info.units > 1 && info.units < 20 && calls[0] > 6 && calls[1] > 5);
    for (which = 0; which < 2; which++)
        for (i = 1; i <= calls[which]; i += STEP) {
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
            /* Outputs of the unfinished unit are written again. */
            finished = done.finished;
            x.data.first_unit = finished;
            OK(elsa_stream_run(stream, &x.data, &done));
            x.data.first_unit = 0;
            CHECK(done.finished == info.units && done.units == info.units);
            CHECK(memcmp(stream_out, out, sizeof(float) * H * FEW * D) == 0);
            CHECK(memcmp(stream_w, state_w, sizeof(float) * H * FEW * D) == 0);
        }
    /* No work is left. */
    x.data.first_unit = info.units;
    forget();
    OK(elsa_stream_run(stream, &x.data, &done));
    CHECK(of_run.reads == 0 && of_run.writes == 0 && done.finished == info.units && done.parts == 0);
    x.data.first_unit = info.units + 1;
    CHECK(elsa_stream_run(stream, &x.data, NULL) == ELSA_STATUS_ARGUMENT);
    CHECK(strstr(elsa_last_error(), "first unit") != NULL && of_run.reads == 0);
    OK(elsa_stream_destroy(stream));
}

/* Permitted actions of callbacks: other calls, ending their stream, and taking their time. */
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
    double waited = 0;
    int i;
    prepare(&x, 1, ROWS, N);
    in_memory(&x);
    /* One row of each head is enough for the concurrent call; its memory is separate, and calls alternate in it. */
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
    /* A run waits for its first chunk, the queries, keys and values, 2 ms each. On a busy machine the waiting thread may
       itself be scheduled late, so one run of ten has to show the wait. */
    for (i = 0; i < 10 && waited < 6; i++) {
        forget();
        of_run.slow = 2000;
        OK(elsa_stream_run(stream, &x.data, &done));
        of_run.slow = 0;
        same(&x, &done);
        CHECK(done.read_ms >= 2.0 * of_run.reads && done.compute_ms >= 2.0 * of_run.writes);
        CHECK(fabs(done.overlap - (1 - done.wait_ms / done.total_ms)) < 1e-9);
        waited = done.wait_ms;
    }
    CHECK(waited >= 6);
    /* The outputs of a unit follow all of its reads, so the callbacks may share a workspace. */
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

/* Checks a refusal that names the argument; nothing is called back, and nothing is written. */
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

int main(void) {
    elsa_engine_options options;
    fill_all();
    elsa_engine_options_init(&options);
    options.threads = 2;
    options.backend = best();
    OK(elsa_engine_create(&options, &engine));
    failures();
    within();
    at_once();
    refusals();
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
