#pragma once

#include "frame.hpp"
#include "model.hpp"

#include <vector>

namespace camera {

/// Computes the tokens of a picture as the kernel does, with the same bits. Every address is one of the host.
void prepare(const Prepare &call);

/// Tables of a network that the preparation needs: `start` and `levels` of Prepare.
struct Tables {
    explicit Tables(const vision::Weights &weights);

    std::vector<float> start, levels;
};

/// Returns the sizes of a network's preparation, without addresses. Throws vision::Error if the kernel has no room for
/// them.
Prepare sizes_of(const vision::Weights &weights);

} // namespace camera
