#include "prepare.hpp"

#include "error.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

// The interface that picture.cuh needs, for the host.
#define INLINE static inline

namespace camera {

INLINE float load_u8(Address a) { return *reinterpret_cast<const unsigned char *>(static_cast<std::uintptr_t>(a)); }
INLINE float load_f32(Address a) { return *reinterpret_cast<const float *>(static_cast<std::uintptr_t>(a)); }
// This file is compiled without fused multiply-adds.
INLINE float product(float a, float b) { return a * b; }

} // namespace camera

#include "../kernels/picture.cuh"

namespace camera {

void prepare(const Prepare &call) {
    const Frame &frame = *reinterpret_cast<const Frame *>(static_cast<std::uintptr_t>(call.frame));
    const int inputs = call.channels * call.patch * call.patch, patches = call.grid * call.grid;
    float values[MOST_INPUTS];
    for (int token = 0; token < 1 + patches; ++token) {
        for (int i = 0; token > 0 && i < inputs; ++i) {
            values[i] = input_of(frame, call, token - 1, i);
        }
        for (int o = 0; o < call.width; ++o) {
            const Address at = static_cast<Address>(token * static_cast<long long>(call.width) + o) * 4;
            float sum = load_f32(call.start + at);
            for (int i = 0; token > 0 && i < inputs; ++i) {
                sum += product(values[i], load_f32(call.weight + static_cast<Address>(i * call.width + o) * 4));
            }
            *reinterpret_cast<float *>(static_cast<std::uintptr_t>(call.tokens + at)) = sum;
        }
    }
}

Tables::Tables(const vision::Weights &weights) : start(weights.position), levels{1.0f / 255.0f, 0.0f} {
    for (std::size_t i = weights.width; i < start.size(); ++i) {
        start[i] += weights.patch.bias()[i % weights.width];
    }
}

Prepare sizes_of(const vision::Weights &weights) {
    Prepare call = Prepare();
    call.width = static_cast<int>(weights.width);
    call.channels = 1;
    call.patch = static_cast<int>(vision::Model::patch);
    call.grid = static_cast<int>(vision::Model::grid);
    if (weights.patch.inputs() > MOST_INPUTS) {
        throw vision::refused("model: tensor patch.weight", std::to_string(weights.patch.inputs()) + " inputs",
                              "at most " + std::to_string(MOST_INPUTS));
    }
    return call;
}

} // namespace camera
