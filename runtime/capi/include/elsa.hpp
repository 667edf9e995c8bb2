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
#ifndef ELSA_HPP
#define ELSA_HPP

#include "elsa.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef ELSA_THROW
#include <stdexcept>
#endif

// A type whose values must not be dropped.
#if defined(__clang__) && __cplusplus < 201703L
#define ELSA_NODISCARD __attribute__((warn_unused_result))
#elif defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 7) || __cplusplus >= 201703L
#define ELSA_NODISCARD [[nodiscard]]
#else
#define ELSA_NODISCARD
#endif

namespace elsa {
namespace shared {

// Loggers are created and ended in turns.
inline std::mutex &logger_turn() {
    static std::mutex lock;
    return lock;
}
// The listener of the logger that is in force.
inline const void *&logger_now() {
    static const void *now = nullptr;
    return now;
}

} // namespace shared

#ifdef ELSA_THROW
inline namespace throwing {
#else
inline namespace plain {
#endif

// What a status is, as a line of text.
inline const char *status_text(elsa_status code) noexcept { return elsa_status_text(code); }

// The status of a call, with its message.
class ELSA_NODISCARD status {
public:
    status() noexcept : code_(ELSA_STATUS_OK) {}
    // Of a call of this thread that has just returned.
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
// A failed call, as an exception.
class error : public std::runtime_error {
public:
    explicit error(const status &why) : std::runtime_error(why.message()), code_(why.code()) {}
    elsa_status code() const noexcept { return code_; }

private:
    elsa_status code_;
};
#endif

namespace detail {

// Somebody asked for the value of a failed call.
[[noreturn]] inline void no_value(const elsa::status &why) {
#ifdef ELSA_THROW
    throw error(why);
#else
    std::fprintf(stderr, "elsa: the value of a failed call was used: %s\n", why.message().c_str());
    std::abort();
#endif
}

} // namespace detail

// A value, or the status of the call that failed to make one.
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

    // The value. That of a failed result ends the program, or throws with ELSA_THROW.
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

// The value, or the error thrown.
template <class T>
T or_throw(result<T> outcome) {
    return std::move(outcome).value();
}
#endif

// Elements of IEEE 754 half precision.
struct f16 {
    std::uint16_t bits;
};

// Elements of bfloat16.
struct bf16 {
    std::uint16_t bits;
};

// What a type of elements is to the library. A program may specialise it for a type of its own with the same bits:
// `namespace elsa { template <> struct element<Eigen::half> : element<f16> {}; }`.
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

// The type behind the pointer that a container's data() returns; const where it may only be read.
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

// The last axes of [batch, heads, queries, keys] as a mask of some kind.
inline elsa_mask axes(elsa_mask_kind kind, std::initializer_list<std::size_t> dims) noexcept {
    elsa_mask made = elsa_mask();
    made.kind = kind;
    // The library refuses a rank beyond four.
    made.rank = static_cast<std::uint32_t>(dims.size());
    std::size_t axis = 0;
    for (const std::size_t entries : dims) {
        if (axis < 4) {
            made.dims[axis++] = entries;
        }
    }
    return made;
}

// The kind of the elements that a problem's bias has.
inline elsa_mask_kind bias_kind(const elsa_problem &problem) noexcept {
    if (problem.bias_table.entries == 0) {
        return problem.bias.kind;
    }
    switch (problem.bias_table.dtype) {
    case ELSA_DTYPE_F32:
        return ELSA_MASK_F32;
    case ELSA_DTYPE_F16:
        return ELSA_MASK_F16;
    default:
        return ELSA_MASK_BF16;
    }
}

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

} // namespace detail

template <class T>
class output;

// Memory that is read: elements of type T. Made from a pointer and a count, or from a container of contiguous T, which
// must stay where it is until the run is done. Without arguments an absent tensor.
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
    // What was written before.
    input(const output<T> &written) noexcept : memory_() {
        memory_.data = written.get().data;
        memory_.bytes = written.get().bytes;
    }
    // A vector that ends with the statement.
    template <class A>
    input(std::vector<T, A> &&) = delete;

    const elsa_input &get() const noexcept { return memory_; }

private:
    elsa_input memory_;
};

// Memory that is written, likewise.
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

// Elements whose own type says too little, read as T of the same size: elsa::as<elsa::f16>(words, count).
template <class T, class U>
input<T> as(const U *data, std::size_t count) noexcept {
    static_assert(sizeof(T) == sizeof(U) && std::is_trivially_copyable<U>::value, "elsa: elements of another size");
    return input<T>(reinterpret_cast<const T *>(data), count);
}
// The same to be written.
template <class T, class U, class = std::enable_if_t<!std::is_const<U>::value>>
output<T> as(U *data, std::size_t count) noexcept {
    static_assert(sizeof(T) == sizeof(U) && std::is_trivially_copyable<U>::value, "elsa: elements of another size");
    return output<T>(reinterpret_cast<T *>(data), count);
}

// The elements of a mask: bool or unsigned char, one a byte, or float, elsa::f16, elsa::bf16. Also those of a bias or of a
// table of relative positions. Absent without arguments.
class mask {
public:
    mask() noexcept : memory_(), kind_(ELSA_MASK_NONE) {}
    template <class T>
    mask(const T *data, std::size_t count) noexcept : mask(input<T>(data, count)) {}
    template <class T>
    mask(const input<T> &elements) noexcept : memory_(elements.get()), kind_(element<T>::mask_kind) {
        static_assert(element<T>::mask && sizeof(bool) == 1, "elsa: a mask is of bool, unsigned char or elements of tensors");
    }
    template <class C, class T = std::remove_const_t<detail::pointee<const C>>>
    mask(const C &container) noexcept : mask(input<T>(container)) {}

    const elsa_input &get() const noexcept { return memory_; }
    elsa_mask_kind kind() const noexcept { return kind_; }

private:
    elsa_input memory_;
    elsa_mask_kind kind_;
};

// A list of 64-bit integers. Absent without arguments.
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

// The defaults.
struct engine_options : elsa_engine_options {
    engine_options() noexcept : elsa_engine_options() { elsa_engine_options_init(this); }

    // Computes on threads of the host's: pool(workers, task) calls task(worker) once for every worker below workers,
    // on any threads, and returns when all have returned. pool must not throw, and outlives the engine and what was
    // made with it.
    template <class Pool>
    engine_options &lend(Pool &pool) noexcept {
        parallel_user = &pool;
        parallel_for = [](void *user, std::size_t workers, elsa_parallel_task task, void *context) noexcept {
            (*static_cast<Pool *>(user))(workers, [task, context](std::size_t worker) { task(context, worker); });
        };
        return *this;
    }
};

// The defaults.
struct plan_options : elsa_plan_options {
    plan_options() noexcept : elsa_plan_options() { elsa_plan_options_init(this); }
};

// To be filled by a run.
struct report : elsa_report {
    report() noexcept : elsa_report() { elsa_report_init(this); }
};

// Key j of a call is key `offset` + j of `total`. The queries are all of them, unless of_queries says otherwise.
struct chunk : elsa_chunk {
    chunk(std::size_t offset, std::size_t total) noexcept : elsa_chunk() {
        elsa_chunk_init(this);
        key_offset = offset;
        key_total = total;
    }

    // Query i of the call is query `offset` + i of `total`.
    chunk &of_queries(std::size_t offset, std::size_t total) noexcept {
        query_offset = offset;
        query_total = total;
        return *this;
    }
};

// An elsa_problem over elements of type T. The fields are those of elsa.h; the functions set those that belong together.
template <class T>
struct problem : elsa_problem, private detail::check_tensor<T> {
    problem() noexcept : elsa_problem() {
        elsa_problem_init(this);
        dtype = element<T>::dtype;
    }

    problem &with_scale(float factor) noexcept {
        has_scale = 1;
        scale = factor;
        return *this;
    }
    problem &with_window_left(std::int64_t keys) noexcept {
        has_window_left = 1;
        window_left = keys;
        return *this;
    }
    problem &with_window_right(std::int64_t keys) noexcept {
        has_window_right = 1;
        window_right = keys;
        return *this;
    }
    problem &with_key_lengths() noexcept {
        has_key_lengths = 1;
        return *this;
    }
    // A mask of elements of type M over the last axes of [batch, heads, queries, keys].
    template <class M>
    problem &with_mask(std::initializer_list<std::size_t> dims) noexcept {
        static_assert(element<M>::mask, "elsa: a mask is of bool, unsigned char or elements of tensors");
        mask = detail::axes(element<M>::mask_kind, dims);
        return *this;
    }
    // A bias of elements of type M, likewise.
    template <class M>
    problem &with_bias(std::initializer_list<std::size_t> dims) noexcept {
        static_assert(element<M>::tensor, "elsa: a bias is of float, elsa::f16 or elsa::bf16");
        bias = detail::axes(element<M>::mask_kind, dims);
        return *this;
    }
    // A table of relative positions, [entries, heads] of type M. indexed: the inputs name the entry of each pair.
    template <class M>
    problem &with_bias_table(std::size_t entries, std::size_t heads, bool indexed = false) noexcept {
        static_assert(element<M>::tensor, "elsa: a table is of float, elsa::f16 or elsa::bf16");
        bias_table = elsa_table();
        bias_table.dtype = element<M>::dtype;
        bias_table.has_index = indexed ? 1 : 0;
        bias_table.entries = entries;
        bias_table.heads = heads;
        return *this;
    }
    // Windows of a picture; see elsa_windows.
    problem &with_windows(std::size_t picture_height, std::size_t picture_width, std::size_t height, std::size_t width,
                          std::size_t shift_down = 0, std::size_t shift_right = 0) noexcept {
        const elsa_windows made = {{picture_height, picture_width}, {height, width}, {shift_down, shift_right}};
        windows = made;
        return *this;
    }
    problem &with_past(const elsa_view &keys, const elsa_view &values) noexcept {
        has_past = 1;
        past_k = keys;
        past_v = values;
        return *this;
    }
    problem &with_present(const elsa_view &keys, const elsa_view &values) noexcept {
        has_present = 1;
        present_k = keys;
        present_v = values;
        return *this;
    }
    // A cache in place: views of all its room, whose first `past` tokens are filled. A run appends the tokens of k and
    // v, which must be set already. Its memory is present_k and present_v of the outputs.
    problem &with_cache(const elsa_view &keys, const elsa_view &values, std::size_t past) noexcept {
        with_past(keys, values).with_present(keys, values);
        past_k.shape[2] = past_v.shape[2] = past;
        present_k.shape[2] = past + k.shape[2];
        present_v.shape[2] = past + v.shape[2];
        append = 1;
        return *this;
    }
};

// An elsa_linear_problem over elements of type T, with decay and beta of type G. The fields are those of elsa.h; the
// functions set those that belong together.
template <class T, class G = float>
struct linear_problem : elsa_linear_problem, private detail::check_tensor<T>, private detail::check_gates<T, G> {
    linear_problem() noexcept : elsa_linear_problem() {
        elsa_linear_problem_init(this);
        dtype = element<T>::dtype;
        gate_dtype = element<G>::dtype;
    }

    // One of ELSA_RULE_*.
    linear_problem &with_rule(elsa_rule how) noexcept {
        rule = how;
        return *this;
    }
    // One of ELSA_DIRECTION_*.
    linear_problem &with_direction(elsa_direction order) noexcept {
        direction = order;
        return *this;
    }
    // [batch, state heads, tokens, 1 or d_k].
    linear_problem &with_decay(const elsa_view &gates) noexcept {
        has_decay = 1;
        decay = gates;
        return *this;
    }
    // [batch, state heads or 1, tokens, 1].
    linear_problem &with_beta(const elsa_view &rates) noexcept {
        has_beta = 1;
        beta = rates;
        return *this;
    }
    // [sequences, state heads, d_k, d_v], as the next two.
    linear_problem &with_past_state(const elsa_view &states) noexcept {
        has_past_state = 1;
        past_state = states;
        return *this;
    }
    linear_problem &with_present_state(const elsa_view &states) noexcept {
        has_present_state = 1;
        present_state = states;
        return *this;
    }
    // Past and present in the memory of present_state of the outputs.
    linear_problem &with_state_in_place(const elsa_view &states) noexcept {
        in_place = 1;
        return with_past_state(states).with_present_state(states);
    }
    linear_problem &with_scale(float factor) noexcept {
        has_scale = 1;
        scale = factor;
        return *this;
    }
    // Queries and keys become unit vectors: x / sqrt(sum of x^2 + epsilon).
    linear_problem &with_normalize(float epsilon = 1e-6f) noexcept {
        has_normalize = 1;
        normalize = epsilon;
        return *this;
    }
    // Sequences one after the other; cu_seqlens of the inputs has their bounds.
    linear_problem &with_packed(std::size_t sequences) noexcept {
        packed = sequences;
        return *this;
    }
};

// The defaults.
struct linear_options : elsa_linear_options {
    linear_options() noexcept : elsa_linear_options() { elsa_linear_options_init(this); }

    // One of ELSA_FORM_*, with tokens of a chunk or parts of a sequence where the form has them; 0 are the defaults.
    linear_options &with_form(elsa_form order, std::size_t chunk_tokens = 0, std::size_t sequence_parts = 0) noexcept {
        form = order;
        chunk = chunk_tokens;
        parts = sequence_parts;
        return *this;
    }
};

// The view of a tensor in one of ELSA_LAYOUT_*.
inline result<elsa_view> view(elsa_layout layout, std::size_t batch, std::size_t heads, std::size_t tokens,
                              std::size_t dim) {
    elsa_view v = elsa_view();
    const elsa_status code = elsa_view_init(layout, batch, heads, tokens, dim, &v);
    if (code != ELSA_STATUS_OK) {
        return status(code);
    }
    return v;
}

namespace detail {

template <class T, class S>
result<std::vector<T>> converted(elsa_mask_source source, const S *data, std::size_t count) {
    std::vector<T> made(count);
    const elsa_status code = elsa_mask_convert(source, data, count, made.data());
    if (code != ELSA_STATUS_OK) {
        return status(code);
    }
    return made;
}

} // namespace detail

// The elements of a mask of integers, of which zero is not attended, as bytes; and those of doubles as floats. What is made
// is what elsa::mask takes.
inline result<std::vector<unsigned char>> mask_of(const std::int32_t *data, std::size_t count) {
    return detail::converted<unsigned char>(ELSA_MASK_SOURCE_I32, data, count);
}
inline result<std::vector<unsigned char>> mask_of(const std::int64_t *data, std::size_t count) {
    return detail::converted<unsigned char>(ELSA_MASK_SOURCE_I64, data, count);
}
inline result<std::vector<float>> mask_of(const double *data, std::size_t count) {
    return detail::converted<float>(ELSA_MASK_SOURCE_F64, data, count);
}

// The elements that a view needs, from its first to its last; 0 where an axis is empty or they overflow.
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

// The views of series that are dense in memory: [batch, tokens, channels], and [batch, channels, tokens].
inline result<elsa_view> tokens_first(std::size_t batch, std::size_t tokens, std::size_t channels) {
    return view(ELSA_LAYOUT_BNHD, batch, 1, tokens, channels);
}
inline result<elsa_view> channels_first(std::size_t batch, std::size_t channels, std::size_t tokens) {
    return view(ELSA_LAYOUT_BHND, batch, channels, tokens, 1);
}

// An elsa_recurrence_problem over addends and states of type T, with factors or their logarithms of type G.
template <class T, class G = float>
struct recurrence_problem : elsa_recurrence_problem, private detail::check_tensor<T>, private detail::check_gates<T, G> {
    recurrence_problem() noexcept : elsa_recurrence_problem() {
        elsa_recurrence_problem_init(this);
        dtype = element<T>::dtype;
        gate_dtype = element<G>::dtype;
    }

    // Gates, addends and output of one view.
    recurrence_problem &over(const elsa_view &series) noexcept {
        a = b = out = series;
        return *this;
    }
    // a holds natural logarithms.
    recurrence_problem &with_logarithms() noexcept {
        gate = ELSA_GATE_LOG;
        return *this;
    }
};

// An elsa_selective_problem over tensors of type T, with time steps of type G. B and C are of each token unless they are fixed.
template <class T, class G = float>
struct selective_problem : elsa_selective_problem, private detail::check_tensor<T>, private detail::check_gates<T, G> {
    selective_problem() noexcept : elsa_selective_problem() {
        elsa_selective_problem_init(this);
        dtype = element<T>::dtype;
        gate_dtype = element<G>::dtype;
    }

    // Inputs, time steps and output of one view; so many numbers in each channel's state.
    selective_problem &over(const elsa_view &series, std::size_t numbers) noexcept {
        u = delta = out = series;
        states = numbers;
        return *this;
    }
    // Coefficients of each token, of groups times states channels.
    selective_problem &with_coefficients(const elsa_view &of_b, const elsa_view &of_c) noexcept {
        b = of_b;
        c = of_c;
        return *this;
    }
    selective_problem &with_z(const elsa_view &of_z) noexcept {
        has_z = 1;
        z = of_z;
        return *this;
    }
    selective_problem &with_softplus() noexcept {
        softplus = 1;
        return *this;
    }
};

// An elsa_convolution_problem over tensors of type T.
template <class T>
struct convolution_problem : elsa_convolution_problem, private detail::check_tensor<T> {
    convolution_problem() noexcept : elsa_convolution_problem() {
        elsa_convolution_problem_init(this);
        dtype = element<T>::dtype;
    }

    // Input and output of one view, and filters of so many weights in one of the orders ELSA_TAPS_*.
    convolution_problem &over(const elsa_view &series, std::size_t weights,
                              elsa_taps ordered = ELSA_TAPS_NEWEST_FIRST) noexcept {
        u = out = series;
        taps = weights;
        order = ordered;
        return *this;
    }
    convolution_problem &with_silu() noexcept {
        silu = 1;
        return *this;
    }
};

// The defaults.
struct series_options : elsa_series_options {
    series_options() noexcept : elsa_series_options() { elsa_series_options_init(this); }

    // Parts of a recurrence that are passed side by side.
    series_options &with_parts(std::size_t side_by_side) noexcept {
        parts = side_by_side;
        return *this;
    }
    // One of ELSA_CONVOLUTION_*.
    series_options &with_method(elsa_convolution_method how) noexcept {
        method = how;
        return *this;
    }
};

// The states (m, S, W) of `rows` rows with values of size `dim`, in memory of its own. At first those of no key, which
// change nothing in a merge.
class states {
public:
    states() = default;
    states(std::size_t rows, std::size_t dim)
        : dim_(dim), m_(rows, -std::numeric_limits<float>::infinity()), s_(rows), w_(rows * dim) {}

    std::size_t rows() const noexcept { return m_.size(); }
    std::size_t dim() const noexcept { return dim_; }
    elsa_states_in read() const noexcept {
        const elsa_states_in from = {m_.data(), s_.data(), w_.data()};
        return from;
    }
    elsa_states_out write() noexcept {
        const elsa_states_out to = {m_.data(), s_.data(), w_.data()};
        return to;
    }

    // Merges the states of later keys into these. Fold in the order of the keys for the same bits every time.
    status merge(const states &later) {
        if (later.rows() != rows() || later.dim() != dim_) {
            return status(ELSA_STATUS_ARGUMENT, "later: " + std::to_string(later.rows()) + " rows of " +
                                                    std::to_string(later.dim()) + "; allowed: " +
                                                    std::to_string(rows()) + " rows of " + std::to_string(dim_));
        }
        const elsa_states_in a = read(), b = later.read();
        const elsa_states_out to = write();
        return status(elsa_states_merge(rows(), dim_, &a, &b, &to));
    }

    // Writes the output [rows, dim], and the log-sum-exp [rows] where one is given.
    status finish(const output<float> &out, const output<float> &lse = output<float>()) const {
        const bool fits = out.get().bytes / sizeof(float) >= w_.size() &&
                          (lse.get().data == nullptr || lse.get().bytes / sizeof(float) >= m_.size());
        if (!fits) {
            return status(ELSA_STATUS_ARGUMENT, "out, lse: " + std::to_string(out.get().bytes) + " and " +
                                                    std::to_string(lse.get().bytes) + " bytes; allowed: at least " +
                                                    std::to_string(w_.size() * sizeof(float)) + " and " +
                                                    std::to_string(m_.size() * sizeof(float)));
        }
        const elsa_states_in from = read();
        return status(elsa_states_finish(rows(), dim_, &from, static_cast<float *>(out.get().data),
                                         static_cast<float *>(lse.get().data)));
    }

private:
    std::size_t dim_ = 0;
    std::vector<float> m_, s_, w_;
};

// The data of a problem over T that is read; see elsa_inputs.
template <class T>
struct inputs : private detail::check_tensor<T> {
    input<T> q, k, v, past_k, past_v;
    elsa::mask mask, bias;
    integers key_lengths, cu_seqlens_q, cu_seqlens_k, bias_index;

    elsa_inputs get() const noexcept {
        elsa_inputs all;
        elsa_inputs_init(&all);
        all.q = q.get();
        all.k = k.get();
        all.v = v.get();
        all.past_k = past_k.get();
        all.past_v = past_v.get();
        all.mask = mask.get();
        all.key_lengths = key_lengths.get();
        all.cu_seqlens_q = cu_seqlens_q.get();
        all.cu_seqlens_k = cu_seqlens_k.get();
        all.bias = bias.get();
        all.bias_index = bias_index.get();
        return all;
    }
};

// The data of a problem over T that is written; see elsa_outputs.
template <class T>
struct outputs : private detail::check_tensor<T> {
    output<T> out;
    output<float> lse, state_m, state_s, state_w;
    output<T> present_k, present_v;

    outputs &with_states(elsa::states &states) noexcept {
        const elsa_states_out to = states.write();
        state_m = output<float>(to.m, states.rows());
        state_s = output<float>(to.s, states.rows());
        state_w = output<float>(to.w, states.rows() * states.dim());
        return *this;
    }

    elsa_outputs get() const noexcept {
        elsa_outputs all;
        elsa_outputs_init(&all);
        all.out = out.get();
        all.lse = lse.get();
        all.state_m = state_m.get();
        all.state_s = state_s.get();
        all.state_w = state_w.get();
        all.present_k = present_k.get();
        all.present_v = present_v.get();
        return all;
    }
};

// The data of a problem of linear attention over T that is read, with decay and beta of type G; see elsa_linear_inputs.
template <class T, class G = float>
struct linear_inputs : private detail::check_tensor<T>, private detail::check_gates<T, G> {
    input<T> q, k, v;
    input<G> decay, beta;
    input<float> past_state;
    integers cu_seqlens;

    elsa_linear_inputs get() const noexcept {
        elsa_linear_inputs all;
        elsa_linear_inputs_init(&all);
        all.q = q.get();
        all.k = k.get();
        all.v = v.get();
        all.decay = decay.get();
        all.beta = beta.get();
        all.past_state = past_state.get();
        all.cu_seqlens = cu_seqlens.get();
        return all;
    }
};

// The data of a problem of linear attention over T that is written; see elsa_linear_outputs.
template <class T>
struct linear_outputs : private detail::check_tensor<T> {
    output<T> out;
    output<float> present_state;

    elsa_linear_outputs get() const noexcept {
        elsa_linear_outputs all;
        elsa_linear_outputs_init(&all);
        all.out = out.get();
        all.present_state = present_state.get();
        return all;
    }
};

// The data of a recurrence that is read; see elsa_recurrence_inputs.
template <class T, class G = float>
struct recurrence_inputs : private detail::check_tensor<T>, private detail::check_gates<T, G> {
    input<G> a;
    input<T> b;
    input<float> past_state;

    elsa_recurrence_inputs get() const noexcept {
        elsa_recurrence_inputs all;
        elsa_recurrence_inputs_init(&all);
        all.a = a.get();
        all.b = b.get();
        all.past_state = past_state.get();
        return all;
    }
};

// The data of a selective scan that is read; see elsa_selective_inputs. Coefficients of each channel are fixed_b and fixed_c, in
// place of b and c.
template <class T, class G = float>
struct selective_inputs : private detail::check_tensor<T>, private detail::check_gates<T, G> {
    input<T> u, b, c, z;
    input<G> delta;
    input<float> a, fixed_b, fixed_c, d, delta_bias, past_state;

    elsa_selective_inputs get() const noexcept {
        elsa_selective_inputs all;
        elsa_selective_inputs_init(&all);
        all.u = u.get();
        all.delta = delta.get();
        all.a = a.get();
        all.b = fixed_b.get().data == nullptr ? b.get() : fixed_b.get();
        all.c = fixed_c.get().data == nullptr ? c.get() : fixed_c.get();
        all.d = d.get();
        all.z = z.get();
        all.delta_bias = delta_bias.get();
        all.past_state = past_state.get();
        return all;
    }
};

// The data of a convolution that is read; see elsa_convolution_inputs.
template <class T>
struct convolution_inputs : private detail::check_tensor<T> {
    input<T> u;
    input<float> filter, bias, past_state;

    elsa_convolution_inputs get() const noexcept {
        elsa_convolution_inputs all;
        elsa_convolution_inputs_init(&all);
        all.u = u.get();
        all.filter = filter.get();
        all.bias = bias.get();
        all.past_state = past_state.get();
        return all;
    }
};

// The data of any of the three that is written; see elsa_series_outputs.
template <class T>
struct series_outputs : private detail::check_tensor<T> {
    output<T> out;
    output<float> present_state;

    elsa_series_outputs get() const noexcept {
        elsa_series_outputs all;
        elsa_series_outputs_init(&all);
        all.out = out.get();
        all.present_state = present_state.get();
        return all;
    }
};

namespace detail {

// A handle that is destroyed with its owner.
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
    // Returns the handle and no longer owns it.
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

// The value that a call has written, or its status.
template <class Value, class Made>
result<Value> made(elsa_status code, Made &&value) {
    if (code != ELSA_STATUS_OK) {
        return status(code);
    }
    return Value(std::forward<Made>(value));
}

} // namespace detail

// The memory that runs work in. One call at a time may use it. It serves every plan of its engine that needs no more;
// elsa::shared_workspace makes one for several plans.
class workspace : public detail::owner<elsa_workspace, elsa_workspace_destroy> {
public:
    using owner::owner;
    workspace() = default;

    // How wrong the answer of the last run may be, if its plan has the option certify. absolute receives an upper bound of
    // the error of every element of each channel, count numbers at most; see elsa_workspace_certified.
    result<elsa_certified> certified(double *absolute = nullptr, std::size_t count = 0) const {
        elsa_certified value;
        elsa_certified_init(&value);
        const elsa_status code = elsa_workspace_certified(get(), &value, absolute, count);
        return detail::made<elsa_certified>(code, value);
    }
};

// A plan with the tensors of a frame.
class bound : public detail::owner<elsa_bound, elsa_bound_destroy> {
public:
    using owner::owner;
    bound() = default;

    status run(elsa_report *report = nullptr) const { return status(elsa_bound_run(get(), report)); }
};

// What is decided once per shape, and the workspaces for it, of either kind of attention.
class any_plan : public detail::owner<elsa_plan, elsa_plan_destroy> {
public:
    using owner::owner;
    any_plan() = default;

    result<elsa::workspace> workspace() const {
        elsa_workspace handle = elsa_workspace();
        const elsa_status code = elsa_workspace_create(get(), &handle);
        return detail::made<elsa::workspace>(code, handle);
    }

    // A workspace in memory of the caller's, which outlives it; see elsa_workspace_create_in.
    result<elsa::workspace> workspace_in(void *memory, std::size_t bytes) const {
        elsa_workspace handle = elsa_workspace();
        const elsa_status code = elsa_workspace_create_in(get(), memory, bytes, &handle);
        return detail::made<elsa::workspace>(code, handle);
    }

    // A workspace in device memory of the caller's, which outlives it; see elsa_workspace_create_on_device.
    result<elsa::workspace> workspace_on_device(void *device_memory, std::size_t bytes) const {
        elsa_workspace handle = elsa_workspace();
        const elsa_status code = elsa_workspace_create_on_device(get(), device_memory, bytes, &handle);
        return detail::made<elsa::workspace>(code, handle);
    }

    // Has the first run in this workspace take what later ones take.
    status warm(const elsa::workspace &room) const { return status(elsa_plan_warm(get(), room.get())); }

    result<elsa_plan_info> describe() const {
        elsa_plan_info info;
        elsa_plan_info_init(&info);
        const elsa_status code = elsa_plan_describe(get(), &info);
        return detail::made<elsa_plan_info>(code, info);
    }
};

// A plan for tensors whose type is the caller's affair.
class untyped_plan : public any_plan {
public:
    using any_plan::any_plan;
    untyped_plan() = default;

    result<elsa::bound> bind(const elsa::workspace &room, const elsa_inputs &inputs,
                             const elsa_outputs &outputs) const {
        elsa_bound handle = elsa_bound();
        const elsa_status code = elsa_bind(get(), room.get(), &inputs, &outputs, &handle);
        return detail::made<elsa::bound>(code, handle);
    }

    status run(const elsa::workspace &room, const elsa_inputs &inputs, const elsa_outputs &outputs,
               elsa_report *report = nullptr) const {
        return status(elsa_run(get(), room.get(), &inputs, &outputs, report));
    }

    // The states of a subset of the keys.
    status partial(const elsa::workspace &room, const elsa_inputs &inputs, const elsa_outputs &outputs,
                   elsa_report *report = nullptr) const {
        return status(elsa_partial(get(), room.get(), nullptr, &inputs, &outputs, report));
    }

    // The states of the keys that chunk places in a longer whole.
    status partial(const elsa::workspace &room, const elsa_chunk &chunk, const elsa_inputs &inputs,
                   const elsa_outputs &outputs, elsa_report *report = nullptr) const {
        return status(elsa_partial(get(), room.get(), &chunk, &inputs, &outputs, report));
    }

    // Over tensors in device memory. With a null stream the call waits; one that is captured takes the run into its CUDA
    // graph, as elsa_run_device says.
    status run_device(const elsa::workspace &room, const elsa_inputs &inputs, const elsa_outputs &outputs,
                      void *stream, elsa_report *report = nullptr) const {
        return status(elsa_run_device(get(), room.get(), &inputs, &outputs, stream, report));
    }

    result<elsa_certificate> certificate(elsa_backend backend = ELSA_BACKEND_AUTO) const {
        elsa_certificate value;
        elsa_certificate_init(&value);
        const elsa_status code = elsa_plan_certificate(get(), backend, &value);
        return detail::made<elsa_certificate>(code, value);
    }
};

// What is decided once per shape, for tensors of type T.
template <class T>
class plan : public untyped_plan {
public:
    plan() = default;
    // mask and bias are the kinds of the problem's mask and bias.
    plan(elsa_plan handle, elsa_mask_kind mask, elsa_mask_kind bias = ELSA_MASK_NONE) noexcept
        : untyped_plan(handle), mask_(mask), bias_(bias) {}

    result<elsa::bound> bind(const elsa::workspace &room, const elsa::inputs<T> &inputs,
                             const elsa::outputs<T> &outputs) const {
        if (!masks(inputs)) {
            return other_mask(inputs);
        }
        return untyped_plan::bind(room, inputs.get(), outputs.get());
    }

    status run(const elsa::workspace &room, const elsa::inputs<T> &inputs, const elsa::outputs<T> &outputs,
               elsa_report *report = nullptr) const {
        return masks(inputs) ? untyped_plan::run(room, inputs.get(), outputs.get(), report) : other_mask(inputs);
    }

    status partial(const elsa::workspace &room, const elsa::inputs<T> &inputs, const elsa::outputs<T> &outputs,
                   elsa_report *report = nullptr) const {
        return masks(inputs) ? untyped_plan::partial(room, inputs.get(), outputs.get(), report) : other_mask(inputs);
    }
    status partial(const elsa::workspace &room, const elsa_chunk &chunk, const elsa::inputs<T> &inputs,
                   const elsa::outputs<T> &outputs, elsa_report *report = nullptr) const {
        return masks(inputs) ? untyped_plan::partial(room, chunk, inputs.get(), outputs.get(), report)
                             : other_mask(inputs);
    }

    status run_device(const elsa::workspace &room, const elsa::inputs<T> &inputs, const elsa::outputs<T> &outputs,
                      void *stream, elsa_report *report = nullptr) const {
        return masks(inputs) ? untyped_plan::run_device(room, inputs.get(), outputs.get(), stream, report)
                             : other_mask(inputs);
    }

private:
    static bool fits(const elsa::mask &given, elsa_mask_kind kind) noexcept {
        return given.kind() == kind || given.kind() == ELSA_MASK_NONE;
    }
    bool masks(const elsa::inputs<T> &inputs) const noexcept {
        return fits(inputs.mask, mask_) && fits(inputs.bias, bias_);
    }
    status other_mask(const elsa::inputs<T> &inputs) const {
        const bool mask = !fits(inputs.mask, mask_);
        return status(ELSA_STATUS_ARGUMENT,
                      std::string(mask ? "mask" : "bias") + ": elements of kind " +
                          std::to_string((mask ? inputs.mask : inputs.bias).kind()) +
                          " (ELSA_MASK_*); allowed: the problem's, " + std::to_string(mask ? mask_ : bias_));
    }

    elsa_mask_kind mask_ = ELSA_MASK_NONE, bias_ = ELSA_MASK_NONE;
};

// A plan of linear attention for tensors whose type is the caller's affair.
class untyped_linear_plan : public any_plan {
public:
    using any_plan::any_plan;
    untyped_linear_plan() = default;

    result<elsa::bound> bind(const elsa::workspace &room, const elsa_linear_inputs &inputs,
                             const elsa_linear_outputs &outputs) const {
        elsa_bound handle = elsa_bound();
        const elsa_status code = elsa_linear_bind(get(), room.get(), &inputs, &outputs, &handle);
        return detail::made<elsa::bound>(code, handle);
    }

    status run(const elsa::workspace &room, const elsa_linear_inputs &inputs, const elsa_linear_outputs &outputs,
               elsa_report *report = nullptr) const {
        return status(elsa_linear_run(get(), room.get(), &inputs, &outputs, report));
    }

    // Over tensors in device memory; see untyped_plan::run_device.
    status run_device(const elsa::workspace &room, const elsa_linear_inputs &inputs, const elsa_linear_outputs &outputs,
                      void *stream, elsa_report *report = nullptr) const {
        return status(elsa_linear_run_device(get(), room.get(), &inputs, &outputs, stream, report));
    }

    // The form that was chosen; describe has the rest.
    result<elsa_linear_info> choice() const {
        elsa_linear_info info;
        elsa_linear_info_init(&info);
        const elsa_status code = elsa_linear_plan_describe(get(), &info);
        return detail::made<elsa_linear_info>(code, info);
    }
};

// A plan of linear attention for tensors of type T, with decay and beta of type G.
template <class T, class G = float>
class linear_plan : public untyped_linear_plan {
public:
    using untyped_linear_plan::untyped_linear_plan;
    linear_plan() = default;

    result<elsa::bound> bind(const elsa::workspace &room, const elsa::linear_inputs<T, G> &inputs,
                             const elsa::linear_outputs<T> &outputs) const {
        return untyped_linear_plan::bind(room, inputs.get(), outputs.get());
    }

    status run(const elsa::workspace &room, const elsa::linear_inputs<T, G> &inputs,
               const elsa::linear_outputs<T> &outputs, elsa_report *report = nullptr) const {
        return untyped_linear_plan::run(room, inputs.get(), outputs.get(), report);
    }

    status run_device(const elsa::workspace &room, const elsa::linear_inputs<T, G> &inputs,
                      const elsa::linear_outputs<T> &outputs, void *stream, elsa_report *report = nullptr) const {
        return untyped_linear_plan::run_device(room, inputs.get(), outputs.get(), stream, report);
    }
};

// A plan of an operator that treats every channel by itself, for tensors whose type is the caller's affair.
template <class Inputs,
          elsa_status (*Run)(elsa_plan, elsa_workspace, const Inputs *, const elsa_series_outputs *, elsa_report *),
          elsa_status (*RunDevice)(elsa_plan, elsa_workspace, const Inputs *, const elsa_series_outputs *, void *,
                                   elsa_report *),
          elsa_status (*Bind)(elsa_plan, elsa_workspace, const Inputs *, const elsa_series_outputs *, elsa_bound *)>
class untyped_series_plan : public any_plan {
public:
    using any_plan::any_plan;
    untyped_series_plan() = default;

    result<elsa::bound> bind(const elsa::workspace &room, const Inputs &inputs,
                             const elsa_series_outputs &outputs) const {
        elsa_bound handle = elsa_bound();
        const elsa_status code = Bind(get(), room.get(), &inputs, &outputs, &handle);
        return detail::made<elsa::bound>(code, handle);
    }

    status run(const elsa::workspace &room, const Inputs &inputs, const elsa_series_outputs &outputs,
               elsa_report *report = nullptr) const {
        return status(Run(get(), room.get(), &inputs, &outputs, report));
    }

    // Over tensors in device memory; see untyped_plan::run_device.
    status run_device(const elsa::workspace &room, const Inputs &inputs, const elsa_series_outputs &outputs,
                      void *stream = nullptr, elsa_report *report = nullptr) const {
        return status(RunDevice(get(), room.get(), &inputs, &outputs, stream, report));
    }

    // What was chosen; describe has the rest.
    result<elsa_series_info> choice() const {
        elsa_series_info info;
        elsa_series_info_init(&info);
        const elsa_status code = elsa_series_plan_describe(get(), &info);
        return detail::made<elsa_series_info>(code, info);
    }
};

typedef untyped_series_plan<elsa_recurrence_inputs, elsa_recurrence_run, elsa_recurrence_run_device, elsa_recurrence_bind>
    untyped_recurrence_plan;
typedef untyped_series_plan<elsa_selective_inputs, elsa_selective_run, elsa_selective_run_device, elsa_selective_bind>
    untyped_selective_plan;
typedef untyped_series_plan<elsa_convolution_inputs, elsa_convolution_run, elsa_convolution_run_device, elsa_convolution_bind>
    untyped_convolution_plan;

// A plan of a recurrence for addends of type T, with gates of type G.
template <class T, class G = float>
class recurrence_plan : public untyped_recurrence_plan {
public:
    using untyped_recurrence_plan::untyped_series_plan;
    recurrence_plan() = default;

    result<elsa::bound> bind(const elsa::workspace &room, const elsa::recurrence_inputs<T, G> &inputs,
                             const elsa::series_outputs<T> &outputs) const {
        return untyped_recurrence_plan::bind(room, inputs.get(), outputs.get());
    }

    status run(const elsa::workspace &room, const elsa::recurrence_inputs<T, G> &inputs, const elsa::series_outputs<T> &outputs,
               elsa_report *report = nullptr) const {
        return untyped_recurrence_plan::run(room, inputs.get(), outputs.get(), report);
    }

    status run_device(const elsa::workspace &room, const elsa::recurrence_inputs<T, G> &inputs,
                      const elsa::series_outputs<T> &outputs, void *stream = nullptr, elsa_report *report = nullptr) const {
        return untyped_recurrence_plan::run_device(room, inputs.get(), outputs.get(), stream, report);
    }
};

// A plan of a selective scan for tensors of type T, with time steps of type G.
template <class T, class G = float>
class selective_plan : public untyped_selective_plan {
public:
    using untyped_selective_plan::untyped_series_plan;
    selective_plan() = default;

    result<elsa::bound> bind(const elsa::workspace &room, const elsa::selective_inputs<T, G> &inputs,
                             const elsa::series_outputs<T> &outputs) const {
        return untyped_selective_plan::bind(room, inputs.get(), outputs.get());
    }

    status run(const elsa::workspace &room, const elsa::selective_inputs<T, G> &inputs, const elsa::series_outputs<T> &outputs,
               elsa_report *report = nullptr) const {
        return untyped_selective_plan::run(room, inputs.get(), outputs.get(), report);
    }

    status run_device(const elsa::workspace &room, const elsa::selective_inputs<T, G> &inputs,
                      const elsa::series_outputs<T> &outputs, void *stream = nullptr, elsa_report *report = nullptr) const {
        return untyped_selective_plan::run_device(room, inputs.get(), outputs.get(), stream, report);
    }
};

// A plan of a convolution for tensors of type T.
template <class T>
class convolution_plan : public untyped_convolution_plan {
public:
    using untyped_convolution_plan::untyped_series_plan;
    convolution_plan() = default;

    result<elsa::bound> bind(const elsa::workspace &room, const elsa::convolution_inputs<T> &inputs,
                             const elsa::series_outputs<T> &outputs) const {
        return untyped_convolution_plan::bind(room, inputs.get(), outputs.get());
    }

    status run(const elsa::workspace &room, const elsa::convolution_inputs<T> &inputs, const elsa::series_outputs<T> &outputs,
               elsa_report *report = nullptr) const {
        return untyped_convolution_plan::run(room, inputs.get(), outputs.get(), report);
    }

    status run_device(const elsa::workspace &room, const elsa::convolution_inputs<T> &inputs,
                      const elsa::series_outputs<T> &outputs, void *stream = nullptr, elsa_report *report = nullptr) const {
        return untyped_convolution_plan::run_device(room, inputs.get(), outputs.get(), stream, report);
    }
};

// One workspace for several plans of one kind: shared_workspace(one, another).
template <class... Plans>
result<workspace> shared_workspace(const Plans &...plans) {
    const elsa_plan handles[] = {plans.get()...};
    elsa_workspace handle = elsa_workspace();
    const elsa_status code = elsa_workspace_create_shared(handles, sizeof...(plans), &handle);
    return detail::made<workspace>(code, handle);
}

// Memory of the host for `size` elements of type T, zero at first; on a GPU that shares the host's memory, tensors in it
// are used in place. It may be given wherever a std::vector<T> may.
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
    // The first element as the engine's GPU addresses it, for run_device; null where it cannot.
    T *device_data() const noexcept { return static_cast<T *>(info_.device_data); }
    bool page_locked() const noexcept { return info_.page_locked != 0; }
    // Whether the engine's GPU uses tensors in it without a copy.
    bool in_place() const noexcept { return info_.in_place != 0; }

private:
    elsa_buffer_info info_;
};

// The budget of a stream, and defaults.
struct stream_options : elsa_stream_options {
    explicit stream_options(std::size_t bytes) noexcept : elsa_stream_options() {
        elsa_stream_options_init(this);
        host_budget = bytes;
    }

