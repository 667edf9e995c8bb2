/* Threads of the library and of the host: workers that spin, sleep, stay on a core or are lent by a hook give the same
   bits; a hook that breaks its contract does no harm; calls inside the hook and concurrent calls work; impossible
   options are refused; a cancel ends the running call and no other. */
#define _POSIX_C_SOURCE 200809L
#define H 2
#define D 32
/* SLOW: built for ThreadSanitizer, under which an operation takes fifty times as long. */
#ifdef SLOW
#define N 96
#define ROUNDS 4
#else
#define N 256
#define ROUNDS 8
#endif
#include "common.h"

#include <pthread.h>

#define WORKERS 4

static float first[COUNT];

static elsa_engine_options options(void) {
    elsa_engine_options o;
    elsa_engine_options_init(&o);
    o.threads = WORKERS;
    /* Workers belong to the CPU. */
    o.backend = ELSA_BACKEND_SCALAR;
    return o;
}

static void judge(const call *c, size_t workers) {
    elsa_report report;
    elsa_report_init(&report);
    memset(out, 0, sizeof out);
    OK(elsa_run(c->plan, c->room, &c->in, &c->to, &report));
    CHECK(report.workers == workers);
    CHECK(memcmp(out, first, sizeof out) == 0);
}

static void with(const elsa_engine_options *o, size_t workers) {
    elsa_engine engine;
    call c;
    int round;
    OK(elsa_engine_create(o, &engine));
    c = make(engine);
    for (round = 0; round < ROUNDS; round++) judge(&c, workers);
    end(&c);
    OK(elsa_engine_destroy(engine));
}

static void refused(const elsa_engine_options *o, elsa_status status, const char *what) {
    elsa_engine engine;
    CHECK(elsa_engine_create(o, &engine) == status);
    CHECK(strstr(elsa_last_error(), what) != NULL);
}

/* A share computed by a thread of the host. */
typedef struct {
    elsa_parallel_task task;
    void *context;
    size_t worker;
} share;

typedef struct {
    pthread_mutex_t lock;
    int calls;
    /* Threads that a hook did not wait for, and the tasks that they call. */
    pthread_t late[ROUNDS * WORKERS];
    share shares[ROUNDS * WORKERS];
    int count;
} host;

static host mine;

static void *compute(void *argument) {
    const share *s = (const share *)argument;
    s->task(s->context, s->worker);
    return NULL;
}

static void counted(void *user) {
    host *h = (host *)user;
    pthread_mutex_lock(&h->lock);
    h->calls++;
    pthread_mutex_unlock(&h->lock);
}

static void keeps_its_word(void *user, size_t workers, elsa_parallel_task task, void *context) {
    pthread_t threads[WORKERS];
    share shares[WORKERS];
    size_t i;
    counted(user);
    for (i = 0; i < workers; i++) {
        shares[i].task = task;
        shares[i].context = context;
        shares[i].worker = i;
        if (pthread_create(&threads[i], NULL, compute, &shares[i])) abort();
    }
    for (i = 0; i < workers; i++) pthread_join(threads[i], NULL);
}

static void twice_and_reversed(void *user, size_t workers, elsa_parallel_task task, void *context) {
    size_t i;
    counted(user);
    for (i = 2 * workers; i > 0; i--) task(context, (i - 1) / 2);
}

static void beyond(void *user, size_t workers, elsa_parallel_task task, void *context) {
    counted(user);
    task(context, workers);
    task(context, (size_t)-1);
    task(NULL, 0);
    task((void *)~(size_t)0, 0);
    task(context, workers - 1);
}

static void nothing(void *user, size_t workers, elsa_parallel_task task, void *context) {
    (void)workers;
    (void)task;
    (void)context;
    counted(user);
}

static void late(void *user, size_t workers, elsa_parallel_task task, void *context) {
    host *h = (host *)user;
    size_t i;
    counted(user);
    for (i = 0; i < workers; i++) {
        share *s = &h->shares[h->count];
        s->task = task;
        s->context = context;
        s->worker = i;
        if (pthread_create(&h->late[h->count], NULL, compute, s)) abort();
        h->count++;
    }
}

