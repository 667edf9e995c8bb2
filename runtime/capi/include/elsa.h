/*
 * elsa: exact attention, softmax and linear, and scans. The headers of elsa/, one an operator, may be included alone.
 *
 * Every function returns a status (but for those that return a text), takes what it reads first and what it writes
 * last, and writes nothing where it refuses an argument. elsa_last_error returns the reason, per thread. Handles are
 * numbers: one that was destroyed is an error, and never a crash.
 *
 * Structs that may grow begin with their size. The functions elsa_..._init clear a struct and set its size, and so
 * may anybody. Zero is the default in every field, or says that something is absent, so a program names only what it
 * wants. A program that was compiled against an older header runs with a newer library of the same ELSA_ABI_MAJOR. Of
 * a newer header, an older library refuses with ELSA_STATUS_UNSUPPORTED a field that it does not know, unless it is zero,
 * and a struct to be written that has room for more than it knows; a function that it lacks is an error of the loader.
 *
 * Threads. Engines and plans may be shared. A workspace, and the frames that are bound to it, serve one call at a time;
 * a second one returns ELSA_STATUS_BUSY. A handle may be destroyed while a call uses it: the call completes, and the
 * object is freed after it. Who may call what:
 *
 *   any thread             every function, at any time
 *   a log callback         every function but elsa_log_set, which returns ELSA_STATUS_BUSY, as does the workspace of the
 *                          call that sends the message
 *   read and write of a    every function
 *   stream
 *   parallel_for, and      every function; the workspace of the call that it serves returns ELSA_STATUS_BUSY
 *   what it runs
 *   a real-time thread     elsa_run, elsa_partial, elsa_linear_run, elsa_recurrence_run, elsa_selective_run,
 *                          elsa_convolution_run, elsa_bound_run, elsa_states_merge, elsa_states_finish and
 *                          elsa_last_error: on the CPU, once the thread has made the call before, they allocate nothing
 *                          and wait for nothing but their own workers. Two exceptions: calls that need several standing
 *                          threads of one engine take turns, and every call looks its handles up under a lock that is
 *                          held for some tens of instructions. No lock inherits priorities.
 *   a child of fork        every function; elsa_engine_create says what computes there
 *   a signal handler       none
 *
 * Stack. On the CPU no function needs more than ELSA_STACK_BYTES of stack where it is called, nor does a share that
 * parallel_for is handed. A GPU's driver needs what it needs. Standing threads have stacks of 256 KiB.
 *
 * What the caller promises:
 *  - read: a pointer to a struct or an array that is read is null or valid for reads, and nobody writes there during
 *    the call;
 *  - write: a pointer to what is written is null or valid for writes, and nobody else uses it during the call;
 *  - tensors: memory named in elsa_inputs, elsa_outputs and their like of other operators is as those structs describe until
 *    the run is done;
 *  - callbacks: read and write of elsa_stream_data keep to what elsa_stream_run says, and may be called until it returns.
 */
#ifndef ELSA_H
#define ELSA_H

#include "elsa/attention.h"
#include "elsa/common.h"
#include "elsa/linear.h"
#include "elsa/series.h"
#include "elsa/stream.h"

#endif /* ELSA_H */
