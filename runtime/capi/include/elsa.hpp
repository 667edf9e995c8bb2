// elsa: exact attention, softmax and linear, and scans, from C++14. Header only.
//
// Objects own their handles and destroy them. What can fail returns an elsa::status, or an elsa::result with a value;
// a compiler warns where either is dropped. The value of a failed result is never there: asking for it prints the
// message and ends the program by std::abort. With ELSA_THROW defined before this header it throws an elsa::error
// instead, and elsa::or_throw turns results and statuses into exceptions. Nothing else throws, except std::bad_alloc
// where elsa::states and messages are allocated, and elsa::stream::run what its callables throw. Both kinds of translation unit may be linked into one program.
//
// Element types are checked at compile time: float, elsa::f16, elsa::bf16, and types for which a program specialises
// elsa::element. The structs of elsa.h may be used beside the typed ones; then the caller answers for types.
//
// Threads: as in elsa.h.
//
// The headers of elsa/, one an operator, may be included alone; that of the engine has them all.
#ifndef ELSA_HPP
#define ELSA_HPP

#include "elsa.h"
#include "elsa/engine.hpp"

#endif
