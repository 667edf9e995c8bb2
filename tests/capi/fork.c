/* A child of fork: its parent's engine computes there, only on the CPU and the calling thread and with the same bits,
   everything can be destroyed, and the child's own engine has threads. The parent does not notice. */
#define _POSIX_C_SOURCE 200809L
#define H 2
#define N 256
#define D 32
#include "common.h"

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static float first[COUNT];

static elsa_engine engine_of(size_t threads) {
    elsa_engine engine;
    elsa_engine_options options;
    elsa_engine_options_init(&options);
    options.threads = threads;
    OK(elsa_engine_create(&options, &engine));
    return engine;
}

/* Whether the parent computes on a GPU, which no child can use. */
static int on_gpu;

static void judge(void) {
    CHECK(error() < 1e-5);
    CHECK(on_gpu || memcmp(out, first, sizeof out) == 0);
}

static void run(const call *c, size_t workers) {
    elsa_report report;
    elsa_report_init(&report);
    memset(out, 0, sizeof out);
    OK(elsa_run(c->plan, c->room, &c->in, &c->to, &report));
    CHECK(report.backend == ELSA_BACKEND_CUDA || report.workers == workers);
    judge();
}

static void without_gpu(const call *c) {
    elsa_engine engine;
    elsa_engine_options options;
    elsa_report report;
    elsa_report_init(&report);
    OK(elsa_run(c->plan, c->room, &c->in, &c->to, &report));
    CHECK(report.backend != ELSA_BACKEND_CUDA && report.fallback && strstr(report.reason, "fork"));
    elsa_engine_options_init(&options);
    options.backend = ELSA_BACKEND_CUDA;
    options.fallback = ELSA_FALLBACK_FAIL;
    CHECK(elsa_engine_create(&options, &engine) == ELSA_STATUS_UNSUPPORTED);
    CHECK(strstr(elsa_last_error(), "fork"));
}

static void child(elsa_engine engine, const call *c, elsa_bound bound) {
    elsa_engine_info info;
    call other;
    run(c, 1);
    if (on_gpu) without_gpu(c);
    memset(out, 0, sizeof out);
    OK(elsa_bound_run(bound, NULL));
    judge();
    elsa_engine_info_init(&info);
    OK(elsa_engine_describe(engine, &info));
    CHECK(info.threads == 1);
    other = make(engine);
    run(&other, 1);
    end(&other);
    OK(elsa_bound_destroy(bound));
    end(c);
    OK(elsa_engine_destroy(engine));
    engine = engine_of(3);
    other = make(engine);
    run(&other, 3);
    end(&other);
    OK(elsa_engine_destroy(engine));
}

int main(void) {
    elsa_engine engine;
    elsa_bound bound;
    elsa_engine_info info;
    call c;
    int round;
    fill_all();
    engine = engine_of(4);
    c = make(engine);
    OK(elsa_bind(c.plan, c.room, &c.in, &c.to, &bound));
    elsa_engine_info_init(&info);
    OK(elsa_engine_describe(engine, &info));
    CHECK(info.threads == 4);
    on_gpu = info.backend == ELSA_BACKEND_CUDA;
    OK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL));
    CHECK(error() < 1e-5);
    memcpy(first, out, sizeof out);
    for (round = 0; round < 3; round++) {
        int status = -1;
        const pid_t made = fork();
        CHECK(made >= 0);
        if (made == 0) {
            /* A child that hangs is killed. */
            alarm(60);
            child(engine, &c, bound);
            _exit(0);
        }
        CHECK(waitpid(made, &status, 0) == made);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        run(&c, 4);
    }
    OK(elsa_bound_destroy(bound));
    end(&c);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
