// Blocks of threads on the host.
//
// A warp's barrier, vote and shuffle are one operation: every lane stores a value, waits until all 32 have stored
// theirs, and reads the others' values. A block's are the same without the shuffle. Values alternate between two slots,
// so one wait is enough: a lane that writes into the first slot again has passed the wait in between, and so have all
// readers. Lanes that meet at different places in the sources end the launch, even if their number is right.
//
// A lane is a stack. One thread of the operating system runs a block and switches between the stacks of its lanes: from
// a lane that waits to the next one of its warp, or to the scheduler if none can continue. Blocks run on all processors. Sanitizers are told of each switch. For ThreadSanitizer (STANDIN_THREAD) a lane is a
// fiber, and only the waits above order the accesses of two lanes: it finds a missing barrier in any order of the
// lanes. This file is compiled without that sanitizer, because the switches themselves are not under test.
#include "block.h"

#include <sys/mman.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/host.cuh"

#if defined(STANDIN_ADDRESS)
#include <sanitizer/common_interface_defs.h>
#elif defined(STANDIN_THREAD)
#include <sanitizer/tsan_interface.h>
#endif

Kernel* kernels = nullptr;

namespace {

constexpr int WARP = 32;

enum Kind { SYNC, VOTE, SHUFFLE };
const char* const KINDS[] = {"a barrier", "a vote", "a shuffle"};

// Lanes that wait for each other: a warp, or a block.
struct Group {
  int size = 0, arrived = 0;
  unsigned round = 0;  // number of finished waits
  Kind kind = SYNC;
  host::Site at = {"", 0, 0};  // of the first lane to arrive
  bool any[2] = {false, false};
  unsigned slot[2][WARP];
};

struct Block;

// The stack of a lane, or of the thread that runs a block.
struct Stack {
  const void* lowest = nullptr;
  size_t size = 0;
  void* pointer = nullptr;  // while it is not running
  void* fiber = nullptr;    // its fiber in ThreadSanitizer
};

struct Thread : host::Lane {
  Block* of = nullptr;
  Group* warp = nullptr;
  Stack stack;
  bool done = true;
  const Group* waits = nullptr;
  unsigned round = 0;
};

// Every barrier reads it, so its address is a constant distance from the thread's pointer.
__attribute__((tls_model("initial-exec"))) thread_local Thread* current = nullptr;

struct Block {
  const Kernel* kernel = nullptr;
  const void* parameter = nullptr;
  std::vector<Thread> threads;
  std::vector<std::unique_ptr<Group>> warps;
  Group all;
  std::map<const char*, std::unique_ptr<char, void (*)(void*)>> shared;
  Stack scheduler;

  explicit Block(int n) : threads(n) {
    all.size = n;
    for (int w = 0; w < n / WARP; w++) {
      warps.push_back(std::make_unique<Group>());
      warps.back()->size = WARP;
    }
    for (int t = 0; t < n; t++) {
      threads[t].thread = t;
      threads[t].of = this;
      threads[t].warp = warps[t / WARP].get();
    }
  }

  void begin(int index, int blocks) {
    shared.clear();
    for (Thread& t : threads) {
      t.block = index;
      t.blocks = blocks;
    }
  }
};

[[noreturn]] void stop(const std::string& what) {
  std::fprintf(stderr, "stand-in driver: %s\n", what.c_str());
  std::abort();
}

std::string text_of(Kind kind, host::Site at) {
  return std::string(KINDS[kind]) + " at " + at.file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column);
}

void check_place(Group& g, Kind kind, host::Site at) {
  if (g.arrived == 0) {
    g.kind = kind;
    g.at = at;
  }
  // Other objects name the same header by different texts.
  const bool same_file = g.at.file == at.file || std::strcmp(g.at.file, at.file) == 0;
  if (g.kind != kind || g.at.line != at.line || g.at.column != at.column || !same_file) {
    stop(std::string(current->of->kernel->name) + ": lanes that wait for each other are in " + text_of(g.kind, g.at) +
         " and in " + text_of(kind, at));
  }
}

[[noreturn]] void stop_waiting(const Kernel& kernel, const Group& g) {
  stop(std::string(kernel.name) + ": in " + text_of(g.kind, g.at) + " lanes wait for others that do not come");
}

// Releases the other lanes. The last lane to arrive clears the slots of the next round.
void release(Group& g) {
  g.arrived = 0;
  g.any[(g.round + 1) & 1] = false;
  g.round++;
}

