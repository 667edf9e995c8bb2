/* Streams within a budget of GPU memory, with NVIDIA's driver or the stand-in: answers against sums in f64, the memory of the
   stream, runs that a callback ends and that go on, and refusals. */
#define _POSIX_C_SOURCE 200809L
#include "stream.h"

enum { QUERIES = 300 };

static both x;
static elsa_stream made;

/* The thread that runs a stream on a GPU reads its inputs. */
static int32_t fills(void *given, const elsa_rows *rows, void *data, size_t bytes) {
    user *u = (user *)given;
    MUST(pthread_equal(pthread_self(), u->caller) && rows->operand < ELSA_OPERAND_OUT);
    if (++u->reads == u->fail_read) {
        u->failed = rows->operand;
        return -1000 - u->reads;
    }
    move(checked(u, rows, bytes), rows, (char *)data, 0);
    return 0;
}

/* Prepares a problem in which query i attends the keys to i + N - QUERIES. */
static void describe_problem(void) {
    prepare(&x, 1, QUERIES, N);
    x.problem.causal = ELSA_CAUSAL_BOTTOM_RIGHT;
    x.data.read = fills;
    x.how.outputs = ELSA_STREAM_OUT | ELSA_STREAM_LSE;
    x.how.host_budget = (size_t)1 << 30;
    x.how.eta = 0.05;
    memset(stream_out, 0xff, sizeof stream_out);
    memset(stream_lse, 0xff, sizeof stream_lse);
}

/* Returns the largest distance of the streamed outputs from attention in f64. */
static double wrong(void) {
    double worst = 0;
    size_t h, i, j, c;
    for (h = 0; h < H; h++)
        for (i = 0; i < QUERIES; i++) {
            const float *row = q + (i * H + h) * D, *y = stream_out + (i * H + h) * D;
            double sum = 0, all[D], e;
            memset(all, 0, sizeof all);
            for (j = 0; j <= i + N - QUERIES; j++) {
                const size_t key = (h / (H / SHARED) * N + j) * D;
                double s = 0, p;
                for (c = 0; c < D; c++) s += (double)row[c] * k[key + c];
                p = exp(s / sqrt((double)D));
                sum += p;
                for (c = 0; c < D; c++) all[c] += p * v[key + c];
            }
            for (c = 0; c <= D; c++) {
                e = c < D ? fabs(all[c] / sum - y[c]) : fabs(log(sum) - stream_lse[h * QUERIES + i]);
                if (!(e <= worst)) worst = e == e ? e : HUGE_VAL;
            }
        }
    return worst;
}

#define REFUSED(status, begin)                                                           \
    do {                                                                                 \
        made.id = 77;                                                                    \
        CHECK(elsa_stream_create(engine, &x.problem, &x.how, &made) == (status));        \
        CHECK(strncmp(elsa_last_error(), begin, strlen(begin)) == 0 && made.id == 77);   \
    } while (0)

/* Returns the bytes of GPU memory that a stream needs, from the message for a budget that is too small. */
static size_t least(void) {
    const char *text;
    x.how.device_budget = 1;
    REFUSED(ELSA_STATUS_MEMORY, "device_budget: 1 bytes; allowed: at least ");
    text = strstr(elsa_last_error(), "at least ");
    return (size_t)strtoull(text + 9, NULL, 10);
}

/* A stream on a GPU has one run at a time. */
static void again(void) {
    MUST(elsa_stream_run(made, &x.data, NULL) == ELSA_STATUS_BUSY);
}

static void answers(void) {
    elsa_stream_info info;
    elsa_stream_report done;
    size_t i;
    describe_problem();
    x.how.device_budget = 2 * least();
    OK(elsa_stream_create(engine, &x.problem, &x.how, &made));
    elsa_stream_info_init(&info);
    OK(elsa_stream_describe(made, &info));
    CHECK(info.backend == ELSA_BACKEND_CUDA && info.fallback == 0 && strlen(info.kernel) > 0);
    CHECK(info.device_bytes > 0 && info.device_bytes <= x.how.device_budget && info.workspace_bytes == 0);
    CHECK(info.units > 1 && info.chunk_keys < N && info.resident_rows < H * QUERIES);
    of_run.also = again;
    elsa_stream_report_init(&done);
    OK(elsa_stream_run(made, &x.data, &done));
    CHECK(wrong() < 1e-5);
    CHECK(done.code == 0 && done.units == info.units && done.finished == info.units && done.parts > done.units);
    CHECK(done.written_bytes == H * QUERIES * (D + 1) * sizeof(float) && done.read_bytes > 0 && done.total_ms > 0);
    for (i = 0; i < H * QUERIES * D; i++) CHECK(of_run.written[i] == 1);
    OK(elsa_stream_destroy(made));
}

/* A run that a callback ends goes on after the finished units. */
static void endings(void) {
    elsa_stream_report done;
    int failing;
    for (failing = 0; failing < 2; failing++) {
        describe_problem();
        x.how.device_budget = 2 * least();
        OK(elsa_stream_create(engine, &x.problem, &x.how, &made));
        if (failing == 0)
            of_run.fail_read = 2;
        else
            of_run.fail_write = 3;
        elsa_stream_report_init(&done);
        CHECK(elsa_stream_run(made, &x.data, &done) == ELSA_STATUS_CALLBACK);
        CHECK(done.code == (failing == 0 ? -1002 : 1003) && done.operand == of_run.failed);
        CHECK(done.units > 1 && done.finished == (size_t)failing && !(wrong() < 1e-5));
        of_run.fail_read = of_run.fail_write = 0;
        x.data.first_unit = done.finished;
        OK(elsa_stream_run(made, &x.data, &done));
        CHECK(done.finished == done.units && wrong() < 1e-5);
        x.data.first_unit = done.units + 1;
        CHECK(elsa_stream_run(made, &x.data, &done) == ELSA_STATUS_ARGUMENT);
        OK(elsa_stream_destroy(made));
    }
}

static void refusals(void) {
    elsa_engine_options options;
    const elsa_engine gpu = engine;
    describe_problem();
    x.how.device_budget = (size_t)1 << 28;
    x.how.block = 128;
    REFUSED(ELSA_STATUS_ARGUMENT, "block: 128; ");
    x.how.block = 0;
    x.how.host_budget = 1;
    REFUSED(ELSA_STATUS_MEMORY, "host_budget: ");
    x.how.host_budget = (size_t)1 << 30;
    /* Without a budget of GPU memory, a stream needs a CPU. */
    x.how.device_budget = 0;
    REFUSED(ELSA_STATUS_UNSUPPORTED, "engine: ");
    x.how.device_budget = (size_t)1 << 28;
    elsa_engine_options_init(&options);
    options.backend = ELSA_BACKEND_SCALAR;
    options.threads = 1;
    OK(elsa_engine_create(&options, &engine));
    REFUSED(ELSA_STATUS_UNSUPPORTED, "backend: no GPU ");
    OK(elsa_engine_destroy(engine));
    engine = gpu;
}

int main(void) {
    elsa_engine_options options;
    fill_all();
    elsa_engine_options_init(&options);
    options.backend = ELSA_BACKEND_CUDA;
    options.fallback = ELSA_FALLBACK_FAIL;
    OK(elsa_engine_create(&options, &engine));
    answers();
    endings();
    refusals();
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
