// elsa: exact softmax attention, from C++14. Header only.
//
// Objects own their handles and destroy them. Nothing throws: what can fail returns an elsa::result or an elsa::status.
// With ELSA_THROW defined before this header, elsa::or_throw turns both into exceptions. Threads: as in elsa.h.
#ifndef ELSA_HPP
#define ELSA_HPP

#include "elsa.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#ifdef ELSA_THROW
#include <stdexcept>
#endif

namespace elsa {

// The status of a call, with the message of elsa_last_error.
class status {
public:
    status() : code_(ELSA_STATUS_OK) {}
    // Of a call of this thread that has just returned.
    explicit status(elsa_status code) : code_(code), message_(code == ELSA_STATUS_OK ? "" : elsa_last_error()) {}

    bool ok() const noexcept { return code_ == ELSA_STATUS_OK; }
    explicit operator bool() const noexcept { return ok(); }
    elsa_status code() const noexcept { return code_; }
    const std::string &message() const noexcept { return message_; }

private:
    elsa_status code_;
    std::string message_;
};

// A value, or the status of the call that failed to make one. T has a default, which stands in for a missing value.
template <class T>
class result {
public:
    result(T value) : value_(std::move(value)) {}
    result(elsa::status why) : status_(std::move(why)) {}

    bool ok() const noexcept { return status_.ok(); }
    explicit operator bool() const noexcept { return ok(); }
    const elsa::status &status() const noexcept { return status_; }
    const std::string &message() const noexcept { return status_.message(); }
    T &value() & noexcept { return value_; }
    const T &value() const & noexcept { return value_; }
    T &&value() && noexcept { return std::move(value_); }
    T &operator*() & noexcept { return value_; }
    const T &operator*() const & noexcept { return value_; }
    T &&operator*() && noexcept { return std::move(value_); }
    T *operator->() noexcept { return &value_; }
    const T *operator->() const noexcept { return &value_; }

private:
    elsa::status status_;
    T value_{};
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

} // namespace detail

// Memory that is read: `elements` elements from `data`.
template <class T>
elsa_input input(const T *data, std::size_t elements) noexcept {
    elsa_input memory;
    memory.data = data;
    memory.bytes = elements * sizeof(T);
    return memory;
}

// Memory that is written.
template <class T>
elsa_output output(T *data, std::size_t elements) noexcept {
    elsa_output memory;
    memory.data = data;
    memory.bytes = elements * sizeof(T);
    return memory;
}

inline elsa_integers integers(const std::int64_t *data, std::size_t count) noexcept {
    elsa_integers list;
    list.data = data;
    list.count = count;
    return list;
}

// Plain attention over f32, with empty views.
inline elsa_problem problem() noexcept {
    elsa_problem value;
    elsa_problem_init(&value);
    return value;
}

// The defaults.
inline elsa_plan_options plan_options() noexcept {
    elsa_plan_options value;
    elsa_plan_options_init(&value);
    return value;
}

// The defaults.
inline elsa_engine_options engine_options() noexcept {
    elsa_engine_options value;
    elsa_engine_options_init(&value);
    return value;
}

// No tensor.
inline elsa_inputs inputs() noexcept {
    elsa_inputs value;
    elsa_inputs_init(&value);
    return value;
}

// No tensor.
inline elsa_outputs outputs() noexcept {
    elsa_outputs value;
    elsa_outputs_init(&value);
    return value;
}

// A report to be filled.
inline elsa_report report() noexcept {
    elsa_report value;
    elsa_report_init(&value);
    return value;
}

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

// The memory that runs work in. One call at a time may use it.
class workspace : public detail::owner<elsa_workspace, elsa_workspace_destroy> {
public:
    using owner::owner;
    workspace() = default;
};

// A plan with the tensors of a frame.
class bound : public detail::owner<elsa_bound, elsa_bound_destroy> {
public:
    using owner::owner;
    bound() = default;

