/* A hard loop under load: 100,000 frames at a fixed rate, with a busy thread of normal priority on every core. The
   memory is locked. The loop and the worker thread are pinned and have a real-time priority, and the worker has the
   name that the pipeline gives. After the first frame, nothing allocates, opens a file, waits for a page from the disk,
   or waits for a thread that is in the log callback. Latencies are printed, not judged, because they depend on the
   machine. If the system refuses the priority or the lock, the reason is printed, and the loop goes on without. */
#define _GNU_SOURCE
/* Some systems define this by default; open would then be an inline function. */
#undef _FORTIFY_SOURCE
#define H 3
#define N 64
#define D 64
#include "common.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { FRAMES = 100000, PERIOD_NS = 100000, SPIN_US = 10, PRIORITY = 20, BINS = 32, MOST_CORES = 1024 };
/* Time after which the loop ends early, in nanoseconds: a machine that others use may not keep the rate. */
#define MOST_NS 15000000000ll
#define NAME "vision"

/* The allocator and open of this program, which the library calls too. They count calls, and pass them on. */
static long allocations, opened;

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static void count(long *counter) { __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

static long counted(long *counter) { return __atomic_load_n(counter, __ATOMIC_RELAXED); }

void *malloc(size_t size) {
    count(&allocations);
    return __libc_malloc(size);
}

void *calloc(size_t items, size_t size) {
    count(&allocations);
    return __libc_calloc(items, size);
}

void *realloc(void *old, size_t size) {
    count(&allocations);
    return __libc_realloc(old, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    count(&allocations);
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size) {
    void *made;
    count(&allocations);
    made = __libc_memalign(alignment, size);
    if (made == NULL) return ENOMEM;
    *memory = made;
    return 0;
}

/* The mode is read even if the caller gives none; the system then ignores it. */
#define OPEN(folder)                                                        \
    va_list rest;                                                           \
    int mode;                                                               \
    count(&opened);                                                         \
    va_start(rest, flags);                                                  \
    mode = va_arg(rest, int);                                               \
    va_end(rest);                                                           \
    return (int)syscall(SYS_openat, folder, path, flags, mode)

int open(const char *path, int flags, ...) { OPEN(AT_FDCWD); }

int open64(const char *path, int flags, ...) { OPEN(AT_FDCWD); }

int openat(int folder, const char *path, int flags, ...) { OPEN(folder); }

int openat64(int folder, const char *path, int flags, ...) { OPEN(folder); }

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void sleep_until(long long at) {
    struct timespec t;
    t.tv_sec = (time_t)(at / 1000000000);
    t.tv_nsec = (long)(at % 1000000000);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) continue;
}

static cpu_set_t one(size_t core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    return set;
}

/* The load. */
static int loaded = 1;
static unsigned long work[MOST_CORES];

static void *busy(void *argument) {
    unsigned long *done = (unsigned long *)argument;
    while (__atomic_load_n(&loaded, __ATOMIC_RELAXED)) __atomic_fetch_add(done, 1, __ATOMIC_RELAXED);
    return NULL;
}

static size_t start_load(const size_t *cores, size_t count_of_cores, pthread_t *threads) {
    size_t i;
    for (i = 0; i < count_of_cores; i++) {
        const cpu_set_t set = one(cores[i]);
        CHECK(pthread_create(&threads[i], NULL, busy, &work[i]) == 0);
        CHECK(pthread_setaffinity_np(threads[i], sizeof set, &set) == 0);
    }
    return count_of_cores;
}

/* A thread that stays in the log callback during the loop. */
static pthread_t logger;
static int in_callback;

static void message(void *user, elsa_log_level level, const char *text) {
    const struct timespec pause = {0, 1000000};
    (void)user, (void)level, (void)text;
    if (!pthread_equal(pthread_self(), logger)) return;
    __atomic_store_n(&in_callback, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&loaded, __ATOMIC_RELAXED)) nanosleep(&pause, NULL);
}

/* Creates an engine, which sends a message. */
static void *logs(void *argument) {
    elsa_engine_options options;
    elsa_engine engine;
    elsa_status *status = (elsa_status *)argument;
    logger = pthread_self();
    elsa_engine_options_init(&options);
    options.threads = 1;
    options.backend = ELSA_BACKEND_SCALAR;
    *status = elsa_engine_create(&options, &engine);
    if (*status == ELSA_STATUS_OK) *status = elsa_engine_destroy(engine);
    return NULL;
}

