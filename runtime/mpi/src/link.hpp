// elsa-mpi link: times of messages between each two processes, as the modes of elsa-mpi send and wait for them.
#ifndef ELSA_MPI_LINK_HPP
#define ELSA_MPI_LINK_HPP

#include <elsa_mpi.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace link_test {

// Sizes of the messages in bytes. The first one gives the latency, the last one the bandwidth.
const std::size_t SIZES[] = {1, 4096, 65536, 1048576, 8388608};
const int COUNT = sizeof SIZES / sizeof *SIZES;
// Messages there and back of each size, after one that is not measured. The median counts.
const int ROUNDS = 15;

// Sends a message there and back. Returns how that ended.
inline elsa::status there_and_back(elsa::mpi::detail::team &team, bool first, int peer, std::vector<char> &data,
                                   std::size_t bytes) {
    elsa::status done;
    for (const bool send : {first, !first}) {
        if (done.ok()) {
            team.move(send, data.data(), bytes, peer, 0);
            done = team.wait("link");
        }
    }
    return done;
}

// Measures the link between processes `a` and `b`. All processes call it and get the seconds of a message of each size.
inline elsa::status measure(elsa::mpi::detail::team &team, int a, int b, std::vector<double> *seconds) {
    seconds->assign(COUNT, 0);
    elsa::status done =
        team.collective("link", [&](MPI_Request *request) { return MPI_Ibarrier(team.comm(), request); });
    std::vector<char> data(team.rank == a || team.rank == b ? SIZES[COUNT - 1] : 0);
    for (int size = 0; size < COUNT && !data.empty(); size++) {
        std::vector<double> times;
        for (int round = 0; round <= ROUNDS && done.ok(); round++) {
            const double begin = MPI_Wtime();
            done = there_and_back(team, team.rank == a, team.rank == a ? b : a, data, SIZES[size]);
            if (round > 0) {
                times.push_back((MPI_Wtime() - begin) / 2);
            }
        }
        if (!done.ok()) {
            return done;
        }
        std::sort(times.begin(), times.end());
        (*seconds)[size] = times[times.size() / 2];
    }
    if (!done.ok()) {
        return done;
    }
    return team.collective("link", [&](MPI_Request *request) {
        return MPI_Ibcast(seconds->data(), COUNT, MPI_DOUBLE, a, team.comm(), request);
    });
}

// Measures all pairs. Process 0 prints a table, or one JSON object with latencies in seconds and bandwidths in bytes per
// second.
inline elsa::status run(const elsa::mpi::whole &whole, bool json) {
    elsa::mpi::detail::team team(MPI_COMM_WORLD, whole.timeout, whole.slow_link);
    if (team.ranks < 2) {
        return elsa::status(ELSA_STATUS_ARGUMENT, "processes: 1; allowed: at least 2, by mpirun -n");
    }
    const elsa::status same =
        elsa::mpi::detail::agree(team, "link " + std::to_string(whole.slow_link) + " bytes per second\n");
    if (!same.ok()) {
        return same;
    }
    const bool prints = team.rank == 0;
    if (prints && json) {
        std::printf("{\"what\":\"elsa-mpi link\",\"processes\":%d,\"slow_link\":%.9g,\"pairs\":[", team.ranks,
                    whole.slow_link);
    } else if (prints) {
        std::printf("processes   latency      bandwidth");
        for (const std::size_t bytes : SIZES) {
            std::printf("  %8zu B", bytes);
        }
        std::printf("\n");
    }
    bool first = true;
    for (int a = 0; a < team.ranks; a++) {
        for (int b = a + 1; b < team.ranks; b++) {
            std::vector<double> seconds;
            const elsa::status done = measure(team, a, b, &seconds);
            if (!done.ok()) {
                return done;
            }
            // The time of a message of x bytes is about latency + x / bandwidth.
            const double latency = seconds[0], rest = seconds[COUNT - 1] - latency;
            const double bandwidth = rest > 0 ? static_cast<double>(SIZES[COUNT - 1] - SIZES[0]) / rest : 0;
            if (prints && json) {
                std::printf("%s{\"a\":%d,\"b\":%d,\"latency\":%.6g,\"bandwidth\":%.6g,\"messages\":[",
                            first ? "" : ",", a, b, latency, bandwidth);
                for (int size = 0; size < COUNT; size++) {
                    std::printf("%s{\"bytes\":%zu,\"seconds\":%.6g}", size ? "," : "", SIZES[size], seconds[size]);
                }
                std::printf("]}");
            } else if (prints) {
                std::printf("%3d - %-3d %8.1f us  %7.3f GB/s", a, b, latency * 1e6, bandwidth / 1e9);
                for (const double time : seconds) {
                    std::printf("  %7.3f ms", time * 1e3);
                }
                std::printf("\n");
            }
            first = false;
        }
    }
    if (prints && json) {
        std::printf("]}\n");
    }
    return elsa::status();
}

} // namespace link_test

#endif
