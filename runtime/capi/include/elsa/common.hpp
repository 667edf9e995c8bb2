// elsa: declarations shared by all operators; see elsa.hpp.
#ifndef ELSA_COMMON_HPP
#define ELSA_COMMON_HPP

#include "common.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef ELSA_THROW
#include <stdexcept>
#endif

// Marks a type whose values must not be discarded.
#if defined(__clang__) && __cplusplus < 201703L
#define ELSA_NODISCARD __attribute__((warn_unused_result))
#elif defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 7) || __cplusplus >= 201703L
#define ELSA_NODISCARD [[nodiscard]]
#else
#define ELSA_NODISCARD
#endif

// Translation units with and without ELSA_THROW use distinct types.
#ifdef ELSA_THROW
#define ELSA_NAMESPACE throwing
#else
#define ELSA_NAMESPACE plain
#endif

namespace elsa {
inline namespace ELSA_NAMESPACE {

// Text of a status, as one line.
inline const char *status_text(elsa_status code) noexcept { return elsa_status_text(code); }

// Status of a call, with its message.
class ELSA_NODISCARD status {
public:
    status() noexcept : code_(ELSA_STATUS_OK) {}
    // Copies the message of the call that has just failed on this thread.
    explicit status(elsa_status code) : code_(code), message_(code == ELSA_STATUS_OK ? "" : elsa_last_error()) {}
    status(elsa_status code, std::string message) : code_(code), message_(std::move(message)) {}

    bool ok() const noexcept { return code_ == ELSA_STATUS_OK; }
    explicit operator bool() const noexcept { return ok(); }
    elsa_status code() const noexcept { return code_; }
    const std::string &message() const noexcept { return message_; }

private:
    elsa_status code_;
    std::string message_;
};

#ifdef ELSA_THROW
// Exception for a failed call.
class error : public std::runtime_error {
public:
    explicit error(const status &why) : std::runtime_error(why.message()), code_(why.code()) {}
    elsa_status code() const noexcept { return code_; }

private:
    elsa_status code_;
};
#endif

namespace detail {

// Handles access to the value of a failed call: throws or aborts.
[[noreturn]] inline void no_value(const elsa::status &why) {
#ifdef ELSA_THROW
    throw error(why);
#else
    std::fprintf(stderr, "elsa: the value of a failed call was used: %s\n", why.message().c_str());
    std::abort();
#endif
}

} // namespace detail

// Value of a call, or the status of its failure.
template <class T>
class ELSA_NODISCARD result {
public:
    result(T value) : value_(std::move(value)) {}
    result(elsa::status why)
        : status_(why.ok() ? elsa::status(ELSA_STATUS_ARGUMENT, "result: neither a value nor a failure") : std::move(why)) {}

    bool ok() const noexcept { return status_.ok(); }
    explicit operator bool() const noexcept { return ok(); }
    const elsa::status &status() const noexcept { return status_; }
    const std::string &message() const noexcept { return status_.message(); }

    // Returns the value. On a failed result it ends the program, or throws with ELSA_THROW.
    T &value() & { return there(), value_; }
    const T &value() const & { return there(), value_; }
    T value() && { return there(), std::move(value_); }
    T &operator*() & { return value(); }
    const T &operator*() const & { return value(); }
    T operator*() && { return std::move(*this).value(); }
    T *operator->() { return &value(); }
    const T *operator->() const { return &value(); }

private:
    void there() const {
        if (!status_.ok()) {
            detail::no_value(status_);
        }
    }

    elsa::status status_;
    T value_{};
};

#ifdef ELSA_THROW
// Throws the error of a failed call.
inline void or_throw(const status &done) {
    if (!done.ok()) {
        throw error(done);
    }
}

// Returns the value, or throws the error.
template <class T>
T or_throw(result<T> outcome) {
    return std::move(outcome).value();
}
#endif

// IEEE 754 half-precision element.
struct f16 {
    std::uint16_t bits;
};

// bfloat16 element.
struct bf16 {
    std::uint16_t bits;
};

// Maps an element type to its type in the library. A program may specialise it for its own type with the same
// bits: `namespace elsa { template <> struct element<Eigen::half> : element<f16> {}; }`.
template <class T>
struct element {
    static constexpr bool tensor = false, mask = false;
};
template <>
struct element<float> {
    static constexpr bool tensor = true, mask = true;
    static constexpr elsa_dtype dtype = ELSA_DTYPE_F32;
    static constexpr elsa_mask_kind mask_kind = ELSA_MASK_F32;
};
template <>
struct element<f16> {
    static constexpr bool tensor = true, mask = true;
    static constexpr elsa_dtype dtype = ELSA_DTYPE_F16;
    static constexpr elsa_mask_kind mask_kind = ELSA_MASK_F16;
};
template <>
struct element<bf16> {
    static constexpr bool tensor = true, mask = true;
    static constexpr elsa_dtype dtype = ELSA_DTYPE_BF16;
    static constexpr elsa_mask_kind mask_kind = ELSA_MASK_BF16;
};
template <>
struct element<bool> {
    static constexpr bool tensor = false, mask = true;
    static constexpr elsa_mask_kind mask_kind = ELSA_MASK_BOOL;
};
template <>
struct element<unsigned char> : element<bool> {};

namespace detail {

// Element type of the pointer that a container's data() returns; const for read-only access.
template <class C>
using pointee = std::remove_pointer_t<decltype(std::declval<C &>().data())>;

// Holds for containers of contiguous T: std::vector, std::array, std::span, elsa::buffer.
template <class C, class T, class = void>
struct holds : std::false_type {};
template <class C, class T>
struct holds<C, T, decltype(static_cast<void>(std::declval<C &>().size()), static_cast<void>(std::declval<C &>().data()))>
    : std::is_same<pointee<C>, T> {};

template <class C, class T>
using reads = std::enable_if_t<holds<C, T>::value || holds<C, const T>::value>;

template <class T>
struct check_tensor {
    static_assert(element<T>::tensor, "elsa: elements are float, elsa::f16 or elsa::bf16, or elsa::element is specialised");
};

template <class T, class G>
struct check_gates {
    static_assert(element<G>::tensor, "elsa: decay and beta are float, elsa::f16 or elsa::bf16");
    static_assert(element<G>::dtype == ELSA_DTYPE_F32 || element<G>::dtype == element<T>::dtype,
                  "elsa: decay and beta are float, or of the type of the tensors");
};

// Owning handle, destroyed with its owner.
template <class Handle, elsa_status (*Destroy)(Handle)>
class owner {
public:
    owner() noexcept : handle_() {}
    explicit owner(Handle handle) noexcept : handle_(handle) {}
    owner(owner &&other) noexcept : handle_(other.release()) {}
    owner &operator=(owner &&other) noexcept {
        if (this != &other) {
            reset();
            handle_ = other.release();
        }
        return *this;
    }
    owner(const owner &) = delete;
    owner &operator=(const owner &) = delete;
    ~owner() { reset(); }

    Handle get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_.id != 0; }
    // Releases ownership and returns the handle.
    Handle release() noexcept {
        Handle handle = handle_;
        handle_ = Handle();
        return handle;
    }
    void reset() noexcept {
        if (handle_.id != 0) {
            Destroy(release());
        }
    }

private:
    Handle handle_;
};

// Returns the value written by a call, or its status.
template <class Value, class Made>
result<Value> made(elsa_status code, Made &&value) {
    if (code != ELSA_STATUS_OK) {
        return status(code);
    }
    return Value(std::forward<Made>(value));
}

} // namespace detail

template <class T>
class output;

// Read-only memory of a call: elements of type T. Constructed from a pointer and a count, or from a container of
// contiguous T, which must not move until the run is complete. Default-constructed, it is an absent tensor.
template <class T>
class input {
public:
    input() noexcept : memory_() {}
    input(const T *data, std::size_t count) noexcept : memory_() {
        memory_.data = data;
        memory_.bytes = count > std::numeric_limits<std::size_t>::max() / sizeof(T)
                            ? std::numeric_limits<std::size_t>::max()
                            : count * sizeof(T);
    }
    template <class C, class = detail::reads<const C, T>>
    input(const C &container) noexcept : input(container.data(), container.size()) {}
    template <std::size_t N>
    input(const T (&array)[N]) noexcept : input(array, N) {}
    // Reads memory that an earlier call wrote.
    input(const output<T> &written) noexcept : memory_() {
        memory_.data = written.get().data;
        memory_.bytes = written.get().bytes;
    }
    // Rejects a temporary vector, which would be destroyed at the end of the statement.
    template <class A>
    input(std::vector<T, A> &&) = delete;

