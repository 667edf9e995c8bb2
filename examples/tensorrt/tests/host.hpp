// A stand-in for the parts of TensorRT that a plugin uses: the registry, the logger, and sizes that are computed while
// a network is built.
#ifndef HOST_HPP
#define HOST_HPP

#include <NvInferRuntime.h>

#include <deque>
#include <string>
#include <vector>

#include "driver.hpp"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace host {

using namespace nvinfer1;

// Messages logged since the last clearing.
struct Logger final : ILogger {
    std::string said;
    void log(Severity, const char *text) noexcept override { said += std::string(text) + "\n"; }
};

struct Registry final : IPluginRegistry {
    std::vector<IPluginCreatorInterface *> creators;

    bool registerCreator(IPluginCreatorInterface &creator, const char *) noexcept override {
        return creators.push_back(&creator), true;
    }
    IPluginCreatorInterface *const *getAllCreators(int32_t *count) const noexcept override {
        return *count = static_cast<int32_t>(creators.size()), creators.data();
    }
    // Finds a node's plugin like the parser of ONNX files: by the type of the node.
    IPluginCreatorInterface *getCreator(const char *name, const char *version, const char *) noexcept override {
        for (IPluginCreatorInterface *each : creators) {
            IPluginCreator *const creator = static_cast<IPluginCreator *>(each);
            if (std::string(creator->getPluginName()) == name && std::string(creator->getPluginVersion()) == version) {
                return creator;
            }
        }
        return nullptr;
    }
    void setErrorRecorder(IErrorRecorder *) noexcept override {}
    IErrorRecorder *getErrorRecorder() const noexcept override { return nullptr; }
    bool isParentSearchEnabled() const override { return false; }
    void setParentSearchEnabled(bool) override {}
    PluginLibraryHandle loadLibrary(const char *) noexcept override { return nullptr; }
    void deregisterLibrary(PluginLibraryHandle) noexcept override {}
    bool deregisterCreator(const IPluginCreatorInterface &) noexcept override { return false; }
    IPluginResource *acquirePluginResource(const char *, IPluginResource *) noexcept override { return nullptr; }
    int32_t releasePluginResource(const char *) noexcept override { return 1; }
    IPluginCreatorInterface *const *getAllCreatorsRecursive(int32_t *count) noexcept override {
        return getAllCreators(count);
    }
};

// A known size.
struct Size final : IDimensionExpr, apiv::VDimensionExpr {
    explicit Size(int64_t value) : value_(value) { mImpl = this; }
    bool isConstant() const override { return true; }
    int64_t getConstantValue() const override { return value_; }
    bool isSizeTensor() const override { return false; }
    int64_t value_;
};

struct Sizes final : IExprBuilder, apiv::VExprBuilder {
    Sizes() { mImpl = this; }
    const IDimensionExpr *constant(int64_t value) override {
        made.emplace_back(value);
        return &made.back();
    }
    const IDimensionExpr *operation(DimensionOperation what, const IDimensionExpr &a, const IDimensionExpr &b) override {
        const int64_t x = a.getConstantValue(), y = b.getConstantValue();
        CHECK(what == DimensionOperation::kPROD || what == DimensionOperation::kFLOOR_DIV);
        return constant(what == DimensionOperation::kPROD ? x * y : x / y);
    }
    const IDimensionExpr *declareSizeTensor(int32_t, const IDimensionExpr &, const IDimensionExpr &) override {
        return nullptr;
    }
    std::deque<Size> made;
};

inline Logger &logger() {
    static Logger one;
    return one;
}
inline Registry &registry() {
    static Registry one;
    return one;
}

inline PluginTensorDesc described(DataType type, const std::vector<std::size_t> &shape) {
    PluginTensorDesc made = {};
    made.type = type;
    made.format = TensorFormat::kLINEAR;
    made.dims.nbDims = static_cast<int32_t>(shape.size());
    for (std::size_t i = 0; i < shape.size(); ++i) {
        made.dims.d[i] = static_cast<int64_t>(shape[i]);
    }
    return made;
}

// The fields of a node, which own their numbers.
class Fields {
public:
    Fields &whole(const char *name, std::vector<int32_t> values) {
        wholes_.push_back(std::move(values));
        return add(name, wholes_.back().data(), PluginFieldType::kINT32, wholes_.back().size());
    }
    Fields &real(const char *name, float value) {
        reals_.push_back(value);
        return add(name, &reals_.back(), PluginFieldType::kFLOAT32, 1);
    }
    Fields &add(const char *name, const void *data, PluginFieldType type, std::size_t length) {
        fields_.emplace_back(name, data, type, static_cast<int32_t>(length));
        return *this;
    }
    const PluginFieldCollection *get() {
        collection_.nbFields = static_cast<int32_t>(fields_.size());
        collection_.fields = fields_.data();
        return &collection_;
    }

private:
    std::deque<std::vector<int32_t>> wholes_;
    std::deque<float> reals_;
    std::vector<PluginField> fields_;
    PluginFieldCollection collection_ = {};
};

} // namespace host

#endif
