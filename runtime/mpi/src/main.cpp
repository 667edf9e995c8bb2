// elsa-mpi: exact attention over tensors in .npy files, by the processes of mpirun. See HELP.
#include <elsa_mpi.hpp>

#include "link.hpp"
#include "npy.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

const char HELP[] =
    "Usage: mpirun -n P elsa-mpi ring|quorum|decode --q FILE --k FILE --v FILE --out FILE [OPTIONS]\n"
    "       mpirun -n P elsa-mpi link [--json] [--slow-link R] [--timeout S]\n"
    "\n"
    "ring     keys and values pass around the processes; for many queries\n"
    "quorum   the processes share the tasks of --quorum; the answer has the bits of elsa run --quorum\n"
    "decode   few queries; one reduction merges the states of all keys\n"
    "link     latency and bandwidth between each two processes; waits look for messages every 50 us, as in all modes\n"
    "\n"
    "Files are f32 .npy, [batch, heads, tokens, dim]. Each process reads the tokens that it needs; process 0 writes.\n"
    "  --lse-out FILE       write the log-sum-exp of each row\n"
    "  --chunks N           chunks of queries and keys of ring and decode [default: 8]. The bits depend on N, and not\n"
    "                       on the number of processes. Causal work is balanced best with twice as many chunks\n"
    "  --quorum C[,C...]    chunks of each level of the division [default: 7]\n"
    "  --causal[=bottom-right]\n"
    "  --window L,R         keys to the left and right of the diagonal; -1 is unbounded\n"
    "  --scale X, --softcap X\n"
    "  --mask FILE          bool or f32, broadcast to [batch, heads, queries, keys]\n"
    "  --kv-lens N[,N...]   number of valid keys of each sequence of the batch\n"
    "  --run-id TEXT        name of the run; all processes must give the same\n"
    "  --timeout S          seconds to wait for another process [default: 60]\n"
    "  --slow-link R        delay messages as if each process sent and received at most R bytes per second\n"
    "  --json               print the result of link as one JSON object\n"
    "  --threads N          threads of each process [default: all cores]\n"
    "  --backend NAME       scalar, neon, avx2, avx512 or cuda [default: the best]\n"
    "\n"
    "Exit status: 0 done; 2 wrong request, or processes that disagree; 3 a process, the device or the system failed.\n";

struct arguments {
    std::string mode, out, lse_out;
    bool json = false;
    std::vector<std::size_t> levels = {7};
    elsa::mpi::whole whole;
    npy::array q, k, v, mask;
    elsa::engine_options engine;
};

elsa::status wrong(const std::string &flag, const std::string &found, const std::string &allowed) {
    return elsa::status(ELSA_STATUS_ARGUMENT, flag + ": " + found + "; allowed: " + allowed);
}

// Parses comma-separated whole numbers from `least` on.
bool numbers(const std::string &text, long long least, std::vector<long long> *to) {
    to->clear();
    const char *at = text.c_str();
    for (;;) {
        char *end = nullptr;
        errno = 0;
        const long long number = std::strtoll(at, &end, 10);
        if (end == at || errno != 0 || number < least || (*end != ',' && *end != '\0')) {
            return false;
        }
        to->push_back(number);
        if (*end == '\0') {
            return true;
        }
        at = end + 1;
    }
}

bool number(const std::string &text, float *to) {
    char *end = nullptr;
    *to = std::strtof(text.c_str(), &end);
    return !text.empty() && *end == '\0';
}