#if defined(__x86_64__)
asm(R"(
.text
.local standin_switch
.type standin_switch, @function
standin_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size standin_switch, . - standin_switch
)");
constexpr int SAVED = 6;
#elif defined(__aarch64__)
asm(R"(
.text
.local standin_switch
.type standin_switch, @function
standin_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size standin_switch, . - standin_switch
)");
#else
#error "no switch of stacks for this processor"
#endif

constexpr size_t STACK = 256 * 1024;

// Saves the callee-saved registers, stores the stack pointer in `from`, and continues where `to` was saved.
extern "C" void standin_switch(void** from, void* to) __asm__("standin_switch");

// Continues on another stack. In ThreadSanitizer, what `from` did so far happens before what `to` does from now on only
// if the switch is `ordered`. The last frames of a lane do not return, so none of them may be guarded.
__attribute__((no_sanitize("address"))) void change(Stack& from, const Stack& to, [[maybe_unused]] bool ordered) {
#if defined(STANDIN_ADDRESS)
  void* frames = nullptr;
  __sanitizer_start_switch_fiber(&frames, to.lowest, to.size);
  standin_switch(&from.pointer, to.pointer);
  __sanitizer_finish_switch_fiber(frames, nullptr, nullptr);
#else
#if defined(STANDIN_THREAD)
  __tsan_switch_to_fiber(to.fiber, ordered ? 0 : __tsan_switch_to_fiber_no_sync);
#endif
  standin_switch(&from.pointer, to.pointer);
#endif
}

__attribute__((no_sanitize("address"))) void enter() {
  Thread* const self = current;
  Block* const b = self->of;
#if defined(STANDIN_ADDRESS)
  __sanitizer_finish_switch_fiber(nullptr, &b->scheduler.lowest, &b->scheduler.size);
#endif
  b->kernel->run(b->parameter);
  self->done = true;
  change(self->stack, b->scheduler, true);
  std::abort();
}

void start(Thread& t) {
  if (t.stack.lowest == nullptr) {
    void* p = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) stop("no memory for the stack of a lane");
    // The lowest page catches a stack that overflows.
    mprotect(p, 4096, PROT_NONE);
    t.stack.lowest = p;
    t.stack.size = STACK;
#if defined(STANDIN_THREAD)
    t.stack.fiber = __tsan_create_fiber(0);
#endif
  }
  void** top = reinterpret_cast<void**>(reinterpret_cast<size_t>(t.stack.lowest) + STACK);
#if defined(__x86_64__)
  // On entry the stack is eight bytes off a multiple of sixteen, as after a call.
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&enter);
  for (int i = 0; i < SAVED; i++) *--top = nullptr;
#else
  top -= 20;
  std::memset(top, 0, 160);
  top[11] = reinterpret_cast<void*>(&enter);
#endif
  t.stack.pointer = top;
  t.done = false;
  t.waits = nullptr;
}

// Returns whether a lane that waited can continue.
bool released(const Thread& t) { return t.waits != nullptr && t.waits->round != t.round; }

// Returns the stack that continues while `self` waits: the next lane of its warp that can, else the scheduler's. Lanes that
// have not begun are left to the scheduler, because its switch orders what came before them.
const Stack& next(const Thread& self) {
  std::vector<Thread>& threads = self.of->threads;
  const int first = self.thread / WARP * WARP;
  for (int i = 1; i < WARP; i++) {
    Thread& t = threads[first + (self.thread + i) % WARP];
    if (!t.done && released(t)) {
      t.waits = nullptr;
      current = &t;
      return t.stack;
    }
  }
  return self.of->scheduler;
}

// Waits for the whole group; returns the slots of this round.
int meet(Group& g, Kind kind, host::Site at, bool any) {
  check_place(g, kind, at);
  const unsigned round = g.round;
  if (any) g.any[round & 1] = true;
#if defined(STANDIN_THREAD)
  __tsan_release(&g.any[round & 1]);
#endif
  if (++g.arrived == g.size) {
    release(g);
  } else {
    Thread* const self = current;
    self->waits = &g;
    self->round = round;
    change(self->stack, next(*self), false);
  }
#if defined(STANDIN_THREAD)
  __tsan_acquire(&g.any[round & 1]);
#endif
  return round & 1;
}

int place(Group& g) { return g.round & 1; }

