/* A cache of fixed capacity: with key_lengths a call uses only the workers that its valid keys are worth, gives the
   bits of a plan for just those keys, and touches no row beyond them, which here would end the program. */
#define _GNU_SOURCE
#define H 8
#define N 2048
#define D 64
#include "common.h"

#include <sys/mman.h>
#include <unistd.h>

#define MOST_QUERIES 16

static float expected[MOST_QUERIES * H * D];
static elsa_backend backend;

/* Noise of magnitude 1/4 to 1/2 in elements of 16 bits. */
static void fill_halves(unsigned char *to, elsa_dtype dtype, size_t count, unsigned seed) {
    size_t i;
    for (i = 0; i < count; i++) {
        unsigned bits;
        seed = seed * 1664525u + 1013904223u;
        bits = dtype == ELSA_DTYPE_F16 ? 0x3400 | (seed >> 8 & 0x3ff) : 0x3e80 | (seed >> 8 & 0x7f);
        bits |= seed >> 31 << 15;
        to[2 * i] = (unsigned char)bits;
        to[2 * i + 1] = (unsigned char)(bits >> 8);
    }
}

/* A call of `queries` queries and a cache of `rows` rows, with `valid` valid ones. */
typedef struct {
    call c;
    int64_t length[1];
} cached;

static void set(cached *x, elsa_engine engine, elsa_dtype dtype, size_t queries, size_t rows, int64_t valid,
                void *keys, void *values) {
    const size_t size = dtype == ELSA_DTYPE_F32 ? 4 : 2;
    call *c = &x->c;
    elsa_problem_init(&c->problem);
    elsa_inputs_init(&c->in);
    elsa_outputs_init(&c->to);
    c->problem.dtype = dtype;
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, H, queries, D, &c->problem.q));
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, H, rows, D, &c->problem.k));
    c->problem.v = c->problem.k;
    c->problem.out = c->problem.q;
    c->problem.has_key_lengths = (uint32_t)(valid >= 0);
    OK(elsa_plan_create(engine, &c->problem, NULL, &c->plan));
    OK(elsa_workspace_create(c->plan, &c->room));
    x->length[0] = valid;
    if (valid >= 0) {
        c->in.key_lengths.data = x->length;
        c->in.key_lengths.count = 1;
    }
    fill(q, 1);
    if (dtype != ELSA_DTYPE_F32) fill_halves((unsigned char *)q, dtype, H * queries * D, 7);
    c->in.q.data = q;
    c->in.k.data = keys;
    c->in.v.data = values;
    c->to.out.data = out;
    c->in.q.bytes = c->to.out.bytes = H * queries * D * size;
    c->in.k.bytes = c->in.v.bytes = H * rows * D * size;
}

/* Whether every element of the output is a number, and at least one is not zero. */
static int is_plausible(elsa_dtype dtype, size_t count) {
    const unsigned char *bytes = (const unsigned char *)out;
    const unsigned top = dtype == ELSA_DTYPE_F16 ? 0x7c00 : 0x7f80;
    size_t i, others = 0;
    for (i = 0; i < count; i++) {
        const size_t at = dtype == ELSA_DTYPE_F32 ? 4 * i + 2 : 2 * i;
        const unsigned bits = (unsigned)(bytes[at] | bytes[at + 1] << 8);
        if ((bits & top) == top) return 0;
        others += (bits & 0x7fff) != 0;
    }
    return others > 0;
}

static size_t run(const call *c) {
    elsa_report report;
    elsa_report_init(&report);
    memset(out, 0xff, sizeof out);
    OK(elsa_run(c->plan, c->room, &c->in, &c->to, &report));
    CHECK(report.backend == backend);
    CHECK(is_plausible(c->problem.dtype, H * c->problem.q.shape[2] * D));
    return report.workers;
}

/* Each head has its rows in separate pages; those after the valid rows must not be touched. */
static void keep_out(unsigned char *cache, size_t head, size_t valid, int protection) {
    size_t h;
    for (h = 0; h < H; h++) CHECK(mprotect(cache + h * head + valid, head - valid, protection) == 0);
}

static void compare(elsa_engine engine, elsa_dtype dtype, size_t queries, size_t valid) {
    static float exact_k[COUNT], exact_v[COUNT];
    static cached fixed, exact;
    const size_t row = D * (dtype == ELSA_DTYPE_F32 ? 4 : 2);
    const size_t bytes = H * N * row;
    unsigned char *caches[2], *kept[2];
    size_t h, i, workers, few;
    kept[0] = (unsigned char *)exact_k;
    kept[1] = (unsigned char *)exact_v;
    for (i = 0; i < 2; i++) {
        caches[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK((void *)caches[i] != MAP_FAILED);
        if (dtype == ELSA_DTYPE_F32)
            memcpy(caches[i], i == 0 ? k : v, bytes);
        else
            fill_halves(caches[i], dtype, H * N * D, (unsigned)i);
        for (h = 0; h < H; h++) memcpy(kept[i] + h * valid * row, caches[i] + h * N * row, valid * row);
    }
    set(&fixed, engine, dtype, queries, N, (int64_t)valid, caches[0], caches[1]);
    set(&exact, engine, dtype, queries, valid, -1, exact_k, exact_v);
    workers = run(&exact.c);
    memcpy(expected, out, exact.c.to.out.bytes);
    for (i = 0; i < 2; i++) keep_out(caches[i], N * row, valid * row, PROT_NONE);
    few = run(&fixed.c);
    CHECK(few == workers);
    CHECK(memcmp(out, expected, exact.c.to.out.bytes) == 0);
    for (i = 0; i < 2; i++) keep_out(caches[i], N * row, valid * row, PROT_READ | PROT_WRITE);
    /* The full capacity is worth all the workers. */
    fixed.length[0] = N;
    CHECK(run(&fixed.c) >= workers);
    end(&fixed.c);
    end(&exact.c);
    for (i = 0; i < 2; i++) CHECK(munmap(caches[i], bytes) == 0);
}

/* Rows of elements of that size in a page, which the valid rows must fill. */
static size_t rows_of_a_page(size_t size) {
    return (size_t)sysconf(_SC_PAGESIZE) / (D * size);
}

int main(void) {
    elsa_engine_options options;
    elsa_engine engine;
    size_t times[3] = {1, 8, 32};
    size_t i, queries;
    fill_all();
    for (backend = ELSA_BACKEND_SCALAR; backend < ELSA_BACKEND_CUDA; backend++) {
        uint32_t is_present = 0;
        OK(elsa_backend_present(backend, &is_present));
        if (!is_present) continue;
        elsa_engine_options_init(&options);
        options.threads = 4;
        options.backend = backend;
        OK(elsa_engine_create(&options, &engine));
        for (queries = 1; queries <= MOST_QUERIES; queries *= MOST_QUERIES)
            for (i = 0; i < 3; i++) {
                compare(engine, ELSA_DTYPE_F32, queries, times[i] * rows_of_a_page(4));
                compare(engine, ELSA_DTYPE_F16, queries, times[i] * rows_of_a_page(2));
                compare(engine, ELSA_DTYPE_BF16, queries, times[i] * rows_of_a_page(2));
            }
        OK(elsa_engine_destroy(engine));
    }
    printf("%d checks\n", checks);
    return 0;
}