    // ELSA_STREAM_* together.
    stream_options &with_outputs(elsa_stream_outputs wanted) noexcept {
        outputs = wanted;
        return *this;
    }
    // Chunks of `factor` times the default.
    stream_options &with_eta(double factor) noexcept {
        eta = factor;
        return *this;
    }
};

// To be filled by a streamed run.
struct stream_report : elsa_stream_report {
    stream_report() noexcept : elsa_stream_report() { elsa_stream_report_init(this); }
};

// What a streamed run has besides its callables: lists of lengths, and the unit to begin with.
struct stream_lists {
    integers key_lengths, cu_seqlens_q, cu_seqlens_k;
    std::size_t first_unit = 0;
};

// Rows of a tensor in memory of the library's, for as long as a callable of elsa::stream::run has them: to be filled, or
// to be taken where Void is const void. See elsa_rows.
template <class Void>
class rows {
    template <class T>
    using row_of = std::conditional_t<std::is_const<Void>::value, const T, T>;

public:
    rows(const elsa_rows &where, Void *data, std::size_t bytes) noexcept : where_(&where), data_(data), bytes_(bytes) {}

    const elsa_rows &where() const noexcept { return *where_; }
    elsa_operand operand() const noexcept { return where_->operand; }
    Void *data() const noexcept { return data_; }
    std::size_t bytes() const noexcept { return bytes_; }

