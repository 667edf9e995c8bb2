/* Runs that a caller captures as a CUDA graph, with NVIDIA's driver or the stand-in: in every capture mode, with plans
   of every kind, in a workspace whose earlier run is still pending. The graph answers like a direct run, bit by bit,
   also after its inputs have changed; and inputs that a captured run reads later are not overwritten. */
#define _POSIX_C_SOURCE 200809L
#define H 3
#define N 300
#define D 32
#include "common.h"
#include "driver.h"

static int (*cuStreamBeginCapture)(void *, int);
static int (*cuStreamEndCapture)(void *, void **);
static int (*cuGraphInstantiate)(void **, void *, void **, char *, size_t);
static int (*cuGraphInstantiateWithFlags)(void **, void *, unsigned long long);
static int (*cuGraphLaunch)(void *, void *);
static int (*cuGraphDestroy)(void *);
static int (*cuGraphExecDestroy)(void *);

static void open_graphs(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    find(library, "cuStreamBeginCapture_v2", &cuStreamBeginCapture);
    find(library, "cuStreamEndCapture", &cuStreamEndCapture);
    /* Drivers from CUDA 11.4 on have the newer one. */
    if (dlsym(library, "cuGraphInstantiateWithFlags"))
        find(library, "cuGraphInstantiateWithFlags", &cuGraphInstantiateWithFlags);
    else
        find(library, "cuGraphInstantiate", &cuGraphInstantiate);
    find(library, "cuGraphLaunch", &cuGraphLaunch);
    find(library, "cuGraphDestroy", &cuGraphDestroy);
    find(library, "cuGraphExecDestroy", &cuGraphExecDestroy);
}

static void *instantiated(void *graph) {
    void *made = NULL;
    CHECK((cuGraphInstantiateWithFlags ? cuGraphInstantiateWithFlags(&made, graph, 0)
                                       : cuGraphInstantiate(&made, graph, NULL, NULL, 0)) == 0);
    CHECK(cuGraphDestroy(graph) == 0);
    return made;
}

/* Special property of a plan. */
typedef enum { PLAIN, CERTIFIED, DIVIDED, LENGTHS, STATES, KINDS } kind;

#define ROWS (H * N * sizeof(float))

static address at_q, at_k, at_v, at_out, at_m, at_s, at_w;
static int64_t lengths[1] = {N - 7};

static size_t queries(kind of) { return of == DIVIDED ? 1 : N; }

static call planned(elsa_engine engine, kind of) {
    elsa_plan_options options;
    call c;
    elsa_problem_init(&c.problem);
    elsa_inputs_init(&c.in);
    elsa_outputs_init(&c.to);
    elsa_plan_options_init(&options);
    options.certify = of == CERTIFIED;
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, H, N, D, &c.problem.k));
    c.problem.v = c.problem.k;
    OK(elsa_view_init(ELSA_LAYOUT_BHND, 1, H, queries(of), D, &c.problem.q));
    c.problem.out = c.problem.q;
    c.problem.has_key_lengths = of == LENGTHS;
    OK(elsa_plan_create(engine, &c.problem, &options, &c.plan));
    OK(elsa_workspace_create(c.plan, &c.room));
    c.in.q.data = (const void *)(size_t)at_q;
    c.in.k.data = (const void *)(size_t)at_k;
    c.in.v.data = (const void *)(size_t)at_v;
    c.to.out.data = (void *)(size_t)at_out;
    c.in.k.bytes = c.in.v.bytes = sizeof k;
    c.in.q.bytes = c.to.out.bytes = H * queries(of) * D * sizeof(float);
    if (of == LENGTHS) {
        c.in.key_lengths.data = lengths;
        c.in.key_lengths.count = 1;
    }
    if (of == STATES) {
        c.to.state_m.data = (void *)(size_t)at_m;
        c.to.state_s.data = (void *)(size_t)at_s;
        c.to.state_w.data = (void *)(size_t)at_w;
        c.to.state_m.bytes = c.to.state_s.bytes = ROWS;
        c.to.state_w.bytes = sizeof out;
    }
    return c;
}

