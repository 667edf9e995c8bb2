// elsa: exact attention (softmax and linear) and scans from C++14. Header only.
//
// Objects own their handles and destroy them. Functions that can fail return an elsa::status, or an elsa::result with a
// value; compilers warn if either is discarded. A failed result has no value: accessing it prints the message and ends
// the program by std::abort. With ELSA_THROW defined before this header, the access throws an elsa::error instead, and
// elsa::or_throw turns results and statuses into exceptions. Nothing else throws, except std::bad_alloc on allocation
// of elsa::states, elsa::task_files and messages, and exceptions of callables passed to elsa::stream::run. Translation
// units with and without ELSA_THROW may be linked into one program.
//
// Element types are checked at compile time: float, elsa::f16, elsa::bf16, and types for which a program specialises
// elsa::element. The structs of elsa.h may be used as well; the caller is then responsible for types.
//
// Thread safety is that of elsa.h.
//
// The headers in elsa/, one per operator, may be included individually; engine.hpp includes them all. The adaptors for
// tensors of other libraries are included individually only: elsa/dlpack.hpp, elsa/nvbufsurface.hpp,
// elsa/opencv_cuda.hpp and elsa/tensorrt.hpp.
#ifndef ELSA_HPP
#define ELSA_HPP

#include "elsa.h"
#include "elsa/engine.hpp"

#endif
