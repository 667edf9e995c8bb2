// A stand-in for the driver of CUDA 10.2 on a Jetson TX2: libcuda.so.1 for machines without a GPU.
//
// It exports only names of such a driver (symbols-10.2.txt), performs a driver's checks, and runs the project's own
// kernels, compiled for the host: loaded PTX is checked for its version, target and entry points, and the name of an
// entry selects the kernel (block.h).
//
// Work given to a stream is only queued. It runs when something waits for it: a synchronisation, a blocking copy, a
// wait for an event. A result read too early has its old value. As with the driver, a copy from ordinary host memory
// reads its source immediately, and a copy into ordinary host memory waits; copies of pinned memory do neither.
//
// Device memory is filled with NaN on allocation. Its addresses are host addresses plus DEVICE_OFFSET.
//
// Work given to a captured stream becomes a node of a graph, after the nodes that its stream has waited for. A graph
// runs its nodes as late as their order allows. As with the driver, these are refused while a stream is captured: waits
// for captured work, uncaptured work that a captured stream would wait for, work for the null stream, and, unless the
// thread's mode is relaxed, calls that might disturb captures. A refusal that invalidates the capture in the driver
// does so here.
//
// In a child of fork of the process that called it first, every call returns NOT_INITIALIZED.
//
// Variables, read when the library is first called:
//   ELSA_STANDIN_FAIL=NAME:N:CODE,...   the N-th call of NAME returns CODE (N+: and all later ones); the
//                                       context keeps codes after which it is lost
//   ELSA_STANDIN_DEVICE=none|old|nano|new|tensor|large|discrete    no device; one of compute capability 5.2; one of 5.3 with
//                                       one multiprocessor; one of 7.2; one of 8.7 with Tensor Cores and a driver of CUDA 11.4;
//                                       one of 48 multiprocessors instead of two; one that is not integrated
//   ELSA_STANDIN_DEVICES=N              number of devices [1]; all share one memory and one primary context
//   ELSA_STANDIN_PTX=refuse             PTX is refused
//   ELSA_STANDIN_MEMORY=BYTES           memory of the device
//   ELSA_STANDIN_LOG=FILE               a line for every call: its name and its result
#include <fcntl.h>
#include <unistd.h>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/host.cuh"
#include "block.h"