    const elsa_input &get() const noexcept { return memory_; }

private:
    elsa_input memory_;
};

// Writable memory of a call; the rules of elsa::input apply.
template <class T>
class output {
public:
    output() noexcept : memory_() {}
    output(T *data, std::size_t count) noexcept : memory_() {
        const input<T> checked(data, count);
        memory_.data = data;
        memory_.bytes = checked.get().bytes;
    }
    template <class C, class = std::enable_if_t<detail::holds<C, T>::value>>
    output(C &container) noexcept : output(container.data(), container.size()) {}
    template <class C, class = std::enable_if_t<detail::holds<const C, T>::value>>
    output(const C &view) noexcept : output(view.data(), view.size()) {}
    template <std::size_t N>
    output(T (&array)[N]) noexcept : output(array, N) {}

    const elsa_output &get() const noexcept { return memory_; }

private:
    elsa_output memory_;
};

// Reinterprets elements as T of the same size: elsa::as<elsa::f16>(words, count).
template <class T, class U>
input<T> as(const U *data, std::size_t count) noexcept {
    static_assert(sizeof(T) == sizeof(U) && std::is_trivially_copyable<U>::value, "elsa: elements of another size");
    return input<T>(reinterpret_cast<const T *>(data), count);
}
// Reinterprets writable elements as T of the same size.
template <class T, class U, class = std::enable_if_t<!std::is_const<U>::value>>
output<T> as(U *data, std::size_t count) noexcept {
    static_assert(sizeof(T) == sizeof(U) && std::is_trivially_copyable<U>::value, "elsa: elements of another size");
    return output<T>(reinterpret_cast<T *>(data), count);
}

// List of 64-bit integers. Default-constructed, it is absent.
class integers {
public:
    integers() noexcept : list_() {}
    template <class I>
    integers(const I *data, std::size_t count) noexcept : list_() {
        static_assert(std::is_integral<I>::value && std::is_signed<I>::value && sizeof(I) == 8,
                      "elsa: lists are of std::int64_t");
        list_.data = reinterpret_cast<const std::int64_t *>(data);
        list_.count = count;
    }
    template <class C, class = detail::pointee<const C>>
    integers(const C &container) noexcept : integers(container.data(), container.size()) {}
    template <std::size_t N>
    integers(const std::int64_t (&array)[N]) noexcept : integers(array, N) {}

