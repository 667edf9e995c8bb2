// elsa: gradients of softmax attention; see elsa.hpp.
#ifndef ELSA_GRADIENTS_HPP
#define ELSA_GRADIENTS_HPP

#include "attention.hpp"
#include "gradients.h"

#include <cstddef>

namespace elsa {
inline namespace ELSA_NAMESPACE {

// Options of a plan of gradients, initially the defaults.
struct gradients_options : elsa_gradients_options {
    gradients_options() noexcept : elsa_gradients_options() { elsa_gradients_options_init(this); }

    // Sets the largest workspace in bytes.
    gradients_options &with_budget(std::size_t bytes) noexcept {
        budget = bytes;
        return *this;
    }
};

// Input tensors of gradients over T; see elsa_gradients_inputs. out and d_out are of type O: T or float.
template <class T, class O = T>
struct gradients_inputs : private detail::check_tensor<T> {
    static_assert(element<O>::tensor &&
                      (element<O>::dtype == ELSA_DTYPE_F32 || element<O>::dtype == element<T>::dtype),
                  "elsa: out and d_out are float, or of the type of the tensors");

    input<T> q, k, v;
    elsa::mask mask, bias;
    integers key_lengths, cu_seqlens_q, cu_seqlens_k, bias_index;
    input<O> out, d_out;
    // Either lse, or state_m and state_s.
    input<float> lse, state_m, state_s;

    // Sets the results of the forward pass to these states, which must live until the run is complete.
    gradients_inputs &with_states(const elsa::states &states) noexcept {
        const elsa_states_in from = states.read();
        state_m = input<float>(from.m, states.rows());
        state_s = input<float>(from.s, states.rows());
        return *this;
    }

    elsa_gradients_inputs get() const noexcept {
        elsa_gradients_inputs all;
        elsa_gradients_inputs_init(&all);
        all.q = q.get();
        all.k = k.get();
        all.v = v.get();
        all.mask = mask.get();
        all.key_lengths = key_lengths.get();
        all.cu_seqlens_q = cu_seqlens_q.get();
        all.cu_seqlens_k = cu_seqlens_k.get();
        all.bias = bias.get();
        all.bias_index = bias_index.get();
        all.out = out.get();
        all.d_out = d_out.get();
        all.lse = lse.get();
        all.state_m = state_m.get();
        all.state_s = state_s.get();
        return all;
    }
};

// The gradients, float for every type of the tensors; see elsa_gradients_outputs.
struct gradients_outputs {
    output<float> d_q, d_k, d_v;

    elsa_gradients_outputs get() const noexcept {
        elsa_gradients_outputs all;
        elsa_gradients_outputs_init(&all);
        all.d_q = d_q.get();
        all.d_k = d_k.get();
        all.d_v = d_v.get();
        return all;
    }
};

namespace detail {

template <>
struct bound_set<elsa_gradients_inputs> {
    static elsa_status call(elsa_bound handle, const elsa_gradients_inputs *inputs,
                            const elsa_gradients_outputs *outputs) noexcept {
        return elsa_gradients_bound_set(handle, inputs, outputs);
    }
};

} // namespace detail

// Plan of gradients for tensors whose types the caller checks.
class untyped_gradients_plan : public any_plan {
public:
    using any_plan::any_plan;
    untyped_gradients_plan() = default;

    result<elsa::bound> bind(const elsa::workspace &room, const elsa_gradients_inputs &inputs,
                             const elsa_gradients_outputs &outputs) const {
        elsa_bound handle = elsa_bound();
        const elsa_status code = elsa_gradients_bind(get(), room.get(), &inputs, &outputs, &handle);
        return detail::made<elsa::bound>(code, handle);
    }

    status run(const elsa::workspace &room, const elsa_gradients_inputs &inputs, const elsa_gradients_outputs &outputs,
               elsa_report *report = nullptr) const {
        return status(elsa_gradients_run(get(), room.get(), &inputs, &outputs, report));
    }
};

// Plan of gradients for tensors of type T, with out and d_out of type O.
template <class T, class O = T>
class gradients_plan : public untyped_gradients_plan {
public:
    gradients_plan() = default;
    // mask and bias are the kinds of the problem's mask and bias.
    gradients_plan(elsa_plan handle, elsa_mask_kind mask, elsa_mask_kind bias) noexcept
        : untyped_gradients_plan(handle), kinds_(mask, bias) {}

    result<elsa::bound> bind(const elsa::workspace &room, const gradients_inputs<T, O> &inputs,
                             const gradients_outputs &outputs) const {
        if (!kinds_.fit(inputs)) {
            return kinds_.other(inputs);
        }
        return untyped_gradients_plan::bind(room, inputs.get(), outputs.get());
    }

    // Replaces the tensors of a bound call of a plan for the same types; see elsa_gradients_bound_set.
    status set(const elsa::bound &call, const gradients_inputs<T, O> &inputs, const gradients_outputs &outputs) const {
        return kinds_.fit(inputs) ? call.set(inputs.get(), outputs.get()) : kinds_.other(inputs);
    }

    status run(const elsa::workspace &room, const gradients_inputs<T, O> &inputs, const gradients_outputs &outputs,
               elsa_report *report = nullptr) const {
        return kinds_.fit(inputs) ? untyped_gradients_plan::run(room, inputs.get(), outputs.get(), report)
                                  : kinds_.other(inputs);
    }

private:
    detail::mask_kinds kinds_;
};

} // inline namespace
} // namespace elsa

#endif
