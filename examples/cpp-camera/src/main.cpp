// Classifies the pictures of a camera with a Vision Transformer: on a GPU as one graph without copies, or on the CPU.

#include "allocations.hpp"
#include "error.hpp"
#include "network.hpp"
#include "report.hpp"
#include "safetensors.hpp"
#include "source.hpp"
#include "video.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace {

using vision::Error;

const char usage[] =
    "usage: elsa-camera --model FILE [options] [PICTURE|FOLDER...]\n"
    "\n"
    "Classifies the pictures of files, of a camera of V4L2, or without either of a synthetic camera. A picture stays\n"
    "in the memory where it is taken: the network reads it there, on the GPU or the CPU.\n"
    "\n"
    "  --model FILE        weights of the network, safetensors\n"
    "  --video DEVICE      camera of V4L2, such as /dev/video0\n"
    "  --frames N          number of pictures (default: each file once; of a camera 64)\n"
    "  --format NAME       rgb, rgba or nv12: how files and the synthetic camera store pixels (default nv12)\n"
    "  --size WxH          pixels of the synthetic camera, 1 to 8192 a side (default 640x480)\n"
    "  --json              one JSON object per file, then one for all\n"
    "  --backend NAME      auto, scalar, neon, avx2, avx512 or cuda (default auto)\n"
    "  --products NAME     products of linear maps on the GPU: kernel, cublas, or auto, which takes cuBLAS if it is\n"
    "                      installed (default kernel)\n"
    "  --threads N         threads that compute attention on the CPU, 1 to 1024 (default: every core)\n"
    "  --fallback WHAT     if the GPU cannot compute: cpu computes instead, fail ends with an error (default cpu)\n"
    "  --help              this text\n"
    "\n"
    "The summary counts, for each picture after the first, copies between the host and the device, and allocations.\n"
    "Exit status: 0 done; 2 the request was wrong, or a picture was; 3 the device or the system failed.\n";

struct Arguments {
    std::string model, video;
    bool json = false, help = false;
    std::uint64_t frames = 0;
    int format = camera::FORMAT_NV12, width = 640, height = 480;
    camera::Products products = camera::Products::kernel;
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

void parse_size(const std::string &text, Arguments &arguments) {
    const std::size_t sign = text.find('x');
    if (sign == std::string::npos) {
        throw vision::refused("--size", text, "WxH, such as 640x480");
    }
    arguments.width = static_cast<int>(whole("--size", text.substr(0, sign), vision::max_side));
    arguments.height = static_cast<int>(whole("--size", text.substr(sign + 1), vision::max_side));
}

camera::Products products_named(const std::string &name) {
    if (name != "kernel" && name != "cublas" && name != "auto") {
        throw vision::refused("--products", name, "kernel, cublas, auto");
    }
    return name == "kernel"   ? camera::Products::kernel
           : name == "cublas" ? camera::Products::cublas
                              : camera::Products::present;
}

Arguments parse(int count, char **words) {
    Arguments arguments;
    for (int i = 1; i < count; ++i) {
        const std::string word = words[i];
        if (word.empty() || word[0] != '-') {
            arguments.paths.push_back(word);
            continue;
        }
        if (word == "--json" || word == "--help" || word == "-h") {
            (word == "--json" ? arguments.json : arguments.help) = true;
            continue;
        }
        const std::string value = i + 1 < count ? words[i + 1] : "";
        if (word == "--model") {
            arguments.model = value;
        } else if (word == "--video") {
            arguments.video = value;
        } else if (word == "--frames") {
            arguments.frames = whole(word, value, 1000000000);
        } else if (word == "--format") {
            arguments.format = camera::format_named(value);
        } else if (word == "--size") {
            parse_size(value, arguments);
        } else if (word == "--backend") {
            arguments.attention.backend = value;
        } else if (word == "--threads") {
            arguments.attention.threads = whole(word, value, 1024);
        } else if (word == "--products") {
            arguments.products = products_named(value);
        } else if (word == "--fallback" && (value == "cpu" || value == "fail")) {
            arguments.attention.fallback = value == "cpu";
        } else if (word == "--fallback") {
            throw vision::refused(word, value, "cpu, fail");
        } else {
            throw vision::refused(word, "no such option", "those that --help lists");
        }
        ++i;
    }
    if (!arguments.help && arguments.model.empty()) {
        throw vision::refused("--model", "absent", "a safetensors file");
    }
    if (!arguments.video.empty() && !arguments.paths.empty()) {
        throw vision::refused("--video", "and files", "one of them");
    }
    return arguments;
}

std::unique_ptr<camera::Source> source_of(const Arguments &arguments) {
    if (!arguments.video.empty()) {
        return camera::video(arguments.video);
    }
    if (!arguments.paths.empty()) {
        return std::unique_ptr<camera::Source>(new camera::Files(arguments.paths, arguments.format));
    }
    return std::unique_ptr<camera::Source>(
        new camera::Synthetic(arguments.format, arguments.width, arguments.height));
}

/// Totals over all pictures.
struct Totals {
    std::uint64_t pictures = 0, labelled = 0, right = 0, fallbacks = 0, allocations = 0, copies = 0;
    const char *backend = "";
    double seconds = 0.0;
};

/// A network with its room for a picture. If its GPU fails, the CPU takes over.
class Classifier {
public:
    Classifier(const Arguments &arguments, const vision::Weights &weights, camera::Source &source)
        : arguments_(arguments), weights_(weights), source_(source) {
        std::string reason;
        network_ = camera::network_of(weights, arguments.attention, arguments.products, reason);
        replaced_ = !reason.empty() || (arguments.attention.backend == "cuda" && network_->gpu().empty());
        if (!reason.empty()) {
            report(reason);
        }
        room_ = network_->room(source.bytes());
    }