void run_block(Block& b) {
#if defined(STANDIN_THREAD)
  b.scheduler.fiber = __tsan_get_current_fiber();
#endif
  for (Thread& t : b.threads) start(t);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t first = 0; first < b.threads.size(); first += WARP) {
      // A warp continues while one of its lanes can run.
      for (bool alive = true; alive;) {
        alive = false;
        for (size_t i = first; i < first + WARP; i++) {
          Thread& t = b.threads[i];
          const bool begins = t.waits == nullptr;
          if (t.done || (!begins && !released(t))) continue;
          t.waits = nullptr;
          current = &t;
          change(b.scheduler, t.stack, begins);
          alive = moved = true;
        }
      }
    }
  }
  for (const Thread& t : b.threads) {
    if (!t.done) stop_waiting(*b.kernel, *t.waits);
  }
}

// Unused blocks, with their stacks.
std::mutex idle_mutex;
std::multimap<int, std::unique_ptr<Block>>& idle = *new std::multimap<int, std::unique_ptr<Block>>;

std::unique_ptr<Block> take(int threads) {
  std::lock_guard<std::mutex> hold(idle_mutex);
  const auto found = idle.find(threads);
  if (found == idle.end()) return std::make_unique<Block>(threads);
  std::unique_ptr<Block> block = std::move(found->second);
  idle.erase(found);
  return block;
}

void give(std::unique_ptr<Block> block) {
  std::lock_guard<std::mutex> hold(idle_mutex);
  const int threads = (int)block->threads.size();
  idle.emplace(threads, std::move(block));
}

}  // namespace

namespace host {

const Lane& lane() { return *current; }

char* shared(const char* tag, int bytes) {
  auto& p = current->of->shared.try_emplace(tag, nullptr, std::free).first->second;
  if (p == nullptr) {
    p.reset(static_cast<char*>(std::aligned_alloc(1024, (bytes + 1023) / 1024 * 1024)));
    if (p == nullptr) stop("no memory for a block");
    std::memset(p.get(), 0xff, bytes);
#if defined(STANDIN_THREAD)
    __tsan_release(p.get());
#endif
  }
#if defined(STANDIN_THREAD)
  __tsan_acquire(p.get());
#endif
  return p.get();
}

void sync_block(Site at) { meet(current->of->all, SYNC, at, false); }

bool any_of_block(bool x, Site at) {
  Group& g = current->of->all;
  const int round = meet(g, VOTE, at, x);
  return g.any[round];
}

void sync_warp(Site at) { meet(*current->warp, SYNC, at, false); }

bool any_of_warp(bool x, Site at) {
  Group& g = *current->warp;
  const int round = meet(g, VOTE, at, x);
  return g.any[round];
}

unsigned ballot(bool x, Site at) {
  Group& g = *current->warp;
  g.slot[place(g)][current->thread % WARP] = x;
  const int round = meet(g, VOTE, at, x);
  unsigned votes = 0;
  for (int lane = 0; lane < WARP; lane++) votes |= g.slot[round][lane] << lane;
  return votes;
}

unsigned shuffle_from(unsigned x, int lane, Site at) {
  Group& g = *current->warp;
  g.slot[place(g)][current->thread % WARP] = x;
  const int round = meet(g, SHUFFLE, at, false);
  return g.slot[round][lane % WARP];
}

float shuffle_xor(float x, int mask, Site at) {
  return float_of_bits(shuffle_from(bits_of(x), current->thread % WARP ^ mask, at));
}

void refuse(const char* what, Address a, int size) {
  char text[160];
  std::snprintf(text, sizeof text, "%s: access of %d bytes at %#llx: %s", current->of->kernel->name, size, a, what);
  stop(text);
}

}  // namespace host

void run_grid(const Kernel& kernel, const void* parameter, int threads, int blocks) {
  std::atomic<int> next{0};
  const auto work = [&] {
    std::unique_ptr<Block> block = take(threads);
    block->kernel = &kernel;
    block->parameter = parameter;
    for (int i = next++; i < blocks; i = next++) {
      block->begin(i, blocks);
      run_block(*block);
    }
    give(std::move(block));
  };
  const int processors = (int)std::thread::hardware_concurrency();
  std::vector<std::thread> others;
  for (int i = 1; i < processors && i < blocks; i++) others.emplace_back(work);
  work();
  for (std::thread& t : others) t.join();
}
