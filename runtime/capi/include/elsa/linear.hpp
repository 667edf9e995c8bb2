// elsa: linear attention; see elsa.hpp.
#ifndef ELSA_LINEAR_HPP
#define ELSA_LINEAR_HPP

#include "common.hpp"
#include "linear.h"

#include <cstddef>

namespace elsa {
inline namespace ELSA_NAMESPACE {

// elsa_linear_problem over elements of type T, with decay and beta of type G. The fields are those of elsa.h; the
// functions set fields that belong together.
template <class T, class G = float>
struct linear_problem : elsa_linear_problem, private detail::check_tensor<T>, private detail::check_gates<T, G> {
    linear_problem() noexcept : elsa_linear_problem() {
        elsa_linear_problem_init(this);
        dtype = element<T>::dtype;
        gate_dtype = element<G>::dtype;
    }

    // Sets the rule: one of ELSA_RULE_*.
    linear_problem &with_rule(elsa_rule how) noexcept {
        rule = how;
        return *this;
    }
    // Sets the direction: one of ELSA_DIRECTION_*.
    linear_problem &with_direction(elsa_direction order) noexcept {
        direction = order;
        return *this;
    }
    // Sets the natural logarithms of the gates, [batch, state heads, tokens, 1 or d_k].
    linear_problem &with_decay(const elsa_view &gates) noexcept {
        has_decay = 1;
        decay = gates;
        return *this;
    }
    // Sets the rates, [batch, state heads or 1, tokens, 1].
    linear_problem &with_beta(const elsa_view &rates) noexcept {
        has_beta = 1;
        beta = rates;
        return *this;
    }
    // Sets the past states, [batch or packed, state heads, d_k, d_v]; the next two functions use the same shape.
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
    // Sets past and present states to the same memory, present_state of the outputs; past_state of the inputs is absent.
    linear_problem &with_state_in_place(const elsa_view &states) noexcept {
        in_place = 1;
        return with_past_state(states).with_present_state(states);
    }
    linear_problem &with_scale(float factor) noexcept {
        has_scale = 1;
        scale = factor;
        return *this;
    }
    // Normalises queries and keys to unit length: x / sqrt(sum of x^2 + epsilon).
    linear_problem &with_normalize(float epsilon = 1e-6f) noexcept {
        has_normalize = 1;
        normalize = epsilon;
        return *this;
    }
    // Packs sequences one after another; cu_seqlens of the inputs holds their offsets.
    linear_problem &with_packed(std::size_t sequences) noexcept {
        packed = sequences;
        return *this;
    }
};

// Options of a plan of linear attention, initially the defaults.
struct linear_options : elsa_linear_options {
    linear_options() noexcept : elsa_linear_options() { elsa_linear_options_init(this); }

    // Sets the form, one of ELSA_FORM_*, with tokens per chunk or parts of a sequence if the form has them; 0
    // selects the default.
    linear_options &with_form(elsa_form order, std::size_t chunk_tokens = 0, std::size_t sequence_parts = 0) noexcept {
        form = order;
        chunk = chunk_tokens;
        parts = sequence_parts;
        return *this;
    }
};

// Input tensors of linear attention over T, with decay and beta of type G; see elsa_linear_inputs.
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

// Output tensors of linear attention over T; see elsa_linear_outputs.
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

namespace detail {

template <>
struct bound_set<elsa_linear_inputs> {
    static elsa_status call(elsa_bound handle, const elsa_linear_inputs *inputs, const elsa_linear_outputs *outputs) noexcept {
        return elsa_linear_bound_set(handle, inputs, outputs);
    }
};

} // namespace detail

// Plan of linear attention for tensors whose types the caller checks.
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

    // Runs over tensors in device memory; see untyped_plan::run_device.
    status run_device(const elsa::workspace &room, const elsa_linear_inputs &inputs, const elsa_linear_outputs &outputs,
                      void *stream, elsa_report *report = nullptr) const {
        return status(elsa_linear_run_device(get(), room.get(), &inputs, &outputs, stream, report));
    }

    // Returns the form, the tokens per chunk and the parts; describe reports the plan's other choices.
    result<elsa_linear_info> choice() const {
        elsa_linear_info info;
        elsa_linear_info_init(&info);
        const elsa_status code = elsa_linear_plan_describe(get(), &info);
        return detail::made<elsa_linear_info>(code, info);
    }

    // Returns bounds on the errors of a run over these inputs, computed in f64 on this thread. backend is that of the
    // run's report. absolute receives a bound for each channel, at most count numbers; see elsa_linear_certify.
    result<elsa_linear_certified> certify(const elsa_linear_inputs &inputs, elsa_backend backend = ELSA_BACKEND_AUTO,
                                          double *absolute = nullptr, std::size_t count = 0) const {
        elsa_linear_certified value;
        elsa_linear_certified_init(&value);
        const elsa_status code = elsa_linear_certify(get(), backend, &inputs, &value, absolute, count);
        return detail::made<elsa_linear_certified>(code, value);
    }
};

// Plan of linear attention for tensors of type T, with decay and beta of type G.
template <class T, class G = float>
using linear_plan = detail::typed_plan<untyped_linear_plan, linear_inputs<T, G>, linear_outputs<T>>;

} // inline namespace
} // namespace elsa

#endif
