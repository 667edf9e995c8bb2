// A stand-in for TensorRT's header of the same name: what elsa/tensorrt.hpp uses of it, with the same names and types.
// NV_TENSORRT_MAJOR selects version 8 or version 10. An engine has the single binding "tokens".
#ifndef NV_INFER_H
#define NV_INFER_H

#include <cstdint>
#include <cstring>

#ifndef NV_TENSORRT_MAJOR
#define NV_TENSORRT_MAJOR 8
#endif

namespace nvinfer1 {

enum class DataType : int32_t { kFLOAT = 0, kHALF = 1, kINT8 = 2, kINT32 = 3 };

#if NV_TENSORRT_MAJOR < 10
typedef int32_t Extent;
#else
typedef int64_t Extent;
#endif

struct Dims {
    int32_t nbDims;
    Extent d[8];
};

inline bool is_tokens(const char *name) { return std::strcmp(name, "tokens") == 0; }

class ICudaEngine {
public:
    DataType type = DataType::kFLOAT;
    int32_t vectorized = -1;

#if NV_TENSORRT_MAJOR < 10
    int32_t getBindingIndex(char const *name) const noexcept { return is_tokens(name) ? 1 : -1; }
    DataType getBindingDataType(int32_t) const noexcept { return type; }
    int32_t getBindingVectorizedDim(int32_t) const noexcept { return vectorized; }
#else
    DataType getTensorDataType(char const *) const noexcept { return type; }
    int32_t getTensorVectorizedDim(char const *) const noexcept { return vectorized; }
#endif
};

class IExecutionContext {
public:
    ICudaEngine engine;
    Dims shape = {-1, {0}}, strides = {-1, {0}};
    void *address = nullptr;

    ICudaEngine const &getEngine() const noexcept { return engine; }
#if NV_TENSORRT_MAJOR < 10
    Dims getBindingDimensions(int32_t) const noexcept { return shape; }
    Dims getStrides(int32_t) const noexcept { return strides; }
#else
    Dims getTensorShape(char const *name) const noexcept { return is_tokens(name) ? shape : Dims{-1, {0}}; }
    Dims getTensorStrides(char const *) const noexcept { return strides; }
    void const *getTensorAddress(char const *) const noexcept { return address; }
#endif
};

} // namespace nvinfer1

#endif
