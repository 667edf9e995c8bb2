/* Files of tasks of quorums: they merge to the bits of a merge in memory, in any order and within any budget, and refusals.
   If ELSA_TOOL names the tool elsa, the tool's files merge here, and the files of this program in the tool. */
#define _POSIX_C_SOURCE 200809L
#include "states.h"

/* A sanitizer keeps freed memory for a while, so the process may need much less memory than a message says. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum { TASKS = 7, ROWS = H * N, PATH = 512 };

static float m[ROWS], s[ROWS], w[COUNT], m_whole[ROWS], s_whole[ROWS], w_whole[COUNT], m_sum[TASKS][ROWS], s_sum[TASKS][ROWS];
static float w_sum[TASKS][COUNT], lse[ROWS], read_out[COUNT], read_lse[ROWS];
static char folder[PATH], names[TASKS][2 * PATH], out_path[2 * PATH], lse_path[2 * PATH];
static const char *paths[TASKS + 1];

static elsa_task_options options_of(uint64_t number) {
    elsa_task_options made;
    elsa_task_options_init(&made);
    made.chunks[0] = TASKS;
    made.number = number;
    return made;
}

static const char *path_of(const char *name) {
    static char all[8][2 * PATH];
    static int next;
    char *path = all[next++ % 8];
    sprintf(path, "%s/%s", folder, name);
    return path;
}

static elsa_task_file file_of(const char *path, const char *run) {
    elsa_task_file made;
    elsa_task_file_init(&made);
    made.path = path;
    made.run = run;
    return made;
}

static elsa_task_files files_of(void) {
    elsa_task_files made;
    size_t i;
    for (i = 0; i < TASKS; i++) paths[i] = names[i];
    elsa_task_files_init(&made);
    made.paths = paths;
    made.count = TASKS;
    made.out = out_path;
    made.lse = lse_path;
    return made;
}

/* Reads the last count floats of a .npy file; its length is not known otherwise. */
static void read_npy(const char *path, float *to, size_t count) {
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    CHECK(fseek(file, -(long)(count * sizeof *to), SEEK_END) == 0);
    CHECK(fread(to, sizeof *to, count, file) == count);
    fclose(file);
}

static int exists(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file != NULL) fclose(file);
    return file != NULL;
}

static void write_npy(const char *path, const float *from) {
    char header[129];
    FILE *file = fopen(path, "wb");
    const int written = sprintf(header, "{'descr': '<f4', 'fortran_order': False, 'shape': (1, %d, %d, %d), }", H, N, D);
    CHECK(file != NULL && written < 117);
    memset(header + written, ' ', 118 - (size_t)written);
    header[117] = '\n';
    CHECK(fwrite("\x93NUMPY\1\0\x76\0", 1, 10, file) == 10 && fwrite(header, 1, 118, file) == 118);
    CHECK(fwrite(from, sizeof *from, COUNT, file) == COUNT && fclose(file) == 0);
}

/* Merges the states of the tasks in memory, in the balanced tree of the files: ((0 1)(2 3))((4 5) 6). */
static void merge_in_memory(void) {
    static const int pairs[][2] = {{0, 1}, {2, 3}, {0, 2}, {4, 5}, {4, 6}, {0, 4}};
    size_t i;
    for (i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const int a = pairs[i][0], b = pairs[i][1];
        const elsa_states_in earlier = from(m_sum[a], s_sum[a], w_sum[a]), later = from(m_sum[b], s_sum[b], w_sum[b]);
        const elsa_states_out to = into(m_sum[a], s_sum[a], w_sum[a]);
        OK(elsa_states_merge(ROWS, D, &earlier, &later, &to));
    }
}

/* Computes every task, writes its states to a file, and merges the states in memory into out and lse. */
static void compute(elsa_engine engine, const call *c, const char *run) {
    const elsa_states_out part = into(m, s, w), whole = into(m_whole, s_whole, w_whole);
    const elsa_states_in read = from(m, s, w), root = from(m_sum[0], s_sum[0], w_sum[0]);
    uint64_t number;
    for (number = 0; number < TASKS; number++) {
        const elsa_task_options how = options_of(number);
        const elsa_task_file file = file_of(names[number], run);
        elsa_task task;
        OK(elsa_task_create(engine, &c->problem, NULL, &how, &task));
        OK(elsa_task_run(task, &c->in, &part, NULL));
        OK(elsa_task_file_write(task, &read, &file));
        OK(elsa_task_spread(task, &read, &whole));
        memcpy(m_sum[number], m_whole, sizeof m_whole);
        memcpy(s_sum[number], s_whole, sizeof s_whole);
        memcpy(w_sum[number], w_whole, sizeof w_whole);
        OK(elsa_task_destroy(task));
    }
    merge_in_memory();
    OK(elsa_states_finish(ROWS, D, &root, out, lse));
}

