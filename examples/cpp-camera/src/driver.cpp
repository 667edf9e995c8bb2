#include "driver.hpp"

#include "error.hpp"

#include <string>

namespace camera {
namespace {

/// Numbers of cuda.h: mapped host memory, a stream that does not wait for the default stream, a capture that only this
/// thread can disturb, and the types of nodes.
const unsigned map_host = 2, non_blocking = 1;
const int capture_of_thread = 1, kernel_node = 0, copy_node = 1;

[[noreturn]] void fail(const std::string &what) { throw vision::Error(vision::Fault::system, "driver: " + what); }

} // namespace

/// Functions of the driver.
struct Driver::Calls {
    int (*init)(unsigned);
    int (*device)(int *, int);
    int (*error_name)(int, const char **);
    int (*retain)(void **, int);
    int (*release)(int);
    int (*push)(void *);
    int (*pop)(void **);
    int (*allocate)(Address *, std::size_t);
    int (*free)(Address);
    int (*allocate_host)(void **, std::size_t, unsigned);
    int (*free_host)(void *);
    int (*device_pointer)(Address *, void *, unsigned);
    int (*copy_in)(Address, const void *, std::size_t);
    int (*load)(void **, const void *);
    int (*unload)(void *);
    int (*function)(void **, void *, const char *);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                  void **);
    int (*create_stream)(void **, unsigned);
    int (*destroy_stream)(void *);
    int (*wait)(void *);
    int (*begin)(void *, int);
    int (*end)(void *, void **);
    int (*nodes)(void *, void **, std::size_t *);
    int (*type)(void *, int *);
    /// The first exists from CUDA 11.4 on; the second has other arguments in later headers, but not in the library.
    int (*instantiate)(void **, void *, unsigned long long);
    int (*instantiate_with_log)(void **, void *, void **, char *, std::size_t);
    int (*launch_graph)(void *, void *);
    int (*destroy_graph)(void *);
    int (*destroy_launchable)(void *);

    /// Opens the library, once for the process.
    static const Calls &open() {
        static const Calls calls;
        return calls;
    }

    Calls() {
        library_ = dlopen("libcuda.so.1", RTLD_NOW);
        if (library_ == nullptr) {
            const char *why = dlerror();
            fail(why == nullptr ? "libcuda.so.1: cannot be opened" : why);
        }
        need(init, "cuInit");
        need(device, "cuDeviceGet");
        need(error_name, "cuGetErrorName");
        need(retain, "cuDevicePrimaryCtxRetain");
        // Drivers from CUDA 11 on have the newer one.
        if (!find(release, "cuDevicePrimaryCtxRelease_v2")) {
            need(release, "cuDevicePrimaryCtxRelease");
        }
        need(push, "cuCtxPushCurrent_v2");
        need(pop, "cuCtxPopCurrent_v2");
        need(allocate, "cuMemAlloc_v2");
        need(free, "cuMemFree_v2");
        need(allocate_host, "cuMemHostAlloc");
        need(free_host, "cuMemFreeHost");
        need(device_pointer, "cuMemHostGetDevicePointer_v2");
        need(copy_in, "cuMemcpyHtoD_v2");
        need(load, "cuModuleLoadData");
        need(unload, "cuModuleUnload");
        need(function, "cuModuleGetFunction");
        need(launch, "cuLaunchKernel");
        need(create_stream, "cuStreamCreate");
        need(destroy_stream, "cuStreamDestroy_v2");
        need(wait, "cuStreamSynchronize");
        need(begin, "cuStreamBeginCapture_v2");
        need(end, "cuStreamEndCapture");
        need(nodes, "cuGraphGetNodes");
        need(type, "cuGraphNodeGetType");
        instantiate_with_log = nullptr;
        if (!find(instantiate, "cuGraphInstantiateWithFlags")) {
            need(instantiate_with_log, "cuGraphInstantiate");
        }
        need(launch_graph, "cuGraphLaunch");
        need(destroy_graph, "cuGraphDestroy");
        need(destroy_launchable, "cuGraphExecDestroy");
    }

private:
    template <class Function>
    bool find(Function &function, const char *name) const {
        return find_symbol(library_, function, name);
    }

    template <class Function>
    void need(Function &function, const char *name) const {
        if (!find(function, name)) {
            fail(std::string(name) + ": absent; allowed: a driver of CUDA 10.2 or later");
        }
    }

    void *library_;
};