elsa::status option(const std::string &flag, const std::string &value, arguments *to) {
    std::vector<long long> list;
    elsa_problem &rules = to->whole.rules;
    float real = 0;
    if (flag == "--q" || flag == "--k" || flag == "--v" || flag == "--mask") {
        npy::array &array = flag == "--q" ? to->q : flag == "--k" ? to->k : flag == "--v" ? to->v : to->mask;
        return array.open(flag, value);
    }
    if (flag == "--out") {
        to->out = value;
    } else if (flag == "--lse-out") {
        to->lse_out = value;
    } else if (flag == "--run-id") {
        to->whole.run_id = value;
    } else if (flag == "--chunks") {
        if (!numbers(value, 1, &list) || list.size() != 1) {
            return wrong(flag, value, "a number of at least 1");
        }
        to->whole.chunks = static_cast<std::size_t>(list[0]);
    } else if (flag == "--quorum") {
        if (!numbers(value, 1, &list)) {
            return wrong(flag, value, "the chunks of each level, such as 7 or 7,13");
        }
        to->levels.assign(list.begin(), list.end());
    } else if (flag == "--kv-lens") {
        if (!numbers(value, 0, &list)) {
            return wrong(flag, value, "one number for each sequence of the batch");
        }
        to->whole.key_lengths.assign(list.begin(), list.end());
    } else if (flag == "--window") {
        if (!numbers(value, -1, &list) || list.size() != 2) {
            return wrong(flag, value, "L,R, such as 128,0");
        }
        rules.has_window_left = list[0] >= 0 ? 1 : 0;
        rules.has_window_right = list[1] >= 0 ? 1 : 0;
        rules.window_left = list[0] >= 0 ? list[0] : 0;
        rules.window_right = list[1] >= 0 ? list[1] : 0;
    } else if (flag == "--threads") {
        if (!numbers(value, 1, &list) || list.size() != 1) {
            return wrong(flag, value, "a number of at least 1");
        }
        to->engine.threads = static_cast<std::size_t>(list[0]);
    } else if (flag == "--scale" || flag == "--softcap" || flag == "--timeout" || flag == "--slow-link") {
        const bool positive = flag == "--timeout" || flag == "--slow-link";
        if (!number(value, &real) || (positive && !(real > 0))) {
            return wrong(flag, value, positive ? "a number above 0" : "a number");
        }
        if (flag == "--scale") {
            rules.has_scale = 1;
            rules.scale = real;
        } else if (flag == "--softcap") {
            rules.softcap = real;
        } else if (flag == "--slow-link") {
            to->whole.slow_link = real;
        } else {
            to->whole.timeout = real;
        }
    } else if (flag == "--backend") {
        const char *names[] = {"auto", "scalar", "neon", "avx2", "avx512", "cuda"};
        std::uint32_t at = 0;
        while (at < 6 && value != names[at]) {
            at++;
        }
        if (at == 6) {
            return wrong(flag, value, "scalar, neon, avx2, avx512, cuda");
        }
        to->engine.backend = at;
    } else {
        return wrong(flag, "no such option", "those of elsa-mpi --help");
    }
    return elsa::status();
}

elsa::status parse(int count, char **words, arguments *to) {
    to->whole.chunks = 8;
    for (int i = 1; i < count; i++) {
        std::string flag = words[i];
        if (i == 1 && flag.compare(0, 2, "--") != 0) {
            to->mode = flag;
            continue;
        }
        if (flag == "--causal" || flag == "--causal=top-left" || flag == "--causal=bottom-right") {
            to->whole.rules.causal = flag == "--causal=bottom-right" ? ELSA_CAUSAL_BOTTOM_RIGHT : ELSA_CAUSAL_TOP_LEFT;
            continue;
        }
        if (flag == "--json") {
            to->json = true;
            continue;
        }
        const std::size_t equals = flag.find('=');
        if (equals == std::string::npos && i + 1 == count) {
            return wrong(flag, "no value", "a value");
        }
        const std::string value = equals == std::string::npos ? words[++i] : flag.substr(equals + 1);
        const elsa::status done = option(flag.substr(0, equals), value, to);
        if (!done.ok()) {
            return done;
        }
    }
    if (to->mode == "link") {
        return elsa::status();
    }
    if (to->json) {
        return wrong("--json", "mode " + to->mode, "mode link");
    }
    if (to->mode != "ring" && to->mode != "quorum" && to->mode != "decode") {
        return wrong("mode", to->mode.empty() ? "missing" : to->mode, "ring, quorum, decode, link");
    }
    const struct {
        const char *flag;
        const npy::array *array;
    } needed[] = {{"--q", &to->q}, {"--k", &to->k}, {"--v", &to->v}};
    for (const auto &entry : needed) {
        if (entry.array->path.empty()) {
            return wrong(entry.flag, "missing", "path.npy");
        }
        if (entry.array->type != "<f4") {
            return entry.array->failed("type " + entry.array->type, "f32");
        }
    }
    if (to->out.empty()) {
        return wrong("--out", "missing", "path.npy");
    }
    elsa::mpi::whole &whole = to->whole;
    const std::vector<std::size_t> q = to->q.four(), k = to->k.four(), v = to->v.four();
    if (k[0] != q[0] || v[0] != q[0] || k[3] != q[3]) {
        return wrong("--k, --v", "another batch or head size than --q has", "those of --q");
    }
    if (v[1] != k[1] || v[2] != k[2]) {
        return wrong("--v", "other heads or tokens than --k has", "those of --k");
    }
    whole.batch = q[0];
    whole.heads = q[1];
    whole.queries = q[2];
    whole.dim = q[3];
    whole.kv_heads = k[1];
    whole.keys = k[2];
    whole.value_dim = v[3];
    if (!whole.key_lengths.empty() && whole.key_lengths.size() != whole.batch) {
        return wrong("--kv-lens", std::to_string(whole.key_lengths.size()) + " numbers", "one for each sequence");
    }
    if (!to->mask.path.empty()) {
        const std::vector<std::size_t> mask = to->mask.four();
        if ((mask[2] != 1 && mask[2] != whole.queries) || (mask[3] != 1 && mask[3] != whole.keys)) {
            return to->mask.failed("other queries or keys", "those of --q and --k, or 1");
        }
        whole.rules.mask.kind = to->mask.type == "<f4" ? ELSA_MASK_F32 : ELSA_MASK_BOOL;
        whole.rules.mask.rank = 4;
        std::copy(mask.begin(), mask.end(), whole.rules.mask.dims);
    }
    return elsa::status();
}

