/* Options of problems and plans against sums in f64: scale and soft cap, windows of keys, element types of 16 bits, windows of
   pictures with a table of relative positions, and Tensor Cores. */
#include "common.h"

/* What a row attends, and how its scores are made. */
typedef struct {
    double scale, cap;
    int has_left, has_right;
    size_t left, right;
} rule;

static int attends(const rule *r, size_t i, size_t j) {
    return (!r->has_left || j + r->left >= i) && (!r->has_right || j <= i + r->right);
}

/* Returns the largest distance of found from attention of q, k and v by the rule. */
static double distance(const rule *r, const float *found) {
    double worst = 0;
    size_t h, i, j, c;
    for (h = 0; h < H; h++)
        for (i = 0; i < N; i++) {
            double sum = 0, y[D];
            memset(y, 0, sizeof y);
            for (j = 0; j < N; j++) {
                double s = 0, p;
                for (c = 0; c < D; c++) s += (double)q[(h * N + i) * D + c] * k[(h * N + j) * D + c];
                s *= r->scale;
                if (r->cap > 0) s = r->cap * tanh(s / r->cap);
                p = attends(r, i, j) ? exp(s) : 0;
                sum += p;
                for (c = 0; c < D; c++) y[c] += p * v[(h * N + j) * D + c];
            }
            for (c = 0; c < D; c++) {
                const double e = fabs(y[c] / sum - found[(h * N + i) * D + c]);
                if (!(e <= worst)) worst = e == e ? e : HUGE_VAL;
            }
        }
    return worst;
}

/* Runs the problem of a call over the tensors of the call. */
static void run(elsa_engine engine, const call *c) {
    elsa_plan plan;
    elsa_workspace room;
    OK(elsa_plan_create(engine, &c->problem, NULL, &plan));
    OK(elsa_workspace_create(plan, &room));
    memset(out, 0xff, sizeof out);
    OK(elsa_run(plan, room, &c->in, &c->to, NULL));
    OK(elsa_workspace_destroy(room));
    OK(elsa_plan_destroy(plan));
}

static void scale_and_softcap(elsa_engine engine) {
    static const float scales[] = {0.7f, -1.5f}, caps[] = {0, 1.25f};
    call c = make(engine);
    size_t s, x;
    c.problem.has_scale = 1;
    for (s = 0; s < 2; s++)
        for (x = 0; x < 2; x++) {
            rule r;
            memset(&r, 0, sizeof r);
            c.problem.scale = scales[s];
            c.problem.softcap = caps[x];
            r.scale = scales[s];
            r.cap = caps[x];
            run(engine, &c);
            CHECK(distance(&r, out) < 1e-5);
        }
    /* A scale is ignored unless it is set. */
    c.problem.has_scale = 0;
    c.problem.softcap = 0;
    run(engine, &c);
    CHECK(error() < 1e-5);
    end(&c);
}

static void window(elsa_engine engine) {
    call c = make(engine);
    int sides;
    for (sides = 1; sides < 4; sides++) {
        rule r;
        memset(&r, 0, sizeof r);
        r.scale = 1 / sqrt((double)D);
        r.has_left = sides & 1;
        r.has_right = sides >> 1;
        r.left = 5;
        r.right = 3;
        c.problem.has_window_left = (uint32_t)r.has_left;
        c.problem.has_window_right = (uint32_t)r.has_right;
        c.problem.window_left = 5;
        c.problem.window_right = 3;
        run(engine, &c);
        CHECK(distance(&r, out) < 1e-5);
    }
    end(&c);
}

/* Converts a number with at most seven significant bits, from 1/64 to 1 in magnitude, or zero. */
static uint16_t narrow(elsa_dtype dtype, float x) {
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    if (dtype == ELSA_DTYPE_BF16 || x == 0) return (uint16_t)(b >> 16);
    return (uint16_t)((b >> 16 & 0x8000) | (((b >> 23 & 0xff) - 112) << 10) | (b >> 13 & 0x3ff));
}

