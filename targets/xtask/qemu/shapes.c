// Calls of the shipped library between markers, for the shapes that are its arguments: `cargo xtask count --calls` runs this
// program in an emulator of aarch64 with the plugin count.c, which counts the instructions between `hint #0x7e` and
// `hint #0x7f`.
//
// A shape is heads[/kv_heads],[queries:]keys,d of attention, perhaps followed by `,causal` (aligned to the last query and key)
// or by `,windows` (a third as many sequences as heads, with a bias that they share), or linear,heads,tokens,d of linear
// attention. The bound call of a shape runs once to touch all memory, and then twice between markers. One row of each output is
// compared with a loop in double, so that a wrong call is not counted.
#include "elsa.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 3, WINDOW_HEADS = 3 };

// Far above the rounding of a correct call, far below the error of a wrong one.
static const double TOLERANCE = 1e-4;

static void start(void) { __asm__ volatile("hint #0x7e" ::: "memory"); }
static void stop(void) { __asm__ volatile("hint #0x7f" ::: "memory"); }

static int failed(elsa_status status) {
    if (status != ELSA_STATUS_OK) fprintf(stderr, "status %d: %s\n", (int)status, elsa_last_error());
    return status != ELSA_STATUS_OK;
}

static float *wave(size_t count, float rate) {
    float *x = malloc(count * sizeof *x);
    for (size_t i = 0; x && i < count; i++) x[i] = sinf((float)i * rate);
    return x;
}

// Runs a bound call, counted.
static int run(elsa_bound bound) {
    for (int i = 0; i < RUNS; i++) {
        elsa_status status;
        if (i > 0) start();
        status = elsa_bound_run(bound, NULL);
        if (i > 0) stop();
        if (failed(status)) return 1;
    }
    return failed(elsa_bound_destroy(bound));
}

// Compares a row of an answer with the exact one.
static int differs(const char *shape, const float *found, const double *exact, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!(fabs(found[i] - exact[i]) < TOLERANCE)) {
            fprintf(stderr, "%s: element %zu: %g, but %g\n", shape, i, (double)found[i], exact[i]);
            return 1;
        }
    return 0;
}

static int attention(elsa_engine engine, const char *shape, size_t heads, size_t kv_heads, size_t queries, size_t keys,
                     size_t d, int causal, int windows) {
    const size_t batch = windows ? heads / WINDOW_HEADS : 1, h = heads / batch, g = kv_heads / batch;
    const size_t sizes[2] = {batch * h * queries * d, batch * g * keys * d}, pairs = h * queries * keys;
    float *q = wave(sizes[0], 0.37f), *k = wave(sizes[1], 0.61f), *v = wave(sizes[1], 0.89f), *y = wave(sizes[0], 0.0f);
    float *bias = wave(pairs, 0.23f);
    double *exact = calloc(d, sizeof *exact), total = 0.0;
    const size_t row = batch * h * queries - 1, key_head = (batch - 1) * g + (h - 1) / (h / g);
    elsa_problem problem;
    elsa_inputs in;
    elsa_outputs out;
    elsa_plan plan;
    elsa_workspace room;
    elsa_bound bound;
    elsa_problem_init(&problem), elsa_inputs_init(&in), elsa_outputs_init(&out);
    if (!q || !k || !v || !y || !bias || !exact) return 1;
    if (failed(elsa_view_init(ELSA_LAYOUT_BHND, batch, h, queries, d, &problem.q))) return 1;
    if (failed(elsa_view_init(ELSA_LAYOUT_BHND, batch, g, keys, d, &problem.k))) return 1;
    problem.v = problem.k, problem.out = problem.q;
    problem.causal = causal ? ELSA_CAUSAL_BOTTOM_RIGHT : ELSA_CAUSAL_NONE;
    in.q.data = q, in.k.data = k, in.v.data = v, out.out.data = y;
    in.q.bytes = out.out.bytes = sizes[0] * sizeof *q, in.k.bytes = in.v.bytes = sizes[1] * sizeof *k;
    if (windows) {
        problem.mask.kind = ELSA_MASK_F32, problem.mask.rank = 3;
        problem.mask.dims[0] = h, problem.mask.dims[1] = queries, problem.mask.dims[2] = keys;
        in.mask.data = bias, in.mask.bytes = pairs * sizeof *bias;
    }
    if (failed(elsa_plan_create(engine, &problem, NULL, &plan)) || failed(elsa_workspace_create(plan, &room))) return 1;
    if (failed(elsa_bind(plan, room, &in, &out, &bound)) || run(bound)) return 1;
    // The last row of the last head attends all keys.
    for (size_t key = 0; key < keys; key++) {
        double score = 0.0;
        for (size_t i = 0; i < d; i++) score += (double)q[row * d + i] * k[(key_head * keys + key) * d + i];
        score = exp(score / sqrt((double)d) + (windows ? bias[(h * queries - 1) * keys + key] : 0.0));
        total += score;
        for (size_t i = 0; i < d; i++) exact[i] += score * v[(key_head * keys + key) * d + i];
    }
    for (size_t i = 0; i < d; i++) exact[i] /= total;
    const int wrong = differs(shape, y + row * d, exact, d);
    free(q), free(k), free(v), free(y), free(bias), free(exact);
    return failed(elsa_workspace_destroy(room)) || failed(elsa_plan_destroy(plan)) || wrong;
}

