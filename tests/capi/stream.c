/* Streams: callbacks fill and take tensors within a budget. The bits are those of elsa_run for every budget, chunk and
   number of threads, with every kind of input; the account adds up; and keys may exceed the budget. */
#define _POSIX_C_SOURCE 200809L
#include "stream.h"

static float past_k[SPAN], past_v[SPAN], present[2][2 * SPAN], stream_present[2][2 * SPAN];
static float bias[ROWS * N], table[32 * H];
static unsigned char mask[ROWS * N];
static int64_t numbers[ROWS * N], lengths[1];

/* Runs streams with several budgets and chunks; each has the answer in memory. Returns the largest number of units. */
static size_t agrees(both *x) {
    static const size_t more[] = {VARIES, 2 * VARIES, (size_t)64 << 20};
    static const double etas[] = {0.1, 0};
    size_t i, j, most = 0;
    in_memory(x);
    for (i = 0; i < 3; i++)
        for (j = 0; j < 2; j++) {
            elsa_stream_info info;
            elsa_stream_report done;
            elsa_stream stream;
            x->how.eta = etas[j];
            stream = streamed(x, more[i], &info);
            elsa_stream_report_init(&done);
            forget();
            OK(elsa_stream_run(stream, &x->data, &done));
            same(x, &done);
            CHECK(x->problem.packed > 0 ? info.units == 0 : done.units == info.units);
            if (done.units > most) most = done.units;
            OK(elsa_stream_destroy(stream));
        }
    return most;
}

/* Returns the distance of out from the definition: causal attention whose last query sees the last valid key. */
static double wrong(const both *x, size_t queries, size_t keys, size_t valid) {
    double worst = 0, y[D];
    size_t h, i, j, c;
    for (h = 0; h < H; h++)
        for (i = 0; i < queries; i++) {
            const float *row = q + i * x->problem.q.strides[2] + h * x->problem.q.strides[1];
            const float *found = stream_out + i * x->problem.q.strides[2] + h * x->problem.q.strides[1];
            const size_t shared = h / (H / SHARED);
            double sum = 0;
            memset(y, 0, sizeof y);
            for (j = 0; j <= i + valid - queries; j++) {
                double s = 0, p;
                for (c = 0; c < D; c++) s += (double)row[c] * k[(shared * keys + j) * D + c];
                p = exp(s / sqrt((double)D));
                sum += p;
                for (c = 0; c < D; c++) y[c] += p * v[(shared * keys + j) * D + c];
            }
            for (c = 0; c < D; c++) {
                double e = fabs(y[c] / sum - found[c]);
                if (!(e <= worst)) worst = e == e ? e : HUGE_VAL;
            }
        }
    return worst;
}

