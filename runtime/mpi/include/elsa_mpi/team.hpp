// elsa over MPI: messages with a time-out, and the comparison of arguments; see elsa_mpi.hpp.
#ifndef ELSA_MPI_TEAM_HPP
#define ELSA_MPI_TEAM_HPP

#include "elsa.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace elsa {
inline namespace ELSA_NAMESPACE {
namespace mpi {
namespace detail {

inline status failed(int code, const std::string &what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return status(ELSA_STATUS_DEVICE, what + ": MPI: " + std::string(text, static_cast<std::size_t>(length)));
}

// Processes that work together, and requests in flight.
class team {
public:
    // Messages of a process take at least bytes / slow_link seconds in each direction; 0: as long as those of MPI.
    team(MPI_Comm comm, double timeout, double slow_link = 0) : comm_(comm), timeout_(timeout), slow_link_(slow_link) {
        MPI_Comm_rank(comm, &rank);
        MPI_Comm_size(comm, &ranks);
    }

    int rank = 0, ranks = 1;
    MPI_Comm comm() const noexcept { return comm_; }

    // Sends or receives elements; wait() completes it.
    template <class T>
    void move(bool send, T *data, std::size_t count, int peer, int tag) {
        char *bytes = reinterpret_cast<char *>(data);
        if (slow_link_ > 0) {
            double &free = free_[send ? 1 : 0];
            free = std::max(free, MPI_Wtime()) + static_cast<double>(count * sizeof(T)) / slow_link_;
        }
        // Counts of MPI are int.
        for (std::size_t left = count * sizeof(T); left > 0;) {
            const std::size_t piece = std::min(left, std::size_t{1} << 30);
            requests_.push_back(MPI_REQUEST_NULL);
            note(send ? MPI_Isend(bytes, static_cast<int>(piece), MPI_BYTE, peer, tag, comm_, &requests_.back())
                      : MPI_Irecv(bytes, static_cast<int>(piece), MPI_BYTE, peer, tag, comm_, &requests_.back()));
            bytes += piece;
            left -= piece;
        }
    }
    // Begins a collective call of one request.
    template <class Call>
    status collective(const std::string &what, const Call &call) {
        requests_.push_back(MPI_REQUEST_NULL);
        note(call(&requests_.back()));
        return wait(what);
    }
    // Lets messages in flight make progress.
    bool test() {
        int done = 0;
        note(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE));
        return done != 0;
    }
    // Waits for all messages, within the time-out.
    status wait(const std::string &what) {
        // A slow link delays messages even if they have arrived.
        const double least = std::max(free_[0], free_[1]), end = std::max(MPI_Wtime(), least) + timeout_;
        while (code_ == MPI_SUCCESS && (!test() || MPI_Wtime() < least)) {
            if (MPI_Wtime() > end) {
                std::ostringstream text;
                text << "timeout: " << what << ": another process has not answered for " << timeout_
                     << " s; allowed: processes that run, or a longer time-out";
                return status(ELSA_STATUS_DEVICE, text.str());
            }
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
        requests_.clear();
        return code_ == MPI_SUCCESS ? status() : failed(code_, what);
    }

private:
    void note(int code) noexcept { code_ = code_ == MPI_SUCCESS ? code : code_; }

    MPI_Comm comm_;
    double timeout_, slow_link_;
    // When a slow link is free again, for messages to and from this process.
    double free_[2] = {0, 0};
    int code_ = MPI_SUCCESS;
    std::vector<MPI_Request> requests_;
};

// Gives all processes the text of process `root`.
inline status share(team &team, const std::string &mine, int root, std::string *text) {
    std::uint64_t length = mine.size();
    const status done = team.collective("comparison of arguments", [&](MPI_Request *request) {
        return MPI_Ibcast(&length, 1, MPI_UINT64_T, root, team.comm(), request);
    });
    if (!done.ok()) {
        return done;
    }
    *text = team.rank == root ? mine : std::string(length, ' ');
    return team.collective("comparison of arguments", [&](MPI_Request *request) {
        return MPI_Ibcast(&(*text)[0], static_cast<int>(length), MPI_CHAR, root, team.comm(), request);
    });
}

// Describes the first difference of texts of lines `name value`. A text of one line `failure REASON` is of a process
// that could not begin.
inline status difference(int rank, const std::string &text, const std::string &of_root) {
    const std::string begin = "failure ", of = "rank " + std::to_string(rank) + ": ";
    if (of_root.compare(0, begin.size(), begin) == 0) {
        return status(ELSA_STATUS_ARGUMENT, "rank 0: " + of_root.substr(begin.size()));
    }
    if (text.compare(0, begin.size(), begin) == 0) {
        return status(ELSA_STATUS_ARGUMENT, of + text.substr(begin.size()));
    }
    std::istringstream found(text), allowed(of_root);
    std::string a, b;
    do {
        a = b = "nothing";
        std::getline(found, a);
        std::getline(allowed, b);
    } while (a == b && (found || allowed));
    return status(ELSA_STATUS_ARGUMENT, of + a + "; allowed: " + b + ", as rank 0 has");
}

// Compares the texts of all processes. Returns the same failure on all processes if they differ.
inline status agree(team &team, const std::string &mine) {
    std::string of_root, other;
    status done = share(team, mine, 0, &of_root);
    int own = of_root == mine ? team.ranks : team.rank, first = team.ranks;
    if (done.ok()) {
        done = team.collective("comparison of arguments", [&](MPI_Request *request) {
            return MPI_Iallreduce(&own, &first, 1, MPI_INT, MPI_MIN, team.comm(), request);
        });
    }
    if (!done.ok() || first == team.ranks) {
        return done;
    }
    done = share(team, mine, first, &other);
    return done.ok() ? difference(first, other, of_root) : done;
}


// Compares the arguments of all processes. `mine` is the description, or why this process cannot begin.
inline status begin(team &team, const result<std::string> &mine) {
    std::string text = mine.ok() ? *mine : "failure " + mine.message() + '\n';
    const status same = agree(team, text);
    return same.ok() && !mine.ok() ? mine.status() : same;
}

} // namespace detail

} // namespace mpi
} // inline namespace
} // namespace elsa

#endif
