// elsa: tasks of gradients of softmax attention, for several boards; see elsa.hpp.
#ifndef ELSA_GRADIENTS_TASK_HPP
#define ELSA_GRADIENTS_TASK_HPP

#include "gradients.hpp"
#include "gradients_task.h"
#include "task.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace elsa {
inline namespace ELSA_NAMESPACE {

// Shares of the gradients, in dense memory; see elsa_gradients_shares.
struct gradients_shares {
    std::vector<float> d_q, d_k, d_v;

    gradients_outputs write() {
        gradients_outputs to;
        to.d_q = d_q;
        to.d_k = d_k;
        to.d_v = d_v;
        return to;
    }
    elsa_gradients_shares read() const noexcept {
        elsa_gradients_shares all;
        elsa_gradients_shares_init(&all);
        all.d_q = input<float>(d_q).get();
        all.d_k = input<float>(d_k).get();
        all.d_v = input<float>(d_v).get();
        return all;
    }
};

// Task of gradients over tensors whose types the caller checks: the shares of a part of the pairs of queries and keys.
class untyped_gradients_task : public detail::owner<elsa_gradients_task, elsa_gradients_task_destroy> {
public:
    untyped_gradients_task() = default;
    // problem is the problem of the task.
    untyped_gradients_task(elsa_gradients_task handle, const elsa_problem &problem) noexcept
        : owner(handle), rows_{{problem.q.shape[0] * problem.q.shape[1] * problem.q.shape[3],
                                problem.k.shape[0] * problem.k.shape[1] * problem.k.shape[3],
                                problem.v.shape[0] * problem.v.shape[1] * problem.v.shape[3]}} {}

    result<elsa_task_info> describe() const {
        elsa_task_info info;
        elsa_task_info_init(&info);
        const elsa_status code = elsa_gradients_task_describe(get(), &info);
        return detail::made<elsa_task_info>(code, info);
    }

    result<task_tokens> tokens() const {
        const result<elsa_task_info> info = describe();
        if (!info.ok()) {
            return info.status();
        }
        task_tokens made;
        made.queries.resize(info->queries);
        made.keys.resize(info->keys);
        const elsa_status code = elsa_gradients_task_tokens(get(), made.queries.data(), made.queries.size(),
                                                            made.keys.data(), made.keys.size());
        return detail::made<task_tokens>(code, std::move(made));
    }

    // Returns room for the task's shares, filled with zeros.
    result<gradients_shares> shares() const {
        const result<elsa_task_info> info = describe();
        if (!info.ok()) {
            return info.status();
        }
        gradients_shares made;
        made.d_q.resize(rows_[0] * info->queries);
        made.d_k.resize(rows_[1] * info->keys);
        made.d_v.resize(rows_[2] * info->keys);
        return result<gradients_shares>(std::move(made));
    }

    // Computes the shares of the task, and allocates nothing; `outputs` are dense, such as the write() of shares().
    status run(const elsa_gradients_inputs &inputs, const elsa_gradients_outputs &outputs,
               elsa_task_report *report = nullptr) const {
        return status(elsa_gradients_task_run(get(), &inputs, &outputs, report));
    }

private:
    // Number of elements of each gradient for one token of all sequences.
    std::array<std::size_t, 3> rows_{{0, 0, 0}};
};

// Task of gradients over tensors of type T, with out and d_out of type O.
template <class T, class O = T>
class gradients_task : public untyped_gradients_task {
public:
    gradients_task() = default;
    gradients_task(elsa_gradients_task handle, const elsa_problem &problem) noexcept
        : untyped_gradients_task(handle, problem), kinds_(problem.mask.kind, ELSA_MASK_NONE) {}

    status run(const gradients_inputs<T, O> &inputs, const gradients_outputs &outputs,
               elsa_task_report *report = nullptr) const {
        return kinds_.fit(inputs) ? untyped_gradients_task::run(inputs.get(), outputs.get(), report)
                                  : kinds_.other(inputs);
    }

private:
    detail::mask_kinds kinds_;
};

// Sum of the shares of all tasks of gradients.
class gradients_merge : public detail::owner<elsa_gradients_merge, elsa_gradients_merge_destroy> {
public:
    using owner::owner;
    gradients_merge() = default;

    // Creates a merge for the complete problem. Of the options, only the division is used.
    static result<gradients_merge> create(const elsa_problem &problem, const elsa_task_options &options) {
        elsa_gradients_merge handle = elsa_gradients_merge();
        const elsa_status code = elsa_gradients_merge_create(&problem, &options, &handle);
        return detail::made<gradients_merge>(code, handle);
    }

    // Adds the shares of the next task: those of task 0 first.
    status add(std::uint64_t number, const elsa_gradients_shares &shares) const {
        return status(elsa_gradients_merge_add(get(), number, &shares));
    }
    status add(std::uint64_t number, const gradients_shares &shares) const { return add(number, shares.read()); }

    // Writes the gradients, once all tasks are added. The merge then begins another sum.
    status finish(const gradients_outputs &outputs) const {
        const elsa_gradients_outputs to = outputs.get();
        return status(elsa_gradients_merge_finish(get(), &to));
    }
};

} // inline namespace
} // namespace elsa

#endif