static void same(const char *of_out, const char *of_lse) {
    read_npy(of_out, read_out, COUNT);
    read_npy(of_lse, read_lse, ROWS);
    CHECK(memcmp(read_out, out, sizeof out) == 0);
    CHECK(memcmp(read_lse, lse, sizeof lse) == 0);
}

static void answers(elsa_engine engine) {
    int causal;
    for (causal = 0; causal < 2; causal++) {
        call c = make(engine);
        elsa_task_files files;
        elsa_task_merged merged;
        unsigned long budget;
        size_t i;
        c.problem.causal = causal ? ELSA_CAUSAL_TOP_LEFT : ELSA_CAUSAL_NONE;
        compute(engine, &c, "frame 7");
        if (!causal) CHECK(error() < 1e-5);
        files = files_of();
        elsa_task_merged_init(&merged);
        OK(elsa_task_files_merge(&files, &merged));
        same(out_path, lse_path);
        CHECK(merged.tasks == TASKS && merged.windows == 1 && merged.dtype == ELSA_DTYPE_F32 && merged.bytes_read > 0);
        CHECK(merged.shape[0] == 1 && merged.shape[1] == H && merged.shape[2] == N && merged.shape[3] == D);
        /* Another order of the files, and a small budget. The message names the smallest one, which grows with the memory
           that the process uses. */
        for (i = 0; i < TASKS; i++) paths[i] = names[(3 * i + 2) % TASKS];
        files.run = "frame 7";
        for (i = 0; i < 100; i++) {
            remove(out_path);
            files.host_budget = 1;
            CHECK(elsa_task_files_merge(&files, &merged) == ELSA_STATUS_MEMORY);
            CHECK(!exists(out_path));
            CHECK(sscanf(elsa_last_error(), "host_budget: %*u; allowed: at least %lu bytes", &budget) == 1);
            files.host_budget = budget + (1 << 12);
            if (elsa_task_files_merge(&files, &merged) == ELSA_STATUS_OK && (merged.windows > 1 || SANITIZED)) break;
        }
        CHECK(i < 100);
        same(out_path, lse_path);
        /* One output alone, in the other layout. */
        files = files_of();
        files.lse = NULL;
        files.layout = ELSA_LAYOUT_BNHD;
        OK(elsa_task_files_merge(&files, NULL));
        read_npy(out_path, read_out, COUNT);
        for (i = 0; i < ROWS; i++)
            CHECK(memcmp(read_out + ((i % N) * H + i / N) * D, out + i * D, D * sizeof *out) == 0);
        end(&c);
    }
}

/* Runs the tool with arguments whose files are in the folder. */
static void tool(const char *arguments) {
    char command[8 * PATH];
    sprintf(command, "cd '%s' && '%s' %s 2>tool.log", folder, getenv("ELSA_TOOL"), arguments);
    CHECK(system(command) == 0);
}

/* The tool merges the files of this program, and this program files of the tool, mixed with its own. */
static void both_ways(elsa_engine engine) {
    call c = make(engine);
    elsa_task_files files;
    int number;
    if (getenv("ELSA_TOOL") == NULL) {
        end(&c);
        return;
    }
    compute(engine, &c, "frame 7");
    tool("merge task0.npz task1.npz task2.npz task3.npz task4.npz task5.npz task6.npz --run-id 'frame 7' --out y.npy "
         "--lse-out l.npy");
    same(path_of("y.npy"), path_of("l.npy"));
    write_npy(path_of("q.npy"), q);
    write_npy(path_of("k.npy"), k);
    write_npy(path_of("v.npy"), v);
    for (number = 0; number < TASKS; number += 2) {
        char arguments[PATH];
        sprintf(arguments,
                "run --q q.npy --k k.npy --v v.npy --quorum 7 --task %d/7 --run-id 'frame 7' --state-out task%d.npz",
                number, number);
        tool(arguments);
    }
    files = files_of();
    OK(elsa_task_files_merge(&files, NULL));
    same(out_path, lse_path);
    end(&c);
}

#define REFUSED(call, words)                             \
    do {                                                 \
        CHECK((call) == ELSA_STATUS_ARGUMENT);           \
        CHECK(strstr(elsa_last_error(), words) != NULL); \
    } while (0)

