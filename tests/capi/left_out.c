/* Error budgets and schedules: answers and reports of runs that leave out blocks of keys, against sums in f64 over the
   remaining keys and over all keys. Also refusals. */
#define H 2
#define N 320
#define D 8
#include "common.h"

enum { BLOCK = 64 };
static const float budget = 1e-3f;

static float share[H * N + 1], lse[H * N];

/* Every other block of keys has weights far below those of the other blocks, and values of the opposite sign. */
static int faint(size_t j) {
    return j / BLOCK % 2 == 1;
}

static void fill_blocks(void) {
    size_t i, c;
    noise(q, COUNT, 5, -0.01f, 0.01f);
    noise(k, COUNT, 6, -0.01f, 0.01f);
    noise(v, COUNT, 7, 0.5f, 1);
    for (i = 0; i < H * N; i++) {
        q[i * D] = (float)sqrt((double)D) * (7.9f + 0.4f * (float)(i % N) / N);
        k[i * D] = faint(i % N) ? -1.0f : 0.0f;
        for (c = 0; c < D && !faint(i % N); c++) v[i * D + c] = -v[i * D + c];
    }
}

typedef struct {
    /* Sums of the weights of all keys and of the remaining keys, and their averages of the values. */
    double all, kept, of_all[D], of_kept[D];
} sums;

static sums row(size_t h, size_t i) {
    sums x;
    size_t j, c;
    memset(&x, 0, sizeof x);
    for (j = 0; j < N; j++) {
        double s = 0, p;
        for (c = 0; c < D; c++) s += (double)q[(h * N + i) * D + c] * k[(h * N + j) * D + c];
        p = exp(s / sqrt((double)D));
        x.all += p;
        x.kept += faint(j) ? 0 : p;
        for (c = 0; c < D; c++) {
            x.of_all[c] += p * v[(h * N + j) * D + c];
            x.of_kept[c] += faint(j) ? 0 : p * v[(h * N + j) * D + c];
        }
    }
    for (c = 0; c < D; c++) {
        x.of_all[c] /= x.all;
        x.of_kept[c] /= x.kept;
    }
    return x;
}

/* Checks the outputs and the shares of all rows. Returns the largest true share. */
static double judge(void) {
    double worst = 0;
    size_t h, i, c;
    for (h = 0; h < H; h++)
        for (i = 0; i < N; i++) {
            const sums x = row(h, i);
            const double left = 1 - x.kept / x.all, found = share[h * N + i];
            CHECK(found >= left * 0.999 && found <= left * 1.1);
            CHECK(fabs(lse[h * N + i] - log(x.all)) < 1e-5);
            for (c = 0; c < D; c++) {
                const double y = out[(h * N + i) * D + c];
                CHECK(fabs(y - x.of_kept[c]) < 1e-5);
                /* The difference from all keys is visible, and within the share times the spread of the values. */
                CHECK(fabs(y - x.of_all[c]) > 1e-4);
                CHECK(fabs(y - x.of_all[c]) <= 2 * found + 1e-5);
            }
            if (left > worst) worst = left;
        }
    return worst;
}

