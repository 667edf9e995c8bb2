// elsa over MPI: the problem, its chunks, and states of chunks; see elsa_mpi.hpp.
#ifndef ELSA_MPI_PRODUCTS_HPP
#define ELSA_MPI_PRODUCTS_HPP

#include "elsa.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace elsa {
inline namespace ELSA_NAMESPACE {
namespace mpi {

// Consecutive tokens.
struct span {
    std::size_t first, tokens;
};

// Returns one of the chunks of a sequence. The sizes of chunks differ by one token at most, the larger ones come first.
inline span cut(std::size_t tokens, std::size_t chunks, std::size_t chunk) noexcept {
    const std::size_t least = tokens / chunks, more = tokens % chunks;
    return {chunk * least + std::min(chunk, more), least + (chunk < more ? 1 : 0)};
}

// Returns the process that has a chunk. The order turns at each end, so that processes have equal parts of causal work.
inline int owner(std::size_t chunk, int ranks) noexcept {
    const std::size_t place = chunk % (2 * static_cast<std::size_t>(ranks));
    const int turn = static_cast<int>(place);
    return turn < ranks ? turn : 2 * ranks - 1 - turn;
}

// The problem of all processes, over f32.
struct whole {
    whole() : rules() { elsa_problem_init(&rules); }

    std::size_t batch = 1, heads = 1, kv_heads = 1, queries = 0, keys = 0, dim = 0, value_dim = 0;
    // Causality, window, scale, soft cap and mask. The dims of the mask are those of all queries and keys. The views,
    // the element type and has_key_lengths are not read. ELSA_CAUSAL_BOTTOM_RIGHT is for queries that continue a cache.
    elsa_problem rules;
    // Number of valid keys of each sequence of the batch; empty if all keys are valid.
    std::vector<std::int64_t> key_lengths;
    // Number of chunks. Causal work is balanced best if it is twice the number of processes, or a multiple of that.
    std::size_t chunks = 1;
    // Name of the run, which all processes must give.
    std::string run_id;
    // Seconds to wait for another process.
    double timeout = 60;
    // Bytes per second that each process sends, and receives, at most; 0: as fast as MPI. Answers do not depend on it.
    double slow_link = 0;
};

// Supplies the tensors. tensor('q', tokens, to), and the same for 'k' and 'v', writes [batch, heads, tokens, dim].
// mask(queries, keys, to) writes the part of the mask; an axis of size 1 stays whole. Both are called for the tokens
// that the process has.
struct source {
    std::function<status(char, span, float *)> tensor;
    std::function<status(span, span, void *)> mask;
};

// States of some queries, [batch, heads, tokens].
struct part {
    span queries;
    elsa::states states;
};

namespace detail {

// Runs of consecutive positions.
inline std::vector<span> runs(const std::vector<std::size_t> &positions) {
    std::vector<span> made;
    for (const std::size_t position : positions) {
        if (!made.empty() && made.back().first + made.back().tokens == position) {
            made.back().tokens++;
        } else {
            made.push_back({position, 1});
        }
    }
    return made;
}

inline std::size_t tokens(const std::vector<span> &runs) noexcept {
    std::size_t sum = 0;
    for (const span &run : runs) {
        sum += run.tokens;
    }
    return sum;
}

inline std::size_t element_bytes(elsa_mask_kind kind) noexcept {
    return kind == ELSA_MASK_BOOL ? 1 : kind == ELSA_MASK_F32 ? 4 : 2;
}

// Products of chunks: plans for the shapes of calls, and their inputs.
class products {
public:
    products(const engine &engine, const whole &of, const source &from) : engine_(engine), of_(of), from_(from) {}

    // Returns the problem of the queries and keys of a call.
    result<elsa_problem> problem(std::size_t queries, std::size_t keys) const {
        elsa_problem made = of_.rules;
        made.dtype = ELSA_DTYPE_F32;
        made.has_key_lengths = of_.key_lengths.empty() ? 0 : 1;
        const struct {
            elsa_view *view;
            std::size_t heads, tokens, dim;
        } views[] = {{&made.q, of_.heads, queries, of_.dim},
                     {&made.k, of_.kv_heads, keys, of_.dim},
                     {&made.v, of_.kv_heads, keys, of_.value_dim},
                     {&made.out, of_.heads, queries, of_.value_dim}};
        for (const auto &entry : views) {
            const result<elsa_view> view =
                elsa::view(ELSA_LAYOUT_BHND, of_.batch, entry.heads, entry.tokens, entry.dim);
            if (!view.ok()) {
                return view.status();
            }
            *entry.view = *view;
        }
        if (made.mask.kind != ELSA_MASK_NONE) {
            const std::size_t rank = made.mask.rank;
            for (std::size_t back = 1; back <= 2 && back <= rank && rank <= 4; back++) {
                std::size_t &axis = made.mask.dims[rank - back];
                const std::size_t all = back == 1 ? of_.keys : of_.queries;
                if (axis != 1 && axis != all) {
                    return status(ELSA_STATUS_ARGUMENT, "mask: axis of " + std::to_string(axis) + "; allowed: 1 or " +
                                                            std::to_string(all));
                }
                axis = axis == 1 ? 1 : back == 1 ? keys : queries;
            }
        }
        return made;
    }

    // Reads a tensor at the given runs: [batch, heads, tokens, dim].
    status read(char name, const std::vector<span> &runs, std::vector<float> *to) const {
        const std::size_t sequences = of_.batch * (name == 'q' ? of_.heads : of_.kv_heads);
        const std::size_t dim = name == 'v' ? of_.value_dim : of_.dim, all = tokens(runs);
        to->resize(sequences * all * dim);
        std::vector<float> piece;
        std::size_t offset = 0;
        for (const span &run : runs) {
            piece.resize(sequences * run.tokens * dim);
            const status done = from_.tensor(name, run, piece.data());
            if (!done.ok()) {
                return done;
            }
            for (std::size_t sequence = 0; sequence < sequences; sequence++) {
                std::copy_n(piece.data() + sequence * run.tokens * dim, run.tokens * dim,
                            to->data() + (sequence * all + offset) * dim);
            }
            offset += run.tokens;
        }
        return status();
    }

    // Reads the part of the mask at the given runs.
    status read_mask(const std::vector<span> &queries, const std::vector<span> &keys, std::vector<char> *to) const {
        const elsa_mask &mask = of_.rules.mask;
        if (mask.kind == ELSA_MASK_NONE) {
            return status();
        }
        const std::size_t size = element_bytes(mask.kind);
        std::size_t axes[4] = {1, 1, 1, 1};
        for (std::size_t axis = 0; axis < mask.rank && mask.rank <= 4; axis++) {
            axes[4 - mask.rank + axis] = mask.dims[axis];
        }
        const std::vector<span> one = {{0, 1}};
        const std::vector<span> &rows = axes[2] == 1 ? one : queries, &columns = axes[3] == 1 ? one : keys;
        const std::size_t height = tokens(rows), width = tokens(columns), planes = axes[0] * axes[1];
        to->resize(planes * height * width * size);
        std::vector<char> piece;
        std::size_t row = 0;
        for (const span &down : rows) {
            std::size_t column = 0;
            for (const span &across : columns) {
                piece.resize(planes * down.tokens * across.tokens * size);
                const status done = from_.mask(down, across, piece.data());
                if (!done.ok()) {
                    return done;
                }
                for (std::size_t line = 0; line < planes * down.tokens; line++) {
                    const std::size_t at = (line / down.tokens * height + row + line % down.tokens) * width + column;
                    const std::size_t bytes = across.tokens * size;
                    std::copy_n(piece.data() + line * bytes, bytes, to->data() + at * size);
                }
                column += across.tokens;
            }
            row += down.tokens;
        }
        return status();
    }

    elsa_inputs inputs(const float *q, const float *k, const float *v, std::size_t queries, std::size_t keys,
                       const std::vector<char> &mask) const noexcept {
        const std::size_t key_rows = of_.batch * of_.kv_heads * keys;
        elsa_inputs all;
        elsa_inputs_init(&all);
        all.q = input<float>(q, of_.batch * of_.heads * queries * of_.dim).get();
        all.k = input<float>(k, key_rows * of_.dim).get();
        all.v = input<float>(v, key_rows * of_.value_dim).get();
        if (!mask.empty()) {
            all.mask.data = mask.data();
            all.mask.bytes = mask.size();
        }
        if (!of_.key_lengths.empty()) {
            all.key_lengths = integers(of_.key_lengths).get();
        }
        return all;
    }

    // Computes the states of queries over keys.
    result<elsa::states> states(span queries, span keys, const float *q, const float *k, const float *v) {
        elsa::states made(of_.batch * of_.heads * queries.tokens, of_.value_dim);
        if (queries.tokens == 0 || keys.tokens == 0 || excluded(queries, keys)) {
            return result<elsa::states>(std::move(made));
        }
        call &by = calls_[{queries.tokens, keys.tokens}];
        status done = by.plan.get().id == 0 ? prepare(&by, queries.tokens, keys.tokens) : status();
        std::vector<char> mask;
        if (done.ok()) {
            done = read_mask({queries}, {keys}, &mask);
        }
        if (done.ok()) {
            outputs<float> to;
            to.with_states(made);
            chunk place(keys.first, of_.keys);
            place.of_queries(queries.first, of_.queries);
            const elsa_inputs in = inputs(q, k, v, queries.tokens, keys.tokens, mask);
            done = by.plan.partial(by.room, place, in, to.get());
        }
        return done.ok() ? result<elsa::states>(std::move(made)) : result<elsa::states>(done);
    }

    // Creates the plan of the largest call. Returns the lines that all processes must share.
    result<std::string> describe(const char *mode, std::size_t queries, std::size_t keys) {
        const elsa_problem &rules = of_.rules;
        std::ostringstream text;
        text << "version " << elsa_version() << "\nabi " << elsa_abi_version() << "\nmode " << mode << "\nchunks "
             << of_.chunks << "\nbatch " << of_.batch << "\nheads " << of_.heads << "\nkv_heads " << of_.kv_heads
             << "\nqueries " << of_.queries << "\nkeys " << of_.keys << "\ndim " << of_.dim << "\nvalue_dim "
             << of_.value_dim << "\ncausal " << rules.causal << "\nwindow_left "
             << (rules.has_window_left ? rules.window_left : -1) << "\nwindow_right "
             << (rules.has_window_right ? rules.window_right : -1) << "\nscale ";
        text.precision(9);
        rules.has_scale ? text << rules.scale : text << "default";
        text << "\nsoftcap " << rules.softcap << "\nmask " << rules.mask.kind;
        for (std::size_t axis = 0; axis < rules.mask.rank && axis < 4; axis++) {
            text << ' ' << rules.mask.dims[axis];
        }
        text << "\nkey_lengths";
        for (const std::int64_t length : of_.key_lengths) {
            text << ' ' << length;
        }
        text << "\nrun_id " << of_.run_id << '\n';
        if (of_.chunks == 0) {
            return status(ELSA_STATUS_ARGUMENT, "chunks: 0; allowed: at least 1");
        }
        if (queries == 0 || keys == 0) {
            return text.str();
        }
        call &by = calls_[{queries, keys}];
        const status done = prepare(&by, queries, keys);
        if (!done.ok()) {
            return done;
        }
        const result<elsa_plan_info> plan = by.plan.describe();
        if (!plan.ok()) {
            return plan.status();
        }
        // Other kernels may round in another order.
        text << "kernel " << plan->kernel << '\n';
        return text.str();
    }

private:
    struct call {
        untyped_plan plan;
        workspace room;
    };

    status prepare(call *by, std::size_t queries, std::size_t keys) const {
        const result<elsa_problem> of = problem(queries, keys);
        if (!of.ok()) {
            return of.status();
        }
        result<untyped_plan> plan = engine_.plan(*of);
        if (!plan.ok()) {
            return plan.status();
        }
        result<workspace> room = plan->workspace();
        if (!room.ok()) {
            return room.status();
        }
        by->plan = std::move(*plan);
        by->room = std::move(*room);
        return status();
    }

    // Returns true if no query of any sequence may attend a key, by causality and lengths.
    bool excluded(span queries, span keys) const noexcept {
        const auto lengths = std::max_element(of_.key_lengths.begin(), of_.key_lengths.end());
        const std::int64_t valid = lengths == of_.key_lengths.end() ? static_cast<std::int64_t>(of_.keys) : *lengths;
        const std::int64_t first = static_cast<std::int64_t>(keys.first);
        const std::int64_t last = static_cast<std::int64_t>(queries.first + queries.tokens) - 1;
        const bool bottom = of_.rules.causal == ELSA_CAUSAL_BOTTOM_RIGHT;
        const std::int64_t offset = bottom ? valid - static_cast<std::int64_t>(of_.queries) : 0;
        return first >= valid || (of_.rules.causal != ELSA_CAUSAL_NONE && first > last + offset);
    }

    const engine &engine_;
    const whole &of_;
    const source &from_;
    std::map<std::pair<std::size_t, std::size_t>, call> calls_;
};

} // namespace detail

} // namespace mpi
} // inline namespace
} // namespace elsa

#endif