static void damage(const char *path, long at) {
    FILE *file = fopen(path, "r+b");
    int byte;
    CHECK(file != NULL && fseek(file, at, SEEK_SET) == 0);
    byte = fgetc(file);
    CHECK(fseek(file, at, SEEK_SET) == 0 && fputc(byte ^ 64, file) != EOF && fclose(file) == 0);
}

static long length(const char *path) {
    FILE *file = fopen(path, "rb");
    long end_of_file;
    CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
    end_of_file = ftell(file);
    fclose(file);
    return end_of_file;
}

static void refused_merges(elsa_engine engine) {
    call c = make(engine);
    const elsa_states_in read = from(m, s, w);
    const elsa_task_options how = options_of(4);
    elsa_task_files files;
    elsa_task_file file;
    elsa_task task;
    compute(engine, &c, "frame 7");
    remove(out_path);
    remove(lse_path);
    files = files_of();
    files.count = TASKS - 1;
    REFUSED(elsa_task_files_merge(&files, NULL), "task 6 is missing; allowed: all tasks; run task number 6 of 7");
    files = files_of();
    paths[3] = names[2];
    REFUSED(elsa_task_files_merge(&files, NULL), "task 2 is there twice");
    files = files_of();
    paths[3] = path_of("absent.npz");
    REFUSED(elsa_task_files_merge(&files, NULL), "absent.npz: cannot be read");
    files = files_of();
    files.run = "frame 8";
    REFUSED(elsa_task_files_merge(&files, NULL), "run: \"frame 8\"; allowed: \"frame 7\"");
    files.run = "\n";
    REFUSED(elsa_task_files_merge(&files, NULL), "run: ");
    files = files_of();
    files.count = 0;
    REFUSED(elsa_task_files_merge(&files, NULL), "paths: no file");
    files = files_of();
    files.paths = NULL;
    REFUSED(elsa_task_files_merge(&files, NULL), "paths: null");
    files = files_of();
    paths[2] = NULL;
    REFUSED(elsa_task_files_merge(&files, NULL), "paths[2]: null");
    files = files_of();
    files.out = files.lse = NULL;
    REFUSED(elsa_task_files_merge(&files, NULL), "out, lse: both null");
    files = files_of();
    files.layout = ELSA_LAYOUT_QKV;
    REFUSED(elsa_task_files_merge(&files, NULL), "layout: 2");
    files = files_of();
    files.reserved = 1;
    REFUSED(elsa_task_files_merge(&files, NULL), "reserved: 1");
    files = files_of();
    files.out = path_of("y.txt");
    REFUSED(elsa_task_files_merge(&files, NULL), "y.txt; allowed: path.npy");
    files = files_of();
    files.lse = files.out;
    REFUSED(elsa_task_files_merge(&files, NULL), "lse: ");
    files = files_of();
    files.out = path_of("no-folder/y.npy");
    REFUSED(elsa_task_files_merge(&files, NULL), "out: ");
    REFUSED(elsa_task_files_merge(NULL, NULL), "files: null");

    /* A task of another run, then one of another problem. */
    OK(elsa_task_create(engine, &c.problem, NULL, &how, &task));
    file = file_of(names[4], "frame 8");
    {
        const elsa_states_out part = into(m, s, w);
        OK(elsa_task_run(task, &c.in, &part, NULL));
    }
    OK(elsa_task_file_write(task, &read, &file));
    files = files_of();
    REFUSED(elsa_task_files_merge(&files, NULL), "task4.npz: run_id \"frame 8\"; allowed: \"frame 7\"");
    OK(elsa_task_destroy(task));
    c.problem.has_scale = 1;
    c.problem.scale = 0.5f;
    OK(elsa_task_create(engine, &c.problem, NULL, &how, &task));
    file.run = "frame 7";
    OK(elsa_task_file_write(task, &read, &file));
    REFUSED(elsa_task_files_merge(&files, NULL), "task4.npz: factors");

    /* Damaged files: a flipped bit in the numbers, which the checksum of the archive finds, and in the directory. */
    c.problem.has_scale = 0;
    OK(elsa_task_destroy(task));
    OK(elsa_task_create(engine, &c.problem, NULL, &how, &task));
    OK(elsa_task_file_write(task, &read, &file));
    OK(elsa_task_files_merge(&files, NULL));
    remove(out_path);
    remove(lse_path);
    damage(names[4], length(names[4]) / 2);
    REFUSED(elsa_task_files_merge(&files, NULL), "task4.npz: ");
    OK(elsa_task_file_write(task, &read, &file));
    damage(names[4], length(names[4]) - 22);
    REFUSED(elsa_task_files_merge(&files, NULL), "task4.npz: ");
    CHECK(!exists(out_path) && !exists(lse_path));
    OK(elsa_task_destroy(task));
    end(&c);
}

