// Functions of NVIDIA's driver that the tests use, from the library that the loader finds: the driver or the
// stand-in.
#ifndef DRIVER_HPP
#define DRIVER_HPP

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(x)                                                         \
    do {                                                                 \
        ++checks;                                                        \
        if (!(x)) {                                                      \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
            std::exit(1);                                                \
        }                                                                \
    } while (0)

extern int checks;

namespace driver {

typedef unsigned long long Address;

struct Functions {
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*push)(void *);
    int (*allocate)(Address *, std::size_t);
    int (*release)(Address);
    int (*upload)(Address, const void *, std::size_t);
    int (*download)(void *, Address, std::size_t);
    int (*stream)(void **, unsigned);
    int (*end_stream)(void *);
    int (*wait)(void *);
    int (*begin_capture)(void *, int);
    int (*end_capture)(void *, void **);
    int (*instantiate)(void **, void *, void **, char *, std::size_t);
    int (*instantiate_with_flags)(void **, void *, unsigned long long);
    int (*launch)(void *, void *);
    int (*end_graph)(void *);
    int (*end_instance)(void *);
};

inline Functions &cu() {
    static Functions functions;
    return functions;
}

template <class F>
void find(void *library, const char *name, F &function) {
    void *const found = dlsym(library, name);
    std::memcpy(&function, &found, sizeof found);
}

// Makes the primary context of the first device current for this thread.
inline void enter() {
    void *context = nullptr;
    CHECK(cu().retain(&context, 0) == 0 && cu().push(context) == 0);
}

inline void open() {
    void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library != nullptr);
    Functions &f = cu();
    find(library, "cuInit", f.init);
    find(library, "cuDevicePrimaryCtxRetain", f.retain);
    find(library, "cuCtxPushCurrent_v2", f.push);
    find(library, "cuMemAlloc_v2", f.allocate);
    find(library, "cuMemFree_v2", f.release);
    find(library, "cuMemcpyHtoD_v2", f.upload);
    find(library, "cuMemcpyDtoH_v2", f.download);
    find(library, "cuStreamCreate", f.stream);
    find(library, "cuStreamDestroy_v2", f.end_stream);
    find(library, "cuStreamSynchronize", f.wait);
    find(library, "cuStreamBeginCapture_v2", f.begin_capture);
    find(library, "cuStreamEndCapture", f.end_capture);
    find(library, "cuGraphInstantiate", f.instantiate);
    // Available from CUDA 11.4 on.
    find(library, "cuGraphInstantiateWithFlags", f.instantiate_with_flags);
    find(library, "cuGraphLaunch", f.launch);
    find(library, "cuGraphDestroy", f.end_graph);
    find(library, "cuGraphExecDestroy", f.end_instance);
    CHECK(f.launch != nullptr && f.init(0) == 0);
    enter();
}

// Device memory.
class Memory {
public:
    explicit Memory(std::size_t bytes) : bytes_(bytes) { CHECK(cu().allocate(&at_, bytes + 1) == 0); }
    explicit Memory(const std::vector<char> &from) : Memory(from.size()) {
        CHECK(from.empty() || cu().upload(at_, from.data(), from.size()) == 0);
    }
    Memory(Memory &&other) noexcept : at_(other.at_), bytes_(other.bytes_) { other.at_ = 0; }
    ~Memory() {
        if (at_ != 0) {
            cu().release(at_);
        }
    }
    void *get() const { return reinterpret_cast<void *>(static_cast<std::uintptr_t>(at_)); }
    std::vector<char> bytes() const {
        std::vector<char> to(bytes_);
        CHECK(to.empty() || cu().download(to.data(), at_, to.size()) == 0);
        return to;
    }

private:
    Address at_ = 0;
    std::size_t bytes_;
};

} // namespace driver

#endif