    // The first element of row (b, h, t), below the counts, where().length of which follow each other. Elements of another
    // size than T and rows beyond the counts are misuse, as the value of a failed result is.
    template <class T>
    row_of<T> *row(std::size_t b, std::size_t h, std::size_t t) const {
        static_assert(std::is_trivially_copyable<T>::value, "elsa: elements of tensors are plain");
        const elsa_rows &w = *where_;
        if (sizeof(T) != w.element_bytes || b >= w.count[0] || h >= w.count[1] || t >= w.count[2]) {
            detail::no_value(status(ELSA_STATUS_ARGUMENT,
                                    "rows: row (" + std::to_string(b) + ", " + std::to_string(h) + ", " +
                                        std::to_string(t) + ") with elements of " + std::to_string(sizeof(T)) +
                                        " bytes; allowed: below (" + std::to_string(w.count[0]) + ", " +
                                        std::to_string(w.count[1]) + ", " + std::to_string(w.count[2]) + "), of " +
                                        std::to_string(w.element_bytes) + " bytes"));
        }
        return static_cast<row_of<T> *>(data_) + (b * w.strides[0] + h * w.strides[1] + t * w.strides[2]);
    }

    // Calls each(batch, head, token, row) for every row, by its place in the tensor. A row has the elements
    // where().start and following, where().length of them.
    template <class T, class Each>
    void each(Each &&each) const {
        const elsa_rows &w = *where_;
        for (std::size_t b = 0; b < w.count[0]; ++b) {
            for (std::size_t h = 0; h < w.count[1]; ++h) {
                for (std::size_t t = 0; t < w.count[2]; ++t) {
                    each(w.first[0] + b, w.first[1] + h, w.first[2] + t, row<T>(b, h, t));
                }
            }
        }
    }

private:
    const elsa_rows *where_;
    Void *data_;
    std::size_t bytes_;
};

// Rows of an input, to be filled.
typedef rows<void> rows_to_fill;
// Rows of an output, which are final.
typedef rows<const void> rows_to_take;

namespace detail {

// What a callable says: nothing is 0.
template <class Call, class Rows>
auto said(Call &call, const Rows &of) -> std::enable_if_t<std::is_void<decltype(call(of))>::value, std::int32_t> {
    call(of);
    return 0;
}
template <class Call, class Rows>
auto said(Call &call, const Rows &of) -> std::enable_if_t<!std::is_void<decltype(call(of))>::value, std::int32_t> {
    static_assert(std::is_same<decltype(call(of)), std::int32_t>::value,
                  "elsa: a callable of a stream returns nothing or a std::int32_t");
    return call(of);
}

// A callable, and what it has thrown.
template <class Call>
struct carried {
    Call *call;
    std::exception_ptr thrown;

