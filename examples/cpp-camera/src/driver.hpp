#pragma once

#include "frame.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <dlfcn.h>

namespace camera {

/// Page-locked memory of the host, which the GPU reads and writes in place.
struct Shared {
    std::uint8_t *data;
    Address address;
};

/// Work of a graph: kernels, copies, and anything else.
struct Nodes {
    std::size_t kernels = 0, copies = 0, others = 0;
};

/// NVIDIA's driver, opened at run time, with the primary context of a device and one stream. What it allocates is freed
/// with it. The context is current on the thread that creates the object, which must make all calls. Calls throw
/// vision::Error.
class Driver {
public:
    explicit Driver(std::size_t device);
    ~Driver();
    Driver(const Driver &) = delete;
    Driver &operator=(const Driver &) = delete;

    /// Allocates memory of the device.
    Address allocate(std::size_t bytes);
    /// Allocates memory of the host for both sides, cleared.
    Shared share(std::size_t bytes);
    /// Copies from the host to the device, and waits.
    void upload(Address to, const void *from, std::size_t bytes);
    /// Loads the kernel `name` of a module.
    void *kernel(const char *ptx, const char *name);

    /// Enqueues a kernel with its only argument.
    template <class Call>
    void launch(void *kernel, std::size_t blocks, std::size_t threads, const Call &call) {
        launch_bytes(kernel, blocks, threads, &call);
    }

    /// Returns the stream, a CUstream.
    void *stream() const noexcept { return stream_; }
    /// Waits for the stream.
    void wait();

    /// Begins to record the stream as a graph.
    void record();
    /// Ends the recording. Returns the graph, ready to be launched; `nodes` are its contents.
    void *recorded(Nodes &nodes);
    void launch_graph(void *graph);
    void destroy_graph(void *graph) noexcept;

    /// Return how often this object has copied and allocated.
    std::size_t copies() const noexcept { return copies_; }
    std::size_t allocations() const noexcept { return allocations_; }

private:
    struct Calls;

    void check(const char *call, int code) const;
    void launch_bytes(void *kernel, std::size_t blocks, std::size_t threads, const void *call);
    Nodes nodes_of(void *graph) const;
    void close() noexcept;

    const Calls *calls_;
    int device_;
    void *context_ = nullptr, *stream_ = nullptr;
    std::vector<Address> device_memory_;
    std::vector<void *> host_memory_, modules_;
    std::size_t copies_ = 0, allocations_ = 0;
};

/// Finds a function of an open library. Returns whether it is there; if not, `function` is null.
template <class Function>
bool find_symbol(void *library, Function &function, const char *name) {
    void *found = dlsym(library, name);
    static_assert(sizeof found == sizeof function, "POSIX converts between them");
    std::memcpy(&function, &found, sizeof found);
    return found != nullptr;
}

} // namespace camera
