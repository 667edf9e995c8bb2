/* Plain attention through elsa.h against a naive double loop, and misuse: each refusal is a status with a message. */
#include "elsa.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define H 2
#define N 37
#define D 16

static float q[H * N * D], k[H * N * D], v[H * N * D], out[H * N * D];
static int checks;

#define CHECK(x)                                                                    \
    do {                                                                            \
        checks++;                                                                   \
        if (!(x)) {                                                                 \
            fprintf(stderr, "%d: %s (%s)\n", __LINE__, #x, elsa_last_error());      \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

static void fill(float *x, unsigned seed) {
    size_t i;
    for (i = 0; i < H * N * D; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

static double error(void) {
    double worst = 0, y[D];
    size_t h, i, j, c;
    for (h = 0; h < H; h++)
        for (i = 0; i < N; i++) {
            double sum = 0;
            memset(y, 0, sizeof y);
            for (j = 0; j < N; j++) {
                double s = 0, p;
                for (c = 0; c < D; c++) s += (double)q[(h * N + i) * D + c] * k[(h * N + j) * D + c];
                p = exp(s / 4);
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

int main(void) {
    elsa_engine engine, other;
    elsa_plan plan;
    elsa_workspace room;
    elsa_bound bound;
    elsa_problem problem;
    elsa_inputs in;
    elsa_outputs to;
    elsa_report report;

    fill(q, 1);
    fill(k, 2);
    fill(v, 3);
    CHECK(elsa_engine_create(NULL, &engine) == ELSA_STATUS_OK);
    CHECK(elsa_engine_create(NULL, &other) == ELSA_STATUS_OK);
    CHECK(elsa_problem_init(&problem) == ELSA_STATUS_OK);
    CHECK(elsa_view_init(ELSA_LAYOUT_BHND, 1, H, N, D, &problem.q) == ELSA_STATUS_OK);
    problem.k = problem.v = problem.out = problem.q;
    CHECK(elsa_plan_create(engine, &problem, NULL, &plan) == ELSA_STATUS_OK);
    CHECK(elsa_workspace_create(plan, &room) == ELSA_STATUS_OK);
    memset(&in, 0, sizeof in);
    memset(&to, 0, sizeof to);
    in.q.data = q;
    in.k.data = k;
    in.v.data = v;
    in.q.bytes = in.k.bytes = in.v.bytes = to.out.bytes = sizeof q;
    to.out.data = out;
    CHECK(elsa_run(plan, room, &in, &to, &report) == ELSA_STATUS_OK);
    CHECK(error() < 1e-5);

    memset(out, 0, sizeof out);
    CHECK(elsa_bind(plan, room, &in, &to, &bound) == ELSA_STATUS_OK);
    CHECK(elsa_bound_run(bound, NULL) == ELSA_STATUS_OK);
    CHECK(error() < 1e-5);

    memset(out, 0, sizeof out);
    to.out.data = q;
    CHECK(elsa_run(plan, room, &in, &to, &report) == ELSA_STATUS_ARGUMENT);
    CHECK(strstr(elsa_last_error(), "overlap") != NULL);
    to.out.data = (char *)out + 1;
    CHECK(elsa_run(plan, room, &in, &to, &report) == ELSA_STATUS_ARGUMENT);
    CHECK(strstr(elsa_last_error(), "multiple of 4") != NULL);
    to.out.data = NULL;
    CHECK(elsa_run(plan, room, &in, &to, &report) == ELSA_STATUS_ARGUMENT);
    to.out.data = out;
    to.out.bytes -= 4;
    CHECK(elsa_run(plan, room, &in, &to, &report) == ELSA_STATUS_ARGUMENT);
    CHECK(out[0] == 0 && out[H * N * D - 1] == 0);
    to.out.bytes += 4;
    CHECK(elsa_run(plan, room, NULL, &to, &report) == ELSA_STATUS_ARGUMENT);

    CHECK(elsa_engine_destroy(engine) == ELSA_STATUS_OK);
    CHECK(elsa_engine_destroy(engine) == ELSA_STATUS_HANDLE);
    CHECK(elsa_run(plan, room, &in, &to, NULL) == ELSA_STATUS_OK);
    CHECK(elsa_plan_destroy(plan) == ELSA_STATUS_OK);
    CHECK(elsa_run(plan, room, &in, &to, NULL) == ELSA_STATUS_HANDLE);
    CHECK(elsa_workspace_destroy(room) == ELSA_STATUS_OK);
    CHECK(elsa_bound_run(bound, NULL) == ELSA_STATUS_OK);
    CHECK(elsa_bound_destroy(bound) == ELSA_STATUS_OK);
    CHECK(elsa_bound_run(bound, NULL) == ELSA_STATUS_HANDLE);
    CHECK(elsa_engine_destroy(other) == ELSA_STATUS_OK);
    printf("%d checks\n", checks);
    return 0;
}