    template <class Rows>
    std::int32_t operator()(const Rows &of) noexcept {
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
        try {
            return said(*call, of);
        } catch (...) {
            thrown = std::current_exception();
            return -1;
        }
#else
        return said(*call, of);
#endif
    }
};

} // namespace detail

// Attention over tensors that callables fill and take, part by part, within a budget; see elsa_stream_run.
class stream : public detail::owner<elsa_stream, elsa_stream_destroy> {
public:
    using owner::owner;
    stream() = default;

    result<elsa_stream_info> describe() const {
        elsa_stream_info info;
        elsa_stream_info_init(&info);
        const elsa_status code = elsa_stream_describe(get(), &info);
        return detail::made<elsa_stream_info>(code, info);
    }

    // Calls read(rows_to_fill) for inputs, on a thread of the library's, and write(rows_to_take) for outputs, on this one;
    // both may run at the same time. They return nothing, or a std::int32_t that ends the run where it is not zero. What
    // they throw ends the run, too, and is thrown here, as it was, once the run has ended; the report is then that of a
    // callback which has returned -1.
    template <class Read, class Write>
    status run(Read &&read, Write &&write, elsa_stream_report *report = nullptr,
               const stream_lists &lists = stream_lists()) const {
        typedef std::remove_reference_t<Read> reads;
        typedef std::remove_reference_t<Write> writes;
        struct both {
            detail::carried<reads> read;
            detail::carried<writes> write;
        } calls = {{std::addressof(read), nullptr}, {std::addressof(write), nullptr}};
        elsa_stream_data data;
        elsa_stream_data_init(&data);
        data.user = &calls;
        data.read = [](void *user, const elsa_rows *where, void *to, std::size_t bytes) noexcept -> std::int32_t {
            return static_cast<both *>(user)->read(rows_to_fill(*where, to, bytes));
        };
        data.write = [](void *user, const elsa_rows *where, const void *from, std::size_t bytes) noexcept -> std::int32_t {
            return static_cast<both *>(user)->write(rows_to_take(*where, from, bytes));
        };
        data.key_lengths = lists.key_lengths.get();
        data.cu_seqlens_q = lists.cu_seqlens_q.get();
        data.cu_seqlens_k = lists.cu_seqlens_k.get();
        data.first_unit = lists.first_unit;
        const status done(elsa_stream_run(get(), &data, report));
        // What a write has thrown has ended the run; a read that throws meanwhile has not.
        if (calls.write.thrown || calls.read.thrown) {
            std::rethrow_exception(calls.write.thrown ? calls.write.thrown : calls.read.thrown);
        }
        return done;
    }
};

// A back end with its workers.
class engine : public detail::owner<elsa_engine, elsa_engine_destroy> {
public:
    using owner::owner;
    engine() = default;