namespace {

enum Result {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  NO_BINARY_FOR_GPU = 209,
  INVALID_PTX = 218,
  INVALID_HANDLE = 400,
  ILLEGAL_STATE = 401,
  NOT_FOUND = 500,
  NOT_READY = 600,
  HOST_MEMORY_ALREADY_REGISTERED = 712,
  HOST_MEMORY_NOT_REGISTERED = 713,
  PRIMARY_CONTEXT_ACTIVE = 708,
  CONTEXT_IS_DESTROYED = 709,
  NOT_SUPPORTED = 801,
  STREAM_CAPTURE_UNSUPPORTED = 900,
  STREAM_CAPTURE_INVALIDATED = 901,
  STREAM_CAPTURE_MERGE = 902,
  STREAM_CAPTURE_UNMATCHED = 903,
  STREAM_CAPTURE_UNJOINED = 904,
  STREAM_CAPTURE_ISOLATION = 905,
  STREAM_CAPTURE_IMPLICIT = 906,
  CAPTURED_EVENT = 907,
  STREAM_CAPTURE_WRONG_THREAD = 908,
};

const std::map<int, const char*> NAMES = {
    {0, "SUCCESS"},
    {1, "ERROR_INVALID_VALUE"},
    {2, "ERROR_OUT_OF_MEMORY"},
    {3, "ERROR_NOT_INITIALIZED"},
    {4, "ERROR_DEINITIALIZED"},
    {100, "ERROR_NO_DEVICE"},
    {101, "ERROR_INVALID_DEVICE"},
    {200, "ERROR_INVALID_IMAGE"},
    {201, "ERROR_INVALID_CONTEXT"},
    {209, "ERROR_NO_BINARY_FOR_GPU"},
    {214, "ERROR_ECC_UNCORRECTABLE"},
    {218, "ERROR_INVALID_PTX"},
    {220, "ERROR_NVLINK_UNCORRECTABLE"},
    {226, "ERROR_CONTAINED"},
    {400, "ERROR_INVALID_HANDLE"},
    {401, "ERROR_ILLEGAL_STATE"},
    {500, "ERROR_NOT_FOUND"},
    {600, "ERROR_NOT_READY"},
    {700, "ERROR_ILLEGAL_ADDRESS"},
    {701, "ERROR_LAUNCH_OUT_OF_RESOURCES"},
    {702, "ERROR_LAUNCH_TIMEOUT"},
    {708, "ERROR_PRIMARY_CONTEXT_ACTIVE"},
    {709, "ERROR_CONTEXT_IS_DESTROYED"},
    {710, "ERROR_ASSERT"},
    {712, "ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
    {713, "ERROR_HOST_MEMORY_NOT_REGISTERED"},
    {714, "ERROR_HARDWARE_STACK_ERROR"},
    {715, "ERROR_ILLEGAL_INSTRUCTION"},
    {716, "ERROR_MISALIGNED_ADDRESS"},
    {717, "ERROR_INVALID_ADDRESS_SPACE"},
    {718, "ERROR_INVALID_PC"},
    {719, "ERROR_LAUNCH_FAILED"},
    {720, "ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"},
    {721, "ERROR_TENSOR_MEMORY_LEAK"},
    {801, "ERROR_NOT_SUPPORTED"},
    {810, "ERROR_MPS_CLIENT_TERMINATED"},
    {900, "ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {901, "ERROR_STREAM_CAPTURE_INVALIDATED"},
    {902, "ERROR_STREAM_CAPTURE_MERGE"},
    {903, "ERROR_STREAM_CAPTURE_UNMATCHED"},
    {904, "ERROR_STREAM_CAPTURE_UNJOINED"},
    {905, "ERROR_STREAM_CAPTURE_ISOLATION"},
    {906, "ERROR_STREAM_CAPTURE_IMPLICIT"},
    {907, "ERROR_CAPTURED_EVENT"},
    {908, "ERROR_STREAM_CAPTURE_WRONG_THREAD"},
    {911, "ERROR_EXTERNAL_DEVICE"},
    {999, "ERROR_UNKNOWN"},
};

// Returns whether a code leaves a context that can only be destroyed.
bool is_sticky(int code) {
  static const std::set<int> STICKY = {214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911};
  return STICKY.count(code) != 0;
}

constexpr size_t PAGE = 4096;
constexpr unsigned STREAM_NON_BLOCKING = 1, EVENT_BLOCKING_SYNC = 1, EVENT_DISABLE_TIMING = 2;
constexpr int GLOBAL = 0, RELAXED = 2;  // 1 is per thread
constexpr unsigned HOST_PORTABLE = 1, HOST_DEVICEMAP = 2, HOST_WRITE_COMBINED = 4;

struct Stream;

struct Context {
  bool live = true, primary = false;
  int lost = 0;           // the error after which every call fails
  unsigned flags = 0;
  Stream* null = nullptr;  // the stream whose handle is null
};

// Work of a stream.
struct Item {
  std::function<void()> work;
  Stream* after = nullptr;  // first run this stream up to ...
  uint64_t until = 0;       // ... that item
};

// Indices of a graph's nodes.
typedef std::set<size_t> Nodes;

// Types of nodes, with the numbers of cuda.h.
enum Kind { KERNEL_NODE = 0, COPY_NODE = 1, SET_NODE = 2, HOST_NODE = 3, GRAPH_NODE = 4, EVENT_NODE = 7 };

struct Node {
  Kind kind;
  std::function<void()> work;
  Nodes after;
};

struct Graph {
  std::vector<Node> nodes;
  Nodes last;  // nodes that nothing in the graph waits for
};

struct Capture {
  uint64_t id = 0;
  int mode = GLOBAL;
  pthread_t thread;
  Stream* origin = nullptr;
  bool live = true, invalid = false;
  Graph graph;
};

struct Stream {
  bool live = true;
  Context* context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  uint64_t given = 0, done = 0;
  std::list<Item> items;
  Capture* capture = nullptr;
  Nodes last;  // last nodes of the capture, which the next node follows
};

struct Event {
  bool live = true;
  Context* context = nullptr;
  unsigned flags = 0;
  Stream* stream = nullptr;  // the stream that recorded it last
  uint64_t item = 0;
  Capture* capture = nullptr;  // the capture that recorded it last
  Nodes nodes;                 // nodes before it
  std::shared_ptr<std::chrono::steady_clock::time_point> time;
};

struct Module;
struct Function {
  Module* module = nullptr;
  std::string name;
  int max_threads = 1024, shared = 0, ptx = 0, dynamic = 49152;  // `dynamic`: the most that a launch may add
};

struct Module {
  bool live = true;
  Context* context = nullptr;
  std::string text;  // PTX, or the names in a cubin
  bool cubin = false;
  std::vector<std::unique_ptr<Function>> functions;
};

enum Place { DEVICE, PINNED, MANAGED };

struct Block {
  size_t size;
  Place place;
  Context* context;
  unsigned flags;
  bool registered;  // the caller's memory
  uint64_t id;
};

struct Fault {
  std::string name;
  uint64_t call;
  bool later;
  int code;
};

struct Driver {
  std::recursive_mutex mutex;
  bool configured = false, initialized = false;
  pid_t process = 0;  // the first process to call: in its children the driver does not work
  std::vector<Fault> faults;
  std::map<std::string, uint64_t> calls;
  std::string device;
  int devices = 1;
  bool refuse_ptx = false;
  size_t memory = 8ull << 30, used = 0;
  int log = -1;
  uint64_t ids = 0;
  // Handles stay known after their objects are destroyed.
  std::set<Context*> contexts;
  std::set<Stream*> streams;
  std::set<Event*> events;
  std::set<Module*> modules;
  std::set<Function*> functions;
  std::set<Capture*> captures;  // active captures
  std::vector<std::unique_ptr<Capture>> every_capture;
  std::set<Graph*> graphs, executables;
  std::map<Address, Block> blocks;  // keyed by host address
  Context* primary = nullptr;
  int retained = 0;
  unsigned primary_flags = 0;
};

// Made when the library is loaded, before any thread can call: to a sanitizer that does not know the C++ library, a guard
// inside a function is a race.
Driver& the_driver = *new Driver;

Driver& driver() { return the_driver; }

std::vector<Context*>& stack() {
  thread_local std::vector<Context*> s;
  return s;
}

Context* current() { return stack().empty() ? nullptr : stack().back(); }

[[noreturn]] void stop(const std::string& what) {
  std::fprintf(stderr, "stand-in driver: %s\n", what.c_str());
  std::abort();
}

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

void configure(Driver& d) {
  d.configured = true;
  d.process = getpid();
  d.device = variable("ELSA_STANDIN_DEVICE");
  static const std::set<std::string> DEVICES = {"", "none", "old", "nano", "new", "tensor", "large", "discrete"};
  if (DEVICES.count(d.device) == 0) {
    stop("ELSA_STANDIN_DEVICE: " + d.device + "; allowed: none, old, nano, new, tensor, large, discrete");
  }
  const std::string devices = variable("ELSA_STANDIN_DEVICES");
  if (!devices.empty()) d.devices = std::atoi(devices.c_str());
  if (d.devices < 1) stop("ELSA_STANDIN_DEVICES: " + devices + "; allowed: a number from 1");
  const std::string ptx = variable("ELSA_STANDIN_PTX");
  if (!ptx.empty() && ptx != "refuse") stop("ELSA_STANDIN_PTX: " + ptx + "; allowed: refuse");
  d.refuse_ptx = !ptx.empty();
  const std::string memory = variable("ELSA_STANDIN_MEMORY");
  if (!memory.empty()) d.memory = std::strtoull(memory.c_str(), nullptr, 10);
  const std::string log = variable("ELSA_STANDIN_LOG");
  if (!log.empty()) {
    d.log = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (d.log < 0) stop("ELSA_STANDIN_LOG: " + log + ": cannot be opened");
  }
  const std::string faults = variable("ELSA_STANDIN_FAIL");
  for (size_t from = 0; from < faults.size();) {
    const size_t to = std::min(faults.find(',', from), faults.size());
    const std::string one = faults.substr(from, to - from);
    const size_t first = one.find(':'), second = one.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      stop("ELSA_STANDIN_FAIL: " + one + "; allowed: NAME:N:CODE or NAME:N+:CODE");
    }
    Fault f;
    f.name = one.substr(0, first);
    const std::string number = one.substr(first + 1, second - first - 1);
    f.later = !number.empty() && number.back() == '+';
    f.call = std::strtoull(number.c_str(), nullptr, 10);
    f.code = std::atoi(one.c_str() + second + 1);
    if (f.call == 0 || f.code == 0) stop("ELSA_STANDIN_FAIL: " + one + ": N and CODE begin at 1");
    d.faults.push_back(f);
    from = to + 1;
  }
}

void log_call(Driver& d, const char* name, int result) {
  if (d.log < 0) return;
  char line[96];
  const int n = std::snprintf(line, sizeof line, "%s %d\n", name, result);
  if (write(d.log, line, n) != n) stop("ELSA_STANDIN_LOG: cannot be written");
}

enum Needs { NOTHING, INIT, CONTEXT };

int& mode() {
  thread_local int m = GLOBAL;
  return m;
}

// Returns whether this thread must not make calls that might disturb captures. They are then invalid.
bool disturbs(Driver& d) {
  bool found = false;
  for (Capture* c : d.captures) {
    const bool own = pthread_equal(c->thread, pthread_self());
    if (mode() == RELAXED || c->mode == RELAXED) continue;
    if (own || (mode() == GLOBAL && c->mode == GLOBAL)) {
      c->invalid = true;
      found = true;
    }
  }
  return found;
}

// Wraps every call of the interface.
template <class Body> int api(const char* name, Needs needs, const Body& body) {
  Driver& d = driver();
  std::lock_guard<std::recursive_mutex> hold(d.mutex);
  if (!d.configured) configure(d);
  const uint64_t number = ++d.calls[name];
  const auto result = [&]() -> int {
    if (d.process != getpid() || (needs >= INIT && !d.initialized)) return NOT_INITIALIZED;
    if (needs == CONTEXT) {
      if (current() == nullptr) return INVALID_CONTEXT;
      if (!current()->live) return CONTEXT_IS_DESTROYED;
      if (current()->lost != 0) return current()->lost;
    }
    for (const Fault& f : d.faults) {
      if (f.name == name && (number == f.call || (f.later && number > f.call))) {
        if (is_sticky(f.code) && current() != nullptr) current()->lost = f.code;
        return f.code;
      }
    }
    return body(d);
  }();
  log_call(d, name, result);
  return result;
}

#define EXPORT(name, ...) extern "C" __attribute__((visibility("default"))) int name(__VA_ARGS__)

// ---- Streams

void run_until(Stream& s, uint64_t item) {
  while (s.done < item) {
    Item next = std::move(s.items.front());
    s.items.pop_front();
    if (next.after != nullptr) run_until(*next.after, next.until);
    if (next.work) next.work();
    s.done++;
  }
}

void run_all(Stream& s) { run_until(s, s.given); }

void run_context(Context& c) {
  for (Stream* s : driver().streams) {
    if (s->context == &c) run_all(*s);
  }
}

void give(Stream& s, Item item) {
  s.items.push_back(std::move(item));
  s.given++;
}

// Orders the null stream and the other streams of its context, which wait for each other, except non-blocking ones.
void order(Stream& s) {
  if (&s == s.context->null) {
    for (Stream* other : driver().streams) {
      if (other->context == s.context && other != &s && (other->flags & STREAM_NON_BLOCKING) == 0 &&
          other->given > other->done) {
        give(s, Item{nullptr, other, other->given});
      }
    }
  } else if ((s.flags & STREAM_NON_BLOCKING) == 0) {
    Stream& null = *s.context->null;
    if (null.given > null.done) give(s, Item{nullptr, &null, null.given});
  }
}

// Invalidates the captures of a context; returns whether there were any.
bool breaks(Driver& d, const Context& context) {
  bool found = false;
  for (Capture* c : d.captures) {
    if (c->origin->context == &context && (c->origin->flags & STREAM_NON_BLOCKING) == 0) found = c->invalid = true;
  }
  return found;
}

// Returns the stream of a handle in the current context.
int stream_of(Driver& d, Stream* handle, Stream** stream) {
  // Null, the legacy stream and the per-thread one.
  if (handle == nullptr || handle == (Stream*)1 || handle == (Stream*)2) {
    *stream = current()->null;
    return SUCCESS;
  }
  if (d.streams.count(handle) == 0 || !handle->live) return INVALID_HANDLE;
  if (!handle->context->live) return CONTEXT_IS_DESTROYED;
  if (handle->context->lost != 0) return handle->context->lost;
  *stream = handle;
  return SUCCESS;
}

int enqueue(Driver& d, Stream* handle, Kind kind, std::function<void()> work) {
  Stream* s;
  if (const int e = stream_of(d, handle, &s)) return e;
  if (s->context != current()) return INVALID_HANDLE;
  if (Capture* c = s->capture) {
    if (c->invalid) return STREAM_CAPTURE_INVALIDATED;
    c->graph.nodes.push_back(Node{kind, std::move(work), s->last});
    s->last = {c->graph.nodes.size() - 1};
    return SUCCESS;
  }
  if (s == s->context->null && breaks(d, *s->context)) return STREAM_CAPTURE_IMPLICIT;
  order(*s);
  give(*s, Item{std::move(work), nullptr, 0});
  return SUCCESS;
}

// Returns whether a waiting call meets captured work, which then is invalid.
bool waits_for_captured(Stream& s) {
  if (s.capture == nullptr) return false;
  s.capture->invalid = true;
  return true;
}

int waits_for(const Event& event) {
  if (event.capture == nullptr) return SUCCESS;
  event.capture->invalid = true;
  return CAPTURED_EVENT;
}

void end_capture(Driver& d, Capture& c) {
  c.live = false;
  d.captures.erase(&c);
  for (Stream* s : d.streams) {
    if (s->capture == &c) {
      s->capture = nullptr;
      s->last.clear();
    }
  }
}

// Runs a node after the nodes that it depends on.
void run_node(Graph& graph, size_t node, std::vector<bool>& done) {
  if (done[node]) return;
  done[node] = true;
  for (const size_t before : graph.nodes[node].after) run_node(graph, before, done);
  graph.nodes[node].work();
}

// ---- Contexts

Context* new_context(Driver& d, unsigned flags, bool primary) {
  Context* c = new Context;
  c->flags = flags;
  c->primary = primary;
  c->null = new Stream;
  c->null->context = c;
  d.contexts.insert(c);
  d.streams.insert(c->null);
  return c;
}

void release_block(Driver& d, std::map<Address, Block>::iterator at) {
  if (!at->second.registered) {
    if (at->second.place != PINNED) d.used -= at->second.size;
    std::free(reinterpret_cast<void*>(at->first));
  }
  d.blocks.erase(at);
}

void destroy(Driver& d, Context& c) {
  if (c.lost == 0) run_context(c);
  c.live = false;
  for (Stream* s : d.streams) {
    if (s->context == &c) s->items.clear();
  }
  for (auto at = d.blocks.begin(); at != d.blocks.end();) {
    const auto next = std::next(at);
    if (at->second.context == &c) release_block(d, at);
    at = next;
  }
}

// ---- Memory

std::map<Address, Block>::iterator find_host(Driver& d, Address a, size_t bytes) {
  auto at = d.blocks.upper_bound(a);
  if (at == d.blocks.begin()) return d.blocks.end();
  --at;
  const bool inside = a - at->first <= at->second.size && bytes <= at->second.size - (a - at->first);
  return inside && (a < at->first + at->second.size) ? at : d.blocks.end();
}

std::map<Address, Block>::iterator find_device(Driver& d, Address a, size_t bytes) {
  if (a < host::DEVICE_OFFSET) return d.blocks.end();
  const auto at = find_host(d, a - host::DEVICE_OFFSET, bytes);
  return at;
}

int allocate(Driver& d, size_t bytes, Place place, unsigned flags, Address* address) {
  if (bytes == 0) return INVALID_VALUE;
  if (place != PINNED && bytes > d.memory - d.used) return OUT_OF_MEMORY;
  const size_t unit = place == PINNED ? PAGE : 256;
#ifdef STANDIN_ADDRESS
  // Exactly the requested bytes, for the sanitizer.
  void* p = nullptr;
  if (posix_memalign(&p, unit, bytes) != 0) return OUT_OF_MEMORY;
#else
  void* p = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
  if (p == nullptr) return OUT_OF_MEMORY;
#endif
  std::memset(p, 0xff, bytes);
  *address = reinterpret_cast<Address>(p);
  d.blocks[*address] = Block{bytes, place, current(), flags, false, ++d.ids};
  if (place != PINNED) d.used += bytes;
  return SUCCESS;
}

void* host_of(Address a) { return reinterpret_cast<void*>(a - host::DEVICE_OFFSET); }

int copy_in(Driver& d, Stream* stream, Address to, const void* from, size_t bytes, bool wait) {
  if (bytes == 0) return SUCCESS;
  if (from == nullptr || find_device(d, to, bytes) == d.blocks.end()) return INVALID_VALUE;
  if (wait && disturbs(d)) return STREAM_CAPTURE_UNSUPPORTED;
  Stream* s;
  if (const int e = stream_of(d, stream, &s)) return e;
  const bool pinned = find_host(d, reinterpret_cast<Address>(from), bytes) != d.blocks.end();
  if ((pinned || s->capture != nullptr) && !wait) {
    return enqueue(d, stream, COPY_NODE, [=] { std::memcpy(host_of(to), from, bytes); });
  }
  auto taken = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + bytes);
  const auto work = [=] { std::memcpy(host_of(to), taken->data(), bytes); };
  if (const int e = enqueue(d, stream, COPY_NODE, work)) return e;
  if (wait) run_all(*current()->null);
  return SUCCESS;
}

int copy_out(Driver& d, Stream* stream, void* to, Address from, size_t bytes, bool wait) {
  if (bytes == 0) return SUCCESS;
  if (to == nullptr || find_device(d, from, bytes) == d.blocks.end()) return INVALID_VALUE;
  if (wait && disturbs(d)) return STREAM_CAPTURE_UNSUPPORTED;
  if (const int e = enqueue(d, stream, COPY_NODE, [=] { std::memcpy(to, host_of(from), bytes); })) return e;
  Stream* s;
  if (const int e = stream_of(d, stream, &s)) return e;
  if (s->capture != nullptr) return SUCCESS;
  if (wait || find_host(d, reinterpret_cast<Address>(to), bytes) == d.blocks.end()) run_all(*s);
  return SUCCESS;
}

int copy_within(Driver& d, Stream* stream, Address to, Address from, size_t bytes) {
  if (bytes == 0) return SUCCESS;
  if (find_device(d, to, bytes) == d.blocks.end() || find_device(d, from, bytes) == d.blocks.end()) {
    return INVALID_VALUE;
  }
  return enqueue(d, stream, COPY_NODE, [=] { std::memmove(host_of(to), host_of(from), bytes); });
}

template <class T> int set(Driver& d, Stream* stream, Address to, T value, size_t n) {
  if (n == 0) return SUCCESS;
  if (to % sizeof(T) != 0 || find_device(d, to, n * sizeof(T)) == d.blocks.end()) return INVALID_VALUE;
  return enqueue(d, stream, SET_NODE, [=] { std::fill_n(static_cast<T*>(host_of(to)), n, value); });
}

// ---- Modules

// Returns the number after `word` in a text, in tenths if it has a point; -1 if absent.
int number_after(const std::string& text, const char* word) {
  const size_t at = text.find(word);
  if (at == std::string::npos) return -1;
  const char* p = text.c_str() + at + std::strlen(word);
  char* end;
  const long whole = std::strtol(p, &end, 10);
  if (end == p) return -1;
  return *end == '.' ? (int)(whole * 10 + std::strtol(end + 1, nullptr, 10)) : (int)whole;
}

int capability(const Driver& d) {
  return d.device == "old" ? 52 : d.device == "nano" ? 53 : d.device == "new" ? 72 : d.device == "tensor" ? 87 : 62;
}
int driver_version(const Driver& d) { return capability(d) >= 80 ? 11040 : 10020; }
int ptx_version(const Driver& d) { return capability(d) >= 80 ? 74 : 65; }
// Shared memory that a block may have, and that a multiprocessor has.
int most_shared(const Driver& d) { return capability(d) >= 80 ? 166912 : 49152; }
int all_shared(const Driver& d) { return capability(d) >= 80 ? 167936 : 65536; }

struct Log {
  char* text = nullptr;
  size_t size = 0;
  void write(const std::string& line) {
    if (text == nullptr || size == 0) return;
    const size_t n = std::min(size - 1, line.size());
    std::memcpy(text, line.data(), n);
    text[n] = 0;
  }
};

int load(Driver& d, const void* image, Log log, Module** module) {
  if (image == nullptr || module == nullptr) return INVALID_VALUE;
  auto made = std::make_unique<Module>();
  made->context = current();
  const char* bytes = static_cast<const char*>(image);
  if (std::memcmp(bytes, "\x7f" "ELF", 4) == 0) {
    uint16_t machine, sections, section_size;
    uint32_t flags;
    uint64_t table;
    std::memcpy(&machine, bytes + 18, 2);
    std::memcpy(&flags, bytes + 48, 4);
    std::memcpy(&table, bytes + 40, 8);
    std::memcpy(&section_size, bytes + 58, 2);
    std::memcpy(&sections, bytes + 60, 2);
    if (machine != 190) return INVALID_IMAGE;
    if ((int)(flags & 0xff) != capability(d)) return NO_BINARY_FOR_GPU;
    made->cubin = true;
    made->text.assign(bytes, table + (uint64_t)section_size * sections);
  } else {
    made->text = bytes;
    const int version = number_after(made->text, ".version "), target = number_after(made->text, ".target sm_");
    if (version < 0 || target < 0) return INVALID_IMAGE;
    if (d.refuse_ptx) {
      log.write("ptxas fatal   : PTX is refused");
      return INVALID_PTX;
    }
    char text[160];
    const int newest = ptx_version(d);
    if (version > newest) {
      std::snprintf(text, sizeof text, "ptxas fatal   : Unsupported .version %d.%d; current version is '%d.%d'",
                    version / 10, version % 10, newest / 10, newest % 10);
      log.write(text);
      return INVALID_PTX;
    }
    if (target > capability(d)) {
      std::snprintf(text, sizeof text, "ptxas fatal   : SM version sm_%d is higher than that of the device, sm_%d",
                    target, capability(d));
      log.write(text);
      return INVALID_PTX;
    }
    log.write("");
  }
  *module = made.release();
  d.modules.insert(*module);
  return SUCCESS;
}

int find_function(Driver& d, Module& m, const char* name, Function** function) {
  const std::string entry = m.cubin ? std::string(".text.") + name + '\0' : std::string(".entry ") + name + "(";
  const size_t at = m.text.find(entry);
  if (at == std::string::npos) return NOT_FOUND;
  auto f = std::make_unique<Function>();
  f->module = &m;
  f->name = name;
  if (!m.cubin) {
    const std::string body = m.text.substr(at);
    const int threads = number_after(body, ".maxntid ");
    if (threads > 0) f->max_threads = threads;
    for (size_t from = m.text.find(".shared"); from != std::string::npos; from = m.text.find(".shared", from + 1)) {
      const std::string line = m.text.substr(from, m.text.find(';', from) - from);
      const int bytes = line.find(".b8") == std::string::npos ? -1 : number_after(line, "[");
      if (bytes > 0) f->shared += bytes;
    }
    f->ptx = number_after(m.text, ".version ");
  }
  *function = f.get();
  d.functions.insert(f.get());
  m.functions.push_back(std::move(f));
  return SUCCESS;
}

const Kernel* kernel_of(const std::string& name) {
  for (const Kernel* k = kernels; k != nullptr; k = k->next) {
    if (name == k->name) return k;
  }
  return nullptr;
}

}  // namespace