static void hooks(void) {
    static const elsa_parallel_for all[] = {keeps_its_word, twice_and_reversed, beyond, nothing, late};
    elsa_engine_options o = options();
    size_t i;
    int t;
    for (i = 0; i < sizeof all / sizeof *all; i++) {
        o.parallel_for = all[i];
        o.parallel_user = &mine;
        mine.calls = 0;
        with(&o, WORKERS);
        CHECK(mine.calls == ROUNDS);
    }
    for (t = 0; t < mine.count; t++) {
        pthread_join(mine.late[t], NULL);
        /* Long after the engine is destroyed. */
        compute(&mine.shares[t]);
    }
    CHECK(mine.count == ROUNDS * WORKERS);
    o.threads = 1;
    mine.calls = 0;
    with(&o, 1);
    CHECK(mine.calls == 0);
}

/* A hook that makes calls itself: with the workspace of the call that it serves, and with another. */
static call outer, inner;
static float inner_out[COUNT];
static int depth;

static void nested(void *user, size_t workers, elsa_parallel_task task, void *context) {
    size_t i;
    counted(user);
    if (depth++ == 0) {
        task(context, 0);
        CHECK(elsa_run(outer.plan, outer.room, &outer.in, &outer.to, NULL) == ELSA_STATUS_BUSY);
        OK(elsa_run(inner.plan, inner.room, &inner.in, &inner.to, NULL));
        CHECK(memcmp(inner_out, first, sizeof first) == 0);
    }
    for (i = 0; i < workers; i++) task(context, i);
}

static void nests(void) {
    elsa_engine_options o = options();
    elsa_engine engine;
    o.parallel_for = nested;
    o.parallel_user = &mine;
    OK(elsa_engine_create(&o, &engine));
    outer = make(engine);
    inner = make(engine);
    inner.to.out.data = inner_out;
    judge(&outer, WORKERS);
    CHECK(depth == 2);
    end(&outer);
    end(&inner);
    OK(elsa_engine_destroy(engine));
}

/* Callers of one engine, each with its own plan, workspace and output. */
typedef struct {
    call c;
    float out[COUNT];
    int good;
} caller;

static void *calls(void *argument) {
    caller *a = (caller *)argument;
    int round;
    for (round = 0; round < ROUNDS; round++) {
        memset(a->out, 0, sizeof a->out);
        if (elsa_run(a->c.plan, a->c.room, &a->c.in, &a->c.to, NULL) != ELSA_STATUS_OK) return NULL;
        if (memcmp(a->out, first, sizeof first) != 0) return NULL;
        a->good++;
    }
    return NULL;
}

static void beside_one_another(size_t threads, elsa_parallel_for hook) {
    static caller callers[4];
    elsa_engine_options o = options();
    elsa_engine engine;
    pthread_t running[4];
    int i;
    o.threads = threads;
    o.parallel_for = hook;
    o.parallel_user = &mine;
    OK(elsa_engine_create(&o, &engine));
    for (i = 0; i < 4; i++) {
        callers[i].c = make(engine);
        callers[i].c.to.out.data = callers[i].out;
        callers[i].good = 0;
    }
    for (i = 0; i < 4; i++) CHECK(pthread_create(&running[i], NULL, calls, &callers[i]) == 0);
    for (i = 0; i < 4; i++) {
        CHECK(pthread_join(running[i], NULL) == 0);
        CHECK(callers[i].good == ROUNDS);
        end(&callers[i].c);
    }
    OK(elsa_engine_destroy(engine));
}