    static result<engine> create(const elsa_engine_options &options = engine_options()) {
        elsa_engine handle = elsa_engine();
        const elsa_status code = elsa_engine_create(&options, &handle);
        return detail::made<engine>(code, handle);
    }

    result<elsa_engine_info> describe() const {
        elsa_engine_info info;
        elsa_engine_info_init(&info);
        const elsa_status code = elsa_engine_describe(get(), &info);
        return detail::made<elsa_engine_info>(code, info);
    }

    template <class T>
    result<elsa::buffer<T>> buffer(std::size_t elements) const {
        const std::size_t most = std::numeric_limits<std::size_t>::max() / sizeof(T);
        elsa_buffer handle = elsa_buffer();
        elsa_status code = elsa_buffer_create(get(), elements > most ? most * sizeof(T) : elements * sizeof(T), &handle);
        if (code != ELSA_STATUS_OK) {
            return elsa::status(code);
        }
        elsa_buffer_info info;
        elsa_buffer_info_init(&info);
        code = elsa_buffer_describe(handle, &info);
        elsa::buffer<T> made(handle, info);
        if (code != ELSA_STATUS_OK) {
            return elsa::status(code);
        }
        return result<elsa::buffer<T>>(std::move(made));
    }

    // Cancels every call of the engine that has begun and not ended; each returns ELSA_STATUS_CANCELLED.
    status cancel() const { return status(elsa_engine_cancel(get())); }