// ---- The interface: the driver, its device

EXPORT(cuInit, unsigned flags) {
  return api("cuInit", NOTHING, [&](Driver& d) -> int {
    if (flags != 0) return INVALID_VALUE;
    if (d.device == "none") return NO_DEVICE;
    d.initialized = true;
    return SUCCESS;
  });
}

EXPORT(cuDriverGetVersion, int* version) {
  return api("cuDriverGetVersion", NOTHING, [&](Driver& d) -> int {
    if (version == nullptr) return INVALID_VALUE;
    *version = driver_version(d);
    return SUCCESS;
  });
}

EXPORT(cuGetErrorName, int code, const char** text) {
  static std::map<int, std::string>& names = *new std::map<int, std::string>;
  return api("cuGetErrorName", NOTHING, [&](Driver&) -> int {
    const auto found = NAMES.find(code);
    *text = nullptr;
    if (found == NAMES.end()) return INVALID_VALUE;
    // Returned values never change: callers treat them as constants.
    const std::string& name = names.emplace(code, std::string("CUDA_") + found->second).first->second;
    *text = name.c_str();
    return SUCCESS;
  });
}

EXPORT(cuGetErrorString, int code, const char** text) {
  return api("cuGetErrorString", NOTHING, [&](Driver&) -> int {
    const auto found = NAMES.find(code);
    *text = found == NAMES.end() ? nullptr : found->second;
    return found == NAMES.end() ? INVALID_VALUE : SUCCESS;
  });
}

