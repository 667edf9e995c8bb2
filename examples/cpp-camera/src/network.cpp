#include "network.hpp"

#include "error.hpp"
#include "modules.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace camera {
namespace {

/// Threads of a block of the kernels.
const std::size_t threads = 128, warp = 32;

template <class T>
Address address_of(T *memory) {
    return static_cast<Address>(reinterpret_cast<std::uintptr_t>(memory));
}

float *pointer_to(Address address) { return reinterpret_cast<float *>(static_cast<std::uintptr_t>(address)); }

std::unique_ptr<Cublas> cublas_of(Driver &driver, Products products) {
    if (products == Products::kernel) {
        return nullptr;
    }
    try {
        return std::unique_ptr<Cublas>(new Cublas(driver));
    } catch (const vision::Error &) {
        if (products == Products::cublas) {
            throw;
        }
        return nullptr;
    }
}

} // namespace

CpuNetwork::CpuNetwork(const vision::Weights &weights, const vision::AttentionOptions &options)
    : tables_(weights), weight_(weights.patch.weight()), call_(sizes_of(weights)), model_(weights, options) {
    call_.start = address_of(tables_.start.data());
    call_.weight = address_of(weight_.data());
    call_.levels = address_of(tables_.levels.data());
    call_.tokens = address_of(model_.embedded());
}

Shared CpuNetwork::room(std::size_t bytes) {
    rooms_.emplace_back(new std::uint8_t[bytes]());
    return {rooms_.back().get(), address_of(rooms_.back().get())};
}

vision::Answer CpuNetwork::classify(const Frame &frame) {
    call_.frame = address_of(&frame);
    prepare(call_);
    return model_.encode();
}

GpuNetwork::GpuNetwork(const vision::Weights &weights, elsa::engine engine, Products products)
    : engine_(std::move(engine)), gpu_(vision::take(engine_.describe()).device), driver_(0),
      cublas_(cublas_of(driver_, products)),
      prepare_(driver_.kernel(modules::prepare, "camera_prepare__sm53")),
      normalise_(driver_.kernel(modules::normalise, "camera_normalise__sm53")),
      map_(driver_.kernel(modules::map, "camera_map__sm53")), frame_(driver_.share(sizeof(Frame))),
      answer_(driver_.share(weights.head.outputs() * sizeof(float))), scores_(weights.head.outputs()),
      probabilities_(scores_.size()) {
    const std::size_t tokens = vision::Model::tokens;
    plan_ = vision::take(engine_.plan(vision::problem_of(weights.heads, tokens, weights.width / weights.heads)));
    workspace_ = vision::take(plan_.workspace());
    vision::check(plan_.warm(workspace_));
    record(weights);
}

GpuNetwork::~GpuNetwork() {
    // The graph uses the workspace, which is destroyed later.
    driver_.destroy_graph(graph_);
}

Address GpuNetwork::put(const std::vector<float> &values) {
    const std::size_t bytes = values.size() * sizeof(float);
    const Address at = driver_.allocate(bytes);
    driver_.upload(at, values.data(), bytes);
    return at;
}

Normalise GpuNetwork::normalise(const vision::Norm &norm, Address x, Address y) {
    Normalise call = Normalise();
    call.x = x;
    call.y = y;
    call.weight = put(norm.weight());
    call.bias = put(norm.bias());
    call.width = static_cast<int>(norm.weight().size());
    call.epsilon = vision::norm_epsilon;
    return call;
}

Map GpuNetwork::map(const vision::Linear &linear, Address x, Address y, std::size_t rows, int flags) {
    Map call = Map();
    call.x = x;
    call.y = y;
    call.weight = put(linear.weight());
    call.bias = put(linear.bias());
    call.rows = static_cast<int>(rows);
    call.inputs = static_cast<int>(linear.inputs());
    call.outputs = static_cast<int>(linear.outputs());
    call.flags = flags;
    call.sums = sums_;
    return call;
}

void GpuNetwork::launch(const Normalise &call, std::size_t rows) { driver_.launch(normalise_, rows, warp, call); }

