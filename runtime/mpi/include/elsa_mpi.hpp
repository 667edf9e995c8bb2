// elsa over MPI: exact softmax attention by several processes. Header only, C++14, over elsa.hpp.
//
// The queries and the keys are each cut into chunks of consecutive tokens. For each chunk of queries and each chunk of
// keys, elsa_partial computes states. The states of a query merge in a balanced binary tree over the numbers of the key
// chunks. The tree belongs to the chunks and not to the processes, so the answer has the same bits for any number of
// processes. It has other bits for another number of chunks.
//
// - ring: each process has some chunks of queries and keys. Keys and values pass around; the next ones are on their way
//   while the current ones are used.
// - quorum: the processes share the tasks of a division by quorums. The tree is that of elsa merge, over the tasks.
// - decode: each process has all queries and some chunks of keys. One reduction merges the states.
//
// Every process of the communicator calls the same function with the same arguments. The functions compare the
// arguments first, and return a failure on all processes if they differ. A process that waits for another one longer
// than the time-out returns ELSA_STATUS_DEVICE. After that, memory that MPI may still use is not freed, and the caller
// should end all processes by MPI_Abort. MPI must have been initialised; one thread of a process calls these functions.
#ifndef ELSA_MPI_HPP
#define ELSA_MPI_HPP

