// Random problems on all processes of mpirun: the answers of every mode must have the bits of one process with the same
// chunks, and must be close to attention in f64. Also the merge tree, and processes that disagree.
//
// Usage: mpirun -n P mpi-tests [PROBLEMS]. The last line is `N passed, M failed`. mpi-tests stop SEED and mpi-tests die
// SEED stop or end process 1 before the problem of the seed; the others must fail within the time-out, and print so.
#include <elsa_mpi.hpp>

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using elsa::mpi::span;

long passed = 0, failed = 0;

void check(bool good, const std::string &what) {
    (good ? passed : failed)++;
    if (!good) {
        std::printf("failed: %s\n", what.c_str());
    }
}

// Numbers that are equal on every process and with every standard library.
class numbers {
public:
    explicit numbers(unsigned seed) : bits_(seed) {}
    std::size_t below(std::size_t n) { return bits_() % n; }
    float real() { return static_cast<float>(bits_() % 20001) / 10000.0F - 1.0F; }
    std::vector<float> reals(std::size_t count) {
        std::vector<float> made(count);
        for (float &x : made) {
            x = real();
        }
        return made;
    }

private:
    std::mt19937 bits_;
};

// A problem with its tensors, in the memory of each process.
struct sample {
    elsa::mpi::whole whole;
    std::vector<float> q, k, v, added;
    std::vector<unsigned char> kept;
    std::vector<std::size_t> levels;
    std::string mode;

    explicit sample(unsigned seed) {
        numbers random(seed);
        const char *modes[] = {"ring", "quorum", "decode"};
        const std::vector<std::size_t> divisions[] = {{3}, {7}, {3, 3}, {1}};
        mode = modes[seed % 3];
        levels = divisions[random.below(4)];
        whole.batch = 1 + random.below(2);
        whole.kv_heads = 1 + random.below(2);
        whole.heads = whole.kv_heads * (1 + random.below(3));
        whole.queries = mode == "decode" ? 1 + random.below(3) : 1 + random.below(50);
        whole.keys = 1 + random.below(70);
        whole.dim = 4 + 4 * random.below(3);
        whole.value_dim = 4 + 4 * random.below(3);
        whole.chunks = 1 + random.below(11);
        whole.timeout = 20;
        elsa_problem &rules = whole.rules;
        rules.causal = static_cast<elsa_causal>(random.below(3));
        if (random.below(3) == 0) {
            rules.has_window_left = 1;
            rules.window_left = static_cast<std::int64_t>(random.below(20));
            rules.has_window_right = static_cast<std::uint32_t>(random.below(2));
            rules.window_right = rules.has_window_right ? static_cast<std::int64_t>(random.below(10)) : 0;
        }
        rules.softcap = random.below(4) == 0 ? 2.0F : 0.0F;
        rules.has_scale = static_cast<std::uint32_t>(random.below(2));
        rules.scale = rules.has_scale ? 1.5F : 0.0F;
        if (random.below(3) == 0) {
            for (std::size_t b = 0; b < whole.batch; b++) {
                whole.key_lengths.push_back(static_cast<std::int64_t>(random.below(whole.keys + 1)));
            }
        }
        q = random.reals(whole.batch * whole.heads * whole.queries * whole.dim);
        k = random.reals(whole.batch * whole.kv_heads * whole.keys * whole.dim);
        v = random.reals(whole.batch * whole.kv_heads * whole.keys * whole.value_dim);
        const std::size_t kind = random.below(4);
        if (kind < 2) {
            rules.mask.kind = kind == 0 ? ELSA_MASK_BOOL : ELSA_MASK_F32;
            rules.mask.rank = 4;
            const std::size_t dims[] = {whole.batch, whole.heads, whole.queries, whole.keys};
            std::size_t count = 1;
            for (std::size_t axis = 0; axis < 4; axis++) {
                rules.mask.dims[axis] = random.below(3) == 0 ? 1 : dims[axis];
                count *= rules.mask.dims[axis];
            }
            added = random.reals(count);
            for (const float x : added) {
                kept.push_back(x > -0.6F ? 1 : 0);
            }
        }
    }

