/* Structs of other sizes: longer ones of newer programs, shorter ones of older programs, and sizes that no version has. Structs that are read are in memory
   of exactly their size; bytes after structs that are written must not change. */
#include "common.h"

/* Larger than the largest struct of any version. */
enum { BEYOND = 4097, BEHIND = 64, FILL = 0xa5 };

static elsa_engine engine;
static call plain;

static elsa_status engine_options(void *options) {
    elsa_engine made;
    const elsa_status status = elsa_engine_create((const elsa_engine_options *)options, &made);
    if (status == ELSA_STATUS_OK) OK(elsa_engine_destroy(made));
    return status;
}

static elsa_status plan_of(const elsa_problem *problem, const elsa_plan_options *options) {
    elsa_plan made;
    const elsa_status status = elsa_plan_create(engine, problem, options, &made);
    if (status == ELSA_STATUS_OK) OK(elsa_plan_destroy(made));
    return status;
}

static elsa_status problem(void *value) { return plan_of((const elsa_problem *)value, NULL); }

static elsa_status plan_options(void *value) { return plan_of(&plain.problem, (const elsa_plan_options *)value); }

static elsa_status inputs(void *value) {
    return elsa_run(plain.plan, plain.room, (const elsa_inputs *)value, &plain.to, NULL);
}

static elsa_status outputs(void *value) {
    return elsa_run(plain.plan, plain.room, &plain.in, (const elsa_outputs *)value, NULL);
}

static elsa_status bound_inputs(void *value) {
    elsa_bound bound;
    const elsa_status status = elsa_bind(plain.plan, plain.room, (const elsa_inputs *)value, &plain.to, &bound);
    if (status == ELSA_STATUS_OK) {
        OK(elsa_bound_run(bound, NULL));
        OK(elsa_bound_destroy(bound));
    }
    return status;
}

static float state_m[H * N], state_s[H * N], state_w[COUNT];

static elsa_status chunk(void *value) {
    elsa_outputs to = plain.to;
    to.state_m.data = state_m;
    to.state_s.data = state_s;
    to.state_w.data = state_w;
    to.state_m.bytes = to.state_s.bytes = sizeof state_m;
    to.state_w.bytes = sizeof state_w;
    return elsa_partial(plain.plan, plain.room, (const elsa_chunk *)value, &plain.in, &to, NULL);
}

static elsa_status engine_info(void *info) { return elsa_engine_describe(engine, (elsa_engine_info *)info); }

static elsa_status plan_info(void *info) { return elsa_plan_describe(plain.plan, (elsa_plan_info *)info); }

static elsa_status certificate(void *value) {
    return elsa_plan_certificate(plain.plan, ELSA_BACKEND_AUTO, (elsa_certificate *)value);
}

static elsa_stream streamed;

static int32_t zeros(void *user, const elsa_rows *rows, void *data, size_t bytes) {
    (void)user;
    (void)rows;
    memset(data, 0, bytes);
    return 0;
}

static int32_t nothing(void *user, const elsa_rows *rows, const void *data, size_t bytes) {
    (void)user;
    (void)rows;
    (void)data;
    (void)bytes;
    return 0;
}

static elsa_status stream_options(void *value) {
    elsa_stream made;
    const elsa_status status =
        elsa_stream_create(engine, &plain.problem, (const elsa_stream_options *)value, &made);
    if (status == ELSA_STATUS_OK) OK(elsa_stream_destroy(made));
    return status;
}

static elsa_status stream_info(void *info) { return elsa_stream_describe(streamed, (elsa_stream_info *)info); }

static elsa_status stream_data(void *value) {
    return elsa_stream_run(streamed, (const elsa_stream_data *)value, NULL);
}

static elsa_status stream_report(void *report) {
    elsa_stream_data data;
    elsa_stream_data_init(&data);
    data.read = zeros;
    data.write = nothing;
    return elsa_stream_run(streamed, &data, (elsa_stream_report *)report);
}

static elsa_status certified(void *value) {
    return elsa_workspace_certified(plain.room, (elsa_certified *)value, NULL, 0);
}

static elsa_status left_out(void *value) {
    return elsa_workspace_left_out(plain.room, (elsa_left_out *)value, NULL, 0);
}

static elsa_status report(void *value) {
    return elsa_run(plain.plan, plain.room, &plain.in, &plain.to, (elsa_report *)value);
}

