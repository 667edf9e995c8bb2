// A stand-in for cuBLAS on the stand-in driver: products of plain matrices, computed by the host in the order of a
// stream.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <dlfcn.h>

namespace {

typedef unsigned long long Address;
typedef int (*Enqueue)(void *, void (*)(void *), void *);

/// What a device address is above the host's, in the stand-in driver.
const Address offset = 1ull << 48;

struct Product {
    int m, n, k;
    const float *a, *b;
    float *c;
};

struct Handle {
    void *stream = nullptr;
    Enqueue enqueue = nullptr;
    std::vector<std::unique_ptr<Product>> products;
};

float *host(Address at) { return reinterpret_cast<float *>(static_cast<std::uintptr_t>(at - offset)); }

/// Columns are side by side: c[i + m j] is the sum over l of a[i + m l] b[l + k j].
void compute(void *data) {
    const Product &product = *static_cast<const Product *>(data);
    for (int j = 0; j < product.n; ++j) {
        for (int i = 0; i < product.m; ++i) {
            float sum = 0.0f;
            for (int l = 0; l < product.k; ++l) {
                sum += product.a[i + product.m * l] * product.b[l + product.k * j];
            }
            product.c[i + product.m * j] = sum;
        }
    }
}

} // namespace

extern "C" {

int cublasCreate_v2(Handle **handle) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    *handle = new Handle;
    (*handle)->enqueue = driver == nullptr ? nullptr : reinterpret_cast<Enqueue>(dlsym(driver, "cuLaunchHostFunc"));
    return (*handle)->enqueue == nullptr;
}

int cublasDestroy_v2(Handle *handle) {
    delete handle;
    return 0;
}

int cublasSetStream_v2(Handle *handle, void *stream) {
    handle->stream = stream;
    return 0;
}

int cublasSetWorkspace_v2(Handle *, Address room, std::size_t bytes) { return room == 0 || bytes == 0; }

int cublasSgemm_v2(Handle *handle, int of_a, int of_b, int m, int n, int k, const float *alpha, Address a, int step_a,
                   Address b, int step_b, const float *beta, Address c, int step_c) {
    if (of_a != 0 || of_b != 0 || *alpha != 1.0f || *beta != 0.0f || step_a != m || step_b != k || step_c != m) {
        return 7;
    }
    handle->products.emplace_back(new Product{m, n, k, host(a), host(b), host(c)});
    return handle->enqueue(handle->stream, compute, handle->products.back().get());
}

} // extern "C"
