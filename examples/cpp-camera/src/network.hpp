#pragma once

#include "cublas.hpp"
#include "driver.hpp"
#include "model.hpp"
#include "prepare.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace camera {

/// A network that classifies pictures in memory of its own: on the CPU, or on a GPU.
class Network {
public:
    virtual ~Network() = default;

    /// Allocates memory for pictures, which the network reads in place. It is freed with the network. Throws
    /// vision::Error.
    virtual Shared room(std::size_t bytes) = 0;

    /// Classifies a picture in a room of this network. Allocates nothing, and copies nothing between host and device.
    /// Throws vision::Error.
    virtual vision::Answer classify(const Frame &frame) = 0;

    /// Return the scores and the probabilities of the last picture.
    virtual const std::vector<float> &scores() const noexcept = 0;
    virtual const std::vector<float> &probabilities() const noexcept = 0;

    /// Returns the name of the GPU; empty on the CPU.
    virtual std::string gpu() const { return std::string(); }
    /// Returns the work of the graph that a picture takes on a GPU.
    virtual Nodes nodes() const noexcept { return Nodes(); }
    /// Return how often memory of the driver has been allocated, and how often the host and the device have exchanged
    /// data.
    virtual std::size_t allocations() const noexcept { return 0; }
    virtual std::size_t copies() const noexcept { return 0; }
};

/// The network on the CPU.
class CpuNetwork : public Network {
public:
    CpuNetwork(const vision::Weights &weights, const vision::AttentionOptions &options);

    Shared room(std::size_t bytes) override;
    vision::Answer classify(const Frame &frame) override;
    const std::vector<float> &scores() const noexcept override { return model_.scores(); }
    const std::vector<float> &probabilities() const noexcept override { return model_.probabilities(); }

private:
    Tables tables_;
    std::vector<float> weight_;
    Prepare call_;
    vision::Model model_;
    std::vector<std::unique_ptr<std::uint8_t[]>> rooms_;
};

/// What computes the products of linear maps on a GPU: the example's kernel, or cuBLAS, or cuBLAS where it is present.
enum class Products { kernel, cublas, present };

/// The network on a GPU: a graph of kernels in one stream. A launch reads the picture and writes the scores in memory
/// of the host, so it takes no copy, and the host waits once, for the scores.
class GpuNetwork : public Network {
public:
    /// For an engine that computes on a GPU.
    GpuNetwork(const vision::Weights &weights, elsa::engine engine, Products products);
    ~GpuNetwork() override;

    Shared room(std::size_t bytes) override { return driver_.share(bytes); }
    vision::Answer classify(const Frame &frame) override;
    const std::vector<float> &scores() const noexcept override { return scores_; }
    const std::vector<float> &probabilities() const noexcept override { return probabilities_; }

    std::string gpu() const override { return gpu_; }
    Nodes nodes() const noexcept override { return nodes_; }
    std::size_t allocations() const noexcept override { return driver_.allocations(); }
    std::size_t copies() const noexcept override { return driver_.copies(); }

private:
    Address put(const std::vector<float> &values);
    Normalise normalise(const vision::Norm &norm, Address x, Address y);
    Map map(const vision::Linear &linear, Address x, Address y, std::size_t rows, int flags);
    void launch(const Normalise &call, std::size_t rows);
    void launch(const Map &call);
    void record(const vision::Weights &weights);

    elsa::engine engine_;
    std::string gpu_;
    Driver driver_;
    /// Null if the kernel computes the products.
    std::unique_ptr<Cublas> cublas_;
    void *prepare_, *normalise_, *map_;
    Shared frame_, answer_;
    /// Products of a map, with cuBLAS.
    Address sums_ = 0;
    elsa::plan<float> plan_;
    elsa::workspace workspace_;
    Nodes nodes_;
    void *graph_ = nullptr;
    std::vector<float> scores_, probabilities_;
};

/// Returns the options with the best back end of this machine's CPU.
vision::AttentionOptions on_cpu(vision::AttentionOptions options);

/// Creates the network on the back end of the options. With `fallback`, the CPU takes the place of a GPU that cannot be
/// used; `reason` is then why, unless the library has reported it. Throws vision::Error.
std::unique_ptr<Network> network_of(const vision::Weights &weights, const vision::AttentionOptions &options,
                                    Products products, std::string &reason);

} // namespace camera
