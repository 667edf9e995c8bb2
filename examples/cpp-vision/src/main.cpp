// Classifies pictures of handwritten digits with a Vision Transformer whose attention is elsa's.

#include "error.hpp"
#include "files.hpp"
#include "model.hpp"
#include "picture.hpp"
#include "report.hpp"
#include "safetensors.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

using vision::Error;

const char usage[] =
    "usage: elsa-vision --model FILE [options] PICTURE|FOLDER...\n"
    "\n"
    "Classifies PNG and JPEG pictures. A folder stands for its own files in the order of their names. A picture named\n"
    "LABEL-anything, with a number for LABEL, has that label and counts towards the accuracy.\n"
    "\n"
    "  --model FILE        weights of the network, safetensors\n"
    "  --map FILE          write the picture as PNG with the decisive patches in orange; one picture\n"
    "  --json              one JSON object per picture, then one for all\n"
    "  --backend NAME      auto, scalar, neon, avx2, avx512 or cuda (default auto)\n"
    "  --threads N         threads that compute attention, 1 to 1024 (default: every core)\n"
    "  --fallback WHAT     if the GPU cannot compute: cpu computes instead, fail ends with an error (default cpu)\n"
    "  --help              this text\n"
    "\n"
    "Exit status: 0 done; 2 the request was wrong, or a picture was; 3 the device or the system failed.\n";

/// Number of pictures from which a terminal shows progress.
const std::size_t many = 50;

struct Arguments {
    std::string model, map;
    bool json = false, help = false;
    vision::AttentionOptions attention;
    std::vector<std::string> paths;
};

std::size_t threads_of(const std::string &text) {
    const bool digits = !text.empty() && text.size() <= 4 && text.find_first_not_of("0123456789") == std::string::npos;
    const unsigned long n = digits ? std::strtoul(text.c_str(), nullptr, 10) : 0;
    if (n < 1 || n > 1024) {
        throw vision::refused("--threads", text, "1 to 1024");
    }
    return n;
}

Arguments parse(int count, char **words) {
    Arguments arguments;
    bool options = true;
    for (int i = 1; i < count; ++i) {
        std::string word = words[i], value;
        if (!options || word.size() < 2 || word[0] != '-') {
            arguments.paths.push_back(word);
            continue;
        }
        const std::size_t sign = word.find('=');
        const bool joined = sign != std::string::npos;
        if (joined) {
            value = word.substr(sign + 1);
            word.resize(sign);
        }
        const bool flag = word == "--json" || word == "--help" || word == "-h" || word == "--";
        const bool known = flag || word == "--model" || word == "--map" || word == "--backend" ||
                           word == "--threads" || word == "--fallback";
        if (!known || (flag && joined)) {
            throw vision::refused(words[i], "no such option", "those that --help lists");
        }
        if (!flag && !joined) {
            if (++i == count) {
                throw vision::refused(word, "nothing after it", "a value");
            }
            value = words[i];
        }
        if (word == "--") {
            options = false;
        } else if (word == "--json") {
            arguments.json = true;
        } else if (flag) {
            arguments.help = true;
        } else if (word == "--model") {
            arguments.model = value;
        } else if (word == "--map") {
            arguments.map = value;
            arguments.attention.probabilities = true;
        } else if (word == "--backend") {
            arguments.attention.backend = value;
        } else if (word == "--threads") {
            arguments.attention.threads = threads_of(value);
        } else if (value == "cpu" || value == "fail") {
            arguments.attention.fallback = value == "cpu";
        } else {
            throw vision::refused("--fallback", value, "cpu, fail");
        }
    }
    if (!arguments.help && arguments.model.empty()) {
        throw vision::refused("--model", "absent", "a safetensors file");
    }
    if (!arguments.help && arguments.paths.empty()) {
        throw vision::refused("PICTURE", "none", "pictures or folders");
    }
    return arguments;
}

/// Totals over all pictures.
struct Totals {
    std::size_t pictures = 0, broken = 0, labelled = 0, right = 0, fallbacks = 0;
    std::string backend;
    double seconds = 0.0;
};