EXPORT(cuDeviceGetCount, int* count) {
  return api("cuDeviceGetCount", INIT, [&](Driver& d) -> int {
    *count = d.devices;
    return SUCCESS;
  });
}

EXPORT(cuDeviceGet, int* device, int ordinal) {
  return api("cuDeviceGet", INIT, [&](Driver& d) -> int {
    if (ordinal < 0 || ordinal >= d.devices) return INVALID_DEVICE;
    *device = 0;
    return SUCCESS;
  });
}

EXPORT(cuDeviceGetName, char* name, int size, int device) {
  return api("cuDeviceGetName", INIT, [&](Driver&) -> int {
    if (device != 0) return INVALID_DEVICE;
    if (name == nullptr || size <= 0) return INVALID_VALUE;
    std::snprintf(name, size, "NVIDIA Tegra X2 (stand-in)");
    return SUCCESS;
  });
}

EXPORT(cuDeviceGetUuid, char* uuid, int device) {
  return api("cuDeviceGetUuid", INIT, [&](Driver&) -> int {
    if (device != 0) return INVALID_DEVICE;
    std::memset(uuid, 0x62, 16);
    return SUCCESS;
  });
}

EXPORT(cuDeviceTotalMem_v2, size_t* bytes, int device) {
  return api("cuDeviceTotalMem_v2", INIT, [&](Driver& d) -> int {
    if (device != 0) return INVALID_DEVICE;
    *bytes = d.memory;
    return SUCCESS;
  });
}

EXPORT(cuDeviceComputeCapability, int* major, int* minor, int device) {
  return api("cuDeviceComputeCapability", INIT, [&](Driver& d) -> int {
    if (device != 0) return INVALID_DEVICE;
    *major = capability(d) / 10;
    *minor = capability(d) % 10;
    return SUCCESS;
  });
}

EXPORT(cuDeviceGetAttribute, int* value, int attribute, int device) {
  return api("cuDeviceGetAttribute", INIT, [&](Driver& d) -> int {
    // Numbers of cuda.h. The last one of 10.2 is 105; attributes not named here are zero.
    static const std::map<int, int> VALUES = {
        {1, 1024},  {2, 1024},  {3, 1024},       {4, 64},      {5, 2147483647}, {6, 65535},  {7, 65535},
        {8, 49152}, {9, 65536}, {10, 32},        {12, 32768},  {13, 1300500},   {16, 2},     {18, 1},
        {19, 1},    {31, 1},    {36, 1300000},   {37, 128},    {38, 524288},    {39, 2048},  {40, 1},
        {41, 1},    {75, 6},    {76, 2},         {81, 65536},  {82, 65536},     {83, 1},     {97, 49152},
    };
    if (device != 0) return INVALID_DEVICE;
    if (value == nullptr || attribute < 1 || attribute > 105) return INVALID_VALUE;
    const auto found = VALUES.find(attribute);
    *value = attribute == 75   ? capability(d) / 10
             : attribute == 76 ? capability(d) % 10
             : attribute == 16 && d.device == "large" ? 48
             : attribute == 16 && d.device == "nano" ? 1
             : attribute == 18 && d.device == "discrete" ? 0
             : attribute == 81 || attribute == 82 ? all_shared(d)
             : attribute == 97 ? most_shared(d)
             : found == VALUES.end() ? 0
                                     : found->second;
    return SUCCESS;
  });
}

// ---- Contexts

EXPORT(cuDevicePrimaryCtxRetain, Context** context, int device) {
  return api("cuDevicePrimaryCtxRetain", INIT, [&](Driver& d) -> int {
    if (device != 0) return INVALID_DEVICE;
    if (d.primary == nullptr) d.primary = new_context(d, d.primary_flags, true);
    if (d.primary->lost != 0) return d.primary->lost;
    d.retained++;
    *context = d.primary;
    return SUCCESS;
  });
}

EXPORT(cuDevicePrimaryCtxRelease, int device) {
  return api("cuDevicePrimaryCtxRelease", INIT, [&](Driver& d) -> int {
    if (device != 0) return INVALID_DEVICE;
    if (d.retained == 0) return INVALID_CONTEXT;
    if (--d.retained == 0) {
      destroy(d, *d.primary);
      d.primary = nullptr;
    }
    return SUCCESS;
  });
}

EXPORT(cuDevicePrimaryCtxReset, int device) {
  return api("cuDevicePrimaryCtxReset", INIT, [&](Driver& d) -> int {
    if (device != 0) return INVALID_DEVICE;
    if (d.primary != nullptr) destroy(d, *d.primary);
    d.primary = nullptr;
    d.retained = 0;
    return SUCCESS;
  });
}

EXPORT(cuDevicePrimaryCtxSetFlags, int device, unsigned flags) {
  return api("cuDevicePrimaryCtxSetFlags", INIT, [&](Driver& d) -> int {
    if (device != 0) return INVALID_DEVICE;
    if (d.primary != nullptr) return PRIMARY_CONTEXT_ACTIVE;
    d.primary_flags = flags;
    return SUCCESS;
  });
}

EXPORT(cuDevicePrimaryCtxGetState, int device, unsigned* flags, int* active) {
  return api("cuDevicePrimaryCtxGetState", INIT, [&](Driver& d) -> int {
    if (device != 0) return INVALID_DEVICE;
    *flags = d.primary != nullptr ? d.primary->flags : d.primary_flags;
    *active = d.primary != nullptr;
    return SUCCESS;
  });
}

EXPORT(cuCtxCreate_v2, Context** context, unsigned flags, int device) {
  return api("cuCtxCreate_v2", INIT, [&](Driver& d) -> int {
    if (device != 0) return INVALID_DEVICE;
    if (context == nullptr) return INVALID_VALUE;
    *context = new_context(d, flags, false);
    stack().push_back(*context);
    return SUCCESS;
  });
}

