/* Tasks of quorums: the states of all tasks merge into attention of all pairs, over all tokens and over the tokens of each
   task alone, and refusals. */
#include "states.h"

enum { TASKS = 7, ROWS = H * N };

static float m[ROWS], s[ROWS], w[COUNT], m_whole[ROWS], s_whole[ROWS], w_whole[COUNT], m_sum[ROWS], s_sum[ROWS], w_sum[COUNT];
static float m_part[ROWS], s_part[ROWS], w_part[COUNT], lse[ROWS];
static float some_q[COUNT], some_k[COUNT], some_v[COUNT];
static size_t queries[N], keys[N];

/* Returns the largest distance of out from attention in which a row attends the keys up to its own, if causal. */
static double apart(int causal) {
    double worst = 0;
    size_t h, i, j, c;
    for (h = 0; h < H; h++)
        for (i = 0; i < N; i++) {
            double sum = 0, y[D];
            memset(y, 0, sizeof y);
            for (j = 0; j < (causal ? i + 1 : N); j++) {
                double x = 0, p;
                for (c = 0; c < D; c++) x += (double)q[(h * N + i) * D + c] * k[(h * N + j) * D + c];
                p = exp(x / sqrt((double)D));
                sum += p;
                for (c = 0; c < D; c++) y[c] += p * v[(h * N + j) * D + c];
            }
            for (c = 0; c < D; c++) {
                const double e = fabs(y[c] / sum - out[(h * N + i) * D + c]);
                if (!(e <= worst)) worst = e == e ? e : HUGE_VAL;
            }
            {
                const double e = fabs(log(sum) - lse[h * N + i]);
                if (!(e <= worst)) worst = e == e ? e : HUGE_VAL;
            }
        }
    return worst;
}

static elsa_task_options options_of(uint64_t number) {
    elsa_task_options made;
    elsa_task_options_init(&made);
    made.chunks[0] = TASKS;
    made.number = number;
    return made;
}

/* Copies the tokens in a list of every head. */
static void gather(float *to, const float *all, const size_t *list, size_t count) {
    size_t h, i;
    for (h = 0; h < H; h++)
        for (i = 0; i < count; i++)
            memcpy(to + (h * count + i) * D, all + (h * N + list[i]) * D, D * sizeof *to);
}

/* Runs a task over its tokens alone: the states have the bits of the run over all tokens. */
static void gathered(elsa_engine engine, const call *c, uint64_t number, const elsa_task_info *of) {
    elsa_task_options how = options_of(number);
    elsa_problem p = c->problem;
    elsa_inputs in;
    const elsa_states_out part = into(m_part, s_part, w_part);
    elsa_task task;
    how.gathered = 1;
    how.queries = how.keys = N;
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, H, of->queries, D, &p.q));
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, H, of->keys, D, &p.k));
    p.out = p.q;
    p.v = p.k;
    gather(some_q, q, queries, of->queries);
    gather(some_k, k, keys, of->keys);
    gather(some_v, v, keys, of->keys);
    elsa_inputs_init(&in);
    in.q = input(some_q, H * of->queries * D * sizeof *some_q);
    in.k = input(some_k, H * of->keys * D * sizeof *some_k);
    in.v = input(some_v, H * of->keys * D * sizeof *some_v);
    OK(elsa_task_create(engine, &p, NULL, &how, &task));
    OK(elsa_task_run(task, &in, &part, NULL));
    CHECK(memcmp(m_part, m, H * of->queries * sizeof *m) == 0);
    CHECK(memcmp(s_part, s, H * of->queries * sizeof *s) == 0);
    CHECK(memcmp(w_part, w, H * of->queries * D * sizeof *w) == 0);
    OK(elsa_task_destroy(task));
}

static void answers(elsa_engine engine) {
    int causal;
    for (causal = 0; causal < 2; causal++) {
        call c = make(engine);
        const elsa_states_out part = into(m, s, w), whole = into(m_whole, s_whole, w_whole), sum = into(m_sum, s_sum, w_sum);
        const elsa_states_in read = from(m, s, w), later = from(m_whole, s_whole, w_whole), earlier = from(m_sum, s_sum, w_sum);
        uint64_t number, pairs = 0;
        size_t i;
        c.problem.causal = causal ? ELSA_CAUSAL_TOP_LEFT : ELSA_CAUSAL_NONE;
        for (number = 0; number < TASKS; number++) {
            const elsa_task_options how = options_of(number);
            elsa_task_info info;
            elsa_task_report done;
            elsa_task task;
            elsa_task_info_init(&info);
            elsa_task_report_init(&done);
            OK(elsa_task_create(engine, &c.problem, NULL, &how, &task));
            OK(elsa_task_describe(task, &info));
            CHECK(info.tasks == TASKS && info.query_total == N && info.key_total == N && info.workspace_bytes > 0);
            CHECK(info.queries > 0 && info.queries < N && info.keys == info.queries);
            pairs += info.pairs;
            queries[info.queries] = keys[info.keys] = 77;
            OK(elsa_task_tokens(task, queries, info.queries, keys, info.keys));
            CHECK(queries[info.queries] == 77 && keys[info.keys] == 77);
            for (i = 0; i < info.queries; i++) CHECK(queries[i] < N && queries[i] == keys[i]);
            m[H * info.queries] = 77;
            OK(elsa_task_run(task, &c.in, &part, &done));
            CHECK(m[H * info.queries] == 77);
            CHECK(done.backend != ELSA_BACKEND_AUTO && done.calls > 0 && strlen(done.kernel) > 0);
            CHECK(causal == 0 ? done.skipped == 0 : 1);
            OK(elsa_task_spread(task, &read, &whole));
            /* The rows of other tasks are empty. */
            for (i = 0; i < info.queries; i++) CHECK(m_whole[queries[i]] == m[i]);
            if (number == 0) {
                memcpy(m_sum, m_whole, sizeof m_sum);
                memcpy(s_sum, s_whole, sizeof s_sum);
                memcpy(w_sum, w_whole, sizeof w_sum);
            } else {
                OK(elsa_states_merge(ROWS, D, &earlier, &later, &sum));
            }
            if (!causal) gathered(engine, &c, number, &info);
            OK(elsa_task_destroy(task));
        }
        CHECK(pairs == (uint64_t)N * N);
        OK(elsa_states_finish(ROWS, D, &earlier, out, lse));
        CHECK(apart(causal) < 1e-5);
        end(&c);
    }
}

