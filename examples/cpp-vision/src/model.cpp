#include "model.hpp"

#include "error.hpp"

#include <algorithm>
#include <string>

namespace vision {
namespace {

/// Largest number of blocks in a network.
const std::size_t max_blocks = 64;

std::size_t heads_of(const SafeTensors &weights, std::size_t width) {
    const std::size_t heads = weights.number("heads");
    if (width % heads != 0) {
        throw refused("model: metadata heads", std::to_string(heads), "a divisor of " + std::to_string(width));
    }
    return heads;
}

Linear linear(const SafeTensors &weights, const std::string &name, std::size_t outputs, std::size_t inputs) {
    return Linear(weights.f32(name + ".weight", {outputs, inputs}), weights.f32(name + ".bias", {outputs}));
}

Norm norm(const SafeTensors &weights, const std::string &name, std::size_t width) {
    return Norm(weights.f32(name + ".weight", {width}), weights.f32(name + ".bias", {width}));
}

} // namespace

constexpr std::size_t Model::patch;
constexpr std::size_t Model::grid;
constexpr std::size_t Model::tokens;

Model::Model(const SafeTensors &weights, const AttentionOptions &options)
    : width_(weights.rows("norm.weight")), heads_(heads_of(weights, width_)),
      patch_map_(linear(weights, "patch", width_, patch * patch)), position_(weights.f32("pos", {tokens, width_})),
      norm_(norm(weights, "norm", width_)), head_(linear(weights, "head", weights.rows("head.weight"), width_)),
      attention_(options, heads_, tokens, width_ / heads_), x_(tokens * width_), normed_(tokens * width_),
      mapped_(tokens * width_), scores_(weights.rows("head.weight")), probabilities_(scores_.size()) {
    add(position_.data(), weights.f32("cls", {width_}).data(), width_);
    std::size_t widest = 0;
    for (std::size_t i = 0; i < max_blocks && weights.has("blocks." + std::to_string(i) + ".norm1.weight"); ++i) {
        const std::string name = "blocks." + std::to_string(i) + ".";
        Block block;
        block.hidden = weights.rows(name + "fc1.weight");
        block.norm1 = norm(weights, name + "norm1", width_);
        block.qkv = linear(weights, name + "qkv", 3 * width_, width_);
        block.proj = linear(weights, name + "proj", width_, width_);
        block.norm2 = norm(weights, name + "norm2", width_);
        block.fc1 = linear(weights, name + "fc1", block.hidden, width_);
        block.fc2 = linear(weights, name + "fc2", width_, block.hidden);
        widest = std::max(widest, block.hidden);
        blocks_.push_back(block);
    }
    if (blocks_.empty()) {
        throw refused("model: tensor blocks.0.norm1.weight", "absent", "at least one block");
    }
    hidden_.resize(tokens * widest);
    if (options.probabilities) {
        averages_.resize(blocks_.size() * tokens * tokens);
    }
}

Answer Model::classify(const std::array<float, side * side> &cells) {
    for (std::size_t i = 0; i < patches_.size(); ++i) {
        const std::size_t at = i / (patch * patch), inside = i % (patch * patch);
        const std::size_t y = at / grid * patch + inside / patch, x = at % grid * patch + inside % patch;
        patches_[i] = cells[y * side + x];
    }
    std::fill(x_.begin(), x_.begin() + static_cast<std::ptrdiff_t>(width_), 0.0f);
    patch_map_.apply(patches_.data(), tokens - 1, x_.data() + width_);
    add(x_.data(), position_.data(), x_.size());
    Answer answer;
    for (std::size_t l = 0; l < blocks_.size(); ++l) {
        const Block &block = blocks_[l];
        block.norm1.apply(x_.data(), tokens, normed_.data());
        block.qkv.apply(normed_.data(), tokens, attention_.qkv());
        answer.attention.add(attention_.run());
        block.proj.apply(attention_.out(), tokens, mapped_.data());
        add(x_.data(), mapped_.data(), x_.size());
        block.norm2.apply(x_.data(), tokens, normed_.data());
        block.fc1.apply(normed_.data(), tokens, hidden_.data());
        gelu(hidden_.data(), tokens * block.hidden);
        block.fc2.apply(hidden_.data(), tokens, mapped_.data());
        add(x_.data(), mapped_.data(), x_.size());
        if (!averages_.empty()) {
            float *average = &averages_[l * tokens * tokens];
            std::fill(average, average + tokens * tokens, 0.0f);
            for (std::size_t i = 0; i < attention_.probabilities().size(); ++i) {
                average[i % (tokens * tokens)] += attention_.probabilities()[i] / static_cast<float>(heads_);
            }
        }
    }
    norm_.apply(x_.data(), 1, normed_.data());
    head_.apply(normed_.data(), 1, scores_.data());
    softmax(scores_, probabilities_);
    answer.best = static_cast<std::size_t>(std::max_element(scores_.begin(), scores_.end()) - scores_.begin());
    return answer;
}

std::vector<float> Model::map() const {
    std::vector<float> row(tokens), next(tokens);
    row[0] = 1.0f;
    for (std::size_t l = blocks_.size(); l-- > 0;) {
        const float *average = &averages_[l * tokens * tokens];
        for (std::size_t j = 0; j < tokens; ++j) {
            next[j] = 0.5f * row[j];
            for (std::size_t i = 0; i < tokens; ++i) {
                next[j] += 0.5f * row[i] * average[i * tokens + j];
            }
        }
        row.swap(next);
    }
    return std::vector<float>(row.begin() + 1, row.end());
}

} // namespace vision