void GpuNetwork::launch(const Map &call) {
    if (cublas_) {
        cublas_->multiply(call.x, call.weight, call.sums, call.rows, call.inputs, call.outputs);
    }
    const std::size_t outputs = static_cast<std::size_t>(call.rows) * static_cast<std::size_t>(call.outputs);
    driver_.launch(map_, (outputs + threads - 1) / threads, threads, call);
}

void GpuNetwork::record(const vision::Weights &weights) {
    struct Block {
        Normalise norm1;
        Map qkv, proj;
        Normalise norm2;
        Map fc1, fc2;
    };
    const std::size_t tokens = vision::Model::tokens, width = weights.width;
    const auto rows = [&](std::size_t length) { return driver_.allocate(tokens * length * sizeof(float)); };
    const Address x = rows(width), normed = rows(width), qkv = rows(3 * width), attended = rows(width);
    const Address hidden = rows(weights.widest());
    if (cublas_) {
        sums_ = rows(std::max({3 * width, weights.widest(), weights.head.outputs()}));
    }
    const Tables tables(weights);
    Prepare first = sizes_of(weights);
    first.frame = frame_.address;
    first.start = put(tables.start);
    first.weight = put(weights.patch.weight());
    first.levels = put(tables.levels);
    first.tokens = x;
    std::vector<Block> blocks;
    for (const vision::Weights::Block &block : weights.blocks) {
        blocks.push_back({normalise(block.norm1, x, normed), map(block.qkv, normed, qkv, tokens, 0),
                          map(block.proj, attended, x, tokens, MAP_ADD), normalise(block.norm2, x, normed),
                          map(block.fc1, normed, hidden, tokens, MAP_GELU),
                          map(block.fc2, hidden, x, tokens, MAP_ADD)});
    }
    const Normalise norm = normalise(weights.norm, x, normed);
    const Map head = map(weights.head, normed, answer_.address, 1, 0);
    const elsa::inputs<float> inputs = vision::rows_of(pointer_to(qkv), tokens, width);
    elsa::outputs<float> outputs;
    outputs.out = {pointer_to(attended), tokens * width};

    // Memory cannot be allocated from here on.
    driver_.record();
    driver_.launch(prepare_, tokens, threads, first);
    for (const Block &block : blocks) {
        launch(block.norm1, tokens);
        launch(block.qkv);
        vision::check(plan_.run_device(workspace_, inputs, outputs, driver_.stream()));
        launch(block.proj);
        launch(block.norm2, tokens);
        launch(block.fc1);
        launch(block.fc2);
    }
    // The class token is the first row.
    launch(norm, 1);
    launch(head);
    graph_ = driver_.recorded(nodes_);
}

vision::Answer GpuNetwork::classify(const Frame &frame) {
    std::memcpy(frame_.data, &frame, sizeof frame);
    driver_.launch_graph(graph_);
    driver_.wait();
    std::memcpy(scores_.data(), answer_.data, scores_.size() * sizeof(float));
    vision::softmax(scores_, probabilities_);
    vision::Answer answer;
    answer.best = vision::largest(scores_);
    answer.attention.backend = "cuda";
    return answer;
}

vision::AttentionOptions on_cpu(vision::AttentionOptions options) {
    for (const char *name : {"avx512", "avx2", "neon"}) {
        options.backend = name;
        try {
            vision::create_engine(options);
            return options;
        } catch (const vision::Error &) {
            // This machine lacks the instruction set.
        }
    }
    options.backend = "scalar";
    return options;
}

std::unique_ptr<Network> network_of(const vision::Weights &weights, const vision::AttentionOptions &options,
                                    Products products, std::string &reason) {
    vision::AttentionOptions chosen = options;
    if (options.backend == "auto" || options.backend == "cuda") {
        elsa::engine engine = vision::create_engine(options);
        if (vision::take(engine.describe()).backend == ELSA_BACKEND_CUDA) {
            try {
                return std::unique_ptr<Network>(new GpuNetwork(weights, std::move(engine), products));
            } catch (const vision::Error &error) {
                if (!options.fallback) {
                    throw;
                }
                reason = error.what();
            }
            chosen = on_cpu(options);
        } else if (options.backend == "cuda") {
            chosen = on_cpu(options);
        }
    }
    return std::unique_ptr<Network>(new CpuNetwork(weights, chosen));
}

} // namespace camera