/* Finds the worker thread by its name; checks its core and its policy. */
static void worker_is_as_asked(size_t core, int priority) {
    DIR *tasks = opendir("/proc/self/task");
    const struct dirent *task;
    int found = 0;
    CHECK(tasks != NULL);
    while ((task = readdir(tasks)) != NULL) {
        char path[64 + sizeof task->d_name], name[32] = "";
        FILE *file;
        struct sched_param parameters;
        cpu_set_t set;
        const pid_t id = (pid_t)atoi(task->d_name);
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        file = id > 0 ? fopen(path, "r") : NULL;
        if (file == NULL) continue;
        CHECK(fgets(name, sizeof name, file) != NULL);
        fclose(file);
        if (strcmp(name, NAME "-1\n") != 0) continue;
        found++;
        CHECK(sched_getaffinity(id, sizeof set, &set) == 0);
        CHECK(CPU_COUNT(&set) == 1 && CPU_ISSET(core, &set));
        CHECK(sched_getparam(id, &parameters) == 0);
        CHECK(parameters.sched_priority == priority);
        CHECK(sched_getscheduler(id) == (priority > 0 ? SCHED_FIFO : SCHED_OTHER));
    }
    closedir(tasks);
    CHECK(found == 1);
}

/* Returns the best back end of the CPU that this machine has. */
static elsa_backend cpu(void) {
    static const elsa_backend all[] = {ELSA_BACKEND_AVX512, ELSA_BACKEND_AVX2, ELSA_BACKEND_NEON};
    elsa_engine_options options;
    elsa_engine engine;
    size_t i;
    elsa_engine_options_init(&options);
    options.threads = 1;
    for (i = 0; i < sizeof all / sizeof *all; i++) {
        options.backend = all[i];
        if (elsa_engine_create(&options, &engine) == ELSA_STATUS_OK) {
            OK(elsa_engine_destroy(engine));
            return all[i];
        }
    }
    return ELSA_BACKEND_SCALAR;
}

/* Creates the engine; gives the loop and the worker the priority PRIORITY if the system permits it. */
static elsa_engine place(size_t own, uint32_t core, int *priority) {
    const cpu_set_t set = one(own);
    struct sched_param parameters;
    elsa_engine_options options;
    elsa_engine engine;
    elsa_status status;
    const long made = counted(&allocations), files = counted(&opened);
    elsa_engine_options_init(&options);
    options.backend = cpu();
    options.threads = 2;
    options.thread_name = NAME;
    options.cores = &core;
    options.core_count = 1;
    options.spin_us = SPIN_US;
    options.priority = *priority = PRIORITY;
    status = elsa_engine_create(&options, &engine);
    if (status == ELSA_STATUS_UNSUPPORTED) {
        printf("the loop goes on at normal priority: %s\n", elsa_last_error());
        CHECK(strstr(elsa_last_error(), "RLIMIT_RTPRIO") != NULL);
        CHECK(strstr(elsa_last_error(), "CAP_SYS_NICE") != NULL);
        options.priority = *priority = 0;
        status = elsa_engine_create(&options, &engine);
    }
    OK(status);
    /* The counters see the calls of the library, not only those of this program. */
    CHECK(counted(&allocations) > made && counted(&opened) > files);
    memset(&parameters, 0, sizeof parameters);
    parameters.sched_priority = *priority;
    CHECK(*priority == 0 || pthread_setschedparam(pthread_self(), SCHED_FIFO, &parameters) == 0);
    CHECK(pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0);
    return engine;
}

static long long latencies[FRAMES];

static int less(const void *a, const void *b) {
    const long long x = *(const long long *)a, y = *(const long long *)b;
    return (x > y) - (x < y);
}

static double us(size_t frames, double share) {
    return (double)latencies[(size_t)((double)(frames - 1) * share)] / 1e3;
}

