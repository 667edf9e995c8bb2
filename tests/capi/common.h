/* Shared by the C programs: counted checks, tensors with noise, plain attention by a naive double loop, and a call of
   elsa.h with its problem, plan and workspace. A program may define the sizes H, N and D before it includes this file. */
#ifndef COMMON_H
#define COMMON_H

#include "elsa.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef N
#define H 2
#define N 37
#define D 16
#endif
#define COUNT (H * N * D)

static float q[COUNT], k[COUNT], v[COUNT], out[COUNT];
static int checks;

#define CHECK(x)                                                                    \
    do {                                                                            \
        checks++;                                                                   \
        if (!(x)) {                                                                 \
            fprintf(stderr, "%d: %s (%s)\n", __LINE__, #x, elsa_last_error());      \
            exit(1);                                                                \
        }                                                                           \
    } while (0)
#define OK(x) CHECK((x) == ELSA_STATUS_OK)

/* True if the driver is the stand-in, which guarantees its timing and detects more errors. */
#define STANDIN (getenv("ELSA_STANDIN") != NULL)

/* Numbers in from .. to. */
static inline void noise(float *x, size_t count, unsigned seed, float from, float to) {
    size_t i;
    for (i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = from + (to - from) * (float)(seed >> 8) / 16777216.0f;
    }
}

static inline void fill(float *x, unsigned seed) {
    noise(x, COUNT, seed, -1, 1);
}

static inline elsa_input input(const void *data, size_t bytes) {
    elsa_input made;
    made.data = data;
    made.bytes = bytes;
    return made;
}

static inline elsa_output output(void *data, size_t bytes) {
    elsa_output made;
    made.data = data;
    made.bytes = bytes;
    return made;
}

static inline void fill_all(void) {
    fill(q, 1);
    fill(k, 2);
    fill(v, 3);
}

/* Returns the largest distance of out from softmax(q k^T / sqrt(D)) v. */
static inline double error(void) {
    double worst = 0, y[D];
    size_t h, i, j, c;
    for (h = 0; h < H; h++)
        for (i = 0; i < N; i++) {
            double sum = 0;
            memset(y, 0, sizeof y);
            for (j = 0; j < N; j++) {
                double s = 0, p;
                for (c = 0; c < D; c++) s += (double)q[(h * N + i) * D + c] * k[(h * N + j) * D + c];
                p = exp(s / sqrt((double)D));
                sum += p;
                for (c = 0; c < D; c++) y[c] += p * v[(h * N + j) * D + c];
            }
            for (c = 0; c < D; c++) {
                double e = fabs(y[c] / sum - out[(h * N + i) * D + c]);
                if (!(e <= worst)) worst = e == e ? e : HUGE_VAL;
            }
        }
    return worst;
}

/* Returns the largest distance of found from expected; NaN must match NaN. */
static inline double farthest(const float *found, const double *expected, size_t count) {
    double worst = 0;
    size_t i;
    for (i = 0; i < count; i++) {
        const double e = fabs(found[i] - expected[i]);
        if (isnan(expected[i]) && isnan(found[i])) continue;
        if (!(e <= worst)) worst = e == e ? e : HUGE_VAL;
    }
    return worst;
}

typedef struct {
    elsa_problem problem;
    elsa_plan plan;
    elsa_workspace room;
    elsa_inputs in;
    elsa_outputs to;
} call;

/* Makes a call of plain attention of q, k and v in host memory. */
static inline call make(elsa_engine engine) {
    call c;
    elsa_problem_init(&c.problem);
    elsa_inputs_init(&c.in);
    elsa_outputs_init(&c.to);
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, H, N, D, &c.problem.q));
    c.problem.k = c.problem.v = c.problem.out = c.problem.q;
    OK(elsa_plan_create(engine, &c.problem, NULL, &c.plan));
    OK(elsa_workspace_create(c.plan, &c.room));
    c.in.q.data = q;
    c.in.k.data = k;
    c.in.v.data = v;
    c.in.q.bytes = c.in.k.bytes = c.in.v.bytes = c.to.out.bytes = sizeof q;
    c.to.out.data = out;
    return c;
}

static inline void end(const call *c) {
    OK(elsa_workspace_destroy(c->room));
    OK(elsa_plan_destroy(c->plan));
}

#endif
