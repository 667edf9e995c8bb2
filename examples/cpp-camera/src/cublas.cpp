#include "cublas.hpp"

#include "error.hpp"

#include <string>

#include <dlfcn.h>

namespace camera {
namespace {

/// Number of cublas_v2.h: matrices that are not transposed.
const int plain = 0;
/// Memory that a recording may use, so that it allocates none: what cuBLAS takes at most by default.
const std::size_t room = std::size_t(32) << 20;

[[noreturn]] void fail(const std::string &what) { throw vision::Error(vision::Fault::system, "cuBLAS: " + what); }

void check(const char *call, int code) {
    if (code != 0) {
        fail(std::string(call) + ": status " + std::to_string(code));
    }
}

} // namespace

/// Functions of the library.
struct Cublas::Calls {
    int (*create)(void **);
    int (*destroy)(void *);
    int (*set_stream)(void *, void *);
    /// From CUDA 11 on, else null.
    int (*set_room)(void *, Address, std::size_t);
    int (*multiply)(void *, int, int, int, int, int, const float *, Address, int, Address, int, const float *, Address,
                    int);

    /// Opens the library, once for the process.
    static const Calls &open() {
        static const Calls calls;
        return calls;
    }

    Calls() {
        void *library = nullptr;
        for (const char *name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so.10"}) {
            library = library != nullptr ? library : dlopen(name, RTLD_NOW);
        }
        if (library == nullptr) {
            fail("absent; allowed: libcublas.so.10 to libcublas.so.13, or --products kernel");
        }
        const bool found = find_symbol(library, create, "cublasCreate_v2") &&
                           find_symbol(library, destroy, "cublasDestroy_v2") &&
                           find_symbol(library, set_stream, "cublasSetStream_v2") &&
                           find_symbol(library, multiply, "cublasSgemm_v2");
        if (!found) {
            fail("without cublasSgemm_v2; allowed: a library of CUDA 10.2 or later");
        }
        find_symbol(library, set_room, "cublasSetWorkspace_v2");
    }
};

Cublas::Cublas(Driver &driver) : calls_(&Calls::open()) {
    check("cublasCreate", calls_->create(&handle_));
    try {
        check("cublasSetStream", calls_->set_stream(handle_, driver.stream()));
        if (calls_->set_room != nullptr) {
            check("cublasSetWorkspace", calls_->set_room(handle_, driver.allocate(room), room));
        }
    } catch (...) {
        calls_->destroy(handle_);
        throw;
    }
}

Cublas::~Cublas() { calls_->destroy(handle_); }

void Cublas::multiply(Address x, Address weight, Address sums, int rows, int inputs, int outputs) {
    // The library has columns side by side, so it sees every matrix transposed: sums^T = weight^T x^T.
    const float one = 1.0f, zero = 0.0f;
    check("cublasSgemm", calls_->multiply(handle_, plain, plain, outputs, rows, inputs, &one, weight, outputs, x,
                                          inputs, &zero, sums, outputs));
}

} // namespace camera
