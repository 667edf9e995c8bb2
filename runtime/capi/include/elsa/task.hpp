// elsa: tasks of quorums, parts of softmax attention for several boards; see elsa.hpp.
#ifndef ELSA_TASK_HPP
#define ELSA_TASK_HPP

#include "attention.hpp"
#include "files.h"
#include "task.h"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace elsa {
inline namespace ELSA_NAMESPACE {

// Options of a task: task `number` of a division into the given numbers of chunks, one for each level.
struct task_options : elsa_task_options {
    task_options(std::initializer_list<std::size_t> levels, std::uint64_t task_number) noexcept : elsa_task_options() {
        elsa_task_options_init(this);
        number = task_number;
        std::size_t level = 0;
        for (const std::size_t of : levels) {
            if (level < sizeof chunks / sizeof *chunks) {
                chunks[level++] = of;
            }
        }
        // The library rejects a list without levels, and so one with too many.
        if (levels.size() > level) {
            chunks[0] = 0;
        }
    }

    // Declares that the tensors contain only the tokens of the task, of a problem with these numbers of tokens.
    task_options &with_gathered(std::size_t all_queries, std::size_t all_keys) noexcept {
        gathered = 1;
        queries = all_queries;
        keys = all_keys;
        return *this;
    }
};

// Report for the run of a task to fill.
struct task_report : elsa_task_report {
    task_report() noexcept : elsa_task_report() { elsa_task_report_init(this); }
};

// Positions of a task's tokens among all tokens, in the order of the task.
struct task_tokens {
    std::vector<std::size_t> queries, keys;
};

// Task of a quorum over tensors whose types the caller checks: a part of the pairs of queries and keys.
class task : public detail::owner<elsa_task, elsa_task_destroy> {
public:
    task() = default;
    // sequences is the number of batches times that of heads, dim the size of values.
    task(elsa_task handle, std::size_t sequences, std::size_t dim) noexcept
        : owner(handle), sequences_(sequences), dim_(dim) {}

    result<elsa_task_info> describe() const {
        elsa_task_info info;
        elsa_task_info_init(&info);
        const elsa_status code = elsa_task_describe(get(), &info);
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
        const elsa_status code = elsa_task_tokens(get(), made.queries.data(), made.queries.size(), made.keys.data(),
                                                  made.keys.size());
        return detail::made<task_tokens>(code, std::move(made));
    }

    // Returns room for the states of the task's queries.
    result<elsa::states> states() const {
        const result<elsa_task_info> info = describe();
        return info.ok() ? result<elsa::states>(elsa::states(sequences_ * info->queries, dim_)) : info.status();
    }

    // Computes the states of the task's queries; `to` comes from states().
    status run(const elsa_inputs &inputs, elsa::states &to, elsa_task_report *report = nullptr) const {
        const result<elsa_task_info> info = describe();
        if (!info.ok()) {
            return info.status();
        }
        if (to.rows() != sequences_ * info->queries || to.dim() != dim_) {
            return other("states", to, info->queries);
        }
        const elsa_states_out arrays = to.write();
        return status(elsa_task_run(get(), &inputs, &arrays, report));
    }

    // Writes the states of the task's queries to the file `path`, which ends with .npz, for elsa::task_files and for the
    // tool, elsa merge. `run` names the run: only files with the same name merge. key_lengths are those of the run that
    // computed the states; empty if the problem has none.
    status write_file(const elsa::states &of_task, const std::string &path, const std::string &run,
                      const std::vector<std::int64_t> &key_lengths = {}) const {
        const result<elsa_task_info> info = describe();
        if (!info.ok()) {
            return info.status();
        }
        if (of_task.rows() != sequences_ * info->queries || of_task.dim() != dim_) {
            return other("of_task", of_task, info->queries);
        }
        elsa_task_file file;
        elsa_task_file_init(&file);
        file.path = path.c_str();
        file.run = run.c_str();
        if (!key_lengths.empty()) {
            file.key_lengths.data = key_lengths.data();
            file.key_lengths.count = key_lengths.size();
        }
        const elsa_states_in from = of_task.read();
        return status(elsa_task_file_write(get(), &from, &file));
    }

    // Returns the states of all queries: those of the task's queries, and the states of no keys. elsa::states::merge
    // merges them with those of other tasks.
    result<elsa::states> spread(const elsa::states &of_task) const {
        const result<elsa_task_info> info = describe();
        if (!info.ok()) {
            return info.status();
        }
        if (of_task.rows() != sequences_ * info->queries || of_task.dim() != dim_) {
            return other("of_task", of_task, info->queries);
        }
        elsa::states whole(sequences_ * info->query_total, dim_);
        const elsa_states_in from = of_task.read();
        const elsa_states_out arrays = whole.write();
        const elsa_status code = elsa_task_spread(get(), &from, &arrays);
        return detail::made<elsa::states>(code, std::move(whole));
    }

private:
    status other(const char *name, const elsa::states &found, std::size_t queries) const {
        return status(ELSA_STATUS_ARGUMENT, name + (": " + std::to_string(found.rows())) + " rows of " +
                                                std::to_string(found.dim()) + "; allowed: " +
                                                std::to_string(sequences_ * queries) + " rows of " +
                                                std::to_string(dim_));
    }

    std::size_t sequences_ = 0, dim_ = 0;
};

// Files of all tasks of a quorum, and the answer to write: out, lse or both.
class task_files {
public:
    explicit task_files(std::vector<std::string> paths) : paths_(std::move(paths)) {}

    // Requires that the files have the name of this run.
    task_files &with_run(std::string name) {
        run_ = std::move(name);
        has_run_ = true;
        return *this;
    }

    // Writes the output to the file `path`, which ends with .npy. layout is ELSA_LAYOUT_BHND or ELSA_LAYOUT_BNHD.
    task_files &with_out(std::string path, elsa_layout layout = ELSA_LAYOUT_BHND) {
        out_ = std::move(path);
        layout_ = layout;
        return *this;
    }

    // Writes the log-sum-exp of each row to the file `path`, which ends with .npy.
    task_files &with_lse(std::string path) {
        lse_ = std::move(path);
        return *this;
    }

    // Limits the memory of the process during the merge, in bytes.
    task_files &with_host_budget(std::size_t bytes) noexcept {
        host_budget_ = bytes;
        return *this;
    }

    // Merges the files and writes the answer.
    result<elsa_task_merged> merge() const {
        std::vector<const char *> paths;
        for (const std::string &path : paths_) {
            paths.push_back(path.c_str());
        }
        elsa_task_files files;
        elsa_task_files_init(&files);
        files.paths = paths.data();
        files.count = paths.size();
        files.run = has_run_ ? run_.c_str() : nullptr;
        files.out = out_.empty() ? nullptr : out_.c_str();
        files.lse = lse_.empty() ? nullptr : lse_.c_str();
        files.host_budget = host_budget_;
        files.layout = layout_;
        elsa_task_merged merged;
        elsa_task_merged_init(&merged);
        const elsa_status code = elsa_task_files_merge(&files, &merged);
        return detail::made<elsa_task_merged>(code, merged);
    }

private:
    std::vector<std::string> paths_;
    std::string run_, out_, lse_;
    bool has_run_ = false;
    std::size_t host_budget_ = 0;
    elsa_layout layout_ = ELSA_LAYOUT_BHND;
};

} // inline namespace
} // namespace elsa

#endif