/* Checks every kind of input. */
static void kinds(void) {
    static both x;
    static const elsa_view wide = {{1, SHARED, 600, D}, {SHARED * 600 * D, 600 * D, D, 1}};
    elsa_view view;
    size_t i;
    prepare(&x, 1, ROWS, N);
    x.problem.causal = ELSA_CAUSAL_BOTTOM_RIGHT;
    x.problem.has_key_lengths = 1;
    lengths[0] = N - 5;
    x.in.key_lengths.data = x.data.key_lengths.data = lengths;
    x.in.key_lengths.count = x.data.key_lengths.count = 1;
    agrees(&x);
    CHECK(wrong(&x, ROWS, N, N - 5) < 1e-5);
    /* Another block size has different bits, which are its own. */
    x.how.block = 128;
    agrees(&x);
    CHECK(wrong(&x, ROWS, N, N - 5) < 1e-5);

    /* A mask shared by heads, and a bias per head. */
    prepare(&x, 1, ROWS, N);
    for (i = 0; i < ROWS * N; i++) mask[i] = i % 3 != 1;
    x.problem.mask.kind = ELSA_MASK_BOOL;
    x.problem.mask.rank = 2, x.problem.mask.dims[0] = ROWS, x.problem.mask.dims[1] = N;
    x.in.mask = from(mask, sizeof mask);
    view = dense(1, 1, ROWS, N);
    put(ELSA_OPERAND_MASK, mask, 1, &view);
    for (i = 0; i < ROWS * N; i++) bias[i] = (float)(i % 11) / 4.0f - 1.0f;
    x.problem.bias.kind = ELSA_MASK_F32;
    x.problem.bias.rank = 3;
    x.problem.bias.dims[0] = H, x.problem.bias.dims[1] = 1, x.problem.bias.dims[2] = N;
    x.in.bias = from(bias, sizeof bias);
    view = dense(1, H, 1, N);
    put(ELSA_OPERAND_BIAS, bias, 4, &view);
    agrees(&x);

    /* A table of positions with an index. */
    prepare(&x, 1, ROWS, N);
    for (i = 0; i < 32 * H; i++) table[i] = (float)(i % 13) / 8.0f;
    for (i = 0; i < ROWS * N; i++) numbers[i] = (int64_t)(i * 7 % 32);
    x.problem.bias_table.dtype = ELSA_DTYPE_F32;
    x.problem.bias_table.has_index = 1;
    x.problem.bias_table.entries = 32, x.problem.bias_table.heads = H;
    x.in.bias = from(table, sizeof table);
    x.in.bias_index.data = numbers, x.in.bias_index.count = ROWS * N;
    view = dense(1, 1, 32, H);
    put(ELSA_OPERAND_BIAS, table, 4, &view);
    view = dense(1, 1, ROWS, N);
    put(ELSA_OPERAND_BIAS_INDEX, numbers, 8, &view);
    agrees(&x);
    {
        /* An entry outside the table. */
        elsa_stream_info info;
        elsa_stream_report done;
        const elsa_stream stream = streamed(&x, VARIES, &info);
        elsa_stream_report_init(&done);
        numbers[N + 700] = 32;
        CHECK(elsa_stream_run(stream, &x.data, &done) == ELSA_STATUS_ARGUMENT);
        CHECK(strncmp(elsa_last_error(), "bias_index: entry 2000 is 32", 28) == 0 && done.units == 0);
        OK(elsa_stream_destroy(stream));
    }

    /* A past and a present. */
    prepare(&x, 1, ROWS, N - 600);
    x.problem.has_past = x.problem.has_present = 1;
    x.problem.past_k = x.problem.past_v = wide;
    x.problem.present_k = x.problem.present_v = dense(1, SHARED, N, D);
    x.problem.causal = ELSA_CAUSAL_TOP_LEFT;
    x.in.past_k = from(past_k, sizeof past_k), x.in.past_v = from(past_v, sizeof past_v);
    x.to.present_k = into(present[0], sizeof present[0]), x.to.present_v = into(present[1], sizeof present[1]);
    put(ELSA_OPERAND_PAST_K, past_k, 4, &wide);
    put(ELSA_OPERAND_PAST_V, past_v, 4, &wide);
    put(ELSA_OPERAND_PRESENT_K, stream_present[0], 4, &x.problem.present_k);
    put(ELSA_OPERAND_PRESENT_V, stream_present[1], 4, &x.problem.present_v);
    memset(stream_present, 0, sizeof stream_present);
    agrees(&x);
    CHECK(memcmp(present, stream_present, sizeof present) == 0);

    /* Packed sequences. */
    {
        static const int64_t of_q[4] = {0, 20, 20, ROWS}, of_k[4] = {0, 900, 1000, N};
        prepare(&x, 1, ROWS, N);
        x.problem.packed = 3;
        x.in.cu_seqlens_q.data = x.data.cu_seqlens_q.data = of_q;
        x.in.cu_seqlens_k.data = x.data.cu_seqlens_k.data = of_k;
        x.in.cu_seqlens_q.count = x.in.cu_seqlens_k.count = 4;
        x.data.cu_seqlens_q.count = x.data.cu_seqlens_k.count = 4;
        agrees(&x);
    }

    /* Several sequences in a unit, and one without keys. */
    prepare(&x, 2, ROWS, 600);
    agrees(&x);
    prepare(&x, 1, ROWS, 0);
    in_memory(&x);
    {
        elsa_stream_info info;
        const elsa_stream stream = streamed(&x, VARIES, &info);
        forget();
        OK(elsa_stream_run(stream, &x.data, NULL));
        CHECK(memcmp(stream_out, out, H * ROWS * D * sizeof *out) == 0 && stream_out[0] == 0);
        CHECK(memcmp(stream_lse, lse, H * ROWS * sizeof *lse) == 0 && stream_lse[0] == -HUGE_VALF);
        OK(elsa_stream_destroy(stream));
    }
}

