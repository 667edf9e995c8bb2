/* Log callbacks that call the library, and that wait for other threads: nothing deadlocks, and forbidden calls are
   refused. */
#define _POSIX_C_SOURCE 200809L
#include "common.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

static elsa_engine shared;
static int has_shared, depth, messages;
static call at_work;

/* Calls everything that logs or takes a lock, with an engine of its own and with the one that is logging. */
static void listen(void *user, elsa_log_level level, const char *text) {
    elsa_engine engine;
    uint32_t present;
    float mine[COUNT];
    (void)level;
    CHECK(user == &messages && text[0] != 0 && depth == 0);
    depth++;
    messages++;
    CHECK(elsa_log_set(ELSA_LOG_DEBUG, listen, user) == ELSA_STATUS_BUSY);
    OK(elsa_engine_create(NULL, &engine));
    OK(elsa_backend_present(ELSA_BACKEND_CUDA, &present));
    OK(elsa_engine_destroy(engine));
    if (has_shared) {
        call c = make(shared);
        c.to.out.data = mine;
        OK(elsa_run(c.plan, c.room, &c.in, &c.to, NULL));
        end(&c);
        if (at_work.plan.id != 0) {
            const elsa_status status = elsa_run(at_work.plan, at_work.room, &at_work.in, &c.to, NULL);
            CHECK(status == ELSA_STATUS_OK || status == ELSA_STATUS_BUSY);
        }
    }
    depth--;
}

static void pause_for(long milliseconds) {
    struct timespec time;
    time.tv_sec = 0;
    time.tv_nsec = milliseconds * 1000000;
    nanosleep(&time, NULL);
}

/* The first message waits until another thread has logged, while a third one replaces the callback. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int waiting, logged, replaced;

static void await(const int *flag) {
    pthread_mutex_lock(&mutex);
    while (!*flag) pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

static void announce(int *flag) {
    pthread_mutex_lock(&mutex);
    *flag = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static void wait_for_others(void *user, elsa_log_level level, const char *text) {
    (void)user;
    (void)level;
    (void)text;
    announce(&waiting);
    await(&logged);
}

static void ignore(void *user, elsa_log_level level, const char *text) {
    (void)user;
    (void)level;
    (void)text;
}

static void *create(void *unused) {
    elsa_engine engine;
    if (elsa_engine_create(NULL, &engine) == ELSA_STATUS_OK) elsa_engine_destroy(engine);
    return unused;
}

static void *create_and_tell(void *unused) {
    create(unused);
    announce(&logged);
    return unused;
}

static void *replace(void *unused) {
    elsa_log_set(ELSA_LOG_DEBUG, ignore, NULL);
    announce(&replaced);
    return unused;
}

int main(void) {
    pthread_t threads[3];
    int i, before;
    alarm(120);
    fill_all();
    OK(elsa_log_set(ELSA_LOG_DEBUG, listen, &messages));
    OK(elsa_engine_create(NULL, &shared));
    CHECK(messages > 0);
    has_shared = 1;
    at_work = make(shared);
    for (i = 0; i < 3; i++) {
        OK(elsa_run(at_work.plan, at_work.room, &at_work.in, &at_work.to, NULL));
        CHECK(error() < 1e-5);
    }
    OK(elsa_log_set(ELSA_LOG_DEBUG, NULL, NULL));
    before = messages;
    create(NULL);
    CHECK(messages == before);

    OK(elsa_log_set(ELSA_LOG_DEBUG, wait_for_others, NULL));
    CHECK(pthread_create(&threads[0], NULL, create, NULL) == 0);
    await(&waiting);
    CHECK(pthread_create(&threads[1], NULL, replace, NULL) == 0);
    pause_for(100);
    CHECK(!replaced);
    CHECK(pthread_create(&threads[2], NULL, create_and_tell, NULL) == 0);
    for (i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(replaced);
    OK(elsa_log_set(ELSA_LOG_OFF, NULL, NULL));
    end(&at_work);
    OK(elsa_engine_destroy(shared));
    printf("%d checks\n", checks);
    return 0;
}
