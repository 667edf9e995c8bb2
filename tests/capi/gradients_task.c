/* Gradients of quorums: the shares of all tasks add up to the gradients in f64, in the order that the merge promises, over
   all tokens and over the tokens of each task alone; and refusals. */
#include "gradients.h"

enum { TASKS = 7, ROWS = H * N };

/* The shares of each task, and the same shares at their tokens in the complete gradients. */
static float share_q[TASKS][COUNT], share_k[TASKS][COUNT], share_v[TASKS][COUNT], same_q[COUNT], same_k[COUNT], same_v[COUNT];
static float wide_q[TASKS][COUNT], wide_k[TASKS][COUNT], wide_v[TASKS][COUNT];
static float some_q[COUNT], some_k[COUNT], some_v[COUNT], some_out[COUNT], some_d_out[COUNT], some_m[ROWS], some_s[ROWS];
static size_t queries[N + 1], keys[N + 1];

static elsa_task_options options_of(uint64_t number) {
    elsa_task_options made;
    elsa_task_options_init(&made);
    made.chunks[0] = TASKS;
    made.number = number;
    return made;
}

static elsa_gradients_outputs into(float *of_q, float *of_k, float *of_v, const elsa_task_info *of, size_t groups) {
    elsa_gradients_outputs made;
    elsa_gradients_outputs_init(&made);
    made.d_q = output(of_q, H * of->queries * D * sizeof(float));
    made.d_k = output(of_k, groups * of->keys * D * sizeof(float));
    made.d_v = output(of_v, groups * of->keys * D * sizeof(float));
    return made;
}

static elsa_gradients_shares shares_of(const elsa_gradients_outputs *to) {
    elsa_gradients_shares made;
    elsa_gradients_shares_init(&made);
    made.d_q = input(to->d_q.data, to->d_q.bytes);
    made.d_k = input(to->d_k.data, to->d_k.bytes);
    made.d_v = input(to->d_v.data, to->d_v.bytes);
    return made;
}

/* Copies rows of dim numbers at the tokens of a list, of every head. */
static void gather(float *to, const float *all, size_t heads, size_t dim, const size_t *list, size_t count) {
    size_t h, i;
    for (h = 0; h < heads; h++)
        for (i = 0; i < count; i++)
            memcpy(to + (h * count + i) * dim, all + (h * N + list[i]) * dim, dim * sizeof *to);
}

/* Copies rows back to the tokens of a list; all other rows are zero. */
static void spread(float *all, const float *from, size_t heads, const size_t *list, size_t count) {
    size_t h, i;
    memset(all, 0, COUNT * sizeof *all);
    for (h = 0; h < heads; h++)
        for (i = 0; i < count; i++)
            memcpy(all + (h * N + list[i]) * D, from + (h * count + i) * D, D * sizeof *all);
}

/* Runs a task over its tokens alone: the shares have the bits of the run over all tokens. */
static void gathered(elsa_engine engine, const gradients *g, uint64_t number, const elsa_task_info *of) {
    elsa_task_options how = options_of(number);
    elsa_problem p = g->forward.problem;
    elsa_gradients_inputs in;
    const elsa_gradients_outputs to = into(same_q, same_k, same_v, of, g->groups);
    elsa_gradients_task task;
    how.gathered = 1;
    how.queries = how.keys = N;
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, H, of->queries, D, &p.q));
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, g->groups, of->keys, D, &p.k));
    p.out = p.q;
    p.v = p.k;
    gather(some_q, q, H, D, queries, of->queries);
    gather(some_out, out, H, D, queries, of->queries);
    gather(some_d_out, d_out, H, D, queries, of->queries);
    gather(some_m, state_m, H, 1, queries, of->queries);
    gather(some_s, state_s, H, 1, queries, of->queries);
    gather(some_k, k, g->groups, D, keys, of->keys);
    gather(some_v, v, g->groups, D, keys, of->keys);
    elsa_gradients_inputs_init(&in);
    in.q = input(some_q, to.d_q.bytes);
    in.out = input(some_out, to.d_q.bytes);
    in.d_out = input(some_d_out, to.d_q.bytes);
    in.k = input(some_k, to.d_k.bytes);
    in.v = input(some_v, to.d_v.bytes);
    in.state_m = input(some_m, H * of->queries * sizeof *some_m);
    in.state_s = input(some_s, H * of->queries * sizeof *some_s);
    in.key_lengths = g->in.key_lengths;
    OK(elsa_gradients_task_create(engine, &p, NULL, &how, &task));
    OK(elsa_gradients_task_run(task, &in, &to, NULL));
    CHECK(memcmp(same_q, share_q[number], to.d_q.bytes) == 0);
    CHECK(memcmp(same_k, share_k[number], to.d_k.bytes) == 0);
    CHECK(memcmp(same_v, share_v[number], to.d_v.bytes) == 0);
    OK(elsa_gradients_task_destroy(task));
}

