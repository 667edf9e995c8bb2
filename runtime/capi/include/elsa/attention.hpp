// elsa: softmax attention; see elsa.hpp.
#ifndef ELSA_ATTENTION_HPP
#define ELSA_ATTENTION_HPP

#include "attention.h"
#include "common.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace elsa {
inline namespace ELSA_NAMESPACE {

namespace detail {

// Returns the shape of a mask of `kind` over the last axes of [batch, heads, queries, keys].
inline elsa_mask axes(elsa_mask_kind kind, std::initializer_list<std::size_t> dims) noexcept {
    elsa_mask made = elsa_mask();
    made.kind = kind;
    // The library rejects a rank beyond four.
    made.rank = static_cast<std::uint32_t>(dims.size());
    std::size_t axis = 0;
    for (const std::size_t entries : dims) {
        if (axis < 4) {
            made.dims[axis++] = entries;
        }
    }
    return made;
}

// Element kind of a problem's bias.
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

// Elements of a mask: bool or unsigned char (one byte each), float, elsa::f16 or elsa::bf16. Also elements of a bias or
// of a table of relative positions. Default-constructed, it is absent.
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

namespace detail {

// Kinds of a problem's mask and bias, which the tensors of its calls must have.
class mask_kinds {
public:
    mask_kinds() = default;
    mask_kinds(elsa_mask_kind mask, elsa_mask_kind bias) noexcept : mask_(mask), bias_(bias) {}

    template <class Inputs>
    bool fit(const Inputs &inputs) const noexcept {
        return fits(inputs.mask, mask_) && fits(inputs.bias, bias_);
    }
    // Returns the failure of inputs that do not fit.
    template <class Inputs>
    status other(const Inputs &inputs) const {
        const bool mask = !fits(inputs.mask, mask_);
        return status(ELSA_STATUS_ARGUMENT,
                      std::string(mask ? "mask" : "bias") + ": elements of kind " +
                          std::to_string((mask ? inputs.mask : inputs.bias).kind()) +
                          " (ELSA_MASK_*); allowed: the problem's, " + std::to_string(mask ? mask_ : bias_));
    }

private:
    static bool fits(const elsa::mask &given, elsa_mask_kind kind) noexcept {
        return given.kind() == kind || given.kind() == ELSA_MASK_NONE;
    }

    elsa_mask_kind mask_ = ELSA_MASK_NONE, bias_ = ELSA_MASK_NONE;
};

} // namespace detail

// Options of a plan, initially the defaults.
struct plan_options : elsa_plan_options {
    plan_options() noexcept : elsa_plan_options() { elsa_plan_options_init(this); }

    // Lets runs leave out keys with at most this share of a row's weights, between 0 and 1, both excluded.
    plan_options &with_error_budget(float share) noexcept {
        error_budget = share;
        return *this;
    }
    // Selects one of ELSA_SCHEDULE_*; `threshold` is the lambda of schedules that have one, 0 for its default.
    plan_options &with_schedule(elsa_schedule which, float threshold = 0) noexcept {
        schedule = which;
        lambda = threshold;
        return *this;
    }
    // Selects one of ELSA_TENSOR_CORES_*: the use of a GPU's Tensor Cores.
    plan_options &with_tensor_cores(elsa_tensor_cores use) noexcept {
        tensor_cores = use;
        return *this;
    }
};

// Position of a call's keys among all keys: key j of the call is key `offset` + j of `total`. The call has all queries,
// unless of_queries says otherwise.
struct chunk : elsa_chunk {
    chunk(std::size_t offset, std::size_t total) noexcept : elsa_chunk() {
        elsa_chunk_init(this);
        key_offset = offset;
        key_total = total;
    }

    // Makes query i of the call query `offset` + i of `total`.
    chunk &of_queries(std::size_t offset, std::size_t total) noexcept {
        query_offset = offset;
        query_total = total;
        return *this;
    }
};

// elsa_problem over elements of type T. The fields are those of elsa.h; the functions set fields that belong together.
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
    // Sets a mask of elements of type M over the last axes of [batch, heads, queries, keys].
    template <class M>
    problem &with_mask(std::initializer_list<std::size_t> dims) noexcept {
        static_assert(element<M>::mask, "elsa: a mask is of bool, unsigned char or elements of tensors");
        mask = detail::axes(element<M>::mask_kind, dims);
        return *this;
    }
    // Sets a bias of elements of type M over the last axes of [batch, heads, queries, keys].
    template <class M>
    problem &with_bias(std::initializer_list<std::size_t> dims) noexcept {
        static_assert(element<M>::tensor, "elsa: a bias is of float, elsa::f16 or elsa::bf16");
        bias = detail::axes(element<M>::mask_kind, dims);
        return *this;
    }
    // Sets a table of relative position biases, [entries, heads] of type M; if indexed, the inputs have bias_index.
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
    // Sets windows of a picture; see elsa_windows.
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
    // Sets a cache in place: views of its full capacity, whose first `past` tokens are filled. A run appends the tokens
    // of k and v, which must be set already. present_k and present_v of the outputs are the cache's memory.
    problem &with_cache(const elsa_view &keys, const elsa_view &values, std::size_t past) noexcept {
        with_past(keys, values).with_present(keys, values);
        past_k.shape[2] = past_v.shape[2] = past;
        present_k.shape[2] = past + k.shape[2];
        present_v.shape[2] = past + v.shape[2];
        append = 1;
        return *this;
    }
};

// Converts elements of a mask: integers to bytes (zero means not attended), doubles to floats. elsa::mask accepts the
// result.
inline result<std::vector<unsigned char>> mask_of(const std::int32_t *data, std::size_t count) {
    return detail::converted<unsigned char>(ELSA_MASK_SOURCE_I32, data, count);
}
inline result<std::vector<unsigned char>> mask_of(const std::int64_t *data, std::size_t count) {
    return detail::converted<unsigned char>(ELSA_MASK_SOURCE_I64, data, count);
}
inline result<std::vector<float>> mask_of(const double *data, std::size_t count) {
    return detail::converted<float>(ELSA_MASK_SOURCE_F64, data, count);
}

// States (m, S, W) of `rows` rows with values of size `dim`, in owned memory. Initially the states of no keys, which
// are neutral in a merge.
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

    // Merges the states of later keys, with the same rows and dim, into these; ELSA_STATUS_ARGUMENT if they differ or a
    // state is invalid. Merge in the order of the keys for reproducible bits.
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

    // Writes the output [rows, dim], and the log-sum-exp [rows] if given; ELSA_STATUS_ARGUMENT if either is too small.
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

// Input tensors of a problem over T; see elsa_inputs.
template <class T>
struct inputs : private detail::check_tensor<T> {
    input<T> q, k, v, past_k, past_v;
    elsa::mask mask, bias;
    integers key_lengths, cu_seqlens_q, cu_seqlens_k, bias_index;
    // CUDA event for which the work of run_device waits; null in other calls.
    void *ready_event = nullptr;

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
        all.ready_event = ready_event;
        return all;
    }
};

