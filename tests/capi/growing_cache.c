/* Caches that are appended to in place, and states of chunks of the keys, which need neither a mask nor an output: C99,
   checked against a naive double loop. */
#include "common.h"

#define ROOM (N + 5)  /* capacity of a cache in tokens */
#define BLANK 12345.f /* marks memory that must not be written */

static float cache_k[H * ROOM * D], cache_v[H * ROOM * D], before_k[H * ROOM * D], before_v[H * ROOM * D];
static float state_m[3][H * N], state_s[3][H * N], state_w[3][COUNT], lse[H * N];

static elsa_engine engine;

/* Tokens first .. first + tokens of a tensor whose heads have room for `room` tokens. */
static elsa_view view(size_t tokens, size_t room) {
    elsa_view x;
    memset(&x, 0, sizeof x);
    x.shape[0] = 1, x.shape[1] = H, x.shape[2] = tokens, x.shape[3] = D;
    x.strides[0] = H * room * D, x.strides[1] = room * D, x.strides[2] = D, x.strides[3] = 1;
    return x;
}

static elsa_input reads(const float *data, size_t bytes) {
    elsa_input x;
    x.data = data, x.bytes = bytes;
    return x;
}

static elsa_output writes(float *data, size_t bytes) {
    elsa_output x;
    x.data = data, x.bytes = bytes;
    return x;
}

/* Whether `found` is row `query` over the first `count` keys of head h. */
static int attends(const float *found, size_t h, size_t query, size_t count) {
    double sum = 0, y[D];
    size_t j, c;
    memset(y, 0, sizeof y);
    for (j = 0; j < count; j++) {
        double s = 0, p;
        for (c = 0; c < D; c++) s += (double)q[(h * N + query) * D + c] * k[(h * N + j) * D + c];
        p = exp(s / sqrt((double)D));
        sum += p;
        for (c = 0; c < D; c++) y[c] += p * v[(h * N + j) * D + c];
    }
    for (c = 0; c < D; c++)
        if (!(fabs((sum > 0 ? y[c] / sum : 0) - found[c]) <= 2e-6)) return 0;
    return 1;
}

/* A message names a field as this header does. */
static int says(const char *field) { return strncmp(elsa_last_error(), field, strlen(field)) == 0; }

static int same(const float *a, const float *b, size_t count) { return memcmp(a, b, count * sizeof *a) == 0; }

/* A cache grows by a few tokens at a time; each call reads it in place and writes only the new rows. */
static void append(void) {
    size_t i, past, tokens;
    for (i = 0; i < H * ROOM * D; i++) cache_k[i] = cache_v[i] = before_k[i] = before_v[i] = BLANK;
    for (past = 0; past < N; past += tokens) {
        elsa_problem p;
        elsa_inputs in;
        elsa_outputs to;
        elsa_plan plan;
        elsa_workspace room;
        size_t h, t;
        const size_t offset = past * D, rest = sizeof q - past * D * sizeof *q;
        tokens = 1 + past % 4;
        if (tokens > N - past) tokens = N - past;
        elsa_problem_init(&p);
        elsa_inputs_init(&in);
        elsa_outputs_init(&to);
        p.q = p.k = p.v = view(tokens, N);
        p.out = view(tokens, tokens);
        p.has_past = p.has_present = p.append = 1;
        p.past_k = p.past_v = view(past, ROOM);
        p.present_k = p.present_v = view(past + tokens, ROOM);
        p.causal = ELSA_CAUSAL_BOTTOM_RIGHT;
        OK(elsa_plan_create(engine, &p, NULL, &plan));
        OK(elsa_workspace_create(plan, &room));
        in.q = reads(q + offset, rest), in.k = reads(k + offset, rest), in.v = reads(v + offset, rest);
        to.out = writes(out, sizeof out);
        to.present_k = writes(cache_k, sizeof cache_k), to.present_v = writes(cache_v, sizeof cache_v);
        /* The past may be named by the address of the cache, and by no other. */
        in.past_k = reads(before_k, sizeof before_k);
        CHECK(elsa_run(plan, room, &in, &to, NULL) == ELSA_STATUS_ARGUMENT && says("past_k: address"));
        CHECK(same(cache_k, before_k, H * ROOM * D));
        in.past_k = reads(cache_k, sizeof cache_k);
        if (past % 2 == 0) in.past_v = reads(cache_v, sizeof cache_v);
        OK(elsa_run(plan, room, &in, &to, NULL));
        for (h = 0; h < H; h++)
            for (t = 0; t < tokens; t++) {
                CHECK(attends(out + (h * tokens + t) * D, h, past + t, past + t + 1));
                memcpy(before_k + (h * ROOM + past + t) * D, k + (h * N + past + t) * D, D * sizeof *k);
                memcpy(before_v + (h * ROOM + past + t) * D, v + (h * N + past + t) * D, D * sizeof *v);
            }
        CHECK(same(cache_k, before_k, H * ROOM * D) && same(cache_v, before_v, H * ROOM * D));
        OK(elsa_workspace_destroy(room));
        OK(elsa_plan_destroy(plan));
    }
    {
        /* Strides that do not agree, and a present that is missing. */
        elsa_problem p;
        elsa_plan plan;
        elsa_problem_init(&p);
        p.q = p.k = p.v = p.out = view(1, 1);
        p.has_past = p.has_present = p.append = 1;
        p.past_k = p.past_v = view(4, ROOM);
        p.present_k = p.present_v = view(5, ROOM + 1);
        CHECK(elsa_plan_create(engine, &p, NULL, &plan) == ELSA_STATUS_ARGUMENT && says("past_k: head stride"));
        p.has_present = 0;
        CHECK(elsa_plan_create(engine, &p, NULL, &plan) == ELSA_STATUS_ARGUMENT && says("append: "));
    }
}

