/* The caller's floating-point environment: for any rounding mode, subnormal mode and traps, calls give the same bits,
   raise no signal, and leave the environment and its flags unchanged. */
#define _GNU_SOURCE
#define H 2
#define N 130
#define D 24
#include "common.h"

#include <fenv.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static float first[COUNT], lse[H * N], first_lse[H * N], m[H * N], s[H * N], w[COUNT];
static unsigned char mask[N];

/* Flushes subnormal operands and results to zero, if the processor can. */
static void flush_to_zero(int on) {
#if defined(__x86_64__)
    _mm_setcsr(on ? _mm_getcsr() | 0x8040u : _mm_getcsr() & ~0x8040u);
#elif defined(__aarch64__)
    unsigned long x;
    __asm__ volatile("mrs %0, fpcr" : "=r"(x));
    x = on ? x | 1ul << 24 : x & ~(1ul << 24);
    __asm__ volatile("msr fpcr, %0" : : "r"(x));
#else
    (void)on;
#endif
}

static unsigned long control(void) {
#if defined(__x86_64__)
    return _mm_getcsr() & ~0x3fu;
#elif defined(__aarch64__)
    unsigned long x;
    __asm__ volatile("mrs %0, fpcr" : "=r"(x));
    return x;
#else
    return 0;
#endif
}

/* Runs everything that computes: engine, plan, bound call, states. The mask excludes every key of the second call. */
static void all(void) {
    elsa_engine engine;
    elsa_engine_options options;
    elsa_states_in part;
    elsa_states_out both;
    call c;
    elsa_engine_options_init(&options);
    options.threads = 3;
    OK(elsa_engine_create(&options, &engine));
    c = make(engine);
    c.to.lse.data = lse;
    c.to.lse.bytes = sizeof lse;
    c.to.state_m.data = m;
    c.to.state_s.data = s;
    c.to.state_w.data = w;
    c.to.state_m.bytes = c.to.state_s.bytes = sizeof m;
    c.to.state_w.bytes = sizeof w;
    OK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL));
    part.m = both.m = m;
    part.s = both.s = s;
    part.w = both.w = w;
    OK(elsa_states_merge(H * N, D, &part, &part, &both));
    OK(elsa_states_finish(H * N, D, &part, out, NULL));
    end(&c);
    c = make(engine);
    end(&c);
    c.problem.mask.kind = ELSA_MASK_BOOL;
    c.problem.mask.rank = 1;
    c.problem.mask.dims[0] = N;
    OK(elsa_plan_create(engine, &c.problem, NULL, &c.plan));
    OK(elsa_workspace_create(c.plan, &c.room));
    c.in.mask.data = mask;
    c.in.mask.bytes = sizeof mask;
    c.to.out.data = w;
    OK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL));
    CHECK(w[0] == 0 && w[COUNT - 1] == 0);
    end(&c);
    OK(elsa_engine_destroy(engine));
}

static void hostile(int rounding, int flush, int traps) {
    unsigned long before;
    elsa_engine engine;
    int flags;
    memset(out, 0, sizeof out);
    memset(lse, 0, sizeof lse);
    CHECK(fesetround(rounding) == 0);
    flush_to_zero(flush);
    feclearexcept(FE_ALL_EXCEPT);
    if (traps) feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
    before = control();
    all();
    CHECK(control() == before && fegetround() == rounding);
    CHECK(fetestexcept(FE_ALL_EXCEPT) == 0);
    feraiseexcept(FE_INEXACT);
    flags = fetestexcept(FE_ALL_EXCEPT);
    OK(elsa_engine_create(NULL, &engine));
    OK(elsa_engine_destroy(engine));
    CHECK(fetestexcept(FE_ALL_EXCEPT) == flags);
    fedisableexcept(FE_ALL_EXCEPT);
    flush_to_zero(0);
    fesetround(FE_TONEAREST);
    CHECK(memcmp(out, first, sizeof out) == 0 && memcmp(lse, first_lse, sizeof lse) == 0);
}

int main(void) {
    static const int roundings[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    size_t i;
    fill_all();
    /* Subnormal products. */
    for (i = 0; i < COUNT; i += 5) v[i] *= 1e-38f;
    all();
    memcpy(first, out, sizeof out);
    memcpy(first_lse, lse, sizeof lse);
    CHECK(error() < 1e-5);
    for (i = 0; i < 16; i++) hostile(roundings[i & 3], (i & 4) != 0, (i & 8) != 0);
    printf("%d checks\n", checks);
    return 0;
}
