// elsa: bindings of an execution context of TensorRT, used in place. Without TensorRT's header (version 8.2 or later),
// this header is empty.
#ifndef ELSA_TENSORRT_HPP
#define ELSA_TENSORRT_HPP

#ifdef __has_include
#if __has_include(<NvInfer.h>)

#include "strided.hpp"

#include <NvInfer.h>

#include <string>

namespace elsa {
inline namespace ELSA_NAMESPACE {

// Returns the binding `name` of a context: its shape and strides in the context, and its address. Up to TensorRT 9 the
// address is the one in bindings, the array that is passed to enqueueV2; from TensorRT 10 on it is the one that
// setTensorAddress has set, and the argument bindings does not exist. The 2 to 4 axes of the binding are the last axes
// of layout: ELSA_LAYOUT_BHND or ELSA_LAYOUT_BNHD. Two axes are tokens and elements of a head. The last axis must be
// dense. `argument` is the name of the tensor in errors.
template <class T>
result<strided<T>> from_tensorrt(const char *argument, const nvinfer1::IExecutionContext &context, const char *name,
#if NV_TENSORRT_MAJOR < 10
                                 void *const *bindings,
#endif
                                 elsa_layout layout = ELSA_LAYOUT_BHND) {
    const nvinfer1::ICudaEngine &engine = context.getEngine();
#if NV_TENSORRT_MAJOR < 10
    const int index = engine.getBindingIndex(name);
    if (index < 0) {
        return detail::refused(argument, std::string("binding ") + name + "; allowed: a binding of the engine");
    }
    const nvinfer1::Dims shape = context.getBindingDimensions(index), strides = context.getStrides(index);
    const int type = static_cast<int>(engine.getBindingDataType(index)), packed = engine.getBindingVectorizedDim(index);
    void *data = bindings[index];
#else
    const nvinfer1::Dims shape = context.getTensorShape(name), strides = context.getTensorStrides(name);
    if (shape.nbDims < 0) {
        return detail::refused(argument, std::string("binding ") + name + "; allowed: a binding of the engine");
    }
    const int type = static_cast<int>(engine.getTensorDataType(name)), packed = engine.getTensorVectorizedDim(name);
    void *data = const_cast<void *>(context.getTensorAddress(name));
#endif
    // kFLOAT, kHALF and kBF16; older versions lack the last name.
    const int wanted = element<T>::dtype == ELSA_DTYPE_F32 ? 0 : element<T>::dtype == ELSA_DTYPE_F16 ? 1 : 7;
    if (type != wanted || packed >= 0) {
        return detail::refused(argument, "elements of data type " + std::to_string(type) +
                                             (packed < 0 ? "" : " in a vectorised format") + "; allowed: " +
                                             std::to_string(wanted) + " in the format kLINEAR");
    }
    return detail::axes_of<T>(argument, data, shape.nbDims, shape.d, strides.d, layout);
}

} // inline namespace
} // namespace elsa

#endif
#endif
#endif
