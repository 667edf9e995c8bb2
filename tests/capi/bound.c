/* Bound calls whose tensors are replaced by elsa_bound_set: the bits of a fresh bound call, refusals that change
   nothing, lists whose entries change between two runs, bound calls of other operators, and one that is at work. */
#define H 2
#define N 256
#define D 32
#include "common.h"

#define FILL 0x5a

static float second[3][COUNT], want[COUNT], old[COUNT], elsewhere[COUNT];
static const elsa_status argument = ELSA_STATUS_ARGUMENT;

/* True if every byte has the value that memset has written. */
static int untouched(const float *x) {
    size_t i = 0;
    while (i < COUNT * sizeof *x && ((const unsigned char *)x)[i] == FILL) i++;
    return i == COUNT * sizeof *x;
}

/* Runs a bound call into memory of wrong values; returns whether the output has the expected bits. */
static int gives(elsa_bound bound, float *found, const float *expected) {
    memset(found, FILL, sizeof out);
    OK(elsa_bound_run(bound, NULL));
    return memcmp(found, expected, sizeof out) == 0;
}

static void replaced(elsa_engine engine) {
    const call c = make(engine);
    elsa_inputs in = c.in, bad_in;
    elsa_outputs to = c.to, bad_to;
    elsa_bound bound, fresh;
    elsa_report report;
    elsa_report_init(&report);
    OK(elsa_bind(c.plan, c.room, &c.in, &c.to, &bound));
    OK(elsa_bound_run(bound, NULL));
    CHECK(error() < 1e-5);
    memcpy(old, out, sizeof out);

    in.q.data = second[0];
    in.k.data = second[1];
    in.v.data = second[2];
    to.out.data = want;
    OK(elsa_bind(c.plan, c.room, &in, &to, &fresh));
    OK(elsa_bound_run(fresh, NULL));
    OK(elsa_bound_destroy(fresh));
    CHECK(memcmp(want, old, sizeof want) != 0);

    to.out.data = elsewhere;
    OK(elsa_bound_set(bound, &in, &to));
    memset(out, FILL, sizeof out);
    CHECK(gives(bound, elsewhere, want) && gives(bound, elsewhere, want));
    CHECK(untouched(out));
    OK(elsa_bound_run(bound, &report));
    CHECK(report.workers > 0 && report.kernel != NULL && report.kernel[0] != 0);

    /* A refused set keeps the tensors and writes nothing. */
#define KEPT(change, message)                                                       \
    do {                                                                            \
        bad_in = c.in;                                                              \
        bad_to = c.to;                                                              \
        change;                                                                     \
        memset(out, FILL, sizeof out);                                              \
        CHECK(elsa_bound_set(bound, &bad_in, &bad_to) == argument);                 \
        CHECK(strstr(elsa_last_error(), message) != NULL);                          \
        CHECK(gives(bound, elsewhere, want) && untouched(out));                     \
    } while (0)
    KEPT(bad_in.q.bytes -= 1, "q: ");
    KEPT(bad_in.k.bytes -= 4, "k: ");
    KEPT(bad_in.v.bytes = 0, "v: 0 bytes");
    KEPT(bad_in.v.data = NULL, "v: null");
    KEPT(bad_to.out.bytes -= 4, "out: ");
    KEPT(bad_to.out.data = (char *)out + 1, "out: address");
    KEPT(bad_to.out.data = q, "overlap q");
    KEPT(bad_to.out.data = v, "overlap v");
    KEPT(bad_to.out = output(NULL, 0), "out");
    KEPT(bad_in.mask = input(k, sizeof k), "mask: given");
    KEPT(bad_in.key_lengths.count = 1, "key_lengths");
    KEPT(bad_in.size = 0, "inputs.size: 0");
    KEPT(bad_to.size = 0, "outputs.size: 0");
    CHECK(elsa_bound_set(bound, NULL, &c.to) == argument && strstr(elsa_last_error(), "inputs: null") != NULL);
    CHECK(elsa_bound_set(bound, &c.in, NULL) == argument && strstr(elsa_last_error(), "outputs: null") != NULL);
    CHECK(gives(bound, elsewhere, want));

    /* The set of outputs may change. */
    bad_to = to;
    bad_to.lse = output(out, H * N * sizeof *out);
    OK(elsa_bound_set(bound, &in, &bad_to));
    memset(out, FILL, sizeof out);
    CHECK(gives(bound, elsewhere, want) && !untouched(out));
    OK(elsa_bound_set(bound, &in, &to));
    memset(out, FILL, sizeof out);
    CHECK(gives(bound, elsewhere, want) && untouched(out));

    OK(elsa_bound_set(bound, &c.in, &c.to));
    CHECK(gives(bound, out, old));
    end(&c);
    CHECK(gives(bound, out, old));
    OK(elsa_bound_destroy(bound));
    CHECK(elsa_bound_set(bound, &c.in, &c.to) == ELSA_STATUS_HANDLE);
}