// Ends the process when a reduction does not end in time. The message is written without memory of the heap.
void late(int) {
    const char text[] = "elsa-mpi: timeout: reduction: another process has not answered; allowed: processes that run\n";
    const ssize_t ignored = ::write(2, text, sizeof text - 1);
    static_cast<void>(ignored);
    ::_exit(3);
}

elsa::status run(arguments &args) {
    elsa::mpi::whole &whole = args.whole;
    const elsa::result<elsa::engine> engine = elsa::engine::create(args.engine);
    if (!engine.ok()) {
        return engine.status();
    }
    elsa::mpi::source source;
    source.tensor = [&](char name, elsa::mpi::span tokens, float *to) {
        const npy::array &from = name == 'q' ? args.q : name == 'k' ? args.k : args.v;
        return from.part(tokens.first, tokens.tokens, 0, from.four()[3], to);
    };
    source.mask = [&](elsa::mpi::span queries, elsa::mpi::span keys, void *to) {
        return args.mask.part(queries.first, queries.tokens, keys.first, keys.tokens, to);
    };
    const double begin = MPI_Wtime();
    const MPI_Comm comm = MPI_COMM_WORLD;
    elsa::result<std::vector<elsa::mpi::part>> parts = elsa::status(ELSA_STATUS_ARGUMENT, "mode");
    if (args.mode == "ring") {
        parts = elsa::mpi::ring(*engine, whole, source, comm);
    } else if (args.mode == "quorum") {
        parts = elsa::mpi::quorum(*engine, whole, args.levels, source, comm);
    } else {
        ::signal(SIGALRM, late);
        const unsigned seconds = static_cast<unsigned>(whole.timeout) + 1;
        parts = elsa::mpi::decode(*engine, whole, source, comm, [=](bool before) { ::alarm(before ? seconds : 0); });
    }
    if (!parts.ok()) {
        return parts.status();
    }
    int rank = 0, ranks = 1;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    if (args.mode == "decode" && rank > 0) {
        // Process 0 has the same states.
        parts->clear();
    }
    npy::writer out, lse;
    elsa::status done;
    if (rank == 0) {
        done = out.open(args.out, {whole.batch, whole.heads, whole.queries, whole.value_dim});
        if (done.ok() && !args.lse_out.empty()) {
            done = lse.open(args.lse_out, {whole.batch, whole.heads, whole.queries});
        }
    }
    if (!done.ok()) {
        return done;
    }
    done = elsa::mpi::gather(whole, *parts, comm, [&](elsa::mpi::span queries, const float *y, const float *sums) {
        elsa::status written;
        for (std::size_t sequence = 0; sequence < whole.batch * whole.heads && written.ok(); sequence++) {
            const std::size_t at = sequence * whole.queries + queries.first, count = queries.tokens;
            written = out.write(y + sequence * count * whole.value_dim, count * whole.value_dim, at * whole.value_dim);
            if (written.ok() && !args.lse_out.empty()) {
                written = lse.write(sums + sequence * count, count, at);
            }
        }
        return written;
    });
    if (rank != 0 || !done.ok()) {
        return done;
    }
    done = out.commit();
    if (done.ok() && !args.lse_out.empty()) {
        done = lse.commit();
    }
    if (done.ok()) {
        std::fprintf(stderr, "elsa-mpi: wrote %s [%zu, %zu, %zu, %zu] by %d processes in %.3f ms\n", args.out.c_str(),
                     whole.batch, whole.heads, whole.queries, whole.value_dim, ranks, (MPI_Wtime() - begin) * 1e3);
    }
    return done;
}

} // namespace

int main(int count, char **words) {
    if (count == 2 && std::strcmp(words[1], "--help") == 0) {
        std::fputs(HELP, stdout);
        return 0;
    }
    arguments args;
    const elsa::status parsed = parse(count, words, &args);
    if (!parsed.ok()) {
        std::fprintf(stderr, "elsa-mpi: %s\n", parsed.message().c_str());
        return parsed.code() == ELSA_STATUS_ARGUMENT ? 2 : 3;
    }
    MPI_Init(&count, &words);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int status = 0;
    {
        const elsa::status done = args.mode == "link" ? link_test::run(args.whole, args.json) : run(args);
        if (!done.ok()) {
            int rank = 0;
            MPI_Comm_rank(MPI_COMM_WORLD, &rank);
            std::fprintf(stderr, "elsa-mpi: process %d: %s\n", rank, done.message().c_str());
            status = done.code() == ELSA_STATUS_ARGUMENT ? 2 : 3;
        }
    }
    if (status != 0) {
        // The launcher of MPICH drops what it has not yet read from a process that aborts.
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        MPI_Abort(MPI_COMM_WORLD, status);
    }
    MPI_Finalize();
    return 0;
}