EXPORT(cuCtxDestroy_v2, Context* context) {
  return api("cuCtxDestroy_v2", INIT, [&](Driver& d) -> int {
    if (context == nullptr) return INVALID_VALUE;
    if (d.contexts.count(context) == 0 || context->primary) return INVALID_CONTEXT;
    if (!context->live) return CONTEXT_IS_DESTROYED;
    destroy(d, *context);
    if (current() == context) stack().pop_back();
    return SUCCESS;
  });
}

EXPORT(cuCtxGetCurrent, Context** context) {
  return api("cuCtxGetCurrent", INIT, [&](Driver&) -> int {
    if (context == nullptr) return INVALID_VALUE;
    *context = current();
    return SUCCESS;
  });
}

EXPORT(cuCtxSetCurrent, Context* context) {
  return api("cuCtxSetCurrent", INIT, [&](Driver& d) -> int {
    if (context != nullptr && d.contexts.count(context) == 0) return INVALID_CONTEXT;
    if (context != nullptr && !context->live) return CONTEXT_IS_DESTROYED;
    if (!stack().empty()) stack().pop_back();
    if (context != nullptr) stack().push_back(context);
    return SUCCESS;
  });
}

EXPORT(cuCtxPushCurrent_v2, Context* context) {
  return api("cuCtxPushCurrent_v2", INIT, [&](Driver& d) -> int {
    if (d.contexts.count(context) == 0) return INVALID_CONTEXT;
    if (!context->live) return CONTEXT_IS_DESTROYED;
    stack().push_back(context);
    return SUCCESS;
  });
}

EXPORT(cuCtxPopCurrent_v2, Context** context) {
  return api("cuCtxPopCurrent_v2", INIT, [&](Driver&) -> int {
    if (current() == nullptr) return INVALID_CONTEXT;
    if (context != nullptr) *context = current();
    stack().pop_back();
    return SUCCESS;
  });
}

EXPORT(cuCtxGetDevice, int* device) {
  return api("cuCtxGetDevice", CONTEXT, [&](Driver&) -> int {
    *device = 0;
    return SUCCESS;
  });
}

EXPORT(cuCtxGetFlags, unsigned* flags) {
  return api("cuCtxGetFlags", CONTEXT, [&](Driver&) -> int {
    *flags = current()->flags;
    return SUCCESS;
  });
}

EXPORT(cuCtxGetApiVersion, Context* context, unsigned* version) {
  return api("cuCtxGetApiVersion", INIT, [&](Driver& d) -> int {
    if (context == nullptr) context = current();
    if (d.contexts.count(context) == 0) return INVALID_CONTEXT;
    if (!context->live) return CONTEXT_IS_DESTROYED;
    *version = 3020;
    return SUCCESS;
  });
}

EXPORT(cuCtxSynchronize) {
  return api("cuCtxSynchronize", CONTEXT, [&](Driver& d) -> int {
    for (Stream* s : d.streams) {
      if (s->context == current() && waits_for_captured(*s)) return STREAM_CAPTURE_UNSUPPORTED;
    }
    run_context(*current());
    return SUCCESS;
  });
}

EXPORT(cuCtxGetStreamPriorityRange, int* least, int* greatest) {
  return api("cuCtxGetStreamPriorityRange", CONTEXT, [&](Driver&) -> int {
    *least = 0;
    *greatest = -1;
    return SUCCESS;
  });
}

// ---- Memory

EXPORT(cuMemGetInfo_v2, size_t* available, size_t* total) {
  return api("cuMemGetInfo_v2", CONTEXT, [&](Driver& d) -> int {
    *available = d.memory - d.used;
    *total = d.memory;
    return SUCCESS;
  });
}

EXPORT(cuMemAlloc_v2, Address* address, size_t bytes) {
  return api("cuMemAlloc_v2", CONTEXT, [&](Driver& d) -> int {
    if (disturbs(d)) return STREAM_CAPTURE_UNSUPPORTED;
    if (address == nullptr) return INVALID_VALUE;
    Address a;
    if (const int e = allocate(d, bytes, DEVICE, 0, &a)) return e;
    *address = a + host::DEVICE_OFFSET;
    return SUCCESS;
  });
}

EXPORT(cuMemAllocManaged, Address* address, size_t bytes, unsigned flags) {
  return api("cuMemAllocManaged", CONTEXT, [&](Driver&) -> int {
    // Its address would be the same on both sides, which this driver keeps apart.
    (void)address, (void)bytes, (void)flags;
    return NOT_SUPPORTED;
  });
}

EXPORT(cuMemFree_v2, Address address) {
  return api("cuMemFree_v2", CONTEXT, [&](Driver& d) -> int {
    if (disturbs(d)) return STREAM_CAPTURE_UNSUPPORTED;
    if (address == 0) return SUCCESS;
    const auto at = d.blocks.find(address - host::DEVICE_OFFSET);
    if (at == d.blocks.end() || at->second.place == PINNED) return INVALID_VALUE;
    if (at->second.context != current()) return INVALID_VALUE;
    run_context(*at->second.context);
    release_block(d, at);
    return SUCCESS;
  });
}

EXPORT(cuMemHostAlloc, void** pointer, size_t bytes, unsigned flags) {
  return api("cuMemHostAlloc", CONTEXT, [&](Driver& d) -> int {
    if (disturbs(d)) return STREAM_CAPTURE_UNSUPPORTED;
    if (pointer == nullptr || flags > (HOST_PORTABLE | HOST_DEVICEMAP | HOST_WRITE_COMBINED)) return INVALID_VALUE;
    Address a;
    if (const int e = allocate(d, bytes, PINNED, flags, &a)) return e;
    *pointer = reinterpret_cast<void*>(a);
    return SUCCESS;
  });
}

EXPORT(cuMemAllocHost_v2, void** pointer, size_t bytes) {
  return api("cuMemAllocHost_v2", CONTEXT, [&](Driver& d) -> int {
    if (disturbs(d)) return STREAM_CAPTURE_UNSUPPORTED;
    Address a;
    if (pointer == nullptr) return INVALID_VALUE;
    if (const int e = allocate(d, bytes, PINNED, 0, &a)) return e;
    *pointer = reinterpret_cast<void*>(a);
    return SUCCESS;
  });
}

EXPORT(cuMemFreeHost, void* pointer) {
  return api("cuMemFreeHost", CONTEXT, [&](Driver& d) -> int {
    if (disturbs(d)) return STREAM_CAPTURE_UNSUPPORTED;
    const auto at = d.blocks.find(reinterpret_cast<Address>(pointer));
    if (at == d.blocks.end() || at->second.place != PINNED || at->second.registered) return INVALID_VALUE;
    // A driver does not report that it waits.
    for (Stream* s : d.streams) {
      if (s->context == at->second.context && s->given > s->done) stop("page-locked memory is freed under work");
    }
    release_block(d, at);
    return SUCCESS;
  });
}

EXPORT(cuMemHostRegister_v2, void* pointer, size_t bytes, unsigned flags) {
  return api("cuMemHostRegister_v2", CONTEXT, [&](Driver& d) -> int {
    if (pointer == nullptr || bytes == 0) return INVALID_VALUE;
    const Address a = reinterpret_cast<Address>(pointer);
    const auto next = d.blocks.lower_bound(a);
    if (find_host(d, a, 1) != d.blocks.end() || (next != d.blocks.end() && next->first < a + bytes)) {
      return HOST_MEMORY_ALREADY_REGISTERED;
    }
    d.blocks[a] = Block{bytes, PINNED, current(), flags, true, ++d.ids};
    return SUCCESS;
  });
}

EXPORT(cuMemHostUnregister, void* pointer) {
  return api("cuMemHostUnregister", CONTEXT, [&](Driver& d) -> int {
    const auto at = d.blocks.find(reinterpret_cast<Address>(pointer));
    if (at == d.blocks.end() || !at->second.registered) return HOST_MEMORY_NOT_REGISTERED;
    run_context(*at->second.context);
    release_block(d, at);
    return SUCCESS;
  });
}

EXPORT(cuMemHostGetDevicePointer_v2, Address* address, void* pointer, unsigned flags) {
  return api("cuMemHostGetDevicePointer_v2", CONTEXT, [&](Driver& d) -> int {
    const Address a = reinterpret_cast<Address>(pointer);
    const auto at = find_host(d, a, 1);
    if (flags != 0 || at == d.blocks.end() || at->second.place != PINNED) return INVALID_VALUE;
    *address = a + host::DEVICE_OFFSET;
    return SUCCESS;
  });
}

EXPORT(cuMemHostGetFlags, unsigned* flags, void* pointer) {
  return api("cuMemHostGetFlags", CONTEXT, [&](Driver& d) -> int {
    const auto at = find_host(d, reinterpret_cast<Address>(pointer), 1);
    if (at == d.blocks.end() || at->second.place != PINNED) return INVALID_VALUE;
    *flags = at->second.flags;
    return SUCCESS;
  });
}