    status run(elsa_report *report = nullptr) const { return status(elsa_bound_run(get(), report)); }
};

// What is decided once per shape.
class plan : public detail::owner<elsa_plan, elsa_plan_destroy> {
public:
    using owner::owner;
    plan() = default;

    result<elsa::workspace> workspace() const {
        elsa_workspace handle = elsa_workspace();
        const elsa_status code = elsa_workspace_create(get(), &handle);
        if (code != ELSA_STATUS_OK) {
            return status(code);
        }
        return elsa::workspace(handle);
    }

    // A workspace in memory of the caller's, which outlives it.
    result<elsa::workspace> workspace_in(void *memory, std::size_t bytes) const {
        elsa_workspace handle = elsa_workspace();
        const elsa_status code = elsa_workspace_create_in(get(), memory, bytes, &handle);
        if (code != ELSA_STATUS_OK) {
            return status(code);
        }
        return elsa::workspace(handle);
    }

    result<elsa::bound> bind(const elsa::workspace &room, const elsa_inputs &inputs,
                             const elsa_outputs &outputs) const {
        elsa_bound handle = elsa_bound();
        const elsa_status code = elsa_bind(get(), room.get(), &inputs, &outputs, &handle);
        if (code != ELSA_STATUS_OK) {
            return status(code);
        }
        return elsa::bound(handle);
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

    // Over tensors in device memory. With a null stream the call waits.
    status run_device(const elsa::workspace &room, const elsa_inputs &inputs, const elsa_outputs &outputs,
                      void *stream, elsa_report *report = nullptr) const {
        return status(elsa_run_device(get(), room.get(), &inputs, &outputs, stream, report));
    }

    result<elsa_plan_info> describe() const {
        elsa_plan_info info;
        elsa_plan_info_init(&info);
        const elsa_status code = elsa_plan_describe(get(), &info);
        if (code != ELSA_STATUS_OK) {
            return status(code);
        }
        return info;
    }

    result<elsa_certificate> certificate(elsa_backend backend = ELSA_BACKEND_AUTO) const {
        elsa_certificate value;
        elsa_certificate_init(&value);
        const elsa_status code = elsa_plan_certificate(get(), backend, &value);
        if (code != ELSA_STATUS_OK) {
            return status(code);
        }
        return value;
    }
};

// A back end with its workers.
class engine : public detail::owner<elsa_engine, elsa_engine_destroy> {
public:
    using owner::owner;
    engine() = default;

    static result<engine> create() { return make(nullptr); }
    static result<engine> create(const elsa_engine_options &options) { return make(&options); }

    result<elsa::plan> plan(const elsa_problem &problem) const { return make_plan(problem, nullptr); }
    result<elsa::plan> plan(const elsa_problem &problem, const elsa_plan_options &options) const {
        return make_plan(problem, &options);
    }

private:
    static result<engine> make(const elsa_engine_options *options) {
        elsa_engine handle = elsa_engine();
        const elsa_status code = elsa_engine_create(options, &handle);
        if (code != ELSA_STATUS_OK) {
            return elsa::status(code);
        }
        return engine(handle);
    }

    result<elsa::plan> make_plan(const elsa_problem &problem, const elsa_plan_options *options) const {
        elsa_plan handle = elsa_plan();
        const elsa_status code = elsa_plan_create(get(), &problem, options, &handle);
        if (code != ELSA_STATUS_OK) {
            return elsa::status(code);
        }
        return elsa::plan(handle);
    }
};

#ifdef ELSA_THROW

class error : public std::runtime_error {
public:
    explicit error(const status &why) : std::runtime_error(why.message()), code_(why.code()) {}
    elsa_status code() const noexcept { return code_; }

private:
    elsa_status code_;
};

inline void or_throw(const status &done) {
    if (!done.ok()) {
        throw error(done);
    }
}

template <class T>
T or_throw(result<T> outcome) {
    or_throw(outcome.status());
    return std::move(outcome).value();
}

#endif

} // namespace elsa

#endif
