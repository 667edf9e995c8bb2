// Parts of the node without a master: encodings, refusals, diagnostics, and the allocations of a period.

#include "classifier.hpp"
#include "frame.hpp"

#include "error.hpp"
#include "files.hpp"
#include "model.hpp"
#include "picture.hpp"
#include "safetensors.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

namespace {

/// Calls of the allocator by every thread of the process.
std::atomic<std::size_t> allocations(0);

std::size_t passed = 0, failed = 0;

void check(bool holds, const std::string &what) {
    (holds ? passed : failed) += 1;
    if (!holds) {
        std::fprintf(stderr, "failed: %s\n", what.c_str());
    }
}

} // namespace

// The allocator of glibc, counted. It serves operator new, the library and everything else in the process.
extern "C" {
void *__libc_malloc(std::size_t bytes);
void *__libc_calloc(std::size_t count, std::size_t bytes);
void *__libc_realloc(void *memory, std::size_t bytes);
void *__libc_memalign(std::size_t alignment, std::size_t bytes);

void *malloc(std::size_t bytes) noexcept {
    ++allocations;
    return __libc_malloc(bytes);
}
void *calloc(std::size_t count, std::size_t bytes) noexcept {
    ++allocations;
    return __libc_calloc(count, bytes);
}
void *realloc(void *memory, std::size_t bytes) noexcept {
    ++allocations;
    return __libc_realloc(memory, bytes);
}
void *aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
    ++allocations;
    return __libc_memalign(alignment, bytes);
}
int posix_memalign(void **memory, std::size_t alignment, std::size_t bytes) noexcept {
    ++allocations;
    *memory = __libc_memalign(alignment, bytes);
    return *memory == nullptr ? ENOMEM : 0;
}
}