EXPORT(cuMemGetAddressRange_v2, Address* base, size_t* size, Address address) {
  return api("cuMemGetAddressRange_v2", CONTEXT, [&](Driver& d) -> int {
    const auto at = find_device(d, address, 1);
    if (at == d.blocks.end()) return NOT_FOUND;
    if (base != nullptr) *base = at->first + host::DEVICE_OFFSET;
    if (size != nullptr) *size = at->second.size;
    return SUCCESS;
  });
}

namespace {
int pointer_attribute(Driver& d, void* value, int attribute, Address address) {
  // Either the device address or, for pinned memory, the host address.
  auto at = find_device(d, address, 1);
  if (at == d.blocks.end()) {
    at = find_host(d, address, 1);
    if (at == d.blocks.end() || at->second.place != PINNED) return INVALID_VALUE;
    address += host::DEVICE_OFFSET;
  }
  const Block& b = at->second;
  switch (attribute) {
    case 1: *static_cast<Context**>(value) = b.context; return SUCCESS;
    case 2: *static_cast<unsigned*>(value) = b.place == DEVICE ? 2 : 1; return SUCCESS;
    case 3: *static_cast<Address*>(value) = address; return SUCCESS;
    case 4:
      if (b.place == DEVICE) return INVALID_VALUE;
      *static_cast<void**>(value) = host_of(address);
      return SUCCESS;
    case 7: *static_cast<uint64_t*>(value) = b.id; return SUCCESS;
    case 8: *static_cast<unsigned*>(value) = b.place == MANAGED; return SUCCESS;
    case 9: *static_cast<int*>(value) = 0; return SUCCESS;
    case 11: *static_cast<Address*>(value) = at->first + host::DEVICE_OFFSET; return SUCCESS;
    case 12: *static_cast<size_t*>(value) = b.size; return SUCCESS;
    case 13: *static_cast<int*>(value) = 1; return SUCCESS;
    default: return attribute >= 1 && attribute <= 14 ? NOT_SUPPORTED : INVALID_VALUE;
  }
}

// Returns the size of the value of an attribute.
size_t attribute_size(int attribute) { return attribute == 2 || attribute == 8 || attribute == 9 || attribute == 13 ? 4 : 8; }
}  // namespace

EXPORT(cuPointerGetAttribute, void* value, int attribute, Address address) {
  return api("cuPointerGetAttribute", INIT, [&](Driver& d) { return pointer_attribute(d, value, attribute, address); });
}

// Unlike the function for one attribute, it writes zeros for memory that is not the driver's.
EXPORT(cuPointerGetAttributes, unsigned count, int* attributes, void** values, Address address) {
  return api("cuPointerGetAttributes", INIT, [&](Driver& d) -> int {
    for (unsigned n = 0; n < count; n++) {
      if (attributes[n] < 1 || attributes[n] > 14) return INVALID_VALUE;
      if (pointer_attribute(d, values[n], attributes[n], address) != SUCCESS) {
        std::memset(values[n], 0, attribute_size(attributes[n]));
      }
    }
    return SUCCESS;
  });
}

EXPORT(cuMemcpyHtoD_v2, Address to, const void* from, size_t bytes) {
  return api("cuMemcpyHtoD_v2", CONTEXT, [&](Driver& d) { return copy_in(d, nullptr, to, from, bytes, true); });
}

EXPORT(cuMemcpyHtoDAsync_v2, Address to, const void* from, size_t bytes, Stream* stream) {
  return api("cuMemcpyHtoDAsync_v2", CONTEXT, [&](Driver& d) { return copy_in(d, stream, to, from, bytes, false); });
}

EXPORT(cuMemcpyDtoH_v2, void* to, Address from, size_t bytes) {
  return api("cuMemcpyDtoH_v2", CONTEXT, [&](Driver& d) { return copy_out(d, nullptr, to, from, bytes, true); });
}

EXPORT(cuMemcpyDtoHAsync_v2, void* to, Address from, size_t bytes, Stream* stream) {
  return api("cuMemcpyDtoHAsync_v2", CONTEXT, [&](Driver& d) { return copy_out(d, stream, to, from, bytes, false); });
}

EXPORT(cuMemcpyDtoD_v2, Address to, Address from, size_t bytes) {
  return api("cuMemcpyDtoD_v2", CONTEXT, [&](Driver& d) { return copy_within(d, nullptr, to, from, bytes); });
}

EXPORT(cuMemcpyDtoDAsync_v2, Address to, Address from, size_t bytes, Stream* stream) {
  return api("cuMemcpyDtoDAsync_v2", CONTEXT, [&](Driver& d) { return copy_within(d, stream, to, from, bytes); });
}

EXPORT(cuMemsetD8_v2, Address to, unsigned char value, size_t n) {
  return api("cuMemsetD8_v2", CONTEXT, [&](Driver& d) { return set(d, nullptr, to, value, n); });
}

EXPORT(cuMemsetD8Async, Address to, unsigned char value, size_t n, Stream* stream) {
  return api("cuMemsetD8Async", CONTEXT, [&](Driver& d) { return set(d, stream, to, value, n); });
}

EXPORT(cuMemsetD16_v2, Address to, unsigned short value, size_t n) {
  return api("cuMemsetD16_v2", CONTEXT, [&](Driver& d) { return set(d, nullptr, to, value, n); });
}

EXPORT(cuMemsetD16Async, Address to, unsigned short value, size_t n, Stream* stream) {
  return api("cuMemsetD16Async", CONTEXT, [&](Driver& d) { return set(d, stream, to, value, n); });
}

EXPORT(cuMemsetD32_v2, Address to, unsigned value, size_t n) {
  return api("cuMemsetD32_v2", CONTEXT, [&](Driver& d) { return set(d, nullptr, to, value, n); });
}

EXPORT(cuMemsetD32Async, Address to, unsigned value, size_t n, Stream* stream) {
  return api("cuMemsetD32Async", CONTEXT, [&](Driver& d) { return set(d, stream, to, value, n); });
}

// ---- Modules and launches

EXPORT(cuModuleLoadData, Module** module, const void* image) {
  return api("cuModuleLoadData", CONTEXT, [&](Driver& d) -> int {
    return disturbs(d) ? STREAM_CAPTURE_UNSUPPORTED : load(d, image, Log{}, module);
  });
}

EXPORT(cuModuleLoadDataEx, Module** module, const void* image, unsigned count, int* options, void** values) {
  return api("cuModuleLoadDataEx", CONTEXT, [&](Driver& d) -> int {
    if (disturbs(d)) return STREAM_CAPTURE_UNSUPPORTED;
    Log log;
    size_t* size = nullptr;
    for (unsigned i = 0; i < count; i++) {
      // The buffer for errors, and its size, which becomes the number of bytes written.
      if (options[i] == 5) log.text = static_cast<char*>(values[i]);
      if (options[i] == 6) {
        log.size = (unsigned)reinterpret_cast<uintptr_t>(values[i]);
        size = reinterpret_cast<size_t*>(&values[i]);
      }
    }
    const int result = load(d, image, log, module);
    if (size != nullptr && log.text != nullptr && log.size > 0) *size = result == SUCCESS ? 0 : std::strlen(log.text);
    return result;
  });
}

EXPORT(cuModuleUnload, Module* module) {
  return api("cuModuleUnload", CONTEXT, [&](Driver& d) -> int {
    if (disturbs(d)) return STREAM_CAPTURE_UNSUPPORTED;
    if (d.modules.count(module) == 0 || !module->live) return INVALID_HANDLE;
    if (module->context != current()) return INVALID_HANDLE;
    run_context(*module->context);
    module->live = false;
    return SUCCESS;
  });
}

EXPORT(cuModuleGetFunction, Function** function, Module* module, const char* name) {
  return api("cuModuleGetFunction", CONTEXT, [&](Driver& d) -> int {
    if (function == nullptr || name == nullptr) return INVALID_VALUE;
    if (d.modules.count(module) == 0 || !module->live) return INVALID_HANDLE;
    return find_function(d, *module, name, function);
  });
}

EXPORT(cuModuleGetGlobal_v2, Address* address, size_t* bytes, Module* module, const char* name) {
  return api("cuModuleGetGlobal_v2", CONTEXT, [&](Driver&) -> int {
    (void)address, (void)bytes, (void)module, (void)name;
    return NOT_FOUND;
  });
}

EXPORT(cuFuncGetAttribute, int* value, int attribute, Function* function) {
  return api("cuFuncGetAttribute", CONTEXT, [&](Driver& d) -> int {
    if (d.functions.count(function) == 0 || !function->module->live) return INVALID_HANDLE;
    const int values[] = {function->max_threads, function->shared, 0, 0, 128, function->ptx, 62, 0, function->dynamic, -1};
    if (value == nullptr || attribute < 0 || attribute > 9) return INVALID_VALUE;
    *value = values[attribute];
    return SUCCESS;
  });
}