void print(const Totals &totals, const vision::AttentionDevice &device, bool json) {
    const double accuracy = totals.labelled == 0 ? 0.0 : double(totals.right) / double(totals.labelled);
    if (json) {
        nlohmann::ordered_json line = {{"pictures", totals.pictures},   {"broken", totals.broken},
                                       {"labelled", totals.labelled},   {"right", totals.right},
                                       {"fallbacks", totals.fallbacks}, {"backend", totals.backend},
                                       {"device", device.gpu},          {"in_place", device.in_place},
                                       {"reason", device.reason},       {"seconds", totals.seconds}};
        line["accuracy"] = totals.labelled == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(accuracy);
        std::cout << line.dump() << '\n';
        return;
    }
    std::cout << totals.pictures << (totals.pictures == 1 ? " picture" : " pictures") << ", attention by "
              << (totals.pictures == 0 ? device.backend : totals.backend);
    if (totals.backend == "cuda") {
        std::cout << " on " << device.gpu << ", tensors " << (device.in_place ? "in place" : "copied");
    }
    if (totals.fallbacks > 0) {
        std::cout << " (" << totals.fallbacks << " in place of the GPU)";
    }
    if (totals.labelled > 0) {
        char text[32];
        std::snprintf(text, sizeof text, "%.2f %%", 100.0 * accuracy);
        std::cout << "; " << totals.right << " of " << totals.labelled << " as labelled, " << text;
    }
    std::cout << '\n';
}

int run(const Arguments &arguments) {
    const std::vector<std::string> paths = vision::pictures_of(arguments.paths);
    if (!arguments.map.empty() && paths.size() != 1) {
        throw vision::refused("--map", std::to_string(paths.size()) + " pictures", "one picture");
    }
    // Reports why the CPU computes instead of a GPU, and other messages of the library.
    const elsa::result<elsa::logger> log = elsa::logger::create(ELSA_LOG_WARN, [](elsa_log_level, const char *text) {
        std::fprintf(stderr, "elsa-vision: %s\n", text);
    });
    if (!log) {
        throw Error(vision::Fault::system, "log: " + log.message());
    }
    vision::Model model(vision::SafeTensors::open(arguments.model), arguments.attention);
    const bool progress = paths.size() >= many && isatty(STDERR_FILENO) && !isatty(STDOUT_FILENO);
    std::array<float, vision::side * vision::side> cells;
    Totals totals;
    bool failed = false;
    for (std::size_t i = 0; i < paths.size(); ++i) {
        const std::string &path = paths[i];
        if (progress) {
            std::fprintf(stderr, "\r%zu of %zu", i + 1, paths.size());
        }
        vision::Picture picture;
        try {
            picture = vision::read_picture(path);
        } catch (const Error &error) {
            // The other pictures are still classified.
            std::fprintf(stderr, "%selsa-vision: %s\n", progress ? "\r" : "", error.what());
            failed = failed || error.fault() == vision::Fault::system;
            ++totals.broken;
            continue;
        }
        vision::reduce(picture, cells);
        const auto start = std::chrono::steady_clock::now();
        const vision::Answer answer = model.classify(cells);
        totals.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        const long label = vision::label_of(path);
        ++totals.pictures;
        totals.labelled += label >= 0;
        totals.right += label >= 0 && static_cast<std::size_t>(label) == answer.best;
        totals.fallbacks += answer.attention.fallback;
        totals.backend = answer.attention.backend;
        vision::print_answer(path, label, model.scores(), model.probabilities(), answer, arguments.json);
        if (!arguments.map.empty()) {
            vision::write_map(arguments.map, picture, model.map(), vision::Model::grid);
        }
    }
    if (progress) {
        std::fprintf(stderr, "\n");
    }
    print(totals, model.device(), arguments.json);
    if (!std::cout.flush()) {
        throw Error(vision::Fault::system, "standard output: cannot be written");
    }
    return failed ? 3 : totals.broken > 0 ? 2 : 0;
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
        std::fprintf(stderr, "elsa-vision: %s\n", error.what());
        return static_cast<int>(error.fault());
    } catch (const std::exception &error) {
        std::fprintf(stderr, "elsa-vision: %s\n", error.what());
        return 3;
    }
}