#include "elsa_mpi/products.hpp"
#include "elsa_mpi/team.hpp"
#include "elsa_mpi/tree.hpp"

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace elsa {
inline namespace ELSA_NAMESPACE {
namespace mpi {

// Computes attention with a ring over the keys. Returns the states of the queries of this process, one part for each of
// its chunks, in the order of the chunks.
inline result<std::vector<part>> ring(const engine &engine, const whole &of, const source &from, MPI_Comm comm) {
    detail::team team(comm, of.timeout, of.slow_link);
    detail::products products(engine, of, from);
    const std::size_t chunks = of.chunks;
    const auto has = [&](int rank, std::size_t chunk) { return owner(chunk, team.ranks) == rank; };
    // Keys and values of a process, chunk by chunk.
    const auto elements = [&](int rank) {
        std::size_t sum = 0;
        for (std::size_t chunk = 0; chunk < chunks; chunk++) {
            sum += has(rank, chunk) ? cut(of.keys, chunks, chunk).tokens : 0;
        }
        return sum * of.batch * of.kv_heads * (of.dim + of.value_dim);
    };
    std::vector<std::vector<float>> queries(chunks);
    std::unique_ptr<std::vector<float>> now(new std::vector<float>), next(new std::vector<float>);
    result<std::string> mine = products.describe("ring", chunks ? cut(of.queries, chunks, 0).tokens : 0,
                                                 chunks ? cut(of.keys, chunks, 0).tokens : 0);
    status done;
    for (std::size_t chunk = 0; chunk < chunks && mine.ok() && done.ok(); chunk++) {
        std::vector<float> piece;
        if (has(team.rank, chunk)) {
            done = products.read('q', {cut(of.queries, chunks, chunk)}, &queries[chunk]);
            for (const char name : {'k', 'v'}) {
                done = done.ok() ? products.read(name, {cut(of.keys, chunks, chunk)}, &piece) : done;
                now->insert(now->end(), piece.begin(), piece.end());
            }
        }
    }
    done = detail::begin(team, done.ok() ? mine : result<std::string>(done));
    if (!done.ok()) {
        return done;
    }
    std::vector<merge_tree> trees(chunks);
    for (int step = 0; step < team.ranks && done.ok(); step++) {
        const int whose = (team.rank - step + team.ranks) % team.ranks;
        if (step + 1 < team.ranks) {
            next->resize(elements((whose - 1 + team.ranks) % team.ranks));
            team.move(true, now->data(), now->size(), (team.rank + 1) % team.ranks, step);
            team.move(false, next->data(), next->size(), (team.rank - 1 + team.ranks) % team.ranks, step);
        }
        const float *at = now->data();
        for (std::size_t chunk = 0; chunk < chunks && done.ok(); chunk++) {
            if (!has(whose, chunk)) {
                continue;
            }
            const span keys = cut(of.keys, chunks, chunk);
            const float *values = at + of.batch * of.kv_heads * keys.tokens * of.dim;
            for (std::size_t row = 0; row < chunks && done.ok(); row++) {
                if (has(team.rank, row)) {
                    const span rows = cut(of.queries, chunks, row);
                    result<states> made = products.states(rows, keys, queries[row].data(), at, values);
                    done = made.ok() ? trees[row].add(0, chunk, std::move(*made)) : made.status();
                    team.test();
                }
            }
            at = values + of.batch * of.kv_heads * keys.tokens * of.value_dim;
        }
        const status moved = team.wait("keys and values");
        if (!moved.ok()) {
            // MPI may still use this memory.
            now.release();
            next.release();
            return moved;
        }
        std::swap(now, next);
    }
    std::vector<part> parts;
    for (std::size_t chunk = 0; chunk < chunks && done.ok(); chunk++) {
        if (has(team.rank, chunk)) {
            const span rows = cut(of.queries, chunks, chunk);
            result<states> all = trees[chunk].finish(of.batch * of.heads * rows.tokens, of.value_dim);
            done = all.ok() ? status() : all.status();
            if (done.ok()) {
                parts.push_back(part{rows, std::move(*all)});
            }
        }
    }
    return done.ok() ? result<std::vector<part>>(std::move(parts)) : result<std::vector<part>>(done);
}

// Computes attention by the tasks of a division by quorums into the chunks of `levels`; process r computes tasks r,
// r + p, and so on. Returns the states of an equal share of the queries, with the bits of elsa merge.
inline result<std::vector<part>> quorum(const engine &engine, const whole &of, const std::vector<std::size_t> &levels,
                                        const source &from, MPI_Comm comm) {
    detail::team team(comm, of.timeout, of.slow_link);
    detail::products products(engine, of, from);
    const std::size_t sequences = of.batch * of.heads, dim = of.value_dim;
    const std::size_t ranks = static_cast<std::size_t>(team.ranks);
    const auto share = [&](std::size_t rank) { return cut(of.queries, ranks, rank); };
    elsa_task_options options;
    elsa_task_options_init(&options);
    const std::size_t most = sizeof options.chunks / sizeof *options.chunks;
    // The library rejects a list without levels, and so one with too many.
    std::copy_n(levels.begin(), levels.size() > most ? 0 : levels.size(), options.chunks);
    std::uint64_t tasks = 0;
    // Computes a task: the positions of its queries, and its states. Without room for states, only counts the tasks.
    const auto compute = [&](std::uint64_t number, std::vector<std::size_t> *rows, states *made) -> status {
        options.number = number;
        options.gathered = 0;
        const result<elsa_problem> all = products.problem(of.queries, of.keys);
        if (!all.ok()) {
            return all.status();
        }
        const result<task> listed = engine.task(*all, options);
        if (!listed.ok()) {
            return listed.status();
        }
        const result<task_tokens> tokens = listed->tokens();
        const result<elsa_task_info> info = listed->describe();
        if (!tokens.ok() || !info.ok()) {
            return tokens.ok() ? info.status() : tokens.status();
        }
        tasks = info->tasks;
        if (made == nullptr) {
            return status();
        }
        *rows = tokens->queries;
        *made = states(sequences * rows->size(), dim);
        if (rows->empty() || tokens->keys.empty()) {
            return status();
        }
        options.gathered = 1;
        options.queries = of.queries;
        options.keys = of.keys;
        const std::vector<span> queries = detail::runs(*rows), keys = detail::runs(tokens->keys);
        const result<elsa_problem> part = products.problem(rows->size(), tokens->keys.size());
        if (!part.ok()) {
            return part.status();
        }
        const result<task> by = engine.task(*part, options);
        if (!by.ok()) {
            return by.status();
        }
        std::vector<float> q, k, v;
        std::vector<char> mask;
        status done = products.read('q', queries, &q);
        done = done.ok() ? products.read('k', keys, &k) : done;
        done = done.ok() ? products.read('v', keys, &v) : done;
        done = done.ok() ? products.read_mask(queries, keys, &mask) : done;
        const elsa_inputs in = products.inputs(q.data(), k.data(), v.data(), rows->size(), tokens->keys.size(), mask);
        return done.ok() ? by->run(in, *made) : done;
    };
    std::vector<std::size_t> rows;
    states made;
    result<std::string> mine = products.describe("quorum", of.queries, of.keys);
    if (mine.ok()) {
        for (const std::size_t level : levels) {
            *mine += "level " + std::to_string(level) + '\n';
        }
        const status counted = compute(0, nullptr, nullptr);
        mine = counted.ok() ? mine : result<std::string>(counted);
    }
    status done = detail::begin(team, mine);
    if (!done.ok()) {
        return done;
    }
    merge_tree tree;
    const span own = share(static_cast<std::size_t>(team.rank));
    for (std::uint64_t base = 0; base < tasks && done.ok(); base += static_cast<std::uint64_t>(team.ranks)) {
        const std::uint64_t number = base + static_cast<std::uint64_t>(team.rank);
        if (number >= tasks) {
            rows.clear();
        } else {
            done = compute(number, &rows, &made);
        }
        // The message for a process: positions of rows in its share, then m, S and W of these rows of all sequences.
        using words = std::vector<std::vector<std::uint64_t>>;
        using numbers = std::vector<std::vector<float>>;
        std::unique_ptr<words> places(new words(2 * ranks));
        std::unique_ptr<numbers> data(new numbers(2 * ranks));
        std::unique_ptr<std::vector<std::uint64_t>> counts(new std::vector<std::uint64_t>(2 * ranks));
        const elsa_states_in all = made.read();
        for (std::size_t to = 0; to < ranks && done.ok(); to++) {
            const span theirs = share(to);
            std::vector<std::size_t> picked;
            for (std::size_t row = 0; row < rows.size(); row++) {
                if (rows[row] >= theirs.first && rows[row] < theirs.first + theirs.tokens) {
                    picked.push_back(row);
                    (*places)[to].push_back(rows[row] - theirs.first);
                }
            }
            for (std::size_t i = 0; i < sequences * picked.size(); i++) {
                const std::size_t row = i / picked.size() * rows.size() + picked[i % picked.size()];
                (*data)[to].push_back(all.m[row]);
                (*data)[to].push_back(all.s[row]);
                (*data)[to].insert((*data)[to].end(), all.w + row * dim, all.w + (row + 1) * dim);
            }
            (*counts)[to] = picked.size();
        }
        if (done.ok()) {
            std::uint64_t *sent = counts->data();
            done = team.collective("sizes of states", [=](MPI_Request *request) {
                return MPI_Ialltoall(sent, 1, MPI_UINT64_T, sent + ranks, 1, MPI_UINT64_T, comm, request);
            });
        }
        for (std::size_t peer = 0; peer < ranks && done.ok(); peer++) {
            const int rank = static_cast<int>(peer);
            const std::size_t count = (*counts)[ranks + peer];
            (*places)[ranks + peer].resize(count);
            (*data)[ranks + peer].resize(count * sequences * (dim + 2));
            team.move(false, (*places)[ranks + peer].data(), count, rank, 0);
            team.move(false, (*data)[ranks + peer].data(), (*data)[ranks + peer].size(), rank, 1);
            team.move(true, (*places)[peer].data(), (*places)[peer].size(), rank, 0);
            team.move(true, (*data)[peer].data(), (*data)[peer].size(), rank, 1);
        }
        done = done.ok() ? team.wait("states of tasks") : done;
        if (!done.ok()) {
            // MPI may still use this memory.
            places.release();
            data.release();
            counts.release();
            return done;
        }
        for (std::size_t peer = 0; peer < ranks && base + peer < tasks && done.ok(); peer++) {
            const std::vector<std::uint64_t> &at = (*places)[ranks + peer];
            const float *from_task = (*data)[ranks + peer].data();
            states leaf(sequences * own.tokens, dim);
            const elsa_states_out to = leaf.write();
            for (std::size_t i = 0; i < sequences * at.size(); i++, from_task += dim + 2) {
                const std::size_t row = i / at.size() * own.tokens + at[i % at.size()];
                to.m[row] = from_task[0];
                to.s[row] = from_task[1];
                std::copy_n(from_task + 2, dim, to.w + row * dim);
            }
            done = tree.add(0, base + peer, std::move(leaf));
        }
    }
    result<states> all = done.ok() ? tree.finish(sequences * own.tokens, dim) : result<states>(done);
    if (!all.ok()) {
        return all.status();
    }
    std::vector<part> parts;
    parts.push_back(part{own, std::move(*all)});
    return result<std::vector<part>>(std::move(parts));
}

// Computes attention of a few queries over keys that are spread over the processes, with one reduction. Every process
// returns the states of all queries. The reduction is a blocking call: nonblocking ones with operators of programs have
// been wrong. Before it, all processes have answered within the time-out; `guard`, if given, is called with true before
// and with false after the reduction, so that a program can limit it.
inline result<std::vector<part>> decode(const engine &engine, const whole &of, const source &from, MPI_Comm comm,
                                        const std::function<void(bool)> &guard = std::function<void(bool)>()) {
    detail::team team(comm, of.timeout, of.slow_link);
    detail::products products(engine, of, from);
    const std::size_t rows = of.batch * of.heads * of.queries, dim = of.value_dim;
    std::size_t room = 2;
    for (std::size_t leaves = 1; leaves < of.chunks; leaves *= 2) {
        room += 2;
    }
    const std::size_t bytes = merge_tree::bytes(rows, dim, room);
    std::vector<float> q, k, v;
    const std::size_t longest = of.chunks > 0 ? cut(of.keys, of.chunks, 0).tokens : 0;
    result<std::string> mine = products.describe("decode", of.queries, longest);
    status done = mine.ok() ? products.read('q', {span{0, of.queries}}, &q) : mine.status();
    if (done.ok() && bytes > (std::size_t{1} << 30)) {
        done = status(ELSA_STATUS_ARGUMENT, "queries: states of " + std::to_string(bytes) +
                                                " bytes; allowed: at most 1 GiB, or a ring");
    }
    done = detail::begin(team, done.ok() ? mine : result<std::string>(done));
    // Neighbouring chunks, so that the subtrees of a process are few.
    const span own = cut(of.chunks, static_cast<std::size_t>(team.ranks), static_cast<std::size_t>(team.rank));
    merge_tree tree;
    for (std::size_t chunk = own.first; chunk < own.first + own.tokens && done.ok(); chunk++) {
        const span keys = cut(of.keys, of.chunks, chunk);
        done = products.read('k', {keys}, &k);
        done = done.ok() ? products.read('v', {keys}, &v) : done;
        if (done.ok()) {
            result<states> made = products.states({0, of.queries}, keys, q.data(), k.data(), v.data());
            done = made.ok() ? tree.add(0, chunk, std::move(*made)) : made.status();
        }
    }
    if (!done.ok()) {
        return done;
    }
    std::vector<char> mine_packed(bytes), all(bytes);
    tree.pack(mine_packed.data(), rows, dim, room);
    done = team.collective("partial states", [&](MPI_Request *request) { return MPI_Ibarrier(comm, request); });
    if (!done.ok()) {
        return done;
    }
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Op op = MPI_OP_NULL;
    if (guard) {
        guard(true);
    }
    int code = MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &type);
    code = code == MPI_SUCCESS ? MPI_Type_commit(&type) : code;
    code = code == MPI_SUCCESS ? MPI_Op_create(&merge_tree::fold, 0, &op) : code;
    code = code == MPI_SUCCESS ? MPI_Allreduce(mine_packed.data(), all.data(), 1, type, op, comm) : code;
    if (guard) {
        guard(false);
    }
    if (op != MPI_OP_NULL) {
        MPI_Op_free(&op);
    }
    if (type != MPI_DATATYPE_NULL) {
        MPI_Type_free(&type);
    }
    if (code != MPI_SUCCESS) {
        return detail::failed(code, "reduction");
    }
    merge_tree merged;
    done = merged.unpack(all.data());
    result<states> answer = done.ok() ? merged.finish(rows, dim) : result<states>(done);
    if (!answer.ok()) {
        return answer.status();
    }
    std::vector<part> parts;
    parts.push_back(part{{0, of.queries}, std::move(*answer)});
    return result<std::vector<part>>(std::move(parts));
}

// Gives the output of the parts of all processes to `sink` on process 0, one part after another: its queries, the
// output [batch, heads, tokens, value_dim], and the log-sum-exp. Processes may have any number of parts; of parts of
// the same queries, only those of one process may be given.
inline status gather(const whole &of, const std::vector<part> &parts, MPI_Comm comm,
                     const std::function<status(span, const float *, const float *)> &sink) {
    detail::team team(comm, of.timeout, of.slow_link);
    const std::size_t sequences = of.batch * of.heads, width = of.value_dim + 1;
    std::unique_ptr<std::vector<std::uint64_t>> head(new std::vector<std::uint64_t>);
    std::unique_ptr<std::vector<float>> data(new std::vector<float>);
    status done;
    for (int rank = 0; rank < team.ranks && done.ok(); rank++) {
        const bool mine = rank == team.rank;
        if (!mine && team.rank != 0) {
            continue;
        }
        std::size_t count = parts.size();
        for (std::size_t i = 0; (i == 0 || i < count) && done.ok(); i++) {
            // Number of parts, first query, number of queries.
            head->assign(3, 0);
            if (mine) {
                const bool any = i < parts.size();
                *head = {parts.size(), any ? parts[i].queries.first : 0, any ? parts[i].queries.tokens : 0};
            }
            if (mine != (team.rank == 0)) {
                team.move(mine, head->data(), 3, mine ? 0 : rank, 2);
                done = team.wait("answers");
            }
            count = static_cast<std::size_t>((*head)[0]);
            const std::size_t rows = sequences * static_cast<std::size_t>((*head)[2]);
            data->resize(rows * width);
            if (done.ok() && mine && rows > 0) {
                output<float> out(data->data(), rows * of.value_dim), lse(data->data() + rows * of.value_dim, rows);
                done = parts[i].states.finish(out, lse);
            }
            if (done.ok() && mine != (team.rank == 0)) {
                team.move(mine, data->data(), data->size(), mine ? 0 : rank, 3);
                done = team.wait("answers");
            }
            if (done.ok() && team.rank == 0 && rows > 0) {
                const span queries = {static_cast<std::size_t>((*head)[1]), static_cast<std::size_t>((*head)[2])};
                done = sink(queries, data->data(), data->data() + rows * of.value_dim);
            }
        }
    }
    if (!done.ok()) {
        // MPI may still use this memory.
        head.release();
        data.release();
    }
    return done;
}

} // namespace mpi
} // inline namespace
} // namespace elsa

#endif