/* Causal attention of the last rows, chunk by chunk of the keys: the second and third chunk share a plan. */
static void chunks(void) {
    const size_t first[4] = {0, N - 24, N - 12, N};
    elsa_plan plans[2];
    elsa_workspace rooms[2];
    elsa_inputs in;
    elsa_outputs to;
    elsa_chunk chunk;
    elsa_states_in states[3];
    elsa_states_out merged;
    size_t c, h, i;
    elsa_inputs_init(&in);
    elsa_chunk_init(&chunk);
    in.q = reads(q, sizeof q);
    for (c = 0; c < 2; c++) {
        elsa_problem p;
        elsa_problem_init(&p);
        p.q = p.out = view(N, N);
        p.k = p.v = view(first[c + 1] - first[c], N);
        p.causal = ELSA_CAUSAL_BOTTOM_RIGHT;
        OK(elsa_plan_create(engine, &p, NULL, &plans[c]));
        OK(elsa_workspace_create(plans[c], &rooms[c]));
    }
    for (c = 0; c < 3; c++) {
        const size_t offset = first[c] * D, rest = sizeof k - first[c] * D * sizeof *k, n = c > 1 ? 1 : c;
        elsa_outputs_init(&to);
        in.k = reads(k + offset, rest), in.v = reads(v + offset, rest);
        to.state_m = writes(state_m[c], sizeof state_m[c]);
        to.state_s = writes(state_s[c], sizeof state_s[c]);
        to.state_w = writes(state_w[c], sizeof state_w[c]);
        chunk.key_offset = first[c], chunk.key_total = N;
        OK(elsa_partial(plans[n], rooms[n], &chunk, &in, &to, NULL));
        states[c].m = state_m[c], states[c].s = state_s[c], states[c].w = state_w[c];
    }
    /* Rows before the first key of the last chunk attend none of it. */
    for (h = 0; h < H; h++)
        for (i = 0; i < N; i++) CHECK((state_s[2][h * N + i] == 0) == (i < first[2]));
    CHECK(state_m[2][0] == -HUGE_VAL && state_w[2][0] == 0);
    merged.m = state_m[0], merged.s = state_s[0], merged.w = state_w[0];
    OK(elsa_states_merge(H * N, D, &states[0], &states[1], &merged));
    OK(elsa_states_merge(H * N, D, &states[0], &states[2], &merged));
    OK(elsa_states_finish(H * N, D, &states[0], out, lse));
    for (h = 0; h < H; h++)
        for (i = 0; i < N; i++) CHECK(attends(out + (h * N + i) * D, h, i, i + 1));
    /* Without a chunk the keys are the whole, and their diagonal ends at the last one. */
    OK(elsa_partial(plans[1], rooms[1], NULL, &in, &to, NULL));
    CHECK(state_s[2][N - 12] > 0 && state_s[2][N - 13] == 0);
    chunk.key_offset = N - 13;
    OK(elsa_partial(plans[1], rooms[1], &chunk, &in, &to, NULL));
    CHECK(state_s[2][N - 13] > 0);
    /* The queries may be some of a whole, here all but the last five. */
    chunk.query_total = N + 5;
    OK(elsa_partial(plans[1], rooms[1], &chunk, &in, &to, NULL));
    CHECK(state_s[2][N - 8] > 0 && state_s[2][N - 9] == 0);
    chunk.query_offset = 6;
    CHECK(elsa_partial(plans[1], rooms[1], &chunk, &in, &to, NULL) == ELSA_STATUS_ARGUMENT && says("query_offset: 6"));
    chunk.query_offset = 0, chunk.query_total = 1;
    CHECK(elsa_partial(plans[1], rooms[1], &chunk, &in, &to, NULL) == ELSA_STATUS_ARGUMENT && says("query_total: 1"));
    chunk.query_total = 0;

    chunk.key_offset = N - 11;
    CHECK(elsa_partial(plans[1], rooms[1], &chunk, &in, &to, NULL) == ELSA_STATUS_ARGUMENT && says("key_offset: 26"));
    chunk.key_offset = 0, chunk.key_total = 11;
    CHECK(elsa_partial(plans[1], rooms[1], &chunk, &in, &to, NULL) == ELSA_STATUS_ARGUMENT && says("key_total: 11"));
    chunk.size = 0;
    CHECK(elsa_partial(plans[1], rooms[1], &chunk, &in, &to, NULL) == ELSA_STATUS_ARGUMENT && says("chunk.size: 0"));
    elsa_outputs_init(&to);
    to.lse = writes(lse, sizeof lse);
    CHECK(elsa_partial(plans[1], rooms[1], NULL, &in, &to, NULL) == ELSA_STATUS_ARGUMENT && says("state_m"));
    for (c = 0; c < 2; c++) {
        OK(elsa_workspace_destroy(rooms[c]));
        OK(elsa_plan_destroy(plans[c]));
    }
}