    const elsa_integers &get() const noexcept { return list_; }

private:
    elsa_integers list_;
};

// Options of an engine, initially the defaults.
struct engine_options : elsa_engine_options {
    engine_options() noexcept : elsa_engine_options() { elsa_engine_options_init(this); }

    // Computes on threads of the host: pool(workers, task) calls task(worker) once for each worker below workers, on
    // any threads, and returns when all calls have returned. pool must not throw, and must outlive the engine and
    // everything created from it.
    template <class Pool>
    engine_options &lend(Pool &pool) noexcept {
        parallel_user = &pool;
        parallel_for = [](void *user, std::size_t workers, elsa_parallel_task task, void *context) noexcept {
            (*static_cast<Pool *>(user))(workers, [task, context](std::size_t worker) { task(context, worker); });
        };
        return *this;
    }
};

// Report for a run to fill.
struct report : elsa_report {
    report() noexcept : elsa_report() { elsa_report_init(this); }
};

// Returns the view of a tensor [batch, heads, tokens, dim] stored in layout; fails as elsa_view_init does.
inline result<elsa_view> view(elsa_layout layout, std::size_t batch, std::size_t heads, std::size_t tokens,
                              std::size_t dim) {
    elsa_view v = elsa_view();
    const elsa_status code = elsa_view_init(layout, batch, heads, tokens, dim, &v);
    if (code != ELSA_STATUS_OK) {
        return status(code);
    }
    return v;
}

// Returns the number of elements that a view spans, from its first to its last; 0 if an axis is empty or
// the count overflows.
inline std::size_t extent(const elsa_view &view) noexcept {
    const std::size_t most = std::numeric_limits<std::size_t>::max();
    std::size_t last = 0;
    for (int axis = 0; axis < 4; ++axis) {
        const std::size_t steps = view.shape[axis] - 1, stride = view.strides[axis];
        if (view.shape[axis] == 0 || (steps != 0 && stride > (most - 1 - last) / steps)) {
            return 0;
        }
        last += steps * stride;
    }
    return last + 1;
}

// Blocks of rows of a run on Tensor Cores: how many the guard refused, and how many there were. Both are 0 for other runs.
struct refused_blocks {
    std::size_t refused;
    std::size_t blocks;
};

// Scratch memory of runs, for one call at a time. It serves every plan of its engine that needs no more memory;
// elsa::shared_workspace creates one for several plans.
class workspace : public detail::owner<elsa_workspace, elsa_workspace_destroy> {
public:
    using owner::owner;
    workspace() = default;