    // Loads every GPU kernel now, rather than with the first plan that needs it.
    status load_kernels() const { return status(elsa_engine_load_kernels(get())); }

    template <class T>
    result<elsa::plan<T>> plan(const elsa::problem<T> &problem,
                               const elsa_plan_options &options = plan_options()) const {
        const elsa::status types = typed<T>(problem);
        if (!types.ok()) {
            return types;
        }
        elsa_plan handle = elsa_plan();
        const elsa_status code = elsa_plan_create(get(), &problem, &options, &handle);
        if (code != ELSA_STATUS_OK) {
            return elsa::status(code);
        }
        return elsa::plan<T>(handle, problem.mask.kind, detail::bias_kind(problem));
    }
    template <class T, class G>
    result<elsa::linear_plan<T, G>> linear_plan(const elsa::linear_problem<T, G> &problem,
                                                const elsa_linear_options &options = linear_options()) const {
        const elsa::status types = gated<T, G>(problem);
        if (!types.ok()) {
            return types;
        }
        elsa_plan handle = elsa_plan();
        const elsa_status code = elsa_linear_plan_create(get(), &problem, &options, &handle);
        return detail::made<elsa::linear_plan<T, G>>(code, handle);
    }
    result<untyped_linear_plan> linear_plan(const elsa_linear_problem &problem,
                                            const elsa_linear_options &options = linear_options()) const {
        elsa_plan handle = elsa_plan();
        const elsa_status code = elsa_linear_plan_create(get(), &problem, &options, &handle);
        return detail::made<untyped_linear_plan>(code, handle);
    }

