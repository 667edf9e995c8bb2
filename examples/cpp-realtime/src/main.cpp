// A loop at a fixed rate: each release takes a frame in and returns a class, with attention by elsa.

#include "clock.hpp"
#include "latencies.hpp"
#include "messages.hpp"
#include "system.hpp"

#include "error.hpp"
#include "files.hpp"
#include "model.hpp"
#include "picture.hpp"
#include "safetensors.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace {

using vision::Error;

const char usage[] =
    "usage: elsa-realtime --model FILE [options] [PICTURE|FOLDER...]\n"
    "\n"
    "Classifies a frame in every period of 1/HZ seconds. Frames are the pictures, over and over; without pictures they\n"
    "are synthetic: a bright bar that wanders, which is no digit. An answer is late when it comes after the end of its\n"
    "period; periods that pass meanwhile are skipped, not made up. The summary goes to standard output, messages to\n"
    "standard error. Ctrl-C and SIGTERM end the loop with the summary; a second one ends it at once.\n"
    "\n"
    "  --model FILE        weights of the network, safetensors, as in examples/cpp-vision\n"
    "  --rate HZ           frames a second, 0.1 to 10000 (default 50)\n"
    "  --frames N          end after this many (default: at a signal)\n"
    "  --priority N        real-time priority, SCHED_FIFO, 1 to 99, of the loop and the workers of attention\n"
    "  --lock-memory       keep the memory of the process from being paged out\n"
    "  --backend NAME      auto, scalar, neon, avx2, avx512 or cuda (default auto)\n"
    "  --threads N         threads that compute attention, 1 to 1024 (default 1: the network is small)\n"
    "  --fallback WHAT     cpu or fail: what happens where the GPU cannot compute (default cpu)\n"
    "  --json              the summary as a JSON object\n"
    "  --help              this text\n"
    "\n"
    "Exit status: 0 done; 2 the request was wrong; 3 the device or the system failed.\n";

struct Arguments {
    std::string model;
    double rate = 50.0;
    std::uint64_t frames = 0;
    int priority = 0;
    bool lock_memory = false, json = false, help = false;
    vision::AttentionOptions attention;
    std::vector<std::string> paths;
};

std::uint64_t whole(const std::string &name, const std::string &text, std::uint64_t most) {
    const bool digits = !text.empty() && text.size() <= 12 && text.find_first_not_of("0123456789") == std::string::npos;
    const std::uint64_t n = digits ? std::strtoull(text.c_str(), nullptr, 10) : 0;
    if (n < 1 || n > most) {
        throw vision::refused(name, text, "1 to " + std::to_string(most));
    }
    return n;
}

double rate_of(const std::string &text) {
    char *end = nullptr;
    const double rate = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != 0 || !(rate >= 0.1 && rate <= 10000.0)) {
        throw vision::refused("--rate", text, "0.1 to 10000");
    }
    return rate;
}

Arguments parse(int count, char **words) {
    Arguments arguments;
    arguments.attention.threads = 1;
    for (int i = 1; i < count; ++i) {
        const std::string word = words[i];
        if (word.empty() || word[0] != '-') {
            arguments.paths.push_back(word);
        } else if (word == "--json") {
            arguments.json = true;
        } else if (word == "--lock-memory") {
            arguments.lock_memory = true;
        } else if (word == "--help" || word == "-h") {
            arguments.help = true;
        } else {
            const std::string value = i + 1 < count ? words[i + 1] : "";
            if (word == "--model") {
                arguments.model = value;
            } else if (word == "--rate") {
                arguments.rate = rate_of(value);
            } else if (word == "--frames") {
                arguments.frames = whole(word, value, 1000000000);
            } else if (word == "--priority") {
                arguments.priority = static_cast<int>(whole(word, value, 99));
            } else if (word == "--backend") {
                arguments.attention.backend = value;
            } else if (word == "--threads") {
                arguments.attention.threads = whole(word, value, 1024);
            } else if (word == "--fallback" && (value == "cpu" || value == "fail")) {
                arguments.attention.fallback = value == "cpu";
            } else if (word == "--fallback") {
                throw vision::refused(word, value, "cpu, fail");
            } else {
                throw vision::refused(word, "no such option", "those that --help lists");
            }
            ++i;
        }
    }
    if (!arguments.help && arguments.model.empty()) {
        throw vision::refused("--model", "absent", "a safetensors file");
    }
    return arguments;
}

typedef std::array<float, vision::side * vision::side> Cells;

/// A frame in the network's format, and its known class, or -1.
struct Frame {
    Cells cells;
    long label;
};

/// Prepares frames before the loop starts: those of the pictures, or a bright bar in each of its positions.
std::vector<Frame> frames_of(const std::vector<std::string> &paths) {
    std::vector<Frame> frames;
    for (const std::string &path : vision::pictures_of(paths)) {
        Frame frame;
        vision::reduce(vision::read_picture(path), frame.cells);
        frame.label = vision::label_of(path);
        frames.push_back(frame);
    }
    for (std::size_t at = 0; paths.empty() && at < vision::side; ++at) {
        Frame frame;
        frame.label = -1;
        for (std::size_t i = 0; i < frame.cells.size(); ++i) {
            frame.cells[i] = i % vision::side == at ? 1.0f : 0.0f;
        }
        frames.push_back(frame);
    }
    return frames;
}

/// Counters of the loop. Counting allocates nothing.
struct Counts {
    realtime::Latencies latencies;
    std::uint64_t late = 0, skipped = 0, fallbacks = 0, labelled = 0, right = 0;
    std::array<std::uint64_t, 32> classes{};
    const char *backend = "";
    double seconds = 0.0;
};