/* Copies the first bytes of a struct to separate memory, with that size. */
static unsigned char *cut(const void *from, size_t have, size_t size, size_t memory) {
    unsigned char *copy = (unsigned char *)calloc(1, memory);
    CHECK(copy != NULL);
    memcpy(copy, from, have < memory ? have : memory);
    memcpy(copy, &size, sizeof size);
    return copy;
}

static elsa_status status_of(elsa_status (*function)(void *), const void *from, size_t have, size_t size, int last) {
    unsigned char *copy = cut(from, have, size, size);
    elsa_status status;
    if (last) copy[size - 1] = (unsigned char)last;
    status = function(copy);
    free(copy);
    return status;
}

/* Checks sizes that no version has. */
static void never(elsa_status (*function)(void *), const void *from, size_t have) {
    static const size_t sizes[] = {0, 1, 7, 8, BEYOND, (size_t)-1, (size_t)-1 / 2 + 1};
    size_t i;
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *copy = cut(from, have, sizes[i], have), *same = cut(from, have, sizes[i], have);
        CHECK(function(copy) == ELSA_STATUS_ARGUMENT);
        CHECK(strstr(elsa_last_error(), ".size") != NULL);
        CHECK(memcmp(copy, same, have) == 0);
        free(copy);
        free(same);
    }
}

/* Checks a struct that is read: longer ones are accepted if the rest is zero, and shorter ones are refused, except the sizes
   `first` and `second` of earlier headers. */
static void is_read_since(elsa_status (*function)(void *), const void *value, size_t bytes, size_t first, size_t second) {
    size_t size;
    for (size = sizeof(size_t); size < bytes; size += 4)
        CHECK(status_of(function, value, bytes, size, 0) ==
              (size == first || size == second ? ELSA_STATUS_OK : ELSA_STATUS_ARGUMENT));
    CHECK(status_of(function, value, bytes, bytes, 0) == ELSA_STATUS_OK);
    for (size = bytes + 1; size < BEYOND; size += size < bytes + 9 ? 1 : 333) {
        CHECK(status_of(function, value, bytes, size, 0) == ELSA_STATUS_OK);
        CHECK(status_of(function, value, bytes, size, 1) == ELSA_STATUS_UNSUPPORTED);
        CHECK(strstr(elsa_last_error(), ".size") != NULL);
    }
    never(function, value, bytes);
}

static void is_read(elsa_status (*function)(void *), const void *value, size_t bytes) {
    is_read_since(function, value, bytes, bytes, bytes);
}

/* Options of a program with the first header: other memory of the program follows them, and is not read. */
static void first_options(void) {
    const size_t bytes = offsetof(elsa_plan_options, schedule);
    elsa_plan_options how;
    CHECK(bytes == 3 * sizeof(size_t) + 16);
    memset(&how, FILL, sizeof how);
    memset(&how, 0, bytes);
    how.size = bytes;
    OK(plan_options(&how));
    how.block = 65;
    CHECK(plan_options(&how) == ELSA_STATUS_ARGUMENT && strstr(elsa_last_error(), "block") != NULL);
    how.block = 0;
    how.size = sizeof how;
    CHECK(plan_options(&how) == ELSA_STATUS_ARGUMENT && strstr(elsa_last_error(), "schedule") != NULL);
}

/* Checks a struct that is written: nothing after its size changes, and nothing at all if it is refused. `first` and `second` are
   the sizes in earlier headers. */
static void is_written_since(elsa_status (*function)(void *), const void *value, size_t bytes, size_t first, size_t second) {
    size_t size, i;
    for (size = sizeof(size_t); size <= bytes + BEHIND; size += 4) {
        const int known = size == bytes || size == first || size == second;
        unsigned char *block = (unsigned char *)malloc(size + BEHIND);
        CHECK(block != NULL);
        memset(block, FILL, size + BEHIND);
        memcpy(block, &size, sizeof size);
        CHECK(function(block) == (known          ? ELSA_STATUS_OK
                                  : size < bytes ? ELSA_STATUS_ARGUMENT
                                                 : ELSA_STATUS_UNSUPPORTED));
        CHECK(memcmp(block, &size, sizeof size) == 0);
        for (i = known ? size : sizeof size; i < size + BEHIND; i++)
            if (block[i] != FILL) break;
        CHECK(i == size + BEHIND);
        free(block);
    }
    never(function, value, bytes);
}