static void refused_writes(elsa_engine engine) {
    call c = make(engine);
    const elsa_task_options how = options_of(0);
    const elsa_states_out part = into(m, s, w);
    const elsa_states_in read = from(m, s, w), few = from(m, NULL, w);
    const char *path = path_of("refused.npz");
    elsa_task_file file = file_of(path, "frame 7");
    int64_t lengths[2] = {N + 1, N};
    elsa_task task;
    char name[300];
    OK(elsa_task_create(engine, &c.problem, NULL, &how, &task));
    OK(elsa_task_run(task, &c.in, &part, NULL));
    REFUSED(elsa_task_file_write(task, NULL, &file), "states: null");
    REFUSED(elsa_task_file_write(task, &read, NULL), "file: null");
    REFUSED(elsa_task_file_write(task, &few, &file), "states.s: null");
    file.path = NULL;
    REFUSED(elsa_task_file_write(task, &read, &file), "path: null");
    file = file_of(path, NULL);
    REFUSED(elsa_task_file_write(task, &read, &file), "run: null");
    memset(name, 'x', sizeof name);
    name[257] = 0;
    file.run = name;
    REFUSED(elsa_task_file_write(task, &read, &file), "run: ");
    file.run = "";
    REFUSED(elsa_task_file_write(task, &read, &file), "allowed: 1 to 256 printable characters of ASCII");
    file = file_of(path_of("refused.npy"), "frame 7");
    REFUSED(elsa_task_file_write(task, &read, &file), "allowed: path.npz");
    file = file_of(path_of("no-folder/refused.npz"), "frame 7");
    REFUSED(elsa_task_file_write(task, &read, &file), "path: ");
    file = file_of(path, "frame 7");
    file.key_lengths.data = lengths;
    file.key_lengths.count = 1;
    REFUSED(elsa_task_file_write(task, &read, &file), "key_lengths");
    file.key_lengths.count = 0;
    file.key_lengths.data = NULL;
    s[1] = -1;
    REFUSED(elsa_task_file_write(task, &read, &file), "state_s: ");
    OK(elsa_task_destroy(task));
    CHECK(elsa_task_file_write(task, &read, &file) == ELSA_STATUS_HANDLE);
    c.problem.has_key_lengths = 1;
    OK(elsa_task_create(engine, &c.problem, NULL, &how, &task));
    c.in.key_lengths.data = lengths + 1;
    c.in.key_lengths.count = 1;
    OK(elsa_task_run(task, &c.in, &part, NULL));
    REFUSED(elsa_task_file_write(task, &read, &file), "key_lengths");
    file.key_lengths.data = lengths;
    file.key_lengths.count = 1;
    REFUSED(elsa_task_file_write(task, &read, &file), "key_lengths");
    CHECK(!exists(path));
    file.key_lengths = c.in.key_lengths;
    OK(elsa_task_file_write(task, &read, &file));
    CHECK(remove(path) == 0);
    OK(elsa_task_destroy(task));
    end(&c);
}

int main(void) {
    static const char *const rest[] = {"y.npy", "l.npy", "q.npy", "k.npy", "v.npy", "tool.log"};
    elsa_engine_options options;
    elsa_engine engine;
    size_t i;
    const char *home = getenv("TMPDIR");
    sprintf(folder, "%.400s/elsa-task-files-XXXXXX", home != NULL ? home : "/tmp");
    CHECK(mkdtemp(folder) != NULL);
    for (i = 0; i < TASKS; i++) sprintf(names[i], "%s/task%u.npz", folder, (unsigned)i);
    sprintf(out_path, "%s/out.npy", folder);
    sprintf(lse_path, "%s/lse.npy", folder);
    elsa_engine_options_init(&options);
    options.threads = 2;
    OK(elsa_engine_create(&options, &engine));
    fill_all();
    answers(engine);
    both_ways(engine);
    refused_writes(engine);
    refused_merges(engine);
    OK(elsa_engine_destroy(engine));
    for (i = 0; i < TASKS; i++) remove(names[i]);
    remove(out_path);
    remove(lse_path);
    for (i = 0; i < sizeof rest / sizeof *rest; i++) remove(path_of(rest[i]));
    CHECK(remove(folder) == 0);
    printf("%d checks\n", checks);
    return 0;
}