    // Copies tokens of a tensor, as a file would supply them.
    elsa::mpi::source source() const {
        elsa::mpi::source made;
        made.tensor = [this](char name, span tokens, float *to) {
            const std::vector<float> &from = name == 'q' ? q : name == 'k' ? k : v;
            const std::size_t all = name == 'q' ? whole.queries : whole.keys;
            const std::size_t dim = name == 'v' ? whole.value_dim : whole.dim;
            for (std::size_t at = tokens.first * dim; at < from.size(); at += all * dim, to += tokens.tokens * dim) {
                std::copy_n(from.data() + at, tokens.tokens * dim, to);
            }
            return elsa::status();
        };
        made.mask = [this](span queries, span keys, void *to) {
            const std::size_t *dims = whole.rules.mask.dims;
            std::size_t at = 0;
            for (std::size_t plane = 0; plane < dims[0] * dims[1]; plane++) {
                for (std::size_t row = queries.first; row < queries.first + queries.tokens; row++) {
                    for (std::size_t column = keys.first; column < keys.first + keys.tokens; column++, at++) {
                        const std::size_t from = (plane * dims[2] + row) * dims[3] + column;
                        if (whole.rules.mask.kind == ELSA_MASK_BOOL) {
                            static_cast<unsigned char *>(to)[at] = kept[from];
                        } else {
                            static_cast<float *>(to)[at] = added[from];
                        }
                    }
                }
            }
            return elsa::status();
        };
        return made;
    }

    // Computes the output and the log-sum-exp of a row in f64.
    void row(std::size_t b, std::size_t h, std::size_t i, std::vector<double> *y, double *lse) const {
        const elsa_problem &rules = whole.rules;
        const std::size_t kv = b * whole.kv_heads + h / (whole.heads / whole.kv_heads);
        const std::int64_t all = static_cast<std::int64_t>(whole.keys);
        const std::int64_t valid = whole.key_lengths.empty() ? all : whole.key_lengths[b];
        const std::int64_t offset =
            rules.causal == ELSA_CAUSAL_BOTTOM_RIGHT ? valid - static_cast<std::int64_t>(whole.queries) : 0;
        const std::int64_t diagonal = static_cast<std::int64_t>(i) + offset;
        std::vector<double> scores(whole.keys, -std::numeric_limits<double>::infinity());
        double most = scores[0];
        for (std::size_t j = 0; j < whole.keys; j++) {
            const std::int64_t key = static_cast<std::int64_t>(j);
            if (key >= valid || (rules.causal != ELSA_CAUSAL_NONE && key > diagonal) ||
                (rules.has_window_left && key < diagonal - rules.window_left) ||
                (rules.has_window_right && key > diagonal + rules.window_right)) {
                continue;
            }
            double score = 0;
            for (std::size_t x = 0; x < whole.dim; x++) {
                score += static_cast<double>(q[((b * whole.heads + h) * whole.queries + i) * whole.dim + x]) *
                         static_cast<double>(k[(kv * whole.keys + j) * whole.dim + x]);
            }
            const double root = std::sqrt(static_cast<double>(whole.dim));
            score *= rules.has_scale ? static_cast<double>(rules.scale) : 1.0 / root;
            const double cap = static_cast<double>(rules.softcap);
            score = cap > 0 ? cap * std::tanh(score / cap) : score;
            if (rules.mask.kind != ELSA_MASK_NONE) {
                const std::size_t *dims = rules.mask.dims;
                const auto axis = [&](std::size_t at, std::size_t of) { return dims[of] == 1 ? 0 : at; };
                const std::size_t plane = axis(b, 0) * dims[1] + axis(h, 1);
                const std::size_t at = (plane * dims[2] + axis(i, 2)) * dims[3] + axis(j, 3);
                if (rules.mask.kind == ELSA_MASK_BOOL && !kept[at]) {
                    continue;
                }
                score += rules.mask.kind == ELSA_MASK_BOOL ? 0.0 : static_cast<double>(added[at]);
            }
            scores[j] = score;
            most = std::max(most, score);
        }
        double sum = 0;
        y->assign(whole.value_dim, 0.0);
        for (std::size_t j = 0; j < whole.keys; j++) {
            const double weight = std::isinf(scores[j]) ? 0.0 : std::exp(scores[j] - most);
            sum += weight;
            for (std::size_t x = 0; x < whole.value_dim; x++) {
                (*y)[x] += weight * static_cast<double>(v[(kv * whole.keys + j) * whole.value_dim + x]);
            }
        }
        for (double &x : *y) {
            x = sum > 0 ? x / sum : 0.0;
        }
        *lse = sum > 0 ? most + std::log(sum) : -std::numeric_limits<double>::infinity();
    }
};

// Output and log-sum-exp, on process 0.
struct answer {
    std::vector<float> y, lse;
};

