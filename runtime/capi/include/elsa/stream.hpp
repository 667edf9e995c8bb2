// elsa: softmax attention over tensors that callables supply and receive; see elsa.hpp.
#ifndef ELSA_STREAM_HPP
#define ELSA_STREAM_HPP

#include "common.hpp"
#include "stream.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>

namespace elsa {
inline namespace ELSA_NAMESPACE {

// Options of a stream: a budget in bytes, and defaults for all others.
struct stream_options : elsa_stream_options {
    explicit stream_options(std::size_t bytes) noexcept : elsa_stream_options() {
        elsa_stream_options_init(this);
        host_budget = bytes;
    }

    // Selects outputs: a combination of ELSA_STREAM_*.
    stream_options &with_outputs(elsa_stream_outputs wanted) noexcept {
        outputs = wanted;
        return *this;
    }
    // Sets chunks of `factor` times the default length.
    stream_options &with_eta(double factor) noexcept {
        eta = factor;
        return *this;
    }
    // Sets the sizes of units and chunks to those of a run to resume, from its description.
    stream_options &with_sizes(const elsa_stream_info &of_run) noexcept {
        for (std::size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            sizes[i] = of_run.sizes[i];
        }
        return *this;
    }
    // Lets a GPU compute, within this number of bytes of its memory.
    stream_options &with_device_budget(std::size_t bytes) noexcept {
        device_budget = bytes;
        return *this;
    }
};

// Report for a streamed run to fill.
struct stream_report : elsa_stream_report {
    stream_report() noexcept : elsa_stream_report() { elsa_stream_report_init(this); }
};

// Lists of lengths of a streamed run, and its first unit; see elsa_stream_data.
struct stream_lists {
    integers key_lengths, cu_seqlens_q, cu_seqlens_k;
    std::size_t first_unit = 0;
};

// Rows of a tensor in memory of the library, valid during one call of read or write of elsa::stream::run: to be filled,
// or to be read if Void is const void. See elsa_rows.
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

    // Returns a pointer to the where().length contiguous elements of row (b, h, t), with indices below the counts. If T
    // has another size than where().element_bytes, or an index is not below its count, the call ends the program, or
    // throws with ELSA_THROW.
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

    // Calls each(batch, head, token, row) for every row, with its position in the tensor. A row has
    // where().length elements from where().start on.
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
// Rows of an output, in their final state.
typedef rows<const void> rows_to_take;

namespace detail {

// Callable that receives finished units and ignores them.
struct ignored {
    void operator()(std::size_t) const noexcept {}
};

// Calls a callable and returns its result; void counts as 0.
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

// Wraps a callable and stores the exception that it throws.
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

// Attention over tensors that callables supply and receive part by part, within a budget; see elsa_stream_run.
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

    // Calls read(rows_to_fill) for inputs on a thread of the library, and write(rows_to_take) for outputs on this
    // thread; both may run at the same time. They return void, or a std::int32_t that ends the run if non-zero. An
    // exception also ends the run and is rethrown here once the run has ended; the report is then that of a callback
    // that returned -1.
    template <class Read, class Write>
    status run(Read &&read, Write &&write, elsa_stream_report *report = nullptr,
               const stream_lists &lists = stream_lists()) const {
        return run_noted(read, write, detail::ignored(), report, lists);
    }

    // Runs like run(), and calls finished(std::size_t) on this thread with the number of each unit whose outputs are all
    // written; see unit_finished of elsa_stream_data.
    template <class Read, class Write, class Finished>
    status run_noted(Read &&read, Write &&write, Finished &&finished, elsa_stream_report *report = nullptr,
                     const stream_lists &lists = stream_lists()) const {
        typedef std::remove_reference_t<Read> reads;
        typedef std::remove_reference_t<Write> writes;
        typedef std::remove_reference_t<Finished> notes;
        struct both {
            detail::carried<reads> read;
            detail::carried<writes> write;
            detail::carried<notes> finished;
        } calls = {{std::addressof(read), nullptr}, {std::addressof(write), nullptr}, {std::addressof(finished), nullptr}};
        elsa_stream_data data;
        elsa_stream_data_init(&data);
        data.user = &calls;
        data.read = [](void *user, const elsa_rows *where, void *to, std::size_t bytes) noexcept -> std::int32_t {
            return static_cast<both *>(user)->read(rows_to_fill(*where, to, bytes));
        };
        data.write = [](void *user, const elsa_rows *where, const void *from, std::size_t bytes) noexcept -> std::int32_t {
            return static_cast<both *>(user)->write(rows_to_take(*where, from, bytes));
        };
        data.unit_finished = [](void *user, std::size_t unit) noexcept -> std::int32_t {
            return static_cast<both *>(user)->finished(unit);
        };
        data.key_lengths = lists.key_lengths.get();
        data.cu_seqlens_q = lists.cu_seqlens_q.get();
        data.cu_seqlens_k = lists.cu_seqlens_k.get();
        data.first_unit = lists.first_unit;
        const status done(elsa_stream_run(get(), &data, report));
        // An exception of a write has ended the run; one of a concurrent read has not.
        for (const std::exception_ptr &thrown : {calls.write.thrown, calls.finished.thrown, calls.read.thrown}) {
            if (thrown) {
                std::rethrow_exception(thrown);
            }
        }
        return done;
    }
};

} // inline namespace
} // namespace elsa

#endif