#define REFUSED(call, name)                             \
    do {                                                \
        CHECK((call) == ELSA_STATUS_ARGUMENT);          \
        CHECK(strstr(elsa_last_error(), name) != NULL); \
    } while (0)

static void misuse(elsa_engine engine) {
    call c = make(engine);
    elsa_task_options how = options_of(0), bad;
    elsa_plan_options budget;
    elsa_states_out part = into(m, s, w);
    const elsa_states_in read = from(m, s, w);
    elsa_task_info info;
    elsa_task task = {77};
    elsa_plan_options_init(&budget);
    elsa_task_info_init(&info);
    bad = how, bad.number = TASKS;
    REFUSED(elsa_task_create(engine, &c.problem, NULL, &bad, &task), "task: ");
    bad = how, bad.chunks[0] = 0;
    REFUSED(elsa_task_create(engine, &c.problem, NULL, &bad, &task), "task: ");
    bad = how, bad.chunks[0] = 6;
    REFUSED(elsa_task_create(engine, &c.problem, NULL, &bad, &task), "task: ");
    bad = how, bad.chunks[2] = 3;
    REFUSED(elsa_task_create(engine, &c.problem, NULL, &bad, &task), "chunks: 3 after a zero");
    bad = how, bad.reserved = 1;
    REFUSED(elsa_task_create(engine, &c.problem, NULL, &bad, &task), "reserved: 1");
    bad = how, bad.gathered = 1, bad.queries = bad.keys = N;
    REFUSED(elsa_task_create(engine, &c.problem, NULL, &bad, &task), "the task");
    budget.error_budget = 0.1f;
    REFUSED(elsa_task_create(engine, &c.problem, &budget, &how, &task), "error_budget");
    REFUSED(elsa_task_create(engine, &c.problem, NULL, NULL, &task), "options: null");
    REFUSED(elsa_task_create(engine, NULL, NULL, &how, &task), "problem: null");
    REFUSED(elsa_task_create(engine, &c.problem, NULL, &how, NULL), "task: null");
    CHECK(task.id == 77);

    OK(elsa_task_create(engine, &c.problem, NULL, &how, &task));
    REFUSED(elsa_task_describe(task, NULL), "info: null");
    REFUSED(elsa_task_tokens(task, NULL, 1, NULL, 0), "queries: null");
    OK(elsa_task_tokens(task, NULL, 0, NULL, 0));
    REFUSED(elsa_task_run(task, NULL, &part, NULL), "inputs: null");
    REFUSED(elsa_task_run(task, &c.in, NULL, NULL), "states: null");
    part.s = NULL;
    REFUSED(elsa_task_run(task, &c.in, &part, NULL), "state_s: null");
    part.s = m;
    REFUSED(elsa_task_run(task, &c.in, &part, NULL), "overlap state_s");
    part = into(m, s, q);
    REFUSED(elsa_task_run(task, &c.in, &part, NULL), "overlap q");
    part = into(m, s, w);
    c.in.q.bytes = 4;
    REFUSED(elsa_task_run(task, &c.in, &part, NULL), "q: 4 bytes");
    REFUSED(elsa_task_spread(task, &read, &part), "overlap");
    REFUSED(elsa_task_spread(task, NULL, &part), "states: null");
    OK(elsa_task_destroy(task));
    CHECK(elsa_task_destroy(task) == ELSA_STATUS_HANDLE);
    CHECK(elsa_task_describe(task, &info) == ELSA_STATUS_HANDLE);
    end(&c);
}

int main(void) {
    elsa_engine_options options;
    elsa_engine engine;
    elsa_engine_options_init(&options);
    options.threads = 2;
    OK(elsa_engine_create(&options, &engine));
    fill_all();
    answers(engine);
    misuse(engine);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
