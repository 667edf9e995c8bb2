/* The cost of a copy: the same attention over ordinary memory, over buffers, and over device memory, on the first back
   end that is present. The answers have the same bits; the median times are printed. ELSA_COPIES_RUNS is the number of
   runs of each. */
#define _POSIX_C_SOURCE 200809L
#define H 8
#define N 1024
#define D 64
#include "common.h"
#include "driver.h"

#include <time.h>

#define MOST 1000

static double now(void) {
    struct timespec t;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &t) == 0);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Runs a call many times and prints its time. */
static void measure(const char *what, const call *c, int on_device, long runs) {
    static double took[MOST];
    double first;
    elsa_report report;
    long i;
    elsa_report_init(&report);
    OK(elsa_plan_warm(c->plan, c->room));
    for (i = 0; i < runs; i++) {
        const double start = now();
        if (on_device)
            OK(elsa_run_device(c->plan, c->room, &c->in, &c->to, NULL, &report));
        else
            OK(elsa_run(c->plan, c->room, &c->in, &c->to, &report));
        took[i] = now() - start;
    }
    CHECK(!report.fallback);
    first = took[0];
    qsort(took, (size_t)runs, sizeof *took, by_value);
    printf("%-34s first %8.1f us, median %8.1f us, %9lu bytes copied\n", what, first, took[runs / 2],
           (unsigned long)report.copied_bytes);
}

int main(void) {
    static float want[COUNT];
    const char *given = getenv("ELSA_COPIES_RUNS");
    const long runs = given != NULL ? strtol(given, NULL, 10) : STANDIN ? 2 : 300;
    elsa_engine engine;
    elsa_engine_info engine_info;
    elsa_buffer buffer;
    elsa_buffer_info info;
    call c, d;
    char *base;
    address memory[4];
    void *context = NULL, *popped = NULL;
    int i;
    CHECK(runs > 0 && runs <= MOST);
    fill_all();
    OK(elsa_engine_create(NULL, &engine));
    elsa_engine_info_init(&engine_info);
    OK(elsa_engine_describe(engine, &engine_info));
    printf("%d heads, %d tokens, d = %d, f32, %s%s\n", H, N, D, engine_info.device[0] ? engine_info.device : "CPU",
           engine_info.integrated ? ", integrated" : "");
    c = make(engine);
    measure("elsa_run, ordinary memory", &c, 0, runs);
    CHECK(error() < 1e-5);
    memcpy(want, out, sizeof out);

    OK(elsa_buffer_create(engine, 4 * sizeof out, &buffer));
    elsa_buffer_info_init(&info);
    OK(elsa_buffer_describe(buffer, &info));
    base = info.data;
    memcpy(base, q, sizeof q);
    memcpy(base + sizeof q, k, sizeof k);
    memcpy(base + 2 * sizeof q, v, sizeof v);
    for (i = 0; i < 2; i++) {
        if (i == 1 && info.device_data == NULL) break;
        base = i == 0 ? info.data : info.device_data;
        memset((char *)info.data + 3 * sizeof q, 0xff, sizeof out);
        d = c;
        d.in.q.data = base;
        d.in.k.data = base + sizeof q;
        d.in.v.data = base + 2 * sizeof q;
        d.to.out.data = base + 3 * sizeof q;
        measure(i == 0 ? "elsa_run, buffers" : "elsa_run_device, buffers", &d, i, runs);
        CHECK(memcmp((char *)info.data + 3 * sizeof q, want, sizeof want) == 0);
    }
    OK(elsa_buffer_destroy(buffer));

    if (engine_info.backend == ELSA_BACKEND_CUDA) {
        open_driver();
        CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxPushCurrent(context) == 0);
        memset(out, 0xff, sizeof out);
        memory[0] = upload(q, sizeof q);
        memory[1] = upload(k, sizeof k);
        memory[2] = upload(v, sizeof v);
        memory[3] = upload(out, sizeof out);
        d.in.q.data = (const void *)(size_t)memory[0];
        d.in.k.data = (const void *)(size_t)memory[1];
        d.in.v.data = (const void *)(size_t)memory[2];
        d.to.out.data = (void *)(size_t)memory[3];
        measure("elsa_run_device, device memory", &d, 1, runs);
        CHECK(cuMemcpyDtoH(out, memory[3], sizeof out) == 0);
        CHECK(memcmp(out, want, sizeof want) == 0);
        for (i = 0; i < 4; i++) CHECK(cuMemFree(memory[i]) == 0);
        CHECK(cuCtxPopCurrent(&popped) == 0 && cuDevicePrimaryCtxRelease(0) == 0);
    }
    end(&c);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