static elsa_status run(const call *c, void *stream) {
    return elsa_run_device(c->plan, c->room, &c->in, &c->to, stream, NULL);
}

static void clear(void) {
    memset(out, 0xff, sizeof out);
    CHECK(cuMemcpyHtoD(at_out, out, sizeof out) == 0);
}

/* Returns the current output, waiting only for the default stream. */
static void download(kind of, float *to) {
    CHECK(cuMemcpyDtoH(to, at_out, H * queries(of) * D * sizeof(float)) == 0);
}

static int same(kind of, const float *a, const float *b) {
    return memcmp(a, b, H * queries(of) * D * sizeof(float)) == 0;
}

/* Computes the answer and the certificate of a direct run in a separate workspace. */
static void direct(elsa_engine engine, kind of, float *answer, double *bound) {
    call c = planned(engine, of);
    elsa_certified certified;
    clear();
    OK(run(&c, NULL));
    download(of, answer);
    CHECK(answer[0] == answer[0] && answer[H * queries(of) * D - 1] != 0);
    if (of == CERTIFIED) {
        elsa_certified_init(&certified);
        OK(elsa_workspace_certified(c.room, &certified, bound, D));
    }
    end(&c);
}

static void captured(elsa_engine engine, kind of, int mode, void *stream) {
    static float first[COUNT], second[COUNT], found[COUNT];
    double bound[D], again[D];
    elsa_certified certified;
    void *graph = NULL, *launchable;
    call c = planned(engine, of);
    fill(q, 1);
    CHECK(cuMemcpyHtoD(at_q, q, sizeof q) == 0);
    direct(engine, of, first, bound);
    fill(q, 9);
    CHECK(cuMemcpyHtoD(at_q, q, sizeof q) == 0);
    direct(engine, of, second, again);
    CHECK(!same(of, first, second));

    /* An earlier run is pending: a captured stream cannot wait for it. */
    OK(run(&c, stream));
    CHECK(cuStreamBeginCapture(stream, mode) == 0);
    OK(run(&c, stream));
    OK(run(&c, stream));
    CHECK(cuStreamEndCapture(stream, &graph) == 0 && graph != NULL);
    launchable = instantiated(graph);
    CHECK(cuStreamSynchronize(stream) == 0);
    clear();
    download(of, found);
    CHECK(!same(of, second, found));

    CHECK(cuGraphLaunch(launchable, stream) == 0 && cuStreamSynchronize(stream) == 0);
    download(of, found);
    CHECK(same(of, second, found));
    if (of == CERTIFIED) {
        elsa_certified_init(&certified);
        OK(elsa_workspace_certified(c.room, &certified, bound, D));
        CHECK(memcmp(bound, again, sizeof bound) == 0);
    }
    fill(q, 1);
    CHECK(cuMemcpyHtoD(at_q, q, sizeof q) == 0);
    clear();
    CHECK(cuGraphLaunch(launchable, stream) == 0 && cuGraphLaunch(launchable, stream) == 0);
    CHECK(cuStreamSynchronize(stream) == 0);
    download(of, found);
    CHECK(same(of, first, found));

    /* A direct run in the same workspace, concurrent with the graph. */
    clear();
    OK(run(&c, stream));
    CHECK(cuStreamSynchronize(stream) == 0);
    download(of, found);
    CHECK(same(of, first, found));
    if (of == LENGTHS) {
        /* The graph reads the lengths at every launch. */
        lengths[0] = N;
        CHECK(run(&c, stream) == ELSA_STATUS_DEVICE);
        CHECK(strstr(elsa_last_error(), "workspace: a captured run reads its lengths") != NULL);
        lengths[0] = N - 7;
        clear();
        CHECK(cuGraphLaunch(launchable, stream) == 0 && cuStreamSynchronize(stream) == 0);
        download(of, found);
        CHECK(same(of, first, found));
    }
    /* A second graph of the same workspace. */
    CHECK(cuStreamBeginCapture(stream, mode) == 0);
    OK(run(&c, stream));
    CHECK(cuStreamEndCapture(stream, &graph) == 0);
    CHECK(cuGraphExecDestroy(launchable) == 0);
    launchable = instantiated(graph);
    clear();
    CHECK(cuGraphLaunch(launchable, stream) == 0 && cuStreamSynchronize(stream) == 0);
    download(of, found);
    CHECK(same(of, first, found));
    CHECK(cuGraphExecDestroy(launchable) == 0);
    end(&c);
}