EXPORT(cuFuncSetAttribute, Function* function, int attribute, int value) {
  return api("cuFuncSetAttribute", CONTEXT, [&](Driver& d) -> int {
    if (d.functions.count(function) == 0 || !function->module->live) return INVALID_HANDLE;
    if (attribute != 8 && attribute != 9) return INVALID_VALUE;
    if (attribute == 8) {
      if (value < 0 || value + function->shared > most_shared(d)) return INVALID_VALUE;
      function->dynamic = value;
    }
    return SUCCESS;
  });
}

EXPORT(cuFuncSetCacheConfig, Function* function, int config) {
  return api("cuFuncSetCacheConfig", CONTEXT, [&](Driver& d) -> int {
    if (d.functions.count(function) == 0 || !function->module->live) return INVALID_HANDLE;
    return config >= 0 && config <= 3 ? SUCCESS : INVALID_VALUE;
  });
}

EXPORT(cuOccupancyMaxActiveBlocksPerMultiprocessor, int* blocks, Function* function, int threads, size_t dynamic) {
  return api("cuOccupancyMaxActiveBlocksPerMultiprocessor", CONTEXT, [&](Driver& d) -> int {
    if (d.functions.count(function) == 0 || !function->module->live) return INVALID_HANDLE;
    if (threads <= 0) return INVALID_VALUE;
    const size_t shared = function->shared + dynamic;
    *blocks = std::min(2048 / threads, shared == 0 ? 32 : (int)(all_shared(d) / shared));
    return SUCCESS;
  });
}

EXPORT(cuLaunchKernel, Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
       unsigned block_y, unsigned block_z, unsigned dynamic, Stream* stream, void** parameters, void** extra) {
  return api("cuLaunchKernel", CONTEXT, [&](Driver& d) -> int {
    if (d.functions.count(function) == 0 || !function->module->live) return INVALID_HANDLE;
    if (function->module->context != current()) return INVALID_HANDLE;
    if (grid_x == 0 || grid_y == 0 || grid_z == 0 || grid_x > 2147483647 || grid_y > 65535 || grid_z > 65535) {
      return INVALID_VALUE;
    }
    const uint64_t threads = (uint64_t)block_x * block_y * block_z;
    if (threads == 0 || threads > (uint64_t)function->max_threads) return INVALID_VALUE;
    if (dynamic > (unsigned)function->dynamic || (size_t)dynamic + function->shared > (size_t)most_shared(d)) return INVALID_VALUE;
    if (parameters == nullptr || extra != nullptr) return INVALID_VALUE;
    const Kernel* kernel = kernel_of(function->name);
    if (kernel == nullptr) stop(function->name + ": PTX was loaded for it, and it was not compiled for the host");
    if (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || block_x % 32 != 0) {
      stop(function->name + ": kernels here take blocks of whole warps, in one dimension");
    }
    // The driver copies the parameter immediately.
    const char* from = static_cast<const char*>(parameters[0]);
    auto parameter = std::make_shared<std::vector<char>>(from, from + kernel->parameter_size);
    const auto work = [=] { run_grid(*kernel, parameter->data(), (int)block_x, (int)grid_x); };
    return enqueue(d, stream, KERNEL_NODE, work);
  });
}

// ---- Streams and events

EXPORT(cuStreamCreate, Stream** stream, unsigned flags) {
  return api("cuStreamCreate", CONTEXT, [&](Driver& d) -> int {
    if (stream == nullptr || flags > STREAM_NON_BLOCKING) return INVALID_VALUE;
    *stream = new Stream;
    (*stream)->context = current();
    (*stream)->flags = flags;
    d.streams.insert(*stream);
    return SUCCESS;
  });
}

EXPORT(cuStreamCreateWithPriority, Stream** stream, unsigned flags, int priority) {
  return api("cuStreamCreateWithPriority", CONTEXT, [&](Driver& d) -> int {
    if (stream == nullptr || flags > STREAM_NON_BLOCKING) return INVALID_VALUE;
    *stream = new Stream;
    (*stream)->context = current();
    (*stream)->flags = flags;
    (*stream)->priority = std::max(-1, std::min(0, priority));
    d.streams.insert(*stream);
    return SUCCESS;
  });
}

EXPORT(cuStreamDestroy_v2, Stream* stream) {
  return api("cuStreamDestroy_v2", CONTEXT, [&](Driver& d) -> int {
    Stream* s;
    if (stream == nullptr) return INVALID_HANDLE;
    if (const int e = stream_of(d, stream, &s)) return e;
    if (waits_for_captured(*s)) return STREAM_CAPTURE_UNSUPPORTED;
    run_all(*s);
    s->live = false;
    return SUCCESS;
  });
}

EXPORT(cuStreamSynchronize, Stream* stream) {
  return api("cuStreamSynchronize", CONTEXT, [&](Driver& d) -> int {
    Stream* s;
    if (const int e = stream_of(d, stream, &s)) return e;
    if (waits_for_captured(*s)) return STREAM_CAPTURE_UNSUPPORTED;
    if (s == s->context->null && breaks(d, *s->context)) return STREAM_CAPTURE_IMPLICIT;
    if (s == s->context->null) order(*s);
    run_all(*s);
    return SUCCESS;
  });
}

EXPORT(cuStreamQuery, Stream* stream) {
  return api("cuStreamQuery", CONTEXT, [&](Driver& d) -> int {
    Stream* s;
    if (const int e = stream_of(d, stream, &s)) return e;
    if (waits_for_captured(*s)) return STREAM_CAPTURE_UNSUPPORTED;
    if (s == s->context->null) order(*s);
    // The first query finds unfinished work, the next one none.
    const bool idle = s->done == s->given;
    run_all(*s);
    return idle ? SUCCESS : NOT_READY;
  });
}

EXPORT(cuStreamGetCtx, Stream* stream, Context** context) {
  return api("cuStreamGetCtx", CONTEXT, [&](Driver& d) -> int {
    Stream* s;
    if (const int e = stream_of(d, stream, &s)) return e;
    if (s == s->context->null && breaks(d, *s->context)) return STREAM_CAPTURE_IMPLICIT;
    *context = s->context;
    return SUCCESS;
  });
}

EXPORT(cuStreamGetFlags, Stream* stream, unsigned* flags) {
  return api("cuStreamGetFlags", CONTEXT, [&](Driver& d) -> int {
    Stream* s;
    if (const int e = stream_of(d, stream, &s)) return e;
    *flags = s->flags;
    return SUCCESS;
  });
}

EXPORT(cuStreamGetPriority, Stream* stream, int* priority) {
  return api("cuStreamGetPriority", CONTEXT, [&](Driver& d) -> int {
    Stream* s;
    if (const int e = stream_of(d, stream, &s)) return e;
    *priority = s->priority;
    return SUCCESS;
  });
}

EXPORT(cuStreamWaitEvent, Stream* stream, Event* event, unsigned flags) {
  return api("cuStreamWaitEvent", CONTEXT, [&](Driver& d) -> int {
    Stream* s;
    if (const int e = stream_of(d, stream, &s)) return e;
    if (d.events.count(event) == 0 || !event->live) return INVALID_HANDLE;
    if (flags != 0) return INVALID_VALUE;
    if (Capture* c = event->capture) {
      if (!c->live) return CAPTURED_EVENT;
      if (s == s->context->null) {
        c->invalid = true;
        return STREAM_CAPTURE_IMPLICIT;
      }
      if (s->capture != nullptr && s->capture != c) {
        c->invalid = s->capture->invalid = true;
        return STREAM_CAPTURE_MERGE;
      }
      s->capture = c;
      s->last.insert(event->nodes.begin(), event->nodes.end());
      return SUCCESS;
    }
    if (s->capture != nullptr) {
      if (event->stream == nullptr) return SUCCESS;
      s->capture->invalid = true;
      return STREAM_CAPTURE_ISOLATION;
    }
    if (event->stream != nullptr) give(*s, Item{nullptr, event->stream, event->item});
    return SUCCESS;
  });
}

// ---- Capture and graphs

int begin_capture(Driver& d, Stream* stream, int mode) {
  Stream* s;
  if (mode < GLOBAL || mode > RELAXED) return INVALID_VALUE;
  if (const int e = stream_of(d, stream, &s)) return e;
  if (s == s->context->null) return STREAM_CAPTURE_UNSUPPORTED;
  if (s->capture != nullptr) return ILLEGAL_STATE;
  d.every_capture.push_back(std::make_unique<Capture>());
  Capture* c = d.every_capture.back().get();
  c->id = d.every_capture.size();
  c->mode = mode;
  c->thread = pthread_self();
  c->origin = s;
  s->capture = c;
  d.captures.insert(c);
  return SUCCESS;
}

EXPORT(cuStreamBeginCapture, Stream* stream) {
  return api("cuStreamBeginCapture", CONTEXT, [&](Driver& d) { return begin_capture(d, stream, GLOBAL); });
}