/* Returns 1 if found has the bits of ((0 + 1) + (2 + 3)) + ((4 + 5) + 6) of the tasks. */
static int in_order(const float *found, float all[TASKS][COUNT], size_t count) {
    size_t i;
    for (i = 0; i < count; i++) {
        const float first = all[0][i] + all[1][i], second = all[2][i] + all[3][i], third = all[4][i] + all[5][i];
        const float left = first + second, right = third + all[6][i], sum = left + right;
        if (memcmp(&sum, &found[i], sizeof sum) != 0) return 0;
    }
    return 1;
}

static void answers(elsa_engine engine) {
    int variant, again;
    for (variant = 0; variant < VARIANTS; variant++) {
        gradients g = begin(engine, variant);
        const elsa_task_options any = options_of(5);
        const size_t shared = g.groups * N * D;
        elsa_gradients_shares parts[TASKS];
        elsa_gradients_merge merge;
        uint64_t number, pairs = 0;
        OK(elsa_gradients_merge_create(&g.forward.problem, &any, &merge));
        for (number = 0; number < TASKS; number++) {
            const elsa_task_options how = options_of(number);
            elsa_gradients_outputs to;
            elsa_gradients_task task;
            elsa_task_info info;
            elsa_task_report done;
            elsa_task_info_init(&info);
            elsa_task_report_init(&done);
            OK(elsa_gradients_task_create(engine, &g.forward.problem, NULL, &how, &task));
            OK(elsa_gradients_task_describe(task, &info));
            CHECK(info.tasks == TASKS && info.query_total == N && info.key_total == N && info.workspace_bytes > 0);
            CHECK(info.queries > 0 && info.queries < N && info.keys == info.queries);
            pairs += info.pairs;
            queries[info.queries] = keys[info.keys] = 77;
            OK(elsa_gradients_task_tokens(task, queries, info.queries, keys, info.keys));
            CHECK(queries[info.queries] == 77 && keys[info.keys] == 77);
            to = into(share_q[number], share_k[number], share_v[number], &info, g.groups);
            memset(share_q[number], 0xff, sizeof share_q[number]);
            share_k[number][g.groups * info.keys * D] = 77;
            OK(elsa_gradients_task_run(task, &g.in, &to, &done));
            CHECK(share_k[number][g.groups * info.keys * D] == 77);
            CHECK(done.backend != ELSA_BACKEND_AUTO && done.backend != ELSA_BACKEND_CUDA);
            CHECK(done.calls > 0 && strlen(done.kernel) > 0 && (variant == CAUSAL || done.skipped == 0 || variant == SHORT));
            if (variant != MASKED) gathered(engine, &g, number, &info);
            spread(wide_q[number], share_q[number], H, queries, info.queries);
            spread(wide_k[number], share_k[number], g.groups, keys, info.keys);
            spread(wide_v[number], share_v[number], g.groups, keys, info.keys);
            parts[number] = shares_of(&to);
            OK(elsa_gradients_task_destroy(task));
        }
        CHECK(pairs == (uint64_t)N * N);
        differentiate(variant, g.groups);
        /* A merge can be used for many sums. */
        for (again = 0; again < 2; again++) {
            for (number = 0; number < TASKS; number++) OK(elsa_gradients_merge_add(merge, number, &parts[number]));
            forget();
            OK(elsa_gradients_merge_finish(merge, &g.to));
            judge(&g);
            CHECK(in_order(d_q, wide_q, COUNT) && in_order(d_k, wide_k, shared) && in_order(d_v, wide_v, shared));
        }
        OK(elsa_gradients_merge_destroy(merge));
        finish(&g);
    }
}

