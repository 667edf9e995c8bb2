#include "model.hpp"

#include "error.hpp"

#include <algorithm>
#include <string>
#include <utility>

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

Norm norm_of(const SafeTensors &weights, const std::string &name, std::size_t width) {
    return Norm(weights.f32(name + ".weight", {width}), weights.f32(name + ".bias", {width}));
}

} // namespace

constexpr std::size_t Model::patch;
constexpr std::size_t Model::grid;
constexpr std::size_t Model::tokens;

Weights::Weights(const SafeTensors &file)
    : width(file.rows("norm.weight")), heads(heads_of(file, width)),
      patch(linear(file, "patch", width, Model::patch * Model::patch)),
      position(file.f32("pos", {Model::tokens, width})), norm(norm_of(file, "norm", width)),
      head(linear(file, "head", file.rows("head.weight"), width)) {
    add(position.data(), file.f32("cls", {width}).data(), width);
    for (std::size_t i = 0; i < max_blocks && file.has("blocks." + std::to_string(i) + ".norm1.weight"); ++i) {
        const std::string name = "blocks." + std::to_string(i) + ".";
        const std::size_t hidden = file.rows(name + "fc1.weight");
        Block block;
        block.norm1 = norm_of(file, name + "norm1", width);
        block.qkv = linear(file, name + "qkv", 3 * width, width);
        block.proj = linear(file, name + "proj", width, width);
        block.norm2 = norm_of(file, name + "norm2", width);
        block.fc1 = linear(file, name + "fc1", hidden, width);
        block.fc2 = linear(file, name + "fc2", width, hidden);
        blocks.push_back(block);
    }
    if (blocks.empty()) {
        throw refused("model: tensor blocks.0.norm1.weight", "absent", "at least one block");
    }
}

std::size_t Weights::widest() const noexcept {
    std::size_t widest = 0;
    for (const Block &block : blocks) {
        widest = std::max(widest, block.fc1.outputs());
    }
    return widest;
}

Model::Model(Weights weights, const AttentionOptions &options)
    : weights_(std::move(weights)), attention_(options, weights_.heads, tokens, weights_.width / weights_.heads),
      x_(tokens * weights_.width), normed_(x_.size()), mapped_(x_.size()), hidden_(tokens * weights_.widest()),
      scores_(weights_.head.outputs()), probabilities_(scores_.size()) {
    if (options.probabilities) {
        averages_.resize(weights_.blocks.size() * tokens * tokens);
    }
}

Answer Model::classify(const std::array<float, side * side> &cells) {
    for (std::size_t i = 0; i < patches_.size(); ++i) {
        const std::size_t at = i / (patch * patch), inside = i % (patch * patch);
        const std::size_t y = at / grid * patch + inside / patch, x = at % grid * patch + inside % patch;
        patches_[i] = cells[y * side + x];
    }
    std::fill(x_.begin(), x_.begin() + static_cast<std::ptrdiff_t>(weights_.width), 0.0f);
    weights_.patch.apply(patches_.data(), tokens - 1, x_.data() + weights_.width);
    add(x_.data(), weights_.position.data(), x_.size());
    return encode();
}

Answer Model::encode() {
    Answer answer;
    for (std::size_t l = 0; l < weights_.blocks.size(); ++l) {
        const Weights::Block &block = weights_.blocks[l];
        block.norm1.apply(x_.data(), tokens, normed_.data());
        block.qkv.apply(normed_.data(), tokens, attention_.qkv());
        answer.attention.add(attention_.run());
        block.proj.apply(attention_.out(), tokens, mapped_.data());
        add(x_.data(), mapped_.data(), x_.size());
        block.norm2.apply(x_.data(), tokens, normed_.data());
        block.fc1.apply(normed_.data(), tokens, hidden_.data());
        gelu(hidden_.data(), tokens * block.fc1.outputs());
        block.fc2.apply(hidden_.data(), tokens, mapped_.data());
        add(x_.data(), mapped_.data(), x_.size());
        if (!averages_.empty()) {
            float *average = &averages_[l * tokens * tokens];
            std::fill(average, average + tokens * tokens, 0.0f);
            for (std::size_t i = 0; i < attention_.probabilities().size(); ++i) {
                average[i % (tokens * tokens)] += attention_.probabilities()[i] / static_cast<float>(weights_.heads);
            }
        }
    }
    weights_.norm.apply(x_.data(), 1, normed_.data());
    weights_.head.apply(normed_.data(), 1, scores_.data());
    softmax(scores_, probabilities_);
    answer.best = largest(scores_);
    return answer;
}

std::vector<float> Model::map() const {
    std::vector<float> row(tokens), next(tokens);
    row[0] = 1.0f;
    for (std::size_t l = weights_.blocks.size(); l-- > 0;) {
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