static float wide(elsa_dtype dtype, uint16_t x) {
    const int exponent = x >> 10 & 0x1f, mantissa = x & 0x3ff;
    float y;
    if (dtype == ELSA_DTYPE_BF16) {
        const uint32_t b = (uint32_t)x << 16;
        memcpy(&y, &b, sizeof y);
        return y;
    }
    CHECK(exponent < 31);
    y = exponent ? (float)ldexp(mantissa | 0x400, exponent - 25) : (float)ldexp(mantissa, -24);
    return x & 0x8000 ? -y : y;
}

static void sixteen_bits(elsa_engine engine) {
    static uint16_t short_q[COUNT], short_k[COUNT], short_v[COUNT], short_out[COUNT];
    static float found[COUNT];
    elsa_dtype dtype;
    rule r;
    memset(&r, 0, sizeof r);
    r.scale = 1 / sqrt((double)D);
    for (dtype = ELSA_DTYPE_F16; dtype <= ELSA_DTYPE_BF16; dtype++) {
        call c = make(engine);
        size_t i;
        for (i = 0; i < COUNT; i++) {
            q[i] = floorf(q[i] * 64) / 64;
            k[i] = floorf(k[i] * 64) / 64;
            v[i] = floorf(v[i] * 64) / 64;
            short_q[i] = narrow(dtype, q[i]);
            short_k[i] = narrow(dtype, k[i]);
            short_v[i] = narrow(dtype, v[i]);
            CHECK(wide(dtype, short_q[i]) == q[i]);
        }
        c.problem.dtype = dtype;
        c.in.q = input(short_q, sizeof short_q);
        c.in.k = input(short_k, sizeof short_k);
        c.in.v = input(short_v, sizeof short_v);
        c.to.out = output(short_out, sizeof short_out);
        memset(short_out, 0xff, sizeof short_out);
        run(engine, &c);
        for (i = 0; i < COUNT; i++) found[i] = wide(dtype, short_out[i]);
        /* Half of the distance between neighbours below 1, and the error in f32. */
        CHECK(distance(&r, found) < (dtype == ELSA_DTYPE_F16 ? 0x1p-12 : 0x1p-9) + 1e-5);
        end(&c);
    }
    fill_all();
}

enum { TALL = 8, BROAD = 6, ROWS = 4, COLUMNS = 3, TOKENS = ROWS * COLUMNS, WINDOWS = TALL / ROWS * (BROAD / COLUMNS) };
enum { DOWN = 2, RIGHT = 1, ENTRIES = (2 * ROWS - 1) * (2 * COLUMNS - 1), ALL = WINDOWS * H * TOKENS * D };

static float picture[3][ALL], answer[ALL], table[ENTRIES * H];

/* Whether two tokens of a window are on the same side of the edges of the rolled picture. */
static int together(size_t w, size_t i, size_t j) {
    const int last_row = w / (BROAD / COLUMNS) == TALL / ROWS - 1, last_column = w % (BROAD / COLUMNS) == BROAD / COLUMNS - 1;
    const int rows = (i / COLUMNS < ROWS - DOWN) == (j / COLUMNS < ROWS - DOWN);
    const int columns = (i % COLUMNS < COLUMNS - RIGHT) == (j % COLUMNS < COLUMNS - RIGHT);
    return (!last_row || rows) && (!last_column || columns);
}