namespace {

typedef diagnostic_msgs::DiagnosticStatus Status;

/// An encoding of the test: its name, its channels, and the places of red, green and blue.
struct Order {
    const char *name;
    std::size_t channels, places[3];
};

const Order orders[] = {
    {"mono8", 1, {0, 0, 0}}, {"rgb8", 3, {0, 1, 2}}, {"bgr8", 3, {2, 1, 0}}, {"rgba8", 4, {0, 1, 2}},
    {"bgra8", 4, {2, 1, 0}},
};

/// Returns a picture whose pixels are `colours` [height, width, 3], with `padding` bytes after each row.
sensor_msgs::Image image_of(const Order &order, std::size_t width, std::size_t height, std::size_t padding,
                            const std::vector<std::uint8_t> &colours) {
    sensor_msgs::Image image;
    image.encoding = order.name;
    image.width = static_cast<std::uint32_t>(width);
    image.height = static_cast<std::uint32_t>(height);
    image.step = static_cast<std::uint32_t>(width * order.channels + padding);
    // Bytes that are no colour would change every answer.
    image.data.assign(image.step * height, 0xa5);
    for (std::size_t y = 0; y < height; ++y) {
        for (std::size_t x = 0; x < width; ++x) {
            for (std::size_t c = 0; c < 3; ++c) {
                image.data[y * image.step + x * order.channels + order.places[c]] = colours[3 * (y * width + x) + c];
            }
        }
    }
    return image;
}

std::vector<std::uint8_t> colours_of(std::size_t width, std::size_t height, bool grey) {
    std::vector<std::uint8_t> colours;
    for (std::size_t i = 0; i < 3 * width * height; ++i) {
        const std::size_t n = grey ? i / 3 : i;
        colours.push_back(static_cast<std::uint8_t>(n * n * 31 + n * 7));
    }
    return colours;
}

void encodings() {
    const std::size_t sizes[][2] = {{8, 8}, {1, 1}, {3, 5}, {13, 29}, {100, 7}};
    for (const auto &size : sizes) {
        for (const Order &order : orders) {
            const bool grey = order.channels == 1;
            const std::vector<std::uint8_t> colours = colours_of(size[0], size[1], grey);
            vision::Picture picture;
            picture.width = size[0];
            picture.height = size[1];
            for (std::size_t i = 0; i < size[0] * size[1]; ++i) {
                const unsigned red = colours[3 * i], green = colours[3 * i + 1], blue = colours[3 * i + 2];
                picture.grey.push_back(static_cast<std::uint8_t>((77 * red + 150 * green + 29 * blue) / 256));
            }
            node::Cells wanted, found;
            vision::reduce(picture, wanted);
            for (const std::size_t padding : {0u, 5u}) {
                node::Line why;
                found.fill(-1.0f);
                const sensor_msgs::Image image = image_of(order, size[0], size[1], padding, colours);
                const node::Refusal refusal = node::read(image, found, why);
                check(refusal == node::Refusal::none && found == wanted,
                      std::string(order.name) + " of " + std::to_string(size[0]) + " x " + std::to_string(size[1]) +
                          " with padding " + std::to_string(padding));
            }
        }
    }
}

void refusals() {
    const sensor_msgs::Image good = image_of(orders[1], 4, 3, 2, colours_of(4, 3, false));
    const auto refused = [&good](void (*change)(sensor_msgs::Image &), node::Refusal refusal, const std::string &text) {
        sensor_msgs::Image image = good;
        change(image);
        node::Cells cells;
        cells.fill(-1.0f);
        node::Line why = {};
        const bool as_wanted = node::read(image, cells, why) == refusal && why.data() == text;
        const bool untouched = std::all_of(cells.begin(), cells.end(), [](float cell) { return cell == -1.0f; });
        check(as_wanted && untouched, text + "; found: " + why.data());
    };
    typedef sensor_msgs::Image Image;
    typedef node::Refusal Refusal;
    const std::string known = "'; allowed: mono8, rgb8, bgr8, rgba8, bgra8";
    refused([](Image &image) { image.encoding = "mono16"; }, Refusal::encoding, "encoding: 'mono16" + known);
    refused([](Image &image) { image.encoding = ""; }, Refusal::encoding, "encoding: '" + known);
    refused([](Image &image) { image.encoding.assign(10000, 'x'); }, Refusal::encoding,
            "encoding: '" + std::string(64, 'x') + known);
    refused([](Image &image) { image.width = 0; }, Refusal::width, "width: 0; allowed: 1 to 8192");
    refused([](Image &image) { image.width = 0xffffffffu; }, Refusal::width, "width: 4294967295; allowed: 1 to 8192");
    refused([](Image &image) { image.height = 8193; }, Refusal::height, "height: 8193; allowed: 1 to 8192");
    refused([](Image &image) { image.step = 11; }, Refusal::step, "step: 11; allowed: 12 or more");
    refused([](Image &image) { image.data.resize(39); }, Refusal::data, "data: 39; allowed: 40 or more");
    refused([](Image &image) { image.step = 0xffffffffu; }, Refusal::data,
            "data: 42; allowed: 8589934602 or more");
    sensor_msgs::Image last = good;
    last.data.resize(40);
    node::Cells cells;
    node::Line why;
    check(node::read(last, cells, why) == node::Refusal::none, "padding after the last row may be absent");
}

const std::string &value(const diagnostic_msgs::DiagnosticArray &message, const std::string &key) {
    static const std::string absent = "absent";
    for (const auto &each : message.status.front().values) {
        if (each.key == key) {
            return each.value;
        }
    }
    return absent;
}

std::vector<float> numbers(const std::string &text) {
    std::vector<float> all;
    const char *at = text.c_str();
    for (char *end = nullptr; *at != 0; at = end) {
        all.push_back(std::strtof(at, &end));
        if (end == at) {
            break;
        }
    }
    return all;
}

/// Answers the pictures of a folder: the diagnostics must contain the answers of the network itself.
void answers(const vision::SafeTensors &weights, const std::string &folder) {
    vision::AttentionOptions options;
    options.threads = 1;
    vision::Model model(weights, options);
    node::Classifier classifier("test", weights, options);
    std::size_t count = 0, equal = 0, proven = 0;
    const std::uint64_t far = std::uint64_t(1) << 62;
    for (const std::string &path : vision::pictures_of({folder})) {
        const vision::Picture picture = vision::read_picture(path);
        node::Cells cells;
        vision::reduce(picture, cells);
        const vision::Answer wanted = model.classify(cells);
        sensor_msgs::Image image;
        image.encoding = "mono8";
        image.width = image.step = static_cast<std::uint32_t>(picture.width);
        image.height = static_cast<std::uint32_t>(picture.height);
        image.data = picture.grey;
        image.header.stamp.sec = 7;
        image.header.stamp.nsec = 5;
        classifier.begin(realtime::Tick{realtime::now(), far, 0});
        classifier.take(image);
        const diagnostic_msgs::DiagnosticArray &message = classifier.end(ros::Time(1, 2));
        ++count;
        equal += value(message, "class") == std::to_string(wanted.best) &&
                 numbers(value(message, "scores")) == model.scores() &&
                 numbers(value(message, "probability")) == std::vector<float>{model.probabilities()[wanted.best]};
        const std::vector<float> bound = numbers(value(message, "bound"));
        proven += value(message, "certificate") == "rigorous" && bound.size() == 1 && bound[0] > 0.0f &&
                  bound[0] < 0.01f && message.status.front().level == Status::OK;
        if (count == 1) {
            check(value(message, "picture_stamp") == "7.000000005" && message.header.stamp == ros::Time(1, 2),
                  "time stamps");
            check(message.status.front().message == "class " + std::to_string(wanted.best), "the sentence");
            check(value(message, "backend") == wanted.attention.backend && value(message, "fallback") == "0" &&
                      value(message, "late") == "0" && value(message, "error").empty(),
                  "facts of an answer");
        }
    }
    check(count > 0 && equal == count, std::to_string(equal) + " of " + std::to_string(count) + " answers");
    check(count > 0 && proven == count, std::to_string(proven) + " of " + std::to_string(count) + " certificates");
}

/// Late answers, refused pictures and periods without a picture.
void levels(const vision::SafeTensors &weights) {
    node::Classifier classifier("test", weights, vision::AttentionOptions());
    const sensor_msgs::Image good = image_of(orders[2], 9, 9, 3, colours_of(9, 9, false));
    sensor_msgs::Image bad = good;
    bad.encoding = "bayer_rggb8";
    const auto period = [&classifier](const sensor_msgs::Image *image, std::uint64_t deadline, std::uint64_t skipped) {
        classifier.begin(realtime::Tick{realtime::now(), deadline, skipped});
        if (image != nullptr) {
            classifier.take(*image);
        }
        return classifier.end(ros::Time(1, 0));
    };
    const diagnostic_msgs::DiagnosticArray late = period(&good, 1, 4);
    check(late.status.front().level == Status::WARN && value(late, "late") == "1" && value(late, "late_total") == "1" &&
              value(late, "skipped_total") == "4",
          "a late answer");
    const diagnostic_msgs::DiagnosticArray refused = period(&bad, 1, 0);
    check(refused.status.front().level == Status::ERROR && value(refused, "error") == "encoding" &&
              value(refused, "class").empty() && value(refused, "certificate").empty() &&
              refused.status.front().message.find("bayer_rggb8") != std::string::npos,
          "a refused picture");
    const diagnostic_msgs::DiagnosticArray idle = period(nullptr, 1, 1);
    check(idle.status.front().level == Status::STALE && value(idle, "error").empty() && value(idle, "idle") == "1" &&
              value(idle, "answered") == "1" && value(idle, "refused") == "1" && value(idle, "skipped_total") == "5",
          "a period without a picture");
}

/// Counts the allocations of periods with every encoding, with a refused picture, and without a picture.
void memory(const vision::SafeTensors &weights) {
    std::vector<sensor_msgs::Image> images;
    for (const Order &order : orders) {
        images.push_back(image_of(order, 640, 480, 16, colours_of(640, 480, false)));
    }
    images.push_back(images.front());
    images.back().encoding.assign(10000, 'x');
    vision::AttentionOptions options;
    options.threads = 2;
    node::Classifier classifier("test", weights, options);
    const auto run = [&] {
        std::uint64_t skipped = 1000000000;
        for (std::size_t i = 0; i <= images.size(); ++i) {
            classifier.begin(realtime::Tick{realtime::now(), i % 2, ++skipped});
            if (i < images.size()) {
                classifier.take(images[i]);
            }
            static_cast<void>(classifier.end(ros::Time(1, 0)));
        }
    };
    const std::size_t before = allocations;
    run();
    const std::size_t used = allocations - before;
    check(used == 0, std::to_string(used) + " allocations in the periods; allowed: none");
    const std::size_t without = allocations;
    // A volatile pointer, so that the compiler keeps the allocation.
    int *volatile one = new int(1);
    delete one;
    const std::size_t counted = allocations - without;
    check(counted == 1, "an allocation is counted");
}

} // namespace

int main(int count, char **words) {
    if (count != 3) {
        std::fprintf(stderr, "usage: digits-tests MODEL FOLDER\n");
        return 2;
    }
    try {
        const vision::SafeTensors weights = vision::SafeTensors::open(words[1]);
        encodings();
        refusals();
        answers(weights, words[2]);
        levels(weights);
        memory(weights);
    } catch (const std::exception &error) {
        check(false, error.what());
    }
    std::printf("%zu passed, %zu failed\n", passed, failed);
    return failed == 0 && passed > 0 ? 0 : 1;
}
