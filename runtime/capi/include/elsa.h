/*
 * elsa: exact attention (softmax and linear) and scans. The headers in elsa/, one per operator, may be included
 * individually.
 *
 * Every function returns a status (except those that return a text), takes inputs first and outputs last, and writes
 * nothing if it rejects an argument. elsa_last_error returns the reason, per thread. Handles are numbers: using a
 * destroyed one is an error, never a crash.
 *
 * Extensible structs begin with their size. The functions elsa_..._init clear a struct and set its size; a program may
 * also do so itself. Zero means the default in every field, or absent, so a program sets only the fields that it needs.
 * A program compiled against an older header runs with a newer library of the same ELSA_ABI_MAJOR. An older library
 * returns ELSA_STATUS_UNSUPPORTED for nonzero fields that it does not know, and for output structs that are larger than
 * its own. A function that the library lacks is a loader error, or an undefined reference if the program is linked with
 * a static library. A library built as a slice has the functions of some features only. The features attention,
 * files, gradients, linear, series, stream and task have the names of the headers with their functions; those of
 * gradients_task.h need both gradients and task. Without attention, elsa_workspace_certified, elsa_workspace_left_out and
 * elsa_workspace_refused_blocks of common.h are absent too.
 *
 * Threads. Engines and plans may be shared. A workspace and the bound calls that use it serve one call at a time; a
 * concurrent second call returns ELSA_STATUS_BUSY. A handle may be destroyed while a call uses it: the call completes,
 * and the object is freed afterwards. Permitted calls:
 *
 *   any thread             every function, at any time
 *   a log callback         every function except elsa_log_set, which returns ELSA_STATUS_BUSY, as does the workspace of
 *                          the call that sends the message
 *   read, write and        every function
 *   unit_finished of a
 *   stream
 *   parallel_for and its   every function; the workspace of the call that it serves returns ELSA_STATUS_BUSY
 *   tasks
 *   a real-time thread     elsa_run, elsa_partial, elsa_gradients_run, elsa_linear_run, elsa_recurrence_run,
 *                          elsa_selective_run, elsa_convolution_run, elsa_bound_run, elsa_bound_set and the functions of
 *                          that name for other operators, elsa_states_merge, elsa_states_finish, elsa_workspace_left_out
 *                          and elsa_last_error: on the CPU, once the thread has made the call before, they allocate
 *                          nothing and wait only for their own workers, with two exceptions. Calls that need several
 *                          worker threads of one engine run one after another, and every call looks up its handles under
 *                          a lock that is held for some tens of instructions. No lock inherits priorities.
 *   a child of fork        every function; see elsa_engine_create for the devices that compute there
 *   a signal handler       none
 *
 * Stack. On the CPU, no function needs more than ELSA_STACK_BYTES of stack on the calling thread, and neither does a
 * task of parallel_for. A GPU driver's use comes on top. Worker threads have stacks of 256 KiB.
 *
 * The caller guarantees:
 *  - read: a pointer to a struct or an array that is read is null or valid for reads, and nothing writes there during
 *    the call;
 *  - write: a pointer to written memory is null or valid for writes, and nothing else uses it during the call;
 *  - tensors: memory named in elsa_inputs, elsa_outputs and their counterparts of other operators is as those structs
 *    describe until the run is complete;
 *  - callbacks: read, write and unit_finished of elsa_stream_data follow the rules of elsa_stream_run, and may be called
 *    until it returns.
 */
#ifndef ELSA_H
#define ELSA_H

#include "elsa/attention.h"
#include "elsa/common.h"
#include "elsa/files.h"
#include "elsa/gradients.h"
#include "elsa/gradients_task.h"
#include "elsa/linear.h"
#include "elsa/series.h"
#include "elsa/stream.h"
#include "elsa/task.h"

#endif /* ELSA_H */