static void answers(elsa_engine engine) {
    elsa_plan_options how;
    elsa_left_out left;
    elsa_certified proved;
    elsa_bound bound;
    call c = make(engine);
    double worst;
    size_t i;
    elsa_plan_options_init(&how);
    elsa_left_out_init(&left);
    elsa_certified_init(&proved);
    /* A plan without a budget leaves nothing out and reports nothing. */
    OK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL));
    CHECK(error() < 1e-5);
    CHECK(elsa_workspace_left_out(c.room, &left, NULL, 0) == ELSA_STATUS_UNSUPPORTED);
    CHECK(strstr(elsa_last_error(), "error budget") != NULL);
    end(&c);

    how.block = BLOCK;
    how.error_budget = budget;
    how.certify = 1;
    OK(elsa_plan_create(engine, &c.problem, &how, &c.plan));
    OK(elsa_workspace_create(c.plan, &c.room));
    CHECK(elsa_workspace_left_out(c.room, &left, NULL, 0) == ELSA_STATUS_UNSUPPORTED);
    c.to.lse = output(lse, sizeof lse);
    for (i = 0; i <= H * N; i++) share[i] = -1;
    OK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL));
    OK(elsa_workspace_left_out(c.room, &left, share, H * N + 1));
    CHECK(share[H * N] == -1);
    worst = judge();
    CHECK(left.rows == H * N && left.block_keys == BLOCK && left.tile_rows > 0);
    CHECK(left.row_blocks == H * N * (N / BLOCK) && left.skipped_row_blocks == H * N * 2);
    CHECK(left.blocks >= H * (N / BLOCK) && left.skipped_blocks * 5 == left.blocks * 2);
    CHECK(left.unseen_blocks == 0);
    CHECK(left.worst >= worst && left.worst <= budget && left.p99 <= left.worst);
    CHECK(left.mean > 0 && left.mean < left.worst);
    /* The certificate's absolute bound includes what was left out. */
    OK(elsa_workspace_certified(c.room, &proved, NULL, 0));
    CHECK(proved.claims && proved.absolute >= 2 * left.worst * 0.5);

    /* A bound call reports the same, and fewer shares may be asked for. */
    memset(out, 0xff, sizeof out);
    for (i = 0; i <= H * N; i++) share[i] = -1;
    OK(elsa_bind(c.plan, c.room, &c.in, &c.to, &bound));
    OK(elsa_bound_run(bound, NULL));
    memset(&left, 0xff, sizeof left);
    elsa_left_out_init(&left);
    OK(elsa_workspace_left_out(c.room, &left, share, 3));
    CHECK(share[2] > 0 && share[3] == -1 && left.skipped_row_blocks == H * N * 2);
    OK(elsa_workspace_left_out(c.room, &left, share, H * N));
    CHECK(judge() == worst);
    OK(elsa_bound_destroy(bound));

    /* A budget below the weights of a block leaves nothing out. */
    end(&c);
    how.error_budget = 1e-6f;
    OK(elsa_plan_create(engine, &c.problem, &how, &c.plan));
    OK(elsa_workspace_create(c.plan, &c.room));
    OK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL));
    CHECK(error() < 1e-5);
    OK(elsa_workspace_left_out(c.room, &left, NULL, 0));
    CHECK(left.skipped_blocks == 0 && left.skipped_row_blocks == 0 && left.worst == 0 && left.blocks > 0);
    end(&c);
}

/* Schedules that skip the faint blocks, and schedules that skip none. */
static void schedules(elsa_engine engine) {
    static const struct {
        elsa_schedule schedule;
        float lambda, threshold, budget;
        int gate, skips;
    } cases[] = {{ELSA_SCHEDULE_FLASH, 0, 0, 0, 0, 0},     {ELSA_SCHEDULE_VFA, 0, 0, 0, 0, 0},
                 {ELSA_SCHEDULE_VFA, 0, 4, 0, 0, 0},       {ELSA_SCHEDULE_EXACT, 0, 2, 0, 0, 0},
                 {ELSA_SCHEDULE_EXACT, 0, 0, 0, 1, 0},     {ELSA_SCHEDULE_VSA, 0, 0, 0, 0, 1},
                 {ELSA_SCHEDULE_VSA, 0.1f, 0, 0, 0, 1},    {ELSA_SCHEDULE_VSA, 1e-6f, 0, 0, 0, 0},
                 {ELSA_SCHEDULE_BLASST, 0, 8, 0, 0, 1},    {ELSA_SCHEDULE_BLASST, 1e-6f, 0, 0, 0, 0},
                 {ELSA_SCHEDULE_VFA, 0, 0, 1e-3f, 0, 1}};
    elsa_left_out left;
    size_t n, i;
    for (n = 0; n < sizeof cases / sizeof *cases; n++) {
        call c = make(engine);
        elsa_plan_options how;
        elsa_plan_options_init(&how);
        elsa_left_out_init(&left);
        how.block = BLOCK;
        how.schedule = cases[n].schedule;
        how.lambda = cases[n].lambda;
        how.rescale_threshold = cases[n].threshold;
        how.error_budget = cases[n].budget;
        how.norm_gate = (uint32_t)cases[n].gate;
        end(&c);
        OK(elsa_plan_create(engine, &c.problem, &how, &c.plan));
        OK(elsa_workspace_create(c.plan, &c.room));
        c.to.lse = output(lse, sizeof lse);
        for (i = 0; i <= H * N; i++) share[i] = -1;
        OK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL));
        OK(elsa_workspace_left_out(c.room, &left, share, H * N));
        /* The kernels, which compute the exact schedule with the gate, need not count rows. */
        CHECK(cases[n].gate || (left.rows == H * N && left.row_blocks == H * N * (N / BLOCK)));
        if (cases[n].skips) {
            CHECK(left.skipped_row_blocks == H * N * 2 && left.worst <= 1e-3);
            CHECK(left.worst >= judge());
        } else {
            CHECK(left.skipped_row_blocks == 0 && left.worst == 0);
            CHECK(error() < 1e-5);
        }
        end(&c);
    }
}