    // Returns a bound on the error of the last run; its plan must have the option certify. absolute receives an upper
    // bound of the error of every element of each channel, at most count numbers; see elsa_workspace_certified.
    result<elsa_certified> certified(double *absolute = nullptr, std::size_t count = 0) const {
        elsa_certified value;
        elsa_certified_init(&value);
        const elsa_status code = elsa_workspace_certified(get(), &value, absolute, count);
        return detail::made<elsa_certified>(code, value);
    }

    // Reports the keys that the last run left out; its plan must have an error budget. share receives an upper bound of the share
    // of each row's weights that was left out, at most count numbers; see elsa_workspace_left_out.
    result<elsa_left_out> left_out(float *share = nullptr, std::size_t count = 0) const {
        elsa_left_out value;
        elsa_left_out_init(&value);
        const elsa_status code = elsa_workspace_left_out(get(), &value, share, count);
        return detail::made<elsa_left_out>(code, value);
    }

    // Reports how many blocks of rows the last run had on Tensor Cores, and how many of them the guard refused; see
    // elsa_workspace_refused_blocks.
    result<elsa::refused_blocks> refused_blocks() const {
        elsa::refused_blocks value = {0, 0};
        const elsa_status code = elsa_workspace_refused_blocks(get(), &value.refused, &value.blocks);
        return detail::made<elsa::refused_blocks>(code, value);
    }

    // States what is true of all later calls on tensors in GPU memory: flags of ELSA_TRUST_*; see elsa_workspace_trust.
    status trust(elsa_trust flags) const { return status(elsa_workspace_trust(get(), flags)); }
};

namespace detail {

// The function of elsa.h that replaces the tensors of a bound call, for the struct of its inputs.
template <class Inputs>
struct bound_set;

} // namespace detail

// Bound call: tensors bound to a plan and a workspace.
class bound : public detail::owner<elsa_bound, elsa_bound_destroy> {
public:
    using owner::owner;
    bound() = default;

    status run(elsa_report *report = nullptr) const { return status(elsa_bound_run(get(), report)); }

    // Replaces the tensors with those of the operator's structs of elsa.h, such as elsa_inputs and elsa_outputs; see
    // elsa_bound_set. A typed plan has a function set that also checks the types.
    template <class Inputs, class Outputs>
    status set(const Inputs &inputs, const Outputs &outputs) const {
        return status(detail::bound_set<Inputs>::call(get(), &inputs, &outputs));
    }
};

// Plan of any operator: the decisions made once per shape. Creates the workspaces of its runs.
class any_plan : public detail::owner<elsa_plan, elsa_plan_destroy> {
public:
    using owner::owner;
    any_plan() = default;

    result<elsa::workspace> workspace() const {
        elsa_workspace handle = elsa_workspace();
        const elsa_status code = elsa_workspace_create(get(), &handle);
        return detail::made<elsa::workspace>(code, handle);
    }

    // Creates a workspace in the caller's memory, which must outlive it; see elsa_workspace_create_in.
    result<elsa::workspace> workspace_in(void *memory, std::size_t bytes) const {
        elsa_workspace handle = elsa_workspace();
        const elsa_status code = elsa_workspace_create_in(get(), memory, bytes, &handle);
        return detail::made<elsa::workspace>(code, handle);
    }

