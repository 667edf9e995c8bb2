// elsa: engines, which create the plans of all operators, and loggers; see elsa.hpp.
#ifndef ELSA_ENGINE_HPP
#define ELSA_ENGINE_HPP

#include "attention.hpp"
#include "gradients.hpp"
#include "gradients_task.hpp"
#include "linear.hpp"
#include "series.hpp"
#include "stream.hpp"
#include "task.hpp"

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace elsa {
namespace shared {

// Mutex that serialises the creation and the end of loggers.
inline std::mutex &logger_turn() {
    static std::mutex lock;
    return lock;
}
// Listener of the active logger; null without one.
inline const void *&logger_now() {
    static const void *now = nullptr;
    return now;
}

} // namespace shared

inline namespace ELSA_NAMESPACE {

// Back end with its worker threads.
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

    // Cancels every call of the engine in progress; each returns ELSA_STATUS_CANCELLED.
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
    // Creates a plan of gradients, whose inputs out and d_out are of type O: gradients_plan<float>(problem).
    template <class O, class T>
    result<elsa::gradients_plan<T, O>> gradients_plan(const elsa::problem<T> &problem,
                                                      const elsa_gradients_options &options = gradients_options()) const {
        const elsa::status types = typed<T>(problem);
        if (!types.ok()) {
            return types;
        }
        const elsa_gradients_options with = with_results<O>(options);
        elsa_plan handle = elsa_plan();
        const elsa_status code = elsa_gradients_plan_create(get(), &problem, &with, &handle);
        if (code != ELSA_STATUS_OK) {
            return elsa::status(code);
        }
        return elsa::gradients_plan<T, O>(handle, problem.mask.kind, detail::bias_kind(problem));
    }
    result<untyped_gradients_plan> gradients_plan(const elsa_problem &problem,
                                                  const elsa_gradients_options &options = gradients_options()) const {
        return plan_of<untyped_gradients_plan>(elsa::status(), elsa_gradients_plan_create, problem, options);
    }

    // Creates a task of gradients of a quorum, whose inputs out and d_out are of type O:
    // gradients_task<float>(problem, task_options({7}, number)).
    template <class O, class T>
    result<elsa::gradients_task<T, O>> gradients_task(const elsa::problem<T> &problem, const elsa_task_options &options,
                                                      const elsa_gradients_options &plan = gradients_options()) const {
        const elsa::status types = typed<T>(problem);
        return types.ok() ? task_of<elsa::gradients_task<T, O>>(problem, options, with_results<O>(plan)) : types;
    }
    result<untyped_gradients_task> gradients_task(const elsa_problem &problem, const elsa_task_options &options,
                                                  const elsa_gradients_options &plan = gradients_options()) const {
        return task_of<untyped_gradients_task>(problem, options, plan);
    }

    template <class T, class G>
    result<elsa::linear_plan<T, G>> linear_plan(const elsa::linear_problem<T, G> &problem,
                                                const elsa_linear_options &options = linear_options()) const {
        return plan_of<elsa::linear_plan<T, G>>(gated<T, G>(problem), elsa_linear_plan_create, problem, options);
    }
    result<untyped_linear_plan> linear_plan(const elsa_linear_problem &problem,
                                            const elsa_linear_options &options = linear_options()) const {
        return plan_of<untyped_linear_plan>(elsa::status(), elsa_linear_plan_create, problem, options);
    }

    template <class T, class G>
    result<elsa::recurrence_plan<T, G>> recurrence_plan(const elsa::recurrence_problem<T, G> &problem,
                                            const elsa_series_options &options = series_options()) const {
        return plan_of<elsa::recurrence_plan<T, G>>(gated<T, G>(problem), elsa_recurrence_plan_create, problem, options);
    }
    result<untyped_recurrence_plan> recurrence_plan(const elsa_recurrence_problem &problem,
                                      const elsa_series_options &options = series_options()) const {
        return plan_of<untyped_recurrence_plan>(elsa::status(), elsa_recurrence_plan_create, problem, options);
    }

    template <class T, class G>
    result<elsa::selective_plan<T, G>> selective_plan(const elsa::selective_problem<T, G> &problem,
                                            const elsa_series_options &options = series_options()) const {
        return plan_of<elsa::selective_plan<T, G>>(gated<T, G>(problem), elsa_selective_plan_create, problem, options);
    }
    result<untyped_selective_plan> selective_plan(const elsa_selective_problem &problem,
                                      const elsa_series_options &options = series_options()) const {
        return plan_of<untyped_selective_plan>(elsa::status(), elsa_selective_plan_create, problem, options);
    }

    template <class T>
    result<elsa::convolution_plan<T>> convolution_plan(const elsa::convolution_problem<T> &problem,
                                            const elsa_series_options &options = series_options()) const {
        return plan_of<elsa::convolution_plan<T>>(typed<T>(problem), elsa_convolution_plan_create, problem, options);
    }
    result<untyped_convolution_plan> convolution_plan(const elsa_convolution_problem &problem,
                                      const elsa_series_options &options = series_options()) const {
        return plan_of<untyped_convolution_plan>(elsa::status(), elsa_convolution_plan_create, problem, options);
    }

    // Creates a stream; the callables are responsible for its element types.
    result<elsa::stream> stream(const elsa_problem &problem, const elsa_stream_options &options) const {
        elsa_stream handle = elsa_stream();
        const elsa_status code = elsa_stream_create(get(), &problem, &options, &handle);
        return detail::made<elsa::stream>(code, handle);
    }

    // Creates a task of a quorum. The caller is responsible for the types of its inputs.
    result<elsa::task> task(const elsa_problem &problem, const elsa_task_options &options,
                            const elsa_plan_options &plan = plan_options()) const {
        elsa_task handle = elsa_task();
        const elsa_status code = elsa_task_create(get(), &problem, &plan, &options, &handle);
        if (code != ELSA_STATUS_OK) {
            return elsa::status(code);
        }
        return elsa::task(handle, problem.q.shape[0] * problem.q.shape[1], problem.v.shape[3]);
    }

    result<untyped_plan> plan(const elsa_problem &problem, const elsa_plan_options &options = plan_options()) const {
        return plan_of<untyped_plan>(elsa::status(), elsa_plan_create, problem, options);
    }

private:
    // Creates a plan by one of the functions of elsa.h, unless `types` is a failure.
    template <class Plan, class Function, class Problem, class Options>
    result<Plan> plan_of(const elsa::status &types, Function function, const Problem &problem, const Options &options) const {
        if (!types.ok()) {
            return types;
        }
        elsa_plan handle = elsa_plan();
        const elsa_status code = function(get(), &problem, &options, &handle);
        return detail::made<Plan>(code, handle);
    }

    template <class Task>
    result<Task> task_of(const elsa_problem &problem, const elsa_task_options &options,
                         const elsa_gradients_options &plan) const {
        elsa_gradients_task handle = elsa_gradients_task();
        const elsa_status code = elsa_gradients_task_create(get(), &problem, &plan, &options, &handle);
        if (code != ELSA_STATUS_OK) {
            return elsa::status(code);
        }
        return Task(handle, problem);
    }

    // Returns options for results of the forward pass of type O.
    template <class O>
    static elsa_gradients_options with_results(elsa_gradients_options options) noexcept {
        options.out_is_f32 = options.d_out_is_f32 = element<O>::dtype == ELSA_DTYPE_F32 ? 1 : 0;
        return options;
    }

    // Checks that the program has not changed the types that the problem's class has set.
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

// Sends messages of the library to a function during its lifetime. One logger is active per process: a later one
// replaces an earlier one, whose end then has no effect. Once a logger has ended, its function is neither running nor
// called again. Any thread may call the function, several at the same time; it must not throw, and must not create or
// end a logger.
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

    // Sends messages up to `level`, one of ELSA_LOG_*.
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
                // Still in use, so it must not be freed.
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