/* Captures a bound call at the first use of its plan, so that memory is allocated during the capture. */
static void first_run(elsa_engine engine, kind of, void *stream) {
    static float answer[COUNT], found[COUNT];
    double bound[D];
    void *graph = NULL, *launchable;
    call c;
    direct(engine, of, answer, bound);
    c = planned(engine, of);
    clear();
    CHECK(cuStreamBeginCapture(stream, 0) == 0);
    OK(run(&c, stream));
    CHECK(cuStreamEndCapture(stream, &graph) == 0 && graph != NULL);
    launchable = instantiated(graph);
    CHECK(cuGraphLaunch(launchable, stream) == 0 && cuStreamSynchronize(stream) == 0);
    download(of, found);
    CHECK(same(of, answer, found));
    CHECK(cuGraphExecDestroy(launchable) == 0);
    end(&c);
}

/* Checks that a run on the default stream is refused while a captured stream waits for it, before it could invalidate
   the capture. */
static void default_stream(elsa_engine engine) {
    static float found[COUNT];
    double bound[D];
    void *stream = NULL, *graph = NULL, *launchable;
    call c = planned(engine, PLAIN);
    CHECK(cuStreamCreate(&stream, 0) == 0);
    direct(engine, PLAIN, found, bound);
    CHECK(cuStreamBeginCapture(stream, 2) == 0);
    CHECK(run(&c, (void *)1) == ELSA_STATUS_DEVICE);
    CHECK(strstr(elsa_last_error(), "CAPTURE") != NULL);
    OK(run(&c, stream));
    CHECK(cuStreamEndCapture(stream, &graph) == 0 && graph != NULL);
    launchable = instantiated(graph);
    CHECK(cuGraphLaunch(launchable, stream) == 0 && cuStreamSynchronize(stream) == 0);
    CHECK(cuGraphExecDestroy(launchable) == 0 && cuStreamDestroy(stream) == 0);
    end(&c);
}

int main(void) {
    elsa_engine engine;
    elsa_engine_options options;
    void *context = NULL, *popped = NULL, *stream = NULL;
    int mode, of;
    open_driver();
    open_graphs();
    fill_all();
    elsa_engine_options_init(&options);
    options.backend = ELSA_BACKEND_CUDA;
    options.fallback = ELSA_FALLBACK_FAIL;
    OK(elsa_engine_create(&options, &engine));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxPushCurrent(context) == 0);
    CHECK(cuStreamCreate(&stream, 1) == 0);
    at_q = upload(q, sizeof q);
    at_k = upload(k, sizeof k);
    at_v = upload(v, sizeof v);
    at_out = upload(out, sizeof out);
    at_m = upload(out, ROWS);
    at_s = upload(out, ROWS);
    at_w = upload(out, sizeof out);
    first_run(engine, STATES, stream);
    for (mode = 0; mode < 3; mode++)
        for (of = PLAIN; of < KINDS; of++) captured(engine, (kind)of, mode, stream);
    default_stream(engine);
    CHECK(cuMemFree(at_q) == 0 && cuMemFree(at_k) == 0 && cuMemFree(at_v) == 0 && cuMemFree(at_out) == 0);
    CHECK(cuMemFree(at_m) == 0 && cuMemFree(at_s) == 0 && cuMemFree(at_w) == 0);
    CHECK(cuStreamDestroy(stream) == 0);
    CHECK(cuCtxPopCurrent(&popped) == 0 && cuDevicePrimaryCtxRelease(0) == 0);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
