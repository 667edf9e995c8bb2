// adaptors.cpp with the functions of TensorRT 10, and with ELSA_THROW.
#define NV_TENSORRT_MAJOR 10
#define ELSA_THROW
#include "adaptors.cpp"
