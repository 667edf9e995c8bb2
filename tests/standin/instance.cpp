// One kernel for the host: compiled with ELSA_HOST, SOURCE (the file, in quotes) and ENTRY (its entry point).
#include SOURCE

#include "block.h"

namespace {

template <class Parameter> constexpr int size_of(void (*)(const Parameter)) { return sizeof(Parameter); }
template <class Parameter> void call(void (*entry)(const Parameter), const void* parameter) {
  entry(*static_cast<const Parameter*>(parameter));
}

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

Kernel kernel = {TEXT(ENTRY), [](const void* parameter) { call(ENTRY, parameter); }, size_of(ENTRY), nullptr};

__attribute__((constructor(200))) void enter() {
  kernel.next = kernels;
  kernels = &kernel;
}

}  // namespace