elsa::result<answer> compute(const elsa::engine &engine, const sample &of, MPI_Comm comm) {
    const elsa::mpi::whole &whole = of.whole;
    const elsa::mpi::source source = of.source();
    elsa::result<std::vector<elsa::mpi::part>> parts =
        of.mode == "ring"     ? elsa::mpi::ring(engine, whole, source, comm)
        : of.mode == "quorum" ? elsa::mpi::quorum(engine, whole, of.levels, source, comm)
                              : elsa::mpi::decode(engine, whole, source, comm);
    if (!parts.ok()) {
        return parts.status();
    }
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    if (of.mode == "decode" && rank > 0) {
        parts->clear();
    }
    const std::size_t sequences = whole.batch * whole.heads;
    answer made;
    const float nothing = std::numeric_limits<float>::quiet_NaN();
    made.y.assign(sequences * whole.queries * whole.value_dim, nothing);
    made.lse.assign(sequences * whole.queries, nothing);
    const auto sink = [&](span queries, const float *y, const float *lse) {
        const std::size_t width = whole.value_dim;
        for (std::size_t sequence = 0; sequence < sequences; sequence++) {
            const std::size_t at = sequence * whole.queries + queries.first, from = sequence * queries.tokens;
            std::copy_n(y + from * width, queries.tokens * width, made.y.data() + at * width);
            std::copy_n(lse + from, queries.tokens, made.lse.data() + at);
        }
        return elsa::status();
    };
    const elsa::status done = elsa::mpi::gather(whole, *parts, comm, sink);
    return done.ok() ? elsa::result<answer>(made) : elsa::result<answer>(done);
}

bool same(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

void random_problem(const elsa::engine &engine, unsigned seed, int rank) {
    const sample of(seed);
    const std::string name = of.mode + " of seed " + std::to_string(seed);
    const elsa::result<answer> all = compute(engine, of, MPI_COMM_WORLD);
    check(all.ok(), name + ": " + all.message());
    if (!all.ok() || rank != 0) {
        return;
    }
    const elsa::result<answer> alone = compute(engine, of, MPI_COMM_SELF);
    check(alone.ok() && same(all->y, alone->y) && same(all->lse, alone->lse), name + ": bits of one process");
    double far = 0;
    std::vector<double> y;
    for (std::size_t row = 0; row < all->lse.size(); row++) {
        const std::size_t sequence = row / of.whole.queries;
        double lse = 0;
        of.row(sequence / of.whole.heads, sequence % of.whole.heads, row % of.whole.queries, &y, &lse);
        const double found = static_cast<double>(all->lse[row]);
        const double apart = found == lse ? 0.0 : std::fabs(found - lse);
        far = apart <= 1e-5 ? far : std::numeric_limits<double>::infinity();
        for (std::size_t x = 0; x < y.size(); x++) {
            const double error = std::fabs(static_cast<double>(all->y[row * y.size() + x]) - y[x]);
            far = error <= far ? far : error == error ? error : std::numeric_limits<double>::infinity();
        }
    }
    check(far < 1e-5, name + ": " + std::to_string(far) + " from f64");
}

// States of a row, as a run leaves them.
elsa::states leaf(numbers *random) {
    elsa::states made(2, 3);
    const elsa_states_out to = made.write();
    for (std::size_t row = 0; row < 2; row++) {
        to.m[row] = 5.0F * random->real();
        to.s[row] = 1.0F + random->real() * random->real();
        for (std::size_t x = 0; x < 3; x++) {
            to.w[row * 3 + x] = random->real();
        }
    }
    return made;
}

bool same(const elsa::states &a, const elsa::states &b) {
    const elsa_states_in x = a.read(), y = b.read();
    return std::memcmp(x.m, y.m, 2 * sizeof(float)) == 0 && std::memcmp(x.s, y.s, 2 * sizeof(float)) == 0 &&
           std::memcmp(x.w, y.w, 6 * sizeof(float)) == 0;
}

// The tree by its definition: halves of a power of two.
elsa::states by_definition(const std::vector<elsa::states> &leaves, std::size_t first, std::size_t width) {
    if (first >= leaves.size()) {
        return elsa::states(2, 3);
    }
    if (width == 1) {
        return leaves[first];
    }
    elsa::states made = by_definition(leaves, first, width / 2);
    const elsa::status done = made.merge(by_definition(leaves, first + width / 2, width / 2));
    check(done.ok(), done.message());
    return made;
}

void trees() {
    numbers random(9);
    for (std::size_t count = 1; count <= 13; count++) {
        std::vector<elsa::states> leaves;
        for (std::size_t i = 0; i < count; i++) {
            leaves.push_back(leaf(&random));
        }
        const elsa::states want = by_definition(leaves, 0, 16);
        for (int round = 0; round < 20; round++) {
            std::vector<std::size_t> order(count);
            std::iota(order.begin(), order.end(), 0);
            for (std::size_t i = count; i-- > 1;) {
                std::swap(order[i], order[random.below(i + 1)]);
            }
            elsa::mpi::merge_tree tree;
            for (const std::size_t i : order) {
                check(tree.add(0, i, leaves[i]).ok(), "leaf");
            }
            check(same(tree.finish(2, 3).value(), want), "tree of " + std::to_string(count) + " leaves in any order");
            // Neighbouring ranges of leaves as messages, folded in a random grouping.
            const std::size_t room = 10, bytes = elsa::mpi::merge_tree::bytes(2, 3, room);
            std::vector<std::vector<char>> messages;
            for (std::size_t i = 0; i < count;) {
                elsa::mpi::merge_tree range;
                for (std::size_t end = std::min(count, i + 1 + random.below(4)); i < end; i++) {
                    check(range.add(0, i, leaves[i]).ok(), "leaf");
                }
                messages.emplace_back(bytes);
                range.pack(messages.back().data(), 2, 3, room);
            }
            int one = 1;
            MPI_Datatype type = MPI_BYTE;
            while (messages.size() > 1) {
                const std::size_t at = random.below(messages.size() - 1);
                elsa::mpi::merge_tree::fold(messages[at].data(), messages[at + 1].data(), &one, &type);
                messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(at));
            }
            elsa::mpi::merge_tree folded;
            check(folded.unpack(messages[0].data()).ok() && same(folded.finish(2, 3).value(), want), "messages");
        }
    }
}