    // Creates a workspace in the caller's device memory, which must outlive it; see elsa_workspace_create_on_device.
    result<elsa::workspace> workspace_on_device(void *device_memory, std::size_t bytes) const {
        elsa_workspace handle = elsa_workspace();
        const elsa_status code = elsa_workspace_create_on_device(get(), device_memory, bytes, &handle);
        return detail::made<elsa::workspace>(code, handle);
    }

    // Warms up a workspace, so that its first run takes as long as later ones.
    status warm(const elsa::workspace &room) const { return status(elsa_plan_warm(get(), room.get())); }

    result<elsa_plan_info> describe() const {
        elsa_plan_info info;
        elsa_plan_info_init(&info);
        const elsa_status code = elsa_plan_describe(get(), &info);
        return detail::made<elsa_plan_info>(code, info);
    }
};

namespace detail {

// Plan whose tensors have types that the compiler checks; `Untyped` is the plan for the structs of elsa.h.
template <class Untyped, class Inputs, class Outputs>
class typed_plan : public Untyped {
public:
    using Untyped::Untyped;
    typed_plan() = default;

    result<elsa::bound> bind(const elsa::workspace &room, const Inputs &inputs, const Outputs &outputs) const {
        return Untyped::bind(room, inputs.get(), outputs.get());
    }

    // Replaces the tensors of a bound call of a plan for the same types; see elsa_bound_set.
    status set(const elsa::bound &call, const Inputs &inputs, const Outputs &outputs) const {
        return call.set(inputs.get(), outputs.get());
    }

    status run(const elsa::workspace &room, const Inputs &inputs, const Outputs &outputs,
               elsa_report *report = nullptr) const {
        return Untyped::run(room, inputs.get(), outputs.get(), report);
    }

    // Runs over tensors in device memory; see untyped_plan::run_device.
    status run_device(const elsa::workspace &room, const Inputs &inputs, const Outputs &outputs,
                      void *stream = nullptr, elsa_report *report = nullptr) const {
        return Untyped::run_device(room, inputs.get(), outputs.get(), stream, report);
    }
};

} // namespace detail

// Creates one workspace for several plans of one operator: shared_workspace(one, another).
template <class... Plans>
result<workspace> shared_workspace(const Plans &...plans) {
    const elsa_plan handles[] = {plans.get()...};
    elsa_workspace handle = elsa_workspace();
    const elsa_status code = elsa_workspace_create_shared(handles, sizeof...(plans), &handle);
    return detail::made<workspace>(code, handle);
}

// Host memory for `size` elements of type T, initially zero. On a GPU that shares the host's memory, tensors in the
// buffer are used in place. A buffer may be passed wherever a std::vector<T> may.
template <class T>
class buffer : public detail::owner<elsa_buffer, elsa_buffer_destroy> {
    static_assert(std::is_trivially_copyable<T>::value && alignof(T) <= 64, "elsa: a buffer holds plain elements");

public:
    buffer() noexcept { elsa_buffer_info_init(&info_); }
    buffer(elsa_buffer handle, const elsa_buffer_info &info) noexcept : owner(handle), info_(info) {}
    buffer(buffer &&other) noexcept : buffer() { *this = std::move(other); }
    buffer &operator=(buffer &&other) noexcept {
        if (this != &other) {
            owner::operator=(std::move(other));
            info_ = other.info_;
            elsa_buffer_info_init(&other.info_);
        }
        return *this;
    }

    T *data() noexcept { return static_cast<T *>(info_.data); }
    const T *data() const noexcept { return static_cast<const T *>(info_.data); }
    std::size_t size() const noexcept { return info_.bytes / sizeof(T); }
    T *begin() noexcept { return data(); }
    T *end() noexcept { return data() + size(); }
    const T *begin() const noexcept { return data(); }
    const T *end() const noexcept { return data() + size(); }
    T &operator[](std::size_t at) noexcept { return data()[at]; }
    const T &operator[](std::size_t at) const noexcept { return data()[at]; }
    // Returns the address of the first element on the engine's GPU, for run_device; null if the GPU cannot access it.
    T *device_data() const noexcept { return static_cast<T *>(info_.device_data); }
    bool page_locked() const noexcept { return info_.page_locked != 0; }
    // Returns true if the engine's GPU uses tensors in the buffer without a copy.
    bool in_place() const noexcept { return info_.in_place != 0; }

private:
    elsa_buffer_info info_;
};

} // inline namespace
} // namespace elsa

#endif