Driver::Driver(std::size_t device) : calls_(&Calls::open()), device_(0) {
    check("cuInit", calls_->init(0));
    check("cuDeviceGet", calls_->device(&device_, static_cast<int>(device)));
    check("cuDevicePrimaryCtxRetain", calls_->retain(&context_, device_));
    try {
        check("cuCtxPushCurrent", calls_->push(context_));
        check("cuStreamCreate", calls_->create_stream(&stream_, non_blocking));
    } catch (...) {
        close();
        throw;
    }
}

Driver::~Driver() { close(); }

void Driver::close() noexcept {
    // A lost context refuses these calls; releasing it frees what it has.
    if (stream_ != nullptr) {
        calls_->destroy_stream(stream_);
    }
    for (void *module : modules_) {
        calls_->unload(module);
    }
    for (const Address address : device_memory_) {
        calls_->free(address);
    }
    for (void *memory : host_memory_) {
        calls_->free_host(memory);
    }
    void *popped = nullptr;
    calls_->pop(&popped);
    calls_->release(device_);
}

void Driver::check(const char *call, int code) const {
    if (code == 0) {
        return;
    }
    const char *name = nullptr;
    calls_->error_name(code, &name);
    fail(std::string(call) + ": " + (name == nullptr ? std::to_string(code) : name));
}

Address Driver::allocate(std::size_t bytes) {
    Address made = 0;
    device_memory_.reserve(device_memory_.size() + 1);
    check("cuMemAlloc", calls_->allocate(&made, bytes));
    device_memory_.push_back(made);
    ++allocations_;
    return made;
}

Shared Driver::share(std::size_t bytes) {
    void *made = nullptr;
    host_memory_.reserve(host_memory_.size() + 1);
    check("cuMemHostAlloc", calls_->allocate_host(&made, bytes, map_host));
    host_memory_.push_back(made);
    ++allocations_;
    std::memset(made, 0, bytes);
    Shared shared = {static_cast<std::uint8_t *>(made), 0};
    check("cuMemHostGetDevicePointer", calls_->device_pointer(&shared.address, made, 0));
    return shared;
}

void Driver::upload(Address to, const void *from, std::size_t bytes) {
    ++copies_;
    check("cuMemcpyHtoD", calls_->copy_in(to, from, bytes));
}

void *Driver::kernel(const char *ptx, const char *name) {
    void *module = nullptr, *function = nullptr;
    modules_.reserve(modules_.size() + 1);
    check("cuModuleLoadData", calls_->load(&module, ptx));
    modules_.push_back(module);
    check("cuModuleGetFunction", calls_->function(&function, module, name));
    return function;
}

void Driver::launch_bytes(void *kernel, std::size_t blocks, std::size_t threads, const void *call) {
    // The driver reads the argument, which is constant, during the call.
    void *argument = const_cast<void *>(call);
    check("cuLaunchKernel", calls_->launch(kernel, static_cast<unsigned>(blocks), 1, 1, static_cast<unsigned>(threads),
                                           1, 1, 0, stream_, &argument, nullptr));
}

void Driver::wait() { check("cuStreamSynchronize", calls_->wait(stream_)); }

void Driver::record() { check("cuStreamBeginCapture", calls_->begin(stream_, capture_of_thread)); }

Nodes Driver::nodes_of(void *graph) const {
    std::size_t count = 0;
    check("cuGraphGetNodes", calls_->nodes(graph, nullptr, &count));
    std::vector<void *> all(count);
    check("cuGraphGetNodes", calls_->nodes(graph, all.data(), &count));
    Nodes nodes;
    for (void *node : all) {
        int type = 0;
        check("cuGraphNodeGetType", calls_->type(node, &type));
        (type == kernel_node ? nodes.kernels : type == copy_node ? nodes.copies : nodes.others) += 1;
    }
    return nodes;
}

void *Driver::recorded(Nodes &nodes) {
    void *graph = nullptr, *made = nullptr;
    check("cuStreamEndCapture", calls_->end(stream_, &graph));
    int code = 0;
    try {
        nodes = nodes_of(graph);
        code = calls_->instantiate != nullptr ? calls_->instantiate(&made, graph, 0)
                                              : calls_->instantiate_with_log(&made, graph, nullptr, nullptr, 0);
    } catch (...) {
        calls_->destroy_graph(graph);
        throw;
    }
    calls_->destroy_graph(graph);
    check("cuGraphInstantiate", code);
    return made;
}

void Driver::launch_graph(void *graph) { check("cuGraphLaunch", calls_->launch_graph(graph, stream_)); }

void Driver::destroy_graph(void *graph) noexcept {
    if (graph != nullptr) {
        calls_->destroy_launchable(graph);
    }
}

} // namespace camera