// Process 1 differs in one argument; every process must get the same failure.
void disagreements(const elsa::engine &engine, int rank) {
    const auto differs = [&](const char *words, void (*change)(sample *)) {
        for (const unsigned seed : {3U, 4U, 5U}) {
            sample of(seed);
            of.whole.run_id = "a";
            if (rank == 1) {
                change(&of);
            }
            const elsa::result<answer> all = compute(engine, of, MPI_COMM_WORLD);
            const bool good = all.status().code() == ELSA_STATUS_ARGUMENT && all.message().find(words) == 0;
            check(good, std::string(words) + " found: " + all.message());
        }
    };
    differs("rank 1: run_id b; allowed: run_id a", [](sample *of) { of->whole.run_id = "b"; });
    differs("rank 1: softcap 3; allowed: softcap ", [](sample *of) { of->whole.rules.softcap = 3; });
    differs("rank 1: chunks 12; allowed: chunks ", [](sample *of) { of->whole.chunks = 12; });
    differs("rank 1: chunks: 0; allowed: ", [](sample *of) { of->whole.chunks = 0; });
    differs("rank 1: key_lengths 1", [](sample *of) { of->whole.key_lengths.assign(of->whole.batch, 1); });
}

// Computes a problem without process 1, which stops or ends. Never returns.
[[noreturn]] void without_one(const elsa::engine &engine, const std::string &how, unsigned seed, int rank) {
    sample of(seed);
    of.whole.timeout = 1;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1 && how == "stop") {
        ::raise(SIGSTOP);
    } else if (rank == 1) {
        ::_exit(9);
    }
    const double begin = MPI_Wtime();
    const elsa::result<answer> all = compute(engine, of, MPI_COMM_WORLD);
    const bool good = all.status().code() == ELSA_STATUS_DEVICE && MPI_Wtime() - begin < 10;
    std::printf("%s: %s\n", good ? "typed" : "untyped", all.message().c_str());
    std::fflush(stdout);
    // The other processes say so too before all end.
    ::sleep(1);
    MPI_Abort(MPI_COMM_WORLD, 3);
    std::abort();
}

} // namespace

int main(int count, char **words) {
    MPI_Init(&count, &words);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int rank = 0, ranks = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const unsigned problems = count > 1 ? static_cast<unsigned>(std::atoi(words[1])) : 200;
    {
        elsa::engine_options options;
        options.threads = 1;
        const elsa::engine engine = elsa::engine::create(options).value();
        if (count == 3) {
            without_one(engine, words[1], static_cast<unsigned>(std::atoi(words[2])), rank);
        }
        if (rank == 0) {
            trees();
        }
        for (unsigned seed = 1; seed <= problems; seed++) {
            random_problem(engine, seed, rank);
        }
        if (ranks > 1) {
            disagreements(engine, rank);
        }
    }
    long own[] = {passed, failed}, all[] = {0, 0};
    MPI_Reduce(own, all, 2, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        std::printf("%ld passed, %ld failed\n", all[0], all[1]);
    }
    MPI_Finalize();
    return rank == 0 && all[1] > 0 ? 1 : 0;
}
