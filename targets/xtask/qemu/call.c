// Calls of the shipped library between markers: `cargo xtask count --calls` runs this program in an emulator of aarch64
// with the plugin count.c, which counts the instructions between `hint #0x7e` and `hint #0x7f`.
//
// The problem has one head, one query, one key and head size 64, so that a call does little else than pass through the
// library. Each of the three ways to make the call runs once to touch all memory, and then twice between markers. With one
// key, the output is the value, so a wrong call is not counted.
#include "elsa.h"

#include <stdio.h>
#include <string.h>

enum { DIM = 64, RUNS = 3 };

// Far above the rounding of a correct call, far below the distance of two values.
static const float TOLERANCE = 1e-3f;

static float q[DIM], k[DIM], v[2][DIM], out[DIM];

static void start(void) { __asm__ volatile("hint #0x7e" ::: "memory"); }
static void stop(void) { __asm__ volatile("hint #0x7f" ::: "memory"); }

static int failed(elsa_status status) {
    if (status != ELSA_STATUS_OK) fprintf(stderr, "status %d: %s\n", (int)status, elsa_last_error());
    return status != ELSA_STATUS_OK;
}

int main(void) {
    elsa_engine_options options;
    elsa_engine engine;
    elsa_problem problem;
    elsa_plan plan;
    elsa_workspace room;
    elsa_inputs in;
    elsa_outputs to;
    elsa_bound bound;
    elsa_engine_options_init(&options);
    elsa_problem_init(&problem);
    elsa_inputs_init(&in);
    elsa_outputs_init(&to);
    options.threads = 1;
    for (int i = 0; i < DIM; i++) q[i] = k[i] = 0.5f, v[0][i] = (float)i, v[1][i] = (float)-i;
    in.q.data = q, in.k.data = k, in.v.data = v[0], to.out.data = out;
    in.q.bytes = in.k.bytes = in.v.bytes = to.out.bytes = sizeof out;
    if (failed(elsa_engine_create(&options, &engine))) return 1;
    if (failed(elsa_view_init(ELSA_LAYOUT_BHND, 1, 1, 1, DIM, &problem.q))) return 1;
    problem.k = problem.v = problem.out = problem.q;
    if (failed(elsa_plan_create(engine, &problem, NULL, &plan))) return 1;
    if (failed(elsa_workspace_create(plan, &room)) || failed(elsa_bind(plan, room, &in, &to, &bound))) return 1;
    for (int way = 0; way < 3; way++)
        for (int run = 0; run < RUNS; run++) {
            elsa_status status, set = ELSA_STATUS_OK;
            in.v.data = v[run % 2];
            if (way == 0 && failed(elsa_bound_set(bound, &in, &to))) return 1;
            memset(out, 0xff, sizeof out);
            if (run > 0) start();
            if (way == 1) set = elsa_bound_set(bound, &in, &to);
            status = way == 2 ? elsa_run(plan, room, &in, &to, NULL) : elsa_bound_run(bound, NULL);
            if (run > 0) stop();
            if (failed(set) || failed(status)) return 1;
            for (int i = 0; i < DIM; i++) {
                const float error = out[i] - v[run % 2][i];
                if (!(error < TOLERANCE && -error < TOLERANCE)) {
                    fprintf(stderr, "way %d, element %d: %g, but %g\n", way, i, (double)out[i], (double)v[run % 2][i]);
                    return 1;
                }
            }
        }
    return 0;
}