    template <class T, class G>
    result<elsa::recurrence_plan<T, G>> recurrence_plan(const elsa::recurrence_problem<T, G> &problem,
                                            const elsa_series_options &options = series_options()) const {
        const elsa::status types = gated<T, G>(problem);
        if (!types.ok()) {
            return types;
        }
        elsa_plan handle = elsa_plan();
        const elsa_status code = elsa_recurrence_plan_create(get(), &problem, &options, &handle);
        return detail::made<elsa::recurrence_plan<T, G>>(code, handle);
    }
    result<untyped_recurrence_plan> recurrence_plan(const elsa_recurrence_problem &problem,
                                      const elsa_series_options &options = series_options()) const {
        elsa_plan handle = elsa_plan();
        const elsa_status code = elsa_recurrence_plan_create(get(), &problem, &options, &handle);
        return detail::made<untyped_recurrence_plan>(code, handle);
    }

    template <class T, class G>
    result<elsa::selective_plan<T, G>> selective_plan(const elsa::selective_problem<T, G> &problem,
                                            const elsa_series_options &options = series_options()) const {
        const elsa::status types = gated<T, G>(problem);
        if (!types.ok()) {
            return types;
        }
        elsa_plan handle = elsa_plan();
        const elsa_status code = elsa_selective_plan_create(get(), &problem, &options, &handle);
        return detail::made<elsa::selective_plan<T, G>>(code, handle);
    }
    result<untyped_selective_plan> selective_plan(const elsa_selective_problem &problem,
                                      const elsa_series_options &options = series_options()) const {
        elsa_plan handle = elsa_plan();
        const elsa_status code = elsa_selective_plan_create(get(), &problem, &options, &handle);
        return detail::made<untyped_selective_plan>(code, handle);
    }