/* The library reads the entries of lists in each run, and checks them again. */
static void lists(elsa_engine engine) {
    static int64_t lengths[1] = {N}, shorter[1] = {1};
    static int64_t index[N * N];
    static float table[3 * H];
    call c = make(engine);
    elsa_bound bound;
    size_t i;
    end(&c);
    c.problem.has_key_lengths = 1;
    c.problem.bias_table.dtype = ELSA_DTYPE_F32;
    c.problem.bias_table.has_index = 1;
    c.problem.bias_table.entries = 3;
    c.problem.bias_table.heads = H;
    OK(elsa_plan_create(engine, &c.problem, NULL, &c.plan));
    OK(elsa_workspace_create(c.plan, &c.room));
    c.in.key_lengths.data = lengths;
    c.in.key_lengths.count = 1;
    c.in.bias = input(table, sizeof table);
    c.in.bias_index.data = index;
    c.in.bias_index.count = N * N;
    OK(elsa_bind(c.plan, c.room, &c.in, &c.to, &bound));
    OK(elsa_bound_run(bound, NULL));
    CHECK(error() < 1e-5);
    memcpy(old, out, sizeof out);
    lengths[0] = 1;
    OK(elsa_bound_run(bound, NULL));
    for (i = 0; i < D; i++) CHECK(fabs(out[i] - v[i]) < 1e-5);
    memset(out, FILL, sizeof out);
    lengths[0] = N + 1;
    CHECK(elsa_bound_run(bound, NULL) == argument && strstr(elsa_last_error(), "key_lengths") != NULL);
    CHECK(elsa_bound_set(bound, &c.in, &c.to) == argument && strstr(elsa_last_error(), "key_lengths") != NULL);
    lengths[0] = N;
    index[N] = 3;
    CHECK(elsa_bound_run(bound, NULL) == argument && strstr(elsa_last_error(), "bias_index") != NULL);
    CHECK(elsa_bound_set(bound, &c.in, &c.to) == argument && strstr(elsa_last_error(), "bias_index") != NULL);
    CHECK(untouched(out));
    index[N] = 2;
    OK(elsa_bound_set(bound, &c.in, &c.to));
    CHECK(gives(bound, out, old));
    /* The new list is read, too. */
    c.in.key_lengths.data = shorter;
    OK(elsa_bound_set(bound, &c.in, &c.to));
    OK(elsa_bound_run(bound, NULL));
    for (i = 0; i < D; i++) CHECK(fabs(out[i] - v[i]) < 1e-5);
    OK(elsa_bound_destroy(bound));
    end(&c);
}

/* A function of another operator refuses the bound call. */
static void others(elsa_engine engine) {
    const call c = make(engine);
    elsa_linear_inputs linear_in;
    elsa_linear_outputs linear_to;
    elsa_convolution_inputs series_in;
    elsa_series_outputs series_to;
    elsa_bound bound;
    elsa_linear_inputs_init(&linear_in);
    elsa_linear_outputs_init(&linear_to);
    elsa_convolution_inputs_init(&series_in);
    elsa_series_outputs_init(&series_to);
    OK(elsa_bind(c.plan, c.room, &c.in, &c.to, &bound));
    CHECK(elsa_linear_bound_set(bound, &linear_in, &linear_to) == argument);
    CHECK(strstr(elsa_last_error(), "bound: of attention; allowed: of a plan of elsa_linear_plan_create") != NULL);
    CHECK(elsa_convolution_bound_set(bound, &series_in, &series_to) == argument);
    CHECK(strstr(elsa_last_error(), "elsa_convolution_plan_create") != NULL);
    OK(elsa_bound_run(bound, NULL));
    CHECK(error() < 1e-5);
    OK(elsa_bound_destroy(bound));
    end(&c);
}

static elsa_bound at_work;
static call working;
static int busy;

/* Computes the shares of a call, and tries to replace its tensors meanwhile. */
static void meanwhile(void *user, size_t workers, elsa_parallel_task task, void *context) {
    size_t i;
    (void)user;
    busy += elsa_bound_set(at_work, &working.in, &working.to) == ELSA_STATUS_BUSY;
    for (i = 0; i < workers; i++) task(context, i);
}

static void taken(void) {
    elsa_engine engine;
    elsa_engine_options options;
    elsa_engine_options_init(&options);
    options.backend = ELSA_BACKEND_SCALAR;
    options.threads = 2;
    options.parallel_for = meanwhile;
    OK(elsa_engine_create(&options, &engine));
    working = make(engine);
    OK(elsa_bind(working.plan, working.room, &working.in, &working.to, &at_work));
    OK(elsa_bound_run(at_work, NULL));
    CHECK(busy > 0 && error() < 1e-5);
    OK(elsa_bound_set(at_work, &working.in, &working.to));
    OK(elsa_bound_destroy(at_work));
    end(&working);
    OK(elsa_engine_destroy(engine));
}

int main(void) {
    elsa_engine engine;
    fill_all();
    fill(second[0], 4);
    fill(second[1], 5);
    fill(second[2], 6);
    OK(elsa_engine_create(NULL, &engine));
    replaced(engine);
    lists(engine);
    others(engine);
    OK(elsa_engine_destroy(engine));
    taken();
    printf("%d checks\n", checks);
    return 0;
}