/* A run writes the outputs it is given: log-sum-exp with the output or alone, but at least one. */
static void outputs(void) {
    call c = make(engine);
    float alone[H * N];
    size_t i;
    c.to.lse = writes(lse, sizeof lse);
    OK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL));
    CHECK(error() <= 2e-6);
    elsa_outputs_init(&c.to);
    c.to.lse = writes(alone, sizeof alone);
    OK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL));
    for (i = 0; i < H * N; i++) CHECK(fabs((double)alone[i] - lse[i]) <= 2e-6);
    elsa_outputs_init(&c.to);
    CHECK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL) == ELSA_STATUS_ARGUMENT && says("out: absent"));
    end(&c);
}

/* A cache of fixed size with key_lengths: keys beyond are never read. The message of a length names the field. */
static void lengths(void) {
    elsa_problem p;
    elsa_inputs in;
    elsa_outputs to;
    elsa_plan plan;
    elsa_workspace room;
    int64_t valid = 0;
    size_t h;
    elsa_problem_init(&p);
    elsa_inputs_init(&in);
    elsa_outputs_init(&to);
    p.q = view(1, N);
    p.out = view(1, 1);
    p.k = p.v = view(ROOM, ROOM);
    p.has_key_lengths = 1;
    OK(elsa_plan_create(engine, &p, NULL, &plan));
    OK(elsa_workspace_create(plan, &room));
    in.q = reads(q, sizeof q), in.k = reads(cache_k, sizeof cache_k), in.v = reads(cache_v, sizeof cache_v);
    to.out = writes(out, sizeof out);
    in.key_lengths.data = &valid, in.key_lengths.count = 1;
    for (h = 0; h < H; h++) memset(cache_v + (h * ROOM + N) * D, 0xff, 5 * D * sizeof *cache_v); /* NaN */
    for (valid = 1; valid <= N; valid++) {
        OK(elsa_run(plan, room, &in, &to, NULL));
        for (h = 0; h < H; h++) CHECK(attends(out + h * D, h, 0, (size_t)valid));
    }
    valid = ROOM + 1;
    CHECK(elsa_run(plan, room, &in, &to, NULL) == ELSA_STATUS_ARGUMENT && says("key_lengths: entry 0 is 43"));
    OK(elsa_workspace_destroy(room));
    OK(elsa_plan_destroy(plan));
}

int main(void) {
    elsa_engine_options options;
    elsa_engine_options_init(&options);
    options.threads = 2;
    OK(elsa_engine_create(&options, &engine));
    fill_all();
    append();
    chunks();
    lengths();
    outputs();
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
