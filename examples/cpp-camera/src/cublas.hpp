#pragma once

#include "driver.hpp"

#include <cstddef>

namespace camera {

/// Products of matrices by cuBLAS, opened at run time. It has not been seen with NVIDIA's library yet.
class Cublas {
public:
    /// For products in the stream of the driver, whose memory it uses. Throws vision::Error if the library is absent or
    /// refuses.
    explicit Cublas(Driver &driver);
    ~Cublas();
    Cublas(const Cublas &) = delete;
    Cublas &operator=(const Cublas &) = delete;

    /// Enqueues sums = x weight, with x [rows][inputs], weight [inputs][outputs] and sums [rows][outputs], all f32.
    void multiply(Address x, Address weight, Address sums, int rows, int inputs, int outputs);

private:
    struct Calls;

    const Calls *calls_;
    void *handle_ = nullptr;
};

} // namespace camera