/* Runs windows of a picture that was rolled, with a table of relative positions. */
static void pictures(elsa_engine engine) {
    call c = make(engine);
    double worst = 0;
    size_t w, h, i, j, x;
    for (i = 0; i < 3; i++) noise(picture[i], ALL, (unsigned)(50 + i), -1, 1);
    noise(table, ENTRIES * H, 60, -2, 2);
    OK(elsa_view_init(ELSA_LAYOUT_BHND, WINDOWS, H, TOKENS, D, &c.problem.q));
    c.problem.k = c.problem.v = c.problem.out = c.problem.q;
    c.problem.bias_table.entries = ENTRIES;
    c.problem.bias_table.heads = H;
    c.problem.windows.picture[0] = TALL;
    c.problem.windows.picture[1] = BROAD;
    c.problem.windows.size[0] = ROWS;
    c.problem.windows.size[1] = COLUMNS;
    c.problem.windows.shift[0] = DOWN;
    c.problem.windows.shift[1] = RIGHT;
    c.in.q = input(picture[0], sizeof picture[0]);
    c.in.k = input(picture[1], sizeof picture[1]);
    c.in.v = input(picture[2], sizeof picture[2]);
    c.in.bias = input(table, sizeof table);
    c.to.out = output(answer, sizeof answer);
    memset(answer, 0xff, sizeof answer);
    run(engine, &c);
    for (w = 0; w < WINDOWS; w++)
        for (h = 0; h < H; h++)
            for (i = 0; i < TOKENS; i++) {
                const size_t first = (w * H + h) * TOKENS, row = first + i;
                double sum = 0, y[D];
                memset(y, 0, sizeof y);
                for (j = 0; j < TOKENS; j++) {
                    const size_t down = i / COLUMNS + ROWS - 1 - j / COLUMNS, across = i % COLUMNS + COLUMNS - 1 - j % COLUMNS;
                    double s = 0, p;
                    for (x = 0; x < D; x++) s += (double)picture[0][row * D + x] * picture[1][(first + j) * D + x];
                    p = exp(s / sqrt((double)D) + table[(down * (2 * COLUMNS - 1) + across) * H + h]);
                    p = together(w, i, j) ? p : 0;
                    sum += p;
                    for (x = 0; x < D; x++) y[x] += p * picture[2][(first + j) * D + x];
                }
                for (x = 0; x < D; x++) {
                    const double e = fabs(y[x] / sum - answer[row * D + x]);
                    if (!(e <= worst)) worst = e == e ? e : HUGE_VAL;
                }
            }
    CHECK(worst < 1e-5);
    end(&c);
}

/* Runs plain attention with every use of Tensor Cores. A CPU ignores them, and so does a GPU without them. */
static void tensor_cores(elsa_engine engine) {
    const char *device = getenv("ELSA_STANDIN_DEVICE");
    const int has = device != NULL && strcmp(device, "tensor") == 0;
    call c = make(engine);
    elsa_tensor_cores use;
    for (use = ELSA_TENSOR_CORES_OFF; use <= ELSA_TENSOR_CORES_F16; use++) {
        elsa_plan_options how;
        elsa_plan_info info;
        elsa_plan plan;
        elsa_workspace room;
        size_t refused = 7, blocks = 7;
        elsa_plan_options_init(&how);
        elsa_plan_info_init(&info);
        how.tensor_cores = use;
        OK(elsa_plan_create(engine, &c.problem, &how, &plan));
        OK(elsa_plan_describe(plan, &info));
        CHECK(info.tensor_cores == 0 || use != ELSA_TENSOR_CORES_OFF);
        CHECK(info.tensor_cores != 0 || use < ELSA_TENSOR_CORES_ALWAYS || !has);
        CHECK((info.tensor_cores == ELSA_TENSOR_CORES_F16) == (info.tensor_cores != 0 && use == ELSA_TENSOR_CORES_F16));
        OK(elsa_workspace_create(plan, &room));
        OK(elsa_workspace_refused_blocks(room, &refused, &blocks));
        CHECK(refused == 0 && blocks == 0);
        memset(out, 0xff, sizeof out);
        OK(elsa_run(plan, room, &c.in, &c.to, NULL));
        CHECK(error() < (info.tensor_cores == ELSA_TENSOR_CORES_F16 ? 5e-3 : 1e-5));
        OK(elsa_workspace_refused_blocks(room, &refused, &blocks));
        CHECK(refused == 0 && blocks == (info.tensor_cores != 0 ? H : 0));
        OK(elsa_workspace_destroy(room));
        OK(elsa_plan_destroy(plan));
    }
    end(&c);
}

int main(void) {
    elsa_engine_options options;
    elsa_engine engine;
    elsa_engine_options_init(&options);
    options.threads = 2;
    OK(elsa_engine_create(&options, &engine));
    fill_all();
    scale_and_softcap(engine);
    window(engine);
    sixteen_bits(engine);
    pictures(engine);
    tensor_cores(engine);
    OK(elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}