// Output tensors of a problem over T; see elsa_outputs.
template <class T>
struct outputs : private detail::check_tensor<T> {
    output<T> out;
    output<float> lse, state_m, state_s, state_w;
    output<T> present_k, present_v;
    // CUDA event that run_device records after its work; null in other calls.
    void *done_event = nullptr;

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
        all.done_event = done_event;
        return all;
    }
};

namespace detail {

template <>
struct bound_set<elsa_inputs> {
    static elsa_status call(elsa_bound handle, const elsa_inputs *inputs, const elsa_outputs *outputs) noexcept {
        return elsa_bound_set(handle, inputs, outputs);
    }
};

} // namespace detail

// Plan for tensors whose types the caller checks.
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

    // Computes the states of a subset of the keys.
    status partial(const elsa::workspace &room, const elsa_inputs &inputs, const elsa_outputs &outputs,
                   elsa_report *report = nullptr) const {
        return status(elsa_partial(get(), room.get(), nullptr, &inputs, &outputs, report));
    }

    // Computes the states of the keys of the call, which chunk places among all keys; see elsa_partial.
    status partial(const elsa::workspace &room, const elsa_chunk &chunk, const elsa_inputs &inputs,
                   const elsa_outputs &outputs, elsa_report *report = nullptr) const {
        return status(elsa_partial(get(), room.get(), &chunk, &inputs, &outputs, report));
    }

    // Runs over tensors in device memory. If stream is null, the call waits; a captured stream records the run in its
    // CUDA graph, as described at elsa_run_device.
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

// Plan for tensors of type T: the decisions made once per shape.
template <class T>
class plan : public untyped_plan {
public:
    plan() = default;
    // mask and bias are the kinds of the problem's mask and bias.
    plan(elsa_plan handle, elsa_mask_kind mask, elsa_mask_kind bias = ELSA_MASK_NONE) noexcept
        : untyped_plan(handle), kinds_(mask, bias) {}

    result<elsa::bound> bind(const elsa::workspace &room, const elsa::inputs<T> &inputs,
                             const elsa::outputs<T> &outputs) const {
        if (!kinds_.fit(inputs)) {
            return kinds_.other(inputs);
        }
        return untyped_plan::bind(room, inputs.get(), outputs.get());
    }

    // Replaces the tensors of a bound call of a plan for the same types; see elsa_bound_set.
    status set(const elsa::bound &call, const elsa::inputs<T> &inputs, const elsa::outputs<T> &outputs) const {
        return kinds_.fit(inputs) ? call.set(inputs.get(), outputs.get()) : kinds_.other(inputs);
    }

    status run(const elsa::workspace &room, const elsa::inputs<T> &inputs, const elsa::outputs<T> &outputs,
               elsa_report *report = nullptr) const {
        return kinds_.fit(inputs) ? untyped_plan::run(room, inputs.get(), outputs.get(), report) : kinds_.other(inputs);
    }

    status partial(const elsa::workspace &room, const elsa::inputs<T> &inputs, const elsa::outputs<T> &outputs,
                   elsa_report *report = nullptr) const {
        return kinds_.fit(inputs) ? untyped_plan::partial(room, inputs.get(), outputs.get(), report) : kinds_.other(inputs);
    }
    status partial(const elsa::workspace &room, const elsa_chunk &chunk, const elsa::inputs<T> &inputs,
                   const elsa::outputs<T> &outputs, elsa_report *report = nullptr) const {
        return kinds_.fit(inputs) ? untyped_plan::partial(room, chunk, inputs.get(), outputs.get(), report)
                             : kinds_.other(inputs);
    }

    status run_device(const elsa::workspace &room, const elsa::inputs<T> &inputs, const elsa::outputs<T> &outputs,
                      void *stream, elsa_report *report = nullptr) const {
        return kinds_.fit(inputs) ? untyped_plan::run_device(room, inputs.get(), outputs.get(), stream, report)
                             : kinds_.other(inputs);
    }

private:
    detail::mask_kinds kinds_;
};

} // inline namespace
} // namespace elsa

#endif