    template <class T>
    result<elsa::convolution_plan<T>> convolution_plan(const elsa::convolution_problem<T> &problem,
                                            const elsa_series_options &options = series_options()) const {
        const elsa::status types = typed<T>(problem);
        if (!types.ok()) {
            return types;
        }
        elsa_plan handle = elsa_plan();
        const elsa_status code = elsa_convolution_plan_create(get(), &problem, &options, &handle);
        return detail::made<elsa::convolution_plan<T>>(code, handle);
    }
    result<untyped_convolution_plan> convolution_plan(const elsa_convolution_problem &problem,
                                      const elsa_series_options &options = series_options()) const {
        elsa_plan handle = elsa_plan();
        const elsa_status code = elsa_convolution_plan_create(get(), &problem, &options, &handle);
        return detail::made<untyped_convolution_plan>(code, handle);
    }

    // A stream; its elements are the callables' affair.
    result<elsa::stream> stream(const elsa_problem &problem, const elsa_stream_options &options) const {
        elsa_stream handle = elsa_stream();
        const elsa_status code = elsa_stream_create(get(), &problem, &options, &handle);
        return detail::made<elsa::stream>(code, handle);
    }

    result<untyped_plan> plan(const elsa_problem &problem, const elsa_plan_options &options = plan_options()) const {
        elsa_plan handle = elsa_plan();
        const elsa_status code = elsa_plan_create(get(), &problem, &options, &handle);
        return detail::made<untyped_plan>(code, handle);
    }

private:
    // Whether a problem still has the types that its class says.
    template <class T, class Problem>
    static elsa::status typed(const Problem &problem) {
        if (problem.dtype == element<T>::dtype) {
            return elsa::status();
        }
        return elsa::status(ELSA_STATUS_ARGUMENT, "dtype: " + std::to_string(problem.dtype) +
                                                      "; allowed: that of the problem's elements, " +
                                                      std::to_string(element<T>::dtype));
    }
    template <class T, class G, class Problem>
    static elsa::status gated(const Problem &problem) {
        if (problem.dtype == element<T>::dtype && problem.gate_dtype == element<G>::dtype) {
            return elsa::status();
        }
        return elsa::status(ELSA_STATUS_ARGUMENT,
                            "dtype, gate_dtype: " + std::to_string(problem.dtype) + ", " +
                                std::to_string(problem.gate_dtype) + "; allowed: those of the problem's elements, " +
                                std::to_string(element<T>::dtype) + ", " + std::to_string(element<G>::dtype));
    }
};

// Sends messages of the library to a function for as long as it lives. There is one per process: a later one takes over,
// and the end of an earlier one then changes nothing. Once it has ended, the function is neither running nor called
// again. Any thread may call the function, several at once; it must not throw, and not create or end a logger.
class logger {
public:
    typedef std::function<void(elsa_log_level level, const char *message)> listener;

    logger() = default;
    logger(logger &&other) noexcept : listener_(std::move(other.listener_)) {}
    logger &operator=(logger &&other) noexcept {
        if (this != &other) {
            end();
            listener_ = std::move(other.listener_);
        }
        return *this;
    }
    ~logger() { end(); }

    // Messages up to `level`, one of ELSA_LOG_*.
    static result<logger> create(elsa_log_level level, listener function) {
        logger made;
        made.listener_.reset(new listener(std::move(function)));
        const std::lock_guard<std::mutex> guard(shared::logger_turn());
        const elsa_status code = elsa_log_set(level, &logger::call, made.listener_.get());
        if (code != ELSA_STATUS_OK) {
            return elsa::status(code);
        }
        shared::logger_now() = made.listener_.get();
        return result<logger>(std::move(made));
    }

private:
    static void call(void *user, elsa_log_level level, const char *message) noexcept {
        (*static_cast<listener *>(user))(level, message);
    }
    void end() noexcept {
        if (!listener_) {
            return;
        }
        const std::lock_guard<std::mutex> guard(shared::logger_turn());
        if (shared::logger_now() == listener_.get()) {
            if (elsa_log_set(ELSA_LOG_OFF, nullptr, nullptr) != ELSA_STATUS_OK) {
                // Still in use, so that it must not be freed.
                static_cast<void>(listener_.release());
                return;
            }
            shared::logger_now() = nullptr;
        }
        listener_.reset();
    }

    std::unique_ptr<listener> listener_;
};

} // inline namespace
} // namespace elsa

#endif