EXPORT(cuStreamBeginCapture_v2, Stream* stream, int mode) {
  return api("cuStreamBeginCapture_v2", CONTEXT, [&](Driver& d) { return begin_capture(d, stream, mode); });
}

EXPORT(cuStreamEndCapture, Stream* stream, Graph** graph) {
  return api("cuStreamEndCapture", CONTEXT, [&](Driver& d) -> int {
    Stream* s;
    if (graph == nullptr) return INVALID_VALUE;
    *graph = nullptr;
    if (const int e = stream_of(d, stream, &s)) return e;
    Capture* c = s->capture;
    if (c == nullptr) return ILLEGAL_STATE;
    if (c->origin != s) return STREAM_CAPTURE_UNMATCHED;
    if (c->mode != RELAXED && !pthread_equal(c->thread, pthread_self())) return STREAM_CAPTURE_WRONG_THREAD;
    c->graph.last = s->last;
    const bool invalid = c->invalid;
    end_capture(d, *c);
    if (invalid) return STREAM_CAPTURE_INVALIDATED;
    // Work that the first stream has not waited for.
    Nodes reached = c->graph.last;
    for (size_t i = c->graph.nodes.size(); i-- > 0;) {
      if (reached.count(i) == 0) return STREAM_CAPTURE_UNJOINED;
      reached.insert(c->graph.nodes[i].after.begin(), c->graph.nodes[i].after.end());
    }
    *graph = new Graph(std::move(c->graph));
    d.graphs.insert(*graph);
    return SUCCESS;
  });
}

EXPORT(cuStreamIsCapturing, Stream* stream, int* status) {
  return api("cuStreamIsCapturing", CONTEXT, [&](Driver& d) -> int {
    Stream* s;
    if (const int e = stream_of(d, stream, &s)) return e;
    *status = s->capture == nullptr ? 0 : s->capture->invalid ? 2 : 1;
    return SUCCESS;
  });
}

EXPORT(cuStreamGetCaptureInfo, Stream* stream, int* status, uint64_t* id) {
  return api("cuStreamGetCaptureInfo", CONTEXT, [&](Driver& d) -> int {
    Stream* s;
    if (const int e = stream_of(d, stream, &s)) return e;
    // Only this call does not invalidate them.
    for (Capture* c : d.captures) {
      const bool waits = c->origin->context == s->context && (c->origin->flags & STREAM_NON_BLOCKING) == 0;
      if (s == s->context->null && waits) return STREAM_CAPTURE_IMPLICIT;
    }
    *status = s->capture == nullptr ? 0 : s->capture->invalid ? 2 : 1;
    if (id != nullptr && *status == 1) *id = s->capture->id;
    return SUCCESS;
  });
}

EXPORT(cuThreadExchangeStreamCaptureMode, int* exchanged) {
  return api("cuThreadExchangeStreamCaptureMode", INIT, [&](Driver&) -> int {
    if (exchanged == nullptr || *exchanged < GLOBAL || *exchanged > RELAXED) return INVALID_VALUE;
    std::swap(*exchanged, mode());
    return SUCCESS;
  });
}

// Without an array, returns the number of nodes.
EXPORT(cuGraphGetNodes, Graph* graph, Node** nodes, size_t* count) {
  return api("cuGraphGetNodes", INIT, [&](Driver& d) -> int {
    if (count == nullptr || d.graphs.count(graph) == 0) return INVALID_VALUE;
    const size_t all = graph->nodes.size(), room = *count;
    *count = nodes == nullptr ? all : std::min(all, room);
    for (size_t i = 0; nodes != nullptr && i < room; i++) nodes[i] = i < all ? &graph->nodes[i] : nullptr;
    return SUCCESS;
  });
}

EXPORT(cuGraphNodeGetType, Node* node, int* type) {
  return api("cuGraphNodeGetType", INIT, [&](Driver& d) -> int {
    for (Graph* graph : d.graphs) {
      for (const Node& one : graph->nodes) {
        if (&one != node || type == nullptr) continue;
        *type = one.kind;
        return SUCCESS;
      }
    }
    return INVALID_VALUE;
  });
}

EXPORT(cuGraphInstantiate, Graph** executable, Graph* graph, void** node, char* log, size_t bytes) {
  return api("cuGraphInstantiate", CONTEXT, [&](Driver& d) -> int {
    (void)node, (void)log, (void)bytes;
    if (executable == nullptr || d.graphs.count(graph) == 0) return INVALID_VALUE;
    *executable = new Graph(*graph);
    d.executables.insert(*executable);
    return SUCCESS;
  });
}

EXPORT(cuGraphLaunch, Graph* executable, Stream* stream) {
  return api("cuGraphLaunch", CONTEXT, [&](Driver& d) -> int {
    if (d.executables.count(executable) == 0) return INVALID_VALUE;
    return enqueue(d, stream, GRAPH_NODE, [=] {
      std::vector<bool> done(executable->nodes.size());
      for (const size_t node : executable->last) run_node(*executable, node, done);
    });
  });
}

EXPORT(cuGraphDestroy, Graph* graph) {
  return api("cuGraphDestroy", INIT, [&](Driver& d) -> int {
    if (d.graphs.erase(graph) == 0) return INVALID_VALUE;
    delete graph;
    return SUCCESS;
  });
}

EXPORT(cuGraphExecDestroy, Graph* executable) {
  return api("cuGraphExecDestroy", CONTEXT, [&](Driver& d) -> int {
    // Launches in flight complete first.
    run_context(*current());
    if (d.executables.erase(executable) == 0) return INVALID_VALUE;
    delete executable;
    return SUCCESS;
  });
}

EXPORT(cuLaunchHostFunc, Stream* stream, void (*function)(void*), void* data) {
  return api("cuLaunchHostFunc", CONTEXT,
             [&](Driver& d) { return enqueue(d, stream, HOST_NODE, [=] { function(data); }); });
}

EXPORT(cuEventCreate, Event** event, unsigned flags) {
  return api("cuEventCreate", CONTEXT, [&](Driver& d) -> int {
    if (event == nullptr || flags > (EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING)) return INVALID_VALUE;
    *event = new Event;
    (*event)->context = current();
    (*event)->flags = flags;
    (*event)->time = std::make_shared<std::chrono::steady_clock::time_point>();
    d.events.insert(*event);
    return SUCCESS;
  });
}

EXPORT(cuEventDestroy_v2, Event* event) {
  return api("cuEventDestroy_v2", CONTEXT, [&](Driver& d) -> int {
    if (d.events.count(event) == 0 || !event->live) return INVALID_HANDLE;
    event->live = false;
    return SUCCESS;
  });
}

EXPORT(cuEventRecord, Event* event, Stream* stream) {
  return api("cuEventRecord", CONTEXT, [&](Driver& d) -> int {
    if (d.events.count(event) == 0 || !event->live) return INVALID_HANDLE;
    Stream* s;
    if (const int e = stream_of(d, stream, &s)) return e;
    if (event->context != s->context) return INVALID_HANDLE;
    if (s->capture != nullptr) {
      if (s->capture->invalid) return STREAM_CAPTURE_INVALIDATED;
      event->capture = s->capture;
      event->nodes = s->last;
      return SUCCESS;
    }
    event->capture = nullptr;
    const auto time = event->time;
    if (const int e = enqueue(d, stream, EVENT_NODE, [=] { *time = std::chrono::steady_clock::now(); })) return e;
    event->stream = s;
    event->item = s->given;
    return SUCCESS;
  });
}

EXPORT(cuEventSynchronize, Event* event) {
  return api("cuEventSynchronize", CONTEXT, [&](Driver& d) -> int {
    if (d.events.count(event) == 0 || !event->live) return INVALID_HANDLE;
    if (const int e = waits_for(*event)) return e;
    if (disturbs(d)) return STREAM_CAPTURE_UNSUPPORTED;
    if (event->stream != nullptr) run_until(*event->stream, event->item);
    return SUCCESS;
  });
}

EXPORT(cuEventQuery, Event* event) {
  return api("cuEventQuery", CONTEXT, [&](Driver& d) -> int {
    if (d.events.count(event) == 0 || !event->live) return INVALID_HANDLE;
    if (const int e = waits_for(*event)) return e;
    if (disturbs(d)) return STREAM_CAPTURE_UNSUPPORTED;
    if (event->stream == nullptr || event->stream->done >= event->item) return SUCCESS;
    run_until(*event->stream, event->item);
    return NOT_READY;
  });
}

EXPORT(cuEventElapsedTime, float* milliseconds, Event* start, Event* end) {
  return api("cuEventElapsedTime", CONTEXT, [&](Driver& d) -> int {
    for (Event* e : {start, end}) {
      if (d.events.count(e) == 0 || !e->live || e->stream == nullptr) return INVALID_HANDLE;
      if ((e->flags & EVENT_DISABLE_TIMING) != 0) return INVALID_HANDLE;
    }
    for (Event* e : {start, end}) {
      if (e->stream->done < e->item) return NOT_READY;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(*end->time - *start->time).count();
    return SUCCESS;
  });
}