#define REFUSED(call, name)                             \
    do {                                                \
        CHECK((call) == ELSA_STATUS_ARGUMENT);          \
        CHECK(strstr(elsa_last_error(), name) != NULL); \
    } while (0)

static void refusals(elsa_engine engine) {
    static const float bad[] = {-0.5f, 1, 1.5f};
    elsa_plan_options how;
    elsa_left_out left;
    elsa_plan made;
    call c = make(engine);
    size_t i;
    elsa_plan_options_init(&how);
    elsa_left_out_init(&left);
    for (i = 0; i < sizeof bad / sizeof *bad; i++) {
        how.error_budget = bad[i];
        REFUSED(elsa_plan_create(engine, &c.problem, &how, &made), "error_budget: ");
    }
    how.error_budget = (float)NAN;
    REFUSED(elsa_plan_create(engine, &c.problem, &how, &made), "error_budget: ");
    how.error_budget = budget;
    how.method = ELSA_METHOD_MATH;
    REFUSED(elsa_plan_create(engine, &c.problem, &how, &made), "error_budget");
    elsa_plan_options_init(&how);
    how.schedule = 5;
    REFUSED(elsa_plan_create(engine, &c.problem, &how, &made), "schedule: 5; ");
    how.schedule = ELSA_SCHEDULE_VFA;
    how.lambda = 0.5f;
    REFUSED(elsa_plan_create(engine, &c.problem, &how, &made), "lambda: 0.5; ");
    how.schedule = ELSA_SCHEDULE_VSA;
    how.norm_gate = 1;
    REFUSED(elsa_plan_create(engine, &c.problem, &how, &made), "gate");
    how.norm_gate = 0;
    for (i = 0; i < sizeof bad / sizeof *bad; i++) {
        how.lambda = bad[i];
        REFUSED(elsa_plan_create(engine, &c.problem, &how, &made), "lambda: ");
    }
    how.lambda = 0;
    how.rescale_threshold = 9;
    REFUSED(elsa_plan_create(engine, &c.problem, &how, &made), "rescale_threshold: 9");
    how.rescale_threshold = 0;
    how.method = ELSA_METHOD_MATH;
    REFUSED(elsa_plan_create(engine, &c.problem, &how, &made), "schedule");
    REFUSED(elsa_workspace_left_out(c.room, NULL, NULL, 0), "value: null");
    REFUSED(elsa_workspace_left_out(c.room, &left, NULL, 1), "share: null");
    REFUSED(elsa_workspace_left_out(c.room, &left, (float *)((char *)share + 1), 1), "share: address");
    end(&c);
    CHECK(elsa_workspace_left_out(c.room, &left, NULL, 0) == ELSA_STATUS_HANDLE);
    CHECK(left.blocks == 0);
}

int main(void) {
    elsa_engine_options options;
    elsa_engine engine;
    elsa_engine_options_init(&options);
    options.threads = 2;
    OK(elsa_engine_create(&options, &engine));
    fill_blocks();
    answers(engine);
    schedules(engine);
    refusals(engine);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
