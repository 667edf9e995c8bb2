// A plugin for QEMU's user-mode emulator of aarch64 that counts the instructions between two markers.
//
// The program under test executes `hint #0x7e` where counting starts and `hint #0x7f` where it stops; both do
// nothing on real hardware. Each marked stretch writes one line to the plugin log:
//
//     counted: <instructions> <vector FMAs> <loads and stores> <vector loads and stores through sp>
//              <vector operations> <loads> <stores> <lines from L2> <lines from memory>
//
// (on one line). Vector operations, loads and stores are counted as a Cortex-A57's pipes execute them: an operation
// on 16-byte vectors occupies both vector pipes for a cycle and counts two, a smaller one occupies one pipe and counts
// one; a load or store moves one register. Lines are the misses of data caches like that processor's: 32 KB in two
// ways, then 2 MB in sixteen, lines of 64 bytes, least recently used evicted, no prefetching, virtual addresses.
//
// QEMU translates blocks of instructions and reports when one starts, so whole blocks are added up, and the
// instructions of the markers' own blocks outside the stretch are subtracted: the count is exact, without the
// markers. One guest thread only.
//
// Debian does not package QEMU's header; the declarations below are the part of its plugin interface, in
// version 1, that this plugin uses.
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t plugin_id;
struct block;
struct instruction;
enum registers { NO_REGISTERS };
typedef void (*on_translation)(plugin_id, struct block *);
typedef void (*on_execution)(unsigned int cpu, void *data);
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, on_translation);
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct block *, on_execution, enum registers, void *);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct instruction *, on_execution, enum registers, void *);
typedef void (*on_access)(unsigned int cpu, uint32_t info, uint64_t address, void *data);
enum accesses { READS = 1, WRITES = 2 };
extern void qemu_plugin_register_vcpu_mem_cb(struct instruction *, on_access, enum registers, enum accesses, void *);
extern size_t qemu_plugin_tb_n_insns(const struct block *);
extern struct instruction *qemu_plugin_tb_get_insn(const struct block *, size_t);
extern const void *qemu_plugin_insn_data(const struct instruction *);
extern void qemu_plugin_outs(const char *);

#define PUBLIC __attribute__((visibility("default")))

PUBLIC int qemu_plugin_version = 1;

enum { ALL, FMA, MEMORY, STACK, VECTOR_HALVES, LOADS, STORES, LINES, FAR_LINES, KINDS };
typedef struct { int64_t of[KINDS]; } counts;

static const uint32_t START = 0xd5032fdf, STOP = 0xd5032fff;
// Counts of all blocks so far, and of all instructions before the open stretch.
static counts total, before;

static void add(counts *to, const counts *x, int64_t sign) {
    for (int kind = 0; kind < KINDS; kind++) to->of[kind] += sign * x->of[kind];
}

static void classify(counts *to, uint32_t word) {
    int vector_fma = (word & 0xbf20fc00) == 0x0e20cc00      // FMLA, FMLS (vector)
                     || (word & 0xbf80b400) == 0x0f801000;  // FMLA, FMLS (by element)
    int memory = (word & 0x0a000000) == 0x08000000;         // loads and stores
    int vector = word >> 26 & 1, base = word >> 5 & 31;     // register 31 is sp as a base
    to->of[ALL]++;
    to->of[FMA] += vector_fma;
    to->of[MEMORY] += memory;
    to->of[STACK] += memory && vector && base == 31;
    if (memory) {
        int pair = (word & 0x3a000000) == 0x28000000;
        // Bit 22 marks loads, also those of one vector register of 16 bytes or less.
        to->of[word >> 22 & 1 ? LOADS : STORES] += pair ? 2 : 1;
    } else if ((word & 0x0e000000) == 0x0e000000) {
        int wide = (word & 0x50000000) == 0x40000000;  // of vectors, all 16 bytes
        to->of[VECTOR_HALVES] += wide ? 2 : 1;
    }
}

// The ways of a set, most recently used first.
enum { LINE_BITS = 6, NEAR_SETS = 256, NEAR_WAYS = 2, FAR_SETS = 2048, FAR_WAYS = 16 };
static uint64_t near_lines[NEAR_SETS][NEAR_WAYS], far_lines[FAR_SETS][FAR_WAYS];

// Moves `line` to the front of the `n` ways; returns whether it was there.
static int touch(uint64_t *ways, int n, uint64_t line) {
    int at = 0;
    while (at < n - 1 && ways[at] != line) at++;
    int found = ways[at] == line;
    memmove(ways + 1, ways, (size_t)at * sizeof *ways);
    ways[0] = line;
    return found;
}

static void on_memory(unsigned int cpu, uint32_t info, uint64_t address, void *data) {
    (void)cpu, (void)info, (void)data;
    uint64_t line = (address >> LINE_BITS) + 1;
    if (touch(near_lines[line % NEAR_SETS], NEAR_WAYS, line)) return;
    total.of[LINES]++;
    if (!touch(far_lines[line % FAR_SETS], FAR_WAYS, line)) total.of[FAR_LINES]++;
}

static void on_block(unsigned int cpu, void *block) {
    (void)cpu;
    add(&total, block, 1);
}

// Starts a stretch; `rest` holds the instructions after the marker in its block.
static void on_start(unsigned int cpu, void *rest) {
    (void)cpu;
    before = total;
    add(&before, rest, -1);
}

// Ends a stretch; `rest` holds the marker and the instructions after it in its block.
static void on_stop(unsigned int cpu, void *rest) {
    (void)cpu;
    counts x = total;
    add(&x, rest, -1);
    add(&x, &before, -1);
    char line[320] = "counted:";
    size_t end = strlen(line);
    for (int kind = 0; kind < KINDS; kind++)
        end += (size_t)snprintf(line + end, sizeof line - end, " %" PRId64, x.of[kind]);
    qemu_plugin_outs(strcat(line, "\n"));
}

// Copies counts for the life of the process, like the translated blocks that use them.
static counts *keep(const counts *x) {
    counts *kept = malloc(sizeof *kept);
    if (kept == NULL) abort();
    *kept = *x;
    return kept;
}

static void on_translate(plugin_id id, struct block *block) {
    (void)id;
    counts rest = {{0}};
    for (size_t i = qemu_plugin_tb_n_insns(block); i-- > 0;) {
        struct instruction *instruction = qemu_plugin_tb_get_insn(block, i);
        uint32_t word;
        memcpy(&word, qemu_plugin_insn_data(instruction), sizeof word);
        if (word == START) qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_start, NO_REGISTERS, keep(&rest));
        classify(&rest, word);
        if ((word & 0x0a000000) == 0x08000000)
            qemu_plugin_register_vcpu_mem_cb(instruction, on_memory, NO_REGISTERS, READS | WRITES, NULL);
        if (word == STOP) qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_stop, NO_REGISTERS, keep(&rest));
    }
    qemu_plugin_register_vcpu_tb_exec_cb(block, on_block, NO_REGISTERS, keep(&rest));
}

PUBLIC int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
    (void)info, (void)argc, (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    return 0;
}
