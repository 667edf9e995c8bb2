/* Streams that SIGKILL ends, and that another process resumes: the outputs in a file have the bits of the run in memory. */
#define _POSIX_C_SOURCE 200809L
#include "stream.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FEW = 400 };

/* The content of the file: what a process needs to resume the run, and the outputs. */
typedef struct {
    size_t sizes[5], units, finished;
    float out[SPAN], lse[H * N], m[H * N], s[H * N], w[SPAN];
} durable;

static durable *file;
/* Number of finished units after which the process ends, in the middle of the next unit. */
static size_t stop;
static both x;

static int32_t until_killed(void *given, const elsa_rows *rows, const void *data, size_t bytes) {
    const int32_t code = writes(given, rows, data, bytes);
    if (file->finished == stop) kill(getpid(), SIGKILL);
    return code;
}

/* Makes the outputs of a unit durable, and then the fact that it is finished. */
static int32_t finished(void *given, size_t unit) {
    MUST(given == &of_run && pthread_equal(pthread_self(), of_run.caller));
    MUST(unit == file->finished);
    MUST(msync(file, sizeof *file, MS_SYNC) == 0);
    file->finished = unit + 1;
    MUST(msync(file, sizeof *file, MS_SYNC) == 0);
    return 0;
}

static void begin(void) {
    elsa_engine_options options;
    elsa_engine_options_init(&options);
    options.threads = 2;
    options.backend = best();
    OK(elsa_engine_create(&options, &engine));
    prepare(&x, 1, FEW, 600);
    x.how.eta = 0.1;
    x.data.unit_finished = finished;
    of_run.of[ELSA_OPERAND_OUT].data = (char *)file->out;
    of_run.of[ELSA_OPERAND_LSE].data = (char *)file->lse;
    of_run.of[ELSA_OPERAND_STATE_M].data = (char *)file->m;
    of_run.of[ELSA_OPERAND_STATE_S].data = (char *)file->s;
    of_run.of[ELSA_OPERAND_STATE_W].data = (char *)file->w;
}

/* The process that is killed. */
static void first(void) {
    elsa_stream_info info;
    elsa_stream stream;
    begin();
    stream = in_units(&x, 2, 20, &info);
    memcpy(file->sizes, info.sizes, sizeof file->sizes);
    file->units = info.units;
    x.data.write = until_killed;
    OK(elsa_stream_run(stream, &x.data, NULL));
}

/* The process that resumes the run. */
static void second(void) {
    elsa_stream_info info;
    elsa_stream_report done;
    elsa_stream stream;
    begin();
    memcpy(x.how.sizes, file->sizes, sizeof file->sizes);
    stream = streamed(&x, VARIES, &info);
    CHECK(info.units == file->units && memcmp(info.sizes, file->sizes, sizeof info.sizes) == 0);
    x.data.first_unit = file->finished;
    elsa_stream_report_init(&done);
    OK(elsa_stream_run(stream, &x.data, &done));
    CHECK(done.finished == info.units && file->finished == info.units);
    OK(elsa_stream_destroy(stream));
    OK(elsa_engine_destroy(engine));
}

/* Calls a function in another process, and returns how that process ended. */
static int in_another(void (*work)(void)) {
    int status = 0;
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        work();
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static int same_bits(void) {
    const size_t rows = (size_t)H * FEW;
    return memcmp(file->out, out, rows * D * sizeof *out) == 0 && memcmp(file->lse, lse, rows * sizeof *lse) == 0 &&
           memcmp(file->m, state_m, rows * sizeof *lse) == 0 && memcmp(file->s, state_s, rows * sizeof *lse) == 0 &&
           memcmp(file->w, state_w, rows * D * sizeof *out) == 0;
}

/* Runs whose callback unit_finished ends them, and the sizes of another stream. */
static int32_t refuses(void *given, size_t unit) {
    return finished(given, unit) + (unit == 1 ? 5 : 0);
}

static void ended(void) {
    elsa_stream_info info;
    elsa_stream_report done;
    elsa_stream stream = in_units(&x, 2, 20, &info);
    file->finished = 0;
    memset(file->out, 0xff, sizeof file->out);
    elsa_stream_report_init(&done);
    x.data.unit_finished = refuses;
    CHECK(elsa_stream_run(stream, &x.data, &done) == ELSA_STATUS_CALLBACK);
    CHECK(done.code == 5 && done.operand == 0 && done.finished == 1 && done.units == info.units);
    CHECK(strstr(elsa_last_error(), "unit_finished returned 5") != NULL);
    x.data.unit_finished = NULL;
    x.data.first_unit = done.finished;
    OK(elsa_stream_run(stream, &x.data, &done));
    CHECK(done.finished == info.units && same_bits());
    OK(elsa_stream_destroy(stream));
    /* Sizes that no stream has are taken as the nearest possible ones. */
    memset(x.how.sizes, 0xff, sizeof x.how.sizes);
    x.data.first_unit = 0;
    stream = streamed(&x, VARIES, &info);
    CHECK(info.units == 1);
    OK(elsa_stream_destroy(stream));
}

int main(void) {
    static durable ends[3];
    FILE *temporary = tmpfile();
    CHECK(temporary != NULL && ftruncate(fileno(temporary), sizeof *file) == 0);
    file = (durable *)mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(temporary), 0);
    CHECK(file != MAP_FAILED);
    fill_all();
    /* No thread of the library exists in this process before the last child has ended. */
    for (stop = 0; stop < 3; stop++) {
        int status;
        memset(file, 0xff, sizeof *file);
        file->finished = 0;
        status = in_another(first);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        CHECK(file->finished == stop && file->units > stop);
        status = in_another(second);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        ends[stop] = *file;
    }
    begin();
    in_memory(&x);
    for (stop = 0; stop < 3; stop++) {
        *file = ends[stop];
        CHECK(same_bits());
    }
    ended();
    OK(elsa_engine_destroy(engine));
    CHECK(munmap(file, sizeof *file) == 0 && fclose(temporary) == 0);
    printf("%d checks\n", checks);
    return 0;
}