static void places(void) {
    elsa_engine_options o = options();
    elsa_engine engine;
    uint32_t cores[2];
    uint32_t core = 0;
    elsa_status status = ELSA_STATUS_ARGUMENT;
    o.spin_us = -1;
    with(&o, WORKERS);
    o.spin_us = INT64_MAX;
    with(&o, WORKERS);
    o.spin_us = 1;
    with(&o, WORKERS);
    /* The first core that this process may use. */
    for (; core < 1024 && status != ELSA_STATUS_OK; core++) {
        o.cores = &core;
        o.core_count = 1;
        status = elsa_engine_create(&o, &engine);
        CHECK(status == ELSA_STATUS_OK || status == ELSA_STATUS_ARGUMENT);
    }
    OK(status);
    OK(elsa_engine_destroy(engine));
    cores[0] = cores[1] = core - 1;
    o.cores = cores;
    o.core_count = 2;
    with(&o, WORKERS);
    cores[1] = 1023;
    refused(&o, ELSA_STATUS_ARGUMENT, "cores: 1023");
    cores[1] = UINT32_MAX;
    refused(&o, ELSA_STATUS_ARGUMENT, "cores: 4294967295");
    o.core_count = (size_t)-1;
    refused(&o, ELSA_STATUS_ARGUMENT, "core_count");
    o.cores = NULL;
    refused(&o, ELSA_STATUS_ARGUMENT, "cores: null");
    o.cores = cores;
    o.core_count = 1;
    o.parallel_for = nothing;
    o.parallel_user = &mine;
    refused(&o, ELSA_STATUS_ARGUMENT, "cores: given for threads that the host lends");
    o.core_count = 0;
    o.priority = 5;
    refused(&o, ELSA_STATUS_ARGUMENT, "priority: given for threads that the host lends");
    o.priority = 0;
    o.thread_name = "camera";
    refused(&o, ELSA_STATUS_ARGUMENT, "thread_name: given for threads that the host lends");
    o.parallel_for = NULL;
    with(&o, WORKERS);
    o.thread_name = "eleven-long";
    refused(&o, ELSA_STATUS_ARGUMENT, "thread_name: \"eleven-long\"; allowed: 1 to 10 ");
    o.thread_name = "";
    refused(&o, ELSA_STATUS_ARGUMENT, "thread_name: \"\"");
    o.thread_name = "a\xff";
    refused(&o, ELSA_STATUS_ARGUMENT, "thread_name: ");
    o.thread_name = NULL;
    o.priority = 100;
    refused(&o, ELSA_STATUS_ARGUMENT, "priority: 100");
    o.priority = -1;
    refused(&o, ELSA_STATUS_ARGUMENT, "priority: -1");
    o.priority = 1000;
    refused(&o, ELSA_STATUS_ARGUMENT, "priority: 1000");
    o.priority = 1;
    status = elsa_engine_create(&o, &engine);
    if (status == ELSA_STATUS_OK) {
        OK(elsa_engine_destroy(engine));
        with(&o, WORKERS);
    } else {
        refused(&o, ELSA_STATUS_UNSUPPORTED, "CAP_SYS_NICE");
    }
}

static elsa_engine cancelled;

static void cancels(void *user, size_t workers, elsa_parallel_task task, void *context) {
    OK(elsa_engine_cancel(cancelled));
    keeps_its_word(user, workers, task, context);
}

static void ends_early(void) {
    elsa_engine_options o = options();
    call c;
    int i;
    o.parallel_for = cancels;
    o.parallel_user = &mine;
    OK(elsa_engine_create(&o, &cancelled));
    c = make(cancelled);
    for (i = 0; i < COUNT; i++) out[i] = 7.0f;
    CHECK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL) == ELSA_STATUS_CANCELLED);
    CHECK(strstr(elsa_last_error(), "cancelled") != NULL);
    CHECK(strstr(elsa_status_text(ELSA_STATUS_CANCELLED), "ELSA_STATUS_CANCELLED: ") != NULL);
    for (i = 0; i < COUNT && out[i] == 7.0f; i++) continue;
    CHECK(i == COUNT);
    end(&c);
    OK(elsa_engine_destroy(cancelled));
    CHECK(elsa_engine_cancel(cancelled) == ELSA_STATUS_HANDLE);
    /* A cancel between two calls has no effect. */
    o = options();
    OK(elsa_engine_create(&o, &cancelled));
    c = make(cancelled);
    for (i = 0; i < ROUNDS; i++) {
        OK(elsa_engine_cancel(cancelled));
        judge(&c, WORKERS);
    }
    end(&c);
    OK(elsa_engine_destroy(cancelled));
}

int main(void) {
    elsa_engine_options o = options();
    elsa_engine engine;
    call c;
    CHECK(pthread_mutex_init(&mine.lock, NULL) == 0);
    fill_all();
    o.threads = 1;
    OK(elsa_engine_create(&o, &engine));
    c = make(engine);
    OK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL));
    CHECK(error() < 1e-5);
    memcpy(first, out, sizeof out);
    end(&c);
    OK(elsa_engine_destroy(engine));
    hooks();
    nests();
    beside_one_another(1, NULL);
    beside_one_another(2, NULL);
    beside_one_another(3, keeps_its_word);
    places();
    ends_early();
    printf("%d checks\n", checks);
    return 0;
}