    /// Takes and classifies picture n. Throws Error.
    camera::Shot classify(std::uint64_t n, vision::Answer &answer) {
        camera::Shot shot = source_.take(n, room_);
        try {
            answer = network_->classify(shot.frame);
        } catch (const Error &error) {
            if (!arguments_.attention.fallback || network_->gpu().empty()) {
                throw;
            }
            report(error.what());
            std::unique_ptr<camera::Network> cpu(
                new camera::CpuNetwork(weights_, camera::on_cpu(arguments_.attention)));
            const camera::Shared room = cpu->room(source_.bytes());
            std::copy(room_.data, room_.data + source_.bytes(), room.data);
            for (Address &plane : shot.frame.planes) {
                plane = plane == 0 ? 0 : plane - room_.address + room.address;
            }
            room_ = room;
            network_ = std::move(cpu);
            replaced_ = true;
            answer = network_->classify(shot.frame);
        }
        answer.attention.fallback = answer.attention.fallback || replaced_;
        return shot;
    }

    const camera::Network &network() const noexcept { return *network_; }

private:
    static void report(const std::string &reason) {
        std::fprintf(stderr, "elsa-camera: %s; the CPU computes instead\n", reason.c_str());
    }

    const Arguments &arguments_;
    const vision::Weights &weights_;
    camera::Source &source_;
    std::unique_ptr<camera::Network> network_;
    bool replaced_ = false;
    camera::Shared room_;
};

void print(const Totals &totals, const camera::Network &network, bool json) {
    const camera::Nodes nodes = network.nodes();
    const double pictures = double(std::max<std::uint64_t>(1, totals.pictures));
    const double copies = double(totals.copies) / pictures + double(nodes.copies);
    const double allocations = double(totals.allocations) / pictures;
    const double accuracy = totals.labelled == 0 ? 0.0 : double(totals.right) / double(totals.labelled);
    if (json) {
        nlohmann::ordered_json line = {{"pictures", totals.pictures},
                                       {"labelled", totals.labelled},
                                       {"right", totals.right},
                                       {"fallbacks", totals.fallbacks},
                                       {"backend", totals.backend},
                                       {"device", network.gpu()},
                                       {"copies_per_frame", copies},
                                       {"allocations_per_frame", allocations},
                                       {"graph_kernels", nodes.kernels},
                                       {"graph_copies", nodes.copies},
                                       {"graph_others", nodes.others},
                                       {"seconds", totals.seconds}};
        line["accuracy"] = totals.labelled == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(accuracy);
        std::cout << line.dump() << '\n';
        return;
    }
    std::cout << totals.pictures << " pictures in " << totals.seconds << " s, by " << totals.backend;
    if (!network.gpu().empty()) {
        std::cout << " on " << network.gpu() << ", a graph of " << nodes.kernels << " kernels, " << nodes.copies
                  << " copies and " << nodes.others << " other nodes";
    }
    std::cout << "; for each picture " << copies << " copies between host and device, " << allocations
              << " allocations\n";
    if (totals.fallbacks > 0) {
        std::cout << totals.fallbacks << " in place of the GPU\n";
    }
    if (totals.labelled > 0) {
        std::cout << totals.right << " of " << totals.labelled << " as labelled\n";
    }
}

int run(const Arguments &arguments) {
    // Reports why the CPU computes instead of a GPU, and other messages of the library.
    const elsa::result<elsa::logger> log = elsa::logger::create(ELSA_LOG_WARN, [](elsa_log_level, const char *text) {
        std::fprintf(stderr, "elsa-camera: %s\n", text);
    });
    if (!log) {
        throw Error(vision::Fault::system, "log: " + log.message());
    }
    const vision::Weights weights = vision::SafeTensors::open(arguments.model);
    const std::unique_ptr<camera::Source> source = source_of(arguments);
    Classifier classifier(arguments, weights, *source);
    vision::Answer answer;
    // The first picture touches all memory that a picture needs; it is taken again and counted then.
    classifier.classify(0, answer);

    const std::uint64_t usual = arguments.paths.empty() ? 64 : source->count();
    const std::uint64_t frames = arguments.frames > 0 ? arguments.frames : usual;
    Totals totals;
    for (std::uint64_t n = 0; n < frames; ++n) {
        const std::string before = classifier.network().gpu();
        const std::uint64_t copies = classifier.network().copies();
        const std::uint64_t memory = classifier.network().allocations(), news = camera::allocated();
        const auto start = std::chrono::steady_clock::now();
        const camera::Shot shot = classifier.classify(n, answer);
        totals.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        totals.allocations += camera::allocated() - news;
        if (classifier.network().gpu() == before) {
            totals.allocations += classifier.network().allocations() - memory;
            totals.copies += classifier.network().copies() - copies;
        }
        ++totals.pictures;
        totals.labelled += shot.label >= 0;
        totals.right += shot.label >= 0 && static_cast<std::size_t>(shot.label) == answer.best;
        totals.fallbacks += answer.attention.fallback;
        totals.backend = answer.attention.backend;
        if (!arguments.paths.empty() && n < source->count()) {
            vision::print_answer(*shot.name, shot.label, classifier.network().scores(),
                                 classifier.network().probabilities(), answer, arguments.json);
        }
    }
    print(totals, classifier.network(), arguments.json);
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
        std::fprintf(stderr, "elsa-camera: %s\n", error.what());
        return static_cast<int>(error.fault());
    } catch (const std::exception &error) {
        std::fprintf(stderr, "elsa-camera: %s\n", error.what());
        return 3;
    }
}
