// elsa over MPI: the merge of states in a tree that does not depend on the processes; see elsa_mpi.hpp.
#ifndef ELSA_MPI_TREE_HPP
#define ELSA_MPI_TREE_HPP

#include "elsa.hpp"

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>

namespace elsa {
inline namespace ELSA_NAMESPACE {
namespace mpi {

// States of numbered leaves, merged in the balanced binary tree over the numbers. Subtrees merge as soon as they are
// complete. The leaves may arrive in any order, and the bits do not depend on it.
class merge_tree {
public:
    // Adds the states of the 2^level leaves from leaf `first` on, which is a multiple of 2^level.
    status add(std::size_t level, std::size_t first, elsa::states states) {
        for (;;) {
            const auto twin = nodes_.find(first ^ std::size_t{1} << level);
            if (twin == nodes_.end() || twin->second.level != level) {
                break;
            }
            const bool earlier = twin->first < first;
            elsa::states other = std::move(twin->second.states);
            first = std::min(first, twin->first);
            nodes_.erase(twin);
            if (earlier) {
                std::swap(states, other);
            }
            // States without rows have no memory.
            const status merged = states.rows() > 0 ? states.merge(other) : status();
            if (!merged.ok()) {
                return merged;
            }
            level++;
        }
        nodes_[first] = node{level, std::move(states)};
        return status();
    }

    // Returns the states of all leaves, and those of no keys without a leaf.
    result<elsa::states> finish(std::size_t rows, std::size_t dim) {
        elsa::states all(rows, dim);
        bool any = false;
        for (auto at = nodes_.rbegin(); at != nodes_.rend(); ++at) {
            const status merged = any && rows > 0 ? at->second.states.merge(all) : status();
            if (!merged.ok()) {
                return merged;
            }
            all = std::move(at->second.states);
            any = true;
        }
        nodes_.clear();
        return result<elsa::states>(std::move(all));
    }

    // Packs the subtrees into a message of fixed size for `room` subtrees, as decode() sends.
    void pack(char *to, std::size_t rows, std::size_t dim, std::size_t room) const {
        const std::uint64_t head[] = {bytes(rows, dim, room), rows, dim, room,
                                      nodes_.size() <= room ? nodes_.size() : broken};
        std::memcpy(to, head, sizeof head);
        to += sizeof head;
        for (const auto &at : nodes_) {
            if (head[4] == broken) {
                return;
            }
            const std::uint64_t place[] = {at.second.level, at.first};
            const elsa_states_in from = at.second.states.read();
            std::memcpy(to, place, sizeof place);
            copy(to + sizeof place, from.m, rows);
            copy(to + sizeof place + rows * sizeof(float), from.s, rows);
            copy(to + sizeof place + 2 * rows * sizeof(float), from.w, rows * dim);
            to += size(rows, dim);
        }
    }

    // Adds the subtrees of a message.
    status unpack(const char *from) {
        std::uint64_t head[5];
        std::memcpy(head, from, sizeof head);
        if (head[4] == broken) {
            return status(ELSA_STATUS_ARGUMENT, "states: a process could not merge them; allowed: states of runs");
        }
        from += sizeof head;
        for (std::uint64_t i = 0; i < head[4]; i++, from += size(head[1], head[2])) {
            std::uint64_t place[2];
            std::memcpy(place, from, sizeof place);
            elsa::states states(head[1], head[2]);
            const elsa_states_out to = states.write();
            const char *data = from + sizeof place;
            copy(to.m, data, head[1]);
            copy(to.s, data + head[1] * sizeof(float), head[1]);
            copy(to.w, data + 2 * head[1] * sizeof(float), head[1] * head[2]);
            const status added = add(place[0], place[1], std::move(states));
            if (!added.ok()) {
                return added;
            }
        }
        return status();
    }

    // Returns the bytes of a message.
    static std::size_t bytes(std::size_t rows, std::size_t dim, std::size_t room) noexcept {
        return 5 * sizeof(std::uint64_t) + room * size(rows, dim);
    }

    // Merges message `earlier` into message `later`; the operator of MPI_Op_create. It is associative to the bit,
    // because neighbouring leaves always merge in the same tree.
    static void fold(void *earlier, void *later, int *count, MPI_Datatype *) {
        char *a = static_cast<char *>(earlier), *b = static_cast<char *>(later);
        for (int i = 0; i < *count; i++) {
            std::uint64_t head[5];
            std::memcpy(head, b, sizeof head);
            merge_tree tree;
            const status first = tree.unpack(a), second = tree.unpack(b);
            tree.pack(b, head[1], head[2], head[3]);
            if (!first.ok() || !second.ok()) {
                const std::uint64_t mark = broken;
                std::memcpy(b + 4 * sizeof mark, &mark, sizeof mark);
            }
            a += head[0];
            b += head[0];
        }
    }

private:
    struct node {
        std::size_t level;
        elsa::states states;
    };

    static constexpr std::uint64_t broken = ~std::uint64_t{0};

    static std::size_t size(std::size_t rows, std::size_t dim) noexcept {
        return 2 * sizeof(std::uint64_t) + rows * (dim + 2) * sizeof(float);
    }
    static void copy(void *to, const void *from, std::size_t count) noexcept {
        if (count > 0) {
            std::memcpy(to, from, count * sizeof(float));
        }
    }

    std::map<std::size_t, node> nodes_;
};

} // namespace mpi
} // inline namespace
} // namespace elsa

#endif