static void refused_tasks(elsa_engine engine) {
    gradients g = begin(engine, PLAIN);
    elsa_task_options how = options_of(2), bad;
    elsa_gradients_options budget;
    elsa_gradients_task task = {77};
    elsa_gradients_inputs in;
    elsa_gradients_outputs to;
    elsa_task_info info;
    size_t i;
    elsa_task_info_init(&info);
    bad = how, bad.number = TASKS;
    REFUSED(elsa_gradients_task_create(engine, &g.forward.problem, NULL, &bad, &task), "7");
    bad = how, bad.chunks[0] = 6;
    REFUSED(elsa_gradients_task_create(engine, &g.forward.problem, NULL, &bad, &task), "6");
    bad = how, bad.reserved = 1;
    REFUSED(elsa_gradients_task_create(engine, &g.forward.problem, NULL, &bad, &task), "reserved");
    bad = how, bad.gathered = 1, bad.queries = bad.keys = N;
    REFUSED(elsa_gradients_task_create(engine, &g.forward.problem, NULL, &bad, &task), "the task");
    REFUSED(elsa_gradients_task_create(engine, NULL, NULL, &how, &task), "problem: null");
    REFUSED(elsa_gradients_task_create(engine, &g.forward.problem, NULL, NULL, &task), "options: null");
    REFUSED(elsa_gradients_task_create(engine, &g.forward.problem, NULL, &how, NULL), "task: null");
    elsa_gradients_options_init(&budget);
    budget.budget = 1;
    CHECK(elsa_gradients_task_create(engine, &g.forward.problem, &budget, &how, &task) == ELSA_STATUS_MEMORY);
    CHECK(task.id == 77);

    OK(elsa_gradients_task_create(engine, &g.forward.problem, NULL, &how, &task));
    OK(elsa_gradients_task_describe(task, &info));
    to = into(share_q[0], share_k[0], share_v[0], &info, H);
    memset(share_q, 0xff, sizeof share_q);
    REFUSED(elsa_gradients_task_describe(task, NULL), "info: null");
    REFUSED(elsa_gradients_task_tokens(task, NULL, 1, NULL, 0), "queries: null");
    REFUSED(elsa_gradients_task_run(task, NULL, &to, NULL), "inputs: null");
    REFUSED(elsa_gradients_task_run(task, &g.in, NULL, NULL), "outputs: null");
    in = g.in, in.state_s = input(NULL, 0);
    REFUSED(elsa_gradients_task_run(task, &in, &to, NULL), "one of the states is null");
    in = g.in, in.out.bytes -= 4;
    REFUSED(elsa_gradients_task_run(task, &in, &to, NULL), "out: ");
    to.d_q.bytes -= 4;
    REFUSED(elsa_gradients_task_run(task, &g.in, &to, NULL), "d_q: ");
    to.d_q.bytes += 4, to.d_v = to.d_k;
    REFUSED(elsa_gradients_task_run(task, &g.in, &to, NULL), "overlap d_v");
    to.d_v = output(v, sizeof v);
    REFUSED(elsa_gradients_task_run(task, &g.in, &to, NULL), "overlap v");
    for (i = 0; i < COUNT; i++) CHECK(share_q[0][i] != share_q[0][i]);
    OK(elsa_gradients_task_destroy(task));
    CHECK(elsa_gradients_task_destroy(task) == ELSA_STATUS_HANDLE);
    CHECK(elsa_gradients_task_describe(task, &info) == ELSA_STATUS_HANDLE);
    finish(&g);
}

