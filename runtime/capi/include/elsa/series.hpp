// elsa: operators that treat each channel independently; see elsa.hpp.
#ifndef ELSA_SERIES_HPP
#define ELSA_SERIES_HPP

#include "common.hpp"
#include "series.h"

#include <cstddef>

namespace elsa {
inline namespace ELSA_NAMESPACE {

// Return the views of dense tensors [batch, tokens, channels] and [batch, channels, tokens].
inline result<elsa_view> tokens_first(std::size_t batch, std::size_t tokens, std::size_t channels) {
    return view(ELSA_LAYOUT_BNHD, batch, 1, tokens, channels);
}
inline result<elsa_view> channels_first(std::size_t batch, std::size_t channels, std::size_t tokens) {
    return view(ELSA_LAYOUT_BHND, batch, channels, tokens, 1);
}

// elsa_recurrence_problem over addends and states of type T, with factors or their logarithms of type G.
template <class T, class G = float>
struct recurrence_problem : elsa_recurrence_problem, private detail::check_tensor<T>, private detail::check_gates<T, G> {
    recurrence_problem() noexcept : elsa_recurrence_problem() {
        elsa_recurrence_problem_init(this);
        dtype = element<T>::dtype;
        gate_dtype = element<G>::dtype;
    }

    // Sets the views of a, b and out to `series`.
    recurrence_problem &over(const elsa_view &series) noexcept {
        a = b = out = series;
        return *this;
    }
    // Declares that a holds natural logarithms.
    recurrence_problem &with_logarithms() noexcept {
        gate = ELSA_GATE_LOG;
        return *this;
    }
};

// elsa_selective_problem over tensors of type T, with time steps of type G. B and C vary per token unless they are
// fixed.
template <class T, class G = float>
struct selective_problem : elsa_selective_problem, private detail::check_tensor<T>, private detail::check_gates<T, G> {
    selective_problem() noexcept : elsa_selective_problem() {
        elsa_selective_problem_init(this);
        dtype = element<T>::dtype;
        gate_dtype = element<G>::dtype;
    }

    // Sets the views of u, delta and out to `series`, and the number of states per channel.
    selective_problem &over(const elsa_view &series, std::size_t numbers) noexcept {
        u = delta = out = series;
        states = numbers;
        return *this;
    }
    // Sets the views of per-token coefficients B and C, with groups times states channels.
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

// elsa_convolution_problem over tensors of type T.
template <class T>
struct convolution_problem : elsa_convolution_problem, private detail::check_tensor<T> {
    convolution_problem() noexcept : elsa_convolution_problem() {
        elsa_convolution_problem_init(this);
        dtype = element<T>::dtype;
    }

    // Sets the views of u and out to `series`, and the number and the order (ELSA_TAPS_*) of a filter's weights.
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

// Options of a plan of a recurrence, a selective scan or a convolution, initially the defaults.
struct series_options : elsa_series_options {
    series_options() noexcept : elsa_series_options() { elsa_series_options_init(this); }

    // Sets the number of parts of a recurrence that are processed in parallel.
    series_options &with_parts(std::size_t side_by_side) noexcept {
        parts = side_by_side;
        return *this;
    }
    // Sets the method: one of ELSA_CONVOLUTION_*.
    series_options &with_method(elsa_convolution_method how) noexcept {
        method = how;
        return *this;
    }
};

// Input tensors of a recurrence; see elsa_recurrence_inputs.
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

// Input tensors of a selective scan; see elsa_selective_inputs. fixed_b and fixed_c hold per-channel coefficients,
// instead of b and c.
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

// Input tensors of a convolution; see elsa_convolution_inputs.
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

// Output tensors of a recurrence, a selective scan or a convolution; see elsa_series_outputs.
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

template <>
struct bound_set<elsa_recurrence_inputs> {
    static elsa_status call(elsa_bound handle, const elsa_recurrence_inputs *inputs, const elsa_series_outputs *outputs) noexcept {
        return elsa_recurrence_bound_set(handle, inputs, outputs);
    }
};

template <>
struct bound_set<elsa_selective_inputs> {
    static elsa_status call(elsa_bound handle, const elsa_selective_inputs *inputs, const elsa_series_outputs *outputs) noexcept {
        return elsa_selective_bound_set(handle, inputs, outputs);
    }
};

template <>
struct bound_set<elsa_convolution_inputs> {
    static elsa_status call(elsa_bound handle, const elsa_convolution_inputs *inputs, const elsa_series_outputs *outputs) noexcept {
        return elsa_convolution_bound_set(handle, inputs, outputs);
    }
};

} // namespace detail

// Plan of an operator that treats each channel independently, for tensors whose types the caller checks.
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

    // Runs over tensors in device memory; see untyped_plan::run_device.
    status run_device(const elsa::workspace &room, const Inputs &inputs, const elsa_series_outputs &outputs,
                      void *stream = nullptr, elsa_report *report = nullptr) const {
        return status(RunDevice(get(), room.get(), &inputs, &outputs, stream, report));
    }

    // Returns the parts, the FFT length and the method; describe reports the plan's other choices.
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

// Plan of a recurrence for addends of type T, with gates of type G.
template <class T, class G = float>
using recurrence_plan = detail::typed_plan<untyped_recurrence_plan, recurrence_inputs<T, G>, series_outputs<T>>;

// Plan of a selective scan for tensors of type T, with time steps of type G.
template <class T, class G = float>
using selective_plan = detail::typed_plan<untyped_selective_plan, selective_inputs<T, G>, series_outputs<T>>;

// Plan of a convolution for tensors of type T.
template <class T>
using convolution_plan = detail::typed_plan<untyped_convolution_plan, convolution_inputs<T>, series_outputs<T>>;

} // inline namespace
} // namespace elsa

#endif