/* Keys and values larger than all allocations of a run. Scores are zero, so the answer is a mean. */
enum { LONG = 1 << 19, ODD_VALUE = 3 };
static size_t most_at_once;

static int32_t makes(void *unused, const elsa_rows *rows, void *data, size_t bytes) {
    size_t t;
    float *to = (float *)data;
    (void)unused;
    if (bytes > most_at_once) most_at_once = bytes;
    memset(to, 0, bytes);
    if (rows->operand == ELSA_OPERAND_V)
        for (t = 0; t < rows->count[2]; t++)
            if ((rows->first[2] + t) % 2 == 1) to[t * rows->strides[2]] = ODD_VALUE;
    return 0;
}

static int32_t means(void *answer, const elsa_rows *rows, const void *data, size_t bytes) {
    (void)rows;
    memcpy(answer, data, bytes);
    return 0;
}

static void larger_than_memory(void) {
    elsa_problem problem;
    elsa_stream_options how;
    elsa_stream_info info;
    elsa_stream_report done;
    elsa_stream_data data;
    elsa_stream stream;
    float answer[D];
    elsa_problem_init(&problem);
    elsa_stream_options_init(&how);
    elsa_stream_info_init(&info);
    elsa_stream_report_init(&done);
    elsa_stream_data_init(&data);
    problem.q = problem.out = dense(1, 1, 1, D);
    problem.k = problem.v = dense(1, 1, LONG, D);
    CHECK(elsa_stream_create(engine, &problem, &how, &stream) == ELSA_STATUS_MEMORY);
    how.host_budget = named() + VARIES;
    OK(elsa_stream_create(engine, &problem, &how, &stream));
    OK(elsa_stream_describe(stream, &info));
    CHECK(info.units == 1 && info.resident_rows == 1);
    CHECK(8 * (info.host_bytes - info.fixed_bytes) < 2 * sizeof(float) * LONG * D);
    data.read = makes;
    data.write = means;
    data.user = answer;
    OK(elsa_stream_run(stream, &data, &done));
    CHECK(done.read_bytes == (2 * (size_t)LONG + 1) * sizeof(float) * D && done.written_bytes == sizeof answer);
    CHECK(done.parts == (LONG + info.chunk_keys - 1) / info.chunk_keys && most_at_once <= info.key_bytes);
    /* Not every kernel computes the weight 1 for a score of zero; the weights of all keys are equal. */
    CHECK(fabs(answer[0] - ODD_VALUE / 2.0) < 1e-5 && answer[1] == 0 && answer[D - 1] == 0);
    OK(elsa_stream_destroy(stream));
}

int main(void) {
    elsa_engine_options options;
    size_t i;
    fill_all();
    for (i = 0; i < SPAN; i++) past_k[i] = q[SPAN - 1 - i], past_v[i] = k[SPAN - 1 - i];
    elsa_engine_options_init(&options);
    for (options.threads = 1; options.threads <= 2; options.threads++) {
        options.backend = options.threads == 1 ? ELSA_BACKEND_SCALAR : best();
        OK(elsa_engine_create(&options, &engine));
        kinds();
        if (options.threads == 2) larger_than_memory();
        OK(elsa_engine_destroy(engine));
    }
    printf("%d checks\n", checks);
    return 0;
}