static int linear(elsa_engine engine, const char *shape, size_t heads, size_t tokens, size_t d) {
    const size_t size = heads * tokens * d;
    float *q = wave(size, 0.37f), *k = wave(size, 0.61f), *v = wave(size, 0.89f), *y = wave(size, 0.0f);
    double *exact = calloc(d, sizeof *exact);
    elsa_linear_problem problem;
    elsa_linear_inputs in;
    elsa_linear_outputs out;
    elsa_plan plan;
    elsa_workspace room;
    elsa_bound bound;
    elsa_linear_problem_init(&problem), elsa_linear_inputs_init(&in), elsa_linear_outputs_init(&out);
    if (!q || !k || !v || !y || !exact) return 1;
    if (failed(elsa_view_init(ELSA_LAYOUT_BHND, 1, heads, tokens, d, &problem.q))) return 1;
    problem.k = problem.v = problem.out = problem.q;
    // Keys of this length keep the sums near one.
    problem.has_scale = 1, problem.scale = 1.0f / (float)d;
    in.q.data = q, in.k.data = k, in.v.data = v, out.out.data = y;
    in.q.bytes = in.k.bytes = in.v.bytes = out.out.bytes = size * sizeof *q;
    if (failed(elsa_linear_plan_create(engine, &problem, NULL, &plan))) return 1;
    if (failed(elsa_workspace_create(plan, &room))) return 1;
    if (failed(elsa_linear_bind(plan, room, &in, &out, &bound)) || run(bound)) return 1;
    for (size_t token = (heads - 1) * tokens; token < heads * tokens; token++) {
        double score = 0.0;
        for (size_t i = 0; i < d; i++) score += (double)q[(heads * tokens - 1) * d + i] * k[token * d + i];
        for (size_t i = 0; i < d; i++) exact[i] += score / (double)d * v[token * d + i];
    }
    const int wrong = differs(shape, y + (heads * tokens - 1) * d, exact, d);
    free(q), free(k), free(v), free(y), free(exact);
    return failed(elsa_workspace_destroy(room)) || failed(elsa_plan_destroy(plan)) || wrong;
}

int main(int count, char **shapes) {
    elsa_engine_options options;
    elsa_engine engine;
    elsa_engine_options_init(&options);
    options.threads = 1;
    if (failed(elsa_engine_create(&options, &engine))) return 1;
    for (int i = 1; i < count; i++) {
        const char *shape = shapes[i], *at = shape + strcspn(shape, ",");
        size_t heads, kv_heads, queries, keys, d;
        char rest[16] = "";
        if (sscanf(shape, "linear,%zu,%zu,%zu", &heads, &keys, &d) == 3) {
            if (linear(engine, shape, heads, keys, d)) return 1;
            continue;
        }
        if (sscanf(shape, "%zu/%zu", &heads, &kv_heads) < 2) kv_heads = heads = strtoul(shape, NULL, 10);
        if (sscanf(at, ",%zu:%zu,%zu,%15s", &queries, &keys, &d, rest) < 3) {
            if (sscanf(at, ",%zu,%zu,%15s", &keys, &d, rest) < 2) return fprintf(stderr, "%s: not a shape\n", shape), 2;
            queries = keys;
        }
        if (attention(engine, shape, heads, kv_heads, queries, keys, d, !strcmp(rest, "causal"), !strcmp(rest, "windows")))
            return 1;
    }
    return 0;
}