static void is_written(elsa_status (*function)(void *), const void *value, size_t bytes) {
    is_written_since(function, value, bytes, bytes, bytes);
}

int main(void) {
    elsa_engine_options options;
    elsa_engine_info on;
    elsa_plan_options how;
    elsa_plan_info chosen;
    elsa_certificate bound;
    elsa_report done;
    elsa_stream_options budget;
    elsa_stream_info account;
    elsa_stream_data callbacks;
    elsa_stream_report passed;
    elsa_chunk place;
    elsa_certified proved;
    elsa_left_out left;
    elsa_plan certifying;
    fill_all();
    elsa_engine_options_init(&options);
    elsa_engine_info_init(&on);
    elsa_plan_options_init(&how);
    elsa_plan_info_init(&chosen);
    elsa_certificate_init(&bound);
    elsa_report_init(&done);
    options.backend = ELSA_BACKEND_SCALAR;
    options.threads = 1;
    OK(elsa_engine_create(&options, &engine));
    plain = make(engine);
    OK(elsa_run(plain.plan, plain.room, &plain.in, &plain.to, NULL));
    CHECK(error() < 1e-5);

    is_read(engine_options, &options, sizeof options);
    is_read_since(plan_options, &how, sizeof how, offsetof(elsa_plan_options, schedule),
                  offsetof(elsa_plan_options, tensor_cores));
    first_options();
    is_read(problem, &plain.problem, sizeof plain.problem);
    is_read(inputs, &plain.in, sizeof plain.in);
    is_read(bound_inputs, &plain.in, sizeof plain.in);
    is_read(outputs, &plain.to, sizeof plain.to);
    elsa_chunk_init(&place);
    place.key_total = N;
    is_read(chunk, &place, sizeof place);
    elsa_stream_options_init(&budget);
    elsa_stream_info_init(&account);
    elsa_stream_data_init(&callbacks);
    elsa_stream_report_init(&passed);
    budget.host_budget = (size_t)256 << 20;
    callbacks.read = zeros;
    callbacks.write = nothing;
    OK(elsa_stream_create(engine, &plain.problem, &budget, &streamed));
    is_read_since(stream_options, &budget, sizeof budget, offsetof(elsa_stream_options, device_budget),
                  offsetof(elsa_stream_options, sizes));
    is_read_since(stream_data, &callbacks, sizeof callbacks, offsetof(elsa_stream_data, unit_finished), sizeof callbacks);
    is_written_since(stream_info, &account, sizeof account, offsetof(elsa_stream_info, device_bytes),
                     offsetof(elsa_stream_info, sizes));
    is_written(stream_report, &passed, sizeof passed);
    OK(elsa_stream_destroy(streamed));
    is_written(engine_info, &on, sizeof on);
    is_written_since(plan_info, &chosen, sizeof chosen, offsetof(elsa_plan_info, tensor_cores), sizeof chosen);
    is_written(certificate, &bound, sizeof bound);
    is_written(report, &done, sizeof done);
    how.certify = 1;
    how.error_budget = 0.5f;
    OK(elsa_plan_create(engine, &plain.problem, &how, &certifying));
    OK(elsa_workspace_destroy(plain.room));
    OK(elsa_workspace_create(certifying, &plain.room));
    OK(elsa_run(certifying, plain.room, &plain.in, &plain.to, NULL));
    OK(elsa_plan_destroy(certifying));
    elsa_certified_init(&proved);
    is_written(certified, &proved, sizeof proved);
    elsa_left_out_init(&left);
    is_written(left_out, &left, sizeof left);
    OK(elsa_run(plain.plan, plain.room, &plain.in, &plain.to, &done));
    CHECK(done.backend == ELSA_BACKEND_SCALAR && done.fallback == 0 && done.workers == 1 && done.kernel[0] != 0);
    OK(elsa_engine_describe(engine, &on));
    CHECK(on.backend == ELSA_BACKEND_SCALAR && on.threads == 1);
    OK(elsa_plan_describe(plain.plan, &chosen));
    CHECK(chosen.workspace_bytes > 0 && strcmp(chosen.kernel, done.kernel) == 0);
    memset(out, 0, sizeof out);
    OK(elsa_run(plain.plan, plain.room, &plain.in, &plain.to, NULL));
    CHECK(error() < 1e-5);
    end(&plain);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