static void tell(size_t frames) {
    size_t bins[BINS] = {0}, i, bin;
    qsort(latencies, frames, sizeof *latencies, less);
    printf("%d frames, latency in us: median %.1f, 99.9 %% %.1f, worst %.1f\n", (int)frames, us(frames, 0.5),
           us(frames, 0.999), us(frames, 1));
    for (i = 0; i < frames; i++) {
        for (bin = 0; bin < BINS - 1 && latencies[i] >= 1000ll << bin; bin++) continue;
        bins[bin]++;
    }
    for (bin = 0; bin < BINS; bin++)
        if (bins[bin] > 0) printf("  below %9lld us %9d\n", 1ll << bin, (int)bins[bin]);
}

int main(void) {
    static size_t cores[MOST_CORES];
    static pthread_t threads[MOST_CORES];
    size_t count_of_cores = 0, core, loads, i, frames = 0;
    struct rlimit files, none;
    struct rusage before, after;
    cpu_set_t allowed;
    elsa_engine engine;
    elsa_bound bound;
    elsa_report report;
    elsa_status logged = ELSA_STATUS_DEVICE;
    pthread_t logging;
    long long start, release;
    long made, tried;
    int priority, locked;
    call c;

    CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    for (core = 0; core < MOST_CORES; core++)
        if (CPU_ISSET(core, &allowed)) cores[count_of_cores++] = core;
    CHECK(count_of_cores > 0);
    /* These threads start first, so they do not inherit the priority of the loop. */
    OK(elsa_log_set(ELSA_LOG_DEBUG, message, NULL));
    CHECK(pthread_create(&logging, NULL, logs, &logged) == 0);
    while (!__atomic_load_n(&in_callback, __ATOMIC_ACQUIRE)) sched_yield();
    loads = start_load(cores, count_of_cores, threads);

    engine = place(cores[0], (uint32_t)cores[count_of_cores - 1], &priority);
    worker_is_as_asked(cores[count_of_cores - 1], priority);
    fill_all();
    c = make(engine);
    OK(elsa_bind(c.plan, c.room, &c.in, &c.to, &bound));
    elsa_report_init(&report);

    /* The first frame touches all memory that a frame needs. Then the memory is locked. */
    OK(elsa_bound_run(bound, &report));
    locked = mlockall(MCL_CURRENT) == 0;
    if (!locked) printf("not locked: %s; allowed: within RLIMIT_MEMLOCK, or with CAP_IPC_LOCK\n", strerror(errno));
    memset(out, 0, sizeof out);
    fflush(stdout);

    /* From here on, the system refuses to open a file, and counters count the attempts. */
    CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
    none = files;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    CHECK(getrusage(RUSAGE_SELF, &before) == 0);
    made = counted(&allocations);
    tried = counted(&opened);
    start = now();
    for (release = start; frames < FRAMES && now() - start < MOST_NS; frames++) {
        elsa_status status;
        long long done;
        sleep_until(release);
        status = elsa_bound_run(bound, &report);
        done = now();
        if (status != ELSA_STATUS_OK) break;
        latencies[frames] = done - release;
        /* Periods that have passed are skipped. */
        release += PERIOD_NS;
        if (release < done) release += (done - release + PERIOD_NS - 1) / PERIOD_NS * PERIOD_NS;
    }
    start = now() - start;
    made = counted(&allocations) - made;
    tried = counted(&opened) - tried;
    CHECK(getrusage(RUSAGE_SELF, &after) == 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
    __atomic_store_n(&loaded, 0, __ATOMIC_RELAXED);
    for (i = 0; i < loads; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        CHECK(work[i] > 0);
    }

    CHECK(pthread_join(logging, NULL) == 0);
    CHECK(logged == ELSA_STATUS_OK);
    OK(elsa_log_set(ELSA_LOG_OFF, NULL, NULL));

    CHECK(frames == FRAMES || start >= MOST_NS);
    tell(frames);
    printf("%s, %s, %d workers, %d busy threads; %ld allocations, %ld files, %ld major page faults\n",
           priority > 0 ? "SCHED_FIFO" : "normal priority", locked ? "memory locked" : "memory not locked",
           (int)report.workers, (int)loads, made, tried, after.ru_majflt - before.ru_majflt);
    CHECK(made == 0);
    CHECK(tried == 0);
    CHECK(!locked || after.ru_majflt == before.ru_majflt);
    CHECK(error() < 1e-5);
    OK(elsa_bound_destroy(bound));
    end(&c);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