/* Missing, repeated and foreign tasks. */
static void refused_sums(elsa_engine engine) {
    gradients g = begin(engine, PLAIN);
    elsa_task_options how = options_of(0), bad = how;
    elsa_gradients_outputs all = g.to;
    elsa_gradients_merge merge = {77};
    elsa_gradients_shares parts[TASKS], wrong;
    uint64_t number;
    size_t i;
    bad.gathered = 1, bad.queries = bad.keys = N;
    REFUSED(elsa_gradients_merge_create(&g.forward.problem, &bad, &merge), "gathered");
    REFUSED(elsa_gradients_merge_create(NULL, &how, &merge), "problem: null");
    REFUSED(elsa_gradients_merge_create(&g.forward.problem, NULL, &merge), "options: null");
    REFUSED(elsa_gradients_merge_create(&g.forward.problem, &how, NULL), "merge: null");
    CHECK(merge.id == 77);
    OK(elsa_gradients_merge_create(&g.forward.problem, &how, &merge));
    for (number = 0; number < TASKS; number++) {
        elsa_gradients_outputs to;
        elsa_gradients_task task;
        elsa_task_info info;
        elsa_task_info_init(&info);
        how.number = number;
        OK(elsa_gradients_task_create(engine, &g.forward.problem, NULL, &how, &task));
        OK(elsa_gradients_task_describe(task, &info));
        to = into(share_q[number], share_k[number], share_v[number], &info, H);
        OK(elsa_gradients_task_run(task, &g.in, &to, NULL));
        parts[number] = shares_of(&to);
        OK(elsa_gradients_task_destroy(task));
    }
    forget();
    REFUSED(elsa_gradients_merge_finish(merge, &g.to), "merge: 0 of 7 tasks");
    REFUSED(elsa_gradients_merge_add(merge, 1, &parts[1]), "number: 1; allowed: 0");
    REFUSED(elsa_gradients_merge_add(merge, TASKS, &parts[0]), "7");
    REFUSED(elsa_gradients_merge_add(merge, 0, NULL), "shares: null");
    wrong = parts[0], wrong.d_k.bytes -= 4;
    REFUSED(elsa_gradients_merge_add(merge, 0, &wrong), "d_k: ");
    wrong = parts[0], wrong.d_v.bytes -= 1;
    REFUSED(elsa_gradients_merge_add(merge, 0, &wrong), "d_v: ");
    wrong = parts[0], wrong.d_q.bytes += 4;
    REFUSED(elsa_gradients_merge_add(merge, 0, &wrong), "d_q: ");
    wrong = parts[0], wrong.d_q = input(NULL, 0);
    REFUSED(elsa_gradients_merge_add(merge, 0, &wrong), "d_q: ");
    for (number = 0; number < TASKS; number++) {
        OK(elsa_gradients_merge_add(merge, number, &parts[number]));
        REFUSED(elsa_gradients_merge_add(merge, number, &parts[number]), "added before");
    }
    all.d_v = all.d_k;
    REFUSED(elsa_gradients_merge_finish(merge, &all), "overlap d_v");
    all.d_v = g.to.d_v, all.d_q.bytes -= 4;
    REFUSED(elsa_gradients_merge_finish(merge, &all), "d_q: ");
    REFUSED(elsa_gradients_merge_finish(merge, NULL), "outputs: null");
    for (i = 0; i < COUNT; i++) CHECK(d_q[i] != d_q[i] && d_k[i] != d_k[i] && d_v[i] != d_v[i]);
    /* No refusal has changed the sums. */
    OK(elsa_gradients_merge_finish(merge, &g.to));
    differentiate(PLAIN, H);
    judge(&g);
    OK(elsa_gradients_merge_destroy(merge));
    CHECK(elsa_gradients_merge_add(merge, 0, &parts[0]) == ELSA_STATUS_HANDLE);
    finish(&g);
}

int main(void) {
    elsa_engine_options options;
    elsa_engine engine;
    elsa_engine_options_init(&options);
    options.threads = 2;
    OK(elsa_engine_create(&options, &engine));
    fill_gradients();
    answers(engine);
    refused_tasks(engine);
    refused_sums(engine);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