/// Runs the loop. Throws Error.
void drive(const Arguments &arguments, const std::vector<Frame> &frames, vision::Model &model, Counts &counts) {
    const std::uint64_t start = realtime::now();
    realtime::Schedule schedule(static_cast<std::uint64_t>(1e9 / arguments.rate), start);
    for (std::uint64_t n = 0; arguments.frames == 0 || n < arguments.frames; ++n) {
        const realtime::Tick tick = schedule.next(realtime::now());
        counts.skipped += tick.skipped;
        while (!realtime::stopped() && !realtime::sleep_until(tick.release)) {
        }
        if (realtime::stopped()) {
            break;
        }
        const Frame &frame = frames[n % frames.size()];
        const vision::Answer answer = model.classify(frame.cells);
        const std::uint64_t done = realtime::now();
        counts.latencies.record((done - tick.release) / 1000);
        counts.late += done > tick.deadline;
        counts.fallbacks += answer.attention.fallback;
        counts.backend = answer.attention.backend;
        counts.labelled += frame.label >= 0;
        counts.right += frame.label >= 0 && static_cast<std::size_t>(frame.label) == answer.best;
        counts.classes[answer.best % counts.classes.size()] += 1;
    }
    counts.seconds = double(realtime::now() - start) * 1e-9;
}

/// Rights that the system has granted.
struct Granted {
    bool priority = false, memory = false;
};

void print(const Arguments &arguments, const Counts &counts, const Granted &granted,
           const vision::AttentionDevice &device, const char *ended) {
    const realtime::Latencies &l = counts.latencies;
    if (arguments.json) {
        const nlohmann::ordered_json line = {{"frames", l.count()},
                                             {"synthetic", arguments.paths.empty()},
                                             {"rate_hz", arguments.rate},
                                             {"seconds", counts.seconds},
                                             {"p50_us", l.quantile(0.5)},
                                             {"p99_us", l.quantile(0.99)},
                                             {"p999_us", l.quantile(0.999)},
                                             {"max_us", l.largest()},
                                             {"deadline_misses", counts.late},
                                             {"skipped_periods", counts.skipped},
                                             {"fallbacks", counts.fallbacks},
                                             {"labelled", counts.labelled},
                                             {"right", counts.right},
                                             {"classes", counts.classes},
                                             {"backend", counts.backend},
                                             {"device", device.gpu},
                                             {"in_place", device.in_place},
                                             {"reason", device.reason},
                                             {"priority", granted.priority ? arguments.priority : 0},
                                             {"memory_locked", granted.memory},
                                             {"ended", ended}};
        std::cout << line.dump() << '\n';
        return;
    }
    std::cout << l.count() << (arguments.paths.empty() ? " synthetic" : "") << " frames at " << arguments.rate
              << " Hz in " << counts.seconds << " s, attention by " << counts.backend;
    if (!device.gpu.empty()) {
        std::cout << "; GPU " << device.gpu << ", tensors " << (device.in_place ? "in place" : "copied");
    }
    std::cout << "\nlatency_us p50 " << l.quantile(0.5) << " p99 " << l.quantile(0.99) << " p99.9 "
              << l.quantile(0.999) << " max " << l.largest() << "\ndeadline_misses " << counts.late
              << " skipped_periods " << counts.skipped << " fallbacks " << counts.fallbacks << '\n';
    if (counts.labelled > 0) {
        std::cout << counts.right << " of " << counts.labelled << " as labelled\n";
    }
    std::cout << "priority " << (granted.priority ? arguments.priority : 0) << ", memory "
              << (granted.memory ? "locked" : "not locked") << "; ended: " << ended << '\n';
}

int run(const Arguments &arguments) {
    realtime::stop_on_signals();
    // Its thread starts before the loop has its priority, so that it does not inherit it.
    realtime::Messages messages(stderr, "elsa-realtime");
    const elsa::result<elsa::logger> log = elsa::logger::create(
        ELSA_LOG_WARN, [&messages](elsa_log_level, const char *text) { messages.post(text); });
    if (!log) {
        throw Error(vision::Fault::system, "log: " + log.message());
    }
    const std::vector<Frame> frames = frames_of(arguments.paths);
    Granted granted;
    const auto grant = [&messages](const std::string &refusal) {
        if (!refusal.empty()) {
            messages.post(refusal.c_str());
        }
        return refusal.empty();
    };
    // The workers of attention start after this and inherit the priority of the loop, which waits for them.
    granted.priority = arguments.priority > 0 && grant(realtime::prioritise(arguments.priority));
    // Plans, binds and warms up attention; the first frame is answered once more to touch everything else.
    vision::Model model(vision::SafeTensors::open(arguments.model), arguments.attention);
    static_cast<void>(model.classify(frames.front().cells));
    granted.memory = arguments.lock_memory && grant(realtime::lock_memory());
    Counts counts;
    counts.backend = model.device().backend.c_str();
    drive(arguments, frames, model, counts);
    print(arguments, counts, granted, model.device(), realtime::stopped() ? "signal" : "frames");
    if (!std::cout.flush()) {
        throw Error(vision::Fault::system, "standard output: cannot be written");
    }
    return 0;
}

} // namespace

int main(int count, char **words) {
    try {
        const Arguments arguments = parse(count, words);
        if (arguments.help) {
            std::cout << usage;
            return 0;
        }
        return run(arguments);
    } catch (const Error &error) {
        std::fprintf(stderr, "elsa-realtime: %s\n", error.what());
        return static_cast<int>(error.fault());
    } catch (const std::exception &error) {
        std::fprintf(stderr, "elsa-realtime: %s\n", error.what());
        return 3;
    }
}
